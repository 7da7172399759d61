//! Recall: the active facts that match, best first.
//!
//! A match is a fact that the filters let through and that holds at least one of the query's words. Effective confidence, age
//! and freshness are those of the instant of the first page, which the cursor keeps, so that the order stands still while a
//! caller pages. Facts whose key or entity is the query itself, in any letter case, come before all others, in the same order among
//! themselves: who asks for a name means what has it, not what tells of it. `as_of` only filters: it asks which facts were valid then, deleted ones included, and not how fresh they were.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::page::{self, Asked, Page, Start};
use super::place::{Place, Region, check_entity, check_entity_prefix, filed_name};
use super::rank::{Order, State, Walk, lane};
use super::searchable::{best_about, fact_at};
use super::{Confidence, ConsultedFact, Fact, Head, HorizonClass, at_most, envelope_bytes, pair_id};
use crate::cursor::Cursors;
use crate::flag;
use crate::identity::check_name;
use crate::limit::{NAME_BYTES_MAX, SCAN_ROWS_MAX, TEXT_BYTES_MAX};
use crate::pointer::{self, Pointer};
use crate::record::{ReadRecords, Record};
use crate::refusal::{Applied, Refusal};
use crate::search::words::{folded_name, grams_within};
use crate::search::{self, Changes};
use crate::stamp::{ReadStamp, Revision, UnixMs};
use crate::tx::{Read, StorageError};

/// Finds active facts by keywords, entity or key, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryFacts {
    /// Words of which a fact has to hold one in its value, key or entity, in any letter case.
    pub query: Option<String>,
    pub entity: Option<String>,
    pub entity_prefix: Option<String>,
    pub key: Option<String>,
    /// Rows of this reply at most.
    pub top_k: u64,
    /// Tokens (4 bytes of compact JSON) that the whole reply may have.
    pub token_budget: Option<u64>,
    pub include_superseded: bool,
    pub as_of: Option<UnixMs>,
    pub min_effective_confidence: Option<Confidence>,
    pub cursor: Option<String>,
    /// What the serving node's index names. A caller's is replaced.
    #[serde(default)]
    pub hits: FactHits,
    /// With a pointer for each row.
    #[serde(default)]
    pub with_pointers: bool,
    /// With what an audit envelope tells, if its flag is on.
    #[serde(default)]
    pub with_envelope: bool,
}

/// What an index is asked for the words of a recall.
#[derive(Clone, Debug, PartialEq)]
pub struct FactsAsked {
    /// The query as one name.
    pub name: String,
    /// For each word, the runs of signs that a text has to have in order to hold it; a word without any holds back all.
    pub grams: Vec<Vec<String>>,
}

/// Active facts, by an index: keys of their records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FactHits {
    /// Whose key is the query.
    pub named: Vec<Vec<u8>>,
    /// All that can hold one of the words, if they are not too many.
    pub holding: Option<Vec<Vec<u8>>>,
    /// Every change up to this revision is in the index.
    pub indexed_through: Revision,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactRow {
    pub fact_id: String,
    /// The filed name: `__agent::<passport>::<entity>` for a private fact.
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
    /// Shown when superseded facts were asked for.
    pub superseded_by: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactRows {
    pub rows: Vec<FactRow>,
    /// Present whenever a floor was given: the matches under it among what this reply examined. All of them, once
    /// `next_cursor` is absent.
    pub filtered_below_threshold: Option<u64>,
    pub next_cursor: Option<String>,
    /// Why the rows end although there are more: `top_k`, `reply_bytes`, `token_budget` or `scan_limit`.
    pub truncated: Option<String>,
    /// Beside each row, if they were asked for.
    #[serde(default)]
    pub pointers: Vec<Pointer>,
    /// What an audit envelope may tell of the rows; there when it was asked for and its flag is on.
    #[serde(default)]
    pub consulted: Option<Vec<ConsultedFact>>,
}

/// Where a word of a query stands in a fact: `value`, `key` and `entity`.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundBy {
    pub word: String,
    pub itself: Vec<&'static str>,
    /// As a part of a longer word.
    pub within: Vec<&'static str>,
}

impl FactRow {
    /// Why a query found it: its words that stand in the fact, each with where.
    pub fn found_by(&self, query: &str) -> Vec<FoundBy> {
        let texts = [("value", &self.value), ("key", &self.key), ("entity", &self.entity)]
            .map(|(name, text)| (name, text.to_lowercase(), search::words::words(text)));
        let found = words(query).into_iter().map(|word| {
            let pieces = search::words::pieces(&word);
            let mut found = FoundBy { word, itself: Vec::new(), within: Vec::new() };
            for (name, text, words) in &texts {
                if !pieces.is_empty() && pieces.iter().all(|piece| search::words::hold(words, piece)) {
                    found.itself.push(*name);
                } else if text.contains(&found.word) {
                    found.within.push(*name);
                }
            }
            found
        });
        found.filter(|found| !found.itself.is_empty() || !found.within.is_empty()).collect()
    }

