//! `quorate import`: a tenant out of the file of another cluster, through the log, a batch an entry.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use quorate_domain::tenant::{BeginImport, GetTenantImport, ImportRows, ImportState, TenantAsFound};
use quorate_domain::{CommandKind, identity};
use quorate_gateway::call::CallError;
use quorate_gateway::cluster::Cluster;
use quorate_node::export::{self, Checked};
use serde_json::json;

use crate::admin;
use crate::backup::failed;
use crate::deployment::Target;
use crate::exit::Failure;
use crate::founding::Scratch;
use crate::output;

/// Take a tenant in that another cluster has exported.
///
/// It comes under its own name, which its receipts bind, into a cluster that has no tenant of that name. While it comes nobody
/// acts in it. An import that was interrupted goes on when it is run again with the same file; run once more, it changes nothing.
/// Make the team's tokens afterwards, with `quorate token create`.
#[derive(Args)]
pub struct Import {
    /// The file that `quorate export` made
    file: PathBuf,
    #[command(flatten)]
    pub target: Target,
    /// The Ed25519 public key (hex) that must have signed it: the receipt key of the cluster it comes from
    #[arg(long)]
    public_key: Option<String>,
    /// Only check the file, and say whether it could be taken in
    #[arg(long)]
    dry_run: bool,
}

/// An election, or a full disk, is waited out so long, batch by batch.
const BATCH_WITHIN: Duration = Duration::from_secs(60);

impl Import {
    pub async fn run(self) -> Result<(), Failure> {
        let nodes = self.target.nodes()?;
        if self.dry_run {
            let checked = self.check().await?;
            let tenant = checked.manifest.tenant.clone();
            let found = admin::read(&nodes, GetTenantImport { tenant: tenant.clone() }).await?;
            return self.tell_without_change(&checked, &found);
        }
        let mut beside = self.file.as_os_str().to_owned();
        beside.push(format!(".importing-{}", std::process::id()));
        // Where the file is there is room for as much again, or so it is hoped: it is told when there is not.
        let scratch = Scratch::make(beside.into())?;
        let (file, key, into) = (self.file.clone(), self.public_key.clone(), scratch.0.clone());
        let unpacking = tokio::task::spawn_blocking(move || export::unpack(&file, key.as_deref(), &into)).await;
        let (checked, unpacked) = unpacking.context("the file was not read")?.map_err(failed)?;
        let (tenant, import_id) = (checked.manifest.tenant.clone(), checked.id.clone());
        let cluster = admin::cluster(&nodes)?;
        let begin = BeginImport { tenant: tenant.clone(), import_id: import_id.clone(), origin: checked.origin() };
        let begun = propose(&cluster, begin).await?;
        let mut state = begun.state;
        let went_on_at = state.next_batch;
        let changed = !state.done;
        for (batch, rows) in (0..).zip(unpacked.batches().map_err(failed)?) {
            let rows = rows.map_err(failed)?;
            if state.done || batch < went_on_at {
                continue;
            }
            let import = ImportRows { tenant: tenant.clone(), import_id: import_id.clone(), batch, rows };
            if let Some(hash) = import.blob() {
                let bytes = unpacked.blob(&hash).map_err(failed)?;
                cluster.put_blob(hash, bytes, Instant::now() + BATCH_WITHIN).await.map_err(undone)?;
            }
            state = propose(&cluster, import).await?.state;
        }
        if !state.done {
            return Err(Failure::failed(format!("the file ends after batch {}, and the tenant is not whole", state.next_batch)));
        }
        self.tell(&checked, &state, changed, went_on_at);
        Ok(())
    }

    async fn check(&self) -> Result<Checked, Failure> {
        let (file, key) = (self.file.clone(), self.public_key.clone());
        let checked = tokio::task::spawn_blocking(move || export::check(&file, key.as_deref())).await;
        checked.context("the file was not read")?.map_err(failed)
    }

    fn tell_without_change(&self, checked: &Checked, found: &TenantAsFound) -> Result<(), Failure> {
        let tenant = &checked.manifest.tenant;
        let known = found.import.as_ref().filter(|import| import.import_id == checked.id);
        let says = match known {
            Some(import) if import.ended_at.is_some() => "is here already, from this file; would change nothing".into(),
            Some(import) => format!("has come up to batch {} of {}; would go on there", import.next_batch, checked.manifest.batches),
            None if found.is_there => {
                return Err(Failure::failed(format!(
                    "the tenant `{tenant}` is here already, and an import never writes over it: import it into a cluster that has none"
                )));
            }
            None => format!("is not here; would take {} rows in", checked.manifest.rows),
        };
        let next = known.map_or(0, |import| import.next_batch);
        let json = self.json(checked, json!({ "changed": false, "dry_run": true, "next_batch": next }));
        output::print(self.target.json, &json, &format!("the file is whole; the tenant `{tenant}` {says}"));
        Ok(())
    }

    fn tell(&self, checked: &Checked, state: &ImportState, changed: bool, went_on_at: u64) {
        let tenant = &checked.manifest.tenant;
        let told = json!({
            "changed": changed, "dry_run": false, "next_batch": state.next_batch, "went_on_at_batch": went_on_at, "rows": state.rows,
        });
        let text = match changed {
            true => format!(
                "the tenant `{tenant}` is here as it was at revision {} of cluster {}, {} rows. Leases that were held have ended, and \
                 tokens are not among them: make the team's with `quorate token create --tenant {tenant} --passport NAME`",
                checked.manifest.revision, checked.manifest.cluster_id, state.rows
            ),
            false => format!("the tenant `{tenant}` was imported from this file already; nothing was changed"),
        };
        output::print(self.target.json, &self.json(checked, told), &text);
    }

    fn json(&self, checked: &Checked, told: serde_json::Value) -> serde_json::Value {
        let manifest = &checked.manifest;
        let mut json = json!({
            "ok": true, "tenant": manifest.tenant, "export_id": checked.id, "from_cluster_id": manifest.cluster_id,
            "from_revision": manifest.revision, "key_id": checked.seal.key_id, "batches": manifest.batches, "left_out": manifest.left_out,
        });
        if let (Some(json), serde_json::Value::Object(told)) = (json.as_object_mut(), told) {
            json.extend(told);
        }
        json
    }
}

fn undone(error: CallError) -> Failure {
    match error {
        CallError::Refused(refusal) => Failure::failed(format!("{refusal}. {}", refusal.next_step())),
        error => Failure::unavailable(format!("{error}. Run it again with the same file: it goes on where it stopped")),
    }
}

/// Proposes until it is decided or its time is over. Each command is one that has its effect once, whoever sends it again.
async fn propose<C: CommandKind>(cluster: &Cluster, command: C) -> Result<C::Output, Failure> {
    let decided = cluster.propose_for(&identity::system(), command, Instant::now() + BATCH_WITHIN).await;
    decided.map(|(output, _)| output).map_err(undone)
}
