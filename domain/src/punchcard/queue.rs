//! The queue: tickets of calls that wait for a card, first come, first served.
//!
//! Invariants:
//! * A ticket waits behind live cards of others, and behind earlier tickets of others that wait for something overlapping.
//! * Whenever a card or a ticket goes, whoever waits for something that overlaps it is looked at, in this entry or, where
//!   there are many, in the next ones. So nobody waits for what is free, except behind an earlier one.
//! * One holder has no two waiting tickets that overlap. So a ticket that covers a freed resource decides for all after it.

use serde::{Deserialize, Serialize};

use super::held::Held;
use super::place::Places;
use super::{Ask, Mode};
use crate::codec;
use crate::deadline::{self, Lapsed};
use crate::event;
use crate::identity;
use crate::key::Key;
use crate::limit::{HAND_OVERS_PER_ENTRY, LEASE_WAITERS_MAX, TICKET_KEPT_MS};
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Revision, Stamp};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// One call that waits or waited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ticket {
    pub id: String,
    pub tenant: String,
    pub resource: String,
    pub holder: String,
    /// Who called; another than the holder when it acts for that one.
    pub asked_by: String,
    pub mode: Mode,
    pub reason: Option<String>,
    pub ttl_ms: u64,
    /// The place in the queue.
    pub since: Revision,
    /// When the wait is over; once it is, when the ticket is forgotten.
    pub deadline: LeaseTime,
    pub fate: Fate,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Fate {
    Waiting,
    Granted { card: String },
    Left,
}

impl Record for Ticket {
    const KIND: Kind = Kind::Waiter;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.id)
    }
}

/// What the index by path says of a ticket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub id: String,
    pub holder: String,
    pub since: Revision,
    pub deadline: LeaseTime,
}

/// How many wait in a tenant. Without any, taking and releasing cards look no further.
#[derive(Serialize, Deserialize)]
struct Queue {
    tenant: String,
    waiting: u64,
}

impl Record for Queue {
    const KIND: Kind = Kind::Queue;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

fn waiting(view: &impl Read, tenant: &str) -> Result<u64, StorageError> {
    let queue: Option<Queue> = view.get(tenant, &Key::new())?;
    Ok(queue.map_or(0, |queue| queue.waiting))
}

fn decode(bytes: &[u8]) -> Result<Place, StorageError> {
    codec::decode(bytes).map_err(|error| StorageError::new("index of tickets", error))
}

pub(super) fn ticket(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Ticket>, StorageError> {
    view.get(tenant, &Key::new().text(id))
}

pub(super) fn indexed(view: &impl Read, tenant: &str, id: &str) -> Result<Ticket, StorageError> {
    ticket(view, tenant, id)?.ok_or_else(|| StorageError::corrupt(format!("an index row points to no ticket `{id}`")))
}

/// The first ticket of someone else that has waited since before `before` for something that overlaps.
pub(super) fn earlier(
    view: &impl Read,
    tenant: &str,
    resource: &Resource,
    holder: &str,
    before: Revision,
    now: LeaseTime,
) -> Result<Option<Place>, StorageError> {
    const PAGE: usize = 16;
    if waiting(view, tenant)? == 0 {
        return Ok(None);
    }
    let places = Places::of(Kind::WaiterByPath, tenant, resource);
    let mut first: Option<Place> = None;
    for rows in places.meeting().chain(places.covered.as_ref().map(|(_, below)| below)) {
        let (mut from, to) = (rows.clone().into_bytes(), rows.clone().number(before.0).into_bytes());
        'rows: loop {
            let page = view.scan_bytes(Table::Index, &from, &to, Direction::Ascending, PAGE)?;
            for (_, bytes) in &page {
                let place = decode(bytes)?;
                if place.deadline > now && place.holder != holder {
                    first = first.into_iter().chain([place]).min_by_key(|place| place.since);
                    break 'rows;
                }
            }
            match page.into_iter().nth(PAGE - 1) {
                Some((last, _)) => from = Key::new().raw(&last).byte(0).into_bytes(),
                None => break,
            }
        }
    }
    Ok(first)
}

/// How many live tickets of others wait before this one for something that overlaps.
pub(super) fn ahead(view: &impl Read, ticket: &Ticket, now: LeaseTime) -> Result<u64, StorageError> {
    let resource = Resource::parse(&ticket.resource).map_err(stored)?;
    let places = Places::of(Kind::WaiterByPath, &ticket.tenant, &resource);
    let mut ahead = 0;
    for rows in places.meeting().chain(places.covered.as_ref().map(|(_, below)| below)) {
        let to = rows.clone().number(ticket.since.0);
        for (_, bytes) in view.scan_bytes(Table::Index, rows.as_bytes(), to.as_bytes(), Direction::Ascending, LEASE_WAITERS_MAX)? {
            let place = decode(&bytes)?;
            ahead += u64::from(place.deadline > now && place.holder != ticket.holder);
        }
    }
    Ok(ahead)
}

/// The ticket with which a holder waits for exactly this resource.
pub(super) fn own(view: &impl Read, tenant: &str, resource: &Resource, holder: &str) -> Result<Option<Ticket>, StorageError> {
    if waiting(view, tenant)? == 0 {
        return Ok(None);
    }
    let row = by_holder(tenant, holder).text(&resource.to_string());
    match view.get_bytes(Table::Index, row.as_bytes())? {
        Some(id) => indexed(view, tenant, &String::from_utf8_lossy(&id)).map(Some),
        None => Ok(None),
    }
}

pub(super) fn by_holder(tenant: &str, holder: &str) -> Key {
    by_any_holder(tenant).text(holder)
}

pub(super) fn by_any_holder(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::WaiterByHolder)
}

