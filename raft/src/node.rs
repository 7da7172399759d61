//! A replica: starts, answers, stops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{InitializeError, RaftError};
use quorate_domain::machine::{Call, Clock, Decided};
use quorate_domain::{Revision, UnixMs, codec};
use quorate_proto::cluster;
use quorate_storage::{Claim, DataDir, FsyncProbe, IdentityError, LogStore, Snapshots, StateDigest, StateStore, StorageError, probe_fsync};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::blocking::blocking;
use crate::config::Config;
use crate::keeper::Keeper;
use crate::log::Log;
use crate::machine::{Applied, Machine};
use crate::membership::{Change, Changes, MembershipError, Outcome, heard_ago, heard_within, matched};
use crate::network::{Links, Network};
use crate::peers::{Me, Peers};
use crate::proposer::Proposer;
use crate::read::{Consistency, Contact, ReadAt, ReadError, Reader};
use crate::server::RaftService;
use crate::transfer::{Incoming, Origin};
use crate::types::{Address, Metrics, Raft};
use crate::unavailable::{ProposeError, Reason, Unavailable};

/// Tries of the fsync probe; one that passes is enough, since a busy neighbour says nothing of the disk.
const PROBES: usize = 3;
/// Of the slowest percent; openraft's advice.
const FSYNCS_IN_ELECTION_TIMEOUT: u64 = 10;
/// How long a leader that stops may look for a successor.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);
/// How long a change of the membership is waited for when nothing else is said.
const CHANGE_MAX: Duration = Duration::from_secs(30);
/// Entries that a successor may be behind: what is on its way at any moment.
const TRANSFER_LAG_MAX: u64 = 10_000;

/// Why a node does not start. One variant for each different next step of the operator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the configuration can't be used: {0}")]
    Config(String),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "one fsync in a hundred takes {p99_ms} ms here, and an election timeout of {timeout_ms} ms would depose healthy leaders: \
         set `election_timeout_min_ms` to at least {needed_ms} and `election_timeout_max_ms` above it, leave both out to have them \
         chosen, or use a faster disk"
    )]
    SlowDisk { p99_ms: u64, timeout_ms: u64, needed_ms: u64 },
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("cannot start: {0}")]
    Fault(#[from] std::io::Error),
    #[error("cannot start: {0}")]
    Raft(String),
}

impl StartError {
    /// Whether the same start can only fail the same way: the operator has to change something first.
    pub fn is_final(&self) -> bool {
        match self {
            StartError::Config(_) | StartError::SlowDisk { .. } => true,
            // Another process may let go of the folder.
            StartError::Identity(error) => !matches!(error, IdentityError::InUse { .. } | IdentityError::Storage(_)),
            StartError::Storage(_) | StartError::Fault(_) | StartError::Raft(_) => false,
        }
    }
}

/// Why a cluster was not formed.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("this node already belongs to a cluster")]
    AlreadyFormed,
    #[error("node {0} is not among the members that were named")]
    NotNamed(u64),
    #[error("the node has stopped: {0}")]
    Stopped(String),
}

/// Why leadership was not handed over.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TransferLeaderError {
    #[error("this node does not lead")]
    NotLeader,
    #[error("node {0} is no voter")]
    NoVoter(u64),
    #[error("node {id} is {lag} entries behind; wait until it has caught up")]
    Behind { id: u64, lag: u64 },
    #[error("node {0} has not been heard of lately")]
    Silent(u64),
    #[error("node {0} did not take over in time; the voters elect again")]
    NotTaken(u64),
    #[error("the node has stopped: {0}")]
    Stopped(String),
}

