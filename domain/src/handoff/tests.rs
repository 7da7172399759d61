//! Transcripts of hand-offs.

use super::*;
use crate::event::{Watched, watch};
use crate::fact::{Confidence, DeleteFact, StoreFact};
use crate::flag::SetFlag;
use crate::identity::{PutToken, system, token_hash};
use crate::observation::{Body, ListObservations, ObservationView};
use crate::passport::RevokePassport;
use crate::punchcard::{PunchIn, PunchOut};
use crate::receipt::GetReceipt;
use crate::stamp::Principal;
use crate::transcript::{World, person};

fn world() -> World {
    let mut world = World::new();
    for name in ["mara", "jon", "ben", "olga", "eve"] {
        let Principal { tenant, passport, tier, scopes } = person(name);
        let put = PutToken { hash: token_hash(name), tenant, passport, tier, scopes, expires_at: None };
        world.call("0s", system(), None, put).unwrap();
    }
    world
}

fn save(world: &mut World, who: &str, state: serde_json::Value) {
    let save = SaveSession { session_id: "build".into(), state, ttl_ms: None, expected_revision: None };
    world.call("0s", person(who), None, save).unwrap();
}

fn store(world: &mut World, entity: &str, key: &str, value: &str, private: bool) -> String {
    let fact = StoreFact {
        entity: entity.into(),
        key: key.into(),
        value: value.into(),
        source_receipt: None,
        confidence: Confidence::FULL,
        private,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    };
    world.call("0s", person("mara"), None, fact).unwrap().fact_id
}

fn create(world: &mut World, target: Option<&str>) -> Result<HandoffCreated, Refusal> {
    let command = CreateHandoff {
        session_id: "build".into(),
        include_facts: true,
        target: target.map(Into::into),
        message: Some("mind the tests".into()),
        task_record: Some(TaskRecord { requester: Some("olga".into()), boundaries: Some(vec!["no push".into()]), ..TaskRecord::default() }),
        punchcards: Vec::new(),
    };
    world.call("1s", person("mara"), None, command)
}

fn accept(world: &mut World, time: &str, who: &str, payload: &str) -> Result<HandoffAccepted, Refusal> {
    world.call(time, person(who), None, AcceptHandoff { payload: payload.into() })
}

fn session(world: &mut World, who: &str) -> Option<serde_json::Value> {
    world.ask("2s", person(who), GetSession { session_id: "build".into() }).ok().map(|session| session.state)
}

#[test]
fn a_session_goes_over_with_its_facts_and_never_a_private_one() {
    let mut world = world();
    let named = store(&mut world, "svc", "owner", "platform", false);
    let private = store(&mut world, "svc", "password", "hunter2", true);
    store(&mut world, "build", "status", "red", false);
    store(&mut world, "build", "diary", "hunter3", true);
    let work = format!("w_{}", "0a".repeat(16));
    let state = json!({ "facts": [named, private, named], "work": work });
    save(&mut world, "mara", state.clone());
    let made = create(&mut world, Some("jon")).unwrap();
    assert_eq!((made.facts, made.more_facts), (2, false));
    assert!(!made.payload.contains("hunter"), "{}", made.payload);
    let done = accept(&mut world, "2s", "jon", &made.payload).unwrap();
    assert_eq!((done.facts_loaded, done.facts_changed, done.source.as_str()), (2, 0, "mara"));
    assert_eq!((done.work_ids, done.message.as_deref()), (vec![work], Some("mind the tests")));
    assert_eq!(done.task_record.unwrap().boundaries, Some(vec!["no push".to_string()]));
    assert_eq!(session(&mut world, "jon"), Some(state));
    for act in ["create", "accept"] {
        let receipt_id = format!("rcx-handoff:{act}:{}", made.handoff_id);
        assert!(world.ask("3s", person("ben"), GetReceipt { receipt_id, tenant_id: None }).unwrap().faults.is_empty());
    }
    let Watched::Events(events) = watch(&world.state, "acme", Revision(0), 100).unwrap() else { panic!() };
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).filter(|kind| kind.starts_with("handoff")).collect();
    assert_eq!(kinds, ["handoff.created", "handoff.accepted"]);
}

