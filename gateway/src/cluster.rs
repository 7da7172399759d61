//! How a call reaches the cluster: who leads, what is tried again, and when to give up.
//!
//! One task asks every node now and then who leads, and often while nobody is known to. A write waits for the answer of the
//! leader it was sent to, and no longer than until another leader is seen: so a leader that was killed, paused or cut off
//! costs a call the time of an election and not its deadline. Every attempt carries the same request id, so that a command
//! which was decided behind a lost answer is answered again and not run again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use quorate_domain::{Command, CommandKind, Principal, Query, QueryKind, Refusal, RequestId, Revision, UnixMs, codec};
use quorate_link::{Link, reason};
use quorate_proto::cluster as wire;
use quorate_proto::cluster::cluster_client::ClusterClient;
use quorate_proto::secret;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::call::{CallContext, CallError};
use crate::limit::*;
use crate::metrics::Retries;

/// What one node says of itself, if it says anything in time.
type StatusAnswer = Result<Result<tonic::Response<wire::StatusResponse>, Status>, Elapsed>;
type Client = ClusterClient<InterceptedService<Channel, secret::Show>>;

/// How fresh a read has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    Linearizable,
    AtLeast(Revision),
    /// At once, from whatever is there, if it is no older than this.
    Stale {
        max_age_ms: u64,
    },
}

/// What a read was served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    pub revision: Revision,
    /// How old the state may be; 0 for a linearizable read.
    pub age_ms: u64,
}

/// A handle on the cluster; clones share everything.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: RwLock<Arc<Vec<Arc<Node>>>>,
    secret: secret::Show,
    link: Link,
    view: watch::Sender<View>,
    /// Wakes the prober before its time.
    doubt: Notify,
    next_reader: AtomicUsize,
    retries: Retries,
    seen: RwLock<Arc<Vec<NodeSeen>>>,
}

/// What a node told when it was last asked how it is, and how long its answers took.
#[derive(Clone, Debug)]
pub struct NodeSeen {
    pub address: String,
    /// What it told, or why it told nothing.
    pub status: Result<wire::StatusResponse, String>,
    /// Of the last [`ROUND_TRIPS_KEPT`] questions, oldest first.
    pub round_trips: Vec<RoundTrip>,
}

#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    pub at: UnixMs,
    /// `None` when there was no answer.
    pub took: Option<Duration>,
}

struct Node {
    address: String,
    client: Client,
}

/// What was last seen of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Term and address of the leader.
    pub leader: Option<(u64, String)>,
    /// Addresses by node id, as the nodes told them.
    ids: BTreeMap<u64, String>,
    /// Nodes that answered the last time they were asked, and can serve reads.
    pub serving: Vec<String>,
    /// Why nodes did not answer, for `/readyz`.
    pub problems: Vec<String>,
    /// Who led when the nodes were last asked, hints apart, and how often they were asked.
    probed_leader: Option<String>,
    probes: u64,
}

/// A node address that is no URL.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("`{address}` is no node address; write it as `http://127.0.0.1:9201`")]
    Address {
        address: String,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("no node addresses were given")]
    NoNodes,
    #[error("the cluster secret must be visible ASCII")]
    Secret(#[source] tonic::metadata::errors::InvalidMetadataValue),
}

impl Cluster {
    /// Begins to look for the cluster. Has to be called inside a Tokio runtime; does not wait for a node.
    pub fn connect(nodes: &[String], cluster_secret: Option<&str>, link: &Link) -> Result<Self, ConnectError> {
        if nodes.is_empty() {
            return Err(ConnectError::NoNodes);
        }
        let secret = secret::Show::new(cluster_secret).map_err(ConnectError::Secret)?;
        let nodes = nodes.iter().map(|address| Node::new(address, &secret, link).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared {
            nodes: RwLock::new(Arc::new(nodes)),
            secret,
            link: link.clone(),
            view: watch::Sender::new(View::default()),
            doubt: Notify::new(),
            next_reader: AtomicUsize::new(rand::random_range(0..64)),
            retries: Retries::default(),
            seen: RwLock::default(),
        });
        tokio::spawn(probe(Arc::downgrade(&shared)));
        Ok(Self { shared })
    }

