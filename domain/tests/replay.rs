//! Random logs over the rules of leases and approvals: replicas that apply the same log, in whatever batches and with restarts
//! in between, end with the same bytes; and what is promised of cards holds after every entry.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quorate_domain::acknowledgement::{AcknowledgeUse, UseIntent};
use quorate_domain::approval::{DecideApproval, Decision, RequestApproval, RiskTier, SetApprovalPolicy};
use quorate_domain::coord::Announce;
use quorate_domain::execplan::{GateStatus, PassGate};
use quorate_domain::flag::SetFlag;
use quorate_domain::graph::feature::{AuditFeature, AuditStatus};
use quorate_domain::graph::{DeleteEntity, UpsertEntity};
use quorate_domain::identity::{PutToken, SetWorkGate, token_hash};
use quorate_domain::machine::{self, Body, Call, Clock, Decided, Entry};
use quorate_domain::orchestrator::{self, AttachMember, CreateOrchestrator, DetachMember, UpdateOrchestrator};
use quorate_domain::overlay::{Overlay, Writes};
use quorate_domain::passport::RevokePassport;
use quorate_domain::punchcard::{
    ForceRelease, GetTicket, LeaveQueue, ListPunchcards, PunchIn, PunchOut, Punchcard, Punchcards, PunchedIn, Status,
};
use quorate_domain::record::{CLUSTER, Kind, WriteRecords, kind_prefix};
use quorate_domain::resource::Resource;
use quorate_domain::session_plan::OpenPlan;
use quorate_domain::tx::{Direction, Row};
use quorate_domain::work::{BlockerKind, CommentOnWork, CreateWork, DEFAULT_PROJECT, MoveWork, State};
use quorate_domain::{
    Command, LeaseTime, Principal, Query, Read, ReadStamp, Refusal, RequestId, Revision, Stamp, StorageError, Table, Tier, UnixMs, codec,
};

const PEOPLE: [(&str, &str, Tier); 5] = [
    ("acme", "ann", Tier::Verified),
    ("acme", "ben", Tier::Verified),
    ("acme", "cat", Tier::Elite),
    ("acme", "oda", Tier::Operator),
    ("other", "eve", Tier::Operator),
];
const RESOURCES: [&str; 10] = [
    "file://a/x",
    "file://a",
    "file://a/y",
    "file://a/b/z",
    "tree://a",
    "tree://a/b",
    "tree://.",
    "file://c",
    "service://s",
    "file://./a//x",
];

// ------------------------------------------------------------------ a state that survives a restart

#[derive(Default, PartialEq)]
struct Store(BTreeMap<(Table, Vec<u8>), Vec<u8>>);

impl Read for Store {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.0.get(&(table, key.to_vec())).cloned())
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let rows = self.0.range((table, from.to_vec())..(table, to.to_vec())).map(|((_, key), value)| (key.clone(), value.clone()));
        Ok(match direction {
            Direction::Ascending => rows.take(limit).collect(),
            Direction::Descending => rows.rev().take(limit).collect(),
        })
    }
}

impl Store {
    fn commit(&mut self, writes: Writes) {
        for (key, value) in writes {
            match value {
                Some(value) => self.0.insert(key, value),
                None => self.0.remove(&key),
            };
        }
    }

    /// Every table, byte for byte.
    fn bytes(&self) -> Vec<u8> {
        let rows: Vec<(&str, String, String)> =
            self.0.iter().map(|((table, key), value)| (table.name(), hex::encode(key), hex::encode(value))).collect();
        codec::encode(&rows)
    }

    fn restarted(self) -> Self {
        let rows: Vec<(String, String, String)> = codec::decode(&self.bytes()).unwrap();
        let table = |name: &str| Table::ALL.into_iter().find(|table| table.name() == name).unwrap();
        let row = |(name, key, value): (String, String, String)| ((table(&name), hex::decode(key).unwrap()), hex::decode(value).unwrap());
        Self(rows.into_iter().map(row).collect())
    }

    fn apply(&mut self, log: &[(Revision, Entry)]) -> Vec<Option<Decided>> {
        let mut batch = Overlay::new(&*self);
        let decided = log.iter().map(|(revision, entry)| machine::apply(&mut batch, *revision, 1, entry.clone()).unwrap()).collect();
        let writes = batch.into_writes();
        self.commit(writes);
        decided
    }

