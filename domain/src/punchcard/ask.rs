//! Asking for a card: taking it, renewing it, or queueing for it; and how a place in the queue stands.

use serde::{Deserialize, Serialize};

use super::held::Held;
use super::queue::{self, Fate, Ticket, stored};
use super::{Mode, Punchcard, deadlock, delay, grant, holder, indexed, not_this_card, renew};
use crate::flag;
use crate::identity::{check_name, check_text};
use crate::limit::{
    HAND_OVERS_PER_ENTRY, LEASE_TTL_MS_DEFAULT, LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN, LEASE_WAIT_MS_MAX, LOCK_DELAY_MS_MAX, TICKET_CLAIM_MS,
};
use crate::record::WriteRecords;
use crate::refusal::{Applied, Refusal};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Principal, ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};
use crate::{quota, space};

/// Takes the card of a resource, renews it for its present holder, or queues for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PunchIn {
    pub resource: String,
    /// Whom the caller says it is; must be the caller, or the caller needs the scope `punchcard:impersonate`.
    pub holder_passport: String,
    /// Must be the caller's tenant.
    pub tenant_id: Option<String>,
    pub mode: Option<Mode>,
    pub reason: Option<String>,
    pub ttl_ms: Option<u64>,
    /// The same as a length, from the entry's wall clock. Both given: refused unless only one is.
    pub expires_at: Option<UnixMs>,
    /// How long to stay in the queue when another holds it.
    pub wait_ms: Option<u64>,
    /// How long what it covers stays closed to others after the card is lost, by its time or by force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_delay_ms: Option<u64>,
    /// Somebody shows signs of life while it is queued, and takes the card when it comes (see [`AttendTicket`]). A caller that
    /// can die unseen says so; any other keeps its place, and its card, for as long as it asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attended: bool,
}

/// Granted, renewed, or queued.
#[expect(clippy::large_enum_variant, reason = "an answer is made once and encoded; a box would be one more thing to unwrap")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PunchedIn {
    Granted {
        card: Punchcard,
        renewed: bool,
        /// In advisory mode: who holds an overlapping card all the same.
        conflict: Option<Punchcard>,
    },
    Queued {
        ticket: String,
        /// Calls before this one that want an overlapping resource.
        ahead: u64,
        holder: String,
        held: String,
        left_ms: u64,
    },
    /// The ticket left the queue without a card: its time was over, or it was withdrawn.
    Left { ticket: String, resource: String, holder: Option<String> },
}

/// A call to punch in whose arguments have been checked.
pub(super) struct Ask {
    pub(super) resource: Resource,
    pub(super) holder: String,
    pub(super) mode: Option<Mode>,
    pub(super) reason: Option<String>,
    pub(super) ttl_ms: Option<u64>,
    pub(super) wait_ms: u64,
    pub(super) lock_delay_ms: Option<u64>,
    pub(super) attended: bool,
}

impl Ask {
    /// What a ticket asked for.
    pub(super) fn of(ticket: &Ticket, resource: Resource) -> Self {
        let Ticket { holder, mode, reason, ttl_ms, lock_delay_ms, .. } = ticket;
        Self {
            resource,
            holder: holder.clone(),
            mode: Some(*mode),
            reason: reason.clone(),
            ttl_ms: Some(*ttl_ms),
            wait_ms: 0,
            lock_delay_ms: *lock_delay_ms,
            attended: ticket.wait_until.is_some(),
        }
    }

    /// What another card was taken with, for someone else.
    pub(super) fn again(card: &Punchcard, resource: Resource, holder: &str) -> Self {
        Self {
            resource,
            holder: holder.into(),
            mode: Some(card.mode),
            reason: card.reason.clone(),
            ttl_ms: Some(card.ttl_ms),
            wait_ms: 0,
            lock_delay_ms: Some(card.lock_delay_ms),
            attended: false,
        }
    }

    pub(super) fn ttl_ms(&self) -> u64 {
        self.ttl_ms.unwrap_or(LEASE_TTL_MS_DEFAULT)
    }

    /// How long the card lasts at first: what an attended place gets is to be taken soon.
    pub(super) fn lasts_ms(&self) -> u64 {
        match self.attended {
            true => self.ttl_ms().min(TICKET_CLAIM_MS),
            false => self.ttl_ms(),
        }
    }
}

