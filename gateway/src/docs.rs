//! The page of all tools, from their declarations.

use std::fmt::Write;

use serde_json::Value;

use crate::registry::{Catalog, Effect, Entry};
use crate::{profile, tools};

/// Markdown of every tool: what it does, its scope, its arguments and its answer.
pub fn docs() -> String {
    page(&tools::crux().and_all(&profile::about_tools()))
}

fn page(catalog: &Catalog) -> String {
    let mut page = String::from(
        "# Tools\n\nMade by `quorate_gateway::docs()` from the declarations. Every tool is at `/mcp/crux` and at `POST /v1/tools/crux/{name}`.\n",
    );
    for entry in catalog.entries() {
        page.push('\n');
        page.push_str(&tool_page(entry));
    }
    page
}

/// The part of one tool.
pub fn tool_page(entry: &Entry) -> String {
    let mut page = String::new();
    let effect = match entry.effect {
        Effect::Read => "reads",
        Effect::Write => "writes",
        Effect::Destructive => "writes, destructive",
    };
    let scope = if entry.scope.is_empty() { "any token".into() } else { format!("scope `{}`", entry.scope) };
    // Writing into a String does not fail.
    let _ = write!(page, "## {}\n\n{}\n\n*{}; {effect}; {scope}.*\n", entry.name, entry.description, entry.group);
    table(&mut page, "Argument", &entry.input);
    let _ = write!(page, "\nExample: `{}`\n", entry.example);
    table(&mut page, "Answer", &entry.output);
    page
}

fn table(page: &mut String, head: &str, schema: &Value) {
    let Some(properties) = schema["properties"].as_object().filter(|properties| !properties.is_empty()) else { return };
    let required = |name: &str| schema["required"].as_array().is_some_and(|required| required.iter().any(|entry| entry == name));
    let _ = write!(page, "\n| {head} | Type | |\n|---|---|---|\n");
    for (name, property) in properties {
        let kind = match property["enum"].as_array() {
            Some(words) => words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            None => property["type"].as_str().unwrap_or("any").into(),
        };
        let about = property["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        let mark = if required(name) { "" } else { "?" };
        let _ = writeln!(page, "| `{name}`{mark} | {kind} | {about} |");
    }
}
