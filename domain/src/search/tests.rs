use std::collections::BTreeSet;

use super::*;
use crate::fact::{Confidence, DeleteFact, StoreFact};
use crate::limit::{SEARCH_FEED_REVISIONS, SEARCH_GAPS_MAX};
use crate::machine::Clock;
use crate::stamp::Revision;
use crate::transcript::{World, person};

fn fact(key: &str, value: &str) -> StoreFact {
    StoreFact {
        entity: "svc:api".into(),
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

fn changed(world: &World, since: u64) -> Changes {
    let applied = Clock::read(&world.state).unwrap().revision;
    changes_after(&world.state, Revision(since), applied, 3).unwrap()
}

#[test]
fn every_change_of_what_can_be_found_is_told_in_order_and_never_half() {
    let mut world = World::new();
    let first = world.call("0s", person("mara"), None, fact("owner", "a")).unwrap().fact_id;
    let Changes::Keys { keys, through } = changed(&world, 0) else { panic!("all is there") };
    assert_eq!((keys.len(), through), (1, Revision(1)));
    assert_eq!(document(&world.state, &keys[0]).unwrap().unwrap().text, "a");

    // The version before and the new one are told of together.
    let second = world.call("0s", person("mara"), None, fact("owner", "b")).unwrap().fact_id;
    let Changes::Keys { keys, .. } = changed(&world, 1) else { panic!("all is there") };
    let texts: Vec<Option<String>> = keys.iter().map(|key| document(&world.state, key).unwrap().map(|found| found.text)).collect();
    assert_eq!(texts, [None, Some("b".into())]);

    assert!(world.call("0s", person("jon"), None, DeleteFact { fact_id: "f_unknown".into() }).is_err());
    world.call("0s", person("mara"), None, DeleteFact { fact_id: second }).unwrap();
    let Changes::Keys { keys, through } = changed(&world, 2) else { panic!("all is there") };
    assert_eq!((keys.len(), through), (1, Revision(4)), "a refusal changes nothing that can be found");
    assert_eq!(document(&world.state, &keys[0]).unwrap(), None);
    let Changes::Keys { keys, through } = changed(&world, 0) else { panic!("all is there") };
    assert_eq!((keys.len(), through), (2, Revision(2)), "a page ends with a revision");
    assert!(world.call("0s", person("mara"), None, DeleteFact { fact_id: first }).is_ok());
}

#[test]
fn who_is_too_far_behind_is_told_so() {
    let mut world = World::new();
    for n in 0..3 * SEARCH_FEED_REVISIONS {
        world.call("0s", person("mara"), None, fact(&format!("k{n}"), "v")).unwrap();
    }
    assert_eq!(changed(&world, 0), Changes::Gone);
    let kept = 3 * SEARCH_FEED_REVISIONS - SEARCH_FEED_REVISIONS;
    assert!(matches!(changed(&world, kept), Changes::Keys { .. }));
}

#[test]
fn a_walk_meets_everything_that_can_be_found_once() {
    let mut world = World::new();
    for (who, n) in [("mara", 0), ("eve", 1), ("jon", 2), ("mara", 3)] {
        world.call("0s", person(who), None, fact(&format!("k{n}"), "v")).unwrap();
    }
    let (mut found, mut from) = (Vec::new(), Some(Vec::new()));
    while let Some(start) = from {
        let walked = walk(&world.state, &start, 2).unwrap();
        found.extend(walked.documents.into_iter().map(|document| (document.tenant, document.names[0].clone())));
        from = walked.next;
    }
    let expected = [("acme", "k0"), ("acme", "k2"), ("acme", "k3"), ("other", "k1")];
    assert_eq!(found, expected.map(|(tenant, key)| (tenant.to_string(), key.to_string())));
}

#[test]
fn gaps_are_words_alone_the_last_first_and_so_many_are_kept() {
    let mut world = World::new();
    let note = |world: &mut World, time: &str, words: &str| world.call(time, person("mara"), None, RecordGap { words: words.into() });
    assert_eq!(note(&mut world, "0s", "Lighthouse POL-358").unwrap().times, 1);
    assert_eq!(note(&mut world, "1s", "pol-358 lighthouse").unwrap().times, 2, "the same words in another order");
    assert!(note(&mut world, "1s", " ").is_err());
    for n in 0..SEARCH_GAPS_MAX {
        note(&mut world, "2s", &format!("word{n}")).unwrap();
    }
    let list = |world: &mut World, query: Option<&str>| {
        let gaps = world.ask("3s", person("jon"), ListGaps { query: query.map(Into::into), limit: 50, cursor: None }).unwrap();
        gaps.gaps.into_iter().map(|gap| gap.words).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut world, None), ["word4", "word3", "word2", "word1", "word0"]);
    assert_eq!(list(&mut world, Some("Word3")), ["word3"]);
    let (mut paged, mut cursor) = (Vec::new(), None);
    loop {
        let page = world.ask("3s", person("jon"), ListGaps { query: None, limit: 2, cursor }).unwrap();
        paged.push(page.gaps.into_iter().map(|gap| gap.words).collect::<Vec<_>>().join(" "));
        // What is noted again while somebody pages has been seen, and comes once.
        note(&mut world, "4s", "word4").unwrap();
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(paged, ["word4 word3", "word2 word1", "word0"]);
    let foreign = world.ask("3s", person("jon"), ListGaps { query: None, limit: 2, cursor: Some("00".into()) });
    assert!(foreign.unwrap_err().to_string().contains("cursor"));
    assert!(world.ask("3s", person("eve"), ListGaps { query: None, limit: 50, cursor: None }).unwrap().gaps.is_empty());
}
