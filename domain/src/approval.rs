//! Approvals: a person (or a policy) says yes or no, once.
//!
//! Invariants:
//! * A request is decided at most once, and only while its deadline lies ahead of the lease clock.
//! * Nobody decides what he asked for himself.
//! * High risk is decided by the tier operator, or under a scope that an operator gave for it; other risks by the tier elite too.
//! * Who decides, and in which tenant, comes from the credential; what the arguments say of it is only checked against that.
//! * Every decision has a receipt, and its body says who decided.
//! * Under dual control two different people say yes; passports that were split from one another are one person's.
//! * Each act makes one event and, for each address that wants to hear of it, one notice, in the act's own entry.

mod list;
mod policy;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::deadline::{self, Lapsed};
use crate::event;
use crate::flag;
use crate::identity::{check_name, check_tenant, check_text, is_revoked};
use crate::key::Key;
use crate::limit::{
    APPROVAL_TTL_MS_DEFAULT, APPROVAL_TTL_MS_MAX, APPROVAL_TTL_MS_MIN, APPROVALS_PENDING_MAX, STATE_BYTES_MAX, STATE_DEPTH_MAX,
};
use crate::notice;
use crate::passport;
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::session::is_deeper;
use crate::stamp::{LeaseTime, Principal, Revision, Stamp, Tier, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Read, StorageError, Tx};
use crate::work::{self, QueuedMove};
pub(crate) use list::undecided;
pub use list::{Approvals, GetApproval, ListApprovals};
use list::{by_revision, enter, withdraw};
pub(crate) use policy::refuse_all_but_operators;
pub use policy::{ApprovalPolicy, GetApprovalPolicy, PolicyRule, SetApprovalPolicy};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RiskTier {
    Low,
    Medium,
    High,
}

impl RiskTier {
    pub fn word(self) -> &'static str {
        match self {
            RiskTier::Low => "low",
            RiskTier::Medium => "medium",
            RiskTier::High => "high",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Approve,
    Reject,
}

impl Decision {
    pub fn word(self) -> &'static str {
        match self {
            Decision::Approve => "approve",
            Decision::Reject => "reject",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    Pending,
    Approved,
    Rejected,
    /// Nobody decided in time: told apart from a rejection.
    Expired,
}

impl ApprovalStatus {
    pub fn word(self) -> &'static str {
        match self {
            ApprovalStatus::Pending => "pending",
            ApprovalStatus::Approved => "approved",
            ApprovalStatus::Rejected => "rejected",
            ApprovalStatus::Expired => "expired",
        }
    }
}

/// One request and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    pub request_id: String,
    pub tenant: String,
    pub scope: String,
    pub risk_tier: RiskTier,
    pub action_summary: String,
    pub payload: Option<serde_json::Value>,
    pub requested_by: String,
    pub requested_at: UnixMs,
    /// The revision of the request: its place among others.
    pub revision: Revision,
    pub status: ApprovalStatus,
    pub deadline: LeaseTime,
    pub expires_at: UnixMs,
    /// The reviewer's passport, or `policy:<tier>` for the tenant's policy.
    pub reviewer: Option<String>,
    pub reviewer_notes: Option<String>,
    pub decided_at: Option<UnixMs>,
    pub receipt_id: Option<String>,
    /// BLAKE3 of the receipt's body, in hex.
    pub receipt_body_hash: Option<String>,
    /// The move of work that this lets happen, in the entry of its decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<QueuedMove>,
    /// Different people who have to say yes.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub approvals_needed: u64,
    /// Who has said yes so far, where one is not enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub votes: Vec<Vote>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decider_tier_min: Option<Tier>,
    /// When it is told as escalated, until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalates: Option<LeaseTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalated_at: Option<UnixMs>,
}

fn one() -> u64 {
    1
}

fn is_one(number: &u64) -> bool {
    *number == 1
}

/// A yes that is not enough by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    pub passport: String,
    pub notes: Option<String>,
    pub at: UnixMs,
    pub receipt_id: String,
    /// BLAKE3 of the receipt's body, in hex.
    pub receipt_body_hash: String,
}

