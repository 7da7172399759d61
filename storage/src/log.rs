//! The Raft log: entries, vote, committed and purged, in a database of their own.
//!
//! One group is written at a time. Callers change what reads see at once, queue the write and go on; the whole queue is put into
//! one batch, synced once, and then called back in the order of the calls. While one group syncs the next one gathers, so groups
//! grow with the load and nobody waits for a timer. A database that keeps its writer waiting gets a thread for it; with any other
//! the queue is taken by whoever added to it, or by the end of the group before. Invariants:
//! * What a call wrote is readable when the call returns, and durable when its `done` is called.
//! * Truncations, appends and votes reach the disk in the order of the calls.
//! * Indexes follow each other without a hole, from the first after the last purged one.
//! * Each value carries a checksum over its key and its bytes: a damaged or misplaced value is an error, never an entry.
//! * What was purged is gone from every file after an [erasure](LogStore::erase_purged), which opens the database anew: RocksDB
//!   keeps old files of its own log for reuse, with what was in them.
//! * After a failed write nothing is written or read again: the node can't know what is on its disk, and stops.

mod sealed;
mod view;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use bytes::Bytes;
use quorate_domain::tx::Direction;
use quorate_domain::{StorageError, chain};

use self::sealed::{index_of, seal, unseal};
use self::view::{Change, Purged, Queued, View};
use crate::durable;
use crate::engine::{Batch, Database, Engine};
use crate::histogram::{COUNTS, DURATIONS_US, Histogram};
use crate::probe::percentile;
use crate::rocks::Rocks;

pub use crate::engine::Done;

const ENTRIES: &str = "entries";
const META: &str = "meta";
const VOTE: &[u8] = b"vote";
const COMMITTED: &[u8] = b"committed";
/// Index of the last purged entry (8 bytes, big-endian), then its log id as the caller gave it.
const PURGED: &[u8] = b"purged";

/// How much memory a log may use.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Bytes of recent entries kept for reads, at least what is not yet written. Default 64 MiB. Too low, and every follower
    /// that is a little behind makes the leader read its disk.
    pub cache_bytes_max: usize,
    /// Bytes that may wait for the writer; a call that comes when they do blocks. Default 64 MiB. Too low, and groups stay
    /// small; too high, and a slow disk shows late.
    pub queue_bytes_max: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { cache_bytes_max: 64 << 20, queue_bytes_max: 64 << 20 }
    }
}

/// What the log did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogStats {
    pub syncs: u64,
    pub entries: u64,
    /// Calls that shared one sync, on average.
    pub calls_per_sync_mean: f64,
    /// Of the last 4,096 groups: batch, write and sync.
    pub sync_p50_us: u64,
    pub sync_p99_us: u64,
    /// Bytes waiting for the writer at this moment.
    pub queued_bytes: usize,
}

/// What the writer counts of its groups.
pub struct LogMeter {
    /// Batch, write and sync.
    pub sync_us: Histogram,
    pub group_entries: Histogram,
}

/// The log of one node.
pub struct LogStore {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl LogStore {
    /// Opens the log in `dir`, or creates it there; refuses a damaged one.
    pub fn open(dir: &Path, options: LogOptions) -> Result<Arc<Self>, StorageError> {
        Self::open_on(Arc::new(Rocks::default()), dir, options)
    }

    /// The same on another engine.
    pub fn open_on(engine: Arc<dyn Engine>, dir: &Path, options: LogOptions) -> Result<Arc<Self>, StorageError> {
        durable::create_dir(dir)?;
        let db = engine.open_log(dir, [ENTRIES, META])?;
        let view = View::load(&*db)?;
        let shared = Arc::new(Shared {
            has_thread: db.blocks(),
            engine,
            dir: dir.to_owned(),
            db: RwLock::new(Some(db)),
            options,
            view: Mutex::new(view),
            work: Condvar::new(),
            room: Condvar::new(),
            measured: Mutex::default(),
            meter: LogMeter { sync_us: Histogram::new(DURATIONS_US), group_entries: Histogram::new(COUNTS) },
            #[cfg(test)]
            faults: tests::Faults::default(),
        });
        let writer = shared.has_thread.then(|| {
            let of_writer = Arc::clone(&shared);
            thread::Builder::new().name("quorate-log".into()).spawn(move || write_until_closed(&of_writer))
        });
        let writer = writer.transpose().map_err(|error| StorageError::new("cannot start the log writer", error))?;
        Ok(Arc::new(Self { shared, writer: Mutex::new(writer) }))
    }

