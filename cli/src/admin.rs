//! Commands that an operator's verb proposes as the system itself, through the same client as the gateways'.

use std::time::{Duration, Instant};

use quorate_domain::{CommandKind, Principal, QueryKind, Refusal, identity};
use quorate_gateway::call::CallError;
use quorate_gateway::cluster::{Cluster, Consistency};

use crate::deployment::Nodes;
use crate::exit::Failure;

/// An operator's command is decided by then, or reported as not.
const DEADLINE: Duration = Duration::from_secs(20);

/// Why a command has no reply.
pub enum Declined {
    /// A rule said no.
    Refused(Refusal),
    /// Nobody decided it in time, or nobody could be reached.
    Undecided(String),
}

impl From<Declined> for Failure {
    fn from(declined: Declined) -> Self {
        match declined {
            Declined::Refused(refusal) => Failure::failed(format!("{refusal}. {}", refusal.next_step())),
            Declined::Undecided(why) => Failure::unavailable(why),
        }
    }
}

/// Has the cluster decide a command, under one request id.
pub async fn try_propose<C: CommandKind>(nodes: &Nodes, command: C) -> Result<C::Output, Declined> {
    let cluster = Cluster::connect(&nodes.addresses, nodes.cluster_secret.as_deref(), &nodes.link)
        .map_err(|error| Declined::Undecided(error.to_string()))?;
    match cluster.propose_for(&identity::system(), command, Instant::now() + DEADLINE).await {
        Ok((output, _)) => Ok(output),
        Err(CallError::Refused(refusal)) => Err(Declined::Refused(refusal)),
        Err(error) => Err(Declined::Undecided(undecided(&error, &cluster.view().problems))),
    }
}

/// Why nobody decided, for a person at a shell: no word of keys that only programs send.
fn undecided(error: &CallError, problems: &[String]) -> String {
    if let Some(problem) = problems.iter().find(|problem| problem.ends_with("cluster_secret")) {
        return format!("the nodes refuse this cluster secret ({problem}). Nothing was written. Give the cluster's with --cluster-secret");
    }
    match error {
        CallError::Unknown { .. } => {
            format!("{error}. It may have been done all the same: look with `quorate status` whether there is a leader, then run it again.")
        }
        error => error.text(),
    }
}

/// Reads as the system.
pub async fn read<Q: QueryKind>(nodes: &Nodes, query: Q) -> Result<Q::Output, Failure> {
    read_as(&cluster(nodes)?, &identity::system(), query).await
}

/// A client of the cluster, for verbs that ask it many times.
pub fn cluster(nodes: &Nodes) -> Result<Cluster, Failure> {
    let connected = Cluster::connect(&nodes.addresses, nodes.cluster_secret.as_deref(), &nodes.link);
    connected.map_err(|error| Failure::unavailable(error.to_string()))
}

/// Reads as somebody.
pub async fn read_as<Q: QueryKind>(cluster: &Cluster, caller: &Principal, query: Q) -> Result<Q::Output, Failure> {
    match cluster.read_as(caller, query, Consistency::Linearizable, Instant::now() + DEADLINE).await {
        Ok((output, _)) => Ok(output),
        Err(CallError::Refused(refusal)) => Err(Declined::Refused(refusal).into()),
        Err(error) => Err(Failure::unavailable(error.text())),
    }
}

/// The same as [`try_propose`], with a refusal as the verb's failure.
pub async fn propose<C: CommandKind>(nodes: &Nodes, command: C) -> Result<C::Output, Failure> {
    Ok(try_propose(nodes, command).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_told_what_a_person_can_do() {
        let unknown = CallError::Unknown { detail: "no quorum".into(), retry_after_ms: 1_000 };
        let text = undecided(&unknown, &[]);
        assert!(text.contains("quorate status") && !text.contains("idempotency_key"), "{text}");
        let text = undecided(&unknown, &["127.0.0.1:1: cluster_secret".into()]);
        assert!(text.contains("--cluster-secret"), "{text}");
    }
}
