//! `quorate status`: what every node says of itself, put together.

use std::time::Duration;

use clap::Args;
use quorate_link::{bottom, reason};
use quorate_proto::cluster::cluster_client::ClusterClient;
use quorate_proto::cluster::{StatusRequest, StatusResponse, operator_client};
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
/// A node that does not even answer a ping for so long is taken to be gone.
const SILENT_FOR: Duration = Duration::from_secs(5);

pub type Client = ClusterClient<InterceptedService<Channel, Show>>;

/// What only operators ask.
pub type OperatorClient = operator_client::OperatorClient<InterceptedService<Channel, Show>>;

/// A connection to one node.
pub async fn connect(address: &str, nodes: &Nodes) -> Result<Client, Failure> {
    let (channel, show) = dial(address, nodes).await?;
    Ok(ClusterClient::with_interceptor(channel, show))
}

/// The same, for what only operators ask.
pub async fn connect_operator(address: &str, nodes: &Nodes) -> Result<OperatorClient, Failure> {
    let (channel, show) = dial(address, nodes).await?;
    Ok(operator_client::OperatorClient::with_interceptor(channel, show))
}

async fn dial(address: &str, nodes: &Nodes) -> Result<(Channel, Show), Failure> {
    let show = Show::new(nodes.cluster_secret.as_deref());
    let show = show.map_err(|error| Failure::config(format!("the cluster secret is wrong: {error}")))?;
    // A node that is stopped in the middle of a long answer is found out by its silence below the call.
    let settings = |endpoint: Endpoint| {
        endpoint.connect_timeout(ANSWER_WITHIN).http2_keep_alive_interval(ANSWER_WITHIN).keep_alive_timeout(SILENT_FOR)
    };
    let channel = nodes.link.connect(address, settings).await;
    let channel = channel.map_err(|error| Failure::unavailable(format!("no node answers at {address}: {}", bottom(&error))))?;
    Ok((channel, show))
}

/// One node, as it describes itself; or what is known of it when it does not answer.
#[derive(Clone, Serialize)]
pub struct NodeStatus {
    pub id: u64,
    /// `leader`, `follower`, `learner`, `candidate`, `uninitialized`, `stopped` or `unreachable`; `removed` for a node that
    /// still runs and is no member.
    pub role: String,
    /// Whether its vote counts, also while it is unreachable.
    pub voter: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub grpc: String,
    pub http: String,
    pub applied: u64,
    /// Entries that the leader has and this node has not yet applied; null while there is no leader to compare with.
    pub lag: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ready: Vec<String>,
    /// What is wrong although it serves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
    /// Of its executable; empty while it does not answer.
    pub version: String,
    /// The cluster's, as far as this node has applied, and what this node can apply.
    pub feature_level: u64,
    pub feature_level_max: u64,
    /// When its process began to take part; 0 while it does not answer.
    pub started_unix_ms: u64,
}

impl NodeStatus {
    pub fn is_voter(&self) -> bool {
        self.voter && matches!(self.role.as_str(), "leader" | "follower" | "candidate")
    }
}

/// The cluster as its nodes see it. The leader is the one that says so itself in the highest term.
#[derive(Clone, Serialize)]
pub struct Survey {
    pub leader: Option<u64>,
    pub term: u64,
    pub cluster_id: String,
    pub nodes: Vec<NodeStatus>,
    /// The highest id that ever was a member.
    pub member_id_max: u64,
}

impl Survey {
    pub fn grpc_of(&self, id: u64) -> Option<String> {
        self.nodes.iter().find(|node| node.id == id).map(|node| node.grpc.clone())
    }
}

/// What one node says of itself.
pub async fn ask(address: &str, nodes: &Nodes) -> Result<StatusResponse, Failure> {
    let asked = async {
        let mut client = connect(address, nodes).await?;
        let answer = client.status(StatusRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| match status.code() {
            // It answers, and will go on saying no.
            tonic::Code::Unauthenticated | tonic::Code::PermissionDenied => Failure::config(format!("{address}: {}", reason(&status))),
            _ => Failure::unavailable(format!("{address}: {}", reason(&status))),
        })
    };
    tokio::time::timeout(ANSWER_WITHIN, asked)
        .await
        .unwrap_or_else(|_| Err(Failure::unavailable(format!("{address} did not answer in {} ms", ANSWER_WITHIN.as_millis()))))
}