impl Record for Approval {
    const KIND: Kind = Kind::Approval;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.request_id)
    }
}

/// Lets a passport of any tier decide requests of any risk.
const DECIDING: &str = "approvals:decide";

impl Timed for Approval {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = to(self.deadline);
        self.escalates = self.escalates.map(to);
    }
}

impl Approval {
    /// Why somebody can't be the one who decides it, whatever the decision.
    pub fn refuse_reviewer(&self, caller: &Principal) -> Option<Refusal> {
        let denied = |problem: String| Some(Refusal::Denied { problem });
        let passport = &caller.passport;
        let (least, wanted) = match self.risk_tier {
            RiskTier::Low | RiskTier::Medium => (Tier::Elite, "deciding needs the tier elite or operator"),
            RiskTier::High => (Tier::Operator, "deciding what is of high risk needs the tier operator"),
        };
        if caller.tier < least && !caller.may(DECIDING) {
            return denied(format!("{wanted}, or the scope `{DECIDING}`, and `{passport}` is {}", caller.tier.word()));
        }
        if self.requested_by == *passport {
            return denied(format!("`{passport}` asked for this approval, and nobody decides his own request"));
        }
        None
    }

    /// As a reader sees it: a request whose time is over has expired, swept or not.
    pub(crate) fn seen_at(mut self, now: LeaseTime) -> Self {
        if self.status == ApprovalStatus::Pending && self.deadline <= now {
            self.status = ApprovalStatus::Expired;
        }
        self
    }
}

/// How many requests of a tenant are undecided.
#[derive(Serialize, Deserialize)]
struct Count {
    tenant: String,
    pending: u64,
}

impl Record for Count {
    const KIND: Kind = Kind::ApprovalCount;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

fn pending(view: &impl Read, tenant: &str) -> Result<u64, StorageError> {
    let count: Option<Count> = view.get(tenant, &Key::new())?;
    Ok(count.map_or(0, |count| count.pending))
}

pub(crate) fn approval(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Approval>, StorageError> {
    view.get(tenant, &Key::new().text(id))
}

/// The request that an index row points to.
pub(crate) fn indexed(view: &impl Read, tenant: &str, id: &[u8]) -> Result<Approval, StorageError> {
    let id = String::from_utf8_lossy(id);
    approval(view, tenant, &id)?.ok_or_else(|| StorageError::corrupt(format!("an index row points to no approval `{id}`")))
}

fn switched_off(view: &impl Read, what: &str) -> Result<Option<Refusal>, StorageError> {
    let is_on = flag::is_on(view, flag::APPROVAL_QUEUE)?;
    Ok((!is_on).then(|| Refusal::FeatureOff { what: what.into(), flag: flag::APPROVAL_QUEUE.name.into() }))
}

/// Asks for a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestApproval {
    pub action_summary: String,
    pub risk_tier: RiskTier,
    pub scope: String,
    /// A claim: must be the caller's tenant.
    pub tenant_id: Option<String>,
    pub payload: Option<serde_json::Value>,
    pub ttl_ms: Option<u64>,
}

impl RequestApproval {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Approval> {
        self.open(tx, at, None)
    }

