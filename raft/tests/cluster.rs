//! Replicas in one process: real gRPC on loopback, real disks, each node on a runtime of its own so that it can be killed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_domain::machine::{Call, Clock, Decided};
use quorate_domain::tx::{Direction, Row};
use quorate_domain::{Principal, Read, RequestId, Revision, Table, Tier, UnixMs, flag, level, lineage};
use quorate_proto::cluster::StatusResponse;
use quorate_proto::raft::raft_client::RaftClient;
use quorate_proto::raft::{Header, RaftRequest};
use quorate_raft::backup::{Place, Snapshot, Unpacked};
use quorate_raft::found::{self, Founder, Plan};
use quorate_raft::{
    Address, Change, Config, Consistency, MembershipError, ProposeError, RaftNode, ReadError, Reason, StartError, TransferLeaderError,
};
use tokio::runtime::Runtime;

#[path = "cluster/fitness.rs"]
mod fitness;
#[path = "cluster/quarantine.rs"]
mod quarantine;

/// Longer than anything takes here, also on a machine that does something else.
const PATIENCE: Duration = Duration::from_secs(30);

// ------------------------------------------------------------------ a cluster to play with

struct Replica {
    id: u64,
    dir: PathBuf,
    address: SocketAddr,
    tweak: fn(&mut Config),
    running: Option<(Runtime, RaftNode)>,
}

impl Replica {
    fn config(&self) -> Config {
        let address = Address { grpc: self.address.to_string(), http: String::new() };
        let mut config = Config::new(&self.dir, "acme", self.id, address);
        // Several clusters share two cores and a disk here; what is tested is not how fast the disk is.
        config.fsync_probe_rounds = 0;
        (self.tweak)(&mut config);
        config
    }

    fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let begin = Instant::now();
        let node = loop {
            match runtime.block_on(RaftNode::start(self.config())) {
                Ok(node) => break node,
                // Threads of the killed predecessor may still be closing its databases.
                Err(StartError::Identity(_) | StartError::Storage(_)) if begin.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                Err(error) => panic!("node {}: {error}", self.id),
            }
        };
        let (address, service) = (self.address, node.service().into_server());
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
        runtime.spawn(async move {
            let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        self.running = Some((runtime, node));
    }

    /// As `kill -9`, as far as one process can: all its tasks end where they are.
    fn kill(&mut self) {
        let Some((runtime, node)) = self.running.take() else { return };
        drop(node);
        runtime.shutdown_timeout(PATIENCE);
    }

    fn node(&self) -> &RaftNode {
        &self.running.as_ref().expect("the node runs").1
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.running.as_ref().expect("the node runs").0.block_on(future)
    }

    fn status(&self) -> StatusResponse {
        self.node().status()
    }

    fn propose(&self, call: Call) -> Result<Decided, ProposeError> {
        self.block_on(self.node().propose(call, Instant::now() + Duration::from_secs(2)))
    }

    fn read_flag(&self, consistency: Consistency) -> Result<String, ReadError> {
        let at = self.block_on(self.node().read(consistency, Instant::now() + Duration::from_secs(2)))?;
        Ok(flag::value(&at.view, flag::PUNCHCARD).unwrap())
    }

    fn lease_now(&self) -> u64 {
        Clock::read(&*self.node().state().clone()).unwrap().lease_now.0
    }

    /// Everything in the state.
    fn dump(&self) -> BTreeMap<&'static str, Vec<Row>> {
        let view = self.node().state().view();
        Table::ALL.map(|table| (table.name(), view.scan_bytes(table, &[], &[0xff; 64], Direction::Ascending, usize::MAX).unwrap())).into()
    }
}

struct Cluster {
    replicas: Vec<Replica>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    fn of(size: u64) -> Self {
        Self::tweaked(size, |_| {})
    }

