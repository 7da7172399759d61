//! Coordination: which sessions are at work, on what, and where they would meet.
//!
//! A session tells its focus with an announcement. All of it advises and nothing blocks; what excludes is a punchcard.
//! Invariants:
//! * An announcement belongs to the authenticated caller. Another passport that uses the same session id has its own.
//! * It is there while its deadline lies after the lease clock; the sweep only frees its space.
//! * A session is live while it has an announcement and its passport shows signs of life: it was seen within the presence
//!   window, or holds a live card. From the entry on that revokes its passport it is not.
//!
//! * An announcement that says what stands already, and need not be made to last longer yet, is answered by a read.
//!
//! Decisions: a passport is seen in the entry of an announcement, or of what it does to work; whatever else it calls is told
//! with the counts of all calls that gateways hand over every few seconds (see [`crate::usage`]). So a sign of life has no entry
//! of its own, and outlives any node and any gateway but for those seconds.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::codec;
use crate::cursor::Cursors;
use crate::deadline::{self, Lapsed};
use crate::event;
use crate::flag;
use crate::identity::{check_name, check_self, check_text, is_revoked};
use crate::key::Key;
use crate::limit::{
    COORD_INTENTS_MAX, COORD_LEASES_SHOWN, COORD_PATHS_MAX, COORD_TTL_S_DEFAULT, COORD_TTL_S_MAX, INTENT_JSON_BYTES_MAX,
    REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES,
};
use crate::punchcard::{CheckPunchcard, ListPunchcards, Punchcard, Punchcards, Status};
use crate::query;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Principal, ReadStamp, Revision, Stamp, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::work::{ListWork, State, Work, check_project};

/// What a session says it is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    pub tenant: String,
    pub session: String,
    pub passport: String,
    pub project_id: String,
    pub execplan_slug: Option<String>,
    pub milestone: Option<String>,
    pub deploy_target: Option<String>,
    /// In the normal form of resources, relative to the repository.
    pub paths: Vec<String>,
    pub note: Option<String>,
    /// When the session was first announced.
    pub bound_at: UnixMs,
    pub announced_at: UnixMs,
    pub expires_at: UnixMs,
    pub deadline: LeaseTime,
    pub revision: Revision,
}

impl Record for Intent {
    const KIND: Kind = Kind::Intent;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        intent_key(&self.session, &self.passport)
    }
}

impl Timed for Intent {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = to(self.deadline);
    }
}

fn intent_key(session: &str, passport: &str) -> Key {
    Key::new().text(session).text(passport)
}

impl Intent {
    fn is_live(&self, now: LeaseTime) -> bool {
        self.deadline > now
    }

    /// Its name among deadlines.
    fn deadline_id(&self) -> String {
        json!([self.session, self.passport]).to_string()
    }

    fn reply_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |json| json.len()) + 160
    }

    fn overlaps_path(&self, resource: &Resource) -> Option<&String> {
        self.paths.iter().find(|path| Resource::parse(&format!("tree://{path}")).is_ok_and(|own| own.overlaps(resource)))
    }
}

fn remove(tx: &mut impl Tx, intent: &Intent) {
    deadline::delete(tx, Kind::IntentByDeadline, intent.deadline, &intent.tenant, &intent.deadline_id());
    tx.delete(intent);
}

// ------------------------------------------------------------------ signs of life

/// When a passport was seen last.
#[derive(Serialize, Deserialize)]
pub(crate) struct Presence {
    tenant: String,
    passport: String,
    seen: LeaseTime,
    seen_at: UnixMs,
}

impl Record for Presence {
    const KIND: Kind = Kind::Presence;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

impl Timed for Presence {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.seen = to(self.seen);
    }
}

/// Notes that the caller is there.
pub(crate) fn touch(tx: &mut impl Tx, at: &Stamp) {
    seen(tx, at, &at.caller.tenant, &at.caller.passport);
}

/// Notes that a passport is there.
pub(crate) fn seen(tx: &mut impl Tx, at: &Stamp, tenant: &str, passport: &str) {
    tx.put(&Presence { tenant: tenant.into(), passport: passport.into(), seen: at.lease_now, seen_at: at.wall });
}

fn presence(view: &impl Read, tenant: &str, passport: &str) -> Result<Option<Presence>, StorageError> {
    view.get(tenant, &Key::new().text(passport))
}