    /// Opens a request; one that is approved lets a move of work happen.
    pub(crate) fn open(self, tx: &mut impl Tx, at: &Stamp, work: Option<QueuedMove>) -> Applied<Approval> {
        if let Some(refusal) = switched_off(tx, "approval_request")?.or_else(|| self.refuse(at)) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        if pending(tx, tenant)? >= APPROVALS_PENDING_MAX as u64 {
            let limit = APPROVALS_PENDING_MAX as u64;
            return Ok(Err(Refusal::Full { what: "the list of undecided approvals".into(), limit, retry_after_ms: 60_000 }));
        }
        let rule = policy::policy(tx, tenant)?.rule(self.risk_tier, &self.action_summary, &at.caller);
        let ttl_ms = self.ttl_ms.or(rule.ttl_ms).unwrap_or(APPROVAL_TTL_MS_DEFAULT);
        let mut approval = Approval {
            request_id: at.new_id("ar", 0),
            tenant: tenant.clone(),
            scope: self.scope,
            risk_tier: self.risk_tier,
            action_summary: self.action_summary,
            payload: self.payload,
            requested_by: at.caller.passport.clone(),
            requested_at: at.wall,
            revision: at.revision,
            status: ApprovalStatus::Pending,
            deadline: at.lease_now.plus_ms(ttl_ms),
            expires_at: UnixMs(at.wall.0.saturating_add(ttl_ms)),
            reviewer: None,
            reviewer_notes: None,
            decided_at: None,
            receipt_id: None,
            receipt_body_hash: None,
            work,
            approvals_needed: rule.approvals.unwrap_or(1),
            votes: Vec::new(),
            decider_tier_min: rule.decider_tier_min,
            // One that expires before would be told as escalated for nothing.
            escalates: rule.escalate_after_ms.filter(|after_ms| *after_ms < ttl_ms).map(|after_ms| at.lease_now.plus_ms(after_ms)),
            escalated_at: None,
        };
        tx.put_index(by_revision(tenant).number_descending(at.revision.0), approval.request_id.as_bytes());
        tell(tx, at, &approval, "approval.requested")?;
        if rule.approve {
            let reviewer = format!("policy:{}", approval.risk_tier.word());
            settle(tx, at, &mut approval, Decision::Approve, reviewer, None)?;
        } else {
            enter(tx, &approval)?;
        }
        tx.put(&approval);
        Ok(Ok(approval))
    }

    fn refuse(&self, at: &Stamp) -> Option<Refusal> {
        if let Some(refusal) = check_tenant(&at.caller, self.tenant_id.as_deref())
            .or_else(|| check_name("scope", &self.scope))
            .or_else(|| check_text("action_summary", &self.action_summary))
        {
            return Some(refusal);
        }
        if self.action_summary.trim().is_empty() {
            return Some(Refusal::invalid("action_summary", "must not be empty"));
        }
        if let Some(payload) = &self.payload {
            if !payload.is_object() {
                return Some(Refusal::invalid("payload", "must be a JSON object"));
            }
            if is_deeper(payload, STATE_DEPTH_MAX) {
                return Some(Refusal::invalid(
                    "payload",
                    format!("must not nest objects and arrays more than {STATE_DEPTH_MAX} levels deep"),
                ));
            }
            let (size, limit) = (payload.to_string().len() as u64, STATE_BYTES_MAX as u64);
            if size > limit {
                return Some(Refusal::TooLong { field: "payload".into(), size, limit, unit: "bytes".into() });
            }
        }
        match self.ttl_ms {
            Some(ttl_ms) if !(APPROVAL_TTL_MS_MIN..=APPROVAL_TTL_MS_MAX).contains(&ttl_ms) => {
                Some(Refusal::invalid("ttl_ms", format!("must be {APPROVAL_TTL_MS_MIN} to {APPROVAL_TTL_MS_MAX}, not {ttl_ms}")))
            }
            _ => None,
        }
    }
}

/// Decides a request, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecideApproval {
    pub request_id: String,
    pub decision: Decision,
    pub reviewer_notes: Option<String>,
    /// Claims: never used to authorise, and refused when they disagree with the credential.
    pub reviewer_tier: Option<String>,
    pub reviewer_tenant_id: Option<String>,
}