    fn tweaked(size: u64, tweak: fn(&mut Config)) -> Self {
        let _ = tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).with_test_writer().try_init();
        let dir = tempfile::tempdir().unwrap();
        let mut replicas: Vec<Replica> = (1..=size)
            .map(|id| Replica { id, dir: dir.path().join(id.to_string()), address: free_address(), tweak, running: None })
            .collect();
        replicas.iter_mut().for_each(Replica::start);
        let cluster = Self { replicas, _dir: dir };
        let members = cluster.replicas.iter().map(|replica| (replica.id, replica.config().address)).collect();
        let first = &cluster.replicas[0];
        first.block_on(first.node().init(members)).unwrap();
        cluster.leader();
        cluster
    }

    fn running(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| replica.running.is_some())
    }

    fn at(&mut self, id: u64) -> &mut Replica {
        &mut self.replicas[id as usize - 1]
    }

    /// The one that leads and can decide.
    fn leader(&self) -> &Replica {
        wait("a leader", || self.running().find(|replica| replica.propose(set_flag(&unique(), "enforce")).is_ok()))
    }

    fn follower(&self) -> &Replica {
        let leader = self.leader().id;
        self.running().find(|replica| replica.id != leader).unwrap()
    }

    /// Whoever leads decides; retried as a gateway does, under the same request id.
    fn decide(&self, call: Call) -> Decided {
        wait("a decision", || self.running().find_map(|replica| replica.propose(call.clone()).ok()))
    }

    /// All running replicas have applied what the leader has, and hold the same bytes.
    fn assert_same_everywhere(&self) {
        wait("the same bytes everywhere", || {
            let dumps: Vec<_> = self.running().map(Replica::dump).collect();
            dumps.windows(2).all(|pair| pair[0] == pair[1]).then_some(())
        });
    }
}

