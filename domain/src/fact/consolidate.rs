//! Contradictions among facts, and their consolidation into one.
//!
//! Decisions:
//! * Two active facts of one entity and key can only be the tenant's and the caller's private one, since a new version retires
//!   the one before. They contradict each other when the one says yes and the other no, by fixed lists of words.
//! * Whoever asks for it is shown, besides, where the team's active version says the opposite of the one that it replaced, and another
//!   passport had said that: nobody has settled whether the world changed or the two disagree.
//! * A consolidation retires exactly the facts that it names, or is refused and writes nothing: each has to be active still, and
//!   a version that was stored meanwhile is one that its caller has not seen.
//! * Protected are private facts, those that the caller pinned or names as protected, those learnt from a receipt, and those as
//!   sure as the floor or surer. The reason that `memory_edit` keeps beside a value is no receipt.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::narrow::Narrow;
use super::page::Room;
use super::panel::{EDIT, is_pinned};
use super::place::{EVERYONE, Place};
use super::rank::State;
use super::recall::json_text_bytes;
use super::{
    Confidence, Draft, FACT_ID_BYTES_MAX, Fact, Head, HorizonClass, active, at_most, by_id, check_value, head, next_version, not_active,
    some, stored, visible,
};
use crate::cursor::Cursors;
use crate::event;
use crate::flag;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{CONTRADICTIONS_TOKENS_DEFAULT, NAME_BYTES_MAX, REPLY_BYTES_MAX, SCAN_ROWS_MAX, SUPERSEDES_MAX};
use crate::query::rows;
use crate::receipt;
use crate::record::{ReadRecords, Record, kind_prefix};
use crate::refusal::{Applied, Refusal, shown};
use crate::stamp::{ReadStamp, Revision, Stamp};
use crate::tx::{Read, StorageError, Table, Tx};

/// Words that say yes, and words that say no.
const POSITIVE: [&str; 14] =
    ["true", "yes", "y", "on", "enabled", "enable", "active", "complete", "completed", "passed", "pass", "approved", "approve", "present"];
const NEGATIVE: [&str; 13] =
    ["false", "no", "n", "off", "disabled", "disable", "inactive", "blocked", "failed", "fail", "rejected", "reject", "absent"];

/// A longer value is no single word, whatever surrounds it.
const WORD_BYTES_MAX: usize = 64;

/// What a value says: `positive`, `negative`, or neither. Letter case and what surrounds the word do not count.
fn polarity(value: &str) -> Option<&'static str> {
    if value.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = value.trim_matches(|ch: char| !ch.is_alphanumeric()).to_lowercase();
    if POSITIVE.contains(&word.as_str()) {
        return Some("positive");
    }
    NEGATIVE.contains(&word.as_str()).then_some("negative")
}

/// Active facts of one entity and key that say opposite things.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contradiction {
    pub entity: String,
    pub key: String,
    pub reason: String,
    pub polarity_a: String,
    pub polarity_b: String,
    /// The tenant's, and then the caller's private one; or the active version, and then the one before it.
    pub fact_ids: Vec<String>,
    pub values: Vec<String>,
}

impl Contradiction {
    fn of(one: &Fact, other: &Fact, reason: &str) -> Option<Self> {
        let (a, b) = (polarity(&one.value)?, polarity(&other.value)?);
        (a != b).then(|| Self {
            entity: one.entity.clone(),
            key: one.key.clone(),
            reason: reason.into(),
            polarity_a: a.into(),
            polarity_b: b.into(),
            fact_ids: vec![one.fact_id.clone(), other.fact_id.clone()],
            values: vec![one.value.clone(), other.value.clone()],
        })
    }

    /// The most bytes that it can have as compact JSON with the names of this struct.
    pub fn json_bytes(&self) -> usize {
        const NAMES: &str = r#"{"entity":,"key":,"reason":,"polarity_a":,"polarity_b":,"fact_ids":[,],"values":[,]}"#;
        let texts = [&self.entity, &self.key, &self.reason, &self.polarity_a, &self.polarity_b];
        NAMES.len() + texts.into_iter().chain(&self.fact_ids).chain(&self.values).map(|text| json_text_bytes(text)).sum::<usize>()
    }
}

