//! Files that are to be found: their text, cut into passages, goes into the log in bounded batches.
//!
//! `POST /v1/ingest?name=PATH` takes one file as its body, and can be sent again at any time: what is there already costs nothing,
//! and what was interrupted goes on where it stopped. `POST /v1/ingest/check` tells which files need not be sent at all.

mod cut;
mod text;

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, Response, StatusCode, header};
use quorate_domain::document::{AddPassages, BeginDocument, CheckDocuments, ListDocuments, PassageText, RemoveDocument};
use quorate_domain::limit::{DOCUMENT_BYTES_MAX, LIST_DEFAULT, PASSAGES_PER_ENTRY_BYTES_MAX, PASSAGES_PER_ENTRY_MAX};
use quorate_domain::refusal::shown;
use quorate_domain::{Principal, Revision};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

pub use text::{is_readable_name, media_type};

use crate::arguments::read_as;
use crate::call::{CallContext, CallError};
use crate::edge::{self, BodyError};
use crate::http::{self, REVISION, Received, get_deadline, identify, refusal};
use crate::server::App;

/// The name that a content has.
pub fn content_hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// What a token has to hold.
pub const SCOPE: &str = "crux-mcp.ingest";

fn allowed(caller: Option<&Arc<Principal>>) -> Result<(), CallError> {
    match caller {
        None => Err(CallError::Unauthenticated),
        Some(caller) if !caller.may(SCOPE) => Err(CallError::MissingScope { scope: SCOPE.into() }),
        Some(_) => Ok(()),
    }
}

/// The parameters of a request, all of them known.
fn parameters<'a, const N: usize>(query: &'a [(String, String)], known: [&str; N]) -> Result<[Option<&'a str>; N], CallError> {
    let mut values = [None; N];
    for (name, value) in query {
        match known.iter().position(|known| known == name) {
            Some(at) => values[at] = Some(value.as_str()),
            None => {
                let fix = format!("The parameters are {}.", known.map(|name| format!("`{name}`")).join(", "));
                return Err(CallError::arguments(format!("`{}` is unknown", shown(name)), fix));
            }
        }
    }
    Ok(values)
}

fn answered(done: Result<(Value, Revision), CallError>) -> Response<Body> {
    match done {
        Ok((facts, revision)) => {
            let mut response = edge::json_response(StatusCode::OK, facts.to_string());
            response.headers_mut().insert(REVISION, revision.0.into());
            response
        }
        Err(error) => refusal(&error),
    }
}

// ------------------------------------------------------------------ POST /v1/ingest

