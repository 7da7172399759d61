//! The state machine: the domain's tables, and the marker of what was applied.
//!
//! Commits go without a WAL, because the Raft log already has them: after a crash the state is that of the last flush, and the
//! log is replayed from its marker. Invariants:
//! * A commit is one batch with its marker, and all tables are flushed together: what is on disk is always the state after one
//!   commit, with that commit's marker. The log may be purged up to [`StateStore::flushed_applied`], never further.
//! * The data lies in `<dir>/gen-<number>/`, and the file `CURRENT` names the one that counts. An install builds the next one
//!   beside it and replaces `CURRENT` last, so a crash leaves the old state or the new one.
//! * A generation is removed when its last reader is gone, or when the store is opened without one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use quorate_domain::overlay::Writes;
use quorate_domain::tx::{Direction, Row};
use quorate_domain::{Read, StorageError, Table, chain};

use crate::blobs::IN_SNAPSHOT;
use crate::durable::{self, at};
use crate::engine::{Database, Engine, Reads};
use crate::rocks::Rocks;
use crate::snapshot::Snapshot;

/// The family of this store's own rows.
const APPLIED: &str = "applied";
/// The only key in it.
const APPLIED_KEY: &[u8] = b"applied";
/// All families: the tables, and that one.
const FAMILIES: [&str; Table::ALL.len() + 1] = {
    let mut names = [APPLIED; Table::ALL.len() + 1];
    let mut table = 0;
    while table < Table::ALL.len() {
        names[table] = Table::ALL[table].name();
        table += 1;
    }
    names
};
const CURRENT: &str = "CURRENT";

/// How much memory a state may use.
#[derive(Clone, Copy, Debug)]
pub struct StateOptions {
    /// Blocks of data, indexes and filters kept for reads. Default 128 MiB. Too low, and reads wait for the disk.
    pub block_cache_bytes: usize,
    /// Commits that are only in memory; at this size they are flushed even if nobody asks. Default 64 MiB. Too low, and
    /// compaction never rests; too high, and a restart replays a long log.
    pub write_buffer_bytes: usize,
}

impl Default for StateOptions {
    fn default() -> Self {
        Self { block_cache_bytes: 128 << 20, write_buffer_bytes: 64 << 20 }
    }
}

/// The state of one node.
pub struct StateStore {
    dir: PathBuf,
    engine: Arc<dyn Engine>,
    options: StateOptions,
    current: RwLock<Arc<Generation>>,
    /// Held by commits and installs, so that a commit can't end up in a generation that is being replaced.
    writer: Mutex<()>,
    damage: Damage,
}

/// Whether the disk was found to hold something else than what was written there, by a read or by RocksDB's own work, whose finding
/// the next commit or flush tells. Clones are the same.
#[derive(Clone, Default)]
struct Damage(Arc<AtomicBool>);

impl Damage {
    fn noted<T>(&self, done: Result<T, StorageError>) -> Result<T, StorageError> {
        done.inspect_err(|error| {
            // RocksDB's word for a checksum that does not fit, and its like.
            if chain(error).contains("Corruption") {
                self.0.store(true, Ordering::Release);
            }
        })
    }
}

impl StateStore {
    /// Opens the state in `dir`, or creates it there, and removes what a crash left of other generations.
    pub fn open(dir: &Path, options: StateOptions) -> Result<Self, StorageError> {
        Self::open_on(Arc::new(Rocks::default()), dir, options)
    }

    /// The same on another engine.
    pub fn open_on(engine: Arc<dyn Engine>, dir: &Path, options: StateOptions) -> Result<Self, StorageError> {
        durable::create_dir(dir)?;
        let number = match durable::read_if_there(&dir.join(CURRENT))? {
            Some(name) => parse_generation(&name)
                .ok_or_else(|| StorageError::corrupt(format!("{} does not name a generation", dir.join(CURRENT).display())))?,
            None => first_generation(dir)?,
        };
        let data = dir.join(generation_name(number));
        // RocksDB would make the directory anew.
        if !data.is_dir() {
            return Err(StorageError::corrupt(format!("{} is gone, and `{CURRENT}` names it as the state that counts", data.display())));
        }
        remove_other_generations(dir, number)?;
        let generation = Generation::open(&*engine, dir, number, options)?;
        Ok(Self {
            dir: dir.to_owned(),
            engine,
            options,
            current: RwLock::new(generation),
            writer: Mutex::new(()),
            damage: Damage::default(),
        })
    }

