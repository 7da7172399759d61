//! Signed notes and the heads of logs written in them, as C2SP's `signed-note` and `tlog-checkpoint` have them.
//!
//! The head of a log is three lines: its origin, the number of its leaves, and the root of its tree in base64. A signature of it
//! is a line below an empty line. The key's name is the origin, so standard tools need nothing but [`verifier_key`]. Nodes cosign a
//! head as C2SP's `tlog-cosignature` has it: a line more, over the same text and the time.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use quorate_domain::merkle::Hash;
use sha2::{Digest, Sha256};

/// The number of Ed25519 among the kinds of keys, and that of Ed25519 for cosignatures with a time.
const ED25519: u8 = 1;
const COSIGNATURE: u8 = 4;
/// A tenant's name in an origin, at the most: origins of more than 255 bytes can't be cosigned.
const TENANT_BYTES_MAX: usize = 128;

/// The name of a tenant's log: `quorate/<cluster>/<tenant>`, what is not a letter, a digit, `-`, `.` or `_` as `%` and two hex
/// digits. A name that is too long for that is `~` and the hex BLAKE3 of it.
pub fn origin(cluster_id: &str, tenant: &str) -> String {
    let escaped = escape(tenant);
    let tenant = match escaped.len() > TENANT_BYTES_MAX {
        true => format!("~{}", blake3::hash(tenant.as_bytes()).to_hex()),
        false => escaped,
    };
    format!("quorate/{}/{tenant}", escape(cluster_id))
}

fn escape(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.bytes().map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Whether an origin names the log of this tenant, in whatever cluster.
pub fn is_of_tenant(origin: &str, tenant: &str) -> bool {
    let mut parts = origin.splitn(3, '/');
    let cluster = (parts.next() == Some("quorate")).then(|| parts.next()).flatten();
    // A cluster's id is plain, or it is escaped already; either way only the last part depends on the tenant.
    cluster.is_some_and(|_| parts.next() == self::origin("", tenant).rsplit('/').next())
}

/// How a note names a key: four bytes of SHA-256 over its name, kind and public bytes.
fn key_hash(name: &str, kind: u8, key: &VerifyingKey) -> [u8; 4] {
    let hash = Sha256::new().chain_update(name).chain_update([b'\n', kind]).chain_update(key.as_bytes()).finalize();
    [hash[0], hash[1], hash[2], hash[3]]
}

fn key_text(name: &str, kind: u8, key: &VerifyingKey) -> String {
    let typed = [&[kind], key.as_bytes().as_slice()].concat();
    format!("{name}+{}+{}", hex::encode(key_hash(name, kind, key)), BASE64.encode(typed))
}

/// A key with its name, in the form that note tools are given.
pub fn verifier_key(name: &str, key: &VerifyingKey) -> String {
    key_text(name, ED25519, key)
}

/// The same of a key that cosigns.
pub fn cosigner_key(name: &str, key: &VerifyingKey) -> String {
    key_text(name, COSIGNATURE, key)
}

/// Name and key of a [`cosigner_key`], if it is written as that writes it.
pub fn read_cosigner_key(text: &str) -> Option<(String, VerifyingKey)> {
    let mut parts = text.splitn(3, '+');
    let (name, _, typed) = (parts.next()?, parts.next()?, parts.next()?);
    let typed: [u8; 33] = BASE64.decode(typed).ok()?.try_into().ok()?;
    let key = VerifyingKey::from_bytes(typed.last_chunk()?).ok()?;
    (cosigner_key(name, &key) == text).then(|| (name.to_owned(), key))
}

/// The note of a text, which ends with a newline.
pub fn sign(text: &str, name: &str, key: &SigningKey) -> String {
    let signature = key.sign(text.as_bytes()).to_bytes();
    let signed = [key_hash(name, ED25519, &key.verifying_key()).as_slice(), &signature].concat();
    format!("{text}\n— {name} {}\n", BASE64.encode(signed))
}

/// What a cosigner signs of a note's text.
fn cosigned(text: &str, at_unix_s: u64) -> Vec<u8> {
    format!("cosignature/v1\ntime {at_unix_s}\n{text}").into_bytes()
}

/// The line, with its end, by which a key cosigns a note of this text at that second of the Unix epoch.
pub fn cosign(text: &str, name: &str, key: &SigningKey, at_unix_s: u64) -> String {
    let signature = key.sign(&cosigned(text, at_unix_s)).to_bytes();
    let hash = key_hash(name, COSIGNATURE, &key.verifying_key());
    let signed = [hash.as_slice(), &at_unix_s.to_be_bytes(), &signature].concat();
    format!("— {name} {}\n", BASE64.encode(signed))
}

/// The second of the Unix epoch at which this key has cosigned the text, by a line without its end.
pub fn open_cosignature(line: &str, text: &str, name: &str, key: &VerifyingKey) -> Result<u64, String> {
    let Line { signer, hash, signature } = Line::of(line)?;
    let (at, signature) = signature.split_first_chunk::<8>().ok_or("a cosignature is too short")?;
    if signer != name || hash != key_hash(name, COSIGNATURE, key) {
        return Err(format!("it is not a cosignature by this key as `{name}`"));
    }
    let at = u64::from_be_bytes(*at);
    let signature = Signature::from_slice(signature).map_err(|_| "a cosignature has the wrong length")?;
    let is_signed = key.verify_strict(&cosigned(text, at), &signature).is_ok();
    if is_signed { Ok(at) } else { Err(format!("the cosignature of `{name}` does not match its text")) }
}

/// A line below a note's text.
struct Line<'a> {
    signer: &'a str,
    hash: [u8; 4],
    signature: Vec<u8>,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Result<Self, String> {
        let parts = line.strip_prefix("— ").and_then(|line| line.split_once(' '));
        let (signer, encoded) = parts.ok_or("a line below the empty line is no signature")?;
        let bytes = BASE64.decode(encoded).map_err(|error| format!("a signature is no base64: {error}"))?;
        let (hash, signature) = bytes.split_first_chunk::<4>().ok_or("a signature is too short")?;
        Ok(Self { signer, hash: *hash, signature: signature.to_vec() })
    }
}

