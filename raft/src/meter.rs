//! What a node counts of its own work: the stages of a write, reads, refusals, answers given again.
//!
//! A write waits in a lane (`queue_us`), is under way from its submission to its answer (`decide_us`: the log here and elsewhere,
//! commit and apply), and is applied with others (`apply_us`, `apply_entries`). The log's own stages stand in
//! `quorate_storage::LogMeter`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use quorate_storage::LogMeter;
use quorate_storage::histogram::{COUNTS, DURATIONS_US, Histogram};

pub struct Meter {
    pub queue_us: Histogram,
    pub decide_us: Histogram,
    pub apply_us: Histogram,
    pub apply_entries: Histogram,
    /// Calls whose request id was known.
    pub replayed: AtomicU64,
    /// Refused as `overloaded`: no room in the lane, or too long in it.
    pub refused_full: AtomicU64,
    pub refused_old: AtomicU64,
    /// Linearizable reads, and the rounds that they shared.
    pub reads: AtomicU64,
    pub read_rounds: AtomicU64,
    /// Parts of the state, and whole states, that were compared with all members while this node led.
    pub parts_compared: AtomicU64,
    pub states_compared: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            queue_us: Histogram::new(DURATIONS_US),
            decide_us: Histogram::new(DURATIONS_US),
            apply_us: Histogram::new(DURATIONS_US),
            apply_entries: Histogram::new(COUNTS),
            replayed: AtomicU64::default(),
            refused_full: AtomicU64::default(),
            refused_old: AtomicU64::default(),
            reads: AtomicU64::default(),
            read_rounds: AtomicU64::default(),
            parts_compared: AtomicU64::default(),
            states_compared: AtomicU64::default(),
        }
    }
}

impl Meter {
    /// Prometheus text. `waiting` proposals are in the lanes now.
    pub fn exposition(&self, log: &LogMeter, waiting: usize) -> String {
        const SECONDS: f64 = 1e6;
        let mut text = [
            log.sync_us.exposition("quorate_log_write_seconds", "One group of the log: written and fsynced.", SECONDS),
            log.group_entries.exposition("quorate_log_group_entries", "Entries that shared one fsync of the log.", 1.0),
            self.queue_us.exposition(
                "quorate_propose_queue_seconds",
                "From a proposal's arrival at the leader to its submission.",
                SECONDS,
            ),
            self.decide_us.exposition(
                "quorate_propose_decide_seconds",
                "From a proposal's submission to its answer: log, quorum, apply.",
                SECONDS,
            ),
            self.apply_us.exposition("quorate_apply_seconds", "Applying one batch of committed entries.", SECONDS),
            self.apply_entries.exposition("quorate_apply_entries", "Entries applied in one batch.", 1.0),
        ]
        .concat();
        let counters = [
            ("requests_replayed", "Calls answered again because their request id was known.", &self.replayed),
            ("reads", "Linearizable reads that asked for an index.", &self.reads),
            ("read_rounds", "Rounds that confirmed an index, shared by the reads that waited.", &self.read_rounds),
            ("state_parts_compared", "Parts of the state that this leader has compared with all members.", &self.parts_compared),
            ("states_compared", "Whole states that this leader has compared with all members.", &self.states_compared),
        ];
        for (name, help, counter) in counters {
            // Writing to a String can't fail.
            let _ = write!(
                text,
                "# HELP quorate_{name}_total {help}\n# TYPE quorate_{name}_total counter\nquorate_{name}_total {}\n",
                counter.load(Relaxed)
            );
        }
        let (full, old) = (self.refused_full.load(Relaxed), self.refused_old.load(Relaxed));
        text + &format!(
            "# HELP quorate_proposals_waiting Proposals in the lanes of this leader.\n# TYPE quorate_proposals_waiting gauge\n\
             quorate_proposals_waiting {waiting}\n\
             # HELP quorate_proposals_refused_total Proposals refused as overloaded: the lane was full, or they waited too long.\n\
             # TYPE quorate_proposals_refused_total counter\n\
             quorate_proposals_refused_total{{reason=\"full\"}} {full}\nquorate_proposals_refused_total{{reason=\"old\"}} {old}\n"
        )
    }
}
