//! The OpenAPI document as pages: an index, and a page for each operation. Made here, whole, and without a script.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use maud::{Markup, html};
use serde_json::{Value, json};

use crate::console;
use crate::edge;
use crate::server::App;

/// The pages of a document.
pub struct Reference {
    index: String,
    operations: BTreeMap<String, String>,
}

struct Told<'a> {
    id: &'a str,
    method: String,
    path: &'a str,
    operation: &'a Value,
}

impl Reference {
    pub fn of(document: &Value) -> Self {
        let mut groups: BTreeMap<&str, Vec<Told>> = BTreeMap::new();
        for (path, operations) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in operations.as_object().into_iter().flatten() {
                let told = Told { id: words(&operation["operationId"]), method: method.to_uppercase(), path, operation };
                groups.entry(words(&operation["tags"][0])).or_default().push(told);
            }
        }
        let operations = groups.values().flatten().map(|told| {
            let title = format!("{} {}", told.method, told.path);
            (told.id.to_string(), console::bare(&title, page(told, &document["components"])).into_string())
        });
        Self { operations: operations.collect(), index: console::bare("HTTP API", index(document, &groups)).into_string() }
    }
}

fn words(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn index(document: &Value, groups: &BTreeMap<&str, Vec<Told>>) -> Markup {
    html! {
        h1 { "HTTP API" }
        p { (words(&document["info"]["description"])) }
        p { "The same for programs: " a href="/v1/openapi.json" { "/v1/openapi.json" } }
        @for (group, operations) in groups {
            section {
                h2 { (group) }
                div.scroll tabindex="0" role="region" aria-label=(group) {
                    table {
                        thead { tr { th scope="col" { "Address" } th scope="col" { "What it does" } } }
                        tbody {
                            @for told in operations {
                                tr {
                                    td { a href={ "/v1/docs/" (told.id) } { code { (told.method) " " (told.path) } } }
                                    td { (words(&told.operation["summary"])) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn page(told: &Told, components: &Value) -> Markup {
    let operation = told.operation;
    let body = operation["requestBody"]["content"].as_object().and_then(|content| content.iter().next());
    html! {
        p { a href="/v1/docs" { "HTTP API" } }
        h1 { code { (told.method) " " (told.path) } }
        p { (words(&operation["summary"])) ". " @if operation["security"] == json!([]) { "Needs no token." } }
        @for part in words(&operation["description"]).split("\n\n") { p { (part) } }
        @if let Some(parameters) = operation["parameters"].as_array() {
            h2 { "Parameters" }
            (table("Parameters", parameters.iter().map(|parameter| Row {
                name: words(&parameter["name"]),
                place: words(&parameter["in"]),
                required: parameter["required"] == true,
                schema: &parameter["schema"],
                about: words(&parameter["description"]),
            })))
        }
        @if let Some((kind, body)) = body {
            h2 { "Body" }
            p { code { (kind) } }
            (fields("Body", &body["schema"]))
            @if let Some(example) = body.get("example") { p { "Example: " code { (example) } } }
        }
        h2 { "Answers" }
        @for (status, answer) in operation["responses"].as_object().into_iter().flatten() {
            @let answer = if answer.get("$ref").is_some() { &components["responses"][status] } else { answer };
            h3 { code { (status) } }
            p { (words(&answer["description"])) }
            @if status.starts_with('2') {
                @for (kind, content) in answer["content"].as_object().into_iter().flatten() {
                    p { code { (kind) } }
                    (fields("Answer", &content["schema"]))
                }
            }
        }
    }
}

struct Row<'a> {
    name: &'a str,
    place: &'a str,
    required: bool,
    schema: &'a Value,
    about: &'a str,
}

fn fields(label: &str, schema: &Value) -> Markup {
    let required = |name: &str| schema["required"].as_array().is_some_and(|required| required.iter().any(|one| one == name));
    let properties = schema["properties"].as_object().into_iter().flatten();
    table(
        label,
        properties.map(|(name, schema)| Row { name, place: "", required: required(name), schema, about: words(&schema["description"]) }),
    )
}

fn table<'a>(label: &str, rows: impl Iterator<Item = Row<'a>>) -> Markup {
    let rows: Vec<Row> = rows.collect();
    html! {
        @if !rows.is_empty() {
            div.scroll tabindex="0" role="region" aria-label=(label) {
                table {
                    thead { tr { @for name in ["Name", "Type", "Meaning"] { th scope="col" { (name) } } } }
                    tbody {
                        @for row in &rows {
                            tr {
                                td { code { (row.name) } @if row.required { " (required)" } @if !row.place.is_empty() { " in " (row.place) } }
                                td { (kind_of(row.schema)) }
                                td { (row.about) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn kind_of(schema: &Value) -> String {
    let kind = match schema["type"].as_str() {
        Some("array") => return format!("list of {}", kind_of(&schema["items"])),
        Some(kind) => kind,
        None => "any",
    };
    let words =
        schema["enum"].as_array().map(|words| words.iter().map(|word| word.as_str().unwrap_or_default()).collect::<Vec<_>>().join(", "));
    let bounds: Vec<String> = [("minimum", "from"), ("maximum", "to"), ("maxLength", "at most"), ("maxItems", "at most")]
        .into_iter()
        .filter_map(|(name, word)| Some(format!("{word} {}", schema.get(name)?)))
        .collect();
    match words {
        Some(words) => words,
        None if bounds.is_empty() => kind.into(),
        None => format!("{kind} {}", bounds.join(" ")),
    }
}

/// `GET /v1/docs`.
pub async fn index_page(State(app): State<Arc<App>>) -> Response<Body> {
    shown(app.reference.index.clone())
}

/// `GET /v1/docs/{operation}`.
pub async fn operation_page(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response<Body> {
    match app.reference.operations.get(&id) {
        Some(page) => shown(page.clone()),
        None => {
            let message = "there is no operation of this name. Nothing was written. `GET /v1/docs` lists them.";
            let facts = json!({ "code": "NOT_FOUND", "message": message, "retryable": false, "wrote": "no" });
            edge::problem(StatusCode::NOT_FOUND, "Not Found", facts)
        }
    }
}

fn shown(page: String) -> Response<Body> {
    let mut response = edge::with_type(StatusCode::OK, "text/html; charset=utf-8", page);
    console::harden(&mut response);
    response
}
