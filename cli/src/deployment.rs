//! How a verb finds the deployment it is about: by the folder of a `quorate dev`, or by the nodes' addresses.
//!
//! The folder's `deployment.json` says what `dev` runs. It is replaced whole, under a lock; a running `dev` looks at it several
//! times a second and starts and stops nodes as it says.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use quorate_link::{Files, Link, Mutual, Role};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;

/// Where `dev` keeps a deployment when nothing else is said.
pub const DATA_DEFAULT: &str = ".quorate/dev";

/// The flags by which every verb finds its deployment.
#[derive(Args, Clone)]
pub struct Target {
    /// Folder of a deployment made by `quorate dev`
    #[arg(long, env = "QUORATE_DATA", default_value = DATA_DEFAULT)]
    pub data: PathBuf,
    /// gRPC addresses of the nodes, such as 127.0.0.1:7401,127.0.0.1:7402; takes precedence over --data
    #[arg(long, env = "QUORATE_NODES", value_delimiter = ',')]
    pub nodes: Vec<String>,
    /// Secret that nodes and gateways of one cluster share; with --nodes only
    #[arg(long, env = "QUORATE_CLUSTER_SECRET", hide_env_values = true)]
    pub cluster_secret: Option<String>,
    /// PEM file of the cluster's authority, for nodes that speak TLS; with --nodes only
    #[arg(long, env = "QUORATE_TLS_CA")]
    pub tls_ca: Option<PathBuf>,
    /// PEM file of an operator's certificate, made by `quorate cert operator`
    #[arg(long, env = "QUORATE_TLS_CERTIFICATE")]
    pub tls_certificate: Option<PathBuf>,
    /// PEM file of the key to it
    #[arg(long, env = "QUORATE_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What `dev` remembers of its deployment: addresses, identities and secrets. Readable by its owner alone.
#[derive(Clone, Serialize, Deserialize)]
pub struct Deployment {
    pub cluster_id: String,
    /// Which history of the cluster: 0, or what a restore has begun.
    #[serde(default)]
    pub lineage: u64,
    /// Nodes and gateways show it to each other on every call.
    pub cluster_secret: String,
    /// Signs the ids of MCP sessions; 32 bytes in hex.
    pub session_key: String,
    /// Signs receipts (Ed25519); 32 bytes in hex.
    pub receipt_key: String,
    pub gateway: String,
    pub nodes: Vec<NodeEntry>,
    /// Nodes that left. Their ids never come back.
    #[serde(default)]
    pub retired: Vec<Retired>,
    pub tokens: Vec<TokenEntry>,
    /// Whether its processes and its clients speak TLS, with certificates in the folder `tls`.
    #[serde(default)]
    pub tls: bool,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct NodeEntry {
    pub id: u64,
    pub grpc: String,
    pub http: String,
    /// Its folder was made once; an empty one from then on is a lost disk, not a new node.
    pub created: bool,
    /// The node whose place it takes, for as long as that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Retired {
    pub id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<u64>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct TokenEntry {
    /// `agent-a`, `agent-b`, `operator` or `other-tenant`.
    pub name: String,
    pub token: String,
    pub tenant: String,
    pub passport: String,
    pub tier: String,
    pub scopes: Vec<String>,
}

impl Deployment {
    pub fn path(data: &Path) -> PathBuf {
        data.join("deployment.json")
    }

    pub fn load(data: &Path) -> anyhow::Result<Option<Self>> {
        let path = Self::path(data);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let found = serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
        Ok(Some(found))
    }

    /// Changes what is there now, with nobody else between the reading and the writing.
    pub fn update<T>(data: &Path, change: impl FnOnce(&mut Self) -> T) -> anyhow::Result<T> {
        let lock = open_lock(data, "deployment.lock")?;
        lock.lock().context("cannot lock deployment.lock")?;
        let mut deployment = Self::load(data)?.with_context(|| format!("{} is gone", Self::path(data).display()))?;
        let made = change(&mut deployment);
        deployment.save(data)?;
        Ok(made)
    }

    /// The nodes that it runs.
    pub fn nodes(&self, data: &Path) -> Result<Nodes, Failure> {
        let addresses = self.nodes.iter().map(|node| node.grpc.clone()).collect();
        let link = operator_link(self.tls.then(|| Self::files(data, "operator")))?;
        Ok(Nodes { addresses, cluster_secret: Some(self.cluster_secret.clone()), link })
    }

    /// Where the certificates of a deployment with TLS lie.
    pub fn certificates(data: &Path) -> PathBuf {
        data.join("tls")
    }

    /// The certificate of one kind of process: `node`, `gateway` or `operator`. All nodes of a machine share one.
    pub fn files(data: &Path, name: &str) -> Files {
        let dir = Self::certificates(data);
        Files { ca: dir.join("ca.pem"), certificate: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) }
    }

    /// Base URL of the gateway.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.gateway)
    }