    pub fn view(&self) -> View {
        self.shared.view.borrow().clone()
    }

    /// What the nodes told when they were last asked: they are asked once a second, whoever looks at this.
    pub fn nodes_seen(&self) -> Arc<Vec<NodeSeen>> {
        self.shared.seen.read().expect("no panic under the lock").clone()
    }

    pub fn retries(&self) -> &Retries {
        &self.shared.retries
    }

    /// Decides a command through the log, once.
    pub async fn propose<C: CommandKind>(&self, ctx: &CallContext, command: C) -> Result<(C::Output, Revision), CallError> {
        let request = match &ctx.idempotency_key {
            Some(key) => RequestId { id: key.clone(), keyed: true, ..new_request() },
            None => new_request(),
        };
        self.propose_as(ctx.principal()?, command, ctx.fencing_token, request, ctx.deadline).await
    }

    /// The same under a request id of the gateway's own, for the second step of a call.
    pub async fn propose_step<C: CommandKind>(&self, ctx: &CallContext, command: C) -> Result<(C::Output, Revision), CallError> {
        self.propose_as(ctx.principal()?, command, ctx.fencing_token, new_request(), ctx.deadline).await
    }

    /// Decides a command for a caller that no gateway has authenticated: an operator's verb, as the system.
    pub async fn propose_for<C: CommandKind>(
        &self,
        caller: &Principal,
        command: C,
        deadline: Instant,
    ) -> Result<(C::Output, Revision), CallError> {
        self.propose_as(caller, command, None, new_request(), deadline).await
    }

    /// The same under a request id that may have been sent before: it has one effect as long as answers are remembered, and is
    /// refused later.
    pub async fn propose_again<C: CommandKind>(
        &self,
        caller: &Principal,
        command: C,
        request: RequestId,
        deadline: Instant,
    ) -> Result<(C::Output, Revision), CallError> {
        self.propose_as(caller, command, None, request, deadline).await
    }

    /// Decides a command with all that is said about it: the card it is made under, its request id and whether the caller chose
    /// that (see `keyed` in `cluster.proto`).
    pub async fn propose_as<C: CommandKind>(
        &self,
        caller: &Principal,
        command: C,
        fencing_token: Option<u64>,
        request: RequestId,
        deadline: Instant,
    ) -> Result<(C::Output, Revision), CallError> {
        let command: Command = command.into();
        let command = codec::encode(&command);
        if command.len() > COMMAND_BYTES_MAX {
            let problem = format!("the arguments have {} bytes, and the limit is {COMMAND_BYTES_MAX}", command.len());
            return Err(CallError::arguments(problem, "Shorten them, or split them over several calls."));
        }
        let request = wire::ProposeRequest {
            caller: Some(on_wire(caller)),
            request_id: request.id,
            issued_at_unix_ms: request.issued_at.0,
            keyed: request.keyed,
            fencing_token,
            command: command.into(),
        };
        let decided = self.shared.decide(request, deadline).await?;
        let revision = Revision(decided.revision);
        match decided.outcome {
            Some(wire::decided::Outcome::Reply(bytes)) => Ok((decode(&bytes)?, revision)),
            Some(wire::decided::Outcome::Refusal(bytes)) => Err(CallError::Refused(decode(&bytes)?)),
            None => Err(CallError::Fault { detail: "a decision without an outcome".into() }),
        }
    }

    /// Reads the state machine, linearizable.
    pub async fn read<Q: QueryKind>(&self, ctx: &CallContext, query: Q) -> Result<(Q::Output, Served), CallError> {
        self.read_as(ctx.principal()?, query, Consistency::Linearizable, ctx.deadline).await
    }

