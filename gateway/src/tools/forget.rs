//! Forgetting: facts of a scope lose their values, for a while so that they can be brought back, and then for good.

use quorate_domain::{fact, flag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

/// What a scope goes by.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScopeType {
    EntityPrefix,
    KeyGlob,
    PassportId,
    BeforeTimestamp,
    TenantId,
}

impl From<ScopeType> for fact::ScopeKind {
    fn from(kind: ScopeType) -> Self {
        match kind {
            ScopeType::EntityPrefix => fact::ScopeKind::EntityPrefix,
            ScopeType::KeyGlob => fact::ScopeKind::KeyGlob,
            ScopeType::PassportId => fact::ScopeKind::PassportId,
            ScopeType::BeforeTimestamp => fact::ScopeKind::BeforeTimestamp,
            ScopeType::TenantId => fact::ScopeKind::TenantId,
        }
    }
}

/// Which facts are meant.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetScope {
    /// `entity_prefix`: entities that begin so (private ones by your own `__agent::<you>::...`); `key_glob`: keys, `*` stands for any
    /// text; `passport_id`: your own private facts; `before_timestamp`: facts stored earlier; `tenant_id`: entities under
    /// `tenant:<id>::`, `personal::<id>::` or `business::<id>::`.
    #[serde(rename = "type")]
    kind: ScopeType,
    /// What the type asks for; an RFC 3339 instant with `before_timestamp`.
    #[schemars(length(min = 1, max = 1_024))]
    value: String,
}

impl From<ForgetScope> for fact::ForgetScope {
    fn from(scope: ForgetScope) -> Self {
        Self { kind: scope.kind.into(), value: scope.value }
    }
}

// ------------------------------------------------------------------ memory_forget

/// Forget the facts of a scope, every version of them: their values are out of reach at once and erased for good when the recovery
/// window ends (7 days unless an operator sets another).
///
/// Preview it with `memory_forget_dry_run`; take it back with `memory_forget_undo` while the window is open. Facts that you pinned and
/// reserved ones stay. A signed receipt holds hashes of the values, never values. Backups, exports and hand-off packages taken before
/// are outside of its reach. On by default (flag `CORECRUXD_FEATURE_SCOPED_FORGET`).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryForget {
    /// Which facts.
    scope: ForgetScope,
    /// Why; it stands in the receipt, so leave out what is to be forgotten.
    #[schemars(length(min = 1, max = 4_096))]
    reason: String,
    /// Your tenant, or `default`; another is refused.
    #[serde(default = "default_tenant")]
    tenant_id: String,
    /// Tokens (4 bytes each) of facts that may be touched, oldest first; absent: all in scope. The oldest is touched in any case.
    token_budget: Option<u64>,
    /// `next_cursor` of the call before, for a scope that is larger than one call.
    cursor: Option<String>,
}

