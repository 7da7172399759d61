//! The board over MCP and HTTP: pages of work, who is there, whose moves wait for a person, and what refuses to begin.

use quorate_domain::codec;
use quorate_domain::limit::{REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX};
use quorate_domain::work::{GetWork, WorkView};
use quorate_domain::{Principal, Tier};
use serde_json::{Value, json};

use crate::{Answer, World, a, b, by, http, until, world};

async fn send(world: &World, token: &str, method: &str, path: &str, body: &str) -> Answer {
    let headers = [("Content-Type", "application/json".to_string()), ("Authorization", format!("Bearer {token}"))];
    http(world.address, method, path, &headers.map(|(name, value)| (name.to_string(), value)), body).await
}

async fn create(world: &World, more: Value) -> String {
    let mut asked = json!({ "project_id": "p_default", "title": "parser", "created_by_passport": "agent-a" });
    asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    world.ok(&a(), "create_work", asked).await["id"].as_str().unwrap().into()
}

fn titles(list: &Value) -> Vec<&str> {
    list["work"].as_array().unwrap().iter().map(|item| item["title"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_page_of_work_is_filled_up_to_the_reply_and_where_rows_are_asked_for_up_to_the_largest_one() {
    let world = world().await;
    for n in 0..150 {
        create(&world, json!({ "title": format!("item {n}"), "linked_pr": "https://forge.example/pr/1", "linked_issue": "7" })).await;
    }
    let page = async |asked: Value| {
        let list = world.ok(&a(), "list_work", asked).await;
        let bytes = list.to_string().len();
        (list, bytes)
    };
    let (first, bytes) = page(json!({})).await;
    assert!(bytes > REPLY_BYTES_DEFAULT * 3 / 4 && bytes <= REPLY_BYTES_DEFAULT, "{bytes}");
    assert!(first["next_cursor"].is_string());
    let (wide, bytes) = page(json!({ "limit": 1_000 })).await;
    assert!(bytes > REPLY_BYTES_MAX * 3 / 4 && bytes <= REPLY_BYTES_MAX, "{bytes}");
    assert_eq!(titles(&page(json!({ "limit": 40 })).await.0).len(), 40);
    let rest = page(json!({ "limit": 1_000, "cursor": wide["next_cursor"] })).await.0;
    let seen: Vec<&str> = titles(&wide).into_iter().chain(titles(&rest)).collect();
    assert_eq!(seen, (0..150).rev().map(|n| format!("item {n}")).collect::<Vec<_>>());
    assert!(rest.get("next_cursor").is_none());
}

#[tokio::test]
async fn whatever_an_item_holds_its_row_is_no_longer_than_it_is_counted_for() {
    let world = world().await;
    let first = create(&world, json!({ "title": "\"\\\u{1f600}", "body": "a\nb\t\"" })).await;
    let waits = json!({ "depends_on": [first], "state": "blocked", "blocker_reason": "\"why\"", "linked_pr": "p", "linked_issue": "i" });
    create(&world, waits).await;
    let list = world.ok(&a(), "list_work", json!({})).await;
    for item in list["work"].as_array().unwrap() {
        let id = item["id"].as_str().unwrap();
        let query = GetWork { work_id: id.into(), limit: 1, cursor: None };
        let (tenant, passport) = ("default".into(), "agent-a".into());
        let caller = Principal { tenant, passport, tier: Tier::Verified, scopes: Default::default() };
        let answer = world.fake.ask(caller, query.into()).1.unwrap();
        let work = codec::decode::<WorkView>(&answer).unwrap().work.unwrap();
        let (row, counted) = (item.to_string().len(), work.reply_bytes());
        assert!(row <= counted && counted <= row + 100, "{row} and {counted}: {item}");
    }
}

#[tokio::test]
async fn repeating_an_announcement_costs_no_entry_and_any_call_shows_that_its_caller_is_there() {
    let world = world().await;
    let focus = json!({ "session_id": "0a", "project_id": "p_default", "paths": ["src"] });
    let first = world.ok(&a(), "coord_announce", focus.clone()).await;
    world.fake.proposals();
    for _ in 0..20 {
        assert_eq!(world.ok(&a(), "coord_announce", focus.clone()).await, first);
    }
    // What is handed over every few seconds stands for all calls.
    let proposals = world.fake.proposals();
    assert!(proposals.len() < 5, "{proposals:?}");
    let other = json!({ "session_id": "0a", "project_id": "p_default", "paths": ["docs"] });
    assert_eq!(world.ok(&a(), "coord_announce", other).await["intent"]["paths"], json!(["docs"]));
    let keyed = json!({ "session_id": "0a", "project_id": "p_default", "paths": ["docs"], "idempotency_key": "k" });
    world.fake.proposals();
    world.ok(&a(), "coord_announce", keyed).await;
    assert!(!world.fake.proposals().is_empty(), "the answer under a key is kept");

    let seen = async || {
        let floor = world.ok(&b(), "coord_status", json!({})).await;
        floor["active_sessions"][0]["last_seen_at_unix_ms"].as_u64().unwrap()
    };
    let before = seen().await;
    assert_eq!(send(&world, "token-a", "GET", "/v1/approvals", "").await.status, 200);
    until(async || seen().await > before).await;
}

#[tokio::test]
async fn an_operator_has_moves_of_a_passport_wait_and_an_approved_one_happens_once() {
    let (world, gate) = (world().await, "/v1/passports/agent-a/work-gate");
    let on = r#"{"agent_work_gate":true}"#;
    assert_eq!(send(&world, "token-b", "PUT", gate, on).await.status, 403);
    assert_eq!(send(&world, "token-b", "GET", gate, "").await.status, 403);
    assert_eq!(send(&world, "token-operator", "PUT", "/v1/passports/nobody/work-gate", on).await.status, 404);
    assert_eq!(send(&world, "token-operator", "PUT", gate, r#"{"gated":true}"#).await.status, 400);
    let set = send(&world, "token-operator", "PUT", gate, on).await;
    assert_eq!((set.status, set.json()), (200, json!({ "passport_id": "agent-a", "agent_work_gate": true })));
    assert_eq!(send(&world, "token-operator", "GET", gate, "").await.json()["agent_work_gate"], json!(true));

    let item = create(&world, json!({})).await;
    let moved = json!({ "work_id": item, "state": "in_progress", "by_passport": "agent-a" });
    let waiting = world.ok(&a(), "update_work_state", moved).await;
    assert_eq!(waiting["applied"], json!(false));
    let ask = json!({ "work_id": waiting["queued"]["action_id"] });
    assert_eq!(world.ok(&a(), "list_work", ask.clone()).await["work"][0]["state"], "pending_approval");
    let decide = json!({ "request_id": waiting["queued"]["action_id"], "decision": "approve" });
    world.ok(&by("token-operator"), "approval_decide", decide.clone()).await;
    assert_eq!(world.ok(&a(), "list_work", ask).await["work"][0]["state"], "approved");
    let again = world.call(&by("token-operator"), "approval_decide", decide).await.told();
    assert!(again.contains("ALREADY_DECIDED"), "{again}");
    let feed = world.ok(&a(), "status_feed", json!({ "work_id": item })).await;
    let verbs: Vec<&str> = feed["events"].as_array().unwrap().iter().map(|event| event["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["HUMAN_HOLD", "CLAIMED"]);

    send(&world, "token-operator", "PUT", gate, r#"{"agent_work_gate":false}"#).await;
    let done = json!({ "work_id": item, "state": "complete", "by_passport": "agent-a" });
    assert_eq!(world.ok(&a(), "update_work_state", done).await["applied"], json!(true));
}

#[tokio::test]
async fn what_waits_for_other_work_is_refused_with_what_it_waits_for_and_what_to_do() {
    let world = world().await;
    let first = create(&world, json!({})).await;
    let second = create(&world, json!({ "depends_on": [first] })).await;
    let claim = json!({ "work_id": second, "state": "in_progress", "expected_state": "planned", "by_passport": "agent-a" });
    let told = world.call(&a(), "update_work_state", claim.clone()).await.told();
    let start = format!(r#"200 "UNREADY" wrote=no work `{second}` waits for one item that is not finished: `{first}`"#);
    assert!(told.starts_with(&start) && told.contains("`depends_on`"), "{told}");
    let over_http = send(&world, "token-a", "POST", "/v1/tools/crux/update_work_state", &claim.to_string()).await;
    assert_eq!((over_http.status, &over_http.json()["code"]), (409, &json!("UNREADY")));
    world.ok(&a(), "update_work_state", json!({ "work_id": first, "state": "archive", "by_passport": "agent-a" })).await;
    assert_eq!(world.ok(&a(), "update_work_state", claim).await["applied"], json!(true));
}
