//! How long lists and traversals take on a large board and graph: 10,000 items of work that were moved 100,000 times, 50,000
//! entities and 200,000 edges, made by the true rules in a state on disk.
//!
//!     cargo build --workspace --examples && target/debug/examples/coordination
//!
//! Each query runs on a view of its own, as on a node, its answer encoded; network and gateway are not in it. Prints one line a
//! kind of query: how often, how many rows the largest page had, p50, p95 and the longest.

use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_domain::approval::ListApprovals;
use quorate_domain::coord::CoordStatus;
use quorate_domain::graph::{EdgeEnds, EntityHistory, ListEdges, ListEntitiesOfKind, Toward, UpsertEdge, UpsertEntity, WalkGraph};
use quorate_domain::machine::{self, Body, Call, Entry};
use quorate_domain::overlay::Overlay;
use quorate_domain::work::{CreateWork, DEFAULT_PROJECT, GetWork, ListWork, MoveWork, State, StatusFeed, Work};
use quorate_domain::{Command, CommandKind, LeaseTime, Principal, Query, ReadStamp, RequestId, Revision, Tier, UnixMs, codec};
use quorate_storage::{StateOptions, StateStore};
use serde_json::json;

const WORK: u64 = 10_000;
const MOVES: u64 = 100_000;
const ENTITIES: u64 = 50_000;
const EDGES: u64 = 200_000;
const ASSIGNEES: u64 = 40;
const BATCH: usize = 500;
const QUERIES: u64 = 1_000;

fn caller() -> Principal {
    Principal { tenant: "acme".into(), passport: "mara".into(), tier: Tier::Operator, scopes: ["*".to_string()].into() }
}

/// A state that entries are applied to, some to a commit as on a node.
struct Replica {
    store: StateStore,
    revision: u64,
}

impl Replica {
    fn wall(&self) -> UnixMs {
        UnixMs(1_900_000_000_000 + self.revision)
    }

    fn apply<C: CommandKind>(&mut self, commands: impl IntoIterator<Item = C>) -> Vec<C::Output> {
        let mut answers = Vec::new();
        let mut commands = commands.into_iter().peekable();
        while commands.peek().is_some() {
            let view = self.store.view();
            let mut batch = Overlay::new(&view);
            for command in commands.by_ref().take(BATCH) {
                self.revision += 1;
                let request = RequestId { id: format!("r{}", self.revision), issued_at: self.wall(), keyed: false };
                let command: Command = command.into();
                let body = Body::Call(Call { caller: caller(), request, under: None, command });
                let entry = Entry { wall: self.wall(), advance_ms: 1, stamped_term: 1, body };
                let decided = machine::apply(&mut batch, Revision(self.revision), 1, entry).expect("the store works");
                let reply = decided.expect("a call is decided").outcome.expect("nothing is refused");
                answers.push(codec::decode(&reply).expect("an answer is of its command's type"));
            }
            let writes = batch.into_writes();
            self.store.commit(writes, Bytes::from(self.revision.to_be_bytes().to_vec())).expect("the store works");
        }
        answers
    }

    fn ask(&self, query: impl Into<Query>) -> (Duration, Vec<u8>) {
        let at = ReadStamp { revision: Revision(self.revision), lease_now: LeaseTime(self.revision), wall: self.wall(), caller: caller() };
        let start = Instant::now();
        let answer = query.into().run(&self.store.view(), &at).expect("the store works").expect("nothing is refused");
        (start.elapsed(), answer)
    }

    /// Runs a kind of query many times, with another number each time, and prints its line.
    fn measure<Q: Into<Query>>(&self, name: &str, query: impl Fn(u64) -> Q) {
        let (mut times, mut largest) = (Vec::new(), 0);
        for n in 0..QUERIES {
            let (time, answer) = self.ask(query(n));
            times.push(time);
            largest = largest.max(answer.len());
        }
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1_000.0;
        println!("{name:<44} {QUERIES:>6} {largest:>10} {:>8.2} {:>8.2} {:>8.2}", at(0.5), at(0.95), at(1.0));
    }
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder for the state");
    let store = StateStore::open(folder.path(), StateOptions::default()).expect("a new state opens");
    let mut replica = Replica { store, revision: 0 };
    let start = Instant::now();

