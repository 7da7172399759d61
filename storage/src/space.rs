//! How much a node may still write.
//!
//! Two things bound it: what the file system has left, and the quota that an operator has set for the node's folder.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use quorate_domain::StorageError;

use crate::durable::at;

/// What is left for a node's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What the file system has left for this process.
    pub disk_bytes: u64,
    /// What the quota leaves; `None` without one.
    pub quota_bytes: Option<u64>,
}

impl Room {
    /// Measures the folder. With a quota it looks at every file, a few hundred at the most: for a blocking thread.
    pub fn measure(dir: &Path, quota_bytes: Option<u64>) -> Result<Self, StorageError> {
        let disk = rustix::fs::statvfs(dir).map_err(|error| at("ask for the space of", dir)(error.into()))?;
        let quota_bytes = match quota_bytes {
            Some(quota) => Some(quota.saturating_sub(used(dir, &mut HashSet::new())?)),
            None => None,
        };
        Ok(Self { disk_bytes: disk.f_bavail.saturating_mul(disk.f_frsize), quota_bytes })
    }

    /// What may still be written, by either bound.
    pub fn left_bytes(&self) -> u64 {
        self.disk_bytes.min(self.quota_bytes.unwrap_or(u64::MAX))
    }
}

/// What the files take on the disk, each counted once however many names it has.
fn used(dir: &Path, seen: &mut HashSet<u64>) -> Result<u64, StorageError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // The database removes files and folders all the time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(at("list", dir)(error)),
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry.map_err(at("list", dir))?;
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(at("look at", &entry.path())(error)),
        };
        if metadata.is_dir() {
            bytes += used(&entry.path(), seen)?;
        } else if metadata.nlink() == 1 || seen.insert(metadata.ino()) {
            // Blocks of 512 bytes, whatever the file system's own are: space that is set aside counts.
            bytes += metadata.blocks() * 512;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_counts_what_is_on_the_disk_and_each_file_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        let file = dir.path().join("below/file");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        fs::hard_link(&file, dir.path().join("again")).unwrap();
        // So that the blocks are given out.
        fs::File::open(&file).unwrap().sync_all().unwrap();
        let room = Room::measure(dir.path(), Some(3 << 20)).unwrap();
        let left = room.quota_bytes.unwrap();
        assert!(((2 << 20) - 65_536..=2 << 20).contains(&left), "{left}");
        assert_eq!(room.left_bytes(), left.min(room.disk_bytes));
        assert_eq!(Room::measure(dir.path(), Some(1)).unwrap().left_bytes(), 0);
        assert_eq!(Room::measure(dir.path(), None).unwrap().quota_bytes, None);
    }
}
