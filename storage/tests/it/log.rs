use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use proptest::prelude::*;
use quorate_storage::log::Done;
use quorate_storage::{LogOptions, LogStore, StorageError};

use crate::{copy_dir, files_with, kill_when, victims_dir};

fn open(dir: &Path) -> Arc<LogStore> {
    LogStore::open(dir, LogOptions::default()).unwrap()
}

/// So little memory that reads go to the disk.
fn open_without_cache(dir: &Path) -> Arc<LogStore> {
    LogStore::open(dir, LogOptions { cache_bytes_max: 0, ..LogOptions::default() }).unwrap()
}

fn entry(index: u64) -> (u64, Bytes) {
    (index, Bytes::from(format!("entry {index}")))
}

fn entries(indexes: std::ops::RangeInclusive<u64>) -> Vec<(u64, Bytes)> {
    indexes.map(entry).collect()
}

/// A callback, and what it was called with.
fn outcome() -> (Done, mpsc::Receiver<Result<(), StorageError>>) {
    let (sender, receiver) = mpsc::channel();
    (Box::new(move |result| drop(sender.send(result))), receiver)
}

fn durably(call: impl FnOnce(Done)) {
    let (done, outcome) = outcome();
    call(done);
    outcome.recv().unwrap().unwrap();
}

fn read_all(log: &LogStore) -> Vec<(u64, Bytes)> {
    log.read(0..u64::MAX, usize::MAX).unwrap()
}

fn indexes(entries: &[(u64, Bytes)]) -> Vec<u64> {
    entries.iter().map(|&(index, _)| index).collect()
}

fn refused(call: impl FnOnce(Done)) -> String {
    let (done, outcome) = outcome();
    call(done);
    outcome.recv().unwrap().unwrap_err().to_string()
}

#[test]
fn an_entry_is_readable_when_append_returns_and_durable_when_it_calls_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let (done, outcome) = outcome();
    log.append(entries(1..=3), done);
    assert_eq!(read_all(&log), entries(1..=3));
    outcome.recv().unwrap().unwrap();
    let crashed = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), crashed.path());
    assert_eq!(read_all(&open(crashed.path())), entries(1..=3));
}

#[test]
fn calls_are_answered_in_their_order_and_share_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let (sender, receiver) = mpsc::channel();
    for index in 1..=500 {
        let sender = sender.clone();
        log.append(vec![entry(index)], Box::new(move |result| sender.send((index, result.is_ok())).unwrap()));
    }
    log.flush().unwrap();
    let answers: Vec<_> = receiver.try_iter().collect();
    assert_eq!(answers, (1..=500).map(|index| (index, true)).collect::<Vec<_>>());
    let stats = log.stats();
    assert_eq!(stats.entries, 500);
    assert!(stats.syncs < 500 && stats.calls_per_sync_mean > 1.0, "{stats:?}");
    assert!(stats.sync_p50_us <= stats.sync_p99_us);
    assert_eq!(stats.queued_bytes, 0);
}

#[test]
fn a_queue_that_is_full_makes_callers_wait_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = LogStore::open(dir.path(), LogOptions { queue_bytes_max: 10, cache_bytes_max: 0 }).unwrap();
    for index in 1..=50 {
        log.append(vec![entry(index)], Box::new(|result| result.unwrap()));
    }
    log.flush().unwrap();
    assert_eq!(read_all(&log), entries(1..=50));
}

#[test]
fn vote_committed_and_purged_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    assert_eq!((log.read_vote().unwrap(), log.read_committed().unwrap(), log.read_purged().unwrap()), (None, None, None));
    log.save_committed(Bytes::from("committed 2")).unwrap();
    durably(|done| log.append(entries(1..=3), done));
    durably(|done| log.save_vote(Bytes::from("term 7"), done));
    durably(|done| log.purge_through(2, Bytes::from("purged 2"), done));
    drop(log);
    let log = open(dir.path());
    assert_eq!(log.read_vote().unwrap(), Some(Bytes::from("term 7")));
    assert_eq!(log.read_committed().unwrap(), Some(Bytes::from("committed 2")));
    assert_eq!(log.read_purged().unwrap(), Some(Bytes::from("purged 2")));
    assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (Some(3), Some(3)));
}

#[test]
fn committed_alone_causes_no_sync_and_is_written_on_close() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    log.save_committed(Bytes::from("committed 9")).unwrap();
    assert_eq!(log.stats().syncs, 0);
    drop(log);
    assert_eq!(open(dir.path()).read_committed().unwrap(), Some(Bytes::from("committed 9")));
}

