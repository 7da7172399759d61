//! Who is calling.

use quorate_domain::identity::GetPassport;
use quorate_domain::passport::{PassportResolved, ResolvePassport};
use quorate_domain::refusal::shown;
use quorate_domain::{Principal, Refusal, Scope, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, now_unix_ms};
use crate::registry::{Effect, Reply, Tool};

// ------------------------------------------------------------------ get_agent_identity

/// Tell the name under which you act: the one that stands as holder, author and reviewer.
///
/// `anonymous` means that the request came without a token.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetAgentIdentity {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AgentIdentity {
    agent_name: String,
}

impl Tool for GetAgentIdentity {
    const NAME: &'static str = "get_agent_identity";
    const TITLE: &'static str = "Who am I";
    const SCOPE: &'static str = "crux-mcp.get_agent_identity";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = true;
    const ANONYMOUS: bool = true;
    type Output = AgentIdentity;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, _: &Cluster) -> Result<Reply<AgentIdentity>, CallError> {
        let agent_name = ctx.caller.as_ref().map_or_else(|| "anonymous".into(), |caller| caller.passport.clone());
        Ok(Reply::local(AgentIdentity { agent_name }))
    }
}

// ------------------------------------------------------------------ resolve_principal

/// Tell who somebody is: passport, tier, scopes and tenant. Without arguments: who you are.
///
/// Only passports and sessions of your own tenant are known. `session_id` goes before `passport_id`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolvePrincipal {
    /// An MCP session id of this cluster; its owner is told.
    session_id: Option<String>,
    /// A passport by name, such as `claude-work`. One that was merged into another, and the fingerprint of a linked device, lead to
    /// the passport that they stand for now.
    passport_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Resolved {
    principal: PrincipalView,
    /// What decided: `session_id`, `passport_id` or `caller`.
    resolved_param: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PrincipalView {
    passport_id: String,
    /// `personal`, `work` or `public`.
    category: String,
    /// `unverified`, `verified`, `elite` or `operator`.
    tier: String,
    /// The tier as a number from 0 to 3.
    tier_rank: u8,
    /// Scopes that its tokens carry.
    capabilities: Vec<String>,
    tenant_id: String,
    /// Whether its moves of work wait for approvals.
    agent_work_gate: bool,
    /// `session`, `passport`, or `identity_link:` and the id of the receipt that made the link.
    resolved_via: String,
    /// True for a passport that was revoked.
    revoked: bool,
}

impl PrincipalView {
    fn new(passport: String, tenant: String, tier: Tier, scopes: impl IntoIterator<Item = Scope>, via: &str) -> Self {
        Self {
            passport_id: passport,
            // Passports of other categories are not part of this version.
            category: "work".into(),
            tier: tier.word().into(),
            tier_rank: tier.rank(),
            capabilities: scopes.into_iter().collect(),
            tenant_id: tenant,
            agent_work_gate: false,
            resolved_via: via.into(),
            revoked: false,
        }
    }
}

impl Tool for ResolvePrincipal {
    const NAME: &'static str = "resolve_principal";
    const TITLE: &'static str = "Resolve a principal";
    const SCOPE: &'static str = "crux-mcp.resolve_principal";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = true;
    const ANONYMOUS: bool = true;
    type Output = Resolved;

    fn example() -> Value {
        json!({ "passport_id": "claude-work" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Resolved>, CallError> {
        let Some(caller) = ctx.caller.as_deref() else {
            return Err(CallError::arguments(
                "you have no passport: the request came without a token, and other passports are shown to members of their tenant only",
                "Send `Authorization: Bearer <token>`.",
            ));
        };
        let ((found, served), via, param) = match (self.session_id, self.passport_id) {
            (Some(session), _) => {
                let passport = owner(&session, caller, ctx)?;
                (cluster.read(ctx, GetPassport { passport }).await?, "session".to_string(), "session_id")
            }
            (None, Some(passport)) => {
                let (PassportResolved { passport, link_id }, served) = cluster.read(ctx, ResolvePassport { passport }).await?;
                let via = link_id.map_or_else(|| "passport".into(), |link_id| format!("identity_link:{link_id}"));
                ((passport, served), via, "passport_id")
            }
            (None, None) => {
                let Principal { tenant, passport, tier, scopes } = caller.clone();
                let (found, served) = cluster.read(ctx, GetPassport { passport: passport.clone() }).await?;
                // What it may do is what its token says.
                let principal = PrincipalView::new(passport, tenant, tier, scopes, "passport");
                let principal = PrincipalView { agent_work_gate: found.agent_work_gate, ..principal };
                return Ok(Reply::at(served.revision, Resolved { principal, resolved_param: "caller".into() }));
            }
        };
        let (revoked, agent_work_gate) = (found.revoked_at.is_some(), found.agent_work_gate);
        let principal = PrincipalView::new(found.name, found.tenant, found.tier, found.scopes, &via);
        let principal = PrincipalView { revoked, agent_work_gate, ..principal };
        Ok(Reply::at(served.revision, Resolved { principal, resolved_param: param.into() }))
    }
}

/// The passport that an MCP session id was given to. One of another tenant looks like one that never existed.
fn owner(session: &str, caller: &Principal, ctx: &CallContext) -> Result<String, CallError> {
    let session_id = ctx.services.sessions.read(session, now_unix_ms().0);
    let owner = session_id.filter(|id| id.tenant.as_deref() == Some(&caller.tenant)).and_then(|id| id.passport);
    owner.ok_or_else(|| CallError::Refused(Refusal::not_found("session", shown(session))))
}
