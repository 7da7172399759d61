//! `POST /v1/integrations/github/webhook`: a signed hint that a repository has changed.
//!
//! What it says is not taken over: the reader asks the API, so a delivery that comes twice, late or from long ago does no harm.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use ring::hmac;
use serde_json::{Value, json};

use super::settings::Secret;
use crate::edge;
use crate::http::refusal;
use crate::server::App;

pub async fn receive(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let secret = app.github.as_ref().and_then(|connector| connector.settings().webhook_secret.as_ref());
    let (Some(connector), Some(secret)) = (&app.github, secret) else {
        let message = "webhooks of GitHub are not set up here: `github_webhook_secret_file` names no secret";
        return edge::problem(StatusCode::NOT_FOUND, "Not Found", json!({ "code": "NOT_FOUND", "message": message }));
    };
    let (parts, body) = request.into_parts();
    let body = match edge::read_body(body, app.settings.patience.body).await {
        Ok(body) => body,
        Err(error) => {
            let facts = json!({ "code": "INVALID", "message": error.to_string() });
            return edge::problem(error.status(), "Not Taken", facts);
        }
    };
    if !is_signed(secret, &parts.headers, &body) {
        let message = "`X-Hub-Signature-256` is missing, or was not made with this secret over this body";
        return edge::problem(StatusCode::UNAUTHORIZED, "Unauthorized", json!({ "code": "UNAUTHENTICATED", "message": message }));
    }
    let told: Value = serde_json::from_slice(&body).unwrap_or_default();
    let repo = told["repository"]["full_name"].as_str().unwrap_or_default();
    // GitHub's names have no case.
    let Some(repo) = connector.settings().repositories.iter().find(|known| known.eq_ignore_ascii_case(repo)) else {
        return edge::json_response(StatusCode::ACCEPTED, json!({ "hinted": false }).to_string());
    };
    match connector.hint(repo).await {
        Ok(()) => edge::json_response(StatusCode::ACCEPTED, json!({ "hinted": true }).to_string()),
        Err(error) => refusal(&error),
    }
}

/// Whether a body was signed with the secret; compared in constant time.
fn is_signed(secret: &Secret, headers: &HeaderMap, body: &Bytes) -> bool {
    let told = headers.get("x-hub-signature-256").and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("sha256="));
    let Some(told) = told.and_then(|told| hex::decode(told).ok()) else { return false };
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret.0.as_bytes()), body, &told).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_of_this_secret_and_this_body_alone() {
        // The example of GitHub's own documentation.
        let secret = Secret("It's a Secret to Everybody".into());
        let signed = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let is_signed = |told: Option<&str>, body: &str| {
            let mut headers = HeaderMap::new();
            if let Some(told) = told {
                headers.insert("x-hub-signature-256", told.parse().unwrap());
            }
            is_signed(&secret, &headers, &Bytes::copy_from_slice(body.as_bytes()))
        };
        assert!(is_signed(Some(signed), "Hello, World!"));
        assert!(!is_signed(Some(signed), "Hello, World?"));
        for wrong in [None, Some(""), Some("sha256="), Some("sha256=00"), Some(&signed[7..]), Some("sha1=757107ea"), Some("sha256=zz")] {
            assert!(!is_signed(wrong, "Hello, World!"), "{wrong:?}");
        }
    }
}
