//! The other side: what this cluster shares with others, and takes from them, over HTTP.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use quorate_domain::Principal;
use quorate_domain::fact::sync::{PromoteFacts, Promoted};
use quorate_domain::fact::{SharedFacts, SharedPairs};
use quorate_domain::refusal::shown;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::Manifest;
use crate::arguments::read_as;
use crate::call::{CallContext, CallError};
use crate::edge;
use crate::http::{Received, arguments, identify, receive, refusal};
use crate::mcp::idempotency_key;
use crate::registry::Tool;
use crate::server::App;
use crate::tools::facts::{QueryFacts, StoreFact};

/// What a token has to hold to read what is shared, and to add to it: the same as for one fact at a time.
pub const READING: &str = QueryFacts::SCOPE;
pub const WRITING: &str = StoreFact::SCOPE;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sending {
    #[schemars(with = "Vec<serde_json::Map<String, Value>>")]
    facts: Vec<Promoted>,
    tenant_id: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asking {
    #[schemars(with = "Vec<Vec<String>>", inner(length(min = 2, max = 2)))]
    pairs: Vec<(String, String)>,
    tenant_id: Option<String>,
}

/// `GET /v1/sync/manifest?tenant_id=`: whose memory this is for the caller, and what it may do with it.
pub async fn manifest(app: &Arc<App>, query: &[(String, String)], headers: &HeaderMap) -> Response<Body> {
    let ctx = match context(app, headers, None).await {
        Ok(ctx) => ctx,
        Err(refused) => return refused,
    };
    answered(async {
        let [tenant_id] = parameters(query, ["tenant_id"])?.map(|value| value.map(Into::into));
        let caller = ctx.principal()?;
        // A gateway remembers tokens for a moment; whether the memory can be read now, the cluster alone can say.
        let page = app.cluster.read(&ctx, SharedPairs { pairs: Vec::new(), tenant_id }).await?.0;
        Ok(Manifest { tenant_id: page.tenant_id, may_read: caller.may(READING), may_write: caller.may(WRITING) })
    })
    .await
}

/// `GET /v1/sync/facts?cursor=&tenant_id=`: the next page of what is shared.
pub async fn facts(app: &Arc<App>, query: &[(String, String)], headers: &HeaderMap) -> Response<Body> {
    let ctx = match context(app, headers, Some(READING)).await {
        Ok(ctx) => ctx,
        Err(refused) => return refused,
    };
    answered(async {
        let [cursor, tenant_id] = parameters(query, ["cursor", "tenant_id"])?.map(|value| value.map(Into::into));
        Ok(app.cluster.read(&ctx, SharedFacts { cursor, tenant_id }).await?.0)
    })
    .await
}

/// `POST /v1/sync/pairs`: how named pairs stand.
pub async fn pairs(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let (ctx, asking) = match read::<Asking>(app, request, READING).await {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    answered(async {
        let Asking { pairs, tenant_id } = asking?;
        Ok(app.cluster.read(&ctx, SharedPairs { pairs, tenant_id }).await?.0)
    })
    .await
}

/// `POST /v1/sync/facts`: takes facts of another cluster.
pub async fn promote(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let (ctx, sending) = match read::<Sending>(app, request, WRITING).await {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    answered(async {
        let Sending { facts, tenant_id } = sending?;
        Ok(app.cluster.propose(&ctx, PromoteFacts { facts, tenant_id }).await?.0)
    })
    .await
}

/// The caller's context, once its token has the scope.
async fn context(app: &Arc<App>, headers: &HeaderMap, scope: Option<&str>) -> Result<CallContext, Response<Body>> {
    let deadline = Instant::now() + app.settings.call_deadline;
    let ctx = CallContext::new(identify(app, headers, deadline).await?, deadline, app.services.clone());
    may(&ctx, scope).map_err(|error| refusal(&error))?;
    Ok(ctx)
}

fn may(ctx: &CallContext, scope: Option<&str>) -> Result<(), CallError> {
    let caller: &Principal = ctx.principal()?;
    match scope.filter(|scope| !caller.may(scope)) {
        Some(scope) => Err(CallError::MissingScope { scope: scope.into() }),
        None => Ok(()),
    }
}

async fn read<T: DeserializeOwned + JsonSchema + 'static>(
    app: &Arc<App>,
    request: Request<Body>,
    scope: &str,
) -> Result<(CallContext, Result<T, CallError>), Response<Body>> {
    let Received { headers, body, caller, deadline } = receive(app, request).await?;
    let ctx = CallContext { idempotency_key: idempotency_key(&headers), ..CallContext::new(caller, deadline, app.services.clone()) };
    // Who may not is told so whatever the body is.
    may(&ctx, Some(scope)).map_err(|error| refusal(&error))?;
    let read = arguments(&headers, &body).and_then(read_as);
    Ok((ctx, read))
}

async fn answered<T: Serialize>(answer: impl Future<Output = Result<T, CallError>>) -> Response<Body> {
    match answer.await.and_then(|found| serde_json::to_string(&found).map_err(|error| CallError::Fault { detail: error.to_string() })) {
        Ok(text) => edge::json_response(StatusCode::OK, text),
        Err(error) => refusal(&error),
    }
}

/// The values of a query's parameters, each given once at the most.
fn parameters<'a, const N: usize>(query: &'a [(String, String)], names: [&str; N]) -> Result<[Option<&'a str>; N], CallError> {
    let mut values = [None; N];
    for (name, value) in query {
        let known = || format!("The parameters are `{}`, each once.", names.join("`, `"));
        let place = names.iter().position(|known| known == name);
        match place {
            Some(n) if values[n].is_none() => values[n] = Some(value.as_str()),
            _ => return Err(CallError::arguments(format!("`{}` is unknown, or given twice", shown(name)), known())),
        }
    }
    Ok(values)
}
