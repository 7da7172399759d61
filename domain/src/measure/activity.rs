//! Activity: the journal of a session, in the order in which it was written.
//!
//! Clients write turns into it (questions, answers, reasoning), and every call of a tool that names a session leaves a row by
//! itself. Invariants:
//! * `seq` is one more than that of the last row of the session in its tenant that is kept.
//! * A row of a call, and a private one, is read by its passport alone; any other by its tenant.
//! * A session keeps its last [`ACTIVITY_ROWS_MAX`] rows, and each until its deadline.

use serde::{Deserialize, Serialize};

use super::trace::{Trace, json_bytes};
use super::{Ending, check_tag};
use crate::cursor::Cursors;
use crate::fact::{Confidence, is_reserved};
use crate::flag;
use crate::identity::{check_name, check_tenant};
use crate::key::Key;
use crate::limit::{
    ACTIVITY_PREVIEW_BYTES_MAX, ACTIVITY_REFS_MAX, ACTIVITY_ROWS_MAX, ACTIVITY_TEXT_BYTES_MAX, ACTIVITY_TOKENS_DEFAULT, REPLY_BYTES_MAX,
    REPLY_WRAPPER_BYTES,
};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, Principal, ReadStamp, Stamp, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::{codec, deadline};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivityKind {
    Question,
    Answer,
    Reasoning,
    Command,
    Fact,
    Execplan,
    Handoff,
    Error,
}

impl ActivityKind {
    pub const ALL: [ActivityKind; 8] = [
        ActivityKind::Question,
        ActivityKind::Answer,
        ActivityKind::Reasoning,
        ActivityKind::Command,
        ActivityKind::Fact,
        ActivityKind::Execplan,
        ActivityKind::Handoff,
        ActivityKind::Error,
    ];

    pub fn word(self) -> &'static str {
        match self {
            ActivityKind::Question => "question",
            ActivityKind::Answer => "answer",
            ActivityKind::Reasoning => "reasoning",
            ActivityKind::Command => "command",
            ActivityKind::Fact => "fact",
            ActivityKind::Execplan => "execplan",
            ActivityKind::Handoff => "handoff",
            ActivityKind::Error => "error",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// Of a call, by how it ended and by its tool.
    fn of(trace: &Trace) -> Self {
        let about = |word: &str| trace.tool.contains(word);
        match trace.outcome.as_str() {
            "ok" if about("handoff") => Self::Handoff,
            "ok" if about("execplan") => Self::Execplan,
            "ok" if trace.effects.iter().any(|effect| effect.kind.starts_with("fact_")) => Self::Fact,
            "ok" => Self::Command,
            _ => Self::Error,
        }
    }
}

/// One row, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Activity {
    tenant: String,
    session: String,
    seq: u64,
    turn_id: String,
    kind: ActivityKind,
    passport: String,
    /// Its passport alone reads it.
    private: bool,
    at: UnixMs,
    text: String,
    intent: Option<String>,
    tool: Option<String>,
    confidence: Option<Confidence>,
    fact_refs: Vec<String>,
    receipt_ids: Vec<String>,
    deadline: LeaseTime,
}

impl Record for Activity {
    const KIND: Kind = Kind::Activity;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        row_key(&self.session, self.seq)
    }
}

impl Timed for Activity {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = to(self.deadline);
    }
}

fn row_key(session: &str, seq: u64) -> Key {
    Key::new().text(session).number(seq)
}

/// Where a turn is, by its id.
fn turn_key(tenant: &str, turn_id: &str) -> Key {
    kind_prefix(tenant, Kind::Activity).text(turn_id)
}

impl Activity {
    fn is_seen_by(&self, caller: &Principal, now: LeaseTime) -> bool {
        self.deadline > now && (!self.private || self.passport == caller.passport)
    }

    fn deadline_id(&self) -> String {
        Ending::Activity { session: self.session.clone(), seq: self.seq }.id()
    }

