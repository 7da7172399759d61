//! Punchcards: leases on resources.

use std::time::{Duration, Instant};

use quorate_domain::flag;
use quorate_domain::limit::{LEASE_WAIT_MS_MAX, LIST_DEFAULT};
use quorate_domain::punchcard::{self, GetTicket, LeaveQueue, PunchedIn};
use quorate_domain::refusal::shown;
use quorate_domain::{Revision, UnixMs};
use quorate_proto::cluster::watch_response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::limit::{CHECK_DEADLINE, TICKET_POLL_BLIND, TICKET_POLL_WATCHED};
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Modify,
    Deploy,
}

impl From<Mode> for punchcard::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Modify => punchcard::Mode::Modify,
            Mode::Deploy => punchcard::Mode::Deploy,
        }
    }
}

impl From<punchcard::Mode> for Mode {
    fn from(mode: punchcard::Mode) -> Self {
        match mode {
            punchcard::Mode::Modify => Mode::Modify,
            punchcard::Mode::Deploy => Mode::Deploy,
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Held,
    Released,
    Expired,
    ForceReleased,
}

impl From<Status> for punchcard::Status {
    fn from(status: Status) -> Self {
        match status {
            Status::Held => punchcard::Status::Held,
            Status::Released => punchcard::Status::Released,
            Status::Expired => punchcard::Status::Expired,
            Status::ForceReleased => punchcard::Status::ForceReleased,
        }
    }
}

impl From<punchcard::Status> for Status {
    fn from(status: punchcard::Status) -> Self {
        match status {
            punchcard::Status::Held => Status::Held,
            punchcard::Status::Released => Status::Released,
            punchcard::Status::Expired => Status::Expired,
            punchcard::Status::ForceReleased => Status::ForceReleased,
        }
    }
}

/// A card as callers see it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Card {
    id: String,
    /// The resource in its normal spelling.
    resource: String,
    mode: Mode,
    holder_passport: String,
    tenant_id: String,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    acquired_at_unix_ms: u64,
    expires_at_unix_ms: u64,
    ttl_ms: u64,
    /// Send it with every call made under this card; a later holder's is higher.
    fencing_token: u64,
    /// Id of the receipt of the grant.
    receipt_acquire: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    released_at_unix_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    release_commit_sha: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    force_released_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt_release: Option<String>,
}

impl From<punchcard::Punchcard> for Card {
    fn from(card: punchcard::Punchcard) -> Self {
        Self {
            id: card.id,
            resource: card.resource,
            mode: card.mode.into(),
            holder_passport: card.holder,
            tenant_id: card.tenant,
            status: card.status.into(),
            reason: card.reason,
            acquired_at_unix_ms: card.acquired_at.0,
            expires_at_unix_ms: card.expires_at.0,
            ttl_ms: card.ttl_ms,
            fencing_token: card.fencing_token.0,
            receipt_acquire: card.receipt_acquire,
            released_at_unix_ms: card.released_at.map(|at| at.0),
            release_commit_sha: card.release_commit_sha,
            force_released_by: card.force_released_by,
            receipt_release: card.receipt_release,
        }
    }
}

// ------------------------------------------------------------------ punch_in

/// Take the lease on a resource, so that nobody else changes it until you punch out or it ends.
///
/// Take it before you edit; call again to renew. While another holds it or something that overlaps, you are refused and told
/// who and for how long; with `wait_ms` you queue, first come first served. A lease on `tree://src` covers every file below.
/// Send the `fencing_token` of the answer with the calls you make under the card.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PunchIn {
    /// What to hold: `file://src/lib.rs`, `tree://docs`, `service://billing` or `deploy://prod`.
    resource: String,
    /// Your own passport name, as `get_agent_identity` tells it.
    holder_passport: String,
    /// What you mean to do, for those who ask: `modify` when absent.
    mode: Option<Mode>,
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
    /// What you are doing, for those who wait.
    reason: Option<String>,
    /// When the lease ends unless you renew it, in ms of the Unix epoch. Prefer `ttl_ms`.
    #[schemars(range(min = 0))]
    expires_at_unix_ms: Option<u64>,
    /// How long the lease lasts unless you renew it, in milliseconds: 1,000 to 86,400,000, and 1,800,000 when absent.
    #[schemars(range(min = 0))]
    ttl_ms: Option<u64>,
    /// How long to queue when another holds it, in milliseconds: at most 600,000; absent: not at all.
    #[schemars(range(min = 0))]
    wait_ms: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Granted {
    #[serde(flatten)]
    card: Card,
    /// True when you held it already, and it ends later now.
    renewed: bool,
    /// Revision of the entry that granted or renewed it.
    revision: u64,
    /// In advisory mode: who holds an overlapping card all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    conflict: Option<Card>,
}

impl Tool for PunchIn {
    const NAME: &'static str = "punch_in";
    const TITLE: &'static str = "Punch in";
    const SCOPE: &'static str = "crux-mcp.punch_in";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::PUNCHCARDS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::PUNCHCARD);
    type Output = Granted;

