//! Punchcards: at most one holder per resource.

use serde::{Deserialize, Serialize};

use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

/// What the holder means to do. Both exclude each other alike; it is told to those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Modify,
    Deploy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Held,
    Released,
    Expired,
    ForceReleased,
}

/// One grant, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Punchcard {
    pub id: String,
    pub tenant: String,
    /// The normal spelling.
    pub resource: String,
    pub mode: Mode,
    pub holder: String,
    pub status: Status,
    pub reason: Option<String>,
    /// The revision of the grant. A write under a lower token comes from a holder that lost the card.
    pub fencing_token: Revision,
    pub ttl_ms: u64,
    pub deadline: LeaseTime,
    pub acquired_at: UnixMs,
    /// The deadline as people's time, as it looked when the card was last granted or renewed.
    pub expires_at: UnixMs,
    pub receipt_acquire: String,
    pub released_at: Option<UnixMs>,
    pub release_commit_sha: Option<String>,
    pub force_released_by: Option<String>,
    pub receipt_release: Option<String>,
}

/// Takes the card of a resource, renews it for its present holder, or queues for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PunchIn {
    pub resource: String,
    /// Whom the caller says it is; must be the caller, or the caller needs the scope `punchcard:impersonate`.
    pub holder_passport: String,
    /// Must be the caller's tenant.
    pub tenant_id: Option<String>,
    pub mode: Option<Mode>,
    pub reason: Option<String>,
    pub ttl_ms: Option<u64>,
    /// The same as a length, from the entry's wall clock. Both given: refused unless only one is.
    pub expires_at: Option<UnixMs>,
    /// How long to stay in the queue when another holds it.
    pub wait_ms: Option<u64>,
}

/// Granted, renewed, or queued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PunchedIn {
    Granted {
        card: Punchcard,
        renewed: bool,
        /// In advisory mode: who holds an overlapping card all the same.
        conflict: Option<Punchcard>,
    },
    Queued {
        ticket: String,
        /// Calls before this one that want an overlapping resource.
        ahead: u64,
        holder: String,
        held: String,
        left_ms: u64,
    },
    /// The ticket left the queue without a card: its time was over, or it was withdrawn.
    Left { ticket: String, resource: String, holder: Option<String> },
}

impl PunchIn {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PunchedIn> {
        let _ = (tx, at);
        todo!()
    }
}

/// Withdraws from the queue. If the card was granted meanwhile, answers the grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaveQueue {
    pub ticket: String,
}

impl LeaveQueue {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PunchedIn> {
        let _ = (tx, at);
        todo!()
    }
}

/// How a ticket stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetTicket {
    pub ticket: String,
}

impl GetTicket {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PunchedIn> {
        let _ = (view, at);
        todo!()
    }
}

/// Gives a card back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PunchOut {
    pub resource: String,
    pub holder_passport: String,
    pub tenant_id: Option<String>,
    pub release_commit_sha: Option<String>,
}

impl PunchOut {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Punchcard> {
        let _ = (tx, at);
        todo!()
    }
}

/// Takes a card from its holder: an operator's act, with a reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForceRelease {
    pub punchcard_id: String,
    pub confirm: bool,
    pub reason: Option<String>,
    /// A claim: must be the caller.
    pub by_passport: Option<String>,
}

impl ForceRelease {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Punchcard> {
        let _ = (tx, at);
        todo!()
    }
}

/// May the caller (or `passport`) change this resource?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckPunchcard {
    pub resource: String,
    pub mode: Option<Mode>,
    pub passport: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PunchcardChecked {
    pub held_by_other: bool,
    pub enforce: bool,
    pub resource: String,
    /// The overlapping card of another, or else the passport's own.
    pub card: Option<Punchcard>,
    pub left_ms: Option<u64>,
}

impl CheckPunchcard {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PunchcardChecked> {
        let _ = (view, at);
        todo!()
    }
}

/// Cards of the caller's tenant, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListPunchcards {
    pub resource: Option<String>,
    pub holder_passport: Option<String>,
    pub tenant_id: Option<String>,
    pub status: Option<Status>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Punchcards {
    pub punchcards: Vec<Punchcard>,
    pub next_cursor: Option<String>,
}

impl ListPunchcards {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Punchcards> {
        let _ = (view, at);
        todo!()
    }
}

/// A call made under a card needs that card to be live and the caller's.
pub(crate) fn check_token(view: &impl Read, at: &Stamp, token: Revision) -> Result<Option<Refusal>, StorageError> {
    let _ = (view, at, token);
    todo!()
}

/// Ends cards and tickets whose time is over, a bounded number, and hands freed resources to those who wait.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    let _ = (tx, at);
    Ok(())
}
