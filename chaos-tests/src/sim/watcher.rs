//! Watchers: each follows the change events of the team from the first on, as a gateway does for whoever asks it, and notes them.

use std::sync::{Arc, Mutex, PoisonError};

use quorate_domain::{Principal, Revision};
use quorate_gateway::cluster::Cluster;
use quorate_gateway::events::{Follower, Next, Position};

use crate::told::Told;

/// What one watcher was told. Clones are the same.
#[derive(Clone, Default)]
pub struct Watched(Arc<Mutex<Told>>);

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

    pub fn told(&self) -> Told {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