/// A port that was free a moment ago.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[track_caller]
fn wait<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(met) = condition() {
            return met;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("r{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn set_flag(request: &str, value: &str) -> Call {
    let caller = Principal { tenant: "acme".into(), passport: "op".into(), tier: Tier::Operator, scopes: BTreeSet::from(["*".into()]) };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let request = RequestId { id: request.into(), issued_at: UnixMs(now), keyed: false };
    let command = flag::SetFlag { name: flag::PUNCHCARD.name.into(), value: value.into() }.into();
    Call { caller, request, under: None, command }
}

// ------------------------------------------------------------------ the tests

#[test]
fn one_node_decides_reads_and_comes_back_with_everything() {
    let mut cluster = Cluster::of(1);
    let first = cluster.decide(set_flag("a", "advisory"));
    assert!(first.outcome.is_ok() && !first.replayed);
    assert_eq!(cluster.leader().id, 1);
    cluster.decide(set_flag("b", "off"));
    assert_eq!(cluster.at(1).read_flag(Consistency::Linearizable).unwrap(), "off");

    let before = cluster.at(1).dump()["records"].clone();
    cluster.at(1).kill();
    cluster.at(1).start();
    let again = cluster.decide(set_flag("a", "advisory"));
    assert!(again.replayed, "the answer to a request outlives the node");
    assert_eq!((again.revision, again.outcome), (first.revision, first.outcome));
    assert_eq!(cluster.at(1).read_flag(Consistency::Linearizable).unwrap(), "off");
    assert_eq!(cluster.at(1).dump()["records"], before);
}

#[test]
fn a_decision_is_the_same_bytes_on_every_replica() {
    let cluster = Cluster::of(3);
    for value in ["off", "advisory", "nonsense", "enforce"] {
        cluster.decide(set_flag(&unique(), value));
    }
    cluster.assert_same_everywhere();
    let leader = cluster.leader();
    let status = leader.status();
    assert_eq!((status.role.as_str(), status.leader_id, status.members.len()), ("leader", Some(leader.id), 3));
    assert!(status.not_ready.is_empty(), "{:?}", status.not_ready);
    assert!(status.members.iter().all(|member| member.voter && member.matched.is_some()));
}

#[test]
fn a_follower_names_the_leader_and_reads_what_was_just_acknowledged() {
    let cluster = Cluster::of(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let refused = follower.propose(set_flag(&unique(), "off")).unwrap_err();
    assert_eq!(refused, ProposeError::NotLeader { leader_id: leader.id, leader_grpc: leader.address.to_string() });
    for round in 0..50 {
        let value = ["off", "advisory", "enforce"][round % 3];
        let decided = leader.propose(set_flag(&unique(), value)).unwrap();
        match round % 2 {
            0 => assert_eq!(follower.read_flag(Consistency::Linearizable).unwrap(), value),
            _ => assert_eq!(follower.read_flag(Consistency::AtLeast(decided.revision)).unwrap(), value),
        }
    }
    let stale = Consistency::Stale { age_max: Duration::from_secs(5) };
    wait("an age below the limit", || follower.read_flag(stale).ok());
    assert!(matches!(
        follower.read_flag(Consistency::Stale { age_max: Duration::ZERO }),
        Err(ReadError::Unavailable(unavailable)) if unavailable.reason == Reason::TooStale
    ));
}

#[test]
fn a_killed_leader_is_followed_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::of(3);
    let requests: Vec<String> = (0..100).map(|_| unique()).collect();
    let before: Vec<Decided> = requests.iter().map(|request| cluster.leader_decides(request)).collect();
    let killed = cluster.leader().id;
    cluster.at(killed).kill();
    let gap = Instant::now();
    assert_ne!(cluster.leader().id, killed);
    eprintln!("a new leader decided {} ms after the kill", gap.elapsed().as_millis());
    for (request, before) in requests.iter().zip(before) {
        let after = cluster.leader_decides(request);
        assert!(after.replayed, "{request} was acknowledged and is gone");
        assert_eq!((after.revision, after.outcome), (before.revision, before.outcome));
    }
    cluster.at(killed).start();
    cluster.assert_same_everywhere();
}

impl Cluster {
    fn leader_decides(&self, request: &str) -> Decided {
        self.decide(set_flag(request, "advisory"))
    }
}

#[test]
fn a_cluster_that_was_killed_whole_comes_back_from_its_disks() {
    let mut cluster = Cluster::of(3);
    let before = cluster.leader_decides("the last one");
    cluster.replicas.iter_mut().for_each(Replica::kill);
    cluster.replicas.iter_mut().for_each(Replica::start);
    let after = cluster.leader_decides("the last one");
    assert!(after.replayed);
    assert_eq!(after.revision, before.revision);
    cluster.assert_same_everywhere();
}

fn short_log(config: &mut Config) {
    config.flush_entries = 20;
    config.flush_ms = 200;
    config.log_entries_kept = 10;
}

#[test]
fn a_follower_behind_the_purged_log_catches_up_by_snapshot() {
    let mut cluster = Cluster::tweaked(3, short_log);
    let behind = cluster.follower().id;
    let known = cluster.at(behind).status().last_log;
    cluster.at(behind).kill();
    // A member that is gone must not hold the log of those that are there.
    wait("a log that has lost what the follower lacks, and more", || {
        cluster.leader_decides(&unique());
        let first = cluster.leader().node().log().first_index().unwrap();
        first.filter(|first| *first > known + 200)
    });
    cluster.at(behind).start();
    cluster.assert_same_everywhere();
    wait("a log that begins behind entries that this node never had", || (cluster.at(behind).status().purged > known).then_some(()));
    cluster.leader_decides(&unique());
    cluster.assert_same_everywhere();
    cluster.at(behind).kill();
    cluster.at(behind).start();
    cluster.assert_same_everywhere();
}

#[test]
fn leadership_is_handed_over_and_the_lease_clock_only_counts_time_that_passed() {
    let cluster = Cluster::of(3);
    let begin = Instant::now();
    let lease_begin = cluster.leader().lease_now();
    for _ in 0..5 {
        let from = cluster.leader();
        let to = cluster.follower().id;
        // A transfer may fail for a lagging target; the voters then elect again, which is as good here.
        let transferred = from.block_on(from.node().transfer_leader(to));
        assert!(!matches!(transferred, Err(TransferLeaderError::NoVoter(_))), "{transferred:?}");
        let new = cluster.leader();
        if transferred.is_ok() {
            assert_eq!(new.id, to);
        }
        let counted = new.lease_now() - lease_begin;
        assert!(u128::from(counted) <= begin.elapsed().as_millis(), "the lease clock ran {counted} ms in {:?}", begin.elapsed());
    }
    let (leader, before) = (cluster.leader(), cluster.leader().lease_now());
    wait("a lease clock that moves on its own", || (leader.lease_now() >= before + 1_000).then_some(()));
    assert!(u128::from(leader.lease_now() - lease_begin) <= begin.elapsed().as_millis());
    let refused = leader.block_on(leader.node().transfer_leader(9)).unwrap_err();
    assert_eq!(refused, TransferLeaderError::NoVoter(9));
}

#[test]
fn a_leader_that_stops_in_good_order_hands_over_first() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.leader().id;
    let replica = cluster.at(leader);
    replica.block_on(replica.node().shutdown());
    let reason = replica.block_on(replica.node().stopped());
    assert!(!reason.is_empty());
    replica.kill();
    let begin = Instant::now();
    assert_ne!(cluster.leader().id, leader);
    eprintln!("another leader decided {} ms after the shutdown", begin.elapsed().as_millis());
    cluster.at(leader).start();
    cluster.assert_same_everywhere();
}

