//! Which keys somebody can trust who trusts one of them: those that are linked to it by the word of both keys of each rotation.

use ed25519_dalek::VerifyingKey;
use quorate_domain::UnixMs;
use quorate_domain::identity::key_fingerprint;
use quorate_domain::key_ring::{ReceiptKey, ReceiptKeys, Succession, succeeded};
use serde::Deserialize;

use crate::note;

/// Keys by id.
pub type Keys = Vec<(String, VerifyingKey)>;

/// The pinned keys, and those of the ring that they lead to, forwards and backwards.
pub fn trusted(pinned: &[(String, VerifyingKey)], ring: &ReceiptKeys) -> Keys {
    let mut known: Keys = pinned.to_vec();
    let links: Vec<(VerifyingKey, VerifyingKey)> = ring.keys.iter().filter_map(succeeded).collect();
    loop {
        let is_known = |key: &VerifyingKey| known.iter().any(|(_, known)| known == key);
        let next = links.iter().find_map(|(before, own)| match (is_known(before), is_known(own)) {
            (true, false) => Some(*own),
            (false, true) => Some(*before),
            _ => None,
        });
        let Some(next) = next else { return known };
        known.push((key_fingerprint(next.as_bytes()), next));
    }
}

/// The ring as `GET /v1/log/keys` and `quorate key list --json` tell it, which tell more besides.
#[derive(Debug, Deserialize)]
pub struct Ring {
    keys: Vec<Row>,
    #[serde(default)]
    cosigners: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Row {
    key_id: String,
    public_key: String,
    #[serde(default)]
    succession: Option<Succession>,
}

#[derive(Debug, Deserialize)]
struct Node {
    name: String,
    public_key: String,
}

impl Ring {
    pub fn read(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| format!("it is no ring of keys: {error}"))
    }

    fn receipt(&self) -> ReceiptKeys {
        let key = |row: &Row| ReceiptKey {
            key_id: row.key_id.clone(),
            public_key: row.public_key.clone(),
            added_at: UnixMs(0),
            succession: row.succession.clone(),
        };
        ReceiptKeys { keys: self.keys.iter().map(key).collect(), ..ReceiptKeys::default() }
    }

    /// Which receipt keys to trust: those that the pinned ones lead to, or all of them where none is pinned.
    pub fn receipt_keys(&self, pinned: &[VerifyingKey]) -> Vec<VerifyingKey> {
        let pinned: Keys = match pinned.is_empty() {
            true => self.keys.iter().filter_map(|row| Some((row.key_id.clone(), public(&row.public_key)?))).collect(),
            false => pinned.iter().map(|key| (key_fingerprint(key.as_bytes()), *key)).collect(),
        };
        trusted(&pinned, &self.receipt()).into_iter().map(|(_, key)| key).collect()
    }

    /// The nodes' keys as notes have them.
    pub fn cosigner_keys(&self) -> Vec<String> {
        let text = |node: &Node| Some(note::cosigner_key(&node.name, &public(&node.public_key)?));
        self.cosigners.iter().filter_map(text).collect()
    }
}

/// 32 bytes in hex that are an Ed25519 public key.
pub fn public(text: &str) -> Option<VerifyingKey> {
    VerifyingKey::from_bytes(&hex::decode(text).ok()?.try_into().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use quorate_domain::Revision;

    use super::*;
    use crate::Signer;

    fn signer(byte: &str) -> Signer {
        Signer::from_hex(&byte.repeat(32), "c").unwrap()
    }

    fn followed(before: &str, own: &str) -> ReceiptKey {
        let (before, own) = (signer(before), signer(own));
        let succession = Succession {
            predecessor: before.public_key(),
            by_predecessor: before.succession(&before, &own),
            by_successor: own.succession(&before, &own),
            signs_from: Revision(1),
        };
        ReceiptKey { key_id: String::new(), public_key: own.public_key(), added_at: UnixMs(1), succession: Some(succession) }
    }

    #[test]
    fn one_key_leads_to_all_that_it_followed_and_that_followed_it_and_to_no_other() {
        let mut stranger = followed("05", "06");
        let mut ring =
            ReceiptKeys { keys: vec![followed("03", "04"), followed("02", "03"), followed("01", "02")], ..ReceiptKeys::default() };
        ring.keys.push(stranger.clone());
        // Somebody who holds neither key says that 6 follows 4.
        stranger.succession.as_mut().unwrap().predecessor = signer("04").public_key();
        ring.keys.push(stranger);
        for pinned in ["01", "02", "03", "04"] {
            let key = signer(pinned).public_key();
            let found = trusted(&[(String::new(), public(&key).unwrap())], &ring);
            let mut found: Vec<String> = found.iter().map(|(_, key)| hex::encode(key.as_bytes())).collect();
            found.sort();
            let mut wanted = ["01", "02", "03", "04"].map(|byte| signer(byte).public_key());
            wanted.sort();
            assert_eq!(found, wanted, "from {pinned}");
        }
        assert!(trusted(&[], &ring).is_empty());
    }
}
