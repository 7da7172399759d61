//! `quorate man`: the manual, made from what `--help` says.

use std::path::PathBuf;

use clap::{Args, Command};

use crate::exit::Failure;

#[derive(Args)]
pub struct Man {
    /// Folder to write the pages into; it is made if it is not there
    dir: PathBuf,
}

impl Man {
    pub fn run(self, command: Command) -> Result<(), Failure> {
        let dir = self.dir.display();
        std::fs::create_dir_all(&self.dir).map_err(|error| Failure::failed(format!("cannot make {dir}: {error}")))?;
        clap_mangen::generate_to(command, &self.dir).map_err(|error| Failure::failed(format!("cannot write into {dir}: {error}")))
    }
}
