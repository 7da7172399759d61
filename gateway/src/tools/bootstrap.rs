//! Bootstrap knowledge: what an agent should know before it begins, from the program and from the team.
//!
//! Guide, patterns and resolutions of errors are pages under `docs/agents`, compiled in; the shapes of answers come from the
//! declarations of the tools. A team adds its own with facts under `__bootstrap__::`, which come first.

use quorate_domain::Revision;
use quorate_domain::fact::QueryFacts;
use quorate_domain::limit::{REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Catalog, Effect, Reply, Tool, bare};

const PREFIX: &str = "__bootstrap__::";
/// Facts of one reply.
const FACTS_MAX: usize = 100;

/// The pages, by topic, and the key of their facts. A page's parts begin with `## ` and the name of the part.
const PAGES: [(&str, &str, &str); 3] = [
    ("doc", "text", include_str!("../../../docs/agents/guide.md")),
    ("pattern", "text", include_str!("../../../docs/agents/patterns.md")),
    ("resolution", "text", include_str!("../../../docs/agents/resolutions.md")),
];

/// Learn how things are done here before you begin: guide, patterns, resolutions of errors, shapes of answers, and your team's own.
///
/// The team's facts come first; it adds one with `store_fact` under `__bootstrap__::<topic>:<name>`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetBootstrap {
    /// `docs`, `patterns`, `errors`, `tool-outputs`, or a topic of your team; absent: all of them.
    #[schemars(length(max = 256))]
    topic: Option<String>,
    /// Words of which a fact has to hold one, such as the name of a tool or the code of an error.
    #[schemars(length(max = 4_096))]
    query: Option<String>,
    /// Tokens (4 bytes of JSON each) that the reply may have; absent: up to 100 facts, as far as they fit 32 KB.
    #[schemars(range(min = 1))]
    token_budget: Option<u64>,
    /// `next_cursor` of the reply before, with the other arguments unchanged.
    #[schemars(length(max = 4_096))]
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Bootstrap {
    facts: Vec<BootstrapFact>,
    /// Of the facts, at 4 bytes of JSON each.
    total_tokens: u64,
    /// Why the facts end although there are more: `token_budget`, `reply_bytes` or `fact_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BootstrapFact {
    entity: String,
    key: String,
    value: String,
    /// `team`, or `quorate` for what comes with the program.
    source: String,
}

impl BootstrapFact {
    fn built_in(topic: &str, name: &str, key: &str, value: String) -> Self {
        Self { entity: format!("{PREFIX}{topic}:{name}"), key: key.into(), value, source: "quorate".into() }
    }

    fn bytes(&self) -> usize {
        json!(self).to_string().len() + 1
    }

    fn holds_one_of(&self, words: &[String]) -> bool {
        let texts = [&self.entity, &self.key, &self.value].map(|text| text.to_lowercase());
        words.is_empty() || words.iter().any(|word| texts.iter().any(|text| text.contains(word)))
    }
}

/// A topic by any of its names.
fn topic_of(name: &str) -> &str {
    match name {
        "doc" | "docs" => "doc",
        "pattern" | "patterns" => "pattern",
        "error" | "errors" | "resolution" | "resolutions" => "resolution",
        "tool" | "tool-output" | "tool-outputs" => "tool-output",
        other => other,
    }
}

/// The parts of a page: name and text.
fn parts(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = page.split("\n## ").skip(1);
    parts.map(|part| part.split_once('\n').map_or((part, ""), |(name, text)| (name.trim(), text.trim())))
}

/// What comes with the program, in a fixed order.
pub fn built_in(catalog: &Catalog) -> Vec<BootstrapFact> {
    let mut facts = Vec::new();
    for (topic, key, page) in PAGES {
        facts.extend(parts(page).map(|(name, text)| BootstrapFact::built_in(topic, name, key, text.into())));
    }
    for entry in catalog.entries() {
        let mut schema = entry.output.clone();
        bare(&mut schema);
        facts.push(BootstrapFact::built_in("tool-output", entry.name, "output_schema", schema.to_string()));
    }
    facts
}

/// Where a page of the reply begins.
enum Place {
    /// Among the team's facts, at a cursor of theirs.
    Team(Option<String>),
    /// Among those of the program, behind so many that match.
    BuiltIn(usize),
}

impl Place {
    fn read(cursor: Option<String>) -> Result<Self, CallError> {
        let Some(cursor) = cursor else { return Ok(Place::Team(None)) };
        let place = match cursor.split_once(':') {
            Some(("t", rest)) => Some(Place::Team(Some(rest.into()))),
            Some(("q", number)) => number.parse().ok().map(Place::BuiltIn),
            _ => None,
        };
        place.ok_or_else(|| CallError::arguments("`cursor` is none of ours", "Use `next_cursor` as it was given, or none."))
    }
}

/// The team's facts of one page, its cursor and the log's place.
async fn teams(
    ctx: &CallContext,
    cluster: &Cluster,
    prefix: String,
    query: Option<String>,
    budget_bytes: usize,
    cursor: Option<String>,
) -> Result<(Vec<BootstrapFact>, Option<String>, Revision), CallError> {
    let query = QueryFacts {
        query,
        entity: None,
        entity_prefix: Some(prefix),
        key: None,
        top_k: FACTS_MAX as u64,
        // What a fact of recall holds besides is more than what is shown of it here.
        token_budget: Some((budget_bytes / 4).max(1) as u64),
        include_superseded: false,
        as_of: None,
        min_effective_confidence: None,
        cursor,
        hits: Default::default(),
        with_pointers: false,
        with_envelope: false,
    };
    let (found, served) = cluster.read(ctx, query).await?;
    let fact =
        |row: quorate_domain::fact::FactRow| BootstrapFact { entity: row.entity, key: row.key, value: row.value, source: "team".into() };
    Ok((found.rows.into_iter().map(fact).collect(), found.next_cursor, served.revision))
}

