//! Who takes part: members come as learners, become voters once they have caught up, and never come back under a used id.
//!
//! An id that was a member before could bring votes or entries of that time with it, from a disk that was put back, and elect
//! itself out of a membership that is long gone. So the state machine keeps every id that was ever a member.
//!
//! One change runs at a time; another one is refused until the membership is uniform again. A change that has begun goes on
//! when its caller goes away. A leader that dies between the two steps of one leaves the membership joint, and the next
//! leader finishes it: in a joint membership two quorums are needed, so it must not stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::machine::Applied;
use crate::proposer::not_leader;
use crate::types::{Address, Metrics, Raft, TypeConfig};
use crate::unavailable::{ProposeError, Reason, Unavailable};

/// Entries that a learner may lack when it becomes a voter: the quorum must not wait for it.
const PROMOTION_LAG_MAX: u64 = 1_000;
/// A learner has to be that close, and heard of, for so long. Shorter, and one that catches up and stalls in turns may pass.
const STEADY: Duration = Duration::from_secs(3);
const STEADY_CHECK: Duration = Duration::from_millis(100);
/// A member that was heard of within this lives; or within the leader's lease, where that is longer.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// How long a change waits for the one before it to be applied here.
const APPLIED_WITHIN: Duration = Duration::from_secs(2);
/// How often a leader looks for a change that another one left half done.
const LEFT_OVER_CHECK: Duration = Duration::from_secs(1);

/// One change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a member that gets everything and votes on nothing, yet.
    AddLearner { id: u64, address: Address },
    /// Makes a learner a voter, and removes another voter in the same step: so the quorum never grows by a member that is down.
    Promote { id: u64, instead_of: Option<u64> },
    /// Takes a member out, for good; with `force` even if those that are left and live make no quorum.
    Remove { id: u64, force: bool },
}

/// How a change ended that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Changed,
    /// Asked again after it was done.
    AlreadySo,
}

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
    #[error(
        "without node {id} there are {voters} voters, and only {live} of them are heard of: no quorum would be left, and writes would stop; \
         bring the others back or replace them first, or force it"
    )]
    NoQuorumLeft { id: u64, voters: usize, live: usize },
    #[error("node {0} leads and has to hand over before it goes")]
    Leads(u64),
    #[error(transparent)]
    Undecided(#[from] ProposeError),
}

/// Changes of the membership, one at a time.
pub(crate) struct Changes {
    raft: Raft,
    applied: Arc<Applied>,
    heard_within: Duration,
    running: Arc<Mutex<()>>,
}

impl Changes {
    pub fn new(raft: Raft, applied: Arc<Applied>, lease: Duration) -> Arc<Self> {
        Arc::new(Self { raft, applied, heard_within: lease.max(HEARD_WITHIN), running: Arc::default() })
    }

    /// Whether a change could be made now.
    pub async fn check(&self, change: &Change) -> Result<Outcome, MembershipError> {
        let _running = self.running.try_lock().map_err(|_| MembershipError::Busy)?;
        self.applied_here().await?;
        let planned = plan(&self.view()?, change)?;
        Ok(if planned.is_some() { Outcome::Changed } else { Outcome::AlreadySo })
    }

