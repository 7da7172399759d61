//! What answers say of each other's order, over a whole history in one pass. Like those in [`crate::invariant`], each function
//! answers what no order of events explains.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{Event, Moment, Operation, Outcome};
use crate::invariant::Violation;

/// **Revisions follow real time.** A write that was sent after another operation was answered has a higher revision than that
/// one's; a read has one at least as high.
pub fn revisions_follow_real_time(history: &[Event]) -> Vec<Violation> {
    let told = || history.iter().filter_map(|event| event.revision.map(|revision| (event, revision)));
    let mut by_answer: Vec<(&Event, u64)> = told().collect();
    by_answer.sort_by_key(|(event, _)| event.answered);
    let mut by_sending: Vec<(&Event, u64)> = told().collect();
    by_sending.sort_by_key(|(event, _)| event.sent);
    let mut answered = by_answer.into_iter().peekable();
    let mut highest: Option<(&Event, u64)> = None;
    let mut found = Vec::new();
    for (event, revision) in by_sending {
        while let Some(before) = answered.next_if(|(before, _)| before.answered < event.sent) {
            if highest.is_none_or(|(_, highest)| before.1 > highest) {
                highest = Some(before);
            }
        }
        let Some((before, highest)) = highest else { continue };
        let is_read = event.operation.is_read();
        // Two reads of one state, or a read of what the write before it made, have the same revision.
        if revision < highest || (revision == highest && !is_read) {
            found.push(Violation(format!(
                "revision {revision} of {} ({}) was sent after revision {highest} of {} ({}) was answered",
                event.client,
                event.operation.object(),
                before.client,
                before.operation.object()
            )));
        }
    }
    found
}

/// **A chain only grows.** Of two reads of all versions the shorter is the beginning of the longer, and a read that was sent after
/// another was answered is not the shorter.
pub fn chains_only_grow(history: &[Event]) -> Vec<Violation> {
    let mut reads: BTreeMap<&str, Vec<(&Event, &Vec<String>)>> = BTreeMap::new();
    for event in history {
        if let (Operation::Read { name }, Outcome::Versions(versions)) = (&event.operation, &event.outcome) {
            reads.entry(name).or_default().push((event, versions));
        }
    }
    let mut found = Vec::new();
    for (name, mut reads) in reads {
        reads.sort_by_key(|(_, versions)| versions.len());
        for pair in reads.windows(2) {
            let ((one, shorter), (other, longer)) = (pair[0], pair[1]);
            if !longer.starts_with(shorter) {
                found.push(Violation(format!("`{name}`: {} and {} read different beginnings", one.client, other.client)));
            }
        }
        reads.sort_by_key(|(event, _)| event.answered);
        for pair in reads.windows(2) {
            let ((one, earlier), (other, later)) = (pair[0], pair[1]);
            if one.answered < other.sent && later.len() < earlier.len() {
                let (was, is) = (earlier.len(), later.len());
                found.push(Violation(format!("`{name}`: {} read {was} versions, and {} {is} after it", one.client, other.client)));
            }
        }
    }
    found
}