    fn row(self) -> ActivityRow {
        let preview = preview(&self.text);
        let Self { turn_id, seq, at, kind, passport, intent, tool, confidence, fact_refs, receipt_ids, .. } = self;
        ActivityRow { turn_id, seq, at, kind, passport, intent, tool, confidence, fact_refs, receipt_ids, preview }
    }
}

/// The beginning of a text on one line, without names that are reserved.
fn preview(text: &str) -> String {
    let mut shown = String::new();
    for word in text.split_whitespace() {
        let word = if is_reserved(word.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '_')) { "[reserved]" } else { word };
        if !shown.is_empty() {
            shown.push(' ');
        }
        shown.extend(word.chars().filter(|c| !c.is_control()));
        if shown.len() > ACTIVITY_PREVIEW_BYTES_MAX {
            let end = (0..=ACTIVITY_PREVIEW_BYTES_MAX).rev().find(|&end| shown.is_char_boundary(end)).unwrap_or(0);
            shown.truncate(end);
            shown.push('…');
            break;
        }
    }
    shown
}

/// Writes a turn into the journal of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppendActivity {
    pub session_id: String,
    pub kind: ActivityKind,
    pub text: String,
    pub private: bool,
    pub intent: Option<String>,
    pub tool: Option<String>,
    pub confidence: Option<Confidence>,
    pub fact_refs: Vec<String>,
    pub receipt_ids: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivityAppended {
    pub turn_id: String,
    pub seq: u64,
}

impl AppendActivity {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ActivityAppended> {
        if let Some(refusal) = flag::refuse_off(tx, flag::ACTIVITY_LOG, "the activity log")?.or_else(|| self.check()) {
            return Ok(Err(refusal));
        }
        let Self { session_id, kind, text, private, intent, tool, confidence, fact_refs, receipt_ids } = self;
        let Principal { tenant, passport, .. } = at.caller.clone();
        let activity = Activity {
            tenant,
            session: session_id,
            seq: 0,
            turn_id: String::new(),
            kind,
            passport,
            private,
            at: at.wall,
            text,
            intent,
            tool,
            confidence,
            fact_refs,
            receipt_ids,
            deadline: LeaseTime(0),
        };
        append(tx, at, activity).map(Ok)
    }

    fn check(&self) -> Option<Refusal> {
        let over = |field: &str, size: usize, limit: usize, unit: &str| {
            (size > limit).then(|| Refusal::TooLong { field: field.into(), size: size as u64, limit: limit as u64, unit: unit.into() })
        };
        let refs = |field: &str, refs: &[String]| {
            over(field, refs.len(), ACTIVITY_REFS_MAX, "entries").or_else(|| refs.iter().find_map(|id| check_name(field, id)))
        };
        let empty = || Refusal::invalid("text", "must not be empty");
        check_name("session_id", &self.session_id)
            .or_else(|| self.text.trim().is_empty().then(empty))
            .or_else(|| over("text", self.text.len(), ACTIVITY_TEXT_BYTES_MAX, "bytes"))
            .or_else(|| check_tag("intent", self.intent.as_ref()))
            .or_else(|| check_tag("tool", self.tool.as_ref()))
            .or_else(|| refs("fact_refs", &self.fact_refs))
            .or_else(|| refs("receipt_ids", &self.receipt_ids))
    }
}

/// The row that a call leaves, if it names a session.
pub(super) fn append_call(tx: &mut impl Tx, at: &Stamp, tenant: &str, passport: &str, trace: &Trace) -> Result<(), StorageError> {
    let Some(session) = trace.session_id.clone().filter(|session| check_name("session_id", session).is_none()) else { return Ok(()) };
    let effects = trace.effects.iter().map(|effect| format!(" {} {}", effect.entity, effect.key));
    let text = format!("{}{} ({}, {} ms)", trace.tool, effects.collect::<String>().trim_end(), trace.outcome, trace.duration_ms);
    let activity = Activity {
        tenant: tenant.into(),
        session,
        seq: 0,
        turn_id: String::new(),
        kind: ActivityKind::of(trace),
        passport: passport.into(),
        private: true,
        at: UnixMs(trace.ts_us / 1_000),
        text,
        intent: None,
        tool: Some(trace.tool.clone()),
        confidence: None,
        fact_refs: Vec::new(),
        receipt_ids: Vec::new(),
        deadline: LeaseTime(0),
    };
    append(tx, at, activity).map(|_| ())
}

