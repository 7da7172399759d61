//! `quorate-chaos`: breaks clusters on purpose and tells what came of it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use quorate_chaos::sim::Sim;

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulates whole clusters under faults, each chosen by its seed and repeatable by it.
    Sim(Sim),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Sim(sim) => sim.run(),
    }
}
