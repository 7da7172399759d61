//! Arguments out of a tool's schema.

use std::collections::BTreeMap;

use anyhow::Context;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Map, Value, json};

/// How much an argument has to do with the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// All that the schema says.
    Valid,
    /// That, but for one thing, which may or may not be allowed.
    Nearly,
    /// That, but for one thing which surely is not.
    Refused,
    /// What nobody should send.
    Hostile,
}

/// Names and ids that answers told, by the field that they stood in: so that calls meet what is there.
pub struct Known {
    by_field: BTreeMap<String, Vec<String>>,
    /// Passports of the callers.
    callers: Vec<String>,
}

/// Names kept of one field; the newest push out the oldest.
const KEPT_PER_FIELD: usize = 60;

impl Known {
    pub fn new(callers: Vec<String>) -> Self {
        Self { by_field: BTreeMap::new(), callers }
    }

    /// Keeps the short texts of an answer.
    pub fn learn(&mut self, facts: &Value) {
        match facts {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text) if !text.is_empty() && text.len() <= 4_096 => self.keep(name, text),
                        other => self.learn(other),
                    }
                }
            }
            Value::Array(items) => items.iter().take(20).for_each(|item| self.learn(item)),
            _ => {}
        }
    }

    fn keep(&mut self, field: &str, text: &str) {
        let known = self.by_field.entry(field.into()).or_default();
        if known.iter().any(|one| one == text) {
            return;
        }
        if known.len() == KEPT_PER_FIELD {
            known.remove(0);
        }
        known.push(text.into());
    }

    /// A text for a field, of the same field or one that sounds alike.
    fn pick(&self, rng: &mut StdRng, field: &str) -> Option<String> {
        let near =
            |name: &str| name == field || name.ends_with(field) || field.ends_with(name) || (field.ends_with("id") && name.ends_with("id"));
        let pools: Vec<&Vec<String>> = self.by_field.iter().filter(|(name, _)| near(name)).map(|(_, pool)| pool).collect();
        let pool = pools.get(rng.random_range(0..pools.len().max(1)))?;
        pool.get(rng.random_range(0..pool.len().max(1))).cloned()
    }
}

/// A tool that can be called.
pub struct Shape {
    pub name: String,
    properties: Map<String, Value>,
    required: Vec<String>,
}

/// Calls that end a passport, and so must not be about a caller.
const ENDING: [&str; 3] = ["revoke_passport", "passport_merge", "passport_split"];
/// Arguments that make a call wait.
const WAITING: [&str; 3] = ["wait_ms", "timeout_ms", "wait_s"];

impl Shape {
    pub fn of(tool: &Value) -> anyhow::Result<Self> {
        let name = tool["name"].as_str().context("a tool has no name")?.to_string();
        let schema = &tool["inputSchema"];
        let required = schema["required"].as_array().into_iter().flatten().filter_map(|name| name.as_str().map(String::from)).collect();
        Ok(Self { name, properties: schema["properties"].as_object().cloned().unwrap_or_default(), required })
    }

    pub fn may_end_a_passport(&self) -> bool {
        ENDING.contains(&self.name.as_str())
    }

    pub fn arguments(&self, rng: &mut StdRng, wish: Wish, known: &Known) -> Value {
        let mut made = self.valid(rng, known);
        match wish {
            Wish::Valid => {}
            Wish::Nearly => self.bend(rng, &mut made),
            Wish::Refused => self.break_one(rng, &mut made),
            Wish::Hostile => self.spoil(rng, &mut made),
        }
        self.spare_callers(&mut made, known);
        Value::Object(made)
    }

    fn valid(&self, rng: &mut StdRng, known: &Known) -> Map<String, Value> {
        let mut made = Map::new();
        for (name, schema) in &self.properties {
            if self.required.contains(name) || rng.random_bool(0.3) {
                made.insert(name.clone(), value(rng, name, schema, known, 0));
            }
        }
        made
    }

