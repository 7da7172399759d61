//! The life of a node process: check, start, serve, stop.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorate_domain::chain;
use quorate_link::{Files, Front, Link, Mutual, Name, Reloading, Role};
use quorate_proof::Signer;
use quorate_proto::REQUEST_BYTES_MAX;
use quorate_proto::cluster::cluster_server::ClusterServer;
use quorate_proto::cluster::operator_server::OperatorServer;
use quorate_raft::{Address, RaftNode, SpaceMarks, StartError, quarantine};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::Router;

use crate::Config;
use crate::guard::Guard;
use crate::health::{self, Door, Stage};
use crate::keys::{NodeKeys, Witness};
use crate::operator::OperatorService;
use crate::search::SearchIndex;
use crate::service::ClusterService;

/// How a node ended.
#[derive(Debug)]
pub enum Ended {
    /// It was asked to stop, and handed its leadership on first.
    Stopped,
    /// Its configuration, its folder or its disk is not fit; starting it again as it is can't help.
    Refused(String),
    /// The engine stopped by itself: storage failed or an entry could not be applied. The reason is in the log.
    EngineStopped(String),
}

/// A connection that says nothing for so long is asked whether it is still there, and has as long to answer.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How often a node that waits for room on its disk looks for it.
const DISK_LOOK: Duration = Duration::from_secs(1);
/// How the operating system, and so RocksDB, says it.
const NO_SPACE: &str = "No space left on device";
/// The folder of the search index within the replica's. It can be deleted while the node is down.
const SEARCH_DIR: &str = "search";
/// Calls under way have so long to end once the node stops.
const DRAIN: Duration = Duration::from_secs(2);

/// Runs a node until `stop` is done or the engine stops.
///
/// `may_create` lets it make its data folder; without that an empty folder is refused, since a wiped disk under an old id has
/// forgotten its votes. `serves` is told the addresses for gateways and for health once they are served: with port 0, those that
/// the node got.
pub async fn run(mut config: Config, may_create: bool, serves: impl FnOnce(&str, &str), stop: impl Future<Output = ()>) -> Ended {
    let signer = match check(&config, may_create) {
        Ok(signer) => signer,
        Err(why) => return Ended::Refused(why),
    };
    let (link, front) = match (link(&config), front(&config)) {
        (Ok(link), Ok(front)) => (link, front),
        (Err(why), _) | (_, Err(why)) => return Ended::Refused(why),
    };
    // Bound before anything is started, so that a taken port shows at once and no peer finds a closed door.
    let doors = (bind(config.grpc_listen, &config.grpc).await, bind(config.http_listen, &config.http).await);
    let (grpc, http) = match doors {
        (Ok(grpc), Ok(http)) => (grpc, http),
        (Err(why), _) | (_, Err(why)) => return Ended::EngineStopped(why),
    };
    (config.grpc, config.http) = (with_port_of(&grpc, config.grpc), with_port_of(&http, config.http));
    let (end, ended) = watch::channel(false);
    let (stage, stages) = watch::channel(Stage::Waiting("starting"));
    // From now on: whoever watches over this process has to be told why it does not serve.
    let health = {
        let door = match front {
            Some(front) => Door::new(Link::front(front, http)),
            None => Door::new(Link::plain().listen(http)),
        };
        tokio::spawn(axum::serve(door, health::routes(stages, link.clone())).with_graceful_shutdown(until(ended.clone())).into_future())
    };
    tokio::pin!(stop);
    let started = tokio::select! {
        started = start(&config, &link, &stage) => started,
        () = &mut stop => return Ended::Stopped,
    };
    let raft = match started {
        Ok(raft) => raft,
        Err(error) if error.is_final() => return Ended::Refused(chain(&error)),
        Err(error) => return Ended::EngineStopped(chain(&error)),
    };
    let witness = match Witness::open(raft.data_dir().path(), &config.cluster_id, config.node_id) {
        Ok(witness) => witness,
        Err(error) => return Ended::EngineStopped(format!("the key to cosign heads with can't be opened: {error}")),
    };
    let keys = NodeKeys::of(signer, &config.cluster_id).with(config.receipt_keys_file.clone(), witness);
    tracing::info!(node = config.node_id, grpc = config.grpc, http = config.http, "node serves");
    serves(&config.grpc, &config.http);
    let search =
        SearchIndex::start(raft.clone(), raft.data_dir().path().join(SEARCH_DIR), format!("{}/{}", config.cluster_id, config.lineage));
    stage.send_replace(Stage::Running(raft.clone(), search.clone()));
    let served = {
        let router = services(&raft, Some(search.clone()), Arc::new(keys), &config.cluster_id, config.cluster_secret.clone());
        tokio::spawn(router.serve_with_incoming_shutdown(link.listen(grpc), until(ended)))
    };

    let outcome = tokio::select! {
        () = &mut stop => Ended::Stopped,
        why = raft.stopped() => Ended::EngineStopped(why),
    };
    search.stop();
    // The engine goes first, while the doors are open: a successor has to be able to talk to this node.
    raft.shutdown().await;
    end.send_replace(true);
    // What does not end by itself, a watcher's stream say, ends with the process.
    let _ = tokio::time::timeout(DRAIN, async { tokio::join!(served, health) }).await;
    outcome
}

