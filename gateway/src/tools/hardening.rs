//! Hardening: what guards this gateway, as it runs, and the gates of plans.

use quorate_domain::execplan::{self, PassGate};
use quorate_domain::flag::{self, GetFlags};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, now_unix_ms};
use crate::egress::{self, Allowed};
use crate::registry::{Effect, Reply, Tool};
use crate::routes::{Access, Route};
use crate::schema::Nullable;
use crate::surface;

// ------------------------------------------------------------------ route_access_matrix

/// Show which token each HTTP route of this gateway asks for. The rows come from the routes as they are served.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteAccessMatrix {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RouteMatrix {
    routes: Vec<RouteRow>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RouteRow {
    route: String,
    /// A token needs one of these; empty where the notes say what is asked for instead.
    required_any_scope: Vec<String>,
    /// Whether the caller is the passport of its token.
    passport_binding: bool,
    /// Whether the caller's token decides the tenant.
    tenant_binding: bool,
    notes: String,
}

impl From<&Route> for RouteRow {
    fn from(route: &Route) -> Self {
        let (scopes, bound, notes): (&[&str], bool, &str) = match route.access {
            Access::Open => (&[], false, "open to everybody; tells nothing of a team's"),
            Access::Token => (&[], true, "needs a token"),
            Access::AnyScope(scopes) => (scopes, true, "needs a token with one of the scopes"),
            Access::ScopeOfTool => (&[], true, "needs a token with the scope of the tool that is called; `autonomy_contract` lists them"),
        };
        Self {
            route: route.path.into(),
            required_any_scope: scopes.iter().map(|scope| scope.to_string()).collect(),
            passport_binding: bound,
            tenant_binding: bound,
            notes: notes.into(),
        }
    }
}

impl Tool for RouteAccessMatrix {
    const NAME: &'static str = "route_access_matrix";
    const TITLE: &'static str = "Show the gates of routes";
    const SCOPE: &'static str = "crux-mcp.route_access_matrix";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::AUDIT;
    const IDEMPOTENT: bool = true;
    type Output = RouteMatrix;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, _: &Cluster) -> Result<Reply<RouteMatrix>, CallError> {
        Ok(Reply::local(RouteMatrix { routes: ctx.services.routes.iter().map(Into::into).collect() }))
    }
}

// ------------------------------------------------------------------ execplan_gate

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateStatus {
    Passed,
    Failed,
    Blocked,
    Skipped,
}

impl From<GateStatus> for execplan::GateStatus {
    fn from(status: GateStatus) -> Self {
        match status {
            GateStatus::Passed => Self::Passed,
            GateStatus::Failed => Self::Failed,
            GateStatus::Blocked => Self::Blocked,
            GateStatus::Skipped => Self::Skipped,
        }
    }
}

/// Note how a milestone of a plan ended, as a stable fact under `execplan:<slug>` and `gate:<milestone>`.
///
/// Another outcome of the same gate is its next version. `passed` and `skipped` count as complete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecplanGate {
    /// The plan's name, without `execplan:`.
    #[schemars(length(max = 503))]
    slug: String,
    /// Such as `M2`; `gate:M2` is the same.
    #[schemars(length(max = 512))]
    milestone: String,
    status: GateStatus,
    /// The commit at which it ended so.
    #[schemars(length(max = 512))]
    commit_sha: String,
    /// Tokens that you allow for it, above 0; the fact keeps it.
    #[schemars(range(min = 1))]
    token_budget: u64,
    /// Whether the tests passed.
    tests_passing: Option<bool>,
    /// Files, logs or links that show it; at most 100.
    #[schemars(length(max = 100))]
    artifacts: Option<Vec<String>>,
    /// In a few words, at most 4 KiB.
    #[schemars(length(max = 4_096))]
    notes: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct GateNoted {
    fact_id: String,
    entity: String,
    key: String,
    commit_sha: String,
    status: String,
}

impl Tool for ExecplanGate {
    const NAME: &'static str = "execplan_gate";
    const TITLE: &'static str = "Note a plan's gate";
    const SCOPE: &'static str = "crux-mcp.execplan_gate";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::WORK;
    const IDEMPOTENT: bool = false;
    type Output = GateNoted;