    fn example() -> Value {
        json!({ "resource": "file://src/lib.rs", "holder_passport": "claude-work" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Granted>, CallError> {
        let wait = Duration::from_millis(self.wait_ms.unwrap_or(0).min(LEASE_WAIT_MS_MAX));
        let command = punchcard::PunchIn {
            resource: self.resource,
            holder_passport: self.holder_passport,
            tenant_id: self.tenant_id,
            mode: Some(self.mode.map_or(punchcard::Mode::Modify, Into::into)),
            reason: self.reason,
            ttl_ms: self.ttl_ms,
            expires_at: self.expires_at_unix_ms.map(UnixMs),
            wait_ms: self.wait_ms.filter(|&wait| wait > 0),
        };
        let joining = join(ctx.clone(), cluster.clone(), command, wait);
        // A caller that can come to queue may go away before it is told of its place. The command goes on without it, and the
        // place is given up when nobody takes it from there.
        let joined = match wait.is_zero() {
            true => joining.await?,
            false => tokio::spawn(joining).await.map_err(|error| CallError::Fault { detail: error.to_string() })??,
        };
        match joined {
            Joined::Granted(reply) => Ok(*reply),
            Joined::Queued(place) => place.wait(ctx, cluster).await,
        }
    }
}

/// What came of the first step.
enum Joined {
    Granted(Box<Reply<Granted>>),
    Queued(Box<Place>),
}

async fn join(ctx: CallContext, cluster: Cluster, command: punchcard::PunchIn, wait: Duration) -> Result<Joined, CallError> {
    let start = Instant::now();
    match cluster.propose(&ctx, command).await? {
        (PunchedIn::Granted { card, renewed, conflict }, revision) => {
            Ok(Joined::Granted(Box::new(granted(card, renewed, conflict, revision))))
        }
        (PunchedIn::Left { resource, holder, .. }, _) => Err(still_held(resource, holder, start)),
        (PunchedIn::Queued { ticket, holder, held, .. }, revision) => {
            // A call with a key of its own can be taken up again with the same key; any other loses its place with its caller.
            let leave = Leave { armed: ctx.idempotency_key.is_none(), ticket: ticket.clone(), ctx, cluster };
            Ok(Joined::Queued(Box::new(Place { ticket, holder, held, since: revision, start, end: start + wait, leave })))
        }
    }
}

fn granted(card: punchcard::Punchcard, renewed: bool, conflict: Option<punchcard::Punchcard>, revision: Revision) -> Reply<Granted> {
    Reply::at(revision, Granted { card: card.into(), renewed, revision: revision.0, conflict: conflict.map(Into::into) })
}

fn still_held(resource: String, holder: Option<String>, start: Instant) -> CallError {
    CallError::StillHeld { resource, holder, waited_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX) }
}

/// A place in the queue for a card.
struct Place {
    ticket: String,
    /// Who held what when the queue was joined.
    holder: String,
    held: String,
    since: Revision,
    start: Instant,
    end: Instant,
    leave: Leave,
}

impl Place {
    /// Waits until the card is granted or the time is over. The place is in the state machine, so it outlives leaders and
    /// gateways; only the looking is done here, woken by change events where a node streams them.
    async fn wait(mut self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Granted>, CallError> {
        let caller = ctx.principal()?;
        let mut events = cluster.watch(caller, self.since).await;
        loop {
            let look_until = Instant::now() + TICKET_POLL_WATCHED * 4;
            match cluster.read_as(caller, GetTicket { ticket: self.ticket.clone() }, Consistency::Linearizable, look_until).await {
                Ok((PunchedIn::Granted { card, renewed, conflict }, _)) => {
                    self.leave.armed = false;
                    let revision = card.fencing_token;
                    return Ok(granted(card, renewed, conflict, revision));
                }
                Ok((PunchedIn::Left { resource, holder, .. }, _)) => {
                    self.leave.armed = false;
                    return Err(still_held(resource, holder, self.start));
                }
                Ok((PunchedIn::Queued { .. }, _)) => {}
                // The cluster is busy with a new leader; the place is kept meanwhile.
                Err(CallError::Unreadable { .. }) => {}
                Err(error) => return Err(error),
            }
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match &mut events {
                Some(stream) => {
                    let next = tokio::time::timeout(left.min(TICKET_POLL_WATCHED), next_event(stream)).await;
                    if let Ok(Ended) = next.map(|event| event.unwrap_or(Ended)) {
                        events = None;
                    }
                }
                None => {
                    tokio::time::sleep(left.min(TICKET_POLL_BLIND)).await;
                    events = cluster.watch(caller, self.since).await;
                }
            }
        }
        self.leave.armed = false;
        let ctx = CallContext { deadline: Instant::now() + TICKET_POLL_WATCHED * 10, fencing_token: None, ..ctx.clone() };
        match cluster.propose_step(&ctx, LeaveQueue { ticket: self.ticket }).await? {
            // Granted at the last moment.
            (PunchedIn::Granted { card, renewed, conflict }, revision) => Ok(granted(card, renewed, conflict, revision)),
            (PunchedIn::Left { resource, holder, .. }, _) => Err(still_held(resource, holder, self.start)),
            (PunchedIn::Queued { .. }, _) => Err(still_held(self.held, Some(self.holder), self.start)),
        }
    }
}

/// The stream of events is over.
struct Ended;

/// Comes back at the next event that can have moved the queue; `None` when the stream ended.
async fn next_event(stream: &mut tonic::Streaming<quorate_proto::cluster::WatchResponse>) -> Option<Ended> {
    loop {
        match stream.message().await {
            Ok(Some(message)) => match message.result {
                Some(watch_response::Result::Events(events)) if events.events.iter().any(|event| event.kind.starts_with("punchcard.")) => {
                    return None;
                }
                Some(watch_response::Result::CompactedThrough(_)) => return Some(Ended),
                _ => {}
            },
            Ok(None) | Err(_) => return Some(Ended),
        }
    }
}

/// Gives the place up when the call is dropped, so that no card is granted to a caller that has gone.
struct Leave {
    armed: bool,
    ticket: String,
    ctx: CallContext,
    cluster: Cluster,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (ticket, cluster) = (std::mem::take(&mut self.ticket), self.cluster.clone());
        let ctx = CallContext { deadline: Instant::now() + TICKET_POLL_WATCHED * 10, fencing_token: None, ..self.ctx.clone() };
        // Outside of a runtime there is nobody to wait for either: the process is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = cluster.propose_step(&ctx, LeaveQueue { ticket }).await {
                    tracing::warn!(%error, "a caller went away while it queued, and its ticket could not be withdrawn");
                }
            });
        }
    }
}

