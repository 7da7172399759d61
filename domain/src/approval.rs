//! Approvals: a person (or a policy) says yes or no, once.
//!
//! Invariants:
//! * A request is decided at most once, and only while its deadline lies ahead of the lease clock.
//! * Nobody decides what he asked for himself.
//! * Who decides, and in which tenant, comes from the credential; what the arguments say of it is only checked against that.
//! * Every decision has a receipt, and its body says who decided.

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::cursor::Cursors;
use crate::deadline::{self, Lapsed};
use crate::event;
use crate::flag;
use crate::identity::{check_name, check_tenant, check_text, is_revoked};
use crate::key::Key;
use crate::limit::{
    APPROVAL_TTL_MS_DEFAULT, APPROVAL_TTL_MS_MAX, APPROVAL_TTL_MS_MIN, APPROVALS_PENDING_MAX, REPLY_BYTES_MAX, STATE_BYTES_MAX,
    STATE_DEPTH_MAX,
};
use crate::query;
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::session::is_deeper;
use crate::stamp::{LeaseTime, ReadStamp, Revision, Stamp, Tier, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};
use crate::work::{self, QueuedMove};

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

impl Approval {
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

fn approval(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Approval>, StorageError> {
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
        let policy = policy(tx, tenant)?;
        let ttl_ms = self.ttl_ms.unwrap_or(APPROVAL_TTL_MS_DEFAULT);
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
        };
        tx.put_index(by_revision(tenant).number_descending(at.revision.0), approval.request_id.as_bytes());
        tell(tx, at, &approval, "approval.requested")?;
        if policy.lets_pass(approval.risk_tier) {
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
        if let Some(refusal) = self.refuse(&approval, at) {
            return Ok(Err(refusal));
        }
        match approval.clone().seen_at(at.lease_now).status {
            ApprovalStatus::Pending => {}
            ApprovalStatus::Expired => return Ok(Err(Refusal::Expired { approval: approval.request_id })),
            decided @ (ApprovalStatus::Approved | ApprovalStatus::Rejected) => {
                return Ok(Err(Refusal::AlreadyDecided { approval: approval.request_id, decision: decided.word().into() }));
            }
        }
        if let (Decision::Approve, Some(asked)) = (self.decision, &approval.work)
            && let Some(refusal) = work::refuse_approval(tx, &approval.tenant, asked)?
        {
            return Ok(Err(refusal));
        }
        if self.decision == Decision::Approve && is_revoked(tx, &approval.tenant, &approval.requested_by)? {
            let problem = format!("can't be `approve`: `{}`, who asked, is revoked; reject it, or let it expire", approval.requested_by);
            return Ok(Err(Refusal::invalid("decision", problem)));
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
        if caller.tier < Tier::Elite && !caller.may("approvals:decide") {
            let (passport, tier) = (&caller.passport, caller.tier.word());
            return denied(format!(
                "deciding needs the tier elite or operator, or the scope `approvals:decide`, and `{passport}` is {tier}"
            ));
        }
        if approval.requested_by == caller.passport {
            return denied(format!("`{}` asked for this approval, and nobody decides his own request", caller.passport));
        }
        self.reviewer_notes.as_deref().and_then(|notes| check_text("reviewer_notes", notes))
    }
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
    let body = receipt::body(&Body {
        schema: "cuecrux.receipt.body.v1",
        kind: "approval_decision",
        receipt_id: &receipt_id,
        tenant_id: &approval.tenant,
        request_id: &approval.request_id,
        reviewer_passport: &reviewer,
        decision: decision.word(),
        risk_tier: approval.risk_tier.word(),
        action_summary: &approval.action_summary,
        decided_at: &at.wall.to_rfc3339(),
        reviewer_notes: notes.as_deref(),
    });
    approval.receipt_body_hash = Some(receipt::append(tx, at, &receipt_id, body, Some(&reviewer))?);
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
    event::emit(tx, at, kind, &approval.request_id, about)
}

// ------------------------------------------------------------------ orders

/// Undecided requests, oldest first.
pub(crate) fn undecided(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::ApprovalPending)
}

/// All requests, newest first.
fn by_revision(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::ApprovalByRevision)
}

fn enter(tx: &mut impl Tx, approval: &Approval) -> Result<(), StorageError> {
    let Approval { tenant, request_id, revision, deadline, .. } = approval;
    let pending = pending(tx, tenant)? + 1;
    tx.put(&Count { tenant: tenant.clone(), pending });
    tx.put_index(undecided(tenant).number(revision.0), request_id.as_bytes());
    deadline::put(tx, Kind::ApprovalByDeadline, *deadline, tenant, request_id);
    Ok(())
}

