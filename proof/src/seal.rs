//! The signature of a backup's manifest: who made it, and that nothing in it was changed.

use ed25519_dalek::{Signature, Signer as _, VerifyingKey};
use quorate_domain::identity::key_fingerprint;
use serde::{Deserialize, Serialize};

use crate::sign::Signer;

/// Stands before the bytes of a backup's manifest when they are signed, so that no other signature of this key fits them.
const BACKUP: &[u8] = b"quorate backup manifest 1\0";

/// The signature of a backup's manifest, as a file of the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seal {
    /// Fingerprint of the public key, as in receipts.
    pub key_id: String,
    /// Ed25519, in hex.
    pub public_key: String,
    /// Over [`BACKUP`] and the manifest's bytes, in hex.
    pub signature: String,
}

impl Signer {
    pub fn seal(&self, manifest: &[u8]) -> Seal {
        let signature = self.key.sign(&[BACKUP, manifest].concat());
        let public = self.key.verifying_key().to_bytes();
        Seal { key_id: key_fingerprint(&public), public_key: hex::encode(public), signature: hex::encode(signature.to_bytes()) }
    }
}

impl Seal {
    pub fn to_bytes(&self) -> Vec<u8> {
        // Three strings, into a Vec.
        serde_json::to_vec(self).expect("a seal always encodes")
    }

    /// Reads a seal and checks it. Only the very bytes that [`Seal::to_bytes`] makes are taken.
    pub fn open(bytes: &[u8], manifest: &[u8]) -> Result<Self, String> {
        let seal: Seal = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let fixed = |text: &str| hex::decode(text).map_err(|error| error.to_string());
        let public: [u8; 32] = fixed(&seal.public_key)?.try_into().map_err(|_| "the public key is not 32 bytes")?;
        let signature: [u8; 64] = fixed(&seal.signature)?.try_into().map_err(|_| "the signature is not 64 bytes")?;
        let key = VerifyingKey::from_bytes(&public).map_err(|error| error.to_string())?;
        key.verify_strict(&[BACKUP, manifest].concat(), &Signature::from_bytes(&signature))
            .map_err(|_| "the signature does not fit the manifest")?;
        // Hex and JSON have several spellings of the same.
        let written = Seal { key_id: key_fingerprint(&public), public_key: hex::encode(public), signature: hex::encode(signature) };
        if written.to_bytes() != bytes {
            return Err("it is not as it was written".into());
        }
        Ok(seal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_holds_for_its_manifest_and_its_own_bytes_alone() {
        let signer = Signer::from_hex(&"07".repeat(32), "acme").expect("a key");
        let seal = signer.seal(b"manifest");
        assert_eq!(Seal::open(&seal.to_bytes(), b"manifest"), Ok(seal.clone()));
        assert!(Seal::open(&seal.to_bytes(), b"manifesto").is_err());
        for at in 0..seal.to_bytes().len() {
            let mut bytes = seal.to_bytes();
            // Also turns a digit of hex into the other spelling of the same.
            bytes[at] ^= 0x20;
            assert!(Seal::open(&bytes, b"manifest").is_err(), "byte {at}");
        }
        let spaced = [&seal.to_bytes()[..], b" "].concat();
        assert!(Seal::open(&spaced, b"manifest").is_err(), "JSON allows it, a seal does not");
    }
}
