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

/// What the index says of a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hold {
    pub id: String,
    pub holder: String,
    pub deadline: LeaseTime,
    pub token: Revision,
}

impl Hold {
    fn of(card: &Punchcard) -> Self {
        Self { id: card.id.clone(), holder: card.holder.clone(), deadline: card.deadline, token: card.fencing_token }
    }
}

/// The question: what is held on a resource or on what overlaps it, at a time.
pub(super) struct Held<'a, R: Read> {
    pub view: &'a R,
    pub tenant: &'a str,
    pub now: LeaseTime,
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

    /// Whether a live card of this holder, on the resource or on a tree above, covers all of it.
    pub fn covers(&self, resource: &Resource, holder: &str) -> Result<bool, StorageError> {
        for key in Places::of(Kind::PunchcardByPath, self.tenant, resource).covering {
            if self.live_at(key.as_bytes())?.iter().any(|hold| hold.holder == holder) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The live cards on exactly this resource: one, or several in advisory mode.
    pub fn on(&self, resource: &Resource) -> Result<Vec<Hold>, StorageError> {
        self.live_at(Places::of(Kind::PunchcardByPath, self.tenant, resource).own().as_bytes())
    }

    fn find(&self, resource: &Resource, wanted: impl Fn(&Hold) -> bool) -> Result<Option<Hold>, StorageError> {
        let places = Places::of(Kind::PunchcardByPath, self.tenant, resource);
        for key in places.meeting() {
            if let Some(hold) = self.live_at(key.as_bytes())?.into_iter().find(&wanted) {
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

/// Enters a card.
pub(super) fn add(tx: &mut impl Tx, card: &Punchcard, resource: &Resource) -> Result<(), StorageError> {
    let places = Places::of(Kind::PunchcardByPath, &card.tenant, resource);
    let hold = Hold::of(card);
    let mut here = at(tx, places.own().as_bytes())?;
    here.push(hold.clone());
    tx.put_index(places.own().clone(), &codec::encode(&here));
    let row = codec::encode(&hold);
    for above in places.above {
        tx.put_index(above.text(&hold.holder).number_descending(hold.deadline.0).text(&hold.id), &row);
    }
    Ok(())
}

/// Takes a card out; it must be as it was entered.
pub(super) fn remove(tx: &mut impl Tx, card: &Punchcard, resource: &Resource) -> Result<(), StorageError> {
    let places = Places::of(Kind::PunchcardByPath, &card.tenant, resource);
    let mut here = at(tx, places.own().as_bytes())?;
    here.retain(|hold| hold.id != card.id);
    match here.is_empty() {
        true => tx.delete_index(places.own().clone()),
        false => tx.put_index(places.own().clone(), &codec::encode(&here)),
    }
    for above in places.above {
        tx.delete_index(above.text(&card.holder).number_descending(card.deadline.0).text(&card.id));
    }
    Ok(())
}
