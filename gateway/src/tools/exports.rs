//! Audit exports: what the team knew in a window, as a signed file that verifies alone.

use std::path::Path;

use quorate_domain::fact::{ExportFacts, GetExport, RecordExport, StartExport};
use quorate_domain::receipt::ProveReceipt;
use quorate_domain::{Refusal, flag};
use quorate_proof::bundle::{self, Contents};
use quorate_proof::file::ReceiptFile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use super::observations::instant;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

/// Save the team's facts of a window as a signed archive, which `quorate verify` checks with neither server nor network.
///
/// It holds every version stored in the window, except deleted and private ones, and names the receipts that they came from. What
/// is reserved for the service, such as decisions, is left out; `scope` in the reply shows what was in effect. The export itself
/// leaves a receipt under its `bundle_id`. Nothing is cut: an export over `token_budget` is refused.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditExportBundle {
    /// Tokens (4 bytes each) that the exported lines may have together.
    #[schemars(required, range(min = 1))]
    token_budget: Option<u64>,
    /// RFC 3339: the first instant of the window; absent: the beginning.
    since_ts: Option<String>,
    /// RFC 3339: the first instant after the window; absent, or in the future: now.
    until_ts: Option<String>,
    /// Which facts.
    scope: Option<Scope>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Scope {
    /// Only entities that begin so.
    #[schemars(length(max = 512))]
    entity_prefix: Option<String>,
    /// Also what is reserved for the service. For operators; others get their export without it.
    include_reserved: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Exported {
    /// Also the id of the export's receipt.
    bundle_id: String,
    /// Where this gateway saved the file.
    bytes_path: String,
    /// Ed25519 over the manifest, in base64.
    manifest_signature_b64: String,
    fact_count: u64,
    /// Facts that name a receipt.
    receipt_count: u64,
    /// What was in effect.
    scope: EffectiveScope,
    /// The first instant of the window, or null.
    since: Nullable<String>,
    until: String,
    events_jsonl_sha256: String,
    receipts_cbor_sha256: String,
    /// What was asked for and is not in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct EffectiveScope {
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_prefix: Option<String>,
    include_private: bool,
    include_reserved: bool,
    caller: String,
}

/// Exported lines together, at the most: they are held in memory.
const EVENTS_BYTES_MAX: u64 = 64 << 20;

impl Tool for AuditExportBundle {
    const NAME: &'static str = "audit_export_bundle";
    const TITLE: &'static str = "Export an audit bundle";
    const SCOPE: &'static str = "crux-mcp.audit_export_bundle";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::AUDIT;
    const IDEMPOTENT: bool = false;
    // Its refusal has a message of its own.
    const JUDGED_LATE: &'static [&'static str] = &["token_budget"];
    const SWITCH: Option<flag::Definition> = Some(flag::AUDIT_EXPORT);
    type Output = Exported;

    fn example() -> Value {
        json!({ "token_budget": 10000 })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Exported>, CallError> {
        let Self { token_budget, since_ts, until_ts, scope } = self;
        let Some(token_budget) = token_budget else {
            return Err(CallError::arguments("audit_export_bundle requires token_budget (QC.2)", "Add it, such as 100000."));
        };
        let Some(folder) = ctx.services.audit_export_dir.clone() else {
            let flag = flag::AUDIT_EXPORT.name.into();
            return Err(Refusal::FeatureOff { what: "exporting through a gateway without `audit_export_dir`".into(), flag }.into());
        };
        let scope = scope.unwrap_or_default();
        let asked_reserved = scope.include_reserved;
        let start = StartExport {
            since: since_ts.map(|text| instant("since_ts", &text)).transpose()?,
            until: until_ts.map(|text| instant("until_ts", &text)).transpose()?,
            entity_prefix: scope.entity_prefix,
            include_reserved: scope.include_reserved,
        };
        let (started, began) = cluster.propose(ctx, start).await?;
        let bytes_max = token_budget.saturating_mul(4).min(EVENTS_BYTES_MAX);
        let mut query = ExportFacts { since: started.since, until: started.until, scope: started.scope.clone(), cursor: None };
        let (mut facts, mut value_bytes) = (Vec::new(), 0);
        loop {
            // The window ends before that entry, so a state that holds it holds all of the window.
            let (page, _) = cluster.read_as(ctx.principal()?, query.clone(), Consistency::AtLeast(began), ctx.deadline).await?;
            value_bytes += page.facts.iter().map(|fact| fact.value.len() as u64).sum::<u64>();
            facts.extend(page.facts);
            query.cursor = page.next_cursor;
            // Values are less than their lines, so this refuses nothing that would fit, and bounds what is held.
            if query.cursor.is_none() || value_bytes > bytes_max {
                break;
            }
        }
        let contents = Contents::of(facts);
        if contents.events_bytes() > bytes_max {
            let found = contents.events_bytes().div_ceil(4);
            let problem = format!("the window holds {found} tokens or more, and {} are allowed", bytes_max / 4);
            return Err(CallError::arguments(problem, "Raise `token_budget`, or export a shorter window or a narrower `scope`."));
        }
        let bundle_id = started.bundle_id.clone();
        let record = RecordExport {
            started,
            fact_count: contents.fact_count,
            receipt_count: contents.receipt_count,
            events_jsonl_sha256: contents.events_sha256(),
            entries_sha256: contents.entries_sha256(),
            receipts_cbor_sha256: contents.receipts_sha256(),
        };
        let (recorded, revision) = cluster.propose_step(ctx, record).await?;

        let fault = |detail: String| CallError::Fault { detail };
        let (caller, at_least) = (ctx.principal()?, Consistency::AtLeast(revision));
        let (signed, _) = cluster.read_as(caller, GetExport { bundle_id: bundle_id.clone() }, at_least, ctx.deadline).await?;
        let manifest = signed.manifest.ok_or_else(|| fault("the node that served the export did not sign it".into()))?;
        let prove = ProveReceipt { receipt_id: bundle_id.clone(), size: None };
        let (proven, _) = cluster.read_as(caller, prove, Consistency::AtLeast(revision), ctx.deadline).await?;
        let key_id = proven.receipt.signature.as_ref().map(|(key_id, _)| key_id.as_str());
        let keys = ctx.services.receipt_keys.with(key_id, cluster, caller, Some(revision), ctx.deadline).await?;
        let receipt = ReceiptFile::of(proven, &keys).map_err(fault)?;
        let manifest_signature_b64 = bundle::manifest_signature(&manifest).ok_or_else(|| fault("the manifest can't be read".into()))?;
        let path = folder.join(format!("audit-{bundle_id}.tar.zst"));
        let bytes_path = path.display().to_string();
        let saved = tokio::task::spawn_blocking(move || contents.pack(&manifest, &receipt).and_then(|bytes| save(&path, &bytes))).await;
        saved
            .map_err(|error| fault(error.to_string()))?
            .map_err(|error| fault(format!("the export is recorded, and {bytes_path} can't be written: {error}")))?;

        let note = (asked_reserved && !recorded.scope.include_reserved)
            .then(|| "reserved facts were left out: `include_reserved` is for operators".to_string());
        let exported = Exported {
            bundle_id,
            bytes_path,
            manifest_signature_b64,
            fact_count: recorded.fact_count,
            receipt_count: recorded.receipt_count,
            scope: EffectiveScope {
                entity_prefix: recorded.scope.entity_prefix,
                include_private: recorded.scope.include_private,
                include_reserved: recorded.scope.include_reserved,
                caller: recorded.scope.caller,
            },
            since: Nullable(recorded.since),
            until: recorded.until,
            events_jsonl_sha256: recorded.events_jsonl_sha256,
            receipts_cbor_sha256: recorded.receipts_cbor_sha256,
            note,
        };
        Ok(Reply::at(revision, exported))
    }
}

/// Readable by its owner alone, and there whole or not at all.
fn save(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // A repetition of the same call writes the same bytes, so two at once do no harm.
    let draft = path.with_extension(format!("{}.new", uuid::Uuid::new_v4()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}
