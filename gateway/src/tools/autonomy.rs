//! The autonomy contract: what the calling passport may use now.

use quorate_domain::flag::{self, GetFlags};
use quorate_domain::limit::{REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES};
use quorate_domain::refusal::shown;
use quorate_domain::{Principal, flag::Flags};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Catalog, Effect, Reply, Tool};
use crate::surface::{self, why_denied};

/// Show, for each tool, whether you may use it now, and if not, why. It is your own passport's; no memory is read.
///
/// A tool is denied when your token lacks its scope or when its flag is off. Rules about arguments come on top.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AutonomyContract {
    /// Tokens (4 bytes of JSON each) that the rows may have; at least one row comes. Absent, or 0: every row.
    #[schemars(range(min = 1))]
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before.
    #[schemars(length(max = 64))]
    cursor: Option<String>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Autonomy {
    /// False while `CORECRUXD_FEATURE_AUTONOMY_CONTRACT` is off; then `capabilities` is empty and nothing else is there.
    feature_enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    passport_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    /// A name of what was granted to your passport: it changes when its tier or its scopes do, and tells nothing of your token.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_id: Option<String>,
    /// BLAKE3, in hex, of the compact JSON of `tenant_id, passport_id, tier, scopes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_hash: Option<String>,
    /// In the order of `tools/list`.
    capabilities: Vec<Capability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<Summary>,
    /// Pass it as `cursor` for the rows that were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Capability {
    name: String,
    allowed: bool,
    /// What a token has to hold for it.
    scope: String,
    /// Always `local`: this cluster runs every tool itself.
    backend_id: String,
    /// `local`, or `refused` when it is not allowed.
    mode: String,
    /// Always 0: no tool costs credits.
    cost_credits: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_denied: Option<String>,
}

/// Over all tools, but for `returned`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Summary {
    total_tools: u64,
    returned: u64,
    allowed: u64,
    denied: u64,
    truncated_by_token_budget: bool,
}

/// What is granted to a passport, in the form that is hashed.
fn grant_hash(caller: &Principal) -> String {
    let Principal { tenant, passport, tier, scopes } = caller;
    let grant = json!({ "tenant_id": tenant, "passport_id": passport, "tier": tier.word(), "scopes": scopes });
    blake3::hash(grant.to_string().as_bytes()).to_hex().to_string()
}

fn contract(catalog: &Catalog, caller: &Principal, flags: &Flags, from: usize, token_budget: Option<u64>) -> Autonomy {
    let mut rows = catalog.entries().iter().map(|entry| {
        let why_denied = why_denied(entry.name, entry.scope, entry.switch, caller, flags);
        let (allowed, scope) = (why_denied.is_none(), entry.scope.to_string());
        let mode = if allowed { "local" } else { "refused" }.to_string();
        Capability { name: entry.name.into(), allowed, scope, backend_id: "local".into(), mode, cost_credits: 0.0, why_denied }
    });
    let all: Vec<Capability> = rows.by_ref().collect();
    let (total, allowed) = (all.len(), all.iter().filter(|row| row.allowed).count());
    let most = (REPLY_BYTES_MAX - 4 * REPLY_WRAPPER_BYTES) as u64;
    let mut left = token_budget.map_or(most, |tokens| tokens.saturating_mul(4).min(most));
    let mut capabilities: Vec<Capability> = Vec::new();
    for row in all.into_iter().skip(from) {
        let bytes = serde_json::to_string(&row).map_or(0, |json| json.len() as u64 + 1);
        if bytes > left && !capabilities.is_empty() {
            break;
        }
        left = left.saturating_sub(bytes);
        capabilities.push(row);
    }
    let end = from + capabilities.len();
    let hash = grant_hash(caller);
    Autonomy {
        feature_enabled: true,
        passport_id: Some(caller.passport.clone()),
        tier: Some(caller.tier.word().into()),
        token_id: Some(format!("grant_{}", &hash[..16])),
        token_hash: Some(hash),
        summary: Some(Summary {
            total_tools: total as u64,
            returned: capabilities.len() as u64,
            allowed: allowed as u64,
            denied: (total - allowed) as u64,
            truncated_by_token_budget: end < total,
        }),
        next_cursor: catalog.entries().get(end).map(|entry| entry.name.into()),
        capabilities,
    }
}

impl Tool for AutonomyContract {
    const NAME: &'static str = "autonomy_contract";
    const TITLE: &'static str = "Show what you may use";
    const SCOPE: &'static str = "crux-mcp.autonomy_contract";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::AUTONOMY_CONTRACT);
    const ZERO_IS_NONE: &'static [&'static str] = &["token_budget"];
    type Output = Autonomy;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Autonomy>, CallError> {
        let catalog = &ctx.services.tools;
        let from = match &self.cursor {
            None => 0,
            Some(name) => catalog.entries().iter().position(|entry| entry.name == name).ok_or_else(|| {
                let problem = format!("`cursor` is `{}`, which is none of ours", shown(name));
                CallError::arguments(problem, "Use `next_cursor` as it was given, or none.")
            })?,
        };
        let (flags, served) = cluster.read(ctx, GetFlags {}).await?;
        if surface::value(&flags, flag::AUTONOMY_CONTRACT) == "off" {
            return Ok(Reply::at(served.revision, Autonomy::default()));
        }
        Ok(Reply::at(served.revision, contract(catalog, ctx.principal()?, &flags, from, self.token_budget)))
    }
}
