//! What the log and the state need of the database under them.
//!
//! RocksDB (`rocks`) is the one for disks. A second one has to keep the same promises, which are fewer than RocksDB's and stand
//! here: a simulation brings one in memory that loses what was not synced when its node crashes.

use std::path::Path;
use std::sync::Arc;

use quorate_domain::StorageError;
use quorate_domain::tx::Direction;

use crate::state::StateOptions;

/// Called once: when a write is durable, or has failed.
pub type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send>;

/// Opens databases. Families are named by their users, and a directory always gets the same ones.
pub trait Engine: Send + Sync + 'static {
    /// The database of a log. Refuses damage that a crash can't explain.
    fn open_log(&self, dir: &Path, families: [&'static str; 2]) -> Result<Arc<dyn Database>, StorageError>;

    /// The database of a state; `may_create` lets it begin anew in `dir` if it was never opened before.
    fn open_state(
        &self,
        dir: &Path,
        families: &[&'static str],
        options: StateOptions,
        may_create: bool,
    ) -> Result<Arc<dyn Database>, StorageError>;

    /// One value of a checkpoint, whose files stay as they are.
    fn read_checkpoint(&self, dir: &Path, family: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;
}

/// Reads of one moment, or of the newest state.
pub trait Reads: Send + Sync {
    fn get(&self, family: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// Shows the rows with `from <= key < to` in order, until `row` answers false.
    fn scan(&self, family: &str, from: &[u8], to: &[u8], direction: Direction, row: &mut Row<'_>) -> Result<(), StorageError>;

    /// Shows every row in order, until `row` answers false, and leaves the caches as they are.
    fn scan_all(&self, family: &str, row: &mut Row<'_>) -> Result<(), StorageError>;
}

pub type Row<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, StorageError> + 'a;

/// Writes that become visible, and durable, together or not at all.
pub trait Batch {
    fn put(&mut self, family: &str, key: &[u8], value: &[u8]);
    fn delete(&mut self, family: &str, key: &[u8]);
    fn delete_range(&mut self, family: &str, from: &[u8], to: &[u8]);
}

/// What puts the writes into a batch.
pub type Fill<'a> = dyn FnMut(&mut dyn Batch) + 'a;

/// A database. A state uses [`Database::write`] and a log [`Database::write_synced`], never both.
pub trait Database: Reads {
    /// Visible at once, durable with the next flush or earlier; never without the writes before it.
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), StorageError>;

    /// Visible and durable once `done` is called. Whether it is after a failure, nobody can say.
    fn write_synced(&self, fill: &mut Fill<'_>, done: Done);

    /// Whether `write_synced` calls `done` before it returns, which takes as long as the disk does, and its callers are better
    /// off with a thread for it. If not, it returns at once and calls `done` later, from elsewhere.
    fn blocks(&self) -> bool;

    /// Makes all earlier writes durable.
    fn flush(&self) -> Result<(), StorageError>;

    /// The rows as they are now, for as long as the view lives.
    fn view(self: Arc<Self>) -> Box<dyn Reads>;

    /// Puts everything written so far into the new directory `dir`, as files that can be opened as a state.
    fn checkpoint(&self, dir: &Path) -> Result<(), StorageError>;

    /// Rewrites the files that may hold rows of `from..to`, so that no file has a deleted or overwritten one of them when it
    /// returns. Waits a while for readers of older states, and fails when they stay: their rows can't go. For a blocking thread.
    fn erase(&self, family: &str, from: &[u8], to: &[u8]) -> Result<(), StorageError>;

    /// Gives back the space of deleted rows below `to`, where that is cheap.
    fn reclaim(&self, family: &str, to: &[u8]) -> Result<(), StorageError>;
}
