//! Transcripts of passports.

use serde_json::json;

use super::*;
use crate::approval::{Approval, DecideApproval, Decision};
use crate::event::{Watched, watch};
use crate::fact::{Confidence, FactStored, QueryFacts, StoreFact};
use crate::flag::SetFlag;
use crate::identity::{GetPassport, PutToken, ResolveToken, system, token_hash};
use crate::limit::{ADOPTED_FACTS_MAX, DEVICES_MAX, MERGED_MAX, REVOKED_PER_ENTRY};
use crate::punchcard::{ForceRelease, ListPunchcards, PunchIn, PunchOut, PunchedIn, Status};
use crate::receipt::GetReceipt;
use crate::session::{DeleteSession, GetSession, SaveSession};
use crate::stamp::{Principal, Revision, Tier};
use crate::transcript::{World, person};

/// A world in which these people have passports.
fn world(people: &[&str]) -> World {
    let mut world = World::new();
    for name in people {
        let Principal { tenant, passport, tier, scopes } = person(name);
        let put = PutToken { hash: token_hash(name), tenant, passport, tier, scopes, expires_at: None };
        world.call("0s", system(), None, put).unwrap();
    }
    world
}

fn key(n: u8) -> String {
    hex::encode([n; 32])
}

fn issue(world: &mut World, who: &str, sponsor: Option<&str>) -> Result<PassportIssued, Refusal> {
    world.call("0s", person(who), None, IssuePassport { sponsor: sponsor.map(Into::into), public_key: key(1) })
}

fn revoke(world: &mut World, who: &str, target: &str) -> Result<PassportRevoked, Refusal> {
    world.call("1s", person(who), None, RevokePassport { target: Some(target.into()), reason: Some("lost laptop".into()) })
}

fn punch(world: &mut World, time: &str, who: &str, resource: &str, wait_ms: Option<u64>) -> Result<PunchedIn, Refusal> {
    let (resource, holder_passport) = (resource.into(), who.into());
    let ask = PunchIn {
        resource,
        holder_passport,
        tenant_id: None,
        mode: None,
        reason: None,
        ttl_ms: Some(600_000),
        expires_at: None,
        wait_ms,
        ..PunchIn::default()
    };
    world.call(time, person(who), None, ask)
}

fn held(world: &mut World, who: &str) -> Vec<Revision> {
    let list = ListPunchcards {
        resource: None,
        holder_passport: Some(who.into()),
        tenant_id: None,
        status: Some(Status::Held),
        limit: 100,
        cursor: None,
    };
    world.ask("1s", person("olga"), list).unwrap().punchcards.into_iter().map(|card| card.fencing_token).collect()
}

fn store(world: &mut World, who: &str, key: &str, value: &str) -> FactStored {
    let fact = StoreFact {
        entity: "notes".into(),
        key: key.into(),
        value: value.into(),
        source_receipt: None,
        confidence: Confidence::FULL,
        private: true,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    };
    world.call("2s", person(who), None, fact).unwrap()
}

/// What stands in somebody's private memory.
fn memory(world: &mut World, who: &str) -> Vec<String> {
    let query = QueryFacts {
        query: None,
        entity: Some("notes".into()),
        entity_prefix: None,
        key: None,
        top_k: 50,
        token_budget: None,
        include_superseded: false,
        as_of: None,
        min_effective_confidence: None,
        cursor: None,
        hits: Default::default(),
        with_pointers: false,
        with_envelope: false,
    };
    let mut rows: Vec<String> =
        world.ask("3s", person(who), query).unwrap().rows.into_iter().map(|row| format!("{}={}", row.key, row.value)).collect();
    rows.sort();
    rows
}

fn events(world: &World) -> Vec<String> {
    let Watched::Events(events) = watch(&world.state, "acme", Revision(0), 1_000).unwrap() else { panic!("compacted") };
    events.into_iter().map(|event| event.kind).collect()
}

fn receipts(world: &World, who: &str) -> u64 {
    Standing::of(&world.state, "acme", who).unwrap().receipts
}

// ------------------------------------------------------------------ issue, show

