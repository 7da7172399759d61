//! What of a fact is found by words.

use serde::Deserialize;

use super::place::{Place, daemon_owned};
use super::rank::{State, Walk, lane};
use super::{Fact, filed_name, visible};
use crate::codec;
use crate::decision;
use crate::key::Key;
use crate::record::{Kind, Record, kind_prefix};
use crate::search::Document;
use crate::search::source::{Node, is_of_kind};
use crate::stamp::{Principal, ReadStamp};
use crate::tx::{Read, StorageError, Table};

/// A stored version, read to be indexed.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct Searchable(Fact);

impl Searchable {
    /// Nothing for a version that is not the active one.
    pub(crate) fn into_document(self, key: Vec<u8>) -> Option<Document> {
        let Self(fact) = self;
        (fact.state() == State::Active).then(|| Document {
            key,
            // What the service notes for itself is evidence, and no knowledge; decisions are both.
            is_shown: daemon_owned(&fact.entity).is_none_or(decision::is_under) && !fact.entity.starts_with("__ops"),
            id: fact.fact_id,
            kind: "fact",
            names: vec![fact.key, filed_name(&fact.owner, &fact.entity)],
            text: fact.value,
            segment: 0,
            node: Node::About(fact.entity),
            owner: fact.owner,
            tenant: fact.tenant,
        })
    }
}

/// What became of the fact of an id, as far as the caller may know.
pub(crate) enum Found {
    /// Under this record key.
    Active(Vec<u8>),
    Retired,
    No,
}

pub(crate) fn find(view: &impl Read, caller: &Principal, fact_id: &str) -> Result<Found, StorageError> {
    Ok(match visible(view, caller, fact_id)? {
        Some(fact) if fact.state() == State::Active => Found::Active(record_key(&caller.tenant, fact.id().as_bytes())),
        Some(_) => Found::Retired,
        None => Found::No,
    })
}

/// The fact under a record's key, if it is one.
pub(super) fn fact_at(view: &impl Read, key: &[u8]) -> Result<Option<Fact>, StorageError> {
    if !is_of_kind(key, Kind::Fact) {
        return Ok(None);
    }
    let bytes = view.get_bytes(Table::Records, key)?;
    bytes.map(|bytes| codec::decode(&bytes).map_err(|error| StorageError::new("fact", error))).transpose()
}

fn record_key(tenant: &str, id: &[u8]) -> Vec<u8> {
    kind_prefix(tenant, Kind::Fact).raw(id).into_bytes()
}

/// The record keys of the best facts about an entity that the caller sees, at most `limit`.
pub(crate) fn best_about(view: &impl Read, at: &ReadStamp, entity: &str, limit: usize) -> Result<Vec<Vec<u8>>, StorageError> {
    let tenant = &at.caller.tenant;
    let lanes: Vec<Key> = Place::to_read(entity, &at.caller).iter().map(|place| lane(tenant, &place.owner, Some(&place.entity))).collect();
    let mut walk = Walk::lanes(view, &lanes, &[State::Active], at.wall, None)?;
    let mut keys = Vec::new();
    // A step may only jump on.
    for _ in 0..4 * limit {
        let Some(step) = walk.next()? else { break };
        keys.extend(step.id.map(|id| record_key(tenant, &id)));
        if keys.len() == limit {
            break;
        }
    }
    Ok(keys)
}
