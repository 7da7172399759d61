//! Transcripts and properties of facts.

mod forget;
mod memory;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::command::CommandKind;
use crate::event::Watched;
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES, SCAN_ROWS_MAX};
use crate::overlay::{Nothing, Overlay, Writes};
use crate::query::QueryKind;
use crate::stamp::LeaseTime;
use crate::transcript::{Line, WALL, World, ms, person};
use crate::tx::{Direction, Row};

/// A state machine and what its facts are called in transcripts.
struct Facts {
    world: World,
    now_ms: u64,
    calls: u64,
    ids: BTreeMap<String, String>,
}

impl Facts {
    fn new() -> Self {
        Self { world: World::new(), now_ms: 0, calls: 0, ids: BTreeMap::new() }
    }

    fn call<C: CommandKind>(&mut self, who: &str, command: C) -> Result<C::Output, Refusal> {
        self.calls += 1;
        self.world.call(&self.now_ms.to_string(), person(who), None, command)
    }

    fn store(&mut self, who: &str, fact: StoreFact) -> Result<FactStored, Refusal> {
        let stored = self.call(who, fact)?;
        self.ids.insert(format!("#{}", self.calls), stored.fact_id.clone());
        Ok(stored)
    }

    fn ask<Q: QueryKind>(&mut self, who: &str, query: Q) -> Result<Q::Output, Refusal> {
        self.world.ask(&self.now_ms.to_string(), person(who), query)
    }

    fn all(&self, tenant: &str) -> Vec<Fact> {
        self.world.state.page(tenant, &Key::new(), None, usize::MAX).unwrap().items
    }
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
        supersedes: BTreeSet::new(),
    }
}

fn everything() -> QueryFacts {
    QueryFacts {
        query: None,
        entity: None,
        entity_prefix: None,
        key: None,
        top_k: 10,
        token_budget: None,
        include_superseded: false,
        as_of: None,
        min_effective_confidence: None,
        cursor: None,
        hits: Default::default(),
        with_pointers: false,
        with_envelope: false,
    }
}

/// Runs `time who verb word... option=value...` line by line. `#3` is the fact that the third call stored, and `_` in a word
/// is a space.
fn check(script: &str, expected: Expect) {
    let mut facts = Facts::new();
    let mut told = String::new();
    let mut last: Option<QueryFacts> = None;
    for line in script.lines() {
        let line = Line::parse(line);
        facts.now_ms = ms(line.time);
        let (who, plain) = (line.who, &line.words);
        let option = |name: &str| line.option(name).map(|value| value.replace('_', " "));
        let known = facts.ids.clone();
        let resolve = |id: &str| known.get(id).cloned().unwrap_or(id.into());
        let class = |word: String| HorizonClass::ALL.into_iter().find(|class| class.word() == word).unwrap();
        let unit = |text: String| Confidence::from_unit(text.parse().unwrap()).unwrap();
        match line.verb {
            "store" => {
                let command = StoreFact {
                    private: plain.contains(&"private"),
                    confidence: option("confidence").map_or(Confidence::FULL, unit),
                    horizon_class: option("class").map(class),
                    freshness_horizon: option("horizon"),
                    supersedes: option("supersedes").iter().flat_map(|ids| ids.split(',')).map(resolve).collect(),
                    ..fact(plain[0], plain[1], &plain[2].replace('_', " "))
                };
                match facts.store(who, command) {
                    Ok(FactStored { entity, key, version, superseded_fact_ids, .. }) => {
                        let retired = if superseded_fact_ids.is_empty() {
                            String::new()
                        } else {
                            format!(", retired {}", superseded_fact_ids.join(" "))
                        };
                        writeln!(told, "#{} is {entity} {key} version {version}{retired}", facts.calls).unwrap();
                    }
                    Err(refusal) => writeln!(told, "refused: {refusal}").unwrap(),
                }
            }
            "delete" => match facts.call(who, DeleteFact { fact_id: resolve(plain[0]) }) {
                Ok(FactDeleted { deleted, fact_id }) => writeln!(told, "{fact_id} deleted: {deleted}").unwrap(),
                Err(refusal) => writeln!(told, "refused: {refusal}").unwrap(),
            },
            "reinstate" => {
                let fact_ids = plain[0].split(',').map(resolve).collect();
                match facts.call(who, ReinstateFacts { fact_ids }) {
                    Ok(FactsReinstated { facts }) => {
                        for ReinstatedFact { fact_id, was_superseded_by } in facts {
                            writeln!(told, "{fact_id} is back, was retired by {}", was_superseded_by.unwrap_or_default()).unwrap();
                        }
                    }
                    Err(refusal) => writeln!(told, "refused: {refusal}").unwrap(),
                }
            }
            "query" | "more" => {
                let query = match line.verb {
                    "more" => last.take().unwrap(),
                    _ => QueryFacts {
                        query: option("words"),
                        entity: line.option("entity"),
                        entity_prefix: line.option("prefix"),
                        key: option("key"),
                        top_k: option("top_k").map_or(10, |rows| rows.parse().unwrap()),
                        token_budget: option("budget").map(|tokens| tokens.parse().unwrap()),
                        include_superseded: plain.contains(&"superseded"),
                        as_of: line.ms("as_of").map(|ms| UnixMs(WALL + ms)),
                        min_effective_confidence: option("floor").map(unit),
                        cursor: line.option("cursor"),
                        hits: Default::default(),
                        with_pointers: false,
                        with_envelope: false,
                    },
                };
                match facts.ask(who, query.clone()) {
                    Ok(reply) => {
                        writeln!(told, "{}", if reply.rows.is_empty() { "no facts" } else { "facts:" }).unwrap();
                        for row in &reply.rows {
                            let by = row.superseded_by.as_ref().map_or(String::new(), |by| format!(", superseded by {by}"));
                            let FactRow { entity, key, value, version, effective_confidence, freshness, actor, .. } = row;
                            let (confidence, class) = (effective_confidence.to_unit(), row.horizon_class.word());
                            writeln!(
                                told,
                                "  {entity} {key} = {value} (version {version} by {actor}, {confidence}, {class}, {freshness}{by})"
                            )
                            .unwrap();
                        }
                        reply.filtered_below_threshold.inspect(|below| writeln!(told, "  under the floor: {below}").unwrap());
                        reply.truncated.inspect(|reason| writeln!(told, "  there are more: {reason}").unwrap());
                        last = Some(QueryFacts { cursor: reply.next_cursor, ..query });
                    }
                    Err(refusal) => writeln!(told, "refused: {refusal}").unwrap(),
                }
            }
            "history" => {
                let query = FactHistory { entity: plain[0].into(), key: plain[1].into(), limit: 100, cursor: None };
                let reply = facts.ask(who, query).unwrap();
                writeln!(told, "{}", if reply.versions.is_empty() { "no versions" } else { "versions:" }).unwrap();
                for FactVersion { value, version, supersedes, superseded_by, deleted, actor, .. } in reply.versions {
                    let from = supersedes.map_or(String::new(), |id| format!(", supersedes {id}"));
                    let to = superseded_by.map_or(String::new(), |id| format!(", superseded by {id}"));
                    let gone = if deleted { ", deleted" } else { "" };
                    writeln!(told, "  {version} = {value} by {actor}{from}{to}{gone}").unwrap();
                }
            }
            "entities" => {
                let query = ListEntities { entity_prefix: line.option("prefix"), limit: 100, cursor: None };
                let reply = facts.ask(who, query).unwrap();
                writeln!(told, "entities: {}", reply.entities.join(" ")).unwrap();
            }
            "events" => {
                let Watched::Events(events) = event::watch(&facts.world.state, &person(who).tenant, Revision(0), 100).unwrap() else {
                    panic!("compacted")
                };
                for event in events {
                    writeln!(told, "{} {} {} {}", event.revision, event.kind, event.id, event.about).unwrap();
                }
            }
            _ => panic!("no such verb: {}", line.verb),
        }
    }
    for (name, id) in &facts.ids {
        told = told.replace(id, name);
    }
    expected.assert_eq(&told);
}