/// A note's text, with the newline at its end, and the lines of its signatures without theirs.
pub fn split(note: &str) -> Result<(&str, Vec<&str>), String> {
    let (text, signatures) = note.rsplit_once("\n\n").ok_or("it has no empty line before its signatures")?;
    let lines = signatures.strip_suffix('\n').ok_or("its last line does not end")?;
    Ok((&note[..text.len() + 1], lines.split('\n').collect()))
}

/// The text of a note, if this key has signed it under this name. Lines of other keys, such as witnesses, are passed over.
pub fn open<'a>(note: &'a str, name: &str, key: &VerifyingKey) -> Result<&'a str, String> {
    let (text, lines) = split(note)?;
    let mut is_named = false;
    for line in lines {
        let Line { signer, hash, signature } = Line::of(line)?;
        if signer != name || hash != key_hash(name, ED25519, key) {
            continue;
        }
        is_named = true;
        if let Ok(signature) = Signature::from_slice(&signature)
            && key.verify_strict(text.as_bytes(), &signature).is_ok()
        {
            return Ok(text);
        }
    }
    match is_named {
        true => Err("its signature does not match its text".into()),
        false => Err(format!("it is not signed by this key as `{name}`")),
    }
}

/// The head of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    pub origin: String,
    pub size: u64,
    pub root: Hash,
}

