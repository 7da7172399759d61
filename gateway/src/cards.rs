//! Punchcards over HTTP and gRPC: their history, who waits for whom, and what programs need that work under them.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{Method, Request, Response};
use quorate_domain::Revision;
use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::punchcard::{
    Blocked, ListBlocked, ListPunchcards, RenewPunchcards, TokenVerified, TransferPunchcard, VerifyToken, Wait,
};
use quorate_proto::fence::fence_server::{Fence, FenceServer};
use quorate_proto::fence::{VerifyTokenRequest, VerifyTokenResponse};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tonic::{Code, Status};

use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::http::{self, BAD_TOKEN, NoCaller};
use crate::limit::CHECK_DEADLINE;
use crate::registry::{Reply, Tool};
use crate::rest;
use crate::schema::Nullable;
use crate::server::App;
use crate::tools::punchcards::{Card, Cards, CheckPunchcard, PunchIn, PunchOut, Status as CardStatus};

// ------------------------------------------------------------------ lists

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CardsWanted {
    resource: Option<String>,
    holder_passport: Option<String>,
    status: Option<CardStatus>,
    limit: Option<u64>,
    cursor: Option<String>,
}

/// `GET /v1/punchcards?resource=&holder_passport=&status=&limit=&cursor=`: cards, newest first; with `resource`, all it ever had.
pub async fn list(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &["crux-mcp.list_punchcards"], |ctx, wanted: CardsWanted| async move {
        let query = ListPunchcards {
            resource: wanted.resource,
            holder_passport: wanted.holder_passport,
            tenant_id: None,
            status: wanted.status.map(Into::into),
            limit: wanted.limit.unwrap_or(LIST_DEFAULT as u64),
            cursor: wanted.cursor,
        };
        let (found, served) = cluster.read(&ctx, query).await?;
        Ok(Reply::at(served.revision, Cards::from(found)))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitersWanted {
    resource: Option<String>,
    holder_passport: Option<String>,
    limit: Option<u64>,
    cursor: Option<String>,
}

/// `GET /v1/punchcards/waiters?resource=&holder_passport=&limit=&cursor=`: who waits for what, and for whom.
pub async fn waiters(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &["crux-mcp.list_punchcards"], |ctx, wanted: WaitersWanted| async move {
        let query = ListBlocked {
            resource: wanted.resource,
            holder_passport: wanted.holder_passport,
            limit: wanted.limit.unwrap_or(LIST_DEFAULT as u64),
            cursor: wanted.cursor,
        };
        let (found, served) = cluster.read(&ctx, query).await?;
        let waiters: Vec<Waits> = found.waiters.into_iter().map(Into::into).collect();
        let mut facts = json!({ "waiters": waiters });
        if let Some(cursor) = found.next_cursor {
            facts["next_cursor"] = cursor.into();
        }
        Ok(Reply::at(served.revision, facts))
    })
    .await
}

/// A place in the queue, as callers see it.
#[derive(Serialize)]
struct Waits {
    ticket: String,
    holder_passport: String,
    resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Revision of the call: its place in the queue.
    since_revision: u64,
    /// How long it waits yet.
    left_ms: u64,
    /// Who is in the way; nobody: it is next.
    waits_for: Vec<WaitsFor>,
    /// True when more are in the way than are told.
    more: bool,
}

#[derive(Serialize)]
struct WaitsFor {
    passport: String,
    resource: String,
    /// True when that one waits too, and came first.
    queued: bool,
}

impl From<Blocked> for Waits {
    fn from(waiter: Blocked) -> Self {
        let waits_for = |wait: Wait| WaitsFor { passport: wait.holder, resource: wait.held, queued: wait.queued };
        Self {
            ticket: waiter.ticket,
            holder_passport: waiter.holder,
            resource: waiter.resource,
            reason: waiter.reason,
            since_revision: waiter.since.0,
            left_ms: waiter.left_ms,
            waits_for: waiter.behind.into_iter().map(waits_for).collect(),
            more: waiter.more_behind,
        }
    }
}

// ------------------------------------------------------------------ many cards, other hands

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// All that are held when absent.
    #[serde(default)]
    #[schemars(length(max = 100))]
    resources: Vec<String>,
    ttl_ms: Option<u64>,
    holder_passport: Option<String>,
}

