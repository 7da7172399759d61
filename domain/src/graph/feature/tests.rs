use expect_test::expect;
use proptest::prelude::*;

use super::*;
use crate::command::CommandKind;
use crate::graph::{DeleteEntity, EntityHistory, ListEntitiesOfKind, UpsertEntity};
use crate::limit::{NAME_BYTES_MAX, REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX, STATE_BYTES_MAX};
use crate::transcript::{World, person};

struct Product(World);

impl Product {
    fn of(capabilities: &[(&str, Value)]) -> Self {
        let mut product = Self(World::new());
        for (id, payload) in capabilities {
            product.stores(id, payload.clone());
        }
        product
    }

    fn tries<C: CommandKind>(&mut self, command: C) -> Result<C::Output, Refusal> {
        self.0.call("1s", person("mara"), None, command)
    }

    fn stores(&mut self, id: &str, payload: Value) {
        self.tries(UpsertEntity { kind: CAPABILITY.into(), id: id.into(), payload, kind_revision: None }).unwrap();
    }

    fn deletes(&mut self, id: &str) {
        let _ = self.tries(DeleteEntity { kind: CAPABILITY.into(), id: id.into() });
    }

    fn coverage(&mut self, who: &str) -> (Totals, Vec<System>) {
        let (mut systems, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.0.ask("9s", person(who), FeatureCoverage { cursor }).unwrap();
            systems.extend(page.systems);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return (page.totals, systems);
            }
        }
    }

    fn suggested(&mut self, who: &str, limit: u64) -> (Vec<Gap>, Option<Promise>) {
        let (mut gaps, mut weakest, mut cursor) = (Vec::new(), None, None);
        loop {
            let page = self.0.ask("9s", person(who), SuggestFeature { limit, cursor: cursor.clone() }).unwrap();
            assert!(page.gaps.len() as u64 <= limit);
            assert!(cursor.is_none() || page.weakest.is_none(), "the promise is told once");
            gaps.extend(page.gaps);
            weakest = weakest.or(page.weakest);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return (gaps, weakest);
            }
        }
    }

    fn with_file(&mut self, who: &str, path: &str, limit: u64) -> Vec<FeatureFiles> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.0.ask("9s", person(who), FindFeatureFiles { path: path.into(), limit, cursor }).unwrap();
            assert!(page.capabilities.len() as u64 <= limit);
            found.extend(page.capabilities);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return found;
            }
        }
    }

    fn live(&mut self) -> Vec<Entity> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let list = ListEntitiesOfKind { kind: Some(CAPABILITY.into()), include_deleted: false, limit: 50, cursor };
            let page = self.0.ask("9s", person("mara"), list).unwrap();
            found.extend(page.entities);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return found;
            }
        }
    }
}

fn told(gaps: &[Gap]) -> String {
    let line = |gap: &Gap| {
        let detail = gap.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
        format!("{} {} {}{detail}\n", gap.severity.word(), gap.capability_id, gap.gap_type.word())
    };
    gaps.iter().map(line).collect()
}

