//! Work: what a team has to do, who does it, and where it stands.
//!
//! Any state may follow any other, but for work that waits for other work. Invariants:
//! * Creator, mover and author are the authenticated caller; a name in the arguments is a claim that has to be the same.
//! * An item stands in each order that it belongs to, and in no other: all, its state, its assignee, and both.
//! * Why an item is blocked goes with the state: it is there only while the item is in it.
//! * A caller with a work gate changes nothing of an item. Its call waits as an approval, whole: what the decider is shown is what
//!   happens, with the decision and in one entry.
//! * What an item depends on, and how much of that is unfinished, change in the entries of the moves (see [`depend`]).
//! * Nothing begins while something that it depends on is unfinished.
//! * Whoever is named to do it has a passport of the tenant that is in force, and works in the project.
//! * An approved move happens only to an item that still is where it was when the move was asked for, and in what it changes of
//!   the assignee and the dependencies still is as it was.
//!
//! Decisions: lists are in order of creation, newest first, so that a move never carries an item past a reader's cursor. An item
//! can be created as blocked without a reason, since the documented call has no argument for it; a move to blocked can't.

mod board;
mod depend;
mod feed;
mod project;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::approval::{self, Approval, ApprovalStatus, RequestApproval, RiskTier};
use crate::coord;
use crate::event;
use crate::execplan::PLAN;
use crate::identity::{Passport, check_name, check_self, check_tenant, check_text, is_gated};
use crate::key::Key;
use crate::limit::{WORK_BODY_BYTES_MAX, WORK_JSON_BYTES_MAX, WORK_TITLE_BYTES_MAX};
use crate::orchestrator;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{self, Applied, Refusal};
use crate::stamp::{Principal, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

pub(crate) use board::page;
pub use board::{GetWork, ListWork, ROWS_BYTES_DEFAULT, ROWS_BYTES_MAX, WorkList, WorkView};
pub use feed::{Feed, FeedEvent, StatusFeed, Verb};
pub(crate) use project::check_project;
pub use project::{DEFAULT_PROJECT, GetProject, ListProjects, Member, Project, ProjectContext, Projects, PutProject};
use project::{check_member, is_member};

/// Where an item stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    // The numbers stand in keys and are never reused; 0 is any state.
    Planned = 1,
    InProgress = 2,
    Blocked = 3,
    Archive = 4,
    Complete = 5,
    Deployed = 6,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Planned => "planned",
            State::InProgress => "in_progress",
            State::Blocked => "blocked",
            State::Archive => "archive",
            State::Complete => "complete",
            State::Deployed => "deployed",
        }
    }
}

/// What would let a blocked item go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockerKind {
    NeedsInfo,
    NeedsApproval,
}

impl BlockerKind {
    pub fn word(self) -> &'static str {
        match self {
            BlockerKind::NeedsInfo => "needs_info",
            BlockerKind::NeedsApproval => "needs_approval",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Blocker {
    pub reason: String,
    pub kind: BlockerKind,
}

/// One item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub id: String,
    pub tenant: String,
    pub project_id: String,
    pub state: State,
    pub title: String,
    pub body: Option<String>,
    pub assignee: String,
    pub linked_pr: Option<String>,
    pub linked_issue: Option<String>,
    pub blocker: Option<Blocker>,
    pub created_by: String,
    pub created_at: UnixMs,
    pub updated_at: UnixMs,
    /// The revision of its creation: its place among others.
    pub revision: Revision,
    /// How many comments it has.
    pub comments: u64,
    /// The last move that was made to wait, decided or not.
    pub waiting: Option<String>,
    /// The orchestrator that it was attached to last, until it is detached from that.
    #[serde(default)]
    pub orchestrator_id: Option<String>,
    /// Items that have to be finished before it is ready (see [`depend`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    #[serde(default)]
    pub open_dependencies: u64,
}

impl Record for Work {
    const KIND: Kind = Kind::Work;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.id)
    }
}

