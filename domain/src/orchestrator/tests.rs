use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::command::CommandKind;
use crate::flag::SetFlag;
use crate::identity::{PutToken, token_hash};
use crate::limit::{NAME_BYTES_MAX, REPLY_BYTES_MAX};
use crate::stamp::Tier;
use crate::transcript::{World, person};
use crate::work::{CreateWork, DEFAULT_PROJECT, GetWork, MoveWork};

const STATES: [State; 4] = [State::Planned, State::Active, State::Done, State::Archived];

struct Team(World);

impl Team {
    fn new() -> Self {
        Self(World::new())
    }

    fn tries<C: CommandKind>(&mut self, command: C) -> Result<C::Output, Refusal> {
        self.0.call("1s", person("mara"), None, command)
    }

    fn does<C: CommandKind>(&mut self, command: C) -> C::Output {
        self.tries(command).unwrap()
    }

    fn creates(&mut self, name: &str) -> String {
        self.does(create(name)).orchestrator.id
    }

    fn work(&mut self, title: &str) -> String {
        self.does(create_work(title)).id
    }

    fn moves(&mut self, work_id: &str, state: work::State) {
        let blocker_reason = (state == work::State::Blocked).then(|| "why".to_string());
        let command = MoveWork {
            work_id: work_id.into(),
            state,
            by_passport: "mara".into(),
            blocker_reason,
            blocker_kind: None,
            expected_state: None,
            assignee_passport: None,
            depends_on: None,
        };
        self.does(command);
    }

    fn passport(&mut self, name: &str) {
        let scopes = BTreeSet::new();
        let put = PutToken {
            hash: token_hash(name),
            tenant: "acme".into(),
            passport: name.into(),
            tier: Tier::Verified,
            scopes,
            expires_at: None,
        };
        self.0.call("1s", person("olga"), None, put).unwrap();
    }

    /// How many events tell of a change of it.
    fn changes(&self, id: &str) -> usize {
        let watched = event::watch(&self.0.state, "acme", Revision(0), 1_000).unwrap();
        let event::Watched::Events(events) = watched else { panic!("so few events are all kept") };
        events.iter().filter(|event| event.kind == "orchestrator.changed" && event.id == id).count()
    }

    fn attaches(&mut self, to: &str, reference: &str) -> Result<OrchestratorView, Refusal> {
        self.tries(attach(to, reference))
    }

    /// All pages of a list.
    fn listed(&mut self, who: &str, state: Option<State>, limit: u64) -> Vec<OrchestratorView> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.0.ask("1s", person(who), ListOrchestrators { tenant_id: None, state, limit, cursor }).unwrap();
            assert!(page.orchestrators.len() as u64 <= limit);
            found.extend(page.orchestrators);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return found;
            }
        }
    }

    fn stamped(&mut self, work_id: &str) -> Option<String> {
        let found = self.0.ask("1s", person("mara"), GetWork { work_id: work_id.into(), limit: 1, cursor: None }).unwrap();
        found.work.unwrap().orchestrator_id
    }
}

fn create(name: &str) -> CreateOrchestrator {
    let (name, created_by_passport) = (name.into(), "mara".into());
    CreateOrchestrator { name, created_by_passport, assignee_passport: None, tenant_id: None, state: None }
}

fn create_work(title: &str) -> CreateWork {
    CreateWork {
        project_id: DEFAULT_PROJECT.into(),
        title: title.into(),
        created_by_passport: "mara".into(),
        body: None,
        state: None,
        assignee_passport: None,
        tenant_id: None,
        linked_pr: None,
        linked_issue: None,
        blocker_reason: None,
        depends_on: Vec::new(),
    }
}

fn attach(to: &str, reference: &str) -> AttachMember {
    AttachMember { orchestrator_id: to.into(), member_ref: reference.into(), member_type: None }
}

fn detach(from: &str, reference: &str) -> DetachMember {
    DetachMember { orchestrator_id: from.into(), member_ref: reference.into() }
}

fn update(id: &str, state: State) -> UpdateOrchestrator {
    UpdateOrchestrator { orchestrator_id: id.into(), name: None, assignee_passport: None, state: Some(state) }
}

fn members(view: &OrchestratorView) -> Vec<String> {
    view.orchestrator.members.iter().map(|member| format!("{} {}", member.kind.word(), member.reference)).collect()
}

