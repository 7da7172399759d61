//! `quorate scrub`: whether all replicas hold the same.
//!
//! Each node reads all of its state as it is right after one entry of the log, the same for all, and answers a digest. The
//! revision is a little ahead of everybody; a node that was faster says so, and a later one is tried.

use std::path::PathBuf;

use clap::Args;
use quorate_proto::cluster::StateHashRequest;
use quorate_proto::cluster::state_hash_response::Result as Answer;
use serde::Serialize;
use serde_json::json;

use crate::deployment::{Nodes, Target};
use crate::exit::{self, Failure};
use crate::output;
use crate::purge;
use crate::status::{NodeStatus, connect_operator, survey};

/// Compare the whole state of all nodes at one revision, and name a node that differs; or purge what was forgotten.
///
/// Reads every row of every replica once, at its own pace, while the cluster works. Exit code 1: a node differs or can't read
/// its state; 3: one could not be asked.
#[derive(Args)]
pub struct Scrub {
    /// End the recovery window of everything that was forgotten, now, and have every node rewrite the files that still hold it;
    /// collects what each of them states, signed
    #[arg(long)]
    purge_forgotten: bool,
    /// Only tell how much could still be brought back, and what the nodes have erased so far
    #[arg(long, requires = "purge_forgotten")]
    dry_run: bool,
    /// Folder for the nodes' statements, which `quorate verify` checks
    #[arg(long, requires = "purge_forgotten", value_name = "FOLDER")]
    statements: Option<PathBuf>,
    #[command(flatten)]
    pub target: Target,
}

