//! Approvals: a person (or a policy) says yes or no, once.

use serde::{Deserialize, Serialize};

use crate::refusal::Applied;
use crate::stamp::{LeaseTime, ReadStamp, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RiskTier {
    Low,
    Medium,
    High,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Approve,
    Reject,
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
        let _ = (tx, at);
        todo!()
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
        let _ = (tx, at);
        todo!()
    }
}

/// Which risks the tenant lets pass without a person. High always waits for one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalPolicy {
    pub tenant: String,
    pub approve_low: bool,
    pub approve_medium: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetApprovalPolicy {
    pub approve_low: bool,
    pub approve_medium: bool,
}

impl SetApprovalPolicy {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ApprovalPolicy> {
        let _ = (tx, at);
        todo!()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetApproval {
    pub request_id: String,
}

impl GetApproval {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Approval> {
        let _ = (view, at);
        todo!()
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
        let _ = (view, at);
        todo!()
    }
}

/// Expires requests whose time is over, a bounded number.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    let _ = (tx, at);
    Ok(())
}
