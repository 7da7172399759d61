//! Receipts: the proof of a decision, chained per tenant.
//!
//! Invariants:
//! * A body is made in apply, kept as the bytes it was made of, and never serialised again.
//! * The receipts of a tenant are numbered without a gap, and each names the link hash of the one before; so none can be
//!   changed, taken out or put in without a fault at its neighbour.
//! * They are the leaves of the tenant's Merkle tree ([`tree`]), whose signed heads let somebody outside see the same.

mod list;
mod tree;

use serde::{Deserialize, Serialize};

pub use self::list::{ListReceipts, ReceiptRow, Receipts};
pub(crate) use self::tree::fill_trees;
pub use self::tree::{Consistency, GetLogHead, Inclusion, LogHead, ProveConsistency, ProveInclusion, ProveReceipt, ProvenReceipt, leaf};
use crate::identity::check_name;
use crate::key::Key;
use crate::passport::standing;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};

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
    /// [`link_hash`] in hex.
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

/// 32 bytes of BLAKE3.
pub type Hash = [u8; 32];

/// A receipt's place in the chain. Its body stands beside it under the same number.
#[derive(Serialize, Deserialize)]
struct Link {
    tenant: String,
    receipt_id: String,
    seq: u64,
    body_hash: Hash,
    previous_link_hash: Hash,
    link_hash: Hash,
    revision: Revision,
    made_at: UnixMs,
    signer_passport: Option<String>,
}

impl Record for Link {
    const KIND: Kind = Kind::ReceiptLink;
    const TABLE: Table = Table::Receipts;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().number(self.seq)
    }
}

/// The end of a tenant's chain.
#[derive(Serialize, Deserialize)]
struct Head {
    tenant: String,
    /// The number of the next receipt, which is how many there are.
    next_seq: u64,
    link_hash: Hash,
}

impl Record for Head {
    const KIND: Kind = Kind::ReceiptHead;
    const TABLE: Table = Table::Receipts;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

fn head(view: &(impl Read + ?Sized), tenant: &str) -> Result<Head, StorageError> {
    Ok(view.get(tenant, &Key::new())?.unwrap_or(Head { tenant: tenant.into(), next_seq: 0, link_hash: [0; 32] }))
}

fn body_key(tenant: &str, seq: u64) -> Vec<u8> {
    kind_prefix(tenant, Kind::ReceiptBody).number(seq).into_bytes()
}

fn by_id(tenant: &str, receipt_id: &str) -> Key {
    kind_prefix(tenant, Kind::ReceiptById).text(receipt_id)
}

/// What one receipt adds to the chain: BLAKE3 over its number (8 bytes, big-endian), the link hash before it (32 bytes), its
/// id, and the hash of its body (32 bytes).
pub fn link_hash(seq: u64, previous: &Hash, receipt_id: &str, body_hash: &Hash) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seq.to_be_bytes()).update(previous).update(receipt_id.as_bytes()).update(body_hash);
    *hasher.finalize().as_bytes()
}

/// A receipt's body: a CBOR map with the fields in the order of their declaration, absent options left out.
pub(crate) fn body<T: Serialize>(fields: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    // The writer is a Vec and the bodies derive Serialize over plain data, so there is nothing that can fail.
    ciborium::into_writer(fields, &mut bytes).expect("plain data always encodes");
    bytes
}

/// The fields of a body, if it is one of this kind.
pub fn read_body<T: serde::de::DeserializeOwned>(body: &[u8]) -> Option<T> {
    ciborium::from_reader(body).ok()
}

/// Whether a receipt of this id exists: where the caller chooses it, it may be taken.
pub(crate) fn is_there(view: &(impl Read + ?Sized), tenant: &str, receipt_id: &str) -> Result<bool, StorageError> {
    Ok(view.get_bytes(Table::Index, by_id(tenant, receipt_id).as_bytes())?.is_some())
}

