//! `quorate mcp`: MCP over standard input and output, for clients that can't reach a gateway by HTTP themselves.
//!
//! Each line in is one JSON-RPC message, posted to the first gateway that answers; each line out is a message that a gateway
//! sent. Nothing else goes to standard output. A request whose answer was lost is sent again, to the next gateway, until its
//! time is over: calls get an idempotency key on their way in, so they have one effect. The bridge remembers what a client of
//! HTTP would have to: the session's id and the revision that was agreed on.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use quorate_domain::limit::LEASE_WAIT_MS_MAX;
use quorate_gateway::limit::BODY_BYTES_MAX;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use crate::exit::Failure;
use crate::http;
use crate::sse::Events;

/// Bridge MCP on standard input and output to a gateway.
///
/// The token is taken from QUORATE_TOKEN, or from `~/.config/quorate/token`.
#[derive(Args)]
pub struct Mcp {
    /// MCP endpoints of gateways, tried in turn
    #[arg(long, env = "QUORATE_URL", value_delimiter = ',', default_value = "http://127.0.0.1:7400/mcp")]
    url: Vec<String>,
    /// Bearer token
    #[arg(long, env = "QUORATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// PEM file of the authority of the gateways' certificates; without it, those that the system trusts
    #[arg(long, env = "QUORATE_CA")]
    ca: Option<PathBuf>,
}

/// One attempt at one gateway: a little more than a gateway takes for a call unless it is set otherwise.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(30);
/// How long a request is tried for, so that another gateway can still answer after one that hangs.
const REQUEST_WITHIN: Duration = Duration::from_secs(60);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Between rounds over all gateways.
const PAUSE: Duration = Duration::from_millis(200);
/// What a client is still answered after it has closed its end.
const DRAIN: Duration = Duration::from_secs(30);
/// A line that is longer is answered with an error: no gateway would take it.
const LINE_BYTES_MAX: usize = BODY_BYTES_MAX;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const KEY: &str = "io.quorate/idempotency-key";
const INTERNAL_ERROR: i64 = -32603;
const PARSE_ERROR: i64 = -32700;

#[derive(Default)]
struct Session {
    id: Option<String>,
    revision: Option<String>,
}

struct Bridge {
    client: reqwest::Client,
    gateways: Vec<String>,
    token: Option<String>,
    session: Mutex<Session>,
    /// The gateway that answered last.
    first: std::sync::atomic::AtomicUsize,
    out: mpsc::UnboundedSender<String>,
    running: Mutex<HashMap<String, tokio::task::AbortHandle>>,
}

impl Mcp {
    pub async fn run(self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::failed(format!("standard input or output: {error}"));
        let (out, mut lines) = mpsc::unbounded_channel::<String>();
        let https = self.url.iter().any(|url| http::is_https(url));
        let bridge = Arc::new(Bridge {
            client: http::built(http::builder(https, self.ca.as_deref())?.no_proxy().connect_timeout(CONNECT_WITHIN))?,
            gateways: self.url.iter().map(|url| url.trim().to_string()).filter(|url| !url.is_empty()).collect(),
            token: self.token.or_else(crate::hook::token_in_file),
            session: Mutex::default(),
            first: 0.into(),
            out,
            running: Mutex::default(),
        });
        if bridge.gateways.is_empty() {
            return Err(Failure::usage("--url names no gateway"));
        }
        let writer = tokio::spawn(async move {
            let mut stdout = tokio::io::stdout();
            while let Some(line) = lines.recv().await {
                stdout.write_all(line.as_bytes()).await?;
                stdout.write_all(b"\n").await?;
                stdout.flush().await?;
            }
            Ok::<(), std::io::Error>(())
        });
        let mut input = BufReader::new(tokio::io::stdin());
        let mut tasks = tokio::task::JoinSet::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line).await.map_err(failed)?;
            if read == 0 {
                break;
            }
            if line.len() > LINE_BYTES_MAX && line.last() != Some(&b'\n') {
                let rest = skip_line(&mut input).await.map_err(failed)?;
                bridge.say(error(
                    &Value::Null,
                    PARSE_ERROR,
                    &format!("a message of {} bytes or more; the limit is {LINE_BYTES_MAX}", line.len() + rest),
                ));
                continue;
            }
            while tasks.try_join_next().is_some() {}
            let Ok(message) = serde_json::from_slice::<Value>(&line) else {
                if !line.trim_ascii().is_empty() {
                    bridge.say(error(&Value::Null, PARSE_ERROR, "the line is no JSON"));
                }
                continue;
            };
            // What comes after the opening needs what was agreed on there.
            if message["method"] == "initialize" || message["method"] == "notifications/initialized" {
                bridge.clone().forward(message).await;
                continue;
            }
            bridge.cancel(&message);
            let id = message.get("id").filter(|_| message.get("method").is_some()).map(Value::to_string);
            let (worker, done) = (bridge.clone(), id.clone());
            // Held until it is entered, so that a task which is done at once takes itself off after that.
            let mut running = bridge.running.lock().expect("no panic under the lock");
            let task = tasks.spawn(async move {
                worker.clone().forward(message).await;
                if let Some(id) = done {
                    worker.running.lock().expect("no panic under the lock").remove(&id);
                }
            });
            if let Some(id) = id {
                running.insert(id, task);
            }
        }
        let drained = async { while tasks.join_next().await.is_some() {} };
        // Whoever closed its end may still read; whoever does not is not waited for.
        let _ = tokio::time::timeout(DRAIN, drained).await;
        drop(tasks);
        drop(bridge);
        match writer.await {
            Ok(written) => written.map_err(failed),
            Err(error) => Err(Failure::failed(error.to_string())),
        }
    }
}

