//! REST resources: typed parameters in, facts out, with the token, scope and request id of every other call.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::Query;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use quorate_domain::refusal::shown;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{CallContext, CallError};
use crate::edge;
use crate::http::{REVISION, Received, arguments, identify, receive, refusal};
use crate::mcp::idempotency_key;
use crate::rates::Lane;
use crate::registry::Reply;
use crate::server::App;

/// Answers a read whose parameters stand in the address.
pub async fn read<T, F, Fut>(
    app: &Arc<App>,
    request: Request<Body>,
    scopes: &[&str],
    run: impl FnOnce(CallContext, T) -> Fut,
) -> Response<Body>
where
    T: DeserializeOwned,
    F: Serialize,
    Fut: Future<Output = Result<Reply<F>, CallError>>,
{
    let deadline = Instant::now() + app.settings.call_deadline;
    let caller = match identify(app, request.headers(), deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    let parameters = Query::<T>::try_from_uri(request.uri()).map(|Query(parameters)| parameters);
    let parameters = parameters.map_err(|error| bad(&error.to_string(), "Correct the parameters; `GET /v1/openapi.json` lists them."));
    answer(ctx, scopes, parameters, run).await
}

/// Answers a call whose arguments are the JSON of its body.
pub async fn write<T, F, Fut>(
    app: &Arc<App>,
    request: Request<Body>,
    scopes: &[&str],
    run: impl FnOnce(CallContext, T) -> Fut,
) -> Response<Body>
where
    T: DeserializeOwned,
    F: Serialize,
    Fut: Future<Output = Result<Reply<F>, CallError>>,
{
    let Received { headers, body, caller, deadline } = match receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let ctx = CallContext { idempotency_key: idempotency_key(&headers), ..CallContext::new(caller, deadline, app.services.clone()) };
    let read = arguments(&headers, &body).and_then(|value| {
        let fix = "Correct the body; `GET /v1/openapi.json` shows what it holds.";
        serde_json::from_value(value).map_err(|error| bad(&error.to_string(), fix))
    });
    answer(ctx, scopes, read, run).await
}

fn bad(problem: &str, fix: &str) -> CallError {
    CallError::arguments(shown(problem), fix)
}

async fn answer<T, F, Fut>(
    ctx: CallContext,
    scopes: &[&str],
    arguments: Result<T, CallError>,
    run: impl FnOnce(CallContext, T) -> Fut,
) -> Response<Body>
where
    F: Serialize,
    Fut: Future<Output = Result<Reply<F>, CallError>>,
{
    let taken = ctx.principal().and_then(|caller| ctx.services.rates.take(caller, Lane::of(scopes[0]), Instant::now()));
    let done = match taken.and(allowed(&ctx, scopes)).and(arguments) {
        Ok(arguments) => run(ctx, arguments).await,
        Err(error) => Err(error),
    };
    let told = done.and_then(|reply| {
        let facts = serde_json::to_string(&reply.facts).map_err(|error| CallError::Fault { detail: error.to_string() })?;
        Ok((facts, reply.revision))
    });
    match told {
        Ok((facts, revision)) => {
            let mut response = edge::json_response(StatusCode::OK, facts);
            if let Some(revision) = revision {
                response.headers_mut().insert(REVISION, HeaderValue::from(revision.0));
            }
            response
        }
        Err(error) => refusal(&error),
    }
}

/// Any of the scopes will do.
pub fn allowed(ctx: &CallContext, scopes: &[&str]) -> Result<(), CallError> {
    let caller = ctx.principal()?;
    match scopes.iter().any(|scope| caller.may(scope)) {
        true => Ok(()),
        false => Err(CallError::MissingScope { scope: scopes[0].into() }),
    }
}
