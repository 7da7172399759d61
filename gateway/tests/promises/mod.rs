//! What is promised of single tools and is shown nowhere else: `tests/behaviours` names which test proves what.

use quorate_domain::flag::{self, SetFlag};
use quorate_gateway::tools;
use serde_json::{Value, json};

use crate::{World, a, b, by, world};

impl World {
    async fn store(&self, entity: &str, key: &str, value: &str) -> String {
        let stored = self.ok(&a(), "store_fact", json!({ "entity": entity, "key": key, "value": value })).await;
        stored["fact_id"].as_str().unwrap().into()
    }
}

// ------------------------------------------------------------------ facts

#[tokio::test]
async fn an_empty_store_is_told_from_one_whose_facts_all_sit_under_the_floor() {
    let world = world().await;
    let sure = json!({ "min_effective_confidence": 0.9 });
    let empty = world.ok(&a(), "query_facts", sure.clone()).await;
    assert_eq!((&empty["rows"], &empty["filtered_below_threshold"]), (&json!([]), &json!(0)));
    for n in 0..3 {
        world.ok(&a(), "store_fact", json!({ "entity": format!("e{n}"), "key": "k", "value": "v", "confidence": 0.5 })).await;
    }
    let under = world.ok(&a(), "query_facts", sure).await;
    assert_eq!((&under["rows"], &under["filtered_below_threshold"]), (&json!([]), &json!(3)));
    assert!(world.ok(&a(), "query_facts", json!({})).await["filtered_below_threshold"].is_null(), "nobody asked");
}

#[tokio::test]
async fn without_arguments_the_ten_best_facts_come_and_the_reply_says_that_there_are_more() {
    let world = world().await;
    for n in 0..12 {
        let sure = 0.5 + f64::from(n) / 100.0;
        world.ok(&a(), "store_fact", json!({ "entity": format!("e{n}"), "key": "k", "value": "v", "confidence": sure })).await;
    }
    let found = world.ok(&a(), "query_facts", json!({})).await;
    let entities: Vec<&str> = found["rows"].as_array().unwrap().iter().map(|row| row["entity"].as_str().unwrap()).collect();
    assert_eq!(entities, ["e11", "e10", "e9", "e8", "e7", "e6", "e5", "e4", "e3", "e2"]);
    assert_eq!((&found["truncated"], found["next_cursor"].is_string()), (&json!("top_k"), true));
}

#[tokio::test]
async fn what_was_deleted_keeps_its_history_and_its_receipt() {
    let world = world().await;
    let fact = world.store("svc:api", "owner", "platform").await;
    let proof = world.ok(&a(), "memory_reverify", json!({ "fact_id": fact })).await;
    world.ok(&b(), "delete_fact", json!({ "fact_id": fact })).await;
    assert_eq!(world.ok(&a(), "query_facts", json!({ "entity": "svc:api" })).await["rows"], json!([]));
    let history = world.ok(&a(), "fact_history", json!({ "entity": "svc:api", "key": "owner" })).await;
    assert_eq!((&history["versions"][0]["value"], &history["versions"][0]["deleted"]), (&json!("platform"), &json!(true)));
    let receipt = world.ok(&a(), "receipt_verify", json!({ "receipt_id": proof["receipt_id"] })).await;
    assert_eq!((&receipt["verified"], &receipt["report"]["body"]["fact_id"]), (&json!(true), &json!(fact)));
}

#[tokio::test]
async fn an_entity_is_listed_while_it_has_an_active_fact() {
    let world = world().await;
    let first = world.store("b", "k", "1").await;
    world.store("a", "k", "1").await;
    world.store("a", "l", "2").await;
    let listed = async || world.ok(&a(), "list_entities", json!({})).await["entities"].clone();
    assert_eq!(listed().await, json!(["a", "b"]));
    world.ok(&a(), "delete_fact", json!({ "fact_id": first })).await;
    assert_eq!(listed().await, json!(["a"]));
}

#[tokio::test]
async fn histories_of_reserved_prefixes_are_read_here_and_not_in_the_panel() {
    let world = world().await;
    for entity in ["__ops::run", "__bootstrap__::doc:x"] {
        world.store(entity, "k", "v").await;
        let pair = json!({ "entity": entity, "key": "k" });
        assert_eq!(world.ok(&b(), "fact_history", pair.clone()).await["versions"][0]["value"], "v");
        let told = world.call(&b(), "memory_history", pair).await.told();
        assert!(told.starts_with("200 -32003") && told.contains("`fact_history`"), "{told}");
    }
}

