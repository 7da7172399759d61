//! What a common write reads of the state: on a quick disk that is where its time goes, so a change that adds to it has to say why.

use std::cell::RefCell;
use std::collections::BTreeMap;

use expect_test::expect;
use quorate_domain::fact::{Confidence, StoreFact};
use quorate_domain::machine::{self, Body, Call, Entry};
use quorate_domain::overlay::Overlay;
use quorate_domain::tx::{Direction, Row};
use quorate_domain::{Command, Principal, Read, RequestId, Revision, StorageError, Table, Tier, UnixMs};

/// A state that remembers what was read of it.
#[derive(Default)]
struct Counted {
    rows: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    reads: RefCell<Vec<String>>,
}

impl Read for Counted {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.reads.borrow_mut().push(format!("get {table:?} {}", shape(key)));
        Ok(self.rows.get(&(table, key.to_vec())).cloned())
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        self.reads.borrow_mut().push(format!("scan {table:?} {}", shape(from)));
        let range = self.rows.range((table, from.to_vec())..(table, to.to_vec())).map(|((_, key), value)| (key.clone(), value.clone()));
        Ok(match direction {
            Direction::Ascending => range.take(limit).collect(),
            Direction::Descending => range.rev().take(limit).collect(),
        })
    }
}

/// What of a key is text.
fn shape(key: &[u8]) -> String {
    key.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }).take(40).collect()
}

/// The reads of the last of these commands, each an entry of its own.
fn reads_of(commands: Vec<Command>) -> String {
    let mut state = Counted::default();
    let mara = Principal { tenant: "acme".into(), passport: "mara".into(), tier: Tier::Verified, scopes: ["*".to_string()].into() };
    for (n, command) in (1_u64..).zip(commands) {
        let request = RequestId { id: format!("r{n}"), issued_at: UnixMs(n), keyed: false };
        let call = Call { caller: mara.clone(), request, under: None, command };
        let entry = Entry { wall: UnixMs(n), advance_ms: 0, stamped_term: 1, body: Body::Call(call) };
        state.reads.borrow_mut().clear();
        let mut overlay = Overlay::new(&state);
        let decided = machine::apply(&mut overlay, Revision(n), 1, entry).expect("no fault").expect("a call");
        decided.outcome.expect("it is taken");
        for ((table, key), value) in overlay.into_writes() {
            match value {
                Some(value) => state.rows.insert((table, key), value),
                None => state.rows.remove(&(table, key)),
            };
        }
    }
    state.reads.into_inner().iter().map(|read| format!("{read}\n")).collect()
}

fn store(key: &str) -> Command {
    let fact = StoreFact {
        entity: "svc:api".into(),
        key: key.into(),
        value: "v".repeat(256),
        source_receipt: None,
        confidence: Confidence::FULL,
        private: false,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    };
    fact.into()
}

#[test]
fn a_new_fact_reads_little_of_the_state() {
    expect![[r#"
        get Meta ..P
        get Dedup acme..F.mara..r3..
        get Dedup acme..H.
        get Records acme..(mara..
        get Meta ..S
        get Records acme.....svc:api..c..
        get Index acme..f..svc:api..
        get Meta acme..Q
        get Dedup acme..H.
    "#]]
    .assert_eq(&reads_of(vec![store("a"), store("b"), store("c")]));
}
