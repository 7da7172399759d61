//! What goes wrong: each fault is made, held, healed, and judged by what was seen meanwhile.
//!
//! A fault that did not *bite* proves nothing: a partition during which the old leader went on, a kill of a node that nobody
//! missed. So each one ends with its evidence, or with none, and a run whose chosen fault never bit is inconclusive.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context;
use quorate_chaos_faults::{Counter, Switch};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Stage;
use super::cluster::Cluster;
use super::proxy::{Flow, Link, Party};
use super::workload::TTL;
use crate::history::{Moment, Operation, Outcome};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nemesis {
    KillLeader,
    KillFollower,
    KillAll,
    KillGateway,
    PauseLeader,
    PauseAll,
    PartitionLeader,
    PartitionFollower,
    Split,
    Bridge,
    OneWay,
    GatewayLink,
    SlowLinks,
    FlakyLinks,
    LostReplies,
    RollingRestart,
    Transfer,
    Membership,
    PowerLoss,
    SlowDisk,
    StallDisk,
    FullDisk,
    FailDisk,
    ClockJump,
}

impl Nemesis {
    pub const ALL: [Nemesis; 24] = [
        Nemesis::KillLeader,
        Nemesis::KillFollower,
        Nemesis::KillAll,
        Nemesis::KillGateway,
        Nemesis::PauseLeader,
        Nemesis::PauseAll,
        Nemesis::PartitionLeader,
        Nemesis::PartitionFollower,
        Nemesis::Split,
        Nemesis::Bridge,
        Nemesis::OneWay,
        Nemesis::GatewayLink,
        Nemesis::SlowLinks,
        Nemesis::FlakyLinks,
        Nemesis::LostReplies,
        Nemesis::RollingRestart,
        Nemesis::Transfer,
        Nemesis::Membership,
        Nemesis::PowerLoss,
        Nemesis::SlowDisk,
        Nemesis::StallDisk,
        Nemesis::FullDisk,
        Nemesis::FailDisk,
        Nemesis::ClockJump,
    ];

    /// Those that need relays between the processes.
    pub const RELAYED: [Nemesis; 3] = [Nemesis::Split, Nemesis::GatewayLink, Nemesis::SlowLinks];

    /// Those that do no harm to somebody else's cluster.
    pub const SAFE: [Nemesis; 2] = [Nemesis::LostReplies, Nemesis::Transfer];

    /// Nodes that it takes.
    pub fn nodes_min(self) -> u64 {
        if self == Nemesis::Bridge { 5 } else { 3 }
    }

    pub fn word(self) -> &'static str {
        match self {
            Nemesis::KillLeader => "kill-leader",
            Nemesis::KillFollower => "kill-follower",
            Nemesis::KillAll => "kill-all",
            Nemesis::KillGateway => "kill-gateway",
            Nemesis::PauseLeader => "pause-leader",
            Nemesis::PauseAll => "pause-all",
            Nemesis::PartitionLeader => "partition-leader",
            Nemesis::PartitionFollower => "partition-follower",
            Nemesis::Split => "split",
            Nemesis::Bridge => "bridge",
            Nemesis::OneWay => "one-way",
            Nemesis::GatewayLink => "gateway-link",
            Nemesis::SlowLinks => "slow-links",
            Nemesis::FlakyLinks => "flaky-links",
            Nemesis::LostReplies => "lost-replies",
            Nemesis::RollingRestart => "rolling-restart",
            Nemesis::Transfer => "transfer",
            Nemesis::Membership => "membership",
            Nemesis::PowerLoss => "power-loss",
            Nemesis::SlowDisk => "slow-disk",
            Nemesis::StallDisk => "stall-disk",
            Nemesis::FullDisk => "full-disk",
            Nemesis::FailDisk => "fail-disk",
            Nemesis::ClockJump => "clock-jump",
        }
    }

    /// What it takes to call it tried.
    pub fn bites_when(self) -> &'static str {
        match self {
            Nemesis::KillLeader => "the leader was killed and another one led in a higher term",
            Nemesis::KillFollower => "writes were acknowledged while a follower was dead",
            Nemesis::KillAll => "all nodes were killed at once and writes were acknowledged after it",
            Nemesis::KillGateway => "attempts failed at a dead gateway while writes were acknowledged through the others",
            Nemesis::PauseLeader => {
                "the leader was stopped for longer than a lease lasts, another led, and a lease was granted or renewed there"
            }
            Nemesis::PauseAll => "all nodes stood still for longer than a lease lasts, and writes were acknowledged after it",
            Nemesis::PartitionLeader => "the leader was alone, and another one led in a higher term",
            Nemesis::PartitionFollower => "a follower was cut off, and writes were acknowledged without it",
            Nemesis::Split => "the leader was in a minority, with a gateway and without the others, and another one led in a higher term",
            Nemesis::Bridge => "two halves saw only one node in common, traffic was held back, and writes were acknowledged",
            Nemesis::OneWay => "a node was heard and could not hear, or the reverse, and traffic was held back",
            Nemesis::GatewayLink => "a gateway could not reach the leader, which the nodes could, and writes were acknowledged",
            Nemesis::SlowLinks => "pieces were delayed, and writes were acknowledged",
            Nemesis::FlakyLinks => "the links of a node broke again and again, traffic was held back, and writes were acknowledged",
            Nemesis::LostReplies => "a call whose answer was lost was answered through another gateway under the same key",
            Nemesis::RollingRestart => "every node was stopped and started in turn, and writes were acknowledged meanwhile",
            Nemesis::Transfer => "leadership moved to the node that was asked for",
            Nemesis::Membership => "a node was removed, a new one became a voter, and writes were acknowledged meanwhile",
            Nemesis::PowerLoss => {
                "all nodes lost their power at once, bytes that were not synced were gone, and writes were acknowledged after it"
            }
            Nemesis::SlowDisk => "each sync of a node took longer, and writes were acknowledged",
            Nemesis::StallDisk => "a node's syncs did not come back for some seconds, and writes were acknowledged meanwhile",
            Nemesis::FullDisk => "a node had no space for what it wrote, and writes were acknowledged without it",
            Nemesis::FailDisk => "a node's sync failed, and writes were acknowledged without it",
            Nemesis::ClockJump => "a node read a wall clock that was minutes off, and writes were acknowledged",
        }
    }
}

