//! The ring of public keys that receipts and heads were ever signed with. Cluster-wide, and only ever added to.
//!
//! What is shown today is signed with the key of today; who checks a file that was saved under an earlier one finds it here.

use serde::{Deserialize, Serialize};

use crate::identity::{key_fingerprint, needs_admin};
use crate::key::Key;
use crate::limit::RECEIPT_KEYS_MAX;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Read, Table, Tx};

/// One key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiptKey {
    /// The first 16 hex digits of the BLAKE3 of its bytes, as receipts name it.
    pub key_id: String,
    /// Ed25519, 32 bytes in hex.
    pub public_key: String,
    pub added_at: UnixMs,
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
        let key_id = key_fingerprint(&bytes);
        if let Some(known) = tx.get::<ReceiptKey>(CLUSTER, &Key::new().text(&key_id))? {
            return Ok(Ok(known));
        }
        let ring = tx.page::<ReceiptKey>(CLUSTER, &Key::new(), None, RECEIPT_KEYS_MAX)?;
        if ring.items.len() >= RECEIPT_KEYS_MAX {
            return Ok(Err(Refusal::Full { what: "the ring of receipt keys".into(), limit: RECEIPT_KEYS_MAX as u64, retry_after_ms: 0 }));
        }
        let key = ReceiptKey { key_id, public_key: hex::encode(bytes), added_at: at.wall };
        tx.put(&key);
        Ok(Ok(key))
    }
}

/// All keys, the oldest first. There are few.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListReceiptKeys {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiptKeys {
    pub keys: Vec<ReceiptKey>,
}

impl ListReceiptKeys {
    pub fn run(self, view: &impl Read, _: &ReadStamp) -> Applied<ReceiptKeys> {
        let mut keys = view.page::<ReceiptKey>(CLUSTER, &Key::new(), None, RECEIPT_KEYS_MAX)?.items;
        keys.sort_by(|a, b| (a.added_at, &a.key_id).cmp(&(b.added_at, &b.key_id)));
        Ok(Ok(ReceiptKeys { keys }))
    }
}

#[cfg(test)]
mod tests {
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
}