/// Queues a call, or lets one that waits already wait on in its place.
pub(super) fn join(tx: &mut impl Tx, at: &Stamp, ask: &Ask, known: Option<Ticket>) -> Applied<Ticket> {
    let tenant = &at.caller.tenant;
    let deadline = at.lease_now.plus_ms(ask.wait_ms);
    if let Some(mut ticket) = known.clone().filter(|ticket| ticket.deadline > at.lease_now) {
        if deadline > ticket.deadline {
            deadline::delete(tx, Kind::WaiterByDeadline, ticket.deadline, tenant, &ticket.id);
            ticket.deadline = deadline;
            enter(tx, &ticket, &ask.resource);
        }
        return Ok(Ok(ticket));
    }
    if waiting(tx, tenant)? >= LEASE_WAITERS_MAX as u64 {
        return Ok(Err(Refusal::Full { what: "the queue for cards".into(), limit: LEASE_WAITERS_MAX as u64, retry_after_ms: 1_000 }));
    }
    let mine = by_holder(tenant, &ask.holder);
    for (_, id) in tx.scan_bytes(Table::Index, mine.as_bytes(), &mine.after_prefix(), Direction::Ascending, LEASE_WAITERS_MAX)? {
        let other = indexed(tx, tenant, &String::from_utf8_lossy(&id))?;
        if other.deadline > at.lease_now && Resource::parse(&other.resource).map_err(stored)?.overlaps(&ask.resource) {
            let problem =
                format!("overlaps `{}`, for which `{}` waits already under the ticket `{}`", other.resource, ask.holder, other.id);
            return Ok(Err(Refusal::invalid("resource", problem)));
        }
    }
    // The old ticket's wait is over and only not swept yet; its row by holder is the new one's from here on.
    if let Some(lapsed) = known {
        leave(tx, at, lapsed, &mut 0)?;
    }
    let ticket = Ticket {
        id: at.new_id("tk", 0),
        tenant: tenant.clone(),
        resource: ask.resource.to_string(),
        holder: ask.holder.clone(),
        asked_by: at.caller.passport.clone(),
        mode: ask.mode.unwrap_or(Mode::Modify),
        reason: ask.reason.clone(),
        ttl_ms: ask.ttl_ms(),
        since: at.revision,
        deadline,
        fate: Fate::Waiting,
    };
    enter(tx, &ticket, &ask.resource);
    count(tx, tenant, |waiting| waiting + 1)?;
    let about = serde_json::json!({ "resource": ticket.resource, "holder": ticket.holder });
    event::emit(tx, at, "punchcard.queued", &ticket.id, about)?;
    Ok(Ok(ticket))
}

