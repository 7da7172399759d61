//! The everyday profile: the tools that most agents need, and two that reach the others.

use std::collections::HashMap;

use quorate_domain::refusal::shown;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Catalog, Effect, Reply, Tool};
use crate::tools::group;

/// What `/mcp` lists, in this order.
pub const EVERYDAY: [&str; 17] = [
    "query",
    "query_expand",
    "store_fact",
    "query_facts",
    "delete_fact",
    "save_session",
    "get_session",
    "punch_in",
    "punch_out",
    "check_punchcard",
    "list_punchcards",
    "approval_request",
    "approval_decide",
    "receipt_verify",
    "get_agent_identity",
    "find_tools",
    "call_tool",
];

/// The two tools about tools.
pub fn about_tools() -> Catalog {
    Catalog::default().with::<FindTools>().with::<CallTool>()
}

// ------------------------------------------------------------------ find_tools

/// Find tools that are not listed here, by what they do, with the schema of their arguments. Run them with `call_tool`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindTools {
    /// What you want to do, in a few words, such as `archive a session`.
    query: String,
    /// Tools to show: 5 when absent, at most 20.
    #[schemars(range(min = 1, max = 20))]
    limit: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundTools {
    /// Best first.
    tools: Vec<FoundTool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundTool {
    name: String,
    title: String,
    description: String,
    /// JSON Schema of `arguments`.
    input_schema: Map<String, Value>,
}

impl Tool for FindTools {
    const NAME: &'static str = "find_tools";
    const TITLE: &'static str = "Find tools";
    // It shows nothing but documentation.
    const SCOPE: &'static str = "";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::TOOLS;
    const IDEMPOTENT: bool = true;
    type Output = FoundTools;

    fn example() -> Value {
        json!({ "query": "archive a session" })
    }

    async fn call(self, ctx: &CallContext, _: &Cluster) -> Result<Reply<FoundTools>, CallError> {
        let catalog = &ctx.services.tools;
        let found = ctx.services.index.search(&self.query, self.limit.unwrap_or(5));
        let tools = found.into_iter().map(|position| {
            let entry = &catalog.entries()[position];
            FoundTool {
                name: entry.name.into(),
                title: entry.title.into(),
                description: entry.description.clone(),
                input_schema: entry.input.as_object().cloned().unwrap_or_default(),
            }
        });
        Ok(Reply::local(FoundTools { tools: tools.collect() }))
    }
}

// ------------------------------------------------------------------ call_tool

pub const CALL_TOOL: &str = "call_tool";

/// Run any tool by name, also one that is not listed here. Its own scope, rules and answer apply.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallTool {
    /// The tool's name, as `find_tools` tells it.
    name: String,
    /// The tool's arguments.
    arguments: Option<Map<String, Value>>,
}

impl Tool for CallTool {
    const NAME: &'static str = CALL_TOOL;
    const TITLE: &'static str = "Call a tool";
    // The scope of the tool that it runs is checked.
    const SCOPE: &'static str = "";
    // It may run one that is.
    const EFFECT: Effect = Effect::Destructive;
    const GROUP: &'static str = group::TOOLS;
    const IDEMPOTENT: bool = false;
    type Output = Map<String, Value>;

    fn example() -> Value {
        json!({ "name": "list_entities", "arguments": {} })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Map<String, Value>>, CallError> {
        let Some(entry) = ctx.services.tools.find(&self.name) else {
            return Err(CallError::arguments(format!("there is no tool `{}`", shown(&self.name)), "`find_tools` shows the names."));
        };
        let answer = entry.call(Value::Object(self.arguments.unwrap_or_default()), ctx.clone(), cluster).await?;
        let facts = serde_json::from_str(&answer.facts).map_err(|error| CallError::Fault { detail: error.to_string() })?;
        Ok(Reply { facts, revision: answer.revision, text: answer.text })
    }
}

// ------------------------------------------------------------------ the index

/// BM25 over the names, descriptions and arguments of a catalog.
pub struct Index {
    /// Per tool: how often each word stands in it, and how many words it has.
    documents: Vec<(HashMap<String, f64>, f64)>,
    /// In how many tools each word stands.
    spread: HashMap<String, f64>,
    mean_length: f64,
}

/// A word in the name says more than one in the text.
const NAME_WEIGHT: usize = 4;
const K1: f64 = 1.2;
const B: f64 = 0.75;

impl Index {
    pub fn of(catalog: &Catalog) -> Self {
        let mut documents = Vec::new();
        let mut spread: HashMap<String, f64> = HashMap::new();
        for entry in catalog.entries() {
            let mut text = vec![entry.description.clone(), entry.group.into()];
            text.extend(std::iter::repeat_n(format!("{} {}", entry.name, entry.title), NAME_WEIGHT));
            for (name, property) in entry.input["properties"].as_object().into_iter().flatten() {
                text.push(format!("{name} {}", property["description"].as_str().unwrap_or_default()));
            }
            let mut counts: HashMap<String, f64> = HashMap::new();
            let mut length = 0.0;
            for word in text.iter().flat_map(|text| words(text)) {
                *counts.entry(word).or_default() += 1.0;
                length += 1.0;
            }
            for word in counts.keys() {
                *spread.entry(word.clone()).or_default() += 1.0;
            }
            documents.push((counts, length));
        }
        let mean_length = documents.iter().map(|(_, length)| length).sum::<f64>() / documents.len().max(1) as f64;
        Self { documents, spread, mean_length }
    }

    /// Positions of the best tools, best first; ties keep the catalog's order.
    fn search(&self, query: &str, limit: usize) -> Vec<usize> {
        let wanted: Vec<String> = words(query).collect();
        let total = self.documents.len() as f64;
        let mut scored: Vec<(f64, usize)> = Vec::new();
        for (position, (counts, length)) in self.documents.iter().enumerate() {
            let score: f64 = wanted
                .iter()
                .filter_map(|word| {
                    let count = counts.get(word)?;
                    let spread = self.spread.get(word)?;
                    let rarity = ((total - spread + 0.5) / (spread + 0.5) + 1.0).ln();
                    Some(rarity * count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length / self.mean_length)))
                })
                .sum();
            if score > 0.0 {
                scored.push((score, position));
            }
        }
        scored.sort_by(|(a, at), (b, bt)| b.total_cmp(a).then(at.cmp(bt)));
        scored.into_iter().take(limit).map(|(_, position)| position).collect()
    }
}

/// Lower-case words; a plain plural counts as its singular.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 1).map(|word| {
        let word = word.to_lowercase();
        match word.strip_suffix('s') {
            Some(stem) if stem.len() > 2 && !stem.ends_with('s') => stem.to_string(),
            _ => word,
        }
    })
}
