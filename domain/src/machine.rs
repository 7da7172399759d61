//! The path of one log entry through the rules.
//!
//! In this order: the lease clock moves, what has run out ends (a bounded number), the request id is looked up, the caller
//! and the card it acts under are checked, the command runs in an overlay of its own, and its answer is remembered. A
//! refusal drops the overlay, so that it leaves no write but its own answer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::key::Key;
use crate::limit::{ANSWER_AUTO_KEPT_MS, ANSWER_KEYED_KEPT_MS, ANSWERS_KEPT_MAX, LEASE_ADVANCE_MS_MAX, REQUEST_ID_BYTES_MAX};
use crate::overlay::Overlay;
use crate::quota::Counting;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::Refusal;
use crate::search::feed::Noting;
use crate::stamp::{LeaseTime, Principal, RequestId, Revision, Stamp, UnixMs};
use crate::tenant::Arrivals;
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::{
    approval, artefact, client, codec, coord, document, fact, handoff, identity, level, measure, notice, punchcard, quota, receipt,
    session, space,
};

/// What a leader puts into the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The leader's wall clock.
    pub wall: UnixMs,
    /// Time on the leader's suspend-aware clock since its last proposal in this term.
    pub advance_ms: u64,
    /// The term in which the leader stamped this; under another term the advance counts for nothing.
    pub stamped_term: u64,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "calls are the rule and ticks the exception; a box would cost each call an allocation")]
pub enum Body {
    /// Moves the lease clock of an idle cluster.
    Tick {},
    Call(Call),
}

/// One command with all that decides its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub caller: Principal,
    pub request: RequestId,
    /// The card that the call is made under.
    pub under: Option<Revision>,
    pub command: Command,
}

/// What the log decided of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The log index of the entry that had the effect: of the first sending, when this one was a retry.
    pub revision: Revision,
    /// CBOR of the command's output, or why it was refused.
    pub outcome: Result<Vec<u8>, Refusal>,
    pub replayed: bool,
}

/// The clocks of the state machine. One record, moved by every entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    pub lease_now: LeaseTime,
    pub wall: UnixMs,
    pub revision: Revision,
    /// Some tenant came from another cluster or has a quota. Said here, where every entry looks: the others need not look for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_terms: bool,
}

impl Record for Clock {
    const KIND: Kind = Kind::Clock;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

impl Clock {
    pub fn read(view: &(impl Read + ?Sized)) -> Result<Self, StorageError> {
        Ok(view.get(CLUSTER, &Key::new())?.unwrap_or_default())
    }

