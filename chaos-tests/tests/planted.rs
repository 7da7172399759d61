//! The checkers are only worth what they find. Each test takes a history that is right, sees it pass, plants one fault in it, and
//! sees the property for it named.

use std::time::Duration;

use quorate_chaos::history::{Event, Operation, Outcome};
use quorate_chaos::verdict::judge;

const TTL: Duration = Duration::from_secs(2);

fn event(client: &str, sent: u64, operation: Operation, outcome: Outcome) -> Event {
    let (sent, answered) = (Duration::from_millis(sent), Duration::from_millis(sent + 10));
    Event { client: client.into(), operation, outcome, sent, answered, revision: Some(sent.as_millis() as u64 + 1), via: Vec::new() }
}

fn store(client: &str, sent: u64, value: &str, outcome: Outcome) -> Event {
    let (name, value, request) = ("n".into(), value.to_string(), format!("key-{value}"));
    event(client, sent, Operation::Store { name, value, request }, outcome)
}

fn read(sent: u64, versions: &[&str]) -> Event {
    read_of("n", sent, versions)
}

fn read_of(name: &str, sent: u64, versions: &[&str]) -> Event {
    let versions = versions.iter().map(|version| version.to_string()).collect();
    event("reader", sent, Operation::Read { name: name.into() }, Outcome::Versions(versions))
}

fn acquire(client: &str, sent: u64, outcome: Outcome) -> Event {
    event(client, sent, Operation::Acquire { resource: "file://a".into(), ttl: TTL }, outcome)
}

fn under(client: &str, sent: u64, token: u64, value: &str, outcome: Outcome) -> Event {
    let (resource, name, value) = ("file://a".into(), "under".into(), value.into());
    event(client, sent, Operation::StoreUnder { resource, token, name, value }, outcome)
}

fn save(client: &str, sent: u64, value: &str, expected: Option<u64>, outcome: Outcome) -> Event {
    event(client, sent, Operation::Save { session: "s".into(), value: value.into(), expected }, outcome)
}

fn load(sent: u64, session: Option<(u64, &str)>) -> Event {
    let session = session.map(|(revision, value)| (revision, value.into()));
    event("loader", sent, Operation::Load { session: "s".into() }, Outcome::Session(session))
}

fn decide(client: &str, sent: u64, approve: bool, outcome: Outcome) -> Event {
    event(client, sent, Operation::Decide { approval: "apr".into(), approve }, outcome)
}

/// A history as a healthy cluster gives it, of all kinds of objects and with some noise around them.
fn healthy() -> Vec<Event> {
    let stored = |version| Outcome::Stored { version };
    let mut history = vec![
        store("mara", 0, "a", stored(1)),
        read(20, &["a"]),
        store("jon", 40, "b", Outcome::Unknown),
        store("mara", 60, "c", stored(3)),
        read(80, &["a", "b", "c"]),
        event("reader", 100, Operation::Latest { name: "n".into() }, Outcome::Version(Some((3, "c".into())))),
        acquire("mara", 200, Outcome::Granted { token: 7 }),
        acquire("jon", 220, Outcome::Holder(Some("mara".into()))),
        under("mara", 240, 7, "m1", stored(1)),
        event("jon", 260, Operation::Check { resource: "file://a".into() }, Outcome::Holder(Some("mara".into()))),
        acquire("jon", 2_300, Outcome::Granted { token: 9 }),
        under("mara", 2_320, 7, "m2", Outcome::Stale),
        under("jon", 2_340, 9, "j1", stored(2)),
        read_of("under", 2_350, &["m1", "j1"]),
        event("jon", 2_360, Operation::Release { resource: "file://a".into(), token: 9 }, Outcome::Released),
        acquire("mara", 4_400, Outcome::Granted { token: 11 }),
        event("olga", 4_420, Operation::Force { resource: "file://a".into(), token: 11 }, Outcome::Released),
        under("mara", 4_440, 11, "m3", Outcome::Stale),
        save("mara", 3_000, "s1", Some(0), Outcome::Saved { revision: 3_001 }),
        load(3_020, Some((3_001, "s1"))),
        save("mara", 3_040, "s2", Some(3_001), Outcome::Saved { revision: 3_041 }),
        save("jon", 3_060, "s3", Some(3_001), Outcome::Changed),
        load(3_080, Some((3_041, "s2"))),
        decide("o1", 4_000, true, Outcome::Decided { approve: true }),
        decide("o2", 4_020, false, Outcome::AlreadyDecided { approve: true }),
    ];
    history.sort_by_key(|event| event.sent);
    history
}

/// The names of the properties that a history breaks.
fn broken(history: &[Event]) -> Vec<String> {
    judge(history).into_iter().filter(|property| !property.is_kept()).map(|property| property.name).collect()
}

/// Plants a fault in place of the events sent at `instead_of`.
fn with(instead_of: &[u64], mut planted: Vec<Event>) -> Vec<Event> {
    let mut history = healthy();
    history.retain(|event| !instead_of.contains(&(event.sent.as_millis() as u64)));
    history.append(&mut planted);
    history.sort_by_key(|event| event.sent);
    history
}

#[test]
fn a_healthy_history_passes_and_every_property_was_asked_of_something() {
    let properties = judge(&healthy());
    let untried: Vec<&str> = properties.iter().filter(|property| property.asked_of == 0).map(|property| property.name.as_str()).collect();
    assert_eq!((broken(&healthy()), untried), (Vec::new(), Vec::new()));
}

#[test]
fn a_lost_write_is_named() {
    let history = with(&[80], vec![read(80, &["a", "b"])]);
    assert_eq!(broken(&history), ["linearizable: fact", "no lost writes"]);
}

