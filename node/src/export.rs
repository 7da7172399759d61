//! Exports: one tenant as one file, signed, to be imported into another cluster.
//!
//! The file is a tar like a backup's, readable by its owner alone:
//! * `manifest.json`: which tenant, from where, at which revision; how many rows of each kind are in it, what was left out and why;
//!   size and BLAKE3 hash of every other file.
//! * `manifest.sig`: the signature of those bytes by the cluster's receipt key.
//! * `rows.jsonl`: the rows. Each line is a JSON array of rows that one entry of the log takes in, in order; a row has the stored
//!   name of its table, its key and its value, both in hex.
//! * `blobs/HASH`: what artefacts are made of.
//!
//! A node reads its state twice, at one revision: for the hashes, and to send it. Checking and unpacking need no node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate_domain::limit::{IMPORT_BATCH_BYTES, IMPORT_ROWS_MAX};
use quorate_domain::tenant::{LeftOut, Origin, TenantRow, TenantRows, revision_within};
use quorate_domain::{LeaseTime, Read, Revision, UnixMs, level};
use quorate_proof::{Seal, Signer};
use quorate_proto::cluster as wire;
use quorate_raft::backup::{FileEntry, Hasher, Reader};
use quorate_raft::{RaftNode, ReadAt};
use serde::{Deserialize, Serialize};

use crate::backup::{
    BackupError, CHUNK_BYTES, Filing, MANIFEST, MANIFEST_BYTES_MAX, SIGNATURE, SIGNATURE_BYTES_MAX, ToChunk, damaged, hash,
};

/// Tells the file from a backup, which is signed by the same key.
const FORM: &str = "quorate tenant export";
/// Raised when an older program could not read the file any more.
const FORMAT: u32 = 1;
const ROWS: &str = "rows.jsonl";
const BLOBS: &str = "blobs/";

/// What an export says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub form: String,
    pub format: u32,
    /// Of the program that made it.
    pub version: String,
    pub cluster_id: String,
    pub lineage: u64,
    pub tenant: String,
    /// The tenant is as it was right after this entry of the log.
    pub revision: u64,
    /// The same, as the tenant numbers its own changes: another number where it came from another cluster itself.
    pub tenant_revision: u64,
    /// The cluster's clocks at that moment.
    pub lease_now_ms: u64,
    pub wall_unix_ms: u64,
    pub feature_level: u64,
    /// The node that made it, and when by its clock.
    pub taken_by: u64,
    pub taken_at_unix_ms: u64,
    /// Lines and rows of `rows.jsonl`, and rows by their kind.
    pub batches: u64,
    pub rows: u64,
    pub carried: BTreeMap<String, u64>,
    pub left_out: Vec<LeftOut>,
    /// In the order in which they follow.
    pub files: Vec<FileEntry>,
}

impl Manifest {
    /// Checks the seal and what the rest of this module relies on.
    fn open(manifest: &[u8], seal: &[u8]) -> Result<(Self, Seal), BackupError> {
        let found: serde_json::Value = serde_json::from_slice(manifest).map_err(|error| damaged(MANIFEST, error))?;
        if found["form"].as_str() != Some(FORM) {
            return Err(damaged(MANIFEST, "is not that of a tenant's export"));
        }
        match found["format"].as_u64().and_then(|format| u32::try_from(format).ok()) {
            Some(format) if format <= FORMAT => {}
            Some(found) => return Err(BackupError::Newer { found }),
            None => return Err(damaged(MANIFEST, "names no format")),
        }
        let seal = Seal::open(seal, manifest).map_err(|problem| damaged(SIGNATURE, format!("does not hold: {problem}")))?;
        let manifest: Manifest = serde_json::from_slice(manifest).map_err(|error| damaged(MANIFEST, error))?;
        let is_known = |(n, file): (usize, &FileEntry)| match n {
            0 => file.name == ROWS,
            _ => file.name.strip_prefix(BLOBS) == Some(&file.blake3) && hex::decode(&file.blake3).is_ok_and(|hash| hash.len() == 32),
        };
        if manifest.files.is_empty() || !manifest.files.iter().enumerate().all(is_known) {
            return Err(damaged(MANIFEST, "names files that no export has"));
        }
        Ok((manifest, seal))
    }

    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }
}

// ------------------------------------------------------------------ where the tenant is

/// Why there is no export.
#[derive(Debug)]
pub(crate) enum NotExported {
    NoTenant,
    Failed(BackupError),
}

impl From<BackupError> for NotExported {
    fn from(error: BackupError) -> Self {
        Self::Failed(error)
    }
}

/// A tenant at one revision, and where its blobs are.
pub(crate) struct Export {
    at: ReadAt,
    raft: RaftNode,
    tenant: String,
}

/// What the first reading found.
struct Measured {
    rows: FileEntry,
    batches: u64,
    blobs: BTreeSet<[u8; 32]>,
    carried: BTreeMap<String, u64>,
    rows_count: u64,
    left_out: Vec<LeftOut>,
}

