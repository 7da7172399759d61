//! What has to be true of a run, by what its clients saw.

use std::collections::BTreeMap;
use std::time::Duration;

use super::workload::{Seen, What};
use crate::history::{Event, Operation, Outcome};
use crate::invariant::{self, Violation};
use crate::linear::Linearizability;
use crate::model::{self, Kind};
use crate::{order, verdict};

/// How much sooner a lease may end in true time: what the drift of two clocks comes to over the longest one.
const LEASE_SKEW: Duration = Duration::from_millis(120);

/// Every check over one run.
pub fn all(history: &[Event], seen: &[Seen]) -> Vec<String> {
    let found = [
        ("not linearizable", linearizable(history)),
        ("a lost write", invariant::no_lost_writes(history)),
        ("not exactly once", invariant::exactly_once(history)),
        ("a read from thin air", invariant::no_thin_air_reads(history)),
        ("two holders", invariant::mutual_exclusion(history, LEASE_SKEW)),
        ("tokens do not rise", invariant::monotonic_fencing_tokens(history)),
        ("revisions do not rise", revisions_rise(seen)),
        ("an old token passes", old_tokens_fail(seen)),
        ("not decided once", decided_once(history)),
    ];
    let lines =
        found.into_iter().flat_map(|(name, violations)| violations.into_iter().map(move |Violation(what)| format!("{name}: {what}")));
    lines.collect()
}

/// The history with one event for each request, however often it was sent: it had its effect after the first sending, and before the
/// first answer.
fn once(history: &[Event]) -> Vec<Event> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all: Vec<Event> = Vec::with_capacity(history.len());
    for event in history {
        let Operation::Store { request, .. } = &event.operation else {
            all.push(event.clone());
            continue;
        };
        let Some(first) = places.get(request.as_str()).map(|place| &mut all[*place]) else {
            places.insert(request, all.len());
            all.push(event.clone());
            continue;
        };
        let is_better = match (&first.outcome, &event.outcome) {
            // What was refused had no effect at that time, and a later sending may.
            (Outcome::Stored { .. }, Outcome::Stored { .. }) => event.answered < first.answered,
            (Outcome::Stored { .. }, _) => false,
            (_, Outcome::Stored { .. }) => true,
            (Outcome::Refused, Outcome::Unknown) => true,
            _ => false,
        };
        if is_better {
            (first.outcome, first.answered) = (event.outcome.clone(), event.answered);
        }
    }
    all
}

/// **Some order explains it.** Of each fact, session and approval, some order of the operations that keeps to real time explains every
/// answer. (Not of cards: the clocks drift, and the model of a card knows one clock.)
fn linearizable(history: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    let history = once(history);
    for ((kind, object), events) in model::objects(&history).into_iter().filter(|((kind, _), _)| *kind != Kind::Lease) {
        let (outcome, smallest) = model::check(kind, &events);
        let told: Vec<String> = smallest.iter().map(verdict::told).collect();
        match outcome {
            Linearizability::Linearizable => {}
            Linearizability::Undecided => found.push(Violation(format!("{} {object} is too hard to decide", kind.word()))),
            Linearizability::Violated { .. } => found.push(Violation(format!("{} {object}: {}", kind.word(), told.join("; ")))),
        }
    }
    found
}

/// **Real-time order.** What was answered before something else was sent has the lower revision; a read may have the same one.
fn revisions_rise(seen: &[Seen]) -> Vec<Violation> {
    let mut by_answer: Vec<&Seen> = seen.iter().collect();
    by_answer.sort_by_key(|seen| seen.answered);
    let mut by_sending: Vec<&Seen> = seen.iter().filter(|seen| seen.what != What::Repeated).collect();
    by_sending.sort_by_key(|seen| seen.sent);
    let (mut answered, mut highest): (usize, Option<&Seen>) = (0, None);
    let mut found = Vec::new();
    for later in by_sending {
        while let Some(earlier) = by_answer.get(answered).filter(|earlier| earlier.answered <= later.sent) {
            if highest.is_none_or(|highest| highest.revision < earlier.revision) {
                highest = Some(earlier);
            }
            answered += 1;
        }
        let least = |highest: &Seen| if later.what == What::Read { highest.revision } else { highest.revision + 1 };
        if let Some(highest) = highest.filter(|highest| later.revision < least(highest)) {
            found.push(Violation(format!("{later:?} came after {highest:?}")));
        }
    }
    found
}

/// **Decided once.** Everybody is told the same decision of an approval.
fn decided_once(history: &[Event]) -> Vec<Violation> {
    let objects = model::objects(history).into_iter().filter(|((kind, _), _)| *kind == Kind::Decision);
    objects.flat_map(|(_, events)| order::decided_once(&events)).collect()
}

/// **Fencing.** No write under a card is decided after the card went to another, or was given back.
fn old_tokens_fail(seen: &[Seen]) -> Vec<Violation> {
    let mut found = Vec::new();
    for write in seen {
        let What::Fenced { resource, token } = &write.what else { continue };
        for other in seen {
            let passed_on = match &other.what {
                What::Grant { resource: granted, token: newer } => granted == resource && newer > token && *newer < write.revision,
                What::Release { resource: freed, token: of } => freed == resource && of == token && other.revision < write.revision,
                _ => false,
            };
            if passed_on {
                found.push(Violation(format!("{write:?} was decided after {other:?}")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(sent: u64, answered: u64, revision: u64, what: What) -> Seen {
        Seen { sent: Duration::from_millis(sent), answered: Duration::from_millis(answered), revision, what }
    }

    #[test]
    fn a_revision_that_falls_is_found_and_a_read_may_repeat_one() {
        assert_eq!(revisions_rise(&[seen(0, 10, 7, What::Write), seen(10, 20, 7, What::Write)]).len(), 1);
        assert_eq!(revisions_rise(&[seen(0, 10, 7, What::Write), seen(10, 20, 6, What::Read)]).len(), 1);
        assert_eq!(revisions_rise(&[seen(0, 10, 7, What::Write), seen(10, 20, 7, What::Read)]), []);
        assert_eq!(revisions_rise(&[seen(0, 10, 7, What::Write), seen(9, 20, 6, What::Write)]), [], "they overlap");
        assert_eq!(revisions_rise(&[seen(0, 10, 7, What::Write), seen(10, 20, 7, What::Repeated)]), []);
    }

    #[test]
    fn a_write_under_a_card_that_has_passed_on_is_found() {
        let under = |token| What::Fenced { resource: "a".into(), token };
        let grant = |token| What::Grant { resource: "a".into(), token };
        assert_eq!(old_tokens_fail(&[seen(0, 1, 4, grant(4)), seen(2, 3, 6, grant(6)), seen(4, 5, 7, under(4))]).len(), 1);
        assert_eq!(old_tokens_fail(&[seen(0, 1, 4, grant(4)), seen(2, 3, 6, grant(6)), seen(2, 5, 5, under(4))]), []);
        let release = What::Release { resource: "a".into(), token: 4 };
        assert_eq!(old_tokens_fail(&[seen(0, 1, 4, grant(4)), seen(2, 3, 6, release), seen(4, 5, 7, under(4))]).len(), 1);
    }
}
