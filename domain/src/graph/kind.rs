//! The kinds that entities can have: what their payloads look like, and which edges may lead from one to another.

use serde_json::{Value, json};

use crate::limit::NAME_BYTES_MAX;
use crate::refusal::Refusal;

/// One kind of entity.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    pub kind: &'static str,
    pub description: &'static str,
    /// JSON Schema of the payload.
    pub json_schema: Value,
    /// Edges from an entity of this kind.
    pub outgoing: &'static [Rule],
}

/// An edge that is allowed, and the kinds that it may lead to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    pub edge_kind: &'static str,
    pub to: &'static [&'static str],
}

pub(super) const CAPABILITY: &str = "capability";
const REPO: &str = "repo";
const TRACE_NODE: &str = "agent_trace_node";

/// Every registered kind, by name.
pub fn all() -> Vec<Registration> {
    vec![
        Registration {
            kind: TRACE_NODE,
            description: "A step of an agent's work: what it did, and what it touched.",
            json_schema: json!({
                "type": "object",
                "properties": {
                    "tool": { "type": "string" },
                    "session_id": { "type": "string" },
                    "summary": { "type": "string" },
                    "outcome": { "type": "string" },
                },
            }),
            outgoing: &[Rule { edge_kind: "follows", to: &[TRACE_NODE] }, Rule { edge_kind: "touches", to: &[CAPABILITY, REPO] }],
        },
        Registration {
            kind: CAPABILITY,
            description: "Something that the product can do: where it lives, how mature and how well tested it is.",
            json_schema: capability(),
            outgoing: &[
                Rule { edge_kind: "depends_on", to: &[CAPABILITY] },
                Rule { edge_kind: "uses", to: &[CAPABILITY] },
                Rule { edge_kind: "part_of", to: &[REPO] },
            ],
        },
        Registration {
            kind: REPO,
            description: "A repository of source code.",
            json_schema: json!({
                "type": "object",
                "required": ["id", "slug", "name"],
                "properties": {
                    "id": { "type": "string" },
                    "slug": { "type": "string" },
                    "name": { "type": "string" },
                    "description": { "type": "string" },
                    "clone_url": { "type": "string" },
                },
            }),
            outgoing: &[Rule { edge_kind: "depends_on", to: &[REPO] }],
        },
    ]
}

/// The schema of the features lens: what it needs to tell gaps and coverage.
fn capability() -> Value {
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    json!({
        "type": "object",
        "required": ["id", "name", "system", "maturity"],
        "properties": {
            "id": { "type": "string" },
            "name": { "type": "string" },
            "system": { "type": "string", "maxLength": NAME_BYTES_MAX },
            "maturity": { "enum": ["planned", "documented", "building", "built", "shipped", "deferred"] },
            "subsystem": { "type": "string" },
            "description": { "type": "string" },
            "feature_flag": { "type": "string" },
            "repo_id": { "type": "string" },
            "files": texts,
            "depends_on": texts,
            "depended_by": texts,
            "tests": {
                "type": "object",
                "properties": { "unit": texts, "integration": texts, "e2e": texts },
            },
            "audit": {
                "type": "object",
                "properties": {
                    "status": { "enum": ["audited", "gap", "waived", "blocked"] },
                    "last_audited": { "type": "string" },
                    "auditor": { "type": "string" },
                    "notes": { "type": "string" },
                },
            },
            "dod": texts,
            "promise_alignment": { "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": 10 } },
            "external_deps": texts,
        },
    })
}

/// A kind by its name.
pub fn named(kind: &str) -> Option<Registration> {
    all().into_iter().find(|registration| registration.kind == kind)
}

/// The edges that may lead to a kind, and from which kinds.
pub fn incoming(kind: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for registration in all() {
        for rule in registration.outgoing.iter().filter(|rule| rule.to.contains(&kind)) {
            match found.iter_mut().find(|(edge_kind, _)| *edge_kind == rule.edge_kind) {
                Some((_, from)) => from.push(registration.kind),
                None => found.push((rule.edge_kind, vec![registration.kind])),
            }
        }
    }
    found
}

/// Refuses a kind that is not registered.
pub fn check(field: &str, kind: &str) -> Result<Registration, Refusal> {
    named(kind).ok_or_else(|| {
        let known: Vec<String> = all().iter().map(|registration| format!("`{}`", registration.kind)).collect();
        Refusal::invalid(field, format!("is no registered kind; those are {}", known.join(", ")))
    })
}

/// Refuses an edge that its source's kind does not allow.
pub(super) fn check_edge(from: &str, edge_kind: &str, to: &str) -> Result<(), Refusal> {
    let source = check("from_kind", from)?;
    check("to_kind", to)?;
    let Some(rule) = source.outgoing.iter().find(|rule| rule.edge_kind == edge_kind) else {
        let known: Vec<String> = source.outgoing.iter().map(|rule| format!("`{}`", rule.edge_kind)).collect();
        return Err(Refusal::invalid("edge_kind", format!("can't lead from a `{from}`; what can is {}", known.join(", "))));
    };
    if !rule.to.contains(&to) {
        return Err(Refusal::invalid(
            "to_kind",
            format!("can't be where `{edge_kind}` leads from a `{from}`; it leads to {}", rule.to.join(", ")),
        ));
    }
    Ok(())
}
