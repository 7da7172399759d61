//! Engrams: short instructions that an agent takes up before it begins a kind of work.
//!
//! Some come with the program; a team adds its own, or replaces those, with facts under `__engram__::`, whose values are JSON.

use quorate_domain::fact::{FactRow, QueryFacts};
use quorate_domain::flag::{self, GetFlags};
use quorate_domain::limit::REPLY_BYTES_MAX;
use quorate_domain::refusal::shown;
use quorate_domain::{Refusal, Revision};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::surface;

/// Where a team's own stand.
const OVERLAYS: &str = "__engram__::";
/// Pages of facts that are read for them, of 32 KB each.
const PAGES_MAX: usize = 16;
/// What the rows of a reply may take.
const ROWS_BYTES: usize = REPLY_BYTES_MAX - 1_024;

/// How much a model can be asked to hold in mind, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    Fast,
    Capable,
    Frontier,
}

impl Class {
    /// By the words in a model's id: a part that only sounds alike, as in `gemini`, does not count.
    fn of(model_id: Option<&str>) -> Self {
        let id = model_id.unwrap_or_default().to_lowercase();
        let has = |words: &[&str]| id.split(|letter: char| !letter.is_alphanumeric()).any(|word| words.contains(&word));
        if has(&["mini", "nano", "haiku", "flash"]) {
            Class::Fast
        } else if has(&["opus", "fable", "frontier"]) || id.contains("gpt-5.5") {
            Class::Frontier
        } else {
            Class::Capable
        }
    }
}

/// One engram.
#[derive(Clone, Debug)]
struct Engram {
    name: String,
    version: String,
    intent_bucket: String,
    content: String,
    applicable_why: String,
    least: Class,
    most: Class,
}

impl Engram {
    fn permits(&self, class: Class) -> bool {
        (self.least..=self.most).contains(&class)
    }

    fn prompt_hash(&self) -> String {
        hash(self.content.as_bytes())
    }
}

fn hash(bytes: &[u8]) -> String {
    format!("blake3:{}", blake3::hash(bytes).to_hex())
}

/// Those that come with the program: name, bucket, when to use it, content.
const BUILT_IN: [(&str, &str, &str, &str); 4] = [
    (
        "local-investigation-rhythm",
        "investigate",
        "Something is to be found out or explained, in a code base or in what the team knows.",
        include_str!("engrams/local-investigation-rhythm.md"),
    ),
    (
        "route-impact-preflight",
        "change",
        "Something that others call is about to change: a route, a tool, a format.",
        include_str!("engrams/route-impact-preflight.md"),
    ),
    (
        "aggregation-session-expansion",
        "recall",
        "The answer is a count, a complete list, or a change over time.",
        include_str!("engrams/aggregation-session-expansion.md"),
    ),
    ("code-minimalism", "change", "Code is about to be written.", include_str!("engrams/code-minimalism.md")),
];

fn built_in() -> Vec<Engram> {
    let engram = |(name, bucket, why, content): (&str, &str, &str, &str)| Engram {
        name: name.into(),
        version: "v1".into(),
        intent_bucket: bucket.into(),
        content: content.into(),
        applicable_why: why.into(),
        least: Class::Fast,
        most: Class::Frontier,
    };
    BUILT_IN.into_iter().map(engram).collect()
}

/// The value of a team's own.
#[derive(Deserialize)]
struct Overlay {
    name: String,
    #[serde(default = "first_version")]
    version: String,
    intent_bucket: String,
    content: String,
    #[serde(default)]
    applicable_why: String,
    capability_class_min: Option<Class>,
    capability_class_max: Option<Class>,
    /// False takes an engram away, one that came with the program too.
    #[serde(default = "yes")]
    enabled: bool,
}

fn first_version() -> String {
    "v1".into()
}

fn yes() -> bool {
    true
}

/// What there is to choose from.
struct Shelf {
    /// By bucket, name and version.
    engrams: Vec<Engram>,
    /// Facts under the prefix that are no engram.
    unreadable: Vec<String>,
}

fn shelf(rows: Vec<FactRow>) -> Shelf {
    let (mut engrams, mut unreadable) = (built_in(), Vec::new());
    let mut own: Vec<(String, String)> = Vec::new();
    for row in rows {
        let is_name = |text: &str| !text.is_empty() && text.len() <= 128 && !text.contains('@') && !text.chars().any(char::is_control);
        let read: Option<Overlay> = serde_json::from_str(&row.value).ok();
        let fits = |overlay: &Overlay| {
            is_name(&overlay.name) && is_name(&overlay.version) && is_name(&overlay.intent_bucket) && overlay.applicable_why.len() <= 1_024
        };
        let Some(overlay) = read.filter(fits) else {
            unreadable.push(row.fact_id);
            continue;
        };
        let id = (overlay.name.clone(), overlay.version.clone());
        // Of two facts for one engram the better one counts, which comes first.
        if own.contains(&id) {
            continue;
        }
        engrams.retain(|known| known.name != overlay.name || known.version != overlay.version);
        own.push(id);
        if overlay.enabled {
            engrams.push(Engram {
                name: overlay.name,
                version: overlay.version,
                intent_bucket: overlay.intent_bucket,
                content: overlay.content,
                applicable_why: overlay.applicable_why,
                least: overlay.capability_class_min.unwrap_or(Class::Fast),
                most: overlay.capability_class_max.unwrap_or(Class::Frontier),
            });
        }
    }
    engrams.sort_by(|a, b| (&a.intent_bucket, &a.name, &a.version).cmp(&(&b.intent_bucket, &b.name, &b.version)));
    Shelf { engrams, unreadable }
}

