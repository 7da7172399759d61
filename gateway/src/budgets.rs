//! Token budgets over HTTP, for operators: what a passport may use, and what happens beyond.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::usage::{Beyond, BudgetView, DeleteBudget, ListBudgets, PutBudget};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::registry::Reply;
use crate::rest::{self, NoParameters, Page};
use crate::server::App;

pub const SCOPE: &str = "admin";

/// `GET /v1/budgets?limit=&cursor=`: the budgets of the caller's tenant, by passport.
pub async fn list(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &[SCOPE], |ctx, wanted: Page| async move {
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

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Given {
    tokens: u64,
    #[schemars(schema_with = "beyonds")]
    beyond: Beyond,
}

fn beyonds(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["report", "warn", "stop"], "description": "What happens beyond." })
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

/// `DELETE /v1/budgets/{passport}`.
pub async fn delete(app: &Arc<App>, passport: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[SCOPE], |ctx, _: NoParameters| async move {
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
