//! What a node states once it has erased from its files what was forgotten.
//!
//! A statement is a signed note like the head of a log: lines of text that a person can read, and a signature of the cluster's
//! receipt key. It says which node of which incarnation has done what, up to which entry, and what is outside of its reach.

use ed25519_dalek::VerifyingKey;
use quorate_domain::UnixMs;
use quorate_domain::identity::key_fingerprint;
use serde::{Deserialize, Serialize};

use crate::file::{Fault, File, Report, key, text};
use crate::note;
use crate::sign::Signer;

/// What is stated.
#[derive(Clone, Debug, PartialEq)]
pub struct ErasureClaim {
    pub cluster_id: String,
    pub node_id: u64,
    pub incarnation: String,
    /// The entry of the purge, or of the last one that it covers.
    pub through: u64,
    pub log_purged_through: u64,
    pub erased_at_unix_ms: u64,
}

/// The first line, by which the note of one kind is never taken for another.
const TITLE: &str = "quorate erasure statement v1";

impl ErasureClaim {
    fn note_text(&self) -> String {
        let Self { cluster_id, node_id, incarnation, through, log_purged_through, erased_at_unix_ms } = self;
        let at = UnixMs(*erased_at_unix_ms).to_rfc3339();
        format!(
            "{TITLE}\n\
             cluster {cluster_id}\n\
             node {node_id} {incarnation}\n\
             revision {through}\n\
             at {at}\n\
             erased values whose purge is at or before this revision from records, history, indexes, events and remembered answers\n\
             rewritten log, purged through {log_purged_through}; state files of the tenants concerned\n\
             removed snapshots of before, made or received\n\
             outside backups, exports and hand-off packages that were taken before, and whatever was copied out of the cluster\n"
        )
    }
}

/// The file of a statement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErasureFile {
    pub form: String,
    pub statement: String,
    pub public_key: String,
}

impl File for ErasureFile {
    const FORM: &'static str = "quorate.erasure.v1";
}

impl Signer {
    /// The file of a node's statement.
    pub fn erasure(&self, claim: &ErasureClaim) -> String {
        text(&ErasureFile {
            form: ErasureFile::FORM.into(),
            statement: note::sign(&claim.note_text(), &note::origin(&claim.cluster_id, ""), &self.key),
            public_key: hex::encode(self.key.verifying_key().as_bytes()),
        })
    }
}

impl ErasureFile {
    pub(crate) fn verify(self, pinned: Option<&VerifyingKey>) -> Result<Report, Fault> {
        let key = key(&self.public_key, pinned)?;
        let fault = |problem: &str| Fault::at("statement", problem);
        let mut lines = self.statement.lines();
        if lines.next() != Some(TITLE) {
            return Err(fault("it is no statement of an erasure"));
        }
        let mut field = |name: &str| lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned);
        let (cluster, node, revision) = (field("cluster"), field("node"), field("revision"));
        let (Some(cluster), Some(node), Some(revision)) = (cluster, node, revision) else {
            return Err(fault("it does not name cluster, node and revision"));
        };
        let revision: u64 = revision.parse().map_err(|_| fault("its revision is no number"))?;
        let origin = note::origin(&cluster, "");
        note::open(&self.statement, &origin, &key).map_err(|problem| Fault::at("statement", problem))?;
        Ok(Report {
            form: Self::FORM,
            shows: format!("node {node} has erased what was purged up to revision {revision}"),
            origin,
            size: revision,
            key_id: key_fingerprint(key.as_bytes()),
            public_key: self.public_key,
            content_hash: None,
            cosigned_by: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify;

    fn signed() -> String {
        let signer = Signer::from_hex(&"07".repeat(32), "acme").expect("a key");
        let claim = ErasureClaim {
            cluster_id: "acme".into(),
            node_id: 2,
            incarnation: "i".into(),
            through: 70,
            log_purged_through: 71,
            erased_at_unix_ms: 1_900_000_000_000,
        };
        signer.erasure(&claim)
    }

    #[test]
    fn a_statement_is_accepted_as_it_was_signed() {
        let report = verify(signed().as_bytes(), None).expect("valid");
        assert_eq!(report.shows, "node 2 i has erased what was purged up to revision 70");
        let other = Signer::from_hex(&"08".repeat(32), "acme").expect("a key").key.verifying_key();
        assert!(verify(signed().as_bytes(), Some(&other)).is_err(), "another key is trusted");
    }

    #[test]
    fn every_change_of_a_statement_is_found() {
        let whole = signed();
        for (at, byte) in whole.bytes().enumerate() {
            let mut changed = whole.clone().into_bytes();
            changed[at] = byte ^ 1;
            assert!(verify(&changed, None).is_err(), "byte {at}");
        }
    }
}
