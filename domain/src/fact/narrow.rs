//! What a list of facts is narrowed to: one entity, entities that begin so, one key, or all of them together.

use super::place::{Place, Region, check_entity, check_entity_prefix};
use super::rank::{Order, State, Walk, lane};
use super::recall::one_pair;
use super::{Fact, Head};
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::SCAN_ROWS_MAX;
use crate::refusal::Refusal;
use crate::stamp::{Principal, ReadStamp, UnixMs};
use crate::tx::{Read, StorageError};

pub(super) struct Narrow<'a> {
    entity: Option<&'a str>,
    key: Option<&'a str>,
    regions: Option<Vec<Region>>,
    /// Whose facts the list has.
    owners: &'a [&'a str],
}

impl<'a> Narrow<'a> {
    pub(super) fn check(
        entity: Option<&'a str>,
        prefix: Option<&'a str>,
        key: Option<&'a str>,
        owners: &'a [&'a str],
        caller: &Principal,
    ) -> Result<Self, Refusal> {
        for (field, name) in [("entity", entity), ("key", key)] {
            if name.is_some_and(|name| name.trim().is_empty()) {
                return Err(Refusal::invalid(field, "must not be empty; leave it out to match all"));
            }
        }
        let bad = entity
            .and_then(|entity| check_entity(entity, caller))
            .or_else(|| prefix.and_then(|prefix| check_entity_prefix(prefix, caller)))
            .or_else(|| key.and_then(|key| check_name("key", key)));
        if let Some(refusal) = bad {
            return Err(refusal);
        }
        let regions = prefix.filter(|prefix| !prefix.is_empty()).map(|prefix| Region::to_read(prefix, caller));
        Ok(Self { entity, key, regions, owners })
    }

    pub(super) fn lets_through(&self, fact: &Fact) -> bool {
        self.key.is_none_or(|key| key == fact.key) && self.is_in_region(&fact.owner, &fact.entity)
    }

    /// What the ids of one owner's pairs begin with that could be meant; what begins so besides does not get through.
    pub(super) fn pairs_of(&self, owner: &str, caller: &Principal) -> Option<Key> {
        let owned = Key::new().text(owner);
        if let Some(entity) = self.entity {
            let place = Place::to_read(entity, caller).into_iter().find(|place| place.owner == owner)?;
            let named = owned.text(&place.entity);
            return Some(self.key.map_or(named.clone(), |key| named.text(key)));
        }
        let Some(regions) = &self.regions else { return Some(owned) };
        regions.iter().find(|region| region.owner == owner).map(|region| owned.text_prefix(&region.prefix))
    }

    pub(super) fn lets_pair_through(&self, head: &Head) -> bool {
        self.key.is_none_or(|key| key == head.key) && self.is_in_region(&head.owner, &head.entity)
    }

    fn is_in_region(&self, owner: &str, entity: &str) -> bool {
        self.regions.as_ref().is_none_or(|regions| regions.iter().any(|region| region.holds(owner, entity)))
    }

    /// The cheapest way that meets all active facts in order; what it meets besides does not get through.
    pub(super) fn active<'v, V: Read>(
        &self,
        view: &'v V,
        at: &ReadStamp,
        now: UnixMs,
        after: Option<Order>,
    ) -> Result<Walk<'v, V>, StorageError> {
        let tenant = &at.caller.tenant;
        if let (Some(places), Some(key)) = (self.places(at), self.key) {
            return one_pair(view, tenant, &places, key, now, after);
        }
        if let (None, Some(regions)) = (self.entity, &self.regions) {
            let regions: Vec<Region> = regions.iter().filter(|region| self.owners.contains(&&*region.owner)).cloned().collect();
            if let Some(walk) = Walk::region(view, tenant, &regions, &[State::Active], now, after, SCAN_ROWS_MAX)? {
                return Ok(walk);
            }
        }
        self.parts(view, at, &[(State::Active, true), (State::Active, false)], now, after)
    }

    /// Walks fresh (`true`) or stale facts of some states.
    pub(super) fn parts<'v, V: Read>(
        &self,
        view: &'v V,
        at: &ReadStamp,
        parts: &[(State, bool)],
        now: UnixMs,
        after: Option<Order>,
    ) -> Result<Walk<'v, V>, StorageError> {
        let tenant = &at.caller.tenant;
        let lanes: Vec<_> = match self.places(at) {
            Some(places) => places.iter().map(|place| lane(tenant, &place.owner, Some(&place.entity))).collect(),
            None => self.owners.iter().map(|owner| lane(tenant, owner, None)).collect(),
        };
        Walk::parts(view, &lanes, parts, now, after)
    }

    fn places(&self, at: &ReadStamp) -> Option<Vec<Place>> {
        let places = Place::to_read(self.entity?, &at.caller);
        Some(places.into_iter().filter(|place| self.owners.contains(&&*place.owner)).collect())
    }
}
