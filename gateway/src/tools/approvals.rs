//! Approvals: a person (or a policy) says yes or no, once.

use quorate_domain::approval::{self, ApprovalStatus, DecideApproval, RequestApproval};
use quorate_domain::{Principal, Refusal, flag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::group;
use crate::approvals::{decided, wait_of};
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RiskTier {
    Low,
    Medium,
    High,
}

impl From<RiskTier> for approval::RiskTier {
    fn from(tier: RiskTier) -> Self {
        match tier {
            RiskTier::Low => approval::RiskTier::Low,
            RiskTier::Medium => approval::RiskTier::Medium,
            RiskTier::High => approval::RiskTier::High,
        }
    }
}

impl From<approval::RiskTier> for RiskTier {
    fn from(tier: approval::RiskTier) -> Self {
        match tier {
            approval::RiskTier::Low => RiskTier::Low,
            approval::RiskTier::Medium => RiskTier::Medium,
            approval::RiskTier::High => RiskTier::High,
        }
    }
}

/// Who decides approvals, or asks for them, sees them.
pub(crate) const LISTING: [&str; 2] = [ApprovalDecide::SCOPE, ApprovalRequest::SCOPE];

pub(crate) fn may_list(caller: &Principal) -> Result<(), CallError> {
    match LISTING.iter().any(|scope| caller.may(scope)) {
        true => Ok(()),
        false => Err(CallError::MissingScope { scope: LISTING[0].into() }),
    }
}

// ------------------------------------------------------------------ approval_request

/// Ask a person to allow a risky act before you do it. Answers at once with a `request_id`, unless you say `wait_ms`.
///
/// High risk waits for an operator, or two of them; low and medium may be approved at once by the tenant's policy. Nobody can
/// decide their own request. Undecided, it expires after a day or `ttl_ms`. Do not act while the status is `pending`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// What you mean to do, for the person who decides; at most 4 KiB.
    action_summary: String,
    risk_tier: RiskTier,
    /// Your tenant, or a path of a resource in it.
    scope: String,
    /// Tokens that the act may cost; it has to be there and is not judged.
    #[schemars(required, range(min = 0))]
    token_budget: Option<u64>,
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
    /// What the decider should see besides, such as predicted effects or the call itself; at most 16 KiB.
    payload: Option<Map<String, Value>>,
    /// How long it may wait for a decision, in milliseconds.
    #[schemars(range(min = 0))]
    ttl_ms: Option<u64>,
    /// How long to wait here for the decision, in milliseconds: at most 600,000; absent: not at all.
    #[schemars(range(min = 0))]
    wait_ms: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ApprovalRequested {
    /// Name of the request; null when approvals are switched off.
    request_id: Nullable<String>,
    /// `pending`, `approved` (by policy), or `feature_disabled`; after a wait also `rejected` or `expired`.
    status: String,
    risk_tier: RiskTier,
    tenant_id: String,
    feature_enabled: bool,
    /// When it expires undecided.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// Who decided it; `policy:low` or `policy:medium` when the policy did.
    #[serde(skip_serializing_if = "Option::is_none")]
    reviewer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reviewer_notes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt_id: Option<String>,
}

impl Tool for ApprovalRequest {
    const NAME: &'static str = "approval_request";
    const TITLE: &'static str = "Ask for an approval";
    const SCOPE: &'static str = "crux-mcp.approval_request";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::APPROVALS;
    const IDEMPOTENT: bool = false;
    // With the feature off the answer is `feature_disabled`, with or without a budget.
    const JUDGED_LATE: &'static [&'static str] = &["token_budget"];
    const SWITCH: Option<flag::Definition> = Some(flag::APPROVAL_QUEUE);
    type Output = ApprovalRequested;

    fn example() -> Value {
        json!({ "action_summary": "drop the table", "risk_tier": "high", "scope": "local", "token_budget": 500 })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ApprovalRequested>, CallError> {
        let caller = ctx.principal()?;
        let disabled = ApprovalRequested {
            request_id: Nullable(None),
            status: "feature_disabled".into(),
            risk_tier: self.risk_tier,
            tenant_id: caller.tenant.clone(),
            feature_enabled: false,
            expires_at: None,
            reviewer: None,
            reviewer_notes: None,
            receipt_id: None,
        };
        let wait = wait_of(self.wait_ms)?;
        if self.token_budget.is_none() {
            let (flags, served) = cluster.read(ctx, flag::GetFlags {}).await?;
            if flags.flags.iter().any(|set| set.name == flag::APPROVAL_QUEUE.name && set.value == "off") {
                return Ok(Reply::at(served.revision, disabled));
            }
            return Err(CallError::arguments(
                "`approval_request` needs `token_budget`",
                "Say how many tokens the act may cost; 0 will do.",
            ));
        }
        let command = RequestApproval {
            action_summary: self.action_summary,
            risk_tier: self.risk_tier.into(),
            scope: self.scope,
            tenant_id: self.tenant_id,
            payload: self.payload.map(Value::Object),
            ttl_ms: self.ttl_ms,
        };
        let (mut asked, mut revision) = match cluster.propose(ctx, command).await {
            Ok(done) => done,
            Err(CallError::Refused(Refusal::FeatureOff { flag, .. })) if flag == flag::APPROVAL_QUEUE.name => {
                return Ok(Reply::local(disabled));
            }
            Err(error) => return Err(error),
        };
        if asked.status == ApprovalStatus::Pending && !wait.is_zero() {
            (asked, revision) = decided(cluster, caller, asked.request_id, wait).await?;
        }
        let facts = ApprovalRequested {
            request_id: Nullable(Some(asked.request_id)),
            status: asked.status.word().into(),
            risk_tier: asked.risk_tier.into(),
            tenant_id: asked.tenant,
            feature_enabled: true,
            expires_at: (asked.status == ApprovalStatus::Pending).then(|| asked.expires_at.to_rfc3339()),
            reviewer: asked.reviewer,
            reviewer_notes: asked.reviewer_notes,
            receipt_id: asked.receipt_id,
        };
        Ok(Reply::at(revision, facts))
    }
}

// ------------------------------------------------------------------ approval_decide

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Approve,
    Reject,
}

