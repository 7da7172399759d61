//! Acknowledged use: which facts an agent consulted in one of its turns, and the receipt that proves it said so.
//!
//! Invariants:
//! * A turn belongs to the agent that tells of it; another agent's turn of the same name is another one.
//! * Telling the same of a turn again answers the receipt that there is. Telling something else makes a new receipt, which names
//!   the one it takes the place of; the earlier one stays in the chain.
//! * A receipt and a reply name no fact that is private or of operations: receipts are the tenant's, and are never forgotten.
//!
//! Decision: another agent's private fact counts as not found, since to others its id looks like one that never existed. So no
//! fact is ever told to exist and not be visible.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::codec;
use crate::event;
use crate::fact::{Confidence, Consulted, ConsultedFact, at_most, consulted};
use crate::flag::{self, refuse_off};
use crate::identity::{check_name, check_text};
use crate::key::Key;
use crate::limit::{ACKNOWLEDGED_MAX, ACKNOWLEDGED_ROWS_BYTES};
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Revision, Stamp};
use crate::tx::Tx;

/// What the facts were consulted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseIntent {
    Answer,
    Decision,
    ToolCall,
    Implicit,
}

impl UseIntent {
    pub fn word(self) -> &'static str {
        match self {
            UseIntent::Answer => "answer",
            UseIntent::Decision => "decision",
            UseIntent::ToolCall => "tool_call",
            UseIntent::Implicit => "implicit",
        }
    }

    /// How sure an agent is that says nothing of it: of an implicit use not very.
    fn confidence(self, given: Option<Confidence>) -> Option<Confidence> {
        given.or_else(|| (self == UseIntent::Implicit).then_some(Confidence(300_000)))
    }
}

/// What an agent told of one turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TurnUse {
    tenant: String,
    passport: String,
    turn_id: String,
    receipt_id: String,
    /// BLAKE3, in hex, of all that was told.
    told_hash: String,
    revision: Revision,
}

impl Record for TurnUse {
    const KIND: Kind = Kind::TurnUse;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport).text(&self.turn_id)
    }
}

/// Tells which facts the caller consulted in a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcknowledgeUse {
    pub turn_id: String,
    pub fact_ids: Vec<String>,
    pub intent: UseIntent,
    pub retrieved_chunk_ids: Vec<String>,
    pub confidence: Option<Confidence>,
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UseAcknowledged {
    pub receipt_id: String,
    /// The facts that the receipt names, in the order in which they were told, as far as they fit a reply.
    pub used: Vec<ConsultedFact>,
    /// How many it names in all.
    pub used_total: u64,
    /// Private facts of the caller, and facts of operations.
    pub redacted: u64,
    /// What does not exist for the caller, or is deleted.
    pub not_found: u64,
}

#[derive(Serialize)]
struct Entry<'a> {
    fact_id: &'a str,
    entity: &'a str,
}

/// The body of the receipt. Field order is part of the bytes.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    kind: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    turn_id: &'a str,
    actor_passport: &'a str,
    intent: &'a str,
    created_at: &'a str,
    entries: Vec<Entry<'a>>,
    retrieved_chunk_ids: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces_receipt_id: Option<&'a str>,
}

impl AcknowledgeUse {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<UseAcknowledged> {
        if let Some(refusal) = refuse_off(tx, flag::MEMORY_ACK, "memory_acknowledge_use")? {
            return Ok(Err(refusal));
        }
        if let Err(refusal) = self.check() {
            return Ok(Err(refusal));
        }
        let (mut used, mut redacted, mut not_found, mut seen) = (Vec::new(), 0, 0, BTreeSet::new());
        for fact_id in self.fact_ids.iter().filter(|id| seen.insert(*id)) {
            match consulted(tx, &at.caller, fact_id, at.wall)? {
                Consulted::Shown(fact) => used.push(fact),
                Consulted::Reserved => redacted += 1,
                Consulted::NotFound => not_found += 1,
            }
        }
        let receipt_id = self.prove(tx, at, &used)?;
        let used_total = used.len() as u64;
        let mut left = ACKNOWLEDGED_ROWS_BYTES;
        used.retain(|fact| {
            let fits = fact.json_bytes() <= left;
            left = if fits { left - fact.json_bytes() } else { 0 };
            fits
        });
        Ok(Ok(UseAcknowledged { receipt_id, used, used_total, redacted, not_found }))
    }

    /// The receipt of what was told, which is there already when it was told before.
    fn prove(&self, tx: &mut impl Tx, at: &Stamp, used: &[ConsultedFact]) -> Result<String, crate::StorageError> {
        let (tenant, passport) = (&at.caller.tenant, &at.caller.passport);
        let ids: Vec<&str> = used.iter().map(|fact| fact.fact_id.as_str()).collect();
        let told = codec::encode(&(&ids, self.intent, &self.retrieved_chunk_ids, self.confidence, &self.note));
        let told_hash = blake3::hash(&told).to_hex().to_string();
        let known: Option<TurnUse> = tx.get(tenant, &Key::new().text(passport).text(&self.turn_id))?;
        if let Some(known) = known.as_ref().filter(|known| known.told_hash == told_hash) {
            return Ok(known.receipt_id.clone());
        }
        let receipt_id = at.new_id("mu", 0);
        let body = receipt::body(&Body {
            schema: "cuecrux.receipt.body.v1",
            kind: "memory_use",
            receipt_id: &receipt_id,
            tenant_id: tenant,
            turn_id: &self.turn_id,
            actor_passport: passport,
            intent: self.intent.word(),
            created_at: &at.wall.to_rfc3339(),
            entries: used.iter().map(|fact| Entry { fact_id: &fact.fact_id, entity: &fact.entity }).collect(),
            retrieved_chunk_ids: &self.retrieved_chunk_ids,
            confidence: self.intent.confidence(self.confidence).map(Confidence::to_unit),
            note: self.note.as_deref(),
            replaces_receipt_id: known.as_ref().map(|known| known.receipt_id.as_str()),
        });
        receipt::append(tx, at, &receipt_id, body, Some(passport))?;
        let (tenant, passport, turn_id) = (tenant.clone(), passport.clone(), self.turn_id.clone());
        event::emit(tx, at, "memory.use_acknowledged", &receipt_id, json!({ "actor": passport, "facts": used.len() }))?;
        tx.put(&TurnUse { tenant, passport, turn_id, receipt_id: receipt_id.clone(), told_hash, revision: at.revision });
        Ok(receipt_id)
    }

    fn check(&self) -> Result<(), Refusal> {
        check_name("turn_id", &self.turn_id).map_or(Ok(()), Err)?;
        for (field, ids) in [("fact_ids", &self.fact_ids), ("retrieved_chunk_ids", &self.retrieved_chunk_ids)] {
            at_most(field, ids.len(), ACKNOWLEDGED_MAX, "ids")?;
            ids.iter().try_for_each(|id| check_name(field, id).map_or(Ok(()), Err))?;
        }
        if self.confidence.is_some_and(|confidence| confidence > Confidence::FULL) {
            return Err(Refusal::invalid("confidence", "must be from 0 to 1"));
        }
        self.note.as_deref().and_then(|note| check_text("note", note)).map_or(Ok(()), Err)
    }
}
