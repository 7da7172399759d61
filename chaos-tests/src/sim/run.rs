//! One simulation, from its seed to its verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::panic;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use quorate_domain::{Principal, Tier};
use quorate_gateway::cluster::Cluster;
use quorate_link::Link;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::clock::SkewedClock;
use super::disk::Disk;
use super::journal::Journal;
use super::nemesis::Nemesis;
use super::node::{Knobs, Machine};
use super::operator::Desk;
use super::plant::Plant;
use super::states::States;
use super::watcher::Watched;
use super::workload::{Client, Counts, LIVENESS_MAX, Seen, Shared, What};
use super::{check, net, process};
use crate::history::Recorder;
use crate::told::{self, Told};

const CLIENTS: usize = 3;
/// How large a cluster begins, small ones more often: they cost less, and find as much.
const FOUNDERS: [u64; 8] = [3, 3, 3, 3, 4, 5, 5, 7];
const WATCHERS: usize = 2;
/// Nodes that run and are no members yet.
const SPARES: u64 = 2;
const TICK: Duration = Duration::from_millis(1);
/// How long the nodes may take to have the same state once everything is healed, and watchers to be told of it: one that is at a node
/// which is no member any more finds that out after some seconds.
const CONVERGENCE_MAX: Duration = Duration::from_secs(20);

/// What one run came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    pub seed: u64,
    pub violations: Vec<String>,
    /// What happened how often: the faults that were put to work, and what they did.
    pub bites: BTreeMap<String, u64>,
    pub journal_lines: u64,
    /// Over the journal and the last state: equal for equal seeds.
    pub journal_hash: String,
    pub simulated_ms: u64,
}

/// Runs a seed in this process, which has to have entered the simulation with it. Files go into `dir`.
pub fn run(seed: u64, chaos: Duration, plant: Option<Plant>, dir: &Path, journal: Journal) -> Verdict {
    let of_hook = journal.clone();
    panic::set_hook(Box::new(move |panicked| of_hook.violation(format!("a panic: {panicked}").replace('\n', " "))));

    let mut random = StdRng::seed_from_u64(seed);
    let founders = *FOUNDERS.choose(&mut random).expect("there are sizes");
    let nodes = founders + SPARES;
    let knobs = Knobs::choose(&mut random);
    let latency_max = Duration::from_millis(random.random_range(1..=20));
    journal.say("run", format!("seed {seed}: {founders} nodes, messages take up to {latency_max:?}, {knobs:?}"));

    let mut sim = turmoil::Builder::new()
        .rng_seed(random.random())
        .epoch(UNIX_EPOCH + process::WALL_BASE)
        .simulation_duration(Duration::from_secs(3_600))
        .tick_duration(TICK)
        .tcp_capacity(4_096)
        .min_message_latency(Duration::ZERO)
        .max_message_latency(latency_max)
        .enable_random_order()
        .build();

    let states = States::default();
    let machines: Vec<Machine> = (1..=nodes)
        .map(|id| Machine {
            id,
            dir: dir.join(net::name(id)),
            disk: Disk::new(id, random.random(), states.clone(), plant),
            clock: SkewedClock::new(plant),
            knobs: knobs.of_one_node(&mut random),
            journal: journal.clone(),
        })
        .collect();
    for machine in &machines {
        let machine = machine.clone();
        sim.host(net::name(machine.id), move || machine.clone().run());
    }
    let desk = Desk::default();
    {
        let (desk, journal, seed) = (desk.clone(), journal.clone(), random.random());
        sim.host("operator", move || desk.clone().run(founders, nodes, StdRng::seed_from_u64(seed), journal.clone()));
    }
    let shared = Shared {
        recorder: Arc::new(Recorder::default()),
        seen: Arc::default(),
        journal: journal.clone(),
        chaos_until: chaos,
        counts: Arc::<Mutex<Counts>>::default(),
        approvals: Arc::default(),
        plant,
    };
    let mut names: Vec<String> = (1..=CLIENTS).map(|number| format!("c{number}")).collect();
    for name in &names {
        let (name, shared, random) = (name.clone(), shared.clone(), StdRng::seed_from_u64(random.random()));
        let (desk, is_last) = (desk.clone(), *name == names[0]);
        sim.client(name.clone(), async move {
            let addresses: Vec<String> = (1..=founders).map(net::address).collect();
            let cluster = Cluster::connect(&addresses, None, &Link::over(net::connect()))?;
            Client { name, cluster, random, shared, desk, is_last, sent: Vec::new(), own: None }.run().await;
            Ok(())
        });
    }

    let watchers: Vec<Watched> = (0..WATCHERS).map(|_| Watched::default()).collect();
    for (number, watched) in watchers.iter().enumerate() {
        let watched = watched.clone();
        sim.host(format!("w{}", number + 1), move || {
            let watched = watched.clone();
            async move {
                let addresses: Vec<String> = (1..=founders).map(net::address).collect();
                let cluster = Cluster::connect(&addresses, None, &Link::over(net::connect()))?;
                let caller = Principal { tenant: "team".into(), passport: "w".into(), tier: Tier::Verified, scopes: BTreeSet::new() };
                watched.follow(cluster, caller).await;
                Ok(())
            }
        });
        names.push(format!("w{}", number + 1));
    }

    let mut nemesis = Nemesis::new(random, machines.clone(), names, desk.clone(), latency_max, &shared);
    let (mut healed, mut is_done) = (false, false);
    // Each client has so long for being served, and as long for each of its last reads.
    let end = chaos + LIVENESS_MAX * 6;
    while !is_done {
        let now = sim.elapsed();
        process::set_elapsed(now);
        match now < chaos {
            true => nemesis.act(&mut sim, now),
            false => {
                if !healed {
                    nemesis.heal(&mut sim);
                    healed = true;
                }
                nemesis.look_after(&mut sim, now);
            }
        }
        is_done = match sim.step() {
            Ok(done) => done,
            Err(error) => {
                journal.violation(format!("a host failed: {error}"));
                true
            }
        };
        if now > end {
            journal.violation("the clients did not come to an end");
            break;
        }
    }
    converge(&mut sim, &mut nemesis, &machines, &watchers, &desk, &journal);

    for line in states.diverged().into_iter().take(5) {
        journal.violation(line);
    }
    let seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let counts = *shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
    // A client that was still waiting is a violation by now, and its history would lack it.
    let told: Vec<Told> = watchers.iter().map(Watched::told).collect();
    if journal.violations().is_empty() {
        // Nobody is told of a renewal.
        let due = seen.iter().filter(|seen| !matches!(seen.what, What::Read | What::Renewal));
        let writes: Vec<told::Write> = due.map(|seen: &Seen| (seen.revision, format!("{seen:?}"))).collect();
        for line in check::all(&shared.recorder.history(), &seen).into_iter().chain(told::complete(&told, &writes)) {
            journal.violation(line);
        }
        if let Some(line) = told::one_receipt_each(&told[0], counts.receipts, counts.receipts_at) {
            journal.violation(line);
        }
    }
    let told = told.iter().map(|told| told.changes.len() as u64).sum();
    let bites = bites(&nemesis, &machines, &desk, counts, &states, told);
    let (last, state) = states.last();
    journal.say("run", format!("{} answers, {} unknown, revision {last}, state {state:032x}", counts.answered, counts.unknown));
    let (journal_lines, journal_hash) = journal.sum();
    let _ = panic::take_hook();
    // What a node does when its host is dropped, outside of any runtime, comes too late as after a crash.
    machines.iter().for_each(|machine| machine.disk.crash());
    Verdict { seed, violations: journal.violations(), bites, journal_lines, journal_hash, simulated_ms: sim.elapsed().as_millis() as u64 }
}