    /// The most bytes that the row can have as compact JSON with the names of this struct, its age in hours, and confidences
    /// and the instant as people read them.
    pub fn json_bytes(&self) -> usize {
        const NAMES: &str = r#"{"fact_id":,"entity":,"key":,"value":,"version":,"confidence":,"effective_confidence":,"horizon_class":"","freshness":"","age_hours":,"stored_at":"","actor":,"superseded_by":}"#;
        const VERSION_CONFIDENCES_AGE_INSTANT: usize = 20 + 8 + 8 + 24 + 24;
        let texts = [&self.fact_id, &self.entity, &self.key, &self.value, &self.actor];
        let words = self.horizon_class.word().len() + self.freshness.len();
        let superseded_by = self.superseded_by.as_deref().map_or(0, json_text_bytes);
        let texts: usize = texts.into_iter().map(|text| json_text_bytes(text)).sum();
        NAMES.len() + VERSION_CONFIDENCES_AGE_INSTANT + words + superseded_by + texts
    }
}

/// The bytes of a text as JSON: quoted, quotes and backslashes and control characters escaped.
pub(crate) fn json_text_bytes(text: &str) -> usize {
    let escaped = |byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0C => 2,
        0x00..=0x1F => 6,
        _ => 1,
    };
    2 + text.bytes().map(escaped).sum::<usize>()
}

/// Facts of one name that are looked at, those that may hold a word, and changes that no index knows yet. Beyond the second a word is
/// common, and a walk meets it soon.
pub const NAMED_MAX: usize = 200;
pub const HOLDING_MAX: usize = 1_000;
const LATE_MAX: usize = 1_000;

impl QueryFacts {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<FactRows> {
        let cursors = self.cursors(at);
        let mut start = match self.check(&cursors, at) {
            Ok(start) => start,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let is_enveloped = self.with_envelope && flag::is_on(view, flag::AUDIT_ENVELOPE)?;
        if is_enveloped {
            start.room.reserve(envelope_bytes(&at.caller));
        }
        if self.with_pointers {
            start.room.reserve(pointer::FRAME_BYTES);
        }
        let filter = Filter::new(&self, at);
        let now = start.now;
        let late = self.late(view, at)?;
        let mut walk = match self.holding(view, at, now, late.as_deref(), start.after)? {
            Some(walk) => walk,
            None => self.walk(view, at, now, start.after)?,
        };
        let named = self.named(view, at, now, late.unwrap_or_default())?;
        let named_ids: BTreeSet<Vec<u8>> = named.iter().map(|(_, id)| id.clone()).collect();
        walk.and_set(named, start.after);
        let floor = self.min_effective_confidence.map_or(0, |floor| floor.0.saturating_mul(2));
        let mut below = 0;
        let page = page::fill(view, at, &cursors, start, &mut walk, |order, fact| {
            let came_first = !order.is_named() && named_ids.contains(fact.id().as_bytes());
            if came_first || !filter.lets_through(&fact) {
                return Ok(None);
            }
            if order.strength() < floor {
                below += 1;
                return Ok(None);
            }
            let consulted = if is_enveloped { ConsultedFact::of(&fact, now) } else { None };
            let pointer = self.with_pointers.then(|| Pointer::of(&fact.fact_id, &fact.value));
            let row = row(fact, now, self.include_superseded);
            let beside = consulted.as_ref().map_or(0, ConsultedFact::json_bytes) + pointer.as_ref().map_or(0, Pointer::json_bytes);
            let bytes = row.json_bytes() + beside;
            Ok(Some(((row, pointer, consulted), bytes)))
        })?;
        Ok(page.map(|Page { rows, next_cursor, truncated }| {
            let mut facts = FactRows {
                rows: Vec::new(),
                filtered_below_threshold: self.min_effective_confidence.map(|_| below),
                next_cursor,
                truncated,
                pointers: Vec::new(),
                consulted: is_enveloped.then(Vec::new),
            };
            for (row, pointer, consulted) in rows {
                facts.rows.push(row);
                facts.pointers.extend(pointer);
                if let Some(all) = &mut facts.consulted {
                    all.extend(consulted);
                }
            }
            facts
        }))
    }

    fn cursors(&self, at: &ReadStamp) -> Cursors {
        let filters =
            (&self.query, &self.entity, &self.entity_prefix, &self.key, self.include_superseded, self.as_of, self.min_effective_confidence);
        Cursors::of("facts", &at.caller, &filters)
    }