#[test]
fn it_begins_as_planned_and_empty_and_belongs_to_its_creator_and_his_team() {
    let mut team = Team::new();
    team.passport("lead");
    let made = team.does(CreateOrchestrator { assignee_passport: Some("lead".into()), ..create("release") });
    let Orchestrator { id, tenant, name, assignee, created_by, state, members, .. } = made.orchestrator;
    assert!(id.starts_with("orc_"), "{id}");
    assert_eq!((tenant.as_str(), name.as_str(), assignee.as_deref(), created_by.as_str()), ("acme", "release", Some("lead"), "mara"));
    assert_eq!((state, members), (State::Planned, vec![]));
    assert_eq!(team.does(CreateOrchestrator { state: Some(State::Active), ..create("b") }).orchestrator.state, State::Active);

    let refused = |team: &mut Team, command: CreateOrchestrator| team.tries(command).unwrap_err().to_string();
    let other = CreateOrchestrator { created_by_passport: "olga".into(), ..create("a") };
    assert_eq!(refused(&mut team, other), "`created_by_passport` is not the caller, who is `mara`");
    let foreign = CreateOrchestrator { tenant_id: Some("other".into()), ..create("a") };
    assert_eq!(refused(&mut team, foreign), "there is no tenant `other`");
    assert_eq!(refused(&mut team, create(" ")), "`name` must not be empty");
    let nul = CreateOrchestrator { assignee_passport: Some("a\0b".into()), ..create("a") };
    assert_eq!(refused(&mut team, nul), "`assignee_passport` must not hold control characters");
}

#[test]
fn every_kind_of_member_is_attached_once_and_known_by_the_beginning_of_its_reference() {
    let mut team = Team::new();
    let id = team.creates("release");
    let item = team.work("parser");
    team.passport("ben");
    for reference in [item.as_str(), "execplan:ship-it", "ho_1", "handoff:night", "ben", "ben"] {
        team.attaches(&id, reference).unwrap();
    }
    let after = team.attaches(&id, "ho_1").unwrap();
    let expected = [format!("work {item}"), "execplan execplan:ship-it".into(), "handoff ho_1".into(), "handoff handoff:night".into()];
    assert_eq!(members(&after)[..4], expected);
    assert_eq!(members(&after)[4..], ["passport ben"], "what is attached again stays as it is");

    let named = AttachMember { member_type: Some(MemberKind::Execplan), ..attach(&id, "plan-of-another-name") };
    assert_eq!(members(&team.does(named)).last().unwrap(), "execplan plan-of-another-name");
    let another_kind = AttachMember { member_type: Some(MemberKind::Passport), ..attach(&id, "ho_1") };
    let told = team.tries(another_kind).unwrap_err().to_string();
    assert_eq!(told, "`member_type` is `passport`, and that member was attached as `handoff`; detach it first");
}

#[test]
fn work_and_passports_have_to_be_of_the_team_to_be_attached() {
    let mut team = Team::new();
    let id = team.creates("release");
    let foreign = team.0.call("1s", person("eve"), None, CreateWork { created_by_passport: "eve".into(), ..create_work("x") }).unwrap();
    for (reference, kind) in [(foreign.id.as_str(), "work"), ("w_none", "work"), ("nobody", "passport")] {
        assert_eq!(team.attaches(&id, reference), Err(Refusal::not_found(kind, reference)));
    }
    assert_eq!(team.attaches(&id, ""), Err(Refusal::invalid("member_ref", "must not be empty")));
    assert_eq!(team.attaches("orc_none", "ho_1"), Err(Refusal::not_found("orchestrator", "orc_none")));
    assert_eq!(team.listed("mara", None, 5)[0].orchestrator.members, [], "what was refused left nothing");
}

#[test]
fn another_team_neither_sees_nor_changes_it() {
    let mut team = Team::new();
    let id = team.creates("release");
    team.attaches(&id, "ho_1").unwrap();
    assert_eq!(team.listed("eve", None, 5), []);
    let missing = Refusal::not_found("orchestrator", id.clone());
    assert_eq!(team.0.call("1s", person("eve"), None, attach(&id, "ho_2")).unwrap_err(), missing);
    assert_eq!(team.0.call("1s", person("eve"), None, detach(&id, "ho_1")).unwrap_err(), missing);
    assert_eq!(team.0.call("1s", person("eve"), None, update(&id, State::Done)).unwrap_err(), missing);
}

