//! What every history keeps. Each function answers the violations it found; none means that the history is fine by it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::history::{Event, Moment, Operation, Outcome};

/// One thing that no order of events explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// Leases: a grant's client and token, and the time in which it surely was in force.
struct Tenure<'a> {
    client: &'a str,
    token: u64,
    from: Moment,
    until: Moment,
}

/// **Mutual exclusion.** No two clients hold one resource at the same time.
///
/// A grant counts only for the time in which the lease was surely in force: from its answer to the sooner of its release being
/// sent and its end, counted from its *sending*, because the server's clock started at some moment between the two. `skew` is how
/// much sooner than that a lease may end by its promise; 0 for a lease that never ends early.
pub fn mutual_exclusion(history: &[Event], skew: Duration) -> Vec<Violation> {
    let mut found = Vec::new();
    for (resource, tenures) in tenures(history, skew) {
        for (i, one) in tenures.iter().enumerate() {
            for other in &tenures[i + 1..] {
                if one.client != other.client && one.from < other.until && other.from < one.until {
                    found.push(Violation(format!(
                        "`{resource}` was held by {} (token {}) and by {} (token {}) at {:?}",
                        one.client,
                        one.token,
                        other.client,
                        other.token,
                        one.from.max(other.from)
                    )));
                }
            }
        }
    }
    found
}

/// **Fencing tokens are monotonic.** A grant to another client, asked for after an earlier grant was answered, has a higher token;
/// and no token is given to two clients.
pub fn monotonic_fencing_tokens(history: &[Event]) -> Vec<Violation> {
    let mut by_resource: BTreeMap<&str, Vec<(&Event, u64)>> = BTreeMap::new();
    for event in history {
        if let (Operation::Acquire { resource, .. }, Outcome::Granted { token }) = (&event.operation, &event.outcome) {
            by_resource.entry(resource).or_default().push((event, *token));
        }
    }
    let mut found = Vec::new();
    for (resource, grants) in by_resource {
        for (i, (one, token)) in grants.iter().enumerate() {
            for (other, other_token) in &grants[i + 1..] {
                if one.client == other.client {
                    continue;
                }
                // The history is sorted by sending, so only this order can be certain.
                let certain = one.answered <= other.sent;
                if token == other_token || certain && token > other_token {
                    found.push(Violation(format!(
                        "`{resource}`: token {token} of {} came before token {other_token} of {}",
                        one.client, other.client
                    )));
                }
            }
        }
    }
    found
}

/// **Durability.** What was acknowledged before a read was sent is in the answer of that read.
pub fn no_lost_writes(history: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    for read in history {
        let (Operation::Read { name }, Outcome::Versions(versions)) = (&read.operation, &read.outcome) else { continue };
        for write in history.iter().filter(|write| write.answered <= read.sent) {
            if let (Some((written, value)), Outcome::Stored { version }) = (write.operation.written(), &write.outcome)
                && written == name
                && !versions.iter().any(|stored| stored == value)
            {
                found.push(Violation(format!("`{name}`: version {version} was acknowledged to {} and is gone", write.client)));
            }
        }
    }
    found
}

/// **Exactly once.** One request has one effect: each value was sent under one request id, so that no read may show it twice, and
/// all answers to one request are the same.
pub fn exactly_once(history: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut answers: BTreeMap<&str, u64> = BTreeMap::new();
    for event in history {
        match (&event.operation, &event.outcome) {
            (Operation::Store { name, request, .. }, Outcome::Stored { version }) => {
                let first = *answers.entry(request).or_insert(*version);
                if first != *version {
                    found.push(Violation(format!("`{name}`: request {request} was answered with version {first} and with {version}")));
                }
            }
            (Operation::Read { name }, Outcome::Versions(versions)) => {
                let mut seen = BTreeSet::new();
                for value in versions.iter().filter(|value| !seen.insert(*value)) {
                    found.push(Violation(format!("`{name}`: {value} is stored twice")));
                }
            }
            _ => {}
        }
    }
    found
}

