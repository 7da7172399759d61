//! The `Cluster` service: what gateways and operators ask of a node.
//!
//! Each method checks what came over the wire, hands it to the engine, and puts the outcome back on the wire. A request that
//! can't be read is the caller's fault (`invalid_argument`); storage that fails is this node's (`internal`), and the engine
//! stops for it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::Stream;
use quorate_domain::limit::ARTEFACT_BYTES_MAX;
use quorate_domain::machine::{Call, Clock};
use quorate_domain::record::CLUSTER;
use quorate_domain::{Command, Principal, Query, Refusal, RequestId, Revision, Tier, UnixMs, codec, event};
use quorate_proof::Signer;
use quorate_proto::cluster as wire;
use quorate_proto::cluster::cluster_server::Cluster;
use quorate_raft::{Address, BLOB_PART_BYTES, Change, Consistency, MembershipError, Outcome, ProposeError, RaftNode, ReadError, blocking};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::audit::{Act, End};
use crate::guard;
use crate::keys::NodeKeys;
use crate::search::SearchIndex;

/// A call whose caller named no deadline is answered by then.
const DEADLINE: Duration = Duration::from_secs(10);
/// Watchers of one node. Each holds a task and a small buffer.
const WATCHERS_MAX: usize = 4_096;
/// Events in one message to a watcher.
const EVENTS_PER_MESSAGE: usize = 256;
/// Messages that a slow watcher may have waiting; then its reads of the log wait, and nothing is dropped.
const WATCH_BUFFER: usize = 16;
/// A watcher that leaves all of them waiting for so long is cut off.
const WATCH_SLOW: Duration = Duration::from_secs(60);
/// An idle watcher hears so often how far the state is.
const WATCH_PROGRESS: Duration = Duration::from_secs(5);
/// A node that has heard of no leader for so long sends its idle watchers to another one: it may be cut off, or no member any more.
const WATCH_AGE_MAX: Duration = Duration::from_secs(5);
/// Queries that may read the state at once. They run on threads of their own, since RocksDB blocks.
const QUERIES_AT_ONCE: usize = 64;

/// The service. Clones share the node.
#[derive(Clone)]
pub struct ClusterService {
    raft: RaftNode,
    search: Option<SearchIndex>,
    keys: Arc<NodeKeys>,
    watchers: Arc<Semaphore>,
    queries: Arc<Semaphore>,
}

impl ClusterService {
    pub fn new(raft: RaftNode, search: Option<SearchIndex>, keys: Arc<NodeKeys>) -> Self {
        let (watchers, queries) = (Arc::new(Semaphore::new(WATCHERS_MAX)), Arc::new(Semaphore::new(QUERIES_AT_ONCE)));
        Self { raft, search, keys, watchers, queries }
    }
}

/// The authenticated caller, as the gateway resolved it. Only those that [`crate::guard`] lets in get here.
fn principal(caller: Option<wire::Caller>) -> Result<Principal, Status> {
    let caller = caller.ok_or_else(|| Status::invalid_argument("the request names no caller"))?;
    let tier = Tier::parse(&caller.tier).ok_or_else(|| Status::invalid_argument(format!("`{}` is no tier", caller.tier)))?;
    Ok(Principal { tenant: caller.tenant, passport: caller.passport, tier, scopes: caller.scopes.into_iter().collect() })
}

fn garbled(error: codec::DecodeError) -> Status {
    Status::invalid_argument(error.to_string())
}

/// When the caller stops waiting: its gRPC deadline, or the default.
pub(crate) fn deadline<T>(request: &Request<T>) -> Instant {
    let told = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(parse_timeout);
    Instant::now() + told.unwrap_or(DEADLINE).min(Duration::from_secs(60))
}

/// Reads gRPC's form of a time-out: at most eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3_600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

