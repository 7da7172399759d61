//! The gateway as its clients see it: raw HTTP in, and true rules behind it.

mod board;
mod budgets;
mod cards;
mod connections;
mod console;
mod decisions;
mod exchange;
mod faces;
mod fake;
mod graph;
mod handshake;
mod plans;
mod promises;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer, SigningKey};
use expect_test::{Expect, expect, expect_file};
use fake::{Fake, Fault};
use quorate_domain::flag::{self, SetFlag};
use quorate_domain::identity::{SetSignInKey, SetWorkGate, challenge_bytes};
use quorate_domain::key_ring::{AddCosigner, AddReceiptKey};
use quorate_gateway::registry::Catalog;
use quorate_gateway::{Config, Gateway, limit, profile, schema, tools};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

// ------------------------------------------------------------------ the one place that knows the API

/// A gateway in front of a fake cluster.
struct World {
    fake: Fake,
    address: SocketAddr,
}

/// One HTTP answer.
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {} {:?}", self.status, self.text))
    }

    /// A call's outcome in one line.
    fn told(&self) -> String {
        let json = self.json();
        if let Some(error) = json.get("error") {
            return format!("{} error {}: {}", self.status, error["code"], error["message"].as_str().unwrap());
        }
        let result = &json["result"];
        match result["isError"].as_bool() {
            Some(true) => {
                let error = &result["_meta"]["io.quorate/error"];
                assert_eq!(error["message"], result["content"][0]["text"], "text and code are of one error");
                assert!(result.get("structuredContent").is_none(), "a refusal has no structured content");
                format!(
                    "{} {} wrote={} {}",
                    self.status,
                    error["code"],
                    error["wrote"].as_str().unwrap(),
                    error["message"].as_str().unwrap()
                )
            }
            _ => format!("{} {result}", self.status),
        }
    }
}

/// A caller of tools.
#[derive(Clone, Default)]
struct Caller {
    token: Option<&'static str>,
    headers: Vec<(String, String)>,
}

fn a() -> Caller {
    by("token-a")
}

fn b() -> Caller {
    by("token-b")
}

fn by(token: &'static str) -> Caller {
    Caller { token: Some(token), headers: Vec::new() }
}

fn nobody() -> Caller {
    Caller::default()
}

impl Caller {
    fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
        self
    }
}

async fn world() -> World {
    world_of(1).await
}

/// A world whose gateway has a folder for exports.
async fn world_with_exports() -> (World, tempfile::TempDir) {
    let (fake, folder) = (Fake::start(1).await, tempfile::tempdir().unwrap());
    let address = gateway_of(&fake, 5_000, Some(folder.path().join("exports"))).await;
    (World { fake, address }, folder)
}

async fn world_of(nodes: u64) -> World {
    let fake = Fake::start(nodes).await;
    let address = gateway(&fake, 5_000).await;
    World { fake, address }
}

async fn gateway(fake: &Fake, call_deadline_ms: u64) -> SocketAddr {
    gateway_of(fake, call_deadline_ms, None).await
}

async fn gateway_of(fake: &Fake, call_deadline_ms: u64, audit_export_dir: Option<std::path::PathBuf>) -> SocketAddr {
    gateway_with(fake, Config { audit_export_dir, call_deadline_ms, ..Config::default() }).await
}

/// A gateway with these settings, and what each needs to serve here.
async fn gateway_with(fake: &Fake, settings: Config) -> SocketAddr {
    let config = Config {
        listen: "127.0.0.1:0".into(),
        nodes: fake.addresses(),
        session_key: "07".repeat(32),
        receipt_keys: vec![fake.receipt_key_hex()],
        ..settings
    };
    let gateway = Gateway::bind(config).await.unwrap();
    let address = gateway.address();
    tokio::spawn(gateway.serve(std::future::pending()));
    until(async || http(address, "GET", "/readyz", &[], "").await.status == 200).await;
    address
}

/// Waits for a condition.
async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < Duration::from_secs(10), "the condition does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One request over a connection of its own, as it is.
async fn http(address: SocketAddr, method: &str, path: &str, headers: &[(String, String)], body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += "\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw).await.unwrap();
    let raw = String::from_utf8(raw).unwrap();
    let (head, text) = raw.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_lowercase(), value.to_string())).collect();
    Answer { status, headers, text: text.into() }
}

impl World {
    async fn post(&self, caller: &Caller, path: &str, body: &str) -> Answer {
        post(self.address, caller, path, body).await
    }

    async fn rpc(&self, caller: &Caller, method: &str, params: Value) -> Answer {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.post(caller, "/mcp/crux", &message.to_string()).await
    }

    async fn call(&self, caller: &Caller, tool: &str, arguments: Value) -> Answer {
        self.rpc(caller, "tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// The facts of a call that has to succeed.
    async fn ok(&self, caller: &Caller, tool: &str, arguments: Value) -> Value {
        let answer = self.call(caller, tool, arguments).await;
        let result = &answer.json()["result"];
        assert!(result["structuredContent"].is_object(), "{tool}: {}", answer.told());
        let (text, facts) = (result["content"][0]["text"].as_str().unwrap(), result["structuredContent"].clone());
        // A drawn tree is shown as it is; all others show the facts as they are in the structured content.
        match facts.get("tree").filter(|_| tool == "get_workspace_storyline") {
            Some(tree) => assert_eq!(text, tree, "the tree is what is shown"),
            None => assert_eq!(serde_json::from_str::<Value>(text).unwrap(), facts, "text and structured content say the same"),
        }
        facts
    }
}

async fn post(address: SocketAddr, caller: &Caller, path: &str, body: &str) -> Answer {
    let mut headers = caller.headers.clone();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        headers.push(("Content-Type".into(), "application/json".into()));
    }
    if let Some(token) = caller.token {
        headers.push(("Authorization".into(), format!("Bearer {token}")));
    }
    http(address, "POST", path, &headers, body).await
}

fn everything() -> Catalog {
    tools::crux().and_all(&profile::about_tools())
}

// ------------------------------------------------------------------ declarations

#[test]
fn the_listed_tools_are_pinned() {
    let listed: Vec<Value> = everything().entries().iter().map(|entry| serde_json::from_str(&entry.listed).unwrap()).collect();
    expect_file!["listed.json"].assert_eq(&(serde_json::to_string_pretty(&listed).unwrap() + "\n"));
}

#[test]
fn schemas_are_flat_and_descriptions_are_short_and_there() {
    let mut flaws = Vec::new();
    for entry in everything().entries() {
        schema::flaws(&entry.input, &format!("{}.input", entry.name), &mut flaws);
        schema::flaws(&entry.output, &format!("{}.output", entry.name), &mut flaws);
        if entry.description.is_empty() || entry.description.len() >= 1_000 || entry.description.contains('\u{0}') {
            flaws.push(format!("{}: {} bytes of description", entry.name, entry.description.len()));
        }
        if entry.name.len() > 31 || !entry.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            flaws.push(format!("{}: is no name for all clients", entry.name));
        }
        for (name, property) in entry.input["properties"].as_object().unwrap() {
            if property["description"].as_str().is_none_or(str::is_empty) && property["enum"].is_null() {
                flaws.push(format!("{}.{name}: is not described", entry.name));
            }
        }
    }
    assert_eq!(flaws, Vec::<String>::new());
}

#[tokio::test]
async fn the_everyday_list_stays_small_enough_to_be_shown_at_every_turn() {
    let world = world().await;
    let answer = world.post(&a(), "/mcp", r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await;
    let bytes = answer.text.len();
    assert!(bytes < limit::EVERYDAY_BYTES_MAX, "{bytes} bytes are about {} tokens", bytes / 4);
    let listed = answer.json()["result"]["tools"].as_array().unwrap().clone();
    let names: Vec<&str> = listed.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, profile::EVERYDAY);
    assert!(names.contains(&"find_tools") && names.contains(&"call_tool"));
    assert!(listed.iter().all(|tool| tool["outputSchema"]["type"] == "object"), "schemas are short, and whole");
}

#[test]
fn the_page_of_tools_names_each_of_them() {
    let page = quorate_gateway::docs();
    for entry in everything().entries() {
        assert!(page.contains(&format!("\n## {}\n", entry.name)), "{}", entry.name);
    }
}

// ------------------------------------------------------------------ who may

#[tokio::test]
async fn every_listed_tool_is_refused_without_its_scope_and_without_a_token() {
    let world = world().await;
    for entry in tools::crux().entries() {
        let told = world.call(&by("token-bare"), entry.name, entry.example.clone()).await.told();
        assert!(told.starts_with(&format!("200 -32030 wrote=no this needs the scope `{}`", entry.scope)), "{}: {told}", entry.name);
        let answer = world.call(&nobody(), entry.name, entry.example.clone()).await;
        match entry.name {
            "get_agent_identity" => assert!(answer.told().contains("anonymous"), "{}", answer.told()),
            "resolve_principal" => assert!(answer.told().contains("you have no passport"), "{}", answer.told()),
            "session_token_usage" => assert!(answer.told().contains("__anon__"), "{}", answer.told()),
            _ => {
                assert_eq!((answer.status, answer.headers["www-authenticate"].as_str()), (401, "Bearer"), "{}", entry.name);
                assert_eq!(answer.json()["error"]["data"]["code"], "UNAUTHENTICATED");
            }
        }
        let http = world.post(&by("token-bare"), &format!("/v1/tools/crux/{}", entry.name), &entry.example.to_string()).await;
        assert_eq!((http.status, http.headers["content-type"].as_str()), (403, "application/problem+json"), "{}", entry.name);
    }
    assert_eq!(world.fake.proposals(), [], "nothing reached the cluster");
}

/// Words with a digit in them are ids, times and counts.
fn without_ids(text: &str) -> String {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    let mut out = String::new();
    for part in text.split_inclusive(|letter| !is_word(letter)) {
        let word = part.trim_end_matches(|letter| !is_word(letter));
        out += if word.chars().any(|letter| letter.is_ascii_digit()) { "N" } else { word };
        out += &part[word.len()..];
    }
    out
}

#[tokio::test]
async fn what_one_tenant_did_changes_no_tools_answer_to_another() {
    let (quiet, busy) = (world().await, world().await);
    for caller in [a(), by("token-operator")] {
        for entry in tools::crux().entries() {
            busy.call(&caller, entry.name, entry.example.clone()).await;
        }
    }
    for entry in tools::crux().entries() {
        let there = quiet.call(&by("token-other"), entry.name, entry.example.clone()).await;
        let here = busy.call(&by("token-other"), entry.name, entry.example.clone()).await;
        assert_eq!(without_ids(&here.text), without_ids(&there.text), "{}", entry.name);
    }
}

#[tokio::test]
async fn a_false_token_is_turned_away_everywhere() {
    let world = world().await;
    for method in ["initialize", "ping", "tools/list", "tools/call"] {
        let answer = world.rpc(&by("x"), method, json!({})).await;
        assert_eq!(answer.status, 401, "{method}");
        assert!(answer.headers["www-authenticate"].contains("invalid_token"), "{method}");
    }
    let answer = world.post(&by("x"), "/v1/tools/crux/list_entities", "{}").await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (401, Some("UNAUTHENTICATED")));
    let basic = nobody().with("Authorization", "Basic eDp5");
    assert_eq!(world.rpc(&basic, "ping", json!({})).await.status, 401);
}

#[tokio::test]
async fn hosts_and_origins_of_others_are_turned_away_before_anything_is_read() {
    let world = world().await;
    let port = world.address.port();
    let mut told = String::new();
    for (name, value) in [
        ("Host", "evil.example.com".to_string()),
        ("Host", format!("localhost:{port}")),
        ("Host", "[::1]:9".into()),
        ("Host", "127.0.0.1.evil.example.com".into()),
        ("Origin", "http://evil.example.com".into()),
        ("Origin", "null".into()),
        ("Origin", format!("http://127.0.0.1:{port}")),
        ("Origin", "http://localhost".into()),
        ("Origin", "http://localhost.evil.example.com".into()),
    ] {
        let answer = world.rpc(&a().with(name, &value), "ping", json!({})).await;
        told += &format!("{name} {}: {}\n", value.replace(&port.to_string(), "PORT"), answer.status);
    }
    expect![[r#"
        Host evil.example.com: 403
        Host localhost:PORT: 200
        Host [::1]:9: 200
        Host 127.0.0.1.evil.example.com: 403
        Origin http://evil.example.com: 403
        Origin null: 403
        Origin http://127.0.0.1:PORT: 200
        Origin http://localhost: 200
        Origin http://localhost.evil.example.com: 403
    "#]]
    .assert_eq(&told);
    let twice = a().with("Host", &format!("localhost:{port}")).with("Host", "evil.example.com");
    assert_eq!(world.rpc(&twice, "ping", json!({})).await.status, 403);
}

// ------------------------------------------------------------------ changes

/// A request whose answer is read as it comes.
async fn open(address: SocketAddr, caller: &Caller, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    request += &format!("Content-Length: {}\r\nAuthorization: Bearer {}\r\n", body.len(), caller.token.unwrap());
    for (name, value) in &caller.headers {
        request += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).await.unwrap();
    stream
}

/// Reads until a text has come; answers all that was read.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = String::new();
    let whole = async {
        let mut bytes = [0; 4_096];
        while !read.contains(text) {
            let count = stream.read(&mut bytes).await.unwrap();
            assert_ne!(count, 0, "the stream is over, and `{text}` did not come: {read}");
            read += std::str::from_utf8(&bytes[..count]).unwrap();
        }
    };
    if tokio::time::timeout(Duration::from_secs(10), whole).await.is_err() {
        panic!("`{text}` does not come: {read}");
    }
    read
}

#[tokio::test]
async fn a_reader_whose_place_is_gone_is_told_so_and_can_go_on_from_there() {
    let world = world().await;
    let fact = json!({ "entity": "svc:api", "key": "owner", "value": "platform" });
    world.ok(&a(), "store_fact", fact.clone()).await;
    let headers = [("Authorization".to_string(), "Bearer token-a".to_string())];
    let through = world.fake.forget_events();
    let answer = http(world.address, "GET", "/v1/events?since=0", &headers, "").await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (410, Some("COMPACTED")));
    assert_eq!(answer.json()["data"]["through"], through);

    let mut stream = open(world.address, &a(), "GET", &format!("/v1/events?since={through}"), "").await;
    read_until(&mut stream, "event: progress").await;
    world.ok(&a(), "store_fact", fact).await;
    let read = read_until(&mut stream, "about").await;
    assert!(read.contains("fact.stored"), "{read}");
}

#[tokio::test]
async fn who_watches_a_resource_and_falls_too_far_behind_is_told_that_it_may_have_changed() {
    let world = world().await;
    let params = json!({ "notifications": { "resourceSubscriptions": ["quorate://work/w_1"] } });
    let (caller, message) = stateless("subscriptions/listen", params);
    let mut stream = open(world.address, &caller, "POST", "/mcp", &message.to_string()).await;
    read_until(&mut stream, "acknowledged").await;
    world.ok(&a(), "store_fact", json!({ "entity": "svc:api", "key": "owner", "value": "platform" })).await;
    world.fake.forget_events();
    read_until(&mut stream, "notifications/resources/updated").await;
}

#[tokio::test]
async fn changes_are_for_a_token_with_their_scope() {
    let world = world().await;
    for (token, status) in [("token-a", 400), ("token-bare", 403), ("x", 401)] {
        let headers = [("Authorization".to_string(), format!("Bearer {token}"))];
        let answer = http(world.address, "GET", "/v1/events?colour=red", &headers, "").await;
        assert_eq!(answer.status, status, "{token}: {}", answer.text);
    }
}

// ------------------------------------------------------------------ the two eras

