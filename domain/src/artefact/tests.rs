//! Transcripts of artefacts.

use std::fmt::Write;

use expect_test::{Expect, expect};

use super::*;
use crate::transcript::{Line, World, person};

fn id_of(word: &str) -> String {
    artefact_id(blake3::hash(word.as_bytes()).as_bytes())
}

/// Runs `time who verb word...` line by line; an artefact is called by its content.
fn check(script: &str, expected: Expect) {
    let (mut world, mut told) = (World::new(), String::new());
    for line in script.lines() {
        let line = Line::parse(line);
        let told_line = tell(&mut world, &line).unwrap_or_else(|refusal| format!("refused: {refusal} ({})", refusal.code()));
        writeln!(told, "{told_line}").unwrap();
    }
    for word in ["one", "two", "three"] {
        told = told.replace(&id_of(word), word);
    }
    expected.assert_eq(&told);
}

fn tell(world: &mut World, line: &Line) -> Result<String, Refusal> {
    let (time, who) = (line.time, person(line.who));
    Ok(match line.verb {
        "put" => {
            let command = PutArtefact {
                artefact_id: id_of(line.word(0)),
                size_bytes: line.option("size").map_or(line.word(0).len() as u64, |size| size.parse().unwrap()),
                mime_type: line.option("mime").unwrap_or("text/plain".into()),
                tool_origin: line.option("from"),
                ttl_seconds: line.option("ttl").map_or(604_800, |ttl| ttl.parse().unwrap()),
            };
            let put = world.call(time, who, None, command)?;
            format!("put {} as {}, {}", put.artefact_id, put.mime_type, if put.expires_at.is_some() { "for a while" } else { "for ever" })
        }
        "get" => {
            let found = world.ask(time, who, GetArtefact { artefact_id: id_of(line.word(0)) })?;
            format!("{} {} bytes by {}", found.mime_type, found.size_bytes, found.passport)
        }
        "list" => {
            let query = ListArtefacts {
                limit: line.option("top_k").map_or(20, |rows| rows.parse().unwrap()),
                scope: line.option("scope"),
                token_budget: line.option("budget").map(|tokens| tokens.parse().unwrap()),
                cursor: None,
            };
            let found = world.ask(time, who, query)?;
            let ids: Vec<&str> = found.artefacts.iter().map(|found| found.artefact_id.as_str()).collect();
            format!("listed: {}{}", ids.join(" "), found.truncated.map_or(String::new(), |why| format!(" ({why})")))
        }
        "tick" => {
            world.tick(time);
            "tick".into()
        }
        "named" => format!("named: {}", is_named(&world.state, blake3::hash(line.word(0).as_bytes()).as_bytes()).unwrap()),
        verb => panic!("`{verb}` is no verb"),
    })
}

#[test]
fn an_artefact_is_its_owners_until_it_runs_out() {
    check(
        "1s mara put one from=grep ttl=10
         2s mara put two mime=image/png ttl=0
         3s jon  put one mime=text/html
         4s mara list
         4s mara list scope=gre
         4s mara list top_k=1
         4s mara list budget=1
         4s jon  list
         4s mara get one
         4s jon  get one
         4s jon  get two
         4s eve  get one
         4s mara get three
         11s mara get one
         11s mara list
         12s mara tick
         12s mara named one
         13s mara put one mime=text/css
         14s mara list
         15s mara named three
         15s mara named two",
        expect![[r#"
            put one as text/plain, for a while
            put two as image/png, for ever
            put one as text/html, for a while
            listed: two one
            listed: one
            listed: two (top_k)
            refused: `token_budget` of 1 has no room for the next row, which needs 192 (-32602)
            listed: one
            text/plain 3 bytes by mara
            text/html 3 bytes by jon
            refused: artefact `two` belongs to another passport (CAPABILITY_DENIED)
            refused: there is no artefact `one` (NOT_FOUND)
            refused: there is no artefact `three` (NOT_FOUND)
            refused: artefact `one` belongs to another passport (CAPABILITY_DENIED)
            listed: two
            tick
            named: true
            put one as text/css, for a while
            listed: one two
            named: false
            named: true
        "#]],
    );
}

#[test]
fn a_blob_is_named_until_its_last_artefact_is_gone() {
    check(
        "1s mara put one ttl=10
         2s eve  put one ttl=20
         3s mara put one ttl=15
         12s mara tick
         12s mara get one
         17s mara tick
         17s mara named one
         23s mara tick
         23s mara named one",
        expect![[r#"
            put one as text/plain, for a while
            put one as text/plain, for a while
            put one as text/plain, for a while
            tick
            text/plain 3 bytes by mara
            tick
            named: true
            tick
            named: false
        "#]],
    );
}

#[test]
fn what_says_nothing_or_too_much_is_refused() {
    check(
        "1s mara put one size=0
         1s mara put one size=99999999
         1s mara put one ttl=7776001
         1s mara list top_k=0
         1s mara list budget=0",
        expect![[r#"
            refused: `content_bytes_base64` must not be empty (-32602)
            refused: `content_bytes_base64` is 99999999 bytes long, and the limit is 16777216 bytes (-32602)
            refused: `ttl_seconds` must be at most 7776000, or 0 for ever (-32602)
            refused: `top_k` must be 1 to 1000 (-32602)
            refused: `token_budget` must be at least 1 (-32602)
        "#]],
    );
}

#[test]
fn what_the_service_parks_for_itself_is_not_listed() {
    check(
        "1s mara put one mime=application/x-cuecrux-internal+json
         2s mara put two
         3s mara list
         3s mara get one",
        expect![[r#"
            put one as application/x-cuecrux-internal+json, for a while
            put two as text/plain, for a while
            listed: two
            application/x-cuecrux-internal+json 3 bytes by mara
        "#]],
    );
}
