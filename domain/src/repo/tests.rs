use std::fmt::Write as _;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::scan::*;
use super::storyline::*;
use super::*;
use crate::limit::{SCAN_PART_BYTES_MAX, SCAN_PARTS_STORED_MAX, STORY_NODES_MAX};
use crate::transcript::{WALL, World, person};

fn file(path: &str, calls: &[(&str, &str, &str, u64)]) -> FileRow {
    let is_test = |path: &str| path.contains("test");
    let edge = |(from, to, symbol, count): &(&str, &str, &str, u64)| EdgeRow {
        from: from.to_string(),
        to: file_id(to),
        to_is_test: is_test(to),
        symbol: symbol.to_string(),
        count: *count,
    };
    FileRow {
        path: path.into(),
        package: "api".into(),
        module: path.trim_end_matches(".rs").into(),
        doc: Some(format!("About {path}.")),
        language: "rust".into(),
        lines: 10,
        functions: 2,
        is_test: is_test(path),
        problem: None,
        edges: calls.iter().map(edge).collect(),
        edges_left_out: 0,
    }
}

fn route(method: &str, path: &str, handler: &str, file: Option<&str>) -> RouteRow {
    let problem = file.is_none().then(|| "not_found".to_string());
    RouteRow {
        method: method.into(),
        path: path.into(),
        handler: handler.into(),
        file: file.map(Into::into),
        declared_in: "lib.rs".into(),
        problem,
    }
}

/// Deals files to parts as a scanner does.
fn dealt(files: &[FileRow], parts: usize) -> Vec<PartContent> {
    let mut dealt = vec![PartContent::default(); parts];
    for file in files {
        dealt[part_of(file_id(&file.path), parts)].files.push(file.clone());
    }
    dealt
}

fn register(world: &mut World, who: &str, repo_id: &str) -> Result<Repo, Refusal> {
    let caller = person(who);
    let command = RegisterRepo {
        tenant_id: caller.tenant.clone(),
        repo_id: Some(repo_id.into()),
        root_path: Some(format!("/src/{repo_id}")),
        clone_url: None,
        languages: Vec::new(),
        case_sensitive: None,
    };
    world.call("0s", caller, None, command)
}

fn put(world: &mut World, repo_id: &str, parts: Vec<PartContent>) -> Result<Vec<String>, Refusal> {
    let put = PutScanParts { repo_id: repo_id.into(), parts };
    world.call("0s", person("mara"), None, put).map(|put| put.parts)
}

fn finish(world: &mut World, repo_id: &str, file_parts: Vec<String>, route_parts: Vec<String>) -> Result<String, Refusal> {
    let finish = FinishScan { repo_id: repo_id.into(), file_parts, route_parts, totals: Totals::default(), place: None };
    world.call("0s", person("mara"), None, finish).map(|finished| finished.scan_id)
}

/// A whole scan of a repository.
fn scan(world: &mut World, repo_id: &str, files: &[FileRow], routes: &[RouteRow]) -> String {
    let file_parts = put(world, repo_id, dealt(files, 4)).unwrap();
    let route_parts = put(world, repo_id, vec![PartContent { routes: routes.to_vec(), ..PartContent::default() }]).unwrap();
    finish(world, repo_id, file_parts, route_parts).unwrap()
}

fn show(endpoint: Option<&str>, include_tests: bool) -> ShowStoryline {
    ShowStoryline { repo_id: None, endpoint: endpoint.map(Into::into), include_tests, cursor: None }
}

fn told(stories: &Stories) -> String {
    let mut told = String::new();
    for story in &stories.stories {
        match &story.start {
            Start::Route(route) => writeln!(told, "{} {} ({})", route.method, route.path, route.handler).unwrap(),
            Start::File(path) => writeln!(told, "{path}").unwrap(),
        }
        for node in &story.nodes {
            let indent = "  ".repeat(node.depth as usize + 1);
            let mark = if node.mark == Mark::Plain { String::new() } else { format!(" {:?}", node.mark) };
            writeln!(told, "{indent}{}: {} x{}{mark}", node.path, node.symbols.join(", "), node.count).unwrap();
        }
        if story.cut > 0 {
            writeln!(told, "  cut {}", story.cut).unwrap();
        }
    }
    told
}

