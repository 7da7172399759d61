//! Reads: at the consistency that was asked for, on any node.
//!
//! * Linearizable: the leader confirms with a quorum that it still leads (ReadIndex) and names the index it had committed; the
//!   reading node waits until it has applied that. Reads that come while a round is under way share the next one, and at most
//!   two rounds are under way, so a round's cost does not grow with the number of readers.
//! * At least a revision: waits, bounded, until it is applied here. What read-your-own-write needs on any node.
//! * Stale: at once, with the age of the state, or refused when it is older than allowed.
//!
//! The age of the state counts from when the leader last sent what a quorum acknowledged: then, nobody else can have decided
//! anything. A follower hears that with each request of the leader, so its age is never less than the truth by more than the
//! way of that one request.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use quorate_domain::lineage::Lineage;
use quorate_domain::machine::Clock;
use quorate_domain::{LeaseTime, Principal, ReadStamp, Revision, StorageError, UnixMs};
use quorate_storage::StateView;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep_until, timeout_at};

use crate::clock::Clock as MachineClock;
use crate::config::Config;
use crate::form::ReadIndexReplyForm;
use crate::machine::Applied;
use crate::network::Links;
use crate::quarantine::Quarantine;
use crate::types::Raft;
use crate::unavailable::{Reason, Unavailable};

/// Rounds that may be under way: while one is on the wire the next can start.
const ROUNDS_MAX: usize = 2;
/// Readers that may wait for a round. Bounded only against a flood; each costs a few bytes.
const READERS_MAX: usize = 65_536;
/// How long a reader rests before it asks again who leads.
const RETRY: Duration = Duration::from_millis(25);

/// How fresh a read has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    Linearizable,
    AtLeast(Revision),
    Stale { age_max: Duration },
}

/// A state to read, and what its reader is to know of it.
pub struct ReadAt {
    pub view: StateView,
    /// The last revision in `view`.
    pub revision: Revision,
    pub lease_now: LeaseTime,
    pub wall: UnixMs,
    /// How old the state may be: zero for a linearizable read, `None` when this node has not heard of a leader.
    pub age: Option<Duration>,
}

impl ReadAt {
    pub fn stamp(&self, caller: Principal) -> ReadStamp {
        ReadStamp { revision: self.revision, lease_now: self.lease_now, wall: self.wall, caller }
    }
}

/// Why there is no state to read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// This node's storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Serves reads. Clones share the rounds.
#[derive(Clone)]
pub struct Reader {
    applied: Arc<Applied>,
    links: Arc<Links>,
    contact: Arc<Contact>,
    quarantine: Arc<Quarantine>,
    clock: Arc<dyn MachineClock>,
    as_leader: Rounds,
    anywhere: Rounds,
}

impl Reader {
    pub fn start(
        raft: Raft,
        applied: Arc<Applied>,
        links: Arc<Links>,
        contact: Arc<Contact>,
        quarantine: Arc<Quarantine>,
        config: &Config,
    ) -> Self {
        let round_max = config.lease();
        let as_leader = {
            let (raft, applied) = (raft.clone(), Arc::clone(&applied));
            Rounds::start(move || {
                applied.meter.read_rounds.fetch_add(1, Ordering::Relaxed);
                let raft = raft.clone();
                Box::pin(async move { confirm(&raft).await })
            })
        };
        let anywhere = {
            let (raft, links, as_leader) = (raft.clone(), Arc::clone(&links), as_leader.clone());
            Rounds::start(move || {
                let (raft, links, as_leader) = (raft.clone(), Arc::clone(&links), as_leader.clone());
                Box::pin(async move { ask(&raft, &links, &as_leader, round_max).await })
            })
        };
        Self { applied, links, contact, quarantine, clock: Arc::clone(&config.clock), as_leader, anywhere }
    }

