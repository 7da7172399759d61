//! The operator: forms the cluster, watches who leads, and hands leadership on when told to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_proto::cluster::cluster_client::ClusterClient;
use quorate_proto::cluster::{InitRequest, Member, StatusRequest, StatusResponse, TransferLeaderRequest};
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use super::journal::Journal;
use super::net;

const LOOK: Duration = Duration::from_millis(100);
const ANSWER_MAX: Duration = Duration::from_millis(300);

/// What the operator knows, and what it is to do. Clones are the same operator.
#[derive(Clone, Default)]
pub struct Desk(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    leader: Option<(u64, u64)>,
    leaders_seen: u64,
    transfers: VecDeque<u64>,
    transferred: u64,
    snapshots_purged: u64,
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

    /// The furthest that any log was purged.
    pub fn purged(&self) -> u64 {
        self.lock().snapshots_purged
    }

    pub fn transfer_to(&self, node: u64) {
        self.lock().transfers.push_back(node);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works for ever.
    pub async fn run(self, nodes: u64, journal: Journal) -> turmoil::Result {
        let connect = net::connect();
        let mut clients = Vec::new();
        for node in 1..=nodes {
            let endpoint = Endpoint::from_shared(format!("http://{}", net::address(node)))?.connect_timeout(ANSWER_MAX);
            let endpoint = endpoint.http2_keep_alive_interval(2 * LOOK).keep_alive_timeout(2 * LOOK).keep_alive_while_idle(true);
            clients.push((node, ClusterClient::new(connect(endpoint))));
        }
        let members: Vec<Member> = (1..=nodes).map(|id| Member { id, grpc: net::address(id), ..Member::default() }).collect();
        while !self.init(&mut clients[0].1, members.clone(), &journal).await {
            sleep(LOOK).await;
        }
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
            sleep(LOOK).await;
        }
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
        inner.snapshots_purged = inner.snapshots_purged.max(status.purged);
        if status.role == "leader" && inner.leader.is_none_or(|(term, _)| status.term > term) {
            inner.leader = Some((status.term, status.node_id));
            inner.leaders_seen += 1;
            journal.say("operator", format!("n{} leads term {}", status.node_id, status.term));
        }
    }
}

async fn status(client: &mut ClusterClient<Channel>) -> Option<StatusResponse> {
    Some(timeout(ANSWER_MAX, client.status(StatusRequest {})).await.ok()?.ok()?.into_inner())
}
