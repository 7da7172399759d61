//! `quorate demo`: a scripted day of thirty agents and three people on one project, on a cluster that it starts, hurts and stops.
//!
//! The script ([`script`]) is made by a seed and says how the day has to end: where each item of work stands, how often each
//! file was edited, what was approved, handed off and merged. Who does an item, and when, is left to the race. The team
//! ([`team`]) lives it over HTTP, through two gateways, while nodes and a gateway are killed ([`cluster`]); at the end the
//! cluster is asked how things stand, and that is held against the script ([`end`]). Two days of one seed end with the same digest,
//! whatever was killed meanwhile.

mod caller;
mod cluster;
mod end;
mod script;
mod team;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Failure;
use cluster::Cluster;
use end::Ended;
use script::Script;

/// Live a scripted day of 30 agents and 3 people on a cluster of its own, with two nodes and a gateway killed meanwhile.
#[derive(Args)]
pub struct Demo {
    /// Kill two nodes and a gateway during the day
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    faults: bool,
    /// Live the same day again without faults, in another cluster, and compare how both end
    #[arg(long)]
    compare: bool,
    /// What the day is made by
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Agents at work
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(2..=200))]
    agents: u64,
    /// Items of work
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(8..=900))]
    items: u64,
    /// The day has to end within these seconds
    #[arg(long, default_value_t = 600)]
    within: u64,
    /// Folder for the cluster's data, which stays; by default one that is removed
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Print one JSON object at the end, and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

impl Demo {
    pub async fn run(self) -> Result<(), Failure> {
        let mut terminate =
            signal(SignalKind::terminate()).map_err(|error| Failure::failed(format!("cannot listen for SIGTERM: {error}")))?;
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(|error| Failure::failed(format!("cannot listen for SIGINT: {error}")))?;
        // Dropping a day ends its processes.
        let days = tokio::select! {
            days = self.days() => days?,
            _ = terminate.recv() => return Err(Failure::failed("stopped before the day was over")),
            _ = interrupt.recv() => return Err(Failure::failed("stopped before the day was over")),
        };
        let same = days.windows(2).all(|pair| pair[0].ended.digest == pair[1].ended.digest);
        let ok = same && days.iter().all(|day| day.ended.broken.is_empty());
        let facts = json!({
            "ok": ok, "seed": self.seed, "agents": self.agents, "items": self.items, "same_end": (days.len() > 1).then_some(same),
            "days": days.iter().map(Day::json).collect::<Vec<_>>(),
        });
        if self.json {
            println!("{facts}");
        } else if days.len() > 1 {
            println!("\nThe days with and without faults ended {}.", if same { "in the same state" } else { "DIFFERENTLY" });
        }
        match ok {
            true => Ok(()),
            // All has been said.
            false => {
                Err(Failure::failed(if self.json { "" } else { "the day did not end as its script says; the lines above tell where" }))
            }
        }
    }

    async fn days(&self) -> Result<Vec<Day>, Failure> {
        let mut days = vec![self.day(self.faults, self.keep.clone()).await?];
        if self.compare {
            days.push(self.day(false, self.keep.as_ref().map(|keep| keep.join("without-faults"))).await?);
        }
        Ok(days)
    }

    /// One day, from the start of its cluster to its end.
    async fn day(&self, faults: bool, keep: Option<PathBuf>) -> Result<Day, Failure> {
        let script = Script::of(self.seed, self.agents, self.items);
        let say = |line: &str| {
            if !self.json {
                println!("{line}");
            }
        };
        say(&format!(
            "A day of {} agents and {} people with {} items of work, seed {}, {}:",
            self.agents,
            script::PEOPLE.len(),
            self.items,
            self.seed,
            if faults { "two nodes and a gateway will be killed" } else { "without faults" }
        ));
        let mut cluster = Cluster::start(keep, &script).await?;
        say(&format!("  {}", cluster.shown()));
        let began = Instant::now();
        let lived = team::live(&script, &mut cluster, faults, Duration::from_secs(self.within), &say).await;
        let ended = match &lived {
            Ok(_) => Some(end::look(&script, &cluster).await),
            Err(_) => None,
        };
        cluster.stop().await;
        let (lived, ended) = (lived?, ended.unwrap_or_else(|| Err(Failure::failed("the day was not lived")))?);
        let day = Day { faults: lived.faults, calls: lived.calls, resent: lived.resent, took: began.elapsed(), ended };
        day.tell(&say);
        Ok(day)
    }
}

/// A day that is over.
struct Day {
    /// What was killed.
    faults: Vec<String>,
    calls: u64,
    /// Calls that were sent again.
    resent: u64,
    took: Duration,
    ended: Ended,
}

impl Day {
    fn json(&self) -> Value {
        json!({
            "faults": self.faults, "calls": self.calls, "resent": self.resent, "seconds": self.took.as_secs_f64(), "digest": self.ended.digest,
            "states": self.ended.states, "edits": self.ended.edits, "approvals": self.ended.approvals, "handoffs": self.ended.handoffs,
            "feed": self.ended.feed, "broken": self.ended.broken,
        })
    }

    fn tell(&self, say: &impl Fn(&str)) {
        let Ended { states, edits, approvals, handoffs, feed, broken, digest } = &self.ended;
        let listed = |counts: &std::collections::BTreeMap<String, u64>| {
            counts.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
        };
        say(&format!(
            "The day took {:.1} s: {} calls, {} sent again; killed: {}.",
            self.took.as_secs_f64(),
            self.calls,
            self.resent,
            if self.faults.is_empty() { "nothing".into() } else { self.faults.join(", ") }
        ));
        say(&format!("  work      {}", listed(states)));
        say(&format!("  approvals {}", listed(approvals)));
        say(&format!("  edits     {edits} under leases; handoffs {handoffs}"));
        say(&format!("  feed      {}", listed(feed)));
        for rule in broken {
            say(&format!("  BROKEN    {rule}"));
        }
        say(&format!("  digest    {digest}"));
    }
}