#[test]
fn a_leader_without_a_quorum_says_so_and_reads_nothing() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.leader().id;
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.at(id).kill();
    }
    let alone = cluster.at(leader);
    wait("a leader that knows it is alone", || match alone.propose(set_flag(&unique(), "off")) {
        Err(ProposeError::Unavailable(unavailable)) => (unavailable.reason == Reason::NoQuorum && !unavailable.maybe_written).then_some(()),
        other => panic!("a minority answered {other:?}"),
    });
    assert!(matches!(
        alone.read_flag(Consistency::Linearizable),
        Err(ReadError::Unavailable(unavailable)) if unavailable.reason == Reason::NoQuorum
    ));
    let stale = Consistency::Stale { age_max: Duration::from_millis(500) };
    wait("a state that is known to be old", || alone.read_flag(stale).is_err().then_some(()));
    assert!(alone.read_flag(Consistency::Stale { age_max: Duration::from_secs(3600) }).is_ok());
}

#[test]
fn a_wiped_disk_under_an_old_id_is_refused() {
    let mut cluster = Cluster::of(3);
    cluster.leader_decides("before");
    cluster.assert_same_everywhere();
    let wiped = cluster.follower().id;
    cluster.at(wiped).kill();
    let dir = cluster.at(wiped).dir.clone();
    // Threads of the killed node may still be closing files in it.
    wait("an empty disk", || std::fs::remove_dir_all(&dir).ok().or_else(|| (!dir.exists()).then_some(())));
    cluster.at(wiped).start();
    let rest: Vec<u64> = (1..=3).filter(|id| *id != wiped).collect();
    for _ in 0..20 {
        cluster.leader_decides(&unique());
    }
    let status = cluster.at(wiped).status();
    assert_eq!((status.applied, status.role.as_str()), (0, "uninitialized"), "nothing reaches a node that has forgotten its votes");
    // Nor does it reach anyone.
    let (header, address) = {
        let (status, to) = (cluster.at(wiped).status(), rest[0]);
        let header = Header {
            cluster_id: status.cluster_id,
            lineage: status.lineage,
            from_node: wiped,
            from_incarnation: status.incarnation,
            to_node: to,
            ..Header::default()
        };
        (header, cluster.at(to).address)
    };
    let refused = call(&cluster, address, header);
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains(&format!("quorate replace {wiped}")), "{}", refused.message());
}

