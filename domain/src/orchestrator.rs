//! Orchestrators: what a team brings together for one aim, and how far its work has come.
//!
//! An orchestrator holds its members by reference. Invariants:
//! * Its creator is the authenticated caller; a name in the arguments is a claim that has to be the same.
//! * What it refers to stands in it once, under one kind. Work and passports are of its own tenant and exist when they are attached.
//! * It is planned, active, done, and archived at last; one that has begun is not planned again, and one that is done can be opened
//!   again. Any state may go straight to archived.
//! * None is done while an item of its work is open: such an item keeps it from the state, and is not attached to one that is
//!   done. An item that is opened again opens the done ones that it is a member of, in the same entry.
//! * An archived orchestrator is closed: it is shown, and never changed again.
//! * How its work stands is looked up when it is asked for, so it is never older than the work itself.
//! * It stands in the order of all and in that of its state, and in no other.
//!
//! Decisions: plans and handoffs are kept as given, since they need not be known here, and count as no work; the same one under its
//! bare name and with the beginning that tells its kind is one member. An item of work can be a member of several orchestrators, of
//! a bounded number that are not archived, and names the one that it was attached to last. A move is not refused for an
//! orchestrator's sake: the work is what is true, and the orchestrator follows. All members stand in the one record,
//! which is bounded so that a reply shows it whole.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cursor::Cursors;
use crate::event;
use crate::execplan::PLAN;
use crate::flag;
use crate::identity::{Passport, check_name, check_self, check_tenant};
use crate::key::Key;
use crate::limit::{ORCHESTRATOR_BYTES_MAX, ORCHESTRATOR_MEMBERS_MAX, REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES, WORK_ORCHESTRATORS_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::work::{self, Work, work};

/// Where an orchestrator stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    // The numbers stand in keys and are never reused; 0 is any state.
    Planned = 1,
    Active = 2,
    Done = 3,
    Archived = 4,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Planned => "planned",
            State::Active => "active",
            State::Done => "done",
            State::Archived => "archived",
        }
    }

    /// Why it can't be followed by another state.
    fn refuse(self, next: State) -> Option<Refusal> {
        let is_back = next == State::Planned && self != State::Planned;
        let problem = || format!("can't be `planned` again after `{}`: it has begun; set it to `active`, or create another", self.word());
        is_back.then(|| Refusal::invalid("state", problem()))
    }
}

/// Whether an item of work in this state still has to be done.
pub(crate) fn is_open(state: work::State) -> bool {
    match state {
        work::State::Planned | work::State::InProgress | work::State::Blocked => true,
        work::State::Archive | work::State::Complete | work::State::Deployed => false,
    }
}

/// What a reference to a handoff can begin with, beside its id.
const HANDOFF: &str = "handoff:";

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberKind {
    Passport,
    Work,
    Execplan,
    Handoff,
}

impl MemberKind {
    pub fn word(self) -> &'static str {
        match self {
            MemberKind::Passport => "passport",
            MemberKind::Work => "work",
            MemberKind::Execplan => "execplan",
            MemberKind::Handoff => "handoff",
        }
    }

    /// What a reference names by its beginning: a passport unless it says otherwise.
    pub fn of(reference: &str) -> Self {
        const STARTS: [(&str, MemberKind); 4] =
            [("w_", MemberKind::Work), (PLAN, MemberKind::Execplan), ("ho_", MemberKind::Handoff), (HANDOFF, MemberKind::Handoff)];
        let known = STARTS.into_iter().find(|(start, _)| reference.starts_with(start));
        known.map_or(MemberKind::Passport, |(_, kind)| kind)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub kind: MemberKind,
    pub reference: String,
}

impl Member {
    /// What it refers to, without the beginning that only tells the kind.
    fn name(&self) -> &str {
        let start = match self.kind {
            MemberKind::Execplan => PLAN,
            MemberKind::Handoff => HANDOFF,
            MemberKind::Passport | MemberKind::Work => "",
        };
        self.reference.strip_prefix(start).unwrap_or(&self.reference)
    }

    /// Whether both are the same one, however each is spelt.
    fn is(&self, other: &Self) -> bool {
        self.reference == other.reference || self.kind == other.kind && self.name() == other.name()
    }
}

