//! What is promised of single tools and is shown nowhere else: `tests/behaviours` names which test proves what.

use std::collections::BTreeMap;

use quorate_domain::Tier;
use quorate_domain::flag::{self, SetFlag};
use quorate_domain::identity::{PutToken, token_hash};
use quorate_gateway::{schema, tools};
use serde_json::{Value, json};

use crate::{World, a, b, by, until, world};

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

#[tokio::test]
async fn a_retirement_by_another_fact_is_taken_back_with_a_call() {
    let world = world().await;
    let old = world.store("svc:api", "owner", "platform").await;
    let replaced = json!({ "entity": "all", "key": "owner", "value": "infra", "supersedes": [old] });
    let new = world.ok(&b(), "store_fact", replaced).await;
    assert_eq!(new["superseded_fact_ids"], json!([old]));
    assert_eq!(world.ok(&a(), "query_facts", json!({ "entity": "svc:api" })).await["rows"], json!([]));
    world.ok(&b(), "reinstate_facts", json!({ "fact_ids": [old] })).await;
    let rows = world.ok(&a(), "query_facts", json!({ "entity": "svc:api", "include_superseded": true })).await["rows"].clone();
    assert_eq!((&rows[0]["fact_id"], &rows[0]["version"], rows[0].get("superseded_by")), (&json!(old), &json!(1), None));
    let told = world.call(&b(), "reinstate_facts", json!({ "fact_ids": [old] })).await.told();
    assert!(told.starts_with("200 -32602 wrote=no") && told.contains("it is active"), "{told}");
}

/// The audit envelope of an answer has the form that all have.
fn check_envelope(envelope: &Value, capability: &str, effect: &str) {
    let consumed = json!({ "capability": capability, "cost_credits": 0.0, "scope": "agent:agent-a" });
    assert_eq!((&envelope["autonomy_consumed"], &envelope["predicted_effects"]), (&consumed, &json!([effect])), "{envelope}");
    assert_eq!(envelope["receipts_used"], json!([]));
}

#[tokio::test]
async fn a_recall_carries_the_audit_envelope_with_the_flag_on_and_tells_no_private_fact_in_it() {
    let world = world().await;
    let shared = world.store("svc:api", "owner", "platform").await;
    world.ok(&a(), "store_fact", json!({ "entity": "notes", "key": "k", "value": "v", "private": true })).await;
    assert!(world.ok(&a(), "query_facts", json!({})).await.get("envelope").is_none(), "off by default");
    world.fake.run(SetFlag { name: "CORECRUXD_FEATURE_AUDIT_ENVELOPE".into(), value: "on".into() }.into()).unwrap();
    let told = world.ok(&a(), "query_facts", json!({})).await;
    assert_eq!(told["rows"].as_array().map(Vec::len), Some(2));
    check_envelope(&told["envelope"], "crux-mcp.query_facts", "fact_read");
    let used = told["envelope"]["memories_used"].as_array().unwrap();
    assert_eq!(used.len(), 1, "{used:?}");
    assert_eq!((&used[0]["fact_id"], &used[0]["topic"], &used[0]["freshness"]), (&json!(shared), &json!("svc:api"), &json!("fresh")));
    assert!(used[0]["age_days"].is_number());
}

#[tokio::test]
async fn freshness_carries_the_audit_envelope() {
    let world = world().await;
    let shared = world.store("svc:api", "owner", "platform").await;
    world.ok(&a(), "store_fact", json!({ "entity": "notes", "key": "k", "value": "v", "private": true })).await;
    let told = world.ok(&a(), "memory_freshness", json!({})).await;
    check_envelope(&told["envelope"], "crux-mcp.memory_freshness", "tool_dispatch");
    let ids: Vec<&Value> = told["envelope"]["memories_used"].as_array().unwrap().iter().map(|used| &used["fact_id"]).collect();
    assert_eq!((told["rows"].as_array().map(Vec::len), ids), (Some(2), vec![&json!(shared)]));
}

