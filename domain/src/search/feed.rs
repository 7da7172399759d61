//! Which searchable records changed, in the order of the log.
//!
//! [`Noting`] stands between an entry and the state, and notes the keys of searchable records that are written or deleted. So no
//! command, sweep or purge can change what is found without the indexes being told. Rows are `revision / n`, under the cluster,
//! since an index holds all tenants; only so many revisions stay, and an index that is further behind is built anew.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::source::is_searchable;
use crate::key::Key;
use crate::limit::SEARCH_FEED_REVISIONS;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::stamp::Revision;
use crate::tx::{Direction, Read, Row, StorageError, Table, Tx};

/// A [`Tx`] that notes which searchable records were touched.
pub struct Noting<'a, T: Tx> {
    tx: &'a mut T,
    touched: BTreeSet<Vec<u8>>,
}

impl<'a, T: Tx> Noting<'a, T> {
    pub fn new(tx: &'a mut T) -> Self {
        Self { tx, touched: BTreeSet::new() }
    }

    /// Writes the rows of this entry, and drops a few that are too old: faster than they come, and bounded per entry.
    pub fn write_feed(self, revision: Revision) -> Result<(), StorageError> {
        let Self { tx, touched } = self;
        if touched.is_empty() {
            return Ok(());
        }
        let feed = kind_prefix(CLUSTER, Kind::SearchFeed);
        let drop_max = touched.len() + 1;
        for (n, key) in touched.into_iter().enumerate() {
            tx.put_index(feed.clone().number(revision.0).number(n as u64), &key);
        }
        let Some(kept_from) = revision.0.checked_sub(SEARCH_FEED_REVISIONS) else { return Ok(()) };
        let mut kept = Kept::read(tx)?;
        // Looked for where the last one went: a store has to step over what was deleted before it.
        let (from, to) = (feed.clone().number(kept.dropped_through.0), feed.number(kept_from));
        let old = tx.scan_bytes(Table::Index, from.as_bytes(), to.as_bytes(), Direction::Ascending, drop_max)?;
        let Some((last, _)) = old.last() else { return Ok(()) };
        kept.dropped_through = revision_of(last)?;
        for (key, _) in old {
            tx.delete_bytes(Table::Index, key);
        }
        tx.put(&kept);
        Ok(())
    }
}

impl<T: Tx> Read for Noting<'_, T> {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.tx.get_bytes(table, key)
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        self.tx.scan_bytes(table, from, to, direction, limit)
    }
}

impl<T: Tx> Tx for Noting<'_, T> {
    fn put_bytes(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.note(table, &key);
        self.tx.put_bytes(table, key, value);
    }

    fn delete_bytes(&mut self, table: Table, key: Vec<u8>) {
        self.note(table, &key);
        self.tx.delete_bytes(table, key);
    }
}

impl<T: Tx> Noting<'_, T> {
    fn note(&mut self, table: Table, key: &[u8]) {
        if table == Table::Records && is_searchable(key) {
            self.touched.insert(key.to_vec());
        }
    }
}

/// Up to where rows may be gone.
#[derive(Serialize, Deserialize)]
struct Kept {
    dropped_through: Revision,
}

impl Record for Kept {
    const KIND: Kind = Kind::SearchFeedKept;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

impl Kept {
    fn read(view: &(impl Read + ?Sized)) -> Result<Self, StorageError> {
        Ok(view.get(CLUSTER, &Key::new())?.unwrap_or(Self { dropped_through: Revision(0) }))
    }
}

/// The revision in a row's key, which ends in it and a number.
fn revision_of(key: &[u8]) -> Result<Revision, StorageError> {
    let bytes = key.len().checked_sub(16).and_then(|at| key[at..].first_chunk());
    bytes
        .map(|bytes| Revision(u64::from_be_bytes(*bytes)))
        .ok_or_else(|| StorageError::corrupt("a row of the search feed has another form"))
}

/// What an index reads next.
#[derive(Clone, Debug, PartialEq)]
pub enum Changes {
    /// Keys of records that changed after the revision asked for, each once, and up to which revision these are all.
    Keys { keys: Vec<Vec<u8>>, through: Revision },
    /// Too much has changed since: build it anew.
    Gone,
}

/// Records that changed after `since`, at most about `limit` rows of the feed and never half a revision. `applied` is the last
/// revision of the view.
pub fn changes_after(view: &(impl Read + ?Sized), since: Revision, applied: Revision, limit: usize) -> Result<Changes, StorageError> {
    if since < Kept::read(view)?.dropped_through {
        return Ok(Changes::Gone);
    }
    let feed = kind_prefix(CLUSTER, Kind::SearchFeed);
    let from = feed.clone().number(since.0.saturating_add(1));
    let mut rows = view.scan_bytes(Table::Index, from.as_bytes(), &feed.after_prefix(), Direction::Ascending, limit)?;
    let through = match rows.last() {
        Some((last, _)) if rows.len() == limit => {
            let revision = revision_of(last)?;
            let of_last = feed.number(revision.0);
            let (from, to) = ([last.as_slice(), &[0]].concat(), of_last.after_prefix());
            rows.extend(view.scan_bytes(Table::Index, &from, &to, Direction::Ascending, usize::MAX)?);
            revision
        }
        _ => applied,
    };
    let keys: BTreeSet<Vec<u8>> = rows.into_iter().map(|(_, key)| key).collect();
    Ok(Changes::Keys { keys: keys.into_iter().collect(), through })
}