async fn ask_all(addresses: &[String], nodes: &Nodes) -> Vec<StatusResponse> {
    let asked = addresses.iter().map(|address| {
        let (address, nodes) = (address.clone(), nodes.clone());
        tokio::spawn(async move { ask(&address, &nodes).await })
    });
    let mut answers: Vec<StatusResponse> = Vec::new();
    for task in asked.collect::<Vec<_>>() {
        if let Ok(Ok(answer)) = task.await {
            answers.push(answer);
        }
    }
    answers
}

/// Why no node has told anything: a refusal, if one refuses, or that none answers.
pub async fn silence(nodes: &Nodes) -> Failure {
    let mut reasons = Vec::new();
    for address in &nodes.addresses {
        match ask(address, nodes).await {
            Err(failure) if failure.code != crate::exit::UNAVAILABLE => return failure,
            Err(failure) => reasons.push(failure.message),
            Ok(_) => {}
        }
    }
    let reasons = if reasons.is_empty() { "it answers now; try again".into() } else { reasons.join("; ") };
    Failure::unavailable(format!("none of the nodes at {} answers ({reasons})", nodes.addresses.join(", ")))
}

/// The members of the most advanced node are the ones that count.
fn newest(answers: &[StatusResponse]) -> Option<&StatusResponse> {
    answers.iter().filter(|answer| !answer.members.is_empty()).max_by_key(|answer| (answer.applied, answer.term))
}

/// Asks every node at once, and then the members that those know of besides.
pub async fn survey(nodes: &Nodes) -> Survey {
    let mut answers = ask_all(&nodes.addresses, nodes).await;
    let members = newest(&answers).map(|answer| answer.members.as_slice()).unwrap_or_default();
    let is_new = |address: &String| !nodes.addresses.contains(address);
    let unasked: Vec<String> = members.iter().map(|member| member.grpc.clone()).filter(is_new).collect();
    for answer in ask_all(&unasked, nodes).await {
        // The same node under another spelling of its address.
        if !answers.iter().any(|known| known.incarnation == answer.incarnation) {
            answers.push(answer);
        }
    }
    Survey::of(&answers)
}

impl Survey {
    fn of(answers: &[StatusResponse]) -> Self {
        let newest = newest(answers);
        let members = newest.map(|answer| answer.members.as_slice()).unwrap_or_default();
        // A node that was removed may not know it, and what it says of leaders and terms does not count.
        let of_members = answers.iter().filter(|answer| members.iter().any(|member| member.id == answer.node_id));
        let term = of_members.clone().map(|answer| answer.term).max().unwrap_or(0);
        let leader = of_members.clone().find(|answer| answer.role == "leader" && answer.term == term);
        let last_log = leader.map(|leader| leader.last_log);

        let mut found: Vec<NodeStatus> = Vec::new();
        for member in members {
            let answer = answers.iter().find(|answer| answer.node_id == member.id);
            found.push(NodeStatus {
                id: member.id,
                role: answer.map_or("unreachable".into(), |answer| answer.role.clone()),
                voter: member.voter,
                pid: answer.map(|answer| answer.pid),
                grpc: member.grpc.clone(),
                http: member.http.clone(),
                applied: answer.map_or(0, |answer| answer.applied),
                lag: last_log.and_then(|last| Some(last.saturating_sub(answer?.applied))),
                not_ready: answer.map(|answer| answer.not_ready.clone()).unwrap_or_default(),
                alarms: answer.map(|answer| answer.alarms.clone()).unwrap_or_default(),
                version: answer.map(|answer| answer.version.clone()).unwrap_or_default(),
                feature_level: answer.map_or(0, |answer| answer.feature_level),
                feature_level_max: answer.map_or(0, |answer| answer.feature_level_max),
                started_unix_ms: answer.map_or(0, |answer| answer.started_unix_ms),
            });
        }
        for answer in answers.iter().filter(|answer| !members.iter().any(|member| member.id == answer.node_id)) {
            let took_part = matches!(answer.role.as_str(), "leader" | "follower" | "candidate" | "learner");
            found.push(NodeStatus {
                id: answer.node_id,
                role: if took_part { "removed".into() } else { answer.role.clone() },
                voter: false,
                pid: Some(answer.pid),
                grpc: answer.grpc.clone(),
                http: answer.http.clone(),
                applied: answer.applied,
                lag: None,
                not_ready: answer.not_ready.clone(),
                alarms: answer.alarms.clone(),
                version: answer.version.clone(),
                feature_level: answer.feature_level,
                feature_level_max: answer.feature_level_max,
                started_unix_ms: answer.started_unix_ms,
            });
        }
        found.sort_by_key(|node| node.id);
        Survey {
            leader: leader.map(|leader| leader.node_id),
            term,
            cluster_id: newest.or(answers.first()).map(|answer| answer.cluster_id.clone()).unwrap_or_default(),
            nodes: found,
            member_id_max: answers.iter().map(|answer| answer.member_id_max).max().unwrap_or(0),
        }
    }
}

