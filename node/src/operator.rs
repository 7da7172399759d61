//! The `Operator` service: what an operator's verb asks of a node and no gateway does.
//!
//! All of it only reads, at its own pace: one backup or scrub runs on a node at a time.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::Stream;
use quorate_domain::Revision;
use quorate_proto::cluster as wire;
use quorate_proto::cluster::operator_server::Operator;
use quorate_raft::backup::FileEntry;
use quorate_raft::{Consistency, RaftNode, ReadError, blocking};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::audit::{Act, End};
use crate::backup::{self, Source};
use crate::export::{Export, NotExported};
use crate::guard;
use crate::keys::NodeKeys;
use crate::run::chain;
use crate::search::SearchIndex;
use crate::service::{deadline, fault, no_key};
use quorate_proof::{ErasureClaim, Signer};

const BUSY: &str = "a backup, an export or a scrub runs on this node already; ask another, or later";
/// Parts of a backup that a slow reader may have waiting.
const BACKUP_BUFFER: usize = 4;
/// How long the state of one entry is waited for before a scrub gives it up.
const PINNED_WITHIN: Duration = Duration::from_secs(60);

/// Before a caller's deadline, so that it gets an answer.
const ANSWER_MARGIN: Duration = Duration::from_millis(500);

/// The service. Clones share the node.
#[derive(Clone)]
pub struct OperatorService {
    raft: RaftNode,
    search: Option<SearchIndex>,
    keys: Arc<NodeKeys>,
    /// What reads the whole state runs alone.
    scans: Arc<Semaphore>,
}

impl OperatorService {
    pub fn new(raft: RaftNode, search: Option<SearchIndex>, keys: Arc<NodeKeys>) -> Self {
        Self { raft, search, keys, scans: Arc::new(Semaphore::new(1)) }
    }

    /// The receipt key that signs as of now.
    async fn signer(&self) -> Result<Arc<Signer>, Status> {
        let (keys, state) = (Arc::clone(&self.keys), Arc::clone(self.raft.state()));
        let found = blocking(move || keys.signing(&*state)).await.map_err(|error| Status::internal(error.to_string()))?;
        found.map_err(|error| fault(&error))?.map_err(|key| no_key(&key))
    }

    async fn look(&self) -> Result<wire::ExamineResponse, Status> {
        let blobs = self.raft.examine_blobs(false).await.map_err(|error| fault(&error))?;
        let status = self.raft.status();
        Ok(wire::ExamineResponse {
            disk_free_bytes: status.disk_free_bytes,
            disk_total_bytes: status.disk_total_bytes,
            status: Some(status),
            version: env!("CARGO_PKG_VERSION").into(),
            wall_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            flushed: self.raft.flushed().0,
            flushed_ms_ago: self.raft.flushed_ago().as_millis() as u64,
            blobs: blobs.named,
            blobs_missing: blobs.missing,
            blobs_damaged: blobs.damaged,
        })
    }
}

#[tonic::async_trait]
impl Operator for OperatorService {
    type BackupStream = Pin<Box<dyn Stream<Item = Result<wire::BackupPart, Status>> + Send>>;