#[test]
fn requests_of_another_cluster_or_for_another_node_are_refused() {
    let cluster = Cluster::of(1);
    let address = cluster.replicas[0].address;
    let header = Header { cluster_id: "acme".into(), from_node: 7, from_incarnation: "x".into(), to_node: 1, ..Header::default() };
    let other_cluster = call(&cluster, address, Header { cluster_id: "other".into(), ..header.clone() });
    assert!(other_cluster.message().contains("cluster `acme`"), "{}", other_cluster.message());
    let other_node = call(&cluster, address, Header { to_node: 2, ..header.clone() });
    assert!(other_node.message().contains("this is node 1"), "{}", other_node.message());
    let other_lineage = call(&cluster, address, Header { lineage: 3, ..header });
    assert!(other_lineage.message().contains("lineage"), "{}", other_lineage.message());
}

fn call(cluster: &Cluster, address: SocketAddr, header: Header) -> tonic::Status {
    let runs = cluster.running().next().unwrap();
    runs.block_on(async {
        let mut client = RaftClient::connect(format!("http://{address}")).await.unwrap();
        client.read_index(RaftRequest { header: Some(header), body: Default::default() }).await.unwrap_err()
    })
}

#[test]
fn many_callers_share_groups_and_each_gets_its_own_answer() {
    let cluster = Cluster::of(3);
    let leader = cluster.leader();
    let before = leader.status();
    let begin = Instant::now();
    let answers: Vec<Decided> = leader.block_on(async {
        let calls = (0..2_000).map(|_| {
            let node = leader.node().clone();
            tokio::spawn(async move { node.propose(set_flag(&unique(), "off"), Instant::now() + PATIENCE).await.unwrap() })
        });
        futures::future::try_join_all(calls).await.unwrap()
    });
    let after = leader.status();
    let revisions: BTreeSet<Revision> = answers.iter().map(|decided| decided.revision).collect();
    assert_eq!(revisions.len(), answers.len());
    let (entries, syncs) = (after.log_entries - before.log_entries, after.log_fsyncs - before.log_fsyncs);
    eprintln!("{} decisions in {:?}: {entries} entries in {syncs} fsyncs", answers.len(), begin.elapsed());
    assert!(syncs * 4 < entries, "{entries} entries took {syncs} fsyncs");
    cluster.assert_same_everywhere();
}

#[test]
fn a_new_member_catches_up_before_it_votes_and_a_used_id_never_comes_back() {
    let mut cluster = Cluster::tweaked(3, short_log);
    for _ in 0..100 {
        cluster.leader_decides(&unique());
    }
    let dir = cluster.at(1).dir.with_file_name("4");
    let mut new = Replica { id: 4, dir, address: free_address(), tweak: short_log, running: None };
    new.start();
    let address = new.config().address;
    cluster.replicas.push(new);

    let leader = cluster.leader();
    assert_eq!(leader.block_on(leader.node().promote(4)), Err(MembershipError::NoMember(4)));
    leader.block_on(leader.node().add_learner(4, address.clone())).unwrap();
    leader.block_on(leader.node().add_learner(4, address)).unwrap();
    wait("a learner that has caught up", || leader.block_on(leader.node().promote(4)).ok());
    wait("four voters", || (leader.status().members.iter().filter(|member| member.voter).count() == 4).then_some(()));
    cluster.assert_same_everywhere();

    let removed = cluster.follower().id;
    let (leader, address) = (cluster.leader(), cluster.replicas[removed as usize - 1].config().address);
    leader.block_on(leader.node().remove(removed)).unwrap();
    leader.block_on(leader.node().remove(removed)).unwrap();
    assert_eq!(leader.block_on(leader.node().add_learner(removed, address)), Err(MembershipError::UsedBefore(removed)));
    cluster.at(removed).kill();
    cluster.leader_decides(&unique());
    cluster.assert_same_everywhere();
}