impl Work {
    /// What it takes of a reply, at the most.
    pub fn reply_bytes(&self) -> usize {
        let mut texts = vec![&self.id, &self.project_id, &self.title, &self.assignee, &self.tenant, &self.created_by];
        texts.extend([&self.body, &self.linked_pr, &self.linked_issue, &self.orchestrator_id].into_iter().flatten());
        texts.extend(&self.depends_on);
        texts.extend(self.blocker.as_ref().map(|blocker| &blocker.reason));
        // A comma each; the names that stand only where there is something to name.
        let texts_bytes = texts.iter().map(|text| json_bytes(text) + 1).sum::<usize>();
        let optional = [self.linked_pr.is_some(), self.linked_issue.is_some(), self.orchestrator_id.is_some()];
        let named = optional.iter().filter(|is_there| **is_there).count() * OPTIONAL_NAME_BYTES;
        let blocker = self.blocker.as_ref().map_or(0, |_| BLOCKER_NAMES_BYTES);
        let depends = if self.depends_on.is_empty() { 0 } else { DEPENDS_NAMES_BYTES };
        texts_bytes + ROW_NAMES_BYTES + named + blocker + depends
    }

    /// Refuses an item that would fill a reply by itself.
    fn check_size(&self, field: &str) -> Option<Refusal> {
        let (size, limit) = (self.reply_bytes() as u64, WORK_JSON_BYTES_MAX as u64);
        (size > limit).then(|| Refusal::TooLong { field: field.into(), size, limit, unit: "bytes of JSON".into() })
    }
}

/// The names that each row of a reply has, its numbers and its state.
const ROW_NAMES_BYTES: usize = 230;
const OPTIONAL_NAME_BYTES: usize = 20;
const BLOCKER_NAMES_BYTES: usize = 54;
const DEPENDS_NAMES_BYTES: usize = 44;

fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(0, |json| json.len())
}

/// Why there is no such item to do something to. Plans are told with the work, and look like it.
fn missing(field: &str, id: &str) -> Refusal {
    if id.starts_with(PLAN) {
        let problem = "names a plan, which is a file and moves by its own status line and milestones: edit the file, or tell how a milestone \
                       ended with `execplan_gate`; what is done here needs an item of `create_work`";
        return Refusal::invalid(field, problem);
    }
    Refusal::not_found("work", id)
}

/// Refuses who can't do an item of a project: a name that nobody has, a revoked passport, one that does not work there.
pub(crate) fn refuse_assignee(view: &impl Read, caller: &Principal, name: &str, project_id: &str) -> Result<Option<Refusal>, StorageError> {
    match name == caller.passport {
        true => Ok(None),
        false => refuse_named(view, &caller.tenant, name, project_id),
    }
}

fn refuse_named(view: &impl Read, tenant: &str, name: &str, project_id: &str) -> Result<Option<Refusal>, StorageError> {
    let bad = |problem: String| Ok(Some(Refusal::invalid("assignee_passport", problem)));
    let found: Option<Passport> = view.get(tenant, &Key::new().text(name))?;
    let Some(Passport { tenant, name, tier, scopes, revoked_at, .. }) = found else {
        return bad(format!(
            "is `{}`, and nobody of your team has that passport; `get_project_context` lists who there is",
            refusal::shown(name)
        ));
    };
    if revoked_at.is_some() {
        return bad(format!("is `{}`, whose passport is revoked; `get_project_context` lists who there is", refusal::shown(&name)));
    }
    let assignee = Principal { tenant, passport: name, tier, scopes };
    if !is_member(view, &assignee, project_id)? {
        return bad(format!(
            "is `{}`, who does not work in the project; `get_project_context` lists who does, and an operator can let more in",
            refusal::shown(&assignee.passport)
        ));
    }
    Ok(None)
}

