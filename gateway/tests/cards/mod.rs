//! Punchcards where programs meet them: over HTTP, gRPC, and in calls that wait.

use std::time::{Duration, Instant};

use quorate_proto::fence::VerifyTokenRequest;
use quorate_proto::fence::fence_client::FenceClient;
use serde_json::{Value, json};
use tonic::{Code, Request};

use crate::fake::{Fake, Fault};
use crate::{Answer, Caller, World, a, b, by, gateway, http, nobody, until, world};

async fn get(world: &World, caller: &Caller, path: &str) -> Answer {
    let token = caller.token.map(|token| ("Authorization".to_string(), format!("Bearer {token}")));
    http(world.address, "GET", path, &token.into_iter().collect::<Vec<_>>(), "").await
}

async fn punch_in(world: &World, caller: &Caller, who: &str, resource: &str) -> Value {
    world.ok(caller, "punch_in", json!({ "resource": resource, "holder_passport": who, "ttl_ms": 60_000 })).await
}

#[tokio::test]
async fn an_outside_resource_asks_whether_a_token_is_good_over_http_and_grpc() {
    let world = world().await;
    let token = punch_in(&world, &a(), "agent-a", "tree://deploy").await["fencing_token"].as_u64().unwrap();
    let ask = |resource: &str, token: u64| format!("/v1/punchcards/verify?resource={resource}&fencing_token={token}");
    let good = get(&world, &b(), &ask("file://deploy/app", token)).await;
    assert_eq!((good.status, &good.json()["valid"], &good.json()["holder_passport"]), (200, &json!(true), &json!("agent-a")));
    assert!(good.json()["left_ms"].as_u64().unwrap() > 50_000, "{}", good.text);
    let body = json!({ "resource": "file://deploy/app", "fencing_token": token, "holder_passport": "agent-b" }).to_string();
    let other = world.post(&b(), "/v1/punchcards/verify", &body).await.json();
    assert_eq!((&other["valid"], &other["current_token"]), (&json!(false), &json!(token)));
    for (caller, path, status) in [
        (nobody(), ask("file://a", 1), 401),
        (by("token-bare"), ask("file://a", 1), 403),
        (by("token-nonsense"), ask("file://a", 1), 401),
        (b(), ask("a", 1), 400),
        (b(), "/v1/punchcards/verify?resource=file://a".into(), 400),
        (b(), format!("{}&more=1", ask("file://a", 1)), 400),
    ] {
        assert_eq!(get(&world, &caller, &path).await.status, status, "{path}");
    }

    let mut client = FenceClient::connect(format!("http://{}", world.address)).await.unwrap();
    let request = |resource: &str, token: u64, bearer: Option<&str>| {
        let mut request = Request::new(VerifyTokenRequest { resource: resource.into(), fencing_token: token, holder_passport: None });
        if let Some(bearer) = bearer {
            request.metadata_mut().insert("authorization", format!("Bearer {bearer}").parse().unwrap());
        }
        request
    };
    let told = client.verify_token(request("file://deploy/app", token, Some("token-b"))).await.unwrap().into_inner();
    assert_eq!((told.valid, told.holder_passport.as_str(), told.current_token), (true, "agent-a", token));
    // Another tenant sees nothing of it.
    let told = client.verify_token(request("file://deploy/app", token, Some("token-other"))).await.unwrap().into_inner();
    assert_eq!((told.valid, told.holder_passport.as_str()), (false, ""));
    for (resource, bearer, code) in [
        ("a", Some("token-b"), Code::InvalidArgument),
        ("file://a", None, Code::Unauthenticated),
        ("file://a", Some("token-nonsense"), Code::Unauthenticated),
        ("file://a", Some("token-bare"), Code::PermissionDenied),
    ] {
        assert_eq!(client.verify_token(request(resource, 1, bearer)).await.unwrap_err().code(), code, "{resource} {bearer:?}");
    }

    world.ok(&a(), "punch_out", json!({ "resource": "tree://deploy", "holder_passport": "agent-a" })).await;
    let told = client.verify_token(request("file://deploy/app", token, Some("token-b"))).await.unwrap().into_inner();
    assert!(!told.valid, "a card that was given back is not good any more");
}

