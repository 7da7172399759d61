use std::fs;
use std::path::Path;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_domain::overlay::{Nothing, Overlay, Writes};
use quorate_domain::tx::Direction;
use quorate_domain::{Read, Table};
use quorate_storage::{Snapshots, StateOptions, StateStore, StateView};

use crate::{copy_dir, files_with, kill_when, victims_dir};

fn open(dir: &Path) -> StateStore {
    StateStore::open(dir, StateOptions::default()).unwrap()
}

fn put(table: Table, key: &str, value: &str) -> Writes {
    Writes::from([((table, key.into()), Some(value.into()))])
}

/// Row `number` in every table, with `number` as the marker.
fn commit_everywhere(state: &StateStore, number: u64, body_bytes: usize) {
    let body = vec![number as u8; body_bytes];
    let writes = Table::ALL.map(|table| ((table, number.to_be_bytes().to_vec()), Some(body.clone())));
    state.commit(writes.into(), Bytes::copy_from_slice(&number.to_be_bytes())).unwrap();
}

fn number(applied: Option<Bytes>) -> u64 {
    applied.map_or(0, |applied| u64::from_be_bytes(applied[..].try_into().unwrap()))
}

/// The commit whose state this is; panics unless every table agrees with the marker.
fn boundary(state: &StateStore) -> u64 {
    let applied = number(state.applied().unwrap());
    for table in Table::ALL {
        let rows = state.scan_bytes(table, &[], &[0xFF; 9], Direction::Ascending, usize::MAX).unwrap();
        let keys: Vec<_> = rows.iter().map(|(key, _)| u64::from_be_bytes(key[..].try_into().unwrap())).collect();
        assert_eq!(keys, (1..=applied).collect::<Vec<_>>(), "{table:?}");
    }
    applied
}

#[test]
fn a_view_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<StateView>();
}

#[test]
fn a_view_stays_as_it_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    state.commit(put(Table::Records, "a", "1"), Bytes::from("one")).unwrap();
    let view = state.view();
    state.commit(put(Table::Records, "a", "2"), Bytes::from("two")).unwrap();
    assert_eq!(view.get_bytes(Table::Records, b"a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(view.scan_bytes(Table::Records, b"a", b"b", Direction::Ascending, 9).unwrap(), [(b"a".to_vec(), b"1".to_vec())]);
    assert_eq!(view.applied().unwrap(), Some(Bytes::from("one")));
    assert_eq!(state.get_bytes(Table::Records, b"a").unwrap(), Some(b"2".to_vec()));
    assert_eq!(state.applied().unwrap(), Some(Bytes::from("two")));
}

#[test]
fn a_crash_takes_the_state_back_to_the_last_flush_in_every_table() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    assert_eq!(state.flush().unwrap(), None);
    for commit in 1..=5 {
        commit_everywhere(&state, commit, 10);
    }
    assert_eq!(number(state.flush().unwrap()), 5);
    for commit in 6..=9 {
        commit_everywhere(&state, commit, 10);
    }
    assert_eq!(number(state.flushed_applied()), 5);
    let crashed = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), crashed.path());
    let reopened = open(crashed.path());
    assert_eq!(boundary(&reopened), 5);
    assert_eq!(number(reopened.flushed_applied()), 5);
}

#[test]
fn an_orderly_close_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    commit_everywhere(&state, 1, 10);
    drop(state);
    assert_eq!(boundary(&open(dir.path())), 1);
}