/// A running replica. Clones share it.
#[derive(Clone)]
pub struct RaftNode {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    raft: Raft,
    applied: Arc<Applied>,
    proposer: Proposer,
    reader: Reader,
    service: RaftService,
    changes: Arc<Changes>,
    stopped: watch::Receiver<Option<String>>,
    probe: Option<FsyncProbe>,
    tasks: Vec<AbortHandle>,
    /// Last, so that the directory is free only when all in it is closed.
    data_dir: DataDir,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl RaftNode {
    /// Opens the data directory, replays what was committed, and joins in. Mount [`RaftNode::service`] right after, with
    /// `TCP_NODELAY`: until then the other members can't reach this one.
    pub async fn start(mut config: Config) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        let opened = {
            let config = config.clone();
            blocking(move || Opened::open(&config)).await??
        };
        let Opened { data_dir, probe, log, state, snapshots } = opened;
        if let Some(probe) = probe {
            config.adapt(probe.p99_us);
        }
        let openraft_config = Arc::new(config.openraft().map_err(StartError::Config)?);
        let identity = data_dir.identity();
        let me = Me {
            cluster_id: config.cluster_id.clone(),
            lineage: config.lineage,
            node_id: config.node_id,
            incarnation: identity.incarnation.to_string(),
        };
        let origin = Origin { cluster_id: config.cluster_id.clone(), lineage: config.lineage };
        let peers = Arc::new(Peers::open(data_dir.path(), me)?);
        let links =
            Links::new(Arc::clone(&peers), &config).map_err(|error| StartError::Config(format!("the cluster secret is wrong: {error}")))?;
        let applied = Applied::open(
            Arc::clone(&state),
            Arc::clone(&log),
            snapshots.clone(),
            Arc::clone(&config.clock),
            codec::encode(&origin).into(),
        )?;
        let (machine, machine_dropped) = Machine::new(Arc::clone(&applied));
        let log = Log::new(log, state, config.append_bytes_max);
        let raft = Raft::build(config.node_id, openraft_config, Network(Arc::clone(&links)), log, machine)
            .await
            .map_err(|error| StartError::Raft(error.to_string()))?;
        links.observe(raft.metrics());

        let contact = Arc::<Contact>::default();
        let reader = Reader::start(raft.clone(), Arc::clone(&applied), links, Arc::clone(&contact), &config);
        let proposer = Proposer::start(raft.clone(), Arc::clone(&applied), &config);
        let incoming = Arc::new(Incoming::new(snapshots, origin));
        let service = RaftService { raft: raft.clone(), peers, reader: reader.clone(), contact, incoming };
        let (stop, stopped) = watch::channel(None);
        let keeper = tokio::spawn(Keeper::new(raft.clone(), Arc::clone(&applied), &config).run());
        let observer = tokio::spawn(observe(raft.clone(), machine_dropped, stop));
        let changes = Changes::new(raft.clone(), Arc::clone(&applied), config.lease());
        let finisher = tokio::spawn(Arc::clone(&changes).finish_left_over());
        let tasks = vec![keeper.abort_handle(), observer.abort_handle(), finisher.abort_handle()];
        raft.run();
        Ok(Self { inner: Arc::new(Inner { config, raft, applied, proposer, reader, service, changes, stopped, probe, tasks, data_dir }) })
    }

    /// What the other members talk to.
    pub fn service(&self) -> RaftService {
        self.inner.service.clone()
    }

    /// Forms a new cluster out of the given voters, this node among them. To be called on one of them.
    pub async fn init(&self, members: BTreeMap<u64, Address>) -> Result<(), InitError> {
        let id = self.inner.config.node_id;
        if !members.contains_key(&id) {
            return Err(InitError::NotNamed(id));
        }
        match self.inner.raft.initialize(members).await {
            Ok(()) => Ok(()),
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Err(InitError::AlreadyFormed),
            Err(RaftError::APIError(InitializeError::NotInMembers(_))) => Err(InitError::NotNamed(id)),
            Err(RaftError::Fatal(fatal)) => Err(InitError::Stopped(fatal.to_string())),
        }
    }

    /// Has the log decide a call.
    pub async fn propose(&self, call: Call, deadline: Instant) -> Result<Decided, ProposeError> {
        self.inner.proposer.propose(call, deadline).await
    }

    /// A state to read, as fresh as asked for.
    pub async fn read(&self, consistency: Consistency, deadline: Instant) -> Result<ReadAt, ReadError> {
        self.inner.reader.at(consistency, deadline).await
    }

