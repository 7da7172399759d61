//! The Merkle tree over a tenant's receipts, in their order: the transparency log.
//!
//! Apply adds each new receipt's leaf and the subtrees that it completes. Where receipts are older than the tree, an entry adds a
//! bounded number of them until the tree has caught up; until then the log ends where the tree ends, which is a head like any
//! other. What the tree holds follows from the receipts alone, so replicas that begin to fill it at different entries end alike.

use serde::{Deserialize, Serialize};

use super::{GetReceipt, Hash, Link, ReceiptView, head};
use crate::key::Key;
use crate::limit::TREE_FILL_PER_ENTRY;
use crate::merkle;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// What the tree hashes of one receipt, so that nothing which is shown of it can be changed under a signed head: its link hash
/// (32 bytes; number, predecessor, id and body are in it), its revision and the ms of the Unix epoch when it was made (8 bytes
/// each, big-endian), then the byte 0, or the byte 1 and the passport whose decision it proves.
pub fn leaf(link_hash: &Hash, revision: Revision, made_at: UnixMs, signer_passport: Option<&str>) -> Vec<u8> {
    let mut entry = link_hash.to_vec();
    entry.extend(revision.0.to_be_bytes());
    entry.extend(made_at.0.to_be_bytes());
    entry.push(signer_passport.is_some().into());
    entry.extend(signer_passport.unwrap_or_default().as_bytes());
    entry
}

impl Link {
    fn leaf_hash(&self) -> merkle::Hash {
        merkle::leaf_hash(&leaf(&self.link_hash, self.revision, self.made_at, self.signer_passport.as_deref()))
    }
}

/// How many receipts the tree of a tenant holds: the first ones. A record of its own, since a version that knows no tree writes
/// the chain's head anew.
#[derive(Serialize, Deserialize)]
struct Tree {
    tenant: String,
    size: u64,
}

impl Record for Tree {
    const KIND: Kind = Kind::ReceiptTree;
    const TABLE: Table = Table::Receipts;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

fn tree_size(view: &(impl Read + ?Sized), tenant: &str) -> Result<u64, StorageError> {
    Ok(view.get::<Tree>(tenant, &Key::new())?.map_or(0, |tree| tree.size))
}

fn node_key(tenant: &str, level: u8, index: u64) -> Vec<u8> {
    kind_prefix(tenant, Kind::ReceiptNode).byte(level).number(index).into_bytes()
}

fn node(view: &(impl Read + ?Sized), tenant: &str, level: u8, index: u64) -> Result<merkle::Hash, StorageError> {
    let bytes = view.get_bytes(Table::Receipts, &node_key(tenant, level, index))?;
    let hash = bytes.and_then(|bytes| bytes.try_into().ok());
    hash.ok_or_else(|| StorageError::corrupt(format!("the tree of `{tenant}` lacks the node {level}/{index}")))
}

/// Adds the receipts that the tree lacks, as many as one entry may. Answers whether it lacks none now.
pub(super) fn grow(tx: &mut impl Tx, tenant: &str) -> Result<bool, StorageError> {
    let (size, count) = (tree_size(tx, tenant)?, head(tx, tenant)?.next_seq);
    let end = count.min(size + TREE_FILL_PER_ENTRY);
    for seq in size..end {
        let link: Option<Link> = tx.get(tenant, &Key::new().number(seq))?;
        let link = link.ok_or_else(|| StorageError::corrupt(format!("receipt {seq} of `{tenant}` has no link")))?;
        for (level, index, hash) in merkle::completed(seq, link.leaf_hash(), |level, index| node(tx, tenant, level, index))? {
            tx.put_bytes(Table::Receipts, node_key(tenant, level, index), hash.to_vec());
        }
    }
    if end > size {
        tx.put(&Tree { tenant: tenant.into(), size: end });
    }
    Ok(end == count)
}

/// How far the tenants have been looked through for receipts without a tree.
#[derive(Default, Serialize, Deserialize)]
struct Fill {
    /// Receipts from this key on are still to be looked at.
    from: String,
    done: bool,
}

impl Record for Fill {
    const KIND: Kind = Kind::ReceiptTreeFill;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

/// One bounded step towards a tree for all the receipts that an earlier version left. Once through, it costs one read.
pub(crate) fn fill_trees(tx: &mut impl Tx) -> Result<(), StorageError> {
    let mut fill: Fill = tx.get(CLUSTER, &Key::new())?.unwrap_or_default();
    if fill.done {
        return Ok(());
    }
    let from = hex::decode(&fill.from).map_err(|error| StorageError::new("where the trees are filled from", error))?;
    // No key begins with 0xFF: the first part is a tenant's name, which is UTF-8.
    match tx.scan_bytes(Table::Receipts, &from, &[0xFF], Direction::Ascending, 1)?.pop() {
        None => fill.done = true,
        Some((key, _)) => {
            let tenant = Key::leading_text(&key).ok_or_else(|| StorageError::corrupt("a receipt's key names no tenant"))?;
            if !grow(tx, &tenant)? {
                return Ok(());
            }
            fill.from = hex::encode(Key::new().text(&tenant).after_prefix());
        }
    }
    tx.put(&fill);
    Ok(())
}

// ------------------------------------------------------------------ questions

/// A head of the caller's log: of the newest size, or of an earlier one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetLogHead {
    pub size: Option<u64>,
}

/// What a head says. The serving node signs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogHead {
    pub tenant: String,
    /// Receipts in the log.
    pub size: u64,
    /// Root of the tree over them, in hex.
    pub root_hash: String,
    /// The same as a signed note, filled in by the serving node.
    pub note: Option<String>,
}

