//! `quorate restore`: a new deployment's folder out of a backup, with nobody's help.
//!
//! Everything is made in a folder beside the target, which gets its name last: a restore is there whole or not at all. It
//! begins a new lineage ([`quorate_domain::lineage`]), under a new cluster secret, so that nothing of the old cluster can
//! take part, or be taken for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use quorate_node::backup::{self, Checked};
use quorate_proto::cluster::Member;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::deployment::{DATA_DEFAULT, Deployment, NodeEntry};
use crate::exit::Failure;
use crate::founding::{self, NODES_MAX, Scratch};
use crate::transfer::parse_member;
use crate::{dev, output};

/// Make a deployment's folder out of a backup, for `quorate dev --data DIR` to start.
///
/// Needs no server. Reads all of the backup first and names the first file that is damaged. Never writes into a folder that
/// holds anything, except to say that this very restore was done there already.
#[derive(Args)]
pub struct Restore {
    /// The backup
    file: PathBuf,
    #[command(flatten)]
    pub target: RestoreTarget,
    /// How many nodes the new cluster begins with
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=NODES_MAX))]
    nodes: u64,
    /// A node as ID=GRPC,HTTP such as 1=127.0.0.1:7401,127.0.0.1:7501, one for each: for nodes that you run yourself
    #[arg(long = "voter", value_parser = parse_member, conflicts_with = "nodes")]
    voters: Vec<Member>,
    /// The Ed25519 public key (hex) that must have signed the backup
    #[arg(long)]
    public_key: Option<String>,
    /// For a backup without secrets: a file with the receipt key it was signed by, 32 bytes in hex
    #[arg(long)]
    receipt_key_file: Option<PathBuf>,
    /// Only check the backup and the folder, and say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct RestoreTarget {
    /// Folder of the deployment that is made
    #[arg(long, env = "QUORATE_DATA", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Which restore made a folder: stands in it as `restore.json`.
#[derive(Serialize, Deserialize)]
struct Record {
    backup_id: String,
    restored_at_unix_ms: u64,
    #[serde(flatten)]
    told: serde_json::Value,
}

const RECORD: &str = "restore.json";

impl Restore {
    pub async fn run(self) -> Result<(), Failure> {
        tokio::task::spawn_blocking(move || self.restore()).await.context("the restore did not end")?
    }

    fn restore(self) -> Result<(), Failure> {
        let data = &self.target.data;
        let there = look(data)?;
        if let There::Other = there {
            return Err(Failure::failed(format!(
                "{} holds something already, and a restore never writes over it: name an empty or a new folder",
                data.display()
            )));
        }
        if self.dry_run || matches!(there, There::Restored(_)) {
            let checked = backup::check(&self.file, self.public_key.as_deref()).map_err(crate::backup::failed)?;
            return self.tell_without_change(&checked, there);
        }
        let nodes = self.nodes()?;
        let parent = data.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        let name = data.file_name().ok_or_else(|| Failure::usage(format!("{} names no folder", data.display())))?;
        // Beside the target, since the last step renames it.
        let scratch = Scratch::make(parent.join(format!(".{}.restoring-{}", name.display(), std::process::id())))?;
        let unpacked = scratch.0.join("unpacked");
        let (checked, snapshot) = backup::unpack(&self.file, self.public_key.as_deref(), &unpacked).map_err(crate::backup::failed)?;
        let mut deployment = self.deployment(&checked)?;
        founding::renew(&mut deployment, founding::new_lineage(checked.manifest.lineage), nodes);
        deployment.retired = Vec::new();
        deployment.gateway = founding::free_or_other(&deployment.gateway)?;
        let begun = founding::make(&deployment, &scratch.0, &snapshot)
            .map_err(|error| Failure::failed(format!("the state of the backup can't be used: {error}")))?;
        drop(snapshot);
        std::fs::remove_dir_all(&unpacked).context("cannot remove what was unpacked")?;
        let record = Record {
            backup_id: checked.id.clone(),
            restored_at_unix_ms: founding::now_unix_ms(),
            told: founding::told(&deployment, &begun),
        };
        let bytes = serde_json::to_vec_pretty(&record).context("cannot encode the record")?;
        std::fs::write(scratch.0.join(RECORD), bytes).with_context(|| format!("cannot write {RECORD}"))?;
        deployment.save(&scratch.0)?;
        std::fs::File::open(scratch.0.join(RECORD)).and_then(|file| file.sync_all()).with_context(|| format!("cannot sync {RECORD}"))?;
        // An empty folder of that name makes way; one that was filled meanwhile does not.
        std::fs::rename(&scratch.0, data).with_context(|| format!("cannot put the deployment at {}", data.display()))?;
        std::fs::File::open(parent).and_then(|folder| folder.sync_all()).context("cannot sync the folder")?;
        self.tell(&checked, &record, true);
        Ok(())
    }

    /// The nodes of the new cluster: as they were named, or at addresses that are free here.
    fn nodes(&self) -> Result<Vec<NodeEntry>, Failure> {
        if self.voters.is_empty() {
            return founding::nodes(1..=self.nodes);
        }
        let ids: BTreeSet<u64> = self.voters.iter().map(|voter| voter.id).collect();
        if ids.len() < self.voters.len() || ids.len() as u64 > NODES_MAX || ids.contains(&0) {
            return Err(Failure::usage(format!("name 1 to {NODES_MAX} voters, each with an id of its own, 1 or more")));
        }
        let entry = |voter: &Member| {
            let (grpc, http) = (voter.grpc.clone(), voter.http.clone());
            NodeEntry { id: voter.id, grpc, http, created: true, replaces: None }
        };
        Ok(self.voters.iter().map(entry).collect())
    }

