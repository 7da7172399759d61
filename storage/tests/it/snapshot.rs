use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::Bytes;
use quorate_domain::overlay::Writes;
use quorate_domain::tx::Direction;
use quorate_domain::{Read, Table};
use quorate_storage::{Manifest, Receiver, Snapshot, Snapshots, StateOptions, StateStore, TransferError};

const CHUNK_BYTES: usize = 1000;

fn open(dir: &Path) -> StateStore {
    StateStore::open(dir, StateOptions::default()).unwrap()
}

fn commit(state: &StateStore, number: u64) {
    let writes = Writes::from([((Table::Records, number.to_be_bytes().to_vec()), Some(vec![7; 50]))]);
    state.commit(writes, Bytes::copy_from_slice(&number.to_be_bytes())).unwrap();
}

/// A node with a snapshot to send, and one to receive it.
fn sender_and_receiver(dir: &Path) -> (Snapshot, Snapshots) {
    let state = open(&dir.join("sender/state"));
    for number in 1..=200 {
        commit(&state, number);
    }
    let snapshots = Snapshots::open(&dir.join("sender/snapshots")).unwrap();
    let snapshot = snapshots.build(&state, "s1", Bytes::from("meta of s1")).unwrap();
    (snapshot, Snapshots::open(&dir.join("receiver/snapshots")).unwrap())
}

/// Sends what the receiver does not have, at most `chunks_max` chunks.
fn send(snapshot: &Snapshot, receiver: &Receiver, chunks_max: usize) {
    let mut chunks = 0;
    for (file, mut offset) in receiver.have().unwrap() {
        loop {
            let chunk = snapshot.read_chunk(&file, offset, CHUNK_BYTES).unwrap();
            if chunk.is_empty() || chunks == chunks_max {
                break;
            }
            receiver.write_chunk(&file, offset, &chunk).unwrap();
            offset += chunk.len() as u64;
            chunks += 1;
        }
    }
}

#[test]
fn a_snapshot_that_was_sent_installs_as_the_state_it_was_built_from() {
    let dir = tempfile::tempdir().unwrap();
    let (snapshot, snapshots) = sender_and_receiver(dir.path());
    let manifest = Manifest::from_bytes(&snapshot.manifest().to_bytes()).unwrap();
    assert_eq!(&manifest, snapshot.manifest());
    let receiver = snapshots.start_or_resume(manifest).unwrap();
    send(&snapshot, &receiver, usize::MAX);
    let received = receiver.finish().unwrap();
    received.verify().unwrap();
    assert_eq!(received.manifest().meta, Bytes::from("meta of s1"));
    assert_eq!(received.manifest().applied, Bytes::copy_from_slice(&200u64.to_be_bytes()));

    let state = open(&dir.path().join("receiver/state"));
    state.install(&received).unwrap();
    assert_eq!(state.scan_bytes(Table::Records, &[], &[0xFF; 9], Direction::Ascending, 999).unwrap().len(), 200);
    assert_eq!(state.applied().unwrap(), Some(received.manifest().applied.clone()));
}

#[test]
fn a_transfer_goes_on_after_a_crash_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (snapshot, snapshots) = sender_and_receiver(dir.path());
    let receiver = snapshots.start_or_resume(snapshot.manifest().clone()).unwrap();
    send(&snapshot, &receiver, 3);
    let before = receiver.have().unwrap();
    assert!(before.iter().map(|(_, present)| present).sum::<u64>() > 0);
    assert!(matches!(receiver.finish(), Err(TransferError::Incomplete { .. })));
    assert!(snapshots.newest().unwrap().is_none());
    drop((receiver, snapshots));

    let snapshots = Snapshots::open(&dir.path().join("receiver/snapshots")).unwrap();
    let receiver = snapshots.start_or_resume(snapshot.manifest().clone()).unwrap();
    assert_eq!(receiver.have().unwrap(), before);
    send(&snapshot, &receiver, usize::MAX);
    receiver.finish().unwrap();
    assert_eq!(snapshots.newest().unwrap().unwrap().manifest(), snapshot.manifest());
}

#[test]
fn another_snapshot_under_the_same_id_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (snapshot, snapshots) = sender_and_receiver(dir.path());
    send(&snapshot, &snapshots.start_or_resume(snapshot.manifest().clone()).unwrap(), 3);
    let other = Manifest { meta: Bytes::from("other"), ..snapshot.manifest().clone() };
    let receiver = snapshots.start_or_resume(other).unwrap();
    assert!(receiver.have().unwrap().iter().all(|&(_, present)| present == 0));
}

#[test]
fn a_file_that_arrived_damaged_is_thrown_away_and_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let (snapshot, snapshots) = sender_and_receiver(dir.path());
    let receiver = snapshots.start_or_resume(snapshot.manifest().clone()).unwrap();
    let damaged = snapshot.manifest().files.iter().max_by_key(|file| file.size_bytes).unwrap();
    let mut bytes = snapshot.read_chunk(&damaged.name, 0, usize::MAX).unwrap().to_vec();
    bytes[0] ^= 1;
    receiver.write_chunk(&damaged.name, 0, &bytes).unwrap();
    send(&snapshot, &receiver, usize::MAX);
    assert!(matches!(receiver.finish(), Err(TransferError::Mismatch { file }) if file == damaged.name));
    assert!(receiver.have().unwrap().contains(&(damaged.name.clone(), 0)));
    send(&snapshot, &receiver, usize::MAX);
    receiver.finish().unwrap();
}

