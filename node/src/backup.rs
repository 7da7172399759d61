//! Backups: the state at one revision as one file, signed, and read back before it counts.
//!
//! The file is a plain tar (`tar tvf` opens it), readable by its owner alone:
//! * `manifest.json`: where it is from (cluster, lineage, revision, members), and size and BLAKE3 hash of every other file.
//! * `manifest.sig`: the signature of those bytes by the cluster's receipt key ([`Seal`]).
//! * `deployment.json`, if the operator had one: addresses, tokens and **private keys** of the deployment.
//! * `state/...`: the RocksDB files of the state machine.
//!
//! A node makes the manifest and sends the state's files; whoever asked writes the file. Checking and unpacking need no node.

use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use quorate_proto::cluster as wire;
use quorate_raft::backup::{ArchiveError, Contents, Draft, FileEntry, Place, Reader, StorageError, TransferError, Unpacked, Writer};
pub use quorate_raft::backup::{Snapshot, hash};
use quorate_raft::found::{self, FoundError};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tonic::Status;

use quorate_proof::{Seal, Signer};

/// Raised when an older program could not read the file any more.
const FORMAT: u32 = 1;
pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const SIGNATURE: &str = "manifest.sig";
/// The deployment's own description, with its secrets.
pub const DEPLOYMENT: &str = "deployment.json";
const STATE: &str = "state/";
/// Thousands of files.
pub(crate) const MANIFEST_BYTES_MAX: usize = 16 << 20;
pub(crate) const SIGNATURE_BYTES_MAX: usize = 4 << 10;
const DEPLOYMENT_BYTES_MAX: u64 = 4 << 20;
pub(crate) const CHUNK_BYTES: usize = 512 << 10;

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// Of the program that made it.
    pub version: String,
    pub cluster_id: String,
    pub lineage: u64,
    /// The state is that right after this entry of the log, and its term.
    pub revision: u64,
    pub term: u64,
    pub members: Vec<Member>,
    /// The node that made it, and when by its clock.
    pub taken_by: u64,
    pub taken_at_unix_ms: u64,
    /// The state's own marker, in hex: the same as revision, term and members, for a node.
    pub applied: String,
    /// In the order in which they follow.
    pub files: Vec<FileEntry>,
}

/// A member at that revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub id: u64,
    pub grpc: String,
    pub http: String,
    pub voter: bool,
}

/// Why a backup was not made, or can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("the backup is damaged, do not use it: `{file}` {problem}")]
    Damaged { file: String, problem: String },
    #[error("the backup has format {found}, and this program reads up to {FORMAT}: use a newer `quorate`")]
    Newer { found: u32 },
    #[error("the backup was signed by key {found}, not by {wanted}")]
    OtherKey { found: String, wanted: String },
    #[error("the node sent what its manifest does not say: {0}")]
    Sent(String),
    #[error("`{0}` can't be attached to a backup")]
    Attached(String),
    #[error("the receipt key can't be used: {0}")]
    Key(String),
    #[error(transparent)]
    Found(#[from] FoundError),
    #[error("nobody reads the backup any more")]
    Unread,
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("{}", crate::run::chain(.0))]
    Storage(#[from] StorageError),
}

impl From<ArchiveError> for BackupError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Damaged { file, problem } => damaged(&file, format!("can't be read: {problem}")),
            ArchiveError::Storage(error) => error.into(),
        }
    }
}

pub(crate) fn damaged(file: &str, problem: impl ToString) -> BackupError {
    BackupError::Damaged { file: file.into(), problem: problem.to_string() }
}