#[tokio::test]
async fn a_reverification_is_kept_as_a_fact_beside_its_receipt() {
    let world = world().await;
    let fact = world.store("svc:api", "owner", "platform").await;
    let proof = world.ok(&b(), "memory_reverify", json!({ "fact_id": fact })).await;
    let kept = world.ok(&a(), "query_facts", json!({ "entity": format!("__reverify_receipts__::{fact}") })).await;
    assert_eq!(kept["rows"].as_array().unwrap().len(), 1, "{kept}");
    assert!(kept["rows"][0]["value"].as_str().unwrap().contains("agent-b"), "{kept}");
    assert_eq!(world.ok(&a(), "receipt_verify", json!({ "receipt_id": proof["receipt_id"] })).await["verified"], true);
}

// ------------------------------------------------------------------ sessions, receipts, decisions

#[test]
fn of_the_session_tools_the_checkpoint_alone_needs_a_token_budget() {
    let catalog = tools::crux();
    let needing = catalog.entries().iter().filter(|entry| {
        let needed = entry.input["required"].as_array().is_some_and(|required| required.iter().any(|name| name == "token_budget"));
        entry.group == tools::group::SESSIONS && needed
    });
    assert_eq!(needing.map(|entry| entry.name).collect::<Vec<_>>(), ["session_checkpoint"]);
}

#[tokio::test]
async fn a_deleted_session_is_gone_for_good() {
    let world = world().await;
    let named = json!({ "session_id": "s" });
    world.ok(&a(), "save_session", json!({ "session_id": "s", "state": { "n": 1 } })).await;
    world.ok(&a(), "delete_session", named.clone()).await;
    for (tool, arguments) in [("get_session", named.clone()), ("unarchive_session", named)] {
        assert!(world.call(&a(), tool, arguments).await.told().contains("NOT_FOUND"), "{tool}");
    }
    assert_eq!(world.ok(&a(), "list_sessions", json!({ "include_archived": true })).await["sessions"], json!([]));
}

#[tokio::test]
async fn a_receipt_can_have_no_signer_and_with_its_flag_off_the_check_says_so() {
    let world = world().await;
    let plan = world.ok(&a(), "cuecrux_session", json!({})).await;
    let named = json!({ "receipt_id": plan["plan_id"] });
    let receipt = world.ok(&b(), "receipt_verify", named.clone()).await;
    assert_eq!((&receipt["verified"], receipt.get("signer_passport")), (&json!(true), Some(&Value::Null)));
    world.fake.run(SetFlag { name: flag::RECEIPT_VERIFY.name.into(), value: "off".into() }.into()).unwrap();
    let off = world.ok(&b(), "receipt_verify", named).await;
    assert_eq!((&off["errors"], off.get("report"), &off["feature_enabled"]), (&json!(["FEATURE_DISABLED"]), None, &json!(false)));
}

#[tokio::test]
async fn a_decision_is_found_by_the_prefix_of_its_entity_and_its_hash_is_of_its_text() {
    let world = world().await;
    let made = world.ok(&a(), "record_decision", json!({ "action": "one parser", "rationale": "two drift", "session_id": "s1" })).await;
    let found = world.ok(&b(), "query_facts", json!({ "entity_prefix": "__decisions__::" })).await;
    let row = &found["rows"][0];
    assert_eq!((&row["entity"], &row["key"]), (&json!("__decisions__::s1"), &made["decision_id"]));
    assert_eq!(made["decision_hash"], blake3::hash(row["value"].as_str().unwrap().as_bytes()).to_hex().to_string());
}

// ------------------------------------------------------------------ identity

#[tokio::test]
async fn a_principal_is_found_by_passport_or_is_the_caller_and_another_tenants_is_not() {
    let world = world().await;
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let session = world.rpc(&b(), "initialize", params).await.headers["mcp-session-id"].clone();
    let resolve = async |arguments: Value| world.ok(&a(), "resolve_principal", arguments).await;
    let all = resolve(json!({ "session_id": session, "passport_id": "operator" })).await;
    assert_eq!((&all["principal"]["passport_id"], &all["principal"]["resolved_via"]), (&json!("agent-b"), &json!("session")));
    let named = resolve(json!({ "passport_id": "operator" })).await;
    assert_eq!((&named["principal"]["passport_id"], &named["principal"]["resolved_via"]), (&json!("operator"), &json!("passport")));
    assert_eq!(resolve(json!({})).await["principal"]["passport_id"], "agent-a");
    for arguments in [json!({ "passport_id": "agent-b" }), json!({ "session_id": session })] {
        let told = world.call(&by("token-other"), "resolve_principal", arguments).await.told();
        assert!(told.contains("NOT_FOUND"), "{told}");
    }
}

