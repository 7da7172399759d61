//! Freshness: how old facts are beside their horizons, which could go, and how their clocks are set anew.
//!
//! Age counts from the instant a fact was stored or last reverified. Nothing here is computed when it is written: a fact is
//! stale by the clock of whoever reads it.
//!
//! Decisions:
//! * A fact whose instant lies ahead of the reader's clock is `unknown`, unless it never goes stale.
//! * Only an active version has a clock to set. Its horizon is set in place and its value stays, so both are no new version.
//! * The proof of a reverification is a receipt, and a fact of the service under `__reverify_receipts__::`, private where the
//!   reverified one is.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::narrow::Narrow;
use super::page::{self, Asked, Page};
use super::place::{EVERYONE, daemon_owned, filed_name, off_panel, only_the_service};
use super::rank::State;
use super::recall::json_text_bytes;
use super::{
    Confidence, ConsultedFact, Draft, FACT_ID_BYTES_MAX, Fact, HorizonClass, at_most, change, envelope_bytes, not_active, store_evidence,
    visible,
};
use crate::cursor::Cursors;
use crate::event;
use crate::flag;
use crate::limit::FRESHNESS_TOKENS_DEFAULT;
use crate::receipt;
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, Tx};

/// What the policy and the instant beside the rows take of a reply.
const FRAME_BYTES: usize = 128;

/// `fresh`, `stale` or `unknown`.
pub(super) fn freshness(fact: &Fact, now: UnixMs) -> &'static str {
    match (fact.horizon_class, fact.anchor()) {
        (HorizonClass::None, _) => "fresh",
        (_, anchor) if anchor > now => "unknown",
        (class, anchor) if anchor < class.stale_before(now) => "stale",
        _ => "fresh",
    }
}

// ------------------------------------------------------------------ memory_freshness