    /// Adds entries behind the last one. An index that would leave a hole or overwrite an entry is a fault.
    pub fn append(&self, entries: Vec<(u64, Bytes)>, done: Done) {
        let bytes = entries.iter().map(|(_, entry)| entry.len()).sum();
        self.enqueue(bytes, done, |view| {
            view.append(&entries)?;
            Ok(Change::Append(entries))
        });
    }

    /// Deletes the entries above `index`, or all of them.
    pub fn truncate_after(&self, index: Option<u64>, done: Done) {
        self.enqueue(0, done, |view| {
            let from = index.map_or(0, |index| index.saturating_add(1));
            view.truncate_from(from);
            Ok(Change::TruncateFrom(from))
        });
    }

    /// Deletes the entries up to `index`, and keeps `last_purged` in their place. The log may end below `index`: then it is
    /// empty, and goes on behind it.
    pub fn purge_through(&self, index: u64, last_purged: Bytes, done: Done) {
        self.enqueue(0, done, |view| {
            Ok(if view.purge_through(index, &last_purged) { Change::Purge(Purged { index, log_id: last_purged }) } else { Change::Nothing })
        });
    }

    pub fn save_vote(&self, vote: Bytes, done: Done) {
        self.enqueue(0, done, |view| {
            view.vote = Some(vote.clone());
            Ok(Change::Vote(vote))
        });
    }

    /// Kept in memory and written along with the next group: a crash may forget the newest, and Raft finds it again.
    pub fn save_committed(&self, committed: Bytes) -> Result<(), StorageError> {
        let mut view = self.shared.lock();
        view.check_open()?;
        view.committed = Some(committed);
        view.committed_is_unwritten = true;
        Ok(())
    }

    pub fn read_vote(&self) -> Result<Option<Bytes>, StorageError> {
        self.look(|view| view.vote.clone())
    }

    pub fn read_committed(&self) -> Result<Option<Bytes>, StorageError> {
        self.look(|view| view.committed.clone())
    }

    /// What the last `purge_through` left in place of the entries.
    pub fn read_purged(&self) -> Result<Option<Bytes>, StorageError> {
        self.look(|view| view.purged.as_ref().map(|purged| purged.log_id.clone()))
    }

    pub fn first_index(&self) -> Result<Option<u64>, StorageError> {
        self.look(|view| view.bounds.map(|(first, _)| first))
    }

    pub fn last_index(&self) -> Result<Option<u64>, StorageError> {
        self.look(|view| view.bounds.map(|(_, last)| last))
    }

    /// The entries of `range` that are there, in order and without a hole: at least one if there is one, and no more than fit
    /// into `bytes_max`.
    pub fn read(&self, range: Range<u64>, bytes_max: usize) -> Result<Vec<(u64, Bytes)>, StorageError> {
        loop {
            let (on_disk, cached, deletions) = {
                let view = self.shared.lock();
                view.check_readable()?;
                let (on_disk, in_cache) = view.split(range.clone());
                let cached = limited(view.cache.range(in_cache).map(|(&index, entry)| Ok((index, entry.clone()))), bytes_max)?;
                (on_disk, cached, view.deletions)
            };
            if on_disk.is_empty() {
                return Ok(cached);
            }
            #[cfg(test)]
            self.shared.faults.before_disk_read();
            let stored = self.shared.stored(on_disk.clone(), bytes_max);
            if self.shared.lock().deletions != deletions {
                // What was read may mix entries from before and after; deletions are rare, so the second try gets through.
                continue;
            }
            let entries = stored?;
            let stored_to_the_end = entries.last().is_some_and(|&(index, _)| index + 1 == on_disk.end);
            let cached = if stored_to_the_end { cached } else { Vec::new() };
            return limited(entries.into_iter().chain(cached).map(Ok), bytes_max);
        }
    }

    /// Waits until everything queued before this call is durable.
    pub fn flush(&self) -> Result<(), StorageError> {
        let (sender, receiver) = mpsc::channel();
        self.enqueue(0, Box::new(move |result| drop(sender.send(result))), |_| Ok(Change::Nothing));
        receiver.recv().map_err(|error| StorageError::new("the log writer is gone", error))?
    }

