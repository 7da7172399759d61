//! Facts that belong to a session, for who takes it over: the tenant's alone, never a private one.

use serde::{Deserialize, Serialize};

use super::place::EVERYONE;
use super::{Confidence, Fact, Head, State, active, visible};
use crate::key::Key;
use crate::limit::HANDOFF_ITEMS_MAX;
use crate::record::ReadRecords;
use crate::stamp::Principal;
use crate::tx::{Read, StorageError};

/// One active fact, packed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PackedFact {
    pub fact_id: String,
    pub entity: String,
    pub key: String,
    pub value: String,
    pub version: u64,
    pub confidence: Confidence,
    pub stored_at: String,
    pub actor: String,
}

pub(crate) struct Relevant {
    pub facts: Vec<PackedFact>,
    pub is_more: bool,
}

/// The facts of these ids, those filed under the session's name, and its decisions; each once.
pub(crate) fn relevant(view: &impl Read, tenant: &str, session_id: &str, ids: &[String]) -> Result<Relevant, StorageError> {
    let everyone =
        Principal { tenant: tenant.into(), passport: EVERYONE.into(), tier: crate::Tier::Unverified, scopes: Default::default() };
    let (mut found, mut is_more) = (Vec::new(), false);
    for id in ids {
        found.extend(visible(view, &everyone, id)?);
    }
    for entity in [session_id.to_string(), format!("__decisions__::{session_id}")] {
        let pairs = view.page::<Head>(tenant, &Key::new().text(EVERYONE).text(&entity), None, HANDOFF_ITEMS_MAX)?;
        is_more |= pairs.next.is_some();
        for pair in pairs.items {
            found.extend(active(view, &pair)?);
        }
    }
    let mut facts: Vec<PackedFact> = Vec::new();
    for fact in found {
        let is_new = !facts.iter().any(|known| known.fact_id == fact.fact_id);
        if is_new && fact.state() == State::Active {
            facts.push(pack(fact));
        }
    }
    Ok(Relevant { facts, is_more })
}

fn pack(fact: Fact) -> PackedFact {
    PackedFact {
        fact_id: fact.fact_id,
        entity: fact.entity,
        key: fact.key,
        value: fact.value,
        version: fact.version,
        confidence: fact.confidence,
        stored_at: fact.stored_at.to_rfc3339(),
        actor: fact.actor,
    }
}

/// Whether a fact is still the active one of its pair.
pub(crate) fn stands(view: &impl Read, caller: &Principal, fact_id: &str) -> Result<bool, StorageError> {
    Ok(visible(view, caller, fact_id)?.is_some_and(|fact| fact.state() == State::Active))
}