/// Adds a receipt to the chain of the running command's tenant, and answers the hash of its body in hex. An id is used once.
pub(crate) fn append(
    tx: &mut impl Tx,
    at: &Stamp,
    receipt_id: &str,
    body: Vec<u8>,
    signer_passport: Option<&str>,
) -> Result<String, StorageError> {
    let tenant = &at.caller.tenant;
    let by_id = by_id(tenant, receipt_id);
    if tx.get_bytes(Table::Index, by_id.as_bytes())?.is_some() {
        // Two receipts of one id would leave the first unreachable, and nobody could tell which one is meant.
        return Err(StorageError::corrupt(format!("receipt `{receipt_id}` is there already")));
    }
    let head = head(tx, tenant)?;
    let body_hash = *blake3::hash(&body).as_bytes();
    let link = Link {
        tenant: tenant.clone(),
        receipt_id: receipt_id.into(),
        seq: head.next_seq,
        body_hash,
        previous_link_hash: head.link_hash,
        link_hash: link_hash(head.next_seq, &head.link_hash, receipt_id, &body_hash),
        revision: at.revision,
        made_at: at.wall,
        signer_passport: signer_passport.map(Into::into),
    };
    tx.put_bytes(Table::Receipts, body_key(tenant, link.seq), body);
    tx.put_index(by_id, &link.seq.to_be_bytes());
    tx.put(&Head { next_seq: link.seq + 1, link_hash: link.link_hash, ..head });
    tx.put(&link);
    tree::grow(tx, tenant)?;
    if let Some(signer) = signer_passport {
        standing::count(tx, tenant, signer)?;
    }
    Ok(hex::encode(body_hash))
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
        let claim = self.tenant_id.as_deref();
        if let Some(refusal) = check_name("receipt_id", &self.receipt_id).or_else(|| claim.and_then(|claim| check_name("tenant_id", claim)))
        {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let is_own = claim.is_none_or(|claim| claim == tenant);
        let seq = match is_own {
            true => view.get_bytes(Table::Index, by_id(tenant, &self.receipt_id).as_bytes())?,
            false => None,
        };
        let Some(seq) = seq else { return Ok(Err(Refusal::not_found("receipt", self.receipt_id))) };
        let seq = u64::from_be_bytes(seq.try_into().map_err(|_| StorageError::corrupt("a receipt's id row is no number"))?);
        let link: Option<Link> = view.get(tenant, &Key::new().number(seq))?;
        let link = link.ok_or_else(|| StorageError::corrupt(format!("receipt `{}` has no link", self.receipt_id)))?;
        let body = view.get_bytes(Table::Receipts, &body_key(tenant, seq))?;
        let faults = faults(view, &link, body.as_deref())?;
        Ok(Ok(ReceiptView {
            receipt_id: link.receipt_id,
            tenant: link.tenant,
            body: body.unwrap_or_default(),
            body_hash: hex::encode(link.body_hash),
            seq,
            previous_link_hash: hex::encode(link.previous_link_hash),
            link_hash: hex::encode(link.link_hash),
            revision: link.revision,
            made_at: link.made_at,
            signer_passport: link.signer_passport,
            faults,
            signature: None,
        }))
    }
}

