//! What goes wrong, when, and for how long: chosen by the seed, noted in a ledger, and healed in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use turmoil::Sim;

use super::disk::Faults;
use super::journal::Journal;
use super::net;
use super::node::Machine;
use super::operator::Desk;
use super::workload::{Counts, Shared};

/// In calm, a majority that is connected has so long to find a leader, and then so long to decide something.
const CALM_ELECTION: Duration = Duration::from_secs(5);
const CALM_SERVICE: Duration = Duration::from_secs(3);

/// Kinds of faults, each with how often it is chosen.
const KINDS: [(Kind, u32); 15] = [
    (Kind::IsolateOne, 12),
    (Kind::Halves, 8),
    (Kind::OneWay, 8),
    (Kind::Bridge, 4),
    (Kind::Ring, 4),
    (Kind::Hold, 8),
    (Kind::Loss, 8),
    (Kind::Delay, 8),
    (Kind::CrashOne, 16),
    (Kind::CrashAll, 5),
    (Kind::StallDisk, 8),
    (Kind::FailDisk, 8),
    (Kind::Clocks, 10),
    (Kind::TransferLeader, 8),
    (Kind::Members, 8),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One node is cut off from the others, from the clients too or not.
    IsolateOne,
    /// The nodes fall into two groups; one of them may have no quorum.
    Halves,
    /// What one node sends does not arrive, or what is sent to it.
    OneWay,
    /// Two groups that only one node between them reaches. Five nodes.
    Bridge,
    /// Each node reaches two neighbours. Five nodes.
    Ring,
    /// One node is as good as suspended: whatever it sends and is sent arrives late and all at once, and its disk stands still.
    Hold,
    /// Links break now and then.
    Loss,
    /// Messages take long.
    Delay,
    CrashOne,
    CrashAll,
    StallDisk,
    /// A synced write fails, or the disk is full.
    FailDisk,
    /// Wall clocks jump, all clocks drift.
    Clocks,
    TransferLeader,
    /// Two changes of the membership, one after the other.
    Members,
}

impl Kind {
    pub const ALL: [Kind; KINDS.len()] = {
        let mut all = [Kind::IsolateOne; KINDS.len()];
        let mut at = 0;
        while at < KINDS.len() {
            all[at] = KINDS[at].0;
            at += 1;
        }
        all
    };

    pub fn name(self) -> &'static str {
        match self {
            Kind::IsolateOne => "isolate one",
            Kind::Halves => "halves",
            Kind::OneWay => "one way",
            Kind::Bridge => "bridge",
            Kind::Ring => "ring",
            Kind::Hold => "hold",
            Kind::Loss => "loss",
            Kind::Delay => "delay",
            Kind::CrashOne => "crash one",
            Kind::CrashAll => "crash all",
            Kind::StallDisk => "stall a disk",
            Kind::FailDisk => "fail a disk",
            Kind::Clocks => "clocks",
            Kind::TransferLeader => "transfer",
            Kind::Members => "members",
        }
    }

    fn is_of_network(self) -> bool {
        self.is_cut() || matches!(self, Kind::Loss | Kind::Delay)
    }

    /// Leaves a majority that nothing is wrong with.
    fn is_cut(self) -> bool {
        matches!(self, Kind::IsolateOne | Kind::Halves | Kind::OneWay | Kind::Bridge | Kind::Ring | Kind::Hold)
    }
}

/// A cut that leaves a majority connected, and nothing else wrong: then the cluster has to serve.
struct Calm {
    kind: Kind,
    /// From when on it is watched, and what had been written by then.
    from: Duration,
    written: Option<u64>,
}

pub struct Nemesis {
    pub random: StdRng,
    pub machines: Vec<Machine>,
    pub clients: Vec<String>,
    pub journal: Journal,
    pub desk: Desk,
    /// The longest way of a message when nothing is wrong.
    pub latency_max: Duration,
    next_at: Duration,
    network_until: Option<Duration>,
    /// The node whose messages are held back.
    held: Option<u64>,
    calm: Option<Calm>,
    calms: u64,
    counts: Arc<Mutex<Counts>>,
    /// Whom to crash as soon as its disk is writing, or at that moment.
    crash_at: Option<(Kind, u64, Duration)>,
    /// Nodes that are down, and when they start again.
    down: BTreeMap<u64, Duration>,
    /// Failed writes of a node when it started.
    failed_before: BTreeMap<u64, u64>,
    ledger: BTreeMap<Kind, u64>,
}

