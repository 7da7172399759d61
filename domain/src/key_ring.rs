//! The ring of public keys: those that receipts and heads were ever signed with, and those that nodes cosign heads with.
//! Cluster-wide, public, and only ever added to.
//!
//! What is shown today is signed with the key of today; who checks a file that was saved under an earlier one finds it here.
//! Invariants:
//! * At most one key signs at a time, and which one it is changes in one entry, at all nodes.
//! * A key follows another only with the word of both: whoever trusts one of them can go on to the other with nobody's help.
//! * A key that another has followed never signs again.

use ed25519_dalek::{Signature, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::identity::{check_name, key_fingerprint, needs_admin};
use crate::key::Key;
use crate::limit::{COSIGNERS_MAX, RECEIPT_KEYS_MAX};
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};

/// One key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiptKey {
    /// The first 16 hex digits of the BLAKE3 of its bytes, as receipts name it.
    pub key_id: String,
    /// Ed25519, 32 bytes in hex.
    pub public_key: String,
    pub added_at: UnixMs,
    /// How it came to follow the key before it; absent for the first one, and for one that was only added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succession: Option<Succession>,
}

/// How one key follows another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Succession {
    /// The key before: 32 bytes in hex.
    pub predecessor: String,
    /// Ed25519 by the key before over [`succession_bytes`], in hex.
    pub by_predecessor: String,
    /// The same by the key itself.
    pub by_successor: String,
    /// What nodes serve from this revision on is signed with it.
    pub signs_from: Revision,
}

impl Record for ReceiptKey {
    const KIND: Kind = Kind::ReceiptKey;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new().text(&self.key_id)
    }
}

/// The key that nodes sign with, once there was a rotation. Before that they sign with the one that they were set up with.
#[derive(Serialize, Deserialize)]
struct SigningKey {
    public_key: String,
}

impl Record for SigningKey {
    const KIND: Kind = Kind::ReceiptSigningKey;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

/// The public key, in hex, that nodes have to sign with; `None` before the first rotation.
pub fn signing_key(view: &(impl Read + ?Sized)) -> Result<Option<String>, StorageError> {
    Ok(view.get::<SigningKey>(CLUSTER, &Key::new())?.map(|key| key.public_key))
}

/// What both keys sign when one follows the other.
pub fn succession_bytes(predecessor: &[u8; 32], successor: &[u8; 32]) -> Vec<u8> {
    [b"quorate receipt key succession 1\0".as_slice(), predecessor, successor].concat()
}

/// 32 bytes in hex that are an Ed25519 public key.
fn public_key(field: &str, text: &str) -> Result<VerifyingKey, Refusal> {
    let bytes = hex::decode(text).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| Refusal::invalid(field, "is not 32 bytes in hex"))?;
    VerifyingKey::from_bytes(&bytes).map_err(|_| Refusal::invalid(field, "is no Ed25519 public key"))
}

fn is_signed(by: &VerifyingKey, message: &[u8], signature: &str) -> bool {
    let signature = hex::decode(signature).ok().and_then(|bytes| Signature::from_slice(&bytes).ok());
    signature.is_some_and(|signature| by.verify_strict(message, &signature).is_ok())
}

/// The key of an entry that follows another, and the one before it, if the word of both holds.
pub fn succeeded(key: &ReceiptKey) -> Option<(VerifyingKey, VerifyingKey)> {
    let succession = key.succession.as_ref()?;
    let before = public_key("predecessor", &succession.predecessor).ok()?;
    let own = public_key("public_key", &key.public_key).ok()?;
    let message = succession_bytes(before.as_bytes(), own.as_bytes());
    let holds = is_signed(&before, &message, &succession.by_predecessor) && is_signed(&own, &message, &succession.by_successor);
    holds.then_some((before, own))
}

// ------------------------------------------------------------------ receipt keys

/// Adds a key; one that is there stays as it is. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddReceiptKey {
    pub public_key: String,
}

impl AddReceiptKey {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ReceiptKey> {
        if let Some(refusal) = needs_admin(at) {
            return Ok(Err(refusal));
        }
        let Some(bytes) = hex::decode(&self.public_key).ok().filter(|bytes| bytes.len() == 32) else {
            return Ok(Err(Refusal::invalid("public_key", "is not 32 bytes in hex")));
        };
        add(tx, at, &bytes, None)
    }
}

