//! What this node answers to the other members: the `Raft` service.
//!
//! A request is refused before its body is read when it is from another cluster, for another node, or from or for another
//! incarnation ([`crate::peers`]). The rest is translation.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest, VoteRequest,
};
use quorate_domain::codec;
use quorate_proto::raft::raft_server::{self, RaftServer};
use quorate_proto::raft::{Header, RaftRequest, RaftResponse, SnapshotChunk};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::blobs::Depot;
use crate::compare::{self, PartForm, VerdictForm};
use crate::fitness::{Fitness, Space};
use crate::form::{self, AppendReplyForm, FormError, LogIdForm, TransferForm, TransferReplyForm, VoteReplyForm, VoteRequestForm};
use crate::machine::{self, Applied};
use crate::network::MESSAGE_BYTES_MAX;
use crate::peers::{Peers, Seldom};
use crate::quarantine::{Damaged, Quarantine, Reason};
use crate::read::{Contact, Reader};
use crate::transfer::{self, Incoming, SendError};
use crate::types::{LogId, Raft, TypeConfig, Vote};

/// The service to mount beside the node's own. Clones share the node.
#[derive(Clone)]
pub struct RaftService {
    pub(crate) raft: Raft,
    pub(crate) peers: Arc<Peers>,
    pub(crate) fitness: Arc<Fitness>,
    pub(crate) applied: Arc<Applied>,
    pub(crate) quarantine: Arc<Quarantine>,
    pub(crate) reader: Reader,
    pub(crate) contact: Arc<Contact>,
    pub(crate) incoming: Arc<Incoming>,
    pub(crate) depot: Arc<Depot>,
}

impl RaftService {
    pub fn into_server(self) -> RaftServer<Self> {
        RaftServer::new(self).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn admit(&self, header: Option<&Header>) -> Result<(), Status> {
        static WARNED: Seldom = Seldom::new();
        self.peers.admit(header).map_err(|stranger| {
            if WARNED.again() {
                tracing::warn!(%stranger, from = header.map(|header| header.from_node), "refused a request");
            }
            Status::failed_precondition(stranger.to_string())
        })
    }

    fn reply(&self, body: impl Serialize) -> RaftResponse {
        self.reply_bytes(codec::encode(&body))
    }

    fn reply_bytes(&self, body: Vec<u8>) -> RaftResponse {
        RaftResponse {
            body: body.into(),
            from_incarnation: self.peers.me.incarnation.clone(),
            wall_unix_ms: self.fitness.wall_unix_ms(),
            unfit: self.fitness.unfit().into_iter().map(str::to_owned).collect(),
            feature_level_max: self.fitness.feature_level_max,
        }
    }

    /// A node whose disk is full is out of the quorum, loudly: it says so to the leader with each try, and in its log.
    fn check_room(&self) -> Result<(), Status> {
        static WARNED: Seldom = Seldom::new();
        if self.fitness.space() != Space::Full {
            return Ok(());
        }
        if WARNED.again() {
            let left_bytes = self.fitness.room().map(|room| room.disk_bytes);
            tracing::error!(
                left_bytes,
                "the disk is full: this node takes no entries until there is room, and the others go on without it"
            );
        }
        Err(Status::resource_exhausted("the disk of this node is full; it takes no entries until there is room"))
    }

    /// Decodes an append, and takes note of what it says of the cluster.
    fn append_request(&self, of: Option<&Header>, body: Bytes) -> Result<AppendEntriesRequest<TypeConfig>, Status> {
        let (header, entries) = form::decode_append(body).map_err(garbled)?;
        self.fitness.hear_leader(of.and_then(|header| header.clock_off_ms));
        // A sign of life costs nothing, and keeps this node from campaigning.
        if !entries.is_empty() {
            self.check_room()?;
        }
        if let (Some(commit), Some(age_ms)) = (header.leader_commit, header.quorum_age_ms) {
            self.contact.hear(commit.index, Duration::from_millis(age_ms));
        }
        Ok(AppendEntriesRequest {
            vote: header.vote.into(),
            prev_log_id: header.prev.map(LogId::from),
            leader_commit: header.leader_commit.map(LogId::from),
            entries,
        })
    }

    fn vote_refuses(&self, vote: Vote) -> bool {
        self.raft.metrics().borrow_watched().vote.leader_id.term > vote.leader_id.term
    }
}

fn garbled(error: FormError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("this node has stopped: {error}"))
}