impl Nemesis {
    pub fn new(random: StdRng, machines: Vec<Machine>, clients: Vec<String>, desk: Desk, latency_max: Duration, shared: &Shared) -> Self {
        let (journal, counts) = (shared.journal.clone(), Arc::clone(&shared.counts));
        Self {
            random,
            machines,
            clients,
            journal,
            desk,
            latency_max,
            // The cluster forms in peace.
            next_at: Duration::from_secs(2),
            network_until: None,
            held: None,
            calm: None,
            calms: 0,
            counts,
            crash_at: None,
            down: BTreeMap::new(),
            failed_before: BTreeMap::new(),
            ledger: BTreeMap::new(),
        }
    }

    /// Cuts under which the cluster had to serve.
    pub fn calms(&self) -> u64 {
        self.calms
    }

    /// How often each kind was put to work.
    pub fn ledger(&self) -> &BTreeMap<Kind, u64> {
        &self.ledger
    }

    /// Ends what is over and begins what is due.
    pub fn act(&mut self, sim: &mut Sim<'_>, now: Duration) {
        self.look_after(sim, now);
        self.watch_calm(now);
        if self.network_until.is_some_and(|until| until <= now) {
            self.heal_network(sim);
        }
        if let Some((kind, one, until)) = self.crash_at
            && (now >= until || self.machine(one).disk.is_writing())
        {
            self.crash_at = None;
            let victims = if kind == Kind::CrashAll { self.members() } else { vec![one] };
            victims.into_iter().for_each(|one| self.crash(sim, now, one, kind));
        }
        if now >= self.next_at {
            let pause_ms = self.random.random_range(100..2_500);
            self.next_at = now + Duration::from_millis(pause_ms);
            self.begin(sim, now);
        }
    }

    /// Starts nodes whose time is over, and those that stopped by themselves, as a supervisor would.
    pub fn look_after(&mut self, sim: &mut Sim<'_>, now: Duration) {
        for machine in self.machines.clone() {
            let name = net::name(machine.id);
            if self.down.get(&machine.id).is_some_and(|until| *until <= now) {
                self.down.remove(&machine.id);
                self.failed_before.insert(machine.id, machine.disk.bites().syncs_failed);
                sim.bounce(name);
            } else if !self.down.contains_key(&machine.id) && !sim.is_host_running(&*name) {
                let failed_before = self.failed_before.get(&machine.id).copied().unwrap_or_default();
                if machine.disk.bites().syncs_failed == failed_before {
                    self.journal.violation(format!("{name} stopped, and its disk had not failed"));
                }
                machine.disk.crash();
                self.down.insert(machine.id, now + Duration::from_millis(self.random.random_range(100..1_000)));
            }
        }
    }

    /// Nothing is wrong any more, and everything runs.
    pub fn heal(&mut self, sim: &mut Sim<'_>) {
        self.heal_network(sim);
        self.crash_at = None;
        self.calm = None;
        for machine in &self.machines {
            machine.disk.set_faults(Faults::default());
            machine.clock.step_wall(0);
            machine.clock.drift(0);
        }
        for until in self.down.values_mut() {
            *until = Duration::ZERO;
        }
        self.journal.say("nemesis", "everything is healed");
    }

