//! Whole trees: what a scan tells of one, what it reads again, and what it never touches.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use expect_test::{Expect, expect};
use quorate_scan::{Cache, Options, Progress, Scan, ScanError, scan};

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn scanned(root: &Path, before: &Cache) -> Scan {
    scan(root, Options::default(), before, &mut |_| {}).unwrap()
}

fn check(files: &[(&str, &str)], expected: Expect) {
    let folder = tree(files);
    let Scan { storyline, .. } = scanned(folder.path(), &Cache::default());
    let mut told = String::new();
    for file in &storyline.files {
        let path = |n: usize| &storyline.files[n].path;
        told += &format!("{} = {}{}\n", file.path, file.module, if file.is_test { " (test)" } else { "" });
        for edge in &file.edges {
            told += &format!("  {}: {} of {} x{}\n", edge.from, edge.symbol, path(edge.to), edge.count);
        }
    }
    for route in &storyline.routes {
        let file = route.file.map_or_else(|why| format!("{why:?}"), |n| storyline.files[n].path.clone());
        told += &format!("{} {} -> {} in {file}\n", route.method, route.path, route.handler);
    }
    expected.assert_eq(&told);
}

#[test]
fn a_call_goes_to_the_module_it_names_then_to_its_package_then_to_the_only_one_of_all() {
    check(
        &[
            ("api/Cargo.toml", ""),
            (
                "api/src/lib.rs",
                "fn serve() { Router::new().route(\"/a\", get(http::list)).route(\"/b\", get(gone)).route(\"/c\", get(rows)); rows(); rows(); shared(); common(); }",
            ),
            ("api/src/http.rs", "fn list() { store::rows(); common() } fn common() {}"),
            ("api/src/store.rs", "fn rows() {} fn list() {}"),
            ("api/src/tests.rs", "fn rows() {} fn a() { serve() }"),
            ("core/Cargo.toml", ""),
            ("core/src/lib.rs", "fn shared() {} fn common() {} fn list() {}"),
            ("core/src/other.rs", "fn list() {} fn x() { rows(); common(); }"),
        ],
        expect![[r#"
            api/src/http.rs = http
              list: rows of api/src/store.rs x1
            api/src/lib.rs = lib
              serve: rows of api/src/store.rs x2
              serve: common of api/src/http.rs x1
              serve: shared of core/src/lib.rs x1
            api/src/store.rs = store
            api/src/tests.rs = tests (test)
              a: serve of api/src/lib.rs x1
            core/src/lib.rs = lib
            core/src/other.rs = other
              x: rows of api/src/store.rs x1
              x: common of core/src/lib.rs x1
            GET /a -> list in api/src/http.rs
            GET /b -> gone in NotFound
            GET /c -> rows in api/src/store.rs
        "#]],
    );
}

#[test]
fn only_what_has_changed_is_parsed_again_and_the_cache_outlives_the_process() {
    let folder = tree(&[("a.py", "def a(): b()\n"), ("b.py", "def b(): pass\n")]);
    let first = scanned(folder.path(), &Cache::default());
    assert_eq!((first.counts.files, first.counts.unchanged, first.counts.lines), (2, 0, 2));
    let kept = folder.path().join("elsewhere/cache");
    first.cache.save(&kept).unwrap();

    fs::write(folder.path().join("a.py"), "def a(): c()\n").unwrap();
    fs::write(folder.path().join("c.py"), "def c(): pass\n").unwrap();
    let second = scanned(folder.path(), &Cache::load(&kept));
    assert_eq!((second.counts.files, second.counts.unchanged), (3, 1));
    assert_eq!(second.storyline, scanned(folder.path(), &Cache::default()).storyline);

    fs::write(&kept, b"\xFFdamaged").unwrap();
    assert_eq!(scanned(folder.path(), &Cache::load(&kept)).counts.unchanged, 0);
}

#[test]
fn the_same_tree_is_told_the_same_whatever_the_number_of_threads() {
    let files: Vec<(String, String)> =
        (0..300).map(|n| (format!("m{n}.go"), format!("package m\nfunc F{n}() {{ F{}() }}\n", (n * 7) % 300))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let folder = tree(&files);
    let with = |threads| scan(folder.path(), Options { threads, ..Options::default() }, &Cache::default(), &mut |_| {}).unwrap().storyline;
    assert_eq!(with(1), with(7));
}

#[test]
fn progress_comes_to_its_end() {
    let folder = tree(&[("a.py", ""), ("b.py", "")]);
    let mut told = Vec::new();
    scan(folder.path(), Options::default(), &Cache::default(), &mut |progress| told.push(progress)).unwrap();
    assert_eq!(told.last(), Some(&Progress { files_done: 2, files_found: 2 }));
}

#[test]
fn links_pipes_and_ignored_files_are_not_read() {
    let outside = tree(&[("secret.rs", "fn secret() {}"), ("folder/b.rs", "fn b() {}")]);
    let folder =
        tree(&[("src/a.rs", "fn a() {}"), (".gitignore", "target/\n"), ("target/t.rs", "fn t() {}"), (".hidden/h.rs", "fn h() {}")]);
    symlink(outside.path().join("secret.rs"), folder.path().join("src/link.rs")).unwrap();
    symlink(outside.path().join("folder"), folder.path().join("src/folder")).unwrap();
    symlink(folder.path(), folder.path().join("src/round")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("src/pipe.rs")).status().unwrap().success());
    let Scan { storyline, .. } = scanned(folder.path(), &Cache::default());
    assert_eq!(storyline.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["src/a.rs"]);
}

#[test]
fn a_file_that_became_a_link_after_it_was_found_is_refused() {
    let outside = tree(&[("folder/b.rs", "fn secret() {}")]);
    let folder = tree(&[("src/b.rs", "fn b() {}")]);
    let tree = quorate_scan::tree::Tree::open(folder.path()).unwrap();
    assert!(tree.read("src/b.rs").is_ok());
    fs::rename(folder.path().join("src"), folder.path().join("old")).unwrap();
    symlink(outside.path().join("folder"), folder.path().join("src")).unwrap();
    assert!(tree.read("src/b.rs").is_err());
}

#[test]
fn what_is_not_told_in_whole_says_why() {
    let folder = tree(&[("big.js", &"a();\n".repeat(300_000)), ("ok.js", "a()")]);
    let Scan { storyline, counts, .. } = scanned(folder.path(), &Cache::default());
    assert_eq!(
        storyline.files.iter().map(|file| file.problem.map(|problem| problem.word())).collect::<Vec<_>>(),
        [Some("too_large"), None]
    );
    assert_eq!(counts.problems, 1);
}

#[test]
fn a_scan_without_time_or_without_a_folder_says_so() {
    let folder = tree(&[("a.rs", "")]);
    let none = Options { within: Duration::ZERO, ..Options::default() };
    assert!(matches!(scan(folder.path(), none, &Cache::default(), &mut |_| {}), Err(ScanError::TooSlow { .. })));
    let at = |path: &str| scan(&folder.path().join(path), Options::default(), &Cache::default(), &mut |_| {});
    assert!(matches!(at("a.rs"), Err(ScanError::NoFolder { .. })));
    assert!(matches!(at("gone"), Err(ScanError::Root { .. })));
}
