//! Nodes that are not fit to lead: disks that hang or fill up, and clocks that are wrong.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::sleep;

use quorate_domain::fact::{Confidence, StoreFact};
use quorate_domain::tx::Direction;
use quorate_domain::{Refusal, StorageError};
use quorate_raft::{Clock as Clocks, SpaceMarks};
use quorate_storage::engine::{Database, Done, Fill, Reads, Row as Show};
use quorate_storage::{Engine, Rocks, StateOptions};

use super::*;

/// What is wrong with the machine of a node, by its folder.
#[derive(Clone, Copy, Default)]
struct Fault {
    disk_hangs: bool,
    clock_ahead_ms: i64,
}

static FAULTS: Mutex<BTreeMap<PathBuf, Fault>> = Mutex::new(BTreeMap::new());

fn fault(dir: &Path) -> Fault {
    FAULTS.lock().unwrap().get(dir).copied().unwrap_or_default()
}

impl Replica {
    fn set_fault(&self, fault: Fault) {
        FAULTS.lock().unwrap().insert(self.dir.clone(), fault);
    }

    fn has(&self, code: &str) -> bool {
        let status = self.status();
        status.not_ready.iter().chain(&status.alarms).any(|known| known == code)
    }
}

/// RocksDB on a disk whose synced writes can hang.
struct Hanging {
    rocks: Rocks,
    dir: PathBuf,
}

struct HangingLog {
    log: Arc<dyn Database>,
    dir: PathBuf,
}

impl Engine for Hanging {
    fn open_log(&self, dir: &Path, families: [&'static str; 2]) -> Result<Arc<dyn Database>, StorageError> {
        Ok(Arc::new(HangingLog { log: self.rocks.open_log(dir, families)?, dir: self.dir.clone() }))
    }

    fn open_state(
        &self,
        dir: &Path,
        families: &[&'static str],
        options: StateOptions,
        may_create: bool,
    ) -> Result<Arc<dyn Database>, StorageError> {
        self.rocks.open_state(dir, families, options, may_create)
    }

    fn read_checkpoint(&self, dir: &Path, family: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.rocks.read_checkpoint(dir, family, key)
    }
}

impl Reads for HangingLog {
    fn get(&self, family: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.log.get(family, key)
    }

    fn scan(&self, family: &str, from: &[u8], to: &[u8], direction: Direction, row: &mut Show<'_>) -> Result<(), StorageError> {
        self.log.scan(family, from, to, direction, row)
    }

    fn scan_all(&self, family: &str, from: &[u8], row: &mut Show<'_>) -> Result<(), StorageError> {
        self.log.scan_all(family, from, row)
    }
}

impl Database for HangingLog {
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), StorageError> {
        self.log.write(fill)
    }

    fn write_synced(&self, fill: &mut Fill<'_>, done: Done) {
        while fault(&self.dir).disk_hangs {
            sleep(Duration::from_millis(2));
        }
        self.log.write_synced(fill, done);
    }

    fn blocks(&self) -> bool {
        true
    }

    fn flush(&self) -> Result<(), StorageError> {
        self.log.flush()
    }

    fn view(self: Arc<Self>) -> Box<dyn Reads> {
        Arc::clone(&self.log).view()
    }

    fn checkpoint(&self, dir: &Path) -> Result<(), StorageError> {
        self.log.checkpoint(dir)
    }

    fn compact(&self) -> Result<(), StorageError> {
        self.log.compact()
    }

    fn erase(&self, family: &str, from: &[u8], to: &[u8]) -> Result<(), StorageError> {
        self.log.erase(family, from, to)
    }

    fn reclaim(&self, family: &str, to: &[u8]) -> Result<(), StorageError> {
        self.log.reclaim(family, to)
    }
}

struct Wrong(PathBuf);

impl Clocks for Wrong {
    fn since_boot(&self) -> Duration {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(boot.tv_sec as u64, boot.tv_nsec as u32)
    }

