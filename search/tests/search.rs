//! Searches from end to end within a process: commands change a state, an index follows it, and searches are judged by it.

use std::fs;

use quorate_domain::command::CommandKind;
use quorate_domain::fact::{Confidence, DeleteFact, FactRows, QueryFacts, StoreFact};
use quorate_domain::graph::{EdgeEnds, UpsertEdge, UpsertEntity};
use quorate_domain::machine::{self, Body, Call, Entry};
use quorate_domain::overlay::{Nothing, Overlay};
use quorate_domain::search::{ExpandResults, Found, Hits, Search};
use quorate_domain::{Principal, QueryKind, ReadStamp, RequestId, Revision, Tier, UnixMs, codec};
use quorate_search::Indexer;
use tempfile::TempDir;

const WALL: UnixMs = UnixMs(1_900_000_000_000);

struct World {
    state: Overlay<'static, Nothing>,
    revision: u64,
    dir: TempDir,
    elsewhere: TempDir,
    indexer: Indexer,
}

fn person(tenant: &str, passport: &str) -> Principal {
    Principal { tenant: tenant.into(), passport: passport.into(), tier: Tier::Verified, scopes: Default::default() }
}

fn mara() -> Principal {
    person("acme", "mara")
}

fn fact(entity: &str, key: &str, value: &str) -> StoreFact {
    StoreFact {
        entity: entity.into(),
        key: key.into(),
        value: value.into(),
        source_receipt: None,
        confidence: Confidence::FULL,
        private: false,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    }
}

fn asks(query: &str) -> Search {
    Search {
        tenant_id: "local".into(),
        query: query.into(),
        limit: 10,
        token_budget: None,
        score_min: None,
        with_snippets: true,
        cursor: None,
        hits: Hits::default(),
        with_pointers: false,
        with_pairs: false,
    }
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let indexer = Indexer::open(dir.path(), "c/0").unwrap();
        Self { state: Overlay::new(&Nothing), revision: 0, dir, elsewhere: tempfile::tempdir().unwrap(), indexer }
    }

    fn does<C: CommandKind>(&mut self, caller: Principal, command: C) -> C::Output {
        self.revision += 1;
        let request = RequestId { id: format!("r{}", self.revision), issued_at: WALL, keyed: false };
        let body = Body::Call(Call { caller, request, under: None, command: command.into() });
        let entry = Entry { wall: WALL, advance_ms: 0, stamped_term: 1, body };
        let decided = machine::apply(&mut self.state, Revision(self.revision), 1, entry).unwrap().unwrap();
        codec::decode(&decided.outcome.unwrap()).unwrap()
    }

    fn stores(&mut self, entity: &str, key: &str, value: &str) -> String {
        self.does(mara(), fact(entity, key, value)).fact_id
    }

    fn follows(&mut self) -> quorate_search::Step {
        self.indexer.follow(&self.state, &|| false).unwrap()
    }

    /// Lets go of the index's files, as a node that ends.
    fn closes(&mut self) {
        self.elsewhere = tempfile::tempdir().unwrap();
        self.indexer = Indexer::open(self.elsewhere.path(), "c/0").unwrap();
    }

    fn opens(&mut self, origin: &str) {
        self.indexer = Indexer::open(self.dir.path(), origin).unwrap();
    }

    fn restarts(&mut self) {
        self.closes();
        self.opens("c/0");
    }

    fn read<Q: QueryKind>(&self, caller: Principal, query: Q) -> Q::Output {
        let at = ReadStamp { revision: Revision(self.revision), lease_now: Default::default(), wall: WALL, caller };
        codec::decode(&query.into().run(&self.state, &at).unwrap().unwrap()).unwrap()
    }

    fn hits(&self, caller: &Principal, search: &Search) -> Hits {
        let asked = search.asked(caller).unwrap();
        self.indexer.index().search(caller, &asked, self.indexer.through().unwrap_or_default()).unwrap()
    }

    fn finds_as(&self, caller: Principal, mut search: Search) -> Found {
        search.hits = self.hits(&caller, &search);
        self.read(caller, search)
    }

    fn finds(&self, query: &str) -> Vec<String> {
        self.finds_as(mara(), asks(query)).results.into_iter().map(|row| row.title).collect()
    }
}

