use super::*;
use crate::search::source::visible;
use crate::transcript::{World, person};

fn hash(content: &str) -> String {
    blake3::hash(content.as_bytes()).to_hex().to_string()
}

fn begin(name: &str, content: &str, passages: u64) -> BeginDocument {
    BeginDocument { name: name.into(), content_hash: hash(content), media_type: "text/plain".into(), bytes: content.len() as u64, passages }
}

fn add(document_id: &str, from: u64, texts: &[&str]) -> AddPassages {
    let passage = |text: &&str| PassageText { heading: String::new(), text: text.to_string() };
    AddPassages { document_id: document_id.into(), from, passages: texts.iter().map(passage).collect() }
}

fn ingests(world: &mut World, name: &str, texts: &[&str]) -> String {
    let begun = world.call("0s", person("mara"), None, begin(name, &texts.concat(), texts.len() as u64)).unwrap();
    if !begun.is_complete {
        world.call("0s", person("mara"), None, add(&begun.document_id, 0, texts)).unwrap();
    }
    begun.document_id
}

/// The passages of a document that mara can find, with the name that they show.
fn found(world: &mut World, document_id: &str) -> Vec<(String, String)> {
    let at = ReadStamp { revision: Default::default(), lease_now: Default::default(), wall: Default::default(), caller: person("mara") };
    let keys = (0..20).map(|n| passage_key("acme", &format!("{document_id}#{n}")).unwrap());
    let documents = keys.filter_map(|key| visible(&world.state, &at, &key).unwrap());
    documents.map(|mut document| (document.names.swap_remove(0), document.text)).collect()
}

fn listed(world: &mut World) -> Vec<(String, bool)> {
    let list = ListDocuments { name_prefix: None, limit: 10, cursor: None };
    world.ask("0s", person("mara"), list).unwrap().documents.into_iter().map(|row| (row.name, row.is_complete)).collect()
}

#[test]
fn a_document_is_found_once_it_is_whole_and_an_interrupted_one_goes_on() {
    let mut world = World::new();
    let begun = world.call("0s", person("mara"), None, begin("a.md", "abc", 3)).unwrap();
    assert_eq!((begun.next_passage, begun.is_complete, begun.is_unchanged), (0, false, false));
    let id = begun.document_id;
    world.call("0s", person("mara"), None, add(&id, 0, &["a", "b"])).unwrap();
    assert!(found(&mut world, &id).is_empty());
    assert_eq!(listed(&mut world), [("a.md".to_string(), false)]);

    let again = world.call("0s", person("mara"), None, begin("a.md", "abc", 3)).unwrap();
    assert_eq!((again.document_id.as_str(), again.next_passage), (id.as_str(), 2));
    assert!(world.call("0s", person("mara"), None, add(&id, 0, &["a"])).is_err(), "it is there");
    assert!(world.call("0s", person("mara"), None, add(&id, 2, &["c", "d"])).is_err(), "more than was told");
    assert!(world.call("0s", person("mara"), None, add(&id, 2, &["c"])).unwrap().is_complete);
    assert_eq!(found(&mut world, &id).len(), 3);
    assert!(world.call("0s", person("mara"), None, begin("a.md", "abc", 3)).unwrap().is_unchanged);
    let check = CheckDocuments { documents: vec![("a.md".into(), hash("abc")), ("a.md".into(), hash("x")), ("b.md".into(), hash("abc"))] };
    assert_eq!(world.ask("0s", person("mara"), check.clone()).unwrap().unchanged, [true, false, false]);
    assert_eq!(world.ask("0s", person("eve"), check).unwrap().unchanged, [false; 3]);
}

#[test]
fn a_new_content_takes_the_name_when_it_is_whole_and_the_old_one_is_swept_away() {
    let mut world = World::new();
    let old = ingests(&mut world, "a.md", &["1", "2", "3", "4", "5", "6", "7"]);
    let begun = world.call("0s", person("mara"), None, begin("a.md", "new", 1)).unwrap();
    assert_eq!(found(&mut world, &old).len(), 7, "until the new one is there");
    world.call("0s", person("mara"), None, add(&begun.document_id, 0, &["new"])).unwrap();
    assert!(found(&mut world, &old).is_empty());
    assert_eq!(found(&mut world, &begun.document_id), [("a.md".to_string(), "new".to_string())]);
    let left = |world: &World| world.state.page::<Passage>("acme", &Key::new().text(&old), None, 20).unwrap().items.len();
    world.tick("1s");
    assert_eq!(left(&world), 4);

    // It comes back before it is gone, and only what is missing is sent.
    let back = world.call("1s", person("mara"), None, begin("b.md", "1234567", 7)).unwrap();
    assert_eq!((back.document_id.as_str(), back.next_passage), (old.as_str(), 4));
    world.tick("2s");
    world.call("2s", person("mara"), None, add(&old, 4, &["5", "6", "7"])).unwrap();
    assert_eq!(found(&mut world, &old).len(), 7);
    assert!(world.call("2s", person("mara"), None, RemoveDocument { name: "b.md".into() }).unwrap().removed);
    for second in 3..8 {
        world.tick(&format!("{second}s"));
    }
    assert_eq!(left(&world), 0);
    assert!(stored(&world.state, "acme", &old).unwrap().is_none());
    assert_eq!(listed(&mut world), [("a.md".to_string(), true)]);
}

#[test]
fn one_content_under_two_names_is_one_document_until_both_are_gone() {
    let mut world = World::new();
    let id = ingests(&mut world, "a.md", &["same"]);
    assert_eq!(ingests(&mut world, "b.md", &["same"]), id);
    assert!(world.call("0s", person("jon"), None, RemoveDocument { name: "a.md".into() }).unwrap().removed);
    assert_eq!(found(&mut world, &id), [("b.md".to_string(), "same".to_string())]);
    assert!(!world.call("0s", person("eve"), None, RemoveDocument { name: "b.md".into() }).unwrap().removed);
    assert!(world.call("0s", person("jon"), None, RemoveDocument { name: "b.md".into() }).unwrap().removed);
    assert!(found(&mut world, &id).is_empty());
    assert!(!world.call("0s", person("jon"), None, RemoveDocument { name: "b.md".into() }).unwrap().removed);
}

#[test]
fn what_can_not_be_a_document_is_refused() {
    let mut world = World::new();
    let mut tries = |command: BeginDocument| world.call("0s", person("mara"), None, command).is_err();
    assert!(tries(begin("", "a", 1)) && tries(begin("a", "a", 0)) && tries(begin("a", "a", DOCUMENT_PASSAGES_MAX as u64 + 1)));
    assert!(tries(BeginDocument { content_hash: "A".repeat(64), ..begin("a", "a", 1) }));
    assert!(tries(BeginDocument { bytes: DOCUMENT_BYTES_MAX as u64 + 1, ..begin("a", "a", 1) }));
    let begun = world.call("0s", person("mara"), None, begin("a", "a", 1)).unwrap();
    let long = "x".repeat(PASSAGE_BYTES_MAX + 1);
    assert!(world.call("0s", person("mara"), None, add(&begun.document_id, 0, &[&long])).is_err());
    assert!(world.call("0s", person("eve"), None, add(&begun.document_id, 0, &["a"])).is_err(), "another tenant's");
}