/// One receipt with the proof that it stands in the log under a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProveReceipt {
    pub receipt_id: String,
    /// The head to prove it under: the newest when none is given.
    pub size: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProvenReceipt {
    pub receipt: ReceiptView,
    pub inclusion: Inclusion,
}

/// The proof that a receipt, by its number, stands in the log under a head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProveInclusion {
    pub seq: u64,
    pub size: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inclusion {
    pub seq: u64,
    /// Of [`leaf`], in hex.
    pub leaf_hash: String,
    /// From the leaf up, in hex.
    pub proof: Vec<String>,
    pub head: LogHead,
}

/// The proof that one head continues another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProveConsistency {
    pub from: u64,
    /// The newest head when none is given.
    pub to: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Consistency {
    pub from: LogHead,
    pub to: LogHead,
    pub proof: Vec<String>,
}

/// The tree of one tenant as a query reads it.
struct Log<'a, R: Read> {
    view: &'a R,
    tenant: &'a str,
    size: u64,
}

impl<'a, R: Read> Log<'a, R> {
    fn of(view: &'a R, at: &'a ReadStamp) -> Result<Self, StorageError> {
        let tenant = at.caller.tenant.as_str();
        Ok(Self { view, tenant, size: tree_size(view, tenant)? })
    }

    fn stored(&self) -> impl FnMut(u8, u64) -> Result<merkle::Hash, StorageError> {
        |level, index| node(self.view, self.tenant, level, index)
    }

    /// The size asked for, if the log has reached it.
    fn reached(&self, field: &str, asked: Option<u64>) -> Result<u64, Refusal> {
        match asked {
            Some(size) if size > self.size => {
                Err(Refusal::invalid(field, format!("is {size}, and the log holds {} receipts so far", self.size)))
            }
            asked => Ok(asked.unwrap_or(self.size)),
        }
    }

    fn head(&self, size: u64) -> Result<LogHead, StorageError> {
        let root_hash = hex::encode(merkle::root(size, &mut self.stored())?);
        Ok(LogHead { tenant: self.tenant.into(), size, root_hash, note: None })
    }