/// Gives a row its place and its end, and takes the oldest one out when the session is full.
fn append(tx: &mut impl Tx, at: &Stamp, mut activity: Activity) -> Result<ActivityAppended, StorageError> {
    let (tenant, session) = (activity.tenant.clone(), activity.session.clone());
    let all = kind_prefix(&tenant, Kind::Activity).text(&session);
    let last = tx.scan_bytes(Table::Records, all.as_bytes(), &all.after_prefix(), Direction::Descending, 1)?.pop();
    let last =
        last.map(|(_, bytes)| codec::decode::<Activity>(&bytes)).transpose().map_err(|error| StorageError::new("activity", error))?;
    activity.seq = last.map_or(1, |last| last.seq + 1);
    // One entry may write into several sessions, so the place tells its ids apart.
    let place = blake3::hash(row_key(&session, activity.seq).as_bytes());
    let n = place.as_bytes()[..8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    activity.turn_id = at.within(&tenant).new_id("act", n);
    activity.deadline = at.lease_now.plus_ms(flag::number(tx, flag::ACTIVITY_LOG_TTL)?.saturating_mul(1_000));
    if let Some(oldest) = activity.seq.checked_sub(ACTIVITY_ROWS_MAX).filter(|seq| *seq > 0)
        && let Some(oldest) = tx.get::<Activity>(&tenant, &row_key(&session, oldest))?
    {
        take_out(tx, &oldest);
    }
    deadline::put(tx, Kind::MeasureByDeadline, activity.deadline, &tenant, &activity.deadline_id());
    tx.put_index(turn_key(&tenant, &activity.turn_id), &codec::encode(&(&session, activity.seq)));
    tx.put(&activity);
    Ok(ActivityAppended { turn_id: activity.turn_id, seq: activity.seq })
}

fn take_out(tx: &mut impl Tx, activity: &Activity) {
    deadline::delete(tx, Kind::MeasureByDeadline, activity.deadline, &activity.tenant, &activity.deadline_id());
    tx.delete_index(turn_key(&activity.tenant, &activity.turn_id));
    tx.delete(activity);
}

/// Ends a row whose time is over.
pub(super) fn remove(tx: &mut impl Tx, tenant: &str, session: &str, seq: u64) -> Result<(), StorageError> {
    let found: Option<Activity> = tx.get(tenant, &row_key(session, seq))?;
    let found = found.ok_or_else(|| StorageError::corrupt("a deadline points to an activity that is not there"))?;
    take_out(tx, &found);
    Ok(())
}

/// A row as readers see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivityRow {
    pub turn_id: String,
    pub seq: u64,
    pub at: UnixMs,
    pub kind: ActivityKind,
    pub passport: String,
    pub intent: Option<String>,
    pub tool: Option<String>,
    pub confidence: Option<Confidence>,
    pub fact_refs: Vec<String>,
    pub receipt_ids: Vec<String>,
    pub preview: String,
}

/// Bytes that a row takes in a reply beside its texts.
const ROW_WRAPPER_BYTES: usize = 220;

impl ActivityRow {
    fn reply_bytes(&self) -> usize {
        let texts = [&self.intent, &self.tool].into_iter().flatten().chain(&self.fact_refs).chain(&self.receipt_ids);
        ROW_WRAPPER_BYTES + json_bytes(&self.preview) + json_bytes(&self.passport) + texts.map(|text| json_bytes(text) + 1).sum::<usize>()
    }
}

/// What happened in a session, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentActivity {
    pub session_id: String,
    /// A claim: must be the caller's tenant.
    pub tenant_id: Option<String>,
    /// Rows whose `seq` is greater.
    pub since: u64,
    /// Rows of these kinds; none: of all.
    pub kinds: Vec<ActivityKind>,
    /// 0 is the default.
    pub token_budget: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentActivities {
    pub rows: Vec<ActivityRow>,
    /// The budget that was applied.
    pub token_budget: u64,
    pub truncated: bool,
    pub next_cursor: Option<String>,
    pub enabled: bool,
}