#[test]
fn a_passport_is_issued_once_and_answers_the_same_again() {
    let mut world = world(&["mara", "olga"]);
    let first = issue(&mut world, "mara", Some("olga")).unwrap();
    assert!(first.principal_id.starts_with("ce:") && first.principal_id.ends_with(":mara"), "{}", first.principal_id);
    assert_eq!((first.reputation, first.receipts, first.sponsor.as_deref()), (Reputation::Unverified, 0, Some("olga")));
    assert_eq!(issue(&mut world, "mara", None), Ok(first.clone()));
    assert_eq!(issue(&mut world, "mara", Some("olga")), Ok(first.clone()));
    assert_eq!(issue(&mut world, "mara", Some("jon")).unwrap_err().code(), "-32004", "a sponsor stays");
    assert_eq!(issue(&mut world, "olga", None).unwrap().sponsor, None);
    assert_eq!(issue(&mut world, "olga", Some("mara")).unwrap().sponsor.as_deref(), Some("mara"), "and can be named later");
    // Another secret of the gateways gives another key to the same principal.
    let other = world.call("1s", person("mara"), None, IssuePassport { sponsor: None, public_key: key(2) }).unwrap();
    assert_eq!((&other.principal_id, &other.public_key, other.issued_at), (&first.principal_id, &key(2), first.issued_at));
}

#[test]
fn a_sponsor_is_another_passport_of_the_tenant_that_is_in_force() {
    let mut world = world(&["mara", "jon", "olga", "eve"]);
    for (sponsor, code) in [("mara", "-32602"), ("eve", "NOT_FOUND"), ("nobody", "NOT_FOUND"), ("a\0", "-32602")] {
        assert_eq!(issue(&mut world, "mara", Some(sponsor)).unwrap_err().code(), code, "{sponsor}");
    }
    revoke(&mut world, "olga", "jon").unwrap();
    assert_eq!(issue(&mut world, "mara", Some("jon")).unwrap_err().code(), "-32602");
    assert_eq!(issue(&mut world, "ben", None).unwrap_err().code(), "NOT_FOUND", "who has no passport");
    let bad = world.call("0s", person("mara"), None, IssuePassport { sponsor: None, public_key: "AB".repeat(32) });
    assert_eq!(bad.unwrap_err().code(), "-32602");
}

#[test]
fn receipts_are_counted_by_signer_and_a_read_raises_the_tier_at_its_threshold() {
    let mut world = world(&["mara", "jon"]);
    for n in 0..5 {
        punch(&mut world, "0s", "mara", &format!("file://{n}"), None).unwrap();
        if n < 4 {
            let out =
                PunchOut { resource: format!("file://{n}"), holder_passport: "mara".into(), tenant_id: None, release_commit_sha: None };
            world.call("0s", person("mara"), None, out).unwrap();
        }
    }
    let shown = issue(&mut world, "mara", None).unwrap();
    assert_eq!((shown.receipts, shown.reputation), (9, Reputation::Unverified));
    punch(&mut world, "0s", "mara", "file://last", None).unwrap();
    let raised = issue(&mut world, "mara", None).unwrap();
    assert_eq!((raised.receipts, raised.reputation), (10, Reputation::Basic));
    assert_ne!(raised.passport_hash, shown.passport_hash);
    assert_eq!(issue(&mut world, "jon", None).unwrap().receipts, 0, "another's receipts are not counted");
    assert_eq!(events(&world).iter().filter(|kind| *kind == "passport.tier_raised").count(), 1);
    // A fact that names a receipt of the caller's choosing raises nothing.
    store(&mut world, "jon", "k", "v");
    assert_eq!(receipts(&world, "jon"), 0);
}

#[test]
fn the_thresholds_are_ten_a_hundred_five_hundred_and_two_thousand() {
    let told: Vec<&str> = [0, 9, 10, 99, 100, 499, 500, 1_999, 2_000].map(|receipts| Reputation::of(receipts).word()).into();
    assert_eq!(told, ["unverified", "unverified", "basic", "basic", "established", "established", "trusted", "trusted", "elite"]);
}

// ------------------------------------------------------------------ mint requests

fn ask_mint(world: &mut World, who: &str) -> Result<MintRequested, Refusal> {
    world.call("0s", person(who), None, RequestMint { category: None, reason: Some("a second machine".into()) })
}

