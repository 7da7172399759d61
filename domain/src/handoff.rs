//! Hand-offs: a session with what belongs to it, given by one agent to another as a package.
//!
//! The package is a text that travels outside of the cluster; its record stays here and holds the hash of it. Invariants:
//! * A package is accepted once, before its deadline, and by the agent that it names, if it names one.
//! * Its content is what was made in the entry of its making: the hash in the record decides, whatever signature it carries.
//! * No private fact is ever in one.
//!
//! Decisions:
//! * The id is the nonce: it is given out once, and stands in what is signed.
//! * Facts of a package are the tenant's, and so the receiver has them already. Storing them anew would put old values over
//!   newer ones; accepting tells how many still stand as they were packed, and how many were replaced or deleted since.
//! * Accepting does not overwrite: a receiver that has another session of that name has to move it out of the way first.
//! * Cards go over when the package is accepted, not when it is made: until then the sender works under them. The receiver is told
//!   which ones the sender had lost by then.
//! * Making and accepting are observed in the session's chain only with the flag on that says so: observations are the tenant's
//!   to read, and a session's name is otherwise its passport's business.
//! * Of the sender's signature nothing is known here: gateways sign what was made, and check it before they ask to accept it.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::deadline::{self, Lapsed};
use crate::event;
use crate::fact::{self, PackedFact, Relevant, at_most};
use crate::flag;
use crate::identity::{Passport, check_name, check_text, is_revoked};
use crate::key::Key;
use crate::limit::{HANDOFF_ITEMS_MAX, HANDOFF_PAYLOAD_BYTES_MAX, HANDOFF_TTL_MS};
use crate::observation::{AppendObservations, NewObservation};
use crate::punchcard::{self, Punchcard};
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::session::{GetSession, SaveSession};
use crate::stamp::{LeaseTime, ReadStamp, Revision, Stamp, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Read, StorageError, Tx};

/// What is known of a package. Gone at its deadline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Handoff {
    tenant: String,
    handoff_id: String,
    source: String,
    target: Option<String>,
    /// BLAKE3 of the payload, in hex.
    content_hash: String,
    deadline: LeaseTime,
    accepted_by: Option<String>,
    /// What the sender held and means to hand over with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    punchcards: Vec<String>,
}

impl Record for Handoff {
    const KIND: Kind = Kind::Handoff;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.handoff_id)
    }
}

impl Timed for Handoff {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = to(self.deadline);
    }
}

/// The sender's intent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_outcome: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceptance_criteria: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocker_rule: Option<String>,
}

impl TaskRecord {
    fn check(&self) -> Option<Refusal> {
        let texts = [("requester", &self.requester), ("desired_outcome", &self.desired_outcome), ("blocker_rule", &self.blocker_rule)];
        let lists = [("sources", &self.sources), ("acceptance_criteria", &self.acceptance_criteria), ("boundaries", &self.boundaries)];
        let bad_text = texts.into_iter().find_map(|(field, text)| check_text(&format!("task_record.{field}"), text.as_deref()?));
        bad_text.or_else(|| {
            lists.into_iter().find_map(|(field, list)| {
                let (field, list) = (format!("task_record.{field}"), list.as_deref()?);
                let too_many = at_most(&field, list.len(), HANDOFF_ITEMS_MAX, "entries").err();
                too_many.or_else(|| list.iter().find_map(|text| check_text(&field, text)))
            })
        })
    }
}

/// What travels: JSON with the fields in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Payload {
    handoff_id: String,
    session_id: String,
    session_state: serde_json::Value,
    facts: Vec<PackedFact>,
    created_at: String,
    expires_at: String,
    source_agent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    work_ids: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task_record: Option<TaskRecord>,
}

impl Payload {
    fn json(&self) -> String {
        serde_json::to_string(self).expect("plain data with text keys is always JSON")
    }
}

fn passport(view: &impl Read, tenant: &str, name: &str) -> Result<Option<Passport>, StorageError> {
    view.get(tenant, &Key::new().text(name))
}

fn read_stamp(at: &Stamp) -> ReadStamp {
    at.reading()
}

// ------------------------------------------------------------------ create

