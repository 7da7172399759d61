//! Lock delay: a resource that stays closed to others for a while after its card was lost.
//!
//! Who loses a card by expiry or force may still have writes on their way to something that checks no fencing token. So a card
//! can be taken with a delay: after it is lost, nobody else gets what overlaps it until the delay is over. One that is given
//! back leaves nothing behind, and the passport that lost a card may take it again at once. Invariant:
//! * A card with a delay stands in an index of its own from its grant until it is given back or its delay is over. So there is
//!   no moment between the end of a card and the start of its delay, however late it is swept.

use serde::{Deserialize, Serialize};

use super::Punchcard;
use super::held::{self, Held, Hold};
use super::queue::{self, stored};
use crate::deadline::{self, Lapsed};
use crate::key::Key;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Stamp};
use crate::tx::{Read, StorageError, Tx};

/// How many cards of a tenant have a delay. Without any, taking cards looks no further.
#[derive(Serialize, Deserialize)]
struct Count {
    tenant: String,
    cards: u64,
}

impl Record for Count {
    const KIND: Kind = Kind::SettlingCount;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

fn count(view: &impl Read, tenant: &str) -> Result<u64, StorageError> {
    let count: Option<Count> = view.get(tenant, &Key::new())?;
    Ok(count.map_or(0, |count| count.cards))
}

/// A card of someone else, held or lost, that keeps the resource closed; its deadline is when that is over.
pub(super) fn other(view: &impl Read, tenant: &str, resource: &Resource, than: &str, now: LeaseTime) -> Result<Option<Hold>, StorageError> {
    match count(view, tenant)? {
        0 => Ok(None),
        _ => Held::in_index(view, tenant, now, Kind::SettlingByPath).other(resource, than),
    }
}

/// Enters a card that has a delay: closed until `from` and the delay after it.
pub(super) fn begin(tx: &mut impl Tx, card: &mut Punchcard, resource: &Resource, from: LeaseTime) -> Result<(), StorageError> {
    if card.lock_delay_ms == 0 {
        return Ok(());
    }
    let until = from.plus_ms(card.lock_delay_ms);
    card.closed_until = Some(until);
    held::add(tx, Kind::SettlingByPath, &card.tenant, &Hold { deadline: until, ..Hold::of(card) }, resource)?;
    deadline::put(tx, Kind::SettlingByDeadline, until, &card.tenant, &card.id);
    let cards = count(tx, &card.tenant)? + 1;
    tx.put(&Count { tenant: card.tenant.clone(), cards });
    Ok(())
}

/// Takes a card out.
pub(super) fn finish(tx: &mut impl Tx, card: &mut Punchcard, resource: &Resource) -> Result<(), StorageError> {
    let Some(until) = card.closed_until.take() else { return Ok(()) };
    held::remove(tx, Kind::SettlingByPath, &card.tenant, &Hold { deadline: until, ..Hold::of(card) }, resource)?;
    deadline::delete(tx, Kind::SettlingByDeadline, until, &card.tenant, &card.id);
    let cards = count(tx, &card.tenant)?.saturating_sub(1);
    tx.put(&Count { tenant: card.tenant.clone(), cards });
    Ok(())
}

/// Opens what was closed for long enough, and looks at those who wait for it.
pub(super) fn sweep(tx: &mut impl Tx, at: &Stamp, budget: &mut usize) -> Result<(), StorageError> {
    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::SettlingByDeadline, at.lease_now)? {
        let mut card = super::indexed(tx, &tenant, &id)?;
        let resource = Resource::parse(&card.resource).map_err(stored)?;
        finish(tx, &mut card, &resource)?;
        tx.put(&card);
        queue::hand_over(tx, &at.within(&tenant), &resource, budget)?;
    }
    Ok(())
}
