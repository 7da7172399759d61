//! Requests to the other members.
//!
//! Each member is reached over up to three connections: one for heartbeats, votes and read indexes, one for the stream of
//! entries, one for snapshots, so that no payload delays the sign of life that keeps a leader in office. Connections are
//! opened when needed, kept alive by HTTP/2 pings, and every request has a deadline or is watched for progress: a peer that is
//! stopped, unplugged or replaced costs a bounded time. What can't be delivered becomes `Unreachable`, after which openraft
//! waits a little before the next try.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult, TransferLeaderError,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, Snapshot};
use quorate_domain::codec;
use quorate_link::Link;
use quorate_proto::raft::raft_client::RaftClient;
use quorate_proto::raft::{Header, RaftRequest, RaftResponse};
use quorate_proto::secret::Show;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tonic::metadata::errors::InvalidMetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::config::Config;
use crate::fitness::Fitness;
use crate::form::{
    self, AppendForm, AppendReplyForm, LogIdForm, ReadIndexReplyForm, TransferForm, TransferReplyForm, VoteForm, VoteReplyForm,
    VoteRequestForm,
};
use crate::machine::SnapshotFiles;
use crate::peers::{Peers, Seldom};
use crate::transfer;
use crate::types::{Address, CommittedLeaderId, LogId, MetricsReceiver, TypeConfig, Vote};

/// Answers to appends and snapshots fit easily; requests carry one batch of entries, or one larger entry.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long a stream of entries may owe an answer before it is given up. Far above a stalled fsync: giving up sends it all again.
const STREAM_STALL: Duration = Duration::from_secs(5);
/// Between a stream of entries that failed and the next try.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);

pub type Client = RaftClient<InterceptedService<Channel, Show>>;
type RpcError = RPCError<TypeConfig>;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Pulse,
    Entries,
    Snapshot,
}

/// The connections of this node. Shared by all of openraft's clients, which come and go with each leadership.
pub struct Links {
    pub peers: Arc<Peers>,
    fitness: Arc<Fitness>,
    link: Link,
    secret: Show,
    /// How long opening a connection or a stream may take.
    pub open_max: Duration,
    pub snapshot_stall: Duration,
    clients: Mutex<BTreeMap<(u64, Lane), (String, Client)>>,
    metrics: OnceLock<MetricsReceiver>,
}

impl Links {
    /// Fails for a cluster secret that is not visible ASCII.
    pub fn new(peers: Arc<Peers>, fitness: Arc<Fitness>, config: &Config) -> Result<Arc<Self>, InvalidMetadataValue> {
        Ok(Arc::new(Self {
            peers,
            fitness,
            link: config.link.clone(),
            secret: Show::new(config.cluster_secret.as_deref())?,
            open_max: config.lease(),
            snapshot_stall: Duration::from_millis(config.snapshot_stall_ms),
            clients: Mutex::default(),
            metrics: OnceLock::new(),
        }))
    }

    /// openraft's metrics, once it runs.
    pub fn observe(&self, metrics: MetricsReceiver) {
        // A second call would come from a second node on the same links, which nobody makes.
        let _ = self.metrics.set(metrics);
    }

    /// How long ago this leader sent what a quorum has acknowledged; `None` when it does not lead.
    pub fn quorum_age(&self) -> Option<Duration> {
        let metrics = self.metrics.get()?.borrow_watched();
        if !metrics.state.is_leader() {
            return None;
        }
        let voters = metrics.membership_config.voter_ids().count();
        let is_alone = voters == 1 && metrics.membership_config.voter_ids().any(|voter| voter == metrics.id);
        if is_alone {
            return Some(Duration::ZERO);
        }
        metrics.last_quorum_acked.map(|acked| acked.into_inner().elapsed())
    }

    /// Shares one connection per member and lane; a changed address makes a new one.
    pub fn client(&self, target: u64, address: &Address, lane: Lane) -> Result<Client, RpcError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((dialled, client)) = clients.get(&(target, lane))
            && *dialled == address.grpc
        {
            return Ok(client.clone());
        }
        let channel = self.link.lazy(&address.grpc, |endpoint| {
            endpoint
                .connect_timeout(self.open_max)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(8 << 20)
                .initial_connection_window_size(16 << 20)
        });
        let channel = channel.map_err(|error| unreachable(format!("`{}` is no address: {error}", address.grpc)))?;
        let client = RaftClient::with_interceptor(channel, self.secret.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        clients.insert((target, lane), (address.grpc.clone(), client.clone()));
        Ok(client)
    }

    pub fn request(&self, target: u64, body: Bytes) -> RaftRequest {
        let header = Header { clock_off_ms: self.fitness.clock_off_of(target), ..self.peers.header(target) };
        RaftRequest { header: Some(header), body }
    }