    /// Makes a change and waits for it until the deadline; it goes on after that.
    pub async fn make(self: &Arc<Self>, change: Change, deadline: Instant) -> Result<Outcome, MembershipError> {
        let running = Arc::clone(&self.running).try_lock_owned().map_err(|_| MembershipError::Busy)?;
        let changes = Arc::clone(self);
        let task = tokio::spawn(async move {
            let _running = running;
            changes.settle().await?;
            let Some(mut planned) = plan(&changes.view()?, &change)? else { return Ok(Outcome::AlreadySo) };
            if matches!(change, Change::Promote { .. }) {
                let steady = Instant::now() + STEADY;
                while Instant::now() < steady {
                    tokio::time::sleep(STEADY_CHECK).await;
                    planned = match plan(&changes.view()?, &change)? {
                        Some(planned) => planned,
                        None => return Ok(Outcome::AlreadySo),
                    };
                }
            }
            done(changes.raft.change_membership(planned, false).await)?;
            Ok(Outcome::Changed)
        });
        let unknown = |reason, detail: &str| ProposeError::from(Unavailable::new(reason, detail, 200).maybe_written());
        match tokio::time::timeout_at(deadline.into(), task).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => Err(unknown(Reason::Stopping, "the change was broken off").into()),
            Err(_) => Err(unknown(Reason::Timeout, "the change has begun and no quorum has decided it yet").into()),
        }
    }

    /// Finishes what a leader that died left joint, for as long as this node lives.
    pub async fn finish_left_over(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LEFT_OVER_CHECK).await;
            let metrics = self.metrics();
            if !metrics.state.is_leader() || !is_joint(&metrics) {
                continue;
            }
            let Ok(_running) = self.running.try_lock() else { continue };
            match self.settle().await {
                Ok(()) => tracing::info!("finished a change of the membership that another leader began"),
                Err(error) => tracing::debug!(%error, "a change of the membership stays half done for now"),
            }
        }
    }

    /// To be called by whoever holds `running`: then a joint membership is nobody's work.
    async fn settle(&self) -> Result<(), MembershipError> {
        self.applied_here().await?;
        self.raft.as_leader().map_err(not_leader)?;
        if !is_joint(&self.metrics()) {
            return Ok(());
        }
        // A change by nothing: openraft takes a joint membership to its second half.
        done(self.raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::new()), false).await)?;
        let uniform = self.raft.wait(Some(APPLIED_WITHIN)).metrics(|metrics| !is_joint(metrics), "a uniform membership").await;
        uniform.map(|_| ()).map_err(|_| MembershipError::Busy)
    }

    /// Waits until the latest membership is applied here: only then are all ids known that were ever used.
    async fn applied_here(&self) -> Result<(), MembershipError> {
        let at = self.metrics().membership_config.log_id().as_ref().map_or(0, |id| id.index());
        let mut applied = self.applied.watch();
        match timeout(APPLIED_WITHIN, applied.wait_for(|applied| *applied >= at)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(MembershipError::Busy),
        }
    }

    fn metrics(&self) -> Metrics {
        self.raft.metrics().borrow_watched().clone()
    }

    fn view(&self) -> Result<View, MembershipError> {
        self.raft.as_leader().map_err(not_leader)?;
        let metrics = self.metrics();
        if is_joint(&metrics) {
            return Err(MembershipError::Busy);
        }
        let members: BTreeMap<u64, Address> =
            metrics.membership_config.membership().nodes().map(|(id, address)| (*id, address.clone())).collect();
        let lag = |id: u64| metrics.last_log_index.unwrap_or_default().saturating_sub(matched(&metrics, id).unwrap_or_default());
        Ok(View {
            me: metrics.id,
            voters: metrics.membership_config.voter_ids().collect(),
            ever: self.applied.members_ever(),
            live: members.keys().copied().filter(|id| *id == metrics.id || heard_within(&metrics, *id, self.heard_within)).collect(),
            lags: members.keys().map(|id| (*id, lag(*id))).collect(),
            members,
        })
    }
}

/// What a leader knows of the membership, when it is uniform.
struct View {
    me: u64,
    voters: BTreeSet<u64>,
    members: BTreeMap<u64, Address>,
    /// Ids that were members at any time.
    ever: BTreeSet<u64>,
    /// Members heard of lately, this node among them.
    live: BTreeSet<u64>,
    /// Entries that a member lacks.
    lags: BTreeMap<u64, u64>,
}

/// What to ask of openraft; nothing when it is so already.
fn plan(view: &View, change: &Change) -> Result<Option<ChangeMembers<u64, Address>>, MembershipError> {
    match change {
        Change::AddLearner { id, address } => match view.members.get(id) {
            Some(known) if known == address => Ok(None),
            Some(_) => Err(MembershipError::UsedBefore(*id)),
            None if view.ever.contains(id) => Err(MembershipError::UsedBefore(*id)),
            None => Ok(Some(ChangeMembers::AddNodes(BTreeMap::from([(*id, address.clone())])))),
        },
        Change::Promote { id, instead_of } => plan_promotion(view, *id, *instead_of),
        Change::Remove { id, force } => plan_removal(view, *id, *force),
    }
}

