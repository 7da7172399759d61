//! The way of a snapshot from one node to another.
//!
//! The sender offers its manifest; the receiver says what it already has of it, also from an attempt that broke off or from
//! before a restart; the sender streams the rest in chunks; then the receiver checks every file and hands the whole to
//! openraft, which installs it under the leader's vote. A step that makes no progress for `snapshot_stall_ms` ends the attempt,
//! and the next one goes on where it was.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::errors::{StreamingError, Unreachable};
use openraft::raft::SnapshotResponse;
use quorate_domain::{StorageError, codec};
use quorate_proto::raft::{RaftResponse, SnapshotChunk};
use quorate_storage::{Manifest, Receiver, Snapshot, Snapshots, TransferError};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tonic::{Response, Status};

use crate::blocking::blocking;
use crate::form::{AppliedForm, VoteForm, decode};
use crate::machine::Outgoing;
use crate::network::{Client, Links};
use crate::types::{Address, TypeConfig, Vote};

/// Below a MiB with its envelope.
const CHUNK_BYTES_MAX: usize = 512 << 10;

/// Which cluster a snapshot is from; stands in its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub cluster_id: String,
    pub lineage: u64,
}

#[derive(Serialize, Deserialize)]
struct OfferForm {
    vote: VoteForm,
    /// As [`Manifest::to_bytes`] makes it.
    manifest: String,
}

#[derive(Serialize, Deserialize)]
enum OfferReplyForm {
    /// Bytes that are there of each file.
    Have(Vec<(String, u64)>),
    Refused(String),
}

#[derive(Serialize, Deserialize)]
struct InstallForm {
    vote: VoteForm,
    id: String,
}

#[derive(Serialize, Deserialize)]
enum InstallReplyForm {
    /// The receiver's vote: the sender's, or a higher one that refused it.
    Done(VoteForm),
    Refused(String),
}

#[derive(Serialize, Deserialize)]
enum ChunksReplyForm {
    Taken,
    Refused(String),
}

/// Why an attempt ended; the next one goes on from there.
#[derive(Debug)]
pub struct SendError(pub String);

impl From<SendError> for StreamingError<TypeConfig> {
    fn from(error: SendError) -> Self {
        StreamingError::Unreachable(Unreachable::from_string(error.0))
    }
}

impl From<TransferError> for SendError {
    fn from(error: TransferError) -> Self {
        Self(error.to_string())
    }
}

impl From<Status> for SendError {
    fn from(status: Status) -> Self {
        Self(format!("{}: {}", status.code(), status.message()))
    }
}

// ------------------------------------------------------------------ sending

/// Sends what the target lacks of a snapshot and has it installed.
pub async fn send(
    links: &Arc<Links>,
    client: Client,
    (target, address): (u64, &Address),
    vote: Vote,
    outgoing: &Outgoing,
) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
    // Any answer will do: nothing is built, and no log held, for a receiver that is not there.
    links.read_index(target, address, links.open_max).await.map_err(SendError)?;
    let snapshot = outgoing.files().await.map_err(SendError::from)?;
    let sender = Sender { links: Arc::clone(links), client, target, vote, snapshot };
    tracing::info!(target, id = %sender.snapshot.manifest().id, bytes = sender.snapshot.manifest().size_bytes(), "sending a snapshot");
    let have = sender.offer().await?;
    outgoing.keep().await;
    sender.chunks(have).await?;
    outgoing.keep().await;
    Ok(sender.install().await?)
}

struct Sender {
    links: Arc<Links>,
    client: Client,
    target: u64,
    vote: Vote,
    snapshot: Arc<Snapshot>,
}

impl Sender {
    async fn offer(&self) -> Result<Vec<(String, u64)>, SendError> {
        let manifest = String::from_utf8(self.snapshot.manifest().to_bytes()).map_err(|error| SendError(error.to_string()))?;
        let form = OfferForm { vote: self.vote.into(), manifest };
        let request = self.links.request(self.target, codec::encode(&form).into());
        let mut client = self.client.clone();
        let response = self.within(self.links.snapshot_stall, client.snapshot_offer(request)).await?;
        match self.answer(&response)? {
            OfferReplyForm::Have(have) => Ok(have),
            OfferReplyForm::Refused(problem) => Err(SendError(problem)),
        }
    }