/// Contradictions that the caller can see, by entity and key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FindContradictions {
    pub limit: u64,
    pub token_budget: Option<u64>,
    pub cursor: Option<String>,
    #[serde(default)]
    pub entity: Option<String>,
    #[serde(default)]
    pub entity_prefix: Option<String>,
    #[serde(default)]
    pub key: Option<String>,
    /// With those between an active version and the one that it replaced.
    #[serde(default)]
    pub across_versions: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contradictions {
    pub candidates: Vec<Contradiction>,
    pub next_cursor: Option<String>,
    /// Why they end although there may be more: `limit`, `token_budget`, `reply_bytes` or `scan_limit`.
    pub truncated: Option<String>,
}

/// So that the cursor, which holds an entity and a key in hex, fits the largest reply besides.
const TOKENS_MAX: u64 = (REPLY_BYTES_MAX as u64 - 4_096) / 4;
/// Heads read from storage at once.
const CHUNK: usize = 64;

impl FindContradictions {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Contradictions> {
        if let Some(refusal) = flag::refuse_off(view, flag::CONSOLIDATION, "memory_contradictions")? {
            return Ok(Err(refusal));
        }
        let Self { entity, entity_prefix, key, across_versions, .. } = &self;
        let cursors = Cursors::of("contradictions", &at.caller, &(entity, entity_prefix, key, across_versions));
        let (limit, from_position) = match self.check(&cursors) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        // Only pairs of which the caller has a private fact can hold two active ones, so for those nothing else is walked.
        let own = at.caller.passport.as_str();
        let owners: &[&str] = if self.across_versions { &[own, EVERYONE] } else { &[own] };
        let narrow = match Narrow::check(entity.as_deref(), entity_prefix.as_deref(), key.as_deref(), owners, &at.caller) {
            Ok(narrow) => narrow,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut room = Room::of(self.token_budget.map(|tokens| tokens.min(TOKENS_MAX)), Some(CONTRADICTIONS_TOKENS_DEFAULT));
        let mut reply = Contradictions { candidates: Vec::new(), next_cursor: None, truncated: None };
        let tenant = &at.caller.tenant;
        let mut examined = 0;
        let (mut lane, mut from) = (0u8, None);
        if let Some(position) = from_position {
            let begun = position.split_first().and_then(|(lane, rest)| Some((*lane, owners.get(usize::from(*lane))?, rest)));
            let Some((at_lane, owner, rest)) = begun else { return Ok(Err(Refusal::invalid("cursor", "is damaged"))) };
            (lane, from) = (at_lane, Some(kind_prefix(tenant, Head::KIND).text(owner).raw(rest).into_bytes()));
        }
        'pages: while let Some(&owner) = owners.get(usize::from(lane)) {
            let Some(pairs) = narrow.pairs_of(owner, &at.caller) else {
                lane += 1;
                continue;
            };
            let page = view.page::<Head>(tenant, &pairs, from.as_deref(), CHUNK)?;
            for head in page.items {
                let position = Key::new().byte(lane).text(&head.entity).text(&head.key);
                let found = match narrow.lets_pair_through(&head) {
                    false => None,
                    true if owner == EVERYONE => replaced(view, &head)?,
                    true => candidate(view, &head)?,
                };
                let stopped = match found {
                    _ if examined == SCAN_ROWS_MAX => Some("scan_limit"),
                    None => None,
                    Some(_) if reply.candidates.len() == limit => Some("limit"),
                    Some(found) => match room.take(found.json_bytes() + 2 * position.as_bytes().len(), reply.candidates.is_empty()) {
                        Ok(true) => {
                            reply.candidates.push(found);
                            None
                        }
                        Ok(false) => Some(room.reason()),
                        Err(refusal) => return Ok(Err(refusal)),
                    },
                };
                if let Some(reason) = stopped {
                    reply.truncated = Some(reason.into());
                    reply.next_cursor = Some(cursors.seal(position.as_bytes()));
                    break 'pages;
                }
                examined += 1;
            }
            from = page.next;
            if from.is_none() {
                lane += 1;
            }
        }
        Ok(Ok(reply))
    }

    /// The rows of this page, and the pair that it begins with.
    fn check(&self, cursors: &Cursors) -> Result<(usize, Option<Vec<u8>>), Refusal> {
        if self.token_budget == Some(0) {
            return Err(Refusal::invalid("token_budget", "must be at least 1"));
        }
        let limit = rows(self.limit)?;
        Ok((limit, self.cursor.as_deref().map(|cursor| cursors.open(cursor)).transpose()?))
    }
}