    fn check(&self, cursors: &Cursors, at: &ReadStamp) -> Result<Start, Refusal> {
        at_most("query", self.query.as_ref().map_or(0, String::len), TEXT_BYTES_MAX, "bytes")?;
        for (field, name) in [("entity", &self.entity), ("key", &self.key)] {
            if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                return Err(Refusal::invalid(field, "must not be empty; leave it out to match all"));
            }
        }
        let (entity, prefix, key) = (self.entity.as_deref(), self.entity_prefix.as_deref(), self.key.as_deref());
        if let Some(refusal) = entity
            .and_then(|entity| check_entity(entity, &at.caller))
            .or_else(|| prefix.and_then(|prefix| check_entity_prefix(prefix, &at.caller)))
            .or_else(|| key.and_then(|key| check_name("key", key)))
        {
            return Err(refusal);
        }
        let asked = Asked { top_k: self.top_k, token_budget: self.token_budget, default_tokens: None, cursor: self.cursor.as_deref() };
        asked.check(cursors, at)
    }

    /// What an index is to be asked before this runs, if it can help.
    pub fn asked(&self) -> Option<FactsAsked> {
        // One entity's facts are few.
        let name = folded_name(self.name().filter(|_| self.entity.is_none())?);
        let is_of_now = self.as_of.is_none() && !self.include_superseded;
        let words = self.query.iter().flat_map(|query| query.split_whitespace()).filter(|_| is_of_now);
        Some(FactsAsked { name, grams: words.map(grams_within).collect() })
    }

    /// Keys of what changed since the index; nothing when that is too much, or there is none.
    fn late(&self, view: &impl Read, at: &ReadStamp) -> Result<Option<Vec<Vec<u8>>>, StorageError> {
        let since = self.hits.indexed_through;
        if since == Revision(0) || self.entity.is_some() {
            return Ok(None);
        }
        Ok(match search::changes_after(view, since, at.revision, LATE_MAX)? {
            Changes::Keys { keys, through } => Some(keys).filter(|_| through >= at.revision),
            Changes::Gone => None,
        })
    }

    /// The facts that can hold a word, where the index and what came after it are known to name them all.
    fn holding<'a, V: Read>(
        &self,
        view: &V,
        at: &ReadStamp,
        now: UnixMs,
        late: Option<&[Vec<u8>]>,
        after: Option<Order>,
    ) -> Result<Option<Walk<'a, V>>, StorageError> {
        let (Some(holding), Some(late)) = (&self.hits.holding, late) else { return Ok(None) };
        let keys: BTreeSet<&Vec<u8>> = holding.iter().chain(late).collect();
        let mut found = Vec::new();
        for key in keys {
            let fact = fact_at(view, key)?.filter(|fact| fact.tenant == at.caller.tenant && fact.is_visible_to(&at.caller));
            if let Some(fact) = fact.filter(|fact| fact.state() == State::Active) {
                found.push((Order::of(&fact, now), fact.id().into_bytes()));
            }
        }
        Ok(Some(Walk::set(found, after)))
    }

    fn name(&self) -> Option<&str> {
        // A longer text is no name of anything.
        self.query.as_deref().map(str::trim).filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX)
    }

    /// Active facts that have the query as their name.
    fn named(&self, view: &impl Read, at: &ReadStamp, now: UnixMs, late: Vec<Vec<u8>>) -> Result<Vec<(Order, Vec<u8>)>, StorageError> {
        let Some(name) = self.name() else { return Ok(Vec::new()) };
        let tenant = &at.caller.tenant;
        if let Some(entity) = &self.entity {
            let mut found = Vec::new();
            for place in Place::to_read(entity, &at.caller) {
                found.extend(active_of_pair(view, tenant, &place, name)?);
            }
            return Ok(found.into_iter().map(|fact| (Order::of(&fact, now).named(), fact.id().into_bytes())).collect());
        }
        let keys: BTreeSet<Vec<u8>> = self.hits.named.iter().cloned().chain(late).collect();
        let folded = folded_name(name);
        let mut found = Vec::new();
        for key in keys.into_iter().chain(best_about(view, at, name, NAMED_MAX)?) {
            let fact = fact_at(view, &key)?.filter(|fact| fact.tenant == *tenant && fact.is_visible_to(&at.caller));
            let has_it =
                |fact: &Fact| fact.entity == name || filed_name(&fact.owner, &fact.entity) == name || folded_name(&fact.key) == folded;
            if let Some(fact) = fact.filter(|fact| fact.state() == State::Active && has_it(fact)) {
                found.push((Order::of(&fact, now).named(), fact.id().into_bytes()));
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The cheapest way that meets all matches in order.
    fn walk<'a, V: Read>(&self, view: &'a V, at: &ReadStamp, now: UnixMs, after: Option<Order>) -> Result<Walk<'a, V>, StorageError> {
        let tenant = &at.caller.tenant;
        let states: &[State] = match (self.as_of, self.include_superseded) {
            (Some(_), _) => &[State::Active, State::Superseded, State::Deleted],
            (None, true) => &[State::Active, State::Superseded],
            (None, false) => &[State::Active],
        };
        if let Some(entity) = &self.entity {
            let places = Place::to_read(entity, &at.caller);
            if let (Some(key), [State::Active]) = (&self.key, states) {
                return one_pair(view, tenant, &places, key, now, after);
            }
            let lanes: Vec<_> = places.iter().map(|place| lane(tenant, &place.owner, Some(&place.entity))).collect();
            return Walk::lanes(view, &lanes, states, now, after);
        }
        if let Some(prefix) = self.entity_prefix.as_ref().filter(|prefix| !prefix.is_empty()) {
            let regions = Region::to_read(prefix, &at.caller);
            if let Some(walk) = Walk::region(view, tenant, &regions, states, now, after, SCAN_ROWS_MAX)? {
                return Ok(walk);
            }
        }
        let lanes = [super::EVERYONE, &at.caller.passport].map(|owner| lane(tenant, owner, None));
        Walk::lanes(view, &lanes, states, now, after)
    }
}

