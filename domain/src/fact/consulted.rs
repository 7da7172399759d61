//! Facts as somebody consulted them: what may be told of each where others can read it too.

use serde::{Deserialize, Serialize};

use super::freshness::freshness;
use super::place::is_unspoken;
use super::rank::State;
use super::recall::json_text_bytes;
use super::{Fact, visible};
use crate::stamp::{Principal, UnixMs};
use crate::tx::{Read, StorageError};

/// What an id stands for to the caller.
pub(crate) enum Consulted {
    Shown(ConsultedFact),
    /// It exists for the caller, and is not told of to others.
    Reserved,
    NotFound,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConsultedFact {
    pub fact_id: String,
    pub entity: String,
    pub key: String,
    pub age_ms: u64,
    /// `fresh`, `stale` or `unknown`.
    pub freshness: String,
}

/// The most bytes that an audit envelope takes beside the facts that it names.
pub(crate) fn envelope_bytes(caller: &Principal) -> usize {
    const FRAME: &str = r#","envelope":{"receipts_used":[],"memories_used":[],"autonomy_consumed":{"capability":"crux-mcp.memory_freshness","cost_credits":0.0,"scope":"agent:"},"predicted_effects":["tool_dispatch"]}"#;
    FRAME.len() + json_text_bytes(&caller.passport)
}

impl ConsultedFact {
    /// What may be told of a fact; nothing of a private one, or of one of operations.
    pub(super) fn of(fact: &Fact, now: UnixMs) -> Option<Self> {
        (!is_unspoken(&fact.owner, &fact.entity)).then(|| Self {
            freshness: freshness(fact, now).into(),
            age_ms: now.0.saturating_sub(fact.anchor().0),
            fact_id: fact.fact_id.clone(),
            entity: fact.entity.clone(),
            key: fact.key.clone(),
        })
    }

    /// The most bytes that its row can have as compact JSON.
    pub(crate) fn json_bytes(&self) -> usize {
        const NAMES: &str = r#"{"fact_id":,"topic":,"key":,"age_days":,"age_hours":,"freshness":""},"#;
        const AGES: usize = 2 * 24;
        let texts = [&self.fact_id, &self.entity, &self.key].map(|text| json_text_bytes(text));
        NAMES.len() + AGES + self.freshness.len() + texts.iter().sum::<usize>()
    }
}

/// A version that the caller can see and that is not deleted, active or not: what was consulted may have been replaced since.
pub(crate) fn consulted(view: &impl Read, caller: &Principal, fact_id: &str, now: UnixMs) -> Result<Consulted, StorageError> {
    let fact = visible(view, caller, fact_id)?.filter(|fact| fact.state() != State::Deleted);
    Ok(match fact {
        None => Consulted::NotFound,
        Some(fact) => ConsultedFact::of(&fact, now).map_or(Consulted::Reserved, Consulted::Shown),
    })
}