#[test]
fn a_version_supersedes_the_one_before() {
    check(
        "0s mara store svc:api owner platform
         1s jon  store svc:api owner infra
         1s jon  query entity=svc:api
         1s jon  query entity=svc:api superseded
         1s jon  history svc:api owner",
        expect![[r#"
            #1 is svc:api owner version 1
            #2 is svc:api owner version 2, retired #1
            facts:
              svc:api owner = infra (version 2 by jon, 1, none, fresh)
            facts:
              svc:api owner = infra (version 2 by jon, 1, none, fresh)
              svc:api owner = platform (version 1 by mara, 1, none, fresh, superseded by #2)
            versions:
              1 = platform by mara, superseded by #2
              2 = infra by jon, supersedes #1
        "#]],
    );
}

#[test]
fn a_deleted_version_leaves_its_pair_without_an_active_one_and_its_number_is_not_used_again() {
    check(
        "0s mara store svc:api owner v1
         1s mara store svc:api owner v2
         2s jon  delete #2
         2s jon  delete #2
         2s jon  query
         2s jon  entities
         3s jon  store svc:api owner v3
         3s jon  delete #1
         3s jon  query superseded
         3s jon  history svc:api owner",
        expect![[r#"
            #1 is svc:api owner version 1
            #2 is svc:api owner version 2, retired #1
            #2 deleted: true
            #2 deleted: false
            no facts
            entities: 
            #5 is svc:api owner version 3
            #1 deleted: true
            facts:
              svc:api owner = v3 (version 3 by jon, 1, none, fresh)
            versions:
              1 = v1 by mara, superseded by #2, deleted
              2 = v2 by mara, supersedes #1, deleted
              3 = v3 by jon
        "#]],
    );
}

#[test]
fn a_write_retires_facts_of_other_entities_or_writes_nothing() {
    check(
        "0s mara store svc:api owner platform
         0s mara store svc:web owner platform
         0s mara store svc:old owner nobody
         0s jon  delete #3
         0s jon  store all owner infra supersedes=#1,#2
         0s jon  entities
         0s jon  store all owner infra supersedes=#1,#3,#5,f_00
         0s jon  query
         0s jon  store all owner ops supersedes=#5",
        expect![[r#"
            #1 is svc:api owner version 1
            #2 is svc:web owner version 1
            #3 is svc:old owner version 1
            #3 deleted: true
            #5 is all owner version 1, retired #2 #1
            entities: all
            refused: `supersedes` names facts that can't be retired: `f 00` (there is no such fact), `#3` (it is deleted), `#1` (it is already superseded by `#5`)
            facts:
              all owner = infra (version 1 by jon, 1, none, fresh)
            #7 is all owner version 2, retired #5
        "#]],
    );
}

#[test]
fn a_retirement_by_name_is_taken_back_and_the_fact_is_as_it_was() {
    check(
        "0s mara store svc:api owner platform confidence=0.9
         0s mara store svc:web owner platform confidence=0.8
         0s mara store notes plan secret private
         1s jon  store all owner infra supersedes=#1,#2
         2s jon  reinstate #1,#2
         2s jon  query
         2s jon  query as_of=1500ms
         2s jon  entities
         3s jon  store svc:api owner core",
        expect![[r#"
            #1 is svc:api owner version 1
            #2 is svc:web owner version 1
            #3 is __agent::mara::notes plan version 1
            #4 is all owner version 1, retired #2 #1
            #2 is back, was retired by #4
            #1 is back, was retired by #4
            facts:
              all owner = infra (version 1 by jon, 1, none, fresh)
              svc:api owner = platform (version 1 by mara, 0.9, none, fresh)
              svc:web owner = platform (version 1 by mara, 0.8, none, fresh)
            facts:
              all owner = infra (version 1 by jon, 1, none, fresh)
              svc:api owner = platform (version 1 by mara, 0.9, none, fresh)
              svc:web owner = platform (version 1 by mara, 0.8, none, fresh)
            entities: all svc:api svc:web
            #6 is svc:api owner version 2, retired #1
        "#]],
    );
}

#[test]
fn what_was_replaced_deleted_or_is_anothers_does_not_come_back_and_then_nothing_does() {
    check(
        "0s mara store svc:api owner one
         0s mara store svc:api owner two
         0s mara store svc:old owner gone
         0s mara store notes plan secret private
         0s mara store notes plan2 newer private supersedes=#4
         0s mara store svc:web owner free
         0s mara store all owner infra supersedes=#6
         0s mara delete #3
         0s jon  reinstate #1,#6
         0s jon  reinstate #3,#6
         0s jon  reinstate #4,#6
         0s jon  reinstate #6,#7
         0s jon  query entity=svc:web
         0s mara reinstate #4
         0s mara delete #2
         0s mara reinstate #1",
        expect![[r#"
            #1 is svc:api owner version 1
            #2 is svc:api owner version 2, retired #1
            #3 is svc:old owner version 1
            #4 is __agent::mara::notes plan version 1
            #5 is __agent::mara::notes plan2 version 1, retired #4
            #6 is svc:web owner version 1
            #7 is all owner version 1, retired #6
            #3 deleted: true
            refused: `fact_ids` names facts that can't come back: `#1` (its entity and key have version 2 since; store the value anew)
            refused: `fact_ids` names facts that can't come back: `#3` (it is deleted)
            refused: `fact_ids` names facts that can't come back: `#4` (there is no such fact)
            refused: `fact_ids` names facts that can't come back: `#7` (it is active)
            no facts
            #4 is back, was retired by #5
            #2 deleted: true
            refused: `fact_ids` names facts that can't come back: `#1` (its entity and key have version 2 since; store the value anew)
        "#]],
    );
}

#[test]
fn a_private_fact_is_its_authors_alone() {
    check(
        "0s mara store notes plan shared
         0s mara store notes plan secret private
         0s mara store __agent::mara::notes plan newer
         0s mara query entity=notes
         0s mara query entity=__agent::mara::notes
         0s mara query prefix=__agent::
         0s mara history notes plan
         0s mara history __agent::mara::notes plan
         0s mara entities
         0s mara entities prefix=__agent::
         0s jon  query
         0s jon  query entity=__agent::mara::notes superseded
         0s jon  query prefix=__agent::mara
         0s jon  history __agent::mara::notes plan
         0s jon  entities
         0s jon  delete #3
         0s jon  store notes other x supersedes=#3
         0s jon  store __agent::mara::notes plan mine
         0s jon  store __agent::mara::notes plan mine private
         0s mara store drafts plan x private supersedes=#1
         0s mara store public plan x supersedes=#3
         0s eve  query
         0s eve  delete #1
         0s mara delete #1
         0s mara events",
        expect![[r##"
            #1 is notes plan version 1
            #2 is __agent::mara::notes plan version 1
            #3 is __agent::mara::notes plan version 2, retired #2
            facts:
              __agent::mara::notes plan = newer (version 2 by mara, 1, none, fresh)
              notes plan = shared (version 1 by mara, 1, none, fresh)
            facts:
              __agent::mara::notes plan = newer (version 2 by mara, 1, none, fresh)
            facts:
              __agent::mara::notes plan = newer (version 2 by mara, 1, none, fresh)
            versions:
              1 = shared by mara
            versions:
              1 = secret by mara, superseded by #3
              2 = newer by mara, supersedes #2
            entities: notes
            entities: __agent::mara::notes
            facts:
              notes plan = shared (version 1 by mara, 1, none, fresh)
            no facts
            no facts
            no versions
            entities: notes
            refused: there is no fact `#3`
            refused: `supersedes` names facts that can't be retired: `#3` (there is no such fact)
            refused: entities under `__agent::` are private to the passport they name; yours begin with `__agent::jon::`
            refused: entities under `__agent::` are private to the passport they name; yours begin with `__agent::jon::`
            refused: `supersedes` names facts that can't be retired: `#1` (others see it, and a private fact can't replace it for them)
            #9 is public plan version 1, retired #3
            no facts
            refused: there is no fact `#1`
            #1 deleted: true
            1 fact.stored #1 {"entity":"notes","key":"plan","version":1,"actor":"mara","superseded_fact_ids":[]}
            2 fact.stored #2 {"private":true}
            3 fact.stored #3 {"private":true}
            9 fact.stored #9 {"entity":"public","key":"plan","version":1,"actor":"mara","superseded_fact_ids":[]}
            11 fact.deleted #1 {"entity":"notes","key":"plan","version":1,"actor":"mara"}
        "##]],
    );
}

#[test]
fn a_passport_that_looks_like_anothers_private_entity_reaches_nothing() {
    check(
        "0s a    store b::c plan secret private
         0s a::b query
         0s a::b query entity=__agent::a::b::c
         0s a::b history __agent::a::b::c plan
         0s a::b store __agent::a::b::c plan mine
         0s a    query",
        expect![[r#"
            #1 is __agent::a::b::c plan version 1
            no facts
            no facts
            no versions
            #2 is __agent::a::b::c plan version 1
            facts:
              __agent::a::b::c plan = secret (version 1 by a, 1, none, fresh)
        "#]],
    );
}

#[test]
fn the_service_alone_writes_under_its_prefixes() {
    check(
        "0s mara store __legal_hold__::x state off
         0s mara store __legal_hold__::x state off private
         0s mara store __ops::deploy state green
         0s mara history __ops::deploy state",
        expect![[r#"
            refused: entities under `__legal_hold__::` are written by the service alone
            refused: entities under `__legal_hold__::` are written by the service alone
            #3 is __ops::deploy state version 1
            versions:
              1 = green by mara
        "#]],
    );
}

#[test]
fn confidence_counts_half_past_the_horizon() {
    check(
        "0s  mara store a k old class=volatile
         0s  mara store b k sure confidence=0.6
         0s  mara store c k short horizon=24h
         0s  mara store d k long  class=stable horizon=24h confidence=0.4
         23h mara query
         25h mara query
         25h mara query floor=0.55
         25h mara query floor=0.9
         25h mara query top_k=2
         99d mara more",
        expect![[r#"
            #1 is a k version 1
            #2 is b k version 1
            #3 is c k version 1
            #4 is d k version 1
            facts:
              c k = short (version 1 by mara, 1, volatile, fresh)
              a k = old (version 1 by mara, 1, volatile, fresh)
              b k = sure (version 1 by mara, 0.6, none, fresh)
              d k = long (version 1 by mara, 0.4, stable, fresh)
            facts:
              b k = sure (version 1 by mara, 0.6, none, fresh)
              c k = short (version 1 by mara, 0.5, volatile, stale)
              a k = old (version 1 by mara, 0.5, volatile, stale)
              d k = long (version 1 by mara, 0.4, stable, fresh)
            facts:
              b k = sure (version 1 by mara, 0.6, none, fresh)
              under the floor: 3
            no facts
              under the floor: 4
            facts:
              b k = sure (version 1 by mara, 0.6, none, fresh)
              c k = short (version 1 by mara, 0.5, volatile, stale)
              there are more: top_k
            facts:
              a k = old (version 1 by mara, 0.5, volatile, stale)
              d k = long (version 1 by mara, 0.4, stable, fresh)
        "#]],
    );
}

#[test]
fn the_class_comes_from_the_prefix_unless_it_is_told() {
    check(
        "0s mara store __ops::a k 1
         0s mara store bench:a k 2
         0s mara store incident:a k 3
         0s mara store incident:a j 4 class=none
         0s mara query",
        expect![[r#"
            #1 is __ops::a k version 1
            #2 is bench:a k version 1
            #3 is incident:a k version 1
            #4 is incident:a j version 1
            facts:
              incident:a j = 4 (version 1 by mara, 1, none, fresh)
              incident:a k = 3 (version 1 by mara, 1, medium, fresh)
              bench:a k = 2 (version 1 by mara, 1, stable, fresh)
              __ops::a k = 1 (version 1 by mara, 1, volatile, fresh)
        "#]],
    );
}

#[test]
fn as_of_finds_what_was_valid_then() {
    check(
        "0s mara store a k v1
         2s mara store a k v2
         2s mara store a k v3
         4s mara delete #3
         9s mara query entity=a as_of=0s
         9s mara query entity=a as_of=1999ms
         9s mara query entity=a as_of=2s
         9s mara query entity=a as_of=3999ms superseded
         9s mara query entity=a as_of=4s
         9s mara query entity=a",
        expect![[r#"
            #1 is a k version 1
            #2 is a k version 2, retired #1
            #3 is a k version 3, retired #2
            #3 deleted: true
            facts:
              a k = v1 (version 1 by mara, 1, none, fresh)
            facts:
              a k = v1 (version 1 by mara, 1, none, fresh)
            facts:
              a k = v3 (version 3 by mara, 1, none, fresh)
            facts:
              a k = v3 (version 3 by mara, 1, none, fresh)
            no facts
            no facts
        "#]],
    );
}

#[test]
fn words_match_any_of_value_key_and_entity_in_any_case() {
    check(
        "0s mara store svc:api owner Größe_42
         0s mara store svc:web Colour RED
         0s mara store svc:db  port 5432
         0s mara query words=GRÖSSE
         0s mara query words=größe
         0s mara query words=red_PORT
         0s mara query words=SVC: key=port
         0s mara query prefix=svc: words=_
         0s mara query prefix=svc:w
         0s mara query entity=svc:",
        expect![[r#"
            #1 is svc:api owner version 1
            #2 is svc:web Colour version 1
            #3 is svc:db port version 1
            no facts
            facts:
              svc:api owner = Größe 42 (version 1 by mara, 1, none, fresh)
            facts:
              svc:db port = 5432 (version 1 by mara, 1, none, fresh)
              svc:web Colour = RED (version 1 by mara, 1, none, fresh)
            facts:
              svc:db port = 5432 (version 1 by mara, 1, none, fresh)
            facts:
              svc:db port = 5432 (version 1 by mara, 1, none, fresh)
              svc:web Colour = RED (version 1 by mara, 1, none, fresh)
              svc:api owner = Größe 42 (version 1 by mara, 1, none, fresh)
            facts:
              svc:web Colour = RED (version 1 by mara, 1, none, fresh)
            no facts
        "#]],
    );
}

#[test]
fn a_page_says_why_it_ends_and_goes_on_in_the_same_order() {
    check(
        "0s mara store a k1 x confidence=0.9
         1s mara store a k2 x confidence=0.8
         2s mara store a k3 x confidence=0.8
         3s mara query top_k=2
         3s mara store a k4 x confidence=0.95
         3s mara more
         3s mara query budget=20
         3s mara query budget=150
         3s mara query top_k=0
         3s mara query cursor=00
         3s mara query cursor=xyz",
        expect![[r#"
            #1 is a k1 version 1
            #2 is a k2 version 1
            #3 is a k3 version 1
            facts:
              a k1 = x (version 1 by mara, 0.9, none, fresh)
              a k3 = x (version 1 by mara, 0.8, none, fresh)
              there are more: top_k
            #4 is a k4 version 1
            facts:
              a k2 = x (version 1 by mara, 0.8, none, fresh)
            refused: `token_budget` of 20 has no room for the next row, which needs 145
            facts:
              a k4 = x (version 1 by mara, 0.95, none, fresh)
              there are more: token_budget
            refused: `top_k` must be at least 1
            refused: `cursor` is not one of this list with these filters; use `next_cursor` as it was given, or none
            refused: `cursor` is not one of this list with these filters; use `next_cursor` as it was given, or none
        "#]],
    );
}

#[test]
fn a_walk_over_many_confidences_stops_at_its_limit_and_goes_on() {
    let mut facts = Facts::new();
    for i in 0..100 {
        let confidence = Confidence(1_000_000 - i);
        facts
            .store("mara", StoreFact { horizon_class: Some(HorizonClass::Volatile), confidence, ..fact("a", &format!("k{i}"), "x") })
            .unwrap();
    }
    for now_ms in [0, 9 * 24 * 3_600_000] {
        facts.now_ms = now_ms;
        let mut query = QueryFacts { query: Some("nowhere".into()), ..everything() };
        let mut pages = 0;
        loop {
            let reply = facts.ask("mara", query.clone()).unwrap();
            assert!(reply.rows.is_empty());
            pages += 1;
            let Some(cursor) = reply.next_cursor else { break };
            assert_eq!(reply.truncated.as_deref(), Some("scan_limit"));
            assert_ne!(Some(&cursor), query.cursor.as_ref());
            query.cursor = Some(cursor);
        }
        assert!((3..=6).contains(&pages), "{pages} pages");
    }
}

#[test]
fn a_cursor_serves_its_caller_and_its_filters_alone() {
    let mut facts = Facts::new();
    for i in 0..3 {
        facts.store("mara", fact("a", &format!("k{i}"), "x")).unwrap();
    }
    let query = QueryFacts { top_k: 1, ..everything() };
    let cursor = facts.ask("mara", query.clone()).unwrap().next_cursor;
    assert!(facts.ask("mara", QueryFacts { cursor: cursor.clone(), ..query.clone() }).is_ok());
    let others = [("jon", query.clone()), ("eve", query.clone()), ("mara", QueryFacts { entity: Some("a".into()), ..query })];
    for (who, query) in others {
        let refusal = facts.ask(who, QueryFacts { cursor: cursor.clone(), ..query }).unwrap_err();
        assert!(matches!(refusal, Refusal::Invalid { ref field, .. } if field == "cursor"), "{refusal}");
    }
}

#[test]
fn limits_are_told_with_both_numbers_and_names_are_checked() {
    let mut facts = Facts::new();
    let cases = [
        fact("a", "k", &"x".repeat(FACT_VALUE_BYTES_MAX + 1)),
        fact("a", "k", &"\0".repeat(5_000)),
        fact(&"e".repeat(513), "k", ""),
        fact(" ", "k", ""),
        fact("a\0", "k", ""),
        fact("a", "k\n", ""),
        fact("__agent::mara::", "k", ""),
        StoreFact { confidence: Confidence(1_000_001), ..fact("a", "k", "") },
        StoreFact { supersedes: (0..101).map(|i| i.to_string()).collect(), ..fact("a", "k", "") },
        StoreFact { freshness_horizon: Some("a while".into()), ..fact("a", "k", "") },
        fact("a", "k", &"x".repeat(FACT_VALUE_BYTES_MAX)),
        fact("a", "empty", ""),
    ];
    let told: String = cases
        .map(|case| match facts.store("mara", case) {
            Ok(stored) => format!("version {}\n", stored.version),
            Err(refusal) => format!("{refusal}\n"),
        })
        .concat();
    expect![[r#"
        `value` is 16385 bytes long, and the limit is 16384 bytes
        `value` is 30002 bytes of JSON long, and the limit is 24576 bytes of JSON
        `entity` is 513 bytes long, and the limit is 512 bytes
        `entity` must not be empty
        `entity` must not hold control characters
        `key` must not hold control characters
        `entity` must not be empty
        `confidence` must be from 0 to 1
        `supersedes` is 101 ids long, and the limit is 100 ids
        `freshness_horizon` can't be read from `a while`; say for example `24h`, `7 days`, `6 months`, `stable`, `volatile` or `never`, or use `horizon_class`
        version 1
        version 1
    "#]].assert_eq(&told);
}

#[test]
fn a_value_comes_back_as_it_was_sent() {
    let value = "emoji 👩🏽‍🚀 CRLF\r\n tab\t NUL\0 combining e\u{301} RTL \u{202e} quote \" backslash \\ line\u{2028} end ";
    let value = value.to_string() + &"y".repeat(FACT_VALUE_BYTES_MAX - value.len());
    let mut facts = Facts::new();
    facts.store("mara", fact("a", "k", &value)).unwrap();
    facts.store("mara", fact("a", "j", &value)).unwrap();
    let reply = facts.ask("mara", everything()).unwrap();
    assert_eq!(reply.rows.iter().map(|row| &row.value).collect::<Vec<_>>(), [&value], "one large row is a reply of its own");
    assert_eq!(reply.truncated.as_deref(), Some("reply_bytes"));
    let history = FactHistory { entity: "a".into(), key: "k".into(), limit: 10, cursor: None };
    let versions = facts.ask("mara", history).unwrap().versions;
    assert_eq!(versions[0].value, value);
}

#[test]
fn free_text_about_freshness_is_read_or_refused() {
    let texts = [
        "24h",
        "1 hour",
        "48 hours",
        "1.5 days",
        "2 days",
        "3 days",
        "7 days",
        "every 2 weeks",
        "about a month",
        "6 months",
        "1 year",
        "stable",
        "Stable for years",
        "volatile",
        "never",
        "hourly",
        "changes every few hours",
        "3-5 days",
        "999999999999999999999 days",
        "",
        "soon",
        "not stable",
        "unstable",
        "stable or volatile",
        "24",
        "7 stable",
        "h24",
        "١ day",
    ];
    let told: String = texts
        .map(|text| match HorizonClass::parse(text) {
            Ok(class) => format!("{text}: {}\n", class.word()),
            Err(_) => format!("{text}: refused\n"),
        })
        .concat();
    expect![[r#"
        24h: volatile
        1 hour: volatile
        48 hours: volatile
        1.5 days: volatile
        2 days: volatile
        3 days: medium
        7 days: medium
        every 2 weeks: medium
        about a month: medium
        6 months: medium
        1 year: stable
        stable: stable
        Stable for years: stable
        volatile: volatile
        never: none
        hourly: volatile
        changes every few hours: volatile
        3-5 days: medium
        999999999999999999999 days: stable
        : refused
        soon: refused
        not stable: refused
        unstable: refused
        stable or volatile: refused
        24: refused
        7 stable: refused
        h24: refused
        ١ day: volatile
    "#]]
    .assert_eq(&told);
    let refusal = HorizonClass::parse("soon").unwrap_err().to_string();
    expect!["`freshness_horizon` can't be read from `soon`; say for example `24h`, `7 days`, `6 months`, `stable`, `volatile` or `never`, or use `horizon_class`"].assert_eq(&refusal);
}

#[test]
fn a_stored_fact_has_this_form() {
    let mut facts = Facts::new();
    facts.store("mara", StoreFact { private: true, confidence: Confidence(500_000), ..fact("a", "k", "v") }).unwrap();
    let rows: String = [Table::Records, Table::Index]
        .into_iter()
        .flat_map(|table| facts.world.state.scan_bytes(table, &[], &[0xFF], Direction::Ascending, 100).unwrap())
        .map(|(key, value)| format!("{}\n  {}\n", key.escape_ascii(), value.escape_ascii()))
        .collect();
    expect![[r#"
        acme\x00\x01\x01mara\x00\x01a\x00\x01k\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01
          \xb1ftenantdacmeeownerdmarafentityaackeyakgversion\x01gfact_idx\"f_b36adcc5c04f6e2937e1eb11e6c6507aevalueavjconfidence\x1a\x00\x07\xa1 mhorizon_classdnonensource_receipt\xf6eactordmaraistored_at\x1b\x00\x00\x01\xba`\xd38\x00hrevision\x01jsupersedes\xf6msuperseded_by\xf6hvalid_to\xf6jdeleted_at\xf6
        acme\x00\x01\x02mara\x00\x01a\x00\x01k\x00\x01
          \xa6ftenantdacmeeownerdmarafentityaackeyakllast_version\x01factive\x01
        \x00\x01\xaa\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00
          acme\x00\x01\x01mara\x00\x01a\x00\x01k\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01
        acme\x00\x01df_b36adcc5c04f6e2937e1eb11e6c6507a\x00\x01
          mara\x00\x01a\x00\x01k\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01
        acme\x00\x01e\x00mara\x00\x01\x00\x04\xff\xf8^\xdf\xff\xff\xfeE\x9f,\xc7\xff\xff\xff\xff\xff\xff\xff\xff\xfe\x8e\xd2\x1f\xbc\xe3\x8a\ra\xe5o\x15\xe6\xed\xc8\xda\x80
          mara\x00\x01a\x00\x01k\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01
        acme\x00\x01e\x01mara\x00\x01a\x00\x01\x00\x04\xff\xf8^\xdf\xff\xff\xfeE\x9f,\xc7\xff\xff\xff\xff\xff\xff\xff\xff\xfe\x8e\xd2\x1f\xbc\xe3\x8a\ra\xe5o\x15\xe6\xed\xc8\xda\x80
          mara\x00\x01a\x00\x01k\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01
        acme\x00\x01fmara\x00\x01a\x00\x01
          \xa4ftenantdacmeeownerdmarafentityaafactive\x01
    "#]].assert_eq(&rows);
}

/// Counts the reads that reach it.
struct Counting<'a> {
    below: &'a Overlay<'static, Nothing>,
    gets: Cell<usize>,
    scans: Cell<usize>,
}

impl Read for Counting<'_> {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.gets.set(self.gets.get() + 1);
        self.below.get_bytes(table, key)
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        self.scans.set(self.scans.get() + 1);
        self.below.scan_bytes(table, from, to, direction, limit)
    }
}

#[test]
fn a_store_and_a_look_at_one_pair_read_a_few_rows_however_many_there_are() {
    let mut facts = Facts::new();
    for i in 0..200 {
        facts.store("mara", fact("a", &format!("k{}", i % 50), "x")).unwrap();
    }
    let counted = |reads: &dyn Fn(&Counting)| {
        let counting = Counting { below: &facts.world.state, gets: Cell::new(0), scans: Cell::new(0) };
        reads(&counting);
        format!("{} gets, {} scans", counting.gets.get(), counting.scans.get())
    };
    let at = Stamp::plain(Revision(1_000), LeaseTime(0), UnixMs(WALL), person("mara"));
    let store = |key: &str| counted(&|view| drop(fact("a", key, "y").apply(&mut Overlay::new(view), &at).unwrap().unwrap()));
    let reader = at.reading();
    let query = |query: QueryFacts| counted(&|view| drop(query.clone().run(view, &reader).unwrap().unwrap()));
    let told = [
        ("a new key", store("new")),
        ("a new version", store("k1")),
        ("one pair", query(QueryFacts { entity: Some("a".into()), key: Some("k1".into()), ..everything() })),
        ("the top ten", query(everything())),
    ];
    let told: String = told.iter().map(|(what, reads)| format!("{what}: {reads}\n")).collect();
    expect![[r#"
        a new key: 3 gets, 0 scans
        a new version: 3 gets, 0 scans
        one pair: 4 gets, 0 scans
        the top ten: 11 gets, 14 scans
    "#]]
    .assert_eq(&told);
}

// ------------------------------------------------------------------ properties

const WHO: [&str; 3] = ["mara", "jon", "eve"];
const CONFIDENCES: [u32; 8] = [0, 1, 250_001, 499_999, 500_000, 500_001, 999_999, 1_000_000];

#[derive(Clone, Debug)]
enum Act {
    Store { who: usize, entity: usize, key: usize, private: bool, confidence: usize, class: usize, supersedes: Vec<usize> },
    Delete { who: usize, fact: usize },
    Edit { who: usize, fact: usize },
    Pin { who: usize, fact: usize, pinned: bool },
    Horizon { who: usize, fact: usize, class: usize },
    Reverify { who: usize, fact: usize },
    Consolidate { who: usize, entity: usize, key: usize, facts: Vec<usize> },
    Reinstate { who: usize, facts: Vec<usize> },
    Decide { who: usize },
    Wait { ms: u64 },
}

fn acts(most: usize) -> impl Strategy<Value = Vec<Act>> {
    let store =
        (0..WHO.len(), 0..4usize, 0..3usize, any::<bool>(), 0..CONFIDENCES.len(), 0..4usize, prop::collection::vec(0..60usize, 0..3))
            .prop_map(|(who, entity, key, private, confidence, class, supersedes)| Act::Store {
                who,
                entity,
                key,
                private,
                confidence,
                class,
                supersedes,
            });
    let delete = (0..WHO.len(), 0..60usize).prop_map(|(who, fact)| Act::Delete { who, fact });
    let one = || (0..WHO.len(), 0..60usize);
    let edit = one().prop_map(|(who, fact)| Act::Edit { who, fact });
    let pin = (one(), any::<bool>()).prop_map(|((who, fact), pinned)| Act::Pin { who, fact, pinned });
    let horizon = (one(), 0..4usize).prop_map(|((who, fact), class)| Act::Horizon { who, fact, class });
    let reverify = one().prop_map(|(who, fact)| Act::Reverify { who, fact });
    let consolidate = (0..WHO.len(), 0..4usize, 0..3usize, prop::collection::vec(0..60usize, 1..3))
        .prop_map(|(who, entity, key, facts)| Act::Consolidate { who, entity, key, facts });
    let reinstate = (0..WHO.len(), prop::collection::vec(0..60usize, 1..3)).prop_map(|(who, facts)| Act::Reinstate { who, facts });
    let decide = (0..WHO.len()).prop_map(|who| Act::Decide { who });
    let memory = prop_oneof![3 => edit, 1 => pin, 1 => horizon, 1 => reverify, 2 => consolidate, 2 => reinstate, 1 => decide];
    let wait = prop_oneof![Just(1), Just(3_600_000), Just(20 * 86_400_000)].prop_map(|ms| Act::Wait { ms });
    prop::collection::vec(prop_oneof![6 => store, 2 => delete, 3 => memory, 1 => wait], 1..most)
}

const ENTITIES: [&str; 4] = ["svc:api", "svc:web", "svc", "notes"];

fn act(facts: &mut Facts, ids: &mut Vec<String>, act: &Act) {
    let id = |n: &usize| ids.get(*n).cloned();
    match act {
        Act::Store { who, entity, key, private, confidence, class, supersedes } => {
            let command = StoreFact {
                private: *private,
                confidence: Confidence(CONFIDENCES[*confidence]),
                horizon_class: Some(HorizonClass::ALL[*class]),
                supersedes: supersedes.iter().filter_map(id).collect(),
                ..fact(ENTITIES[*entity], &format!("k{key}"), &format!("value {}", facts.calls))
            };
            if let Ok(stored) = facts.store(WHO[*who], command) {
                ids.push(stored.fact_id);
            }
        }
        Act::Delete { who, fact } => {
            if let Some(fact_id) = id(fact) {
                let _ = facts.call(WHO[*who], DeleteFact { fact_id });
            }
        }
        Act::Edit { who, fact } => {
            let Some(fact_id) = id(fact) else { return };
            if let Ok(edited) = facts.call(WHO[*who], EditFact { fact_id, new_value: "edited".into(), reason: None }) {
                ids.push(edited.new_fact.id);
            }
        }
        Act::Pin { who, fact, pinned } => {
            if let Some(fact_id) = id(fact) {
                let _ = facts.call(WHO[*who], PinFact { fact_id, pinned: *pinned });
            }
        }
        Act::Horizon { who, fact, class } => {
            if let Some(fact_id) = id(fact) {
                let _ = facts.call(WHO[*who], SetHorizon { fact_id, horizon_class: HorizonClass::ALL[*class] });
            }
        }
        Act::Reverify { who, fact } => {
            if let Some(fact_id) = id(fact) {
                let _ = facts.call(WHO[*who], ReverifyFact { fact_id });
            }
        }
        Act::Consolidate { who, entity, key, facts: named } => {
            let before = facts.all(&person(WHO[*who]).tenant);
            let named: BTreeSet<String> = named.iter().filter_map(id).collect();
            let command = ConsolidateFacts {
                entity: ENTITIES[*entity].into(),
                key: format!("k{key}"),
                canonical_value: "canonical".into(),
                target_fact_ids: named.clone(),
                protected_fact_ids: BTreeSet::new(),
                confidence: Confidence(500_000),
                protected_confidence_floor: Confidence::FULL,
                consolidation_id: None,
                horizon_class: None,
            };
            match facts.call(WHO[*who], command) {
                Ok(done) => {
                    assert_eq!(done.superseded_fact_ids.iter().cloned().collect::<BTreeSet<_>>(), named, "it retires what it names");
                    ids.push(done.canonical_fact_id);
                }
                Err(_) => assert_eq!(facts.all(&person(WHO[*who]).tenant), before, "a refusal leaves nothing"),
            }
        }
        Act::Reinstate { who, facts: named } => {
            let before = facts.all(&person(WHO[*who]).tenant);
            let fact_ids: BTreeSet<String> = named.iter().filter_map(id).collect();
            match facts.call(WHO[*who], ReinstateFacts { fact_ids: fact_ids.clone() }) {
                Ok(done) => assert_eq!(done.facts.into_iter().map(|fact| fact.fact_id).collect::<BTreeSet<_>>(), fact_ids),
                Err(_) => assert_eq!(facts.all(&person(WHO[*who]).tenant), before, "a refusal leaves nothing"),
            }
        }
        Act::Decide { who } => {
            let decision = crate::decision::RecordDecision {
                action: "a".into(),
                rationale: "r".into(),
                alternatives: Vec::new(),
                confidence: Confidence::FULL,
                session_id: "s".into(),
                context_refs: Vec::new(),
            };
            ids.push(facts.call(WHO[*who], decision).expect("a decision is kept").fact_id);
        }
        Act::Wait { ms } => facts.now_ms += ms,
    }
}

fn run(acts: &[Act]) -> Facts {
    let mut facts = Facts::new();
    let mut ids = Vec::new();
    acts.iter().for_each(|one| act(&mut facts, &mut ids, one));
    facts
}

/// The bytes of a state.
fn alive(state: Overlay<Nothing>) -> Writes {
    state.into_writes().into_iter().filter(|(_, value)| value.is_some()).collect()
}

/// What a query has to answer, by looking at every fact there is.
fn by_hand(facts: &Facts, who: &str, query: &QueryFacts) -> (Vec<String>, u64) {
    let caller = person(who);
    let mut found: Vec<(u32, Fact)> = Vec::new();
    for fact in facts.all(&caller.tenant) {
        let is_in_state = match (query.as_of, fact.state()) {
            (_, State::Forgotten) => false,
            (Some(instant), _) => fact.stored_at <= instant && fact.valid_to.is_none_or(|end| end > instant),
            (None, State::Active) => true,
            (None, State::Superseded) => query.include_superseded,
            (None, State::Deleted) => false,
        };
        let is_visible = fact.owner.is_empty() || fact.owner == caller.passport;
        let has_word =
            query.query.as_ref().is_none_or(|word| [&fact.value, &fact.key, &fact.entity].iter().any(|text| text.contains(word)));
        let has_entity = query.entity.as_ref().is_none_or(|entity| *entity == fact.entity);
        let has_prefix = query.entity_prefix.as_ref().is_none_or(|prefix| fact.entity.starts_with(prefix));
        let has_key = query.key.as_ref().is_none_or(|key| *key == fact.key);
        if is_in_state && is_visible && has_word && has_entity && has_prefix && has_key {
            let horizon_ms = [86_400_000, 35 * 86_400_000, 365 * 86_400_000, u64::MAX][fact.horizon_class.code() as usize - 1];
            let is_fresh = WALL + facts.now_ms - fact.anchor().0 <= horizon_ms;
            found.push((fact.confidence.0 * if is_fresh { 2 } else { 1 }, fact));
        }
    }
    let floor = query.min_effective_confidence.map_or(0, |floor| floor.0 * 2);
    let below = found.iter().filter(|(strength, _)| *strength < floor).count() as u64;
    found.retain(|(strength, _)| *strength >= floor);
    found.sort_by_key(|(strength, fact)| std::cmp::Reverse((*strength, fact.anchor(), fact.revision)));
    (found.into_iter().map(|(_, fact)| fact.fact_id).collect(), below)
}

fn queries() -> impl Strategy<Value = QueryFacts> {
    let name = prop::option::of((0..ENTITIES.len()).prop_map(|i| ENTITIES[i].to_string()));
    let prefix =
        prop::option::of(prop_oneof![Just("svc".to_string()), Just("svc:".to_string()), Just("n".to_string()), Just(String::new())]);
    let key = prop::option::weighted(0.3, (0..3usize).prop_map(|key| format!("k{key}")));
    let word = prop::option::weighted(0.3, (0..10usize).prop_map(|digit| digit.to_string()));
    let as_of = prop::option::weighted(0.3, (0..60u64 * 86_400_000).prop_map(|ms| UnixMs(WALL + ms)));
    let floor = prop::option::weighted(0.3, (0..CONFIDENCES.len()).prop_map(|i| Confidence(CONFIDENCES[i])));
    // From where every row fits: a budget below the next row is refused, and has a test of its own.
    let budget = prop::option::weighted(0.3, 300..800u64);
    (name, prefix, key, word, as_of, floor, any::<bool>(), 1..8u64, budget).prop_map(
        |(entity, entity_prefix, key, query, as_of, min_effective_confidence, include_superseded, top_k, token_budget)| QueryFacts {
            query,
            entity,
            entity_prefix,
            key,
            top_k,
            token_budget,
            include_superseded,
            as_of,
            min_effective_confidence,
            cursor: None,
            hits: Default::default(),
            with_pointers: false,
            with_envelope: false,
        },
    )
}

/// The row as the gateway shows it.
fn as_json(row: &FactRow) -> serde_json::Value {
    let mut json = json!({
        "fact_id": row.fact_id, "entity": row.entity, "key": row.key, "value": row.value, "version": row.version,
        "confidence": row.confidence.to_unit(), "effective_confidence": row.effective_confidence.to_unit(),
        "horizon_class": row.horizon_class, "freshness": row.freshness, "age_hours": row.age_ms as f64 / 3_600_000.0,
        "stored_at": row.stored_at.to_rfc3339(), "actor": row.actor,
    });
    if let Some(by) = &row.superseded_by {
        json["superseded_by"] = json!(by);
    }
    json
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pages_show_each_visible_match_once_in_order(acts in acts(120), query in queries(), who in 0..WHO.len()) {
        let mut facts = run(&acts);
        let (expected, expected_below) = by_hand(&facts, WHO[who], &query);
        let (mut shown, mut below, mut pages) = (Vec::new(), 0, 0);
        let mut page = query.clone();
        loop {
            let reply = facts.ask(WHO[who], page.clone()).unwrap();
            prop_assert_eq!(reply.next_cursor.is_some(), reply.truncated.is_some());
            prop_assert_eq!(reply.filtered_below_threshold.is_some(), query.min_effective_confidence.is_some());
            prop_assert!(reply.rows.len() as u64 <= query.top_k);
            let json = json!({
                "rows": reply.rows.iter().map(as_json).collect::<Vec<_>>(), "next_cursor": reply.next_cursor,
                "truncated": reply.truncated, "filtered_below_threshold": reply.filtered_below_threshold,
            });
            let most = query.token_budget.map_or(REPLY_BYTES_DEFAULT, |tokens| 4 * tokens as usize);
            prop_assert!(json.to_string().len() <= most, "{} bytes of {}", json.to_string().len(), most);
            below += reply.filtered_below_threshold.unwrap_or(0);
            shown.extend(reply.rows.into_iter().map(|row| row.fact_id));
            pages += 1;
            prop_assert!(pages < 1_000, "the pages do not end");
            match reply.next_cursor {
                Some(cursor) => {
                    prop_assert_ne!(Some(&cursor), page.cursor.as_ref());
                    page.cursor = Some(cursor);
                }
                None => break,
            }
        }
        prop_assert_eq!(shown, expected);
        prop_assert_eq!(below, expected_below);
    }

    #[test]
    fn a_pair_has_one_active_version_at_most_and_every_index_says_the_same(acts in acts(120)) {
        let facts = run(&acts);
        for tenant in ["acme", "other"] {
            let mut pairs: BTreeMap<Key, Vec<Fact>> = BTreeMap::new();
            let (mut index, mut counts) = (Writes::new(), BTreeMap::new());
            for fact in facts.all(tenant) {
                for key in rank::keys(&fact).into_iter().chain([by_id(tenant, &fact.fact_id)]) {
                    index.insert((Table::Index, key.into_bytes()), Some(fact.id().into_bytes()));
                }
                if fact.state() == State::Active {
                    *counts.entry((fact.owner.clone(), fact.entity.clone())).or_insert(0) += 1;
                }
                pairs.entry(pair_id(&fact.owner, &fact.entity, &fact.key)).or_default().push(fact);
            }
            for (id, versions) in &pairs {
                let head: Head = facts.world.state.get(tenant, id).unwrap().unwrap();
                let numbers: Vec<u64> = versions.iter().map(|fact| fact.version).collect();
                prop_assert_eq!(numbers, (1..=head.last_version).collect::<Vec<_>>());
                let active: Vec<u64> = versions.iter().filter(|fact| fact.state() == State::Active).map(|fact| fact.version).collect();
                prop_assert_eq!(&active, &head.active.into_iter().collect::<Vec<_>>());
                for (before, after) in versions.iter().zip(&versions[1..]) {
                    prop_assert!(before.valid_to.is_some_and(|end| end <= after.stored_at), "validities meet or overlap");
                }
                prop_assert!(versions.iter().all(|fact| fact.valid_to.is_none_or(|end| end >= fact.stored_at)));
            }
            for ((owner, entity), active) in &counts {
                let row: Option<entities::Entity> = facts.world.state.get(tenant, &Key::new().text(owner).text(entity)).unwrap();
                prop_assert_eq!(row.map(|row| row.active()), Some(*active));
            }
            let of_tenant = Key::new().text(tenant);
            let stored = facts.world.state.scan_bytes(Table::Index, of_tenant.as_bytes(), &of_tenant.after_prefix(), Direction::Ascending, usize::MAX).unwrap();
            let receipts = kind_prefix(tenant, Kind::ReceiptById);
            let receipts = facts.world.state.scan_bytes(Table::Index, receipts.as_bytes(), &receipts.after_prefix(), Direction::Ascending, usize::MAX).unwrap();
            prop_assert_eq!(stored.len(), index.len() + counts.len() + receipts.len());
            for row in stored {
                let expected = index.get(&(Table::Index, row.0.clone()));
                prop_assert!(expected.is_none_or(|expected| *expected == Some(row.1)));
            }
        }
    }

    #[test]
    fn a_restart_anywhere_leaves_the_same_bytes(acts in acts(60), restart in 0..60usize) {
        let plain = run(&acts);
        let mut facts = Facts::new();
        let mut ids = Vec::new();
        for (i, one) in acts.iter().enumerate() {
            if i == restart {
                // What a restart keeps is bytes: everything else is rebuilt from them.
                let state = std::mem::replace(&mut facts.world.state, Overlay::new(&Nothing));
                facts.world.state = Overlay::with_writes(&Nothing, alive(state));
            }
            act(&mut facts, &mut ids, one);
        }
        prop_assert_eq!(alive(plain.world.state), alive(facts.world.state));
    }

    #[test]
    fn histories_and_entities_page_through_all_that_is_visible(acts in acts(120), limit in 1..5u64, who in 0..WHO.len()) {
        let mut facts = run(&acts);
        let caller = person(WHO[who]);
        let stored = facts.all(&caller.tenant);
        let visible: Vec<&Fact> = stored.iter().filter(|fact| fact.owner.is_empty() || fact.owner == caller.passport).collect();

        let (mut names, mut cursor) = (Vec::new(), None);
        loop {
            let reply = facts.ask(WHO[who], ListEntities { entity_prefix: None, limit, cursor }).unwrap();
            names.extend(reply.entities);
            cursor = reply.next_cursor;
            if cursor.is_none() { break }
        }
        let expected: BTreeSet<&String> = visible.iter().filter(|fact| fact.state() == State::Active).map(|fact| &fact.entity).collect();
        prop_assert_eq!(names.iter().collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>());

        for entity in ENTITIES {
            for filed in [entity.to_string(), filed_name(&caller.passport, entity)] {
                let (mut versions, mut cursor) = (Vec::new(), None);
                loop {
                    let reply = facts.ask(WHO[who], FactHistory { entity: filed.clone(), key: "k0".into(), limit, cursor }).unwrap();
                    versions.extend(reply.versions.into_iter().map(|version| version.fact_id));
                    cursor = reply.next_cursor;
                    if cursor.is_none() { break }
                }
                let of = |owner: &str| -> Vec<String> {
                    visible.iter().filter(|fact| fact.owner == owner && fact.entity == entity && fact.key == "k0").map(|fact| fact.fact_id.clone()).collect()
                };
                let tenants = of(EVERYONE);
                let expected = if filed == entity && !tenants.is_empty() { tenants } else { of(&caller.passport) };
                prop_assert_eq!(versions, expected);
            }
        }
    }

    #[test]
    fn a_damaged_cursor_is_refused(at in 0..200usize, byte in any::<u8>(), text in ".{0,60}") {
        let mut facts = Facts::new();
        for i in 0..3 {
            facts.store("mara", fact("a", &format!("k{i}"), "x")).unwrap();
        }
        let query = QueryFacts { top_k: 1, ..everything() };
        let cursor = facts.ask("mara", query.clone()).unwrap().next_cursor.unwrap();
        let mut damaged = hex::decode(&cursor).unwrap();
        let at = at % damaged.len();
        damaged[at] ^= byte;
        for cursor in [hex::encode(&damaged), text] {
            let answer = facts.ask("mara", QueryFacts { cursor: Some(cursor.clone()), ..query.clone() });
            prop_assert!(byte == 0 || matches!(answer, Err(Refusal::Invalid { ref field, .. }) if field == "cursor"), "{cursor} gave {answer:?}");
        }
    }

    #[test]
    fn sizes_are_never_underestimated(
        texts in prop::collection::vec("(?s).{0,40}|[\\x00-\\x1f\"\\\\]{0,20}", 5), version in any::<u64>(), confidence in 0..=1_000_000u32, age_ms in any::<u64>(), superseded in any::<bool>(),
    ) {
        let row = FactRow {
            fact_id: texts[0].clone(), entity: texts[1].clone(), key: texts[2].clone(), value: texts[3].clone(), version,
            confidence: Confidence(confidence), effective_confidence: Confidence(confidence / 2), horizon_class: HorizonClass::Volatile,
            freshness: "stale".into(), age_ms, stored_at: UnixMs(age_ms), actor: texts[4].clone(),
            superseded_by: superseded.then(|| texts[0].clone()),
        };
        let real = as_json(&row).to_string().len();
        prop_assert!(row.json_bytes() >= real, "{} < {real}", row.json_bytes());
        let version = FactVersion {
            fact_id: texts[0].clone(), value: texts[3].clone(), version, supersedes: superseded.then(|| texts[1].clone()), superseded_by: None,
            confidence: Confidence(confidence), stored_at: UnixMs(age_ms), deleted: !superseded, actor: texts[4].clone(), revision: Revision(age_ms),
            source_receipt: superseded.then(|| texts[2].clone()), forgotten_by: superseded.then(|| texts[0].clone()),
        };
        let real = json!({
            "fact_id": version.fact_id, "value": version.value, "version": version.version, "supersedes": version.supersedes,
            "superseded_by": version.superseded_by, "confidence": version.confidence.to_unit(), "stored_at": version.stored_at.to_rfc3339(),
            "deleted": version.deleted, "actor": version.actor, "revision": version.revision,
            "source_receipt": version.source_receipt, "forgotten_by": version.forgotten_by,
        }).to_string().len();
        prop_assert!(version.json_bytes() >= real, "{} < {real}", version.json_bytes());
    }
}

#[test]
fn the_largest_row_fits_the_largest_reply() {
    let name = "\"".repeat(512);
    let row = FactRow {
        fact_id: format!("f_{}", "0".repeat(32)),
        entity: filed_name(&name, &name),
        key: name.clone(),
        value: "\u{1}".repeat(FACT_VALUE_JSON_BYTES_MAX / 6),
        version: u64::MAX,
        confidence: Confidence::FULL,
        effective_confidence: Confidence::FULL,
        horizon_class: HorizonClass::Volatile,
        freshness: "stale".into(),
        age_ms: u64::MAX,
        stored_at: UnixMs(u64::MAX),
        actor: name,
        superseded_by: Some(format!("f_{}", "0".repeat(32))),
    };
    assert!(row.json_bytes() + 1 + REPLY_WRAPPER_BYTES <= REPLY_BYTES_MAX);
    const { assert!(SCAN_ROWS_MAX < 120, "the properties have to go over the scan limit") };
}