    /// The state at this moment, which stays as it is. Cheap; but while it lives, its rows can't be compacted away.
    pub fn view(&self) -> StateView {
        let generation = self.current();
        StateView(Arc::new(PinnedView { rows: Arc::clone(&generation.db).view(), damage: self.damage.clone(), _generation: generation }))
    }

    /// Makes the writes and the marker one batch: seen at once by later reads, durable with the next flush.
    pub fn commit(&self, writes: Writes, applied: Bytes) -> Result<(), StorageError> {
        let _writer = self.writer();
        let written = self.current().db.write(&mut |batch| {
            for ((table, key), value) in &writes {
                match value {
                    Some(value) => batch.put(table.name(), key, value),
                    None => batch.delete(table.name(), key),
                }
            }
            batch.put(APPLIED, APPLIED_KEY, &applied);
        });
        self.damage.noted(written)
    }

    /// Whether anything done with this store, or read from a view of it, has found damage.
    pub fn is_damaged(&self) -> bool {
        self.damage.0.load(Ordering::Acquire)
    }

    /// The marker of the last commit.
    pub fn applied(&self) -> Result<Option<Bytes>, StorageError> {
        self.damage.noted(self.current().applied())
    }

    /// The marker of a commit that is on disk with all before it. RocksDB may have flushed more on its own.
    pub fn flushed_applied(&self) -> Option<Bytes> {
        self.current().flushed_applied().clone()
    }

    /// Puts everything committed so far on disk and returns the marker that is durable now. Takes as long as the disk does:
    /// for a blocking thread, on a schedule. Commits go on meanwhile.
    pub fn flush(&self) -> Result<Option<Bytes>, StorageError> {
        let generation = self.current();
        self.damage.noted(generation.flush())?;
        Ok(generation.flushed_applied().clone())
    }

    /// Rewrites the files without what was deleted, so that its space comes back now and not some day. For a blocking thread.
    pub fn compact(&self) -> Result<(), StorageError> {
        self.damage.noted(self.current().db.compact())
    }

    /// Rewrites the files that may hold rows of these ranges, so that none has a deleted or overwritten one when it returns. For a
    /// blocking thread.
    pub fn erase(&self, ranges: &[(Table, Vec<u8>, Vec<u8>)]) -> Result<(), StorageError> {
        let generation = self.current();
        ranges.iter().try_for_each(|(table, from, to)| self.damage.noted(generation.db.erase(table.name(), from, to)))
    }

    /// Replaces the state by that of `snapshot`, whose files stay as they are. Views keep the state they were made of.
    pub fn install(&self, snapshot: &Snapshot) -> Result<(), StorageError> {
        self.install_step_by_step(snapshot, &mut |_| {})
    }

    fn install_step_by_step(&self, snapshot: &Snapshot, after: &mut dyn FnMut(&str)) -> Result<(), StorageError> {
        snapshot.verify_once()?;
        let _writer = self.writer();
        let old = self.current();
        let number = old.files.number + 1;
        let dir = self.dir.join(generation_name(number));
        // An install that failed earlier, without a crash, may have left this.
        remove_if_there(&dir)?;
        durable::create_dir(&dir)?;
        after("directory created");
        for file in snapshot.manifest().files.iter().filter(|file| !file.name.starts_with(IN_SNAPSHOT)) {
            bring_in(&snapshot.dir().join(&file.name), &dir.join(&file.name))?;
            after("one more file");
        }
        durable::sync_dir(&dir)?;
        let new = Generation::open(&*self.engine, &self.dir, number, self.options)?;
        after("opened");
        durable::replace_file(&self.dir.join(CURRENT), generation_name(number).as_bytes())?;
        after("made current");
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        old.files.superseded.store(true, Ordering::Release);
        drop(old);
        after("swapped");
        Ok(())
    }

    /// The files of the state at the boundary of one commit, in the new directory `dir`, and that commit's marker. Commits went on
    /// while they were made, so only the files know which it is.
    pub(crate) fn checkpoint(&self, dir: &Path) -> Result<Bytes, StorageError> {
        self.damage.noted(self.current().db.checkpoint(dir))?;
        Ok(self.engine.read_checkpoint(dir, APPLIED, APPLIED_KEY)?.unwrap_or_default().into())
    }

