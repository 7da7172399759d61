//! Projects over HTTP, for operators: tools show them, and work belongs to one.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::work::{Project, PutProject};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Reply, Tool};
use crate::rest;
use crate::server::App;
use crate::tools::work::CreateWork;

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
