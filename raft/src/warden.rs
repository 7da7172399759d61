//! Acts on what [`crate::fitness`] says: the task that keeps an unfit node out of the office.
//!
//! * A leader that is unfit hands over to a voter that is not. Where all are, it stays: a cluster with a bad leader is better than
//!   one without.
//! * An unfit follower does not campaign, unless nobody leads for so long that it must be because only it can.
//! * The leader raises and clears the replicated alarm for disk space (`quorate_domain::space`).
//!
//! It touches no disk itself: who waits for one that hangs can't tell that it does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_domain::machine::Call;
use quorate_domain::space::{self, SetSpaceAlarm};
use quorate_domain::{RequestId, UnixMs, identity};
use quorate_storage::Room;
use tokio::time::{MissedTickBehavior, interval};

use crate::blocking::blocking;
use crate::clock::Clock;
use crate::config::Config;
use crate::fitness::Fitness;
use crate::machine::Applied;
use crate::office::{Office, TransferLeaderError};
use crate::peers::Seldom;
use crate::proposer::Proposer;
use crate::quarantine::{Damaged, Quarantine, Reason};
use crate::types::Raft;

/// How often the disk's space is looked at.
const MEASURE_EVERY: Duration = Duration::from_millis(500);
/// How often a leader compares the alarm with what the voters say.
const ALARM_EVERY: Duration = Duration::from_millis(500);
/// A leader that is new has not heard of all.
const ALARM_AFTER: Duration = Duration::from_secs(2);
/// After so many leases without a leader an unfit node campaigns all the same.
const HOLD_LEASES: u32 = 10;

/// Measures the disk for as long as the node runs.
pub async fn measure(fitness: Arc<Fitness>, dir: PathBuf) {
    let Some(marks) = fitness.marks else { return };
    let mut looks = interval(MEASURE_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let dir = dir.clone();
        match blocking(move || Room::measure(&dir, marks.quota_bytes)).await {
            Ok(Ok(room)) => fitness.measured(room),
            Ok(Err(error)) => {
                static WARNED: Seldom = Seldom::new();
                if WARNED.again() {
                    tracing::warn!(%error, "cannot measure the space of the data folder");
                }
            }
            // The runtime is ending.
            Err(_) => return,
        }
    }
}

pub struct Warden {
    raft: Raft,
    applied: Arc<Applied>,
    fitness: Arc<Fitness>,
    office: Office,
    proposer: Proposer,
    clock: Arc<dyn Clock>,
    lease: Duration,
    look: Duration,
    /// The group of the log that was last seen on its way to the disk, and for how long by now.
    writing: Option<(u64, Duration)>,
    looked: Duration,
    known_unfit: Vec<&'static str>,
    gave_way: Option<Duration>,
    alarm_looked: Duration,
    /// The term that this node leads, and since when.
    led: Option<(u64, Duration)>,
    quarantine: Arc<Quarantine>,
}

impl Warden {
    pub fn new(
        raft: Raft,
        applied: Arc<Applied>,
        fitness: Arc<Fitness>,
        office: Office,
        proposer: Proposer,
        quarantine: Arc<Quarantine>,
        config: &Config,
    ) -> Self {
        let now = fitness.now();
        Self {
            raft,
            applied,
            office,
            proposer,
            clock: Arc::clone(&config.clock),
            lease: config.lease(),
            // Ten looks in the time after which a disk counts as stalled.
            look: (config.lease() / 10).max(Duration::from_millis(10)),
            writing: None,
            looked: now,
            known_unfit: Vec::new(),
            gave_way: None,
            alarm_looked: now,
            led: None,
            quarantine,
            fitness,
        }
    }

    /// Runs until the node stops.
    pub async fn run(mut self) {
        let mut looks = interval(self.look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look_at_log();
            self.look_at_state();
            let unfit = self.fitness.unfit();
            self.tell(&unfit);
            let may_campaign = unfit.is_empty() || self.is_needed();
            self.raft.runtime_config().elect(may_campaign);
            if !unfit.is_empty() {
                self.give_way(&unfit).await;
            }
            self.set_alarm().await;
        }
    }

