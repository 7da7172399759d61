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
use quorate_domain::{Read, StorageError, Table};
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, DBRawIterator, FlushOptions, Options, ReadOptions, WriteBatch};

use crate::durable::{self, at};
use crate::rocks::{self, failed, family};
use crate::snapshot::Snapshot;

/// The column family of this store's own rows.
pub(crate) const APPLIED: &str = "applied";
/// The only key in it.
pub(crate) const APPLIED_KEY: &[u8] = b"applied";
const CURRENT: &str = "CURRENT";
const DIGEST_READAHEAD_BYTES: usize = 1 << 20;

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
    settings: Settings,
    current: RwLock<Arc<Generation>>,
    /// Held by commits and installs, so that a commit can't end up in a generation that is being replaced.
    writer: Mutex<()>,
}

impl StateStore {
    /// Opens the state in `dir`, or creates it there, and removes what a crash left of other generations.
    pub fn open(dir: &Path, options: StateOptions) -> Result<Self, StorageError> {
        durable::create_dir(dir)?;
        let settings = Settings { options, block_cache: Cache::new_lru_cache(options.block_cache_bytes) };
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
        let generation = Generation::open(dir, number, &settings)?;
        Ok(Self { dir: dir.to_owned(), settings, current: RwLock::new(generation), writer: Mutex::new(()) })
    }

    /// The state at this moment, which stays as it is. Cheap; but while it lives, its rows can't be compacted away.
    pub fn view(&self) -> StateView {
        StateView(Arc::new(PinnedSnapshot::new(self.current(), |generation| generation.db.snapshot())))
    }

    /// Makes the writes and the marker one batch: seen at once by later reads, durable with the next flush.
    pub fn commit(&self, writes: Writes, applied: Bytes) -> Result<(), StorageError> {
        let _writer = self.writer();
        let generation = self.current();
        let db = &generation.db;
        let tables = Table::ALL.map(|table| (table, family(db, table.name())));
        let mut batch = WriteBatch::default();
        for ((table, key), value) in writes {
            // `Table::ALL` has every table.
            let Some((_, family)) = tables.iter().find(|(known, _)| *known == table) else { unreachable!("a table outside Table::ALL") };
            match value {
                Some(value) => batch.put_cf(*family, key, value),
                None => batch.delete_cf(*family, key),
            }
        }
        batch.put_cf(family(db, APPLIED), APPLIED_KEY, applied);
        db.write_without_wal(batch).map_err(failed("cannot commit to the state"))
    }

    /// The marker of the last commit.
    pub fn applied(&self) -> Result<Option<Bytes>, StorageError> {
        self.current().applied()
    }

    /// The marker of a commit that is on disk with all before it. RocksDB may have flushed more on its own.
    pub fn flushed_applied(&self) -> Option<Bytes> {
        self.current().flushed_applied().clone()
    }

    /// Puts everything committed so far on disk and returns the marker that is durable now. Takes as long as the disk does:
    /// for a blocking thread, on a schedule. Commits go on meanwhile.
    pub fn flush(&self) -> Result<Option<Bytes>, StorageError> {
        let generation = self.current();
        generation.flush()?;
        Ok(generation.flushed_applied().clone())
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
        for file in &snapshot.manifest().files {
            bring_in(&snapshot.dir().join(&file.name), &dir.join(&file.name))?;
            after("one more file");
        }
        durable::sync_dir(&dir)?;
        let new = Generation::open(&self.dir, number, &self.settings)?;
        after("opened");
        durable::replace_file(&self.dir.join(CURRENT), generation_name(number).as_bytes())?;
        after("made current");
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        old.files.superseded.store(true, Ordering::Release);
        drop(old);
        after("swapped");
        Ok(())
    }

    /// Hard links of all files at the boundary of one commit, in the new directory `dir`.
    pub(crate) fn checkpoint(&self, dir: &Path) -> Result<(), StorageError> {
        let generation = self.current();
        // RocksDB flushes first, since the WAL has nothing.
        let checkpoint = rocksdb::checkpoint::Checkpoint::new(&generation.db).map_err(failed("cannot begin a checkpoint"))?;
        checkpoint.create_checkpoint(dir).map_err(failed(format!("cannot make a checkpoint in {}", dir.display())))
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
        let db = &self.current().db;
        db.get_cf(family(db, table.name()), key).map_err(failed(format!("cannot read from {}", table.name())))
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let db = &self.current().db;
        scan(db.raw_iterator_cf_opt(family(db, table.name()), bounded(from, to)), direction, limit)
    }
}

/// The state as it was when the view was made. Clones share it.
#[derive(Clone)]
pub struct StateView(Arc<PinnedSnapshot>);

self_cell::self_cell!(
    /// A RocksDB snapshot together with the database it borrows from.
    struct PinnedSnapshot {
        owner: Arc<Generation>,
        #[covariant]
        dependent: DbSnapshot,
    }
);

type DbSnapshot<'a> = rocksdb::Snapshot<'a>;