#[test]
fn entries_appended_after_a_truncation_are_the_ones_that_stay() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_without_cache(dir.path());
    durably(|done| log.append(entries(1..=5), done));
    let newer = vec![(3, Bytes::from("newer 3"))];
    log.truncate_after(Some(2), Box::new(|result| result.unwrap()));
    durably(|done| log.append(newer.clone(), done));
    let expected = [entries(1..=2), newer].concat();
    assert_eq!(read_all(&log), expected);
    drop(log);
    assert_eq!(read_all(&open(dir.path())), expected);
}

#[test]
fn a_truncation_of_all_leaves_an_empty_log_that_goes_on_after_the_purged_entry() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    durably(|done| log.append(entries(1..=5), done));
    durably(|done| log.purge_through(2, Bytes::from("purged 2"), done));
    durably(|done| log.truncate_after(None, done));
    assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (None, None));
    assert_eq!(refused(|done| log.append(vec![entry(4)], done)), "log entry 4 was appended where 3 belongs");
    durably(|done| log.append(vec![entry(3)], done));
    drop(log);
    assert_eq!(read_all(&open(dir.path())), entries(3..=3));
}

#[test]
fn a_purge_past_the_end_as_after_a_snapshot_leaves_an_empty_log_that_goes_on_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    durably(|done| log.append(entries(1..=5), done));
    durably(|done| log.purge_through(100, Bytes::from("purged 100"), done));
    assert_eq!(log.last_index().unwrap(), None);
    durably(|done| log.append(entries(101..=102), done));
    drop(log);
    let log = open(dir.path());
    assert_eq!(read_all(&log), entries(101..=102));
    // A purge that is late finds its work done.
    durably(|done| log.purge_through(50, Bytes::from("purged 50"), done));
    assert_eq!(log.read_purged().unwrap(), Some(Bytes::from("purged 100")));
}

#[test]
fn an_append_that_would_leave_a_hole_or_overwrite_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    durably(|done| log.append(entries(1..=3), done));
    assert_eq!(refused(|done| log.append(vec![entry(5)], done)), "log entry 5 was appended where 4 belongs");
    assert_eq!(refused(|done| log.append(vec![entry(3)], done)), "log entry 3 was appended where 4 belongs");
    assert_eq!(refused(|done| log.append(vec![entry(4), entry(6)], done)), "log entry 6 was appended where 5 belongs");
    assert_eq!(read_all(&log), entries(1..=3));
}

#[test]
fn a_read_stops_at_its_bytes_but_gives_at_least_one_entry() {
    let dir = tempfile::tempdir().unwrap();
    for log in [open(&dir.path().join("cached")), open_without_cache(&dir.path().join("stored"))] {
        durably(|done| log.append(entries(1..=9), done));
        let size = entry(1).1.len();
        assert_eq!(indexes(&log.read(2..8, 1).unwrap()), [2]);
        assert_eq!(indexes(&log.read(2..8, 3 * size).unwrap()), [2, 3, 4]);
        assert_eq!(indexes(&log.read(2..8, 3 * size - 1).unwrap()), [2, 3]);
        assert_eq!(indexes(&log.read(7..100, usize::MAX).unwrap()), [7, 8, 9]);
        assert!(log.read(10..100, usize::MAX).unwrap().is_empty());
        assert!(log.read(5..5, usize::MAX).unwrap().is_empty());
    }
}

#[test]
fn a_read_may_begin_on_disk_and_end_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let size = entry(1).1.len();
    let log = LogStore::open(dir.path(), LogOptions { cache_bytes_max: 4 * size, ..LogOptions::default() }).unwrap();
    durably(|done| log.append(entries(1..=9), done));
    assert_eq!(log.read(1..10, usize::MAX).unwrap(), entries(1..=9));
    for count in 1..=9 {
        assert_eq!(log.read(1..10, count * size).unwrap(), entries(1..=count as u64));
    }
}

#[test]
fn a_read_among_purges_and_truncations_sees_the_log_before_or_after_and_never_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_without_cache(dir.path());
    durably(|done| log.append(entries(1..=20), done));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                let read = read_all(&log);
                let generations: Vec<_> = read.iter().map(|(_, entry)| entry.len()).collect();
                assert!(read.len() >= 10, "{read:?}");
                assert!(read.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "{read:?}");
                assert!(generations.is_sorted(), "an old entry behind a newer one: {read:?}");
            }
        });
        for round in 1..=100u64 {
            let last = 20 + (round - 1) * 5;
            // Longer from round to round, so that a mixture shows.
            let newer = |range: std::ops::RangeInclusive<u64>| {
                range.map(|index| (index, Bytes::from(vec![7; 100 + round as usize]))).collect::<Vec<_>>()
            };
            log.truncate_after(Some(last - 5), Box::new(|result| result.unwrap()));
            log.append(newer(last - 4..=last + 5), Box::new(|result| result.unwrap()));
            durably(|done| log.purge_through(last - 15, Bytes::from("purged"), done));
        }
        ended.store(true, Ordering::Release);
    });
}