    /// The state at the consistency asked for, or why not before the deadline.
    pub async fn at(&self, consistency: Consistency, deadline: Instant) -> Result<ReadAt, ReadError> {
        match consistency {
            Consistency::Linearizable => {
                self.applied.meter.reads.fetch_add(1, Ordering::Relaxed);
                let index = self.index(deadline).await?;
                self.wait_applied(index, deadline).await?;
                self.view(Some(Duration::ZERO))
            }
            Consistency::AtLeast(revision) => {
                self.wait_applied(revision.0, deadline).await?;
                let at = self.view(self.age())?;
                // Its number was passed, but what it wrote is not here.
                match Lineage::read(&at.view)?.lost(revision) {
                    None => Ok(at),
                    Some(cut) => {
                        let detail = format!("revision {revision} is gone: the cluster was restored to what it was at {}", cut.through);
                        Err(Unavailable::new(Reason::OtherLineage, detail, 0).into())
                    }
                }
            }
            Consistency::Stale { age_max } => match self.age() {
                Some(age) if age <= age_max => self.view(Some(age)),
                Some(age) => {
                    let detail =
                        format!("the state here may be {} ms old, and at most {} ms are allowed", age.as_millis(), age_max.as_millis());
                    Err(Unavailable::new(Reason::TooStale, detail, 100).into())
                }
                None => Err(Unavailable::new(Reason::TooStale, "this node has not heard of a leader since it started", 100).into()),
            },
        }
    }

    /// How old the state of this node may be.
    pub fn age(&self) -> Option<Duration> {
        // A leader answers after it has applied, so its state holds all that anyone was told.
        self.links.quorum_age().or_else(|| self.contact.age(self.applied.index()))
    }

    /// What another node waits for in order to read as if here. Only the leader says it.
    pub async fn index_as_leader(&self) -> ReadIndexReplyForm {
        match self.as_leader.share().await {
            Ok(index) => ReadIndexReplyForm::Index(index),
            Err(unavailable) if unavailable.reason == Reason::NoLeader => ReadIndexReplyForm::NotLeader,
            Err(unavailable) => ReadIndexReplyForm::NoQuorum(unavailable.detail),
        }
    }

    /// Asks until there is an answer or the deadline comes: a read has no effect, so an election only makes it slower.
    async fn index(&self, deadline: Instant) -> Result<u64, Unavailable> {
        loop {
            let problem = match timeout_at(deadline.into(), self.anywhere.share()).await {
                Ok(Ok(index)) => return Ok(index),
                Ok(Err(unavailable)) => unavailable,
                Err(_) => return Err(Unavailable::new(Reason::NoQuorum, "no quorum confirmed the leader before the deadline", 100)),
            };
            let again = Instant::now() + RETRY;
            if again >= deadline || problem.reason == Reason::Stopping || problem.reason == Reason::Overloaded {
                return Err(problem);
            }
            sleep_until(again.into()).await;
        }
    }

    async fn wait_applied(&self, index: u64, deadline: Instant) -> Result<(), Unavailable> {
        let mut applied = self.applied.watch();
        let reached = match timeout_at(deadline.into(), applied.wait_for(|applied| *applied >= index)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => return Err(Unavailable::new(Reason::Stopping, "the node stops", 1_000)),
            Err(_) => self.applied.index(),
        };
        Err(Unavailable::new(Reason::Timeout, format!("revision {index} is not applied here yet: the last one is {reached}"), 100))
    }

    fn view(&self, age: Option<Duration>) -> Result<ReadAt, ReadError> {
        if self.quarantine.is_entered() {
            return Err(Unavailable::new(Reason::Stopping, "this node can't trust its state", 1_000).into());
        }
        // Before the view: entries that only move Raft leave no mark in the state, so this is the newest of them it is known
        // to be behind.
        let at_least = self.applied.index();
        let view = self.applied.state.view();
        let clock = Clock::read(&view)?;
        let revision = clock.revision.max(Revision(at_least));
        Ok(ReadAt { view, revision, lease_now: clock.lease_now, wall: clock.wall.max(self.clock.wall()), age })
    }
}

/// One ReadIndex round as the leader.
async fn confirm(raft: &Raft) -> Result<u64, Unavailable> {
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(linearizer.read_log_id().index()),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => {
            Err(Unavailable::new(Reason::NoLeader, "this node does not lead", 50))
        }
        Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(error))) => {
            Err(Unavailable::new(Reason::NoQuorum, error.to_string(), 200))
        }
        Err(RaftError::Fatal(fatal)) => Err(Unavailable::new(Reason::Stopping, fatal.to_string(), 1_000)),
    }
}

/// One round from any node: here if it leads, else at the leader it knows.
async fn ask(raft: &Raft, links: &Arc<Links>, as_leader: &Rounds, round_max: Duration) -> Result<u64, Unavailable> {
    let forward = match raft.as_leader() {
        Ok(_) => return as_leader.share().await,
        Err(forward) => forward,
    };
    let (Some(leader), Some(address)) = (forward.leader_id, forward.leader_node) else {
        return Err(Unavailable::new(Reason::NoLeader, "no leader is known", 100));
    };
    match links.read_index(leader, &address, round_max).await {
        Ok(ReadIndexReplyForm::Index(index)) => Ok(index),
        Ok(ReadIndexReplyForm::NotLeader) => Err(Unavailable::new(Reason::NoLeader, format!("node {leader} does not lead any more"), 50)),
        Ok(ReadIndexReplyForm::NoQuorum(detail)) => Err(Unavailable::new(Reason::NoQuorum, detail, 200)),
        Err(problem) => Err(Unavailable::new(Reason::NoLeader, problem, 100)),
    }
}