    /// How old the state of this node may be; `None` when it has not heard of a leader.
    pub fn age(&self) -> Option<Duration> {
        self.inner.reader.age()
    }

    /// The last applied revision, as it moves: what watchers wake up by.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.inner.applied.watch()
    }

    /// The state as it is here, for what needs no consistency: indexing, watching, hashing.
    pub fn state(&self) -> &Arc<StateStore> {
        &self.inner.applied.state
    }

    pub(crate) fn wall_now(&self) -> UnixMs {
        self.inner.config.clock.wall()
    }

    pub(crate) fn snapshots(&self) -> &Snapshots {
        self.inner.applied.snapshots()
    }

    /// A digest of the whole state right after the entry of this revision; nothing when that is over. Reads everything once,
    /// which takes as long as the disk does; the wait before it ends at the deadline.
    pub async fn digest_at(&self, revision: Revision, deadline: Instant) -> Result<Option<StateDigest>, ReadError> {
        let view = match tokio::time::timeout_at(deadline.into(), self.inner.applied.pin_at(revision.0)).await {
            Ok(Ok(view)) => view,
            Ok(Err(_)) => return Ok(None),
            Err(_) => return Err(Unavailable::new(Reason::Timeout, format!("revision {revision} is not applied here yet"), 100).into()),
        };
        let digest = blocking(move || view.digest()).await;
        let digest = digest.map_err(|error| StorageError::new("the scan did not end", error)).and_then(|digest| digest);
        digest.map(Some).map_err(ReadError::Storage)
    }

    pub fn log(&self) -> &Arc<LogStore> {
        &self.inner.applied.log
    }

    pub fn data_dir(&self) -> &DataDir {
        &self.inner.data_dir
    }

    /// What the start-up probe measured, if it ran.
    pub fn fsync_probe(&self) -> Option<FsyncProbe> {
        self.inner.probe
    }

    /// Resolves with the reason once the node takes no part any more. The process should end then, with a code of its own.
    pub async fn stopped(&self) -> String {
        let mut stopped = self.inner.stopped.clone();
        let reason = stopped.wait_for(Option::is_some).await.map(|reason| reason.clone());
        reason.ok().flatten().unwrap_or_else(|| "the node was dropped".into())
    }

    pub fn is_leader(&self) -> bool {
        self.inner.raft.is_leader()
    }

    /// Whether a change of the membership could be made now.
    pub async fn check_membership_change(&self, change: &Change) -> Result<Outcome, MembershipError> {
        match self.inner.changes.check(change).await {
            // It would be handed over.
            Err(MembershipError::Leads(_)) => Ok(Outcome::Changed),
            checked => checked,
        }
    }

    /// Changes the membership. A leader that shall go hands over first, and its successor has to be asked then.
    pub async fn change_membership(&self, change: Change, deadline: Instant) -> Result<Outcome, MembershipError> {
        let made = self.inner.changes.make(change, deadline).await;
        if !matches!(made, Err(MembershipError::Leads(_))) {
            return made;
        }
        let handed = self.hand_over().await;
        let metrics = self.metrics();
        let successor = metrics.current_leader.filter(|leader| *leader != self.inner.config.node_id);
        let address = successor.and_then(|leader| metrics.membership_config.membership().get_node(&leader).cloned());
        Err(MembershipError::Undecided(match (successor, address, handed) {
            (Some(leader_id), Some(address), _) => ProposeError::NotLeader { leader_id, leader_grpc: address.grpc },
            (_, _, Err(error)) => Unavailable::new(Reason::NoLeader, format!("leadership was not handed over: {error}"), 500).into(),
            _ => Unavailable::new(Reason::NoLeader, "leadership is being handed over", 200).into(),
        }))
    }

    /// Adds a member that gets everything and votes on nothing, yet.
    pub async fn add_learner(&self, id: u64, address: Address) -> Result<Outcome, MembershipError> {
        self.change_membership(Change::AddLearner { id, address }, Instant::now() + CHANGE_MAX).await
    }

    /// Makes a learner that has been close behind for some seconds a voter.
    pub async fn promote(&self, id: u64) -> Result<Outcome, MembershipError> {
        self.change_membership(Change::Promote { id, instead_of: None }, Instant::now() + CHANGE_MAX).await
    }

    /// Takes a member out, for good.
    pub async fn remove(&self, id: u64) -> Result<Outcome, MembershipError> {
        self.change_membership(Change::Remove { id, force: false }, Instant::now() + CHANGE_MAX).await
    }

    fn metrics(&self) -> Metrics {
        // Cloned at once: openraft's core waits for whoever holds the guard.
        self.inner.raft.metrics().borrow_watched().clone()
    }

    /// What this node knows of itself and its cluster.
    pub fn status(&self) -> cluster::StatusResponse {
        let metrics = self.metrics();
        let applied = self.inner.applied.index();
        let log = self.inner.applied.log.stats();
        let identity = self.inner.data_dir.identity();
        let lease_now = Clock::read(&*self.inner.applied.state).map(|clock| clock.lease_now.0).unwrap_or_default();
        let index = |id: &Option<crate::types::LogId>| id.as_ref().map_or(0, |id| id.index());
        cluster::StatusResponse {
            node_id: self.inner.config.node_id,
            cluster_id: identity.cluster_id.clone(),
            lineage: self.inner.config.lineage,
            incarnation: identity.incarnation.to_string(),
            term: metrics.current_term,
            leader_id: metrics.current_leader,
            role: role(&metrics).into(),
            applied,
            last_log: metrics.last_log_index.unwrap_or_default(),
            committed: index(&metrics.local_committed),
            snapshot: index(&metrics.snapshot),
            purged: index(&metrics.purged),
            lease_now_ms: lease_now,
            members: members(&metrics),
            pid: std::process::id(),
            log_fsyncs: log.syncs,
            log_entries: log.entries,
            log_fsync_p99_us: log.sync_p99_us,
            not_ready: self.not_ready(&metrics, applied).into_iter().map(str::to_owned).collect(),
            grpc: self.inner.config.address.grpc.clone(),
            http: self.inner.config.address.http.clone(),
            member_id_max: self.inner.applied.members_ever().last().copied().unwrap_or_default(),
        }
    }

    /// Counters and histograms of this node's work, as Prometheus text.
    pub fn exposition(&self) -> String {
        let applied = &self.inner.applied;
        applied.meter.exposition(applied.log.meter(), self.inner.proposer.waiting())
    }

    fn not_ready(&self, metrics: &Metrics, applied: u64) -> Vec<&'static str> {
        let membership = metrics.membership_config.membership();
        let committed = metrics.cluster_committed.as_ref().map_or(0, |id| id.index());
        let conditions = [
            (metrics.running_state.is_err(), "stopped"),
            (membership.nodes().next().is_none(), "uninitialized"),
            (metrics.current_leader.is_none(), "no_leader"),
            (committed > applied + 5_000, "apply_lag"),
            (membership.get_joint_config().len() > 1, "membership_changing"),
        ];
        conditions.into_iter().filter_map(|(holds, code)| holds.then_some(code)).collect()
    }

    /// Hands leadership to another voter and waits until it has taken over.
    pub async fn transfer_leader(&self, to: u64) -> Result<(), TransferLeaderError> {
        let raft = &self.inner.raft;
        if to == self.inner.config.node_id && raft.is_leader() {
            return Ok(());
        }
        let metrics = self.metrics();
        if !metrics.state.is_leader() {
            return Err(TransferLeaderError::NotLeader);
        }
        // A leader that gives up its office to one who can't take it leaves the cluster without one for an election.
        self.check_successor(&metrics, to)?;
        raft.trigger().transfer_leader(to).await.map_err(|fatal| TransferLeaderError::Stopped(fatal.to_string()))?;
        let taken = raft.wait(Some(HAND_OVER_MAX)).metrics(|metrics| metrics.current_leader == Some(to), "another leads").await;
        taken.map(|_| ()).map_err(|_| TransferLeaderError::NotTaken(to))
    }

    fn check_successor(&self, metrics: &Metrics, to: u64) -> Result<(), TransferLeaderError> {
        if !metrics.membership_config.voter_ids().any(|voter| voter == to) {
            return Err(TransferLeaderError::NoVoter(to));
        }
        if !heard_within(metrics, to, self.inner.config.lease()) {
            return Err(TransferLeaderError::Silent(to));
        }
        let matched = matched(metrics, to).unwrap_or_default();
        let lag = metrics.last_log_index.unwrap_or_default().saturating_sub(matched);
        if lag > TRANSFER_LAG_MAX {
            return Err(TransferLeaderError::Behind { id: to, lag });
        }
        Ok(())
    }

    /// Hands leadership to the voter that has most of the log and is heard of.
    async fn hand_over(&self) -> Result<(), TransferLeaderError> {
        let metrics = self.metrics();
        let mut others: Vec<u64> = metrics.membership_config.voter_ids().filter(|voter| *voter != self.inner.config.node_id).collect();
        others.sort_by_key(|other| std::cmp::Reverse(matched(&metrics, *other)));
        let mut outcome = Ok(());
        for other in others {
            outcome = self.transfer_leader(other).await;
            if !matches!(outcome, Err(TransferLeaderError::Silent(_) | TransferLeaderError::Behind { .. })) {
                break;
            }
        }
        outcome
    }

    /// Stops in good order: a leader hands over first, bounded, and the state is flushed so that the next start is quick.
    pub async fn shutdown(&self) {
        match self.hand_over().await {
            Ok(()) | Err(TransferLeaderError::NotLeader | TransferLeaderError::Silent(_) | TransferLeaderError::Behind { .. }) => {}
            Err(error) => tracing::warn!(%error, "leadership was not handed over"),
        }
        for task in &self.inner.tasks {
            task.abort();
        }
        if self.inner.raft.shutdown().await.is_err() {
            tracing::warn!("openraft's task ended in a panic");
        }
        let (state, log) = (Arc::clone(&self.inner.applied.state), Arc::clone(&self.inner.applied.log));
        let flushed = blocking(move || {
            let flushed = state.flush();
            log.close();
            flushed
        });
        if let Ok(Err(error)) = flushed.await {
            tracing::warn!(%error, "the state was not flushed; the next start replays the log");
        }
    }

    /// The revision up to which a crash now would not need the log.
    pub fn flushed(&self) -> Revision {
        Revision(self.inner.applied.flushed_index())
    }

    /// How long ago that was put on disk.
    pub fn flushed_ago(&self) -> Duration {
        self.inner.applied.flushed_ago()
    }
}

