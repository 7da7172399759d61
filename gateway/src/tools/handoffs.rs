//! Hand-offs: a session given to another agent as a signed package.
//!
//! The signature is Ed25519 by the sender's passport key over the payload's bytes, so that whoever knows that public key can
//! check it, and not the service alone.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer};
use quorate_domain::handoff;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use super::punchcards::Handed;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

const ALGORITHM: &str = "ed25519";

/// What travels, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Package {
    payload_b64: String,
    /// BLAKE3 of the payload, in hex.
    content_hash: String,
    signature_b64: String,
    signature_alg: String,
    /// The sender's public key, for who checks it elsewhere; here the one that belongs to the sender counts.
    public_key_hex: String,
}

/// The intent behind a hand-off.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    requester: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    desired_outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sources: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    acceptance_criteria: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boundaries: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocker_rule: Option<String>,
}

impl From<TaskRecord> for handoff::TaskRecord {
    fn from(task: TaskRecord) -> Self {
        let TaskRecord { requester, desired_outcome, sources, acceptance_criteria, boundaries, blocker_rule } = task;
        Self { requester, desired_outcome, sources, acceptance_criteria, boundaries, blocker_rule }
    }
}

impl From<handoff::TaskRecord> for TaskRecord {
    fn from(task: handoff::TaskRecord) -> Self {
        let handoff::TaskRecord { requester, desired_outcome, sources, acceptance_criteria, boundaries, blocker_rule } = task;
        Self { requester, desired_outcome, sources, acceptance_criteria, boundaries, blocker_rule }
    }
}

// ------------------------------------------------------------------ create_handoff

/// Pack one of your sessions, signed, for another agent to go on from with `accept_handoff`.
///
/// It can be accepted once, within 7 days. Private facts never enter a package; of the others, so many as it holds (22 KiB).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateHandoff {
    /// A session that you saved.
    session_id: String,
    /// With the facts whose ids stand in the session's state, those stored under the session's name, and its decisions.
    #[serde(default)]
    include_facts: bool,
    /// The passport that alone may accept it. Absent: anybody of your tenant.
    target_agent: Option<String>,
    /// For the receiver, in at most 4 KiB.
    message: Option<String>,
    /// What the work is for, and where it ends; at most 100 entries in each list.
    task_record: Option<TaskRecord>,
    /// Resources that you hold and hand over with it: whoever accepts gets their cards, under new tokens. At most 100.
    #[serde(default)]
    punchcards: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct HandoffCreated {
    /// Pass it on unchanged.
    package_json: String,
    /// BLAKE3 of the payload, in hex.
    content_hash: String,
    /// Ed25519 by your passport's key over the payload, in Base64.
    signature: String,
    /// Facts in the package.
    relevant_fact_count: u64,
    /// True when more facts belong to the session than a package holds.
    more_facts: bool,
    handoff_id: String,
    expires_at: String,
}

impl Tool for CreateHandoff {
    const NAME: &'static str = "create_handoff";
    const BEYOND_BUDGET: bool = true;
    const TITLE: &'static str = "Hand a session off";
    const SCOPE: &'static str = "crux-mcp.create_handoff";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = false;
    type Output = HandoffCreated;

