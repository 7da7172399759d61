//! The console as a browser sees it, without the browser.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{Answer, World, a, b, http, until, world, world_of};

const HOSTILE: &str = r#"<img src=x onerror="hurt()"><script>hurt()</script>'"&"#;

/// A browser that is signed in: its cookie.
struct Browser {
    address: SocketAddr,
    cookie: String,
}

/// What a form is sent with.
fn form_headers(origin: &str) -> Vec<(String, String)> {
    [("Origin", origin), ("Content-Type", "application/x-www-form-urlencoded")].map(|(name, value)| (name.into(), value.into())).into()
}

async fn sign_in(address: SocketAddr, token: &str) -> Answer {
    http(address, "POST", "/console/sign-in", &form_headers(&format!("http://{address}")), &format!("token={token}&next=%2Fconsole%2Fwork"))
        .await
}

impl Browser {
    async fn of(world: &World, token: &str) -> Self {
        let answer = sign_in(world.address, token).await;
        assert_eq!((answer.status, answer.headers["location"].as_str()), (303, "/console/work"), "{}", answer.text);
        let cookie = answer.headers["set-cookie"].split(';').next().unwrap().to_string();
        Self { address: world.address, cookie }
    }

    async fn get(&self, path: &str) -> Answer {
        http(self.address, "GET", path, &[("Cookie".into(), self.cookie.clone())], "").await
    }

    /// Sends the form of a page as that page would, or with another origin or key.
    async fn post(&self, path: &str, fields: &str, origin: Option<&str>, key: &str) -> Answer {
        let own = format!("http://{}", self.address);
        let mut headers = form_headers(origin.unwrap_or(&own));
        headers.push(("Cookie".into(), self.cookie.clone()));
        http(self.address, "POST", path, &headers, &format!("{fields}&once=1&key={key}")).await
    }
}

/// The key of the first form of a page.
fn key_of(page: &Answer) -> String {
    let (_, rest) = page.text.split_once(r#"name="key" value=""#).expect("a form with a key");
    rest.split('"').next().unwrap().into()
}

async fn ask(world: &World, summary: &str) -> String {
    let arguments =
        json!({ "action_summary": summary, "risk_tier": "high", "scope": "default", "token_budget": 100, "payload": { "text": summary } });
    world.ok(&a(), "approval_request", arguments).await["request_id"].as_str().unwrap().into()
}

const PAGES: [&str; 14] = [
    "/console",
    "/console/approvals",
    "/console/sessions",
    "/console/leases",
    "/console/work",
    "/console/work?state=planned",
    "/console/facts",
    "/console/facts?q=hurt&back=0",
    "/console/receipts",
    "/console/passports",
    "/console/passports/agent-a",
    "/console/cluster",
    "/console/search",
    "/console/search?q=hurt",
];

#[tokio::test]
async fn who_is_not_signed_in_is_led_to_the_sign_in_and_back() {
    let world = world().await;
    for page in PAGES.into_iter().chain(["/console/stream", "/console/approvals/x", "/console/receipts/x"]) {
        let answer = http(world.address, "GET", page, &[], "").await;
        assert_eq!(answer.status, 303, "{page}");
        assert!(answer.headers["location"].starts_with("/console/sign-in"), "{page}");
    }
    let answer = http(world.address, "GET", "/console/work?state=planned", &[], "").await;
    assert_eq!(answer.headers["location"], "/console/sign-in?next=%2Fconsole%2Fwork%3Fstate%3Dplanned");
    assert_eq!(sign_in(world.address, "nonsense").await.status, 401);
    // Whoever came over TLS, by a proxy for instance, is not asked for the cookie in the clear.
    for (scheme, is_secure) in [("http", false), ("https", true)] {
        let headers = form_headers(&format!("{scheme}://{}", world.address));
        let answer = http(world.address, "POST", "/console/sign-in", &headers, "token=token-a").await;
        let cookie = &answer.headers["set-cookie"];
        assert!(cookie.contains("; Path=/console; Max-Age=43200; HttpOnly; SameSite=Strict"), "{cookie}");
        assert_eq!(cookie.ends_with("; Secure"), is_secure, "{cookie}");
    }
    let forged = http(world.address, "GET", "/console", &[("Cookie".into(), "quorate_00000000=e30.e30".into())], "").await;
    assert_eq!(forged.status, 303);
}

#[tokio::test]
async fn a_slash_at_the_end_of_an_address_leads_to_the_page_without_it() {
    let world = world().await;
    for (typed, page) in [
        ("/console/", "/console"),
        ("/console//", "/console"),
        ("/console/work/", "/console/work"),
        ("/console/facts/?q=a%20b", "/console/facts?q=a%20b"),
        ("/console/passports/agent-a/", "/console/passports/agent-a"),
    ] {
        let answer = http(world.address, "GET", typed, &[], "").await;
        assert_eq!((answer.status, answer.headers["location"].as_str()), (308, page), "{typed}");
    }
    for nowhere in ["/consoles/", "//example.org/console/", "/v1/work/", "/"] {
        assert_eq!(http(world.address, "GET", nowhere, &[], "").await.status, 404, "{nowhere}");
    }
}

#[tokio::test]
async fn every_page_stands_and_what_was_typed_is_text_on_it() {
    let world = world().await;
    let request = ask(&world, HOSTILE).await;
    world.ok(&a(), "store_fact", json!({ "entity": HOSTILE, "key": HOSTILE, "value": HOSTILE })).await;
    world
        .ok(&a(), "create_work", json!({ "project_id": "p_default", "title": HOSTILE, "body": HOSTILE, "created_by_passport": "agent-a" }))
        .await;
    let held = json!({ "resource": format!("service://{HOSTILE}"), "holder_passport": "agent-b", "reason": HOSTILE });
    world.ok(&b(), "punch_in", held).await;
    let announced = json!({ "session_id": "0a", "project_id": "p_default", "note": HOSTILE, "paths": ["a<b>"], "milestone": HOSTILE });
    world.ok(&a(), "coord_announce", announced).await;
    let browser = Browser::of(&world, "token-operator").await;
    let one = format!("/console/approvals/{request}");
    for page in PAGES.into_iter().chain([one.as_str(), "/console?said=%3Cscript%3E&seen=x", "/console/facts?q=%3Cscript%3E"]) {
        let answer = browser.get(page).await;
        assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "text/html; charset=utf-8"), "{page}: {}", answer.text);
        assert!(!answer.text.contains("<img src=x") && !answer.text.contains("<script>"), "{page}: {}", answer.text);
        let policy = &answer.headers["content-security-policy"];
        assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"), "{policy}");
        assert_eq!((answer.headers["x-frame-options"].as_str(), answer.headers["cache-control"].as_str()), ("DENY", "no-store"));
    }
    let (wanted, shown) = ("&lt;img src=x onerror=&quot;hurt()&quot;&gt;", browser.get("/console/facts").await.text);
    assert!(shown.contains(wanted), "{shown}");
    assert_eq!(browser.get("/console/approvals/unknown").await.status, 404);
    assert_eq!(browser.get("/console/work?state=nonsense").await.status, 400);
}