#[tokio::test]
async fn an_answer_with_envelope_and_pointers_keeps_its_budget() {
    let world = world().await;
    world.fake.run(SetFlag { name: "CORECRUXD_FEATURE_AUDIT_ENVELOPE".into(), value: "on".into() }.into()).unwrap();
    for n in 0..30 {
        world.store(&format!("svc:{n}"), "owner of the \"thing\"", &format!("platform {}", "x".repeat(n * 20))).await;
    }
    for budget in [600_u64, 900, 1_500] {
        for (tool, arguments) in [
            ("query_facts", json!({ "top_k": 100, "token_budget": budget, "contract": "crc-v1" })),
            ("query", json!({ "tenant_id": "local", "query": "platform", "limit": 100, "token_budget": budget, "contract": "crc-v1" })),
            (
                "query_scan",
                json!({ "tenant_id": "local", "query": "platform", "limit": 100, "token_budget": budget, "contract": "crc-v1" }),
            ),
            ("memory_freshness", json!({ "top_k": 100, "token_budget": budget })),
        ] {
            let told = world.ok(&a(), tool, arguments).await;
            let bytes = told.to_string().len() as u64;
            assert!(bytes <= 4 * budget && bytes > budget, "{tool}: {bytes} bytes of {}", 4 * budget);
            assert_eq!(told["truncated"], "token_budget", "{tool}");
        }
        let found = world.ok(&a(), "query_scan", json!({ "tenant_id": "local", "query": "platform", "limit": 30 })).await;
        let ids: Vec<&Value> = found["results"].as_array().unwrap().iter().map(|row| &row["doc_id"]).collect();
        let arguments = json!({ "tenant_id": "local", "result_ids": ids, "token_budget": budget + 1_000, "contract": "crc-v1" });
        let told = world.ok(&a(), "query_expand", arguments).await;
        assert!(told.to_string().len() as u64 <= 4 * (budget + 1_000), "{told}");
    }
}

#[tokio::test]
async fn every_list_that_takes_a_token_budget_keeps_it_with_all_that_surrounds_its_rows_and_goes_on() {
    let world = world().await;
    for n in 0..40 {
        let (says, differs) = if n % 2 == 0 { ("on", "off") } else { ("off", "on") };
        let entity = format!("svc:\"{n}\"");
        world.ok(&b(), "store_fact", json!({ "entity": entity, "key": "state", "value": says })).await;
        world.ok(&a(), "store_fact", json!({ "entity": entity, "key": "state", "value": differs, "private": true })).await;
        let content = format!("{n:04}");
        let artefact = json!({ "content_bytes_base64": content, "mime_type": "text/plain", "tool_origin": "grep", "token_budget": 500 });
        world.ok(&a(), "artefact_put", artefact).await;
    }
    for (tool, arguments, rows) in [
        ("query_facts", json!({ "top_k": 1_000 }), "rows"),
        ("memory_view", json!({ "top_k": 1_000 }), "facts"),
        ("memory_freshness", json!({ "top_k": 1_000 }), "rows"),
        ("memory_sweep_candidates", json!({ "top_k": 1_000 }), "rows"),
        ("memory_contradictions", json!({ "limit": 1_000 }), "candidates"),
        ("memory_contradictions", json!({ "limit": 1_000, "entity_prefix": "svc:", "key": "state" }), "candidates"),
        ("artefact_list", json!({ "top_k": 1_000 }), "artefacts"),
    ] {
        for budget in [200_u64, 300, 500, 1_000] {
            let (mut cursor, mut shown) = (Value::Null, Vec::new());
            loop {
                let mut asked = arguments.clone();
                asked["token_budget"] = json!(budget);
                if cursor.is_string() {
                    asked["cursor"] = cursor.clone();
                }
                let answer = world.call(&a(), tool, asked).await;
                let told = &answer.json()["result"]["structuredContent"];
                if !told.is_object() {
                    // What the refusal asks for is what the row needs.
                    let refused = answer.told();
                    let needed = refused.split("which needs ").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
                    assert!(needed.is_some_and(|needed| needed > budget), "{tool} with {budget}: {refused}");
                    break;
                }
                let bytes = told.to_string().len() as u64;
                assert!(bytes <= 4 * budget, "{tool}: {bytes} bytes of {}", 4 * budget);
                shown.extend(told[rows].as_array().unwrap_or_else(|| panic!("{tool} has {told}")).clone());
                cursor = told["next_cursor"].clone();
                if !cursor.is_string() {
                    break;
                }
            }
            let all = shown.len();
            shown.dedup();
            assert_eq!(shown.len(), all, "{tool} with {budget} shows a row twice");
        }
    }
}

// ------------------------------------------------------------------ search

