//! The log as callers see it, and the queue of what the disk does not have yet.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use quorate_domain::StorageError;
use quorate_domain::tx::Direction;

use super::sealed::{index_of, unseal};
use super::{COMMITTED, Done, ENTRIES, META, PURGED, VOTE};
use crate::engine::Database;

/// The log as callers see it: ahead of the disk by what is queued.
pub struct View {
    /// First and last index; `None` while there are no entries.
    pub bounds: Option<(u64, u64)>,
    /// The newest entries without a hole, up to the last one. All that are not yet written are among them.
    pub cache: BTreeMap<u64, Bytes>,
    pub cache_bytes: usize,
    /// Counts truncations and purges, so that a read of the disk knows whether one came between.
    pub deletions: u64,
    pub vote: Option<Bytes>,
    pub committed: Option<Bytes>,
    pub committed_is_unwritten: bool,
    pub purged: Option<Purged>,
    pub queue: Vec<Queued>,
    /// A group is on its way to the disk.
    pub is_writing: bool,
    /// Bytes of entries in `queue` and in the group that is being written.
    pub queued_bytes: usize,
    pub closing: bool,
    /// Why nothing is written any more.
    pub stopped: Option<Arc<str>>,
}

impl View {
    pub fn load(db: &dyn Database) -> Result<Self, StorageError> {
        let meta = |key: &[u8]| -> Result<Option<Bytes>, StorageError> {
            let value = db.get(META, key)?;
            value.map(|value| unseal(key, &value)).transpose()
        };
        let purged = match meta(PURGED)? {
            Some(mut log_id) if log_id.len() >= 8 => Some(Purged { index: index_of(&log_id.split_to(8))?, log_id }),
            Some(_) => return Err(StorageError::corrupt("the log's purge marker has no index")),
            None => None,
        };
        let mut view = Self {
            bounds: None,
            cache: BTreeMap::new(),
            cache_bytes: 0,
            deletions: 0,
            vote: meta(VOTE)?,
            committed: meta(COMMITTED)?,
            committed_is_unwritten: false,
            purged,
            queue: Vec::new(),
            is_writing: false,
            queued_bytes: 0,
            closing: false,
            stopped: None,
        };
        let edge = |direction: Direction| -> Result<Option<u64>, StorageError> {
            // What is left below the purge marker is waiting for compaction, and is no part of the log.
            let from = view.after_purged().unwrap_or(0).to_be_bytes();
            let mut index = None;
            db.scan(ENTRIES, &from, &u64::MAX.to_be_bytes(), direction, &mut |key, _| {
                index = Some(index_of(key)?);
                Ok(false)
            })?;
            Ok(index)
        };
        let bounds = edge(Direction::Ascending)?.zip(edge(Direction::Descending)?);
        if let (Some((first, _)), Some(expected)) = (bounds, view.after_purged())
            && first != expected
        {
            return Err(StorageError::corrupt(format!(
                "log entries {expected} to {} are missing: the last purged one is {}",
                first - 1,
                expected - 1
            )));
        }
        view.bounds = bounds;
        Ok(view)
    }

    pub fn after_purged(&self) -> Option<u64> {
        self.purged.as_ref().map(|purged| purged.index + 1)
    }

    pub fn check_readable(&self) -> Result<(), StorageError> {
        match &self.stopped {
            Some(reason) => Err(StorageError::new("the log has stopped", reason.to_string())),
            None => Ok(()),
        }
    }

    pub fn check_open(&self) -> Result<(), StorageError> {
        self.check_readable()?;
        if self.closing {
            return Err(StorageError::corrupt("the log is closed"));
        }
        Ok(())
    }

    pub fn append(&mut self, entries: &[(u64, Bytes)]) -> Result<(), StorageError> {
        let Some(&(first, _)) = entries.first() else { return Ok(()) };
        let expected = self.bounds.map(|(_, last)| last + 1).or(self.after_purged()).unwrap_or(first);
        // Checked as a whole before anything changes.
        for ((index, _), expected) in entries.iter().zip(expected..) {
            if *index != expected {
                return Err(StorageError::corrupt(format!("log entry {index} was appended where {expected} belongs")));
            }
        }
        let last = first + entries.len() as u64 - 1;
        self.bounds = Some((self.bounds.map_or(first, |(oldest, _)| oldest), last));
        for (index, entry) in entries {
            self.cache_bytes += entry.len();
            self.cache.insert(*index, entry.clone());
        }
        Ok(())
    }

    pub fn truncate_from(&mut self, from: u64) {
        self.deletions += 1;
        let cut = self.cache.split_off(&from);
        self.cache_bytes -= cut.values().map(Bytes::len).sum::<usize>();
        self.bounds = self.bounds.filter(|&(first, _)| first < from).map(|(first, last)| (first, last.min(from.saturating_sub(1))));
    }

    /// Returns false when that much was purged before.
    pub fn purge_through(&mut self, index: u64, log_id: &Bytes) -> bool {
        if self.purged.as_ref().is_some_and(|purged| purged.index >= index) {
            return false;
        }
        self.deletions += 1;
        let kept = self.cache.split_off(&(index + 1));
        self.cache_bytes = kept.values().map(Bytes::len).sum();
        self.cache = kept;
        self.bounds = self.bounds.filter(|&(_, last)| last > index).map(|(first, last)| (first.max(index + 1), last));
        self.purged = Some(Purged { index, log_id: log_id.clone() });
        true
    }

    /// The part of `range` that only the disk has, and the part in the cache.
    pub fn split(&self, range: Range<u64>) -> (Range<u64>, Range<u64>) {
        let Some((first, last)) = self.bounds else { return (0..0, 0..0) };
        let (from, to) = (range.start.max(first), range.end.min(last + 1));
        if from >= to {
            return (0..0, 0..0);
        }
        let cached_from = self.cache.first_key_value().map_or(last + 1, |(&index, _)| index).clamp(from, to);
        (from..cached_from, cached_from..to)
    }

    /// Drops the oldest cached entries over `bytes_max`, except those that are still queued.
    pub fn evict(&mut self, bytes_max: usize) {
        let first_appended = |queued: &Queued| match &queued.change {
            Change::Append(entries) => entries.first().map(|&(index, _)| index),
            _ => None,
        };
        let unwritten_from = self.queue.iter().filter_map(first_appended).min().unwrap_or(u64::MAX);
        while self.cache_bytes > bytes_max
            && let Some(oldest) = self.cache.first_entry().filter(|oldest| *oldest.key() < unwritten_from)
        {
            self.cache_bytes -= oldest.remove().len();
        }
    }
}

pub struct Queued {
    pub change: Change,
    pub done: Done,
}

pub enum Change {
    Append(Vec<(u64, Bytes)>),
    TruncateFrom(u64),
    Purge(Purged),
    Vote(Bytes),
    /// Only waits for what is before it.
    Nothing,
    /// Has the database opened anew once what is before it is written.
    Reopen,
}

pub struct Purged {
    pub index: u64,
    pub log_id: Bytes,
}
