//! Blobs: bytes that are named by their BLAKE3 hash, beside the log and not in it.
//!
//! One file a blob, under its hash in hex, in one of 256 folders by its first two digits. Who may read it, and how long it stays, is
//! decided elsewhere; here it is bytes. Invariants:
//! * A file has its final name only after it is on disk and has been found to have that hash.
//! * Nothing changes in it afterwards. What is damaged is put aside, never served.

use std::fs::{self, File};
use std::io::{Read as _, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use quorate_domain::StorageError;
use uuid::Uuid;

use crate::durable::{self, at};
use crate::snapshot::Snapshot;

/// What names a blob.
pub type BlobHash = [u8; 32];

/// What stands before a blob's hash among the files of a snapshot that carries blobs.
pub const IN_SNAPSHOT: &str = "blob-";

const PART: &str = "part-";
const DAMAGED: &str = "damaged-";
const BUFFER_BYTES: usize = 256 << 10;

/// The blobs of one node. Clones share them.
#[derive(Clone, Debug)]
pub struct Blobs {
    root: PathBuf,
}

/// A blob as it lies here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub hash: BlobHash,
    pub size_bytes: u64,
    /// Since it was put here, or last asked to be held.
    pub idle: Duration,
}

impl Blobs {
    /// Opens the folder, or creates it, and removes what was half received.
    pub fn open(root: &Path) -> Result<Self, StorageError> {
        durable::create_dir(root)?;
        for name in durable::names(root)?.iter().filter(|name| name.starts_with(PART)) {
            let path = root.join(name);
            fs::remove_file(&path).map_err(at("remove", &path))?;
        }
        Ok(Self { root: root.to_owned() })
    }

    fn path(&self, hash: &BlobHash) -> PathBuf {
        let name = hex::encode(hash);
        self.root.join(&name[..2]).join(name)
    }

    /// Its size, if it is here.
    pub fn size(&self, hash: &BlobHash) -> Result<Option<u64>, StorageError> {
        let path = self.path(hash);
        match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at("look at", &path)(error)),
        }
    }

    /// Begins to take a blob in.
    pub fn begin(&self) -> Result<Incoming, StorageError> {
        let path = self.root.join(format!("{PART}{}", Uuid::new_v4()));
        let file = File::create(&path).map_err(at("create", &path))?;
        Ok(Incoming { blobs: self.clone(), path, file: Some(file), hasher: blake3::Hasher::new(), size_bytes: 0 })
    }

    /// Sets anew from when it counts as idle; whether it is here.
    pub fn touch(&self, hash: &BlobHash) -> Result<bool, StorageError> {
        let path = self.path(hash);
        match File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now())) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(at("touch", &path)(error)),
        }
    }

    /// At most `bytes_max` bytes from `offset` on; none at the end. [`Blobs::check`] goes first.
    pub fn read(&self, hash: &BlobHash, offset: u64, bytes_max: usize) -> Result<Vec<u8>, StorageError> {
        let path = self.path(hash);
        let mut file = File::open(&path).map_err(at("open", &path))?;
        file.seek(SeekFrom::Start(offset)).map_err(at("read", &path))?;
        let mut chunk = Vec::new();
        file.take(bytes_max as u64).read_to_end(&mut chunk).map_err(at("read", &path))?;
        Ok(chunk)
    }

    /// Reads the whole blob; whether it is here and has its hash. One that has not is put aside.
    pub fn check(&self, hash: &BlobHash) -> Result<bool, StorageError> {
        let path = self.path(hash);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(at("open", &path)(error)),
        };
        let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; BUFFER_BYTES]);
        loop {
            match file.read(&mut buffer).map_err(at("read", &path))? {
                0 => break,
                read => hasher.update(&buffer[..read]),
            };
        }
        if hasher.finalize().as_bytes() == hash {
            return Ok(true);
        }
        let aside = self.root.join(format!("{DAMAGED}{}", hex::encode(hash)));
        tracing::error!(path = %path.display(), aside = %aside.display(), "a blob does not have its hash");
        fs::rename(&path, &aside).map_err(at("put aside", &path))?;
        Ok(false)
    }

    /// Removes it, if it is here.
    pub fn remove(&self, hash: &BlobHash) -> Result<(), StorageError> {
        let path = self.path(hash);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// What lies in one of the 256 folders.
    pub fn shard(&self, shard: u8) -> Result<Vec<Held>, StorageError> {
        let dir = self.root.join(hex::encode([shard]));
        if !dir.is_dir() {
            return Ok(Vec::new());
        }
        let mut held = Vec::new();
        for name in durable::names(&dir)? {
            let Some(hash) = hex::decode(&name).ok().and_then(|bytes| bytes.try_into().ok()) else { continue };
            let path = dir.join(&name);
            let found = fs::metadata(&path).map_err(at("look at", &path))?;
            let modified = found.modified().map_err(at("look at", &path))?;
            let idle = SystemTime::now().duration_since(modified).unwrap_or_default();
            held.push(Held { hash, size_bytes: found.len(), idle });
        }
        Ok(held)
    }

    /// Takes in the blobs that a snapshot carries, each as a copy of its own.
    pub fn import(&self, snapshot: &Snapshot) -> Result<(), StorageError> {
        for file in &snapshot.manifest().files {
            let Some(digits) = file.name.strip_prefix(IN_SNAPSHOT) else { continue };
            let path = snapshot.dir().join(&file.name);
            let hash: Option<BlobHash> = hex::decode(digits).ok().and_then(|bytes| bytes.try_into().ok());
            let mut from = File::open(&path).map_err(at("open", &path))?;
            let (mut incoming, mut buffer) = (self.begin()?, vec![0; BUFFER_BYTES]);
            loop {
                match from.read(&mut buffer).map_err(at("read", &path))? {
                    0 => break,
                    read => incoming.write(&buffer[..read])?,
                }
            }
            if hash.is_none() || incoming.finish(hash.as_ref())?.is_none() {
                return Err(StorageError::corrupt(format!("{} is not the blob that it is named after", path.display())));
            }
        }
        Ok(())
    }

    /// Puts a blob among the files of a snapshot, by a link where the file system has them.
    pub fn carry(&self, hash: &BlobHash, into: &Path) -> Result<(), StorageError> {
        let (path, to) = (self.path(hash), into.join(format!("{IN_SNAPSHOT}{}", hex::encode(hash))));
        let to = to.as_path();
        // Nothing ever changes in a blob's file, so two names do no harm; linking fails across file systems.
        if fs::hard_link(&path, to).is_ok() {
            return Ok(());
        }
        fs::copy(&path, to).map_err(at("copy", &path))?;
        File::open(to).and_then(|file| file.sync_all()).map_err(at("sync", to))
    }

    /// Files of damaged blobs that were put aside.
    pub fn damaged(&self) -> Result<usize, StorageError> {
        Ok(durable::names(&self.root)?.iter().filter(|name| name.starts_with(DAMAGED)).count())
    }
}

