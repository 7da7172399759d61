//! Races: many want the same at the same moment, in any order that a log can give them, with answers lost and calls sent again.
//! One wins in every run, and everybody is told the same about it however often he asks.

use quorate_domain::approval::{Approval, ApprovalStatus, DecideApproval, Decision, RequestApproval, RiskTier};
use quorate_domain::machine::{self, Body, Call, Entry};
use quorate_domain::overlay::{Nothing, Overlay};
use quorate_domain::punchcard::{ListPunchcards, PunchIn, PunchOut, PunchedIn, Status};
use quorate_domain::work::{CreateWork, DEFAULT_PROJECT, MoveWork, Moved, State, StatusFeed, Verb, Work};
use quorate_domain::{CommandKind, LeaseTime, Principal, Query, QueryKind, ReadStamp, Refusal, RequestId, Revision, Tier, UnixMs, codec};

const RUNS: u64 = 1_000;
const CALLERS: usize = 60;

fn caller(name: &str) -> Principal {
    let tier = if name.starts_with("operator") { Tier::Operator } else { Tier::Verified };
    Principal { tenant: "acme".into(), passport: name.into(), tier, scopes: ["*".to_string()].into() }
}

/// A replica, and an order of calls that follows from the number of the run.
struct Race {
    state: Overlay<'static, Nothing>,
    revision: u64,
    random: u64,
}

impl Race {
    fn new(run: u64) -> Self {
        Self { state: Overlay::new(&Nothing), revision: 0, random: run }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        for last in (1..items.len()).rev() {
            let other = self.next() as usize % (last + 1);
            items.swap(last, other);
        }
        items
    }

    fn call<C: CommandKind>(&mut self, who: &str, request: &str, command: C) -> Result<C::Output, Refusal> {
        self.revision += 1;
        let wall = UnixMs(1_900_000_000_000 + self.revision);
        let request = RequestId { id: request.into(), issued_at: UnixMs(1_900_000_000_000), keyed: false };
        let body = Body::Call(Call { caller: caller(who), request, under: None, command: command.into() });
        let entry = Entry { wall, advance_ms: 1, stamped_term: 1, body };
        let decided = machine::apply(&mut self.state, Revision(self.revision), 1, entry).unwrap().unwrap();
        decided.outcome.map(|reply| codec::decode(&reply).unwrap())
    }

    fn ask<Q: QueryKind>(&self, query: Q) -> Q::Output {
        let at = ReadStamp {
            revision: Revision(self.revision),
            lease_now: LeaseTime(self.revision),
            wall: UnixMs(1_900_000_000_000 + self.revision),
            caller: caller("operator"),
        };
        let query: Query = query.into();
        codec::decode(&query.run(&self.state, &at).unwrap().unwrap()).unwrap()
    }
}

fn names() -> Vec<String> {
    (0..CALLERS).map(|n| format!("agent-{n}")).collect()
}

#[test]
fn of_sixty_that_claim_an_item_at_once_one_has_it_in_every_run() {
    for run in 0..RUNS {
        let mut race = Race::new(run);
        let work: Work = race
            .call(
                "operator",
                "create",
                CreateWork {
                    project_id: DEFAULT_PROJECT.into(),
                    title: "one".into(),
                    created_by_passport: "operator".into(),
                    body: None,
                    state: None,
                    assignee_passport: None,
                    tenant_id: None,
                    linked_pr: None,
                    linked_issue: None,
                    blocker_reason: None,
                    depends_on: Vec::new(),
                },
            )
            .unwrap();
        // Each call is sent twice, as after a lost answer.
        let calls = race.shuffled([names(), names()].concat());
        let mut answers = std::collections::BTreeMap::new();
        // Each loser is told whose it is.
        let mut told = std::collections::BTreeSet::new();
        for who in calls {
            let claim = MoveWork {
                work_id: work.id.clone(),
                state: State::InProgress,
                by_passport: who.clone(),
                blocker_reason: None,
                blocker_kind: None,
                expected_state: Some(State::Planned),
                assignee_passport: Some(who.clone()),
                depends_on: None,
            };
            let won = match race.call(&who, "claim", claim) {
                Ok(Moved::Applied(_)) => true,
                Err(Refusal::WorkMoved { found, assignee_passport, .. }) => {
                    assert_eq!(found, "in_progress", "run {run}");
                    told.insert(assignee_passport);
                    false
                }
                other => panic!("run {run}: {other:?}"),
            };
            assert_eq!(*answers.entry(who).or_insert(won), won, "run {run}: asked again, the answer is another one");
        }
        assert_eq!(answers.values().filter(|won| **won).count(), 1, "run {run}");
        assert!(told.iter().eq(answers.iter().filter(|(_, won)| **won).map(|(who, _)| who)), "run {run}: {told:?}");
        let feed = race.ask(StatusFeed { work_id: Some(work.id), limit: 100, cursor: None });
        let claimed: Vec<&String> = feed.events.iter().filter(|event| event.verb == Verb::Claimed).map(|event| &event.by).collect();
        assert!(!feed.enabled || claimed.len() == 1 && answers[claimed[0]], "run {run}: {claimed:?}");
    }
}