impl DecideApproval {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Approval> {
        if let Some(refusal) = switched_off(tx, "approval_decide")?.or_else(|| check_name("request_id", &self.request_id)) {
            return Ok(Err(refusal));
        }
        let Some(mut approval) = approval(tx, &at.caller.tenant, &self.request_id)? else {
            return Ok(Err(Refusal::not_found("approval", self.request_id)));
        };
        if let Some(refusal) = match self.refuse(&approval, at) {
            Some(refusal) => Some(refusal),
            None => self.refuse_person(tx, &approval, at)?,
        } {
            return Ok(Err(refusal));
        }
        match approval.clone().seen_at(at.lease_now).status {
            ApprovalStatus::Pending => {}
            ApprovalStatus::Expired => return Ok(Err(Refusal::Expired { approval: approval.request_id })),
            decided @ (ApprovalStatus::Approved | ApprovalStatus::Rejected) => {
                return Ok(Err(Refusal::AlreadyDecided { approval: approval.request_id, decision: decided.word().into() }));
            }
        }
        if self.decision == Decision::Approve
            && let Some(refusal) = work::refuse_approval(tx, &approval)?
        {
            return Ok(Err(refusal));
        }
        if self.decision == Decision::Approve && is_revoked(tx, &approval.tenant, &approval.requested_by)? {
            let problem = format!("can't be `approve`: `{}`, who asked, is revoked; reject it, or let it expire", approval.requested_by);
            return Ok(Err(Refusal::invalid("decision", problem)));
        }
        if self.decision == Decision::Approve && (approval.votes.len() as u64) + 1 < approval.approvals_needed {
            vote(tx, at, &mut approval, self.reviewer_notes)?;
            tx.put(&approval);
            return Ok(Ok(approval));
        }
        withdraw(tx, &approval)?;
        settle(tx, at, &mut approval, self.decision, at.caller.passport.clone(), self.reviewer_notes)?;
        tx.put(&approval);
        work::resolve(tx, at, &approval, 0)?;
        Ok(Ok(approval))
    }

    /// Why this caller may not decide this request.
    fn refuse(&self, approval: &Approval, at: &Stamp) -> Option<Refusal> {
        let caller = &at.caller;
        let denied = |problem: String| Some(Refusal::Denied { problem });
        if self.reviewer_tier.as_deref().is_some_and(|claim| claim != caller.tier.word()) {
            return denied(format!("`reviewer_tier` is not that of the caller, `{}`, who is {}", caller.passport, caller.tier.word()));
        }
        if self.reviewer_tenant_id.as_ref().is_some_and(|claim| *claim != caller.tenant) {
            return denied(format!("`reviewer_tenant_id` is not the tenant of the caller, `{}`", caller.passport));
        }
        if let Some(refusal) = approval.refuse_reviewer(caller) {
            return Some(refusal);
        }
        policy::refuse_tier(approval, caller)
            .or_else(|| self.reviewer_notes.as_deref().and_then(|notes| check_text("reviewer_notes", notes)))
    }

    /// Whether the caller is, under whatever name, who asked, or who said yes before.
    fn refuse_person(&self, view: &impl Read, approval: &Approval, at: &Stamp) -> Result<Option<Refusal>, StorageError> {
        let (tenant, caller) = (&approval.tenant, &at.caller.passport);
        let origin = passport::origin(view, tenant, caller)?;
        if passport::origin(view, tenant, &approval.requested_by)? == origin {
            let problem = format!(
                "`{caller}` and `{}`, who asked, were split from one passport, and nobody decides his own request",
                approval.requested_by
            );
            return Ok(Some(Refusal::Denied { problem }));
        }
        if self.decision == Decision::Reject {
            return Ok(None);
        }
        for vote in &approval.votes {
            if passport::origin(view, tenant, &vote.passport)? == origin {
                let problem = format!("`{}` has approved this, and it needs two different people", vote.passport);
                return Ok(Some(Refusal::Denied { problem }));
            }
        }
        Ok(None)
    }
}

/// Writes down the first of two approvals. The request stays undecided.
fn vote(tx: &mut impl Tx, at: &Stamp, approval: &mut Approval, notes: Option<String>) -> Result<(), StorageError> {
    let receipt_id = format!("ad_{}_{}", approval.request_id, approval.votes.len() + 1);
    let passport = at.caller.passport.clone();
    let receipt_body_hash = prove(tx, at, approval, &receipt_id, Decision::Approve, &passport, notes.as_deref())?;
    approval.votes.push(Vote { passport, notes, at: at.wall, receipt_id, receipt_body_hash });
    tell(tx, at, approval, "approval.approved_once")
}