fn append_reply(result: StreamAppendResult<TypeConfig>) -> AppendReplyForm {
    match result {
        Ok(matched) => AppendReplyForm::Matched(matched.map(LogIdForm::from)),
        Err(StreamAppendError::Conflict(prev)) => AppendReplyForm::Conflict(prev.into()),
        Err(StreamAppendError::HigherVote(vote)) => AppendReplyForm::HigherVote(vote.into()),
    }
}

#[tonic::async_trait]
impl raft_server::Raft for RaftService {
    type AppendStreamStream = Pin<Box<dyn Stream<Item = Result<RaftResponse, Status>> + Send>>;

    async fn append_stream(&self, request: Request<Streaming<RaftRequest>>) -> Result<Response<Self::AppendStreamStream>, Status> {
        // What ends the stream early, told after the answers to what came before it.
        let problem: Arc<Mutex<Option<Status>>> = Arc::default();
        let (service, refused) = (self.clone(), Arc::clone(&problem));
        let requests = stream::unfold(request.into_inner(), move |mut incoming| {
            let (service, refused) = (service.clone(), Arc::clone(&refused));
            async move {
                let admitted = match incoming.message().await {
                    Ok(Some(request)) => {
                        service.admit(request.header.as_ref()).and_then(|()| service.append_request(request.header.as_ref(), request.body))
                    }
                    Ok(None) => return None,
                    Err(status) => Err(status),
                };
                match admitted {
                    Ok(request) => Some((request, incoming)),
                    Err(status) => {
                        *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                        None
                    }
                }
            }
        });
        let service = self.clone();
        let answers = self.raft.stream_append(requests).map(move |result| match result {
            Ok(result) => Ok(service.reply(append_reply(result))),
            Err(fatal) => Err(stopped(fatal)),
        });
        let last = stream::once(async move { problem.lock().unwrap_or_else(PoisonError::into_inner).take() })
            .filter_map(|status| async move { status.map(Err) });
        Ok(Response::new(Box::pin(answers.chain(last))))
    }

    async fn append(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        let rpc = self.append_request(header.as_ref(), body)?;
        let mut answers = Box::pin(self.raft.stream_append(stream::once(async move { rpc })));
        match answers.next().await {
            Some(Ok(result)) => Ok(Response::new(self.reply(append_reply(result)))),
            Some(Err(fatal)) => Err(stopped(fatal)),
            None => Err(stopped("it gave no answer")),
        }
    }

    async fn vote(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        let form: VoteRequestForm = form::decode(&body).map_err(garbled)?;
        let mut rpc = VoteRequest::<TypeConfig>::new(form.vote.into(), form.last_log.map(LogId::from));
        rpc.leadership_transfer = form.leadership_transfer;
        let voted = match form.pre_vote {
            true => self.raft.pre_vote(rpc).await,
            false => self.raft.vote(rpc).await,
        };
        let reply = voted.map_err(stopped)?;
        let reply =
            VoteReplyForm { vote: reply.vote.into(), granted: reply.vote_granted, last_log: reply.last_log_id.map(LogIdForm::from) };
        Ok(Response::new(self.reply(reply)))
    }