fn sample() -> (Vec<FileRow>, Vec<RouteRow>) {
    let files = vec![
        file("lib.rs", &[("", "http.rs", "list", 1), ("boot", "store.rs", "open", 1)]),
        file(
            "http.rs",
            &[
                ("list", "store.rs", "rows", 3),
                ("list", "store.rs", "count", 1),
                ("show", "auth.rs", "check", 9),
                ("list", "tests/util.rs", "fake", 40),
            ],
        ),
        file("auth.rs", &[("check", "store.rs", "rows", 1), ("check", "http.rs", "fail", 2)]),
        file("store.rs", &[]),
        file("tests/util.rs", &[("fake", "store.rs", "rows", 1)]),
    ];
    let routes =
        vec![route("GET", "/a", "list", Some("http.rs")), route("POST", "/a", "create", Some("http.rs")), route("GET", "/b", "gone", None)];
    (files, routes)
}

fn check(endpoint: Option<&str>, include_tests: bool, expected: Expect) {
    let mut world = World::new();
    register(&mut world, "mara", "api").unwrap();
    let (files, routes) = sample();
    scan(&mut world, "api", &files, &routes);
    let answer = world.ask("0s", person("jon"), show(endpoint, include_tests));
    expected.assert_eq(&answer.map_or_else(|refusal| format!("refused: {refusal}\n"), |stories| told(&stories)));
}

