//! `punch_in`: taking a card, and waiting for it.

use std::time::{Duration, Instant};

use quorate_domain::flag;
use quorate_domain::limit::LEASE_WAIT_MS_MAX;
use quorate_domain::punchcard::{self, AttendTicket, GetTicket, LeaveQueue, PunchedIn};
use quorate_domain::{Revision, UnixMs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Card, Mode};
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::limit::{TICKET_ALIVE_EVERY, TICKET_POLL_WATCHED};
use crate::registry::{Effect, Reply, Tool};
use crate::tools::group;
use crate::wait::Watcher;

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
    /// How long it stays closed to others after you lose it, in milliseconds: at most 60,000. For what checks no fencing token.
    #[schemars(range(min = 0))]
    lock_delay_ms: Option<u64>,
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
            lock_delay_ms: self.lock_delay_ms,
            attended: true,
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
        let mut watcher = Watcher::open(cluster, caller, self.since).await;
        let mut alive_at = self.start;
        loop {
            if alive_at.elapsed() >= TICKET_ALIVE_EVERY {
                alive_at = Instant::now();
                self.show_life(ctx, cluster);
            }
            let look_until = Instant::now() + TICKET_POLL_WATCHED * 4;
            match cluster.read_as(caller, GetTicket { ticket: self.ticket.clone() }, Consistency::Linearizable, look_until).await {
                Ok((PunchedIn::Granted { .. }, _)) => return self.take(ctx, cluster).await,
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
            watcher.look_again(left.min(TICKET_POLL_WATCHED), |event| event.kind.starts_with("punchcard.")).await;
        }
        self.leave.armed = false;
        let ctx = CallContext { deadline: Instant::now() + TICKET_POLL_WATCHED * 10, fencing_token: None, ..ctx.clone() };
        match cluster.propose_step(&ctx, LeaveQueue { ticket: self.ticket.clone() }).await? {
            // Granted at the last moment.
            (PunchedIn::Granted { .. }, _) => self.take(&ctx, cluster).await,
            (PunchedIn::Left { resource, holder, .. }, _) => Err(still_held(resource, holder, self.start)),
            (PunchedIn::Queued { .. }, _) => Err(still_held(self.held, Some(self.holder), self.start)),
        }
    }

    /// Takes the card that was granted. Until then it lasts a few seconds only, so that nobody who died in the queue keeps it.
    async fn take(mut self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Granted>, CallError> {
        let ctx = CallContext { deadline: Instant::now() + TICKET_POLL_WATCHED * 10, fencing_token: None, ..ctx.clone() };
        let taken = cluster.propose_step(&ctx, AttendTicket { ticket: self.ticket.clone() }).await?;
        self.leave.armed = false;
        match taken.0 {
            PunchedIn::Granted { card, renewed, conflict } => {
                let revision = card.fencing_token;
                Ok(granted(card, renewed, conflict, revision))
            }
            PunchedIn::Left { resource, holder, .. } => Err(still_held(resource, holder, self.start)),
            PunchedIn::Queued { .. } => Err(still_held(self.held.clone(), Some(self.holder.clone()), self.start)),
        }
    }

    /// Tells the cluster that somebody still waits here, beside the waiting: a leader that changes must not hold that up.
    fn show_life(&self, ctx: &CallContext, cluster: &Cluster) {
        let (ticket, cluster) = (self.ticket.clone(), cluster.clone());
        let ctx = CallContext { deadline: Instant::now() + TICKET_ALIVE_EVERY, fencing_token: None, ..ctx.clone() };
        tokio::spawn(async move {
            if let Err(error) = cluster.propose_step(&ctx, AttendTicket { ticket }).await {
                tracing::debug!(%error, "a sign of life of a queued call did not arrive");
            }
        });
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
