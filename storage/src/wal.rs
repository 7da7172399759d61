//! Finds a damaged write-ahead log before RocksDB opens it.
//!
//! RocksDB takes the first unreadable record of its newest WAL for the end of it: after a crash that is what a half-written
//! record looks like. A flipped bit in the middle looks the same, and every acknowledged entry and vote behind it would be
//! gone without a word; a vote lost like that can be cast twice. So this module walks the records itself, in the format of
//! `db/log_format.h`, and looks behind the first unreadable one.
//!
//! The log store syncs each record before it writes the next. So at most one record, the last, can be half-written, and the
//! start of another record behind an unreadable one proves damage. One case stays open: damage to the very last record is the
//! same bytes as a crash while writing it. Raft covers it as it covers a lost machine, by the other copies.

use std::path::Path;

use quorate_domain::StorageError;

use crate::durable::{self, at};
use crate::rocks;

const BLOCK_BYTES: usize = 32 * 1024;
/// Checksum (4 bytes), length (2), type (1), the low half of the file's number (4).
const HEADER_BYTES: usize = 11;

const WHAT_TO_DO: &str = "remove this node's data and let it rejoin as a new member";

/// Kinds of fragments in a WAL that may be recycled. A record is one `FULL`, or `FIRST`, any `MIDDLE`, `LAST`.
const FULL: u8 = 5;
const FIRST: u8 = 6;
const LAST: u8 = 8;

/// Refuses the WAL files in `dir` when records stand behind an unreadable one, or when there are none.
pub fn check(dir: &Path) -> Result<(), StorageError> {
    let mut files = 0;
    for name in durable::names(dir)? {
        let number = name.strip_suffix(".log").and_then(|number| number.parse::<u64>().ok());
        let Some(number) = number else { continue };
        files += 1;
        let path = dir.join(&name);
        let bytes = std::fs::read(&path).map_err(at("read", &path))?;
        // The header has room for the low half only.
        if let Some(damage) = damage(&bytes, number as u32) {
            return Err(StorageError::corrupt(format!(
                "the log file {} is damaged at byte {}: a record written later stands at byte {}; {WHAT_TO_DO}",
                path.display(),
                damage.unreadable_at,
                damage.record_at
            )));
        }
    }
    // RocksDB misses old files itself, but not the one it was writing to.
    if files == 0 && rocks::was_created(dir) {
        return Err(StorageError::corrupt(format!("the log files in {} are gone; {WHAT_TO_DO}", dir.display())));
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Damage {
    unreadable_at: usize,
    record_at: usize,
}

fn damage(bytes: &[u8], number: u32) -> Option<Damage> {
    let unreadable_at = readable_end(bytes, number);
    // Bytes of the file's earlier life carry another number and don't count.
    let record_at =
        (unreadable_at + 1..bytes.len()).find(|&at| matches!(fragment(bytes, at, number), Some(Fragment { kind: FULL | FIRST, .. })))?;
    Some(Damage { unreadable_at, record_at })
}

/// Where the first fragment that can't be read would begin.
fn readable_end(bytes: &[u8], number: u32) -> usize {
    let mut at = 0;
    loop {
        let left_in_block = BLOCK_BYTES - at % BLOCK_BYTES;
        if left_in_block < HEADER_BYTES {
            at += left_in_block;
        }
        match fragment(bytes, at, number) {
            Some(fragment) => at += HEADER_BYTES + fragment.bytes,
            None => return at,
        }
    }
}

struct Fragment {
    kind: u8,
    bytes: usize,
}

/// The fragment that begins at `at`, if its checksum says that one does.
fn fragment(bytes: &[u8], at: usize, number: u32) -> Option<Fragment> {
    let header = bytes.get(at..at + HEADER_BYTES)?;
    let kind = header[6];
    if !(FULL..=LAST).contains(&kind) || header[7..11] != number.to_le_bytes() {
        return None;
    }
    let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
    let body = bytes.get(at + HEADER_BYTES..at + HEADER_BYTES + length)?;
    let within_block = at % BLOCK_BYTES + HEADER_BYTES + length <= BLOCK_BYTES;
    let checksum = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&[kind]), &header[7..11]), body);
    (within_block && header[..4] == masked(checksum).to_le_bytes()).then_some(Fragment { kind, bytes: length })
}

/// RocksDB stores checksums so, because a checksum over bytes that hold checksums is weak.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u32 = 9;

    fn record(kind: u8, number: u32, body: &[u8]) -> Vec<u8> {
        let checksum = crc32c::crc32c(&[&[kind][..], &number.to_le_bytes(), body].concat());
        let length = u16::try_from(body.len()).unwrap();
        [&masked(checksum).to_le_bytes()[..], &length.to_le_bytes(), &[kind], &number.to_le_bytes(), body].concat()
    }

    fn three_records() -> Vec<u8> {
        [record(FULL, NUMBER, b"one"), record(FULL, NUMBER, b"two"), record(FULL, NUMBER, b"three")].concat()
    }

    #[test]
    fn a_log_that_ends_anywhere_in_its_last_record_is_whole() {
        let bytes = three_records();
        let last_at = bytes.len() - HEADER_BYTES - 5;
        for end in last_at..=bytes.len() {
            assert_eq!(damage(&bytes[..end], NUMBER), None, "cut at {end}");
        }
    }

    #[test]
    fn any_flipped_bit_before_the_last_record_is_damage() {
        let bytes = three_records();
        let last_at = bytes.len() - HEADER_BYTES - 5;
        for bit in 0..last_at * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(damage(&flipped, NUMBER).map(|damage| damage.record_at > damage.unreadable_at), Some(true), "bit {bit}");
        }
    }

    #[test]
    fn records_of_the_files_earlier_life_are_not_damage() {
        let bytes = [three_records(), vec![0xAB; 7], record(FULL, NUMBER - 1, b"old"), record(FULL, NUMBER - 1, b"older")].concat();
        assert_eq!(damage(&bytes, NUMBER), None);
    }

    #[test]
    fn the_later_fragments_of_a_half_written_record_are_not_damage() {
        let bytes = [record(FULL, NUMBER, b"one"), vec![0; 30], record(7, NUMBER, b"middle"), record(LAST, NUMBER, b"last")].concat();
        assert_eq!(damage(&bytes, NUMBER), None);
    }
}
