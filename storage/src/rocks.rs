//! RocksDB, as the engine of both stores.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use quorate_domain::StorageError;
use quorate_domain::tx::Direction;
use rocksdb::{
    BlockBasedOptions, BottommostLevelCompaction, Cache, ColumnFamily, ColumnFamilyDescriptor, CompactOptions, DB, DBCompressionType,
    DBRawIterator, DBRecoveryMode, FlushOptions, LogLevel, Options, ReadOptions, WriteBatch, WriteOptions,
};

use crate::durable::{self, at};
use crate::engine::{Batch, Database, Done, Engine, Fill, Reads, Row};
use crate::state::StateOptions;
use crate::wal;

/// The engine of one node.
#[derive(Default)]
pub struct Rocks {
    /// Shared by all generations of the state.
    block_cache: OnceLock<Cache>,
}

impl Engine for Rocks {
    fn open_log(&self, dir: &Path, [entries, meta]: [&'static str; 2]) -> Result<Arc<dyn Database>, StorageError> {
        wal::check(dir)?;
        let families = vec![(entries, log_entries()), (meta, Options::default())];
        Ok(Arc::new(RocksDb::open(dir, log_database(), true, families)?))
    }

    fn open_state(
        &self,
        dir: &Path,
        families: &[&'static str],
        options: StateOptions,
        may_create: bool,
    ) -> Result<Arc<dyn Database>, StorageError> {
        let cache = self.block_cache.get_or_init(|| Cache::new_lru_cache(options.block_cache_bytes));
        let families = families.iter().map(|name| (*name, state_table(&options, cache))).collect();
        Ok(Arc::new(RocksDb::open(dir, state_database(&options), may_create, families)?))
    }

    fn read_checkpoint(&self, dir: &Path, family_name: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let value = {
            let db =
                DB::open_cf_for_read_only(&Options::default(), dir, [family_name], false).map_err(failed("cannot open a checkpoint"))?;
            db.get_cf(family(&db, family_name), key).map_err(failed("cannot read a checkpoint"))?
        };
        // RocksDB's diary of this opening is no part of the state.
        for name in durable::names(dir)?.iter().filter(|name| name.starts_with("LOG")) {
            let path = dir.join(name);
            fs::remove_file(&path).map_err(at("remove", &path))?;
        }
        Ok(value)
    }
}

/// How long an erasure waits for those who still read what it shall erase.
const ERASE_WAITS: Duration = Duration::from_secs(30);
/// The sequence number of the oldest snapshot that is held, 0 for none.
const OLDEST_SNAPSHOT: &str = "rocksdb.oldest-snapshot-sequence";

struct RocksDb {
    db: DB,
    families: Vec<&'static str>,
}

impl RocksDb {
    /// `may_create` lets it begin anew if it was never opened before.
    fn open(dir: &Path, mut options: Options, may_create: bool, families: Vec<(&'static str, Options)>) -> Result<Self, StorageError> {
        let is_created = was_created(dir);
        // RocksDB would begin anew also beside the files of a database that lost its head, and the loss would be silent.
        options.create_if_missing(may_create && !is_created);
        let names = families.iter().map(|(name, _)| *name).collect();
        let families = families.into_iter().map(|(name, options)| ColumnFamilyDescriptor::new(name, options));
        let context = || format!("cannot open the database in {}", dir.display());
        let db = DB::open_cf_descriptors(&options, dir, families).map_err(failed(context()))?;
        if !is_created {
            durable::replace_file(&dir.join(CREATED), b"")?;
        }
        Ok(Self { db, families: names })
    }

    fn wait_until(&self, until: Instant, what: &str, mut is_so: impl FnMut() -> Result<bool, StorageError>) -> Result<(), StorageError> {
        while !is_so()? {
            if Instant::now() > until {
                return Err(StorageError::new("what was deleted is not erased yet", format!("{what} keeps it")));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn batch(&self, fill: &mut Fill<'_>) -> WriteBatch {
        let mut batch = RocksBatch { db: &self.db, batch: WriteBatch::default() };
        fill(&mut batch);
        batch.batch
    }
}

struct RocksBatch<'a> {
    db: &'a DB,
    batch: WriteBatch,
}

impl Batch for RocksBatch<'_> {
    fn put(&mut self, family_name: &str, key: &[u8], value: &[u8]) {
        self.batch.put_cf(family(self.db, family_name), key, value);
    }

    fn delete(&mut self, family_name: &str, key: &[u8]) {
        self.batch.delete_cf(family(self.db, family_name), key);
    }

    fn delete_range(&mut self, family_name: &str, from: &[u8], to: &[u8]) {
        self.batch.delete_range_cf(family(self.db, family_name), from, to);
    }
}

impl Reads for RocksDb {
    fn get(&self, family_name: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.db.get_cf(family(&self.db, family_name), key).map_err(failed(format!("cannot read from {family_name}")))
    }

    fn scan(&self, family_name: &str, from: &[u8], to: &[u8], direction: Direction, row: &mut Row<'_>) -> Result<(), StorageError> {
        let rows = self.db.raw_iterator_cf_opt(family(&self.db, family_name), bounded(from, to));
        scan(rows, family_name, direction, row)
    }

    fn scan_all(&self, family_name: &str, row: &mut Row<'_>) -> Result<(), StorageError> {
        let rows = self.db.raw_iterator_cf_opt(family(&self.db, family_name), past_the_cache());
        scan(rows, family_name, Direction::Ascending, row)
    }
}

impl Database for RocksDb {
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), StorageError> {
        self.db.write_without_wal(self.batch(fill)).map_err(failed("cannot commit to the state"))
    }

    fn write_synced(&self, fill: &mut Fill<'_>, done: Done) {
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        done(self.db.write_opt(self.batch(fill), &synced).map_err(failed("cannot write to the log")));
    }

    fn blocks(&self) -> bool {
        true
    }

    fn flush(&self) -> Result<(), StorageError> {
        let families: Vec<_> = self.families.iter().map(|name| family(&self.db, name)).collect();
        let mut wait = FlushOptions::default();
        wait.set_wait(true);
        self.db.flush_cfs_opt(&families, &wait).map_err(failed("cannot flush the state"))
    }

    fn view(self: Arc<Self>) -> Box<dyn Reads> {
        Box::new(PinnedSnapshot::new(self, |db| db.db.snapshot()))
    }

    fn checkpoint(&self, dir: &Path) -> Result<(), StorageError> {
        // RocksDB flushes first, since the WAL has nothing, and makes hard links.
        let checkpoint = rocksdb::checkpoint::Checkpoint::new(&self.db).map_err(failed("cannot begin a checkpoint"))?;
        checkpoint.create_checkpoint(dir).map_err(failed(format!("cannot make a checkpoint in {}", dir.display())))
    }

    fn erase(&self, family_name: &str, from: &[u8], to: &[u8]) -> Result<(), StorageError> {
        let until = Instant::now() + ERASE_WAITS;
        // Compaction keeps every row that a snapshot can still see.
        let deleted_at = self.db.latest_sequence_number();
        self.wait_until(until, "a reader of an older state", || {
            let oldest = self.db.property_int_value(OLDEST_SNAPSHOT).map_err(failed("cannot ask for snapshots"))?.unwrap_or(0);
            Ok(oldest == 0 || oldest >= deleted_at)
        })?;
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        // Otherwise files of the last level stay as they are where nothing above them is newer.
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.db.compact_range_cf_opt(family(&self.db, family_name), Some(from), Some(to), &options);
        self.flush()?;
        // What was replaced goes when the last iterator over it ends.
        self.wait_until(until, "an iterator over replaced files", || {
            let live: BTreeSet<String> =
                self.db.live_files().map_err(failed("cannot list the files"))?.into_iter().map(|file| file.name).collect();
            let names = durable::names(self.db.path())?;
            Ok(names.iter().filter(|name| name.ends_with(".sst")).all(|name| live.contains(&format!("/{name}"))))
        })
    }

    fn reclaim(&self, family_name: &str, to: &[u8]) -> Result<(), StorageError> {
        // Whole files only; compaction would do it as well, but much later.
        let dropped = self.db.delete_file_in_range_cf(family(&self.db, family_name), &[][..], to);
        dropped.map_err(failed(format!("cannot drop files of {family_name}")))
    }
}

self_cell::self_cell!(
    /// A RocksDB snapshot together with the database it borrows from.
    struct PinnedSnapshot {
        owner: Arc<RocksDb>,
        #[covariant]
        dependent: DbSnapshot,
    }
);

type DbSnapshot<'a> = rocksdb::Snapshot<'a>;

impl Reads for PinnedSnapshot {
    fn get(&self, family_name: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.with_dependent(|owner, snapshot| {
            snapshot.get_cf(family(&owner.db, family_name), key).map_err(failed(format!("cannot read from {family_name}")))
        })
    }

    fn scan(&self, family_name: &str, from: &[u8], to: &[u8], direction: Direction, row: &mut Row<'_>) -> Result<(), StorageError> {
        self.with_dependent(|owner, snapshot| {
            let rows = snapshot.raw_iterator_cf_opt(family(&owner.db, family_name), bounded(from, to));
            scan(rows, family_name, direction, row)
        })
    }

    fn scan_all(&self, family_name: &str, row: &mut Row<'_>) -> Result<(), StorageError> {
        self.with_dependent(|owner, snapshot| {
            let rows = snapshot.raw_iterator_cf_opt(family(&owner.db, family_name), past_the_cache());
            scan(rows, family_name, Direction::Ascending, row)
        })
    }
}

const READAHEAD_BYTES: usize = 1 << 20;

fn past_the_cache() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options.set_readahead_size(READAHEAD_BYTES);
    options
}

fn bounded(from: &[u8], to: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_range(from.to_vec()..to.to_vec());
    options
}

fn scan(mut rows: DBRawIterator<'_>, family_name: &str, direction: Direction, row: &mut Row<'_>) -> Result<(), StorageError> {
    match direction {
        Direction::Ascending => rows.seek_to_first(),
        Direction::Descending => rows.seek_to_last(),
    }
    while let Some((key, value)) = rows.item() {
        if !row(key, value)? {
            break;
        }
        match direction {
            Direction::Ascending => rows.next(),
            Direction::Descending => rows.prev(),
        }
    }
    // The end of an iterator and a damaged block look alike until one asks.
    rows.status().map_err(failed(format!("cannot scan {family_name}")))
}

/// Stands beside the files of a database once it was opened for the first time. Before, nothing can have been acknowledged.
const CREATED: &str = "quorate-created";

pub fn was_created(dir: &Path) -> bool {
    dir.join(CREATED).exists()
}

/// The handle of a column family that was named when the database was opened.
fn family<'a>(db: &'a DB, name: &str) -> &'a ColumnFamily {
    // Opening fails unless every family it is given exists afterwards, and callers name only those.
    db.cf_handle(name).expect("the column family was opened with the database")
}

