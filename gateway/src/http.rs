//! The same tools over plain HTTP, and what operators look at.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use quorate_domain::Principal;
use quorate_proof::Report;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::arguments::read_as;
use crate::auth::Credential;
use crate::call::{CallContext, CallError};
use crate::edge;
use crate::limit::GET_WITHIN;
use crate::mcp::idempotency_key;
use crate::registry::Answer;
use crate::server::App;
use crate::tools::measures;
use crate::tools::observations::{self, Told};
use crate::traces::Tags;

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
        Ok(answer) => told(answer),
        Err(error) => refusal(&error),
    }
}

/// A tool's answer as a response.
pub fn told(answer: Answer) -> Response<Body> {
    let mut response = edge::json_response(StatusCode::OK, answer.facts);
    if let Some(revision) = answer.revision {
        response.headers_mut().insert(REVISION, HeaderValue::from(revision.0));
    }
    if let Some(warning) = answer.warning.and_then(|warning| HeaderValue::try_from(warning).ok()) {
        response.headers_mut().insert(WARNING, warning);
    }
    response
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
pub async fn observe<T: DeserializeOwned + JsonSchema + 'static>(
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
    let read = arguments(&headers, &body).and_then(read_as);
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
    let read = may.and_then(|()| arguments(&headers, &body)).and_then(read_as);
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