fn enter(tx: &mut impl Tx, ticket: &Ticket, resource: &Resource) {
    let Ticket { id, tenant, holder, since, deadline, .. } = ticket;
    let place = Place { id: id.clone(), holder: holder.clone(), since: *since, deadline: *deadline };
    let row = codec::encode(&place);
    let places = Places::of(Kind::WaiterByPath, tenant, resource);
    for key in [places.own()].into_iter().chain(&places.above) {
        tx.put_index(key.clone().number(since.0), &row);
    }
    tx.put_index(by_holder(tenant, holder).text(&ticket.resource), id.as_bytes());
    deadline::put(tx, Kind::WaiterByDeadline, *deadline, tenant, id);
    tx.put(ticket);
}

fn count(tx: &mut impl Tx, tenant: &str, change: impl Fn(u64) -> u64) -> Result<(), StorageError> {
    let waiting = change(waiting(tx, tenant)?);
    tx.put(&Queue { tenant: tenant.into(), waiting });
    Ok(())
}

/// Ends a wait. The ticket can still be asked for, for a while.
pub(super) fn close(tx: &mut impl Tx, at: &Stamp, mut ticket: Ticket, fate: Fate) -> Result<Ticket, StorageError> {
    let tenant = ticket.tenant.clone();
    let places = Places::of(Kind::WaiterByPath, &tenant, &Resource::parse(&ticket.resource).map_err(stored)?);
    for key in [places.own()].into_iter().chain(&places.above) {
        tx.delete_index(key.clone().number(ticket.since.0));
    }
    tx.delete_index(by_holder(&tenant, &ticket.holder).text(&ticket.resource));
    deadline::delete(tx, Kind::WaiterByDeadline, ticket.deadline, &tenant, &ticket.id);
    let kept_until = at.lease_now.plus_ms(TICKET_KEPT_MS);
    deadline::put(tx, Kind::WaiterByDeadline, kept_until, &tenant, &ticket.id);
    count(tx, &tenant, |waiting| waiting.saturating_sub(1))?;
    ticket.fate = fate;
    ticket.deadline = kept_until;
    tx.put(&ticket);
    Ok(ticket)
}

/// Ends a wait without a card, and looks at those who wait behind it.
pub(super) fn leave(tx: &mut impl Tx, at: &Stamp, ticket: Ticket, budget: &mut usize) -> Result<Ticket, StorageError> {
    let ticket = close(tx, at, ticket, Fate::Left)?;
    let about = serde_json::json!({ "resource": ticket.resource, "holder": ticket.holder });
    event::emit(tx, at, "punchcard.wait_ended", &ticket.id, about)?;
    hand_over(tx, at, &Resource::parse(&ticket.resource).map_err(stored)?, budget)?;
    Ok(ticket)
}

// ------------------------------------------------------------------ handing on

/// A freed resource whose waiters are still to be looked at.
#[derive(Serialize, Deserialize)]
struct HandOver {
    tenant: String,
    resource: String,
    /// The first place in the queue that was not looked at.
    from: Revision,
}

fn hand_over_key(revision: Revision, tenant: &str, resource: &str) -> Key {
    kind_prefix(CLUSTER, Kind::HandOver).number(revision.0).text(tenant).text(resource)
}

fn postpone(tx: &mut impl Tx, at: &Stamp, resource: &str, from: Revision) {
    let rest = HandOver { tenant: at.caller.tenant.clone(), resource: resource.into(), from };
    tx.put_index(hand_over_key(at.revision, &rest.tenant, resource), &codec::encode(&rest));
}

/// Gives a resource that was freed just now to those who wait for it.
pub(super) fn hand_over(tx: &mut impl Tx, at: &Stamp, resource: &Resource, budget: &mut usize) -> Result<(), StorageError> {
    hand_over_from(tx, at, resource, Revision(0), budget)
}