fn plan_promotion(view: &View, id: u64, instead_of: Option<u64>) -> Result<Option<ChangeMembers<u64, Address>>, MembershipError> {
    let goes = instead_of.filter(|old| view.voters.contains(old));
    if view.voters.contains(&id) {
        // Half of it was done by other means; the rest is a removal like any other.
        return goes.map_or(Ok(None), |old| plan_removal(view, old, false));
    }
    if !view.members.contains_key(&id) {
        return Err(MembershipError::NoMember(id));
    }
    if !view.live.contains(&id) {
        return Err(MembershipError::Silent(id));
    }
    let lag = view.lags.get(&id).copied().unwrap_or(u64::MAX);
    if lag > PROMOTION_LAG_MAX {
        return Err(MembershipError::Behind { id, lag });
    }
    let comes = ChangeMembers::AddVoterIds(BTreeSet::from([id]));
    match goes {
        None => Ok(Some(comes)),
        Some(old) if old == view.me => Err(MembershipError::Leads(old)),
        Some(old) => Ok(Some(ChangeMembers::Batch(vec![comes, ChangeMembers::RemoveVoters(BTreeSet::from([old]))]))),
    }
}

fn plan_removal(view: &View, id: u64, force: bool) -> Result<Option<ChangeMembers<u64, Address>>, MembershipError> {
    if !view.members.contains_key(&id) {
        // Asked again after it was done, or never there: told apart by whether it was ever a member.
        return if view.ever.contains(&id) { Ok(None) } else { Err(MembershipError::NoMember(id)) };
    }
    if !view.voters.contains(&id) {
        return Ok(Some(ChangeMembers::RemoveNodes(BTreeSet::from([id]))));
    }
    let left: BTreeSet<u64> = view.voters.iter().copied().filter(|voter| *voter != id).collect();
    if left.is_empty() {
        return Err(MembershipError::LastVoter(id));
    }
    let (voters, live) = (left.len(), left.intersection(&view.live).count());
    if live < voters / 2 + 1 && !force {
        return Err(MembershipError::NoQuorumLeft { id, voters, live });
    }
    if id == view.me {
        return Err(MembershipError::Leads(id));
    }
    Ok(Some(ChangeMembers::RemoveVoters(BTreeSet::from([id]))))
}

