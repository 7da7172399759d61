//! Merkle trees as RFC 6962 has them: what a log hashes, and how its proofs are made and checked.
//!
//! The hash is SHA-256, so that the public tools of transparency logs (witnesses, monitors, checkpoint readers) can follow; the
//! contents that the leaves name are hashed with BLAKE3 as everywhere else. A tree is kept as the hashes of its complete
//! subtrees: `(level, index)` covers the leaves from `index << level` on, `1 << level` of them. Adding a leaf writes the subtrees
//! that it completes, two on average; a root or a proof of any earlier size reads a few hundred at the most.
//!
//! Making a proof takes a function that finds a stored hash, and fails as that one fails. Checking one needs nothing.

use sha2::{Digest, Sha256};

/// 32 bytes of SHA-256.
pub type Hash = [u8; 32];

/// The longest path of a tree: more hashes than that are no proof.
pub const PROOF_HASHES_MAX: usize = 128;

/// The hash of a leaf's entry.
pub fn leaf_hash(entry: &[u8]) -> Hash {
    Sha256::new().chain_update([0]).chain_update(entry).finalize().into()
}

/// The hash of two subtrees side by side.
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    Sha256::new().chain_update([1]).chain_update(left).chain_update(right).finalize().into()
}

/// The complete subtrees that leaf number `index` makes complete, itself first.
pub fn completed<E>(index: u64, leaf: Hash, mut stored: impl FnMut(u8, u64) -> Result<Hash, E>) -> Result<Vec<(u8, u64, Hash)>, E> {
    let (mut level, mut position, mut hash) = (0, index, leaf);
    let mut made = vec![(level, position, hash)];
    while position % 2 == 1 {
        hash = node_hash(&stored(level, position - 1)?, &hash);
        (level, position) = (level + 1, position / 2);
        made.push((level, position, hash));
    }
    Ok(made)
}

/// The root over the first `size` leaves.
pub fn root<E>(size: u64, stored: &mut impl FnMut(u8, u64) -> Result<Hash, E>) -> Result<Hash, E> {
    match size {
        0 => Ok(Sha256::digest([]).into()),
        _ => range(0, size, stored),
    }
}

/// The hash over the leaves `from..to`, which is not empty and begins where a subtree of its size may begin.
fn range<E>(from: u64, to: u64, stored: &mut impl FnMut(u8, u64) -> Result<Hash, E>) -> Result<Hash, E> {
    let size = to - from;
    if size.is_power_of_two() {
        return stored(size.trailing_zeros() as u8, from / size);
    }
    let middle = from + left_part(size);
    Ok(node_hash(&range(from, middle, stored)?, &range(middle, to, stored)?))
}

/// The leaves left of where a tree of this size, 2 or more, is divided: the largest power of two below it.
fn left_part(size: u64) -> u64 {
    1 << (size - 1).ilog2()
}

/// The proof that leaf number `index` stands in the tree of `size` leaves. `index` is below `size`.
pub fn prove_inclusion<E>(index: u64, size: u64, stored: &mut impl FnMut(u8, u64) -> Result<Hash, E>) -> Result<Vec<Hash>, E> {
    let (mut from, mut to, mut path) = (0, size, Vec::new());
    while to - from > 1 {
        let middle = from + left_part(to - from);
        if index < middle {
            path.push(range(middle, to, stored)?);
            to = middle;
        } else {
            path.push(range(from, middle, stored)?);
            from = middle;
        }
    }
    path.reverse();
    Ok(path)
}

/// The proof that the tree of `old` leaves is the beginning of the tree of `new` leaves. `old` is at most `new`; the empty tree
/// begins every other, and needs no proof.
pub fn prove_consistency<E>(old: u64, new: u64, stored: &mut impl FnMut(u8, u64) -> Result<Hash, E>) -> Result<Vec<Hash>, E> {
    if old == 0 || old == new {
        return Ok(Vec::new());
    }
    // Down to the largest subtree that ends where the old tree ends.
    let (mut from, mut to, mut path) = (0, new, Vec::new());
    while to != old {
        let middle = from + left_part(to - from);
        if old <= middle {
            path.push(range(middle, to, stored)?);
            to = middle;
        } else {
            path.push(range(from, middle, stored)?);
            from = middle;
        }
    }
    // Whoever checks has the old root, which is that subtree when it begins at the first leaf.
    if from > 0 {
        path.push(range(from, to, stored)?);
    }
    path.reverse();
    Ok(path)
}

