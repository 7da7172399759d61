//! What watchers of the change events were told, and what has to be true of it.

use std::collections::{BTreeMap, BTreeSet};

/// What one watcher was told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Revision, place in it, kind, id.
    pub changes: Vec<(u64, u64, String, String)>,
    /// After which revision it began.
    pub since: u64,
    /// Up to which revision it was told everything.
    pub through: u64,
    /// What it should never have been told.
    pub wrong: Vec<String>,
}

/// An acknowledged write of which every watcher has to be told: its revision, and what it was.
pub type Write = (u64, String);

/// Findings that are told, of one run.
const FOUND_MAX: usize = 20;

/// **Watches are complete.** Each watcher is told everything once and in order, all are told the same, and every acknowledged
/// write is among it.
pub fn complete(watchers: &[Told], writes: &[Write]) -> Vec<String> {
    let mut found = Vec::new();
    let mut all: BTreeMap<(u64, u64), (&str, &str)> = BTreeMap::new();
    for (number, told) in watchers.iter().enumerate() {
        found.extend(told.wrong.iter().cloned());
        for pair in told.changes.windows(2) {
            let ((revision, place, ..), (next, next_place, ..)) = (&pair[0], &pair[1]);
            if (next, next_place) <= (revision, place) {
                found.push(format!("watcher {number} was told {next}.{next_place} after {revision}.{place}"));
            }
        }
        for (revision, place, kind, id) in &told.changes {
            let known = *all.entry((*revision, *place)).or_insert((kind, id));
            if known != (kind.as_str(), id.as_str()) {
                found.push(format!("two watchers were told different things at {revision}.{place}: {known:?} and {kind} {id}"));
            }
        }
    }
    for (number, told) in watchers.iter().enumerate() {
        let is_due = |revision: u64| revision > told.since && revision <= told.through;
        let own: BTreeSet<(u64, u64)> = told.changes.iter().map(|(revision, place, ..)| (*revision, *place)).collect();
        let missed = all.keys().filter(|at| is_due(at.0) && !own.contains(at));
        found.extend(missed.map(|(revision, place)| format!("watcher {number} was not told {revision}.{place}")));
        let revisions: BTreeSet<u64> = own.iter().map(|(revision, _)| *revision).collect();
        let untold = writes.iter().filter(|(revision, _)| is_due(*revision) && !revisions.contains(revision));
        found.extend(untold.map(|(revision, what)| format!("watcher {number} was told nothing of revision {revision}, {what}")));
    }
    found.truncate(FOUND_MAX);
    found
}

/// **One receipt each.** Up to a revision, the log has a receipt for each decision and for each card that was granted or ended, and no
/// others.
pub fn one_receipt_each(told: &Told, size: u64, revision: u64) -> Option<String> {
    let has_receipt = |kind: &str| match kind.split_once('.') {
        Some(("approval", what)) => matches!(what, "approved" | "rejected"),
        Some(("punchcard", what)) => !matches!(what, "renewed" | "queued" | "wait_ended"),
        _ => false,
    };
    let due = told.changes.iter().filter(|(at, _, kind, _)| *at <= revision && has_receipt(kind)).count() as u64;
    (due != size).then(|| format!("the log of receipts has {size} at revision {revision}, and {due} changes should have one each"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(through: u64, changes: &[(u64, u64)]) -> Told {
        let changes = changes.iter().map(|(revision, place)| (*revision, *place, "fact.stored".into(), "f".into())).collect();
        Told { changes, through, ..Told::default() }
    }

    fn write(revision: u64) -> Write {
        (revision, "a store".into())
    }

    #[test]
    fn what_is_missing_doubled_or_out_of_order_is_found() {
        let whole = told(9, &[(3, 0), (3, 1), (7, 0)]);
        assert_eq!(complete(&[whole.clone(), told(4, &[(3, 0), (3, 1)])], &[write(3), write(7)]), Vec::<String>::new());
        assert_eq!(complete(&[whole.clone(), told(9, &[(3, 0), (7, 0)])], &[]), ["watcher 1 was not told 3.1"]);
        assert_eq!(complete(&[whole.clone(), told(9, &[(3, 0), (3, 1), (3, 1), (7, 0)])], &[]).len(), 1);
        assert_eq!(complete(&[told(9, &[(7, 0), (3, 0)])], &[]).len(), 1);
        assert_eq!(complete(std::slice::from_ref(&whole), &[write(5)]).len(), 1);
        let late = Told { since: 5, ..told(9, &[(7, 0)]) };
        assert_eq!(complete(&[whole, late], &[write(3)]), Vec::<String>::new(), "of what was before it began it is told nothing");
    }

    #[test]
    fn a_receipt_too_many_or_too_few_is_found() {
        let mut decided = told(9, &[(3, 0)]);
        decided.changes.push((5, 0, "approval.approved".into(), "a".into()));
        decided.changes.push((6, 0, "punchcard.renewed".into(), "c".into()));
        assert_eq!(one_receipt_each(&decided, 1, 9), None);
        assert!(one_receipt_each(&decided, 2, 9).is_some() && one_receipt_each(&decided, 0, 9).is_some());
        assert_eq!(one_receipt_each(&decided, 0, 4), None, "it came later");
    }
}