/// What lies in the data directory.
struct Opened {
    data_dir: DataDir,
    probe: Option<FsyncProbe>,
    log: Arc<LogStore>,
    state: Arc<StateStore>,
    snapshots: Snapshots,
}

impl Opened {
    fn open(config: &Config) -> Result<Self, StartError> {
        let claim = Claim { cluster_id: config.cluster_id.clone(), lineage: config.lineage.to_string(), node_id: config.node_id };
        let data_dir = DataDir::load_or_create(&config.data_dir, &claim)?;
        let probe = probe(config)?;
        Ok(Self {
            probe,
            log: LogStore::open_on(&*config.engine, &data_dir.log_dir(), config.log)?,
            state: Arc::new(StateStore::open_on(Arc::clone(&config.engine), &data_dir.state_dir(), config.state)?),
            snapshots: Snapshots::open(&data_dir.snapshots_dir())?,
            data_dir,
        })
    }
}

fn probe(config: &Config) -> Result<Option<FsyncProbe>, StartError> {
    if config.fsync_probe_rounds == 0 {
        return Ok(None);
    }
    let mut best: Option<FsyncProbe> = None;
    for _ in 0..PROBES {
        let probe = probe_fsync(&config.data_dir, config.fsync_probe_rounds)?;
        if best.is_none_or(|best| probe.p99_us < best.p99_us) {
            best = Some(probe);
        }
        if check_disk(probe, config.election_timeout_ms_min).is_ok() {
            break;
        }
    }
    if let Some(probe) = best {
        fits(probe, config)?;
    }
    Ok(best)
}

