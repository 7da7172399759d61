//! Examples of session plans.

use super::*;
use crate::flag::SetFlag;
use crate::identity::{PutToken, system, token_hash};
use crate::receipt::GetReceipt;
use crate::stamp::Principal;
use crate::transcript::{World, person};

fn world() -> World {
    let mut world = World::new();
    for name in ["mara", "jon", "eve"] {
        let Principal { tenant, passport, tier, scopes } = person(name);
        let put = PutToken { hash: token_hash(name), tenant, passport, tier, scopes, expires_at: None };
        world.call("0s", system(), None, put).unwrap();
    }
    world
}

fn plan(intent: Option<&str>) -> OpenPlan {
    OpenPlan { intent: intent.map(Into::into), graph_hash: "0a".repeat(32), public_key: "0b".repeat(32) }
}

fn open(world: &mut World, time: &str, who: &str, intent: Option<&str>) -> PlanOpened {
    world.call(time, person(who), None, plan(intent)).unwrap()
}

fn intent(world: &mut World, time: &str, who: &str) -> Option<String> {
    world.ask(time, person(who), GetIntent {}).unwrap().intent
}

#[test]
fn an_intent_is_kept_per_passport_for_an_hour_and_an_empty_one_takes_it_back() {
    let mut world = world();
    open(&mut world, "1s", "mara", Some(" audit_review "));
    assert_eq!(intent(&mut world, "2s", "mara").as_deref(), Some("audit_review"));
    assert_eq!((intent(&mut world, "2s", "jon"), intent(&mut world, "2s", "eve")), (None, None));
    let kept = open(&mut world, "1800s", "mara", None);
    assert_eq!(kept.intent.as_deref(), Some("audit_review"), "a plan without an intent leaves the one before");
    assert_eq!(intent(&mut world, "3600s", "mara").as_deref(), Some("audit_review"));
    assert_eq!(intent(&mut world, "3601s", "mara"), None, "counted from when it was declared");
    open(&mut world, "3602s", "mara", Some("x"));
    open(&mut world, "3603s", "mara", Some(""));
    assert_eq!(intent(&mut world, "3603s", "mara"), None);
}

#[test]
fn the_passport_is_issued_before_the_plan_and_only_once() {
    let mut world = world();
    let first = open(&mut world, "1s", "mara", None).passport.unwrap();
    let second = open(&mut world, "2s", "mara", None).passport.unwrap();
    assert_eq!(first, second);
    assert!(first.principal_id.ends_with(":mara") && first.receipts == 0, "opening sessions earns nothing: {first:?}");
}

#[test]
fn no_passport_is_issued_with_the_flag_off_or_for_a_caller_without_a_mapping() {
    let mut world = world();
    let off = SetFlag { name: flag::AGENT_PASSPORTS.name.into(), value: "off".into() };
    assert_eq!(open(&mut world, "1s", "dana", None).passport, None, "she has no passport that could be issued");
    world.call("2s", system(), None, off).unwrap();
    assert_eq!(open(&mut world, "3s", "mara", None).passport, None);
}

#[test]
fn a_plan_is_a_receipt_that_continues_the_callers_plan_before() {
    let mut world = world();
    let first = open(&mut world, "1s", "mara", None);
    open(&mut world, "2s", "jon", None);
    let second = open(&mut world, "3s", "mara", Some("build"));
    assert_eq!(second.chain, [EarlierPlan { plan_id: first.plan_id.clone(), hash: first.hash }]);
    assert_ne!(second.plan_id, second.session_id);
    assert!([&second.plan_id, &second.session_id].iter().all(|id| id.len() == 32 && hex::decode(id).is_ok()));
    let receipt = world.ask("4s", person("jon"), GetReceipt { receipt_id: second.plan_id.clone(), tenant_id: None }).unwrap();
    assert_eq!((&receipt.body_hash, &receipt.signer_passport), (&second.hash, &None));
    let body: serde_json::Value = receipt::read_body(&receipt.body).unwrap();
    assert_eq!((&body["parent_plan_id"], &body["intent"]), (&json!(first.plan_id), &json!("build")));
    for n in 0..2 * PLAN_CHAIN_MAX {
        open(&mut world, &format!("{}s", 5 + n), "mara", None);
    }
    assert_eq!(open(&mut world, "99s", "mara", None).chain.len(), PLAN_CHAIN_MAX);
}

#[test]
fn what_can_not_be_a_plan_is_refused_and_leaves_nothing() {
    let mut world = world();
    let long = plan(Some(&"x".repeat(513)));
    let odd = plan(Some("a\nb"));
    let hash = OpenPlan { graph_hash: "0a".into(), ..plan(None) };
    for (command, field) in [(long, "intent"), (odd, "intent"), (hash, "graph_hash")] {
        let told = world.call("1s", person("mara"), None, command).unwrap_err().to_string();
        assert!(told.starts_with(&format!("`{field}`")), "{told}");
    }
    assert_eq!(open(&mut world, "2s", "mara", None).chain, []);
}

/// The stored form, which later versions have to read.
#[test]
fn a_stored_plan_has_this_form() {
    let plan = SessionPlan {
        tenant: "acme".into(),
        passport: "mara".into(),
        plan_id: "p".into(),
        session_id: "s".into(),
        hash: "h".into(),
        intent: None,
        intent_deadline: LeaseTime(1),
        chain: vec![EarlierPlan { plan_id: "q".into(), hash: "i".into() }],
        revision: Revision(2),
    };
    let hex = hex::encode(crate::codec::encode(&plan));
    expect_test::expect!["a96674656e616e746461636d656870617373706f7274646d61726167706c616e5f696461706a73657373696f6e5f696461736468617368616866696e74656e74f66f696e74656e745f646561646c696e650165636861696e81a267706c616e5f6964617164686173686169687265766973696f6e02"].assert_eq(&hex);
}
