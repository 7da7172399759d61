//! Whether all nodes have the same state: compared after every commit, as it is made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Hashes of states by index, and every index at which two nodes had different ones. Shared by all disks.
#[derive(Clone, Default)]
pub struct States(Arc<Mutex<Compared>>);

#[derive(Default)]
struct Compared {
    hashes: BTreeMap<u64, (u64, u128)>,
    compared: u64,
    diverged: Vec<String>,
}

impl States {
    pub fn note(&self, node: u64, index: u64, hash: u128) {
        let mut compared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, known) = *compared.hashes.entry(index).or_insert((node, hash));
        if first != node {
            compared.compared += 1;
        }
        if known != hash {
            compared.diverged.push(format!("at revision {index} node {node} has another state than node {first}"));
        }
    }

    pub fn diverged(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).diverged.clone()
    }

    /// How many states of two nodes were compared.
    pub fn compared(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).compared
    }

    /// The last revision that any node had, and the hash of its state.
    pub fn last(&self) -> (u64, u128) {
        let compared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        compared.hashes.last_key_value().map_or((0, 0), |(index, (_, hash))| (*index, *hash))
    }
}
