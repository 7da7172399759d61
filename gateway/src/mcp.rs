//! The MCP endpoint: JSON-RPC in, JSON out, both eras at one address.
//!
//! A request with a protocol version in its `_meta` is of the stateless era (2026-07-28) and stands for itself. Any other is
//! of the era of sessions (2024-11-05 to 2025-11-25); its session id, if it has one, is checked and never looked up. Nothing
//! depends on earlier requests, so any gateway answers any request.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use quorate_domain::Principal;
use quorate_domain::refusal::shown;
use serde_json::{Map, Value, json};

use crate::auth::Credential;
use crate::call::{CallContext, CallError};
use crate::cluster::now_unix_ms;
use crate::edge;
use crate::limit::{BATCH_MAX, JSON_DEPTH_MAX, TOOLS_PAGE, TOOLS_TTL_MS};
use crate::registry::{Answer, Catalog};
use crate::server::App;

/// Revisions with sessions, newest first.
pub const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The stateless revision.
pub const STATELESS: &str = "2026-07-28";
/// What a legacy request without any sign of its revision is taken for.
const UNNAMED: &str = "2025-03-26";

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const SESSION_NOT_FOUND: i64 = -32001;
const UNAUTHENTICATED: i64 = -32001;
const UNAVAILABLE: i64 = -32000;
const HEADER_MISMATCH: i64 = -32020;
const UNSUPPORTED_VERSION: i64 = -32022;

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";
const META_REVISION: &str = "io.quorate/revision";
const META_ERROR: &str = "io.quorate/error";
const META_KEY: &str = "io.quorate/idempotency-key";

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";

const INSTRUCTIONS: &str = "Quorate is the shared memory and coordination of a team of agents. Look first with `query_facts`; store what others \
should know with `store_fact`. Before you edit a file, `punch_in` on it, renew while you work, and `punch_out` when you are done. Ask with \
`approval_request` before you do something risky. A refusal says who holds what, and what to do next.";

/// What one address lists.
pub struct Listing {
    pub tools: Catalog,
}

/// One message's answer on its way out.
struct Outgoing {
    status: StatusCode,
    /// Empty: nothing to say (a notification).
    body: String,
    session: Option<String>,
    bad_token: Option<bool>,
    retry_after_ms: Option<u64>,
}

impl Outgoing {
    fn ok(body: String) -> Self {
        Self { status: StatusCode::OK, body, session: None, bad_token: None, retry_after_ms: None }
    }

    fn accepted() -> Self {
        Self { status: StatusCode::ACCEPTED, ..Self::ok(String::new()) }
    }

    fn error(status: StatusCode, id: &Value, code: i64, message: impl Into<String>, data: Option<Value>) -> Self {
        let mut error = json!({ "code": code, "message": message.into() });
        if let Some(data) = data {
            error["data"] = data;
        }
        Self { status, ..Self::ok(json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()) }
    }

    fn bad(id: &Value, code: i64, message: impl Into<String>) -> Self {
        Self::error(StatusCode::BAD_REQUEST, id, code, message, None)
    }

    /// A result, written around JSON that is already text.
    fn result(id: &Value, result: &str) -> Self {
        Self::ok(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}"))
    }

    fn into_response(self) -> Response<Body> {
        let mut response = if self.body.is_empty() {
            let mut empty = Response::new(Body::empty());
            *empty.status_mut() = self.status;
            empty
        } else {
            edge::json_response(self.status, self.body)
        };
        if let Some(session) = self.session.and_then(|session| HeaderValue::from_str(&session).ok()) {
            response.headers_mut().insert(SESSION_HEADER, session);
        }
        if let Some(bad_token) = self.bad_token {
            edge::ask_for_token(&mut response, bad_token);
        }
        edge::retry_after(&mut response, self.retry_after_ms);
        response
    }
}

/// A POST to an MCP address. Host and Origin were checked before.
pub async fn post(app: &Arc<App>, listing: &Listing, request: Request<Body>) -> Response<Body> {
    answer(app, listing, request).await.into_response()
}