impl StateView {
    /// The marker of the commit this is the state after.
    pub fn applied(&self) -> Result<Option<Bytes>, StorageError> {
        self.0.with_dependent(|generation, snapshot| {
            let marker = snapshot.get_cf(family(&generation.db, APPLIED), APPLIED_KEY).map_err(failed("cannot read the applied marker"))?;
            Ok(marker.map(Bytes::from))
        })
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

impl StateView {
    /// Reads every row once, past the cache, and so also checks every block that holds one. For a blocking thread.
    pub fn digest(&self) -> Result<StateDigest, StorageError> {
        self.0.with_dependent(|generation, snapshot| {
            let (mut hasher, mut rows, mut bytes) = (blake3::Hasher::new(), 0, 0);
            for name in Table::ALL.map(Table::name).into_iter().chain([APPLIED]) {
                let mut options = ReadOptions::default();
                options.fill_cache(false);
                options.set_readahead_size(DIGEST_READAHEAD_BYTES);
                let mut table = snapshot.raw_iterator_cf_opt(family(&generation.db, name), options);
                table.seek_to_first();
                hasher.update(&(name.len() as u64).to_be_bytes()).update(name.as_bytes());
                while let Some((key, value)) = table.item() {
                    for part in [key, value] {
                        hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
                        bytes += part.len() as u64;
                    }
                    rows += 1;
                    table.next();
                }
                table.status().map_err(failed(format!("cannot read all of {name}")))?;
            }
            Ok(StateDigest { blake3: hasher.finalize().to_string(), rows, bytes })
        })
    }
}

impl Read for StateView {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.0.with_dependent(|generation, snapshot| {
            snapshot.get_cf(family(&generation.db, table.name()), key).map_err(failed(format!("cannot read from {}", table.name())))
        })
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        if from >= to {
            return Ok(Vec::new());
        }
        self.0.with_dependent(|generation, snapshot| {
            scan(snapshot.raw_iterator_cf_opt(family(&generation.db, table.name()), bounded(from, to)), direction, limit)
        })
    }
}

fn bounded(from: &[u8], to: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_range(from.to_vec()..to.to_vec());
    options
}

fn scan(mut rows: DBRawIterator<'_>, direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
    let mut scanned = Vec::new();
    if limit == 0 {
        return Ok(scanned);
    }
    match direction {
        Direction::Ascending => rows.seek_to_first(),
        Direction::Descending => rows.seek_to_last(),
    }
    while let Some((key, value)) = rows.item() {
        scanned.push((key.to_vec(), value.to_vec()));
        if scanned.len() == limit {
            break;
        }
        match direction {
            Direction::Ascending => rows.next(),
            Direction::Descending => rows.prev(),
        }
    }
    // The end of an iterator and a damaged block look alike until one asks.
    rows.status().map_err(failed("cannot scan the state"))?;
    Ok(scanned)
}

/// One database of the state. Fields are dropped in this order: the database is closed before its files go.
struct Generation {
    db: DB,
    flushed: Mutex<Option<Bytes>>,
    files: GenerationFiles,
}

impl Generation {
    fn open(dir: &Path, number: u64, settings: &Settings) -> Result<Arc<Self>, StorageError> {
        let dir = dir.join(generation_name(number));
        // Later ones come from a snapshot and are never empty.
        let may_create = number == 1;
        let names = Table::ALL.map(Table::name).into_iter().chain([APPLIED]);
        let db = rocks::open(&dir, settings.database(), may_create, names.map(|name| (name, settings.table())).collect())?;
        let generation = Self { db, flushed: Mutex::new(None), files: GenerationFiles { dir, number, superseded: AtomicBool::new(false) } };
        // Without a WAL, what is there at opening was read from flushed files.
        let applied = generation.applied()?;
        *generation.flushed_applied() = applied;
        Ok(Arc::new(generation))
    }

    fn applied(&self) -> Result<Option<Bytes>, StorageError> {
        let marker = self.db.get_cf(family(&self.db, APPLIED), APPLIED_KEY).map_err(failed("cannot read the applied marker"))?;
        Ok(marker.map(Bytes::from))
    }

    fn flush(&self) -> Result<(), StorageError> {
        // Read first: the flush takes in at least this commit, perhaps later ones.
        let applied = self.applied()?;
        let families: Vec<_> = Table::ALL.map(Table::name).into_iter().chain([APPLIED]).map(|name| family(&self.db, name)).collect();
        let mut wait = FlushOptions::default();
        wait.set_wait(true);
        self.db.flush_cfs_opt(&families, &wait).map_err(failed("cannot flush the state"))?;
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

/// How the databases of all generations are opened; they share one cache.
struct Settings {
    options: StateOptions,
    block_cache: Cache,
}

impl Settings {
    fn database(&self) -> Options {
        let mut options = rocks::base_options();
        // Without a WAL nothing else keeps the tables together.
        options.set_atomic_flush(true);
        options.set_db_write_buffer_size(self.options.write_buffer_bytes);
        options.set_bytes_per_sync(1 << 20);
        options
    }

    fn table(&self) -> Options {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&self.block_cache);
        // Over whole keys: most point reads are for one record, or for one that is not there.
        blocks.set_bloom_filter(10.0, false);
        blocks.set_optimize_filters_for_memory(true);
        // In the cache, so that its size bounds them too.
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_cache_index_and_filter_blocks_with_high_priority(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        options.set_block_based_table_factory(&blocks);
        // One table may use what all share; the limit over all flushes first.
        options.set_write_buffer_size(self.options.write_buffer_bytes);
        // Each table takes memory in blocks of this size; an eighth of the limit, the default, lets seven tables reach it empty.
        options.set_arena_block_size(self.options.write_buffer_bytes / 64);
        options.set_level_compaction_dynamic_level_bytes(true);
        // The two youngest levels are rewritten soon.
        use DBCompressionType::{Lz4, None};
        options.set_compression_per_level(&[None, None, Lz4, Lz4, Lz4, Lz4, Lz4]);
        options
    }
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
