//! Compares the states of all members all the time, a small part after the other.
//!
//! The leader names a place and a revision a little ahead; every member digests the same few rows as they are right after that
//! entry, and answers. What a majority of the voters holds is right. A member that answers otherwise is asked about the same
//! place again, at a later revision; if it differs again it is told, and goes into quarantine ([`crate::quarantine`]). One that
//! can't read its rows goes there by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use quorate_domain::codec;
use quorate_storage::state::Place;
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::blocking::blocking;
use crate::machine::Applied;
use crate::network::{Lane, Links};
use crate::quarantine::{Damaged, Quarantine, Reason};
use crate::types::{Address, Raft};

/// One part: what is read of it in a few ms, so that nobody notices.
const PART_ROWS: u64 = 2_000;
const PART_BYTES: u64 = 1 << 20;
/// How long a member waits for the entry, and the leader for a member.
const PINNED_WITHIN: Duration = Duration::from_secs(3);
const ANSWER_WITHIN: Duration = Duration::from_secs(6);
/// Entries that the revision lies ahead, at least and at most.
const AHEAD_MIN: u64 = 2;
const AHEAD_MAX: u64 = 1 << 20;

/// Which rows, after which entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartForm {
    pub revision: u64,
    pub table: u64,
    pub key: Vec<u8>,
}

/// What a member found there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PartReplyForm {
    /// Where the next part begins; nothing at the end of the state.
    Digest { blake3: String, rows: u64, next: Option<(u64, Vec<u8>)> },
    /// The entry was applied before the member could hold its state, or did not come.
    Passed,
    /// It can't read them.
    Unreadable(String),
}

/// A member is told that it differs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerdictForm {
    pub text: String,
}

/// What this node finds in a part.
pub async fn digest(applied: &Applied, part: PartForm) -> PartReplyForm {
    let Ok(Ok(view)) = timeout(PINNED_WITHIN, applied.pin_at(part.revision)).await else { return PartReplyForm::Passed };
    let from = Place { table: part.table as usize, key: part.key };
    match blocking(move || view.digest_part(&from, PART_ROWS, PART_BYTES)).await {
        Ok(Ok(found)) => {
            PartReplyForm::Digest { blake3: found.blake3, rows: found.rows, next: found.next.map(|next| (next.table as u64, next.key)) }
        }
        Ok(Err(error)) => PartReplyForm::Unreadable(crate::log::fault(error).to_string()),
        Err(error) => PartReplyForm::Unreadable(error.to_string()),
    }
}

/// The task.
pub struct Comparer {
    pub raft: Raft,
    pub applied: Arc<Applied>,
    pub links: Arc<Links>,
    pub quarantine: Arc<Quarantine>,
    pub node_id: u64,
    pub every: Duration,
}