fn decide(world: &mut World, request_id: &str, who: &str, decision: Decision) -> Result<Approval, Refusal> {
    let (request_id, reviewer_notes) = (request_id.to_string(), None);
    world.call(
        "2s",
        person(who),
        None,
        DecideApproval { request_id, decision, reviewer_notes, reviewer_tier: None, reviewer_tenant_id: None },
    )
}

#[test]
fn a_request_to_mint_waits_for_an_operator_and_mints_nothing() {
    let mut world = world(&["mara", "olga"]);
    let asked = ask_mint(&mut world, "mara").unwrap();
    assert_eq!((asked.requester.as_str(), asked.category), ("mara", Category::Work));
    let second = ask_mint(&mut world, "mara").unwrap_err();
    let existing_request_id = asked.request_id.clone();
    assert_eq!(second, Refusal::AlreadyPending { what: "a request to mint a passport".into(), existing_request_id });
    assert_eq!(decide(&mut world, &asked.request_id, "mara", Decision::Approve).unwrap_err().code(), "-32003", "not his own");
    let before = world.ask("0s", person("mara"), GetPassport { passport: "mara".into() });
    let done = decide(&mut world, &asked.request_id, "olga", Decision::Approve).unwrap();
    assert!(done.receipt_id.is_some());
    assert_eq!(world.ask("0s", person("mara"), GetPassport { passport: "mara".into() }), before);
    assert!(ask_mint(&mut world, "mara").is_ok(), "decided, so he may ask again");
}

#[test]
fn a_reason_to_mint_has_at_most_2048_bytes_and_the_flag_takes_it_away() {
    let mut world = world(&["mara"]);
    let ask = |size: usize| RequestMint { category: Some(Category::Public), reason: Some("é".repeat(size / 2)) };
    let long = world.call("0s", person("mara"), None, ask(2_050)).unwrap_err();
    assert_eq!(long, Refusal::TooLong { field: "reason".into(), size: 2_050, limit: 2_048, unit: "bytes".into() });
    let off = SetFlag { name: flag_name(crate::flag::MINT_REQUESTS), value: "no".into() };
    world.call("0s", person("olga"), None, off).unwrap();
    assert_eq!(world.call("0s", person("mara"), None, ask(2_048)).unwrap_err().code(), "-32601");
    let on = SetFlag { name: flag_name(crate::flag::MINT_REQUESTS), value: "yes".into() };
    world.call("0s", person("olga"), None, on).unwrap();
    assert_eq!(world.call("0s", person("mara"), None, ask(2_048)).unwrap().category, Category::Public);
}

fn flag_name(flag: crate::flag::Definition) -> String {
    flag.name.into()
}

// ------------------------------------------------------------------ revocation

#[test]
fn who_may_revoke_is_the_passport_itself_its_sponsor_and_an_elite_or_operator_tier() {
    for (who, may) in [("mara", true), ("jon", true), ("olga", true), ("elsa", true), ("ben", false)] {
        let mut world = world(&["mara", "jon", "olga", "elsa", "ben"]);
        issue(&mut world, "mara", Some("jon")).unwrap();
        let done = revoke(&mut world, who, "mara");
        assert_eq!(done.as_ref().map_err(Refusal::code).err(), (!may).then_some("-32003"), "{who}: {done:?}");
        assert_eq!(issue(&mut world, "mara", None).is_ok(), !may);
    }
    let mut world = world(&["mara", "olga", "evan"]);
    for nobody in ["nobody", "eve"] {
        assert_eq!(revoke(&mut world, "olga", nobody).unwrap_err().code(), "NOT_FOUND");
    }
    assert_eq!(revoke(&mut world, "evan", "mara").unwrap_err().code(), "NOT_FOUND", "of another tenant");
    let own = world.call("1s", person("mara"), None, RevokePassport { target: None, reason: None }).unwrap();
    assert_eq!((own.target.as_str(), own.revoker.as_str()), ("mara", "mara"), "without a target, the caller itself");
}