fn add(tx: &mut impl Tx, at: &Stamp, public: &[u8], succession: Option<Succession>) -> Applied<ReceiptKey> {
    let key_id = key_fingerprint(public);
    let known = tx.get::<ReceiptKey>(CLUSTER, &Key::new().text(&key_id))?;
    let key = match (known, succession) {
        (Some(known), None) => return Ok(Ok(known)),
        (Some(known), succession) => ReceiptKey { succession, ..known },
        (None, succession) => {
            if tx.page::<ReceiptKey>(CLUSTER, &Key::new(), None, RECEIPT_KEYS_MAX)?.items.len() >= RECEIPT_KEYS_MAX {
                let what = "the ring of receipt keys".into();
                return Ok(Err(Refusal::Full { what, limit: RECEIPT_KEYS_MAX as u64, retry_after_ms: 0 }));
            }
            ReceiptKey { key_id, public_key: hex::encode(public), added_at: at.wall, succession }
        }
    };
    tx.put(&key);
    Ok(Ok(key))
}

/// Has nodes sign with another key from this entry on. An operator's act, with the word of both keys; the nodes have to hold the
/// new one already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RotateReceiptKey {
    pub public_key: String,
    /// The key that signs now.
    pub predecessor: String,
    pub by_predecessor: String,
    pub by_successor: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiptKeyRotated {
    pub key: ReceiptKey,
    /// False when it was the one that signs already.
    pub changed: bool,
}

