//! `quorate-chaos campaign`: simulated seeds, each fault alone among real processes, then all of them together; at the end one table and
//! one word.
//!
//! Each run is a process of its own, so that one that breaks down takes nothing with it. What it told lies in the folder: the report, the
//! history, its log, and `summary.md`, which is also printed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::run::namespaces;
use crate::run::nemesis::Nemesis;
use crate::run::outcome::Verdict;
use crate::run::report;
use crate::sim::{Sim, Total};

/// Simulate many seeds, make each fault alone among real processes, then all together, and add up what was found
///
/// Exit codes as of `run`: 0 pass, 1 a promise was broken in one of the runs, 2 one of them was inconclusive.
#[derive(Args, Clone, Debug)]
pub struct Campaign {
    /// Seeds to simulate
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// How long each run among real processes makes faults
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// The same of the run of all faults together [default: as --seconds]
    #[arg(long)]
    together_seconds: Option<u64>,
    /// Faults that get a run of their own, separated by commas [default: every one]
    #[arg(long, value_delimiter = ',')]
    nemesis: Vec<Nemesis>,
    /// The first seed of the simulation, and of the runs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs at the same time. More than the machine has cores for show the machine's limits, not the cluster's
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Folder for reports, histories and logs
    #[arg(long, default_value = "target/chaos")]
    out: PathBuf,
    /// The executable under test [default: `quorate` beside this one]
    #[arg(long, env = "QUORATE")]
    quorate: Option<PathBuf>,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

/// A run that has not ended so long after its faults hangs: it waits, checks and looks at everything within that.
const ENDS_WITHIN: Duration = Duration::from_secs(900);
/// Simulated seconds of faults in each seed.
const CHAOS_S: u64 = 20;

/// One run to be made.
#[derive(Clone, Debug)]
struct Plan {
    name: String,
    arguments: Vec<String>,
    seconds: u64,
}

/// What one run came to.
#[derive(Clone, Debug, Serialize)]
struct Row {
    name: String,
    verdict: Verdict,
    operations: u64,
    acknowledged_writes: u64,
    unknown: u64,
    faults: u64,
    /// How many of them left a trace.
    bit: u64,
    leaders: u64,
    latency_p99_ms: f64,
    gap_max_ms: f64,
    /// What was broken or untried.
    notes: Vec<String>,
    command: String,
}

/// Everything.
#[derive(Serialize)]
struct Summary {
    verdict: Verdict,
    minutes: f64,
    simulation: Option<Total>,
    runs: Vec<Row>,
}

impl Campaign {
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make {}", self.out.display()))?;
        let begun = Instant::now();
        let simulation = match self.seeds {
            0 => None,
            seeds => {
                eprintln!("simulating {seeds} seeds");
                let sim = Sim::of(self.seed, seeds, self.jobs, CHAOS_S);
                let total = tokio::task::spawn_blocking(move || sim.total(|text| eprintln!("  {text}"))).await?;
                eprintln!("{}", total.outcome());
                Some(total)
            }
        };
        let runs = self.runs().await?;
        let verdicts = runs.iter().map(|row| row.verdict).chain(simulation.iter().map(of_simulation));
        let summary = Summary { verdict: worst(verdicts), minutes: begun.elapsed().as_secs_f64() / 60.0, simulation, runs };
        let text = summary.text();
        fs::write(self.out.join("summary.md"), &text)?;
        fs::write(self.out.join("summary.json"), serde_json::to_string_pretty(&summary)?)?;
        fs::write(self.out.join("index.html"), summary.page())?;
        match self.json {
            true => println!("{}", serde_json::to_string(&summary)?),
            false => print!("{text}\nreports: {}\n", self.out.join("index.html").display()),
        }
        Ok(ExitCode::from(summary.verdict.exit_code()))
    }

    fn plans(&self) -> Vec<Plan> {
        let alone: &[Nemesis] = if self.nemesis.is_empty() { &Nemesis::ALL } else { &self.nemesis };
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let mut plans: Vec<Plan> = alone
            .iter()
            .map(|nemesis| {
                let mut arguments = words(&["--nemesis", nemesis.word()]);
                if nemesis.nodes_min() > 3 {
                    arguments.extend(["--nodes".to_owned(), nemesis.nodes_min().to_string()]);
                }
                Plan { name: nemesis.word().into(), arguments, seconds: self.seconds }
            })
            .collect();
        let seconds = self.together_seconds.unwrap_or(self.seconds);
        if self.nemesis.is_empty() && seconds > 0 {
            // One after the other under the team of a day, and two at a time.
            plans.push(Plan { name: "day-of-50".into(), arguments: words(&["--nemesis", "all", "--workload", "day"]), seconds });
            let together = words(&["--nemesis", "all", "--overlap", "--nodes", "5"]);
            plans.push(Plan { name: "all-together".into(), arguments: together, seconds });
        }
        if self.nemesis.is_empty() {
            match namespaces::unavailable() {
                // Packets are dropped, and not only bytes held back.
                None => {
                    let faults = "kill-leader,pause-leader,partition-leader,partition-follower,bridge,one-way,flaky-links,membership";
                    let arguments = words(&["--nemesis", faults, "--netns", "--nodes", "5"]);
                    plans.push(Plan { name: "packet-loss".into(), arguments, seconds: self.seconds });
                }
                Some(why) => eprintln!("without the run in which packets are dropped: {why}"),
            }
        }
        plans.retain(|plan| plan.seconds > 0);
        plans
    }

