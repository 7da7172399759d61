//! What a session begins with: its plan, what the caller may use, what it should know, and what guards the gateway.

use std::collections::BTreeSet;

use quorate_domain::Tier;
use quorate_domain::flag::{self, Definition, SetFlag};
use quorate_domain::identity::{PutToken, token_hash};
use quorate_gateway::tools;
use serde_json::{Value, json};

use crate::{Caller, World, a, b, by, http, world};

impl World {
    fn set(&self, flag: Definition, value: &str) {
        self.fake.run(SetFlag { name: flag.name.into(), value: value.into() }.into()).unwrap();
    }

    /// Makes a token of a passport of the same name.
    fn admit(&self, name: &'static str, scopes: &[&str]) -> Caller {
        let put = PutToken {
            hash: token_hash(name),
            tenant: "default".into(),
            passport: name.into(),
            tier: Tier::Verified,
            scopes: scopes.iter().map(|scope| scope.to_string()).collect(),
            expires_at: None,
        };
        self.fake.run(put.into()).unwrap();
        by(name)
    }

    async fn listed(&self, caller: &Caller) -> Vec<Value> {
        let (mut tools, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let page = self.rpc(caller, "tools/list", json!({ "cursor": cursor })).await.json()["result"].clone();
            tools.extend(page["tools"].as_array().unwrap().clone());
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                return tools;
            }
        }
    }

    pub async fn names(&self, caller: &Caller) -> Vec<String> {
        self.listed(caller).await.iter().map(|tool| tool["name"].as_str().unwrap().to_string()).collect()
    }

    async fn fact(&self, entity: &str, key: &str, value: &str) {
        self.ok(&a(), "store_fact", json!({ "entity": entity, "key": key, "value": value })).await;
    }
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

// ------------------------------------------------------------------ cuecrux_session

#[tokio::test]
async fn the_session_tool_is_listed_first_and_every_other_description_ends_with_a_pointer_to_it() {
    let world = world().await;
    let tools = world.listed(&a()).await;
    assert_eq!(tools[0]["name"], "cuecrux_session");
    for tool in &tools[1..] {
        assert!(tool["description"].as_str().unwrap().ends_with(" Begin a session with `cuecrux_session`."), "{}", tool["name"]);
    }
    assert!(!tools[0]["description"].as_str().unwrap().contains("Begin a session"));
}

