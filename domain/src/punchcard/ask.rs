//! Asking for a card: taking it, renewing it, or queueing for it; and how a place in the queue stands.

use serde::{Deserialize, Serialize};

use super::held::Held;
use super::queue::{self, Fate, Ticket, stored};
use super::{Mode, Punchcard, grant, holder, indexed, not_this_card, renew};
use crate::flag;
use crate::identity::{check_name, check_text};
use crate::limit::{HAND_OVERS_PER_ENTRY, LEASE_TTL_MS_DEFAULT, LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN, LEASE_WAIT_MS_MAX};
use crate::refusal::{Applied, Refusal};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Principal, ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

/// Takes the card of a resource, renews it for its present holder, or queues for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

impl Ask {
    /// What a ticket asked for.
    pub(super) fn of(ticket: &Ticket, resource: Resource) -> Self {
        let Ticket { holder, mode, reason, ttl_ms, .. } = ticket;
        Self { resource, holder: holder.clone(), mode: Some(*mode), reason: reason.clone(), ttl_ms: Some(*ttl_ms), wait_ms: 0 }
    }

    pub(super) fn ttl_ms(&self) -> u64 {
        self.ttl_ms.unwrap_or(LEASE_TTL_MS_DEFAULT)
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
        let held = Held { view: &*tx, tenant, now };
        if let Some(hold) = held.on(&ask.resource)?.into_iter().find(|hold| hold.holder == ask.holder) {
            if at.under.is_some_and(|token| token != hold.token) {
                return Ok(Err(not_this_card(at, &ask.resource)));
            }
            let card = renew(tx, at, &ask, &hold)?;
            return Ok(Ok(PunchedIn::Granted { card, renewed: true, conflict: None }));
        }
        if at.under.is_some() {
            return Ok(Err(not_this_card(at, &ask.resource)));
        }
        let known = queue::own(tx, tenant, &ask.resource, &ask.holder)?;
        let before = known.as_ref().filter(|ticket| ticket.deadline > now).map_or(at.revision, |ticket| ticket.since);
        let conflict = match held.other(&ask.resource, &ask.holder)? {
            Some(hold) => Some(indexed(tx, tenant, &hold.id)?),
            None => None,
        };
        if rule == "enforce" {
            let blocker = match &conflict {
                Some(card) => Some(Blocker::holds(card, now)),
                None => Blocker::waits(tx, at, &ask, before)?,
            };
            if let Some(blocker) = blocker {
                if ask.wait_ms == 0 {
                    return Ok(Err(blocker.refusal(&ask.resource, at.wall)));
                }
                return match queue::join(tx, at, &ask, known)? {
                    Ok(ticket) => Ok(Ok(queued(tx, &ticket, now, Some(blocker))?)),
                    Err(refusal) => Ok(Err(refusal)),
                };
            }
        }
        let card = grant(tx, at, &ask, 0, None)?;
        if let Some(ticket) = known {
            queue::close(tx, at, ticket, Fate::Granted { card: card.id.clone() })?;
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
        Ok(Ok(Ask { resource, holder, mode: self.mode, reason: self.reason, ttl_ms, wait_ms }))
    }
}
/// Why a card can't be had now.
struct Blocker {
    holder: String,
    on: String,
    left_ms: u64,
    waiting: bool,
}

impl Blocker {
    fn holds(card: &Punchcard, now: LeaseTime) -> Self {
        Self { holder: card.holder.clone(), on: card.resource.clone(), left_ms: now.ms_until(card.deadline), waiting: false }
    }

    /// Someone who came first, unless a card of the asker's own covers the resource already, so that he takes nothing new.
    fn waits(view: &impl Read, at: &Stamp, ask: &Ask, before: Revision) -> Result<Option<Self>, StorageError> {
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let Some(first) = queue::earlier(view, tenant, &ask.resource, &ask.holder, before, now)? else { return Ok(None) };
        if (Held { view, tenant, now }).covers(&ask.resource, &ask.holder)? {
            return Ok(None);
        }
        Self::waiting(view, tenant, &first, now).map(Some)
    }

    fn waiting(view: &impl Read, tenant: &str, first: &queue::Place, now: LeaseTime) -> Result<Self, StorageError> {
        let ticket = queue::indexed(view, tenant, &first.id)?;
        Ok(Self { holder: ticket.holder, on: ticket.resource, left_ms: now.ms_until(ticket.deadline), waiting: true })
    }

    fn refusal(self, resource: &Resource, wall: UnixMs) -> Refusal {
        let Self { holder, on: held, left_ms, waiting } = self;
        let expires_at_unix_ms = wall.0.saturating_add(left_ms);
        Refusal::Held { resource: resource.to_string(), held, holder, left_ms, expires_at_unix_ms, waiting }
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
    let resource = Resource::parse(&ticket.resource).map_err(stored)?;
    let held = Held { view, tenant: &ticket.tenant, now };
    let other = held.other(&resource, &ticket.holder)?;
    match &ticket.fate {
        Fate::Granted { card } => {
            let card = indexed(view, &ticket.tenant, card)?.seen_at(now);
            Ok(PunchedIn::Granted { card, renewed: false, conflict: None })
        }
        Fate::Waiting if ticket.deadline > now => {
            let blocker = match other {
                Some(hold) => Some(Blocker::holds(&indexed(view, &ticket.tenant, &hold.id)?, now)),
                None => match queue::earlier(view, &ticket.tenant, &resource, &ticket.holder, ticket.since, now)? {
                    Some(first) => Some(Blocker::waiting(view, &ticket.tenant, &first, now)?),
                    None => None,
                },
            };
            queued(view, ticket, now, blocker)
        }
        Fate::Waiting | Fate::Left => {
            Ok(PunchedIn::Left { ticket: ticket.id.clone(), resource: ticket.resource.clone(), holder: other.map(|hold| hold.holder) })
        }
    }
}

/// Without a blocker the ticket is next, and a coming entry grants it.
fn queued(view: &impl Read, ticket: &Ticket, now: LeaseTime, blocker: Option<Blocker>) -> Result<PunchedIn, StorageError> {
    let next = || Blocker { holder: ticket.holder.clone(), on: ticket.resource.clone(), left_ms: 0, waiting: true };
    let Blocker { holder, on: held, left_ms, .. } = blocker.unwrap_or_else(next);
    Ok(PunchedIn::Queued { ticket: ticket.id.clone(), ahead: queue::ahead(view, ticket, now)?, holder, held, left_ms })
}