/// What does not fit: body, own link, the link before, the link after or the head.
fn faults(view: &impl Read, link: &Link, body: Option<&[u8]>) -> Result<Vec<String>, StorageError> {
    let neighbour = |seq: u64| view.get::<Link>(&link.tenant, &Key::new().number(seq));
    let head = head(view, &link.tenant)?;
    let mut faults = Vec::new();
    match body {
        None => faults.push("the body is missing".to_string()),
        Some(body) if *blake3::hash(body).as_bytes() != link.body_hash => faults.push("the body does not have its hash".into()),
        Some(_) => {}
    }
    if link.link_hash != link_hash(link.seq, &link.previous_link_hash, &link.receipt_id, &link.body_hash) {
        faults.push("the link does not have its hash".into());
    }
    let before = match link.seq.checked_sub(1) {
        None => Some([0; 32]),
        Some(seq) => neighbour(seq)?.map(|before| before.link_hash),
    };
    match before {
        None => faults.push(format!("receipt {} before it is missing", link.seq - 1)),
        Some(hash) if hash != link.previous_link_hash => faults.push("it does not continue the receipt before it".into()),
        Some(_) => {}
    }
    let after = match link.seq + 1 < head.next_seq {
        true => neighbour(link.seq + 1)?.map(|after| after.previous_link_hash),
        false => Some(head.link_hash),
    };
    match after {
        None => faults.push(format!("receipt {} after it is missing", link.seq + 1)),
        Some(hash) if hash != link.link_hash => faults.push("what comes after does not continue it".into()),
        Some(_) => {}
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::stamp::LeaseTime;
    use crate::transcript::{World, person};

    /// Three receipts of which the rows given are changed; tells what each then says of itself.
    fn check(tamper: impl Fn(&mut World), expected: Expect) {
        let mut world = World::new();
        for n in 1..=3 {
            let at = Stamp::plain(Revision(n), LeaseTime(0), UnixMs(n), person("mara"));
            append(&mut world.state, &at, &format!("r{n}"), vec![n as u8], Some("mara")).unwrap();
        }
        tamper(&mut world);
        let mut told = String::new();
        for id in ["r1", "r2", "r3"] {
            let receipt = world.ask("0s", person("mara"), GetReceipt { receipt_id: id.into(), tenant_id: None }).unwrap();
            let faults = if receipt.faults.is_empty() { "well".into() } else { receipt.faults.join("; ") };
            told += &format!("{id}: {faults}\n");
        }
        expected.assert_eq(&told);
    }

    fn link(world: &World, seq: u64) -> Link {
        world.state.get("acme", &Key::new().number(seq)).unwrap().unwrap()
    }

    #[test]
    fn an_untouched_chain_has_no_fault() {
        check(
            |_| {},
            expect![[r#"
                r1: well
                r2: well
                r3: well
            "#]],
        );
    }

    #[test]
    fn a_changed_body_is_a_fault_of_its_own() {
        check(
            |world| world.state.put_bytes(Table::Receipts, body_key("acme", 1), vec![9]),
            expect![[r#"
                r1: well
                r2: the body does not have its hash
                r3: well
            "#]],
        );
        check(
            |world| world.state.delete_bytes(Table::Receipts, body_key("acme", 1)),
            expect![[r#"
                r1: well
                r2: the body is missing
                r3: well
            "#]],
        );
    }

    #[test]
    fn a_body_changed_along_with_its_hashes_is_a_fault_of_its_neighbours() {
        let rewrite = |world: &mut World| {
            let mut link = link(world, 1);
            link.body_hash = *blake3::hash(&[9]).as_bytes();
            link.link_hash = link_hash(1, &link.previous_link_hash, "r2", &link.body_hash);
            world.state.put(&link);
            world.state.put_bytes(Table::Receipts, body_key("acme", 1), vec![9]);
        };
        check(
            rewrite,
            expect![[r#"
                r1: well
                r2: what comes after does not continue it
                r3: it does not continue the receipt before it
            "#]],
        );
    }

    #[test]
    fn a_last_receipt_that_was_cut_off_is_a_fault_of_the_one_before() {
        check(
            |world| world.state.put(&Head { tenant: "acme".into(), next_seq: 2, link_hash: [7; 32] }),
            expect![[r#"
                r1: well
                r2: what comes after does not continue it
                r3: what comes after does not continue it
            "#]],
        );
    }

    #[test]
    fn the_link_hash_is_pinned() {
        let told = hex::encode(link_hash(7, &[1; 32], "ad_ar_1", &[2; 32]));
        expect!["0c714c7e837412093a12f61d6893ec9fcc44b328a4c5b9b9cda80832ef297dc6"].assert_eq(&told);
    }
}
