//! `quorate backup`: the state at one revision as one file, from any node, while everybody works.
//!
//! The file stands under its name only after all of it was read back and found right; see [`quorate_node::backup`] for what
//! is in it. `--verify` does that reading alone, of a file that is there.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use quorate_node::backup::{self, BackupError, Checked, DEPLOYMENT, Taking};
use quorate_proto::cluster::backup_part::Part;
use quorate_proto::cluster::{BackupFile, BackupRequest};
use serde_json::json;

use crate::deployment::{Deployment, Nodes, Target};
use crate::exit::Failure;
use crate::founding::Scratch;
use crate::output;
use crate::status::{NodeStatus, connect_operator, survey};

/// Write the state at one revision into one file, or check such a file.
///
/// Taken from any node while the cluster works, and complete up to what was acknowledged before. The file is a plain tar with
/// a signed manifest, readable by you alone; with --data it also holds the deployment's tokens and private keys, so keep it as
/// safe as those. Nothing but `quorate restore` is needed to begin anew from it.
#[derive(Args)]
pub struct Backup {
    /// The file; must not be there yet
    file: PathBuf,
    #[command(flatten)]
    pub target: Target,
    /// Only read the file that is there and say whether it is whole; needs no cluster
    #[arg(long, conflicts_with_all = ["stale", "without_secrets"])]
    verify: bool,
    /// With --verify: the Ed25519 public key (hex) that must have signed it
    #[arg(long, requires = "verify")]
    public_key: Option<String>,
    /// Take what the most advanced node has: the last resort of a cluster without a quorum
    #[arg(long)]
    stale: bool,
    /// Of a stopped node's folder instead, with all that its log holds: the last resort when no node can run any more
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["verify", "stale"], requires = "receipt_key_file")]
    of_stopped: Option<PathBuf>,
    /// With --of-stopped: a file with the cluster's receipt key, 32 bytes in hex, which signs the backup
    #[arg(long, value_name = "FILE", requires = "of_stopped")]
    receipt_key_file: Option<PathBuf>,
    /// Leave the deployment's tokens and private keys out; `restore` then needs --receipt-key-file
    #[arg(long)]
    without_secrets: bool,
}

/// An election, or a node that is busy, is waited out so long.
const BEGUN_WITHIN: Duration = Duration::from_secs(30);
/// A node reads all of its state once, for the hashes, before it answers.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15 * 60);
/// A node that then sends nothing for so long has lost its turn.
const STALL: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// Why one node did not do it.
enum Attempt {
    /// Another node, or a later try, may.
    Again(String),
    Final(Failure),
}

impl From<BackupError> for Attempt {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::Storage(_) => Attempt::Final(Failure::failed(error.to_string())),
            _ => Attempt::Again(error.to_string()),
        }
    }
}