    /// From the next entry on, tenants are looked at for what is theirs alone.
    pub(crate) fn set_terms(tx: &mut impl Tx) -> Result<(), StorageError> {
        let clock = Self::read(tx)?;
        tx.put(&Self { has_terms: true, ..clock });
        Ok(())
    }
}

/// Applies one entry. `None` for a tick.
pub fn apply(tx: &mut impl Tx, revision: Revision, term: u64, entry: Entry) -> Result<Option<Decided>, StorageError> {
    let mut tx = Noting::new(tx);
    let clock = Clock::read(&tx)?;
    let mut counting = Counting::new(&mut tx, clock.has_terms)?;
    let decided = apply_noted(&mut counting, clock, revision, term, entry)?;
    counting.finish()?;
    tx.write_feed(revision)?;
    Ok(decided)
}

fn apply_noted<T: Tx>(
    tx: &mut Counting<'_, T>,
    mut clock: Clock,
    revision: Revision,
    term: u64,
    entry: Entry,
) -> Result<Option<Decided>, StorageError> {
    if revision <= clock.revision {
        return Err(StorageError::corrupt(format!("entry {revision} applied after {}", clock.revision)));
    }
    let before = clock.lease_now;
    if entry.stamped_term == term {
        clock.lease_now = clock.lease_now.plus_ms(entry.advance_ms.min(LEASE_ADVANCE_MS_MAX));
    }
    clock.wall = clock.wall.max(entry.wall);
    clock.revision = revision;
    tx.put(&clock);
    let arrivals = Arc::new(if clock.has_terms { Arrivals::read(tx)? } else { Arrivals::default() });
    let quotas = tx.quotas();
    let stamp = |caller: Principal, under| Stamp {
        under,
        quotas: Arc::clone(&quotas),
        ..Stamp::of(revision, clock.lease_now, clock.wall, caller, Arc::clone(&arrivals))
    };

    // Nothing new can have run out while the clock stood still, and most entries of a batch carry no advance.
    if clock.lease_now > before {
        let sweeper = stamp(identity::system(), None);
        punchcard::sweep(tx, &sweeper)?;
        approval::sweep(tx, &sweeper)?;
        session::sweep(tx, &sweeper)?;
        coord::sweep(tx, &sweeper)?;
        receipt::fill_trees(tx)?;
        handoff::sweep(tx, &sweeper)?;
        client::sweep(tx, &sweeper)?;
        notice::sweep(tx, &sweeper)?;
        measure::sweep(tx, &sweeper)?;
        document::sweep(tx)?;
        fact::sweep_forgotten(tx, &sweeper)?;
        artefact::sweep(tx, &sweeper)?;
    }

    match entry.body {
        Body::Tick {} => Ok(None),
        Body::Call(Call { caller, request, under, command }) => decide(tx, stamp(caller, under), request, command).map(Some),
    }
}

fn decide(tx: &mut impl Tx, at: Stamp, request: RequestId, command: Command) -> Result<Decided, StorageError> {
    let body_hash = *blake3::hash(&codec::encode(&(&command, at.under))).as_bytes();
    if let Some(decided) = recall(tx, &at, &request, body_hash)? {
        return Ok(decided);
    }
    let mut scratch = Overlay::new(&*tx);
    let refused = match refuse_caller(&scratch, &at)? {
        None => match level::refuse(&scratch, &command)? {
            None => match space::refuse(&scratch, &command)? {
                None => quota::refuse(&scratch, &at, &command)?,
                refused => refused,
            },
            refused => refused,
        },
        refused => refused,
    };
    let outcome = match refused {
        Some(refusal) => Err(refusal),
        None => command.apply(&mut scratch, &at)?,
    };
    let writes = scratch.into_writes();
    if outcome.is_ok() {
        for ((table, key), value) in writes {
            match value {
                Some(value) => tx.put_bytes(table, key, value),
                None => tx.delete_bytes(table, key),
            }
        }
    }
    remember(tx, &at, &request, body_hash, &outcome)?;
    Ok(Decided { revision: at.entry, outcome, replayed: false })
}

fn refuse_caller(view: &impl Read, at: &Stamp) -> Result<Option<Refusal>, StorageError> {
    if let Some(refusal) = at.refuse_arriving() {
        return Ok(Some(refusal));
    }
    if let Some(refusal) = identity::check_caller(view, &at.caller)? {
        return Ok(Some(refusal));
    }
    match at.under {
        Some(token) => punchcard::check_token(view, at, token),
        None => Ok(None),
    }
}

// ------------------------------------------------------------------ exactly once

/// A remembered answer. A refusal is remembered too: a late duplicate of a refused call must not succeed behind its caller.
#[derive(Serialize, Deserialize)]
struct Answer {
    tenant: String,
    keyed: bool,
    passport: String,
    request_id: String,
    body_hash: [u8; 32],
    revision: Revision,
    at: UnixMs,
    outcome: Result<Vec<u8>, Refusal>,
}

impl Record for Answer {
    const KIND: Kind = Kind::Answer;
    const TABLE: Table = Table::Dedup;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        answer_id(self.keyed, &self.passport, &self.request_id)
    }
}

fn answer_id(keyed: bool, passport: &str, request_id: &str) -> Key {
    Key::new().byte(keyed.into()).text(passport).text(request_id)
}

/// What is remembered of one tenant, for each of the two kinds of request id.
#[derive(Clone, Serialize, Deserialize)]
struct Floor {
    tenant: String,
    keyed: bool,
    /// Requests first sent at or before this may have been forgotten.
    forgotten_through: UnixMs,
    /// The revision of the last answer that was forgotten: where the oldest one kept is looked for, since a store has to step
    /// over what was deleted before it.
    forgotten_revision: Revision,
    kept: u64,
    /// Before this none is looked for that is too old.
    #[serde(default)]
    look_at: UnixMs,
}

impl Record for Floor {
    const KIND: Kind = Kind::AnswerFloor;
    const TABLE: Table = Table::Dedup;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().byte(self.keyed.into())
    }
}

fn floor(view: &impl Read, tenant: &str, keyed: bool) -> Result<Floor, StorageError> {
    let floor: Option<Floor> = view.get(tenant, &Key::new().byte(keyed.into()))?;
    Ok(floor.unwrap_or(Floor {
        tenant: tenant.into(),
        keyed,
        forgotten_through: UnixMs(0),
        forgotten_revision: Revision(0),
        kept: 0,
        look_at: UnixMs(0),
    }))
}

/// Requests that a tenant's callers first sent by then, elsewhere, are not run again here.
pub(crate) fn forget_before(tx: &mut impl Tx, tenant: &str, through: UnixMs) {
    for keyed in [false, true] {
        let tenant = tenant.to_owned();
        tx.put(&Floor { tenant, keyed, forgotten_through: through, forgotten_revision: Revision(0), kept: 0, look_at: UnixMs(0) });
    }
}

