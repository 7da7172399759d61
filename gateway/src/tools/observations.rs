//! Session observations: what happened in a session, told by its clients, chained and signed.

use ed25519_dalek::{Signature, VerifyingKey};
use quorate_domain::UnixMs;
use quorate_domain::flag;
use quorate_domain::limit::OBSERVATIONS_PER_CALL_MAX;
use quorate_domain::observation::{self, ObservationView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

fn fifty() -> u64 {
    50
}

/// How an observation is proven.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Receipt {
    /// `ed25519`.
    alg: String,
    /// Id of the key that signed; empty when the stored record is damaged and so is not signed.
    signed_by: String,
    /// `blake3:` and the hash of the record without this receipt, in hex.
    body_hash: String,
    /// Over the 32 bytes of the hash, in hex.
    signature: String,
}

/// What happened, in the order in which it is hashed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Observation {
    observation_id: String,
    session_id: String,
    /// When the log took it.
    ts: String,
    /// When it happened, as its sender says.
    #[serde(skip_serializing_if = "Option::is_none")]
    client_ts: Option<String>,
    provider: String,
    /// The passport that told it.
    principal: String,
    kind: String,
    payload: Nullable<Value>,
    /// Place in the session's chain, from 0 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    /// Hash of the observation before, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_hash: Option<String>,
    receipt: Receipt,
}

impl TryFrom<ObservationView> for Observation {
    type Error = CallError;

    fn try_from(seen: ObservationView) -> Result<Self, CallError> {
        let damaged = |error| CallError::Fault { detail: format!("observation `{}` can't be read: {error}", seen.observation_id) };
        let body: observation::Body = serde_json::from_str(&seen.body).map_err(damaged)?;
        let (signed_by, signature) = seen.signature.unwrap_or_default();
        Ok(Self {
            observation_id: body.observation_id,
            session_id: body.session_id,
            ts: body.ts,
            client_ts: body.client_ts,
            provider: body.provider,
            principal: body.principal,
            kind: body.kind,
            payload: Nullable(Some(body.payload)),
            seq: body.seq,
            prev_hash: body.prev_hash,
            receipt: Receipt { alg: "ed25519".into(), signed_by, body_hash: format!("blake3:{}", seen.body_hash), signature },
        })
    }
}

// ------------------------------------------------------------------ list_observations

