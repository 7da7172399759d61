//! The audit envelope: what a call showed or did, in one form for every tool that has one.

use quorate_domain::fact::ConsultedFact;
use schemars::JsonSchema;
use serde::Serialize;

use super::facts::age_hours;
use crate::call::{CallContext, CallError};

/// What an audit wants to know of this reply.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Envelope<M> {
    /// Receipts that the call wrote.
    receipts_used: Vec<String>,
    /// What was shown; absent where the reply has it beside the envelope. Private facts and those of operations are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    memories_used: Option<Vec<M>>,
    autonomy_consumed: AutonomyConsumed,
    predicted_effects: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<Links>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AutonomyConsumed {
    /// The scope that the call needed.
    capability: String,
    /// Always 0: nothing is charged for.
    cost_credits: f64,
    /// `agent:` and the passport.
    scope: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Links {
    /// The receipt with its proof, at the gateway.
    verify: String,
}

/// A fact that was shown.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MemoryUsed {
    fact_id: String,
    /// The fact's entity.
    topic: String,
    key: String,
    age_days: f64,
    age_hours: f64,
    /// `fresh`, `stale` or `unknown`.
    freshness: String,
}

impl From<ConsultedFact> for MemoryUsed {
    fn from(fact: ConsultedFact) -> Self {
        let age_hours = age_hours(fact.age_ms);
        let age_days = (age_hours / 24.0 * 100.0).round() / 100.0;
        Self { fact_id: fact.fact_id, topic: fact.entity, key: fact.key, age_days, age_hours, freshness: fact.freshness }
    }
}

impl<M> Envelope<M> {
    /// Of a call that read, and what it showed.
    pub fn of_read(ctx: &CallContext, capability: &str, effect: &str, shown: Vec<M>) -> Result<Self, CallError> {
        Ok(Self {
            receipts_used: Vec::new(),
            memories_used: Some(shown),
            autonomy_consumed: AutonomyConsumed::of(ctx, capability)?,
            predicted_effects: vec![effect.into()],
            links: None,
        })
    }

    /// Of a call that wrote a receipt, or would have. What it is about stands beside it.
    pub fn of_receipt(ctx: &CallContext, capability: &str, receipt: Option<&str>) -> Result<Self, CallError> {
        Ok(Self {
            receipts_used: receipt.into_iter().map(Into::into).collect(),
            memories_used: None,
            autonomy_consumed: AutonomyConsumed::of(ctx, capability)?,
            predicted_effects: receipt.map(|_| "receipt_emit".into()).into_iter().collect(),
            links: receipt.map(|id| Links { verify: format!("/v1/receipts/{id}") }),
        })
    }
}

impl AutonomyConsumed {
    fn of(ctx: &CallContext, capability: &str) -> Result<Self, CallError> {
        Ok(Self { capability: capability.into(), cost_credits: 0.0, scope: format!("agent:{}", ctx.principal()?.passport) })
    }
}