    async fn runs(&self) -> anyhow::Result<Vec<Row>> {
        let plans = self.plans();
        let places = Arc::new(Semaphore::new(self.jobs as usize));
        let mut made = JoinSet::new();
        for (place, plan) in plans.iter().cloned().enumerate() {
            let (campaign, places, of) = (self.clone(), Arc::clone(&places), plans.len());
            made.spawn(async move {
                let _place = places.acquire_owned().await;
                eprintln!("[{:>2}/{of}] {}: {} s", place + 1, plan.name, plan.seconds);
                let row = campaign.make(&plan, campaign.seed + place as u64).await?;
                let Row { name, operations, faults, bit, .. } = &row;
                let notes: String = row.notes.iter().map(|note| format!("\n        {note}")).collect();
                let word = row.verdict.word();
                eprintln!("[{:>2}/{of}] {name}: {word}, {operations} operations, {bit} of {faults} faults bit{notes}", place + 1);
                anyhow::Ok((place, row))
            });
        }
        let mut rows = Vec::new();
        while let Some(row) = made.join_next().await {
            rows.push(row??);
        }
        rows.sort_by_key(|(place, _)| *place);
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    async fn make(&self, plan: &Plan, seed: u64) -> anyhow::Result<Row> {
        let file = |ending: &str| self.out.join(format!("{}.{ending}", plan.name));
        let numbers = [("--seconds", plan.seconds), ("--seed", seed)];
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("run").args(&plan.arguments).arg("--json");
        command.args(numbers.into_iter().flat_map(|(name, number)| [name.to_owned(), number.to_string()]));
        command.arg("--report").arg(file("html")).arg("--history").arg(file("jsonl"));
        command.args(self.quorate.iter().flat_map(|quorate| [Path::new("--quorate"), quorate.as_path()]));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(file("log"))?).kill_on_drop(true);
        let run = command.spawn()?.wait_with_output();
        let ended = tokio::time::timeout(Duration::from_secs(plan.seconds) + ENDS_WITHIN, run).await;
        let told = match ended {
            Ok(output) => serde_json::from_slice(&output?.stdout).unwrap_or(Value::Null),
            Err(_) => Value::Null,
        };
        Ok(Row::of(plan, &told, &file("log")))
    }
}

impl Row {
    /// From what a run printed.
    fn of(plan: &Plan, told: &Value, log: &Path) -> Self {
        let number = |name: &str| told[name].as_u64().unwrap_or(0);
        let list = |name: &str| told[name].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut notes = Vec::new();
        for property in list("properties") {
            let findings = property["findings"].as_array().map_or(0, Vec::len);
            if findings > 0 {
                notes.push(format!("BROKEN {}: {}", text(&property["name"]), text(&property["findings"][0]["text"])));
            }
        }
        notes.extend(list("coverage").iter().filter(|point| point["bit"] == 0).map(|point| format!("untried: {}", text(&point["name"]))));
        let of_faults = |point: &&Value| Nemesis::ALL.iter().any(|nemesis| point["name"] == nemesis.word());
        let sum = |name: &str| list("coverage").iter().filter(of_faults).filter_map(|point| point[name].as_u64()).sum();
        let verdict = match told["verdict"].as_str() {
            Some("pass") => Verdict::Pass,
            Some("violation") => Verdict::Violation,
            Some(_) => Verdict::Inconclusive,
            None => {
                notes.push(format!("the run did not take place; {} says why", log.display()));
                Verdict::Inconclusive
            }
        };
        Self {
            name: plan.name.clone(),
            verdict,
            operations: number("operations"),
            acknowledged_writes: number("acknowledged_writes"),
            unknown: number("unknown"),
            faults: sum("made"),
            bit: sum("bit"),
            leaders: number("leaders"),
            latency_p99_ms: told["latency"]["p99_ms"].as_f64().unwrap_or(0.0),
            gap_max_ms: told["gap_max_ms"].as_f64().unwrap_or(0.0),
            notes,
            command: text(&told["command"]),
        }
    }
}

fn of_simulation(total: &Total) -> Verdict {
    match (total.violating_seeds.is_empty(), total.never.is_empty()) {
        (false, _) => Verdict::Violation,
        (true, false) => Verdict::Inconclusive,
        (true, true) => Verdict::Pass,
    }
}

/// One violation makes all of it one, else one run that proved nothing.
fn worst(verdicts: impl Iterator<Item = Verdict>) -> Verdict {
    let verdicts: Vec<Verdict> = verdicts.collect();
    if verdicts.contains(&Verdict::Violation) {
        Verdict::Violation
    } else if verdicts.contains(&Verdict::Inconclusive) || verdicts.is_empty() {
        Verdict::Inconclusive
    } else {
        Verdict::Pass
    }
}