fn refusal_bytes(refusal: &Refusal) -> Bytes {
    codec::encode(refusal).into()
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn propose(&self, request: Request<wire::ProposeRequest>) -> Result<Response<wire::ProposeResponse>, Status> {
        let deadline = deadline(&request);
        let peer = guard::peer(request.extensions());
        let operator = guard::only_operators(request.extensions(), "a command of the system itself");
        let request = request.into_inner();
        let command: Command = codec::decode(&request.command).map_err(garbled)?;
        let caller = principal(request.caller)?;
        // Gateways speak for callers of tenants, and the system stands above those.
        if caller.tenant == CLUSTER {
            operator?;
        }
        let act = Act::of(&command).map(|act| (act, caller.clone(), request.request_id.clone()));
        let call = Call {
            caller,
            request: RequestId { id: request.request_id, issued_at: UnixMs(request.issued_at_unix_ms), keyed: request.keyed },
            under: request.fencing_token.map(Revision),
            command,
        };
        let proposed = self.raft.propose(call, deadline).await;
        if let Some((act, by, request_id)) = act {
            let end = match &proposed {
                Ok(decided) => match &decided.outcome {
                    Ok(_) => End::Done { revision: decided.revision.0, replayed: decided.replayed },
                    Err(refusal) => End::Refused { code: refusal.code() },
                },
                Err(ProposeError::NotLeader { .. }) => End::Undecided { why: "not_leader" },
                Err(ProposeError::Unavailable(_)) => End::Undecided { why: "unavailable" },
            };
            act.record(Some(&by), &peer, &request_id, &end);
        }
        let result = match proposed {
            Ok(decided) => {
                use wire::decided::Outcome;
                let outcome = match decided.outcome {
                    Ok(reply) => Outcome::Reply(reply.into()),
                    Err(refusal) => Outcome::Refusal(refusal_bytes(&refusal)),
                };
                let decided = wire::Decided { revision: decided.revision.0, replayed: decided.replayed, outcome: Some(outcome) };
                wire::propose_response::Result::Decided(decided)
            }
            Err(ProposeError::NotLeader { leader_id, leader_grpc }) => {
                wire::propose_response::Result::NotLeader(wire::NotLeader { leader_id: Some(leader_id), leader_grpc })
            }
            Err(ProposeError::Unavailable(unavailable)) => wire::propose_response::Result::Unavailable(unavailable.into()),
        };
        Ok(Response::new(wire::ProposeResponse { result: Some(result) }))
    }

    async fn read(&self, request: Request<wire::ReadRequest>) -> Result<Response<wire::ReadResponse>, Status> {
        use wire::read_request::Consistency as Asked;
        let deadline = deadline(&request);
        let request = request.into_inner();
        let caller = principal(request.caller)?;
        let query: Query = codec::decode(&request.query).map_err(garbled)?;
        let consistency = match request.consistency {
            None | Some(Asked::Linearizable(_)) => Consistency::Linearizable,
            Some(Asked::AtLeast(at_least)) => Consistency::AtLeast(Revision(at_least.revision)),
            Some(Asked::Stale(stale)) => Consistency::Stale { age_max: Duration::from_millis(stale.max_age_ms) },
        };
        let permit = self.permit(&self.queries, deadline).await?;
        let at = match self.raft.read(consistency, deadline).await {
            Ok(at) => at,
            Err(ReadError::Unavailable(unavailable)) => {
                let result = wire::read_response::Result::Unavailable(unavailable.into());
                return Ok(Response::new(wire::ReadResponse { result: Some(result) }));
            }
            Err(ReadError::Storage(error)) => return Err(fault(&error)),
        };
        let query = match self.with_hits(query, &caller, &at, deadline).await? {
            Ok(query) => query,
            Err(unavailable) => {
                return Ok(Response::new(wire::ReadResponse { result: Some(wire::read_response::Result::Unavailable(unavailable)) }));
            }
        };
        let keys = Arc::clone(&self.keys);
        let served = blocking(move || {
            let _permit = permit;
            serve(&keys, query, caller, at)
        });
        let served = served.await.map_err(|error| Status::internal(format!("the query did not end: {error}")))?;
        let result = wire::read_response::Result::Served(served.map_err(|error| fault(&error))?.map_err(|key| no_key(&key))?);
        Ok(Response::new(wire::ReadResponse { result: Some(result) }))
    }

    async fn cosign(&self, request: Request<wire::CosignRequest>) -> Result<Response<wire::CosignResponse>, Status> {
        use wire::cosign_response::Result as Answer;
        let deadline = deadline(&request);
        let request = request.into_inner();
        let caller = principal(request.caller)?;
        let permit = self.permit(&self.queries, deadline).await?;
        let at = match self.raft.read(Consistency::AtLeast(Revision(request.revision)), deadline).await {
            Ok(at) => at,
            Err(ReadError::Unavailable(unavailable)) => {
                return Ok(Response::new(wire::CosignResponse { result: Some(Answer::Unavailable(unavailable.into())) }));
            }
            Err(ReadError::Storage(error)) => return Err(fault(&error)),
        };
        let keys = Arc::clone(&self.keys);
        let cosigned = blocking(move || {
            let _permit = permit;
            let Some(witness) = keys.witness() else { return Ok(Ok(Err("this node has no key of its own".into()))) };
            match keys.signing(&at.view)? {
                Ok(signer) => Ok(Ok(witness.cosign(&signer, &request.note, &at.view, &at.stamp(caller))?)),
                Err(key) => Ok(Err(key)),
            }
        });
        let cosigned = cosigned.await.map_err(|error| Status::internal(format!("the cosigning did not end: {error}")))?;
        let result = match cosigned.map_err(|error: quorate_domain::StorageError| fault(&error))?.map_err(|key: String| no_key(&key))? {
            Ok(line) => Answer::Line(line),
            Err(why) => Answer::Refused(why),
        };
        Ok(Response::new(wire::CosignResponse { result: Some(result) }))
    }

    async fn put_blob(&self, request: Request<Streaming<wire::BlobChunk>>) -> Result<Response<wire::PutBlobResponse>, Status> {
        let mut chunks = request.into_inner();
        let store = self.raft.blobs().clone();
        let mut incoming = storage(blocking(move || store.begin()).await)?;
        while let Some(chunk) = chunks.message().await? {
            if incoming.size_bytes() + chunk.data.len() as u64 > ARTEFACT_BYTES_MAX {
                return Err(Status::invalid_argument(format!("a blob has at most {ARTEFACT_BYTES_MAX} bytes")));
            }
            incoming = storage(blocking(move || incoming.write(&chunk.data).map(|()| incoming)).await)?;
        }
        let size_bytes = incoming.size_bytes();
        let hash = storage(blocking(move || incoming.finish(None)).await)?;
        let hash = hash.ok_or_else(|| Status::internal("a blob without a hash"))?;
        Ok(Response::new(wire::PutBlobResponse { hash: hash.to_vec().into(), size_bytes }))
    }

    type GetBlobStream = Pin<Box<dyn Stream<Item = Result<wire::BlobChunk, Status>> + Send>>;

    async fn get_blob(&self, request: Request<wire::GetBlobRequest>) -> Result<Response<Self::GetBlobStream>, Status> {
        let wire::GetBlobRequest { hash, offset, size_bytes } = request.into_inner();
        let hash: [u8; 32] = hash[..].try_into().map_err(|_| Status::invalid_argument("a hash has 32 bytes"))?;
        let is_here = self.raft.hold_blob(hash).await.map_err(|error| {
            tracing::error!(%error, "cannot look for a blob");
            Status::internal("this node's storage failed")
        })?;
        if !is_here {
            return Err(Status::not_found("no node that answers has the blob"));
        }
        let store = self.raft.blobs().clone();
        let chunks = futures::stream::try_unfold((store, offset, size_bytes), move |(store, at, left)| async move {
            if left == 0 {
                return Ok(None);
            }
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(BLOB_PART_BYTES);
            let (data, store) = storage(blocking(move || store.read(&hash, at, part).map(|data| (data, store))).await)?;
            let read = data.len() as u64;
            Ok((read > 0).then(|| (wire::BlobChunk { data: data.into() }, (store, at + read, left.saturating_sub(read)))))
        });
        Ok(Response::new(Box::pin(chunks)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<wire::WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let caller = principal(request.caller)?;
        let permit = Arc::clone(&self.watchers)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted(format!("this node serves {WATCHERS_MAX} watchers already; try another")))?;
        let (sender, receiver) = mpsc::channel(WATCH_BUFFER);
        tokio::spawn(feed(self.raft.clone(), caller.tenant, Revision(request.since_revision), sender, permit));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn status(&self, _: Request<wire::StatusRequest>) -> Result<Response<wire::StatusResponse>, Status> {
        Ok(Response::new(self.raft.status()))
    }

    async fn init(&self, request: Request<wire::InitRequest>) -> Result<Response<wire::InitResponse>, Status> {
        guard::only_operators(request.extensions(), "forming a cluster")?;
        let peer = guard::peer(request.extensions());
        let members: BTreeMap<u64, Address> =
            request.into_inner().members.into_iter().map(|member| (member.id, Address { grpc: member.grpc, http: member.http })).collect();
        let act = Act { name: "init", subject: format!("nodes {:?}", members.keys().collect::<Vec<_>>()) };
        let done = self.raft.init(members).await;
        act.record(None, &peer, "", &ended(done.is_ok()));
        Ok(Response::new(wire::InitResponse { error: done.err().map(|error| error.to_string()).unwrap_or_default() }))
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        guard::only_operators(request.extensions(), "handing leadership on")?;
        let peer = guard::peer(request.extensions());
        let to = request.into_inner().to;
        let done = self.raft.transfer_leader(to).await;
        Act { name: "transfer_leader", subject: format!("to node {to}") }.record(None, &peer, "", &ended(done.is_ok()));
        Ok(Response::new(wire::TransferLeaderResponse { error: done.err().map(|error| error.to_string()).unwrap_or_default() }))
    }

    async fn change_membership(
        &self,
        request: Request<wire::ChangeMembershipRequest>,
    ) -> Result<Response<wire::ChangeMembershipResponse>, Status> {
        use wire::change_membership_response::Result as Answer;
        guard::only_operators(request.extensions(), "a change of the members")?;
        let peer = guard::peer(request.extensions());
        let deadline = deadline(&request);
        let request = request.into_inner();
        let change = change(request.change)?;
        let act = membership_act(&change);
        let made = match request.dry_run {
            true => self.raft.check_membership_change(&change).await,
            false => self.raft.change_membership(change, deadline).await,
        };
        if !request.dry_run {
            let refused;
            let end = match &made {
                Ok(_) => End::Done { revision: 0, replayed: false },
                Err(MembershipError::Undecided(ProposeError::NotLeader { .. })) => End::Undecided { why: "not_leader" },
                Err(MembershipError::Undecided(ProposeError::Unavailable(_))) => End::Undecided { why: "unavailable" },
                Err(error) => {
                    refused = membership_refused(error).reason;
                    End::Refused { code: &refused }
                }
            };
            act.record(None, &peer, "", &end);
        }
        let result = match made {
            Ok(outcome) => Answer::Done(wire::MembershipChanged { changed: outcome == Outcome::Changed }),
            Err(MembershipError::Undecided(ProposeError::NotLeader { leader_id, leader_grpc })) => {
                Answer::NotLeader(wire::NotLeader { leader_id: Some(leader_id), leader_grpc })
            }
            Err(MembershipError::Undecided(ProposeError::Unavailable(unavailable))) => Answer::Unavailable(unavailable.into()),
            Err(refused) => Answer::Refused(membership_refused(&refused)),
        };
        Ok(Response::new(wire::ChangeMembershipResponse { result: Some(result) }))
    }
}

fn change(change: Option<wire::change_membership_request::Change>) -> Result<Change, Status> {
    use wire::change_membership_request::Change as Asked;
    match change.ok_or_else(|| Status::invalid_argument("the request names no change"))? {
        Asked::AddLearner(member) if member.id == 0 || member.grpc.is_empty() => {
            Err(Status::invalid_argument("a new member needs an id and a gRPC address"))
        }
        Asked::AddLearner(member) => Ok(Change::AddLearner { id: member.id, address: Address { grpc: member.grpc, http: member.http } }),
        Asked::Promote(promotion) => Ok(Change::Promote { id: promotion.id, instead_of: promotion.instead_of }),
        Asked::Remove(removal) => Ok(Change::Remove { id: removal.id, force: removal.force }),
    }
}

fn membership_act(change: &Change) -> Act {
    let (name, subject) = match change {
        Change::AddLearner { id, address } => ("member_join", format!("node {id} at {}", address.grpc)),
        Change::Promote { id, instead_of: None } => ("member_promote", format!("node {id}")),
        Change::Promote { id, instead_of: Some(old) } => ("member_promote", format!("node {id} instead of {old}")),
        Change::Remove { id, force } => ("member_remove", format!("node {id} force={force}")),
    };
    Act { name, subject }
}

/// How an act ended that no entry of the log decides.
fn ended(well: bool) -> End<'static> {
    if well { End::Done { revision: 0, replayed: false } } else { End::Refused { code: "failed" } }
}

fn membership_refused(error: &MembershipError) -> wire::MembershipRefused {
    let (reason, lag) = match error {
        // The last two never get here: the one is waited out by the engine, the other is answered as such.
        MembershipError::Busy | MembershipError::Leads(_) | MembershipError::Undecided(_) => ("busy", None),
        MembershipError::UsedBefore(_) => ("used_before", None),
        MembershipError::NoMember(_) => ("no_member", None),
        MembershipError::Behind { lag, .. } => ("behind", Some(*lag)),
        MembershipError::Silent(_) => ("silent", None),
        MembershipError::LastVoter(_) => ("last_voter", None),
        MembershipError::NoQuorumLeft { .. } => ("no_quorum_left", None),
    };
    wire::MembershipRefused { reason: reason.into(), detail: error.to_string(), lag }
}

impl ClusterService {
    /// What asks by words, with what this node's index names for it; any other query as it is.
    async fn with_hits(
        &self,
        query: Query,
        caller: &Principal,
        at: &quorate_raft::ReadAt,
        deadline: Instant,
    ) -> Result<Result<Query, wire::Unavailable>, Status> {
        let mut search = match (query, &self.search) {
            (Query::Search(search), _) => search,
            (Query::QueryFacts(mut facts), Some(index)) => {
                if let Some(asked) = facts.asked() {
                    facts.hits = index.facts(caller.clone(), asked).await;
                }
                return Ok(Ok(facts.into()));
            }
            (query, _) => return Ok(Ok(query)),
        };
        // One that is refused needs no hits to be.
        let Ok(asked) = search.asked(caller) else { return Ok(Ok(search.into())) };
        let Some(index) = &self.search else { return Err(Status::unimplemented("this node has no search index")) };
        // What the state holds, and not what the log does: entries that only move Raft change nothing that can be found.
        let revision = Clock::read(&at.view).map_err(|error| fault(&error))?.revision;
        Ok(index.search(caller.clone(), asked, revision, deadline).await.map(|hits| {
            search.hits = hits;
            search.into()
        }))
    }

    async fn permit(&self, of: &Arc<Semaphore>, deadline: Instant) -> Result<OwnedSemaphorePermit, Status> {
        let permit = tokio::time::timeout_at(deadline.into(), Arc::clone(of).acquire_owned()).await;
        match permit {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Status::resource_exhausted("this node serves as many queries as it can; try another or later")),
        }
    }
}