    fn ask(&self, caller: Principal, query: impl Into<Query>) -> Result<Vec<u8>, Refusal> {
        let Clock { lease_now, wall, revision, .. } = Clock::read(self).unwrap();
        query.into().run(self, &ReadStamp { revision, lease_now, wall, caller }).unwrap()
    }

    fn cards(&self, caller: usize, status: Option<Status>) -> Vec<Punchcard> {
        let list = ListPunchcards { resource: None, holder_passport: None, tenant_id: None, status, limit: 1000, cursor: None };
        // Nobody revokes the reader.
        let reader = Principal { passport: "reader".into(), ..principal(caller) };
        let page: Punchcards = codec::decode(&self.ask(reader, list).unwrap()).unwrap();
        assert!(page.next_cursor.is_none());
        page.punchcards
    }
}

// ------------------------------------------------------------------ logs

fn principal(n: usize) -> Principal {
    let (tenant, passport, tier) = PEOPLE[n];
    let scopes = if tier == Tier::Operator { ["admin".to_string()].into() } else { Default::default() };
    Principal { tenant: tenant.into(), passport: passport.into(), tier, scopes }
}

/// The id that a command of this revision gave out, if it gave one: how a random log names what an earlier entry made.
fn made_by(revision: u64, caller: usize, prefix: &str) -> String {
    let at = Stamp::plain(Revision(revision), LeaseTime(0), UnixMs(0), principal(caller));
    at.new_id(prefix, 0)
}

fn command(caller: usize) -> impl Strategy<Value = Command> {
    let name = PEOPLE[caller].1;
    let resource = || prop::sample::select(RESOURCES.to_vec()).prop_map(String::from);
    let earlier = 1..120_u64;
    let punch_in = (resource(), 1_000..6_000_u64, prop::option::of(1..8_000_u64)).prop_map(move |(resource, ttl_ms, wait_ms)| {
        let holder_passport = name.into();
        PunchIn {
            resource,
            holder_passport,
            tenant_id: None,
            mode: None,
            reason: None,
            ttl_ms: Some(ttl_ms),
            expires_at: None,
            wait_ms,
            ..PunchIn::default()
        }
        .into()
    });
    let punch_out = resource()
        .prop_map(move |resource| PunchOut { resource, holder_passport: name.into(), tenant_id: None, release_commit_sha: None }.into());
    let leave = earlier.clone().prop_map(move |revision| LeaveQueue { ticket: made_by(revision, caller, "tk") }.into());
    let force = earlier.clone().prop_map(move |revision| {
        ForceRelease { punchcard_id: made_by(revision, caller, "pc"), confirm: true, reason: None, by_passport: None }.into()
    });
    let risk = prop::sample::select(vec![RiskTier::Low, RiskTier::Medium, RiskTier::High]);
    let request = (risk, 1_000..9_000_u64).prop_map(|(risk_tier, ttl_ms)| {
        let (action_summary, scope) = ("drop it".into(), "acme".into());
        RequestApproval {
            action_summary,
            risk_tier,
            scope,
            tenant_id: None,
            payload: Some(serde_json::json!({ "n": 1.5 })),
            ttl_ms: Some(ttl_ms),
        }
        .into()
    });
    let decide = (earlier, any::<bool>()).prop_map(move |(revision, yes)| {
        let decision = if yes { Decision::Approve } else { Decision::Reject };
        let request_id = made_by(revision, caller, "ar");
        DecideApproval { request_id, decision, reviewer_notes: None, reviewer_tier: None, reviewer_tenant_id: None }.into()
    });
    let policy = any::<(bool, bool)>()
        .prop_map(|(approve_low, approve_medium)| SetApprovalPolicy { approve_low, approve_medium, rules: Vec::new() }.into());
    let work = work(caller);
    let revoke = Just(RevokePassport { target: Some("ben".into()), reason: None }.into());
    let (plans, told) = (plans(caller), told(caller));
    prop_oneof![
        3 => told, 6 => plans, 8 => work, 10 => punch_in, 5 => punch_out, 1 => leave, 1 => force, 3 => request, 3 => decide, 1 => policy, 1 => revoke
    ]
}

