//! Projects and work gates over HTTP, for operators: which projects there are, and whose moves of work wait for a person.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::identity::{GetPassport, Passport, SetWorkGate};
use quorate_domain::work::{Project, PutProject};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::registry::{Reply, Tool};
use crate::rest;
use crate::server::App;
use crate::tools::work::CreateWork;

/// What setting and seeing a work gate needs.
pub const GATING: &str = "admin";

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// `GET /v1/passports/{passport}/work-gate`: whether a passport's moves of work wait for a person.
pub async fn gate(app: &Arc<App>, passport: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &[GATING], |ctx, _: Nothing| async move {
        let (found, served) = cluster.read(&ctx, GetPassport { passport }).await?;
        Ok(Reply::at(served.revision, gate_of(found)))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gate {
    agent_work_gate: bool,
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

fn gate_of(passport: Passport) -> Value {
    json!({ "passport_id": passport.name, "agent_work_gate": passport.agent_work_gate })
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
    let gate = json!({ "type": "object", "properties": { "passport_id": text, "agent_work_gate": { "type": "boolean" } } });
    let gating = |id: &str, summary: &str| {
        json!({
            "operationId": id,
            "summary": summary,
            "parameters": [{ "name": "passport", "in": "path", "required": true, "schema": text }],
            "responses": { "200": { "description": "The gate", "content": { "application/json": { "schema": gate } } }, "default": failure },
        })
    };
    let mut set_gate = gating("set_work_gate", "Have a passport's moves of work wait for a person, or not");
    let given = json!({ "type": "object", "properties": { "agent_work_gate": { "type": "boolean" } }, "required": ["agent_work_gate"], "additionalProperties": false });
    set_gate["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": given } } });
    let show_gate = gating("get_work_gate", "Show whether a passport's moves of work wait for a person");
    let id = json!([{ "name": "id", "in": "path", "required": true, "schema": text }]);
    vec![
        ("/v1/projects", json!({ "post": operation("create_project", "Make a project", json!([]), json!(["name"])) })),
        ("/v1/passports/{passport}/work-gate", json!({ "get": show_gate, "put": set_gate })),
        ("/v1/projects/{id}", json!({ "patch": operation("change_project", "Change a project", id, json!([])) })),
    ]
}
