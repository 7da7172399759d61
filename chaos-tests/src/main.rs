//! `quorate-chaos`: hurts a cluster on purpose and holds what its clients saw to what is promised.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use quorate_chaos::{run, verdict};

/// Hurts a Quorate cluster on purpose and holds what its clients saw to what is promised.
#[derive(Parser)]
#[command(name = "quorate-chaos", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(Box<run::Options>),
    /// Judge a history that `run --history` wrote
    Check {
        /// The file of JSON lines
        history: PathBuf,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().verb {
        Verb::Run(options) => Ok(options.run().await),
        Verb::Check { history } => {
            let events = run::export::read(BufReader::new(File::open(history)?))?;
            let summary = run::outcome::Summary::of(&run::outcome::Run { events, ..Default::default() }, Vec::new());
            print!("{}", summary.text());
            Ok(ExitCode::from(u8::from(!summary.properties.iter().all(verdict::Property::is_kept))))
        }
    }
}