    /// One change that may be allowed.
    fn bend(&self, rng: &mut StdRng, made: &mut Map<String, Value>) {
        let Some((name, schema)) = self.any_property(rng) else {
            made.insert("colour".into(), "red".into());
            return;
        };
        match rng.random_range(0..5_u32) {
            0 => {
                made.remove(&name);
            }
            1 => {
                made.insert(name.to_uppercase(), json!(1));
            }
            2 => {
                let edge = [("minimum", -1_i64), ("maximum", 1), ("minimum", 0), ("maximum", 0)][rng.random_range(0..4)];
                let bound = schema[edge.0].as_i64().unwrap_or(0).saturating_add(edge.1);
                made.insert(name.clone(), if WAITING.contains(&name.as_str()) { json!(-1) } else { json!(bound) });
            }
            3 => {
                let longest = schema["maxLength"].as_u64().unwrap_or(512).min(70_000) as usize;
                made.insert(name, Value::from("ü".repeat(longest / 2 + rng.random_range(0..2))));
            }
            _ => {
                made.insert(name, Value::Null);
            }
        }
    }

    /// One change that the schema forbids.
    fn break_one(&self, rng: &mut StdRng, made: &mut Map<String, Value>) {
        let typed: Vec<&String> = self.properties.iter().filter(|(_, schema)| schema["type"].is_string()).map(|(name, _)| name).collect();
        match rng.random_range(0..3_u32) {
            0 if !self.required.is_empty() => {
                made.remove(&self.required[rng.random_range(0..self.required.len())]);
                // Some tools judge a missing argument late, and say that their feature is off; this one is refused by all.
                made.insert("no_such_argument".into(), Value::Null);
            }
            1 if !typed.is_empty() => {
                let name = typed[rng.random_range(0..typed.len())];
                let wrong = match self.properties[name]["type"].as_str() {
                    Some("object") => json!([1]),
                    _ => json!({ "a": [1] }),
                };
                made.insert(name.clone(), wrong);
            }
            _ => {
                made.insert("colour".into(), hostile(rng, 0));
            }
        }
    }

    /// Hostile values in place of some, and now and then in place of all.
    fn spoil(&self, rng: &mut StdRng, made: &mut Map<String, Value>) {
        for name in self.properties.keys() {
            if WAITING.contains(&name.as_str()) {
                continue;
            }
            if rng.random_bool(0.35) {
                made.insert(name.clone(), hostile(rng, 0));
            }
        }
        if rng.random_bool(0.1) {
            made.insert(text(rng), hostile(rng, 0));
        }
    }

    fn any_property(&self, rng: &mut StdRng) -> Option<(String, Value)> {
        let n = rng.random_range(0..self.properties.len().max(1));
        self.properties.iter().nth(n).map(|(name, schema)| (name.clone(), schema.clone()))
    }

    fn spare_callers(&self, made: &mut Map<String, Value>, known: &Known) {
        if !self.may_end_a_passport() {
            return;
        }
        for value in made.values_mut() {
            if value.as_str().is_some_and(|text| known.callers.iter().any(|caller| text.trim().eq_ignore_ascii_case(caller))) {
                *value = "nobody-at-all".into();
            }
        }
    }
}

