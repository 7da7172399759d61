//! Action traces: which tools a passport called, on what, how that ended and what it cost.
//!
//! A trace holds no arguments but names of entities, keys and resources, and none of those where it is reserved. Only its own
//! passport reads it. The calls that came over in one entry are one record, which ends as a whole.

use serde::{Deserialize, Serialize};

use super::{Ending, PassportTraces, check_tag};
use crate::cursor::Cursors;
use crate::flag;
use crate::identity::{check_name, check_name_start};
use crate::key::Key;
use crate::limit::{
    LIST_MAX, REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES, TRACE_EFFECTS_MAX, TRACE_SIGNATURE_BYTES_MAX, TRACES_PER_PASSPORT_MAX,
    TRACES_PER_TENANT_MAX,
};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, Principal, ReadStamp, Stamp};
use crate::tenant::Timed;
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::{codec, deadline};

/// One call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    pub tool: String,
    /// When it ended, in microseconds of the Unix epoch, by the gateway's clock.
    pub ts_us: u64,
    /// What the client says that the call belongs to.
    pub turn_id: Option<String>,
    pub session_id: Option<String>,
    pub effects: Vec<Effect>,
    /// `ok`, `refused`, `unavailable` or `fault`.
    pub outcome: String,
    /// The code of a call that did not succeed.
    pub code: Option<String>,
    pub duration_ms: u64,
    pub tokens_in: u64,
    pub tokens_out: u64,
    /// Whether the tool reads only.
    pub reads: bool,
    /// Tool and arguments without values, the same for all pages of one list: calls with the same one asked the same.
    pub signature: String,
}

/// What a call was expected to do, by its tool and its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// `fact_read`, `fact_write`, `forget`, `receipt_emit` or `tool_dispatch`.
    pub kind: String,
    pub entity: String,
    /// Empty where there is none.
    pub key: String,
}

impl Trace {
    /// Whether it is what a gateway makes: bounded in every part.
    pub(super) fn check(&self) -> Option<Refusal> {
        let over = |field: &str, size: usize, limit: usize, unit: &str| {
            (size > limit).then(|| Refusal::TooLong { field: field.into(), size: size as u64, limit: limit as u64, unit: unit.into() })
        };
        let effect = |effect: &Effect| check_name_start("entity", &effect.entity).or_else(|| check_name_start("key", &effect.key));
        check_name("tool", &self.tool)
            .or_else(|| check_tag("turn_id", self.turn_id.as_ref()))
            .or_else(|| check_tag("session_id", self.session_id.as_ref()))
            .or_else(|| over("effects", self.effects.len(), TRACE_EFFECTS_MAX, "entries"))
            .or_else(|| self.effects.iter().find_map(effect))
            .or_else(|| over("signature", self.signature.len(), TRACE_SIGNATURE_BYTES_MAX, "bytes"))
    }
}

/// Calls of one passport that came over together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    tenant: String,
    passport: String,
    batch: u64,
    deadline: LeaseTime,
    pub(super) traces: Vec<Trace>,
}

impl Record for Batch {
    const KIND: Kind = Kind::TraceBatch;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport).number(self.batch)
    }
}

impl Timed for Batch {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = to(self.deadline);
    }
}

/// What is kept of one passport, or under no name of the whole tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    tenant: String,
    passport: String,
    /// Where the next batch goes, and before which there is none any more.
    next: u64,
    first: u64,
    traces: u64,
    /// Calls that found no room, since there is anything of this passport.
    not_kept: u64,
}

