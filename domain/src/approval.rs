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
use crate::stamp::{LeaseTime, Principal, ReadStamp, Revision, Stamp, Tier, UnixMs};
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
    /// Why somebody can't be the one who decides it, whatever the decision.
    pub fn refuse_reviewer(&self, caller: &Principal) -> Option<Refusal> {
        let denied = |problem: String| Some(Refusal::Denied { problem });
        let passport = &caller.passport;
        if caller.tier < Tier::Elite && !caller.may("approvals:decide") {
            let tier = caller.tier.word();
            return denied(format!(
                "deciding needs the tier elite or operator, or the scope `approvals:decide`, and `{passport}` is {tier}"
            ));
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
        if let Some(refusal) = approval.refuse_reviewer(caller) {
            return Some(refusal);
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
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::flag::SetFlag;
    use crate::receipt::GetReceipt;
    use crate::transcript::{Line, World, person};

    /// Each line is one entry of the log; reads have no number. Requests are told as `a1`, `a2` ... in their order.
    fn check(lines: &str, expected: Expect) {
        let (mut world, mut known, mut told, mut revision) = (World::new(), Vec::new(), String::new(), 0);
        for line in lines.lines().map(str::trim) {
            let line = Line::parse(line);
            let is_read = matches!(line.verb, "get" | "list");
            revision += u64::from(!is_read);
            let number = if is_read { "-".to_string() } else { revision.to_string() };
            let answer = play(&mut world, &mut known, &line).unwrap_or_else(|refusal| format!("refused: {refusal}"));
            let answer = known.iter().enumerate().fold(answer, |answer, (n, id)| answer.replace(id, &format!("a{}", n + 1)));
            told += &format!("{number} {answer}\n");
        }
        expected.assert_eq(&told);
    }

    fn play(world: &mut World, known: &mut Vec<String>, line: &Line) -> Result<String, Refusal> {
        let (time, caller) = (line.time, person(line.who));
        let id = |word: &str| {
            let n = word.strip_prefix('a').and_then(|n| n.parse::<usize>().ok());
            n.and_then(|n| known.get(n - 1).cloned()).unwrap_or(word.into())
        };
        let row = |approval: &Approval| {
            let by = approval.reviewer.as_ref().map(|reviewer| format!(" by {reviewer}")).unwrap_or_default();
            format!("{} {}{by}", approval.request_id, approval.status.word())
        };
        match line.verb {
            "tick" => {
                world.tick(time);
                Ok("ticked".into())
            }
            "flag" => {
                let command = SetFlag { name: flag::APPROVAL_QUEUE.name.into(), value: line.word(0).into() };
                world.call(time, caller, None, command).map(|flag| format!("flag: {}", flag.value))
            }
            "policy" => {
                let has = |word: &str| line.words.contains(&word);
                let command = SetApprovalPolicy { approve_low: has("low"), approve_medium: has("medium") };
                world
                    .call(time, caller, None, command)
                    .map(|policy| format!("low {}, medium {}", policy.approve_low, policy.approve_medium))
            }
            "ask" => {
                let risk_tier = match line.word(0) {
                    "low" => RiskTier::Low,
                    "medium" => RiskTier::Medium,
                    _ => RiskTier::High,
                };
                let command = RequestApproval {
                    action_summary: line.option("action").unwrap_or("drop the table".into()),
                    risk_tier,
                    scope: line.option("scope").unwrap_or("acme".into()),
                    tenant_id: line.option("tenant"),
                    payload: line.option("payload").map(|json| serde_json::from_str(&json).unwrap()),
                    ttl_ms: line.ms("ttl"),
                };
                let approval = world.call(time, caller, None, command)?;
                known.push(approval.request_id.clone());
                Ok(row(&approval))
            }
            "approve" | "reject" => {
                let command = DecideApproval {
                    request_id: id(line.word(0)),
                    decision: if line.verb == "approve" { Decision::Approve } else { Decision::Reject },
                    reviewer_notes: line.option("notes"),
                    reviewer_tier: line.option("tier"),
                    reviewer_tenant_id: line.option("tenant"),
                };
                world.call(time, caller, None, command).map(|approval| row(&approval))
            }
            "get" => world.ask(time, caller, GetApproval { request_id: id(line.word(0)) }).map(|approval| row(&approval)),
            "list" => {
                let pending_only = line.word(0) == "pending";
                let (mut cursor, mut pages) = (None, Vec::new());
                loop {
                    let page =
                        world.ask(time, caller.clone(), ListApprovals { pending_only, limit: line.ms("limit").unwrap_or(50), cursor })?;
                    pages.push(page.approvals.iter().map(row).collect::<Vec<_>>().join(", "));
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(format!("[{}]", pages.join(" | ")));
                    }
                }
            }
            verb => panic!("no verb `{verb}`"),
        }
    }

    #[test]
    fn only_a_reviewer_of_the_tenant_decides_and_claims_make_nobody_one() {
        check(
            "0s mara ask high
             0s mara approve a1
             0s jon  approve a1
             0s jon  approve a1 tier=operator
             0s jon  approve a1 tier=elite tenant=acme
             0s eve  approve a1 tier=operator
             0s eve  approve ar_none tier=operator
             0s eve  approve a1 tier=elite tenant=acme
             0s evan approve a1 tier=operator
             0s evan approve ar_none
             0s eve  get a1
             0s elsa approve a1 tier=operator
             0s elsa approve a1 tenant=other
             0s jon  get a1
             0s otto approve a1 tier=operator tenant=acme notes=seen
             0s elsa reject a1
             0s jon  get a1",
            expect![[r#"
                1 a1 pending
                2 refused: deciding needs the tier elite or operator, or the scope `approvals:decide`, and `mara` is verified
                3 refused: deciding needs the tier elite or operator, or the scope `approvals:decide`, and `jon` is verified
                4 refused: `reviewer_tier` is not that of the caller, `jon`, who is verified
                5 refused: `reviewer_tier` is not that of the caller, `jon`, who is verified
                6 refused: there is no approval `a1`
                7 refused: there is no approval `ar_none`
                8 refused: there is no approval `a1`
                9 refused: there is no approval `a1`
                10 refused: there is no approval `ar_none`
                - refused: there is no approval `a1`
                11 refused: `reviewer_tier` is not that of the caller, `elsa`, who is elite
                12 refused: `reviewer_tenant_id` is not the tenant of the caller, `elsa`
                - a1 pending
                13 a1 approved by otto
                14 refused: approval `a1` was already approved
                - a1 approved by otto
            "#]],
        );
    }

    #[test]
    fn nobody_decides_his_own_request_whatever_his_tier() {
        check(
            "0s otto ask low
             0s otto approve a1
             0s otto reject a1
             0s dana reject a1",
            expect![[r#"
                1 a1 pending
                2 refused: `otto` asked for this approval, and nobody decides his own request
                3 refused: `otto` asked for this approval, and nobody decides his own request
                4 a1 rejected by dana
            "#]],
        );
    }

    #[test]
    fn a_request_that_nobody_decides_expires_and_is_told_apart_from_a_rejection() {
        check(
            "0s mara ask high ttl=10s
             0s mara ask high ttl=20s
             9s jon  list pending
             10s jon get a1
             10s jon list pending
             10s otto approve a1
             11s - tick
             11s otto approve a1
             11s jon list",
            expect![[r#"
                1 a1 pending
                2 a2 pending
                - [a1 pending, a2 pending]
                - a1 expired
                - [a2 pending]
                3 refused: approval `a1` expired undecided
                4 ticked
                5 refused: approval `a1` expired undecided
                - [a2 pending, a1 expired]
            "#]],
        );
    }

    #[test]
    fn a_policy_lets_low_and_medium_pass_and_high_never() {
        check(
            "0s mara policy low
             0s olga policy low
             0s mara ask low
             0s mara ask medium
             0s mara ask high
             0s olga policy low medium
             0s mara ask medium
             0s mara ask high
             0s eve  ask low
             0s otto approve a1
             0s jon  list pending limit=1
             0s jon  list limit=2",
            expect![[r#"
                1 refused: setting the policy needs the scope `admin` or the tier operator
                2 low true, medium false
                3 a1 approved by policy:low
                4 a2 pending
                5 a3 pending
                6 low true, medium true
                7 a4 approved by policy:medium
                8 a5 pending
                9 a6 pending
                10 refused: approval `a1` was already approved
                - [a2 pending | a3 pending | a5 pending]
                - [a5 pending, a4 approved by policy:medium | a3 pending, a2 pending | a1 approved by policy:low]
            "#]],
        );
    }

    #[test]
    fn a_request_is_checked_before_it_is_stored() {
        check(
            "0s mara ask high tenant=other
             0s mara ask high tenant=acme ttl=999
             0s mara ask high scope=
             0s mara ask high action=
             0s mara ask high payload=[1]
             0s mara ask high payload={\"n\":1.5}
             0s olga flag off
             0s mara ask high
             0s otto approve a1
             0s mara list limit=1001",
            expect![[r#"
                1 refused: there is no tenant `other`
                2 refused: `ttl_ms` must be 1000 to 2592000000, not 999
                3 refused: `scope` must not be empty
                4 refused: `action_summary` must not be empty
                5 refused: `payload` must be a JSON object
                6 a1 pending
                7 flag: off
                8 refused: approval_request is switched off by the flag `CORECRUXD_FEATURE_APPROVAL_QUEUE`
                9 refused: approval_decide is switched off by the flag `CORECRUXD_FEATURE_APPROVAL_QUEUE`
                - refused: `limit` must be 1 to 1000, not 1001
            "#]],
        );
        let (text, value, deep) = ("x".repeat(4_097), "x".repeat(16_377), "[".repeat(64) + &"]".repeat(64));
        check(
            &format!(
                "0s mara ask high action={text}
                 0s mara ask high payload={{\"a\":\"{value}\"}}
                 0s mara ask high payload={{\"a\":{deep}}}"
            ),
            expect![[r#"
                1 refused: `action_summary` is 4097 bytes long, and the limit is 4096 bytes
                2 refused: `payload` is 16385 bytes long, and the limit is 16384 bytes
                3 refused: `payload` must not nest objects and arrays more than 64 levels deep
            "#]],
        );
    }

    #[test]
    fn the_receipt_of_a_decision_has_the_documented_body() {
        let (mut world, mut known) = (World::new(), Vec::new());
        for line in ["0s mara ask high", "1s otto approve a1 notes=seen"] {
            play(&mut world, &mut known, &Line::parse(line)).unwrap();
        }
        let approval = world.ask("1s", person("jon"), GetApproval { request_id: known[0].clone() }).unwrap();
        let receipt_id = approval.receipt_id.unwrap();
        assert_eq!(receipt_id, format!("ad_{}", known[0]));
        let receipt = world.ask("1s", person("jon"), GetReceipt { receipt_id, tenant_id: None }).unwrap();
        assert_eq!((receipt.faults, receipt.signer_passport), (vec![], Some("otto".into())));
        assert_eq!(approval.receipt_body_hash.as_ref(), Some(&receipt.body_hash));
        let body: ciborium::Value = ciborium::from_reader(receipt.body.as_slice()).unwrap();
        let fields = body.into_map().unwrap();
        let told: String =
            fields.iter().map(|(name, value)| format!("{}: {}\n", name.as_text().unwrap(), value.as_text().unwrap())).collect();
        expect![[r#"
            schema: cuecrux.receipt.body.v1
            kind: approval_decision
            receipt_id: ad_ar_1
            tenant_id: acme
            request_id: ar_1
            reviewer_passport: otto
            decision: approve
            risk_tier: high
            action_summary: drop the table
            decided_at: 2030-03-17T17:46:41.000Z
            reviewer_notes: seen
        "#]]
        .assert_eq(&told.replace(&known[0], "ar_1"));
    }
}