/// How far ahead the revision lies: at first what an idle cluster writes in a second, then eight times as much each time.
const AHEAD: [u64; 8] = [2, 16, 128, 1_024, 8_192, 65_536, 524_288, 4_194_304];

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Found {
    id: u64,
    /// `same`, `diverged`, `unreadable` or `unreachable`; `undecided` where no majority agrees.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    blake3: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// What one node answered.
enum Said {
    Hashed { blake3: String, rows: u64, bytes: u64 },
    Passed,
    Unreadable(String),
    Unreachable(String),
}

impl Scrub {
    pub async fn run(self) -> Result<(), Failure> {
        if self.purge_forgotten {
            return purge::run(&self.target, self.dry_run, self.statements.as_deref()).await;
        }
        let nodes = self.target.nodes()?;
        let before = survey(&nodes).await;
        if before.leader.is_none() {
            return Err(Failure::unavailable("there is no leader now, and without new entries no revision comes to compare at; try again"));
        }
        for ahead in AHEAD {
            let now = survey(&nodes).await;
            let revision = now.nodes.iter().map(|node| node.applied).max().unwrap_or(0) + ahead;
            let members: Vec<NodeStatus> = now.nodes.into_iter().filter(|node| node.role != "removed").collect();
            let asked = members.into_iter().map(|node| {
                let nodes = nodes.clone();
                tokio::spawn(async move { (node.id, ask(&node, &nodes, revision).await) })
            });
            let mut said = Vec::new();
            for task in asked.collect::<Vec<_>>() {
                said.push(task.await.map_err(|error| Failure::failed(format!("a question did not end: {error}")))?);
            }
            if said.iter().any(|(_, said)| matches!(said, Said::Passed)) {
                continue;
            }
            return self.tell(revision, judge(said));
        }
        Err(Failure::unavailable("the cluster writes so fast that no common revision was found; try again"))
    }

    fn tell(&self, revision: u64, found: Vec<Found>) -> Result<(), Failure> {
        let is = |word: &str| found.iter().any(|node| node.state == word);
        let code = if is("diverged") || is("unreadable") || is("undecided") {
            exit::FAILED
        } else if is("unreachable") {
            exit::UNAVAILABLE
        } else {
            0
        };
        let mut text = format!("revision {revision}\n");
        for node in &found {
            let detail = node.detail.as_deref().or(node.blake3.as_deref()).unwrap_or_default();
            text += &format!("  node {:<3} {:<12} {detail}\n", node.id, node.state);
        }
        if is("diverged") || is("unreadable") {
            text += "Do not trust a node that differs: `quorate replace ID` gives its place to a new member\n";
        }
        output::print(self.target.json, &json!({"ok": code == 0, "revision": revision, "nodes": found}), &text);
        if code == 0 { Ok(()) } else { Err(Failure::new(code, "")) }
    }
}

async fn ask(node: &NodeStatus, nodes: &Nodes, revision: u64) -> Said {
    if node.role == "unreachable" {
        return Said::Unreachable("it does not answer".into());
    }
    let mut client = match connect_operator(&node.grpc, nodes).await {
        Ok(client) => client,
        Err(failure) => return Said::Unreachable(failure.message),
    };
    match client.state_hash(StateHashRequest { revision }).await.map(|answer| answer.into_inner().result) {
        Ok(Some(Answer::Hashed(hashed))) => Said::Hashed { blake3: hashed.blake3, rows: hashed.rows, bytes: hashed.bytes },
        Ok(Some(Answer::Passed(_))) => Said::Passed,
        Ok(Some(Answer::Unreadable(why))) => Said::Unreadable(why),
        Ok(Some(Answer::Unavailable(why))) => Said::Unreachable(why.detail),
        Ok(None) => Said::Unreachable("it answered nothing".into()),
        Err(status) => Said::Unreachable(status.message().into()),
    }
}

/// What most nodes hold is right; who holds something else has diverged.
fn judge(said: Vec<(u64, Said)>) -> Vec<Found> {
    let digests: Vec<String> =
        said.iter().filter_map(|(_, said)| if let Said::Hashed { blake3, .. } = said { Some(blake3.clone()) } else { None }).collect();
    let count = |digest: &str| digests.iter().filter(|other| *other == digest).count();
    // Of those that could be read, when that is more than half of all; two that differ can't tell who is wrong.
    let right = digests.iter().find(|digest| count(digest) == digests.len() || count(digest) * 2 > said.len()).cloned();
    let found = |(id, said)| {
        let blank = Found { id, state: "unreachable", blake3: None, rows: None, bytes: None, detail: None };
        match said {
            Said::Hashed { blake3, rows, bytes } => {
                let state = match &right {
                    Some(right) if *right == blake3 => "same",
                    Some(_) => "diverged",
                    None => "undecided",
                };
                Found { state, blake3: Some(blake3), rows: Some(rows), bytes: Some(bytes), ..blank }
            }
            Said::Unreadable(why) => Found { state: "unreadable", detail: Some(why), ..blank },
            Said::Unreachable(why) => Found { detail: Some(why), ..blank },
            Said::Passed => blank,
        }
    };
    said.into_iter().map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(said: Vec<(u64, Said)>) -> Vec<&'static str> {
        judge(said).into_iter().map(|node| node.state).collect()
    }

    fn hashed(id: u64, digest: &str) -> (u64, Said) {
        (id, Said::Hashed { blake3: digest.into(), rows: 1, bytes: 1 })
    }

    #[test]
    fn the_one_that_differs_from_the_majority_is_named() {
        assert_eq!(states(vec![hashed(1, "a"), hashed(2, "a"), hashed(3, "a")]), ["same", "same", "same"]);
        assert_eq!(states(vec![hashed(1, "a"), hashed(2, "b"), hashed(3, "a")]), ["same", "diverged", "same"]);
        assert_eq!(states(vec![hashed(1, "a"), hashed(2, "b"), hashed(3, "c")]), ["undecided"; 3]);
    }

    #[test]
    fn two_that_differ_accuse_nobody_and_one_that_is_away_is_not_called_the_same() {
        let away = |id| (id, Said::Unreachable("gone".into()));
        assert_eq!(states(vec![hashed(1, "a"), hashed(2, "b"), away(3)]), ["undecided", "undecided", "unreachable"]);
        assert_eq!(states(vec![hashed(1, "a"), hashed(2, "a"), away(3)]), ["same", "same", "unreachable"]);
        let broken = (2, Said::Unreadable("block 7".into()));
        assert_eq!(states(vec![hashed(1, "a"), broken, hashed(3, "a")]), ["same", "unreadable", "same"]);
    }
}
