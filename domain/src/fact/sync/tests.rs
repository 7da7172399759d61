//! Two clusters that exchange facts, and what must hold of them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::fact::State;
use crate::fact::{DeleteFact, FactHistory, SharedFacts, SharedPage, SharedPairs, StoreFact};
use crate::transcript::{World, person};

const REMOTE: &str = "https://there.example";

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Here,
    There,
}

struct Two {
    here: World,
    there: World,
    ms: u64,
}

fn stranger(name: &str) -> Principal {
    Principal { tier: Tier::Unverified, ..person(name) }
}

impl Two {
    fn new() -> Self {
        let mut there = World::new();
        // Revisions and ids of the two must not be taken for each other.
        there.go_on_behind(Revision(1_000));
        Self { here: World::new(), there, ms: 0 }
    }

    fn world(&mut self, side: Side) -> (&mut World, String) {
        self.ms += 1;
        let time = format!("{}ms", self.ms);
        match side {
            Side::Here => (&mut self.here, time),
            Side::There => (&mut self.there, time),
        }
    }

    fn call<C: crate::command::CommandKind>(&mut self, side: Side, who: Principal, command: C) -> Result<C::Output, Refusal> {
        let (world, time) = self.world(side);
        world.call(&time, who, None, command)
    }

    fn ask<Q: crate::query::QueryKind>(&mut self, side: Side, who: Principal, query: Q) -> Result<Q::Output, Refusal> {
        let (world, time) = self.world(side);
        world.ask(&time, who, query)
    }

    fn store_as(&mut self, side: Side, who: &str, entity: &str, value: &str, private: bool) -> String {
        let command = StoreFact {
            entity: entity.into(),
            key: "k".into(),
            value: value.into(),
            source_receipt: None,
            confidence: Confidence(900_000),
            private,
            horizon_class: None,
            freshness_horizon: None,
            supersedes: BTreeSet::new(),
        };
        self.call(side, person(who), command).unwrap().fact_id
    }

    fn store(&mut self, side: Side, entity: &str, value: &str) -> String {
        self.store_as(side, "mara", entity, value, false)
    }

    fn delete(&mut self, side: Side, fact_id: &str) {
        self.call(side, person("mara"), DeleteFact { fact_id: fact_id.into() }).unwrap();
    }

    /// All active facts by entity and owner: value and who says it.
    fn facts(&mut self, side: Side) -> BTreeMap<(String, String), (String, String)> {
        let (world, _) = self.world(side);
        let all = world.state.page::<Fact>("acme", &Key::new(), None, usize::MAX).unwrap().items;
        let active = all.into_iter().filter(|fact| fact.state() == State::Active);
        active.map(|fact| ((fact.entity, fact.owner), (fact.value, fact.actor))).collect()
    }

    fn told(&mut self, side: Side) -> String {
        let facts = self.facts(side);
        facts.into_iter().map(|((entity, _), (value, actor))| format!("{entity}={value} ({actor})")).collect::<Vec<_>>().join(", ")
    }

    fn state(&mut self) -> SyncState {
        self.ask(Side::Here, person("mara"), GetSync { remote: Some(REMOTE.into()) }).unwrap()
    }

    fn page(&mut self, cursor: Option<String>) -> SharedPage {
        self.ask(Side::There, person("jon"), SharedFacts { cursor, tenant_id: None }).unwrap()
    }

    fn take_over(&mut self, page: &SharedPage, before: Option<String>) -> Result<FactsMirrored, Refusal> {
        let command = MirrorFacts {
            remote: REMOTE.into(),
            remote_tenant: page.tenant_id.clone(),
            facts: page.facts.clone(),
            before,
            cursor: Some(page.cursor.clone()),
            is_end: !page.more,
        };
        self.call(Side::Here, person("mara"), command)
    }

    /// One page; whether more follow.
    fn pull_page(&mut self) -> (FactsMirrored, bool) {
        let before = self.state().pull_cursor;
        let page = self.page(before.clone());
        (self.take_over(&page, before).unwrap(), page.more)
    }

