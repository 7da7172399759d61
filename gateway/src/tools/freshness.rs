//! Freshness: how old facts are beside their horizons, and how their clocks are set anew.

use quorate_domain::{fact, flag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::envelope::{Envelope, MemoryUsed};
use super::facts::{HorizonClass, age_hours};
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

fn twenty() -> u64 {
    20
}

fn fifty() -> u64 {
    50
}

// ------------------------------------------------------------------ memory_freshness

/// Show how fresh each fact is beside its horizon. Changes nothing.
///
/// Age counts from when a fact was stored or last reverified. Facts are in the order of `query_facts`, so stale ones come
/// after fresh ones of the same confidence; `memory_sweep_candidates` lists the stale ones alone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryFreshness {
    /// One entity, matched exactly.
    entity: Option<String>,
    /// Entities that begin so, such as `svc:`.
    entity_prefix: Option<String>,
    /// One key, matched exactly.
    key: Option<String>,
    /// Facts wanted in all.
    #[serde(default = "twenty")]
    top_k: u64,
    /// Tokens (4 bytes of JSON each) that the reply may have. The default gives at least one fact.
    #[schemars(extend("default" = 500))]
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FreshnessRow {
    fact_id: String,
    entity: String,
    key: String,
    horizon_class: HorizonClass,
    /// `fresh`, `stale`, or `unknown` when its instant lies ahead of the clock.
    freshness: String,
    age_hours: f64,
    stored_at: String,
    /// When it was last confirmed with `memory_reverify`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reverified_at: Option<String>,
    /// The passport that stored it.
    actor: String,
}

impl From<fact::FreshnessRow> for FreshnessRow {
    fn from(row: fact::FreshnessRow) -> Self {
        Self {
            fact_id: row.fact_id,
            entity: row.entity,
            key: row.key,
            horizon_class: row.horizon_class.into(),
            freshness: row.freshness,
            age_hours: age_hours(row.age_ms),
            stored_at: row.stored_at.to_rfc3339(),
            reverified_at: row.reverified_at.map(|at| at.to_rfc3339()),
            actor: row.actor,
        }
    }
}

/// When facts of each class go stale.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DecayPolicy {
    volatile_stale_hours: u64,
    medium_stale_days: u64,
    stable_stale_days: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Freshness {
    rows: Vec<FreshnessRow>,
    policy: DecayPolicy,
    /// The instant to which the rows belong: that of the first page.
    now: String,
    /// Why the rows end although there are more: `top_k`, `reply_bytes`, `token_budget` or `scan_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    envelope: Envelope<MemoryUsed>,
}

impl Tool for MemoryFreshness {
    const NAME: &'static str = "memory_freshness";
    const TITLE: &'static str = "Freshness of facts";
    const SCOPE: &'static str = "crux-mcp.memory_freshness";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::FRESHNESS);
    type Output = Freshness;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Freshness>, CallError> {
        let Self { entity, entity_prefix, key, top_k, token_budget, cursor } = self;
        let (found, served) = cluster.read(ctx, fact::ShowFreshness { entity, entity_prefix, key, top_k, token_budget, cursor }).await?;
        let shown = found.consulted.into_iter().map(Into::into).collect();
        let freshness = Freshness {
            envelope: Envelope::of_read(ctx, Self::SCOPE, "tool_dispatch", shown)?,
            rows: found.rows.into_iter().map(Into::into).collect(),
            policy: DecayPolicy {
                volatile_stale_hours: fact::VOLATILE_STALE_HOURS,
                medium_stale_days: fact::MEDIUM_STALE_DAYS,
                stable_stale_days: fact::STABLE_STALE_DAYS,
            },
            now: found.now.to_rfc3339(),
            truncated: found.truncated,
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, freshness))
    }
}

// ------------------------------------------------------------------ memory_sweep_candidates