#[test]
fn a_revocation_is_proven_told_and_final() {
    let mut world = world(&["mara", "olga", "elsa"]);
    let done = revoke(&mut world, "olga", "mara").unwrap();
    let receipt = world.ask("2s", person("olga"), GetReceipt { receipt_id: done.receipt_id.clone(), tenant_id: None }).unwrap();
    let body: serde_json::Value = crate::codec::decode(&receipt.body).unwrap();
    assert_eq!(
        (&body["schema"], &body["target_passport_id"], &body["initiated_by_passport_id"], &body["reason"]),
        (&json!("cuecrux.receipt.passport_revoke.v1"), &json!("mara"), &json!("olga"), &json!("lost laptop"))
    );
    assert_eq!(events(&world).last().map(String::as_str), Some("passport.revoked"));
    let again = world.call("3s", person("elsa"), None, RevokePassport { target: Some("mara".into()), reason: None }).unwrap();
    assert_eq!(again, done, "the first revocation stands");
    let Principal { tenant, passport, tier, scopes } = person("mara");
    let put = PutToken { hash: token_hash("new"), tenant, passport, tier, scopes, expires_at: None };
    assert_eq!(world.call("3s", system(), None, put).unwrap_err().code(), "REVOKED", "the name can't be used again");
}

#[test]
fn a_revoked_passport_is_refused_in_reads_writes_and_by_its_token() {
    let mut world = world(&["mara", "olga"]);
    store(&mut world, "mara", "k", "v");
    revoke(&mut world, "olga", "mara").unwrap();
    let gone = Refusal::Revoked { passport: "mara".into() };
    assert_eq!(issue(&mut world, "mara", None).unwrap_err(), gone);
    assert_eq!(world.ask("2s", person("mara"), GetPassport { passport: "olga".into() }).unwrap_err(), gone);
    let resolved = |world: &mut World| world.ask("2s", system(), ResolveToken { hash: token_hash("mara") }).unwrap().principal;
    assert_eq!(resolved(&mut world), None);
    // Without enforcement, an explicit revocation is still on record and blocks nothing.
    let flag = |value: &str| SetFlag { name: flag_name(crate::flag::PASSPORT_REVOCATION), value: value.into() };
    world.call("2s", person("olga"), None, flag("off")).unwrap();
    assert_eq!(resolved(&mut world).unwrap().passport, "mara");
    assert_eq!(memory(&mut world, "mara"), ["k=v"]);
    world.call("2s", person("olga"), None, flag("on")).unwrap();
    assert_eq!(resolved(&mut world), None);
}

#[test]
fn cards_and_tickets_of_a_revoked_holder_end_a_few_in_each_entry_and_go_to_those_who_wait() {
    let cards = 2 * REVOKED_PER_ENTRY + 1;
    let mut world = world(&["mara", "jon", "ben", "olga"]);
    for n in 0..cards {
        punch(&mut world, "0s", "mara", &format!("file://{n}"), None).unwrap();
    }
    punch(&mut world, "0s", "ben", "file://waited", None).unwrap();
    punch(&mut world, "0s", "mara", "file://waited", Some(500_000)).unwrap();
    punch(&mut world, "0s", "jon", &format!("file://{}", cards - 1), Some(500_000)).unwrap();
    let tokens = held(&mut world, "mara");
    revoke(&mut world, "olga", "mara").unwrap();
    assert_eq!(held(&mut world, "mara").len(), cards - REVOKED_PER_ENTRY);
    let newest = held(&mut world, "jon")[0];
    assert!(newest > tokens[0], "the card went on under a higher token");
    world.tick("2s");
    assert_eq!(held(&mut world, "mara").len(), 1);
    world.tick("3s");
    assert!(held(&mut world, "mara").is_empty());
    let out = PunchOut { resource: "file://waited".into(), holder_passport: "ben".into(), tenant_id: None, release_commit_sha: None };
    world.call("4s", person("ben"), None, out).unwrap();
    world.tick("5s");
    assert!(held(&mut world, "mara").is_empty(), "its ticket left the queue");
    let ended = events(&world).iter().filter(|kind| *kind == "punchcard.force_released").count();
    assert_eq!(ended, cards);
}

