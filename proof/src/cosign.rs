//! What one node cosigns: heads, with a key of its own that no other node has.

use ed25519_dalek::SigningKey;

use crate::note::{self, Head};

/// The key of one node, with the name under which it cosigns.
pub struct Cosigner {
    key: SigningKey,
    name: String,
}

impl Cosigner {
    pub fn new(secret: &[u8; 32], cluster_id: &str, node_id: u64) -> Self {
        // A tenant's log is `quorate/...`: no name of a node is ever that of a log.
        let cluster = note::origin(cluster_id, "");
        let name = format!("quorate-node/{}{node_id}", cluster.trim_start_matches("quorate/"));
        Self { key: SigningKey::from_bytes(secret), name }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The public half, in hex.
    pub fn public_key(&self) -> String {
        hex::encode(self.key.verifying_key().as_bytes())
    }

    /// The line that is added to the head's note. Whether it may be signed is for the caller to know.
    pub fn cosign(&self, head: &Head, at_unix_s: u64) -> String {
        note::cosign(&head.text(), &self.name, &self.key, at_unix_s)
    }
}

#[cfg(test)]
mod tests {
    use super::Cosigner;

    #[test]
    fn a_node_cosigns_under_the_name_of_its_cluster_and_its_id() {
        assert_eq!(Cosigner::new(&[7; 32], "c 1", 3).name(), "quorate-node/c%201/3");
    }
}
