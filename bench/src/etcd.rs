//! etcd as a system under load: three members on loopback with their default settings, which fsync.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use api::kv_client::KvClient;
use api::lease_client::LeaseClient;
use api::maintenance_client::MaintenanceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::{Channel, Endpoint};

use crate::load::{CALL_DEADLINE, CONNECTIONS_MAX, READ_RECORDS, System, Target, Work};
use crate::machine::{Started, free_ports};

mod api {
    tonic::include_proto!("etcdserverpb");
}

/// How long the members may take until one of them leads.
const START: Duration = Duration::from_secs(60);

/// A cluster that the bench started.
pub struct Etcd {
    members: Vec<Member>,
}

struct Member {
    client: String,
    process: Started,
}

impl Etcd {
    /// Starts three members on fresh folders.
    pub async fn start(executable: &Path, home: &Path) -> anyhow::Result<Self> {
        let ports: [u16; 6] = free_ports()?;
        let urls: Vec<String> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let peers = (0..3).map(|i| format!("m{i}={}", urls[i])).collect::<Vec<_>>().join(",");
        let mut members = Vec::new();
        for i in 0..3 {
            let (peer, client) = (&urls[i], &urls[3 + i]);
            let mut command = Command::new(executable);
            command
                .env_clear()
                .args(["--name", &format!("m{i}"), "--data-dir"])
                .arg(home.join(format!("m{i}")))
                .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
                .args(["--listen-client-urls", client, "--advertise-client-urls", client])
                .args(["--initial-cluster", &peers, "--initial-cluster-state", "new", "--logger", "zap"]);
            let process = Started::spawn(&mut command, &home.join(format!("m{i}.log")), false)
                .context("etcd is not there; `make bench` fetches it, or name it with --etcd")?;
            members.push(Member { client: client.clone(), process });
        }
        let mut etcd = Self { members };
        let led = async {
            while etcd.leader().await.is_err() {
                for member in &mut etcd.members {
                    member.process.check().context("an etcd member does not stay up")?;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(START, led).await.with_context(|| format!("etcd has no leader; see {}", home.display()))??;
        Ok(etcd)
    }

    async fn leader(&self) -> anyhow::Result<&Member> {
        for member in &self.members {
            let status = status(&member.client).await?;
            if status.leader != 0 && status.header.is_some_and(|header| header.member_id == status.leader) {
                return Ok(member);
            }
        }
        bail!("no member leads")
    }
}

async fn status(url: &str) -> anyhow::Result<api::StatusResponse> {
    let mut client = MaintenanceClient::new(connect(url)?);
    Ok(client.status(api::StatusRequest {}).await?.into_inner())
}

fn connect(url: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(url.to_string())?;
    Ok(endpoint.tcp_nodelay(true).connect_timeout(CALL_DEADLINE).timeout(CALL_DEADLINE).connect_lazy())
}

impl System for Etcd {
    const NAME: &'static str = "etcd";
    type Target = EtcdTarget;

    async fn version(&self) -> anyhow::Result<String> {
        Ok(status(&self.members[0].client).await?.version)
    }

    async fn aim(&self, clients: usize) -> anyhow::Result<EtcdTarget> {
        let url = self.leader().await?.client.clone();
        let channels = (0..clients.min(CONNECTIONS_MAX)).map(|_| connect(&url)).collect::<anyhow::Result<_>>()?;
        Ok(EtcdTarget { url, channels })
    }

    async fn leader_pid(&self) -> anyhow::Result<u32> {
        Ok(self.leader().await?.process.id())
    }
}

/// Connections to the leader.
#[derive(Clone)]
pub struct EtcdTarget {
    url: String,
    channels: Arc<[Channel]>,
}

impl EtcdTarget {
    fn kv(&self, client: usize) -> KvClient<Channel> {
        KvClient::new(self.channels[client % self.channels.len()].clone())
    }

    async fn put(&self, client: usize, key: String, value: String) -> anyhow::Result<()> {
        let put = api::PutRequest { key: key.into(), value: value.into(), lease: 0 };
        self.kv(client).put(put).await?;
        Ok(())
    }

    async fn get(&self, client: usize, key: String) -> anyhow::Result<()> {
        let get = api::RangeRequest { key: key.into(), serializable: false };
        let found = self.kv(client).range(get).await?.into_inner();
        ensure!(found.kvs.len() == 1, "{} rows of one record", found.kvs.len());
        Ok(())
    }

    /// The lock recipe: a lease, a key that nobody has, and the lease given back, which removes the key.
    async fn take_and_release(&self, client: usize) -> anyhow::Result<()> {
        let mut leases = LeaseClient::new(self.channels[client % self.channels.len()].clone());
        let lease = leases.lease_grant(api::LeaseGrantRequest { ttl: 60, id: 0 }).await?.into_inner();
        ensure!(lease.error.is_empty(), "no lease: {}", lease.error);
        let key = format!("bench-lock-{client}").into_bytes();
        let absent = api::Compare {
            result: api::compare::CompareResult::Equal.into(),
            target: api::compare::CompareTarget::Create.into(),
            key: key.clone(),
            target_union: Some(api::compare::TargetUnion::CreateRevision(0)),
        };
        let put = api::PutRequest { key, value: "agent-a".into(), lease: lease.id };
        let put = api::RequestOp { request: Some(api::request_op::Request::RequestPut(put)) };
        let txn = api::TxnRequest { compare: vec![absent], success: vec![put], failure: Vec::new() };
        let taken = self.kv(client).txn(txn).await?.into_inner();
        leases.lease_revoke(api::LeaseRevokeRequest { id: lease.id }).await?;
        ensure!(taken.succeeded, "a free lock was not taken");
        Ok(())
    }
}

impl Target for EtcdTarget {
    async fn call(&self, work: Work, client: usize, n: u64, value: String) -> anyhow::Result<()> {
        match work {
            Work::Store => self.put(client, format!("bench-{client}/k{n}"), value).await,
            Work::Read => self.get(client, record(n % READ_RECORDS)).await,
            Work::Lease => self.take_and_release(client).await,
        }
    }

    async fn prepare_record(&self, n: u64, value: String) -> anyhow::Result<()> {
        self.put(0, record(n), value).await
    }

    async fn log_fsyncs(&self) -> anyhow::Result<u64> {
        let address = self.url.trim_start_matches("http://");
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await?;
        let counter = "etcd_disk_wal_fsync_duration_seconds_count ";
        let count = page.lines().find_map(|line| line.strip_prefix(counter)).context("etcd's metrics lack its fsyncs")?;
        Ok(count.trim().parse::<f64>()? as u64)
    }
}

fn record(n: u64) -> String {
    format!("bench-read-{n}/k{n}")
}