#[test]
fn what_a_sweep_grants_in_the_entry_of_the_revocation_ends_in_a_later_one() {
    let mut world = world(&["mara", "jon", "ben", "olga"]);
    let PunchedIn::Granted { card, .. } = punch(&mut world, "0s", "jon", "file://a", None).unwrap() else { panic!() };
    punch(&mut world, "1s", "mara", "file://a", Some(600_000)).unwrap();
    punch(&mut world, "1s", "ben", "file://a", Some(600_000)).unwrap();
    // The lease of the first holder runs out in the very entry that revokes the next one.
    let command = RevokePassport { target: Some("mara".into()), reason: None };
    let at = format!("{}ms", card.ttl_ms);
    world.call(&at, person("olga"), None, command).unwrap();
    let granted = held(&mut world, "mara");
    assert_eq!(granted.len(), 1);
    world.tick("600500ms");
    assert!(held(&mut world, "mara").is_empty());
    assert!(held(&mut world, "ben")[0] > granted[0], "and the next holder's token is higher");
}

#[test]
fn what_a_revoked_passport_asked_for_can_be_rejected_and_not_approved() {
    let mut world = world(&["mara", "olga", "otto"]);
    let asked = ask_mint(&mut world, "mara").unwrap();
    revoke(&mut world, "olga", "mara").unwrap();
    assert_eq!(decide(&mut world, &asked.request_id, "otto", Decision::Approve).unwrap_err().code(), "-32602");
    assert!(decide(&mut world, &asked.request_id, "otto", Decision::Reject).is_ok());
}

// ------------------------------------------------------------------ continuity

fn split(world: &mut World, who: &str, new_name: &str) -> Result<PassportSplit, Refusal> {
    let command = SplitPassport { target: who.into(), new_name: new_name.into(), reason: Some("two machines".into()), public_key: key(3) };
    world.call("2s", person(who), None, command)
}

fn merge(world: &mut World, who: &str, source: &str, target: &str, policy: ConflictPolicy) -> Result<PassportsMerged, Refusal> {
    let command = MergePassports { source: source.into(), target: target.into(), policy, reason: None };
    world.call("3s", person(who), None, command)
}

fn body(world: &mut World, proof: &Proof) -> serde_json::Value {
    let receipt = world.ask("9s", person("otto"), GetReceipt { receipt_id: proof.receipt_id.clone(), tenant_id: None }).unwrap();
    assert_eq!((hex::encode(&receipt.body), &receipt.body_hash), (proof.body_hex.clone(), &proof.body_hash));
    crate::codec::decode(&receipt.body).unwrap()
}

#[test]
fn changing_identities_needs_operator_standing_which_receipts_can_earn() {
    let mut world = world(&["mara", "olga"]);
    assert_eq!(split(&mut world, "mara", "mara-b").unwrap_err().code(), "-32003");
    for _ in 0..500 {
        standing::count(&mut world.state, "acme", "mara").unwrap();
    }
    assert!(split(&mut world, "mara", "mara-b").is_ok());
    let off = SetFlag { name: flag_name(crate::flag::IDENTITY_CONTINUITY), value: "off".into() };
    world.call("2s", person("olga"), None, off).unwrap();
    assert_eq!(split(&mut world, "olga", "olga-b").unwrap_err().code(), "-32601");
}

#[test]
fn a_split_copies_private_memory_and_later_writes_stay_apart() {
    let mut world = world(&["olga", "otto"]);
    store(&mut world, "olga", "k", "1");
    store(&mut world, "olga", "k", "2");
    let done = split(&mut world, "olga", "elsa").unwrap();
    assert_eq!((done.new_passport.as_str(), done.facts), ("elsa", 1));
    let body = body(&mut world, &done.proof);
    assert_eq!(
        (&body["schema"], &body["source_passport_id"], &body["new_passport_id"], &body["reason"]),
        (&json!("cuecrux.receipt.passport_split.v1"), &json!("olga"), &json!("elsa"), &json!("two machines"))
    );
    assert_eq!(memory(&mut world, "elsa"), ["k=2"]);
    store(&mut world, "elsa", "k", "hers");
    store(&mut world, "olga", "n", "mine");
    assert_eq!((memory(&mut world, "elsa"), memory(&mut world, "olga")), (vec!["k=hers".into()], vec!["k=2".to_string(), "n=mine".into()]));
    let made = world.ask("3s", person("otto"), GetPassport { passport: "elsa".into() }).unwrap();
    assert_eq!((made.tier, made.scopes), (person("olga").tier, person("olga").scopes), "the powers of its source, and no more");
    assert_eq!(receipts(&world, "elsa"), 0, "and none of its receipts");
}