impl Export {
    pub fn new(at: ReadAt, raft: RaftNode, tenant: String) -> Self {
        Self { at, raft, tenant }
    }

    pub fn revision(&self) -> Revision {
        self.at.revision
    }

    /// The head of the file. Reads all of the tenant, and fetches what blobs this node lacks; for a blocking thread of a runtime.
    pub fn head(&self, signer: &Signer) -> Result<wire::BackupHead, NotExported> {
        let measured = self.measure()?;
        if measured.rows_count == 0 {
            return Err(NotExported::NoTenant);
        }
        let mut files = vec![measured.rows];
        for blob in &measured.blobs {
            let name = hex::encode(blob);
            let held = tokio::runtime::Handle::current().block_on(self.raft.hold_blob(*blob));
            let size = match held {
                Ok(true) => self.raft.blobs().size(blob).map_err(BackupError::Storage)?,
                Ok(false) => None,
                Err(error) => return Err(damaged(&format!("{BLOBS}{name}"), format!("can't be read here: {error}")).into()),
            };
            let Some(size_bytes) = size else { return Err(damaged(&format!("{BLOBS}{name}"), "is on no node that answers").into()) };
            files.push(FileEntry { name: format!("{BLOBS}{name}"), size_bytes, blake3: name });
        }
        let status = self.raft.status();
        let failed = |error| NotExported::Failed(BackupError::Storage(error));
        let manifest = Manifest {
            form: FORM.into(),
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            cluster_id: status.cluster_id,
            lineage: status.lineage,
            tenant: self.tenant.clone(),
            revision: self.at.revision.0,
            tenant_revision: revision_within(&self.at.view, &self.tenant, self.at.revision).map_err(failed)?.0,
            lease_now_ms: self.at.lease_now.0,
            wall_unix_ms: self.at.wall.0,
            feature_level: level::level(&self.at.view).map_err(failed)?,
            taken_by: status.node_id,
            taken_at_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            batches: measured.batches,
            rows: measured.rows_count,
            carried: measured.carried,
            left_out: measured.left_out,
            files,
        };
        // Strings and numbers, into a Vec.
        let bytes = serde_json::to_vec_pretty(&manifest).expect("a manifest always encodes");
        let signature = signer.seal(&bytes).to_bytes();
        Ok(wire::BackupHead { manifest: bytes.into(), signature: signature.into() })
    }

    fn measure(&self) -> Result<Measured, BackupError> {
        let mut hasher = Hasher::default();
        let (mut size_bytes, mut batches, mut blobs) = (0, 0, BTreeSet::new());
        let tally = each_line(&self.at.view, &self.tenant, |line, blob| {
            hasher.update(line);
            size_bytes += line.len() as u64;
            batches += 1;
            blobs.extend(blob);
            Ok(())
        })?;
        Ok(Measured {
            rows: FileEntry { name: ROWS.into(), size_bytes, blake3: hasher.hash() },
            batches,
            blobs,
            rows_count: tally.rows(),
            left_out: tally.left_out(),
            carried: tally.carried,
        })
    }

    /// Reads the files in the order of the manifest, a chunk at a time, for as long as `to` wants more.
    pub fn each_chunk(&self, head: &wire::BackupHead, to: ToChunk<'_>) -> Result<(), BackupError> {
        let (manifest, _) = Manifest::open(&head.manifest, &head.signature)?;
        let mut buffer = Vec::new();
        each_line(&self.at.view, &self.tenant, |line, _| {
            buffer.extend_from_slice(line);
            while buffer.len() >= CHUNK_BYTES {
                let rest = buffer.split_off(CHUNK_BYTES);
                to(wire::BackupChunk { file: ROWS.into(), data: std::mem::replace(&mut buffer, rest).into() })?;
            }
            Ok(())
        })?;
        if !buffer.is_empty() {
            to(wire::BackupChunk { file: ROWS.into(), data: buffer.into() })?;
        }
        for file in &manifest.files[1..] {
            let hash = hex::decode(&file.blake3).ok().and_then(|hash| hash.try_into().ok());
            let hash: [u8; 32] = hash.ok_or_else(|| damaged(&file.name, "has a name that is no hash"))?;
            let mut offset = 0;
            while offset < file.size_bytes {
                let data = self.raft.blobs().read(&hash, offset, CHUNK_BYTES).map_err(BackupError::Storage)?;
                if data.is_empty() {
                    return Err(damaged(&file.name, "has become shorter"));
                }
                offset += data.len() as u64;
                to(wire::BackupChunk { file: file.name.clone(), data: data.into() })?;
            }
        }
        Ok(())
    }
}

