//! What `restore` and `force-new-cluster` share: the nodes of a deployment that begins a new lineage.

use std::net::TcpListener;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use quorate_domain::UnixMs;
use quorate_domain::lineage::Begun;
use quorate_node::found::{self, FoundError, Founder, Plan};
use quorate_node::{Address, backup::Snapshot};
use serde_json::{Value, json};

use crate::deployment::{Deployment, NodeEntry};
use crate::dev;
use crate::exit::Failure;

/// More would only wait for each other.
pub const NODES_MAX: u64 = 9;

/// A lineage that no restore had or will have: by the clock, with something of chance for two in one moment. Exact as a JSON
/// number.
pub fn new_lineage(old: u64) -> u64 {
    (now_unix_ms() * 1_000 + rand::random::<u64>() % 1_000).max(old + 1)
}

pub fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Nodes with addresses that are free now. Their folders are made before they start, so an empty one is a lost disk.
pub fn nodes(ids: impl Iterator<Item = u64>) -> Result<Vec<NodeEntry>, Failure> {
    // All are held until the end, so that no port is given out twice.
    let mut held = Vec::new();
    let mut take = || -> anyhow::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
        let address = listener.local_addr()?.to_string();
        held.push(listener);
        Ok(address)
    };
    let mut nodes = Vec::new();
    for id in ids {
        nodes.push(NodeEntry { id, grpc: take()?, http: take()?, created: true, replaces: None });
    }
    Ok(nodes)
}

/// The address itself if nobody has it now, else another.
pub fn free_or_other(address: &str) -> Result<String, Failure> {
    let listener = TcpListener::bind(address).or_else(|_| TcpListener::bind("127.0.0.1:0")).context("no free port")?;
    Ok(listener.local_addr().context("no free port")?.to_string())
}

/// Cuts a deployment off from its old lineage: whoever has the old secret is refused, whatever addresses it knows.
pub fn renew(deployment: &mut Deployment, lineage: u64, nodes: Vec<NodeEntry>) {
    deployment.lineage = lineage;
    deployment.cluster_secret = dev::secret();
    deployment.nodes = nodes;
}

/// Makes the nodes' folders below `folder`. For a blocking thread.
pub fn make(deployment: &Deployment, folder: &Path, snapshot: &Snapshot) -> Result<Begun, FoundError> {
    let founder = |node: &NodeEntry| Founder {
        node_id: node.id,
        address: Address { grpc: node.grpc.clone(), http: node.http.clone() },
        dir: dev::node_folder(folder, node.id),
    };
    let founders: Vec<Founder> = deployment.nodes.iter().map(founder).collect();
    let now = UnixMs(now_unix_ms());
    found::found(&Plan { cluster_id: &deployment.cluster_id, lineage: deployment.lineage, founders: &founders, now }, snapshot)
}

/// What both verbs tell of what they made.
pub fn told(deployment: &Deployment, begun: &Begun) -> Value {
    let nodes: Vec<Value> = deployment.nodes.iter().map(|node| json!({"id": node.id, "grpc": node.grpc, "http": node.http})).collect();
    json!({
        "cluster_id": deployment.cluster_id, "lineage": deployment.lineage, "kept_revision": begun.cut.through,
        "first_revision": begun.cut.from, "cards_reissued": begun.cards, "nodes": nodes,
    })
}

/// A scratch folder that only its owner can look into, removed when this is dropped.
pub struct Scratch(pub std::path::PathBuf);

impl Scratch {
    pub fn make(path: std::path::PathBuf) -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        // Left by a run that was killed, under the same process id.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