/// What a node answers over gRPC: gateways and operators, and the other nodes.
///
/// Without an index no search is served; a simulation has none, since its files are real.
pub fn services(
    raft: &RaftNode,
    search: Option<SearchIndex>,
    keys: Arc<NodeKeys>,
    cluster_id: &str,
    cluster_secret: Option<String>,
) -> Router {
    let guard = |roles| Guard::new(cluster_secret.clone(), cluster_id, roles);
    let operator = OperatorServer::new(OperatorService::new(raft.clone(), search.clone(), Arc::clone(&keys)));
    let cluster = ClusterServer::new(ClusterService::new(raft.clone(), search, keys))
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(4 * REQUEST_BYTES_MAX);
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(InterceptedService::new(cluster, guard(&[Role::Gateway, Role::Operator])))
        .add_service(InterceptedService::new(operator, guard(&[Role::Operator])))
        .add_service(InterceptedService::new(raft.service().into_server(), guard(&[Role::Node])))
}

async fn until(mut ended: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end as well.
    let _ = ended.wait_for(|ended| *ended).await;
}

/// How this node reaches others and is reached: over TLS where its files are named.
fn link(config: &Config) -> Result<Link, String> {
    let Some(files) = tls_files(config)? else { return Ok(Link::plain()) };
    Mutual::open(files, Role::Node, Some(&config.cluster_id)).map(Link::mutual).map_err(|error| chain(&error))
}

/// The certificate of the door for health and metrics, which is the node's own.
fn front(config: &Config) -> Result<Option<Arc<Reloading<Front>>>, String> {
    let Some(files) = tls_files(config)? else { return Ok(None) };
    Front::open(files.certificate, files.key).map(Some).map_err(|error| chain(&error))
}

fn tls_files(config: &Config) -> Result<Option<Files>, String> {
    let files = Files::of_settings(config.tls_ca.as_deref(), config.tls_certificate.as_deref(), config.tls_key.as_deref());
    files.map_err(|problem| format!("tls_ca {problem}"))
}

/// What can be refused before anything is touched.
fn check(config: &Config, may_create: bool) -> Result<Signer, String> {
    if config.node_id == 0 {
        return Err("node_id is missing; give each node one of its own, 1 or more".into());
    }
    if config.cluster_id.is_empty() {
        return Err("cluster_id is missing; give all nodes of a cluster the same".into());
    }
    if config.data.as_os_str().is_empty() {
        return Err("data is missing; name the folder of the replica".into());
    }
    let has_tls = tls_files(config)?.is_some();
    if has_tls {
        Name::new(Role::Node, &config.cluster_id).map_err(|error| error.to_string())?;
    }
    for (field, address, listen) in [("grpc", &config.grpc, config.grpc_listen), ("http", &config.http, config.http_listen)] {
        let reached = Reached::parse(address).ok_or_else(|| format!("{field} is `{address}`; write it as 127.0.0.1:7401 or name:7401"))?;
        let is_open = !reached.is_loopback() || listen.is_some_and(|listen| !listen.ip().is_loopback());
        if is_open && !has_tls {
            let where_open = listen.map_or_else(|| address.clone(), |listen| format!("{address} (listening on {listen})"));
            return Err(format!(
                "{field} is {where_open}, which other machines reach, and this node has no TLS: make a certificate with `quorate cert node` \
                 and set tls_ca, tls_certificate and tls_key, or listen on 127.0.0.1"
            ));
        }
        if field == "grpc" && reached.is_unspecified() {
            return Err(format!(
                "grpc is {address}, and the others are told this address to reach the node at: name the one they can reach, and set \
                 grpc_listen to {address} if it has to listen everywhere"
            ));
        }
    }
    let empty = std::fs::read_dir(&config.data).map_or(true, |mut entries| entries.next().is_none());
    if empty && !may_create {
        return Err(format!(
            "{} is empty: the disk of node {} was wiped or is not mounted. Its identity is lost with it, and an empty disk must not vote \
             under an old id, so this node stays out while the others go on: mount the right disk and start it again, or give its place \
             to a new member with `quorate replace {1}` (a node that was never started before needs --new)",
            config.data.display(),
            config.node_id
        ));
    }
    Signer::from_hex(&config.receipt_key, &config.cluster_id)
}

