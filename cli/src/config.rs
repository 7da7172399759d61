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
