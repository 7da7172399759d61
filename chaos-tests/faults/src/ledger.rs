//! The ledger: how long each file was when its bytes were last synced, and the power failure that is made of it.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::LEDGER_FILE;

/// Device, inode and synced length, each a word.
pub const RECORD_BYTES: usize = 24;

pub fn record(device: u64, inode: u64, length: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    for (place, word) in [device, inode, length].into_iter().enumerate() {
        bytes[place * 8..][..8].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// What a power failure took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub files: u64,
    pub bytes: u64,
}

/// Cuts every file below `data` back to what was synced, or to some length between that and what was written: `keeps` is asked how
/// much of so many unsynced bytes of a file the disk kept. The process has to be dead.
pub fn power_loss(faults: &Path, data: &Path, keeps: &mut dyn FnMut(&Path, u64) -> u64) -> io::Result<Lost> {
    let mut synced = HashMap::new();
    let ledger = fs::read(faults.join(LEDGER_FILE))?;
    // A record that the kill tore is no record.
    for record in ledger.chunks_exact(RECORD_BYTES) {
        let word = |place: usize| u64::from_ne_bytes(record[place * 8..][..8].try_into().unwrap_or_default());
        synced.insert((word(0), word(1)), word(2));
    }
    let mut lost = Lost::default();
    cut(data, &synced, keeps, &mut lost)?;
    Ok(lost)
}

fn cut(folder: &Path, synced: &HashMap<(u64, u64), u64>, keeps: &mut dyn FnMut(&Path, u64) -> u64, lost: &mut Lost) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_dir() {
            cut(&entry.path(), synced, keeps, lost)?;
        } else if about.is_file() {
            let safe = synced.get(&(about.dev(), about.ino())).copied().unwrap_or(0);
            let unsynced = about.len().saturating_sub(safe);
            let gone = unsynced - keeps(&entry.path(), unsynced).min(unsynced);
            if gone > 0 {
                OpenOptions::new().write(true).open(entry.path())?.set_len(about.len() - gone)?;
                lost.files += 1;
                lost.bytes += gone;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(path: &Path) -> u64 {
        fs::metadata(path).unwrap().len()
    }

    #[test]
    fn a_power_failure_leaves_what_was_synced_and_some_of_what_came_after_it() {
        let (faults, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [synced, grown, never] = ["synced", "grown", "never"].map(|name| data.path().join("deep").join(name));
        fs::create_dir(data.path().join("deep")).unwrap();
        [&synced, &grown, &never].into_iter().for_each(|path| fs::write(path, [7; 100]).unwrap());
        let mut ledger = Vec::new();
        for (path, length) in [(&synced, 40), (&synced, 100), (&grown, 60)] {
            let about = fs::metadata(path).unwrap();
            ledger.extend(record(about.dev(), about.ino(), length));
        }
        // The kill came in the middle of one.
        ledger.extend([9; 10]);
        fs::write(faults.path().join(LEDGER_FILE), ledger).unwrap();
        let lost = power_loss(faults.path(), data.path(), &mut |_, unsynced| unsynced / 4).unwrap();
        assert_eq!([&synced, &grown, &never].map(|path| length(path)), [100, 70, 25]);
        assert_eq!(lost, Lost { files: 2, bytes: 30 + 75 });
    }
}
