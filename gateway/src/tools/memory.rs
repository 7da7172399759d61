//! The team's memory as people see, correct and tidy it: the panel, contradictions and consolidation.

use std::collections::BTreeSet;

use quorate_domain::fact;
use quorate_domain::flag;
use quorate_domain::limit::LIST_DEFAULT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::facts::{HorizonClass, confidence, full_confidence};
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

fn twenty() -> u64 {
    20
}

fn fifty() -> u64 {
    50
}

// ------------------------------------------------------------------ memory_view

/// Show what the team knows, for reading: active facts with their pins, best first.
///
/// Retired facts are never shown, nor are private facts, operations and the service's own records; `query_facts` finds those.
/// When there is more than fits, the reply says why in `truncated` and how to go on in `next_cursor`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryView {
    /// One entity, matched exactly.
    entity: Option<String>,
    /// Entities that begin so, such as `svc:`.
    entity_prefix: Option<String>,
    /// One key, matched exactly.
    key: Option<String>,
    /// Facts wanted in all.
    #[serde(default = "twenty")]
    top_k: u64,
    /// Tokens (4 bytes of JSON each) that the reply may have. The default gives at least one fact, however large.
    #[schemars(extend("default" = 2_000))]
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MemoryFact {
    id: String,
    entity: String,
    key: String,
    value: String,
    version: u64,
    stored_at: String,
    confidence: f64,
    horizon_class: HorizonClass,
    /// Whether you pinned it; others' pins are not shown.
    pinned: bool,
    /// The receipt that it was learnt from, or `memory_edit:` and the reason of an edit.
    source_receipt: Nullable<String>,
    /// The passport that stored or edited it.
    actor: String,
}

