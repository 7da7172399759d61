//! `quorate-bench`: Quorate and etcd side by side on this machine: the same load, fsync on, three processes each on loopback.
//!
//! Systems take turns (A B A B) and only one runs at a time, so that neither waits for the other's disk. A turn starts a
//! fresh cluster, runs every cell (a kind of work at a number of clients), and ends what it started. The load is a closed
//! loop against the leader's gRPC address, without a gateway. The client runs on the same cores as the servers, so absolute
//! figures are lower than a machine of its own would give; the ratios are what this is for.
//!
//! Reading order: [`load`] (the loop), [`quorate`] and [`etcd`] (the two systems), [`machine`] (processes and the disk),
//! [`report`] (the table).

mod etcd;
mod fsync;
mod load;
mod machine;
mod quorate;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};

use crate::load::{System, Work};
use crate::report::{Report, Row};

/// Measures Quorate and etcd side by side and prints one table.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Systems to measure, in the order of their turns
    #[arg(long, value_delimiter = ',', default_values = ["quorate", "etcd"])]
    systems: Vec<SystemName>,
    /// Kinds of work
    #[arg(long, value_delimiter = ',', default_values = ["store", "read", "lease"])]
    work: Vec<Work>,
    /// Numbers of clients, each a closed loop of its own
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    clients: Vec<usize>,
    /// Measured seconds of a cell in one turn; a fifth of it, at least one second, goes before as a warm-up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Turns of each system
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=20))]
    rounds: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    value_bytes: u64,
    /// Folder for the data of all systems; it must lie on a disk. By default beside this executable
    #[arg(long)]
    data: Option<PathBuf>,
    /// The executable of Quorate. By default the one beside this executable
    #[arg(long)]
    quorate: Option<PathBuf>,
    /// The executable of etcd
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// Print one JSON object in place of the table
    #[arg(long)]
    json: bool,
    /// Leave data and logs in place
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SystemName {
    Quorate,
    Etcd,
}

/// The most that may go into starts and stops of one turn, above its measured time.
const TURN_OVERHEAD: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() -> ExitCode {
    match run(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quorate-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> anyhow::Result<()> {
    let beside = std::env::current_exe()?.parent().context("the executable has no folder")?.to_path_buf();
    let data = options.data.clone().unwrap_or_else(|| beside.join("bench-data")).join(format!("run-{}", std::process::id()));
    std::fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
    let measured = tokio::select! {
        measured = measure(&options, &data, &beside) => measured,
        _ = machine::interrupted() => Err(anyhow::anyhow!("interrupted")),
    };
    if options.keep || measured.is_err() {
        eprintln!("data and logs are in {}", data.display());
    } else {
        std::fs::remove_dir_all(&data)?;
    }
    let report = measured?;
    match options.json {
        true => println!("{}", serde_json::to_string(&report.to_json())?),
        false => println!("{report}"),
    }
    if report.failed() {
        bail!("the run is not valid; see above");
    }
    Ok(())
}

async fn measure(options: &Options, data: &Path, beside: &Path) -> anyhow::Result<Report> {
    let mut report = Report::new(machine::Machine::probe(data)?, options.value_bytes);
    let cells = options.work.len() * options.clients.len();
    let bound = TURN_OVERHEAD + (warm_up(options) + Duration::from_secs(options.seconds + 11)) * u32::try_from(cells)?;
    for round in 1..=options.rounds {
        for name in &options.systems {
            let home = data.join(format!("{name:?}-{round}").to_lowercase());
            std::fs::create_dir_all(&home)?;
            let turn = async {
                match name {
                    SystemName::Quorate => {
                        let executable = options.quorate.clone().unwrap_or_else(|| beside.join("quorate"));
                        take_turn(options, &quorate::Quorate::start(&executable, &home).await?, &mut report).await
                    }
                    SystemName::Etcd => take_turn(options, &etcd::Etcd::start(&options.etcd, &home).await?, &mut report).await,
                }
            };
            eprintln!("round {round} of {}: {name:?}", options.rounds);
            tokio::time::timeout(bound, turn).await.with_context(|| format!("{name:?} took longer than {} s", bound.as_secs()))??;
            if !options.keep {
                std::fs::remove_dir_all(&home)?;
            }
        }
    }
    Ok(report)
}

/// Every cell once, then the look from outside at whether the leader's log reaches the disk.
async fn take_turn<S: System>(options: &Options, system: &S, report: &mut Report) -> anyhow::Result<()> {
    report.versions.insert(S::NAME.into(), system.version().await?);
    for &work in &options.work {
        load::prepare(system, work, options.value_bytes).await?;
        for &clients in &options.clients {
            let target = system.aim(clients).await?;
            let sample = load::run::<S>(&target, work, clients, options.value_bytes, warm_up(options), options.seconds).await?;
            let row = Row { system: S::NAME.into(), work, clients, samples: vec![sample] };
            eprintln!("  {}", row.line());
            report.add(row);
        }
    }
    let seen = fsync::watch::<S>(system, options.value_bytes).await?;
    eprintln!("  {}", seen.line());
    report.fsyncs.push(seen);
    Ok(())
}

fn warm_up(options: &Options) -> Duration {
    Duration::from_secs((options.seconds / 5).max(1))
}
