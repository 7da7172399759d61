//! Coordination: projects, the board of work, its feed, and which sessions are at work on what.

use quorate_domain::approval::ApprovalStatus;
use quorate_domain::execplan::PLAN;
use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::refusal::shown;
use quorate_domain::{Refusal, Revision, UnixMs, coord, flag, punchcard, work};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::group;
use super::punchcards::Waiting;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::plans;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Planned,
    InProgress,
    Blocked,
    Archive,
    Complete,
    Deployed,
}

impl From<State> for work::State {
    fn from(state: State) -> Self {
        match state {
            State::Planned => work::State::Planned,
            State::InProgress => work::State::InProgress,
            State::Blocked => work::State::Blocked,
            State::Archive => work::State::Archive,
            State::Complete => work::State::Complete,
            State::Deployed => work::State::Deployed,
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockerKind {
    NeedsInfo,
    NeedsApproval,
}

impl From<BlockerKind> for work::BlockerKind {
    fn from(kind: BlockerKind) -> Self {
        match kind {
            BlockerKind::NeedsInfo => work::BlockerKind::NeedsInfo,
            BlockerKind::NeedsApproval => work::BlockerKind::NeedsApproval,
        }
    }
}

/// An item as callers see it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Item {
    id: String,
    project_id: String,
    /// Where it stands.
    state: String,
    title: String,
    /// What is to be done, or null.
    body: Nullable<String>,
    /// Who does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    assignee_passport: Option<String>,
    tenant_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    linked_pr: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linked_issue: Option<String>,
    /// Why it is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocker_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocker_kind: Option<String>,
    created_by_passport: String,
    created_at_unix_ms: u64,
    /// When it was last moved.
    updated_at_unix_ms: u64,
    /// How many comments it has; `list_work` with `work_id` shows them.
    comments: u64,
    /// The orchestrator that it was attached to last.
    #[serde(skip_serializing_if = "Option::is_none")]
    orchestrator_id: Option<String>,
    /// Items that have to be finished before it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    depends_on: Option<Vec<String>>,
    /// How many of them are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    open_dependencies: Option<u64>,
    /// `approval` for a request that waits for a decision, under its request id; `execplan` for a plan's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Of a request: what it would cost if it went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    risk_tier: Option<String>,
    /// Of a request: when it expires undecided.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_unix_ms: Option<u64>,
    /// Of a request: what its requester wants the decider to see.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Map<String, Value>>,
}

impl From<work::Work> for Item {
    fn from(work: work::Work) -> Self {
        let (blocker_reason, blocker_kind) = match work.blocker {
            Some(blocker) => (Some(blocker.reason), Some(blocker.kind)),
            None => (None, None),
        };
        Self {
            id: work.id,
            project_id: work.project_id,
            state: work.state.word().into(),
            title: work.title,
            body: Nullable(work.body),
            assignee_passport: Some(work.assignee),
            tenant_id: work.tenant,
            linked_pr: work.linked_pr,
            linked_issue: work.linked_issue,
            blocker_reason,
            blocker_kind: blocker_kind.map(|kind| kind.word().into()),
            created_by_passport: work.created_by,
            created_at_unix_ms: work.created_at.0,
            updated_at_unix_ms: work.updated_at.0,
            comments: work.comments,
            orchestrator_id: work.orchestrator_id,
            open_dependencies: Some(work.open_dependencies).filter(|_| !work.depends_on.is_empty()),
            depends_on: Some(work.depends_on).filter(|ids| !ids.is_empty()),
            kind: None,
            risk_tier: None,
            expires_at_unix_ms: None,
            payload: None,
        }
    }
}

impl From<quorate_domain::approval::Approval> for Item {
    fn from(approval: quorate_domain::approval::Approval) -> Self {
        Self {
            id: approval.request_id,
            project_id: work::DEFAULT_PROJECT.into(),
            state: match approval.status {
                ApprovalStatus::Pending => "pending_approval".into(),
                decided => decided.word().into(),
            },
            title: approval.action_summary,
            body: Nullable(None),
            assignee_passport: None,
            tenant_id: approval.tenant,
            linked_pr: None,
            linked_issue: None,
            blocker_reason: None,
            blocker_kind: None,
            created_by_passport: approval.requested_by,
            created_at_unix_ms: approval.requested_at.0,
            updated_at_unix_ms: approval.requested_at.0,
            comments: 0,
            orchestrator_id: None,
            depends_on: None,
            open_dependencies: None,
            kind: Some("approval".into()),
            risk_tier: Some(approval.risk_tier.word().into()),
            expires_at_unix_ms: Some(approval.expires_at.0),
            payload: match approval.payload {
                Some(Value::Object(payload)) => Some(payload),
                _ => None,
            },
        }
    }
}

// ------------------------------------------------------------------ list_projects, get_project_context

/// List the projects that work can belong to. Your team has one from the start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListProjects {
    /// Projects of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Project {
    id: String,
    name: String,
    /// Whose work it is when nobody is named, or null for whoever creates it.
    default_passport_id: Nullable<String>,
    /// 0 for the project that was there from the start.
    created_at_unix_ms: u64,
}

impl From<work::Project> for Project {
    fn from(project: work::Project) -> Self {
        Self {
            id: project.id,
            name: project.name,
            default_passport_id: Nullable(project.default_passport_id),
            created_at_unix_ms: project.created_at.0,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Projects {
    projects: Vec<Project>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for ListProjects {
    const NAME: &'static str = "list_projects";
    const TITLE: &'static str = "List projects";
    const SCOPE: &'static str = "crux-mcp.list_projects";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = true;
    type Output = Projects;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Projects>, CallError> {
        let (found, served) = cluster.read(ctx, work::ListProjects { limit: self.limit, cursor: self.cursor }).await?;
        let projects = found.projects.into_iter().map(Into::into).collect();
        Ok(Reply::at(served.revision, Projects { projects, next_cursor: found.next_cursor }))
    }
}

/// Tell who works in a project: its members by name, and the teams it belongs to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetProjectContext {
    /// From `list_projects`.
    project_id: String,
    /// Members of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProjectContext {
    id: String,
    name: String,
    /// Whose work it is when nobody is named, or null for whoever creates it.
    default_passport_id: Nullable<String>,
    created_at_unix_ms: u64,
    members: Vec<Member>,
    tenants: Vec<ProjectTenant>,
    /// Pass it as `cursor` for the other members.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Member {
    passport_id: String,
    /// `operator` or `member`.
    role: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProjectTenant {
    tenant_id: String,
}

impl Tool for GetProjectContext {
    const NAME: &'static str = "get_project_context";
    const TITLE: &'static str = "Show a project";
    const SCOPE: &'static str = "crux-mcp.get_project_context";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = true;
    type Output = ProjectContext;

    fn example() -> Value {
        json!({ "project_id": "p_default" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ProjectContext>, CallError> {
        let query = work::GetProject { project_id: self.project_id, limit: self.limit.unwrap_or(LIST_DEFAULT as u64), cursor: self.cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let Project { id, name, default_passport_id, created_at_unix_ms } = found.project.into();
        let members = found.members.into_iter().map(|member| Member { passport_id: member.passport, role: member.role });
        let facts = ProjectContext {
            id,
            name,
            default_passport_id,
            created_at_unix_ms,
            members: members.collect(),
            tenants: vec![ProjectTenant { tenant_id: found.tenant }],
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ list_work

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateFilter {
    Planned,
    InProgress,
    Blocked,
    Archive,
    Complete,
    Deployed,
    PendingApproval,
}

impl StateFilter {
    /// `None` for what is no state of work.
    fn state(self) -> Option<work::State> {
        match self {
            StateFilter::Planned => Some(work::State::Planned),
            StateFilter::InProgress => Some(work::State::InProgress),
            StateFilter::Blocked => Some(work::State::Blocked),
            StateFilter::Archive => Some(work::State::Archive),
            StateFilter::Complete => Some(work::State::Complete),
            StateFilter::Deployed => Some(work::State::Deployed),
            StateFilter::PendingApproval => None,
        }
    }
}

/// List your team's work, newest first; or with `state` `pending_approval` the requests that wait for a person, oldest first.
///
/// After it come your team's plans, read from ExecPlan files where an operator has set that up; they can't be moved here.
/// Every filter is optional. With `work_id` it shows one item with its comments, oldest first. A page has about 8 KB, or up to
/// 32 KB where you give `limit`; go on with `next_cursor`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListWork {
    /// Work of this project, from `list_projects`; `execplans` for the plans alone.
    project_id: Option<String>,
    /// Work in this state; absent: in any, without requests for approval.
    state: Option<StateFilter>,
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
    /// Work of this passport.
    assignee_passport: Option<String>,
    /// Only what is ready: planned, and with nothing unfinished that it depends on.
    #[serde(default)]
    ready: bool,
    /// One item with comments, or a request; no other filters.
    work_id: Option<String>,
    /// Rows of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct WorkList {
    /// Rows of `work` in this reply.
    count: usize,
    work: Vec<Item>,
    /// Of the item that was asked for by `work_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    comments: Option<Vec<Comment>>,
    /// What is not among these rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

const NO_EXECPLANS: &str = "ExecPlan files are not read: this gateway has no folder of them for your team (`execplans_root`, or CRUX_EXECPLANS_ROOT). \
                            This is the work that was created with create_work.";

/// What a cursor begins with that leads to plans; what follows is a plan's name.
const PLANS_FROM: &str = "plans.";

impl From<&plans::Row> for Item {
    fn from(row: &plans::Row) -> Self {
        let pointer = row.plan.superseded_by.as_ref().map(|slug| format!("Superseded by {slug}."));
        let status = row.plan.status.as_ref().map(|status| format!("Status: {status}."));
        let words: Vec<String> = [status, pointer].into_iter().flatten().map(|words| shown(&words)).collect();
        Self {
            id: row.id(),
            project_id: plans::PROJECT.into(),
            state: row.state.word().into(),
            title: shown(row.plan.title.as_deref().unwrap_or(&row.slug)),
            body: Nullable(Some(words.join(" ")).filter(|words| !words.is_empty())),
            assignee_passport: None,
            tenant_id: String::new(),
            linked_pr: None,
            linked_issue: None,
            blocker_reason: None,
            blocker_kind: None,
            created_by_passport: plans::AUTHOR.into(),
            created_at_unix_ms: row.changed_at.0,
            updated_at_unix_ms: row.changed_at.0,
            comments: 0,
            orchestrator_id: None,
            depends_on: None,
            open_dependencies: None,
            kind: Some("execplan".into()),
            risk_tier: None,
            expires_at_unix_ms: None,
            payload: None,
        }
    }
}

async fn plans_of(from: &str, state: Option<work::State>, ctx: &CallContext, cluster: &Cluster) -> Result<plans::Rows, CallError> {
    let ask = |query| async move { cluster.read(ctx, query).await.map(|(told, served)| (told, served.revision)) };
    ctx.services.plans.rows(ctx.principal()?, from, state, ask).await
}

/// Adds plans to a list that ends, from a name on, until the page is full.
async fn add_plans(
    list: &mut WorkList,
    from: &str,
    state: Option<work::State>,
    (limit, budget): (u64, usize),
    ctx: &CallContext,
    cluster: &Cluster,
) -> Result<Revision, CallError> {
    let caller = ctx.principal()?;
    let found = plans_of(from, state, ctx, cluster).await?;
    let bytes = |item: &Item| serde_json::to_string(item).map_or(0, |json| json.len()) + 1;
    let mut left = budget.saturating_sub(list.work.iter().map(bytes).sum());
    for row in &found.rows {
        let item = Item { tenant_id: caller.tenant.clone(), ..row.into() };
        let bytes = bytes(&item);
        if list.work.len() as u64 >= limit || bytes > left && !list.work.is_empty() {
            list.next_cursor = Some(format!("{PLANS_FROM}{}", row.slug));
            break;
        }
        left = left.saturating_sub(bytes);
        list.work.push(item);
    }
    list.count = list.work.len();
    if !found.problems.is_empty() {
        list.note = Some(format!("Of the ExecPlan files, {}.", shown(&found.problems.join("; "))));
    }
    Ok(found.revision)
}

impl Tool for ListWork {
    const NAME: &'static str = "list_work";
    const TITLE: &'static str = "List work";
    const SCOPE: &'static str = "crux-mcp.list_work";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = true;
    type Output = WorkList;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<WorkList>, CallError> {
        let limit = self.limit.unwrap_or(LIST_DEFAULT as u64);
        // Who says how many rows he wants gets as many of them as a reply can hold.
        let budget = if self.limit.is_some() { work::ROWS_BYTES_MAX } else { work::ROWS_BYTES_DEFAULT };
        let has_plans = ctx.services.plans.are_for(ctx.principal()?);
        if let Some(work_id) = self.work_id {
            let has_filter = self.project_id.is_some() || self.state.is_some() || self.tenant_id.is_some() || self.ready;
            if has_filter || self.assignee_passport.is_some() {
                return Err(CallError::arguments("`work_id` goes without other filters", "Leave them out."));
            }
            if let Some(slug) = work_id.strip_prefix(PLAN).filter(|_| has_plans) {
                let found = plans_of(slug, None, ctx, cluster).await?;
                let row = found.rows.iter().find(|row| row.slug == slug).ok_or_else(|| Refusal::not_found("work", &work_id))?;
                let item = Item { tenant_id: ctx.principal()?.tenant.clone(), ..row.into() };
                let list = WorkList { count: 1, work: vec![item], comments: Some(Vec::new()), note: None, next_cursor: None };
                return Ok(Reply::at(found.revision, list));
            }
            let (found, served) = cluster.read(ctx, work::GetWork { work_id, limit, cursor: self.cursor }).await?;
            let work: Vec<Item> = found.work.into_iter().map(Into::into).chain(found.approval.into_iter().map(Into::into)).collect();
            let comments = Some(found.comments.into_iter().map(Into::into).collect());
            let facts = WorkList { count: work.len(), work, comments, note: None, next_cursor: found.next_cursor };
            return Ok(Reply::at(served.revision, facts));
        }
        let pending_approval = matches!(self.state, Some(StateFilter::PendingApproval));
        let state = self.state.and_then(StateFilter::state);
        // A plan is nobody's, and not taken up from here.
        let with_plans = has_plans
            && !pending_approval
            && !self.ready
            && self.assignee_passport.is_none()
            && self.project_id.as_deref().is_none_or(|project| project == plans::PROJECT)
            && self.tenant_id.as_deref().is_none_or(|tenant| ctx.caller.as_deref().is_some_and(|caller| caller.tenant == tenant));
        let from = self.cursor.as_deref().and_then(|cursor| cursor.strip_prefix(PLANS_FROM));
        if with_plans && (from.is_some() || self.project_id.is_some() && self.cursor.is_none()) {
            let mut list = WorkList { count: 0, work: Vec::new(), comments: None, note: None, next_cursor: None };
            let revision = add_plans(&mut list, from.unwrap_or_default(), state, (limit, budget), ctx, cluster).await?;
            return Ok(Reply::at(revision, list));
        }
        let query = work::ListWork {
            project_id: self.project_id,
            state,
            pending_approval,
            tenant_id: self.tenant_id,
            assignee_passport: self.assignee_passport,
            ready: self.ready,
            limit,
            reply_bytes: Some(budget as u64),
            cursor: self.cursor,
        };
        let (found, served) = cluster.read(ctx, query).await?;
        let work: Vec<Item> = found.work.into_iter().map(Into::into).chain(found.approvals.into_iter().map(Into::into)).collect();
        let note = (!pending_approval && !has_plans).then(|| NO_EXECPLANS.into());
        let mut list = WorkList { count: work.len(), work, comments: None, note, next_cursor: found.next_cursor };
        if with_plans && list.next_cursor.is_none() {
            add_plans(&mut list, "", state, (limit, budget), ctx, cluster).await?;
        }
        Ok(Reply::at(served.revision, list))
    }
}

// ------------------------------------------------------------------ create_work

/// Put an item of work on your team's board, and answer it with its id.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWork {
    /// An existing project, from `list_projects`.
    project_id: String,
    /// What it is, in a line; at most 512 bytes.
    title: String,
    /// Your own passport name, as `get_agent_identity` tells it; another one is refused.
    created_by_passport: String,
    /// What is to be done; at most 16 KiB.
    body: Option<String>,
    #[serde(default = "planned")]
    state: State,
    /// Who does it, a passport of your team; you when absent.
    assignee_passport: Option<String>,
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
    /// A pull request that belongs to it.
    linked_pr: Option<String>,
    /// An issue that belongs to it.
    linked_issue: Option<String>,
    /// Why it is blocked, when `state` is `blocked`.
    blocker_reason: Option<String>,
    /// Items that have to be finished first; at most 50. Until then it can't begin.
    #[serde(default)]
    depends_on: Vec<String>,
}

fn planned() -> State {
    State::Planned
}

impl Tool for CreateWork {
    const NAME: &'static str = "create_work";
    const TITLE: &'static str = "Create work";
    const SCOPE: &'static str = "crux-mcp.create_work";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = false;
    type Output = Item;

    fn example() -> Value {
        json!({ "project_id": "p_default", "title": "write the parser", "created_by_passport": "claude-work" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Item>, CallError> {
        let command = work::CreateWork {
            project_id: self.project_id,
            title: self.title,
            created_by_passport: self.created_by_passport,
            body: self.body,
            state: Some(self.state.into()),
            assignee_passport: self.assignee_passport,
            tenant_id: self.tenant_id,
            linked_pr: self.linked_pr,
            linked_issue: self.linked_issue,
            blocker_reason: self.blocker_reason,
            depends_on: self.depends_on,
        };
        let (work, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, work.into()))
    }
}

// ------------------------------------------------------------------ update_work_state

/// Move an item of work to another state. A move to `blocked` needs `blocker_reason`.
///
/// Look at `applied`: false means that your moves wait for a person and all of this one is queued, no error. It happens once
/// somebody approves `queued.action_id` with `approval_decide`. With `expected_state` the move is refused when somebody else
/// moved the item first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateWorkState {
    /// From `create_work` or `list_work`.
    work_id: String,
    state: State,
    /// Your own passport name, as `get_agent_identity` tells it; another one is refused.
    by_passport: String,
    /// Why it can't go on; needed for `blocked`, and for no other state.
    blocker_reason: Option<String>,
    /// What would let it go on, for `blocked`: `needs_info` when absent.
    blocker_kind: Option<BlockerKind>,
    /// Move it only if it still is in this state. To claim an item: `in_progress`, with `planned` here and yourself as assignee.
    expected_state: Option<State>,
    /// Who does it from now on, a passport of your team.
    assignee_passport: Option<String>,
    /// Items to be finished or archived before it begins, in place of those before; [] for none. The same state leaves it there.
    depends_on: Option<Vec<String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Moved {
    /// False when the move waits for a person.
    applied: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    work: Option<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued: Option<Queued>,
    /// What a waiting move waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Queued {
    /// The request that a person decides, as `list_work` shows it under `pending_approval`.
    action_id: String,
    work_id: String,
    requested_by_passport: String,
    target_state: String,
    status: String,
    requested_at_unix_ms: u64,
    /// When it lapses undecided.
    expires_at_unix_ms: u64,
}

impl Tool for UpdateWorkState {
    const NAME: &'static str = "update_work_state";
    const BEYOND_BUDGET: bool = true;
    const TITLE: &'static str = "Move work";
    const SCOPE: &'static str = "crux-mcp.update_work_state";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = true;
    type Output = Moved;

    fn example() -> Value {
        json!({ "work_id": "w_1", "state": "in_progress", "by_passport": "claude-work" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Moved>, CallError> {
        let command = work::MoveWork {
            work_id: self.work_id,
            state: self.state.into(),
            by_passport: self.by_passport,
            blocker_reason: self.blocker_reason,
            blocker_kind: self.blocker_kind.map(Into::into),
            expected_state: self.expected_state.map(Into::into),
            assignee_passport: self.assignee_passport,
            depends_on: self.depends_on,
        };
        let (moved, revision) = cluster.propose(ctx, command).await?;
        let facts = match moved {
            work::Moved::Applied(work) => Moved { applied: true, work: Some(work.into()), queued: None, note: None },
            work::Moved::Queued(queued) => Moved {
                applied: false,
                work: None,
                note: Some(format!(
                    "The move was not made: it waits for a person to approve `{}`. Go on with other work, and look later with list_work.",
                    queued.action_id
                )),
                queued: Some(Queued {
                    action_id: queued.action_id,
                    work_id: queued.work_id,
                    requested_by_passport: queued.requested_by,
                    target_state: queued.target_state.word().into(),
                    status: "pending".into(),
                    requested_at_unix_ms: queued.requested_at.0,
                    expires_at_unix_ms: queued.expires_at.0,
                }),
            },
        };
        Ok(Reply::at(revision, facts))
    }
}

// ------------------------------------------------------------------ comment_on_work

/// Say something of an item of work, for those who read it later with `list_work` and `work_id`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommentOnWork {
    /// From `create_work` or `list_work`.
    work_id: String,
    /// Your own passport name, as `get_agent_identity` tells it; another one is refused.
    author_passport: String,
    /// What you have to say; at most 16 KiB.
    body: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Comment {
    id: String,
    work_id: String,
    author_passport: String,
    body: String,
    posted_at_unix_ms: u64,
}

impl From<work::Comment> for Comment {
    fn from(comment: work::Comment) -> Self {
        Self {
            id: comment.id,
            work_id: comment.work_id,
            author_passport: comment.author,
            body: comment.body,
            posted_at_unix_ms: comment.posted_at.0,
        }
    }
}

impl Tool for CommentOnWork {
    const NAME: &'static str = "comment_on_work";
    const BEYOND_BUDGET: bool = true;
    const TITLE: &'static str = "Comment on work";
    const SCOPE: &'static str = "crux-mcp.comment_on_work";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = false;
    type Output = Comment;

    fn example() -> Value {
        json!({ "work_id": "w_1", "author_passport": "claude-work", "body": "started" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Comment>, CallError> {
        let command = work::CommentOnWork { work_id: self.work_id, author_passport: self.author_passport, body: self.body };
        let (comment, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, comment.into()))
    }
}

// ------------------------------------------------------------------ status_feed

/// Tell at a glance what happened to work, oldest first: CLAIMED, BLOCKED, HUMAN_HOLD, RESUMED, DONE or FAILED.
///
/// The newest events are kept; `next_cursor` leads to the ones before. Look at `enabled`: with the feature off there are none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusFeed {
    /// Events of this item; absent: of all.
    work_id: Option<String>,
    /// The most events to answer, the newest of them, 1 to 1,000; fewer when they fill the reply.
    #[serde(default = "feed_limit")]
    limit: u64,
    /// `next_cursor` of the reply before, for older events.
    cursor: Option<String>,
}

fn feed_limit() -> u64 {
    200
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Feed {
    enabled: bool,
    events: Vec<FeedEvent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Pass it as `cursor` for older events.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FeedEvent {
    work_id: String,
    /// `CLAIMED`, `BLOCKED`, `HUMAN_HOLD`, `RESUMED`, `DONE` or `FAILED`.
    verb: String,
    transition_id: String,
    /// Null when the item was created there.
    from_state: Nullable<String>,
    /// Of a move that waits or failed: where it was to go.
    to_state: String,
    by_passport: String,
    at_unix_ms: u64,
}

impl Tool for StatusFeed {
    const NAME: &'static str = "status_feed";
    const TITLE: &'static str = "Show the status feed";
    const SCOPE: &'static str = "crux-mcp.status_feed";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::STATUS_FEED);
    type Output = Feed;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Feed>, CallError> {
        let query = work::StatusFeed { work_id: self.work_id, limit: self.limit, cursor: self.cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let events = found.events.into_iter().map(|event| FeedEvent {
            work_id: event.work_id,
            verb: event.verb.word().into(),
            transition_id: event.transition_id,
            from_state: Nullable(event.from.map(|from| from.word().into())),
            to_state: event.to.word().into(),
            by_passport: event.by,
            at_unix_ms: event.at.0,
        });
        let note = match (found.enabled, &found.next_cursor) {
            (false, _) => Some("The status feed is off; an operator can switch it on with CORECRUXD_FEATURE_STATUS_FEED.".to_string()),
            (true, Some(_)) => Some("Older events follow under next_cursor.".into()),
            (true, None) => None,
        };
        let facts = Feed { enabled: found.enabled, events: events.collect(), note, next_cursor: found.next_cursor };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ coord_status

/// Tell which sessions of your team are live and what each is doing, and the work in progress.
///
/// A session is live while its announcement lasts and its passport shows signs of life: it made any call within
/// `presence_ttl_secs`, or holds a punchcard. Sessions and work share a page; `note` says what is left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoordStatus {
    /// Sessions and work of this project, from `list_projects`; absent: of all.
    project_id: Option<String>,
    /// Tell too who waits for a punchcard, and for whom.
    #[serde(default)]
    waiting: bool,
    /// Sessions of this page, and items of work: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Coordination {
    now_unix_ms: u64,
    presence_ttl_secs: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    project_id: Option<String>,
    active_sessions: Vec<ActiveSession>,
    /// In progress, newest first.
    work_in_flight: Vec<Item>,
    /// With `waiting`: who queues for which resource, the first 50; `GET /v1/punchcards/waiters` has all.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Vec<Waiting>>,
    /// True when there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_waiting: Option<bool>,
    /// What is left out of this page.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ActiveSession {
    session_id_hex: String,
    passport_id: String,
    tenant_id: String,
    project_id: String,
    /// When it was first announced.
    bound_at_unix_ms: u64,
    last_seen_at_unix_ms: u64,
    /// Until when it counts as live if nothing more is heard of it.
    active_until_unix_ms: u64,
    intent: Intent,
    /// Cards of its passport, newest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    leases: Option<Vec<Lease>>,
    /// The passport holds more cards than these; `list_punchcards` shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_leases: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Lease {
    punchcard_id: String,
    resource: String,
    mode: String,
    holder_passport: String,
    expires_at_unix_ms: u64,
}

impl From<punchcard::Punchcard> for Lease {
    fn from(card: punchcard::Punchcard) -> Self {
        Self {
            punchcard_id: card.id,
            resource: card.resource,
            mode: match card.mode {
                punchcard::Mode::Modify => "modify".into(),
                punchcard::Mode::Deploy => "deploy".into(),
            },
            holder_passport: card.holder,
            expires_at_unix_ms: card.expires_at.0,
        }
    }
}

/// What a session is doing.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Intent {
    #[serde(skip_serializing_if = "Option::is_none")]
    execplan_slug: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    milestone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deploy_target: Option<String>,
    paths: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    announced_at_unix_ms: u64,
    expires_at_unix_ms: u64,
}

impl From<coord::Intent> for Intent {
    fn from(intent: coord::Intent) -> Self {
        let coord::Intent { execplan_slug, milestone, deploy_target, paths, note, .. } = intent;
        let (UnixMs(announced_at_unix_ms), UnixMs(expires_at_unix_ms)) = (intent.announced_at, intent.expires_at);
        Self { execplan_slug, milestone, deploy_target, paths, note, announced_at_unix_ms, expires_at_unix_ms }
    }
}

impl From<coord::Session> for ActiveSession {
    fn from(session: coord::Session) -> Self {
        let intent = session.intent;
        Self {
            session_id_hex: intent.session.clone(),
            passport_id: intent.passport.clone(),
            tenant_id: intent.tenant.clone(),
            project_id: intent.project_id.clone(),
            bound_at_unix_ms: intent.bound_at.0,
            last_seen_at_unix_ms: session.last_seen_at.0,
            active_until_unix_ms: session.active_until.0,
            intent: intent.into(),
            leases: Some(session.leases.into_iter().map(Into::into).collect()).filter(|leases: &Vec<Lease>| !leases.is_empty()),
            more_leases: session.more_leases.then_some(true),
        }
    }
}

fn waiters() -> punchcard::ListBlocked {
    punchcard::ListBlocked { resource: None, holder_passport: None, limit: LIST_DEFAULT as u64, cursor: None }
}

impl Tool for CoordStatus {
    const NAME: &'static str = "coord_status";
    const TITLE: &'static str = "Show who is at work";
    const SCOPE: &'static str = "crux-mcp.coord_status";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::COORD);
    type Output = Coordination;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Coordination>, CallError> {
        let project_id = self.project_id.clone();
        let query =
            coord::CoordStatus { project_id: self.project_id, limit: self.limit.unwrap_or(LIST_DEFAULT as u64), cursor: self.cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let waiters = match self.waiting {
            true => Some(cluster.read(ctx, waiters()).await?.0),
            false => None,
        };
        let left_out = match (found.more_sessions, found.more_work) {
            (false, false) => None,
            (true, false) => Some("sessions"),
            (false, true) => Some("work in progress"),
            (true, true) => Some("sessions and work in progress"),
        };
        let facts = Coordination {
            note: left_out.map(|what| format!("There are more {what}: go on with next_cursor, or ask list_work for the work alone.")),
            now_unix_ms: found.now.0,
            presence_ttl_secs: found.presence_ttl_s,
            project_id,
            active_sessions: found.sessions.into_iter().map(Into::into).collect(),
            work_in_flight: found.work.into_iter().map(Into::into).collect(),
            more_waiting: waiters.as_ref().and_then(|waiters| waiters.next_cursor.as_ref()).map(|_| true),
            waiting: waiters.map(|waiters| waiters.waiters.into_iter().map(Into::into).collect()),
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ coord_announce

/// Tell your team what this session is doing, and learn who else is near. A second announcement replaces the first.
///
/// Overlaps advise and never block: to keep others away from a file, use `punch_in`. `ttl_seconds` 0 takes the announcement
/// back. Repeating one word for word costs nothing; `intent.expires_at_unix_ms` tells until when it stands.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoordAnnounce {
    /// Your session's id, in hex; at most 128 digits.
    session_id: String,
    /// From `list_projects`.
    project_id: String,
    /// Your own passport name; another one is refused.
    by_passport: Option<String>,
    /// The plan that you work on.
    execplan_slug: Option<String>,
    /// Where in the plan you are.
    milestone: Option<String>,
    /// What you mean to deploy to, such as `deploy:crux`.
    deploy_target: Option<String>,
    /// Files or folders that you mean to touch, relative to the repository; at most 32. For information only.
    paths: Option<Vec<String>>,
    /// Anything else that others should know.
    note: Option<String>,
    /// How long it lasts: 4 hours when absent, at most a day. 0 takes it back.
    #[serde(default = "announce_ttl")]
    #[schemars(range(min = 0, max = 86_400))]
    ttl_seconds: u64,
}

fn announce_ttl() -> u64 {
    14_400
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Announced {
    /// What was announced, or null when it was taken back.
    intent: Nullable<Intent>,
    cleared: bool,
    /// Other live sessions of the project.
    live_peer_intents: Vec<PeerIntent>,
    /// How many more there are; `coord_status` shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_peer_intents: Option<u64>,
    /// Where you and somebody else would meet.
    overlaps: Vec<Overlap>,
    /// How many more there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_overlaps: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PeerIntent {
    session_id_hex: String,
    passport_id: String,
    intent: Intent,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Overlap {
    /// Empty for a lease, which belongs to a passport and not to a session.
    peer_session_id_hex: String,
    peer_passport_id: String,
    /// `execplan`, `deploy_target`, `intent_path` or `lease`.
    kind: String,
    theirs: String,
    yours: String,
}

impl From<coord::Overlap> for Overlap {
    fn from(overlap: coord::Overlap) -> Self {
        Self {
            peer_session_id_hex: overlap.peer_session,
            peer_passport_id: overlap.peer_passport,
            kind: match overlap.kind {
                coord::OverlapKind::Execplan => "execplan".into(),
                coord::OverlapKind::DeployTarget => "deploy_target".into(),
                coord::OverlapKind::IntentPath => "intent_path".into(),
                coord::OverlapKind::Lease => "lease".into(),
            },
            theirs: overlap.theirs,
            yours: overlap.yours,
        }
    }
}

/// Asks first whether the announcement stands already, so that repeating it is no entry of the log.
async fn announced(ctx: &CallContext, cluster: &Cluster, announce: coord::Announce) -> Result<(coord::Announced, Revision), CallError> {
    // The first answer under a key is the answer to its repetitions, and a card is checked in the entry made under it.
    if ctx.idempotency_key.is_none() && ctx.fencing_token.is_none() {
        let (stands, served) = cluster.read(ctx, coord::RepeatAnnounce { announce: announce.clone() }).await?;
        if let Some(stands) = stands {
            return Ok((stands, served.revision));
        }
    }
    cluster.propose(ctx, announce).await
}

impl Tool for CoordAnnounce {
    const NAME: &'static str = "coord_announce";
    const TITLE: &'static str = "Announce what you do";
    const SCOPE: &'static str = "crux-mcp.coord_announce";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::COORD);
    type Output = Announced;

    fn example() -> Value {
        json!({ "session_id": "00ff", "project_id": "p_default" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Announced>, CallError> {
        let command = coord::Announce {
            session_id: self.session_id,
            project_id: self.project_id,
            by_passport: self.by_passport,
            execplan_slug: self.execplan_slug,
            milestone: self.milestone,
            deploy_target: self.deploy_target,
            paths: self.paths.unwrap_or_default(),
            note: self.note,
            ttl_seconds: Some(self.ttl_seconds),
        };
        let (done, revision) = announced(ctx, cluster, command).await?;
        let peers = done.peers.into_iter().map(|peer| PeerIntent {
            session_id_hex: peer.session.clone(),
            passport_id: peer.passport.clone(),
            intent: peer.into(),
        });
        let facts = Announced {
            intent: Nullable(done.intent.map(Into::into)),
            cleared: done.cleared,
            live_peer_intents: peers.collect(),
            more_peer_intents: Some(done.more_peers).filter(|more| *more > 0),
            overlaps: done.overlaps.into_iter().map(Into::into).collect(),
            more_overlaps: Some(done.more_overlaps).filter(|more| *more > 0),
        };
        Ok(Reply::at(revision, facts))
    }
}
