use super::*;
use crate::approval::{GetApproval, RequestApproval, RiskTier};
use crate::event::{self, Watched};
use crate::fact::{Confidence, FactHistory, StoreFact};
use crate::identity::{self, PutToken};
use crate::machine::Clock;
use crate::punchcard::{CheckPunchcard, PunchIn, PunchOut, PunchedIn};
use crate::receipt::{GetLogHead, ListReceipts};
use crate::refusal::Refusal;
use crate::session::{GetSession, SaveSession};
use crate::stamp::{Revision, Tier, UnixMs};
use crate::transcript::{WALL, World, person};

const HOUR_MS: u64 = 3_600_000;

fn fact(key: &str, value: &str) -> StoreFact {
    StoreFact {
        entity: "svc:api".into(),
        key: key.into(),
        value: value.into(),
        source_receipt: None,
        confidence: Confidence::FULL,
        private: false,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    }
}

fn punch_in(resource: &str) -> PunchIn {
    PunchIn { resource: resource.into(), holder_passport: "mara".into(), ttl_ms: Some(HOUR_MS), ..PunchIn::default() }
}

fn granted(punched: Result<PunchedIn, Refusal>) -> crate::punchcard::Punchcard {
    match punched {
        Ok(PunchedIn::Granted { card, .. }) => card,
        other => panic!("not granted: {other:?}"),
    }
}

/// A tenant with something of most kinds, in a cluster whose lease clock is at 100 s and that has a few hundred entries.
fn source() -> World {
    let mut world = World::new();
    world.go_on_behind(Revision(300));
    let mara = || person("mara");
    world.call("1s", mara(), None, fact("owner", "platform")).expect("stored");
    world.call("2s", mara(), None, fact("owner", "payments")).expect("stored");
    granted(world.call("3s", mara(), None, punch_in("file://held")));
    granted(world.call("4s", mara(), None, punch_in("file://returned")));
    let out = PunchOut { resource: "file://returned".into(), holder_passport: "mara".into(), tenant_id: None, release_commit_sha: None };
    world.call("5s", mara(), None, out).expect("returned");
    let state = serde_json::json!({ "step": 3 });
    let session = SaveSession { session_id: "s".into(), state, ttl_ms: None, expected_revision: None };
    world.call("6s", mara(), None, session).expect("saved");
    world.call("7s", person("eve"), None, fact("other", "of another tenant")).expect("stored");
    world.tick("100s");
    world
}

fn export(world: &World) -> (Vec<TenantRow>, Tally) {
    let mut rows = TenantRows::of(&world.state, "acme");
    let mut all = Vec::new();
    while let Some(page) = rows.page().expect("no fault") {
        all.extend(page);
    }
    (all, rows.tally())
}

fn begin(batches: u64) -> BeginImport {
    let origin = Origin {
        cluster_id: "there".into(),
        lineage: 0,
        revision: Revision(310),
        lease_now: LeaseTime(100_000),
        exported_at: UnixMs(WALL + 100_000),
        feature_level: 1,
        batches,
        public_key: "00".into(),
    };
    BeginImport { tenant: "acme".into(), import_id: "i".into(), origin }
}

fn batch(number: u64, rows: &[TenantRow]) -> ImportRows {
    ImportRows { tenant: "acme".into(), import_id: "i".into(), batch: number, rows: rows.to_vec() }
}

/// Takes all of it in, in batches of three rows.
fn import(world: &mut World, rows: &[TenantRow]) {
    let batches: Vec<_> = rows.chunks(3).collect();
    world.call("10s", identity::system(), None, begin(batches.len() as u64)).expect("begun");
    for (number, rows) in batches.iter().enumerate() {
        world.call("10s", identity::system(), None, batch(number as u64, rows)).expect("taken");
    }
}

fn arrived() -> World {
    let mut world = World::new();
    import(&mut world, &export(&source()).0);
    world
}

#[test]
fn every_kind_there_is_has_a_way() {
    let declared = include_str!("../record.rs").lines().filter_map(|line| line.trim().strip_suffix(','));
    let numbers: Vec<(&str, u8)> =
        declared.filter_map(|line| line.split_once(" = ")).filter_map(|(name, number)| Some((name, number.parse().ok()?))).collect();
    assert!(numbers.len() > 120, "the list of kinds is found");
    for (name, number) in numbers {
        match way(number) {
            Some((kind, _)) => assert_eq!(format!("{kind:?}"), name),
            None => panic!("`{name}` is in no export and left out of none: add it to `WAYS`"),
        }
    }
}