#[tokio::test]
async fn initialize_answers_the_revision_asked_for_or_the_newest_with_sessions() {
    let world = world().await;
    let mut told = String::new();
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "1999-01-01"] {
        let hello = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let answer = world.rpc(&a(), "initialize", hello).await;
        let version_told = answer.json()["result"]["protocolVersion"].as_str().unwrap().to_string();
        let session = a().with("Mcp-Session-Id", &answer.headers["mcp-session-id"]);
        let done = world.post(&session, "/mcp", r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        let with_header = world.rpc(&session.clone().with("MCP-Protocol-Version", &version_told), "ping", json!({})).await;
        let without = world.rpc(&session, "ping", json!({})).await;
        told += &format!("{version}: {version_told}, {}, {} {}, {}\n", done.status, with_header.status, with_header.text, without.status);
    }
    expect![[r#"
        2024-11-05: 2024-11-05, 202, 200 {"jsonrpc":"2.0","id":1,"result":{}}, 200
        2025-03-26: 2025-03-26, 202, 200 {"jsonrpc":"2.0","id":1,"result":{}}, 200
        2025-06-18: 2025-06-18, 202, 200 {"jsonrpc":"2.0","id":1,"result":{}}, 200
        2025-11-25: 2025-11-25, 202, 200 {"jsonrpc":"2.0","id":1,"result":{}}, 200
        2026-07-28: 2025-11-25, 202, 200 {"jsonrpc":"2.0","id":1,"result":{}}, 200
        1999-01-01: 2025-11-25, 202, 200 {"jsonrpc":"2.0","id":1,"result":{}}, 200
    "#]]
    .assert_eq(&told);
}

#[tokio::test]
async fn a_session_is_served_by_any_gateway_of_the_cluster_and_to_its_caller_only() {
    let world = world().await;
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let session = world.rpc(&a(), "initialize", hello).await.headers["mcp-session-id"].clone();
    let other = gateway(&world.fake, 5_000).await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let mut told = String::new();
    for (what, caller, session) in [
        ("its caller", a(), session.clone()),
        ("another caller", b(), session.clone()),
        ("nobody", nobody(), session.clone()),
        ("a changed one", a(), session.replace("q1.e", "q1.f")),
        ("a cut one", a(), session[..session.len() - 2].into()),
        ("nonsense", a(), "abc".into()),
    ] {
        let caller = caller.with("Mcp-Session-Id", &session);
        told +=
            &format!("{what}: {} {}\n", world.post(&caller, "/mcp", ping).await.status, post(other, &caller, "/mcp", ping).await.status);
    }
    told += &format!("none at all: {}\n", world.post(&a(), "/mcp", ping).await.status);
    expect![[r#"
        its caller: 200 200
        another caller: 404 404
        nobody: 404 404
        a changed one: 404 404
        a cut one: 404 404
        nonsense: 404 404
        none at all: 200
    "#]]
    .assert_eq(&told);
    let principal = world.ok(&b(), "resolve_principal", json!({ "session_id": session })).await;
    assert_eq!((&principal["principal"]["passport_id"], &principal["principal"]["resolved_via"]), (&json!("agent-a"), &json!("session")));
    let foreign = world.call(&by("token-other"), "resolve_principal", json!({ "session_id": session })).await.told();
    assert!(foreign.contains("NOT_FOUND"), "{foreign}");
}

fn stateless(method: &str, params: Value) -> (Caller, Value) {
    let mut params = params;
    params["_meta"] = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {} });
    let mut caller = a().with("MCP-Protocol-Version", "2026-07-28").with("Mcp-Method", method);
    if let Some(name) = params["name"].as_str() {
        caller = caller.with("Mcp-Name", name);
    }
    (caller, json!({ "jsonrpc": "2.0", "id": "x", "method": method, "params": params }))
}

#[tokio::test]
async fn a_stateless_request_is_checked_against_its_headers() {
    let world = world().await;
    let (caller, list) = stateless("tools/list", json!({}));
    let (named, call) = stateless("tools/call", json!({ "name": "get_agent_identity", "arguments": {} }));
    let mut unlisted = list.clone();
    unlisted["params"]["_meta"].as_object_mut().unwrap().remove("io.modelcontextprotocol/clientCapabilities");
    let mut old = list.clone();
    old["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2030-01-01".into();
    let mut bare = list.clone();
    bare["params"].as_object_mut().unwrap().remove("_meta");
    let mut notice = list.clone();
    notice.as_object_mut().unwrap().remove("id");
    notice["method"] = "notifications/cancelled".into();
    let without =
        |name: &str| Caller { headers: named.headers.iter().filter(|(known, _)| known != name).cloned().collect(), ..named.clone() };
    let (pinger, ping) = stateless("ping", json!({}));
    let mut told = String::new();
    for (what, caller, message) in [
        ("call", named.clone(), &call),
        ("call, name in base64", named.clone().with("Mcp-Name", "=?base64?Z2V0X2FnZW50X2lkZW50aXR5?="), &call),
        ("call, other name", named.clone().with("Mcp-Name", "store_fact"), &call),
        ("call, no name", without("Mcp-Name"), &call),
        ("call, no method", without("Mcp-Method"), &call),
        ("call, other method", named.clone().with("Mcp-Method", "tools/list"), &call),
        ("call, no version header", without("MCP-Protocol-Version"), &call),
        ("call, other version header", named.clone().with("MCP-Protocol-Version", "2025-11-25"), &call),
        ("list, no capabilities", caller.clone(), &unlisted),
        ("list, unknown version", caller.clone().with("MCP-Protocol-Version", "2030-01-01"), &old),
        ("list, no _meta", caller.clone(), &bare),
        ("ping, which is gone", pinger, &ping),
        ("notification", caller.clone().with("Mcp-Method", "notifications/cancelled"), &notice),
        ("call with a session id, which is ignored", named.clone().with("Mcp-Session-Id", "abc"), &call),
    ] {
        let answer = world.post(&caller, "/mcp", &message.to_string()).await;
        let text = if answer.text.is_empty() { answer.status.to_string() } else { answer.told() };
        told += &format!("{what}: {text}\n");
    }
    expect![[r#"
        call: 200 {"content":[{"type":"text","text":"{\"agent_name\":\"agent-a\"}"}],"structuredContent":{"agent_name":"agent-a"},"resultType":"complete"}
        call, name in base64: 200 {"content":[{"type":"text","text":"{\"agent_name\":\"agent-a\"}"}],"structuredContent":{"agent_name":"agent-a"},"resultType":"complete"}
        call, other name: 400 error -32020: the header `Mcp-Name` is `store_fact` and the tool `get_agent_identity`
        call, no name: 400 error -32020: the header `Mcp-Name` is missing
        call, no method: 400 error -32020: the header `Mcp-Method` is missing
        call, other method: 400 error -32020: the header `Mcp-Method` is `tools/list` and the method `tools/call`
        call, no version header: 400 error -32020: the header `MCP-Protocol-Version` is missing
        call, other version header: 400 error -32020: the header `MCP-Protocol-Version` is `2025-11-25` and `_meta` says `2026-07-28`
        list, no capabilities: 400 error -32602: `_meta` needs `io.modelcontextprotocol/clientCapabilities`, an object
        list, unknown version: 400 error -32022: protocol version `2030-01-01` is not supported; 2026-07-28 is, and older ones by `initialize`
        list, no _meta: 400 error -32602: `_meta` needs `io.modelcontextprotocol/protocolVersion`, a string
        ping, which is gone: 404 error -32601: there is no method `ping`
        notification: 202
        call with a session id, which is ignored: 200 {"content":[{"type":"text","text":"{\"agent_name\":\"agent-a\"}"}],"structuredContent":{"agent_name":"agent-a"},"resultType":"complete"}
    "#]].assert_eq(&told);

    let listed = world.post(&caller, "/mcp", &list.to_string()).await.json()["result"].clone();
    assert_eq!((&listed["resultType"], &listed["ttlMs"], &listed["cacheScope"]), (&json!("complete"), &json!(60_000), &json!("public")));
    let names: Vec<&str> = listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, profile::EVERYDAY);
    let unsupported = world.post(&caller.clone().with("MCP-Protocol-Version", "2030-01-01"), "/mcp", &old.to_string()).await;
    assert_eq!(unsupported.json()["error"]["data"], json!({ "supported": ["2026-07-28"], "requested": "2030-01-01" }));
    let (caller, discover) = stateless("server/discover", json!({}));
    let discovered = world.post(&caller, "/mcp", &discover.to_string()).await;
    assert!(!discovered.headers.contains_key("mcp-session-id"));
    let mut discovered = discovered.json()["result"].clone();
    discovered["instructions"] = "...".into();
    expect![[r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"prompts":{},"resources":{"subscribe":true},"completions":{}},"instructions":"...","ttlMs":60000,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"quorate","title":"Quorate","version":"0.1.0"}}}"#]].assert_eq(&discovered.to_string());
}

// ------------------------------------------------------------------ bad input

#[tokio::test]
async fn bad_requests_are_told_apart() {
    let world = world().await;
    let deep = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{}{}}}", "{\"a\":[".repeat(500), "]}".repeat(500));
    let huge = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{{\"a\":\"{}\"}}}}", "x".repeat(1 << 20));
    let old = a().with("MCP-Protocol-Version", "2025-03-26");
    let mut told = String::new();
    for (what, caller, body) in [
        ("no JSON", a(), "{"),
        ("an empty body", a(), ""),
        ("a NUL", a(), "\u{0}"),
        ("deep JSON", a(), &deep),
        ("a huge body", a(), &huge),
        ("plain text", a().with("Content-Type", "text/plain"), r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#),
        ("a charset", a().with("Content-Type", "application/json; charset=utf-8"), r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#),
        ("another charset", a().with("Content-Type", "application/json; charset=utf-16"), r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#),
        ("a name twice", a(), r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"a":2}}"#),
        ("jsonrpc 1.0", a(), r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#),
        ("a null id", a(), r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#),
        ("an object as id", a(), r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#),
        ("a fraction as id", a(), r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#),
        ("params as list", a(), r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#),
        ("no method", a(), r#"{"jsonrpc":"2.0","id":1}"#),
        ("an answer of the client", a(), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
        ("a notification", a(), r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
        ("an unknown method", a(), r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#),
        ("an unknown tool", a(), r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nope"}}"#),
        ("no tool", a(), r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#),
        ("a false cursor", a(), r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"abc"}}"#),
        ("a false version", a().with("MCP-Protocol-Version", "1999"), r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#),
        ("initialize without version", a(), r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#),
        ("a batch of today", a().with("MCP-Protocol-Version", "2025-11-25"), r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#),
        ("an empty batch", old.clone(), "[]"),
    ] {
        let answer = world.post(&caller, "/mcp", body).await;
        let text = if answer.text.is_empty() { answer.status.to_string() } else { answer.told() };
        told += &format!("{what}: {text}\n");
    }
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"get_agent_identity"}},7]"#;
    told += &format!("a batch: {}\n", world.post(&old, "/mcp", batch).await.text);
    for method in ["GET", "DELETE", "PUT"] {
        let answer = http(world.address, method, "/mcp", &[], "").await;
        told += &format!("{method}: {} Allow: {}\n", answer.status, answer.headers["allow"]);
    }
    told += &format!("elsewhere: {}\n", http(world.address, "GET", "/nope", &[], "").await.status);
    expect![[r#"
        no JSON: 400 error -32700: this is no JSON: EOF while parsing an object at line 1 column 1
        an empty body: 400 error -32700: this is no JSON: EOF while parsing a value at line 1 column 0
        a NUL: 400 error -32700: this is no JSON: expected value at line 1 column 1
        deep JSON: 400 error -32700: the JSON is nested deeper than 64 levels
        a huge body: 413 error -32600: the request has 1048634 bytes or more, and the limit is 1048576. Nothing was written.
        plain text: 415 error -32600: send `Content-Type: application/json`, in UTF-8
        a charset: 200 {}
        another charset: 415 error -32600: send `Content-Type: application/json`, in UTF-8
        a name twice: 400 error -32700: this is no JSON: the name "a" stands twice in one object at line 1 column 59
        jsonrpc 1.0: 400 error -32600: `jsonrpc` has to be "2.0"
        a null id: 400 error -32600: `id` has to be a string or an integer
        an object as id: 400 error -32600: `id` has to be a string or an integer
        a fraction as id: 400 error -32600: `id` has to be a string or an integer
        params as list: 400 error -32600: `params` has to be an object
        no method: 400 error -32600: `method` has to be a string
        an answer of the client: 202
        a notification: 202
        an unknown method: 200 error -32601: there is no method `roots/list`
        an unknown tool: 200 error -32602: unknown tool: `nope`; `tools/list` shows the names, and `find_tools` more of them
        no tool: 200 error -32602: `tools/call` needs `name`, a string
        a false cursor: 200 error -32602: this `cursor` is none of ours: list from the start, without one
        a false version: 400 error -32022: protocol version `1999` is not supported
        initialize without version: 200 error -32602: `initialize` needs `protocolVersion`, a string
        a batch of today: 400 error -32600: 2025-11-25 has no batches: send one message a request
        an empty batch: 400 error -32600: a batch has 1 to 50 messages, not 0
        a batch: [{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"the same `id` stands twice in this batch"}},{"jsonrpc":"2.0","id":"b","result":{"content":[{"type":"text","text":"{\"agent_name\":\"agent-a\"}"}],"structuredContent":{"agent_name":"agent-a"}}},{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"a message is a JSON object"}}]
        GET: 405 Allow: POST
        DELETE: 405 Allow: POST
        PUT: 405 Allow: POST
        elsewhere: 404
    "#]].assert_eq(&told);
}

#[tokio::test]
async fn bad_arguments_are_refused_with_the_rule_and_what_to_do() {
    let world = world().await;
    let fact = |name: &str, value: Value| {
        let mut fact = json!({ "entity": "e", "key": "k", "value": "v" });
        fact[name] = value;
        fact
    };
    let mut told = String::new();
    for (tool, arguments) in [
        ("store_fact", fact("colour", "red".into())),
        ("store_fact", json!({ "entity": "e" })),
        ("store_fact", fact("value", 5.into())),
        ("store_fact", fact("value", Value::Null)),
        ("store_fact", fact("value", "x".repeat(16_385).into())),
        ("store_fact", fact("value", "é".repeat(16_000).into())),
        ("store_fact", fact("entity", "".into())),
        ("store_fact", fact("confidence", 1.5.into())),
        ("store_fact", fact("horizon_class", "forever".into())),
        ("store_fact", fact("supersedes", json!(["a", 5]))),
        ("store_fact", fact("idempotency_key", "".into())),
        ("store_fact", fact("idempotency_key", "k".repeat(129).into())),
        ("store_fact", fact("fencing_token", json!(-1))),
        ("query_facts", json!({ "as_of": "yesterday" })),
        ("query_facts", json!({ "idempotency_key": "x" })),
        ("list_entities", json!([])),
        ("list_entities", json!({ "limit": 0 })),
        ("list_entities", json!({ "limit": 1.5 })),
        ("list_entities", json!({ "limit": "seven" })),
        ("query_facts", json!({ "token_budget": 1e300 })),
        ("query_facts", json!({ "token_budget": 18_446_744_073_709_551_616.0 })),
        ("query_facts", json!({ "token_budget": -1 })),
        ("query_facts", json!({ "min_effective_confidence": "high" })),
        ("store_fact", fact("fencing_token", json!(1e300))),
        ("get_agent_identity", json!({ "a": 1, "b": 2, "c": 3, "d": 4, "e": 5 })),
        ("get_agent_identity", json!({ "a": 1, "b": 2 })),
        ("session_checkpoint", json!({ "session_id": "s", "token_budget": 0 })),
        ("session_checkpoint", json!({ "session_id": "s", "token_budget": 2 })),
        ("approval_request", json!({ "action_summary": "x", "risk_tier": "high", "scope": "default" })),
        ("punch_in", json!({ "resource": "file://../a", "holder_passport": "agent-a" })),
        ("punch_in", json!({ "resource": "file://a\u{0}b", "holder_passport": "agent-a" })),
        ("force_release", json!({ "punchcard_id": "pc_1", "confirm": false })),
        ("save_session", json!({ "session_id": "s", "state": { "a": "x".repeat(20_000) } })),
        ("save_session", json!({ "session_id": "s", "state": { "a": "x".repeat(1_000_000) } })),
    ] {
        told += &format!("{tool}: {}\n", world.call(&by("token-operator"), tool, arguments).await.told());
    }
    expect![[r#"
        store_fact: 200 -32602 wrote=no `store_fact` does not know the argument `colour`. Nothing was written. `store_fact` takes `entity`, `key`, `value`, `source_receipt`, `confidence`, `private`, `horizon_class`, `freshness_horizon`, `supersedes`, `idempotency_key` and `fencing_token`.
        store_fact: 200 -32602 wrote=no `store_fact` needs `key` and `value`. Nothing was written. `store_fact` takes `entity`, `key`, `value`, `source_receipt`, `confidence`, `private`, `horizon_class`, `freshness_horizon`, `supersedes`, `idempotency_key` and `fencing_token`.
        store_fact: 200 -32602 wrote=no `value` must be a string, not a number. Nothing was written. Correct it and call `store_fact` again.
        store_fact: 200 -32602 wrote=no `value` must be a string, not null. Nothing was written. Correct it and call `store_fact` again.
        store_fact: 200 -32602 wrote=no `value` is 16385 characters long, and the limit is 16384. Nothing was written. Correct it and call `store_fact` again.
        store_fact: 200 -32602 wrote=no `value` is 32000 bytes long, and the limit is 16384 bytes. Nothing was written. Shorten `value` to 16384 bytes, or split it over several calls.
        store_fact: 200 -32602 wrote=no `entity` must not be empty. Nothing was written. Correct `entity` and call again.
        store_fact: 200 -32602 wrote=no `confidence` must be a number from 0 to 1, not 1.5. Nothing was written. Correct it and call `store_fact` again.
        store_fact: 200 -32602 wrote=no `horizon_class` must be one of `volatile`, `medium`, `stable` and `none`. Nothing was written. Correct it and call `store_fact` again.
        store_fact: 200 -32602 wrote=no `supersedes.1` must be a string, not a number. Nothing was written. Correct it and call `store_fact` again.
        store_fact: 200 -32602 wrote=no `idempotency_key` must have at least 1 characters. Nothing was written. Correct it and call `store_fact` again.
        store_fact: 200 -32602 wrote=no `idempotency_key` is 129 characters long, and the limit is 128. Nothing was written. Correct it and call `store_fact` again.
        store_fact: 200 -32602 wrote=no `fencing_token` must be an integer from 0 to 18446744073709551615, not -1. Nothing was written. Correct it and call `store_fact` again.
        query_facts: 200 -32602 wrote=no `as_of` is no instant: `yesterday`. Nothing was written. Send RFC 3339 with an offset, such as `2026-11-30T12:00:00Z`.
        query_facts: 200 -32602 wrote=no `query_facts` does not know the argument `idempotency_key`. Nothing was written. `query_facts` takes `query`, `entity`, `entity_prefix`, `key`, `top_k`, `token_budget`, `include_superseded`, `as_of`, `min_effective_confidence`, `cursor` and `contract`.
        list_entities: 200 -32602 wrote=no the arguments are no JSON object. Nothing was written. Send an object such as {}.
        list_entities: 200 -32602 wrote=no `limit` must be an integer from 1 to 1000, not 0. Nothing was written. Correct it and call `list_entities` again.
        list_entities: 200 -32602 wrote=no `limit` must be an integer from 1 to 1000, not 1.5. Nothing was written. Correct it and call `list_entities` again.
        list_entities: 200 -32602 wrote=no `limit` must be an integer from 1 to 1000, not a string. Nothing was written. Correct it and call `list_entities` again.
        query_facts: 200 -32602 wrote=no `token_budget` must be an integer from 0 to 18446744073709551615, not 1e+300. Nothing was written. Correct it and call `query_facts` again.
        query_facts: 200 -32602 wrote=no `token_budget` must be an integer from 0 to 18446744073709551615, not 1.8446744073709552e+19. Nothing was written. Correct it and call `query_facts` again.
        query_facts: 200 -32602 wrote=no `token_budget` must be an integer from 0 to 18446744073709551615, not -1. Nothing was written. Correct it and call `query_facts` again.
        query_facts: 200 -32602 wrote=no `min_effective_confidence` must be a number from 0 to 1, not a string. Nothing was written. Correct it and call `query_facts` again.
        store_fact: 200 -32602 wrote=no `fencing_token` must be an integer from 0 to 18446744073709551615, not 1e+300. Nothing was written. Correct it and call `store_fact` again.
        get_agent_identity: 200 -32602 wrote=no `get_agent_identity` does not know the arguments `a`, `b`, `c` and 2 more. Nothing was written. `get_agent_identity` takes no arguments.
        get_agent_identity: 200 -32602 wrote=no `get_agent_identity` does not know the arguments `a` and `b`. Nothing was written. `get_agent_identity` takes no arguments.
        session_checkpoint: 200 -32602 wrote=no `token_budget` must be an integer from 1 to 18446744073709551615, not 0. Nothing was written. Correct it and call `session_checkpoint` again.
        session_checkpoint: 200 -32602 wrote=no the checkpoint has 10 tokens, and `token_budget` allows 2. Nothing was written. Shorten it, or allow more.
        approval_request: 200 -32602 wrote=no `approval_request` needs `token_budget`. Nothing was written. Say how many tokens the act may cost; 0 will do.
        punch_in: 200 -32602 wrote=no `resource` leaves its root with `..`. Nothing was written. Correct `resource` and call again.
        punch_in: 200 -32602 wrote=no `resource` must not hold NUL or other control characters. Nothing was written. Correct `resource` and call again.
        force_release: 200 -32602 wrote=no `confirm` must be true: this takes the card from its holder. Nothing was written. Correct `confirm` and call again.
        save_session: 200 -32602 wrote=no `state` is 20008 bytes long, and the limit is 16384 bytes. Nothing was written. Shorten `state` to 16384 bytes, or split it over several calls.
        save_session: 200 -32602 wrote=no the arguments have 1000068 bytes, and the limit is 983040. Nothing was written. Shorten them, or split them over several calls.
    "#]].assert_eq(&told);
}

#[tokio::test]
async fn a_whole_number_is_an_integer_however_it_is_written() {
    let world = world().await;
    for entity in ["a", "b", "c"] {
        world.ok(&a(), "store_fact", json!({ "entity": entity, "key": "k", "value": "v" })).await;
    }
    let page = |limit: &str| format!(r#"{{"limit":{limit}}}"#);
    for two in ["2", "2.0", "0.2e1"] {
        let answer = world.post(&a(), "/v1/tools/crux/list_entities", &page(two)).await;
        assert_eq!(answer.json()["entities"], json!(["a", "b"]), "{two}");
    }
}

#[tokio::test]
async fn no_refusal_repeats_more_than_a_little_of_what_was_sent() {
    let world = world().await;
    let huge = "x".repeat(200_000);
    let mut refused = 0;
    for entry in everything().entries() {
        for (name, property) in entry.input["properties"].as_object().unwrap() {
            let mut arguments = entry.example.clone();
            arguments[name] = match property["type"].as_str() {
                Some("string") => json!(huge),
                Some("array") => json!([huge]),
                // The keys of an object are content; only its own is an argument's name.
                _ => json!({ huge.as_str(): 1 }),
            };
            let mut unknown = entry.example.clone();
            unknown[&huge] = 1.into();
            for arguments in [arguments, unknown] {
                let answer = world.call(&by("token-operator"), entry.name, arguments).await;
                if answer.json()["result"]["isError"] == true {
                    assert!(answer.text.len() < 3_000, "{}.{name}: {} bytes: {:.300}", entry.name, answer.text.len(), answer.text);
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 150, "{refused}");
    for (method, path) in
        [("tools/call", "/mcp/crux"), (&*huge, "/mcp/crux"), ("tools/list", &*format!("/mcp?groups={}", "g".repeat(50_000)))]
    {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "name": huge } });
        let answer = world.post(&a(), path, &message.to_string()).await;
        assert!(answer.text.contains('…') && answer.text.len() < 1_000, "{} bytes: {:.300}", answer.text.len(), answer.text);
    }
}

// ------------------------------------------------------------------ the tools

/// A gateway that has believed a token until now refuses it: for reads too, and although it may believe it for a while.
#[tokio::test]
async fn a_revoked_passport_is_refused_at_once_for_reads_and_writes() {
    let world = world().await;
    let operator = by("token-operator");
    world.ok(&b(), "list_entities", json!({})).await;
    world.ok(&operator, "revoke_passport", json!({ "target_passport": "agent-b" })).await;
    for (tool, arguments) in
        [("list_entities", json!({})), ("store_fact", json!({ "entity": "e", "key": "k", "value": "v" })), ("get_passport", json!({}))]
    {
        let answer = world.call(&b(), tool, arguments).await;
        assert!(answer.status == 401 || answer.text.contains("passport `agent-b` is revoked"), "{tool}: {}", answer.text);
    }
    // The flag is what enforces it.
    world.fake.run(SetFlag { name: "CRUX_PASSPORT_REVOCATION".into(), value: "off".into() }.into()).unwrap();
    until(async || world.call(&b(), "list_entities", json!({})).await.status == 200).await;
    world.ok(&b(), "list_entities", json!({})).await;
}

#[tokio::test]
async fn a_tool_that_is_switched_off_is_absent_from_the_list_and_answers_minus_32601() {
    let world = world().await;
    let listed = async |path: &str| {
        let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string();
        let tools = world.post(&a(), path, &list).await.json()["result"]["tools"].clone();
        tools.as_array().unwrap().iter().any(|tool| tool["name"] == "request_passport_mint")
    };
    let path = "/mcp/crux?groups=identity";
    assert!(listed(path).await);
    world.fake.run(SetFlag { name: "CORECRUXD_FEATURE_PASSPORT_MINT_REQUESTS".into(), value: "off".into() }.into()).unwrap();
    assert!(!listed(path).await);
    let told = world.call(&a(), "request_passport_mint", json!({})).await.told();
    assert!(told.starts_with("200 -32601 wrote=no request_passport_mint is switched off"), "{told}");
}

/// The package brings along whatever key it likes: the sender's own is the one that counts.
#[tokio::test]
async fn a_package_whose_hash_or_signature_does_not_hold_loads_nothing() {
    let world = world().await;
    world.ok(&a(), "save_session", json!({ "session_id": "s", "state": { "n": 1 } })).await;
    let made = world.ok(&a(), "create_handoff", json!({ "session_id": "s" })).await;
    let package: Value = serde_json::from_str(made["package_json"].as_str().unwrap()).unwrap();
    let payload = STANDARD.decode(package["payload_b64"].as_str().unwrap()).unwrap();
    let own = world.ok(&a(), "get_passport", json!({})).await;
    assert_eq!(package["public_key_hex"], own["public_key_hex"]);

    let forged = String::from_utf8(payload).unwrap().replace("agent-a", "operator");
    let key = SigningKey::from_bytes(&[9; 32]);
    let changed = |field: &str, value: Value| {
        let mut package = package.clone();
        package[field] = value;
        package
    };
    let mut resigned = changed("payload_b64", STANDARD.encode(&forged).into());
    resigned["content_hash"] = blake3::hash(forged.as_bytes()).to_hex().to_string().into();
    let unsigned = resigned.clone();
    resigned["signature_b64"] = STANDARD.encode(key.sign(forged.as_bytes()).to_bytes()).into();
    resigned["public_key_hex"] = hex::encode(key.verifying_key().to_bytes()).into();
    for bad in [
        resigned,
        unsigned,
        changed("payload_b64", STANDARD.encode(&forged).into()),
        changed("content_hash", "0".repeat(64).into()),
        changed("signature_b64", STANDARD.encode([0; 64]).into()),
        changed("signature_b64", "?".into()),
        changed("signature_alg", "blake3-mac-v1".into()),
    ] {
        let answer = world.ok(&b(), "accept_handoff", json!({ "package": bad.to_string() })).await;
        assert_eq!((&answer["verified"], &answer["session_loaded"], &answer["facts_loaded"]), (&json!(false), &json!(false), &json!(0)));
    }
    let foreign = world.ok(&by("token-other"), "accept_handoff", json!({ "package": made["package_json"] })).await;
    assert_eq!(foreign["verified"], false, "the sender of that name in another tenant has another key");
    assert!(world.call(&b(), "accept_handoff", json!({ "package": "{}" })).await.told().starts_with("200 -32602"));
    assert_eq!(world.ok(&b(), "accept_handoff", json!({ "package": made["package_json"] })).await["verified"], true);
}

#[tokio::test]
async fn a_change_of_identity_needs_its_flag_and_then_a_token_budget() {
    let world = world().await;
    let (operator, fingerprint) = (by("token-operator"), "0".repeat(64));
    let link = async |arguments: Value| world.call(&operator, "passport_link_device", arguments).await.told();
    let told = link(json!({ "device_fingerprint": fingerprint })).await;
    assert!(told.starts_with("200 -32602 wrote=no token_budget is required (positive integer) per QC.2"), "{told}");
    let told = link(json!({ "device_fingerprint": fingerprint, "token_budget": 0 })).await;
    assert!(told.starts_with("200 -32602 wrote=no `token_budget` must be"), "{told}");
    let told = link(json!({ "device_fingerprint": "A".repeat(64), "token_budget": 5 })).await;
    assert!(told.starts_with("200 -32602 wrote=no `device_fingerprint`"), "{told}");
    world.fake.run(SetFlag { name: "CORECRUXD_FEATURE_IDENTITY_CONTINUITY".into(), value: "off".into() }.into()).unwrap();
    let told = link(json!({ "device_fingerprint": fingerprint })).await;
    assert!(told.starts_with("200 -32601 wrote=no passport_link_device is switched off"), "{told}");
}

/// Calls every tool in a sensible order; each answer has to fit the tool's own `outputSchema`.
#[tokio::test]
async fn every_answer_fits_its_schema() {
    let (there, folder) = (world().await, tempfile::tempdir().unwrap());
    there.ok(&a(), "store_fact", json!({ "entity": "svc:shared", "key": "owner", "value": "them" })).await;
    let world = exchange::world_beside(&there, &folder).await;
    let (operator, catalog) = (by("token-operator"), everything());
    let mut called = std::collections::BTreeSet::new();
    let mut run = async |caller: &Caller, tool: &'static str, arguments: Value| {
        called.insert(tool);
        let facts = world.ok(caller, tool, arguments).await;
        let validator = jsonschema::validator_for(&catalog.find(tool).unwrap().output).unwrap();
        let problems: Vec<String> = validator.iter_errors(&facts).map(|error| format!("{error} at {}", error.instance_path())).collect();
        assert_eq!(problems, Vec::<String>::new(), "{tool}: {facts}");
        facts
    };
    let fact = run(&a(), "store_fact", json!({ "entity": "svc:api", "key": "owner", "value": "platform" })).await;
    run(&a(), "store_fact", json!({ "entity": "svc:api", "key": "owner", "value": "core", "confidence": 0.5, "horizon_class": "stable" }))
        .await;
    let rows = run(&a(), "query_facts", json!({ "entity": "svc:api", "include_superseded": true, "min_effective_confidence": 0.9 })).await;
    assert!(rows["filtered_below_threshold"].is_u64(), "{rows}");
    run(&a(), "fact_history", json!({ "entity": "svc:api", "key": "owner" })).await;
    run(&a(), "list_entities", json!({})).await;

    for id in ["search", "index"] {
        let payload =
            json!({ "id": id, "name": id, "system": "core", "maturity": "built", "files": ["src/lib.rs"], "promise_alignment": [3] });
        run(&a(), "entity_upsert", json!({ "kind": "capability", "id": id, "payload": payload })).await;
    }
    let audited = run(&a(), "feature_trigger_audit", json!({ "id": "index", "status": "audited", "notes": "done" })).await;
    assert_eq!((&audited["version"], &audited["capability"]["audit"]["auditor"]), (&json!(2), &json!("agent-a")));
    run(&b(), "feature_file_search", json!({ "path": "lib.rs" })).await;
    run(&b(), "feature_coverage_report", json!({})).await;
    run(&b(), "feature_suggest_next", json!({})).await;
    let edge = json!({ "from_kind": "capability", "from_id": "search", "edge_kind": "uses", "to_kind": "capability", "to_id": "index" });
    run(&a(), "edge_upsert", edge.clone()).await;
    assert_eq!(run(&a(), "edge_get", edge.clone()).await["edge"]["version"], 1);
    assert_eq!(run(&a(), "edge_list", json!({ "to_id": "index" })).await["count"], 1);
    assert_eq!(run(&a(), "graph_traverse", json!({ "kind": "capability", "id": "index", "direction": "in" })).await["count"], 1);
    run(&a(), "edge_delete", edge.clone()).await;
    assert_eq!(run(&a(), "edge_get", edge).await["edge"], Value::Null);
    let named = json!({ "kind": "capability", "id": "search" });
    run(&a(), "entity_delete", named.clone()).await;
    assert_eq!(run(&a(), "entity_get", named.clone()).await["entity"], Value::Null);
    assert_eq!(run(&a(), "entity_list", json!({})).await["count"], 1);
    assert_eq!(run(&a(), "entity_history", named).await["versions"][1]["deleted"], true);
    run(&a(), "kind_list", json!({})).await;
    run(&a(), "kind_get", json!({ "kind": "capability" })).await;
    assert_eq!(run(&a(), "kind_get", json!({ "kind": "none" })).await["registration"], Value::Null);
    run(&a(), "delete_fact", json!({ "fact_id": fact["fact_id"] })).await;
    let old = run(&a(), "store_fact", json!({ "entity": "svc:old", "key": "owner", "value": "x" })).await;
    let new = run(&a(), "store_fact", json!({ "entity": "svc:new", "key": "owner", "value": "x", "supersedes": [old["fact_id"]] })).await;
    let back = run(&a(), "reinstate_facts", json!({ "fact_ids": [old["fact_id"]] })).await;
    assert_eq!(back["facts"][0]["was_superseded_by"], new["fact_id"]);
    for gone in [old, new] {
        run(&a(), "delete_fact", json!({ "fact_id": gone["fact_id"] })).await;
    }

    let view = run(&a(), "memory_view", json!({ "entity": "svc:api" })).await;
    assert_eq!(
        (&view["returned"], &view["facts"][0]["source_receipt"], &view["facts"][0]["pinned"]),
        (&json!(1), &Value::Null, &json!(false))
    );
    let id = view["facts"][0]["id"].clone();
    run(&a(), "memory_pin", json!({ "fact_id": id })).await;
    run(&a(), "memory_set_horizon", json!({ "fact_id": id, "horizon_class": "medium" })).await;
    let proof = run(&a(), "memory_reverify", json!({ "fact_id": id })).await;
    assert_eq!(run(&a(), "receipt_verify", json!({ "receipt_id": proof["receipt_id"] })).await["verified"], true);
    let edited = run(&a(), "memory_edit", json!({ "fact_id": id, "new_value": "infra" })).await;
    assert_eq!((&edited["new_fact"]["pinned"], &edited["new_fact"]["horizon_class"]), (&json!(true), &json!("medium")));
    let protected = json!({ "entity": "svc:api", "key": "owner", "canonical_value": "x", "target_fact_ids": [edited["new_fact"]["id"]] });
    let told = world.call(&a(), "memory_consolidate", protected.clone()).await.told();
    assert!(told.contains(r#""CAPABILITY_DENIED" wrote=no"#) && told.contains("is protected: you pinned it"), "{told}");
    let done = run(&b(), "memory_consolidate", protected).await;
    assert_eq!(done["receipt"]["superseded_fact_ids"], json!([edited["new_fact"]["id"]]));
    run(&a(), "memory_history", json!({ "fact_id": id })).await;
    run(&a(), "memory_freshness", json!({})).await;
    let candidates = run(&a(), "memory_sweep_candidates", json!({})).await;
    assert_eq!(candidates["rows"][0]["reason"], "superseded", "{candidates}");
    run(&a(), "store_fact", json!({ "entity": "svc:api", "key": "on", "value": "yes" })).await;
    run(&a(), "store_fact", json!({ "entity": "svc:api", "key": "on", "value": "no", "private": true })).await;
    assert_eq!(run(&a(), "memory_contradictions", json!({})).await["count"], 1);
    let decision = run(&a(), "record_decision", json!({ "action": "use one parser", "rationale": "two of them drift" })).await;
    assert_eq!(run(&a(), "receipt_verify", json!({ "receipt_id": decision["decision_id"] })).await["verified"], true);

    let saved = run(&a(), "save_session", json!({ "session_id": "s", "state": { "title": "t" } })).await;
    let stale = world.call(&a(), "save_session", json!({ "session_id": "s", "state": {}, "expected_revision": 1 })).await.told();
    assert!(stale.contains("-32004"), "{stale} after {saved}");
    run(
        &a(),
        "session_checkpoint",
        json!({ "session_id": "c", "token_budget": 500, "decisions": [1, "b"], "test_status": null, "objective": "o" }),
    )
    .await;
    let checkpoint = run(&a(), "get_session", json!({ "session_id": "c" })).await;
    assert_eq!(checkpoint["state"], json!({ "schema": "crux.session_checkpoint.v1", "objective": "o", "decisions": [1, "b"] }));
    run(&a(), "archive_session", json!({ "session_id": "s", "reason": "done" })).await;
    run(&a(), "list_sessions", json!({ "include_archived": true, "titles": true })).await;
    run(&a(), "unarchive_session", json!({ "session_id": "s" })).await;
    run(&a(), "delete_session", json!({ "session_id": "s" })).await;

    run(&a(), "get_agent_identity", json!({})).await;
    run(&a(), "resolve_principal", json!({ "passport_id": "operator" })).await;
    let own = run(&a(), "resolve_principal", json!({})).await;
    assert_eq!(own["principal"]["tenant_id"], "default");

    let asked =
        run(&a(), "approval_request", json!({ "action_summary": "drop", "risk_tier": "high", "scope": "default", "token_budget": 0 }))
            .await;
    let waiting =
        http(world.address, "GET", "/v1/approvals?status=pending", &[("Authorization".into(), "Bearer token-operator".into())], "").await;
    assert_eq!(waiting.json()["approvals"][0]["request_id"], asked["request_id"]);
    let decided = run(&operator, "approval_decide", json!({ "request_id": asked["request_id"], "decision": "approve" })).await;
    let receipt = run(&a(), "receipt_verify", json!({ "receipt_id": decided["receipt_id"] })).await;
    assert_eq!((&receipt["verified"], &receipt["errors"]), (&json!(true), &json!([])), "{receipt}");
    assert!(receipt["report"]["body"].is_object(), "the body reads as JSON: {receipt}");
    let foreign = run(&by("token-other"), "receipt_verify", json!({ "receipt_id": decided["receipt_id"] })).await;
    let nowhere = run(&by("token-other"), "receipt_verify", json!({ "receipt_id": "ad_nope" })).await;
    assert_eq!((&foreign["verified"], &foreign["errors"]), (&json!(false), &json!(["NOT_FOUND"])), "{foreign}");
    assert_eq!(foreign.to_string().replace(decided["receipt_id"].as_str().unwrap(), "ID"), nowhere.to_string().replace("ad_nope", "ID"));

    let lease = json!({ "resource": "file://src/lib.rs", "holder_passport": "agent-a", "ttl_ms": 60_000 });
    let card = run(&a(), "punch_in", lease.clone()).await;
    let again = run(&a(), "punch_in", lease).await;
    assert_eq!((&card["renewed"], &again["renewed"], &again["fencing_token"]), (&json!(false), &json!(true), &card["fencing_token"]));
    let seen = run(&b(), "check_punchcard", json!({ "resource": "tree://src" })).await;
    assert_eq!((&seen["held_by_other"], &seen["enforce"], &seen["holder_passport"]), (&json!(true), &json!(true), &json!("agent-a")));
    let free = run(&b(), "check_punchcard", json!({ "resource": "file://other", "max_staleness_ms": 1000 })).await;
    assert_eq!((&free["holder_passport"], &free["mode"], &free["expires_at_unix_ms"]), (&Value::Null, &Value::Null, &Value::Null));
    run(&b(), "list_punchcards", json!({ "status": "held" })).await;
    run(&a(), "punch_out", json!({ "resource": "file://src/./lib.rs", "holder_passport": "agent-a", "release_commit_sha": "abc" })).await;
    let stuck = run(&a(), "punch_in", json!({ "resource": "service://x", "holder_passport": "agent-a", "reason": "why" })).await;
    run(&operator, "force_release", json!({ "punchcard_id": stuck["id"], "confirm": true, "reason": "gone" })).await;

    let project = run(&a(), "list_projects", json!({})).await["projects"][0]["id"].clone();
    run(&a(), "get_project_context", json!({ "project_id": project })).await;
    let created = json!({ "project_id": project, "title": "parser", "body": "all of it", "created_by_passport": "agent-a" });
    let item = run(&a(), "create_work", created).await;
    let id = &item["id"];
    assert_eq!((&item["state"], &item["assignee_passport"]), (&json!("planned"), &json!("agent-a")));
    let moved = run(&b(), "update_work_state", json!({ "work_id": id, "state": "in_progress", "by_passport": "agent-b" })).await;
    assert_eq!((&moved["applied"], &moved["work"]["state"]), (&json!(true), &json!("in_progress")));
    let no_reason = json!({ "work_id": id, "state": "blocked", "by_passport": "agent-a" });
    let told = world.call(&a(), "update_work_state", no_reason).await.told();
    assert!(told.starts_with("200 -32602 wrote=no `blocker_reason` is missing"), "{told}");
    run(&b(), "comment_on_work", json!({ "work_id": id, "author_passport": "agent-b", "body": "started" })).await;
    let shown = run(&a(), "list_work", json!({ "work_id": id })).await;
    assert_eq!((&shown["work"][0]["comments"], &shown["comments"][0]["author_passport"]), (&json!(1), &json!("agent-b")));
    world.fake.run(SetWorkGate { tenant: "default".into(), passport: "agent-a".into(), gated: true }.into()).unwrap();
    assert_eq!(run(&b(), "resolve_principal", json!({ "passport_id": "agent-a" })).await["principal"]["agent_work_gate"], true);
    assert_eq!(run(&a(), "resolve_principal", json!({})).await["principal"]["agent_work_gate"], true);
    let waiting = run(&a(), "update_work_state", json!({ "work_id": id, "state": "complete", "by_passport": "agent-a" })).await;
    assert_eq!((&waiting["applied"], &waiting["queued"]["status"]), (&json!(false), &json!("pending")));
    let action = &waiting["queued"]["action_id"];
    let asked = run(&operator, "list_work", json!({ "state": "pending_approval" })).await;
    assert_eq!((&asked["work"][0]["id"], &asked["work"][0]["kind"], &asked["count"]), (action, &json!("approval"), &json!(1)));
    run(&operator, "approval_decide", json!({ "request_id": action, "decision": "approve" })).await;
    let done = run(&a(), "list_work", json!({ "state": "complete" })).await;
    assert_eq!((&done["work"][0]["id"], &done["work"][0]["comments"]), (id, &json!(1)));
    let feed = run(&a(), "status_feed", json!({})).await;
    let verbs: Vec<&str> = feed["events"].as_array().unwrap().iter().map(|event| event["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["CLAIMED", "HUMAN_HOLD", "DONE"]);
    run(&a(), "create_work", json!({ "project_id": project, "title": "docs", "created_by_passport": "agent-a" })).await;
    let made = run(&a(), "create_orchestrator", json!({ "name": "release", "created_by_passport": "agent-a" })).await;
    let orchestrator = &made["id"];
    run(&a(), "attach_to_orchestrator", json!({ "orchestrator_id": orchestrator, "member_ref": id })).await;
    let shown = run(&b(), "list_work", json!({ "work_id": id })).await;
    assert_eq!(&shown["work"][0]["orchestrator_id"], orchestrator);
    run(&b(), "list_orchestrators", json!({})).await;
    run(&a(), "detach_from_orchestrator", json!({ "orchestrator_id": orchestrator, "member_ref": id })).await;
    run(&a(), "update_orchestrator", json!({ "orchestrator_id": orchestrator, "state": "archived" })).await;
    run(&a(), "session_token_usage", json!({})).await;
    run(&a(), "tool_trace_recent", json!({ "top_k": 3 })).await;
    run(&a(), "learn", json!({ "min_repeats": 2 })).await;
    run(&a(), "token_savings", json!({})).await;
    run(&a(), "activity_recent", json!({ "session_id": "build-42" })).await;
    let focus = json!({ "session_id": "00ff", "project_id": project, "paths": ["src"], "note": "parser" });
    run(&a(), "coord_announce", focus).await;
    let near = run(&b(), "coord_announce", json!({ "session_id": "0b", "project_id": project, "paths": ["src/lib.rs"] })).await;
    assert_eq!((&near["overlaps"][0]["kind"], &near["live_peer_intents"][0]["passport_id"]), (&json!("intent_path"), &json!("agent-a")));
    run(&a(), "punch_in", json!({ "resource": "tree://src", "holder_passport": "agent-a" })).await;
    let floor = run(&b(), "coord_status", json!({ "project_id": project })).await;
    assert_eq!(floor["active_sessions"][0]["leases"].as_array().map(Vec::len), Some(1), "{floor}");
    let cleared = run(&b(), "coord_announce", json!({ "session_id": "0b", "project_id": project, "ttl_seconds": 0 })).await;
    assert_eq!((&cleared["intent"], &cleared["cleared"]), (&Value::Null, &json!(true)));

    let told = json!({ "provider": "codex-cli", "kind": "tool_use", "payload": { "z": 1, "a": [] } }).to_string();
    let made = world.post(&a(), "/v1/sessions/build-42/observations", &told).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let observed = run(&b(), "list_observations", json!({ "session_id": "build-42" })).await;
    let one = json!({ "session_id": "build-42", "observation_id": made.json()["observation_ids"][0] });
    assert_eq!(run(&b(), "get_observation", one.clone()).await, observed["observations"][0]);
    assert_eq!(run(&b(), "verify_observation", one).await["ok"], true);
    let attested = json!({ "content_bytes_base64": "aGVsbG8=", "receipt_id": decision["decision_id"], "token_budget": 2 });
    let manifest = run(&a(), "output_attest", attested).await["manifest"].clone();
    assert_eq!(manifest["content_hash_blake3_hex"], blake3::hash(b"hello").to_hex().to_string());
    let exported = run(&a(), "audit_export_bundle", json!({ "token_budget": 100_000 })).await;
    assert_eq!((&exported["fact_count"], &exported["receipt_count"]), (&json!(4), &json!(1)), "{exported}");
    let card = run(&a(), "context_custody_audit", json!({})).await;
    assert_eq!((&card["lock_in_risk"], &card["exit_test"].as_array().map(Vec::len)), (&json!(1), &Some(6)), "{card}");

    let found = run(&a(), "find_tools", json!({ "query": "archive a session" })).await;
    assert_eq!(found["tools"][0]["name"], "archive_session");
    let through = run(&a(), "call_tool", json!({ "name": "list_entities" })).await;
    assert!(through["entities"].is_array());
    let given = json!({ "session_id": "c", "include_facts": true, "target_agent": "agent-b", "task_record": { "requester": "olga" } });
    let package = run(&a(), "create_handoff", given).await;
    let taken = run(&b(), "accept_handoff", json!({ "package": package["package_json"] })).await;
    assert_eq!(
        (&taken["verified"], &taken["session_loaded"], &taken["task_record"]),
        (&json!(true), &json!(true), &json!({ "requester": "olga" }))
    );

    let declared = json!({ "constraint_type": "boundary", "assertion": "never deploy on a Friday", "severity": "critical" });
    run(&a(), "declare_constraint", declared).await;
    let told = world.call(&a(), "declare_constraint", json!({ "constraint_type": "shell_pattern", "assertion": "rm (" })).await.told();
    assert!(told.starts_with("200 -32602 wrote=no `assertion` is no regular expression"), "{told}");
    assert_eq!(run(&b(), "get_constraints", json!({})).await["count"], 1);
    let blocked = run(&b(), "check_constraints", json!({ "action_description": "deploy the api" })).await;
    assert_eq!((&blocked["verdict"], &blocked["matched_constraints"][0]["match_score"]), (&json!("block"), &json!(0.5)));
    assert!(run(&b(), "check_constraints", json!({})).await["note"].is_string());
    let file = json!({ "path": "settings.json", "sha256": "0".repeat(64), "auditor": "ops" });
    assert_eq!(run(&a(), "audit_config", file).await["created"], true);
    let files = json!({ "paths": [{ "path": "a", "sha256": "0".repeat(64) }, { "path": "b", "sha256": "1".repeat(64) }] });
    let checked = run(&b(), "check_config_audit", files).await;
    assert_eq!((&checked["audited"][0]["audited_path"], &checked["unaudited"][0]["path"]), (&json!("settings.json"), &json!("b")));
    let told = run(&b(), "enrich_action", json!({ "tool_name": "Bash", "tool_parameters": { "command": "drop it" } })).await;
    assert_eq!(told["consequence_metadata"]["reversibility"], "irreversible");

    let issued = run(&a(), "issue_passport", json!({ "sponsor_id": "operator" })).await;
    let own = run(&a(), "get_passport", json!({})).await;
    assert_eq!(
        (&own["sponsor_id"], &own["issued_at"], own["receipt_count"].as_u64() > Some(4)),
        (&json!("operator"), &issued["issued_at"], true)
    );
    let asked = run(&a(), "request_passport_mint", json!({ "requested_category": "public", "reason": "a demo" })).await;
    run(&operator, "approval_decide", json!({ "request_id": asked["request_id"], "decision": "approve" })).await;
    let own = json!({ "target_passport": "operator", "new_passport_name": "operator-b", "token_budget": 500 });
    let split = run(&operator, "passport_split", own).await;
    assert_eq!(run(&a(), "receipt_verify", json!({ "receipt_id": split["split_receipt_id"] })).await["verified"], true);
    let two =
        json!({ "source_passport": "operator-b", "target_passport": "operator", "conflict_policy": "prefer_target", "token_budget": 1 });
    let merged = run(&operator, "passport_merge", two).await;
    assert_eq!((&merged["retired_passport_id"], &merged["conflicts_resolved"]), (&json!("operator-b"), &json!(0)));
    let device = run(&operator, "passport_link_device", json!({ "device_fingerprint": "0a".repeat(32), "token_budget": 500 })).await;
    assert_eq!(device["capabilities_subset"], json!(["facts:read"]));
    let revoked = run(&operator, "revoke_passport", json!({ "target_passport": "agent-b", "reason": "lost laptop" })).await;
    assert_eq!(run(&a(), "receipt_verify", json!({ "receipt_id": revoked["receipt_id"] })).await["verified"], true);

    run(&a(), "cuecrux_session", json!({ "intent": "audit_review", "hints": { "want_parent_chain": true } })).await;
    run(&a(), "autonomy_contract", json!({})).await;
    run(&a(), "reuse_check", json!({ "tenant_id": "local", "description": "the index of search" })).await;
    run(&a(), "engram_resolve", json!({})).await;
    run(&a(), "engram_resolve", json!({ "names": ["code-minimalism@v1"] })).await;
    run(&a(), "get_bootstrap", json!({ "topic": "errors" })).await;
    let facts = run(&a(), "query_facts", json!({ "entity": "svc:api", "key": "owner" })).await;
    let told = json!({ "turn_id": "t", "fact_ids": [facts["rows"][0]["fact_id"]], "confidence": 0.5 });
    assert_eq!(run(&a(), "memory_acknowledge_use", told).await["filtered_count"], 1);
    run(&a(), "store_fact", json!({ "entity": "scratch:x", "key": "k", "value": "v" })).await;
    let scope = json!({ "type": "entity_prefix", "value": "scratch:" });
    run(&a(), "memory_forget_dry_run", json!({ "scope": scope })).await;
    let forgotten = run(&a(), "memory_forget", json!({ "scope": scope, "reason": "a trial" })).await;
    run(&a(), "memory_forget_undo", json!({ "forget_receipt_id": forgotten["forget_receipt_id"] })).await;
    run(&a(), "route_access_matrix", json!({})).await;
    run(&a(), "auth_posture_audit", json!({})).await;
    run(&a(), "egress_policy_check", json!({ "target": "https://example.org" })).await;
    let gate =
        json!({ "slug": "search", "milestone": "M1", "status": "skipped", "commit_sha": "0", "token_budget": 1, "artifacts": ["a"] });
    run(&a(), "execplan_gate", gate).await;
    run(&a(), "update_status", json!({})).await;
    assert_eq!(run(&a(), "sync_pull", json!({})).await["facts_pulled"], 1);
    assert_eq!(run(&operator, "sync_push", json!({})).await["mode"], "tenant_promotion_preview");
    assert!(run(&operator, "sync_push", json!({ "confirm": true, "allowlist": ["facts"] })).await["facts_pushed"].as_u64() > Some(0));
    assert_eq!(run(&a(), "sync_status", json!({})).await["platform_online"], true);
    let registered = json!({ "tenant_id": "default", "repo_id": "api", "clone_url": "https://example.org/acme/api.git" });
    run(&a(), "register_repo", registered).await;
    run(&a(), "list_repos", json!({ "tenant_id": "local" })).await;
    world.scanned("api").await;
    let tree = run(&a(), "get_workspace_storyline", json!({ "include_tests": true })).await;
    assert_eq!(tree["tree"], "GET /a  list\nsrc/http.rs::list - Answers.\n1 files, 0 deep, 0 branches cut off\n\n");
    let graph = run(&a(), "get_workspace_storyline", json!({ "format": "json" })).await;
    assert_eq!(graph["routes"][0]["chain"][0], graph["files"][0]["i"]);
    run(&a(), "github_search", json!({ "query": "receipt" })).await;
    run(&a(), "github_recent_commits", json!({ "repo": "acme/api" })).await;
    run(&a(), "github_open_prs", json!({ "repo": "acme/api" })).await;
    run(&a(), "github_open_issues", json!({ "repo": "acme/api", "label": "bug" })).await;
    run(&a(), "github_comments_since", json!({ "since": "2026-01-31T00:00:00Z" })).await;
    let parked = run(&a(), "artefact_put", json!({ "content_bytes_base64": "aGVsbG8=", "mime_type": "text/plain" })).await;
    run(&a(), "artefact_get", json!({ "artefact_id": parked["artefact_id"] })).await;
    run(&a(), "artefact_list", json!({})).await;

    let found = run(&a(), "query", json!({ "tenant_id": "local", "query": "parser unheardof", "contract": "crc-v1" })).await;
    assert!(found["results"].as_array().is_some_and(|rows| !rows.is_empty()), "{found}");
    run(&a(), "query_scan", json!({ "tenant_id": "local", "query": "parser", "contract": "crc-v1" })).await;
    let ids = json!([found["results"][0]["doc_id"], "f_none"]);
    let read = run(&a(), "query_expand", json!({ "tenant_id": "local", "result_ids": ids, "contract": "crc-v1" })).await;
    assert_eq!((&read["crc_v1"]["kind"], &read["missing"][0]["doc_id"]), (&json!("addressed"), &json!("f_none")));
    run(&a(), "query", json!({ "tenant_id": "local", "query": "zebra unheardof" })).await;
    assert_eq!(run(&a(), "get_gaps", json!({})).await["gaps"].as_array().map(Vec::len), Some(1));
    world.fake.run(SetFlag { name: flag::AUDIT_ENVELOPE.name.into(), value: "on".into() }.into()).unwrap();
    run(&a(), "query_facts", json!({ "contract": "crc-v1" })).await;

    let all: std::collections::BTreeSet<&str> = catalog.entries().iter().map(|entry| entry.name).collect();
    assert_eq!(called, all, "every tool was called");
}

impl World {
    /// Sends a scan of one file with one route, as `quorate scan` does.
    async fn scanned(&self, repo: &str) {
        let file = json!({ "path": "src/http.rs", "package": "api", "module": "http", "doc": "Answers.", "language": "rust", "lines": 3,
            "functions": 1, "is_test": false, "problem": null, "edges": [], "edges_left_out": 0 });
        let route = json!({ "method": "GET", "path": "/a", "handler": "list", "file": "src/http.rs", "declared_in": "src/http.rs", "problem": null });
        let send = async |what: &str, body: Value| {
            let answer = self.post(&a(), &format!("/v1/repos/{repo}/scan{what}"), &body.to_string()).await;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text);
            answer.json()
        };
        let put = send("/parts", json!({ "parts": [{ "files": [file] }, { "routes": [route] }] })).await;
        assert_eq!(send("/missing", json!({ "parts": put["parts"] })).await, json!({ "missing": [] }));
        let totals = json!({ "files": 1, "lines": 3, "routes": 1, "problems": 0 });
        let finish = json!({ "file_parts": [put["parts"][0]], "route_parts": [put["parts"][1]], "totals": totals });
        send("", finish).await;
    }
}

// ------------------------------------------------------------------ proofs

impl World {
    async fn get(&self, caller: &Caller, path: &str) -> Answer {
        let token = caller.token.map(|token| ("Authorization".to_string(), format!("Bearer {token}")));
        http(self.address, "GET", path, &token.into_iter().collect::<Vec<_>>(), "").await
    }

    /// A proof, which has to be valid under the cluster's key.
    async fn proof(&self, caller: &Caller, path: &str) -> (Value, quorate_proof::Report) {
        let answer = self.get(caller, path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let report = quorate_proof::verify(answer.text.as_bytes(), None).unwrap_or_else(|fault| panic!("{path}: {fault}: {}", answer.text));
        assert_eq!(report.public_key, self.fake.receipt_key_hex());
        (answer.json(), report)
    }

    async fn decide(&self, caller: &Caller) -> String {
        let decision = self.ok(caller, "record_decision", json!({ "action": "a", "rationale": "r" })).await;
        decision["decision_id"].as_str().unwrap().into()
    }
}

#[tokio::test]
async fn receipts_heads_and_proofs_over_http_verify_without_the_server() {
    let world = world().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(world.decide(&a()).await);
    }
    world.decide(&by("token-other")).await;
    for (seq, id) in ids.iter().enumerate() {
        let (receipt, report) = world.proof(&b(), &format!("/v1/receipts/{id}")).await;
        assert_eq!((&receipt["seq"], report.size, report.origin.as_str()), (&json!(seq), 5, "quorate/fake/default"));
    }
    assert_eq!(world.proof(&a(), &format!("/v1/receipts/{}?size=2", ids[1])).await.1.size, 2);
    assert_eq!(world.proof(&a(), "/v1/log/head").await.1.size, 5);
    assert_eq!(world.proof(&a(), "/v1/log/head?size=3&at_least=1").await.1.size, 3);
    assert_eq!(world.proof(&a(), "/v1/log/proof/inclusion?seq=4").await.0["proof"].as_array().unwrap().len(), 1);
    let (_, report) = world.proof(&a(), "/v1/log/proof/consistency?from=2&to=5").await;
    assert_eq!(report.shows, "the log of 5 receipts continues the log of 2");
    assert_eq!(world.proof(&by("token-other"), "/v1/log/head").await.1.size, 1);
    world.fake.run(AddReceiptKey { public_key: world.fake.receipt_key_hex() }.into()).unwrap();
    let ring = world.get(&b(), "/v1/log/keys").await.json();
    assert_eq!((&ring["keys"][0]["public_key"], &ring["keys"][0]["key_id"]), (&json!(report.public_key), &json!(report.key_id)), "{ring}");
}

#[tokio::test]
async fn a_gateway_goes_on_over_a_rotation_by_the_word_of_both_keys_and_by_nothing_else() {
    let world = world().await;
    let id = world.decide(&a()).await;
    let old_text = world.get(&a(), "/v1/log/head").await.text;
    let old = quorate_proof::verify(old_text.as_bytes(), None).unwrap();
    let verified = async || world.ok(&a(), "receipt_verify", json!({ "receipt_id": id })).await;
    assert_eq!(verified().await["report"]["public_key"], json!(old.public_key));
    let next = world.fake.rotate();
    let told = verified().await;
    assert_eq!((&told["verified"], &told["report"]["public_key"]), (&json!(true), &json!(next)), "{told}");
    let saved = world.get(&a(), "/v1/log/head").await;
    assert_eq!(quorate_proof::verify(saved.text.as_bytes(), None).unwrap().public_key, next);
    let ring = world.get(&a(), "/v1/log/keys").await;
    assert_eq!((&ring.json()["signing"], ring.json()["keys"].as_array().unwrap().len()), (&json!(next), 2));
    let ring = quorate_proof::ring::Ring::read(ring.text.as_bytes()).unwrap();
    let old_key = quorate_proof::ring::public(&old.public_key).unwrap();
    assert_eq!(ring.receipt_keys(&[old_key]).len(), 2, "who trusts the old one can go on to the new one");
    assert!(quorate_proof::verify(old_text.as_bytes(), Some(&old_key)).is_ok(), "what was saved before");

    // A gateway that was given neither key believes nothing that the cluster tells it.
    let config = Config {
        listen: "127.0.0.1:0".into(),
        nodes: world.fake.addresses(),
        session_key: "07".repeat(32),
        receipt_keys: vec![quorate_proof::public_key(&"09".repeat(32)).unwrap()],
        ..Config::default()
    };
    let gateway = Gateway::bind(config).await.unwrap();
    let stranger = World { fake: world.fake.clone(), address: gateway.address() };
    tokio::spawn(gateway.serve(std::future::pending()));
    until(async || http(stranger.address, "GET", "/readyz", &[], "").await.status == 200).await;
    let told = stranger.ok(&a(), "receipt_verify", json!({ "receipt_id": id })).await;
    assert!(told["verified"] == false && told["errors"][0].as_str().unwrap().starts_with("UNKNOWN_KEY"), "{told}");
}

#[tokio::test]
async fn the_newest_head_comes_with_the_cosignatures_of_enrolled_nodes() {
    let world = world_of(3).await;
    world.decide(&a()).await;
    let enroll = |id: u64| {
        let cosigner = world.fake.cosigner(id);
        let command = AddCosigner { node_id: id, name: cosigner.name().into(), public_key: cosigner.public_key() };
        world.fake.run(command.into()).unwrap();
    };
    // The others are learnt from the first.
    until(async || world.get(&a(), "/v1/log/cosigned").await.text.contains("0 of 2 nodes")).await;
    let none = world.get(&a(), "/v1/log/cosigned").await;
    assert!(none.status == 503 && none.text.contains("quorate key enroll"), "{}", none.text);
    enroll(1);
    enroll(2);
    let (_, report) = world.proof(&a(), "/v1/log/cosigned").await;
    let names: Vec<&str> = report.cosigned_by.iter().map(|by| by.name.as_str()).collect();
    assert_eq!((report.size, names), (1, vec!["quorate-node/fake/1", "quorate-node/fake/2"]));
    assert_eq!(world.get(&a(), "/v1/log/cosigned?cosigners=3").await.status, 503);
    enroll(3);
    assert_eq!(world.proof(&a(), "/v1/log/cosigned?cosigners=3").await.1.cosigned_by.len(), 3);
    let checkpoint = world.get(&a(), "/v1/log/checkpoint").await;
    assert_eq!(checkpoint.headers["content-type"], "text/plain; charset=utf-8");
    assert!(
        checkpoint.text.starts_with("quorate/fake/default\n1\n") && checkpoint.text.matches("\n— quorate").count() == 4,
        "{}",
        checkpoint.text
    );
    assert_eq!(world.get(&by("token-bare"), "/v1/log/checkpoint").await.status, 403);
    assert_eq!(world.get(&nobody(), "/v1/log/cosigned").await.status, 401);
}

#[tokio::test]
async fn a_passports_own_key_signs_in_once_for_each_challenge() {
    let world = world().await;
    let key = ed25519_dalek::SigningKey::from_bytes(&[5; 32]);
    let public_key = Some(hex::encode(key.verifying_key().as_bytes()));
    world.fake.run(SetSignInKey { tenant: "default".into(), passport: "agent-a".into(), public_key }.into()).unwrap();
    let challenge = async |passport: &str| {
        let answer = world.post(&nobody(), "/v1/auth/challenge", &json!({ "passport": passport }).to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["challenge"].as_str().unwrap().to_owned()
    };
    let sign = |challenge: &str, key: &ed25519_dalek::SigningKey| hex::encode(key.sign(&challenge_bytes(challenge)).to_bytes());
    let answer = async |challenge: &str, signature: String| {
        world.post(&nobody(), "/v1/auth/token", &json!({ "challenge": challenge, "signature": signature }).to_string()).await
    };
    let first = challenge("agent-a").await;
    let opened = answer(&first, sign(&first, &key)).await;
    assert_eq!((opened.status, &opened.json()["passport"]), (200, &json!("agent-a")), "{}", opened.text);
    let token: &'static str = opened.json()["token"].as_str().unwrap().to_owned().leak();
    assert_eq!(world.get(&by(token), "/v1/log/head").await.status, 200);
    let again = answer(&first, sign(&first, &key)).await;
    assert!(again.status == 400 && again.text.contains("has opened a token already"), "{}", again.text);

    let second = challenge("agent-a").await;
    let stranger = ed25519_dalek::SigningKey::from_bytes(&[6; 32]);
    let refused = answer(&second, sign(&second, &stranger)).await;
    let other = challenge("agent-b").await;
    let nobodys = answer(&other, sign(&other, &key)).await;
    let nowhere = challenge("nobody").await;
    let unknown = answer(&nowhere, sign(&nowhere, &key)).await;
    assert_eq!((refused.status, &refused.text, &nobodys.text), (403, &nobodys.text, &unknown.text), "not told apart");
    let made_up = answer("AAAA", sign("AAAA", &key)).await;
    assert!(made_up.status == 400 && made_up.text.contains("was not made here"), "{}", made_up.text);

    world.ok(&a(), "revoke_passport", json!({ "reason": "lost" })).await;
    until(async || world.get(&by(token), "/v1/log/head").await.status == 401).await;
    let third = challenge("agent-a").await;
    assert_ne!(answer(&third, sign(&third, &key)).await.status, 200);
}

#[tokio::test]
async fn with_a_certificate_and_its_flag_on_an_output_also_gets_a_manifest_for_readers_of_c2pa() {
    let fake = Fake::start(1).await;
    let frame = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
    let signer = Config {
        c2pa_signer_backend: Some("local".into()),
        c2pa_signer_key_id: Some("acme-1".into()),
        c2pa_signer_signing_key_b64: Some(STANDARD.encode([frame.as_slice(), &[0x44; 32]].concat())),
        c2pa_signer_certificates: Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/vectors/c2pa-chain.pem").into()),
        ..Config::default()
    };
    let mut worlds = Vec::new();
    for settings in [signer, Config::default()] {
        let config = Config {
            listen: "127.0.0.1:0".into(),
            nodes: fake.addresses(),
            session_key: "07".repeat(32),
            receipt_keys: vec![fake.receipt_key_hex()],
            ..settings
        };
        let gateway = Gateway::bind(config).await.unwrap();
        let world = World { fake: fake.clone(), address: gateway.address() };
        tokio::spawn(gateway.serve(std::future::pending()));
        until(async || http(world.address, "GET", "/readyz", &[], "").await.status == 200).await;
        worlds.push(world);
    }
    let id = worlds[0].decide(&a()).await;
    let arguments = json!({ "receipt_id": id, "content_bytes_base64": "aGVsbG8=" });
    let off = worlds[0].ok(&a(), "output_attest", arguments.clone()).await;
    assert!(off["manifest"].get("c2pa_manifest_base64").is_none(), "off by default: {off}");
    fake.run(SetFlag { name: "CORECRUXD_FEATURE_C2PA_X509_SIGNER".into(), value: "on".into() }.into()).unwrap();
    let on = worlds[0].ok(&a(), "output_attest", arguments.clone()).await;
    assert_eq!(on["manifest"]["c2pa_signer_key_id"], "acme-1");
    let store = STANDARD.decode(on["manifest"]["c2pa_manifest_base64"].as_str().unwrap()).unwrap();
    let holds = |part: &[u8]| store.windows(part.len()).any(|bytes| bytes == part);
    assert!(&store[4..8] == b"jumb" && holds(id.as_bytes()) && holds(b"c2pa.hash.data"));
    let without = worlds[1].call(&a(), "output_attest", arguments).await.told();
    assert!(without.contains("this gateway has no certificate to sign with"), "{without}");
}

#[tokio::test]
async fn a_proof_is_refused_to_strangers_and_of_what_is_not_there() {
    let world = world().await;
    let id = world.decide(&a()).await;
    let mut told = String::new();
    for (caller, path) in [
        (nobody(), "/v1/log/head"),
        (by("x"), "/v1/log/head"),
        (by("token-bare"), "/v1/log/head"),
        (by("token-other"), &*format!("/v1/receipts/{id}")),
        (by("token-other"), "/v1/receipts/nothing"),
        (a(), "/v1/log/head?size=9"),
        (a(), "/v1/log/head?size=x"),
        (a(), "/v1/log/head?colour=1"),
        (a(), "/v1/log/proof/inclusion"),
        (a(), "/v1/log/proof/inclusion?seq=1"),
        (a(), "/v1/log/proof/consistency?from=1&from=1"),
        (a(), "/v1/log/proof/consistency?from=2"),
    ] {
        let answer = world.get(&caller, path).await;
        let message = answer.json()["message"].as_str().unwrap_or_default().replace(&id, "ID");
        told += &format!("{} {}: {message}\n", answer.status, path.replace(&id, "ID"));
    }
    expect![[r#"
        401 /v1/log/head: this needs a bearer token, and the request has none. Nothing was written. Send `Authorization: Bearer <token>`; an operator hands out tokens.
        401 /v1/log/head: the token is unknown, expired or revoked; ask an operator for a new one
        403 /v1/log/head: this needs the scope `crux-mcp.receipt_verify`, which your token does not have. Nothing was written. Ask an operator for a token with `crux-mcp.receipt_verify`.
        404 /v1/receipts/ID: there is no receipt `ID`. Nothing was written. Check the id; a list call shows what exists.
        404 /v1/receipts/nothing: there is no receipt `nothing`. Nothing was written. Check the id; a list call shows what exists.
        400 /v1/log/head?size=9: `size` is 9, and the log holds 1 receipts so far. Nothing was written. Correct `size` and call again.
        400 /v1/log/head?size=x: `size` is a number, 0 or more. Nothing was written. The parameters are `size`, `at_least`.
        400 /v1/log/head?colour=1: `colour` is unknown. Nothing was written. The parameters are `size`, `at_least`.
        400 /v1/log/proof/inclusion: `seq` is missing. Nothing was written. Add `?seq=`.
        400 /v1/log/proof/inclusion?seq=1: `size` leaves out receipt number 1: the head holds the first 1 receipts only. Nothing was written. Correct `size` and call again.
        400 /v1/log/proof/consistency?from=1&from=1: `from` is given twice. Nothing was written. The parameters are `from`, `to`, `at_least`.
        400 /v1/log/proof/consistency?from=2: `from` is 2, which is more than the 1 receipts of the later head. Nothing was written. Correct `from` and call again.
    "#]].assert_eq(&told);
}

#[tokio::test]
async fn observations_are_told_over_http_once_each_and_all_or_none() {
    let world = world().await;
    let path = "/v1/sessions/s%2F1/observations";
    let one = json!({ "provider": "claude-code", "kind": "prompt", "payload": { "text": "hi" }, "client_ts": "2026-11-30T12:00:00Z" });
    let keyed = a().with("Idempotency-Key", "once");
    let first = world.post(&keyed, path, &one.to_string()).await;
    let again = world.post(&keyed, path, &one.to_string()).await;
    assert_eq!((first.status, &first.text), (201, &again.text));
    let batch = |last: Value| json!({ "observations": [one.clone(), last] }).to_string();
    let refused = world.post(&a(), &format!("{path}/batch"), &batch(json!({ "provider": "", "kind": "x" }))).await;
    assert_eq!((refused.status, refused.json()["code"].clone()), (400, json!(-32602)), "{}", refused.text);
    let unknown = world.post(&a(), &format!("{path}/batch"), &batch(json!({ "provider": "p", "kind": "x", "colour": 1 }))).await;
    assert!(unknown.json()["message"].as_str().unwrap().contains("does not know the argument `colour`"), "{}", unknown.text);
    let done = world.post(&b(), &format!("{path}/batch"), &batch(json!({ "provider": "openclaw", "kind": "x" }))).await;
    assert_eq!(done.json()["first_seq"], 1, "{}", done.text);
    let list = |arguments: Value| {
        let (world, mut all) = (&world, json!({ "session_id": "s/1" }));
        all.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        async move { world.ok(&b(), "list_observations", all).await }
    };
    let all = list(json!({})).await;
    let seqs: Vec<u64> = all["observations"].as_array().unwrap().iter().map(|seen| seen["seq"].as_u64().unwrap()).collect();
    assert_eq!((&all["count"], seqs), (&json!(3), vec![0, 1, 2]), "{all}");
    assert_eq!(list(json!({ "provider": "openclaw" })).await["count"], 1);
    assert_eq!(list(json!({ "provider": "never-seen" })).await["observations"], json!([]), "a provider that never occurred: an empty list");
    assert_eq!(list(json!({ "since": "2999-01-01T00:00:00Z" })).await["count"], 0);
    assert_eq!(list(json!({ "limit": 2 })).await["truncated"], "limit");
    let missing = world.call(&b(), "get_observation", json!({ "session_id": "s/1", "observation_id": "obs_none" })).await.told();
    assert!(missing.contains(r#""NOT_FOUND" wrote=no there is no observation `obs_none`"#), "{missing}");
    let bare = world.post(&by("token-bare"), path, &one.to_string()).await;
    assert_eq!(bare.status, 403);
}

#[tokio::test]
async fn each_observation_has_an_ed25519_receipt_that_verifies_with_the_public_key_that_is_published() {
    use ed25519_dalek::{Signature, VerifyingKey};
    let world = world().await;
    world.fake.run(AddReceiptKey { public_key: world.fake.receipt_key_hex() }.into()).unwrap();
    let told = json!({ "provider": "anthropic", "kind": "tool_use", "payload": { "z": 1.5, "a": "ü", "m": null } }).to_string();
    for _ in 0..2 {
        assert_eq!(world.post(&a(), "/v1/sessions/s/observations", &told).await.status, 201);
    }
    let keys = world.get(&b(), "/v1/log/keys").await.json()["keys"].clone();
    let seen = world.ok(&b(), "list_observations", json!({ "session_id": "s" })).await;
    for record in seen["observations"].as_array().unwrap() {
        let mut body = record.as_object().unwrap().clone();
        // Not `remove`, which would put the last field in its place.
        let receipt = body.shift_remove("receipt").unwrap();
        let hash = blake3::hash(serde_json::to_string(&body).unwrap().as_bytes());
        assert_eq!(receipt["body_hash"], format!("blake3:{}", hash.to_hex()));
        let key = keys.as_array().unwrap().iter().find(|key| key["key_id"] == receipt["signed_by"]).unwrap();
        let key: [u8; 32] = hex::decode(key["public_key"].as_str().unwrap()).unwrap().try_into().unwrap();
        let signature = Signature::from_slice(&hex::decode(receipt["signature"].as_str().unwrap()).unwrap()).unwrap();
        VerifyingKey::from_bytes(&key).unwrap().verify_strict(hash.as_bytes(), &signature).unwrap();
    }
    assert_eq!(seen["count"], 2);
}

#[tokio::test]
async fn what_its_flag_switches_off_answers_as_documented() {
    let (world, _folder) = world_with_exports().await;
    let id = world.decide(&a()).await;
    for flag in [flag::OBSERVE, flag::AUDIT_EXPORT, flag::C2PA_OUTPUT, flag::CUSTODY_AUDIT] {
        world.fake.run(SetFlag { name: flag.name.into(), value: "no".into() }.into()).unwrap();
    }
    let mut told = String::new();
    for (tool, arguments) in [
        ("list_observations", json!({ "session_id": "s" })),
        ("get_observation", json!({ "session_id": "s", "observation_id": "o" })),
        ("verify_observation", json!({ "session_id": "s", "observation_id": "o" })),
        ("audit_export_bundle", json!({ "token_budget": 1_000 })),
        ("output_attest", json!({ "receipt_id": id, "content_bytes_base64": "aGVsbG8=" })),
    ] {
        told += &format!("{tool}: {}\n", world.call(&a(), tool, arguments).await.told());
    }
    let one = json!({ "provider": "p", "kind": "k" }).to_string();
    told += &world.post(&a(), "/v1/sessions/s/observations", &one).await.json()["message"].to_string();
    expect![[r#"
        list_observations: 200 -32030 wrote=no observing is switched off by the flag `CORECRUXD_OBSERVE`. Nothing was written. An operator can switch it on with `CORECRUXD_OBSERVE`.
        get_observation: 200 -32030 wrote=no observing is switched off by the flag `CORECRUXD_OBSERVE`. Nothing was written. An operator can switch it on with `CORECRUXD_OBSERVE`.
        verify_observation: 200 -32030 wrote=no observing is switched off by the flag `CORECRUXD_OBSERVE`. Nothing was written. An operator can switch it on with `CORECRUXD_OBSERVE`.
        audit_export_bundle: 200 "CAPABILITY_DENIED" wrote=no exporting is switched off by the flag `CORECRUXD_FEATURE_AUDIT_EXPORT`. Nothing was written. An operator can switch it on with `CORECRUXD_FEATURE_AUDIT_EXPORT`.
        output_attest: 200 "CAPABILITY_DENIED" wrote=no attesting is switched off by the flag `CORECRUXD_FEATURE_C2PA_OUTPUT`. Nothing was written. An operator can switch it on with `CORECRUXD_FEATURE_C2PA_OUTPUT`.
        "observing is switched off by the flag `CORECRUXD_OBSERVE`. Nothing was written. An operator can switch it on with `CORECRUXD_OBSERVE`.""#]].assert_eq(&told);
    let card = world.ok(&a(), "context_custody_audit", json!({})).await;
    assert_eq!((&card["enabled"], card.as_object().unwrap().len()), (&json!(false), 2), "{card}");
    world.fake.run(SetFlag { name: flag::CUSTODY_AUDIT.name.into(), value: "yes".into() }.into()).unwrap();
    let card = world.ok(&a(), "context_custody_audit", json!({ "token_budget": 1 })).await;
    let export = card["exit_test"].as_array().unwrap().iter().find(|found| found["axis"] == "EXPORT").unwrap();
    assert_eq!((&export["verdict"], &card["lock_in_risk"]), (&json!("partial"), &json!(3)), "switched off is never strong: {card}");
}

#[tokio::test]
async fn an_output_is_bound_to_a_receipt_and_its_manifest_verifies_with_and_without_the_server() {
    use base64::Engine;
    let world = world().await;
    let id = world.decide(&a()).await;
    let attest = |arguments: Value| {
        let (world, mut all) = (&world, json!({ "receipt_id": id }));
        all.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        async move { world.call(&a(), "output_attest", all).await }
    };
    let done = attest(json!({ "content_bytes_base64": "aGVsbG8=", "content_type": "text/plain", "token_budget": 2 })).await;
    let manifest = done.json()["result"]["structuredContent"]["manifest"].clone();
    let bytes = base64::engine::general_purpose::STANDARD.decode(manifest["manifest_jumbf_base64"].as_str().unwrap()).unwrap();
    let report = quorate_proof::verify(&bytes, None).unwrap();
    assert_eq!((report.public_key.clone(), report.check_content(b"hello")), (world.fake.receipt_key_hex(), Ok(())));
    assert!(report.check_content(b"hallo").is_err());
    assert_eq!(manifest["signer_passport"], "agent-a");
    let text = String::from_utf8(bytes).unwrap();
    let online = world.post(&b(), "/v1/output/verify", &text).await.json();
    assert_eq!((&online["valid"], &online["report"]["content_hash"]), (&json!(true), &manifest["content_hash_blake3_hex"]), "{online}");
    let changed = world.post(&b(), "/v1/output/verify", &text.replacen("agent-a", "agent-x", 1)).await.json();
    assert_eq!(changed["valid"], false, "{changed}");

    let mut told = String::new();
    for arguments in [
        json!({ "content_bytes_base64": "aGVsbG8=", "token_budget": 1 }),
        json!({}),
        json!({ "content_bytes_base64": "aGVsbG8=", "content_path": "/etc/passwd" }),
        json!({ "content_path": "/etc/passwd" }),
        json!({ "content_bytes_base64": "?" }),
        json!({ "content_bytes_base64": "aGVsbG8=", "receipt_id": "none" }),
    ] {
        told += &(attest(arguments).await.told() + "\n");
    }
    expect![[r#"
        200 -32602 wrote=no content size 5 bytes (~2 tokens) exceeds token_budget 1. Nothing was written. Allow more, or attest a smaller part.
        200 -32602 wrote=no give exactly one of `content_bytes_base64` and `content_path`. Nothing was written. Send the content as `content_bytes_base64`.
        200 -32602 wrote=no give exactly one of `content_bytes_base64` and `content_path`. Nothing was written. Send the content as `content_bytes_base64`.
        200 -32602 wrote=no `content_path` names a file of the gateway's machine, which it does not read. Nothing was written. Send the content as `content_bytes_base64`.
        200 -32602 wrote=no `content_bytes_base64` is no base64: Invalid symbol 63, offset 0.. Nothing was written. Use the standard alphabet with padding.
        200 "NOT_FOUND" wrote=no there is no receipt `none`. Nothing was written. Check the id; a list call shows what exists.
    "#]].assert_eq(&told);
}

#[tokio::test]
async fn an_export_holds_the_window_and_the_scope_that_were_asked_for_and_is_the_same_when_it_is_repeated() {
    let (world, _folder) = world_with_exports().await;
    for n in 0..3 {
        world.ok(&a(), "store_fact", json!({ "entity": format!("e{n}"), "key": "k", "value": format!("v{n}") })).await;
    }
    world.ok(&a(), "store_fact", json!({ "entity": "mine", "key": "k", "value": "secret", "private": true })).await;
    let gone = world.ok(&a(), "store_fact", json!({ "entity": "e9", "key": "k", "value": "gone" })).await;
    world.ok(&a(), "delete_fact", json!({ "fact_id": gone["fact_id"] })).await;
    world.decide(&a()).await;
    let export = |caller: Caller, arguments: Value| {
        let world = &world;
        async move { world.ok(&caller, "audit_export_bundle", arguments).await }
    };
    let keyed = json!({ "token_budget": 1_000, "idempotency_key": "once" });
    let all = export(a(), keyed.clone()).await;
    assert_eq!((&all["fact_count"], &all["receipt_count"]), (&json!(3), &json!(0)), "{all}");
    let bytes = std::fs::read(all["bytes_path"].as_str().unwrap()).unwrap();
    let report = quorate_proof::verify(&bytes, None).unwrap();
    assert_eq!((report.form, report.public_key), ("quorate.audit-bundle.v3", world.fake.receipt_key_hex()));
    assert_eq!(world.ok(&a(), "receipt_verify", json!({ "receipt_id": all["bundle_id"] })).await["verified"], true);

    world.ok(&a(), "store_fact", json!({ "entity": "later", "key": "k", "value": "v" })).await;
    let again = export(a(), keyed).await;
    assert_eq!((&again["bundle_id"], &again["events_jsonl_sha256"]), (&all["bundle_id"], &all["events_jsonl_sha256"]));

    let narrow = export(a(), json!({ "token_budget": 1_000, "scope": { "entity_prefix": "e1" } })).await;
    assert_eq!((&narrow["fact_count"], &narrow["scope"]["entity_prefix"]), (&json!(1), &json!("e1")));
    let all_of_it = json!({ "token_budget": 10_000, "scope": { "include_reserved": true } });
    let agents = export(a(), all_of_it.clone()).await;
    assert_eq!((&agents["fact_count"], &agents["scope"]["include_reserved"]), (&json!(4), &json!(false)));
    assert_eq!(agents["note"], "reserved facts were left out: `include_reserved` is for operators");
    let operators = export(by("token-operator"), all_of_it).await;
    assert_eq!((&operators["fact_count"], &operators["receipt_count"]), (&json!(5), &json!(1)), "{operators}");

    let stored_at = world.ok(&a(), "fact_history", json!({ "entity": "e1", "key": "k" })).await["versions"][0]["stored_at"].clone();
    let from = export(a(), json!({ "token_budget": 1_000, "since_ts": stored_at })).await;
    let until = export(a(), json!({ "token_budget": 1_000, "until_ts": stored_at })).await;
    let sum = from["fact_count"].as_u64().unwrap() + until["fact_count"].as_u64().unwrap();
    assert_eq!(sum, 4, "the window includes since_ts and excludes until_ts: {from} {until}");
    assert!(from["fact_count"].as_u64() >= Some(3), "{from}");

    let mut told = String::new();
    for arguments in [
        json!({}),
        json!({ "token_budget": 20 }),
        json!({ "token_budget": 100, "since_ts": "noon" }),
        json!({ "token_budget": 100, "since_ts": "2999-01-01T00:00:00Z" }),
    ] {
        told += &(world.call(&a(), "audit_export_bundle", arguments).await.told() + "\n");
    }
    expect![[r#"
        200 -32602 wrote=no audit_export_bundle requires token_budget (QC.2). Nothing was written. Add it, such as 100000.
        200 -32602 wrote=no the window holds 182 tokens or more, and 20 are allowed. Nothing was written. Raise `token_budget`, or export a shorter window or a narrower `scope`.
        200 -32602 wrote=no `since_ts` is no RFC 3339 instant. Nothing was written. Write it as `2026-11-30T12:00:00Z`, with an offset.
        200 -32602 wrote=no `since_ts` lies behind `until_ts`, or in the future. Nothing was written. Correct `since_ts` and call again.
    "#]].assert_eq(&told);
    let world = self::world().await;
    let homeless = world.call(&a(), "audit_export_bundle", json!({ "token_budget": 100 })).await.told();
    assert!(homeless.contains("CAPABILITY_DENIED") && homeless.contains("audit_export_dir"), "{homeless}");
}

#[tokio::test]
async fn orchestrators_stand_in_tools_list_and_answer_the_documented_record() {
    let world = world().await;
    let listed = world.names(&a()).await;
    for tool in ["create_orchestrator", "attach_to_orchestrator", "detach_from_orchestrator", "list_orchestrators", "update_orchestrator"] {
        assert!(listed.iter().any(|name| name == tool), "{tool}");
    }
    let none = world.ok(&a(), "list_orchestrators", json!({})).await;
    assert_eq!((&none["count"], &none["orchestrators"]), (&json!(0), &json!([])));
    let made = world.ok(&a(), "create_orchestrator", json!({ "name": "release", "created_by_passport": "agent-a" })).await;
    let orchestrator = &made["id"];
    let progress = json!({ "work_total": 0, "planned": 0, "in_progress": 0, "blocked": 0, "archived": 0, "complete": 0, "deployed": 0 });
    let record = json!({
        "id": orchestrator, "name": "release", "assignee_passport": null, "created_by_passport": "agent-a", "tenant_id": "default",
        "state": "planned", "members": [], "progress": progress,
        "created_at_unix_ms": made["created_at_unix_ms"], "updated_at_unix_ms": made["created_at_unix_ms"],
    });
    assert_eq!(made, record);

    let work = json!({ "project_id": "p_default", "title": "parser", "created_by_passport": "agent-a", "state": "complete" });
    let work = world.ok(&a(), "create_work", work).await["id"].clone();
    for member in [&work, &json!("execplan:ship"), &json!("ho_1"), &json!("agent-b")] {
        world.ok(&b(), "attach_to_orchestrator", json!({ "orchestrator_id": orchestrator, "member_ref": member })).await;
    }
    let shown =
        world.ok(&b(), "list_orchestrators", json!({ "state": "planned", "tenant_id": "default" })).await["orchestrators"][0].clone();
    let members = json!([
        { "type": "work", "ref": work, "state": "complete" },
        { "type": "execplan", "ref": "execplan:ship" },
        { "type": "handoff", "ref": "ho_1" },
        { "type": "passport", "ref": "agent-b" },
    ]);
    assert_eq!((&shown["members"], &shown["progress"]["percent_done"]), (&members, &json!(100)));
    let foreign = json!({ "orchestrator_id": orchestrator, "member_ref": "ho_2" });
    let told = world.call(&by("token-other"), "attach_to_orchestrator", foreign.clone()).await.told();
    assert!(told.starts_with(r#"200 "NOT_FOUND" wrote=no there is no orchestrator `orc_"#), "{told}");

    let archive = json!({ "orchestrator_id": orchestrator, "state": "archived" });
    assert_eq!(world.ok(&a(), "update_orchestrator", archive).await["state"], "archived");
    let told = world.call(&a(), "attach_to_orchestrator", foreign).await.told();
    assert!(told.starts_with("200 -32602 wrote=no `orchestrator_id` is of an orchestrator that is archived"), "{told}");
    world.fake.run(SetFlag { name: "CORECRUXD_ORCHESTRATORS".into(), value: "off".into() }.into()).unwrap();
    let told = world.call(&a(), "list_orchestrators", json!({})).await.told();
    assert!(told.starts_with("200 -32030 wrote=no list_orchestrators is switched off by the flag `CORECRUXD_ORCHESTRATORS`"), "{told}");
}

#[tokio::test]
async fn the_features_tools_are_always_available_whatever_the_flags_say() {
    let world = world().await;
    for flag in quorate_domain::flag::ALL.into_iter().filter(|flag| flag.parse("off").is_ok()) {
        world.fake.run(SetFlag { name: flag.name.into(), value: "off".into() }.into()).unwrap();
    }
    let payload = json!({ "id": "search", "name": "Search", "system": "core", "maturity": "shipped", "files": ["src/lib.rs", "x"] });
    world.ok(&a(), "entity_upsert", json!({ "kind": "capability", "id": "search", "payload": payload })).await;
    let found = world.ok(&b(), "feature_file_search", json!({ "path": "src" })).await;
    let row = json!({ "id": "search", "name": "Search", "system": "core", "files": ["src/lib.rs"] });
    assert_eq!(found, json!({ "capabilities": [row], "count": 1 }));
    let audited = world.ok(&b(), "feature_trigger_audit", json!({ "id": "search", "status": "waived" })).await;
    assert_eq!((&audited["capability"]["audit"]["status"], &audited["version"]), (&json!("waived"), &json!(2)));
    let report = json!({
        "total_capabilities": 1, "total_tested": 0, "total_audited": 0,
        "maturity": { "planned": 0, "documented": 0, "building": 0, "built": 0, "shipped": 1, "deferred": 0 },
        "gaps": { "critical": 1, "high": 1, "medium": 0, "low": 0 },
        "systems": { "core": { "total": 1, "tested": 0, "audited": 0, "shipped": 1 } },
    });
    assert_eq!(world.ok(&b(), "feature_coverage_report", json!({})).await, json!({ "report": report }));
}

#[tokio::test]
async fn suggestions_are_drawn_from_the_gap_analysis_and_from_the_weakest_promise() {
    let world = world().await;
    assert_eq!(world.ok(&a(), "feature_suggest_next", json!({})).await, json!({ "suggestions": [], "count": 0 }));
    let payload = json!({ "id": "s", "name": "Search", "system": "core", "maturity": "shipped", "promise_alignment": [4], "dod": ["x"] });
    world.ok(&a(), "entity_upsert", json!({ "kind": "capability", "id": "s", "payload": payload })).await;
    let first = world.ok(&a(), "feature_suggest_next", json!({ "limit": 1 })).await;
    let gap = |gap_type: &str, rationale: &str| json!({ "kind": "fix_gap", "capability_id": "s", "gap_type": gap_type, "severity": "critical", "rationale": rationale });
    let promise = json!({
        "kind": "improve_promise_tests",
        "promise": { "number": 4, "total": 1, "tested": 0 },
        "rationale": "Promise 4 is the weakest: 0 of 1 capabilities that serve it are tested.",
    });
    assert_eq!(first["suggestions"], json!([gap("no_tests", "Search has no tests at all."), promise]));
    let rest = world.ok(&a(), "feature_suggest_next", json!({ "limit": 1, "cursor": first["next_cursor"] })).await;
    assert_eq!(rest, json!({ "suggestions": [gap("audit_gap", "Search is not yet audited.")], "count": 1 }));
}

/// What a call and its answer count for.
fn tokens_of(arguments: &Value, text: &str) -> (u64, u64) {
    (arguments.to_string().len().div_ceil(4) as u64, text.len().div_ceil(4) as u64)
}

#[tokio::test]
async fn used_adds_the_estimated_tokens_of_every_call_at_about_four_characters_a_token_and_of_every_passport_apart() {
    let world = world().await;
    let fact = json!({ "entity": "svc:api", "key": "owner", "value": "platform" });
    let (mut tokens_in, mut tokens_out) = (0, 0);
    for (tool, arguments) in [("store_fact", fact), ("query_facts", json!({ "token_budget": 700 })), ("delete_fact", json!({}))] {
        let answer = world.call(&a(), tool, arguments.clone()).await.json();
        let (sent, got) = tokens_of(&arguments, answer["result"]["content"][0]["text"].as_str().unwrap());
        (tokens_in, tokens_out) = (tokens_in + sent, tokens_out + got);
    }
    let told = world.ok(&a(), "session_token_usage", json!({})).await;
    let expected = json!({
        "passport": "agent-a", "used": tokens_in + tokens_out, "tokens_in": tokens_in, "tokens_out": tokens_out,
        "declared_budget_in": 700, "calls": 3, "estimator": "json_bytes_div_4",
    });
    assert_eq!(told, expected, "a refused call counts, and this one does not yet");
    assert_eq!(world.ok(&b(), "session_token_usage", json!({})).await["calls"], 0);
    // Accepted, and without an effect but on what was declared.
    let again = world.ok(&a(), "session_token_usage", json!({ "token_budget": 1 })).await;
    assert_eq!((&again["calls"], &again["declared_budget_in"]), (&json!(4), &json!(700)));
    assert_eq!(world.ok(&a(), "session_token_usage", json!({})).await["declared_budget_in"], 701);
}

#[tokio::test]
async fn counters_outlive_the_process_that_counted() {
    let world = world().await;
    world.ok(&a(), "list_entities", json!({})).await;
    let other = gateway(&world.fake, 5_000).await;
    let told = async || {
        let call =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "session_token_usage", "arguments": {} } });
        post(other, &a(), "/mcp/crux", &call.to_string()).await.json()["result"]["structuredContent"]["calls"].as_u64().unwrap()
    };
    // Nobody asks the first gateway: its own round tells the cluster. What is asked here counts too, once it is answered.
    let mut asked = 0;
    until(async || {
        asked += 1;
        told().await == asked
    })
    .await;
}

#[tokio::test]
async fn a_lost_answer_to_an_addition_counts_once() {
    let world = world().await;
    world.ok(&a(), "list_entities", json!({})).await;
    world.fake.fault(1, Fault::LosesAnswer);
    let told = world.ok(&a(), "session_token_usage", json!({})).await;
    assert_eq!(told["calls"], 1, "sent twice under one id");
}

#[tokio::test]
async fn counts_that_the_cluster_can_not_take_wait_for_it() {
    let fake = Fake::start(1).await;
    let address = gateway(&fake, 1_000).await;
    let world = World { fake, address };
    world.ok(&a(), "list_entities", json!({})).await;
    world.fake.fault(1, Fault::Lost);
    let told = world.call(&a(), "session_token_usage", json!({})).await.told();
    assert!(told.starts_with(r#"200 "UNAVAILABLE" wrote=no the cluster can't answer reads now"#), "{told}");
    world.fake.heal();
    let mut asked = 0;
    until(async || {
        asked += 1;
        world.call(&a(), "session_token_usage", json!({})).await.json()["result"]["isError"] != true
    })
    .await;
    let calls = world.ok(&a(), "session_token_usage", json!({})).await["calls"].as_u64().unwrap();
    assert_eq!(calls, 2 + asked, "the first, the one that failed, and those since");
}

#[tokio::test]
async fn a_limit_is_reported_with_its_percentage_and_going_over_it_refuses_nothing() {
    let world = world().await;
    let set = |value: &str| SetFlag { name: "CORECRUXD_SESSION_TOKEN_BUDGET".into(), value: value.into() };
    world.fake.run(set("2").into()).unwrap();
    world.ok(&a(), "list_entities", json!({})).await;
    let told = world.ok(&a(), "session_token_usage", json!({})).await;
    assert_eq!(told["limit"], 2);
    let (used, pct) = (told["used"].as_f64().unwrap(), told["pct"].as_f64().unwrap());
    assert!(pct > 100.0 && (pct - used * 50.0).abs() < 0.06, "{told}");
    world.fake.run(set("0").into()).unwrap();
    let told = world.ok(&a(), "session_token_usage", json!({})).await;
    assert!(told.get("limit").is_none() && told.get("pct").is_none(), "{told}");
}

#[tokio::test]
async fn callers_without_a_passport_add_up_under_anon() {
    let world = world().await;
    let first = world.ok(&nobody(), "session_token_usage", json!({})).await;
    assert_eq!((&first["passport"], &first["calls"]), (&json!("__anon__"), &json!(0)));
    world.call(&nobody(), "list_entities", json!({})).await;
    until(async || world.ok(&nobody(), "session_token_usage", json!({})).await["calls"].as_u64().unwrap() >= 2).await;
}

#[tokio::test]
async fn a_call_leaves_a_trace_to_its_own_passport_alone_and_without_its_values() {
    let world = world().await;
    let secret = json!({ "entity": "svc:api", "key": "owner", "value": "the-password-is-1234" });
    let params = json!({ "name": "store_fact", "arguments": secret, "_meta": { "io.quorate/turn-id": "turn-7" } });
    world.rpc(&a(), "tools/call", params).await;
    world.post(&a().with("Quorate-Turn", "turn-8"), "/v1/tools/crux/delete_fact", "{}").await;
    world.ok(&a(), "call_tool", json!({ "name": "list_entities", "arguments": {} })).await;
    let told = world.ok(&a(), "tool_trace_recent", json!({})).await;
    let seen: Vec<(&Value, &Value, &Value)> =
        told["traces"].as_array().unwrap().iter().map(|trace| (&trace["tool"], &trace["turn_id"], &trace["outcome"]["status"])).collect();
    let (ok, refused, none) = (json!("ok"), json!("refused"), Value::Null);
    assert_eq!(
        seen,
        [
            (&json!("list_entities"), &none, &ok),
            (&json!("delete_fact"), &json!("turn-8"), &refused),
            (&json!("store_fact"), &json!("turn-7"), &ok),
        ]
    );
    assert_eq!(told["traces"][2]["predicted_effects"], json!([{ "kind": "fact_write", "entity": "svc:api", "key": "owner" }]));
    assert_eq!(told["traces"][1]["outcome"]["code"], "-32602");
    assert!(!told.to_string().contains("1234"), "{told}");
    assert_eq!(world.ok(&a(), "tool_trace_recent", json!({ "turn_id": "turn-7" })).await["count"], 1);
    assert_eq!(world.ok(&b(), "tool_trace_recent", json!({})).await["count"], 0);
    // A tag that is no name is none, and keeps nothing from being handed over.
    world.post(&a().with("Quorate-Turn", &"x".repeat(600)), "/v1/tools/crux/list_entities", "{}").await;
    let told = world.ok(&a(), "tool_trace_recent", json!({ "top_k": 2 })).await;
    assert_eq!((&told["traces"][0]["tool"], told["traces"][0].get("turn_id")), (&json!("list_entities"), None));
}

#[tokio::test]
async fn pages_of_one_recall_are_one_loop_and_a_proposal_writes_nothing() {
    let world = world().await;
    for cursor in [None, Some("00"), Some("11"), Some("22")] {
        let arguments = cursor.map_or(json!({ "query": "secret words" }), |cursor| json!({ "query": "secret words", "cursor": cursor }));
        world.call(&a(), "query_facts", arguments).await;
    }
    let proposals = world.fake.proposals().len();
    let told = world.ok(&a(), "learn", json!({})).await;
    assert_eq!((&told["count"], &told["propose_only"], &told["scanned"]), (&json!(1), &json!(true), &json!(4)));
    let signature = told["proposals"][0]["signature"].as_str().unwrap();
    assert!(signature.starts_with("query_facts(query=#") && !told.to_string().contains("secret words"), "{told}");
    assert_eq!(told["proposals"][0]["occurrences"], 4);
    assert_eq!(world.fake.proposals().len(), proposals);
    let refused = world.call(&a(), "learn", json!({ "min_repeats": 1 })).await.told();
    assert!(refused.contains("`min_repeats` must be an integer from 2"), "{refused}");
}

#[tokio::test]
async fn traces_and_activity_that_are_off_name_their_flag() {
    let world = world().await;
    for (flag, tool, told) in [
        ("CORECRUXD_FEATURE_TOOL_TRACES", "tool_trace_recent", json!({ "feature_disabled": true, "count": 0, "traces": [] })),
        ("CORECRUXD_FEATURE_TOOL_TRACES", "learn", json!({ "feature_disabled": true, "count": 0, "proposals": [] })),
        ("CORECRUXD_FEATURE_ACTIVITY_LOG", "activity_recent", json!({ "feature_enabled": false, "rows": [] })),
    ] {
        world.fake.run(SetFlag { name: flag.into(), value: "off".into() }.into()).unwrap();
        let arguments = if tool == "activity_recent" { json!({ "session_id": "s" }) } else { json!({}) };
        let answer = world.ok(&a(), tool, arguments).await;
        for (field, value) in told.as_object().unwrap() {
            assert_eq!(&answer[field], value, "{tool} {field}");
        }
        assert_eq!(answer["note"], format!("switched off by the flag `{flag}`"));
    }
    let turn = json!({ "session_id": "s", "kind": "answer", "text": "a" }).to_string();
    let refused = world.post(&a(), "/v1/activity", &turn).await;
    assert_eq!(refused.status, 501);
    assert!(refused.text.contains("CORECRUXD_FEATURE_ACTIVITY_LOG"), "{}", refused.text);
}

#[tokio::test]
async fn the_control_arm_goes_without_its_budget_says_so_and_is_measured() {
    let world = world().await;
    let off = json!({ "holdout_enabled": false, "hint": "set CRUX_OUTPUT_HOLDOUT=0.05 to sample a live control arm" });
    assert_eq!(world.ok(&a(), "token_savings", json!({})).await, off);
    for n in 0..4 {
        world.ok(&a(), "store_fact", json!({ "entity": format!("e{n}"), "key": "k", "value": "x".repeat(400) })).await;
    }
    // One is all of them, and gateways hear of it within seconds.
    world.fake.run(SetFlag { name: "CRUX_OUTPUT_HOLDOUT".into(), value: "1".into() }.into()).unwrap();
    // Room for one of them.
    let ask = json!({ "token_budget": 300 });
    until(async || world.ok(&a(), "query_facts", ask.clone()).await.get("unshaped") == Some(&json!(true))).await;
    assert_eq!(world.ok(&a(), "query_facts", ask).await["rows"].as_array().unwrap().len(), 4);
    let told = world.ok(&a(), "token_savings", json!({})).await;
    assert_eq!((&told["holdout_fraction"], &told["n_control"], &told["n_treatment"]), (&json!(1.0), &json!(2), &json!(0)));
    assert!(told["reduction_pct"].is_null() && told["note"].as_str().unwrap().starts_with("too few samples"), "{told}");
}

#[tokio::test]
async fn a_session_tells_turns_and_calls_and_a_text_lists_kinds_too() {
    let world = world().await;
    let turn = json!({ "session_id": "build-42", "kind": "question", "text": "why? __ops::keys", "confidence": 0.5, "fact_refs": ["f_1"] });
    let written = world.post(&a(), "/v1/activity", &turn.to_string()).await;
    assert_eq!((written.status, &written.json()["seq"]), (201, &json!("1")), "{}", written.text);
    world.post(&a().with("Quorate-Session", "build-42"), "/v1/tools/crux/list_entities", "{}").await;
    let told = world.ok(&a(), "activity_recent", json!({ "session_id": "build-42", "token_budget": 0 })).await;
    let rows = told["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &told["returned"], &told["token_budget"], &told["truncated"]), (2, &json!(2), &json!(500), &json!(false)));
    assert_eq!((&rows[0]["kind"], &rows[0]["tool"]), (&json!("command"), &json!("list_entities")));
    assert_eq!(
        (&rows[1]["preview"], &rows[1]["confidence"], &rows[1]["fact_refs"]),
        (&json!("why? [reserved]"), &json!(0.5), &json!(["f_1"]))
    );
    for kinds in [json!("question, answer"), json!(["question", "answer"])] {
        let told = world.ok(&a(), "activity_recent", json!({ "session_id": "build-42", "kinds": kinds })).await;
        assert_eq!(told["returned"], 1);
    }
    let after = world.ok(&a(), "activity_recent", json!({ "session_id": "build-42", "since": "1" })).await;
    assert_eq!((&after["returned"], &after["rows"][0]["seq"]), (&json!(1), &json!("2")));
    // A call's row is its caller's, a turn is the team's, and its whole text is at an address of its own.
    let other = world.ok(&b(), "activity_recent", json!({ "session_id": "build-42" })).await;
    assert_eq!((&other["returned"], &other["rows"][0]["kind"]), (&json!(1), &json!("question")));
    let path = format!("/v1/activity/turn/{}", written.json()["turn_id"].as_str().unwrap());
    let get = async |token: &str| http(world.address, "GET", &path, &[("Authorization".into(), format!("Bearer {token}"))], "").await;
    assert_eq!(get("token-b").await.json()["text"], "why? __ops::keys");
    assert_eq!(get("token-other").await.status, 404);
    for (kinds, problem) in [(json!("question,gossip"), "must be one of"), (json!(7), "must be an array")] {
        let refused = world.call(&a(), "activity_recent", json!({ "session_id": "s", "kinds": kinds })).await.told();
        assert!(refused.contains(problem), "{refused}");
    }
    let refused = world.call(&a(), "activity_recent", json!({ "session_id": "s", "since": "yesterday" })).await.told();
    assert!(refused.contains("`since` is no `seq`"), "{refused}");
}

#[tokio::test]
async fn a_refusal_names_holder_and_next_step_over_mcp_and_http() {
    let world = world().await;
    world.ok(&a(), "punch_in", json!({ "resource": "file://a", "holder_passport": "agent-a" })).await;
    let ask = json!({ "resource": "file://a", "holder_passport": "agent-b" });
    let answer = world.call(&b(), "punch_in", ask.clone()).await;
    let told = answer.told();
    assert!(told.starts_with(r#"200 "HELD" wrote=no `file://a` is held by `agent-a` for another "#), "{told}");
    assert!(
        told.ends_with(
            "Nothing was written. Call `punch_in` with `wait_ms` to queue, work on something else, or ask `agent-a` to punch out."
        ),
        "{told}"
    );
    let problem = world.post(&b(), "/v1/tools/crux/punch_in", &ask.to_string()).await;
    assert_eq!((problem.status, problem.headers["content-type"].as_str()), (409, "application/problem+json"));
    assert!(problem.headers.contains_key("retry-after"));
    let problem = problem.json();
    assert_eq!((&problem["code"], &problem["wrote"], &problem["data"]["holder"]), (&json!("HELD"), &json!("no"), &json!("agent-a")));
    assert_eq!(problem["detail"], problem["message"]);
    let facts = world.post(&a(), "/v1/tools/crux/get_agent_identity", "").await;
    assert_eq!((facts.status, facts.text.as_str()), (200, r#"{"agent_name":"agent-a"}"#));
}

#[tokio::test]
async fn a_key_gives_one_effect_from_argument_meta_or_header() {
    let world = world().await;
    let fact = json!({ "entity": "e", "key": "k", "value": "v" });
    let mut keyed = fact.clone();
    keyed["idempotency_key"] = "once".into();
    let first = world.ok(&a(), "store_fact", keyed.clone()).await;
    let by_meta = world
        .rpc(&a(), "tools/call", json!({ "name": "store_fact", "arguments": fact, "_meta": { "io.quorate/idempotency-key": "once" } }))
        .await;
    let by_header = world.post(&a().with("Idempotency-Key", "\"once\""), "/v1/tools/crux/store_fact", &fact.to_string()).await;
    assert_eq!((&by_meta.json()["result"]["structuredContent"], &by_header.json()), (&first, &first));
    let mut other = keyed.clone();
    other["value"] = "w".into();
    let told = world.call(&a(), "store_fact", other).await.told();
    assert!(told.contains("IDEMPOTENCY_CONFLICT"), "{told}");
    let both = world.post(&a().with("Idempotency-Key", "twice"), "/v1/tools/crux/store_fact", &keyed.to_string()).await;
    assert_eq!(both.status, 400, "{}", both.text);
    let versions = world.ok(&a(), "fact_history", json!({ "entity": "e", "key": "k" })).await;
    assert_eq!(versions["versions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_queued_caller_gets_the_card_when_it_is_free_or_leaves_without() {
    let world = world().await;
    let lease = |who: &str| json!({ "resource": "file://a", "holder_passport": who });
    world.ok(&a(), "punch_in", lease("agent-a")).await;
    let mut wait = lease("agent-b");
    wait["wait_ms"] = 300.into();
    let told = world.call(&b(), "punch_in", wait.clone()).await.told();
    assert!(told.starts_with(r#"200 "HELD" wrote=no `file://a` is still held by `agent-a` after a wait of"#), "{told}");
    wait["wait_ms"] = 10_000.into();
    let caller = b();
    let (waited, _) = tokio::join!(world.call(&caller, "punch_in", wait), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.ok(&a(), "punch_out", lease("agent-a")).await;
    });
    let card = &waited.json()["result"]["structuredContent"];
    assert_eq!((&card["holder_passport"], &card["status"]), (&json!("agent-b"), &json!("held")), "{}", waited.told());
}

#[tokio::test]
async fn no_card_is_granted_to_a_caller_that_hung_up_while_it_queued() {
    let world = world().await;
    let lease = |who: &str| json!({ "resource": "file://a", "holder_passport": who });
    world.ok(&a(), "punch_in", lease("agent-a")).await;
    let mut wait = lease("agent-b");
    wait["wait_ms"] = 60_000.into();
    let caller = b();
    let left = tokio::time::timeout(Duration::from_millis(300), world.call(&caller, "punch_in", wait)).await;
    assert!(left.is_err(), "the caller hung up");
    world.fake.proposals();
    until(async || !world.fake.proposals().is_empty()).await;
    world.ok(&a(), "punch_out", lease("agent-a")).await;
    let held = world.ok(&b(), "list_punchcards", json!({ "status": "held" })).await;
    assert_eq!(held["count"], 0, "{held}");
}

// ------------------------------------------------------------------ when nodes fail

#[tokio::test]
async fn a_write_finds_the_leader_and_keeps_its_request_id() {
    let world = world_of(3).await;
    let store = |n: u32| json!({ "entity": "e", "key": "k", "value": n.to_string(), "idempotency_key": format!("key-{n}") });
    world.ok(&a(), "store_fact", store(1)).await;
    world.fake.proposals();

    // Another node leads, and the old one says so.
    world.fake.elect(2);
    world.ok(&a(), "store_fact", store(2)).await;
    let proposals = world.fake.proposals();
    assert!(proposals.iter().all(|(_, id)| id == "key-2") && proposals.last().unwrap().0 == 2, "{proposals:?}");

    // The leader decides and the answer is lost.
    world.fake.fault(2, Fault::LosesAnswer);
    let fact = world.ok(&a(), "store_fact", store(3)).await;
    assert_eq!(fact["version"], 3);
    let proposals = world.fake.proposals();
    assert!(proposals.len() >= 2 && proposals.iter().all(|(_, id)| id == "key-3"), "{proposals:?}");

    // The leader hangs, and another one is elected a while later.
    world.fake.fault(2, Fault::Hangs);
    let caller = a();
    let start = Instant::now();
    let (fact, ()) = tokio::join!(world.ok(&caller, "store_fact", store(4)), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.fake.elect(3);
    });
    assert_eq!(fact["version"], 4);
    assert!(start.elapsed() < Duration::from_secs(3), "it took {:?}", start.elapsed());
    let proposals = world.fake.proposals();
    assert!(proposals.iter().all(|(_, id)| id == "key-4") && proposals.last().unwrap().0 == 3, "{proposals:?}");

    // Reads go round the node that hangs.
    for _ in 0..6 {
        let start = Instant::now();
        world.ok(&a(), "list_entities", json!({})).await;
        assert!(start.elapsed() < Duration::from_secs(1), "a read took {:?}", start.elapsed());
    }
    // An overloaded leader is asked again, and not left.
    world.fake.heal();
    world.fake.fault(3, Fault::Overloaded);
    let caller = a();
    let (fact, ()) = tokio::join!(world.ok(&caller, "store_fact", store(5)), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.fake.heal();
    });
    assert_eq!(fact["version"], 5);
    assert_eq!(world.ok(&a(), "fact_history", json!({ "entity": "e", "key": "k" })).await["versions"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn without_a_leader_it_is_said_whether_anything_was_written() {
    let fake = Fake::start(3).await;
    let address = gateway(&fake, 1_000).await;
    let world = World { fake, address };
    world.ok(&a(), "list_entities", json!({})).await;
    let fact = json!({ "entity": "e", "key": "k", "value": "v" });
    for node in 1..=3 {
        world.fake.fault(node, Fault::Lost);
    }
    let nobody_leads = world.call(&a(), "store_fact", fact.clone()).await.told();
    assert!(nobody_leads.starts_with(r#"200 "UNAVAILABLE" wrote=no the cluster can't take writes now"#), "{nobody_leads}");
    for node in 1..=3 {
        world.fake.fault(node, Fault::Hangs);
    }
    let (checked, stored) = (
        world.call(&a(), "check_punchcard", json!({ "resource": "file://a" })).await,
        world.post(&a(), "/v1/tools/crux/store_fact", &fact.to_string()).await,
    );
    let told = if checked.status == 200 { checked.told() } else { String::new() };
    assert!(checked.status == 503 || told.contains(r#""UNKNOWN""#), "{told}");
    assert!(matches!(stored.status, 503 | 504), "{}", stored.text);
    world.fake.heal();
    world.ok(&a(), "check_punchcard", json!({ "resource": "file://a" })).await;
    let page = http(world.address, "GET", "/metrics", &[], "").await.text;
    assert!(page.contains("quorate_gateway_calls_total{tool=\"store_fact\",outcome=\"unavailable\"} "), "{page}");
}

#[tokio::test]
async fn a_read_that_no_node_is_fresh_enough_for_is_answered_as_of_now() {
    let world = world_of(3).await;
    for node in 1..=3 {
        world.fake.fault(node, Fault::Behind);
    }
    let start = Instant::now();
    let checked = world.ok(&a(), "check_punchcard", json!({ "resource": "file://a", "max_staleness_ms": 0 })).await;
    assert_eq!((&checked["held_by_other"], &checked["age_ms"]), (&json!(false), &json!(0)));
    assert!(start.elapsed() < Duration::from_secs(1), "it did not wait for a fresher node: {:?}", start.elapsed());
}

#[tokio::test]
async fn a_gateway_without_a_cluster_says_that_it_is_not_ready() {
    let config =
        Config { listen: "127.0.0.1:0".into(), nodes: vec!["127.0.0.1:1".into()], session_key: "00".repeat(32), ..Config::default() };
    let gateway = Gateway::bind(config).await.unwrap();
    let address = gateway.address();
    tokio::spawn(gateway.serve(std::future::pending()));
    assert_eq!(http(address, "GET", "/livez", &[], "").await.status, 200);
    let ready = http(address, "GET", "/readyz?verbose", &[], "").await;
    assert_eq!((ready.status, &ready.json()["reasons"]), (503, &json!(["no_node", "no_leader"])));
}

#[test]
fn settings_that_can_not_work_stop_the_start() {
    let good = Config { nodes: vec!["127.0.0.1:1".into()], session_key: "00".repeat(32), ..Config::default() };
    let told = |config: Config| config.check().err().map_or("fine".into(), |error| error.to_string());
    let mut all = String::new();
    for config in [
        good.clone(),
        Config { listen: "0.0.0.0:1".into(), ..good.clone() },
        Config { listen: "here".into(), ..good.clone() },
        Config { nodes: Vec::new(), ..good.clone() },
        Config { session_key: "secret".into(), ..good.clone() },
        Config { call_deadline_ms: 1, ..good.clone() },
        Config { calls_max: 0, ..good.clone() },
        Config { listen: "0.0.0.0:1".into(), listen_certificate: Some("g.pem".into()), listen_key: Some("g.key".into()), ..good.clone() },
        Config { listen_certificate: Some("g.pem".into()), ..good.clone() },
        Config { tls_ca: Some("ca.pem".into()), ..good.clone() },
        Config { connections_max: 1, ..good.clone() },
        Config { idle_timeout_ms: 0, ..good.clone() },
        Config { execplans_root: Some("/nowhere/plans".into()), ..good.clone() },
        Config { execplans_tenant: String::new(), ..good.clone() },
        Config { approvals_slack_webhook_url: Some("hooks.slack.com/services/secret".into()), ..good.clone() },
        Config { approvals_slack_webhook_url: Some("http://hooks.slack.com/services/secret".into()), ..good.clone() },
        Config { approvals_slack_webhook_url: Some("https://hooks.slack.com/services/secret".into()), ..good.clone() },
    ] {
        all += &(told(config) + "\n");
    }
    check(
        &all,
        expect![[r#"
        fine
        `listen` is an address that other machines reach, 0.0.0.0:1, and there is no TLS; tokens would cross the network in the clear: set `listen_certificate` and `listen_key` (`quorate cert gateway` makes both), or listen on 127.0.0.1 behind a TLS proxy
        `listen` is no address such as 127.0.0.1:7400: `here`
        `nodes` names no node; give the gRPC address of one at least
        `session_key` has to be 32 bytes in hex, 64 digits; 6 characters were given
        `call_deadline_ms` is 1,000 to 300,000, not 1
        `calls_max` is 1 or more, not 0
        fine
        `listen_certificate` and `listen_key` belong together: set both, or neither
        `tls_ca` belongs together with tls_certificate and tls_key: set all three, or none of them
        `connections_max` is 2 or more, not 1
        `idle_timeout_ms` is 100 to 86400000, not 0
        `execplans_root` names a folder that can't be read: No such file or directory (os error 2)
        `execplans_tenant` names no tenant: `tenant` must not be empty
        `approvals_slack_webhook_url` `url` must be an `https://` or `http://` address without user name and spaces
        `approvals_slack_webhook_url` may not be called: plain http would cross the network in the clear: use https
        fine
    "#]],
    );
}

fn check(told: &str, expected: Expect) {
    expected.assert_eq(told);
}

#[tokio::test]
async fn running_calls_are_finished_when_the_gateway_is_asked_to_stop() {
    let fake = Fake::start(1).await;
    let config = Config { listen: "127.0.0.1:0".into(), nodes: fake.addresses(), session_key: "00".repeat(32), ..Config::default() };
    let gateway = Gateway::bind(config).await.unwrap();
    let address = gateway.address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(gateway.serve(async {
        let _ = stopped.await;
    }));
    until(async || http(address, "GET", "/readyz", &[], "").await.status == 200).await;
    let world = World { fake, address };
    world.ok(&a(), "punch_in", json!({ "resource": "file://a", "holder_passport": "agent-a" })).await;
    let waiting = b();
    let (told, ended) = tokio::join!(
        world.call(&waiting, "punch_in", json!({ "resource": "file://a", "holder_passport": "agent-b", "wait_ms": 600 })),
        async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            stop.send(()).unwrap();
            served.await.unwrap()
        }
    );
    assert!(told.told().contains("still held"), "{}", told.told());
    assert!(ended.is_ok());
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}
