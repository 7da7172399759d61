//! Resources: what can be read by URI, watched, and completed.
//!
//! A resource of the product is a tool that reads, by another name: `quorate://work/{id}` is `list_work` with `work_id`. So
//! rights, limits and errors are those of the tool, and nothing is declared twice. What never changes (the pages about the
//! tools) stands in the program.

use std::sync::Arc;

use quorate_domain::Refusal;
use quorate_domain::refusal::shown;
use serde_json::{Value, json};

use crate::call::{CallContext, CallError};
use crate::events::Change;
use crate::limit::COMPLETIONS_MAX;
use crate::registry::Catalog;
use crate::server::App;

/// A resource of one URI.
pub struct Fixed {
    pub uri: &'static str,
    /// As the list shows it.
    pub listed: Value,
    /// `text` or `blob`, beside `uri` and `mimeType`.
    pub contents: Value,
}

impl Fixed {
    pub fn text(uri: &'static str, name: &str, description: &str, mime: &str, text: impl Into<String>) -> Self {
        Self {
            uri,
            listed: json!({ "uri": uri, "name": name, "description": description, "mimeType": mime }),
            contents: json!({ "uri": uri, "mimeType": mime, "text": text.into() }),
        }
    }
}

/// Where the contents of a template come from.
pub enum Source {
    /// A tool that reads, with the variable as this argument.
    Tool { tool: &'static str, argument: &'static str },
    /// The page of a tool.
    ToolPage,
    /// Made of the variable alone.
    Made(fn(&str) -> Option<String>),
}

/// Resources of one shape, with one variable.
pub struct Template {
    /// What stands before the variable, and after it.
    pub prefix: &'static str,
    pub suffix: &'static str,
    pub variable: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    pub mime: &'static str,
    pub source: Source,
    /// Beginning of the kinds of events that change one of them, and where the event has the variable: in this field of
    /// `about`, or in its id.
    pub changed_by: Option<(&'static str, Option<&'static str>)>,
    /// Tool, argument and field of its answer that values of the variable are proposed from.
    pub completed_by: Option<Completion>,
}

/// How a beginning is completed.
pub enum Completion {
    Entities,
    WorkIds,
    ToolNames,
}

impl Template {
    pub fn uri_template(&self) -> String {
        format!("{}{{{}}}{}", self.prefix, self.variable, self.suffix)
    }

    fn listed(&self) -> Value {
        json!({ "uriTemplate": self.uri_template(), "name": self.name, "description": self.description, "mimeType": self.mime })
    }

    /// The variable in a URI of this shape.
    fn variable_of(&self, uri: &str) -> Option<String> {
        let raw = uri.strip_prefix(self.prefix)?.strip_suffix(self.suffix)?;
        decoded(raw).filter(|value| !value.is_empty())
    }

    fn is_changed_by(&self, change: &Change, value: &str) -> bool {
        let Some((kinds, field)) = self.changed_by else { return false };
        let changed = match field {
            Some(field) => change.about[field].as_str(),
            None => Some(change.id.as_str()),
        };
        change.kind.starts_with(kinds) && changed == Some(value)
    }
}

/// All resources of one address.
#[derive(Default)]
pub struct Library {
    pub fixed: Vec<Fixed>,
    pub templates: Vec<Template>,
}

/// The resources of the product.
pub fn library(tools: &Catalog) -> Library {
    let index: Vec<String> = tools.entries().iter().map(|entry| format!("- `{}`: {}\n", entry.name, entry.title)).collect();
    let about_index = "Every tool by name; quorate://docs/tools/{name} has the whole page of one.";
    Library {
        fixed: vec![
            Fixed::text("quorate://docs/guide", "guide", "How to work with Quorate, in short.", "text/markdown", super::INSTRUCTIONS),
            Fixed::text("quorate://docs/tools", "tools", about_index, "text/markdown", index.concat()),
        ],
        templates: vec![
            Template {
                prefix: "quorate://facts/",
                suffix: "",
                variable: "entity",
                name: "facts",
                description: "What the team knows about one entity, as `query_facts` answers it.",
                mime: "application/json",
                source: Source::Tool { tool: "query_facts", argument: "entity" },
                changed_by: Some(("fact.", Some("entity"))),
                completed_by: Some(Completion::Entities),
            },
            Template {
                prefix: "quorate://work/",
                suffix: "",
                variable: "work_id",
                name: "work",
                description: "One item of work with its comments, as `list_work` answers it.",
                mime: "application/json",
                source: Source::Tool { tool: "list_work", argument: "work_id" },
                changed_by: Some(("work.", None)),
                completed_by: Some(Completion::WorkIds),
            },
            Template {
                prefix: "quorate://receipts/",
                suffix: "",
                variable: "receipt_id",
                name: "receipts",
                description: "One receipt and whether it is whole, as `receipt_verify` answers it. It never changes.",
                mime: "application/json",
                source: Source::Tool { tool: "receipt_verify", argument: "receipt_id" },
                changed_by: None,
                completed_by: None,
            },
            Template {
                prefix: "quorate://docs/tools/",
                suffix: "",
                variable: "name",
                name: "tool",
                description: "The page of one tool: what it does, its arguments, its answer.",
                mime: "text/markdown",
                source: Source::ToolPage,
                changed_by: None,
                completed_by: Some(Completion::ToolNames),
            },
        ],
    }
}

