//! `quorate key`: the ring of public keys that receipts and heads were ever signed with, and which of them signs.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use quorate_domain::key_ring::{AddCosigner, AddReceiptKey, Cosigner, ListReceiptKeys, ReceiptKey, ReceiptKeys, RotateReceiptKey};
use quorate_proto::cluster::{KeysRequest, KeysResponse};
use serde_json::{Value, json};
use tonic::Request;

use crate::deployment::{Deployment, Nodes, Target};
use crate::exit::Failure;
use crate::status::{NodeStatus, connect_operator, survey};
use crate::{admin, dev, output};

/// How long one question to a node may take.
const ASK: Duration = Duration::from_secs(10);

#[derive(Subcommand)]
pub enum Key {
    /// List the public keys of receipts, old ones included, and those of the nodes
    List(List),
    /// Add a public key to the ring; nothing takes one out
    Add(Add),
    /// Have the nodes sign with another key from now on
    Rotate(Rotate),
    /// Add the nodes' own keys to the ring, with which they cosign heads
    Enroll(Enroll),
}

/// List the public keys of receipts, old ones included, and those with which nodes cosign heads.
///
/// With --json it is what `quorate verify --ring` reads.
#[derive(Args)]
pub struct List {
    #[command(flatten)]
    target: Target,
}

/// Add a public key to the ring; nothing takes one out.
#[derive(Args)]
pub struct Add {
    /// Ed25519, 64 hex digits
    public_key: String,
    #[command(flatten)]
    target: Target,
}

/// Have the nodes sign receipts, heads and exports with another key from now on, without a restart.
///
/// Every node has to hold its private half first: add it to the `receipt_keys_file` of each. For a deployment made by `quorate dev`,
/// leave the key out: one is made and put there. What was saved before goes on to verify with the old key, which stays in the ring, and
/// both keys sign that the one follows the other: who trusts either can go on to the other. Running it again changes nothing.
#[derive(Args)]
pub struct Rotate {
    /// Public half of the key that is to sign: Ed25519, 64 hex digits
    public_key: Option<String>,
    /// Only check that all nodes hold it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    target: Target,
}

/// Add the nodes' own keys to the ring, so that their cosignatures of heads count. Run it after a node joined; running it again
/// changes nothing.
#[derive(Args)]
pub struct Enroll {
    /// Only tell which keys are missing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    target: Target,
}

impl Key {
    pub fn json(&self) -> bool {
        match self {
            Key::List(List { target })
            | Key::Add(Add { target, .. })
            | Key::Rotate(Rotate { target, .. })
            | Key::Enroll(Enroll { target, .. }) => target.json,
        }
    }

    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Key::List(List { target }) => {
                let ring = admin::read(&target.nodes()?, ListReceiptKeys {}).await?;
                output::print(target.json, &json!(ring), &ring_text(&ring));
                Ok(())
            }
            Key::Add(Add { public_key, target }) => {
                let key = admin::propose(&target.nodes()?, AddReceiptKey { public_key }).await?;
                output::print(target.json, &json!(key), &format!("key {} is in the ring", key.key_id));
                Ok(())
            }
            Key::Rotate(rotate) => rotate.run().await,
            Key::Enroll(enroll) => enroll.run().await,
        }
    }
}

fn ring_text(ring: &ReceiptKeys) -> String {
    let key = |key: &ReceiptKey| {
        let signs = if ring.signing.as_ref() == Some(&key.public_key) { ", signs now" } else { "" };
        let after = key.succession.as_ref().map(|after| format!(", signs from revision {}", after.signs_from.0)).unwrap_or_default();
        format!("{} {} since {}{after}{signs}", key.key_id, key.public_key, key.added_at.to_rfc3339())
    };
    let node = |node: &Cosigner| format!("{} {} since {}", node.name, node.public_key, node.added_at.to_rfc3339());
    ring.keys.iter().map(key).chain(ring.cosigners.iter().map(node)).collect::<Vec<_>>().join("\n")
}