#[tokio::test]
async fn a_search_finds_words_and_not_parts_of_them_and_says_so_of_a_fact_that_has_a_part() {
    let world = world().await;
    world.ok(&a(), "store_fact", json!({ "entity": "svc:api", "key": "boot", "value": "restart it on Sundays" })).await;
    world.ok(&a(), "create_work", json!({ "project_id": "p_default", "title": "Restart plan", "created_by_passport": "agent-a" })).await;
    world.ok(&b(), "punch_in", json!({ "resource": "file://restart/plan.rs", "holder_passport": "agent-b" })).await;
    let browser = Browser::of(&world, "token-a").await;
    let found = browser.get("/console/search?q=restart").await.text;
    for wanted in ["entity=svc%3Aapi&amp;key=boot", "Restart plan", "file://restart/plan.rs"] {
        assert!(found.contains(wanted), "{wanted}: {found}");
    }
    let found = browser.get("/console/search?q=art").await.text;
    assert!(found.contains("Nothing was found"), "{found}");
    let found = browser.get("/console/facts?q=restart").await.text;
    assert!(found.contains("It holds <b>restart</b> in its value."), "{found}");
    let found = browser.get("/console/facts?q=art").await.text;
    assert!(found.contains("A longer word of its value holds <b>art</b>."), "{found}");
}

#[tokio::test]
async fn a_form_is_taken_from_a_page_of_this_host_and_this_sign_in_only() {
    let world = world().await;
    let request = ask(&world, "drop it").await;
    let (browser, other) = (Browser::of(&world, "token-operator").await, Browser::of(&world, "token-operator").await);
    let (path, fields) = (format!("/console/approvals/{request}"), "decision=approve&note=");
    let (own, theirs) = (key_of(&browser.get("/console").await), key_of(&other.get("/console").await));
    for (origin, key) in [
        (Some("http://127.0.0.1:1"), &own),
        (Some("https://evil.example"), &own),
        (Some("null"), &own),
        (None, &theirs),
        (None, &String::new()),
    ] {
        assert_eq!(browser.post(&path, fields, origin, key).await.status, 403, "{origin:?} {key}");
    }
    assert_eq!(world.fake.proposals().len(), 1, "nothing but the request itself was written");
    // Twice is once, and the other decision comes too late.
    for _ in 0..2 {
        let done = browser.post(&path, fields, None, &own).await;
        assert_eq!(done.status, 303, "{}", done.text);
        assert!(done.headers["location"].starts_with(&format!("{path}?seen=")), "{:?}", done.headers);
    }
    let late = browser.post(&path, "decision=reject&note=", None, &own).await;
    assert_eq!(late.status, 409);
    assert!(late.text.contains("was already approved"), "{}", late.text);
}