async fn answer(app: &Arc<App>, listing: &Listing, request: Request<Body>) -> Outgoing {
    let nobody = Value::Null;
    let (parts, body) = request.into_parts();
    let headers = parts.headers;
    let body = match edge::read_body(body, app.settings.patience.body).await {
        Ok(body) => body,
        Err(error) => {
            return Outgoing::error(error.status(), &nobody, INVALID_REQUEST, format!("{error}. Nothing was written."), None);
        }
    };
    if !edge::is_json(&headers) {
        return Outgoing::error(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            &nobody,
            INVALID_REQUEST,
            "send `Content-Type: application/json`",
            None,
        );
    }
    let deadline = Instant::now() + app.settings.call_deadline;
    let caller = match identify(app, &headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    if edge::is_too_deep(&body) {
        return Outgoing::bad(&nobody, PARSE_ERROR, format!("the JSON is nested deeper than {JSON_DEPTH_MAX} levels"));
    }
    let message: Value = match serde_json::from_slice(&body) {
        Ok(message) => message,
        Err(error) => return Outgoing::bad(&nobody, PARSE_ERROR, format!("this is no JSON: {error}")),
    };
    let sender = Sender { app, listing, headers: &headers, caller, deadline };
    match message {
        Value::Array(messages) => sender.batch(messages).await,
        message => sender.single(message).await,
    }
}

/// Who sends, or why the request ends here.
async fn identify(app: &Arc<App>, headers: &HeaderMap, deadline: Instant) -> Result<Option<Arc<Principal>>, Outgoing> {
    let refused = |message: &str| {
        let refused =
            Outgoing::error(StatusCode::UNAUTHORIZED, &Value::Null, UNAUTHENTICATED, message, Some(json!({ "code": "UNAUTHENTICATED" })));
        Err(Outgoing { bad_token: Some(true), ..refused })
    };
    match Credential::of(headers) {
        Credential::None => Ok(None),
        Credential::Malformed => refused("the `Authorization` header is no bearer token"),
        Credential::Bearer(token) => match app.tokens.resolve(&app.cluster, &token, deadline).await {
            Ok(Some(principal)) => Ok(Some(principal)),
            Ok(None) => refused("the token is unknown, expired or revoked; ask an operator for a new one"),
            Err(error) => {
                let refused =
                    Outgoing::error(StatusCode::SERVICE_UNAVAILABLE, &Value::Null, UNAVAILABLE, error.text(), Some(error.facts()));
                Err(Outgoing { retry_after_ms: error.retry_after_ms(), ..refused })
            }
        },
    }
}

/// A JSON-RPC message that has the right shape.
struct Message {
    method: String,
    /// `None` for a notification.
    id: Option<Value>,
    params: Map<String, Value>,
}

impl Message {
    /// `Ok(None)` is an answer of the client to a request that we never make.
    fn read(message: Value) -> Result<Option<Self>, Box<Outgoing>> {
        let nobody = Value::Null;
        let bad = |id: &Value, message: &str| Err(Box::new(Outgoing::bad(id, INVALID_REQUEST, message)));
        let Value::Object(mut message) = message else { return bad(&nobody, "a message is a JSON object") };
        let id = message.remove("id");
        if id.as_ref().is_some_and(|id| !(id.is_string() || id.is_i64() || id.is_u64())) {
            return bad(&nobody, "`id` has to be a string or an integer");
        }
        let shown = id.clone().unwrap_or(Value::Null);
        if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return bad(&shown, "`jsonrpc` has to be \"2.0\"");
        }
        let method = match message.remove("method") {
            Some(Value::String(method)) => method,
            None if message.contains_key("result") || message.contains_key("error") => return Ok(None),
            _ => return bad(&shown, "`method` has to be a string"),
        };
        let params = match message.remove("params") {
            None => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => return bad(&shown, "`params` has to be an object"),
        };
        Ok(Some(Self { method, id, params }))
    }

    fn meta(&self) -> Option<&Map<String, Value>> {
        self.params.get("_meta").and_then(Value::as_object)
    }
}

/// One HTTP request with its sender.
struct Sender<'a> {
    app: &'a Arc<App>,
    listing: &'a Listing,
    headers: &'a HeaderMap,
    caller: Option<Arc<Principal>>,
    deadline: Instant,
}

