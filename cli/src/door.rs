//! A gateway's HTTP door, as one caller: which gateway and which token, a call of a tool by POST, and its structured answer.

use std::path::PathBuf;

use clap::Args;
use quorate_link::bottom;
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::deployment::{DATA_DEFAULT, Deployment};
use crate::exit::{self, Failure};
use crate::http;

/// Which gateway, and as whom.
#[derive(Args)]
pub struct Door {
    /// Base URL of a gateway; without it, the gateway of the deployment in --data
    #[arg(long, env = "QUORATE_URL")]
    url: Option<String>,
    /// Bearer token
    #[arg(long, env = "QUORATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// One of the ready identities of a `quorate dev` deployment, instead of a token
    #[arg(long = "as", value_name = "NAME", conflicts_with = "token")]
    identity: Option<String>,
    /// Folder of a deployment made by `quorate dev`
    #[arg(long, env = "QUORATE_DATA", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// PEM file of the authority of the gateway's certificate; without it, those that the system trusts
    #[arg(long, env = "QUORATE_CA")]
    ca: Option<PathBuf>,
    /// Print nothing but JSON, errors as well
    #[arg(long)]
    pub json: bool,
}

impl Door {
    /// Client, base URL and token.
    fn open(&self) -> Result<(reqwest::Client, String, Option<String>), Failure> {
        let deployment = match (&self.url, &self.identity) {
            (Some(_), None) => None,
            _ => Deployment::load(&self.data)?,
        };
        let url = match (&self.url, &deployment) {
            (Some(url), _) => crate::hook::base(url),
            (None, Some(deployment)) => deployment.url(),
            (None, None) => {
                return Err(Failure::usage(format!(
                    "no deployment in {}: start `quorate dev`, or give --url and --token",
                    self.data.display()
                )));
            }
        };
        let own_ca =
            deployment.as_ref().filter(|found| found.tls && self.url.is_none()).map(|_| Deployment::files(&self.data, "gateway").ca);
        let client = http::client(&url, self.ca.as_deref().or(own_ca.as_deref()))?;
        let token = match &self.identity {
            None => self.token.clone(),
            Some(name) => {
                let tokens = deployment.map(|deployment| deployment.tokens).unwrap_or_default();
                let Some(entry) = tokens.iter().find(|entry| entry.name == *name) else {
                    let known: Vec<&str> = tokens.iter().map(|entry| entry.name.as_str()).collect();
                    return Err(Failure::usage(format!("no identity `{name}`; this deployment has {}", known.join(", "))));
                };
                Some(entry.token.clone())
            }
        };
        Ok((client, url, token))
    }
}

/// What a gateway answered.
#[derive(Debug)]
pub struct Answer {
    pub facts: Value,
    /// Where the log stood.
    pub revision: Option<u64>,
}

/// A gateway, as one caller.
pub struct Gateway {
    client: reqwest::Client,
    base: String,
    token: Option<String>,
    /// What writes are sent under, so that a repetition of one has no second effect.
    idempotency_key: Option<String>,
}

/// The header and the argument of that name.
const KEY_HEADER: &str = "Idempotency-Key";
const KEY: &str = "idempotency_key";
/// Where the log stood.
const REVISION: &str = "quorate-revision";
/// The catalog that holds every tool.
pub const CATALOG: &str = "crux";

impl Gateway {
    pub fn open(door: &Door) -> Result<Self, Failure> {
        let (client, base, token) = door.open()?;
        Ok(Self { client, base, token, idempotency_key: None })
    }

