//! The addresses of the guard: `POST /v1/guard` for front ends that have worked out the names, and
//! `POST /v1/hook/claude-code` for a host that sends its own JSON.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::{Decision, Event, Guard, Host, Verdict, host, names};
use crate::call::{CallContext, CallError};
use crate::edge;
use crate::http::{self, Received};
use crate::server::App;

/// A host that calls HTTP waits longer than one that runs a program.
const HTTP_WITHIN_MS: u64 = 2_500;
/// Names the folder that is the repository; the working directory when absent.
const ROOT: &str = "quorate-root";

/// `POST /v1/guard`: a [`Guard`] in, a [`Verdict`] out.
pub async fn guard(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    answer(app, request, |input, _| {
        serde_json::from_value::<Guard>(input).map(|guard| (guard, verdict as Render)).map_err(|error| {
            CallError::arguments(error.to_string(), "Send `moment`, `take`, `check` and `within_ms`, as `docs/clients/hooks.md` shows.")
        })
    })
    .await
}

/// `POST /v1/hook/claude-code`: what Claude Code sends to a hook of type `http`, and its answer.
pub async fn claude_code(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    answer(app, request, |input, headers| {
        let moment = Host::moment(&input).ok_or_else(|| {
            let fix = "Send PreToolUse, PostToolUse, SessionStart and SessionEnd here and nothing else.";
            CallError::arguments("`hook_event_name` is none that this hook knows", fix)
        })?;
        let event = Event::read(&input, &|name| (name == "PWD").then(|| input["cwd"].as_str().unwrap_or_default().to_string()));
        let root = headers.get(ROOT).and_then(|root| root.to_str().ok()).filter(|root| root.starts_with('/')).unwrap_or(&event.cwd);
        let names = names::spelt(&event.touched, &event.cwd, root);
        let host = Host::ClaudeCode.word().to_string();
        let guard = Guard {
            moment,
            host,
            session: event.session,
            take: names.take,
            check: names.check,
            passport: None,
            within_ms: HTTP_WITHIN_MS,
            config: Vec::new(),
        };
        Ok((guard, host::claude_http as Render))
    })
    .await
}

type Render = fn(super::Moment, &Verdict) -> Value;

fn verdict(_: super::Moment, verdict: &Verdict) -> Value {
    json!(verdict)
}

/// Authenticates, reads, decides and answers. A call that nobody can decide is a problem document: what then is done is the
/// caller's policy.
async fn answer(
    app: &Arc<App>,
    request: Request<Body>,
    read: impl FnOnce(Value, &HeaderMap) -> Result<(Guard, Render), CallError>,
) -> Response<Body> {
    let Received { headers, body, caller, deadline } = match http::receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let decided = async {
        let _permit = app.permit()?;
        let ctx = CallContext::new(caller, deadline, app.services.clone());
        ctx.principal()?;
        let (guard, render) = read(http::arguments(&headers, &body)?, &headers)?;
        let (moment, is_empty) = (guard.moment, guard.take.is_empty() && guard.check.is_empty());
        let needs_names = matches!(moment, super::Moment::BeforeEdit | super::Moment::AfterEdit);
        let verdict = if needs_names && is_empty { Verdict::allow() } else { guard.decide(&ctx, &app.cluster).await? };
        if verdict.decision == Decision::Deny {
            tracing::debug!(reason = %verdict.text, "an edit was denied");
        }
        Ok(render(moment, &verdict))
    };
    match decided.await {
        Ok(answer) => edge::json_response(StatusCode::OK, answer.to_string()),
        Err(error) => http::refusal(&error),
    }
}
