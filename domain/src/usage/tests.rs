use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::event::{Watched, watch};
use crate::flag::{self, SetFlag};
use crate::identity;
use crate::stamp::Revision;
use crate::transcript::{World, person};

fn used(calls: u64, tokens_in: u64, tokens_out: u64) -> Used {
    Used { calls, tokens_in, tokens_out, declared_budget_in: 500 * calls }
}

fn add(tenant: &str, passport: &str, used: Used) -> AddUsage {
    AddUsage { tenant: tenant.into(), used: vec![(passport.into(), used)] }
}

fn read(world: &mut World, caller: Principal) -> Usage {
    world.ask("9s", caller, GetUsage {}).unwrap()
}

#[test]
fn only_the_system_adds_and_everybody_reads_his_own() {
    let mut world = World::new();
    world.call("1s", identity::system(), None, add("acme", "mara", used(1, 10, 20))).unwrap();
    world.call("1s", identity::system(), None, add("acme", "mara", used(2, 1, 2))).unwrap();
    world.call("1s", identity::system(), None, add(CLUSTER, ANONYMOUS, used(1, 1, 1))).unwrap();
    let expected = Usage { passport: "mara".into(), used: used(3, 11, 22), limit: None, standing: None };
    assert_eq!(read(&mut world, person("mara")), expected);
    assert_eq!(read(&mut world, person("olga")).used, Used::default());
    assert_eq!(read(&mut world, anonymous()), Usage { passport: ANONYMOUS.into(), used: used(1, 1, 1), limit: None, standing: None });
    let told = world.call("1s", person("olga"), None, add("acme", "olga", used(1, 1, 1))).unwrap_err();
    assert_eq!(told.to_string(), "usage is counted by gateways only");
}

#[test]
fn an_addition_is_bounded_and_its_names_are_names() {
    let mut world = World::new();
    let many = AddUsage { tenant: "acme".into(), used: vec![("mara".into(), used(1, 1, 1)); USAGE_ROWS_MAX + 1] };
    let told = world.call("1s", identity::system(), None, many).unwrap_err().to_string();
    assert_eq!(told, "`used` is 101 entries long, and the limit is 100 entries");
    let told = world.call("1s", identity::system(), None, add("acme", "", used(1, 1, 1))).unwrap_err().to_string();
    assert_eq!(told, "`passport` must not be empty");
    assert_eq!(read(&mut world, person("mara")).used, Used::default());
}

#[test]
fn a_count_that_is_full_stays_full() {
    let mut world = World::new();
    for _ in 0..2 {
        world.call("1s", identity::system(), None, add("acme", "mara", Used { tokens_in: u64::MAX, ..Used::default() })).unwrap();
    }
    assert_eq!(read(&mut world, person("mara")).used.tokens_in, u64::MAX);
}

#[test]
fn the_limit_is_the_flags_and_none_is_none() {
    let mut world = World::new();
    for (value, limit) in [("1000", Some(1_000)), ("0", None)] {
        let set = SetFlag { name: flag::SESSION_TOKEN_BUDGET.name.into(), value: value.into() };
        world.call("1s", person("olga"), None, set).unwrap();
        assert_eq!(read(&mut world, person("mara")).limit, limit);
    }
    let set = SetFlag { name: flag::SESSION_TOKEN_BUDGET.name.into(), value: "many".into() };
    let told = world.call("1s", person("olga"), None, set).unwrap_err().to_string();
    assert_eq!(told, "`value` CORECRUXD_SESSION_TOKEN_BUDGET takes tokens from 0 to 9007199254740991, not `many`");
}

fn set(world: &mut World, flag: flag::Definition, value: &str) {
    world.call("1s", person("olga"), None, SetFlag { name: flag.name.into(), value: value.into() }).unwrap();
}

fn make_passport(world: &mut World, name: &str) {
    let put = identity::PutToken {
        hash: identity::token_hash(name),
        tenant: "acme".into(),
        passport: name.into(),
        tier: Tier::Verified,
        scopes: ["a".to_string()].into(),
        expires_at: None,
    };
    world.call("0s", identity::system(), None, put).unwrap();
}

fn put(tokens: u64, beyond: Beyond) -> PutBudget {
    PutBudget { passport: "mara".into(), tokens, beyond }
}