/// Every line of a tenant's rows, and the blob that its last row names.
fn each_line(
    view: &impl Read,
    tenant: &str,
    mut to: impl FnMut(&[u8], Option<[u8; 32]>) -> Result<(), BackupError>,
) -> Result<quorate_domain::tenant::Tally, BackupError> {
    let mut rows = TenantRows::of(view, tenant);
    let (mut line, mut count) = (Vec::new(), 0);
    while let Some(page) = rows.page().map_err(BackupError::Storage)? {
        for row in page {
            let blob = row.blob(tenant);
            // Two bytes of hex for one: about as many as the batch has in the log, twice.
            let bytes = serde_json::to_vec(&row).map_err(|error| damaged(ROWS, error))?;
            let is_full = count >= IMPORT_ROWS_MAX || line.len() + bytes.len() > 2 * IMPORT_BATCH_BYTES;
            if count > 0 && is_full {
                end_line(&mut line, &mut count, None, &mut to)?;
            }
            line.push(if count == 0 { b'[' } else { b',' });
            line.extend_from_slice(&bytes);
            count += 1;
            if blob.is_some() {
                end_line(&mut line, &mut count, blob, &mut to)?;
            }
        }
    }
    if count > 0 {
        end_line(&mut line, &mut count, None, &mut to)?;
    }
    Ok(rows.tally())
}

fn end_line(
    line: &mut Vec<u8>,
    count: &mut usize,
    blob: Option<[u8; 32]>,
    to: &mut impl FnMut(&[u8], Option<[u8; 32]>) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    line.extend_from_slice(b"]\n");
    to(line, blob)?;
    line.clear();
    *count = 0;
    Ok(())
}

// ------------------------------------------------------------------ for whoever asked

/// An export that is being written. Dropped before [`Taking::finish`], it leaves nothing.
pub struct Taking(Filing);

impl Taking {
    pub fn begin(path: &Path, head: &wire::BackupHead) -> Result<Self, BackupError> {
        let (manifest, _) = Manifest::open(&head.manifest, &head.signature)?;
        Ok(Self(Filing::begin(path, head, manifest.taken_at_unix_ms, manifest.files)?))
    }

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

/// An export every byte of which was read.
#[derive(Debug)]
pub struct Checked {
    pub manifest: Manifest,
    pub seal: Seal,
    /// BLAKE3 of the manifest, in hex: which export it is.
    pub id: String,
}

impl Checked {
    pub fn origin(&self) -> Origin {
        let Manifest { cluster_id, lineage, tenant_revision, lease_now_ms, wall_unix_ms, feature_level, batches, .. } = &self.manifest;
        Origin {
            cluster_id: cluster_id.clone(),
            lineage: *lineage,
            revision: Revision(*tenant_revision),
            lease_now: LeaseTime(*lease_now_ms),
            exported_at: UnixMs(*wall_unix_ms),
            feature_level: *feature_level,
            batches: *batches,
            public_key: self.seal.public_key.clone(),
        }
    }
}

/// Reads all of an export and names the first file that is not what was written. With `public_key` (hex) only that key's signature
/// counts; without it the signature shows that nothing was changed, not who made it.
pub fn check(path: &Path, public_key: Option<&str>) -> Result<Checked, BackupError> {
    read(path, public_key, None)
}

/// The same, with rows and blobs unpacked into a folder that is there.
pub fn unpack(path: &Path, public_key: Option<&str>, into: &Path) -> Result<(Checked, Unpacked), BackupError> {
    Ok((read(path, public_key, Some(into))?, Unpacked(into.to_owned())))
}

fn read(path: &Path, public_key: Option<&str>, into: Option<&Path>) -> Result<Checked, BackupError> {
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
    for file in &manifest.files {
        let mut to: Box<dyn Write> = match into {
            // A name of the manifest is `rows.jsonl` or a hash.
            Some(dir) => Box::new(io::BufWriter::new(File::create(unpacked(dir, &file.name)).map_err(|error| damaged(&file.name, error))?)),
            None => Box::new(io::sink()),
        };
        let blake3 = archive.file(&file.name, file.size_bytes, &mut to)?;
        to.flush().map_err(|error| damaged(&file.name, error))?;
        if blake3 != file.blake3 {
            return Err(damaged(&file.name, "does not have the hash that the manifest names"));
        }
    }
    archive.end()?;
    Ok(Checked { manifest, seal, id: hash(&manifest_bytes) })
}

fn unpacked(dir: &Path, name: &str) -> PathBuf {
    dir.join(name.strip_prefix(BLOBS).unwrap_or(name))
}

/// Rows and blobs in a folder.
pub struct Unpacked(PathBuf);

impl Unpacked {
    /// Every batch, in order.
    pub fn batches(&self) -> Result<impl Iterator<Item = Result<Vec<TenantRow>, BackupError>> + use<>, BackupError> {
        let file = File::open(unpacked(&self.0, ROWS)).map_err(|error| damaged(ROWS, error))?;
        let batch = |line: io::Result<String>| {
            let line = line.map_err(|error| damaged(ROWS, error))?;
            serde_json::from_str(&line).map_err(|error| damaged(ROWS, error))
        };
        Ok(BufReader::new(file).lines().map(batch))
    }

    pub fn blob(&self, hash: &[u8; 32]) -> Result<Vec<u8>, BackupError> {
        let name = hex::encode(hash);
        std::fs::read(unpacked(&self.0, &name)).map_err(|error| damaged(&format!("{BLOBS}{name}"), error))
    }
}