    /// Reads the state machine as somebody.
    pub async fn read_as<Q: QueryKind>(
        &self,
        caller: &Principal,
        query: Q,
        consistency: Consistency,
        deadline: Instant,
    ) -> Result<(Q::Output, Served), CallError> {
        let query: Query = query.into();
        let consistency = match consistency {
            Consistency::Linearizable => wire::read_request::Consistency::Linearizable(wire::Linearizable {}),
            Consistency::AtLeast(revision) => wire::read_request::Consistency::AtLeast(wire::AtLeast { revision: revision.0 }),
            Consistency::Stale { max_age_ms } => wire::read_request::Consistency::Stale(wire::Stale { max_age_ms }),
        };
        let request =
            wire::ReadRequest { caller: Some(on_wire(caller)), consistency: Some(consistency), query: codec::encode(&query).into() };
        let served = self.shared.serve_read(request, deadline).await?;
        let from = Served { revision: Revision(served.revision), age_ms: served.age_ms };
        match served.outcome {
            Some(wire::served::Outcome::Answer(bytes)) => Ok((decode(&bytes)?, from)),
            Some(wire::served::Outcome::Refusal(bytes)) => Err(CallError::Refused(decode::<Refusal>(&bytes)?)),
            None => Err(CallError::Fault { detail: "an answer without an outcome".into() }),
        }
    }

    /// Reads what a call needs before it begins: who its token stands for, and what became of its session. Without a leader nothing
    /// can be written in anybody's name, and stale reads are what is left: what a single node knew a while ago still opens those.
    pub async fn read_standing<Q: QueryKind + Clone>(
        &self,
        caller: &Principal,
        query: Q,
        deadline: Instant,
    ) -> Result<(Q::Output, Served), CallError> {
        let stale = Consistency::Stale { max_age_ms: STANDING_STALE_MS_MAX };
        loop {
            let patience = if self.view().leader.is_some() { STANDING_ASKED_FOR } else { STANDING_ASKED_FOR_LEADERLESS };
            for (consistency, patience) in [(Consistency::Linearizable, patience), (stale, READ_ATTEMPT)] {
                let until = deadline.min(Instant::now() + patience);
                match self.read_as(caller, query.clone(), consistency, until).await {
                    // Nobody answers at all yet: the nodes may be about to come back.
                    Err(CallError::Unreadable { .. }) if Instant::now() < deadline => {}
                    read => return read,
                }
            }
        }
    }

    /// Brings a blob to a node, the leader if one is known: the command that names it brings it to the others.
    pub async fn put_blob(&self, hash: [u8; 32], bytes: Vec<u8>, deadline: Instant) -> Result<(), CallError> {
        let bytes = bytes::Bytes::from(bytes);
        let mut detail = String::from("no node answered");
        while Instant::now() < deadline {
            for node in self.shared.leader().into_iter().chain(self.shared.readers()) {
                let parts: Vec<_> =
                    (0..bytes.len()).step_by(BLOB_PART_BYTES).map(|at| bytes.slice(at..bytes.len().min(at + BLOB_PART_BYTES))).collect();
                let chunks = futures::stream::iter(parts.into_iter().map(|data| wire::BlobChunk { data }));
                let mut client = node.client.clone();
                let left = deadline.saturating_duration_since(Instant::now());
                match timeout(left.min(BLOB_ATTEMPT), client.put_blob(chunks)).await {
                    Ok(Ok(put)) if put.get_ref().hash[..] == hash[..] => return Ok(()),
                    Ok(Ok(_)) => detail = format!("{} took something else in", node.address),
                    Ok(Err(status)) => detail = format!("{}: {}", node.address, status.message()),
                    Err(_) => detail = format!("{} did not answer", node.address),
                }
            }
            tokio::time::sleep(BACKOFF_MIN).await;
        }
        Err(CallError::NoLeader { detail, retry_after_ms: 1_000 })
    }