/// Get the team's engrams: short instructions to take up before a kind of work. Without `names` you get the list, without contents.
///
/// A team adds one with `store_fact` under `__engram__::`, with JSON of `name`, `version`, `intent_bucket`, `content` and
/// `applicable_why` as its value.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngramResolve {
    /// Those whose contents you want, as `name@version`; at most 20. Absent: the list.
    #[schemars(length(max = 20))]
    names: Option<Vec<String>>,
    /// Your model: it decides which engrams are meant for you.
    #[schemars(length(max = 512))]
    model_id: Option<String>,
    /// Those of one bucket only.
    #[schemars(length(max = 512))]
    intent_bucket: Option<String>,
    /// Your tenant; `local` is whichever that is.
    #[serde(default = "local")]
    #[schemars(length(max = 512))]
    tenant_id: String,
}

fn local() -> String {
    "local".into()
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Engrams {
    /// `crux.mcp.engram_manifest.v1`, or `crux.mcp.engrams.resolve.v1` with names.
    schema: String,
    /// What your model counts as.
    capability_class: Class,
    /// The list, without names.
    #[serde(skip_serializing_if = "Option::is_none")]
    engram_manifest: Option<Manifest>,
    /// Those named, in the order of the names.
    #[serde(skip_serializing_if = "Option::is_none")]
    engrams: Option<Vec<ResolvedEngram>>,
    /// BLAKE3 over name, version and hash of each of those, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    engram_set_hash: Option<String>,
    /// With names: the hash of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest_hash: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Manifest {
    /// By bucket, then by name.
    engrams: Vec<ManifestRow>,
    count: u64,
    /// BLAKE3 of the compact JSON of all rows.
    manifest_hash: String,
    /// Rows that a reply has no room for: narrow the list with `intent_bucket`.
    left_out: u64,
    /// Facts under `__engram__::` that are no engram.
    unreadable_fact_ids: Vec<String>,
    /// There are more facts under `__engram__::` than are read.
    more_overlays: bool,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ManifestRow {
    name: String,
    version: String,
    intent_bucket: String,
    prompt_hash: String,
    applicable_why: String,
    /// Whether it is meant for your model.
    permitted: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ResolvedEngram {
    name: String,
    version: String,
    intent_bucket: String,
    content: String,
    /// BLAKE3 of the content.
    prompt_hash: String,
    applicable_why: String,
}

fn manifest(shelf: &Shelf, class: Class) -> (Vec<ManifestRow>, String) {
    let row = |engram: &Engram| ManifestRow {
        name: engram.name.clone(),
        version: engram.version.clone(),
        intent_bucket: engram.intent_bucket.clone(),
        prompt_hash: engram.prompt_hash(),
        applicable_why: engram.applicable_why.clone(),
        permitted: engram.permits(class),
    };
    let rows: Vec<ManifestRow> = shelf.engrams.iter().map(row).collect();
    let hash = hash(json!(rows).to_string().as_bytes());
    (rows, hash)
}

/// The named ones, all or none.
fn resolve(shelf: &Shelf, class: Class, names: &[String]) -> Result<Vec<ResolvedEngram>, CallError> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for wanted in names {
        let named = wanted.rsplit_once('@');
        let engram = named.and_then(|(name, version)| shelf.engrams.iter().find(|known| known.name == name && known.version == version));
        match engram.filter(|engram| engram.permits(class)) {
            Some(engram) => found.push(ResolvedEngram {
                prompt_hash: engram.prompt_hash(),
                name: engram.name.clone(),
                version: engram.version.clone(),
                intent_bucket: engram.intent_bucket.clone(),
                content: engram.content.clone(),
                applicable_why: engram.applicable_why.clone(),
            }),
            None => missing.push(format!("`{}`", shown(wanted))),
        }
    }
    if !missing.is_empty() {
        let some: Vec<String> = missing.iter().take(3).cloned().collect();
        let problem = format!(
            "capability_class_mismatch_or_missing: {} of the names stand for no engram that is meant for a {} model, such as {}",
            missing.len(),
            json!(class).as_str().unwrap_or_default(),
            some.join(", ")
        );
        return Err(CallError::arguments(problem, "Call without `names` for the list; write names as `name@version`."));
    }
    let bytes = json!(found).to_string().len();
    if bytes > ROWS_BYTES {
        let problem = format!("the named engrams have {bytes} bytes together, and a reply has room for {ROWS_BYTES}");
        return Err(CallError::arguments(problem, "Name fewer of them in one call."));
    }
    Ok(found)
}

/// The facts under the prefix, as far as they are read, and whether there are more.
async fn overlays(ctx: &CallContext, cluster: &Cluster) -> Result<(Vec<FactRow>, bool, Revision), CallError> {
    let (mut rows, mut cursor) = (Vec::new(), None);
    let mut pages = 0;
    loop {
        let query = QueryFacts {
            query: None,
            entity: None,
            entity_prefix: Some(OVERLAYS.into()),
            key: None,
            top_k: 1_000,
            token_budget: Some(REPLY_BYTES_MAX as u64 / 4),
            include_superseded: false,
            as_of: None,
            min_effective_confidence: None,
            cursor,
            hits: Default::default(),
            with_pointers: false,
            with_envelope: false,
        };
        let (found, served) = cluster.read(ctx, query).await?;
        rows.extend(found.rows);
        cursor = found.next_cursor;
        pages += 1;
        if cursor.is_none() || pages == PAGES_MAX {
            return Ok((rows, cursor.is_some(), served.revision));
        }
    }
}

impl Tool for EngramResolve {
    const NAME: &'static str = "engram_resolve";
    const TITLE: &'static str = "Get engrams";
    const SCOPE: &'static str = "crux-mcp.engram_resolve";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::SESSIONS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::ENGRAMS);
    type Output = Engrams;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Engrams>, CallError> {
        let (flags, _) = cluster.read(ctx, GetFlags {}).await?;
        if surface::value(&flags, flag::ENGRAMS) == "off" {
            return Err(Refusal::FeatureOff { what: Self::NAME.into(), flag: flag::ENGRAMS.name.into() }.into());
        }
        let tenant = &ctx.principal()?.tenant;
        if self.tenant_id != local() && self.tenant_id != *tenant {
            return Err(Refusal::not_found("tenant", self.tenant_id).into());
        }
        let class = Class::of(self.model_id.as_deref());
        let (rows, more_overlays, revision) = overlays(ctx, cluster).await?;
        let mut shelf = shelf(rows);
        shelf.engrams.retain(|engram| self.intent_bucket.as_ref().is_none_or(|bucket| *bucket == engram.intent_bucket));
        let (rows, manifest_hash) = manifest(&shelf, class);
        let empty = Engrams {
            schema: String::new(),
            capability_class: class,
            engram_manifest: None,
            engrams: None,
            engram_set_hash: None,
            manifest_hash: None,
        };
        let facts = match self.names {
            None => {
                let (all, mut left) = (rows.len(), ROWS_BYTES - shelf.unreadable.iter().take(100).map(|id| id.len() + 3).sum::<usize>());
                let fitting = rows.into_iter().take_while(|row| {
                    let bytes = json!(row).to_string().len() + 1;
                    let fits = bytes <= left;
                    left = left.saturating_sub(bytes);
                    fits
                });
                let engrams: Vec<ManifestRow> = fitting.collect();
                shelf.unreadable.truncate(100);
                let manifest = Manifest {
                    count: engrams.len() as u64,
                    left_out: (all - engrams.len()) as u64,
                    engrams,
                    manifest_hash,
                    unreadable_fact_ids: shelf.unreadable,
                    more_overlays,
                };
                Engrams { schema: "crux.mcp.engram_manifest.v1".into(), engram_manifest: Some(manifest), ..empty }
            }
            Some(names) => {
                let engrams = resolve(&shelf, class, &names)?;
                let set: Vec<Value> = engrams.iter().map(|engram| json!([engram.name, engram.version, engram.prompt_hash])).collect();
                Engrams {
                    schema: "crux.mcp.engrams.resolve.v1".into(),
                    engram_set_hash: Some(hash(json!(set).to_string().as_bytes())),
                    engrams: Some(engrams),
                    manifest_hash: Some(manifest_hash),
                    ..empty
                }
            }
        };
        Ok(Reply::at(revision, facts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_class_comes_from_whole_words_of_its_id() {
        let class = |id| Class::of(Some(id));
        assert_eq!(["gpt-4o-mini", "claude-haiku-4", "gemini-2.5-flash"].map(class), [Class::Fast; 3]);
        assert_eq!(["claude-opus-4-1", "GPT-5.5"].map(class), [Class::Frontier; 2]);
        assert_eq!(["gemini-2.5-pro", "claude-sonnet-4", ""].map(class), [Class::Capable; 3]);
        assert_eq!(Class::of(None), Class::Capable);
    }

    #[test]
    fn engrams_that_come_with_the_program_are_whole_and_fit_a_reply_together() {
        let shelf = shelf(Vec::new());
        let names: Vec<String> = shelf.engrams.iter().map(|engram| format!("{}@{}", engram.name, engram.version)).collect();
        assert_eq!(resolve(&shelf, Class::Fast, &names).unwrap().len(), BUILT_IN.len());
        assert!(shelf.engrams.iter().all(|engram| engram.content.len() > 400 && !engram.applicable_why.is_empty()));
    }
}
