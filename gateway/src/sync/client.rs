//! One request to the other cluster, and what its answer means.
//!
//! Requests go below the configured address and nowhere else: redirects are not followed. The token is in no message.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_domain::fact::SharedPage;
use quorate_domain::fact::sync::FactsPromoted;
use quorate_domain::refusal::shown;
use quorate_link::bottom;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Certificate, StatusCode, Url, redirect};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::call::{CallError, Wrote};
use crate::github::settings::Secret;

pub use quorate_domain::fact::SharedPage as Page;

/// What one answer may weigh: a page of values, each written out in JSON.
const ANSWER_BYTES_MAX: usize = 16 << 20;
const CONNECT_WITHIN: Duration = Duration::from_secs(4);
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// The other cluster.
#[derive(Clone)]
pub struct Remote {
    /// Its address, as the cluster remembers it by.
    pub name: String,
    /// Our tenant, whose facts are exchanged.
    pub tenant: String,
    /// How often gateways pull by themselves, if they do.
    pub poll: Option<Duration>,
    http: reqwest::Client,
    base: Url,
    /// Whose memory it last said it is.
    seen: Arc<Mutex<Option<String>>>,
}

/// Whose memory the other side has for us, and what our token may do with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub tenant_id: String,
    pub may_read: bool,
    pub may_write: bool,
}

/// Why there is no answer. One variant for each different next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Nobody answered, or not to the end. `sent`: it may have had its effect.
    Down { why: String, sent: bool },
    /// It answered that it can't now, or will not.
    Refused { why: String, retryable: bool },
    /// What answers there is no Quorate that exchanges facts.
    Strange { why: String },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Down { why, .. } => write!(f, "the other cluster does not answer: {why}"),
            Fault::Refused { why, .. } => write!(f, "the other cluster refuses: {why}"),
            Fault::Strange { why } => write!(f, "what answers at `sync_remote_url` does not exchange facts: {why}"),
        }
    }
}

impl Fault {
    pub fn may_have_arrived(&self) -> bool {
        matches!(self, Fault::Down { sent: true, .. } | Fault::Strange { .. })
    }

    pub fn of_call(self, wrote: Wrote) -> CallError {
        let detail = self.to_string();
        match self {
            Fault::Down { .. } | Fault::Refused { retryable: true, .. } => CallError::RemoteDown { detail, wrote },
            Fault::Refused { retryable: false, .. } | Fault::Strange { .. } => CallError::RemoteRefused { detail, wrote },
        }
    }
}

impl Remote {
    pub fn new(base: Url, tenant: String, token: Secret, authorities: Option<Vec<Certificate>>) -> Result<Self, reqwest::Error> {
        quorate_link::install_crypto();
        let mut headers = HeaderMap::new();
        if let Ok(mut bearer) = HeaderValue::try_from(format!("Bearer {}", token.0)) {
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        let mut http = reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers);
        if let Some(authorities) = authorities {
            http = http.tls_certs_only(authorities);
        }
        let name = base.as_str().trim_end_matches('/').to_string();
        Ok(Self { name, tenant, poll: None, http: http.build()?, base, seen: Arc::default() })
    }

    /// Whose memory it is there, as far as this gateway has asked.
    pub fn tenant_seen(&self) -> Option<String> {
        self.seen.lock().expect("no panic under the lock").clone()
    }

    /// Asks who is there.
    pub async fn manifest(&self, tenant_id: Option<&str>, within: Duration) -> Result<Manifest, Fault> {
        let query: Vec<(&str, &str)> = tenant_id.map(|tenant| ("tenant_id", tenant)).into_iter().collect();
        let manifest: Manifest = self.exchange(self.http.get(self.at("v1/sync/manifest")).query(&query), within).await?;
        self.saw(&manifest.tenant_id);
        Ok(manifest)
    }

    /// The next page of what it shares.
    pub async fn facts(&self, cursor: Option<&str>, tenant_id: Option<&str>, within: Duration) -> Result<SharedPage, Fault> {
        let query = [("cursor", cursor), ("tenant_id", tenant_id)];
        let query: Vec<(&str, &str)> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let page: SharedPage = self.exchange(self.http.get(self.at("v1/sync/facts")).query(&query), within).await?;
        self.saw(&page.tenant_id);
        Ok(page)
    }