#[test]
fn a_change_that_a_dead_leader_left_half_done_is_finished_by_the_next() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.leader().id;
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    let (leaves, down) = (others[0], others[1]);
    cluster.at(down).kill();

    // The second of the two quorums wants the node that is down, so the change gets no further than its first half.
    let remove = Change::Remove { id: leaves, force: true };
    let ask =
        |replica: &Replica| replica.block_on(replica.node().change_membership(remove.clone(), Instant::now() + Duration::from_secs(1)));
    assert!(matches!(ask(cluster.at(leader)), Err(MembershipError::Undecided(_))));
    assert_eq!(ask(cluster.at(leader)), Err(MembershipError::Busy));
    let is_joint = |replica: &Replica| replica.status().not_ready.iter().any(|reason| reason == "membership_changing");
    wait("the first half elsewhere", || is_joint(cluster.at(leaves)).then_some(()));

    cluster.at(leader).kill();
    cluster.at(down).start();
    cluster.at(leader).start();
    wait("the second half", || {
        let status = cluster.running().map(Replica::status).find(|status| status.role == "leader")?;
        let members: Vec<u64> = status.members.iter().map(|member| member.id).collect();
        (!members.contains(&leaves) && members.len() == 2 && status.not_ready.is_empty()).then_some(())
    });
    cluster.at(leaves).kill();
    cluster.leader_decides(&unique());
}

#[test]
fn leases_go_first_and_what_waits_too_long_is_refused_unwritten() {
    // One place in the pipeline besides those of leases, and no patience: all but a few calls are refused.
    let cluster = Cluster::tweaked(1, |config| {
        config.queue_max = 4;
        config.rounds_max = 1;
    });
    let leader = cluster.leader();
    let outcomes: Vec<_> = leader.block_on(async {
        let calls = (0..200).map(|_| {
            let node = leader.node().clone();
            tokio::spawn(async move { node.propose(set_flag(&unique(), "off"), Instant::now() + PATIENCE).await })
        });
        futures::future::try_join_all(calls).await.unwrap()
    });
    let refused: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(!refused.is_empty());
    for error in refused {
        let ProposeError::Unavailable(unavailable) = error else { panic!("{error}") };
        assert_eq!((unavailable.reason, unavailable.maybe_written), (Reason::Overloaded, false));
        assert!(unavailable.retry_after_ms > 0);
    }
}

// ------------------------------------------------------------------ digests, checkpoints and new lineages

impl Cluster {
    /// The digest of every replica right after one entry that is still to come, while entries come in groups.
    fn digests(&self) -> Vec<String> {
        let revision = Revision(self.leader().status().applied + 7);
        let digest = |replica: &Replica| replica.block_on(replica.node().digest_at(revision, Instant::now() + PATIENCE)).unwrap();
        std::thread::scope(|scope| {
            let asked: Vec<_> = self.running().map(|replica| scope.spawn(move || digest(replica))).collect();
            // Many at once, so that one batch reaches past the revision.
            let leader = self.leader();
            std::thread::scope(|callers| {
                for _ in 0..20 {
                    callers.spawn(move || leader.propose(set_flag(&unique(), "off")));
                }
            });
            asked.into_iter().map(|digest| digest.join().unwrap().expect("it was asked for in time").blake3).collect()
        })
    }

    /// Stops all of it and begins a new lineage from a snapshot, on folders beside the old ones.
    fn refounded(mut self, snapshot: &Snapshot) -> (Self, lineage::Begun) {
        self.replicas.iter_mut().for_each(Replica::kill);
        let founders: Vec<Founder> = self
            .replicas
            .iter_mut()
            .map(|replica| {
                replica.dir = self._dir.path().join(format!("new-{}", replica.id));
                replica.tweak = |config| config.lineage = LINEAGE;
                Founder { node_id: replica.id, address: replica.config().address, dir: replica.dir.clone() }
            })
            .collect();
        let plan = Plan { cluster_id: "acme", lineage: LINEAGE, founders: &founders, now: UnixMs(1_900_000_000_000) };
        let begun = found::found(&plan, snapshot).unwrap();
        self.replicas.iter_mut().for_each(Replica::start);
        (self, begun)
    }
}

const LINEAGE: u64 = 77;

