//! Signatures of receipts: made outside of apply, by any node that holds the cluster's key.
//!
//! Ed25519 is deterministic, so every node gives the same signature for the same receipt, and none needs to be stored.

use ed25519_dalek::{Signer as _, SigningKey};
use quorate_domain::identity::key_fingerprint;
use quorate_domain::receipt::ReceiptView;

/// The cluster's receipt key.
pub struct Signer {
    key: SigningKey,
    key_id: String,
}

impl Signer {
    /// Reads a key of 32 bytes in hex.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        let bytes = hex::decode(text).map_err(|error| format!("the receipt key is no hex: {error}"))?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|bytes: Vec<u8>| format!("the receipt key has {} bytes, not 32", bytes.len()))?;
        let key = SigningKey::from_bytes(&bytes);
        let key_id = key_fingerprint(&key.verifying_key().to_bytes());
        Ok(Self { key, key_id })
    }

    /// Signs the link hash, which binds the body, its place and all that came before. A receipt whose stored bytes are
    /// damaged is not signed: the signature must not make it look whole.
    pub fn sign(&self, receipt: &mut ReceiptView) {
        if receipt.faults.is_empty()
            && let Ok(link_hash) = hex::decode(&receipt.link_hash)
        {
            let signature = self.key.sign(&link_hash);
            receipt.signature = Some((self.key_id.clone(), hex::encode(signature.to_bytes())));
        }
    }
}

/// The public half of a receipt key, in hex: what gateways and verifiers are given.
pub fn public_key(secret_hex: &str) -> Result<String, String> {
    Signer::from_hex(secret_hex).map(|signer| hex::encode(signer.key.verifying_key().to_bytes()))
}
