//! From a call to an entry: the one task that proposes.
//!
//! Calls wait in two bounded lanes: leases (which must not starve, or their holders lose what they hold) before everything
//! else. While this node leads, one task takes them out, stamps each with the wall clock and with what it adds to the lease
//! clock, and submits them in that order, so that no time is counted twice or out of order. An idle cluster gets a tick.
//!
//! Calls are submitted in rounds: all that wait go together, and the next round waits until one of those under way is answered.
//! So a lone call never waits for company, and under load a round grows to what came in meanwhile: one append, one fsync, one
//! message to each follower and one commit of the state for all of it.
//!
//! A proposal ends in one of these ways, told apart for its caller: decided; refused before it was submitted (nothing was
//! written); or submitted without an answer (it may have been written, and its retry finds out).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::base::BoxStream;
use openraft::errors::{ClientWriteError, Fatal as OpenraftFatal, ForwardReason, ForwardToLeader};
use openraft::raft::WriteResult;
use quorate_domain::machine::{Body, Call, Decided, Entry};
use quorate_domain::{Command, Refusal, Revision, codec, level};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout_at};

use crate::clock::{Clock, LeaseMark};
use crate::config::Config;
use crate::fitness::{ClockVerdict, Fitness, Space};
use crate::machine::Applied;
use crate::types::{MetricsReceiver, Proposal, Raft, TypeConfig};
use crate::unavailable::{ProposeError, Reason, Unavailable};

/// How long a new leader waits for the first answer of a quorum before it refuses what waits.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Rounds that only leases may begin.
const LEASE_ROUNDS: usize = 1;
/// What one round holds at the most; the rest is the next one's.
const ROUND_ENTRIES_MAX: usize = 4_096;
const ROUND_BYTES_MAX: usize = 4 << 20;

/// Where a proposal waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Leases,
    Calls,
}

impl Lane {
    /// Leases, and what ends them, go first.
    pub fn of(command: &Command) -> Self {
        match command {
            Command::PunchIn(_) | Command::PunchOut(_) | Command::LeaveQueue(_) | Command::ForceRelease(_) => Lane::Leases,
            Command::AttendTicket(_) | Command::RenewPunchcards(_) | Command::TransferPunchcard(_) | Command::SetSpaceAlarm(_) => {
                Lane::Leases
            }
            _ => Lane::Calls,
        }
    }
}

/// Takes proposals. Clones share the lanes.
#[derive(Clone)]
pub struct Proposer {
    raft: Raft,
    applied: Arc<Applied>,
    fitness: Arc<Fitness>,
    leases: mpsc::Sender<Queued>,
    calls: mpsc::Sender<Queued>,
    queue_age_ms_max: u64,
}

type Answer = Result<WriteResult<TypeConfig>, ProposeError>;

struct Queued {
    call: Call,
    since: Instant,
    /// The caller's view of it: see [`WAITING`].
    state: Arc<AtomicU8>,
    to: oneshot::Sender<Answer>,
}

/// In a lane: its caller may still take it back.
const WAITING: u8 = 0;
/// Handed to openraft: the outcome is the log's.
const SUBMITTED: u8 = 1;
/// Taken back.
const ABANDONED: u8 = 2;

impl Proposer {
    pub fn start(raft: Raft, applied: Arc<Applied>, fitness: Arc<Fitness>, config: &Config) -> Self {
        let (leases, leases_queue) = mpsc::channel(config.queue_max);
        let (calls, calls_queue) = mpsc::channel(config.queue_max);
        let task = Task {
            raft: raft.clone(),
            applied: Arc::clone(&applied),
            fitness: Arc::clone(&fitness),
            metrics: raft.metrics(),
            leases: leases_queue,
            calls: calls_queue,
            rounds: Arc::new(Semaphore::new(config.rounds_max)),
            lease_rounds: Arc::new(Semaphore::new(LEASE_ROUNDS)),
            answered: Arc::default(),
            queue_age_max: Duration::from_millis(config.queue_age_ms_max),
            lease: config.lease(),
            tick: Duration::from_millis(config.tick_ms),
            clock: Arc::clone(&config.clock),
            mark: LeaseMark::default(),
            led_since: None,
            last: Instant::now(),
        };
        tokio::spawn(task.run());
        Self { raft, applied, fitness, leases, calls, queue_age_ms_max: config.queue_age_ms_max }
    }