fn window_s(view: &impl Read) -> Result<u64, StorageError> {
    flag::number(view, flag::COORD_PRESENCE)
}

/// A session that is at work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub intent: Intent,
    pub last_seen_at: UnixMs,
    pub active_until: UnixMs,
    /// Cards of its passport, newest first.
    pub leases: Vec<Punchcard>,
    /// There are more cards than are shown.
    pub more_leases: bool,
}

/// What is known of live sessions.
struct Floor<'a, R: Read> {
    view: &'a R,
    at: &'a ReadStamp,
    window_ms: u64,
}

impl<'a, R: Read> Floor<'a, R> {
    fn new(view: &'a R, at: &'a ReadStamp) -> Result<Self, StorageError> {
        Ok(Self { view, at, window_ms: window_s(view)? * 1_000 })
    }

    fn cards(&self, passport: &str) -> Result<Punchcards, StorageError> {
        let list = ListPunchcards {
            resource: None,
            holder_passport: Some(passport.into()),
            tenant_id: None,
            status: Some(Status::Held),
            limit: COORD_LEASES_SHOWN as u64,
            cursor: None,
        };
        // Nothing here can be refused: the name is a passport's, and the limit ours.
        Ok(list.run(self.view, self.at)?.unwrap_or(Punchcards { punchcards: Vec::new(), next_cursor: None }))
    }

    /// The session of an announcement, if it is live.
    fn session(&self, intent: Intent) -> Result<Option<Session>, StorageError> {
        if !intent.is_live(self.at.lease_now) || is_revoked(self.view, &intent.tenant, &intent.passport)? {
            return Ok(None);
        }
        let cards = self.cards(&intent.passport)?;
        let presence = presence(self.view, &intent.tenant, &intent.passport)?;
        let (seen, last_seen_at) = presence.map_or((LeaseTime(0), intent.announced_at), |presence| (presence.seen, presence.seen_at));
        let seen_until = seen.plus_ms(self.window_ms);
        let last_card = cards.punchcards.iter().map(|card| card.deadline).max();
        let until = intent.deadline.min(last_card.unwrap_or(seen_until).max(seen_until));
        if until <= self.at.lease_now {
            return Ok(None);
        }
        let active_until = UnixMs(self.at.wall.0.saturating_add(self.at.lease_now.ms_until(until)));
        let more_leases = cards.next_cursor.is_some();
        Ok(Some(Session { intent, last_seen_at, active_until, leases: cards.punchcards, more_leases }))
    }
}

/// All announcements of a tenant; there are at most [`COORD_INTENTS_MAX`] live ones.
fn intents(view: &impl Read, tenant: &str) -> Result<Vec<Intent>, StorageError> {
    // Those that are over and not swept yet may stand among them.
    Ok(view.page::<Intent>(tenant, &Key::new(), None, COORD_INTENTS_MAX * 2)?.items)
}

// ------------------------------------------------------------------ coord_announce

/// Tells what a session is at, in place of what it told before; or takes that back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Announce {
    pub session_id: String,
    pub project_id: String,
    /// A claim: must be the caller.
    pub by_passport: Option<String>,
    pub execplan_slug: Option<String>,
    pub milestone: Option<String>,
    pub deploy_target: Option<String>,
    pub paths: Vec<String>,
    pub note: Option<String>,
    /// 0 takes the announcement back.
    pub ttl_seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlapKind {
    Execplan,
    DeployTarget,
    IntentPath,
    Lease,
}

/// Where the caller and somebody else would meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Empty for a lease, which belongs to a passport and not to a session.
    pub peer_session: String,
    pub peer_passport: String,
    pub kind: OverlapKind,
    pub theirs: String,
    pub yours: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Announced {
    pub intent: Option<Intent>,
    pub cleared: bool,
    /// Live sessions of others in the same project, as many as fit.
    pub peers: Vec<Intent>,
    pub more_peers: u64,
    pub overlaps: Vec<Overlap>,
    pub more_overlaps: u64,
}

