//! Approvals where people and programs meet them: policies, waiting for a decision, and notices to addresses outside.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fake::Fake;
use crate::{Answer, Caller, Config, World, a, b, by, gateway_with, http, until, world};

async fn send(world: &World, caller: &Caller, method: &str, path: &str, body: &str) -> Answer {
    let mut headers = vec![("Content-Type".to_string(), "application/json".to_string())];
    headers.extend(caller.token.map(|token| ("Authorization".to_string(), format!("Bearer {token}"))));
    http(world.address, method, path, &headers, body).await
}

async fn ask(world: &World, risk: &str) -> String {
    let arguments = json!({ "action_summary": "drop the table", "risk_tier": risk, "scope": "default", "token_budget": 0 });
    world.ok(&a(), "approval_request", arguments).await["request_id"].as_str().unwrap().into()
}

#[tokio::test]
async fn the_policy_is_an_operators_and_dual_control_leaves_the_first_yes_pending() {
    let world = world().await;
    let policy = json!({ "rules": [{ "risk_tier": "high", "approvals": 2 }] }).to_string();
    assert_eq!(send(&world, &b(), "PUT", "/v1/approvals/policy", &policy).await.status, 403);
    assert_eq!(send(&world, &by("token-operator"), "PUT", "/v1/approvals/policy", r#"{"rules":[{"risk":"high"}]}"#).await.status, 400);
    let set = send(&world, &by("token-operator"), "PUT", "/v1/approvals/policy", &policy).await;
    assert_eq!(set.status, 200, "{}", set.text);
    let shown = send(&world, &b(), "GET", "/v1/approvals/policy", "").await.json();
    assert_eq!((&shown["approve_low"], &shown["rules"][0]["approvals"]), (&json!(false), &json!(2)));
    let request_id = ask(&world, "high").await;
    let decide = json!({ "request_id": request_id, "decision": "approve" });
    let first = world.ok(&by("token-operator"), "approval_decide", decide.clone()).await;
    assert_eq!((&first["status"], &first["reviewer_passport"]), (&json!("pending"), &json!("operator")));
    let again = world.call(&by("token-operator"), "approval_decide", decide).await.told();
    assert!(again.contains("`operator` has approved this, and it needs two different people"), "{again}");
    let waits = send(&world, &b(), "GET", &format!("/v1/approvals/{request_id}"), "").await.json();
    assert_eq!((&waits["approvals_needed"], &waits["approved_so_far"][0]["passport"]), (&json!(2), &json!("operator")));
}

#[tokio::test]
async fn a_caller_waits_for_a_decision_in_its_call_or_by_long_poll() {
    let world = world().await;
    let waiting = {
        let world = World { fake: world.fake.clone(), address: world.address };
        let arguments = json!({
            "action_summary": "deploy", "risk_tier": "high", "scope": "default", "token_budget": 0, "wait_ms": 60_000,
        });
        tokio::spawn(async move { world.ok(&a(), "approval_request", arguments).await })
    };
    let pending = async || send(&world, &b(), "GET", "/v1/approvals", "").await.json()["approvals"].as_array().unwrap().clone();
    until(async || !pending().await.is_empty()).await;
    let request_id = pending().await[0]["request_id"].as_str().unwrap().to_string();
    let polling = {
        let (world, path) =
            (World { fake: world.fake.clone(), address: world.address }, format!("/v1/approvals/{request_id}?wait_ms=60000"));
        tokio::spawn(async move { send(&world, &b(), "GET", &path, "").await.json() })
    };
    world
        .ok(&by("token-operator"), "approval_decide", json!({ "request_id": request_id, "decision": "reject", "reviewer_notes": "no" }))
        .await;
    let told = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert_eq!((&told["status"], &told["reviewer"], &told["reviewer_notes"]), (&json!("rejected"), &json!("operator"), &json!("no")));
    let polled = tokio::time::timeout(Duration::from_secs(10), polling).await.unwrap().unwrap();
    assert_eq!(polled["status"], json!("rejected"));
    // What nobody decides is answered as it stands when the time is over.
    let other = ask(&world, "high").await;
    assert_eq!(send(&world, &b(), "GET", &format!("/v1/approvals/{other}?wait_ms=50"), "").await.json()["status"], json!("pending"));
    assert_eq!(send(&world, &b(), "GET", &format!("/v1/approvals/{other}?wait_ms=600001"), "").await.status, 400);
    assert_eq!(send(&world, &by("token-other"), "GET", &format!("/v1/approvals/{other}"), "").await.status, 404);
}

/// Takes one request and answers it with a status.
async fn received(listener: &TcpListener, status: &str) -> (String, Value) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut raw = Vec::new();
    loop {
        let mut some = [0; 4_096];
        let n = stream.read(&mut some).await.unwrap();
        raw.extend_from_slice(&some[..n]);
        let text = String::from_utf8_lossy(&raw).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse::<usize>().unwrap();
        if body.len() == length {
            stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
            return (head, serde_json::from_str(body).unwrap());
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_else(|| panic!("no {name} in {head}"))
}

#[tokio::test]
async fn a_notice_is_signed_sent_again_until_it_is_taken_and_then_never_more() {
    let world = world().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let address = json!({ "url": url, "risk_tier_min": "high", "kinds": ["approval.requested"] }).to_string();
    assert_eq!(send(&world, &b(), "PUT", "/v1/webhooks/main", &address).await.status, 403);
    let put = send(&world, &by("token-operator"), "PUT", "/v1/webhooks/main", &address).await.json();
    let secret = put["secret"].as_str().unwrap().to_string();
    assert_eq!(send(&world, &by("token-operator"), "PUT", "/v1/webhooks/main", &address).await.json()["secret"], json!(secret));
    assert!(!send(&world, &by("token-operator"), "GET", "/v1/webhooks", "").await.text.contains(&secret));
    ask(&world, "low").await;
    let request_id = ask(&world, "high").await;

    let (head, body) = received(&listener, "500 Internal Server Error").await;
    assert_eq!((&body["kind"], &body["approval"]["request_id"]), (&json!("approval.requested"), &json!(request_id)));
    let id = header(&head, "quorate-notice").to_string();
    assert_eq!((json!(id), header(&head, "quorate-attempt")), (body["id"].clone(), "1"));
    let signed = header(&head, "quorate-signature").to_string();
    let unix_s = signed.split(['=', ',']).nth(1).unwrap().parse().unwrap();
    assert_eq!(signed, quorate_gateway::signature(&secret, unix_s, &body.to_string()));

    // The same notice comes again, some seconds later, and once it is taken it is over.
    let again = tokio::time::timeout(Duration::from_secs(20), received(&listener, "204 No Content")).await.unwrap();
    assert_eq!((header(&again.0, "quorate-notice"), header(&again.0, "quorate-attempt"), again.1), (id.as_str(), "2", body));
    let listed = async || send(&world, &by("token-operator"), "GET", "/v1/notices", "").await.json();
    until(async || listed().await["notices"][0]["state"] == "delivered").await;
    assert_eq!(listed().await["notices"].as_array().unwrap().len(), 1, "low risk was not to be told");
    let deleted = send(&world, &by("token-operator"), "DELETE", "/v1/webhooks/main", "").await;
    assert_eq!(
        (deleted.status, &send(&world, &by("token-operator"), "GET", "/v1/webhooks", "").await.json()["webhooks"]),
        (200, &json!([]))
    );
}

#[tokio::test]
async fn an_address_that_may_not_be_called_is_refused_when_it_is_named() {
    let world = world().await;
    let put =
        async |who: &'static str, url: &str| send(&world, &by(who), "PUT", "/v1/webhooks/main", &json!({ "url": url }).to_string()).await;
    for url in ["http://example.org/hook", "http://10.0.0.1/hook", "http://127.0.0.1.example.org/", "http://0.0.0.0:80/x"] {
        let refused = put("token-operator", url).await;
        let told = refused.json();
        assert_eq!((refused.status, &told["wrote"]), (400, &json!("no")), "{}", refused.text);
        let message = told["message"].as_str().unwrap();
        assert!(message.starts_with("`url` may not be called: plain http would cross the network in the clear"), "{message}");
        assert_eq!(put("token-b", url).await.status, 403, "who may not name one is told that");
    }
    for url in ["file:///etc/passwd", "example.org", "https://", "https://[::1/x", "https://a:b@example.org"] {
        assert_eq!(put("token-operator", url).await.status, 400, "{url}");
    }
    assert_eq!(send(&world, &by("token-operator"), "GET", "/v1/webhooks", "").await.json()["webhooks"], json!([]));
    for url in ["https://example.org/hook", "http://127.0.0.1:9/hook", "http://localhost:9"] {
        assert_eq!(put("token-operator", url).await.status, 200, "{url}");
    }
}

#[tokio::test]
async fn a_slack_address_that_is_a_setting_is_told_of_each_act_once_however_many_gateways_have_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/services/secret", listener.local_addr().unwrap());
    let (fake, settings) = (Fake::start(1).await, Config { approvals_slack_webhook_url: Some(url.clone()), ..Config::default() });
    let address = gateway_with(&fake, settings.clone()).await;
    let world = World { fake, address };
    let named = async || send(&world, &by("token-operator"), "GET", "/v1/webhooks", "").await.json()["webhooks"].clone();
    until(async || !named().await.as_array().unwrap().is_empty()).await;
    let before = named().await;
    assert_eq!((&before[0]["id"], &before[0]["format"], &before[0]["url"]), (&json!("slack-setting"), &json!("slack"), &json!(url)));
    gateway_with(&world.fake, settings).await;

    let request_id = ask(&world, "high").await;
    let (_, message) = tokio::time::timeout(Duration::from_secs(10), received(&listener, "200 OK")).await.unwrap();
    let text = message["text"].as_str().unwrap();
    assert!(text.starts_with("*Approval wanted*: drop the table (risk high, asked for by agent-a") && text.contains(&request_id), "{text}");
    let listed = async || send(&world, &by("token-operator"), "GET", "/v1/notices", "").await.json()["notices"].clone();
    until(async || listed().await[0]["state"] == "delivered").await;
    assert_eq!(listed().await.as_array().unwrap().len(), 1);
    assert_eq!(named().await, before, "the second gateway found it as it should be");
    // Another team's approvals are not told.
    let arguments = json!({ "action_summary": "theirs", "risk_tier": "high", "scope": "other", "token_budget": 0 });
    world.ok(&by("token-other"), "approval_request", arguments).await;
    assert_eq!(listed().await.as_array().unwrap().len(), 1);
}