/// Work, moves of it that wait or not, and announcements. Operators set who is gated.
fn work(caller: usize) -> impl Strategy<Value = Command> {
    let (tenant, name, _) = PEOPLE[caller];
    let own = move |revision| made_by(revision, caller, "w");
    let states = vec![State::Planned, State::InProgress, State::Blocked, State::Archive, State::Complete, State::Deployed];
    let create = Just(CreateWork {
        project_id: DEFAULT_PROJECT.into(),
        title: "write it".into(),
        created_by_passport: name.into(),
        body: Some("all of it".into()),
        state: None,
        assignee_passport: None,
        tenant_id: None,
        linked_pr: None,
        linked_issue: None,
        blocker_reason: None,
        depends_on: Vec::new(),
    });
    let moved = (1..120_u64, prop::sample::select(states), any::<bool>()).prop_map(move |(revision, state, approval)| MoveWork {
        work_id: own(revision),
        state,
        by_passport: name.into(),
        blocker_reason: (state == State::Blocked).then(|| "why".into()),
        blocker_kind: (state == State::Blocked && approval).then_some(BlockerKind::NeedsApproval),
        expected_state: None,
        assignee_passport: None,
        depends_on: None,
    });
    let comment =
        (1..120_u64).prop_map(move |revision| CommentOnWork { work_id: own(revision), author_passport: name.into(), body: "hm".into() });
    let announce = (0..3_u64, 0..9_u64, prop::sample::select(vec!["a", "a/b", "c"])).prop_map(|(session, ttl, path)| Announce {
        session_id: format!("0{session}"),
        project_id: DEFAULT_PROJECT.into(),
        by_passport: None,
        execplan_slug: None,
        milestone: None,
        deploy_target: None,
        paths: vec![path.into()],
        note: None,
        ttl_seconds: Some(ttl),
    });
    let who = (0..PEOPLE.len(), any::<bool>());
    let put = who.clone().prop_map(move |(who, _)| PutToken {
        hash: token_hash(PEOPLE[who].1),
        tenant: tenant.into(),
        passport: PEOPLE[who].1.into(),
        tier: PEOPLE[who].2,
        scopes: principal(who).scopes,
        expires_at: None,
    });
    let gate = who.prop_map(move |(who, gated)| SetWorkGate { tenant: tenant.into(), passport: PEOPLE[who].1.into(), gated });
    prop_oneof![
        4 => create.prop_map(Command::from),
        6 => moved.prop_map(Command::from),
        1 => comment.prop_map(Command::from),
        2 => announce.prop_map(Command::from),
        1 => put.prop_map(Command::from),
        2 => gate.prop_map(Command::from),
    ]
}

/// Sessions that begin, gates of plans, and turns that tell which of the gates' facts they used.
fn told(caller: usize) -> impl Strategy<Value = Command> {
    let intent = prop::option::of(prop::sample::select(vec!["audit_review", "", "build it"]).prop_map(String::from));
    let open = intent.prop_map(|intent| OpenPlan { intent, graph_hash: "0a".repeat(32), public_key: "0b".repeat(32) });
    let status = prop::sample::select(vec![GateStatus::Passed, GateStatus::Failed]);
    let gate = (prop::sample::select(vec!["M1", "gate:M1", "M2"]), status).prop_map(|(milestone, status)| PassGate {
        slug: "search".into(),
        milestone: milestone.into(),
        status,
        commit_sha: "0".into(),
        tests_passing: None,
        artifacts: Vec::new(),
        notes: None,
        token_budget: 1,
    });
    let used = (prop::collection::vec(1..120_u64, 0..4), 0..3_u64).prop_map(move |(revisions, turn)| AcknowledgeUse {
        turn_id: format!("t{turn}"),
        fact_ids: revisions.into_iter().map(|revision| made_by(revision, caller, "f")).collect(),
        intent: UseIntent::Answer,
        retrieved_chunk_ids: Vec::new(),
        confidence: None,
        note: None,
    });
    prop_oneof![
        1 => open.prop_map(Command::from),
        2 => gate.prop_map(Command::from),
        2 => used.prop_map(Command::from),
    ]
}

