//! `quorate quota`: how much a tenant may store.

use clap::{Args, Subcommand};
use quorate_domain::quota::{ListQuotas, QuotaView, SetQuota};
use serde_json::json;

use crate::admin;
use crate::deployment::Target;
use crate::exit::Failure;
use crate::output;

#[derive(Subcommand)]
pub enum Quota {
    Set(Set),
    Clear(Clear),
    List(List),
}

/// Say how much a tenant may store; what is not named here is not limited.
///
/// At its quota the tenant's writes that grow are refused with OVER_QUOTA, which names quota and usage; reads, deletes, renewals,
/// releases and operators' acts go on. Rows that are there already are counted in the background.
#[derive(Args)]
pub struct Set {
    /// The tenant
    tenant: String,
    /// Records, receipts among them; every version of a fact is one
    #[arg(long, value_name = "N", required_unless_present = "bytes", value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,
    /// Bytes of them with their keys, and of the content of artefacts, on each node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    bytes: Option<u64>,
    #[command(flatten)]
    target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Take a tenant's quota away.
#[derive(Args)]
pub struct Clear {
    /// The tenant
    tenant: String,
    #[command(flatten)]
    target: Target,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// List quotas, with what is used of each.
#[derive(Args)]
pub struct List {
    #[command(flatten)]
    target: Target,
}

impl Quota {
    pub fn json(&self) -> bool {
        match self {
            Quota::Set(set) => set.target.json,
            Quota::Clear(clear) => clear.target.json,
            Quota::List(list) => list.target.json,
        }
    }

    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Quota::Set(Set { tenant, records, bytes, target, dry_run }) => {
                change(&target, SetQuota { tenant, records_max: records, bytes_max: bytes }, dry_run).await
            }
            Quota::Clear(Clear { tenant, target, dry_run }) => {
                change(&target, SetQuota { tenant, records_max: None, bytes_max: None }, dry_run).await
            }
            Quota::List(List { target }) => {
                let quotas = admin::read(&target.nodes()?, ListQuotas {}).await?.quotas;
                let text = match quotas.is_empty() {
                    true => "no tenant has a quota".into(),
                    false => quotas.iter().map(line).collect::<Vec<_>>().join("\n"),
                };
                output::print(target.json, &json!({ "ok": true, "quotas": quotas.iter().map(shown).collect::<Vec<_>>() }), &text);
                Ok(())
            }
        }
    }
}

async fn change(target: &Target, set: SetQuota, dry_run: bool) -> Result<(), Failure> {
    let nodes = target.nodes()?;
    let (tenant, wanted) = (set.tenant.clone(), (set.records_max, set.bytes_max));
    let changed = match dry_run {
        false => admin::propose(&nodes, set).await?.changed,
        true => {
            let known = admin::read(&nodes, ListQuotas {}).await?.quotas.into_iter().find(|known| known.tenant == tenant);
            known.map_or((None, None), |known| (known.records_max, known.bytes_max)) != wanted
        }
    };
    let says = match (dry_run, changed) {
        (true, true) => "would be set",
        (true, false) => "is so already; would change nothing",
        (false, true) => "is set",
        (false, false) => "was so already; nothing was changed",
    };
    let json = json!({
        "ok": true, "tenant": tenant, "records_max": wanted.0, "bytes_max": wanted.1, "changed": changed && !dry_run, "would_change": changed,
        "dry_run": dry_run,
    });
    output::print(target.json, &json, &format!("the quota of `{tenant}` ({}) {says}", limits(wanted.0, wanted.1)));
    Ok(())
}

fn limits(records: Option<u64>, bytes: Option<u64>) -> String {
    match (records, bytes) {
        (None, None) => "none".into(),
        (Some(records), None) => format!("{records} records"),
        (None, Some(bytes)) => format!("{bytes} bytes"),
        (Some(records), Some(bytes)) => format!("{records} records, {bytes} bytes"),
    }
}

fn shown(view: &QuotaView) -> serde_json::Value {
    json!({
        "tenant": view.tenant, "records_max": view.records_max, "bytes_max": view.bytes_max, "records": view.records, "bytes": view.bytes,
        "is_counted": view.is_counted, "set_at_unix_ms": view.set_at,
    })
}

fn line(view: &QuotaView) -> String {
    let counting = if view.is_counted { "" } else { ", still being counted" };
    let quota = limits(view.records_max, view.bytes_max);
    format!("{}: {} records and {} bytes of {quota}{counting}", view.tenant, view.records, view.bytes)
}
