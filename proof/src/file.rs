//! The files that proofs are saved in, and what is checked of each.
//!
//! A file is one JSON object in one line, with its fields in the order of their declaration and a newline at the end. It is
//! valid in exactly that form: what a reader sees is what was checked, to the byte. `form` says which kind it is.

use ed25519_dalek::{Signature, VerifyingKey};
use quorate_domain::attestation::{self, OutputClaim};
use quorate_domain::identity::key_fingerprint;
use quorate_domain::merkle::{self, PROOF_HASHES_MAX};
use quorate_domain::receipt::{self, Consistency, Hash, Inclusion, LogHead, ProvenReceipt};
use quorate_domain::{Revision, UnixMs};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bundle;
use crate::erasure::ErasureFile;
use crate::heads::CosignedHeadFile;
use crate::note::{self, Head};

/// Why a file is not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// It can't be read as any kind of file there is.
    #[error("not readable: {0}")]
    Unreadable(String),
    /// It is read, and something in it is not as it was signed. `at` names the first such thing.
    #[error("invalid at {at}: {problem}")]
    Invalid { at: String, problem: String },
}

impl Fault {
    pub(crate) fn at(at: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { at: at.into(), problem: problem.into() }
    }
}

/// What an accepted file shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub form: &'static str,
    /// What was found true, as a sentence.
    pub shows: String,
    /// The log's origin.
    pub origin: String,
    /// Receipts in the log under the newest head of the file.
    pub size: u64,
    /// The key that everything is signed with: its id, and its public bytes in hex.
    pub key_id: String,
    pub public_key: String,
    /// BLAKE3 in hex of the content that the file speaks of, where it is not in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    /// The nodes that have cosigned the newest head of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cosigned_by: Vec<Cosigned>,
}

/// By whom and when a head was cosigned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cosigned {
    pub name: String,
    /// The key as tools for signed notes take it.
    pub verifier_key: String,
    /// By the node's own clock.
    pub at_unix_s: u64,
}