impl Comparer {
    /// Runs until the node stops.
    pub async fn run(self) {
        let mut rounds = interval(self.every);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut place, mut ahead, mut suspects) = ((0, Vec::new()), AHEAD_MIN, Vec::new());
        loop {
            rounds.tick().await;
            if !self.raft.is_leader() {
                suspects.clear();
                continue;
            }
            let found = self.ask(&place, ahead).await;
            if found.values().any(|reply| *reply == PartReplyForm::Passed) {
                ahead = (ahead * 4).min(AHEAD_MAX);
                continue;
            }
            ahead = (ahead / 2).max(AHEAD_MIN);
            let Some(verdict) = judge(&found, &self.voters()) else {
                if !found.values().all(|reply| Some(reply) == found.values().next()) {
                    tracing::error!(?found, "the members hold different states, and no majority of the voters agrees");
                }
                // Too few have answered; the next round goes on here.
                continue;
            };
            self.applied.meter.parts_compared.fetch_add(1, Ordering::Relaxed);
            if verdict.differing != suspects && !verdict.differing.is_empty() {
                // Once more, at another revision.
                suspects = verdict.differing;
                continue;
            }
            suspects.clear();
            for id in verdict.differing {
                self.tell(id, &place).await;
            }
            place = verdict.next.unwrap_or_else(|| {
                self.applied.meter.states_compared.fetch_add(1, Ordering::Relaxed);
                (0, Vec::new())
            });
        }
    }

    fn voters(&self) -> Vec<u64> {
        self.raft.metrics().borrow_watched().membership_config.voter_ids().collect()
    }

    fn members(&self) -> BTreeMap<u64, Address> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().nodes().map(|(id, address)| (*id, address.clone())).collect()
    }

    async fn ask(&self, place: &(u64, Vec<u8>), ahead: u64) -> BTreeMap<u64, PartReplyForm> {
        let part = PartForm { revision: self.applied.index() + ahead, table: place.0, key: place.1.clone() };
        let asked = self.members().into_iter().map(|(id, address)| {
            let part = part.clone();
            async move {
                let reply = match id == self.node_id {
                    true => Some(digest(&self.applied, part).await),
                    false => self.ask_one(id, &address, &part).await,
                };
                Some((id, reply?))
            }
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    async fn ask_one(&self, id: u64, address: &Address, part: &PartForm) -> Option<PartReplyForm> {
        let mut client = self.links.client(id, address, Lane::Snapshot).ok()?;
        let request = self.links.request(id, codec::encode(part).into());
        // A member that is down, or of a version that does not know the question, is not compared.
        let response = timeout(ANSWER_WITHIN, client.compare_state(request)).await.ok()?.ok()?;
        self.links.answer(id, response.get_ref()).ok()
    }

    async fn tell(&self, id: u64, place: &(u64, Vec<u8>)) {
        let text = format!("the state of node {id} differs from that of a majority (table {}, near key {})", place.0, hex(&place.1));
        tracing::error!(node = id, "{text}");
        if id == self.node_id {
            return self.quarantine.enter(Reason { damaged: Damaged::State, text });
        }
        let Some(address) = self.members().remove(&id) else { return };
        let Ok(mut client) = self.links.client(id, &address, Lane::Snapshot) else { return };
        let request = self.links.request(id, codec::encode(&VerdictForm { text }).into());
        // Not delivered, it is found again in the next sweep.
        if !matches!(timeout(ANSWER_WITHIN, client.quarantine(request)).await, Ok(Ok(_))) {
            tracing::warn!(node = id, "the node that differs could not be told");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(32).map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    differing: Vec<u64>,
    next: Option<(u64, Vec<u8>)>,
}

/// What a majority of the voters holds, and who holds something else. Members that can't read theirs see to it themselves.
fn judge(found: &BTreeMap<u64, PartReplyForm>, voters: &[u64]) -> Option<Verdict> {
    let mut counts: BTreeMap<&PartReplyForm, usize> = BTreeMap::new();
    for voter in voters {
        if let Some(reply @ PartReplyForm::Digest { .. }) = found.get(voter) {
            *counts.entry(reply).or_default() += 1;
        }
    }
    let (right, _) = counts.into_iter().find(|(_, count)| *count > voters.len() / 2)?;
    let PartReplyForm::Digest { next, .. } = right else { return None };
    let differs = |reply: &PartReplyForm| matches!(reply, PartReplyForm::Digest { .. }) && reply != right;
    let differing = found.iter().filter(|(_, reply)| differs(reply)).map(|(id, _)| *id).collect();
    Some(Verdict { differing, next: next.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(blake3: &str) -> PartReplyForm {
        PartReplyForm::Digest { blake3: blake3.into(), rows: 1, next: Some((1, vec![7])) }
    }

    #[test]
    fn a_majority_of_all_voters_is_right_and_learners_only_listen() {
        let next = Some((1, vec![7]));
        let judged = |found: &[(u64, PartReplyForm)], voters: &[u64]| judge(&found.iter().cloned().collect(), voters);
        let three = [(1, digest("a")), (2, digest("a")), (3, digest("b"))];
        assert_eq!(judged(&three, &[1, 2, 3]), Some(Verdict { differing: vec![3], next: next.clone() }));
        assert_eq!(judged(&three[1..], &[1, 2, 3]), None, "one of three, and one silent, say nothing");
        let two = [(1, digest("a")), (2, digest("a"))];
        assert_eq!(judged(&two, &[1, 2, 3]), Some(Verdict { differing: vec![], next: next.clone() }));
        let learner = [(1, digest("a")), (2, digest("b")), (3, digest("b"))];
        assert_eq!(judged(&learner, &[1]), Some(Verdict { differing: vec![2, 3], next: next.clone() }));
        let unreadable = [(1, digest("a")), (2, digest("a")), (3, PartReplyForm::Unreadable("disk".into()))];
        assert_eq!(judged(&unreadable, &[1, 2, 3]), Some(Verdict { differing: vec![], next }));
    }
}
