//! The check for reuse: what is there already of something that is about to be built.

use quorate_domain::fact::{FactRow, QueryFacts};
use quorate_domain::flag;
use quorate_domain::graph::feature::{FindReuse, ReuseCandidate, terms};
use quorate_domain::limit::REPLY_BYTES_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::facts::confidence;
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

/// Ask whether something exists already before you build it: ranked candidates from what the team knows and from its capabilities.
///
/// Give one line. Both lists are ranked by how many of its words they share; look at a candidate before you decide.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReuseCheck {
    /// Your tenant; `local` is whichever that is.
    #[schemars(length(max = 512))]
    tenant_id: String,
    /// What you are about to build, in one line of at most 4 KiB.
    #[schemars(length(max = 4_096))]
    description: String,
    /// Candidates of each list, 1 to 50.
    #[serde(default = "five")]
    limit: u64,
    /// The part of the description's words that a candidate has to share, from 0 to 1.
    min_score: Option<f64>,
    /// `next_cursor` of the reply before, for capabilities that it did not look at.
    #[schemars(length(max = 4_096))]
    cursor: Option<String>,
}

fn five() -> u64 {
    5
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ReuseChecked {
    /// `crux.mcp.reuse_check.v1`.
    schema: String,
    /// `reuse-candidate-found` or `nothing-found`.
    verdict: String,
    /// What the team knows, best first.
    retrieval_candidates: Vec<RetrievalCandidate>,
    /// The team's capabilities, best first.
    capability_candidates: Vec<CapabilityCandidate>,
    /// Capabilities that match too and that `limit` or the size of a reply left out.
    capabilities_left_out: u64,
    /// What to do with it, in a sentence.
    guidance: String,
    /// There are more capabilities than one call looks at: pass it as `cursor` for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RetrievalCandidate {
    /// The fact's id.
    result_id: String,
    entity: String,
    key: String,
    /// 1 for the best.
    rank: u64,
    /// The part of the description's words that it shares.
    score: f64,
    doc_length_tokens: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CapabilityCandidate {
    id: String,
    name: String,
    system: String,
    maturity: String,
    files: Vec<String>,
    /// Files that are not shown.
    more_files: u64,
    /// The words of the description that it shares.
    overlap_terms: Vec<String>,
}

impl From<ReuseCandidate> for CapabilityCandidate {
    fn from(candidate: ReuseCandidate) -> Self {
        let ReuseCandidate { id, name, system, maturity, files, more_files, overlap_terms } = candidate;
        Self { id, name, system, maturity, files, more_files, overlap_terms }
    }
}

/// Of two decimals: more would only cost tokens.
fn score(shared: usize, wanted: usize) -> f64 {
    (shared as f64 / wanted as f64 * 100.0).round() / 100.0
}

/// The facts that share words with a text, those that share most first. The one place that says how facts are searched here:
/// the best page of recall, ranked by whole words.
async fn search(ctx: &CallContext, cluster: &Cluster, wanted: &[String], limit: u64) -> Result<Vec<RetrievalCandidate>, CallError> {
    let query = QueryFacts {
        query: Some(wanted.join(" ")),
        entity: None,
        entity_prefix: None,
        key: None,
        top_k: 200,
        token_budget: Some(REPLY_BYTES_MAX as u64 / 4),
        include_superseded: false,
        as_of: None,
        min_effective_confidence: None,
        cursor: None,
        hits: Default::default(),
        with_pointers: false,
        with_envelope: false,
    };
    let (found, _) = cluster.read(ctx, query).await?;
    Ok(ranked(found.rows, wanted, limit))
}

fn ranked(rows: Vec<FactRow>, wanted: &[String], limit: u64) -> Vec<RetrievalCandidate> {
    let shared = |row: &FactRow| {
        let words = terms(&format!("{} {} {}", row.entity, row.key, row.value));
        wanted.iter().filter(|word| words.contains(word)).count()
    };
    let mut found: Vec<(usize, FactRow)> = rows.into_iter().map(|row| (shared(&row), row)).collect();
    found.retain(|(shared, _)| *shared >= wanted.len().min(2));
    // Stable: among equals the order of recall stays.
    found.sort_by_key(|(shared, _)| std::cmp::Reverse(*shared));
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let candidate = |(place, (shared, row)): (usize, (usize, FactRow))| RetrievalCandidate {
        doc_length_tokens: row.value.len().div_ceil(4) as u64,
        result_id: row.fact_id,
        entity: row.entity,
        key: row.key,
        rank: place as u64 + 1,
        score: score(shared, wanted.len()),
    };
    found.into_iter().enumerate().map(candidate).collect()
}

impl Tool for ReuseCheck {
    const NAME: &'static str = "reuse_check";
    const TITLE: &'static str = "Check for reuse";
    const SCOPE: &'static str = "crux-mcp.reuse_check";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::FEATURES;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::REUSE_CHECK);
    type Output = ReuseChecked;

    fn example() -> Value {
        json!({ "tenant_id": "local", "description": "a parser for receipt files" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ReuseChecked>, CallError> {
        let Self { tenant_id, description, limit, min_score, cursor } = self;
        let floor = min_score.map_or(Ok(0.0), |share| confidence("min_score", share).map(|share| share.to_unit()))?;
        let wanted = terms(&description);
        let is_first = cursor.is_none();
        let (found, served) = cluster.read(ctx, FindReuse { description, tenant_id, limit, cursor }).await?;
        let mut retrieval_candidates = if is_first { search(ctx, cluster, &wanted, limit).await? } else { Vec::new() };
        retrieval_candidates.retain(|candidate| candidate.score >= floor);
        let mut capability_candidates: Vec<CapabilityCandidate> = found.candidates.into_iter().map(Into::into).collect();
        capability_candidates.retain(|candidate| score(candidate.overlap_terms.len(), wanted.len()) >= floor);
        let nothing = retrieval_candidates.is_empty() && capability_candidates.is_empty();
        let (verdict, guidance) = match (nothing, &found.next_cursor) {
            (false, _) => (
                "reuse-candidate-found",
                "Look at the candidates, best first, before you build: extend what is there, or say in a decision why it does not fit.",
            ),
            (true, Some(_)) => ("nothing-found", "Nothing up to here; call again with `next_cursor` to look at the other capabilities."),
            (true, None) => {
                ("nothing-found", "Nothing shares enough words with it. Try other words once, then build it, and store it as a capability.")
            }
        };
        let facts = ReuseChecked {
            schema: "crux.mcp.reuse_check.v1".into(),
            verdict: verdict.into(),
            retrieval_candidates,
            capability_candidates,
            capabilities_left_out: found.left_out,
            guidance: guidance.into(),
            next_cursor: found.next_cursor,
        };
        Ok(Reply::at(served.revision, facts))
    }
}