    fn wall(&self) -> UnixMs {
        UnixMs(now_ms().saturating_add_signed(fault(&self.0).clock_ahead_ms))
    }
}

fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// As long as it takes until a dead leader is followed, at the most, with the timers below.
const ELECTION: Duration = Duration::from_millis(2_000 + 2_000);

fn breakable(config: &mut Config) {
    config.engine = Arc::new(Hanging { rocks: Rocks::default(), dir: config.data_dir.clone() });
    config.clock = Arc::new(Wrong(config.data_dir.clone()));
    config.election_timeout_ms_min = 1_200;
    config.election_timeout_ms_max = 2_000;
    config.election_timeout_adapts = false;
}

#[test]
fn a_leader_whose_disk_hangs_loses_the_office_within_two_election_timeouts_and_serves_nothing_old() {
    let cluster = Cluster::tweaked(3, breakable);
    cluster.leader_decides(&unique());
    let old = cluster.leader();
    old.set_fault(Fault { disk_hangs: true, ..Fault::default() });
    let begin = Instant::now();
    let new = wait("another leader", || cluster.running().find(|replica| replica.id != old.id && replica.status().role == "leader"));
    let took = begin.elapsed();
    eprintln!("another leads {} ms after the disk began to hang", took.as_millis());
    assert!(took < 2 * ELECTION, "{took:?}");
    assert!(old.has("disk_stalled"), "{:?}", old.status().not_ready);
    wait("the others go on", || new.propose(set_flag(&unique(), "off")).ok());
    match old.read_flag(Consistency::Linearizable) {
        Ok(read) => assert_eq!(read, "off"),
        Err(ReadError::Unavailable(_)) => {}
        Err(error) => panic!("{error}"),
    }
    old.set_fault(Fault::default());
    wait("a disk that works", || (!old.has("disk_stalled")).then_some(()));
    cluster.assert_same_everywhere();
}

#[test]
fn a_follower_whose_disk_hangs_stops_nobody_and_comes_back_by_itself() {
    let cluster = Cluster::tweaked(3, breakable);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    follower.set_fault(Fault { disk_hangs: true, ..Fault::default() });
    wait("a disk that hangs", || follower.has("disk_stalled").then_some(()));
    for _ in 0..50 {
        assert!(leader.propose(set_flag(&unique(), "off")).unwrap().outcome.is_ok());
    }
    assert_eq!(leader.status().role, "leader");
    follower.set_fault(Fault::default());
    cluster.assert_same_everywhere();
    wait("a disk that works", || (!follower.has("disk_stalled")).then_some(()));
}

#[test]
fn a_leader_whose_clock_jumps_stamps_nothing_and_hands_over_to_one_whose_clock_is_right() {
    let cluster = Cluster::tweaked(3, breakable);
    let wrong = cluster.leader();
    wrong.set_fault(Fault { clock_ahead_ms: 30 * 24 * 3_600_000, ..Fault::default() });
    let new = wait("another leader", || cluster.running().find(|replica| replica.id != wrong.id && replica.status().role == "leader"));
    wait("a decision", || new.propose(set_flag(&unique(), "off")).ok());
    assert!(wrong.has("clock_off") && !new.has("clock_off"));
    assert!(wrong.node().exposition().contains("quorate_clock_off 1"));
    let wall = Clock::read(&**new.node().state()).unwrap().wall.0;
    assert!(wall < now_ms() + 60_000, "an entry carries the wrong clock: {wall}");
    wrong.set_fault(Fault::default());
    wait("a clock that is right", || (!wrong.has("clock_off")).then_some(()));
    wait("leadership can be given back", || new.block_on(new.node().transfer_leader(wrong.id)).ok());
    wait("a decision of it", || wrong.propose(set_flag(&unique(), "off")).ok());
}

const MIB: u64 = 1 << 20;

fn with_quota(config: &mut Config) {
    config.space = Some(SpaceMarks { quota_bytes: Some(512 * MIB), low_bytes: 128 * MIB, clear_bytes: 192 * MIB });
}

fn store_fact() -> Call {
    let command = StoreFact {
        entity: "svc:api".into(),
        key: unique(),
        value: "v".into(),
        source_receipt: None,
        confidence: Confidence::FULL,
        private: false,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: BTreeSet::new(),
    };
    Call { command: command.into(), ..set_flag(&unique(), "off") }
}

impl Replica {
    /// Something else fills the node's folder.
    fn fill(&self) {
        let file = File::create(self.dir.join("ballast")).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 450 * MIB).unwrap();
    }

    fn free(&self) {
        std::fs::remove_file(self.dir.join("ballast")).unwrap();
    }
}

#[test]
fn one_disk_that_fills_up_stops_nobody_and_two_of_three_refuse_what_grows_until_there_is_room() {
    let cluster = Cluster::tweaked(3, with_quota);
    let first = cluster.leader();
    first.fill();
    let second =
        wait("a leader with room", || cluster.running().find(|replica| replica.id != first.id && replica.status().role == "leader"));
    wait("it serves, and follows", || (first.has("disk_low") && first.status().not_ready.is_empty()).then_some(()));
    assert!(cluster.decide(store_fact()).outcome.is_ok());

    second.fill();
    let refused = wait("the alarm", || cluster.decide(store_fact()).outcome.err());
    assert!(matches!(&refused, Refusal::OutOfSpace { nodes } if nodes.len() == 2), "{refused}");
    assert!(cluster.decide(set_flag(&unique(), "off")).outcome.is_ok(), "an operator's act goes on");
    for replica in cluster.running() {
        wait("the alarm everywhere", || replica.has("space_alarm").then_some(()));
    }

    first.free();
    wait("the alarm to clear itself", || cluster.decide(store_fact()).outcome.ok());
    for replica in cluster.running() {
        wait("the end of the alarm everywhere", || (!replica.has("space_alarm")).then_some(()));
    }
    cluster.assert_same_everywhere();
}