/// `POST /v1/punchcards/renew` `{resources?, ttl_ms?, holder_passport?}`: cards renewed in one entry; all when none is named.
pub async fn renew(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[PunchIn::SCOPE], |ctx, asked: Renew| async move {
        let holder_passport = own_or(&ctx, asked.holder_passport)?;
        let command = RenewPunchcards { holder_passport, tenant_id: None, resources: asked.resources, ttl_ms: asked.ttl_ms };
        let (renewed, revision) = cluster.propose(&ctx, command).await?;
        let cards: Vec<Card> = renewed.cards.into_iter().map(Into::into).collect();
        Ok(Reply::at(revision, json!({ "renewed": cards, "not_held": renewed.not_held })))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    resource: String,
    to_passport: String,
    holder_passport: Option<String>,
    fencing_token: Option<u64>,
}

/// `POST /v1/punchcards/transfer` `{resource, to_passport, holder_passport?, fencing_token?}`: a card in other hands, under a new
/// token, in one entry.
pub async fn transfer(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[PunchOut::SCOPE], |ctx, asked: Transfer| async move {
        let ctx = CallContext { fencing_token: asked.fencing_token, ..ctx };
        let holder_passport = own_or(&ctx, asked.holder_passport)?;
        let (resource, to_passport) = (asked.resource, asked.to_passport);
        let command = TransferPunchcard { resource, holder_passport, tenant_id: None, to_passport, release_commit_sha: None };
        let (done, revision) = cluster.propose(&ctx, command).await?;
        Ok(Reply::at(revision, json!({ "released": Card::from(done.released), "card": Card::from(done.card) })))
    })
    .await
}

fn own_or(ctx: &CallContext, named: Option<String>) -> Result<String, CallError> {
    Ok(named.unwrap_or(ctx.principal()?.passport.clone()))
}

// ------------------------------------------------------------------ tokens, for what is outside of the cluster

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    resource: String,
    fencing_token: u64,
    holder_passport: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Verified {
    /// The token is that of a live card that covers the resource.
    valid: bool,
    resource: String,
    left_ms: u64,
    holder_passport: Nullable<String>,
    current_token: Nullable<u64>,
}

impl From<TokenVerified> for Verified {
    fn from(found: TokenVerified) -> Self {
        let valid = found.card.is_some();
        let card = found.card.or(found.current);
        Self {
            valid,
            resource: found.resource,
            left_ms: found.left_ms.unwrap_or(0),
            current_token: Nullable(card.as_ref().map(|card| card.fencing_token.0)),
            holder_passport: Nullable(card.map(|card| card.holder)),
        }
    }
}

async fn verified(ctx: &CallContext, cluster: &Cluster, asked: Verify) -> Result<Reply<Verified>, CallError> {
    let Verify { resource, fencing_token, holder_passport } = asked;
    let query = VerifyToken { resource, fencing_token: Revision(fencing_token), holder_passport };
    // A resource waits for the answer with somebody's write in hand: better told soon that nobody knows.
    let deadline = ctx.deadline.min(Instant::now() + CHECK_DEADLINE);
    let (found, served) = cluster.read_as(ctx.principal()?, query, Consistency::Linearizable, deadline).await?;
    Ok(Reply::at(served.revision, found.into()))
}

/// `GET` or `POST /v1/punchcards/verify` `{resource, fencing_token, holder_passport?}`: whether a token is good for a resource now.
pub async fn verify(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    let run = |ctx, asked: Verify| async move { verified(&ctx, cluster, asked).await };
    match *request.method() {
        Method::GET => rest::read(app, request, &[CheckPunchcard::SCOPE], run).await,
        _ => rest::ask(app, request, &[CheckPunchcard::SCOPE], run).await,
    }
}

/// The same over gRPC, at the gateway's own address.
pub struct Fencing(pub Arc<App>);

impl Fencing {
    pub fn service(app: Arc<App>) -> FenceServer<Self> {
        FenceServer::new(Self(app))
    }
}

#[tonic::async_trait]
impl Fence for Fencing {
    async fn verify_token(&self, request: tonic::Request<VerifyTokenRequest>) -> Result<tonic::Response<VerifyTokenResponse>, Status> {
        let app = &self.0;
        let deadline = http::get_deadline(app);
        let headers = request.metadata().clone().into_headers();
        let caller = http::caller(app, &headers, deadline).await.map_err(|none| match none {
            NoCaller::BadToken => Status::unauthenticated(BAD_TOKEN),
            NoCaller::Failed(error) => status(&error),
        })?;
        let ctx = CallContext::new(caller, deadline, app.services.clone());
        rest::allowed(&ctx, &[CheckPunchcard::SCOPE]).map_err(|error| status(&error))?;
        let VerifyTokenRequest { resource, fencing_token, holder_passport } = request.into_inner();
        let asked = Verify { resource, fencing_token, holder_passport };
        let found = verified(&ctx, &app.cluster, asked).await.map_err(|error| status(&error))?;
        let (facts, revision) = (found.facts, found.revision.map_or(0, |revision| revision.0));
        Ok(tonic::Response::new(VerifyTokenResponse {
            valid: facts.valid,
            resource: facts.resource,
            left_ms: facts.left_ms,
            holder_passport: facts.holder_passport.0.unwrap_or_default(),
            current_token: facts.current_token.0.unwrap_or(0),
            revision,
        }))
    }
}

/// The error of a call as gRPC has it; the text is the same as everywhere.
fn status(error: &CallError) -> Status {
    let code = match error.status() {
        400 | 413 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        501 => Code::Unimplemented,
        503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Internal,
    };
    Status::new(code, error.text())
}
