//! Audit bundles: a tar under zstd, which holds everything to check it alone.
//!
//! | file | holds |
//! |---|---|
//! | `manifest.json` | what was exported and the digests of the files, signed; compact JSON, keys sorted at every level |
//! | `events.jsonl` | one fact version a line, by `stored_at` and then `fact_id` |
//! | `entries.sha256` | SHA-256 of each of those lines without its newline, in hex, a line each: how the first bad one is found |
//! | `receipts.cbor` | an array of `{fact_id, receipt_id}` for the facts that name a receipt |
//! | `receipt.json` | the export's own receipt with its proof: the same facts about the files, in the tenant's log |
//!
//! The manifest's signature is Ed25519 over `cuecrux.audit_bundle.v3`, a NUL, and the manifest with an empty `signature_b64`.

use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use quorate_domain::codec;
use quorate_domain::fact::{ExportRecorded, ExportScope, ExportedFact};
use quorate_domain::identity::key_fingerprint;
use quorate_domain::receipt::read_body;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::file::{Fault, ReceiptFile, Report, read};

/// What every zstd file begins with.
pub const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
const TAG: &[u8] = b"cuecrux.audit_bundle.v3\0";
const FORM: &str = "quorate.audit-bundle.v3";
/// A bundle's files together, at the most.
pub const UNPACKED_BYTES_MAX: u64 = 256 << 20;

const MANIFEST: &str = "manifest.json";
const EVENTS: &str = "events.jsonl";
const ENTRIES: &str = "entries.sha256";
const RECEIPTS: &str = "receipts.cbor";
const RECEIPT: &str = "receipt.json";
const FILES: [&str; 5] = [MANIFEST, EVENTS, ENTRIES, RECEIPTS, RECEIPT];

// ------------------------------------------------------------------ the manifest

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    bundle_format_version: u64,
    bundle_id: String,
    tenant_id: String,
    since: Option<String>,
    until: String,
    generated_at: String,
    scope: ExportScope,
    fact_count: u64,
    receipt_count: u64,
    events_jsonl_sha256: String,
    entries_sha256: String,
    receipts_cbor_sha256: String,
    signer_public_key_b64: String,
    signer_key_id: String,
    key_class: String,
    signature_b64: String,
}

impl Manifest {
    fn of(export: ExportRecorded, key: &VerifyingKey) -> Self {
        Self {
            bundle_format_version: 3,
            bundle_id: export.receipt_id,
            tenant_id: export.tenant_id,
            since: export.since,
            until: export.until,
            generated_at: export.generated_at,
            scope: export.scope,
            fact_count: export.fact_count,
            receipt_count: export.receipt_count,
            events_jsonl_sha256: export.events_jsonl_sha256,
            entries_sha256: export.entries_sha256,
            receipts_cbor_sha256: export.receipts_cbor_sha256,
            signer_public_key_b64: BASE64.encode(key.as_bytes()),
            signer_key_id: key_fingerprint(key.as_bytes()),
            key_class: "persistent".into(),
            signature_b64: String::new(),
        }
    }

    fn text(&self) -> String {
        sorted(serde_json::to_value(self).expect("plain data with text keys is always JSON")).to_string()
    }

    fn signed_bytes(&self) -> Vec<u8> {
        let unsigned = Self { signature_b64: String::new(), ..self.clone() };
        [TAG, unsigned.text().as_bytes()].concat()
    }
}

/// The same JSON with the keys of every object in the order of their bytes.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> = fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            fields.into_iter().collect()
        }
        Value::Array(values) => values.into_iter().map(sorted).collect(),
        other => other,
    }
}

/// The signed manifest of an export that stands in the log.
pub(crate) fn manifest(export: &ExportRecorded, key: &SigningKey) -> String {
    let mut manifest = Manifest::of(export.clone(), &key.verifying_key());
    manifest.signature_b64 = BASE64.encode(key.sign(&manifest.signed_bytes()).to_bytes());
    manifest.text()
}

/// The signature in a manifest, for who shows it.
pub fn manifest_signature(manifest: &str) -> Option<String> {
    serde_json::from_str(manifest).ok().map(|manifest: Manifest| manifest.signature_b64)
}

// ------------------------------------------------------------------ the contents

/// One line of `events.jsonl`, in this order.
#[derive(Serialize, Deserialize)]
struct Event {
    fact_id: String,
    entity: String,
    key: String,
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_receipt: Option<String>,
    confidence: f64,
    stored_at: String,
    /// Of the value, at four bytes each.
    tokens: u64,
    deleted: bool,
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    supersedes: Option<String>,
}

