//! Quorate as a system under load: `Cluster.Propose` and `Cluster.Read` at the leader, as a gateway would call them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command as ProcessCommand;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use quorate_domain::fact::{Confidence, QueryFacts, StoreFact};
use quorate_domain::punchcard::{PunchIn, PunchOut, PunchedIn};
use quorate_domain::{Command, CommandKind, Query, QueryKind, Refusal, codec};
use quorate_proto::cluster::cluster_client::ClusterClient;
use quorate_proto::cluster::read_request::Consistency;
use quorate_proto::cluster::{
    Caller, Linearizable, ProposeRequest, ReadRequest, StatusRequest, StatusResponse, decided, propose_response, read_response, served,
};
use quorate_proto::secret::Show;
use serde::Deserialize;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::load::{CALL_DEADLINE, CONNECTIONS_MAX, System, Target, Work};
use crate::machine::Started;

type Connection = ClusterClient<InterceptedService<Channel, Show>>;

/// How long `dev` may take until it serves.
const START: Duration = Duration::from_secs(90);
/// Whom the load is sent as.
const CALLER: &str = "agent-a";

/// A deployment that the bench started.
pub struct Quorate {
    nodes: Vec<String>,
    caller: Caller,
    secret: Show,
    _dev: Started,
}

/// The part of `dev --json` that the bench needs.
#[derive(Deserialize)]
struct Printed {
    nodes: Vec<PrintedNode>,
}

#[derive(Deserialize)]
struct PrintedNode {
    grpc: String,
}

/// The part of a deployment's file that a gateway of it needs as well.
#[derive(Deserialize)]
struct Deployment {
    cluster_secret: String,
    tokens: Vec<Identity>,
}

#[derive(Deserialize)]
struct Identity {
    name: String,
    tenant: String,
    passport: String,
    tier: String,
    scopes: Vec<String>,
}

impl Quorate {
    /// Starts three nodes on a fresh folder.
    pub async fn start(executable: &Path, home: &Path) -> anyhow::Result<Self> {
        let (data, log) = (home.join("data"), home.join("quorate.log"));
        let mut command = ProcessCommand::new(executable);
        command.args(["dev", "--json", "--data"]).arg(&data);
        let mut dev = Started::spawn(&mut command, &log, true)?;
        let output = dev.take_output().context("the output of dev is not piped")?;
        let line = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(output).lines();
            let found = lines.find(|line| line.as_ref().map_or(true, |line| line.starts_with('{')));
            // What dev prints later is read and dropped, so that it never waits for a reader.
            std::thread::spawn(move || lines.for_each(drop));
            found.context("quorate dev ended without its JSON")?.context("cannot read the output of quorate dev")
        });
        let line =
            tokio::time::timeout(START, line).await.with_context(|| format!("quorate dev does not serve; see {}", log.display()))???;
        let printed: Printed = serde_json::from_str(&line).context("quorate dev printed another JSON than expected")?;
        let file = std::fs::read_to_string(data.join("deployment.json")).context("cannot read the deployment's file")?;
        let deployment: Deployment = serde_json::from_str(&file).context("the deployment's file has another form than expected")?;
        let identity = deployment.tokens.into_iter().find(|identity| identity.name == CALLER);
        let Identity { tenant, passport, tier, scopes, .. } = identity.with_context(|| format!("the deployment has no {CALLER}"))?;
        let secret = Show::new(Some(&deployment.cluster_secret)).context("the cluster's secret does not fit a header")?;
        let nodes = printed.nodes.into_iter().map(|node| node.grpc).collect();
        Ok(Self { nodes, caller: Caller { tenant, passport, tier, scopes }, secret, _dev: dev })
    }

    /// The leader's address and what it says of itself.
    async fn leader(&self) -> anyhow::Result<(String, StatusResponse)> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            for address in &self.nodes {
                let target = QuorateTarget { clients: [self.connect(address)].into(), caller: self.caller.clone() };
                if let Ok(status) = target.status().await
                    && status.role == "leader"
                {
                    return Ok((address.clone(), status));
                }
            }
            if tokio::time::Instant::now() > deadline {
                bail!("no node says that it leads");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn connect(&self, address: &str) -> Connection {
        let url = if address.contains("://") { address.to_string() } else { format!("http://{address}") };
        let endpoint = Endpoint::from_shared(url).expect("dev prints valid addresses");
        let channel = endpoint.tcp_nodelay(true).connect_timeout(CALL_DEADLINE).timeout(CALL_DEADLINE).connect_lazy();
        ClusterClient::with_interceptor(channel, self.secret.clone())
    }
}

impl System for Quorate {
    const NAME: &'static str = "quorate";
    type Target = QuorateTarget;

    async fn version(&self) -> anyhow::Result<String> {
        Ok(env!("CARGO_PKG_VERSION").into())
    }

    async fn aim(&self, clients: usize) -> anyhow::Result<QuorateTarget> {
        let (address, _) = self.leader().await?;
        let clients = (0..clients.min(CONNECTIONS_MAX)).map(|_| self.connect(&address)).collect();
        Ok(QuorateTarget { clients, caller: self.caller.clone() })
    }

    async fn leader_pid(&self) -> anyhow::Result<u32> {
        Ok(self.leader().await?.1.pid)
    }
}