#[test]
fn a_member_is_detached_once_and_can_come_back() {
    let mut team = Team::new();
    let id = team.creates("release");
    team.attaches(&id, "ho_1").unwrap();
    team.attaches(&id, "ho_2").unwrap();
    assert_eq!(members(&team.does(detach(&id, "ho_1"))), ["handoff ho_2"]);
    assert_eq!(team.tries(detach(&id, "ho_1")), Err(Refusal::not_found("member", "ho_1")));
    assert_eq!(members(&team.attaches(&id, "ho_1").unwrap()), ["handoff ho_2", "handoff ho_1"]);
}

#[test]
fn an_item_of_work_names_the_orchestrator_that_it_was_attached_to_last() {
    let mut team = Team::new();
    let (first, second, item) = (team.creates("a"), team.creates("b"), team.work("parser"));
    assert_eq!(team.stamped(&item), None);
    team.attaches(&first, &item).unwrap();
    team.attaches(&second, &item).unwrap();
    team.does(detach(&first, &item));
    assert_eq!(team.stamped(&item), Some(second.clone()), "it is not detached from that one");
    team.moves(&item, work::State::Complete);
    assert_eq!(team.stamped(&item), Some(second.clone()), "a move leaves it");
    team.does(detach(&second, &item));
    assert_eq!(team.stamped(&item), None);
}

#[test]
fn a_state_of_archived_closes_the_orchestrator() {
    let mut team = Team::new();
    let (id, item) = (team.creates("release"), team.work("parser"));
    team.attaches(&id, &item).unwrap();
    assert_eq!(team.does(update(&id, State::Archived)).orchestrator.state, State::Archived);
    let closed = "`orchestrator_id` is of an orchestrator that is archived, which nothing changes any more; create another";
    assert_eq!(team.attaches(&id, "ho_1").unwrap_err().to_string(), closed);
    assert_eq!(team.tries(detach(&id, &item)).unwrap_err().to_string(), closed);
    assert_eq!(team.tries(update(&id, State::Active)).unwrap_err().to_string(), closed);
    team.moves(&item, work::State::Deployed);
    let shown = team.listed("mara", Some(State::Archived), 5).remove(0);
    assert_eq!(shown.work, [(item, work::State::Deployed)].into(), "its work goes on, and it shows how that stands");
}

#[test]
fn it_is_done_when_its_work_is_and_does_not_go_back_to_planned() {
    let mut team = Team::new();
    let (id, item, other) = (team.creates("release"), team.work("parser"), team.work("lexer"));
    team.attaches(&id, &item).unwrap();
    for kind in ["execplan:ship", "ho_1"] {
        team.attaches(&id, kind).unwrap();
    }
    assert_eq!(team.does(update(&id, State::Active)).orchestrator.state, State::Active);
    let back = "`state` can't be `planned` again after `active`: it has begun; set it to `active`, or create another";
    assert_eq!(team.tries(update(&id, State::Planned)).unwrap_err().to_string(), back);
    for state in [work::State::InProgress, work::State::Blocked] {
        team.moves(&item, state);
        let open = format!("`state` can't be `done` while its work is open: `{item}`; finish or archive it, or detach it");
        assert_eq!(team.tries(update(&id, State::Done)).unwrap_err().to_string(), open);
    }
    team.moves(&item, work::State::Complete);
    assert_eq!(team.does(update(&id, State::Done)).progress().percent_done, Some(100));

    let done = "`orchestrator_id` is of an orchestrator that is done, and the work is open: set it to `active` first";
    assert_eq!(team.attaches(&id, &other).unwrap_err().to_string(), done);
    assert_eq!(team.stamped(&other), None);
    team.attaches(&id, "handoff:night").unwrap();
    assert_eq!(team.does(update(&id, State::Active)).orchestrator.state, State::Active);
    assert_eq!(team.attaches(&id, &other).unwrap().progress().percent_done, Some(50));
    team.moves(&other, work::State::Archive);
    for state in [State::Done, State::Archived] {
        assert_eq!(team.does(update(&id, state)).orchestrator.state, state);
    }
}