    fn begin(&mut self, sim: &mut Sim<'_>, now: Duration) {
        let five = self.members().len() >= 5;
        let usable: Vec<(Kind, u32)> = KINDS
            .into_iter()
            .filter(|(kind, _)| five || !matches!(kind, Kind::Bridge | Kind::Ring))
            // One fault of the network at a time, so that each has the shape it is named after.
            .filter(|(kind, _)| self.network_until.is_none() || !kind.is_of_network())
            .collect();
        let Ok((kind, _)) = usable.choose_weighted(&mut self.random, |(_, weight)| *weight) else { return };
        let kind = *kind;
        *self.ledger.entry(kind).or_default() += 1;
        if kind.is_of_network() {
            self.network_until = Some(now + Duration::from_millis(self.random.random_range(300..5_000)));
        }
        let is_calm = self.begin_calm(now, kind);
        match kind {
            Kind::IsolateOne => {
                let one = self.victim();
                let rest = self.all_but(one);
                self.say(kind, format!("n{one}"));
                self.cut(sim, &[one], &rest);
                if !is_calm {
                    self.cut_clients(sim, &[one]);
                }
            }
            Kind::Halves => {
                let mut nodes = self.members();
                nodes.shuffle(&mut self.random);
                let (one, other) = nodes.split_at(nodes.len() / 2);
                self.say(kind, format!("{one:?} and {other:?}"));
                self.cut(sim, one, other);
                if !is_calm {
                    self.cut_clients(sim, one);
                }
            }
            Kind::OneWay => {
                let (one, outwards) = (self.victim(), self.random.random_bool(0.5));
                self.say(kind, format!("{} n{one}", if outwards { "from" } else { "to" }));
                for other in self.all_but(one) {
                    let (from, to) = if outwards { (one, other) } else { (other, one) };
                    sim.partition_oneway(net::name(from), net::name(to));
                }
            }
            Kind::Bridge => {
                let mut nodes = self.members();
                nodes.shuffle(&mut self.random);
                self.say(kind, format!("{:?}, n{} between, {:?}", &nodes[..2], nodes[2], &nodes[3..]));
                let (one, other) = (nodes[..2].to_vec(), nodes[3..].to_vec());
                self.cut(sim, &one, &other);
            }
            Kind::Ring => {
                let mut nodes = self.members();
                nodes.shuffle(&mut self.random);
                self.say(kind, format!("{nodes:?}"));
                for (at, one) in nodes.iter().enumerate() {
                    let last = if at == 0 { nodes.len() - 1 } else { nodes.len() };
                    self.cut(sim, &[*one], nodes.get(at + 2..last).unwrap_or_default());
                }
            }
            Kind::Hold => {
                let one = self.victim();
                self.say(kind, format!("n{one}"));
                for other in self.hosts_but(one) {
                    sim.hold(net::name(one), &*other);
                }
                let stalled_until = self.network_until.unwrap_or(now);
                self.machine(one).disk.set_faults(Faults { stalled_until, ..Faults::default() });
                self.held = Some(one);
            }
            Kind::Loss => {
                let rate = self.random.random_range(0.002..0.05);
                self.say(kind, format!("{rate:.3}"));
                sim.set_fail_rate(rate);
            }
            Kind::Delay => {
                let latency = Duration::from_millis(self.random.random_range(50..400));
                self.say(kind, format!("up to {latency:?}"));
                sim.set_max_message_latency(latency);
            }
            Kind::CrashOne | Kind::CrashAll => {
                // Rarely a moment at which nothing is on its way to the disk: then there is nothing to lose.
                let patience = if self.random.random_bool(0.8) { Duration::from_secs(1) } else { Duration::ZERO };
                self.crash_at = Some((kind, self.victim(), now + patience));
            }
            Kind::StallDisk => {
                let (one, stall) = (self.victim(), Duration::from_millis(self.random.random_range(200..4_000)));
                self.say(kind, format!("n{one} for {stall:?}"));
                self.machine(one).disk.set_faults(Faults { stalled_until: now + stall, ..Faults::default() });
            }
            Kind::FailDisk => {
                let (one, full) = (self.victim(), self.random.random_bool(0.4));
                let full_until = if full { now + Duration::from_millis(self.random.random_range(100..3_000)) } else { Duration::ZERO };
                self.say(kind, format!("n{one}, {}", if full { "full" } else { "one sync" }));
                self.machine(one).disk.set_faults(Faults { fails_next_sync: !full, full_until, ..Faults::default() });
            }
            Kind::Clocks => {
                for machine in &self.machines {
                    let (wall_ms, drift_ppm) = (self.random.random_range(-200_000..200_000), self.random.random_range(-20_000..20_000));
                    machine.clock.step_wall(wall_ms);
                    machine.clock.drift(drift_ppm);
                }
                self.say(kind, "on all nodes");
            }
            Kind::TransferLeader => {
                let to = *self.members().choose(&mut self.random).expect("there are nodes");
                self.say(kind, format!("to n{to}"));
                self.desk.transfer_to(to);
            }
            Kind::Members => {
                self.say(kind, "two changes");
                self.desk.change_members();
                self.desk.change_members();
            }
        }
    }