    /// Rewrites the files, so that no byte of a purged or truncated entry is in any of them. Calls go on meanwhile, and wait for a
    /// moment at its end. For a blocking thread.
    pub fn erase_purged(&self) -> Result<(), StorageError> {
        self.flush()?;
        self.shared.with_db(|db| db.erase(ENTRIES, &[], &u64::MAX.to_be_bytes()))?;
        if !self.shared.has_thread {
            // An engine in memory has no files to be left behind.
            return Ok(());
        }
        let (sender, receiver) = mpsc::channel();
        self.enqueue(0, Box::new(move |result| drop(sender.send(result))), |_| Ok(Change::Reopen));
        receiver.recv().map_err(|error| StorageError::new("the log writer is gone", error))?
    }

    /// Writes what is queued, calls back, and ends the writer. Later calls fail.
    pub fn close(&self) {
        self.shared.lock().closing = true;
        self.shared.wake();
        self.shared.room.notify_all();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            if writer.thread().id() == thread::current().id() {
                // The last handle was dropped by a callback: the writer ends by itself after it.
                return;
            }
            if writer.join().is_err() {
                tracing::error!("the log writer panicked");
            }
        }
    }

    /// The number of the group that is on its way to the disk: one that stays the same for long is a disk that hangs.
    pub fn writing(&self) -> Option<u64> {
        let view = self.shared.lock();
        view.is_writing.then_some(view.groups)
    }

    pub fn meter(&self) -> &LogMeter {
        &self.shared.meter
    }

    pub fn stats(&self) -> LogStats {
        let queued_bytes = self.shared.lock().queued_bytes;
        self.shared.measured().stats(queued_bytes)
    }

    fn look<T>(&self, at: impl FnOnce(&View) -> T) -> Result<T, StorageError> {
        let view = self.shared.lock();
        view.check_readable()?;
        Ok(at(&view))
    }

    /// Makes `change` to what readers see and queues it, in one step: the queue has the order in which readers saw it.
    fn enqueue(&self, bytes: usize, done: Done, change: impl FnOnce(&mut View) -> Result<Change, StorageError>) {
        let mut view = self.shared.lock();
        // An empty queue takes anything, so that a group larger than the whole queue is not stuck.
        while view.queued_bytes > 0 && view.queued_bytes + bytes > self.shared.options.queue_bytes_max && view.check_open().is_ok() {
            view = self.shared.room.wait(view).unwrap_or_else(PoisonError::into_inner);
        }
        match view.check_open().and_then(|()| change(&mut view)) {
            Ok(change) => {
                view.queued_bytes += bytes;
                view.queue.push(Queued { change, done });
                drop(view);
                self.shared.wake();
            }
            Err(error) => {
                drop(view);
                done(Err(error));
            }
        }
    }
}