impl Ask {
    /// What a renewal changes of a card: all that was said, and nothing else.
    fn change(&self, card: &mut Punchcard) {
        card.ttl_ms = self.ttl_ms.unwrap_or(card.ttl_ms);
        card.mode = self.mode.unwrap_or(card.mode);
        card.reason = self.reason.clone().or(card.reason.take());
        card.lock_delay_ms = self.lock_delay_ms.unwrap_or(card.lock_delay_ms);
    }
}

impl PunchIn {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PunchedIn> {
        let rule = flag::value(tx, flag::PUNCHCARD)?;
        if rule == "off" {
            return Ok(Err(Refusal::FeatureOff { what: "punch_in".into(), flag: flag::PUNCHCARD.name.into() }));
        }
        let ask = match self.check(tx, at)? {
            Ok(ask) => ask,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let held = Held::now(&*tx, tenant, now);
        if let Some(hold) = held.on(&ask.resource)?.into_iter().find(|hold| hold.holder == ask.holder) {
            if at.under.is_some_and(|token| token != hold.token) {
                return Ok(Err(not_this_card(at, &ask.resource)));
            }
            let card = renew(tx, at, &hold.id, |card| ask.change(card))?;
            return Ok(Ok(PunchedIn::Granted { card, renewed: true, conflict: None }));
        }
        if at.under.is_some() {
            return Ok(Err(not_this_card(at, &ask.resource)));
        }
        let known = queue::own(tx, tenant, &ask.resource, &ask.holder)?;
        // Whoever is in the queue has been let in before.
        if known.is_none()
            && let Some(refusal) = space::refuse_growth(tx)?.map_or_else(|| quota::refuse_growth(tx, at), |refusal| Ok(Some(refusal)))?
        {
            return Ok(Err(refusal));
        }
        let before = known.as_ref().filter(|ticket| ticket.deadline > now).map_or(at.revision, |ticket| ticket.since);
        let conflict = match held.other(&ask.resource, &ask.holder)? {
            Some(hold) => Some(indexed(tx, tenant, &hold.id)?),
            None => None,
        };
        if rule == "enforce" {
            let blocker = match &conflict {
                Some(card) => Some(Blocker::holds(card, now)),
                None => match Blocker::settles(tx, tenant, &ask.resource, &ask.holder, now)? {
                    Some(blocker) => Some(blocker),
                    None => Blocker::waits(tx, at, &ask, before)?,
                },
            };
            if let Some(blocker) = blocker {
                return match ask.wait_ms {
                    0 => Ok(Err(blocker.refusal(&ask.resource, at.wall))),
                    _ => wait(tx, at, &ask, known, blocker),
                };
            }
        }
        // Granted here, the card is known to its caller from the answer.
        let ask = Ask { attended: false, ..ask };
        let card = grant(tx, at, &ask, 0, None)?;
        if let Some(ticket) = known {
            queue::close(tx, at, ticket.claimed(), Fate::Granted { card: card.id.clone() })?;
        }
        Ok(Ok(PunchedIn::Granted { card, renewed: false, conflict }))
    }

