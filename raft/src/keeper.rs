//! Keeps the state on disk and the log short.
//!
//! The state has no log of its own, so the Raft log may only lose entries whose effect is flushed. This task flushes on a
//! schedule, then purges up to there, less what is kept for followers that come back, and never past a snapshot that is on its
//! way: its receiver will need the entries after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::blocking::blocking;
use crate::config::Config;
use crate::fitness::{Fitness, Space};
use crate::machine::Applied;
use crate::types::Raft;

const LOOK: Duration = Duration::from_millis(100);
/// Entries that stay for followers while disk space is short; one that is further behind gets a snapshot.
const KEPT_WHEN_SHORT: u64 = 1_000;
/// Between two rewritings of the state that shall give back the space of what was deleted.
const COMPACT_EVERY: Duration = Duration::from_secs(60);

pub struct Keeper {
    raft: Raft,
    applied: Arc<Applied>,
    fitness: Arc<Fitness>,
    flush_entries: u64,
    flush_every: Duration,
    kept: u64,
    snapshot_unused: Duration,
    asked: Option<(u64, Instant)>,
    flushed_at: Instant,
    /// When the state was last rewritten for space, and at which index.
    compacted: Option<(Instant, u64)>,
}

impl Keeper {
    pub fn new(raft: Raft, applied: Arc<Applied>, fitness: Arc<Fitness>, config: &Config) -> Self {
        Self {
            raft,
            applied,
            fitness,
            flush_entries: config.flush_entries.max(1),
            flush_every: Duration::from_millis(config.flush_ms),
            kept: config.log_entries_kept,
            snapshot_unused: Duration::from_millis(config.snapshot_stall_ms),
            asked: None,
            flushed_at: Instant::now(),
            compacted: None,
        }
    }

    /// Runs until the node stops.
    pub async fn run(mut self) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let done = self.flush().await.is_ok() && self.purge().await.is_ok();
            if !done {
                return;
            }
            self.applied.drop_unused_snapshot(self.snapshot_unused).await;
            self.compact().await;
        }
    }

    async fn flush(&mut self) -> Result<(), Stopped> {
        let (applied, flushed) = (self.applied.index(), self.applied.flushed_index());
        // The log can only go as far as the state is flushed.
        let flush_entries = if self.is_short() { self.flush_entries.min(KEPT_WHEN_SHORT) } else { self.flush_entries };
        let is_due = applied >= flushed + flush_entries || (applied > flushed && self.flushed_at.elapsed() >= self.flush_every);
        // One at a time; should openraft have dropped the wish, it is repeated.
        let is_asked = self.asked.is_some_and(|(at, since)| flushed < at && since.elapsed() < Duration::from_secs(10));
        if !is_due || is_asked {
            return Ok(());
        }
        self.asked = Some((applied, Instant::now()));
        self.flushed_at = Instant::now();
        self.raft.trigger().snapshot().await.map_err(|_| Stopped)
    }

    fn is_short(&self) -> bool {
        self.fitness.space() != Space::Enough
    }

    /// Has deleted rows give their space back now, while it is short. With no room at all it could only fail.
    async fn compact(&mut self) {
        let applied = self.applied.index();
        let is_known = self.compacted.is_some_and(|(at, index)| at.elapsed() < COMPACT_EVERY || index == applied);
        if self.fitness.space() != Space::Low || is_known {
            return;
        }
        self.compacted = Some((Instant::now(), applied));
        let state = Arc::clone(&self.applied.state);
        if let Ok(Err(error)) = blocking(move || state.compact()).await {
            tracing::warn!(%error, "cannot give back the space of what was deleted");
        }
    }

    async fn purge(&mut self) -> Result<(), Stopped> {
        let kept = if self.is_short() { self.kept.min(KEPT_WHEN_SHORT) } else { self.kept };
        let upto = self.applied.flushed_index().min(self.applied.floor()).saturating_sub(kept);
        let Ok(Some(first)) = self.applied.log.first_index() else { return Ok(()) };
        // In strokes, since each leaves a mark in the log's database.
        if upto < first + (kept / 10).max(1) {
            return Ok(());
        }
        self.raft.trigger().purge_log(upto).await.map_err(|_| Stopped)
    }
}

struct Stopped;