/// Connections to the leader.
#[derive(Clone)]
pub struct QuorateTarget {
    clients: Arc<[Connection]>,
    caller: Caller,
}

impl QuorateTarget {
    async fn status(&self) -> anyhow::Result<StatusResponse> {
        Ok(self.clients[0].clone().status(StatusRequest {}).await?.into_inner())
    }

    async fn propose<C: CommandKind>(&self, client: usize, id: String, under: Option<u64>, command: C) -> anyhow::Result<C::Output> {
        let command: Command = command.into();
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let request = ProposeRequest {
            caller: Some(self.caller.clone()),
            request_id: id,
            issued_at_unix_ms: u64::try_from(now.as_millis())?,
            keyed: false,
            fencing_token: under,
            command: codec::encode(&command).into(),
        };
        let mut leader = self.clients[client % self.clients.len()].clone();
        match leader.propose(request).await?.into_inner().result.context("an empty answer")? {
            propose_response::Result::Decided(decided) => match decided.outcome.context("a decision without outcome")? {
                decided::Outcome::Reply(reply) => Ok(codec::decode(&reply)?),
                decided::Outcome::Refusal(refusal) => bail!("refused: {}", codec::decode::<Refusal>(&refusal)?),
            },
            propose_response::Result::NotLeader(_) => bail!("the leader changed"),
            propose_response::Result::Unavailable(unavailable) => bail!("unavailable: {} {}", unavailable.reason, unavailable.detail),
        }
    }

    async fn read<Q: QueryKind>(&self, client: usize, query: Q) -> anyhow::Result<Q::Output> {
        let query: Query = query.into();
        let request = ReadRequest {
            caller: Some(self.caller.clone()),
            consistency: Some(Consistency::Linearizable(Linearizable {})),
            query: codec::encode(&query).into(),
        };
        let mut leader = self.clients[client % self.clients.len()].clone();
        match leader.read(request).await?.into_inner().result.context("an empty answer")? {
            read_response::Result::Served(served) => match served.outcome.context("an answer without outcome")? {
                served::Outcome::Answer(answer) => Ok(codec::decode(&answer)?),
                served::Outcome::Refusal(refusal) => bail!("refused: {}", codec::decode::<Refusal>(&refusal)?),
            },
            read_response::Result::Unavailable(unavailable) => bail!("unavailable: {} {}", unavailable.reason, unavailable.detail),
        }
    }

    async fn store(&self, client: usize, id: String, entity: String, n: u64, value: String) -> anyhow::Result<()> {
        let command = StoreFact {
            entity,
            key: format!("k{n}"),
            value,
            source_receipt: None,
            confidence: Confidence::FULL,
            private: false,
            horizon_class: None,
            freshness_horizon: None,
            supersedes: BTreeSet::new(),
        };
        self.propose(client, id, None, command).await.map(drop)
    }

    async fn take_and_release(&self, client: usize, n: u64) -> anyhow::Result<()> {
        let (resource, holder) = (format!("service://bench-{client}"), self.caller.passport.clone());
        let take = PunchIn {
            resource: resource.clone(),
            holder_passport: holder.clone(),
            tenant_id: None,
            mode: None,
            reason: None,
            ttl_ms: Some(60_000),
            expires_at: None,
            wait_ms: None,
            ..PunchIn::default()
        };
        let granted = self.propose(client, format!("bench-{n}-in"), None, take).await?;
        let PunchedIn::Granted { card, .. } = granted else { bail!("a free card was not granted: {granted:?}") };
        let release = PunchOut { resource, holder_passport: holder, tenant_id: None, release_commit_sha: None };
        self.propose(client, format!("bench-{n}-out"), Some(card.fencing_token.0), release).await.map(drop)
    }

    async fn read_one(&self, client: usize, n: u64) -> anyhow::Result<()> {
        let n = n % crate::load::READ_RECORDS;
        let query = QueryFacts {
            query: None,
            entity: Some(record(n)),
            entity_prefix: None,
            key: Some(format!("k{n}")),
            top_k: 1,
            token_budget: None,
            include_superseded: false,
            as_of: None,
            min_effective_confidence: None,
            cursor: None,
            hits: Default::default(),
            with_pointers: false,
            with_envelope: false,
        };
        match self.read(client, query).await?.rows.len() {
            1 => Ok(()),
            rows => bail!("{rows} rows of one record"),
        }
    }
}

/// The entity that holds record `n` of the reads.
fn record(n: u64) -> String {
    format!("bench-read-{n}")
}

impl Target for QuorateTarget {
    async fn call(&self, work: Work, client: usize, n: u64, value: String) -> anyhow::Result<()> {
        match work {
            Work::Store => self.store(client, format!("bench-{n}"), format!("bench-{client}"), n, value).await,
            Work::Read => self.read_one(client, n).await,
            Work::Lease => self.take_and_release(client, n).await,
        }
    }

    async fn prepare_record(&self, n: u64, value: String) -> anyhow::Result<()> {
        self.store(0, format!("bench-read-{n}"), record(n), n, value).await
    }

    async fn log_fsyncs(&self) -> anyhow::Result<u64> {
        Ok(self.status().await?.log_fsyncs)
    }
}