/// What every member answers of its keys. One that does not answer is an error: it would sign with another key than the others.
async fn ask_all(nodes: &Nodes, successor: &str) -> Result<Vec<(NodeStatus, Result<KeysResponse, String>)>, Failure> {
    let members = survey(nodes).await.nodes.into_iter().filter(|node| node.role != "removed");
    let mut found = Vec::new();
    for node in members {
        let answer = ask(&node, nodes, successor).await;
        found.push((node, answer));
    }
    match found.is_empty() {
        true => Err(Failure::unavailable("no node answers")),
        false => Ok(found),
    }
}

async fn ask(node: &NodeStatus, nodes: &Nodes, successor: &str) -> Result<KeysResponse, String> {
    let mut client = connect_operator(&node.grpc, nodes).await.map_err(|failure| failure.message)?;
    let mut request = Request::new(KeysRequest { successor: successor.into() });
    request.set_timeout(ASK);
    client.keys(request).await.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
}

// ------------------------------------------------------------------ rotation

impl Rotate {
    async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let ring = admin::read(&nodes, ListReceiptKeys {}).await?;
        let public_key = match &self.public_key {
            Some(text) => text.trim().to_lowercase(),
            None => match self.make(&ring)? {
                Some(public_key) => public_key,
                None => {
                    let text = "would make a new receipt key, bring it to all nodes, and have them sign with it";
                    output::print(self.target.json, &json!({"ok": true, "changed": false, "dry_run": true}), text);
                    return Ok(());
                }
            },
        };
        if ring.signing.as_ref() == Some(&public_key) {
            return self.tell(&nodes, &public_key, false).await;
        }
        let answers = ask_all(&nodes, &public_key).await?;
        let mut words = None;
        let mut missing = Vec::new();
        for (node, answer) in answers {
            match answer {
                Err(why) => missing.push(format!("node {} did not say whether it holds the key ({why})", node.id)),
                Ok(keys) if keys.signing == public_key => return self.tell(&nodes, &public_key, false).await,
                Ok(keys) if !keys.held.contains(&public_key) => missing.push(format!("node {} does not hold the key", node.id)),
                Ok(keys) => words = Some(keys),
            }
        }
        if !missing.is_empty() {
            return Err(Failure::failed(format!(
                "{}. Nothing was changed: put the private half into the `receipt_keys_file` of every node, then run this again",
                missing.join("; ")
            )));
        }
        let Some(keys) = words else { return Err(Failure::unavailable("no node answers")) };
        if self.dry_run {
            let json = json!({"ok": true, "changed": false, "dry_run": true, "public_key": public_key, "predecessor": keys.signing});
            output::print(
                self.target.json,
                &json,
                &format!("all nodes hold {public_key}; they would sign with it instead of {}", keys.signing),
            );
            return Ok(());
        }
        let KeysResponse { signing: predecessor, by_predecessor, by_successor, .. } = keys;
        let command = RotateReceiptKey { public_key: public_key.clone(), predecessor, by_predecessor, by_successor };
        let done = admin::propose(&nodes, command).await?;
        self.tell(&nodes, &public_key, done.changed).await
    }

    /// For a deployment of `dev`: a key that its nodes find, made now or by an earlier run that did not come to its end; `None` for a
    /// dry run that would make one.
    fn make(&self, ring: &ReceiptKeys) -> Result<Option<String>, Failure> {
        if !self.target.nodes.is_empty() {
            return Err(Failure::usage(
                "name the public key that is to sign, and put its private half into the `receipt_keys_file` of every node first",
            ));
        }
        let deployment = self.target.deployment()?;
        let path = dev::receipt_keys_file(&self.target.data);
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        let current = quorate_proof::public_key(&deployment.receipt_key).map_err(Failure::config)?;
        for secret in known.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let public = quorate_proof::public_key(secret).map_err(Failure::config)?;
            let is_new = public != current && !ring.keys.iter().any(|key| key.public_key == public);
            let is_unfinished = ring.signing.as_ref() == Some(&public) && public != current;
            if is_new || is_unfinished {
                return Ok(Some(public));
            }
        }
        if self.dry_run {
            return Ok(None);
        }
        let fresh = dev::secret();
        // The one before stays: a node that is behind still signs with it.
        let text: String = known.lines().chain([deployment.receipt_key.as_str(), fresh.as_str()]).map(|line| format!("{line}\n")).collect();
        write_secret(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Some(quorate_proof::public_key(&fresh).map_err(Failure::config)?))
    }

    /// The last step for a deployment of `dev`: its description names the key, so that its next start and its backups have it.
    async fn tell(&self, nodes: &Nodes, public_key: &str, changed: bool) -> Result<(), Failure> {
        if self.target.nodes.is_empty() && !self.dry_run {
            let data = &self.target.data;
            let known = std::fs::read_to_string(dev::receipt_keys_file(data)).unwrap_or_default();
            let secret =
                known.lines().map(str::trim).find(|secret| quorate_proof::public_key(secret).is_ok_and(|public| public == public_key));
            if let Some(secret) = secret {
                Deployment::update(data, |deployment| deployment.receipt_key = secret.into())?;
            }
        }
        let ring = admin::read(nodes, ListReceiptKeys {}).await?;
        let key = ring.keys.iter().find(|key| key.public_key == public_key);
        let json = json!({"ok": true, "changed": changed, "dry_run": self.dry_run, "key": key});
        let text = match changed {
            true => format!("nodes sign with {public_key} from now on; what was saved before verifies with the keys of `quorate key list`"),
            false => format!("nodes sign with {public_key} already"),
        };
        output::print(self.target.json, &json, &text);
        Ok(())
    }
}