/// What a URI means at an address.
pub struct Watched {
    uri: String,
    template: usize,
    value: String,
}

impl Watched {
    pub fn uri(&self) -> &str {
        &self.uri
    }
}

impl Library {
    pub fn listed(&self) -> Vec<String> {
        self.fixed.iter().map(|fixed| fixed.listed.to_string()).collect()
    }

    pub fn templates_listed(&self) -> Vec<String> {
        self.templates.iter().map(|template| template.listed().to_string()).collect()
    }

    /// The template of a URI and the value of its variable. The longest prefix goes first: one shape can begin like another.
    fn find(&self, uri: &str) -> Option<(usize, String)> {
        let fitting = self.templates.iter().enumerate().filter_map(|(n, template)| Some((n, template.variable_of(uri)?)));
        fitting.max_by_key(|(n, _)| self.templates[*n].prefix.len())
    }

    /// The contents of a resource.
    pub async fn read(&self, app: &App, ctx: &CallContext, uri: &str) -> Result<Value, CallError> {
        if let Some(fixed) = self.fixed.iter().find(|fixed| fixed.uri == uri) {
            return Ok(fixed.contents.clone());
        }
        let not_found = || CallError::Refused(Refusal::not_found("resource", uri));
        let (n, value) = self.find(uri).ok_or_else(not_found)?;
        let template = &self.templates[n];
        let text = match &template.source {
            Source::Made(make) => make(&value).ok_or_else(not_found)?,
            Source::ToolPage => crate::docs::tool_page(app.tools.find(&value).ok_or_else(not_found)?),
            Source::Tool { tool, argument } => {
                let facts = run(app, ctx, tool, json!({ *argument: value })).await?;
                // For a verifier a missing receipt is an answer; for who reads it is none.
                if facts["http_status"] == 404 {
                    return Err(not_found());
                }
                facts.to_string()
            }
        };
        Ok(json!({ "uri": uri, "mimeType": template.mime, "text": text }))
    }

    /// What there is to watch behind a URI, if the caller may read it. `Ok(None)` is a resource that never changes.
    pub fn watch(&self, app: &App, ctx: &CallContext, uri: &str) -> Result<Option<Watched>, CallError> {
        if self.fixed.iter().any(|fixed| fixed.uri == uri) {
            return Ok(None);
        }
        let (n, value) = self.find(uri).ok_or_else(|| CallError::Refused(Refusal::not_found("resource", uri)))?;
        let template = &self.templates[n];
        if let Source::Tool { tool, .. } = template.source {
            let scope = app.tools.find(tool).expect("a template names a tool that there is").scope;
            if !ctx.principal()?.may(scope) {
                return Err(CallError::MissingScope { scope: scope.into() });
            }
        }
        Ok(template.changed_by.is_some().then(|| Watched { uri: uri.into(), template: n, value }))
    }

    /// Which of the watched have changed, each once.
    pub fn changed<'a>(&self, watched: &'a [Watched], changes: &[Change]) -> Vec<&'a str> {
        let is_changed =
            |watched: &&Watched| changes.iter().any(|change| self.templates[watched.template].is_changed_by(change, &watched.value));
        watched.iter().filter(is_changed).map(|watched| watched.uri.as_str()).collect()
    }

    /// Values that begin so, of a template's variable.
    pub async fn complete(&self, app: &App, ctx: &CallContext, uri_template: &str, start: &str) -> Result<Vec<String>, CallError> {
        let template = self.templates.iter().find(|template| template.uri_template() == uri_template);
        let template = template.ok_or_else(|| CallError::Refused(Refusal::not_found("resource template", uri_template)))?;
        match &template.completed_by {
            None => Ok(Vec::new()),
            Some(completion) => complete(app, ctx, completion, start).await,
        }
    }
}

