//! What goes wrong, when, and for how long: chosen by the seed, noted in a ledger, and healed in the end.

use std::collections::{BTreeMap, BTreeSet};
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

/// Kinds of faults, each with how often it is chosen.
const KINDS: [(Kind, u32); 13] = [
    (Kind::IsolateOne, 12),
    (Kind::Halves, 8),
    (Kind::OneWay, 8),
    (Kind::Bridge, 4),
    (Kind::Ring, 4),
    (Kind::Loss, 8),
    (Kind::Delay, 8),
    (Kind::CrashOne, 16),
    (Kind::CrashAll, 5),
    (Kind::StallDisk, 8),
    (Kind::FailDisk, 8),
    (Kind::Clocks, 6),
    (Kind::TransferLeader, 8),
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
            Kind::Loss => "loss",
            Kind::Delay => "delay",
            Kind::CrashOne => "crash one",
            Kind::CrashAll => "crash all",
            Kind::StallDisk => "stall a disk",
            Kind::FailDisk => "fail a disk",
            Kind::Clocks => "clocks",
            Kind::TransferLeader => "transfer",
        }
    }

    fn is_of_network(self) -> bool {
        matches!(self, Kind::IsolateOne | Kind::Halves | Kind::OneWay | Kind::Bridge | Kind::Ring | Kind::Loss | Kind::Delay)
    }
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
    /// Whom to crash as soon as its disk is writing, or at that moment.
    crash_at: Option<(Kind, u64, Duration)>,
    /// Nodes that are down, and when they start again.
    down: BTreeMap<u64, Duration>,
    /// Failed writes of a node when it started.
    failed_before: BTreeMap<u64, u64>,
    ledger: BTreeMap<Kind, u64>,
}

impl Nemesis {
    pub fn new(random: StdRng, machines: Vec<Machine>, clients: Vec<String>, journal: Journal, desk: Desk, latency_max: Duration) -> Self {
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
            crash_at: None,
            down: BTreeMap::new(),
            failed_before: BTreeMap::new(),
            ledger: BTreeMap::new(),
        }
    }

    /// How often each kind was put to work.
    pub fn ledger(&self) -> &BTreeMap<Kind, u64> {
        &self.ledger
    }

    /// Ends what is over and begins what is due.
    pub fn act(&mut self, sim: &mut Sim<'_>, now: Duration) {
        self.look_after(sim, now);
        if self.network_until.is_some_and(|until| until <= now) {
            self.heal_network(sim);
        }
        if let Some((kind, one, until)) = self.crash_at
            && (now >= until || self.machine(one).disk.is_writing())
        {
            self.crash_at = None;
            let victims = if kind == Kind::CrashAll { self.nodes() } else { vec![one] };
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
        let five = self.machines.len() >= 5;
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
        match kind {
            Kind::IsolateOne => {
                let one = self.victim();
                let rest = self.all_but(one);
                self.say(kind, format!("n{one}"));
                self.cut(sim, &[one], &rest);
                self.cut_clients(sim, &[one]);
            }
            Kind::Halves => {
                let mut nodes = self.nodes();
                nodes.shuffle(&mut self.random);
                let (one, other) = nodes.split_at(nodes.len() / 2);
                self.say(kind, format!("{one:?} and {other:?}"));
                self.cut(sim, one, other);
                self.cut_clients(sim, one);
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
                let mut nodes = self.nodes();
                nodes.shuffle(&mut self.random);
                self.say(kind, format!("{:?}, n{} between, {:?}", &nodes[..2], nodes[2], &nodes[3..]));
                let (one, other) = (nodes[..2].to_vec(), nodes[3..].to_vec());
                self.cut(sim, &one, &other);
            }
            Kind::Ring => {
                let mut nodes = self.nodes();
                nodes.shuffle(&mut self.random);
                self.say(kind, format!("{nodes:?}"));
                for (at, one) in nodes.iter().enumerate() {
                    self.cut(sim, &[*one], &[nodes[(at + 2) % nodes.len()]]);
                }
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
                let to = *self.nodes().choose(&mut self.random).expect("there are nodes");
                self.say(kind, format!("to n{to}"));
                self.desk.transfer_to(to);
            }
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
        leader.unwrap_or_else(|| *self.nodes().choose(&mut self.random).expect("there are nodes"))
    }

    fn nodes(&self) -> Vec<u64> {
        self.machines.iter().map(|machine| machine.id).collect()
    }

    fn all_but(&self, one: u64) -> Vec<u64> {
        self.nodes().into_iter().filter(|node| *node != one).collect()
    }

    fn machine(&self, id: u64) -> &Machine {
        self.machines.iter().find(|machine| machine.id == id).expect("victims are chosen among the machines")
    }

    fn say(&self, kind: Kind, what: impl AsRef<str>) {
        self.journal.say("nemesis", format!("{}: {}", kind.name(), what.as_ref()));
    }
}
