//! `quorate force-new-cluster`: the last way out, when a majority of the disks is gone for good.
//!
//! Of the folders that are left, the one whose log goes furthest begins a new cluster: a new lineage under new node ids and a
//! new cluster secret, which the old nodes are no part of. All is made beside the old folders, which stay as they are, and it
//! counts from the moment `deployment.json` is replaced.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use quorate_node::found::{self, Survivor};
use serde_json::json;

use crate::deployment::{DATA_DEFAULT, Deployment, try_lock};
use crate::exit::Failure;
use crate::founding::{self, NODES_MAX, Scratch};
use crate::{dev, output};

/// Begin a new cluster from the best survivor, when a majority of the nodes has lost its disk for good.
///
/// What only the lost nodes had is lost. With a majority of the folders there is nothing to force: start them. With a backup
/// that is newer than the survivor, restore that instead.
#[derive(Args)]
pub struct ForceNewCluster {
    #[command(flatten)]
    pub target: ForceTarget,
    /// Say that you accept it, in these words: "lose what only the lost nodes had"
    #[arg(long, value_name = "WORDS")]
    force: Option<String>,
    /// How many nodes the new cluster begins with
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=NODES_MAX))]
    nodes: u64,
    /// Only say which survivor is the best and what would be done; changes nothing and needs no words
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct ForceTarget {
    /// Folder of the deployment; its `quorate dev` must be stopped
    #[arg(long, env = "QUORATE_DATA", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const WORDS: &str = "lose what only the lost nodes had";

impl ForceNewCluster {
    pub async fn run(self) -> Result<(), Failure> {
        tokio::task::spawn_blocking(move || self.force()).await.context("it did not end")?
    }

    fn force(self) -> Result<(), Failure> {
        let data = &self.target.data;
        let Some(mut deployment) = Deployment::load(data)? else {
            return Err(Failure::usage(format!("no deployment in {}", data.display())));
        };
        let _lock = try_lock(data, "dev.lock")?
            .ok_or_else(|| Failure::failed(format!("a `quorate dev` runs on {}: stop it first. Nothing was changed", data.display())))?;
        let scratch = Scratch::make(data.join(format!(".forcing-{}", std::process::id())))?;
        let (survivors, lost) = look(data, &deployment, &scratch.0);
        let known = deployment.nodes.len();
        let lost_text = lost.iter().map(|(id, why)| format!("node {id}: {why}")).collect::<Vec<_>>().join("; ");
        if survivors.len() * 2 > known {
            return Err(Failure::failed(format!(
                "{} of {known} nodes have their folders, which is a majority: nothing needs to be forced. Start them with \
                 `quorate dev --data {}`, then replace the lost ones with `quorate replace ID`. Nothing was changed",
                survivors.len(),
                data.display()
            )));
        }
        let Some(best) = survivors.iter().max_by_key(|survivor| survivor.last_log) else {
            return Err(Failure::failed(format!("no node has survived ({lost_text}): restore a backup. Nothing was changed")));
        };
        let (id, (term, index)) = (best.identity.node_id, best.last_log);
        if self.dry_run || self.force.as_deref() != Some(WORDS) {
            let text = format!(
                "node {id} survived with the log up to {index} of term {term} ({lost_text}); would begin a new cluster of {} nodes from it",
                self.nodes
            );
            if !self.dry_run {
                return Err(Failure::failed(format!("{text}. To do it, add --force \"{WORDS}\". Nothing was changed")));
            }
            let json = json!({"ok": true, "changed": false, "dry_run": true, "survivor": id, "last_index": index, "last_term": term});
            output::print(self.target.json, &json, &text);
            return Ok(());
        }

        let refused =
            |error: found::FoundError| Failure::failed(format!("node {id} can't begin a new cluster: {error}. Nothing was changed"));
        let snapshot = found::recover(&dev::node_folder(data, id), &scratch.0.join("recovered")).map_err(refused)?;
        let first = deployment.next_id(0);
        let old: Vec<u64> = deployment.nodes.iter().map(|node| node.id).collect();
        old.iter().for_each(|id| deployment.retire(*id, None));
        let lineage = best.identity.lineage.parse().unwrap_or(deployment.lineage);
        founding::renew(&mut deployment, founding::new_lineage(lineage), founding::nodes(first..first + self.nodes)?);
        let begun = founding::make(&deployment, &scratch.0, &snapshot).map_err(refused)?;
        for node in &deployment.nodes {
            let folder = dev::node_folder(data, node.id);
            // Only a run of this verb that was killed can have left it: the id is in nobody's list.
            if folder.exists() {
                std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
            }
            std::fs::rename(dev::node_folder(&scratch.0, node.id), &folder)
                .with_context(|| format!("cannot put a node at {}", folder.display()))?;
        }
        std::fs::File::open(data).and_then(|folder| folder.sync_all()).context("cannot sync the folder")?;
        deployment.save(data)?;
        let mut json = founding::told(&deployment, &begun);
        if let Some(json) = json.as_object_mut() {
            let of_this = json!({"ok": true, "changed": true, "dry_run": false, "survivor": id, "last_index": index, "retired": old});
            json.extend(of_this.as_object().cloned().unwrap_or_default());
        }
        let text = format!(
            "a new cluster begins from node {id} at revision {}, lineage {}; start it with `quorate dev --data {}`. The old folders \
             are still there and can go once you are sure",
            begun.cut.through,
            deployment.lineage,
            data.display()
        );
        output::print(self.target.json, &json, &text);
        Ok(())
    }
}

/// Who has survived, and what is wrong with the others.
fn look(data: &Path, deployment: &Deployment, scratch: &Path) -> (Vec<Survivor>, Vec<(u64, String)>) {
    let (mut survivors, mut lost) = (Vec::new(), Vec::new());
    for node in &deployment.nodes {
        match found::survivor(&dev::node_folder(data, node.id), scratch) {
            Ok(survivor) if survivor.identity.cluster_id == deployment.cluster_id => survivors.push(survivor),
            Ok(survivor) => lost.push((node.id, format!("its folder is of cluster {}", survivor.identity.cluster_id))),
            Err(error) => lost.push((node.id, error.to_string())),
        }
    }
    (survivors, lost)
}