/// The caller learns that this node failed; the reason is for the node's log.
pub(crate) fn fault(error: &quorate_domain::StorageError) -> Status {
    tracing::error!(error = error as &dyn std::error::Error, "storage failed while serving");
    Status::internal("this node's storage failed")
}

/// What a blocking thread did on the disk.
fn storage<T>(done: std::io::Result<Result<T, quorate_domain::StorageError>>) -> Result<T, Status> {
    done.map_err(|error| Status::internal(error.to_string()))?.map_err(|error| fault(&error))
}

/// The cluster signs with a key that this node does not hold: another node may serve it.
pub(crate) fn no_key(public_key: &str) -> Status {
    tracing::error!(public_key, "this node lacks the receipt key that signs: add it to its `receipt_keys_file`");
    Status::unavailable("this node lacks the receipt key that signs")
}

/// The answer to a query, signed where it has to be; the inner error is the public key that this node would need for that.
fn serve(
    keys: &NodeKeys,
    query: Query,
    caller: Principal,
    at: quorate_raft::ReadAt,
) -> Result<Result<wire::Served, String>, quorate_domain::StorageError> {
    use wire::served::Outcome;
    let stamp = at.stamp(caller);
    let (sign, revision) = (Signer::of(&query), at.revision.0);
    let outcome = match (query.run(&at.view, &stamp)?, sign) {
        (Ok(answer), None) => Outcome::Answer(answer.into()),
        (Ok(answer), Some(sign)) => match keys.signing(&at.view)? {
            Ok(signer) => {
                let signed = sign(&signer, &answer).map_err(|error| quorate_domain::StorageError::new("an answer to be signed", error))?;
                Outcome::Answer(signed.into())
            }
            Err(key) => return Ok(Err(key)),
        },
        (Err(refusal), _) => Outcome::Refusal(refusal_bytes(&refusal)),
    };
    let age_ms = at.age.map_or(0, |age| age.as_millis() as u64);
    Ok(Ok(wire::Served { revision, age_ms, outcome: Some(outcome) }))
}

