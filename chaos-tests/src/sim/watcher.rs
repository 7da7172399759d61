//! Watchers: each follows the change events of the team from the first on, as a gateway does for whoever asks it, and notes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use quorate_domain::{Principal, Revision};
use quorate_gateway::cluster::Cluster;
use quorate_gateway::events::{Follower, Next, Position};

use super::workload::{Seen, What};

/// What one watcher was told. Clones are the same.
#[derive(Clone, Default)]
pub struct Watched(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    /// Revision, place in it, kind, id.
    changes: Vec<(u64, u64, String, String)>,
    through: u64,
    wrong: Vec<String>,
}

impl Watched {
    /// Follows for ever.
    pub async fn follow(self, cluster: Cluster, caller: Principal) {
        let mut follower = Follower::new(cluster, Arc::new(caller), Position::through(Revision(0)));
        loop {
            let next = follower.next().await;
            let mut told = self.lock();
            match next {
                Next::Changes(changes) => {
                    told.changes.extend(
                        changes
                            .into_iter()
                            .map(|change| (change.at.revision.0, change.at.event.unwrap_or_default(), change.kind, change.id)),
                    );
                }
                Next::Nothing(_) => {}
                Next::Compacted(through) => told.wrong.push(format!("the events up to {through} are gone, and so few are never dropped")),
            }
            told.through = follower.through().0;
        }
    }

    /// Up to which revision it was told everything.
    pub fn through(&self) -> u64 {
        self.lock().through
    }

    pub fn changes(&self) -> u64 {
        self.lock().changes.len() as u64
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// **Watches are complete.** Each watcher is told everything once and in order, all are told the same, and every acknowledged
/// write is among it.
pub fn check(watchers: &[Watched], seen: &[Seen]) -> Vec<String> {
    let mut found = Vec::new();
    let mut all: BTreeMap<(u64, u64), (String, String)> = BTreeMap::new();
    for (number, watched) in watchers.iter().enumerate() {
        let told = watched.lock();
        found.extend(told.wrong.iter().cloned());
        for pair in told.changes.windows(2) {
            let ((revision, place, ..), (next, next_place, ..)) = (&pair[0], &pair[1]);
            if (next, next_place) <= (revision, place) {
                found.push(format!("watcher {number} was told {next}.{next_place} after {revision}.{place}"));
            }
        }
        for (revision, place, kind, id) in &told.changes {
            let known = all.entry((*revision, *place)).or_insert_with(|| (kind.clone(), id.clone()));
            if (&known.0, &known.1) != (kind, id) {
                found.push(format!("two watchers were told different things at {revision}.{place}: {known:?} and {kind} {id}"));
            }
        }
    }
    for (number, watched) in watchers.iter().enumerate() {
        let told = watched.lock();
        let own: std::collections::BTreeSet<(u64, u64)> = told.changes.iter().map(|(revision, place, ..)| (*revision, *place)).collect();
        let missed = all.keys().filter(|at| at.0 <= told.through && !own.contains(at));
        found.extend(missed.map(|(revision, place)| format!("watcher {number} was not told {revision}.{place}")));
        let revisions: std::collections::BTreeSet<u64> = own.iter().map(|(revision, _)| *revision).collect();
        for write in seen.iter().filter(|seen| !matches!(seen.what, What::Read | What::Renewal)) {
            if write.revision <= told.through && !revisions.contains(&write.revision) {
                found.push(format!("watcher {number} was told nothing of {write:?}"));
            }
        }
    }
    found.truncate(20);
    found
}

/// **One receipt each.** Up to a revision, the log has a receipt for each decision and for each card that was granted or ended, and no
/// others.
pub fn check_receipts(watched: &Watched, size: u64, revision: u64) -> Option<String> {
    let told = watched.lock();
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
    use std::time::Duration;

    use super::*;

    fn watched(through: u64, changes: &[(u64, u64)]) -> Watched {
        let changes = changes.iter().map(|(revision, place)| (*revision, *place, "fact.stored".into(), "f".into())).collect();
        Watched(Arc::new(Mutex::new(Told { changes, through, wrong: Vec::new() })))
    }

    fn write(revision: u64) -> Seen {
        Seen { sent: Duration::ZERO, answered: Duration::ZERO, revision, what: What::Write }
    }

    #[test]
    fn what_is_missing_doubled_or_out_of_order_is_found() {
        let whole = watched(9, &[(3, 0), (3, 1), (7, 0)]);
        assert_eq!(check(&[whole.clone(), watched(4, &[(3, 0), (3, 1)])], &[write(3), write(7)]), Vec::<String>::new());
        assert_eq!(check(&[whole.clone(), watched(9, &[(3, 0), (7, 0)])], &[]), ["watcher 1 was not told 3.1"]);
        assert_eq!(check(&[whole.clone(), watched(9, &[(3, 0), (3, 1), (3, 1), (7, 0)])], &[]).len(), 1);
        assert_eq!(check(&[watched(9, &[(7, 0), (3, 0)])], &[]).len(), 1);
        assert_eq!(check(&[whole], &[write(5)]).len(), 1);
    }
}
