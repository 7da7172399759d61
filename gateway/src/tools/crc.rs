//! The output contract CRC-v1: the answers of the four tools that look things up, in one form for programs.
//!
//! The original sent it with every answer unless a caller opted out. Here it is asked for with the argument `contract`, since it
//! tells each row twice, and it stands under `crc_v1` beside the documented fields of each tool. What is known of the original's
//! form is kept; where that is silent, the descriptions below say what is meant here. Two of its fields have no counterpart and are
//! left out: a slug and a page that resolves it. Its envelope is the audit envelope, which stands beside it.

use quorate_domain::pointer::Pointer as Told;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema;
use crate::schema::Nullable;

/// Which output contract an answer keeps: `legacy` is the documented fields alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum Contract {
    #[serde(rename = "crc-v1")]
    CrcV1,
    #[serde(rename = "legacy")]
    Legacy,
}

/// Whether pointers are asked for.
pub fn is_asked(contract: Option<Contract>) -> bool {
    contract == Some(Contract::CrcV1)
}

/// The schema of what `contract: crc-v1` adds.
pub fn schema() -> Value {
    schema::flat::<Crc>()
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Found by words.
    Search,
    /// Read by id.
    Addressed,
    /// Recalled facts.
    Fact,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Tier {
    Pointer,
    Full,
    Mixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
enum Reason {
    /// It is what was asked for.
    Exact,
    /// Its content had no room in this answer.
    Demoted,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Decision {
    /// All that was found is here whole.
    Answer,
    /// Read what is only pointed to.
    Expand,
    /// Nothing was found, or too little: ask in other words.
    Refine,
}

/// An answer of a look-up as CRC-v1 has it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Crc {
    /// `crc-v1`.
    contract: String,
    kind: Kind,
    /// Whether the answer holds pointers alone, everything whole, or both.
    hydrate_tier: Tier,
    pointers: Vec<Pointer>,
    /// Ids of what stands whole in this answer, among the rows beside.
    content: Vec<String>,
    /// Tokens that all of it would take in each form.
    cost_estimate: CostEstimate,
    agent_decision: Decision,
    next: Next,
    meta: Meta,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Pointer {
    id: String,
    /// From 0 to 1; of facts, their effective confidence. Absent for what was asked for by its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    /// The first 80 characters. Absent when demoted, as is the hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    epitome: Option<String>,
    reason: Reason,
    /// `blake3:` and the hash of the whole content in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_hash: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CostEstimate {
    /// 40 for each.
    pointer: u64,
    /// 150 for each.
    summary: u64,
    /// What their contents take; of what is not demoted.
    full: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Next {
    /// The tool that reads pointers whole, by their ids; null when there is nothing to read.
    expand: Nullable<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Meta {
    /// Pointers of this answer.
    count: u64,
    /// False when there is more than this answer has.
    complete: bool,
}

/// What there is to tell beside the pointers.
pub struct Answered {
    pub kind: Kind,
    /// Of each pointer, if they have one.
    pub scores: Vec<f64>,
    /// Whether their contents stand in the answer.
    pub is_whole: bool,
    /// What had no room.
    pub demoted: Vec<String>,
    /// Too little was found.
    pub is_poor: bool,
    pub is_complete: bool,
}

impl Crc {
    pub fn of(told: Vec<Told>, answered: Answered) -> Self {
        let Answered { kind, scores, is_whole, demoted, is_poor, is_complete } = answered;
        let count = (told.len() + demoted.len()) as u64;
        let is_found = count > 0 && !is_poor;
        let hydrate_tier = match (is_whole, demoted.is_empty()) {
            (false, _) => Tier::Pointer,
            (true, true) => Tier::Full,
            (true, false) => Tier::Mixed,
        };
        let has_more_to_read = count > 0 && !matches!(hydrate_tier, Tier::Full);
        let full = told.iter().map(|pointer| pointer.tokens).sum();
        let content = if is_whole { told.iter().map(|pointer| pointer.id.clone()).collect() } else { Vec::new() };
        let mut scores = scores.into_iter();
        let exact = told.into_iter().map(|Told { id, epitome, content_hash, .. }| Pointer {
            id,
            score: scores.next(),
            epitome: Some(epitome),
            reason: Reason::Exact,
            content_hash: Some(content_hash),
        });
        let bare = |id| Pointer { id, score: None, epitome: None, reason: Reason::Demoted, content_hash: None };
        Self {
            contract: "crc-v1".into(),
            kind,
            hydrate_tier,
            pointers: exact.chain(demoted.into_iter().map(bare)).collect(),
            content,
            cost_estimate: CostEstimate { pointer: 40 * count, summary: 150 * count, full },
            agent_decision: match (is_found, has_more_to_read) {
                (false, _) => Decision::Refine,
                (true, true) => Decision::Expand,
                (true, false) => Decision::Answer,
            },
            next: Next { expand: Nullable(has_more_to_read.then(|| "query_expand".into())) },
            meta: Meta { count, complete: is_complete },
        }
    }
}
