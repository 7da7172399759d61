//! Transcripts of forgetting, undoing and purging.

use super::*;
use crate::flag::SetFlag;
use crate::machine::{self, Body, Call, Entry};
use crate::receipt::GetReceipt;
use crate::stamp::RequestId;

fn scope(kind: &str, value: &str) -> ForgetScope {
    let kind = serde_json::from_value(json!(kind)).unwrap();
    ForgetScope { kind, value: value.into() }
}

/// Runs `time who verb word...` line by line. `#3` is the fact that the third call stored, `r1` the first forgetting's receipt, and `_`
/// in a word is a space.
fn check(script: &str, expected: Expect) {
    let (mut facts, mut receipts, mut told) = (Facts::new(), Vec::new(), String::new());
    for line in script.lines() {
        let line = Line::parse(line);
        facts.now_ms = ms(line.time);
        let told_line = tell(&mut facts, &mut receipts, &line).unwrap_or_else(|refusal| format!("refused: {refusal} ({})", refusal.code()));
        writeln!(told, "{told_line}").unwrap();
    }
    for (name, id) in &facts.ids {
        told = told.replace(id, name);
    }
    for (n, id) in (1..).zip(&receipts) {
        told = told.replace(id, &format!("r{n}"));
    }
    expected.assert_eq(&told);
}

fn tell(facts: &mut Facts, receipts: &mut Vec<String>, line: &Line) -> Result<String, Refusal> {
    let (who, words) = (line.who, &line.words);
    let known = facts.ids.clone();
    let id = |word: &str| known.get(word).cloned().unwrap_or(word.into());
    let budget = line.option("budget").map(|tokens| tokens.parse().unwrap());
    Ok(match line.verb {
        "store" => {
            let command = StoreFact { private: words.contains(&"private"), ..fact(words[0], words[1], words[2]) };
            format!("#{} is version {}", facts.calls + 1, facts.store(who, command)?.version)
        }
        "edit" => {
            let done = facts.call(who, EditFact { fact_id: id(words[0]), new_value: words[1].into(), reason: line.option("reason") })?;
            facts.ids.insert(format!("#{}", facts.calls), done.new_fact.id);
            format!("#{} is version {}", facts.calls, done.new_fact.version)
        }
        "pin" => format!("pinned: {}", facts.call(who, PinFact { fact_id: id(words[0]), pinned: true })?.pinned),
        "delete" => format!("deleted: {}", facts.call(who, DeleteFact { fact_id: id(words[0]) })?.deleted),
        "dry" => {
            let query = FindForgettable { scope: scope(words[0], words[1]), token_budget: budget, cursor: None };
            let ForgettableFacts { count, facts: rows, truncated, .. } = facts.ask(who, query)?;
            let rows: Vec<String> = rows.into_iter().map(|row| row.fact_id).collect();
            format!("{count} would go: {}{}", rows.join(" "), truncated.map_or(String::new(), |why| format!(" ({why})")))
        }
        "forget" => {
            let command = ForgetFacts {
                scope: scope(words[0], words[1]),
                reason: "trial".into(),
                tenant_id: line.option("tenant"),
                token_budget: budget,
                cursor: None,
            };
            let FactsForgotten { receipt_id, facts_affected, window_ms, truncated, .. } = facts.call(who, command)?;
            receipts.push(receipt_id);
            let why = truncated.map_or(String::new(), |why| format!(" ({why})"));
            format!("r{}: {facts_affected} for {} days{why}", receipts.len(), window_ms / 86_400_000)
        }
        "undo" => {
            let n: usize = words[0].trim_start_matches('r').parse().unwrap();
            let command = RecoverFacts { forget_receipt_id: receipts[n - 1].clone() };
            let FactsRecovered { facts_recovered, active, .. } = facts.call(who, command)?;
            format!("{facts_recovered} are back, {active} active")
        }
        "end" => format!("ended: {}", facts.call(who, EndRecovery {})?.ended),
        "tick" => {
            facts.world.tick(line.time);
            "tick".into()
        }
        "recall" => {
            let query = QueryFacts { entity: Some(words[0].into()), include_superseded: words.contains(&"all"), ..everything() };
            let rows = facts.ask(who, query)?.rows;
            let rows: Vec<String> = rows.into_iter().map(|row| format!("{} {}={}", row.version, row.key, row.value)).collect();
            format!("recalled: {}", rows.join(", "))
        }
        "history" => {
            let query = FactHistory { entity: words[0].into(), key: words[1].into(), limit: 9, cursor: None };
            let shown = |version: FactVersion| {
                let by = version.forgotten_by.map_or(String::new(), |by| format!(" by {by}"));
                let state = match (version.deleted, version.superseded_by) {
                    (true, _) => " deleted",
                    (false, Some(_)) => " superseded",
                    (false, None) => "",
                };
                let from = version.source_receipt.map_or(String::new(), |from| format!(" from {from}"));
                format!("\n  {} `{}`{state}{by}{from}", version.version, version.value)
            };
            format!("versions:{}", facts.ask(who, query)?.versions.into_iter().map(shown).collect::<String>())
        }
        "flag" => {
            facts.call("olga", SetFlag { name: words[0].into(), value: words[1].into() })?;
            "set".into()
        }
        verb => panic!("`{verb}` is no verb"),
    })
}