/// Says what was being done when RocksDB refused.
fn failed(context: impl Into<String>) -> impl FnOnce(rocksdb::Error) -> StorageError {
    move |error| StorageError::new(context, error)
}

/// Options every database starts from.
fn base_options() -> Options {
    let mut options = Options::default();
    options.create_missing_column_families(true);
    options.set_paranoid_checks(true);
    options.set_max_background_jobs(2);
    // RocksDB keeps a table's index and filter in memory for as long as its file is open.
    options.set_max_open_files(512);
    // RocksDB's own diary, a few small files: the node's log has what operators read.
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(4);
    options.set_max_log_file_size(4 << 20);
    options
}

fn log_database() -> Options {
    let mut options = base_options();
    // A sync of a file that keeps its size need not write the size as well.
    options.set_recycle_log_file_num(4);
    // The only mode that allows recycling. What it lets through, `wal::check` has refused before.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    // A whole WAL file that is missing is an error as well.
    options.set_track_and_verify_wals_in_manifest(true);
    // `meta` gets a few rows a second: flushed on its own, it would hold back WAL files that could be recycled.
    options.set_atomic_flush(true);
    options.set_max_total_wal_size(192 << 20);
    options
}

fn log_entries() -> Options {
    let mut blocks = BlockBasedOptions::default();
    // Followers that are far behind read in order, once: the cache only has to hold what one of them is reading.
    blocks.set_block_cache(&Cache::new_lru_cache(8 << 20));
    blocks.set_block_size(32 << 10);
    let mut options = Options::default();
    options.set_block_based_table_factory(&blocks);
    options.set_write_buffer_size(32 << 20);
    options.set_max_write_buffer_number(4);
    // Entries are small, written once and soon purged; the cycles are better spent on consensus.
    options.set_compression_type(DBCompressionType::None);
    options
}

fn state_database(of: &StateOptions) -> Options {
    let mut options = base_options();
    // Without a WAL nothing else keeps the tables together.
    options.set_atomic_flush(true);
    options.set_db_write_buffer_size(of.write_buffer_bytes);
    options.set_bytes_per_sync(1 << 20);
    options
}

fn state_table(of: &StateOptions, block_cache: &Cache) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(block_cache);
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
    options.set_write_buffer_size(of.write_buffer_bytes);
    // Each table takes memory in blocks of this size; an eighth of the limit, the default, lets seven tables reach it empty.
    options.set_arena_block_size(of.write_buffer_bytes / 64);
    options.set_level_compaction_dynamic_level_bytes(true);
    // The two youngest levels are rewritten soon.
    use DBCompressionType::{Lz4, None};
    options.set_compression_per_level(&[None, None, Lz4, Lz4, Lz4, Lz4, Lz4]);
    options
}