#[test]
fn a_split_is_of_the_callers_own_under_a_free_name_of_the_same_prefix() {
    let mut world = world(&["olga", "otto"]);
    let own = |target: &str, new: &str| SplitPassport { target: target.into(), new_name: new.into(), reason: None, public_key: key(3) };
    let mut refused = |command: SplitPassport| world.call("2s", person("olga"), None, command).unwrap_err();
    assert_eq!(refused(own("otto", "new")).code(), "-32003");
    assert_eq!(refused(own("olga", "acme::new")).code(), "-32003", "another prefix");
    assert_eq!(refused(own("olga", "otto")).code(), "-32602", "taken");
    assert_eq!(refused(own("olga", " ")).code(), "-32602");
    let prefixes = ["a::b::c", "a:b", "a:b::c", "plain"].map(super::continuity::tenant_prefix);
    assert_eq!(prefixes, ["a::b", "a", "a:b", "__default__"]);
    for n in 0..=ADOPTED_FACTS_MAX {
        store(&mut world, "olga", &format!("k{n}"), "v");
    }
    assert!(split(&mut world, "olga", "new").unwrap_err().to_string().contains("private facts"), "more than go over in one step");
}

#[test]
fn a_merge_settles_conflicts_by_the_named_policy_and_lists_them_in_its_receipt() {
    for (policy, memory_after, resolution) in [
        (ConflictPolicy::PreferSource, ["both=1", "k=source", "only=s"], "prefer_source"),
        (ConflictPolicy::PreferTarget, ["both=1", "k=target", "only=s"], "prefer_target"),
    ] {
        let mut world = world(&["olga", "elsa", "otto"]);
        for (who, key, value) in
            [("elsa", "k", "source"), ("olga", "k", "target"), ("elsa", "both", "1"), ("olga", "both", "1"), ("elsa", "only", "s")]
        {
            store(&mut world, who, key, value);
        }
        let done = merge(&mut world, "olga", "elsa", "olga", policy).unwrap();
        assert_eq!((done.conflicts_resolved, done.retired.as_str(), done.merged.as_str()), (1, "elsa", "olga"));
        assert_eq!(memory(&mut world, "olga"), memory_after);
        let body = body(&mut world, &done.proof);
        let conflict = &body["conflicts"][0];
        assert_eq!((&conflict["entity"], &conflict["key"], &conflict["resolution"]), (&json!("notes"), &json!("k"), &json!(resolution)));
        assert_eq!(body["conflict_policy"], resolution);
    }
    let mut world = world(&["olga", "elsa"]);
    store(&mut world, "elsa", "a", "source");
    store(&mut world, "elsa", "k", "source");
    store(&mut world, "olga", "k", "target");
    assert_eq!(merge(&mut world, "olga", "elsa", "olga", ConflictPolicy::ErrorOnConflict).unwrap_err().code(), "-32004");
    assert_eq!(memory(&mut world, "olga"), ["k=target"], "and nothing changed");
}

#[test]
fn a_merged_passport_is_retired_and_its_sessions_are_read_by_the_survivor_and_written_by_nobody() {
    let mut world = world(&["olga", "elsa", "otto"]);
    let save = SaveSession { session_id: "s".into(), state: json!({ "a": 1 }), ttl_ms: None, expected_revision: None };
    world.call("0s", person("elsa"), None, save).unwrap();
    punch(&mut world, "0s", "elsa", "file://a", None).unwrap();
    let own = receipts(&world, "olga");
    merge(&mut world, "olga", "elsa", "olga", ConflictPolicy::PreferTarget).unwrap();
    assert!(receipts(&world, "olga") > own + 1, "what the source has earned is the survivor's");
    assert_eq!(issue(&mut world, "elsa", None).unwrap_err().code(), "REVOKED");
    assert!(held(&mut world, "elsa").is_empty());
    let read = world.ask("4s", person("olga"), GetSession { session_id: "s".into() }).unwrap();
    assert_eq!((read.state, read.actor.as_str()), (json!({ "a": 1 }), "elsa"));
    assert_eq!(world.ask("4s", person("otto"), GetSession { session_id: "s".into() }).unwrap_err().code(), "NOT_FOUND");
    let delete = DeleteSession { session_id: "s".into() };
    assert_eq!(world.call("4s", person("olga"), None, delete).unwrap_err().code(), "NOT_FOUND");
    // Retired again into another, they go along.
    merge(&mut world, "otto", "olga", "otto", ConflictPolicy::PreferTarget).unwrap();
    assert!(world.ask("5s", person("otto"), GetSession { session_id: "s".into() }).is_ok());
    assert_eq!(super::continuity::merged_into(&world.state, "acme", "otto").unwrap(), ["elsa", "olga"]);
    let mut take_over = |name: &str| super::continuity::merge_names(&mut world.state, "acme", name, "otto", "r").unwrap();
    assert!((2..MERGED_MAX).all(|n| take_over(&format!("p{n}")).is_none()));
    assert!(take_over("one-too-many").is_some());
}

