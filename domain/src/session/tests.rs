//! Transcripts and properties of sessions.

use std::fmt::Write;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::event::{Watched, watch};
use crate::limit::LIST_MAX;
use crate::transcript::{Line, World, person};
use crate::tx::{Direction, Table};

fn save(session_id: &str, state: serde_json::Value) -> SaveSession {
    SaveSession { session_id: session_id.into(), state, ttl_ms: None, expected_revision: None }
}

/// Runs `time who verb word... option=value...` line by line.
fn check(script: &str, expected: Expect) {
    let mut world = World::new();
    let mut told = String::new();
    for line in script.lines() {
        let line = Line::parse(line);
        let (caller, session_id) = (person(line.who), line.word(0).to_string());
        let saved = |saved: Result<SessionSaved, Refusal>| match saved {
            Ok(SessionSaved { session_id, total_tokens, archived, revision, .. }) => {
                format!("{session_id} at revision {revision}, {total_tokens} tokens{}", if archived { ", archived" } else { "" })
            }
            Err(refusal) => format!("refused: {refusal}"),
        };
        let answer = match line.verb {
            "save" => {
                let command = SaveSession {
                    ttl_ms: line.ms("ttl"),
                    expected_revision: line.option("expected").map(|revision| Revision(revision.parse().unwrap())),
                    ..save(&session_id, serde_json::from_str(line.word(1)).unwrap())
                };
                saved(world.call(line.time, caller, None, command))
            }
            "archive" => saved(world.call(line.time, caller, None, ArchiveSession { session_id, reason: line.option("reason") })),
            "unarchive" => saved(world.call(line.time, caller, None, UnarchiveSession { session_id })),
            "delete" => match world.call(line.time, caller, None, DeleteSession { session_id }) {
                Ok(SessionDeleted { deleted, session_id }) => format!("{session_id} deleted: {deleted}"),
                Err(refusal) => format!("refused: {refusal}"),
            },
            "get" => match world.ask(line.time, caller, GetSession { session_id }) {
                Ok(SessionView { state, archived, archive_reason, revision, actor, .. }) => {
                    let reason = archive_reason.map_or(String::new(), |reason| format!(" because {reason}"));
                    format!("{state} by {actor} at revision {revision}{}{reason}", if archived { ", archived" } else { "" })
                }
                Err(refusal) => format!("refused: {refusal}"),
            },
            "list" => {
                let query = ListSessions {
                    include_archived: line.words.contains(&"archived"),
                    limit: 10,
                    cursor: None,
                    with_titles: false,
                    session_prefix: line.option("prefix"),
                };
                format!("sessions: {}", world.ask(line.time, caller, query).unwrap().sessions.join(" "))
            }
            "tick" => {
                world.tick(line.time);
                let rows = [Table::Records, Table::Index]
                    .map(|table| world.state.scan_bytes(table, &[], &[0xFF], Direction::Ascending, 100).unwrap().len());
                format!("{} records, {} index rows", rows[0], rows[1])
            }
            "events" => match watch(&world.state, &caller.tenant, Revision(0), 100).unwrap() {
                Watched::Events(events) => events
                    .iter()
                    .map(|event| format!("{} {} {} {}", event.revision, event.kind, event.id, event.about))
                    .collect::<Vec<_>>()
                    .join("\n"),
                Watched::Compacted { .. } => "compacted".into(),
            },
            verb => panic!("no such verb: {verb}"),
        };
        writeln!(told, "{answer}").unwrap();
    }
    expected.assert_eq(&told);
}

