//! Facts: versioned statements about an entity.

use std::collections::BTreeSet;

use quorate_domain::UnixMs;
use quorate_domain::fact;
use quorate_domain::limit::{LIST_DEFAULT, REPLY_BYTES_MAX};
use quorate_domain::refusal::shown;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::crc::{Answered, Contract, Crc, Kind, is_asked, schema};
use super::envelope::{Envelope, MemoryUsed};
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;
use crate::traces::Arm;

/// How fast a fact goes stale.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HorizonClass {
    Volatile,
    Medium,
    Stable,
    None,
}

impl From<HorizonClass> for fact::HorizonClass {
    fn from(class: HorizonClass) -> Self {
        match class {
            HorizonClass::Volatile => fact::HorizonClass::Volatile,
            HorizonClass::Medium => fact::HorizonClass::Medium,
            HorizonClass::Stable => fact::HorizonClass::Stable,
            HorizonClass::None => fact::HorizonClass::None,
        }
    }
}

impl From<fact::HorizonClass> for HorizonClass {
    fn from(class: fact::HorizonClass) -> Self {
        match class {
            fact::HorizonClass::Volatile => HorizonClass::Volatile,
            fact::HorizonClass::Medium => HorizonClass::Medium,
            fact::HorizonClass::Stable => HorizonClass::Stable,
            fact::HorizonClass::None => HorizonClass::None,
        }
    }
}

pub(super) fn full_confidence() -> f64 {
    1.0
}

fn ten() -> u64 {
    10
}

/// A share of one as the domain counts it.
pub(super) fn confidence(field: &str, share: f64) -> Result<fact::Confidence, CallError> {
    fact::Confidence::from_unit(share).ok_or_else(|| CallError::arguments(format!("`{field}` is {share}"), "Send a number from 0 to 1."))
}

/// Rounded to a second or so: more digits would only cost tokens.
pub(super) fn age_hours(age_ms: u64) -> f64 {
    (age_ms as f64 / 3_600_000.0 * 10_000.0).round() / 10_000.0
}

// ------------------------------------------------------------------ store_fact

/// Remember one fact about an entity for the whole team, as a new version that replaces the one before.
///
/// Earlier versions stay in `fact_history`. Store one statement per key (`owner`, `deploy.window`); a value that grows past
/// 16 KiB is refused, never cut. Answers the new version and which facts it retired.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreFact {
    /// What the fact is about, such as `svc:api` or `person:mara`.
    #[schemars(length(max = 512))]
    entity: String,
    /// Which property of the entity, such as `owner`.
    #[schemars(length(max = 512))]
    key: String,
    /// The statement itself: at most 16,384 bytes of UTF-8, kept byte for byte.
    #[schemars(length(max = 16_384))]
    value: String,
    /// Id of the receipt that the fact was learnt from.
    source_receipt: Option<String>,
    /// How sure you are, from 0 to 1.
    #[serde(default = "full_confidence")]
    #[schemars(range(min = 0, max = 1))]
    confidence: f64,
    /// True keeps the fact to you; nobody else in the team sees it.
    #[serde(default)]
    private: bool,
    /// How fast the fact goes stale; absent takes the default of the entity's prefix.
    horizon_class: Option<HorizonClass>,
    /// The same in your own words (`a week`, `changes daily`); used when `horizon_class` is absent.
    freshness_horizon: Option<String>,
    /// Ids of facts, of this or other entities, that this one replaces; at most 100.
    supersedes: Option<Vec<String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FactStored {
    fact_id: String,
    entity: String,
    key: String,
    /// 1 for the first version of this entity and key.
    version: u64,
    /// Facts that are no longer active because of this write.
    superseded_fact_ids: Vec<String>,
}

impl Tool for StoreFact {
    const NAME: &'static str = "store_fact";
    const TITLE: &'static str = "Store a fact";
    const SCOPE: &'static str = "crux-mcp.store_fact";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::FACTS;
    const IDEMPOTENT: bool = false;
    type Output = FactStored;

