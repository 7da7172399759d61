//! The memory panel: what people see of the team's facts, correct and pin.
//!
//! Decisions:
//! * The panel shows active facts that the whole tenant sees, best first as in recall. Private facts, operations and what the
//!   service writes (see [`place`]) are left out: `query_facts` and `fact_history` show them to those who may.
//! * An edit is a new version by the editor, with the confidence and the horizon of the one that it corrects. It names the
//!   version that it corrects, and is refused once another has replaced that one.
//! * A pin belongs to one agent and one pair, whichever version is active, so it survives edits; nobody else learns of it.
//!
//! [`place`]: super::place

use serde::{Deserialize, Serialize};

use super::narrow::Narrow;
use super::page::{self, Asked, Page};
use super::place::{EVERYONE, check_entity, off_panel};
use super::rank::State;
use super::recall::json_text_bytes;
use super::{
    Confidence, Draft, FACT_ID_BYTES_MAX, Fact, FactVersions, HorizonClass, at_most, check_value, head, history, next_version, not_active,
    pair_id, visible,
};
use crate::cursor::Cursors;
use crate::flag;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{NAME_BYTES_MAX, VIEW_TOKENS_DEFAULT};
use crate::query::rows;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

/// What stands before the reason of an edit in the new version's `source_receipt`.
pub(super) const EDIT: &str = "memory_edit:";

/// One fact as the panel shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryRow {
    pub id: String,
    pub entity: String,
    pub key: String,
    pub value: String,
    pub version: u64,
    pub stored_at: UnixMs,
    pub confidence: Confidence,
    pub horizon_class: HorizonClass,
    /// Whether the caller pinned it.
    pub pinned: bool,
    pub source_receipt: Option<String>,
    pub actor: String,
}

impl MemoryRow {
    fn of(view: &impl Read, caller: &Principal, fact: Fact) -> Result<Self, StorageError> {
        Ok(Self {
            pinned: is_pinned(view, caller, &fact)?,
            id: fact.fact_id,
            entity: fact.entity,
            key: fact.key,
            value: fact.value,
            version: fact.version,
            stored_at: fact.stored_at,
            confidence: fact.confidence,
            horizon_class: fact.horizon_class,
            source_receipt: fact.source_receipt,
            actor: fact.actor,
        })
    }

    /// The most bytes that the row can have as compact JSON with the names of this struct.
    pub fn json_bytes(&self) -> usize {
        const NAMES: &str = r#"{"id":,"entity":,"key":,"value":,"version":,"stored_at":"","confidence":,"horizon_class":"","pinned":false,"source_receipt":null,"actor":}"#;
        const VERSION_INSTANT_CONFIDENCE: usize = 20 + 24 + 8;
        let texts = [&self.id, &self.entity, &self.key, &self.value, &self.actor].into_iter().chain(&self.source_receipt);
        let texts: usize = texts.map(|text| json_text_bytes(text)).sum();
        NAMES.len() + VERSION_INSTANT_CONFIDENCE + self.horizon_class.word().len() + texts
    }
}

// ------------------------------------------------------------------ memory_view

/// Active facts of the tenant for people, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewMemory {
    pub entity: Option<String>,
    pub key: Option<String>,
    pub top_k: u64,
    pub token_budget: Option<u64>,
    pub cursor: Option<String>,
    #[serde(default)]
    pub entity_prefix: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryFacts {
    pub facts: Vec<MemoryRow>,
    pub next_cursor: Option<String>,
    /// As in [`FactRows`](super::FactRows).
    pub truncated: Option<String>,
}