/// One orchestrator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Orchestrator {
    pub id: String,
    pub tenant: String,
    pub name: String,
    pub assignee: Option<String>,
    pub created_by: String,
    pub state: State,
    /// In the order in which they were attached.
    pub members: Vec<Member>,
    pub created_at: UnixMs,
    pub updated_at: UnixMs,
    /// The revision of its creation: its place among others.
    pub revision: Revision,
}

impl Record for Orchestrator {
    const KIND: Kind = Kind::Orchestrator;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.id)
    }
}

impl Orchestrator {
    /// What it takes of a reply, at the most: each member of work shows its state too.
    fn reply_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |json| json.len()) + self.members.len() * 32 + 2 * REPLY_WRAPPER_BYTES
    }

    fn is_full(&self) -> bool {
        self.members.len() > ORCHESTRATOR_MEMBERS_MAX || self.reply_bytes() > ORCHESTRATOR_BYTES_MAX
    }

    fn places(&self) -> impl Iterator<Item = Key> {
        [None, Some(self.state)].into_iter().map(|state| order(&self.tenant, state).number_descending(self.revision.0))
    }
}

/// An orchestrator, and how its work stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrchestratorView {
    pub orchestrator: Orchestrator,
    /// The state of each member that is work, by its id.
    pub work: BTreeMap<String, work::State>,
}

/// What the members that are work add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Items of work among the members.
    pub total: u64,
    pub planned: u64,
    pub in_progress: u64,
    pub blocked: u64,
    pub archived: u64,
    pub complete: u64,
    pub deployed: u64,
    /// Of the items that are not archived, those that are complete or deployed, in whole percent; `None` when there is none.
    pub percent_done: Option<u64>,
}

impl OrchestratorView {
    fn of(view: &impl Read, orchestrator: Orchestrator) -> Result<Self, StorageError> {
        let mut states = BTreeMap::new();
        for member in orchestrator.members.iter().filter(|member| member.kind == MemberKind::Work) {
            // Work is never deleted.
            let Some(item) = work(view, &orchestrator.tenant, &member.reference)? else {
                return Err(StorageError::corrupt(format!("a member is no work: `{}`", member.reference)));
            };
            states.insert(item.id, item.state);
        }
        Ok(Self { orchestrator, work: states })
    }

    /// The members that are work and have still to be done.
    fn open_work(&self) -> impl Iterator<Item = &str> {
        self.work.iter().filter(|(_, state)| is_open(**state)).map(|(id, _)| id.as_str())
    }

    pub fn progress(&self) -> Progress {
        let mut progress = Progress::default();
        for state in self.work.values() {
            progress.total += 1;
            *match state {
                work::State::Planned => &mut progress.planned,
                work::State::InProgress => &mut progress.in_progress,
                work::State::Blocked => &mut progress.blocked,
                work::State::Archive => &mut progress.archived,
                work::State::Complete => &mut progress.complete,
                work::State::Deployed => &mut progress.deployed,
            } += 1;
        }
        let done = progress.complete + progress.deployed;
        progress.percent_done = (done * 100).checked_div(progress.total - progress.archived);
        progress
    }
}

/// All orchestrators, or those in a state, newest first.
fn order(tenant: &str, state: Option<State>) -> Key {
    kind_prefix(tenant, Kind::OrchestratorOrder).byte(state.map_or(0, |state| state as u8))
}

/// The orchestrators that an item of work is a member of and that are not archived. No state has this number.
fn with_work(tenant: &str, work_id: &str) -> Key {
    kind_prefix(tenant, Kind::OrchestratorOrder).byte(u8::MAX).text(work_id)
}

/// Opens the done ones that an item is a member of, now that there is work again.
pub(crate) fn reopen(tx: &mut impl Tx, at: &Stamp, item: &Work) -> Result<(), StorageError> {
    let rows = with_work(&item.tenant, &item.id);
    for (_, id) in tx.scan_bytes(Table::Index, rows.as_bytes(), &rows.after_prefix(), Direction::Ascending, WORK_ORCHESTRATORS_MAX)? {
        let id = String::from_utf8_lossy(&id);
        let found: Option<Orchestrator> = tx.get(&item.tenant, &Key::new().text(&id))?;
        let before = found.ok_or_else(|| StorageError::corrupt(format!("a row points to no orchestrator `{id}`")))?;
        if before.state == State::Done {
            let next = Orchestrator { state: State::Active, updated_at: at.wall, ..before.clone() };
            put(tx, at, Some(&before), &next, "orchestrator.changed")?;
        }
    }
    Ok(())
}

