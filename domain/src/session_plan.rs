//! Session plans: what a session begins with, and what it says it is about.
//!
//! Which tools there are, and which of them the caller may use, is for the gateway to say; here a plan gets its names, its
//! place in time and its receipt. Invariants:
//! * A passport has one plan, the last. It names those before it, so that their receipts make a chain.
//! * An intent counts for [`PLAN_TTL_MS`] of the lease clock from when it was declared, and for its passport alone.
//! * A plan's receipt names no signer, so that opening sessions earns no standing.
//!
//! Decisions: a plan without an intent leaves the declared one as it is, and an empty intent takes it back. The passport is
//! issued in the same entry, so there is never a plan of a passport that was to be issued and was not.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::event;
use crate::flag;
use crate::identity::{self, check_name};
use crate::key::Key;
use crate::limit::{PLAN_CHAIN_MAX, PLAN_TTL_MS};
use crate::passport::{IssuePassport, PassportIssued};
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, ReadStamp, Revision, Stamp, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Read, StorageError, Tx};

/// A passport's last plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionPlan {
    tenant: String,
    passport: String,
    plan_id: String,
    session_id: String,
    /// BLAKE3 of the receipt's body, in hex.
    hash: String,
    intent: Option<String>,
    /// The intent counts before it.
    intent_deadline: LeaseTime,
    /// Those before it, newest first.
    chain: Vec<EarlierPlan>,
    revision: Revision,
}

impl Record for SessionPlan {
    const KIND: Kind = Kind::SessionPlan;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

impl Timed for SessionPlan {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.intent_deadline = to(self.intent_deadline);
    }
}

/// A plan that another one followed. `receipt_verify` checks it by its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlierPlan {
    pub plan_id: String,
    pub hash: String,
}

fn last_plan(view: &impl Read, tenant: &str, passport: &str) -> Result<Option<SessionPlan>, StorageError> {
    view.get(tenant, &Key::new().text(passport))
}

/// The intent that counts.
fn declared(plan: Option<&SessionPlan>, now: LeaseTime) -> Option<(String, LeaseTime)> {
    let plan = plan.filter(|plan| plan.intent_deadline > now)?;
    Some((plan.intent.clone()?, plan.intent_deadline))
}

/// Opens a session with a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenPlan {
    pub intent: Option<String>,
    /// BLAKE3, in hex, of the capabilities as the gateway shows them.
    pub graph_hash: String,
    /// The key of the caller's passport, should it have to be issued.
    pub public_key: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanOpened {
    /// Also the id of its receipt.
    pub plan_id: String,
    pub session_id: String,
    pub hash: String,
    pub minted_at: UnixMs,
    /// The intent that counts from now on.
    pub intent: Option<String>,
    /// `None` where passports are not issued by sessions, and for a caller that can have none.
    pub passport: Option<PassportIssued>,
    pub chain: Vec<EarlierPlan>,
}

/// The body of the receipt. Field order is part of the bytes.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    kind: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    session_id: &'a str,
    passport_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<&'a str>,
    capability_graph_hash: &'a str,
    minted_at: &'a str,
    session_ttl_s: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_plan_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_hash: Option<&'a str>,
}

impl OpenPlan {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PlanOpened> {
        let given = self.intent.as_deref().map(str::trim);
        if let Some(refusal) = given.filter(|intent| !intent.is_empty()).and_then(|intent| check_name("intent", intent)) {
            return Ok(Err(refusal));
        }
        if self.graph_hash.len() != 64 || hex::decode(&self.graph_hash).is_err() {
            return Ok(Err(Refusal::invalid("graph_hash", "is not 32 bytes in hex")));
        }
        let (tenant, passport) = (&at.caller.tenant, &at.caller.passport);
        let issued = match self.issue(tx, at)? {
            Ok(issued) => issued,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let last = last_plan(tx, tenant, passport)?;
        let (intent, intent_deadline) = match given {
            Some("") => (None, LeaseTime(0)),
            Some(intent) => (Some(intent.to_string()), at.lease_now.plus_ms(PLAN_TTL_MS)),
            None => declared(last.as_ref(), at.lease_now).map_or((None, LeaseTime(0)), |(intent, deadline)| (Some(intent), deadline)),
        };
        let chain = last.map_or_else(Vec::new, |last| {
            let newest = EarlierPlan { plan_id: last.plan_id, hash: last.hash };
            std::iter::once(newest).chain(last.chain).take(PLAN_CHAIN_MAX).collect()
        });
        let (plan_id, session_id) = (bare_id(at, "plan"), bare_id(at, "session"));
        let parent = chain.first();
        let body = receipt::body(&Body {
            schema: "cuecrux.receipt.body.v1",
            kind: "session_plan",
            receipt_id: &plan_id,
            tenant_id: tenant,
            session_id: &session_id,
            passport_id: passport,
            intent: intent.as_deref(),
            capability_graph_hash: &self.graph_hash.to_lowercase(),
            minted_at: &at.wall.to_rfc3339(),
            session_ttl_s: PLAN_TTL_MS / 1_000,
            parent_plan_id: parent.map(|parent| parent.plan_id.as_str()),
            parent_hash: parent.map(|parent| parent.hash.as_str()),
        });
        let hash = receipt::append(tx, at, &plan_id, body, None)?;
        let plan = SessionPlan {
            tenant: tenant.clone(),
            passport: passport.clone(),
            plan_id,
            session_id,
            hash,
            intent,
            intent_deadline,
            chain,
            revision: at.revision,
        };
        tx.put(&plan);
        event::emit(tx, at, "session.planned", &plan.plan_id, json!({ "passport": passport }))?;
        let SessionPlan { plan_id, session_id, hash, intent, chain, .. } = plan;
        Ok(Ok(PlanOpened { plan_id, session_id, hash, minted_at: at.wall, intent, passport: issued, chain }))
    }

    fn issue(&self, tx: &mut impl Tx, at: &Stamp) -> Applied<Option<PassportIssued>> {
        let is_mapped = identity::is_there(tx, &at.caller)?;
        if !is_mapped || !flag::is_on(tx, flag::AGENT_PASSPORTS)? {
            return Ok(Ok(None));
        }
        let issued = IssuePassport { sponsor: None, public_key: self.public_key.clone() }.apply(tx, at)?;
        Ok(issued.map(Some))
    }
}

/// 32 hex digits, as ids of plans and sessions are written.
fn bare_id(at: &Stamp, what: &str) -> String {
    let id = at.new_id(what, 0);
    id[what.len() + 1..].to_string()
}

/// What the caller's sessions are about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetIntent {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclaredIntent {
    pub intent: Option<String>,
}

impl GetIntent {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<DeclaredIntent> {
        let plan = last_plan(view, &at.caller.tenant, &at.caller.passport)?;
        Ok(Ok(DeclaredIntent { intent: declared(plan.as_ref(), at.lease_now).map(|(intent, _)| intent) }))
    }
}
