//! The state as a directory of files: built, sent in chunks, received, checked, installed.
//!
//! A snapshot is a RocksDB checkpoint (hard links, so it costs little until the state moves on) and a manifest with size and
//! hash of each file. All snapshots of a node lie in one directory:
//! * `<ordinal>-<id>/`: complete. The ordinal counts up on this node, so the newest is the last by name.
//! * `incoming-<id>/`: being received; kept over a crash, so that the transfer goes on where it was.
//! * `building-<id>/`: being built; removed at the next opening.
//!
//! Invariants:
//! * A directory gets its final name after every file in it and its manifest are on disk; until then it is no snapshot.
//! * Nothing changes in it afterwards: installing links or copies.
//! * A received snapshot is complete only when each file has the size and hash of the manifest.
//! * Names and sizes in a manifest from a peer are checked before anything is written under them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use quorate_domain::StorageError;
use serde::{Deserialize, Serialize};

use crate::durable::{self, at};
use crate::state::StateStore;

const MANIFEST: &str = "quorate-manifest.json";
const INCOMING: &str = "incoming-";
const BUILDING: &str = "building-";
const HASH_BUFFER_BYTES: usize = 1 << 20;

/// What a snapshot consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub id: String,
    /// Whatever the builder wants the installer to know.
    #[serde(with = "as_hex")]
    pub meta: Bytes,
    /// The applied marker in the files themselves: it says which commit this is the state after, and the builder need not stop
    /// commits to know.
    #[serde(with = "as_hex")]
    pub applied: Bytes,
    pub files: Vec<FileEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub name: String,
    pub size_bytes: u64,
    /// Hex.
    pub blake3: String,
}

/// A manifest as it is stored and sent: with its own hash, since nothing else covers `meta` and `applied`.
#[derive(Serialize, Deserialize)]
struct Sealed {
    manifest: Manifest,
    blake3: String,
}

impl Manifest {
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    /// The form that is stored and sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let sealed = Sealed { manifest: self.clone(), blake3: self.hash() };
        // Strings and numbers, into a Vec.
        serde_json::to_vec_pretty(&sealed).expect("a manifest always encodes")
    }

    /// Refuses what is damaged, and names that could reach outside the snapshot's directory.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TransferError> {
        let Sealed { manifest, blake3 } = serde_json::from_slice(bytes).map_err(|error| TransferError::Manifest(error.to_string()))?;
        if manifest.hash() != blake3 {
            return Err(TransferError::Manifest("it does not have its hash".into()));
        }
        check_name(&manifest.id)?;
        let mut names = BTreeSet::new();
        for file in &manifest.files {
            check_name(&file.name)?;
            if !names.insert(&file.name) || file.name == MANIFEST {
                return Err(TransferError::UnsafeName(file.name.clone()));
            }
        }
        Ok(manifest)
    }

    fn hash(&self) -> String {
        // As in `to_bytes`.
        let bytes = serde_json::to_vec(self).expect("a manifest always encodes");
        blake3::hash(&bytes).to_string()
    }

    fn file(&self, name: &str) -> Result<&FileEntry, TransferError> {
        self.files.iter().find(|file| file.name == name).ok_or_else(|| TransferError::UnknownFile(name.into()))
    }
}

/// A plain file name: nothing in it can name another directory.
fn check_name(name: &str) -> Result<(), TransferError> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if (1..=128).contains(&name.len()) && is_plain && !name.starts_with('.') { Ok(()) } else { Err(TransferError::UnsafeName(name.into())) }
}

/// Why a transfer goes wrong. Only `Storage` is this node's own fault; after the others it goes on.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("the snapshot's manifest can't be used: {0}")]
    Manifest(String),
    #[error("`{0}` is not a name a snapshot may use")]
    UnsafeName(String),
    #[error("the snapshot has no file `{0}`")]
    UnknownFile(String),
    #[error("a chunk of `{file}` begins at byte {offset}, but only {present} are here")]
    Gap { file: String, offset: u64, present: u64 },
    #[error("a chunk of `{file}` ends at byte {end}, but the file has only {size_bytes}")]
    TooLong { file: String, end: u64, size_bytes: u64 },
    #[error("`{file}` is incomplete: {present} of {size_bytes} bytes are here")]
    Incomplete { file: String, present: u64, size_bytes: u64 },
    #[error("`{file}` does not have its hash; what was here of it is thrown away, send it again")]
    Mismatch { file: String },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The snapshots of one node.