/// How fresh the facts that the caller can see are, in the order of recall. Reads only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShowFreshness {
    pub entity: Option<String>,
    pub key: Option<String>,
    pub top_k: u64,
    pub token_budget: Option<u64>,
    pub cursor: Option<String>,
    #[serde(default)]
    pub entity_prefix: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FreshnessRow {
    pub fact_id: String,
    pub entity: String,
    pub key: String,
    pub horizon_class: HorizonClass,
    pub freshness: String,
    pub age_ms: u64,
    pub stored_at: UnixMs,
    pub reverified_at: Option<UnixMs>,
    pub actor: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactFreshness {
    pub rows: Vec<FreshnessRow>,
    /// What an audit envelope may tell of the rows.
    #[serde(default)]
    pub consulted: Vec<ConsultedFact>,
    /// The instant to which the rows belong: that of the first page.
    pub now: UnixMs,
    pub next_cursor: Option<String>,
    /// As in [`FactRows`](super::FactRows).
    pub truncated: Option<String>,
}

impl FreshnessRow {
    fn of(fact: Fact, now: UnixMs) -> Self {
        Self {
            entity: filed_name(&fact.owner, &fact.entity),
            freshness: freshness(&fact, now).into(),
            age_ms: now.0.saturating_sub(fact.anchor().0),
            fact_id: fact.fact_id,
            key: fact.key,
            horizon_class: fact.horizon_class,
            stored_at: fact.stored_at,
            reverified_at: fact.reverified_at,
            actor: fact.actor,
        }
    }

    /// The most bytes that the row can have as compact JSON with the names of this struct, its age in hours.
    pub fn json_bytes(&self) -> usize {
        const NAMES: &str =
            r#"{"fact_id":,"entity":,"key":,"horizon_class":"","freshness":"","age_hours":,"stored_at":"","reverified_at":"","actor":}"#;
        const AGE_INSTANTS: usize = 24 + 24 + 24;
        let words = self.horizon_class.word().len() + self.freshness.len();
        let texts = [&self.fact_id, &self.entity, &self.key, &self.actor].into_iter().map(|text| json_text_bytes(text));
        NAMES.len() + AGE_INSTANTS + words + texts.sum::<usize>()
    }
}

impl ShowFreshness {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<FactFreshness> {
        if let Some(refusal) = flag::refuse_off(view, flag::FRESHNESS, "memory_freshness")? {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("freshness", &at.caller, &(&self.entity, &self.entity_prefix, &self.key));
        let (entity, prefix, key) = (self.entity.as_deref(), self.entity_prefix.as_deref(), self.key.as_deref());
        let owners = [EVERYONE, &at.caller.passport];
        let narrow = match Narrow::check(entity, prefix, key, &owners, &at.caller) {
            Ok(narrow) => narrow,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let asked = Asked {
            top_k: self.top_k,
            token_budget: self.token_budget,
            default_tokens: Some(FRESHNESS_TOKENS_DEFAULT),
            cursor: self.cursor.as_deref(),
        };
        let mut start = match asked.check(&cursors, at) {
            Ok(start) => start,
            Err(refusal) => return Ok(Err(refusal)),
        };
        start.room.reserve(FRAME_BYTES + envelope_bytes(&at.caller));
        let now = start.now;
        let mut walk = narrow.active(view, at, now, start.after)?;
        let page = page::fill(view, at, &cursors, start, &mut walk, |_, fact| {
            if !narrow.lets_through(&fact) {
                return Ok(None);
            }
            let consulted = ConsultedFact::of(&fact, now);
            let row = FreshnessRow::of(fact, now);
            let bytes = row.json_bytes() + consulted.as_ref().map_or(0, ConsultedFact::json_bytes);
            Ok(Some(((row, consulted), bytes)))
        })?;
        Ok(page.map(|Page { rows, next_cursor, truncated }| {
            let (rows, consulted): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            FactFreshness { rows, consulted: consulted.into_iter().flatten().collect(), now, next_cursor, truncated }
        }))
    }
}

// ------------------------------------------------------------------ memory_sweep_candidates

/// Facts that are stale, superseded or both. Reads only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepCandidates {
    pub top_k: u64,
    pub token_budget: Option<u64>,
    pub cursor: Option<String>,
    #[serde(default)]
    pub entity: Option<String>,
    #[serde(default)]
    pub entity_prefix: Option<String>,
    #[serde(default)]
    pub key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepCandidate {
    pub row: FreshnessRow,
    /// `stale`, `superseded` or `stale+superseded`.
    pub reason: String,
    pub superseded_by: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepCandidatesFound {
    pub rows: Vec<SweepCandidate>,
    /// The instant to which the rows belong: that of the first page.
    pub now: UnixMs,
    pub next_cursor: Option<String>,
    /// As in [`FactRows`](super::FactRows).
    pub truncated: Option<String>,
}

impl SweepCandidate {
    /// The most bytes that the row can have as compact JSON: those of its fact, and what is added here.
    pub fn json_bytes(&self) -> usize {
        const NAMES: &str = r#","reason":"","superseded_by":"#;
        self.row.json_bytes() + NAMES.len() + self.reason.len() + self.superseded_by.as_deref().map_or(0, json_text_bytes)
    }
}

impl SweepCandidates {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SweepCandidatesFound> {
        if let Some(refusal) = flag::refuse_off(view, flag::FRESHNESS, "memory_sweep_candidates")? {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("sweep candidates", &at.caller, &(&self.entity, &self.entity_prefix, &self.key));
        let (entity, prefix, key) = (self.entity.as_deref(), self.entity_prefix.as_deref(), self.key.as_deref());
        let owners = [EVERYONE, &at.caller.passport];
        let narrow = match Narrow::check(entity, prefix, key, &owners, &at.caller) {
            Ok(narrow) => narrow,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let asked = Asked {
            top_k: self.top_k,
            token_budget: self.token_budget,
            default_tokens: Some(FRESHNESS_TOKENS_DEFAULT),
            cursor: self.cursor.as_deref(),
        };
        let mut start = match asked.check(&cursors, at) {
            Ok(start) => start,
            Err(refusal) => return Ok(Err(refusal)),
        };
        start.room.reserve(FRAME_BYTES);
        let now = start.now;
        let parts = [(State::Active, false), (State::Superseded, true), (State::Superseded, false)];
        let mut walk = narrow.parts(view, at, &parts, now, start.after)?;
        let page = page::fill(view, at, &cursors, start, &mut walk, |_, fact| {
            // What the service wrote is evidence, and stays.
            if daemon_owned(&fact.entity).is_some() || !narrow.lets_through(&fact) {
                return Ok(None);
            }
            let superseded_by = fact.superseded_by.clone();
            let row = FreshnessRow::of(fact, now);
            let reason = match (row.freshness.as_str(), superseded_by.is_some()) {
                ("stale", true) => "stale+superseded",
                ("stale", false) => "stale",
                _ => "superseded",
            };
            let candidate = SweepCandidate { row, reason: reason.into(), superseded_by };
            let bytes = candidate.json_bytes();
            Ok(Some((candidate, bytes)))
        })?;
        Ok(page.map(|Page { rows, next_cursor, truncated }| SweepCandidatesFound { rows, now, next_cursor, truncated }))
    }
}

// ------------------------------------------------------------------ memory_set_horizon

/// Sets how fast an active fact goes stale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetHorizon {
    pub fact_id: String,
    pub horizon_class: HorizonClass,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HorizonSet {
    pub fact_id: String,
    pub horizon_class: HorizonClass,
}

impl SetHorizon {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<HorizonSet> {
        if let Some(refusal) = flag::refuse_off(tx, flag::FRESHNESS, "memory_set_horizon")? {
            return Ok(Err(refusal));
        }
        let Self { fact_id, horizon_class } = self;
        if let Err(refusal) = at_most("fact_id", fact_id.len(), FACT_ID_BYTES_MAX, "bytes") {
            return Ok(Err(refusal));
        }
        let Some(fact) = visible(tx, &at.caller, &fact_id)? else {
            return Ok(Err(Refusal::not_found("fact", fact_id)));
        };
        let reserved = off_panel(&fact.owner, &fact.entity).map(|prefix| Refusal::Denied {
            problem: format!("the horizon of facts under `{prefix}` is not set here; where you may, name it in `store_fact`"),
        });
        if let Some(refusal) = reserved.or_else(|| not_active(&fact)) {
            return Ok(Err(refusal));
        }
        if fact.horizon_class != horizon_class {
            let mut about = fact.about(&at.caller.passport);
            about["horizon_class"] = json!(horizon_class);
            change(tx, fact, |fact| fact.horizon_class = horizon_class);
            event::emit(tx, at, "fact.horizon_set", &fact_id, about)?;
        }
        Ok(Ok(HorizonSet { fact_id, horizon_class }))
    }
}

// ------------------------------------------------------------------ memory_reverify

/// Confirms an active fact: its age counts anew, and its value stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReverifyFact {
    pub fact_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactReverified {
    pub fact_id: String,
    pub receipt_id: String,
    pub reverified_at: UnixMs,
}

/// The class of the receipt.
const REVERIFY: &str = "Reverify";

/// The body of a reverification's receipt.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    kind: &'a str,
    class: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    fact_id: &'a str,
    /// Of the value that was confirmed, which itself does not stand in the receipt: receipts can't be forgotten. Whoever knows
    /// a receipt's id can read it, so that a private value is not even hashed, lest it is guessed.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hash: Option<String>,
    reverified_by: &'a str,
    reverified_at: &'a str,
    revision: Revision,
}

impl ReverifyFact {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactReverified> {
        if let Some(refusal) = flag::refuse_off(tx, flag::FRESHNESS, "memory_reverify")? {
            return Ok(Err(refusal));
        }
        let fact_id = self.fact_id;
        if let Err(refusal) = at_most("fact_id", fact_id.len(), FACT_ID_BYTES_MAX, "bytes") {
            return Ok(Err(refusal));
        }
        let Some(fact) = visible(tx, &at.caller, &fact_id)? else {
            return Ok(Err(Refusal::not_found("fact", fact_id)));
        };
        let evidence = daemon_owned(&fact.entity).map(|prefix| Refusal::Denied { problem: only_the_service(prefix) });
        if let Some(refusal) = evidence.or_else(|| not_active(&fact)) {
            return Ok(Err(refusal));
        }
        let (receipt_id, by, reverified_at) = (at.new_id("rev", 0), &at.caller.passport, at.wall.to_rfc3339());
        let body = receipt::body(&Body {
            schema: "cuecrux.receipt.body.v1",
            kind: "reverify",
            class: REVERIFY,
            receipt_id: &receipt_id,
            tenant_id: &at.caller.tenant,
            fact_id: &fact_id,
            value_hash: (fact.owner == EVERYONE).then(|| format!("blake3:{}", blake3::hash(fact.value.as_bytes()).to_hex())),
            reverified_by: by,
            reverified_at: &reverified_at,
            revision: at.revision,
        });
        receipt::append(tx, at, &receipt_id, body, Some(by))?;
        let evidence = json!({
            "class": REVERIFY, "fact_id": fact_id, "receipt_id": receipt_id, "reverified_at": reverified_at, "reverified_by": by,
        });
        let draft = Draft {
            value: evidence.to_string(),
            confidence: Confidence::FULL,
            horizon_class: HorizonClass::Stable,
            source_receipt: Some(receipt_id.clone()),
        };
        store_evidence(tx, at, &fact.owner, &format!("__reverify_receipts__::{fact_id}"), "receipt", draft)?;
        let about = fact.about(by);
        change(tx, fact, |fact| fact.reverified_at = Some(at.wall));
        event::emit(tx, at, "fact.reverified", &fact_id, about)?;
        Ok(Ok(FactReverified { fact_id, receipt_id, reverified_at: at.wall }))
    }
}
