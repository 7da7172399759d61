//! Token budgets: who is beyond one is warned or stopped, and can end in order.

use serde_json::json;

use crate::{World, a, b, by, http, until, world};

async fn send(world: &World, token: &str, method: &str, path: &str, body: &str) -> crate::Answer {
    let headers = [("Content-Type", "application/json".to_string()), ("Authorization", format!("Bearer {token}"))];
    http(world.address, method, path, &headers.map(|(name, value)| (name.to_string(), value)), body).await
}

async fn give(world: &World, tokens: u64, beyond: &str) {
    let body = json!({ "tokens": tokens, "beyond": beyond }).to_string();
    let given = send(world, "token-operator", "PUT", "/v1/budgets/agent-a", &body).await;
    assert_eq!((given.status, &given.json()["used"]), (200, &json!(0)), "{}", given.text);
}

#[tokio::test]
async fn who_is_beyond_a_budget_that_warns_is_told_so_beside_every_answer() {
    let world = world().await;
    give(&world, 1, "warn").await;
    world.ok(&a(), "list_entities", json!({})).await;
    // Asking for the usage hands over what was counted.
    let usage = world.ok(&a(), "session_token_usage", json!({})).await;
    assert_eq!((&usage["limit"], &usage["beyond_limit"]), (&json!(1), &json!("warn")));
    assert!(usage["pct"].as_f64().unwrap() > 100.0 && usage["counted_since_unix_ms"].is_u64(), "{usage}");
    let answer = world.call(&a(), "list_entities", json!({})).await.json();
    let content = &answer["result"]["content"];
    let warning = content[1]["text"].as_str().unwrap();
    assert!(warning.starts_with("Your passport has used ") && warning.contains(" of a budget of 1:"), "{warning}");
    assert!(content[0]["text"].as_str().unwrap().starts_with('{'), "the facts come first");
    let over_http = world.post(&a(), "/v1/tools/crux/list_entities", "{}").await;
    assert_eq!((over_http.status, over_http.headers["quorate-warning"].starts_with("Your passport has used ")), (200, true));
    let others = world.call(&b(), "list_entities", json!({})).await.json();
    assert_eq!(others["result"]["content"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn who_is_beyond_a_budget_that_stops_can_end_in_order_and_goes_on_when_it_is_given_more() {
    let world = world().await;
    world.ok(&a(), "punch_in", json!({ "resource": "file://a", "holder_passport": "agent-a" })).await;
    world.ok(&a(), "session_token_usage", json!({})).await;
    give(&world, 1, "stop").await;
    world.ok(&a(), "list_entities", json!({})).await;
    world.ok(&a(), "session_token_usage", json!({})).await;
    let refused = world.call(&a(), "list_entities", json!({})).await.told();
    assert!(refused.starts_with(r#"200 "OVER_BUDGET" wrote=no your passport has used "#), "{refused}");
    assert!(refused.contains("End in order with `save_session`"), "{refused}");
    let wrapped = world.call(&a(), "call_tool", json!({ "name": "list_entities", "arguments": {} })).await.told();
    assert!(wrapped.contains("OVER_BUDGET"), "{wrapped}");
    assert_eq!(world.post(&a(), "/v1/tools/crux/list_entities", "{}").await.status, 429);

    let state = json!({ "session_id": "s", "state": { "title": "where I was" } });
    world.ok(&a(), "save_session", state).await;
    world
        .ok(&a(), "call_tool", json!({ "name": "punch_out", "arguments": { "resource": "file://a", "holder_passport": "agent-a" } }))
        .await;
    world.ok(&b(), "list_entities", json!({})).await;

    give(&world, 1_000_000, "stop").await;
    until(async || world.call(&a(), "list_entities", json!({})).await.json()["result"].get("isError").is_none()).await;
}

#[tokio::test]
async fn a_budget_of_all_does_not_stop_operators_and_budgets_are_theirs_to_give() {
    let world = world().await;
    let set = |name: &str, value: &str| quorate_domain::flag::SetFlag { name: name.into(), value: value.into() };
    world.fake.run(set("CORECRUXD_SESSION_TOKEN_BUDGET", "1").into()).unwrap();
    world.fake.run(set("QUORATE_BEYOND_TOKEN_BUDGET", "stop").into()).unwrap();
    for caller in [a(), by("token-operator")] {
        world.ok(&caller, "list_entities", json!({})).await;
        world.ok(&caller, "session_token_usage", json!({})).await;
    }
    assert!(world.call(&a(), "list_entities", json!({})).await.told().contains("OVER_BUDGET"));
    let warned = world.call(&by("token-operator"), "list_entities", json!({})).await.json();
    assert_eq!(warned["result"]["content"].as_array().unwrap().len(), 2);

    let body = r#"{"tokens":5,"beyond":"report"}"#;
    assert_eq!(send(&world, "token-b", "PUT", "/v1/budgets/agent-a", body).await.status, 403);
    assert_eq!(send(&world, "token-b", "GET", "/v1/budgets", "").await.status, 403);
    assert_eq!(send(&world, "token-operator", "PUT", "/v1/budgets/nobody", body).await.status, 404);
    assert_eq!(send(&world, "token-operator", "PUT", "/v1/budgets/agent-a", r#"{"tokens":5,"beyond":"shout"}"#).await.status, 400);
    assert_eq!(send(&world, "token-operator", "PUT", "/v1/budgets/agent-a", body).await.status, 200);
    let listed = send(&world, "token-operator", "GET", "/v1/budgets", "").await.json();
    assert_eq!((&listed["budgets"][0]["passport_id"], &listed["budgets"][0]["beyond"]), (&json!("agent-a"), &json!("report")));
    assert_eq!(send(&world, "token-operator", "DELETE", "/v1/budgets/agent-a", "").await.status, 200);
    assert_eq!(send(&world, "token-operator", "DELETE", "/v1/budgets/agent-a", "").await.status, 404);
}