impl Announce {
    pub fn apply(mut self, tx: &mut impl Tx, at: &Stamp) -> Applied<Announced> {
        if let Some(refusal) = self.check(tx, &at.caller)? {
            return Ok(Err(refusal));
        }
        let Principal { tenant, passport, .. } = &at.caller;
        let before: Option<Intent> = tx.get(tenant, &intent_key(&self.session_id, passport))?;
        if let Some(before) = &before {
            remove(tx, before);
        }
        touch(tx, at);
        let all = intents(tx, tenant)?;
        let ttl_s = self.ttl_seconds.unwrap_or(COORD_TTL_S_DEFAULT);
        let is_clear = ttl_s == 0;
        let live = all.iter().filter(|intent| intent.is_live(at.lease_now)).count();
        // Those that wait for the sweep count too, so that one read finds all there are.
        if !is_clear && (live >= COORD_INTENTS_MAX || all.len() >= COORD_INTENTS_MAX * 2) {
            let limit = COORD_INTENTS_MAX as u64;
            return Ok(Err(Refusal::Full { what: "the list of announced sessions".into(), limit, retry_after_ms: 60_000 }));
        }
        let before = before.filter(|before| before.is_live(at.lease_now));
        let intent = Intent {
            tenant: tenant.clone(),
            session: self.session_id,
            passport: passport.clone(),
            project_id: self.project_id,
            execplan_slug: self.execplan_slug,
            milestone: self.milestone,
            deploy_target: self.deploy_target,
            paths: self.paths,
            note: self.note,
            bound_at: before.map_or(at.wall, |before| before.bound_at),
            announced_at: at.wall,
            expires_at: UnixMs(at.wall.0.saturating_add(ttl_s * 1_000)),
            deadline: at.lease_now.plus_ms(ttl_s * 1_000),
            revision: at.revision,
        };
        let (size, limit) = (intent.reply_bytes() as u64, INTENT_JSON_BYTES_MAX as u64);
        if size > limit {
            return Ok(Err(Refusal::TooLong { field: "paths".into(), size, limit, unit: "bytes of JSON".into() }));
        }
        let kind = if is_clear { "session.cleared" } else { "session.announced" };
        event::emit(tx, at, kind, &intent.session, json!({ "passport": intent.passport, "project_id": intent.project_id }))?;
        let reader = at.reading();
        let announced = answer(tx, &reader, &intent, all, is_clear)?;
        if !is_clear {
            deadline::put(tx, Kind::IntentByDeadline, intent.deadline, tenant, &intent.deadline_id());
            tx.put(&intent);
        }
        Ok(Ok(announced))
    }

    /// Brings paths into their normal form; or tells why nothing can be announced so.
    fn check(&mut self, view: &impl Read, caller: &Principal) -> Result<Option<Refusal>, StorageError> {
        if let Some(refusal) = match flag::refuse_off(view, flag::COORD, "coord_announce")?.or_else(|| self.refuse(caller)) {
            Some(refusal) => Some(refusal),
            None => check_project(view, &caller.tenant, &self.project_id)?,
        } {
            return Ok(Some(refusal));
        }
        for path in &mut self.paths {
            // A message about `tree://...` would speak of what the caller never wrote.
            match Resource::parse(&format!("tree://{path}")) {
                Ok(resource) => *path = resource.to_string().split_off("tree://".len()),
                Err(Refusal::Invalid { problem, .. }) => return Ok(Some(Refusal::invalid("paths", problem))),
                Err(Refusal::TooLong { size, limit, unit, .. }) => {
                    return Ok(Some(Refusal::TooLong { field: "paths".into(), size, limit, unit }));
                }
                Err(refusal) => return Ok(Some(refusal)),
            }
        }
        Ok(None)
    }

    /// Whether it says what an announcement says already.
    fn repeats(&self, stands: &Intent) -> bool {
        self.project_id == stands.project_id
            && self.execplan_slug == stands.execplan_slug
            && self.milestone == stands.milestone
            && self.deploy_target == stands.deploy_target
            && self.paths == stands.paths
            && self.note == stands.note
    }