#[test]
fn of_sixty_that_wait_for_a_card_one_has_it_at_a_time_and_each_in_its_turn() {
    for run in 0..RUNS {
        let mut race = Race::new(run);
        let take = |who: &str, wait_ms| PunchIn { resource: "file://a".into(), holder_passport: who.into(), wait_ms, ..PunchIn::default() };
        race.call("operator", "take", take("operator", None)).unwrap();
        let order = race.shuffled(names());
        for who in &order {
            assert!(matches!(race.call(who, "take", take(who, Some(600_000))), Ok(PunchedIn::Queued { .. })), "run {run}");
        }
        let mut last = Revision(0);
        for (holder, next) in std::iter::once(&"operator".to_string()).chain(&order).zip(&order).take(3) {
            let give = PunchOut { resource: "file://a".into(), holder_passport: holder.clone(), tenant_id: None, release_commit_sha: None };
            let given = race.call(holder, "give", give).unwrap();
            assert!(given.fencing_token > last, "run {run}: tokens rise");
            last = given.fencing_token;
            let held = race.ask(ListPunchcards {
                resource: Some("file://a".into()),
                holder_passport: None,
                tenant_id: None,
                status: Some(Status::Held),
                limit: 10,
                cursor: None,
            });
            let holders: Vec<&String> = held.punchcards.iter().map(|card| &card.holder).collect();
            assert_eq!(holders, [next], "run {run}");
        }
    }
}

#[test]
fn of_decisions_from_many_places_the_first_one_stands_in_every_run() {
    for run in 0..RUNS {
        let mut race = Race::new(run);
        let asked: Approval = race
            .call(
                "agent-0",
                "ask",
                RequestApproval {
                    action_summary: "drop the table".into(),
                    risk_tier: RiskTier::High,
                    scope: "acme".into(),
                    tenant_id: None,
                    payload: None,
                    ttl_ms: None,
                },
            )
            .unwrap();
        let deciders = (0..CALLERS).map(|n| (format!("operator-{n}"), if n % 2 == 0 { Decision::Approve } else { Decision::Reject }));
        let calls: Vec<_> = deciders.clone().chain(deciders).collect();
        let (mut decided, mut first) = (0, None);
        let mut seen = std::collections::BTreeSet::new();
        for (who, decision) in race.shuffled(calls) {
            let decide = DecideApproval {
                request_id: asked.request_id.clone(),
                decision,
                reviewer_notes: None,
                reviewer_tier: None,
                reviewer_tenant_id: None,
            };
            let is_new = seen.insert(who.clone());
            match race.call(&who, "decide", decide) {
                Ok(approval) => {
                    let status = if decision == Decision::Approve { ApprovalStatus::Approved } else { ApprovalStatus::Rejected };
                    assert_eq!((approval.status, approval.reviewer.as_ref()), (status, Some(&who)), "run {run}");
                    decided += u64::from(is_new);
                    assert_eq!(first.get_or_insert(who.clone()), &who, "run {run}: a second one decided");
                }
                Err(Refusal::AlreadyDecided { .. }) => {}
                Err(refusal) => panic!("run {run}: {refusal}"),
            }
        }
        assert_eq!(decided, 1, "run {run}");
    }
}
