//! The features lens: files, coverage, audits and gaps of the graph's capabilities.

use std::collections::BTreeMap;

use quorate_domain::graph::feature::{self, GapType, MATURITIES, Severity};
use quorate_domain::limit::LIST_DEFAULT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::graph::object;
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

// ------------------------------------------------------------------ feature_file_search

/// Find the capabilities that have a file whose path holds a text, by id, each with those files.
///
/// Capabilities are entities of the graph; `entity_upsert` stores them with their `files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FeatureFileSearch {
    /// A path or a part of one, such as `src/lib.rs`; letters count as they are.
    path: String,
    /// Capabilities of this page: 50 when absent, at most 1,000. Fewer come when they fill a reply.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FilesFound {
    capabilities: Vec<CapabilityFiles>,
    /// How many there are on this page.
    count: u64,
    /// Pass it as `cursor` for the rest; a page may have few or no rows and others still follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CapabilityFiles {
    id: String,
    name: String,
    system: String,
    /// Its files whose path holds the text.
    files: Vec<String>,
}

impl From<feature::FeatureFiles> for CapabilityFiles {
    fn from(found: feature::FeatureFiles) -> Self {
        let feature::FeatureFiles { id, name, system, files } = found;
        Self { id, name, system, files }
    }
}

impl Tool for FeatureFileSearch {
    const NAME: &'static str = "feature_file_search";
    const TITLE: &'static str = "Find capabilities by file";
    const SCOPE: &'static str = "crux-mcp.feature_file_search";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::FEATURES;
    const IDEMPOTENT: bool = true;
    type Output = FilesFound;

