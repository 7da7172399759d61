//! Configuration of the long-running verbs: defaults, then a TOML file, then the environment, then flags; the later wins.

use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Serialize, de::DeserializeOwned};

use crate::exit::Failure;

/// Reads a configuration. `env_prefix` is such as `QUORATE_NODE_`; fields are its lowercase rest.
pub fn read<C: Serialize + DeserializeOwned + Default>(file: Option<&Path>, env_prefix: &str, flags: impl Serialize) -> Result<C, Failure> {
    let mut figment = Figment::from(Serialized::defaults(C::default()));
    if let Some(file) = file {
        if !file.exists() {
            return Err(Failure::config(format!("there is no configuration file {}", file.display())));
        }
        figment = figment.merge(Toml::file_exact(file));
    }
    figment
        .merge(Env::prefixed(env_prefix))
        .merge(Serialized::globals(flags))
        .extract()
        .map_err(|error| Failure::config(format!("the configuration is wrong: {error}")))
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
        let read: quorate_node::Config = read(Some(&file), "QUORATE_TEST_NOTHING_", flags).expect("read");
        assert_eq!((read.node_id, read.cluster_id.as_str(), read.heartbeat_ms), (4, "from-flag", 100));
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("node.toml");
        std::fs::write(&file, "heartbeat = 3\n").expect("written");
        let failure = read::<quorate_node::Config>(Some(&file), "QUORATE_TEST_NOTHING_", serde_json::json!({})).expect_err("refused");
        assert!(failure.message.contains("heartbeat"), "{}", failure.message);
    }
}