/// Packs a session of the caller's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateHandoff {
    pub session_id: String,
    /// With the tenant's facts that the session names, or that are filed under it, decisions included.
    pub include_facts: bool,
    /// Who alone may accept it; anybody of the tenant when absent.
    pub target: Option<String>,
    pub message: Option<String>,
    pub task_record: Option<TaskRecord>,
    /// Resources whose cards go over to whoever accepts it, in the entry of that. The caller has to hold them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub punchcards: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandoffCreated {
    pub handoff_id: String,
    /// The bytes to sign and to pack.
    pub payload: String,
    /// BLAKE3 of the payload, in hex.
    pub content_hash: String,
    pub facts: u64,
    /// There were more facts than a package holds.
    pub more_facts: bool,
    pub expires_at: UnixMs,
}

impl CreateHandoff {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<HandoffCreated> {
        if let Some(refusal) = self.refuse(tx, at)? {
            return Ok(Err(refusal));
        }
        let punchcards = match punchcard::check_all(tx, at, "punchcards", &self.punchcards)? {
            Ok(punchcards) => punchcards,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let session = match (GetSession { session_id: self.session_id }).run(tx, &read_stamp(at))? {
            Ok(session) => session,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (tenant, source, handoff_id) = (at.caller.tenant.clone(), at.caller.passport.clone(), at.new_id("ho", 0));
        let expires_at = UnixMs(at.wall.0.saturating_add(HANDOFF_TTL_MS));
        let state_json = session.state.to_string();
        let mut payload = Payload {
            handoff_id: handoff_id.clone(),
            session_id: session.session_id,
            session_state: session.state,
            facts: Vec::new(),
            created_at: at.wall.to_rfc3339(),
            expires_at: expires_at.to_rfc3339(),
            source_agent: source.clone(),
            target_agent: self.target.clone(),
            message: self.message,
            work_ids: ids(&state_json, "w_"),
            task_record: self.task_record,
        };
        let mut bytes = payload.json().len();
        if let Err(refusal) = at_most("the package without facts", bytes, HANDOFF_PAYLOAD_BYTES_MAX, "bytes") {
            return Ok(Err(refusal));
        }
        let mut more_facts = false;
        if self.include_facts {
            let Relevant { facts, is_more } = fact::relevant(tx, &tenant, &payload.session_id, &ids(&state_json, "f_"))?;
            more_facts = is_more;
            for fact in facts {
                let more = serde_json::to_string(&fact).map_or(usize::MAX, |json| json.len() + 1);
                if bytes.saturating_add(more) > HANDOFF_PAYLOAD_BYTES_MAX {
                    more_facts = true;
                    continue;
                }
                bytes += more;
                payload.facts.push(fact);
            }
        }
        let session_id = payload.session_id.clone();
        let (facts, payload) = (payload.facts.len() as u64, payload.json());
        let content_hash = blake3::hash(payload.as_bytes()).to_hex().to_string();
        let deadline = at.lease_now.plus_ms(HANDOFF_TTL_MS);
        let handoff = Handoff {
            tenant: tenant.clone(),
            handoff_id: handoff_id.clone(),
            source,
            target: self.target,
            content_hash: content_hash.clone(),
            deadline,
            accepted_by: None,
            punchcards,
        };
        tx.put(&handoff);
        deadline::put(tx, Kind::HandoffByDeadline, deadline, &tenant, &handoff_id);
        handoff.prove(tx, at, "create")?;
        if let Some(refusal) = handoff.observe(tx, at, "handoff_created", &session_id)? {
            return Ok(Err(refusal));
        }
        Ok(Ok(HandoffCreated { handoff_id, payload, content_hash, facts, more_facts, expires_at }))
    }

    fn refuse(&self, view: &impl Read, at: &Stamp) -> Result<Option<Refusal>, StorageError> {
        let bad = self.message.as_deref().and_then(|message| check_text("message", message));
        if let Some(refusal) = bad.or_else(|| self.task_record.as_ref().and_then(TaskRecord::check)) {
            return Ok(Some(refusal));
        }
        let Some(target) = self.target.as_deref() else { return Ok(None) };
        if let Some(refusal) = check_name("target_agent", target) {
            return Ok(Some(refusal));
        }
        if passport(view, &at.caller.tenant, target)?.is_none() {
            return Ok(Some(Refusal::not_found("passport", target)));
        }
        let is_revoked = is_revoked(view, &at.caller.tenant, target)?;
        Ok(is_revoked.then(|| Refusal::invalid("target_agent", "is revoked; name another")))
    }
}

/// The ids with this prefix in a text, each once, in order, so many at the most.
fn ids(text: &str, prefix: &str) -> Vec<String> {
    const DIGITS: usize = 32;
    let mut found = Vec::new();
    for (start, _) in text.match_indices(prefix) {
        let Some(id) = text.get(start..start + prefix.len() + DIGITS) else { continue };
        let is_id = id[prefix.len()..].bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_id && !found.iter().any(|known| known == id) && found.len() < HANDOFF_ITEMS_MAX {
            found.push(id.to_string());
        }
    }
    found
}

// ------------------------------------------------------------------ accept

/// Takes a package over: the session becomes the caller's. Its signature was checked before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptHandoff {
    /// As it was made.
    pub payload: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandoffAccepted {
    pub handoff_id: String,
    pub session_id: String,
    pub source: String,
    /// Packed facts that still stand.
    pub facts_loaded: u64,
    /// Packed facts that were replaced or deleted since.
    pub facts_changed: u64,
    pub message: Option<String>,
    pub work_ids: Vec<String>,
    pub task_record: Option<TaskRecord>,
    /// Cards that came over, with new tokens.
    #[serde(default)]
    pub punchcards: Vec<Punchcard>,
    /// Resources whose cards the sender did not hold any more.
    #[serde(default)]
    pub punchcards_lost: Vec<String>,
}

impl AcceptHandoff {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<HandoffAccepted> {
        if let Err(refusal) = at_most("package", self.payload.len(), HANDOFF_PAYLOAD_BYTES_MAX, "bytes") {
            return Ok(Err(refusal));
        }
        let Ok(payload) = serde_json::from_str::<Payload>(&self.payload) else {
            return Ok(Err(Refusal::invalid("package", "holds no hand-off")));
        };
        if let Some(refusal) = check_name("package", &payload.handoff_id) {
            return Ok(Err(refusal));
        }
        let known: Option<Handoff> = tx.get(&at.caller.tenant, &Key::new().text(&payload.handoff_id))?;
        let Some(handoff) = known else {
            let is_old = UnixMs::from_rfc3339(&payload.expires_at).is_some_and(|end| end <= at.wall);
            return Ok(Err(if is_old { expired(payload.handoff_id) } else { Refusal::not_found("hand-off", payload.handoff_id) }));
        };
        if let Some(refusal) = handoff.refuse(tx, at, &self.payload)? {
            return Ok(Err(refusal));
        }
        if let Some(refusal) = load_session(tx, at, &payload)? {
            return Ok(Err(refusal));
        }
        let handed = punchcard::hand_all(tx, at, &handoff.source, &at.caller.passport, &handoff.punchcards)?;
        let (punchcards, punchcards_lost) = match handed {
            Ok(handed) => handed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut facts_loaded = 0;
        for fact in &payload.facts {
            facts_loaded += u64::from(fact::stands(tx, &at.caller, &fact.fact_id)?);
        }
        let handoff = Handoff { accepted_by: Some(at.caller.passport.clone()), ..handoff };
        tx.put(&handoff);
        handoff.prove(tx, at, "accept")?;
        if let Some(refusal) = handoff.observe(tx, at, "handoff_accepted", &payload.session_id)? {
            return Ok(Err(refusal));
        }
        Ok(Ok(HandoffAccepted {
            handoff_id: payload.handoff_id,
            session_id: payload.session_id,
            source: handoff.source,
            facts_loaded,
            facts_changed: payload.facts.len() as u64 - facts_loaded,
            message: payload.message,
            work_ids: payload.work_ids,
            task_record: payload.task_record,
            punchcards,
            punchcards_lost,
        }))
    }
}

fn expired(id: String) -> Refusal {
    Refusal::Spent { what: "hand-off".into(), id, found: "has expired".into() }
}

/// Saves the session as the caller's, unless it has the same one.
fn load_session(tx: &mut impl Tx, at: &Stamp, payload: &Payload) -> Result<Option<Refusal>, StorageError> {
    let known = GetSession { session_id: payload.session_id.clone() }.run(tx, &read_stamp(at))?;
    if known.is_ok_and(|known| known.state == payload.session_state) {
        return Ok(None);
    }
    let (session_id, state) = (payload.session_id.clone(), payload.session_state.clone());
    let saved = SaveSession { session_id, state, ttl_ms: None, expected_revision: Some(Revision(0)) }.apply(tx, at)?;
    Ok(saved.err())
}

impl Handoff {
    /// Why the caller can't accept it with this payload.
    fn refuse(&self, view: &impl Read, at: &Stamp, payload: &str) -> Result<Option<Refusal>, StorageError> {
        if blake3::hash(payload.as_bytes()).to_hex().as_str() != self.content_hash {
            return Ok(Some(Refusal::invalid("package", "is not what was packed under its id")));
        }
        if let Some(target) = self.target.as_ref().filter(|target| **target != at.caller.passport) {
            return Ok(Some(Refusal::Denied { problem: format!("this hand-off is for `{target}` alone") }));
        }
        if is_revoked(view, &self.tenant, &self.source)? {
            return Ok(Some(Refusal::Revoked { passport: self.source.clone() }));
        }
        if let Some(by) = &self.accepted_by {
            let (what, id, found) = ("hand-off".into(), self.handoff_id.clone(), format!("was accepted by `{by}`"));
            return Ok(Some(Refusal::Spent { what, id, found }));
        }
        Ok((self.deadline <= at.lease_now).then(|| expired(self.handoff_id.clone())))
    }