/// Puts a changed one in the place of the one before, tells watchers, and answers it.
fn follow(tx: &mut impl Tx, at: &Stamp, before: Option<&Orchestrator>, next: Orchestrator, what: &str) -> Applied<OrchestratorView> {
    put(tx, at, before, &next, what)?;
    Ok(Ok(OrchestratorView::of(tx, next)?))
}

fn put(tx: &mut impl Tx, at: &Stamp, before: Option<&Orchestrator>, next: &Orchestrator, what: &str) -> Result<(), StorageError> {
    for place in before.into_iter().flat_map(Orchestrator::places) {
        tx.delete_index(place);
    }
    for place in next.places() {
        tx.put_index(place, next.id.as_bytes());
    }
    tx.put(next);
    let about = json!({ "name": next.name, "state": next.state, "members": next.members.len(), "actor": at.caller.passport });
    event::emit(tx, at, what, &next.id, about)
}

/// The caller's orchestrator of this id, if it can be changed.
fn open(view: &impl Read, at: &Stamp, id: &str) -> Applied<Orchestrator> {
    if let Some(refusal) = check_name("orchestrator_id", id) {
        return Ok(Err(refusal));
    }
    let found: Option<Orchestrator> = view.get(&at.caller.tenant, &Key::new().text(id))?;
    Ok(match found {
        None => Err(Refusal::not_found("orchestrator", id)),
        Some(closed) if closed.state == State::Archived => Err(Refusal::invalid(
            "orchestrator_id",
            "is of an orchestrator that is archived, which nothing changes any more; create another",
        )),
        Some(open) => Ok(open),
    })
}

/// Refuses a lead that is nobody of the team.
fn refuse_lead(view: &impl Read, at: &Stamp, lead: Option<&str>) -> Result<Option<Refusal>, StorageError> {
    match lead {
        Some(name) => work::refuse_assignee(view, &at.caller, name, work::DEFAULT_PROJECT),
        None => Ok(None),
    }
}

// ------------------------------------------------------------------ create_orchestrator

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateOrchestrator {
    pub name: String,
    /// A claim: must be the caller.
    pub created_by_passport: String,
    pub assignee_passport: Option<String>,
    /// A claim: must be the caller's tenant.
    pub tenant_id: Option<String>,
    /// Planned when absent.
    pub state: Option<State>,
}

impl CreateOrchestrator {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<OrchestratorView> {
        let refusal = flag::refuse_off(tx, flag::ORCHESTRATORS, "create_orchestrator")?
            .or_else(|| check_self(&at.caller, "created_by_passport", &self.created_by_passport))
            .or_else(|| check_tenant(&at.caller, self.tenant_id.as_deref()))
            .or_else(|| check_name("name", &self.name))
            .or_else(|| self.assignee_passport.as_deref().and_then(|name| check_name("assignee_passport", name)));
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        if let Some(refusal) = refuse_lead(tx, at, self.assignee_passport.as_deref())? {
            return Ok(Err(refusal));
        }
        let orchestrator = Orchestrator {
            id: at.new_id("orc", 0),
            tenant: at.caller.tenant.clone(),
            name: self.name,
            assignee: self.assignee_passport,
            created_by: at.caller.passport.clone(),
            state: self.state.unwrap_or(State::Planned),
            members: Vec::new(),
            created_at: at.wall,
            updated_at: at.wall,
            revision: at.revision,
        };
        follow(tx, at, None, orchestrator, "orchestrator.created")
    }
}

// ------------------------------------------------------------------ update_orchestrator

/// Changes what is given. The state `archived` closes it for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateOrchestrator {
    pub orchestrator_id: String,
    pub name: Option<String>,
    pub assignee_passport: Option<String>,
    pub state: Option<State>,
}

