//! A replica: starts, answers, stops.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{InitializeError, RaftError};
use quorate_domain::machine::{Call, Clock, Decided};
use quorate_domain::{Revision, UnixMs, codec, level, space};
use quorate_proto::cluster;
use quorate_storage::{
    Blobs, Claim, DataDir, FsyncProbe, IdentityError, LogStore, Snapshots, StateDigest, StateStore, StorageError, probe_fsync,
};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::blobs::{BlobsExamined, Depot};
use crate::blocking::blocking;
use crate::compare::Comparer;
use crate::config::Config;
use crate::eraser::{Erased, Eraser};
use crate::fitness::{self, Fitness};
use crate::form;
use crate::keeper::Keeper;
use crate::log::{Log, fault};
use crate::machine::{Applied, Machine};
use crate::membership::{Change, Changes, MembershipError, Outcome, heard_ago, matched};
use crate::network::{Links, Network};
use crate::office::{Office, TransferLeaderError};
use crate::peers::{Me, Peers};
use crate::proposer::Proposer;
use crate::quarantine::{self, Damaged, Quarantine, Rebuild};
use crate::read::{Consistency, Contact, ReadAt, ReadError, Reader};
use crate::server::RaftService;
use crate::transfer::{Incoming, Origin};
use crate::types::{Address, Metrics, Raft};
use crate::unavailable::{ProposeError, Reason, Unavailable};
use crate::warden::{self, Warden};

/// Tries of the fsync probe; one that passes is enough, since a busy neighbour says nothing of the disk.
const PROBES: usize = 3;
/// Of the slowest percent; openraft's advice.
const FSYNCS_IN_ELECTION_TIMEOUT: u64 = 10;
/// How long a change of the membership is waited for when nothing else is said.
const CHANGE_MAX: Duration = Duration::from_secs(30);

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
    #[error(
        "the log of this node is damaged, and with it votes or entries that others count on may be lost: it takes no part any more; give its \
         place to a new member with `quorate replace ID`, or restore a backup if it was alone ({0})"
    )]
    LogDamaged(String),
    #[error(
        "the cluster is at feature level {level}, and this version applies commands up to level {max}: start the version that ran here, or a newer one"
    )]
    TooOld { level: u64, max: u64 },
    #[error("the state of this node is damaged; started again, it fetches it from another member ({0})")]
    StateDamaged(String),
    #[error("cannot start: {0}")]
    Fault(#[from] std::io::Error),
    #[error("cannot start: {0}")]
    Raft(String),
}

