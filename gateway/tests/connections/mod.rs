//! Clients that connect and then do not do what clients do, and tokens that end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quorate_domain::identity::{RevokeToken, token_hash};
use quorate_gateway::{Config, Gateway};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fake::Fake;
use crate::{World, a, b, gateway, http, until};

async fn world(change: impl FnOnce(&mut Config)) -> World {
    let fake = Fake::start(1).await;
    let mut config = Config { listen: "127.0.0.1:0".into(), nodes: fake.addresses(), session_key: "07".repeat(32), ..Config::default() };
    change(&mut config);
    let gateway = Gateway::bind(config).await.unwrap();
    let address = gateway.address();
    tokio::spawn(gateway.serve(std::future::pending()));
    until(async || http(address, "GET", "/readyz", &[], "").await.status == 200).await;
    World { fake, address }
}

/// Waits for the other side to close, and says what it sent before.
async fn closed(mut stream: TcpStream) -> String {
    let mut sent = Vec::new();
    // Reset is closed as well.
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut sent)).await.expect("it is closed");
    String::from_utf8_lossy(&sent).into_owned()
}

async fn silent(address: SocketAddr, says: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(says.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn half_open_connections_give_way_to_a_client_that_speaks() {
    let world = world(|config| config.connections_max = 60).await;
    let mut held = Vec::new();
    for number in 0..120 {
        held.push(silent(world.address, if number % 2 == 0 { "" } else { "POST /mcp HTTP/1.1\r\nHost: loc" }).await);
    }
    let start = Instant::now();
    for _ in 0..20 {
        world.ok(&a(), "list_entities", json!({})).await;
    }
    assert!(start.elapsed() < Duration::from_secs(5), "no call waited for the header time-out: {:?}", start.elapsed());
    // The oldest ones are gone, and their places with them.
    closed(held.remove(0)).await;
}

#[tokio::test]
async fn a_connection_without_a_request_in_time_is_closed_however_slowly_it_speaks() {
    let world = world(|config| config.header_timeout_ms = 300).await;
    assert_eq!(closed(silent(world.address, "").await).await, "");

    let mut trickle = silent(world.address, "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ").await;
    let start = Instant::now();
    while trickle.write_all(b"x").await.is_ok() {
        assert!(start.elapsed() < Duration::from_secs(5), "it is still open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let page = http(world.address, "GET", "/metrics", &[], "").await.text;
    assert!(page.contains("quorate_gateway_connections_timed_out_total 2"), "{page}");
}

#[tokio::test]
async fn the_head_of_a_second_request_has_to_come_in_time_too() {
    let world = world(|config| config.header_timeout_ms = 300).await;
    let mut stream = silent(world.address, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let mut answer = [0; 512];
    let read = stream.read(&mut answer).await.unwrap();
    assert!(String::from_utf8_lossy(&answer[..read]).starts_with("HTTP/1.1 200"));
    tokio::time::sleep(Duration::from_millis(600)).await;
    // Silence between requests is not slowness: the connection still serves.
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(stream.read(&mut answer).await.unwrap() > 0);
    let start = Instant::now();
    tokio::time::sleep(Duration::from_millis(200)).await;
    while stream.write_all(b"G").await.is_ok() {
        assert!(start.elapsed() < Duration::from_secs(5), "it is still open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_connection_is_kept_when_the_body_came_after_the_head() {
    let world = world(|config| config.header_timeout_ms = 300).await;
    let head = "POST /v1/tools/crux/list_entities HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer token-a\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n";
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    for _ in 0..2 {
        stream.write_all(head.as_bytes()).await.unwrap();
        // Long enough for a look at what the connection does, and for its answer to come before the next one.
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(b"{}").await.unwrap();
        let mut answer = [0; 4096];
        let read = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
}

#[tokio::test]
async fn a_silent_connection_is_closed_after_a_while_and_a_waiting_call_is_not() {
    let world = world(|config| config.idle_timeout_ms = 300).await;
    let card = json!({ "resource": "file://a", "holder_passport": "agent-a" });
    world.ok(&a(), "punch_in", card).await;
    let wait = json!({ "resource": "file://a", "holder_passport": "agent-b", "wait_ms": 1_200 });
    let told = world.call(&b(), "punch_in", wait).await.told();
    assert!(told.contains("still held"), "a call of four idle time-outs is answered: {told}");
    let answered = closed(silent(world.address, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await).await;
    assert!(answered.ends_with("ok\n"), "{answered}");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_answered_with_408() {
    let world = world(|config| config.body_timeout_ms = 300).await;
    for path in ["/mcp/crux", "/v1/tools/crux/store_fact"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer token-a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        );
        let answered = closed(silent(world.address, &head).await).await;
        assert!(answered.starts_with("HTTP/1.1 408") && answered.contains("did not arrive within 300 ms"), "{answered}");
    }
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_as_they_come() {
    let world = world(|config| config.connections_max = 2).await;
    let mut open = Vec::new();
    // A connection that has just ended may keep its place for a moment.
    while open.len() < 2 {
        let mut stream = silent(world.address, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        if stream.read(&mut [0; 512]).await.is_ok_and(|read| read > 0) {
            open.push(stream);
        }
    }
    assert_eq!(closed(silent(world.address, "").await).await, "");
    open.pop();
    let again = async || {
        let mut stream = silent(world.address, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        stream.read(&mut [0; 512]).await.is_ok_and(|read| read > 0)
    };
    until(again).await;
}

#[tokio::test]
async fn a_revoked_token_is_refused_by_every_gateway_within_one_second() {
    let fake = Fake::start(1).await;
    let gateways = [gateway(&fake, 5_000).await, gateway(&fake, 5_000).await];
    let headers = [("Authorization", "Bearer token-a"), ("Content-Type", "application/json")];
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_string()));
    let asked = async |address| http(address, "POST", "/v1/tools/crux/list_entities", &headers, "{}").await.status;
    for address in gateways {
        assert_eq!(asked(address).await, 200);
    }
    fake.run(RevokeToken { hash: token_hash("token-a") }.into()).unwrap();
    let revoked = Instant::now();
    for address in gateways {
        until(async || asked(address).await == 401).await;
        assert!(revoked.elapsed() < Duration::from_secs(1), "{:?}", revoked.elapsed());
    }
}