#[derive(Serialize)]
struct Reference<'a> {
    fact_id: &'a str,
    receipt_id: &'a str,
}

fn references<'a>(events: &'a [Event]) -> (u64, Vec<u8>) {
    let reference = |event: &'a Event| Some(Reference { fact_id: &event.fact_id, receipt_id: event.source_receipt.as_deref()? });
    let found: Vec<Reference<'a>> = events.iter().filter_map(reference).collect();
    (found.len() as u64, codec::encode(&found))
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The files of a bundle that come from the facts.
pub struct Contents {
    events: Vec<u8>,
    entries: Vec<u8>,
    receipts: Vec<u8>,
    pub fact_count: u64,
    pub receipt_count: u64,
}

impl Contents {
    pub fn of(mut facts: Vec<ExportedFact>) -> Self {
        facts.sort_by(|a, b| (a.stored_at, &a.fact_id).cmp(&(b.stored_at, &b.fact_id)));
        let events: Vec<Event> = facts
            .into_iter()
            .map(|fact| Event {
                tokens: fact.value.len().div_ceil(4) as u64,
                fact_id: fact.fact_id,
                entity: fact.entity,
                key: fact.key,
                value: fact.value,
                source_receipt: fact.source_receipt,
                confidence: fact.confidence.to_unit(),
                stored_at: fact.stored_at.to_rfc3339(),
                deleted: false,
                version: fact.version,
                supersedes: fact.supersedes,
            })
            .collect();
        let (receipt_count, receipts) = references(&events);
        let mut contents = Self { events: Vec::new(), entries: Vec::new(), receipts, fact_count: events.len() as u64, receipt_count };
        for event in events {
            let line = serde_json::to_vec(&event).expect("plain data with text keys is always JSON");
            contents.entries.extend(sha256(&line).bytes().chain([b'\n']));
            contents.events.extend(line.into_iter().chain([b'\n']));
        }
        contents
    }

    pub fn events_sha256(&self) -> String {
        sha256(&self.events)
    }

    pub fn entries_sha256(&self) -> String {
        sha256(&self.entries)
    }

    pub fn receipts_sha256(&self) -> String {
        sha256(&self.receipts)
    }

    pub fn events_bytes(&self) -> u64 {
        self.events.len() as u64
    }

    /// The bundle: the same bytes for the same contents.
    pub fn pack(&self, manifest: &str, receipt: &ReceiptFile) -> std::io::Result<Vec<u8>> {
        let receipt = crate::file::text(receipt);
        let files = [manifest.as_bytes(), &self.events, &self.entries, &self.receipts, receipt.as_bytes()];
        let mut zstd = zstd::Encoder::new(Vec::new(), 0)?;
        zstd.include_checksum(true)?;
        let mut tar = tar::Builder::new(zstd);
        for (name, data) in FILES.into_iter().zip(files) {
            let mut header = tar::Header::new_ustar();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(0);
            tar.append_data(&mut header, name, data)?;
        }
        tar.into_inner()?.finish()
    }
}

// ------------------------------------------------------------------ the check

fn unpack(bytes: &[u8]) -> Result<BTreeMap<&'static str, Vec<u8>>, Fault> {
    let damaged = |error: std::io::Error| Fault::Unreadable(format!("the archive is damaged: {error}"));
    let mut plain = Vec::new();
    let reader = zstd::Decoder::with_buffer(bytes).map_err(damaged)?;
    reader.take(UNPACKED_BYTES_MAX + 1).read_to_end(&mut plain).map_err(damaged)?;
    if plain.len() as u64 > UNPACKED_BYTES_MAX {
        return Err(Fault::Unreadable(format!("it unpacks to more than {UNPACKED_BYTES_MAX} bytes")));
    }
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(plain.as_slice()).entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let found = entry.path_bytes().into_owned();
        let Some(name) = FILES.into_iter().find(|name| name.as_bytes() == found) else {
            return Err(Fault::at(String::from_utf8_lossy(&found), "no bundle holds such a file"));
        };
        let mut data = Vec::new();
        entry.read_to_end(&mut data).map_err(damaged)?;
        if files.insert(name, data).is_some() {
            return Err(Fault::at(name, "the bundle holds it twice"));
        }
    }
    match FILES.into_iter().find(|name| !files.contains_key(name)) {
        Some(missing) => Err(Fault::at(missing, "the bundle does not hold it")),
        None => Ok(files),
    }
}

