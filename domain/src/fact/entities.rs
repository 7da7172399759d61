//! Entities: the names that have an active fact, counted as facts come and go.
//!
//! A private entity of the caller is listed under the name its author gave it, once with the tenant's entity of that name; both
//! answer to it in `query_facts`. Only when a prefix asks for filed names, they are shown filed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Fact;
use super::place::{Region, check_entity_prefix};
use super::recall::json_text_bytes;
use crate::codec;
use crate::cursor::Cursors;
use crate::key::Key;
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES};
use crate::query::rows;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// How many active facts an entity has; there is no row for none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entity {
    tenant: String,
    owner: String,
    entity: String,
    active: u64,
}

impl Record for Entity {
    const KIND: Kind = Kind::EntityByName;
    const TABLE: Table = Table::Index;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.owner).text(&self.entity)
    }
}

impl Entity {
    pub(super) fn active(&self) -> u64 {
        self.active
    }
}

/// Counts a pair that got or lost its active version.
pub(super) fn count(tx: &mut impl Tx, fact: &Fact, change: i64) -> Result<(), StorageError> {
    let id = Key::new().text(&fact.owner).text(&fact.entity);
    let row: Option<Entity> = tx.get(&fact.tenant, &id)?;
    let before = row.map_or(0, |row| row.active);
    let Some(active) = before.checked_add_signed(change) else {
        return Err(StorageError::corrupt("an entity lost a fact that it did not have"));
    };
    let row = Entity { tenant: fact.tenant.clone(), owner: fact.owner.clone(), entity: fact.entity.clone(), active };
    match active {
        0 => tx.delete(&row),
        _ => tx.put(&row),
    }
    Ok(())
}

/// Entities with at least one active fact, sorted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListEntities {
    pub entity_prefix: Option<String>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entities {
    pub entities: Vec<String>,
    pub next_cursor: Option<String>,
}

impl ListEntities {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Entities> {
        let cursors = Cursors::of("entities", &at.caller, &self.entity_prefix);
        let (limit, after) = match self.check(&cursors, &at.caller) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut names = BTreeSet::new();
        for region in Region::to_read(self.entity_prefix.as_deref().unwrap_or(""), &at.caller) {
            names.extend(page(view, &at.caller.tenant, &region, after.as_deref(), limit + 1)?);
        }

        let mut reply = Entities { entities: Vec::new(), next_cursor: None };
        let mut left = REPLY_BYTES_DEFAULT.saturating_sub(REPLY_WRAPPER_BYTES);
        for name in names {
            // The last name stands in the cursor, in hex.
            let bytes = json_text_bytes(&name) + 1;
            let is_full = reply.entities.len() == limit || bytes + 2 * name.len() > left;
            if let (true, Some(last)) = (is_full, reply.entities.last()) {
                reply.next_cursor = Some(cursors.seal(String::as_bytes(last)));
                break;
            }
            left = left.saturating_sub(bytes);
            reply.entities.push(name);
        }
        Ok(Ok(reply))
    }

    /// The rows of this page, and the last name of the page before.
    fn check(&self, cursors: &Cursors, caller: &Principal) -> Result<(usize, Option<String>), Refusal> {
        if let Some(refusal) = self.entity_prefix.as_deref().and_then(|prefix| check_entity_prefix(prefix, caller)) {
            return Err(refusal);
        }
        let limit = rows(self.limit)?;
        let Some(cursor) = &self.cursor else { return Ok((limit, None)) };
        let name = String::from_utf8(cursors.open(cursor)?).map_err(|_| Refusal::invalid("cursor", "is damaged"))?;
        Ok((limit, Some(name)))
    }
}

/// The first names of a region as they are shown, past `after`.
fn page(view: &impl Read, tenant: &str, region: &Region, after: Option<&str>, limit: usize) -> Result<Vec<String>, StorageError> {
    let owned = kind_prefix(tenant, Entity::KIND).text(&region.owner);
    let start = owned.clone().text_prefix(&region.prefix);
    let from = match after {
        None => start.as_bytes().to_vec(),
        Some(after) => match after.strip_prefix(&region.shown_before) {
            Some(name) => owned.text(name).byte(0).into_bytes().max(start.as_bytes().to_vec()),
            None if after < region.shown_before.as_str() => start.as_bytes().to_vec(),
            None => return Ok(Vec::new()),
        },
    };
    let rows = view.scan_bytes(Table::Index, &from, &start.after_prefix(), Direction::Ascending, limit)?;
    let shown = |(_, bytes): &(Vec<u8>, Vec<u8>)| {
        let row: Entity = codec::decode(bytes).map_err(|error| StorageError::new("entity", error))?;
        Ok(format!("{}{}", region.shown_before, row.entity))
    };
    rows.iter().map(shown).collect()
}
