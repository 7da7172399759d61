//! The operator: forms the cluster, watches who leads, and when told to hands leadership on or changes the members.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_proto::cluster::change_membership_request::Change;
use quorate_proto::cluster::change_membership_response::Result as Answer;
use quorate_proto::cluster::cluster_client::ClusterClient;
use quorate_proto::cluster::{
    ChangeMembershipRequest, InitRequest, Member, Promotion, Removal, StatusRequest, StatusResponse, TransferLeaderRequest,
};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use super::journal::Journal;
use super::net;

const LOOK: Duration = Duration::from_millis(100);
const ANSWER_MAX: Duration = Duration::from_millis(300);
/// A promotion waits some seconds by itself.
const CHANGE_MAX: Duration = Duration::from_secs(8);
/// A change is not planned for fewer voters.
const VOTERS_MIN: usize = 3;

/// What the operator knows, and what it is to do. Clones are the same operator.
#[derive(Clone, Default)]
pub struct Desk(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    leader: Option<(u64, u64)>,
    leaders_seen: u64,
    /// By the last status of a leader; true for voters.
    members: BTreeMap<u64, bool>,
    members_ever: BTreeSet<u64>,
    /// Whose removal was acknowledged, and the index at which a leader was first seen to know of it.
    removed: BTreeMap<u64, Option<u64>>,
    transfers: VecDeque<u64>,
    transferred: u64,
    changes: u64,
    changed: u64,
    purged: u64,
}

impl Desk {
    /// The leader that was last seen.
    pub fn leader(&self) -> Option<u64> {
        self.lock().leader.map(|(_, node)| node)
    }

    pub fn leaders_seen(&self) -> u64 {
        self.lock().leaders_seen
    }

    pub fn transferred(&self) -> u64 {
        self.lock().transferred
    }

    /// Asks for a change of the members, whichever is possible then.
    pub fn change_members(&self) {
        self.lock().changes += 1;
    }

    pub fn members_changed(&self) -> u64 {
        self.lock().changed
    }

    /// Nodes that were removed and seen to be gone.
    pub fn gone(&self) -> u64 {
        self.lock().removed.values().flatten().count() as u64
    }

    pub fn is_member(&self, node: u64) -> bool {
        self.lock().members.contains_key(&node)
    }

    /// The furthest that any log was purged.
    pub fn purged(&self) -> u64 {
        self.lock().purged
    }

    pub fn transfer_to(&self, node: u64) {
        self.lock().transfers.push_back(node);
    }