/// An address that a node is reached at: a name or an IP address, and a port.
enum Reached {
    Ip(SocketAddr),
    Named,
}

impl Reached {
    fn parse(address: &str) -> Option<Self> {
        if let Ok(address) = address.parse() {
            return Some(Self::Ip(address));
        }
        let (name, port) = address.rsplit_once(':')?;
        let is_name =
            !name.is_empty() && name.len() <= 253 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        (is_name && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(Self::Named)
    }

    /// What a name stands for can change.
    fn is_loopback(&self) -> bool {
        matches!(self, Self::Ip(address) if address.ip().is_loopback())
    }

    fn is_unspecified(&self) -> bool {
        matches!(self, Self::Ip(address) if address.ip().is_unspecified())
    }
}

async fn bind(listen: Option<SocketAddr>, reached: &str) -> Result<TcpListener, String> {
    let listen = listen.map_or_else(|| reached.to_owned(), |listen| listen.to_string());
    TcpListener::bind(&listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))
}

/// The address that the others are told: port 0 stands for any free one, and is which one it became.
fn with_port_of(listener: &TcpListener, reached: String) -> String {
    match (reached.parse::<SocketAddr>(), listener.local_addr()) {
        (Ok(address), Ok(bound)) if address.port() == 0 => SocketAddr::new(address.ip(), bound.port()).to_string(),
        _ => reached,
    }
}

fn engine(config: &Config, link: Link) -> quorate_raft::Config {
    let address = Address { grpc: config.grpc.clone(), http: config.http.clone() };
    let mut engine = quorate_raft::Config::new(config.data.clone(), config.cluster_id.clone(), config.node_id, address);
    engine.link = link;
    engine.lineage = config.lineage;
    engine.cluster_secret = config.cluster_secret.clone();
    engine.heartbeat_ms = config.heartbeat_ms;
    if let Some(min_ms) = config.election_timeout_min_ms {
        engine.election_timeout_ms_min = min_ms;
        engine.election_timeout_ms_max = min_ms * 5 / 3;
        engine.election_timeout_adapts = false;
    }
    if let Some(max_ms) = config.election_timeout_max_ms {
        engine.election_timeout_ms_max = max_ms;
        engine.election_timeout_adapts = false;
    }
    engine.space = Some(space_marks(config));
    engine.clock_offset_ms_max = config.clock_offset_max_ms;
    engine.log_entries_kept = config.log_entries_kept;
    engine.queue_max = config.queue_proposals_max;
    engine
}

fn space_marks(config: &Config) -> SpaceMarks {
    SpaceMarks { quota_bytes: config.disk_quota_bytes, low_bytes: config.disk_low_bytes, clear_bytes: config.disk_clear_bytes }
}

