//! REST resources: typed parameters in, facts out, with the token, scope and request id of every other call.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::arguments::{self, read_as};
use crate::call::{CallContext, CallError};
use crate::http::{REVISION, Received, get_deadline, get_within, identify, receive, receive_within, refusal};
use crate::mcp::idempotency_key;
use crate::rates::Lane;
use crate::registry::Reply;
use crate::server::App;
use crate::{edge, http};

/// Answers a read whose parameters stand in the address.
pub async fn read<T, F, Fut>(
    app: &Arc<App>,
    request: Request<Body>,
    scopes: &[&str],
    run: impl FnOnce(CallContext, T) -> Fut,
) -> Response<Body>
where
    T: DeserializeOwned + JsonSchema + 'static,
    F: Serialize,
    Fut: Future<Output = Result<Reply<F>, CallError>>,
{
    let deadline = get_deadline(app);
    let caller = match identify(app, request.headers(), deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    let query = request.uri().query().unwrap_or_default();
    let parameters = arguments::form::<T>().of_query(query, &[]).and_then(|pairs| read_as(pairs.into()));
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
    T: DeserializeOwned + JsonSchema + 'static,
    F: Serialize,
    Fut: Future<Output = Result<Reply<F>, CallError>>,
{
    let uri = request.uri().clone();
    match receive(app, request).await {
        Ok(received) => posted(app, &uri, received, scopes, run).await,
        Err(refused) => refused,
    }
}

/// The same for a call that only reads.
pub async fn ask<T, F, Fut>(
    app: &Arc<App>,
    request: Request<Body>,
    scopes: &[&str],
    run: impl FnOnce(CallContext, T) -> Fut,
) -> Response<Body>
where
    T: DeserializeOwned + JsonSchema + 'static,
    F: Serialize,
    Fut: Future<Output = Result<Reply<F>, CallError>>,
{
    let uri = request.uri().clone();
    match receive_within(app, request, get_within(app)).await {
        Ok(received) => posted(app, &uri, received, scopes, run).await,
        Err(refused) => refused,
    }
}

async fn posted<T, F, Fut>(
    app: &Arc<App>,
    uri: &Uri,
    Received { headers, body, caller, deadline }: Received,
    scopes: &[&str],
    run: impl FnOnce(CallContext, T) -> Fut,
) -> Response<Body>
where
    T: DeserializeOwned + JsonSchema + 'static,
    F: Serialize,
    Fut: Future<Output = Result<Reply<F>, CallError>>,
{
    let ctx = CallContext { idempotency_key: idempotency_key(&headers), ..CallContext::new(caller, deadline, app.services.clone()) };
    let read = arguments::none_beside(uri.query()).and_then(|()| http::arguments(&headers, &body)).and_then(read_as);
    answer(ctx, scopes, read, run).await
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

/// For addresses that take no parameters.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}

/// For lists without a filter.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Rows to show, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    pub limit: Option<u64>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}
