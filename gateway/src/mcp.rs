//! The MCP endpoint: JSON-RPC in, JSON out, both eras at one address; server-sent events only where a call has something to
//! say before it is done, and for changes.
//!
//! A request with a protocol version in its `_meta` is of the stateless era (2026-07-28) and stands for itself. Any other is
//! of the era of sessions (2024-11-05 to 2025-11-25); its session id, if it has one, is checked and never looked up. Nothing
//! depends on earlier requests, so any gateway answers any request.

pub mod client;
pub mod live;
pub mod old_sse;
pub mod prompts;
pub mod resources;
mod streams;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use quorate_domain::Principal;
use quorate_domain::client::{ClientSessionChange, ClientSessionKept};
use quorate_domain::refusal::shown;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::auth::Credential;
use crate::call::{CallContext, CallError};
use crate::cluster::now_unix_ms;
use crate::edge;
use crate::http;
use crate::limit::{BATCH_MAX, COMPLETIONS_MAX, LIST_PAGE, LIST_TTL_MS, REQUEST_STATE_MS_MAX};
use crate::registry::{Answer, Catalog, Entry};
use crate::server::App;
use crate::session::SessionId;
use crate::traces::Tags;
use client::{Answers, Client, Level, Needed, Said};
use live::Live;
use prompts::Prompt;
use resources::Library;

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
const RESOURCE_NOT_FOUND: i64 = -32002;
const HEADER_MISMATCH: i64 = -32020;
const UNSUPPORTED_VERSION: i64 = -32022;

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";
const META_REVISION: &str = "io.quorate/revision";
const META_ERROR: &str = "io.quorate/error";
const META_KEY: &str = "io.quorate/idempotency-key";
const META_TURN: &str = "io.quorate/turn-id";
const META_SESSION: &str = "io.quorate/session-id";
const META_LEVEL: &str = "io.modelcontextprotocol/logLevel";
const META_SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";

pub const INSTRUCTIONS: &str = "Quorate is the shared memory and coordination of a team of agents. Look first with `query_facts`; store what others \
should know with `store_fact`. Before you edit a file, `punch_in` on it, renew while you work, and `punch_out` when you are done. Ask with \
`approval_request` before you do something risky. A refusal says who holds what, and what to do next.";

/// A list that is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListChange {
    Tools,
    Prompts,
}

impl ListChange {
    const ALL: [ListChange; 2] = [ListChange::Tools, ListChange::Prompts];

    /// As `subscriptions/listen` asks for it.
    fn filter(self) -> &'static str {
        match self {
            ListChange::Tools => "toolsListChanged",
            ListChange::Prompts => "promptsListChanged",
        }
    }

    fn method(self) -> &'static str {
        match self {
            ListChange::Tools => "notifications/tools/list_changed",
            ListChange::Prompts => "notifications/prompts/list_changed",
        }
    }
}

/// What one address serves.
pub struct Listing {
    /// What it lists, in short or in full.
    pub tools: Catalog,
    pub is_short: bool,
    /// Whether a flag and the caller's intent may narrow the list.
    pub is_shaped: bool,
    /// What can be called: an address only decides what is listed.
    pub callable: Catalog,
    pub library: Arc<Library>,
    pub prompts: Arc<Vec<Prompt>>,
    /// Whose a request without a token is; `None` but for the fixtures of the conformance suite.
    pub anonymous: Option<Arc<Principal>>,
    /// Whether the lists can change while the gateway runs.
    pub lists_change: bool,
}

impl Listing {
    /// The same address with a shorter list of tools.
    pub fn only(&self, tools: Catalog) -> Self {
        let (callable, library, prompts, anonymous) =
            (self.callable.clone(), self.library.clone(), self.prompts.clone(), self.anonymous.clone());
        let Self { is_short, is_shaped, lists_change, .. } = *self;
        Self { tools, is_short, is_shaped, callable, library, prompts, anonymous, lists_change }
    }

    fn capabilities(&self, stateless: bool) -> Value {
        let mut capabilities = json!({
            "tools": {},
            "prompts": {},
            "resources": { "subscribe": true },
            "completions": {},
        });
        if self.lists_change {
            capabilities["tools"]["listChanged"] = true.into();
            capabilities["prompts"]["listChanged"] = true.into();
        }
        if !stateless {
            capabilities["logging"] = json!({});
        }
        capabilities
    }
}

/// One message's answer on its way out.
struct Outgoing {
    status: StatusCode,
    /// Empty: nothing to say (a notification).
    body: String,
    session: Option<String>,
    bad_token: Option<bool>,
    retry_after_ms: Option<u64>,
    /// Goes out in place of the body.
    stream: Option<Box<Response<Body>>>,
}