/// **No reads from thin air.** A read shows only values that somebody had sent before it was answered, and none that was refused.
pub fn no_thin_air_reads(history: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    for read in history {
        let (Operation::Read { name }, Outcome::Versions(versions)) = (&read.operation, &read.outcome) else { continue };
        let sent: BTreeSet<&str> = history
            .iter()
            .filter(|write| write.sent <= read.answered && !matches!(write.outcome, Outcome::Refused | Outcome::Stale))
            .filter_map(|write| write.operation.written())
            .filter(|(written, _)| written == name)
            .map(|(_, value)| value)
            .collect();
        for value in versions.iter().filter(|value| !sent.contains(value.as_str())) {
            found.push(Violation(format!("`{name}`: {value} was read and never written")));
        }
    }
    found
}

fn tenures(history: &[Event], skew: Duration) -> BTreeMap<&str, Vec<Tenure<'_>>> {
    let mut found: BTreeMap<&str, Vec<Tenure<'_>>> = BTreeMap::new();
    for event in history {
        let (Operation::Acquire { resource, ttl }, Outcome::Granted { token }) = (&event.operation, &event.outcome) else { continue };
        let end = (event.sent + *ttl).saturating_sub(skew);
        // From the sending of a release on, even of one without an answer, the lease may be over. An operator may also end one of
        // whose grant its holder does not know yet.
        let ends = |other: &&Event| match &other.operation {
            Operation::Release { resource: freed, token: of } => {
                freed == resource && of == token && other.client == event.client && other.sent >= event.answered
            }
            Operation::Force { resource: freed, token: of } => freed == resource && of == token,
            _ => false,
        };
        let released = history.iter().filter(ends).map(|other| other.sent).min();
        // A renewal may have made the lease shorter than the grant before it, answered or not.
        let renewed = history
            .iter()
            .filter(|other| other.client == event.client && other.sent >= event.answered && other.outcome != Outcome::Refused)
            .filter_map(|other| match &other.operation {
                Operation::Acquire { resource: renewed, ttl } if renewed == resource => Some((other.sent + *ttl).saturating_sub(skew)),
                _ => None,
            })
            .min();
        let until = [released, renewed].into_iter().flatten().fold(end, Moment::min);
        found.entry(resource).or_default().push(Tenure { client: &event.client, token: *token, from: event.answered, until });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn event(client: &str, sent: u64, answered: u64, operation: Operation, outcome: Outcome) -> Event {
        let (sent, answered) = (Duration::from_millis(sent), Duration::from_millis(answered));
        Event { client: client.into(), operation, outcome, sent, answered, revision: None, via: Vec::new() }
    }

    fn grant(client: &str, sent: u64, answered: u64, token: u64) -> Event {
        event(client, sent, answered, Operation::Acquire { resource: "a".into(), ttl: SECOND }, Outcome::Granted { token })
    }

    fn release(client: &str, sent: u64, answered: u64, token: u64, outcome: Outcome) -> Event {
        event(client, sent, answered, Operation::Release { resource: "a".into(), token }, outcome)
    }

    fn store(sent: u64, answered: u64, value: &str, outcome: Outcome) -> Event {
        let operation = Operation::Store { name: "n".into(), value: value.into(), request: format!("r-{value}") };
        event("mara", sent, answered, operation, outcome)
    }

    fn read(sent: u64, answered: u64, versions: &[&str]) -> Event {
        let versions = versions.iter().map(|version| version.to_string()).collect();
        event("jon", sent, answered, Operation::Read { name: "n".into() }, Outcome::Versions(versions))
    }

    #[test]
    fn a_lease_passes_on_when_it_ends_or_is_released() {
        let ended = [grant("mara", 0, 10, 1), grant("jon", 990, 1000, 2)];
        let released = [grant("mara", 0, 10, 1), release("mara", 100, 120, 1, Outcome::Released), grant("jon", 105, 130, 2)];
        let perhaps_released = [grant("mara", 0, 10, 1), release("mara", 100, 900, 1, Outcome::Unknown), grant("jon", 105, 130, 2)];
        let renewed = [grant("mara", 0, 10, 1), grant("mara", 500, 510, 1)];
        let short = Operation::Acquire { resource: "a".into(), ttl: SECOND / 10 };
        let shortened = [grant("mara", 0, 10, 1), event("mara", 20, 30, short, Outcome::Unknown), grant("jon", 120, 130, 2)];
        for history in [&ended[..], &released, &perhaps_released, &renewed, &shortened] {
            assert_eq!(mutual_exclusion(history, Duration::ZERO), []);
            assert_eq!(monotonic_fencing_tokens(history), []);
        }
    }

    #[test]
    fn a_second_holder_is_found() {
        let history = [grant("mara", 0, 10, 1), grant("jon", 500, 600, 2)];
        assert_eq!(mutual_exclusion(&history, Duration::ZERO).len(), 1);
        assert_eq!(mutual_exclusion(&history, SECOND / 2), [], "a lease that may end half a second early");
        let release_of_another_token = [grant("mara", 0, 10, 5), release("mara", 20, 30, 4, Outcome::Refused), grant("jon", 500, 600, 6)];
        assert_eq!(mutual_exclusion(&release_of_another_token, Duration::ZERO).len(), 1);
    }

    #[test]
    fn a_token_that_falls_or_repeats_is_found() {
        assert_eq!(monotonic_fencing_tokens(&[grant("mara", 0, 10, 7), grant("jon", 2000, 2010, 6)]).len(), 1);
        assert_eq!(monotonic_fencing_tokens(&[grant("mara", 0, 3000, 7), grant("jon", 10, 2010, 7)]).len(), 1);
        assert_eq!(
            monotonic_fencing_tokens(&[grant("mara", 0, 3000, 7), grant("jon", 10, 2010, 6)]),
            [],
            "they overlap, so either may be first"
        );
    }

    #[test]
    fn a_lost_write_is_found_and_an_unknown_one_may_be_missing() {
        let stored = || Outcome::Stored { version: 1 };
        assert_eq!(no_lost_writes(&[store(0, 10, "a", stored()), read(20, 30, &[])]).len(), 1);
        assert_eq!(no_lost_writes(&[store(0, 10, "a", stored()), read(5, 30, &[])]), [], "the read was sent before");
        assert_eq!(no_lost_writes(&[store(0, 10, "a", Outcome::Unknown), read(20, 30, &[])]), []);
        assert_eq!(no_lost_writes(&[store(0, 10, "a", stored()), read(20, 30, &["a"])]), []);
    }

    #[test]
    fn a_doubled_write_is_found() {
        assert_eq!(exactly_once(&[store(0, 10, "a", Outcome::Unknown), read(20, 30, &["a", "a"])]).len(), 1);
        let two_answers = [store(0, 10, "a", Outcome::Stored { version: 1 }), store(20, 30, "a", Outcome::Stored { version: 2 })];
        assert_eq!(exactly_once(&two_answers).len(), 1);
        let same_answer = [store(0, 10, "a", Outcome::Stored { version: 1 }), store(20, 30, "a", Outcome::Stored { version: 1 })];
        assert_eq!(exactly_once(&same_answer), []);
    }

    #[test]
    fn a_value_that_nobody_wrote_is_found() {
        assert_eq!(no_thin_air_reads(&[read(20, 30, &["a"])]).len(), 1);
        assert_eq!(no_thin_air_reads(&[store(0, 10, "a", Outcome::Refused), read(20, 30, &["a"])]).len(), 1);
        assert_eq!(no_thin_air_reads(&[store(40, 50, "a", Outcome::Unknown), read(20, 30, &["a"])]).len(), 1);
        assert_eq!(no_thin_air_reads(&[store(0, 10, "a", Outcome::Unknown), read(20, 30, &["a"])]), []);
    }
}