#[test]
fn a_hand_off_is_observed_in_its_session_only_with_the_flag_on() {
    let mut world = world();
    save(&mut world, "mara", json!({ "n": 1 }));
    let observed = |world: &mut World| {
        let list = ListObservations { session_id: "build".into(), since: None, provider: None, limit: 10, cursor: None };
        let found = world.ask("9s", person("ben"), list).unwrap().observations;
        let told = |row: ObservationView| serde_json::from_str::<Body>(&row.body).unwrap();
        found.into_iter().map(told).map(|body| (body.kind, body.principal, body.payload)).collect::<Vec<_>>()
    };
    let made = create(&mut world, None).unwrap();
    accept(&mut world, "2s", "jon", &made.payload).unwrap();
    assert_eq!(observed(&mut world), [], "off by default");

    let set = |name: &str, value: &str| SetFlag { name: name.into(), value: value.into() };
    world.call("3s", system(), None, set("CORECRUXD_HANDOFF_OBSERVATIONS", "on")).unwrap();
    let made = create(&mut world, Some("ben")).unwrap();
    accept(&mut world, "4s", "ben", &made.payload).unwrap();
    let payload =
        json!({ "handoff_id": made.handoff_id, "source_agent": "mara", "target_agent": "ben", "content_hash": made.content_hash });
    let of = |kind: &str, who: &str| (kind.to_string(), who.to_string(), payload.clone());
    assert_eq!(observed(&mut world), [of("handoff_created", "mara"), of("handoff_accepted", "ben")]);

    // Where nothing is observed, hand-offs go on.
    world.call("5s", system(), None, set("CORECRUXD_OBSERVE", "off")).unwrap();
    assert!(create(&mut world, None).is_ok());
}

#[test]
fn a_package_is_accepted_once_and_by_its_target_alone() {
    let mut world = world();
    save(&mut world, "mara", json!({ "n": 1 }));
    let made = create(&mut world, Some("jon")).unwrap();
    assert_eq!(accept(&mut world, "2s", "ben", &made.payload), Err(Refusal::Denied { problem: "this hand-off is for `jon` alone".into() }));
    assert_eq!(accept(&mut world, "2s", "mara", &made.payload).unwrap_err().code(), "-32003", "nor by its sender");
    assert_eq!(accept(&mut world, "2s", "eve", &made.payload).unwrap_err().code(), "NOT_FOUND", "of another tenant");
    accept(&mut world, "2s", "jon", &made.payload).unwrap();
    let spent = accept(&mut world, "3s", "jon", &made.payload).unwrap_err();
    assert_eq!((spent.code(), spent.to_string().ends_with("was accepted by `jon`")), ("SPENT", true));
    let open = create(&mut world, None).unwrap();
    assert!(accept(&mut world, "3s", "ben", &open.payload).is_ok(), "without a target, anybody of the tenant");
    assert_eq!(accept(&mut world, "3s", "jon", &open.payload).unwrap_err().code(), "SPENT");
}

#[test]
fn a_package_expires_and_is_told_so_before_and_after_it_is_swept() {
    let mut world = world();
    save(&mut world, "mara", json!({ "n": 1 }));
    let made = create(&mut world, None).unwrap();
    let other = made.payload.replace(&made.handoff_id, "ho_nowhere");
    assert_eq!(accept(&mut world, "1s", "jon", &other).unwrap_err().code(), "NOT_FOUND");
    let end = format!("{}ms", HANDOFF_TTL_MS + 1_000);
    let expired = Refusal::Spent { what: "hand-off".into(), id: made.handoff_id.clone(), found: "has expired".into() };
    assert_eq!(accept(&mut world, &end, "jon", &made.payload), Err(expired.clone()));
    world.tick("8d");
    let gone: Option<Handoff> = world.state.get("acme", &Key::new().text(&made.handoff_id)).unwrap();
    assert_eq!(gone, None);
    assert_eq!(accept(&mut world, "8d", "jon", &made.payload), Err(expired));
}