impl Sender<'_> {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap_or_default().trim())
    }

    async fn single(&self, message: Value) -> Outgoing {
        let message = match Message::read(message) {
            Ok(Some(message)) => message,
            Ok(None) => return Outgoing::accepted(),
            Err(refused) => return *refused,
        };
        let names_version = message.meta().is_some_and(|meta| meta.contains_key(META_VERSION));
        let is_stateless = names_version || (self.header(VERSION_HEADER) == Some(STATELESS) && message.method != "initialize");
        if is_stateless { self.stateless(message).await } else { self.legacy(message).await }
    }

    // -------- the stateless era

    async fn stateless(&self, message: Message) -> Outgoing {
        let id = message.id.clone().unwrap_or(Value::Null);
        if let Err(refused) = self.check_stateless(&message, &id) {
            return *refused;
        }
        if message.id.is_none() {
            return Outgoing::accepted();
        }
        match message.method.as_str() {
            "server/discover" => Outgoing::result(&id, &discovered()),
            "tools/list" => self.list(&id, &message, true).await,
            "tools/call" => self.call(&id, message, true).await,
            other => {
                let message = format!("there is no method `{}`", shown(other));
                Outgoing::error(StatusCode::NOT_FOUND, &id, METHOD_NOT_FOUND, message, None)
            }
        }
    }

    fn check_stateless(&self, message: &Message, id: &Value) -> Result<(), Box<Outgoing>> {
        let bad = |code: i64, text: String| Err(Box::new(Outgoing::bad(id, code, text)));
        let meta = message.meta();
        let Some(version) = meta.and_then(|meta| meta.get(META_VERSION)).and_then(Value::as_str) else {
            return bad(INVALID_PARAMS, format!("`_meta` needs `{META_VERSION}`, a string"));
        };
        match self.header(VERSION_HEADER) {
            Some(header) if header == version => {}
            Some(header) => {
                return bad(
                    HEADER_MISMATCH,
                    format!("the header `MCP-Protocol-Version` is `{}` and `_meta` says `{}`", shown(header), shown(version)),
                );
            }
            None => return bad(HEADER_MISMATCH, "the header `MCP-Protocol-Version` is missing".into()),
        }
        if version != STATELESS {
            let data = json!({ "supported": [STATELESS], "requested": shown(version) });
            let message = format!("protocol version `{}` is not supported; {STATELESS} is, and older ones by `initialize`", shown(version));
            return Err(Box::new(Outgoing::error(StatusCode::BAD_REQUEST, id, UNSUPPORTED_VERSION, message, Some(data))));
        }
        if !meta.and_then(|meta| meta.get(META_CAPABILITIES)).is_some_and(Value::is_object) {
            return bad(INVALID_PARAMS, format!("`_meta` needs `{META_CAPABILITIES}`, an object"));
        }
        match self.header("mcp-method").map(unwrapped) {
            Some(method) if method == message.method => {}
            Some(method) => {
                return bad(
                    HEADER_MISMATCH,
                    format!("the header `Mcp-Method` is `{}` and the method `{}`", shown(&method), shown(&message.method)),
                );
            }
            None => return bad(HEADER_MISMATCH, "the header `Mcp-Method` is missing".into()),
        }
        if message.method == "tools/call" {
            let name = message.params.get("name").and_then(Value::as_str).unwrap_or_default();
            match self.header("mcp-name").map(unwrapped) {
                Some(header) if header == name => {}
                Some(header) => {
                    return bad(HEADER_MISMATCH, format!("the header `Mcp-Name` is `{}` and the tool `{}`", shown(&header), shown(name)));
                }
                None => return bad(HEADER_MISMATCH, "the header `Mcp-Name` is missing".into()),
            }
        }
        Ok(())
    }

    // -------- the era of sessions

    async fn legacy(&self, message: Message) -> Outgoing {
        let id = message.id.clone().unwrap_or(Value::Null);
        if message.method == "initialize" {
            return match message.id {
                Some(id) => self.initialize(&id, &message.params),
                None => Outgoing::bad(&id, INVALID_REQUEST, "`initialize` needs an `id`"),
            };
        }
        match self.legacy_revision(&id) {
            Ok(_) => self.legacy_method(id, message).await,
            Err(refused) => *refused,
        }
    }

    async fn legacy_method(&self, id: Value, message: Message) -> Outgoing {
        if message.id.is_none() {
            return Outgoing::accepted();
        }
        match message.method.as_str() {
            "ping" => Outgoing::result(&id, "{}"),
            "tools/list" => self.list(&id, &message, false).await,
            "tools/call" => self.call(&id, message, false).await,
            other => Outgoing::error(StatusCode::OK, &id, METHOD_NOT_FOUND, format!("there is no method `{}`", shown(other)), None),
        }
    }

    /// The revision of a request after `initialize`: by header, else by session, else the one that needs neither.
    fn legacy_revision(&self, id: &Value) -> Result<String, Box<Outgoing>> {
        let mut revision = UNNAMED.to_string();
        if let Some(session) = self.header(SESSION_HEADER) {
            let known = self.app.services.sessions.read(session, now_unix_ms().0).filter(|known| known.is_of(self.caller.as_deref()));
            let Some(known) = known else {
                let message = "this session is unknown, over, or another caller's: initialize again, or send no session id";
                return Err(Box::new(Outgoing::error(StatusCode::NOT_FOUND, id, SESSION_NOT_FOUND, message, None)));
            };
            revision = known.protocol;
        }
        match self.header(VERSION_HEADER) {
            None => {}
            Some(version) if LEGACY.contains(&version) => revision = version.into(),
            Some(version) => {
                let mut supported = vec![STATELESS];
                supported.extend(LEGACY);
                let data = json!({ "supported": supported, "requested": shown(version) });
                let message = format!("protocol version `{}` is not supported", shown(version));
                return Err(Box::new(Outgoing::error(StatusCode::BAD_REQUEST, id, UNSUPPORTED_VERSION, message, Some(data))));
            }
        }
        Ok(revision)
    }

    fn initialize(&self, id: &Value, params: &Map<String, Value>) -> Outgoing {
        let Some(wanted) = params.get("protocolVersion").and_then(Value::as_str) else {
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, "`initialize` needs `protocolVersion`, a string", None);
        };
        let version = LEGACY.into_iter().find(|known| *known == wanted).unwrap_or(LEGACY[0]);
        let result = json!({
            "protocolVersion": version,
            "capabilities": { "tools": {} },
            "serverInfo": server_info(),
            "instructions": INSTRUCTIONS,
        });
        let session = self.app.services.sessions.issue(version, self.caller.as_deref(), now_unix_ms().0);
        Outgoing { session: Some(session), ..Outgoing::result(id, &result.to_string()) }
    }

    /// A batch: a thing of 2025-03-26 alone. Messages run one after the other, in their order.
    async fn batch(&self, messages: Vec<Value>) -> Outgoing {
        let nobody = Value::Null;
        match self.legacy_revision(&nobody) {
            Ok(revision) if revision == UNNAMED || revision == "2024-11-05" => {}
            Ok(revision) => {
                return Outgoing::bad(&nobody, INVALID_REQUEST, format!("{revision} has no batches: send one message a request"));
            }
            Err(refused) => return *refused,
        }
        if messages.is_empty() || messages.len() > BATCH_MAX {
            return Outgoing::bad(&nobody, INVALID_REQUEST, format!("a batch has 1 to {BATCH_MAX} messages, not {}", messages.len()));
        }
        let mut ids = HashSet::new();
        let mut answers = Vec::new();
        for message in messages {
            let answer = match Message::read(message) {
                Ok(None) => continue,
                Err(refused) => *refused,
                Ok(Some(message)) => {
                    let id = message.id.clone().unwrap_or(Value::Null);
                    if message.id.is_some() && !ids.insert(id.to_string()) {
                        Outgoing::bad(&id, INVALID_REQUEST, "the same `id` stands twice in this batch")
                    } else if message.method == "initialize" {
                        Outgoing::bad(&id, INVALID_REQUEST, "`initialize` can't be part of a batch")
                    } else {
                        self.legacy_method(id, message).await
                    }
                }
            };
            if !answer.body.is_empty() {
                answers.push(answer.body);
            }
        }
        if answers.is_empty() { Outgoing::accepted() } else { Outgoing::ok(format!("[{}]", answers.join(","))) }
    }

    // -------- tools

    async fn list(&self, id: &Value, message: &Message, stateless: bool) -> Outgoing {
        let entries = self.app.listed(&self.listing.tools).await;
        let start = match message.params.get("cursor") {
            None | Some(Value::Null) => Some(0),
            Some(cursor) => cursor.as_str().and_then(read_cursor).filter(|start| *start < entries.len()),
        };
        let Some(start) = start else {
            return Outgoing::error(
                StatusCode::OK,
                id,
                INVALID_PARAMS,
                "this `cursor` is none of ours: list from the start, without one",
                None,
            );
        };
        let page = entries.iter().skip(start).take(TOOLS_PAGE);
        let tools: Vec<&str> = page.map(|entry| entry.listed.as_str()).collect();
        let mut result = format!("{{\"tools\":[{}]", tools.join(","));
        if start + TOOLS_PAGE < entries.len() {
            result.push_str(&format!(",\"nextCursor\":\"{}\"", write_cursor(start + TOOLS_PAGE)));
        }
        if stateless {
            result.push_str(&format!(",\"resultType\":\"complete\",\"ttlMs\":{TOOLS_TTL_MS},\"cacheScope\":\"public\""));
        }
        result.push('}');
        Outgoing::result(id, &result)
    }

    async fn call(&self, id: &Value, mut message: Message, stateless: bool) -> Outgoing {
        let Some(name) = message.params.get("name").and_then(Value::as_str) else {
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, "`tools/call` needs `name`, a string", None);
        };
        // Any tool of the catalog can be called; an address only decides what is listed.
        let Some(entry) = self.app.tools.find(name).cloned() else {
            let message = format!("unknown tool: `{}`; `tools/list` shows the names, and `find_tools` more of them", shown(name));
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, message, None);
        };
        let by_meta = message.meta().and_then(|meta| meta.get(META_KEY)).and_then(Value::as_str).map(String::from);
        let arguments = match message.params.remove("arguments") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(arguments) => arguments,
        };
        let ctx = CallContext {
            caller: self.caller.clone(),
            idempotency_key: by_meta.or_else(|| idempotency_key(self.headers)),
            fencing_token: None,
            deadline: self.deadline,
            services: self.app.services.clone(),
        };
        match self.app.call(&entry, arguments, ctx).await {
            Ok(answer) => Outgoing::result(id, &succeeded(&answer, stateless)),
            Err(error @ CallError::Unauthenticated) => {
                let refused = Outgoing::error(StatusCode::UNAUTHORIZED, id, UNAUTHENTICATED, error.text(), Some(error.facts()));
                Outgoing { bad_token: Some(false), ..refused }
            }
            Err(error) => Outgoing::result(id, &failed(&error, stateless)),
        }
    }
}

