//! Kinds of entities over HTTP, for operators: tools show them, and entities are of one.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::graph::PutKind;
use quorate_domain::graph::kind::Rule;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::registry::Reply;
use crate::rest;
use crate::server::App;
use crate::tools::graph::check_schema;

pub const SCOPE: &str = "admin";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Given {
    description: String,
    #[schemars(with = "serde_json::Map<String, Value>")]
    json_schema: Value,
    #[serde(default)]
    outgoing: Vec<Edges>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edges {
    edge_kind: String,
    to: Vec<String>,
}

/// `PUT /v1/kinds/{kind}` `{description, json_schema, outgoing?: [{edge_kind, to}]}`: a kind registered for the caller's tenant, or its
/// registration replaced.
pub async fn put(app: &Arc<App>, kind: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[SCOPE], |ctx, Given { description, json_schema, outgoing }: Given| async move {
        check_schema(&json_schema)?;
        let outgoing = outgoing.into_iter().map(|edges| Rule { edge_kind: edges.edge_kind, to: edges.to }).collect();
        let (registration, revision) = cluster.propose(&ctx, PutKind { kind, description, json_schema, outgoing }).await?;
        let facts = json!({
            "kind": registration.kind,
            "description": registration.description,
            "json_schema": registration.json_schema,
            "outgoing": registration.outgoing,
        });
        Ok(Reply::at(revision, facts))
    })
    .await
}
