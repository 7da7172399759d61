//! What is taken from the front of a queue in an ordered store stays in the way of whoever looks there again, until the store
//! tidies up. So every queue has to remember where its front is: here a store that never tidies up counts what is stepped over.

use std::cell::Cell;
use std::collections::BTreeMap;

use quorate_domain::event::{self, Watched};
use quorate_domain::fact::{Confidence, StoreFact};
use quorate_domain::limit::EVENTS_KEPT_MAX;
use quorate_domain::machine::{self, Body, Call, Entry};
use quorate_domain::overlay::Overlay;
use quorate_domain::punchcard::{PunchIn, PunchOut};
use quorate_domain::tx::{Direction, Row};
use quorate_domain::{Command, LeaseTime, Principal, Read, RequestId, Revision, Stamp, StorageError, Table, Tier, UnixMs};

/// Deleted rows stay as `None`, as they do in an LSM tree that is not compacted.
#[derive(Default)]
struct Untidy {
    rows: BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>,
    stepped_over: Cell<usize>,
}

impl Read for Untidy {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.rows.get(&(table, key.to_vec())).cloned().flatten())
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let alive = |((_, key), value): (&(Table, Vec<u8>), &Option<Vec<u8>>)| {
            self.stepped_over.set(self.stepped_over.get() + usize::from(value.is_none()));
            value.clone().map(|value| (key.clone(), value))
        };
        let rows = self.rows.range((table, from.to_vec())..(table, to.to_vec()));
        Ok(match direction {
            Direction::Ascending => rows.filter_map(alive).take(limit).collect(),
            Direction::Descending => rows.rev().filter_map(alive).take(limit).collect(),
        })
    }
}

fn ann() -> Principal {
    Principal { tenant: "acme".into(), passport: "ann".into(), tier: Tier::Verified, scopes: Default::default() }
}

/// A cluster at work: entries one after the other, with time passing in between.
#[derive(Default)]
struct Cluster {
    store: Untidy,
    revision: u64,
    wall_ms: u64,
}

impl Cluster {
    /// How many deleted rows one more entry steps over.
    fn costs(&mut self, advance_ms: u64, command: impl Into<Command>) -> usize {
        self.revision += 1;
        self.wall_ms += advance_ms;
        let wall = UnixMs(1_900_000_000_000 + self.wall_ms);
        let request = RequestId { id: format!("r{}", self.revision), issued_at: wall, keyed: false };
        let body = Body::Call(Call { caller: ann(), request, under: None, command: command.into() });
        self.store.stepped_over.set(0);
        let mut batch = Overlay::new(&self.store);
        let entry = Entry { wall, advance_ms, stamped_term: 1, body };
        let decided = machine::apply(&mut batch, Revision(self.revision), 1, entry).unwrap().unwrap();
        assert_eq!(decided.outcome.err(), None);
        let writes = batch.into_writes();
        self.store.rows.extend(writes);
        self.store.stepped_over.get()
    }

    /// The dearest of the first and of the last hundred of `n` entries.
    fn first_and_last<C: Into<Command>>(&mut self, n: usize, mut step: impl FnMut(usize) -> (u64, C)) -> (usize, usize) {
        let costs: Vec<usize> = (0..n)
            .map(|n| {
                let (advance_ms, command) = step(n);
                self.costs(advance_ms, command)
            })
            .collect();
        let dearest = |some: &[usize]| *some.iter().max().unwrap();
        (dearest(&costs[..100]), dearest(&costs[n - 100..]))
    }
}

fn store_fact(n: usize) -> StoreFact {
    StoreFact {
        entity: "svc".into(),
        key: format!("k{}", n % 7),
        value: n.to_string(),
        source_receipt: None,
        confidence: Confidence::from_unit(1.0).unwrap(),
        private: false,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    }
}

fn punch_in(resource: String, ttl_ms: u64) -> PunchIn {
    let holder_passport = "ann".into();
    PunchIn {
        resource,
        holder_passport,
        tenant_id: None,
        mode: None,
        reason: None,
        ttl_ms: Some(ttl_ms),
        expires_at: None,
        wait_ms: None,
        ..PunchIn::default()
    }
}

#[test]
fn remembered_answers_that_ran_out_cost_later_calls_nothing() {
    // A second each: answers are forgotten from the six-hundredth on.
    let (first, last) = Cluster::default().first_and_last(3_000, |n| (1_000, store_fact(n)));
    assert!(last <= first + 2, "an entry stepped over {first} deleted rows, and over {last} later");
}

#[test]
fn cards_that_ran_out_cost_later_calls_nothing() {
    let (first, last) = Cluster::default().first_and_last(3_000, |n| (1_000, punch_in(format!("file://src/{n}.rs"), 5_000)));
    assert!(last <= first + 2, "an entry stepped over {first} deleted rows, and over {last} later");
}

#[test]
fn cards_that_were_given_back_cost_later_calls_nothing() {
    let (first, last) = Cluster::default().first_and_last::<Command>(6_000, |n| {
        let resource = format!("file://src/{}.rs", n / 2);
        match n % 2 {
            0 => (1, punch_in(resource, 60_000).into()),
            _ => (1, PunchOut { resource, holder_passport: "ann".into(), tenant_id: None, release_commit_sha: None }.into()),
        }
    });
    assert!(last <= first + 2, "an entry stepped over {first} deleted rows, and over {last} later");
}

#[test]
fn a_full_queue_of_events_drops_its_oldest_at_no_more_cost_and_tells_who_comes_late() {
    let mut store = Untidy::default();
    let mut emit = |revision: u64| {
        let at = Stamp::plain(Revision(revision), LeaseTime(0), UnixMs(0), ann());
        store.stepped_over.set(0);
        let mut tx = Overlay::new(&store);
        event::emit(&mut tx, &at, "fact.stored", "f", serde_json::Value::Null).unwrap();
        let writes = tx.into_writes();
        store.rows.extend(writes);
        store.stepped_over.get()
    };
    // They go sixteen at a time.
    let gone = 31 * 16;
    let dearest = (1..=EVENTS_KEPT_MAX + gone).map(&mut emit).max();
    assert_eq!(dearest, Some(1), "only the one that went last may lie in the way");

    let watch = |since| event::watch(&store, "acme", Revision(since), 1).unwrap();
    assert_eq!(watch(gone - 1), Watched::Compacted { through: Revision(gone) });
    let Watched::Events(next) = watch(gone) else { panic!("nothing after {gone} is gone") };
    assert_eq!(next[0].revision, Revision(gone + 1));
}
