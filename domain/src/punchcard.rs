//! Punchcards: at most one holder per resource.
//!
//! A grant lasts until its holder punches out, an operator takes it away, or the lease clock reaches the deadline. Only log
//! entries move that clock, so a replay ends the same lease in the same entry. Invariants:
//! * While the flag says `enforce`, no two live cards of different holders overlap.
//! * A card is live while `deadline > lease_now`. A card whose time is over and that is not swept yet blocks nobody.
//! * A fencing token is the revision of its grant, and what an entry grants the same entry never ends; so the token rises from
//!   grant to grant.
//! * The holder is the authenticated principal, never a name from the arguments, unless the caller may act for others.
//! * Who waits is served in order (see [`queue`]).

mod held;
mod place;
mod queue;
mod reissue;
mod revoked;
mod waiters;

use serde::{Deserialize, Serialize};

use crate::cursor::Cursors;
use crate::deadline::{self, Lapsed};
use crate::event;
use crate::flag;
use crate::identity::{check_caller, check_name, check_tenant, check_text};
use crate::key::Key;
use crate::limit::{HAND_OVERS_PER_ENTRY, LEASE_TTL_MS_DEFAULT, LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN, LEASE_WAIT_MS_MAX};
use crate::query;
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal, shown};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Principal, ReadStamp, Revision, Stamp, Tier, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use held::{Held, Hold};
use queue::{Fate, Ticket, stored};
pub(crate) use reissue::{all_held, reissue};
pub(crate) use revoked::end_all;
pub use waiters::{ListWaiters, Waiter, Waiters};

/// What the holder means to do. Both exclude each other alike; it is told to those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Modify,
    Deploy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Status {
    // The numbers stand in keys and are never reused.
    Held = 0,
    Released = 1,
    Expired = 2,
    ForceReleased = 3,
}

impl Status {
    const ALL: [Status; 4] = [Status::Held, Status::Released, Status::Expired, Status::ForceReleased];

    pub fn word(self) -> &'static str {
        match self {
            Status::Held => "held",
            Status::Released => "released",
            Status::Expired => "expired",
            Status::ForceReleased => "force_released",
        }
    }
}

/// One grant, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Punchcard {
    pub id: String,
    pub tenant: String,
    /// The normal spelling.
    pub resource: String,
    pub mode: Mode,
    pub holder: String,
    pub status: Status,
    pub reason: Option<String>,
    /// The revision of the grant. A write under a lower token comes from a holder that lost the card.
    pub fencing_token: Revision,
    pub ttl_ms: u64,
    pub deadline: LeaseTime,
    pub acquired_at: UnixMs,
    /// The deadline as people's time, as it looked when the card was last granted or renewed.
    pub expires_at: UnixMs,
    pub receipt_acquire: String,
    pub released_at: Option<UnixMs>,
    pub release_commit_sha: Option<String>,
    pub force_released_by: Option<String>,
    pub receipt_release: Option<String>,
}

impl Record for Punchcard {
    const KIND: Kind = Kind::Punchcard;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.id)
    }
}

impl Punchcard {
    fn is_live(&self, now: LeaseTime) -> bool {
        self.status == Status::Held && self.deadline > now
    }

    /// As a reader sees it: a card whose time is over has expired, swept or not.
    fn seen_at(mut self, now: LeaseTime) -> Self {
        if self.status == Status::Held && !self.is_live(now) {
            self.status = Status::Expired;
        }
        self
    }
}

