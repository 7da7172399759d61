//! Attested outputs: a receipt that binds what somebody produced, by its hash, to the receipt of what it was made under.
//!
//! The body follows the manifest of C2PA claims that the documented original signs; it is a receipt of the tenant's log like any
//! other, and the manifest that leaves the cluster is that receipt with its proof. The content itself is never sent here.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::flag::{self, refuse_off};
use crate::identity::check_name;
use crate::refusal::{Applied, Refusal};
use crate::stamp::Stamp;
use crate::tx::Tx;
use crate::{event, receipt};

/// Attests a content to a receipt of the caller's tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttestOutput {
    pub receipt_id: String,
    /// BLAKE3 in hex.
    pub content_hash: String,
    pub content_type: Option<String>,
    pub claim_generator: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputAttested {
    /// Also the id of the attestation's own receipt.
    pub manifest_id: String,
}

/// The body of the receipt: what the manifest claims. Field order is part of the bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputClaim {
    pub schema: String,
    pub version: u64,
    pub manifest_id: String,
    pub claim_generator: String,
    pub content_hash_alg: String,
    pub content_hash_hex: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    pub actions: Vec<OutputAction>,
    /// The receipt that the content is bound to.
    pub crown_receipt_id: String,
    pub signer_passport: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputAction {
    pub action: String,
    pub when: String,
    pub software_agent: String,
    pub digital_source_type: String,
}

/// The schema by which a body is known as a claim.
pub const SCHEMA: &str = "cuecrux.c2pa.manifest.v1";

impl AttestOutput {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<OutputAttested> {
        if let Some(refusal) = refuse_off(tx, flag::C2PA_OUTPUT, "attesting")? {
            return Ok(Err(refusal));
        }
        let content_type = self.content_type.as_deref();
        let refused = check_name("receipt_id", &self.receipt_id)
            .or_else(|| check_name("claim_generator", &self.claim_generator))
            .or_else(|| content_type.and_then(|content_type| check_name("content_type", content_type)));
        if let Some(refusal) = refused {
            return Ok(Err(refusal));
        }
        if self.content_hash.len() != 64 || hex::decode(&self.content_hash).is_err() {
            return Ok(Err(Refusal::invalid("content_hash", "is not 32 bytes in hex")));
        }
        if !receipt::is_there(tx, &at.caller.tenant, &self.receipt_id)? {
            return Ok(Err(Refusal::not_found("receipt", self.receipt_id)));
        }
        let manifest_id = at.new_id("c2pa", 0).replacen("c2pa_", "urn:cuecrux:c2pa:", 1);
        let action = OutputAction {
            action: "c2pa.created".into(),
            when: at.wall.to_rfc3339(),
            software_agent: "quorate".into(),
            digital_source_type: "trainedAlgorithmicMedia".into(),
        };
        let claim = OutputClaim {
            schema: SCHEMA.into(),
            version: 1,
            manifest_id: manifest_id.clone(),
            claim_generator: self.claim_generator,
            content_hash_alg: "blake3".into(),
            content_hash_hex: self.content_hash.to_lowercase(),
            content_type: self.content_type,
            actions: vec![action],
            crown_receipt_id: self.receipt_id,
            signer_passport: at.caller.passport.clone(),
        };
        receipt::append(tx, at, &manifest_id, receipt::body(&claim), Some(&at.caller.passport))?;
        let about = json!({ "receipt_id": claim.crown_receipt_id, "actor": at.caller.passport });
        event::emit(tx, at, "output.attested", &manifest_id, about)?;
        Ok(Ok(OutputAttested { manifest_id }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt::GetReceipt;
    use crate::transcript::{World, person};

    fn attest(receipt_id: &str) -> AttestOutput {
        let content_hash = blake3::hash(b"hello").to_hex().to_string();
        AttestOutput { receipt_id: receipt_id.into(), content_hash, content_type: None, claim_generator: "quorate/1".into() }
    }

    fn decided(world: &mut World) -> String {
        let command = crate::decision::RecordDecision {
            action: "a".into(),
            rationale: "r".into(),
            alternatives: vec![],
            confidence: crate::fact::Confidence::FULL,
            session_id: "s".into(),
            context_refs: vec![],
        };
        world.call("1s", person("mara"), None, command).unwrap().decision_id
    }

    #[test]
    fn an_output_is_bound_to_a_receipt_by_a_receipt_of_its_own() {
        let mut world = World::new();
        let decision = decided(&mut world);
        let done = world.call("2s", person("jon"), None, attest(&decision)).unwrap();
        let query = GetReceipt { receipt_id: done.manifest_id.clone(), tenant_id: None };
        let receipt = world.ask("3s", person("mara"), query).unwrap();
        let claim: OutputClaim = receipt::read_body(&receipt.body).unwrap();
        assert_eq!((&claim.crown_receipt_id, claim.signer_passport.as_str()), (&decision, "jon"));
        assert_eq!(claim.content_hash_hex, blake3::hash(b"hello").to_hex().to_string());
        assert!(done.manifest_id.starts_with("urn:cuecrux:c2pa:") && receipt.faults.is_empty(), "{receipt:?}");
    }

    #[test]
    fn a_receipt_of_nobody_or_of_another_tenant_binds_nothing() {
        let mut world = World::new();
        let decision = decided(&mut world);
        for (who, id) in [("eve", decision.as_str()), ("mara", "d_none")] {
            let refused = world.call("2s", person(who), None, attest(id)).unwrap_err();
            assert_eq!(refused, Refusal::not_found("receipt", id));
        }
        let odd = AttestOutput { content_hash: "00".into(), ..attest(&decision) };
        assert_eq!(world.call("3s", person("mara"), None, odd).unwrap_err().to_string(), "`content_hash` is not 32 bytes in hex");
    }
}
