//! Constraints, audits of configuration files, and what an action would do.

use quorate_domain::config_audit::{self, ConfigFile};
use quorate_domain::constraint::{self, Action, DeclareConstraint as Declare, ListConstraints, Match, Severity as Rank, Verdict};
use quorate_domain::limit::LIST_DEFAULT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConstraintType {
    Boundary,
    Relationship,
    Policy,
    ContextFlag,
    ShellPattern,
}

impl From<ConstraintType> for constraint::ConstraintType {
    fn from(kind: ConstraintType) -> Self {
        match kind {
            ConstraintType::Boundary => Self::Boundary,
            ConstraintType::Relationship => Self::Relationship,
            ConstraintType::Policy => Self::Policy,
            ConstraintType::ContextFlag => Self::ContextFlag,
            ConstraintType::ShellPattern => Self::ShellPattern,
        }
    }
}

impl From<constraint::ConstraintType> for ConstraintType {
    fn from(kind: constraint::ConstraintType) -> Self {
        match kind {
            constraint::ConstraintType::Boundary => Self::Boundary,
            constraint::ConstraintType::Relationship => Self::Relationship,
            constraint::ConstraintType::Policy => Self::Policy,
            constraint::ConstraintType::ContextFlag => Self::ContextFlag,
            constraint::ConstraintType::ShellPattern => Self::ShellPattern,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Critical,
    High,
    #[default]
    Medium,
    Low,
}

impl From<Severity> for Rank {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Critical => Self::Critical,
            Severity::High => Self::High,
            Severity::Medium => Self::Medium,
            Severity::Low => Self::Low,
        }
    }
}

impl From<Rank> for Severity {
    fn from(severity: Rank) -> Self {
        match severity {
            Rank::Critical => Self::Critical,
            Rank::High => Self::High,
            Rank::Medium => Self::Medium,
            Rank::Low => Self::Low,
        }
    }
}

// ------------------------------------------------------------------ declare_constraint

/// Declare what must not be done, for `check_constraints` to compare actions with.
///
/// The same assertion of the same type stands once: declaring it again only moves its severity.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeclareConstraint {
    /// `shell_pattern` reads the assertion as a regular expression over `tool_parameters.command` of Bash and shell calls.
    constraint_type: ConstraintType,
    /// A statement in plain language, in at most 1 KiB.
    assertion: String,
    /// What a match means: `critical` blocks, `high` warns, the others are listed.
    #[serde(default)]
    severity: Severity,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ConstraintDeclared {
    constraint_id: String,
    /// BLAKE3 of type, assertion and severity, in hex.
    constraint_hash: String,
    constraint_type: ConstraintType,
    assertion: String,
    severity: Severity,
}

impl Tool for DeclareConstraint {
    const NAME: &'static str = "declare_constraint";
    const TITLE: &'static str = "Declare a constraint";
    const SCOPE: &'static str = "crux-mcp.declare_constraint";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::CONSTRAINTS;
    const IDEMPOTENT: bool = true;
    type Output = ConstraintDeclared;