fn candidate(view: &impl Read, private: &Head) -> Result<Option<Contradiction>, StorageError> {
    let shared: Option<Head> = view.get(&private.tenant, &super::pair_id(EVERYONE, &private.entity, &private.key))?;
    let (Some(private), Some(shared)) = (active(view, private)?, shared) else { return Ok(None) };
    Ok(active(view, &shared)?.and_then(|shared| Contradiction::of(&shared, &private, "opposite_polarity_same_entity_key")))
}

/// What the active version of a pair has replaced, where another passport had said it.
fn replaced(view: &impl Read, head: &Head) -> Result<Option<Contradiction>, StorageError> {
    let Some(now) = active(view, head)?.filter(|fact| polarity(&fact.value).is_some()) else { return Ok(None) };
    let Some(before) = &now.supersedes else { return Ok(None) };
    let id = view.get_bytes(Table::Index, by_id(&now.tenant, before).as_bytes())?;
    let id = id.ok_or_else(|| StorageError::corrupt("a fact replaced one that is not there"))?;
    let before = stored(view, &now.tenant, &id)?;
    let is_anothers = before.state() == State::Superseded && before.actor != now.actor;
    Ok(if is_anothers { Contradiction::of(&now, &before, "opposite_polarity_across_versions") } else { None })
}

// ------------------------------------------------------------------ memory_consolidate

/// Replaces facts of one entity and key by a single one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConsolidateFacts {
    pub entity: String,
    pub key: String,
    pub canonical_value: String,
    pub target_fact_ids: BTreeSet<String>,
    pub protected_fact_ids: BTreeSet<String>,
    pub confidence: Confidence,
    pub protected_confidence_floor: Confidence,
    pub consolidation_id: Option<String>,
    /// Absent: the class of the fact that was active.
    pub horizon_class: Option<HorizonClass>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactsConsolidated {
    pub consolidation_id: String,
    pub receipt_id: String,
    pub canonical_fact_id: String,
    pub superseded_fact_ids: Vec<String>,
    /// What the canonical fact was made of.
    pub source_fact_ids: Vec<String>,
}

/// The body of a consolidation's receipt.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    kind: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    consolidation_id: &'a str,
    actor_passport: &'a str,
    entity: &'a str,
    key: &'a str,
    canonical_fact_id: &'a str,
    /// Of the value, which itself does not stand in the receipt: receipts can't be forgotten.
    canonical_hash: &'a str,
    superseded_fact_ids: &'a [String],
    source_fact_ids: &'a [String],
    revision: Revision,
    created_at: String,
}

impl ConsolidateFacts {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactsConsolidated> {
        if let Some(refusal) = flag::refuse_off(tx, flag::CONSOLIDATION, "memory_consolidate")? {
            return Ok(Err(refusal));
        }
        let place = match self.check(at) {
            Ok(place) => place,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let consolidation_id = self.consolidation_id.clone().unwrap_or_else(|| at.new_id("mcp", 0));
        let receipt_id = format!("{RECEIPT}{consolidation_id}");
        if receipt::is_there(tx, &at.caller.tenant, &receipt_id)? {
            let problem = "is that of an earlier consolidation; choose another, or leave it out";
            return Ok(Err(Refusal::invalid("consolidation_id", problem)));
        }
        let head = head(tx, &at.caller.tenant, &place.owner, &place.entity, &self.key)?;
        for id in &self.target_fact_ids {
            if let Some(refusal) = self.refuse_target(tx, at, &place, id)? {
                return Ok(Err(refusal));
            }
        }
        // All targets are active and of this pair, so each is its one active version.
        let Some(target) = active(tx, &head)? else {
            return Err(StorageError::corrupt("a pair without an active version has an active fact"));
        };
        let canonical_hash = format!("blake3:{}", blake3::hash(self.canonical_value.as_bytes()).to_hex());
        let draft = Draft {
            value: self.canonical_value,
            confidence: self.confidence,
            horizon_class: self.horizon_class.unwrap_or(target.horizon_class),
            source_receipt: Some(receipt_id.clone()),
        };
        let (fact, superseded_fact_ids) = next_version(tx, at, head, Some(target), Vec::new(), draft)?;
        let source_fact_ids: Vec<String> = self.target_fact_ids.into_iter().collect();
        let body = receipt::body(&Body {
            schema: "cuecrux.receipt.body.v1",
            kind: "consolidation",
            receipt_id: &receipt_id,
            tenant_id: &at.caller.tenant,
            consolidation_id: &consolidation_id,
            actor_passport: &at.caller.passport,
            entity: &fact.entity,
            key: &fact.key,
            canonical_fact_id: &fact.fact_id,
            canonical_hash: &canonical_hash,
            superseded_fact_ids: &superseded_fact_ids,
            source_fact_ids: &source_fact_ids,
            revision: at.revision,
            created_at: at.wall.to_rfc3339(),
        });
        receipt::append(tx, at, &receipt_id, body, Some(&at.caller.passport))?;
        let about = serde_json::json!({ "receipt_id": receipt_id, "canonical_fact_id": fact.fact_id, "actor": fact.actor });
        event::emit(tx, at, "facts.consolidated", &consolidation_id, about)?;
        let canonical_fact_id = fact.fact_id;
        Ok(Ok(FactsConsolidated { consolidation_id, receipt_id, canonical_fact_id, superseded_fact_ids, source_fact_ids }))
    }

