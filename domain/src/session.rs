//! Sessions: an agent's saved working state, by a name of its own choosing.
//!
//! A session belongs to one passport; others neither see its name nor meet it when they use the same one. Its state is a JSON
//! object, kept as sent. Invariants:
//! * One session of each (tenant, passport, session id); a save replaces the whole state, and its `ttl_ms` the end set before.
//! * A session is there while its deadline lies after the lease clock. Reads and writes check that themselves, so an expired
//!   one is gone in the entry that reaches its deadline; the sweep only frees its space.
//! * `revision` is that of the last change of the session, archiving included; `updated_at` is when its state was saved.
//!
//! Decisions: saving over an archived session keeps it archived, which the reply says; archiving twice keeps the later reason.
//! Events name the passport and a digest in place of the session id, which is nobody else's business. A title is read out of the
//! state when it is asked for, so that it follows the state and older sessions have one too.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cursor::Cursors;
use crate::fact::json_text_bytes;
use crate::identity::{check_name, check_text};
use crate::key::Key;
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES, SCAN_ROWS_MAX, STATE_BYTES_MAX, STATE_DEPTH_MAX};
use crate::line::line;
use crate::passport::merged_into;
use crate::query::rows;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, Principal, ReadStamp, Revision, Stamp, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Read, StorageError, Tx};
use crate::{deadline, event};

/// All of a session but its state, so that lists read no states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Session {
    tenant: String,
    passport: String,
    session_id: String,
    updated_at: UnixMs,
    total_tokens: u64,
    archived: bool,
    archive_reason: Option<String>,
    /// Who saved the state.
    actor: String,
    revision: Revision,
    /// The session is gone from then on; `None` is never.
    deadline: Option<LeaseTime>,
}

impl Record for Session {
    const KIND: Kind = Kind::Session;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        session_key(&self.passport, &self.session_id)
    }
}

impl Timed for Session {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = self.deadline.map(to);
    }
}

/// The state as compact JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    tenant: String,
    passport: String,
    session_id: String,
    json: String,
}

impl Record for State {
    const KIND: Kind = Kind::SessionState;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        session_key(&self.passport, &self.session_id)
    }
}

fn session_key(passport: &str, session_id: &str) -> Key {
    Key::new().text(passport).text(session_id)
}

impl Session {
    fn is_live(&self, now: LeaseTime) -> bool {
        self.deadline.is_none_or(|deadline| deadline > now)
    }

    /// Its name among deadlines.
    fn deadline_id(&self) -> String {
        json!([self.passport, self.session_id]).to_string()
    }

    fn state(&self, view: &impl Read) -> Result<serde_json::Value, StorageError> {
        let state: Option<State> = view.get(&self.tenant, &self.id())?;
        let state = state.ok_or_else(|| StorageError::corrupt("a session has no state"))?;
        serde_json::from_str(&state.json).map_err(|error| StorageError::new("state of a session", error))
    }

    fn title(&self, view: &impl Read) -> Result<SessionTitle, StorageError> {
        let (title, untitled) = title(&self.state(view)?, &self.session_id);
        Ok(SessionTitle { title, untitled, updated_at: self.updated_at, archived: self.archived })
    }

    fn saved(self) -> SessionSaved {
        SessionSaved {
            session_id: self.session_id,
            updated_at: self.updated_at,
            total_tokens: self.total_tokens,
            archived: self.archived,
            revision: self.revision,
        }
    }

    /// Tells watchers that something happened to it.
    fn tell(&self, tx: &mut impl Tx, at: &Stamp, kind: &str) -> Result<(), StorageError> {
        let digest = blake3::hash(self.id().as_bytes()).to_hex();
        event::emit(tx, at, kind, &format!("s_{}", &digest[..32]), json!({ "passport": self.passport }))
    }
}

/// The caller's session of this name, unless it has expired.
fn live(view: &impl Read, caller: &Principal, session_id: &str, now: LeaseTime) -> Result<Option<Session>, StorageError> {
    let session: Option<Session> = view.get(&caller.tenant, &session_key(&caller.passport, session_id))?;
    Ok(session.filter(|session| session.is_live(now)))
}