impl Tool for GetBootstrap {
    const NAME: &'static str = "get_bootstrap";
    const TITLE: &'static str = "Get bootstrap knowledge";
    const SCOPE: &'static str = "crux-mcp.get_bootstrap";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::FACTS;
    const IDEMPOTENT: bool = true;
    type Output = Bootstrap;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Bootstrap>, CallError> {
        let from = Place::read(self.cursor)?;
        let topic = self.topic.as_deref().map(str::trim).filter(|topic| !topic.is_empty()).map(topic_of);
        let prefix = topic.map_or(PREFIX.to_string(), |topic| format!("{PREFIX}{topic}:"));
        let bytes_max = self.token_budget.map_or(REPLY_BYTES_MAX as u64, |tokens| tokens.saturating_mul(4)).min(REPLY_BYTES_MAX as u64);
        let reason =
            if self.token_budget.is_some_and(|tokens| tokens < REPLY_BYTES_MAX as u64 / 4) { "token_budget" } else { "reply_bytes" };
        let mut left = (bytes_max as usize).saturating_sub(REPLY_WRAPPER_BYTES);
        let (mut facts, mut revision, mut skip) = (Vec::new(), None, 0);
        let done = |facts: Vec<BootstrapFact>, truncated: Option<&str>, next_cursor, revision| {
            let total_tokens = facts.iter().map(BootstrapFact::bytes).sum::<usize>().div_ceil(4) as u64;
            let bootstrap = Bootstrap { facts, total_tokens, truncated: truncated.map(Into::into), next_cursor };
            Ok(Reply { facts: bootstrap, revision, text: None })
        };
        match from {
            Place::BuiltIn(number) => skip = number,
            Place::Team(cursor) => {
                let (found, next, read_at) = teams(ctx, cluster, prefix.clone(), self.query.clone(), bytes_max as usize, cursor).await?;
                (facts, revision) = (found, Some(read_at));
                if let Some(next) = next {
                    let why = if facts.len() == FACTS_MAX { "fact_limit" } else { reason };
                    return done(facts, Some(why), Some(format!("t:{next}")), revision);
                }
                left = left.saturating_sub(facts.iter().map(BootstrapFact::bytes).sum());
            }
        }
        let words: Vec<String> = self.query.iter().flat_map(|words| words.split_whitespace()).map(str::to_lowercase).collect();
        let own = built_in(&ctx.services.tools).into_iter().filter(|fact| fact.entity.starts_with(&prefix) && fact.holds_one_of(&words));
        for (place, fact) in own.enumerate().skip(skip) {
            let bytes = fact.bytes();
            let why = if facts.len() == FACTS_MAX { "fact_limit" } else { reason };
            if facts.len() == FACTS_MAX || (bytes > left && !facts.is_empty()) {
                return done(facts, Some(why), Some(format!("q:{place}")), revision);
            }
            if bytes > left {
                let needed = (bytes + REPLY_WRAPPER_BYTES).div_ceil(4);
                let problem = format!("`token_budget` has no room for the next fact, which needs {needed}");
                return Err(CallError::arguments(problem, "Give it more, or leave it out."));
            }
            left -= bytes;
            facts.push(fact);
        }
        done(facts, None, None, revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools;

    #[test]
    fn a_topic_goes_by_each_of_its_names_and_any_other_is_used_as_written() {
        for (names, topic) in [
            (&["doc", "docs"][..], "doc"),
            (&["pattern", "patterns"], "pattern"),
            (&["error", "errors", "resolution", "resolutions"], "resolution"),
            (&["tool", "tool-output", "tool-outputs"], "tool-output"),
            (&["Runbook"], "Runbook"),
        ] {
            assert!(names.iter().all(|name| topic_of(name) == topic), "{topic}");
        }
    }

    #[test]
    fn what_comes_with_the_program_has_a_fact_for_each_part_of_its_pages_and_for_each_tool() {
        let catalog = tools::crux();
        let facts = built_in(&catalog);
        let of = |topic: &str| facts.iter().filter(|fact| fact.entity.starts_with(&format!("{PREFIX}{topic}:"))).count();
        assert_eq!(of("tool-output"), catalog.entries().len());
        assert!(of("doc") >= 6 && of("pattern") >= 6 && of("resolution") >= 12, "{} {} {}", of("doc"), of("pattern"), of("resolution"));
        let names: std::collections::BTreeSet<&str> = facts.iter().map(|fact| fact.entity.as_str()).collect();
        assert_eq!(names.len(), facts.len(), "no two parts have one name");
        let largest = facts.iter().map(BootstrapFact::bytes).max().unwrap();
        assert!(facts.iter().all(|fact| !fact.value.is_empty()) && largest < 8 * 1024, "{largest}");
    }

    /// A tool that is named in these pages exists, so that they don't send anybody to what there is not.
    #[test]
    fn every_tool_that_the_pages_name_exists() {
        let catalog = tools::crux().and_all(&crate::profile::about_tools());
        for (topic, _, page) in PAGES {
            let quoted = page.split('`').skip(1).step_by(2);
            let like_tools = quoted.filter(|word| word.contains('_') && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            for word in like_tools {
                let is_argument = catalog.entries().iter().any(|entry| !entry.input["properties"][word].is_null());
                let is_answer = catalog.entries().iter().any(|entry| entry.output.to_string().contains(&format!("\"{word}\"")));
                assert!(catalog.find(word).is_some() || is_argument || is_answer, "{topic} names `{word}`");
            }
        }
    }
}