#[derive(Clone)]
pub struct Snapshots {
    root: PathBuf,
    /// Held also while a complete snapshot gets its ordinal.
    in_use: Arc<Mutex<InUse>>,
}

impl Snapshots {
    /// Opens the directory of snapshots, or creates it, and removes what was half built.
    pub fn open(root: &Path) -> Result<Self, StorageError> {
        durable::create_dir(root)?;
        for name in durable::names(root)?.iter().filter(|name| name.starts_with(BUILDING)) {
            remove(&root.join(name))?;
        }
        Ok(Self { root: root.to_owned(), in_use: Arc::default() })
    }

    /// Builds a snapshot of the state as it is now. Commits go on meanwhile: which of them are in it says
    /// `manifest().applied`. Reads every file once, for its hash: for a blocking thread.
    pub fn build(&self, state: &StateStore, id: &str, meta: Bytes) -> Result<Snapshot, StorageError> {
        check_name(id).map_err(|error| StorageError::new("cannot build a snapshot", error))?;
        let dir = self.root.join(format!("{BUILDING}{id}"));
        remove_if_there(&dir)?;
        let applied = state.checkpoint(&dir)?;
        let mut files = Vec::new();
        for name in durable::names(&dir)? {
            let path = dir.join(&name);
            let (size_bytes, blake3) = hash(&path)?;
            sync_file(&path)?;
            files.push(FileEntry { name, size_bytes, blake3 });
        }
        let manifest = Manifest { id: id.into(), meta, applied, files };
        durable::replace_file(&dir.join(MANIFEST), &manifest.to_bytes())?;
        self.finish(&dir, manifest)
    }

    /// Begins to receive a snapshot, or goes on with it. At most one is being received: what was there of others is removed.
    pub fn start_or_resume(&self, manifest: Manifest) -> Result<Receiver, TransferError> {
        let bytes = manifest.to_bytes();
        // A manifest made by hand has not been through this.
        Manifest::from_bytes(&bytes)?;
        let dir = self.root.join(format!("{INCOMING}{}", manifest.id));
        let is_same = durable::read_if_there(&dir.join(MANIFEST))?.is_some_and(|awaited| awaited == bytes);
        for name in durable::names(&self.root)?.iter().filter(|name| name.starts_with(INCOMING)) {
            let other = self.root.join(name);
            if other != dir || !is_same {
                remove(&other)?;
            }
        }
        if !is_same {
            durable::create_dir(&dir)?;
            durable::replace_file(&dir.join(MANIFEST), &bytes)?;
        }
        Ok(Receiver { snapshots: self.clone(), dir, manifest })
    }

    /// The complete snapshots, oldest first.
    pub fn list(&self) -> Result<Vec<Snapshot>, StorageError> {
        let mut in_use = self.in_use();
        complete(&self.root)?.iter().map(|(_, name)| self.open_complete(name, &mut in_use)).collect()
    }

    pub fn newest(&self) -> Result<Option<Snapshot>, StorageError> {
        let mut in_use = self.in_use();
        complete(&self.root)?.last().map(|(_, name)| self.open_complete(name, &mut in_use)).transpose()
    }

    /// Removes all but the newest `keep`, except those that somebody still holds: they go with a later call.
    pub fn prune(&self, keep: usize) -> Result<(), StorageError> {
        let mut in_use = self.in_use();
        let complete = complete(&self.root)?;
        for (_, name) in &complete[..complete.len().saturating_sub(keep)] {
            let dir = self.root.join(name);
            if in_use.get(&dir).is_some_and(|holders| holders.strong_count() > 0) {
                continue;
            }
            in_use.remove(&dir);
            // Renamed first: half removed, it must not pass for complete.
            let doomed = self.root.join(format!("{BUILDING}{name}"));
            fs::rename(&dir, &doomed).map_err(at("rename", &doomed))?;
            durable::sync_dir(&self.root)?;
            remove(&doomed)?;
        }
        Ok(())
    }