impl Outgoing {
    fn ok(body: String) -> Self {
        Self { status: StatusCode::OK, body, session: None, bad_token: None, retry_after_ms: None, stream: None }
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

    fn stream(response: Response<Body>) -> Self {
        Self { stream: Some(Box::new(response)), ..Self::ok(String::new()) }
    }

    fn into_response(self) -> Response<Body> {
        let mut response = if let Some(stream) = self.stream {
            *stream
        } else if self.body.is_empty() {
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
pub async fn post(app: &Arc<App>, listing: &Arc<Listing>, request: Request<Body>) -> Response<Body> {
    answer(app, listing, request).await.into_response()
}

/// A GET: the stream of a session, for what happens outside of its calls, or the rest of a call's stream.
pub async fn get(app: &Arc<App>, listing: &Arc<Listing>, headers: &HeaderMap) -> Response<Body> {
    let deadline = Instant::now() + app.settings.call_deadline;
    match with_session(app, listing, headers, deadline).await {
        Ok(Some((caller, session, protocol))) => {
            let here = streams::Here { app: app.clone(), listing: listing.clone(), caller, headers: headers.clone() };
            streams::resume_or_begin(here, session, &protocol, deadline).await.into_response()
        }
        Ok(None) => method_not_allowed("POST"),
        Err(refused) => refused.into_response(),
    }
}

/// A DELETE: the client is done with its session.
pub async fn delete(app: &Arc<App>, listing: &Arc<Listing>, headers: &HeaderMap) -> Response<Body> {
    let deadline = Instant::now() + app.settings.call_deadline;
    let (caller, session, _) = match with_session(app, listing, headers, deadline).await {
        Ok(Some(found)) => found,
        Ok(None) => return method_not_allowed("POST"),
        Err(refused) => return refused.into_response(),
    };
    let ctx = CallContext::new(Some(caller), deadline, app.services.clone());
    match app.services.sessions.change(&app.cluster, &ctx, &session, ClientSessionChange::End).await {
        Ok(()) => Outgoing { status: StatusCode::NO_CONTENT, ..Outgoing::accepted() }.into_response(),
        Err(error) => crate::http::refusal(&error),
    }
}

/// The caller of a request that is about a session, its session and the revision it speaks; `None` without a session, without
/// a caller, and in the era that has no sessions.
async fn with_session(
    app: &Arc<App>,
    listing: &Arc<Listing>,
    headers: &HeaderMap,
    deadline: Instant,
) -> Result<Option<(Arc<Principal>, SessionId, String)>, Outgoing> {
    let caller = identify(app, listing, headers, deadline).await?;
    let sender = Sender { app, listing, headers, caller, deadline };
    if sender.header(VERSION_HEADER) == Some(STATELESS) {
        return Ok(None);
    }
    let legacy = sender.legacy_era(&Value::Null).await.map_err(|refused| *refused)?;
    Ok(match (sender.caller, legacy.session) {
        (Some(caller), Some(session)) => Some((caller, session, legacy.protocol)),
        _ => None,
    })
}

fn method_not_allowed(allowed: &'static str) -> Response<Body> {
    let message = "without a session this address takes POST only";
    let facts = json!({ "code": "METHOD_NOT_ALLOWED", "message": message });
    let mut response = edge::problem(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", facts);
    response.headers_mut().insert(axum::http::header::ALLOW, HeaderValue::from_static(allowed));
    response
}

async fn answer(app: &Arc<App>, listing: &Arc<Listing>, request: Request<Body>) -> Outgoing {
    let nobody = Value::Null;
    let (parts, body) = request.into_parts();
    let headers = parts.headers;
    let body = match edge::read_body(body, app.settings.patience.body).await {
        Ok(body) => body,
        Err(error) => return unread(&error),
    };
    if !edge::is_json(&headers) {
        return Outgoing::error(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            &nobody,
            INVALID_REQUEST,
            "send `Content-Type: application/json`, in UTF-8",
            None,
        );
    }
    let deadline = Instant::now() + app.settings.call_deadline;
    let caller = match identify(app, listing, &headers, deadline).await {
        Ok(caller) => caller,
        Err(refused) => return refused,
    };
    let message = match crate::json::parse(&body) {
        Ok(message) => message,
        Err(problem) => return Outgoing::bad(&nobody, PARSE_ERROR, problem),
    };
    let sender = Sender { app, listing, headers: &headers, caller, deadline };
    match message {
        Value::Array(messages) => sender.batch(messages).await,
        message => sender.single(message).await,
    }
}

fn unread(error: &edge::BodyError) -> Outgoing {
    Outgoing::error(error.status(), &Value::Null, INVALID_REQUEST, format!("{error}. Nothing was written."), None)
}

/// Who sends, or why the request ends here.
async fn identify(
    app: &Arc<App>,
    listing: &Arc<Listing>,
    headers: &HeaderMap,
    deadline: Instant,
) -> Result<Option<Arc<Principal>>, Outgoing> {
    let refused = |message: &str| {
        let refused =
            Outgoing::error(StatusCode::UNAUTHORIZED, &Value::Null, UNAUTHENTICATED, message, Some(json!({ "code": "UNAUTHENTICATED" })));
        Err(Outgoing { bad_token: Some(true), ..refused })
    };
    match Credential::of(headers) {
        Credential::None => Ok(listing.anonymous.clone()),
        Credential::Malformed => refused("the `Authorization` header is no bearer token"),
        Credential::Bearer(token) => match app.tokens.resolve(&app.cluster, &token, deadline).await {
            Ok(Some(principal)) => {
                app.services.meter.saw(&principal);
                Ok(Some(principal))
            }
            Ok(None) => refused("the token is unknown, expired or revoked; ask an operator for a new one"),
            Err(error) => {
                let refused =
                    Outgoing::error(StatusCode::SERVICE_UNAVAILABLE, &Value::Null, UNAVAILABLE, error.text(), Some(error.facts()));
                Err(Outgoing { retry_after_ms: error.retry_after_ms(), ..refused })
            }
        },
    }
}

/// A client's answer to a question of a running call.
struct Reply {
    id: String,
    answer: Result<Value, String>,
}

/// What came in one message.
enum Incoming {
    Message(Message),
    Reply(Reply),
}

/// A JSON-RPC message that has the right shape.
struct Message {
    method: String,
    /// `None` for a notification.
    id: Option<Value>,
    params: Map<String, Value>,
}

impl Message {
    fn read(message: Value) -> Result<Incoming, Box<Outgoing>> {
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
            None if message.contains_key("result") || message.contains_key("error") => {
                let answer = match (message.remove("result"), &message.get("error")) {
                    (Some(result), _) => Ok(result),
                    (None, error) => {
                        let told = error.and_then(|error| error["message"].as_str()).unwrap_or("an error without a message");
                        Err(format!("it answered with an error: {}", self::shown(told)))
                    }
                };
                let id = id.as_ref().and_then(Value::as_str).unwrap_or_default().into();
                return Ok(Incoming::Reply(Reply { id, answer }));
            }
            _ => return bad(&shown, "`method` has to be a string"),
        };
        let params = match message.remove("params") {
            None => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => return bad(&shown, "`params` has to be an object"),
        };
        Ok(Incoming::Message(Self { method, id, params }))
    }

    fn meta(&self) -> Option<&Map<String, Value>> {
        self.params.get("_meta").and_then(Value::as_object)
    }
}

/// How a request is to be understood.
enum Era {
    Stateless,
    Legacy(Legacy),
}

struct Legacy {
    protocol: String,
    session: Option<SessionId>,
    kept: Arc<ClientSessionKept>,
}

impl Era {
    fn is_stateless(&self) -> bool {
        matches!(self, Era::Stateless)
    }

    /// The name of the session, for what this gateway holds of its calls.
    fn owner(&self) -> Option<String> {
        match self {
            Era::Legacy(Legacy { session: Some(session), .. }) => Some(session.name()),
            _ => None,
        }
    }
}

/// One HTTP request with its sender.
struct Sender<'a> {
    app: &'a Arc<App>,
    listing: &'a Arc<Listing>,
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
            Ok(Incoming::Message(message)) => message,
            Ok(Incoming::Reply(reply)) => return self.reply(reply).await,
            Err(refused) => return *refused,
        };
        let names_version = message.meta().is_some_and(|meta| meta.contains_key(META_VERSION));
        let is_stateless = names_version || (self.header(VERSION_HEADER) == Some(STATELESS) && message.method != "initialize");
        if is_stateless { self.stateless(message).await } else { self.legacy(message).await }
    }

    /// Hands a client's answer to the call that asked.
    async fn reply(&self, reply: Reply) -> Outgoing {
        match self.legacy_era(&Value::Null).await {
            Err(refused) => *refused,
            Ok(legacy) => {
                if let Some(owner) = Era::Legacy(legacy).owner() {
                    self.app.live.answer(&owner, &reply.id, reply.answer);
                }
                Outgoing::accepted()
            }
        }
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
        let era = Era::Stateless;
        match message.method.as_str() {
            "server/discover" => Outgoing::result(&id, &self.discovered()),
            "subscriptions/listen" => self.listen(&id, &message).await,
            _ => match self.common(&era, &id, message, true).await {
                Ok(answer) => answer,
                Err(other) => {
                    let message = format!("there is no method `{}`", shown(&other));
                    Outgoing::error(StatusCode::NOT_FOUND, &id, METHOD_NOT_FOUND, message, None)
                }
            },
        }
    }

    fn discovered(&self) -> String {
        json!({
            "resultType": "complete",
            "supportedVersions": [STATELESS],
            "capabilities": self.listing.capabilities(true),
            "instructions": INSTRUCTIONS,
            "ttlMs": LIST_TTL_MS,
            "cacheScope": "public",
            "_meta": { META_SERVER: server_info() },
        })
        .to_string()
    }

    async fn listen(&self, id: &Value, message: &Message) -> Outgoing {
        let Some(caller) = self.caller.clone() else { return unauthenticated(id, &CallError::Unauthenticated) };
        let Some(Value::Object(wanted)) = message.params.get("notifications") else {
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, "`subscriptions/listen` needs `notifications`, an object", None);
        };
        let here = streams::Here { app: self.app.clone(), listing: self.listing.clone(), caller, headers: self.headers.clone() };
        streams::listen(here, id, wanted, self.deadline).await
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
        let named = match message.method.as_str() {
            "tools/call" => Some(("tool", "name")),
            "prompts/get" => Some(("prompt", "name")),
            "resources/read" => Some(("resource", "uri")),
            _ => None,
        };
        if let Some((what, field)) = named {
            let name = message.params.get(field).and_then(Value::as_str).unwrap_or_default();
            match self.header("mcp-name").map(unwrapped) {
                Some(header) if header == name => {}
                Some(header) => {
                    return bad(HEADER_MISMATCH, format!("the header `Mcp-Name` is `{}` and the {what} `{}`", shown(&header), shown(name)));
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
        match self.legacy_era(&id).await {
            Ok(legacy) => self.legacy_method(&Era::Legacy(legacy), id, message, true).await,
            Err(refused) => *refused,
        }
    }

    /// `may_stream` is false inside of a batch, whose answers go out together.
    async fn legacy_method(&self, era: &Era, id: Value, message: Message, may_stream: bool) -> Outgoing {
        if message.id.is_none() {
            if let ("notifications/cancelled", Some(owner), Some(request)) =
                (message.method.as_str(), era.owner(), message.params.get("requestId"))
            {
                self.app.live.cancel(&call_name(&owner, request));
            }
            return Outgoing::accepted();
        }
        match message.method.as_str() {
            "ping" => Outgoing::result(&id, "{}"),
            "logging/setLevel" => match message.params.get("level").and_then(Value::as_str).and_then(Level::parse) {
                Some(level) => self.change_session(era, &id, ClientSessionChange::SetLevel(level.word().into())).await,
                None => {
                    let message =
                        "`logging/setLevel` needs `level`, one of debug, info, notice, warning, error, critical, alert, emergency";
                    Outgoing::error(StatusCode::OK, &id, INVALID_PARAMS, message, None)
                }
            },
            "resources/subscribe" | "resources/unsubscribe" => {
                let Some(uri) = message.params.get("uri").and_then(Value::as_str) else {
                    let problem = format!("`{}` needs `uri`, a string", message.method);
                    return Outgoing::error(StatusCode::OK, &id, INVALID_PARAMS, problem, None);
                };
                if message.method == "resources/unsubscribe" {
                    return self.change_session(era, &id, ClientSessionChange::Unsubscribe(uri.into())).await;
                }
                match self.listing.library.watch(self.app, &self.context(Client::silent()), uri) {
                    Ok(_) => self.change_session(era, &id, ClientSessionChange::Subscribe(uri.into())).await,
                    Err(error) => self.failed_request(era, &id, &error, uri),
                }
            }
            _ => match self.common(era, &id, message, may_stream).await {
                Ok(answer) => answer,
                Err(other) => {
                    Outgoing::error(StatusCode::OK, &id, METHOD_NOT_FOUND, format!("there is no method `{}`", shown(&other)), None)
                }
            },
        }
    }

    /// Remembers something of the session.
    async fn change_session(&self, era: &Era, id: &Value, change: ClientSessionChange) -> Outgoing {
        let Era::Legacy(Legacy { session: Some(session), .. }) = era else {
            let message = "this needs a session: initialize, and send its id as `Mcp-Session-Id`";
            return Outgoing::error(StatusCode::OK, id, INVALID_REQUEST, message, None);
        };
        match self.app.services.sessions.change(&self.app.cluster, &self.context(Client::silent()), session, change).await {
            Ok(()) => Outgoing::result(id, "{}"),
            Err(error) => self.failed_request(era, id, &error, ""),
        }
    }

    /// What a request after `initialize` is of: its revision by header, else by session, else the one that needs neither.
    async fn legacy_era(&self, id: &Value) -> Result<Legacy, Box<Outgoing>> {
        let mut legacy = Legacy { protocol: UNNAMED.into(), session: None, kept: Arc::default() };
        if let Some(session) = self.header(SESSION_HEADER) {
            let sessions = &self.app.services.sessions;
            let known = sessions.read(session, now_unix_ms().0).filter(|known| known.is_of(self.caller.as_deref()));
            if let (Some(known), Some(caller)) = (&known, &self.caller) {
                legacy.kept = sessions.kept(&self.app.cluster, caller, known, self.deadline).await;
            }
            let Some(known) = known.filter(|_| !legacy.kept.ended) else {
                let message = "this session is unknown, over, or another caller's: initialize again, or send no session id";
                return Err(Box::new(Outgoing::error(StatusCode::NOT_FOUND, id, SESSION_NOT_FOUND, message, None)));
            };
            legacy.protocol = known.protocol.clone();
            legacy.session = Some(known);
        }
        match self.header(VERSION_HEADER) {
            None => {}
            Some(version) if LEGACY.contains(&version) => legacy.protocol = version.into(),
            Some(version) => {
                let mut supported = vec![STATELESS];
                supported.extend(LEGACY);
                let data = json!({ "supported": supported, "requested": shown(version) });
                let message = format!("protocol version `{}` is not supported", shown(version));
                return Err(Box::new(Outgoing::error(StatusCode::BAD_REQUEST, id, UNSUPPORTED_VERSION, message, Some(data))));
            }
        }
        Ok(legacy)
    }

    fn initialize(&self, id: &Value, params: &Map<String, Value>) -> Outgoing {
        let Some(wanted) = params.get("protocolVersion").and_then(Value::as_str) else {
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, "`initialize` needs `protocolVersion`, a string", None);
        };
        let version = LEGACY.into_iter().find(|known| *known == wanted).unwrap_or(LEGACY[0]);
        let result = json!({
            "protocolVersion": version,
            "capabilities": self.listing.capabilities(false),
            "serverInfo": server_info(),
            "instructions": INSTRUCTIONS,
        });
        let declared = params.get("capabilities").and_then(Value::as_object);
        let asked_for = ["elicitation", "sampling", "roots"].into_iter().filter(|name| declared.is_some_and(|all| all.contains_key(*name)));
        let asked_for = asked_for.map(String::from).collect();
        let session = self.app.services.sessions.issue(version, self.caller.as_deref(), asked_for, now_unix_ms().0);
        Outgoing { session: Some(session), ..Outgoing::result(id, &result.to_string()) }
    }

    /// A batch: a thing of 2025-03-26 alone. Messages run one after the other, in their order.
    async fn batch(&self, messages: Vec<Value>) -> Outgoing {
        let nobody = Value::Null;
        let era = match self.legacy_era(&nobody).await {
            Ok(legacy) if legacy.protocol == UNNAMED || legacy.protocol == "2024-11-05" => Era::Legacy(legacy),
            Ok(Legacy { protocol, .. }) => {
                return Outgoing::bad(&nobody, INVALID_REQUEST, format!("{protocol} has no batches: send one message a request"));
            }
            Err(refused) => return *refused,
        };
        if messages.is_empty() || messages.len() > BATCH_MAX {
            return Outgoing::bad(&nobody, INVALID_REQUEST, format!("a batch has 1 to {BATCH_MAX} messages, not {}", messages.len()));
        }
        let mut ids = HashSet::new();
        let mut answers = Vec::new();
        for message in messages {
            let answer = match Message::read(message) {
                Ok(Incoming::Reply(reply)) => {
                    if let Some(owner) = era.owner() {
                        self.app.live.answer(&owner, &reply.id, reply.answer);
                    }
                    continue;
                }
                Err(refused) => *refused,
                Ok(Incoming::Message(message)) => {
                    let id = message.id.clone().unwrap_or(Value::Null);
                    if message.id.is_some() && !ids.insert(id.to_string()) {
                        Outgoing::bad(&id, INVALID_REQUEST, "the same `id` stands twice in this batch")
                    } else if message.method == "initialize" {
                        Outgoing::bad(&id, INVALID_REQUEST, "`initialize` can't be part of a batch")
                    } else {
                        self.legacy_method(&era, id, message, false).await
                    }
                }
            };
            if !answer.body.is_empty() {
                answers.push(answer.body);
            }
        }
        if answers.is_empty() { Outgoing::accepted() } else { Outgoing::ok(format!("[{}]", answers.join(","))) }
    }

    // -------- what both eras have

    /// `Err` is a method that there is not.
    async fn common(&self, era: &Era, id: &Value, message: Message, may_stream: bool) -> Result<Outgoing, String> {
        let pages = |name, of: &str, rows: &[String]| list(era, id, name, of, rows, &message, "public");
        let listing = self.listing;
        Ok(match message.method.as_str() {
            "tools/list" => {
                let (entries, is_own) = self.app.listed(listing, self.caller.as_deref()).await;
                let tools: Vec<&String> =
                    entries.iter().map(|entry| if listing.is_short { &entry.listed_short } else { &entry.listed }).collect();
                list(era, id, "tools", "tools", &tools, &message, if is_own { "private" } else { "public" })
            }
            "prompts/list" => {
                pages("prompts", "prompts", &listing.prompts.iter().map(|prompt| prompt.listed().to_string()).collect::<Vec<_>>())
            }
            "resources/list" => pages("resources", "resources", &listing.library.listed()),
            "resources/templates/list" => pages("resourceTemplates", "templates", &listing.library.templates_listed()),
            "tools/call" => self.call(era, id, message, may_stream).await,
            "prompts/get" => self.get_prompt(era, id, &message).await,
            "resources/read" => self.read_resource(era, id, &message).await,
            "completion/complete" => self.complete(era, id, &message).await,
            _ => return Err(message.method),
        })
    }

    fn context(&self, client: Client) -> CallContext {
        CallContext { client: Arc::new(client), ..CallContext::new(self.caller.clone(), self.deadline, self.app.services.clone()) }
    }

    /// The client as a call sees it.
    fn client(&self, era: &Era, id: &Value, message: &Message, purpose: &str) -> Result<Client, Box<Outgoing>> {
        let meta = message.meta();
        let mut client = Client::silent();
        client.progress_token =
            meta.and_then(|meta| meta.get("progressToken")).filter(|token| token.is_string() || token.is_number()).cloned();
        match era {
            Era::Stateless => {
                let wrong = |problem: &str| Box::new(Outgoing::error(StatusCode::BAD_REQUEST, id, INVALID_PARAMS, problem, None));
                client.declared = meta.and_then(|meta| meta.get(META_CAPABILITIES)).and_then(Value::as_object).cloned().unwrap_or_default();
                client.level = meta.and_then(|meta| meta.get(META_LEVEL)).and_then(Value::as_str).and_then(Level::parse);
                let answers = match message.params.get("inputResponses") {
                    None => Map::new(),
                    Some(Value::Object(answers)) => answers.clone(),
                    Some(_) => return Err(wrong("`inputResponses` has to be an object")),
                };
                let state = match message.params.get("requestState") {
                    None => None,
                    Some(sealed) => {
                        let opened = sealed.as_str().and_then(|sealed| self.app.services.sessions.unseal(purpose, sealed, now_unix_ms().0));
                        Some(opened.ok_or_else(|| wrong("this `requestState` is not of this call, or too old: begin the call anew"))?)
                    }
                };
                client.answers = Answers::Given { answers, state };
            }
            Era::Legacy(legacy) => {
                if let Some(session) = &legacy.session {
                    client.declared = session.capabilities.iter().map(|name| (name.clone(), json!({}))).collect();
                    client.answers = Answers::Live { live: self.app.live.clone(), owner: session.name() };
                }
                client.level = Some(legacy.kept.level.as_deref().and_then(Level::parse).unwrap_or(Level::Info));
            }
        }
        Ok(client)
    }

    /// Who asks for what: a state that was given for it is taken for nothing else.
    fn purpose(&self, message: &Message) -> String {
        let caller = self.caller.as_deref().map(|caller| [caller.tenant.as_str(), caller.passport.as_str()]);
        let asked = ["name", "uri", "arguments"].map(|field| message.params.get(field));
        json!([caller, message.method, asked]).to_string()
    }

    async fn call(&self, era: &Era, id: &Value, mut message: Message, may_stream: bool) -> Outgoing {
        let Some(name) = message.params.get("name").and_then(Value::as_str) else {
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, "`tools/call` needs `name`, a string", None);
        };
        // Any tool of the catalog can be called; an address only decides what is listed.
        let Some(entry) = self.listing.callable.find(name).cloned() else {
            let message = format!("unknown tool: `{}`; `tools/list` shows the names, and `find_tools` more of them", shown(name));
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, message, None);
        };
        if era.is_stateless()
            && let Err(refused) = self.check_mirrored(&entry, id, &message)
        {
            return *refused;
        }
        let purpose = self.purpose(&message);
        let mut client = match self.client(era, id, &message, &purpose) {
            Ok(client) => client,
            Err(refused) => return *refused,
        };
        let said = (may_stream && self.takes_streams()).then(|| client.listen());
        let by_meta = |name: &str| message.meta().and_then(|meta| meta.get(name)).and_then(Value::as_str).map(String::from);
        let (key, beside) = (by_meta(META_KEY), http::tags(self.headers));
        let tags = Tags { turn_id: by_meta(META_TURN).or(beside.turn_id), session_id: by_meta(META_SESSION).or(beside.session_id) };
        let arguments = match message.params.remove("arguments") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(arguments) => arguments,
        };
        let ctx = CallContext { idempotency_key: key.or_else(|| idempotency_key(self.headers)), tags, ..self.context(client) };
        let (app, id_of, stateless) = (self.app.clone(), id.clone(), era.is_stateless());
        let running = async move {
            match app.call(&entry, arguments, ctx).await {
                Ok(answer) => Outgoing::result(&id_of, &succeeded(&answer, stateless)),
                Err(error @ CallError::Unauthenticated) => unauthenticated(&id_of, &error),
                Err(CallError::InputRequired(needed)) => input_required(&app, &id_of, &needed, &purpose),
                Err(error @ CallError::MissingCapability { .. }) if stateless => missing_capability(&id_of, &error),
                Err(error) => Outgoing::result(&id_of, &failed(&error, stateless)),
            }
        };
        streams::run(&self.app.live, era, id, running, said).await
    }

    fn takes_streams(&self) -> bool {
        self.header("accept").is_some_and(|accept| accept.contains("text/event-stream"))
    }

    /// Arguments that the schema mirrors in headers have to be the same in both.
    fn check_mirrored(&self, entry: &Entry, id: &Value, message: &Message) -> Result<(), Box<Outgoing>> {
        for (argument, header) in &entry.mirrored {
            let given = message.params.get("arguments").and_then(|arguments| arguments.get(argument)).filter(|value| !value.is_null());
            let given = given.map(|value| value.as_str().map_or_else(|| value.to_string(), String::from));
            if self.header(header).map(unwrapped) != given {
                let problem = format!("the header `{header}` and the argument `{argument}` differ");
                return Err(Box::new(Outgoing::bad(id, HEADER_MISMATCH, problem)));
            }
        }
        Ok(())
    }

    async fn get_prompt(&self, era: &Era, id: &Value, message: &Message) -> Outgoing {
        let Some(name) = message.params.get("name").and_then(Value::as_str) else {
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, "`prompts/get` needs `name`, a string", None);
        };
        let purpose = self.purpose(message);
        let client = match self.client(era, id, message, &purpose) {
            Ok(client) => client,
            Err(refused) => return *refused,
        };
        let rendered = async {
            let prompt = prompts::find(&self.listing.prompts, name)?;
            let messages = prompt.render(self.app, &self.context(client), message.params.get("arguments")).await?;
            Ok(json!({ "description": prompt.description, "messages": messages }))
        };
        match rendered.await {
            Ok(result) => complete(era, id, result, false),
            Err(CallError::InputRequired(needed)) => input_required(self.app, id, &needed, &purpose),
            Err(error) => self.failed_request(era, id, &error, name),
        }
    }

    async fn read_resource(&self, era: &Era, id: &Value, message: &Message) -> Outgoing {
        let Some(uri) = message.params.get("uri").and_then(Value::as_str) else {
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, "`resources/read` needs `uri`, a string", None);
        };
        match self.listing.library.read(self.app, &self.context(Client::silent()), uri).await {
            Ok(contents) => complete(era, id, json!({ "contents": [contents] }), true),
            Err(error) => self.failed_request(era, id, &error, uri),
        }
    }

    async fn complete(&self, era: &Era, id: &Value, message: &Message) -> Outgoing {
        let text = |of: &str, field: &str| message.params.get(of).and_then(|of| of.get(field)).and_then(Value::as_str);
        let (Some(argument), Some(start)) = (text("argument", "name"), text("argument", "value")) else {
            let problem = "`completion/complete` needs `argument`, with `name` and `value`";
            return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, problem, None);
        };
        let ctx = self.context(Client::silent());
        let found = match (text("ref", "type"), text("ref", "name"), text("ref", "uri")) {
            (Some("ref/prompt"), Some(name), _) => self.complete_prompt(&ctx, name, argument, start).await,
            (Some("ref/resource"), _, Some(uri)) => self.listing.library.complete(self.app, &ctx, uri, start).await,
            _ => {
                let problem = "`ref` is a `ref/prompt` with `name`, or a `ref/resource` with `uri`";
                return Outgoing::error(StatusCode::OK, id, INVALID_PARAMS, problem, None);
            }
        };
        match found {
            Ok(mut values) => {
                let more = values.len() > COMPLETIONS_MAX;
                values.truncate(COMPLETIONS_MAX);
                complete(era, id, json!({ "completion": { "values": values, "hasMore": more } }), false)
            }
            Err(error) => self.failed_request(era, id, &error, argument),
        }
    }

    async fn complete_prompt(&self, ctx: &CallContext, name: &str, argument: &str, start: &str) -> Result<Vec<String>, CallError> {
        let prompt = prompts::find(&self.listing.prompts, name)?;
        let known = prompt.arguments.iter().find(|known| known.name == argument);
        match known.and_then(|known| known.completed_by.as_ref()) {
            Some(completion) => resources::complete(self.app, ctx, completion, start).await,
            None => Ok(Vec::new()),
        }
    }

    /// An error of a request that is no call of a tool.
    fn failed_request(&self, era: &Era, id: &Value, error: &CallError, asked: &str) -> Outgoing {
        let code = match error {
            CallError::Unauthenticated => return unauthenticated(id, error),
            CallError::MissingCapability { .. } if era.is_stateless() => return missing_capability(id, error),
            CallError::Refused(_) if resources::is_not_found(error) && asked.contains("://") && !era.is_stateless() => RESOURCE_NOT_FOUND,
            _ => error.code().as_i64().unwrap_or(UNAVAILABLE),
        };
        // The code of a missing thing is a word; here the request named what there is not.
        let code = if resources::is_not_found(error) && code != RESOURCE_NOT_FOUND { INVALID_PARAMS } else { code };
        let mut data = error.facts();
        if asked.contains("://") {
            data["uri"] = resources::shown_uri(asked);
        }
        Outgoing { retry_after_ms: error.retry_after_ms(), ..Outgoing::error(StatusCode::OK, id, code, error.text(), Some(data)) }
    }
}

