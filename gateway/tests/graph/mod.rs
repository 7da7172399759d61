//! The graph as callers meet it: kinds that operators register, and walks.

use serde_json::{Value, json};

use crate::{World, a, by, http, world};

async fn put(world: &World, token: &str, kind: &str, body: Value) -> crate::Answer {
    let headers = [("Content-Type", "application/json".to_string()), ("Authorization", format!("Bearer {token}"))];
    let headers = headers.map(|(name, value)| (name.to_string(), value));
    http(world.address, "PUT", &format!("/v1/kinds/{kind}"), &headers, &body.to_string()).await
}

#[tokio::test]
async fn a_registered_kind_is_listed_and_its_payloads_are_held_to_its_schema() {
    let world = world().await;
    let service = json!({
        "description": "What runs.",
        "json_schema": { "type": "object", "required": ["owner"], "properties": { "owner": { "type": "string" } } },
        "outgoing": [{ "edge_kind": "calls", "to": ["service"] }],
    });
    assert_eq!(put(&world, "token-a", "service", service.clone()).await.status, 403);
    assert_eq!(put(&world, "token-operator", "capability", service.clone()).await.status, 400);
    let broken = json!({ "description": "x", "json_schema": { "type": "thing" } });
    assert_eq!(put(&world, "token-operator", "service", broken).await.status, 400);
    let made = put(&world, "token-operator", "service", service.clone()).await;
    assert_eq!((made.status, &made.json()["kind"]), (200, &json!("service")), "{}", made.text);

    let listed = world.ok(&a(), "kind_list", json!({})).await;
    let names: Vec<&str> = listed["kinds"].as_array().unwrap().iter().map(|kind| kind["kind"].as_str().unwrap()).collect();
    assert_eq!(names, ["agent_trace_node", "capability", "repo", "service"]);
    let shown = world.ok(&a(), "kind_get", json!({ "kind": "service" })).await["registration"].clone();
    assert_eq!((&shown["json_schema"], &shown["allowed_incoming_edges"][0]["kinds"]), (&service["json_schema"], &json!(["service"])));
    assert_eq!(world.ok(&by("token-other"), "kind_get", json!({ "kind": "service" })).await["registration"], Value::Null);

    for id in ["api", "db", "disk"] {
        world.ok(&a(), "entity_upsert", json!({ "kind": "service", "id": id, "payload": { "owner": "mara" } })).await;
    }
    let told = world.call(&a(), "entity_upsert", json!({ "kind": "service", "id": "x", "payload": { "owner": 7 } })).await.told();
    assert!(told.starts_with("200 -32602 wrote=no `payload.owner` must be a string, not a number"), "{told}");
    let other = world.call(&by("token-other"), "entity_upsert", json!({ "kind": "service", "id": "x", "payload": {} })).await.told();
    assert!(other.contains("is no registered kind"), "{other}");
    let edge =
        |from: &str, to: &str| json!({ "from_kind": "service", "from_id": from, "edge_kind": "calls", "to_kind": "service", "to_id": to });
    for (from, to) in [("api", "db"), ("db", "disk"), ("disk", "api")] {
        world.ok(&a(), "edge_upsert", edge(from, to)).await;
    }
    let walk = world.ok(&a(), "graph_traverse", json!({ "kind": "service", "id": "api", "depth": 5 })).await;
    let reached: Vec<(&str, u64)> =
        walk["reached"].as_array().unwrap().iter().map(|row| (row["id"].as_str().unwrap(), row["distance"].as_u64().unwrap())).collect();
    assert_eq!((reached, &walk["truncated"]), (vec![("db", 1), ("disk", 2)], &json!(false)));
    let against = world.ok(&a(), "graph_traverse", json!({ "kind": "service", "id": "api", "direction": "in" })).await;
    assert_eq!(
        against["reached"][0],
        json!({ "kind": "service", "id": "disk", "distance": 1, "edge_id": "service/disk|calls|service/api" })
    );
}