    /// A group that has not reached the disk within the lease. Time that this task did not see does not count: the whole process
    /// may have stood still.
    fn look_at_log(&mut self) {
        let now = self.fitness.now();
        let passed = now.saturating_sub(self.looked).min(2 * self.look);
        self.looked = now;
        let before = self.writing;
        self.writing = self.applied.log.writing().map(|group| match before {
            Some((same, waited)) if same == group => (group, waited + passed),
            _ => (group, Duration::ZERO),
        });
        self.fitness.set_stalled(self.writing.is_some_and(|(_, waited)| waited >= self.lease));
    }

    /// A state that was found damaged is not served any more, if another member has it.
    fn look_at_state(&mut self) {
        if self.applied.state.is_damaged() && self.fitness.voters().iter().any(|voter| *voter != self.office.node_id) {
            let text = "a part of the state can't be read: it is damaged on the disk".into();
            self.quarantine.enter(Reason { damaged: Damaged::State, text });
        }
    }

    fn tell(&mut self, unfit: &[&'static str]) {
        if self.known_unfit == unfit {
            return;
        }
        let room = self.fitness.room().map(|room| room.left_bytes());
        let clock_off_ms = self.fitness.clock_off_ms();
        match unfit.is_empty() {
            false => tracing::warn!(reasons = unfit.join(", "), room_bytes = room, clock_off_ms, "this node is not fit to lead"),
            true => tracing::info!(was = self.known_unfit.join(", "), room_bytes = room, "this node is fit to lead again"),
        }
        self.known_unfit = unfit.to_vec();
    }

    /// Whether there may be no leader but this one.
    fn is_needed(&self) -> bool {
        self.fitness.voters().len() <= 1 || self.fitness.leaderless_for().is_none_or(|leaderless| leaderless > HOLD_LEASES * self.lease)
    }

    async fn give_way(&mut self, unfit: &[&'static str]) {
        let now = self.fitness.now();
        if !self.raft.is_leader() || self.gave_way.is_some_and(|before| now.saturating_sub(before) < self.lease) {
            return;
        }
        self.gave_way = Some(now);
        match self.office.give_way().await {
            Ok(true) => tracing::warn!(reasons = unfit.join(", "), "leadership was handed to a node that is fit"),
            Ok(false) | Err(TransferLeaderError::NotLeader) => {}
            Err(error) => tracing::warn!(%error, reasons = unfit.join(", "), "leadership was not handed to a node that is fit"),
        }
    }

    async fn set_alarm(&mut self) {
        let now = self.fitness.now();
        let Ok(leader) = self.raft.as_leader() else {
            self.led = None;
            return;
        };
        let term = leader.term();
        let since = match self.led {
            Some((led, since)) if led == term => since,
            _ => self.led.insert((term, now)).1,
        };
        if now.saturating_sub(since) < ALARM_AFTER || now.saturating_sub(self.alarm_looked) < ALARM_EVERY {
            return;
        }
        self.alarm_looked = now;
        let spaces = self.fitness.spaces();
        // A state that can't be read stops the node elsewhere, with its reason.
        let Ok(known) = space::alarm(&*self.applied.state) else { return };
        if known.is_some() == spaces.needs_alarm() {
            return;
        }
        let set = SetSpaceAlarm { raised: known.is_none(), nodes: spaces.short() };
        // One id for one intent: what is asked for again from the same state is the same.
        let id = format!("space-alarm-{}-{term}-{}", set.raised, self.applied.index());
        let call = Call {
            caller: identity::system(),
            request: RequestId { id, issued_at: UnixMs(self.clock.wall().0), keyed: false },
            under: None,
            command: set.clone().into(),
        };
        match self.proposer.propose(call, Instant::now() + 2 * self.lease).await {
            Ok(_) if set.raised => tracing::warn!(nodes = ?set.nodes, "short of disk space: writes that grow are refused from now on"),
            Ok(_) => tracing::warn!("there is disk space again: all writes go on"),
            Err(error) => tracing::warn!(%error, "the alarm for disk space could not be set"),
        }
    }
}