    /// Has the log decide a call. Answers by `deadline`.
    pub async fn propose(&self, call: Call, deadline: Instant) -> Result<Decided, ProposeError> {
        self.raft.as_leader().map_err(not_leader)?;
        if !matches!(call.command, Command::SetSpaceAlarm(_)) {
            self.check_disks()?;
        }
        if let Some(refusal) = self.refuse_level(&call.command)? {
            // Not by the log: what not every member knows must not stand there.
            return Ok(Decided { revision: Revision(self.applied.index()), outcome: Err(refusal), replayed: false });
        }
        let lane = match Lane::of(&call.command) {
            Lane::Leases => &self.leases,
            Lane::Calls => &self.calls,
        };
        let (to, answer) = oneshot::channel();
        let state = Arc::new(AtomicU8::new(WAITING));
        let queued = Queued { call, since: Instant::now(), state: Arc::clone(&state), to };
        lane.try_send(queued).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                self.applied.meter.refused_full.fetch_add(1, Ordering::Relaxed);
                self.overloaded("the queue of proposals is full")
            }
            mpsc::error::TrySendError::Closed(_) => stopping(),
        })?;
        match timeout_at(deadline.into(), answer).await {
            Ok(Ok(answer)) => {
                let decided = decided(answer)?;
                self.applied.meter.replayed.fetch_add(u64::from(decided.replayed), Ordering::Relaxed);
                Ok(decided)
            }
            // Dropped unanswered, by openraft or with the task: what was submitted may stand in the log.
            Ok(Err(_)) => Err(Unavailable { maybe_written: state.load(Ordering::Acquire) == SUBMITTED, ..stopping() }.into()),
            Err(_) => {
                let taken_back = state.compare_exchange(WAITING, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_ok();
                let timeout = Unavailable::new(Reason::Timeout, "the log did not decide before the deadline", 100);
                Err(Unavailable { maybe_written: !taken_back, ..timeout }.into())
            }
        }
    }

    /// Refuses what could not be decided, before anything is written.
    fn check_disks(&self) -> Result<(), Unavailable> {
        let refuse = |reason, detail: &str| Err(Unavailable::new(reason, detail, 1_000));
        if self.fitness.is_stalled() {
            return refuse(Reason::DiskStalled, "the leader's disk does not end its writes");
        }
        if self.fitness.space() == Space::Full || self.fitness.spaces().are_full() {
            return refuse(Reason::DiskFull, "the disks of too many nodes are full");
        }
        Ok(())
    }

    /// The refusal of what not every member can apply, and of a level that not every member has.
    fn refuse_level(&self, command: &Command) -> Result<Option<Refusal>, Unavailable> {
        if let Command::RaiseFeatureLevel(raise) = command {
            let below = self.fitness.below_level(raise.to);
            let told = |(id, known): &(u64, Option<u64>)| match known {
                Some(known) => format!("node {id} applies commands up to level {known}"),
                None => format!("node {id} has not been heard of lately"),
            };
            return Ok((!below.is_empty()).then(|| Refusal::invalid("to", below.iter().map(told).collect::<Vec<_>>().join(", "))));
        }
        // A state that can't be read stops the node elsewhere, with its reason.
        level::refuse(&*self.applied.state, command).map_err(|error| Unavailable::new(Reason::Stopping, error.to_string(), 1_000))
    }

    /// Proposals in the lanes now.
    pub fn waiting(&self) -> usize {
        [&self.leases, &self.calls].map(|lane| lane.max_capacity() - lane.capacity()).iter().sum()
    }

    fn overloaded(&self, detail: &str) -> Unavailable {
        Unavailable::new(Reason::Overloaded, detail, self.queue_age_ms_max)
    }
}

fn stopping() -> Unavailable {
    Unavailable::new(Reason::Stopping, "the node stops", 1_000)
}

