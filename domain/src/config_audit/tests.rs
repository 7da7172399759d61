//! Transcripts of audits.

use super::*;
use crate::fact::{FactHistory, StoreFact};
use crate::transcript::{World, person};

fn audit(world: &mut World, who: &str, path: &str, sha256: &str) -> Result<ConfigAudited, Refusal> {
    let command = AuditConfig { path: path.into(), sha256: sha256.into(), auditor: "ops@acme".into(), note: Some("PR 7".into()) };
    world.call("1s", person(who), None, command)
}

fn file(path: &str, sha256: &str) -> ConfigFile {
    ConfigFile { path: path.into(), sha256: sha256.into() }
}

#[test]
fn a_second_audit_of_a_hash_updates_the_one_record() {
    let mut world = World::new();
    let (one, two) = ("0a".repeat(32), "0b".repeat(32));
    assert!(audit(&mut world, "mara", "settings.json", &one).unwrap().created);
    assert!(!audit(&mut world, "jon", "moved/settings.json", &one).unwrap().created);
    let ask = CheckConfigAudit { files: vec![file("here.json", &one), file("CLAUDE.md", &two)] };
    let checked = world.ask("2s", person("ben"), ask.clone()).unwrap();
    assert_eq!(checked.unaudited, [file("CLAUDE.md", &two)]);
    let [(asked, found)] = &checked.audited[..] else { panic!("one was audited") };
    assert_eq!((asked.path.as_str(), found.path.as_str(), found.auditor.as_str()), ("here.json", "moved/settings.json", "ops@acme"));
    // Kept as the versions of one fact, with who called as the actor.
    let history = FactHistory { entity: ENTITY.into(), key: format!("sha256:{one}"), limit: 10, cursor: None };
    let versions = world.ask("2s", person("ben"), history).unwrap().versions;
    assert_eq!(versions.iter().map(|version| version.actor.as_str()).collect::<Vec<_>>(), ["mara", "jon"]);
    assert_eq!(world.ask("2s", person("eve"), ask).unwrap().audited, [], "of another tenant");
}

#[test]
fn only_the_service_writes_audits_and_only_of_hashes() {
    let mut world = World::new();
    for bad in ["0A".repeat(32), "0a".repeat(31), String::new()] {
        assert_eq!(audit(&mut world, "mara", "a", &bad).unwrap_err().code(), "-32602");
        let ask = CheckConfigAudit { files: vec![file("a", &bad)] };
        assert_eq!(world.ask("2s", person("mara"), ask).unwrap_err().code(), "-32602");
    }
    let many = CheckConfigAudit { files: vec![file("a", &"0a".repeat(32)); AUDITED_ITEMS_MAX + 1] };
    assert_eq!(world.ask("2s", person("mara"), many).unwrap_err().code(), "-32602");
    let forged = StoreFact {
        entity: ENTITY.into(),
        key: format!("sha256:{}", "0a".repeat(32)),
        value: r#"{"path":"a","auditor":"me","ts":"now"}"#.into(),
        source_receipt: None,
        confidence: Confidence::FULL,
        private: false,
        horizon_class: None,
        freshness_horizon: None,
        supersedes: Default::default(),
    };
    assert_eq!(world.call("1s", person("mara"), None, forged).unwrap_err().code(), "-32003");
}