    /// `stored, deleted, in conflict, refused` of a whole pull.
    fn pull(&mut self) -> [u64; 4] {
        self.look_again();
        let mut all = [0; 4];
        loop {
            let (told, more) = self.pull_page();
            for (sum, n) in all.iter_mut().zip([told.stored, told.deleted, told.in_conflict, told.refused]) {
                *sum += n;
            }
            if !more {
                return all;
            }
        }
    }

    /// What a gateway does before a pull: compares anew what has changed here.
    fn look_again(&mut self) {
        let list = ListSyncConflicts { remote: REMOTE.into(), after: None, limit: 100 };
        let listed = self.ask(Side::Here, person("mara"), list).unwrap().conflicts;
        for conflict in listed.into_iter().filter(|conflict| conflict.has_changed) {
            let pairs = vec![(conflict.entity, conflict.key)];
            let page = self.ask(Side::There, person("jon"), SharedPairs { pairs, tenant_id: None }).unwrap();
            let before = self.state().pull_cursor;
            let (remote, remote_tenant) = (REMOTE.into(), page.tenant_id);
            let command = MirrorFacts { remote, remote_tenant, facts: page.facts, before, cursor: None, is_end: false };
            self.call(Side::Here, person("mara"), command).unwrap();
        }
    }

    fn plan(&mut self, list: &[&str], overwrite: bool) -> PushPlan {
        let allowlist = list.iter().map(ToString::to_string).collect();
        self.ask(Side::Here, person("elsa"), PlanPush { remote: REMOTE.into(), allowlist, overwrite, cursor: None }).unwrap()
    }

    fn promote(&mut self, plan: &PushPlan) -> Vec<Promotion> {
        let command = PromoteFacts { facts: plan.facts.clone(), tenant_id: None };
        self.call(Side::There, person("robot"), command).unwrap().outcomes
    }

    fn note(&mut self, plan: &PushPlan, outcomes: &[Promotion]) -> Result<PushRecorded, Refusal> {
        let sent = plan.facts.iter().zip(outcomes).map(|(fact, became)| Sent {
            entity: fact.entity.clone(),
            key: fact.key.clone(),
            fact_id: fact.fact_id.clone(),
            became: became.clone(),
        });
        let command = RecordPush {
            remote: REMOTE.into(),
            remote_tenant: "acme".into(),
            list: plan.list.clone(),
            before: plan.before.clone(),
            cursor: plan.cursor.clone(),
            sent: sent.collect(),
            is_end: !plan.more,
        };
        self.call(Side::Here, person("elsa"), command)
    }

    /// What a whole push sent, by entity: `+` stored, `=` unchanged, `!` in conflict, `-` refused.
    fn push_with(&mut self, list: &[&str], overwrite: bool) -> String {
        let mut sent = Vec::new();
        loop {
            let plan = self.plan(list, overwrite);
            let outcomes = self.promote(&plan);
            self.note(&plan, &outcomes).unwrap();
            for (fact, became) in plan.facts.iter().zip(outcomes) {
                let sign = match became {
                    Promotion::Stored { .. } => '+',
                    Promotion::Unchanged { .. } => '=',
                    Promotion::InConflict { .. } => '!',
                    Promotion::Refused { .. } => '-',
                };
                sent.push(format!("{sign}{}", fact.entity));
            }
            if !plan.more {
                return sent.join(" ");
            }
        }
    }

    fn push(&mut self) -> String {
        self.push_with(&[], false)
    }
}

#[test]
fn a_copy_says_whose_it_is_and_follows_its_original() {
    let mut two = Two::new();
    let first = two.store(Side::There, "svc:a", "1");
    two.store(Side::There, "svc:b", "1");
    assert_eq!(two.pull(), [2, 0, 0, 0]);
    assert_eq!(two.told(Side::Here), "svc:a=1 (sync:acme/mara), svc:b=1 (sync:acme/mara)");
    two.store_as(Side::There, "jon", "svc:a", "2", false);
    assert_eq!(two.pull(), [1, 0, 0, 0]);
    assert_eq!(two.told(Side::Here), "svc:a=2 (sync:acme/jon), svc:b=1 (sync:acme/mara)");
    let history = FactHistory { entity: "svc:a".into(), key: "k".into(), limit: 10, cursor: None };
    assert_eq!(two.ask(Side::Here, person("mara"), history).unwrap().versions.len(), 2, "a change there is a version here");
    // What is deleted there goes here; an older version that is deleted changes nothing.
    two.delete(Side::There, &first);
    assert_eq!(two.pull(), [0, 0, 0, 0]);
    let last = two.store(Side::There, "svc:b", "2");
    two.delete(Side::There, &last);
    assert_eq!(two.pull(), [0, 1, 0, 0]);
    assert_eq!(two.told(Side::Here), "svc:a=2 (sync:acme/jon)");
}

