//! `quorate-chaos`: hurts a cluster on purpose and holds what its clients saw to what is promised.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use quorate_chaos::campaign::Campaign;
use quorate_chaos::fuzz::Fuzz;
use quorate_chaos::sim::Sim;
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
    /// Simulate whole clusters under faults, each chosen by its seed and repeatable by it
    Sim(Sim),
    Campaign(Box<Campaign>),
    Fuzz(Box<Fuzz>),
    /// Judge a history that `run --history` wrote
    Check {
        /// The file of JSON lines
        history: PathBuf,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    quorate_link::install_crypto();
    match Cli::parse().verb {
        // A simulation has a runtime and a clock of its own.
        Verb::Sim(sim) => Ok(sim.run()),
        Verb::Run(options) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            Ok(runtime.block_on(options.run()))
        }
        Verb::Campaign(campaign) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(campaign.run())
        }
        Verb::Fuzz(fuzz) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(fuzz.run())
        }
        Verb::Check { history } => {
            let events = run::export::read(BufReader::new(File::open(history)?))?;
            let summary = run::outcome::Summary::of(&run::outcome::Run { events, ..Default::default() }, Vec::new());
            print!("{}", summary.text());
            Ok(ExitCode::from(u8::from(!summary.properties.iter().all(verdict::Property::is_kept))))
        }
    }
}