impl UpdateOrchestrator {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<OrchestratorView> {
        let Self { orchestrator_id, name, assignee_passport, state } = self;
        let refusal = flag::refuse_off(tx, flag::ORCHESTRATORS, "update_orchestrator")?
            .or_else(|| name.as_deref().and_then(|name| check_name("name", name)))
            .or_else(|| assignee_passport.as_deref().and_then(|name| check_name("assignee_passport", name)))
            .or_else(|| {
                let nothing = name.is_none() && assignee_passport.is_none() && state.is_none();
                nothing
                    .then(|| Refusal::invalid("state", "is missing, and so are `name` and `assignee_passport`: nothing is to be changed"))
            });
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        let before = match open(tx, at, &orchestrator_id)? {
            Ok(before) => before,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let lead = assignee_passport.as_deref().filter(|lead| before.assignee.as_deref() != Some(lead));
        if let Some(refusal) = refuse_lead(tx, at, lead)? {
            return Ok(Err(refusal));
        }
        let mut next = before.clone();
        next.name = name.unwrap_or(next.name);
        next.assignee = assignee_passport.or(next.assignee);
        next.state = state.unwrap_or(next.state);
        if next == before {
            return Ok(Ok(OrchestratorView::of(tx, before)?));
        }
        if let Some(refusal) = before.state.refuse(next.state) {
            return Ok(Err(refusal));
        }
        if next.state == State::Done && before.state != State::Done {
            let open: Vec<String> = OrchestratorView::of(tx, before.clone())?.open_work().map(|id| format!("`{id}`")).collect();
            if !open.is_empty() {
                let problem = format!("can't be `done` while its work is open: {}; finish or archive it, or detach it", open.join(", "));
                return Ok(Err(Refusal::invalid("state", problem)));
            }
        }
        if next.state == State::Archived {
            for member in next.members.iter().filter(|member| member.kind == MemberKind::Work) {
                tx.delete_index(with_work(&next.tenant, &member.reference).text(&next.id));
            }
        }
        next.updated_at = at.wall;
        follow(tx, at, Some(&before), next, "orchestrator.changed")
    }
}

// ------------------------------------------------------------------ attach_to_orchestrator

/// Adds a member. One that is there stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachMember {
    pub orchestrator_id: String,
    pub member_ref: String,
    /// What the reference tells by its beginning, when absent.
    pub member_type: Option<MemberKind>,
}

impl AttachMember {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<OrchestratorView> {
        let refusal = flag::refuse_off(tx, flag::ORCHESTRATORS, "attach_to_orchestrator")?;
        if let Some(refusal) = refusal.or_else(|| check_name("member_ref", &self.member_ref)) {
            return Ok(Err(refusal));
        }
        let before = match open(tx, at, &self.orchestrator_id)? {
            Ok(before) => before,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let member = Member { kind: self.member_type.unwrap_or(MemberKind::of(&self.member_ref)), reference: self.member_ref };
        if member.name().trim().is_empty() {
            let problem = format!("is only `{}`, with no name behind it", member.reference);
            return Ok(Err(Refusal::invalid("member_ref", problem)));
        }
        if let Some(known) = before.members.iter().find(|known| known.is(&member)) {
            if known.kind != member.kind {
                let problem =
                    format!("is `{}`, and that member was attached as `{}`; detach it first", member.kind.word(), known.kind.word());
                return Ok(Err(Refusal::invalid("member_type", problem)));
            }
            return Ok(Ok(OrchestratorView::of(tx, before)?));
        }
        let tenant = &at.caller.tenant;
        match member.kind {
            MemberKind::Work => {
                let Some(mut item) = work(tx, tenant, &member.reference)? else {
                    return Ok(Err(Refusal::not_found("work", member.reference)));
                };
                if before.state == State::Done && is_open(item.state) {
                    let problem = "is of an orchestrator that is done, and the work is open: set it to `active` first";
                    return Ok(Err(Refusal::invalid("orchestrator_id", problem)));
                }
                let rows = with_work(tenant, &item.id);
                let known =
                    tx.scan_bytes(Table::Index, rows.as_bytes(), &rows.after_prefix(), Direction::Ascending, WORK_ORCHESTRATORS_MAX)?;
                if known.len() >= WORK_ORCHESTRATORS_MAX {
                    let problem = format!(
                        "is a member of {WORK_ORCHESTRATORS_MAX} orchestrators that are not archived, and of no more; detach it from one"
                    );
                    return Ok(Err(Refusal::invalid("member_ref", problem)));
                }
                tx.put_index(rows.text(&before.id), before.id.as_bytes());
                item.orchestrator_id = Some(before.id.clone());
                tx.put(&item);
            }
            MemberKind::Passport => {
                let passport: Option<Passport> = tx.get(tenant, &Key::new().text(&member.reference))?;
                if passport.is_none_or(|passport| passport.revoked_at.is_some()) {
                    return Ok(Err(Refusal::not_found("passport", member.reference)));
                }
            }
            MemberKind::Execplan | MemberKind::Handoff => {}
        }
        let mut next = before.clone();
        next.members.push(member);
        next.updated_at = at.wall;
        if next.is_full() {
            let members = before.members.len();
            let problem = format!("is of an orchestrator that is full with {members} members; detach some, or attach this one to another");
            return Ok(Err(Refusal::invalid("orchestrator_id", problem)));
        }
        follow(tx, at, Some(&before), next, "orchestrator.attached")
    }
}

// ------------------------------------------------------------------ detach_from_orchestrator

/// Takes a member out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetachMember {
    pub orchestrator_id: String,
    pub member_ref: String,
}