/// Values that begin so. A caller who may not list them gets none.
pub async fn complete(app: &App, ctx: &CallContext, completion: &Completion, start: &str) -> Result<Vec<String>, CallError> {
    let (tool, arguments) = match completion {
        Completion::ToolNames => {
            let names = app.tools.entries().iter().map(|entry| entry.name.to_string());
            return Ok(names.filter(|name| name.starts_with(start)).collect());
        }
        Completion::Entities if start.is_empty() => ("list_entities", json!({ "limit": COMPLETIONS_MAX })),
        Completion::Entities => ("list_entities", json!({ "entity_prefix": start, "limit": COMPLETIONS_MAX })),
        Completion::WorkIds => ("list_work", json!({})),
    };
    let facts = match run(app, ctx, tool, arguments).await {
        Err(CallError::MissingScope { .. } | CallError::Unauthenticated) => return Ok(Vec::new()),
        facts => facts?,
    };
    let rows = facts[if tool == "list_work" { "work" } else { "entities" }].as_array().cloned().unwrap_or_default();
    let names = rows.iter().filter_map(|row| row.as_str().or_else(|| row["id"].as_str()));
    Ok(names.filter(|name| name.starts_with(start)).map(String::from).collect())
}

/// The facts of a tool that reads, for the caller.
pub async fn run(app: &App, ctx: &CallContext, tool: &str, arguments: Value) -> Result<Value, CallError> {
    let entry: Arc<_> = app.tools.find(tool).expect("the tools that others build on are there").clone();
    let answer = app.call(&entry, arguments, ctx.clone()).await?;
    serde_json::from_str(&answer.facts).map_err(|error| CallError::Fault { detail: error.to_string() })
}

/// Reads `%2F` and its like; `None` when that is no UTF-8 or broken.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(hex::decode(digits).ok()?[0]);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// The refusal of a resource that is not there, or another error of reading, as JSON-RPC has it.
pub fn is_not_found(error: &CallError) -> bool {
    matches!(error, CallError::Refused(Refusal::NotFound { .. }))
}

/// A URI as it may stand in a message.
pub fn shown_uri(uri: &str) -> Value {
    shown(uri).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Position;
    use crate::tools;
    use quorate_domain::Revision;

    #[test]
    fn a_uri_is_of_the_shape_that_fits_it_closest_and_its_variable_is_decoded() {
        let library = library(&tools::crux());
        let told = |uri: &str| library.find(uri).map(|(n, value)| format!("{}: {value}", library.templates[n].name));
        assert_eq!(told("quorate://facts/svc%3Aapi%2Fv1").as_deref(), Some("facts: svc:api/v1"));
        assert_eq!(told("quorate://docs/tools/punch_in").as_deref(), Some("tool: punch_in"));
        for nonsense in ["quorate://facts/", "quorate://facts/%zz", "quorate://facts/%f", "quorate://facts/%ff", "file:///etc/passwd", ""] {
            assert_eq!(told(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn what_is_watched_is_changed_by_its_own_events_alone() {
        let library = library(&tools::crux());
        let watched: Vec<Watched> = ["quorate://facts/svc%3Aapi", "quorate://work/w_1", "quorate://facts/other"]
            .into_iter()
            .map(|uri| library.find(uri).map(|(template, value)| Watched { uri: uri.into(), template, value }).expect("a shape"))
            .collect();
        let change =
            |kind: &str, id: &str, about: Value| Change { at: Position::through(Revision(1)), kind: kind.into(), id: id.into(), about };
        let changes = [
            change("fact.stored", "f_1", json!({ "entity": "svc:api" })),
            change("fact.stored", "f_2", json!({ "entity": "svc:api" })),
            change("fact.stored", "f_3", json!({ "private": true })),
            change("session.saved", "w_1", json!({})),
        ];
        assert_eq!(library.changed(&watched, &changes), ["quorate://facts/svc%3Aapi"]);
        assert_eq!(library.changed(&watched, &[change("work.moved", "w_1", json!({}))]), ["quorate://work/w_1"]);
    }
}
