//! `quorate scrub --purge-forgotten`: what was forgotten goes now, from every node's files.
//!
//! The windows are ended in the log; the rules then remove what was kept aside, and each node rewrites its files by itself. This
//! verb waits for that and collects what each node states, signed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorate_domain::fact::{EndRecovery, ErasureState, GetErasure};
use quorate_proto::cluster::ErasedRequest;
use serde::Serialize;
use serde_json::json;
use tonic::Request;

use crate::admin;
use crate::deployment::{Nodes, Target};
use crate::exit::{self, Failure};
use crate::output;
use crate::status::{NodeStatus, connect_operator, survey};

/// How long one question to a node may take.
const ASK: Duration = Duration::from_secs(30);
/// How long the rules may take to remove what was kept aside, and each node to rewrite its files.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between looks at how far the rules are.
const LOOK: Duration = Duration::from_millis(300);

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Stated {
    id: u64,
    /// `erased`, `behind` or `unreachable`.
    state: &'static str,
    through: u64,
    /// The file that `quorate verify` checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    statement: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// Ends every recovery window, waits until all nodes have erased, and tells what they state.
pub async fn run(target: &Target, dry_run: bool, statements: Option<&Path>) -> Result<(), Failure> {
    let nodes = target.nodes()?;
    let mut ended = 0;
    if !dry_run {
        loop {
            let done = admin::propose(&nodes, EndRecovery {}).await?;
            ended += done.ended;
            if !done.more {
                break;
            }
        }
    }
    let state = settled(&nodes, dry_run).await?;
    let due = state.due.map_or(0, |due| due.0);
    let wait = if dry_run { Duration::ZERO } else { PATIENCE };
    let members = survey(&nodes).await.nodes.into_iter().filter(|node| node.role != "removed");
    let asked = members.map(|node| {
        let nodes = nodes.clone();
        tokio::spawn(async move { ask(&node, &nodes, due, wait).await })
    });
    let mut stated = Vec::new();
    for task in asked.collect::<Vec<_>>() {
        stated.push(task.await.map_err(|error| Failure::failed(format!("a question did not end: {error}")))?);
    }
    if let Some(folder) = statements {
        save(folder, &stated)?;
    }
    tell(target.json, dry_run, ended, &state, &stated)
}

/// How far the rules are, once they have nothing left to remove.
async fn settled(nodes: &Nodes, at_once: bool) -> Result<ErasureState, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        let state = admin::read(nodes, GetErasure {}).await?;
        if at_once || state.purging == 0 {
            return Ok(state);
        }
        if Instant::now() > until {
            return Err(Failure::unavailable(format!("{} forgettings are still being purged; run it again", state.purging)));
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn ask(node: &NodeStatus, nodes: &Nodes, revision: u64, wait: Duration) -> Stated {
    let blank = Stated { id: node.id, state: "unreachable", through: 0, statement: None, detail: None };
    if node.role == "unreachable" {
        return Stated { detail: Some("it does not answer".into()), ..blank };
    }
    let until = Instant::now() + wait;
    loop {
        let mut client = match connect_operator(&node.grpc, nodes).await {
            Ok(client) => client,
            Err(failure) => return Stated { detail: Some(failure.message), ..blank },
        };
        let mut request = Request::new(ErasedRequest { revision });
        request.set_timeout(if wait.is_zero() { Duration::from_secs(2) } else { ASK });
        let answer = match client.erased(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return Stated { detail: Some(status.message().into()), ..blank },
        };
        let is_erased = answer.through >= revision;
        if is_erased || Instant::now() > until {
            return Stated {
                state: if is_erased { "erased" } else { "behind" },
                through: answer.through,
                statement: Some(answer.statement).filter(|statement| !statement.is_empty()),
                detail: (!is_erased).then(|| "it has not rewritten its files yet; its log says why".into()),
                ..blank
            };
        }
    }
}

fn save(folder: &Path, stated: &[Stated]) -> Result<(), Failure> {
    let failed = |path: &PathBuf, error: std::io::Error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    let folder = folder.to_owned();
    std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    for node in stated {
        let Some(statement) = &node.statement else { continue };
        let path = folder.join(format!("erasure-node-{}.json", node.id));
        std::fs::write(&path, statement).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

fn tell(json: bool, dry_run: bool, ended: u64, state: &ErasureState, stated: &[Stated]) -> Result<(), Failure> {
    let is = |word: &str| stated.iter().any(|node| node.state == word);
    let code = match (dry_run, is("behind"), is("unreachable")) {
        (true, ..) | (false, false, false) => 0,
        (false, true, _) => exit::FAILED,
        (false, false, true) => exit::UNAVAILABLE,
    };
    let mut text = match (dry_run, state.due) {
        (true, _) => format!("{} recovery windows are open and would be ended\n", state.open),
        (false, None) => "nothing was ever forgotten\n".into(),
        (false, Some(due)) => format!("{ended} recovery windows ended; all is purged through revision {due}\n"),
    };
    for node in stated {
        text +=
            &format!("  node {:<3} {:<12} through {} {}\n", node.id, node.state, node.through, node.detail.as_deref().unwrap_or_default());
    }
    text += "Backups, exports and hand-off packages taken before still hold what they held.\n";
    let facts = json!({
        "ok": code == 0, "dry_run": dry_run, "windows_ended": ended, "windows_open": state.open, "more": state.more,
        "due": state.due.map(|due| due.0), "nodes": stated,
    });
    output::print(json, &facts, &text);
    if code == 0 { Ok(()) } else { Err(Failure::new(code, "")) }
}