/// `POST /v1/ingest?name=`: one file as the body.
pub async fn ingest(app: &Arc<App>, query: &[(String, String)], request: Request<Body>) -> Response<Body> {
    // Who may not is told before the file is read.
    let caller = match identify(app, request.headers(), Instant::now() + app.settings.call_deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    if let Err(error) = allowed(caller.as_ref()) {
        return refusal(&error);
    }
    let Ok(_turn) = app.ingesting.acquire().await else { return refusal(&CallError::Fault { detail: "the gateway stops".into() }) };
    let (parts, body) = request.into_parts();
    let body = match edge::read_body_up_to(body, DOCUMENT_BYTES_MAX, app.settings.patience.body).await {
        Ok(body) => body,
        Err(error) => {
            let fix = match error {
                BodyError::TooLarge { .. } => "Split the file.",
                BodyError::TooSlow(_) | BodyError::Incomplete { .. } => error.told().1,
            };
            return edge::problem(error.status(), "The file was not taken", CallError::arguments(error.to_string(), fix).facts());
        }
    };
    let ctx = CallContext::new(caller, Instant::now() + app.settings.call_deadline, app.services.clone());
    answered(take(app, &ctx, query, &parts.headers, body).await)
}

async fn take(
    app: &App,
    ctx: &CallContext,
    query: &[(String, String)],
    headers: &HeaderMap,
    body: Bytes,
) -> Result<(Value, Revision), CallError> {
    let [name] = parameters(query, ["name"])?;
    let name = name
        .ok_or_else(|| CallError::arguments("`name` is missing", "Send `?name=` with the file's path or another name for it."))?
        .to_string();
    let told = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let media_type = media_type(&name, told);
    let (bytes, content_hash) = (body.len() as u64, content_hash(&body));
    let kind = media_type.clone();
    let cut = tokio::task::spawn_blocking(move || {
        let text = text::of_file(&body)?;
        Ok::<_, String>(cut::passages(&text, kind == text::MARKDOWN))
    });
    let passages = match tokio::time::timeout_at(ctx.deadline.into(), cut).await {
        Ok(Ok(passages)) => passages,
        Ok(Err(_)) => Err("the file can't be read: its reader failed on it".to_string()),
        Err(_) => Err("the file takes too long to read".to_string()),
    };
    let passages = passages.map_err(|problem| CallError::arguments(problem, "Send UTF-8 text: Markdown, code or plain text."))?;
    let total = passages.len() as u64;
    let begin = BeginDocument { name: name.clone(), content_hash: content_hash.clone(), media_type, bytes, passages: total };
    let (begun, mut revision) = app.cluster.propose_step(ctx, begin).await?;
    let resumed_from = begun.next_passage;
    let mut next = begun.next_passage;
    while next < total {
        let batch = batch(&passages[usize::try_from(next).unwrap_or(usize::MAX).min(passages.len())..]);
        let add = AddPassages { document_id: begun.document_id.clone(), from: next, passages: batch };
        let (added, at) = app.cluster.propose_step(ctx, add).await?;
        (next, revision) = (added.next_passage, at);
    }
    let facts = json!({
        "name": name,
        "document_id": begun.document_id,
        "content_hash": content_hash,
        "unchanged": begun.is_unchanged,
        "passages": total,
        "passages_sent": total - resumed_from,
        "bytes": bytes,
    });
    Ok((facts, revision))
}

/// What goes into one entry.
fn batch(passages: &[PassageText]) -> Vec<PassageText> {
    let mut bytes = 0;
    let fits = passages.iter().take(PASSAGES_PER_ENTRY_MAX).take_while(|passage| {
        bytes += passage.text.len() + passage.heading.len();
        bytes <= PASSAGES_PER_ENTRY_BYTES_MAX
    });
    fits.cloned().collect()
}

// ------------------------------------------------------------------ POST /v1/ingest/check

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    #[schemars(length(max = 500))]
    documents: Vec<CheckedDocument>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckedDocument {
    name: String,
    content_hash: String,
}

/// `POST /v1/ingest/check`: names and BLAKE3 of files in, which of them are there as they are out.
pub async fn check(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let Received { headers, body, caller, deadline } = match http::receive(app, request).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let read = allowed(caller.as_ref()).and_then(|()| http::arguments(&headers, &body)).and_then(read_as);
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    answered(match read {
        Ok(Check { documents }) => {
            let documents = documents.into_iter().map(|document| (document.name, document.content_hash)).collect();
            let checked = app.cluster.read(&ctx, CheckDocuments { documents }).await;
            checked.map(|(checked, served)| (json!({ "unchanged": checked.unchanged }), served.revision))
        }
        Err(error) => Err(error),
    })
}

// ------------------------------------------------------------------ /v1/documents

/// `GET /v1/documents?prefix=&limit=&cursor=`: what was ingested, by name.
pub async fn list(app: &Arc<App>, query: &[(String, String)], headers: &HeaderMap) -> Response<Body> {
    let deadline = get_deadline(app);
    let caller = match identify(app, headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let asked = allowed(caller.as_ref()).and_then(|()| {
        let [prefix, limit, cursor] = parameters(query, ["prefix", "limit", "cursor"])?;
        let limit = limit
            .map_or(Ok(LIST_DEFAULT as u64), str::parse)
            .map_err(|_| CallError::arguments("`limit` is no number", "Send 1 to 1000."))?;
        Ok(ListDocuments { name_prefix: prefix.map(Into::into), limit, cursor: cursor.map(Into::into) })
    });
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    answered(match asked {
        Ok(asked) => app.cluster.read(&ctx, asked).await.map(|(found, served)| {
            let rows: Vec<Value> = found.documents.into_iter().map(row).collect();
            let mut facts = json!({ "documents": rows });
            if let Some(cursor) = found.next_cursor {
                facts["next_cursor"] = cursor.into();
            }
            (facts, served.revision)
        }),
        Err(error) => Err(error),
    })
}

fn row(row: quorate_domain::document::DocumentRow) -> Value {
    json!({
        "name": row.name,
        "document_id": row.document_id,
        "content_hash": row.content_hash,
        "media_type": row.media_type,
        "bytes": row.bytes,
        "passages": row.passages,
        "passages_stored": row.passages_stored,
        "complete": row.is_complete,
        "actor": row.actor,
        "ingested_at": row.ingested_at.to_rfc3339(),
    })
}

/// `DELETE /v1/documents?name=`: takes a name away, and with its last one the document.
pub async fn remove(app: &Arc<App>, query: &[(String, String)], headers: &HeaderMap) -> Response<Body> {
    let deadline = Instant::now() + app.settings.call_deadline;
    let caller = match identify(app, headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let asked = allowed(caller.as_ref()).and_then(|()| {
        let [name] = parameters(query, ["name"])?;
        name.ok_or_else(|| CallError::arguments("`name` is missing", "`GET /v1/documents` lists them."))
    });
    let ctx = CallContext::new(caller, deadline, app.services.clone());
    answered(match asked {
        Ok(name) => {
            let done = app.cluster.propose_step(&ctx, RemoveDocument { name: name.into() }).await;
            done.map(|(done, revision)| (json!({ "removed": done.removed }), revision))
        }
        Err(error) => Err(error),
    })
}
