//! Decisions: what was decided and why, kept as facts that are only ever added.
//!
//! Each is a fact of its own under `__decisions__::<session>`, where clients can't write, edit, retire or delete, so recall
//! and history show it like any other. Its hash is the BLAKE3 of the fact's value as it stands there, and the receipt of the
//! same id proves that hash.

use serde::{Deserialize, Serialize};

use crate::event;
use crate::fact::{Confidence, Draft, EVERYONE, HorizonClass, at_most, check_value, store_evidence};
use crate::identity::{check_name, check_text};
use crate::limit::{DECISION_LIST_MAX, NAME_BYTES_MAX};
use crate::receipt;
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Revision, Stamp};
use crate::tx::Tx;

/// What decisions' entities begin with.
const PREFIX: &str = "__decisions__::";

/// Whether this beginning of entities is the decisions'.
pub(crate) fn is_under(prefix: &str) -> bool {
    prefix == PREFIX
}

/// Keeps a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordDecision {
    pub action: String,
    pub rationale: String,
    pub alternatives: Vec<String>,
    pub confidence: Confidence,
    pub session_id: String,
    pub context_refs: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionRecorded {
    pub decision_id: String,
    /// BLAKE3 of the fact's value, in hex.
    pub decision_hash: String,
    pub entity: String,
    pub action: String,
    pub fact_id: String,
}

/// The fact's value.
#[derive(Serialize)]
struct Value<'a> {
    decision_id: &'a str,
    action: &'a str,
    rationale: &'a str,
    alternatives: &'a [String],
    confidence: f64,
    session_id: &'a str,
    context_refs: &'a [String],
    recorded_at: &'a str,
    agent: &'a str,
}

/// The body of the receipt. What was decided does not stand in it, since receipts can't be forgotten.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    kind: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    decision_hash: &'a str,
    entity: &'a str,
    actor_passport: &'a str,
    revision: Revision,
    recorded_at: &'a str,
}

impl RecordDecision {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<DecisionRecorded> {
        if let Err(refusal) = self.check() {
            return Ok(Err(refusal));
        }
        let (decision_id, recorded_at) = (at.new_id("d", 0), at.wall.to_rfc3339());
        let value = self.value(&decision_id, &recorded_at, &at.caller.passport);
        if let Err(refusal) = check_value("rationale", &value) {
            return Ok(Err(refusal));
        }
        let decision_hash = blake3::hash(value.as_bytes()).to_hex().to_string();
        let entity = format!("{PREFIX}{}", self.session_id);
        let body = receipt::body(&Body {
            schema: "cuecrux.receipt.body.v1",
            kind: "decision",
            receipt_id: &decision_id,
            tenant_id: &at.caller.tenant,
            decision_hash: &decision_hash,
            entity: &entity,
            actor_passport: &at.caller.passport,
            revision: at.revision,
            recorded_at: &recorded_at,
        });
        receipt::append(tx, at, &decision_id, body, Some(&at.caller.passport))?;
        let draft =
            Draft { value, confidence: self.confidence, horizon_class: HorizonClass::None, source_receipt: Some(decision_id.clone()) };
        let fact_id = store_evidence(tx, at, EVERYONE, &entity, &decision_id, draft)?;
        let about = serde_json::json!({ "entity": entity, "fact_id": fact_id, "actor": at.caller.passport });
        event::emit(tx, at, "decision.recorded", &decision_id, about)?;
        Ok(Ok(DecisionRecorded { decision_id, decision_hash, entity, action: self.action, fact_id }))
    }

    /// The value, which is hashed and kept as this text.
    fn value(&self, decision_id: &str, recorded_at: &str, agent: &str) -> String {
        let value = Value {
            decision_id,
            action: &self.action,
            rationale: &self.rationale,
            alternatives: &self.alternatives,
            confidence: self.confidence.to_unit(),
            session_id: &self.session_id,
            context_refs: &self.context_refs,
            recorded_at,
            agent,
        };
        serde_json::to_string(&value).expect("plain data with text keys is always JSON")
    }

    /// All that can be refused without reading.
    fn check(&self) -> Result<(), Refusal> {
        for (field, text) in [("action", &self.action), ("rationale", &self.rationale)] {
            if text.trim().is_empty() {
                return Err(Refusal::invalid(field, "must not be empty"));
            }
            check_text(field, text).map_or(Ok(()), Err)?;
        }
        for (field, texts) in [("alternatives", &self.alternatives), ("context_refs", &self.context_refs)] {
            at_most(field, texts.len(), DECISION_LIST_MAX, "entries")?;
            texts.iter().try_for_each(|text| check_text(field, text).map_or(Ok(()), Err))?;
        }
        if self.confidence > Confidence::FULL {
            return Err(Refusal::invalid("confidence", "must be from 0 to 1"));
        }
        at_most("session_id", self.session_id.len(), NAME_BYTES_MAX - PREFIX.len(), "bytes")?;
        check_name("session_id", &self.session_id).map_or(Ok(()), Err)
    }
}