impl fmt::Display for Nemesis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Nemesis {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = || Nemesis::ALL.map(Nemesis::word).join(", ");
        Nemesis::ALL.into_iter().find(|nemesis| nemesis.word() == word).ok_or_else(|| format!("is none of all, {}", known()))
    }
}

/// One fault as it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    pub nemesis: Nemesis,
    /// What exactly was hurt.
    pub detail: String,
    pub from_us: u64,
    /// When it was healed.
    pub until_us: u64,
    /// What shows that it bit.
    pub evidence: Option<String>,
}

/// No leader for so long: the fault is not made.
const LEADER_WITHIN: Duration = Duration::from_secs(20);
/// A node whose disk is well again has to be ready after so long, and not only as it was before.
const READY_FOR: Duration = Duration::from_secs(2);
/// After a fault something has to show within this time, for it to have bitten.
const SHOWS_WITHIN: Duration = Duration::from_secs(15);

/// Makes one fault after the other until it is told to stop: each of the chosen once, in an order by the seed, then any of them.
pub async fn run(stage: Arc<Stage>, chosen: Vec<Nemesis>, seed: u64, stop: watch::Receiver<bool>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut round: Vec<Nemesis> = Vec::new();
    while !*stop.borrow() {
        if round.is_empty() {
            round = chosen.clone();
            round.shuffle(&mut rng);
        }
        let Some(nemesis) = round.pop() else { return };
        rest(&mut rng, 800..2_500, &stop).await;
        if *stop.borrow() {
            return;
        }
        let mut hand = Hand { stage: Arc::clone(&stage), rng: StdRng::seed_from_u64(rng.random()), stop: stop.clone() };
        let from = stage.recorder.now();
        *stage.current.lock().expect("no panic under the lock") = Some(nemesis.word());
        let made = hand.make(nemesis).await;
        *stage.current.lock().expect("no panic under the lock") = None;
        let (detail, evidence) = made.unwrap_or_else(|error| (format!("could not be made: {error:#}"), None));
        let micros = |moment: Moment| u64::try_from(moment.as_micros()).unwrap_or(u64::MAX);
        let fault = Fault { nemesis, detail, from_us: micros(from), until_us: micros(stage.recorder.now()), evidence };
        stage.faults.lock().expect("no panic under the lock").push(fault);
    }
}

/// Waits, but not longer than until it is told to stop.
async fn rest(rng: &mut StdRng, ms: std::ops::Range<u64>, stop: &watch::Receiver<bool>) {
    let time = Duration::from_millis(rng.random_range(ms));
    let mut stop = stop.clone();
    // Either way the rest is over.
    let _ = timeout(time, stop.wait_for(|stop| *stop)).await;
}