// ------------------------------------------------------------------ punch_out

/// Give a card back, so that the next one can take it. Do so as soon as your change is done.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PunchOut {
    /// What you hold, in any spelling: `file://`, `tree://`, `service://` or `deploy://`.
    resource: String,
    /// Your own passport name, as `get_agent_identity` tells it.
    holder_passport: String,
    /// The commit that holds your change.
    release_commit_sha: Option<String>,
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
}

impl Tool for PunchOut {
    const NAME: &'static str = "punch_out";
    const TITLE: &'static str = "Punch out";
    const SCOPE: &'static str = "crux-mcp.punch_out";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::PUNCHCARDS;
    const IDEMPOTENT: bool = true;
    type Output = Card;

    fn example() -> Value {
        json!({ "resource": "file://src/lib.rs", "holder_passport": "claude-work" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Card>, CallError> {
        let command = punchcard::PunchOut {
            resource: self.resource,
            holder_passport: self.holder_passport,
            tenant_id: self.tenant_id,
            release_commit_sha: self.release_commit_sha,
        };
        let (card, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, card.into()))
    }
}

// ------------------------------------------------------------------ list_punchcards

/// List cards of your team, newest first: who holds what, and what became of earlier cards.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListPunchcards {
    /// Cards of this resource: `file://`, `tree://`, `service://` or `deploy://`.
    resource: Option<String>,
    /// Cards of this holder.
    holder_passport: Option<String>,
    /// Your tenant; another one has no cards for you.
    tenant_id: Option<String>,
    /// Cards in this state; absent: all.
    status: Option<Status>,
    /// Cards of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Cards {
    /// Cards in this reply.
    count: usize,
    punchcards: Vec<Card>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for ListPunchcards {
    const NAME: &'static str = "list_punchcards";
    const TITLE: &'static str = "List punchcards";
    const SCOPE: &'static str = "crux-mcp.list_punchcards";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::PUNCHCARDS;
    const IDEMPOTENT: bool = true;
    type Output = Cards;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Cards>, CallError> {
        let query = punchcard::ListPunchcards {
            resource: self.resource,
            holder_passport: self.holder_passport,
            tenant_id: self.tenant_id,
            status: self.status.map(Into::into),
            limit: self.limit.unwrap_or(LIST_DEFAULT as u64),
            cursor: self.cursor,
        };
        let (found, served) = cluster.read(ctx, query).await?;
        let punchcards: Vec<Card> = found.punchcards.into_iter().map(Into::into).collect();
        Ok(Reply::at(served.revision, Cards { count: punchcards.len(), punchcards, next_cursor: found.next_cursor }))
    }
}

// ------------------------------------------------------------------ force_release

/// Take a card from its holder: an operator's act, for a holder that is gone or stuck.
///
/// The holder's fencing token is stale at once, so what it still sends under the card is refused. Writes a receipt.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForceRelease {
    /// Id of the card, from `list_punchcards`.
    punchcard_id: String,
    /// Has to be true.
    confirm: bool,
    /// Why; kept in the receipt.
    reason: Option<String>,
    /// Your own passport name; another one is refused.
    by_passport: Option<String>,
}

impl Tool for ForceRelease {
    const NAME: &'static str = "force_release";
    const TITLE: &'static str = "Force a release";
    const SCOPE: &'static str = "crux-mcp.force_release";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::PUNCHCARDS;
    const IDEMPOTENT: bool = true;
    type Output = Card;