impl Drop for LogStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// What callers and the writer share.
struct Shared {
    engine: Arc<dyn Engine>,
    dir: PathBuf,
    /// None while it is being opened anew, and after that has failed.
    db: RwLock<Option<Arc<dyn Database>>>,
    has_thread: bool,
    options: LogOptions,
    view: Mutex<View>,
    /// Something is queued, or the log closes.
    work: Condvar,
    /// The queue was taken.
    room: Condvar,
    measured: Mutex<Measured>,
    meter: LogMeter,
    #[cfg(test)]
    faults: tests::Faults,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, View> {
        // A thread that panicked in here may have left half a change behind; `WriterGuard` has marked the log as stopped if it
        // was the writer, and callers only make changes that can't panic halfway.
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_db<T>(&self, run: impl FnOnce(&dyn Database) -> Result<T, StorageError>) -> Result<T, StorageError> {
        // Replaced whole by the writer, which is the only one that writes to it.
        match self.db.read().unwrap_or_else(PoisonError::into_inner).as_deref() {
            Some(db) => run(db),
            None => Err(StorageError::corrupt("the log could not be opened anew")),
        }
    }

    /// Closes the database and opens it again, which leaves no file behind that it does not need. Readers wait.
    fn reopen(&self) -> Result<(), StorageError> {
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        // Closed first: a directory is open once.
        *db = None;
        *db = Some(self.engine.open_log(&self.dir, [ENTRIES, META])?);
        Ok(())
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        // Numbers for display; nothing depends on them.
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a range which the caller knows to be written, so that an absent entry is a fault.
    fn stored(&self, range: Range<u64>, bytes_max: usize) -> Result<Vec<(u64, Bytes)>, StorageError> {
        let mut next = range.start;
        let (mut entries, mut bytes, mut is_full) = (Vec::new(), 0usize, false);
        let mut row = |key: &[u8], value: &[u8]| {
            let index = index_of(key)?;
            if index != next {
                return Err(StorageError::corrupt(format!("log entry {next} is missing: the next one stored is {index}")));
            }
            let entry = unseal(key, value)?;
            bytes = bytes.saturating_add(entry.len());
            is_full = bytes > bytes_max && !entries.is_empty();
            if !is_full {
                next += 1;
                entries.push((index, entry));
            }
            Ok(!is_full)
        };
        self.with_db(|db| db.scan(ENTRIES, &range.start.to_be_bytes(), &range.end.to_be_bytes(), Direction::Ascending, &mut row))?;
        // The rows ended before the range did, and not because of the limit.
        if next < range.end && !is_full {
            return Err(StorageError::corrupt(format!("log entries {next} to {} are missing", range.end - 1)));
        }
        Ok(entries)
    }

    /// There may be something to write.
    fn wake(self: &Arc<Self>) {
        match self.has_thread {
            true => self.work.notify_all(),
            false => self.write_next(),
        }
    }

    /// Writes what is queued, unless a group is on its way to the disk: its end comes here again.
    fn write_next(self: &Arc<Self>) {
        let group = self.lock().take_group();
        if let Some(group) = group {
            self.write(group);
        }
    }

    /// One group: one batch, one sync. Ends in [`Shared::written`], before this returns or later.
    fn write(self: &Arc<Self>, group: Group) {
        let Group { calls, committed } = group;
        let (changes, calls): (Vec<Change>, Vec<Done>) = calls.into_iter().map(|queued| (queued.change, queued.done)).unzip();
        let entries = changes.iter().map(|change| if let Change::Append(entries) = change { entries.as_slice() } else { &[] });
        let outcome = Written {
            entries: entries.clone().map(|entries| entries.len() as u64).sum(),
            bytes: entries.flatten().map(|(_, entry)| entry.len()).sum(),
            purged: changes.iter().rev().find_map(|change| if let Change::Purge(purged) = change { Some(purged.index) } else { None }),
            reopens: changes.iter().any(|change| matches!(change, Change::Reopen)),
            calls,
        };
        #[cfg(test)]
        if let Err(error) = self.faults.before_write() {
            return self.written(outcome, Err(error));
        }
        if committed.is_none() && changes.iter().all(|change| matches!(change, Change::Nothing | Change::Reopen)) {
            return self.written(outcome, Ok(()));
        }
        let (start, shared) = (Instant::now(), Arc::clone(self));
        let done = move |result: Result<(), StorageError>| {
            if result.is_ok() {
                let took_us = start.elapsed().as_micros() as u64;
                shared.measured().add(outcome.calls.len() as u64, outcome.entries, took_us);
                shared.meter.sync_us.add(took_us);
                shared.meter.group_entries.add(outcome.entries);
            }
            shared.written(outcome, result);
        };
        let mut done = Some(Box::new(done) as Done);
        let begun = self.with_db(|db| {
            if let Some(done) = done.take() {
                db.write_synced(&mut |batch| fill(batch, &changes, committed.as_ref()), done);
            }
            Ok(())
        });
        if let (Err(error), Some(done)) = (begun, done) {
            done(Err(error));
        }
    }

    /// A group is durable, or the log has come to its end.
    fn written(self: &Arc<Self>, group: Written, result: Result<(), StorageError>) {
        let result = result.and_then(|()| if group.reopens { self.reopen() } else { Ok(()) });
        let failure = {
            let mut view = self.lock();
            view.queued_bytes -= group.bytes;
            match &result {
                Ok(()) => view.evict(self.options.cache_bytes_max),
                Err(error) => view.stopped = Some(chain(error).into()),
            }
            view.check_readable().err()
        };
        self.room.notify_all();
        if let Some(error) = failure {
            tracing::error!(reason = chain(&error), "the log can't be written; this node must stop");
            self.fail(group.calls);
            return self.fail_queued();
        }
        for done in group.calls {
            done(Ok(()));
        }
        #[cfg(test)]
        if group.purged.is_some() {
            self.faults.before_reclaim();
        }
        if let Some(purged) = group.purged
            && let Err(error) = self.with_db(|db| db.reclaim(ENTRIES, &purged.to_be_bytes()))
        {
            // Nothing is lost but space: the entries themselves are deleted.
            tracing::warn!(%error, "cannot drop the files of purged log entries");
        }
        // Not before: a disk that hangs here hangs the next group too.
        self.lock().is_writing = false;
        if !self.has_thread {
            self.write_next();
        }
    }

    /// Tells callers why their writes were not made.
    fn fail(&self, calls: Vec<Done>) {
        for done in calls {
            let stopped = self.lock().check_readable();
            done(stopped.and(Err(StorageError::corrupt("the log is closed"))));
        }
    }

    /// Leaves nobody waiting once nothing is written any more.
    fn fail_queued(&self) {
        let left = {
            let mut view = self.lock();
            view.is_writing = false;
            view.queued_bytes = 0;
            std::mem::take(&mut view.queue)
        };
        self.room.notify_all();
        self.fail(left.into_iter().map(|queued| queued.done).collect());
    }
}

/// What is written together.
struct Group {
    calls: Vec<Queued>,
    committed: Option<Bytes>,
}

/// A group on its way to the disk.
struct Written {
    calls: Vec<Done>,
    entries: u64,
    bytes: usize,
    purged: Option<u64>,
    reopens: bool,
}

impl View {
    /// Everything that waits; nothing while another group is being written, or when nothing is to be written any more.
    fn take_group(&mut self) -> Option<Group> {
        let committed = if self.committed_is_unwritten { self.committed.clone() } else { None };
        // The committed marker alone is worth a write only when no other comes.
        let is_due = !self.queue.is_empty() || self.closing && committed.is_some();
        if self.is_writing || self.stopped.is_some() || !is_due {
            return None;
        }
        self.is_writing = true;
        self.groups += 1;
        // To open it anew is a group of its own, without the marker: a write holds the database until its end, and there would
        // wait for itself.
        let reopen = self.queue.iter().position(|queued| matches!(queued.change, Change::Reopen));
        if reopen == Some(0) {
            return Some(Group { calls: self.queue.drain(..1).collect(), committed: None });
        }
        self.committed_is_unwritten = false;
        let end = reopen.unwrap_or(self.queue.len());
        Some(Group { calls: self.queue.drain(..end).collect(), committed })
    }
}

fn fill(batch: &mut dyn Batch, changes: &[Change], committed: Option<&Bytes>) {
    let mut sealed = Vec::new();
    for change in changes {
        match change {
            Change::Append(appended) => {
                for (index, entry) in appended {
                    let key = index.to_be_bytes();
                    seal(&key, entry, &mut sealed);
                    batch.put(ENTRIES, &key, &sealed);
                }
            }
            Change::TruncateFrom(from) => batch.delete_range(ENTRIES, &from.to_be_bytes(), &u64::MAX.to_be_bytes()),
            Change::Purge(purged) => {
                batch.delete_range(ENTRIES, &0u64.to_be_bytes(), &(purged.index + 1).to_be_bytes());
                seal(PURGED, &[&purged.index.to_be_bytes(), &purged.log_id[..]].concat(), &mut sealed);
                batch.put(META, PURGED, &sealed);
            }
            Change::Vote(vote) => {
                seal(VOTE, vote, &mut sealed);
                batch.put(META, VOTE, &sealed);
            }
            Change::Nothing | Change::Reopen => {}
        }
    }
    if let Some(committed) = committed {
        seal(COMMITTED, committed, &mut sealed);
        batch.put(META, COMMITTED, &sealed);
    }
}

/// The writer thread.
fn write_until_closed(shared: &Arc<Shared>) {
    let guard = WriterGuard(shared);
    loop {
        let group = {
            let mut view = shared.lock();
            while view.queue.is_empty() && !view.closing && view.stopped.is_none() {
                view = shared.work.wait(view).unwrap_or_else(PoisonError::into_inner);
            }
            view.take_group()
        };
        let Some(group) = group else { break };
        shared.write(group);
    }
    drop(guard);
}

/// Leaves nobody waiting when the writer ends, also by a panic in a callback.
struct WriterGuard<'a>(&'a Shared);

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().stopped.get_or_insert_with(|| "the log writer panicked".into());
        }
        self.0.fail_queued();
    }
}

