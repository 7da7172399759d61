//! The session handshake: a plan of what the caller can do here, and what its session is called.

use std::collections::BTreeMap;

use quorate_domain::flag::{Flags, GetFlags};
use quorate_domain::limit::{NAME_BYTES_MAX, PLAN_TTL_MS};
use quorate_domain::receipt::GetReceipt;
use quorate_domain::session_plan::{OpenPlan, PlanOpened};
use quorate_domain::usage::GetUsage;
use quorate_domain::{Principal, Revision};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use super::passports::PassportView;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::mcp;
use crate::registry::{Catalog, Effect, Reply, Tool};
use crate::schema::Nullable;
use crate::surface::{Kind, weight, why_denied};

/// Open a session, first of all: get a plan of the tools you can use, by what they are for, and ids for your session.
///
/// Issues your passport if you have none yet. The intent that you declare counts for an hour: where an operator has
/// `tools/list` follow it, list the tools again after this call. The plan is a receipt: `receipt_verify` checks it by its `plan_id`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CuecruxSession {
    /// What the session is about; empty takes back the one declared before. `audit_review`, `document_ingest`, `session_review`,
    /// `compliance_export` and `knowledge_query` carry weight, any other text is kept.
    #[schemars(length(max = 512))]
    intent: Option<String>,
    /// What the plan should look like.
    hints: Option<Hints>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hints {
    /// Without effect: there is no bulk channel, so `channels.bulk` is never there.
    #[expect(dead_code, reason = "the documented argument; no channel of that kind exists")]
    prefer_bulk: Option<bool>,
    /// Tools that the plan names at the most; what it leaves out is counted.
    #[schemars(range(min = 0))]
    max_capabilities: Option<u64>,
    /// True adds your plans before this one, newest first, to the receipt.
    want_parent_chain: Option<bool>,
    /// True leaves out what you can't use.
    #[serde(default)]
    hide_exclusions: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionPlan {
    /// Also the id of the plan's receipt.
    plan_id: String,
    /// For `coord_announce`, `save_session` and whatever else asks for one.
    session_id: String,
    passport: PlanPassport,
    channels: Channels,
    /// The tools by what they are for; with an intent that carries weight, what it speaks for comes first.
    capability_graph: Vec<Capabilities>,
    /// BLAKE3, in hex, of the compact JSON of `capability_graph`; the receipt holds it.
    capability_graph_hash: String,
    receipt: PlanReceipt,
    budget: Budget,
    minted_at: String,
    session_ttl_s: u64,
    /// The intent that counts from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PlanPassport {
    passport_id: String,
    tenant_id: String,
    tier: String,
    /// What was issued to it; absent while `CORECRUXD_AGENT_PASSPORTS` is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    issued: Option<PassportView>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Channels {
    mcp: McpChannel,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct McpChannel {
    /// The address of this catalog at the gateway.
    path: String,
    transport: String,
    protocol_versions: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Capabilities {
    /// What they are for.
    kind: Kind,
    tools: Vec<String>,
    /// What you can't use now, by why; empty with `hide_exclusions`.
    excluded: Vec<Excluded>,
    /// Tools of this kind that `max_capabilities` left out.
    left_out: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Excluded {
    why: String,
    tools: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PlanReceipt {
    /// BLAKE3 of the receipt's body, in hex.
    hash: String,
    /// Ed25519 over the receipt's link hash, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signer_kid: Option<String>,
    /// `verified` with a signature; `local` when none could be had in time: `receipt_verify` shows it later.
    mode: String,
    /// Your plans before this one, newest first; at most 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_chain: Option<Vec<Parent>>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Parent {
    plan_id: String,
    hash: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Budget {
    /// What an operator wants each passport to stay within; null for no limit.
    tokens_cap: Nullable<u64>,
    /// What your calls have used up to now, by estimate; a gateway's last few seconds can be missing.
    tokens_used: u64,
    ttl_s: u64,
}

/// The tools by what they are for. An excluded one is named with the reason and does not count.
fn capability_graph(catalog: &Catalog, caller: &Principal, flags: &Flags, intent: Option<&str>, hints: &Hints) -> Vec<Capabilities> {
    let mut kinds = Kind::ALL;
    kinds.sort_by_key(|kind| std::cmp::Reverse(weight(intent, *kind)));
    let mut room = hints.max_capabilities.unwrap_or(u64::MAX);
    let mut graph = Vec::new();
    for kind in kinds {
        let (mut tools, mut excluded, mut left_out) = (Vec::new(), BTreeMap::<String, Vec<String>>::new(), 0);
        for entry in catalog.entries().iter().filter(|entry| Kind::of(entry) == kind) {
            match why_denied(entry.name, entry.scope, entry.switch, caller, flags) {
                // One reason for all of them: the scope of a tool is called like the tool.
                Some(_) if !caller.may(entry.scope) => {
                    excluded.entry("your token lacks its scope".into()).or_default().push(entry.name.into())
                }
                Some(why) => excluded.entry(why).or_default().push(entry.name.into()),
                None if room == 0 => left_out += 1,
                None => {
                    room -= 1;
                    tools.push(entry.name.into());
                }
            }
        }
        if hints.hide_exclusions {
            excluded.clear();
        }
        let excluded = excluded.into_iter().map(|(why, tools)| Excluded { why, tools }).collect();
        graph.push(Capabilities { kind, tools, excluded, left_out });
    }
    graph
}

/// The signature of the plan's receipt, and the key's id. The plan stands in any case, so what goes wrong here is no failure.
async fn signature(ctx: &CallContext, cluster: &Cluster, plan_id: &str, revision: Revision) -> Option<(String, String)> {
    let query = GetReceipt { receipt_id: plan_id.into(), tenant_id: None };
    let read = cluster.read_as(ctx.principal().ok()?, query, Consistency::AtLeast(revision), ctx.deadline).await;
    match read {
        Ok((receipt, _)) => receipt.signature,
        Err(error) => {
            tracing::warn!(plan_id, %error, "the receipt of a plan could not be read");
            None
        }
    }
}

impl Tool for CuecruxSession {
    const NAME: &'static str = "cuecrux_session";
    const TITLE: &'static str = "Open a session";
    const SCOPE: &'static str = "crux-mcp.cuecrux_session";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = false;
    type Output = SessionPlan;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SessionPlan>, CallError> {
        let caller = ctx.principal()?;
        let hints = self.hints.unwrap_or_default();
        if let Some(intent) = self.intent.as_ref().filter(|intent| intent.len() > NAME_BYTES_MAX) {
            let problem = format!("`intent` is {} bytes long, and the limit is {NAME_BYTES_MAX} bytes", intent.len());
            return Err(CallError::arguments(problem, "Say it in a few words."));
        }
        let (flags, _) = cluster.read(ctx, GetFlags {}).await?;
        let (usage, _) = cluster.read(ctx, GetUsage {}).await?;
        let capability_graph = capability_graph(&ctx.services.tools, caller, &flags, self.intent.as_deref().map(str::trim), &hints);
        let text = serde_json::to_string(&capability_graph).map_err(|error| CallError::Fault { detail: error.to_string() })?;
        let graph_hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        let public_key = ctx.services.passport_keys.public_hex(&caller.tenant, &caller.passport);
        let command = OpenPlan { intent: self.intent, graph_hash: graph_hash.clone(), public_key };
        let (opened, revision) = cluster.propose(ctx, command).await?;
        let PlanOpened { plan_id, session_id, hash, minted_at, intent, passport, chain } = opened;
        let (signer_kid, signature) = signature(ctx, cluster, &plan_id, revision).await.unzip();
        let parents = chain.into_iter().map(|earlier| Parent { plan_id: earlier.plan_id, hash: earlier.hash });
        let ttl_s = PLAN_TTL_MS / 1_000;
        let plan = SessionPlan {
            plan_id,
            session_id,
            passport: PlanPassport {
                passport_id: caller.passport.clone(),
                tenant_id: caller.tenant.clone(),
                tier: caller.tier.word().into(),
                issued: passport.map(Into::into),
            },
            channels: Channels { mcp: mcp_channel() },
            capability_graph,
            capability_graph_hash: graph_hash,
            receipt: PlanReceipt {
                hash,
                mode: if signature.is_some() { "verified" } else { "local" }.into(),
                signature,
                signer_kid,
                parent_chain: hints.want_parent_chain.unwrap_or(false).then(|| parents.collect()),
            },
            budget: Budget {
                tokens_cap: Nullable(usage.limit),
                tokens_used: usage.used.tokens_in.saturating_add(usage.used.tokens_out),
                ttl_s,
            },
            minted_at: minted_at.to_rfc3339(),
            session_ttl_s: ttl_s,
            intent,
        };
        Ok(Reply::at(revision, plan))
    }
}

fn mcp_channel() -> McpChannel {
    let versions = std::iter::once(mcp::STATELESS).chain(mcp::LEGACY).map(String::from);
    McpChannel { path: "/mcp/crux".into(), transport: "streamable-http".into(), protocol_versions: versions.collect() }
}