/// Starts the engine. A disk that is full is waited for, since a process that ended for it would only be started again, and again.
async fn start(config: &Config, link: &Link, stage: &watch::Sender<Stage>) -> Result<RaftNode, StartError> {
    let reserve = space_marks(config).reserve_bytes();
    let mut waits = false;
    loop {
        // A folder that can't be read is refused by the start itself.
        if let Ok(Some(reason)) = quarantine::read(&config.data) {
            tracing::warn!(damaged = ?reason.damaged, reason = reason.text, "in quarantine");
            stage.send_replace(Stage::Waiting("rebuilding"));
        }
        // A folder that is not there yet has the space of the one above it, which a start finds out.
        let left = rustix::fs::statvfs(&config.data).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        let why = if left < reserve {
            format!("{left} bytes are left, and {reserve} are needed")
        } else {
            match RaftNode::start(engine(config, link.clone())).await {
                Err(error) if chain(&error).contains(NO_SPACE) => chain(&error),
                Err(StartError::StateDamaged(text)) => {
                    tracing::error!(text, "the state is damaged");
                    continue;
                }
                Err(error @ StartError::LogDamaged(_)) => {
                    tracing::error!("{error}");
                    stage.send_replace(Stage::Waiting("log_damaged"));
                    // Ended, it would be started again; an operator has to give its place away.
                    return std::future::pending().await;
                }
                started => return started,
            }
        };
        if !waits {
            tracing::error!(data = %config.data.display(), why, "the disk is full: this node starts once there is room");
            stage.send_replace(Stage::Waiting("disk_full"));
            waits = true;
        }
        tokio::time::sleep(DISK_LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(data: &std::path::Path) -> Config {
        Config {
            node_id: 1,
            cluster_id: "c".into(),
            data: data.into(),
            grpc: "127.0.0.1:0".into(),
            http: "127.0.0.1:0".into(),
            receipt_key: "07".repeat(32),
            ..Config::default()
        }
    }

    #[tokio::test]
    async fn the_others_are_told_the_port_that_a_node_got() {
        let listener = bind(None, "127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        assert_eq!(with_port_of(&listener, "127.0.0.1:0".into()), format!("127.0.0.1:{port}"));
        assert_eq!(with_port_of(&listener, "192.0.2.1:0".into()), format!("192.0.2.1:{port}"));
        assert_eq!(with_port_of(&listener, "node-1:7401".into()), "node-1:7401");
    }

    #[test]
    fn an_empty_folder_under_an_old_id_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let why = check(&config(folder.path()), false).err().expect("refused");
        assert!(why.contains("node 1 was wiped") && why.contains("mount the right disk") && why.contains("`quorate replace 1`"), "{why}");
        assert!(check(&config(folder.path()), true).is_ok());
    }

    #[test]
    fn an_address_that_others_can_reach_is_refused_without_encryption() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = Config { grpc: "0.0.0.0:7401".into(), ..config(folder.path()) };
        let why = check(&open, true).err().expect("refused");
        assert!(why.contains("no TLS") && why.contains("`quorate cert node`") && why.contains("127.0.0.1"), "{why}");
        let halfway = Config { tls_ca: Some("ca.pem".into()), ..open.clone() };
        assert!(check(&halfway, true).err().expect("refused").contains("set all three"));
        let files = Config { tls_certificate: Some("n.pem".into()), tls_key: Some("n.key".into()), ..halfway };
        assert!(check(&files, true).err().expect("refused").contains("name the one they can reach"));
        assert!(check(&Config { grpc: "10.0.0.1:7401".into(), ..files }, true).is_ok());
    }

    #[test]
    fn a_node_may_be_reached_by_a_name_and_listen_elsewhere_with_encryption() {
        let folder = tempfile::tempdir().expect("a folder");
        let named = Config { grpc: "node-1.quorate:7401".into(), ..config(folder.path()) };
        assert!(check(&named, true).err().expect("refused").contains("no TLS"));
        let tls = |config: Config| Config {
            tls_ca: Some("ca.pem".into()),
            tls_certificate: Some("n.pem".into()),
            tls_key: Some("n.key".into()),
            ..config
        };
        assert!(check(&tls(named.clone()), true).is_ok());
        let behind = Config { grpc_listen: Some(([0, 0, 0, 0], 7401).into()), ..config(folder.path()) };
        assert!(check(&behind, true).err().expect("refused").contains("listening on 0.0.0.0:7401"));
        assert!(check(&tls(behind), true).is_ok());
        for wrong in ["node-1", ":7401", "node 1:7401", "node-1:0", "http://node-1:7401"] {
            let config = tls(Config { grpc: wrong.into(), ..named.clone() });
            assert!(check(&config, true).err().expect("refused").contains("write it as"), "{wrong}");
        }
    }

    #[test]
    fn a_key_of_another_length_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let short = Config { receipt_key: "07".into(), ..config(folder.path()) };
        assert_eq!(check(&short, true).err().expect("refused"), "the receipt key has 1 bytes, not 32");
    }
}
