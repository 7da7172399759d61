//! Bugs put in on purpose: whether the checks would find them.
//!
//! Each stands at a seam, where it looks from the outside like the bug it is named after, so that the product has no code for it:
//! a disk that answers before it has synced is a log that does, and a client that sends no token is a node that checks none.

use clap::ValueEnum;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// Writes to the log are answered while they are in the page cache, where they stay for a second.
    AckBeforeSync,
    /// Of what the log syncs, a new vote is left in the page cache.
    VoteNotDurable,
    /// A flush of the state answers and does nothing, so that the log is purged past what is on disk.
    PurgePastFlushed,
    /// Fencing tokens are not checked.
    TokenNotChecked,
    /// A request that comes again under its id is decided again.
    DedupeOff,
    /// Any node serves a linearizable read at once, from what it has.
    StaleRead,
    /// The lease clock runs by the wall clock.
    LeaseByWallClock,
    /// A snapshot for another node lacks the remembered answers.
    SnapshotWithoutAnswers,
    /// One commit in a hundred loses a row on its way into the state.
    StateDrifts,
}

impl Plant {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What is done that shows it.
    pub fn workload(self) -> &'static str {
        match self {
            Plant::AckBeforeSync | Plant::VoteNotDurable | Plant::PurgePastFlushed => "facts, and crashes of one node and of all",
            Plant::TokenNotChecked => "leases: writes under a lost card",
            Plant::DedupeOff | Plant::SnapshotWithoutAnswers => "facts: requests sent again late",
            Plant::StaleRead => "facts, sessions: reads behind a cut",
            Plant::LeaseByWallClock => "leases: rivals, and jumping clocks",
            Plant::StateDrifts => "everything: states compared at each commit",
        }
    }

    /// Within so many seeds it has to be found.
    pub fn seeds_max(self) -> u64 {
        match self {
            // Needs a second vote in one term, by a node that crashed within a second of its first.
            Plant::VoteNotDurable => 120,
            Plant::LeaseByWallClock => 40,
            Plant::AckBeforeSync | Plant::StaleRead | Plant::SnapshotWithoutAnswers => 20,
            Plant::PurgePastFlushed | Plant::TokenNotChecked | Plant::DedupeOff | Plant::StateDrifts => 10,
        }
    }
}
