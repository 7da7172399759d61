//! Examples of acknowledged use.

use super::*;
use crate::Refusal;
use crate::fact::{DeleteFact, StoreFact};
use crate::flag::SetFlag;
use crate::identity::system;
use crate::receipt::{GetReceipt, ReceiptView};
use crate::transcript::{World, person};

fn store(world: &mut World, who: &str, entity: &str, private: bool) -> String {
    let fact = StoreFact {
        entity: entity.into(),
        key: "k".into(),
        value: "v".into(),
        source_receipt: None,
        confidence: Confidence::FULL,
        private,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    };
    world.call("0s", person(who), None, fact).unwrap().fact_id
}

fn tell(turn_id: &str, fact_ids: &[&str]) -> AcknowledgeUse {
    let fact_ids = fact_ids.iter().map(|id| id.to_string()).collect();
    let (retrieved_chunk_ids, intent) = (Vec::new(), UseIntent::Answer);
    AcknowledgeUse { turn_id: turn_id.into(), fact_ids, intent, retrieved_chunk_ids, confidence: None, note: None }
}

fn acknowledge(world: &mut World, time: &str, who: &str, command: AcknowledgeUse) -> UseAcknowledged {
    world.call(time, person(who), None, command).unwrap()
}

fn receipt(world: &mut World, id: &str) -> (ReceiptView, serde_json::Value) {
    let receipt = world.ask("9d", person("jon"), GetReceipt { receipt_id: id.into(), tenant_id: None }).unwrap();
    let body = receipt::read_body(&receipt.body).unwrap();
    (receipt, body)
}

#[test]
fn what_was_consulted_is_told_with_its_age_and_proved_by_a_receipt() {
    let mut world = World::new();
    let (api, db) = (store(&mut world, "jon", "svc:api", false), store(&mut world, "jon", "svc:db", false));
    let command = AcknowledgeUse {
        intent: UseIntent::Decision,
        retrieved_chunk_ids: vec!["chunk-1".into()],
        confidence: Some(Confidence(500_000)),
        note: Some("why".into()),
        ..tell("t1", &[&db, &api, &db])
    };
    let told = acknowledge(&mut world, "2d", "mara", command);
    let ages: Vec<(&str, u64)> = told.used.iter().map(|fact| (fact.entity.as_str(), fact.age_ms / 86_400_000)).collect();
    assert_eq!((ages, told.used_total), (vec![("svc:db", 2), ("svc:api", 2)], 2), "each once, in the order told");
    let (receipt, body) = receipt(&mut world, &told.receipt_id);
    assert_eq!(receipt.signer_passport.as_deref(), Some("mara"));
    let names: Vec<&String> = body.as_object().unwrap().keys().collect();
    let order = "schema kind receipt_id tenant_id turn_id actor_passport intent created_at entries retrieved_chunk_ids confidence note";
    assert_eq!(names, order.split(' ').collect::<Vec<_>>());
    assert_eq!((&body["entries"][1]["fact_id"], &body["intent"], &body["confidence"]), (&json!(api), &json!("decision"), &json!(0.5)));
    assert_eq!(body["retrieved_chunk_ids"], json!(["chunk-1"]));
}

#[test]
fn private_facts_and_facts_of_operations_are_stripped_and_counted() {
    let mut world = World::new();
    let own = store(&mut world, "mara", "notes", true);
    let others = store(&mut world, "jon", "notes", true);
    let (ops, pattern) = (store(&mut world, "jon", "__ops::x", false), store(&mut world, "jon", "__bootstrap__::pattern:x", false));
    let gone = store(&mut world, "jon", "gone", false);
    world.call("1s", person("jon"), None, DeleteFact { fact_id: gone.clone() }).unwrap();
    let foreign = store(&mut world, "eve", "svc:api", false);
    let told = acknowledge(&mut world, "2s", "mara", tell("t", &[&own, &others, &ops, &pattern, &gone, &foreign, "f_none"]));
    assert_eq!((told.used, told.redacted, told.not_found), (vec![], 3, 4));
    let (_, body) = receipt(&mut world, &told.receipt_id);
    assert_eq!(body["entries"], json!([]), "the receipt is the tenant's");
}

