//! Receipts: the proof of a decision, checked.

use ed25519_dalek::{Signature, VerifyingKey};
use quorate_domain::receipt::{self, GetReceipt, ReceiptView};
use quorate_domain::refusal::shown;
use quorate_domain::{Refusal, codec, flag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;

/// What a token has to hold to see receipts and their log.
pub const SCOPE: &str = "crux-mcp.receipt_verify";

fn own_tenant() -> String {
    "default".into()
}

/// Check one receipt: its stored bytes, its place in the tenant's chain, and its Ed25519 signature.
///
/// `verified` is true only when all of them hold. What is wrong stands in `errors`; the bytes, hashes and signature to check
/// it yourself stand in `report`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiptVerify {
    /// Id of the receipt, as an approval or a punchcard names it.
    receipt_id: String,
    /// Your tenant; `default` stands for it.
    #[serde(default = "own_tenant")]
    tenant_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ReceiptVerified {
    pub(crate) receipt_id: String,
    tenant_id: String,
    feature_enabled: bool,
    pub(crate) verified: bool,
    /// The passport whose decision it proves, or null.
    pub(crate) signer_passport: Nullable<String>,
    pub(crate) errors: Vec<String>,
    http_status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) report: Option<Report>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// BLAKE3 of the body, in hex.
    pub(crate) body_hash: String,
    /// Place in the tenant's chain, from 0 on.
    pub(crate) seq: u64,
    pub(crate) previous_link_hash: String,
    /// What the signature is over: 32 bytes, in hex here.
    pub(crate) link_hash: String,
    /// The key that signed, if a signature was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_id: Option<String>,
    /// Ed25519, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signature: Option<String>,
    /// The public key under which it is valid, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    pub(crate) made_at: String,
    pub(crate) revision: u64,
    /// The body as it was hashed, in hex.
    body_hex: String,
    /// The same as JSON; the bytes are CBOR.
    pub(crate) body: Nullable<Value>,
}

impl Tool for ReceiptVerify {
    const NAME: &'static str = "receipt_verify";
    const TITLE: &'static str = "Verify a receipt";
    const SCOPE: &'static str = SCOPE;
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::RECEIPTS;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::RECEIPT_VERIFY);
    type Output = ReceiptVerified;

    fn example() -> Value {
        json!({ "receipt_id": "rcpt_01" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ReceiptVerified>, CallError> {
        let caller = ctx.principal()?;
        let (flags, at) = cluster.read(ctx, flag::GetFlags {}).await?;
        if flags.flags.iter().any(|set| set.name == flag::RECEIPT_VERIFY.name && set.value == "off") {
            let disabled = unverified(shown(&self.receipt_id), caller.tenant.clone(), false, "FEATURE_DISABLED", 501);
            return Ok(Reply::at(at.revision, disabled));
        }
        let tenant_id = (self.tenant_id != own_tenant()).then_some(self.tenant_id);
        match cluster.read(ctx, GetReceipt { receipt_id: self.receipt_id.clone(), tenant_id }).await {
            Ok((receipt, served)) => {
                let key_id = receipt.signature.as_ref().map(|(key_id, _)| key_id.as_str());
                let keys = ctx.services.receipt_keys.with(key_id, cluster, caller, Some(served.revision), ctx.deadline).await?;
                Ok(Reply::at(served.revision, verify(receipt, &keys)))
            }
            // Asking about a receipt that is not there is what a verifier does: an answer, and not a refusal.
            Err(CallError::Refused(Refusal::NotFound { .. })) => {
                Ok(Reply::at(at.revision, unverified(self.receipt_id, caller.tenant.clone(), true, "NOT_FOUND", 404)))
            }
            Err(error) => Err(error),
        }
    }
}

fn unverified(receipt_id: String, tenant_id: String, feature_enabled: bool, error: &str, http_status: u16) -> ReceiptVerified {
    let (signer_passport, errors) = (Nullable(None), vec![error.into()]);
    ReceiptVerified { receipt_id, tenant_id, feature_enabled, verified: false, signer_passport, errors, http_status, report: None }
}

/// What can be checked of a receipt without asking anybody else.
pub(crate) fn verify(receipt: ReceiptView, keys: &[(String, VerifyingKey)]) -> ReceiptVerified {
    let mut errors = receipt.faults.clone();
    errors.extend(check_hashes(&receipt).err());
    let public_key = match check_signature(&receipt, keys) {
        Ok(key) => Some(key.to_bytes()),
        Err(problem) => {
            errors.push(problem);
            None
        }
    };
    let (key_id, signature) = receipt.signature.unzip();
    ReceiptVerified {
        receipt_id: receipt.receipt_id,
        tenant_id: receipt.tenant,
        feature_enabled: true,
        verified: errors.is_empty(),
        signer_passport: Nullable(receipt.signer_passport),
        errors,
        http_status: 200,
        report: Some(Report {
            body_hash: receipt.body_hash,
            seq: receipt.seq,
            previous_link_hash: receipt.previous_link_hash,
            link_hash: receipt.link_hash,
            key_id,
            signature,
            public_key: public_key.map(hex::encode),
            made_at: receipt.made_at.to_rfc3339(),
            revision: receipt.revision.0,
            body: Nullable(codec::decode(&receipt.body).ok()),
            body_hex: hex::encode(&receipt.body),
        }),
    }
}

/// The node looked at the same already; here it is done again on what came over the wire.
fn check_hashes(receipt: &ReceiptView) -> Result<(), String> {
    let hash = |what: &str, text: &str| -> Result<receipt::Hash, String> {
        hex::decode(text).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| format!("BAD_HASH: the {what} is not 32 bytes in hex"))
    };
    let body_hash = hash("body hash", &receipt.body_hash)?;
    if *blake3::hash(&receipt.body).as_bytes() != body_hash {
        return Err("BODY_HASH: the body does not have its hash".into());
    }
    let previous = hash("previous link hash", &receipt.previous_link_hash)?;
    if receipt::link_hash(receipt.seq, &previous, &receipt.receipt_id, &body_hash) != hash("link hash", &receipt.link_hash)? {
        return Err("LINK_HASH: the link does not have its hash".into());
    }
    Ok(())
}

/// The key under which the signature is valid.
fn check_signature<'a>(receipt: &ReceiptView, keys: &'a [(String, VerifyingKey)]) -> Result<&'a VerifyingKey, String> {
    let Some((key_id, signature)) = &receipt.signature else {
        return Err("NO_SIGNATURE: the node that served it did not sign it".into());
    };
    let Some((_, key)) = keys.iter().find(|(id, _)| id == key_id) else {
        return Err(format!("UNKNOWN_KEY: the key `{key_id}` is not among this gateway's receipt keys"));
    };
    let signature = hex::decode(signature)
        .ok()
        .and_then(|bytes| Signature::from_slice(&bytes).ok())
        .ok_or("BAD_SIGNATURE: it is not 64 bytes in hex")?;
    let signed = hex::decode(&receipt.link_hash).map_err(|_| "BAD_HASH: the link hash is not hex")?;
    key.verify_strict(&signed, &signature).map_err(|_| "SIGNATURE: it does not match the link hash".to_string())?;
    Ok(key)
}