#[test]
fn a_pull_goes_on_from_the_cursor_of_the_last_one_and_doubles_nothing() {
    let mut two = Two::new();
    for n in 0..8 {
        two.store(Side::There, &format!("svc:{n}"), "1");
    }
    // Three pairs a page: the first gateway dies after one.
    let (first, more) = two.pull_page();
    assert_eq!((first.stored, more), (3, true));
    assert!(two.state().pull_cursor.unwrap().starts_with("walk."), "the cluster knows where the next one goes on");
    assert_eq!(two.pull(), [5, 0, 0, 0]);
    let before = two.state();
    assert_eq!((before.pulls, before.facts_pulled), (1, 8));
    assert_eq!(two.pull(), [0; 4]);
    let after = two.state();
    assert_eq!((after.pulls, after.facts_pulled), (2, 8));
    // Only what is new is told from then on.
    two.store(Side::There, "svc:9", "1");
    let told = two.page(after.pull_cursor.clone());
    assert_eq!(told.facts.iter().map(|fact| fact.entity.as_str()).collect::<Vec<_>>(), ["svc:9"]);
    assert_eq!(two.facts(Side::Here).len(), 8);
}

#[test]
fn a_page_that_another_gateway_took_over_meanwhile_is_refused() {
    let mut two = Two::new();
    for n in 0..4 {
        two.store(Side::There, &format!("svc:{n}"), "1");
    }
    let page = two.page(None);
    two.take_over(&page, None).unwrap();
    let refused = two.take_over(&page, None).unwrap_err();
    assert!(matches!(refused, Refusal::Changed { .. }), "{refused}");
    assert_eq!(two.facts(Side::Here).len(), 3);
}

#[test]
fn what_changes_during_a_walk_is_followed_and_a_reader_too_far_behind_walks_anew() {
    let mut two = Two::new();
    for n in 0..8 {
        two.store(Side::There, &format!("svc:{n}"), "1");
    }
    two.pull_page();
    // One behind the walk and one before it.
    two.store(Side::There, "svc:0", "2");
    two.store(Side::There, "svc:7", "2");
    two.pull();
    let told = two.told(Side::Here);
    assert!(told.contains("svc:0=2") && told.contains("svc:7=2"), "{told}");

    let gone = two.store(Side::There, "svc:0", "3");
    two.delete(Side::There, &gone);
    two.store(Side::There, "svc:1", "3");
    crate::event::lose(&mut two.there.state, "acme", Revision(1_000_000)).unwrap();
    assert_eq!(two.pull(), [1, 1, 0, 0], "a deletion is found without its event too");
    assert!(!two.told(Side::Here).contains("svc:0"));
}

#[test]
fn private_memory_is_neither_shared_nor_touched() {
    let mut two = Two::new();
    two.store_as(Side::There, "jon", "svc:a", "theirs, private", true);
    two.store(Side::There, "svc:b", "theirs");
    two.store_as(Side::Here, "jon", "svc:b", "ours, private", true);
    two.store_as(Side::Here, "elsa", "svc:c", "ours, private", true);
    assert_eq!(two.pull(), [1, 0, 0, 0]);
    let mine = two.facts(Side::Here);
    assert_eq!(mine[&("svc:b".into(), "jon".into())].0, "ours, private");
    assert_eq!(mine[&("svc:b".into(), EVERYONE.into())].0, "theirs");
    assert!(!mine.keys().any(|(entity, _)| entity == "svc:a"));
    // Nor is it told to whoever asks by name, by whatever name.
    let pairs = ["svc:a", "__agent::jon::svc:a"].map(|entity| (entity.to_string(), "k".to_string())).to_vec();
    let told = two.ask(Side::There, person("jon"), SharedPairs { pairs, tenant_id: None }).unwrap();
    assert!(told.facts.iter().all(|fact| fact.now.is_none()), "{told:?}");
    assert_eq!(two.plan(&[], false).skipped_private, 1, "a caller learns of its own alone");
    assert_eq!(two.push(), "");
}

