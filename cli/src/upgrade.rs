//! `quorate upgrade`: from one version to the next, without an interruption.
//!
//! Nodes of two neighbouring versions work together. So an upgrade restarts one node after the other, the leader last
//! (`roll`), and only when all run the new version does the cluster begin to write what the old one does not know
//! (`finalise`, see `quorate_domain::level`). Until then the way back is to start the old version again. Each verb can be run again.

use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use quorate_domain::level::RaiseFeatureLevel;
use serde_json::json;

use crate::admin;
use crate::deployment::{Nodes, Target};
use crate::exit::Failure;
use crate::output;
use crate::status::{NodeStatus, Survey, silence, survey};
use crate::transfer::hand_over;

#[derive(Subcommand)]
pub enum Upgrade {
    /// Show which version each node runs, and what is left to do
    Check(Check),
    /// Restart one node after the other, each when all are well, the leader last
    Roll(Roll),
    /// Begin to use what the new version brings, once all nodes run it; there is no way back from then on
    Finalise(Finalise),
}

/// Show which version each node runs, and what is left to do.
#[derive(Args)]
pub struct Check {
    #[command(flatten)]
    pub target: Target,
}

/// Restart one node after the other, each when all are well, the leader last.
///
/// Install the new executable first. A node that runs the version already is left alone.
#[derive(Args)]
pub struct Roll {
    /// Shell command that restarts one node; it finds QUORATE_NODE_ID, QUORATE_NODE_PID, QUORATE_NODE_GRPC and QUORATE_NODE_HTTP
    #[arg(long, value_name = "COMMAND")]
    restart: String,
    /// The version that the nodes shall run; without it, that of this executable
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    to: String,
    /// Restart also those that run the version already: after a change of the configuration
    #[arg(long)]
    again: bool,
    /// How long one node may take until it is ready again, in seconds
    #[arg(long, default_value_t = 300)]
    node_seconds: u64,
    #[command(flatten)]
    pub target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Begin to use what the new version brings, once all nodes run it; there is no way back from then on.
#[derive(Args)]
pub struct Finalise {
    #[command(flatten)]
    pub target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Entries that a node may lack and still count as caught up: under load it is never at the end.
const LAG_MAX: u64 = 1_000;
const LOOK: Duration = Duration::from_millis(100);

impl Upgrade {
    pub fn json(&self) -> bool {
        match self {
            Upgrade::Check(verb) => verb.target.json,
            Upgrade::Roll(verb) => verb.target.json,
            Upgrade::Finalise(verb) => verb.target.json,
        }
    }

    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Upgrade::Check(verb) => verb.run().await,
            Upgrade::Roll(verb) => verb.run().await,
            Upgrade::Finalise(verb) => verb.run().await,
        }
    }
}

/// The members, or why nobody tells who they are.
async fn members(nodes: &Nodes) -> Result<Survey, Failure> {
    let mut found = survey(nodes).await;
    if found.nodes.is_empty() {
        return Err(silence(nodes).await);
    }
    found.nodes.retain(|node| node.role != "removed");
    Ok(found)
}

/// The level that all can apply, and the one that the cluster is at; `None` while a member is silent.
fn levels(found: &Survey) -> (Option<u64>, u64) {
    let of = |node: &NodeStatus| (node.role != "unreachable").then_some(node.feature_level_max);
    let reachable: Option<Vec<u64>> = found.nodes.iter().map(of).collect();
    let at = found.nodes.iter().map(|node| node.feature_level).max().unwrap_or_default();
    (reachable.and_then(|levels| levels.into_iter().min()), at)
}

fn is_well(node: &NodeStatus) -> bool {
    let takes_part = matches!(node.role.as_str(), "leader" | "follower" | "learner");
    takes_part && node.not_ready.is_empty() && node.lag.is_some_and(|lag| lag <= LAG_MAX)
}

/// Who is not well, as a sentence.
fn unwell(found: &Survey) -> Option<String> {
    let node = found.nodes.iter().find(|node| !is_well(node))?;
    Some(match node.not_ready.is_empty() {
        true => format!("node {} is {} with a lag of {}", node.id, node.role, node.lag.map_or("?".into(), |lag| lag.to_string())),
        false => format!("node {} is not ready ({})", node.id, node.not_ready.join(", ")),
    })
}

fn version(node: &NodeStatus) -> &str {
    if node.version.is_empty() { "?" } else { &node.version }
}

impl Check {
    async fn run(self) -> Result<(), Failure> {
        let found = members(&self.target.nodes()?).await?;
        let (common, at) = levels(&found);
        let mut text = String::new();
        for node in &found.nodes {
            text += &format!("  node {:<3} {:<12} version {:<10} level {}\n", node.id, node.role, version(node), node.feature_level_max);
        }
        let mut versions: Vec<&str> = found.nodes.iter().filter(|node| node.role != "unreachable").map(version).collect();
        versions.sort_unstable();
        versions.dedup();
        let next = match (common, versions.len()) {
            (None, _) => "a member does not answer: bring it back, or remove it for good",
            (Some(_), 2..) => "versions are mixed: go on with `quorate upgrade roll`",
            (Some(common), _) if common > at => "all run the same version: end with `quorate upgrade finalise`",
            (Some(_), _) => "nothing is left to do",
        };
        text += &format!("the cluster is at feature level {at}; {next}\n");
        let facts =
            json!({ "ok": common.is_some(), "feature_level": at, "feature_level_common": common, "next": next, "nodes": found.nodes });
        output::print(self.target.json, &facts, &text);
        if common.is_some() { Ok(()) } else { Err(Failure::unavailable("")) }
    }
}