    /// A part of a blob, from whichever node has it.
    pub async fn get_blob(&self, hash: [u8; 32], offset: u64, size_bytes: u64, deadline: Instant) -> Result<Vec<u8>, CallError> {
        let mut detail = String::from("no node answered");
        for node in self.shared.readers() {
            let request = wire::GetBlobRequest { hash: hash.to_vec().into(), offset, size_bytes };
            let read = async {
                let mut chunks = node.client.clone().get_blob(request).await?.into_inner();
                let mut bytes = Vec::new();
                while let Some(chunk) = chunks.message().await? {
                    bytes.extend_from_slice(&chunk.data);
                }
                Ok::<_, Status>(bytes)
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match timeout(left.min(BLOB_ATTEMPT), read).await {
                Ok(Ok(bytes)) if bytes.len() as u64 == size_bytes => return Ok(bytes),
                Ok(Ok(bytes)) => detail = format!("{} sent {} bytes of {size_bytes}", node.address, bytes.len()),
                Ok(Err(status)) => detail = format!("{}: {}", node.address, status.message()),
                Err(_) => detail = format!("{} did not answer", node.address),
            }
        }
        Err(CallError::Unreadable { detail, retry_after_ms: 1_000 })
    }

    /// Has every node that is known cosign a head of the caller's log; each answers for itself, by its address, in their order.
    pub async fn cosign(
        &self,
        caller: &Principal,
        note: &str,
        revision: Revision,
        deadline: Instant,
    ) -> Vec<(String, Result<String, String>)> {
        use wire::cosign_response::Result as Answer;
        let nodes = self.shared.nodes();
        let asked = nodes.iter().map(|node| async {
            let request = wire::CosignRequest { caller: Some(on_wire(caller)), note: note.into(), revision: revision.0 };
            let left = deadline.saturating_duration_since(Instant::now()).min(READ_ATTEMPT);
            let answer = match timeout(left, async { node.client.clone().cosign(request).await }).await {
                Err(_) => Err("it did not answer".into()),
                Ok(Err(status)) => Err(reason(&status).to_string()),
                Ok(Ok(response)) => match response.into_inner().result {
                    Some(Answer::Line(line)) => Ok(line),
                    Some(Answer::Refused(why)) => Err(why),
                    Some(Answer::Unavailable(why)) => Err(format!("{} {}", why.reason, why.detail)),
                    None => Err("an empty answer".into()),
                },
            };
            (node.address.clone(), answer)
        });
        join_all(asked).await
    }

    /// Opens a stream of the caller's change events, on some node that answers.
    pub async fn watch(&self, caller: &Principal, since: Revision) -> Option<tonic::Streaming<wire::WatchResponse>> {
        let request = wire::WatchRequest { caller: Some(on_wire(caller)), since_revision: since.0 };
        let node = self.shared.readers().into_iter().next()?;
        let opened = timeout(READ_ATTEMPT, async { node.client.clone().watch(request).await });
        Some(opened.await.ok()?.ok()?.into_inner())
    }
}

impl Node {
    fn new(address: &str, secret: &secret::Show, link: &Link) -> Result<Self, ConnectError> {
        let address = url(address);
        let channel = link.lazy(&address, |endpoint| {
            endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(Duration::from_secs(2))
                .keep_alive_timeout(Duration::from_secs(2))
                .keep_alive_while_idle(true)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
        });
        let channel = channel.map_err(|source| ConnectError::Address { address: address.clone(), source })?;
        let client = ClusterClient::with_interceptor(channel, secret.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self { address, client })
    }
}

impl Shared {
    fn nodes(&self) -> Arc<Vec<Arc<Node>>> {
        self.nodes.read().expect("no panic under the lock").clone()
    }

    /// The node at an address, which is learnt if it is new.
    fn node(&self, address: &str) -> Option<Arc<Node>> {
        let address = url(address);
        if let Some(known) = self.nodes().iter().find(|node| node.address == address) {
            return Some(known.clone());
        }
        let new = Arc::new(Node::new(&address, &self.secret, &self.link).ok()?);
        let mut nodes = self.nodes.write().expect("no panic under the lock");
        if let Some(known) = nodes.iter().find(|node| node.address == address) {
            return Some(known.clone());
        }
        let mut longer = Vec::clone(&nodes);
        longer.push(new.clone());
        *nodes = Arc::new(longer);
        Some(new)
    }

    fn leader(&self) -> Option<Arc<Node>> {
        let address = self.view.borrow().leader.as_ref().map(|(_, address)| address.clone())?;
        self.node(&address)
    }

    /// The same, with the leader behind the others that serve: for what any of them can answer by itself.
    fn followers_first(&self) -> Vec<Arc<Node>> {
        let mut readers = self.readers();
        let view = self.view.borrow();
        if let Some((_, leader)) = &view.leader
            && let Some(place) = readers.iter().position(|node| node.address == *leader)
        {
            let behind = view.serving.len().min(readers.len()).max(place + 1);
            readers[place..behind].rotate_left(1);
        }
        readers
    }

