//! Search: what the team knows, by words.

use std::time::{Duration, Instant};

use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::search;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::crc::{Answered, Contract, Crc, Kind, is_asked, schema};
use super::facts::UNSHAPED_TOKENS;
use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::traces::Arm;

const SCOPE: &str = "corecrux.query.local";
/// How results are found and ordered.
const BACKEND: &str = "bm25+graph";
/// Noting what was not found must not hold up the answer.
const NOTE_WITHIN: Duration = Duration::from_secs(1);

fn ten() -> u64 {
    10
}

fn twenty() -> u64 {
    20
}

fn score(millionths: u32) -> f64 {
    f64::from(millionths) / 1e6
}

fn tokens_of(reply: &impl Serialize) -> Result<u64, CallError> {
    // The count itself is in the reply too, and takes a token or two.
    let json = serde_json::to_string(reply).map_err(|error| CallError::Fault { detail: error.to_string() })?;
    Ok((json.len() as u64 + 4).div_ceil(4))
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Meta {
    /// How results were found: the words by BM25, joined with the graph.
    backend: String,
    took_ms: f64,
    /// Segments of the index that were searched.
    segments_searched: u64,
    /// Every change up to this revision was searched.
    indexed_through: u64,
    /// False when the index was behind what is written already: the last changes may be missing.
    up_to_date: bool,
}

impl Meta {
    fn of(found: &search::Found, start: Instant) -> Self {
        Self {
            backend: BACKEND.into(),
            took_ms: (start.elapsed().as_secs_f64() * 1e6).round() / 1e3,
            segments_searched: found.segments_searched,
            indexed_through: found.indexed_through.0,
            up_to_date: found.is_up_to_date,
        }
    }
}

/// How much of what you asked for the results hold.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Coverage {
    /// The part of your words that stand in a result of this reply, from 0 to 1.
    score: f64,
    /// Your words that stand in none.
    gaps: Vec<String>,
    /// True when less than half was found. The words are then noted for the team, see `get_gaps`.
    below_floor: bool,
}

// ------------------------------------------------------------------ query

/// Search what the team knows in your own words: facts, work, entities and what the graph joins to them, best first.
///
/// Results are pointers with a short extract; read them whole with `query_expand`. `coverage` tells which of your words no result
/// holds. What you wrote a moment ago is found; superseded and deleted facts never are. Names and codes (`POL-358`,
/// `src/lib.rs`, `readIndex`) are found whole and by their parts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// Your tenant, or `local` for it; another one is refused.
    tenant_id: String,
    /// What you look for; nothing in it means anything special. At most 2,048 bytes.
    query: String,
    /// Results of this reply, 1 to 1,000.
    #[serde(default = "ten")]
    limit: u64,
    /// Tokens (4 bytes of JSON each) that the whole reply may have; absent: 8 KB.
    token_budget: Option<u64>,
    /// Leaves out results with a lower score; 1 is the best there can be.
    #[schemars(range(min = 0))]
    min_score: Option<f64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    cursor: Option<String>,
    /// `crc-v1` adds `crc_v1`: the same in the form of `x-crux-output-schema`.
    contract: Option<Contract>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Found {
    results: Vec<FoundRow>,
    coverage: Coverage,
    meta: Meta,
    /// What this reply takes of your context.
    tokens_returned: u64,
    /// True when `token_budget`, or the size of a reply, ended the list.
    budget_truncated: bool,
    /// Why the list ends although there is more: `limit`, `reply_bytes`, `token_budget` or `depth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest. Absent with `depth`: ask more precisely.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// True when the reply was sampled to go without its `token_budget` (`CRUX_OUTPUT_HOLDOUT`), for `token_savings` to compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    unshaped: Option<bool>,
    /// The answer as CRC-v1 has it, where `contract` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    crc_v1: Option<Crc>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundRow {
    /// For `query_expand`. It stays the same for as long as the content does.
    doc_id: String,
    /// `fact`, `work`, `entity` or `document`.
    kind: String,
    title: String,
    /// Around the first of your words in it.
    snippet: String,
    /// From 0 to 1: by its places among what the words and what the graph found.
    score: f64,
    /// Its place among the passages of its document; 0 for all else.
    segment_index: u64,
    /// Tokens of its content.
    token_count: u64,
}

