//! `quorate export`: one tenant as one file, from any node, while everybody works.
//!
//! As with a backup, the file stands under its name only after all of it was read back and found right; see
//! [`quorate_node::export`] for what is in it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use quorate_node::backup::BackupError;
use quorate_node::export::{self, Checked, Taking};
use quorate_proto::cluster::ExportRequest;
use quorate_proto::cluster::backup_part::Part;
use serde_json::json;

use crate::backup::failed;
use crate::deployment::{Nodes, Target};
use crate::exit::Failure;
use crate::output;
use crate::status::{NodeStatus, connect_operator, survey};

/// Write all of one tenant into one file, or check such a file.
///
/// Taken from any node while the cluster works, at one revision, and complete up to what was acknowledged before. The tenant stays
/// as it is. What is left out, and why, stands in the file and in the answer: above all leases that are held, and bearer tokens.
/// The file holds what the team has stored, readable by you alone: keep it as safe as the team's data.
#[derive(Args)]
pub struct Export {
    /// The tenant
    #[arg(required_unless_present = "verify")]
    tenant: Option<String>,
    /// The file; must not be there yet
    #[arg(long, short, value_name = "FILE", required_unless_present = "verify")]
    output: Option<PathBuf>,
    #[command(flatten)]
    pub target: Target,
    /// Only read this file that is there and say whether it is whole; needs no cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tenant", "output"])]
    verify: Option<PathBuf>,
    /// With --verify: the Ed25519 public key (hex) that must have signed it
    #[arg(long, requires = "verify")]
    public_key: Option<String>,
}

/// An election, or a node that is busy, is waited out so long.
const BEGUN_WITHIN: Duration = Duration::from_secs(30);
/// A node reads all of the tenant once, for the hashes, before it answers.
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
            BackupError::Storage(_) => Attempt::Final(failed(error)),
            _ => Attempt::Again(error.to_string()),
        }
    }
}

impl Export {
    pub async fn run(self) -> Result<(), Failure> {
        if let Some(file) = &self.verify {
            let checked = export::check(file, self.public_key.as_deref()).map_err(failed)?;
            self.tell(file, &checked);
            return Ok(());
        }
        let (Some(tenant), Some(file)) = (self.tenant.as_deref(), self.output.as_deref()) else {
            return Err(Failure::usage("name the tenant, and the file with --output"));
        };
        if file.exists() {
            return Err(Failure::usage(format!("{} is there already: name another file", file.display())));
        }
        let nodes = self.target.nodes()?;
        let deadline = Instant::now() + BEGUN_WITHIN;
        let mut why = format!("none of the nodes at {} answers", nodes.addresses.join(", "));
        loop {
            for node in candidates(&nodes).await {
                match take(&node, &nodes, tenant, file).await {
                    Ok(checked) => {
                        self.tell(file, &checked);
                        return Ok(());
                    }
                    Err(Attempt::Final(failure)) => return Err(failure),
                    Err(Attempt::Again(problem)) => why = format!("node {}: {problem}", node.id),
                }
            }
            if Instant::now() > deadline {
                let within = BEGUN_WITHIN.as_secs();
                return Err(Failure::unavailable(format!("no node made an export within {within} s; the last reason: {why}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn tell(&self, file: &std::path::Path, checked: &Checked) {
        let manifest = &checked.manifest;
        let json = json!({
            "ok": true, "file": file.display().to_string(), "id": checked.id, "tenant": manifest.tenant, "cluster_id": manifest.cluster_id,
            "lineage": manifest.lineage, "revision": manifest.revision, "tenant_revision": manifest.tenant_revision,
            "taken_by": manifest.taken_by, "taken_at_unix_ms": manifest.taken_at_unix_ms, "batches": manifest.batches, "rows": manifest.rows,
            "carried": manifest.carried, "left_out": manifest.left_out, "blobs": manifest.files.len() - 1, "size_bytes": manifest.size_bytes(),
            "public_key": checked.seal.public_key, "key_id": checked.seal.key_id, "verified": true,
        });
        let mut text = format!(
            "{} is whole: tenant `{}` at revision {} of cluster {}, {} rows, {} blobs, {} bytes, signed by key {}\nleft out:",
            file.display(),
            manifest.tenant,
            manifest.revision,
            manifest.cluster_id,
            manifest.rows,
            manifest.files.len() - 1,
            manifest.size_bytes(),
            checked.seal.key_id
        );
        for left in &manifest.left_out {
            text.push_str(&format!("\n  {} ({} rows): {}", left.what, left.rows, left.why));
        }
        output::print(self.target.json, &json, &text);
    }
}

/// Nodes to ask, followers first, since the leader has more to do.
async fn candidates(nodes: &Nodes) -> Vec<NodeStatus> {
    let mut found = survey(nodes).await.nodes;
    found.retain(|node| matches!(node.role.as_str(), "leader" | "follower" | "learner"));
    found.sort_by_key(|node| (node.role != "follower", node.role == "leader"));
    found
}

async fn take(node: &NodeStatus, nodes: &Nodes, tenant: &str, file: &std::path::Path) -> Result<Checked, Attempt> {
    let again = |problem: String| Attempt::Again(problem);
    let mut client = connect_operator(&node.grpc, nodes).await.map_err(|failure| again(failure.message))?;
    let request = ExportRequest { tenant: tenant.into() };
    let asked = tokio::time::timeout(ANSWERED_WITHIN, client.export(request)).await.map_err(|_| again("it does not answer".into()))?;
    let mut parts = match asked {
        Ok(parts) => parts.into_inner(),
        Err(status) if status.code() == tonic::Code::NotFound => return Err(Attempt::Final(Failure::failed(status.message()))),
        Err(status) => return Err(again(status.message().into())),
    };
    let mut taking: Option<Taking> = None;
    loop {
        let part = tokio::time::timeout(STALL, parts.message()).await.map_err(|_| again("it sends no more".into()))?;
        match (part.map_err(|status| again(format!("it broke off: {}", status.message())))?.and_then(|part| part.part), &mut taking) {
            (Some(Part::Head(head)), None) => taking = Some(Taking::begin(file, &head)?),
            (Some(Part::Chunk(chunk)), Some(taking)) => taking.chunk(&chunk.file, &chunk.data)?,
            (None, Some(_)) => break,
            _ => return Err(again("it sent no export".into())),
        }
    }
    // Taken out whole: what is left undone by a broken stream is removed with it.
    let taking = taking.ok_or_else(|| again("it sent no export".into()))?;
    let finished = tokio::task::spawn_blocking(move || taking.finish()).await;
    Ok(finished.map_err(|error| Attempt::Final(Failure::failed(format!("the export was not read back: {error}"))))??)
}
