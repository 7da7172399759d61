//! The same tools over plain HTTP, and what operators look at.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use quorate_domain::Principal;
use quorate_domain::refusal::shown;
use quorate_proof::Report;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::auth::Credential;
use crate::call::{CallContext, CallError};
use crate::edge;
use crate::ingest;
use crate::limit::GET_WITHIN;
use crate::mcp::idempotency_key;
use crate::server::App;
use crate::tools::measures;
use crate::tools::observations::{self, Told};
use crate::traces::Tags;
use crate::{approvals, budgets, cards, kinds, projects, proofs, scans, sign_in, sync};

/// Where the log stood.
pub const REVISION: HeaderName = HeaderName::from_static("quorate-revision");
/// What the caller should know besides the answer.
pub const WARNING: HeaderName = HeaderName::from_static("quorate-warning");

/// `POST /v1/tools/crux/{tool}`: the arguments in, the facts out.
pub async fn call_tool(app: &Arc<App>, name: &str, request: Request<Body>) -> Response<Body> {
    let Received { headers, body, caller, deadline } = match receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let Some(entry) = app.tools.find(name).cloned() else {
        let error = CallError::arguments("there is no such tool", "`GET /v1/openapi.json` lists them.");
        return edge::problem(StatusCode::NOT_FOUND, "Not Found", error.facts());
    };
    let arguments = match arguments(&headers, &body) {
        Ok(arguments) => arguments,
        Err(error) => return refusal(&error),
    };
    let ctx = CallContext {
        idempotency_key: idempotency_key(&headers),
        tags: tags(&headers),
        ..CallContext::new(caller, deadline, app.services.clone())
    };
    match app.call(&entry, arguments, ctx).await {
        Ok(answer) => {
            let mut response = edge::json_response(StatusCode::OK, answer.facts);
            if let Some(revision) = answer.revision {
                response.headers_mut().insert(REVISION, HeaderValue::from(revision.0));
            }
            if let Some(warning) = answer.warning.and_then(|warning| HeaderValue::try_from(warning).ok()) {
                response.headers_mut().insert(WARNING, warning);
            }
            response
        }
        Err(error) => refusal(&error),
    }
}

/// What a client says that its call belongs to.
pub fn tags(headers: &HeaderMap) -> Tags {
    let tag = |name: &str| headers.get(name).and_then(|tag| tag.to_str().ok()).map(|tag| tag.trim().to_string());
    Tags { turn_id: tag("quorate-turn"), session_id: tag("quorate-session") }
}

/// A request with a body, read and its caller known.
pub struct Received {
    pub headers: HeaderMap,
    pub body: Bytes,
    pub caller: Option<Arc<Principal>>,
    pub deadline: Instant,
}

/// The request, or the answer to one that is too large, too slow, or has a token that is not valid.
pub async fn receive(app: &Arc<App>, request: Request<Body>) -> Result<Received, Response<Body>> {
    receive_within(app, request, app.settings.call_deadline).await
}

/// The same for a call that may take so long.
pub async fn receive_within(app: &Arc<App>, request: Request<Body>, within: Duration) -> Result<Received, Response<Body>> {
    let (parts, body) = request.into_parts();
    let body = edge::read_body(body, app.settings.patience.body).await.map_err(|error| {
        let (title, next) = error.told();
        edge::problem(error.status(), title, CallError::arguments(error.to_string(), next).facts())
    })?;
    let deadline = Instant::now() + within;
    let caller = identify(app, &parts.headers, deadline).await?;
    Ok(Received { headers: parts.headers, body, caller, deadline })
}