#[test]
fn a_kill_leaves_the_boundary_of_one_commit_not_before_the_last_flush() {
    const FLUSHED: u64 = 50;
    if let Some(dir) = victims_dir() {
        // So little memory that RocksDB flushes again and again on its own.
        let state = StateStore::open(&dir, StateOptions { write_buffer_bytes: 1 << 20, ..StateOptions::default() }).unwrap();
        for commit in 1.. {
            commit_everywhere(&state, commit, 2000);
            if commit == FLUSHED {
                assert_eq!(number(state.flush().unwrap()), FLUSHED);
            }
            println!("done {commit}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let name = "state::a_kill_leaves_the_boundary_of_one_commit_not_before_the_last_flush";
    let committed = kill_when(name, dir.path(), |commit| commit >= 1000);
    let found = boundary(&open(dir.path()));
    assert!(found >= FLUSHED, "flushed {FLUSHED}, found {found}");
    assert!(found <= committed + 1, "committed {committed}, found {found}");
}

#[test]
fn an_install_replaces_the_state_and_keeps_the_old_one_for_its_views() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&dir.path().join("source"));
    source.commit(put(Table::Meta, "a", "new"), Bytes::from("applied new")).unwrap();
    let snapshot = Snapshots::open(&dir.path().join("snapshots")).unwrap().build(&source, "s", Bytes::new()).unwrap();

    let state = open(&dir.path().join("state"));
    state.commit(put(Table::Meta, "a", "old"), Bytes::from("applied old")).unwrap();
    let view = state.view();
    state.install(&snapshot).unwrap();
    assert_eq!(state.get_bytes(Table::Meta, b"a").unwrap(), Some(b"new".to_vec()));
    assert_eq!(state.applied().unwrap(), Some(Bytes::from("applied new")));
    assert_eq!(state.flushed_applied(), Some(Bytes::from("applied new")));
    assert_eq!(view.get_bytes(Table::Meta, b"a").unwrap(), Some(b"old".to_vec()));

    let old = dir.path().join("state/gen-000001");
    assert!(old.exists());
    drop(view);
    assert!(!old.exists());

    // The snapshot is as it was, also after the state has gone on and been compacted.
    state.commit(put(Table::Meta, "a", "newer"), Bytes::from("applied newer")).unwrap();
    state.flush().unwrap();
    snapshot.verify().unwrap();
    drop(state);
    assert_eq!(open(&dir.path().join("state")).applied().unwrap(), Some(Bytes::from("applied newer")));
}

#[test]
fn a_damaged_snapshot_is_not_installed() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&dir.path().join("source"));
    commit_everywhere(&source, 1, 100);
    let snapshots = Snapshots::open(&dir.path().join("snapshots")).unwrap();
    drop(snapshots.build(&source, "s", Bytes::new()).unwrap());
    let snapshot = snapshots.newest().unwrap().unwrap();
    let table = snapshot.manifest().files.iter().find(|file| file.name.ends_with(".sst")).unwrap();
    let path = snapshot.dir().join(&table.name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    // Written anew: the file is shared with the source.
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();

    let state = open(&dir.path().join("state"));
    state.commit(put(Table::Meta, "a", "old"), Bytes::from("applied old")).unwrap();
    assert!(state.install(&snapshot).unwrap_err().to_string().contains("is not what was built"));
    assert_eq!(state.applied().unwrap(), Some(Bytes::from("applied old")));
}

#[test]
fn a_state_that_lost_its_marker_or_its_data_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    for dir in [&one, &two] {
        commit_everywhere(&open(dir), 1, 10);
    }
    fs::remove_file(one.join("CURRENT")).unwrap();
    assert!(StateStore::open(&one, StateOptions::default()).err().unwrap().to_string().contains("has data but no `CURRENT`"));
    fs::remove_dir_all(two.join("gen-000001")).unwrap();
    assert!(StateStore::open(&two, StateOptions::default()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Reads over RocksDB answer as reads over a map do.
    #[test]
    fn scans_and_gets_are_those_of_an_ordered_map(
        commits in prop::collection::vec(prop::collection::vec((0..3usize, key(), prop::option::of(0..9u8)), 0..12), 1..5),
        scans in prop::collection::vec((0..3usize, key(), key(), any::<bool>(), 0..6usize), 1..20),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path());
        let mut model = Overlay::new(&Nothing);
        for commit in commits {
            let writes: Writes = commit.into_iter().map(|(table, key, value)| ((Table::ALL[table], key), value.map(|value| vec![value]))).collect();
            model.absorb(writes.clone());
            state.commit(writes, Bytes::new()).unwrap();
        }
        let view = state.view();
        for (table, from, to, descending, limit) in scans {
            let table = Table::ALL[table];
            let direction = if descending { Direction::Descending } else { Direction::Ascending };
            let expected = model.scan_bytes(table, &from, &to, direction, limit).unwrap();
            prop_assert_eq!(&state.scan_bytes(table, &from, &to, direction, limit).unwrap(), &expected);
            prop_assert_eq!(&view.scan_bytes(table, &from, &to, direction, limit).unwrap(), &expected);
            prop_assert_eq!(view.get_bytes(table, &from).unwrap(), model.get_bytes(table, &from).unwrap());
        }
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..4)
}

#[test]
fn an_erasure_leaves_no_byte_of_a_row_that_was_deleted_or_written_over_in_any_file() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    let commit = |writes: Writes| state.commit(writes, Bytes::from("m")).unwrap();
    for key in ["a1", "a2", "b1"] {
        commit(put(Table::Records, key, &format!("Xsecret {key}")));
    }
    state.flush().unwrap();
    commit(put(Table::Records, "a1", "other"));
    commit(Writes::from([((Table::Records, b"a2".to_vec()), None)]));
    state.flush().unwrap();
    assert!(!files_with(dir.path(), "Xsecret a").is_empty());
    // Who reads meanwhile holds it up, and no longer than it reads.
    let view = state.view();
    let reader = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        view.get_bytes(Table::Records, b"a2").unwrap()
    });
    state.erase(&[(Table::Records, b"a".to_vec(), b"b".to_vec())]).unwrap();
    assert_eq!(reader.join().unwrap(), None);
    assert_eq!(files_with(dir.path(), "Xsecret a"), Vec::<String>::new());
    assert_eq!(state.get_bytes(Table::Records, b"a1").unwrap().unwrap(), b"other");
    assert_eq!(state.get_bytes(Table::Records, b"b1").unwrap().unwrap(), b"Xsecret b1");
}