async fn skip_line(input: &mut (impl AsyncBufReadExt + Unpin)) -> std::io::Result<usize> {
    let mut skipped = 0;
    loop {
        let some = input.fill_buf().await?;
        if some.is_empty() {
            return Ok(skipped);
        }
        let (length, is_end) = match some.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (some.len(), false),
        };
        input.consume(length);
        skipped += length;
        if is_end {
            return Ok(skipped);
        }
    }
}

fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

/// Why an attempt is worth another one.
struct Again(String);

impl Bridge {
    fn say(&self, message: Value) {
        // Only a client that has gone does not listen.
        let _ = self.out.send(message.to_string());
    }

    /// Without sessions, closing the request is the cancelling; with one, the notice is forwarded as well.
    fn cancel(&self, message: &Value) {
        let is_stateless = self.session.lock().expect("no panic under the lock").revision.is_none();
        if message["method"] == "notifications/cancelled" && is_stateless {
            let id = message["params"]["requestId"].to_string();
            if let Some(task) = self.running.lock().expect("no panic under the lock").remove(&id) {
                task.abort();
            }
        }
    }

    /// Sends a message until a gateway has taken it, and passes on what comes back.
    async fn forward(self: Arc<Self>, mut message: Value) {
        give_key(&mut message);
        let id = message.get("id").filter(|_| message.get("method").is_some()).cloned();
        // What queues for a card takes as long as it has said.
        let waits = Duration::from_millis(wait_ms(&message));
        let deadline = Instant::now() + REQUEST_WITHIN + waits;
        let mut why = String::new();
        while Instant::now() < deadline {
            let start = self.first.load(std::sync::atomic::Ordering::Relaxed);
            for turn in 0..self.gateways.len() {
                let index = (start + turn) % self.gateways.len();
                let attempt = deadline.min(Instant::now() + ATTEMPT_WITHIN + waits);
                match tokio::time::timeout_at(attempt.into(), self.post(&self.gateways[index], &message)).await {
                    Ok(Ok(())) => return self.first.store(index, std::sync::atomic::Ordering::Relaxed),
                    Ok(Err(Again(reason))) => why = reason,
                    Err(_) => why = format!("{} did not answer in time", self.gateways[index]),
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        eprintln!("quorate mcp: {why}");
        if let Some(id) = id {
            self.say(error(
                &id,
                INTERNAL_ERROR,
                &format!("no gateway answered: {why}. A write may have been made; look before you repeat it."),
            ));
        }
    }

    async fn post(&self, gateway: &str, message: &Value) -> Result<(), Again> {
        let mut request = self.client.post(gateway).header("Accept", "application/json, text/event-stream").json(message);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let method = message["method"].as_str().unwrap_or_default();
        let own_revision = message["params"]["_meta"][VERSION].as_str();
        {
            let session = self.session.lock().expect("no panic under the lock");
            if let Some(id) = session.id.as_ref().filter(|_| method != "initialize" && own_revision.is_none()) {
                request = request.header("Mcp-Session-Id", id);
            }
            if let Some(revision) = own_revision.or(session.revision.as_deref().filter(|_| method != "initialize")) {
                request = request.header("MCP-Protocol-Version", revision);
            }
        }
        if own_revision.is_some() {
            request = request.header("Mcp-Method", method);
            let name = ["name", "uri"].iter().find_map(|name| message["params"][name].as_str());
            if let Some(name) = name.filter(|_| matches!(method, "tools/call" | "prompts/get" | "resources/read")) {
                request = request.header("Mcp-Name", header(name));
            }
        }
        let mut answer = request.send().await.map_err(|error| Again(format!("{gateway}: {error}")))?;
        let status = answer.status();
        if matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT) {
            return Err(Again(format!("{gateway} answered {status}")));
        }
        if method == "initialize" {
            let id = answer.headers().get("Mcp-Session-Id").and_then(|id| id.to_str().ok()).map(String::from);
            self.session.lock().expect("no panic under the lock").id = id;
        }
        let header = answer.headers().get("Content-Type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if header.starts_with("text/event-stream") {
            let mut events = Events::default();
            let mut is_answered = message.get("id").is_none();
            while let Some(chunk) = answer.chunk().await.map_err(|error| Again(format!("{gateway}: {error}")))? {
                for event in events.take(&chunk) {
                    if let Ok(found) = serde_json::from_str::<Value>(&event.data) {
                        is_answered |= found.get("id") == message.get("id") && found.get("method").is_none();
                        self.say(found);
                    }
                }
            }
            return if is_answered { Ok(()) } else { Err(Again(format!("{gateway} ended the stream without an answer"))) };
        }
        let body = answer.bytes().await.map_err(|error| Again(format!("{gateway}: {error}")))?;
        let wants_answer = message.is_array() || message.get("id").is_some() && !method.is_empty();
        match serde_json::from_slice::<Value>(&body) {
            Ok(found) if found.get("jsonrpc").is_some() || found.is_array() => {
                if method == "initialize" {
                    let revision = found["result"]["protocolVersion"].as_str().map(String::from);
                    self.session.lock().expect("no panic under the lock").revision = revision;
                }
                if wants_answer {
                    self.say(found);
                }
            }
            // A problem document: what is wrong is for the model to read.
            other if wants_answer => {
                let detail = other.ok().and_then(|problem| Some(problem["detail"].as_str()?.to_string()));
                let text = detail.unwrap_or_else(|| format!("the gateway answered {status}"));
                self.say(error(&message["id"], INTERNAL_ERROR, &text));
            }
            _ => {}
        }
        Ok(())
    }
}

/// How long a call means to wait, itself or as what `call_tool` calls.
fn wait_ms(message: &Value) -> u64 {
    let arguments = &message["params"]["arguments"];
    let found = [arguments, &arguments["arguments"]].into_iter().find_map(|arguments| arguments["wait_ms"].as_u64());
    found.unwrap_or(0).min(LEASE_WAIT_MS_MAX)
}

/// A call that is sent again must not have two effects.
fn give_key(message: &mut Value) {
    if message["method"] != "tools/call" || message["params"]["arguments"].get("idempotency_key").is_some() {
        return;
    }
    let Some(params) = message["params"].as_object_mut() else { return };
    let Some(meta) = params.entry("_meta").or_insert_with(|| json!({})).as_object_mut() else { return };
    meta.entry(KEY).or_insert_with(|| format!("bridge-{}", uuid::Uuid::new_v4()).into());
}

/// A header's value; what is not plain ASCII goes in base64, as the specification has it.
fn header(text: &str) -> String {
    use base64::Engine;
    let is_plain = text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && text.trim() == text;
    if is_plain { text.into() } else { format!("=?base64?{}?=", base64::engine::general_purpose::STANDARD.encode(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_queues_is_given_the_time_it_asks_for() {
        let call = |arguments: Value| wait_ms(&json!({"method": "tools/call", "params": {"name": "x", "arguments": arguments}}));
        assert_eq!(call(json!({"wait_ms": 90_000})), 90_000);
        assert_eq!(call(json!({"name": "punch_in", "arguments": {"wait_ms": 5}})), 5);
        assert_eq!((call(json!({"wait_ms": u64::MAX})), call(json!({}))), (LEASE_WAIT_MS_MAX, 0));
    }

    #[test]
    fn a_call_gets_one_key_and_keeps_its_own() {
        let mut call = json!({"method": "tools/call", "params": {"name": "x", "arguments": {}}});
        give_key(&mut call);
        let key = call["params"]["_meta"][KEY].clone();
        assert!(key.is_string());
        give_key(&mut call);
        assert_eq!(call["params"]["_meta"][KEY], key);
        let mut own = json!({"method": "tools/call", "params": {"name": "x", "arguments": {"idempotency_key": "mine"}}});
        give_key(&mut own);
        assert!(own["params"].get("_meta").is_none());
        let mut other = json!({"method": "tools/list", "params": {}});
        give_key(&mut other);
        assert_eq!(other, json!({"method": "tools/list", "params": {}}));
    }
}