#[test]
fn no_private_fact_and_no_sensitive_prefix_leaves() {
    let mut two = Two::new();
    let kept = ["finance:q3", "Health:mara", " personal:jon", "decisions::x", "github::acme", "__ops::rotation", "__bootstrap__::p"];
    for entity in kept {
        two.store(Side::Here, entity, "secret");
        two.store(Side::There, entity, "their secret");
    }
    two.store(Side::Here, "finance", "the department");
    let plan = two.plan(&[], false);
    assert!(plan.facts.len() <= 1);
    assert_eq!(two.push(), "+finance");
    assert_eq!(two.pull(), [0; 4]);
    assert!(!two.told(Side::Here).contains("their") && !two.told(Side::There).contains("=secret"));
    // One that is sent all the same is not taken, on either side.
    let smuggled = |entity: &str| Promoted {
        entity: entity.into(),
        key: "k".into(),
        value: "v".into(),
        confidence: Confidence::FULL,
        horizon_class: HorizonClass::None,
        fact_id: "f_1".into(),
        as_of: UnixMs(1),
        replaces: None,
    };
    let names = ["health:a", "__agent::mara::x", "__agent::robot::x", "__decisions__::x", "", "a\0b"];
    let facts: Vec<Promoted> = names.into_iter().map(smuggled).collect();
    for facts in facts.chunks(SHARED_ROWS_PER_PAGE) {
        let sent = PromoteFacts { facts: facts.to_vec(), tenant_id: None };
        let outcomes = two.call(Side::There, person("robot"), sent).unwrap().outcomes;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Promotion::Refused { .. })), "{outcomes:?}");
    }
    let version = SharedVersion {
        fact_id: "f_1".into(),
        value: "v".into(),
        confidence: Confidence::FULL,
        horizon_class: HorizonClass::None,
        actor: "a".into(),
        as_of: UnixMs(1),
    };
    let facts = facts.into_iter().map(|fact| SharedFact { entity: fact.entity, key: fact.key, now: Some(version.clone()) }).collect();
    let before = two.state().pull_cursor;
    let (remote, remote_tenant) = (REMOTE.into(), "acme".into());
    let mirror = MirrorFacts { remote, remote_tenant, facts, before, cursor: None, is_end: false };
    assert_eq!(two.call(Side::Here, person("mara"), mirror).unwrap().refused, 6);
}

#[test]
fn what_was_written_here_is_never_replaced_in_silence() {
    let mut two = Two::new();
    let ours = two.store(Side::Here, "svc:a", "ours");
    let theirs = two.store(Side::There, "svc:a", "theirs");
    assert_eq!(two.pull(), [0, 0, 1, 0]);
    assert_eq!(two.told(Side::Here), "svc:a=ours (mara)");
    let list = ListSyncConflicts { remote: REMOTE.into(), after: None, limit: 10 };
    let listed = two.ask(Side::Here, person("mara"), list.clone()).unwrap();
    let expected = SyncConflict { entity: "svc:a".into(), key: "k".into(), theirs, ours: Some(ours.clone()), has_changed: false };
    assert_eq!(listed.conflicts, [expected]);
    assert_eq!(two.pull(), [0; 4]);
    assert_eq!(two.state().conflicts, 1);
    // Nor is theirs, by a push.
    assert_eq!((two.push().as_str(), two.told(Side::There).as_str()), ("", "svc:a=theirs (mara)"));
    // Whoever deletes ours takes theirs.
    two.delete(Side::Here, &ours);
    two.pull();
    assert_eq!((two.told(Side::Here).as_str(), two.state().conflicts), ("svc:a=theirs (sync:acme/mara)", 0));
    assert_eq!(two.ask(Side::Here, person("mara"), list).unwrap().conflicts, []);
}

