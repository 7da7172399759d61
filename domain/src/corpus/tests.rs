use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::codec;
use crate::punchcard::{PunchIn, PunchOut, PunchedIn};
use crate::stamp::{Principal, Revision};
use crate::transcript::{WALL, World, person};

const REPO: &str = "acme/api";

fn connector(name: &str) -> Principal {
    Principal { passport: name.into(), scopes: [CONNECTOR.to_string()].into(), ..person("mara") }
}

fn take(world: &mut World, name: &str) -> Result<Revision, Refusal> {
    let ask = PunchIn {
        resource: "service://github".into(),
        holder_passport: name.into(),
        tenant_id: None,
        mode: None,
        reason: None,
        ttl_ms: Some(10_000),
        expires_at: None,
        wait_ms: None,
        lock_delay_ms: None,
        attended: false,
    };
    match world.call("0s", connector(name), None, ask)? {
        PunchedIn::Granted { card, .. } => Ok(card.fencing_token),
        other => panic!("no card: {other:?}"),
    }
}

fn told(kind: ItemKind, id: &str, at: u64, text: &str) -> Told {
    Told {
        kind,
        id: id.into(),
        at: UnixMs(at),
        updated_at: UnixMs(at),
        is_open: true,
        labels: Vec::new(),
        parents: Vec::new(),
        value: format!("{{\"title\":{text:?}}}"),
        text: text.into(),
    }
}

fn put_in(world: &mut World, repo: &str, token: Revision, items: Vec<Told>) -> Result<CorpusPut, Refusal> {
    let put = PutCorpus { repo: repo.into(), items, place: Some("there".into()), is_at_end: true, problem: None };
    world.call("0s", connector("gateway-1"), Some(token), put)
}

fn list(kind: ItemKind) -> ListCorpus {
    ListCorpus { kind, repo: Some(REPO.into()), is_open: true, label: None, since: None, limit: 10, cursor: None }
}

fn ids(items: &CorpusItems) -> String {
    items.items.iter().map(|item| item.entity()).collect::<Vec<_>>().join(" ")
}

#[test]
fn lists_go_newest_first_and_a_closed_item_leaves_those_of_the_open_ones() {
    let mut world = World::new();
    let token = take(&mut world, "gateway-1").unwrap();
    let labelled = Told { labels: vec!["bug".into()], ..told(ItemKind::Issue, "2", 20, "two") };
    put_in(&mut world, REPO, token, vec![told(ItemKind::Issue, "1", 10, "one"), labelled, told(ItemKind::Issue, "3", 30, "three")])
        .unwrap();
    put_in(&mut world, "acme/web", token, vec![told(ItemKind::Issue, "9", 90, "nine"), told(ItemKind::Comment, "7", 70, "seven")]).unwrap();
    put_in(&mut world, REPO, token, vec![told(ItemKind::Comment, "8", 80, "eight")]).unwrap();
    let mut ask = |query: ListCorpus| ids(&world.ask("0s", person("jon"), query).unwrap());
    assert_eq!(ask(list(ItemKind::Issue)), "github::acme/api::issue/3 github::acme/api::issue/2 github::acme/api::issue/1");
    assert_eq!(ask(ListCorpus { label: Some("bug".into()), ..list(ItemKind::Issue) }), "github::acme/api::issue/2");
    let comments = ListCorpus { repo: None, ..list(ItemKind::Comment) };
    assert_eq!(ask(comments.clone()), "github::acme/api::comment/8 github::acme/web::comment/7");
    assert_eq!(ask(ListCorpus { since: Some(UnixMs(80)), ..comments.clone() }), "github::acme/api::comment/8");
    assert_eq!(ask(ListCorpus { since: Some(UnixMs(81)), ..comments }), "");

    let closed = Told { is_open: false, updated_at: UnixMs(40), ..told(ItemKind::Issue, "3", 30, "three") };
    put_in(&mut world, REPO, token, vec![closed]).unwrap();
    assert_eq!(ids(&world.ask("0s", person("jon"), list(ItemKind::Issue)).unwrap()), "github::acme/api::issue/2 github::acme/api::issue/1");
}

