//! The disk of a simulated node: an [`Engine`] in memory that forgets what a crash makes it forget.
//!
//! What the two stores ask of it stands in `quorate_storage::engine`. This one keeps to that and to nothing more:
//! * A synced write takes time, more while the disk stalls, and is visible and durable when that is over. A crash in between
//!   leaves all of it or nothing: RocksDB reads a torn record as absent, which the crash tests of `storage` hold it to.
//! * A synced write can fail, and then it is on the disk or not, and nobody knows.
//! * Writes without a sync are visible at once and gone after a crash, unless a flush, or the database on its own, came between.
//!
//! The rows of a database are in memory and survive the simulated crash here; its directory, and all other files of a node, are
//! real ones on a memory file system, and survive whole. A handle that was opened before a crash is dead after it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_domain::tx::Direction;
use quorate_domain::{StorageError, codec};
use quorate_storage::StateOptions;
use quorate_storage::engine::{Batch, Database, Done, Engine, Fill, Reads, Row};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

use super::plant::Plant;
use super::process;
use super::states::States;

type Key = (String, Vec<u8>);
type Rows = BTreeMap<Key, Vec<u8>>;

/// Names the database that belongs to a directory.
const NAME: &str = "simulated";
/// Rows of a checkpoint, one file for each family.
const CHECKPOINT: &str = "rows-";
/// How long a write that nobody syncs stays in memory, for planted bugs.
const PAGE_CACHE: Duration = Duration::from_secs(1);
/// The family of the answers that are remembered under their request ids.
const ANSWERS: &str = "dedup";
/// Of so many commits one is followed by a flush that nobody asked for.
const OWN_FLUSH_ONE_IN: u32 = 50;

/// What the disk is doing wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Synced writes do not end before this moment.
    pub stalled_until: Duration,
    /// The next synced write fails.
    pub fails_next_sync: bool,
    /// No space for anything until this moment.
    pub full_until: Duration,
}

/// What the faults did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bites {
    pub unsynced_lost: u64,
    pub unsynced_kept: u64,
    pub commits_lost: u64,
    pub syncs_failed: u64,
    pub syncs_stalled: u64,
    pub checkpoints_installed: u64,
}

/// The disk of one node. Clones are the same disk.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<Inner>>);

struct Inner {
    random: StdRng,
    databases: Vec<Stored>,
    /// Counts crashes: handles of an earlier one are dead.
    epoch: u64,
    faults: Faults,
    bites: Bites,
    states: States,
    node: u64,
    /// Of the last commit to a state since the last crash; 0 before the first.
    applied: u64,
    plant: Option<Plant>,
}

/// A database as it is, and as it would be after a crash.
#[derive(Default)]
struct Stored {
    rows: Arc<Rows>,
    durable: Arc<Rows>,
    /// Commits since `durable`.
    unflushed: u64,
    hash: u128,
    in_flight: BTreeMap<u64, Vec<Write>>,
    next_write: u64,
    /// When a vote came that a planted bug keeps off the disk.
    vote_since: Option<Duration>,
}

enum Write {
    Put(Key, Vec<u8>),
    Delete(Key),
    DeleteRange(Key, Key),
}