#[test]
fn a_conflict_ends_when_both_say_the_same_or_when_ours_is_sent_over_theirs_on_purpose() {
    let mut two = Two::new();
    for entity in ["svc:a", "svc:b"] {
        two.store(Side::Here, entity, "ours");
        two.store(Side::There, entity, "theirs");
    }
    two.pull();
    two.store(Side::Here, "svc:a", "theirs");
    two.pull();
    assert_eq!(two.state().conflicts, 1);
    // Theirs has moved on since it was seen: not even then is it replaced unseen.
    two.store(Side::There, "svc:b", "theirs again");
    assert_eq!(two.push_with(&["entity:svc:b"], true), "!svc:b");
    assert_eq!(two.push_with(&["entity:svc:b"], true), "+svc:b");
    assert_eq!(two.told(Side::There), "svc:a=theirs (mara), svc:b=ours (robot)");
    assert_eq!(two.state().conflicts, 0);
    assert_eq!(two.pull(), [0; 4]);
}

#[test]
fn what_a_conflict_kept_back_is_sent_once_theirs_is_gone() {
    let mut two = Two::new();
    two.store(Side::Here, "svc:a", "ours");
    let theirs = two.store(Side::There, "svc:a", "theirs");
    assert_eq!((two.push().as_str(), two.push().as_str()), ("!svc:a", ""));
    two.delete(Side::There, &theirs);
    two.pull();
    assert_eq!((two.push().as_str(), two.state().conflicts), ("+svc:a", 0));
}

#[test]
fn only_facts_made_here_and_not_sent_before_are_sent() {
    let mut two = Two::new();
    two.store(Side::There, "svc:theirs", "1");
    two.pull();
    two.store(Side::Here, "svc:a", "1");
    two.store(Side::Here, "svc:b", "1");
    let plan = two.plan(&[], false);
    assert_eq!((plan.facts.len(), plan.skipped_synced), (2, 1), "a copy is not sent back");
    assert_eq!(two.push(), "+svc:a +svc:b");
    assert_eq!(two.push(), "");
    two.store(Side::Here, "svc:b", "2");
    assert_eq!(two.push(), "+svc:b");
    assert_eq!(two.told(Side::There), "svc:a=1 (robot), svc:b=2 (robot), svc:theirs=1 (mara)");
    // What was sent comes back as nothing new, and a change there is taken over here.
    assert_eq!(two.pull(), [0; 4]);
    two.store(Side::There, "svc:a", "3");
    assert_eq!(two.pull(), [1, 0, 0, 0]);
    // An own version of a copy is made here again.
    two.store(Side::Here, "svc:theirs", "2");
    assert_eq!(two.push(), "+svc:theirs");
    assert_eq!((two.state().pushes, two.state().facts_pushed), (4, 4));
}

#[test]
fn a_push_that_died_before_it_was_noted_is_repeated_without_doubling() {
    let mut two = Two::new();
    for n in 0..5 {
        two.store(Side::Here, &format!("svc:{n}"), "1");
    }
    let plan = two.plan(&[], false);
    two.promote(&plan);
    // The gateway died here. Another one begins anew, and two of them note the same page.
    let again = two.plan(&[], false);
    assert_eq!(again.facts, plan.facts);
    let outcomes = two.promote(&again);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Promotion::Unchanged { .. })), "{outcomes:?}");
    two.note(&again, &outcomes).unwrap();
    assert!(matches!(two.note(&plan, &outcomes), Err(Refusal::Changed { .. })));
    assert_eq!(two.push(), "+svc:3 +svc:4");
    for n in 0..5 {
        let history = FactHistory { entity: format!("svc:{n}"), key: "k".into(), limit: 10, cursor: None };
        assert_eq!(two.ask(Side::There, person("jon"), history).unwrap().versions.len(), 1);
    }
}