#[test]
fn a_chunk_may_come_twice_but_not_early_and_not_beyond_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (snapshot, snapshots) = sender_and_receiver(dir.path());
    let receiver = snapshots.start_or_resume(snapshot.manifest().clone()).unwrap();
    let file = snapshot.manifest().files.iter().max_by_key(|file| file.size_bytes).unwrap();
    let whole = snapshot.read_chunk(&file.name, 0, usize::MAX).unwrap();
    receiver.write_chunk(&file.name, 0, &whole[..100]).unwrap();
    receiver.write_chunk(&file.name, 0, &whole[..100]).unwrap();
    receiver.write_chunk(&file.name, 50, &whole[50..150]).unwrap();
    assert!(matches!(receiver.write_chunk(&file.name, 151, &whole[151..152]), Err(TransferError::Gap { present: 150, .. })));
    assert!(matches!(receiver.write_chunk(&file.name, file.size_bytes, b"x"), Err(TransferError::TooLong { .. })));
    assert!(matches!(receiver.write_chunk(&file.name, u64::MAX, b"x"), Err(TransferError::TooLong { .. })));
    assert!(matches!(receiver.write_chunk("000999.sst", 0, b"x"), Err(TransferError::UnknownFile(_))));
    send(&snapshot, &receiver, usize::MAX);
    receiver.finish().unwrap();
}

#[test]
fn names_that_reach_outside_the_snapshot_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (snapshot, snapshots) = sender_and_receiver(dir.path());
    let names = ["../state/CURRENT", "/etc/passwd", "..", ".", "", "a/b", "a\\b", ".hidden", "a\0b", "quorate-manifest.json"];
    for name in names {
        let mut manifest = snapshot.manifest().clone();
        manifest.files[0].name = name.into();
        assert!(matches!(snapshots.start_or_resume(manifest), Err(TransferError::UnsafeName(_))), "{name}");
    }
    let ids = ["../x", "", "a/b", "."];
    for id in ids {
        let manifest = Manifest { id: id.into(), ..snapshot.manifest().clone() };
        assert!(matches!(snapshots.start_or_resume(manifest), Err(TransferError::UnsafeName(_))), "{id}");
    }
    let mut twice = snapshot.manifest().clone();
    twice.files.push(twice.files[0].clone());
    assert!(matches!(snapshots.start_or_resume(twice), Err(TransferError::UnsafeName(_))));
    assert!(matches!(snapshot.read_chunk("../../state/CURRENT", 0, 9), Err(TransferError::UnknownFile(_))));
}

#[test]
fn a_manifest_that_was_changed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (snapshot, _) = sender_and_receiver(dir.path());
    let text = String::from_utf8(snapshot.manifest().to_bytes()).unwrap();
    let changed = text.replace(&hex::encode("meta of s1"), &hex::encode("meta of s2"));
    assert_ne!(text, changed);
    assert!(matches!(Manifest::from_bytes(changed.as_bytes()), Err(TransferError::Manifest(_))));
    fs::write(snapshot.dir().join("quorate-manifest.json"), changed).unwrap();
    assert!(Snapshot::open(snapshot.dir()).is_err());
    fs::remove_file(snapshot.dir().join("quorate-manifest.json")).unwrap();
    assert!(Snapshot::open(snapshot.dir()).unwrap_err().to_string().contains("it has no `quorate-manifest.json`"));
}

#[test]
fn a_snapshot_built_under_commits_ends_with_the_commit_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir.path().join("state"));
    let snapshots = Snapshots::open(&dir.path().join("snapshots")).unwrap();
    let built = AtomicBool::new(false);
    let snapshot = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                commit(&state, number);
                if built.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        let snapshots: Vec<_> = (0..3).map(|round| snapshots.build(&state, &format!("s{round}"), Bytes::new()).unwrap()).collect();
        built.store(true, Ordering::Release);
        snapshots
    });
    for snapshot in snapshot {
        let copy = open(&dir.path().join(format!("state of {}", snapshot.manifest().id)));
        copy.install(&snapshot).unwrap();
        let applied = copy.applied().unwrap().unwrap_or_default();
        assert_eq!(applied, snapshot.manifest().applied);
        let last =
            copy.scan_bytes(Table::Records, &[], &[0xFF; 9], Direction::Descending, 1).unwrap().pop().map_or(Vec::new(), |(key, _)| key);
        assert_eq!(applied, last);
    }
}

#[test]
fn pruning_keeps_the_newest_and_those_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir.path().join("state"));
    let snapshots = Snapshots::open(&dir.path().join("snapshots")).unwrap();
    let ids =
        |snapshots: &Snapshots| -> Vec<_> { snapshots.list().unwrap().iter().map(|snapshot| snapshot.manifest().id.clone()).collect() };
    let sent = snapshots.build(&state, "s0", Bytes::new()).unwrap();
    for id in ["s9", "s1", "s5"] {
        drop(snapshots.build(&state, id, Bytes::new()).unwrap());
    }
    snapshots.prune(2).unwrap();
    assert_eq!(ids(&snapshots), ["s0", "s1", "s5"]);
    sent.read_chunk(&sent.manifest().files[0].name, 0, 1).unwrap();
    drop(sent);
    snapshots.prune(2).unwrap();
    assert_eq!(ids(&snapshots), ["s1", "s5"]);
    assert_eq!(snapshots.newest().unwrap().unwrap().manifest().id, "s5");
}

#[test]
fn what_a_crash_left_half_built_is_removed_and_is_no_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let half = dir.path().join("building-s1");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("000004.sst"), b"half").unwrap();
    let snapshots = Snapshots::open(dir.path()).unwrap();
    assert!(!half.exists());
    assert!(snapshots.newest().unwrap().is_none());
}
