//! How a node takes part in its group. Every default stands here.
//!
//! Timers. In openraft a follower campaigns once it has heard nothing for the leader's lease, which is
//! `election_timeout_ms_max`, and then for a random time between the two election timeouts; so a leader that is killed is
//! followed after `max + (min .. max)`. With the defaults below the first of two followers campaigns 0.8 to 1.0 s after the
//! last heartbeat, 0.87 s on average, and a pre-vote, a vote and the new leader's first entry add three round trips and three
//! fsyncs: the gap in acknowledged writes is below 1 s in the middle, with room for fsyncs of 30 ms.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::SnapshotPolicy;
use quorate_domain::level;
use quorate_link::Link;
use quorate_storage::{Engine, LogOptions, Rocks, StateOptions};

use crate::clock::{Clock, SystemClock};
use crate::types::Address;

/// Everything a node is told when it starts.
#[derive(Clone)]
pub struct Config {
    /// Where this node's log, state, snapshots and identity lie. On a local disk: every acknowledged write waits for its fsync.
    pub data_dir: PathBuf,
    pub cluster_id: String,
    /// Counts restores of the cluster; members of another lineage are refused. Default 0.
    pub lineage: u64,
    /// Never used again after a removal, not even on a new disk.
    pub node_id: u64,
    /// How the other members and the gateways reach this node.
    pub address: Address,
    /// How the other members are reached. Default: plain, on loopback.
    pub link: Link,
    /// Where time comes from. Default: this machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// What log and state are stored in. Default: RocksDB.
    pub engine: Arc<dyn Engine>,
    /// Shown to the other members on every call; they refuse calls without theirs. Default none.
    pub cluster_secret: Option<String>,

    /// How often a leader that has nothing to replicate says that it is there. Default 100. Too high, and one lost packet comes
    /// near an election; too low, and it is noise. At most a third of `election_timeout_ms_min`.
    pub heartbeat_ms: u64,
    /// Lower end of the random part of the election timeout. Default 300, at least 10 fsyncs of the slowest percent. Too low,
    /// and a slow disk deposes healthy leaders; too high, and a dead leader is missed for long.
    pub election_timeout_ms_min: u64,
    /// Upper end of the random part, and the leader's lease. Default 500. Too near the lower end, and followers campaign at
    /// once and split the vote; too high, and a dead leader is missed for long.
    pub election_timeout_ms_max: u64,
    /// Raises the two election timeouts to what the disk needs, where the probe finds it slower than they allow; without it such a
    /// start is refused. Default true; false for timeouts that an operator has set.
    pub election_timeout_adapts: bool,
    /// Rounds of the fsync probe at the start; 0 skips it. Default 40, about 0.2 s on a common disk. Too few, and an outlier
    /// is missed; too many, and starts are slow.
    pub fsync_probe_rounds: usize,

    /// Proposals that may wait for the proposer, in each of the two lanes. Default 8,192. Too low, and bursts are refused; too
    /// high, and callers wait long for a refusal.
    pub queue_max: usize,
    /// How long a proposal may wait in the queue before it is refused as `overloaded`. Default 500. Too low, and short stalls of
    /// the disk become errors; too high, and callers run into their deadlines instead.
    pub queue_age_ms_max: u64,
    /// Rounds of proposals that may be under way: while one is being made durable the next can be on its way. Default 2. Too low,
    /// and the disk waits for the processor; too high, and rounds stay small and each costs an fsync.
    pub rounds_max: usize,
    /// How often an idle leader moves the lease clock. Default 500, at most half of `LEASE_ADVANCE_MS_MAX`. Too low, and an idle
    /// cluster keeps its disks busy; too high, and leases end late.
    pub tick_ms: u64,

    /// Applied entries after which the state is flushed, so that the log behind it can be purged. Default 20,000. Too low, and
    /// small files pile up; too high, and a restart replays for long.
    pub flush_entries: u64,
    /// When fewer entries come: how often the state is flushed all the same. Default 60,000.
    pub flush_ms: u64,
    /// Applied entries that stay in the log for followers that come back. Default 50,000. Too low, and a short absence costs a
    /// whole snapshot; too high, and the log takes space.
    pub log_entries_kept: u64,
    /// How many bytes of entries one append carries, at least one entry. Default 1 MiB.
    pub append_bytes_max: usize,
    /// When this node counts as short of disk space. Default [`SpaceMarks::default`]; `None` looks at no disk.
    pub space: Option<SpaceMarks>,
    /// How far this node's wall clock may be from what a majority of the voters say before it may not lead. Default 5,000. Too low,
    /// and ordinary corrections depose leaders; too high, and what people read as times is wrong.
    pub clock_offset_ms_max: u64,
    /// Up to which level this node can apply commands. Default [`level::LEVEL`]; less stands for an older version, for tests.
    pub feature_level_max: u64,
    /// How often the leader compares a part of all states; 0 never does. Default 1,000, about 2,000 rows a second. Too low, and it
    /// takes the disks' time; too high, and damage is found late.
    pub compare_ms: u64,
    /// How long the transfer of a snapshot may go without progress. Default 60,000. Too low, and a slow receiver never gets one.
    pub snapshot_stall_ms: u64,

