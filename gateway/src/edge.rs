//! What is checked of every request before anything of it is read.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::config::Settings;
use crate::limit::{BODY_BYTES_DRAINED, BODY_BYTES_MAX};

/// Which `Host` and `Origin` are ours. A page on another site can make a browser on this machine send requests here; it can't
/// choose these two.
pub struct Doors {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Doors {
    pub fn new(settings: &Settings) -> Self {
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "[::1]"].map(String::from).into();
        hosts.push(match settings.listen.ip() {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        });
        hosts.extend(settings.allowed_hosts.iter().map(|host| host.to_ascii_lowercase()));
        Self { hosts, origins: settings.allowed_origins.iter().map(|origin| origin.trim_end_matches('/').to_ascii_lowercase()).collect() }
    }

    /// Why the request is turned away, if it is.
    pub fn refuse(&self, headers: &HeaderMap, authority: Option<&str>) -> Option<&'static str> {
        let mut named = headers.get_all(header::HOST).iter();
        let host = match (named.next(), named.next()) {
            (Some(host), None) => host.to_str().ok(),
            (None, _) => authority,
            // RFC 9112, 3.2: what stands in front of this gateway may have looked at another one.
            (Some(_), Some(_)) => return Some("the request has more than one `Host`"),
        };
        if !host.is_some_and(|host| self.knows(host)) {
            return Some("this `Host` is not served here; an operator can add it to `allowed_hosts`");
        }
        match headers.get(header::ORIGIN) {
            None => None,
            Some(origin) if origin.to_str().is_ok_and(|origin| self.trusts(origin)) => None,
            Some(_) => Some("this `Origin` is not allowed; an operator can add it to `allowed_origins`"),
        }
    }

    /// The origin, when pages of it may read what is answered: those that an operator has named, and no other.
    pub fn shared_with(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let named = origin.to_str().ok()?.to_ascii_lowercase();
        self.origins.contains(&named).then(|| origin.clone())
    }

    fn knows(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &host,
        };
        self.hosts.iter().any(|known| known == name)
    }

    fn trusts(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        let loopback = origin.split_once("://").is_some_and(|(scheme, host)| {
            let name =
                host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())).map_or(host, |(name, _)| name);
            matches!(scheme, "http" | "https") && matches!(name, "localhost" | "127.0.0.1" | "[::1]")
        });
        loopback || self.origins.contains(&origin)
    }
}

/// What a page of another origin may send, and may see of an answer besides its body.
const SHARED_METHODS: &str = "GET, POST, PUT, PATCH, DELETE";
const SHARED_REQUEST_HEADERS: &str = "authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, \
    mcp-protocol-version, mcp-session-id, quorate-session, quorate-turn";
const SHARED_ANSWER_HEADERS: &str = "etag, link, mcp-session-id, quorate-revision, quorate-warning, retry-after, www-authenticate";
const PREFLIGHT_SECONDS: &str = "600";

/// Whether a browser asks what a page of another origin may send.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to that. Tokens are sent by the page itself, so that no credentials of the browser are let through.
pub fn preflight(origin: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    share(&mut response, origin);
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(SHARED_METHODS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(SHARED_REQUEST_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_SECONDS));
    response
}

/// Lets pages of an origin read an answer.
pub fn share(response: &mut Response<Body>, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(SHARED_ANSWER_HEADERS));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the request has {size} bytes or more, and the limit is {limit}")]
    TooLarge { size: usize, limit: usize },
    #[error("the request's body did not arrive within {} ms", .0.as_millis())]
    TooSlow(Duration),
}

impl BodyError {
    pub fn status(&self) -> StatusCode {
        match self {
            BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
        }
    }
}

/// Reads a body up to the limit, in time.
pub async fn read_body(body: Body, within: Duration) -> Result<Bytes, BodyError> {
    read_body_up_to(body, BODY_BYTES_MAX, within).await
}

/// The same with another limit.
pub async fn read_body_up_to(body: Body, limit: usize, within: Duration) -> Result<Bytes, BodyError> {
    match tokio::time::timeout(within, read_whole(body, limit)).await {
        Ok(read) => read,
        Err(_) => Err(BodyError::TooSlow(within)),
    }
}

/// What is over the limit is read and thrown away, so that the sender, who may not listen while it sends, gets to read the
/// answer.
async fn read_whole(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let mut stream = body.into_data_stream();
    let mut whole = Vec::new();
    let mut size = 0;
    while let Some(chunk) = stream.next().await {
        // A body that breaks off is judged like a short one: it won't parse.
        let Ok(chunk) = chunk else { break };
        size += chunk.len();
        if size <= limit {
            whole.extend_from_slice(&chunk);
        } else if size > limit.max(BODY_BYTES_DRAINED) {
            break;
        }
    }
    if size > limit { Err(BodyError::TooLarge { size, limit }) } else { Ok(whole.into()) }
}

/// Whether a body is marked as JSON, which is UTF-8 (RFC 8259, 8.1).
pub fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else { return false };
    let mut parts = kind.split(';').map(str::trim);
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8"),
        _ => true,
    };
    parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) && parts.all(is_utf8)
}

pub fn json_response(status: StatusCode, body: String) -> Response<Body> {
    with_type(status, "application/json", body)
}

/// RFC 9457, with the facts of the error beside the usual members.
pub fn problem(status: StatusCode, title: &str, facts: Value) -> Response<Body> {
    let mut body = json!({ "type": "about:blank", "title": title, "status": status.as_u16() });
    if let (Some(body), Value::Object(facts)) = (body.as_object_mut(), facts) {
        if let Some(message) = facts.get("message") {
            body.insert("detail".into(), message.clone());
        }
        body.extend(facts);
    }
    with_type(status, "application/problem+json", body.to_string())
}

pub fn with_type(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The answer to a request without a valid token. RFC 6750: the reason is told only when a token was sent.
pub fn ask_for_token(response: &mut Response<Body>, bad_token: bool) {
    let challenge = if bad_token { "Bearer error=\"invalid_token\", error_description=\"unknown, expired or revoked\"" } else { "Bearer" };
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
}

/// Whole seconds, rounded up, as the header wants them.
pub fn retry_after(response: &mut Response<Body>, ms: Option<u64>) {
    if let Some(ms) = ms
        && let Ok(seconds) = HeaderValue::from_str(&ms.div_ceil(1_000).to_string())
    {
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_shared_with_named_origins_and_with_no_other() {
        let doors = Doors { hosts: Vec::new(), origins: vec!["https://app.example".into()] };
        let shared = |origin: &'static str| doors.shared_with(&HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]));
        assert_eq!(shared("https://App.example"), Some(HeaderValue::from_static("https://App.example")));
        for other in ["http://localhost:3000", "https://app.example.evil", "null"] {
            assert_eq!(shared(other), None, "{other}");
        }
        let answer = preflight(HeaderValue::from_static("https://app.example"));
        assert_eq!((answer.status(), &answer.headers()[header::VARY]), (StatusCode::NO_CONTENT, &HeaderValue::from_static("origin")));
        assert!(!answer.headers().contains_key(header::ACCESS_CONTROL_ALLOW_CREDENTIALS), "tokens are no credentials of a browser");
    }
}