pub(crate) fn work(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Work>, StorageError> {
    view.get(tenant, &Key::new().text(id))
}

/// The item that an index row or another record points to.
fn indexed(view: &impl Read, tenant: &str, id: &[u8]) -> Result<Work, StorageError> {
    let id = String::from_utf8_lossy(id);
    work(view, tenant, &id)?.ok_or_else(|| StorageError::corrupt(format!("a row points to no work `{id}`")))
}

// ------------------------------------------------------------------ create_work

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateWork {
    pub project_id: String,
    pub title: String,
    /// A claim: must be the caller.
    pub created_by_passport: String,
    pub body: Option<String>,
    pub state: Option<State>,
    /// The caller when absent.
    pub assignee_passport: Option<String>,
    /// A claim: must be the caller's tenant.
    pub tenant_id: Option<String>,
    pub linked_pr: Option<String>,
    pub linked_issue: Option<String>,
    pub blocker_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
}

impl CreateWork {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Work> {
        if let Some(refusal) = match self.refuse(at) {
            Some(refusal) => Some(refusal),
            None => check_member(tx, &at.caller, &self.project_id)?,
        } {
            return Ok(Err(refusal));
        }
        if let Some(name) = &self.assignee_passport
            && let Some(refusal) = refuse_assignee(tx, &at.caller, name, &self.project_id)?
        {
            return Ok(Err(refusal));
        }
        let default_assignee = project::project(tx, &at.caller.tenant, &self.project_id)?.and_then(|project| project.default_passport_id);
        let Principal { tenant, passport, .. } = &at.caller;
        let state = self.state.unwrap_or(State::Planned);
        if state != State::Planned && is_gated(tx, &at.caller)? {
            let problem =
                format!("the moves of `{passport}` wait for approval, so it creates work as planned only, not as {}", state.word());
            return Ok(Err(Refusal::Denied { problem }));
        }
        let work = Work {
            id: at.new_id("w", 0),
            tenant: tenant.clone(),
            project_id: self.project_id,
            state,
            title: self.title,
            body: self.body,
            assignee: self.assignee_passport.or(default_assignee).unwrap_or_else(|| passport.clone()),
            linked_pr: self.linked_pr,
            linked_issue: self.linked_issue,
            blocker: self.blocker_reason.map(|reason| Blocker { reason, kind: BlockerKind::NeedsInfo }),
            created_by: passport.clone(),
            created_at: at.wall,
            updated_at: at.wall,
            revision: at.revision,
            comments: 0,
            waiting: None,
            orchestrator_id: None,
            depends_on: Vec::new(),
            open_dependencies: 0,
        };
        if let Some(refusal) = work.check_size("body") {
            return Ok(Err(refusal));
        }
        let created = work.clone();
        let work = match depend::with(tx, work, self.depends_on)? {
            Ok(work) => work,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = depend::refuse_begun(tx, &work)? {
            return Ok(Err(refusal));
        }
        tx.put(&work);
        list(tx, &work);
        depend::follow(tx, &created, &work);
        coord::touch(tx, at);
        tell(tx, at, &work, "work.created")?;
        feed::moved(tx, at, &work, None, passport);
        Ok(Ok(work))
    }

    fn refuse(&self, at: &Stamp) -> Option<Refusal> {
        let optional = |field: &str, value: &Option<String>| value.as_deref().and_then(|value| check_name(field, value));
        let refusal = check_self(&at.caller, "created_by_passport", &self.created_by_passport)
            .or_else(|| check_tenant(&at.caller, self.tenant_id.as_deref()))
            .or_else(|| check_name("title", &self.title))
            .or_else(|| too_long("title", &self.title, WORK_TITLE_BYTES_MAX))
            .or_else(|| self.body.as_deref().and_then(|body| too_long("body", body, WORK_BODY_BYTES_MAX)))
            .or_else(|| optional("assignee_passport", &self.assignee_passport))
            .or_else(|| optional("linked_pr", &self.linked_pr))
            .or_else(|| optional("linked_issue", &self.linked_issue));
        if refusal.is_some() {
            return refusal;
        }
        match (self.state, self.blocker_reason.as_deref()) {
            (Some(State::Blocked), None) => Some(unexplained()),
            (Some(State::Blocked), Some(reason)) => check_reason(reason),
            (_, Some(_)) => Some(only_blocked("blocker_reason")),
            (_, None) => None,
        }
    }
}

fn too_long(field: &str, text: &str, limit: usize) -> Option<Refusal> {
    let (size, limit) = (text.len() as u64, limit as u64);
    (size > limit).then(|| Refusal::TooLong { field: field.into(), size, limit, unit: "bytes".into() })
}

fn only_blocked(field: &str) -> Refusal {
    Refusal::invalid(field, "goes with the state `blocked` only; leave it out")
}

fn unexplained() -> Refusal {
    Refusal::invalid("blocker_reason", "is missing: the state `blocked` needs to say why")
}

fn check_reason(reason: &str) -> Option<Refusal> {
    if reason.trim().is_empty() {
        return Some(Refusal::invalid("blocker_reason", "must not be empty: the state `blocked` needs to say why"));
    }
    check_text("blocker_reason", reason)
}

// ------------------------------------------------------------------ update_work_state

/// Moves an item to another state, or asks for all of that to be approved where the caller has a work gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveWork {
    pub work_id: String,
    pub state: State,
    /// A claim: must be the caller.
    pub by_passport: String,
    pub blocker_reason: Option<String>,
    pub blocker_kind: Option<BlockerKind>,
    /// Compare-and-set: the state that the caller last saw.
    pub expected_state: Option<State>,
    /// Who does it from now on: with `expected_state`, a claim that one caller wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignee_passport: Option<String>,
    /// What it depends on, in place of what it depended on before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "an answer is made once and written out; items are the rule and waiting moves the exception")]
pub enum Moved {
    Applied(Work),
    Queued(Queued),
}

/// A move that waits for a person. It is decided as the approval of the same id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queued {
    pub action_id: String,
    pub work_id: String,
    pub requested_by: String,
    pub target_state: State,
    pub requested_at: UnixMs,
    pub expires_at: UnixMs,
}

/// What an approval lets happen to an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuedMove {
    pub work_id: String,
    pub from: State,
    pub to: State,
    pub blocker: Option<Blocker>,
    /// Where it is to be another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignee: Option<Change<String>>,
    /// Where it is to depend on others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Change<Vec<String>>>,
}