impl StartError {
    /// Whether the same start can only fail the same way: the operator has to change something first.
    pub fn is_final(&self) -> bool {
        match self {
            StartError::Config(_) | StartError::SlowDisk { .. } | StartError::LogDamaged(_) | StartError::TooOld { .. } => true,
            // Another process may let go of the folder.
            StartError::Identity(error) => !matches!(error, IdentityError::InUse { .. } | IdentityError::Storage(_)),
            StartError::Storage(_) | StartError::StateDamaged(_) | StartError::Fault(_) | StartError::Raft(_) => false,
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
    fitness: Arc<Fitness>,
    office: Office,
    quarantine: Arc<Quarantine>,
    depot: Arc<Depot>,
    erased: watch::Receiver<Option<Erased>>,
    stopped: watch::Receiver<Option<String>>,
    probe: Option<FsyncProbe>,
    started_at: UnixMs,
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
        let Opened { data_dir, probe, log, snapshots, blobs } = opened;
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
        let fitness = Fitness::new(&config);
        let links = Links::new(Arc::clone(&peers), Arc::clone(&fitness), &config)
            .map_err(|error| StartError::Config(format!("the cluster secret is wrong: {error}")))?;
        let (stop, stopped) = watch::channel(None);
        let quarantine = Quarantine::new(data_dir.path().into(), stop);
        let rebuilds = quarantine::read(data_dir.path())?.is_some();
        if rebuilds {
            let rebuild = Rebuild {
                node_id: config.node_id,
                data_dir: data_dir.path().into(),
                state_dir: data_dir.state_dir(),
                engine: Arc::clone(&config.engine),
                options: config.state,
                links: Arc::clone(&links),
                snapshots: snapshots.clone(),
                origin: origin.clone(),
                purged: purged_index(&log)?,
            };
            rebuild.run().await?;
        }
        let state = {
            let (engine, dir, options) = (Arc::clone(&config.engine), data_dir.state_dir(), config.state);
            let opened = blocking(move || StateStore::open_on(engine, &dir, options)).await?;
            Arc::new(opened.map_err(|error| state_damage(data_dir.path(), error))?)
        };
        let level = level::level(&*state)?;
        if level > config.feature_level_max {
            return Err(StartError::TooOld { level, max: config.feature_level_max });
        }
        if rebuilds {
            quarantine::meet(&log, &state)?;
            quarantine::leave(data_dir.path())?;
        }
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
        fitness.observe(raft.metrics());

        let contact = Arc::<Contact>::default();
        let depot = Arc::new(Depot::new(blobs, raft.clone(), Arc::clone(&links), Arc::clone(&applied), &config));
        let reader =
            Reader::start(raft.clone(), Arc::clone(&applied), Arc::clone(&links), Arc::clone(&contact), Arc::clone(&quarantine), &config);
        let proposer = Proposer::start(raft.clone(), Arc::clone(&applied), Arc::clone(&fitness), &config);
        let incoming = Arc::new(Incoming::new(snapshots, origin));
        let (eraser, erased) = Eraser::open(raft.clone(), Arc::clone(&applied), Arc::clone(&incoming), data_dir.path())?;
        let eraser = tokio::spawn(eraser.run());
        let tender = tokio::spawn(Arc::clone(&depot).tend());
        let service = RaftService {
            raft: raft.clone(),
            peers,
            fitness: Arc::clone(&fitness),
            applied: Arc::clone(&applied),
            quarantine: Arc::clone(&quarantine),
            reader: reader.clone(),
            contact,
            incoming,
            depot: Arc::clone(&depot),
        };
        let keeper = tokio::spawn(Keeper::new(raft.clone(), Arc::clone(&applied), Arc::clone(&fitness), &config).run());
        let observer = tokio::spawn(observe(raft.clone(), machine_dropped, Arc::clone(&applied), Arc::clone(&quarantine)));
        let changes = Changes::new(raft.clone(), Arc::clone(&applied), config.lease());
        let finisher = tokio::spawn(Arc::clone(&changes).finish_left_over());
        let office = || Office { raft: raft.clone(), node_id: config.node_id, lease: config.lease(), fitness: Arc::clone(&fitness) };
        let measurer = tokio::spawn(warden::measure(Arc::clone(&fitness), config.data_dir.clone()));
        let scribe = tokio::spawn(quarantine::keep_members(raft.metrics(), config.data_dir.clone()));
        let warden = Warden::new(
            raft.clone(),
            Arc::clone(&applied),
            Arc::clone(&fitness),
            office(),
            proposer.clone(),
            Arc::clone(&quarantine),
            &config,
        );
        let warden = tokio::spawn(warden.run());
        let office = office();
        let mut tasks = vec![keeper, observer, finisher, eraser, tender, measurer, scribe, warden];
        if config.compare_ms > 0 {
            let comparer = Comparer {
                raft: raft.clone(),
                applied: Arc::clone(&applied),
                links,
                quarantine: Arc::clone(&quarantine),
                node_id: config.node_id,
                every: Duration::from_millis(config.compare_ms),
            };
            tasks.push(tokio::spawn(comparer.run()));
        }
        let started_at = config.clock.wall();
        let tasks = tasks.iter().map(|task| task.abort_handle()).collect();
        raft.run();
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                raft,
                applied,
                proposer,
                reader,
                service,
                changes,
                erased,
                fitness,
                office,
                quarantine,
                depot,
                stopped,
                probe,
                started_at,
                tasks,
                data_dir,
            }),
        })
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
        if let Some(blob) = call.command.blob() {
            // Only a leader goes to that trouble: another would answer that it is none.
            self.inner.raft.as_leader().map_err(crate::proposer::not_leader)?;
            self.inner.depot.secure(blob, deadline).await?;
        }
        self.inner.proposer.propose(call, deadline).await
    }

    /// A state to read, as fresh as asked for.
    pub async fn read(&self, consistency: Consistency, deadline: Instant) -> Result<ReadAt, ReadError> {
        self.inner.reader.at(consistency, deadline).await
    }

    /// The blobs of this node.
    pub fn blobs(&self) -> &Blobs {
        self.inner.depot.store()
    }

    /// Has this node hold a blob, whole, fetched from the others if need be; false when nobody has it.
    pub async fn hold_blob(&self, hash: [u8; 32]) -> std::io::Result<bool> {
        self.inner.depot.hold(hash, None).await
    }

    /// Fetches what records name and is not here.
    pub(crate) async fn hold_named_blobs(&self) -> Result<(), StorageError> {
        let fetched = self.inner.depot.fetch_missing().await;
        fetched.map_err(|error| StorageError::new("cannot fetch missing blobs", error))
    }

    /// What this node has of the blobs that records name; with `read`, each is read and compared with its hash.
    pub async fn examine_blobs(&self, read: bool) -> Result<BlobsExamined, StorageError> {
        self.inner.depot.examine(read).await
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

    /// What this node's log and state have erased last, as it moves: what is derived from them follows it.
    pub fn erasures(&self) -> watch::Receiver<Option<Erased>> {
        self.inner.erased.clone()
    }

    /// What this node has erased last, once that reaches `revision`; what it is, however far, at the deadline.
    pub async fn erased(&self, revision: Revision, deadline: Instant) -> Option<Erased> {
        let mut erased = self.inner.erased.clone();
        let reaches = |erased: &Option<Erased>| erased.as_ref().is_some_and(|erased| erased.through >= revision.0);
        match tokio::time::timeout_at(deadline.into(), erased.wait_for(reaches)).await {
            Ok(Ok(found)) => found.clone(),
            Ok(Err(_)) | Err(_) => self.inner.erased.borrow().clone(),
        }
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

    /// Whether this node can't trust its own state, and is about to stop: nothing of it is to be served.
    pub fn is_in_quarantine(&self) -> bool {
        self.inner.quarantine.is_entered()
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
        let handed = self.inner.office.hand_over().await;
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
        let (disk_free_bytes, disk_total_bytes) = self.disk_bytes();
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
            alarms: self.alarms().into_iter().map(str::to_owned).collect(),
            member_id_max: self.inner.applied.members_ever().last().copied().unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").into(),
            feature_level: level::level(&*self.inner.applied.state).unwrap_or_default(),
            feature_level_max: self.inner.config.feature_level_max,
            started_unix_ms: self.inner.started_at.0,
            disk_free_bytes,
            disk_total_bytes,
        }
    }

    /// What is free, and what there is in all, on the file system that holds the replica. One that does not tell shows as one
    /// without space, which is a finding.
    fn disk_bytes(&self) -> (u64, u64) {
        match rustix::fs::statvfs(self.inner.data_dir.path()) {
            Ok(disk) => (disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize)),
            Err(error) => {
                tracing::warn!(%error, "cannot ask the file system");
                (0, 0)
            }
        }
    }

    /// Counters and histograms of this node's work, as Prometheus text.
    pub fn exposition(&self) -> String {
        let applied = &self.inner.applied;
        applied.meter.exposition(applied.log.meter(), self.inner.proposer.waiting()) + &self.inner.fitness.exposition(&self.alarms())
    }

    fn not_ready(&self, metrics: &Metrics, applied: u64) -> Vec<&'static str> {
        let membership = metrics.membership_config.membership();
        let committed = metrics.cluster_committed.as_ref().map_or(0, |id| id.index());
        let unfit = self.inner.fitness.unfit();
        let conditions = [
            (metrics.running_state.is_err(), "stopped"),
            (membership.nodes().next().is_none(), "uninitialized"),
            (metrics.current_leader.is_none(), "no_leader"),
            (committed > applied + 5_000, "apply_lag"),
            (membership.get_joint_config().len() > 1, "membership_changing"),
        ];
        let conditions = conditions.into_iter().filter_map(|(holds, code)| holds.then_some(code));
        // Low space alone keeps a node from nothing but leading.
        conditions.chain(unfit.into_iter().filter(|code| *code != fitness::DISK_LOW)).collect()
    }

    /// What is wrong although this node serves.
    fn alarms(&self) -> Vec<&'static str> {
        let is_low = self.inner.fitness.space() == fitness::Space::Low;
        // A state that can't be read stops the node elsewhere, with its reason.
        let is_raised = space::alarm(&*self.inner.applied.state).is_ok_and(|alarm| alarm.is_some());
        [(is_low, fitness::DISK_LOW), (is_raised, "space_alarm")].into_iter().filter_map(|(holds, code)| holds.then_some(code)).collect()
    }

    /// Hands leadership to another voter and waits until it has taken over.
    pub async fn transfer_leader(&self, to: u64) -> Result<(), TransferLeaderError> {
        self.inner.office.transfer_to(to).await
    }

    /// Stops in good order: a leader hands over first, bounded, and the state is flushed so that the next start is quick.
    pub async fn shutdown(&self) {
        match self.inner.office.hand_over().await {
            Ok(()) | Err(TransferLeaderError::NotLeader | TransferLeaderError::Silent(_) | TransferLeaderError::Behind { .. }) => {}
            Err(error) => tracing::warn!(%error, "leadership was not handed over"),
        }
        for task in &self.inner.tasks {
            task.abort();
        }
        if self.inner.raft.shutdown().await.is_err() {
            tracing::warn!("openraft's task ended in a panic");
        }
        self.inner.quarantine.stopped("the node was shut down".into());
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
    snapshots: Snapshots,
    blobs: Blobs,
}