    /// Base URL of a node's health and metrics.
    pub fn http_of(&self, node: &NodeEntry) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, node.http)
    }

    /// Higher than any id this deployment has used, and than `used_max`.
    pub fn next_id(&self, used_max: u64) -> u64 {
        let (nodes, retired) = (self.nodes.iter().map(|node| node.id), self.retired.iter().map(|retired| retired.id));
        nodes.chain(retired).fold(used_max, u64::max) + 1
    }

    /// Takes a node off the list: `dev` stops it, if it runs, and does not start it again.
    pub fn retire(&mut self, id: u64, replaced_by: Option<u64>) {
        let before = self.nodes.len();
        self.nodes.retain(|node| node.id != id);
        if self.nodes.len() < before {
            self.retired.push(Retired { id, replaced_by });
        }
    }

    /// Replaces the file in one step, so that a crash leaves the old or the new one.
    pub fn save(&self, data: &Path) -> anyhow::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let (path, draft) = (Self::path(data), data.join("deployment.json.new"));
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, &path)?;
        std::fs::File::open(data)?.sync_all()?;
        Ok(())
    }
}

/// The link of an operator's verb.
fn operator_link(files: Option<Files>) -> Result<Link, Failure> {
    let Some(files) = files else { return Ok(Link::plain()) };
    let mutual = Mutual::open(files, Role::Operator, None).map_err(|error| Failure::config(error.to_string()))?;
    Ok(Link::mutual(mutual))
}

fn open_lock(data: &Path, name: &str) -> anyhow::Result<File> {
    let path = data.join(name);
    OpenOptions::new().write(true).create(true).truncate(false).open(&path).with_context(|| format!("cannot open {}", path.display()))
}

/// A lock in a deployment's folder, held for as long as the file is open; nothing when another process holds it.
pub fn try_lock(data: &Path, name: &str) -> anyhow::Result<Option<File>> {
    let file = open_lock(data, name)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {name}")),
    }
}

/// The nodes to speak to, and what they want to see.
#[derive(Clone)]
pub struct Nodes {
    pub addresses: Vec<String>,
    pub cluster_secret: Option<String>,
    pub link: Link,
}

impl Target {
    /// The deployment in `--data`; an error that says how to make one when there is none.
    pub fn deployment(&self) -> Result<Deployment, Failure> {
        Deployment::load(&self.data)?.ok_or_else(|| {
            Failure::usage(format!(
                "no deployment in {}: start one with `quorate dev --data {0}`, or name the nodes with --nodes",
                self.data.display()
            ))
        })
    }

    /// Has to be called inside a Tokio runtime.
    pub fn nodes(&self) -> Result<Nodes, Failure> {
        if !self.nodes.is_empty() {
            return self.nodes_at(self.nodes.clone());
        }
        self.deployment()?.nodes(&self.data)
    }

    /// Nodes at given addresses, spoken to as the flags say.
    pub fn nodes_at(&self, addresses: Vec<String>) -> Result<Nodes, Failure> {
        let files = Files::of_settings(self.tls_ca.as_deref(), self.tls_certificate.as_deref(), self.tls_key.as_deref());
        let files =
            files.map_err(|problem| Failure::usage(format!("tls_ca {problem}; as flags: --tls-ca, --tls-certificate, --tls-key")))?;
        Ok(Nodes { addresses, cluster_secret: self.cluster_secret.clone(), link: operator_link(files)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Deployment {
        // As it was written before nodes could retire.
        let old = r#"{"cluster_id": "c", "cluster_secret": "s", "session_key": "k", "receipt_key": "r", "gateway": "127.0.0.1:1",
            "nodes": [{"id": 1, "grpc": "g1", "http": "h1", "created": true}, {"id": 2, "grpc": "g2", "http": "h2", "created": true}],
            "tokens": []}"#;
        serde_json::from_str(old).expect("an older file is read")
    }

    #[test]
    fn an_id_is_never_used_twice() {
        let mut deployment = deployment();
        assert_eq!((deployment.next_id(0), deployment.next_id(7)), (3, 8));
        deployment.retire(2, Some(3));
        deployment.retire(2, None);
        assert_eq!(deployment.next_id(0), 3);
        assert_eq!((deployment.nodes.len(), deployment.retired.len(), deployment.retired[0].replaced_by), (1, 1, Some(3)));
    }

    #[test]
    fn changes_of_several_writers_all_count_and_a_lock_has_one_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        deployment().save(folder.path()).expect("saved");
        let writers = (0..8).map(|_| {
            let data = folder.path().to_path_buf();
            std::thread::spawn(move || {
                Deployment::update(&data, |deployment| {
                    let id = deployment.next_id(0);
                    let (grpc, http) = (String::new(), String::new());
                    deployment.nodes.push(NodeEntry { id, grpc, http, created: false, replaces: None });
                })
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.join().expect("no panic").expect("updated");
        }
        let ids: Vec<u64> = Deployment::load(folder.path()).expect("read").expect("there").nodes.iter().map(|node| node.id).collect();
        assert_eq!(ids, (1..=10).collect::<Vec<u64>>());

        let held = try_lock(folder.path(), "membership.lock").expect("no fault").expect("free");
        assert!(try_lock(folder.path(), "membership.lock").expect("no fault").is_none());
        drop(held);
        assert!(try_lock(folder.path(), "membership.lock").expect("no fault").is_some());
    }
}