    fn current(&self) -> Arc<Generation> {
        // The pointer is replaced in one assignment, so a panic elsewhere can't leave it half done.
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read for StateStore {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.damage.noted(self.current().db.get(table.name(), key))
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        self.damage.noted(scan(&*self.current().db, table, from, to, direction, limit))
    }
}

/// The state as it was when the view was made. Clones share it.
#[derive(Clone)]
pub struct StateView(Arc<PinnedView>);

/// Fields are dropped in this order: the files go when nobody reads them.
struct PinnedView {
    rows: Box<dyn Reads>,
    damage: Damage,
    _generation: Arc<Generation>,
}

impl StateView {
    /// The marker of the commit this is the state after.
    pub fn applied(&self) -> Result<Option<Bytes>, StorageError> {
        Ok(self.0.damage.noted(self.0.rows.get(APPLIED, APPLIED_KEY))?.map(Bytes::from))
    }
}

/// What two replicas of one revision must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDigest {
    /// Over every row of every table in order, and the applied marker; in hex.
    pub blake3: String,
    pub rows: u64,
    pub bytes: u64,
}

/// A place in the whole of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// By its place in `Table::ALL`.
    pub table: usize,
    /// The first key at or behind this.
    pub key: Vec<u8>,
}

/// What two replicas of one revision must have in common from a place on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartDigest {
    /// In hex.
    pub blake3: String,
    pub rows: u64,
    /// Where the next part begins; nothing at the end.
    pub next: Option<Place>,
}

/// Adds a row, and says how long it is.
fn hash_row(hasher: &mut blake3::Hasher, key: &[u8], value: &[u8]) -> u64 {
    for part in [key, value] {
        hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
    }
    (key.len() + value.len()) as u64
}

impl StateView {
    /// Reads every row once, past the cache, and so also checks every block that holds one. For a blocking thread.
    pub fn digest(&self) -> Result<StateDigest, StorageError> {
        let (mut hasher, mut rows, mut bytes) = (blake3::Hasher::new(), 0, 0);
        for name in Table::ALL.map(Table::name).into_iter().chain([APPLIED]) {
            hasher.update(&(name.len() as u64).to_be_bytes()).update(name.as_bytes());
            let scanned = self.0.rows.scan_all(name, &[], &mut |key, value| {
                bytes += hash_row(&mut hasher, key, value);
                rows += 1;
                Ok(true)
            });
            self.0.damage.noted(scanned)?;
        }
        Ok(StateDigest { blake3: hasher.finalize().to_string(), rows, bytes })
    }

    /// The same of a few rows: from a place on, through one table after the other, until so many rows or bytes are read.
    pub fn digest_part(&self, from: &Place, rows_max: u64, bytes_max: u64) -> Result<PartDigest, StorageError> {
        let (mut hasher, mut rows, mut bytes, mut next) = (blake3::Hasher::new(), 0, 0, None);
        for (number, table) in Table::ALL.into_iter().enumerate().skip(from.table) {
            let begin: &[u8] = if number == from.table { &from.key } else { &[] };
            hasher.update(&(number as u64).to_be_bytes());
            let scanned = self.0.rows.scan_all(table.name(), begin, &mut |key, value| {
                if rows >= rows_max || bytes >= bytes_max {
                    next = Some(Place { table: number, key: key.to_vec() });
                    return Ok(false);
                }
                bytes += hash_row(&mut hasher, key, value);
                rows += 1;
                Ok(true)
            });
            self.0.damage.noted(scanned)?;
            if next.is_some() {
                break;
            }
        }
        Ok(PartDigest { blake3: hasher.finalize().to_string(), rows, next })
    }
}

impl Read for StateView {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.0.damage.noted(self.0.rows.get(table.name(), key))
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        self.0.damage.noted(scan(&*self.0.rows, table, from, to, direction, limit))
    }
}

