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
fn a_call_in_rust_goes_to_the_module_it_names_or_to_what_the_file_uses() {
    check(
        &[
            ("api/Cargo.toml", ""),
            (
                "api/src/lib.rs",
                "use crate::store::rows; use acme_core::{shared, other as second}; fn serve() { Router::new().route(\"/a\", get(http::list)).route(\"/b\", get(gone)).route(\"/c\", get(rows)); rows(); rows(); shared(); second::list(); common(); std::mem::swap(); secret() }",
            ),
            ("api/src/http.rs", "pub fn list() { store::rows(); common() } fn common() {} pub fn swap() {} fn secret() {}"),
            (
                "api/src/store.rs",
                "mod inner; pub(crate) fn rows() {} pub fn list() {} fn own() {} pub struct Page; impl Page { pub fn new() {} }",
            ),
            ("api/src/store/inner.rs", "use super::*; fn a() { own(); super::rows(); Page::new(); Vec::new(); <Page>::new() }"),
            ("api/src/tests.rs", "use crate::*; fn rows() {} fn a() { serve() }"),
            ("core/Cargo.toml", ""),
            ("core/src/lib.rs", "pub fn shared() {} pub fn common() {} pub fn list() {}"),
            ("core/src/other.rs", "pub fn list() {} fn x() { rows(); crate::common(); api::store::rows() }"),
        ],
        expect![[r#"
            api/src/http.rs = http
              list: rows of api/src/store.rs x1
            api/src/lib.rs = lib
              serve: rows of api/src/store.rs x2
              serve: shared of core/src/lib.rs x1
              serve: list of core/src/other.rs x1
            api/src/store.rs = store
            api/src/store/inner.rs = store::inner
              a: new of api/src/store.rs x1
              a: own of api/src/store.rs x1
              a: rows of api/src/store.rs x1
            api/src/tests.rs = tests (test)
              a: serve of api/src/lib.rs x1
            core/src/lib.rs = lib
            core/src/other.rs = other
              x: common of core/src/lib.rs x1
            GET /a -> list in api/src/http.rs
            GET /b -> gone in NotFound
            GET /c -> rows in api/src/store.rs
        "#]],
    );
}

#[test]
fn a_method_of_a_value_in_rust_is_no_function_of_its_name_and_none_that_values_have_anyway() {
    check(
        &[
            (
                "src/lib.rs",
                "fn a(x: X) { x.iter().map(f).collect(); x.contains(1); x.publish(); x.reveal(); x.helper(); self.map(); y.get() }",
            ),
            ("src/own.rs", "fn map() {} pub fn collect() {} impl Set { pub fn contains(&self) {} fn reveal(&self) {} pub fn helper() {} }"),
            (
                "src/topic.rs",
                "impl Topic { pub fn publish(&self) {} } impl Get for Topic { fn get(&self) {} fn told(&self) {} } fn b() { self.map() }",
            ),
            ("src/user.rs", "fn c(t: T) { t.told(); Topic::told(t); Self::told(t) }"),
        ],
        expect![[r#"
            src/lib.rs = lib
              a: publish of src/topic.rs x1
            src/own.rs = own
            src/topic.rs = topic
            src/user.rs = user
              c: told of src/topic.rs x3
        "#]],
    );
}

#[test]
fn a_call_in_python_goes_to_what_the_file_imports() {
    check(
        &[
            (
                "app/main.py",
                "import os\nfrom app.store import rows, save as keep, Store\nfrom . import tools\nfrom .deep.more import *\nimport app.store as s\nfrom lib import store\n\ndef a(x):\n    rows(); keep(); tools.mend(); more(); s.get(); hidden(); x.get(); x.items(); x.publish(); os.remove(); Store.open(); remove(); store.rows(); print()\n",
            ),
            (
                "app/store.py",
                "def rows(): pass\ndef save(): pass\ndef get(): pass\ndef hidden(): pass\ndef remove(): pass\nclass Store:\n    def open(self): pass\n    def publish(self): pass\n    def _publish(self): pass\n    def items(self): pass\n",
            ),
            ("app/tools.py", "def mend(): pass\ndef print(): pass\n"),
            ("app/deep/more.py", "def more(): pass\ndef b(x): x._publish()\n"),
        ],
        expect![[r#"
            app/deep/more.py = app.deep.more
            app/main.py = app.main
              a: more of app/deep/more.py x1
              a: get of app/store.py x1
              a: keep of app/store.py x1
              a: open of app/store.py x1
              a: publish of app/store.py x1
              a: rows of app/store.py x1
              a: mend of app/tools.py x1
            app/store.py = app.store
            app/tools.py = app.tools
        "#]],
    );
}

#[test]
fn a_call_in_javascript_or_typescript_goes_to_what_the_file_imports_and_the_other_exports() {
    check(
        &[
            (
                "src/server.ts",
                "import express from 'express';\nimport { rows, save as keep, hidden } from './store';\nimport * as tools from './lib/tools.js';\nimport service from './service';\nimport { join } from 'path';\napp.get('/a', rows);\nfunction a(x) { rows(); keep(); hidden(); tools.mend(); service.run(); x.map(f); x.filter(g); join(); local(); x.publish(); Array.from(x); }\n",
            ),
            (
                "src/store.ts",
                "export function rows() {}\nconst save = () => {};\nfunction hidden() {}\nfunction local() {}\nexport { save };\nexport const from = () => {};\n",
            ),
            (
                "src/lib/tools.js",
                "const { rows } = require('../store');\nfunction mend() { rows() }\nfunction join() {}\nmodule.exports = { mend, join };\n",
            ),
            (
                "src/service/index.ts",
                "class Service { run() { this.map() } map() {} private publish() {} }\nexport default new Service();\n",
            ),
            ("web/page.js", "function draw() { paint() }\n"),
            ("web/paint.js", "function paint() {}\n"),
        ],
        expect![[r#"
            src/lib/tools.js = lib/tools
              mend: rows of src/store.ts x1
            src/server.ts = server
              a: mend of src/lib/tools.js x1
              a: run of src/service/index.ts x1
              a: keep of src/store.ts x1
              a: rows of src/store.ts x1
            src/service/index.ts = service
            src/store.ts = store
            web/page.js = web/page
              draw: paint of web/paint.js x1
            web/paint.js = web/paint
            GET /a -> rows in src/store.ts
        "#]],
    );
}

#[test]
fn a_call_in_go_goes_to_its_folder_or_to_the_package_that_is_imported() {
    check(
        &[
            ("go.mod", ""),
            (
                "api/api.go",
                "package api\nimport (\n\t\"fmt\"\n\tdb \"example.org/acme/store\"\n)\nfunc A(x X) { db.Rows(); helper(); fmt.Println(); x.String(); x.Publish(); x.hide(); Rows(); save() }\n",
            ),
            ("api/help.go", "package api\nfunc helper() {}\n"),
            (
                "store/store.go",
                "package store\nfunc Rows() { save() }\nfunc Println() {}\nfunc (t *Topic) Publish() {}\nfunc (t Topic) String() {}\nfunc (t Topic) hide() {}\n",
            ),
            ("store/save.go", "package store\nfunc save() {}\n"),
        ],
        expect![[r#"
            api/api.go = api
              A: helper of api/help.go x1
              A: Publish of store/store.go x1
              A: Rows of store/store.go x1
            api/help.go = api
            store/save.go = store
            store/store.go = store
              Rows: save of store/save.go x1
        "#]],
    );
}

#[test]
fn a_call_in_java_goes_to_the_class_that_it_names() {
    check(
        &[
            (
                "src/main/java/org/acme/api/Api.java",
                "package org.acme.api;\nimport org.acme.store.Store;\nimport static org.acme.store.Util.clean;\nimport java.util.List;\nclass Api { void a(X x) { Store.rows(); new Store(); clean(); Near.by(); List.of(); x.map(); x.publish(); x.secret(); x.inner(); Math.max(1, 2); } }\n",
            ),
            ("src/main/java/org/acme/api/Near.java", "package org.acme.api;\nclass Near { static void by() {} }\n"),
            (
                "src/main/java/org/acme/store/Store.java",
                "package org.acme.store;\npublic class Store { public Store() {} public static void rows() {} public void map() {} public void publish() {} private void secret() {} void inner() {} }\n",
            ),
            (
                "src/main/java/org/acme/store/Util.java",
                "package org.acme.store;\npublic class Util { public static void clean() {} public static void max() {} public static void of() {} }\n",
            ),
        ],
        expect![[r#"
            src/main/java/org/acme/api/Api.java = org.acme.api.Api
              a: by of src/main/java/org/acme/api/Near.java x1
              a: Store of src/main/java/org/acme/store/Store.java x1
              a: publish of src/main/java/org/acme/store/Store.java x1
              a: rows of src/main/java/org/acme/store/Store.java x1
              a: clean of src/main/java/org/acme/store/Util.java x1
            src/main/java/org/acme/api/Near.java = org.acme.api.Near
            src/main/java/org/acme/store/Store.java = org.acme.store.Store
            src/main/java/org/acme/store/Util.java = org.acme.store.Util
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