#[test]
fn a_forgotten_value_is_nowhere_to_be_read_and_comes_back_as_it_was() {
    check(
        "1s mara store scratch:a k one
         2s mara store scratch:a k two
         3s jon  edit #2 three reason=two_was_secret
         3s jon  store scratch:b k four
         3s mara store other k five
         4s mara delete #4
         5s jon  dry entity_prefix scratch:
         5s jon  forget entity_prefix scratch:
         6s jon  dry entity_prefix scratch:
         6s jon  recall scratch:a all
         6s jon  history scratch:a k
         6s jon  history scratch:b k
         7s mara undo r1
         7s jon  undo r1
         8s jon  undo r1
         8s jon  recall scratch:a all
         8s jon  history scratch:a k
         8s jon  history scratch:b k
         8s mara recall other",
        expect![[r#"
            #1 is version 1
            #2 is version 2
            #3 is version 3
            #4 is version 1
            #5 is version 1
            deleted: true
            4 would go: #1 #2 #3 #4
            r1: 4 for 7 days
            0 would go: 
            recalled: 
            versions:
              1 `` deleted by r1
              2 `` deleted by r1
              3 `` deleted by r1
            versions:
              1 `` deleted by r1
            refused: there is no forgetting `r1` (NOT_FOUND)
            4 are back, 1 active
            refused: forgetting `r1` was undone before (SPENT)
            recalled: 3 k=three, 2 k=two, 1 k=one
            versions:
              1 `one` superseded
              2 `two` superseded
              3 `three` from memory_edit:two_was_secret
            versions:
              1 `four` deleted
            recalled: 1 k=five
        "#]],
    );
}

#[test]
fn what_was_stored_after_a_forgetting_stays_the_active_version() {
    check(
        "1s mara store a k one
         2s mara forget entity_prefix a
         3s mara store a k two
         4s mara undo r1
         5s mara recall a all
         5s mara history a k
         6s mara forget entity_prefix a
         6s mara store a k three
         6s mara history a k",
        expect![[r#"
            #1 is version 1
            r1: 1 for 7 days
            #3 is version 2
            1 are back, 0 active
            recalled: 2 k=two, 1 k=one
            versions:
              1 `one` superseded
              2 `two`
            r2: 2 for 7 days
            #6 is version 3
            versions:
              1 `` deleted by r2
              2 `` deleted by r2
              3 `three`
        "#]],
    );
}

#[test]
fn each_scope_means_what_it_says_and_leaves_pinned_reserved_and_private_facts() {
    check(
        "1s mara store tenant:x::a plan:1 one
         2s mara store a plan:2 two
         3s mara store __ops::a plan:3 three
         4s mara store a plan:4 four private
         5s mara store a task five
         6s mara pin #2
         7s mara dry key_glob plan:*
         7s jon  dry key_glob plan:*
         7s mara dry tenant_id x
         7s mara dry before_timestamp 2030-03-17T17:46:42Z
         7s mara dry passport_id mara
         7s mara dry entity_prefix __agent::mara::
         7s mara dry entity_prefix __agent::jon::
         7s mara dry passport_id jon
         7s mara dry before_timestamp yesterday
         7s mara dry entity_prefix _
         7s jon  dry key_glob * budget=1
         7s jon  dry key_glob * budget=0
         7s eve  dry key_glob *
         8s mara forget passport_id mara
         8s mara recall a
         8s mara forget key_glob * tenant=other
         8s mara forget key_glob * tenant=acme budget=1
         8s mara flag CORECRUXD_FEATURE_SCOPED_FORGET off
         9s mara forget key_glob *
         9s mara dry key_glob plan:*",
        expect![[r#"
            #1 is version 1
            #2 is version 1
            #3 is version 1
            #4 is version 1
            #5 is version 1
            pinned: true
            1 would go: #1
            2 would go: #1 #2
            1 would go: #1
            1 would go: #1
            1 would go: #4
            1 would go: #4
            refused: private facts are forgotten by the passport that they belong to (-32003)
            refused: private facts are forgotten by the passport that they belong to (-32003)
            refused: `scope.value` must be an instant with an offset, such as 2026-11-30T12:00:00Z (-32602)
            0 would go: 
            1 would go: #1 (token_budget)
            refused: `token_budget` must be at least 1; leave it out to touch all in scope (-32602)
            0 would go: 
            r1: 1 for 7 days
            recalled: 1 task=five, 1 plan:2=two
            refused: there is no tenant `other` (NOT_FOUND)
            r2: 1 for 7 days (token_budget)
            set
            refused: memory_forget is switched off by the flag `CORECRUXD_FEATURE_SCOPED_FORGET` (CAPABILITY_DENIED)
            0 would go: 
        "#]],
    );
}

#[test]
fn the_window_ends_on_the_lease_clock_or_by_an_operator() {
    check(
        "1s mara flag CORECRUXD_FORGET_RECOVERY_WINDOW_DAYS 2
         1s mara store a k one
         1s mara store b k two
         2s mara forget entity_prefix a
         3s mara forget entity_prefix b
         4s mara end
         172801s mara undo r2
         172801s mara forget entity_prefix b
         172802s mara tick
         172802s mara undo r1
         172803s olga end
         172804s mara tick
         172805s mara undo r3
         172805s mara history b k",
        expect![[r#"
            set
            #2 is version 1
            #3 is version 1
            r1: 1 for 2 days
            r2: 1 for 2 days
            refused: ending recovery windows needs the scope `admin` (-32003)
            1 are back, 1 active
            r3: 1 for 2 days
            tick
            refused: forgetting `r1` can't be undone: its recovery window is over (SPENT)
            ended: 1
            tick
            refused: forgetting `r3` can't be undone: its recovery window is over (SPENT)
            versions:
              1 `` deleted by r3
        "#]],
    );
}

#[test]
fn a_forgetting_has_a_receipt_of_hashes_that_names_who_asked() {
    let mut facts = Facts::new();
    let stored = facts.store("mara", fact("a", "k", "one")).unwrap();
    let forget = |reason: &str| ForgetFacts {
        scope: scope("entity_prefix", "a"),
        reason: reason.into(),
        tenant_id: None,
        token_budget: None,
        cursor: None,
    };
    let refused = facts.call("jon", forget("  ")).unwrap_err();
    assert_eq!(refused.to_string(), "`reason` must not be empty: it stands in the receipt, for who asks later");
    let done = facts.call("jon", forget("a trial")).unwrap();
    let proof = facts.ask("mara", GetReceipt { receipt_id: done.receipt_id.clone(), tenant_id: None }).unwrap();
    assert_eq!((proof.signer_passport.as_deref(), &proof.faults, Some(&proof.body)), (Some("jon"), &Vec::new(), done.body.as_ref()));
    assert_eq!(proof.body_hash, done.body_hash);
    let body: serde_json::Value = ciborium::from_reader(proof.body.as_slice()).unwrap();
    expect![[r#"{"schema":"cuecrux.receipt.forget.v1","receipt_id":"r_0","tenant_id":"acme","passport_id":"jon","reason":"a trial","scope":{"type":"entity_prefix","value":"a"},"facts_affected":[{"fact_id":"f_0","pre_forget_value_hash_hex":"d33fb48ab5adff269ae172b29a6913ff04f6f266207a7a8e976f2ecd571d4492","entity":"a","key":"k"}],"initiated_at":"2030-03-17T17:46:40.000Z","recovery_window_ends_at":"2030-03-24T17:46:40.000Z"}"#]]
        .assert_eq(&body.to_string().replace(&stored.fact_id, "f_0").replace(&done.receipt_id, "r_0"));
}

/// The tables of which any byte, of keys or values, is of a text.
fn holds(facts: &Facts, text: &str) -> Vec<&'static str> {
    // An answer is stored as a list of numbers, each of which has a byte before it.
    let texts = [text.as_bytes().to_vec(), text.bytes().flat_map(|byte| [0x18, byte]).collect()];
    let mut found = Vec::new();
    for table in Table::ALL {
        let rows = facts.world.state.scan_bytes(table, &[], &[0xFF; 64], Direction::Ascending, usize::MAX).unwrap();
        let is_in = |bytes: &[u8]| texts.iter().any(|text| bytes.windows(text.len()).any(|window| window == text));
        if rows.iter().any(|(key, value)| is_in(key) || is_in(value)) {
            found.push(table.name());
        }
    }
    found
}

#[test]
fn a_purge_leaves_no_byte_of_a_value_in_the_state_and_a_late_retry_is_refused() {
    let mut facts = Facts::new();
    facts.now_ms = 1_000;
    let stored = facts.store("mara", fact("scratch:a", "k", "Xsecret1")).unwrap();
    let edit = EditFact { fact_id: stored.fact_id, new_value: "Xsecret2".into(), reason: Some("Xsecret3 was wrong".into()) };
    facts.call("mara", edit).unwrap();
    for n in 0..9 {
        facts.store("mara", fact("scratch:b", &format!("k{n}"), "Xsecret4")).unwrap();
    }
    assert_eq!(holds(&facts, "Xsecret"), ["records", "dedup"]);
    let mut cursor = None;
    let mut affected = 0;
    let mut receipts = Vec::new();
    loop {
        let command =
            ForgetFacts { scope: scope("entity_prefix", "scratch:"), reason: "r".into(), tenant_id: None, token_budget: None, cursor };
        let done = facts.call("mara", command).unwrap();
        affected += done.facts_affected;
        cursor = done.next_cursor;
        receipts.push(done.receipt_id);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(affected, 11, "several calls go over the whole scope");
    facts.call("olga", EndRecovery {}).unwrap();
    for _ in 0..3 {
        facts.now_ms += 1_000;
        facts.world.tick(&facts.now_ms.to_string());
    }
    assert_eq!(holds(&facts, "Xsecret"), Vec::<&str>::new());
    let ids_in = |facts: &mut Facts, receipt_id: &str, list: &str| {
        let proof = facts.ask("mara", GetReceipt { receipt_id: receipt_id.into(), tenant_id: None }).unwrap();
        let body: serde_json::Value = ciborium::from_reader(proof.body.as_slice()).unwrap();
        (body[list].clone(), body)
    };
    let mut purged = BTreeSet::new();
    for forgot in &receipts {
        let (ids, body) = ids_in(&mut facts, &forgot.replace("r_forget_", "r_purge_"), "purged_fact_ids");
        assert_eq!((&body["source_forget_receipt_id"], &body["schema"]), (&json!(forgot), &json!("cuecrux.receipt.permanent_purge.v1")));
        let (affected, _) = ids_in(&mut facts, forgot, "facts_affected");
        let affected: Vec<_> = affected.as_array().unwrap().iter().map(|fact| fact["fact_id"].clone()).collect();
        assert_eq!(ids, json!(affected), "a purge names what its forgetting did, in that order");
        purged.extend(affected.iter().map(|id| id.as_str().unwrap().to_string()));
    }
    let of_scope = facts.all("acme").into_iter().filter(|fact| fact.entity.starts_with("scratch:")).map(|fact| fact.fact_id);
    assert_eq!(purged, of_scope.collect::<BTreeSet<_>>());
    let due = erasures_due(&facts.world.state, Revision(0)).unwrap();
    assert_eq!(due.iter().map(|due| due.tenant.as_str()).collect::<BTreeSet<_>>(), BTreeSet::from(["acme"]));
    assert!(erasures_due(&facts.world.state, due.last().unwrap().revision).unwrap().is_empty());

    // The first storing, sent once more: its answer is gone, and it must not run again.
    let request = RequestId { id: "r1".into(), issued_at: UnixMs(WALL + 1_000), keyed: false };
    let call = Call { caller: person("mara"), request, under: None, command: fact("scratch:a", "k", "Xsecret1").into() };
    let entry = Entry { wall: UnixMs(WALL + facts.now_ms), advance_ms: 0, stamped_term: 1, body: Body::Call(call) };
    let decided = machine::apply(&mut facts.world.state, Revision(1_000), 1, entry).unwrap().unwrap();
    assert_eq!(decided.outcome.unwrap_err().code(), "REQUEST_TOO_OLD");
    assert_eq!(holds(&facts, "Xsecret"), Vec::<&str>::new());
    // Its number is not used again.
    assert_eq!(facts.all("acme").iter().filter(|fact| fact.entity == "scratch:a").map(|fact| fact.version).max(), Some(2));
}