#[test]
fn who_is_beyond_the_budget_of_all_is_told_as_the_flag_says_and_an_event_tells_of_it_once() {
    let mut world = World::new();
    set(&mut world, flag::SESSION_TOKEN_BUDGET, "100");
    let adds = |world: &mut World, tenant: &str, tokens| {
        world.call("1s", identity::system(), None, add(tenant, "mara", used(1, tokens, 0))).unwrap().over
    };
    assert_eq!(adds(&mut world, "acme", 100), [], "all of it may be used");
    let over = |used, beyond| [("mara".to_string(), Over { tokens: 100, used, beyond })];
    assert_eq!(adds(&mut world, "acme", 1), over(101, Beyond::Report));
    for (word, beyond) in [("warn", Beyond::Warn), ("stop", Beyond::Stop)] {
        set(&mut world, flag::BEYOND_TOKEN_BUDGET, word);
        assert_eq!(adds(&mut world, "acme", 0), over(101, beyond));
    }
    assert_eq!(adds(&mut world, CLUSTER, 101), over(101, Beyond::Report), "those without a passport share a count");
    let Watched::Events(events) = watch(&world.state, "acme", Revision(0), 1_000).unwrap() else { panic!("nothing is gone") };
    let told: Vec<_> = events.into_iter().filter(|event| event.kind == "usage.over_budget").collect();
    assert_eq!((told.len(), told[0].id.as_str(), &told[0].about["used"]), (1, "mara", &json!(101)));
}

#[test]
fn a_passports_own_budget_counts_from_when_it_is_set_and_goes_before_that_of_all() {
    let mut world = World::new();
    make_passport(&mut world, "mara");
    set(&mut world, flag::SESSION_TOKEN_BUDGET, "10");
    let adds =
        |world: &mut World, tokens| world.call("1s", identity::system(), None, add("acme", "mara", used(1, 0, tokens))).unwrap().over;
    assert_eq!(adds(&mut world, 50).len(), 1);
    let view = world.call("2s", person("olga"), None, put(20, Beyond::Stop)).unwrap();
    assert_eq!((view.used, view.budget.used_before, view.budget.set_by.as_str()), (0, 50, "olga"));
    assert_eq!(adds(&mut world, 20), []);
    assert_eq!(adds(&mut world, 1), [("mara".to_string(), Over { tokens: 20, used: 21, beyond: Beyond::Stop })]);
    let standing = read(&mut world, person("mara")).standing.unwrap();
    assert_eq!((standing.tokens, standing.used, standing.since), (20, 21, Some(view.budget.set_at)));
    world.call("3s", person("olga"), None, put(20, Beyond::Warn)).unwrap();
    assert_eq!(read(&mut world, person("mara")).standing.unwrap().used, 0, "set anew, it counts from nothing");
    let listed = world.ask("4s", person("olga"), ListBudgets { limit: 9, cursor: None }).unwrap().budgets;
    assert_eq!((listed.len(), listed[0].budget.beyond), (1, Beyond::Warn));
    world.call("5s", person("olga"), None, DeleteBudget { passport: "mara".into() }).unwrap();
    assert_eq!(read(&mut world, person("mara")).standing.unwrap().tokens, 10);
}

#[test]
fn budgets_are_set_by_operators_for_passports_of_their_tenant() {
    let mut world = World::new();
    let told = world.call("1s", person("olga"), None, put(1, Beyond::Stop)).unwrap_err();
    assert!(matches!(told, Refusal::NotFound { .. }), "{told}");
    make_passport(&mut world, "mara");
    let agent = Principal { scopes: ["crux-mcp.list_work".to_string()].into(), ..person("mara") };
    assert!(matches!(world.call("1s", agent.clone(), None, put(1, Beyond::Stop)), Err(Refusal::Denied { .. })));
    assert!(matches!(world.ask("1s", agent, ListBudgets { limit: 9, cursor: None }), Err(Refusal::Denied { .. })));
    let stranger = Principal { tenant: "other".into(), ..person("olga") };
    assert!(matches!(world.call("1s", stranger, None, put(1, Beyond::Stop)), Err(Refusal::NotFound { .. })));
    let none = world.call("1s", person("olga"), None, DeleteBudget { passport: "mara".into() });
    assert!(matches!(none, Err(Refusal::NotFound { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_is_the_sum_of_what_was_added(
        additions in prop::collection::vec(prop::collection::vec((0..3_usize, 0..9_u64, 0..99_u64, 0..99_u64), 0..4), 0..20),
    ) {
        let names = ["mara", "olga", "ben"];
        let mut world = World::new();
        let mut model: BTreeMap<&str, Used> = BTreeMap::new();
        for rows in additions {
            let rows: Vec<(&str, Used)> = rows.into_iter().map(|(who, calls, t_in, t_out)| (names[who], used(calls, t_in, t_out))).collect();
            rows.iter().for_each(|(who, used)| model.entry(who).or_default().add(*used));
            let rows = rows.into_iter().map(|(who, used)| (who.to_string(), used)).collect();
            world.call("1s", identity::system(), None, AddUsage { tenant: "acme".into(), used: rows }).unwrap();
        }
        for name in names {
            prop_assert_eq!(read(&mut world, person(name)).used, model.get(name).copied().unwrap_or_default());
        }
        prop_assert_eq!(read(&mut world, person("eve")).used, Used::default());
    }
}
