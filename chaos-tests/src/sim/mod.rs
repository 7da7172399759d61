//! Simulation: the whole cluster in one process and one thread, on simulated time, chosen by a seed and repeatable by it.
//!
//! What runs is the product: openraft, `quorate-raft` (log, apply, proposer, reads, snapshots, membership), the stores of
//! `quorate-storage`, the domain, the gRPC services of `quorate-node`, and the gateways' client of the cluster. Put in its place:
//! * the network, by turmoil's TCP between hosts ([`net`]): latency, cuts, loss. Nothing is retransmitted, so a lost message leaves
//!   its connection hanging, until HTTP/2's keep-alive finds out;
//! * RocksDB, by a database in memory that forgets at a crash what was not synced ([`disk`]);
//! * the clocks ([`clock`]) and all randomness ([`process`]).
//!
//! What this can't find, because it is not in it: faults of RocksDB and of the file system (`storage` has tests that kill and
//! damage), races between threads (there is one), time that passes while code computes or a state is flushed (there it stands
//! still), a partial write of small files such as the identity (they survive whole), gateways' HTTP side, TLS, a process that really
//! stands still (`hold` lets everything that it sends and is sent come late, and its disk stand still, but its timers run), and timers that run at different speeds: Tokio's are the same on all nodes, only the clocks behind
//! leases and timestamps drift.
//!
//! How repeatable it is: two runs of one executable with one seed give the same journal, byte by byte, and a test holds it to
//! that; with `RUST_LOG` set the nodes' logs come on standard error, and the run stays the same. Another build, another version of
//! a dependency or another machine's standard library may give another run for the seed.
//!
//! Reading order: [`run`] (one simulation), [`node`], [`workload`], [`team`], [`watcher`] and [`operator`] (who takes part), [`nemesis`] (what goes
//! wrong), [`check`] (what has to be true), [`plant`] (whether the checks would find a bug), then the parts that are put in place.

mod check;
mod clock;
mod disk;
mod journal;
mod nemesis;
mod net;
mod node;
mod operator;
mod plant;
mod process;
mod run;
mod states;
mod team;
mod watcher;
mod workload;

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use self::journal::Journal;
use self::plant::Plant;
use self::run::Verdict;

/// A run that takes longer hangs: simulated time has come to a stop. Far more than one takes on a machine that is busy with other things.
const RUN_MAX: Duration = Duration::from_secs(900);

/// Runs seeds, each in a process of its own, and adds up what they found.
#[derive(Args, Debug)]
pub struct Sim {
    /// How many seeds to run.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// The first seed; the others follow it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long faults happen in each run, in simulated seconds.
    #[arg(long, default_value_t = 20)]
    chaos_s: u64,
    /// Seeds at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
    /// Runs each seed twice: a run that differs from itself is a violation.
    #[arg(long)]
    twice: bool,
    /// One JSON object at the end instead of text.
    #[arg(long)]
    json: bool,
    /// Runs the first seed alone and prints its journal.
    #[arg(long)]
    journal: bool,
    /// Runs with a planted bug.
    #[arg(long)]
    plant: Option<Plant>,
    /// Plants each bug in turn and tells how many seeds it took to find it.
    #[arg(long)]
    plants: bool,
    /// Runs the first seed in this process: what this command starts for each seed.
    #[arg(long, hide = true)]
    here: bool,
}