fn decided(answer: Answer) -> Result<Decided, ProposeError> {
    match answer? {
        Ok(response) => match response.response {
            Some(decided) => Ok(decided),
            None => unreachable!("the state machine answers every call"),
        },
        Err(ClientWriteError::ForwardToLeader(forward)) => Err(not_leader(forward)),
        Err(ClientWriteError::LogEntryDiscarded(_)) => {
            Err(Unavailable::new(Reason::NoLeader, "the leader changed while the log was deciding", 100).maybe_written().into())
        }
        Err(error @ (ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_))) => {
            Err(Unavailable::new(Reason::NoLeader, error.to_string(), 100).maybe_written().into())
        }
    }
}

/// Nothing was written. A leader that has lost its quorum names nobody, so that callers don't go in circles.
pub(crate) fn not_leader(forward: ForwardToLeader<TypeConfig>) -> ProposeError {
    if forward.reason == ForwardReason::LeaseExpired {
        return Unavailable::new(Reason::NoQuorum, "the leader does not hear from a quorum", 200).into();
    }
    match (forward.leader_id, forward.leader_node) {
        (Some(leader_id), Some(address)) => ProposeError::NotLeader { leader_id, leader_grpc: address.grpc },
        _ => Unavailable::new(Reason::NoLeader, "no leader is known", 100).into(),
    }
}

/// The one task.
struct Task {
    raft: Raft,
    applied: Arc<Applied>,
    fitness: Arc<Fitness>,
    metrics: MetricsReceiver,
    leases: mpsc::Receiver<Queued>,
    calls: mpsc::Receiver<Queued>,
    /// Rounds that may begin. Only this task takes permits, so what it sees is there.
    rounds: Arc<Semaphore>,
    /// Rounds of leases that may begin when all others are under way.
    lease_rounds: Arc<Semaphore>,
    /// Woken when a round has ended.
    answered: Arc<Notify>,
    queue_age_max: Duration,
    lease: Duration,
    tick: Duration,
    clock: Arc<dyn Clock>,
    mark: LeaseMark,
    /// The term this node leads, and since when it has noticed.
    led_since: Option<(u64, Instant)>,
    /// When it last submitted something.
    last: Instant,
}

#[expect(clippy::large_enum_variant, reason = "one lives at a time, and most are calls")]
enum Event {
    Call(Queued),
    Time,
    End,
}

impl Task {
    async fn run(mut self) {
        let mut ticks = interval(self.tick / 5);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut server = self.raft.server_metrics();
        loop {
            let has_room = self.rounds.available_permits() > 0;
            let has_lease_room = has_room || self.lease_rounds.available_permits() > 0;
            let event = tokio::select! {
                biased;
                Some(queued) = self.leases.recv(), if has_lease_room => Event::Call(queued),
                Some(queued) = self.calls.recv(), if has_room => Event::Call(queued),
                () = self.answered.notified(), if !has_room => continue,
                _ = ticks.tick() => Event::Time,
                changed = server.changed() => match changed {
                    Ok(()) => Event::Time,
                    Err(_) => Event::End,
                },
            };
            match event {
                Event::Call(queued) => self.round(queued).await,
                Event::Time => self.time_passes().await,
                Event::End => return,
            }
        }
    }

    /// The term in which this node leads with a quorum behind it.
    fn leads(&mut self) -> Result<Option<u64>, ProposeError> {
        let leader = self.raft.as_leader().map_err(not_leader)?;
        let term = leader.term();
        let (_, since) = match self.led_since {
            Some(led) if led.0 == term => led,
            _ => *self.led_since.insert((term, Instant::now())),
        };
        // openraft refuses what comes before a quorum has answered the new leader, which is a matter of milliseconds.
        let is_new = leader.last_quorum_acked().is_none() && since.elapsed() < self.lease && !self.is_alone();
        // Each entry carries this node's wall clock, and the state's never runs back.
        match self.fitness.clock_verdict() {
            ClockVerdict::Right => Ok((!is_new).then_some(term)),
            // Each answer of another node tells, so it is a matter of milliseconds, or the quorum is gone.
            ClockVerdict::Unknown => Ok(None),
            ClockVerdict::Off(off_ms) => {
                let detail = format!("the leader's clock is {off_ms} ms ahead of a majority's");
                Err(Unavailable::new(Reason::ClockOff, detail, 200).into())
            }
        }
    }

    fn is_alone(&self) -> bool {
        self.metrics.borrow_watched().membership_config.voter_ids().count() == 1
    }