/// The first answer to this request id, or the reason why it can't be told; `None` when it is new.
fn recall(view: &impl Read, at: &Stamp, request: &RequestId, body_hash: [u8; 32]) -> Result<Option<Decided>, StorageError> {
    let refused = |refusal| Ok(Some(Decided { revision: at.entry, outcome: Err(refusal), replayed: false }));
    if request.id.is_empty() || request.id.len() > REQUEST_ID_BYTES_MAX {
        return refused(Refusal::invalid("idempotency_key", format!("must have 1 to {REQUEST_ID_BYTES_MAX} bytes")));
    }
    let id = answer_id(request.keyed, &at.caller.passport, &request.id);
    if let Some(answer) = view.get::<Answer>(&at.caller.tenant, &id)? {
        if answer.body_hash != body_hash {
            return refused(Refusal::RequestConflict { id: request.id.clone() });
        }
        return Ok(Some(Decided { revision: at.entry_of(answer.revision), outcome: answer.outcome, replayed: true }));
    }
    let floor = floor(view, &at.caller.tenant, request.keyed)?;
    let kept_ms = if request.keyed { ANSWER_KEYED_KEPT_MS } else { ANSWER_AUTO_KEPT_MS };
    // An id that is older than the retention is refused even where its answer can't have been forgotten yet, so that the
    // outcome depends on ages alone and not on how much was pruned.
    if request.issued_at <= floor.forgotten_through || request.issued_at.0.saturating_add(kept_ms) < at.wall.0 {
        return refused(Refusal::RequestTooOld { id: request.id.clone() });
    }
    Ok(None)
}

/// How many answers are forgotten by one entry: some together, since looking for them costs as much as all else of a small write.
const FORGOTTEN_TOGETHER: usize = 16;
/// How often those that are too old are looked for.
const LOOK_EVERY_MS: u64 = 1_000;

/// Keeps the answer, and forgets some that are too old or too many: faster than they come, and bounded per entry.
fn remember(
    tx: &mut impl Tx,
    at: &Stamp,
    request: &RequestId,
    body_hash: [u8; 32],
    outcome: &Result<Vec<u8>, Refusal>,
) -> Result<(), StorageError> {
    let tenant = &at.caller.tenant;
    let answer = Answer {
        tenant: tenant.clone(),
        keyed: request.keyed,
        passport: at.caller.passport.clone(),
        request_id: request.id.clone(),
        body_hash,
        revision: at.revision,
        at: at.wall,
        outcome: outcome.clone(),
    };
    let order = kind_prefix(tenant, Kind::AnswerOrder).byte(request.keyed.into());
    tx.put_bytes(Table::Dedup, order.number(at.revision.0).into_bytes(), answer.id().into_bytes());
    tx.put(&answer);

    let mut floor = floor(tx, tenant, request.keyed)?;
    floor.kept += 1;
    let kept_ms = if request.keyed { ANSWER_KEYED_KEPT_MS } else { ANSWER_AUTO_KEPT_MS };
    if at.wall >= floor.look_at || floor.kept >= ANSWERS_KEPT_MAX + FORGOTTEN_TOGETHER as u64 {
        let goes = |floor: &Floor, oldest: &Answer| floor.kept > ANSWERS_KEPT_MAX || oldest.at.0.saturating_add(kept_ms) < at.wall.0;
        // More of them are left to the entries that follow.
        if drop_oldest(tx, &mut floor, FORGOTTEN_TOGETHER, goes)? < FORGOTTEN_TOGETHER {
            floor.look_at = UnixMs(at.wall.0 + LOOK_EVERY_MS);
        }
    }
    tx.put(&floor);
    Ok(())
}

/// Drops the oldest answers of one kind as long as `goes` says so, at most `limit`; answers how many went.
fn drop_oldest(tx: &mut impl Tx, floor: &mut Floor, limit: usize, goes: impl Fn(&Floor, &Answer) -> bool) -> Result<usize, StorageError> {
    let order = kind_prefix(&floor.tenant, Kind::AnswerOrder).byte(floor.keyed.into());
    let from = order.clone().number(floor.forgotten_revision.0);
    let mut dropped = 0;
    for (order_key, id) in tx.scan_bytes(Table::Dedup, from.as_bytes(), &order.after_prefix(), Direction::Ascending, limit)? {
        let Some(oldest) = tx.get::<Answer>(&floor.tenant, &Key::new().raw(&id))? else {
            return Err(StorageError::corrupt("an answer's order row points nowhere"));
        };
        if !goes(floor, &oldest) {
            break;
        }
        floor.forgotten_through = floor.forgotten_through.max(oldest.at);
        floor.forgotten_revision = oldest.revision;
        floor.kept -= 1;
        tx.delete(&oldest);
        tx.delete_bytes(Table::Dedup, order_key);
        dropped += 1;
    }
    Ok(dropped)
}

/// Drops answers of a tenant up to one revision, since they can hold what was forgotten; answers how many went, `limit` at the
/// most. A repetition of such a request is refused from then on, as one whose answer was forgotten for its age.
pub(crate) fn drop_answers(tx: &mut impl Tx, tenant: &str, through: Revision, limit: usize) -> Result<usize, StorageError> {
    let mut dropped = 0;
    for keyed in [false, true] {
        let mut floor = floor(tx, tenant, keyed)?;
        let more = drop_oldest(tx, &mut floor, limit - dropped, |_, oldest| oldest.revision <= through)?;
        if more > 0 {
            tx.put(&floor);
        }
        dropped += more;
    }
    Ok(dropped)
}