/// What hurts, with its own randomness.
struct Hand {
    stage: Arc<Stage>,
    rng: StdRng,
    stop: watch::Receiver<bool>,
}

type Made = anyhow::Result<(String, Option<String>)>;

impl Hand {
    async fn make(&mut self, nemesis: Nemesis) -> Made {
        match nemesis {
            Nemesis::KillLeader => self.kill_leader().await,
            Nemesis::KillFollower => self.kill_follower().await,
            Nemesis::KillAll => self.kill_all().await,
            Nemesis::KillGateway => self.kill_gateway().await,
            Nemesis::PauseLeader => self.pause_leader().await,
            Nemesis::PauseAll => self.pause_all().await,
            Nemesis::PartitionLeader => self.partition_leader().await,
            Nemesis::PartitionFollower => self.partition_follower().await,
            Nemesis::Split => self.split().await,
            Nemesis::Bridge => self.bridge().await,
            Nemesis::OneWay => self.one_way().await,
            Nemesis::GatewayLink => self.gateway_link().await,
            Nemesis::SlowLinks => self.slow_links().await,
            Nemesis::FlakyLinks => self.flaky_links().await,
            Nemesis::LostReplies => self.lost_replies().await,
            Nemesis::RollingRestart => self.rolling_restart().await,
            Nemesis::Transfer => self.transfer().await,
            Nemesis::Membership => self.membership().await,
            Nemesis::PowerLoss => self.power_loss().await,
            Nemesis::SlowDisk => self.slow_disk().await,
            Nemesis::StallDisk => self.stall_disk().await,
            Nemesis::FullDisk => self.broken_disk(Switch::NoSpace, 1, Counter::WritesRefused).await,
            // The number of EIO.
            Nemesis::FailDisk => self.broken_disk(Switch::SyncFailsWith, 5, Counter::SyncsFailed).await,
            Nemesis::ClockJump => self.clock_jump().await,
        }
    }