    /// All nodes, those that serve first, and each time another one in front.
    fn readers(&self) -> Vec<Arc<Node>> {
        let nodes = self.nodes();
        let view = self.view.borrow();
        let (mut serving, mut silent): (Vec<_>, Vec<_>) =
            nodes.iter().cloned().partition(|node| view.probes == 0 || view.serving.contains(&node.address));
        if !serving.is_empty() {
            let first = self.next_reader.fetch_add(1, Relaxed) % serving.len();
            serving.rotate_left(first);
        }
        serving.append(&mut silent);
        serving
    }

    /// A node said who leads. Believed until the prober knows better, so that no call waits for the next probe.
    fn hear_of_leader(&self, id: Option<u64>, address: &str) -> bool {
        let known = id.and_then(|id| self.view.borrow().ids.get(&id).cloned());
        let Some(address) = known.or_else(|| (!address.is_empty()).then(|| url(address))) else { return false };
        if self.node(&address).is_none() {
            return false;
        }
        self.view.send_if_modified(|view| match &mut view.leader {
            Some((_, leader)) if *leader == address => false,
            Some((_, leader)) => {
                *leader = address.clone();
                true
            }
            none => {
                *none = Some((0, address.clone()));
                true
            }
        });
        true
    }

    /// The leader did not answer, or said that it is none.
    fn doubt_leader(&self, address: &str) {
        self.view.send_if_modified(|view| {
            let doubted = view.leader.as_ref().is_some_and(|(_, leader)| leader == address);
            if doubted {
                view.leader = None;
            }
            doubted
        });
        self.doubt.notify_one();
    }

    /// Comes back when the nodes, asked after this began, say that another one leads. A hint is not enough: a follower that
    /// lags names a leader of the past.
    async fn other_leader(&self, address: &str) {
        let mut view = self.view.subscribe();
        let before = view.borrow().probes;
        // The sender lives as long as `self`, so this ends with another leader only.
        let _ = view.wait_for(|view| view.probes > before && view.probed_leader.as_ref().is_some_and(|leader| leader != address)).await;
        // The old leader may be about to answer what it has just decided; a moment is cheap and saves a retry.
        tokio::time::sleep(BACKOFF_MIN).await;
    }