/// Counts and latencies of the writer.
#[derive(Default)]
struct Measured {
    syncs: u64,
    calls: u64,
    entries: u64,
    /// A ring of the newest latencies.
    latencies_us: Vec<u64>,
}

impl Measured {
    const KEPT: usize = 4096;

    fn add(&mut self, calls: u64, entries: u64, latency_us: u64) {
        // The remainder is below KEPT.
        let slot = (self.syncs % Self::KEPT as u64) as usize;
        match self.latencies_us.get_mut(slot) {
            Some(oldest) => *oldest = latency_us,
            None => self.latencies_us.push(latency_us),
        }
        self.syncs += 1;
        self.calls += calls;
        self.entries += entries;
    }

    fn stats(&self, queued_bytes: usize) -> LogStats {
        let mut sorted = self.latencies_us.clone();
        sorted.sort_unstable();
        LogStats {
            syncs: self.syncs,
            entries: self.entries,
            calls_per_sync_mean: self.calls as f64 / self.syncs.max(1) as f64,
            sync_p50_us: percentile(&sorted, 50),
            sync_p99_us: percentile(&sorted, 99),
            queued_bytes,
        }
    }
}

/// Takes entries while they fit into `bytes_max`, and the first one whatever its size.
fn limited(entries: impl Iterator<Item = Result<(u64, Bytes), StorageError>>, bytes_max: usize) -> Result<Vec<(u64, Bytes)>, StorageError> {
    let mut taken = Vec::new();
    let mut bytes = 0usize;
    for entry in entries {
        let (index, entry) = entry?;
        bytes = bytes.saturating_add(entry.len());
        if bytes > bytes_max && !taken.is_empty() {
            break;
        }
        taken.push((index, entry));
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// What can happen at the worst moment.
    #[derive(Default)]
    pub struct Faults {
        disk_is_full: AtomicBool,
        /// Once, while a group is being written.
        during_write: Mutex<Option<Hook>>,
        /// Once, between looking at the view and reading the disk.
        before_disk_read: Mutex<Option<Hook>>,
        /// Once, before files of purged entries are dropped.
        before_reclaim: Mutex<Option<Hook>>,
    }

    type Hook = Box<dyn FnOnce() + Send>;

    fn fire(hook: &Mutex<Option<Hook>>) {
        let hook = hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
    }

    impl Faults {
        pub fn before_write(&self) -> Result<(), StorageError> {
            fire(&self.during_write);
            if self.disk_is_full.load(Ordering::SeqCst) {
                return Err(StorageError::new("cannot write to the log", "no space left on device"));
            }
            Ok(())
        }

        pub fn before_disk_read(&self) {
            fire(&self.before_disk_read);
        }

        pub fn before_reclaim(&self) {
            fire(&self.before_reclaim);
        }
    }

    fn entries(indexes: std::ops::RangeInclusive<u64>, body: &'static str) -> Vec<(u64, Bytes)> {
        indexes.map(|index| (index, Bytes::from(body))).collect()
    }

    fn log_without_cache(dir: &Path) -> Arc<LogStore> {
        LogStore::open(dir, LogOptions { cache_bytes_max: 0, ..LogOptions::default() }).unwrap()
    }

    #[test]
    fn a_read_that_is_overtaken_by_a_purge_or_a_truncation_reads_again() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_without_cache(dir.path());
        log.append(entries(1..=9, "old"), Box::new(|result| result.unwrap()));
        log.flush().unwrap();
        let overtaking = Arc::clone(&log);
        *log.shared.faults.before_disk_read.lock().unwrap() = Some(Box::new(move || {
            overtaking.purge_through(3, Bytes::from("purged 3"), Box::new(|result| result.unwrap()));
            overtaking.truncate_after(Some(6), Box::new(|result| result.unwrap()));
            overtaking.append(entries(7..=8, "new"), Box::new(|result| result.unwrap()));
            overtaking.flush().unwrap();
        }));
        assert_eq!(log.read(1..10, usize::MAX).unwrap(), [entries(4..=6, "old"), entries(7..=8, "new")].concat());
    }

    #[test]
    fn a_log_is_opened_anew_while_other_writes_wait_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_without_cache(dir.path());
        let (reopened, was_reopened) = mpsc::channel();
        let beside = Arc::downgrade(&log);
        // What is queued while a group is written waits for the next one.
        *log.shared.faults.during_write.lock().unwrap() = Some(Box::new(move || {
            let log = beside.upgrade().unwrap();
            log.append(entries(2..=2, "before"), Box::new(|result| result.unwrap()));
            log.enqueue(0, Box::new(move |result| reopened.send(result.map_err(|error| chain(&error))).unwrap()), |_| Ok(Change::Reopen));
            log.append(entries(3..=3, "after"), Box::new(|result| result.unwrap()));
        }));
        log.append(entries(1..=1, "first"), Box::new(|result| result.unwrap()));
        was_reopened.recv_timeout(Duration::from_secs(20)).expect("the writer does not wait for itself").unwrap();
        log.flush().unwrap();
        let all = [entries(1..=1, "first"), entries(2..=2, "before"), entries(3..=3, "after")].concat();
        assert_eq!(log.read(1..4, usize::MAX).unwrap(), all);
    }

    #[test]
    fn a_disk_that_hangs_while_files_of_purged_entries_are_dropped_shows() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_without_cache(dir.path());
        log.append(entries(1..=9, "old"), Box::new(|result| result.unwrap()));
        log.flush().unwrap();
        let (sender, receiver) = mpsc::channel();
        let watched = Arc::downgrade(&log);
        *log.shared.faults.before_reclaim.lock().unwrap() =
            Some(Box::new(move || sender.send(watched.upgrade().unwrap().writing()).unwrap()));
        log.purge_through(3, Bytes::from("purged 3"), Box::new(|result| result.unwrap()));
        assert_eq!(receiver.recv().unwrap(), Some(2), "the second group is not over");
        log.flush().unwrap();
    }

    #[test]
    fn an_entry_that_came_while_a_group_was_written_is_readable_before_its_own_is() {
        let dir = tempfile::tempdir().unwrap();
        let log = log_without_cache(dir.path());
        let late = Arc::downgrade(&log);
        *log.shared.faults.during_write.lock().unwrap() = Some(Box::new(move || {
            late.upgrade().unwrap().append(entries(2..=2, "late"), Box::new(|result| result.unwrap()));
        }));
        let (sender, receiver) = mpsc::channel();
        let reading = Arc::downgrade(&log);
        // Called between the two groups.
        let read_both = move |_| sender.send(reading.upgrade().unwrap().read(1..3, usize::MAX).unwrap()).unwrap();
        log.append(entries(1..=1, "early"), Box::new(read_both));
        assert_eq!(receiver.recv().unwrap(), [entries(1..=1, "early"), entries(2..=2, "late")].concat());
    }

    #[test]
    fn after_a_failed_write_every_call_fails_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogStore::open(dir.path(), LogOptions::default()).unwrap();
        let (sender, receiver) = mpsc::channel();
        let done = || -> Done {
            let sender = sender.clone();
            Box::new(move |result| sender.send(result.map_err(|error| chain(&error))).unwrap())
        };
        log.append(vec![(1, Bytes::from("one"))], done());
        receiver.recv().unwrap().unwrap();
        log.shared.faults.disk_is_full.store(true, Ordering::SeqCst);
        log.append(vec![(2, Bytes::from("two"))], done());
        log.append(vec![(3, Bytes::from("three"))], done());
        let reason = "the log has stopped: cannot write to the log: no space left on device";
        assert_eq!(receiver.recv().unwrap().unwrap_err(), reason);
        assert_eq!(receiver.recv().unwrap().unwrap_err(), reason);
        log.shared.faults.disk_is_full.store(false, Ordering::SeqCst);
        log.save_vote(Bytes::from("vote"), done());
        assert_eq!(receiver.recv().unwrap().unwrap_err(), reason);
        assert_eq!(chain(&log.read(0..9, usize::MAX).unwrap_err()), reason);
        assert_eq!(chain(&log.flush().unwrap_err()), reason);
        log.close();
    }

    #[test]
    fn a_callback_that_panics_stops_the_log_and_leaves_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogStore::open(dir.path(), LogOptions::default()).unwrap();
        log.append(vec![(1, Bytes::from("one"))], Box::new(|_| panic!("a caller's bug")));
        assert!(log.flush().is_err());
        log.close();
    }
}
