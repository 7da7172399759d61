//! The orders in which requests are found.

use serde::{Deserialize, Serialize};

use super::{Approval, ApprovalStatus, Count, approval, indexed, pending};
use crate::codec;
use crate::cursor::Cursors;
use crate::deadline;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::REPLY_BYTES_MAX;
use crate::query;
use crate::record::{Kind, ReadRecords, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::{Read, StorageError, Table, Tx};

/// Undecided requests, oldest first.
pub(crate) fn undecided(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::ApprovalPending)
}

/// All requests, newest first.
pub(super) fn by_revision(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::ApprovalByRevision)
}

pub(super) fn enter(tx: &mut impl Tx, approval: &Approval) -> Result<(), StorageError> {
    let Approval { tenant, request_id, revision, deadline, .. } = approval;
    let pending = pending(tx, tenant)? + 1;
    tx.put(&Count { tenant: tenant.clone(), pending });
    tx.put_index(undecided(tenant).number(revision.0), request_id.as_bytes());
    deadline::put(tx, Kind::ApprovalByDeadline, *deadline, tenant, request_id);
    if let Some(escalates) = approval.escalates {
        deadline::put(tx, Kind::ApprovalByEscalation, escalates, tenant, request_id);
    }
    Ok(())
}

pub(super) fn withdraw(tx: &mut impl Tx, approval: &Approval) -> Result<(), StorageError> {
    let Approval { tenant, request_id, revision, deadline, .. } = approval;
    let pending = pending(tx, tenant)?.saturating_sub(1);
    tx.put(&Count { tenant: tenant.clone(), pending });
    tx.delete_index(undecided(tenant).number(revision.0));
    deadline::delete(tx, Kind::ApprovalByDeadline, *deadline, tenant, request_id);
    if let Some(escalates) = approval.escalates {
        deadline::delete(tx, Kind::ApprovalByEscalation, escalates, tenant, request_id);
    }
    Ok(())
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