    fn example() -> Value {
        json!({ "slug": "search", "milestone": "M2", "status": "passed", "commit_sha": "93b41a7", "token_budget": 500 })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<GateNoted>, CallError> {
        let status: execplan::GateStatus = self.status.into();
        let commit_sha = self.commit_sha.clone();
        let command = PassGate {
            slug: self.slug,
            milestone: self.milestone,
            status,
            commit_sha: self.commit_sha,
            tests_passing: self.tests_passing,
            artifacts: self.artifacts.unwrap_or_default(),
            notes: self.notes,
            token_budget: self.token_budget,
        };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let execplan::GatePassed { fact_id, entity, key } = done;
        Ok(Reply::at(revision, GateNoted { fact_id, entity, key, commit_sha, status: status.word().into() }))
    }
}

// ------------------------------------------------------------------ auth_posture_audit

/// Show how this gateway is set up where it matters for safety, and what to check besides. Nothing is changed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthPostureAudit {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PostureAudit {
    /// `crux.auth_posture_audit.v1`.
    schema: String,
    checked_at: String,
    /// Your passport.
    mcp_agent: Nullable<String>,
    /// Whether all nodes that this gateway was given are on its own machine.
    daemon_loopback_configured: bool,
    /// Always false: nothing here routes requests to other services.
    rcx_router_configured: bool,
    /// Whether `cuecrux_session` issues passports.
    agent_passports_enabled: bool,
    /// Whether this gateway has a folder of its own, `audit_export_dir`; all else is kept by the nodes.
    data_dir_configured: bool,
    /// How it stands, a sentence each.
    notes: Vec<String>,
    /// What is worth a look, a sentence each.
    recommended_checks: Vec<String>,
}

/// What a gateway's settings say of its safety; filled once, when it starts.
#[derive(Clone, Debug)]
pub struct Posture {
    pub listens_on_loopback: bool,
    /// Whether it serves HTTPS itself.
    pub front_tls: bool,
    pub nodes_on_loopback: bool,
    /// Whether it and the nodes show each other certificates.
    pub node_tls: bool,
    pub cluster_secret: bool,
    pub receipt_keys: usize,
    pub allowed_hosts: usize,
    pub allowed_origins: usize,
    pub export_folder: bool,
    pub conformance: bool,
}

impl Posture {
    fn notes(&self) -> Vec<String> {
        let listens = match (self.listens_on_loopback, self.front_tls) {
            (true, false) => "It listens on this machine alone, without TLS.",
            (true, true) => "It listens on this machine alone, with TLS.",
            (false, true) => "Other machines reach it, over TLS.",
            // Such settings stop the start.
            (false, false) => "Other machines reach it without TLS.",
        };
        let nodes = match (self.node_tls, self.cluster_secret) {
            (true, true) => "It and the nodes show each other certificates and the cluster's secret.",
            (true, false) => "It and the nodes show each other certificates, and no secret.",
            (false, true) => "It and the nodes show each other the cluster's secret, without TLS.",
            (false, false) => "Nothing is shown between it and the nodes: any process that reaches a node can speak for every caller.",
        };
        let keys = match self.receipt_keys {
            0 => "It has no receipt keys, so it calls no receipt verified.".to_string(),
            keys => format!("It verifies receipts with {keys} public key{}.", if keys == 1 { "" } else { "s" }),
        };
        let names = format!("Besides loopback it answers to {} host names and {} origins.", self.allowed_hosts, self.allowed_origins);
        let gates = "The gates of routes are always enforced; `route_access_matrix` shows them.";
        let mut notes = vec![listens.into(), nodes.into(), keys, names, gates.into()];
        if self.conformance {
            notes.push("It serves the fixtures of the conformance suite to anybody.".into());
        }
        notes
    }

