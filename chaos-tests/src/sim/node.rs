//! A simulated node: the engine and the services of a real one, over the simulation's disk, network and clocks.

use std::path::PathBuf;
use std::sync::Arc;

use quorate_link::Link;
use quorate_node::{NodeKeys, services};
use quorate_proof::Signer;
use quorate_raft::{Address, Config, RaftNode};
use quorate_storage::LogOptions;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use turmoil::net::TcpListener;

use super::clock::SkewedClock;
use super::disk::Disk;
use super::journal::Journal;
use super::net;

const CLUSTER: &str = "simulated";
const RECEIPT_KEY: &str = "6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b";

/// Production settings that a seed chooses, some for all nodes and some for each, small ones more often than not: what is rare with the defaults shall
/// happen all the time.
#[derive(Clone, Copy, Debug)]
pub struct Knobs {
    heartbeat_ms: u64,
    election_timeout_ms_min: u64,
    flush_entries: u64,
    flush_ms: u64,
    log_entries_kept: u64,
    append_bytes_max: usize,
    cache_bytes_max: usize,
    queue_max: usize,
    rounds_max: usize,
    tick_ms: u64,
    snapshot_stall_ms: u64,
}

impl Knobs {
    pub fn choose(random: &mut StdRng) -> Self {
        let heartbeat_ms = random.random_range(40..=100);
        Self {
            heartbeat_ms,
            election_timeout_ms_min: random.random_range(heartbeat_ms * 3..=600),
            flush_entries: one(random, &[3, 10, 50, 1_000]),
            flush_ms: one(random, &[200, 2_000, 60_000]),
            log_entries_kept: one(random, &[0, 0, 5, 40, 5_000]),
            append_bytes_max: one(random, &[1, 700, 1 << 20]),
            cache_bytes_max: one(random, &[0, 2_000, 64 << 20]),
            queue_max: one(random, &[2, 32, 8_192]),
            rounds_max: one(random, &[1, 2, 4]),
            tick_ms: random.random_range(100..=1_000),
            snapshot_stall_ms: random.random_range(2_000..=8_000),
        }
    }

    /// With what need not be the same on all nodes chosen anew: each flushes, snapshots and purges when nobody else does.
    pub fn of_one_node(self, random: &mut StdRng) -> Self {
        let Self { flush_entries, flush_ms, log_entries_kept, append_bytes_max, cache_bytes_max, queue_max, rounds_max, .. } =
            Self::choose(random);
        Self { flush_entries, flush_ms, log_entries_kept, append_bytes_max, cache_bytes_max, queue_max, rounds_max, ..self }
    }
}

fn one<T: Copy>(random: &mut StdRng, of: &[T]) -> T {
    *of.choose(random).expect("no list is empty")
}

/// What outlives the crashes of a node.
#[derive(Clone)]
pub struct Machine {
    pub id: u64,
    pub dir: PathBuf,
    pub disk: Disk,
    pub clock: SkewedClock,
    pub knobs: Knobs,
    pub journal: Journal,
}

impl Machine {
    fn config(&self) -> Config {
        let address = Address { grpc: net::address(self.id), http: String::new() };
        let mut config = Config::new(&self.dir, CLUSTER, self.id, address);
        let knobs = self.knobs;
        config.link = Link::over(net::connect());
        config.clock = Arc::new(self.clock.clone());
        config.engine = Arc::new(self.disk.clone());
        config.heartbeat_ms = knobs.heartbeat_ms;
        config.election_timeout_ms_min = knobs.election_timeout_ms_min;
        config.election_timeout_ms_max = knobs.election_timeout_ms_min * 5 / 3;
        // It would measure the files of the machine that simulates.
        config.fsync_probe_rounds = 0;
        config.space = None;
        // A node that quarantines itself ends its process, which here has no supervisor.
        config.compare_ms = 0;
        config.queue_max = knobs.queue_max;
        config.rounds_max = knobs.rounds_max;
        config.tick_ms = knobs.tick_ms;
        config.flush_entries = knobs.flush_entries;
        config.flush_ms = knobs.flush_ms;
        config.log_entries_kept = knobs.log_entries_kept;
        config.append_bytes_max = knobs.append_bytes_max;
        config.snapshot_stall_ms = knobs.snapshot_stall_ms;
        // A full queue makes its caller wait, and here everything would wait with it.
        config.log = LogOptions { cache_bytes_max: knobs.cache_bytes_max, queue_bytes_max: usize::MAX };
        config
    }

    /// The life of the node's process. Returns when the engine stops by itself.
    pub async fn run(self) -> turmoil::Result {
        let listener = TcpListener::bind(("0.0.0.0", net::PORT)).await?;
        let raft = match RaftNode::start(self.config()).await {
            Ok(raft) => raft,
            Err(error) => {
                self.say(format!("does not start: {error}"));
                return Ok(());
            }
        };
        self.say("started");
        let router = services(&raft, None, Arc::new(NodeKeys::of(Signer::from_hex(RECEIPT_KEY, CLUSTER)?, CLUSTER)), CLUSTER, None);
        tokio::select! {
            biased;
            why = raft.stopped() => self.say(format!("stopped: {why}")),
            served = router.serve_with_incoming(net::incoming(listener)) => self.say(format!("serves no more: {served:?}")),
        }
        Ok(())
    }
    /// Without the folder's name, which is another one in each run.
    fn say(&self, what: impl AsRef<str>) {
        self.journal.say(&net::name(self.id), what.as_ref().replace(&*self.dir.to_string_lossy(), "DIR"));
    }
}
