//! The HTTP API as its document tells it: what is told is what is served, and the conventions that all addresses share.

use std::collections::BTreeSet;

use super::*;

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"];

async fn document(world: &World) -> Value {
    http(world.address, "GET", "/v1/openapi.json", &[], "").await.json()
}

fn of(caller: &Caller, more: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut headers = caller.headers.clone();
    headers.extend(caller.token.map(|token| ("Authorization".to_string(), format!("Bearer {token}"))));
    headers.push(("Content-Type".into(), "application/json".into()));
    headers.extend(more.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    headers
}

/// Operations that answer without a token too: what is told to everybody, and where a token comes from.
const OPEN: [&str; 9] = [
    "get_agent_identity",
    "get_challenge",
    "resolve_principal",
    "session_token_usage",
    "show_docs",
    "show_docs_of",
    "show_me",
    "show_openapi",
    "sign_in",
];

#[tokio::test]
async fn what_is_documented_is_what_is_served_and_the_other_way_round() {
    let world = world().await;
    let documented = document(&world).await;
    let matrix = world.ok(&a(), "route_access_matrix", json!({})).await;
    let served = matrix["routes"].as_array().unwrap().iter().filter_map(|row| row["route"].as_str());
    // GitHub's webhook has GitHub's form, and answers nothing.
    let served: Vec<&str> =
        served.filter(|path| path.starts_with("/v1/") && !path.contains("{tool}") && !path.contains("/github/")).collect();
    let told: BTreeSet<&str> = documented["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    for path in &served {
        assert!(told.contains(path), "{path} is served and not documented");
    }
    for (path, operations) in documented["paths"].as_object().unwrap() {
        assert!(served.contains(&path.as_str()) || path.starts_with("/v1/tools/crux/"), "{path} is documented and not in the matrix");
        let known: BTreeSet<String> = operations.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
        for method in METHODS {
            let answer = http(world.address, method, path, &of(&by("token-bare"), &[]), "").await;
            assert_eq!(answer.status != 405, known.contains(method), "{method} {path}: {} {}", answer.status, answer.text);
            if answer.status == 405 {
                let allowed: BTreeSet<String> = answer.headers["allow"].split(',').map(|method| method.trim().to_string()).collect();
                assert!(known.is_subset(&allowed), "{path} allows {allowed:?}");
                assert_eq!(answer.headers["content-type"], "application/problem+json");
            }
        }
    }
}

#[tokio::test]
async fn every_documented_operation_asks_for_a_token_or_says_that_it_does_not() {
    let world = world().await;
    let (mut asked, mut open) = (0, BTreeSet::new());
    for (path, operations) in document(&world).await["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            let body =
                if method == "post" { operation["requestBody"]["content"]["application/json"]["example"].clone() } else { Value::Null };
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let answer = http(world.address, &method.to_uppercase(), path, &of(&nobody(), &[]), &body).await;
            let is_open = operation["security"].as_array().is_some_and(|security| security.is_empty() || security.contains(&json!({})));
            if is_open {
                open.insert(name.to_string());
            } else {
                assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text);
            }
            let described = &operation["responses"][answer.status.to_string()];
            assert!(described.is_object(), "{method} {path} answers {} and does not say so", answer.status);
            asked += 1;
        }
    }
    assert!(asked > tools::crux().entries().len(), "every tool is a route");
    assert_eq!(open, OPEN.map(String::from).into());
}

