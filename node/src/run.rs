//! The life of a node process: check, start, serve, stop.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorate_link::{Files, Front, Link, Mutual, Name, Reloading, Role};
use quorate_proof::Signer;
use quorate_proto::REQUEST_BYTES_MAX;
use quorate_proto::cluster::cluster_server::ClusterServer;
use quorate_proto::cluster::operator_server::OperatorServer;
use quorate_raft::{Address, RaftNode};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::Router;

use crate::Config;
use crate::guard::Guard;
use crate::health::{self, Door};
use crate::operator::OperatorService;
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
/// Calls under way have so long to end once the node stops.
const DRAIN: Duration = Duration::from_secs(2);

/// Runs a node until `stop` is done or the engine stops.
///
/// `may_create` lets it make its data folder; without that an empty folder is refused, since a wiped disk under an old id has
/// forgotten its votes.
pub async fn run(config: Config, may_create: bool, stop: impl Future<Output = ()>) -> Ended {
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
    let raft = match RaftNode::start(engine(&config, link.clone())).await {
        Ok(raft) => raft,
        Err(error) if error.is_final() => return Ended::Refused(chain(&error)),
        Err(error) => return Ended::EngineStopped(chain(&error)),
    };
    tracing::info!(node = config.node_id, grpc = config.grpc, http = config.http, "node serves");

    let (end, ended) = watch::channel(false);
    let served = {
        let router = services(&raft, Arc::new(signer), &config.cluster_id, config.cluster_secret.clone());
        tokio::spawn(router.serve_with_incoming_shutdown(link.listen(grpc), until(ended.clone())))
    };
    let health = {
        let door = match front {
            Some(front) => Door::new(Link::front(front, http)),
            None => Door::new(Link::plain().listen(http)),
        };
        tokio::spawn(axum::serve(door, health::routes(raft.clone(), link)).with_graceful_shutdown(until(ended)).into_future())
    };

    let outcome = tokio::select! {
        () = stop => Ended::Stopped,
        why = raft.stopped() => Ended::EngineStopped(why),
    };
    // The engine goes first, while the doors are open: a successor has to be able to talk to this node.
    raft.shutdown().await;
    end.send_replace(true);
    // What does not end by itself, a watcher's stream say, ends with the process.
    let _ = tokio::time::timeout(DRAIN, async { tokio::join!(served, health) }).await;
    outcome
}

/// What a node answers over gRPC: gateways and operators, and the other nodes.
pub fn services(raft: &RaftNode, signer: Arc<Signer>, cluster_id: &str, cluster_secret: Option<String>) -> Router {
    let guard = |roles| Guard::new(cluster_secret.clone(), cluster_id, roles);
    let operator = OperatorServer::new(OperatorService::new(raft.clone(), Arc::clone(&signer)));
    let cluster = ClusterServer::new(ClusterService::new(raft.clone(), signer))
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
        let is_name = !name.is_empty() && name.len() <= 253 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
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
    engine.log_entries_kept = config.log_entries_kept;
    engine.queue_max = config.queue_proposals_max;
    engine
}

/// An error and all its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
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
