//! What a node signs of what it serves: receipts and heads of logs, made outside of apply.
//!
//! Ed25519 is deterministic and all nodes of a cluster hold its key, so every node gives the same signatures and none is stored.

use ed25519_dalek::{Signer as _, SigningKey};
use quorate_domain::Query;
use quorate_domain::codec::{self, DecodeError};
use quorate_domain::fact::SignedExport;
use quorate_domain::identity::key_fingerprint;
use quorate_domain::key_ring::succession_bytes;
use quorate_domain::observation::{ObservationView, Observations};
use quorate_domain::receipt::{Consistency, Inclusion, LogHead, ProvenReceipt, ReceiptView};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bundle;
use crate::note::{self, Head};

/// The cluster's receipt key.
pub struct Signer {
    pub(crate) key: SigningKey,
    key_id: String,
    cluster_id: String,
}

/// What of an answer is signed.
type Sign = fn(&Signer, &[u8]) -> Result<Vec<u8>, DecodeError>;

impl Signer {
    /// Reads a key of 32 bytes in hex.
    pub fn from_hex(text: &str, cluster_id: &str) -> Result<Self, String> {
        let bytes = hex::decode(text).map_err(|error| format!("the receipt key is no hex: {error}"))?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|bytes: Vec<u8>| format!("the receipt key has {} bytes, not 32", bytes.len()))?;
        let key = SigningKey::from_bytes(&bytes);
        let key_id = key_fingerprint(&key.verifying_key().to_bytes());
        Ok(Self { key, key_id, cluster_id: cluster_id.into() })
    }

    /// The public half, in hex.
    pub fn public_key(&self) -> String {
        hex::encode(self.key.verifying_key().as_bytes())
    }

    /// This key's word, in hex, that the one follows the other; it is one of the two itself.
    pub fn succession(&self, predecessor: &Signer, successor: &Signer) -> String {
        let (before, after) = (predecessor.key.verifying_key(), successor.key.verifying_key());
        hex::encode(self.key.sign(&succession_bytes(before.as_bytes(), after.as_bytes())).to_bytes())
    }

    /// The head in a note of this tenant's log, if this key has signed it.
    pub fn open_head(&self, note: &str, tenant: &str) -> Result<Head, String> {
        let head = Head::open(note, &self.key.verifying_key())?;
        let origin = note::origin(&self.cluster_id, tenant);
        if head.origin == origin { Ok(head) } else { Err(format!("it is the head of `{}`, and not of `{origin}`", head.origin)) }
    }

    /// How the answer to this query is signed; `None` when nothing in it is.
    pub fn of(query: &Query) -> Option<Sign> {
        match query {
            Query::GetReceipt(_) => Some(|signer, answer| within(answer, |receipt: &mut ReceiptView| signer.receipt(receipt))),
            Query::ProveReceipt(_) => Some(|signer, answer| {
                within(answer, |proven: &mut ProvenReceipt| {
                    signer.receipt(&mut proven.receipt);
                    signer.head(&mut proven.inclusion.head);
                })
            }),
            Query::GetLogHead(_) => Some(|signer, answer| within(answer, |head: &mut LogHead| signer.head(head))),
            Query::ProveInclusion(_) => Some(|signer, answer| within(answer, |proof: &mut Inclusion| signer.head(&mut proof.head))),
            Query::ProveConsistency(_) => Some(|signer, answer| {
                within(answer, |proof: &mut Consistency| {
                    signer.head(&mut proof.from);
                    signer.head(&mut proof.to);
                })
            }),
            Query::GetObservation(_) => Some(|signer, answer| within(answer, |seen: &mut ObservationView| signer.observation(seen))),
            Query::ListObservations(_) => Some(|signer, answer| {
                within(answer, |page: &mut Observations| page.observations.iter_mut().for_each(|seen| signer.observation(seen)))
            }),
            // What is signed here stands in the log: a caller can have no manifest signed that was not recorded.
            Query::GetExport(_) => Some(|signer, answer| {
                within(answer, |found: &mut SignedExport| found.manifest = Some(bundle::manifest(&found.export, &signer.key)))
            }),
            _ => None,
        }
    }

    /// Signs the link hash, which binds the body, its place and all that came before. A receipt whose stored bytes are
    /// damaged is not signed: the signature must not make it look whole.
    fn receipt(&self, receipt: &mut ReceiptView) {
        if receipt.faults.is_empty()
            && let Ok(link_hash) = hex::decode(&receipt.link_hash)
        {
            receipt.signature = Some(self.signature(&link_hash));
        }
    }

    /// Signs the body's hash, and nothing that is damaged.
    fn observation(&self, seen: &mut ObservationView) {
        if seen.faults.is_empty()
            && let Ok(body_hash) = hex::decode(&seen.body_hash)
        {
            seen.signature = Some(self.signature(&body_hash));
        }
    }

    fn head(&self, head: &mut LogHead) {
        let root = hex::decode(&head.root_hash).ok().and_then(|root| root.try_into().ok());
        head.note = root.map(|root| {
            let origin = note::origin(&self.cluster_id, &head.tenant);
            let head = Head { origin, size: head.size, root };
            note::sign(&head.text(), &head.origin, &self.key)
        });
    }

    /// Key id and signature, in hex.
    fn signature(&self, of: &[u8]) -> (String, String) {
        (self.key_id.clone(), hex::encode(self.key.sign(of).to_bytes()))
    }
}

/// The answer with some of it changed.
fn within<T: Serialize + DeserializeOwned>(answer: &[u8], sign: impl FnOnce(&mut T)) -> Result<Vec<u8>, DecodeError> {
    let mut told: T = codec::decode(answer)?;
    sign(&mut told);
    Ok(codec::encode(&told))
}

/// The public half of a receipt key, in hex: what gateways and verifiers are given.
pub fn public_key(secret_hex: &str) -> Result<String, String> {
    Signer::from_hex(secret_hex, "").map(|signer| hex::encode(signer.key.verifying_key().to_bytes()))
}