/// Its owner's alone, there whole or not at all.
fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    let draft = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}

// ------------------------------------------------------------------ the nodes' keys

impl Enroll {
    async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        let found = enroll(&nodes, self.dry_run).await?;
        let text: Vec<String> =
            found.iter().map(|(id, state)| format!("node {id} {}", state["state"].as_str().unwrap_or_default())).collect();
        let is_whole = found.values().all(|state| state["state"] != "unreachable");
        let rows: Vec<&Value> = found.values().collect();
        output::print(self.target.json, &json!({"ok": is_whole, "dry_run": self.dry_run, "nodes": rows}), &text.join("\n"));
        match is_whole {
            true => Ok(()),
            false => Err(Failure::unavailable("a node did not answer; run this again when it does")),
        }
    }
}

/// Brings the keys of all nodes that answer into the ring; tells of each node what became of it.
pub async fn enroll(nodes: &Nodes, dry_run: bool) -> Result<BTreeMap<u64, Value>, Failure> {
    let ring = admin::read(nodes, ListReceiptKeys {}).await?;
    let mut found = BTreeMap::new();
    for (node, answer) in ask_all(nodes, "").await? {
        let row = match answer {
            Err(why) => json!({"id": node.id, "state": "unreachable", "detail": why}),
            Ok(keys) if keys.cosigner_key.is_empty() => json!({"id": node.id, "state": "without a key"}),
            Ok(keys) => {
                let is_known = ring.cosigners.iter().any(|known| known.public_key == keys.cosigner_key);
                let state = match (is_known, dry_run) {
                    (true, _) => "enrolled before",
                    (false, true) => "would be enrolled",
                    (false, false) => "enrolled",
                };
                let row = json!({"id": node.id, "state": state, "name": keys.cosigner_name, "public_key": keys.cosigner_key});
                if !is_known && !dry_run {
                    let command = AddCosigner { node_id: keys.node_id, name: keys.cosigner_name, public_key: keys.cosigner_key };
                    admin::propose(nodes, command).await?;
                }
                row
            }
        };
        found.insert(node.id, row);
    }
    Ok(found)
}