    fn recommended_checks(&self, agent_passports: bool) -> Vec<String> {
        let advice = [
            (!self.cluster_secret && !self.node_tls, "Set `cluster_secret`, or certificates, on nodes and gateways."),
            (self.receipt_keys == 0, "Give the gateway `receipt_keys`, so that receipts can be called verified."),
            (!self.export_folder, "Give the gateway an `audit_export_dir`, so that audits can be exported."),
            (self.conformance, "Take `conformance` away where a team's data is."),
            (!agent_passports, "Switch `CORECRUXD_AGENT_PASSPORTS` on, so that every agent has a passport with a key."),
            (true, "Call `route_access_matrix` and `autonomy_contract`, and compare both with what you expect."),
            (true, "Run `quorate doctor` on the machine, and `quorate status` for the nodes."),
            (true, "Look at `/readyz?verbose` of every gateway."),
        ];
        advice.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text.to_string()).collect()
    }
}

impl Tool for AuthPostureAudit {
    const NAME: &'static str = "auth_posture_audit";
    const TITLE: &'static str = "Audit the set-up";
    const SCOPE: &'static str = "crux-mcp.auth_posture_audit";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::AUDIT;
    const IDEMPOTENT: bool = true;
    type Output = PostureAudit;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<PostureAudit>, CallError> {
        let (flags, served) = cluster.read(ctx, GetFlags {}).await?;
        let posture = &ctx.services.posture;
        let agent_passports_enabled = surface::value(&flags, flag::AGENT_PASSPORTS) == "on";
        let facts = PostureAudit {
            schema: "crux.auth_posture_audit.v1".into(),
            checked_at: now_unix_ms().to_rfc3339(),
            mcp_agent: Nullable(ctx.caller.as_ref().map(|caller| caller.passport.clone())),
            daemon_loopback_configured: posture.nodes_on_loopback,
            rcx_router_configured: false,
            agent_passports_enabled,
            data_dir_configured: posture.export_folder,
            notes: posture.notes(),
            recommended_checks: posture.recommended_checks(agent_passports_enabled),
        };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ egress_policy_check

fn yes() -> bool {
    true
}

/// Ask whether a target may be called from here: https may, plain http only this machine unless you allow it. Nothing is called.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressPolicyCheck {
    /// A URL.
    #[schemars(length(max = 4_096))]
    target: String,
    /// What it is for; it comes back as it is.
    #[schemars(length(max = 4_096))]
    purpose: Option<String>,
    /// Whether plain http to this machine is fine.
    #[serde(default = "yes")]
    allow_loopback_http: bool,
    /// Whether plain http to anywhere is fine.
    #[serde(default)]
    allow_plain_http: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EgressChecked {
    /// `crux.egress_policy_check.v1`.
    schema: String,
    target: String,
    purpose: Nullable<String>,
    allowed: bool,
    scheme: String,
    /// Empty for what has none.
    host: String,
    /// Why, a fragment each.
    reasons: Vec<String>,
}

impl Tool for EgressPolicyCheck {
    const NAME: &'static str = "egress_policy_check";
    const TITLE: &'static str = "Check a target outside";
    const SCOPE: &'static str = "crux-mcp.egress_policy_check";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::AUDIT;
    const IDEMPOTENT: bool = true;
    type Output = EgressChecked;

    fn example() -> Value {
        json!({ "target": "https://example.org/hook" })
    }

    async fn call(self, _: &CallContext, _: &Cluster) -> Result<Reply<EgressChecked>, CallError> {
        let Self { target, purpose, allow_loopback_http, allow_plain_http } = self;
        let verdict = egress::judge(&target, Allowed { loopback_http: allow_loopback_http, plain_http: allow_plain_http });
        let verdict = verdict.map_err(|problem| {
            CallError::arguments(format!("`target` is no absolute URL: {problem}"), "Send it as in `https://example.org/hook`.")
        })?;
        let facts = EgressChecked {
            schema: "crux.egress_policy_check.v1".into(),
            target,
            purpose: Nullable(purpose),
            allowed: verdict.allowed,
            scheme: verdict.scheme,
            host: verdict.host,
            reasons: verdict.reasons,
        };
        Ok(Reply::local(facts))
    }
}
