//! Facts: versioned statements about an entity, one active version per (tenant, entity, key).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::refusal::Applied;
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, Tx};

/// How sure a fact is, in millionths, so that no float decides an order: 0 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confidence(pub u32);

impl Confidence {
    pub const FULL: Confidence = Confidence(1_000_000);

    /// From 0 to 1, rounded to a millionth; `None` outside of it.
    pub fn from_unit(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then(|| Self((value * 1e6).round() as u32))
    }

    pub fn to_unit(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

/// How fast a fact goes stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HorizonClass {
    Volatile,
    Medium,
    Stable,
    None,
}

/// Stores one version and retires the one before it, and any others named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreFact {
    pub entity: String,
    pub key: String,
    pub value: String,
    pub source_receipt: Option<String>,
    pub confidence: Confidence,
    pub private: bool,
    pub horizon_class: Option<HorizonClass>,
    pub freshness_horizon: Option<String>,
    pub supersedes: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactStored {
    pub fact_id: String,
    pub entity: String,
    pub key: String,
    pub version: u64,
    pub superseded_fact_ids: Vec<String>,
}

impl StoreFact {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactStored> {
        let _ = (tx, at);
        todo!()
    }
}

/// Marks one version as deleted; its history and receipt stay readable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeleteFact {
    pub fact_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactDeleted {
    pub deleted: bool,
    pub fact_id: String,
}

impl DeleteFact {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactDeleted> {
        let _ = (tx, at);
        todo!()
    }
}

/// Finds active facts by keywords, entity or key, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryFacts {
    pub query: Option<String>,
    pub entity: Option<String>,
    pub entity_prefix: Option<String>,
    pub key: Option<String>,
    /// Rows wanted in all; a reply holds what fits and a cursor for the rest.
    pub top_k: u64,
    /// Tokens (4 bytes of compact JSON) that the whole reply may have.
    pub token_budget: Option<u64>,
    pub include_superseded: bool,
    pub as_of: Option<UnixMs>,
    pub min_effective_confidence: Option<Confidence>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactRow {
    pub fact_id: String,
    pub entity: String,
    pub key: String,
    pub value: String,
    pub version: u64,
    pub confidence: Confidence,
    pub effective_confidence: Confidence,
    pub horizon_class: HorizonClass,
    /// `fresh` or `stale`.
    pub freshness: String,
    pub age_ms: u64,
    pub stored_at: UnixMs,
    pub actor: String,
    pub superseded_by: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactRows {
    pub rows: Vec<FactRow>,
    /// Present whenever a floor was given.
    pub filtered_below_threshold: Option<u64>,
    pub next_cursor: Option<String>,
    /// Why the rows end before `top_k` although there are more: `reply_bytes`, `token_budget` or `scan_limit`.
    pub truncated: Option<String>,
}

impl QueryFacts {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<FactRows> {
        let _ = (view, at);
        todo!()
    }
}

/// Every version of one pair, oldest first, deleted ones included and marked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactHistory {
    pub entity: String,
    pub key: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactVersion {
    pub fact_id: String,
    pub value: String,
    pub version: u64,
    pub supersedes: Option<String>,
    pub superseded_by: Option<String>,
    pub confidence: Confidence,
    pub stored_at: UnixMs,
    pub deleted: bool,
    pub actor: String,
    pub revision: Revision,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactVersions {
    pub versions: Vec<FactVersion>,
    pub next_cursor: Option<String>,
}

impl FactHistory {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<FactVersions> {
        let _ = (view, at);
        todo!()
    }
}

/// Entities with at least one active fact, sorted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListEntities {
    pub entity_prefix: Option<String>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entities {
    pub entities: Vec<String>,
    pub next_cursor: Option<String>,
}

impl ListEntities {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Entities> {
        let _ = (view, at);
        todo!()
    }
}