/// `structuredContent`, and the same facts as text for clients that show the model only that.
fn succeeded(answer: &Answer, stateless: bool) -> String {
    let facts = &answer.facts;
    let text = Value::from(facts.as_str());
    let mut result = format!("{{\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"structuredContent\":{facts}");
    if let Some(revision) = answer.revision {
        result.push_str(&format!(",\"_meta\":{{\"{META_REVISION}\":{revision}}}"));
    }
    finish(result, stateless)
}

fn failed(error: &CallError, stateless: bool) -> String {
    let text = Value::from(error.text());
    let result =
        format!("{{\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"isError\":true,\"_meta\":{{\"{META_ERROR}\":{}}}", error.facts());
    finish(result, stateless)
}

fn finish(mut result: String, stateless: bool) -> String {
    if stateless {
        result.push_str(",\"resultType\":\"complete\"");
    }
    result.push('}');
    result
}

fn server_info() -> Value {
    json!({ "name": "quorate", "title": "Quorate", "version": env!("CARGO_PKG_VERSION") })
}

fn discovered() -> String {
    json!({
        "resultType": "complete",
        "supportedVersions": [STATELESS],
        "capabilities": { "tools": {} },
        "instructions": INSTRUCTIONS,
        "ttlMs": TOOLS_TTL_MS,
        "cacheScope": "public",
        "_meta": { META_SERVER: server_info() },
    })
    .to_string()
}

/// The header `Idempotency-Key`, in quotes (as its draft standard writes it) or without.
pub fn idempotency_key(headers: &HeaderMap) -> Option<String> {
    let key = headers.get("idempotency-key")?.to_str().ok()?.trim();
    let unquoted = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key);
    Some(unquoted.to_string())
}

/// A header value that may be written as `=?base64?...?=`.
fn unwrapped(header: &str) -> String {
    let encoded = header.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let decoded = encoded.and_then(|encoded| STANDARD.decode(encoded).ok()).and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.unwrap_or_else(|| header.into())
}

fn write_cursor(start: usize) -> String {
    URL_SAFE_NO_PAD.encode(format!("tools:{start}"))
}

fn read_cursor(cursor: &str) -> Option<usize> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    text.strip_prefix("tools:")?.parse().ok()
}