/// Rows that one scan reads.
const ROWS_PER_SCAN: usize = 100;

impl RecentActivity {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<RecentActivities> {
        let token_budget = if self.token_budget == 0 { ACTIVITY_TOKENS_DEFAULT } else { self.token_budget };
        let mut found = RecentActivities { rows: Vec::new(), token_budget, truncated: false, next_cursor: None, enabled: true };
        let (tenant, caller) = (&at.caller.tenant, &at.caller);
        if let Some(refusal) = check_name("session_id", &self.session_id).or_else(|| check_tenant(caller, self.tenant_id.as_deref())) {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("activity", caller, &(&self.session_id, self.since, &self.kinds));
        let start = match cursors.open_from(self.cursor.as_deref()) {
            Ok(start) => start.and_then(|bytes| Some(u64::from_be_bytes(bytes.try_into().ok()?))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !flag::is_on(view, flag::ACTIVITY_LOG)? {
            return Ok(Ok(RecentActivities { enabled: false, ..found }));
        }
        let budget = usize::try_from(token_budget.saturating_mul(4)).unwrap_or(usize::MAX).min(REPLY_BYTES_MAX);
        let mut bytes = REPLY_WRAPPER_BYTES;
        let session = kind_prefix(tenant, Kind::Activity).text(&self.session_id);
        let from = session.clone().number(self.since.saturating_add(1));
        let mut to = start.map_or_else(|| session.after_prefix(), |before| session.clone().number(before).into_bytes());
        loop {
            if from.as_bytes() >= to.as_slice() {
                return Ok(Ok(found));
            }
            let rows = view.scan_bytes(Table::Records, from.as_bytes(), &to, Direction::Descending, ROWS_PER_SCAN)?;
            let Some((last, _)) = rows.last() else { return Ok(Ok(found)) };
            to = last.clone();
            for (_, bytes_of_row) in rows {
                let activity: Activity = codec::decode(&bytes_of_row).map_err(|error| StorageError::new("activity", error))?;
                let is_wanted = self.kinds.is_empty() || self.kinds.contains(&activity.kind);
                if !is_wanted || !activity.is_seen_by(caller, at.lease_now) {
                    continue;
                }
                let row = activity.row();
                let size = row.reply_bytes();
                if !found.rows.is_empty() && bytes + size > budget {
                    found.truncated = true;
                    found.next_cursor = Some(cursors.seal(&(row.seq + 1).to_be_bytes()));
                    return Ok(Ok(found));
                }
                bytes += size;
                found.rows.push(row);
            }
        }
    }
}

/// One turn, with its whole text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetActivityTurn {
    pub turn_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivityTurn {
    pub session_id: String,
    pub row: ActivityRow,
    pub text: String,
}

impl GetActivityTurn {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ActivityTurn> {
        if let Some(refusal) =
            flag::refuse_off(view, flag::ACTIVITY_LOG, "the activity log")?.or_else(|| check_name("turn_id", &self.turn_id))
        {
            return Ok(Err(refusal));
        }
        let none = || Ok(Err(Refusal::not_found("turn", &self.turn_id)));
        let Some(place) = view.get_bytes(Table::Index, turn_key(&at.caller.tenant, &self.turn_id).as_bytes())? else { return none() };
        let (session, seq): (String, u64) = codec::decode(&place).map_err(|error| StorageError::new("place of a turn", error))?;
        let found: Option<Activity> = view.get(&at.caller.tenant, &row_key(&session, seq))?;
        let found = found.ok_or_else(|| StorageError::corrupt(format!("a row points to no turn `{}`", self.turn_id)))?;
        if !found.is_seen_by(&at.caller, at.lease_now) {
            return none();
        }
        Ok(Ok(ActivityTurn { session_id: session, text: found.text.clone(), row: found.row() }))
    }
}