fn is_joint(metrics: &Metrics) -> bool {
    metrics.membership_config.membership().get_joint_config().len() > 1
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

/// How long ago a leader sent what that node answered; `None` where it is not known.
pub(crate) fn heard_ago(metrics: &Metrics, id: u64) -> Option<Duration> {
    let heard = metrics.heartbeat.as_ref().and_then(|heartbeat| heartbeat.get(&id).copied().flatten());
    heard.map(|heard| heard.into_inner().elapsed())
}

/// Whether a leader has an answer of that node to what it sent in this time.
pub(crate) fn heard_within(metrics: &Metrics, id: u64, time: Duration) -> bool {
    heard_ago(metrics, id).is_some_and(|ago| ago < time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(id: u64) -> Address {
        Address { grpc: format!("127.0.0.1:74{id:02}"), http: format!("127.0.0.1:75{id:02}") }
    }

    /// Node 1 leads; of the members, `dead` are not heard of.
    fn view(voters: &[u64], learners: &[u64], dead: &[u64]) -> View {
        let members: BTreeMap<u64, Address> = voters.iter().chain(learners).map(|id| (*id, address(*id))).collect();
        View {
            me: 1,
            voters: voters.iter().copied().collect(),
            ever: members.keys().copied().collect(),
            live: members.keys().copied().filter(|id| !dead.contains(id)).collect(),
            lags: members.keys().map(|id| (*id, 0)).collect(),
            members,
        }
    }

    fn remove(id: u64) -> Change {
        Change::Remove { id, force: false }
    }

    fn promote(id: u64) -> Change {
        Change::Promote { id, instead_of: None }
    }

    #[test]
    fn a_removal_that_leaves_no_live_quorum_is_refused_unless_forced() {
        assert!(plan(&view(&[1, 2, 3], &[], &[]), &remove(2)).unwrap().is_some());
        assert!(plan(&view(&[1, 2, 3], &[], &[3]), &remove(3)).unwrap().is_some(), "the dead one itself may go");
        let refused = plan(&view(&[1, 2, 3], &[], &[3]), &remove(2)).unwrap_err();
        assert_eq!(refused, MembershipError::NoQuorumLeft { id: 2, voters: 2, live: 1 });
        assert!(refused.to_string().contains("2 voters, and only 1 of them"), "{refused}");
        assert!(plan(&view(&[1, 2, 3], &[], &[3]), &Change::Remove { id: 2, force: true }).unwrap().is_some());
        assert!(plan(&view(&[1, 2, 3], &[4], &[3]), &remove(4)).unwrap().is_some(), "a learner is in no quorum");
        assert_eq!(plan(&view(&[1], &[], &[]), &remove(1)), Err(MembershipError::LastVoter(1)));
    }

    #[test]
    fn a_leader_hands_over_before_it_goes() {
        assert_eq!(plan(&view(&[1, 2, 3], &[], &[]), &remove(1)), Err(MembershipError::Leads(1)));
        let instead = Change::Promote { id: 4, instead_of: Some(1) };
        assert_eq!(plan(&view(&[1, 2, 3], &[4], &[]), &instead), Err(MembershipError::Leads(1)));
    }

    #[test]
    fn a_learner_votes_only_when_it_is_close_and_heard_of() {
        let mut view = view(&[1, 2, 3], &[4, 5], &[5]);
        assert!(plan(&view, &promote(4)).unwrap().is_some());
        assert_eq!(plan(&view, &promote(5)), Err(MembershipError::Silent(5)));
        assert_eq!(plan(&view, &promote(6)), Err(MembershipError::NoMember(6)));
        view.lags.insert(4, PROMOTION_LAG_MAX + 1);
        assert_eq!(plan(&view, &promote(4)).unwrap_err().to_string(), "node 4 is 1001 entries behind; wait until it has caught up");
    }

    #[test]
    fn a_voter_takes_the_place_of_a_dead_one_in_one_step() {
        let instead = Change::Promote { id: 4, instead_of: Some(3) };
        let swap = plan(&view(&[1, 2, 3], &[4], &[3]), &instead).unwrap();
        assert!(matches!(swap, Some(ChangeMembers::Batch(_))), "{swap:?}");
        let rest = plan(&view(&[1, 2, 3, 4], &[], &[3]), &instead).unwrap();
        assert_eq!(rest, Some(ChangeMembers::RemoveVoters(BTreeSet::from([3]))), "the new one votes already");
        assert_eq!(plan(&view(&[1, 2, 4], &[], &[]), &instead), Ok(None));
    }

    #[test]
    fn asking_again_changes_nothing_and_a_used_id_never_comes_back() {
        let mut view = view(&[1, 2, 3], &[4], &[]);
        view.ever.insert(9);
        assert_eq!(plan(&view, &Change::AddLearner { id: 4, address: address(4) }), Ok(None));
        assert_eq!(plan(&view, &Change::AddLearner { id: 4, address: address(5) }), Err(MembershipError::UsedBefore(4)));
        assert_eq!(plan(&view, &Change::AddLearner { id: 9, address: address(9) }), Err(MembershipError::UsedBefore(9)));
        assert!(plan(&view, &Change::AddLearner { id: 5, address: address(5) }).unwrap().is_some());
        assert_eq!(plan(&view, &promote(3)), Ok(None));
        assert_eq!(plan(&view, &remove(9)), Ok(None));
        assert_eq!(plan(&view, &remove(8)), Err(MembershipError::NoMember(8)));
    }
}