fn card(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Punchcard>, StorageError> {
    view.get(tenant, &Key::new().text(id))
}

/// The card that an index row points to.
fn indexed(view: &impl Read, tenant: &str, id: &str) -> Result<Punchcard, StorageError> {
    card(view, tenant, id)?.ok_or_else(|| StorageError::corrupt(format!("an index row points to no punchcard `{id}`")))
}

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
struct Ask {
    resource: Resource,
    holder: String,
    mode: Option<Mode>,
    reason: Option<String>,
    ttl_ms: Option<u64>,
    wait_ms: u64,
}

impl Ask {
    /// What a ticket asked for.
    fn of(ticket: &Ticket, resource: Resource) -> Self {
        let Ticket { holder, mode, reason, ttl_ms, .. } = ticket;
        Self { resource, holder: holder.clone(), mode: Some(*mode), reason: reason.clone(), ttl_ms: Some(*ttl_ms), wait_ms: 0 }
    }

    fn ttl_ms(&self) -> u64 {
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

/// In whose name a call acts: the caller's own, or another's if it may.
fn holder(view: &impl Read, at: &Stamp, claim: String, tenant: Option<&str>) -> Applied<String> {
    if let Some(refusal) = check_tenant(&at.caller, tenant) {
        return Ok(Err(refusal));
    }
    if claim == at.caller.passport {
        return Ok(Ok(claim));
    }
    if !at.caller.may("punchcard:impersonate") {
        let problem = format!(
            "`holder_passport` is not the caller, who is `{}`; acting for another needs the scope `punchcard:impersonate`",
            at.caller.passport
        );
        return Ok(Err(Refusal::Denied { problem }));
    }
    if let Some(refusal) = check_name("holder_passport", &claim) {
        return Ok(Err(refusal));
    }
    let other = Principal { passport: claim, ..at.caller.clone() };
    Ok(match check_caller(view, &other)? {
        Some(refusal) => Err(refusal),
        None => Ok(other.passport),
    })
}

fn not_this_card(at: &Stamp, resource: &Resource) -> Refusal {
    let token = at.under.unwrap_or_default();
    Refusal::StaleToken {
        problem: format!(
            "fencing token {token} is not that of a live card of `{}` on `{}`",
            at.caller.passport,
            shown(&resource.to_string())
        ),
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

/// Gives a card back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PunchOut {
    pub resource: String,
    pub holder_passport: String,
    pub tenant_id: Option<String>,
    pub release_commit_sha: Option<String>,
}

impl PunchOut {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Punchcard> {
        let holder = match holder(tx, at, self.holder_passport, self.tenant_id.as_deref())? {
            Ok(holder) => holder,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let resource = match Resource::parse(&self.resource) {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = self.release_commit_sha.as_deref().and_then(|sha| check_name("release_commit_sha", sha)) {
            return Ok(Err(refusal));
        }
        let held = Held { view: &*tx, tenant: &at.caller.tenant, now: at.lease_now };
        let own = held.on(&resource)?.into_iter().find(|hold| hold.holder == holder);
        // What this very entry granted from the queue, the caller did not hold when it called.
        let Some(hold) = own.filter(|hold| hold.token != at.revision) else {
            return not_held(tx, at, &resource, &holder).map(Err);
        };
        if at.under.is_some_and(|token| token != hold.token) {
            return Ok(Err(not_this_card(at, &resource)));
        }
        let card = indexed(tx, &at.caller.tenant, &hold.id)?;
        let card = Punchcard { release_commit_sha: self.release_commit_sha, ..card };
        end(tx, at, card, Ending::Released, &mut { HAND_OVERS_PER_ENTRY }).map(Ok)
    }
}

/// Why there is nothing to let go, and who holds it now or held it last.
fn not_held(view: &impl Read, at: &Stamp, resource: &Resource, holder: &str) -> Result<Refusal, StorageError> {
    let (tenant, now) = (&at.caller.tenant, at.lease_now);
    let asked = shown(&resource.to_string());
    if let Some(hold) = (Held { view, tenant, now }).other(resource, holder)? {
        let on = shown(&indexed(view, tenant, &hold.id)?.resource);
        let problem = format!("`{asked}` is not held by `{holder}`: `{}` holds `{on}` under token {}", hold.holder, hold.token);
        return Ok(Refusal::StaleToken { problem });
    }
    let history = by_resource(tenant, &resource.to_string());
    let last = view.scan_bytes(Table::Index, history.as_bytes(), &history.after_prefix(), Direction::Ascending, 1)?.pop();
    let Some((_, id)) = last else { return Ok(Refusal::not_found("punchcard", resource.to_string())) };
    let last = indexed(view, tenant, &text(&id)?)?.seen_at(now);
    let problem = match last.status {
        Status::Held => format!("`{asked}` was granted to `{holder}` only now, under token {}", last.fencing_token),
        status => format!("`{asked}` is not held by `{holder}`: the last card, of `{}`, is {}", last.holder, status.word()),
    };
    Ok(Refusal::StaleToken { problem })
}

/// Takes a card from its holder: an operator's act, with a reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForceRelease {
    pub punchcard_id: String,
    pub confirm: bool,
    pub reason: Option<String>,
    /// A claim: must be the caller.
    pub by_passport: Option<String>,
}

impl ForceRelease {
    /// Whether somebody may take another's card at all.
    pub fn is_for(caller: &Principal) -> bool {
        caller.may("admin") || caller.tier >= Tier::Operator
    }

    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Punchcard> {
        let caller = &at.caller;
        if !ForceRelease::is_for(caller) {
            return Ok(Err(Refusal::Denied { problem: "taking another's card needs the scope `admin` or the tier operator".into() }));
        }
        if self.by_passport.as_ref().is_some_and(|claim| *claim != caller.passport) {
            return Ok(Err(Refusal::Denied { problem: format!("`by_passport` is not the caller, who is `{}`", caller.passport) }));
        }
        if !self.confirm {
            return Ok(Err(Refusal::invalid("confirm", "must be true: this takes the card from its holder")));
        }
        if let Some(refusal) = check_name("punchcard_id", &self.punchcard_id)
            .or_else(|| self.reason.as_deref().and_then(|reason| check_text("reason", reason)))
        {
            return Ok(Err(refusal));
        }
        let Some(card) = card(tx, &caller.tenant, &self.punchcard_id)? else {
            return Ok(Err(Refusal::not_found("punchcard", self.punchcard_id)));
        };
        let found = match card.clone().seen_at(at.lease_now).status {
            Status::Held if card.fencing_token == at.revision => Some("granted only now"),
            Status::Held => None,
            ended => Some(ended.word()),
        };
        if let Some(found) = found {
            return Ok(Err(Refusal::Changed { what: "punchcard".into(), id: card.id, expected: "held".into(), found: found.into() }));
        }
        let by = caller.passport.clone();
        end(tx, at, card, Ending::Forced { by, reason: self.reason }, &mut { HAND_OVERS_PER_ENTRY }).map(Ok)
    }
}

/// May the caller (or `passport`) change this resource?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckPunchcard {
    pub resource: String,
    pub mode: Option<Mode>,
    pub passport: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PunchcardChecked {
    pub held_by_other: bool,
    pub enforce: bool,
    pub resource: String,
    /// The overlapping card of another, or else the passport's own.
    pub card: Option<Punchcard>,
    pub left_ms: Option<u64>,
}

impl CheckPunchcard {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PunchcardChecked> {
        let resource = match Resource::parse(&self.resource) {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = self.passport.as_deref().and_then(|passport| check_name("passport", passport)) {
            return Ok(Err(refusal));
        }
        let rule = flag::value(view, flag::PUNCHCARD)?;
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let passport = self.passport.as_ref().unwrap_or(&at.caller.passport);
        let held = Held { view, tenant, now };
        // Switched off, cards mean nothing to anybody.
        let hold = match rule == "off" {
            true => None,
            false => match held.other(&resource, passport)? {
                Some(other) => Some(other),
                None => held.overlapping(&resource, passport)?,
            },
        };
        let card = match &hold {
            Some(hold) => Some(indexed(view, tenant, &hold.id)?),
            None => None,
        };
        Ok(Ok(PunchcardChecked {
            held_by_other: hold.is_some_and(|hold| hold.holder != *passport),
            enforce: rule == "enforce",
            resource: resource.to_string(),
            left_ms: card.as_ref().map(|card| now.ms_until(card.deadline)),
            card,
        }))
    }
}

/// Cards of the caller's tenant, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListPunchcards {
    pub resource: Option<String>,
    pub holder_passport: Option<String>,
    pub tenant_id: Option<String>,
    pub status: Option<Status>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Punchcards {
    pub punchcards: Vec<Punchcard>,
    pub next_cursor: Option<String>,
}

impl ListPunchcards {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Punchcards> {
        let holder = self.holder_passport.as_deref();
        if let Some(refusal) =
            check_tenant(&at.caller, self.tenant_id.as_deref()).or_else(|| holder.and_then(|holder| check_name("holder_passport", holder)))
        {
            return Ok(Err(refusal));
        }
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let limit = match query::rows(self.limit) {
            Ok(limit) => limit,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let cursors = Cursors::of("punchcards", &at.caller, &(&self.resource, &self.holder_passport, self.status));
        let from = match self.cursor.as_deref().map(|cursor| cursors.open(cursor)).transpose() {
            Ok(from) => from.unwrap_or_default(),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let resource = match self.resource.as_deref().map(Resource::parse).transpose() {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let statuses = Status::ALL.into_iter().filter(|status| self.status.is_none_or(|wanted| wanted == *status));
        let orders: Vec<Key> = match (&resource, &self.holder_passport) {
            (Some(resource), _) => vec![by_resource(tenant, &resource.to_string())],
            (None, Some(holder)) => statuses.map(|status| by_holder(tenant, holder, status)).collect(),
            (None, None) => statuses.map(|status| by_status(tenant, status)).collect(),
        };
        let (ids, next) = match &resource {
            // The live cards of a resource are few and at hand, however long its history is.
            Some(resource) if self.status == Some(Status::Held) => {
                let holds = Held { view, tenant, now }.on(resource)?;
                (holds.into_iter().rev().map(|hold| hold.id).collect(), None)
            }
            _ => merge(view, &orders, &from, limit)?,
        };
        let mut punchcards = Vec::new();
        for id in ids {
            let card = indexed(view, tenant, &id)?.seen_at(now);
            let is_wanted = self.status.is_none_or(|status| card.status == status)
                && self.holder_passport.as_ref().is_none_or(|holder| card.holder == *holder);
            // A page can be short, or even empty, where filters meet; the cursor leads on.
            if is_wanted {
                punchcards.push(card);
            }
        }
        Ok(Ok(Punchcards { punchcards, next_cursor: next.map(|next| cursors.seal(&next)) }))
    }
}

// ------------------------------------------------------------------ orders of cards, newest first

// Each ends in the same position, so that one cursor fits all and several can be merged.

fn by_status(tenant: &str, status: Status) -> Key {
    kind_prefix(tenant, Kind::PunchcardByStatus).byte(status as u8)
}

fn by_holder(tenant: &str, holder: &str, status: Status) -> Key {
    kind_prefix(tenant, Kind::PunchcardByHolder).text(holder).byte(status as u8)
}

/// All cards that a resource ever had; those that ended stay here.
fn by_resource(tenant: &str, resource: &str) -> Key {
    kind_prefix(tenant, Kind::PunchcardByResource).text(resource)
}

fn position(card: &Punchcard) -> Key {
    Key::new().number_descending(card.fencing_token.0).text(&card.id)
}

/// The next ids of several orders, and where the page after begins.
fn merge(view: &impl Read, orders: &[Key], from: &[u8], limit: usize) -> Result<(Vec<String>, Option<Vec<u8>>), StorageError> {
    let mut rows = Vec::new();
    for order in orders {
        let first = order.clone().raw(from);
        for (key, id) in view.scan_bytes(Table::Index, first.as_bytes(), &order.after_prefix(), Direction::Ascending, limit + 1)? {
            rows.push((key[order.as_bytes().len()..].to_vec(), text(&id)?));
        }
    }
    rows.sort();
    let next = rows.get(limit).map(|(position, _)| position.clone());
    rows.truncate(limit);
    Ok((rows.into_iter().map(|(_, id)| id).collect(), next))
}

fn text(bytes: &[u8]) -> Result<String, StorageError> {
    String::from_utf8(bytes.to_vec()).map_err(|error| StorageError::new("id in an index row", error))
}

// ------------------------------------------------------------------ the life of a card

/// Makes a card. `n` tells apart the cards of one entry, `ticket` is the one it was waited for with.
fn grant(tx: &mut impl Tx, at: &Stamp, ask: &Ask, n: u64, ticket: Option<&str>) -> Result<Punchcard, StorageError> {
    let id = at.new_id("pc", n);
    let card = Punchcard {
        receipt_acquire: format!("rcx-punchcard:acquire:{id}"),
        id,
        tenant: at.caller.tenant.clone(),
        resource: ask.resource.to_string(),
        mode: ask.mode.unwrap_or(Mode::Modify),
        holder: ask.holder.clone(),
        status: Status::Held,
        reason: ask.reason.clone(),
        fencing_token: at.revision,
        ttl_ms: ask.ttl_ms(),
        deadline: at.lease_now.plus_ms(ask.ttl_ms()),
        acquired_at: at.wall,
        expires_at: UnixMs(at.wall.0.saturating_add(ask.ttl_ms())),
        released_at: None,
        release_commit_sha: None,
        force_released_by: None,
        receipt_release: None,
    };
    held::add(tx, &card, &ask.resource)?;
    list(tx, &card);
    tx.put_index(by_resource(&card.tenant, &card.resource).raw(position(&card).as_bytes()), card.id.as_bytes());
    deadline::put(tx, Kind::PunchcardByDeadline, card.deadline, &card.tenant, &card.id);
    tx.put(&card);
    prove(tx, at, &card, "acquire", &card.receipt_acquire, Some(&card.holder), card.reason.as_deref())?;
    tell(tx, at, &card, "punchcard.granted", ticket)?;
    Ok(card)
}

/// Moves the deadline of a card. The token stays: the holder's writes in flight must stay valid.
fn renew(tx: &mut impl Tx, at: &Stamp, ask: &Ask, hold: &Hold) -> Result<Punchcard, StorageError> {
    let mut card = indexed(tx, &at.caller.tenant, &hold.id)?;
    held::remove(tx, &card, &ask.resource)?;
    deadline::delete(tx, Kind::PunchcardByDeadline, card.deadline, &card.tenant, &card.id);
    card.ttl_ms = ask.ttl_ms.unwrap_or(card.ttl_ms);
    card.deadline = at.lease_now.plus_ms(card.ttl_ms);
    card.expires_at = UnixMs(at.wall.0.saturating_add(card.ttl_ms));
    card.mode = ask.mode.unwrap_or(card.mode);
    card.reason = ask.reason.clone().or(card.reason);
    held::add(tx, &card, &ask.resource)?;
    deadline::put(tx, Kind::PunchcardByDeadline, card.deadline, &card.tenant, &card.id);
    tx.put(&card);
    tell(tx, at, &card, "punchcard.renewed", None)?;
    Ok(card)
}

/// How a card ends.
enum Ending {
    Released,
    Expired,
    Forced { by: String, reason: Option<String> },
}

/// Ends a card and hands its resource on.
fn end(tx: &mut impl Tx, at: &Stamp, mut card: Punchcard, ending: Ending, budget: &mut usize) -> Result<Punchcard, StorageError> {
    let resource = Resource::parse(&card.resource).map_err(stored)?;
    held::remove(tx, &card, &resource)?;
    unlist(tx, &card);
    deadline::delete(tx, Kind::PunchcardByDeadline, card.deadline, &card.tenant, &card.id);
    let (status, kind, in_id, signer, reason) = match ending {
        Ending::Released => (Status::Released, "release", "release", Some(card.holder.clone()), None),
        Ending::Expired => (Status::Expired, "expire", "expire", None, None),
        Ending::Forced { by, reason } => (Status::ForceReleased, "force_release", "force-release", Some(by), reason),
    };
    let receipt_id = format!("rcx-punchcard:{in_id}:{}", card.id);
    card.status = status;
    card.released_at = Some(at.wall);
    card.force_released_by = signer.clone().filter(|_| status == Status::ForceReleased);
    card.receipt_release = Some(receipt_id.clone());
    list(tx, &card);
    tx.put(&card);
    prove(tx, at, &card, kind, &receipt_id, signer.as_deref(), reason.as_deref())?;
    tell(tx, at, &card, &format!("punchcard.{}", status.word()), None)?;
    queue::hand_over(tx, at, &resource, budget)?;
    Ok(card)
}

fn list(tx: &mut impl Tx, card: &Punchcard) {
    let position = position(card);
    tx.put_index(by_status(&card.tenant, card.status).raw(position.as_bytes()), card.id.as_bytes());
    tx.put_index(by_holder(&card.tenant, &card.holder, card.status).raw(position.as_bytes()), card.id.as_bytes());
}

fn unlist(tx: &mut impl Tx, card: &Punchcard) {
    let position = position(card);
    tx.delete_index(by_status(&card.tenant, card.status).raw(position.as_bytes()));
    tx.delete_index(by_holder(&card.tenant, &card.holder, card.status).raw(position.as_bytes()));
}

fn tell(tx: &mut impl Tx, at: &Stamp, card: &Punchcard, kind: &str, ticket: Option<&str>) -> Result<(), StorageError> {
    let mut about = serde_json::json!({
        "resource": card.resource,
        "holder": card.holder,
        "fencing_token": card.fencing_token,
        "expires_at_unix_ms": card.expires_at,
    });
    if let Some(ticket) = ticket {
        about["ticket"] = ticket.into();
    }
    event::emit(tx, at, kind, &card.id, about)
}

/// The body of a punchcard's receipts. What orders it among others stands in it: token, lease clock and revision.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    /// `acquire`, `release`, `expire`, `force_release`, or `reissue` for a new token after a restore.
    kind: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    punchcard_id: &'a str,
    resource: &'a str,
    mode: Mode,
    holder_passport: &'a str,
    fencing_token: Revision,
    ttl_ms: u64,
    deadline: LeaseTime,
    lease_now: LeaseTime,
    revision: Revision,
    made_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_passport: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    release_commit_sha: Option<&'a str>,
}

fn prove(
    tx: &mut impl Tx,
    at: &Stamp,
    card: &Punchcard,
    kind: &str,
    receipt_id: &str,
    signer: Option<&str>,
    reason: Option<&str>,
) -> Result<(), StorageError> {
    let body = receipt::body(&Body {
        schema: "quorate.receipt.punchcard.v1",
        kind,
        receipt_id,
        tenant_id: &card.tenant,
        punchcard_id: &card.id,
        resource: &card.resource,
        mode: card.mode,
        holder_passport: &card.holder,
        fencing_token: card.fencing_token,
        ttl_ms: card.ttl_ms,
        deadline: card.deadline,
        lease_now: at.lease_now,
        revision: at.revision,
        made_at: at.wall.to_rfc3339(),
        by_passport: signer,
        reason,
        release_commit_sha: card.release_commit_sha.as_deref(),
    });
    receipt::append(tx, at, receipt_id, body, signer)?;
    Ok(())
}

/// A call made under a card needs that card to be live and the caller's.
pub(crate) fn check_token(view: &impl Read, at: &Stamp, token: Revision) -> Result<Option<Refusal>, StorageError> {
    let Principal { tenant, passport, .. } = &at.caller;
    // One entry may grant several cards from the queue, in its sweep and its command, which then share a token.
    let cards = by_holder(tenant, passport, Status::Held).number_descending(token.0);
    for (_, id) in
        view.scan_bytes(Table::Index, cards.as_bytes(), &cards.after_prefix(), Direction::Ascending, HAND_OVERS_PER_ENTRY * 2 + 1)?
    {
        if indexed(view, tenant, &text(&id)?)?.is_live(at.lease_now) {
            return Ok(None);
        }
    }
    Ok(Some(Refusal::StaleToken { problem: format!("fencing token {token} is not that of a live card of `{passport}`") }))
}

/// Ends cards and tickets whose time is over, a bounded number, and hands freed resources to those who wait.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    let mut budget = HAND_OVERS_PER_ENTRY;
    queue::resume(tx, at, &mut budget)?;
    revoked::sweep(tx, at, &mut budget)?;
    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::PunchcardByDeadline, at.lease_now)? {
        let card = indexed(tx, &tenant, &id)?;
        end(tx, &at.within(&tenant), card, Ending::Expired, &mut budget)?;
    }
    queue::sweep(tx, at, &mut budget)
}

#[cfg(test)]
mod tests;
