//! Which cards are held, by path: who else holds something that overlaps.
//!
//! Cards whose time is over stand here until they are swept, and are passed over. Rows below a tree are ordered by holder and
//! then by deadline, the latest first, so that the first row of a holder tells whether anything of his is live there, and
//! neither his many cards nor a late sweep make a search long.

use serde::{Deserialize, Serialize};

use super::Punchcard;
use super::place::Places;
use crate::codec;
use crate::record::{Kind, WriteRecords};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Revision};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// Where cards stand until they end.
pub(super) const INDEX: Kind = Kind::PunchcardByPath;

/// What the index says of a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hold {
    pub id: String,
    pub holder: String,
    pub deadline: LeaseTime,
    pub token: Revision,
}

impl Hold {
    pub(super) fn of(card: &Punchcard) -> Self {
        Self { id: card.id.clone(), holder: card.holder.clone(), deadline: card.deadline, token: card.fencing_token }
    }
}

/// The question: what is held on a resource or on what overlaps it, at a time.
pub(super) struct Held<'a, R: Read> {
    pub view: &'a R,
    pub tenant: &'a str,
    pub now: LeaseTime,
    index: Kind,
}

impl<'a, R: Read> Held<'a, R> {
    pub fn now(view: &'a R, tenant: &'a str, now: LeaseTime) -> Self {
        Self { view, tenant, now, index: INDEX }
    }

    /// The same question of another index of claims.
    pub fn in_index(view: &'a R, tenant: &'a str, now: LeaseTime, index: Kind) -> Self {
        Self { view, tenant, now, index }
    }
}

impl<R: Read> Held<'_, R> {
    /// A live card of someone else that overlaps.
    pub fn other(&self, resource: &Resource, than: &str) -> Result<Option<Hold>, StorageError> {
        self.find(resource, |hold| hold.holder != than)
    }

    /// A live card of this holder that overlaps.
    pub fn overlapping(&self, resource: &Resource, holder: &str) -> Result<Option<Hold>, StorageError> {
        self.find(resource, |hold| hold.holder == holder)
    }

    /// A live card on the resource or on a tree above it, and so one that covers all of it.
    pub fn covering(&self, resource: &Resource, wanted: impl Fn(&Hold) -> bool) -> Result<Option<Hold>, StorageError> {
        for key in Places::of(self.index, self.tenant, resource).covering {
            if let Some(hold) = self.live_at(key.as_bytes())?.into_iter().find(&wanted) {
                return Ok(Some(hold));
            }
        }
        Ok(None)
    }

    /// Any live card that overlaps.
    pub fn any(&self, resource: &Resource) -> Result<Option<Hold>, StorageError> {
        self.find(resource, |_| true)
    }

    /// Whether a live card of this holder, on the resource or on a tree above, covers all of it.
    pub fn covers(&self, resource: &Resource, holder: &str) -> Result<bool, StorageError> {
        Ok(self.covering(resource, |hold| hold.holder == holder)?.is_some())
    }

    /// The live cards on exactly this resource: one, or several in advisory mode.
    pub fn on(&self, resource: &Resource) -> Result<Vec<Hold>, StorageError> {
        self.live_at(Places::of(self.index, self.tenant, resource).own().as_bytes())
    }

    /// Who else holds something that overlaps, each once, and at most so many.
    pub fn others(&self, resource: &Resource, than: &str, limit: usize) -> Result<Vec<Hold>, StorageError> {
        let mut others: Vec<Hold> = Vec::new();
        self.find(resource, |hold| {
            if hold.holder != than && others.iter().all(|known| known.holder != hold.holder) {
                others.push(hold.clone());
            }
            others.len() >= limit
        })?;
        Ok(others)
    }

    fn find(&self, resource: &Resource, mut wanted: impl FnMut(&Hold) -> bool) -> Result<Option<Hold>, StorageError> {
        let places = Places::of(self.index, self.tenant, resource);
        for key in places.meeting() {
            if let Some(hold) = self.live_at(key.as_bytes())?.into_iter().find(&mut wanted) {
                return Ok(Some(hold));
            }
        }
        let Some((_, below)) = places.covered else { return Ok(None) };
        let (mut from, to) = (below.clone().into_bytes(), below.after_prefix());
        loop {
            let row = self.view.scan_bytes(Table::Index, &from, &to, Direction::Ascending, 1)?.pop();
            let Some((_, bytes)) = row else { return Ok(None) };
            let hold: Hold = decode(&bytes)?;
            if hold.deadline > self.now && wanted(&hold) {
                return Ok(Some(hold));
            }
            from = below.clone().text(&hold.holder).after_prefix();
        }
    }

    fn live_at(&self, key: &[u8]) -> Result<Vec<Hold>, StorageError> {
        let mut holds = at(self.view, key)?;
        holds.retain(|hold| hold.deadline > self.now);
        Ok(holds)
    }
}

fn at(view: &impl Read, key: &[u8]) -> Result<Vec<Hold>, StorageError> {
    match view.get_bytes(Table::Index, key)? {
        Some(bytes) => decode(&bytes),
        None => Ok(Vec::new()),
    }
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, StorageError> {
    codec::decode(bytes).map_err(|error| StorageError::new("index of held cards", error))
}

/// Enters a claim.
pub(super) fn add(tx: &mut impl Tx, index: Kind, tenant: &str, hold: &Hold, resource: &Resource) -> Result<(), StorageError> {
    let places = Places::of(index, tenant, resource);
    let mut here = at(tx, places.own().as_bytes())?;
    here.push(hold.clone());
    tx.put_index(places.own().clone(), &codec::encode(&here));
    let row = codec::encode(hold);
    for above in places.above {
        tx.put_index(above.text(&hold.holder).number_descending(hold.deadline.0).text(&hold.id), &row);
    }
    Ok(())
}

/// Takes a claim out; it must be as it was entered.
pub(super) fn remove(tx: &mut impl Tx, index: Kind, tenant: &str, gone: &Hold, resource: &Resource) -> Result<(), StorageError> {
    let places = Places::of(index, tenant, resource);
    let mut here = at(tx, places.own().as_bytes())?;
    here.retain(|hold| hold.id != gone.id);
    match here.is_empty() {
        true => tx.delete_index(places.own().clone()),
        false => tx.put_index(places.own().clone(), &codec::encode(&here)),
    }
    for above in places.above {
        tx.delete_index(above.text(&gone.holder).number_descending(gone.deadline.0).text(&gone.id));
    }
    Ok(())
}