    fn inclusion(&self, seq: u64, asked: Option<u64>) -> Applied<Inclusion> {
        let size = match self.reached("size", asked) {
            Ok(size) => size,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if seq >= size {
            let problem = format!("leaves out receipt number {seq}: the head holds the first {size} receipts only");
            return Ok(Err(Refusal::invalid("size", problem)));
        }
        let leaf_hash = hex::encode(node(self.view, self.tenant, 0, seq)?);
        let proof = merkle::prove_inclusion(seq, size, &mut self.stored())?.iter().map(hex::encode).collect();
        Ok(Ok(Inclusion { seq, leaf_hash, proof, head: self.head(size)? }))
    }
}

impl GetLogHead {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<LogHead> {
        let log = Log::of(view, at)?;
        match log.reached("size", self.size) {
            Ok(size) => Ok(Ok(log.head(size)?)),
            Err(refusal) => Ok(Err(refusal)),
        }
    }
}

impl ProveInclusion {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Inclusion> {
        Log::of(view, at)?.inclusion(self.seq, self.size)
    }
}

impl ProveReceipt {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ProvenReceipt> {
        let receipt = match (GetReceipt { receipt_id: self.receipt_id, tenant_id: None }).run(view, at)? {
            Ok(receipt) => receipt,
            Err(refusal) => return Ok(Err(refusal)),
        };
        Ok(Log::of(view, at)?.inclusion(receipt.seq, self.size)?.map(|inclusion| ProvenReceipt { receipt, inclusion }))
    }
}

impl ProveConsistency {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Consistency> {
        let log = Log::of(view, at)?;
        let to = match log.reached("to", self.to) {
            Ok(to) => to,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if self.from > to {
            return Ok(Err(Refusal::invalid("from", format!("is {}, which is more than the {to} receipts of the later head", self.from))));
        }
        let proof = merkle::prove_consistency(self.from, to, &mut log.stored())?.iter().map(hex::encode).collect();
        Ok(Ok(Consistency { from: log.head(self.from)?, to: log.head(to)?, proof }))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::receipt::append;
    use crate::stamp::{LeaseTime, Stamp};
    use crate::transcript::{World, person};

    fn make(world: &mut World, who: &str, ids: std::ops::Range<u64>) {
        for n in ids {
            let at = Stamp::plain(Revision(n), LeaseTime(0), UnixMs(n), person(who));
            append(&mut world.state, &at, &format!("r{n}"), vec![n as u8], (n % 2 == 0).then_some(who)).unwrap();
        }
    }

    /// Takes the tree away, as a version without one left the state.
    fn forget_trees(world: &mut World) {
        for kind in [Kind::ReceiptNode, Kind::ReceiptTree] {
            for tenant in ["acme", "other"] {
                let prefix = kind_prefix(tenant, kind);
                let rows = world.state.scan_bytes(Table::Receipts, prefix.as_bytes(), &prefix.after_prefix(), Direction::Ascending, 999);
                rows.unwrap().into_iter().for_each(|(key, _)| world.state.delete_bytes(Table::Receipts, key));
            }
        }
    }

    fn nodes(world: &World) -> Vec<(Vec<u8>, Vec<u8>)> {
        let prefix = kind_prefix("acme", Kind::ReceiptNode);
        world.state.scan_bytes(Table::Receipts, prefix.as_bytes(), &prefix.after_prefix(), Direction::Ascending, 999).unwrap()
    }

    fn heads(world: &mut World) -> Vec<LogHead> {
        ["mara", "eve"].map(|who| world.ask("9h", person(who), GetLogHead { size: None }).unwrap()).into()
    }

    fn check(query: impl Fn(&mut World) -> String, expected: Expect) {
        let mut world = World::new();
        make(&mut world, "mara", 0..5);
        expected.assert_eq(&query(&mut world));
    }

    #[test]
    fn receipts_older_than_the_tree_come_into_it_by_and_by_and_it_ends_as_if_it_had_always_been_there() {
        let mut world = World::new();
        make(&mut world, "mara", 0..8);
        make(&mut world, "eve", 0..4);
        let whole = heads(&mut world);
        forget_trees(&mut world);
        let mut sizes = Vec::new();
        for second in 1..9 {
            world.tick(&format!("{second}s"));
            sizes.push(heads(&mut world).iter().map(|head| head.size).collect::<Vec<_>>());
        }
        assert_eq!(sizes[..6], [[3, 0], [6, 0], [8, 0], [8, 3], [8, 4], [8, 4]]);
        assert_eq!(heads(&mut world), whole);
        assert!(world.state.get::<Fill>(CLUSTER, &Key::new()).unwrap().unwrap().done);
    }

    #[test]
    fn a_receipt_that_is_made_while_the_tree_is_behind_waits_for_its_turn_and_no_leaf_is_passed_over() {
        let mut world = World::new();
        make(&mut world, "mara", 0..8);
        forget_trees(&mut world);
        make(&mut world, "mara", 8..9);
        assert_eq!(heads(&mut world)[0].size, 3);
        let refused = world.ask("1s", person("mara"), ProveReceipt { receipt_id: "r8".into(), size: None }).unwrap_err();
        assert_eq!(refused.to_string(), "`size` leaves out receipt number 8: the head holds the first 3 receipts only");
        make(&mut world, "mara", 9..12);
        let mut straight = World::new();
        make(&mut straight, "mara", 0..12);
        assert_eq!(heads(&mut world)[0], heads(&mut straight)[0]);
        assert_eq!(nodes(&world), nodes(&straight), "byte for byte what a tree holds that was always there");
    }

    #[test]
    fn every_receipt_is_proven_under_every_head_of_its_own_tenant() {
        let mut world = World::new();
        make(&mut world, "mara", 0..9);
        make(&mut world, "eve", 0..2);
        let hash = |hex: &str| -> Hash { hex::decode(hex).unwrap().try_into().unwrap() };
        for size in 1..=9 {
            for seq in 0..size {
                let query = ProveReceipt { receipt_id: format!("r{seq}"), size: Some(size) };
                let ProvenReceipt { receipt, inclusion } = world.ask("1s", person("mara"), query).unwrap();
                let entry = leaf(&hash(&receipt.link_hash), receipt.revision, receipt.made_at, receipt.signer_passport.as_deref());
                let proof: Vec<Hash> = inclusion.proof.iter().map(|hex| hash(hex)).collect();
                assert_eq!((inclusion.seq, inclusion.head.size), (seq, size));
                assert!(merkle::is_included(&merkle::leaf_hash(&entry), seq, size, &proof, &hash(&inclusion.head.root_hash)));
            }
        }
        let foreign = world.ask("1s", person("eve"), ProveReceipt { receipt_id: "r5".into(), size: None }).unwrap_err();
        assert_eq!(foreign, Refusal::not_found("receipt", "r5"));
        assert_eq!(heads(&mut world)[1].size, 2);
    }

    #[test]
    fn a_head_that_is_not_there_is_refused_with_how_far_the_log_is() {
        check(
            |world| {
                let mut ask = |query| world.ask("1s", person("mara"), query).unwrap_err().to_string() + "\n";
                let mut told = ask(ProveConsistency { from: 3, to: Some(6) });
                told += &ask(ProveConsistency { from: 4, to: Some(3) });
                told += &(world.ask("1s", person("mara"), GetLogHead { size: Some(6) }).unwrap_err().to_string() + "\n");
                told + &world.ask("1s", person("mara"), ProveInclusion { seq: 5, size: None }).unwrap_err().to_string()
            },
            expect![[r#"
                `to` is 6, and the log holds 5 receipts so far
                `from` is 4, which is more than the 3 receipts of the later head
                `size` is 6, and the log holds 5 receipts so far
                `size` leaves out receipt number 5: the head holds the first 5 receipts only"#]],
        );
    }

    #[test]
    fn the_leaf_and_the_root_are_pinned() {
        check(
            |world| {
                let entry = leaf(&[7; 32], Revision(1), UnixMs(2), Some("mara"));
                let root = world.ask("1s", person("mara"), GetLogHead { size: None }).unwrap().root_hash;
                let empty = world.ask("1s", person("evan"), GetLogHead { size: None }).unwrap();
                format!("{}\n{root}\n{} {}", hex::encode(entry), empty.size, empty.root_hash)
            },
            expect![[r#"
                070707070707070707070707070707070707070707070707070707070707070700000000000000010000000000000002016d617261
                759b1768802a7a78d3ab156c3c80b99af11120ec6df5cfd42e26e0b3eefe43bf
                0 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"#]],
        );
    }
}