#[test]
fn a_package_that_was_changed_or_is_none_is_refused() {
    let mut world = world();
    save(&mut world, "mara", json!({ "n": 1 }));
    let made = create(&mut world, None).unwrap();
    let changed = made.payload.replace(r#"{"n":1}"#, r#"{"n":2}"#);
    assert_ne!(changed, made.payload);
    for bad in [changed.as_str(), "{}", "", &"x".repeat(HANDOFF_PAYLOAD_BYTES_MAX + 1)] {
        assert_eq!(accept(&mut world, "2s", "jon", bad).unwrap_err().code(), "-32602");
    }
    assert_eq!(session(&mut world, "jon"), None);
}

#[test]
fn accepting_overwrites_no_session_of_the_receiver() {
    let mut world = world();
    save(&mut world, "mara", json!({ "n": 1 }));
    save(&mut world, "jon", json!({ "own": true }));
    let made = create(&mut world, None).unwrap();
    assert_eq!(accept(&mut world, "2s", "jon", &made.payload).unwrap_err().code(), "-32004");
    assert_eq!(session(&mut world, "jon"), Some(json!({ "own": true })));
    assert!(accept(&mut world, "2s", "mara", &made.payload).is_ok(), "who has the same one takes it up again");
}

#[test]
fn facts_that_changed_since_are_counted_and_old_values_are_not_put_back() {
    let mut world = world();
    let first = store(&mut world, "build", "a", "1", false);
    store(&mut world, "build", "b", "1", false);
    store(&mut world, "build", "c", "1", false);
    save(&mut world, "mara", json!({}));
    let made = create(&mut world, None).unwrap();
    world.call("2s", person("mara"), None, DeleteFact { fact_id: first }).unwrap();
    let newer = store(&mut world, "build", "b", "2", false);
    let done = accept(&mut world, "2s", "jon", &made.payload).unwrap();
    assert_eq!((done.facts_loaded, done.facts_changed), (1, 2));
    assert!(fact::stands(&world.state, &person("jon"), &newer).unwrap());
}

#[test]
fn revoked_agents_neither_give_nor_get() {
    let mut world = world();
    save(&mut world, "mara", json!({ "n": 1 }));
    let made = create(&mut world, None).unwrap();
    let revoke = |target: &str| RevokePassport { target: Some(target.into()), reason: None };
    world.call("2s", person("olga"), None, revoke("ben")).unwrap();
    assert_eq!(create(&mut world, Some("ben")).unwrap_err().code(), "-32602");
    assert_eq!(create(&mut world, Some("nobody")).unwrap_err().code(), "NOT_FOUND");
    assert_eq!(create(&mut world, Some("eve")).unwrap_err().code(), "NOT_FOUND");
    world.call("2s", person("olga"), None, revoke("mara")).unwrap();
    assert_eq!(accept(&mut world, "3s", "jon", &made.payload).unwrap_err().code(), "REVOKED");
}

#[test]
fn a_package_is_bounded_and_says_when_facts_are_left_out() {
    let mut world = world();
    save(&mut world, "mara", json!({}));
    for n in 0..3 {
        store(&mut world, "build", &format!("k{n}"), &"x".repeat(10_000), false);
    }
    let made = create(&mut world, None).unwrap();
    assert_eq!((made.facts, made.more_facts), (2, true));
    assert!(made.payload.len() <= HANDOFF_PAYLOAD_BYTES_MAX);
    let mut long = |task_record: TaskRecord, message: &str| {
        let command = CreateHandoff {
            session_id: "build".into(),
            include_facts: false,
            target: None,
            message: Some(message.into()),
            task_record: Some(task_record),
            punchcards: Vec::new(),
        };
        world.call("1s", person("mara"), None, command).map_err(|refusal| refusal.to_string())
    };
    let many = TaskRecord { sources: Some(vec!["x".repeat(4_000); 8]), ..TaskRecord::default() };
    assert!(long(many, "m").unwrap_err().starts_with("`the package without facts` is"));
    let more = TaskRecord { sources: Some(vec![String::new(); HANDOFF_ITEMS_MAX + 1]), ..TaskRecord::default() };
    assert!(long(more, "m").unwrap_err().starts_with("`task_record.sources` is"));
    assert!(long(TaskRecord::default(), "a\0b").unwrap_err().starts_with("`message` must not hold"));
    assert!(
        world
            .call(
                "1s",
                person("jon"),
                None,
                CreateHandoff {
                    session_id: "build".into(),
                    include_facts: false,
                    target: None,
                    message: None,
                    task_record: None,
                    punchcards: Vec::new()
                }
            )
            .is_err()
    );
}

#[test]
fn cards_go_over_with_the_package_under_new_tokens_and_what_was_lost_is_told() {
    let mut world = world();
    save(&mut world, "mara", json!({}));
    for resource in ["file://a", "tree://docs"] {
        let take = PunchIn { resource: resource.into(), holder_passport: "mara".into(), ..PunchIn::default() };
        world.call("0s", person("mara"), None, take).unwrap();
    }
    let create = |punchcards: &[&str]| CreateHandoff {
        session_id: "build".into(),
        include_facts: false,
        target: Some("jon".into()),
        message: None,
        task_record: None,
        punchcards: punchcards.iter().map(ToString::to_string).collect(),
    };
    let refused = world.call("1s", person("mara"), None, create(&["file://other"])).unwrap_err();
    assert_eq!(refused.to_string(), "there is no punchcard `file://other`");
    let made = world.call("1s", person("mara"), None, create(&["file://./a", "file://a", "tree://docs/"])).unwrap();
    let out = PunchOut { resource: "tree://docs".into(), holder_passport: "mara".into(), tenant_id: None, release_commit_sha: None };
    world.call("2s", person("mara"), None, out).unwrap();
    let accepted = accept(&mut world, "3s", "jon", &made.payload).unwrap();
    let over: Vec<_> = accepted.punchcards.iter().map(|card| (card.resource.as_str(), card.holder.as_str())).collect();
    assert_eq!((over, accepted.punchcards_lost), (vec![("file://a", "jon")], vec!["tree://docs".to_string()]));
    let late = PunchOut { resource: "file://a".into(), holder_passport: "mara".into(), tenant_id: None, release_commit_sha: None };
    let refused = world.call("4s", person("mara"), None, late).unwrap_err();
    assert!(matches!(refused, Refusal::StaleToken { .. }), "{refused}");
}
