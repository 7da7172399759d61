//! `quorate status`: what every node says of itself, put together.

use std::time::Duration;

use clap::Args;
use quorate_proto::cluster::cluster_client::ClusterClient;
use quorate_proto::cluster::{StatusRequest, StatusResponse};
use quorate_proto::secret::Show;
use serde::Serialize;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::deployment::{Nodes, Target};
use crate::exit::Failure;
use crate::output;

/// Show the leader, the term, and how far each node has applied.
#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    pub target: Target,
}

/// A node that has not answered by then is shown as unreachable.
const ANSWER_WITHIN: Duration = Duration::from_millis(1_500);

pub type Client = ClusterClient<InterceptedService<Channel, Show>>;

/// A connection to one node.
pub async fn connect(address: &str, cluster_secret: Option<&str>) -> Result<Client, Failure> {
    let show = Show::new(cluster_secret).map_err(|error| Failure::config(format!("the cluster secret is wrong: {error}")))?;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| Failure::usage(format!("`{address}` is no address: {error}")))?
        .connect_timeout(ANSWER_WITHIN)
        .tcp_nodelay(true);
    let channel =
        endpoint.connect().await.map_err(|error| Failure::unavailable(format!("no node answers at {address}: {}", cause(&error))))?;
    Ok(ClusterClient::with_interceptor(channel, show))
}

/// What is at the bottom of an error: a transport error says only there what went wrong.
fn cause(error: &dyn std::error::Error) -> String {
    let mut bottom = error;
    while let Some(source) = bottom.source() {
        bottom = source;
    }
    bottom.to_string()
}

/// One node, as it describes itself; or what is known of it when it does not answer.
#[derive(Clone, Serialize)]
pub struct NodeStatus {
    pub id: u64,
    /// `leader`, `follower`, `learner`, `candidate`, `uninitialized`, `stopped` or `unreachable`.
    pub role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub grpc: String,
    pub http: String,
    pub applied: u64,
    /// Entries that the leader has and this node has not yet applied; null while there is no leader to compare with.
    pub lag: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ready: Vec<String>,
}

impl NodeStatus {
    pub fn is_voter(&self) -> bool {
        matches!(self.role.as_str(), "leader" | "follower" | "candidate")
    }
}

/// The cluster as its nodes see it. The leader is the one that says so itself in the highest term.
#[derive(Clone, Serialize)]
pub struct Survey {
    pub leader: Option<u64>,
    pub term: u64,
    pub cluster_id: String,
    pub nodes: Vec<NodeStatus>,
}

impl Survey {
    pub fn grpc_of(&self, id: u64) -> Option<String> {
        self.nodes.iter().find(|node| node.id == id).map(|node| node.grpc.clone())
    }
}

async fn ask(address: &str, secret: Option<&str>) -> Result<StatusResponse, Failure> {
    let asked = async {
        let mut client = connect(address, secret).await?;
        let answer = client.status(StatusRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Failure::unavailable(format!("{address}: {}", status.message())))
    };
    tokio::time::timeout(ANSWER_WITHIN, asked)
        .await
        .unwrap_or_else(|_| Err(Failure::unavailable(format!("{address} did not answer in {} ms", ANSWER_WITHIN.as_millis()))))
}

/// Asks every node at once.
pub async fn survey(nodes: &Nodes) -> Survey {
    let asked = nodes.addresses.iter().map(|address| {
        let (address, secret) = (address.clone(), nodes.cluster_secret.clone());
        tokio::spawn(async move { ask(&address, secret.as_deref()).await })
    });
    let mut answers: Vec<StatusResponse> = Vec::new();
    for task in asked.collect::<Vec<_>>() {
        if let Ok(Ok(answer)) = task.await {
            answers.push(answer);
        }
    }
    let term = answers.iter().map(|answer| answer.term).max().unwrap_or(0);
    let leader = answers.iter().find(|answer| answer.role == "leader" && answer.term == term);
    let last_log = leader.map(|leader| leader.last_log);
    let cluster_id = answers.first().map(|answer| answer.cluster_id.clone()).unwrap_or_default();

    let mut found: Vec<NodeStatus> = Vec::new();
    // The members of the most advanced node are the ones that count; nodes outside of it are shown as they say.
    let newest = answers.iter().max_by_key(|answer| (answer.term, answer.applied));
    for member in newest.map(|answer| answer.members.as_slice()).unwrap_or_default() {
        let answer = answers.iter().find(|answer| answer.node_id == member.id);
        found.push(NodeStatus {
            id: member.id,
            role: answer.map_or("unreachable".into(), |answer| answer.role.clone()),
            pid: answer.map(|answer| answer.pid),
            grpc: member.grpc.clone(),
            http: member.http.clone(),
            applied: answer.map_or(0, |answer| answer.applied),
            lag: last_log.and_then(|last| Some(last.saturating_sub(answer?.applied))),
            not_ready: answer.map(|answer| answer.not_ready.clone()).unwrap_or_default(),
        });
    }
    for answer in answers.iter().filter(|answer| !found.iter().any(|node| node.id == answer.node_id)).collect::<Vec<_>>() {
        found.push(NodeStatus {
            id: answer.node_id,
            role: answer.role.clone(),
            pid: Some(answer.pid),
            grpc: String::new(),
            http: String::new(),
            applied: answer.applied,
            lag: None,
            not_ready: answer.not_ready.clone(),
        });
    }
    found.sort_by_key(|node| node.id);
    Survey { leader: leader.map(|leader| leader.node_id), term, cluster_id, nodes: found }
}

impl Status {
    pub async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let found = survey(&nodes).await;
        if found.nodes.is_empty() {
            return Err(Failure::unavailable(format!("none of the nodes at {} answers", nodes.addresses.join(", "))));
        }
        let leader = found.leader.map_or("no leader".into(), |leader| format!("node {leader} leads"));
        let mut text = format!("{leader} in term {}\n", found.term);
        for node in &found.nodes {
            let lag = node.lag.map_or("-".into(), |lag| lag.to_string());
            text += &format!("  node {:<3} {:<12} {:<22} applied {:<10} lag {lag}", node.id, node.role, node.grpc, node.applied);
            if !node.not_ready.is_empty() {
                text += &format!("  not ready: {}", node.not_ready.join(", "));
            }
            text.push('\n');
        }
        let json = serde_json::to_value(&found).map_err(|error| Failure::failed(error.to_string()))?;
        output::print(self.target.json, &json, &text);
        Ok(())
    }
}