#[test]
fn a_closed_log_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    durably(|done| log.append(entries(1..=3), done));
    log.close();
    assert_eq!(refused(|done| log.append(vec![entry(4)], done)), "the log is closed");
    assert!(log.flush().is_err());
}

/// Changes what the database holds behind the back of the log.
fn tamper(dir: &Path, tamper: impl FnOnce(&rocksdb::DB, &rocksdb::ColumnFamily)) {
    let db = rocksdb::DB::open_cf(&rocksdb::Options::default(), dir, ["entries", "meta"]).unwrap();
    tamper(&db, db.cf_handle("entries").unwrap());
}

#[test]
fn a_damaged_or_misplaced_entry_is_found_and_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    durably(|done| log.append(entries(1..=3), done));
    drop(log);
    tamper(dir.path(), |db, entries| {
        let third = db.get_cf(entries, 3u64.to_be_bytes()).unwrap().unwrap();
        db.put_cf(entries, 2u64.to_be_bytes(), third).unwrap();
    });
    let log = open(dir.path());
    assert_eq!(log.read(1..2, usize::MAX).unwrap(), entries(1..=1));
    assert_eq!(
        log.read(1..4, usize::MAX).unwrap_err().to_string(),
        "the value of key 0000000000000002 in the log does not have its checksum"
    );
}

#[test]
fn a_hole_in_the_log_is_found_and_never_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    durably(|done| log.append(entries(1..=5), done));
    durably(|done| log.purge_through(1, Bytes::from("purged 1"), done));
    drop(log);
    tamper(dir.path(), |db, entries| db.delete_cf(entries, 4u64.to_be_bytes()).unwrap());
    let log = open(dir.path());
    assert_eq!(log.read(1..9, usize::MAX).unwrap_err().to_string(), "log entry 4 is missing: the next one stored is 5");
    assert_eq!(log.read(4..5, usize::MAX).unwrap_err().to_string(), "log entries 4 to 4 are missing");
    drop(log);
    tamper(dir.path(), |db, entries| db.delete_cf(entries, 2u64.to_be_bytes()).unwrap());
    assert_eq!(
        LogStore::open(dir.path(), LogOptions::default()).err().unwrap().to_string(),
        "log entries 2 to 2 are missing: the last purged one is 1"
    );
}

/// The write-ahead log as a crash leaves it, with one record for each of the entries 1 to 5.
fn crashed_log() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for index in 1..=5 {
        durably(|done| log.append(vec![entry(index)], done));
    }
    let crashed = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), crashed.path());
    let wals = fs::read_dir(crashed.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let wal = wals.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    (crashed, wal)
}

#[test]
fn a_half_written_last_record_is_the_trace_of_a_crash_and_costs_only_itself() {
    let (dir, wal) = crashed_log();
    let bytes = fs::read(&wal).unwrap();
    fs::write(&wal, &bytes[..bytes.len() - 3]).unwrap();
    assert_eq!(read_all(&open(dir.path())), entries(1..=4));
}

#[test]
fn a_flipped_bit_in_the_write_ahead_log_is_refused_instead_of_losing_what_follows() {
    let (dir, wal) = crashed_log();
    let mut bytes = fs::read(&wal).unwrap();
    let third = bytes.windows(7).position(|window| window == b"entry 3").unwrap();
    bytes[third] ^= 1;
    fs::write(&wal, &bytes).unwrap();
    let error = LogStore::open(dir.path(), LogOptions::default()).err().unwrap().to_string();
    assert!(error.contains("is damaged at byte"), "{error}");
}

#[test]
fn a_write_ahead_log_that_is_gone_is_missed() {
    let (dir, wal) = crashed_log();
    fs::remove_file(wal).unwrap();
    let error = LogStore::open(dir.path(), LogOptions::default()).err().unwrap().to_string();
    assert!(error.contains("are gone"), "{error}");
}

#[test]
fn a_database_that_lost_its_head_is_not_taken_for_a_new_one() {
    let (dir, _) = crashed_log();
    fs::remove_file(dir.path().join("CURRENT")).unwrap();
    assert!(LogStore::open(dir.path(), LogOptions::default()).is_err());
}