/// Approve or reject a request, once, as an operator of its tenant and never your own.
///
/// Low and medium risk may be decided by the tier elite too, any by the scope `approvals:decide`. The first decision stands. Where the policy wants two people, the first yes leaves it `pending` and a second person's makes it
/// `approved`. Writes a signed receipt that `receipt_verify` checks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalDecide {
    /// From `approval_request`.
    request_id: String,
    decision: Decision,
    /// Why; kept in the receipt.
    reviewer_notes: Option<String>,
    /// Your tier. Never trusted: it is refused when your token says otherwise.
    reviewer_tier: Option<String>,
    /// Your tenant. Never trusted: it is refused when your token says otherwise.
    reviewer_tenant_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ApprovalDecided {
    ok: bool,
    request_id: String,
    /// `approved` or `rejected`; `pending` after the first of two approvals.
    status: String,
    reviewer_passport: String,
    decided_at: String,
    receipt_id: String,
    /// BLAKE3 of the receipt's body.
    receipt_body_hash_hex: String,
    tenant_id: String,
    risk_tier: RiskTier,
}

impl Tool for ApprovalDecide {
    const NAME: &'static str = "approval_decide";
    const TITLE: &'static str = "Decide an approval";
    const SCOPE: &'static str = "crux-mcp.approval_decide";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::APPROVALS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::APPROVAL_QUEUE);
    type Output = ApprovalDecided;

    fn example() -> Value {
        json!({ "request_id": "apr_01", "decision": "approve" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ApprovalDecided>, CallError> {
        let command = DecideApproval {
            request_id: self.request_id,
            decision: match self.decision {
                Decision::Approve => approval::Decision::Approve,
                Decision::Reject => approval::Decision::Reject,
            },
            reviewer_notes: self.reviewer_notes,
            reviewer_tier: self.reviewer_tier,
            reviewer_tenant_id: self.reviewer_tenant_id,
        };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let missing = |what: &str| CallError::Fault { detail: format!("a decided approval without {what}") };
        // A first yes of two stands among the votes, with a receipt of its own.
        let vote = done.votes.last().filter(|_| done.status == ApprovalStatus::Pending).cloned();
        let (reviewer, at, receipt, hash) = match vote {
            Some(vote) => (Some(vote.passport), Some(vote.at), Some(vote.receipt_id), Some(vote.receipt_body_hash)),
            None => (done.reviewer, done.decided_at, done.receipt_id, done.receipt_body_hash),
        };
        let facts = ApprovalDecided {
            ok: true,
            request_id: done.request_id,
            status: done.status.word().into(),
            reviewer_passport: reviewer.ok_or_else(|| missing("reviewer"))?,
            decided_at: at.ok_or_else(|| missing("time"))?.to_rfc3339(),
            receipt_id: receipt.ok_or_else(|| missing("receipt"))?,
            receipt_body_hash_hex: hash.ok_or_else(|| missing("receipt hash"))?,
            tenant_id: done.tenant,
            risk_tier: done.risk_tier.into(),
        };
        Ok(Reply::at(revision, facts))
    }
}