impl Manifest {
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    /// Checks the seal and what the rest of this module relies on.
    fn open(manifest: &[u8], seal: &[u8]) -> Result<(Self, Seal), BackupError> {
        let found: serde_json::Value = serde_json::from_slice(manifest).map_err(|error| damaged(MANIFEST, error))?;
        // Before the signature: a newer format may have another.
        match found["format"].as_u64().and_then(|format| u32::try_from(format).ok()) {
            Some(format) if format <= FORMAT => {}
            Some(found) => return Err(BackupError::Newer { found }),
            None => return Err(damaged(MANIFEST, "names no format")),
        }
        let seal = Seal::open(seal, manifest).map_err(|problem| damaged(SIGNATURE, format!("does not hold: {problem}")))?;
        let manifest: Manifest = serde_json::from_slice(manifest).map_err(|error| damaged(MANIFEST, error))?;
        let place = manifest.applied().and_then(|applied| Place::of(&applied).map_err(|error| damaged(MANIFEST, error)))?;
        if (place.revision, place.term) != (manifest.revision, manifest.term) {
            return Err(damaged(MANIFEST, "contradicts itself about the revision"));
        }
        let known = |file: &FileEntry| file.name.starts_with(STATE) || is_attachable(file);
        match manifest.files.iter().find(|file| !known(file)) {
            None => Ok((manifest, seal)),
            Some(file) => Err(damaged(MANIFEST, format!("names `{}`, which is no file of a backup", file.name))),
        }
    }

    fn applied(&self) -> Result<Vec<u8>, BackupError> {
        hex::decode(&self.applied).map_err(|error| damaged(MANIFEST, error))
    }
}

/// What a caller may have beside the state.
fn is_attachable(file: &FileEntry) -> bool {
    file.name == DEPLOYMENT && file.size_bytes <= DEPLOYMENT_BYTES_MAX
}

// ------------------------------------------------------------------ where the state is

/// Whose state it is, and who signs for it.
pub(crate) struct Source<'a> {
    pub cluster_id: String,
    pub lineage: u64,
    pub node_id: u64,
    pub signer: &'a Signer,
}

impl Source<'_> {
    /// The head of a backup: its manifest and the seal of that.
    pub fn head(&self, snapshot: &Snapshot, attached: Vec<FileEntry>) -> Result<wire::BackupHead, BackupError> {
        // The seal says that the state is the cluster's, so nothing from elsewhere may stand among its files.
        if let Some(other) = attached.iter().find(|file| !is_attachable(file)) {
            return Err(BackupError::Attached(other.name.clone()));
        }
        let of_state = |file: &FileEntry| FileEntry { name: format!("{STATE}{}", file.name), ..file.clone() };
        let member = |member: quorate_raft::backup::Member| Member {
            id: member.id,
            grpc: member.address.grpc,
            http: member.address.http,
            voter: member.voter,
        };
        let Contents { files, applied, .. } = snapshot.manifest();
        let place = Place::of(applied).map_err(|error| damaged(MANIFEST, error))?;
        let manifest = Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            cluster_id: self.cluster_id.clone(),
            lineage: self.lineage,
            revision: place.revision,
            term: place.term,
            members: place.members.into_iter().map(member).collect(),
            taken_by: self.node_id,
            taken_at_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            applied: hex::encode(applied),
            files: attached.into_iter().chain(files.iter().map(of_state)).collect(),
        };
        // Strings and numbers, into a Vec.
        let manifest = serde_json::to_vec_pretty(&manifest).expect("a manifest always encodes");
        let signature = self.signer.seal(&manifest).to_bytes();
        Ok(wire::BackupHead { manifest: manifest.into(), signature: signature.into() })
    }
}

/// Reads the files of a state in order, a chunk at a time, for as long as `to` wants more.
pub(crate) fn each_chunk(snapshot: &Snapshot, to: ToChunk<'_>) -> Result<(), BackupError> {
    for file in &snapshot.manifest().files {
        let mut offset = 0;
        while offset < file.size_bytes {
            let data = snapshot.read_chunk(&file.name, offset, CHUNK_BYTES)?;
            if data.is_empty() {
                return Err(damaged(&file.name, "has become shorter"));
            }
            offset += data.len() as u64;
            to(wire::BackupChunk { file: format!("{STATE}{}", file.name), data })?;
        }
    }
    Ok(())
}

/// Where the chunks of a file go.
pub(crate) type ToChunk<'a> = &'a mut dyn FnMut(wire::BackupChunk) -> Result<(), BackupError>;

/// Sends head and chunks until their end, or until nobody reads them any more. For a blocking thread.
pub(crate) fn send(
    head: wire::BackupHead,
    to: &mpsc::Sender<Result<wire::BackupPart, Status>>,
    each_chunk: impl FnOnce(ToChunk<'_>) -> Result<(), BackupError>,
) {
    use wire::backup_part::Part;
    let send = |part| to.blocking_send(Ok(wire::BackupPart { part: Some(part) })).map_err(|_| BackupError::Unread);
    match send(Part::Head(head)).and_then(|()| each_chunk(&mut |chunk| send(Part::Chunk(chunk)))) {
        Ok(()) | Err(BackupError::Unread) => {}
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot read what was to be sent");
            let _ = to.blocking_send(Err(Status::internal("a file of the state can't be read on this node")));
        }
    }
}