/// Waits until every member has what any node had when this began, and every watcher was told of it.
fn converge(sim: &mut turmoil::Sim<'_>, nemesis: &mut Nemesis, machines: &[Machine], watchers: &[Watched], desk: &Desk, journal: &Journal) {
    let begun = sim.elapsed();
    let target = machines.iter().map(|machine| machine.disk.applied()).max().unwrap_or_default();
    let is_behind = |machine: &Machine| desk.is_member(machine.id) && machine.disk.applied() < target;
    while machines.iter().any(is_behind) || watchers.iter().any(|watched| watched.through() < target) {
        let now = sim.elapsed();
        process::set_elapsed(now);
        nemesis.look_after(sim, now);
        if let Err(error) = sim.step() {
            return journal.violation(format!("a host failed: {error}"));
        }
        if now > begun + CONVERGENCE_MAX {
            let members = machines.iter().filter(|machine| desk.is_member(machine.id));
            let applied: Vec<_> = members.map(|machine| (net::name(machine.id), machine.disk.applied())).collect();
            let told: Vec<_> = watchers.iter().map(Watched::through).collect();
            return journal.violation(format!(
                "revision {target} was not reached after everything was healed: by nodes {applied:?}, by watchers {told:?}"
            ));
        }
    }
}

fn bites(nemesis: &Nemesis, machines: &[Machine], desk: &Desk, counts: Counts, states: &States, told: u64) -> BTreeMap<String, u64> {
    let mut bites: BTreeMap<String, u64> =
        nemesis.ledger().iter().map(|(kind, times)| (format!("fault: {}", kind.name()), *times)).collect();
    let disks: Vec<_> = machines.iter().map(|machine| machine.disk.bites()).collect();
    let sum = |of: fn(&super::disk::Bites) -> u64| disks.iter().map(of).sum::<u64>();
    for (name, times) in [
        ("unsynced write groups lost", sum(|bites| bites.unsynced_lost)),
        ("unsynced write groups kept", sum(|bites| bites.unsynced_kept)),
        ("unflushed commits lost", sum(|bites| bites.commits_lost)),
        ("syncs failed", sum(|bites| bites.syncs_failed)),
        ("syncs stalled", sum(|bites| bites.syncs_stalled)),
        ("snapshots installed", sum(|bites| bites.checkpoints_installed)),
        ("log purged", u64::from(desk.purged() > 0)),
        ("leaders seen after the first", desk.leaders_seen().saturating_sub(1)),
        ("leaderships handed over", desk.transferred()),
        ("cuts under which a majority had to serve", nemesis.calms()),
        ("membership changes", desk.members_changed()),
        ("calls without an answer", counts.unknown),
        ("attempts repeated by a gateway", counts.retried),
        ("requests sent again late", counts.repeated),
        ("writes under a card", counts.fenced),
        ("cards taken by an operator", counts.forced),
        ("calls that queued for a card", counts.queued),
        ("reads of own writes", counts.own_reads),
        ("removed nodes watched", desk.gone()),
        ("writes under a card that failed", counts.fenced_off),
        ("receipts in the log", counts.receipts),
        ("receipts of decisions verified", counts.receipts_verified),
        ("changes told to watchers", told),
        ("states compared", states.compared()),
    ] {
        bites.insert(name.into(), times);
    }
    bites
}