/// `POST /v1/sessions/{id}/observations`, and its `/batch`: what happened in a session.
pub async fn observe<T: DeserializeOwned>(
    app: &Arc<App>,
    session_id: String,
    request: Request<Body>,
    told: impl FnOnce(T) -> Vec<Told>,
) -> Response<Body> {
    let Received { headers, body, caller, deadline } = match receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    match &caller {
        None => return refusal(&CallError::Unauthenticated),
        Some(caller) if !caller.may(observations::TELLING) => {
            return refusal(&CallError::MissingScope { scope: observations::TELLING.into() });
        }
        Some(_) => {}
    }
    let idempotency_key = idempotency_key(&headers);
    let ctx = CallContext { idempotency_key, ..CallContext::new(caller, deadline, app.services.clone()) };
    let read = arguments(&headers, &body).and_then(|value| {
        let fix = "An observation is {\"provider\", \"kind\", \"payload\", \"client_ts\"?}; a batch is {\"observations\": [...]} of them.";
        serde_json::from_value(value).map_err(|error| CallError::arguments(shown(&error.to_string()), fix))
    });
    let done = match read {
        Ok(value) => observations::tell(&ctx, &app.cluster, session_id, told(value)).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(reply) => {
            let mut response = edge::json_response(StatusCode::CREATED, reply.facts.to_string());
            if let Some(revision) = reply.revision {
                response.headers_mut().insert(REVISION, HeaderValue::from(revision.0));
            }
            response
        }
        Err(error) => refusal(&error),
    }
}

/// `POST /v1/activity`: a turn into a session's journal.
pub async fn write_activity(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let Received { headers, body, caller, deadline } = match receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    if caller.is_none() {
        return refusal(&CallError::Unauthenticated);
    }
    let ctx = CallContext { idempotency_key: idempotency_key(&headers), ..CallContext::new(caller, deadline, app.services.clone()) };
    // Who may not write is told so whatever the body is.
    let may = measures::may_write(&ctx);
    let read = may.and_then(|()| arguments(&headers, &body)).and_then(|value| {
        let fix = "A turn is {\"session_id\", \"kind\", \"text\", \"private\"?, \"intent\"?, \"tool\"?, \"confidence\"?, \"fact_refs\"?, \"receipt_ids\"?}.";
        serde_json::from_value(value).map_err(|error| CallError::arguments(shown(&error.to_string()), fix))
    });
    let done = match read {
        Ok(turn) => measures::write_turn(&ctx, &app.cluster, turn).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(reply) => {
            let mut response = edge::json_response(StatusCode::CREATED, reply.facts.to_string());
            if let Some(revision) = reply.revision {
                response.headers_mut().insert(REVISION, HeaderValue::from(revision.0));
            }
            response
        }
        Err(error) => refusal(&error),
    }
}