    fn example() -> Value {
        json!({ "punchcard_id": "pc_1", "confirm": true })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Card>, CallError> {
        let command = punchcard::ForceRelease {
            punchcard_id: self.punchcard_id,
            confirm: self.confirm,
            reason: self.reason,
            by_passport: self.by_passport,
        };
        let (card, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, card.into()))
    }
}

// ------------------------------------------------------------------ check_punchcard

/// Ask whether you may change a resource, before you change it. Takes nothing.
///
/// Leave it alone when `held_by_other` and `enforce` are both true. When the cluster can't tell, this is an error with the code
/// `UNKNOWN`, and never an answer that it is free.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckPunchcard {
    /// What you mean to change: `file://`, `tree://`, `service://` or `deploy://`.
    resource: String,
    /// What you mean to do.
    mode: Option<Mode>,
    /// The passport that asks: yours when absent.
    passport: Option<String>,
    /// Take a quicker answer that may be so old, in milliseconds; it says its age. Absent: the answer is of now.
    #[schemars(range(min = 0))]
    max_staleness_ms: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Checked {
    held_by_other: bool,
    /// Whether a card of another forbids the change, or only tells of itself.
    enforce: bool,
    /// Who holds it, or null when nobody does.
    holder_passport: Nullable<String>,
    /// The resource in its normal spelling.
    resource: String,
    /// What the holder means to do, or null.
    mode: Nullable<Mode>,
    /// When the card ends unless it is renewed, or null.
    expires_at_unix_ms: Nullable<u64>,
    /// The resource of the card, which may be a tree above or a file below.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_resource: Option<String>,
    /// How long the card lasts yet on the cluster's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_ms: Option<u64>,
    /// The holder's token, when the holder is you.
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    /// How old the answer may be; there when `max_staleness_ms` was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u64>,
}

impl Tool for CheckPunchcard {
    const NAME: &'static str = "check_punchcard";
    const TITLE: &'static str = "Check a resource";
    const SCOPE: &'static str = "crux-mcp.check_punchcard";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::PUNCHCARDS;
    const IDEMPOTENT: bool = true;
    type Output = Checked;

    fn example() -> Value {
        json!({ "resource": "file://src/lib.rs" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Checked>, CallError> {
        let query = punchcard::CheckPunchcard { resource: self.resource.clone(), mode: self.mode.map(Into::into), passport: self.passport };
        let consistency = self.max_staleness_ms.map_or(Consistency::Linearizable, |max_age_ms| Consistency::Stale { max_age_ms });
        let deadline = ctx.deadline.min(Instant::now() + CHECK_DEADLINE);
        let (found, served) = match cluster.read_as(ctx.principal()?, query, consistency, deadline).await {
            Ok(found) => found,
            // Nobody has looked at the resource yet, so it may be anything.
            Err(CallError::Unreadable { detail, .. }) => return Err(CallError::CheckUnknown { resource: shown(&self.resource), detail }),
            Err(error) => return Err(error),
        };
        let caller = &ctx.principal()?.passport;
        let card = found.card;
        let facts = Checked {
            held_by_other: found.held_by_other,
            enforce: found.enforce,
            holder_passport: Nullable(card.as_ref().map(|card| card.holder.clone())),
            resource: found.resource,
            mode: Nullable(card.as_ref().map(|card| card.mode.into())),
            expires_at_unix_ms: Nullable(card.as_ref().map(|card| card.expires_at.0)),
            fencing_token: card.as_ref().filter(|card| card.holder == *caller).map(|card| card.fencing_token.0),
            held_resource: card.map(|card| card.resource),
            left_ms: found.left_ms,
            age_ms: self.max_staleness_ms.map(|_| served.age_ms),
        };
        Ok(Reply::at(served.revision, facts))
    }
}