    /// All that can be refused without reading.
    fn check(&self, at: &Stamp) -> Result<Place, Refusal> {
        let place = Place::to_write(&self.entity, false, &at.caller)?;
        if let Some(refusal) = check_name("key", &self.key) {
            return Err(refusal);
        }
        if place.owner != EVERYONE {
            let reason = "private facts are not consolidated".into();
            return Err(Refusal::Protected { id: self.target_fact_ids.first().cloned().unwrap_or_default(), reason });
        }
        check_value("canonical_value", &self.canonical_value)?;
        if self.target_fact_ids.is_empty() {
            return Err(Refusal::invalid("target_fact_ids", "must name at least one fact"));
        }
        for (field, ids) in [("target_fact_ids", &self.target_fact_ids), ("protected_fact_ids", &self.protected_fact_ids)] {
            at_most(field, ids.len(), SUPERSEDES_MAX, "ids")?;
            ids.iter().try_for_each(|id| at_most(field, id.len(), FACT_ID_BYTES_MAX, "bytes"))?;
        }
        let both: Vec<String> = self.target_fact_ids.intersection(&self.protected_fact_ids).map(|id| format!("`{id}`")).collect();
        if !both.is_empty() {
            return Err(Refusal::invalid("target_fact_ids", format!("names what `protected_fact_ids` keeps: {}", some(&both))));
        }
        for (field, share) in [("confidence", self.confidence), ("protected_confidence_floor", self.protected_confidence_floor)] {
            if share > Confidence::FULL {
                return Err(Refusal::invalid(field, "must be from 0 to 1"));
            }
        }
        let Some(id) = &self.consolidation_id else { return Ok(place) };
        at_most("consolidation_id", id.len(), NAME_BYTES_MAX - RECEIPT.len(), "bytes")?;
        check_name("consolidation_id", id).map_or(Ok(place), Err)
    }

    /// Why a target can't be retired, in the documented order.
    fn refuse_target(&self, view: &impl Read, at: &Stamp, place: &Place, id: &str) -> Result<Option<Refusal>, StorageError> {
        let Some(fact) = visible(view, &at.caller, id)? else { return Ok(Some(Refusal::not_found("fact", id))) };
        if let Some(refusal) = not_active(&fact) {
            return Ok(Some(refusal));
        }
        let protected = |reason: String| Ok(Some(Refusal::Protected { id: id.into(), reason }));
        if fact.owner != EVERYONE {
            return protected("it is private".into());
        }
        if fact.entity != place.entity || fact.key != self.key {
            let problem = format!("names `{id}`, which is not the `{}` of `{}`", shown(&self.key), shown(&self.entity));
            return Ok(Some(Refusal::invalid("target_fact_ids", problem)));
        }
        if is_pinned(view, &at.caller, &fact)? {
            return protected("you pinned it".into());
        }
        if let Some(receipt) = fact.source_receipt.as_ref().filter(|receipt| !receipt.starts_with(EDIT)) {
            return protected(format!("it was learnt from the receipt `{}`", shown(receipt)));
        }
        if fact.confidence >= self.protected_confidence_floor {
            let (confidence, floor) = (fact.confidence.to_unit(), self.protected_confidence_floor.to_unit());
            return protected(format!("its confidence of {confidence} is at or over the floor of {floor}"));
        }
        Ok(None)
    }
}

/// What stands before the id of a consolidation in the id of its receipt.
const RECEIPT: &str = "consolidation:";