impl Report {
    /// Whether this is the content that the file speaks of.
    pub fn check_content(&self, content: &[u8]) -> Result<(), Fault> {
        match &self.content_hash {
            None => Err(Fault::at("content", "the file speaks of no content beside it")),
            Some(hash) if blake3::hash(content).to_hex().as_str() != hash => {
                Err(Fault::at("content", "it is not the one that was attested"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Checks a whole file. With a pinned key it has to be that one.
pub fn verify(contents: &[u8], pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
    if contents.starts_with(&bundle::MAGIC) {
        return bundle::verify(contents, pinned);
    }
    verify_json(contents, pinned)
}

/// The same for what is not packed: it takes no more room than it has bytes.
pub fn verify_json(contents: &[u8], pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
    let unreadable = |problem: String| Fault::Unreadable(problem);
    let text = std::str::from_utf8(contents).map_err(|error| unreadable(format!("it is no text: {error}")))?;
    #[derive(Deserialize)]
    struct Form {
        form: String,
    }
    let Form { form } = serde_json::from_str(text).map_err(|error| unreadable(format!("it is no JSON with a `form`: {error}")))?;
    match form.as_str() {
        ReceiptFile::FORM => read::<ReceiptFile>(text)?.verify(pinned),
        HeadFile::FORM => read::<HeadFile>(text)?.verify(pinned),
        InclusionFile::FORM => read::<InclusionFile>(text)?.verify(pinned),
        ConsistencyFile::FORM => read::<ConsistencyFile>(text)?.verify(pinned),
        CosignedHeadFile::FORM => read::<CosignedHeadFile>(text)?.verify(pinned),
        OutputFile::FORM => read::<OutputFile>(text)?.verify(pinned),
        ErasureFile::FORM => read::<ErasureFile>(text)?.verify(pinned),
        _ => Err(unreadable("its `form` is none that this version knows".into())),
    }
}

/// A form of file.
pub(crate) trait File: Serialize + DeserializeOwned {
    const FORM: &'static str;
}

/// The file's text: the only one that [`verify`] accepts for it.
pub fn text(file: &impl Serialize) -> String {
    serde_json::to_string(file).expect("plain data with text keys is always JSON") + "\n"
}

pub(crate) fn read<F: File>(text: &str) -> Result<F, Fault> {
    let file: F = serde_json::from_str(text).map_err(|error| Fault::Unreadable(format!("it is no {}: {error}", F::FORM)))?;
    let written = self::text(&file);
    match written.bytes().zip(text.bytes()).position(|(written, found)| written != found) {
        _ if written == text => Ok(file),
        at => {
            let at = at.unwrap_or(written.len().min(text.len()));
            Err(Fault::at(format!("byte {at}"), "from there on it is not in the form in which it was written"))
        }
    }
}

/// The key that a file names, if it is the one that is trusted.
pub(crate) fn key(public_key: &str, pinned: Option<&VerifyingKey>) -> Result<VerifyingKey, Fault> {
    let key = VerifyingKey::from_bytes(&hash("public_key", public_key)?);
    let key = key.map_err(|_| Fault::at("public_key", "it is no Ed25519 public key"))?;
    match pinned {
        Some(pinned) if *pinned != key => {
            let (found, wanted) = (key_fingerprint(key.as_bytes()), key_fingerprint(pinned.as_bytes()));
            Err(Fault::at("public_key", format!("it is the key `{found}`, and the one you trust is `{wanted}`")))
        }
        _ => Ok(key),
    }
}

/// Bytes in hex, in the one spelling that there is of them here: lower case.
fn bytes(at: &str, text: &str) -> Result<Vec<u8>, Fault> {
    let bytes = hex::decode(text).ok().filter(|bytes| hex::encode(bytes) == text);
    bytes.ok_or_else(|| Fault::at(at, "it is not bytes in lower-case hex"))
}

fn hash(at: &str, text: &str) -> Result<Hash, Fault> {
    bytes(at, text)?.try_into().map_err(|_| Fault::at(at, "it is not 32 bytes in hex"))
}

fn path(proof: &[String]) -> Result<Vec<Hash>, Fault> {
    if proof.len() > PROOF_HASHES_MAX {
        return Err(Fault::at("proof", format!("it has {} hashes, more than any proof", proof.len())));
    }
    proof.iter().enumerate().map(|(n, text)| hash(&format!("proof[{n}]"), text)).collect()
}

pub(crate) fn head(at: &str, note: &str, key: &VerifyingKey) -> Result<Head, Fault> {
    Head::open(note, key).map_err(|problem| Fault::at(at, problem))
}

fn check_inclusion(leaf: &Hash, seq: u64, proof: &[String], head: &Head) -> Result<(), Fault> {
    match merkle::is_included(leaf, seq, head.size, &path(proof)?, &head.root) {
        true => Ok(()),
        false => Err(Fault::at("proof", format!("it does not lead from receipt number {seq} to the head of {} receipts", head.size))),
    }
}

pub(crate) fn report<F: File>(head: Head, key: &VerifyingKey, shows: String) -> Report {
    let (key_id, public_key) = (key_fingerprint(key.as_bytes()), hex::encode(key.as_bytes()));
    Report { form: F::FORM, shows, origin: head.origin, size: head.size, key_id, public_key, content_hash: None, cosigned_by: Vec::new() }
}

pub(crate) fn note_of(head: LogHead) -> Result<String, String> {
    head.note.ok_or_else(|| "the node that served the head did not sign it".into())
}

/// Whether these keys hold the one that signed a note, and which.
pub(crate) fn key_of<'a>(note: &str, keys: &'a [(String, VerifyingKey)]) -> Result<&'a VerifyingKey, String> {
    let found = keys.iter().find(|(_, key)| Head::open(note, key).is_ok());
    found.map(|(_, key)| key).ok_or_else(|| "the head is signed by none of this gateway's receipt keys".into())
}

// ------------------------------------------------------------------ a receipt

/// A receipt with its place in the chain, its signature, and the proof that it stands in the log under a signed head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptFile {
    pub form: String,
    pub receipt_id: String,
    pub tenant_id: String,
    /// Its number in the chain, and in the log.
    pub seq: u64,
    pub revision: u64,
    pub made_at_unix_ms: u64,
    /// The passport whose decision it proves, or null.
    pub signer_passport: Option<String>,
    /// The body's bytes in hex: a CBOR map.
    pub body: String,
    pub previous_link_hash: String,
    /// BLAKE3 over number, predecessor, id and the body's hash.
    pub link_hash: String,
    /// Ed25519 over the 32 bytes of the link hash.
    pub signature: String,
    /// From the leaf up to the root.
    pub proof: Vec<String>,
    /// The head as a signed note.
    pub head: String,
    pub public_key: String,
}

impl File for ReceiptFile {
    const FORM: &'static str = "quorate.receipt.v1";
}

impl ReceiptFile {
    /// The file of a receipt as a node served it, or why it can't be proven.
    pub fn of(proven: ProvenReceipt, keys: &[(String, VerifyingKey)]) -> Result<Self, String> {
        let ProvenReceipt { receipt, inclusion } = proven;
        let (key_id, signature) = match receipt.signature {
            Some(signature) => signature,
            None if receipt.faults.is_empty() => return Err("the node that served it did not sign it".into()),
            None => return Err(receipt.faults.join("; ")),
        };
        let (_, key) =
            keys.iter().find(|(id, _)| *id == key_id).ok_or(format!("the key `{key_id}` is not among the gateway's receipt keys"))?;
        Ok(Self {
            form: Self::FORM.into(),
            receipt_id: receipt.receipt_id,
            tenant_id: receipt.tenant,
            seq: receipt.seq,
            revision: receipt.revision.0,
            made_at_unix_ms: receipt.made_at.0,
            signer_passport: receipt.signer_passport,
            body: hex::encode(receipt.body),
            previous_link_hash: receipt.previous_link_hash,
            link_hash: receipt.link_hash,
            signature,
            proof: inclusion.proof,
            head: note_of(inclusion.head)?,
            public_key: hex::encode(key.as_bytes()),
        })
    }

    pub(crate) fn verify(self, pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
        // Where it stands within another file, nobody has looked at that yet.
        if self.form != Self::FORM {
            return Err(Fault::at("form", format!("it is not `{}`", Self::FORM)));
        }
        let key = key(&self.public_key, pinned)?;
        let body = bytes("body", &self.body)?;
        let (previous, link_hash) = (hash("previous_link_hash", &self.previous_link_hash)?, hash("link_hash", &self.link_hash)?);
        if receipt::link_hash(self.seq, &previous, &self.receipt_id, blake3::hash(&body).as_bytes()) != link_hash {
            return Err(Fault::at("link_hash", "number, predecessor, id and body do not have this hash"));
        }
        let signature = Signature::from_slice(&bytes("signature", &self.signature)?);
        let signature = signature.map_err(|_| Fault::at("signature", "it is not 64 bytes in hex"))?;
        key.verify_strict(&link_hash, &signature).map_err(|_| Fault::at("signature", "it does not match the link hash"))?;
        let head = head("head", &self.head, &key)?;
        if !note::is_of_tenant(&head.origin, &self.tenant_id) {
            return Err(Fault::at("tenant_id", format!("the head is of another log, `{}`", head.origin)));
        }
        let entry = receipt::leaf(&link_hash, Revision(self.revision), UnixMs(self.made_at_unix_ms), self.signer_passport.as_deref());
        check_inclusion(&merkle::leaf_hash(&entry), self.seq, &self.proof, &head)?;
        let shows = format!("receipt `{}` is number {} of {} in the log", self.receipt_id, self.seq, head.size);
        Ok(report::<Self>(head, &key, shows))
    }
}

// ------------------------------------------------------------------ a head

/// A signed head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadFile {
    pub form: String,
    pub head: String,
    /// The key as tools for signed notes take it.
    pub verifier_key: String,
    pub public_key: String,
}

impl File for HeadFile {
    const FORM: &'static str = "quorate.log-head.v1";
}

impl HeadFile {
    pub fn of(head: LogHead, keys: &[(String, VerifyingKey)]) -> Result<Self, String> {
        let note = note_of(head)?;
        let key = key_of(&note, keys)?;
        let verifier_key = note::verifier_key(note.split('\n').next().unwrap_or_default(), key);
        Ok(Self { form: Self::FORM.into(), head: note, verifier_key, public_key: hex::encode(key.as_bytes()) })
    }

    fn verify(self, pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
        let key = key(&self.public_key, pinned)?;
        let head = head("head", &self.head, &key)?;
        if self.verifier_key != note::verifier_key(&head.origin, &key) {
            return Err(Fault::at("verifier_key", "it is not the public key under the log's name"));
        }
        let shows = format!("the log holds {} receipts", head.size);
        Ok(report::<Self>(head, &key, shows))
    }
}

// ------------------------------------------------------------------ a place in the log

/// The proof that the receipt of a number stands in the log under a signed head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InclusionFile {
    pub form: String,
    pub seq: u64,
    pub leaf_hash: String,
    pub proof: Vec<String>,
    pub head: String,
    pub public_key: String,
}

impl File for InclusionFile {
    const FORM: &'static str = "quorate.log-inclusion.v1";
}

impl InclusionFile {
    pub fn of(inclusion: Inclusion, keys: &[(String, VerifyingKey)]) -> Result<Self, String> {
        let Inclusion { seq, leaf_hash, proof, head } = inclusion;
        let head = note_of(head)?;
        let public_key = hex::encode(key_of(&head, keys)?.as_bytes());
        Ok(Self { form: Self::FORM.into(), seq, leaf_hash, proof, head, public_key })
    }