impl Opened {
    fn open(config: &Config) -> Result<Self, StartError> {
        let claim = Claim { cluster_id: config.cluster_id.clone(), lineage: config.lineage.to_string(), node_id: config.node_id };
        let data_dir = DataDir::load_or_create(&config.data_dir, &claim)?;
        if let Some(quarantine::Reason { damaged: Damaged::Log, text }) = quarantine::read(data_dir.path())? {
            return Err(StartError::LogDamaged(text));
        }
        let probe = probe(config)?;
        let log = LogStore::open_on(Arc::clone(&config.engine), &data_dir.log_dir(), config.log).map_err(|error| {
            let text = fault(error).to_string();
            // What is left of it is not to be trusted, nor repaired: it may have been a vote.
            if quarantine::is_damage(&text) { StartError::LogDamaged(text) } else { StorageError::corrupt(text).into() }
        })?;
        let (snapshots, blobs) = (Snapshots::open(&data_dir.snapshots_dir())?, Blobs::open(&data_dir.blobs_dir())?);
        Ok(Self { probe, log, snapshots, blobs, data_dir })
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

/// Where the log begins.
fn purged_index(log: &LogStore) -> Result<u64, StorageError> {
    let purged = log.read_purged()?;
    let id = purged.map(|purged| form::decode::<form::LogIdForm>(&purged)).transpose();
    Ok(id.map_err(|error| StorageError::new("the log's purge marker", error))?.map_or(0, |id| id.index))
}

/// Damage is written down, so that the next start rebuilds.
fn state_damage(data_dir: &Path, error: StorageError) -> StartError {
    let text = fault(error).to_string();
    if !quarantine::is_damage(&text) {
        return StorageError::corrupt(text).into();
    }
    match quarantine::write(data_dir, &quarantine::Reason { damaged: Damaged::State, text: text.clone() }) {
        Ok(()) => StartError::StateDamaged(text),
        Err(error) => error.into(),
    }
}

/// Waits for openraft to end, by a fault or by a shutdown.
async fn observe(raft: Raft, machine_dropped: oneshot::Receiver<()>, applied: Arc<Applied>, quarantine: Arc<Quarantine>) {
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
    if quarantine::is_damage(&reason) {
        let damaged = if applied.state.is_damaged() { Damaged::State } else { Damaged::Log };
        quarantine.enter(quarantine::Reason { damaged, text: reason.clone() });
    }
    quarantine.stopped(reason);
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
