use expect_test::expect;

use super::*;
use crate::flag::SetFlag;
use crate::identity;
use crate::limit::{ACTIVITY_ROWS_MAX, TRACES_PER_PASSPORT_MAX, TRACES_PER_TENANT_MAX};
use crate::record::kind_prefix;
use crate::stamp::Principal;
use crate::transcript::{World, person};
use crate::tx::{Direction, Read, Table};

fn trace(tool: &str, signature: &str, tokens_out: u64) -> Trace {
    Trace {
        tool: tool.into(),
        ts_us: 1_900_000_000_000_000,
        outcome: "ok".into(),
        reads: true,
        signature: signature.into(),
        tokens_out,
        ..Trace::default()
    }
}

fn of(passport: &str, traces: Vec<Trace>) -> AddMeasures {
    AddMeasures { tenant: "acme".into(), traces: vec![PassportTraces { passport: passport.into(), traces, not_kept: 0 }], samples: None }
}

fn add(world: &mut World, time: &str, more: AddMeasures) {
    world.call(time, identity::system(), None, more).unwrap();
}

fn set(world: &mut World, flag: flag::Definition, value: &str) {
    world.call("0s", person("olga"), None, SetFlag { name: flag.name.into(), value: value.into() }).unwrap();
}

fn recent(top_k: u64, cursor: Option<String>) -> RecentTraces {
    RecentTraces { turn_id: None, top_k, token_budget: 2_000, cursor }
}

fn tools(found: &Traces) -> Vec<&str> {
    found.traces.iter().map(|trace| trace.tool.as_str()).collect()
}

fn activity(session: &str, kinds: &[ActivityKind]) -> RecentActivity {
    RecentActivity { session_id: session.into(), tenant_id: None, since: 0, kinds: kinds.into(), token_budget: 0, cursor: None }
}

fn turn(session: &str, kind: ActivityKind, text: &str, private: bool) -> AppendActivity {
    AppendActivity {
        session_id: session.into(),
        kind,
        text: text.into(),
        private,
        intent: None,
        tool: None,
        confidence: None,
        fact_refs: Vec::new(),
        receipt_ids: Vec::new(),
    }
}

fn told(found: &RecentActivities) -> Vec<String> {
    found.rows.iter().map(|row| format!("{} {} {}", row.seq, row.kind.word(), row.preview)).collect()
}

/// All rows of this family but the sums of whole lists.
fn rows_left(world: &World) -> usize {
    let mut left = 0;
    for (table, kind) in [
        (Table::Records, Kind::TraceBatch),
        (Table::Records, Kind::TracesKept),
        (Table::Records, Kind::Activity),
        (Table::Index, Kind::Activity),
        (Table::Index, Kind::MeasureByDeadline),
    ] {
        for tenant in [CLUSTER, "acme"] {
            let rows = kind_prefix(tenant, kind);
            left += world.state.scan_bytes(table, rows.as_bytes(), &rows.after_prefix(), Direction::Ascending, 1_000).unwrap().len();
        }
    }
    left
}

