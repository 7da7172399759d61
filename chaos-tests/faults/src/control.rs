//! The page that both sides share: switches, which the outside sets, and counters of what they did.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::CONTROL_FILE;

pub const PAGE_BYTES: usize = 4_096;
const WORD_BYTES: u64 = 8;

/// What goes wrong. The number is the place of its word in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Switch {
    /// Each sync takes so many microseconds longer.
    SyncDelayUs = 0,
    /// 1: a sync does not come back until this is 0 again.
    SyncHangs = 1,
    /// Each sync fails with this error number, and nobody knows what is on the disk. 0: none does.
    SyncFailsWith = 2,
    /// 1: there is no space for anything new.
    NoSpace = 3,
    /// The wall clock is ahead by so many milliseconds; two's complement.
    WallAheadMs = 4,
}

/// What that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    SyncsDelayed = 16,
    SyncsHung = 17,
    SyncsFailed = 18,
    WritesRefused = 19,
    WallReadsShifted = 20,
}

/// The page, from outside.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// Opens the page in a folder, or makes it, with nothing wrong.
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(CONTROL_FILE))?;
        file.set_len(PAGE_BYTES as u64)?;
        Ok(Self(file))
    }

    pub fn set(&self, switch: Switch, value: i64) -> io::Result<()> {
        self.0.write_all_at(&value.to_ne_bytes(), switch as u64 * WORD_BYTES)
    }

    pub fn count(&self, counter: Counter) -> io::Result<u64> {
        let mut word = [0; WORD_BYTES as usize];
        self.0.read_exact_at(&mut word, counter as u64 * WORD_BYTES)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) -> io::Result<()> {
        use Switch::*;
        [SyncDelayUs, SyncHangs, SyncFailsWith, NoSpace, WallAheadMs].into_iter().try_for_each(|switch| self.set(switch, 0))
    }
}
