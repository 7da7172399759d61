//! Who takes part: members come as learners, become voters once they have caught up, and never come back under a used id.
//!
//! An id that was a member before could bring votes or entries of that time with it, from a disk that was put back, and elect
//! itself out of a membership that is long gone. So the state machine keeps every id that was ever a member. One change runs at
//! a time; another one is refused until the membership is uniform again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _};
use tokio::sync::Mutex;

use crate::machine::Applied;
use crate::proposer::not_leader;
use crate::types::{Address, Metrics, Raft, TypeConfig};
use crate::unavailable::{ProposeError, Reason, Unavailable};

/// Entries that a learner may lack when it becomes a voter: the quorum must not wait for it.
const PROMOTION_LAG_MAX: u64 = 1_000;

/// Why the membership stays as it is.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum MembershipError {
    #[error("the membership is changing already; try again when it is done")]
    Busy,
    #[error("node id {0} was used before and can't come back; take a new one")]
    UsedBefore(u64),
    #[error("node {0} is not a member")]
    NoMember(u64),
    #[error("node {id} is {lag} entries behind; wait until it has caught up")]
    Behind { id: u64, lag: u64 },
    #[error("node {0} has not been heard of lately")]
    Silent(u64),
    #[error("node {0} is the last voter")]
    LastVoter(u64),
    #[error(transparent)]
    Undecided(#[from] ProposeError),
}

/// Changes of the membership, one at a time.
pub(crate) struct Changes {
    raft: Raft,
    applied: Arc<Applied>,
    lease: Duration,
    running: Mutex<()>,
}

impl Changes {
    pub fn new(raft: Raft, applied: Arc<Applied>, lease: Duration) -> Self {
        Self { raft, applied, lease, running: Mutex::default() }
    }

    pub async fn add_learner(&self, id: u64, address: Address) -> Result<(), MembershipError> {
        let _running = self.running.try_lock().map_err(|_| MembershipError::Busy)?;
        let metrics = self.as_leader()?;
        if let Some(known) = metrics.membership_config.membership().get_node(&id) {
            // Asked again after it was done.
            return if *known == address { Ok(()) } else { Err(MembershipError::UsedBefore(id)) };
        }
        if self.applied.members_ever().contains(&id) {
            return Err(MembershipError::UsedBefore(id));
        }
        done(self.raft.add_learner(id, address, false).await)
    }

    pub async fn promote(&self, id: u64) -> Result<(), MembershipError> {
        let _running = self.running.try_lock().map_err(|_| MembershipError::Busy)?;
        let metrics = self.as_leader()?;
        if metrics.membership_config.voter_ids().any(|voter| voter == id) {
            return Ok(());
        }
        if metrics.membership_config.membership().get_node(&id).is_none() {
            return Err(MembershipError::NoMember(id));
        }
        if !heard_within(&metrics, id, self.lease) {
            return Err(MembershipError::Silent(id));
        }
        let lag = metrics.last_log_index.unwrap_or_default().saturating_sub(matched(&metrics, id).unwrap_or_default());
        if lag > PROMOTION_LAG_MAX {
            return Err(MembershipError::Behind { id, lag });
        }
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([id]))).await
    }

    pub async fn remove(&self, id: u64) -> Result<(), MembershipError> {
        let _running = self.running.try_lock().map_err(|_| MembershipError::Busy)?;
        let metrics = self.as_leader()?;
        let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        if metrics.membership_config.membership().get_node(&id).is_none() {
            // Asked again after it was done, or never there: told apart by whether it was ever a member.
            return if self.applied.members_ever().contains(&id) { Ok(()) } else { Err(MembershipError::NoMember(id)) };
        }
        if voters == BTreeSet::from([id]) {
            return Err(MembershipError::LastVoter(id));
        }
        let change = match voters.contains(&id) {
            true => ChangeMembers::RemoveVoters(BTreeSet::from([id])),
            false => ChangeMembers::RemoveNodes(BTreeSet::from([id])),
        };
        self.change(change).await
    }

    async fn change(&self, change: ChangeMembers<u64, Address>) -> Result<(), MembershipError> {
        done(self.raft.change_membership(change, false).await)
    }

    fn as_leader(&self) -> Result<Metrics, MembershipError> {
        self.raft.as_leader().map_err(not_leader)?;
        let metrics = self.raft.metrics().borrow_watched().clone();
        if metrics.membership_config.membership().get_joint_config().len() > 1 {
            return Err(MembershipError::Busy);
        }
        Ok(metrics)
    }
}

fn done<T>(changed: Result<T, RaftError<TypeConfig, ClientWriteError<TypeConfig>>>) -> Result<(), MembershipError> {
    let unknown = |reason, detail: String| Err(ProposeError::from(Unavailable::new(reason, detail, 200).maybe_written()).into());
    match changed {
        Ok(_) => Ok(()),
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => Err(not_leader(forward).into()),
        Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_)))) => {
            Err(MembershipError::Busy)
        }
        Err(RaftError::APIError(error)) => unknown(Reason::NoLeader, error.to_string()),
        Err(RaftError::Fatal(fatal)) => unknown(Reason::Stopping, fatal.to_string()),
    }
}

/// The highest log index known to be on that node; `None` where it is not known.
pub(crate) fn matched(metrics: &Metrics, id: u64) -> Option<u64> {
    if id == metrics.id {
        return metrics.last_log_index;
    }
    metrics.replication.as_ref()?.get(&id)?.as_ref().map(|matched| matched.index())
}

/// Whether a leader has an answer of that node to what it sent in this time.
pub(crate) fn heard_within(metrics: &Metrics, id: u64, time: Duration) -> bool {
    let heard = metrics.heartbeat.as_ref().and_then(|heartbeat| heartbeat.get(&id).copied().flatten());
    heard.is_some_and(|heard| heard.into_inner().elapsed() < time)
}