/// What one field was when it was asked for, and what it is to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change<T> {
    pub from: T,
    pub to: T,
}

impl<T: Clone + PartialEq> Change<T> {
    fn of(from: &T, to: &T) -> Option<Self> {
        (from != to).then(|| Self { from: from.clone(), to: to.clone() })
    }
}

impl QueuedMove {
    fn of(work: &Work, next: &Work) -> Self {
        Self {
            work_id: work.id.clone(),
            from: work.state,
            to: next.state,
            blocker: next.blocker.clone(),
            assignee: Change::of(&work.assignee, &next.assignee),
            depends_on: Change::of(&work.depends_on, &next.depends_on),
        }
    }

    /// What the decision is about, in a line.
    fn summary(&self) -> String {
        let mut summary = format!("work:{}:move:{}", self.work_id, self.to.word());
        if let Some(assignee) = &self.assignee {
            summary.push_str(&format!(" assignee={}", assignee.to));
        }
        if let Some(depends_on) = &self.depends_on {
            let ids = if depends_on.to.is_empty() { "none".into() } else { depends_on.to.join(",") };
            summary.push_str(&format!(" depends_on={ids}"));
        }
        summary
    }

    /// All of it, for who decides.
    fn payload(&self, title: &str) -> serde_json::Value {
        let mut payload = json!({
            "work_id": self.work_id,
            "title": title,
            "from_state": self.from,
            "target_state": self.to,
            "blocker_reason": self.blocker.as_ref().map(|blocker| &blocker.reason),
        });
        if let Some(blocker) = &self.blocker {
            payload["blocker_kind"] = json!(blocker.kind);
        }
        if let Some(assignee) = &self.assignee {
            payload["from_assignee_passport"] = json!(assignee.from);
            payload["assignee_passport"] = json!(assignee.to);
        }
        if let Some(depends_on) = &self.depends_on {
            payload["from_depends_on"] = json!(depends_on.from);
            payload["depends_on"] = json!(depends_on.to);
        }
        payload
    }

    /// The item as it would be after it, or why it can't be made.
    fn made(&self, view: &impl Read, work: &Work) -> Applied<Work> {
        let moved = Work { state: self.to, blocker: self.blocker.clone(), ..work.clone() };
        let moved = match &self.assignee {
            Some(assignee) => Work { assignee: assignee.to.clone(), ..moved },
            None => moved,
        };
        match &self.depends_on {
            Some(depends_on) => depend::with(view, moved, depends_on.to.clone()),
            None => Ok(Ok(moved)),
        }
    }
}