impl Backup {
    pub async fn run(self) -> Result<(), Failure> {
        if self.verify {
            let checked = backup::check(&self.file, self.public_key.as_deref()).map_err(failed)?;
            self.tell(&checked);
            return Ok(());
        }
        if self.file.exists() {
            return Err(Failure::usage(format!("{} is there already: name another file", self.file.display())));
        }
        if let (Some(folder), Some(key)) = (self.of_stopped.clone(), self.receipt_key_file.clone()) {
            let file = self.file.clone();
            let taken = tokio::task::spawn_blocking(move || of_stopped(&folder, &key, &file)).await;
            let checked = taken.context("the backup did not end")??;
            self.tell(&checked);
            return Ok(());
        }
        let nodes = self.target.nodes()?;
        let deployment = self.deployment()?;
        let deadline = Instant::now() + BEGUN_WITHIN;
        let mut why = format!("none of the nodes at {} answers", nodes.addresses.join(", "));
        loop {
            for node in self.candidates(&nodes).await {
                match self.take(&node, &nodes, deployment.as_deref()).await {
                    Ok(checked) => {
                        self.tell(&checked);
                        return Ok(());
                    }
                    Err(Attempt::Final(failure)) => return Err(failure),
                    Err(Attempt::Again(problem)) => why = format!("node {}: {problem}", node.id),
                }
            }
            if Instant::now() > deadline {
                let advice = "Nothing was written. Without a quorum, `quorate backup --stale FILE` takes what the most advanced node has";
                return Err(Failure::unavailable(format!(
                    "no node made a backup within {} s; the last reason: {why}. {advice}",
                    BEGUN_WITHIN.as_secs()
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The deployment's description as it is, if it is to go along.
    fn deployment(&self) -> Result<Option<Vec<u8>>, Failure> {
        if self.without_secrets || !self.target.nodes.is_empty() {
            return Ok(None);
        }
        let path = Deployment::path(&self.target.data);
        let bytes = std::fs::read(&path).map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?;
        Ok(Some(bytes))
    }

    /// Nodes to ask, the best first: followers, since the leader has more to do; with `stale` the most advanced.
    async fn candidates(&self, nodes: &Nodes) -> Vec<NodeStatus> {
        let mut found = survey(nodes).await.nodes;
        found.retain(|node| matches!(node.role.as_str(), "leader" | "follower" | "learner" | "candidate"));
        found.sort_by_key(|node| (if self.stale { u64::MAX - node.applied } else { 0 }, node.role != "follower", node.role == "leader"));
        found
    }

    async fn take(&self, node: &NodeStatus, nodes: &Nodes, deployment: Option<&[u8]>) -> Result<Checked, Attempt> {
        let again = |problem: String| Attempt::Again(problem);
        let mut client = connect_operator(&node.grpc, nodes).await.map_err(|failure| again(failure.message))?;
        let attached =
            deployment.map(|bytes| BackupFile { name: DEPLOYMENT.into(), size_bytes: bytes.len() as u64, blake3: backup::hash(bytes) });
        let request = BackupRequest { attached: attached.into_iter().collect(), stale: self.stale };
        let asked = tokio::time::timeout(ANSWERED_WITHIN, client.backup(request)).await.map_err(|_| again("it does not answer".into()))?;
        let mut parts = asked.map_err(|status| again(status.message().into()))?.into_inner();
        let mut taking: Option<Taking> = None;
        loop {
            let part = tokio::time::timeout(STALL, parts.message()).await.map_err(|_| again("it sends no more".into()))?;
            match (part.map_err(|status| again(format!("it broke off: {}", status.message())))?.and_then(|part| part.part), &mut taking) {
                (Some(Part::Head(head)), None) => taking = Some(Taking::begin(&self.file, &head, deployment)?),
                (Some(Part::Chunk(chunk)), Some(taking)) => taking.chunk(&chunk.file, &chunk.data)?,
                (None, Some(_)) => break,
                _ => return Err(again("it sent no backup".into())),
            }
        }
        // Taken out whole: what is left undone by a broken stream is removed with it.
        let taking = taking.ok_or_else(|| again("it sent no backup".into()))?;
        let finished = tokio::task::spawn_blocking(move || taking.finish()).await;
        Ok(finished.map_err(|error| Attempt::Final(Failure::failed(format!("the backup was not read back: {error}"))))??)
    }

    fn tell(&self, checked: &Checked) {
        let manifest = &checked.manifest;
        let json = json!({
            "ok": true, "file": self.file.display().to_string(), "id": checked.id, "cluster_id": manifest.cluster_id,
            "lineage": manifest.lineage, "revision": manifest.revision, "term": manifest.term, "taken_by": manifest.taken_by,
            "taken_at_unix_ms": manifest.taken_at_unix_ms, "members": manifest.members, "files": manifest.files.len(),
            "size_bytes": manifest.size_bytes(), "public_key": checked.seal.public_key, "key_id": checked.seal.key_id,
            "holds_secrets": checked.deployment.is_some(), "verified": true,
        });
        output::print(self.target.json, &json, &format!("{} is whole: {}", self.file.display(), line(checked)));
    }
}

fn line(checked: &Checked) -> String {
    let manifest = &checked.manifest;
    let secrets = if checked.deployment.is_some() { ", with tokens and private keys" } else { ", without secrets" };
    format!(
        "revision {} of cluster {}, from node {}, {} files, {} bytes{secrets}, signed by key {}",
        manifest.revision,
        manifest.cluster_id,
        manifest.taken_by,
        manifest.files.len(),
        manifest.size_bytes(),
        checked.seal.key_id
    )
}

fn of_stopped(folder: &Path, key: &Path, file: &Path) -> Result<Checked, Failure> {
    let key = std::fs::read_to_string(key).with_context(|| format!("cannot read {}", key.display()))?;
    let mut beside = file.as_os_str().to_owned();
    beside.push(".copying");
    // Where the backup goes there is room for as much again.
    let scratch = Scratch::make(beside.into())?;
    backup::of_stopped(folder, key.trim(), &scratch.0, file).map_err(failed)
}

pub fn failed(error: BackupError) -> Failure {
    Failure::failed(error.to_string())
}