fn is_by_budget(truncated: Option<&str>) -> bool {
    matches!(truncated, Some("reply_bytes" | "token_budget"))
}

impl Tool for Query {
    const NAME: &'static str = "query";
    const TITLE: &'static str = "Search";
    const SCOPE: &'static str = SCOPE;
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::SEARCH;
    const IDEMPOTENT: bool = true;
    type Output = Found;

    fn output_contract() -> Option<Value> {
        Some(schema())
    }

    fn example() -> Value {
        json!({ "tenant_id": "local", "query": "receipt signing" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Found>, CallError> {
        let start = Instant::now();
        let Self { tenant_id, query, limit, token_budget, min_score, cursor, contract } = self;
        if let Some(share) = min_score.filter(|share| *share > 1.0) {
            return Err(CallError::arguments(format!("`min_score` is {share}, and the best score is 1"), "Give 0 to 1."));
        }
        let is_unshaped = ctx.arm == Arm::Control;
        let asked = search::Search {
            tenant_id,
            query,
            limit,
            // The control arm of the hold-out experiment has no budget but the largest reply.
            token_budget: if is_unshaped { Some(UNSHAPED_TOKENS) } else { token_budget },
            score_min: min_score.map(|share| (share * 1e6).round() as u32),
            with_snippets: true,
            cursor,
            hits: search::Hits::default(),
            with_pointers: is_asked(contract),
            with_pairs: false,
        };
        let (mut found, served) = cluster.read(ctx, asked).await?;
        if let Some(words) = &found.gap {
            note(ctx, cluster, words).await;
        }
        let meta = Meta::of(&found, start);
        let crc_v1 = is_asked(contract).then(|| crc_of(&mut found));
        let row = |row: search::FoundRow| FoundRow {
            doc_id: row.doc_id,
            kind: row.kind,
            title: row.title,
            snippet: row.snippet.unwrap_or_default(),
            score: score(row.score),
            segment_index: row.segment_index,
            token_count: row.token_count,
        };
        let coverage = Coverage { score: score(found.coverage.score), gaps: found.coverage.gaps, below_floor: found.coverage.below_floor };
        let mut reply = Found {
            results: found.results.into_iter().map(row).collect(),
            coverage,
            meta,
            tokens_returned: 0,
            budget_truncated: is_by_budget(found.truncated.as_deref()),
            truncated: found.truncated,
            next_cursor: found.next_cursor,
            unshaped: is_unshaped.then_some(true),
            crc_v1,
        };
        reply.tokens_returned = tokens_of(&reply)?;
        Ok(Reply::at(served.revision, reply))
    }
}

/// A search as CRC-v1 has it.
fn crc_of(found: &mut search::Found) -> Crc {
    let answered = Answered {
        kind: Kind::Search,
        scores: found.results.iter().map(|row| score(row.score)).collect(),
        is_whole: false,
        demoted: Vec::new(),
        is_poor: found.coverage.below_floor,
        is_complete: found.truncated.is_none(),
    };
    Crc::of(std::mem::take(&mut found.pointers), answered)
}

/// Notes what was not found. A search is answered whether it can be noted or not.
async fn note(ctx: &CallContext, cluster: &Cluster, words: &str) {
    let Ok(caller) = ctx.principal() else { return };
    let deadline = ctx.deadline.min(Instant::now() + NOTE_WITHIN);
    if let Err(error) = cluster.propose_for(caller, search::RecordGap { words: words.into() }, deadline).await {
        tracing::debug!(%error, "a gap was not noted");
    }
}

// ------------------------------------------------------------------ query_scan

/// Search like `query`, and get less of each result: its id, title and size, without any content.
///
/// Good for choosing what to read with `query_expand`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueryScan {
    /// Your tenant, or `local` for it; another one is refused.
    tenant_id: String,
    /// What you look for; nothing in it means anything special. At most 2,048 bytes.
    query: String,
    /// Results of this reply, 1 to 1,000.
    #[serde(default = "twenty")]
    limit: u64,
    /// Tokens (4 bytes of JSON each) that the whole reply may have; absent: 8 KB.
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    cursor: Option<String>,
    /// `crc-v1` adds `crc_v1`: the same in the form of `x-crux-output-schema`.
    contract: Option<Contract>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Scanned {
    results: Vec<ScannedRow>,
    meta: Meta,
    /// What this reply takes of your context.
    tokens_returned: u64,
    /// True when `token_budget`, or the size of a reply, ended the list.
    budget_truncated: bool,
    /// Why the list ends although there is more: `limit`, `reply_bytes`, `token_budget` or `depth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest. Absent with `depth`: ask more precisely.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// The answer as CRC-v1 has it, where `contract` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    crc_v1: Option<Crc>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ScannedRow {
    /// For `query_expand`. It stays the same for as long as the content does.
    doc_id: String,
    /// `fact`, `work`, `entity` or `document`.
    kind: String,
    title: String,
    score: f64,
    /// Tokens of its content.
    token_count: u64,
}

impl Tool for QueryScan {
    const NAME: &'static str = "query_scan";
    const TITLE: &'static str = "Search for pointers";
    const SCOPE: &'static str = SCOPE;
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::SEARCH;
    const IDEMPOTENT: bool = true;
    type Output = Scanned;

    fn output_contract() -> Option<Value> {
        Some(schema())
    }

    fn example() -> Value {
        json!({ "tenant_id": "local", "query": "receipt signing" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Scanned>, CallError> {
        let start = Instant::now();
        let Self { tenant_id, query, limit, token_budget, cursor, contract } = self;
        let asked = search::Search {
            tenant_id,
            query,
            limit,
            token_budget,
            score_min: None,
            with_snippets: false,
            cursor,
            hits: search::Hits::default(),
            with_pointers: is_asked(contract),
            with_pairs: false,
        };
        let (mut found, served) = cluster.read(ctx, asked).await?;
        let meta = Meta::of(&found, start);
        let crc_v1 = is_asked(contract).then(|| crc_of(&mut found));
        let row = |row: search::FoundRow| ScannedRow {
            doc_id: row.doc_id,
            kind: row.kind,
            title: row.title,
            score: score(row.score),
            token_count: row.token_count,
        };
        let mut reply = Scanned {
            results: found.results.into_iter().map(row).collect(),
            meta,
            tokens_returned: 0,
            budget_truncated: is_by_budget(found.truncated.as_deref()),
            truncated: found.truncated,
            next_cursor: found.next_cursor,
            crc_v1,
        };
        reply.tokens_returned = tokens_of(&reply)?;
        Ok(Reply::at(served.revision, reply))
    }
}

// ------------------------------------------------------------------ query_expand

/// Read results of `query` or `query_scan` whole, by their `doc_id`, as they stand now.
///
/// An id whose content is gone, or replaced by a newer version, is told in `missing`. Ids that had no room in this reply come
/// back in `not_shown`: send those next.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueryExpand {
    /// Your tenant, or `local` for it; another one is refused.
    tenant_id: String,
    /// Ids of results; at most 50.
    result_ids: Vec<String>,
    /// Tokens (4 bytes of JSON each) that the whole reply may have; absent: 8 KB.
    #[schemars(range(min = 1))]
    token_budget: Option<u64>,
    /// `crc-v1` adds `crc_v1`: the same in the form of `x-crux-output-schema`.
    contract: Option<Contract>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Expanded {
    /// In the order of the ids.
    results: Vec<ExpandedRow>,
    /// Ids without content.
    missing: Vec<Missing>,
    /// Ids that had no room; send them next.
    not_shown: Vec<String>,
    /// `reply_bytes` or `token_budget`, when there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// The answer as CRC-v1 has it, where `contract` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    crc_v1: Option<Crc>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ExpandedRow {
    doc_id: String,
    kind: String,
    title: String,
    content: String,
    token_count: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Missing {
    doc_id: String,
    /// `invalid_format`, `not_found`, or `not_active` for a fact that was superseded or deleted.
    reason: String,
}

impl Tool for QueryExpand {
    const NAME: &'static str = "query_expand";
    const TITLE: &'static str = "Read results";
    const SCOPE: &'static str = SCOPE;
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::SEARCH;
    const IDEMPOTENT: bool = true;
    type Output = Expanded;

    fn output_contract() -> Option<Value> {
        Some(schema())
    }

    fn example() -> Value {
        json!({ "tenant_id": "local", "result_ids": ["f_01"] })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Expanded>, CallError> {
        let Self { tenant_id, result_ids, token_budget, contract } = self;
        let with_pointers = is_asked(contract);
        let (found, served) = cluster.read(ctx, search::ExpandResults { tenant_id, result_ids, token_budget, with_pointers }).await?;
        let search::Expanded { results, missing, not_shown, truncated, pointers } = found;
        let crc_v1 = with_pointers.then(|| {
            let answered = Answered {
                kind: Kind::Addressed,
                scores: Vec::new(),
                is_whole: true,
                demoted: not_shown.clone(),
                is_poor: false,
                is_complete: truncated.is_none(),
            };
            Crc::of(pointers, answered)
        });
        let row = |row: search::ExpandedRow| ExpandedRow {
            doc_id: row.doc_id,
            kind: row.kind,
            title: row.title,
            content: row.content,
            token_count: row.token_count,
        };
        let expanded = Expanded {
            results: results.into_iter().map(row).collect(),
            missing: missing.into_iter().map(|search::MissingResult { doc_id, reason }| Missing { doc_id, reason }).collect(),
            not_shown,
            truncated,
            crc_v1,
        };
        Ok(Reply::at(served.revision, expanded))
    }
}

// ------------------------------------------------------------------ get_gaps

/// List what the team searched for and did not find, the last first: worth writing down, or a sign that it has another name here.
///
/// `query` notes the words that no result held when it found less than half of what it was asked for. Worth a look after such a
/// search.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetGaps {
    /// Words of which a gap has to hold one.
    query: Option<String>,
    /// Gaps of this page: 50 when absent, at most 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before, with the same `query`.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Gaps {
    gaps: Vec<Gap>,
    /// What the gaps take of your context.
    total_tokens: u64,
    /// True when there are more than this reply holds.
    more: bool,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Gap {
    entity: String,
    key: String,
    /// The words, and how often they were missed.
    value: String,
    /// When they were missed last.
    stored_at: String,
}

impl Tool for GetGaps {
    const NAME: &'static str = "get_gaps";
    const TITLE: &'static str = "List gaps";
    const SCOPE: &'static str = "crux-mcp.get_gaps";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::SEARCH;
    const IDEMPOTENT: bool = true;
    type Output = Gaps;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Gaps>, CallError> {
        let query = search::ListGaps { query: self.query, limit: self.limit.unwrap_or(LIST_DEFAULT as u64), cursor: self.cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let gap = |gap: search::Gap| Gap {
            entity: "__ops__::coverage".into(),
            value: match gap.times {
                1 => format!("nothing found for: {}", gap.words),
                times => format!("nothing found for: {} ({times} times)", gap.words),
            },
            key: gap.gap_id,
            stored_at: gap.last_at.to_rfc3339(),
        };
        let gaps: Vec<Gap> = found.gaps.into_iter().map(gap).collect();
        let total_tokens = tokens_of(&gaps)?;
        Ok(Reply::at(served.revision, Gaps { gaps, total_tokens, more: found.next_cursor.is_some(), next_cursor: found.next_cursor }))
    }
}
