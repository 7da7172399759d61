//! Transcripts and properties of the memory panel, freshness, consolidation and decisions.

use super::*;
use crate::decision::RecordDecision;
use crate::flag::SetFlag;
use crate::receipt::GetReceipt;
use crate::stamp::Scope;

/// Runs `time who verb word... option=value...` line by line. `#3` is the fact that the third call stored, and `_` in a word
/// is a space.
fn check(script: &str, expected: Expect) {
    let mut facts = Facts::new();
    let mut told = String::new();
    for line in script.lines() {
        let line = Line::parse(line);
        facts.now_ms = ms(line.time);
        let told_line = tell(&mut facts, &line).unwrap_or_else(|refusal| format!("refused: {refusal} ({})", refusal.code()));
        writeln!(told, "{told_line}").unwrap();
    }
    for (name, id) in &facts.ids {
        told = told.replace(id, name);
    }
    expected.assert_eq(&told);
}

fn tell(facts: &mut Facts, line: &Line) -> Result<String, Refusal> {
    let (who, words) = (line.who, &line.words);
    let known = facts.ids.clone();
    let id = |word: &str| known.get(word).cloned().unwrap_or(word.into());
    let spaced = |word: &str| word.replace('_', " ");
    let class = |word: &str| HorizonClass::ALL.into_iter().find(|class| class.word() == word).unwrap();
    let ids = |words: Option<String>| words.iter().flat_map(|ids| ids.split(',')).map(&id).collect::<BTreeSet<_>>();
    let share =
        |name: &str, default: Confidence| line.option(name).map_or(default, |text| Confidence::from_unit(text.parse().unwrap()).unwrap());
    let stored = |facts: &mut Facts, fact_id: &str| facts.ids.insert(format!("#{}", facts.calls), fact_id.into());
    Ok(match line.verb {
        "store" => {
            let command = StoreFact {
                private: words.contains(&"private"),
                confidence: share("confidence", Confidence::FULL),
                horizon_class: line.option("class").map(|word| class(&word)),
                source_receipt: line.option("receipt"),
                ..fact(words[0], words[1], &spaced(words[2]))
            };
            let version = facts.store(who, command)?.version;
            format!("#{} is version {version}", facts.calls)
        }
        "edit" => {
            let command = EditFact { fact_id: id(words[0]), new_value: spaced(words[1]), reason: line.option("reason") };
            let FactEdited { new_fact, old_fact_id, .. } = facts.call(who, command)?;
            stored(facts, &new_fact.id);
            format!("#{} is version {} for {old_fact_id}: {}", facts.calls, new_fact.version, row(&new_fact))
        }
        "pin" | "unpin" => {
            let FactPinned { fact_id, pinned } = facts.call(who, PinFact { fact_id: id(words[0]), pinned: line.verb == "pin" })?;
            format!("{fact_id} pinned: {pinned}")
        }
        "delete" => format!("deleted: {}", facts.call(who, DeleteFact { fact_id: id(words[0]) })?.deleted),
        "view" => {
            let query = ViewMemory {
                entity: line.option("entity"),
                entity_prefix: line.option("prefix"),
                key: line.option("key"),
                top_k: line.option("top_k").map_or(20, |rows| rows.parse().unwrap()),
                token_budget: line.option("budget").map(|tokens| tokens.parse().unwrap()),
                cursor: None,
            };
            let MemoryFacts { facts: rows, truncated, .. } = facts.ask(who, query)?;
            let rows: Vec<String> = rows.iter().map(|fact| format!("\n  {}", row(fact))).collect();
            let more = truncated.map_or(String::new(), |reason| format!("\n  there are more: {reason}"));
            format!("{} facts{}{more}", rows.len(), rows.concat())
        }
        "history" => {
            let query = match words.as_slice() {
                [entity, key] => {
                    MemoryHistory { entity: Some(entity.to_string()), key: Some(key.to_string()), fact_id: None, limit: 9, cursor: None }
                }
                _ => MemoryHistory { entity: None, key: None, fact_id: words.first().map(|word| id(word)), limit: 9, cursor: None },
            };
            let versions = facts.ask(who, query)?.versions;
            let versions = versions.iter().map(|version| {
                let gone = if version.deleted { ", deleted" } else { "" };
                let from = version.source_receipt.as_ref().map_or(String::new(), |receipt| format!(" from {receipt}"));
                format!("\n  {} = {} by {}{from}{gone}", version.version, version.value, version.actor)
            });
            format!("versions:{}", versions.collect::<String>())
        }
        "consolidate" => {
            let command = ConsolidateFacts {
                entity: words[0].into(),
                key: words[1].into(),
                canonical_value: spaced(words[2]),
                target_fact_ids: ids(line.option("targets")),
                protected_fact_ids: ids(line.option("keep")),
                confidence: share("confidence", Confidence::FULL),
                protected_confidence_floor: share("floor", Confidence(990_000)),
                consolidation_id: line.option("id"),
                horizon_class: None,
            };
            let done = facts.call(who, command)?;
            stored(facts, &done.canonical_fact_id);
            let proof = facts.ask(who, GetReceipt { receipt_id: done.receipt_id, tenant_id: None })?;
            let body: serde_json::Value = ciborium::from_reader(proof.body.as_slice()).unwrap();
            assert_eq!((&proof.faults, &body["superseded_fact_ids"]), (&Vec::new(), &json!(done.superseded_fact_ids)));
            assert_eq!(body["canonical_fact_id"], json!(done.canonical_fact_id));
            format!("#{} retires {}, proven by {}", facts.calls, done.superseded_fact_ids.join(" "), body["actor_passport"])
        }
        "contradictions" => {
            let Contradictions { candidates, truncated, .. } = facts.ask(
                who,
                FindContradictions {
                    limit: words.first().map_or(50, |rows| rows.parse().unwrap()),
                    token_budget: None,
                    cursor: None,
                    entity: line.option("entity"),
                    entity_prefix: line.option("prefix"),
                    key: line.option("key"),
                    across_versions: line.option("across").is_some(),
                },
            )?;
            let told = candidates.iter().map(|found| {
                let Contradiction { entity, key, polarity_a, polarity_b, fact_ids, .. } = found;
                format!("\n  {entity} {key}: {} is {polarity_a}, {} is {polarity_b}", fact_ids[0], fact_ids[1])
            });
            let more = truncated.map_or(String::new(), |reason| format!("\n  there are more: {reason}"));
            format!("{} contradictions{}{more}", candidates.len(), told.collect::<String>())
        }
        "freshness" => {
            let entity = line.option("entity").map(|entity| known.iter().fold(entity, |entity, (name, id)| entity.replace(name, id)));
            let (key, entity_prefix) = (line.option("key"), line.option("prefix"));
            let query = ShowFreshness { entity, entity_prefix, key, top_k: 20, token_budget: Some(4_000), cursor: None };
            let rows = facts.ask(who, query)?.rows;
            let told = rows.iter().map(|row| {
                let reverified = if row.reverified_at.is_some() { ", reverified" } else { "" };
                format!("\n  {} {} is {} at {} h{reverified}", row.fact_id, row.horizon_class.word(), row.freshness, row.age_ms / 3_600_000)
            });
            format!("freshness:{}", told.collect::<String>())
        }
        "sweep" => {
            let (entity, entity_prefix, key) = (line.option("entity"), line.option("prefix"), line.option("key"));
            let query = SweepCandidates { entity, entity_prefix, key, top_k: 20, token_budget: Some(4_000), cursor: None };
            let rows = facts.ask(who, query)?.rows;
            let told = rows.iter().map(|found| {
                let by = found.superseded_by.as_ref().map_or(String::new(), |by| format!(" by {by}"));
                format!("\n  {} is {}{by}", found.row.fact_id, found.reason)
            });
            format!("candidates:{}", told.collect::<String>())
        }
        "horizon" => {
            let HorizonSet { fact_id, horizon_class } =
                facts.call(who, SetHorizon { fact_id: id(words[0]), horizon_class: class(words[1]) })?;
            format!("{fact_id} is {}", horizon_class.word())
        }
        "reverify" => {
            let FactReverified { fact_id, receipt_id, .. } = facts.call(who, ReverifyFact { fact_id: id(words[0]) })?;
            let proof = facts.ask(who, GetReceipt { receipt_id, tenant_id: None })?;
            let body: serde_json::Value = ciborium::from_reader(proof.body.as_slice()).unwrap();
            assert_eq!((&proof.faults, &body["fact_id"], &body["class"]), (&Vec::new(), &json!(fact_id), &json!("Reverify")));
            format!("{fact_id} reverified, proven by {}", body["reverified_by"])
        }
        "switch" => {
            let admin = Principal { scopes: [Scope::from("admin")].into(), ..person(who) };
            facts.calls += 1;
            let set = SetFlag { name: words[0].into(), value: words[1].into() };
            facts.world.call(&facts.now_ms.to_string(), admin, None, set)?;
            format!("{} is {}", words[0], words[1])
        }
        _ => panic!("no such verb: {}", line.verb),
    })
}