impl RotateReceiptKey {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ReceiptKeyRotated> {
        if let Some(refusal) = needs_admin(at) {
            return Ok(Err(refusal));
        }
        let own = match public_key("public_key", &self.public_key) {
            Ok(key) => key,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let before = match public_key("predecessor", &self.predecessor) {
            Ok(key) => key,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (public_key, predecessor) = (hex::encode(own.as_bytes()), hex::encode(before.as_bytes()));
        let signing = signing_key(tx)?;
        let known: Option<ReceiptKey> = tx.get(CLUSTER, &Key::new().text(key_fingerprint(own.as_bytes()).as_str()))?;
        if let (true, Some(key)) = (signing.as_ref() == Some(&public_key), &known) {
            return Ok(Ok(ReceiptKeyRotated { key: key.clone(), changed: false }));
        }
        if own == before {
            return Ok(Err(Refusal::invalid("public_key", "is the key that signs now")));
        }
        if let Some(signing) = signing.filter(|signing| *signing != predecessor) {
            let (id, expected, found) = (public_key, predecessor, signing);
            return Ok(Err(Refusal::Changed { what: "the key before".into(), id, expected, found }));
        }
        let ring = tx.page::<ReceiptKey>(CLUSTER, &Key::new(), None, RECEIPT_KEYS_MAX)?.items;
        let followed = |key: &ReceiptKey| key.succession.as_ref().is_some_and(|succession| succession.predecessor == public_key);
        if ring.iter().any(followed) {
            let (what, found) = ("the receipt key".into(), "was followed by another, and never signs again".into());
            return Ok(Err(Refusal::Spent { what, id: public_key, found }));
        }
        // Known also before its successor, since it may have signed for years without anybody having added it.
        if let Err(refusal) = add(tx, at, before.as_bytes(), None)? {
            return Ok(Err(refusal));
        }
        let Self { by_predecessor, by_successor, .. } = self;
        let succession = Succession { predecessor, by_predecessor, by_successor, signs_from: at.revision };
        let key = match add(tx, at, own.as_bytes(), Some(succession))? {
            Ok(key) => key,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if succeeded(&key).is_none() {
            return Ok(Err(Refusal::invalid("by_predecessor", "and `by_successor` are not the signatures of both keys")));
        }
        tx.put(&SigningKey { public_key });
        Ok(Ok(ReceiptKeyRotated { key, changed: true }))
    }
}

// ------------------------------------------------------------------ keys of nodes

/// The key with which one node cosigns heads. Each node has one of its own, which never leaves it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cosigner {
    pub node_id: u64,
    /// Under which it cosigns, as notes name keys.
    pub name: String,
    /// Ed25519, 32 bytes in hex.
    pub public_key: String,
    pub added_at: UnixMs,
}

impl Record for Cosigner {
    const KIND: Kind = Kind::Cosigner;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new().text(&self.public_key)
    }
}

/// Adds the key of a node; one that is there stays as it is. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddCosigner {
    pub node_id: u64,
    pub name: String,
    pub public_key: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CosignerAdded {
    pub cosigner: Cosigner,
    /// False when it was there already.
    pub changed: bool,
}

impl AddCosigner {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<CosignerAdded> {
        if let Some(refusal) = needs_admin(at).or_else(|| check_name("name", &self.name)) {
            return Ok(Err(refusal));
        }
        if self.name.chars().any(|c| c.is_whitespace() || c == '+') {
            return Ok(Err(Refusal::invalid("name", "must hold neither white space nor `+`, as names of keys in notes")));
        }
        let public_key = match public_key("public_key", &self.public_key) {
            Ok(key) => hex::encode(key.as_bytes()),
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(cosigner) = tx.get::<Cosigner>(CLUSTER, &Key::new().text(&public_key))? {
            // Two nodes of one key would count as two witnesses, and be one.
            return Ok(match cosigner.node_id == self.node_id && cosigner.name == self.name {
                true => Ok(CosignerAdded { cosigner, changed: false }),
                false => Err(Refusal::invalid("public_key", format!("is the key of node {} already", cosigner.node_id))),
            });
        }
        if tx.page::<Cosigner>(CLUSTER, &Key::new(), None, COSIGNERS_MAX)?.items.len() >= COSIGNERS_MAX {
            let what = "the ring of the nodes' keys".into();
            return Ok(Err(Refusal::Full { what, limit: COSIGNERS_MAX as u64, retry_after_ms: 0 }));
        }
        let cosigner = Cosigner { node_id: self.node_id, name: self.name, public_key, added_at: at.wall };
        tx.put(&cosigner);
        Ok(Ok(CosignerAdded { cosigner, changed: true }))
    }
}

// ------------------------------------------------------------------ the ring

/// All keys, the oldest first. There are few.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListReceiptKeys {}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceiptKeys {
    pub keys: Vec<ReceiptKey>,
    /// The public key that nodes sign with, in hex; absent before the first rotation.
    #[serde(default)]
    pub signing: Option<String>,
    #[serde(default)]
    pub cosigners: Vec<Cosigner>,
}

impl ListReceiptKeys {
    pub fn run(self, view: &impl Read, _: &ReadStamp) -> Applied<ReceiptKeys> {
        let mut keys = view.page::<ReceiptKey>(CLUSTER, &Key::new(), None, RECEIPT_KEYS_MAX)?.items;
        keys.sort_by(|a, b| (a.added_at, &a.key_id).cmp(&(b.added_at, &b.key_id)));
        let mut cosigners = view.page::<Cosigner>(CLUSTER, &Key::new(), None, COSIGNERS_MAX)?.items;
        cosigners.sort_by(|a, b| (a.node_id, a.added_at, &a.public_key).cmp(&(b.node_id, b.added_at, &b.public_key)));
        Ok(Ok(ReceiptKeys { keys, signing: signing_key(view)?, cosigners }))
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::Signer as _;

    use super::*;
    use crate::transcript::{World, person};

    #[test]
    fn a_key_once_added_stays_and_is_added_once() {
        let mut world = World::new();
        let add = |byte: &str| AddReceiptKey { public_key: byte.repeat(32) };
        let first = world.call("1s", person("olga"), None, add("0A")).unwrap();
        let second = world.call("2s", person("olga"), None, add("01")).unwrap();
        assert_eq!(world.call("3s", person("olga"), None, add("0a")), Ok(first.clone()));
        let ring = world.ask("4s", person("eve"), ListReceiptKeys {}).unwrap();
        assert_eq!(ring.keys, [first, second], "every tenant sees them, the oldest first");
        assert!(matches!(world.call("5s", person("mara"), None, add("02")), Err(Refusal::Denied { .. })));
        assert_eq!(world.call("5s", person("olga"), None, add("0")).unwrap_err().to_string(), "`public_key` is not 32 bytes in hex");
        for n in 16..(14 + RECEIPT_KEYS_MAX) {
            world.call("6s", person("olga"), None, add(&format!("{n:02x}"))).unwrap();
        }
        assert!(matches!(world.call("7s", person("olga"), None, add("ff")), Err(Refusal::Full { .. })));
    }

    fn pair(byte: u8) -> ed25519_dalek::SigningKey {
        ed25519_dalek::SigningKey::from_bytes(&[byte; 32])
    }

    fn hex_of(key: &ed25519_dalek::SigningKey) -> String {
        hex::encode(key.verifying_key().as_bytes())
    }

    fn rotation(from: u8, to: u8) -> RotateReceiptKey {
        let (before, own) = (pair(from), pair(to));
        let message = succession_bytes(before.verifying_key().as_bytes(), own.verifying_key().as_bytes());
        let word = |key: &ed25519_dalek::SigningKey| hex::encode(key.sign(&message).to_bytes());
        let (by_predecessor, by_successor) = (word(&before), word(&own));
        RotateReceiptKey { public_key: hex_of(&own), predecessor: hex_of(&before), by_predecessor, by_successor }
    }

    #[test]
    fn a_key_follows_another_once_with_the_word_of_both_and_the_ring_shows_how() {
        let mut world = World::new();
        let mut rotate = |from, to| world.call("1s", person("olga"), None, rotation(from, to));
        let first = rotate(1, 2).unwrap();
        assert!(first.changed && succeeded(&first.key).is_some());
        assert_eq!(rotate(1, 2).unwrap(), ReceiptKeyRotated { changed: false, ..first.clone() }, "the same again is done already");
        assert!(rotate(2, 3).unwrap().changed);
        assert!(matches!(rotate(1, 4), Err(Refusal::Changed { .. })), "1 signs no longer");
        assert!(matches!(rotate(3, 1), Err(Refusal::Spent { .. })) && matches!(rotate(3, 2), Err(Refusal::Spent { .. })));
        let ring = world.ask("2s", person("eve"), ListReceiptKeys {}).unwrap();
        assert_eq!(ring.signing, Some(hex_of(&pair(3))));
        let mut keys: Vec<String> = ring.keys.into_iter().map(|key| key.public_key).collect();
        keys.sort();
        let mut wanted = [1, 2, 3].map(|byte| hex_of(&pair(byte)));
        wanted.sort();
        assert_eq!(keys, wanted, "the first one came in with the second");
    }

    #[test]
    fn a_rotation_without_the_word_of_both_or_by_anybody_else_changes_nothing() {
        let mut world = World::new();
        let bad = [
            RotateReceiptKey { by_predecessor: rotation(3, 2).by_predecessor, ..rotation(1, 2) },
            RotateReceiptKey { by_successor: rotation(1, 2).by_predecessor, ..rotation(1, 2) },
            RotateReceiptKey { by_successor: "00".into(), ..rotation(1, 2) },
            RotateReceiptKey { public_key: "0a".into(), ..rotation(1, 2) },
            rotation(1, 1),
        ];
        for command in bad {
            assert!(matches!(world.call("1s", person("olga"), None, command), Err(Refusal::Invalid { .. })));
        }
        assert!(matches!(world.call("1s", person("mara"), None, rotation(1, 2)), Err(Refusal::Denied { .. })));
        assert_eq!(world.ask("2s", person("eve"), ListReceiptKeys {}).unwrap(), ReceiptKeys::default());
    }

    #[test]
    fn a_nodes_key_is_added_once_and_belongs_to_one_node() {
        let mut world = World::new();
        let add = |node_id, byte| AddCosigner { node_id, name: format!("n/{node_id}"), public_key: hex_of(&pair(byte)) };
        let first = world.call("1s", person("olga"), None, add(1, 1)).unwrap();
        assert_eq!(world.call("2s", person("olga"), None, add(1, 1)), Ok(CosignerAdded { changed: false, ..first.clone() }));
        assert!(matches!(world.call("2s", person("olga"), None, add(2, 1)), Err(Refusal::Invalid { .. })), "one key, two witnesses");
        let renewed = world.call("3s", person("olga"), None, add(1, 2)).unwrap();
        assert!(matches!(world.call("4s", person("mara"), None, add(2, 3)), Err(Refusal::Denied { .. })));
        let odd = AddCosigner { name: "a b".into(), ..add(2, 3) };
        assert!(matches!(world.call("4s", person("olga"), None, odd), Err(Refusal::Invalid { .. })));
        let ring = world.ask("5s", person("eve"), ListReceiptKeys {}).unwrap();
        assert_eq!(ring.cosigners, [first.cosigner, renewed.cosigner], "old keys stay: what they cosigned goes on to verify");
    }
}