    /// Decides whether a cut that has just begun is the only thing wrong until it is healed.
    fn begin_calm(&mut self, now: Duration, kind: Kind) -> bool {
        // Who is in the majority while the membership changes is hard to say from outside.
        let is_settled = !self.ledger.contains_key(&Kind::Members) && self.members().len() % 2 == 1;
        if !kind.is_cut() || !is_settled || !self.down.is_empty() || self.desk.leader().is_none() || self.random.random_bool(0.5) {
            return false;
        }
        self.machines.iter().for_each(|machine| machine.disk.set_faults(Faults::default()));
        self.crash_at = None;
        let until = now + CALM_ELECTION + CALM_SERVICE;
        self.network_until = Some(until);
        self.next_at = until;
        self.calm = Some(Calm { kind, from: now + CALM_ELECTION, written: None });
        true
    }

    fn watch_calm(&mut self, now: Duration) {
        let written = self.counts.lock().unwrap_or_else(PoisonError::into_inner).written;
        let Some(calm) = &mut self.calm else { return };
        if now >= calm.from && calm.written.is_none() {
            calm.written = Some(written);
        }
        if now >= calm.from + CALM_SERVICE {
            self.calms += 1;
            if calm.written == Some(written) {
                let kind = calm.kind.name();
                self.journal
                    .violation(format!("nothing was written for {CALM_SERVICE:?} under `{kind}`, although a majority is connected"));
            }
            self.calm = None;
        }
    }

    fn crash(&mut self, sim: &mut Sim<'_>, now: Duration, one: u64, kind: Kind) {
        if self.down.contains_key(&one) {
            return;
        }
        let away = Duration::from_millis(self.random.random_range(50..3_000));
        self.say(kind, format!("n{one} for {away:?}"));
        // The disk first: whatever the node does while it is torn down comes too late.
        self.machine(one).disk.crash();
        sim.crash(net::name(one));
        self.down.insert(one, now + away);
    }

    fn cut(&self, sim: &mut Sim<'_>, one: &[u64], other: &[u64]) {
        for from in one {
            for to in other {
                sim.partition(net::name(*from), net::name(*to));
            }
        }
    }

    /// Each client may lose one side as well.
    fn cut_clients(&mut self, sim: &mut Sim<'_>, one: &[u64]) {
        let other: BTreeSet<u64> = self.nodes().into_iter().filter(|node| !one.contains(node)).collect();
        for client in self.clients.clone() {
            let side: Vec<u64> = match self.random.random_range(0..3) {
                0 => one.to_vec(),
                1 => other.iter().copied().collect(),
                _ => Vec::new(),
            };
            for node in side {
                sim.partition(&*client, net::name(node));
            }
        }
    }

    fn heal_network(&mut self, sim: &mut Sim<'_>) {
        if self.network_until.take().is_none() {
            return;
        }
        let hosts: Vec<String> = self.nodes().into_iter().map(net::name).chain(self.clients.iter().cloned()).collect();
        if let Some(one) = self.held.take() {
            for other in self.hosts_but(one) {
                sim.release(net::name(one), &*other);
            }
        }
        sim.set_fail_rate(0.0);
        sim.set_max_message_latency(self.latency_max);
        for (at, one) in hosts.iter().enumerate() {
            for other in &hosts[at + 1..] {
                sim.repair(&**one, &**other);
            }
        }
        self.journal.say("nemesis", "the network is whole");
    }

    /// The leader more often than any other.
    fn victim(&mut self) -> u64 {
        let leader = self.desk.leader().filter(|_| self.random.random_bool(0.5));
        leader.unwrap_or_else(|| *self.members().choose(&mut self.random).expect("there are nodes"))
    }

    fn nodes(&self) -> Vec<u64> {
        self.machines.iter().map(|machine| machine.id).collect()
    }

    /// Everybody that a node may speak to.
    fn hosts_but(&self, one: u64) -> Vec<String> {
        self.all_but(one).into_iter().map(net::name).chain(self.clients.iter().cloned()).collect()
    }

    fn all_but(&self, one: u64) -> Vec<u64> {
        self.nodes().into_iter().filter(|node| *node != one).collect()
    }

    /// Whom it is worth to harm.
    fn members(&self) -> Vec<u64> {
        let members: Vec<u64> = self.nodes().into_iter().filter(|node| self.desk.is_member(*node)).collect();
        if members.is_empty() { self.nodes() } else { members }
    }

    fn machine(&self, id: u64) -> &Machine {
        self.machines.iter().find(|machine| machine.id == id).expect("victims are chosen among the machines")
    }

    fn say(&self, kind: Kind, what: impl AsRef<str>) {
        self.journal.say("nemesis", format!("{}: {}", kind.name(), what.as_ref()));
    }
}
