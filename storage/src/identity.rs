//! Whose data directory this is, and the lock that keeps a second process out of it.
//!
//! A node that loses its disk and comes back under its old id would deny votes and entries it once acknowledged. So a directory
//! gets an incarnation when it is created, never again another one, and peers refuse an incarnation they don't know.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use quorate_domain::StorageError;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, at};

const IDENTITY: &str = "identity.json";
const LOCK: &str = "LOCK";

/// What a data directory belongs to, for as long as it exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub cluster_id: String,
    /// Changes when a cluster is restored from a backup or forced into being from a survivor.
    pub lineage: String,
    pub node_id: u64,
    /// Random, one for each data directory ever created.
    pub incarnation: Uuid,
}

/// What a starting node says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub cluster_id: String,
    pub lineage: String,
    pub node_id: u64,
}

/// Why a node must not use a directory. One variant for each different next step of the operator.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{} belongs to cluster `{found}`, and this node is to be in `{wanted}`: start it with its own data directory, or with the other cluster's id", .dir.display())]
    OtherCluster { dir: PathBuf, found: String, wanted: String },
    #[error("{} belongs to lineage `{found}` of the cluster, and this node is to be in `{wanted}`: the cluster was restored meanwhile; start with an empty directory and join as a new member", .dir.display())]
    OtherLineage { dir: PathBuf, found: String, wanted: String },
    #[error("{} belongs to node {found}, and this is to be node {wanted}: start it with its own data directory, or with id {found}", .dir.display())]
    OtherNode { dir: PathBuf, found: u64, wanted: u64 },
    #[error("{} has data but no `identity.json`: whose it is can't be known; restore that file, or start with an empty directory and join as a new member", .dir.display())]
    NoIdentity { dir: PathBuf },
    #[error("{} is in use by another process: stop it first, or start with another data directory", .dir.display())]
    InUse { dir: PathBuf },
    #[error("`identity.json` in {} can't be read: restore that file, or start with an empty directory and join as a new member", .dir.display())]
    Unreadable {
        dir: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A data directory that is this process's own until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    /// The operating system frees the lock with the file, also when the process is killed.
    _lock: File,
}

impl DataDir {
    /// Locks `dir` and checks whose it is; an empty or missing one becomes the claimant's, under a new incarnation.
    pub fn load_or_create(dir: &Path, claim: &Claim) -> Result<Self, IdentityError> {
        durable::create_dir(dir)?;
        let lock = lock(dir)?;
        let identity = match read(dir)? {
            Some(identity) => identity,
            None => create(dir, claim)?,
        };
        check(dir, &identity, claim)?;
        Ok(Self { path: dir.to_owned(), identity, _lock: lock })
    }