    async fn decide(&self, request: wire::ProposeRequest, deadline: Instant) -> Result<wire::Decided, CallError> {
        let mut written = Certainty::NotWritten;
        let mut backoff = Backoff::new();
        let mut detail = String::from("no leader is known");
        let mut asked = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(written.give_up(detail));
            }
            let Some(node) = self.leader().or_else(|| self.readers().into_iter().next()) else {
                return Err(written.give_up(detail));
            };
            if asked > 0 {
                self.retries.propose.fetch_add(1, Relaxed);
            }
            asked += 1;
            let attempt = async { node.client.clone().propose(request.clone()).await };
            let outcome = tokio::select! {
                outcome = timeout(left.min(PROPOSE_ATTEMPT), attempt) => outcome.ok(),
                () = self.other_leader(&node.address) => None,
            };
            match outcome {
                None => {
                    written = Certainty::MaybeWritten;
                    detail = format!("{} did not answer", node.address);
                    self.doubt_leader(&node.address);
                }
                Some(Ok(response)) => match response.into_inner().result {
                    Some(wire::propose_response::Result::Decided(decided)) => return Ok(decided),
                    Some(wire::propose_response::Result::NotLeader(other)) => {
                        detail = format!("{} does not lead", node.address);
                        let names_another = self.hear_of_leader(other.leader_id, &other.leader_grpc);
                        let leads_elsewhere = self.leader().is_some_and(|leader| leader.address != node.address);
                        if names_another && leads_elsewhere && backoff.may_follow() {
                            continue;
                        }
                        self.doubt_leader(&node.address);
                    }
                    Some(wire::propose_response::Result::Unavailable(why)) => {
                        if why.maybe_written {
                            written = Certainty::MaybeWritten;
                        }
                        detail = format!("{}: {} {}", node.address, why.reason, why.detail);
                        // An overloaded leader still leads; the other reasons mean that another one may.
                        if why.reason != "overloaded" {
                            self.doubt_leader(&node.address);
                        }
                        backoff.at_least(Duration::from_millis(why.retry_after_ms).min(BACKOFF_MAX));
                    }
                    None => return Err(CallError::Fault { detail: "an empty answer to a proposal".into() }),
                },
                Some(Err(status)) => {
                    if let Some(fault) = permanent(&status) {
                        return Err(fault);
                    }
                    if !never_sent(&status) {
                        written = Certainty::MaybeWritten;
                    }
                    detail = format!("{}: {}", node.address, status.message());
                    self.doubt_leader(&node.address);
                }
            }
            self.pause(&mut backoff, deadline).await;
        }
    }

    /// Waits before the next attempt, and less if a leader is seen meanwhile.
    async fn pause(&self, backoff: &mut Backoff, deadline: Instant) {
        let wait = backoff.next().min(deadline.saturating_duration_since(Instant::now()));
        tokio::time::sleep(wait.min(BACKOFF_MIN)).await;
        let rest = wait.saturating_sub(BACKOFF_MIN);
        let mut view = self.view.subscribe();
        let _ = timeout(rest, view.wait_for(|view| view.leader.is_some())).await;
    }

    async fn serve_read(&self, mut request: wire::ReadRequest, deadline: Instant) -> Result<wire::Served, CallError> {
        let mut backoff = Backoff::new();
        let mut detail = String::from("no node answered");
        let mut rounds = 0;
        loop {
            if rounds > 0 {
                self.retries.read.fetch_add(1, Relaxed);
            }
            rounds += 1;
            match self.read_round(&mut request, deadline, &mut detail).await {
                Some(result) => return result,
                None if Instant::now() >= deadline => return Err(CallError::Unreadable { detail, retry_after_ms: 1_000 }),
                None => {
                    self.doubt.notify_one();
                    self.pause(&mut backoff, deadline).await;
                }
            }
        }
    }

    /// Asks the nodes one after the other, the next one as soon as one fails or is slow; the first answer counts. Once a node is
    /// too far behind for the age asked for, the others are asked for an answer of now, which no age forbids.
    async fn read_round(
        &self,
        request: &mut wire::ReadRequest,
        deadline: Instant,
        detail: &mut String,
    ) -> Option<Result<wire::Served, CallError>> {
        let alone = !matches!(request.consistency, Some(wire::read_request::Consistency::Linearizable(_)) | None);
        let mut waiting = if alone { self.followers_first() } else { self.readers() }.into_iter();
        let mut running = FuturesUnordered::new();
        loop {
            if let Some(node) = waiting.next() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                let request = request.clone();
                running.push(async move {
                    let answer = timeout(left.min(READ_ATTEMPT), async { node.client.clone().read(request).await }).await;
                    (node, answer)
                });
            }
            let patience = if waiting.len() > 0 { READ_HEDGE } else { READ_ATTEMPT * 2 };
            let Ok(finished) = timeout(patience, running.next()).await else { continue };
            let (node, answer) = finished?;
            match answer {
                Err(_) => {
                    *detail = format!("{} did not answer", node.address);
                    self.doubt.notify_one();
                }
                Ok(Err(status)) => {
                    if let Some(fault) = permanent(&status) {
                        return Some(Err(fault));
                    }
                    *detail = format!("{}: {}", node.address, status.message());
                    self.doubt.notify_one();
                }
                Ok(Ok(response)) => match response.into_inner().result {
                    Some(wire::read_response::Result::Served(served)) => return Some(Ok(served)),
                    Some(wire::read_response::Result::Unavailable(why)) => {
                        if why.reason == "too_stale" {
                            request.consistency = Some(wire::read_request::Consistency::Linearizable(wire::Linearizable {}));
                        }
                        *detail = format!("{}: {} {}", node.address, why.reason, why.detail)
                    }
                    None => return Some(Err(CallError::Fault { detail: "an empty answer to a read".into() })),
                },
            }
        }
    }
}