    fn check(self, view: &impl Read, at: &Stamp) -> Applied<Ask> {
        let holder = match holder(view, at, self.holder_passport, self.tenant_id.as_deref())? {
            Ok(holder) => holder,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let resource = match Resource::parse(&self.resource) {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = self.reason.as_deref().and_then(|reason| check_text("reason", reason)) {
            return Ok(Err(refusal));
        }
        let wait_ms = self.wait_ms.unwrap_or(0);
        if wait_ms > LEASE_WAIT_MS_MAX {
            return Ok(Err(Refusal::invalid("wait_ms", format!("must be 0 to {LEASE_WAIT_MS_MAX}, not {wait_ms}"))));
        }
        if let Some(delay_ms) = self.lock_delay_ms.filter(|delay_ms| *delay_ms > LOCK_DELAY_MS_MAX) {
            return Ok(Err(Refusal::invalid("lock_delay_ms", format!("must be 0 to {LOCK_DELAY_MS_MAX}, not {delay_ms}"))));
        }
        let ttl_ms = match (self.ttl_ms, self.expires_at) {
            (Some(_), Some(_)) => return Ok(Err(Refusal::invalid("expires_at_unix_ms", "can't be given with `ttl_ms`"))),
            (None, Some(_)) if wait_ms > 0 => {
                return Ok(Err(Refusal::invalid(
                    "expires_at_unix_ms",
                    "can't be given with `wait_ms`, because the grant may come late; use `ttl_ms`",
                )));
            }
            (None, Some(end)) => match end.0.checked_sub(at.wall.0) {
                Some(ttl_ms @ LEASE_TTL_MS_MIN..=LEASE_TTL_MS_MAX) => Some(ttl_ms),
                Some(ttl_ms) => {
                    let problem = format!("must be {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX} ms ahead of the cluster's clock, not {ttl_ms}");
                    return Ok(Err(Refusal::invalid("expires_at_unix_ms", problem)));
                }
                None => {
                    return Ok(Err(Refusal::invalid(
                        "expires_at_unix_ms",
                        format!("is in the past: the cluster's clock says {}", at.wall.0),
                    )));
                }
            },
            (Some(ttl_ms), None) if !(LEASE_TTL_MS_MIN..=LEASE_TTL_MS_MAX).contains(&ttl_ms) => {
                let problem = format!("must be {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX}, not {ttl_ms}");
                return Ok(Err(Refusal::invalid("ttl_ms", problem)));
            }
            (ttl_ms, None) => ttl_ms,
        };
        let Self { mode, reason, lock_delay_ms, attended, .. } = self;
        Ok(Ok(Ask { resource, holder, mode, reason, ttl_ms, wait_ms, lock_delay_ms, attended }))
    }
}

/// Queues, unless that would close a circle of waits.
fn wait(tx: &mut impl Tx, at: &Stamp, ask: &Ask, known: Option<Ticket>, blocker: Blocker) -> Applied<PunchedIn> {
    let ticket = match queue::join(tx, at, ask, known)? {
        Ok(ticket) => ticket,
        Err(refusal) => return Ok(Err(refusal)),
    };
    // One that waits already was looked at when it began to.
    if ticket.since == at.revision
        && let Some(circle) = deadlock::circle(tx, &ticket.tenant, &ticket.holder, at.lease_now)?
    {
        return Ok(Err(Refusal::Deadlock { resource: ticket.resource, circle }));
    }
    Ok(Ok(queued(tx, &ticket, at.lease_now, Some(blocker))?))
}
/// Why a card can't be had now.
struct Blocker {
    holder: String,
    on: String,
    left_ms: u64,
    what: Blocks,
}

enum Blocks {
    Held,
    /// Its holder lost it, and the delay is not over.
    Settling,
    Waiting,
}

impl Blocker {
    fn holds(card: &Punchcard, now: LeaseTime) -> Self {
        Self { holder: card.holder.clone(), on: card.resource.clone(), left_ms: now.ms_until(card.deadline), what: Blocks::Held }
    }

    /// A card that another lost a short while ago.
    fn settles(view: &impl Read, tenant: &str, resource: &Resource, holder: &str, now: LeaseTime) -> Result<Option<Self>, StorageError> {
        let Some(hold) = delay::other(view, tenant, resource, holder, now)? else { return Ok(None) };
        let on = indexed(view, tenant, &hold.id)?.resource;
        Ok(Some(Self { holder: hold.holder, on, left_ms: now.ms_until(hold.deadline), what: Blocks::Settling }))
    }

    /// Someone who came first, unless a card of the asker's own covers the resource already, so that he takes nothing new.
    fn waits(view: &impl Read, at: &Stamp, ask: &Ask, before: Revision) -> Result<Option<Self>, StorageError> {
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let Some(first) = queue::earlier(view, tenant, &ask.resource, &ask.holder, before, now)? else { return Ok(None) };
        if Held::now(view, tenant, now).covers(&ask.resource, &ask.holder)? {
            return Ok(None);
        }
        Self::waiting(view, tenant, &first, now).map(Some)
    }

    fn waiting(view: &impl Read, tenant: &str, first: &queue::Place, now: LeaseTime) -> Result<Self, StorageError> {
        let ticket = queue::indexed(view, tenant, &first.id)?;
        Ok(Self { left_ms: ticket.left_ms(now), holder: ticket.holder, on: ticket.resource, what: Blocks::Waiting })
    }

    fn refusal(self, resource: &Resource, wall: UnixMs) -> Refusal {
        let Self { holder, on: held, left_ms, what } = self;
        let expires_at_unix_ms = wall.0.saturating_add(left_ms);
        let (waiting, settling) = (matches!(what, Blocks::Waiting), matches!(what, Blocks::Settling));
        Refusal::Held { resource: resource.to_string(), held, holder, left_ms, expires_at_unix_ms, waiting, settling }
    }
}

/// Withdraws from the queue. If the card was granted meanwhile, answers the grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaveQueue {
    pub ticket: String,
}

impl LeaveQueue {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PunchedIn> {
        if let Some(refusal) = check_name("ticket", &self.ticket) {
            return Ok(Err(refusal));
        }
        let Some(mut ticket) = own_ticket(tx, &at.caller, &self.ticket)? else {
            return Ok(Err(Refusal::not_found("ticket", self.ticket)));
        };
        if ticket.fate == Fate::Waiting {
            ticket = queue::leave(tx, at, ticket, &mut { HAND_OVERS_PER_ENTRY })?;
        }
        Ok(Ok(standing(tx, &ticket, at.lease_now)?))
    }
}

/// Shows a sign of life for an attended place in the queue, and takes the card once it was granted: from then on it lasts as long
/// as was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttendTicket {
    pub ticket: String,
}

impl AttendTicket {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PunchedIn> {
        if let Some(refusal) = check_name("ticket", &self.ticket) {
            return Ok(Err(refusal));
        }
        let Some(mut ticket) = own_ticket(tx, &at.caller, &self.ticket)? else {
            return Ok(Err(Refusal::not_found("ticket", self.ticket)));
        };
        let now = at.lease_now;
        match (ticket.wait_until, ticket.fate.clone()) {
            (Some(until), Fate::Waiting) if ticket.deadline > now => queue::stay(tx, at, &mut ticket, Some(until), until)?,
            (Some(_), Fate::Granted { card }) if indexed(tx, &ticket.tenant, &card)?.is_live(now) => {
                renew(tx, at, &card, |_| {})?;
                ticket = ticket.claimed();
                tx.put(&ticket);
            }
            _ => {}
        }
        Ok(Ok(standing(tx, &ticket, now)?))
    }
}

/// How a ticket stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetTicket {
    pub ticket: String,
}