/// The same, or else one of a passport that was merged into the caller's: those are read, and written by nobody any more.
fn readable(view: &impl Read, caller: &Principal, session_id: &str, now: LeaseTime) -> Result<Option<Session>, StorageError> {
    if let Some(own) = live(view, caller, session_id, now)? {
        return Ok(Some(own));
    }
    for passport in merged_into(view, &caller.tenant, &caller.passport)? {
        if let Some(session) = live(view, &Principal { passport, ..caller.clone() }, session_id, now)? {
            return Ok(Some(session));
        }
    }
    Ok(None)
}

/// Removes a session with its state and its deadline.
fn remove(tx: &mut impl Tx, session: &Session) {
    if let Some(end) = session.deadline {
        deadline::delete(tx, Kind::SessionByDeadline, end, &session.tenant, &session.deadline_id());
    }
    let Session { tenant, passport, session_id, .. } = session.clone();
    tx.delete(&State { tenant, passport, session_id, json: String::new() });
    tx.delete(session);
}

/// Stores the state of a session, over the one before if there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveSession {
    pub session_id: String,
    /// A JSON object, kept as sent.
    pub state: serde_json::Value,
    pub ttl_ms: Option<u64>,
    /// Compare-and-set: the revision that the caller last saw; 0 means that the session must not exist yet.
    pub expected_revision: Option<Revision>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSaved {
    pub session_id: String,
    pub updated_at: UnixMs,
    pub total_tokens: u64,
    pub archived: bool,
    pub revision: Revision,
}

impl SaveSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SessionSaved> {
        let json = match self.check() {
            Ok(json) => json,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Principal { tenant, passport, .. } = &at.caller;
        // One that has expired but is not swept yet is replaced like any other.
        let stored: Option<Session> = tx.get(tenant, &session_key(passport, &self.session_id))?;
        let before = stored.as_ref().filter(|session| session.is_live(at.lease_now));
        if let Some(refusal) = self.refuse_change(before) {
            return Ok(Err(refusal));
        }
        let session = Session {
            tenant: tenant.clone(),
            passport: passport.clone(),
            session_id: self.session_id,
            updated_at: at.wall,
            total_tokens: json.len().div_ceil(4) as u64,
            archived: before.is_some_and(|before| before.archived),
            archive_reason: before.and_then(|before| before.archive_reason.clone()),
            actor: passport.clone(),
            revision: at.revision,
            deadline: self.ttl_ms.map(|ttl_ms| at.lease_now.plus_ms(ttl_ms)),
        };
        if let Some(stored) = &stored {
            remove(tx, stored);
        }
        if let Some(end) = session.deadline {
            deadline::put(tx, Kind::SessionByDeadline, end, tenant, &session.deadline_id());
        }
        tx.put(&State { tenant: tenant.clone(), passport: passport.clone(), session_id: session.session_id.clone(), json });
        tx.put(&session);
        session.tell(tx, at, "session.saved")?;
        Ok(Ok(session.saved()))
    }

    /// The state as compact JSON.
    fn check(&self) -> Result<String, Refusal> {
        if let Some(refusal) = check_name("session_id", &self.session_id) {
            return Err(refusal);
        }
        if self.ttl_ms == Some(0) {
            return Err(Refusal::invalid("ttl_ms", "must be at least 1; leave it out for a session without an end"));
        }
        if !self.state.is_object() {
            return Err(Refusal::invalid("state", "must be a JSON object"));
        }
        if is_deeper(&self.state, STATE_DEPTH_MAX) {
            return Err(Refusal::invalid("state", format!("must not nest objects and arrays more than {STATE_DEPTH_MAX} levels deep")));
        }
        let json = self.state.to_string();
        if json.len() > STATE_BYTES_MAX {
            let (size, limit) = (json.len() as u64, STATE_BYTES_MAX as u64);
            return Err(Refusal::TooLong { field: "state".into(), size, limit, unit: "bytes".into() });
        }
        Ok(json)
    }

    fn refuse_change(&self, before: Option<&Session>) -> Option<Refusal> {
        let found = before.map_or(Revision(0), |before| before.revision);
        let expected = self.expected_revision.filter(|expected| *expected != found)?;
        let told = |revision: Revision| match revision {
            Revision(0) => "no session".to_string(),
            revision => format!("revision {revision}"),
        };
        Some(Refusal::Changed { what: "session".into(), id: self.session_id.clone(), expected: told(expected), found: told(found) })
    }
}