#[test]
fn a_turn_told_again_has_one_receipt_and_told_otherwise_a_second_that_names_the_first() {
    let mut world = World::new();
    let api = store(&mut world, "jon", "svc:api", false);
    let first = acknowledge(&mut world, "1s", "mara", tell("t", &[&api]));
    assert_eq!(acknowledge(&mut world, "2s", "mara", tell("t", &[&api])).receipt_id, first.receipt_id);
    let other = acknowledge(&mut world, "3s", "mara", AcknowledgeUse { note: Some("n".into()), ..tell("t", &[&api]) });
    assert_ne!(other.receipt_id, first.receipt_id);
    assert_eq!(receipt(&mut world, &other.receipt_id).1["replaces_receipt_id"], json!(first.receipt_id));
    let jons = acknowledge(&mut world, "4s", "jon", tell("t", &[&api]));
    assert_eq!(receipt(&mut world, &jons.receipt_id).1["replaces_receipt_id"], serde_json::Value::Null, "a turn of another agent");
}

#[test]
fn an_implicit_use_is_told_with_little_confidence() {
    let mut world = World::new();
    let implicit = AcknowledgeUse { intent: UseIntent::Implicit, ..tell("t", &[]) };
    let told = acknowledge(&mut world, "1s", "mara", implicit.clone());
    assert_eq!(receipt(&mut world, &told.receipt_id).1["confidence"], json!(0.3));
    let sure = acknowledge(&mut world, "2s", "mara", AcknowledgeUse { confidence: Some(Confidence::FULL), ..implicit });
    assert_eq!(receipt(&mut world, &sure.receipt_id).1["confidence"], json!(1.0));
}

#[test]
fn the_receipt_names_every_fact_also_when_the_reply_has_no_room_for_all() {
    let mut world = World::new();
    let ids: Vec<String> = (0..60).map(|n| store(&mut world, "jon", &format!("{n}{}", "e".repeat(500)), false)).collect();
    let told = acknowledge(&mut world, "1s", "mara", tell("t", &ids.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(told.used_total, 60);
    assert!((20..60).contains(&told.used.len()), "{}", told.used.len());
    assert_eq!(receipt(&mut world, &told.receipt_id).1["entries"].as_array().unwrap().len(), 60);
}

#[test]
fn what_can_not_be_told_is_refused_and_leaves_no_receipt() {
    let mut world = World::new();
    let bad = [
        tell(" ", &[]),
        tell("t", &["f"; 101]),
        tell("t", &["a\nb"]),
        AcknowledgeUse { retrieved_chunk_ids: vec!["x".repeat(513)], ..tell("t", &[]) },
        AcknowledgeUse { note: Some("x".repeat(5_000)), ..tell("t", &[]) },
        AcknowledgeUse { confidence: Some(Confidence(1_000_001)), ..tell("t", &[]) },
    ];
    let told: Vec<String> =
        bad.into_iter().map(|command| world.call("1s", person("mara"), None, command).unwrap_err().to_string()).collect();
    expect_test::expect![[r#"
        `turn_id` must not be empty
        `fact_ids` is 101 ids long, and the limit is 100 ids
        `fact_ids` must not hold control characters
        `retrieved_chunk_ids` is 513 bytes long, and the limit is 512 bytes
        `note` is 5000 bytes long, and the limit is 4096 bytes
        `confidence` must be from 0 to 1"#]]
    .assert_eq(&told.join("\n"));
    let off = SetFlag { name: flag::MEMORY_ACK.name.into(), value: "off".into() };
    world.call("2s", system(), None, off).unwrap();
    let refused = world.call("3s", person("mara"), None, tell("t", &[])).unwrap_err();
    assert!(matches!(refused, Refusal::FeatureOff { .. }), "{refused}");
}

/// The stored form, which later versions have to read.
#[test]
fn a_stored_turn_has_this_form() {
    let turn = TurnUse {
        tenant: "acme".into(),
        passport: "mara".into(),
        turn_id: "t".into(),
        receipt_id: "mu_1".into(),
        told_hash: "h".into(),
        revision: Revision(1),
    };
    expect_test::expect!["a66674656e616e746461636d656870617373706f7274646d617261677475726e5f696461746a726563656970745f6964646d755f3169746f6c645f686173686168687265766973696f6e01"].assert_eq(&hex::encode(codec::encode(&turn)));
}
