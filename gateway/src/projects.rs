//! Projects over HTTP, for operators: tools show them, and work belongs to one.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::work::{Project, PutProject};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::registry::{Reply, Tool};
use crate::rest;
use crate::server::App;
use crate::tools::work::CreateWork;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    name: Option<String>,
    default_passport_id: Option<String>,
    #[serde(default)]
    add_members: Vec<String>,
    #[serde(default)]
    remove_members: Vec<String>,
}

/// `POST /v1/projects` makes one, `PATCH /v1/projects/{id}` changes one: `{name, default_passport_id?, add_members?, remove_members?}`.
pub async fn put(app: &Arc<App>, id: Option<String>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[CreateWork::SCOPE], |ctx, asked: Change| async move {
        let Change { name, default_passport_id, add_members, remove_members } = asked;
        let (project, revision) = cluster.propose(&ctx, PutProject { id, name, default_passport_id, add_members, remove_members }).await?;
        Ok(Reply::at(revision, shown(project)))
    })
    .await
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

pub fn openapi(failure: &Value) -> Vec<(&'static str, Value)> {
    let (text, texts) = (json!({ "type": "string" }), json!({ "type": "array", "items": { "type": "string" } }));
    let properties = json!({ "name": text, "default_passport_id": text, "add_members": texts, "remove_members": texts });
    let operation = |id: &str, summary: &str, parameters: Value, required: Value| {
        json!({
            "operationId": id,
            "summary": summary,
            "parameters": parameters,
            "requestBody": { "required": true, "content": { "application/json": { "schema": { "type": "object", "properties": properties, "required": required, "additionalProperties": false } } } },
            "responses": { "200": { "description": "The project", "content": { "application/json": { "schema": { "type": "object" } } } }, "default": failure },
        })
    };
    let id = json!([{ "name": "id", "in": "path", "required": true, "schema": text }]);
    vec![
        ("/v1/projects", json!({ "post": operation("create_project", "Make a project", json!([]), json!(["name"])) })),
        ("/v1/projects/{id}", json!({ "patch": operation("change_project", "Change a project", id, json!([])) })),
    ]
}