/// Whether anything may have been written by the attempts so far.
#[derive(Clone, Copy)]
enum Certainty {
    NotWritten,
    MaybeWritten,
}

impl Certainty {
    fn give_up(self, detail: String) -> CallError {
        match self {
            Certainty::NotWritten => CallError::NoLeader { detail, retry_after_ms: 2_000 },
            Certainty::MaybeWritten => CallError::Unknown { detail, retry_after_ms: 2_000 },
        }
    }
}

/// Waits that double, with jitter, so that the calls of a failed leader don't come back in one wave.
struct Backoff {
    next: Duration,
    followed: u32,
}

impl Backoff {
    fn new() -> Self {
        Self { next: BACKOFF_MIN, followed: 0 }
    }

    /// A few hints are followed at once; nodes that name each other in a circle are not.
    fn may_follow(&mut self) -> bool {
        self.followed += 1;
        self.followed <= 3
    }

    fn at_least(&mut self, wait: Duration) {
        self.next = self.next.max(wait);
    }

    fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (self.next * 2).min(BACKOFF_MAX);
        self.followed = 0;
        wait.mul_f64(rand::random_range(0.5..1.0))
    }
}

/// An error that another attempt would only repeat.
fn permanent(status: &Status) -> Option<CallError> {
    match status.code() {
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::DataLoss => Some(CallError::Fault { detail: format!("{:?}: {}", status.code(), status.message()) }),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => None,
    }
}

/// Whether the request surely never left: there was no connection.
fn never_sent(status: &Status) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Asks all nodes who leads, for as long as somebody holds the cluster.
async fn probe(shared: std::sync::Weak<Shared>) {
    loop {
        let pause = {
            let Some(shared) = shared.upgrade() else { return };
            shared.probe_once().await;
            if shared.view.borrow().leader.is_some() { PROBE_CALM } else { PROBE_ANXIOUS }
        };
        let Some(shared) = shared.upgrade() else { return };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.doubt.notified() => tokio::time::sleep(PROBE_ANXIOUS / 4).await,
        }
    }
}

impl Shared {
    async fn probe_once(&self) {
        let nodes = self.nodes();
        let asked = nodes.iter().map(|node| async {
            let at = Instant::now();
            let answer = timeout(PROBE_TIMEOUT, async { node.client.clone().status(wire::StatusRequest {}).await }).await;
            (node.address.clone(), answer, at.elapsed())
        });
        let answers = join_all(asked).await;
        self.remember(&answers);
        let answers = answers.into_iter().map(|(address, answer, _)| (address, answer)).collect();
        let (mut seen, members) = View::of(answers);
        for address in members {
            self.node(&address);
        }
        seen.probed_leader = seen.leader.as_ref().map(|(_, address)| address.clone());
        self.view.send_modify(|view| {
            seen.probes = view.probes + 1;
            // A deposed leader that has not heard of it yet answers with an older term.
            if let (Some((old_term, _)), Some((term, _))) = (&view.leader, &seen.leader)
                && term < old_term
            {
                seen.leader = view.leader.clone();
            }
            let moved = seen.leader.is_some()
                && view.leader.as_ref().map(|(_, address)| address) != seen.leader.as_ref().map(|(_, address)| address);
            if moved {
                self.retries.leader_changes.fetch_add(1, Relaxed);
            }
            *view = std::mem::take(&mut seen);
        });
    }
}

impl Shared {
    fn remember(&self, answers: &[(String, StatusAnswer, Duration)]) {
        let (before, at) = (self.seen.read().expect("no panic under the lock").clone(), now_unix_ms());
        let seen = answers.iter().map(|(address, answer, took)| {
            let mut round_trips = before.iter().find(|node| node.address == *address).map_or(Vec::new(), |node| node.round_trips.clone());
            let status = told(answer).map(|status| status.get_ref().clone());
            round_trips.push(RoundTrip { at, took: status.is_ok().then_some(*took) });
            let excess = round_trips.len().saturating_sub(ROUND_TRIPS_KEPT);
            round_trips.drain(..excess);
            NodeSeen { address: address.clone(), status, round_trips }
        });
        let seen = Arc::new(seen.collect());
        *self.seen.write().expect("no panic under the lock") = seen;
    }
}

