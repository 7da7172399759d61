use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::command::CommandKind;
use crate::limit::{LIST_MAX, NAME_BYTES_MAX};
use crate::query::QueryKind;
use crate::refusal::Refusal;
use crate::transcript::{World, person};

fn ends(from: &str, edge_kind: &str, to: &str) -> EdgeEnds {
    let (from, to) = (from.split_once('/').unwrap(), to.split_once('/').unwrap());
    EdgeEnds { from_kind: from.0.into(), from_id: from.1.into(), edge_kind: edge_kind.into(), to_kind: to.0.into(), to_id: to.1.into() }
}

fn capability(id: &str) -> UpsertEntity {
    let payload = json!({ "id": id, "name": id, "system": "core", "maturity": "built" });
    UpsertEntity { kind: "capability".into(), id: id.into(), payload, kind_revision: None }
}

struct Graph(World);

impl Graph {
    fn of(capabilities: &[&str]) -> Self {
        let mut graph = Self(World::new());
        for id in capabilities {
            graph.does(capability(id));
        }
        graph
    }

    fn tries<C: CommandKind>(&mut self, command: C) -> Result<C::Output, Refusal> {
        self.0.call("1s", person("mara"), None, command)
    }

    fn does<C: CommandKind>(&mut self, command: C) -> C::Output {
        self.tries(command).unwrap()
    }

    fn ask<Q: QueryKind>(&mut self, who: &str, query: Q) -> Q::Output {
        self.0.ask("9s", person(who), query).unwrap()
    }

    fn history(&mut self, id: &str) -> Vec<(u64, bool)> {
        let mut found = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.ask("mara", EntityHistory { kind: "capability".into(), id: id.into(), limit: 2, cursor });
            found.extend(page.versions.iter().map(|entity| (entity.version, entity.deleted)));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return found;
            }
        }
    }

    fn edges(&mut self, list: ListEdges) -> Vec<String> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.ask("mara", ListEdges { cursor, ..list.clone() });
            found.extend(page.edges.iter().map(|edge| edge.ends.edge_id()));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return found;
            }
        }
    }
}

fn list_edges() -> ListEdges {
    ListEdges {
        from_kind: None,
        from_id: None,
        edge_kind: None,
        to_kind: None,
        to_id: None,
        include_deleted: false,
        limit: LIST_MAX as u64,
        cursor: None,
    }
}

#[test]
fn every_change_of_an_entity_is_a_version_and_a_deleted_one_comes_back_as_the_next() {
    let mut graph = Graph::of(&["search"]);
    graph.does(UpsertEntity { payload: json!({ "maturity": "shipped" }), ..capability("search") });
    let gone = graph.does(DeleteEntity { kind: "capability".into(), id: "search".into() });
    assert_eq!((gone.version, gone.deleted, gone.payload), (3, true, json!({ "maturity": "shipped" })));
    let again = graph.does(DeleteEntity { kind: "capability".into(), id: "search".into() });
    assert_eq!(again.version, 3, "a repeated delete changes nothing");

    let get = |include_deleted| GetEntity { kind: "capability".into(), id: "search".into(), include_deleted };
    assert_eq!(graph.ask("mara", get(false)), None);
    assert_eq!(graph.ask("mara", get(true)).unwrap().version, 3);
    assert_eq!(graph.history("search"), [(1, false), (2, false), (3, true)]);

    let back = graph.does(capability("search"));
    assert_eq!((back.version, back.deleted), (4, false));
    assert_eq!(graph.history("search"), [(1, false), (2, false), (3, true), (4, false)]);
    assert_eq!(graph.history("nothing"), []);
}

#[test]
fn what_is_no_entity_is_refused() {
    let mut graph = Graph::of(&[]);
    let refused = |graph: &mut Graph, change: UpsertEntity| graph.tries(change).unwrap_err().to_string();
    let told = refused(&mut graph, UpsertEntity { kind: "monster".into(), ..capability("a") });
    assert_eq!(told, "`kind` is no registered kind; those are `agent_trace_node`, `capability`, `repo`");
    assert_eq!(refused(&mut graph, UpsertEntity { payload: json!([]), ..capability("a") }), "`payload` must be a JSON object");
    assert_eq!(refused(&mut graph, capability(" ")), "`id` must not be empty");
    assert!(refused(&mut graph, capability(&"x".repeat(NAME_BYTES_MAX + 1))).contains("the limit is 512 bytes"));
    let long = UpsertEntity { payload: json!({ "x": "y".repeat(20_000) }), ..capability("a") };
    assert_eq!(refused(&mut graph, long), "`payload` is 20008 bytes long, and the limit is 16384 bytes");
    let missing = graph.tries(DeleteEntity { kind: "capability".into(), id: "a".into() }).unwrap_err();
    assert_eq!(missing, Refusal::not_found("capability", "a"));
}