    fn example() -> Value {
        json!({ "constraint_type": "boundary", "assertion": "never deploy on a Friday" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ConstraintDeclared>, CallError> {
        let constraint_type: constraint::ConstraintType = self.constraint_type.into();
        // Here and not in the log, where replicas of two versions would have to agree on it.
        if constraint_type == constraint::ConstraintType::ShellPattern
            && let Some(problem) = constraint::pattern_problem(&self.assertion)
        {
            let problem = quorate_domain::refusal::shown(&problem);
            return Err(CallError::arguments(format!("`assertion` is no regular expression: {problem}"), "Correct it and call again."));
        }
        let command = Declare { constraint_type, assertion: self.assertion, severity: self.severity.into() };
        let (declared, revision) = cluster.propose(ctx, command).await?;
        let facts = ConstraintDeclared {
            constraint_hash: declared.hash(),
            constraint_id: declared.constraint_id,
            constraint_type: declared.constraint_type.into(),
            assertion: declared.assertion,
            severity: declared.severity.into(),
        };
        Ok(Reply::at(revision, facts))
    }
}

// ------------------------------------------------------------------ get_constraints

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    #[default]
    Active,
    Suspended,
}

fn default_limit() -> u64 {
    LIST_DEFAULT as u64
}

/// List the constraints of your tenant, the worst first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetConstraints {
    /// Only those of this type.
    constraint_type: Option<ConstraintType>,
    /// All constraints are `active`: nothing suspends one in this version.
    #[serde(default)]
    status: Status,
    /// Rows of a page, 1 to 1,000.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1, max = 1_000))]
    limit: u64,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Constraints {
    constraints: Vec<ConstraintRow>,
    /// Rows of this page.
    count: u64,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ConstraintRow {
    constraint_id: String,
    constraint_type: ConstraintType,
    assertion: String,
    severity: Severity,
    status: Status,
    created_at: String,
}

impl Tool for GetConstraints {
    const NAME: &'static str = "get_constraints";
    const TITLE: &'static str = "List constraints";
    const SCOPE: &'static str = "crux-mcp.get_constraints";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::CONSTRAINTS;
    const IDEMPOTENT: bool = true;
    type Output = Constraints;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Constraints>, CallError> {
        let query = ListConstraints { constraint_type: self.constraint_type.map(Into::into), limit: self.limit, cursor: self.cursor };
        let (page, served) = cluster.read(ctx, query).await?;
        let (known, next_cursor) = match self.status {
            Status::Active => (page.constraints, page.next_cursor),
            Status::Suspended => (Vec::new(), None),
        };
        let row = |known: constraint::Constraint| ConstraintRow {
            constraint_id: known.constraint_id,
            constraint_type: known.constraint_type.into(),
            assertion: known.assertion,
            severity: known.severity.into(),
            status: Status::Active,
            created_at: known.created_at.to_rfc3339(),
        };
        let constraints: Vec<ConstraintRow> = known.into_iter().map(row).collect();
        Ok(Reply::at(served.revision, Constraints { count: constraints.len() as u64, constraints, next_cursor }))
    }
}

// ------------------------------------------------------------------ check_constraints

/// Compare what you mean to do with the constraints of your tenant: `pass`, `warn` or `block`. Obey a block, and ask a person.
///
/// Words of three letters and more are compared, whole. With `tool_name` the call is enriched first, as `enrich_action` does.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckConstraints {
    /// What you mean to do, in plain language.
    action_description: Option<String>,
    /// The tool that you mean to call.
    tool_name: Option<String>,
    /// Its arguments, at most 16 KiB.
    tool_parameters: Option<Map<String, Value>>,
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ConstraintsChecked {
    /// `pass`, `warn` or `block`.
    verdict: String,
    /// The worst first; as many as a reply holds.
    matched_constraints: Vec<MatchRow>,
    /// How many were met.
    matched_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct MatchRow {
    constraint_id: String,
    assertion: String,
    severity: Severity,
    /// How much of the assertion was met, from 0 to 1.
    match_score: f64,
}

impl From<Match> for MatchRow {
    fn from(met: Match) -> Self {
        let Match { constraint_id, assertion, severity, score } = met;
        Self { constraint_id, assertion, severity: severity.into(), match_score: f64::from(score) / 1e6 }
    }
}

impl Tool for CheckConstraints {
    const NAME: &'static str = "check_constraints";
    const TITLE: &'static str = "Check an action";
    const SCOPE: &'static str = "crux-mcp.check_constraints";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::CONSTRAINTS;
    const IDEMPOTENT: bool = true;
    type Output = ConstraintsChecked;

    fn example() -> Value {
        json!({ "action_description": "deploy the api" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ConstraintsChecked>, CallError> {
        let action = Action {
            description: self.action_description,
            tool_name: self.tool_name,
            parameters: self.tool_parameters.map(Value::Object),
            tenant_id: self.tenant_id,
        };
        let (checked, served) = cluster.read(ctx, constraint::CheckConstraints { action }).await?;
        let verdict = match checked.verdict {
            Verdict::Pass => "pass",
            Verdict::Warn => "warn",
            Verdict::Block => "block",
        };
        let facts = ConstraintsChecked {
            verdict: verdict.into(),
            matched_constraints: checked.matched.into_iter().map(Into::into).collect(),
            matched_count: checked.matched_count,
            note: checked.nothing_given.then(|| "nothing was given that could match: send `action_description` or `tool_name`".into()),
        };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ audit_config

/// Note that a configuration file was audited, by its hash, so that `check_config_audit` lets it pass.
///
/// Another audit of the same hash updates path, auditor and time.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditConfig {
    /// Where the file is; the hash alone identifies it.
    path: String,
    /// SHA-256 of the file: 64 lowercase hex digits.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    sha256: String,
    /// Who audited it: a passport, an email address, or free text.
    auditor: String,
    /// A link, a ticket or the reason, in at most 4 KiB.
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ConfigAudited {
    sha256: String,
    path: String,
    auditor: String,
    audited_at: String,
    /// Whether it is the first audit of this hash.
    created: bool,
}

impl Tool for AuditConfig {
    const NAME: &'static str = "audit_config";
    const TITLE: &'static str = "Note an audit";
    const SCOPE: &'static str = "crux-mcp.audit_config";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::CONSTRAINTS;
    const IDEMPOTENT: bool = true;
    type Output = ConfigAudited;

    fn example() -> Value {
        json!({ "path": "settings.json", "sha256": "0".repeat(64), "auditor": "ops" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ConfigAudited>, CallError> {
        let Self { path, sha256, auditor, note } = self;
        let (done, revision) = cluster.propose(ctx, config_audit::AuditConfig { path, sha256, auditor, note }).await?;
        let config_audit::ConfigAudited { sha256, audit, created } = done;
        Ok(Reply::at(revision, ConfigAudited { sha256, path: audit.path, auditor: audit.auditor, audited_at: audit.ts, created }))
    }
}

// ------------------------------------------------------------------ check_config_audit

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileRow {
    path: String,
    /// SHA-256 of the file: 64 lowercase hex digits.
    sha256: String,
}

impl From<ConfigFile> for FileRow {
    fn from(file: ConfigFile) -> Self {
        Self { path: file.path, sha256: file.sha256 }
    }
}

/// Which of these configuration files somebody has audited. Made for a hook that hashes them when a session starts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckConfigAudit {
    /// The files with their hashes; at most 25.
    #[schemars(length(max = 25))]
    paths: Vec<FileRow>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ConfigAuditChecked {
    unaudited: Vec<FileRow>,
    audited: Vec<AuditedRow>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AuditedRow {
    path: String,
    sha256: String,
    audited_at: String,
    auditor: String,
    /// Where it was when it was audited.
    audited_path: String,
}

impl Tool for CheckConfigAudit {
    const NAME: &'static str = "check_config_audit";
    const TITLE: &'static str = "Check audits";
    const SCOPE: &'static str = "crux-mcp.check_config_audit";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::CONSTRAINTS;
    const IDEMPOTENT: bool = true;
    type Output = ConfigAuditChecked;

    fn example() -> Value {
        json!({ "paths": [{ "path": "settings.json", "sha256": "0".repeat(64) }] })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ConfigAuditChecked>, CallError> {
        let files = self.paths.into_iter().map(|file| ConfigFile { path: file.path, sha256: file.sha256 }).collect();
        let (checked, served) = cluster.read(ctx, config_audit::CheckConfigAudit { files }).await?;
        let row = |(file, audit): (ConfigFile, config_audit::Audit)| AuditedRow {
            path: file.path,
            sha256: file.sha256,
            audited_at: audit.ts,
            auditor: audit.auditor,
            audited_path: audit.path,
        };
        let unaudited = checked.unaudited.into_iter().map(Into::into).collect();
        Ok(Reply::at(served.revision, ConfigAuditChecked { unaudited, audited: checked.audited.into_iter().map(row).collect() }))
    }
}

// ------------------------------------------------------------------ enrich_action

/// Tell what a call of a tool would do, from its words alone: whom and what it touches, and whether it can be undone.
///
/// A first guess for who decides; the same call is always told alike.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrichAction {
    /// The tool that would be called.
    tool_name: String,
    /// Your tenant; another one is refused.
    tenant_id: Option<String>,
    /// Its arguments, at most 16 KiB.
    #[serde(default)]
    tool_parameters: Map<String, Value>,
    /// What it is for, in plain language.
    action_description: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ActionEnriched {
    schema: String,
    tenant_id: String,
    /// Always `local`.
    enrichment_mode: String,
    /// The call as it was given.
    tool_call: Value,
    narrative: String,
    /// `{role, name}` each; at most 50.
    affected_principals: Vec<Value>,
    /// `{kind, name}` each; at most 50.
    affected_resources: Vec<Value>,
    /// `{before, after}` when the call names them, else null.
    state_diff: Value,
    /// What makes it matter: `money`, `customer_data`, `production`, `external_obligation`, `pii`, `local_private_memory`.
    consequences: Vec<String>,
    /// Constraints of the type `relationship` that it meets.
    relationship_hits: Vec<MatchRow>,
    consequence_metadata: ConsequenceMetadata,
    enrichment_receipt: EnrichmentReceipt,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ConsequenceMetadata {
    schema: String,
    domain: String,
    /// `self_only`, `tenant`, `external` or `cross_tenant`.
    blast_radius: String,
    /// `reversible`, `compensable`, `irreversible` or `unknown`.
    reversibility: String,
    /// `safe`, `requires_key`, `must_not_retry` or `unknown`.
    idempotency: String,
}

/// Hashes of what was told; it is not stored.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EnrichmentReceipt {
    schema: String,
    /// BLAKE3 of the compact JSON of `tool_call`, in hex.
    tool_call_hash: String,
    /// BLAKE3 of the compact JSON of all that stands before the receipt, in hex.
    proposal_hash: String,
}

impl Tool for EnrichAction {
    const NAME: &'static str = "enrich_action";
    const TITLE: &'static str = "Enrich an action";
    const SCOPE: &'static str = "crux-mcp.enrich_action";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::CONSTRAINTS;
    const IDEMPOTENT: bool = true;
    type Output = ActionEnriched;

    fn example() -> Value {
        json!({ "tool_name": "Bash" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ActionEnriched>, CallError> {
        let action = Action {
            description: self.action_description,
            tool_name: Some(self.tool_name),
            parameters: Some(Value::Object(self.tool_parameters)),
            tenant_id: self.tenant_id,
        };
        let (told, served) = cluster.read(ctx, constraint::EnrichAction { action }).await?;
        let (tenant_id, proposal) = (told.tenant, told.proposal);
        let mut facts = ActionEnriched {
            schema: "crux.action.enriched_action_proposal.v1".into(),
            tenant_id,
            enrichment_mode: "local".into(),
            tool_call: proposal.tool_call,
            narrative: proposal.narrative,
            affected_principals: proposal.principals,
            affected_resources: proposal.resources,
            state_diff: proposal.state_diff,
            consequences: proposal.consequences,
            relationship_hits: told.relationships.into_iter().map(Into::into).collect(),
            consequence_metadata: ConsequenceMetadata {
                schema: "crux.tool_consequence_metadata.v1".into(),
                domain: proposal.domain,
                blast_radius: proposal.blast_radius,
                reversibility: proposal.reversibility,
                idempotency: proposal.idempotency,
            },
            enrichment_receipt: EnrichmentReceipt {
                schema: "crux.action.enrichment_receipt.v1".into(),
                tool_call_hash: proposal.tool_call_hash,
                proposal_hash: String::new(),
            },
        };
        let mut hashed = json!(facts);
        hashed.as_object_mut().map(|hashed| hashed.remove("enrichment_receipt"));
        facts.enrichment_receipt.proposal_hash = blake3::hash(hashed.to_string().as_bytes()).to_hex().to_string();
        Ok(Reply::at(served.revision, facts))
    }
}