impl Summary {
    /// For people, as a document takes it.
    fn text(&self) -> String {
        let sum = |of: fn(&Row) -> u64| self.runs.iter().map(of).sum::<u64>();
        let mut text = format!("{} in {:.0} minutes.\n", self.verdict.word(), self.minutes);
        if let Some(total) = &self.simulation {
            text += &format!("\nSimulation: {}.\n", total.outcome());
        }
        if self.runs.is_empty() {
            return text;
        }
        text += &format!(
            "\nReal processes: {} operations, {} acknowledged writes, {} without an answer; {} faults, {} of which bit; {} leaders.\n",
            sum(|row| row.operations),
            sum(|row| row.acknowledged_writes),
            sum(|row| row.unknown),
            sum(|row| row.faults),
            sum(|row| row.bit),
            sum(|row| row.leaders)
        );
        text += "\n| run | verdict | operations | unknown | faults bit | leaders | p99 ms | longest gap s |\n|---|---|--:|--:|--:|--:|--:|--:|\n";
        for row in &self.runs {
            let Row { name, operations, unknown, faults, bit, leaders, latency_p99_ms, gap_max_ms, .. } = row;
            let (word, gap_s) = (row.verdict.word(), gap_max_ms / 1_000.0);
            text += &format!(
                "| {name} | {word} | {operations} | {unknown} | {bit} of {faults} | {leaders} | {latency_p99_ms:.0} | {gap_s:.1} |\n"
            );
        }
        for row in self.runs.iter().filter(|row| !row.notes.is_empty()) {
            text += &format!("\n{}: {}\n", row.name, row.notes.join("; "));
        }
        text
    }

    /// The same with a link to each report.
    fn page(&self) -> String {
        let rows = self.runs.iter().map(|row| {
            let Row { name, verdict, operations, unknown, faults, bit, leaders, gap_max_ms, notes, .. } = row;
            let (word, gap_s, notes) = (verdict.word(), gap_max_ms / 1_000.0, report::escaped(notes.join("; ")));
            format!(
                "<tr><td><a href=\"{name}.html\">{name}</a><small>{notes}</small></td><td class=\"{word}\">{word}</td>\
                 <td class=\"n\" data-name=\"operations\">{operations}</td><td class=\"n\" data-name=\"unknown\">{unknown}</td>\
                 <td class=\"n\" data-name=\"faults bit\">{bit} of {faults}</td><td class=\"n\" data-name=\"leaders\">{leaders}</td>\
                 <td class=\"n\" data-name=\"longest gap\">{gap_s:.1} s</td></tr>"
            )
        });
        let simulation = self.simulation.as_ref().map(|total| format!("<h2>Simulation</h2><p>{}</p>", report::escaped(total.outcome())));
        let body = format!(
            "<header><h1>Quorate under faults</h1><span class=\"verdict {0}\">{0}</span></header>{1}<h2>Real processes</h2><table><thead><tr>\
             <th>Run</th><th>Verdict</th><th class=\"n\">Operations</th><th class=\"n\">Unknown</th><th class=\"n\">Faults bit</th>\
             <th class=\"n\">Leaders</th><th class=\"n\">Longest gap</th></tr></thead><tbody>{2}</tbody></table>",
            self.verdict.word(),
            simulation.unwrap_or_default(),
            rows.collect::<String>()
        );
        report::whole(self.verdict.word(), &body)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(told: &Value) -> Row {
        let plan = Plan { name: "transfer".into(), arguments: Vec::new(), seconds: 1 };
        Row::of(&plan, told, Path::new("transfer.log"))
    }

    #[test]
    fn a_run_that_told_nothing_is_inconclusive_and_says_where_to_look() {
        let row = row(&Value::Null);
        assert_eq!((row.verdict, row.notes), (Verdict::Inconclusive, vec!["the run did not take place; transfer.log says why".to_owned()]));
    }

    #[test]
    fn a_row_names_what_was_broken_and_counts_the_faults_alone() {
        let row = row(&json!({
            "verdict": "violation",
            "operations": 7,
            "properties": [{"name": "exactly once", "findings": [{"text": "twice"}]}, {"name": "decided once", "findings": []}],
            "coverage": [{"name": "transfer", "made": 3, "bit": 2}, {"name": "saves that met a change", "made": 9, "bit": 0}],
        }));
        assert_eq!((row.operations, row.faults, row.bit), (7, 3, 2));
        assert_eq!(row.notes, ["BROKEN exactly once: twice", "untried: saves that met a change"]);
    }

    #[test]
    fn one_violation_counts_more_than_any_number_of_passes_and_nothing_is_no_pass() {
        use Verdict::*;
        assert_eq!(worst([Pass, Inconclusive, Violation].into_iter()), Violation);
        assert_eq!(worst([Pass, Inconclusive].into_iter()), Inconclusive);
        assert_eq!(worst([Pass, Pass].into_iter()), Pass);
        assert_eq!(worst(std::iter::empty()), Inconclusive);
    }
}