/// What a node told of itself, or why it did not.
fn told(answer: &StatusAnswer) -> Result<&tonic::Response<wire::StatusResponse>, String> {
    match answer {
        Err(_) => Err("no answer".into()),
        Ok(Err(status)) if status.code() == Code::Unauthenticated => Err("cluster_secret".into()),
        Ok(Err(status)) => Err(reason(status).to_string()),
        Ok(Ok(status)) => Ok(status),
    }
}

impl View {
    /// What the answers amount to, and the addresses of members besides those that answered.
    fn of(answers: Vec<(String, StatusAnswer)>) -> (Self, Vec<String>) {
        let mut seen = View::default();
        let mut serving = Vec::new();
        // As the leader tells them, or anybody while there is none.
        let (mut members, mut leader_told) = (Vec::new(), false);
        for (address, answer) in answers {
            match told(&answer) {
                Err(problem) => seen.problems.push(format!("{address}: {problem}")),
                Ok(status) => {
                    let status = status.get_ref().clone();
                    seen.ids.insert(status.node_id, address.clone());
                    if matches!(status.role.as_str(), "leader" | "follower" | "learner") && status.not_ready.is_empty() {
                        serving.push((status.node_id, address.clone()));
                    }
                    if status.role == "leader" && seen.leader.as_ref().is_none_or(|(term, _)| *term < status.term) {
                        seen.leader = Some((status.term, address));
                        (members, leader_told) = (status.members, true);
                    } else if !leader_told {
                        members.extend(status.members);
                    }
                }
            }
        }
        // A node that was removed may not have heard of it, and would keep every read waiting.
        let is_member = |id: u64| !leader_told || members.iter().any(|member| member.id == id);
        seen.serving = serving.into_iter().filter(|(id, _)| is_member(*id)).map(|(_, address)| address).collect();
        let mut learnt = Vec::new();
        for member in members {
            if !seen.ids.contains_key(&member.id) && !member.grpc.is_empty() {
                seen.ids.insert(member.id, url(&member.grpc));
                learnt.push(member.grpc);
            }
        }
        (seen, learnt)
    }
}

fn url(address: &str) -> String {
    let address = address.trim().trim_end_matches('/');
    if address.contains("://") { address.into() } else { format!("http://{address}") }
}

fn on_wire(caller: &Principal) -> wire::Caller {
    wire::Caller {
        tenant: caller.tenant.clone(),
        passport: caller.passport.clone(),
        tier: caller.tier.word().into(),
        scopes: caller.scopes.iter().cloned().collect(),
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CallError> {
    codec::decode(bytes).map_err(|error| CallError::Fault { detail: error.to_string() })
}

/// An id of the gateway's own, for an intent that is sent for the first time.
pub fn new_request() -> RequestId {
    RequestId { id: uuid::Uuid::new_v4().simple().to_string(), issued_at: now_unix_ms(), keyed: false }
}

/// The gateway's wall clock: says when a request was first sent, and decides nothing.
pub fn now_unix_ms() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_member_is_learnt_and_a_removed_node_serves_no_reads() {
        let status = |node_id, role: &str, members: &[u64]| {
            let members = members.iter().map(|id| wire::Member { id: *id, grpc: format!("n{id}"), ..Default::default() }).collect();
            let status = wire::StatusResponse { node_id, role: role.into(), term: 2, members, ..Default::default() };
            (format!("http://n{node_id}"), Ok(Ok(tonic::Response::new(status))))
        };
        let removed = || status(3, "follower", &[1, 2, 3]);
        let (seen, learnt) = View::of(vec![removed(), status(1, "leader", &[1, 2, 4]), status(2, "follower", &[1, 2, 4])]);
        assert_eq!(seen.serving, ["http://n1", "http://n2"]);
        assert_eq!(learnt, ["n4"]);
        assert_eq!(seen.ids[&4], "http://n4");

        let (seen, learnt) = View::of(vec![removed(), status(2, "follower", &[1, 2, 4])]);
        assert_eq!(seen.serving, ["http://n3", "http://n2"], "without a leader nobody can tell");
        assert_eq!(learnt, ["n1", "n4"]);
    }
}