    /// The deployment of the backup, or one with fresh secrets and the key that receipts were signed by.
    fn deployment(&self, checked: &Checked) -> Result<Deployment, Failure> {
        let deployment = match (&checked.deployment, &self.receipt_key_file) {
            (Some(_), Some(_)) => return Err(Failure::usage("this backup holds its receipt key; leave --receipt-key-file out")),
            (Some(bytes), None) => serde_json::from_slice(bytes)
                .map_err(|error| Failure::failed(format!("`{}` of the backup can't be read: {error}", backup::DEPLOYMENT)))?,
            (None, Some(file)) => {
                let key = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
                let mut fresh = dev::plan(0, false)?;
                fresh.cluster_id = checked.manifest.cluster_id.clone();
                fresh.receipt_key = key.trim().into();
                // Those of the old deployment are in the state, as hashes, and stay good; these would be more than there were.
                fresh.tokens = Vec::new();
                fresh
            }
            (None, None) => {
                return Err(Failure::usage(
                    "this backup was made without secrets: name the file of the cluster's receipt key with --receipt-key-file, \
                     or receipts would be signed by another key from now on",
                ));
            }
        };
        let public = quorate_proof::public_key(&deployment.receipt_key).map_err(Failure::failed)?;
        if public != checked.seal.public_key {
            return Err(Failure::failed(format!(
                "the receipt key is of {public}, and the backup was signed by {}: it is another cluster's",
                checked.seal.public_key
            )));
        }
        Ok(deployment)
    }

    fn tell_without_change(&self, checked: &Checked, there: There) -> Result<(), Failure> {
        match there {
            There::Restored(record) if record.backup_id == checked.id => {
                self.tell(checked, &record, false);
                Ok(())
            }
            There::Restored(_) => Err(Failure::failed(format!(
                "{} was restored from another backup, and a restore never writes over it: name an empty or a new folder",
                self.target.data.display()
            ))),
            _ => {
                if checked.deployment.is_none() || self.receipt_key_file.is_some() {
                    self.deployment(checked)?;
                }
                let json = json!({
                    "ok": true, "changed": false, "dry_run": true, "data": self.target.data.display().to_string(),
                    "backup_id": checked.id, "kept_revision": checked.manifest.revision, "key_id": checked.seal.key_id,
                });
                let text = format!(
                    "the backup is whole; would make {} nodes in {} from revision {}",
                    self.nodes,
                    self.target.data.display(),
                    checked.manifest.revision
                );
                output::print(self.target.json, &json, &text);
                Ok(())
            }
        }
    }

    fn tell(&self, checked: &Checked, record: &Record, changed: bool) {
        let data = self.target.data.display();
        let mut json = json!({
            "ok": true, "changed": changed, "dry_run": self.dry_run, "data": data.to_string(), "backup_id": record.backup_id,
            "key_id": checked.seal.key_id,
        });
        if let (Some(json), Some(told)) = (json.as_object_mut(), record.told.as_object()) {
            json.extend(told.clone());
        }
        let text = match changed {
            true => format!(
                "revision {} is restored in {data}, lineage {}; start it with `quorate dev --data {data}`. Keep the old cluster off: \
                 its fencing tokens are refused from now on, and holders of cards learn their new ones by punching in again",
                checked.manifest.revision, record.told["lineage"]
            ),
            false => format!("{data} was restored from this backup already; nothing was changed"),
        };
        output::print(self.target.json, &json, &text);
    }
}

/// What stands at the target.
enum There {
    Nothing,
    Restored(Record),
    Other,
}

fn look(data: &Path) -> Result<There, Failure> {
    let is_empty = match std::fs::read_dir(data) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(Failure::failed(format!("cannot look into {}: {error}", data.display()))),
    };
    if is_empty {
        return Ok(There::Nothing);
    }
    let record = std::fs::read(data.join(RECORD)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok(record.map_or(There::Other, There::Restored))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_folder_or_the_same_restore_is_no_obstacle() {
        let home = tempfile::tempdir().expect("a folder");
        let data = home.path().join("data");
        assert!(matches!(look(&data), Ok(There::Nothing)));
        std::fs::create_dir(&data).expect("made");
        assert!(matches!(look(&data), Ok(There::Nothing)));
        std::fs::write(data.join("deployment.json"), "{}").expect("written");
        assert!(matches!(look(&data), Ok(There::Other)));
        let record = Record { backup_id: "b".into(), restored_at_unix_ms: 1, told: json!({"lineage": 7, "kept_revision": 40}) };
        std::fs::write(data.join(RECORD), serde_json::to_vec(&record).expect("encoded")).expect("written");
        let Ok(There::Restored(found)) = look(&data) else { panic!("a record of a restore") };
        assert_eq!((found.backup_id.as_str(), &found.told["kept_revision"]), ("b", &json!(40)));
    }

    #[test]
    fn a_lineage_is_new_and_a_json_number_holds_it() {
        let one = founding::new_lineage(0);
        assert!(one < 1 << 53);
        assert_eq!(founding::new_lineage(1 << 52), (1 << 52) + 1);
    }
}