impl Sim {
    /// 0: no violation, and every kind of fault did something. 1: a violation. 2: no violation, but some kind of fault never did
    /// anything in all runs, so that they prove less than they seem to.
    pub fn run(self) -> ExitCode {
        if self.here {
            return self.run_here();
        }
        if self.plants {
            return self.run_plants();
        }
        let total = self.total(|text| match self.json {
            // What is read by a program is on standard output alone.
            true => eprintln!("{text}"),
            false => println!("{text}"),
        });
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&total).expect("a total always encodes")),
            false => println!("{}", total.text()),
        }
        total.code()
    }

    /// So many seeds from one on, some at the same time.
    pub fn of(seed: u64, seeds: u64, jobs: u64, chaos_s: u64) -> Self {
        Self { seeds, seed, chaos_s, jobs, twice: false, json: false, journal: false, plant: None, plants: false, here: false }
    }

    /// Runs all seeds, telling of each when it has ended.
    pub fn total(&self, tell: impl Fn(String) + Sync) -> Total {
        let last = self.seed + if self.journal { 1 } else { self.seeds };
        let next = AtomicU64::new(self.seed);
        let verdicts = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Relaxed);
                        if seed >= last {
                            return;
                        }
                        let verdict = self.run_seed(seed);
                        tell(self.told(&verdict));
                        verdicts.lock().unwrap_or_else(PoisonError::into_inner).push(verdict);
                    }
                });
            }
        });
        let mut verdicts = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
        verdicts.sort_by_key(|verdict| verdict.seed);
        Total::of(verdicts)
    }

    fn run_seed(&self, seed: u64) -> Verdict {
        let mut verdict = self.run_apart(seed, self.plant);
        if self.twice {
            let again = self.run_apart(seed, self.plant);
            if again.journal_hash != verdict.journal_hash {
                let (one, other) = (&verdict.journal_hash, again.journal_hash);
                verdict.violations.push(format!("the seed is not repeatable: journal {one}, and then {other}"));
            }
        }
        verdict
    }

    /// 0 when each planted bug was found within the seeds it may take, else 1.
    fn run_plants(&self) -> ExitCode {
        let mut all_found = true;
        let mut rows = Vec::new();
        if !self.json {
            println!("{:<22} {:>6} {:>5}  found as", "planted bug", "seeds", "of");
        }
        for plant in Plant::value_variants() {
            let seeds = self.seed..self.seed + plant.seeds_max();
            let found = seeds.enumerate().find_map(|(number, seed)| {
                let verdict = self.run_apart(seed, Some(*plant));
                verdict.violations.first().map(|violation| (number + 1, violation.clone()))
            });
            let (took, what) = match &found {
                Some((took, violation)) => (took.to_string(), violation.chars().take(110).collect()),
                None => ("-".to_owned(), "NOT FOUND".to_owned()),
            };
            if !self.json {
                println!("{:<22} {took:>6} {:>5}  {what}", plant.name(), plant.seeds_max());
            }
            rows.push(json!({"bug": plant.name(), "workload": plant.workload(), "took": found.as_ref().map(|found| found.0),
                "may_take": plant.seeds_max(), "found_as": what}));
            all_found &= found.is_some();
        }
        if self.json {
            println!("{}", Value::from(rows));
        }
        if all_found { ExitCode::SUCCESS } else { ExitCode::from(1) }
    }

    fn run_here(&self) -> ExitCode {
        // Its name is left to chance, so that the same seed can run twice at the same time.
        let memory = std::path::Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("quorate-sim-").tempdir_in(root).expect("a folder for the files of the nodes");
        if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_default_env() {
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
        }
        if let Err(why) = process::enter(self.seed) {
            eprintln!("this run would not be repeatable: {why}");
            return ExitCode::from(2);
        }
        // On a new thread: what the standard library keeps for each, such as the keys of hash maps, was drawn by chance on this one.
        let (seed, chaos, plant, journal) = (self.seed, Duration::from_secs(self.chaos_s), self.plant, Journal::new(self.journal));
        let path = dir.path().to_owned();
        let run = std::thread::spawn(move || run::run(seed, chaos, plant, &path, journal));
        let Ok(verdict) = run.join() else { return ExitCode::from(2) };
        println!("{}", serde_json::to_string(&verdict).expect("a verdict always encodes"));
        ExitCode::SUCCESS
    }

    fn run_apart(&self, seed: u64, plant: Option<Plant>) -> Verdict {
        let broken = |why: String| Verdict {
            seed,
            violations: vec![why],
            bites: BTreeMap::new(),
            journal_lines: 0,
            journal_hash: String::new(),
            simulated_ms: 0,
        };
        let executable = std::env::current_exe().expect("the path of this executable");
        let mut command = Command::new(executable);
        command.args(["sim", "--here", "--seed", &seed.to_string(), "--chaos-s", &self.chaos_s.to_string()]);
        command.args(self.journal.then_some("--journal"));
        if let Some(plant) = plant {
            command.args(["--plant", &plant.name()]);
        }
        let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => return broken(format!("the run was not started: {error}")),
        };
        let mut stdout = child.stdout.take().expect("it is piped");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            let read = stdout.read_to_string(&mut text).map(|_| text);
            // The other side has gone when the run took too long.
            let _ = sender.send(read);
        });
        let begun = Instant::now();
        let text = receiver.recv_timeout(RUN_MAX);
        if text.is_err() {
            let _ = child.kill();
        }
        let status = child.wait();
        let Ok(Ok(text)) = text else { return broken(format!("the run did not end within {:?}", begun.elapsed())) };
        let (journal, verdict) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
        if self.journal {
            println!("{journal}");
        }
        serde_json::from_str(verdict).unwrap_or_else(|_| broken(format!("the run ended without a verdict: {status:?}")))
    }

    fn told(&self, verdict: &Verdict) -> String {
        let Verdict { seed, violations, journal_lines, journal_hash, simulated_ms, .. } = verdict;
        let outcome = if violations.is_empty() { "pass" } else { "VIOLATION" };
        let mut text =
            format!("seed {seed}: {outcome}, {} s simulated, {journal_lines} lines, journal {journal_hash}", simulated_ms / 1_000);
        for violation in violations.iter().take(10) {
            text += &format!("\n  {violation}");
        }
        if !violations.is_empty() {
            text += &format!("\n  repeat: quorate-chaos sim --seed {seed} --chaos-s {} --journal", self.chaos_s);
        }
        text
    }
}