    /// Hands leadership to some other voter.
    pub fn transfer_to_another(&self) {
        let mut inner = self.lock();
        let leader = inner.leader.map(|(_, node)| node);
        let other = inner.members.iter().find(|(node, voter)| **voter && Some(**node) != leader).map(|(node, _)| *node);
        inner.transfers.extend(other);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works for ever. The first `founders` of the `nodes` form the cluster; the others wait to be added.
    pub async fn run(self, founders: u64, nodes: u64, mut random: StdRng, journal: Journal) -> turmoil::Result {
        let connect = net::connect();
        let mut clients = Vec::new();
        for node in 1..=nodes {
            let endpoint = Endpoint::from_shared(format!("http://{}", net::address(node)))?.connect_timeout(ANSWER_MAX);
            let endpoint = endpoint.http2_keep_alive_interval(2 * LOOK).keep_alive_timeout(2 * LOOK).keep_alive_while_idle(true);
            clients.push((node, ClusterClient::new(connect(endpoint))));
        }
        let members: Vec<Member> = (1..=founders).map(member).collect();
        while !self.init(&mut clients[0].1, members.clone(), &journal).await {
            sleep(LOOK).await;
        }
        let mut change = None;
        loop {
            for (_, client) in &mut clients {
                if let Some(status) = status(client).await {
                    self.note(&status, &journal);
                }
            }
            let (leader, to) = {
                let mut inner = self.lock();
                (inner.leader, inner.transfers.pop_front())
            };
            if let (Some((_, leader)), Some(to)) = (leader, to)
                && let Some((_, client)) = clients.iter_mut().find(|(node, _)| *node == leader)
            {
                let answer = timeout(Duration::from_secs(3), client.transfer_leader(TransferLeaderRequest { to })).await;
                let told = match answer {
                    Ok(Ok(response)) if response.get_ref().error.is_empty() => {
                        self.lock().transferred += 1;
                        "done".to_owned()
                    }
                    Ok(Ok(response)) => response.into_inner().error,
                    Ok(Err(status)) => status.message().to_owned(),
                    Err(_) => "no answer".to_owned(),
                };
                journal.say("operator", format!("transfer from n{leader} to n{to}: {told}"));
            }
            if change.as_ref().is_none_or(tokio::task::JoinHandle::is_finished)
                && let Some((leader, planned)) = self.plan(nodes, &mut random)
                && let Some((_, client)) = clients.iter().find(|(node, _)| *node == leader)
            {
                change = Some(tokio::spawn(self.clone().change(client.clone(), planned, journal.clone())));
            }
            sleep(LOOK).await;
        }
    }

    /// The next change to ask the leader for, if one is wanted and possible.
    fn plan(&self, nodes: u64, random: &mut StdRng) -> Option<(u64, Change)> {
        let mut inner = self.lock();
        let (_, leader) = inner.leader.filter(|_| inner.changes > 0)?;
        let voters: Vec<u64> = inner.members.iter().filter(|(_, voter)| **voter).map(|(id, _)| *id).collect();
        let learner = inner.members.iter().find(|(_, voter)| !**voter).map(|(id, _)| *id);
        let spare = (1..=nodes).find(|id| !inner.members_ever.contains(id));
        let change = match (learner, spare) {
            (Some(id), _) => {
                let others: Vec<u64> = voters.iter().copied().filter(|voter| *voter != leader).collect();
                let instead_of = others.choose(random).copied().filter(|_| voters.len() > VOTERS_MIN || random.random_bool(0.5));
                Change::Promote(Promotion { id, instead_of })
            }
            (None, Some(id)) if voters.len() == VOTERS_MIN || random.random_bool(0.5) => Change::AddLearner(member(id)),
            _ if voters.len() > VOTERS_MIN => Change::Remove(Removal { id: *voters.choose(random)?, force: false }),
            _ => return None,
        };
        inner.changes -= 1;
        Some((leader, change))
    }

    async fn change(self, mut client: ClusterClient<Channel>, change: Change, journal: Journal) {
        let mut request = tonic::Request::new(ChangeMembershipRequest { change: Some(change.clone()), dry_run: false });
        request.set_timeout(CHANGE_MAX);
        let answer = timeout(CHANGE_MAX, client.change_membership(request)).await;
        let told = match answer {
            Ok(Ok(response)) => match response.into_inner().result {
                Some(Answer::Done(_)) => {
                    let mut inner = self.lock();
                    inner.changed += 1;
                    if let Change::Remove(removal) = &change {
                        inner.removed.entry(removal.id).or_default();
                    }
                    "done".to_owned()
                }
                Some(Answer::Refused(refused)) => refused.detail,
                Some(Answer::NotLeader(_)) | None => "it does not lead".to_owned(),
                Some(Answer::Unavailable(unavailable)) => unavailable.detail,
            },
            Ok(Err(status)) => status.message().to_owned(),
            Err(_) => "no answer".to_owned(),
        };
        let asked = match change {
            Change::AddLearner(member) => format!("add n{}", member.id),
            Change::Promote(Promotion { id, instead_of }) => format!("promote n{id} instead of {instead_of:?}"),
            Change::Remove(removal) => format!("remove n{}", removal.id),
        };
        journal.say("operator", format!("{asked}: {told}"));
    }

    async fn init(&self, client: &mut ClusterClient<Channel>, members: Vec<Member>, journal: &Journal) -> bool {
        let answer = timeout(ANSWER_MAX, client.init(InitRequest { members })).await;
        let Ok(Ok(response)) = answer else { return false };
        let error = response.into_inner().error;
        journal.say("operator", format!("the cluster is formed {error}"));
        error.is_empty() || error.contains("already")
    }

    fn note(&self, status: &StatusResponse, journal: &Journal) {
        let mut inner = self.lock();
        inner.purged = inner.purged.max(status.purged);
        if status.role == "leader" && inner.leader.is_none_or(|(term, _)| status.term >= term) {
            inner.members = status.members.iter().map(|member| (member.id, member.voter)).collect();
            inner.members_ever.extend(status.members.iter().map(|member| member.id));
            // **Membership never forgets.** No leader that has applied as much counts a node in again that it had counted out.
            let Inner { members, removed, .. } = &mut *inner;
            for (id, gone_at) in removed {
                match (members.contains_key(id), *gone_at) {
                    (false, None) => *gone_at = Some(status.applied),
                    (true, Some(at)) if status.applied >= at => {
                        journal.violation(format!("n{id} was removed, and n{} counts it among the members", status.node_id));
                    }
                    _ => {}
                }
            }
        }
        if status.role == "leader" && inner.leader.is_none_or(|(term, _)| status.term > term) {
            inner.leader = Some((status.term, status.node_id));
            inner.leaders_seen += 1;
            journal.say("operator", format!("n{} leads term {}", status.node_id, status.term));
        }
    }
}

fn member(id: u64) -> Member {
    Member { id, grpc: net::address(id), ..Member::default() }
}

async fn status(client: &mut ClusterClient<Channel>) -> Option<StatusResponse> {
    Some(timeout(ANSWER_MAX, client.status(StatusRequest {})).await.ok()?.ok()?.into_inner())
}