#[test]
fn an_allowlist_narrows_a_push_and_a_wider_one_sends_the_rest() {
    let mut two = Two::new();
    for entity in ["business::acme", "business::acme::public", "business::acmeother", "plan:x", "execplan:y", "constraint:z"] {
        two.store(Side::Here, entity, "1");
    }
    assert_eq!(two.push_with(&["entity:business::acme"], false), "+business::acme +business::acme::public");
    assert_eq!(two.push_with(&["plans", "collection:constraints"], false), "+constraint:z +execplan:y +plan:x");
    assert_eq!(two.push_with(&["constraints", "plans"], false), "", "the same list in other words may begin anew, and sends nothing twice");
    assert_eq!(two.push_with(&["facts"], false), "+business::acmeother");
    assert_eq!(two.push_with(&["*"], false), "");
    assert_eq!(two.state().push_cursors, 2, "of old lists the place is forgotten");
    let mut refused = |entries: Vec<String>| {
        two.ask(Side::Here, person("elsa"), PlanPush { remote: REMOTE.into(), allowlist: entries, overwrite: false, cursor: None })
            .unwrap_err()
            .to_string()
    };
    assert!(refused(vec!["fact".into()]).contains("none of `*`"));
    assert!(refused(vec!["entity:".into()]).contains("none of `*`"));
    assert!(refused(vec!["*".into(); 51]).contains("limit is 50"));
}

#[test]
fn a_copy_deleted_here_stays_away_until_its_original_changes_and_an_own_fact_outlives_its_deletion_there() {
    let mut two = Two::new();
    two.store(Side::There, "svc:a", "1");
    two.pull();
    let copy = versions(&mut two, Side::Here).remove(0).fact_id;
    two.delete(Side::Here, &copy);
    assert_eq!(two.pull(), [0; 4]);
    crate::event::lose(&mut two.there.state, "acme", Revision(1_000_000)).unwrap();
    assert_eq!((two.pull(), two.told(Side::Here)), ([0; 4], String::new()), "not even when all is told again");
    two.store(Side::There, "svc:a", "2");
    assert_eq!(two.pull(), [1, 0, 0, 0]);

    two.store(Side::Here, "svc:own", "1");
    two.push();
    let theirs = versions(&mut two, Side::There).into_iter().find(|fact| fact.entity == "svc:own").unwrap();
    two.delete(Side::There, &theirs.fact_id);
    assert_eq!(two.pull(), [0; 4]);
    assert!(two.told(Side::Here).contains("svc:own=1 (mara)"));
    assert_eq!(two.push(), "", "what others deleted does not come back to them by itself");
}

#[test]
fn who_may_take_facts_in_and_who_may_send_them_hangs_on_standing() {
    let mut two = Two::new();
    two.store(Side::There, "svc:a", "1");
    let page = two.page(None);
    let (remote, remote_tenant) = (REMOTE.to_string(), "acme".to_string());
    let mirror = MirrorFacts { remote, remote_tenant, facts: page.facts, before: None, cursor: None, is_end: false };
    let refused = two.call(Side::Here, stranger("zoe"), mirror).unwrap_err();
    assert!(refused.to_string().contains("reputation basic"), "{refused}");
    let plan = PlanPush { remote: REMOTE.into(), allowlist: Vec::new(), overwrite: false, cursor: None };
    let refused = two.ask(Side::Here, person("mara"), plan.clone()).unwrap_err();
    assert!(refused.to_string().contains("reputation established"), "{refused}");
    assert!(two.ask(Side::Here, person("olga"), plan).is_ok());
}

#[test]
fn another_tenants_memory_is_neither_read_nor_named_and_its_exchange_is_its_own() {
    let mut two = Two::new();
    two.store_as(Side::There, "eve", "svc:a", "of another tenant", false);
    assert_eq!(two.page(None).facts, []);
    for name in ["other", "nobody"] {
        let asked = SharedFacts { cursor: None, tenant_id: Some(name.into()) };
        assert_eq!(two.ask(Side::There, person("jon"), asked).unwrap_err(), Refusal::not_found("tenant", name));
    }
    for cursor in ["", "walk", "walk.x.00", "walk.1.zz", "walk.1.00.00", "after.-1", "elsewhere.1"] {
        let asked = SharedFacts { cursor: Some(cursor.into()), tenant_id: None };
        assert!(two.ask(Side::There, person("jon"), asked).is_err(), "{cursor}");
    }
    // A made-up place in a walk stays in the tenant.
    let asked = SharedFacts { cursor: Some("walk.1.ffffffff".into()), tenant_id: None };
    assert_eq!(two.ask(Side::There, person("jon"), asked).unwrap().facts, []);
    two.store(Side::There, "svc:b", "1");
    two.pull();
    assert_eq!(two.ask(Side::Here, person("eve"), GetSync { remote: Some(REMOTE.into()) }).unwrap(), SyncState::default());
}