#[test]
fn a_merge_is_of_two_passports_of_which_the_caller_owns_one_and_may_reach_the_other() {
    let mut world = world(&["mara", "jon", "ben", "olga"]);
    for _ in 0..500 {
        standing::count(&mut world.state, "acme", "mara").unwrap();
    }
    let refused = |world: &mut World, who: &str, source: &str, target: &str| {
        merge(world, who, source, target, ConflictPolicy::PreferTarget).unwrap_err().code()
    };
    assert_eq!(refused(&mut world, "jon", "mara", "jon"), "-32003", "without standing");
    assert_eq!(refused(&mut world, "mara", "jon", "ben"), "-32003", "owns neither");
    assert_eq!(refused(&mut world, "mara", "jon", "mara"), "-32003", "another's private memory");
    assert_eq!(refused(&mut world, "mara", "mara", "jon"), "-32003");
    assert_eq!(refused(&mut world, "olga", "eve", "olga"), "NOT_FOUND", "of another tenant");
    assert_eq!(refused(&mut world, "olga", "olga", "olga"), "-32602");
    issue(&mut world, "jon", Some("mara")).unwrap();
    assert!(merge(&mut world, "mara", "jon", "mara", ConflictPolicy::PreferTarget).is_ok(), "whom it sponsors");
    assert_eq!(refused(&mut world, "olga", "jon", "olga"), "-32602", "revoked");
    let born = split(&mut world, "mara", "ann").unwrap();
    assert!(merge(&mut world, "mara", &born.new_passport, "mara", ConflictPolicy::PreferTarget).is_ok(), "what was split from it");
    issue(&mut world, "mara", Some("ben")).unwrap();
    assert_eq!(refused(&mut world, "mara", "ben", "mara"), "-32003", "naming a sponsor gives nothing of the sponsor's");
    let again = split(&mut world, "mara", "liz").unwrap().new_passport;
    for _ in 0..500 {
        standing::count(&mut world.state, "acme", &again).unwrap();
    }
    assert_eq!(refused(&mut world, "liz", "mara", "liz"), "-32003", "what was split off does not take over its source");
    assert!(merge(&mut world, "liz", "liz", "mara", ConflictPolicy::PreferTarget).is_ok(), "and may go back to it");
}

#[test]
fn a_device_is_linked_by_its_hash_with_what_the_caller_has_to_give() {
    let mut world = world(&["elsa", "olga", "otto"]);
    let link = |fingerprint: String, capability: &str| LinkDevice { fingerprint, capabilities: vec![capability.into()] };
    let done = world.call("1s", person("olga"), None, link("0a".repeat(32), "admin")).unwrap();
    assert_eq!((done.passport.as_str(), done.capabilities), ("olga", vec!["admin".to_string()]));
    let body = body(&mut world, &done.proof);
    assert_eq!((&body["device_fingerprint"], &body["passport_id"]), (&json!("0a".repeat(32)), &json!("olga")));
    let mut refused = |who: &str, command: LinkDevice| world.call("1s", person(who), None, command).map_err(|refusal| refusal.code()).err();
    for bad in ["0A".repeat(32), "0a".repeat(31), "zz".repeat(32)] {
        assert_eq!(refused("olga", link(bad, "facts:read")), Some("-32602"));
    }
    assert_eq!(refused("elsa", link("0b".repeat(32), "admin")), Some("-32003"), "more than the caller has");
    assert_eq!(refused("elsa", link("0b".repeat(32), "facts:read")), None);
    assert_eq!(refused("elsa", LinkDevice { fingerprint: "0b".repeat(32), capabilities: vec![] }), Some("-32602"));
    for n in 1..DEVICES_MAX {
        assert_eq!(refused("elsa", link(hex::encode([100 + n as u8; 32]), "facts:read")), None);
    }
    assert_eq!(refused("elsa", link("ff".repeat(32), "facts:read")), Some("-32602"), "one too many");
    assert_eq!(refused("elsa", link("0b".repeat(32), "facts:read")), None, "linking again takes no room");
}