#[test]
fn what_was_stored_is_read_as_it_was_and_nothing_of_another_tenant_comes_along() {
    let (mut there, mut here) = (source(), arrived());
    let history = || FactHistory { entity: "svc:api".into(), key: "owner".into(), limit: 9, cursor: None };
    let before = there.ask("100s", person("mara"), history()).expect("found");
    assert_eq!(here.ask("10s", person("mara"), history()).expect("found"), before);
    assert_eq!(before.versions.len(), 2);
    let session = || GetSession { session_id: "s".into() };
    assert_eq!(
        here.ask("10s", person("mara"), session()).expect("found").state,
        there.ask("100s", person("mara"), session()).expect("found").state
    );
    assert!(!export(&source()).0.iter().any(|row| row.value.0.windows(17).any(|part| part == b"of another tenant")));
    assert_eq!(here.ask("10s", person("eve"), GetLogHead { size: None }).expect("empty").size, 0);
}

#[test]
fn receipts_keep_their_chain_and_their_tree_and_both_go_on() {
    let (mut there, mut here) = (source(), arrived());
    let head = there.ask("100s", person("mara"), GetLogHead { size: None }).expect("a head");
    // The lease that was held has ended here, which is one receipt more.
    let same = here.ask("10s", person("mara"), GetLogHead { size: Some(head.size) }).expect("a head");
    assert_eq!((same.size, same.root_hash), (head.size, head.root_hash));
    here.tick("11s");
    let more = here.ask("11s", person("mara"), GetLogHead { size: None }).expect("a head");
    assert_eq!(more.size, head.size + 1);
    let listed = here.ask("11s", person("mara"), ListReceipts { limit: 50, cursor: None }).expect("listed");
    assert_eq!(listed.receipts.len() as u64, more.size);
}

#[test]
fn a_lease_that_was_held_is_free_and_no_token_of_before_is_good_or_comes_again() {
    let mut there = source();
    let old = granted(there.call("100s", person("mara"), None, punch_in("file://held")));
    let mut here = arrived();
    let asked = CheckPunchcard { resource: "file://held".into(), mode: None, passport: None };
    assert!(!here.ask("10s", person("jon"), asked).expect("known").held_by_other, "not for a moment");
    let late = here.call("11s", person("mara"), Some(old.fencing_token), fact("late", "v")).expect_err("refused");
    assert!(matches!(late, Refusal::StaleToken { .. }), "{late:?}");
    let new = granted(here.call("12s", person("mara"), None, punch_in("file://held")));
    assert_ne!(new.id, old.id);
    assert!(new.fencing_token.0 > old.fencing_token.0 + 1_000_000, "{} after {}", new.fencing_token, old.fencing_token);
    here.call("13s", person("mara"), Some(new.fencing_token), fact("good", "v")).expect("the new token is good");
}

#[test]
fn answers_name_entries_of_this_log_and_a_request_of_before_the_export_is_not_run() {
    let mut here = arrived();
    here.tick("11s");
    let session = SaveSession { session_id: "new".into(), state: serde_json::json!({}), ttl_ms: None, expected_revision: None };
    let saved = here.call("11s", person("mara"), None, session).expect("saved");
    assert!(saved.revision.0 > 1_000_000, "the tenant's own revision");
    let applied = Clock::read(&here.state).expect("a clock").revision;
    assert!(applied.0 < 1_000, "the log's");
    let Watched::Events(events) = event::watch(&here.state, "acme", Revision(applied.0 - 1), 10).expect("no fault") else {
        panic!("they are there")
    };
    assert_eq!(events.iter().map(|event| (event.revision, event.kind.as_str())).collect::<Vec<_>>(), [(applied, "session.saved")]);
    assert!(matches!(event::watch(&here.state, "acme", Revision(0), 10).expect("no fault"), Watched::Compacted { .. }));
    let old = here.call_first_sent("12s", UnixMs(WALL + 9_000), person("mara"), fact("again", "v")).expect_err("refused");
    assert!(matches!(old, Refusal::RequestTooOld { .. }), "{old:?}");
}

#[test]
fn times_keep_their_distance() {
    let mut there = source();
    let ask = RequestApproval {
        action_summary: "deploy".into(),
        risk_tier: RiskTier::Low,
        scope: "deploy".into(),
        tenant_id: None,
        payload: None,
        ttl_ms: Some(60_000),
    };
    let asked = there.call("90s", person("mara"), None, ask).expect("asked");
    let mut here = World::new();
    // Asked 10 s before the export, so 50 s are left.
    import(&mut here, &export(&there).0);
    let status = |here: &mut World, time: &str| {
        here.tick(time);
        here.ask(time, person("mara"), GetApproval { request_id: asked.request_id.clone() }).expect("found").status
    };
    use crate::approval::ApprovalStatus::{Expired, Pending};
    assert_eq!(status(&mut here, "59s"), Pending);
    assert_eq!(status(&mut here, "61s"), Expired);
}