#[test]
fn names_codes_paths_and_other_scripts_are_found_whole_and_in_parts() {
    let mut world = World::new();
    for (key, value) in [
        ("policy", "the limit is set by POL-358 since May"),
        ("failure", "the worker said error:timeout twice"),
        ("place", "see src/search/words.rs, function readIndexRound"),
        ("setting", "set max_retry_count to 3 in C++ builds"),
        ("zh", "请在周五之前检查POL777号策略的结果"),
        ("ja", "リーダー選挙が終わるまで書き込みは待機します"),
        ("ko", "배포 승인은 운영자가 직접 처리합니다"),
        ("de", "Größe der Schränke: don't guess, it is 95%"),
    ] {
        world.stores("svc:api", key, value);
    }
    world.follows();
    for (query, key) in [
        ("POL-358", "policy"),
        ("pol358", "policy"),
        ("\"POL-358\"", "policy"),
        ("error:timeout", "failure"),
        ("timeout", "failure"),
        ("words.rs", "place"),
        ("src/search/words.rs", "place"),
        ("readIndexRound", "place"),
        ("index round", "place"),
        ("max_retry_count", "setting"),
        ("retry", "setting"),
        ("c++", "setting"),
        ("周五", "zh"),
        ("POL777", "zh"),
        ("策略", "zh"),
        ("選挙", "ja"),
        ("書き込み", "ja"),
        ("승인", "ko"),
        ("GRÖßE", "de"),
        ("schranke", "de"),
        ("don't", "de"),
        ("95%", "de"),
    ] {
        assert_eq!(world.finds(query).first(), Some(&format!("svc:api / {key}")), "{query}");
    }
    assert!(world.finds("数据库迁移").is_empty());
}

#[test]
fn nothing_that_is_typed_is_an_error() {
    let mut world = World::new();
    world.stores("svc:api", "owner", "the platform team");
    world.follows();
    for query in [
        "",
        " ",
        "'",
        "\"",
        "(",
        ")",
        "*",
        "NEAR",
        "AND",
        "OR NOT",
        "a AND",
        "^",
        "~",
        "\\",
        "-",
        "key:",
        "{",
        "\"unclosed",
        "%_%",
        "; drop table facts",
        "\u{202e}",
        "😀",
        "\0",
        "platform^2 +team -the",
        "[a TO b]",
        "/re.*/",
        "ÀÉ\u{301}",
        "\u{fdfa}",
    ] {
        world.finds(query);
    }
    world.finds(&"timeout ".repeat(250));
    assert_eq!(world.finds("platform^2 +team -the"), ["svc:api / owner"]);
}

#[test]
fn an_exact_name_comes_first_however_often_others_tell_of_it() {
    let mut world = World::new();
    for key in ["POL-358", "error:timeout", "don't", "a/b.rs", "C++", "100%", "snake_case", "[x]", "on call"] {
        world.stores("rules", key, "the value of this key");
        world.stores("rules", &format!("about {key} and others"), &format!("a text that tells of {key}, of {key} and again of {key}"));
        world.follows();
        assert_eq!(world.finds(key).first(), Some(&format!("rules / {key}")), "{key}");
    }
}

#[test]
fn what_is_superseded_deleted_or_anothers_is_found_by_nobody_and_has_left_the_index() {
    let mut world = World::new();
    world.stores("svc:api", "owner", "walrus");
    world.stores("svc:api", "owner", "heron");
    let gone = world.stores("svc:api", "colour", "chartreuse");
    let jon = person("acme", "jon");
    world.does(jon.clone(), StoreFact { private: true, ..fact("svc:api", "secret", "obsidian") });
    world.follows();
    world.does(mara(), DeleteFact { fact_id: gone.clone() });
    // Before the index knows of it.
    assert!(world.finds("chartreuse").is_empty());
    world.follows();
    assert_eq!(world.finds("heron").len(), 1);
    for query in ["walrus", "chartreuse", "obsidian"] {
        assert!(world.hits(&mara(), &asks(query)).keys.is_empty(), "{query} is in the index");
    }
    assert_eq!(world.finds_as(jon, asks("obsidian")).results.len(), 1);
    let eve = person("other", "mara");
    assert!(world.finds_as(eve, asks("heron")).results.is_empty());
    let expanded =
        world.read(mara(), ExpandResults { tenant_id: "local".into(), result_ids: vec![gone], token_budget: None, with_pointers: false });
    assert_eq!((expanded.results.len(), expanded.missing[0].reason.as_str()), (0, "not_active"));
}

#[test]
fn neither_another_tenants_words_nor_anothers_private_ones_move_a_result() {
    let mut world = World::new();
    world.stores("a", "k", "deploy window on friday");
    world.stores("b", "k", "deploy deploy deploy script of the gateway that restarts at two in the morning");
    world.stores("c", "k", "window of the office");
    world.follows();
    let before = world.finds_as(mara(), asks("deploy window")).results;
    let eve = person("other", "eve");
    let jon = person("acme", "jon");
    for n in 0..200 {
        world.does(eve.clone(), fact("svc", &format!("k{n}"), "window window window"));
        world.does(jon.clone(), StoreFact { private: true, ..fact("svc", &format!("k{n}"), "deploy of mine") });
    }
    world.follows();
    assert_eq!(world.finds_as(mara(), asks("deploy window")).results, before);
}