#[test]
fn a_session_is_its_passports_alone() {
    check(
        r#"0s mara save build {"title":"release","steps":[1,2.5,{"x":null}]}
           0s jon  save build {"title":"mine"}
           1s mara get build
           1s jon  get build
           1s eve  get build
           1s eve  list
           1s mara delete build
           1s mara delete build
           1s mara get build
           1s jon  list
           1s mara events"#,
        expect![[r#"
            build at revision 1, 12 tokens
            build at revision 2, 4 tokens
            {"title":"release","steps":[1,2.5,{"x":null}]} by mara at revision 1
            {"title":"mine"} by jon at revision 2
            refused: there is no session `build`
            sessions: 
            build deleted: true
            refused: there is no session `build`
            refused: there is no session `build`
            sessions: build
            1 session.saved s_29a4d5d7a98cafc296cceedb72707e99 {"passport":"mara"}
            2 session.saved s_ccf6f4595d92b3980a8baddcfe79c837 {"passport":"jon"}
            3 session.deleted s_29a4d5d7a98cafc296cceedb72707e99 {"passport":"mara"}
        "#]],
    );
}

#[test]
fn a_save_that_expects_another_revision_is_refused() {
    check(
        r#"0s mara save build {"n":1} expected=0
           0s mara save build {"n":2} expected=0
           0s mara save build {"n":2} expected=1
           0s mara save build {"n":3} expected=1
           0s mara save other {"n":3} expected=7
           0s mara archive build
           0s mara save build {"n":4} expected=3
           0s mara save build {"n":4} expected=6
           0s mara get build"#,
        expect![[r#"
            build at revision 1, 2 tokens
            refused: session `build` has changed: expected no session, found revision 1
            build at revision 3, 2 tokens
            refused: session `build` has changed: expected revision 1, found revision 3
            refused: session `other` has changed: expected revision 7, found no session
            build at revision 6, 2 tokens, archived
            refused: session `build` has changed: expected revision 3, found revision 6
            build at revision 8, 2 tokens, archived
            {"n":4} by mara at revision 8, archived
        "#]],
    );
}

#[test]
fn an_archived_session_is_listed_on_request_only_and_stays_readable() {
    check(
        r#"0s mara save b {"n":1}
           0s mara save a {"n":2}
           1s mara archive b reason=done
           1s mara list
           1s mara list archived
           1s mara get b
           2s mara save b {"n":3}
           2s mara list
           3s mara unarchive b
           3s mara get b
           3s mara list
           3s mara archive c
           3s mara unarchive c"#,
        expect![[r#"
            b at revision 1, 2 tokens
            a at revision 2, 2 tokens
            b at revision 3, 2 tokens, archived
            sessions: a
            sessions: a b
            {"n":1} by mara at revision 3, archived because done
            b at revision 4, 2 tokens, archived
            sessions: a
            b at revision 5, 2 tokens
            {"n":3} by mara at revision 5
            sessions: a b
            refused: there is no session `c`
            refused: there is no session `c`
        "#]],
    );
}

#[test]
fn an_expired_session_is_gone_before_it_is_swept() {
    check(
        r#"0s  mara save a {"n":1} ttl=10s
           0s  mara save b {"n":2}
           9s  mara get a
           10s mara get a
           10s mara list archived
           10s mara tick
           11s mara save a {"n":3} expected=0 ttl=10s
           12s mara save a {"n":4}
           30s mara get a
           30s mara save b {"n":5} ttl=1s
           40s mara tick
           40s mara events"#,
        expect![[r#"
            a at revision 1, 2 tokens
            b at revision 2, 2 tokens
            {"n":1} by mara at revision 1
            refused: there is no session `a`
            sessions: b
            2 records, 0 index rows
            a at revision 4, 2 tokens
            a at revision 5, 2 tokens
            {"n":4} by mara at revision 5
            b at revision 6, 2 tokens
            2 records, 0 index rows
            1 session.saved s_06690895b73e2867b5d5e5326d1cbc94 {"passport":"mara"}
            2 session.saved s_d74231e987719b5ef8ef85edf0bdb463 {"passport":"mara"}
            3 session.expired s_06690895b73e2867b5d5e5326d1cbc94 {"passport":"mara"}
            4 session.saved s_06690895b73e2867b5d5e5326d1cbc94 {"passport":"mara"}
            5 session.saved s_06690895b73e2867b5d5e5326d1cbc94 {"passport":"mara"}
            6 session.saved s_d74231e987719b5ef8ef85edf0bdb463 {"passport":"mara"}
            7 session.expired s_d74231e987719b5ef8ef85edf0bdb463 {"passport":"mara"}
        "#]],
    );
}

#[test]
fn what_is_not_a_session_is_refused() {
    let mut world = World::new();
    let deep =
        |levels: usize| serde_json::from_str::<serde_json::Value>(&format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels))).unwrap();
    let cases = [
        save("", json!({})),
        save("a\nb", json!({})),
        save("a", json!([])),
        save("a", json!(null)),
        save("a", json!({ "x": "y".repeat(STATE_BYTES_MAX) })),
        save("a", deep(STATE_DEPTH_MAX + 1)),
        SaveSession { ttl_ms: Some(0), ..save("a", json!({})) },
        SaveSession { ttl_ms: Some(u64::MAX), ..save("a", json!({})) },
        save("a", deep(STATE_DEPTH_MAX)),
        save("a", json!({ "x": "y".repeat(STATE_BYTES_MAX - 8) })),
    ];
    let told: String = cases
        .map(|case| match world.call("0s", person("mara"), None, case) {
            Ok(saved) => format!("saved, {} tokens\n", saved.total_tokens),
            Err(refusal) => format!("{refusal}\n"),
        })
        .concat();
    expect![[r#"
        `session_id` must not be empty
        `session_id` must not hold control characters
        `state` must be a JSON object
        `state` must be a JSON object
        `state` is 16392 bytes long, and the limit is 16384 bytes
        `state` must not nest objects and arrays more than 64 levels deep
        `ttl_ms` must be at least 1; leave it out for a session without an end
        saved, 1 tokens
        saved, 97 tokens
        saved, 4096 tokens
    "#]]
    .assert_eq(&told);
    let long = ArchiveSession { session_id: "a".into(), reason: Some("x".repeat(5_000)) };
    let refusal = world.call("0s", person("mara"), None, long).unwrap_err();
    assert_eq!(refusal.to_string(), "`reason` is 5000 bytes long, and the limit is 4096 bytes");
}

#[test]
fn a_stored_session_has_this_form() {
    let mut world = World::new();
    world.call("0s", person("mara"), None, SaveSession { ttl_ms: Some(5), ..save("a", json!({ "n": 1 })) }).unwrap();
    let rows: String = [Table::Records, Table::Index]
        .into_iter()
        .flat_map(|table| world.state.scan_bytes(table, &[], &[0xFF], Direction::Ascending, 100).unwrap())
        .map(|(key, value)| format!("{}\n  {}\n", key.escape_ascii(), value.escape_ascii()))
        .collect();
    expect![[r#"
        acme\x00\x01\x1emara\x00\x01a\x00\x01
          \xaaftenantdacmehpassportdmarajsession_idaajupdated_at\x1b\x00\x00\x01\xba`\xd38\x00ltotal_tokens\x02harchived\xf4narchive_reason\xf6eactordmarahrevision\x01hdeadline\x05
        acme\x00\x01\x1fmara\x00\x01a\x00\x01
          \xa4ftenantdacmehpassportdmarajsession_idaadjsong{\"n\":1}
        \x00\x01\x82\x00\x00\x00\x00\x00\x00\x00\x05acme\x00\x01[\"mara\",\"a\"]\x00\x01
          \x82dacmel[\"mara\",\"a\"]
    "#]].assert_eq(&rows);
}

fn json_state() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|flag| json!(flag)),
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        "(?s).{0,12}".prop_map(|text| json!(text)),
    ];
    let value = leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(|items| json!(items)),
            prop::collection::vec(("[a-z]{0,4}", inner), 0..6).prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    });
    prop::collection::vec(("[a-z]{0,4}", value), 0..6).prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_state_comes_back_as_it_was_sent(state in json_state()) {
        let mut world = World::new();
        world.call("0s", person("mara"), None, save("a", state.clone())).unwrap();
        let view = world.ask("0s", person("mara"), GetSession { session_id: "a".into() }).unwrap();
        prop_assert_eq!(view.state.to_string(), state.to_string());
        prop_assert_eq!(view.total_tokens, state.to_string().len().div_ceil(4) as u64);
    }

    #[test]
    fn lists_page_through_each_live_session_once(
        names in prop::collection::btree_map("[a-c]{1,5}", (0..3u64, any::<bool>()), 0..100), limit in 1..60u64, include_archived in any::<bool>(),
        prefix in "[a-c]{0,2}",
    ) {
        let mut world = World::new();
        for (name, (ttl_s, archived)) in &names {
            let ttl_ms = (*ttl_s > 0).then_some(ttl_s * 1_000);
            world.call("0s", person("mara"), None, SaveSession { ttl_ms, ..save(name, json!({})) }).unwrap();
            world.call("0s", person("jon"), None, save(name, json!({}))).unwrap();
            if *archived {
                world.call("0s", person("mara"), None, ArchiveSession { session_id: name.clone(), reason: None }).unwrap();
            }
        }
        let (mut shown, mut cursor) = (Vec::new(), None);
        loop {
            let session_prefix = (!prefix.is_empty()).then(|| prefix.clone());
            let query = ListSessions { include_archived, limit, cursor: cursor.clone(), with_titles: false, session_prefix };
            let page = world.ask("1s", person("mara"), query).unwrap();
            prop_assert!(page.sessions.len() <= limit as usize);
            shown.extend(page.sessions);
            prop_assert!(page.next_cursor.is_none() || page.next_cursor != cursor);
            cursor = page.next_cursor;
            if cursor.is_none() { break }
        }
        let expected: Vec<&String> = names.iter().filter(|(name, (ttl_s, archived))| *ttl_s != 1 && (include_archived || !archived) && name.starts_with(&prefix)).map(|(name, _)| name).collect();
        prop_assert_eq!(shown.iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_list_stays_within_a_reply() {
    let mut world = World::new();
    for i in 0..60 {
        world.call("0s", person("mara"), None, save(&format!("{i:02}{}", "\"".repeat(500)), json!({}))).unwrap();
    }
    for with_titles in [false, true] {
        let (mut shown, mut cursor) = (0, None);
        loop {
            let query = ListSessions { include_archived: false, limit: LIST_MAX as u64, cursor, with_titles, session_prefix: None };
            let page = world.ask("0s", person("mara"), query).unwrap();
            assert_eq!(page.titles.len(), if with_titles { page.sessions.len() } else { 0 });
            let rows: Vec<_> = page
                .sessions
                .iter()
                .zip(&page.titles)
                .map(|(session_id, row)| {
                    json!({
                        "session_id": session_id, "title": row.title, "untitled": row.untitled, "archived": row.archived,
                        "updated_at": row.updated_at.to_rfc3339(),
                    })
                })
                .collect();
            let reply = json!({ "sessions": page.sessions, "rows": rows, "next_cursor": page.next_cursor });
            assert!(reply.to_string().len() <= REPLY_BYTES_DEFAULT);
            shown += page.sessions.len();
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(shown, 60);
    }
}

#[test]
fn a_session_without_a_title_is_called_by_what_its_state_says_first_and_is_marked() {
    let id = "build-42-with-a-long-name";
    for (state, wanted) in [
        (json!({ "title": " Release\nwork ", "decisions": ["d"] }), ("Release work", false)),
        (json!({ "title": "  ", "decisions": ["ship it", "later"], "note": "n" }), ("ship it", true)),
        (json!({ "title": null, "decisions": [{ "choice": 1 }], "note": "n" }), (r#"{"choice":1}"#, true)),
        (json!({ "decisions": [], "note": "n", "context_summary": "c" }), ("n", true)),
        (json!({ "decisions": "none", "context_summary": "c", "summary": "s" }), ("c", true)),
        (json!({ "note": "", "summary": "s" }), ("s", true)),
        (json!({}), ("build-42-wi…", true)),
    ] {
        assert_eq!(title(&state, id), (wanted.0.to_string(), wanted.1), "{state}");
    }
    let (long, _) = title(&json!({ "title": "ü".repeat(200) }), id);
    assert_eq!((long.chars().count(), long.ends_with('…')), (80, true));

    let mut world = World::new();
    world.call("0s", person("mara"), None, save("a", json!({ "title": "Named" }))).unwrap();
    world.call("0s", person("mara"), None, save("b", json!({ "note": "in words" }))).unwrap();
    let ask = ListSessions { include_archived: false, limit: 10, cursor: None, with_titles: true, session_prefix: None };
    let told = world.ask("1s", person("mara"), ask).unwrap().titles;
    let told: Vec<(&str, bool)> = told.iter().map(|row| (row.title.as_str(), row.untitled)).collect();
    assert_eq!(told, [("Named", false), ("in words", true)]);
}
