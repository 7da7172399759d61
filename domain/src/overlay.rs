//! Writes kept aside over a state that is only read.

use std::collections::BTreeMap;

use crate::tx::{Direction, Read, Row, StorageError, Table, Tx};

/// The writes of one command or one batch, by table and key; `None` is a deletion.
pub type Writes = BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>;

/// A [`Tx`] whose reads see its own writes first and the state below otherwise.
pub struct Overlay<'a, R: Read + ?Sized> {
    below: &'a R,
    writes: Writes,
}

impl<'a, R: Read + ?Sized> Overlay<'a, R> {
    pub fn new(below: &'a R) -> Self {
        Self { below, writes: Writes::new() }
    }

    /// Goes on with writes that were made earlier over the same state.
    pub fn with_writes(below: &'a R, writes: Writes) -> Self {
        Self { below, writes }
    }

    pub fn into_writes(self) -> Writes {
        self.writes
    }

    /// Takes over the writes of an overlay that stood on this one.
    pub fn absorb(&mut self, writes: Writes) {
        self.writes.extend(writes);
    }
}

impl<R: Read + ?Sized> Read for Overlay<'_, R> {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        // The tuple key needs an owned Vec; keys are short, and the copy is small beside a RocksDB lookup.
        match self.writes.get(&(table, key.to_vec())) {
            Some(written) => Ok(written.clone()),
            None => self.below.get_bytes(table, key),
        }
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let written: Vec<(&Vec<u8>, &Option<Vec<u8>>)> =
            self.writes.range((table, from.to_vec())..(table, to.to_vec())).map(|((_, key), value)| (key, value)).collect();
        if written.is_empty() {
            return self.below.scan_bytes(table, from, to, direction, limit);
        }
        // Each deletion here can hide one row below, so so many more are read to fill the limit.
        let hidden = written.iter().filter(|(_, value)| value.is_none()).count();
        let below = self.below.scan_bytes(table, from, to, direction, limit.saturating_add(hidden))?;
        let mut merged: BTreeMap<Vec<u8>, Option<Vec<u8>>> = below.into_iter().map(|(key, value)| (key, Some(value))).collect();
        merged.extend(written.into_iter().map(|(key, value)| (key.clone(), value.clone())));
        let alive = merged.into_iter().filter_map(|(key, value)| value.map(|value| (key, value)));
        Ok(match direction {
            Direction::Ascending => alive.take(limit).collect(),
            Direction::Descending => alive.rev().take(limit).collect(),
        })
    }
}

impl<R: Read + ?Sized> Tx for Overlay<'_, R> {
    fn put_bytes(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.writes.insert((table, key), Some(value));
    }

    fn delete_bytes(&mut self, table: Table, key: Vec<u8>) {
        self.writes.insert((table, key), None);
    }
}

/// A state that holds nothing: the ground under an in-memory store.
pub struct Nothing;

impl Read for Nothing {
    fn get_bytes(&self, _: Table, _: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(None)
    }

    fn scan_bytes(&self, _: Table, _: &[u8], _: &[u8], _: Direction, _: usize) -> Result<Vec<Row>, StorageError> {
        Ok(Vec::new())
    }
}
