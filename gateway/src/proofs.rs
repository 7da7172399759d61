//! Receipts and the log over HTTP, in the forms in which they are saved and verified without a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use ed25519_dalek::VerifyingKey;
use quorate_domain::key_ring::{ListReceiptKeys, ReceiptKeys};
use quorate_domain::receipt::{GetLogHead, ProveConsistency, ProveInclusion, ProveReceipt};
use quorate_domain::refusal::shown;
use quorate_domain::{QueryKind, Revision};
use quorate_proof::file::{self, ConsistencyFile, HeadFile, InclusionFile, ReceiptFile};
use serde::Serialize;
use serde_json::{Value, json};

use crate::call::{CallContext, CallError};
use crate::cluster::Consistency;
use crate::edge;
use crate::http::{REVISION, identify, refusal};
use crate::server::App;
use crate::tools::receipts::SCOPE;

type Pairs = [(String, String)];
type Keys = [(String, VerifyingKey)];

/// `GET /v1/receipts/{id}?size=`: a receipt with its proof, as `quorate verify` reads it.
pub async fn receipt(app: &Arc<App>, receipt_id: String, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    let ask = |numbers: Numbers| Ok(ProveReceipt { receipt_id, size: numbers.get("size") });
    serve(app, headers, query, &["size"], ask, ReceiptFile::of).await
}

/// `GET /v1/log/head?size=`: the newest head of the caller's log, or an earlier one.
pub async fn head(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    serve(app, headers, query, &["size"], |numbers| Ok(GetLogHead { size: numbers.get("size") }), HeadFile::of).await
}

/// `GET /v1/log/proof/inclusion?seq=&size=`: that receipt number `seq` stands in the log.
pub async fn inclusion(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    let ask = |numbers: Numbers| Ok(ProveInclusion { seq: numbers.needed("seq")?, size: numbers.get("size") });
    serve(app, headers, query, &["seq", "size"], ask, InclusionFile::of).await
}

/// `GET /v1/log/proof/consistency?from=&to=`: that the head of `to` receipts continues the head of `from`.
pub async fn consistency(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    let ask = |numbers: Numbers| Ok(ProveConsistency { from: numbers.needed("from")?, to: numbers.get("to") });
    serve(app, headers, query, &["from", "to"], ask, ConsistencyFile::of).await
}

/// `GET /v1/log/keys`: the public keys that receipts and heads were ever signed with, to compare a saved file's with.
pub async fn keys(app: &Arc<App>, query: &Pairs, headers: &HeaderMap) -> Response<Body> {
    let shown = |ring: ReceiptKeys, _: &Keys| {
        let keys = ring.keys.into_iter();
        let keys = keys.map(|key| json!({ "key_id": key.key_id, "public_key": key.public_key, "added_at": key.added_at.to_rfc3339() }));
        Ok(json!({ "keys": keys.collect::<Vec<_>>() }))
    };
    serve(app, headers, query, &[], |_| Ok(ListReceiptKeys {}), shown).await
}

/// Every address takes it: the answer is not older than that revision, and a node that has come so far need not ask the others.
const AT_LEAST: &str = "at_least";

async fn serve<Q: QueryKind, F: Serialize>(
    app: &Arc<App>,
    headers: &HeaderMap,
    query: &Pairs,
    names: &[&str],
    ask: impl FnOnce(Numbers) -> Result<Q, CallError>,
    file_of: impl FnOnce(Q::Output, &Keys) -> Result<F, String>,
) -> Response<Body> {
    let deadline = Instant::now() + app.settings.call_deadline;
    let caller = match identify(app, headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    match find(app, &ctx, query, names, ask, file_of).await {
        Ok((text, revision)) => {
            let mut response = edge::json_response(StatusCode::OK, text);
            response.headers_mut().insert(REVISION, HeaderValue::from(revision.0));
            response
        }
        Err(error) => refusal(&error),
    }
}

async fn find<Q: QueryKind, F: Serialize>(
    app: &Arc<App>,
    ctx: &CallContext,
    query: &Pairs,
    names: &[&str],
    ask: impl FnOnce(Numbers) -> Result<Q, CallError>,
    file_of: impl FnOnce(Q::Output, &Keys) -> Result<F, String>,
) -> Result<(String, Revision), CallError> {
    let caller = ctx.principal()?;
    if !caller.may(SCOPE) {
        return Err(CallError::MissingScope { scope: SCOPE.into() });
    }
    let numbers = Numbers::of(query, names)?;
    let consistency = numbers.get(AT_LEAST).map_or(Consistency::Linearizable, |revision| Consistency::AtLeast(Revision(revision)));
    let (found, served) = app.cluster.read_as(caller, ask(numbers)?, consistency, ctx.deadline).await?;
    let made = file_of(found, &ctx.services.receipt_keys).map_err(|detail| CallError::Fault { detail })?;
    Ok((file::text(&made), served.revision))
}

/// The parameters of a request, which are numbers all.
struct Numbers(BTreeMap<String, u64>);

impl Numbers {
    fn of(query: &Pairs, names: &[&str]) -> Result<Self, CallError> {
        let known = || format!("The parameters are `{}`.", names.iter().chain(&[AT_LEAST]).copied().collect::<Vec<_>>().join("`, `"));
        let mut numbers = BTreeMap::new();
        for (name, value) in query {
            if !names.contains(&name.as_str()) && name != AT_LEAST {
                return Err(CallError::arguments(format!("`{}` is unknown", shown(name)), known()));
            }
            let number = value.parse().map_err(|_| CallError::arguments(format!("`{name}` is a number, 0 or more"), known()))?;
            if numbers.insert(name.clone(), number).is_some() {
                return Err(CallError::arguments(format!("`{name}` is given twice"), known()));
            }
        }
        Ok(Self(numbers))
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    fn needed(&self, name: &str) -> Result<u64, CallError> {
        self.get(name).ok_or_else(|| CallError::arguments(format!("`{name}` is missing"), format!("Add `?{name}=`.")))
    }
}

/// The paths of this module in the OpenAPI document.
pub fn openapi(failure: &Value) -> Vec<(&'static str, Value)> {
    let number = |name: &str, required: bool| json!({ "name": name, "in": "query", "required": required, "schema": { "type": "integer", "minimum": 0 } });
    let get = |id: &str, summary: &str, parameters: Vec<Value>| {
        let at_least = [number(AT_LEAST, false)];
        json!({ "get": {
            "operationId": id,
            "summary": summary,
            "tags": ["receipts"],
            "parameters": parameters.into_iter().chain(at_least).collect::<Vec<_>>(),
            "responses": { "200": { "description": "A file for `quorate verify`", "content": { "application/json": { "schema": { "type": "object" } } } }, "default": failure },
        } })
    };
    let id = json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } });
    vec![
        ("/v1/receipts/{id}", get("get_receipt", "A receipt with its proof", vec![id, number("size", false)])),
        ("/v1/log/keys", get("list_receipt_keys", "The keys that receipts were ever signed with", vec![])),
        ("/v1/log/head", get("get_log_head", "A signed head of the log", vec![number("size", false)])),
        (
            "/v1/log/proof/inclusion",
            get("prove_inclusion", "That a receipt stands in the log", vec![number("seq", true), number("size", false)]),
        ),
        (
            "/v1/log/proof/consistency",
            get("prove_consistency", "That one head continues another", vec![number("from", true), number("to", false)]),
        ),
    ]
}
