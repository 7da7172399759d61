//! Approvals over HTTP, for people and programs: lists, waiting for a decision, the policy, and addresses for notices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::approval::{
    Approval, ApprovalPolicy, ApprovalStatus, GetApproval, GetApprovalPolicy, ListApprovals, PolicyRule, RiskTier, SetApprovalPolicy, Vote,
};
use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::notice::{DeleteWebhook, Format, ListNotices, ListWebhooks, Notice, PutWebhook, Webhook};
use quorate_domain::{Principal, Refusal, Revision, Tier};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::CallError;
use crate::cluster::{Cluster, Consistency};
use crate::limit::{APPROVAL_POLL, APPROVAL_WAIT_MS_MAX, READ_ATTEMPT};
use crate::notices;
use crate::registry::{Reply, Tool};
use crate::rest::{self, NoParameters};
use crate::server::App;
use crate::tools::approvals::{ApprovalDecide, ApprovalRequest};
use crate::wait::Watcher;

const SCOPES: [&str; 2] = [ApprovalDecide::SCOPE, ApprovalRequest::SCOPE];

#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    #[default]
    Pending,
    All,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    #[serde(default)]
    status: Which,
    limit: Option<u64>,
    cursor: Option<String>,
}

/// `GET /v1/approvals?status=pending&limit=&cursor=`: what waits for a decision, or with `status=all` everything.
pub async fn list(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &SCOPES, |ctx, asked: Listed| async move {
        let limit = asked.limit.unwrap_or(LIST_DEFAULT as u64);
        let query = ListApprovals { pending_only: matches!(asked.status, Which::Pending), limit, cursor: asked.cursor };
        let (found, served) = cluster.read(&ctx, query).await?;
        let approvals: Vec<Value> = found.approvals.into_iter().map(shown).collect();
        let mut facts = json!({ "approvals": approvals, "revision": served.revision });
        if let Some(cursor) = found.next_cursor {
            facts["next_cursor"] = cursor.into();
        }
        Ok(Reply::at(served.revision, facts))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Milliseconds to wait for its decision.
    #[schemars(range(max = APPROVAL_WAIT_MS_MAX))]
    wait_ms: Option<u64>,
}

/// `GET /v1/approvals/{id}?wait_ms=`: one request; with `wait_ms` the answer comes when it is decided, or when the time is over.
pub async fn show(app: &Arc<App>, request_id: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &SCOPES, |ctx, asked: Wait| async move {
        let wait = wait_of(asked.wait_ms)?;
        let (approval, revision) = decided(cluster, ctx.principal()?, request_id, wait).await?;
        Ok(Reply::at(revision, shown(approval)))
    })
    .await
}

/// A wait that a caller asked for, if it is not too long.
pub fn wait_of(wait_ms: Option<u64>) -> Result<Duration, CallError> {
    match wait_ms.unwrap_or(0) {
        wait_ms @ 0..=APPROVAL_WAIT_MS_MAX => Ok(Duration::from_millis(wait_ms)),
        wait_ms => Err(CallError::arguments(
            format!("`wait_ms` must be 0 to {APPROVAL_WAIT_MS_MAX}, not {wait_ms}"),
            "Wait for less, and ask again when it is not decided by then.",
        )),
    }
}

/// Waits until a request is decided or has expired, and for so long at the most.
pub async fn decided(cluster: &Cluster, caller: &Principal, request_id: String, wait: Duration) -> Result<(Approval, Revision), CallError> {
    let until = Instant::now() + wait;
    let mut watcher: Option<Watcher> = None;
    loop {
        let look_until = Instant::now() + READ_ATTEMPT * 4;
        let query = GetApproval { request_id: request_id.clone() };
        let looked = cluster.read_as(caller, query, Consistency::Linearizable, look_until).await;
        let left = until.saturating_duration_since(Instant::now());
        let since = match looked {
            Ok((approval, served)) if approval.status != ApprovalStatus::Pending || left.is_zero() => {
                return Ok((approval, served.revision));
            }
            Ok((_, served)) => served.revision,
            // The cluster is busy with a new leader; whoever waits goes on to.
            Err(CallError::Unreadable { .. }) if !left.is_zero() => Revision(0),
            Err(error) => return Err(error),
        };
        match &mut watcher {
            None if since > Revision(0) => watcher = Some(Watcher::open(cluster, caller, since).await),
            None => tokio::time::sleep(left.min(APPROVAL_POLL)).await,
            Some(watcher) => watcher.look_again(left.min(APPROVAL_POLL), |event| event.id == request_id).await,
        }
    }
}