/// A value that a schema allows.
fn value(rng: &mut StdRng, name: &str, schema: &Value, known: &Known, depth: usize) -> Value {
    if let Some(words) = schema["enum"].as_array().filter(|words| !words.is_empty()) {
        return words[rng.random_range(0..words.len())].clone();
    }
    match schema["type"].as_str() {
        Some("boolean") => rng.random::<bool>().into(),
        Some("integer") => {
            let least = schema["minimum"].as_u64().unwrap_or(0);
            let most = schema["maximum"].as_u64().unwrap_or(least.saturating_add(10_000)).max(least);
            let most = if WAITING.contains(&name) { most.min(least.saturating_add(30)) } else { most };
            match rng.random_range(0..4_u32) {
                0 => least.into(),
                1 => most.into(),
                _ => rng.random_range(least..=most).into(),
            }
        }
        Some("number") => {
            let (least, most) = (schema["minimum"].as_f64().unwrap_or(0.0), schema["maximum"].as_f64().unwrap_or(1.0));
            json!(least + (most - least) * rng.random::<f64>())
        }
        Some("array") => {
            let least = schema["minItems"].as_u64().unwrap_or(0);
            let most = schema["maxItems"].as_u64().unwrap_or(4).min(4).max(least);
            (0..rng.random_range(least..=most)).map(|_| value(rng, name, &schema["items"], known, depth + 1)).collect()
        }
        Some("object") => {
            let mut made = Map::new();
            for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
                let is_required = schema["required"].as_array().is_some_and(|names| names.iter().any(|name| name == field));
                if is_required || (depth < 4 && rng.random_bool(0.4)) {
                    made.insert(field.clone(), value(rng, field, inner, known, depth + 1));
                }
            }
            if schema["properties"].is_null() {
                made.insert("note".into(), json!({ "n": rng.random_range(0..9_u32), "list": [1, "two", null] }));
            }
            Value::Object(made)
        }
        Some("string") => Value::from(match schema["pattern"].as_str() {
            Some(_) => "0123456789abcdef".repeat(4),
            None => word(rng, name, known),
        }),
        _ => json!({ "any": [rng.random_range(0..9_u32), "thing"] }),
    }
}

/// A text that a field of this name may hold: mostly one that is known, so that calls meet each other.
fn word(rng: &mut StdRng, name: &str, known: &Known) -> String {
    let few = |rng: &mut StdRng, start: &str| format!("{start}{}", rng.random_range(0..40_u32));
    if name.contains("passport") && rng.random_bool(0.5) {
        return known.callers[rng.random_range(0..known.callers.len())].clone();
    }
    if rng.random_bool(0.6)
        && let Some(known) = known.pick(rng, name)
    {
        return known;
    }
    match name {
        "resource" => {
            let start = ["file://src/a", "tree://src", "service://s", "deploy://d"][rng.random_range(0..4)];
            few(rng, start)
        }
        "tenant_id" | "scope" => "default".into(),
        "project_id" => "p_default".into(),
        "as_of" | "since" if rng.random_bool(0.5) => "2026-11-30T12:00:00Z".into(),
        _ => few(rng, "fuzz-"),
    }
}

/// Texts that break what is not careful.
fn text(rng: &mut StdRng) -> String {
    let pieces: [&str; 30] = [
        "",
        " ",
        "\0",
        "a\0b",
        "\u{202e}gnirts",
        "\u{feff}",
        "\u{200b}\u{200d}",
        "🦀👩‍👩‍👧‍👦",
        "ﷺ",
        "İı",
        "e\u{301}\u{301}\u{301}",
        "'; drop table facts; --",
        "${jndi:x}",
        "%00%2e%2e/",
        "../../../../etc/passwd",
        "file://../..",
        "tree://",
        "{{7*7}}",
        "<script>",
        "\r\nX: y",
        "-1",
        "NaN",
        "1e999",
        "null",
        "__agent::agent-b::x",
        "__ops::x",
        "act_00000000000000000000000000000000",
        "ffffffffffffffffffffffffffffffff00",
        "\u{10ffff}",
        "a\tb\u{7f}\u{1b}[31m",
    ];
    match rng.random_range(0..8_u32) {
        0 => "x".repeat([511, 512, 513, 4_096, 4_097, 16_385, 70_000, 300_000][rng.random_range(0..8)]),
        1 => "🦀".repeat(rng.random_range(1..400)),
        2 => (0..rng.random_range(1..60)).map(|_| rng.random::<char>()).collect(),
        3 => hex_of(rng),
        _ => pieces[rng.random_range(0..pieces.len())].into(),
    }
}

/// What may pass for an id or a cursor.
fn hex_of(rng: &mut StdRng) -> String {
    (0..[16, 32, 33, 64, 200][rng.random_range(0..5)]).map(|_| char::from_digit(rng.random_range(0..16), 16).unwrap_or('0')).collect()
}