pub(crate) fn verify(bytes: &[u8], pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
    let files = unpack(bytes)?;
    let (manifest, key) = check_manifest(&files[MANIFEST], pinned)?;
    if sha256(&files[ENTRIES]) != manifest.entries_sha256 {
        return Err(Fault::at(ENTRIES, "it does not have the digest that the manifest names"));
    }
    let events = check_events(&files[EVENTS], &files[ENTRIES])?;
    if sha256(&files[EVENTS]) != manifest.events_jsonl_sha256 || events.len() as u64 != manifest.fact_count {
        return Err(Fault::at(EVENTS, "it does not have the digest or the number of entries that the manifest names"));
    }
    let (receipt_count, receipts) = references(&events);
    if sha256(&files[RECEIPTS]) != manifest.receipts_cbor_sha256 || receipts != files[RECEIPTS] || receipt_count != manifest.receipt_count {
        return Err(Fault::at(RECEIPTS, "it does not have the digest that the manifest names, or not the receipts that the facts name"));
    }
    let in_receipt = |fault: Fault| match fault {
        Fault::Invalid { at, problem } => Fault::Invalid { at: format!("{RECEIPT} {at}"), problem },
        Fault::Unreadable(problem) => Fault::at(RECEIPT, problem),
    };
    let text = std::str::from_utf8(&files[RECEIPT]).map_err(|_| Fault::at(RECEIPT, "it is no text"))?;
    let receipt: ReceiptFile = read(text).map_err(in_receipt)?;
    let told: Option<ExportRecorded> = hex::decode(&receipt.body).ok().and_then(|body| read_body(&body));
    let log = receipt.verify(Some(&key)).map_err(in_receipt)?;
    let is_same =
        told.is_some_and(|told| Manifest { signature_b64: manifest.signature_b64.clone(), ..Manifest::of(told, &key) } == manifest);
    if !is_same {
        return Err(Fault::at(RECEIPT, "the log tells of another export than the manifest"));
    }
    let shows = format!(
        "bundle `{}` holds {} facts of `{}` up to {}, as exported at {}",
        manifest.bundle_id, manifest.fact_count, manifest.tenant_id, manifest.until, manifest.generated_at
    );
    Ok(Report { form: FORM, shows, ..log })
}

fn check_manifest(bytes: &[u8], pinned: Option<&VerifyingKey>) -> Result<(Manifest, VerifyingKey), Fault> {
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| Fault::at(MANIFEST, format!("it can't be read: {error}")))?;
    if manifest.text().as_bytes() != bytes {
        return Err(Fault::at(MANIFEST, "it is not in the form in which it was written"));
    }
    if manifest.bundle_format_version != 3 {
        return Err(Fault::at(MANIFEST, "its `bundle_format_version` is none that this version knows"));
    }
    let public_key = BASE64.decode(&manifest.signer_public_key_b64).map(hex::encode).unwrap_or_default();
    let key = crate::file::key(&public_key, pinned)?;
    let signature = BASE64.decode(&manifest.signature_b64).ok().and_then(|bytes| Signature::from_slice(&bytes).ok());
    let is_signed = signature.is_some_and(|signature| key.verify_strict(&manifest.signed_bytes(), &signature).is_ok());
    match is_signed {
        true => Ok((manifest, key)),
        false => Err(Fault::at(MANIFEST, "its signature does not match it")),
    }
}

/// The entries, if each is the one of its place.
fn check_events(events: &[u8], entries: &[u8]) -> Result<Vec<Event>, Fault> {
    let mut wanted = entries.split_inclusive(|byte| *byte == b'\n');
    let mut found = Vec::new();
    for (n, line) in events.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let event: Option<Event> = serde_json::from_slice(line).ok();
        let name = event.as_ref().map(|event| format!(" ({})", event.fact_id)).unwrap_or_default();
        let at = format!("{EVENTS} entry {n}{name}");
        let Some(wanted) = wanted.next() else { return Err(Fault::at(at, "there are more entries than were exported")) };
        let digest = line.strip_suffix(b"\n").map(|line| sha256(line) + "\n");
        match (event, digest) {
            (Some(event), Some(digest)) if digest.as_bytes() == wanted => found.push(event),
            _ => return Err(Fault::at(at, "it is not the entry that was exported here: it was changed, moved, or one before it is gone")),
        }
    }
    match wanted.next() {
        Some(_) => Err(Fault::at(format!("{EVENTS} entry {}", found.len()), "it is missing, and maybe more after it")),
        None => Ok(found),
    }
}