#[test]
fn an_edge_joins_live_entities_in_a_way_that_its_sources_kind_allows() {
    let mut graph = Graph::of(&["search", "index"]);
    let edge = |from, kind, to| UpsertEdge { ends: ends(from, kind, to), payload: None };
    let refused = |graph: &mut Graph, from, kind, to| graph.tries(edge(from, kind, to)).unwrap_err().to_string();
    assert_eq!(
        refused(&mut graph, "capability/search", "likes", "capability/index"),
        "`edge_kind` can't lead from a `capability`; what can is `depends_on`, `uses`, `part_of`"
    );
    assert_eq!(
        refused(&mut graph, "capability/search", "part_of", "capability/index"),
        "`to_kind` can't be where `part_of` leads from a `capability`; it leads to repo"
    );
    assert_eq!(refused(&mut graph, "capability/search", "uses", "capability/none"), "there is no capability `none`");
    graph.does(DeleteEntity { kind: "capability".into(), id: "index".into() });
    assert_eq!(refused(&mut graph, "capability/search", "uses", "capability/index"), "there is no capability `index`");

    graph.does(capability("index"));
    let first = graph.does(edge("capability/search", "uses", "capability/index"));
    assert_eq!((first.version, first.payload), (1, None));
    let second =
        graph.does(UpsertEdge { payload: Some(json!({ "why": "speed" })), ..edge("capability/search", "uses", "capability/index") });
    assert_eq!((second.version, second.payload), (2, Some(json!({ "why": "speed" }))));
    let gone = graph.does(DeleteEdge { ends: second.ends.clone() });
    assert_eq!((gone.version, gone.deleted), (3, true));
    assert_eq!(graph.ask("mara", GetEdge { ends: second.ends }), None);
}

#[test]
fn an_edge_is_not_shown_while_an_end_of_it_is_deleted_and_comes_back_with_it() {
    let mut graph = Graph::of(&["a", "b", "c"]);
    let kept = ends("capability/b", "uses", "capability/c");
    for joined in [ends("capability/a", "uses", "capability/b"), ends("capability/c", "uses", "capability/a"), kept.clone()] {
        graph.does(UpsertEdge { ends: joined, payload: None });
    }
    graph.does(DeleteEntity { kind: "capability".into(), id: "a".into() });
    let to_a = ListEdges { to_kind: Some("capability".into()), to_id: Some("a".into()), ..list_edges() };
    let of_kind = ListEdges { edge_kind: Some("uses".into()), ..list_edges() };
    assert_eq!(graph.edges(list_edges()), [kept.edge_id()]);
    assert_eq!(graph.edges(of_kind.clone()), [kept.edge_id()]);
    assert_eq!(graph.edges(to_a.clone()), Vec::<String>::new());
    assert_eq!(graph.edges(ListEdges { include_deleted: true, ..to_a.clone() }), ["capability/c|uses|capability/a"]);
    assert_eq!(graph.ask("mara", GetEdge { ends: ends("capability/a", "uses", "capability/b") }), None);
    graph.does(capability("a"));
    assert_eq!(graph.edges(list_edges()).len(), 3);
    assert_eq!(graph.edges(to_a), ["capability/c|uses|capability/a"]);
    assert!(graph.ask("mara", GetEdge { ends: ends("capability/a", "uses", "capability/b") }).is_some());
}

#[test]
fn ids_with_separators_name_different_edges() {
    let mut graph = Graph::of(&["a", "a|uses|capability/b", "b", "c"]);
    graph.does(UpsertEdge { ends: ends("capability/a", "uses", "capability/c"), payload: None });
    graph.does(UpsertEdge { ends: ends("capability/a|uses|capability/b", "uses", "capability/c"), payload: None });
    assert_eq!(graph.edges(list_edges()), ["capability/a|uses|capability/c", "capability/a%7Cuses%7Ccapability%2Fb|uses|capability/c"]);
}

#[test]
fn another_tenant_sees_nothing_of_a_graph() {
    let mut graph = Graph::of(&["search", "index"]);
    graph.does(UpsertEdge { ends: ends("capability/search", "uses", "capability/index"), payload: None });
    assert_eq!(graph.ask("eve", GetEntity { kind: "capability".into(), id: "search".into(), include_deleted: true }), None);
    assert_eq!(graph.ask("eve", ListEntitiesOfKind { kind: None, include_deleted: true, limit: 10, cursor: None }).entities, []);
    assert_eq!(graph.ask("eve", EntityHistory { kind: "capability".into(), id: "search".into(), limit: 10, cursor: None }).versions, []);
    assert_eq!(graph.ask("eve", GetEdge { ends: ends("capability/search", "uses", "capability/index") }), None);
    assert_eq!(graph.ask("eve", list_edges()).edges, []);
}