    /// Watched for progress instead of bound to a deadline: nobody knows how long a large state takes.
    async fn chunks(&self, have: Vec<(String, u64)>) -> Result<(), SendError> {
        let passed = Arc::new(AtomicU64::new(0));
        let chunks = missing(Arc::clone(&self.snapshot), have);
        let requests = {
            let (links, target, id, passed) =
                (Arc::clone(&self.links), self.target, self.snapshot.manifest().id.clone(), Arc::clone(&passed));
            // A file that can't be read ends the stream early; the receiver then misses bytes and says so.
            let whole = |chunk: io::Result<Chunk>| {
                std::future::ready(chunk.inspect_err(|error| tracing::warn!(%error, "cannot read a snapshot to send")).ok())
            };
            chunks.scan((), move |(), chunk| whole(chunk)).map(move |(file, offset, data)| {
                passed.fetch_add(1, Ordering::Relaxed);
                SnapshotChunk { header: Some(links.peers.header(target)), snapshot_id: id.clone(), file, offset, data }
            })
        };
        let mut client = self.client.clone();
        let mut call = Box::pin(client.snapshot_chunks(requests));
        let mut seen = u64::MAX;
        let response = loop {
            match timeout(self.links.snapshot_stall, &mut call).await {
                Ok(response) => break response?,
                Err(_) => {
                    let now = passed.load(Ordering::Relaxed);
                    if now == seen {
                        return Err(SendError(format!("node {} takes no more of the snapshot", self.target)));
                    }
                    seen = now;
                }
            }
        };
        match self.answer(&response)? {
            ChunksReplyForm::Taken => Ok(()),
            ChunksReplyForm::Refused(problem) => Err(SendError(problem)),
        }
    }

    async fn install(&self) -> Result<SnapshotResponse<TypeConfig>, SendError> {
        let form = InstallForm { vote: self.vote.into(), id: self.snapshot.manifest().id.clone() };
        let request = self.links.request(self.target, codec::encode(&form).into());
        let mut client = self.client.clone();
        // The receiver reads every byte twice more, at 20 MB/s on the slowest disk that is worth having.
        let reading = Duration::from_secs(self.snapshot.manifest().size_bytes() / 20_000_000);
        let response = self.within(self.links.snapshot_stall + 2 * reading, client.snapshot_install(request)).await?;
        match self.answer(&response)? {
            InstallReplyForm::Done(vote) => Ok(SnapshotResponse::new(vote.into())),
            InstallReplyForm::Refused(problem) => Err(SendError(problem)),
        }
    }

    async fn within(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<Response<RaftResponse>, Status>>,
    ) -> Result<Response<RaftResponse>, SendError> {
        match timeout(limit, call).await {
            Ok(response) => Ok(response?),
            Err(_) => Err(SendError(format!("node {} did not answer within {} s", self.target, limit.as_secs()))),
        }
    }

    fn answer<T: serde::de::DeserializeOwned>(&self, response: &Response<RaftResponse>) -> Result<T, SendError> {
        self.links.answer(self.target, response.get_ref()).map_err(|error| SendError(error.to_string()))
    }
}

type Chunk = (String, u64, Bytes);

/// The chunks that are not yet there, file after file.
fn missing(snapshot: Arc<Snapshot>, have: Vec<(String, u64)>) -> impl Stream<Item = io::Result<Chunk>> + Send + 'static {
    let begin_at = move |name: &str| have.iter().find(|(file, _)| file == name).map_or(0, |(_, bytes)| *bytes);
    let mut files: Vec<(String, u64, u64)> = snapshot
        .manifest()
        .files
        .iter()
        .map(|file| (file.name.clone(), begin_at(&file.name), file.size_bytes))
        .filter(|(_, at, size)| at < size)
        .collect();
    files.reverse();
    futures::stream::unfold(files, move |mut files| {
        let snapshot = Arc::clone(&snapshot);
        async move {
            let (name, at, size) = files.pop()?;
            let read = {
                let name = name.clone();
                blocking(move || snapshot.read_chunk(&name, at, CHUNK_BYTES_MAX)).await
            };
            let data = match read {
                Ok(Ok(data)) if !data.is_empty() => data,
                Ok(Ok(_)) => return Some((Err(io::Error::other(format!("`{name}` ends at byte {at} of {size}"))), files)),
                Ok(Err(error)) => return Some((Err(io::Error::other(error)), files)),
                Err(error) => return Some((Err(error), files)),
            };
            let next = at + data.len() as u64;
            if next < size {
                files.push((name.clone(), next, size));
            }
            Some((Ok((name, at, data)), files))
        }
    })
}