/// Whether the proof leads from the leaf to the root.
pub fn is_included(leaf: &Hash, index: u64, size: u64, proof: &[Hash], root: &Hash) -> bool {
    if index >= size {
        return false;
    }
    let (mut position, mut last, mut hash) = (index, size - 1, *leaf);
    for sibling in proof {
        if last == 0 {
            return false;
        }
        if position % 2 == 1 || position == last {
            hash = node_hash(sibling, &hash);
            // Where the right edge has no sibling, the subtree stands for its parent.
            while position % 2 == 0 && position != 0 {
                (position, last) = (position / 2, last / 2);
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        (position, last) = (position / 2, last / 2);
    }
    last == 0 && hash == *root
}

/// Whether the proof shows that the tree of the old root is the beginning of the tree of the new one.
pub fn is_consistent(old: u64, new: u64, old_root: &Hash, new_root: &Hash, proof: &[Hash]) -> bool {
    if old > new {
        return false;
    }
    if old == new {
        return proof.is_empty() && old_root == new_root;
    }
    if old == 0 {
        return proof.is_empty() && *old_root == <Hash>::from(Sha256::digest([]));
    }
    let mut proof = proof.iter();
    let first = if old.is_power_of_two() { Some(old_root) } else { proof.next() };
    let Some(first) = first else { return false };
    let (mut position, mut last) = (old - 1, new - 1);
    while position % 2 == 1 {
        (position, last) = (position / 2, last / 2);
    }
    let (mut old_hash, mut new_hash) = (*first, *first);
    for sibling in proof {
        if last == 0 {
            return false;
        }
        if position % 2 == 1 || position == last {
            old_hash = node_hash(sibling, &old_hash);
            new_hash = node_hash(sibling, &new_hash);
            while position % 2 == 0 && position != 0 {
                (position, last) = (position / 2, last / 2);
            }
        } else {
            new_hash = node_hash(&new_hash, sibling);
        }
        (position, last) = (position / 2, last / 2);
    }
    last == 0 && old_hash == *old_root && new_hash == *new_root
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A tree by the definition: the recursion of RFC 6962, section 2.1.
    fn naive_root(leaves: &[Hash]) -> Hash {
        match leaves {
            [] => Sha256::digest([]).into(),
            [leaf] => *leaf,
            _ => {
                let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
                node_hash(&naive_root(left), &naive_root(right))
            }
        }
    }

    fn naive_path(index: usize, leaves: &[Hash]) -> Vec<Hash> {
        if leaves.len() < 2 {
            return Vec::new();
        }
        let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
        let (mut path, sibling) = match index < left.len() {
            true => (naive_path(index, left), naive_root(right)),
            false => (naive_path(index - left.len(), right), naive_root(left)),
        };
        path.push(sibling);
        path
    }

    fn naive_subproof(old: usize, leaves: &[Hash], whole: bool) -> Vec<Hash> {
        if old == leaves.len() {
            return if whole { Vec::new() } else { vec![naive_root(leaves)] };
        }
        let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
        let (mut path, sibling) = match old <= left.len() {
            true => (naive_subproof(old, left, whole), naive_root(right)),
            false => (naive_subproof(old - left.len(), right, false), naive_root(left)),
        };
        path.push(sibling);
        path
    }

    #[derive(Default)]
    struct Tree {
        leaves: Vec<Hash>,
        stored: BTreeMap<(u8, u64), Hash>,
    }

    impl Tree {
        fn of(entries: &[Vec<u8>]) -> Self {
            let mut tree = Self::default();
            for entry in entries {
                let leaf = leaf_hash(entry);
                let made = completed(tree.leaves.len() as u64, leaf, |level, index| tree.find(level, index)).unwrap();
                tree.stored.extend(made.into_iter().map(|(level, index, hash)| ((level, index), hash)));
                tree.leaves.push(leaf);
            }
            tree
        }

        fn find(&self, level: u8, index: u64) -> Result<Hash, String> {
            self.stored.get(&(level, index)).copied().ok_or_else(|| format!("no subtree {level}/{index}"))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_leaf_is_proven_in_every_head_and_every_head_in_every_later_one(
            entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..48)
        ) {
            let tree = Tree::of(&entries);
            let mut find = |level, index| tree.find(level, index);
            let roots: Vec<Hash> = (0..=entries.len()).map(|size| root(size as u64, &mut find).unwrap()).collect();
            for (size, root) in roots.iter().enumerate() {
                let leaves = &tree.leaves[..size];
                prop_assert_eq!(root, &naive_root(leaves));
                for (index, leaf) in leaves.iter().enumerate() {
                    let proof = prove_inclusion(index as u64, size as u64, &mut find).unwrap();
                    prop_assert_eq!(&proof, &naive_path(index, leaves));
                    prop_assert!(is_included(leaf, index as u64, size as u64, &proof, root));
                }
                for (old, old_root) in roots[..=size].iter().enumerate() {
                    let proof = prove_consistency(old as u64, size as u64, &mut find).unwrap();
                    if old > 0 {
                        prop_assert_eq!(&proof, &naive_subproof(old, leaves, true));
                    }
                    prop_assert!(is_consistent(old as u64, size as u64, old_root, root, &proof));
                }
            }
        }

        #[test]
        fn a_proof_that_is_changed_anywhere_proves_nothing(
            size in 2..40_usize, index in any::<prop::sample::Index>(), old in any::<prop::sample::Index>(), bit in 0..256_usize,
        ) {
            let entries: Vec<Vec<u8>> = (0..size).map(|n| vec![n as u8]).collect();
            let tree = Tree::of(&entries);
            let mut find = |level, index| tree.find(level, index);
            let (index, old) = (index.index(size) as u64, 1 + old.index(size - 1) as u64);
            let (size, head) = (size as u64, root(size as u64, &mut find).unwrap());
            let leaf = tree.leaves[index as usize];
            let flipped = |hash: &Hash| { let mut hash = *hash; hash[bit / 8] ^= 1 << (bit % 8); hash };

            let proof = prove_inclusion(index, size, &mut find).unwrap();
            prop_assert!(!is_included(&flipped(&leaf), index, size, &proof, &head));
            prop_assert!(!is_included(&leaf, index, size, &proof, &flipped(&head)));
            prop_assert!(!is_included(&leaf, index ^ 1, size, &proof, &head));
            prop_assert!(!is_included(&leaf, index, size, &proof[1..], &head));
            prop_assert!(!is_included(&leaf, size, size, &proof, &head));
            let old_root = root(old, &mut find).unwrap();
            let consistency = prove_consistency(old, size, &mut find).unwrap();
            prop_assert!(!is_consistent(old, size, &flipped(&old_root), &head, &consistency));
            prop_assert!(!is_consistent(old, size, &old_root, &flipped(&head), &consistency));
            prop_assert!(!is_consistent(size, old, &head, &old_root, &consistency));
            for n in 0..proof.len() {
                let mut proof = proof.clone();
                proof[n] = flipped(&proof[n]);
                prop_assert!(!is_included(&leaf, index, size, &proof, &head));
            }
            for n in 0..consistency.len() {
                let mut proof = consistency.clone();
                proof[n] = flipped(&proof[n]);
                prop_assert!(!is_consistent(old, size, &old_root, &head, &proof));
            }
            let longer = [proof.as_slice(), &[leaf]].concat();
            prop_assert!(!is_included(&leaf, index, size, &longer, &head));
            let longer = [consistency.as_slice(), &[leaf]].concat();
            prop_assert!(!is_consistent(old, size, &old_root, &head, &longer));
        }
    }

    #[test]
    fn sizes_at_the_end_of_the_numbers_do_no_harm() {
        let hash = [1; 32];
        let long = vec![hash; PROOF_HASHES_MAX];
        assert!(!is_included(&hash, u64::MAX - 1, u64::MAX, &long, &hash));
        assert!(!is_consistent(u64::MAX - 1, u64::MAX, &hash, &hash, &long));
        assert!(!is_consistent(1 << 63, u64::MAX, &hash, &hash, &[]));
    }
}