#[test]
fn an_index_that_is_missing_damaged_or_of_another_cluster_is_built_anew() {
    let mut world = World::new();
    for n in 0..50 {
        world.stores("svc", &format!("k{n}"), &format!("common words and number{n}"));
    }
    assert!(world.follows().is_rebuilt, "there was none");
    world.stores("svc", "more", "number17 once more");
    let step = world.follows();
    assert!(!step.is_rebuilt && step.looked_at == 1);
    let expected = world.finds("number17 common");
    let files = |world: &World| fs::read_dir(world.dir.path()).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();

    world.restarts();
    assert!(!world.follows().is_rebuilt, "whole and up to date");
    assert_eq!(world.finds("number17 common"), expected);

    let victim = files(&world).into_iter().find(|file| file.extension().is_some_and(|name| name == "idx")).unwrap();
    let mut bytes = fs::read(&victim).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xFF;
    world.closes();
    fs::write(&victim, bytes).unwrap();
    world.opens("c/0");
    assert!(world.follows().is_rebuilt, "a byte is another");
    assert_eq!(world.finds("number17 common"), expected);

    world.closes();
    fs::write(world.dir.path().join("meta.json"), "{").unwrap();
    world.opens("c/0");
    assert!(world.follows().is_rebuilt, "its list of files is torn");
    assert_eq!(world.finds("number17 common"), expected);

    world.closes();
    world.opens("c/1");
    assert!(world.follows().is_rebuilt, "of another lineage");
    assert_eq!(world.finds("number17 common"), expected);
}

#[test]
fn what_the_graph_joins_to_a_result_is_found_with_it() {
    let mut world = World::new();
    let entity = |id: &str, text: &str| UpsertEntity {
        kind: "repo".into(),
        id: id.into(),
        payload: serde_json::json!({ "id": id, "slug": id, "name": text }),
        kind_revision: None,
    };
    world.does(mara(), entity("gateway", "terminates the protocol"));
    world.does(mara(), entity("ledger", "keeps accounts"));
    world.does(mara(), entity("unrelated", "nothing of this"));
    let ends = EdgeEnds {
        from_kind: "repo".into(),
        from_id: "gateway".into(),
        edge_kind: "depends_on".into(),
        to_kind: "repo".into(),
        to_id: "ledger".into(),
    };
    world.does(mara(), UpsertEdge { ends, payload: None });
    world.stores("repo:ledger", "owner", "the finance guild");
    world.follows();
    let found = world.finds_as(mara(), asks("terminates protocol"));
    let ids: Vec<&str> = found.results.iter().map(|row| row.title.as_str()).collect();
    assert_eq!(ids, ["gateway", "ledger", "repo:ledger / owner"]);
    assert_eq!(found.coverage.score, 1_000_000);
    let expanded = world.read(
        mara(),
        ExpandResults {
            tenant_id: "acme".into(),
            result_ids: vec![found.results[1].doc_id.clone()],
            token_budget: None,
            with_pointers: false,
        },
    );
    assert!(expanded.results[0].content.contains("keeps accounts"));
}

#[test]
fn what_a_recall_is_helped_to_is_what_it_finds_without() {
    let mut world = World::new();
    for n in 0..120u64 {
        let value = format!("common{} and 部署脚本{n} rare{}", n % 3, n / 10);
        world.does(
            mara(),
            StoreFact {
                confidence: Confidence(500_000 + (n * 7_919 % 500_000) as u32),
                ..fact(&format!("svc:{}", n % 7), &format!("k{n}"), &value)
            },
        );
    }
    world.does(person("acme", "jon"), StoreFact { private: true, ..fact("svc:1", "hidden", "rare7 of jon") });
    world.follows();
    // What the index does not know yet is found all the same.
    world.stores("svc:3", "late", "rare7 came late");
    world.does(mara(), fact("svc:3", "k73", "replaced"));
    for query in ["rare7", "are7", "common1", "脚本7", "署", "RARE7 rare8", "svc:3", "k5", "ab", "late", "nowhere", "rare7 x"] {
        let plain = QueryFacts {
            query: Some(query.into()),
            entity: None,
            entity_prefix: None,
            key: None,
            top_k: 200,
            token_budget: Some(8_000),
            include_superseded: false,
            as_of: None,
            min_effective_confidence: None,
            cursor: None,
            hits: Default::default(),
            with_pointers: false,
            with_envelope: false,
        };
        let mut helped = plain.clone();
        let asked = helped.asked().unwrap();
        helped.hits = world.indexer.index().facts(&mara(), &asked, world.indexer.through().unwrap()).unwrap();
        let keys = |rows: FactRows| rows.rows.into_iter().map(|row| row.key).collect::<Vec<_>>();
        let (mut with, mut without) = (keys(world.read(mara(), helped)), keys(world.read(mara(), plain)));
        with.sort();
        without.sort();
        assert_eq!(with, without, "{query}");
    }
}