impl MoveWork {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Moved> {
        let Self { work_id, state: to, by_passport, blocker_reason, blocker_kind, expected_state, assignee_passport, depends_on } = self;
        let blocker = match blocker(to, blocker_reason, blocker_kind) {
            Ok(blocker) => blocker,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = check_self(&at.caller, "by_passport", &by_passport)
            .or_else(|| check_name("work_id", &work_id))
            .or_else(|| assignee_passport.as_deref().and_then(|assignee| check_name("assignee_passport", assignee)))
        {
            return Ok(Err(refusal));
        }
        let Some(work) = work(tx, &at.caller.tenant, &work_id)? else {
            return Ok(Err(missing("work_id", &work_id)));
        };
        if let Some(refusal) = check_member(tx, &at.caller, &work.project_id)? {
            return Ok(Err(refusal));
        }
        if let Some(refusal) = expected_state.and_then(|expected| has_moved(&work, expected)) {
            return Ok(Err(refusal));
        }
        let assignee_passport = assignee_passport.filter(|assignee| *assignee != work.assignee);
        if let Some(name) = &assignee_passport
            && let Some(refusal) = refuse_assignee(tx, &at.caller, name, &work.project_id)?
        {
            return Ok(Err(refusal));
        }
        coord::touch(tx, at);
        let mut next = match depends_on {
            None => work.clone(),
            Some(depends_on) => match depend::with(tx, work.clone(), depends_on)? {
                Ok(next) => next,
                Err(refusal) => return Ok(Err(refusal)),
            },
        };
        if let Some(refusal) = depend::refuse_begin(tx, &next, to)? {
            return Ok(Err(refusal));
        }
        next = Work { state: to, blocker, assignee: assignee_passport.unwrap_or(next.assignee), ..next };
        if next == work {
            return Ok(Ok(Moved::Applied(work)));
        }
        // Whether it fits is asked before it waits, so that no approval is given in vain.
        if let Some(refusal) = next.check_size(if next.blocker == work.blocker { "depends_on" } else { "blocker_reason" }) {
            return Ok(Err(refusal));
        }
        if is_gated(tx, &at.caller)? {
            return queue(tx, at, work, &next);
        }
        let is_told = next.state != work.state || next.blocker != work.blocker;
        Ok(Ok(Moved::Applied(make_move(tx, at, &work, next, is_told.then_some(&at.caller.passport))?)))
    }
}

fn blocker(to: State, reason: Option<String>, kind: Option<BlockerKind>) -> Result<Option<Blocker>, Refusal> {
    match (to, reason) {
        (State::Blocked, None) => Err(unexplained()),
        (State::Blocked, Some(reason)) => match check_reason(&reason) {
            Some(refusal) => Err(refusal),
            None => Ok(Some(Blocker { reason, kind: kind.unwrap_or(BlockerKind::NeedsInfo) })),
        },
        (_, Some(_)) => Err(only_blocked("blocker_reason")),
        (_, None) if kind.is_some() => Err(only_blocked("blocker_kind")),
        (_, None) => Ok(None),
    }
}

fn has_moved(work: &Work, expected: State) -> Option<Refusal> {
    (work.state != expected).then(|| Refusal::WorkMoved {
        id: work.id.clone(),
        expected: expected.word().into(),
        found: work.state.word().into(),
        assignee_passport: work.assignee.clone(),
    })
}

/// Puts an item in the place of what it was, and tells of it as somebody's move.
fn make_move(tx: &mut impl Tx, at: &Stamp, before: &Work, next: Work, by: Option<&String>) -> Result<Work, StorageError> {
    let work = Work { updated_at: at.wall, ..next };
    unlist(tx, before);
    list(tx, &work);
    depend::follow(tx, before, &work);
    tx.put(&work);
    depend::moved(tx, at, &work, before.is_finished())?;
    if orchestrator::is_open(work.state) && !orchestrator::is_open(before.state) {
        orchestrator::reopen(tx, at, &work)?;
    }
    if let Some(by) = by {
        tell(tx, at, &work, "work.moved")?;
        feed::moved(tx, at, &work, Some(before.state), by);
    }
    Ok(work)
}

/// Makes a move wait. Asked again while it waits, it is the same one; anything else is another request.
fn queue(tx: &mut impl Tx, at: &Stamp, work: Work, next: &Work) -> Applied<Moved> {
    let asked = QueuedMove::of(&work, next);
    if let Some(id) = &work.waiting {
        let before = approval::indexed(tx, &work.tenant, id.as_bytes())?.seen_at(at.lease_now);
        let is_same = before.requested_by == at.caller.passport && before.work.as_ref() == Some(&asked);
        if is_same && before.status == ApprovalStatus::Pending {
            return Ok(Ok(Moved::Queued(queued(&before, &asked))));
        }
    }
    let request = RequestApproval {
        action_summary: asked.summary(),
        risk_tier: RiskTier::High,
        scope: work.tenant.clone(),
        tenant_id: None,
        payload: Some(asked.payload(&work.title)),
        ttl_ms: None,
    };
    let approval = match request.open(tx, at, Some(asked.clone()))? {
        Ok(approval) => approval,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let work = Work { waiting: Some(approval.request_id.clone()), ..work };
    tx.put(&work);
    feed::held(tx, at, &work, asked.to, &at.caller.passport);
    Ok(Ok(Moved::Queued(queued(&approval, &asked))))
}

fn queued(approval: &Approval, asked: &QueuedMove) -> Queued {
    Queued {
        action_id: approval.request_id.clone(),
        work_id: asked.work_id.clone(),
        requested_by: approval.requested_by.clone(),
        target_state: asked.to,
        requested_at: approval.requested_at,
        expires_at: approval.expires_at,
    }
}

/// Why a waiting move can't be approved any more.
pub(crate) fn refuse_approval(view: &impl Read, approval: &Approval) -> Result<Option<Refusal>, StorageError> {
    let Some(asked) = &approval.work else { return Ok(None) };
    let work = indexed(view, &approval.tenant, asked.work_id.as_bytes())?;
    if let Some(refusal) = has_moved(&work, asked.from) {
        return Ok(Some(refusal));
    }
    let changed =
        |what: &str, expected: String, found: String| Refusal::Changed { what: what.into(), id: work.id.clone(), expected, found };
    if let Some(assignee) = &asked.assignee {
        if work.assignee != assignee.from {
            return Ok(Some(changed("the assignee of work", assignee.from.clone(), work.assignee.clone())));
        }
        // Whether who asked is still there is looked at for each approval.
        if assignee.to != approval.requested_by
            && let Some(refusal) = refuse_named(view, &approval.tenant, &assignee.to, &work.project_id)?
        {
            return Ok(Some(in_vain(&refusal)));
        }
    }
    if let Some(depends_on) = &asked.depends_on
        && work.depends_on != depends_on.from
    {
        let told = |ids: &[String]| if ids.is_empty() { "none".to_string() } else { ids.join(",") };
        return Ok(Some(changed("what is depended on by work", told(&depends_on.from), told(&work.depends_on))));
    }
    match asked.made(view, &work)? {
        Err(refusal) => Ok(Some(in_vain(&refusal))),
        Ok(next) => match next.check_size("decision") {
            Some(refusal) => Ok(Some(in_vain(&refusal))),
            None => depend::refuse_begin(view, &Work { state: work.state, ..next }, asked.to),
        },
    }
}

fn in_vain(refusal: &Refusal) -> Refusal {
    Refusal::invalid("decision", format!("can't be `approve`: {refusal}; reject it, or let it expire"))
}

/// Does what became of a waiting move. `n` tells apart those that one entry ends.
pub(crate) fn resolve(tx: &mut impl Tx, at: &Stamp, approval: &Approval, n: u64) -> Result<(), StorageError> {
    let Some(asked) = approval.work.clone() else { return Ok(()) };
    let work = indexed(tx, &approval.tenant, asked.work_id.as_bytes())?;
    match approval.status {
        ApprovalStatus::Pending => {}
        ApprovalStatus::Approved => {
            let next =
                asked.made(tx, &work)?.map_err(|refusal| StorageError::corrupt(format!("an approved move can't be made: {refusal}")))?;
            make_move(tx, at, &work, next, Some(&approval.requested_by))?;
        }
        ApprovalStatus::Rejected | ApprovalStatus::Expired => feed::failed(tx, at, &work, asked.to, &at.caller.passport, n),
    }
    Ok(())
}

// ------------------------------------------------------------------ comment_on_work

/// What somebody said of an item. It is never changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comment {
    pub id: String,
    pub tenant: String,
    pub work_id: String,
    pub author: String,
    pub body: String,
    pub posted_at: UnixMs,
    pub revision: Revision,
}

impl Record for Comment {
    const KIND: Kind = Kind::WorkComment;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        // One entry posts at most one.
        Key::new().text(&self.work_id).number(self.revision.0)
    }
}

