//! Configuration of the long-running verbs: defaults, then a TOML file, then the environment, then flags; the later wins.

use std::collections::BTreeMap;
use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Serialize, de::DeserializeOwned};

use crate::exit::Failure;

/// Names in the environment that are documented beside those with the prefix, and the fields of a gateway that they set.
pub const GATEWAY_NAMES: [(&str, &str); 2] =
    [("CRUX_EXECPLANS_ROOT", "execplans_root"), ("CORECRUXD_APPROVALS_SLACK_WEBHOOK_URL", "approvals_slack_webhook_url")];

/// Reads a configuration. `env_prefix` is such as `QUORATE_NODE_`; fields are its lowercase rest. `names` are further ones in the
/// environment, and what they set.
pub fn read<C: Serialize + DeserializeOwned + Default>(
    file: Option<&Path>,
    env_prefix: &str,
    names: &'static [(&'static str, &'static str)],
    flags: impl Serialize,
) -> Result<C, Failure> {
    let mut figment = Figment::from(Serialized::defaults(C::default()));
    if let Some(file) = file {
        if !file.exists() {
            return Err(Failure::config(format!("there is no configuration file {}", file.display())));
        }
        figment = figment.merge(Toml::file_exact(file));
    }
    figment
        // As text, whatever it looks like: figment would read a folder called `1` as a number.
        .merge(Serialized::globals(named(names, |name| std::env::var(name).ok())))
        .merge(Env::prefixed(env_prefix))
        .merge(Serialized::globals(flags))
        .extract()
        .map_err(|error| Failure::config(format!("the configuration is wrong: {error}")))
}

/// Those of the names that are set, and not to nothing.
fn named(names: &'static [(&'static str, &'static str)], of: impl Fn(&str) -> Option<String>) -> BTreeMap<&'static str, String> {
    let set = |(name, field): &(&'static str, &'static str)| Some((*field, of(name).filter(|value| !value.is_empty())?));
    names.iter().filter_map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_both_processes_is_documented() {
        let page = include_str!("../../docs/configuration.md");
        let node = serde_json::to_value(quorate_node::Config::default()).expect("plain data");
        let gateway = serde_json::to_value(quorate_gateway::Config::default()).expect("plain data");
        for field in [node, gateway].iter().flat_map(|config| config.as_object().expect("an object").keys()) {
            assert!(page.contains(&format!("| `{field}` |")), "docs/configuration.md says nothing of `{field}`");
        }
    }

    #[test]
    fn a_file_wins_over_defaults_and_flags_win_over_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("node.toml");
        std::fs::write(&file, "node_id = 4\ncluster_id = \"from-file\"\n").expect("written");
        let flags = serde_json::json!({"cluster_id": "from-flag"});
        let read: quorate_node::Config = read(Some(&file), "QUORATE_TEST_NOTHING_", &[], flags).expect("read");
        assert_eq!((read.node_id, read.cluster_id.as_str(), read.heartbeat_ms), (4, "from-flag", 100));
    }

    #[test]
    fn names_that_are_documented_beside_the_prefix_set_their_fields() {
        let set: BTreeMap<&str, &str> =
            [("CRUX_EXECPLANS_ROOT", "/srv/plans"), ("CORECRUXD_APPROVALS_SLACK_WEBHOOK_URL", "https://hooks.example/1")].into();
        let of = |name: &str| set.get(name).map(ToString::to_string);
        let named = named(&GATEWAY_NAMES, of);
        let config: quorate_gateway::Config = Figment::from(Serialized::defaults(quorate_gateway::Config::default()))
            .merge(Serialized::globals(named))
            .extract()
            .expect("they are fields");
        assert_eq!(config.execplans_root.as_deref(), Some(Path::new("/srv/plans")));
        assert_eq!(config.approvals_slack_webhook_url.as_deref(), Some("https://hooks.example/1"));
        assert!(super::named(&GATEWAY_NAMES, |_| Some(String::new())).is_empty(), "set to nothing is not set");
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("node.toml");
        std::fs::write(&file, "heartbeat = 3\n").expect("written");
        let failure = read::<quorate_node::Config>(Some(&file), "QUORATE_TEST_NOTHING_", &[], serde_json::json!({})).expect_err("refused");
        assert!(failure.message.contains("heartbeat"), "{}", failure.message);
    }
}
