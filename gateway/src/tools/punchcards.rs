//! Punchcards: leases on resources.

mod take;

use std::time::Instant;

use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::punchcard::{self, Punchcards};
use quorate_domain::refusal::shown;
use quorate_domain::{Revision, UnixMs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::limit::CHECK_DEADLINE;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;
pub use take::PunchIn;

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

/// A card that came into other hands.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Handed {
    punchcard_id: String,
    resource: String,
    holder_passport: String,
    /// The holder sends it with what it does under the card.
    fencing_token: u64,
    expires_at_unix_ms: u64,
}

impl From<punchcard::Punchcard> for Handed {
    fn from(card: punchcard::Punchcard) -> Self {
        let (UnixMs(expires_at_unix_ms), Revision(fencing_token)) = (card.expires_at, card.fencing_token);
        Self { punchcard_id: card.id, resource: card.resource, holder_passport: card.holder, fencing_token, expires_at_unix_ms }
    }
}

/// One that waits.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Waiting {
    holder_passport: String,
    resource: String,
    /// How long it waits yet.
    left_ms: u64,
    /// Passports that are in the way: they hold what overlaps, or came first.
    waits_for: Vec<String>,
}

impl From<punchcard::Blocked> for Waiting {
    fn from(waiter: punchcard::Blocked) -> Self {
        let waits_for = waiter.behind.into_iter().map(|wait| wait.holder).collect();
        Self { holder_passport: waiter.holder, resource: waiter.resource, left_ms: waiter.left_ms, waits_for }
    }
}

// ------------------------------------------------------------------ punch_out

/// Give a card back, so that the next one can take it. Do so as soon as your change is done.
///
/// With `transfer_to` that passport gets it under a new token, past those who wait.
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
    /// The passport that gets the card.
    transfer_to: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct GivenBack {
    #[serde(flatten)]
    card: Card,
    /// Who has it now, with `transfer_to`.
    #[serde(skip_serializing_if = "Option::is_none")]
    transferred_to: Option<String>,
}

impl Tool for PunchOut {
    const NAME: &'static str = "punch_out";
    const BEYOND_BUDGET: bool = true;
    const TITLE: &'static str = "Punch out";
    const SCOPE: &'static str = "crux-mcp.punch_out";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::PUNCHCARDS;
    const IDEMPOTENT: bool = true;
    type Output = GivenBack;

    fn example() -> Value {
        json!({ "resource": "file://src/lib.rs", "holder_passport": "claude-work" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<GivenBack>, CallError> {
        let Self { resource, holder_passport, tenant_id, release_commit_sha, transfer_to } = self;
        if let Some(to_passport) = transfer_to {
            let command = punchcard::TransferPunchcard { resource, holder_passport, tenant_id, to_passport, release_commit_sha };
            let (done, revision) = cluster.propose(ctx, command).await?;
            return Ok(Reply::at(revision, GivenBack { card: done.released.into(), transferred_to: Some(done.card.holder) }));
        }
        let command = punchcard::PunchOut { resource, holder_passport, tenant_id, release_commit_sha };
        let (card, revision) = cluster.propose(ctx, command).await?;
        Ok(Reply::at(revision, GivenBack { card: card.into(), transferred_to: None }))
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

impl From<Punchcards> for Cards {
    fn from(found: Punchcards) -> Self {
        let punchcards: Vec<Card> = found.punchcards.into_iter().map(Into::into).collect();
        Self { count: punchcards.len(), punchcards, next_cursor: found.next_cursor }
    }
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
        Ok(Reply::at(served.revision, found.into()))
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
    /// True when its holder lost the card and its lock delay keeps the resource closed to others until `expires_at_unix_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    settling: Option<bool>,
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
            expires_at_unix_ms: Nullable(found.closed_until.or(card.as_ref().map(|card| card.expires_at)).map(|at| at.0)),
            settling: found.closed_until.map(|_| true),
            fencing_token: card.as_ref().filter(|card| card.holder == *caller).map(|card| card.fencing_token.0),
            held_resource: card.map(|card| card.resource),
            left_ms: found.left_ms,
            age_ms: self.max_staleness_ms.map(|_| served.age_ms),
        };
        Ok(Reply::at(served.revision, facts))
    }
}