/// Timeouts that adapt fit any disk; those that an operator has set may not.
fn fits(probe: FsyncProbe, config: &Config) -> Result<(), StartError> {
    if config.election_timeout_adapts { Ok(()) } else { check_disk(probe, config.election_timeout_ms_min) }
}

/// An election timeout has to leave room for the fsyncs that an answer waits for.
fn check_disk(probe: FsyncProbe, timeout_ms: u64) -> Result<(), StartError> {
    let needed_ms = (probe.p99_us * FSYNCS_IN_ELECTION_TIMEOUT).div_ceil(1_000);
    if needed_ms <= timeout_ms { Ok(()) } else { Err(StartError::SlowDisk { p99_ms: probe.p99_us.div_ceil(1_000), timeout_ms, needed_ms }) }
}

/// Waits for openraft to end, by a fault or by a shutdown.
async fn observe(raft: Raft, machine_dropped: oneshot::Receiver<()>, stop: watch::Sender<Option<String>>) {
    let mut server = raft.server_metrics();
    let core_ended = async { while server.changed().await.is_ok() {} };
    tokio::select! {
        () = core_ended => {}
        // The core notices by itself if that was in good order; if not, it would lead on and answer nobody.
        _ = machine_dropped => tokio::time::sleep(Duration::from_millis(100)).await,
    }
    let reason = match &raft.metrics().borrow_watched().running_state {
        Err(fatal) => fatal.to_string(),
        Ok(()) => "a task of openraft has panicked".into(),
    };
    tracing::error!(reason, "this node takes no part any more");
    stop.send_replace(Some(reason));
}