/// The body of an approval's receipt. The fields and their order are the documented ones.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    kind: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    request_id: &'a str,
    reviewer_passport: &'a str,
    decision: &'a str,
    risk_tier: &'a str,
    action_summary: &'a str,
    decided_at: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reviewer_notes: Option<&'a str>,
}

fn prove(
    tx: &mut impl Tx,
    at: &Stamp,
    approval: &Approval,
    receipt_id: &str,
    decision: Decision,
    reviewer: &str,
    notes: Option<&str>,
) -> Result<String, StorageError> {
    let body = receipt::body(&Body {
        schema: "cuecrux.receipt.body.v1",
        kind: "approval_decision",
        receipt_id,
        tenant_id: &approval.tenant,
        request_id: &approval.request_id,
        reviewer_passport: reviewer,
        decision: decision.word(),
        risk_tier: approval.risk_tier.word(),
        action_summary: &approval.action_summary,
        decided_at: &at.wall.to_rfc3339(),
        reviewer_notes: notes,
    });
    receipt::append(tx, at, receipt_id, body, Some(reviewer))
}

/// Writes a decision into a request, with its receipt and event.
fn settle(
    tx: &mut impl Tx,
    at: &Stamp,
    approval: &mut Approval,
    decision: Decision,
    reviewer: String,
    notes: Option<String>,
) -> Result<(), StorageError> {
    let receipt_id = format!("ad_{}", approval.request_id);
    approval.receipt_body_hash = Some(prove(tx, at, approval, &receipt_id, decision, &reviewer, notes.as_deref())?);
    approval.receipt_id = Some(receipt_id);
    approval.status = match decision {
        Decision::Approve => ApprovalStatus::Approved,
        Decision::Reject => ApprovalStatus::Rejected,
    };
    approval.reviewer = Some(reviewer);
    approval.reviewer_notes = notes;
    approval.decided_at = Some(at.wall);
    tell(tx, at, approval, &format!("approval.{}", approval.status.word()))
}

fn tell(tx: &mut impl Tx, at: &Stamp, approval: &Approval, kind: &str) -> Result<(), StorageError> {
    let mut about = serde_json::json!({
        "scope": approval.scope,
        "risk_tier": approval.risk_tier,
        "requested_by": approval.requested_by,
    });
    if let Some(reviewer) = &approval.reviewer {
        about["reviewer"] = reviewer.as_str().into();
    }
    if !approval.votes.is_empty() {
        about["approved_by"] = approval.votes.iter().map(|vote| vote.passport.as_str()).collect::<Vec<_>>().into();
    }
    event::emit(tx, at, kind, &approval.request_id, about)?;
    notice::make(tx, at, kind, approval)
}

/// Expires requests whose time is over, and tells of those that wait for too long; a bounded number.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    // The number 0 is that of the entry's own command.
    for (n, Lapsed { tenant, id }) in (1..).zip(deadline::lapsed(tx, Kind::ApprovalByDeadline, at.lease_now)?) {
        let approval = indexed(tx, &tenant, id.as_bytes())?;
        withdraw(tx, &approval)?;
        let expired = Approval { status: ApprovalStatus::Expired, ..approval };
        tx.put(&expired);
        tell(tx, &at.within(&tenant), &expired, "approval.expired")?;
        work::resolve(tx, &at.within(&tenant), &expired, n)?;
    }
    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::ApprovalByEscalation, at.lease_now)? {
        let mut approval = indexed(tx, &tenant, id.as_bytes())?;
        if let Some(escalates) = approval.escalates.take() {
            deadline::delete(tx, Kind::ApprovalByEscalation, escalates, &tenant, &id);
        }
        approval.escalated_at = Some(at.wall);
        tx.put(&approval);
        tell(tx, &at.within(&tenant), &approval, "approval.escalated")?;
    }
    Ok(())
}
