//! The manifest store of an attested output, as readers of C2PA take it: JUMBF boxes around CBOR, signed with COSE by an X.509
//! certificate.
//!
//! It is a file of its own beside the content (a sidecar, `application/c2pa`), bound to all of the content's bytes by SHA-256, since C2PA
//! knows no BLAKE3. What the cluster's own receipt says stands in it as an assertion. Only what is needed of C2PA 2.x is here: one
//! manifest, made and not edited, without thumbnails, ingredients and timestamps. So it is valid for as long as the certificate is.

use ciborium::Value;
use quorate_domain::attestation::OutputClaim;
use sha2::{Digest, Sha256};

/// How the certificate's key signs, by its number in COSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Ed25519,
    /// ECDSA on P-256 with SHA-256: 64 bytes, the two numbers one after the other.
    Es256,
}

impl Algorithm {
    fn number(self) -> i64 {
        match self {
            Self::Ed25519 => -8,
            Self::Es256 => -7,
        }
    }
}

/// The end of the type of every JUMBF box; four letters stand before it.
const TYPE_END: [u8; 12] = [0x00, 0x11, 0x00, 0x10, 0x80, 0x00, 0x00, 0xAA, 0x00, 0x38, 0x9B, 0x71];
/// A box can be named, and is.
const NAMED: u8 = 0b11;
/// Of COSE: the kind of signature, and the chain of certificates, the signer's first.
const ALGORITHM: i64 = 1;
const X5CHAIN: i64 = 33;
/// The tag of a COSE_Sign1.
const SIGN1: u64 = 18;

fn plain_box(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    // What is boxed here is some KiB: a claim of bounded texts, hashes and a chain of certificates.
    let size = u32::try_from(content.len() + 8).expect("a manifest has less than 4 GiB");
    [&size.to_be_bytes(), kind.as_slice(), content].concat()
}

fn named_box(kind: &[u8; 4], label: &str, content: &[Vec<u8>]) -> Vec<u8> {
    let description = [kind.as_slice(), &TYPE_END, &[NAMED], label.as_bytes(), &[0]].concat();
    plain_box(b"jumb", &[plain_box(b"jumd", &description), content.concat()].concat())
}

fn cbor(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("plain values always encode, and a Vec takes them all");
    bytes
}

fn text(text: impl Into<String>) -> Value {
    Value::Text(text.into())
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (text(name), value)).collect())
}

/// The name of a manifest, which has to hold a UUID: one that follows from the id that the claim has here.
fn uuid(of: &str, manifest_id: &str) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::derive_key(of, manifest_id.as_bytes())[..16]);
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    let hex = hex::encode(bytes);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// One assertion: its label, and its box.
fn assertion(label: &str, value: Value) -> (String, Vec<u8>) {
    (label.into(), named_box(b"cbor", label, &[plain_box(b"cbor", &cbor(&value))]))
}

/// The manifest store for a content of this SHA-256. `sign` is given what the key of the chain's first certificate has to sign; the
/// certificates are DER, that of the root may be left out.
pub fn manifest_store<E>(
    claim: &OutputClaim,
    content_sha256: &[u8; 32],
    algorithm: Algorithm,
    chain: &[Vec<u8>],
    sign: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let label = format!("urn:c2pa:{}", uuid("quorate 2026 c2pa manifest", &claim.manifest_id));
    let actions = claim.actions.iter().map(|action| {
        map([
            ("action", text(action.action.as_str())),
            ("when", text(action.when.as_str())),
            ("softwareAgent", map([("name", text(action.software_agent.as_str()))])),
            ("digitalSourceType", text(format!("http://cv.iptc.org/newscodes/digitalsourcetype/{}", action.digital_source_type))),
        ])
    });
    let hash = map([
        ("alg", text("sha256")),
        ("hash", Value::Bytes(content_sha256.to_vec())),
        ("name", text("content")),
        ("pad", Value::Bytes(Vec::new())),
    ]);
    let receipt = map([
        ("manifest_id", text(claim.manifest_id.as_str())),
        ("crown_receipt_id", text(claim.crown_receipt_id.as_str())),
        ("signer_passport", text(claim.signer_passport.as_str())),
        ("content_hash_alg", text(claim.content_hash_alg.as_str())),
        ("content_hash_hex", text(claim.content_hash_hex.as_str())),
    ]);
    let assertions = [
        assertion("c2pa.actions.v2", map([("actions", Value::Array(actions.collect()))])),
        assertion("c2pa.hash.data", hash),
        assertion("org.quorate.receipt", receipt),
    ];
    let (generator, version) = claim.claim_generator.split_once('/').unwrap_or((&claim.claim_generator, "0"));
    let named = assertions.iter().map(|(label, boxed)| {
        // Hashed is what is in the box, without its own size and kind.
        map([("url", text(format!("self#jumbf=c2pa.assertions/{label}"))), ("hash", Value::Bytes(Sha256::digest(&boxed[8..]).to_vec()))])
    });
    let claimed = cbor(&map([
        ("instanceID", text(format!("xmp:iid:{}", uuid("quorate 2026 c2pa instance", &claim.manifest_id)))),
        ("claim_generator_info", map([("name", text(generator)), ("version", text(version))])),
        ("signature", text(format!("self#jumbf=/c2pa/{label}/c2pa.signature"))),
        ("created_assertions", Value::Array(named.collect())),
        ("alg", text("sha256")),
    ]));
    let signature = sign1(&claimed, algorithm, chain, sign)?;
    let [actions, hash, receipt] = assertions.map(|(_, boxed)| boxed);
    let manifest = [
        named_box(b"c2as", "c2pa.assertions", &[actions, hash, receipt]),
        named_box(b"c2cl", "c2pa.claim.v2", &[plain_box(b"cbor", &claimed)]),
        named_box(b"c2cs", "c2pa.signature", &[plain_box(b"cbor", &signature)]),
    ];
    Ok(named_box(b"c2pa", "c2pa", &[named_box(b"c2ma", &label, &manifest)]))
}

/// A COSE_Sign1 over what stands elsewhere.
fn sign1<E>(payload: &[u8], algorithm: Algorithm, chain: &[Vec<u8>], sign: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
    let certificates = chain.iter().map(|certificate| Value::Bytes(certificate.clone())).collect();
    let protected = cbor(&Value::Map(vec![(ALGORITHM.into(), algorithm.number().into()), (X5CHAIN.into(), Value::Array(certificates))]));
    let signed = cbor(&Value::Array(vec![
        text("Signature1"),
        Value::Bytes(protected.clone()),
        Value::Bytes(Vec::new()),
        Value::Bytes(payload.to_vec()),
    ]));
    let parts = vec![Value::Bytes(protected), Value::Map(Vec::new()), Value::Null, Value::Bytes(sign(&signed)?)];
    Ok(cbor(&Value::Tag(SIGN1, Box::new(Value::Array(parts)))))
}