fn shown(approval: Approval) -> Value {
    let vote =
        |vote: &Vote| json!({ "passport": vote.passport, "notes": vote.notes, "at": vote.at.to_rfc3339(), "receipt_id": vote.receipt_id });
    json!({
        "request_id": approval.request_id,
        "status": approval.status.word(),
        "risk_tier": approval.risk_tier,
        "scope": approval.scope,
        "action_summary": approval.action_summary,
        "payload": approval.payload,
        "tenant_id": approval.tenant,
        "requested_by": approval.requested_by,
        "requested_at": approval.requested_at.to_rfc3339(),
        "expires_at": approval.expires_at.to_rfc3339(),
        "approvals_needed": approval.approvals_needed,
        "approved_so_far": approval.votes.iter().map(vote).collect::<Vec<_>>(),
        "decider_tier_min": approval.decider_tier_min,
        "escalated_at": approval.escalated_at.map(|at| at.to_rfc3339()),
        "reviewer": approval.reviewer,
        "reviewer_notes": approval.reviewer_notes,
        "decided_at": approval.decided_at.map(|at| at.to_rfc3339()),
        "receipt_id": approval.receipt_id,
    })
}

// ------------------------------------------------------------------ policy

/// `GET /v1/approvals/policy`.
pub async fn policy(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &SCOPES, |ctx, _: NoParameters| async move {
        let (policy, served) = cluster.read(&ctx, GetApprovalPolicy {}).await?;
        Ok(Reply::at(served.revision, shown_policy(policy)))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    approve_low: bool,
    #[serde(default)]
    approve_medium: bool,
    #[serde(default)]
    #[schemars(schema_with = "rules")]
    rules: Vec<PolicyRule>,
}

/// `PUT /v1/approvals/policy` `{approve_low, approve_medium, rules}`: the whole policy anew. An operator's act.
pub async fn set_policy(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[ApprovalDecide::SCOPE], |ctx, asked: Policy| async move {
        let Policy { approve_low, approve_medium, rules } = asked;
        let (policy, revision) = cluster.propose(&ctx, SetApprovalPolicy { approve_low, approve_medium, rules }).await?;
        Ok(Reply::at(revision, shown_policy(policy)))
    })
    .await
}

/// What a rule leaves out, it leaves out here too: the policy can be sent back as it was read.
fn shown_policy(policy: ApprovalPolicy) -> Value {
    let mut rules = json!(policy.rules);
    for rule in rules.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        rule.retain(|_, value| !value.is_null());
    }
    json!({ "approve_low": policy.approve_low, "approve_medium": policy.approve_medium, "rules": rules })
}

// ------------------------------------------------------------------ notices

/// `GET /v1/webhooks`: where notices go. Operators only: some addresses are secrets by themselves.
pub async fn webhooks(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &[ApprovalDecide::SCOPE], |ctx, _: NoParameters| async move {
        let (found, served) = cluster.read(&ctx, ListWebhooks {}).await?;
        Ok(Reply::at(served.revision, json!({ "webhooks": found.webhooks.into_iter().map(shown_webhook).collect::<Vec<_>>() })))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Address {
    url: String,
    #[serde(default = "generic")]
    #[schemars(schema_with = "formats")]
    format: Format,
    #[serde(default = "low")]
    #[schemars(schema_with = "risks")]
    risk_tier_min: RiskTier,
    /// All when none is named.
    #[serde(default)]
    #[schemars(schema_with = "kinds")]
    kinds: Vec<String>,
}

fn rules(_: &mut SchemaGenerator) -> Schema {
    let (text, number) = (json!({ "type": "string" }), json!({ "type": "integer", "minimum": 0 }));
    let risk = json!({ "type": "string", "enum": ["low", "medium", "high"] });
    let tier = json!({ "type": "string", "enum": ["unverified", "verified", "elite", "operator"] });
    let properties = json!({
        "risk_tier": risk,
        "requester_tier_min": tier,
        "action_prefix": text,
        "approve": { "type": "boolean" },
        "approvals": { "type": "integer", "minimum": 1, "maximum": 2 },
        "decider_tier_min": tier,
        "escalate_after_ms": number,
        "ttl_ms": number,
    });
    json_schema!({
        "type": "array",
        "description": "The first rule that fits decides; what it leaves out fits all. `action_prefix` is what the action's summary \
            begins with: words of letters and digits, whatever separates them, in large or small letters; `approve` lets it pass without a person, for low and medium risk only; `approvals` is how many different people \
            have to say yes.",
        "items": { "type": "object", "properties": properties, "additionalProperties": false },
    })
}

fn formats(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["generic", "slack"] })
}