impl ViewMemory {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<MemoryFacts> {
        if let Some(refusal) = flag::refuse_off(view, flag::MEMORY_PANEL, "memory_view")? {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("memory", &at.caller, &(&self.entity, &self.entity_prefix, &self.key));
        let (entity, prefix, key) = (self.entity.as_deref(), self.entity_prefix.as_deref(), self.key.as_deref());
        let narrow = match Narrow::check(entity, prefix, key, &[EVERYONE], &at.caller) {
            Ok(narrow) => narrow,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let asked = Asked {
            top_k: self.top_k,
            token_budget: self.token_budget,
            default_tokens: Some(VIEW_TOKENS_DEFAULT),
            cursor: self.cursor.as_deref(),
        };
        let start = match asked.check(&cursors, at) {
            Ok(start) => start,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut walk = narrow.active(view, at, start.now, start.after)?;
        let page = page::fill(view, at, &cursors, start, &mut walk, |_, fact| {
            if off_panel(&fact.owner, &fact.entity).is_some() || !narrow.lets_through(&fact) {
                return Ok(None);
            }
            let row = MemoryRow::of(view, &at.caller, fact)?;
            let bytes = row.json_bytes();
            Ok(Some((row, bytes)))
        })?;
        Ok(page.map(|Page { rows, next_cursor, truncated }| MemoryFacts { facts: rows, next_cursor, truncated }))
    }
}

// ------------------------------------------------------------------ memory_edit

/// Corrects a fact: a new version with another value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EditFact {
    /// The version that is corrected; it has to be the active one.
    pub fact_id: String,
    pub new_value: String,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactEdited {
    pub old_fact_id: String,
    pub new_fact: MemoryRow,
    pub reason: Option<String>,
}

impl EditFact {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactEdited> {
        if let Some(refusal) = flag::refuse_off(tx, flag::MEMORY_PANEL, "memory_edit")? {
            return Ok(Err(refusal));
        }
        if let Err(refusal) = self.check() {
            return Ok(Err(refusal));
        }
        let Self { fact_id, new_value, reason } = self;
        let Some(old) = visible(tx, &at.caller, &fact_id)? else {
            return Ok(Err(Refusal::not_found("fact", fact_id)));
        };
        let reserved = off_panel(&old.owner, &old.entity).map(|prefix| Refusal::Denied {
            problem: format!("facts under `{prefix}` are not edited in the panel; where you may, write them with `store_fact`"),
        });
        if let Some(refusal) = reserved.or_else(|| not_active(&old)) {
            return Ok(Err(refusal));
        }
        let draft = Draft {
            value: new_value,
            confidence: old.confidence,
            horizon_class: old.horizon_class,
            source_receipt: reason.as_ref().map(|reason| format!("{EDIT}{reason}")),
        };
        let head = head(tx, &old.tenant, &old.owner, &old.entity, &old.key)?;
        let (fact, _) = next_version(tx, at, head, Some(old), Vec::new(), draft)?;
        Ok(Ok(FactEdited { old_fact_id: fact_id, new_fact: MemoryRow::of(tx, &at.caller, fact)?, reason }))
    }

    fn check(&self) -> Result<(), Refusal> {
        at_most("fact_id", self.fact_id.len(), FACT_ID_BYTES_MAX, "bytes")?;
        check_value("new_value", &self.new_value)?;
        let Some(reason) = &self.reason else { return Ok(()) };
        at_most("reason", reason.len(), NAME_BYTES_MAX - EDIT.len(), "bytes")?;
        check_name("reason", reason).map_or(Ok(()), Err)
    }
}

// ------------------------------------------------------------------ memory_pin

/// One agent's pin on a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Pin {
    tenant: String,
    agent: String,
    owner: String,
    entity: String,
    key: String,
    pinned_at: UnixMs,
}

impl Record for Pin {
    const KIND: Kind = Kind::MemoryPin;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        pin_id(&self.agent, &self.owner, &self.entity, &self.key)
    }
}

fn pin_id(agent: &str, owner: &str, entity: &str, key: &str) -> Key {
    Key::new().text(agent).raw(pair_id(owner, entity, key).as_bytes())
}

/// Whether the caller pinned the pair of this fact.
pub(super) fn is_pinned(view: &impl Read, caller: &Principal, fact: &Fact) -> Result<bool, StorageError> {
    let id = pin_id(&caller.passport, &fact.owner, &fact.entity, &fact.key);
    Ok(view.get::<Pin>(&caller.tenant, &id)?.is_some())
}

/// Pins the pair of a fact for the caller, or takes the pin away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PinFact {
    /// Any version of it that is not deleted.
    pub fact_id: String,
    pub pinned: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactPinned {
    pub fact_id: String,
    pub pinned: bool,
}

impl PinFact {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactPinned> {
        if let Some(refusal) = flag::refuse_off(tx, flag::MEMORY_PANEL, "memory_pin")? {
            return Ok(Err(refusal));
        }
        let Self { fact_id, pinned } = self;
        if let Err(refusal) = at_most("fact_id", fact_id.len(), FACT_ID_BYTES_MAX, "bytes") {
            return Ok(Err(refusal));
        }
        let Some(fact) = visible(tx, &at.caller, &fact_id)? else {
            return Ok(Err(Refusal::not_found("fact", fact_id)));
        };
        if let Some(refusal) = not_active(&fact).filter(|_| pinned && matches!(fact.state(), State::Deleted | State::Forgotten)) {
            return Ok(Err(refusal));
        }
        let pin = Pin {
            tenant: fact.tenant,
            agent: at.caller.passport.clone(),
            owner: fact.owner,
            entity: fact.entity,
            key: fact.key,
            pinned_at: at.wall,
        };
        let known: Option<Pin> = tx.get(&pin.tenant, &pin.id())?;
        match (known.is_some(), pinned) {
            (false, true) => tx.put(&pin),
            (true, false) => tx.delete(&pin),
            _ => {}
        }
        // No event: the whole tenant reads those, and a pin is the agent's own.
        Ok(Ok(FactPinned { fact_id, pinned }))
    }
}

// ------------------------------------------------------------------ memory_history

/// Every version of a fact that the panel shows, oldest first: by its pair, or by the id of one of its versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryHistory {
    pub entity: Option<String>,
    pub key: Option<String>,
    pub fact_id: Option<String>,
    pub limit: u64,
    pub cursor: Option<String>,
}

