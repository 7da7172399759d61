//! Orchestrators: what a team brings together for one aim.

use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::{flag, orchestrator};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Planned,
    Active,
    Done,
    Archived,
}

impl From<State> for orchestrator::State {
    fn from(state: State) -> Self {
        match state {
            State::Planned => orchestrator::State::Planned,
            State::Active => orchestrator::State::Active,
            State::Done => orchestrator::State::Done,
            State::Archived => orchestrator::State::Archived,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberType {
    Passport,
    Work,
    Execplan,
    Handoff,
}

impl From<MemberType> for orchestrator::MemberKind {
    fn from(kind: MemberType) -> Self {
        match kind {
            MemberType::Passport => orchestrator::MemberKind::Passport,
            MemberType::Work => orchestrator::MemberKind::Work,
            MemberType::Execplan => orchestrator::MemberKind::Execplan,
            MemberType::Handoff => orchestrator::MemberKind::Handoff,
        }
    }
}

/// An orchestrator as callers see it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Orchestrator {
    id: String,
    name: String,
    /// Who leads it, or null.
    assignee_passport: Nullable<String>,
    created_by_passport: String,
    tenant_id: String,
    /// `planned`, `active`, `done` or `archived`.
    state: String,
    /// In the order in which they were attached.
    members: Vec<Member>,
    progress: Progress,
    created_at_unix_ms: u64,
    /// When it was last changed; its work moves without that.
    updated_at_unix_ms: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Member {
    /// `passport`, `work`, `execplan` or `handoff`.
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "ref")]
    reference: String,
    /// Of work: where it stands now.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
}

/// How the members that are work stand now.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Progress {
    /// Items of work among the members.
    work_total: u64,
    planned: u64,
    in_progress: u64,
    blocked: u64,
    archived: u64,
    complete: u64,
    deployed: u64,
    /// The part of the work, without archived items, that is complete or deployed; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    percent_done: Option<u64>,
}

impl From<orchestrator::OrchestratorView> for Orchestrator {
    fn from(view: orchestrator::OrchestratorView) -> Self {
        let orchestrator::Progress { total, planned, in_progress, blocked, archived, complete, deployed, percent_done } = view.progress();
        let progress = Progress { work_total: total, planned, in_progress, blocked, archived, complete, deployed, percent_done };
        let orchestrator::OrchestratorView { orchestrator, work } = view;
        let member = |member: orchestrator::Member| Member {
            kind: member.kind.word().into(),
            state: work.get(&member.reference).map(|state| state.word().into()),
            reference: member.reference,
        };
        Self {
            id: orchestrator.id,
            name: orchestrator.name,
            assignee_passport: Nullable(orchestrator.assignee),
            created_by_passport: orchestrator.created_by,
            tenant_id: orchestrator.tenant,
            state: orchestrator.state.word().into(),
            members: orchestrator.members.into_iter().map(member).collect(),
            progress,
            created_at_unix_ms: orchestrator.created_at.0,
            updated_at_unix_ms: orchestrator.updated_at.0,
        }
    }
}

// ------------------------------------------------------------------ create_orchestrator

/// Create an orchestrator: work, people, plans and handoffs brought together for one aim. Answers it with its id.
///
/// Attach its members with `attach_to_orchestrator`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOrchestrator {
    /// What it is for, in a line; at most 512 bytes.
    name: String,
    /// Your own passport name, as `get_agent_identity` tells it; another one is refused.
    created_by_passport: String,
    /// Who leads it.
    assignee_passport: Option<String>,
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
    /// `planned` when absent.
    state: Option<State>,
}

impl Tool for CreateOrchestrator {
    const NAME: &'static str = "create_orchestrator";
    const TITLE: &'static str = "Create an orchestrator";
    const SCOPE: &'static str = "crux-mcp.create_orchestrator";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::ORCHESTRATORS;
    const IDEMPOTENT: bool = false;
    const SWITCH: Option<flag::Definition> = Some(flag::ORCHESTRATORS);
    type Output = Orchestrator;

    fn example() -> Value {
        json!({ "name": "release", "created_by_passport": "claude-work" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Orchestrator>, CallError> {
        let command = orchestrator::CreateOrchestrator {
            name: self.name,
            created_by_passport: self.created_by_passport,
            assignee_passport: self.assignee_passport,
            tenant_id: self.tenant_id,
            state: self.state.map(Into::into),
        };
        let (made, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, made.into()))
    }
}

// ------------------------------------------------------------------ attach_to_orchestrator

/// Attach a member to an orchestrator; one that is there already stays as it is.
///
/// Work and passports have to exist in your team. Plans and handoffs are kept as you name them, without a look at them. One that is
/// `done` takes no work that is still open. A plan or handoff is one member, with or without `execplan:` or `handoff:` before its name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachToOrchestrator {
    /// From `create_orchestrator` or `list_orchestrators`.
    orchestrator_id: String,
    /// `w_...` for work, `execplan:...` for a plan, `ho_...` or `handoff:...` for a handoff, else the name of a passport.
    member_ref: String,
    /// What the member is, where its reference does not begin so.
    member_type: Option<MemberType>,
}

impl Tool for AttachToOrchestrator {
    const NAME: &'static str = "attach_to_orchestrator";
    const TITLE: &'static str = "Attach to an orchestrator";
    const SCOPE: &'static str = "crux-mcp.attach_to_orchestrator";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::ORCHESTRATORS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::ORCHESTRATORS);
    type Output = Orchestrator;

