//! Projects and work gates over HTTP, for operators: which projects there are, and whose moves of work wait for a person.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::identity::{GetPassport, Passport, SetWorkGate};
use quorate_domain::work::{Project, PutProject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Reply, Tool};
use crate::rest::{self, NoParameters};
use crate::server::App;
use crate::tools::work::CreateWork;

/// What setting and seeing a work gate needs.
pub const GATING: &str = "admin";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Made {
    name: String,
    default_passport_id: Option<String>,
    #[serde(default)]
    add_members: Vec<String>,
    #[serde(default)]
    remove_members: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    name: Option<String>,
    default_passport_id: Option<String>,
    #[serde(default)]
    add_members: Vec<String>,
    #[serde(default)]
    remove_members: Vec<String>,
}

/// `POST /v1/projects` makes one.
pub async fn create(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[CreateWork::SCOPE], |ctx, asked: Made| async move {
        let Made { name, default_passport_id, add_members, remove_members } = asked;
        put(cluster, &ctx, PutProject { id: None, name: Some(name), default_passport_id, add_members, remove_members }).await
    })
    .await
}

/// `PATCH /v1/projects/{id}` changes one.
pub async fn change(app: &Arc<App>, id: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[CreateWork::SCOPE], |ctx, asked: Change| async move {
        let Change { name, default_passport_id, add_members, remove_members } = asked;
        put(cluster, &ctx, PutProject { id: Some(id), name, default_passport_id, add_members, remove_members }).await
    })
    .await
}

async fn put(cluster: &Cluster, ctx: &CallContext, command: PutProject) -> Result<Reply<Value>, CallError> {
    let (project, revision) = cluster.propose(ctx, command).await?;
    Ok(Reply::at(revision, shown(project)))
}

fn shown(project: Project) -> Value {
    json!({
        "id": project.id,
        "name": project.name,
        "default_passport_id": project.default_passport_id,
        "members": project.members,
        "created_at_unix_ms": project.created_at,
    })
}

/// `GET /v1/passports/{passport}/work-gate`: whether a passport's moves of work wait for a person.
pub async fn gate(app: &Arc<App>, passport: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &[GATING], |ctx, _: NoParameters| async move {
        let (found, served) = cluster.read(&ctx, GetPassport { passport }).await?;
        Ok(Reply::at(served.revision, gate_of(found)))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Whether its moves of work wait for a person.
    pub agent_work_gate: bool,
}

/// `PUT /v1/passports/{passport}/work-gate` `{agent_work_gate}`: from now on they wait, or do not.
pub async fn set_gate(app: &Arc<App>, passport: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[GATING], |ctx, Gate { agent_work_gate }: Gate| async move {
        let tenant = ctx.principal()?.tenant.clone();
        let (set, revision) = cluster.propose(&ctx, SetWorkGate { tenant, passport, gated: agent_work_gate }).await?;
        Ok(Reply::at(revision, gate_of(set)))
    })
    .await
}

/// What both answer.
#[derive(Serialize, JsonSchema)]
pub struct WorkGate {
    passport_id: String,
    /// Whether its moves of work wait for a person.
    agent_work_gate: bool,
}

fn gate_of(passport: Passport) -> WorkGate {
    WorkGate { passport_id: passport.name, agent_work_gate: passport.agent_work_gate }
}