#[tokio::test]
async fn a_tools_capability_is_its_own_and_the_search_tools_share_one() {
    for entry in tools::crux().entries() {
        let wanted = match entry.name {
            "query" | "query_scan" | "query_expand" => "corecrux.query.local".into(),
            // A tool of our own, which undoes what a documented one does.
            "memory_forget_undo" => "crux-mcp.memory_forget".into(),
            name => format!("crux-mcp.{name}"),
        };
        assert_eq!(entry.scope, wanted, "{}", entry.name);
    }
    let world = world().await;
    let put = PutToken {
        hash: token_hash("token-searches"),
        tenant: "default".into(),
        passport: "searcher".into(),
        tier: Tier::Verified,
        scopes: ["corecrux.query.local".to_string()].into(),
        expires_at: None,
    };
    world.fake.run(put.into()).unwrap();
    let asked = json!({ "tenant_id": "local", "query": "x" });
    for (tool, arguments) in
        [("query", asked.clone()), ("query_scan", asked), ("query_expand", json!({ "tenant_id": "local", "result_ids": [] }))]
    {
        world.ok(&by("token-searches"), tool, arguments).await;
    }
    let told = world.call(&by("token-searches"), "query_facts", json!({})).await.told();
    assert!(told.starts_with("200 -32030 wrote=no this needs the scope `crux-mcp.query_facts`"), "{told}");
}