    /// Removes what was received of snapshots that are not complete.
    pub fn remove_incoming(&self) -> Result<(), StorageError> {
        let names = durable::names(&self.root)?;
        names.iter().filter(|name| name.starts_with(INCOMING)).try_for_each(|name| remove(&self.root.join(name)))
    }

    /// Gives a directory whose content is on disk its final name.
    fn finish(&self, dir: &Path, manifest: Manifest) -> Result<Snapshot, StorageError> {
        durable::sync_dir(dir)?;
        let mut in_use = self.in_use();
        let ordinal = complete(&self.root)?.last().map_or(1, |(newest, _)| newest + 1);
        let complete = self.root.join(format!("{ordinal:012}-{}", manifest.id));
        fs::rename(dir, &complete).map_err(at("rename", &complete))?;
        durable::sync_dir(&self.root)?;
        let holders = Arc::default();
        in_use.insert(complete.clone(), Arc::downgrade(&holders));
        Ok(Snapshot { dir: complete, manifest, verified: true.into(), holders })
    }

    fn open_complete(&self, name: &str, in_use: &mut InUse) -> Result<Snapshot, StorageError> {
        let mut snapshot = Snapshot::open(&self.root.join(name))?;
        match in_use.get(&snapshot.dir).and_then(Weak::upgrade) {
            Some(holders) => snapshot.holders = holders,
            None => drop(in_use.insert(snapshot.dir.clone(), Arc::downgrade(&snapshot.holders))),
        }
        Ok(snapshot)
    }

    fn in_use(&self) -> MutexGuard<'_, InUse> {
        // Entries are inserted and removed whole.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who holds which complete snapshot.
type InUse = BTreeMap<PathBuf, Weak<()>>;

/// Names of complete snapshots with their ordinals, oldest first.
fn complete(root: &Path) -> Result<Vec<(u64, String)>, StorageError> {
    let with_ordinal = |name: String| Some((name.split_once('-')?.0.parse().ok()?, name));
    let mut complete: Vec<_> = durable::names(root)?.into_iter().filter_map(with_ordinal).collect();
    complete.sort();
    Ok(complete)
}

/// A complete snapshot.
#[derive(Debug)]
pub struct Snapshot {
    dir: PathBuf,
    manifest: Manifest,
    /// The hashes were checked, or made, by this process.
    verified: AtomicBool,
    /// Keeps `Snapshots::prune` away.
    holders: Arc<()>,
}

impl Snapshot {
    /// Opens the snapshot in `dir`, also outside of any [`Snapshots`]. Checks the manifest, not yet the files.
    pub fn open(dir: &Path) -> Result<Self, StorageError> {
        let is_incomplete = |name: &str| name.starts_with(INCOMING) || name.starts_with(BUILDING);
        if dir.file_name().and_then(OsStr::to_str).is_some_and(is_incomplete) {
            return Err(StorageError::corrupt(format!("{} is not a complete snapshot", dir.display())));
        }
        let bytes = durable::read_if_there(&dir.join(MANIFEST))?
            .ok_or_else(|| StorageError::corrupt(format!("{} is not a snapshot: it has no `{MANIFEST}`", dir.display())))?;
        let manifest = Manifest::from_bytes(&bytes)
            .map_err(|error| StorageError::new(format!("cannot open the snapshot in {}", dir.display()), error))?;
        Ok(Self { dir: dir.to_owned(), manifest, verified: false.into(), holders: Arc::default() })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// At most `bytes_max` bytes of a file from `offset` on; none at its end.
    pub fn read_chunk(&self, file: &str, offset: u64, bytes_max: usize) -> Result<Bytes, TransferError> {
        // Only names of the manifest reach the file system.
        let path = self.dir.join(&self.manifest.file(file)?.name);
        let mut open = File::open(&path).map_err(at("open", &path))?;
        open.seek(SeekFrom::Start(offset)).map_err(at("read", &path))?;
        let mut chunk = Vec::new();
        open.take(bytes_max as u64).read_to_end(&mut chunk).map_err(at("read", &path))?;
        Ok(chunk.into())
    }

    /// Reads every file and compares its size and hash with the manifest.
    pub fn verify(&self) -> Result<(), StorageError> {
        for file in &self.manifest.files {
            let (size_bytes, blake3) = hash(&self.dir.join(&file.name))?;
            if size_bytes != file.size_bytes || blake3 != file.blake3 {
                return Err(StorageError::corrupt(format!(
                    "`{}` of the snapshot in {} is not what was built: it is damaged",
                    file.name,
                    self.dir.display()
                )));
            }
        }
        self.verified.store(true, Ordering::Release);
        Ok(())
    }

    /// `verify`, unless this process has read the whole snapshot before.
    pub(crate) fn verify_once(&self) -> Result<(), StorageError> {
        if self.verified.load(Ordering::Acquire) { Ok(()) } else { self.verify() }
    }
}

/// A snapshot that is being received.
pub struct Receiver {
    snapshots: Snapshots,
    dir: PathBuf,
    manifest: Manifest,
}

impl Receiver {
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How many bytes of each file are here, in the order of the manifest.
    pub fn have(&self) -> Result<Vec<(String, u64)>, StorageError> {
        self.manifest.files.iter().map(|file| Ok((file.name.clone(), self.present(file)?))).collect()
    }