#[test]
fn a_story_begins_with_the_calls_of_its_handler_or_with_those_of_the_whole_file() {
    check(
        None,
        false,
        expect![[r#"
            GET /a (list)
              http.rs: list x1
                store.rs: rows, count x4
            POST /a (create)
              http.rs: create x1
                auth.rs: check x9
                  http.rs: fail x2 Cycle
                  store.rs: rows x1
                store.rs: rows, count x4 Cycle
            GET /b (gone)
        "#]],
    );
}

#[test]
fn a_story_is_asked_for_by_route_by_path_or_by_file() {
    check(
        Some("get /a"),
        false,
        expect![[r#"
        GET /a (list)
          http.rs: list x1
            store.rs: rows, count x4
    "#]],
    );
    check(
        Some("auth.rs"),
        false,
        expect![[r#"
        auth.rs
          auth.rs:  x1
            http.rs: fail x2
              auth.rs: check x9 Cycle
              store.rs: rows, count x4
            store.rs: rows x1 Cycle
    "#]],
    );
    check(
        Some("DELETE /a"),
        false,
        expect![[r#"
        refused: there is no route or file `DELETE /a`
    "#]],
    );
    check(
        Some("GET /a"),
        true,
        expect![[r#"
        GET /a (list)
          http.rs: list x1
            tests/util.rs: fake x40
              store.rs: rows x1
            store.rs: rows, count x4 Cycle
    "#]],
    );
}

#[test]
fn what_a_story_leaves_out_is_marked_and_counted() {
    let mut world = World::new();
    register(&mut world, "mara", "api").unwrap();
    let name = |n: usize| format!("f{n}.rs");
    let wide: Vec<(String, u64)> = (1..30).map(|n| (name(n), n as u64)).collect();
    let calls: Vec<(&str, &str, &str, u64)> = wide.iter().map(|(to, count)| ("h", to.as_str(), "x", *count)).collect();
    let mut files = vec![file("f0.rs", &calls)];
    files.extend((1..30).map(|n| file(&name(n), &[])));
    // A line of files, one calling the next.
    files.extend((30..40).map(|n| file(&name(n), &[("h", name(n + 1).as_str(), "x", 1)])));
    scan(&mut world, "api", &files, &[]);
    let wide = world.ask("0s", person("jon"), show(Some("f0.rs"), false)).unwrap();
    assert_eq!(wide.stories[0].nodes.len(), STORY_NODES_MAX);
    assert_eq!((wide.stories[0].nodes[0].mark, wide.stories[0].cut), (Mark::More, 29 - (STORY_NODES_MAX as u64 - 1)));
    let deep = world.ask("0s", person("jon"), show(Some("f30.rs"), false)).unwrap();
    expect![[r#"
        f30.rs
          f30.rs:  x1
            f31.rs: x x1
              f32.rs: x x1
                f33.rs: x x1
                  f34.rs: x x1 More
          cut 1
    "#]]
    .assert_eq(&told(&deep));
}

#[test]
fn readers_see_a_scan_as_a_whole_and_only_when_it_is_finished() {
    let mut world = World::new();
    register(&mut world, "mara", "api").unwrap();
    let refused = world.ask("0s", person("jon"), show(None, false)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "`repo_id` names nothing, and the tenant has no finished scan yet; run `quorate scan PATH` where the code is"
    );
    let (files, routes) = sample();
    let first = scan(&mut world, "api", &files, &routes);
    let before = world.ask("0s", person("jon"), show(None, false)).unwrap();

    // The next scan has put its parts, and another one was abandoned.
    let changed: Vec<FileRow> = files.iter().map(|file| FileRow { lines: 11, ..file.clone() }).collect();
    let hashes = put(&mut world, "api", dealt(&changed, 2)).unwrap();
    assert_eq!(world.ask("0s", person("jon"), show(None, false)).unwrap(), before);

    let second = finish(&mut world, "api", hashes.clone(), vec![]).unwrap();
    assert_ne!(first, second);
    let after = world.ask("0s", person("jon"), show(Some("auth.rs"), false)).unwrap();
    assert_eq!(after.scan_id, second);
    // What the first scan held is gone, and what the second holds is there.
    let missing = MissingParts { repo_id: "api".into(), parts: [hashes, vec!["0".repeat(32)]].concat(), place: None };
    assert_eq!(world.ask("0s", person("mara"), missing).unwrap().missing, ["0".repeat(32)]);
    let repos = world.ask("0s", person("jon"), ListRepos { tenant_id: "acme".into(), limit: 10, cursor: None }).unwrap();
    assert_eq!((repos.repos[0].parts_stored, repos.repos[0].last_scan_id.as_ref()), (2, Some(&second)));
}

#[test]
fn a_scan_that_lost_parts_to_another_one_is_told_which_and_finishes_when_they_are_back() {
    let mut world = World::new();
    register(&mut world, "mara", "api").unwrap();
    let (files, _) = sample();
    let mine = dealt(&files, 2);
    let hashes = put(&mut world, "api", mine.clone()).unwrap();
    scan(&mut world, "api", &files[..1], &[]);
    let refused = finish(&mut world, "api", hashes.clone(), vec![]).unwrap_err();
    assert!(matches!(&refused, Refusal::NotFound { what, id } if what == "part" && hashes.contains(id)), "{refused}");
    let again = put(&mut world, "api", mine).unwrap();
    assert_eq!(again, hashes, "a part is what it holds");
    finish(&mut world, "api", hashes, vec![]).unwrap();
}

#[test]
fn scans_that_are_never_finished_leave_a_bounded_number_of_parts_and_not_those_of_the_one_that_is_shown() {
    let mut world = World::new();
    register(&mut world, "mara", "api").unwrap();
    let (files, routes) = sample();
    scan(&mut world, "api", &files, &routes);
    let before = world.ask("0s", person("jon"), show(None, false)).unwrap();
    for n in 0..20 {
        put(&mut world, "api", vec![PartContent { files: vec![file(&format!("x{n}.rs"), &[])], routes: vec![] }]).unwrap();
        let repos = world.ask("0s", person("jon"), ListRepos { tenant_id: "acme".into(), limit: 10, cursor: None }).unwrap();
        assert!(repos.repos[0].parts_stored <= SCAN_PARTS_STORED_MAX as u64);
    }
    assert_eq!(world.ask("0s", person("jon"), show(None, false)).unwrap(), before);
}

#[test]
fn nothing_of_a_repository_is_seen_or_changed_from_another_tenant() {
    let mut world = World::new();
    register(&mut world, "mara", "api").unwrap();
    let (files, routes) = sample();
    scan(&mut world, "api", &files, &routes);
    assert!(world.ask("0s", person("eve"), show(None, false)).unwrap_err().to_string().contains("no finished scan"));
    let of_api = ShowStoryline { repo_id: Some("api".into()), ..show(None, false) };
    assert_eq!(world.ask("0s", person("eve"), of_api).unwrap_err().to_string(), "there is no repository `api`");
    let put = PutScanParts { repo_id: "api".into(), parts: vec![] };
    assert_eq!(world.call("0s", person("eve"), None, put).unwrap_err().to_string(), "there is no repository `api`");
    let theirs = ListRepos { tenant_id: "acme".into(), limit: 10, cursor: None };
    assert_eq!(world.ask("0s", person("eve"), theirs).unwrap_err().to_string(), "there is no tenant `acme`");
}

#[test]
fn a_repository_is_named_after_its_place_and_keeps_what_a_later_call_leaves_out() {
    for (place, name) in [
        ("https://example.org/acme/api.git", Some("api")),
        ("git@example.org:acme/My API.git", Some("my-api")),
        ("/home/mara/src/web/", Some("web")),
        ("/", None),
        ("/--/", None),
    ] {
        assert_eq!(slug(place).as_deref(), name, "{place}");
    }
    let mut world = World::new();
    let mut call = |repo_id: Option<&str>, root_path: Option<&str>, clone_url: Option<&str>| {
        let command = RegisterRepo {
            tenant_id: "acme".into(),
            repo_id: repo_id.map(Into::into),
            root_path: root_path.map(Into::into),
            clone_url: clone_url.map(Into::into),
            languages: vec![],
            case_sensitive: None,
        };
        match world.call("0s", person("mara"), None, command) {
            Ok(repo) => format!("{} at {:?}, {:?}\n", repo.repo_id, repo.root_path, repo.clone_url),
            Err(refusal) => format!("refused: {refusal}\n"),
        }
    };
    let told = [
        call(None, None, Some("https://example.org/acme/api.git")),
        call(None, None, Some("https://example.org/other/api.git")),
        call(Some("api"), Some("/src/api"), None),
        call(None, Some("src/api"), None),
        call(None, None, None),
        call(None, None, Some("https://mara:secret@example.org/acme/api.git")),
        call(None, Some("/else/api"), None),
        call(None, Some("/src/api"), Some("https://example.org/acme/api.git")),
    ];
    expect![[r#"
        api at None, Some("https://example.org/acme/api.git")
        refused: `repo_id` `api`, made of the path or URL, is the name of another repository: give one of your own, or this one if it is meant
        api at Some("/src/api"), Some("https://example.org/acme/api.git")
        refused: `root_path` is not absolute: `src/api`
        refused: `root_path` is missing, and so is `clone_url`: give one of them
        refused: `clone_url` holds a password; leave it out, since the whole team can read it
        refused: `repo_id` `api`, made of the path or URL, is the name of another repository: give one of your own, or this one if it is meant
        api at Some("/src/api"), Some("https://example.org/acme/api.git")
    "#]]
    .assert_eq(&told.concat());
}

#[test]
fn a_repository_is_named_by_a_name_and_cloned_from_an_address_that_git_knows() {
    let mut world = World::new();
    let mut registers = |repo_id: Option<&str>, root_path: Option<&str>, clone_url: Option<&str>| {
        let command = RegisterRepo {
            tenant_id: "acme".into(),
            repo_id: repo_id.map(Into::into),
            root_path: root_path.map(Into::into),
            clone_url: clone_url.map(Into::into),
            languages: vec![],
            case_sensitive: None,
        };
        world.call("0s", person("mara"), None, command).map(|repo| repo.repo_id)
    };
    let refused = |told: Result<String, Refusal>, field: &str| match told {
        Err(Refusal::Invalid { field: told, .. }) => assert_eq!(told, field),
        other => panic!("{other:?}"),
    };
    let good = [
        "https://example.org/acme/a.git",
        "http://127.0.0.1:8080/b",
        "ssh://git@example.org:22/acme/c",
        "git://example.org/d",
        "git@example.org:acme/e.git",
        "example.org:f",
        "https://[::1]/g",
    ];
    for url in good {
        registers(None, None, Some(url)).unwrap();
    }
    let wrong = [
        "notaurl",
        "file:///etc",
        "/etc",
        "https://",
        "https://example.org",
        "https://example.org/",
        "https:///etc",
        "ext::sh -c x",
        "C:\\api",
        "javascript:alert(1)",
        "https://example.org/a b",
        "git@:x",
        "git@host:",
        "-u:x",
        "ftp://example.org/a",
    ];
    for url in wrong {
        refused(registers(Some("x"), None, Some(url)), "clone_url");
    }
    for id in ["../x", "..", ".", "a/../b", "/a", "a/", "a//b", "a\\b", " a", "a / b"] {
        refused(registers(Some(id), Some("/src/x"), None), "repo_id");
    }
    registers(Some("acme/api"), Some("/src/x"), None).unwrap();
    // A folder and an address of one name are not the same by that alone.
    registers(None, Some("/etc"), None).unwrap();
    refused(registers(None, None, Some("https://example.org/etc")), "repo_id");
}

/// The graph page by page, as one.
fn graph(world: &mut World, endpoint: Option<&str>) -> (Vec<String>, Vec<String>, usize) {
    let (mut files, mut routes, mut pages, mut cursor) = (Vec::new(), Vec::new(), 0, None);
    loop {
        let page = ListStoryline { repo_id: None, endpoint: endpoint.map(Into::into), include_tests: false, cursor };
        let page = world.ask("0s", person("jon"), page).unwrap();
        files.extend(page.files.into_iter().map(|(_, file)| file.path));
        routes.extend(page.routes.into_iter().map(|(route, chain)| format!("{} {} {}", route.method, route.path, chain.len())));
        (pages, cursor) = (pages + 1, page.next_cursor);
        if cursor.is_none() {
            return (files, routes, pages);
        }
    }
}

#[test]
fn the_graph_of_one_endpoint_holds_what_it_reaches() {
    let mut world = World::new();
    register(&mut world, "mara", "api").unwrap();
    let (files, routes) = sample();
    scan(&mut world, "api", &files, &routes);
    assert_eq!(graph(&mut world, Some("GET /a")), (vec!["http.rs".into(), "store.rs".into()], vec!["GET /a 2".into()], 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_pages_of_a_graph_hold_every_file_and_every_route_once(
        count in 0..200_usize,
        calls in 0..40_usize,
        // With the one of routes as many as are kept.
        parts in 1..SCAN_PARTS_STORED_MAX,
        names in 1..60_usize,
    ) {
        let mut world = World::new();
        register(&mut world, "mara", "api").unwrap();
        let path = |n: usize| format!("{}{n}.rs", "d/".repeat(names));
        // Drawn larger, one part would not be taken.
        let calls = calls.min(SCAN_PART_BYTES_MAX / count.div_ceil(parts).max(1) / (2 * names + 60));
        let files: Vec<FileRow> = (0..count).map(|n| {
            let to: Vec<String> = (0..calls).map(|m| path((n * 7 + m) % count)).collect();
            let edges: Vec<(&str, &str, &str, u64)> = to.iter().map(|to| ("h", to.as_str(), "x", 1)).collect();
            file(&path(n), &edges)
        }).collect();
        let routes: Vec<RouteRow> = (0..count / 3).map(|n| route("GET", &format!("/{n:04}"), "h", Some(&path(n)))).collect();
        let file_parts = put(&mut world, "api", dealt(&files, parts)).unwrap();
        let route_parts = put(&mut world, "api", vec![PartContent { files: vec![], routes: routes.clone() }]).unwrap();
        finish(&mut world, "api", file_parts, route_parts).unwrap();
        let (mut told_files, told_routes, _) = graph(&mut world, None);
        told_files.sort();
        let mut all: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
        all.sort();
        prop_assert_eq!(told_files, all);
        prop_assert_eq!(told_routes.len(), routes.len());
    }
}

/// The stored forms, which later versions have to read.
#[test]
fn the_stored_forms_are_pinned() {
    let repo = Repo {
        tenant: "acme".into(),
        repo_id: "api".into(),
        root_path: Some("/src/api".into()),
        clone_url: None,
        languages: vec!["rust".into()],
        enabled: true,
        case_sensitive: true,
        added_at: UnixMs(WALL),
        last_scan_id: Some("scan_1".into()),
        parts_stored: 2,
    };
    let (files, routes) = (vec![file("a.rs", &[("f", "b.rs", "g", 2)])], vec![route("GET", "/a", "f", Some("a.rs"))]);
    let part = PartContent { files, routes };
    let scan = Scan {
        tenant: "acme".into(),
        repo_id: "api".into(),
        scan_id: "scan_1".into(),
        file_parts: vec![part.hash()],
        route_parts: vec![],
        totals: Totals { files: 1, lines: 10, routes: 1, problems: 0 },
        at: UnixMs(WALL),
        by: "mara".into(),
    };
    let encoded = [codec::encode(&repo), codec::encode(&part), codec::encode(&scan)].map(hex::encode);
    expect![[r#"
        aa6674656e616e746461636d65677265706f5f69646361706969726f6f745f70617468682f7372632f61706969636c6f6e655f75726cf6696c616e67756167657381647275737467656e61626c6564f56e636173655f73656e736974697665f56861646465645f61741b000001ba60d338006c6c6173745f7363616e5f6964667363616e5f316c70617274735f73746f72656402
        a26566696c657381ab647061746864612e7273677061636b61676563617069666d6f64756c65616163646f636b41626f757420612e72732e686c616e67756167656472757374656c696e65730a6966756e6374696f6e73026769735f74657374f46770726f626c656df665656467657381a56466726f6d616662746f1b000b873cef20eb7f6a746f5f69735f74657374f46673796d626f6c616765636f756e74026e65646765735f6c6566745f6f75740066726f7574657381a6666d6574686f64634745546470617468622f616768616e646c657261666466696c6564612e72736b6465636c617265645f696e666c69622e72736770726f626c656df6
        a86674656e616e746461636d65677265706f5f696463617069677363616e5f6964667363616e5f316a66696c655f706172747381782037356239363236636630346438303364633963373438666535336534316532306b726f7574655f70617274738066746f74616c73a46566696c657301656c696e65730a66726f75746573016870726f626c656d73006261741b000001ba60d33800626279646d617261"#]].assert_eq(&encoded.join("\n"));
    assert_eq!(codec::decode::<Repo>(&hex::decode(&encoded[0]).unwrap()).unwrap(), repo);
    assert_eq!(codec::decode::<PartContent>(&hex::decode(&encoded[1]).unwrap()).unwrap(), part);
    assert_eq!(codec::decode::<Scan>(&hex::decode(&encoded[2]).unwrap()).unwrap(), scan);
}

#[test]
fn a_scan_of_another_place_does_not_take_a_repository_s_name() {
    let mut world = World::new();
    register(&mut world, "mara", "api").unwrap();
    let place =
        |root: &str, url: Option<&str>, is_named: bool| ScanPlace { root_path: root.into(), clone_url: url.map(Into::into), is_named };
    let repo = |world: &mut World| {
        let list = ListRepos { tenant_id: "acme".into(), limit: 1, cursor: None };
        world.ask("0s", person("jon"), list).unwrap().repos.remove(0)
    };
    let mut scan = |place: ScanPlace| {
        let ask = MissingParts { repo_id: "api".into(), parts: vec![], place: Some(place.clone()) };
        let asked = world.ask("0s", person("jon"), ask).map(|_| ());
        let totals = Totals::default();
        let finish = FinishScan { repo_id: "api".into(), file_parts: vec![], route_parts: vec![], totals, place: Some(place) };
        let finished = world.call("0s", person("jon"), None, finish);
        assert_eq!(asked.err(), finished.as_ref().err().cloned(), "it is told before anything is sent");
        let Repo { root_path, clone_url, last_scan_id, .. } = repo(&mut world);
        assert!(finished.as_ref().is_err() || last_scan_id == finished.as_ref().ok().map(|done| done.scan_id.clone()));
        let told = finished.map(|_| (root_path.unwrap(), clone_url.unwrap_or_default()));
        told.map_err(|refusal| refusal.to_string())
    };
    let told = scan(place("/b/api", None, false)).unwrap_err();
    let expected = "`repo_id` `api` is the repository at `/src/api`, and this is a scan of `/b/api`: choose another name with \
                    `quorate scan --repo NAME`, or this one if it is meant";
    assert_eq!(told, expected);
    let url = "https://example.org/acme/api.git";
    assert_eq!(scan(place("/src/api/", Some(url), false)), Ok(("/src/api/".into(), url.into())), "the folder that was registered");
    // Two clones of one remote, however each names it.
    let ssh = "git@EXAMPLE.org:acme/api";
    assert_eq!(scan(place("/b/api", Some(ssh), false)), Ok(("/b/api".into(), ssh.into())));
    let told = scan(place("/b/api", Some("https://example.org/other/api"), false)).unwrap_err();
    assert!(told.contains("`/b/api` of `git@EXAMPLE.org:acme/api`") && told.contains("`https://example.org/other/api`"), "{told}");
    let (named, moved) = (place("/c/api", None, true), scan(place("/c/api", None, true)));
    assert_eq!(moved, Ok((named.root_path, ssh.into())), "who chooses the name means this repository");
    assert!(scan(place("c/api", None, true)).unwrap_err().contains("is not absolute"));
    assert!(scan(place("/c/api", Some("https://a:b@example.org/x"), true)).unwrap_err().contains("password"));
}