#[test]
fn the_gaps_of_a_capability_depend_on_what_it_lacks_and_on_whether_it_is_shipped() {
    let audited = json!({ "status": "audited" });
    let of = |maturity: &str, tests: Value, audit: Value, dod: &[&str]| json!({ "name": "N", "system": "s", "maturity": maturity, "tests": tests, "audit": audit, "dod": dod });
    let mut product = Product::of(&[
        ("bare", json!({ "name": "Bare", "system": "s", "maturity": "planned" })),
        ("bare-shipped", json!({ "name": "Bare", "system": "s", "maturity": "shipped" })),
        ("e2e-only", of("shipped", json!({ "e2e": ["a"] }), audited.clone(), &["x"])),
        ("no-unit", of("built", json!({ "integration": ["a"] }), audited.clone(), &["x"])),
        ("unit-only", of("built", json!({ "unit": ["a"], "integration": [] }), audited.clone(), &["x"])),
        ("unit-only-shipped", of("shipped", json!({ "unit": ["a"] }), audited.clone(), &["x"])),
        ("noted", of("built", json!({ "unit": ["a"] }), json!({ "status": "gap", "notes": "no threat model" }), &["x"])),
        ("waived", of("shipped", json!({ "unit": ["a"], "integration": ["b"] }), json!({ "status": "waived" }), &["x"])),
        ("blocked", of("shipped", json!({ "unit": ["a"], "integration": ["b"] }), json!({ "status": "blocked" }), &[])),
    ]);
    let (gaps, weakest) = product.suggested("mara", 2);
    expect![[r#"
        critical bare-shipped no_tests
        critical bare-shipped audit_gap
        high bare no_tests
        high bare audit_gap
        high bare no_dod
        high bare-shipped no_dod
        high blocked no_dod
        high noted audit_gap (no threat model)
        high unit-only-shipped no_integration_tests
        medium e2e-only no_unit_tests
        medium no-unit no_unit_tests
    "#]]
    .assert_eq(&told(&gaps));
    assert_eq!(weakest, None, "no capability serves a promise");
}

#[test]
fn the_weakest_promise_is_the_one_of_which_the_smallest_part_is_tested() {
    let of = |tested: bool, promises: &[u8]| {
        let unit: &[&str] = if tested { &["a"] } else { &[] };
        json!({ "name": "N", "system": "s", "maturity": "built", "tests": { "unit": unit }, "promise_alignment": promises })
    };
    let mut product = Product::of(&[("a", of(true, &[1, 1, 2])), ("b", of(false, &[2, 3])), ("c", of(true, &[3])), ("d", of(false, &[]))]);
    let promise = |number, total, tested| Some(Promise { number, capabilities: Tested { total, tested } });
    assert_eq!(product.suggested("mara", 50).1, promise(2, 2, 1), "of equals the first; promise 1 is fully tested");
    product.stores("e", of(false, &[3]));
    assert_eq!(product.suggested("mara", 50).1, promise(3, 3, 1));
    for (id, promises) in [("b", &[2, 3][..]), ("e", &[3])] {
        product.stores(id, of(true, promises));
    }
    assert_eq!(product.suggested("mara", 50).1, None, "all that is promised is tested");
}

#[test]
fn counts_capabilities_in_all_tested_and_audited_with_maturity_and_systems() {
    let mut product = Product::of(&[
        ("a", json!({ "name": "A", "system": "core", "maturity": "shipped", "tests": { "e2e": ["t"] }, "audit": { "status": "audited" } })),
        ("b", json!({ "name": "B", "system": "core", "maturity": "built" })),
        ("c", json!({ "name": "C", "system": "ui", "maturity": "built", "audit": { "status": "waived" } })),
    ]);
    let (totals, systems) = product.coverage("mara");
    assert_eq!((totals.total, totals.tested, totals.audited), (3, 1, 1));
    assert_eq!(totals.maturity, [("built".to_string(), 2), ("shipped".to_string(), 1)].into());
    let counts: Vec<_> = systems.iter().map(|s| (s.system.as_str(), s.total, s.tested, s.audited, s.shipped)).collect();
    assert_eq!(counts, [("core", 2, 1, 1, 1), ("ui", 1, 0, 0, 0)]);
    product.deletes("c");
    product.deletes("c");
    let (totals, systems) = product.coverage("mara");
    assert_eq!((totals.total, systems.len()), (2, 1), "a system goes with its last capability");
    assert_eq!(product.coverage("eve"), (Totals { tenant: "other".into(), ..Totals::default() }, vec![]), "another team's are its own");
}

#[test]
fn an_audit_is_a_version_whose_payload_holds_it_in_place_of_the_one_before() {
    let old = json!({ "status": "gap", "notes": "old", "ticket": 7 });
    let mut product = Product::of(&[("search", json!({ "name": "S", "system": "core", "maturity": "built", "audit": old }))]);
    let audit = |status, auditor: Option<&str>, notes: Option<&str>| AuditFeature {
        id: "search".into(),
        status,
        auditor: auditor.map(Into::into),
        notes: notes.map(Into::into),
    };
    let after = product.tries(audit(AuditStatus::Audited, None, None)).unwrap();
    assert_eq!((after.version, after.actor.as_str()), (2, "mara"));
    let at = "2030-03-17T17:46:41.000Z";
    assert_eq!(after.payload["audit"], json!({ "status": "audited", "last_audited": at, "auditor": "mara", "ticket": 7 }));
    assert_eq!((after.payload["name"].as_str(), product.coverage("mara").0.audited), (Some("S"), 1));
    let after = product.tries(audit(AuditStatus::Gap, Some("ben"), Some("no threat model"))).unwrap();
    assert_eq!(after.payload["audit"]["auditor"], "ben");
    assert!(told(&product.suggested("mara", 9).0).contains("high search audit_gap (no threat model)"));
    assert_eq!(product.coverage("mara").0.audited, 0);
    let versions =
        product.0.ask("9s", person("olga"), EntityHistory { kind: CAPABILITY.into(), id: "search".into(), limit: 9, cursor: None });
    assert_eq!(versions.unwrap().versions.len(), 3);

    let refused = |product: &mut Product, command| product.tries::<AuditFeature>(command).unwrap_err().to_string();
    let other = AuditFeature { id: "none".into(), ..audit(AuditStatus::Gap, None, None) };
    assert_eq!(refused(&mut product, other), "there is no capability `none`");
    assert_eq!(refused(&mut product, audit(AuditStatus::Gap, Some(" "), None)), "`auditor` must not be empty");
    assert_eq!(refused(&mut product, audit(AuditStatus::Gap, None, Some("a\0"))), "`notes` must not hold a NUL");
    product.stores("search", json!({ "name": "S", "x": "y".repeat(STATE_BYTES_MAX - 100) }));
    let told = refused(&mut product, audit(AuditStatus::Gap, None, Some(&"n".repeat(200))));
    assert_eq!(told, "`notes` would make the capability larger than its 16384 bytes");
    product.deletes("search");
    assert_eq!(refused(&mut product, audit(AuditStatus::Gap, None, None)), "there is no capability `search`");
}

#[test]
fn a_search_finds_each_capability_with_a_file_that_holds_the_text_and_shows_those_files() {
    let of = |files: Value| json!({ "name": "N", "system": "core", "maturity": "built", "files": files });
    let mut product = Product::of(&[
        ("a", of(json!(["src/lib.rs", "src/main.rs", "docs/a.md"]))),
        ("b", of(json!(["src/lib.rs.orig"]))),
        ("c", of(json!(["lib/x"]))),
        ("gone", of(json!(["src/lib.rs"]))),
        ("none", json!({ "name": "N" })),
    ]);
    product.deletes("gone");
    let found = product.with_file("mara", "src/", 1);
    let shown: Vec<_> = found.iter().map(|found| (found.id.as_str(), found.files.join(" "))).collect();
    assert_eq!(shown, [("a", "src/lib.rs src/main.rs".into()), ("b", "src/lib.rs.orig".into())]);
    assert_eq!((found[0].name.as_str(), found[0].system.as_str()), ("N", "core"));
    assert_eq!(product.with_file("mara", "SRC/", 9), [], "letters count as they are");
    assert_eq!(product.with_file("eve", "src/", 9), []);
    let told = product.0.ask("9s", person("mara"), FindFeatureFiles { path: " ".into(), limit: 9, cursor: None }).unwrap_err();
    assert_eq!(told.to_string(), "`path` must not be empty");
}

#[test]
fn a_search_that_finds_little_reads_a_bounded_part_and_says_how_to_go_on() {
    let filler = json!({ "name": "N", "files": ["x".repeat(400)] });
    let last = json!({ "name": "N", "files": ["src/lib.rs"] });
    let ids: Vec<String> = (0..20).map(|n| format!("a{n:02}")).collect();
    let mut product = Product::of(&ids.iter().map(|id| (id.as_str(), filler.clone())).collect::<Vec<_>>());
    product.stores("z", last);
    let first = product.0.ask("9s", person("mara"), FindFeatureFiles { path: "lib".into(), limit: 9, cursor: None }).unwrap();
    assert!(first.capabilities.is_empty() && first.next_cursor.is_some(), "{first:?}");
    assert_eq!(product.with_file("mara", "lib", 9).len(), 1);
}

#[test]
fn every_page_of_the_lens_fits_a_reply_however_large_its_capabilities_are() {
    let long = |n: usize| "x".repeat(n);
    let mut product = Product::of(&[]);
    for n in 0..20 {
        let system = format!("{n:02}{}", long(NAME_BYTES_MAX - 2));
        let audit = json!({ "notes": long(4_000) });
        product.stores(&format!("c{n:02}"), json!({ "name": long(3_000), "system": system, "audit": audit, "files": [long(3_000)] }));
    }
    let coverage = product.0.ask("9s", person("mara"), FeatureCoverage { cursor: None }).unwrap();
    assert!(coverage.next_cursor.is_some() && serde_json::to_string(&coverage).unwrap().len() < REPLY_BYTES_DEFAULT);
    assert_eq!(product.coverage("mara").1.len(), 20);
    let suggested = product.0.ask("9s", person("mara"), SuggestFeature { limit: 50, cursor: None }).unwrap();
    assert!(suggested.next_cursor.is_some() && serde_json::to_string(&suggested).unwrap().len() < REPLY_BYTES_MAX);
    assert_eq!(product.suggested("mara", 50).0.len(), 60);
    assert_eq!(product.with_file("mara", "xx", 50).len(), 20);
}

#[test]
fn a_system_whose_name_is_too_long_or_steers_a_screen_is_refused() {
    let mut product = Product::of(&[]);
    let mut refused = |system: &str| {
        let payload = json!({ "name": "N", "system": system });
        product.tries(UpsertEntity { kind: CAPABILITY.into(), id: "a".into(), payload, kind_revision: None }).unwrap_err().to_string()
    };
    assert_eq!(refused(&"x".repeat(NAME_BYTES_MAX + 1)), "`payload.system` is 513 bytes long, and the limit is 512 bytes");
    assert_eq!(refused("a\0b"), "`payload.system` must not hold control characters");
}

// ------------------------------------------------------------------ against a plain count

fn payload() -> impl Strategy<Value = Value> {
    let list = || prop::sample::subsequence(vec!["a", "b"], 0..=2);
    let audit = prop::option::of((prop::option::of(prop::sample::select(vec!["audited", "gap", "waived", "blocked"])), any::<bool>()));
    let files = prop::sample::subsequence(vec!["src/lib.rs", "src/main.rs", "docs/x.md", "lib"], 0..=3);
    (
        prop::sample::select(vec!["core", "ui", "cli"]),
        prop::sample::select(MATURITIES.to_vec()),
        (any::<bool>(), list(), list(), list()),
        audit,
        (list(), prop::collection::vec(1..=10_u8, 0..3), files),
    )
        .prop_map(|(system, maturity, (has_tests, unit, integration, e2e), audit, (dod, promises, files))| {
            let mut payload =
                json!({ "name": "N", "system": system, "maturity": maturity, "dod": dod, "promise_alignment": promises, "files": files });
            if has_tests {
                payload["tests"] = json!({ "unit": unit, "integration": integration, "e2e": e2e });
            }
            if let Some((status, noted)) = audit {
                payload["audit"] = json!({});
                if let Some(status) = status {
                    payload["audit"]["status"] = json!(status);
                }
                if noted {
                    payload["audit"]["notes"] = json!("noted");
                }
            }
            payload
        })
}

#[derive(Clone, Debug)]
enum Change {
    Store(usize, Value),
    Audit(usize, AuditStatus),
    Delete(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let status = prop::sample::select(vec![AuditStatus::Audited, AuditStatus::Gap, AuditStatus::Waived, AuditStatus::Blocked]);
    prop_oneof![
        4 => (0..6_usize, payload()).prop_map(|(id, payload)| Change::Store(id, payload)),
        1 => (0..6_usize, status).prop_map(|(id, status)| Change::Audit(id, status)),
        2 => (0..6_usize).prop_map(Change::Delete),
    ]
}

/// The gap rules as they are documented, over one payload.
fn naive_gaps(payload: &Value) -> Vec<(&'static str, &'static str)> {
    let count = |path: &str| payload.pointer(path).and_then(Value::as_array).map_or(0, Vec::len);
    let (unit, integration, e2e) = (count("/tests/unit"), count("/tests/integration"), count("/tests/e2e"));
    let is_shipped = payload["maturity"] == "shipped";
    let mut gaps = Vec::new();
    if unit + integration + e2e == 0 {
        gaps.push((if is_shipped { "critical" } else { "high" }, "no_tests"));
    } else if unit == 0 {
        gaps.push(("medium", "no_unit_tests"));
    } else if integration == 0 && is_shipped {
        gaps.push(("high", "no_integration_tests"));
    }
    let status = payload.pointer("/audit/status").and_then(Value::as_str);
    if status.is_none() || status == Some("gap") {
        gaps.push((if is_shipped { "critical" } else { "high" }, "audit_gap"));
    }
    if count("/dod") == 0 {
        gaps.push(("high", "no_dod"));
    }
    gaps
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_lens_tells_what_a_count_over_all_live_capabilities_gives(
        changes in prop::collection::vec(change(), 1..40), limit in 1..5_u64, path in prop::sample::select(vec!["src", "lib", ".md", "none"]),
    ) {
        let mut product = Product::of(&[]);
        for change in changes {
            match change {
                Change::Store(id, payload) => product.stores(&format!("c{id}"), payload),
                Change::Delete(id) => product.deletes(&format!("c{id}")),
                Change::Audit(id, status) => {
                    let _ = product.tries(AuditFeature { id: format!("c{id}"), status, auditor: None, notes: None });
                }
            }
        }
        let live = product.live();
        let tested = |payload: &Value| !naive_gaps(payload).iter().any(|(_, gap)| *gap == "no_tests");
        let audited = |payload: &Value| payload["audit"]["status"] == "audited";
        let counted = |takes: &dyn Fn(&Value) -> bool| live.iter().filter(|entity| takes(&entity.payload)).count() as u64;

        let (totals, systems) = product.coverage("mara");
        prop_assert_eq!((totals.total, totals.tested, totals.audited), (live.len() as u64, counted(&tested), counted(&audited)));
        for maturity in MATURITIES {
            prop_assert_eq!(totals.maturity.get(maturity).copied().unwrap_or(0), counted(&|payload| payload["maturity"] == maturity));
        }
        let names: BTreeSet<&str> = live.iter().filter_map(|entity| entity.payload["system"].as_str()).collect();
        let expected: Vec<System> = names.into_iter().map(|system| System {
            tenant: "acme".into(),
            system: system.into(),
            total: counted(&|payload| payload["system"] == system),
            tested: counted(&|payload| payload["system"] == system && tested(payload)),
            audited: counted(&|payload| payload["system"] == system && audited(payload)),
            shipped: counted(&|payload| payload["system"] == system && payload["maturity"] == "shipped"),
        }).collect();
        prop_assert_eq!(systems, expected);

        let mut expected: Vec<(usize, String, &str)> = Vec::new();
        for (rank, severity) in ["critical", "high", "medium", "low"].into_iter().enumerate() {
            for entity in &live {
                let gaps = naive_gaps(&entity.payload).into_iter().filter(|(own, _)| *own == severity);
                expected.extend(gaps.map(|(_, gap)| (rank, entity.id.clone(), gap)));
            }
            let of_severity = expected.iter().filter(|(own, ..)| *own == rank).count() as u64;
            prop_assert_eq!(totals.gaps.get(severity).copied().unwrap_or(0), of_severity);
        }
        let (gaps, weakest) = product.suggested("mara", limit);
        let found: Vec<_> = gaps.iter().map(|gap| (gap.severity as usize - 1, gap.capability_id.clone(), gap.gap_type.word())).collect();
        prop_assert_eq!(found, expected);

        let serves = |payload: &Value, number: u8| payload["promise_alignment"].as_array().is_some_and(|all| all.contains(&json!(number)));
        let mut lowest: Option<(u64, Promise)> = None;
        for number in 1..=10 {
            let capabilities = Tested {
                total: counted(&|payload| serves(payload, number)),
                tested: counted(&|payload| serves(payload, number) && tested(payload)),
            };
            if capabilities.tested < capabilities.total {
                let percent = capabilities.tested * 100 / capabilities.total;
                if lowest.as_ref().is_none_or(|(least, _)| percent < *least) {
                    lowest = Some((percent, Promise { number, capabilities }));
                }
            }
        }
        prop_assert_eq!(weakest, lowest.map(|(_, promise)| promise));

        let expected: Vec<(String, Vec<String>)> = live.iter().filter_map(|entity| {
            let files = entity.payload["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap().to_string());
            let files: Vec<String> = files.filter(|file| file.contains(path)).collect();
            (!files.is_empty()).then(|| (entity.id.clone(), files))
        }).collect();
        let found: Vec<_> = product.with_file("mara", path, limit).into_iter().map(|found| (found.id, found.files)).collect();
        prop_assert_eq!(found, expected);
    }
}

/// The stored forms, which later versions have to read.
#[test]
fn stored_counts_have_this_form() {
    let totals = Totals {
        tenant: "acme".into(),
        total: 1,
        tested: 1,
        audited: 0,
        maturity: [("built".into(), 1)].into(),
        gaps: [("high".into(), 2)].into(),
        promises: [(3, Tested { total: 1, tested: 1 })].into(),
    };
    let system = System { tenant: "acme".into(), system: "core".into(), total: 1, tested: 1, audited: 0, shipped: 0 };
    let row = GapRow { severity: Severity::High, gap_type: GapType::NoDod, capability_id: "c".into() };
    let forms = [codec::encode(&totals), codec::encode(&system), codec::encode(&row)].map(hex::encode);
    assert_eq!(codec::decode::<Totals>(&codec::encode(&totals)).unwrap(), totals);
    expect![[r#"
        a76674656e616e746461636d6565746f74616c016674657374656401676175646974656400686d61747572697479a1656275696c74016467617073a16468696768026870726f6d69736573a103a265746f74616c016674657374656401
        a66674656e616e746461636d656673797374656d64636f726565746f74616c016674657374656401676175646974656400677368697070656400
        a36873657665726974796468696768686761705f74797065666e6f5f646f646d6361706162696c6974795f69646163"#]].assert_eq(&forms.join("\n"));
}