// ------------------------------------------------------------------ properties

#[derive(Clone, Debug)]
enum Step {
    Store { here: bool, entity: usize, who: usize, private: bool },
    Delete { here: bool, entity: usize },
    PullPage,
    PushPage { noted: bool, overwrite: bool },
}

const ENTITIES: [&str; 6] = ["a", "b", "c", "d", "health:x", "__ops::y"];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<bool>(), 0..ENTITIES.len(), 0..2usize, prop::bool::weighted(0.2))
            .prop_map(|(here, entity, who, private)| Step::Store { here, entity, who, private }),
        1 => (any::<bool>(), 0..ENTITIES.len()).prop_map(|(here, entity)| Step::Delete { here, entity }),
        3 => Just(Step::PullPage),
        3 => (any::<bool>(), prop::bool::weighted(0.1)).prop_map(|(noted, overwrite)| Step::PushPage { noted, overwrite }),
    ]
}

fn side(here: bool) -> Side {
    if here { Side::Here } else { Side::There }
}

/// Every version that ever was, of both.
fn versions(two: &mut Two, side: Side) -> Vec<Fact> {
    let (world, _) = two.world(side);
    world.state.page::<Fact>("acme", &Key::new(), None, usize::MAX).unwrap().items
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_interrupted_nothing_private_leaves_nothing_own_is_lost_unseen_and_both_come_to_rest(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut two = Two::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                // Every value is of one store alone, and says of which.
                Step::Store { here, entity, who, private } => {
                    let value = format!("{n} {} {}", if here { "home" } else { "away" }, if private { "private" } else { "shared" });
                    two.store_as(side(here), ["mara", "jon"][who], ENTITIES[entity], &value, private);
                }
                Step::Delete { here, entity } => {
                    let shared = |fact: &Fact| fact.entity == ENTITIES[entity] && fact.owner == EVERYONE && fact.state() == State::Active;
                    if let Some(fact) = versions(&mut two, side(here)).into_iter().find(shared) {
                        two.delete(side(here), &fact.fact_id);
                    }
                }
                Step::PullPage => {
                    two.pull_page();
                }
                Step::PushPage { noted, overwrite } => {
                    let plan = two.plan(&[], overwrite);
                    let outcomes = two.promote(&plan);
                    if noted {
                        two.note(&plan, &outcomes).unwrap();
                    }
                }
            }
            let (here, there) = (versions(&mut two, Side::Here), versions(&mut two, Side::There));
            for (own, foreign) in [(&here, "away"), (&there, "home")] {
                for fact in own.iter().filter(|fact| fact.value.contains(foreign)) {
                    prop_assert!(!fact.value.contains("private") && fact.owner == EVERYONE, "{fact:?}");
                    prop_assert!(withheld(&fact.entity).is_none(), "{fact:?}");
                    prop_assert!(fact.origin.is_some(), "{fact:?}");
                }
            }
            // What a copy replaced was a copy itself, or is known there.
            for copy in here.iter().filter(|fact| matches!(fact.origin, Some(Origin::Pulled { .. }))) {
                let Some(replaced) = here.iter().find(|fact| Some(&fact.fact_id) == copy.supersedes.as_ref()) else { continue };
                let is_known = there.iter().any(|fact| fact.value == replaced.value);
                prop_assert!(replaced.origin.is_some() || is_known, "{replaced:?} gave way to {copy:?}");
            }
            let state = two.state();
            let list = ListSyncConflicts { remote: REMOTE.into(), after: None, limit: 100 };
            let listed = two.ask(Side::Here, person("mara"), list).unwrap();
            prop_assert_eq!(state.conflicts, listed.conflicts.len() as u64);
        }
        // Some rounds, and neither finds anything more to do.
        for _ in 0..3 {
            two.pull();
            two.push();
        }
        let rest = (two.facts(Side::Here), two.facts(Side::There));
        prop_assert_eq!(two.pull(), [0; 4]);
        prop_assert_eq!(two.push(), "");
        prop_assert_eq!(&(two.facts(Side::Here), two.facts(Side::There)), &rest);
    }
}
