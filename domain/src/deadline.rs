//! Deadlines of all tenants in one order, so that a sweep finds what has run out without walking tenants.

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::key::Key;
use crate::limit::SWEEP_PER_ENTRY;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::stamp::LeaseTime;
use crate::tx::{Direction, StorageError, Table, Tx};

/// What ends then: a record of the kind that the index belongs to.
pub(crate) struct Lapsed {
    pub tenant: String,
    pub id: String,
}

fn key(index: Kind, deadline: LeaseTime, tenant: &str, id: &str) -> Key {
    kind_prefix(CLUSTER, index).number(deadline.0).text(tenant).text(id)
}

pub(crate) fn put(tx: &mut impl Tx, index: Kind, deadline: LeaseTime, tenant: &str, id: &str) {
    tx.put_index(key(index, deadline, tenant, id), &codec::encode(&(tenant, id)));
}

/// The same where it may be over already: a sweep that has been further looks again from there.
pub(crate) fn put_late(tx: &mut impl Tx, index: Kind, deadline: LeaseTime, tenant: &str, id: &str) -> Result<(), StorageError> {
    put(tx, index, deadline, tenant, id);
    let swept: Option<Swept> = tx.get(CLUSTER, &Key::new().byte(index as u8))?;
    if swept.is_some_and(|swept| swept.through > deadline) {
        tx.put(&Swept { index: index as u8, through: deadline });
    }
    Ok(())
}

pub(crate) fn delete(tx: &mut impl Tx, index: Kind, deadline: LeaseTime, tenant: &str, id: &str) {
    tx.delete_index(key(index, deadline, tenant, id));
}

/// Up to where one index is swept: before this there is nothing any more but what a store has to step over.
#[derive(Serialize, Deserialize)]
struct Swept {
    index: u8,
    through: LeaseTime,
}

impl Record for Swept {
    const KIND: Kind = Kind::Swept;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new().byte(self.index)
    }
}

/// The first of those whose deadline has come, as many as one entry may end. The caller ends each of them.
pub(crate) fn lapsed(tx: &mut impl Tx, index: Kind, now: LeaseTime) -> Result<Vec<Lapsed>, StorageError> {
    let swept: Option<Swept> = tx.get(CLUSTER, &Key::new().byte(index as u8))?;
    let all = kind_prefix(CLUSTER, index);
    let from = all.clone().number(swept.map_or(0, |swept| swept.through.0));
    let to = all.number(now.0.saturating_add(1));
    let rows = tx.scan_bytes(Table::Index, from.as_bytes(), to.as_bytes(), Direction::Ascending, SWEEP_PER_ENTRY)?;
    if rows.len() < SWEEP_PER_ENTRY {
        tx.put(&Swept { index: index as u8, through: now });
    }
    let decode =
        |(_, bytes): (Vec<u8>, Vec<u8>)| codec::decode::<(String, String)>(&bytes).map_err(|error| StorageError::new("deadline", error));
    rows.into_iter().map(decode).map(|row| row.map(|(tenant, id)| Lapsed { tenant, id })).collect()
}