#[test]
fn a_stale_read_is_named_and_shown_with_what_it_missed_alone() {
    let stale = event("reader", 120, Operation::Latest { name: "n".into() }, Outcome::Version(Some((1, "a".into()))));
    let properties = judge(&with(&[], vec![stale.clone()]));
    let finding = &properties.iter().find(|property| property.name == "linearizable: fact").expect("asked").findings[0];
    assert!(finding.text.ends_with("reader read the last version: version 1 is a"), "{}", finding.text);
    assert!(finding.smallest.contains(&stale) && finding.smallest.len() == 4, "{:#?}", finding.smallest);
}

#[test]
fn a_read_of_what_nobody_wrote_is_named() {
    assert_eq!(broken(&with(&[80], vec![read(80, &["a", "b", "c", "ghost"])])), ["linearizable: fact", "no reads from thin air"]);
}

#[test]
fn a_request_that_is_applied_twice_is_named() {
    let twice = with(&[80, 100], vec![read(80, &["a", "b", "c", "c"])]);
    assert_eq!(broken(&twice), ["linearizable: fact", "exactly once"]);
    let mut answers = store("mara", 65, "c", Outcome::Stored { version: 4 });
    answers.revision = None;
    assert!(broken(&with(&[100], vec![answers])).contains(&"exactly once".to_string()));
}

#[test]
fn a_double_grant_is_named() {
    let history = with(&[220], vec![acquire("jon", 220, Outcome::Granted { token: 8 })]);
    let named = broken(&history);
    for property in ["linearizable: lease", "mutual exclusion", "no early expiry"] {
        assert!(named.contains(&property.to_string()), "{property} is not among {named:?}");
    }
}

#[test]
fn a_token_that_does_not_rise_is_named() {
    let history = with(&[2_300, 2_340, 2_350, 2_360], vec![acquire("jon", 2_300, Outcome::Granted { token: 6 })]);
    assert_eq!(broken(&history), ["linearizable: lease", "monotonic fencing tokens"]);
}

#[test]
fn a_write_of_a_holder_that_lost_its_lease_is_named() {
    let late = under("mara", 2_380, 7, "late", Outcome::Stored { version: 3 });
    assert_eq!(broken(&with(&[], vec![late])), ["linearizable: lease", "fenced writes in token order"]);
}

#[test]
fn an_acknowledged_write_under_a_lease_that_is_gone_is_named() {
    let history = with(&[2_350], vec![read_of("under", 2_350, &["j1"])]);
    assert_eq!(broken(&history), ["linearizable: fact", "no lost writes"]);
}

#[test]
fn a_lease_that_ends_early_is_named() {
    let refused = under("mara", 500, 7, "early", Outcome::Stale);
    assert_eq!(broken(&with(&[], vec![refused])), ["linearizable: lease", "no early expiry"]);
    let free = event("jon", 260, Operation::Check { resource: "file://a".into() }, Outcome::Holder(None));
    assert_eq!(broken(&with(&[260], vec![free])), ["linearizable: lease", "no early expiry"]);
}

#[test]
fn a_write_under_a_lease_that_an_operator_took_is_named() {
    let late = under("mara", 4_440, 11, "m3", Outcome::Stored { version: 3 });
    assert_eq!(broken(&with(&[4_440], vec![late])), ["linearizable: lease"]);
}

#[test]
fn a_lease_that_does_not_end_is_named() {
    let mut planted: Vec<Event> = (10..60).map(|step| store("writer", 5_001 + step * 100, &format!("w{step}"), Outcome::Unknown)).collect();
    for (place, event) in planted.iter_mut().enumerate() {
        event.outcome = Outcome::Stored { version: 4 + place as u64 };
    }
    planted.push(acquire("mara", 6_000, Outcome::Granted { token: 13 }));
    planted.push(event("jon", 10_500, Operation::Check { resource: "file://a".into() }, Outcome::Holder(Some("mara".into()))));
    assert_eq!(broken(&with(&[], planted)), ["bounded lateness"]);
}

#[test]
fn a_client_that_does_not_read_its_own_write_is_named() {
    let own = |event: Event| Event { client: "mara".into(), ..event };
    let history = with(&[80], vec![own(read(80, &["a", "b"]))]);
    assert_eq!(broken(&history), ["linearizable: fact", "no lost writes", "read your writes"]);
}

#[test]
fn a_compare_and_set_that_overwrites_a_change_is_named() {
    let lost_update = save("jon", 3_060, "s3", Some(3_001), Outcome::Saved { revision: 3_061 });
    assert_eq!(broken(&with(&[3_060, 3_080], vec![lost_update])), ["linearizable: session"]);
    assert_eq!(broken(&with(&[3_080], vec![load(3_080, Some((3_001, "s1")))])), ["linearizable: session"]);
}

#[test]
fn a_session_save_that_is_applied_twice_is_named() {
    assert_eq!(broken(&with(&[3_080], vec![load(3_080, Some((3_070, "s2")))])), ["linearizable: session"]);
}

#[test]
fn two_decisions_are_named() {
    let second = decide("o2", 4_020, false, Outcome::Decided { approve: false });
    assert_eq!(broken(&with(&[4_020], vec![second])), ["linearizable: approval", "decided once"]);
}

#[test]
fn a_revision_that_falls_is_named() {
    let mut late = store("mara", 5_000, "z", Outcome::Stored { version: 4 });
    late.revision = Some(10);
    assert_eq!(broken(&with(&[], vec![late])), ["revisions follow real time"]);
}