fn default_tenant() -> String {
    "default".into()
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Forgotten {
    /// Keep it: `memory_forget_undo` and `receipt_verify` take it.
    forget_receipt_id: String,
    /// How many versions lost their values.
    facts_affected: u64,
    recovery_window_seconds: u64,
    recovery_window_ends_at: String,
    /// The receipt's body, CBOR in hex; absent where it would not fit, and then `receipt_verify` and the HTTP API have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt_body_cbor_hex: Option<String>,
    /// BLAKE3 of the body.
    receipt_body_hash_hex: String,
    scope: ForgetScope,
    /// Who asked for it.
    passport_id: String,
    /// Why there may be more in scope: `facts` or `scan_limit` (go on with `next_cursor`), or `token_budget` (call again).
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for MemoryForget {
    const NAME: &'static str = "memory_forget";
    const TITLE: &'static str = "Forget facts";
    const SCOPE: &'static str = "crux-mcp.memory_forget";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = false;
    const SWITCH: Option<flag::Definition> = Some(flag::SCOPED_FORGET);
    type Output = Forgotten;

    fn example() -> Value {
        json!({ "scope": { "type": "entity_prefix", "value": "scratch:" }, "reason": "clean up after a trial" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Forgotten>, CallError> {
        let Self { scope, reason, tenant_id, token_budget, cursor } = self;
        let command = fact::ForgetFacts { scope: scope.clone().into(), reason, tenant_id: Some(tenant_id), token_budget, cursor };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let forgotten = Forgotten {
            forget_receipt_id: done.receipt_id,
            facts_affected: done.facts_affected,
            recovery_window_seconds: done.window_ms / 1_000,
            recovery_window_ends_at: done.recoverable_until.to_rfc3339(),
            receipt_body_cbor_hex: done.body.map(hex::encode),
            receipt_body_hash_hex: done.body_hash,
            scope,
            passport_id: done.passport,
            truncated: done.truncated,
            next_cursor: done.next_cursor,
        };
        Ok(Reply::at(revision, forgotten))
    }
}

// ------------------------------------------------------------------ memory_forget_dry_run

/// List what `memory_forget` with the same scope and budget would forget. Erases nothing, and works while that tool is switched off.
///
/// Both ask the same resolver. Reserved facts (`__agent::` of others, `__ops::`, `__bootstrap__::`, `__agent_session::` and the like) and
/// what you pinned are never listed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryForgetDryRun {
    /// Which facts, as for `memory_forget`.
    scope: ForgetScope,
    /// Tokens (4 bytes each) of facts that would be touched, oldest first; absent: all in scope. It does not cut this reply.
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ForgettableFact {
    fact_id: String,
    entity: String,
    key: String,
    stored_at: String,
    /// What it counts for against a budget.
    tokens: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Forgettable {
    scope: ForgetScope,
    /// How many versions one call of `memory_forget` would touch.
    count: u64,
    /// Oldest first, as many as fit this reply.
    facts_that_would_be_affected: Vec<ForgettableFact>,
    /// Always true.
    dry_run: bool,
    /// Why the list ends before the scope does: `reply_bytes`, `facts`, `scan_limit` or `token_budget`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for MemoryForgetDryRun {
    const NAME: &'static str = "memory_forget_dry_run";
    const TITLE: &'static str = "Preview a forgetting";
    const SCOPE: &'static str = "crux-mcp.memory_forget_dry_run";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = true;
    type Output = Forgettable;

    fn example() -> Value {
        json!({ "scope": { "type": "entity_prefix", "value": "scratch:" } })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Forgettable>, CallError> {
        let Self { scope, token_budget, cursor } = self;
        let query = fact::FindForgettable { scope: scope.clone().into(), token_budget, cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let row = |found: fact::Forgettable| ForgettableFact {
            fact_id: found.fact_id,
            entity: found.entity,
            key: found.key,
            stored_at: found.stored_at.to_rfc3339(),
            tokens: found.tokens,
        };
        let forgettable = Forgettable {
            scope,
            count: found.count,
            facts_that_would_be_affected: found.facts.into_iter().map(row).collect(),
            dry_run: true,
            truncated: found.truncated,
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, forgettable))
    }
}

// ------------------------------------------------------------------ memory_forget_undo

/// Bring back what one `memory_forget` took, while its recovery window is open. Yours alone, or an operator's.
///
/// Values, pins and history are as they were. A version whose fact was stored anew meanwhile comes back as a superseded one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryForgetUndo {
    /// `forget_receipt_id` of that call.
    #[schemars(length(min = 1, max = 512))]
    forget_receipt_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Recovered {
    forget_receipt_id: String,
    /// The receipt of this recovery.
    receipt_id: String,
    /// How many versions have their values back.
    facts_recovered: u64,
    /// How many of them are active again.
    active: u64,
}

impl Tool for MemoryForgetUndo {
    const NAME: &'static str = "memory_forget_undo";
    const TITLE: &'static str = "Undo a forgetting";
    const SCOPE: &'static str = "crux-mcp.memory_forget";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::MEMORY;
    const IDEMPOTENT: bool = false;
    const SWITCH: Option<flag::Definition> = Some(flag::SCOPED_FORGET);
    type Output = Recovered;

    fn example() -> Value {
        json!({ "forget_receipt_id": "r_forget_0123456789abcdef" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Recovered>, CallError> {
        let (done, revision) = cluster.propose(ctx, fact::RecoverFacts { forget_receipt_id: self.forget_receipt_id }).await?;
        let fact::FactsRecovered { forget_receipt_id, receipt_id, facts_recovered, active } = done;
        Ok(Reply::at(revision, Recovered { forget_receipt_id, receipt_id, facts_recovered, active }))
    }
}