    fn refuse(&self, caller: &Principal) -> Option<Refusal> {
        let name = |field: &str, value: &Option<String>| value.as_deref().and_then(|value| check_name(field, value));
        let is_hex = self.session_id.bytes().all(|byte| byte.is_ascii_hexdigit()) && self.session_id.len() <= 128;
        if let Some(refusal) = check_name("session_id", &self.session_id)
            .or_else(|| (!is_hex).then(|| Refusal::invalid("session_id", "must be at most 128 hex digits")))
            .or_else(|| self.by_passport.as_deref().and_then(|claim| check_self(caller, "by_passport", claim)))
            .or_else(|| name("execplan_slug", &self.execplan_slug))
            .or_else(|| name("milestone", &self.milestone))
            .or_else(|| name("deploy_target", &self.deploy_target))
            .or_else(|| self.note.as_deref().and_then(|note| check_text("note", note)))
        {
            return Some(refusal);
        }
        if self.paths.len() > COORD_PATHS_MAX {
            let (size, limit) = (self.paths.len() as u64, COORD_PATHS_MAX as u64);
            return Some(Refusal::TooLong { field: "paths".into(), size, limit, unit: "entries".into() });
        }
        let ttl = self.ttl_seconds.filter(|ttl| *ttl > COORD_TTL_S_MAX)?;
        Some(Refusal::invalid("ttl_seconds", format!("must be 0 to {COORD_TTL_S_MAX}, not {ttl}")))
    }
}

/// The answer to an announcement that an entry would add nothing to: it stands already, word for word, three quarters of the time
/// that it asks for are left, and its passport was seen lately. `None` where it has to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepeatAnnounce {
    pub announce: Announce,
}

impl RepeatAnnounce {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Option<Announced>> {
        let Self { mut announce } = self;
        if let Some(refusal) = announce.check(view, &at.caller)? {
            return Ok(Err(refusal));
        }
        let Principal { tenant, passport, .. } = &at.caller;
        let stands: Option<Intent> = view.get(tenant, &intent_key(&announce.session_id, passport))?;
        let ttl_ms = announce.ttl_seconds.unwrap_or(COORD_TTL_S_DEFAULT) * 1_000;
        let Some(stands) = stands.filter(|stands| announce.repeats(stands)) else { return Ok(Ok(None)) };
        // One that asks for less time than is left makes it shorter.
        let lasts = at.lease_now.ms_until(stands.deadline);
        let lasts_as_asked = lasts <= ttl_ms && lasts >= ttl_ms - ttl_ms / 4;
        let window_ms = window_s(view)? * 1_000;
        let seen_until = presence(view, tenant, passport)?.map(|presence| presence.seen.plus_ms(window_ms / 2));
        if !stands.is_live(at.lease_now) || !lasts_as_asked || seen_until.is_none_or(|until| until <= at.lease_now) {
            return Ok(Ok(None));
        }
        Ok(Ok(Some(answer(view, at, &stands, intents(view, tenant)?, false)?)))
    }
}

/// Who else is at work, and where he and the caller would meet; as much as fits a reply, and the number of the rest.
fn answer(view: &impl Read, at: &ReadStamp, own: &Intent, all: Vec<Intent>, cleared: bool) -> Result<Announced, StorageError> {
    let floor = Floor::new(view, at)?;
    let mut answer = Announced {
        intent: (!cleared).then(|| own.clone()),
        cleared,
        peers: Vec::new(),
        more_peers: 0,
        overlaps: Vec::new(),
        more_overlaps: 0,
    };
    let mut live = Vec::new();
    for intent in all {
        // What else the caller runs is no stranger to it, but two sessions of one passport can be in each other's way too.
        let is_own = intent.session == own.session && intent.passport == own.passport;
        if !is_own && intent.project_id == own.project_id && floor.session(intent.clone())?.is_some() {
            live.push(intent);
        }
    }
    let mut overlaps = Vec::new();
    if !cleared {
        live.iter().for_each(|peer| meet(own, peer, &mut overlaps));
        leases(view, at, own, &mut overlaps)?;
    }
    let mut left = REPLY_BYTES_DEFAULT.saturating_sub(3 * REPLY_WRAPPER_BYTES + own.reply_bytes());
    for overlap in overlaps {
        let bytes = serde_json::to_string(&overlap).map_or(0, |json| json.len()) + 40;
        if bytes > left && !answer.overlaps.is_empty() {
            answer.more_overlaps += 1;
            continue;
        }
        left = left.saturating_sub(bytes);
        answer.overlaps.push(overlap);
    }
    for peer in live {
        let bytes = peer.reply_bytes();
        if bytes > left && !answer.peers.is_empty() {
            answer.more_peers += 1;
            continue;
        }
        left = left.saturating_sub(bytes);
        answer.peers.push(peer);
    }
    Ok(answer)
}