fn scan<R: Reads + ?Sized>(
    rows: &R,
    table: Table,
    from: &[u8],
    to: &[u8],
    direction: Direction,
    limit: usize,
) -> Result<Vec<Row>, StorageError> {
    let mut scanned = Vec::new();
    if from >= to || limit == 0 {
        return Ok(scanned);
    }
    rows.scan(table.name(), from, to, direction, &mut |key, value| {
        scanned.push((key.to_vec(), value.to_vec()));
        Ok(scanned.len() < limit)
    })?;
    Ok(scanned)
}

/// One database of the state. Fields are dropped in this order: the database is closed before its files go.
struct Generation {
    db: Arc<dyn Database>,
    flushed: Mutex<Option<Bytes>>,
    files: GenerationFiles,
}

impl Generation {
    fn open(engine: &dyn Engine, dir: &Path, number: u64, options: StateOptions) -> Result<Arc<Self>, StorageError> {
        let dir = dir.join(generation_name(number));
        // Later ones come from a snapshot and are never empty.
        let may_create = number == 1;
        let db = engine.open_state(&dir, &FAMILIES, options, may_create)?;
        let generation = Self { db, flushed: Mutex::new(None), files: GenerationFiles { dir, number, superseded: AtomicBool::new(false) } };
        // Without a WAL, what is there at opening was read from flushed files.
        let applied = generation.applied()?;
        *generation.flushed_applied() = applied;
        Ok(Arc::new(generation))
    }

    fn applied(&self) -> Result<Option<Bytes>, StorageError> {
        Ok(self.db.get(APPLIED, APPLIED_KEY)?.map(Bytes::from))
    }

    fn flush(&self) -> Result<(), StorageError> {
        // Read first: the flush takes in at least this commit, perhaps later ones.
        let applied = self.applied()?;
        self.db.flush()?;
        *self.flushed_applied() = applied;
        Ok(())
    }