impl Disk {
    pub fn new(node: u64, seed: u64, states: States, plant: Option<Plant>) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            random: StdRng::seed_from_u64(seed),
            databases: Vec::new(),
            epoch: 0,
            faults: Faults::default(),
            bites: Bites::default(),
            states,
            node,
            applied: 0,
            plant,
        })))
    }

    /// The power goes: of what is on its way the disk keeps some, and of what was not synced nothing.
    pub fn crash(&self) {
        let mut guard = self.lock();
        let Inner { random, databases, epoch, bites, faults, plant, applied, .. } = &mut *guard;
        *epoch += 1;
        *applied = 0;
        *faults = Faults::default();
        for stored in databases {
            for (_, writes) in std::mem::take(&mut stored.in_flight) {
                // What was answered before it was synced is in `rows` already, and only there.
                let is_kept = *plant != Some(Plant::AckBeforeSync) && random.random_bool(0.5);
                if is_kept {
                    stored.apply(&writes);
                    stored.durable = Arc::clone(&stored.rows);
                    bites.unsynced_kept += 1;
                } else {
                    bites.unsynced_lost += 1;
                }
            }
            bites.commits_lost += stored.unflushed;
            stored.unflushed = 0;
            stored.rows = Arc::clone(&stored.durable);
            stored.hash = hash_all(&stored.rows);
        }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    pub fn bites(&self) -> Bites {
        self.lock().bites
    }

    /// Whether a synced write is on its way.
    pub fn is_writing(&self) -> bool {
        self.lock().databases.iter().any(|stored| !stored.in_flight.is_empty())
    }

    /// The index of the last commit to the state since the last crash.
    pub fn applied(&self) -> u64 {
        self.lock().applied
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The simulation has one thread; a panic under the lock ends the run with its own message.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, dir: &Path) -> Result<Arc<dyn Database>, StorageError> {
        fs::create_dir_all(dir).map_err(|error| StorageError::new("cannot create a directory", error))?;
        let name = dir.join(NAME);
        let mut inner = self.lock();
        let known = fs::read_to_string(&name).ok().and_then(|name| name.parse::<usize>().ok());
        let id = match known {
            Some(id) => id,
            None => {
                let rows = Arc::new(read_checkpoint(dir)?);
                if !rows.is_empty() {
                    inner.bites.checkpoints_installed += 1;
                }
                let hash = hash_all(&rows);
                inner.databases.push(Stored { durable: Arc::clone(&rows), rows, hash, ..Stored::default() });
                let id = inner.databases.len() - 1;
                fs::write(&name, id.to_string()).map_err(|error| StorageError::new("cannot name a database", error))?;
                id
            }
        };
        Ok(Arc::new(Handle { disk: self.clone(), id, epoch: inner.epoch }))
    }
}

fn dead() -> StorageError {
    StorageError::corrupt("the power is off")
}

fn no_space() -> StorageError {
    StorageError::corrupt("no space left on the simulated device")
}