#[test]
fn a_name_stands_for_a_passport_by_itself_by_a_merge_or_by_a_linked_device() {
    let mut world = world(&["elsa", "olga", "otto", "eve"]);
    let resolve = |world: &mut World, who: &str, name: &str| {
        let found = world.ask("9s", person(who), ResolvePassport { passport: name.into() });
        found.map(|found| (found.passport.name, found.link_id)).map_err(|refusal| refusal.code())
    };
    let device = "0a".repeat(32);
    let link = |world: &mut World, who: &str| {
        let command = LinkDevice { fingerprint: "0a".repeat(32), capabilities: vec!["facts:read".into()] };
        world.call("1s", person(who), None, command).unwrap().proof.receipt_id
    };
    assert_eq!(resolve(&mut world, "otto", "elsa"), Ok(("elsa".into(), None)));
    assert_eq!(resolve(&mut world, "otto", &device), Err("NOT_FOUND"));
    let linked = link(&mut world, "elsa");
    assert_eq!(resolve(&mut world, "otto", &device), Ok(("elsa".into(), Some(linked))));
    assert_eq!(resolve(&mut world, "eve", &device), Err("NOT_FOUND"), "of another tenant");
    assert_eq!(resolve(&mut world, "eve", "elsa"), Err("NOT_FOUND"));

    let first = merge(&mut world, "olga", "elsa", "olga", ConflictPolicy::PreferTarget).unwrap().proof.receipt_id;
    for name in ["elsa", &device] {
        assert_eq!(resolve(&mut world, "otto", name), Ok(("olga".into(), Some(first.clone()))), "{name}");
    }
    let second = merge(&mut world, "otto", "olga", "otto", ConflictPolicy::PreferTarget).unwrap().proof.receipt_id;
    for name in ["elsa", "olga", &device] {
        assert_eq!(resolve(&mut world, "otto", name), Ok(("otto".into(), Some(second.clone()))), "{name}");
    }
    link(&mut world, "otto");
    assert_eq!(resolve(&mut world, "otto", &device).unwrap().0, "otto", "both links lead there");
    let put = PutToken {
        hash: token_hash("o2"),
        tenant: "acme".into(),
        passport: "o2".into(),
        tier: Tier::Operator,
        scopes: person("olga").scopes,
        expires_at: None,
    };
    world.call("5s", system(), None, put).unwrap();
    let other = Principal { passport: "o2".into(), ..person("olga") };
    let command = LinkDevice { fingerprint: device.clone(), capabilities: vec!["facts:read".into()] };
    world.call("5s", other, None, command).unwrap();
    assert_eq!(resolve(&mut world, "otto", &device), Err("-32602"), "two have linked it, and nobody is guessed");
}

#[test]
fn a_card_can_be_taken_from_a_holder_while_its_end_goes_on() {
    let mut world = world(&["mara", "olga"]);
    for n in 0..=REVOKED_PER_ENTRY {
        punch(&mut world, "0s", "mara", &format!("file://{n}"), None).unwrap();
    }
    let list = ListPunchcards {
        resource: None,
        holder_passport: Some("mara".into()),
        tenant_id: None,
        status: Some(Status::Held),
        limit: 100,
        cursor: None,
    };
    revoke(&mut world, "olga", "mara").unwrap();
    let left = world.ask("1s", person("olga"), list).unwrap().punchcards.remove(0).id;
    let force = ForceRelease { punchcard_id: left, confirm: true, reason: None, by_passport: None };
    world.call("1s", person("olga"), None, force).unwrap();
    world.tick("2s");
    assert!(held(&mut world, "mara").is_empty());
}
