//! What a call of a tool would do, told from its words alone: always the same for the same call.
//!
//! Words match whole, so `capital` does not speak of an `api`, nor a key `total` of a recipient. It is a first guess for who
//! decides, and no rule hangs on it but the words that constraints are compared with.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::limit::ACTION_ITEMS_MAX;

/// A call of a tool, enriched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    pub tool_call: Value,
    pub narrative: String,
    /// All texts of the call, one after the other.
    pub said: String,
    /// `{role, name}` each.
    pub principals: Vec<Value>,
    /// `{kind, name}` each.
    pub resources: Vec<Value>,
    /// `{before, after}` where the call names both or one, else null.
    pub state_diff: Value,
    /// What makes the call matter.
    pub consequences: Vec<String>,
    pub domain: String,
    pub blast_radius: String,
    pub reversibility: String,
    pub idempotency: String,
    /// BLAKE3 of the compact JSON of `tool_call`, in hex.
    pub tool_call_hash: String,
}

/// The first of these whose words are met is what a call is about.
const DOMAINS: [(&str, &[&str]); 7] = [
    ("email_calendar", &["email", "mail", "calendar", "meeting", "invite", "attendee"]),
    ("crm", &["crm", "customer", "contact", "lead", "deal"]),
    ("code", &["code", "git", "repo", "repository", "branch", "commit", "merge", "build", "deploy", "bash", "shell"]),
    ("file", &["file", "path", "directory", "folder"]),
    ("sync", &["sync", "push", "pull", "replicate"]),
    ("memory", &["memory", "fact", "recall", "session"]),
    ("extension", &["extension", "plugin"]),
];

const MATERIAL: [(&str, &[&str]); 6] = [
    ("money", &["money", "pay", "payment", "invoice", "refund", "charge", "price"]),
    ("customer_data", &["customer", "customers", "client", "clients"]),
    ("production", &["production", "prod", "deploy", "release"]),
    ("external_obligation", &["contract", "agreement", "sign", "send", "publish", "email"]),
    ("pii", &["ssn", "birthday", "birthdate", "phone", "address", "iban"]),
    ("local_private_memory", &["private", "memory", "secret"]),
];

const IRREVERSIBLE: [&str; 8] = ["delete", "destroy", "drop", "purge", "wipe", "charge", "refund", "send"];
const COMPENSABLE: [&str; 8] = ["create", "update", "move", "rename", "deploy", "publish", "promote", "merge"];
const READING: [&str; 9] = ["read", "get", "list", "query", "scan", "preview", "status", "search", "show"];

const ROLES: [(&str, &[&str]); 3] = [
    ("recipient", &["attendee", "attendees", "recipient", "recipients", "to", "cc"]),
    ("owner", &["organizer", "owner", "author", "from"]),
    ("participant", &["assignee", "passport", "user", "customer", "contact"]),
];
const RESOURCES: [&str; 8] = ["path", "file", "file_path", "repo", "repository", "branch", "url", "resource"];

/// The words of a text, in lower case, split at whatever is no letter or digit and where a capital begins.
fn words(text: &str) -> BTreeSet<String> {
    let mut spaced = String::new();
    let mut before = ' ';
    for c in text.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            spaced.push(' ');
        }
        spaced.push(c);
        before = c;
    }
    spaced.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// Tells what a call would do. Parameters are a JSON object, of a bounded depth.
pub(crate) fn propose(tool: &str, description: Option<&str>, parameters: &Value) -> Proposal {
    let tool_call = json!({ "tool_name": tool, "tool_parameters": parameters });
    let mut said = vec![tool.to_string(), description.unwrap_or_default().into()];
    let mut found = Found::default();
    look(parameters, &mut said, &mut found);
    let said = said.join(" ");
    let words = words(&said);
    let has = |any: &[&str]| any.iter().any(|word| words.contains(*word));
    let first = |table: &[(&'static str, &[&str])]| table.iter().find(|(_, any)| has(any)).map(|(name, _)| *name);
    let domain = first(&DOMAINS).unwrap_or("general");
    let consequences: Vec<String> = MATERIAL.iter().filter(|(_, any)| has(any)).map(|(name, _)| name.to_string()).collect();
    let reversibility = match () {
        () if has(&IRREVERSIBLE) => "irreversible",
        () if has(&COMPENSABLE) || !consequences.is_empty() => "compensable",
        () if has(&READING) => "reversible",
        () => "unknown",
    };
    let is_external = has(&["send", "publish", "email", "external", "webhook"]);
    let blast_radius = match () {
        () if has(&["tenants", "tenant"]) => "cross_tenant",
        () if is_external => "external",
        () if has(&["production", "prod", "deploy", "release", "shared", "team"]) => "tenant",
        () => "self_only",
    };
    let idempotency = match reversibility {
        "reversible" => "safe",
        "irreversible" => "must_not_retry",
        "compensable" => "requires_key",
        _ => "unknown",
    };
    let weight = if consequences.is_empty() { "nothing of weight".into() } else { consequences.join(", ") };
    let narrative = format!("a call of {tool} about {domain}, {reversibility}, that reaches {blast_radius} and touches {weight}");
    Proposal {
        narrative,
        said,
        principals: found.principals,
        resources: found.resources,
        state_diff: found.diff.map_or(Value::Null, Value::Object),
        consequences,
        domain: domain.into(),
        blast_radius: blast_radius.into(),
        reversibility: reversibility.into(),
        idempotency: idempotency.into(),
        tool_call_hash: blake3::hash(tool_call.to_string().as_bytes()).to_hex().to_string(),
        tool_call,
    }
}

#[derive(Default)]
struct Found {
    principals: Vec<Value>,
    resources: Vec<Value>,
    diff: Option<Map<String, Value>>,
}

/// Gathers the texts of a value, and what its keys say of them.
fn look(value: &Value, said: &mut Vec<String>, found: &mut Found) {
    match value {
        Value::String(text) => said.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| look(item, said, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                name(&key.to_lowercase(), value, found);
                look(value, said, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn name(key: &str, value: &Value, found: &mut Found) {
    let texts: Vec<&str> = match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for text in texts {
        if let Some((role, _)) = ROLES.iter().find(|(_, keys)| keys.contains(&key))
            && found.principals.len() < ACTION_ITEMS_MAX
        {
            found.principals.push(json!({ "role": role, "name": text }));
        }
        if (RESOURCES.contains(&key) || key.ends_with("_id")) && found.resources.len() < ACTION_ITEMS_MAX {
            found.resources.push(json!({ "kind": key, "name": text }));
        }
    }
    let side = match key {
        "before" | "old" | "old_value" => "before",
        "after" | "new" | "new_value" | "target" => "after",
        _ => return,
    };
    found.diff.get_or_insert_default().entry(side).or_insert_with(|| value.clone());
}