#[test]
fn a_page_stays_within_a_reply_and_the_next_goes_on() {
    let mut graph = Graph::of(&[]);
    for id in 0..9 {
        graph.does(UpsertEntity { payload: json!({ "x": "y".repeat(3_000) }), ..capability(&format!("c{id}")) });
    }
    let (mut ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = graph.ask("mara", ListEntitiesOfKind { kind: Some("capability".into()), include_deleted: false, limit: 100, cursor });
        assert!((1..=2).contains(&page.entities.len()), "{} entities of 3 KB in 8 KB", page.entities.len());
        ids.extend(page.entities.into_iter().map(|entity| entity.id));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(ids, (0..9).map(|id| format!("c{id}")).collect::<Vec<_>>());
}

fn part(words: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop::sample::select(words.to_vec()).prop_map(String::from))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_list_of_edges_holds_exactly_those_that_have_the_parts(
        changes in prop::collection::vec((0..4_usize, any::<bool>(), 0..4_usize, prop::bool::weighted(0.2)), 1..60),
        from_kind in part(&["capability", "repo"]), from_id in part(&["a", "b"]), edge_kind in part(&["uses", "depends_on"]),
        to_kind in part(&["capability"]), to_id in part(&["a", "c"]), include_deleted in any::<bool>(), limit in 1..5_u64,
    ) {
        let names = ["a", "b", "c", "d"];
        let mut graph = Graph::of(&names);
        let mut model: BTreeMap<String, (EdgeEnds, bool)> = BTreeMap::new();
        for (from, uses, to, deletes) in changes {
            let kind = if uses { "uses" } else { "depends_on" };
            let ends = ends(&format!("capability/{}", names[from]), kind, &format!("capability/{}", names[to]));
            let deleted = match deletes {
                true => graph.tries(DeleteEdge { ends: ends.clone() }).is_ok(),
                false => graph.tries(UpsertEdge { ends: ends.clone(), payload: None }).is_err(),
            };
            if !deletes || deleted {
                model.insert(ends.edge_id(), (ends, deleted));
            }
        }
        let wants = |wanted: &Option<String>, part: &String| wanted.as_ref().is_none_or(|wanted| wanted == part);
        let expected: Vec<&String> = model.iter().filter(|(_, (ends, deleted))| {
            wants(&from_kind, &ends.from_kind) && wants(&from_id, &ends.from_id) && wants(&edge_kind, &ends.edge_kind)
                && wants(&to_kind, &ends.to_kind) && wants(&to_id, &ends.to_id) && (include_deleted || !deleted)
        }).map(|(id, _)| id).collect();
        let list = ListEdges { from_kind: from_kind.clone(), from_id: from_id.clone(), edge_kind: edge_kind.clone(), to_kind: to_kind.clone(), to_id: to_id.clone(), include_deleted, limit, cursor: None };
        let mut found = graph.edges(list);
        found.sort();
        prop_assert_eq!(found.iter().collect::<Vec<_>>(), expected);
    }
}

/// The stored form, which later versions have to read.
#[test]
fn a_stored_entity_and_a_stored_edge_have_this_form() {
    let entity = Entity {
        tenant: "acme".into(),
        kind: "repo".into(),
        id: "r".into(),
        payload: Value::Null,
        created_at: crate::UnixMs(1),
        updated_at: crate::UnixMs(2),
        version: 3,
        deleted: false,
        actor: "mara".into(),
    };
    let hex = hex::encode(crate::codec::encode(&entity));
    expect_test::expect!["a96674656e616e746461636d65646b696e64647265706f6269646172677061796c6f6164f66a637265617465645f6174016a757064617465645f6174026776657273696f6e036764656c65746564f4656163746f72646d617261"].assert_eq(&hex);
    let edge = Edge {
        tenant: "acme".into(),
        ends: ends("repo/r", "depends_on", "repo/s"),
        payload: None,
        created_at: crate::UnixMs(1),
        updated_at: crate::UnixMs(2),
        version: 3,
        deleted: false,
        actor: "mara".into(),
    };
    expect_test::expect!["a86674656e616e746461636d6564656e6473a56966726f6d5f6b696e64647265706f6766726f6d5f6964617269656467655f6b696e646a646570656e64735f6f6e67746f5f6b696e64647265706f65746f5f69646173677061796c6f6164f66a637265617465645f6174016a757064617465645f6174026776657273696f6e036764656c65746564f4656163746f72646d617261"].assert_eq(&hex::encode(crate::codec::encode(&edge)));
}