fn row(row: &MemoryRow) -> String {
    let MemoryRow { entity, key, value, version, confidence, horizon_class, pinned, actor, .. } = row;
    let (confidence, class, pinned) = (confidence.to_unit(), horizon_class.word(), if *pinned { ", pinned" } else { "" });
    format!("{entity} {key} = {value} (version {version} by {actor}, {confidence}, {class}{pinned})")
}

// ------------------------------------------------------------------ memory panel

#[test]
fn an_edit_keeps_pin_horizon_and_confidence_and_names_its_author() {
    check(
        "0s mara store svc:api owner platform class=stable confidence=0.7
         1s mara pin #1
         2s jon  edit #1 infra reason=typo
         3s mara view
         3s jon  view
         3s mara history svc:api owner
         3s mara history #1
         4s mara unpin #1
         4s mara view",
        expect![[r#"
            #1 is version 1
            #1 pinned: true
            #3 is version 2 for #1: svc:api owner = infra (version 2 by jon, 0.7, stable)
            1 facts
              svc:api owner = infra (version 2 by jon, 0.7, stable, pinned)
            1 facts
              svc:api owner = infra (version 2 by jon, 0.7, stable)
            versions:
              1 = platform by mara
              2 = infra by jon from memory_edit:typo
            versions:
              1 = platform by mara
              2 = infra by jon from memory_edit:typo
            #1 pinned: false
            1 facts
              svc:api owner = infra (version 2 by jon, 0.7, stable)
        "#]],
    );
}

#[test]
fn who_edits_a_version_that_another_replaced_or_deleted_is_refused() {
    check(
        "0s mara store svc:api owner platform
         1s jon  edit #1 infra
         2s mara edit #1 core
         3s jon  delete #2
         4s mara edit #2 core
         4s mara pin #2
         4s mara unpin #2
         4s eve  edit #1 stolen
         4s eve  pin #1
         4s eve  history #1
         4s mara history svc:api owner",
        expect![[r#"
            #1 is version 1
            #2 is version 2 for #1: svc:api owner = infra (version 2 by jon, 1, none)
            refused: fact `#1` has changed: expected the active version, found superseded by `#2` (-32004)
            deleted: true
            refused: fact `#2` has changed: expected the active version, found deleted (-32004)
            refused: fact `#2` has changed: expected the active version, found deleted (-32004)
            #2 pinned: false
            refused: there is no fact `#1` (NOT_FOUND)
            refused: there is no fact `#1` (NOT_FOUND)
            refused: there is no fact `#1` (NOT_FOUND)
            versions:
              1 = platform by mara
              2 = infra by jon, deleted
        "#]],
    );
}

#[test]
fn the_panel_leaves_private_and_reserved_facts_alone() {
    check(
        "0s mara store svc:api owner platform
         0s mara store svc:api note mine private
         0s mara store __ops::run step 1
         0s mara store __bootstrap__::a k v
         0s mara store __memory_pin::mara::x pinned 1
         1s mara view
         1s mara view entity=__ops::run
         1s mara view entity=__agent::mara::svc:api
         1s mara edit #2 x
         1s mara edit #3 2
         1s jon  edit #2 x
         1s mara history #2
         1s mara history __ops::run step
         1s mara history nothing here
         1s mara history
         1s mara pin #2",
        expect![[r#"
            #1 is version 1
            #2 is version 1
            #3 is version 1
            #4 is version 1
            refused: entities under `__memory_pin::` are written by the service alone (-32003)
            1 facts
              svc:api owner = platform (version 1 by mara, 1, none)
            0 facts
            0 facts
            refused: facts under `__agent::` are not edited in the panel; where you may, write them with `store_fact` (-32003)
            refused: facts under `__ops::` are not edited in the panel; where you may, write them with `store_fact` (-32003)
            refused: there is no fact `#2` (NOT_FOUND)
            refused: facts under `__agent::` are not shown in the panel; `fact_history` shows them to those who may see them (-32003)
            refused: facts under `__ops::` are not shown in the panel; `fact_history` shows them to those who may see them (-32003)
            versions:
            refused: `fact_id` or both `entity` and `key` have to be given, and not all three (-32602)
            #2 pinned: true
        "#]],
    );
}

#[test]
fn a_view_is_narrowed_cut_with_a_word_and_switched_off() {
    check(
        "0s mara store a k one
         0s mara store a l two
         0s mara store b k three
         1s mara view entity=a
         1s mara view entity=a key=l
         1s mara view key=k
         1s mara view top_k=1
         1s mara view budget=20
         1s mara view top_k=0
         2s olga switch CORECRUXD_FEATURE_MEMORY_PANEL off
         2s mara view
         2s mara edit #1 x
         2s mara pin #1
         2s mara history #1",
        expect![[r#"
            #1 is version 1
            #2 is version 1
            #3 is version 1
            2 facts
              a l = two (version 1 by mara, 1, none)
              a k = one (version 1 by mara, 1, none)
            1 facts
              a l = two (version 1 by mara, 1, none)
            2 facts
              b k = three (version 1 by mara, 1, none)
              a k = one (version 1 by mara, 1, none)
            1 facts
              b k = three (version 1 by mara, 1, none)
              there are more: top_k
            refused: `token_budget` of 20 has no room for the next row, which needs 127 (-32602)
            refused: `top_k` must be at least 1 (-32602)
            CORECRUXD_FEATURE_MEMORY_PANEL is off
            refused: memory_view is switched off by the flag `CORECRUXD_FEATURE_MEMORY_PANEL` (CAPABILITY_DENIED)
            refused: memory_edit is switched off by the flag `CORECRUXD_FEATURE_MEMORY_PANEL` (CAPABILITY_DENIED)
            refused: memory_pin is switched off by the flag `CORECRUXD_FEATURE_MEMORY_PANEL` (CAPABILITY_DENIED)
            refused: memory_history is switched off by the flag `CORECRUXD_FEATURE_MEMORY_PANEL` (CAPABILITY_DENIED)
        "#]],
    );
}

// ------------------------------------------------------------------ consolidation

#[test]
fn a_consolidation_retires_the_named_fact_and_proves_it() {
    check(
        "0s mara store svc:api state on confidence=0.5 class=medium
         1s jon  consolidate svc:api state enabled targets=#1 confidence=0.9
         1s mara view
         1s mara history svc:api state
         2s jon  consolidate svc:api state off targets=#2",
        expect![[r##"
            #1 is version 1
            #2 retires #1, proven by "jon"
            1 facts
              svc:api state = enabled (version 2 by jon, 0.9, medium)
            versions:
              1 = on by mara
              2 = enabled by jon from consolidation:mcp_e292a61b0a4a6c61f42e5530be62e915
            refused: fact `#2` is protected: it was learnt from the receipt `consolidation:mcp_e292a61b0a4a6c61f42e5530be62e915` (CAPABILITY_DENIED)
        "##]],
    );
}

#[test]
fn a_consolidation_touches_nothing_that_it_was_not_shown() {
    check(
        "0s mara store svc:api state on confidence=0.5
         0s mara store svc:api state off confidence=0.5
         1s jon  consolidate svc:api state enabled targets=#1
         1s jon  consolidate svc:api state enabled targets=#1,#2
         2s mara edit #2 broken
         3s jon  consolidate svc:api state enabled targets=#2
         4s mara delete #5
         5s jon  consolidate svc:api state enabled targets=#5
         5s jon  consolidate svc:api state enabled targets=f_0
         5s jon  consolidate svc:api state enabled
         5s mara history svc:api state",
        expect![[r#"
            #1 is version 1
            #2 is version 2
            refused: fact `#1` has changed: expected the active version, found superseded by `#2` (-32004)
            refused: fact `#1` has changed: expected the active version, found superseded by `#2` (-32004)
            #5 is version 3 for #2: svc:api state = broken (version 3 by mara, 0.5, none)
            refused: fact `#2` has changed: expected the active version, found superseded by `#5` (-32004)
            deleted: true
            refused: fact `#5` has changed: expected the active version, found deleted (-32004)
            refused: there is no fact `f_0` (NOT_FOUND)
            refused: `target_fact_ids` must name at least one fact (-32602)
            versions:
              1 = on by mara
              2 = off by mara
              3 = broken by mara, deleted
        "#]],
    );
}

#[test]
fn protected_facts_are_not_consolidated() {
    check(
        "0s mara store a k v confidence=0.5
         0s mara store b k v confidence=0.99
         0s mara store c k v confidence=0.5 receipt=r1
         0s mara store d k v confidence=0.5 private
         0s mara pin #1
         1s mara consolidate a k w targets=#1
         1s mara consolidate b k w targets=#2
         1s mara consolidate b k w targets=#2 floor=1
         1s mara consolidate c k w targets=#3
         1s mara consolidate d k w targets=#4
         1s jon  consolidate d k w targets=#4
         1s mara consolidate __agent::mara::d k w targets=#4
         1s mara consolidate a k w targets=#1 keep=#1
         1s mara consolidate a l w targets=#1
         1s mara consolidate __decisions__::x k w targets=#1
         2s jon  consolidate a k w targets=#1 id=tidy confidence=0.5
         2s jon  consolidate a k x targets=#16 id=tidy
         2s mara view entity=a",
        expect![[r##"
            #1 is version 1
            #2 is version 1
            #3 is version 1
            #4 is version 1
            #1 pinned: true
            refused: fact `#1` is protected: you pinned it (CAPABILITY_DENIED)
            refused: fact `#2` is protected: its confidence of 0.99 is at or over the floor of 0.99 (CAPABILITY_DENIED)
            #8 retires #2, proven by "mara"
            refused: fact `#3` is protected: it was learnt from the receipt `r1` (CAPABILITY_DENIED)
            refused: fact `#4` is protected: it is private (CAPABILITY_DENIED)
            refused: there is no fact `#4` (NOT_FOUND)
            refused: fact `#4` is protected: private facts are not consolidated (CAPABILITY_DENIED)
            refused: `target_fact_ids` names what `protected_fact_ids` keeps: `#1` (-32602)
            refused: `target_fact_ids` names `#1`, which is not the `l` of `a` (-32602)
            refused: entities under `__decisions__::` are written by the service alone (-32003)
            #16 retires #1, proven by "jon"
            refused: `consolidation_id` is that of an earlier consolidation; choose another, or leave it out (-32602)
            1 facts
              a k = w (version 2 by jon, 0.5, none, pinned)
        "##]],
    );
}

#[test]
fn an_edited_fact_is_no_receipts_fact() {
    check(
        "0s mara store a k v confidence=0.5
         1s mara edit #1 w reason=typo
         2s mara consolidate a k x targets=#2",
        expect![[r##"
            #1 is version 1
            #2 is version 2 for #1: a k = w (version 2 by mara, 0.5, none)
            #3 retires #2, proven by "mara"
        "##]],
    );
}

#[test]
fn every_list_is_narrowed_to_an_entity_to_a_beginning_of_entities_and_to_a_key() {
    let mut facts = Facts::new();
    for entity in ["svc:api", "svc:web", "svc", "notes"] {
        for key in ["owner", "state"] {
            for value in ["old", "new"] {
                facts.store("mara", fact(entity, key, value)).unwrap();
            }
        }
    }
    // More than are sorted in memory, so that these go the other way.
    for n in 0..2 * SCAN_ROWS_MAX {
        facts.store("mara", fact(&format!("db:{n:03}"), "owner", "x")).unwrap();
    }
    facts.store("mara", StoreFact { private: true, ..fact("svc:own", "owner", "x") }).unwrap();
    let text = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
    let mut narrowed = |who: &str, entity: &str, prefix: &str, key: &str| {
        let (entity, entity_prefix, key) = (text(entity), text(prefix), text(key));
        let mut lists = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
        let mut cursor = None;
        loop {
            let (entity, entity_prefix, key) = (entity.clone(), entity_prefix.clone(), key.clone());
            let page = facts.ask(who, ViewMemory { entity, entity_prefix, key, top_k: 3, token_budget: None, cursor }).unwrap();
            lists[0].extend(page.facts.into_iter().map(|row| format!("{} {}", row.entity, row.key)));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        loop {
            let (entity, entity_prefix, key) = (entity.clone(), entity_prefix.clone(), key.clone());
            let page = facts.ask(who, ShowFreshness { entity, entity_prefix, key, top_k: 3, token_budget: None, cursor }).unwrap();
            lists[1].extend(page.rows.into_iter().map(|row| format!("{} {}", row.entity, row.key)));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        loop {
            let (entity, entity_prefix, key) = (entity.clone(), entity_prefix.clone(), key.clone());
            let page = facts.ask(who, SweepCandidates { entity, entity_prefix, key, top_k: 3, token_budget: None, cursor }).unwrap();
            lists[2].extend(page.rows.into_iter().map(|found| format!("{} {}", found.row.entity, found.row.key)));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        lists.map(|list| list.into_iter().collect::<Vec<_>>().join(", "))
    };
    let all = |text: &str| [text; 3].map(String::from);
    assert_eq!(narrowed("jon", "svc", "", ""), all("svc owner, svc state"));
    assert_eq!(narrowed("jon", "svc", "", "owner"), all("svc owner"));
    assert_eq!(narrowed("jon", "", "svc:", ""), all("svc:api owner, svc:api state, svc:web owner, svc:web state"));
    assert_eq!(narrowed("jon", "", "svc:", "owner"), all("svc:api owner, svc:web owner"));
    assert_eq!(narrowed("jon", "svc:api", "svc:", "owner"), all("svc:api owner"));
    assert_eq!(narrowed("jon", "notes", "svc:", ""), all(""));
    let [view, freshness, sweep] = narrowed("mara", "", "svc:o", "");
    assert_eq!((&*view, &*freshness, &*sweep), ("", "__agent::mara::svc:own owner", ""), "the panel leaves private facts alone");
    let [view, freshness, _] = narrowed("jon", "", "db:", "owner");
    assert_eq!((view.split(", ").count(), freshness.split(", ").count()), (2 * SCAN_ROWS_MAX, 2 * SCAN_ROWS_MAX));
}

#[test]
fn what_another_had_said_before_is_a_contradiction_where_that_is_asked_for() {
    check(
        "0s mara store svc:api state enabled
         0s jon  store svc:api state disabled
         0s mara store svc:web state enabled
         0s mara store svc:web state disabled
         0s mara store svc:db state on
         0s jon  store svc:db state off
         0s jon  delete #5
         0s mara store svc:x state on
         0s jon  store svc:x state yes
         0s mara store svc:y state no
         0s mara store svc:y state yes private
         1s mara contradictions
         1s mara contradictions across=yes
         1s jon  contradictions 1 across=yes
         2s ben  store svc:api state off
         2s ben  contradictions across=yes",
        expect![[r#"
            #1 is version 1
            #2 is version 2
            #3 is version 1
            #4 is version 2
            #5 is version 1
            #6 is version 2
            deleted: true
            #8 is version 1
            #9 is version 2
            #10 is version 1
            #11 is version 1
            1 contradictions
              svc:y state: #10 is negative, #11 is positive
            2 contradictions
              svc:y state: #10 is negative, #11 is positive
              svc:api state: #2 is negative, #1 is positive
            1 contradictions
              svc:api state: #2 is negative, #1 is positive
            #12 is version 3
            0 contradictions
        "#]],
    );
    let mut facts = Facts::new();
    for n in 0..150 {
        for (who, value) in [("mara", "on"), ("jon", "off")] {
            facts.store(who, fact(&format!("svc:{n:03}"), "state", value)).unwrap();
        }
        facts.store("mara", StoreFact { private: true, ..fact(&format!("svc:{n:03}"), "state", "on") }).unwrap();
    }
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = facts.ask("mara", contradictions_from(cursor, None)).unwrap();
        found.extend(page.candidates.into_iter().map(|found| (found.reason, found.entity)));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let wanted = ["opposite_polarity_same_entity_key", "opposite_polarity_across_versions"];
    let wanted: Vec<_> = wanted.iter().flat_map(|why| (0..150).map(move |n| (why.to_string(), format!("svc:{n:03}")))).collect();
    assert_eq!(found, wanted);

    let page = facts.ask("mara", contradictions_from(None, Some("svc:01"))).unwrap();
    let shown = page.candidates.len();
    let rest = facts.ask("mara", contradictions_from(page.next_cursor.clone(), Some("svc:01"))).unwrap();
    let named = page.candidates.iter().chain(&rest.candidates).take(10).map(|found| found.entity.clone());
    assert_eq!((shown < 10, named.collect::<Vec<_>>()), (true, (10..20).map(|n| format!("svc:0{n}")).collect::<Vec<_>>()));
    let refusal = facts.ask("mara", contradictions_from(page.next_cursor, Some("svc:0"))).unwrap_err();
    assert!(refusal.to_string().contains("cursor"), "{refusal}");
}

fn contradictions_from(cursor: Option<String>, prefix: Option<&str>) -> FindContradictions {
    let entity_prefix = prefix.map(Into::into);
    FindContradictions { limit: 7, token_budget: None, cursor, entity: None, entity_prefix, key: None, across_versions: true }
}

#[test]
fn contradictions_are_narrowed_to_an_entity_to_those_that_begin_so_and_to_a_key() {
    check(
        "0s mara store svc:api state on
         0s mara store svc:api state off private
         0s mara store svc:api ready yes
         0s mara store svc:api ready no private
         0s mara store svc:web state on
         0s jon  store svc:web state off
         0s mara store job:web state on
         0s mara store job:web state off private
         1s mara contradictions across=yes
         1s mara contradictions across=yes entity=svc:api
         1s mara contradictions across=yes entity=__agent::mara::svc:api
         1s mara contradictions across=yes entity=svc:api key=ready
         1s mara contradictions across=yes prefix=svc:
         1s mara contradictions across=yes prefix=__agent::mara::svc:
         1s mara contradictions prefix=svc: key=state
         1s mara contradictions entity=job:web prefix=svc:
         1s mara contradictions across=yes entity=__agent::jon::svc:web
         1s mara contradictions key=",
        expect![[r#"
            #1 is version 1
            #2 is version 1
            #3 is version 1
            #4 is version 1
            #5 is version 1
            #6 is version 2
            #7 is version 1
            #8 is version 1
            4 contradictions
              job:web state: #7 is positive, #8 is negative
              svc:api ready: #3 is positive, #4 is negative
              svc:api state: #1 is positive, #2 is negative
              svc:web state: #6 is negative, #5 is positive
            2 contradictions
              svc:api ready: #3 is positive, #4 is negative
              svc:api state: #1 is positive, #2 is negative
            2 contradictions
              svc:api ready: #3 is positive, #4 is negative
              svc:api state: #1 is positive, #2 is negative
            1 contradictions
              svc:api ready: #3 is positive, #4 is negative
            3 contradictions
              svc:api ready: #3 is positive, #4 is negative
              svc:api state: #1 is positive, #2 is negative
              svc:web state: #6 is negative, #5 is positive
            2 contradictions
              svc:api ready: #3 is positive, #4 is negative
              svc:api state: #1 is positive, #2 is negative
            1 contradictions
              svc:api state: #1 is positive, #2 is negative
            0 contradictions
            0 contradictions
            refused: `key` must not be empty; leave it out to match all (-32602)
        "#]],
    );
}

#[test]
fn a_private_fact_that_says_the_opposite_is_a_contradiction() {
    check(
        "0s mara store svc:api state Enabled.
         0s mara store svc:api state disabled private
         0s mara store svc:web state yes
         0s mara store svc:web state on private
         0s mara store svc:db state active
         0s mara store svc:db state inactive private
         0s mara store svc:x state maybe
         0s mara store svc:x state no private
         1s mara contradictions
         1s mara contradictions 1
         1s jon  contradictions
         2s mara delete #2
         2s mara contradictions
         2s olga switch CORECRUXD_FEATURE_CONSOLIDATION off
         2s mara contradictions
         2s mara consolidate svc:x state x targets=#7",
        expect![[r#"
            #1 is version 1
            #2 is version 1
            #3 is version 1
            #4 is version 1
            #5 is version 1
            #6 is version 1
            #7 is version 1
            #8 is version 1
            2 contradictions
              svc:api state: #1 is positive, #2 is negative
              svc:db state: #5 is positive, #6 is negative
            1 contradictions
              svc:api state: #1 is positive, #2 is negative
              there are more: limit
            0 contradictions
            deleted: true
            1 contradictions
              svc:db state: #5 is positive, #6 is negative
            CORECRUXD_FEATURE_CONSOLIDATION is off
            refused: memory_contradictions is switched off by the flag `CORECRUXD_FEATURE_CONSOLIDATION` (CAPABILITY_DENIED)
            refused: memory_consolidate is switched off by the flag `CORECRUXD_FEATURE_CONSOLIDATION` (CAPABILITY_DENIED)
        "#]],
    );
}

// ------------------------------------------------------------------ freshness

#[test]
fn a_fact_goes_stale_by_its_class_until_it_is_reverified() {
    check(
        "0s  mara store a k v class=volatile
         0s  mara store b k v class=medium
         0s  mara store c k v
         25h mara freshness
         25h mara sweep
         25h jon  reverify #1
         26h mara freshness
         26h mara sweep
         26h mara freshness entity=__reverify_receipts__::#1
         50h mara freshness key=k
         50h mara horizon #1 stable
         50h mara freshness entity=a key=k
         50h mara history a k",
        expect![[r##"
            #1 is version 1
            #2 is version 1
            #3 is version 1
            freshness:
              #3 none is fresh at 25 h
              #2 medium is fresh at 25 h
              #1 volatile is stale at 25 h
            candidates:
              #1 is stale
            #1 reverified, proven by "jon"
            freshness:
              f_c8d95c8fbf344e5320518301fc93344e stable is fresh at 1 h
              #1 volatile is fresh at 1 h, reverified
              #3 none is fresh at 26 h
              #2 medium is fresh at 26 h
            candidates:
            freshness:
              f_c8d95c8fbf344e5320518301fc93344e stable is fresh at 1 h
            freshness:
              #3 none is fresh at 50 h
              #2 medium is fresh at 50 h
              #1 volatile is stale at 25 h, reverified
            #1 is stable
            freshness:
              #1 stable is fresh at 25 h, reverified
            versions:
              1 = v by mara
        "##]],
    );
}

#[test]
fn only_an_active_fact_has_a_clock_to_set() {
    check(
        "0s  mara store a k v class=volatile
         1s  jon  store a k w
         1s  mara reverify #1
         1s  mara horizon #1 none
         25h mara sweep
         25h mara delete #2
         25h mara reverify #2
         25h mara store n k v private class=volatile
         26h mara reverify #7
         26h jon  reverify #7
         26h mara horizon #7 none
         26h mara store __ops::x k v
         26h mara horizon #11 none
         26h jon  freshness
         26h mara freshness
         27h olga switch CORECRUXD_FEATURE_FRESHNESS off
         27h mara freshness
         27h mara sweep
         27h mara horizon #7 none
         27h mara reverify #7",
        expect![[r##"
            #1 is version 1
            #2 is version 2
            refused: fact `#1` has changed: expected the active version, found superseded by `#2` (-32004)
            refused: fact `#1` has changed: expected the active version, found superseded by `#2` (-32004)
            candidates:
              #1 is stale+superseded by #2
            deleted: true
            refused: fact `#2` has changed: expected the active version, found deleted (-32004)
            #7 is version 1
            #7 reverified, proven by "mara"
            refused: there is no fact `#7` (NOT_FOUND)
            refused: the horizon of facts under `__agent::` is not set here; where you may, name it in `store_fact` (-32003)
            #11 is version 1
            refused: the horizon of facts under `__ops::` is not set here; where you may, name it in `store_fact` (-32003)
            freshness:
              #11 volatile is fresh at 0 h
            freshness:
              #11 volatile is fresh at 0 h
              f_de231b01d68693eba7b0f8b1537ed634 stable is fresh at 0 h
              #7 volatile is fresh at 0 h, reverified
            CORECRUXD_FEATURE_FRESHNESS is off
            refused: memory_freshness is switched off by the flag `CORECRUXD_FEATURE_FRESHNESS` (CAPABILITY_DENIED)
            refused: memory_sweep_candidates is switched off by the flag `CORECRUXD_FEATURE_FRESHNESS` (CAPABILITY_DENIED)
            refused: memory_set_horizon is switched off by the flag `CORECRUXD_FEATURE_FRESHNESS` (CAPABILITY_DENIED)
            refused: memory_reverify is switched off by the flag `CORECRUXD_FEATURE_FRESHNESS` (CAPABILITY_DENIED)
        "##]],
    );
}

#[test]
fn an_instant_ahead_of_the_readers_clock_is_unknown() {
    check(
        "9s mara store a k v class=volatile
         9s mara store b k v
         8s mara freshness",
        expect![[r#"
            #1 is version 1
            #2 is version 1
            freshness:
              #2 none is fresh at 0 h
              #1 volatile is unknown at 0 h
        "#]],
    );
}

// ------------------------------------------------------------------ decisions

fn decision() -> RecordDecision {
    RecordDecision {
        action: "use one parser".into(),
        rationale: "two of them drift".into(),
        alternatives: vec!["keep both".into()],
        confidence: Confidence(900_000),
        session_id: "_default".into(),
        context_refs: Vec::new(),
    }
}

#[test]
fn a_decision_is_kept_as_a_fact_that_nobody_changes() {
    let mut facts = Facts::new();
    let done = facts.call("mara", decision()).unwrap();
    assert_eq!((done.entity.as_str(), done.action.as_str()), ("__decisions__::_default", "use one parser"));
    let again = facts.call("jon", decision()).unwrap();
    assert_ne!(done.decision_id, again.decision_id);

    let found = facts.ask("jon", QueryFacts { entity_prefix: Some("__decisions__::".into()), ..everything() }).unwrap().rows;
    assert_eq!(found.iter().map(|row| &row.key).collect::<Vec<_>>(), [&again.decision_id, &done.decision_id]);
    let row = &found[1];
    assert_eq!((row.actor.as_str(), row.fact_id.as_str()), ("mara", done.fact_id.as_str()));
    assert_eq!(blake3::hash(row.value.as_bytes()).to_hex().to_string(), done.decision_hash);
    expect![[r#"{"decision_id":"d_0","action":"use one parser","rationale":"two of them drift","alternatives":["keep both"],"confidence":0.9,"session_id":"_default","context_refs":[],"recorded_at":"2030-03-17T17:46:40.000Z","agent":"mara"}"#]].assert_eq(&row.value.replace(&done.decision_id, "d_0"));
    let proof = facts.ask("jon", GetReceipt { receipt_id: done.decision_id.clone(), tenant_id: None }).unwrap();
    let body: serde_json::Value = ciborium::from_reader(proof.body.as_slice()).unwrap();
    assert_eq!((&proof.faults, &body["decision_hash"]), (&Vec::new(), &json!(done.decision_hash)));

    let refused = |told: Option<Refusal>| told.expect("a decision is only ever added").code();
    let store = fact(&done.entity, &done.decision_id, "other");
    assert_eq!(refused(facts.store("mara", store).err()), "-32003");
    assert_eq!(refused(facts.call("mara", DeleteFact { fact_id: done.fact_id.clone() }).err()), "-32003");
    assert_eq!(
        refused(facts.call("mara", EditFact { fact_id: done.fact_id.clone(), new_value: "x".into(), reason: None }).err()),
        "-32003"
    );
    let retire = StoreFact { supersedes: [done.fact_id.clone()].into(), ..fact("a", "k", "v") };
    assert_eq!(refused(facts.store("mara", retire).err()), "-32602");
    assert_eq!(refused(facts.call("mara", ReverifyFact { fact_id: done.fact_id }).err()), "-32003");
}

#[test]
fn a_decision_that_says_nothing_or_too_much_is_refused() {
    let mut facts = Facts::new();
    let mut told = String::new();
    let long = "x".repeat(TEXT_BYTES_MAX);
    for command in [
        RecordDecision { action: " ".into(), ..decision() },
        RecordDecision { rationale: format!("{long}x"), ..decision() },
        RecordDecision { alternatives: vec!["a".into(); 101], ..decision() },
        RecordDecision { context_refs: vec![format!("{long}x")], ..decision() },
        RecordDecision { alternatives: vec![long; 4], ..decision() },
        RecordDecision { session_id: "s".repeat(500), ..decision() },
        RecordDecision { session_id: String::new(), ..decision() },
        RecordDecision { confidence: Confidence(1_000_001), ..decision() },
    ] {
        writeln!(told, "{}", facts.call("mara", command).unwrap_err()).unwrap();
    }
    expect![[r#"
        `action` must not be empty
        `rationale` is 4097 bytes long, and the limit is 4096 bytes
        `alternatives` is 101 entries long, and the limit is 100 entries
        `context_refs` is 4097 bytes long, and the limit is 4096 bytes
        `rationale` is 16638 bytes long, and the limit is 16384 bytes
        `session_id` is 500 bytes long, and the limit is 497 bytes
        `session_id` must not be empty
        `confidence` must be from 0 to 1
    "#]]
    .assert_eq(&told);
}

// ------------------------------------------------------------------ properties

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn the_panel_shows_each_shared_active_fact_once_and_never_a_superseded_one(acts in acts(120), who in 0..WHO.len(), top_k in 1..9u64) {
        let mut facts = run(&acts);
        let expected: BTreeSet<String> = facts
            .all(&person(WHO[who]).tenant)
            .into_iter()
            .filter(|fact| fact.owner == EVERYONE && fact.state() == State::Active && daemon_owned(&fact.entity).is_none())
            .map(|fact| fact.fact_id)
            .collect();
        let (mut shown, mut cursor) = (Vec::new(), None);
        loop {
            let reply = facts.ask(WHO[who], ViewMemory { entity: None, entity_prefix: None, key: None, top_k, token_budget: None, cursor }).unwrap();
            shown.extend(reply.facts.into_iter().map(|fact| fact.id));
            prop_assert_eq!(reply.next_cursor.is_some(), reply.truncated.is_some());
            cursor = reply.next_cursor;
            if cursor.is_none() { break }
        }
        prop_assert_eq!(shown.len(), expected.len());
        prop_assert_eq!(shown.into_iter().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn candidates_are_what_is_stale_or_superseded_and_no_more(acts in acts(120), who in 0..WHO.len()) {
        let mut facts = run(&acts);
        let caller = person(WHO[who]);
        let now = UnixMs(WALL + facts.now_ms);
        let expected: BTreeSet<String> = facts
            .all(&caller.tenant)
            .into_iter()
            .filter(|fact| fact.is_visible_to(&caller) && daemon_owned(&fact.entity).is_none())
            .filter(|fact| match fact.state() {
                State::Active => fact.anchor() < fact.horizon_class.stale_before(now),
                State::Superseded => true,
                State::Deleted | State::Forgotten => false,
            })
            .map(|fact| fact.fact_id)
            .collect();
        let (mut shown, mut cursor) = (Vec::new(), None);
        loop {
            let reply = facts.ask(WHO[who], SweepCandidates { entity: None, entity_prefix: None, key: None, top_k: 7, token_budget: None, cursor }).unwrap();
            shown.extend(reply.rows.into_iter().map(|found| found.row.fact_id));
            cursor = reply.next_cursor;
            if cursor.is_none() { break }
        }
        prop_assert_eq!(shown.len(), expected.len());
        prop_assert_eq!(shown.into_iter().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn sizes_of_the_panel_are_never_underestimated(
        texts in prop::collection::vec("(?s).{0,40}|[\\x00-\\x1f\"\\\\]{0,20}", 5), version in any::<u64>(), confidence in 0..=1_000_000u32, age_ms in any::<u64>(), some in any::<bool>(),
    ) {
        let stored_at = UnixMs(age_ms);
        let row = MemoryRow {
            id: texts[0].clone(), entity: texts[1].clone(), key: texts[2].clone(), value: texts[3].clone(), version, stored_at,
            confidence: Confidence(confidence), horizon_class: HorizonClass::Volatile, pinned: some, actor: texts[4].clone(),
            source_receipt: some.then(|| texts[0].clone()),
        };
        let real = json!({
            "id": row.id, "entity": row.entity, "key": row.key, "value": row.value, "version": row.version,
            "stored_at": row.stored_at.to_rfc3339(), "confidence": row.confidence.to_unit(), "horizon_class": row.horizon_class,
            "pinned": row.pinned, "actor": row.actor, "source_receipt": row.source_receipt,
        });
        prop_assert!(row.json_bytes() >= real.to_string().len());

        let row = FreshnessRow {
            fact_id: texts[0].clone(), entity: texts[1].clone(), key: texts[2].clone(), horizon_class: HorizonClass::Stable,
            freshness: "unknown".into(), age_ms, stored_at, reverified_at: some.then_some(stored_at), actor: texts[4].clone(),
        };
        let mut real = json!({
            "fact_id": row.fact_id, "entity": row.entity, "key": row.key, "horizon_class": row.horizon_class, "freshness": row.freshness,
            "age_hours": row.age_ms as f64 / 3_600_000.0, "stored_at": row.stored_at.to_rfc3339(), "reverified_at": row.stored_at.to_rfc3339(),
            "actor": row.actor,
        });
        prop_assert!(row.json_bytes() >= real.to_string().len());
        real["reason"] = json!("stale+superseded");
        real["superseded_by"] = json!(texts[3]);
        let candidate = SweepCandidate { row, reason: "stale+superseded".into(), superseded_by: Some(texts[3].clone()) };
        prop_assert!(candidate.json_bytes() >= real.to_string().len());

        let found = Contradiction {
            entity: texts[0].clone(), key: texts[1].clone(), reason: "r".into(), polarity_a: "positive".into(), polarity_b: "negative".into(),
            fact_ids: vec![texts[2].clone(), texts[3].clone()], values: vec![texts[4].clone(), texts[0].clone()],
        };
        let real = json!({
            "entity": found.entity, "key": found.key, "reason": found.reason, "polarity_a": found.polarity_a, "polarity_b": found.polarity_b,
            "fact_ids": found.fact_ids, "values": found.values,
        });
        prop_assert!(found.json_bytes() >= real.to_string().len());
    }
}
