//! Punchcards: at most one holder per resource.
//!
//! A grant lasts until its holder punches out, an operator takes it away, or the lease clock reaches the deadline. Only log
//! entries move that clock, so a replay ends the same lease in the same entry. Invariants:
//! * While the flag says `enforce`, no two live cards of different holders overlap.
//! * A card is live while `deadline > lease_now`. A card whose time is over and that is not swept yet blocks nobody.
//! * A fencing token is the revision of its grant, and what an entry grants the same entry never ends; so the token rises from
//!   grant to grant.
//! * The holder is the authenticated principal, never a name from the arguments, unless the caller may act for others.
//! * Who waits is served in order (see [`queue`]), and no circle of waits comes about (see [`deadlock`]).

mod ask;
mod deadlock;
mod delay;
mod held;
mod look;
mod place;
mod queue;
mod reissue;
mod release;
mod revoked;
mod transfer;

use serde::{Deserialize, Serialize};

use crate::deadline::{self, Lapsed};
use crate::event;
use crate::identity::{check_caller, check_name, check_tenant};
use crate::key::Key;
use crate::limit::HAND_OVERS_PER_ENTRY;
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal, shown};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Principal, Revision, Stamp, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use ask::Ask;
pub use ask::{AttendTicket, GetTicket, LeaveQueue, PunchIn, PunchedIn};
pub use deadlock::Wait;
use held::Hold;
pub use look::{
    Blocked, BlockedList, CheckPunchcard, ListBlocked, ListPunchcards, PunchcardChecked, Punchcards, TokenVerified, VerifyToken,
};
use queue::stored;
pub(crate) use reissue::{all_held, reissue};
pub use release::{ForceRelease, PunchOut};
pub(crate) use revoked::end_all;
pub use transfer::{RenewPunchcards, Renewed, TransferPunchcard, Transferred};
pub(crate) use transfer::{check_all, hand_all};

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
    /// How long what it covers stays closed to others after it is lost (see [`delay`]).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lock_delay_ms: u64,
    /// Until when it keeps others out, the delay after it included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_until: Option<LeaseTime>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
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

fn text(bytes: &[u8]) -> Result<String, StorageError> {
    String::from_utf8(bytes.to_vec()).map_err(|error| StorageError::new("id in an index row", error))
}

// ------------------------------------------------------------------ the life of a card

/// Makes a card. `n` tells apart the cards of one entry, `ticket` is the one it was waited for with.
fn grant(tx: &mut impl Tx, at: &Stamp, ask: &Ask, n: u64, ticket: Option<&str>) -> Result<Punchcard, StorageError> {
    let id = at.new_id("pc", n);
    let lasts_ms = ask.lasts_ms();
    let mut card = Punchcard {
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
        deadline: at.lease_now.plus_ms(lasts_ms),
        acquired_at: at.wall,
        expires_at: UnixMs(at.wall.0.saturating_add(lasts_ms)),
        released_at: None,
        release_commit_sha: None,
        force_released_by: None,
        receipt_release: None,
        lock_delay_ms: ask.lock_delay_ms.unwrap_or(0),
        closed_until: None,
    };
    enter(tx, &mut card, &ask.resource)?;
    list(tx, &card);
    tx.put_index(by_resource(&card.tenant, &card.resource).raw(position(&card).as_bytes()), card.id.as_bytes());
    tx.put(&card);
    prove(tx, at, &card, "acquire", &card.receipt_acquire, Some(&card.holder), card.reason.as_deref())?;
    tell(tx, at, &card, "punchcard.granted", ticket)?;
    Ok(card)
}

/// Enters a held card where others find it, and where its end is looked for.
fn enter(tx: &mut impl Tx, card: &mut Punchcard, resource: &Resource) -> Result<(), StorageError> {
    held::add(tx, held::INDEX, &card.tenant, &Hold::of(card), resource)?;
    deadline::put(tx, Kind::PunchcardByDeadline, card.deadline, &card.tenant, &card.id);
    let lost = card.deadline;
    delay::begin(tx, card, resource, lost)
}

/// Takes a held card out. Its delay goes too, and is entered again if there is one to come.
fn withdraw(tx: &mut impl Tx, card: &mut Punchcard, resource: &Resource) -> Result<(), StorageError> {
    held::remove(tx, held::INDEX, &card.tenant, &Hold::of(card), resource)?;
    deadline::delete(tx, Kind::PunchcardByDeadline, card.deadline, &card.tenant, &card.id);
    delay::finish(tx, card, resource)
}

/// Moves the deadline of a card. The token stays: the holder's writes in flight must stay valid.
fn renew(tx: &mut impl Tx, at: &Stamp, id: &str, change: impl FnOnce(&mut Punchcard)) -> Result<Punchcard, StorageError> {
    let mut card = indexed(tx, &at.caller.tenant, id)?;
    let resource = Resource::parse(&card.resource).map_err(stored)?;
    withdraw(tx, &mut card, &resource)?;
    change(&mut card);
    card.deadline = at.lease_now.plus_ms(card.ttl_ms);
    card.expires_at = UnixMs(at.wall.0.saturating_add(card.ttl_ms));
    enter(tx, &mut card, &resource)?;
    tx.put(&card);
    tell(tx, at, &card, "punchcard.renewed", None)?;
    Ok(card)
}

/// How a card ends.
enum Ending {
    Released,
    Expired,
    Forced {
        by: String,
        reason: Option<String>,
    },
    /// Another card follows in the same entry, so that nobody who waits is looked at.
    Transferred,
}

/// Ends a card and hands its resource on.
fn end(tx: &mut impl Tx, at: &Stamp, mut card: Punchcard, ending: Ending, budget: &mut usize) -> Result<Punchcard, StorageError> {
    let resource = Resource::parse(&card.resource).map_err(stored)?;
    withdraw(tx, &mut card, &resource)?;
    unlist(tx, &card);
    match ending {
        Ending::Released | Ending::Transferred => {}
        Ending::Expired => {
            let lost = card.deadline;
            delay::begin(tx, &mut card, &resource, lost)?;
        }
        Ending::Forced { .. } => delay::begin(tx, &mut card, &resource, at.lease_now)?,
    }
    let is_handed_on = !matches!(ending, Ending::Transferred);
    let (status, kind, in_id, signer, reason) = match ending {
        Ending::Transferred => (Status::Released, "transfer", "transfer", Some(card.holder.clone()), None),
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
    if is_handed_on {
        queue::hand_over(tx, at, &resource, budget)?;
    }
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
    /// `acquire`, `release`, `transfer`, `expire`, `force_release`, or `reissue` for a new token after a restore.
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

impl Timed for Punchcard {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = to(self.deadline);
        // Whom it kept out was kept out elsewhere.
        self.closed_until = None;
    }
}

/// Ends a card that was held in another cluster, whose tenant came from there: by the next sweep, as one whose time is over. Its
/// delay begins now.
pub(crate) fn arrive(tx: &mut impl Tx, at: &Stamp, id: &str) -> Result<Result<(), String>, StorageError> {
    let card: Option<Punchcard> = tx.get(&at.caller.tenant, &Key::new().text(id))?;
    let Some(mut card) = card.filter(|card| card.status == Status::Held) else {
        return Ok(Err("hold the deadline of a card before the card".into()));
    };
    let resource = Resource::parse(&card.resource).map_err(stored)?;
    card.deadline = at.lease_now;
    enter(tx, &mut card, &resource)?;
    tx.put(&card);
    Ok(Ok(()))
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
    delay::sweep(tx, at, &mut budget)?;
    queue::sweep(tx, at, &mut budget)
}

#[cfg(test)]
mod tests;