    fn verify(self, pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
        let key = key(&self.public_key, pinned)?;
        let head = head("head", &self.head, &key)?;
        check_inclusion(&hash("leaf_hash", &self.leaf_hash)?, self.seq, &self.proof, &head)?;
        let shows = format!("the leaf {} is number {} of {} in the log", self.leaf_hash, self.seq, head.size);
        Ok(report::<Self>(head, &key, shows))
    }
}

// ------------------------------------------------------------------ two heads

/// Two signed heads, and the proof that the later one continues the earlier one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsistencyFile {
    pub form: String,
    pub from: String,
    pub to: String,
    pub proof: Vec<String>,
    pub public_key: String,
}

impl File for ConsistencyFile {
    const FORM: &'static str = "quorate.log-consistency.v1";
}

impl ConsistencyFile {
    pub fn of(consistency: Consistency, keys: &[(String, VerifyingKey)]) -> Result<Self, String> {
        let (from, to) = (note_of(consistency.from)?, note_of(consistency.to)?);
        let public_key = hex::encode(key_of(&to, keys)?.as_bytes());
        Ok(Self { form: Self::FORM.into(), from, to, proof: consistency.proof, public_key })
    }

    fn verify(self, pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
        let key = key(&self.public_key, pinned)?;
        let (from, to) = (head("from", &self.from, &key)?, head("to", &self.to, &key)?);
        if from.origin != to.origin {
            return Err(Fault::at("to", format!("it is of another log than `{}`", from.origin)));
        }
        if !merkle::is_consistent(from.size, to.size, &from.root, &to.root, &path(&self.proof)?) {
            let problem = format!("it does not show that the head of {} receipts continues the head of {}", to.size, from.size);
            return Err(Fault::at("proof", problem));
        }
        let shows = format!("the log of {} receipts continues the log of {}", to.size, from.size);
        Ok(report::<Self>(to, &key, shows))
    }
}