    /// The same, for writes under a key.
    pub fn under(self, idempotency_key: Option<String>) -> Self {
        Self { idempotency_key, ..self }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    /// The same for a path with a part that somebody chose, such as an id.
    pub fn at(&self, method: Method, path: &[&str]) -> Result<RequestBuilder, Failure> {
        let no_url = || Failure::usage(format!("--url {} is no HTTP address", self.base));
        let mut url = Url::parse(&self.base).map_err(|error| Failure::usage(format!("--url {}: {error}", self.base)))?;
        url.path_segments_mut().map_err(|()| no_url())?.pop_if_empty().extend(path);
        Ok(self.client.request(method, url))
    }

    /// The answer as it comes, once its first bytes are there.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().await.map_err(|error| {
            let failure = Failure::unavailable(format!("no gateway answers at {}: {}", self.base, bottom(&error)));
            // What was never reached has done nothing.
            if error.is_connect() { failure.with_facts([("wrote".to_string(), "no".into())]) } else { failure }
        })
    }

    /// The text of a good answer with its revision, or the failure that another one tells.
    async fn text_at(&self, request: RequestBuilder) -> Result<(u16, String, Option<u64>), Failure> {
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let revision = response.headers().get(REVISION).and_then(|revision| revision.to_str().ok()?.parse().ok());
        let text = response.text().await.map_err(|error| Failure::unavailable(format!("the answer broke off: {error}")))?;
        match (200..300).contains(&status) {
            true => Ok((status, text, revision)),
            false => Err(refused(status, &json_of(status, &text)?)),
        }
    }

    /// The text of the answer, as the gateway sent it.
    pub async fn text(&self, request: RequestBuilder) -> Result<String, Failure> {
        Ok(self.text_at(request).await?.1)
    }

    /// The answer, or the failure that it tells.
    pub async fn answer(&self, request: RequestBuilder) -> Result<Answer, Failure> {
        let (status, text, revision) = self.text_at(request).await?;
        Ok(Answer { facts: json_of(status, &text)?, revision })
    }

    /// The same, without the revision.
    pub async fn ask(&self, request: RequestBuilder) -> Result<Value, Failure> {
        Ok(self.answer(request).await?.facts)
    }

    /// What a path has, by parameters that may be absent.
    pub async fn get(&self, path: &[&str], parameters: &impl Serialize) -> Result<Answer, Failure> {
        self.answer(self.at(Method::GET, path)?.query(&arguments(parameters)?)).await
    }

    /// Calls a tool that reads.
    pub async fn call(&self, tool: &str, asked: &impl Serialize) -> Result<Answer, Failure> {
        self.answer(self.request(Method::POST, &format!("/v1/tools/{CATALOG}/{tool}")).json(&arguments(asked)?)).await
    }

    /// Calls a tool that writes, under the key.
    pub async fn write(&self, tool: &str, asked: &impl Serialize) -> Result<Answer, Failure> {
        let mut asked = arguments(asked)?;
        asked.extend(self.idempotency_key.clone().map(|key| (KEY.to_string(), key.into())));
        self.call(tool, &asked).await
    }

    /// The same, with the caller's own passport for an argument that was not given.
    pub async fn write_as(&self, own: &str, tool: &str, asked: &impl Serialize) -> Result<Answer, Failure> {
        let mut asked = arguments(asked)?;
        if !asked.contains_key(own) {
            asked.insert(own.into(), self.passport().await?);
        }
        self.write(tool, &asked).await
    }

    /// Posts to a path of its own that writes, under the key.
    pub async fn post(&self, path: &[&str], asked: &impl Serialize) -> Result<Answer, Failure> {
        self.send_to(Method::POST, path, asked).await
    }

    /// Puts what a path of its own is to hold, under the key.
    pub async fn put(&self, path: &[&str], asked: &impl Serialize) -> Result<Answer, Failure> {
        self.send_to(Method::PUT, path, asked).await
    }

    async fn send_to(&self, method: Method, path: &[&str], asked: &impl Serialize) -> Result<Answer, Failure> {
        let request = self.at(method, path)?.json(&arguments(asked)?);
        let request = match &self.idempotency_key {
            Some(key) => request.header(KEY_HEADER, key),
            None => request,
        };
        self.answer(request).await
    }

    /// The name that the caller goes by.
    pub async fn passport(&self) -> Result<Value, Failure> {
        Ok(self.call("get_agent_identity", &Map::new()).await?.facts["agent_name"].take())
    }
}

/// What was given: an option that was not is no argument.
fn arguments(asked: &impl Serialize) -> Result<Map<String, Value>, Failure> {
    match serde_json::to_value(asked) {
        Ok(Value::Object(mut asked)) => {
            asked.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
            Ok(asked)
        }
        Ok(other) => Err(Failure::failed(format!("arguments are no object: {other}"))),
        Err(error) => Err(Failure::failed(error.to_string())),
    }
}

/// The failure that a problem document tells.
pub fn refused(status: u16, answer: &Value) -> Failure {
    let text = answer["detail"].as_str().or(answer["title"].as_str()).map_or_else(|| answer.to_string(), str::to_string);
    let exit = if status == 503 || status == 504 { exit::UNAVAILABLE } else { exit::FAILED };
    let facts = ["code", "retryable", "wrote", "data"].into_iter().filter_map(|name| Some((name.to_string(), answer.get(name)?.clone())));
    Failure::new(exit, text).with_facts(facts)
}

pub fn json_of(status: u16, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|_| Failure::failed(format!("HTTP {status} with no JSON: {text:.200}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_s_code_and_retryable_reach_the_caller() {
        let answer = json!({"type": "about:blank", "status": 409, "detail": "held", "code": "HELD", "retryable": true, "wrote": "no"});
        let failure = refused(409, &answer);
        assert_eq!((failure.code, failure.message.as_str()), (exit::FAILED, "held"));
        assert_eq!(Value::Object(failure.facts), json!({"code": "HELD", "retryable": true, "wrote": "no"}));
        assert_eq!(refused(503, &json!({"detail": "no leader"})).code, exit::UNAVAILABLE);
    }

    #[test]
    fn what_was_not_given_is_no_argument() {
        let asked = json!({"entity": "svc:api", "key": null, "supersedes": [], "private": false});
        assert_eq!(Value::Object(arguments(&asked).expect("an object")), json!({"entity": "svc:api", "private": false}));
    }
}
