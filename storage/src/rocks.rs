//! What the two databases of a node share.

use std::path::Path;

use quorate_domain::StorageError;
use rocksdb::{ColumnFamily, ColumnFamilyDescriptor, DB, LogLevel, Options};

use crate::durable;

/// Options every database starts from.
pub fn base_options() -> Options {
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

/// Stands beside the files of a database once it was opened for the first time. Before, nothing can have been acknowledged.
const CREATED: &str = "quorate-created";

/// Opens the database in `dir`; `may_create` lets it begin anew there if it was never opened before.
pub fn open(dir: &Path, mut options: Options, may_create: bool, families: Vec<(&str, Options)>) -> Result<DB, StorageError> {
    let is_created = was_created(dir);
    // RocksDB would begin anew also beside the files of a database that lost its head, and the loss would be silent.
    options.create_if_missing(may_create && !is_created);
    let families = families.into_iter().map(|(name, options)| ColumnFamilyDescriptor::new(name, options));
    let db = DB::open_cf_descriptors(&options, dir, families).map_err(failed(format!("cannot open the database in {}", dir.display())))?;
    if !is_created {
        durable::replace_file(&dir.join(CREATED), b"")?;
    }
    Ok(db)
}

pub fn was_created(dir: &Path) -> bool {
    dir.join(CREATED).exists()
}

/// The handle of a column family that was named when the database was opened.
pub fn family<'a>(db: &'a DB, name: &str) -> &'a ColumnFamily {
    // Opening fails unless every family it is given exists afterwards, and callers name only those.
    db.cf_handle(name).expect("the column family was opened with the database")
}

/// Says what was being done when RocksDB refused.
pub fn failed(context: impl Into<String>) -> impl FnOnce(rocksdb::Error) -> StorageError {
    move |error| StorageError::new(context, error)
}
