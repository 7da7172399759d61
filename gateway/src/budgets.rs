//! Token budgets over HTTP, for operators: what a passport may use, and what happens beyond.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::usage::{Beyond, BudgetView, DeleteBudget, ListBudgets, PutBudget};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::registry::Reply;
use crate::rest;
use crate::server::App;

pub const SCOPE: &str = "admin";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    limit: Option<u64>,
    cursor: Option<String>,
}

/// `GET /v1/budgets?limit=&cursor=`: the budgets of the caller's tenant, by passport.
pub async fn list(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &[SCOPE], |ctx, wanted: Wanted| async move {
        let query = ListBudgets { limit: wanted.limit.unwrap_or(LIST_DEFAULT as u64), cursor: wanted.cursor };
        let (found, served) = cluster.read(&ctx, query).await?;
        let mut facts = json!({ "budgets": found.budgets.into_iter().map(shown).collect::<Vec<_>>() });
        if let Some(cursor) = found.next_cursor {
            facts["next_cursor"] = cursor.into();
        }
        Ok(Reply::at(served.revision, facts))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    tokens: u64,
    beyond: Beyond,
}

/// `PUT /v1/budgets/{passport}` `{tokens, beyond}`: what a passport may use from now on, and what happens beyond.
pub async fn put(app: &Arc<App>, passport: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[SCOPE], |ctx, Given { tokens, beyond }: Given| async move {
        let (view, revision) = cluster.propose(&ctx, PutBudget { passport, tokens, beyond }).await?;
        Ok(Reply::at(revision, shown(view)))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// `DELETE /v1/budgets/{passport}`.
pub async fn delete(app: &Arc<App>, passport: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[SCOPE], |ctx, _: Nothing| async move {
        let (view, revision) = cluster.propose(&ctx, DeleteBudget { passport }).await?;
        Ok(Reply::at(revision, shown(view)))
    })
    .await
}

fn shown(view: BudgetView) -> Value {
    let BudgetView { budget, used } = view;
    json!({
        "passport_id": budget.passport,
        "tokens": budget.tokens,
        "used": used,
        "beyond": budget.beyond,
        "set_by": budget.set_by,
        "set_at_unix_ms": budget.set_at,
    })
}

pub fn openapi(failure: &Value) -> Vec<(&'static str, Value)> {
    let (text, whole) = (json!({ "type": "string" }), json!({ "type": "integer", "minimum": 0 }));
    let beyond = json!({ "type": "string", "enum": ["report", "warn", "stop"] });
    let fields = json!({ "passport_id": text, "tokens": whole, "used": whole, "beyond": beyond, "set_by": text, "set_at_unix_ms": whole });
    let budget = json!({ "type": "object", "properties": fields });
    let answers = |description: &str, schema: &Value| json!({ "200": { "description": description, "content": { "application/json": { "schema": schema } } }, "default": failure });
    let query = |name: &str, schema: &Value| json!({ "name": name, "in": "query", "schema": schema });
    let listed = json!({ "type": "object", "properties": { "budgets": { "type": "array", "items": budget }, "next_cursor": text } });
    let list = json!({
        "operationId": "list_budgets",
        "summary": "List token budgets",
        "parameters": [query("limit", &whole), query("cursor", &text)],
        "responses": answers("Budgets by passport", &listed),
    });
    let given = json!({ "type": "object", "properties": { "tokens": whole, "beyond": beyond }, "required": ["tokens", "beyond"], "additionalProperties": false });
    let named = json!([{ "name": "passport", "in": "path", "required": true, "schema": text }]);
    let put = json!({
        "operationId": "put_budget",
        "summary": "Give a passport a token budget",
        "parameters": named,
        "requestBody": { "required": true, "content": { "application/json": { "schema": given } } },
        "responses": answers("The budget", &budget),
    });
    let delete = json!({
        "operationId": "delete_budget",
        "summary": "Take a passport's own token budget away",
        "parameters": named,
        "responses": answers("The budget that it had", &budget),
    });
    vec![("/v1/budgets", json!({ "get": list })), ("/v1/budgets/{passport}", json!({ "put": put, "delete": delete }))]
}
