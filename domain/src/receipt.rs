//! Receipts: the proof of a decision, chained per tenant.

use serde::{Deserialize, Serialize};

use crate::refusal::Applied;
use crate::stamp::{ReadStamp, Revision, UnixMs};
use crate::tx::Read;

/// One receipt with its place in the tenant's chain. The signature is added outside of apply, by any node with the key:
/// Ed25519 over the 32 bytes of [`ReceiptView::link_hash`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiptView {
    pub receipt_id: String,
    pub tenant: String,
    /// The body as made in apply; never re-serialised.
    #[serde(with = "serde_bytes_vec")]
    pub body: Vec<u8>,
    /// BLAKE3 of `body` as it was stored, in hex.
    pub body_hash: String,
    /// Place in the tenant's chain, from 0 on.
    pub seq: u64,
    /// Link hash of the receipt before, in hex; 64 zeros for the first.
    pub previous_link_hash: String,
    /// BLAKE3 over seq, previous link hash, receipt id and body hash, in hex.
    pub link_hash: String,
    pub revision: Revision,
    pub made_at: UnixMs,
    /// The passport whose decision it proves.
    pub signer_passport: Option<String>,
    /// What is wrong with the stored bytes or the chain around them; empty when all is well.
    pub faults: Vec<String>,
    /// `(key id, signature)` in hex, filled in by the serving node.
    pub signature: Option<(String, String)>,
}

mod serde_bytes_vec {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        hex::encode(bytes).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        hex::decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// One receipt of the caller's tenant, checked against its neighbours in the chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetReceipt {
    pub receipt_id: String,
    /// A claim: must be the caller's tenant.
    pub tenant_id: Option<String>,
}

impl GetReceipt {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ReceiptView> {
        let _ = (view, at);
        todo!()
    }
}
