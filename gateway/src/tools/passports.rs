//! Passports: what was issued to an agent, what its receipts have earned it, and how its identity ends or goes on.

use quorate_domain::passport::{
    self, IssuePassport as Issue, LinkDevice, MergePassports, PassportIssued, Proof, RequestMint, SplitPassport,
};
use quorate_domain::{Principal, flag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

/// The caller's passport, issued if it was not, with the tier that its receipts have earned.
async fn issue(
    sponsor: Option<String>,
    ctx: &CallContext,
    cluster: &Cluster,
) -> Result<(PassportIssued, quorate_domain::Revision), CallError> {
    let Principal { tenant, passport, .. } = ctx.principal()?;
    cluster.propose(ctx, Issue { sponsor, public_key: ctx.services.passport_keys.public_hex(tenant, passport) }).await
}

// ------------------------------------------------------------------ issue_passport

/// Get your own passport: a principal id and an Ed25519 key, under the name of your token.
///
/// Repeating it answers the same one. The private key stays with the service, which signs hand-offs for you.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuePassport {
    /// A passport of your tenant that answers for you and may revoke you; it can't be changed later.
    sponsor_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PassportView {
    principal_id: String,
    /// `unverified`, `basic` (10 receipts), `established` (100), `trusted` (500) or `elite` (2,000).
    reputation_tier: String,
    /// Receipts that you have signed: cards, decisions and the like, counted by the service.
    receipt_count: u64,
    sponsor_id: Nullable<String>,
    issued_at: String,
    /// BLAKE3, in hex, over what is shown here.
    passport_hash: String,
    /// Ed25519, in hex: your signatures hold under it.
    public_key_hex: String,
}

impl From<PassportIssued> for PassportView {
    fn from(issued: PassportIssued) -> Self {
        Self {
            principal_id: issued.principal_id,
            reputation_tier: issued.reputation.word().into(),
            receipt_count: issued.receipts,
            sponsor_id: Nullable(issued.sponsor),
            issued_at: issued.issued_at.to_rfc3339(),
            passport_hash: issued.passport_hash,
            public_key_hex: issued.public_key,
        }
    }
}

impl Tool for IssuePassport {
    const NAME: &'static str = "issue_passport";
    const TITLE: &'static str = "Issue your passport";
    const SCOPE: &'static str = "crux-mcp.issue_passport";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = true;
    type Output = PassportView;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<PassportView>, CallError> {
        let (issued, revision) = issue(self.sponsor_id, ctx, cluster).await?;
        Ok(Reply::at(revision, issued.into()))
    }
}

// ------------------------------------------------------------------ request_passport_mint

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    Personal,
    Work,
    Public,
}

/// Ask an operator for another passport. Nothing is minted by this: it opens a request that `approval_decide` decides.
///
/// You can have one undecided request; it expires after 30 days.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestPassportMint {
    /// What it is for; absent: your own category.
    requested_category: Option<Category>,
    /// Why, in at most 2,048 bytes.
    reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MintRequested {
    /// Name of the request, for `approval_decide`.
    request_id: String,
    requester_id: String,
    requested_category: Category,
    /// Always `pending`.
    status: String,
}

impl Tool for RequestPassportMint {
    const NAME: &'static str = "request_passport_mint";
    const TITLE: &'static str = "Ask for a passport";
    const SCOPE: &'static str = "crux-mcp.request_passport_mint";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = false;
    const LISTED_WITH: Option<flag::Definition> = Some(flag::MINT_REQUESTS);
    type Output = MintRequested;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<MintRequested>, CallError> {
        let category = self.requested_category.map(|category| match category {
            Category::Personal => passport::Category::Personal,
            Category::Work => passport::Category::Work,
            Category::Public => passport::Category::Public,
        });
        let (asked, revision) = cluster.propose(ctx, RequestMint { category, reason: self.reason }).await?;
        let requested_category = match asked.category {
            passport::Category::Personal => Category::Personal,
            passport::Category::Work => Category::Work,
            passport::Category::Public => Category::Public,
        };
        let (request_id, requester_id, status) = (asked.request_id, asked.requester, "pending".into());
        Ok(Reply::at(revision, MintRequested { request_id, requester_id, requested_category, status }))
    }
}

// ------------------------------------------------------------------ get_passport

/// Show your passport, issued at the first call, and raise its tier when your receipts have reached the next one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetPassport {}

impl Tool for GetPassport {
    const NAME: &'static str = "get_passport";
    const TITLE: &'static str = "Show your passport";
    const SCOPE: &'static str = "crux-mcp.get_passport";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = true;
    type Output = PassportView;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<PassportView>, CallError> {
        let (issued, revision) = issue(None, ctx, cluster).await?;
        Ok(Reply::at(revision, issued.into()))
    }
}

// ------------------------------------------------------------------ revoke_passport

