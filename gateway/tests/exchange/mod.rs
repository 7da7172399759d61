//! Two gateways of two clusters that exchange facts.

use quorate_domain::flag::{self, SetFlag};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fake::{Fake, Fault};
use crate::{Config, World, a, by, gateway_with, world};

/// A cluster whose gateway exchanges facts with another one, as `agent-b` there, and has a folder for exports.
pub async fn world_beside(there: &World, folder: &TempDir) -> World {
    let (fake, token) = (Fake::start(1).await, folder.path().join("token"));
    std::fs::write(&token, "token-b\n").unwrap();
    let url = format!("http://{}", there.address);
    let exports = folder.path().join("exports");
    let settings = Config {
        call_deadline_ms: 8_000,
        audit_export_dir: Some(exports),
        sync_remote_url: Some(url),
        sync_token_file: Some(token),
        sync_tenant: Some("default".into()),
        ..Config::default()
    };
    let address = gateway_with(&fake, settings).await;
    World { fake, address }
}

async fn two() -> (World, World, TempDir) {
    let (there, folder) = (world().await, tempfile::tempdir().unwrap());
    (world_beside(&there, &folder).await, there, folder)
}

async fn store(world: &World, entity: &str, value: &str) {
    world.ok(&a(), "store_fact", json!({ "entity": entity, "key": "k", "value": value })).await;
}

async fn values(world: &World, entity: &str) -> Vec<Value> {
    let found = world.ok(&a(), "query_facts", json!({ "entity": entity })).await;
    found["rows"].as_array().unwrap().iter().map(|row| row["value"].clone()).collect()
}

#[tokio::test]
async fn an_exchange_hangs_on_its_settings_and_on_no_flag() {
    let (here, there, _folder) = two().await;
    let unset = world().await;
    for world in [&here, &unset] {
        for flag in flag::ALL {
            // Flags with words of their own stay as they are.
            let _ = world.fake.run(SetFlag { name: flag.name.into(), value: "off".into() }.into());
        }
    }
    store(&there, "svc:a", "theirs").await;
    store(&here, "svc:b", "ours").await;
    assert_eq!(here.ok(&a(), "sync_pull", json!({})).await["facts_pulled"], 1);
    let pushed = here.ok(&by("token-operator"), "sync_push", json!({ "confirm": true })).await;
    assert_eq!((&pushed["mode"], &pushed["facts_pushed"]), (&json!("tenant_promotion"), &json!(1)));
    assert_eq!((values(&here, "svc:a").await, values(&there, "svc:b").await), (vec![json!("theirs")], vec![json!("ours")]));
    for tool in ["sync_pull", "sync_push"] {
        let told = unset.call(&by("token-operator"), tool, json!({})).await.told();
        let expected = "200 \"NOT_CONFIGURED\" wrote=no sync not configured: CORECRUXD_SYNC_REMOTE_URL is not set. Nothing was written.";
        assert!(told.starts_with(expected), "{tool}: {told}");
    }
}

#[tokio::test]
async fn a_status_tells_what_there_is_without_another_cluster_and_when_that_is_away() {
    let unset = world().await;
    store(&unset, "svc:a", "1").await;
    let status = unset.ok(&a(), "sync_status", json!({})).await;
    assert_eq!((&status["mode"], &status["configured"], &status["degraded"]), (&json!("local-only"), &json!(false), &json!(false)));
    assert_eq!((&status["local_fact_count"], &status["platform_online"], &status["remote_url"]), (&json!(1), &Value::Null, &Value::Null));
    assert_eq!(status["degraded_reason"], "sync not configured: CORECRUXD_SYNC_REMOTE_URL is not set");

    let (here, there, _folder) = two().await;
    let status = here.ok(&a(), "sync_status", json!({})).await;
    assert_eq!((&status["mode"], &status["platform_online"]), (&json!("cloud-mirror configured"), &json!(true)));
    assert_eq!(here.ok(&by("token-other"), "sync_status", json!({})).await["mode"], "local-only", "it is of one tenant alone");
    // Its nodes are away: it says so, and what there is here is told all the same.
    there.fake.fault(1, Fault::Hangs);
    let status = here.ok(&a(), "sync_status", json!({})).await;
    assert_eq!((&status["mode"], &status["degraded"], &status["local_fact_count"]), (&json!("degraded"), &json!(true), &json!(0)));
    let told = here.call(&a(), "sync_pull", json!({})).await.told();
    assert!(told.starts_with("200 \"REMOTE_UNAVAILABLE\" wrote=no the other cluster"), "{told}");
}