#[test]
fn work_that_is_opened_again_opens_the_done_orchestrators_it_is_a_member_of_and_tells_of_it() {
    let mut team = Team::new();
    let (first, second, shut, left) = (team.creates("a"), team.creates("b"), team.creates("shut"), team.creates("left"));
    let item = team.work("parser");
    for id in [&first, &second, &shut, &left] {
        team.attaches(id, &item).unwrap();
    }
    team.moves(&item, work::State::Complete);
    for id in [&first, &second, &shut, &left] {
        team.does(update(id, State::Done));
    }
    team.does(update(&shut, State::Archived));
    team.does(detach(&left, &item));
    team.moves(&item, work::State::Deployed);
    let state = |team: &mut Team, id: &str| {
        team.listed("mara", None, 50).into_iter().find(|view| view.orchestrator.id == id).map(|view| view.orchestrator.state)
    };
    assert_eq!(state(&mut team, &first), Some(State::Done), "it is finished still");
    let before = team.changes(&first);
    team.moves(&item, work::State::InProgress);
    assert_eq!([&first, &second].map(|id| state(&mut team, id)), [Some(State::Active); 2]);
    assert_eq!(team.changes(&first), before + 1);
    assert_eq!([&shut, &left].map(|id| state(&mut team, id)), [Some(State::Archived), Some(State::Done)]);
    team.moves(&item, work::State::Complete);
    assert_eq!(state(&mut team, &first), Some(State::Active), "whether it is done again is for its people to say");
}

#[test]
fn an_item_is_a_member_of_a_bounded_number_of_orchestrators() {
    let mut team = Team::new();
    let item = team.work("parser");
    let ids: Vec<String> = (0..=WORK_ORCHESTRATORS_MAX).map(|n| team.creates(&format!("o{n}"))).collect();
    for id in &ids[1..] {
        team.attaches(id, &item).unwrap();
    }
    let told = team.attaches(&ids[0], &item).unwrap_err().to_string();
    assert_eq!(told, "`member_ref` is a member of 8 orchestrators that are not archived, and of no more; detach it from one");
    team.does(update(&ids[1], State::Archived));
    team.attaches(&ids[0], &item).unwrap();
}

#[test]
fn a_reference_names_something_and_the_same_one_in_another_spelling_is_one_member() {
    let mut team = Team::new();
    let id = team.creates("release");
    for bare in ["execplan:", "handoff:", "execplan: "] {
        let told = team.attaches(&id, bare).unwrap_err().to_string();
        assert_eq!(told, format!("`member_ref` is only `{bare}`, with no name behind it"));
    }
    team.attaches(&id, "execplan:ship").unwrap();
    let plan = AttachMember { member_type: Some(MemberKind::Execplan), ..attach(&id, "ship") };
    assert_eq!(members(&team.does(plan.clone())), ["execplan execplan:ship"]);
    assert_eq!(members(&team.does(detach(&id, "ship"))), [""; 0]);
    assert_eq!(members(&team.does(plan)), ["execplan ship"]);
    assert_eq!(members(&team.attaches(&id, "execplan:ship").unwrap()), ["execplan ship"]);
    team.attaches(&id, "ho_1").unwrap();
    assert_eq!(members(&team.attaches(&id, "handoff:ho_1").unwrap()), ["execplan ship", "handoff ho_1"]);
}

#[test]
fn an_update_changes_what_it_names_and_has_to_name_something() {
    let mut team = Team::new();
    team.passport("lead");
    let id = team.does(CreateOrchestrator { assignee_passport: Some("lead".into()), ..create("release") }).orchestrator.id;
    let nothing = UpdateOrchestrator { orchestrator_id: id.clone(), name: None, assignee_passport: None, state: None };
    let told = team.tries(nothing.clone()).unwrap_err().to_string();
    assert_eq!(told, "`state` is missing, and so are `name` and `assignee_passport`: nothing is to be changed");
    let named = team.does(UpdateOrchestrator { name: Some("launch".into()), ..nothing.clone() }).orchestrator;
    assert_eq!((named.name.as_str(), named.assignee.as_deref(), named.state), ("launch", Some("lead"), State::Planned));
    let to_nobody = UpdateOrchestrator { assignee_passport: Some("ben".into()), ..nothing.clone() };
    let told = team.tries(to_nobody).unwrap_err().to_string();
    assert!(told.starts_with("`assignee_passport` is `ben`, and nobody of your team has that passport"), "{told}");
    team.passport("ben");
    let handed = team.does(UpdateOrchestrator { assignee_passport: Some("ben".into()), ..nothing }).orchestrator;
    assert_eq!((handed.name.as_str(), handed.assignee.as_deref()), ("launch", Some("ben")));
}