/// Show what was observed in a session, oldest first: tool calls, prompts and whatever else its clients told.
///
/// Observations are told over HTTP, `POST /v1/sessions/{session_id}/observations`, by hooks and clients; the whole team sees
/// them. Each carries a receipt that verifies under the cluster's public key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListObservations {
    /// The session that they were told of.
    session_id: String,
    /// RFC 3339, such as `2026-11-30T12:00:00Z`: leaves out what the log took before.
    since: Option<String>,
    /// Only those told of this client: `claude-code`, `openai`, `anthropic`, `codex-cli`, `openclaw` or any other word.
    provider: Option<String>,
    /// Observations of this page, at most 500.
    #[serde(default = "fifty")]
    #[schemars(range(max = 500))]
    limit: u64,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Observations {
    session_id: String,
    /// How many this reply has.
    count: u64,
    observations: Vec<Observation>,
    /// Why they end although there may be more: `limit` or `reply_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for ListObservations {
    const NAME: &'static str = "list_observations";
    const TITLE: &'static str = "List observations";
    const SCOPE: &'static str = "crux-mcp.list_observations";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::OBSERVATIONS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::OBSERVE);
    type Output = Observations;

    fn example() -> Value {
        json!({ "session_id": "build-42" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Observations>, CallError> {
        let Self { session_id, since, provider, limit, cursor } = self;
        let since = since.map(|text| instant("since", &text)).transpose()?;
        let query = observation::ListObservations { session_id: session_id.clone(), since, provider, limit, cursor };
        let (page, served) = cluster.read(ctx, query).await?;
        let observations = page.observations.into_iter().map(Observation::try_from).collect::<Result<Vec<_>, _>>()?;
        let count = observations.len() as u64;
        let reply = Observations { session_id, count, observations, truncated: page.truncated, next_cursor: page.next_cursor };
        Ok(Reply::at(served.revision, reply))
    }
}

/// An RFC 3339 instant among the arguments.
pub(super) fn instant(field: &str, text: &str) -> Result<UnixMs, CallError> {
    UnixMs::from_rfc3339(text).ok_or_else(|| {
        CallError::arguments(format!("`{field}` is no RFC 3339 instant"), "Write it as `2026-11-30T12:00:00Z`, with an offset.")
    })
}

// ------------------------------------------------------------------ get_observation

/// Show one observation of a session.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetObservation {
    /// The session that it was told of.
    session_id: String,
    /// Its id, as `list_observations` shows it.
    observation_id: String,
}

impl Tool for GetObservation {
    const NAME: &'static str = "get_observation";
    const TITLE: &'static str = "Get an observation";
    const SCOPE: &'static str = "crux-mcp.get_observation";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::OBSERVATIONS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::OBSERVE);
    type Output = Observation;

    fn example() -> Value {
        json!({ "session_id": "build-42", "observation_id": "obs_01" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Observation>, CallError> {
        let Self { session_id, observation_id } = self;
        let (seen, served) = cluster.read(ctx, observation::GetObservation { session_id, observation_id }).await?;
        Ok(Reply::at(served.revision, seen.try_into()?))
    }
}

// ------------------------------------------------------------------ verify_observation

/// Check one observation: its hash, made anew from the record, its place in the chain, and its Ed25519 signature.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyObservation {
    /// The session that it was told of.
    session_id: String,
    /// Its id, as `list_observations` shows it.
    observation_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ObservationVerified {
    observation_id: String,
    /// Whether everything holds.
    ok: bool,
    hash_match: bool,
    signature_valid: bool,
    /// The hash made anew from the record, as `blake3:` and hex.
    recomputed_hash: String,
    /// The hash that its receipt names.
    receipt_hash: String,
    /// What does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Tool for VerifyObservation {
    const NAME: &'static str = "verify_observation";
    const TITLE: &'static str = "Verify an observation";
    const SCOPE: &'static str = "crux-mcp.verify_observation";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::OBSERVATIONS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::OBSERVE);
    type Output = ObservationVerified;

    fn example() -> Value {
        json!({ "session_id": "build-42", "observation_id": "obs_01" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ObservationVerified>, CallError> {
        let Self { session_id, observation_id } = self;
        let (seen, served) = cluster.read(ctx, observation::GetObservation { session_id, observation_id }).await?;
        let key_id = seen.signature.as_ref().map(|(key_id, _)| key_id.as_str());
        let keys = ctx.services.receipt_keys.with(key_id, cluster, ctx.principal()?, Some(served.revision), ctx.deadline).await?;
        Ok(Reply::at(served.revision, verify(seen, &keys)))
    }
}

fn verify(seen: ObservationView, keys: &[(String, VerifyingKey)]) -> ObservationVerified {
    // The record is read and written anew, so that the hash is of what it says and not only of what was stored.
    let rewritten = serde_json::from_str(&seen.body).map(|body: observation::Body| body.bytes());
    let recomputed = hex::encode(observation::body_hash(&rewritten.unwrap_or_default()));
    let hash_match = recomputed == seen.body_hash;
    let signature = check_signature(&seen, keys);
    let mut reasons = seen.faults;
    if !hash_match && reasons.is_empty() {
        reasons.push("the record does not have its hash".into());
    }
    reasons.extend(signature.as_ref().err().map(ToString::to_string));
    ObservationVerified {
        observation_id: seen.observation_id,
        ok: reasons.is_empty(),
        hash_match,
        signature_valid: signature.is_ok(),
        recomputed_hash: format!("blake3:{recomputed}"),
        receipt_hash: format!("blake3:{}", seen.body_hash),
        reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
    }
}

fn check_signature(seen: &ObservationView, keys: &[(String, VerifyingKey)]) -> Result<(), &'static str> {
    let Some((key_id, signature)) = &seen.signature else { return Err("the node that served it did not sign it") };
    let Some((_, key)) = keys.iter().find(|(id, _)| id == key_id) else { return Err("it is signed by no key that this gateway knows") };
    let signature = hex::decode(signature).ok().and_then(|bytes| Signature::from_slice(&bytes).ok());
    let valid =
        signature.zip(hex::decode(&seen.body_hash).ok()).is_some_and(|(signature, hash)| key.verify_strict(&hash, &signature).is_ok());
    if valid { Ok(()) } else { Err("the signature does not match the hash") }
}

// ------------------------------------------------------------------ telling

/// What `POST /v1/sessions/{id}/observations` takes; its batch takes `{"observations": [...]}` of them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// The client it was seen in, such as `codex-cli`.
    provider: String,
    /// What happened, such as `tool_use`.
    kind: String,
    /// Any JSON, at most 16 KiB; kept as sent, in the order of its keys.
    #[serde(default)]
    payload: Value,
    /// RFC 3339: when it happened.
    client_ts: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    #[schemars(length(min = 1, max = OBSERVATIONS_PER_CALL_MAX))]
    pub observations: Vec<Told>,
}

/// What a token has to hold to tell observations.
pub const TELLING: &str = "crux-mcp.observe";

/// Appends to a session's chain, for a caller that may.
pub async fn tell(ctx: &CallContext, cluster: &Cluster, session_id: String, told: Vec<Told>) -> Result<Reply<Value>, CallError> {
    let observations = told
        .into_iter()
        .map(|Told { provider, kind, payload, client_ts }| observation::NewObservation { provider, kind, payload, client_ts })
        .collect();
    let (done, revision) = cluster.propose(ctx, observation::AppendObservations { session_id, observations }).await?;
    let facts = json!({ "session_id": done.session_id, "observation_ids": done.observation_ids, "first_seq": done.first_seq });
    Ok(Reply::at(revision, facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> (ObservationView, Vec<(String, VerifyingKey)>) {
        use ed25519_dalek::{Signer, SigningKey};
        let body = observation::Body {
            observation_id: "o".into(),
            session_id: "s".into(),
            ts: "2026-05-13T10:00:00Z".into(),
            client_ts: None,
            provider: "openai".into(),
            principal: "mara".into(),
            kind: "x".into(),
            payload: json!({ "z": 1, "a": 2 }),
            seq: Some(0),
            prev_hash: None,
        };
        let hash = observation::body_hash(&body.bytes());
        let key = SigningKey::from_bytes(&[7; 32]);
        let view = ObservationView {
            observation_id: "o".into(),
            session_id: "s".into(),
            seq: 0,
            body: String::from_utf8(body.bytes()).unwrap(),
            body_hash: hex::encode(hash),
            faults: Vec::new(),
            signature: Some(("k".into(), hex::encode(key.sign(&hash).to_bytes()))),
        };
        (view, vec![("k".into(), key.verifying_key())])
    }

    #[test]
    fn the_record_is_canonicalised_again_its_hash_recomputed_and_its_signature_checked() {
        let (good, keys) = seen();
        let told = verify(good.clone(), &keys);
        assert!(told.ok && told.hash_match && told.signature_valid && told.recomputed_hash == told.receipt_hash, "{told:?}");
        let changed = ObservationView { body: good.body.replace("mara", "jon"), ..good.clone() };
        let told = verify(changed, &keys);
        assert!(!told.ok && !told.hash_match && told.signature_valid, "{told:?}");
        let reordered = ObservationView { body: good.body.replace(r#""z":1,"a":2"#, r#""a":2,"z":1"#), ..good.clone() };
        assert!(!verify(reordered, &keys).hash_match);
        let forged = ObservationView { signature: Some(("k".into(), "00".repeat(64))), ..good.clone() };
        let told = verify(forged, &keys);
        assert_eq!((told.ok, told.reason.as_deref()), (false, Some("the signature does not match the hash")));
        assert_eq!(verify(good, &[]).reason.as_deref(), Some("it is signed by no key that this gateway knows"));
    }
}