#[tokio::test]
async fn a_merge_without_a_conflict_policy_is_refused() {
    let world = world().await;
    let two = json!({ "source_passport": "agent-a", "target_passport": "operator", "token_budget": 500 });
    let told = world.call(&by("token-operator"), "passport_merge", two).await.told();
    assert!(told.starts_with("200 -32602 wrote=no") && told.contains("`conflict_policy`"), "{told}");
}

// ------------------------------------------------------------------ reads

#[tokio::test]
async fn the_contract_reads_nothing_but_the_flags() {
    let world = world().await;
    world.ok(&a(), "autonomy_contract", json!({})).await;
    let before = world.fake.queries().len();
    world.ok(&a(), "autonomy_contract", json!({})).await;
    let asked: Vec<&str> = world.fake.queries().split_off(before).into_iter().filter(|name| *name != "ResolveToken").collect();
    assert_eq!(asked, ["GetFlags"]);
}

// ------------------------------------------------------------------ work, graph, cards, approvals

#[tokio::test]
async fn a_project_shows_its_members_and_its_tenant() {
    let world = world().await;
    let project = world.ok(&a(), "list_projects", json!({})).await["projects"][0]["id"].clone();
    let context = world.ok(&a(), "get_project_context", json!({ "project_id": project })).await;
    let text = context.to_string();
    for name in ["agent-a", "agent-b", "operator", "default"] {
        assert!(text.contains(&format!("\"{name}\"")), "{name}: {text}");
    }
    assert!(!text.contains("agent-c"), "who is of another tenant is no member: {text}");
}

#[tokio::test]
async fn entities_are_listed_by_kind_and_then_by_name() {
    let world = world().await;
    for id in ["b", "a", "c"] {
        let payload = json!({ "id": id, "name": id, "system": "core", "maturity": "built" });
        world.ok(&a(), "entity_upsert", json!({ "kind": "capability", "id": id, "payload": payload })).await;
    }
    let listed = world.ok(&b(), "entity_list", json!({})).await;
    let ids: Vec<&str> = listed["entities"].as_array().unwrap().iter().map(|entity| entity["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_deleted_edge_comes_back_in_the_reply() {
    let world = world().await;
    for id in ["one", "two"] {
        let payload = json!({ "id": id, "name": id, "system": "core", "maturity": "built" });
        world.ok(&a(), "entity_upsert", json!({ "kind": "capability", "id": id, "payload": payload })).await;
    }
    let edge = json!({ "from_kind": "capability", "from_id": "one", "edge_kind": "uses", "to_kind": "capability", "to_id": "two" });
    world.ok(&a(), "edge_upsert", edge.clone()).await;
    let deleted = world.ok(&a(), "edge_delete", edge.clone()).await;
    assert_eq!((&deleted["edge"]["from_id"], &deleted["edge"]["to_id"]), (&edge["from_id"], &edge["to_id"]), "{deleted}");
}

#[tokio::test]
async fn a_card_that_is_given_back_comes_back_in_the_reply() {
    let world = world().await;
    let card = world.ok(&a(), "punch_in", json!({ "resource": "file://x", "holder_passport": "agent-a" })).await;
    let released = world.ok(&a(), "punch_out", json!({ "resource": "file://x", "holder_passport": "agent-a" })).await;
    assert_eq!(
        (&released["id"], &released["status"], &released["fencing_token"]),
        (&card["id"], &json!("released"), &card["fencing_token"])
    );
}

#[tokio::test]
async fn a_request_without_a_budget_says_so_whether_or_not_approvals_are_on() {
    let world = world().await;
    let asked = json!({ "action_summary": "drop", "risk_tier": "high", "scope": "default" });
    let on = world.call(&a(), "approval_request", asked.clone()).await.told();
    world.fake.run(SetFlag { name: flag::APPROVAL_QUEUE.name.into(), value: "off".into() }.into()).unwrap();
    let off = world.call(&a(), "approval_request", asked.clone()).await.told();
    let mut whole = asked;
    whole["token_budget"] = json!(5);
    let told = world.call(&a(), "approval_request", whole).await.told();
    assert!(told.contains("feature_disabled"), "{told}");
    expect_test::expect![[r#"
        200 -32602 wrote=no `approval_request` needs `token_budget`. Nothing was written. Say how many tokens the act may cost; 0 will do.
        200 {"content":[{"type":"text","text":"{\"request_id\":null,\"status\":\"feature_disabled\",\"risk_tier\":\"high\",\"tenant_id\":\"default\",\"feature_enabled\":false}"}],"structuredContent":{"request_id":null,"status":"feature_disabled","risk_tier":"high","tenant_id":"default","feature_enabled":false},"_meta":{"io.quorate/revision":10}}"#]].assert_eq(&format!("{on}\n{off}"));
}