    /// The body of an answer from the node that was meant.
    pub fn answer<T: DeserializeOwned>(&self, target: u64, response: &RaftResponse) -> Result<T, RpcError> {
        self.peers.meet(target, &response.from_incarnation).map_err(unreachable)?;
        self.fitness.report(target, &response.unfit, response.feature_level_max);
        form::decode(&response.body).map_err(unreachable)
    }

    /// Asks another node, as leader, for the index that a linearizable read has to wait for.
    pub async fn read_index(&self, leader: u64, address: &Address, within: Duration) -> Result<ReadIndexReplyForm, String> {
        let ask = async {
            let mut client = self.client(leader, address, Lane::Pulse)?;
            let response = client.read_index(self.request(leader, Bytes::new())).await.map_err(unreachable)?;
            self.answer(leader, response.get_ref())
        };
        match timeout(within, ask).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(format!("node {leader}: {error}")),
            Err(_) => Err(format!("node {leader} did not answer within {} ms", within.as_millis())),
        }
    }
}

pub fn unreachable(problem: impl ToString) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(problem))
}

/// The factory that openraft takes its clients from.
pub struct Network(pub Arc<Links>);

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, node: &Address) -> PeerClient {
        PeerClient { links: Arc::clone(&self.0), target, address: node.clone(), lane: Lane::Entries }
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Address) -> PeerClient {
        PeerClient { lane: Lane::Pulse, ..self.new_client(target, node).await }
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Address) -> PeerClient {
        PeerClient { lane: Lane::Snapshot, ..self.new_client(target, node).await }
    }
}

/// openraft's client of one member.
pub struct PeerClient {
    links: Arc<Links>,
    target: u64,
    address: Address,
    lane: Lane,
}

impl PeerClient {
    /// One question and its answer, within the time openraft gives for it.
    async fn ask<T, Answer>(
        &self,
        what: RPCTypes,
        option: &RPCOption,
        body: Bytes,
        call: impl FnOnce(Client, RaftRequest) -> Answer,
    ) -> Result<T, RpcError>
    where
        T: DeserializeOwned,
        Answer: Future<Output = Result<tonic::Response<RaftResponse>, Status>>,
    {
        let client = self.links.client(self.target, &self.address, Lane::Pulse)?;
        let request = self.links.request(self.target, body);
        let within = option.soft_ttl();
        let sent = self.links.fitness.now();
        match timeout(within, call(client, request)).await {
            Ok(Ok(response)) => {
                let answer = self.links.answer(self.target, response.get_ref())?;
                self.links.fitness.read_clock(self.target, response.get_ref().wall_unix_ms, sent, self.links.fitness.now());
                Ok(answer)
            }
            Ok(Err(status)) => Err(unreachable(told(&status))),
            Err(_) => {
                Err(RPCError::Timeout(Timeout { action: what, id: self.links.peers.me.node_id, target: self.target, timeout: within }))
            }
        }
    }

    fn append_body(links: &Links, rpc: &AppendEntriesRequest<TypeConfig>) -> Bytes {
        let header = AppendForm {
            vote: rpc.vote.into(),
            prev: rpc.prev_log_id.map(LogIdForm::from),
            leader_commit: rpc.leader_commit.map(LogIdForm::from),
            quorum_age_ms: links.quorum_age().map(|age| age.as_millis() as u64),
        };
        form::encode_append(&header, &rpc.entries)
    }

    /// Many requests under way on one stream; the answers come in their order.
    async fn pipelined<'s, S>(&'s mut self, input: S) -> Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>, RpcError>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let mut client = self.links.client(self.target, &self.address, self.lane)?;
        let sent = Arc::new(AtomicU64::new(0));
        let requests = {
            let (links, target, sent) = (Arc::clone(&self.links), self.target, Arc::clone(&sent));
            input.map(move |rpc| {
                sent.fetch_add(1, Ordering::Relaxed);
                links.request(target, Self::append_body(&links, &rpc))
            })
        };
        // openraft reschedules at once what could not be sent, whatever its back-off says: a peer that refuses at once would
        // keep this leader busy with nothing else.
        let opened = timeout(self.links.open_max, client.append_stream(requests)).await;
        if !matches!(opened, Ok(Ok(_))) {
            sleep(REOPEN_PAUSE).await;
        }
        let responses = match opened {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return Err(unreachable(told(&status))),
            Err(_) => {
                return Err(unreachable(format!("node {} opened no stream within {} ms", self.target, self.links.open_max.as_millis())));
            }
        };
        let answers = futures::stream::unfold(Some((responses, 0)), move |state| {
            let (links, target, sent) = (Arc::clone(&self.links), self.target, Arc::clone(&sent));
            async move {
                let (mut responses, answered) = state?;
                let mut owed_before = 0;
                let message = loop {
                    match timeout(STREAM_STALL / 2, responses.message()).await {
                        Ok(message) => break message,
                        Err(_) if owed_before > answered => {
                            return Some((Err(unreachable(format!("node {target} stopped answering"))), None));
                        }
                        // Nothing is owed, or only since a moment: once more.
                        Err(_) => owed_before = sent.load(Ordering::Relaxed),
                    }
                };
                let reply = match message {
                    Ok(Some(response)) => links.answer::<AppendReplyForm>(target, &response),
                    Ok(None) => return None,
                    Err(status) => Err(unreachable(told(&status))),
                };
                if reply.is_err() {
                    sleep(REOPEN_PAUSE).await;
                }
                match reply.map(append_result) {
                    Ok(Ok(matched)) => Some((Ok(Ok(matched)), Some((responses, answered + 1)))),
                    last => Some((last, None)),
                }
            }
        });
        Ok(Box::pin(answers))
    }
}

