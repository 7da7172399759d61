//! What a backup is made of, and made into: the state at one revision as files, on this side of openraft.
//!
//! Taking one disturbs nobody: the files are hard links of what RocksDB never changes. Their archive, its manifest and its
//! signature are the node's business.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quorate_domain::Read;
use quorate_domain::artefact::blobs_named;
use quorate_storage::Blobs;
pub use quorate_storage::archive::{ArchiveError, Draft, Hasher, Reader, Writer, hash};
pub use quorate_storage::{FileEntry, Manifest as Contents, Snapshot, StorageError, TransferError};
use quorate_storage::{Receiver, Snapshots};

use crate::blocking::blocking;
use crate::form::{AppliedForm, FormError};
use crate::node::RaftNode;
use crate::read::{Consistency, ReadError};
use crate::types::Address;

/// A member at the revision of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    pub address: Address,
    pub voter: bool,
}

/// Where a state stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub revision: u64,
    pub term: u64,
    pub members: Vec<Member>,
}

impl Place {
    /// Reads the marker that stands beside a state.
    pub fn of(applied: &[u8]) -> Result<Self, FormError> {
        let form = AppliedForm::decode(Some(applied))?;
        let voters: Vec<u64> = form.membership.configs.iter().flatten().copied().collect();
        let member = |(id, address): (&u64, &Address)| Member { id: *id, address: address.clone(), voter: voters.contains(id) };
        Ok(Self {
            revision: form.index(),
            term: form.last.map_or(0, |last| last.term),
            members: form.membership.nodes.iter().map(member).collect(),
        })
    }
}

/// The state at one revision, held on disk until this is dropped.
pub struct Checkpoint {
    // Dropped in this order: what is held is not removed.
    snapshot: Snapshot,
    _space: Space,
}

/// Gives the space of what nobody holds back.
struct Space(Snapshots);

impl Drop for Space {
    fn drop(&mut self) {
        if let Err(error) = self.0.prune(0) {
            // The next start removes it.
            tracing::warn!(%error, "cannot remove the checkpoint of a backup");
        }
    }
}

impl RaftNode {
    /// Takes a checkpoint that holds everything acknowledged before the call; with `stale`, whatever this node has, for a
    /// cluster without a quorum.
    pub async fn checkpoint(&self, stale: bool, deadline: Instant) -> Result<Checkpoint, ReadError> {
        if !stale {
            self.read(Consistency::Linearizable, deadline).await?;
        }
        let (state, snapshots, blobs) = (Arc::clone(self.state()), self.snapshots().clone(), self.blobs().clone());
        if !stale {
            self.hold_named_blobs().await.map_err(ReadError::Storage)?;
        }
        let state_again = Arc::clone(&state);
        let id = format!("backup-{}", self.wall_now().0);
        // What is named after the checkpoint goes along too, which does no harm; what was named before it is still here.
        let carry = move |dir: &Path| carry_named(&*state_again, &blobs, dir, stale);
        let build = move || {
            snapshots.build_beside(&state, &id, Bytes::new(), carry).map(|snapshot| Checkpoint { snapshot, _space: Space(snapshots) })
        };
        let built = blocking(build).await.map_err(|error| StorageError::new("the checkpoint did not end", error));
        built.and_then(|built| built).map_err(ReadError::Storage)
    }
}

/// Puts the blobs that records name among the files of a checkpoint.
pub(crate) fn carry_named(state: &impl Read, blobs: &Blobs, dir: &Path, stale: bool) -> Result<(), StorageError> {
    let (mut from, mut last) = (None, None);
    loop {
        let (hashes, next) = blobs_named(state, from.as_deref(), NAMES_PER_PAGE)?;
        for hash in hashes {
            // Those that several tenants name follow each other.
            if last.replace(hash) == Some(hash) {
                continue;
            }
            match blobs.size(&hash)? {
                Some(_) => blobs.carry(&hash, dir)?,
                None if stale => tracing::warn!(blob = hex::encode(hash), "a backup without a quorum lacks a blob that this node lacks"),
                None => return Err(StorageError::corrupt(format!("the blob {} is named and on no node that answers", hex::encode(hash)))),
            }
        }
        match next {
            Some(next) => from = Some(next),
            None => return Ok(()),
        }
    }
}

const NAMES_PER_PAGE: usize = 256;

impl Checkpoint {
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

/// Files of a backup on their way into a folder.
pub struct Unpacked(Receiver);

impl Unpacked {
    /// Begins in `dir`. Names and sizes are checked before anything is written.
    pub fn into_dir(dir: &Path, applied: Bytes, files: Vec<FileEntry>) -> Result<Self, TransferError> {
        let manifest = Contents { id: "backup".into(), meta: Bytes::new(), applied, files };
        Ok(Self(Snapshots::open(dir)?.start_or_resume(manifest)?))
    }

    /// Where the content of one file goes, from its begin on.
    pub fn file<'a>(&'a self, name: &'a str) -> impl io::Write + 'a {
        Append { receiver: &self.0, name, offset: 0 }
    }

    /// Checks every file.
    pub fn finish(self) -> Result<Snapshot, TransferError> {
        self.0.finish()
    }
}

struct Append<'a> {
    receiver: &'a Receiver,
    name: &'a str,
    offset: u64,
}

impl io::Write for Append<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.receiver.write_chunk(self.name, self.offset, bytes).map_err(io::Error::other)?;
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