#[test]
fn what_is_told_again_changes_nothing_and_what_is_older_neither() {
    let mut world = World::new();
    let token = take(&mut world, "gateway-1").unwrap();
    let mut put = |item: Told| {
        let put = put_in(&mut world, REPO, token, vec![item]).unwrap();
        (put.new, put.changed)
    };
    let first = told(ItemKind::PullRequest, "1", 10, "old title");
    let later = Told { updated_at: UnixMs(20), value: "{\"title\":\"new title\"}".into(), text: "new title".into(), ..first.clone() };
    assert_eq!(put(first.clone()), (1, 0));
    assert_eq!(put(first.clone()), (0, 0));
    assert_eq!(put(later.clone()), (0, 1));
    assert_eq!(put(first), (0, 0));
    let search = |query: &str| SearchCorpus { query: query.into(), repo: None, limit: 10, cursor: None };
    assert_eq!(world.ask("0s", person("jon"), search("title new")).unwrap().items[0].value, later.value);
    assert_eq!(world.ask("0s", person("jon"), search("old")).unwrap().items, [], "words that are gone find nothing");
}

#[test]
fn a_search_finds_items_with_all_words_of_any_kind_and_others_do_not_crowd_them_out() {
    let mut world = World::new();
    let token = take(&mut world, "gateway-1").unwrap();
    put_in(
        &mut world,
        REPO,
        token,
        vec![told(ItemKind::Commit, "a1", 1, "Fix the receipt chain"), told(ItemKind::Comment, "5", 2, "RECEIPT?")],
    )
    .unwrap();
    for n in 0..30 {
        put_in(&mut world, "acme/web", token, vec![told(ItemKind::Commit, &format!("c{n}"), 100 + n, "receipt")]).unwrap();
    }
    let mut ask = |query: &str, repo: Option<&str>| {
        let search = SearchCorpus { query: query.into(), repo: repo.map(Into::into), limit: 10, cursor: None };
        match world.ask("0s", person("jon"), search) {
            Ok(found) => ids(&found),
            Err(refusal) => refusal.to_string(),
        }
    };
    assert_eq!(ask("receipt", Some(REPO)), "github::acme/api::comment/5 github::acme/api::commit/a1");
    assert_eq!(ask("chain receipt", None), "github::acme/api::commit/a1");
    assert_eq!(ask("?!", None), "`query` holds no word of two letters or more");
    assert_eq!(ask("receipt", Some("acme")), "`repo` is `owner/name`, not `acme`");
}