/// A backup of a stopped node's folder, with all that its log holds, committed or not: for a cluster without a quorum whose nodes
/// `quorate dev` does not run. Works on a copy in `scratch`, so the folder stays as it is.
pub fn of_stopped(folder: &Path, receipt_key: &str, scratch: &Path, path: &Path) -> Result<Checked, BackupError> {
    let identity = found::survivor(folder, scratch)?.identity;
    let signer = Signer::from_hex(receipt_key, &identity.cluster_id).map_err(BackupError::Key)?;
    let lineage = identity.lineage.parse().map_err(|_| damaged("identity.json", "names no lineage"))?;
    let snapshot = found::recover(folder, &scratch.join("recovered"))?;
    let source = Source { cluster_id: identity.cluster_id, lineage, node_id: identity.node_id, signer: &signer };
    let mut taking = Taking::begin(path, &source.head(&snapshot, Vec::new())?, None)?;
    each_chunk(&snapshot, &mut |chunk| taking.chunk(&chunk.file, &chunk.data))?;
    taking.finish()
}

// ------------------------------------------------------------------ for whoever asked

/// An archive that is being written: a manifest, its signature, and the files that the manifest names. Dropped before
/// [`Filing::finish`], it leaves nothing.
pub(crate) struct Filing {
    writer: Writer,
    files: Vec<FileEntry>,
    /// How many files were begun, and how many bytes of the last one are here.
    begun: usize,
    written: u64,
}

impl Filing {
    pub fn begin(path: &Path, head: &wire::BackupHead, taken_at_unix_ms: u64, files: Vec<FileEntry>) -> Result<Self, BackupError> {
        let mut writer = Writer::create(path, taken_at_unix_ms / 1_000)?;
        for (name, bytes) in [(MANIFEST, &head.manifest), (SIGNATURE, &head.signature)] {
            writer.begin(name, bytes.len() as u64)?;
            writer.write(bytes)?;
        }
        Ok(Self { writer, files, begun: 0, written: 0 })
    }

    /// Takes the next bytes. Files come in the order of the manifest.
    pub fn chunk(&mut self, file: &str, data: &[u8]) -> Result<(), BackupError> {
        while self.last().is_none_or(|last| last.name != file) {
            self.next_file().map_err(|_| BackupError::Sent(format!("`{file}` comes out of order")))?;
        }
        self.written += data.len() as u64;
        Ok(self.writer.write(data)?)
    }

    /// Ends the file, which has its name only once it is published.
    pub fn finish(mut self) -> Result<Draft, BackupError> {
        while self.begun < self.files.len() {
            self.next_file()?;
        }
        Ok(self.writer.finish()?)
    }

    fn last(&self) -> Option<&FileEntry> {
        self.files.get(self.begun.checked_sub(1)?)
    }

    fn next_file(&mut self) -> Result<(), BackupError> {
        let is_whole = self.last().is_none_or(|last| last.size_bytes == self.written);
        match self.files.get(self.begun) {
            Some(next) if is_whole => self.writer.begin(&next.name, next.size_bytes)?,
            _ => return Err(BackupError::Sent("a file of the archive did not come whole".into())),
        }
        (self.begun, self.written) = (self.begun + 1, 0);
        Ok(())
    }
}

/// A backup that is being written. Dropped before [`Taking::finish`], it leaves nothing.
pub struct Taking(Filing);

impl Taking {
    /// Begins the file at `path`; `deployment` is what was announced as attached.
    pub fn begin(path: &Path, head: &wire::BackupHead, deployment: Option<&[u8]>) -> Result<Self, BackupError> {
        let (manifest, _) = Manifest::open(&head.manifest, &head.signature)?;
        let mut taking = Self(Filing::begin(path, head, manifest.taken_at_unix_ms, manifest.files)?);
        if let Some(deployment) = deployment {
            taking.chunk(DEPLOYMENT, deployment)?;
        }
        Ok(taking)
    }