#[test]
fn nobody_acts_in_a_tenant_that_is_not_whole_and_a_batch_is_taken_once() {
    let rows = export(&source()).0;
    let (first, rest) = rows.split_at(5);
    let mut here = World::new();
    assert!(here.call("1s", identity::system(), None, begin(2)).expect("begun").changed);
    assert!(!here.call("2s", identity::system(), None, begin(2)).expect("known").changed);
    let early = here.call("3s", identity::system(), None, batch(1, rest)).expect_err("out of turn");
    assert!(matches!(early, Refusal::Changed { .. }), "{early:?}");
    assert!(here.call("4s", identity::system(), None, batch(0, first)).expect("taken").changed);
    let again = here.call("5s", identity::system(), None, batch(0, first)).expect("known");
    assert_eq!((again.changed, again.state.next_batch, again.state.rows), (false, 1, 5));
    let busy = here.call("6s", person("mara"), None, fact("early", "v")).expect_err("refused");
    assert_eq!(busy, Refusal::TenantArriving { tenant: "acme".into() });
    let token = PutToken {
        hash: "ab".repeat(32),
        tenant: "acme".into(),
        passport: "mara".into(),
        tier: Tier::Verified,
        scopes: Default::default(),
        expires_at: None,
    };
    assert_eq!(here.call("7s", identity::system(), None, token).expect_err("refused"), busy);
    assert!(here.call("8s", identity::system(), None, batch(1, rest)).expect("taken").state.done);
    here.call("9s", person("mara"), None, fact("now", "v")).expect("stored");
    assert!(here.call("9s", identity::system(), None, begin(2)).expect("known").state.done, "the same again changes nothing");
}

#[test]
fn a_tenant_never_comes_in_over_one_that_is_there() {
    let rows = export(&source()).0;
    let mut here = World::new();
    here.call("1s", person("jon"), None, fact("mine", "v")).expect("stored");
    let refused = here.call("2s", identity::system(), None, begin(1)).expect_err("refused");
    assert_eq!(refused, Refusal::TenantThere { tenant: "acme".into() });
    let unknown = here.call("3s", identity::system(), None, batch(0, &rows[..3])).expect_err("never begun");
    assert!(matches!(unknown, Refusal::NotFound { .. }));
    let mut here = arrived();
    let other = BeginImport { import_id: "another".into(), ..begin(1) };
    assert_eq!(here.call("20s", identity::system(), None, other).expect_err("refused"), refused);
    let denied = World::new().call("1s", person("olga"), None, begin(1)).expect_err("an operator of a tenant is not the cluster's");
    assert!(matches!(denied, Refusal::Denied { .. }));
}

#[test]
fn rows_of_others_and_of_no_known_kind_are_refused_and_leave_nothing() {
    let mut here = World::new();
    here.call("1s", identity::system(), None, begin(9)).expect("begun");
    let row = |table: Table, key: Key| TenantRow { table: table.name().into(), key: Bytes(key.into_bytes()), value: Bytes(vec![0]) };
    let bad = [
        row(Table::Records, kind_prefix("other", Kind::Fact).text("x")),
        row(Table::Records, kind_prefix("acme", Kind::Token).text("x")),
        row(Table::Records, Key::new().text("acme").byte(255)),
        row(Table::Meta, kind_prefix(CLUSTER, Kind::Token).text("x")),
        row(Table::Records, kind_prefix("acme", Kind::Session).text("x")),
        row(Table::Index, kind_prefix(CLUSTER, Kind::DocumentLeaving).text("other").text("x")),
        row(Table::Index, kind_prefix(CLUSTER, Kind::SessionByDeadline).number(1).text("acme")),
        TenantRow { table: "none".into(), key: Bytes(vec![1]), value: Bytes(vec![]) },
    ];
    for row in bad {
        let refused = here.call("2s", identity::system(), None, batch(0, std::slice::from_ref(&row))).expect_err("refused");
        assert!(matches!(refused, Refusal::Invalid { .. }), "{row:?}: {refused:?}");
    }
    let found = here.ask("3s", identity::system(), GetTenantImport { tenant: "acme".into() }).expect("known");
    assert_eq!(found.import.expect("begun").next_batch, 0);
}

#[test]
fn what_stays_is_counted_with_its_reason() {
    let (rows, tally) = export(&source());
    assert_eq!(rows.len() as u64, tally.rows());
    assert_eq!(tally.carried["Fact"], 2);
    let left: Vec<(String, bool)> = tally.left_out().into_iter().map(|left| (left.what, left.rows > 0)).collect();
    let found = left.iter().map(|(what, some)| (what.as_str(), *some)).collect::<Vec<_>>();
    let expected = [
        ("leases that are held", true),
        ("queues for leases", false),
        ("bearer tokens", false),
        ("sessions of MCP clients", false),
        ("remembered answers", true),
        ("change events", true),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_row_is_the_same_in_both_of_its_forms() {
    let row = TenantRow { table: "records".into(), key: Bytes(vec![0, 255, 7]), value: Bytes(vec![1; 40]) };
    let json = serde_json::to_string(&row).expect("encodes");
    assert_eq!(serde_json::from_str::<TenantRow>(&json).expect("decodes"), row);
    let cbor = codec::encode(&row);
    assert_eq!(codec::decode::<TenantRow>(&cbor).expect("decodes"), row);
    assert!(cbor.len() < 80, "bytes are bytes: {}", cbor.len());
}