    fn flushed_applied(&self) -> MutexGuard<'_, Option<Bytes>> {
        self.flushed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct GenerationFiles {
    dir: PathBuf,
    number: u64,
    superseded: AtomicBool,
}

impl Drop for GenerationFiles {
    fn drop(&mut self) {
        if self.superseded.load(Ordering::Acquire)
            && let Err(error) = fs::remove_dir_all(&self.dir)
        {
            // The next opening removes it.
            tracing::warn!(%error, dir = %self.dir.display(), "cannot remove the state that a snapshot replaced");
        }
    }
}

fn generation_name(number: u64) -> String {
    format!("gen-{number:06}")
}

fn parse_generation(name: &[u8]) -> Option<u64> {
    std::str::from_utf8(name).ok()?.strip_prefix("gen-")?.parse().ok()
}

/// Names the first generation before anything is in it, so that data without `CURRENT` is known to be a loss.
fn first_generation(dir: &Path) -> Result<u64, StorageError> {
    for name in durable::names(dir)? {
        if parse_generation(name.as_bytes()).is_some() && !durable::names(&dir.join(&name))?.is_empty() {
            return Err(StorageError::corrupt(format!("{} has data but no `{CURRENT}`; which state counts is not known", dir.display())));
        }
    }
    durable::create_dir(&dir.join(generation_name(1)))?;
    durable::replace_file(&dir.join(CURRENT), generation_name(1).as_bytes())?;
    Ok(1)
}

fn remove_other_generations(dir: &Path, number: u64) -> Result<(), StorageError> {
    for name in durable::names(dir)? {
        if parse_generation(name.as_bytes()).is_some_and(|other| other != number) {
            remove_if_there(&dir.join(name))?;
        }
    }
    Ok(())
}

fn remove_if_there(dir: &Path) -> Result<(), StorageError> {
    if dir.exists() { fs::remove_dir_all(dir).map_err(at("remove", dir)) } else { Ok(()) }
}

/// Tables are never changed in place, so a link will do; RocksDB goes on writing to the other files, and gets its own copy.
fn bring_in(from: &Path, to: &Path) -> Result<(), StorageError> {
    let is_table = from.extension().is_some_and(|extension| extension == "sst");
    // Linking fails across file systems.
    if is_table && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to).map_err(at("copy", from))?;
    fs::File::open(to).and_then(|file| file.sync_all()).map_err(at("sync", to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Snapshots;

    fn copy_dir(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for name in durable::names(from).unwrap() {
            let (from, to) = (from.join(&name), to.join(&name));
            if from.is_dir() {
                copy_dir(&from, &to);
            } else {
                fs::copy(from, to).unwrap();
            }
        }
    }

    fn state_with(dir: &Path, value: &str) -> StateStore {
        let state = StateStore::open(dir, StateOptions::default()).unwrap();
        let writes = Table::ALL.map(|table| ((table, b"key".to_vec()), Some(value.as_bytes().to_vec())));
        state.commit(writes.into(), Bytes::from(value.to_owned())).unwrap();
        state.flush().unwrap();
        state
    }

    #[test]
    fn the_parts_of_a_state_are_the_whole_of_it_and_a_changed_row_changes_its_part_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = state_with(&dir.path().join("state"), "same");
        let other = state_with(&dir.path().join("other"), "same");
        other.commit([((Table::ALL[3], b"key".to_vec()), Some(b"else".to_vec()))].into(), Bytes::new()).unwrap();
        let parts = |state: &StateStore| {
            let (view, mut from, mut parts) = (state.view(), Some(Place::default()), Vec::new());
            while let Some(place) = from {
                let part = view.digest_part(&place, 1, u64::MAX).unwrap();
                from = part.next.clone();
                parts.push(part);
            }
            parts
        };
        let (mine, theirs) = (parts(&state), parts(&other));
        assert_eq!(mine.iter().map(|part| part.rows).sum::<u64>(), Table::ALL.len() as u64);
        let differing: Vec<usize> = (0..mine.len()).filter(|&at| mine[at] != theirs[at]).collect();
        assert_eq!((mine.len(), differing), (Table::ALL.len(), vec![3]));
        let whole = state.view().digest_part(&Place::default(), 1_000, u64::MAX).unwrap();
        assert_eq!((whole.rows, whole.next), (Table::ALL.len() as u64, None));
    }

    #[test]
    fn damage_that_rocksdb_finds_by_itself_is_known_as_damage_of_the_state() {
        let dir = tempfile::tempdir().unwrap();
        drop(state_with(dir.path(), "old"));
        for file in fs::read_dir(dir.path().join(generation_name(1))).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            // Not the file that every start reads.
            let is_marker = bytes.windows(APPLIED.len()).any(|word| word == APPLIED.as_bytes());
            if path.extension().is_some_and(|extension| extension == "sst") && !is_marker {
                bytes[10] ^= 1;
                fs::write(&path, bytes).unwrap();
            }
        }
        let state = StateStore::open(dir.path(), StateOptions::default()).unwrap();
        assert!(!state.is_damaged(), "nobody has read it yet");
        // It merges files on its own once there are some, and tells with a later write.
        let write = |n: u64| {
            let row = ((Table::Records, b"key".to_vec()), Some(n.to_be_bytes().to_vec()));
            state.commit([row].into(), Bytes::copy_from_slice(&n.to_be_bytes())).and_then(|()| state.flush())
        };
        let failed = (0..2_000).find_map(|n| write(n).err()).expect("it merges files before there are so many");
        assert!(state.is_damaged(), "{failed}");
    }

    #[test]
    fn a_crash_at_any_step_of_an_install_leaves_the_old_state_or_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(&dir.path().join("snapshots")).unwrap();
        let snapshot = snapshots.build(&state_with(&dir.path().join("source"), "new"), "new", Bytes::new()).unwrap();
        let state = state_with(&dir.path().join("state"), "old");
        let mut found = Vec::new();
        state
            .install_step_by_step(&snapshot, &mut |step| {
                let crashed = tempfile::tempdir().unwrap();
                copy_dir(&dir.path().join("state"), crashed.path());
                let reopened = StateStore::open(crashed.path(), StateOptions::default()).unwrap();
                let applied = reopened.applied().unwrap().unwrap();
                for table in Table::ALL {
                    assert_eq!(reopened.get_bytes(table, b"key").unwrap().unwrap(), applied, "{step}");
                }
                assert_eq!(durable::names(crashed.path()).unwrap().len(), 2, "one generation and `CURRENT` after {step}");
                found.push((step.to_owned(), String::from_utf8(applied.to_vec()).unwrap()));
            })
            .unwrap();
        found.dedup();
        let found: Vec<_> = found.iter().map(|(step, state)| format!("{step}: {state}")).collect();
        assert_eq!(found, ["directory created: old", "one more file: old", "opened: old", "made current: new", "swapped: new"]);
    }
}
