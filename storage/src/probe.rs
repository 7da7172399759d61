//! How long this disk takes to make a write durable.
//!
//! Every acknowledged write waits for it, and an election timeout below ten of them elects leaders for no reason; so the node
//! measures before it starts.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use quorate_domain::StorageError;

use crate::durable::at;

/// What one synced write takes, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsyncProbe {
    pub p50_us: u64,
    pub p99_us: u64,
}

/// About one small group of entries.
const WRITE_BYTES: usize = 4096;

/// Writes and syncs `rounds` times into a file in `dir`, which is removed afterwards. Takes `rounds` times the result.
pub fn probe_fsync(dir: &Path, rounds: usize) -> Result<FsyncProbe, StorageError> {
    let path = dir.join("fsync-probe.tmp");
    let latencies_us = measure(&path, rounds.max(1));
    // The probe is only in the way from here on, also when it failed.
    let removed = fs::remove_file(&path).map_err(at("remove", &path));
    let mut latencies_us = latencies_us?;
    removed?;
    latencies_us.sort_unstable();
    Ok(FsyncProbe { p50_us: percentile(&latencies_us, 50), p99_us: percentile(&latencies_us, 99) })
}

fn measure(path: &Path, rounds: usize) -> Result<Vec<u64>, StorageError> {
    let mut file = File::create(path).map_err(at("create", path))?;
    // Written out beforehand, like the recycled files of the log: a sync of a file that grows has to write its size too.
    file.write_all(&vec![0; WRITE_BYTES * rounds]).and_then(|()| file.sync_all()).map_err(at("write", path))?;
    file.seek(SeekFrom::Start(0)).map_err(at("rewind", path))?;
    let mut latencies_us = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        file.write_all(&[1; WRITE_BYTES]).and_then(|()| file.sync_data()).map_err(at("sync", path))?;
        latencies_us.push(start.elapsed().as_micros() as u64);
    }
    Ok(latencies_us)
}

/// The value below which `percent` of a sorted list lie; 0 for an empty one.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_answers_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let probe = probe_fsync(dir.path(), 5).unwrap();
        assert!(probe.p50_us <= probe.p99_us);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!((percentile(&sorted, 50), percentile(&sorted, 99)), (50, 99));
        assert_eq!((percentile(&[7], 50), percentile(&[7], 99)), (7, 7));
        assert_eq!(percentile(&[], 99), 0);
    }
}