#[tokio::test]
async fn an_address_answers_as_its_tool_does() {
    let world = world().await;
    let stored = http(world.address, "POST", "/v1/facts", &of(&a(), &[]), r#"{"entity":"e","key":"k","value":"v"}"#).await;
    assert_eq!(stored.status, 200, "{}", stored.text);
    let by_tool = world.ok(&a(), "query_facts", json!({ "entity": "e", "top_k": 5 })).await;
    let by_face = http(world.address, "GET", "/v1/facts?entity=e&top_k=5", &of(&a(), &[]), "").await;
    assert_eq!(by_face.json(), by_tool);
    // Who asks is who the token says, where a tool has to be told.
    let card = http(world.address, "POST", "/v1/punchcards", &of(&a(), &[]), r#"{"resource":"file://x"}"#).await;
    assert_eq!((card.status, &card.json()["holder_passport"]), (200, &json!("agent-a")), "{}", card.text);
    let held = http(world.address, "POST", "/v1/punchcards", &of(&b(), &[]), r#"{"resource":"file://x"}"#).await;
    assert_eq!((held.status, held.headers["content-type"].as_str()), (409, "application/problem+json"));
    for (method, path, body) in [
        ("GET", "/v1/facts?colour=red", ""),
        ("GET", "/v1/facts?top_k=many", ""),
        ("GET", "/v1/facts?entity=a&entity=b", ""),
        ("GET", "/v1/facts?tenant_id=default", ""),
        ("POST", "/v1/facts?entity=e", r#"{"entity":"e","key":"k","value":"v"}"#),
        ("POST", "/v1/facts", r#"{"entity":"e","key":"k","value":"v","colour":"red"}"#),
        ("DELETE", "/v1/facts/f_1", r#"{}"#),
    ] {
        let refused = http(world.address, method, path, &of(&a(), &[]), body).await;
        assert_eq!((refused.status, &refused.json()["wrote"]), (400, &json!("no")), "{method} {path}: {}", refused.text);
    }
}

#[tokio::test]
async fn a_key_makes_a_write_have_one_effect_at_its_other_address_too() {
    let world = world().await;
    let store = async |value: &str| {
        let body = json!({ "entity": "e", "key": "k", "value": value }).to_string();
        http(world.address, "POST", "/v1/facts", &of(&a(), &[("Idempotency-Key", "one")]), &body).await
    };
    let (first, again, other) = (store("v").await, store("v").await, store("w").await);
    assert_eq!((first.status, again.status, other.status), (200, 200, 422), "{}", other.text);
    assert_eq!(first.text, again.text);
}

#[tokio::test]
async fn a_read_has_a_tag_by_which_it_is_not_sent_again() {
    let world = world().await;
    world.ok(&a(), "store_fact", json!({ "entity": "e", "key": "k", "value": "v" })).await;
    let path = "/v1/facts/entities";
    let read = http(world.address, "GET", path, &of(&a(), &[]), "").await;
    let tag = read.headers["etag"].clone();
    let same = http(world.address, "GET", path, &of(&a(), &[("If-None-Match", &tag)]), "").await;
    assert_eq!((same.status, same.text.as_str(), &same.headers["etag"]), (304, "", &tag));
    world.ok(&a(), "store_fact", json!({ "entity": "f", "key": "k", "value": "v" })).await;
    let changed = http(world.address, "GET", path, &of(&a(), &[("If-None-Match", &tag)]), "").await;
    assert_eq!(changed.status, 200);
    assert_ne!(changed.headers["etag"], tag);
    // The first page leads to the next one.
    let page = http(world.address, "GET", "/v1/facts/entities?limit=1", &of(&a(), &[]), "").await;
    let next = page.headers["link"].strip_prefix('<').unwrap().strip_suffix(">; rel=\"next\"").unwrap();
    let second = http(world.address, "GET", next, &of(&a(), &[]), "").await;
    assert_eq!(second.status, 200);
    assert_ne!(second.json()["entities"], page.json()["entities"]);
}

#[tokio::test]
async fn a_session_is_replaced_only_at_the_version_that_was_read() {
    let world = world().await;
    let save = async |more: &[(&str, &str)]| http(world.address, "PUT", "/v1/sessions/s", &of(&a(), more), r#"{"state":{"n":1}}"#).await;
    assert_eq!(save(&[]).await.status, 200);
    let read = http(world.address, "GET", "/v1/sessions/s", &of(&a(), &[]), "").await;
    let tag = read.headers["etag"].clone();
    assert_eq!(save(&[("If-Match", &tag)]).await.status, 200);
    let late = save(&[("If-Match", &tag)]).await;
    assert_eq!((late.status, &late.json()["code"]), (412, &json!(-32004)));
    // Where nothing has a version, a condition would not hold anything back.
    let refused =
        http(world.address, "POST", "/v1/facts", &of(&a(), &[("If-Match", "\"1\"")]), r#"{"entity":"e","key":"k","value":"v"}"#).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
}

#[tokio::test]
async fn the_reference_has_a_page_for_each_operation_and_takes_nothing_from_elsewhere() {
    let world = world().await;
    let index = http(world.address, "GET", "/v1/docs", &[], "").await;
    assert_eq!((index.status, index.headers["content-type"].as_str()), (200, "text/html; charset=utf-8"));
    for operations in document(&world).await["paths"].as_object().unwrap().values() {
        for operation in operations.as_object().unwrap().values() {
            let path = format!("/v1/docs/{}", operation["operationId"].as_str().unwrap());
            assert!(index.text.contains(&format!("href=\"{path}\"")), "{path} is in the index");
        }
    }
    let page = http(world.address, "GET", "/v1/docs/find_facts", &[], "").await;
    assert!(page.headers["content-security-policy"].starts_with("default-src 'none'"), "{:?}", page.headers);
    assert!(page.text.contains("top_k") && !page.text.contains("<script") && !page.text.contains("://"), "{}", page.text);
    assert_eq!(http(world.address, "GET", "/v1/docs/nothing", &[], "").await.status, 404);
}

#[tokio::test]
async fn no_page_of_another_origin_reads_an_answer_unless_an_operator_says_so() {
    let world = world().await;
    for origin in ["http://localhost:5173", "https://elsewhere.example"] {
        let answer = http(world.address, "GET", "/v1/facts", &of(&a(), &[("Origin", origin)]), "").await;
        assert!(!answer.headers.contains_key("access-control-allow-origin"), "{origin}: {:?}", answer.headers);
        let asked = http(
            world.address,
            "OPTIONS",
            "/v1/facts",
            &of(&nobody(), &[("Origin", origin), ("Access-Control-Request-Method", "GET")]),
            "",
        )
        .await;
        assert!(!asked.headers.contains_key("access-control-allow-origin"), "{origin}: {:?}", asked.headers);
    }
}