/// All runs together.
#[derive(serde::Serialize)]
pub struct Total {
    pub runs: usize,
    pub violating_seeds: Vec<u64>,
    pub violations: Vec<String>,
    pub bites: BTreeMap<String, u64>,
    /// What never happened.
    pub never: Vec<String>,
    verdicts: Vec<Verdict>,
}

impl Total {
    fn of(verdicts: Vec<Verdict>) -> Self {
        let mut bites: BTreeMap<String, u64> = BTreeMap::new();
        for (name, times) in verdicts.iter().flat_map(|verdict| &verdict.bites) {
            *bites.entry(name.clone()).or_default() += times;
        }
        for kind in nemesis::Kind::ALL {
            bites.entry(format!("fault: {}", kind.name())).or_default();
        }
        Self {
            runs: verdicts.len(),
            violating_seeds: verdicts.iter().filter(|verdict| !verdict.violations.is_empty()).map(|verdict| verdict.seed).collect(),
            violations: verdicts.iter().flat_map(|verdict| verdict.violations.clone()).collect(),
            never: bites.iter().filter(|(_, times)| **times == 0).map(|(name, _)| name.clone()).collect(),
            bites,
            verdicts,
        }
    }

    fn text(&self) -> String {
        let bites: String = self.bites.iter().map(|(name, times)| format!("{times:>8}  {name}\n")).collect();
        format!("\n{bites}\n{}", self.outcome())
    }

    /// In one line.
    pub fn outcome(&self) -> String {
        match (self.violating_seeds.as_slice(), self.never.as_slice()) {
            ([], []) => format!("pass: {} runs, no violation, and every kind of fault did something", self.runs),
            ([], never) => format!("inconclusive: {} runs, no violation, but these never happened: {}", self.runs, never.join(", ")),
            (seeds, _) => format!("violation: {} of {} runs, seeds {seeds:?}", seeds.len(), self.runs),
        }
    }

    fn code(&self) -> ExitCode {
        match (self.violating_seeds.is_empty(), self.never.is_empty()) {
            (true, true) => ExitCode::SUCCESS,
            (true, false) => ExitCode::from(2),
            (false, _) => ExitCode::from(1),
        }
    }
}