impl Comment {
    pub(crate) fn reply_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |json| json.len()) + ROW_NAMES_BYTES
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommentOnWork {
    pub work_id: String,
    /// A claim: must be the caller.
    pub author_passport: String,
    pub body: String,
}

impl CommentOnWork {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Comment> {
        if let Some(refusal) = check_self(&at.caller, "author_passport", &self.author_passport)
            .or_else(|| check_name("work_id", &self.work_id))
            .or_else(|| self.body.trim().is_empty().then(|| Refusal::invalid("body", "must not be empty")))
            .or_else(|| too_long("body", &self.body, WORK_BODY_BYTES_MAX))
        {
            return Ok(Err(refusal));
        }
        let Some(work) = work(tx, &at.caller.tenant, &self.work_id)? else {
            return Ok(Err(missing("work_id", &self.work_id)));
        };
        if let Some(refusal) = check_member(tx, &at.caller, &work.project_id)? {
            return Ok(Err(refusal));
        }
        let comment = Comment {
            id: at.new_id("wc", 0),
            tenant: work.tenant.clone(),
            work_id: self.work_id,
            author: at.caller.passport.clone(),
            body: self.body,
            posted_at: at.wall,
            revision: at.revision,
        };
        let (size, limit) = (comment.reply_bytes() as u64, WORK_JSON_BYTES_MAX as u64);
        if size > limit {
            return Ok(Err(Refusal::TooLong { field: "body".into(), size, limit, unit: "bytes of JSON".into() }));
        }
        tx.put(&comment);
        let work = Work { comments: work.comments + 1, ..work };
        tx.put(&work);
        coord::touch(tx, at);
        event::emit(tx, at, "work.commented", &work.id, json!({ "comment": comment.id, "author": comment.author }))?;
        Ok(Ok(comment))
    }
}

