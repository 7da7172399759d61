use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::flag::SetFlag;
use crate::identity;
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
    let expected = Usage { passport: "mara".into(), used: used(3, 11, 22), limit: None };
    assert_eq!(read(&mut world, person("mara")), expected);
    assert_eq!(read(&mut world, person("olga")).used, Used::default());
    assert_eq!(read(&mut world, anonymous()), Usage { passport: ANONYMOUS.into(), used: used(1, 1, 1), limit: None });
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
