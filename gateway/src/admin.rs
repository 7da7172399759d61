//! What operators look at and set over HTTP: flags, passports and their tokens, the cluster as this gateway sees it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, Response};
use quorate_domain::flag::{FlagSet, GetFlags, SetFlag};
use quorate_domain::identity::{GetPassport, ListPassports, ListTokens, Passport, RevokeToken, TokenRow};
use quorate_domain::limit::LIST_DEFAULT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::registry::Reply;
use crate::rest::{self, NoParameters, Page};
use crate::server::App;

pub const SCOPE: &str = "admin";

// ------------------------------------------------------------------ flags

#[derive(Serialize, JsonSchema)]
pub struct Flag {
    name: String,
    value: String,
}

impl From<FlagSet> for Flag {
    fn from(FlagSet { name, value }: FlagSet) -> Self {
        Self { name, value }
    }
}

#[derive(Serialize, JsonSchema)]
pub struct Flags {
    flags: Vec<Flag>,
}

/// `GET /v1/admin/flags`.
pub async fn flags(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(&app, request, &[SCOPE], |ctx, _: NoParameters| async move {
        let (found, served) = cluster.read(&ctx, GetFlags {}).await?;
        Ok(Reply::at(served.revision, Flags { flags: found.flags.into_iter().map(Into::into).collect() }))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlagValue {
    /// A word that the flag knows, such as `on`.
    value: String,
}

/// `PUT /v1/admin/flags/{name}`.
pub async fn set_flag(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(&app, request, &[SCOPE], |ctx, FlagValue { value }: FlagValue| async move {
        let (set, revision) = cluster.propose(&ctx, SetFlag { name, value }).await?;
        Ok(Reply::at(revision, Flag::from(set)))
    })
    .await
}

// ------------------------------------------------------------------ passports

#[derive(Serialize, JsonSchema)]
pub struct PassportShown {
    name: String,
    tier: String,
    scopes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
    /// Its moves of work wait for a person.
    agent_work_gate: bool,
}

impl From<Passport> for PassportShown {
    fn from(passport: Passport) -> Self {
        Self {
            name: passport.name,
            tier: passport.tier.word().into(),
            scopes: passport.scopes.iter().map(ToString::to_string).collect(),
            revoked_at: passport.revoked_at.map(|at| at.to_rfc3339()),
            agent_work_gate: passport.agent_work_gate,
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub struct PassportsShown {
    passports: Vec<PassportShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// `GET /v1/admin/passports?limit=&cursor=`: of the caller's tenant, by name.
pub async fn passports(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(&app, request, &[SCOPE], |ctx, Page { limit, cursor }: Page| async move {
        let (found, served) = cluster.read(&ctx, ListPassports { limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor }).await?;
        let passports = found.passports.into_iter().map(Into::into).collect();
        Ok(Reply::at(served.revision, PassportsShown { passports, next_cursor: found.next_cursor }))
    })
    .await
}

/// `GET /v1/admin/passports/{passport}`.
pub async fn passport(State(app): State<Arc<App>>, Path(name): Path<String>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(&app, request, &[SCOPE], |ctx, _: NoParameters| async move {
        let (found, served) = cluster.read(&ctx, GetPassport { passport: name }).await?;
        Ok(Reply::at(served.revision, PassportShown::from(found)))
    })
    .await
}

#[derive(Serialize, JsonSchema)]
pub struct TokenShown {
    /// BLAKE3 of the token, whose text is nowhere.
    hash: String,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
}

impl From<TokenRow> for TokenShown {
    fn from(token: TokenRow) -> Self {
        Self {
            hash: token.hash,
            created_at: token.created_at.to_rfc3339(),
            expires_at: token.expires_at.map(|at| at.to_rfc3339()),
            revoked_at: token.revoked_at.map(|at| at.to_rfc3339()),
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub struct TokensShown {
    tokens: Vec<TokenShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// `GET /v1/admin/passports/{passport}/tokens?limit=&cursor=`: ended ones too.
pub async fn tokens(State(app): State<Arc<App>>, Path(passport): Path<String>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(&app, request, &[SCOPE], |ctx, Page { limit, cursor }: Page| async move {
        let (found, served) = cluster.read(&ctx, ListTokens { passport, limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor }).await?;
        let tokens = found.tokens.into_iter().map(Into::into).collect();
        Ok(Reply::at(served.revision, TokensShown { tokens, next_cursor: found.next_cursor }))
    })
    .await
}

#[derive(Serialize, JsonSchema)]
pub struct TokenEnded {
    hash: String,
    passport: String,
}

/// `DELETE /v1/admin/tokens/{hash}`: ends a token at once, on every gateway.
pub async fn revoke_token(State(app): State<Arc<App>>, Path(hash): Path<String>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(&app, request, &[SCOPE], |ctx, _: NoParameters| async move {
        let (ended, revision) = cluster.propose(&ctx, RevokeToken { hash: hash.clone() }).await?;
        Ok(Reply::at(revision, TokenEnded { hash, passport: ended.passport }))
    })
    .await
}

// ------------------------------------------------------------------ the cluster

#[derive(Serialize, JsonSchema)]
pub struct ClusterShown {
    /// Whether this gateway knows a leader.
    has_leader: bool,
    nodes: Vec<NodeShown>,
}

#[derive(Serialize, JsonSchema)]
pub struct NodeShown {
    address: String,
    /// Why it told nothing; then there is nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<NodeStatus>,
}

#[derive(Serialize, JsonSchema)]
pub struct NodeStatus {
    node_id: u64,
    /// `leader`, `follower`, `learner`, `candidate`, `uninitialized` or `stopped`.
    role: String,
    term: u64,
    applied: u64,
    committed: u64,
    last_log: u64,
    version: String,
    feature_level: u64,
    /// Codes of what is wrong although it serves.
    alarms: Vec<String>,
    /// Codes of what keeps it from being ready.
    not_ready: Vec<String>,
    disk_free_bytes: u64,
    disk_total_bytes: u64,
    started_unix_ms: u64,
}

/// `GET /v1/admin/cluster`: what each node last told this gateway, a second ago at most where it answers.
pub async fn cluster(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(&app, request, &[SCOPE], |_, _: NoParameters| async move {
        let seen = cluster.nodes_seen();
        let nodes = seen.iter().cloned().map(|node| match node.status {
            Err(problem) => NodeShown { address: node.address, problem: Some(problem), status: None },
            Ok(told) => {
                let status = NodeStatus {
                    node_id: told.node_id,
                    role: told.role,
                    term: told.term,
                    applied: told.applied,
                    committed: told.committed,
                    last_log: told.last_log,
                    version: told.version,
                    feature_level: told.feature_level,
                    alarms: told.alarms,
                    not_ready: told.not_ready,
                    disk_free_bytes: told.disk_free_bytes,
                    disk_total_bytes: told.disk_total_bytes,
                    started_unix_ms: told.started_unix_ms,
                };
                NodeShown { address: node.address, problem: None, status: Some(status) }
            }
        });
        Ok(Reply::local(ClusterShown { has_leader: cluster.view().leader.is_some(), nodes: nodes.collect() }))
    })
    .await
}
