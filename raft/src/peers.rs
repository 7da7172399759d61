//! Who is who: this node's name in every request, and the incarnations of the others.
//!
//! A node that comes back on an empty disk has forgotten votes and entries it once acknowledged; under its old id it could
//! give a majority to what never had one. So each node remembers the incarnation under which it first met another, on disk, and
//! refuses any other under the same id, whether that one calls or is called. The way back is to be replaced by a new member.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_domain::{chain, codec};
use quorate_proto::raft::Header;
use quorate_storage::durable;
use serde::{Deserialize, Serialize};

/// What this node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Me {
    pub cluster_id: String,
    pub lineage: u64,
    pub node_id: u64,
    pub incarnation: String,
}

/// Why a request was not for this node, or not from whom it said.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Stranger {
    #[error("the request does not say who sends it")]
    Unnamed,
    #[error("this node belongs to cluster `{ours}`, the request to `{theirs}`")]
    OtherCluster { ours: String, theirs: String },
    #[error(
        "this node is of lineage {ours}, the request of {theirs}: the cluster was restored meanwhile; join as a new member on an empty directory"
    )]
    OtherLineage { ours: u64, theirs: u64 },
    #[error("this is node {ours}, the request is for {theirs}: two members have the same address")]
    OtherNode { ours: u64, theirs: u64 },
    #[error(
        "node {node} is known under incarnation {known}, not {met}: its data directory was lost or exchanged; replace it by a new member: `quorate replace {node}`"
    )]
    OtherIncarnation { node: u64, known: String, met: String },
    #[error("cannot remember the incarnation of node {node}: {problem}")]
    Unsaved { node: u64, problem: String },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Met {
    incarnations: BTreeMap<u64, String>,
}

/// The incarnations this node has met.
pub struct Peers {
    pub me: Me,
    path: PathBuf,
    met: Mutex<Met>,
}

impl Peers {
    pub fn open(data_dir: &Path, me: Me) -> io::Result<Self> {
        let path = data_dir.join("peers");
        let met = match fs::read(&path) {
            Ok(bytes) => codec::decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Met::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { me, path, met: Mutex::new(met) })
    }

    /// What stands before a request to `target`.
    pub fn header(&self, target: u64) -> Header {
        let Me { cluster_id, lineage, node_id, incarnation } = self.me.clone();
        let to_incarnation = self.met.lock().unwrap_or_else(PoisonError::into_inner).incarnations.get(&target).cloned().unwrap_or_default();
        Header {
            cluster_id,
            lineage,
            from_node: node_id,
            from_incarnation: incarnation,
            to_node: target,
            to_incarnation,
            clock_off_ms: None,
        }
    }

    /// Whether a request is from a member for this node.
    pub fn admit(&self, header: Option<&Header>) -> Result<(), Stranger> {
        let header = header.ok_or(Stranger::Unnamed)?;
        let me = &self.me;
        if header.cluster_id != me.cluster_id {
            return Err(Stranger::OtherCluster { ours: me.cluster_id.clone(), theirs: header.cluster_id.clone() });
        }
        if header.lineage != me.lineage {
            return Err(Stranger::OtherLineage { ours: me.lineage, theirs: header.lineage });
        }
        if header.to_node != me.node_id {
            return Err(Stranger::OtherNode { ours: me.node_id, theirs: header.to_node });
        }
        if !header.to_incarnation.is_empty() && header.to_incarnation != me.incarnation {
            let (known, met) = (header.to_incarnation.clone(), me.incarnation.clone());
            return Err(Stranger::OtherIncarnation { node: me.node_id, known, met });
        }
        self.meet(header.from_node, &header.from_incarnation)
    }

    /// Remembers an incarnation at the first meeting, and refuses another one ever after.
    pub fn meet(&self, node: u64, incarnation: &str) -> Result<(), Stranger> {
        if incarnation.is_empty() {
            return Err(Stranger::Unnamed);
        }
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        match met.incarnations.get(&node) {
            Some(known) if known == incarnation => return Ok(()),
            Some(known) => return Err(Stranger::OtherIncarnation { node, known: known.clone(), met: incarnation.into() }),
            None => {}
        }
        let mut more = met.clone();
        more.incarnations.insert(node, incarnation.into());
        durable::replace_file(&self.path, &codec::encode(&more)).map_err(|error| Stranger::Unsaved { node, problem: chain(&error) })?;
        *met = more;
        Ok(())
    }
}

/// Lets one of many equal warnings through: what is refused is retried several times a second.
pub(crate) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    const EVERY: Duration = Duration::from_secs(10);

    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn again(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= Self::EVERY);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me(node_id: u64, incarnation: &str) -> Me {
        Me { cluster_id: "acme".into(), lineage: 0, node_id, incarnation: incarnation.into() }
    }

    #[test]
    fn a_node_on_a_new_disk_is_refused_from_both_sides_and_after_a_restart() {
        let (dir_1, dir_2, dir_wiped) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = Peers::open(dir_1.path(), me(1, "a")).unwrap();
        let two = Peers::open(dir_2.path(), me(2, "b")).unwrap();
        one.admit(Some(&two.header(1))).unwrap();

        let one = Peers::open(dir_1.path(), me(1, "a")).unwrap();
        let wiped = Peers::open(dir_wiped.path(), me(2, "c")).unwrap();
        let refused = one.admit(Some(&wiped.header(1))).unwrap_err();
        assert!(refused.to_string().contains("`quorate replace 2`"), "{refused}");
        let refused = wiped.admit(Some(&one.header(2))).unwrap_err();
        assert_eq!(refused, Stranger::OtherIncarnation { node: 2, known: "b".into(), met: "c".into() });
    }

    #[test]
    fn requests_of_another_cluster_lineage_or_for_another_node_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let one = Peers::open(dir.path(), me(1, "a")).unwrap();
        let header = |change: fn(&mut Header)| {
            let mut header =
                Header { cluster_id: "acme".into(), from_node: 2, from_incarnation: "b".into(), to_node: 1, ..Header::default() };
            change(&mut header);
            one.admit(Some(&header))
        };
        assert!(matches!(header(|header| header.cluster_id = "other".into()), Err(Stranger::OtherCluster { .. })));
        assert!(matches!(header(|header| header.lineage = 1), Err(Stranger::OtherLineage { .. })));
        assert!(matches!(header(|header| header.to_node = 3), Err(Stranger::OtherNode { .. })));
        assert_eq!(one.admit(None), Err(Stranger::Unnamed));
        assert_eq!(header(|_| {}), Ok(()));
    }
}