/// A blob on its way in. Dropped before [`Incoming::finish`], it leaves nothing.
pub struct Incoming {
    blobs: Blobs,
    path: PathBuf,
    file: Option<File>,
    hasher: blake3::Hasher,
    size_bytes: u64,
}

impl Incoming {
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        let Some(file) = &mut self.file else { return Err(StorageError::corrupt("a blob was finished before")) };
        file.write_all(bytes).map_err(at("write", &self.path))?;
        self.hasher.update(bytes);
        self.size_bytes += bytes.len() as u64;
        Ok(())
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Makes it durable under its name, which has to be `expected` if one is; `None` when it is another.
    pub fn finish(mut self, expected: Option<&BlobHash>) -> Result<Option<BlobHash>, StorageError> {
        let hash = *self.hasher.finalize().as_bytes();
        if expected.is_some_and(|expected| *expected != hash) {
            return Ok(None);
        }
        let Some(file) = self.file.take() else { return Err(StorageError::corrupt("a blob was finished before")) };
        if self.blobs.touch(&hash)? && self.blobs.check(&hash)? {
            // It is here already; this copy goes.
            drop(file);
            fs::remove_file(&self.path).map_err(at("remove", &self.path))?;
            return Ok(Some(hash));
        }
        file.sync_all().map_err(at("sync", &self.path))?;
        let path = self.blobs.path(&hash);
        let dir = path.parent().ok_or_else(|| StorageError::corrupt("a blob's path has no folder"))?;
        durable::create_dir(dir)?;
        fs::rename(&self.path, &path).map_err(at("rename", &self.path))?;
        durable::sync_dir(dir)?;
        Ok(Some(hash))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.file.is_some() {
            // What is left is removed at the next opening.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(blobs: &Blobs, bytes: &[u8]) -> BlobHash {
        let mut incoming = blobs.begin().unwrap();
        incoming.write(bytes).unwrap();
        incoming.finish(None).unwrap().unwrap()
    }

    fn open(dir: &tempfile::TempDir) -> Blobs {
        Blobs::open(&dir.path().join("blobs")).unwrap()
    }

    #[test]
    fn what_was_put_is_read_back_in_parts_and_is_there_once() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(&dir);
        let hash = put(&blobs, b"hello world");
        assert_eq!(put(&blobs, b"hello world"), hash);
        assert_eq!(hash, *blake3::hash(b"hello world").as_bytes());
        assert_eq!(blobs.size(&hash).unwrap(), Some(11));
        assert!(blobs.check(&hash).unwrap());
        assert_eq!(blobs.read(&hash, 6, 3).unwrap(), b"wor");
        assert!(blobs.read(&hash, 11, 3).unwrap().is_empty());
        assert_eq!(blobs.shard(hash[0]).unwrap().len(), 1);
        assert_eq!(blobs.size(&[0; 32]).unwrap(), None);
    }

    #[test]
    fn a_blob_of_another_hash_than_was_asked_for_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(&dir);
        let mut incoming = blobs.begin().unwrap();
        incoming.write(b"other").unwrap();
        assert_eq!(incoming.finish(Some(&[7; 32])).unwrap(), None);
        assert_eq!(durable::names(&dir.path().join("blobs")).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_crash_while_a_blob_comes_in_leaves_no_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(&dir);
        let mut incoming = blobs.begin().unwrap();
        incoming.write(b"half of ").unwrap();
        std::mem::forget(incoming);
        let whole = put(&blobs, b"whole");
        let again = open(&dir);
        assert_eq!(durable::names(&dir.path().join("blobs")).unwrap(), [hex::encode(&whole[..1])]);
        assert!(again.check(&whole).unwrap());
    }

    #[test]
    fn a_damaged_blob_is_put_aside_and_can_be_put_again() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(&dir);
        let hash = put(&blobs, b"hello world");
        fs::write(blobs.path(&hash), b"hello worle").unwrap();
        assert!(!blobs.check(&hash).unwrap());
        assert_eq!((blobs.size(&hash).unwrap(), blobs.damaged().unwrap()), (None, 1));
        assert_eq!(put(&blobs, b"hello world"), hash);
        assert!(blobs.check(&hash).unwrap());
        // Damage that nobody has looked at yet is found when the same comes in again.
        fs::write(blobs.path(&hash), b"bad").unwrap();
        put(&blobs, b"hello world");
        assert!(blobs.check(&hash).unwrap());
    }
}