#[test]
fn traces_come_newest_first_page_by_page_and_to_their_own_passport_alone() {
    let mut world = World::new();
    add(&mut world, "1s", of("mara", ["a", "b", "c"].map(|tool| trace(tool, tool, 1)).into()));
    add(&mut world, "2s", of("mara", ["d", "e"].map(|tool| trace(tool, tool, 1)).into()));
    let whole = world.ask("3s", person("mara"), recent(50, None)).unwrap();
    assert_eq!(tools(&whole), ["e", "d", "c", "b", "a"]);
    assert_eq!((whole.truncated, whole.next_cursor), (None, None));
    let (mut cursor, mut paged) = (None, Vec::new());
    loop {
        let page = world.ask("3s", person("mara"), recent(2, cursor)).unwrap();
        paged.extend(page.traces.iter().map(|trace| trace.tool.clone()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
        assert_eq!(page.truncated.as_deref(), Some("top_k"));
    }
    assert_eq!(paged, ["e", "d", "c", "b", "a"]);
    assert_eq!(world.ask("3s", person("olga"), recent(50, None)).unwrap().traces, []);
    // The same name in another tenant is another passport.
    assert_eq!(world.ask("3s", Principal { tenant: "other".into(), ..person("mara") }, recent(50, None)).unwrap().traces, []);
    let told = world.call("4s", person("mara"), None, of("mara", vec![trace("a", "a", 1)])).unwrap_err().to_string();
    assert_eq!(told, "calls are measured by gateways only");
}

#[test]
fn a_page_ends_within_its_budget_and_goes_on_where_it_ended() {
    let mut world = World::new();
    add(&mut world, "1s", of("mara", ["a", "b", "c"].map(|tool| trace(tool, tool, 1)).into()));
    let first = world.ask("1s", person("mara"), RecentTraces { token_budget: 120, ..recent(50, None) }).unwrap();
    assert_eq!((tools(&first), first.truncated.as_deref()), (vec!["c"], Some("token_budget")));
    let rest = world.ask("1s", person("mara"), recent(50, first.next_cursor.clone())).unwrap();
    assert_eq!(tools(&rest), ["b", "a"]);
    let foreign = world.ask("1s", person("olga"), recent(50, first.next_cursor)).unwrap_err();
    assert_eq!(foreign.code(), "-32602");
}

#[test]
fn a_turn_narrows_and_what_is_reserved_is_left_out() {
    let mut world = World::new();
    let effect = |entity: &str| Effect { kind: "fact_write".into(), entity: entity.into(), key: "k".into() };
    let tagged = Trace {
        turn_id: Some("t1".into()),
        effects: vec![effect("svc:api"), effect("__ops::secret"), effect("__agent::mara::diary")],
        ..trace("store_fact", "s", 1)
    };
    add(&mut world, "1s", of("mara", vec![trace("a", "a", 1), tagged, trace("b", "b", 1)]));
    let found = world.ask("1s", person("mara"), RecentTraces { turn_id: Some("t1".into()), ..recent(50, None) }).unwrap();
    assert_eq!(tools(&found), ["store_fact"]);
    assert_eq!(found.traces[0].effects, [effect("svc:api")]);
}

#[test]
fn traces_end_by_the_lease_clock_and_leave_nothing() {
    let mut world = World::new();
    set(&mut world, flag::TOOL_TRACES_TTL, "60");
    add(&mut world, "1s", of("mara", vec![trace("a", "a", 1)]));
    add(&mut world, "30s", of("mara", vec![trace("b", "b", 1)]));
    assert_eq!(tools(&world.ask("60s", person("mara"), recent(9, None)).unwrap()), ["b", "a"]);
    // Gone in the moment of its deadline, swept or not.
    assert_eq!(tools(&world.ask("61s", person("mara"), recent(9, None)).unwrap()), ["b"]);
    world.tick("61s");
    assert_eq!(tools(&world.ask("61s", person("mara"), recent(9, None)).unwrap()), ["b"]);
    world.tick("90s");
    assert_eq!(rows_left(&world), 0);
}

#[test]
fn batches_of_a_shorter_life_leave_before_older_ones() {
    let mut world = World::new();
    add(&mut world, "1s", of("mara", vec![trace("long", "a", 1)]));
    set(&mut world, flag::TOOL_TRACES_TTL, "60");
    add(&mut world, "2s", of("mara", vec![trace("short", "b", 1)]));
    world.tick("62s");
    assert_eq!(tools(&world.ask("62s", person("mara"), recent(9, None)).unwrap()), ["long"]);
    for n in 0..TRACES_PER_PASSPORT_MAX {
        add(&mut world, "63s", of("mara", vec![trace(&format!("n{n}"), "c", 1)]));
    }
    assert_eq!(world.ask("63s", person("mara"), recent(99, None)).unwrap().traces.len() as u64, TRACES_PER_PASSPORT_MAX);
    world.tick("2h");
    assert_eq!(rows_left(&world), 0);
}

#[test]
fn a_full_ring_loses_its_oldest_and_a_full_tenant_counts_what_it_does_not_keep() {
    let mut world = World::new();
    for n in 0..TRACES_PER_PASSPORT_MAX + 3 {
        add(&mut world, "1s", of("mara", vec![trace(&format!("t{n}"), "s", 1)]));
    }
    let found = world.ask("1s", person("mara"), recent(50, None)).unwrap();
    assert_eq!((found.traces.len() as u64, found.traces.last().unwrap().tool.as_str()), (TRACES_PER_PASSPORT_MAX, "t3"));
    let rest = (TRACES_PER_TENANT_MAX - TRACES_PER_PASSPORT_MAX) as usize;
    add(&mut world, "1s", of("jon", vec![trace("a", "a", 1); rest]));
    add(&mut world, "1s", of("olga", vec![trace("a", "a", 1); 2]));
    let late = world.ask("1s", person("olga"), recent(50, None)).unwrap();
    assert_eq!((late.traces.len(), late.not_kept), (0, 2));
    let missed = PassportTraces { passport: "mara".into(), traces: Vec::new(), not_kept: 7 };
    add(&mut world, "1s", AddMeasures { traces: vec![missed], ..of("mara", Vec::new()) });
    assert_eq!(world.ask("1s", person("mara"), recent(50, None)).unwrap().not_kept, 7);
}

#[test]
fn what_is_handed_over_is_bounded_and_switched_off_with_its_flag() {
    let mut world = World::new();
    let many = of("mara", vec![trace("a", "a", 1); TRACES_PER_ADDITION_MAX + 1]);
    let mut refused = |more: AddMeasures| world.call("1s", identity::system(), None, more).unwrap_err().to_string();
    assert_eq!(refused(many), "`traces` is 201 entries long, and the limit is 200 entries");
    assert_eq!(refused(of("", Vec::new())), "`passport` must not be empty");
    assert_eq!(refused(of("mara", vec![trace("a", &"x".repeat(401), 1)])), "`signature` is 401 bytes long, and the limit is 400 bytes");
    set(&mut world, flag::TOOL_TRACES, "off");
    add(&mut world, "1s", of("mara", vec![trace("a", "a", 1)]));
    let off = world.ask("1s", person("mara"), recent(9, None)).unwrap();
    assert_eq!((off.enabled, off.traces.len()), (false, 0));
    assert!(!world.ask("1s", person("mara"), Learn { min_repeats: 3, scan: 10 }).unwrap().enabled);
    set(&mut world, flag::TOOL_TRACES, "on");
    assert_eq!(world.ask("1s", person("mara"), recent(9, None)).unwrap().traces, []);
}

#[test]
fn loops_are_told_by_what_they_wasted() {
    let mut world = World::new();
    let refused = |signature: &str| Trace { outcome: "refused".into(), reads: false, ..trace("punch_in", signature, 5) };
    let written = Trace { reads: false, ..trace("store_fact", "store", 100) };
    let mut calls = vec![trace("query_facts", "big", 50), trace("query_facts", "big", 40), trace("query_facts", "big", 60)];
    calls.extend([written.clone(), written.clone(), written]);
    add(&mut world, "1s", of("mara", calls));
    add(&mut world, "2s", of("mara", vec![refused("held"), refused("held"), refused("held"), trace("learn", "l", 9)]));
    let learn = |min_repeats, scan| Learn { min_repeats, scan };
    let found = world.ask("3s", person("mara"), learn(3, 12)).unwrap();
    let told: Vec<String> =
        found.proposals.iter().map(|p| format!("{} x{} {}: {}", p.signature, p.occurrences, p.wasted_tokens, p.draft_guardrail)).collect();
    expect![[r#"
        big x3 100: Before calling `query_facts` again with the same arguments (3 calls, 100 tokens beyond the first), use the answer at hand; ask again only after a change that you were told of, or go on from `next_cursor`.
        held x3 10: Stop calling `punch_in` again with the same arguments after a refusal (3 of 3 calls): do what the refusal says, or ask a person."#]]
    .assert_eq(&told.join("\n"));
    assert_eq!(found.scanned, 10);
    assert_eq!(world.ask("3s", person("mara"), learn(4, 12)).unwrap().proposals, []);
    // Only the newest are looked at.
    let newest = world.ask("3s", person("mara"), learn(3, 4)).unwrap();
    assert_eq!((newest.scanned, newest.proposals.len()), (4, 1));
    assert_eq!(world.ask("3s", person("mara"), learn(1, 4)).unwrap_err().to_string(), "`min_repeats` must be 2 or more, not 1");
    assert_eq!(world.ask("3s", person("mara"), learn(2, 0)).unwrap_err().code(), "-32602");
    assert_eq!(world.ask("3s", person("olga"), learn(2, 4)).unwrap().scanned, 0);
}

#[test]
fn samples_add_up_under_one_fraction_and_begin_anew_under_another() {
    let mut world = World::new();
    let samples = |fraction_millionths, tokens: &[u64]| {
        let mut samples = Samples { fraction_millionths, ..Samples::default() };
        tokens.iter().for_each(|tokens| samples.treatment.count(*tokens));
        samples.control.count(9);
        AddMeasures { tenant: "acme".into(), traces: Vec::new(), samples: Some(samples) }
    };
    add(&mut world, "1s", samples(50_000, &[1]));
    let read = |world: &mut World| world.ask("2s", person("mara"), GetSavings {}).unwrap().samples;
    assert_eq!(read(&mut world), Samples::default());
    set(&mut world, flag::OUTPUT_HOLDOUT, "0.05");
    add(&mut world, "1s", samples(50_000, &[3, 5]));
    add(&mut world, "1s", samples(50_000, &[2]));
    add(&mut world, "1s", samples(60_000, &[100]));
    let found = read(&mut world);
    assert_eq!(found.treatment, ArmSums { n: 3, tokens: 10, squares: 38 });
    assert_eq!(found.control, ArmSums { n: 2, tokens: 18, squares: 162 });
    set(&mut world, flag::OUTPUT_HOLDOUT, "0.06");
    assert_eq!(read(&mut world), Samples { fraction_millionths: 60_000, ..Samples::default() });
    add(&mut world, "1s", samples(60_000, &[7]));
    assert_eq!(read(&mut world).treatment.n, 1);
}

#[test]
fn a_session_tells_its_turns_newest_first_and_keeps_private_ones_private() {
    let mut world = World::new();
    world.call("1s", person("mara"), None, turn("build-42", ActivityKind::Question, "why does\n the build fail?", false)).unwrap();
    world.call("2s", person("mara"), None, turn("build-42", ActivityKind::Reasoning, "a secret guess", true)).unwrap();
    let answer =
        world.call("3s", person("jon"), None, turn("build-42", ActivityKind::Answer, "see (__ops::keys) in svc:api", false)).unwrap();
    let call = Trace { session_id: Some("build-42".into()), duration_ms: 12, ..trace("get_session", "s", 1) };
    add(&mut world, "4s", of("mara", vec![call, trace("elsewhere", "s", 1)]));
    let mara = world.ask("5s", person("mara"), activity("build-42", &[])).unwrap();
    expect![[r#"
        4 command get_session (ok, 12 ms)
        3 answer see [reserved] in svc:api
        2 reasoning a secret guess
        1 question why does the build fail?"#]]
    .assert_eq(&told(&mara).join("\n"));
    let jon = world.ask("5s", person("jon"), activity("build-42", &[])).unwrap();
    assert_eq!(told(&jon), ["3 answer see [reserved] in svc:api", "1 question why does the build fail?"]);
    let since = RecentActivity { since: 1, ..activity("build-42", &[ActivityKind::Question, ActivityKind::Answer]) };
    assert_eq!(told(&world.ask("5s", person("mara"), since).unwrap()).len(), 1);
    let whole = world.ask("5s", person("mara"), GetActivityTurn { turn_id: answer.turn_id.clone() }).unwrap();
    assert_eq!((whole.text.as_str(), whole.session_id.as_str()), ("see (__ops::keys) in svc:api", "build-42"));
    let secret = mara.rows[2].turn_id.clone();
    assert!(world.ask("5s", person("mara"), GetActivityTurn { turn_id: secret.clone() }).is_ok());
    for (who, id) in [("jon", secret), ("eve", answer.turn_id)] {
        assert_eq!(world.ask("5s", person(who), GetActivityTurn { turn_id: id }).unwrap_err().code(), "NOT_FOUND");
    }
    assert_eq!(world.ask("5s", person("eve"), activity("build-42", &[])).unwrap().rows, []);
    let claimed = RecentActivity { tenant_id: Some("acme".into()), ..activity("build-42", &[]) };
    assert_eq!(world.ask("5s", person("eve"), claimed).unwrap_err().code(), "NOT_FOUND");
}

#[test]
fn a_session_keeps_its_last_rows_and_pages_within_a_budget() {
    let mut world = World::new();
    for n in 1..=ACTIVITY_ROWS_MAX + 2 {
        world.call("1s", person("mara"), None, turn("s", ActivityKind::Command, &format!("step {n}"), false)).unwrap();
    }
    let (mut cursor, mut seen) = (None, Vec::new());
    loop {
        let page = RecentActivity { token_budget: 150, cursor, ..activity("s", &[]) };
        let page = world.ask("1s", person("mara"), page).unwrap();
        assert_eq!(page.truncated, page.next_cursor.is_some());
        seen.extend(page.rows.iter().map(|row| row.seq));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, (3..=ACTIVITY_ROWS_MAX + 2).rev().collect::<Vec<_>>());
    assert_eq!(world.ask("1s", person("mara"), activity("s", &[])).unwrap().token_budget, 500);
    world.tick("366d");
    assert_eq!(rows_left(&world), 0);
}

#[test]
fn a_journal_that_is_off_says_so() {
    let mut world = World::new();
    set(&mut world, flag::ACTIVITY_LOG, "off");
    let off = world.call("1s", person("mara"), None, turn("s", ActivityKind::Answer, "a", false)).unwrap_err().to_string();
    assert_eq!(off, "the activity log is switched off by the flag `CORECRUXD_FEATURE_ACTIVITY_LOG`");
    assert!(!world.ask("1s", person("mara"), activity("s", &[])).unwrap().enabled);
    add(&mut world, "1s", of("mara", vec![Trace { session_id: Some("s".into()), ..trace("a", "a", 1) }]));
    set(&mut world, flag::ACTIVITY_LOG, "on");
    assert_eq!(world.ask("1s", person("mara"), activity("s", &[])).unwrap().rows, []);
    for (bad, why) in [("", "`text` must not be empty"), (&*"x".repeat(16_385), "`text` is 16385 bytes long, and the limit is 16384 bytes")]
    {
        let told = world.call("1s", person("mara"), None, turn("s", ActivityKind::Answer, bad, false)).unwrap_err().to_string();
        assert_eq!(told, why);
    }
}

/// Ids of one entry, which may write into many sessions, differ.
#[test]
fn turns_of_one_entry_have_ids_of_their_own() {
    let mut world = World::new();
    let calls = (0..50).map(|n| Trace { session_id: Some(format!("s{n}")), ..trace("a", "a", 1) }).collect();
    add(&mut world, "1s", of("mara", calls));
    let turns = kind_prefix("acme", Kind::Activity);
    let rows = world.state.scan_bytes(Table::Index, turns.as_bytes(), &turns.after_prefix(), Direction::Ascending, 99).unwrap();
    assert_eq!(rows.len(), 50);
}