    /// Adds the act to the chain of the session, where that is wanted.
    fn observe(&self, tx: &mut impl Tx, at: &Stamp, kind: &str, session_id: &str) -> Result<Option<Refusal>, StorageError> {
        if !flag::is_on(tx, flag::HANDOFF_OBSERVATIONS)? || !flag::is_on(tx, flag::OBSERVE)? {
            return Ok(None);
        }
        let payload = json!({
            "handoff_id": self.handoff_id,
            "source_agent": self.source,
            "target_agent": self.target,
            "content_hash": self.content_hash,
        });
        let told = NewObservation { provider: "quorate".into(), kind: kind.into(), payload, client_ts: None };
        let appended = AppendObservations { session_id: session_id.into(), observations: vec![told] }.apply(tx, at)?;
        Ok(appended.err())
    }

    /// Writes the receipt and the event of an act. The session's name is nobody else's business.
    fn prove(&self, tx: &mut impl Tx, at: &Stamp, act: &str) -> Result<(), StorageError> {
        let receipt_id = format!("rcx-handoff:{act}:{}", self.handoff_id);
        let body = receipt::body(&Body {
            schema: "quorate.receipt.handoff.v1",
            kind: act,
            receipt_id: &receipt_id,
            tenant_id: &self.tenant,
            handoff_id: &self.handoff_id,
            source_agent: &self.source,
            target_agent: self.target.as_deref(),
            actor_passport: &at.caller.passport,
            content_hash: &self.content_hash,
            made_at: &at.wall.to_rfc3339(),
        });
        receipt::append(tx, at, &receipt_id, body, Some(&at.caller.passport))?;
        let kind = if self.accepted_by.is_some() { "handoff.accepted" } else { "handoff.created" };
        let about = json!({ "source": self.source, "target": self.target, "accepted_by": self.accepted_by });
        event::emit(tx, at, kind, &self.handoff_id, about)
    }
}

#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    /// `create` or `accept`.
    kind: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    handoff_id: &'a str,
    source_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_agent: Option<&'a str>,
    actor_passport: &'a str,
    content_hash: &'a str,
    made_at: &'a str,
}

/// Forgets packages whose time is over, a bounded number.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::HandoffByDeadline, at.lease_now)? {
        let handoff: Option<Handoff> = tx.get(&tenant, &Key::new().text(&id))?;
        let handoff = handoff.ok_or_else(|| StorageError::corrupt("a deadline points to a hand-off that is not there"))?;
        deadline::delete(tx, Kind::HandoffByDeadline, handoff.deadline, &tenant, &id);
        tx.delete(&handoff);
    }
    Ok(())
}