/// Orchestrators with their members, and capabilities that are stored, audited and deleted.
fn plans(caller: usize) -> impl Strategy<Value = Command> {
    let name = PEOPLE[caller].1;
    let own = move |revision| made_by(revision, caller, "orc");
    let create = Just(CreateOrchestrator {
        name: "release".into(),
        created_by_passport: name.into(),
        assignee_passport: None,
        tenant_id: None,
        state: None,
    });
    let member = prop_oneof![
        (1..120_u64).prop_map(move |revision| made_by(revision, caller, "w")),
        prop::sample::select(vec!["ho_1", "execplan:a", name]).prop_map(String::from),
    ];
    let attach = (1..120_u64, member.clone()).prop_map(move |(revision, member_ref)| AttachMember {
        orchestrator_id: own(revision),
        member_ref,
        member_type: None,
    });
    let detach = (1..120_u64, member).prop_map(move |(revision, member_ref)| DetachMember { orchestrator_id: own(revision), member_ref });
    let states = vec![orchestrator::State::Active, orchestrator::State::Done, orchestrator::State::Archived];
    let update = (1..120_u64, prop::sample::select(states)).prop_map(move |(revision, state)| UpdateOrchestrator {
        orchestrator_id: own(revision),
        name: None,
        assignee_passport: None,
        state: Some(state),
    });
    let capability = || prop::sample::select(vec!["search", "index"]).prop_map(String::from);
    let maturity = prop::sample::select(vec!["built", "shipped"]);
    let store = (capability(), maturity, prop::sample::select(vec!["core", "ui"])).prop_map(|(id, maturity, system)| UpsertEntity {
        kind: "capability".into(),
        payload: serde_json::json!({ "id": id, "name": id, "system": system, "maturity": maturity, "promise_alignment": [1] }),
        id,
        kind_revision: None,
    });
    let delete = capability().prop_map(|id| DeleteEntity { kind: "capability".into(), id });
    let audit = capability().prop_map(|id| AuditFeature { id, status: AuditStatus::Audited, auditor: None, notes: None });
    prop_oneof![
        3 => create.prop_map(Command::from),
        4 => attach.prop_map(Command::from),
        2 => detach.prop_map(Command::from),
        2 => update.prop_map(Command::from),
        3 => store.prop_map(Command::from),
        1 => delete.prop_map(Command::from),
        1 => audit.prop_map(Command::from),
    ]
}

/// A log of up to 120 entries. Some calls repeat the request id of the one before, and some name a card they are made under.
fn log() -> impl Strategy<Value = Vec<(Revision, Entry)>> {
    let call = (0..PEOPLE.len()).prop_flat_map(|caller| (Just(caller), command(caller)));
    let under = prop::option::weighted(0.15, 1..120_u64);
    let step = (prop_oneof![Just(0), 0..2_500_u64], prop::option::weighted(0.9, (call, under, prop::bool::weighted(0.1))));
    prop::collection::vec(step, 1..120).prop_map(|steps| {
        let (mut wall, mut log) = (1_900_000_000_000, Vec::new());
        for (n, (advance_ms, call)) in (1..).zip(steps) {
            wall += advance_ms;
            let body = match call {
                None => Body::Tick {},
                Some(((caller, command), under, is_retry)) => Body::Call(Call {
                    caller: principal(caller),
                    request: RequestId { id: format!("r{}", n - u64::from(is_retry)), issued_at: UnixMs(wall), keyed: true },
                    under: under.map(Revision),
                    command,
                }),
            };
            log.push((Revision(n), Entry { wall: UnixMs(wall), advance_ms, stamped_term: 1, body }));
        }
        log
    })
}

fn flagged(word: &str, revision: u64) -> (Revision, Entry) {
    let body = Body::Call(Call {
        caller: principal(3),
        request: RequestId { id: format!("flag {revision}"), issued_at: UnixMs(1_900_000_000_000), keyed: true },
        under: None,
        command: SetFlag { name: quorate_domain::flag::PUNCHCARD.name.into(), value: word.into() }.into(),
    });
    (Revision(revision), Entry { wall: UnixMs(0), advance_ms: 0, stamped_term: 1, body })
}

// ------------------------------------------------------------------ what must hold

fn overlap(a: &Punchcard, b: &Punchcard) -> bool {
    Resource::parse(&a.resource).unwrap().overlaps(&Resource::parse(&b.resource).unwrap())
}

fn pairs(cards: &[Punchcard]) -> impl Iterator<Item = (&Punchcard, &Punchcard)> {
    cards.iter().enumerate().flat_map(|(n, a)| cards[n + 1..].iter().map(move |b| (a, b)))
}

fn live_cards_exclude_each_other(store: &Store) {
    for caller in [0, 4] {
        for (a, b) in pairs(&store.cards(caller, Some(Status::Held))) {
            assert!(a.holder == b.holder || !overlap(a, b), "{a:?} and {b:?} are live");
        }
    }
}

fn tokens_rise_from_grant_to_grant(store: &Store) {
    for caller in [0, 4] {
        for (a, b) in pairs(&store.cards(caller, None)) {
            let excluded = a.resource == b.resource || a.holder != b.holder && overlap(a, b);
            assert!(!excluded || a.fencing_token != b.fencing_token, "{a:?} and {b:?} have one token");
        }
    }
}