/// `GET /v1/activity/turn/{turn_id}`: a turn with its whole text.
pub async fn read_activity(app: &Arc<App>, turn_id: String, headers: &HeaderMap) -> Response<Body> {
    let deadline = get_deadline(app);
    let caller = match identify(app, headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    match measures::read_turn(&ctx, &app.cluster, turn_id).await {
        Ok((facts, served)) => {
            let mut response = edge::json_response(StatusCode::OK, facts.to_string());
            response.headers_mut().insert(REVISION, HeaderValue::from(served.revision.0));
            response
        }
        Err(error) => refusal(&error),
    }
}

/// `POST /v1/output/verify`: a decoded manifest in, what it shows out, if one of this cluster's keys signed it.
pub async fn verify_output(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let Received { body, caller, deadline, .. } = match receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let Some(caller) = caller else { return refusal(&CallError::Unauthenticated) };
    let verified = quorate_proof::file::verify_json(&body, None);
    let key_id = verified.as_ref().ok().map(|report| report.key_id.as_str());
    let keys = app.services.receipt_keys.with(key_id, &app.cluster, &caller, None, deadline).await;
    let keys = match keys {
        Ok(keys) => keys,
        Err(error) => return refusal(&error),
    };
    let is_known = |report: &Report| keys.iter().any(|(id, _)| *id == report.key_id);
    let answer = match verified {
        Ok(report) if is_known(&report) => json!({ "valid": true, "report": report }),
        Ok(report) => json!({ "valid": false, "error": format!("the key `{}` is not this cluster's", report.key_id) }),
        Err(fault) => json!({ "valid": false, "error": fault.to_string() }),
    };
    edge::json_response(StatusCode::OK, answer.to_string())
}

/// The JSON of a body; none is an empty object.
pub fn arguments(headers: &HeaderMap, body: &[u8]) -> Result<Value, CallError> {
    if body.is_empty() {
        return Ok(json!({}));
    }
    if !edge::is_json(headers) {
        return Err(CallError::arguments("the body is not marked as JSON in UTF-8", "Send `Content-Type: application/json`."));
    }
    crate::json::parse(body).map_err(|problem| CallError::arguments(problem, "Send one JSON object."))
}

/// How long an address that only reads looks for its answer.
pub fn get_within(app: &App) -> Duration {
    app.settings.call_deadline.min(GET_WITHIN)
}

/// Until when, from now on.
pub fn get_deadline(app: &App) -> Instant {
    Instant::now() + get_within(app)
}

/// Why it is not known who is calling.
pub enum NoCaller {
    BadToken,
    /// The cluster could not tell.
    Failed(CallError),
}

pub const BAD_TOKEN: &str = "the token is unknown, expired or revoked; ask an operator for a new one";

/// Who is calling; nobody without a token.
pub async fn caller(app: &Arc<App>, headers: &HeaderMap, deadline: Instant) -> Result<Option<Arc<Principal>>, NoCaller> {
    let token = match Credential::of(headers) {
        Credential::None => return Ok(None),
        Credential::Malformed => None,
        Credential::Bearer(token) => app.tokens.resolve(&app.cluster, &token, deadline).await.map_err(NoCaller::Failed)?,
    };
    if let Some(caller) = &token {
        app.services.meter.saw(caller);
    }
    token.map(Some).ok_or(NoCaller::BadToken)
}

/// The same, or the answer to a token that is not valid.
pub async fn identify(app: &Arc<App>, headers: &HeaderMap, deadline: Instant) -> Result<Option<Arc<Principal>>, Response<Body>> {
    caller(app, headers, deadline).await.map_err(|none| match none {
        NoCaller::Failed(error) => refusal(&error),
        NoCaller::BadToken => {
            let facts = json!({ "code": "UNAUTHENTICATED", "message": BAD_TOKEN, "retryable": false, "wrote": "no" });
            let mut response = edge::problem(StatusCode::UNAUTHORIZED, "Unauthorized", facts);
            edge::ask_for_token(&mut response, true);
            response
        }
    })
}

/// The error of a call as a problem document.
pub fn refusal(error: &CallError) -> Response<Body> {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = edge::problem(status, status.canonical_reason().unwrap_or("Error"), error.facts());
    if status == StatusCode::UNAUTHORIZED {
        edge::ask_for_token(&mut response, false);
    }
    edge::retry_after(&mut response, error.retry_after_ms());
    response
}

// ------------------------------------------------------------------ health

/// `GET /readyz`: 200 when calls can be served. The reason codes are stable: `draining`, `no_node`, `no_leader`.
pub fn readyz(app: &Arc<App>, verbose: bool) -> Response<Body> {
    let view = app.cluster.view();
    let mut reasons = Vec::new();
    if app.is_draining() {
        reasons.push("draining");
    }
    if view.serving.is_empty() {
        reasons.push("no_node");
    }
    if view.leader.is_none() {
        reasons.push("no_leader");
    }
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if !verbose {
        let body = if reasons.is_empty() { "ok\n".into() } else { format!("{}\n", reasons.join("\n")) };
        return edge::with_type(status, "text/plain; charset=utf-8", body);
    }
    let body = json!({
        "ready": reasons.is_empty(),
        "reasons": reasons,
        "leader": view.leader.map(|(_, address)| address),
        "serving": view.serving,
        "problems": view.problems,
    });
    edge::json_response(status, body.to_string())
}

// ------------------------------------------------------------------ OpenAPI

/// `GET /v1/openapi.json`.
pub fn openapi(app: &App) -> Value {
    let problem = json!({
        "type": "object",
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "code": { "description": "A number of JSON-RPC, or a stable word." },
            "message": { "type": "string", "description": "What happened, whether anything was written, and what to do next." },
            "retryable": { "type": "boolean" },
            "wrote": { "type": "string", "enum": ["no", "unknown"] },
            "data": { "type": "object" },
        },
        "required": ["type", "title", "status"],
    });
    let failure = json!({ "description": "Refused or failed", "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } } });
    let mut paths = json!({});
    for (path, id, summary) in [
        ("/v1/guard", "guard_edit", "Ask before an edit, and lease what it changes"),
        ("/v1/hook/claude-code", "hook_claude_code", "The same as an HTTP hook of Claude Code"),
    ] {
        paths[path] = json!({ "post": {
            "operationId": id,
            "summary": summary,
            "requestBody": { "required": true, "content": { "application/json": { "schema": { "type": "object" } } } },
            "responses": { "200": { "description": "The verdict", "content": { "application/json": { "schema": { "type": "object" } } } }, "default": failure },
        } });
    }
    paths["/v1/events"] = json!({ "get": {
        "operationId": "follow_events",
        "summary": "Follow changes",
        "description": "Every change of the tenant as server-sent events: `change` with `{revision, kind, id, about}`; `progress` with \
            `{revision}`, up to where there is nothing more to tell; `compacted` with `{through}`, `refused` and `stopping` are the last \
            one of a stream. Go on from the id of the last event. A reader that leaves events waiting for 30 seconds is cut off.",
        "parameters": [
            { "name": "since", "in": "query", "schema": { "type": "string" }, "description": "A revision, or the id of an event; now when absent." },
            { "name": "kinds", "in": "query", "schema": { "type": "string" }, "description": "Kinds such as `work.moved`, or beginnings such as `fact.`, with commas between." },
            { "name": "Last-Event-ID", "in": "header", "schema": { "type": "string" }, "description": "Goes before `since`." },
        ],
        "responses": {
            "200": { "description": "The stream", "content": { "text/event-stream": { "schema": { "type": "string" } } } },
            "410": { "description": "What happened after `since` is gone; `data.through` says up to where" },
            "default": failure,
        },
    } });
    for (path, operation) in proofs::openapi(&failure)
        .into_iter()
        .chain(sign_in::openapi(&failure))
        .chain(observations::openapi(&failure))
        .chain(measures::openapi(&failure))
        .chain(cards::openapi(&failure))
        .chain(approvals::openapi(&failure))
        .chain(projects::openapi(&failure))
        .chain(budgets::openapi(&failure))
        .chain(kinds::openapi(&failure))
        .chain(scans::openapi(&failure))
        .chain(ingest::openapi(&failure))
        .chain(sync::serve::openapi(&failure))
    {
        paths[path] = operation;
    }
    for entry in app.tools.entries() {
        let mut operation = json!({
            "operationId": entry.name,
            "summary": entry.title,
            "description": entry.description,
            "tags": [entry.group],
            "requestBody": { "required": true, "content": { "application/json": { "schema": entry.input, "example": entry.example } } },
            "responses": {
                "200": {
                    "description": "The facts",
                    "headers": { "Quorate-Revision": { "description": "Where the log stood", "schema": { "type": "integer" } } },
                    "content": { "application/json": { "schema": entry.output } },
                },
                "default": failure,
            },
        });
        if entry.is_mutating() {
            operation["parameters"] = json!([{ "name": "Idempotency-Key", "in": "header", "schema": { "type": "string" }, "description": "The same as the argument `idempotency_key`." }]);
        }
        paths[format!("/v1/tools/crux/{}", entry.name)] = json!({ "post": operation });
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Quorate", "version": env!("CARGO_PKG_VERSION"), "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" } },
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Problem": problem },
        },
    })
}