#[tokio::test]
async fn the_sampled_fraction_of_recalls_takes_the_unshaped_path_and_no_other() {
    let world = world().await;
    for n in 0..6 {
        world.store(&format!("svc:{n}"), "owner", &"platform ".repeat(40)).await;
    }
    world.fake.run(SetFlag { name: "CRUX_OUTPUT_HOLDOUT".into(), value: "0.4".into() }.into()).unwrap();
    // Gateways hear of it within seconds.
    let query = |n: usize| ("query", json!({ "tenant_id": "local", "query": format!("platform q{n}"), "token_budget": 400 }));
    let recall = |n: usize| ("query_facts", json!({ "query": format!("platform q{n}"), "token_budget": 400 }));
    let is_unshaped = async |(tool, arguments): (&'static str, Value)| {
        let told = world.ok(&a(), tool, arguments).await;
        let rows = told.get("results").or(told.get("rows")).unwrap().as_array().unwrap().len();
        let unshaped = told.get("unshaped").is_some();
        assert_eq!(told.get("unshaped"), unshaped.then_some(&json!(true)));
        assert_eq!(rows == 6, unshaped, "{tool} has {rows} rows");
        unshaped
    };
    until(async || {
        for n in 0..20 {
            if is_unshaped(query(n)).await {
                return true;
            }
        }
        false
    })
    .await;
    // 32 of 80, within five standard deviations of 4.4, whether the question is the same each time or another.
    for ask in [&query as &dyn Fn(usize) -> (&'static str, Value), &recall] {
        for step in [0, 1] {
            let mut unshaped = 0;
            for n in 0..80 {
                unshaped += usize::from(is_unshaped(ask(n * step)).await);
            }
            assert!((10..=54).contains(&unshaped), "{unshaped} of 80");
        }
    }
}

#[tokio::test]
async fn the_list_carries_the_output_contract_and_answers_keep_it_where_it_is_asked_for() {
    const TOOLS: [&str; 4] = ["query", "query_scan", "query_expand", "query_facts"];
    let world = world().await;
    let mut listed: BTreeMap<String, Value> = BTreeMap::new();
    let mut params = json!({});
    loop {
        let page = world.rpc(&a(), "tools/list", params).await.json()["result"].clone();
        for tool in page["tools"].as_array().unwrap() {
            listed.insert(tool["name"].as_str().unwrap().into(), tool.clone());
        }
        match page.get("nextCursor") {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => break,
        }
    }
    let with: Vec<&String> = listed.iter().filter(|(_, tool)| tool.get("x-crux-output-schema").is_some()).map(|(name, _)| name).collect();
    assert_eq!(with.len(), TOOLS.len());
    let fact = world.store("svc:api", "owner", "the platform\nteam").await;
    let told = json!({ "tenant_id": "local", "query": "platform" });
    for (tool, arguments, kind, tier, decision) in [
        ("query", told.clone(), "search", "pointer", "expand"),
        ("query_scan", told, "search", "pointer", "expand"),
        ("query_expand", json!({ "tenant_id": "local", "result_ids": [fact] }), "addressed", "full", "answer"),
        ("query_facts", json!({ "query": "platform" }), "fact", "full", "answer"),
    ] {
        assert!(world.ok(&a(), tool, arguments.clone()).await.get("crc_v1").is_none(), "{tool}: nobody asked");
        let mut arguments = arguments;
        arguments["contract"] = json!("crc-v1");
        let crc = world.ok(&a(), tool, arguments).await["crc_v1"].clone();
        let schema = &listed[tool]["x-crux-output-schema"];
        let required = ["contract", "kind", "hydrate_tier", "pointers", "content", "cost_estimate", "agent_decision", "next", "meta"];
        assert!(required.iter().all(|name| schema["properties"].get(name).is_some()), "{schema}");
        let mut flaws = Vec::new();
        schema::flaws(schema, tool, &mut flaws);
        assert_eq!(flaws, Vec::<String>::new());
        assert!(jsonschema::validator_for(schema).unwrap().is_valid(&crc), "{tool}: {crc}");
        assert_eq!((&crc["contract"], &crc["kind"]), (&json!("crc-v1"), &json!(kind)));
        assert_eq!((&crc["hydrate_tier"], &crc["agent_decision"]), (&json!(tier), &json!(decision)), "{tool}");
        let pointer = &crc["pointers"][0];
        assert_eq!((&pointer["id"], &pointer["epitome"], &pointer["reason"]), (&json!(fact), &json!("the platform team"), &json!("Exact")));
        assert_eq!(pointer["content_hash"], format!("blake3:{}", blake3::hash(b"the platform\nteam").to_hex()));
        assert_eq!(crc["content"], if tier == "full" { json!([fact]) } else { json!([]) });
        assert_eq!((&crc["cost_estimate"]["pointer"], &crc["cost_estimate"]["summary"]), (&json!(40), &json!(150)));
        assert_eq!(crc["next"]["expand"], if tier == "full" { Value::Null } else { json!("query_expand") });
    }
    let nothing = json!({ "tenant_id": "local", "query": "zebra", "contract": "crc-v1" });
    assert_eq!(world.ok(&a(), "query", nothing).await["crc_v1"]["agent_decision"], "refine");
    // What has no room is told as demoted.
    let large = world.store("svc:web", "owner", &"x".repeat(9_000)).await;
    let two = json!({ "tenant_id": "local", "result_ids": [fact, large], "token_budget": 600, "contract": "crc-v1" });
    let crc = world.ok(&a(), "query_expand", two).await["crc_v1"].clone();
    assert_eq!((&crc["hydrate_tier"], &crc["pointers"][1]), (&json!("mixed"), &json!({ "id": large, "reason": "Demoted" })));
}

// ------------------------------------------------------------------ sessions, receipts, decisions

#[tokio::test]
async fn a_list_of_sessions_for_people_has_titles_and_marks_those_that_are_made_up() {
    let world = world().await;
    for (name, state) in
        [("a", json!({ "title": "Release", "note": "n" })), ("b", json!({ "decisions": ["ship it"], "note": "n" })), ("c", json!({}))]
    {
        world.ok(&a(), "save_session", json!({ "session_id": name, "state": state })).await;
    }
    assert!(world.ok(&a(), "list_sessions", json!({})).await.get("rows").is_none());
    let told = world.ok(&a(), "list_sessions", json!({ "titles": true })).await;
    let rows: Vec<Value> =
        told["rows"].as_array().unwrap().iter().map(|row| json!([row["session_id"], row["title"], row["untitled"]])).collect();
    assert_eq!(rows, [json!(["a", "Release", false]), json!(["b", "ship it", true]), json!(["c", "c", true])]);
    assert_eq!(told["sessions"], json!(["a", "b", "c"]));
}

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
async fn a_linked_device_and_a_merged_passport_lead_to_the_passport_that_they_stand_for() {
    let world = world().await;
    let operator = by("token-operator");
    let own = json!({ "target_passport": "operator", "new_passport_name": "laptop", "token_budget": 500 });
    world.ok(&operator, "passport_split", own).await;
    let two = json!({ "source_passport": "laptop", "target_passport": "operator", "conflict_policy": "prefer_target", "token_budget": 1 });
    let merged = world.ok(&operator, "passport_merge", two).await;
    let device = "0a".repeat(32);
    let linked = world.ok(&operator, "passport_link_device", json!({ "device_fingerprint": device, "token_budget": 500 })).await;
    for (name, receipt) in [("laptop", &merged["merge_receipt_id"]), (&*device, &linked["link_receipt_id"])] {
        let told = world.ok(&a(), "resolve_principal", json!({ "passport_id": name })).await;
        assert_eq!((&told["principal"]["passport_id"], &told["resolved_param"]), (&json!("operator"), &json!("passport_id")));
        assert_eq!(told["principal"]["resolved_via"], format!("identity_link:{}", receipt.as_str().unwrap()));
        assert_eq!(world.ok(&a(), "receipt_verify", json!({ "receipt_id": receipt })).await["verified"], true);
        let told = world.call(&by("token-other"), "resolve_principal", json!({ "passport_id": name })).await.told();
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
