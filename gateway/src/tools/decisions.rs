//! Decisions: what was decided and why.

use quorate_domain::decision;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::facts::{confidence, full_confidence};
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

fn default_session() -> String {
    "_default".into()
}

// ------------------------------------------------------------------ record_decision

/// Keep a decision and its reasons for the team. It is only ever added: nobody can edit, retire or delete it.
///
/// Find decisions with `query_facts` and the `entity_prefix` `__decisions__::`; `receipt_verify` checks one by its
/// `decision_id`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordDecision {
    /// What was decided, in at most 4 KiB.
    #[schemars(length(max = 4_096))]
    action: String,
    /// Why, in at most 4 KiB.
    #[schemars(length(max = 4_096))]
    rationale: String,
    /// What else was weighed; at most 100.
    alternatives: Option<Vec<String>>,
    /// How sure you are, from 0 to 1.
    #[serde(default = "full_confidence")]
    confidence: f64,
    /// The work that it belongs to; the decision is filed under `__decisions__::<session_id>`, where the whole team sees it.
    #[serde(default = "default_session")]
    #[schemars(length(max = 497))]
    session_id: String,
    /// What it rests on: ids of facts, receipts, work, links; at most 100.
    context_refs: Option<Vec<String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct DecisionRecorded {
    decision_id: String,
    /// BLAKE3 of the stored text, in hex.
    decision_hash: String,
    /// Where it is filed; its key there is the `decision_id`.
    entity: String,
    action: String,
    /// The fact that holds it.
    fact_id: String,
}

impl Tool for RecordDecision {
    const NAME: &'static str = "record_decision";
    const TITLE: &'static str = "Record a decision";
    const SCOPE: &'static str = "crux-mcp.record_decision";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::DECISIONS;
    const IDEMPOTENT: bool = false;
    type Output = DecisionRecorded;

    fn example() -> Value {
        json!({ "action": "use one parser", "rationale": "two of them drift" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<DecisionRecorded>, CallError> {
        let command = decision::RecordDecision {
            action: self.action,
            rationale: self.rationale,
            alternatives: self.alternatives.unwrap_or_default(),
            confidence: confidence("confidence", self.confidence)?,
            session_id: self.session_id,
            context_refs: self.context_refs.unwrap_or_default(),
        };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let decision::DecisionRecorded { decision_id, decision_hash, entity, action, fact_id } = done;
        Ok(Reply::at(revision, DecisionRecorded { decision_id, decision_hash, entity, action, fact_id }))
    }
}