    async fn backup(&self, request: Request<wire::BackupRequest>) -> Result<Response<Self::BackupStream>, Status> {
        let deadline = deadline(&request);
        let request = request.into_inner();
        let permit = Arc::clone(&self.scans).try_acquire_owned().map_err(|_| Status::resource_exhausted(BUSY))?;
        let checkpoint = match self.raft.checkpoint(request.stale, deadline).await {
            Ok(checkpoint) => checkpoint,
            Err(ReadError::Unavailable(unavailable)) => return Err(Status::unavailable(unavailable.to_string())),
            Err(ReadError::Storage(error)) => return Err(fault(&error)),
        };
        let (status, signer) = (self.raft.status(), self.signer().await?);
        let source = Source { cluster_id: status.cluster_id, lineage: status.lineage, node_id: status.node_id, signer: &signer };
        let attached = |file: wire::BackupFile| FileEntry { name: file.name, size_bytes: file.size_bytes, blake3: file.blake3 };
        let attached = request.attached.into_iter().map(attached).collect();
        let head = source.head(checkpoint.snapshot(), attached).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (sender, receiver) = mpsc::channel(BACKUP_BUFFER);
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            backup::send(head, &sender, |chunk| backup::each_chunk(checkpoint.snapshot(), chunk));
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type ExportStream = Self::BackupStream;

    async fn export(&self, request: Request<wire::ExportRequest>) -> Result<Response<Self::ExportStream>, Status> {
        let (deadline, peer) = (deadline(&request), guard::peer(request.extensions()));
        let tenant = request.into_inner().tenant;
        let permit = Arc::clone(&self.scans).try_acquire_owned().map_err(|_| Status::resource_exhausted(BUSY))?;
        let at = match self.raft.read(Consistency::Linearizable, deadline).await {
            Ok(at) => at,
            Err(ReadError::Unavailable(unavailable)) => return Err(Status::unavailable(unavailable.to_string())),
            Err(ReadError::Storage(error)) => return Err(fault(&error)),
        };
        let signer = self.signer().await?;
        let export = Export::new(at, self.raft.clone(), tenant.clone());
        let measured = tokio::task::spawn_blocking(move || export.head(&signer).map(|head| (export, head))).await;
        let (export, head) = match measured.map_err(|error| Status::internal(error.to_string()))? {
            Ok(measured) => measured,
            Err(NotExported::NoTenant) => return Err(Status::not_found(format!("there is no tenant `{tenant}`"))),
            Err(NotExported::Failed(error)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot export a tenant");
                return Err(Status::internal(error.to_string()));
            }
        };
        let act = Act { name: "tenant_export", subject: tenant };
        act.record(None, &peer, "", &End::Done { revision: export.revision().0, replayed: false });
        let (sender, receiver) = mpsc::channel(BACKUP_BUFFER);
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            backup::send(head.clone(), &sender, |chunk| export.each_chunk(&head, chunk));
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn state_hash(&self, request: Request<wire::StateHashRequest>) -> Result<Response<wire::StateHashResponse>, Status> {
        use wire::state_hash_response::Result as Answer;
        let revision = Revision(request.into_inner().revision);
        let _permit = Arc::clone(&self.scans)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("a backup or a scrub runs on this node already; ask later"))?;
        let result = match self.raft.digest_at(revision, Instant::now() + PINNED_WITHIN).await {
            Ok(Some(digest)) => match self.raft.examine_blobs(true).await {
                Ok(blobs) => Answer::Hashed(wire::StateHashed {
                    blake3: digest.blake3,
                    rows: digest.rows,
                    bytes: digest.bytes,
                    blobs: blobs.named,
                    blobs_bad: blobs.missing,
                }),
                Err(error) => Answer::Unreadable(chain(&error)),
            },
            Ok(None) => Answer::Passed(*self.raft.applied().borrow()),
            Err(ReadError::Unavailable(unavailable)) => Answer::Unavailable(unavailable.into()),
            Err(ReadError::Storage(error)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the state can't be read");
                Answer::Unreadable(chain(&error))
            }
        };
        Ok(Response::new(wire::StateHashResponse { result: Some(result) }))
    }

    async fn erased(&self, request: Request<wire::ErasedRequest>) -> Result<Response<wire::ErasedResponse>, Status> {
        // Answered in time: what it has done so far is an answer too.
        let deadline = deadline(&request).checked_sub(ANSWER_MARGIN).unwrap_or_else(Instant::now);
        let revision = Revision(request.into_inner().revision);
        let Some(erased) = self.raft.erased(revision, deadline).await else {
            return Ok(Response::new(wire::ErasedResponse::default()));
        };
        if let Some(search) = &self.search
            && !search.has_erased(erased.through, deadline).await
        {
            // Log and state are clean, and words of it may still stand in the index: then this node has not erased it.
            return Ok(Response::new(wire::ErasedResponse::default()));
        }
        let status = self.raft.status();
        let claim = ErasureClaim {
            cluster_id: status.cluster_id,
            node_id: status.node_id,
            incarnation: status.incarnation,
            through: erased.through,
            log_purged_through: erased.log_purged_through,
            erased_at_unix_ms: erased.at_unix_ms,
        };
        Ok(Response::new(wire::ErasedResponse { through: erased.through, statement: self.signer().await?.erasure(&claim) }))
    }

    async fn keys(&self, request: Request<wire::KeysRequest>) -> Result<Response<wire::KeysResponse>, Status> {
        let successor = request.into_inner().successor;
        let (keys, signing) = (Arc::clone(&self.keys), self.signer().await?);
        let cosigner = keys.witness().map(|witness| (witness.cosigner().name().to_owned(), witness.cosigner().public_key()));
        let (cosigner_name, cosigner_key) = cosigner.unwrap_or_default();
        let both = keys.named(&successor).filter(|next| next.public_key() != signing.public_key());
        let (by_predecessor, by_successor) =
            both.map(|next| (signing.succession(&signing, &next), next.succession(&signing, &next))).unwrap_or_default();
        Ok(Response::new(wire::KeysResponse {
            node_id: self.raft.status().node_id,
            signing: signing.public_key(),
            held: keys.held(),
            by_predecessor,
            by_successor,
            cosigner_name,
            cosigner_key,
        }))
    }

    async fn examine(&self, _: Request<wire::ExamineRequest>) -> Result<Response<wire::ExamineResponse>, Status> {
        Ok(Response::new(self.look().await?))
    }
}