    /// Takes the next bytes of a file. What is here already is skipped, so a chunk may come twice.
    pub fn write_chunk(&self, file: &str, offset: u64, data: &[u8]) -> Result<(), TransferError> {
        let entry = self.manifest.file(file)?;
        let end = offset.saturating_add(data.len() as u64);
        if end > entry.size_bytes {
            return Err(TransferError::TooLong { file: file.into(), end, size_bytes: entry.size_bytes });
        }
        let present = self.present(entry)?;
        if offset > present {
            return Err(TransferError::Gap { file: file.into(), offset, present });
        }
        // Less than `data.len()` or past its end, so it fits.
        let new = data.get((present - offset) as usize..).unwrap_or_default();
        let path = self.dir.join(&entry.name);
        let mut open = File::options().create(true).append(true).open(&path).map_err(at("open", &path))?;
        open.write_all(new).map_err(at("write", &path))?;
        Ok(())
    }

    /// Checks every file and makes the snapshot complete. A file that is not what was sent is thrown away: after a loss of
    /// power that can be a file this node took to be here.
    pub fn finish(&self) -> Result<Snapshot, TransferError> {
        for file in &self.manifest.files {
            let path = self.dir.join(&file.name);
            let present = self.present(file)?;
            if present == 0 && file.size_bytes == 0 {
                File::create(&path).map_err(at("create", &path))?;
            }
            if present < file.size_bytes {
                return Err(TransferError::Incomplete { file: file.name.clone(), present, size_bytes: file.size_bytes });
            }
            let (size_bytes, blake3) = hash(&path)?;
            if size_bytes != file.size_bytes || blake3 != file.blake3 {
                fs::remove_file(&path).map_err(at("remove", &path))?;
                return Err(TransferError::Mismatch { file: file.name.clone() });
            }
            sync_file(&path)?;
        }
        Ok(self.snapshots.finish(&self.dir, self.manifest.clone())?)
    }

    fn present(&self, file: &FileEntry) -> Result<u64, StorageError> {
        let path = self.dir.join(&file.name);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(at("look at", &path)(error)),
        }
    }
}

fn hash(path: &Path) -> Result<(u64, String), StorageError> {
    let mut file = File::open(path).map_err(at("open", path))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; HASH_BUFFER_BYTES];
    loop {
        match file.read(&mut buffer).map_err(at("read", path))? {
            0 => return Ok((hasher.count(), hasher.finalize().to_string())),
            read => hasher.update(&buffer[..read]),
        };
    }
}

fn sync_file(path: &Path) -> Result<(), StorageError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(at("sync", path))
}

fn remove_if_there(dir: &Path) -> Result<(), StorageError> {
    if dir.exists() { remove(dir) } else { Ok(()) }
}

fn remove(dir: &Path) -> Result<(), StorageError> {
    fs::remove_dir_all(dir).map_err(at("remove", dir))
}

/// Opaque bytes in JSON.
mod as_hex {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        hex::decode(text).map(Bytes::from).map_err(D::Error::custom)
    }
}
