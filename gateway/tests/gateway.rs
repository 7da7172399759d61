//! The gateway as its clients see it: raw HTTP in, and true rules behind it.

mod fake;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use expect_test::{Expect, expect, expect_file};
use fake::{Fake, Fault};
use quorate_domain::flag::SetFlag;
use quorate_domain::identity::SetWorkGate;
use quorate_gateway::registry::Catalog;
use quorate_gateway::{Config, Gateway, profile, schema, tools};
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

async fn world_of(nodes: u64) -> World {
    let fake = Fake::start(nodes).await;
    let address = gateway(&fake, 5_000).await;
    World { fake, address }
}

async fn gateway(fake: &Fake, call_deadline_ms: u64) -> SocketAddr {
    let config = Config {
        listen: "127.0.0.1:0".into(),
        nodes: fake.addresses(),
        session_key: "07".repeat(32),
        receipt_keys: vec![fake.receipt_key_hex()],
        call_deadline_ms,
        ..Config::default()
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
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, result["structuredContent"], "text and structured content say the same");
        text
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
        assert!(told.starts_with("200 -32030 wrote=no this needs the scope `crux-mcp."), "{}: {told}", entry.name);
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
    expect![[r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"instructions":"...","ttlMs":60000,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"quorate","title":"Quorate","version":"0.1.0"}}}"#]].assert_eq(&discovered.to_string());
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
        ("jsonrpc 1.0", a(), r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#),
        ("a null id", a(), r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#),
        ("an object as id", a(), r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#),
        ("a fraction as id", a(), r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#),
        ("params as list", a(), r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#),
        ("no method", a(), r#"{"jsonrpc":"2.0","id":1}"#),
        ("an answer of the client", a(), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
        ("a notification", a(), r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
        ("an unknown method", a(), r#"{"jsonrpc":"2.0","id":1,"method":"resources/list"}"#),
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
        plain text: 415 error -32600: send `Content-Type: application/json`
        a charset: 200 {}
        jsonrpc 1.0: 400 error -32600: `jsonrpc` has to be "2.0"
        a null id: 400 error -32600: `id` has to be a string or an integer
        an object as id: 400 error -32600: `id` has to be a string or an integer
        a fraction as id: 400 error -32600: `id` has to be a string or an integer
        params as list: 400 error -32600: `params` has to be an object
        no method: 400 error -32600: `method` has to be a string
        an answer of the client: 202
        a notification: 202
        an unknown method: 200 error -32601: there is no method `resources/list`
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
        query_facts: 200 -32602 wrote=no `query_facts` does not know the argument `idempotency_key`. Nothing was written. `query_facts` takes `query`, `entity`, `entity_prefix`, `key`, `top_k`, `token_budget`, `include_superseded`, `as_of`, `min_effective_confidence` and `cursor`.
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

/// Calls every tool in a sensible order; each answer has to fit the tool's own `outputSchema`.
#[tokio::test]
async fn every_answer_fits_its_schema() {
    let world = world().await;
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
    run(&a(), "list_sessions", json!({ "include_archived": true })).await;
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
    let focus = json!({ "session_id": "00ff", "project_id": project, "paths": ["src"], "note": "parser" });
    run(&a(), "coord_announce", focus).await;
    let near = run(&b(), "coord_announce", json!({ "session_id": "0b", "project_id": project, "paths": ["src/lib.rs"] })).await;
    assert_eq!((&near["overlaps"][0]["kind"], &near["live_peer_intents"][0]["passport_id"]), (&json!("intent_path"), &json!("agent-a")));
    run(&a(), "punch_in", json!({ "resource": "tree://src", "holder_passport": "agent-a" })).await;
    let floor = run(&b(), "coord_status", json!({ "project_id": project })).await;
    assert_eq!(floor["active_sessions"][0]["leases"].as_array().map(Vec::len), Some(1), "{floor}");
    let cleared = run(&b(), "coord_announce", json!({ "session_id": "0b", "project_id": project, "ttl_seconds": 0 })).await;
    assert_eq!((&cleared["intent"], &cleared["cleared"]), (&Value::Null, &json!(true)));

    let found = run(&a(), "find_tools", json!({ "query": "archive a session" })).await;
    assert_eq!(found["tools"][0]["name"], "archive_session");
    let through = run(&a(), "call_tool", json!({ "name": "list_entities" })).await;
    assert!(through["entities"].is_array());
    let all: std::collections::BTreeSet<&str> = catalog.entries().iter().map(|entry| entry.name).collect();
    assert_eq!(called, all, "every tool was called");
}

#[tokio::test]
async fn orchestrators_stand_in_tools_list_and_answer_the_documented_record() {
    let world = world().await;
    let listed = world.rpc(&a(), "tools/list", json!({})).await.text;
    for tool in ["create_orchestrator", "attach_to_orchestrator", "detach_from_orchestrator", "list_orchestrators", "update_orchestrator"] {
        assert!(listed.contains(&format!(r#""name":"{tool}""#)), "{tool}");
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
    // The token is believed for two seconds from the first call on, so these come in time.
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
    ] {
        all += &(told(config) + "\n");
    }
    check(
        &all,
        expect![[r#"
        fine
        `listen` is no loopback address: 0.0.0.0:1; this version has no TLS and tokens would cross the network in the clear; use 127.0.0.1 behind a TLS proxy
        `listen` is no address such as 127.0.0.1:7400: `here`
        `nodes` names no node; give the gRPC address of one at least
        `session_key` has to be 32 bytes in hex, 64 digits; 6 characters were given
        `call_deadline_ms` is 1,000 to 300,000, not 1
        `calls_max` is 1 or more, not 0
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
