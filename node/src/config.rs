//! What a node needs to be told. Every field can stand in the file, in the environment (`QUORATE_NODE_` and its name) or among
//! the flags.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Configuration of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The node's id: 1 or more, never used twice in the life of a cluster.
    pub node_id: u64,
    /// The cluster that the node belongs to. Nodes with another id refuse to talk to it.
    pub cluster_id: String,
    /// Which history of the cluster, 0 for one that was never restored; `quorate restore` and `force-new-cluster` tell the new one.
    /// Nodes of another refuse to talk to it, and a folder of another is refused.
    pub lineage: u64,
    /// Folder of the replica. It belongs to one node of one cluster for ever.
    pub data: PathBuf,
    /// Address that gateways and other nodes reach, such as `127.0.0.1:7401` or `node-1.example:7401`. Off loopback only with TLS.
    pub grpc: String,
    /// Where to listen for them; by default `grpc` itself. For a node that is reached under an address that is not its own, behind
    /// an address translation say: `0.0.0.0:7401`. Off loopback only with TLS.
    pub grpc_listen: Option<SocketAddr>,
    /// Address of health and metrics, such as `127.0.0.1:7501`. With TLS set it speaks HTTPS, and asks for no client certificate.
    pub http: String,
    /// Where to listen for that; by default `http` itself.
    pub http_listen: Option<SocketAddr>,
    /// PEM file of the authority that nodes, gateways and operators of the cluster have their certificates from; with the next
    /// two it turns TLS on. Looked at every two seconds, like those: new connections use what is there by then.
    pub tls_ca: Option<PathBuf>,
    /// PEM file of this node's certificate, for the name `node.CLUSTER.quorate.internal`, as `quorate cert node` makes it.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file of the key to it. Readable by others: they can be this node.
    pub tls_key: Option<PathBuf>,
    /// Secret that nodes and gateways show to each other. Without it any local process could speak for any caller.
    pub cluster_secret: Option<String>,
    /// Signs receipts: an Ed25519 secret key, 32 bytes in hex, the same on every node.
    pub receipt_key: String,
    /// File of further receipt keys, one in hex a line, for `quorate key rotate`; none by default. It need not be there, and is
    /// looked at whenever the cluster signs with a key that the node does not know yet. Readable by others: they can sign receipts.
    pub receipt_keys_file: Option<PathBuf>,
    /// Between heartbeats of an idle leader, in ms; 100 by default, at most a third of the election timeout. Higher finds a dead
    /// leader later and brings one lost packet near an election; lower is noise.
    pub heartbeat_ms: u64,
    /// Lower end of the random part of the election timeout, in ms. By default it is chosen at the start: 300, or ten times the
    /// 99th percentile of an fsync where that is more. One that is set and lower than those ten fsyncs is refused, since a busy
    /// disk would then look like a dead leader.
    pub election_timeout_min_ms: Option<u64>,
    /// Upper end of it, and the time for which a leader's followers vote for nobody else, in ms; by default five thirds of the
    /// lower end. Close together the nodes often tie; far apart a dead leader is missed for long.
    pub election_timeout_max_ms: Option<u64>,
    /// Applied entries that stay in the log for followers that come back; 50,000 by default. One that is further behind gets a
    /// whole snapshot; more takes disk.
    pub log_entries_kept: u64,
    /// Proposals that may wait on the leader; 8,192 by default. Over it callers are told to come again; more makes them wait
    /// longer for that answer.
    pub queue_proposals_max: usize,
    /// What the node's folder may hold, in bytes; no more than the file system by default. Over it, less the next two marks, writes
    /// that grow are refused. Too low: that comes for no reason.
    pub disk_quota_bytes: Option<u64>,
    /// With less than this left, by the file system or the quota, the node is short of space, in bytes; 268,435,456 by default. It
    /// hands leadership on, keeps less of the log, and when a quorum is short, writes that grow are refused. Below a quarter of it on
    /// the disk itself the node takes no entries. Lower: the databases themselves may run out of space.
    pub disk_low_bytes: u64,
    /// With this left it is not short any more, in bytes; 536,870,912 by default, at least `disk_low_bytes`. Close together: the
    /// alarm comes and goes.
    pub disk_clear_bytes: u64,
    /// How far this node's wall clock may be from what a majority of the voters say, in ms; 5,000 by default. Further off it does not
    /// lead. Lower than the network is slow: ordinary delays look like wrong clocks; much higher: times that people read are wrong.
    pub clock_offset_max_ms: u64,
    /// Stop in order when standard input closes: for a supervisor whose children must not outlive it.
    pub stop_on_stdin_close: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_id: 0,
            cluster_id: String::new(),
            lineage: 0,
            data: PathBuf::new(),
            grpc: String::new(),
            grpc_listen: None,
            http: String::new(),
            http_listen: None,
            tls_ca: None,
            tls_certificate: None,
            tls_key: None,
            cluster_secret: None,
            receipt_key: String::new(),
            receipt_keys_file: None,
            heartbeat_ms: 100,
            election_timeout_min_ms: None,
            election_timeout_max_ms: None,
            log_entries_kept: 50_000,
            queue_proposals_max: 8_192,
            disk_quota_bytes: None,
            disk_low_bytes: 256 << 20,
            disk_clear_bytes: 512 << 20,
            clock_offset_max_ms: 5_000,
            stop_on_stdin_close: false,
        }
    }
}
