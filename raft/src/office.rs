//! Handing leadership on.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;

use crate::fitness::Fitness;
use crate::membership::{heard_within, matched};
use crate::types::{Metrics, Raft};

/// How long a leader that steps down may look for a successor.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);
/// Entries that a successor may be behind: what is on its way at any moment.
const TRANSFER_LAG_MAX: u64 = 10_000;

/// Why leadership was not handed over.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TransferLeaderError {
    #[error("this node does not lead")]
    NotLeader,
    #[error("node {0} is no voter")]
    NoVoter(u64),
    #[error("node {id} is {lag} entries behind; wait until it has caught up")]
    Behind { id: u64, lag: u64 },
    #[error("node {0} has not been heard of lately")]
    Silent(u64),
    #[error("node {0} did not take over in time; the voters elect again")]
    NotTaken(u64),
    #[error("the node has stopped: {0}")]
    Stopped(String),
}

impl TransferLeaderError {
    /// Whether another successor may do.
    fn is_of_successor(&self) -> bool {
        matches!(self, TransferLeaderError::Silent(_) | TransferLeaderError::Behind { .. })
    }
}

/// What a leader steps down by.
pub struct Office {
    pub raft: Raft,
    pub node_id: u64,
    pub lease: Duration,
    pub fitness: Arc<Fitness>,
}

impl Office {
    fn metrics(&self) -> Metrics {
        self.raft.metrics().borrow_watched().clone()
    }

    /// Hands leadership to another voter and waits until it has taken over.
    pub async fn transfer_to(&self, to: u64) -> Result<(), TransferLeaderError> {
        let raft = &self.raft;
        if to == self.node_id && raft.is_leader() {
            return Ok(());
        }
        let metrics = self.metrics();
        if !metrics.state.is_leader() {
            return Err(TransferLeaderError::NotLeader);
        }
        // A leader that gives up its office to one who can't take it leaves the cluster without one for an election.
        self.check_successor(&metrics, to)?;
        raft.trigger().transfer_leader(to).await.map_err(|fatal| TransferLeaderError::Stopped(fatal.to_string()))?;
        let taken = raft.wait(Some(HAND_OVER_MAX)).metrics(|metrics| metrics.current_leader == Some(to), "another leads").await;
        taken.map(|_| ()).map_err(|_| TransferLeaderError::NotTaken(to))
    }

    fn check_successor(&self, metrics: &Metrics, to: u64) -> Result<(), TransferLeaderError> {
        if !metrics.membership_config.voter_ids().any(|voter| voter == to) {
            return Err(TransferLeaderError::NoVoter(to));
        }
        if !heard_within(metrics, to, self.lease) {
            return Err(TransferLeaderError::Silent(to));
        }
        let matched = matched(metrics, to).unwrap_or_default();
        let lag = metrics.last_log_index.unwrap_or_default().saturating_sub(matched);
        if lag > TRANSFER_LAG_MAX {
            return Err(TransferLeaderError::Behind { id: to, lag });
        }
        Ok(())
    }

    /// The other voters, those that are fit and have most of the log first.
    fn successors(&self, metrics: &Metrics) -> Vec<u64> {
        let mut others: Vec<u64> = metrics.membership_config.voter_ids().filter(|voter| *voter != self.node_id).collect();
        others.sort_by_key(|other| (!self.fitness.is_fit(*other), std::cmp::Reverse(matched(metrics, *other))));
        others
    }

    /// Hands leadership to the best voter that is heard of.
    pub async fn hand_over(&self) -> Result<(), TransferLeaderError> {
        let metrics = self.metrics();
        self.hand_to(self.successors(&metrics)).await
    }

    /// The same, but only to one that says it is fit; false when there is none.
    pub async fn give_way(&self) -> Result<bool, TransferLeaderError> {
        let metrics = self.metrics();
        let mut fit = self.successors(&metrics);
        fit.retain(|other| self.fitness.is_fit(*other) && self.check_successor(&metrics, *other).is_ok());
        if fit.is_empty() {
            return Ok(false);
        }
        self.hand_to(fit).await.map(|()| true)
    }

    async fn hand_to(&self, others: Vec<u64>) -> Result<(), TransferLeaderError> {
        let mut outcome = Ok(());
        for other in others {
            outcome = self.transfer_to(other).await;
            if !outcome.as_ref().is_err_and(TransferLeaderError::is_of_successor) {
                break;
            }
        }
        outcome
    }
}