#[test]
fn a_write_ahead_log_that_was_recycled_is_still_read_to_its_end() {
    let body = Bytes::from(vec![7; 1 << 20]);
    if let Some(dir) = victims_dir() {
        let log = LogStore::open(&dir, LogOptions { cache_bytes_max: 0, queue_bytes_max: 4 << 20 }).unwrap();
        for index in 1.. {
            let report = move |result: Result<(), StorageError>| {
                result.unwrap();
                println!("done {index}");
            };
            log.append(vec![(index, body.clone())], Box::new(report));
            if index % 40 == 0 {
                log.purge_through(index - 10, Bytes::from("purged"), Box::new(|result| result.unwrap()));
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    // Past several write buffers of 32 MiB, so that files have had an earlier life.
    let acknowledged = kill_when("log::a_write_ahead_log_that_was_recycled_is_still_read_to_its_end", dir.path(), |index| index >= 150);
    let log = open(dir.path());
    let (first, last) = (log.first_index().unwrap().unwrap(), log.last_index().unwrap().unwrap());
    assert!(last >= acknowledged && last - first >= 9, "{acknowledged} were acknowledged, {first} to {last} are there");
    assert_eq!(read_all(&log), (first..=last).map(|index| (index, body.clone())).collect::<Vec<_>>());
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there_after_it() {
    if let Some(dir) = victims_dir() {
        let log = open(&dir);
        for index in 1.. {
            log.append(
                vec![entry(index)],
                Box::new(move |result| {
                    result.unwrap();
                    println!("done {index}");
                }),
            );
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let acknowledged = kill_when("log::what_was_acknowledged_before_a_kill_is_there_after_it", dir.path(), |index| index > 2000);
    let log = open(dir.path());
    let there = read_all(&log);
    assert!(there.len() as u64 >= acknowledged, "{acknowledged} were acknowledged, {} are there", there.len());
    assert_eq!(there, entries(1..=there.len() as u64));
}

#[derive(Clone, Debug)]
enum Step {
    Append(u64),
    TruncateAfter(u64),
    PurgeThrough(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..6u64).prop_map(Step::Append),
        2 => (0..25u64).prop_map(Step::TruncateAfter),
        2 => (0..25u64).prop_map(Step::PurgeThrough),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Appends, truncations, purges and restarts in any order leave what a plain map would hold.
    #[test]
    fn the_log_is_a_map_without_holes(steps in prop::collection::vec(step(), 1..25), cache_bytes_max in prop_oneof![Just(0usize), Just(40), Just(1000)]) {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions { cache_bytes_max, ..LogOptions::default() };
        let mut log = LogStore::open(dir.path(), options).unwrap();
        let mut model = BTreeMap::new();
        let mut purged = 0;
        for (generation, step) in steps.into_iter().enumerate() {
            let next = model.last_key_value().map_or(purged, |(&last, _)| last) + 1;
            match step {
                Step::Append(count) => {
                    let new: Vec<_> = (next..next + count).map(|index| (index, Bytes::from(format!("{index} of {generation}")))).collect();
                    model.extend(new.iter().cloned());
                    log.append(new, Box::new(|result| result.unwrap()));
                }
                Step::TruncateAfter(index) => {
                    model.split_off(&(index + 1));
                    log.truncate_after(Some(index), Box::new(|result| result.unwrap()));
                }
                Step::PurgeThrough(index) => {
                    model = model.split_off(&(index + 1));
                    purged = purged.max(index);
                    log.purge_through(index, Bytes::from("purged"), Box::new(|result| result.unwrap()));
                }
                Step::Restart => {
                    drop(log);
                    log = LogStore::open(dir.path(), options).unwrap();
                }
            }
            prop_assert_eq!(read_all(&log), model.clone().into_iter().collect::<Vec<_>>());
        }
        log.flush().unwrap();
        prop_assert_eq!(read_all(&log), model.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn an_erasure_leaves_no_byte_of_a_purged_or_truncated_entry_in_any_file_and_the_log_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = open_without_cache(dir.path());
    let secret = |index: u64| (index, Bytes::from(format!("Xsecret {index} {}", "x".repeat(1_000))));
    durably(|done| log.append((1..=200).map(secret).collect(), done));
    durably(|done| log.truncate_after(Some(150), done));
    durably(|done| log.append(entries(151..=160), done));
    durably(|done| log.save_vote(Bytes::from("vote"), done));
    assert!(!files_with(dir.path(), "Xsecret").is_empty());
    durably(|done| log.purge_through(150, Bytes::from("purged 150"), done));
    log.erase_purged().unwrap();
    assert_eq!(files_with(dir.path(), "Xsecret"), Vec::<String>::new());
    // Twice does no harm.
    log.erase_purged().unwrap();
    durably(|done| log.append(entries(161..=162), done));
    assert_eq!(read_all(&log), entries(151..=162));
    drop(log);
    let log = open(dir.path());
    assert_eq!((read_all(&log), log.read_vote().unwrap()), (entries(151..=162), Some(Bytes::from("vote"))));
    assert_eq!(log.read_purged().unwrap(), Some(Bytes::from("purged 150")));
    assert_eq!(files_with(dir.path(), "Xsecret"), Vec::<String>::new());
}