    async fn transfer_leader(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        let form: TransferForm = form::decode(&body).map_err(garbled)?;
        let rpc = TransferLeaderRequest::new(form.from.into(), form.to, form.last_log.map(LogId::from));
        let reply = match self.raft.handle_transfer_leader(rpc).await.map_err(stopped)? {
            Ok(()) => TransferReplyForm::Accepted,
            Err(TransferLeaderError::VoteChanged { actual, .. }) => TransferReplyForm::VoteChanged { actual: actual.into() },
            Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
                TransferReplyForm::LogNotFlushed { actual: actual.map(LogIdForm::from) }
            }
        };
        Ok(Response::new(self.reply(reply)))
    }

    async fn read_index(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        self.admit(request.get_ref().header.as_ref())?;
        Ok(Response::new(self.reply(self.reader.index_as_leader().await)))
    }

    async fn compare_state(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        let part: PartForm = form::decode(&body).map_err(garbled)?;
        Ok(Response::new(self.reply(compare::digest(&self.applied, part).await)))
    }

    async fn quarantine(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        let verdict: VerdictForm = form::decode(&body).map_err(garbled)?;
        self.quarantine.enter(Reason { damaged: Damaged::State, text: verdict.text });
        Ok(Response::new(self.reply_bytes(Vec::new())))
    }

    async fn hold_blob(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        let reply = self.depot.answer_hold(&body).await.map_err(Status::internal)?;
        Ok(Response::new(self.reply(reply)))
    }

    async fn read_blob(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        let part = self.depot.answer_part(&body).await.map_err(Status::internal)?;
        Ok(Response::new(self.reply_bytes(part.into())))
    }

    type FetchStateStream = ReceiverStream<Result<SnapshotChunk, Status>>;

    async fn fetch_state(&self, request: Request<RaftRequest>) -> Result<Response<Self::FetchStateStream>, Status> {
        self.admit(request.get_ref().header.as_ref())?;
        if self.quarantine.is_entered() || self.applied.state.is_damaged() {
            return Err(Status::unavailable("this node can't trust its own state"));
        }
        let (applied, id) = (Arc::clone(&self.applied), format!("rebuild-{}", self.fitness.wall_unix_ms()));
        let built = blocking(move || applied.snapshots().build(&applied.state, &id, applied.origin().clone())).await?;
        let snapshot = Arc::new(built.map_err(|error| Status::internal(error.to_string()))?);
        let (sender, receiver) = mpsc::channel(4);
        let applied = Arc::clone(&self.applied);
        tokio::spawn(async move {
            let manifest = SnapshotChunk { data: snapshot.manifest().to_bytes().into(), ..SnapshotChunk::default() };
            let mut left = sender.send(Ok(manifest)).await.is_ok();
            let mut chunks = Box::pin(transfer::missing(snapshot, Vec::new()));
            while left && let Some(chunk) = chunks.next().await {
                let chunk = chunk.map(|(file, offset, data)| SnapshotChunk { file, offset, data, ..SnapshotChunk::default() });
                left = sender.send(chunk.map_err(|error| Status::internal(error.to_string()))).await.is_ok();
            }
            // Nobody holds it any more.
            drop(chunks);
            if let Ok(Err(error)) = crate::blocking::blocking(move || applied.snapshots().prune(0)).await {
                tracing::warn!(%error, "cannot remove a state that was fetched");
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn snapshot_offer(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        self.check_room()?;
        let incoming = Arc::clone(&self.incoming);
        let reply = blocking(move || incoming.offer(&body)).await?;
        Ok(Response::new(self.reply_bytes(reply)))
    }

    async fn snapshot_chunks(&self, request: Request<Streaming<SnapshotChunk>>) -> Result<Response<RaftResponse>, Status> {
        let mut chunks = request.into_inner();
        let mut taken = Ok(());
        while taken.is_ok()
            && let Some(chunk) = chunks.message().await?
        {
            self.admit(chunk.header.as_ref())?;
            let incoming = Arc::clone(&self.incoming);
            taken = blocking(move || incoming.write(&chunk)).await?;
        }
        Ok(Response::new(self.reply_bytes(Incoming::chunks_reply(taken))))
    }

    async fn snapshot_install(&self, request: Request<RaftRequest>) -> Result<Response<RaftResponse>, Status> {
        let RaftRequest { header, body } = request.into_inner();
        self.admit(header.as_ref())?;
        let incoming = Arc::clone(&self.incoming);
        let installed = match blocking(move || incoming.finish(&body)).await? {
            Err(error) => Err(error),
            // openraft asserts that a snapshot is not newer than the vote it comes under, so what is stale ends here.
            Ok(complete) if self.vote_refuses(complete.vote) => Ok(self.raft.metrics().borrow_watched().vote),
            Ok(complete) => match machine::received(complete.snapshot) {
                Err(error) => Err(SendError(error.to_string())),
                Ok(snapshot) => {
                    let reply = self.raft.install_full_snapshot(complete.vote, snapshot).await;
                    Ok(reply.map_err(stopped)?.vote)
                }
            },
        };
        Ok(Response::new(self.reply_bytes(Incoming::install_reply(installed))))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    crate::blocking::blocking(work).await.map_err(|error| Status::internal(error.to_string()))
}
