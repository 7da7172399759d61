//! Acknowledged use: an agent tells which facts it consulted in a turn.

use quorate_domain::acknowledgement::{self, AcknowledgeUse, UseAcknowledged};
use quorate_domain::{Refusal, flag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::envelope::{Envelope, MemoryUsed};
use super::facts::confidence;
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

/// What the facts were consulted for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    #[default]
    Answer,
    Decision,
    ToolCall,
    Implicit,
}

impl From<Intent> for acknowledgement::UseIntent {
    fn from(intent: Intent) -> Self {
        match intent {
            Intent::Answer => Self::Answer,
            Intent::Decision => Self::Decision,
            Intent::ToolCall => Self::ToolCall,
            Intent::Implicit => Self::Implicit,
        }
    }
}

/// Tell which facts you consulted for a turn, so that others can see what it rests on. A signed receipt keeps it.
///
/// Telling the same of a turn again answers the same receipt; telling something else makes a new one, which names the one before.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryAcknowledgeUse {
    /// Your host's name for the turn.
    #[schemars(length(max = 512))]
    turn_id: String,
    /// Ids of the facts, at most 100.
    #[schemars(length(max = 100))]
    fact_ids: Option<Vec<String>>,
    #[serde(default)]
    intent: Intent,
    /// Ids of results that you consulted, at most 100; the receipt keeps them as they are.
    #[schemars(length(max = 100))]
    retrieved_chunk_ids: Option<Vec<String>>,
    /// How sure you are, from 0 to 1; 0.3 when absent for an implicit use.
    #[schemars(range(min = 0, max = 1))]
    confidence: Option<f64>,
    /// In a few words, at most 4 KiB; the receipt keeps it for good.
    #[schemars(length(max = 4_096))]
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct UseTold {
    turn_id: String,
    intent: Intent,
    /// False while `CORECRUXD_FEATURE_MEMORY_ACK` is off: then nothing was written.
    feature_enabled: bool,
    /// Id under which `receipt_verify` checks it.
    receipt_ref: Nullable<String>,
    /// What may be told of the facts, in your order.
    memories_used: Vec<MemoryUsed>,
    /// Facts that the receipt names. More than `memories_used` has when those do not all fit a reply.
    filtered_count: u64,
    /// Your private facts and facts of operations, which are not told of.
    redacted_count: u64,
    /// What does not exist for you, or is deleted.
    not_found_count: u64,
    /// Always 0: what you can't see looks like what never existed.
    not_visible_count: u64,
    /// `memories_used` stands beside it.
    envelope: Envelope<MemoryUsed>,
}

impl Tool for MemoryAcknowledgeUse {
    const NAME: &'static str = "memory_acknowledge_use";
    const TITLE: &'static str = "Acknowledge what you used";
    const SCOPE: &'static str = "crux-mcp.memory_acknowledge_use";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::MEMORY_ACK);
    type Output = UseTold;

    fn example() -> Value {
        json!({ "turn_id": "turn-1" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<UseTold>, CallError> {
        let Self { turn_id, fact_ids, intent, retrieved_chunk_ids, confidence: sure, note } = self;
        let command = AcknowledgeUse {
            turn_id: turn_id.clone(),
            fact_ids: fact_ids.unwrap_or_default(),
            intent: intent.into(),
            retrieved_chunk_ids: retrieved_chunk_ids.unwrap_or_default(),
            confidence: sure.map(|share| confidence("confidence", share)).transpose()?,
            note,
        };
        let (done, revision) = match cluster.propose(ctx, command).await {
            Ok((done, revision)) => (Some(done), Some(revision)),
            // Switched off is an answer here, as documented, so that hosts need no case of their own.
            Err(CallError::Refused(Refusal::FeatureOff { .. })) => (None, None),
            Err(error) => return Err(error),
        };
        let feature_enabled = done.is_some();
        let (receipt, used, used_total, redacted, not_found) = match done {
            Some(UseAcknowledged { receipt_id, used, used_total, redacted, not_found }) => {
                (Some(receipt_id), used, used_total, redacted, not_found)
            }
            None => (None, Vec::new(), 0, 0, 0),
        };
        let facts = UseTold {
            turn_id,
            intent,
            feature_enabled,
            memories_used: used.into_iter().map(Into::into).collect(),
            filtered_count: used_total,
            redacted_count: redacted,
            not_found_count: not_found,
            not_visible_count: 0,
            envelope: Envelope::of_receipt(ctx, Self::SCOPE, receipt.as_deref())?,
            receipt_ref: Nullable(receipt),
        };
        Ok(Reply { facts, revision, text: None })
    }
}