// ------------------------------------------------------------------ receiving

/// The receiving side: one snapshot at a time, the last one offered.
pub struct Incoming {
    snapshots: Snapshots,
    origin: Origin,
    current: Mutex<Option<Arc<Receiver>>>,
}

/// A snapshot that is here whole, and the vote it came under.
pub struct Complete {
    pub vote: Vote,
    pub snapshot: Snapshot,
}

impl Incoming {
    pub fn new(snapshots: Snapshots, origin: Origin) -> Self {
        Self { snapshots, origin, current: Mutex::default() }
    }

    /// Says what is here already of the snapshot that is offered. For a blocking thread, like all of these.
    pub fn offer(&self, body: &[u8]) -> Vec<u8> {
        let reply = self.begin(body).map_or_else(|error| OfferReplyForm::Refused(error.0), OfferReplyForm::Have);
        codec::encode(&reply)
    }

    fn begin(&self, body: &[u8]) -> Result<Vec<(String, u64)>, SendError> {
        let form: OfferForm = decode(body).map_err(|error| SendError(error.to_string()))?;
        let manifest = Manifest::from_bytes(form.manifest.as_bytes())?;
        let origin: Origin = decode(&manifest.meta).map_err(|error| SendError(error.to_string()))?;
        if origin != self.origin {
            return Err(SendError(format!("the snapshot is of {origin:?}, this node of {:?}", self.origin)));
        }
        let receiver = self.snapshots.start_or_resume(manifest)?;
        let have = receiver.have().map_err(TransferError::from)?;
        *self.current() = Some(Arc::new(receiver));
        Ok(have)
    }

    pub fn write(&self, chunk: &SnapshotChunk) -> Result<(), SendError> {
        let receiver = self.receiving(&chunk.snapshot_id)?;
        Ok(receiver.write_chunk(&chunk.file, chunk.offset, &chunk.data)?)
    }

    pub fn chunks_reply(taken: Result<(), SendError>) -> Vec<u8> {
        codec::encode(&taken.map_or_else(|error| ChunksReplyForm::Refused(error.0), |()| ChunksReplyForm::Taken))
    }

    /// Checks every file. What comes out is to be handed to openraft.
    pub fn finish(&self, body: &[u8]) -> Result<Complete, SendError> {
        let form: InstallForm = decode(body).map_err(|error| SendError(error.to_string()))?;
        let receiver = self.receiving(&form.id)?;
        let snapshot = receiver.finish()?;
        *self.current() = None;
        Ok(Complete { vote: form.vote.into(), snapshot })
    }

    pub fn install_reply(installed: Result<Vote, SendError>) -> Vec<u8> {
        codec::encode(&installed.map_or_else(|error| InstallReplyForm::Refused(error.0), |vote| InstallReplyForm::Done(vote.into())))
    }

    /// Removes what is here of snapshots whose sender was not yet at `index`; one that was offered later goes on.
    pub fn remove_older(&self, index: u64) -> Result<(), StorageError> {
        let mut current = self.current();
        let is_newer = |receiver: &Arc<Receiver>| {
            AppliedForm::decode(Some(&receiver.manifest().applied)).is_ok_and(|applied| applied.index() >= index)
        };
        if current.as_ref().is_some_and(is_newer) {
            return Ok(());
        }
        *current = None;
        self.snapshots.remove_incoming()
    }

    fn receiving(&self, id: &str) -> Result<Arc<Receiver>, SendError> {
        let current = self.current().clone();
        current
            .filter(|receiver| receiver.manifest().id == id)
            .ok_or_else(|| SendError(format!("snapshot `{id}` was not offered, or another one since")))
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<Receiver>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