#[test]
fn all_replicas_have_one_digest_at_one_revision_and_one_that_diverged_has_another() {
    let cluster = Cluster::of(3);
    let digests = cluster.digests();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    let passed = cluster.leader().status().applied;
    let leader = cluster.leader();
    let late = leader.block_on(leader.node().digest_at(Revision(passed), Instant::now() + PATIENCE)).unwrap();
    assert_eq!(late, None, "a state that is over can't be had any more");

    let rogue = cluster.follower().id;
    let state = cluster.replicas[rogue as usize - 1].node().state();
    let writes = [((Table::Records, b"rogue".to_vec()), Some(b"row".to_vec()))];
    state.commit(writes.into(), state.applied().unwrap().unwrap()).unwrap();
    let digests = cluster.digests();
    for (replica, digest) in cluster.replicas.iter().zip(&digests) {
        let same_as = digests.iter().filter(|other| *other == digest).count();
        assert_eq!(same_as, if replica.id == rogue { 1 } else { 2 }, "node {}: {digests:?}", replica.id);
    }
}

#[test]
fn a_checkpoint_of_a_follower_holds_what_was_acknowledged_and_founds_a_cluster_above_every_old_revision() {
    let cluster = Cluster::of(3);
    let decided = cluster.decide(set_flag("before", "advisory"));
    let checkpoint = {
        let follower = cluster.follower();
        follower.block_on(follower.node().checkpoint(false, Instant::now() + PATIENCE)).unwrap()
    };
    let contents = checkpoint.snapshot().manifest().clone();
    let place = Place::of(&contents.applied).unwrap();
    assert!(place.revision >= decided.revision.0);
    assert_eq!(place.members.iter().filter(|member| member.voter).count(), 3);
    let after = cluster.decide(set_flag("after", "off"));
    let dir = tempfile::tempdir().unwrap();
    let unpacked = Unpacked::into_dir(dir.path(), contents.applied, contents.files.clone()).unwrap();
    for file in &contents.files {
        let bytes = checkpoint.snapshot().read_chunk(&file.name, 0, file.size_bytes as usize).unwrap();
        std::io::Write::write_all(&mut unpacked.file(&file.name), &bytes).unwrap();
    }
    let lies = |what: &str| {
        let found = |replica: &Replica| std::fs::read_dir(replica.dir.join("snapshots")).unwrap().count();
        assert_eq!(cluster.replicas.iter().map(found).sum::<usize>(), usize::from(what == "held"), "{what}");
    };
    lies("held");
    drop(checkpoint);
    lies("dropped");
    let (mut cluster, begun) = cluster.refounded(&unpacked.finish().unwrap());
    assert_eq!((begun.cut.through.0, begun.cut.lineage), (place.revision, LINEAGE));

    let first = cluster.leader();
    assert_eq!(first.read_flag(Consistency::Linearizable).unwrap(), "enforce", "set by the test's own look for a leader");
    let again = cluster.decide(set_flag("before", "advisory"));
    assert!(again.replayed, "answers of the kept history are remembered");
    let anew = cluster.decide(set_flag("after", "off"));
    assert!(!anew.replayed && anew.revision > begun.cut.from && anew.revision > after.revision);
    cluster.assert_same_everywhere();

    // What was written in the history that was left behind is not here, and a read that relies on it is told so.
    let lost = cluster.replicas[0].read_flag(Consistency::AtLeast(after.revision));
    assert!(matches!(&lost, Err(ReadError::Unavailable(why)) if why.reason == Reason::OtherLineage), "{lost:?}");
    cluster.replicas[0].read_flag(Consistency::AtLeast(anew.revision)).unwrap();

    // Old nodes are refused, and so is a folder of the old lineage.
    let header = Header { cluster_id: "acme".into(), from_node: 2, from_incarnation: "x".into(), to_node: 1, ..Header::default() };
    let refused = call(&cluster, cluster.replicas[0].address, header);
    assert!(refused.message().contains("lineage"), "{}", refused.message());
    let mut old = cluster.at(2).config();
    cluster.at(2).kill();
    old.data_dir = cluster._dir.path().join("2");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let started = runtime.block_on(RaftNode::start(old));
    assert!(matches!(started, Err(StartError::Identity(_))), "an old folder joins in");

    // A member that was away meanwhile, and one that restarts, go on.
    cluster.decide(set_flag(&unique(), "off"));
    cluster.at(2).start();
    cluster.assert_same_everywhere();
}