    fn example() -> Value {
        json!({ "orchestrator_id": "orc_1", "member_ref": "w_1" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Orchestrator>, CallError> {
        let Self { orchestrator_id, member_ref, member_type } = self;
        let command = orchestrator::AttachMember { orchestrator_id, member_ref, member_type: member_type.map(Into::into) };
        let (changed, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, changed.into()))
    }
}

// ------------------------------------------------------------------ detach_from_orchestrator

/// Take a member out of an orchestrator. The member itself stays what it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetachFromOrchestrator {
    /// From `create_orchestrator` or `list_orchestrators`.
    orchestrator_id: String,
    /// As it stands among the members.
    member_ref: String,
}

impl Tool for DetachFromOrchestrator {
    const NAME: &'static str = "detach_from_orchestrator";
    const TITLE: &'static str = "Detach from an orchestrator";
    const SCOPE: &'static str = "crux-mcp.detach_from_orchestrator";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::ORCHESTRATORS;
    const IDEMPOTENT: bool = false;
    const SWITCH: Option<flag::Definition> = Some(flag::ORCHESTRATORS);
    type Output = Orchestrator;

    fn example() -> Value {
        json!({ "orchestrator_id": "orc_1", "member_ref": "w_1" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Orchestrator>, CallError> {
        let command = orchestrator::DetachMember { orchestrator_id: self.orchestrator_id, member_ref: self.member_ref };
        let (changed, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, changed.into()))
    }
}

// ------------------------------------------------------------------ list_orchestrators

/// List your team's orchestrators, newest first, each with its members and how its work stands now.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListOrchestrators {
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
    /// Those in this state; absent: in any.
    state: Option<State>,
    /// Rows of this page: 50 when absent, at most 1,000. Fewer come when they fill a reply.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Orchestrators {
    /// How many there are on this page.
    count: u64,
    orchestrators: Vec<Orchestrator>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for ListOrchestrators {
    const NAME: &'static str = "list_orchestrators";
    const TITLE: &'static str = "List orchestrators";
    const SCOPE: &'static str = "crux-mcp.list_orchestrators";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::ORCHESTRATORS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::ORCHESTRATORS);
    type Output = Orchestrators;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Orchestrators>, CallError> {
        let Self { tenant_id, state, limit, cursor } = self;
        let limit = limit.unwrap_or(LIST_DEFAULT as u64);
        let query = orchestrator::ListOrchestrators { tenant_id, state: state.map(Into::into), limit, cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let orchestrators: Vec<Orchestrator> = found.orchestrators.into_iter().map(Into::into).collect();
        let facts = Orchestrators { count: orchestrators.len() as u64, orchestrators, next_cursor: found.next_cursor };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ update_orchestrator

/// Change an orchestrator's name, lead or state. The state `archived` closes it: nothing changes it any more.
///
/// Give at least one of `name`, `assignee_passport` and `state`; what you leave out stays. Its work is not moved. One that has begun
/// is not `planned` again, and none is `done` while work among its members is planned, in progress or blocked: moved back there, such work
/// makes it `active` again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateOrchestrator {
    /// From `create_orchestrator` or `list_orchestrators`.
    orchestrator_id: String,
    /// What it is for, in a line; at most 512 bytes.
    name: Option<String>,
    /// Who leads it.
    assignee_passport: Option<String>,
    /// `archived` closes it for good.
    state: Option<State>,
}

impl Tool for UpdateOrchestrator {
    const NAME: &'static str = "update_orchestrator";
    const TITLE: &'static str = "Change an orchestrator";
    const SCOPE: &'static str = "crux-mcp.update_orchestrator";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::ORCHESTRATORS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::ORCHESTRATORS);
    type Output = Orchestrator;

    fn example() -> Value {
        json!({ "orchestrator_id": "orc_1", "state": "active" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Orchestrator>, CallError> {
        let Self { orchestrator_id, name, assignee_passport, state } = self;
        let command = orchestrator::UpdateOrchestrator { orchestrator_id, name, assignee_passport, state: state.map(Into::into) };
        let (changed, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, changed.into()))
    }
}