    fn example() -> Value {
        json!({ "entity": "svc:api", "key": "owner", "value": "platform" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FactStored>, CallError> {
        let command = fact::StoreFact {
            entity: self.entity,
            key: self.key,
            value: self.value,
            source_receipt: self.source_receipt,
            confidence: confidence("confidence", self.confidence)?,
            private: self.private,
            horizon_class: self.horizon_class.map(Into::into),
            freshness_horizon: self.freshness_horizon,
            supersedes: self.supersedes.unwrap_or_default().into_iter().collect::<BTreeSet<_>>(),
        };
        let (stored, revision) = cluster.propose(ctx, command).await?;
        let fact::FactStored { fact_id, entity, key, version, superseded_fact_ids } = stored;
        Ok(Reply::at(revision, FactStored { fact_id, entity, key, version, superseded_fact_ids }))
    }
}

// ------------------------------------------------------------------ query_facts

/// Find what the team knows, best first: by keywords, by entity, by key, or all of them together.
///
/// What is named by exactly your `query` comes first; the rest is ordered by effective confidence, and a fact past its horizon counts
/// half. Every argument is optional: `{}` gives the
/// top 10 of everything. When there is more than fits, the reply says why in `truncated` and how to go on in `next_cursor`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueryFacts {
    /// Keywords that are looked for in values, keys and entities.
    query: Option<String>,
    /// One entity, matched exactly.
    entity: Option<String>,
    /// Entities that begin so, such as `svc:`.
    entity_prefix: Option<String>,
    /// One key, matched exactly.
    key: Option<String>,
    /// Rows wanted in all.
    #[serde(default = "ten")]
    #[schemars(range(min = 0))]
    top_k: u64,
    /// Tokens (4 bytes of JSON each) that the reply may have; absent: 8 KB.
    #[schemars(range(min = 0))]
    token_budget: Option<u64>,
    /// True adds retired facts, each with `superseded_by`.
    #[serde(default)]
    include_superseded: bool,
    /// Facts that were valid at this instant: RFC 3339 with an offset, such as `2026-11-30T12:00:00Z`.
    as_of: Option<String>,
    /// Leaves out facts whose effective confidence is lower, and says how many.
    #[schemars(range(min = 0, max = 1))]
    min_effective_confidence: Option<f64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    cursor: Option<String>,
    /// `crc-v1` adds `crc_v1`: the same in the form of `x-crux-output-schema`.
    contract: Option<Contract>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FactRow {
    fact_id: String,
    entity: String,
    key: String,
    value: String,
    version: u64,
    confidence: f64,
    /// Confidence as it counts now: half when the fact is past its horizon.
    effective_confidence: f64,
    horizon_class: HorizonClass,
    /// `fresh` or `stale`.
    freshness: String,
    age_hours: f64,
    stored_at: String,
    /// The passport that stored it.
    actor: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded_by: Option<String>,
}

impl From<fact::FactRow> for FactRow {
    fn from(row: fact::FactRow) -> Self {
        Self {
            fact_id: row.fact_id,
            entity: row.entity,
            key: row.key,
            value: row.value,
            version: row.version,
            confidence: row.confidence.to_unit(),
            effective_confidence: row.effective_confidence.to_unit(),
            horizon_class: row.horizon_class.into(),
            freshness: row.freshness,
            age_hours: age_hours(row.age_ms),
            stored_at: row.stored_at.to_rfc3339(),
            actor: row.actor,
            superseded_by: row.superseded_by,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FactRows {
    rows: Vec<FactRow>,
    /// Facts left out by `min_effective_confidence`; there whenever that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered_below_threshold: Option<u64>,
    /// Why the rows end although there are more: `top_k`, `reply_bytes`, `token_budget` or `scan_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// True when the reply was sampled to go without its `token_budget` (`CRUX_OUTPUT_HOLDOUT`), for `token_savings` to compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    unshaped: Option<bool>,
    /// The answer as CRC-v1 has it, where `contract` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    crc_v1: Option<Crc>,
    /// There while `CORECRUXD_FEATURE_AUDIT_ENVELOPE` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    envelope: Option<Envelope<MemoryUsed>>,
}

/// Tokens of the largest reply.
pub(super) const UNSHAPED_TOKENS: u64 = REPLY_BYTES_MAX as u64 / 4;

impl Tool for QueryFacts {
    const NAME: &'static str = "query_facts";
    const TITLE: &'static str = "Find facts";
    const SCOPE: &'static str = "crux-mcp.query_facts";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::FACTS;
    const IDEMPOTENT: bool = true;
    type Output = FactRows;

    fn output_contract() -> Option<Value> {
        Some(schema())
    }

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FactRows>, CallError> {
        let is_unshaped = ctx.arm == Arm::Control;
        let query = fact::QueryFacts {
            query: self.query,
            entity: self.entity,
            entity_prefix: self.entity_prefix,
            key: self.key,
            top_k: self.top_k,
            // The control arm of the hold-out experiment has no budget but the largest reply.
            token_budget: if is_unshaped { Some(UNSHAPED_TOKENS) } else { self.token_budget },
            include_superseded: self.include_superseded,
            as_of: self.as_of.as_deref().map(instant).transpose()?,
            min_effective_confidence: self
                .min_effective_confidence
                .map(|share| confidence("min_effective_confidence", share))
                .transpose()?,
            cursor: self.cursor,
            hits: fact::FactHits::default(),
            with_pointers: is_asked(self.contract),
            with_envelope: true,
        };
        let (found, served) = cluster.read(ctx, query).await?;
        let crc_v1 = is_asked(self.contract).then(|| {
            let answered = Answered {
                kind: Kind::Fact,
                scores: found.rows.iter().map(|row| row.effective_confidence.to_unit()).collect(),
                is_whole: true,
                demoted: Vec::new(),
                is_poor: false,
                is_complete: found.truncated.is_none(),
            };
            Crc::of(found.pointers, answered)
        });
        let shown = found.consulted.map(|consulted| consulted.into_iter().map(Into::into).collect());
        let facts = FactRows {
            crc_v1,
            envelope: shown.map(|shown| Envelope::of_read(ctx, Self::SCOPE, "fact_read", shown)).transpose()?,
            rows: found.rows.into_iter().map(Into::into).collect(),
            filtered_below_threshold: found.filtered_below_threshold,
            truncated: found.truncated,
            next_cursor: found.next_cursor,
            unshaped: is_unshaped.then_some(true),
        };
        Ok(Reply::at(served.revision, facts))
    }
}

fn instant(text: &str) -> Result<UnixMs, CallError> {
    UnixMs::from_rfc3339(text).ok_or_else(|| {
        CallError::arguments(
            format!("`as_of` is no instant: `{}`", shown(text)),
            "Send RFC 3339 with an offset, such as `2026-11-30T12:00:00Z`.",
        )
    })
}

// ------------------------------------------------------------------ delete_fact

/// Take back one fact: it is no longer found, and its history and receipt stay readable.
///
/// Deletes the one version named, as answered by `store_fact` or `query_facts`. To correct a fact, store it again instead.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteFact {
    /// Id of the version to delete.
    fact_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FactDeleted {
    /// False when it was deleted before.
    deleted: bool,
    fact_id: String,
}

impl Tool for DeleteFact {
    const NAME: &'static str = "delete_fact";
    const TITLE: &'static str = "Delete a fact";
    const SCOPE: &'static str = "crux-mcp.delete_fact";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::FACTS;
    const IDEMPOTENT: bool = true;
    type Output = FactDeleted;

    fn example() -> Value {
        json!({ "fact_id": "f_01" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FactDeleted>, CallError> {
        let (done, revision) = cluster.propose(ctx, fact::DeleteFact { fact_id: self.fact_id }).await?;
        Ok(Reply::at(revision, FactDeleted { deleted: done.deleted, fact_id: done.fact_id }))
    }
}

// ------------------------------------------------------------------ reinstate_facts

/// Take back that facts were retired by another one's `supersedes`, or by a consolidation: they are active again, as they were.
///
/// The fact that had retired them stays. What a newer version of the same entity and key replaced does not come back: store that
/// value anew. All of them come back, or none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReinstateFacts {
    /// Ids of retired facts, 1 to 100, as in `superseded_fact_ids` of the write that retired them.
    #[schemars(length(min = 1, max = 100))]
    fact_ids: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FactsReinstated {
    facts: Vec<ReinstatedFact>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ReinstatedFact {
    fact_id: String,
    /// The fact that had retired it.
    #[serde(skip_serializing_if = "Option::is_none")]
    was_superseded_by: Option<String>,
}

impl Tool for ReinstateFacts {
    const NAME: &'static str = "reinstate_facts";
    const TITLE: &'static str = "Take back a retirement";
    const SCOPE: &'static str = "crux-mcp.reinstate_facts";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::FACTS;
    const IDEMPOTENT: bool = false;
    type Output = FactsReinstated;

    fn example() -> Value {
        json!({ "fact_ids": ["f_01"] })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FactsReinstated>, CallError> {
        let (done, revision) = cluster.propose(ctx, fact::ReinstateFacts { fact_ids: self.fact_ids.into_iter().collect() }).await?;
        let row = |fact: fact::ReinstatedFact| ReinstatedFact { fact_id: fact.fact_id, was_superseded_by: fact.was_superseded_by };
        Ok(Reply::at(revision, FactsReinstated { facts: done.facts.into_iter().map(row).collect() }))
    }
}

// ------------------------------------------------------------------ list_entities

/// List the entities that have at least one active fact, sorted.
///
/// For what is known about one of them, ask `query_facts` with `entity`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListEntities {
    /// Entities that begin so.
    entity_prefix: Option<String>,
    /// Rows of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Entities {
    entities: Vec<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for ListEntities {
    const NAME: &'static str = "list_entities";
    const TITLE: &'static str = "List entities";
    const SCOPE: &'static str = "crux-mcp.list_entities";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::FACTS;
    const IDEMPOTENT: bool = true;
    type Output = Entities;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Entities>, CallError> {
        let query =
            fact::ListEntities { entity_prefix: self.entity_prefix, limit: self.limit.unwrap_or(LIST_DEFAULT as u64), cursor: self.cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        Ok(Reply::at(served.revision, Entities { entities: found.entities, next_cursor: found.next_cursor }))
    }
}

// ------------------------------------------------------------------ fact_history

/// Show every version of one fact, oldest first, deleted ones included and marked.
///
/// Tells who said what when, and which version replaced which.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FactHistory {
    /// The entity, matched exactly.
    entity: String,
    /// The key, matched exactly.
    key: String,
    /// Versions of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FactVersion {
    fact_id: String,
    value: String,
    version: u64,
    /// The version before this one; null for the first.
    supersedes: Nullable<String>,
    confidence: f64,
    stored_at: String,
    deleted: bool,
    /// The passport that stored it.
    actor: String,
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    superseded_by: Option<String>,
    /// The receipt of the forgetting that took its value away.
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten_by: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FactVersions {
    versions: Vec<FactVersion>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for FactHistory {
    const NAME: &'static str = "fact_history";
    const TITLE: &'static str = "History of a fact";
    const SCOPE: &'static str = "crux-mcp.fact_history";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::FACTS;
    const IDEMPOTENT: bool = true;
    type Output = FactVersions;

    fn example() -> Value {
        json!({ "entity": "svc:api", "key": "owner" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FactVersions>, CallError> {
        let query =
            fact::FactHistory { entity: self.entity, key: self.key, limit: self.limit.unwrap_or(LIST_DEFAULT as u64), cursor: self.cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let versions = found.versions.into_iter().map(|version| FactVersion {
            fact_id: version.fact_id,
            value: version.value,
            version: version.version,
            supersedes: Nullable(version.supersedes),
            confidence: version.confidence.to_unit(),
            stored_at: version.stored_at.to_rfc3339(),
            deleted: version.deleted,
            actor: version.actor,
            revision: version.revision.0,
            superseded_by: version.superseded_by,
            forgotten_by: version.forgotten_by,
        });
        Ok(Reply::at(served.revision, FactVersions { versions: versions.collect(), next_cursor: found.next_cursor }))
    }
}