#[tokio::test]
async fn who_may_not_do_a_thing_over_the_tools_may_not_do_it_here() {
    let world = world().await;
    let request = ask(&world, "drop it").await;
    world.ok(&b(), "punch_in", json!({ "resource": "file://a", "holder_passport": "agent-b" })).await;
    let agent = Browser::of(&world, "token-a").await;
    let shown = agent.get("/console").await;
    assert!(shown.text.contains("deciding what is of high risk needs the tier operator"), "{}", shown.text);
    assert!(!shown.text.contains("value=\"approve\"") && !shown.text.contains("/console/cluster"), "{}", shown.text);
    // A page that it has no form on still has no say, whoever made the key.
    let key = key_of(&Browser::of(&world, "token-operator").await.get("/console").await);
    assert_eq!(agent.post(&format!("/console/approvals/{request}"), "decision=approve", None, &key).await.status, 403);
    let map = agent.get("/console/leases").await.text;
    assert!(map.contains("agent-b") && !map.contains("/release"), "{map}");
    assert_eq!((agent.get("/console/cluster").await.status, agent.get("/console/passports").await.status), (403, 403));
    // Every address that names a scope asks for it.
    let bare = Browser::of(&world, "token-bare").await;
    let matrix = world.ok(&a(), "route_access_matrix", json!({})).await;
    let pages = matrix["routes"].as_array().unwrap().iter().filter(|row| row["route"].as_str().unwrap().starts_with("/console"));
    let mut refused = 0;
    for row in pages.filter(|row| !row["required_any_scope"].as_array().unwrap().is_empty()) {
        let path = row["route"].as_str().unwrap().replace("{id}", "x").replace("{name}", "x");
        let status = bare.get(&path).await.status;
        assert!(status == 403 || status == 405, "{path}: {status}");
        refused += usize::from(status == 403);
    }
    assert!(refused >= 16, "{refused}");
    let other = Browser::of(&world, "token-other").await;
    assert!(!other.get("/console").await.text.contains("drop it"));
    assert!(!other.get("/console/leases").await.text.contains("agent-b"));
    assert_eq!(other.get(&format!("/console/approvals/{request}")).await.status, 404);
}

#[tokio::test]
async fn a_lease_is_taken_away_with_a_reason_and_a_token_is_revoked() {
    let world = world().await;
    world.ok(&b(), "punch_in", json!({ "resource": "file://a", "holder_passport": "agent-b" })).await;
    let browser = Browser::of(&world, "token-operator").await;
    let map = browser.get("/console/leases").await;
    let (_, rest) = map.text.split_once("href=\"/console/leases/").unwrap();
    let id = rest.split('/').next().unwrap();
    let asked = browser.get(&format!("/console/leases/{id}/release?resource=file%3A%2F%2Fa")).await;
    let (key, path) = (key_of(&asked), format!("/console/leases/{id}/release"));
    assert_eq!(browser.post(&path, "reason=+", None, &key).await.status, 400, "a reason is needed");
    assert_eq!(browser.post(&path, "reason=gone", None, &key).await.status, 303);
    let found: Value = world.ok(&a(), "list_punchcards", json!({ "status": "force_released" })).await;
    assert_eq!(found["punchcards"].as_array().unwrap().len(), 1, "{found}");

    let victim = Browser::of(&world, "token-b").await;
    let hash = quorate_domain::identity::token_hash("token-b");
    let passport = browser.get("/console/passports/agent-b").await;
    assert!(passport.text.contains(&hash[..12]), "{}", passport.text);
    assert_eq!(browser.post("/console/passports/agent-b/tokens", &format!("hash={hash}"), None, &key_of(&passport)).await.status, 303);
    until(async || victim.get("/console/work").await.status == 303).await;
}

#[tokio::test]
async fn pages_are_read_from_followers() {
    let world = world_of(3).await;
    let browser = Browser::of(&world, "token-operator").await;
    until(async || browser.get("/console/cluster").await.text.contains("No alarms")).await;
    world.fake.reads();
    assert_eq!(browser.get("/console/sessions").await.status, 200);
    let reads = world.fake.reads();
    let stale: Vec<u64> = reads.into_iter().filter(|(_, is_stale)| *is_stale).map(|(node, _)| node).collect();
    assert!(!stale.is_empty() && stale[0] != 1, "node 1 leads, and {stale:?} were asked");
}

#[tokio::test]
async fn the_stream_of_a_sign_in_is_the_stream_of_its_token() {
    let world = world().await;
    let bare = Browser::of(&world, "token-bare").await;
    assert_eq!(bare.get("/console/stream").await.status, 403, "it has no scope for events");
    let bearer = http(world.address, "GET", "/console/stream", &[("Authorization".into(), "Bearer token-a".into())], "").await;
    assert_eq!(bearer.status, 303, "the console knows sign-ins only");
    let cookie = Browser::of(&world, "token-a").await.cookie;
    let api = http(world.address, "GET", "/v1/approvals", &[("Cookie".into(), cookie)], "").await;
    assert_eq!(api.status, 401, "and a cookie opens nothing but the console");
}
