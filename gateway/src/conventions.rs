//! What every answer of the HTTP API has in common: errors are problem documents, reads have an `ETag` and a link to the next page.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::middleware::Next;
use serde::Deserialize;
use serde_json::json;

use crate::call::CallError;
use crate::edge;
use crate::http::refusal;

/// The addresses that these hold for.
const UNDER: &str = "/v1/";
/// The framework's own refusals are a line of text.
const LINE_BYTES_MAX: usize = 4_096;

pub async fn hold(request: Request, next: Next) -> Response<Body> {
    if !request.uri().path().starts_with(UNDER) {
        return next.run(request).await;
    }
    let is_get = request.method() == Method::GET;
    let (uri, asked) = (request.uri().clone(), request.headers().get_all(header::IF_NONE_MATCH).iter().cloned().collect::<Vec<_>>());
    let response = next.run(request).await;
    let kind = kind_of(response.headers());
    match response.status() {
        status if (status.is_client_error() || status.is_server_error()) && kind != "application/problem+json" => {
            as_problem(response).await
        }
        StatusCode::OK if is_get && kind == "application/json" => tagged(response, &uri, &asked).await,
        _ => response,
    }
}

fn kind_of(headers: &HeaderMap) -> String {
    headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_string()
}

/// What the framework refused before anything of ours saw it.
async fn as_problem(response: Response<Body>) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let status = parts.status;
    let line = to_bytes(body, LINE_BYTES_MAX).await.unwrap_or_default();
    let reason = status.canonical_reason().unwrap_or("Error");
    let (code, message) = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            (json!("METHOD_NOT_ALLOWED"), "this address does not take this method; `Allow` names those that it takes".into())
        }
        StatusCode::BAD_REQUEST => (json!(-32602), format!("{}. Nothing was written.", String::from_utf8_lossy(&line))),
        _ => (json!(reason.to_uppercase().replace(' ', "_")), String::from_utf8_lossy(&line).into_owned()),
    };
    let facts = json!({ "code": code, "message": message, "retryable": false, "wrote": "no" });
    let mut problem = edge::problem(status, reason, facts);
    for (name, value) in &parts.headers {
        if ![header::CONTENT_TYPE, header::CONTENT_LENGTH].contains(name) {
            problem.headers_mut().insert(name, value.clone());
        }
    }
    problem
}

#[derive(Deserialize)]
struct Page {
    next_cursor: Option<String>,
}

async fn tagged(response: Response<Body>, uri: &Uri, asked: &[HeaderValue]) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    // Made here, whole, from a reply that has a limit of its own.
    let body = match to_bytes(body, usize::MAX).await {
        Ok(body) => body,
        Err(error) => return refusal(&CallError::Fault { detail: error.to_string() }),
    };
    let tag = parts.headers.entry(header::ETAG).or_insert_with(|| {
        let hash = &blake3::hash(&body).to_hex()[..32];
        HeaderValue::try_from(format!("\"{hash}\"")).expect("hex is text")
    });
    let is_known = asked.iter().filter_map(|asked| asked.to_str().ok()).any(|asked| names(asked, tag));
    if let Ok(Page { next_cursor: Some(cursor) }) = serde_json::from_slice(&body)
        && let Ok(link) = HeaderValue::try_from(next_page(uri, &cursor))
    {
        parts.headers.insert(header::LINK, link);
    }
    if is_known {
        parts.status = StatusCode::NOT_MODIFIED;
        parts.headers.remove(header::CONTENT_TYPE);
        parts.headers.remove(header::CONTENT_LENGTH);
        return Response::from_parts(parts, Body::empty());
    }
    Response::from_parts(parts, Body::from(body))
}

/// RFC 9110, 13.1.2: compared without regard to weakness.
fn names(asked: &str, tag: &HeaderValue) -> bool {
    asked.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one).as_bytes() == tag.as_bytes())
}

fn next_page(uri: &Uri, cursor: &str) -> String {
    let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).filter(|(name, _)| name != "cursor");
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).append_pair("cursor", cursor).finish();
    format!("<{}?{query}>; rel=\"next\"", uri.path())
}

/// In front of what is written without regard to a version: a condition that would not be looked at is refused.
pub async fn no_if_match(request: Request, next: Next) -> Response<Body> {
    if request.headers().contains_key(header::IF_MATCH) {
        let fix = "Send it without; `GET /v1/openapi.json` shows what takes `If-Match`.";
        return refusal(&CallError::arguments("what is at this address has no version that `If-Match` could name", fix));
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_known_in_every_form_in_which_it_may_come_back() {
        let tag = HeaderValue::from_static("\"7\"");
        for asked in ["\"7\"", "W/\"7\"", "\"6\", \"7\"", "*"] {
            assert!(names(asked, &tag), "{asked}");
        }
        for asked in ["\"70\"", "7", ""] {
            assert!(!names(asked, &tag), "{asked}");
        }
    }
}