#[tokio::test]
async fn a_pull_means_the_tenant_it_names_and_refuses_a_part_of_it() {
    let (here, there, _folder) = two().await;
    store(&there, "svc:a", "theirs").await;
    there.ok(&by("token-other"), "store_fact", json!({ "entity": "svc:a", "key": "k", "value": "another tenant's" })).await;
    for tenant in ["other", "nobody"] {
        let told = here.call(&a(), "sync_pull", json!({ "tenant_id": tenant })).await.told();
        assert!(told.starts_with("200 \"REMOTE_REFUSED\" wrote=no the other cluster refuses: its memory for this token"), "{told}");
        let told = here.call(&by("token-operator"), "sync_push", json!({ "confirm": true, "tenant_id": tenant })).await.told();
        assert!(told.starts_with("200 \"REMOTE_REFUSED\" wrote=no"), "{told}");
    }
    assert_eq!(values(&here, "svc:a").await, Vec::<Value>::new());
    let told = here.call(&a(), "sync_pull", json!({ "entity_prefix": "svc:" })).await.told();
    assert!(told.starts_with("200 -32602 wrote=no `entity_prefix` is not implemented"), "{told}");
    let pulled = here.ok(&a(), "sync_pull", json!({ "entity_prefix": "", "tenant_id": "default" })).await;
    assert_eq!((&pulled["facts_pulled"], &pulled["tenant_id"]), (&json!(1), &json!("default")));
    assert_eq!(values(&here, "svc:a").await, [json!("theirs")]);
}

#[tokio::test]
async fn a_push_without_confirm_asks_nobody_and_shows_what_would_go() {
    let (here, there, _folder) = two().await;
    store(&here, "svc:a", "ours").await;
    store(&here, "health:mara", "nobody's business").await;
    here.ok(&by("token-operator"), "store_fact", json!({ "entity": "svc:p", "key": "k", "value": "mine", "private": true })).await;
    let before = there.fake.queries().len();
    let preview = here.ok(&by("token-operator"), "sync_push", json!({})).await;
    assert_eq!((&preview["mode"], &preview["would_promote_count"]), (&json!("tenant_promotion_preview"), &json!(1)));
    assert_eq!((&preview["would_promote"][0]["entity"], &preview["skipped_private"]), (&json!("svc:a"), &json!(2)));
    assert!(preview.get("facts_pushed").is_none(), "{preview}");
    assert_eq!((there.fake.queries().len(), there.fake.proposals().len()), (before, 0), "the other cluster heard nothing");
    assert_eq!(here.ok(&by("token-operator"), "sync_push", json!({ "confirm": false })).await["preview_hash"], preview["preview_hash"]);
    let refused = here.call(&a(), "sync_push", json!({ "confirm": true })).await.told();
    assert!(refused.starts_with("200 -32003 wrote=no `sync_push` needs the reputation established"), "{refused}");
}

#[tokio::test]
async fn the_other_side_takes_and_tells_only_what_it_is_asked_for_in_its_form() {
    let there = world().await;
    let told = async |path: &str, body: Value| {
        let answer = there.post(&a(), path, &body.to_string()).await;
        format!("{} {}", answer.status, answer.json()["message"].as_str().unwrap_or_default())
    };
    assert!(told("/v1/sync/facts", json!({ "facts": [{}] })).await.starts_with("400 missing field"));
    assert!(told("/v1/sync/facts", json!({ "facts": [], "more": 1 })).await.starts_with("400 unknown field"));
    assert!(told("/v1/sync/pairs", json!({ "pairs": [["a"]] })).await.starts_with("400 "));
    let many: Vec<[&str; 2]> = vec![["a", "k"]; 300];
    assert!(told("/v1/sync/pairs", json!({ "pairs": many })).await.starts_with("413 "));
    for (query, expected) in
        [("cursor=nonsense", 400), ("cursor=walk.0.00&cursor=x", 400), ("else=1", 400), ("tenant_id=other", 404), ("", 200)]
    {
        assert_eq!(there.get(&a(), &format!("/v1/sync/facts?{query}")).await.status, expected, "{query}");
    }
    let manifest = there.get(&by("token-bare"), "/v1/sync/manifest").await.json();
    assert_eq!(manifest, json!({ "tenant_id": "default", "may_read": false, "may_write": false }));
}