/// The logs here are too small for a hand-over to go on in later entries, so whoever waits has somebody to wait for.
fn who_waits_waits_for_somebody(store: &Store, tickets: &BTreeMap<String, Principal>) {
    for (ticket, owner) in tickets {
        let standing = match store.ask(owner.clone(), GetTicket { ticket: ticket.clone() }) {
            Err(Refusal::Revoked { .. }) => continue,
            standing => standing.unwrap(),
        };
        if let PunchedIn::Queued { holder, .. } = codec::decode(&standing).unwrap() {
            assert_ne!(holder, owner.passport, "nothing stands in the way of {ticket}");
        }
    }
}

/// Long after the last call, no order of what is live has a row left.
fn nothing_live_is_left(mut store: Store) {
    let clock = Clock::read(&store).unwrap();
    let mut later = Overlay::new(&store);
    later.put(&Clock { lease_now: clock.lease_now.plus_ms(30 * 60 * 60 * 1_000), ..clock });
    let writes = later.into_writes();
    store.commit(writes);
    let tick = |n| (Revision(clock.revision.0 + n), Entry { wall: clock.wall, advance_ms: 1, stamped_term: 1, body: Body::Tick {} });
    store.apply(&[tick(1), tick(2), tick(3)]);
    store.commit({
        let mut later = Overlay::new(&store);
        let clock = Clock::read(&store).unwrap();
        later.put(&Clock { lease_now: clock.lease_now.plus_ms(30 * 60 * 60 * 1_000), ..clock });
        later.into_writes()
    });
    store.apply(&[tick(4), tick(5), tick(6)]);
    let live = [
        Kind::PunchcardByPath,
        Kind::PunchcardByDeadline,
        Kind::WaiterByPath,
        Kind::WaiterByHolder,
        Kind::WaiterByDeadline,
        Kind::HandOver,
        Kind::LeavingHolder,
        Kind::ApprovalByDeadline,
        Kind::ApprovalPending,
        Kind::IntentByDeadline,
    ];
    for tenant in [CLUSTER, "acme", "other"] {
        for kind in live {
            let rows = kind_prefix(tenant, kind);
            let left = store.scan_bytes(Table::Index, rows.as_bytes(), &rows.after_prefix(), Direction::Ascending, 1).unwrap();
            assert!(left.is_empty(), "{kind:?} of `{tenant}` has rows left");
        }
        let tickets = kind_prefix(tenant, Kind::Waiter);
        let left = store.scan_bytes(Table::Records, tickets.as_bytes(), &tickets.after_prefix(), Direction::Ascending, 1).unwrap();
        assert!(left.is_empty(), "a ticket of `{tenant}` is left");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_applied_in_other_batches_with_restarts_leaves_the_same_bytes(
        mut log in log(), cuts in prop::collection::vec(1..20_usize, 0..60), advisory_at in prop::option::of(0..60_usize),
    ) {
        if let Some(n) = advisory_at.filter(|n| *n < log.len()) {
            log[n] = flagged("advisory", log[n].0.0);
        }
        let (mut straight, mut told) = (Store::default(), Vec::new());
        for entry in &log {
            told.extend(straight.apply(std::slice::from_ref(entry)));
        }
        let (mut batched, mut told_batched, mut rest) = (Store::default(), Vec::new(), log.as_slice());
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let (batch, after) = rest.split_at(cut.min(rest.len()));
            told_batched.extend(batched.apply(batch));
            batched = batched.restarted();
            rest = after;
        }
        prop_assert_eq!(told, told_batched);
        prop_assert!(straight.bytes() == batched.bytes());
    }

    #[test]
    fn what_is_promised_of_cards_holds_after_every_entry(log in log()) {
        let (mut store, mut tickets) = (Store::default(), BTreeMap::new());
        for entry in &log {
            let decided = store.apply(std::slice::from_ref(entry)).remove(0);
            if let (Body::Call(call), Some(Decided { outcome: Ok(bytes), .. })) = (&entry.1.body, decided)
                && matches!(call.command, Command::PunchIn(_))
                && let PunchedIn::Queued { ticket, .. } = codec::decode(&bytes).unwrap()
            {
                tickets.insert(ticket, call.caller.clone());
            }
            live_cards_exclude_each_other(&store);
            who_waits_waits_for_somebody(&store, &tickets);
        }
        tokens_rise_from_grant_to_grant(&store);
        nothing_live_is_left(store);
    }
}