/// **Fenced writes come in the order of their tokens.** In the order in which the stores under a lease took effect no token is
/// lower than one before: a holder that lost its lease writes no more.
pub fn fenced_writes_in_token_order(history: &[Event]) -> Vec<Violation> {
    let mut tokens: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut by_version: BTreeMap<&str, BTreeMap<u64, (&Event, u64)>> = BTreeMap::new();
    let mut refused: Vec<(&str, &str, &Event)> = Vec::new();
    let mut longest: BTreeMap<&str, &Vec<String>> = BTreeMap::new();
    for event in history {
        match (&event.operation, &event.outcome) {
            (Operation::StoreUnder { token, name, value, .. }, outcome) => {
                tokens.insert((name, value), *token);
                match outcome {
                    Outcome::Stored { version } => {
                        by_version.entry(name).or_default().insert(*version, (event, *token));
                    }
                    Outcome::Stale => refused.push((name, value, event)),
                    _ => {}
                }
            }
            (Operation::Read { name }, Outcome::Versions(versions)) => {
                let known = longest.entry(name).or_insert(versions);
                if versions.len() > known.len() {
                    *known = versions;
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    let mut judge = |name: &str, order: Vec<u64>| {
        for pair in order.windows(2).filter(|pair| pair[1] < pair[0]) {
            found.push(Violation(format!("`{name}`: a write under token {} took effect after one under token {}", pair[1], pair[0])));
        }
    };
    for (name, writes) in &by_version {
        judge(name, writes.values().map(|(_, token)| *token).collect());
    }
    for (name, versions) in &longest {
        judge(name, versions.iter().filter_map(|value| tokens.get(&(*name, value.as_str())).copied()).collect());
    }
    for (name, value, event) in refused {
        if longest.get(name).is_some_and(|versions| versions.iter().any(|stored| stored == value)) {
            found.push(Violation(format!("`{name}`: {value} of {} was refused and is stored", event.client)));
        }
    }
    found
}

/// **Decided once.** Each approval has one decision, and every answer tells the same.
pub fn decided_once(history: &[Event]) -> Vec<Violation> {
    let mut first: BTreeMap<&str, (&str, bool)> = BTreeMap::new();
    let mut winners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut found = Vec::new();
    for event in history {
        let Operation::Decide { approval, .. } = &event.operation else { continue };
        let told = match event.outcome {
            Outcome::Decided { approve } => {
                winners.entry(approval).or_default().push(&event.client);
                approve
            }
            Outcome::AlreadyDecided { approve } => approve,
            _ => continue,
        };
        let (client, known) = *first.entry(approval).or_insert((&event.client, told));
        if known != told {
            let word = |approve: bool| if approve { "approved" } else { "rejected" };
            let (one, other) = (word(known), word(told));
            found.push(Violation(format!("`{approval}` is {one} to {client} and {other} to {}", event.client)));
        }
    }
    for (approval, winners) in winners.into_iter().filter(|(_, winners)| winners.len() > 1) {
        found.push(Violation(format!("`{approval}` was decided by {}", winners.join(" and by "))));
    }
    found
}

/// **A lease never ends early.** Until a grant's or renewal's time is over, counted from its *sending*, nobody else is granted the
/// resource, and neither its holder's writes nor anybody's look shows it ended, unless the holder gave it back.
pub fn no_early_expiry(history: &[Event]) -> Vec<Violation> {
    let mut by_resource: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in history {
        let is_of_lease = matches!(
            event.operation,
            Operation::Acquire { .. }
                | Operation::Release { .. }
                | Operation::Force { .. }
                | Operation::Check { .. }
                | Operation::StoreUnder { .. }
        );
        if is_of_lease {
            by_resource.entry(event.operation.object()).or_default().push(event);
        }
    }
    let mut found = Vec::new();
    for (resource, events) in by_resource {
        for grant in &events {
            let (Operation::Acquire { ttl, .. }, Outcome::Granted { token }) = (&grant.operation, &grant.outcome) else { continue };
            let until = surely_held_until(&events, grant, *token, *ttl);
            let within = |event: &&&Event| event.sent >= grant.answered && event.answered <= until;
            for event in events.iter().filter(within) {
                let shows = match (&event.operation, &event.outcome) {
                    (Operation::Check { .. }, Outcome::Holder(holder)) => holder.as_deref() != Some(&grant.client),
                    (Operation::StoreUnder { token: under, .. }, Outcome::Stale) => event.client == grant.client && under == token,
                    (Operation::Acquire { .. }, Outcome::Granted { token: other }) => other != token,
                    _ => false,
                };
                if shows {
                    let left = until - event.answered;
                    found.push(Violation(format!(
                        "`{resource}`: token {token} of {} had {left:?} left when {} saw it ended",
                        grant.client, event.client
                    )));
                }
            }
        }
    }
    found
}

fn surely_held_until(events: &[&Event], grant: &Event, token: u64, ttl: Duration) -> Moment {
    let ends = |event: &&&Event| match event.operation {
        Operation::Release { token: of, .. } => of == token && event.client == grant.client && event.sent >= grant.answered,
        Operation::Force { token: of, .. } => of == token,
        _ => false,
    };
    events.iter().filter(ends).map(|event| event.sent).fold(grant.sent + ttl, Moment::min)
}

/// **Read your writes.** What was acknowledged to a client stands in its place in every read that the client sends later.
pub fn read_your_writes(history: &[Event]) -> Vec<Violation> {
    // When it was answered, its version and its value, by client and name.
    type Written<'a> = Vec<(Moment, u64, &'a str)>;
    let mut written: BTreeMap<(&str, &str), Written> = BTreeMap::new();
    let mut found = Vec::new();
    // Sorted by sending, so that what was answered before a read comes before it.
    for event in history {
        if let (Some((name, value)), Outcome::Stored { version }) = (event.operation.written(), &event.outcome) {
            written.entry((&event.client, name)).or_default().push((event.answered, *version, value));
            continue;
        }
        let own = written.get(&(event.client.as_str(), event.operation.object())).into_iter().flatten();
        for (_, version, value) in own.filter(|(answered, ..)| *answered <= event.sent) {
            let is_shown = match &event.outcome {
                Outcome::Versions(versions) => versions.get(*version as usize - 1).is_some_and(|shown| shown == value),
                Outcome::Version(last) => last.as_ref().is_some_and(|(last, shown)| last > version || (last == version && shown == value)),
                _ => true,
            };
            if !is_shown {
                let (client, name) = (&event.client, event.operation.object());
                found.push(Violation(format!("`{name}`: {client} does not read its own version {version}, {value}")));
            }
        }
    }
    found
}

/// How much longer than its time and the cluster's standstills a lease may last: ticks of an idle cluster, and what is on its way.
const LATE_MAX: Duration = Duration::from_secs(2);
/// A longer time without an acknowledged write is a standstill: it lengthens leases, as it is meant to.
const STANDSTILL: Duration = Duration::from_millis(200);

/// How late leases ended.
#[derive(Debug, Default)]
pub struct Lateness {
    /// Looks at leases that were over, and at those that were not.
    pub asked_of: usize,
    /// The latest that one was still seen held, less the standstills in its life.
    pub worst: Duration,
    pub violations: Vec<Violation>,
}

/// **Bounded lateness.** Nobody sees a lease held by more than [`LATE_MAX`] after the time of its last grant or renewal, counted from the
/// answer, not counting standstills since then. Where another grant may have come, nothing is said.
pub fn lateness(history: &[Event]) -> Lateness {
    let is_write = |event: &&Event| event.revision.is_some() && !event.operation.is_read();
    let mut written: Vec<Moment> = history.iter().filter(is_write).map(|event| event.answered).collect();
    written.sort();
    let mut by_resource: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in history.iter().filter(|event| matches!(event.operation, Operation::Acquire { .. } | Operation::Check { .. })) {
        by_resource.entry(event.operation.object()).or_default().push(event);
    }
    let mut lateness = Lateness::default();
    for (resource, events) in by_resource {
        for seen in &events {
            let Outcome::Holder(Some(holder)) = &seen.outcome else { continue };
            let Some((granted, over)) = surely_over_at(&events, seen, holder) else { continue };
            lateness.asked_of += 1;
            let late = seen.sent.saturating_sub(over).saturating_sub(standstill(&written, granted, seen.sent));
            lateness.worst = lateness.worst.max(late);
            if late > LATE_MAX {
                lateness.violations.push(Violation(format!(
                    "`{resource}`: the lease of {holder} was over {late:?} ago, standstills not counted, when {} saw it held",
                    seen.client
                )));
            }
        }
    }
    lateness
}

/// When the holder's lease was last granted or renewed, and when it was surely over, by what was sent before it was seen. None where
/// something may have come between.
fn surely_over_at(events: &[&Event], seen: &Event, holder: &str) -> Option<(Moment, Moment)> {
    let mut last = None;
    for event in events.iter().filter(|event| event.client == holder && event.sent < seen.answered) {
        let Operation::Acquire { ttl, .. } = event.operation else { continue };
        match event.outcome {
            Outcome::Granted { .. } if event.answered <= seen.sent => {
                last = last.max(Some((event.answered + ttl, event.sent)));
            }
            // Another one had it, and whoever asked does not wait.
            Outcome::Holder(_) => {}
            _ => return None,
        }
    }
    last.map(|(over, granted)| (granted, over))
}

/// Between two moments, the sum of the times in which no write was acknowledged.
fn standstill(written: &[Moment], from: Moment, until: Moment) -> Duration {
    let first = written.partition_point(|at| *at <= from);
    let inside = written[first..].iter().copied().take_while(|at| *at < until);
    let mut before = from;
    let mut sum = Duration::ZERO;
    for at in inside.chain([until]) {
        let gap = at.saturating_sub(before);
        if gap > STANDSTILL {
            sum += gap;
        }
        before = at;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(client: &str, sent: u64, answered: u64, operation: Operation, outcome: Outcome) -> Event {
        let (sent, answered) = (Duration::from_millis(sent), Duration::from_millis(answered));
        Event { client: client.into(), operation, outcome, sent, answered, revision: None, via: Vec::new() }
    }

    fn at(event: Event, revision: u64) -> Event {
        Event { revision: Some(revision), ..event }
    }

    fn store(sent: u64, answered: u64, version: u64) -> Event {
        let value = format!("v{version}");
        let operation = Operation::Store { name: "n".into(), request: value.clone(), value };
        event("mara", sent, answered, operation, Outcome::Stored { version })
    }

    fn read(sent: u64, answered: u64, versions: &[&str]) -> Event {
        let versions = versions.iter().map(|version| version.to_string()).collect();
        event("jon", sent, answered, Operation::Read { name: "n".into() }, Outcome::Versions(versions))
    }

    fn under(client: &str, sent: u64, token: u64, value: &str, outcome: Outcome) -> Event {
        let operation = Operation::StoreUnder { resource: "a".into(), token, name: "n".into(), value: value.into() };
        event(client, sent, sent + 10, operation, outcome)
    }

    fn grant(client: &str, sent: u64, token: u64) -> Event {
        let operation = Operation::Acquire { resource: "a".into(), ttl: Duration::from_secs(1) };
        event(client, sent, sent + 10, operation, Outcome::Granted { token })
    }

    #[test]
    fn a_revision_that_falls_is_found_and_one_of_a_concurrent_write_is_not() {
        let good = [at(store(0, 10, 1), 5), at(store(5, 20, 2), 4), at(read(30, 40, &[]), 5), at(store(50, 60, 3), 6)];
        assert_eq!(revisions_follow_real_time(&good), []);
        let same = [at(store(0, 10, 1), 5), at(store(20, 30, 2), 5)];
        assert_eq!(revisions_follow_real_time(&same).len(), 1);
        let stale = [at(store(0, 10, 1), 5), at(read(20, 30, &[]), 4)];
        assert_eq!(revisions_follow_real_time(&stale).len(), 1);
    }

    #[test]
    fn a_chain_that_forks_or_shrinks_is_found() {
        assert_eq!(chains_only_grow(&[read(0, 10, &["a"]), read(0, 10, &["a", "b"]), read(20, 30, &["a", "b"])]), []);
        assert_eq!(chains_only_grow(&[read(0, 10, &["a"]), read(20, 30, &["b", "a"])]).len(), 1);
        assert_eq!(chains_only_grow(&[read(0, 10, &["a", "b"]), read(20, 30, &["a"])]).len(), 1);
    }

    #[test]
    fn a_holder_that_writes_after_its_successor_is_found_also_when_its_answer_was_lost() {
        let one = under("mara", 0, 7, "m", Outcome::Stored { version: 1 });
        let two = under("jon", 20, 9, "j", Outcome::Stored { version: 2 });
        assert_eq!(fenced_writes_in_token_order(&[one.clone(), two.clone()]), []);
        let late = under("mara", 40, 7, "late", Outcome::Stored { version: 3 });
        assert_eq!(fenced_writes_in_token_order(&[one.clone(), two.clone(), late]).len(), 1);
        let lost = under("mara", 40, 7, "late", Outcome::Unknown);
        assert_eq!(fenced_writes_in_token_order(&[one.clone(), two.clone(), lost, read(60, 70, &["m", "j", "late"])]).len(), 1);
        let refused = under("mara", 40, 7, "late", Outcome::Stale);
        assert_eq!(fenced_writes_in_token_order(&[one, refused, read(60, 70, &["m", "late"])]).len(), 1);
    }

    #[test]
    fn two_decisions_are_found() {
        let decide =
            |client: &str, approve: bool, outcome| event(client, 0, 10, Operation::Decide { approval: "a".into(), approve }, outcome);
        let won = decide("o1", true, Outcome::Decided { approve: true });
        let lost = decide("o2", false, Outcome::AlreadyDecided { approve: true });
        assert_eq!(decided_once(&[won.clone(), lost]), []);
        assert_eq!(decided_once(&[won.clone(), decide("o2", false, Outcome::Decided { approve: false })]).len(), 2);
        assert_eq!(decided_once(&[won.clone(), decide("o2", true, Outcome::Decided { approve: true })]).len(), 1);
        assert_eq!(decided_once(&[won, decide("o2", false, Outcome::AlreadyDecided { approve: false })]).len(), 1);
    }

    #[test]
    fn a_client_that_does_not_read_its_own_write_is_found_and_another_ones_read_is_not_judged_by_it() {
        let own = |sent: u64, versions: &[&str]| Event { client: "mara".into(), ..read(sent, sent + 10, versions) };
        assert_eq!(read_your_writes(&[store(0, 10, 1), own(20, &["v1"]), read(20, 30, &[])]), []);
        assert_eq!(read_your_writes(&[store(0, 30, 1), own(20, &[])]), [], "it was not acknowledged yet");
        assert_eq!(read_your_writes(&[store(0, 10, 1), own(20, &[])]).len(), 1);
        let latest = |version| {
            let read = Operation::Latest { name: "n".into() };
            event("mara", 20, 30, read, Outcome::Version(Some((version, format!("v{version}")))))
        };
        assert_eq!(read_your_writes(&[store(0, 10, 2), latest(3)]), []);
        assert_eq!(read_your_writes(&[store(0, 10, 2), latest(1)]).len(), 1);
    }

    #[test]
    fn a_lease_that_lasts_on_is_found_and_standstills_and_possible_renewals_are_allowed_for() {
        let look = |sent: u64| {
            let outcome = Outcome::Holder(Some("mara".into()));
            event("jon", sent, sent + 10, Operation::Check { resource: "a".into() }, outcome)
        };
        // Something is written all the time, but for a time from 1 s on.
        let busy = |stands_still_ms: u64, mut events: Vec<Event>| {
            let times = (0..100).map(|step| step * 100).filter(|at| !(1_000..1_000 + stands_still_ms).contains(at));
            events.extend(times.map(|at| Event { client: "writer".into(), revision: Some(at + 1), ..store(at, at + 5, 1) }));
            events.sort_by_key(|event| event.sent);
            events
        };
        let found = |events: &[Event]| (lateness(events).asked_of, lateness(events).violations.len());
        assert_eq!(found(&busy(0, vec![grant("mara", 0, 1), look(2_900)])), (1, 0));
        assert_eq!(found(&busy(0, vec![grant("mara", 0, 1), look(3_500)])), (1, 1));
        assert_eq!(found(&busy(0, vec![grant("mara", 0, 1), grant("mara", 900, 1), look(3_500)])), (1, 0));
        assert_eq!(found(&busy(1_500, vec![grant("mara", 0, 1), look(3_500)])), (1, 0), "nothing was decided for 1.5 s");
        let perhaps = event("mara", 900, 950, Operation::Acquire { resource: "a".into(), ttl: Duration::from_secs(1) }, Outcome::Unknown);
        assert_eq!(found(&busy(0, vec![grant("mara", 0, 1), perhaps, look(3_500)])), (0, 0), "it may have been renewed");
    }

    #[test]
    fn a_lease_that_an_operator_takes_is_not_one_that_ends_early() {
        let force = event("olga", 100, 110, Operation::Force { resource: "a".into(), token: 1 }, Outcome::Released);
        let look = event("jon", 200, 210, Operation::Check { resource: "a".into() }, Outcome::Holder(None));
        assert_eq!(no_early_expiry(&[grant("mara", 0, 1), force, look.clone()]), []);
        assert_eq!(no_early_expiry(&[grant("mara", 0, 1), look]).len(), 1);
    }

    #[test]
    fn a_lease_that_ends_early_is_found_by_a_look_a_grant_and_a_refused_write() {
        let look = |sent: u64, holder: Option<&str>| {
            let holder = holder.map(str::to_string);
            event("jon", sent, sent + 10, Operation::Check { resource: "a".into() }, Outcome::Holder(holder))
        };
        let release = event("mara", 100, 110, Operation::Release { resource: "a".into(), token: 1 }, Outcome::Unknown);
        let good = [grant("mara", 0, 1), look(20, Some("mara")), look(995, None), grant("jon", 995, 3)];
        assert_eq!(no_early_expiry(&good), []);
        assert_eq!(no_early_expiry(&[grant("mara", 0, 1), release, look(120, None)]), []);
        assert_eq!(no_early_expiry(&[grant("mara", 0, 1), look(200, None)]).len(), 1);
        assert_eq!(no_early_expiry(&[grant("mara", 0, 1), look(200, Some("jon"))]).len(), 1);
        assert_eq!(no_early_expiry(&[grant("mara", 0, 1), grant("jon", 200, 2)]).len(), 1);
        assert_eq!(no_early_expiry(&[grant("mara", 0, 1), under("mara", 200, 1, "m", Outcome::Stale)]).len(), 1);
    }
}