pub(crate) fn is_deeper(value: &serde_json::Value, levels: usize) -> bool {
    let is_deeper_inside = |inner: &serde_json::Value| is_deeper(inner, levels - 1);
    match value {
        serde_json::Value::Array(items) => levels == 0 || items.iter().any(is_deeper_inside),
        serde_json::Value::Object(fields) => levels == 0 || fields.values().any(is_deeper_inside),
        _ => false,
    }
}

/// Hides a session from the plain list; its state stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArchiveSession {
    pub session_id: String,
    pub reason: Option<String>,
}

impl ArchiveSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SessionSaved> {
        match self.reason.as_ref().and_then(|reason| check_text("reason", reason)) {
            Some(refusal) => Ok(Err(refusal)),
            None => set_archived(tx, at, self.session_id, true, self.reason),
        }
    }
}

fn set_archived(tx: &mut impl Tx, at: &Stamp, session_id: String, archived: bool, archive_reason: Option<String>) -> Applied<SessionSaved> {
    if let Some(refusal) = check_name("session_id", &session_id) {
        return Ok(Err(refusal));
    }
    let Some(session) = live(tx, &at.caller, &session_id, at.lease_now)? else {
        return Ok(Err(Refusal::not_found("session", session_id)));
    };
    let session = Session { archived, archive_reason, revision: at.revision, ..session };
    tx.put(&session);
    session.tell(tx, at, if archived { "session.archived" } else { "session.unarchived" })?;
    Ok(Ok(session.saved()))
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnarchiveSession {
    pub session_id: String,
}

impl UnarchiveSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SessionSaved> {
        set_archived(tx, at, self.session_id, false, None)
    }
}

/// Removes a session for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeleteSession {
    pub session_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionDeleted {
    pub deleted: bool,
    pub session_id: String,
}

