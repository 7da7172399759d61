//! One request to the REST API, and what its answer asks for: another page, patience, or nothing.
//!
//! Requests go to the configured address and nowhere else: a link or a redirect to another one is refused.

use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, LINK, RETRY_AFTER};
use reqwest::{StatusCode, Url, redirect};
use serde_json::Value;

use super::settings::GitHub;
use crate::cluster::now_unix_ms;

/// What one page may weigh: a hundred items, each with a long text.
const PAGE_BYTES_MAX: usize = 32 << 20;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How long a secondary limit is waited for that does not say how long.
const SECONDARY_WAIT_MS: u64 = 60_000;
/// The longest wait that an answer can ask for: the primary limit is of an hour.
const WAIT_MS_MAX: u64 = 2 * 60 * 60 * 1_000;

pub struct Client {
    http: reqwest::Client,
    base: Url,
}

/// What came back.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Page(Page),
    /// As it was under this ETag.
    NotModified,
    /// A limit: nothing is asked before this.
    Wait {
        until_unix_ms: u64,
        why: String,
    },
    /// It will be the same next time, unless somebody changes a setting or the repository.
    Refused {
        why: String,
    },
    /// A fault that goes by.
    Failed {
        why: String,
    },
}

#[derive(Debug, PartialEq)]
pub struct Page {
    pub items: Vec<Value>,
    /// The next page, within the base.
    pub next: Option<String>,
    pub etag: Option<String>,
}

impl Client {
    pub fn new(settings: &GitHub) -> Result<Self, reqwest::Error> {
        let base = settings.url.clone();
        let within = base.clone();
        // A repository that was renamed is redirected within the API.
        let policy = redirect::Policy::custom(move |attempt| match attempt.previous().len() < 4 && is_within(&within, attempt.url()) {
            true => attempt.follow(),
            false => attempt.error("it leads away from the configured address"),
        });
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/vnd.github+json"));
        headers.insert("x-github-api-version", HeaderValue::from_static("2022-11-28"));
        let bearer = settings.token.as_ref().and_then(|token| HeaderValue::try_from(format!("Bearer {}", token.0)).ok());
        if let Some(mut bearer) = bearer {
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(policy)
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .build()?;
        Ok(Self { http, base })
    }

    /// Asks for a path below the base, with its query.
    pub async fn get(&self, path: &str, etag: Option<&str>) -> Answer {
        let url = match self.base.join(path) {
            Ok(url) if is_within(&self.base, &url) => url,
            _ => return Answer::Refused { why: "a page leads away from the configured address".into() },
        };
        let mut request = self.http.get(url);
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Answer::Failed { why: plain(&error) },
        };
        let (status, headers) = (response.status(), response.headers().clone());
        if status == StatusCode::NOT_MODIFIED {
            return Answer::NotModified;
        }
        if !status.is_success() {
            return unsuccessful(status, &headers, now_unix_ms().0);
        }
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= PAGE_BYTES_MAX => body.extend_from_slice(&chunk),
                Ok(Some(_)) => return Answer::Refused { why: format!("a page is larger than {PAGE_BYTES_MAX} bytes") },
                Ok(None) => break,
                Err(error) => return Answer::Failed { why: plain(&error) },
            }
        }
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(ToString::to_string);
        let next = text(LINK).and_then(|link| next_of(&link));
        let next = match next.map(|next| self.base.join(&next)) {
            None => None,
            Some(Ok(next)) if is_within(&self.base, &next) => {
                let path = next.path().strip_prefix(self.base.path()).unwrap_or_default();
                Some(next.query().map_or_else(|| path.to_string(), |query| format!("{path}?{query}")))
            }
            Some(_) => return Answer::Refused { why: "a page's next one leads away from the configured address".into() },
        };
        match serde_json::from_slice(&body) {
            Ok(Value::Array(items)) => Answer::Page(Page { items, next, etag: text(ETAG) }),
            _ => Answer::Failed { why: "the answer is no JSON list".into() },
        }
    }
}

/// An error without its URL, which may hold more than a log should.
fn plain(error: &reqwest::Error) -> String {
    let kind = if error.is_timeout() {
        "it did not answer in time"
    } else if error.is_connect() {
        "it can't be reached"
    } else if error.is_redirect() {
        "it redirects to another address"
    } else {
        "the connection broke off"
    };
    kind.into()
}

