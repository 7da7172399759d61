//! What the caller's calls have cost.

use std::time::Instant;

use quorate_domain::usage::{GetUsage, Standing, anonymous};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::registry::{Effect, Reply, Tool};
use crate::usage::{ESTIMATOR, WITHIN};

/// How old the counts may be that a caller without a token is told.
const ANONYMOUS_AGE_MS_MAX: u64 = 5_000;

/// Tell how many tokens your calls of tools have used up to now, by estimate: good to compare, not exact.
///
/// The counts are your passport's, of all gateways and since it first called; another gateway's last few seconds can be missing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionTokenUsage {
    /// Has no effect: the reply is always small.
    #[serde(default = "budget")]
    #[expect(dead_code, reason = "accepted as documented")]
    token_budget: u64,
}

fn budget() -> u64 {
    500
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct TokenUsage {
    /// `__anon__` for callers without a token.
    passport: String,
    /// `tokens_in` and `tokens_out` together.
    used: u64,
    /// Of the arguments of your calls.
    tokens_in: u64,
    /// Of their results, refusals included.
    tokens_out: u64,
    /// The sum of the `token_budget` arguments that you gave.
    declared_budget_in: u64,
    calls: u64,
    /// How tokens are estimated: bytes of JSON, divided by four and rounded up.
    estimator: String,
    /// What an operator wants you to stay within. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    /// What counts against `limit`, in percent of it; above 100 when it is exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pct: Option<f64>,
    /// What happens beyond `limit`: `report`, nothing; `warn`, every answer says so; `stop`, calls are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    beyond_limit: Option<String>,
    /// Since when tokens count against `limit`; absent when all of `used` does.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted_since_unix_ms: Option<u64>,
}

/// To a tenth. Of a budget of nothing, all of it once anything is used.
fn percent(standing: Standing) -> f64 {
    (standing.used as f64 * 1_000.0 / standing.tokens.max(1) as f64).round() / 10.0
}

impl Tool for SessionTokenUsage {
    const NAME: &'static str = "session_token_usage";
    const BEYOND_BUDGET: bool = true;
    const TITLE: &'static str = "Show token usage";
    const SCOPE: &'static str = "crux-mcp.session_token_usage";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = true;
    const ANONYMOUS: bool = true;
    type Output = TokenUsage;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<TokenUsage>, CallError> {
        let nobody = anonymous();
        let (caller, consistency) = match ctx.caller.as_deref() {
            // What this gateway still holds of it is handed over first, so that nothing is added up in two places.
            Some(caller) => {
                let deadline = ctx.deadline.min(Instant::now() + WITHIN);
                let handed = ctx.services.meter.hand_over(cluster, &caller.tenant, deadline).await;
                handed.map_err(|error| CallError::Unreadable { detail: error.to_string(), retry_after_ms: 1_000 })?;
                (caller, Consistency::Linearizable)
            }
            // Who shows no token causes no writes and no questions to the leader.
            None => (&nobody, Consistency::Stale { max_age_ms: ANONYMOUS_AGE_MS_MAX }),
        };
        let (found, served) = cluster.read_as(caller, GetUsage {}, consistency, ctx.deadline).await?;
        let (used, standing) = (found.used.tokens(), found.standing);
        let facts = TokenUsage {
            passport: found.passport,
            used,
            tokens_in: found.used.tokens_in,
            tokens_out: found.used.tokens_out,
            declared_budget_in: found.used.declared_budget_in,
            calls: found.used.calls,
            estimator: ESTIMATOR.into(),
            limit: found.limit,
            pct: standing.map(percent),
            beyond_limit: standing.map(|standing| standing.beyond.word().into()),
            counted_since_unix_ms: standing.and_then(|standing| standing.since).map(|since| since.0),
        };
        Ok(Reply::at(served.revision, facts))
    }
}