// ------------------------------------------------------------------ orders, newest first

/// The items of an assignee or of all, in a state or in any.
fn order(tenant: &str, assignee: Option<&str>, state: Option<State>) -> Key {
    // No assignee has an empty name, and no state the number 0.
    kind_prefix(tenant, Kind::WorkOrder).text(assignee.unwrap_or_default()).byte(state.map_or(0, |state| state as u8))
}

/// The items of a project that was made, in a state or in any. No assignee's name holds a control character.
fn order_in(tenant: &str, project_id: &str, state: Option<State>) -> Key {
    order(tenant, Some(&format!("\u{1}{project_id}")), state)
}

fn places(work: &Work) -> Vec<Key> {
    let (tenant, assignee) = (&work.tenant, Some(work.assignee.as_str()));
    let mut orders = vec![
        order(tenant, None, None),
        order(tenant, None, Some(work.state)),
        order(tenant, assignee, None),
        order(tenant, assignee, Some(work.state)),
    ];
    if work.project_id != DEFAULT_PROJECT {
        orders.extend([order_in(tenant, &work.project_id, None), order_in(tenant, &work.project_id, Some(work.state))]);
    }
    orders.into_iter().map(|order| order.number_descending(work.revision.0)).collect()
}

fn list(tx: &mut impl Tx, work: &Work) {
    for place in places(work) {
        tx.put_index(place, work.id.as_bytes());
    }
}

fn unlist(tx: &mut impl Tx, work: &Work) {
    for place in places(work) {
        tx.delete_index(place);
    }
}

fn tell(tx: &mut impl Tx, at: &Stamp, work: &Work, kind: &str) -> Result<(), StorageError> {
    let about = json!({ "project_id": work.project_id, "state": work.state, "title": work.title, "assignee": work.assignee });
    event::emit(tx, at, kind, &work.id, about)
}
