//! Transcripts of constraints, and of actions enriched.

use super::*;
use crate::transcript::{World, person};

fn declare(world: &mut World, constraint_type: ConstraintType, assertion: &str, severity: Severity) -> Result<Constraint, Refusal> {
    world.call("1s", person("mara"), None, DeclareConstraint { constraint_type, assertion: assertion.into(), severity })
}

fn describe(text: &str) -> Action {
    Action { description: Some(text.into()), ..Action::default() }
}

fn bash(command: &str) -> Action {
    Action { tool_name: Some("Bash".into()), parameters: Some(json!({ "command": command })), ..Action::default() }
}

fn check(world: &mut World, action: Action) -> (Verdict, Vec<(String, u32)>) {
    let checked = world.ask("2s", person("jon"), CheckConstraints { action }).unwrap();
    (checked.verdict, checked.matched.into_iter().map(|met| (met.assertion, met.score)).collect())
}

#[test]
fn a_critical_match_blocks_a_high_one_warns_and_lesser_ones_pass_and_are_listed() {
    for (severity, verdict) in [
        (Severity::Critical, Verdict::Block),
        (Severity::High, Verdict::Warn),
        (Severity::Medium, Verdict::Pass),
        (Severity::Low, Verdict::Pass),
    ] {
        let mut world = World::new();
        declare(&mut world, ConstraintType::Boundary, "Never deploy on a Friday", severity).unwrap();
        let met = vec![("Never deploy on a Friday".to_string(), 500_000)];
        assert_eq!(check(&mut world, describe("deploy the api")), (verdict, met));
        assert_eq!(check(&mut world, describe("never read the docs")), (Verdict::Pass, vec![]), "small words say nothing");
        assert_eq!(check(&mut world, describe("a deployment")), (Verdict::Pass, vec![]), "words match whole");
    }
}

#[test]
fn an_action_of_nothing_passes_and_is_told_so() {
    let mut world = World::new();
    declare(&mut world, ConstraintType::Policy, "deploy nothing", Severity::Critical).unwrap();
    let checked = world.ask("2s", person("jon"), CheckConstraints { action: Action::default() }).unwrap();
    assert_eq!((checked.verdict, checked.nothing_given), (Verdict::Pass, true));
    assert!(!world.ask("2s", person("jon"), CheckConstraints { action: describe("look") }).unwrap().nothing_given);
}

#[test]
fn a_shell_pattern_is_a_regular_expression_over_the_commands_of_shells_alone() {
    let mut world = World::new();
    declare(&mut world, ConstraintType::ShellPattern, r"rm\s+-rf", Severity::Critical).unwrap();
    let met = (Verdict::Block, vec![(r"rm\s+-rf".to_string(), 1_000_000)]);
    assert_eq!(check(&mut world, bash("cd / && rm   -rf x")), met);
    assert_eq!(check(&mut world, bash("ls -rf")), (Verdict::Pass, vec![]));
    assert_eq!(check(&mut world, describe("rm -rf x")), (Verdict::Pass, vec![]));
    let other = Action { tool_name: Some("Write".into()), ..bash("rm -rf x") };
    assert_eq!(check(&mut world, other), (Verdict::Pass, vec![]));
    assert_eq!(pattern_problem(r"rm\s+"), None);
    assert!(pattern_problem("rm (").is_some());
    // One that this version can't read stands for every command.
    declare(&mut world, ConstraintType::ShellPattern, "rm (", Severity::High).unwrap();
    assert_eq!(check(&mut world, bash("ls")).0, Verdict::Warn);
}

#[test]
fn a_tool_is_enriched_before_its_words_are_compared() {
    let mut world = World::new();
    declare(&mut world, ConstraintType::Boundary, "nothing irreversible", Severity::High).unwrap();
    let action = Action { tool_name: Some("drop_table".into()), ..Action::default() };
    assert_eq!(check(&mut world, action).0, Verdict::Warn);
    assert_eq!(check(&mut world, describe("drop table")).0, Verdict::Pass, "without a tool, only what was said");
}