impl Roll {
    async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let found = members(&nodes).await?;
        let is_due = |node: &NodeStatus| self.again || node.version != self.to;
        // The leader last, so that leadership moves once.
        let mut due: Vec<u64> =
            found.nodes.iter().filter(|node| is_due(node) && Some(node.id) != found.leader).map(|node| node.id).collect();
        due.extend(found.leader.filter(|leader| found.nodes.iter().any(|node| node.id == *leader && is_due(node))));
        if self.dry_run || due.is_empty() {
            let text = match due.is_empty() {
                true => format!("every node runs {} already", self.to),
                false => format!("would restart, in this order: {due:?}"),
            };
            output::print(self.target.json, &json!({"ok": true, "dry_run": self.dry_run, "due": due, "restarted": []}), &text);
            return Ok(());
        }
        let mut restarted = Vec::new();
        for id in due {
            self.restart(&nodes, id).await.map_err(|failure| {
                Failure::new(failure.code, format!("{} (restarted so far: {restarted:?}; run it again to go on)", failure.message))
            })?;
            restarted.push(id);
            if !self.target.json {
                println!("node {id} is back and ready");
            }
        }
        output::print(
            self.target.json,
            &json!({"ok": true, "restarted": restarted}),
            "all nodes were restarted; `quorate upgrade check` says what is left",
        );
        Ok(())
    }

    async fn restart(&self, nodes: &Nodes, id: u64) -> Result<(), Failure> {
        let until = Instant::now() + Duration::from_secs(self.node_seconds);
        let before = loop {
            let mut found = members(nodes).await?;
            match unwell(&found) {
                // With one down already, another restart could cost the quorum.
                Some(why) if Instant::now() > until => return Err(Failure::unavailable(format!("{why}; node {id} was not restarted"))),
                Some(_) => tokio::time::sleep(LOOK).await,
                None if found.leader == Some(id) && found.nodes.iter().filter(|node| node.is_voter()).count() > 1 => {
                    hand_over(nodes, &found).await?;
                }
                None => {
                    let at = found.nodes.iter().position(|node| node.id == id);
                    let at = at.ok_or_else(|| Failure::failed(format!("node {id} is no member any more")))?;
                    break found.nodes.swap_remove(at);
                }
            }
        };
        let mut shell = tokio::process::Command::new("sh");
        shell.arg("-c").arg(&self.restart).stdin(Stdio::null());
        if self.target.json {
            // Standard output is one object.
            shell.stdout(Stdio::null());
        }
        shell.env("QUORATE_NODE_ID", id.to_string()).env("QUORATE_NODE_GRPC", &before.grpc).env("QUORATE_NODE_HTTP", &before.http);
        shell.env("QUORATE_NODE_PID", before.pid.unwrap_or_default().to_string());
        let status = shell.status().await.map_err(|error| Failure::failed(format!("cannot run the command: {error}")))?;
        if !status.success() {
            return Err(Failure::failed(format!("the command for node {id} ended with {status}")));
        }
        loop {
            let found = members(nodes).await?;
            let node = found.nodes.iter().find(|node| node.id == id);
            let is_new = node.is_some_and(|node| node.started_unix_ms != before.started_unix_ms && is_well(node));
            match node {
                Some(node) if is_new && !self.again && node.version != self.to => {
                    let text = format!("node {id} was restarted and runs {}, not {}: install the executable there", version(node), self.to);
                    return Err(Failure::failed(text));
                }
                Some(_) if is_new && found.leader.is_some() => return Ok(()),
                _ if Instant::now() > until => {
                    return Err(Failure::unavailable(format!("node {id} was not back and ready within {} s", self.node_seconds)));
                }
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }
}

impl Finalise {
    async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let found = members(&nodes).await?;
        let (common, at) = levels(&found);
        let silent =
            || Failure::unavailable("a member does not answer, and it is not known what it can apply: bring it back, or remove it");
        let common = common.ok_or_else(silent)?;
        if common <= at {
            let text = format!("the cluster is at feature level {at}, and that is what all its members can apply; nothing to do");
            output::print(self.target.json, &json!({"ok": true, "feature_level": at, "changed": false}), &text);
            return Ok(());
        }
        if self.dry_run {
            let text = format!("would raise the feature level from {at} to {common}");
            output::print(self.target.json, &json!({"ok": true, "dry_run": true, "feature_level": at, "to": common}), &text);
            return Ok(());
        }
        let raised = admin::propose(&nodes, RaiseFeatureLevel { to: common }).await?;
        let text = format!("the cluster is at feature level {}", raised.level);
        output::print(self.target.json, &json!({"ok": true, "feature_level": raised.level, "changed": raised.changed}), &text);
        Ok(())
    }
}