fn append_result(reply: AppendReplyForm) -> StreamAppendResult<TypeConfig> {
    match reply {
        AppendReplyForm::Matched(last) => Ok(last.map(LogId::from)),
        AppendReplyForm::Conflict(prev) => Err(StreamAppendError::Conflict(prev.into())),
        AppendReplyForm::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.into())),
    }
}

/// A refusal by name is worth a warning: it does not heal by itself.
fn told(status: &Status) -> String {
    static WARNED: Seldom = Seldom::new();
    let refused = matches!(status.code(), Code::FailedPrecondition | Code::PermissionDenied | Code::Unauthenticated);
    if refused && WARNED.again() {
        tracing::warn!(reason = status.message(), "a peer refuses this node");
    }
    format!("{}: {}", status.code(), status.message())
}

impl RaftNetworkV2<TypeConfig> for PeerClient {
    type SnapshotData = SnapshotFiles;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RpcError> {
        let body = Self::append_body(&self.links, &rpc);
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        let reply =
            self.ask(RPCTypes::AppendEntries, &option, body, |mut client, request| async move { client.append(request).await }).await?;
        Ok(match append_result(reply) {
            Ok(matched) if matched == last => AppendEntriesResponse::Success,
            Ok(matched) => AppendEntriesResponse::PartialSuccess(matched),
            Err(StreamAppendError::Conflict(_)) => AppendEntriesResponse::Conflict,
            Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
        })
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        match self.lane {
            Lane::Pulse => stream_append_sequential(self, input, option),
            Lane::Entries | Lane::Snapshot => Box::pin(self.pipelined(input)),
        }
    }

    async fn vote(&mut self, rpc: VoteRequest<TypeConfig>, option: RPCOption) -> Result<VoteResponse<TypeConfig>, RpcError> {
        self.ask_for_vote(rpc, option, false).await
    }

    async fn pre_vote(&mut self, rpc: VoteRequest<TypeConfig>, option: RPCOption) -> Result<VoteResponse<TypeConfig>, RpcError> {
        self.ask_for_vote(rpc, option, true).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<CommittedLeaderId, u64, Address, SnapshotFiles>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let SnapshotFiles::ToSend(outgoing) = snapshot.snapshot else {
            return Err(StreamingError::Closed(ReplicationClosed::new("a received snapshot is not sent on")));
        };
        let client = self.links.client(self.target, &self.address, Lane::Snapshot)?;
        let send = transfer::send(&self.links, client, (self.target, &self.address), vote, &outgoing);
        tokio::select! {
            sent = send => sent,
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RpcError> {
        let form = TransferForm {
            from: (*rpc.from_leader()).into(),
            to: *rpc.to_node_id(),
            last_log: rpc.last_log_id().copied().map(LogIdForm::from),
        };
        let body = codec::encode(&form).into();
        let reply = self
            .ask(RPCTypes::TransferLeader, &option, body, |mut client, request| async move { client.transfer_leader(request).await })
            .await?;
        Ok(match reply {
            TransferReplyForm::Accepted => Ok(()),
            TransferReplyForm::VoteChanged { actual } => {
                Err(TransferLeaderError::VoteChanged { expected: *rpc.from_leader(), actual: actual.into() })
            }
            TransferReplyForm::LogNotFlushed { actual } => {
                Err(TransferLeaderError::LogNotFlushed { expected: rpc.last_log_id().copied(), actual: actual.map(LogId::from) })
            }
        })
    }
}

impl PeerClient {
    async fn ask_for_vote(
        &self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
        pre_vote: bool,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        let form = VoteRequestForm {
            vote: VoteForm::from(rpc.vote),
            last_log: rpc.last_log_id.map(LogIdForm::from),
            leadership_transfer: rpc.leadership_transfer,
            pre_vote,
        };
        let body = codec::encode(&form).into();
        let reply: VoteReplyForm =
            self.ask(RPCTypes::Vote, &option, body, |mut client, request| async move { client.vote(request).await }).await?;
        Ok(VoteResponse::<TypeConfig>::new(Vote::from(reply.vote), reply.last_log.map(LogId::from), reply.granted))
    }
}

impl From<io::Error> for crate::transfer::SendError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}