fn withdraw(tx: &mut impl Tx, approval: &Approval) -> Result<(), StorageError> {
    let Approval { tenant, request_id, revision, deadline, .. } = approval;
    let pending = pending(tx, tenant)?.saturating_sub(1);
    tx.put(&Count { tenant: tenant.clone(), pending });
    tx.delete_index(undecided(tenant).number(revision.0));
    deadline::delete(tx, Kind::ApprovalByDeadline, *deadline, tenant, request_id);
    Ok(())
}

/// Which risks the tenant lets pass without a person. High always waits for one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalPolicy {
    pub tenant: String,
    pub approve_low: bool,
    pub approve_medium: bool,
}

impl Record for ApprovalPolicy {
    const KIND: Kind = Kind::ApprovalPolicy;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

impl ApprovalPolicy {
    fn lets_pass(&self, risk: RiskTier) -> bool {
        match risk {
            RiskTier::Low => self.approve_low,
            RiskTier::Medium => self.approve_medium,
            RiskTier::High => false,
        }
    }
}

/// The tenant's policy; without one, everything waits.
fn policy(view: &impl Read, tenant: &str) -> Result<ApprovalPolicy, StorageError> {
    let policy: Option<ApprovalPolicy> = view.get(tenant, &Key::new())?;
    Ok(policy.unwrap_or(ApprovalPolicy { tenant: tenant.into(), approve_low: false, approve_medium: false }))
}

/// Sets the policy of the caller's tenant. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetApprovalPolicy {
    pub approve_low: bool,
    pub approve_medium: bool,
}

impl SetApprovalPolicy {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ApprovalPolicy> {
        if !at.caller.may("admin") && at.caller.tier < Tier::Operator {
            return Ok(Err(Refusal::Denied { problem: "setting the policy needs the scope `admin` or the tier operator".into() }));
        }
        let Self { approve_low, approve_medium } = self;
        let policy = ApprovalPolicy { tenant: at.caller.tenant.clone(), approve_low, approve_medium };
        tx.put(&policy);
        Ok(Ok(policy))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetApproval {
    pub request_id: String,
}

impl GetApproval {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Approval> {
        if let Some(refusal) = check_name("request_id", &self.request_id) {
            return Ok(Err(refusal));
        }
        let approval = approval(view, &at.caller.tenant, &self.request_id)?;
        Ok(approval.map(|approval| approval.seen_at(at.lease_now)).ok_or_else(|| Refusal::not_found("approval", self.request_id)))
    }
}

/// Undecided requests of the caller's tenant, oldest first; or all, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListApprovals {
    pub pending_only: bool,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Approvals {
    pub approvals: Vec<Approval>,
    pub next_cursor: Option<String>,
}

impl ListApprovals {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Approvals> {
        let tenant = &at.caller.tenant;
        let order = if self.pending_only { undecided(tenant) } else { by_revision(tenant) };
        let cursors = Cursors::of("approvals", &at.caller, &self.pending_only);
        let limit = match query::rows(self.limit) {
            Ok(limit) => limit,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let from = match self.cursor.as_deref().map(|cursor| cursors.open(cursor)).transpose() {
            Ok(from) => from.map(|position| order.clone().raw(&position).into_bytes()),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (rows, mut next) = view.page_bytes(Table::Index, &order, from.as_deref(), limit)?;
        let (mut approvals, mut bytes) = (Vec::new(), 0);
        for (place, id) in rows {
            let approval = indexed(view, tenant, &id)?.seen_at(at.lease_now);
            // A request holds a payload of up to a reply's half, so rows alone bound nothing.
            bytes += codec::encode(&approval).len();
            if bytes > REPLY_BYTES_MAX && !approvals.is_empty() {
                next = Some(place);
                break;
            }
            // One whose time is over is not pending, swept or not.
            if !self.pending_only || approval.status == ApprovalStatus::Pending {
                approvals.push(approval);
            }
        }
        let next_cursor = next.map(|next| cursors.seal(&next[order.as_bytes().len()..]));
        Ok(Ok(Approvals { approvals, next_cursor }))
    }
}

/// Expires requests whose time is over, a bounded number.
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
    Ok(())
}

#[cfg(test)]
mod tests;