#[test]
fn a_survivor_brings_all_that_its_log_holds_and_its_folder_stays_as_it_is() {
    let mut cluster = Cluster::of(3);
    let decided = cluster.decide(set_flag("last", "advisory"));
    cluster.assert_same_everywhere();
    let survivor = cluster.follower().id;
    cluster.replicas.iter_mut().for_each(Replica::kill);
    let dir = cluster.at(survivor).dir.clone();
    let scratch = tempfile::tempdir().unwrap();
    let found = wait("a folder that nobody holds any more", || found::survivor(&dir, scratch.path()).ok());
    assert!(found.last_log.1 >= decided.revision.0, "{found:?}");
    assert_eq!((found.identity.node_id, found.identity.cluster_id.as_str()), (survivor, "acme"));
    let snapshot = found::recover(&dir, &scratch.path().join("recovered")).unwrap();
    // Nothing of the state was flushed: it all comes from the log.
    let (cluster, begun) = cluster.refounded(&snapshot);
    assert_eq!(begun.cut.through.0, found.last_log.1);
    assert!(cluster.decide(set_flag("last", "advisory")).replayed);
    assert_eq!(found::survivor(&dir, tempfile::tempdir().unwrap().path()).unwrap().last_log, found.last_log);
}

// ------------------------------------------------------------------ versions

/// Node 3 runs an older version than the others.
fn third_is_older(config: &mut Config) {
    config.feature_level_max = if config.node_id == 3 { 1 } else { 2 };
}

fn all_newer(config: &mut Config) {
    config.feature_level_max = 2;
}

fn raise(to: u64) -> Call {
    Call { caller: quorate_domain::identity::system(), command: level::RaiseFeatureLevel { to }.into(), ..set_flag(&unique(), "off") }
}

#[test]
fn the_feature_level_rises_once_every_member_can_apply_it_and_an_older_version_stays_out_then() {
    let mut cluster = Cluster::tweaked(3, third_is_older);
    wait("all have told what they can apply", || {
        let refused = cluster.decide(raise(2)).outcome.unwrap_err().to_string();
        refused.contains("node 3 applies commands up to level 1").then_some(())
    });
    assert!(cluster.replicas.iter().all(|replica| replica.status().feature_level == 1));

    cluster.at(3).kill();
    cluster.at(3).tweak = all_newer;
    cluster.at(3).start();
    wait("the level that all can apply", || cluster.decide(raise(2)).outcome.ok());
    for replica in cluster.running() {
        wait("the level everywhere", || (replica.status().feature_level == 2).then_some(()));
    }

    cluster.at(3).kill();
    cluster.at(3).tweak = third_is_older;
    let refused = loop {
        let runtime = Runtime::new().unwrap();
        match runtime.block_on(RaftNode::start(cluster.at(3).config())) {
            // Threads of the killed predecessor may still be closing its databases.
            Err(StartError::Identity(_) | StartError::Storage(_)) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => break error,
            Ok(_) => panic!("it started"),
        }
    };
    assert!(matches!(refused, StartError::TooOld { level: 2, max: 1 }) && refused.is_final(), "{refused}");
}

#[test]
fn a_member_that_has_not_been_heard_of_keeps_the_level_where_it_is() {
    let mut cluster = Cluster::tweaked(3, all_newer);
    let down = cluster.follower().id;
    cluster.at(down).kill();
    // Heard of a moment ago, it counts for ten seconds.
    wait("silence that is long enough", || {
        let members = cluster.leader().status().members;
        let silent_ms = members.iter().find(|member| member.id == down).and_then(|member| member.heard_ms_ago);
        silent_ms.is_none_or(|ms| ms > 10_500).then_some(())
    });
    let refused = cluster.decide(raise(2)).outcome.unwrap_err();
    assert!(refused.to_string().contains(&format!("node {down} has not been heard of lately")), "{refused}");
}
