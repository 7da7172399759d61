//! Examples of gates.

use serde_json::json;

use super::*;
use crate::fact::{FactHistory, FactRow, QueryFacts};
use crate::stamp::UnixMs;
use crate::transcript::{WALL, World, person};

fn gate(milestone: &str, status: GateStatus) -> PassGate {
    PassGate {
        slug: "search".into(),
        milestone: milestone.into(),
        status,
        commit_sha: "93b41a7".into(),
        tests_passing: None,
        artifacts: Vec::new(),
        notes: None,
        token_budget: 500,
    }
}

fn facts(world: &mut World) -> Vec<FactRow> {
    let query = QueryFacts {
        query: None,
        entity: Some("execplan:search".into()),
        entity_prefix: None,
        key: None,
        top_k: 9,
        token_budget: None,
        include_superseded: false,
        as_of: None,
        min_effective_confidence: None,
        cursor: None,
        hits: Default::default(),
        with_pointers: false,
        with_envelope: false,
    };
    world.ask("9s", person("jon"), query).unwrap().rows
}

#[test]
fn the_same_gate_always_lands_on_the_same_pair() {
    let mut world = World::new();
    let first = world.call("1s", person("mara"), None, gate("M2", GateStatus::Failed)).unwrap();
    let second = world.call("2s", person("jon"), None, gate("gate:M2", GateStatus::Passed)).unwrap();
    assert_eq!((first.entity.as_str(), first.key.as_str()), ("execplan:search", "gate:M2"));
    assert_eq!((&second.entity, &second.key), (&first.entity, &first.key));
    let rows = facts(&mut world);
    assert_eq!((rows.len(), rows[0].version, &rows[0].fact_id), (1, 2, &second.fact_id));
    assert_eq!(rows[0].horizon_class, HorizonClass::Stable);
    let history = FactHistory { entity: first.entity, key: first.key, limit: 9, cursor: None };
    assert_eq!(world.ask("3s", person("mara"), history).unwrap().versions.len(), 2);
}

#[test]
fn a_gate_tells_whether_its_milestone_is_complete_and_who_said_so_when() {
    let told = |status| {
        let mut world = World::new();
        let full =
            PassGate { tests_passing: Some(true), artifacts: vec!["ci/42".into()], notes: Some("all green".into()), ..gate("M1", status) };
        world.call("1s", person("mara"), None, full).unwrap();
        serde_json::from_str::<serde_json::Value>(&facts(&mut world)[0].value).unwrap()
    };
    assert_eq!(
        told(GateStatus::Passed),
        json!({
            "status": "passed", "complete": true, "date": UnixMs(WALL + 1_000).to_rfc3339(), "commit_sha": "93b41a7",
            "tests_passing": true, "artifacts": ["ci/42"], "notes": "all green", "actor": "mara", "token_budget": 500,
        })
    );
    let complete = [GateStatus::Failed, GateStatus::Blocked, GateStatus::Skipped].map(|status| told(status)["complete"].clone());
    assert_eq!(complete, [json!(false), json!(false), json!(true)]);
}

#[test]
fn what_can_not_be_a_gate_is_refused() {
    let mut world = World::new();
    let bad = [
        PassGate { slug: " ".into(), ..gate("M1", GateStatus::Passed) },
        PassGate { slug: "execplan:search".into(), ..gate("M1", GateStatus::Passed) },
        PassGate { slug: "x".repeat(NAME_BYTES_MAX), ..gate("M1", GateStatus::Passed) },
        gate("gate:", GateStatus::Passed),
        PassGate { commit_sha: "a\nb".into(), ..gate("M1", GateStatus::Passed) },
        PassGate { artifacts: vec!["a".into(); 101], ..gate("M1", GateStatus::Passed) },
        PassGate { artifacts: vec!["a".repeat(4_000); 5], ..gate("M1", GateStatus::Passed) },
        PassGate { notes: Some("a\0".into()), ..gate("M1", GateStatus::Passed) },
        PassGate { token_budget: 0, ..gate("M1", GateStatus::Passed) },
    ];
    let told: Vec<String> =
        bad.into_iter().map(|command| world.call("1s", person("mara"), None, command).unwrap_err().to_string()).collect();
    expect_test::expect![[r#"
        `slug` must not be empty
        `slug` is the plan's name without `execplan:`
        `slug` is 512 bytes long, and the limit is 503 bytes
        `milestone` must not be empty
        `commit_sha` must not hold control characters
        `artifacts` is 101 entries long, and the limit is 100 entries
        `artifacts` is 20155 bytes long, and the limit is 16384 bytes
        `notes` must not hold a NUL
        `token_budget` must be at least 1"#]]
    .assert_eq(&told.join("\n"));
    assert_eq!(facts(&mut world), []);
}
