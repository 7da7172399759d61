//! Writes kept aside over a state that is only read.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::iter;

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
        let written = self.writes.range((table, from.to_vec())..(table, to.to_vec())).map(|((_, key), value)| (key, value));
        // Each deletion here can hide one row below, so so many more are read to fill the limit.
        let hidden = written.clone().filter(|(_, value)| value.is_none()).count();
        let below = self.below.scan_bytes(table, from, to, direction, limit.saturating_add(hidden))?.into_iter();
        Ok(match direction {
            Direction::Ascending => merge(written, below, |a, b| a.cmp(b)).take(limit).collect(),
            Direction::Descending => merge(written.rev(), below, |a, b| b.cmp(a)).take(limit).collect(),
        })
    }
}

/// Rows of both in their order; where both have a key, what was written counts. Lazy, and copies only what is taken: a batch has
/// many writes in the range of a scan that wants one row.
fn merge<'w>(
    written: impl Iterator<Item = (&'w Vec<u8>, &'w Option<Vec<u8>>)>,
    below: impl Iterator<Item = Row>,
    order: impl Fn(&[u8], &[u8]) -> Ordering,
) -> impl Iterator<Item = Row> {
    let (mut written, mut below) = (written.peekable(), below.peekable());
    iter::from_fn(move || {
        loop {
            let next = match (written.peek(), below.peek()) {
                (Some((key, _)), Some((other, _))) => order(key, other),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            if next == Ordering::Greater {
                return below.next();
            }
            if next == Ordering::Equal {
                below.next();
            }
            if let (key, Some(value)) = written.next()? {
                return Some((key.clone(), value.clone()));
            }
        }
    })
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0..3_u8, 1..3)
    }

    proptest! {
        #[test]
        fn a_scan_over_layers_finds_what_one_map_would_hold(
            layers in prop::collection::vec(prop::collection::vec((key(), prop::option::of(any::<u8>())), 0..12), 1..4),
            from in key(), to in key(), descending in any::<bool>(), limit in prop_oneof![0..5_usize, Just(usize::MAX)],
        ) {
            let mut all = BTreeMap::new();
            let written: Vec<Writes> = layers.iter().map(|layer| {
                let mut writes = Writes::new();
                for (key, value) in layer {
                    let value = value.map(|byte| vec![byte]);
                    writes.insert((Table::Index, key.clone()), value.clone());
                    all.insert(key.clone(), value);
                }
                writes
            }).collect();
            let mut expected: Vec<Row> = match from < to {
                true => all.range(from.clone()..to.clone()).filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect(),
                false => Vec::new(),
            };
            let direction = if descending { Direction::Descending } else { Direction::Ascending };
            if descending {
                expected.reverse();
            }
            expected.truncate(limit);

            let mut written = written.into_iter();
            let one = Overlay::with_writes(&Nothing, written.next().unwrap_or_default());
            let two = Overlay::with_writes(&one, written.next().unwrap_or_default());
            let three = Overlay::with_writes(&two, written.next().unwrap_or_default());
            prop_assert_eq!(three.scan_bytes(Table::Index, &from, &to, direction, limit).unwrap(), expected);
        }
    }
}