    /// Locks a directory that has its identity already.
    pub fn open(dir: &Path) -> Result<Self, IdentityError> {
        // Before the lock, whose file would be the first thing in a folder that is not there.
        let identity = read(dir)?.ok_or_else(|| IdentityError::NoIdentity { dir: dir.to_owned() })?;
        Ok(Self { path: dir.to_owned(), identity, _lock: lock(dir)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Where the Raft log lies.
    pub fn log_dir(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where the state machine lies.
    pub fn state_dir(&self) -> PathBuf {
        self.path.join("state")
    }

    /// Where blobs lie. On the file system of the snapshots, so that they can share files.
    pub fn blobs_dir(&self) -> PathBuf {
        self.path.join("blobs")
    }

    /// Where snapshots lie. On the file system of the state, so that they can share files.
    pub fn snapshots_dir(&self) -> PathBuf {
        self.path.join("snapshots")
    }
}

/// The identity in `dir`, if one was ever written: what a node knows of itself before it makes a claim.
pub fn read(dir: &Path) -> Result<Option<Identity>, IdentityError> {
    let Some(bytes) = durable::read_if_there(&dir.join(IDENTITY))? else { return Ok(None) };
    let identity = serde_json::from_slice(&bytes).map_err(|source| IdentityError::Unreadable { dir: dir.to_owned(), source })?;
    Ok(Some(identity))
}

fn lock(dir: &Path) -> Result<File, IdentityError> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(at("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(IdentityError::InUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(at("lock", &path)(error).into()),
    }
}

fn create(dir: &Path, claim: &Claim) -> Result<Identity, IdentityError> {
    // The identity is written before anything else, so data without one has lost it.
    let is_new = durable::names(dir)?.iter().all(|name| name == LOCK || name.starts_with(IDENTITY));
    if !is_new {
        return Err(IdentityError::NoIdentity { dir: dir.to_owned() });
    }
    let Claim { cluster_id, lineage, node_id } = claim.clone();
    let identity = Identity { cluster_id, lineage, node_id, incarnation: Uuid::new_v4() };
    let bytes = serde_json::to_vec_pretty(&identity).map_err(|error| StorageError::new("cannot encode the identity", error))?;
    durable::replace_file(&dir.join(IDENTITY), &bytes)?;
    Ok(identity)
}

fn check(dir: &Path, identity: &Identity, claim: &Claim) -> Result<(), IdentityError> {
    let dir = || dir.to_owned();
    if identity.cluster_id != claim.cluster_id {
        return Err(IdentityError::OtherCluster { dir: dir(), found: identity.cluster_id.clone(), wanted: claim.cluster_id.clone() });
    }
    if identity.lineage != claim.lineage {
        return Err(IdentityError::OtherLineage { dir: dir(), found: identity.lineage.clone(), wanted: claim.lineage.clone() });
    }
    if identity.node_id != claim.node_id {
        return Err(IdentityError::OtherNode { dir: dir(), found: identity.node_id, wanted: claim.node_id });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(cluster_id: &str, lineage: &str, node_id: u64) -> Claim {
        Claim { cluster_id: cluster_id.into(), lineage: lineage.into(), node_id }
    }

    fn refusal(dir: &Path, claim: &Claim) -> String {
        let error = DataDir::load_or_create(dir, claim).unwrap_err();
        error.to_string().replace(&dir.display().to_string(), "DIR")
    }

    #[test]
    fn a_directory_keeps_its_incarnation_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::load_or_create(dir.path(), &claim("acme", "a", 1)).unwrap().identity().clone();
        let second = DataDir::load_or_create(dir.path(), &claim("acme", "a", 1)).unwrap().identity().clone();
        assert_eq!(first, second);
        assert_eq!(read(dir.path()).unwrap(), Some(first));
    }

    #[test]
    fn two_directories_never_share_an_incarnation() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = DataDir::load_or_create(one.path(), &claim("acme", "a", 1)).unwrap();
        let two = DataDir::load_or_create(two.path(), &claim("acme", "a", 1)).unwrap();
        assert_ne!(one.identity().incarnation, two.identity().incarnation);
    }

    #[test]
    fn another_nodes_directory_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::load_or_create(dir.path(), &claim("acme", "a", 1)).unwrap());
        assert_eq!(
            refusal(dir.path(), &claim("other", "a", 1)),
            "DIR belongs to cluster `acme`, and this node is to be in `other`: start it with its own data directory, or with the other cluster's id"
        );
        assert_eq!(
            refusal(dir.path(), &claim("acme", "b", 1)),
            "DIR belongs to lineage `a` of the cluster, and this node is to be in `b`: the cluster was restored meanwhile; start with an empty directory and join as a new member"
        );
        assert_eq!(
            refusal(dir.path(), &claim("acme", "a", 2)),
            "DIR belongs to node 1, and this is to be node 2: start it with its own data directory, or with id 1"
        );
    }

    #[test]
    fn a_second_user_of_a_directory_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::load_or_create(dir.path(), &claim("acme", "a", 1)).unwrap();
        assert_eq!(
            refusal(dir.path(), &claim("acme", "a", 1)),
            "DIR is in use by another process: stop it first, or start with another data directory"
        );
        drop(first);
        DataDir::load_or_create(dir.path(), &claim("acme", "a", 1)).unwrap();
    }

    #[test]
    fn data_without_an_identity_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::load_or_create(dir.path(), &claim("acme", "a", 1)).unwrap();
        std::fs::create_dir(data.log_dir()).unwrap();
        drop(data);
        std::fs::remove_file(dir.path().join(IDENTITY)).unwrap();
        assert!(refusal(dir.path(), &claim("acme", "a", 1)).starts_with("DIR has data but no `identity.json`"));
    }

    #[test]
    fn an_identity_cut_short_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::load_or_create(dir.path(), &claim("acme", "a", 1)).unwrap());
        std::fs::write(dir.path().join(IDENTITY), b"{\"cluster_id\":").unwrap();
        assert!(refusal(dir.path(), &claim("acme", "a", 1)).starts_with("`identity.json` in DIR can't be read"));
    }

    #[test]
    fn a_crash_while_the_identity_is_written_leaves_a_new_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("identity.json.tmp"), b"{\"clus").unwrap();
        DataDir::load_or_create(dir.path(), &claim("acme", "a", 1)).unwrap();
    }
}