#[test]
fn a_fact_that_is_named_by_exactly_what_is_asked_comes_first_in_a_recall() {
    let mut world = World::new();
    for n in 0..30 {
        world.stores("rules", &format!("about POL-358 {n}"), "tells of POL-358");
    }
    world.does(mara(), StoreFact { confidence: Confidence(100_000), ..fact("other", "POL-358", "the value") });
    for follows in [false, true] {
        if follows {
            world.follows();
        }
        world.does(mara(), StoreFact { confidence: Confidence(200_000), ..fact("late", "pol-358", "stored after") });
        let mut recall = QueryFacts {
            query: Some("POL-358".into()),
            entity: None,
            entity_prefix: None,
            key: None,
            top_k: 3,
            token_budget: None,
            include_superseded: false,
            as_of: None,
            min_effective_confidence: None,
            cursor: None,
            hits: Default::default(),
            with_pointers: false,
            with_envelope: false,
        };
        let asked = recall.asked().unwrap();
        if let Some(through) = world.indexer.through() {
            recall.hits = world.indexer.index().facts(&mara(), &asked, through).unwrap();
        }
        let rows: FactRows = world.read(mara(), recall);
        let keys: Vec<&str> = rows.rows.iter().map(|row| row.key.as_str()).collect();
        if follows {
            assert_eq!(keys[..2], ["pol-358", "POL-358"]);
        }
        assert_eq!(keys.len(), 3);
    }
}

#[test]
fn coverage_names_the_words_that_no_result_holds() {
    let mut world = World::new();
    world.stores("svc:api", "owner", "the platform team owns the gateway");
    world.follows();
    let found = world.finds_as(mara(), asks("who owns the gateway and the POL-358 周五 policy"));
    assert_eq!(found.coverage.gaps, ["POL-358", "周五", "policy"]);
    assert_eq!((found.coverage.score, found.coverage.below_floor), (400_000, true));
    assert_eq!(found.gap.as_deref(), Some("pol-358 policy 周五"));
    let found = world.finds_as(mara(), asks("gateway owner"));
    assert_eq!((found.coverage.score, found.coverage.gaps.len(), found.gap), (1_000_000, 0, None));
    assert!(found.results[0].snippet.as_deref().unwrap().contains("gateway"));
}

#[test]
fn pages_show_every_result_once_and_keep_their_budget() {
    let mut world = World::new();
    for n in 0..120 {
        world.stores("svc", &format!("key {n}"), &format!("a lighthouse of number {n}"));
    }
    world.follows();
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let found = world.finds_as(mara(), Search { limit: 50, token_budget: Some(1_000), cursor, ..asks("lighthouse") });
        let json = serde_json::to_string(&found.results).unwrap();
        assert!(json.len() <= 4_000, "{}", json.len());
        seen.extend(found.results.into_iter().map(|row| row.doc_id));
        pages += 1;
        match found.next_cursor {
            Some(next) => {
                assert!(found.truncated.is_some());
                cursor = Some(next);
            }
            None => break,
        }
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), count), (120, 120), "in {pages} pages");
}

#[test]
fn ids_that_have_no_room_come_back() {
    let mut world = World::new();
    let ids: Vec<String> = (0..6).map(|n| world.stores("svc", &format!("k{n}"), &"long ".repeat(600))).collect();
    let expand = |result_ids, token_budget| ExpandResults { tenant_id: "local".into(), result_ids, token_budget, with_pointers: false };
    let (mut seen, mut left) = (Vec::new(), ids.clone());
    while !left.is_empty() {
        let expanded = world.read(mara(), expand(left, None));
        assert!(serde_json::to_string(&expanded).unwrap().len() <= 8 * 1_024 && !expanded.results.is_empty());
        assert_eq!(expanded.truncated.is_some(), !expanded.not_shown.is_empty());
        seen.extend(expanded.results.into_iter().map(|row| row.doc_id));
        left = expanded.not_shown;
    }
    assert_eq!(seen, ids);
    let expanded = world.read(mara(), expand(vec!["nonsense".into(), "f_00".into(), "entity:a/b".into(), "doc_0#x".into()], Some(500)));
    let reasons: Vec<&str> = expanded.missing.iter().map(|missing| missing.reason.as_str()).collect();
    assert_eq!(reasons, ["invalid_format", "not_found", "not_found", "invalid_format"]);
}