/// List facts that could be tidied away: stale, superseded or both. Changes nothing.
///
/// Confirm a stale fact with `memory_reverify`, store it anew, or take it back with `delete_fact`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySweepCandidates {
    /// One entity, matched exactly.
    entity: Option<String>,
    /// Entities that begin so, such as `svc:`.
    entity_prefix: Option<String>,
    /// One key, matched exactly.
    key: Option<String>,
    /// Facts wanted in all.
    #[serde(default = "fifty")]
    top_k: u64,
    /// Tokens (4 bytes of JSON each) that the reply may have. The default gives at least one fact.
    #[schemars(extend("default" = 500))]
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SweepCandidate {
    #[serde(flatten)]
    row: FreshnessRow,
    /// `stale`, `superseded` or `stale+superseded`.
    reason: String,
    /// The fact that replaced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded_by: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SweepCandidates {
    rows: Vec<SweepCandidate>,
    /// Always true: this tool only looks.
    dry_run: bool,
    /// The instant to which the rows belong: that of the first page.
    now: String,
    /// Why the rows end although there are more: `top_k`, `reply_bytes`, `token_budget` or `scan_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for MemorySweepCandidates {
    const NAME: &'static str = "memory_sweep_candidates";
    const TITLE: &'static str = "Facts to tidy away";
    const SCOPE: &'static str = "crux-mcp.memory_sweep_candidates";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::FRESHNESS);
    type Output = SweepCandidates;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SweepCandidates>, CallError> {
        let Self { entity, entity_prefix, key, top_k, token_budget, cursor } = self;
        let query = fact::SweepCandidates { top_k, token_budget, cursor, entity, entity_prefix, key };
        let (found, served) = cluster.read(ctx, query).await?;
        let rows = found.rows.into_iter().map(|found| {
            let fact::SweepCandidate { row, reason, superseded_by } = found;
            SweepCandidate { row: row.into(), reason, superseded_by }
        });
        let candidates = SweepCandidates {
            rows: rows.collect(),
            dry_run: true,
            now: found.now.to_rfc3339(),
            truncated: found.truncated,
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, candidates))
    }
}

// ------------------------------------------------------------------ memory_set_horizon

/// Set how fast an active fact goes stale: after a day (`volatile`), 35 days (`medium`), a year (`stable`), or never (`none`).
///
/// Its value and version stay. Private and reserved facts are refused.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySetHorizon {
    /// Id of the active version; begins with `f_`.
    fact_id: String,
    /// How fast it goes stale.
    horizon_class: HorizonClass,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct HorizonSet {
    fact_id: String,
    horizon_class: HorizonClass,
    /// Always true: a fact whose horizon can't be set is refused.
    ok: bool,
}

impl Tool for MemorySetHorizon {
    const NAME: &'static str = "memory_set_horizon";
    const TITLE: &'static str = "Set a fact's horizon";
    const SCOPE: &'static str = "crux-mcp.memory_set_horizon";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::FRESHNESS);
    type Output = HorizonSet;

    fn example() -> Value {
        json!({ "fact_id": "f_01", "horizon_class": "stable" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<HorizonSet>, CallError> {
        let command = fact::SetHorizon { fact_id: self.fact_id, horizon_class: self.horizon_class.into() };
        let (done, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, HorizonSet { fact_id: done.fact_id, horizon_class: done.horizon_class.into(), ok: true }))
    }
}

// ------------------------------------------------------------------ memory_reverify

/// Confirm that an active fact still holds: its age counts anew, its value stays, and a receipt proves who confirmed it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryReverify {
    /// Id of the active version.
    fact_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Reverified {
    fact_id: String,
    /// Id under which `receipt_verify` checks it; it also stands under `__reverify_receipts__::<fact_id>`.
    receipt_id: String,
    /// `Reverify`.
    receipt_class: String,
    reverified_at: String,
}

impl Tool for MemoryReverify {
    const NAME: &'static str = "memory_reverify";
    const TITLE: &'static str = "Reverify a fact";
    const SCOPE: &'static str = "crux-mcp.memory_reverify";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = false;
    const SWITCH: Option<flag::Definition> = Some(flag::FRESHNESS);
    type Output = Reverified;

    fn example() -> Value {
        json!({ "fact_id": "f_01" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Reverified>, CallError> {
        let (done, revision) = cluster.propose(ctx, fact::ReverifyFact { fact_id: self.fact_id }).await?;
        let fact::FactReverified { fact_id, receipt_id, reverified_at } = done;
        let receipt_class = "Reverify".into();
        Ok(Reply::at(revision, Reverified { fact_id, receipt_id, receipt_class, reverified_at: reverified_at.to_rfc3339() }))
    }
}