impl From<fact::MemoryRow> for MemoryFact {
    fn from(row: fact::MemoryRow) -> Self {
        Self {
            id: row.id,
            entity: row.entity,
            key: row.key,
            value: row.value,
            version: row.version,
            stored_at: row.stored_at.to_rfc3339(),
            confidence: row.confidence.to_unit(),
            horizon_class: row.horizon_class.into(),
            pinned: row.pinned,
            source_receipt: Nullable(row.source_receipt),
            actor: row.actor,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MemoryFacts {
    facts: Vec<MemoryFact>,
    /// Tokens (4 bytes of JSON each) of `facts`.
    total_tokens: u64,
    /// How many facts this reply has.
    returned: u64,
    /// Why the facts end although there are more: `top_k`, `reply_bytes`, `token_budget` or `scan_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for MemoryView {
    const NAME: &'static str = "memory_view";
    const TITLE: &'static str = "View memory";
    const SCOPE: &'static str = "crux-mcp.memory_view";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::MEMORY_PANEL);
    type Output = MemoryFacts;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<MemoryFacts>, CallError> {
        let Self { entity, entity_prefix, key, top_k, token_budget, cursor } = self;
        let query = fact::ViewMemory { entity, entity_prefix, key, top_k, token_budget, cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let facts: Vec<MemoryFact> = found.facts.into_iter().map(Into::into).collect();
        let bytes = serde_json::to_string(&facts).map_err(|error| CallError::Fault { detail: error.to_string() })?.len();
        let view = MemoryFacts {
            total_tokens: (bytes as u64).div_ceil(4),
            returned: facts.len() as u64,
            facts,
            truncated: found.truncated,
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, view))
    }
}

// ------------------------------------------------------------------ memory_edit

/// Correct a fact: stores a new version that replaces it, in your name, with its confidence, horizon and pins.
///
/// Names the version that you read; when another has replaced or deleted that one meanwhile, nothing is written. The old value
/// stays in `memory_history`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryEdit {
    /// Id of the version to correct, as `memory_view` shows it.
    fact_id: String,
    /// The corrected statement: at most 16,384 bytes of UTF-8.
    #[schemars(length(max = 16_384))]
    new_value: String,
    /// Why, for later readers, in at most 500 bytes; it stands in the new version's `source_receipt`.
    #[schemars(length(max = 500))]
    reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MemoryEdited {
    old_fact_id: String,
    /// The new version.
    new_fact: MemoryFact,
    reason: Nullable<String>,
}

impl Tool for MemoryEdit {
    const NAME: &'static str = "memory_edit";
    const TITLE: &'static str = "Edit a fact";
    const SCOPE: &'static str = "crux-mcp.memory_edit";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = false;
    const SWITCH: Option<flag::Definition> = Some(flag::MEMORY_PANEL);
    type Output = MemoryEdited;

    fn example() -> Value {
        json!({ "fact_id": "f_01", "new_value": "platform team" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<MemoryEdited>, CallError> {
        let Self { fact_id, new_value, reason } = self;
        let (done, revision) = cluster.propose(ctx, fact::EditFact { fact_id, new_value, reason }).await?;
        let fact::FactEdited { old_fact_id, new_fact, reason } = done;
        Ok(Reply::at(revision, MemoryEdited { old_fact_id, new_fact: new_fact.into(), reason: Nullable(reason) }))
    }
}

// ------------------------------------------------------------------ memory_pin

fn pinned() -> bool {
    true
}

/// Pin a fact for yourself, or take the pin away: a pinned fact outlives decay and scoped forget.
///
/// The pin holds for the fact's entity and key, so it survives edits. Other agents neither see nor share it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryPin {
    /// Id of a version of the fact.
    fact_id: String,
    /// False takes the pin away.
    #[serde(default = "pinned")]
    pinned: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MemoryPinned {
    fact_id: String,
    pinned: bool,
}

impl Tool for MemoryPin {
    const NAME: &'static str = "memory_pin";
    const TITLE: &'static str = "Pin a fact";
    const SCOPE: &'static str = "crux-mcp.memory_pin";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::MEMORY_PANEL);
    type Output = MemoryPinned;

    fn example() -> Value {
        json!({ "fact_id": "f_01" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<MemoryPinned>, CallError> {
        let (done, revision) = cluster.propose(ctx, fact::PinFact { fact_id: self.fact_id, pinned: self.pinned }).await?;
        Ok(Reply::at(revision, MemoryPinned { fact_id: done.fact_id, pinned: done.pinned }))
    }
}

// ------------------------------------------------------------------ memory_history

/// Show every version of one fact, oldest first: by `entity` and `key`, or by the `fact_id` of any of its versions.
///
/// Private and reserved entities are refused here; `fact_history` shows them to those who may see them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryHistory {
    /// The entity, matched exactly; needs `key`.
    entity: Option<String>,
    /// The key, matched exactly; needs `entity`.
    key: Option<String>,
    /// Id of a version; instead of the other two.
    fact_id: Option<String>,
    /// Versions of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MemoryVersion {
    id: String,
    value: String,
    version: u64,
    stored_at: String,
    /// The version before this one; null for the first.
    supersedes: Nullable<String>,
    deleted: bool,
    /// The receipt that it was learnt from, or `memory_edit:` and the reason of an edit.
    source_receipt: Nullable<String>,
    /// The passport that stored or edited it.
    actor: String,
    /// The receipt of the forgetting that took its value away.
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten_by: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MemoryVersions {
    versions: Vec<MemoryVersion>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for MemoryHistory {
    const NAME: &'static str = "memory_history";
    const TITLE: &'static str = "History of a memory";
    const SCOPE: &'static str = "crux-mcp.memory_history";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::MEMORY_PANEL);
    type Output = MemoryVersions;

    fn example() -> Value {
        json!({ "entity": "svc:api", "key": "owner" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<MemoryVersions>, CallError> {
        let Self { entity, key, fact_id, limit, cursor } = self;
        let query = fact::MemoryHistory { entity, key, fact_id, limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let versions = found.versions.into_iter().map(|version| MemoryVersion {
            id: version.fact_id,
            value: version.value,
            version: version.version,
            stored_at: version.stored_at.to_rfc3339(),
            supersedes: Nullable(version.supersedes),
            deleted: version.deleted,
            source_receipt: Nullable(version.source_receipt),
            actor: version.actor,
            forgotten_by: version.forgotten_by,
        });
        Ok(Reply::at(served.revision, MemoryVersions { versions: versions.collect(), next_cursor: found.next_cursor }))
    }
}

// ------------------------------------------------------------------ memory_contradictions

/// List active facts that contradict each other: one entity and key, of which one says yes and the other no.
///
/// A new version retires the one before, so the two are the team's fact and your private one; with `across_versions`, also the
/// team's fact and what another agent had said before. Words such as enabled and
/// disabled, active and inactive, passed and failed count, by fixed lists. Nothing is changed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryContradictions {
    /// One entity, matched exactly.
    entity: Option<String>,
    /// Entities that begin so, such as `svc:`.
    entity_prefix: Option<String>,
    /// One key, matched exactly.
    key: Option<String>,
    /// Candidates of this page, at most 1,000.
    #[serde(default = "fifty")]
    limit: u64,
    /// Tokens (4 bytes of JSON each) that the reply may have. The default gives at least one candidate.
    #[schemars(extend("default" = 500))]
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    cursor: Option<String>,
    /// True adds where the active version says the opposite of the one that it replaced, and another passport had said that.
    #[serde(default)]
    across_versions: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Contradiction {
    entity: String,
    key: String,
    /// `opposite_polarity_same_entity_key` or `opposite_polarity_across_versions`.
    reason: String,
    /// `positive` or `negative`: what the first value says.
    polarity_a: String,
    /// What the second value says.
    polarity_b: String,
    fact_ids: Vec<String>,
    values: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Contradictions {
    candidates: Vec<Contradiction>,
    /// How many candidates this reply has.
    count: u64,
    limit: u64,
    /// Always true: this tool only looks.
    dry_run: bool,
    /// Why they end although there may be more: `limit`, `reply_bytes`, `token_budget` or `scan_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for MemoryContradictions {
    const NAME: &'static str = "memory_contradictions";
    const TITLE: &'static str = "Find contradictions";
    const SCOPE: &'static str = "crux-mcp.memory_contradictions";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::CONSOLIDATION);
    type Output = Contradictions;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Contradictions>, CallError> {
        let Self { entity, entity_prefix, key, limit, token_budget, cursor, across_versions } = self;
        let query = fact::FindContradictions { limit, token_budget, cursor, entity, entity_prefix, key, across_versions };
        let (found, served) = cluster.read(ctx, query).await?;
        let candidates = found.candidates.into_iter().map(|found| {
            let fact::Contradiction { entity, key, reason, polarity_a, polarity_b, fact_ids, values } = found;
            Contradiction { entity, key, reason, polarity_a, polarity_b, fact_ids, values }
        });
        let candidates: Vec<Contradiction> = candidates.collect();
        let reply = Contradictions {
            count: candidates.len() as u64,
            candidates,
            limit,
            dry_run: true,
            truncated: found.truncated,
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, reply))
    }
}

// ------------------------------------------------------------------ memory_consolidate

fn floor() -> f64 {
    0.99
}

/// Replace facts of one entity and key by a single canonical one, with a receipt. Their history stays.
///
/// Retires exactly the facts that you name: each has to be active still, and nothing is written when one was replaced, edited
/// or deleted meanwhile. Refused for facts that are private, pinned by you, learnt from a receipt, or at least as sure as
/// `protected_confidence_floor`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryConsolidate {
    /// The entity of all targets and of the canonical fact.
    #[schemars(length(max = 512))]
    entity: String,
    /// The key of all targets and of the canonical fact.
    #[schemars(length(max = 512))]
    key: String,
    /// The value that stays.
    #[schemars(length(max = 16_384))]
    canonical_value: String,
    /// Ids of the active facts to replace; at most 100.
    #[schemars(length(min = 1))]
    target_fact_ids: Vec<String>,
    /// Ids that must not be replaced; the call is refused when a target is among them.
    protected_fact_ids: Option<Vec<String>>,
    /// How sure the canonical fact is, from 0 to 1.
    #[serde(default = "full_confidence")]
    confidence: f64,
    /// Targets with this confidence or more are protected; from 0 to 1.
    #[serde(default = "floor")]
    protected_confidence_floor: f64,
    /// A name of your choosing for the receipt, used once; absent: a new one is made.
    #[schemars(length(max = 498))]
    consolidation_id: Option<String>,
    /// How fast the canonical fact goes stale; absent: as fast as the fact that it replaces.
    horizon_class: Option<HorizonClass>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Consolidated {
    /// `consolidated`.
    status: String,
    receipt: ConsolidationReceipt,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ConsolidationReceipt {
    consolidation_id: String,
    canonical_fact_id: String,
    superseded_fact_ids: Vec<String>,
    source_fact_ids: Vec<String>,
    /// Id under which `receipt_verify` checks it.
    receipt_id: String,
}

impl Tool for MemoryConsolidate {
    const NAME: &'static str = "memory_consolidate";
    const TITLE: &'static str = "Consolidate facts";
    const SCOPE: &'static str = "crux-mcp.memory_consolidate";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = false;
    const SWITCH: Option<flag::Definition> = Some(flag::CONSOLIDATION);
    type Output = Consolidated;

    fn example() -> Value {
        json!({ "entity": "svc:api", "key": "state", "canonical_value": "enabled", "target_fact_ids": ["f_01"] })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Consolidated>, CallError> {
        let command = fact::ConsolidateFacts {
            entity: self.entity,
            key: self.key,
            canonical_value: self.canonical_value,
            target_fact_ids: self.target_fact_ids.into_iter().collect::<BTreeSet<_>>(),
            protected_fact_ids: self.protected_fact_ids.into_iter().flatten().collect(),
            confidence: confidence("confidence", self.confidence)?,
            protected_confidence_floor: confidence("protected_confidence_floor", self.protected_confidence_floor)?,
            consolidation_id: self.consolidation_id,
            horizon_class: self.horizon_class.map(Into::into),
        };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let fact::FactsConsolidated { consolidation_id, receipt_id, canonical_fact_id, superseded_fact_ids, source_fact_ids } = done;
        let receipt = ConsolidationReceipt { consolidation_id, canonical_fact_id, superseded_fact_ids, source_fact_ids, receipt_id };
        Ok(Reply::at(revision, Consolidated { status: "consolidated".into(), receipt }))
    }
}