#[tokio::test]
async fn a_session_plan_names_the_tools_by_what_they_are_for_and_is_a_signed_receipt() {
    let world = world().await;
    let caller =
        world.admit("half", &["crux-mcp.cuecrux_session", "crux-mcp.query_facts", "crux-mcp.coord_status", "crux-mcp.receipt_verify"]);
    world.set(flag::COORD, "off");
    let plan = world.ok(&caller, "cuecrux_session", json!({ "intent": "knowledge_query" })).await;
    let kinds: Vec<&str> = plan["capability_graph"].as_array().unwrap().iter().map(|node| node["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["retrieval", "memory", "journaling", "proofing", "audit", "coordination"], "what the intent speaks for comes first");
    let retrieval = &plan["capability_graph"][0];
    assert_eq!(texts(&retrieval["tools"]), ["query_facts"]);
    assert!(texts(&retrieval["excluded"][0]["tools"]).contains(&"fact_history"), "{retrieval}");
    assert!(plan["capability_graph"][5]["excluded"].to_string().contains("switched off by the flag `CORECRUXD_COORD`"), "{plan}");
    assert_eq!((&plan["session_ttl_s"], &plan["receipt"]["mode"]), (&json!(3_600), &json!("verified")));
    assert!(plan["channels"]["mcp"].is_object() && plan["channels"]["bulk"].is_null());
    let receipt = world.ok(&caller, "receipt_verify", json!({ "receipt_id": plan["plan_id"] })).await;
    assert_eq!((&receipt["verified"], &receipt["report"]["body_hash"]), (&json!(true), &plan["receipt"]["hash"]));
    assert_eq!(receipt["report"]["body"]["capability_graph_hash"], plan["capability_graph_hash"]);

    let hidden = world.ok(&caller, "cuecrux_session", json!({ "hints": { "hide_exclusions": true, "want_parent_chain": true } })).await;
    assert!(hidden["capability_graph"].as_array().unwrap().iter().all(|node| node["excluded"] == json!([])), "{hidden}");
    assert_eq!(hidden["receipt"]["parent_chain"], json!([{ "plan_id": plan["plan_id"], "hash": plan["receipt"]["hash"] }]));
    let few = world.ok(&a(), "cuecrux_session", json!({ "hints": { "max_capabilities": 3 } })).await;
    let named: usize = few["capability_graph"].as_array().unwrap().iter().map(|node| texts(&node["tools"]).len()).sum();
    let left_out: u64 = few["capability_graph"].as_array().unwrap().iter().map(|node| node["left_out"].as_u64().unwrap()).sum();
    assert_eq!((named, left_out > 50), (3, true), "{few}");
}

#[tokio::test]
async fn a_plan_refuses_an_unknown_argument_at_the_top_and_inside_of_hints() {
    let world = world().await;
    for (arguments, unknown) in [(json!({ "intend": "x" }), "`intend`"), (json!({ "hints": { "prefer_bulks": true } }), "`prefer_bulks`")] {
        let told = world.call(&a(), "cuecrux_session", arguments).await.told();
        assert!(told.starts_with("200 -32602 wrote=no") && told.contains(unknown), "{told}");
    }
    let told = world.call(&a(), "cuecrux_session", json!({ "hints": { "max_capabilities": -1 } })).await.told();
    assert!(told.starts_with("200 -32602"), "{told}");
}

#[tokio::test]
async fn a_session_issues_the_callers_passport_once_and_not_with_the_flag_off() {
    let world = world().await;
    world.set(flag::AGENT_PASSPORTS, "off");
    let plan = world.ok(&a(), "cuecrux_session", json!({})).await;
    assert_eq!((&plan["passport"]["issued"], &plan["passport"]["passport_id"]), (&Value::Null, &json!("agent-a")));
    world.set(flag::AGENT_PASSPORTS, "on");
    let first = world.ok(&a(), "cuecrux_session", json!({})).await;
    let second = world.ok(&a(), "cuecrux_session", json!({})).await;
    assert_eq!(first["passport"]["issued"], second["passport"]["issued"]);
    assert_eq!(first["passport"]["issued"]["public_key_hex"], world.ok(&a(), "get_passport", json!({})).await["public_key_hex"]);
}

#[tokio::test]
async fn a_plan_asked_for_again_under_one_key_is_the_same_plan() {
    let world = world().await;
    let arguments = json!({ "intent": "x", "idempotency_key": "k" });
    assert_eq!(
        world.ok(&a(), "cuecrux_session", arguments.clone()).await["plan_id"],
        world.ok(&a(), "cuecrux_session", arguments).await["plan_id"]
    );
}

#[tokio::test]
async fn the_declared_intent_shapes_the_callers_next_list_and_nobody_elses() {
    let world = world().await;
    let all = world.names(&a()).await;
    assert_eq!(all.len(), tools::crux().entries().len(), "a list is whole unless an operator wants it otherwise");
    world.set(flag::TOOL_SURFACE, "dynamic");
    let floor = world.names(&a()).await;
    assert!(floor.len() <= 16 && floor[0] == "cuecrux_session" && floor.contains(&"store_fact".into()), "{floor:?}");
    world.ok(&a(), "cuecrux_session", json!({ "intent": "audit_review" })).await;
    let shaped = world.names(&a()).await;
    assert_eq!((&shaped[..floor.len()], shaped.len()), (&floor[..], floor.len() + 12));
    assert!(shaped.contains(&"audit_export_bundle".into()), "{shaped:?}");
    assert_eq!(world.names(&b()).await, floor, "the intent is the other one's");
    world.ok(&a(), "list_entities", json!({})).await;
    assert!(!shaped.contains(&"list_entities".into()), "what is not listed can be called all the same");
    world.ok(&a(), "cuecrux_session", json!({ "intent": "" })).await;
    assert_eq!(world.names(&a()).await, floor);
    world.set(flag::TOOL_SURFACE, "full");
    assert_eq!(world.names(&a()).await, all);
}

// ------------------------------------------------------------------ autonomy_contract

#[tokio::test]
async fn the_contract_tells_the_calling_passport_which_tools_it_may_use_and_why_not() {
    let world = world().await;
    let half = world.admit("half", &["crux-mcp.autonomy_contract", "crux-mcp.memory_*"]);
    world.set(flag::FRESHNESS, "off");
    let contract = world.ok(&half, "autonomy_contract", json!({})).await;
    let rows = contract["capabilities"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, world.names(&half).await, "all of them, in the order of the list");
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!((&row("memory_view")["allowed"], &row("memory_view")["mode"]), (&json!(true), &json!("local")));
    assert_eq!(row("store_fact")["why_denied"], "your token has no scope `crux-mcp.store_fact`");
    assert_eq!(row("memory_freshness")["why_denied"], "switched off by the flag `CORECRUXD_FEATURE_FRESHNESS`");
    let summary = &contract["summary"];
    assert_eq!((&summary["total_tools"], &summary["returned"]), (&json!(rows.len()), &json!(rows.len())));
    assert_eq!(summary["allowed"].as_u64().unwrap() + summary["denied"].as_u64().unwrap(), rows.len() as u64);
    assert_eq!((&contract["passport_id"], &contract["tier"]), (&json!("half"), &json!("verified")));
    // What it says is what happens.
    assert!(world.call(&half, "store_fact", row("store_fact").clone()).await.told().contains("-32030"));
    world.ok(&half, "memory_view", json!({})).await;

    let other = world.ok(&a(), "autonomy_contract", json!({})).await;
    assert_ne!((&other["token_hash"], &other["passport_id"]), (&contract["token_hash"], &contract["passport_id"]));
    assert!(other["summary"]["allowed"].as_u64() > summary["allowed"].as_u64());
    let told = world.call(&a(), "autonomy_contract", json!({ "passport_id": "half" })).await.told();
    assert!(told.contains("does not know the argument `passport_id`"), "{told}");
}

#[tokio::test]
async fn a_token_budget_trims_the_contract_from_its_end_and_says_how_to_go_on() {
    let world = world().await;
    let whole = world.ok(&a(), "autonomy_contract", json!({})).await;
    assert_eq!(world.ok(&a(), "autonomy_contract", json!({ "token_budget": 0 })).await, whole, "0 is no budget");
    let (mut rows, mut cursor) = (Vec::new(), None);
    loop {
        let mut arguments = json!({ "token_budget": 400 });
        if let Some(cursor) = cursor {
            arguments["cursor"] = cursor;
        }
        let part = world.ok(&a(), "autonomy_contract", arguments).await;
        assert!(part["capabilities"].to_string().len() <= 1_700);
        rows.extend(part["capabilities"].as_array().unwrap().clone());
        cursor = part.get("next_cursor").cloned();
        assert_eq!(part["summary"]["truncated_by_token_budget"], cursor.is_some());
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(json!(rows), whole["capabilities"]);
    let least = world.ok(&a(), "autonomy_contract", json!({ "token_budget": 1 })).await;
    assert_eq!(least["capabilities"].as_array().unwrap().len(), 1);
    assert!(world.call(&a(), "autonomy_contract", json!({ "cursor": "x" })).await.told().starts_with("200 -32602"));
}

#[tokio::test]
async fn the_contract_answers_with_its_flag_off() {
    let world = world().await;
    world.set(flag::AUTONOMY_CONTRACT, "off");
    assert_eq!(world.ok(&a(), "autonomy_contract", json!({})).await, json!({ "feature_enabled": false, "capabilities": [] }));
}

/// What a declaration says of a tool's switch is what the rules do.
#[tokio::test]
async fn every_tool_that_a_flag_switches_off_declares_that_flag_and_no_other_does() {
    let world = world().await;
    for flag in flag::ALL {
        if let Ok(off) = flag.parse("off") {
            world.set(flag, &off);
        }
    }
    let mut wrong = Vec::new();
    for entry in tools::crux().entries() {
        let answer = world.call(&by("token-operator"), entry.name, entry.example.clone()).await;
        let result = &answer.json()["result"];
        let refused = result["isError"] == true && answer.text.contains("switched off by the flag");
        // Not all that is not enabled hangs on a flag: an update has to be set up.
        let names_a_flag = flag::ALL.iter().any(|flag| answer.text.contains(flag.name));
        let facts = &result["structuredContent"];
        let told_off =
            facts["feature_enabled"] == false || facts["feature_disabled"] == true || (facts["enabled"] == false && names_a_flag);
        let (is_off, answer) = (refused || told_off, answer.text);
        let is_named = entry.switch.is_none_or(|flag| told_off || answer.contains(flag.name));
        if is_off != entry.switch.is_some() || !is_named {
            wrong.push(format!("{}: `SWITCH` is {:?}, and it answers {answer}", entry.name, entry.switch.map(|flag| flag.name)));
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "declare the switch beside `GROUP`");
}

// ------------------------------------------------------------------ reuse_check

#[tokio::test]
async fn reuse_candidates_come_ranked_from_what_is_known_and_from_the_capabilities() {
    let world = world().await;
    let check = async |arguments: Value| world.ok(&b(), "reuse_check", arguments).await;
    let asked = json!({ "tenant_id": "default", "description": "a parser for receipt files" });
    let nothing = check(asked.clone()).await;
    assert_eq!((&nothing["verdict"], &nothing["schema"]), (&json!("nothing-found"), &json!("crux.mcp.reuse_check.v1")));
    world.fact("lib:receipts", "what", "a parser of receipt files").await;
    world.fact("lib:mail", "what", "parser for mail").await;
    world.fact("lib:other", "what", "the receipt parser, older").await;
    for (id, name) in [("one", "Receipt parser"), ("two", "Parser of receipt files"), ("three", "Mail")] {
        let payload = json!({ "id": id, "name": name, "system": "core", "maturity": "built", "files": ["src/parse.rs"] });
        world.ok(&a(), "entity_upsert", json!({ "kind": "capability", "id": id, "payload": payload })).await;
    }
    let found = check(asked).await;
    assert_eq!(found["verdict"], "reuse-candidate-found");
    let facts: Vec<(&str, u64, f64)> = found["retrieval_candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["entity"].as_str().unwrap(), row["rank"].as_u64().unwrap(), row["score"].as_f64().unwrap()))
        .collect();
    assert_eq!(facts, [("lib:receipts", 1, 0.75), ("lib:other", 2, 0.5), ("lib:mail", 3, 0.5)]);
    let capabilities: Vec<&str> =
        found["capability_candidates"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(capabilities, ["two", "one"]);
    let one = check(json!({ "tenant_id": "local", "description": "a parser for receipt files", "limit": 1 })).await;
    let lengths = ["retrieval_candidates", "capability_candidates"].map(|list| one[list].as_array().unwrap().len());
    assert_eq!((lengths, &one["capabilities_left_out"]), ([1, 1], &json!(1)), "the limit is of each list");
    let good = check(json!({ "tenant_id": "local", "description": "a parser for receipt files", "min_score": 0.7 })).await;
    assert_eq!(["retrieval_candidates", "capability_candidates"].map(|list| good[list].as_array().unwrap().len()), [1, 1]);
    let told = world.call(&b(), "reuse_check", json!({ "tenant_id": "other", "description": "a parser" })).await.told();
    assert!(told.contains("NOT_FOUND"), "{told}");
    let told = world.call(&b(), "reuse_check", json!({ "tenant_id": "local", "description": "x", "token_budget": 5 })).await.told();
    assert!(told.contains("does not know the argument `token_budget`"), "{told}");
    world.set(flag::REUSE_CHECK, "off");
    let told = world.call(&b(), "reuse_check", json!({ "tenant_id": "local", "description": "a parser" })).await.told();
    assert!(told.contains(r#""CAPABILITY_DENIED" wrote=no"#), "{told}");
}

// ------------------------------------------------------------------ engram_resolve

#[tokio::test]
async fn engrams_are_listed_without_contents_and_resolved_by_name_for_models_they_are_meant_for() {
    let world = world().await;
    let resolve = async |arguments: Value| world.ok(&b(), "engram_resolve", arguments).await;
    let list = resolve(json!({})).await;
    let rows = list["engram_manifest"]["engrams"].as_array().unwrap().clone();
    assert_eq!((rows.len(), &list["schema"], &list["capability_class"]), (4, &json!("crux.mcp.engram_manifest.v1"), &json!("capable")));
    assert!(rows.iter().all(|row| row["content"].is_null() && row["prompt_hash"].as_str().unwrap().starts_with("blake3:")));
    let named = json!({ "names": ["code-minimalism@v1", "route-impact-preflight@v1"] });
    let found = resolve(named).await;
    assert_eq!((&found["engrams"][0]["name"], &found["schema"]), (&json!("code-minimalism"), &json!("crux.mcp.engrams.resolve.v1")));
    let content = found["engrams"][0]["content"].as_str().unwrap();
    assert_eq!(found["engrams"][0]["prompt_hash"], format!("blake3:{}", blake3::hash(content.as_bytes()).to_hex()));
    assert_eq!(found["manifest_hash"], list["engram_manifest"]["manifest_hash"]);

    let overlay =
        json!({ "name": "release", "version": "v2", "intent_bucket": "ship", "content": "Tag it.", "capability_class_min": "frontier" });
    world.fact("__engram__::release", "v2", &overlay.to_string()).await;
    let own = json!({ "name": "code-minimalism", "intent_bucket": "change", "content": "Ours.", "applicable_why": "always" });
    world.fact("__engram__::minimal", "v1", &own.to_string()).await;
    world.fact("__engram__::odd", "v1", "no JSON").await;
    let list = resolve(json!({ "intent_bucket": "ship", "model_id": "claude-opus-4" })).await;
    let manifest = &list["engram_manifest"];
    assert_eq!(
        (&manifest["count"], &manifest["engrams"][0]["permitted"], &list["capability_class"]),
        (&json!(1), &json!(true), &json!("frontier"))
    );
    assert_eq!(manifest["unreadable_fact_ids"].as_array().unwrap().len(), 1, "what is no engram is told: {manifest}");
    let opus = json!({ "names": ["release@v2", "code-minimalism@v1"], "model_id": "claude-opus-4" });
    let found = resolve(opus).await;
    assert_eq!([&found["engrams"][0]["content"], &found["engrams"][1]["content"]], ["Tag it.", "Ours."]);
    for (names, model) in
        [(json!(["release@v2"]), "gpt-4o-mini"), (json!(["none@v1", "code-minimalism@v1"]), "x"), (json!(["release"]), "opus")]
    {
        let told = world.call(&b(), "engram_resolve", json!({ "names": names, "model_id": model })).await.told();
        assert!(told.starts_with("200 -32602 wrote=no capability_class_mismatch_or_missing"), "{told}");
    }
    let told = world.call(&b(), "engram_resolve", json!({ "names": vec!["a@v1"; 21] })).await.told();
    assert!(told.starts_with("200 -32602 wrote=no `names` has 21 elements, and the limit is 20"), "{told}");
    let foreign = world.ok(&by("token-other"), "engram_resolve", json!({})).await;
    assert_eq!(foreign["engram_manifest"]["count"], 4, "another team's are its own");
    world.set(flag::ENGRAMS, "off");
    let told = world.call(&b(), "engram_resolve", json!({})).await.told();
    assert!(told.contains(r#""CAPABILITY_DENIED" wrote=no"#), "{told}");
}

// ------------------------------------------------------------------ get_bootstrap

impl World {
    /// All facts of a question, page by page.
    async fn bootstrap(&self, arguments: Value) -> Vec<Value> {
        let (mut facts, mut arguments) = (Vec::new(), arguments);
        loop {
            let part = self.ok(&b(), "get_bootstrap", arguments.clone()).await;
            let page = part["facts"].as_array().unwrap();
            assert!(page.len() <= 100 && part.to_string().len() <= 32 * 1024);
            facts.extend(page.clone());
            match part.get("next_cursor") {
                None => return facts,
                Some(cursor) => arguments["cursor"] = cursor.clone(),
            }
        }
    }
}

#[tokio::test]
async fn bootstrap_knowledge_is_the_teams_own_first_and_then_what_comes_with_the_program() {
    let world = world().await;
    world.fact("__bootstrap__::pattern:ours", "text", "deploy on Tuesdays").await;
    world.fact("__bootstrap__::runbook:db", "text", "restart it").await;
    world.fact("svc:api", "owner", "deploy").await;
    let patterns = world.bootstrap(json!({ "topic": "patterns" })).await;
    assert_eq!((&patterns[0]["entity"], &patterns[0]["source"]), (&json!("__bootstrap__::pattern:ours"), &json!("team")));
    assert!(patterns.len() > 6 && patterns[1..].iter().all(|fact| fact["source"] == "quorate"), "{}", patterns.len());
    let all = world.bootstrap(json!({})).await;
    assert!(all.iter().all(|fact| fact["entity"].as_str().unwrap().starts_with("__bootstrap__::")), "and nothing else");
    assert_eq!(world.bootstrap(json!({ "topic": "runbook" })).await.len(), 1, "another topic is used as written");
    let errors = world.bootstrap(json!({ "topic": "errors", "query": "HELD" })).await;
    assert!(errors.iter().any(|fact| fact["entity"] == "__bootstrap__::resolution:HELD"), "{errors:?}");
    let deploy = world.bootstrap(json!({ "query": "deploy" })).await;
    assert!(deploy[0]["value"] == "deploy on Tuesdays" && deploy.iter().all(|fact| fact.to_string().to_lowercase().contains("deploy")));
    for query in ["upgrade", "backup"] {
        assert!(!world.bootstrap(json!({ "topic": "docs", "query": query })).await.is_empty(), "{query}");
    }
    let foreign = world.ok(&by("token-other"), "get_bootstrap", json!({ "topic": "pattern" })).await;
    assert_eq!(foreign["facts"].as_array().unwrap().len(), patterns.len() - 1);
}

#[tokio::test]
async fn the_topic_tool_output_serves_the_output_contract_of_every_tool() {
    let world = world().await;
    let facts = world.bootstrap(json!({ "topic": "tool-outputs" })).await;
    let catalog = tools::crux();
    assert_eq!(facts.len(), catalog.entries().len());
    for (fact, entry) in facts.iter().zip(catalog.entries()) {
        let schema: Value = serde_json::from_str(fact["value"].as_str().unwrap()).unwrap();
        let names = |schema: &Value| schema["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&schema), names(&entry.output), "{}", entry.name);
        assert_eq!(fact["entity"], format!("__bootstrap__::tool-output:{}", entry.name));
    }
}

#[tokio::test]
async fn a_token_budget_bounds_bootstrap_knowledge_and_the_rest_follows_by_cursor() {
    let world = world().await;
    for n in 0..5 {
        world.fact(&format!("__bootstrap__::doc:own-{n}"), "text", &"x".repeat(600)).await;
    }
    let whole = world.bootstrap(json!({ "topic": "docs" })).await;
    let few = world.ok(&b(), "get_bootstrap", json!({ "topic": "docs", "token_budget": 500 })).await;
    assert!(few.to_string().len() <= 2_000 && few["truncated"] == "token_budget", "{few}");
    let sorted = |facts: Vec<Value>| facts.iter().map(Value::to_string).collect::<BTreeSet<_>>();
    assert_eq!(sorted(world.bootstrap(json!({ "topic": "docs", "token_budget": 500 })).await), sorted(whole), "each once, and all of them");
    for arguments in [json!({ "cursor": "x" }), json!({ "cursor": "t:x" }), json!({ "token_budget": 1, "topic": "docs" })] {
        let told = world.call(&b(), "get_bootstrap", arguments).await.told();
        assert!(told.starts_with("200 -32602 wrote=no"), "{told}");
    }
}

// ------------------------------------------------------------------ memory_acknowledge_use

#[tokio::test]
async fn acknowledged_use_shows_what_a_host_needs_and_carries_the_audit_envelope() {
    let world = world().await;
    let fact = world.ok(&a(), "store_fact", json!({ "entity": "svc:api", "key": "owner", "value": "platform" })).await;
    let own = world.ok(&a(), "store_fact", json!({ "entity": "notes", "key": "k", "value": "v", "private": true })).await;
    let ids = json!([fact["fact_id"], own["fact_id"], "f_none"]);
    let told = world.ok(&a(), "memory_acknowledge_use", json!({ "turn_id": "t1", "fact_ids": ids })).await;
    let used = &told["memories_used"][0];
    assert_eq!((&used["fact_id"], &used["topic"], &used["freshness"]), (&fact["fact_id"], &json!("svc:api"), &json!("fresh")));
    assert!(used["age_days"].is_number());
    let counts = ["filtered_count", "redacted_count", "not_found_count", "not_visible_count"].map(|count| told[count].as_u64().unwrap());
    assert_eq!((counts, &told["intent"]), ([1, 1, 1, 0], &json!("answer")));
    let envelope = &told["envelope"];
    assert_eq!(envelope["receipts_used"], json!([told["receipt_ref"]]));
    assert_eq!(envelope["autonomy_consumed"]["scope"], "agent:agent-a");
    assert_eq!(envelope["predicted_effects"], json!(["receipt_emit"]));
    let receipt = world.ok(&b(), "receipt_verify", json!({ "receipt_id": told["receipt_ref"] })).await;
    assert_eq!((&receipt["verified"], &receipt["signer_passport"]), (&json!(true), &json!("agent-a")));
    assert!(!receipt.to_string().contains("notes"), "a private fact's name is nobody else's: {receipt}");
    let told = world.call(&a(), "memory_acknowledge_use", json!({ "turn_id": "t1", "intent": "guess" })).await.told();
    assert!(told.starts_with("200 -32602 wrote=no `intent` must be one of `answer`, `decision`, `tool_call` and `implicit`"), "{told}");
    world.set(flag::MEMORY_ACK, "off");
    let off = world.ok(&a(), "memory_acknowledge_use", json!({ "turn_id": "t2", "fact_ids": ids })).await;
    assert_eq!((&off["feature_enabled"], &off["receipt_ref"], &off["memories_used"]), (&json!(false), &Value::Null, &json!([])));
}

// ------------------------------------------------------------------ hardening

/// What an address takes, where it looks at that before it looks at scopes.
fn body_for(path: &str) -> String {
    let edit = json!({ "hook_event_name": "PreToolUse", "tool_name": "Edit", "tool_input": { "file_path": "/srv/a.rs" }, "cwd": "/srv" });
    let body = match path {
        "/v1/guard" => json!({ "moment": "before_edit", "take": ["file://a.rs"], "within_ms": 1_000 }),
        "/v1/hook/claude-code" => edit,
        _ => json!({}),
    };
    body.to_string()
}

#[tokio::test]
async fn the_matrix_of_routes_is_the_same_each_time_and_is_what_the_routes_do() {
    let world = world().await;
    let matrix = world.ok(&a(), "route_access_matrix", json!({})).await;
    assert_eq!(world.ok(&b(), "route_access_matrix", json!({})).await, matrix);
    let rows = matrix["routes"].as_array().unwrap();
    let documented = http(world.address, "GET", "/v1/openapi.json", &[], "").await.json();
    for path in documented["paths"].as_object().unwrap().keys() {
        let is_listed = path.starts_with("/v1/tools/crux/") || rows.iter().any(|row| row["route"] == path.as_str());
        assert!(is_listed, "{path} is not in the matrix");
    }
    let mut asked = 0;
    for row in rows {
        let path = row["route"].as_str().unwrap().replace("{tool}", "list_entities");
        if ["/mcp", "/sse"].iter().any(|start| path.starts_with(start)) {
            continue;
        }
        for method in ["GET", "POST"] {
            let ask = async |token: Option<&str>| {
                let mut headers = vec![("Content-Type".to_string(), "application/json".to_string())];
                headers.extend(token.map(|token| ("Authorization".to_string(), format!("Bearer {token}"))));
                headers.push(("Quorate-Root".into(), "/srv".into()));
                let body = if method == "POST" { body_for(&path) } else { String::new() };
                http(world.address, method, &path, &headers, &body).await.status
            };
            let (without, bare) = (ask(None).await, ask(Some("token-bare")).await);
            if [without, bare].contains(&405) {
                continue;
            }
            if row["notes"].as_str().unwrap().contains("sign-in") {
                assert_eq!((without, bare), (303, 303), "{method} {path} leads to the sign-in, {row}");
                continue;
            }
            asked += 1;
            let is_bound = row["passport_binding"] == true;
            assert_eq!(without == 401, is_bound, "{method} {path} without a token: {without}, {row}");
            if !row["required_any_scope"].as_array().unwrap().is_empty() {
                assert_eq!(bare, 403, "{method} {path} without the scope, {row}");
            }
        }
    }
    assert!(asked > 12, "{asked}");
}

#[tokio::test]
async fn the_audit_of_the_set_up_tells_what_runs_and_never_how_callers_prove_who_they_are() {
    let world = world().await;
    let audit = world.ok(&a(), "auth_posture_audit", json!({})).await;
    assert_eq!((&audit["schema"], &audit["mcp_agent"]), (&json!("crux.auth_posture_audit.v1"), &json!("agent-a")));
    assert_eq!((&audit["daemon_loopback_configured"], &audit["data_dir_configured"]), (&json!(true), &json!(false)));
    assert_eq!((&audit["agent_passports_enabled"], &audit["rcx_router_configured"]), (&json!(true), &json!(false)));
    assert!(audit["recommended_checks"].to_string().contains("audit_export_dir"), "what is missing is recommended: {audit}");
    let text = audit.to_string().to_lowercase();
    for word in ["bearer", "jwt", "auth_mode", "auth mode", "dev_scopes", "hs256"] {
        assert!(!text.contains(word), "{word}");
    }
    world.set(flag::AGENT_PASSPORTS, "off");
    let audit = world.ok(&a(), "auth_posture_audit", json!({})).await;
    assert_eq!(audit["agent_passports_enabled"], false);
}

#[tokio::test]
async fn a_gate_of_a_plan_is_noted_once_per_milestone_and_needs_a_token_budget() {
    let world = world().await;
    let gate = json!({ "slug": "search", "milestone": "gate:M2", "status": "passed", "commit_sha": "93b41a7", "token_budget": 500 });
    let noted = world.ok(&a(), "execplan_gate", gate.clone()).await;
    assert_eq!((&noted["entity"], &noted["key"], &noted["status"]), (&json!("execplan:search"), &json!("gate:M2"), &json!("passed")));
    let rows = world.ok(&b(), "query_facts", json!({ "entity": "execplan:search" })).await;
    assert_eq!((&rows["rows"][0]["fact_id"], &rows["rows"][0]["horizon_class"]), (&noted["fact_id"], &json!("stable")));
    for (field, value) in [("token_budget", json!(0)), ("status", json!("complete"))] {
        let mut bad = gate.clone();
        bad[field] = value;
        let told = world.call(&a(), "execplan_gate", bad).await.told();
        assert!(told.starts_with(&format!("200 -32602 wrote=no `{field}`")), "{told}");
    }
}

#[tokio::test]
async fn a_target_outside_is_judged_by_its_scheme_and_host() {
    let world = world().await;
    let check = async |arguments: Value| world.ok(&a(), "egress_policy_check", arguments).await;
    let https = check(json!({ "target": "https://example.org/hook", "purpose": "tell" })).await;
    assert_eq!(
        (&https["allowed"], &https["scheme"], &https["host"], &https["purpose"]),
        (&json!(true), &json!("https"), &json!("example.org"), &json!("tell"))
    );
    assert_eq!(check(json!({ "target": "http://localhost:80" })).await["allowed"], true);
    assert_eq!(check(json!({ "target": "http://localhost:80", "allow_loopback_http": false })).await["allowed"], false);
    let plain = check(json!({ "target": "http://example.org" })).await;
    assert_eq!((&plain["allowed"], &plain["purpose"]), (&json!(false), &Value::Null));
    assert_eq!(check(json!({ "target": "http://example.org", "allow_plain_http": true })).await["allowed"], true);
    assert_eq!(check(json!({ "target": "ftp://example.org" })).await["allowed"], false);
    let told = world.call(&a(), "egress_policy_check", json!({ "target": "example.org" })).await.told();
    assert!(told.starts_with("200 -32602 wrote=no `target` is no absolute URL"), "{told}");
}

// ------------------------------------------------------------------ update_status

#[tokio::test]
async fn without_a_clone_to_compare_with_nothing_is_said_of_updates_but_how_to_set_it_up() {
    let world = world().await;
    let status = world.ok(&a(), "update_status", json!({})).await;
    assert_eq!((&status["enabled"], &status["state"], &status["behind_by"]), (&json!(false), &json!("not_configured"), &Value::Null));
    assert!(status["upgrade_hint"].as_str().unwrap().contains("update_checkout"), "{status}");
    let query = json!({ "topic": "docs", "query": status["upgrade_playbook_query"] });
    assert!(world.ok(&a(), "get_bootstrap", query).await["facts"].to_string().contains("one by one"));
}