    async fn cluster(&self) -> anyhow::Result<tokio::sync::MutexGuard<'_, Cluster>> {
        Ok(self.stage.cluster.as_ref().context("no cluster of our own")?.lock().await)
    }

    /// Runs a verb against our own cluster, or the one we are guests of.
    async fn verb(&self, verb: &[String]) -> anyhow::Result<serde_json::Value> {
        match &self.stage.verbs {
            Some(verbs) => verbs.run(verb).await,
            None => self.cluster().await?.verb(verb).await,
        }
    }

    async fn voters(&self) -> anyhow::Result<Vec<u64>> {
        let told = self.verb(&["status".into()]).await?;
        let is_voter = |node: &&serde_json::Value| node["voter"] == true && node["role"] != "unreachable";
        Ok(told["nodes"].as_array().into_iter().flatten().filter(is_voter).filter_map(|node| node["id"].as_u64()).collect())
    }

    fn now(&self) -> Moment {
        self.stage.recorder.now()
    }

    /// Term and id of whoever leads now.
    async fn leader(&self) -> anyhow::Result<(u64, u64)> {
        let deadline = Instant::now() + LEADER_WITHIN;
        loop {
            if let Some(leader) = self.stage.sights.last().leader {
                return Ok(leader);
            }
            anyhow::ensure!(Instant::now() < deadline, "no leader for {} s", LEADER_WITHIN.as_secs());
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn follower(&mut self) -> anyhow::Result<u64> {
        let (_, leader) = self.leader().await?;
        let others: Vec<u64> = self.cluster().await?.node_ids().into_iter().filter(|id| *id != leader).collect();
        anyhow::ensure!(!others.is_empty(), "no follower");
        Ok(others[self.rng.random_range(0..others.len())])
    }

    /// Holds a fault for some time.
    async fn hold(&mut self, ms: std::ops::Range<u64>) {
        rest(&mut self.rng, ms, &self.stop).await;
    }

    /// Waits until another leader than that of `term` is seen.
    async fn successor(&self, since: Moment, term: u64, old: u64) -> Option<String> {
        let deadline = Instant::now() + SHOWS_WITHIN;
        loop {
            if let Some((next, id)) = self.stage.sights.leader_after(since, (term, old)) {
                return Some(format!("node {old} led in term {term}, node {id} in term {next}"));
            }
            if Instant::now() > deadline {
                return None;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a write that was sent after `since` is acknowledged.
    async fn acknowledged(&self, since: Moment) -> Option<String> {
        let deadline = Instant::now() + SHOWS_WITHIN;
        loop {
            let count = self.stage.recorder.count(|event| event.sent >= since && event.revision.is_some() && !event.operation.is_read());
            if count > 0 {
                return Some(format!("{count} writes acknowledged"));
            }
            if Instant::now() > deadline {
                return None;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    // -------- processes

    async fn kill_leader(&mut self) -> Made {
        let (term, id) = self.leader().await?;
        let since = self.now();
        self.cluster().await?.kill_node(id).await;
        let evidence = self.successor(since, term, id).await;
        self.hold(200..2_000).await;
        self.cluster().await?.start_node(id)?;
        Ok((format!("node {id}"), evidence))
    }

    async fn kill_follower(&mut self) -> Made {
        let id = self.follower().await?;
        self.cluster().await?.kill_node(id).await;
        let since = self.now();
        self.hold(800..3_000).await;
        let evidence = self.acknowledged(since).await;
        self.cluster().await?.start_node(id)?;
        Ok((format!("node {id}"), evidence))
    }

    async fn kill_all(&mut self) -> Made {
        self.leader().await?;
        let mut cluster = self.cluster().await?;
        let ids = cluster.node_ids();
        cluster.kill_nodes(&ids).await;
        drop(cluster);
        self.hold(100..800).await;
        let since = self.now();
        let mut cluster = self.cluster().await?;
        ids.iter().try_for_each(|id| cluster.start_node(*id))?;
        drop(cluster);
        Ok((format!("nodes {ids:?}"), self.acknowledged(since).await))
    }

    async fn kill_gateway(&mut self) -> Made {
        let count = self.cluster().await?.gateway_count();
        anyhow::ensure!(count > 1, "there is one gateway alone");
        let place = self.rng.random_range(0..count);
        let before = self.stage.doors.failures(place);
        self.cluster().await?.kill_gateway(place).await;
        let since = self.now();
        self.hold(1_000..3_000).await;
        let failed = self.stage.doors.failures(place) - before;
        let evidence = self.acknowledged(since).await.filter(|_| failed > 0).map(|told| format!("{failed} attempts failed there, {told}"));
        self.cluster().await?.start_gateway(place)?;
        Ok((format!("gateway {place}"), evidence))
    }

    async fn pause_leader(&mut self) -> Made {
        let (term, id) = self.leader().await?;
        let since = self.now();
        self.cluster().await?.signal_node(id, Signal::STOP);
        let led = self.successor(since, term, id).await;
        let from = self.now();
        let ttl_ms = TTL.as_millis() as u64;
        self.hold(ttl_ms + 500..2 * ttl_ms + 1_000).await;
        // Its old leases, on its own clock, are over by now.
        self.cluster().await?.signal_node(id, Signal::CONT);
        let held = self.now() - from;
        let leases = self.stage.recorder.count(|event| {
            let is_lease = matches!((&event.operation, &event.outcome), (Operation::Acquire { .. }, Outcome::Granted { .. }));
            is_lease && event.sent >= from && event.answered <= from + held
        });
        let is_whole = held > TTL && (leases > 0 || !self.stage.cast.has_rivals);
        let evidence = led.filter(|_| is_whole).map(|told| format!("{told}; {leases} leases granted or renewed meanwhile"));
        // So that it meets its successor before the next fault.
        self.hold(300..800).await;
        Ok((format!("node {id} for {:.1} s", held.as_secs_f64()), evidence))
    }

    /// As when the machine under all of them sleeps: no time has passed for anybody, and a lot for the world.
    async fn pause_all(&mut self) -> Made {
        self.leader().await?;
        let ids = self.cluster().await?.node_ids();
        let from = self.now();
        {
            let cluster = self.cluster().await?;
            for id in &ids {
                cluster.signal_node(*id, Signal::STOP);
            }
        }
        let ttl_ms = TTL.as_millis() as u64;
        self.hold(ttl_ms + 300..2 * ttl_ms).await;
        {
            let cluster = self.cluster().await?;
            for id in &ids {
                cluster.signal_node(*id, Signal::CONT);
            }
        }
        let (held, since) = (self.now() - from, self.now());
        let evidence = self.acknowledged(since).await.filter(|_| held > TTL);
        Ok((format!("nodes {ids:?} for {:.1} s", held.as_secs_f64()), evidence))
    }

    async fn rolling_restart(&mut self) -> Made {
        let ids = self.cluster().await?.node_ids();
        let since = self.now();
        for id in &ids {
            self.leader().await?;
            self.cluster().await?.stop_node(*id).await;
            self.hold(50..500).await;
            self.cluster().await?.start_node(*id)?;
            // The next one only when this one is back, as an operator would.
            let deadline = Instant::now() + SHOWS_WITHIN;
            while self.stage.sights.last().ready < ids.len() {
                anyhow::ensure!(Instant::now() < deadline, "node {id} is not ready {} s after its restart", SHOWS_WITHIN.as_secs());
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok((format!("nodes {ids:?}"), self.acknowledged(since).await))
    }

    // -------- links

    /// Cuts links until they are healed.
    fn cut(&self, links: &[(Party, Party, Link)]) -> Vec<(Party, Party)> {
        for (from, to, link) in links {
            match (&self.stage.namespaces, from, to) {
                // Packets of both ends of a connection: what it carries there, and what it carries back.
                (Some(namespaces), Party::Node(one), Party::Node(other)) => {
                    for (from, to, flow) in [(one, other, link.there), (other, one, link.back)] {
                        if flow != Flow::Pass {
                            namespaces.set(*from, *to, true);
                        }
                    }
                }
                _ => self.stage.fabric.set(*from, *to, *link),
            }
        }
        links.iter().map(|(from, to, _)| (*from, *to)).collect()
    }

    fn heal(&self, links: &[(Party, Party)]) {
        self.stage.fabric.heal(links);
        let Some(namespaces) = &self.stage.namespaces else { return };
        for link in links {
            if let (Party::Node(one), Party::Node(other)) = link {
                namespaces.set(*one, *other, false);
                namespaces.set(*other, *one, false);
            }
        }
    }

    fn tally(&self) -> (u64, u64, u64) {
        let tally = &self.stage.fabric.tally;
        if let Some(namespaces) = &self.stage.namespaces {
            return (namespaces.sent_again(), tally.swallowed.load(Relaxed), tally.delayed.load(Relaxed));
        }
        (tally.held.load(Relaxed), tally.swallowed.load(Relaxed), tally.delayed.load(Relaxed))
    }

    /// All links between a node and the other nodes, both ways.
    async fn around(&self, id: u64, out: Link, back: Link) -> anyhow::Result<Vec<(Party, Party, Link)>> {
        let others: Vec<u64> = self.cluster().await?.node_ids().into_iter().filter(|other| *other != id).collect();
        let ways = others.into_iter().map(Party::Node).flat_map(|other| [(Party::Node(id), other, out), (other, Party::Node(id), back)]);
        Ok(ways.collect())
    }

    /// A node alone. Gateways still reach it: a leader of the past is asked, too.
    async fn isolated(&mut self, id: u64) -> anyhow::Result<Vec<(Party, Party)>> {
        // Held back bytes arrive late; swallowed ones never.
        let flow = if self.rng.random_bool(0.7) { Flow::Hold } else { Flow::Swallow };
        let link = Link { there: flow, back: flow };
        Ok(self.cut(&self.around(id, link, link).await?))
    }

    async fn partition_leader(&mut self) -> Made {
        let (term, id) = self.leader().await?;
        let since = self.now();
        let links = self.isolated(id).await?;
        let evidence = self.successor(since, term, id).await;
        self.hold(500..4_000).await;
        self.heal(&links);
        Ok((format!("node {id} alone"), evidence))
    }

    async fn partition_follower(&mut self) -> Made {
        let id = self.follower().await?;
        let links = self.isolated(id).await?;
        let (since, (held, swallowed, _)) = (self.now(), self.tally());
        self.hold(1_500..5_000).await;
        let evidence = self.acknowledged(since).await.filter(|_| self.tally().0 + self.tally().1 > held + swallowed);
        self.heal(&links);
        Ok((format!("node {id} alone"), evidence))
    }

    /// The leader and a gateway on one side, with less than half of the nodes; everything else on the other.
    async fn split(&mut self) -> Made {
        let (term, leader) = self.leader().await?;
        let mut others: Vec<u64> = self.cluster().await?.node_ids().into_iter().filter(|id| *id != leader).collect();
        others.shuffle(&mut self.rng);
        let minority_max = others.len() / 2;
        let with_it = self.rng.random_range(0..minority_max.max(1));
        let few: Vec<u64> = others.drain(..with_it).chain([leader]).collect();
        let count = self.cluster().await?.gateway_count();
        let gateway = self.rng.random_range(0..count);
        let flow = if self.rng.random_bool(0.5) { Flow::Hold } else { Flow::Swallow };
        let link = Link { there: flow, back: flow };
        let mut links = Vec::new();
        for other in others.iter().copied().map(Party::Node) {
            links.extend(few.iter().copied().map(Party::Node).flat_map(|one| [(one, other, link), (other, one, link)]));
            links.push((Party::Gateway(gateway), other, link));
        }
        let away = (0..count).filter(|place| *place != gateway);
        links.extend(away.flat_map(|place| few.iter().map(move |one| (Party::Gateway(place), Party::Node(*one), link))));
        let since = self.now();
        let links = self.cut(&links);
        let evidence = self.successor(since, term, leader).await;
        self.hold(1_000..5_000).await;
        self.heal(&links);
        Ok((format!("nodes {few:?}, which led, and gateway {gateway} on one side, nodes {others:?} on the other"), evidence))
    }

    /// Two halves that do not reach each other, and one node that both reach.
    async fn bridge(&mut self) -> Made {
        self.leader().await?;
        let mut ids = self.cluster().await?.node_ids();
        anyhow::ensure!(ids.len() >= 5, "it takes five nodes");
        ids.shuffle(&mut self.rng);
        let between = ids[0];
        let (one, other) = ids[1..].split_at((ids.len() - 1) / 2);
        let flow = if self.rng.random_bool(0.5) { Flow::Hold } else { Flow::Swallow };
        let link = Link { there: flow, back: flow };
        let pairs = one.iter().flat_map(|one| other.iter().map(move |other| (Party::Node(*one), Party::Node(*other))));
        let links: Vec<_> = pairs.flat_map(|(one, other)| [(one, other, link), (other, one, link)]).collect();
        let (held, swallowed, _) = self.tally();
        let links = self.cut(&links);
        // One that led on one side and one that is elected on the other must have come to terms by then.
        self.hold(1_500..3_000).await;
        let since = self.now();
        self.hold(1_000..3_000).await;
        let evidence = self.acknowledged(since).await.filter(|_| self.tally().0 + self.tally().1 > held + swallowed);
        self.heal(&links);
        Ok((format!("nodes {one:?} and {other:?}, node {between} between them"), evidence))
    }

    async fn one_way(&mut self) -> Made {
        let (_, leader) = self.leader().await?;
        let (id, who) = if self.rng.random_bool(0.7) { (leader, "leader") } else { (self.follower().await?, "follower") };
        let is_deaf = self.rng.random_bool(0.5);
        let (inward, outward) = if is_deaf { (Flow::Hold, Flow::Pass) } else { (Flow::Pass, Flow::Hold) };
        // What it sends goes there on its own connections and back on those of the others.
        let (own, others) = (Link { there: outward, back: inward }, Link { there: inward, back: outward });
        let before = self.tally().0;
        let since = self.now();
        let links = self.cut(&self.around(id, own, others).await?);
        self.hold(1_500..5_000).await;
        let written = self.acknowledged(since).await;
        let held = self.tally().0.saturating_sub(before);
        self.heal(&links);
        let word = if is_deaf { "hears nobody" } else { "is heard by nobody" };
        let evidence = written.filter(|_| held > 0).map(|told| format!("{held} pieces held back or sent again, {told}"));
        Ok((format!("node {id}, {who}, {word}"), evidence))
    }

    async fn gateway_link(&mut self) -> Made {
        let (_, leader) = self.leader().await?;
        let count = self.cluster().await?.gateway_count();
        let place = self.rng.random_range(0..count);
        let flow = if self.rng.random_bool(0.5) { Flow::Hold } else { Flow::Swallow };
        // Requests arrive and answers do not, or neither.
        let there = if self.rng.random_bool(0.5) { Flow::Pass } else { flow };
        let (held, swallowed, _) = self.tally();
        let since = self.now();
        let links = self.cut(&[(Party::Gateway(place), Party::Node(leader), Link { there, back: flow })]);
        self.hold(1_500..5_000).await;
        let evidence = self.acknowledged(since).await.filter(|_| self.tally().0 + self.tally().1 > held + swallowed);
        self.heal(&links);
        Ok((format!("gateway {place} and node {leader}, the leader"), evidence))
    }

    async fn slow_links(&mut self) -> Made {
        let ids = self.cluster().await?.node_ids();
        let id = ids[self.rng.random_range(0..ids.len())];
        let time = Duration::from_millis(self.rng.random_range(20..250));
        let link = Link { there: Flow::Delay(time), back: Flow::Delay(time) };
        let before = self.tally().2;
        let since = self.now();
        let links = self.cut(&self.around(id, link, link).await?);
        self.hold(2_000..6_000).await;
        let written = self.acknowledged(since).await;
        self.heal(&links);
        let delayed = self.tally().2 - before;
        let evidence = written.filter(|_| delayed > 0).map(|told| format!("{delayed} pieces delayed, {told}"));
        Ok((format!("node {id}, {} ms each way", time.as_millis()), evidence))
    }

    async fn flaky_links(&mut self) -> Made {
        let (id, who) = self.leader_or_follower().await?;
        let link = Link { there: Flow::Hold, back: Flow::Hold };
        let around = self.around(id, link, link).await?;
        let (before, since, mut breaks) = (self.tally().0, self.now(), 0);
        let end = Instant::now() + Duration::from_millis(self.rng.random_range(2_000..6_000));
        while Instant::now() < end && !*self.stop.borrow() {
            let links = self.cut(&around);
            breaks += 1;
            self.hold(30..200).await;
            self.heal(&links);
            self.hold(30..300).await;
        }
        let written = self.acknowledged(since).await;
        let held = self.tally().0.saturating_sub(before);
        let evidence = written.filter(|_| held > 0).map(|told| format!("{held} pieces held back or sent again, {told}"));
        Ok((format!("node {id}, {who}, {breaks} times"), evidence))
    }

    async fn lost_replies(&mut self) -> Made {
        let count = self.stage.doors.count();
        anyhow::ensure!(count > 1, "there is one gateway alone");
        let place = self.rng.random_range(0..count);
        let before = self.stage.doors.resent.load(Relaxed);
        let links = self.cut(&[(Party::Client, Party::Gateway(place), Link { there: Flow::Pass, back: Flow::Swallow })]);
        self.hold(2_000..5_000).await;
        self.heal(&links);
        // The connections end now, and the calls on them are sent again.
        let deadline = Instant::now() + SHOWS_WITHIN;
        while self.stage.doors.resent.load(Relaxed) == before && Instant::now() < deadline {
            sleep(Duration::from_millis(50)).await;
        }
        let resent = self.stage.doors.resent.load(Relaxed) - before;
        let evidence = (resent > 0).then(|| format!("{resent} calls answered through another gateway after their answer was lost"));
        Ok((format!("gateway {place}"), evidence))
    }

    // -------- disks and clocks

    /// The leader as often as not.
    async fn leader_or_follower(&mut self) -> anyhow::Result<(u64, &'static str)> {
        let (_, leader) = self.leader().await?;
        Ok(if self.rng.random_bool(0.5) { (leader, "which led") } else { (self.follower().await?, "a follower") })
    }

    async fn power_loss(&mut self) -> Made {
        self.leader().await?;
        let mut rng = StdRng::seed_from_u64(self.rng.random());
        let mut cluster = self.cluster().await?;
        anyhow::ensure!(cluster.has_faulty_disks(), "the library that is loaded in front of the C library is not there");
        let ids = cluster.node_ids();
        cluster.kill_nodes(&ids).await;
        let mut lost = 0;
        for id in &ids {
            // The disk may have kept some of what it was never told to keep, up to a torn record.
            lost += cluster.lose_power(*id, &mut |unsynced| if rng.random_bool(0.5) { 0 } else { rng.random_range(0..=unsynced) })?;
        }
        let since = self.now();
        ids.iter().try_for_each(|id| cluster.start_node(*id))?;
        drop(cluster);
        let evidence = self.acknowledged(since).await.filter(|_| lost > 0);
        Ok((format!("nodes {ids:?}"), evidence.map(|told| format!("{lost} bytes were gone, {told}"))))
    }

    async fn slow_disk(&mut self) -> Made {
        let (id, who) = self.leader_or_follower().await?;
        let delay_ms = self.rng.random_range(3..60);
        let count = self.with_fault(id, Switch::SyncDelayUs, delay_ms * 1_000, Counter::SyncsDelayed, 2_000..6_000).await?;
        Ok((format!("node {id}, {who}, {delay_ms} ms more for each sync"), count.map(|told| format!("{told} took longer"))))
    }

    async fn stall_disk(&mut self) -> Made {
        let (id, who) = self.leader_or_follower().await?;
        let count = self.with_fault(id, Switch::SyncHangs, 1, Counter::SyncsHung, 2_000..6_000).await?;
        Ok((format!("node {id}, {who}"), count.map(|told| format!("{told} hung"))))
    }

    async fn clock_jump(&mut self) -> Made {
        let (id, who) = self.leader_or_follower().await?;
        let by_ms = self.rng.random_range(-200_000..200_000);
        let count = self.with_fault(id, Switch::WallAheadMs, by_ms, Counter::WallReadsShifted, 2_000..6_000).await?;
        Ok((format!("node {id}, {who}, by {by_ms} ms"), count.map(|told| format!("{told} of its readings were off"))))
    }

    /// Holds a fault of one node: what its counter came to, and the writes that were acknowledged meanwhile.
    async fn with_fault(
        &mut self,
        id: u64,
        switch: Switch,
        value: i64,
        counter: Counter,
        ms: std::ops::Range<u64>,
    ) -> anyhow::Result<Option<String>> {
        let before = {
            let cluster = self.cluster().await?;
            anyhow::ensure!(cluster.has_faulty_disks(), "the library that is loaded in front of the C library is not there");
            let before = cluster.fault_count(id, counter)?;
            cluster.set_fault(id, switch, value)?;
            before
        };
        let since = self.now();
        self.hold(ms).await;
        let acknowledged = self.acknowledged(since).await;
        let cluster = self.cluster().await?;
        let count = cluster.fault_count(id, counter)? - before;
        cluster.set_fault(id, switch, 0)?;
        Ok(acknowledged.filter(|_| count > 0).map(|told| format!("{told}, {count}")))
    }

    /// A disk that takes nothing more. The node may stop: it is started when the disk is well again.
    async fn broken_disk(&mut self, switch: Switch, value: i64, counter: Counter) -> Made {
        let (id, who) = self.leader_or_follower().await?;
        self.cluster().await?.excuse(id, true);
        let count = self.with_fault(id, switch, value, counter, 1_500..4_000).await?;
        // What it began on a bad disk may end it later: it is excused until all are ready again, and started as a supervisor would.
        let (healed, deadline) = (self.now(), Instant::now() + 2 * SHOWS_WITHIN);
        let mut has_stopped = false;
        loop {
            let sight = self.stage.sights.last();
            let mut cluster = self.cluster().await?;
            for (name, status) in cluster.ended_by_themselves() {
                self.stage.tell(format!("{name} ended by itself: {status}"));
            }
            has_stopped |= !cluster.is_running(id);
            cluster.start_node(id)?;
            // Too late: whether it comes back at all is asked at the end.
            if (sight.at > healed + READY_FOR && sight.ready >= cluster.node_ids().len()) || Instant::now() > deadline {
                cluster.excuse(id, false);
                break;
            }
            drop(cluster);
            sleep(Duration::from_millis(100)).await;
        }
        let end = if has_stopped { ", and stopped" } else { "" };
        Ok((format!("node {id}, {who}{end}"), count.map(|told| format!("{told} writes or syncs failed"))))
    }

    // -------- operator

    async fn transfer(&mut self) -> Made {
        let (term, leader) = self.leader().await?;
        let others: Vec<u64> = self.voters().await?.into_iter().filter(|id| *id != leader).collect();
        anyhow::ensure!(!others.is_empty(), "no follower");
        let to = others[self.rng.random_range(0..others.len())];
        let since = self.now();
        let done = self.verb(&["transfer".into(), to.to_string()]).await?;
        let moved = self.successor(since, term, leader).await;
        let evidence = moved.filter(|_| done["leader"] == to).map(|told| format!("asked for node {to}: {told}"));
        Ok((format!("node {leader} to node {to}"), evidence))
    }

    /// A new node takes part, and one that was there goes for good.
    async fn membership(&mut self) -> Made {
        let (_, leader) = self.leader().await?;
        let since = self.now();
        let before = self.cluster().await?.node_ids();
        // The leader goes as often as another.
        let gone = before[self.rng.random_range(0..before.len())];
        let mut cluster = self.cluster().await?;
        let new = cluster.add_node().await?;
        self.stage.note_addresses(&cluster);
        let relay = cluster.relay_of(new).context("just added")?.to_string();
        let steps: [Vec<String>; 3] =
            [vec!["join".into(), relay], vec!["promote".into(), new.to_string()], vec!["remove".into(), gone.to_string()]];
        for step in steps {
            let deadline = Instant::now() + 2 * LEADER_WITHIN;
            loop {
                match cluster.verb(&step).await {
                    Ok(_) => break,
                    Err(error) if Instant::now() > deadline => return Err(error),
                    // A learner that has yet to catch up, or no leader just now.
                    Err(_) => sleep(Duration::from_millis(300)).await,
                }
            }
        }
        cluster.forget_node(gone).await;
        self.stage.note_addresses(&cluster);
        drop(cluster);
        let role = if gone == leader { ", which led" } else { "" };
        Ok((format!("node {new} for node {gone}{role}"), self.acknowledged(since).await))
    }
}