#[test]
fn an_assertion_stands_once_and_the_worst_come_first() {
    let mut world = World::new();
    let first = declare(&mut world, ConstraintType::Policy, "b", Severity::Low).unwrap();
    declare(&mut world, ConstraintType::Policy, "a", Severity::Low).unwrap();
    assert_eq!(declare(&mut world, ConstraintType::Policy, "b", Severity::Low), Ok(first.clone()));
    let moved = declare(&mut world, ConstraintType::Policy, "b", Severity::Critical).unwrap();
    assert_eq!(moved.constraint_id, first.constraint_id);
    assert_ne!(moved.hash(), first.hash());
    declare(&mut world, ConstraintType::ShellPattern, "c", Severity::High).unwrap();
    let mut list = |constraint_type, limit, cursor| {
        let page = world.ask("2s", person("jon"), ListConstraints { constraint_type, limit, cursor }).unwrap();
        (page.constraints.into_iter().map(|known| known.assertion).collect::<Vec<_>>(), page.next_cursor)
    };
    assert_eq!(list(None, 10, None), (vec!["b".into(), "c".into(), "a".into()], None));
    assert_eq!(list(Some(ConstraintType::ShellPattern), 10, None).0, ["c"]);
    let (page, cursor) = list(None, 2, None);
    assert_eq!((page.len(), list(None, 2, cursor).0), (2, vec!["a".to_string()]));
    assert!(
        world.ask("2s", person("eve"), ListConstraints { constraint_type: None, limit: 10, cursor: None }).unwrap().constraints.is_empty()
    );
}

#[test]
fn constraints_are_bounded_in_number_and_length() {
    let mut world = World::new();
    for bad in ["", "  ", "a\0b", &"x".repeat(ASSERTION_BYTES_MAX + 1)] {
        assert_eq!(declare(&mut world, ConstraintType::Policy, bad, Severity::Low).unwrap_err().code(), "-32602");
    }
    for n in 0..CONSTRAINTS_MAX {
        declare(&mut world, ConstraintType::Policy, &format!("rule{n} {}", "x".repeat(900)), Severity::Low).unwrap();
    }
    assert_eq!(declare(&mut world, ConstraintType::Policy, "one more", Severity::Low).unwrap_err().code(), "FULL");
    let (mut cursor, mut seen) = (None, 0);
    loop {
        let page = world.ask("2s", person("jon"), ListConstraints { constraint_type: None, limit: 1_000, cursor }).unwrap();
        assert!(json!(page.constraints).to_string().len() <= REPLY_BYTES_DEFAULT);
        seen += page.constraints.len();
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, CONSTRAINTS_MAX);
    let all: Vec<String> = (0..CONSTRAINTS_MAX).map(|n| format!("rule{n}")).collect();
    let checked = world.ask("2s", person("jon"), CheckConstraints { action: describe(&all.join(" ")) }).unwrap();
    assert_eq!((checked.matched_count, checked.matched.len() < CONSTRAINTS_MAX), (CONSTRAINTS_MAX as u64, true));
}

#[test]
fn an_action_is_told_by_its_words_and_always_alike() {
    let mut world = World::new();
    declare(&mut world, ConstraintType::Relationship, "ask olga before refund", Severity::Low).unwrap();
    let parameters =
        json!({ "to": ["ben@acme"], "total": "x", "invoice_id": "i7", "before": 1, "after": 2, "nested": { "owner": "olga" } });
    let action = Action { tool_name: Some("refundPayment".into()), parameters: Some(parameters), ..Action::default() };
    let told = world.ask("2s", person("jon"), EnrichAction { action: action.clone() }).unwrap();
    let proposal = &told.proposal;
    assert_eq!(
        (proposal.reversibility.as_str(), proposal.idempotency.as_str(), proposal.domain.as_str()),
        ("irreversible", "must_not_retry", "general")
    );
    assert_eq!(proposal.consequences, ["money"]);
    assert_eq!(proposal.principals, [json!({ "role": "recipient", "name": "ben@acme" }), json!({ "role": "owner", "name": "olga" })]);
    assert_eq!(proposal.resources, [json!({ "kind": "invoice_id", "name": "i7" })]);
    assert_eq!(proposal.state_diff, json!({ "before": 1, "after": 2 }));
    assert_eq!(told.relationships.len(), 1);
    assert_eq!(world.ask("9s", person("jon"), EnrichAction { action: action.clone() }).unwrap(), told);
    let reads = propose("list_files", Some("in the capital"), &json!({}));
    assert_eq!((reads.reversibility.as_str(), reads.blast_radius.as_str(), reads.state_diff), ("reversible", "self_only", Value::Null));
    for bad in [
        Action { tenant_id: Some("other".into()), ..action.clone() },
        Action { tool_name: None, ..action.clone() },
        Action { parameters: Some(json!({ "a": "x".repeat(STATE_BYTES_MAX) })), ..action },
    ] {
        assert!(world.ask("2s", person("jon"), EnrichAction { action: bad }).is_err());
    }
}