/// Goes on where earlier entries stopped, the oldest first.
pub(super) fn resume(tx: &mut impl Tx, at: &Stamp, budget: &mut usize) -> Result<(), StorageError> {
    let all = kind_prefix(CLUSTER, Kind::HandOver);
    for (key, bytes) in tx.scan_bytes(Table::Index, all.as_bytes(), &all.after_prefix(), Direction::Ascending, HAND_OVERS_PER_ENTRY)? {
        if *budget == 0 {
            return Ok(());
        }
        let rest: HandOver = codec::decode(&bytes).map_err(|error| StorageError::new("hand-over", error))?;
        tx.delete_bytes(Table::Index, key);
        hand_over_from(tx, &at.within(&rest.tenant), &Resource::parse(&rest.resource).map_err(stored)?, rest.from, budget)?;
    }
    Ok(())
}

fn hand_over_from(tx: &mut impl Tx, at: &Stamp, resource: &Resource, from: Revision, budget: &mut usize) -> Result<(), StorageError> {
    let tenant = &at.caller.tenant;
    if waiting(tx, tenant)? == 0 {
        return Ok(());
    }
    let places = Places::of(Kind::WaiterByPath, tenant, resource);
    let mut candidates = Vec::new();
    for rows in places.meeting().chain(places.covered.as_ref().map(|(_, below)| below)) {
        let first = rows.clone().number(from.0);
        for (_, bytes) in tx.scan_bytes(Table::Index, first.as_bytes(), &rows.after_prefix(), Direction::Ascending, *budget + 1)? {
            candidates.push(decode(&bytes)?);
        }
    }
    candidates.sort_by_key(|place| place.since);
    for place in candidates {
        if *budget == 0 {
            postpone(tx, at, &resource.to_string(), place.since);
            return Ok(());
        }
        *budget -= 1;
        if place.deadline <= at.lease_now {
            continue;
        }
        let ticket = indexed(tx, tenant, &place.id)?;
        if identity::is_revoked(tx, tenant, &ticket.holder)? {
            // With no budget of its own: those behind it are looked at in the next entries.
            leave(tx, at, ticket, &mut 0)?;
            continue;
        }
        let wanted = Resource::parse(&ticket.resource).map_err(stored)?;
        if !is_blocked(tx, at, &wanted, &ticket)? {
            let card = super::grant(tx, at, &Ask::of(&ticket, wanted.clone()), ticket.since.0, Some(&ticket.id))?;
            close(tx, at, ticket, Fate::Granted { card: card.id })?;
        }
        if wanted.covers(resource) {
            // Granted or not, all that come after it want something that overlaps `resource`, and so `wanted`.
            return Ok(());
        }
    }
    Ok(())
}

fn is_blocked(view: &impl Read, at: &Stamp, wanted: &Resource, ticket: &Ticket) -> Result<bool, StorageError> {
    let held = Held { view, tenant: &ticket.tenant, now: at.lease_now };
    Ok(held.other(wanted, &ticket.holder)?.is_some()
        || earlier(view, &ticket.tenant, wanted, &ticket.holder, ticket.since, at.lease_now)?.is_some())
}

/// Ends waits whose time is over, and forgets tickets that nobody asks for any more.
pub(super) fn sweep(tx: &mut impl Tx, at: &Stamp, budget: &mut usize) -> Result<(), StorageError> {
    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::WaiterByDeadline, at.lease_now)? {
        let ticket = indexed(tx, &tenant, &id)?;
        if ticket.fate == Fate::Waiting {
            leave(tx, &at.within(&tenant), ticket, budget)?;
        } else {
            deadline::delete(tx, Kind::WaiterByDeadline, ticket.deadline, &tenant, &id);
            tx.delete(&ticket);
        }
    }
    Ok(())
}

/// The refusal of a spelling that was normal when it was stored: the rules or the bytes have changed since.
pub(super) fn stored(refusal: Refusal) -> StorageError {
    StorageError::new("stored resource", refusal)
}