    /// How named pairs stand there.
    pub async fn pairs(&self, pairs: Vec<(String, String)>, within: Duration) -> Result<SharedPage, Fault> {
        self.exchange(self.http.post(self.at("v1/sync/pairs")).json(&json!({ "pairs": pairs })), within).await
    }

    /// Sends facts.
    pub async fn promote(&self, body: &Value, idempotency_key: &str, within: Duration) -> Result<FactsPromoted, Fault> {
        let request = self.http.post(self.at("v1/sync/facts")).header("idempotency-key", idempotency_key).json(body);
        self.exchange(request, within).await
    }

    fn at(&self, path: &str) -> Url {
        self.base.join(path).expect("a path below a base")
    }

    fn saw(&self, tenant_id: &str) {
        *self.seen.lock().expect("no panic under the lock") = Some(tenant_id.into());
    }

    async fn exchange<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder, within: Duration) -> Result<T, Fault> {
        let down = |error: reqwest::Error| Fault::Down { why: plain(&error), sent: !error.is_connect() };
        let mut response = request.timeout(within.min(ANSWER_WITHIN)).send().await.map_err(down)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(down)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(Fault::Strange { why: format!("an answer is larger than {ANSWER_BYTES_MAX} bytes") });
            }
            body.extend_from_slice(&chunk);
        }
        match status.is_success() {
            true => serde_json::from_slice(&body).map_err(|error| Fault::Strange { why: format!("the answer has another form: {error}") }),
            false => Err(unsuccessful(status, &body)),
        }
    }
}

fn unsuccessful(status: StatusCode, body: &[u8]) -> Fault {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = problem["message"].as_str().map(shown);
    let why = message.clone().unwrap_or_else(|| format!("HTTP {status}"));
    match status {
        StatusCode::UNAUTHORIZED => Fault::Refused { why: "it does not know the token in `sync_token_file`".into(), retryable: false },
        StatusCode::GATEWAY_TIMEOUT => Fault::Down { why, sent: true },
        // Another tenant's name is answered like one that nobody has.
        StatusCode::NOT_FOUND if problem["data"]["what"] == "tenant" => {
            Fault::Refused { why: "its memory for this token is not that of `tenant_id`".into(), retryable: false }
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Fault::Strange { why: format!("HTTP {status}") },
        _ if status.is_redirection() => Fault::Strange { why: "it redirects to another address".into() },
        _ if message.is_none() && !status.is_server_error() => Fault::Strange { why },
        _ => Fault::Refused { why, retryable: status.is_server_error() || problem["retryable"].as_bool() == Some(true) },
    }
}

/// An error without its URL.
fn plain(error: &reqwest::Error) -> String {
    match error {
        _ if error.is_timeout() => "it did not answer in time".into(),
        _ if error.is_connect() => {
            // The last cause says most: a refused connection, an unknown authority.
            format!("it can't be reached ({})", shown(&bottom(error)))
        }
        _ => "the connection broke".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_means_decides_whether_it_is_worth_asking_again() {
        let problem = |retryable: bool| json!({ "message": "no.", "retryable": retryable }).to_string();
        let told = |status: u16, body: &str| match unsuccessful(StatusCode::from_u16(status).unwrap(), body.as_bytes()) {
            Fault::Down { sent, .. } => format!("down {sent}"),
            Fault::Refused { retryable, .. } => format!("refused {retryable}"),
            Fault::Strange { .. } => "strange".into(),
        };
        assert_eq!([401, 403, 422].map(|status| told(status, &problem(false))), ["refused false"; 3]);
        assert_eq!([429, 507].map(|status| told(status, &problem(true))), ["refused true"; 2]);
        assert_eq!([500, 503].map(|status| told(status, "oops")), ["refused true"; 2]);
        assert_eq!(told(504, &problem(true)), "down true", "it may have written it");
        assert_eq!([302, 404, 405, 418].map(|status| told(status, "<html>")), ["strange"; 4]);
    }
}
