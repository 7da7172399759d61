//! Who leads, as the nodes themselves say: asked several times a second, past the relays.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use super::Stage;
use crate::history::Moment;

const ASK_EVERY: Duration = Duration::from_millis(150);
const ANSWER_WITHIN: Duration = Duration::from_millis(400);

/// What was seen at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sight {
    pub at: Moment,
    /// Term and id of the leader: the one that says so itself in the highest term.
    pub leader: Option<(u64, u64)>,
    /// Nodes that answered that they are ready.
    pub ready: usize,
}

/// Everything that was seen.
#[derive(Default)]
pub struct Sights(Mutex<Vec<Sight>>);

impl Sights {
    pub fn all(&self) -> Vec<Sight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn last(&self) -> Sight {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last().cloned().unwrap_or_default()
    }

    /// Term and id of a leader, seen after `since`, that follows the one who led in `term`.
    pub fn leader_after(&self, since: Moment, (term, old): (u64, u64)) -> Option<(u64, u64)> {
        let sights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sights.iter().filter(|sight| sight.at >= since).filter_map(|sight| sight.leader).find(|(of, id)| *of > term && *id != old)
    }

    fn add(&self, sight: Sight) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sight);
    }
}

/// At somebody else's cluster, by the operator's verb.
async fn look_from_outside(stage: &Stage) {
    let Some(verbs) = &stage.verbs else { return };
    loop {
        if let Ok(told) = verbs.run(&["status".into()]).await {
            let leader = told["leader"].as_u64().map(|id| (told["term"].as_u64().unwrap_or(0), id));
            let nodes = told["nodes"].as_array().into_iter().flatten();
            let is_ready = |node: &&Value| node["role"] != "unreachable" && node["not_ready"].as_array().is_none_or(Vec::is_empty);
            stage.sights.add(Sight { at: stage.recorder.now(), leader, ready: nodes.filter(is_ready).count() });
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Looks until it is aborted.
pub async fn look(stage: Arc<Stage>) {
    let Some(cluster) = &stage.cluster else { return look_from_outside(&stage).await };
    // One connection each time: a node that was stopped leaves no half-open one behind.
    let Ok(http) = reqwest::Client::builder().timeout(ANSWER_WITHIN).pool_max_idle_per_host(0).no_proxy().build() else { return };
    loop {
        let addresses = stage.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut asked = JoinSet::new();
        for (id, address) in addresses {
            let request = http.get(format!("http://{address}/readyz?verbose")).send();
            asked.spawn(async move { Some((id, request.await.ok()?.json::<Value>().await.ok()?)) });
        }
        let mut sight = Sight::default();
        while let Some(answer) = asked.join_next().await {
            let Ok(Some((id, told))) = answer else { continue };
            sight.ready += usize::from(told["ready"] == true);
            let leads = (told["term"].as_u64().unwrap_or(0), id);
            if told["role"] == "leader" && sight.leader.is_none_or(|known| leads > known) {
                sight.leader = Some(leads);
            }
        }
        sight.at = stage.recorder.now();
        stage.sights.add(sight);
        // While a fault is being made or healed the cluster is busy; the next look will do.
        if let Ok(mut cluster) = cluster.try_lock() {
            for (name, status) in cluster.ended_by_themselves() {
                stage.tell(format!("{name} ended by itself: {status}"));
            }
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