impl Engine for Disk {
    fn open_log(&self, dir: &Path, _: [&'static str; 2]) -> Result<Arc<dyn Database>, StorageError> {
        self.open(dir)
    }

    fn open_state(&self, dir: &Path, _: &[&'static str], _: StateOptions, _: bool) -> Result<Arc<dyn Database>, StorageError> {
        self.open(dir)
    }

    fn read_checkpoint(&self, dir: &Path, family: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(read_checkpoint(dir)?.remove(&(family.to_owned(), key.to_vec())))
    }
}

/// An open database.
struct Handle {
    disk: Disk,
    id: usize,
    epoch: u64,
}

impl Handle {
    fn with<T>(&self, at: impl FnOnce(&mut Inner, usize) -> Result<T, StorageError>) -> Result<T, StorageError> {
        let mut inner = self.disk.lock();
        if inner.epoch != self.epoch {
            return Err(dead());
        }
        at(&mut inner, self.id)
    }

    fn rows(&self) -> Result<Arc<Rows>, StorageError> {
        self.with(|inner, id| Ok(Arc::clone(&inner.databases[id].rows)))
    }
}

impl Reads for Handle {
    fn get(&self, family: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        View(self.rows()?).get(family, key)
    }

    fn scan(&self, family: &str, from: &[u8], to: &[u8], direction: Direction, row: &mut Row<'_>) -> Result<(), StorageError> {
        View(self.rows()?).scan(family, from, to, direction, row)
    }

    fn scan_all(&self, family: &str, from: &[u8], row: &mut Row<'_>) -> Result<(), StorageError> {
        View(self.rows()?).scan_all(family, from, row)
    }
}

struct View(Arc<Rows>);

impl Reads for View {
    fn get(&self, family: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.0.get(&(family.to_owned(), key.to_vec())).cloned())
    }

    fn scan(&self, family: &str, from: &[u8], to: &[u8], direction: Direction, row: &mut Row<'_>) -> Result<(), StorageError> {
        if from >= to {
            return Ok(());
        }
        let mut rows = self.0.range((family.to_owned(), from.to_vec())..(family.to_owned(), to.to_vec()));
        let mut next = || match direction {
            Direction::Ascending => rows.next(),
            Direction::Descending => rows.next_back(),
        };
        while let Some(((_, key), value)) = next() {
            if !row(key, value)? {
                break;
            }
        }
        Ok(())
    }

    fn scan_all(&self, family: &str, from: &[u8], row: &mut Row<'_>) -> Result<(), StorageError> {
        let of_family = self.0.range((family.to_owned(), from.to_vec())..).take_while(|((name, _), _)| name == family);
        for ((_, key), value) in of_family {
            if !row(key, value)? {
                break;
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Writes(Vec<Write>);

impl Batch for Writes {
    fn put(&mut self, family: &str, key: &[u8], value: &[u8]) {
        self.0.push(Write::Put((family.to_owned(), key.to_vec()), value.to_vec()));
    }

    fn delete(&mut self, family: &str, key: &[u8]) {
        self.0.push(Write::Delete((family.to_owned(), key.to_vec())));
    }

    fn delete_range(&mut self, family: &str, from: &[u8], to: &[u8]) {
        self.0.push(Write::DeleteRange((family.to_owned(), from.to_vec()), (family.to_owned(), to.to_vec())));
    }
}

impl Database for Handle {
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), StorageError> {
        let mut writes = Writes::default();
        fill(&mut writes);
        self.with(|inner, id| {
            let flushes = inner.random.random_ratio(1, OWN_FLUSH_ONE_IN) && inner.plant != Some(Plant::PurgePastFlushed);
            if inner.plant == Some(Plant::StateDrifts) && inner.random.random_ratio(1, 100) {
                writes.0.remove(0);
            }
            let stored = &mut inner.databases[id];
            stored.apply(&writes.0);
            stored.unflushed += 1;
            if flushes {
                stored.flush();
            }
            if let Some(index) = applied(&writes.0) {
                let (node, hash) = (inner.node, inner.databases[id].hash);
                inner.applied = index;
                inner.states.note(node, index, hash);
            }
            Ok(())
        })
    }

    fn write_synced(&self, fill: &mut Fill<'_>, done: Done) {
        let mut writes = Writes::default();
        fill(&mut writes);
        let begun = self.with(|inner, id| {
            let now = process::elapsed();
            let latency = Duration::from_micros(inner.random.random_range(500..6_000));
            let fails = std::mem::take(&mut inner.faults.fails_next_sync) || inner.faults.full_until > now;
            let ends = (now + latency).max(inner.faults.stalled_until);
            inner.bites.syncs_stalled += u64::from(ends > now + latency);
            let stored = &mut inner.databases[id];
            let number = stored.next_write;
            stored.next_write += 1;
            if inner.plant == Some(Plant::AckBeforeSync) {
                stored.apply(&writes.0);
                stored.in_flight.insert(number, Vec::new());
                return Ok((number, PAGE_CACHE, fails));
            }
            stored.in_flight.insert(number, writes.0);
            Ok((number, ends - now, fails))
        });
        let (number, takes, fails) = match begun {
            Ok(begun) => begun,
            // Of a node that is being taken down: nothing runs there later.
            Err(error) => return done(Err(error)),
        };
        let handle = Handle { disk: self.disk.clone(), id: self.id, epoch: self.epoch };
        let plant = self.disk.lock().plant;
        tokio::spawn(async move {
            let mut done = Some(done);
            if plant == Some(Plant::AckBeforeSync) && !fails {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if let Some(done) = done.take() {
                    done(Ok(()));
                }
            }
            tokio::time::sleep(takes).await;
            let written = handle.with(|inner, id| {
                if fails {
                    inner.bites.syncs_failed += 1;
                }
                let keeps = !fails || inner.random.random_bool(0.5);
                let stored = &mut inner.databases[id];
                let writes = stored.in_flight.remove(&number).unwrap_or_default();
                if keeps {
                    stored.apply(&writes);
                    stored.sync(plant);
                }
                if fails { Err(no_space()) } else { Ok(()) }
            });
            if let Some(done) = done {
                done(written);
            }
        });
    }

    fn blocks(&self) -> bool {
        false
    }

    fn flush(&self) -> Result<(), StorageError> {
        self.with(|inner, id| {
            if inner.faults.full_until > process::elapsed() {
                inner.bites.syncs_failed += 1;
                return Err(no_space());
            }
            if inner.plant != Some(Plant::PurgePastFlushed) {
                inner.databases[id].flush();
            }
            Ok(())
        })
    }

    fn view(self: Arc<Self>) -> Box<dyn Reads> {
        // A view of a dead handle is never asked again: its node is gone.
        Box::new(View(self.rows().unwrap_or_default()))
    }

    fn checkpoint(&self, dir: &Path) -> Result<(), StorageError> {
        self.flush()?;
        let failed = |error| StorageError::new("cannot write a checkpoint", error);
        fs::create_dir_all(dir).map_err(failed)?;
        let rows = self.rows()?;
        let mut families: BTreeSet<&str> = rows.keys().map(|(family, _)| family.as_str()).collect();
        if self.disk.lock().plant == Some(Plant::SnapshotWithoutAnswers) {
            families.remove(ANSWERS);
        }
        for family in families {
            let of_family: Vec<_> = rows.iter().filter(|((of, _), _)| of == family).map(|((_, key), value)| (key, value)).collect();
            fs::write(dir.join(format!("{CHECKPOINT}{family}")), codec::encode(&of_family)).map_err(failed)?;
        }
        Ok(())
    }

    fn compact(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn erase(&self, _: &str, _: &[u8], _: &[u8]) -> Result<(), StorageError> {
        // Rows are held once, and there are no files.
        Ok(())
    }

    fn reclaim(&self, _: &str, _: &[u8]) -> Result<(), StorageError> {
        Ok(())
    }
}

impl Stored {
    /// What is there is on the disk, but for what a planted bug leaves out.
    fn sync(&mut self, plant: Option<Plant>) {
        let vote = ("meta".to_owned(), b"vote".to_vec());
        let before = self.durable.get(&vote).cloned();
        self.durable = Arc::clone(&self.rows);
        if plant == Some(Plant::VoteNotDurable) && before != self.rows.get(&vote).cloned() {
            let now = process::elapsed();
            if *self.vote_since.get_or_insert(now) + PAGE_CACHE > now {
                let durable = Arc::make_mut(&mut self.durable);
                match before {
                    Some(before) => durable.insert(vote, before),
                    None => durable.remove(&vote),
                };
            } else {
                self.vote_since = None;
            }
        }
    }

    fn flush(&mut self) {
        self.durable = Arc::clone(&self.rows);
        self.unflushed = 0;
    }

    fn apply(&mut self, writes: &[Write]) {
        let rows = Arc::make_mut(&mut self.rows);
        for write in writes {
            match write {
                Write::Put(key, value) => {
                    let old = rows.insert(key.clone(), value.clone());
                    self.hash = self.hash.wrapping_sub(old.map_or(0, |old| hash(key, &old))).wrapping_add(hash(key, value));
                }
                Write::Delete(key) => {
                    let old = rows.remove(key);
                    self.hash = self.hash.wrapping_sub(old.map_or(0, |old| hash(key, &old)));
                }
                Write::DeleteRange(from, to) => {
                    let keys: Vec<Key> = rows.range(from.clone()..to.clone()).map(|(key, _)| key.clone()).collect();
                    for key in keys {
                        let old = rows.remove(&key);
                        self.hash = self.hash.wrapping_sub(old.map_or(0, |old| hash(&key, &old)));
                    }
                }
            }
        }
    }
}

/// Of one row; the sum over all is the hash of a state, and one commit changes it by its own rows.
fn hash((family, key): &Key, value: &[u8]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(family.as_bytes()).update(&(key.len() as u64).to_le_bytes()).update(key).update(value);
    let bytes: [u8; 16] = hasher.finalize().as_bytes()[..16].try_into().expect("16 of 32 bytes");
    u128::from_le_bytes(bytes)
}

fn hash_all(rows: &Rows) -> u128 {
    rows.iter().fold(0, |sum, (key, value)| sum.wrapping_add(hash(key, value)))
}

/// The index in the marker of a commit, as far as `raft` lets it be known by its form.
fn applied(writes: &[Write]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Marker {
        last: Option<Last>,
    }
    #[derive(Deserialize)]
    struct Last {
        index: u64,
    }
    let marker = writes.iter().rev().find_map(|write| match write {
        Write::Put((family, _), value) if family == "applied" => Some(value),
        _ => None,
    })?;
    codec::decode::<Marker>(marker).ok()?.last.map(|last| last.index)
}

fn read_checkpoint(dir: &Path) -> Result<Rows, StorageError> {
    let failed = |error| StorageError::new("cannot read a checkpoint", error);
    let mut found = Rows::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(family) = name.strip_prefix(CHECKPOINT) else { continue };
        let bytes = fs::read(entry.path()).map_err(failed)?;
        let rows: Vec<(Vec<u8>, Vec<u8>)> = codec::decode(&bytes).map_err(|error| StorageError::new("a checkpoint", error))?;
        found.extend(rows.into_iter().map(|(key, value)| ((family.to_owned(), key), value)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn put(key: &'static str) -> impl FnMut(&mut dyn Batch) {
        move |batch| batch.put("records", key.as_bytes(), b"value")
    }

    fn has(db: &Arc<dyn Database>, key: &str) -> bool {
        db.get("records", key.as_bytes()).unwrap().is_some()
    }

    async fn synced(db: &Arc<dyn Database>, key: &'static str) -> Result<(), StorageError> {
        let (sender, done) = oneshot::channel();
        db.write_synced(&mut put(key), Box::new(move |result| drop(sender.send(result))));
        done.await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_crash_takes_what_was_not_on_disk_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::new(1, 7, States::default(), None);
        let open = || disk.open(dir.path()).unwrap();
        let db = open();
        db.write(&mut put("flushed")).unwrap();
        db.flush().unwrap();
        db.write(&mut put("unflushed")).unwrap();
        assert!(has(&db, "unflushed"));
        disk.crash();
        assert!(db.get("records", b"flushed").is_err(), "a handle from before the crash");
        let db = open();
        assert!(has(&db, "flushed") && !has(&db, "unflushed"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_synced_write_is_there_when_it_is_answered_and_before_that_perhaps() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::new(1, 7, States::default(), None);
        let open = || disk.open(dir.path()).unwrap();
        synced(&open(), "answered").await.unwrap();
        let mut kept = 0;
        for _ in 0..40 {
            let db = open();
            db.write_synced(&mut put("on its way"), Box::new(|_| {}));
            assert!(!has(&db, "on its way"));
            disk.crash();
            kept += u32::from(has(&open(), "on its way"));
            synced(&open(), "answered").await.unwrap();
            open().write_synced(&mut |batch| batch.delete("records", b"on its way"), Box::new(|_| {}));
            tokio::time::sleep(PAGE_CACHE).await;
        }
        assert!((1..40).contains(&kept), "{kept}");
        assert!(has(&open(), "answered"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_checkpoint_opens_as_the_state_it_was_made_of() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let disk = Disk::new(1, 7, States::default(), None);
        let db = disk.open(dir.path()).unwrap();
        db.write(&mut put("a")).unwrap();
        db.checkpoint(other.path()).unwrap();
        db.write(&mut put("b")).unwrap();
        assert!(disk.read_checkpoint(other.path(), "records", b"a").unwrap().is_some());
        let copy = disk.open(other.path()).unwrap();
        assert!(has(&copy, "a") && !has(&copy, "b"));
    }
}