    let create = |n: u64| CreateWork {
        project_id: DEFAULT_PROJECT.into(),
        title: format!("item {n}"),
        created_by_passport: "mara".into(),
        body: Some("what is to be done, in a few words".into()),
        state: None,
        assignee_passport: Some(format!("agent-{}", n % ASSIGNEES)),
        tenant_id: None,
        linked_pr: None,
        linked_issue: None,
        blocker_reason: None,
        depends_on: Vec::new(),
    };
    let items: Vec<Work> = replica.apply((0..WORK).map(create));
    let states = [State::InProgress, State::Blocked, State::InProgress, State::Complete, State::Planned];
    let moves = (0..MOVES).map(|n| {
        let state = states[(n / WORK) as usize % states.len()];
        MoveWork {
            work_id: items[(n % WORK) as usize].id.clone(),
            state,
            by_passport: "mara".into(),
            blocker_reason: (state == State::Blocked).then(|| "needs an answer".into()),
            blocker_kind: None,
            expected_state: None,
            assignee_passport: None,
            depends_on: None,
        }
    });
    replica.apply(moves);
    let node = |n: u64| format!("step-{n}");
    replica.apply((0..ENTITIES).map(|n| UpsertEntity {
        kind: "agent_trace_node".into(),
        id: node(n),
        payload: json!({ "tool": "punch_in", "summary": format!("step {n} of a long day") }),
        kind_revision: None,
    }));
    replica.apply((0..EDGES).map(|n| {
        let (from, to) = (n % ENTITIES, n.wrapping_mul(2_654_435_761) % ENTITIES);
        let kind = "agent_trace_node".to_string();
        let ends = EdgeEnds { from_kind: kind.clone(), from_id: node(from), edge_kind: "follows".into(), to_kind: kind, to_id: node(to) };
        UpsertEdge { ends, payload: None }
    }));
    println!("made {} entries in {:.0} s", replica.revision, start.elapsed().as_secs_f64());

    println!("{:<44} {:>6} {:>10} {:>8} {:>8} {:>8}", "query", "times", "bytes", "p50 ms", "p95 ms", "max ms");
    let list = ListWork {
        project_id: None,
        state: None,
        pending_approval: false,
        tenant_id: None,
        assignee_passport: None,
        ready: false,
        limit: 50,
        reply_bytes: None,
        cursor: None,
    };
    replica.measure("list_work", |_| list.clone());
    replica.measure("list_work in a state", |n| ListWork { state: Some(states[n as usize % states.len()]), ..list.clone() });
    replica
        .measure("list_work of an assignee", |n| ListWork { assignee_passport: Some(format!("agent-{}", n % ASSIGNEES)), ..list.clone() });
    replica.measure("list_work that is ready", |_| ListWork { ready: true, ..list.clone() });
    replica.measure("list_work, 1,000 rows asked for", |_| ListWork { limit: 1_000, ..list.clone() });
    replica.measure("one item", |n| GetWork { work_id: items[(n * 7 % WORK) as usize].id.clone(), limit: 50, cursor: None });
    replica.measure("status_feed", |_| StatusFeed { work_id: None, limit: 200, cursor: None });
    replica.measure("status_feed of an item", |n| StatusFeed {
        work_id: Some(items[(n * 7 % WORK) as usize].id.clone()),
        limit: 200,
        cursor: None,
    });
    replica.measure("coord_status", |_| CoordStatus { project_id: None, limit: 50, cursor: None });
    replica.measure("approvals that wait", |_| ListApprovals { pending_only: true, limit: 50, cursor: None });
    replica.measure("entity_list", |_| ListEntitiesOfKind {
        kind: Some("agent_trace_node".into()),
        include_deleted: false,
        limit: 50,
        cursor: None,
    });
    replica.measure("entity_list, 1,000 rows asked for", |_| ListEntitiesOfKind {
        kind: Some("agent_trace_node".into()),
        include_deleted: false,
        limit: 1_000,
        cursor: None,
    });
    replica.measure("entity_history", |n| EntityHistory {
        kind: "agent_trace_node".into(),
        id: node(n * 31 % ENTITIES),
        limit: 50,
        cursor: None,
    });
    let edges = ListEdges {
        from_kind: None,
        from_id: None,
        edge_kind: None,
        to_kind: None,
        to_id: None,
        include_deleted: false,
        limit: 50,
        cursor: None,
    };
    let kind = || Some("agent_trace_node".to_string());
    replica.measure("edge_list of a kind", |_| ListEdges { edge_kind: Some("follows".into()), ..edges.clone() });
    replica.measure("edge_list from an entity", |n| ListEdges {
        from_kind: kind(),
        from_id: Some(node(n * 31 % ENTITIES)),
        ..edges.clone()
    });
    for (name, depth, toward) in
        [("2 edges out", 2, Toward::Out), ("3 edges both ways", 3, Toward::Both), ("5 edges both ways", 5, Toward::Both)]
    {
        replica.measure(&format!("graph_traverse, {name}"), |n| WalkGraph {
            kind: "agent_trace_node".into(),
            id: node(n * 31 % ENTITIES),
            toward,
            edge_kinds: Vec::new(),
            depth,
            limit: 1_000,
            cursor: None,
        });
    }
    replica.measure("edge_list to an entity", |n| ListEdges { to_kind: kind(), to_id: Some(node(n * 31 % ENTITIES)), ..edges.clone() });
}