    /// How long a blob stays that no record names: whoever put it may still be about to name it. Default 24 hours. Too low, and a
    /// command that was proposed before a long outage names what is gone; too high, and what nobody wanted takes space.
    pub blob_idle_ms: u64,
    /// How often missing blobs are fetched and unnamed ones removed. Default 10,000. Too low, and an idle node keeps its disk busy;
    /// too high, and a node that was away lacks blobs for long.
    pub blob_tend_ms: u64,

    pub log: LogOptions,
    pub state: StateOptions,
}

/// When a disk counts as short of space, and when not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceMarks {
    /// What the node's folder may hold, besides what the file system allows.
    pub quota_bytes: Option<u64>,
    /// With less than this left, the node is short of space.
    pub low_bytes: u64,
    /// With this left, it is not any more.
    pub clear_bytes: u64,
}

impl Default for SpaceMarks {
    fn default() -> Self {
        Self { quota_bytes: None, low_bytes: 256 << 20, clear_bytes: 512 << 20 }
    }
}

impl SpaceMarks {
    /// With less than this left on the disk itself, the node takes no entries: the databases need some for what they have.
    pub fn reserve_bytes(&self) -> u64 {
        self.low_bytes / 4
    }
}

impl Config {
    /// The defaults, for the node that is described.
    pub fn new(data_dir: impl Into<PathBuf>, cluster_id: impl Into<String>, node_id: u64, address: Address) -> Self {
        Self {
            data_dir: data_dir.into(),
            cluster_id: cluster_id.into(),
            lineage: 0,
            node_id,
            address,
            link: Link::plain(),
            clock: Arc::new(SystemClock),
            engine: Arc::new(Rocks::default()),
            cluster_secret: None,
            heartbeat_ms: 100,
            election_timeout_ms_min: 300,
            election_timeout_ms_max: 500,
            election_timeout_adapts: true,
            fsync_probe_rounds: 40,
            queue_max: 8_192,
            queue_age_ms_max: 500,
            rounds_max: 2,
            tick_ms: 500,
            flush_entries: 20_000,
            flush_ms: 60_000,
            log_entries_kept: 50_000,
            append_bytes_max: 1 << 20,
            space: Some(SpaceMarks::default()),
            clock_offset_ms_max: 5_000,
            feature_level_max: level::LEVEL,
            compare_ms: 1_000,
            snapshot_stall_ms: 60_000,
            blob_idle_ms: 24 * 60 * 60 * 1_000,
            blob_tend_ms: 10_000,
            log: LogOptions::default(),
            state: StateOptions::default(),
        }
    }

    /// The lease of a leader: as long no other can be elected, and as long it may go without hearing from a quorum.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.election_timeout_ms_max)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.heartbeat_ms == 0 || self.heartbeat_ms * 3 > self.election_timeout_ms_min {
            return Err(format!(
                "heartbeat_ms is {} and must be from 1 to a third of election_timeout_ms_min, which is {}",
                self.heartbeat_ms, self.election_timeout_ms_min
            ));
        }
        if self.tick_ms == 0 || self.tick_ms * 2 > quorate_domain::limit::LEASE_ADVANCE_MS_MAX {
            return Err(format!("tick_ms is {} and must be from 1 to {}", self.tick_ms, quorate_domain::limit::LEASE_ADVANCE_MS_MAX / 2));
        }
        match self.space {
            Some(SpaceMarks { low_bytes, clear_bytes, .. }) if clear_bytes < low_bytes => Err(format!(
                "the mark above which disk space is enough again, {clear_bytes}, is below the one where it is low, {low_bytes}"
            )),
            _ => Ok(()),
        }
    }

    /// The election timeout that a disk with such fsyncs needs at least.
    pub(crate) fn election_timeout_ms_needed(fsync_p99_us: u64) -> u64 {
        (fsync_p99_us * 10).div_ceil(1_000)
    }

    /// Raises the election timeouts to what the disk needs, in the proportion that they had.
    pub(crate) fn adapt(&mut self, fsync_p99_us: u64) {
        let needed = Self::election_timeout_ms_needed(fsync_p99_us);
        if needed > self.election_timeout_ms_min {
            self.election_timeout_ms_max = self.election_timeout_ms_max * needed / self.election_timeout_ms_min;
            self.election_timeout_ms_min = needed;
        }
    }

    pub(crate) fn openraft(&self) -> Result<openraft::Config, String> {
        let lease_ms = self.election_timeout_ms_max;
        let config = openraft::Config {
            cluster_name: self.cluster_id.clone(),
            heartbeat_interval: self.heartbeat_ms,
            election_timeout_min: self.election_timeout_ms_min,
            election_timeout_max: self.election_timeout_ms_max,
            // A timer inside the library only; `network` bounds the steps of a transfer.
            install_snapshot_timeout: self.snapshot_stall_ms,
            max_payload_entries: 4_096,
            max_append_entries: Some(16_384),
            // Never a snapshot for a follower whose entries are still in the log.
            replication_lag_threshold: u64::MAX / 2,
            // `keeper` decides when the state is flushed and how far the log is purged.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX / 2,
            backoff: "20ms 40ms 80ms ...500ms".into(),
            // Lets the connected majority elect when the leader still reaches a node between (openraft #2080).
            quorum_loss_probe_interval: Some(2 * lease_ms + 100),
            enable_pre_vote: Some(true),
            // A restarted leader has to be elected again: its unsaved commits may be behind what it once answered.
            enable_leader_restore: Some(false),
            allow_log_reversion: Some(false),
            ..openraft::Config::default()
        };
        config.validate().map_err(|error| error.to_string())
    }
}