    /// Takes the next bytes. Files come in the order of the manifest.
    pub fn chunk(&mut self, file: &str, data: &[u8]) -> Result<(), BackupError> {
        self.0.chunk(file, data)
    }

    /// Ends the file, reads all of it back, and only then gives it its name.
    pub fn finish(self) -> Result<Checked, BackupError> {
        let draft = self.0.finish()?;
        let checked = check(draft.place(), None)?;
        draft.publish()?;
        Ok(checked)
    }
}

/// A backup every byte of which was read.
#[derive(Debug)]
pub struct Checked {
    pub manifest: Manifest,
    pub seal: Seal,
    /// BLAKE3 of the manifest, in hex: which backup it is.
    pub id: String,
    /// The attached description of the deployment.
    pub deployment: Option<Vec<u8>>,
}

/// Reads all of a backup and names the first file that is not what was written. With `public_key` (hex) only that key's
/// signature counts; without it the signature shows that nothing was changed, not who made it.
pub fn check(path: &Path, public_key: Option<&str>) -> Result<Checked, BackupError> {
    let (checked, _) = read(path, public_key, None)?;
    Ok(checked)
}

/// The same, with the state unpacked into a folder.
pub fn unpack(path: &Path, public_key: Option<&str>, into: &Path) -> Result<(Checked, Snapshot), BackupError> {
    let (checked, snapshot) = read(path, public_key, Some(into))?;
    // It was asked for.
    Ok((checked, snapshot.expect("a folder was given")))
}

fn read(path: &Path, public_key: Option<&str>, into: Option<&Path>) -> Result<(Checked, Option<Snapshot>), BackupError> {
    let mut archive = Reader::open(path)?;
    let manifest_bytes = archive.small(MANIFEST, MANIFEST_BYTES_MAX)?;
    let seal = archive.small(SIGNATURE, SIGNATURE_BYTES_MAX)?;
    let (manifest, seal) = Manifest::open(&manifest_bytes, &seal)?;
    if let Some(wanted) = public_key.filter(|wanted| !wanted.eq_ignore_ascii_case(&seal.public_key)) {
        return Err(BackupError::OtherKey { found: seal.public_key, wanted: wanted.into() });
    }
    if archive.time_unix_s() != Some(manifest.taken_at_unix_ms / 1_000) {
        return Err(damaged(MANIFEST, "has another time in its header than in itself"));
    }
    let of_state = |file: &FileEntry| Some(FileEntry { name: file.name.strip_prefix(STATE)?.into(), ..file.clone() });
    let unpacked = match into {
        Some(dir) => Some(Unpacked::into_dir(dir, manifest.applied()?.into(), manifest.files.iter().filter_map(of_state).collect())?),
        None => None,
    };
    let mut deployment = None;
    for file in &manifest.files {
        let mut kept = Vec::new();
        let mut to: Box<dyn Write> = match (file.name.strip_prefix(STATE), &unpacked) {
            (Some(name), Some(unpacked)) => Box::new(unpacked.file(name)),
            (Some(_), None) => Box::new(io::sink()),
            (None, _) => Box::new(&mut kept),
        };
        let blake3 = archive.file(&file.name, file.size_bytes, &mut to)?;
        drop(to);
        if blake3 != file.blake3 {
            return Err(damaged(&file.name, "does not have the hash that the manifest names"));
        }
        if file.name == DEPLOYMENT {
            deployment = Some(kept);
        }
    }
    archive.end()?;
    let snapshot = unpacked.map(Unpacked::finish).transpose()?;
    let id = hash(&manifest_bytes);
    Ok((Checked { manifest, seal, id, deployment }, snapshot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_can_have_nothing_signed_as_a_part_of_the_state() {
        let file = |name: &str, size_bytes| FileEntry { name: name.into(), size_bytes, blake3: String::new() };
        assert!(is_attachable(&file(DEPLOYMENT, 2_000)));
        assert!(!is_attachable(&file("state/000012.sst", 1)));
        assert!(!is_attachable(&file("../deployment.json", 1)));
        assert!(!is_attachable(&file(DEPLOYMENT, DEPLOYMENT_BYTES_MAX + 1)));
    }
}