    fn example() -> Value {
        json!({ "session_id": "build-42" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<HandoffCreated>, CallError> {
        let caller = ctx.principal()?;
        let command = handoff::CreateHandoff {
            session_id: self.session_id,
            include_facts: self.include_facts,
            target: self.target_agent,
            message: self.message,
            task_record: self.task_record.map(Into::into),
            punchcards: self.punchcards,
        };
        let (made, revision) = cluster.propose(ctx, command).await?;
        let key = ctx.services.passport_keys.signing(&caller.tenant, &caller.passport);
        let signature = STANDARD.encode(key.sign(made.payload.as_bytes()).to_bytes());
        let package = Package {
            payload_b64: STANDARD.encode(&made.payload),
            content_hash: made.content_hash.clone(),
            signature_b64: signature.clone(),
            signature_alg: ALGORITHM.into(),
            public_key_hex: hex::encode(key.verifying_key().to_bytes()),
        };
        let facts = HandoffCreated {
            package_json: json!(package).to_string(),
            content_hash: made.content_hash,
            signature,
            relevant_fact_count: made.facts,
            more_facts: made.more_facts,
            handoff_id: made.handoff_id,
            expires_at: made.expires_at.to_rfc3339(),
        };
        Ok(Reply::at(revision, facts))
    }
}

// ------------------------------------------------------------------ accept_handoff

/// Take over a session that another agent packed with `create_handoff`: it becomes your own.
///
/// When hash or signature do not hold, `verified` is false and nothing is loaded. A session of the same name that you have
/// already is not overwritten.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptHandoff {
    /// The text of `package_json`, unchanged.
    package: String,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct HandoffAccepted {
    session_loaded: bool,
    /// Facts of the package that stand as they were packed; you read them with `query_facts`.
    facts_loaded: u64,
    /// Whether hash and signature hold.
    verified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_record: Option<TaskRecord>,
    /// Facts of the package that were replaced or deleted since.
    facts_changed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Work items that the session names.
    work_ids: Vec<String>,
    /// Cards that came over with it; send their `fencing_token` with what you do under them.
    #[serde(skip_serializing_if = "Option::is_none")]
    punchcards: Option<Vec<Handed>>,
    /// Resources whose cards the sender had lost by now: take them with `punch_in`.
    #[serde(skip_serializing_if = "Option::is_none")]
    punchcards_lost: Option<Vec<String>>,
}

impl Tool for AcceptHandoff {
    const NAME: &'static str = "accept_handoff";
    const TITLE: &'static str = "Accept a hand-off";
    const SCOPE: &'static str = "crux-mcp.accept_handoff";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = false;
    type Output = HandoffAccepted;

    fn example() -> Value {
        json!({ "package": "{}" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<HandoffAccepted>, CallError> {
        let package: Package = serde_json::from_str(&self.package).map_err(|error| {
            CallError::arguments(format!("`package` is no hand-off package: {error}"), "Pass the text of `package_json` unchanged.")
        })?;
        let Some(payload) = verified(&package, ctx)? else { return Ok(Reply::local(HandoffAccepted::default())) };
        let (done, revision) = cluster.propose(ctx, handoff::AcceptHandoff { payload }).await?;
        let facts = HandoffAccepted {
            session_loaded: true,
            facts_loaded: done.facts_loaded,
            verified: true,
            task_record: done.task_record.map(Into::into),
            facts_changed: done.facts_changed,
            session_id: Some(done.session_id),
            source_agent: Some(done.source),
            message: done.message,
            work_ids: done.work_ids,
            punchcards: Some(done.punchcards.into_iter().map(Into::into).collect()).filter(|cards: &Vec<Handed>| !cards.is_empty()),
            punchcards_lost: Some(done.punchcards_lost).filter(|lost| !lost.is_empty()),
        };
        Ok(Reply::at(revision, facts))
    }
}

/// The payload, if its hash and the signature of the agent that it names hold.
fn verified(package: &Package, ctx: &CallContext) -> Result<Option<String>, CallError> {
    let caller = ctx.principal()?;
    let payload = STANDARD.decode(&package.payload_b64).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let signature = STANDARD.decode(&package.signature_b64).ok().and_then(|bytes| Signature::from_slice(&bytes).ok());
    let (Some(payload), Some(signature)) = (payload, signature) else { return Ok(None) };
    let hash = blake3::hash(payload.as_bytes()).to_hex();
    let content: Option<Value> = serde_json::from_str(&payload).ok();
    let source = content.as_ref().and_then(|content| content["source_agent"].as_str());
    let (true, Some(source)) = (package.signature_alg == ALGORITHM && *hash == *package.content_hash, source) else { return Ok(None) };
    // The key is the one of that name in the caller's own tenant, whatever key the package brings along.
    let key = ctx.services.passport_keys.public(&caller.tenant, source);
    Ok(key.verify_strict(payload.as_bytes(), &signature).is_ok().then_some(payload))
}