fn risks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["low", "medium", "high"] })
}

fn kinds(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "string", "enum": quorate_domain::notice::KINDS } })
}

fn generic() -> Format {
    Format::Generic
}

fn low() -> RiskTier {
    RiskTier::Low
}

/// `PUT /v1/webhooks/{id}` `{url, format?, risk_tier_min?, kinds?}`: an address made or changed; answers with its secret, which a
/// change keeps.
pub async fn put_webhook(app: &Arc<App>, id: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[ApprovalDecide::SCOPE], |ctx, asked: Address| async move {
        let Address { url, format, risk_tier_min, kinds } = asked;
        let command = PutWebhook { id, url, format, risk_tier_min, kinds };
        // Whoever may not name one, or names no address at all, is told that by the cluster.
        if ctx.principal()?.tier == Tier::Operator
            && command.refuse().is_none()
            && let Some(problem) = notices::refuse(&command.url)
        {
            return Err(Refusal::invalid("url", format!("may not be called: {problem}")).into());
        }
        let (webhook, revision) = cluster.propose(&ctx, command).await?;
        let secret = ctx.services.webhook_keys.secret(&webhook);
        let mut facts = shown_webhook(webhook);
        facts["secret"] = secret.into();
        Ok(Reply::at(revision, facts))
    })
    .await
}

/// `DELETE /v1/webhooks/{id}`.
pub async fn delete_webhook(app: &Arc<App>, id: String, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::write(app, request, &[ApprovalDecide::SCOPE], |ctx, _: NoParameters| async move {
        let (webhook, revision) = cluster.propose(&ctx, DeleteWebhook { id }).await?;
        Ok(Reply::at(revision, shown_webhook(webhook)))
    })
    .await
}

fn shown_webhook(webhook: Webhook) -> Value {
    json!({
        "id": webhook.id,
        "url": webhook.url,
        "format": webhook.format,
        "risk_tier_min": webhook.risk_tier_min,
        "kinds": webhook.kinds,
        "created_by": webhook.created_by,
        "created_at": webhook.created_at.to_rfc3339(),
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoticesWanted {
    limit: Option<u64>,
    cursor: Option<String>,
}

/// `GET /v1/notices?limit=&cursor=`: what was sent, what waits and what was given up, newest first.
pub async fn notices(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &[ApprovalDecide::SCOPE], |ctx, asked: NoticesWanted| async move {
        let query = ListNotices { limit: asked.limit.unwrap_or(LIST_DEFAULT as u64), cursor: asked.cursor };
        let (found, served) = cluster.read(&ctx, query).await?;
        let mut facts = json!({ "notices": found.notices.into_iter().map(shown_notice).collect::<Vec<_>>() });
        if let Some(cursor) = found.next_cursor {
            facts["next_cursor"] = cursor.into();
        }
        Ok(Reply::at(served.revision, facts))
    })
    .await
}

fn shown_notice(notice: Notice) -> Value {
    json!({
        "id": notice.id,
        "webhook": notice.webhook,
        "kind": notice.kind,
        "request_id": notice.request_id,
        "made_at": notice.made_at.to_rfc3339(),
        "state": notice.state,
        "attempts": notice.attempts,
        "last_error": notice.last_error,
        "settled_at": notice.settled_at.map(|at| at.to_rfc3339()),
    })
}