/// Sends a tenant's events to one watcher, in order and without a gap, until it goes away.
async fn feed(
    raft: RaftNode,
    tenant: String,
    mut since: Revision,
    to: mpsc::Sender<Result<wire::WatchResponse, Status>>,
    _permit: OwnedSemaphorePermit,
) {
    use wire::watch_response::Result as Sent;
    let mut applied = raft.applied();
    let mut is_first = true;
    let mut told = Instant::now();
    loop {
        if raft.is_in_quarantine() {
            return;
        }
        let through = Revision(*applied.borrow_and_update());
        let (state, of) = (Arc::clone(raft.state()), tenant.clone());
        let found = blocking(move || event::watch(&*state, &of, since, EVENTS_PER_MESSAGE)).await;
        let message = match found {
            Ok(Ok(event::Watched::Compacted { through })) => Sent::CompactedThrough(through.0),
            Ok(Ok(event::Watched::Events(events))) if !events.is_empty() => {
                since = events.last().map_or(since, |event| event.revision);
                Sent::Events(wire::Events { events: events.into_iter().map(on_wire).collect() })
            }
            // So that a watcher knows at once that its place is still there.
            Ok(Ok(event::Watched::Events(_))) if is_first => Sent::ProgressRevision(through.0.max(since.0)),
            Ok(Ok(event::Watched::Events(_))) => {
                // Counted from the last message: in a busy cluster something is applied all the time.
                let more = tokio::time::timeout_at((told + WATCH_PROGRESS).into(), applied.changed()).await;
                match more {
                    Ok(Ok(())) if !to.is_closed() => continue,
                    Err(_) if raft.age().is_none_or(|age| age > WATCH_AGE_MAX) => {
                        let why = "this node does not hear of a leader, so what it has may be old: watch at another one";
                        // A watcher that is gone needs no word.
                        let _ = to.try_send(Err(Status::unavailable(why)));
                        return;
                    }
                    Err(_) => Sent::ProgressRevision(through.0),
                    _ => return,
                }
            }
            Ok(Err(error)) => {
                let _ = to.send(Err(fault(&error))).await;
                return;
            }
            Err(_) => return,
        };
        (is_first, told) = (false, Instant::now());
        let last = matches!(message, Sent::CompactedThrough(_));
        let sent = tokio::time::timeout(WATCH_SLOW, to.send(Ok(wire::WatchResponse { result: Some(message) }))).await;
        // One that takes nothing would hold its place for good. What it has not got yet it gets when it watches again from the
        // last revision it has.
        if !matches!(sent, Ok(Ok(()))) || last {
            return;
        }
    }
}

fn on_wire(event: event::Event) -> wire::Event {
    let body = codec::encode(&event.about).into();
    wire::Event { revision: event.revision.0, kind: event.kind, id: event.id, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_timeout_is_read_in_every_unit_and_nonsense_is_not() {
        assert_eq!(parse_timeout("2S"), Some(Duration::from_secs(2)));
        assert_eq!(parse_timeout("1500m"), Some(Duration::from_millis(1_500)));
        assert_eq!(parse_timeout("3M"), Some(Duration::from_secs(180)));
        for nonsense in ["", "S", "12", "1x", "-1S", "123456789S", "é"] {
            assert_eq!(parse_timeout(nonsense), None, "{nonsense}");
        }
    }
}