impl MemoryHistory {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<FactVersions> {
        if let Some(refusal) = flag::refuse_off(view, flag::MEMORY_PANEL, "memory_history")? {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("memory versions", &at.caller, &(&self.entity, &self.key, &self.fact_id));
        let (limit, from) = match self.check(&cursors, &at.caller) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (owner, entity, key) = match (self.fact_id, self.entity, self.key) {
            (Some(fact_id), ..) => match visible(view, &at.caller, &fact_id)? {
                Some(fact) => (fact.owner, fact.entity, fact.key),
                None => return Ok(Err(Refusal::not_found("fact", fact_id))),
            },
            (None, entity, key) => (EVERYONE.into(), entity.unwrap_or_default(), key.unwrap_or_default()),
        };
        if let Some(prefix) = off_panel(&owner, &entity) {
            let problem = format!("facts under `{prefix}` are not shown in the panel; `fact_history` shows them to those who may see them");
            return Ok(Err(Refusal::Denied { problem }));
        }
        let (versions, next) = history::versions(view, &at.caller.tenant, &pair_id(&owner, &entity, &key), from, limit)?;
        Ok(Ok(FactVersions { versions, next_cursor: next.map(|version| cursors.seal(&version.to_be_bytes())) }))
    }

    /// The rows of this page, and the version that it begins with.
    fn check(&self, cursors: &Cursors, caller: &Principal) -> Result<(usize, Option<u64>), Refusal> {
        let refusal = match (&self.fact_id, &self.entity, &self.key) {
            (Some(fact_id), None, None) => at_most("fact_id", fact_id.len(), FACT_ID_BYTES_MAX, "bytes").err(),
            (None, Some(entity), Some(key)) => check_entity(entity, caller).or_else(|| check_name("key", key)),
            _ => Some(Refusal::invalid("fact_id", "or both `entity` and `key` have to be given, and not all three")),
        };
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let limit = rows(self.limit)?;
        let Some(cursor) = &self.cursor else { return Ok((limit, None)) };
        let version = cursors.open(cursor)?.try_into().map_err(|_| Refusal::invalid("cursor", "is damaged"))?;
        Ok((limit, Some(u64::from_be_bytes(version))))
    }
}