impl GetTicket {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PunchedIn> {
        if let Some(refusal) = check_name("ticket", &self.ticket) {
            return Ok(Err(refusal));
        }
        match own_ticket(view, &at.caller, &self.ticket)? {
            Some(ticket) => Ok(Ok(standing(view, &ticket, at.lease_now)?)),
            None => Ok(Err(Refusal::not_found("ticket", self.ticket))),
        }
    }
}

fn own_ticket(view: &impl Read, caller: &Principal, id: &str) -> Result<Option<Ticket>, StorageError> {
    let ticket = queue::ticket(view, &caller.tenant, id)?;
    Ok(ticket.filter(|ticket| ticket.holder == caller.passport || ticket.asked_by == caller.passport))
}

fn standing(view: &impl Read, ticket: &Ticket, now: LeaseTime) -> Result<PunchedIn, StorageError> {
    let Ticket { tenant, holder, .. } = ticket;
    let resource = Resource::parse(&ticket.resource).map_err(stored)?;
    let other = Held::now(view, tenant, now).other(&resource, holder)?;
    match &ticket.fate {
        // Nobody took it in time, so nobody may work under it.
        Fate::Granted { card } if ticket.wait_until.is_none() || indexed(view, tenant, card)?.is_live(now) => {
            let card = indexed(view, tenant, card)?.seen_at(now);
            Ok(PunchedIn::Granted { card, renewed: false, conflict: None })
        }
        Fate::Waiting if ticket.deadline > now => {
            let blocker = match other {
                Some(hold) => Some(Blocker::holds(&indexed(view, tenant, &hold.id)?, now)),
                None => match Blocker::settles(view, tenant, &resource, holder, now)? {
                    Some(blocker) => Some(blocker),
                    None => match queue::earlier(view, tenant, &resource, holder, ticket.since, now)? {
                        Some(first) => Some(Blocker::waiting(view, tenant, &first, now)?),
                        None => None,
                    },
                },
            };
            queued(view, ticket, now, blocker)
        }
        Fate::Waiting | Fate::Left | Fate::Granted { .. } => {
            Ok(PunchedIn::Left { ticket: ticket.id.clone(), resource: ticket.resource.clone(), holder: other.map(|hold| hold.holder) })
        }
    }
}

/// Without a blocker the ticket is next, and a coming entry grants it.
fn queued(view: &impl Read, ticket: &Ticket, now: LeaseTime, blocker: Option<Blocker>) -> Result<PunchedIn, StorageError> {
    let next = || Blocker { holder: ticket.holder.clone(), on: ticket.resource.clone(), left_ms: 0, what: Blocks::Waiting };
    let Blocker { holder, on: held, left_ms, .. } = blocker.unwrap_or_else(next);
    Ok(PunchedIn::Queued { ticket: ticket.id.clone(), ahead: queue::before(view, ticket, now)?.len() as u64, holder, held, left_ms })
}