impl Head {
    pub fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, BASE64.encode(self.root))
    }

    /// The head in a note that this key has signed.
    pub fn open(note: &str, key: &VerifyingKey) -> Result<Self, String> {
        let origin = note.split('\n').next().unwrap_or_default();
        let text = open(note, origin, key)?;
        let mut lines = text.split('\n').skip(1);
        let size = lines.next().and_then(|size| size.parse().ok().filter(|number: &u64| number.to_string() == size));
        let root = lines.next().and_then(|root| BASE64.decode(root).ok()?.try_into().ok());
        match (size, root) {
            (Some(size), Some(root)) => Ok(Self { origin: origin.into(), size, root }),
            _ => Err("it does not hold a size and a root".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the documentation of Go's `golang.org/x/mod/sumdb/note`, which defined the format.
    const SECRET: &str = "AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz";
    const VERIFIER: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    const TEXT: &str = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n";
    const SIGNED: &str = "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";

    fn key() -> SigningKey {
        let secret = BASE64.decode(SECRET).unwrap();
        SigningKey::from_bytes(secret[1..].try_into().unwrap())
    }

    #[test]
    fn a_note_is_the_one_that_the_format_was_published_with() {
        assert_eq!(verifier_key("PeterNeumann", &key().verifying_key()), VERIFIER);
        assert_eq!(sign(TEXT, "PeterNeumann", &key()), format!("{TEXT}\n{SIGNED}"));
    }

    #[test]
    fn a_note_opens_with_signatures_of_others_beside_and_not_when_a_byte_is_changed() {
        let (note, key) = (sign(TEXT, "PeterNeumann", &key()), key().verifying_key());
        let witness = sign(TEXT, "witness", &SigningKey::from_bytes(&[9; 32]));
        let cosigned = format!("{TEXT}\n{}{SIGNED}", witness.rsplit_once("\n\n").unwrap().1);
        assert_eq!(open(&cosigned, "PeterNeumann", &key), Ok(TEXT));
        assert_eq!(open(&note, "Peter", &key), Err("it is not signed by this key as `Peter`".into()));
        for at in 0..note.len() {
            let mut changed = note.clone().into_bytes();
            changed[at] ^= 1;
            if let Ok(changed) = String::from_utf8(changed) {
                assert!(open(&changed, "PeterNeumann", &key).is_err(), "byte {at}: {changed}");
            }
        }
    }

    #[test]
    fn a_cosignature_is_of_its_key_its_text_and_its_time() {
        let (cosigner, text) = (SigningKey::from_bytes(&[9; 32]), "o\n7\nAAAA\n");
        let line = cosign(text, "w/1", &cosigner, 1_900_000_000);
        let key = cosigner.verifying_key();
        let open = |line: &str, text: &str, name: &str| open_cosignature(line, text, name, &key);
        assert_eq!(open(line.trim_end(), text, "w/1"), Ok(1_900_000_000));
        assert!(open(line.trim_end(), "o\n8\nAAAA\n", "w/1").is_err() && open(line.trim_end(), text, "w/2").is_err());
        let later = BASE64.decode(line.trim_end().rsplit(' ').next().unwrap()).unwrap();
        for at in 0..later.len() {
            let mut changed = later.clone();
            changed[at] ^= 1;
            assert!(open(&format!("— w/1 {}", BASE64.encode(changed)), text, "w/1").is_err(), "byte {at}");
        }
        let told = cosigner_key("w/1", &key);
        assert_eq!(read_cosigner_key(&told), Some(("w/1".into(), key)));
        assert_eq!(read_cosigner_key(&verifier_key("w/1", &key)), None, "a key of another kind");
    }

    #[test]
    fn a_head_comes_back_as_it_was_signed_and_names_its_tenant() {
        let head = Head { origin: origin("c-1", "a b/ü"), size: 7, root: [3; 32] };
        assert_eq!(head.origin, "quorate/c-1/a%20b%2F%C3%BC");
        let note = sign(&head.text(), &head.origin, &key());
        assert_eq!(Head::open(&note, &key().verifying_key()), Ok(head.clone()));
        assert!(is_of_tenant(&head.origin, "a b/ü") && !is_of_tenant(&head.origin, "a b") && !is_of_tenant("quorate", "a b"));
        let long = origin("c-1", &"ü".repeat(100));
        assert!(long.len() < 100 && is_of_tenant(&long, &"ü".repeat(100)), "{long}");
        let odd = sign("o\n07\nAAAA\n", "o", &key());
        assert_eq!(Head::open(&odd, &key().verifying_key()), Err("it does not hold a size and a root".into()));
    }
}