/// A page of a list, from the request's cursor on. Rows are JSON; `scope` tells who may be shown a kept copy.
fn list(era: &Era, id: &Value, name: &str, of: &str, rows: &[impl AsRef<str>], message: &Message, scope: &str) -> Outgoing {
    let start = match message.params.get("cursor") {
        None | Some(Value::Null) => Some(0),
        Some(cursor) => cursor.as_str().and_then(|cursor| read_cursor(of, cursor)).filter(|start| *start < rows.len()),
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
    let page: Vec<&str> = rows.iter().skip(start).take(LIST_PAGE).map(AsRef::as_ref).collect();
    let mut result = format!("{{\"{name}\":[{}]", page.join(","));
    if start + LIST_PAGE < rows.len() {
        result.push_str(&format!(",\"nextCursor\":\"{}\"", write_cursor(of, start + LIST_PAGE)));
    }
    if era.is_stateless() {
        result.push_str(&format!(",\"resultType\":\"complete\",\"ttlMs\":{LIST_TTL_MS},\"cacheScope\":\"{scope}\""));
    }
    result.push('}');
    Outgoing::result(id, &result)
}

/// A result that is all there is. What a caller reads is its own business, and as of now.
fn complete(era: &Era, id: &Value, mut result: Value, cacheable: bool) -> Outgoing {
    if era.is_stateless() {
        result["resultType"] = "complete".into();
        if cacheable {
            result["ttlMs"] = 0.into();
            result["cacheScope"] = "private".into();
        }
    }
    Outgoing::result(id, &result.to_string())
}

fn unauthenticated(id: &Value, error: &CallError) -> Outgoing {
    let refused = Outgoing::error(StatusCode::UNAUTHORIZED, id, UNAUTHENTICATED, error.text(), Some(error.facts()));
    Outgoing { bad_token: Some(false), ..refused }
}

fn missing_capability(id: &Value, error: &CallError) -> Outgoing {
    let code = error.code().as_i64().unwrap_or(INVALID_PARAMS);
    Outgoing::error(StatusCode::BAD_REQUEST, id, code, error.text(), error.data())
}

/// What the call asks its client for, and what comes back with the answers.
fn input_required(app: &App, id: &Value, needed: &Needed, purpose: &str) -> Outgoing {
    let questions = needed.questions.iter().map(|(name, question)| {
        let asked = json!({ "method": question.method, "params": question.params });
        (name.clone(), asked)
    });
    let mut result = json!({ "resultType": "input_required", "inputRequests": Value::Object(questions.collect()) });
    if let Some(state) = &needed.state {
        let end = now_unix_ms().0.saturating_add(REQUEST_STATE_MS_MAX);
        result["requestState"] = app.services.sessions.seal(purpose, state, end).into();
    }
    Outgoing::result(id, &result.to_string())
}

/// A running call, by its session and request id.
fn call_name(owner: &str, request: &Value) -> String {
    format!("{owner} {request}")
}

/// `structuredContent`, and the same facts as text for clients that show the model only that.
fn succeeded(answer: &Answer, stateless: bool) -> String {
    if let Some(content) = &answer.content {
        return finish(format!("{{\"content\":{content}"), stateless);
    }
    let facts = &answer.facts;
    let text = Value::from(answer.text.as_ref().unwrap_or(facts).as_str());
    let warning = answer.warning.as_ref().map(|warning| format!(",{{\"type\":\"text\",\"text\":{}}}", Value::from(warning.as_str())));
    let warning = warning.unwrap_or_default();
    let mut result = format!("{{\"content\":[{{\"type\":\"text\",\"text\":{text}}}{warning}],\"structuredContent\":{facts}");
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

fn write_cursor(of: &str, start: usize) -> String {
    URL_SAFE_NO_PAD.encode(format!("{of}:{start}"))
}

fn read_cursor(of: &str, cursor: &str) -> Option<usize> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    text.strip_prefix(of)?.strip_prefix(':')?.parse().ok()
}