impl DeleteSession {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SessionDeleted> {
        if let Some(refusal) = check_name("session_id", &self.session_id) {
            return Ok(Err(refusal));
        }
        let Some(session) = live(tx, &at.caller, &self.session_id, at.lease_now)? else {
            return Ok(Err(Refusal::not_found("session", self.session_id)));
        };
        remove(tx, &session);
        session.tell(tx, at, "session.deleted")?;
        Ok(Ok(SessionDeleted { deleted: true, session_id: self.session_id }))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetSession {
    pub session_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    pub session_id: String,
    pub state: serde_json::Value,
    pub updated_at: UnixMs,
    pub total_tokens: u64,
    pub archived: bool,
    pub archive_reason: Option<String>,
    pub revision: Revision,
    pub actor: String,
}

impl GetSession {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SessionView> {
        if let Some(refusal) = check_name("session_id", &self.session_id) {
            return Ok(Err(refusal));
        }
        let Some(session) = readable(view, &at.caller, &self.session_id, at.lease_now)? else {
            return Ok(Err(Refusal::not_found("session", self.session_id)));
        };
        let state = session.state(view)?;
        Ok(Ok(SessionView {
            session_id: session.session_id,
            state,
            updated_at: session.updated_at,
            total_tokens: session.total_tokens,
            archived: session.archived,
            archive_reason: session.archive_reason,
            revision: session.revision,
            actor: session.actor,
        }))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListSessions {
    pub include_archived: bool,
    pub limit: u64,
    pub cursor: Option<String>,
    /// With what each is called, for people.
    #[serde(default)]
    pub with_titles: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sessions {
    pub sessions: Vec<String>,
    pub next_cursor: Option<String>,
    /// Beside each of them, if titles were asked for.
    #[serde(default)]
    pub titles: Vec<SessionTitle>,
}

/// What a session is called where people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionTitle {
    pub title: String,
    /// The state has no title of its own; this one was made of something else.
    pub untitled: bool,
    pub updated_at: UnixMs,
    pub archived: bool,
}

/// The title of a state, and whether it is one: else the first of its decisions, its note, context summary or summary that
/// says something, and at last the beginning of the session's name.
pub fn title(state: &serde_json::Value, session_id: &str) -> (String, bool) {
    if let Some(title) = line_of(&state["title"]) {
        return (title, false);
    }
    let fallbacks = [&state["decisions"][0], &state["note"], &state["context_summary"], &state["summary"]];
    let made = fallbacks.into_iter().find_map(line_of);
    (made.unwrap_or_else(|| line(session_id, SHORT_ID_CHARS)), true)
}

/// A value as one line. What is no text is shown as the JSON that it is.
fn line_of(value: &serde_json::Value) -> Option<String> {
    let text = match value {
        serde_json::Value::Null => return None,
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(line(&text, TITLE_CHARS)).filter(|line| !line.is_empty())
}

const TITLE_CHARS: usize = 80;
const SHORT_ID_CHARS: usize = 12;

impl ListSessions {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Sessions> {
        let cursors = Cursors::of("sessions", &at.caller, &self.include_archived);
        let with_titles = self.with_titles;
        let (limit, after) = match self.check(&cursors) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Principal { tenant, passport, .. } = &at.caller;
        let owned = Key::new().text(passport);
        let all = kind_prefix(tenant, Session::KIND).raw(owned.as_bytes());
        let mut from = after.as_ref().map(|last| all.text(last).byte(0).into_bytes());
        let mut reply = Sessions { sessions: Vec::new(), next_cursor: None, titles: Vec::new() };
        let mut left = REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES;
        let mut examined = 0;
        let mut passed = after;
        loop {
            let page = view.page::<Session>(tenant, &owned, from.as_deref(), CHUNK)?;
            for session in page.items {
                let is_shown = session.is_live(at.lease_now) && (self.include_archived || !session.archived);
                // A name takes twice its bytes when it is all quotes, and twice more when it ends the page and stands in the
                // cursor, in hex.
                let title = if is_shown && with_titles { Some(session.title(view)?) } else { None };
                let bytes = 2 * session.session_id.len() + 3 + title.as_ref().map_or(0, |title| title.json_bytes(&session.session_id));
                let is_full = is_shown && (reply.sessions.len() == limit || bytes + 2 * session.session_id.len() > left);
                if let (true, Some(passed)) = (is_full || examined == SCAN_ROWS_MAX, &passed) {
                    reply.next_cursor = Some(cursors.seal(String::as_bytes(passed)));
                    return Ok(Ok(reply));
                }
                examined += 1;
                passed = Some(session.session_id.clone());
                if is_shown {
                    left = left.saturating_sub(bytes);
                    reply.titles.extend(title);
                    reply.sessions.push(session.session_id);
                }
            }
            from = match page.next {
                Some(next) => Some(next),
                None => return Ok(Ok(reply)),
            };
        }
    }

    /// The rows of this page, and the last session that the page before looked at.
    fn check(&self, cursors: &Cursors) -> Result<(usize, Option<String>), Refusal> {
        let limit = rows(self.limit)?;
        let Some(cursor) = &self.cursor else { return Ok((limit, None)) };
        let last = String::from_utf8(cursors.open(cursor)?).map_err(|_| Refusal::invalid("cursor", "is damaged"))?;
        Ok((limit, Some(last)))
    }
}

impl SessionTitle {
    /// The most bytes that its row can have as compact JSON, with the session's name.
    fn json_bytes(&self, session_id: &str) -> usize {
        const FRAME: &str = r#"{"session_id":,"title":,"untitled":false,"archived":false,"updated_at":"2026-11-30T12:00:00.000Z"},"#;
        FRAME.len() + json_text_bytes(session_id) + json_text_bytes(&self.title)
    }
}

/// Sessions read from storage at once.
const CHUNK: usize = 256;

/// Removes sessions whose time is over, a bounded number.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    for lapsed in deadline::lapsed(tx, Kind::SessionByDeadline, at.lease_now)? {
        let (passport, session_id): (String, String) =
            serde_json::from_str(&lapsed.id).map_err(|error| StorageError::new("deadline of a session", error))?;
        let session: Option<Session> = tx.get(&lapsed.tenant, &session_key(&passport, &session_id))?;
        let session = session.ok_or_else(|| StorageError::corrupt("a deadline points to a session that is not there"))?;
        remove(tx, &session);
        session.tell(tx, &at.within(&lapsed.tenant), "session.expired")?;
    }
    Ok(())
}