impl DetachMember {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<OrchestratorView> {
        let refusal = flag::refuse_off(tx, flag::ORCHESTRATORS, "detach_from_orchestrator")?;
        if let Some(refusal) = refusal.or_else(|| check_name("member_ref", &self.member_ref)) {
            return Ok(Err(refusal));
        }
        let before = match open(tx, at, &self.orchestrator_id)? {
            Ok(before) => before,
            Err(refusal) => return Ok(Err(refusal)),
        };
        // As it was attached, or else in the other spelling of the same one.
        let exact = before.members.iter().position(|member| member.reference == self.member_ref);
        let spelt = |member: &Member| member.is(&Member { kind: member.kind, reference: self.member_ref.clone() });
        let Some(place) = exact.or_else(|| before.members.iter().position(spelt)) else {
            return Ok(Err(Refusal::not_found("member", self.member_ref)));
        };
        let mut next = before.clone();
        let member = next.members.remove(place);
        tx.delete_index(with_work(&next.tenant, &member.reference).text(&next.id));
        if member.kind == MemberKind::Work
            && let Some(mut item) = work(tx, &next.tenant, &member.reference)?
            && item.orchestrator_id.as_ref() == Some(&next.id)
        {
            item.orchestrator_id = None;
            tx.put(&item);
        }
        next.updated_at = at.wall;
        follow(tx, at, Some(&before), next, "orchestrator.detached")
    }
}

// ------------------------------------------------------------------ list_orchestrators

/// The orchestrators of the caller's tenant, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListOrchestrators {
    /// A claim: must be the caller's tenant.
    pub tenant_id: Option<String>,
    pub state: Option<State>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Orchestrators {
    pub orchestrators: Vec<OrchestratorView>,
    pub next_cursor: Option<String>,
}

impl ListOrchestrators {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Orchestrators> {
        let refusal = flag::refuse_off(view, flag::ORCHESTRATORS, "list_orchestrators")?;
        if let Some(refusal) = refusal.or_else(|| check_tenant(&at.caller, self.tenant_id.as_deref())) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("orchestrators", &at.caller, &self.state);
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let read = |id: &[u8]| {
            let id = String::from_utf8_lossy(id);
            let found: Option<Orchestrator> = view.get(tenant, &Key::new().text(&id))?;
            let found = found.ok_or_else(|| StorageError::corrupt(format!("a row points to no orchestrator `{id}`")))?;
            let bytes = found.reply_bytes();
            Ok(Some((OrchestratorView::of(view, found)?, bytes)))
        };
        let budget = REPLY_BYTES_DEFAULT - 2 * REPLY_WRAPPER_BYTES;
        let found = work::page(view, Table::Index, &order(tenant, self.state), from.as_deref(), limit, budget, read)?;
        Ok(Ok(Orchestrators { orchestrators: found.items, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}