#[test]
fn its_work_adds_up_and_work_that_was_put_aside_does_not_count_as_open() {
    let mut team = Team::new();
    let id = team.creates("release");
    assert_eq!(team.listed("mara", None, 5)[0].progress(), Progress::default(), "without work there is nothing to be done of");
    let states = [
        work::State::Planned,
        work::State::InProgress,
        work::State::Blocked,
        work::State::Archive,
        work::State::Complete,
        work::State::Deployed,
    ];
    for state in states {
        let item = team.work("x");
        team.attaches(&id, &item).unwrap();
        team.moves(&item, state);
    }
    team.attaches(&id, "execplan:ship").unwrap();
    let expected =
        Progress { total: 6, planned: 1, in_progress: 1, blocked: 1, archived: 1, complete: 1, deployed: 1, percent_done: Some(40) };
    assert_eq!(team.listed("mara", None, 5)[0].progress(), expected);
}

#[test]
fn one_that_is_full_refuses_a_member_and_the_fullest_still_fits_a_reply() {
    let mut team = Team::new();
    let id = team.creates(&"n".repeat(NAME_BYTES_MAX));
    for n in 0..ORCHESTRATOR_MEMBERS_MAX {
        team.attaches(&id, &format!("ho_{n}")).unwrap();
    }
    let told = team.attaches(&id, "ho_x").unwrap_err().to_string();
    assert_eq!(told, "`orchestrator_id` is of an orchestrator that is full with 8 members; detach some, or attach this one to another");
    team.does(detach(&id, "ho_0"));
    team.attaches(&id, "ho_x").unwrap();

    // Of long references fewer fit, and names that grow afterwards find their place.
    let mut long = team.does(create("a")).orchestrator;
    while !long.is_full() {
        long.members.push(Member { kind: MemberKind::Passport, reference: "\"".repeat(NAME_BYTES_MAX) });
        if long.members.len() > ORCHESTRATOR_MEMBERS_MAX {
            break;
        }
    }
    long.members.pop();
    (long.name, long.assignee) = ("\"".repeat(NAME_BYTES_MAX), Some("\"".repeat(NAME_BYTES_MAX)));
    assert!(long.reply_bytes() < REPLY_BYTES_MAX, "{}", long.reply_bytes());
}

#[test]
fn a_page_of_large_ones_stays_within_a_reply() {
    let mut team = Team::new();
    for n in 0..6 {
        let id = team.creates(&format!("o{n}"));
        for m in 0..5 {
            team.attaches(&id, &format!("ho_{m}{}", "x".repeat(500))).unwrap();
        }
    }
    let page = team.0.ask("1s", person("mara"), ListOrchestrators { tenant_id: None, state: None, limit: 50, cursor: None }).unwrap();
    assert!(page.next_cursor.is_some() && page.orchestrators.len() == 2, "{} of 3 KB in 8 KB", page.orchestrators.len());
    assert_eq!(team.listed("mara", None, 50).len(), 6);
}