fn is_within(base: &Url, url: &Url) -> bool {
    url.origin() == base.origin() && url.path().starts_with(base.path())
}

/// What an answer that is none asks for.
fn unsuccessful(status: StatusCode, headers: &HeaderMap, now_ms: u64) -> Answer {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    let is_limit = status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::FORBIDDEN;
    let wait = |ms: u64, why: &str| Answer::Wait { until_unix_ms: now_ms + ms.clamp(1_000, WAIT_MS_MAX), why: why.into() };
    if is_limit && let Some(seconds) = number(RETRY_AFTER.as_str()) {
        return wait(seconds.saturating_mul(1_000), "its secondary rate limit is reached");
    }
    if is_limit && number("x-ratelimit-remaining") == Some(0) {
        let reset_ms = number("x-ratelimit-reset").unwrap_or(0).saturating_mul(1_000);
        return wait(reset_ms.saturating_sub(now_ms), "its rate limit is used up");
    }
    match status {
        StatusCode::TOO_MANY_REQUESTS => wait(SECONDARY_WAIT_MS, "its secondary rate limit is reached"),
        StatusCode::UNAUTHORIZED => Answer::Refused { why: "401: the token in `github_token_file` is not accepted".into() },
        StatusCode::FORBIDDEN => Answer::Refused { why: "403: the token may not read this".into() },
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            Answer::Refused { why: format!("{}: there is no such repository, or the token may not see it", status.as_u16()) }
        }
        // An empty repository has no commits yet.
        StatusCode::CONFLICT => Answer::Page(Page { items: Vec::new(), next: None, etag: None }),
        status => Answer::Failed { why: format!("it answers {}", status.as_u16()) },
    }
}

/// The address of the next page in a `Link` header.
fn next_of(link: &str) -> Option<String> {
    link.split(',').find_map(|part| {
        let (address, parameters) = part.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = parameters.split(';').any(|parameter| matches!(parameter.trim(), "rel=\"next\"" | "rel=next"));
        is_next.then(|| address.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_the_one_that_the_link_calls_so() {
        let link =
            "<https://api.github.com/r?page=1>; rel=\"prev\", <https://api.github.com/r?page=3>; rel=\"next\", <https://x/>; rel=\"last\"";
        assert_eq!(next_of(link).as_deref(), Some("https://api.github.com/r?page=3"));
        assert_eq!(next_of("<https://api.github.com/r?page=1>; rel=\"first\""), None);
        assert_eq!(next_of("nonsense"), None);
    }

    #[test]
    fn nothing_but_what_lies_below_the_base_is_within() {
        let base = Url::parse("https://git.example/api/v3/").unwrap();
        for (url, within) in [
            ("https://git.example/api/v3/repos", true),
            ("https://git.example/api/v3/../login", false),
            ("http://git.example/api/v3/repos", false),
            ("https://git.example:444/api/v3/repos", false),
            ("https://git.example.evil/api/v3/repos", false),
        ] {
            assert_eq!(is_within(&base, &Url::parse(url).unwrap()), within, "{url}");
        }
    }

    #[test]
    fn limits_are_waited_for_as_long_as_they_say() {
        let answer = |status: u16, headers: &[(&str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(reqwest::header::HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
            }
            match unsuccessful(StatusCode::from_u16(status).unwrap(), &map, 1_000_000) {
                Answer::Wait { until_unix_ms, .. } => format!("wait {}", until_unix_ms - 1_000_000),
                Answer::Refused { .. } => "refused".into(),
                Answer::Failed { .. } => "failed".into(),
                Answer::Page(page) => format!("{} items", page.items.len()),
                Answer::NotModified => "not modified".into(),
            }
        };
        assert_eq!(answer(403, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1300")]), "wait 300000");
        assert_eq!(answer(429, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1300")]), "wait 300000");
        assert_eq!(answer(403, &[("retry-after", "7")]), "wait 7000");
        assert_eq!(answer(429, &[]), "wait 60000");
        assert_eq!(answer(403, &[("retry-after", "999999999")]), "wait 7200000");
        assert_eq!(answer(403, &[("x-ratelimit-remaining", "12")]), "refused");
        assert_eq!([401, 404, 410].map(|status| answer(status, &[])), ["refused", "refused", "refused"]);
        assert_eq!([500, 502, 418].map(|status| answer(status, &[])), ["failed", "failed", "failed"]);
        assert_eq!(answer(409, &[]), "0 items");
    }
}