fn meet(own: &Intent, peer: &Intent, overlaps: &mut Vec<Overlap>) {
    let mut add = |kind, theirs: &str, yours: &str| {
        overlaps.push(Overlap {
            peer_session: peer.session.clone(),
            peer_passport: peer.passport.clone(),
            kind,
            theirs: theirs.into(),
            yours: yours.into(),
        });
    };
    if let (Some(yours), Some(theirs)) = (&own.execplan_slug, &peer.execplan_slug)
        && yours == theirs
    {
        add(OverlapKind::Execplan, theirs, yours);
    }
    if let (Some(yours), Some(theirs)) = (&own.deploy_target, &peer.deploy_target) {
        let is_same = match (deployed(yours), deployed(theirs)) {
            (Some(yours), Some(theirs)) => yours == theirs,
            _ => yours == theirs,
        };
        if is_same {
            add(OverlapKind::DeployTarget, theirs, yours);
        }
    }
    for path in &own.paths {
        let Ok(resource) = Resource::parse(&format!("tree://{path}")) else { continue };
        if let Some(theirs) = peer.overlaps_path(&resource) {
            add(OverlapKind::IntentPath, theirs, path);
        }
    }
}

/// What a card on a target of deployment is taken on: `prod`, `deploy:prod` and `deploy://prod` are one. `None` for what can't be that.
fn deployed(target: &str) -> Option<Resource> {
    const WORD: &str = "deploy:";
    let name = match target.get(..WORD.len()) {
        Some(word) if word.eq_ignore_ascii_case(WORD) => &target[WORD.len()..],
        _ => target,
    };
    Resource::parse(&format!("deploy://{}", name.strip_prefix("//").unwrap_or(name))).ok()
}

/// Cards of others on the announced paths and the target, one for each.
fn leases(view: &impl Read, at: &ReadStamp, own: &Intent, overlaps: &mut Vec<Overlap>) -> Result<(), StorageError> {
    let paths = own.paths.iter().map(|path| (path, format!("tree://{path}")));
    let target = own.deploy_target.iter().filter_map(|target| Some((target, deployed(target)?.to_string())));
    for (yours, resource) in paths.chain(target) {
        let check = CheckPunchcard { resource, mode: None, passport: None };
        if let Ok(found) = check.run(view, at)?
            && found.held_by_other
            && let Some(card) = found.card
        {
            let (peer_session, peer_passport) = (String::new(), card.holder);
            overlaps.push(Overlap { peer_session, peer_passport, kind: OverlapKind::Lease, theirs: card.resource, yours: yours.clone() });
        }
    }
    Ok(())
}

// ------------------------------------------------------------------ coord_status

/// Live sessions by id, and the work that is in progress, newest first. Each has half of a page, and what the other leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoordStatus {
    pub project_id: Option<String>,
    /// Sessions of a page, and items of work.
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coordination {
    pub now: UnixMs,
    pub presence_ttl_s: u64,
    pub sessions: Vec<Session>,
    pub work: Vec<Work>,
    /// There are more sessions than have been told so far.
    #[serde(default)]
    pub more_sessions: bool,
    /// There is more work than has been told so far.
    #[serde(default)]
    pub more_work: bool,
    pub next_cursor: Option<String>,
}

/// Where a page begins in both of its lists; nothing for one that has been told to its end.
#[derive(Serialize, Deserialize)]
struct Place {
    sessions: Option<Vec<u8>>,
    work: Option<WorkFrom>,
}

#[derive(Serialize, Deserialize)]
enum WorkFrom {
    Start,
    Cursor(String),
}

/// What a page tells of a list, what that takes, and where the list goes on.
struct Part<T, N> {
    rows: Vec<T>,
    bytes: usize,
    next: Option<N>,
}

impl<T, N> Part<T, N> {
    fn none() -> Self {
        Self { rows: Vec::new(), bytes: 0, next: None }
    }
}