    fn example() -> Value {
        json!({ "path": "src/lib.rs" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<FilesFound>, CallError> {
        let Self { path, limit, cursor } = self;
        let query = feature::FindFeatureFiles { path, limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let capabilities: Vec<CapabilityFiles> = found.capabilities.into_iter().map(Into::into).collect();
        let facts = FilesFound { count: capabilities.len() as u64, capabilities, next_cursor: found.next_cursor };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ feature_coverage_report

/// Tell how well the team's capabilities are tested and audited: in all, by maturity and by system.
///
/// A capability is tested when it has a test of any sort, and audited when its last audit says so.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FeatureCoverageReport {
    /// `next_cursor` of the reply before, for more systems.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CoverageReport {
    report: Coverage,
    /// Pass it as `cursor` for more systems; the other counts are of all capabilities on every page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Coverage {
    total_capabilities: u64,
    total_tested: u64,
    total_audited: u64,
    /// How many capabilities there are of each maturity.
    maturity: BTreeMap<String, u64>,
    /// How many gaps there are of each severity; `feature_suggest_next` lists them.
    gaps: BTreeMap<String, u64>,
    /// By the name of the system.
    systems: BTreeMap<String, SystemCoverage>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SystemCoverage {
    total: u64,
    tested: u64,
    audited: u64,
    shipped: u64,
}

impl Tool for FeatureCoverageReport {
    const NAME: &'static str = "feature_coverage_report";
    const TITLE: &'static str = "Report coverage";
    const SCOPE: &'static str = "crux-mcp.feature_coverage_report";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::FEATURES;
    const IDEMPOTENT: bool = true;
    type Output = CoverageReport;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<CoverageReport>, CallError> {
        let (found, served) = cluster.read(ctx, feature::FeatureCoverage { cursor: self.cursor }).await?;
        let totals = found.totals;
        let each = |words: &[&str], counts: &BTreeMap<String, u64>| {
            words.iter().map(|word| (word.to_string(), counts.get(*word).copied().unwrap_or(0))).collect()
        };
        let of_system = |system: feature::System| {
            let feature::System { system, total, tested, audited, shipped, .. } = system;
            (system, SystemCoverage { total, tested, audited, shipped })
        };
        let report = Coverage {
            total_capabilities: totals.total,
            total_tested: totals.tested,
            total_audited: totals.audited,
            maturity: each(&MATURITIES, &totals.maturity),
            gaps: each(&Severity::ALL.map(Severity::word), &totals.gaps),
            systems: found.systems.into_iter().map(of_system).collect(),
        };
        Ok(Reply::at(served.revision, CoverageReport { report, next_cursor: found.next_cursor }))
    }
}

// ------------------------------------------------------------------ feature_trigger_audit

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditStatus {
    Audited,
    Gap,
    Waived,
    Blocked,
}

impl From<AuditStatus> for feature::AuditStatus {
    fn from(status: AuditStatus) -> Self {
        match status {
            AuditStatus::Audited => feature::AuditStatus::Audited,
            AuditStatus::Gap => feature::AuditStatus::Gap,
            AuditStatus::Waived => feature::AuditStatus::Waived,
            AuditStatus::Blocked => feature::AuditStatus::Blocked,
        }
    }
}

/// Note how the audit of a capability ended, as its next version; the time is noted too. Answers the payload after that.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FeatureTriggerAudit {
    /// The capability's name, as `entity_list` shows it.
    id: String,
    /// `gap` opens a gap in audits, every other one closes it; `audited` alone counts as audited.
    status: AuditStatus,
    /// Who audited it; you when absent.
    auditor: Option<String>,
    /// What was found; in place of the notes before, and none when absent. At most 4 KiB.
    notes: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Audited {
    /// The payload after the change.
    capability: Map<String, Value>,
    version: u64,
}

impl Tool for FeatureTriggerAudit {
    const NAME: &'static str = "feature_trigger_audit";
    const TITLE: &'static str = "Note an audit";
    const SCOPE: &'static str = "crux-mcp.feature_trigger_audit";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::FEATURES;
    const IDEMPOTENT: bool = false;
    type Output = Audited;

    fn example() -> Value {
        json!({ "id": "search", "status": "audited" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Audited>, CallError> {
        let Self { id, status, auditor, notes } = self;
        let (entity, revision) = cluster.propose(ctx, feature::AuditFeature { id, status: status.into(), auditor, notes }).await?;
        Ok(Reply::at(revision, Audited { capability: object(entity.payload), version: entity.version }))
    }
}

// ------------------------------------------------------------------ feature_suggest_next

/// Suggest what to do next: the gaps of capabilities in tests, audits and definitions of done, the most severe first, and
/// the promise of which the smallest part is tested.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FeatureSuggestNext {
    /// Gaps of this page, 1 to 1,000; the promise comes on top. Fewer come when they fill a reply.
    #[serde(default = "suggestions")]
    limit: u64,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

fn suggestions() -> u64 {
    5
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Suggestions {
    suggestions: Vec<Suggestion>,
    /// How many there are on this page.
    count: u64,
    /// Pass it as `cursor` for more gaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Suggestion {
    /// `fix_gap` or `improve_promise_tests`.
    kind: String,
    /// Of a gap: the capability that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    capability_id: Option<String>,
    /// Of a gap: `no_tests`, `no_unit_tests`, `no_integration_tests`, `audit_gap` or `no_dod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap_type: Option<String>,
    /// Of a gap: `critical`, `high`, `medium` or `low`.
    #[serde(skip_serializing_if = "Option::is_none")]
    severity: Option<String>,
    /// The promise, and how many of the capabilities that serve it are tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    promise: Option<Promise>,
    /// Why it is suggested, in a sentence.
    rationale: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Promise {
    /// As capabilities name it in `promise_alignment`, 1 to 10.
    number: u64,
    total: u64,
    tested: u64,
}

impl From<feature::Gap> for Suggestion {
    fn from(gap: feature::Gap) -> Self {
        let rationale = match gap.gap_type {
            GapType::NoTests => format!("{} has no tests at all.", gap.name),
            GapType::NoUnitTests => format!("{} has tests, but no unit tests.", gap.name),
            GapType::NoIntegrationTests => format!("{} is shipped without an integration test.", gap.name),
            GapType::AuditGap => match gap.detail {
                Some(notes) => format!("{} has a gap in its audit: {notes}", gap.name),
                None => format!("{} is not yet audited.", gap.name),
            },
            GapType::NoDod => format!("{} has no definition of done.", gap.name),
        };
        Self {
            kind: "fix_gap".into(),
            capability_id: Some(gap.capability_id),
            gap_type: Some(gap.gap_type.word().into()),
            severity: Some(gap.severity.word().into()),
            promise: None,
            rationale,
        }
    }
}

impl From<feature::Promise> for Suggestion {
    fn from(promise: feature::Promise) -> Self {
        let feature::Promise { number, capabilities: feature::Tested { total, tested } } = promise;
        Self {
            kind: "improve_promise_tests".into(),
            promise: Some(Promise { number: number.into(), total, tested }),
            rationale: format!("Promise {number} is the weakest: {tested} of {total} capabilities that serve it are tested."),
            ..Self::default()
        }
    }
}

impl Tool for FeatureSuggestNext {
    const NAME: &'static str = "feature_suggest_next";
    const TITLE: &'static str = "Suggest what to improve";
    const SCOPE: &'static str = "crux-mcp.feature_suggest_next";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::FEATURES;
    const IDEMPOTENT: bool = true;
    type Output = Suggestions;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Suggestions>, CallError> {
        let (found, served) = cluster.read(ctx, feature::SuggestFeature { limit: self.limit, cursor: self.cursor }).await?;
        let gaps = found.gaps.into_iter().map(Suggestion::from);
        let suggestions: Vec<Suggestion> = gaps.chain(found.weakest.map(Suggestion::from)).collect();
        Ok(Reply::at(served.revision, Suggestions { count: suggestions.len() as u64, suggestions, next_cursor: found.next_cursor }))
    }
}