/// Values of any type, none of them meant well.
fn hostile(rng: &mut StdRng, depth: usize) -> Value {
    let numbers = [
        json!(0),
        json!(-1),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(-1e308),
        json!(1.5),
        json!(5e-324),
        json!(9_007_199_254_740_993_u64),
        json!(18_446_744_073_709_551_616.0),
        json!(-0.0),
    ];
    match rng.random_range(0..10_u32) {
        0 => Value::Null,
        1 => rng.random::<bool>().into(),
        2 | 3 => numbers[rng.random_range(0..numbers.len())].clone(),
        4 if depth < 3 => (0..rng.random_range(0..5)).map(|_| hostile(rng, depth + 1)).collect(),
        5 if depth < 3 => Value::Object((0..rng.random_range(0..5)).map(|_| (text(rng), hostile(rng, depth + 1))).collect()),
        // Within what a body may nest, and beyond it.
        6 => (0..[10, 50, 63, 64, 100][rng.random_range(0..5)])
            .fold(json!(1), |inner, n| if n % 2 == 0 { json!([inner]) } else { json!({ "a": inner }) }),
        7 => (0..[100, 1_001, 20_000][rng.random_range(0..3)]).map(Value::from).collect(),
        _ => text(rng).into(),
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn tool() -> Value {
        json!({ "name": "t", "inputSchema": { "type": "object", "required": ["entity", "n"], "additionalProperties": false, "properties": {
            "entity": { "type": "string", "maxLength": 512 }, "n": { "type": "integer", "minimum": 2, "maximum": 9 },
            "kind": { "type": "string", "enum": ["a", "b"] }, "share": { "type": "number", "minimum": 0, "maximum": 1 },
            "hash": { "type": "string", "pattern": "^[0-9a-f]{64}$" }, "list": { "type": "array", "items": { "type": "string" }, "maxItems": 3 },
            "task": { "type": "object", "properties": { "goal": { "type": "string" } }, "required": ["goal"] },
        } } })
    }

    fn made(wish: Wish) -> Vec<Value> {
        let (shape, known) = (Shape::of(&tool()).unwrap(), Known::new(vec!["mara".into()]));
        (0..500).map(|n| shape.arguments(&mut StdRng::seed_from_u64(n), wish, &known)).collect()
    }

    #[test]
    fn what_is_meant_to_be_valid_is_and_what_is_meant_to_be_refused_is_not() {
        let schema = jsonschema::validator_for(&tool()["inputSchema"]).unwrap();
        for arguments in made(Wish::Valid) {
            assert!(schema.is_valid(&arguments), "{arguments}");
        }
        for arguments in made(Wish::Refused) {
            assert!(!schema.is_valid(&arguments), "{arguments}");
        }
        for wish in [Wish::Nearly, Wish::Hostile] {
            let valid = made(wish).iter().filter(|arguments| schema.is_valid(arguments)).count();
            assert!((1..450).contains(&valid), "{wish:?}: {valid} of 500");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_and_no_caller_is_ended() {
        assert_eq!(made(Wish::Hostile), made(Wish::Hostile));
        let tool = json!({ "name": "revoke_passport", "inputSchema": { "properties": { "passport": { "type": "string" } }, "required": ["passport"] } });
        let (shape, known) = (Shape::of(&tool).unwrap(), Known::new(vec!["mara".into()]));
        let all = (0..300).map(|n| shape.arguments(&mut StdRng::seed_from_u64(n), Wish::Valid, &known)).collect::<Vec<_>>();
        assert!(
            all.iter().all(|arguments| arguments["passport"] != "mara")
                && all.iter().any(|arguments| arguments["passport"] == "nobody-at-all")
        );
    }

    #[test]
    fn what_answers_tell_comes_back_in_later_calls() {
        let mut known = Known::new(vec!["mara".into()]);
        known.learn(&json!({ "rows": [{ "entity": "svc:api", "n": 1 }] }));
        let shape = Shape::of(&tool()).unwrap();
        let all: Vec<Value> = (0..50).map(|n| shape.arguments(&mut StdRng::seed_from_u64(n), Wish::Valid, &known)).collect();
        assert!(all.iter().any(|arguments| arguments["entity"] == "svc:api"));
    }
}