impl Record for Kept {
    const KIND: Kind = Kind::TracesKept;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

/// The name of the whole tenant among [`Kept`]. No passport has it.
const TENANT: &str = "";

fn kept(view: &impl Read, tenant: &str, passport: &str) -> Result<Kept, StorageError> {
    let found: Option<Kept> = view.get(tenant, &Key::new().text(passport))?;
    Ok(found.unwrap_or_else(|| Kept { tenant: tenant.into(), passport: passport.into(), next: 0, first: 0, traces: 0, not_kept: 0 }))
}

/// Keeps the calls of one passport, in place of its oldest ones where there is no room.
pub(super) fn append(tx: &mut impl Tx, at: &Stamp, tenant: &str, of: PassportTraces) -> Result<(), StorageError> {
    let PassportTraces { passport, traces, not_kept } = of;
    let mut own = kept(tx, tenant, &passport)?;
    let mut whole = kept(tx, tenant, TENANT)?;
    own.not_kept = own.not_kept.saturating_add(not_kept);
    let more = traces.len() as u64;
    while own.traces > 0 && (own.traces + more > TRACES_PER_PASSPORT_MAX || whole.traces + more > TRACES_PER_TENANT_MAX) {
        let Some(oldest) = oldest(tx, &own)? else {
            return Err(StorageError::corrupt(format!("{} traces of `{passport}` are not there", own.traces)));
        };
        take_out(tx, &mut own, &mut whole, &oldest);
    }
    if whole.traces + more > TRACES_PER_TENANT_MAX {
        // Others have filled the tenant, and nothing of this passport is left that could make room.
        own.not_kept = own.not_kept.saturating_add(more);
    } else if more > 0 {
        let deadline = at.lease_now.plus_ms(flag::number(tx, flag::TOOL_TRACES_TTL)? * 1_000);
        let batch = Batch { tenant: tenant.into(), passport: passport.clone(), batch: own.next, deadline, traces };
        deadline::put(tx, Kind::MeasureByDeadline, deadline, tenant, &Ending::Traces { passport, batch: own.next }.id());
        tx.put(&batch);
        own.next += 1;
        own.traces += more;
        whole.traces += more;
    }
    tx.put(&own);
    tx.put(&whole);
    Ok(())
}

fn oldest(view: &impl Read, own: &Kept) -> Result<Option<Batch>, StorageError> {
    let prefix = Key::new().text(&own.passport);
    let from = kind_prefix(&own.tenant, Kind::TraceBatch).raw(prefix.as_bytes()).number(own.first);
    Ok(view.page::<Batch>(&own.tenant, &prefix, Some(from.as_bytes()), 1)?.items.pop())
}

fn take_out(tx: &mut impl Tx, own: &mut Kept, whole: &mut Kept, batch: &Batch) {
    let Batch { tenant, passport, batch: number, deadline, traces } = batch;
    deadline::delete(tx, Kind::MeasureByDeadline, *deadline, tenant, &Ending::Traces { passport: passport.clone(), batch: *number }.id());
    tx.delete(batch);
    own.traces -= traces.len() as u64;
    whole.traces -= traces.len() as u64;
    if own.first <= *number {
        own.first = number + 1;
    }
}

/// Ends a batch whose time is over.
pub(super) fn remove(tx: &mut impl Tx, tenant: &str, passport: &str, batch: u64) -> Result<(), StorageError> {
    let found: Option<Batch> = tx.get(tenant, &Key::new().text(passport).number(batch))?;
    let found = found.ok_or_else(|| StorageError::corrupt("a deadline points to traces that are not there"))?;
    let (mut own, mut whole) = (kept(tx, tenant, passport)?, kept(tx, tenant, TENANT)?);
    // A batch that was given a shorter life than those before it leaves before them.
    let first = own.first;
    take_out(tx, &mut own, &mut whole, &found);
    if batch > first {
        own.first = first;
    }
    for kept in [own, whole] {
        match kept.traces {
            0 => tx.delete(&kept),
            _ => tx.put(&kept),
        }
    }
    Ok(())
}

/// The caller's live batches, newest first, from before `batch` on; at most `limit`.
pub(super) fn newest(
    view: &impl Read,
    caller: &Principal,
    now: LeaseTime,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<Batch>, StorageError> {
    let prefix = kind_prefix(&caller.tenant, Kind::TraceBatch).text(&caller.passport);
    let to = match before {
        Some(before) => prefix.clone().number(before).into_bytes(),
        None => prefix.after_prefix(),
    };
    let rows = view.scan_bytes(Table::Records, prefix.as_bytes(), &to, Direction::Descending, limit)?;
    let decode = |(_, bytes): (Vec<u8>, Vec<u8>)| codec::decode::<Batch>(&bytes).map_err(|error| StorageError::new("traces", error));
    let batches: Vec<Batch> = rows.into_iter().map(decode).collect::<Result<_, _>>()?;
    Ok(batches.into_iter().filter(|batch| batch.deadline > now).collect())
}

/// Where a batch stands, for who reads on from it.
impl Batch {
    pub(super) fn number(&self) -> u64 {
        self.batch
    }
}

/// The caller's last calls, newest first. Of calls at two gateways, those that came over later are the newer ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentTraces {
    pub turn_id: Option<String>,
    pub top_k: u64,
    pub token_budget: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traces {
    pub traces: Vec<Trace>,
    /// Why there are more: `top_k`, `token_budget` or `reply_bytes`.
    pub truncated: Option<String>,
    pub next_cursor: Option<String>,
    /// Calls of the caller that found no room.
    pub not_kept: u64,
    /// False when traces are switched off.
    pub enabled: bool,
}

/// Bytes that a trace takes in a reply beside its own parts.
const TRACE_WRAPPER_BYTES: usize = 200;

impl Trace {
    fn reply_bytes(&self) -> usize {
        let effects = self.effects.iter().map(|effect| effect.kind.len() + json_bytes(&effect.entity) + json_bytes(&effect.key) + 70);
        let tags = self.turn_id.as_deref().map_or(0, json_bytes) + self.session_id.as_deref().map_or(0, json_bytes);
        TRACE_WRAPPER_BYTES + self.tool.len() + tags + effects.sum::<usize>()
    }
}

/// A text as JSON writes it.
pub(super) fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(0, |json| json.len())
}

/// Batches that one scan reads.
const BATCHES_PER_SCAN: usize = 64;

impl RecentTraces {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Traces> {
        if let Some(refusal) = check_tag("turn_id", self.turn_id.as_ref()) {
            return Ok(Err(refusal));
        }
        if !(1..=LIST_MAX as u64).contains(&self.top_k) {
            return Ok(Err(Refusal::invalid("top_k", format!("must be 1 to {LIST_MAX}, not {}", self.top_k))));
        }
        let cursors = Cursors::of("tool_traces", &at.caller, &self.turn_id);
        let start = match cursors.open_from(self.cursor.as_deref()) {
            Ok(start) => start.as_deref().and_then(read_position),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let not_kept = kept(view, &at.caller.tenant, &at.caller.passport)?.not_kept;
        let mut found = Traces { traces: Vec::new(), truncated: None, next_cursor: None, not_kept, enabled: true };
        if !flag::is_on(view, flag::TOOL_TRACES)? {
            return Ok(Ok(Traces { enabled: false, ..found }));
        }
        let asked = usize::try_from(self.token_budget.saturating_mul(4)).unwrap_or(usize::MAX);
        let (budget, why) = match asked < REPLY_BYTES_MAX {
            true => (asked, "token_budget"),
            false => (REPLY_BYTES_MAX, "reply_bytes"),
        };
        let mut bytes = REPLY_WRAPPER_BYTES;
        // The batch before which to go on, and how many of its first traces are still to be told.
        let (mut before, mut rest) = match start {
            Some((batch, rest)) => (batch.checked_add(1), Some((batch, rest))),
            None => (None, None),
        };
        loop {
            let batches = newest(view, &at.caller, at.lease_now, before, BATCHES_PER_SCAN)?;
            let Some(last) = batches.last().map(Batch::number) else { return Ok(Ok(found)) };
            for batch in batches {
                let number = batch.number();
                let told = rest.take().filter(|(of, _)| *of == number).map_or(batch.traces.len(), |(_, rest)| rest.min(batch.traces.len()));
                for (index, trace) in batch.traces.into_iter().enumerate().take(told).collect::<Vec<_>>().into_iter().rev() {
                    if self.turn_id.is_some() && trace.turn_id != self.turn_id {
                        continue;
                    }
                    let size = trace.reply_bytes();
                    let is_full = found.traces.len() as u64 == self.top_k;
                    if is_full || (!found.traces.is_empty() && bytes + size > budget) {
                        found.truncated = Some(if is_full { "top_k" } else { why }.into());
                        found.next_cursor = Some(cursors.seal(&position(number, index + 1)));
                        return Ok(Ok(found));
                    }
                    bytes += size;
                    found.traces.push(trace);
                }
            }
            before = Some(last);
        }
    }
}

fn position(batch: u64, rest: usize) -> Vec<u8> {
    Key::new().number(batch).number(rest as u64).into_bytes()
}

fn read_position(bytes: &[u8]) -> Option<(u64, usize)> {
    let (batch, rest) = bytes.split_at_checked(8)?;
    Some((u64::from_be_bytes(batch.try_into().ok()?), u64::from_be_bytes(rest.try_into().ok()?) as usize))
}
