//! How a verb finds the deployment it is about: by the folder of a `quorate dev`, or by the nodes' addresses.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
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
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What `dev` remembers of its deployment: addresses, identities and secrets. Readable by its owner alone.
#[derive(Clone, Serialize, Deserialize)]
pub struct Deployment {
    pub cluster_id: String,
    /// Nodes and gateways show it to each other on every call.
    pub cluster_secret: String,
    /// Signs the ids of MCP sessions; 32 bytes in hex.
    pub session_key: String,
    /// Signs receipts (Ed25519); 32 bytes in hex.
    pub receipt_key: String,
    pub gateway: String,
    pub nodes: Vec<NodeEntry>,
    pub tokens: Vec<TokenEntry>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct NodeEntry {
    pub id: u64,
    pub grpc: String,
    pub http: String,
    /// Its folder was made once; an empty one from then on is a lost disk, not a new node.
    pub created: bool,
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

/// The nodes to speak to, and the secret they want to see.
pub struct Nodes {
    pub addresses: Vec<String>,
    pub cluster_secret: Option<String>,
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

    pub fn nodes(&self) -> Result<Nodes, Failure> {
        if !self.nodes.is_empty() {
            return Ok(Nodes { addresses: self.nodes.clone(), cluster_secret: self.cluster_secret.clone() });
        }
        let found = self.deployment()?;
        let addresses = found.nodes.iter().map(|node| node.grpc.clone()).collect();
        Ok(Nodes { addresses, cluster_secret: Some(found.cluster_secret) })
    }
}