fn role(metrics: &Metrics) -> &'static str {
    if metrics.running_state.is_err() {
        return "stopped";
    }
    let membership = metrics.membership_config.membership();
    if membership.nodes().next().is_none() {
        return "uninitialized";
    }
    match metrics.state {
        ServerState::Leader => "leader",
        ServerState::Follower => "follower",
        ServerState::Learner => "learner",
        ServerState::Candidate => "candidate",
        ServerState::Shutdown => "stopped",
    }
}

fn members(metrics: &Metrics) -> Vec<cluster::Member> {
    let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
    let member = |(id, address): (&u64, &Address)| cluster::Member {
        id: *id,
        grpc: address.grpc.clone(),
        http: address.http.clone(),
        voter: voters.contains(id),
        matched: matched(metrics, *id),
        heard_ms_ago: heard_ago(metrics, *id).map(|ago| ago.as_millis() as u64),
    };
    metrics.membership_config.membership().nodes().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_too_slow_for_the_timers_is_refused_with_what_to_set() {
        let probe = |p99_us| FsyncProbe { p50_us: 4_000, p99_us };
        assert!(check_disk(probe(30_000), 300).is_ok());
        let refused = check_disk(probe(42_500), 300).unwrap_err().to_string();
        assert!(refused.contains("takes 43 ms") && refused.contains("`election_timeout_min_ms` to at least 425"), "{refused}");
    }

    #[test]
    fn a_disk_that_is_slow_when_a_node_starts_keeps_it_out_only_if_its_timers_were_set() {
        let address = Address { grpc: "127.0.0.1:7401".into(), http: "127.0.0.1:7501".into() };
        let mut config = Config::new("unused", "acme", 1, address);
        let busy = FsyncProbe { p50_us: 4_000, p99_us: 33_000 };
        assert!(fits(busy, &config).is_ok());
        config.adapt(busy.p99_us);
        assert_eq!((config.election_timeout_ms_min, config.election_timeout_ms_max), (330, 550));

        config.election_timeout_ms_min = 300;
        config.election_timeout_adapts = false;
        assert!(matches!(fits(busy, &config), Err(StartError::SlowDisk { needed_ms: 330, .. })));
    }
}