    /// Submits the first call and all that wait behind it.
    async fn round(&mut self, first: Queued) {
        let term = loop {
            match self.leads() {
                Ok(Some(term)) => break term,
                Ok(None) => tokio::time::sleep(LOOK_AGAIN).await,
                Err(error) => return refuse(first, error),
            }
        };
        let permit = Arc::clone(&self.rounds).try_acquire_owned();
        let takes_calls = permit.is_ok();
        let Ok(permit) = permit.or_else(|_| Arc::clone(&self.lease_rounds).try_acquire_owned()) else {
            unreachable!("a call is only taken out when a round may begin");
        };
        let (mut proposals, mut callers, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut next = Some(first);
        while let Some(queued) = next {
            if let Some((call, to)) = self.take(queued) {
                let proposal = self.stamp(term, Body::Call(call));
                bytes += proposal.0.len();
                proposals.push(proposal);
                callers.push(to);
            }
            if proposals.len() >= ROUND_ENTRIES_MAX || bytes >= ROUND_BYTES_MAX {
                break;
            }
            next = self.leases.try_recv().ok().or_else(|| self.calls.try_recv().ok().filter(|_| takes_calls));
        }
        if proposals.is_empty() {
            return;
        }
        match self.raft.client_write_many(proposals).await {
            Ok(answers) => {
                tokio::spawn(hand_out(answers, callers, permit, Arc::clone(&self.answered), Arc::clone(&self.applied)));
            }
            // openraft has stopped: the callers' channels are dropped, which tells them.
            Err(fatal) => tracing::warn!(%fatal, "cannot propose"),
        }
    }

    /// A call that is still wanted, and whoever waits for its answer.
    fn take(&self, queued: Queued) -> Option<(Call, oneshot::Sender<Answer>)> {
        let waited = queued.since.elapsed();
        if waited > self.queue_age_max {
            self.applied.meter.refused_old.fetch_add(1, Ordering::Relaxed);
            let overloaded = Unavailable::new(Reason::Overloaded, "proposals wait too long", self.queue_age_max.as_millis() as u64);
            refuse(queued, overloaded.into());
            return None;
        }
        let is_wanted = queued.state.compare_exchange(WAITING, SUBMITTED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        self.applied.meter.queue_us.add(waited.as_micros() as u64);
        is_wanted.then_some((queued.call, queued.to))
    }

    /// Ticks while nothing else moves the lease clock; the first one in a leadership starts its count.
    async fn time_passes(&mut self) {
        let known = self.led_since.map(|(term, _)| term);
        let Ok(Some(term)) = self.leads() else { return };
        if known == Some(term) && self.last.elapsed() < self.tick {
            return;
        }
        let tick = self.stamp(term, Body::Tick {});
        if let Err(fatal) = self.raft.client_write_ff(tick, None).await {
            tracing::warn!(%fatal, "cannot propose");
        }
    }

    /// The entry as it will stand in the log. If it ends up under another term, apply lets its advance count for nothing.
    fn stamp(&mut self, term: u64, body: Body) -> Proposal {
        self.last = Instant::now();
        let advance_ms = self.mark.advance_ms(term, self.clock.since_boot());
        Proposal(codec::encode(&Entry { wall: self.clock.wall(), advance_ms, stamped_term: term, body }).into())
    }
}

/// Hands the answers of a round to its callers, in order.
async fn hand_out(
    mut answers: BoxStream<'static, Result<WriteResult<TypeConfig>, OpenraftFatal<TypeConfig>>>,
    callers: Vec<oneshot::Sender<Answer>>,
    permit: OwnedSemaphorePermit,
    answered: Arc<Notify>,
    applied: Arc<Applied>,
) {
    let submitted = Instant::now();
    for to in callers {
        match answers.next().await {
            // The caller may have given up at its deadline; the outcome then stands in the deduplication rows for its retry.
            Some(Ok(answer)) => {
                applied.meter.decide_us.add(submitted.elapsed().as_micros() as u64);
                drop(to.send(Ok(answer)));
            }
            // openraft has stopped; the rest learns it by their dropped channels.
            Some(Err(_)) | None => break,
        }
    }
    drop(permit);
    answered.notify_one();
}

fn refuse(queued: Queued, error: ProposeError) {
    // Whoever has given up in the meantime needs no reason.
    let _ = queued.to.send(Err(error));
}