impl Status {
    pub async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let found = survey(&nodes).await;
        if found.nodes.is_empty() {
            return Err(silence(&nodes).await);
        }
        let leader = found.leader.map_or("no leader".into(), |leader| format!("node {leader} leads"));
        let mut text = format!("{leader} in term {}\n", found.term);
        for node in &found.nodes {
            let lag = node.lag.map_or("-".into(), |lag| lag.to_string());
            text += &format!("  node {:<3} {:<12} {:<22} applied {:<10} lag {lag}", node.id, node.role, node.grpc, node.applied);
            if !node.not_ready.is_empty() {
                text += &format!("  not ready: {}", node.not_ready.join(", "));
            }
            if !node.alarms.is_empty() {
                text += &format!("  alarms: {}", node.alarms.join(", "));
            }
            text.push('\n');
        }
        let json = serde_json::to_value(&found).map_err(|error| Failure::failed(error.to_string()))?;
        output::print(self.target.json, &json, &text);
        match found.leader {
            Some(_) => Ok(()),
            None => Err(Failure::unavailable("")),
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_proto::cluster::Member;

    use super::*;

    fn answer(node_id: u64, role: &str, applied: u64, voters: &[u64], learners: &[u64]) -> StatusResponse {
        let member = |voter| move |id: &u64| Member { id: *id, grpc: format!("g{id}"), voter, ..Member::default() };
        let members = voters.iter().map(member(true)).chain(learners.iter().map(member(false))).collect();
        let (role, incarnation) = (role.into(), format!("i{node_id}"));
        StatusResponse { node_id, role, applied, term: 3, last_log: applied, members, incarnation, ..StatusResponse::default() }
    }

    fn roles(survey: &Survey) -> Vec<String> {
        survey.nodes.iter().map(|node| format!("{} {} {}", node.id, node.role, if node.voter { "votes" } else { "-" })).collect()
    }

    #[test]
    fn a_removed_node_that_has_not_heard_of_it_is_no_voter_and_names_no_leader() {
        let mut removed = answer(3, "leader", 40, &[1, 2, 3], &[]);
        removed.term = 9;
        let survey = Survey::of(&[answer(1, "leader", 50, &[1, 2], &[4]), answer(2, "follower", 49, &[1, 2], &[4]), removed]);
        assert_eq!(roles(&survey), ["1 leader votes", "2 follower votes", "3 removed -", "4 unreachable -"]);
        assert_eq!((survey.leader, survey.term), (Some(1), 3));
    }

    #[test]
    fn fresh_nodes_are_shown_as_they_say_and_a_lost_voter_still_counts() {
        let fresh = |id| answer(id, "uninitialized", 0, &[], &[]);
        assert_eq!(roles(&Survey::of(&[fresh(1), fresh(2)])), ["1 uninitialized -", "2 uninitialized -"]);
        let survey = Survey::of(&[answer(1, "leader", 5, &[1, 2], &[]), fresh(3)]);
        assert_eq!(roles(&survey), ["1 leader votes", "2 unreachable votes", "3 uninitialized -"]);
        assert!(!survey.nodes[1].is_voter(), "nobody can hand leadership to it now");
    }
}
