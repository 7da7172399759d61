//! Attested outputs: what was produced, bound to a receipt, with a manifest that verifies alone.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use quorate_domain::attestation::AttestOutput;
use quorate_domain::flag;
use quorate_domain::receipt::ProveReceipt;
use quorate_proof::file::{self, OutputFile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency};
use crate::registry::{Effect, Reply, Tool};

/// Bind something you produced to a receipt, and get a signed manifest that shows it to anybody.
///
/// Send the content as `content_bytes_base64`: it is hashed here and not kept. The manifest is decoded from base64, saved, and
/// checked with `quorate output-verify`, with neither server nor network. Give exactly one of `content_bytes_base64` and
/// `content_path`; this gateway reads no files of its own machine, so the latter is refused.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputAttest {
    /// The content in base64.
    content_bytes_base64: Option<String>,
    /// A path on the server: refused, since whoever calls could so learn of files that are not theirs.
    content_path: Option<String>,
    /// Its MIME type.
    #[schemars(length(max = 512))]
    content_type: Option<String>,
    /// The receipt that it is bound to: of a decision, an approval or any other, of your tenant.
    receipt_id: String,
    /// Who claims it; `cuecrux/<version>` when absent.
    #[schemars(length(max = 512))]
    claim_generator: Option<String>,
    /// Tokens (4 bytes each) that the content may have; it is refused when it has more, and never shortened.
    #[schemars(range(min = 0))]
    token_budget: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Attested {
    manifest: Manifest,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Manifest {
    /// Also the id of the attestation's own receipt.
    manifest_id: String,
    spec_version: String,
    /// The manifest file in base64: JSON, which viewers of C2PA's binary JUMBF do not read.
    manifest_jumbf_base64: String,
    /// The same for those, in base64: a file of the type `application/c2pa` beside the content, signed with the X.509 certificate of
    /// this service. With the flag `CORECRUXD_FEATURE_C2PA_X509_SIGNER` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    c2pa_manifest_base64: Option<String>,
    /// The certificate's key, by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    c2pa_signer_key_id: Option<String>,
    content_hash_blake3_hex: String,
    crown_receipt_id: String,
    signer_key_id: String,
    signer_passport: String,
    /// Post the decoded manifest there to have it checked online.
    verify_url: String,
    verify_command: String,
    ai_act_notice: String,
}

impl Tool for OutputAttest {
    const NAME: &'static str = "output_attest";
    const TITLE: &'static str = "Attest an output";
    const SCOPE: &'static str = "crux-mcp.output_attest";
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::RECEIPTS;
    const IDEMPOTENT: bool = false;
    const SWITCH: Option<flag::Definition> = Some(flag::C2PA_OUTPUT);
    type Output = Attested;

    fn example() -> Value {
        json!({ "content_bytes_base64": "aGVsbG8=", "receipt_id": "rcpt_01" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Attested>, CallError> {
        let content = match (self.content_bytes_base64, self.content_path) {
            (Some(text), None) => BASE64.decode(text.trim()).map_err(|error| {
                CallError::arguments(format!("`content_bytes_base64` is no base64: {error}"), "Use the standard alphabet with padding.")
            })?,
            (None, Some(_)) => {
                return Err(CallError::arguments(
                    "`content_path` names a file of the gateway's machine, which it does not read",
                    "Send the content as `content_bytes_base64`.",
                ));
            }
            _ => {
                return Err(CallError::arguments(
                    "give exactly one of `content_bytes_base64` and `content_path`",
                    "Send the content as `content_bytes_base64`.",
                ));
            }
        };
        if let Some(budget) = self.token_budget {
            let tokens = content.len().div_ceil(4) as u64;
            if tokens > budget {
                let problem = format!("content size {} bytes (~{tokens} tokens) exceeds token_budget {budget}", content.len());
                return Err(CallError::arguments(problem, "Allow more, or attest a smaller part."));
            }
        }
        let (flags, _) = cluster.read(ctx, flag::GetFlags {}).await?;
        let is_on = flags.flags.iter().any(|set| set.name == flag::C2PA_X509_SIGNER.name && set.value == "on");
        let signer = ctx.services.x509_signer.as_ref().filter(|_| is_on);
        if is_on && signer.is_none() {
            return Err(CallError::arguments(
                format!("`{}` is on, and this gateway has no certificate to sign with", flag::C2PA_X509_SIGNER.name),
                "An operator sets `c2pa_signer_backend` and what belongs to it on every gateway, or switches the flag off.",
            ));
        }
        let command = AttestOutput {
            receipt_id: self.receipt_id,
            content_hash: blake3::hash(&content).to_hex().to_string(),
            content_type: self.content_type,
            claim_generator: self.claim_generator.unwrap_or_else(|| concat!("cuecrux/", env!("CARGO_PKG_VERSION")).into()),
        };
        let (done, revision) = cluster.propose(ctx, command).await?;
        let prove = ProveReceipt { receipt_id: done.manifest_id.clone(), size: None };
        let (proven, _) = cluster.read_as(ctx.principal()?, prove, Consistency::AtLeast(revision), ctx.deadline).await?;
        let signer_key_id = proven.receipt.signature.as_ref().map(|(key_id, _)| key_id.clone()).unwrap_or_default();
        let keys = ctx.services.receipt_keys.with(Some(&signer_key_id), cluster, ctx.principal()?, Some(revision), ctx.deadline).await?;
        let made = OutputFile::of(proven, &keys).map_err(|detail| CallError::Fault { detail })?;
        let store = signer.map(|signer| signer.manifest(&made.claim, &content)).transpose();
        let store = store.map_err(|detail| CallError::Fault { detail })?;
        let manifest = Manifest {
            c2pa_manifest_base64: store.map(|store| BASE64.encode(store)),
            c2pa_signer_key_id: signer.map(|signer| signer.key_id().to_owned()),
            spec_version: "c2pa.v2.3".into(),
            manifest_jumbf_base64: BASE64.encode(file::text(&made)),
            content_hash_blake3_hex: made.claim.content_hash_hex,
            crown_receipt_id: made.claim.crown_receipt_id,
            signer_key_id,
            signer_passport: made.claim.signer_passport,
            verify_url: "/v1/output/verify".into(),
            verify_command: "quorate output-verify MANIFEST --content CONTENT".into(),
            ai_act_notice: format!("This content was made with the help of AI; the manifest {} says by whom.", done.manifest_id),
            manifest_id: done.manifest_id,
        };
        Ok(Reply::at(revision, Attested { manifest }))
    }
}