// ------------------------------------------------------------------ an attested output

/// What was claimed of a content, and the receipt that proves the claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputFile {
    pub form: String,
    /// The receipt's body, to be read.
    pub claim: OutputClaim,
    pub receipt: ReceiptFile,
}

impl File for OutputFile {
    const FORM: &'static str = "quorate.output-manifest.v1";
}

fn claim_in(receipt: &ReceiptFile) -> Option<OutputClaim> {
    let claim: OutputClaim = receipt::read_body(&hex::decode(&receipt.body).ok()?)?;
    (claim.schema == attestation::SCHEMA).then_some(claim)
}

impl OutputFile {
    pub fn of(proven: ProvenReceipt, keys: &[(String, VerifyingKey)]) -> Result<Self, String> {
        let receipt = ReceiptFile::of(proven, keys)?;
        let claim = claim_in(&receipt).ok_or("the receipt attests no output")?;
        Ok(Self { form: Self::FORM.into(), claim, receipt })
    }

    fn verify(self, pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
        if claim_in(&self.receipt).as_ref() != Some(&self.claim) {
            return Err(Fault::at("claim", "it is not what the receipt says"));
        }
        let log = self.receipt.verify(pinned).map_err(|fault| match fault {
            Fault::Invalid { at, problem } => Fault::Invalid { at: format!("receipt {at}"), problem },
            unreadable => unreadable,
        })?;
        let OutputClaim { content_hash_hex, crown_receipt_id, signer_passport, .. } = self.claim;
        let shows = format!("`{signer_passport}` bound the content of BLAKE3 {content_hash_hex} to receipt `{crown_receipt_id}`");
        Ok(Report { form: Self::FORM, shows, content_hash: Some(content_hash_hex), ..log })
    }
}