/// The active versions of one pair: the tenant's and the caller's own.
pub(super) fn one_pair<'a, V: Read>(
    view: &'a V,
    tenant: &str,
    places: &[Place],
    key: &str,
    now: UnixMs,
    after: Option<Order>,
) -> Result<Walk<'a, V>, StorageError> {
    let mut found = Vec::new();
    for place in places {
        let fact = active_of_pair(view, tenant, place, key)?;
        found.extend(fact.map(|fact| (Order::of(&fact, now), fact.id().into_bytes())));
    }
    Ok(Walk::set(found, after))
}

fn active_of_pair(view: &impl Read, tenant: &str, place: &Place, key: &str) -> Result<Option<Fact>, StorageError> {
    let head: Option<Head> = view.get(tenant, &pair_id(&place.owner, &place.entity, key))?;
    Ok(head.map(|head| super::active(view, &head)).transpose()?.flatten())
}

/// What a query looks for.
fn words(query: &str) -> Vec<String> {
    query.split_whitespace().map(str::to_lowercase).collect()
}

/// What a fact has to be like, apart from its state.
struct Filter<'a> {
    words: Vec<String>,
    key: Option<&'a str>,
    regions: Option<Vec<Region>>,
    as_of: Option<UnixMs>,
}

impl<'a> Filter<'a> {
    fn new(query: &'a QueryFacts, at: &ReadStamp) -> Self {
        Self {
            words: query.query.as_deref().map(words).unwrap_or_default(),
            key: query.key.as_deref(),
            regions: query.entity_prefix.as_deref().map(|prefix| Region::to_read(prefix, &at.caller)),
            as_of: query.as_of,
        }
    }

    fn lets_through(&self, fact: &Fact) -> bool {
        self.key.is_none_or(|key| key == fact.key)
            && self.as_of.is_none_or(|instant| fact.valid_at(instant))
            && self.regions.as_ref().is_none_or(|regions| regions.iter().any(|region| region.holds(&fact.owner, &fact.entity)))
            && self.has_a_word(fact)
    }

    fn has_a_word(&self, fact: &Fact) -> bool {
        if self.words.is_empty() {
            return true;
        }
        let texts = [&fact.value, &fact.key, &fact.entity].map(|text| text.to_lowercase());
        self.words.iter().any(|word| texts.iter().any(|text| text.contains(word)))
    }
}

fn row(fact: Fact, now: UnixMs, include_superseded: bool) -> FactRow {
    let anchor = fact.anchor();
    let is_stale = anchor < fact.horizon_class.stale_before(now);
    FactRow {
        entity: filed_name(&fact.owner, &fact.entity),
        fact_id: fact.fact_id,
        key: fact.key,
        value: fact.value,
        version: fact.version,
        confidence: fact.confidence,
        effective_confidence: if is_stale { Confidence(fact.confidence.0 / 2) } else { fact.confidence },
        horizon_class: fact.horizon_class,
        freshness: if is_stale { "stale" } else { "fresh" }.into(),
        age_ms: now.0.saturating_sub(anchor.0),
        stored_at: fact.stored_at,
        actor: fact.actor,
        superseded_by: fact.superseded_by.filter(|_| include_superseded),
    }
}
