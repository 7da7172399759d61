//! Sessions: an agent's saved working state, by a name of its own choosing.

use serde::{Deserialize, Serialize};

use crate::refusal::Applied;
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

/// Stores the state of a session, over the one before if there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveSession {
    pub session_id: String,
    /// A JSON object, kept as sent.
    pub state: serde_json::Value,
    pub ttl_ms: Option<u64>,
    /// Compare-and-set: the revision that the caller last saw; 0 means that the session must not exist yet.
    pub expected_revision: Option<Revision>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSaved {
    pub session_id: String,
    pub updated_at: UnixMs,
    pub total_tokens: u64,
    pub archived: bool,
    pub revision: Revision,
}

impl SaveSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SessionSaved> {
        let _ = (tx, at);
        todo!()
    }
}

/// Hides a session from the plain list; its state stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArchiveSession {
    pub session_id: String,
    pub reason: Option<String>,
}

impl ArchiveSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SessionSaved> {
        let _ = (tx, at);
        todo!()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnarchiveSession {
    pub session_id: String,
}

impl UnarchiveSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SessionSaved> {
        let _ = (tx, at);
        todo!()
    }
}

/// Removes a session for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeleteSession {
    pub session_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionDeleted {
    pub deleted: bool,
    pub session_id: String,
}

impl DeleteSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SessionDeleted> {
        let _ = (tx, at);
        todo!()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetSession {
    pub session_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    pub session_id: String,
    pub state: serde_json::Value,
    pub updated_at: UnixMs,
    pub total_tokens: u64,
    pub archived: bool,
    pub archive_reason: Option<String>,
    pub revision: Revision,
    pub actor: String,
}

impl GetSession {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SessionView> {
        let _ = (view, at);
        todo!()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListSessions {
    pub include_archived: bool,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sessions {
    pub sessions: Vec<String>,
    pub next_cursor: Option<String>,
}

impl ListSessions {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Sessions> {
        let _ = (view, at);
        todo!()
    }
}

/// Removes sessions whose time is over, a bounded number.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    let _ = (tx, at);
    Ok(())
}