/// End a passport for good: its tokens are refused at once, its cards end, and its tickets leave the queue.
///
/// Allowed to the passport itself, its sponsor, and an elite or operator tier. It can't be undone, and the name can't be used
/// again. Writes a signed receipt.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokePassport {
    /// The passport by name. Absent: your own, and you can't call anything any more.
    target_passport: Option<String>,
    /// Why; kept in the receipt, at most 4 KiB.
    reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PassportRevoked {
    revoked: bool,
    target_passport: String,
    /// Who revoked it first.
    revoker_passport: String,
    reason: Nullable<String>,
    receipt_id: String,
}

impl Tool for RevokePassport {
    const NAME: &'static str = "revoke_passport";
    const TITLE: &'static str = "Revoke a passport";
    const SCOPE: &'static str = "crux-mcp.revoke_passport";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = true;
    type Output = PassportRevoked;

    fn example() -> Value {
        json!({ "target_passport": "claude-old", "reason": "retired" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<PassportRevoked>, CallError> {
        let command = passport::RevokePassport { target: self.target_passport, reason: self.reason };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let facts = PassportRevoked {
            revoked: true,
            target_passport: done.target,
            revoker_passport: done.revoker,
            reason: Nullable(done.reason),
            receipt_id: done.receipt_id,
        };
        Ok(Reply::at(revision, facts))
    }
}

// ------------------------------------------------------------------ passport_split

/// The flag is judged before the budget, so the absence of one is told here.
async fn needs_budget(budget: Option<u64>, ctx: &CallContext, cluster: &Cluster, tool: &str) -> Result<(), CallError> {
    if budget.is_some() {
        return Ok(());
    }
    let (flags, _) = cluster.read(ctx, flag::GetFlags {}).await?;
    if flags.flags.iter().any(|set| set.name == flag::IDENTITY_CONTINUITY.name && set.value == "off") {
        let (what, flag) = (tool.into(), flag::IDENTITY_CONTINUITY.name.into());
        return Err(CallError::Refused(quorate_domain::Refusal::FeatureOff { what, flag }));
    }
    Err(CallError::arguments("token_budget is required (positive integer) per QC.2", "Say how many tokens the reply may cost."))
}

/// Make a second passport of your own, with a copy of your private facts; later writes of the two stay apart.
///
/// Needs the reputation trusted (500 receipts), or an elite or operator tier. The new passport has your tier and scopes and no
/// receipts, and opens nothing before an operator makes a token for it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PassportSplit {
    /// Your own passport; another one is refused.
    target_passport: String,
    /// A name that nobody has, with the same tenant prefix as yours: `acme::claude-b` beside `acme::claude`.
    new_passport_name: String,
    /// Tokens that the reply may cost; it has to be there and is not judged.
    #[schemars(required, range(min = 1))]
    token_budget: Option<u64>,
    /// Why; kept in the receipt, at most 4 KiB.
    reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Split {
    new_passport_id: String,
    split_receipt_id: String,
    /// The receipt's body, CBOR in hex.
    receipt_body_cbor_hex: String,
    /// BLAKE3 of the body, in hex.
    receipt_body_hash_hex: String,
    tenant_id: String,
    /// Private facts that the new passport begins with.
    facts_copied: u64,
}

impl Tool for PassportSplit {
    const NAME: &'static str = "passport_split";
    const TITLE: &'static str = "Split your passport";
    const SCOPE: &'static str = "crux-mcp.passport_split";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = false;
    const JUDGED_LATE: &'static [&'static str] = &["token_budget"];
    const SWITCH: Option<flag::Definition> = Some(flag::IDENTITY_CONTINUITY);
    type Output = Split;

    fn example() -> Value {
        json!({ "target_passport": "acme::claude", "new_passport_name": "acme::claude-b", "token_budget": 500 })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Split>, CallError> {
        needs_budget(self.token_budget, ctx, cluster, Self::NAME).await?;
        let public_key = ctx.services.passport_keys.public_hex(&ctx.principal()?.tenant, &self.new_passport_name);
        let command = SplitPassport { target: self.target_passport, new_name: self.new_passport_name, reason: self.reason, public_key };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let Proof { receipt_id, body_hex, body_hash } = done.proof;
        let facts = Split {
            new_passport_id: done.new_passport,
            split_receipt_id: receipt_id,
            receipt_body_cbor_hex: body_hex,
            receipt_body_hash_hex: body_hash,
            tenant_id: done.tenant,
            facts_copied: done.facts,
        };
        Ok(Reply::at(revision, facts))
    }
}

// ------------------------------------------------------------------ passport_merge

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConflictPolicy {
    PreferSource,
    PreferTarget,
    ErrorOnConflict,
}

/// Retire one passport into another, which takes over its private facts, its receipts' standing, and its sessions to read.
///
/// You own one of the two; the other is split from it or has named it as its sponsor, or your tier is elite or operator. Needs the
/// reputation trusted (500 receipts), or such a tier. The retired one is revoked. It can't be undone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PassportMerge {
    /// The one that is retired.
    source_passport: String,
    /// The one that survives.
    target_passport: String,
    /// Whose value stays where both keep a private fact under one entity and key: `error_on_conflict` changes nothing.
    conflict_policy: ConflictPolicy,
    /// Tokens that the reply may cost; it has to be there and is not judged.
    #[schemars(required, range(min = 1))]
    token_budget: Option<u64>,
    /// Why; kept in the receipt, at most 4 KiB.
    reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Merged {
    merged_passport_id: String,
    merge_receipt_id: String,
    conflicts_resolved: u64,
    conflict_policy: String,
    /// The receipt's body, CBOR in hex; it names every conflict.
    receipt_body_cbor_hex: String,
    /// BLAKE3 of the body, in hex.
    receipt_body_hash_hex: String,
    tenant_id: String,
    retired_passport_id: String,
    /// Private facts that the survivor took over.
    facts_copied: u64,
}

impl Tool for PassportMerge {
    const NAME: &'static str = "passport_merge";
    const TITLE: &'static str = "Merge two passports";
    const SCOPE: &'static str = "crux-mcp.passport_merge";
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = false;
    const JUDGED_LATE: &'static [&'static str] = &["token_budget"];
    const SWITCH: Option<flag::Definition> = Some(flag::IDENTITY_CONTINUITY);
    type Output = Merged;

    fn example() -> Value {
        json!({
            "source_passport": "acme::claude-b",
            "target_passport": "acme::claude",
            "conflict_policy": "prefer_target",
            "token_budget": 500,
        })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Merged>, CallError> {
        needs_budget(self.token_budget, ctx, cluster, Self::NAME).await?;
        let policy = match self.conflict_policy {
            ConflictPolicy::PreferSource => passport::ConflictPolicy::PreferSource,
            ConflictPolicy::PreferTarget => passport::ConflictPolicy::PreferTarget,
            ConflictPolicy::ErrorOnConflict => passport::ConflictPolicy::ErrorOnConflict,
        };
        let command = MergePassports { source: self.source_passport, target: self.target_passport, policy, reason: self.reason };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let Proof { receipt_id, body_hex, body_hash } = done.proof;
        let facts = Merged {
            merged_passport_id: done.merged,
            merge_receipt_id: receipt_id,
            conflicts_resolved: done.conflicts_resolved,
            conflict_policy: policy.word().into(),
            receipt_body_cbor_hex: body_hex,
            receipt_body_hash_hex: body_hash,
            tenant_id: done.tenant,
            retired_passport_id: done.retired,
            facts_copied: done.facts,
        };
        Ok(Reply::at(revision, facts))
    }
}

// ------------------------------------------------------------------ passport_link_device

fn reads_only() -> Vec<String> {
    vec!["facts:read".into()]
}

/// Link a device to your passport, by the hash of its attestation; the attestation itself is never sent.
///
/// Needs the reputation trusted (500 receipts), or an elite or operator tier. Linking it again replaces its capabilities. It
/// gives the device no token.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PassportLinkDevice {
    /// BLAKE3 of the device's attestation: 64 lowercase hex digits.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    device_fingerprint: String,
    /// Tokens that the reply may cost; it has to be there and is not judged.
    #[schemars(required, range(min = 1))]
    token_budget: Option<u64>,
    /// What the device gets: `facts:read`, or scopes of your own; at most 32.
    #[serde(default = "reads_only")]
    capabilities_subset: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct DeviceLinked {
    link_receipt_id: String,
    passport_id: String,
    device_fingerprint: String,
    capabilities_subset: Vec<String>,
    /// The receipt's body, CBOR in hex.
    receipt_body_cbor_hex: String,
    /// BLAKE3 of the body, in hex.
    receipt_body_hash_hex: String,
    tenant_id: String,
}

impl Tool for PassportLinkDevice {
    const NAME: &'static str = "passport_link_device";
    const TITLE: &'static str = "Link a device";
    const SCOPE: &'static str = "crux-mcp.passport_link_device";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::IDENTITY;
    const IDEMPOTENT: bool = false;
    const JUDGED_LATE: &'static [&'static str] = &["token_budget"];
    const SWITCH: Option<flag::Definition> = Some(flag::IDENTITY_CONTINUITY);
    type Output = DeviceLinked;

    fn example() -> Value {
        json!({ "device_fingerprint": "0".repeat(64), "token_budget": 500 })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<DeviceLinked>, CallError> {
        needs_budget(self.token_budget, ctx, cluster, Self::NAME).await?;
        let command = LinkDevice { fingerprint: self.device_fingerprint, capabilities: self.capabilities_subset };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let Proof { receipt_id, body_hex, body_hash } = done.proof;
        let facts = DeviceLinked {
            link_receipt_id: receipt_id,
            passport_id: done.passport,
            device_fingerprint: done.fingerprint,
            capabilities_subset: done.capabilities,
            receipt_body_cbor_hex: body_hex,
            receipt_body_hash_hex: body_hash,
            tenant_id: done.tenant,
        };
        Ok(Reply::at(revision, facts))
    }
}