#[test]
fn only_a_connector_with_a_live_card_writes_and_it_learns_which_parents_are_missing() {
    let mut world = World::new();
    let token = take(&mut world, "gateway-1").unwrap();
    assert!(matches!(take(&mut world, "gateway-2"), Err(Refusal::Held { .. })));
    let commit = |id: &str, parents: &[&str]| Told {
        parents: parents.iter().map(|parent| parent.to_string()).collect(),
        ..told(ItemKind::Commit, id, 1, "m")
    };
    let put = put_in(&mut world, REPO, token, vec![commit("c3", &["c2", "b1"]), commit("c2", &["c1"])]).unwrap();
    assert_eq!(put.parents_missing, ["b1", "c1"]);

    let write = PutCorpus { repo: REPO.into(), items: vec![], place: None, is_at_end: false, problem: None };
    let mut told = String::new();
    let agent = Principal { scopes: ["*".to_string()].into(), ..person("mara") };
    for (who, under) in [(agent, None), (connector("gateway-1"), None), (connector("gateway-2"), Some(token))] {
        told += &format!("{}\n", world.call("0s", who, under, write.clone()).unwrap_err());
    }
    let out =
        PunchOut { resource: "service://github".into(), holder_passport: "gateway-1".into(), tenant_id: None, release_commit_sha: None };
    world.call("0s", connector("gateway-1"), Some(token), out).unwrap();
    take(&mut world, "gateway-2").unwrap();
    told += &format!("{}\n", world.call("0s", connector("gateway-1"), Some(token), write).unwrap_err());
    check(
        &told,
        expect![[r#"
            the corpus is written by connectors only
            a connector writes under its card, and this names none
            fencing token 1 is not that of a live card of `gateway-2`
            fencing token 1 is not that of a live card of `gateway-1`
        "#]],
    );
}

fn check(told: &str, expected: Expect) {
    expected.assert_eq(told);
}

#[test]
fn the_place_of_a_source_moves_with_its_items_and_hints_need_no_card() {
    let mut world = World::new();
    let token = take(&mut world, "gateway-1").unwrap();
    put_in(&mut world, REPO, token, vec![]).unwrap();
    let hint = HintSource { repo: REPO.into() };
    assert_eq!(world.call("0s", connector("gateway-2"), None, hint.clone()).unwrap().hints, 1);
    assert!(world.call("0s", person("mara"), None, hint).is_err());
    let ask = GetSources { repos: vec![REPO.into()] };
    let source = world.ask("0s", connector("gateway-2"), ask.clone()).unwrap().sources.remove(0);
    assert_eq!((source.place.as_str(), source.hints, source.read_at), ("there", 1, Some(UnixMs(WALL))));
    let other = world.ask("0s", person("eve"), ask).unwrap().sources.remove(0);
    assert_eq!((other.place.as_str(), other.hints), ("", 0));
}

#[test]
fn a_list_says_which_of_its_repositories_is_not_read_or_not_to_its_end() {
    let mut world = World::new();
    let token = take(&mut world, "gateway-1").unwrap();
    let asked = |world: &mut World, repo: Option<&str>| {
        let ask = ListCorpus { repo: repo.map(Into::into), ..list(ItemKind::Commit) };
        let found = world.ask("0s", person("mara"), ask).unwrap();
        let behind: Vec<String> = found.behind.into_iter().map(|source| source.repo).collect();
        (found.has_sources, found.is_unread, behind)
    };
    assert_eq!(asked(&mut world, Some("acme/typo")), (false, true, vec![]));
    put_in(&mut world, REPO, token, vec![]).unwrap();
    assert_eq!(asked(&mut world, Some(REPO)), (true, false, vec![]));
    assert_eq!(asked(&mut world, Some("acme/typo")), (true, true, vec![]));
    let problem = Some("404: not found".to_string());
    let gone = PutCorpus { repo: "acme/gone".into(), items: vec![], place: None, is_at_end: false, problem: problem.clone() };
    world.call("0s", connector("gateway-1"), Some(token), gone).unwrap();
    assert_eq!(asked(&mut world, Some("acme/gone")), (true, false, vec!["acme/gone".into()]));
    assert_eq!(asked(&mut world, None), (true, false, vec!["acme/gone".into()]));

    let (mut told, mut cursor) = (Vec::new(), None);
    loop {
        let page = world.ask("0s", person("jon"), ListSources { limit: 1, cursor }).unwrap();
        told.extend(page.sources.into_iter().map(|source| (source.repo, source.read_at, source.problem)));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(told, [(REPO.into(), Some(UnixMs(WALL)), None), ("acme/gone".into(), None, problem)]);
    let other = world.ask("0s", person("eve"), ListSources { limit: 9, cursor: None }).unwrap();
    assert_eq!(other.sources, [], "another tenant's are its own");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_pages_of_a_list_hold_each_item_once_and_in_order(count in 0..60_u64, limit in 1..9_u64, label_every in 1..7_u64) {
        let mut world = World::new();
        let token = take(&mut world, "gateway-1").unwrap();
        for n in 0..count {
            let labels = if n % label_every == 0 { vec!["x".to_string()] } else { vec![] };
            let item = Told { labels, ..told(ItemKind::Issue, &n.to_string(), n / 3, "word") };
            put_in(&mut world, REPO, token, vec![item]).unwrap();
        }
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = ListCorpus { label: Some("x".into()), limit, cursor, ..list(ItemKind::Issue) };
            let page = world.ask("0s", person("jon"), page).unwrap();
            found.extend(page.items.iter().map(|item| (item.at.0, item.id.parse::<u64>().unwrap())));
            cursor = page.next_cursor;
            if cursor.is_none() { break }
        }
        let mut expected: Vec<(u64, u64)> = (0..count).filter(|n| n % label_every == 0).map(|n| (n / 3, n)).collect();
        prop_assert!(found.is_sorted_by_key(|(at, _)| std::cmp::Reverse(*at)));
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}

/// The stored forms, which later versions have to read.
#[test]
fn the_stored_forms_are_pinned() {
    let item = Item {
        tenant: "acme".into(),
        repo: REPO.into(),
        kind: ItemKind::Commit,
        id: "a1".into(),
        at: UnixMs(1),
        updated_at: UnixMs(2),
        is_open: true,
        labels: vec!["bug".into()],
        value: "{}".into(),
        words: words("Fix it"),
    };
    let source =
        Source { tenant: "acme".into(), repo: REPO.into(), place: "there".into(), hints: 1, read_at: Some(UnixMs(3)), problem: None };
    let encoded = [codec::encode(&item), codec::encode(&source)].map(hex::encode);
    expect![[r#"
        aa6674656e616e746461636d65647265706f6861636d652f617069646b696e6466436f6d6d6974626964626131626174016a757064617465645f6174026769735f6f70656ef5666c6162656c7381636275676576616c7565627b7d65776f7264738263666978626974
        a66674656e616e746461636d65647265706f6861636d652f61706965706c6163656574686572656568696e74730167726561645f6174036770726f626c656df6"#]]
    .assert_eq(&encoded.join("\n"));
    assert_eq!(codec::decode::<Item>(&hex::decode(&encoded[0]).unwrap()).unwrap(), item);
    assert_eq!(codec::decode::<Source>(&hex::decode(&encoded[1]).unwrap()).unwrap(), source);
}