#[tokio::test]
async fn what_cannot_be_told_of_a_token_is_said_within_seconds_and_when_to_ask_again() {
    let fake = Fake::start(3).await;
    let address = gateway(&fake, 60_000).await;
    let world = World { fake, address };
    let mut client = FenceClient::connect(format!("http://{}", world.address)).await.unwrap();
    // Who is asking is known, from a moment ago.
    punch_in(&world, &a(), "agent-a", "file://a").await;
    for node in 1..=3 {
        world.fake.fault(node, Fault::Lost);
    }
    let start = Instant::now();
    let told = get(&world, &a(), "/v1/punchcards/verify?resource=file://a&fencing_token=1").await;
    assert_eq!((told.status, told.headers["retry-after"].as_str(), &told.json()["retryable"]), (503, "1", &json!(true)), "{}", told.text);
    let body = json!({ "resource": "file://a", "fencing_token": 1 }).to_string();
    assert_eq!(world.post(&a(), "/v1/punchcards/verify", &body).await.status, 503);
    let mut request = Request::new(VerifyTokenRequest { resource: "file://a".into(), fencing_token: 1, holder_passport: None });
    request.metadata_mut().insert("authorization", "Bearer token-a".parse().unwrap());
    assert_eq!(client.verify_token(request).await.unwrap_err().code(), Code::Unavailable);
    let each = start.elapsed() / 3;
    assert!(each < Duration::from_secs(10), "{each:?}, of a call that may take a minute");
    // Other addresses that only read don't keep their caller for as long as a call may take either.
    for path in ["/v1/punchcards", "/v1/log/head"] {
        let start = Instant::now();
        let told = get(&world, &a(), path).await;
        assert_eq!(told.status, 503, "{path}: {}", told.text);
        assert!(told.headers.contains_key("retry-after") && start.elapsed() < Duration::from_secs(20), "{path}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn cards_are_renewed_in_bulk_and_handed_over_under_a_new_token() {
    let world = world().await;
    for resource in ["file://x", "file://y"] {
        punch_in(&world, &a(), "agent-a", resource).await;
    }
    let renewed = world.post(&a(), "/v1/punchcards/renew", &json!({ "ttl_ms": 90_000 }).to_string()).await.json();
    let ttls: Vec<&Value> = renewed["renewed"].as_array().unwrap().iter().map(|card| &card["ttl_ms"]).collect();
    assert_eq!(ttls, [&json!(90_000), &json!(90_000)]);
    let some = json!({ "resources": ["file://x", "file://z"] }).to_string();
    assert_eq!(world.post(&a(), "/v1/punchcards/renew", &some).await.json()["not_held"], json!(["file://z"]));

    let body = json!({ "resource": "file://x", "to_passport": "agent-b" }).to_string();
    let done = world.post(&a(), "/v1/punchcards/transfer", &body).await.json();
    assert_eq!((&done["card"]["holder_passport"], &done["released"]["status"]), (&json!("agent-b"), &json!("released")));
    let (old, new) = (done["released"]["fencing_token"].as_u64().unwrap(), done["card"]["fencing_token"].as_u64().unwrap());
    assert!(new > old);
    let late = json!({ "resource": "file://x", "holder_passport": "agent-a", "fencing_token": old });
    assert!(world.call(&a(), "punch_out", late).await.told().contains("STALE_TOKEN"));
    let back = json!({ "resource": "file://x", "holder_passport": "agent-b", "transfer_to": "agent-a" });
    assert_eq!(world.ok(&b(), "punch_out", back).await["transferred_to"], json!("agent-a"));
    let history = get(&world, &b(), "/v1/punchcards?resource=file://x&limit=2").await.json();
    assert_eq!((&history["count"], history["next_cursor"].is_string()), (&json!(2), true), "it is told in pages: {history}");
}

#[tokio::test]
async fn who_waits_for_whom_is_told_and_whoever_closes_a_circle_is_refused() {
    let world = world().await;
    punch_in(&world, &a(), "agent-a", "file://x").await;
    punch_in(&world, &b(), "agent-b", "file://y").await;
    let waits = json!({ "resource": "file://y", "holder_passport": "agent-a", "ttl_ms": 60_000, "wait_ms": 60_000 });
    let waiting = {
        let world = World { fake: world.fake.clone(), address: world.address };
        tokio::spawn(async move { world.ok(&a(), "punch_in", waits).await })
    };
    until(async || get(&world, &b(), "/v1/punchcards/waiters").await.json()["waiters"].as_array().is_some_and(|all| all.len() == 1)).await;
    let status = world.ok(&b(), "coord_status", json!({ "waiting": true })).await;
    assert_eq!((&status["waiting"][0]["holder_passport"], &status["waiting"][0]["waits_for"]), (&json!("agent-a"), &json!(["agent-b"])));
    let over_http = get(&world, &b(), "/v1/punchcards/waiters?resource=file://y").await.json();
    assert_eq!(over_http["waiters"][0]["waits_for"], json!([{ "passport": "agent-b", "resource": "file://y", "queued": false }]));
    let closes = json!({ "resource": "file://x", "holder_passport": "agent-b", "wait_ms": 60_000 });
    let refused = world.call(&b(), "punch_in", closes).await;
    let told = "200 \"DEADLOCK\" wrote=no waiting for `file://x` would never end: `agent-b` wants `file://x`, held by `agent-a` (`file://x`), \
                `agent-a` wants `file://y`, held by `agent-b` (`file://y`). Nothing was written. Give `file://y` back with `punch_out` and \
                take both again in one order, or ask `agent-a` to punch out; nothing else ends it but time.";
    assert_eq!(refused.told(), told);

    // The one that waits gets its card, for as long as it asked for and not only until it is taken.
    world.ok(&b(), "punch_out", json!({ "resource": "file://y", "holder_passport": "agent-b" })).await;
    let card = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    let left = world.ok(&a(), "check_punchcard", json!({ "resource": "file://y" })).await["left_ms"].as_u64().unwrap();
    assert!(card["ttl_ms"] == 60_000 && left > 40_000, "{card}, {left} ms left");
}