#[test]
fn with_the_flag_off_every_call_says_so() {
    let mut team = Team::new();
    let id = team.creates("a");
    let off = SetFlag { name: flag::ORCHESTRATORS.name.into(), value: "off".into() };
    team.0.call("1s", person("olga"), None, off).unwrap();
    let told = |refusal: Refusal| assert!(matches!(refusal, Refusal::FeatureOff { .. }), "{refusal}");
    told(team.tries(create("b")).unwrap_err());
    told(team.tries(attach(&id, "ho_1")).unwrap_err());
    told(team.tries(detach(&id, "ho_1")).unwrap_err());
    told(team.tries(update(&id, State::Done)).unwrap_err());
    let list = ListOrchestrators { tenant_id: None, state: None, limit: 5, cursor: None };
    told(team.0.ask("1s", person("mara"), list).unwrap_err());
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Attach(usize, usize),
    Detach(usize, usize),
    Update(usize, usize),
    Move(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0..4_usize).prop_map(Step::Create),
        4 => (0..6_usize, 0..5_usize).prop_map(|(to, member)| Step::Attach(to, member)),
        2 => (0..6_usize, 0..5_usize).prop_map(|(from, member)| Step::Detach(from, member)),
        2 => (0..6_usize, 0..4_usize).prop_map(|(id, state)| Step::Update(id, state)),
        2 => (0..3_usize, 0..5_usize).prop_map(|(item, state)| Step::Move(item, state)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Held against a plain list that takes every rule at its word.
    #[test]
    fn lists_show_exactly_the_orchestrators_in_a_state_with_their_members_and_how_their_work_stands(
        steps in prop::collection::vec(step(), 1..50), limit in 1..4_u64,
    ) {
        let work_states = [work::State::Planned, work::State::InProgress, work::State::Archive, work::State::Complete, work::State::Blocked];
        let mut team = Team::new();
        let mut refs: Vec<String> = (0..3).map(|n| team.work(&format!("w{n}"))).collect();
        let mut items: Vec<work::State> = vec![work::State::Planned; 3];
        refs.extend(["ho_1".into(), "execplan:a".into()]);
        let mut model: Vec<(String, State, Vec<String>)> = Vec::new();
        for step in steps {
            match step {
                Step::Create(state) => {
                    let state = STATES[state];
                    let made = team.does(CreateOrchestrator { state: Some(state), ..create("o") });
                    model.push((made.orchestrator.id, state, Vec::new()));
                }
                Step::Move(item, state) => {
                    let was_open = is_open(items[item]);
                    items[item] = work_states[state];
                    if is_open(items[item]) && !was_open {
                        for (_, state, members) in &mut model {
                            if *state == State::Done && members.contains(&refs[item]) {
                                *state = State::Active;
                            }
                        }
                    }
                    team.moves(&refs[item], work_states[state]);
                }
                Step::Attach(of, _) | Step::Detach(of, _) | Step::Update(of, _) if of >= model.len() => {}
                Step::Attach(to, member) => {
                    let (id, state, members) = &mut model[to];
                    let done = team.attaches(id, &refs[member]).is_ok();
                    let is_open = !members.contains(&refs[member]) && items.get(member).is_some_and(|state| is_open(*state));
                    prop_assert_eq!(done, *state != State::Archived && !(*state == State::Done && is_open));
                    if done && !members.contains(&refs[member]) {
                        members.push(refs[member].clone());
                    }
                }
                Step::Detach(from, member) => {
                    let (id, state, members) = &mut model[from];
                    let done = team.tries(detach(id, &refs[member])).is_ok();
                    prop_assert_eq!(done, *state != State::Archived && members.contains(&refs[member]));
                    if done {
                        members.retain(|known| *known != refs[member]);
                    }
                }
                Step::Update(of, to) => {
                    let (id, state, members) = &mut model[of];
                    let done = team.tries(update(id, STATES[to])).is_ok();
                    let has_open = (0..3).any(|item| members.contains(&refs[item]) && is_open(items[item]));
                    let may = match (*state, STATES[to]) {
                        (State::Archived, _) | (State::Active | State::Done, State::Planned) => false,
                        (State::Planned | State::Active, State::Done) => !has_open,
                        _ => true,
                    };
                    prop_assert_eq!(done, may);
                    if done {
                        *state = STATES[to];
                    }
                }
            }
        }
        for state in [None, Some(State::Planned), Some(State::Active), Some(State::Done), Some(State::Archived)] {
            let mut expected: Vec<_> = model.iter().filter(|(_, own, _)| state.is_none_or(|state| state == *own)).cloned().collect();
            expected.reverse();
            let listed = team.listed("mara", state, limit);
            let found: Vec<_> = listed.iter().map(|view| {
                let members = view.orchestrator.members.iter().map(|member| member.reference.clone()).collect();
                (view.orchestrator.id.clone(), view.orchestrator.state, members)
            }).collect();
            prop_assert_eq!(&found, &expected);
            for view in &listed {
                let states: BTreeMap<String, work::State> = view.orchestrator.members.iter().filter_map(|member| {
                    let item = refs[..3].iter().position(|known| *known == member.reference)?;
                    Some((member.reference.clone(), items[item]))
                }).collect();
                prop_assert_eq!(&view.work, &states);
            }
        }
    }
}

/// The stored form, which later versions have to read.
#[test]
fn a_stored_orchestrator_has_this_form() {
    let orchestrator = Orchestrator {
        id: "orc_1".into(),
        tenant: "acme".into(),
        name: "n".into(),
        assignee: None,
        created_by: "mara".into(),
        state: State::Active,
        members: vec![Member { kind: MemberKind::Handoff, reference: "ho_1".into() }],
        created_at: UnixMs(1),
        updated_at: UnixMs(2),
        revision: Revision(3),
    };
    let hex = hex::encode(crate::codec::encode(&orchestrator));
    expect_test::expect!["aa626964656f72635f316674656e616e746461636d65646e616d65616e6861737369676e6565f66a637265617465645f6279646d61726165737461746566616374697665676d656d6265727381a2646b696e646768616e646f6666697265666572656e636564686f5f316a637265617465645f6174016a757064617465645f617402687265766973696f6e03"].assert_eq(&hex);
}