type Shared = oneshot::Sender<Result<u64, Unavailable>>;

/// Rounds that many callers share. A caller only gets the answer of a round that began after it asked.
#[derive(Clone)]
struct Rounds(mpsc::Sender<Shared>);

impl Rounds {
    fn start(round: impl Fn() -> BoxFuture<'static, Result<u64, Unavailable>> + Send + Sync + 'static) -> Self {
        let (sender, mut waiting) = mpsc::channel::<Shared>(READERS_MAX);
        let free = Arc::new(Semaphore::new(ROUNDS_MAX));
        let round = Arc::new(round);
        tokio::spawn(async move {
            while let Some(first) = waiting.recv().await {
                let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
                // All that have come until now, and nobody after the round begins.
                let mut readers = vec![first];
                while let Ok(reader) = waiting.try_recv() {
                    readers.push(reader);
                }
                let round = round();
                tokio::spawn(async move {
                    let answer = round.await;
                    drop(permit);
                    for reader in readers {
                        // Those that ran into their deadline have gone.
                        let _ = reader.send(answer.clone());
                    }
                });
            }
        });
        Self(sender)
    }

    async fn share(&self) -> Result<u64, Unavailable> {
        let (sender, answer) = oneshot::channel();
        if self.0.try_send(sender).is_err() {
            return Err(Unavailable::new(Reason::Overloaded, "too many reads are waiting", 100));
        }
        let stopping = || Unavailable::new(Reason::Stopping, "the node stops", 1_000);
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

/// What a follower has heard from leaders, as far as it tells the age of its state.
#[derive(Default)]
pub struct Contact(Mutex<VecDeque<Heard>>);

struct Heard {
    /// Committed in the whole cluster at `at`.
    commit: u64,
    at: Instant,
}

impl Contact {
    /// A leader's request: `commit` was the cluster's `age` before it was sent.
    pub fn hear(&self, commit: u64, age: Duration) {
        let Some(at) = Instant::now().checked_sub(age) else { return };
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push_back(Heard { commit, at });
        // Only what is not applied yet is worth more than the last; a handful bridges any batch.
        if heard.len() > 64 {
            heard.pop_front();
        }
    }

    fn age(&self, applied: u64) -> Option<Duration> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = heard.iter().filter(|heard| heard.commit <= applied).map(|heard| heard.at).max()?;
        Some(newest.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn readers_share_rounds_and_never_get_one_that_began_before_they_asked() {
        let begun = Arc::new(AtomicU64::new(0));
        let go = Arc::new(Semaphore::new(0));
        let rounds = {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            Rounds::start(move || {
                let number = begun.fetch_add(1, Ordering::SeqCst);
                let go = Arc::clone(&go);
                Box::pin(async move {
                    go.acquire().await.unwrap().forget();
                    Ok(number)
                })
            })
        };
        let ask = || {
            tokio::spawn({
                let rounds = rounds.clone();
                async move { rounds.share().await }
            })
        };
        let first = ask();
        while begun.load(Ordering::SeqCst) < 1 {
            tokio::task::yield_now().await;
        }
        let second = ask();
        while begun.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        let late: Vec<_> = (0..50).map(|_| ask()).collect();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2, "two rounds under way, all others wait");
        go.add_permits(10);
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(0), Ok(1)));
        for reader in late {
            assert!(reader.await.unwrap().unwrap() >= 2);
        }
        assert!(begun.load(Ordering::SeqCst) <= 4, "fifty readers, two rounds at most");
    }

    #[test]
    fn the_age_counts_from_the_newest_contact_whose_commits_are_applied() {
        let contact = Contact::default();
        assert_eq!(contact.age(10), None);
        contact.hear(10, Duration::from_millis(500));
        contact.hear(12, Duration::from_millis(20));
        assert!(contact.age(9).is_none());
        assert!(contact.age(11).unwrap() >= Duration::from_millis(500));
        assert!(contact.age(12).unwrap() < Duration::from_millis(500));
    }
}
