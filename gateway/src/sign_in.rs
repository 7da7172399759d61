//! Signing in: a passport's own key signs a challenge, and its holder gets a token that ends by itself.
//!
//! A challenge says whom it is for and until when, under a seal by the gateways' secret: any gateway knows it for its own, and none
//! remembers it. It opens one token at the most, since its nonce is the id of the request that opens it.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quorate_domain::identity::{self, GetSignInKey, OpenToken, SignInKey, check_name, is_signed, token_hash};
use quorate_domain::{Principal, Refusal, RequestId, Tier, UnixMs};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::arguments::read_as;
use crate::call::CallError;
use crate::cluster::{Consistency, now_unix_ms};
use crate::edge;
use crate::http::{Received, arguments, receive, refusal};
use crate::limit::CHALLENGE_MS;
use crate::server::App;

/// Makes and opens challenges.
pub struct Challenges {
    key: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Challenge {
    #[serde(rename = "t")]
    tenant: String,
    #[serde(rename = "p")]
    passport: String,
    #[serde(rename = "e")]
    expires_at_unix_ms: u64,
    #[serde(rename = "n")]
    nonce: String,
}

const SEAL_BYTES: usize = 32;

impl Challenges {
    pub fn new(session_key: &[u8; 32]) -> Self {
        Self { key: blake3::derive_key("quorate 2026 sign-in challenge", session_key) }
    }

    fn seal(&self, challenge: &Challenge) -> String {
        let plain = serde_json::to_vec(challenge).expect("plain data with text keys is always JSON");
        let seal = blake3::keyed_hash(&self.key, &plain);
        URL_SAFE_NO_PAD.encode([plain.as_slice(), seal.as_bytes()].concat())
    }

    fn open(&self, text: &str, now: UnixMs) -> Option<Challenge> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (plain, seal) = bytes.split_at_checked(bytes.len().checked_sub(SEAL_BYTES)?)?;
        let seal: [u8; SEAL_BYTES] = seal.try_into().ok()?;
        // The comparison of two of these takes the same time wherever they differ.
        if blake3::keyed_hash(&self.key, plain) != blake3::Hash::from_bytes(seal) {
            return None;
        }
        serde_json::from_slice(plain).ok().filter(|challenge: &Challenge| challenge.expires_at_unix_ms > now.0)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    #[serde(default = "default_tenant")]
    tenant: String,
    passport: String,
}

fn default_tenant() -> String {
    "default".into()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Answered {
    challenge: String,
    signature: String,
}

fn read<T: DeserializeOwned + JsonSchema + 'static>(headers: &HeaderMap, body: &Bytes) -> Result<T, CallError> {
    read_as(arguments(headers, body)?)
}

/// `POST /v1/auth/challenge`: a text for the holder of a passport to sign. The same for one that is not there.
pub async fn challenge(app: &Arc<App>, request: axum::extract::Request) -> Response<Body> {
    let Received { headers, body, .. } = match receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let asked: Asked = match read(&headers, &body) {
        Ok(asked) => asked,
        Err(error) => return refusal(&error),
    };
    if let Some(wrong) = check_name("passport", &asked.passport).or_else(|| check_name("tenant", &asked.tenant)) {
        return refusal(&CallError::Refused(wrong));
    }
    let expires_at = UnixMs(now_unix_ms().0 + CHALLENGE_MS);
    let nonce = hex::encode(rand::random::<[u8; 16]>());
    let Asked { tenant, passport } = asked;
    let made = app.services.challenges.seal(&Challenge { tenant, passport, expires_at_unix_ms: expires_at.0, nonce });
    let told = json!({
        "challenge": made,
        "sign": "Ed25519 over the bytes of `quorate passport challenge 1`, a NUL, and the challenge's text",
        "expires_at": expires_at.to_rfc3339(),
    });
    edge::json_response(StatusCode::OK, told.to_string())
}

/// `POST /v1/auth/token`: a signed challenge in, a bearer token out.
pub async fn token(app: &Arc<App>, request: axum::extract::Request) -> Response<Body> {
    let Received { headers, body, deadline, .. } = match receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let answered = read(&headers, &body);
    let opened = match answered {
        Ok(answered) => open(app, answered, deadline).await,
        Err(error) => Err(error),
    };
    match opened {
        Ok(told) => edge::json_response(StatusCode::OK, told.to_string()),
        Err(error) => refusal(&error),
    }
}

async fn open(app: &Arc<App>, answered: Answered, deadline: Instant) -> Result<Value, CallError> {
    let denied = || CallError::Refused(Refusal::Denied { problem: "the challenge is not signed by a key of that passport".into() });
    let Some(challenge) = app.services.challenges.open(&answered.challenge, now_unix_ms()) else {
        let fix = "Ask `POST /v1/auth/challenge` for another: one lives for a minute.";
        return Err(CallError::arguments("`challenge` was not made here, or is over", fix));
    };
    let Challenge { tenant, passport, nonce, .. } = challenge;
    let query = GetSignInKey { tenant: tenant.clone(), passport: passport.clone() };
    let (key, _): (Option<SignInKey>, _) = app.cluster.read_as(&identity::system(), query, Consistency::Linearizable, deadline).await?;
    // Looked at here too, so that who holds no key can write nothing.
    if !key.is_some_and(|key| is_signed(&key.public_key, &answered.challenge, &answered.signature)) {
        return Err(denied());
    }
    let token = format!("qt_{}", hex::encode(rand::random::<[u8; 32]>()));
    let caller = Principal { tenant: tenant.clone(), passport: passport.clone(), tier: Tier::Unverified, scopes: Default::default() };
    let command = OpenToken { challenge: answered.challenge, signature: answered.signature, hash: token_hash(&token) };
    let request = RequestId { id: format!("sign-in:{nonce}"), issued_at: now_unix_ms(), keyed: true };
    match app.cluster.propose_again(&caller, command, request, deadline).await {
        Ok((opened, _)) => {
            Ok(json!({ "token": token, "tenant": tenant, "passport": passport, "expires_at": opened.expires_at.to_rfc3339() }))
        }
        Err(CallError::Refused(Refusal::RequestConflict { .. })) => {
            let fix = "Ask `POST /v1/auth/challenge` for another: each opens one token.";
            Err(CallError::arguments("`challenge` has opened a token already", fix))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_known_by_its_seal_until_it_is_over() {
        let (own, other) = (Challenges::new(&[7; 32]), Challenges::new(&[8; 32]));
        let made = Challenge { tenant: "a".into(), passport: "b".into(), expires_at_unix_ms: 1_000, nonce: "n".into() };
        let text = own.seal(&made);
        assert_eq!(own.open(&text, UnixMs(999)), Some(made));
        assert_eq!((own.open(&text, UnixMs(1_000)), other.open(&text, UnixMs(1))), (None, None));
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(own.open(&String::from_utf8(changed).unwrap(), UnixMs(1)), None, "letter {at}");
        }
        assert_eq!(own.open("", UnixMs(1)), None);
    }
}
