//! `quorate transfer` and `quorate init`: who leads, and how a cluster begins.

use std::time::{Duration, Instant};

use clap::Args;
use quorate_proto::cluster::{InitRequest, Member, TransferLeaderRequest};
use serde_json::json;

use crate::deployment::{Nodes, Target};
use crate::exit::Failure;
use crate::output;
use crate::status::{Client, Survey, connect, silence, survey};

/// Hand leadership to another voter.
#[derive(Args)]
pub struct Transfer {
    /// Id of the node that shall lead
    to: u64,
    #[command(flatten)]
    pub target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// A transfer that has not shown by then is told as failed.
const TRANSFER_DEADLINE: Duration = Duration::from_secs(15);

impl Transfer {
    pub async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let before = survey(&nodes).await;
        if before.nodes.is_empty() {
            return Err(silence(&nodes).await);
        }
        let Some(leader) = before.leader else { return Err(Failure::unavailable("there is no leader now; try again in a few seconds")) };
        if !before.nodes.iter().any(|node| node.id == self.to && node.is_voter()) {
            return Err(Failure::usage(format!("node {} is not a voter; `quorate status` shows who is", self.to)));
        }
        if leader == self.to {
            output::print(
                self.target.json,
                &json!({"ok": true, "leader": leader, "changed": false}),
                &format!("node {leader} leads already"),
            );
            return Ok(());
        }
        if self.dry_run {
            let text = format!("would hand leadership from node {leader} to node {}", self.to);
            output::print(self.target.json, &json!({"ok": true, "dry_run": true, "leader": leader, "to": self.to}), &text);
            return Ok(());
        }
        let term = transfer(&nodes, self.to).await?;
        let text = format!("node {} leads in term {term}", self.to);
        output::print(self.target.json, &json!({"ok": true, "leader": self.to, "term": term, "changed": true}), &text);
        Ok(())
    }
}

/// Has a voter lead; the term in which it does.
async fn transfer(nodes: &Nodes, to: u64) -> Result<u64, Failure> {
    let deadline = Instant::now() + TRANSFER_DEADLINE;
    let mut asked: Option<u64> = None;
    loop {
        let now = survey(nodes).await;
        if now.leader == Some(to) {
            return Ok(now.term);
        }
        // Asked once per term: a second request to the same leader could only undo the first.
        if let Some(leader) = now.leader
            && asked != Some(now.term)
            && let Some(address) = now.grpc_of(leader)
        {
            let mut client = connect(&address, nodes).await?;
            let answer = client.transfer_leader(TransferLeaderRequest { to }).await;
            match answer {
                Ok(answer) if answer.get_ref().error.is_empty() => asked = Some(now.term),
                Ok(answer) => return Err(Failure::failed(answer.into_inner().error)),
                Err(status) if Instant::now() > deadline || status.code() == tonic::Code::PermissionDenied => {
                    return Err(Failure::unavailable(status.message().to_string()));
                }
                Err(_) => {}
            }
        }
        if Instant::now() > deadline {
            return Err(Failure::unavailable(format!("node {to} did not take over within {} s", TRANSFER_DEADLINE.as_secs())));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Has another voter lead than the one that does.
pub async fn hand_over(nodes: &Nodes, found: &Survey) -> Result<(), Failure> {
    let others = found.nodes.iter().filter(|node| node.is_voter() && Some(node.id) != found.leader);
    match others.min_by_key(|node| node.lag) {
        Some(other) => transfer(nodes, other.id).await.map(drop),
        None => Err(Failure::failed("no other voter can lead now")),
    }
}

/// Form a new cluster out of fresh nodes, once. `quorate dev` does this by itself.
#[derive(Args)]
pub struct Init {
    /// A voter as ID=GRPC,HTTP such as 1=127.0.0.1:7401,127.0.0.1:7501; one for each node
    #[arg(long = "voter", required = true, value_parser = parse_member)]
    voters: Vec<Member>,
    #[command(flatten)]
    pub target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Reads `ID=GRPC,HTTP`.
pub fn parse_member(text: &str) -> Result<Member, String> {
    let wrong = || format!("`{text}` is not of the form ID=GRPC,HTTP");
    let (id, addresses) = text.split_once('=').ok_or_else(wrong)?;
    let (grpc, http) = addresses.split_once(',').ok_or_else(wrong)?;
    Ok(Member { id: id.parse().map_err(|_| wrong())?, grpc: grpc.into(), http: http.into(), voter: true, ..Member::default() })
}

impl Init {
    pub async fn run(self) -> Result<(), Failure> {
        if self.dry_run {
            let ids: Vec<u64> = self.voters.iter().map(|voter| voter.id).collect();
            output::print(
                self.target.json,
                &json!({"ok": true, "dry_run": true, "voters": ids}),
                &format!("would form a cluster of {ids:?}"),
            );
            return Ok(());
        }
        let nodes = self.target.nodes_at(self.voters.iter().map(|voter| voter.grpc.clone()).collect())?;
        let mut client = connect(&self.voters[0].grpc, &nodes).await?;
        let is_voter = |id: u64, voters: &[Member]| voters.iter().any(|voter| voter.id == id);
        let changed = match init(&mut client, self.voters.clone()).await {
            Ok(()) => true,
            // Asked for again: what was to be formed is there.
            Err(error) => match survey(&nodes).await.nodes.iter().any(|node| node.is_voter() && is_voter(node.id, &self.voters)) {
                true => false,
                false => return Err(error),
            },
        };
        let told = if changed { "the cluster is formed" } else { "the cluster was formed before; nothing changed" };
        output::print(self.target.json, &json!({"ok": true, "changed": changed}), told);
        Ok(())
    }
}

/// Asks a fresh node to form the cluster.
pub async fn init(client: &mut Client, members: Vec<Member>) -> Result<(), Failure> {
    let answer = client.init(InitRequest { members }).await.map_err(|status| Failure::unavailable(status.message().to_string()))?;
    match answer.into_inner().error {
        error if error.is_empty() => Ok(()),
        error => Err(Failure::failed(error)),
    }
}