impl CoordStatus {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Coordination> {
        let refusal = match (flag::refuse_off(view, flag::COORD, "coord_status")?, &self.project_id) {
            (None, Some(project)) => check_project(view, &at.caller.tenant, project)?,
            (refusal, _) => refusal,
        };
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("coordination", &at.caller, &self.project_id);
        let (limit, place) = match query::rows(self.limit).and_then(|limit| Ok((limit, self.place(&cursors)?))) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let floor = Floor::new(view, at)?;
        let budget = REPLY_BYTES_DEFAULT - 2 * REPLY_WRAPPER_BYTES;
        let work_within = |bytes: usize| match &place.work {
            Some(from) => self.work(from, limit, bytes, view, at),
            None => Ok(Ok(Part::none())),
        };
        let mut work = match work_within(budget / 2)? {
            Ok(work) => work,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let sessions = match &place.sessions {
            Some(from) => self.sessions(&floor, from, limit, budget.saturating_sub(work.bytes))?,
            None => Part::none(),
        };
        let left = budget.saturating_sub(sessions.bytes);
        if work.next.is_some() && left > budget / 2 {
            work = match work_within(left)? {
                Ok(work) => work,
                Err(refusal) => return Ok(Err(refusal)),
            };
        }
        let (more_sessions, more_work) = (sessions.next.is_some(), work.next.is_some());
        let next = Place { sessions: sessions.next, work: work.next };
        Ok(Ok(Coordination {
            now: at.wall,
            presence_ttl_s: floor.window_ms / 1_000,
            sessions: sessions.rows,
            work: work.rows,
            more_sessions,
            more_work,
            next_cursor: (more_sessions || more_work).then(|| cursors.seal(&codec::encode(&next))),
        }))
    }

    fn sessions<R: Read>(
        &self,
        floor: &Floor<R>,
        from: &[u8],
        limit: usize,
        budget: usize,
    ) -> Result<Part<Session, Vec<u8>>, StorageError> {
        let mut part = Part::none();
        let order = kind_prefix(&floor.at.caller.tenant, Kind::Intent);
        let first = order.clone().raw(from);
        // All of them are read, at most twice as many as may be live: most that are not live are shown in no page.
        let end = order.after_prefix();
        let rows = floor.view.scan_bytes(Table::Records, first.as_bytes(), &end, Direction::Ascending, COORD_INTENTS_MAX * 2)?;
        for (key, bytes) in rows {
            let intent: Intent = codec::decode(&bytes).map_err(|error| StorageError::new("announcement", error))?;
            if self.project_id.as_ref().is_some_and(|project| intent.project_id != *project) {
                continue;
            }
            let Some(session) = floor.session(intent)? else { continue };
            let bytes = session.reply_bytes();
            // The first one of a page always fits, unless an item of work has filled it.
            if part.rows.len() == limit || part.bytes + bytes > budget && (budget == 0 || !part.rows.is_empty()) {
                part.next = Some(key[order.as_bytes().len()..].to_vec());
                break;
            }
            part.bytes += bytes;
            part.rows.push(session);
        }
        Ok(part)
    }

    fn work(&self, from: &WorkFrom, limit: usize, budget: usize, view: &impl Read, at: &ReadStamp) -> Applied<Part<Work, WorkFrom>> {
        let list = ListWork {
            project_id: self.project_id.clone(),
            state: Some(State::InProgress),
            pending_approval: false,
            tenant_id: None,
            assignee_passport: None,
            ready: false,
            limit: limit as u64,
            reply_bytes: Some(budget as u64),
            cursor: match from {
                WorkFrom::Start => None,
                WorkFrom::Cursor(cursor) => Some(cursor.clone()),
            },
        };
        Ok(list.run(view, at)?.map(|page| Part {
            bytes: page.work.iter().map(Work::reply_bytes).sum(),
            rows: page.work,
            next: page.next_cursor.map(WorkFrom::Cursor),
        }))
    }

    fn place(&self, cursors: &Cursors) -> Result<Place, Refusal> {
        match cursors.open_from(self.cursor.as_deref())? {
            None => Ok(Place { sessions: Some(Vec::new()), work: Some(WorkFrom::Start) }),
            Some(position) => codec::decode(&position).map_err(|_| Refusal::invalid("cursor", "is damaged")),
        }
    }
}

impl Session {
    fn reply_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |json| json.len()) + 160
    }
}

/// Removes announcements whose time is over, a bounded number.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::IntentByDeadline, at.lease_now)? {
        let (session, passport): (String, String) =
            serde_json::from_str(&id).map_err(|error| StorageError::new("deadline of an announcement", error))?;
        let intent: Option<Intent> = tx.get(&tenant, &intent_key(&session, &passport))?;
        let intent = intent.ok_or_else(|| StorageError::corrupt("a deadline points to an announcement that is not there"))?;
        remove(tx, &intent);
        event::emit(tx, &at.within(&tenant), "session.lapsed", &session, json!({ "passport": passport }))?;
    }
    Ok(())
}
