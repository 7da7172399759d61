//! Blobs between nodes: on a quorum before a command names them, and then on every node.
//!
//! A blob is only ever fetched, by its hash, and checked: a node that shall hold one is told whom to ask first, and may ask
//! anybody. So the way to a quorum, to a node that was away, and around a damaged disk is one and the same. Invariants:
//! * A command that names a blob is proposed after a quorum of every set of voters has answered that it is on its disk.
//! * What a record names is not removed, and what nothing names stays for `blob_idle_ms`: a command that was proposed may still
//!   be on its way.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use openraft::async_runtime::watch::WatchReceiver;
use quorate_domain::artefact::{blobs_named, is_named};
use quorate_domain::{StorageError, codec};
use quorate_storage::Blobs;
use quorate_storage::blobs::{BlobHash, Incoming};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout, timeout_at};

use crate::blocking::blocking;
use crate::config::Config;
use crate::form::decode;
use crate::log::fault;
use crate::machine::Applied;
use crate::network::{Lane, Links};
use crate::types::{Address, Membership, Raft};
use crate::unavailable::{ProposeError, Reason, Unavailable};

/// Bytes of a blob in one message.
pub const PART_BYTES: usize = 512 << 10;
/// How long one part may take.
const PART_MAX: Duration = Duration::from_secs(5);
/// Names read from the state at a time.
const NAMES_PER_PAGE: usize = 256;
/// In place of the size of a blob that is not there.
const NOT_HERE: u64 = u64::MAX;

#[derive(Serialize, Deserialize)]
pub struct HoldForm {
    hash: BlobHash,
    /// Who has it.
    source: u64,
}

#[derive(Serialize, Deserialize)]
pub struct HoldReplyForm {
    /// It is on this node's disk.
    held: bool,
}

#[derive(Serialize, Deserialize)]
pub struct PartForm {
    hash: BlobHash,
    offset: u64,
}

/// What a node has of the blobs that records name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlobsExamined {
    /// One of two tenants counts twice.
    pub named: u64,
    pub missing: u64,
    /// Files that were put aside since they did not have their hash.
    pub damaged: u64,
}

/// The blobs of this node among those of the others.
pub struct Depot {
    store: Blobs,
    raft: Raft,
    links: Arc<Links>,
    applied: Arc<Applied>,
    node_id: u64,
    idle_max: Duration,
    tend_every: Duration,
}

impl Depot {
    pub fn new(store: Blobs, raft: Raft, links: Arc<Links>, applied: Arc<Applied>, config: &Config) -> Self {
        let (idle_max, tend_every) = (Duration::from_millis(config.blob_idle_ms), Duration::from_millis(config.blob_tend_ms));
        Self { store, raft, links, applied, node_id: config.node_id, idle_max, tend_every }
    }

    pub fn store(&self) -> &Blobs {
        &self.store
    }

    fn membership(&self) -> Membership {
        self.raft.metrics().borrow_watched().membership_config.membership().clone()
    }

    /// Has this node hold a blob, from wherever it is; false when nobody has it.
    pub async fn hold(&self, hash: BlobHash, first: Option<u64>) -> io::Result<bool> {
        let store = self.store.clone();
        // Read whole: what is here and damaged is fetched anew.
        if blocking(move || Ok::<_, StorageError>(store.touch(&hash)? && store.check(&hash)?)).await?.map_err(fault)? {
            return Ok(true);
        }
        let membership = self.membership();
        let mut others: Vec<(u64, Address)> =
            membership.nodes().filter(|(id, _)| **id != self.node_id).map(|(id, address)| (*id, address.clone())).collect();
        others.sort_by_key(|(id, _)| Some(*id) != first);
        for (id, address) in others {
            match self.fetch(id, &address, hash).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(FetchError::Peer(problem)) => tracing::debug!(peer = id, problem, "cannot fetch a blob there"),
                Err(FetchError::Own(error)) => return Err(error),
            }
        }
        Ok(false)
    }

    async fn fetch(&self, peer: u64, address: &Address, hash: BlobHash) -> Result<bool, FetchError> {
        let mut client = self.links.client(peer, address, Lane::Snapshot).map_err(|error| FetchError::Peer(error.to_string()))?;
        let mut incoming: Option<Incoming> = None;
        loop {
            let offset = incoming.as_ref().map_or(0, Incoming::size_bytes);
            let request = self.links.request(peer, codec::encode(&PartForm { hash, offset }).into());
            let answer = timeout(PART_MAX, client.read_blob(request)).await.map_err(|_| FetchError::Peer("it is silent".into()))?;
            let body = answer.map_err(|status| FetchError::Peer(status.message().into()))?.into_inner().body;
            let Some((size, data)) = body.split_first_chunk::<8>() else { return Err(FetchError::Peer("garbled".into())) };
            let size = u64::from_be_bytes(*size);
            if size == NOT_HERE {
                return Ok(false);
            }
            if data.is_empty() && offset < size {
                return Err(FetchError::Peer("it sent less than there is".into()));
            }
            let (store, data) = (self.store.clone(), data.to_vec());
            let taken = blocking(move || -> Result<Incoming, StorageError> {
                let mut incoming = match incoming {
                    Some(incoming) => incoming,
                    None => store.begin()?,
                };
                incoming.write(&data)?;
                Ok(incoming)
            });
            let taken = taken.await.map_err(FetchError::Own)?.map_err(|error| FetchError::Own(fault(error)))?;
            if taken.size_bytes() < size {
                incoming = Some(taken);
                continue;
            }
            let finished = blocking(move || taken.finish(Some(&hash))).await.map_err(FetchError::Own)?;
            return Ok(finished.map_err(|error| FetchError::Own(fault(error)))?.is_some());
        }
    }

    /// Waits until a quorum of every set of voters has the blob on disk. Asked of the leader.
    pub async fn secure(&self, hash: BlobHash, deadline: Instant) -> Result<(), ProposeError> {
        let unavailable = |detail: String| ProposeError::from(Unavailable::new(Reason::NoQuorum, detail, 200));
        let here = timeout_at(deadline.into(), self.hold(hash, None)).await;
        match here {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Err(unavailable("no node that answers has the blob; send it again".into())),
            Ok(Err(error)) => return Err(unavailable(format!("this node can't keep the blob: {error}"))),
            Err(_) => return Err(Unavailable::new(Reason::Timeout, "the blob was not fetched in time", 200).into()),
        }
        let membership = self.membership();
        let sets: Vec<BTreeSet<u64>> = membership.get_joint_config().clone();
        let mut holding = BTreeSet::from([self.node_id]);
        let others = membership.nodes().filter(|(id, _)| **id != self.node_id && sets.iter().any(|set| set.contains(id)));
        let mut asked: FuturesUnordered<_> = others.map(|(id, address)| self.ask_to_hold(*id, address.clone(), hash)).collect();
        let is_quorum = |holding: &BTreeSet<u64>| sets.iter().all(|set| set.intersection(holding).count() * 2 > set.len());
        while !is_quorum(&holding) {
            match timeout_at(deadline.into(), asked.next()).await {
                Ok(Some((id, true))) => drop(holding.insert(id)),
                Ok(Some((_, false))) => {}
                Ok(None) => return Err(unavailable(format!("only nodes {holding:?} hold the blob, which is no quorum"))),
                Err(_) => return Err(Unavailable::new(Reason::Timeout, "no quorum holds the blob yet", 200).into()),
            }
        }
        Ok(())
    }

    async fn ask_to_hold(&self, peer: u64, address: Address, hash: BlobHash) -> (u64, bool) {
        let ask = async {
            let mut client = self.links.client(peer, &address, Lane::Snapshot).map_err(|error| error.to_string())?;
            let request = self.links.request(peer, codec::encode(&HoldForm { hash, source: self.node_id }).into());
            let answer = client.hold_blob(request).await.map_err(|status| status.message().to_owned())?;
            self.links.answer::<HoldReplyForm>(peer, answer.get_ref()).map_err(|error| error.to_string())
        };
        match ask.await {
            Ok(reply) => (peer, reply.held),
            Err(problem) => {
                tracing::debug!(peer, problem, "does not hold a blob");
                (peer, false)
            }
        }
    }

    /// What of the blobs that records name is here.
    pub async fn examine(&self, read: bool) -> Result<BlobsExamined, StorageError> {
        let (state, store) = (Arc::clone(&self.applied.state), self.store.clone());
        let examined = blocking(move || -> Result<BlobsExamined, StorageError> {
            let (mut found, mut from) = (BlobsExamined::default(), None);
            loop {
                let (hashes, next) = blobs_named(&*state, from.as_deref(), NAMES_PER_PAGE)?;
                for hash in hashes {
                    found.named += 1;
                    let is_here = if read { store.check(&hash)? } else { store.size(&hash)?.is_some() };
                    found.missing += u64::from(!is_here);
                }
                match next {
                    Some(next) => from = Some(next),
                    None => break,
                }
            }
            found.damaged = store.damaged()? as u64;
            Ok(found)
        });
        examined.await.map_err(|error| StorageError::new("the blobs were not looked at", error))?
    }

    /// The answer to another node that wants this one to hold a blob.
    pub async fn answer_hold(&self, body: &[u8]) -> Result<HoldReplyForm, String> {
        let HoldForm { hash, source } = decode(body).map_err(|error| error.to_string())?;
        let held = self.hold(hash, Some(source)).await.map_err(|error| error.to_string())?;
        Ok(HoldReplyForm { held })
    }

    /// The answer to another node that fetches: the size, and the bytes from where it asked.
    pub async fn answer_part(&self, body: &[u8]) -> Result<Bytes, String> {
        let PartForm { hash, offset } = decode(body).map_err(|error| error.to_string())?;
        let store = self.store.clone();
        let read = blocking(move || -> Result<Option<(u64, Vec<u8>)>, StorageError> {
            // Checked once, before its first part.
            if offset == 0 && !store.check(&hash)? {
                return Ok(None);
            }
            let Some(size) = store.size(&hash)? else { return Ok(None) };
            Ok(Some((size, store.read(&hash, offset, PART_BYTES)?)))
        });
        let found = read.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let (size, data) = found.unwrap_or((NOT_HERE, Vec::new()));
        let mut answer = BytesMut::with_capacity(8 + data.len());
        answer.extend_from_slice(&size.to_be_bytes());
        answer.extend_from_slice(&data);
        Ok(answer.freeze())
    }

    /// Fetches what records name and is not here, and removes what none names, until the node stops.
    pub async fn tend(self: Arc<Self>) {
        let started = Instant::now();
        loop {
            sleep(self.tend_every).await;
            if let Err(error) = self.fetch_missing().await {
                tracing::warn!(%error, "cannot look after missing blobs");
            }
            // A node that has just come back does not know yet what names a blob.
            if started.elapsed() >= self.idle_max.min(Duration::from_secs(3_600))
                && let Err(error) = self.collect().await
            {
                tracing::warn!(%error, "cannot remove blobs that nothing names");
            }
        }
    }

    pub async fn fetch_missing(&self) -> io::Result<()> {
        let mut from = None;
        loop {
            let (state, store, start) = (Arc::clone(&self.applied.state), self.store.clone(), from.take());
            let page = blocking(move || -> Result<_, StorageError> {
                let (hashes, next) = blobs_named(&*state, start.as_deref(), NAMES_PER_PAGE)?;
                let mut missing = Vec::new();
                for hash in hashes {
                    if store.size(&hash)?.is_none() {
                        missing.push(hash);
                    }
                }
                Ok((missing, next))
            });
            let (missing, next) = page.await?.map_err(fault)?;
            for hash in missing {
                if !self.hold(hash, None).await? {
                    tracing::warn!(blob = hex::encode(hash), "no node that answers has a blob that a record names");
                }
            }
            match next {
                Some(next) => from = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn collect(&self) -> io::Result<()> {
        let (state, store, idle_max) = (Arc::clone(&self.applied.state), self.store.clone(), self.idle_max);
        let collected = blocking(move || -> Result<u64, StorageError> {
            let mut removed = 0;
            for shard in 0..=u8::MAX {
                for held in store.shard(shard)? {
                    if held.idle >= idle_max && !is_named(&*state, &held.hash)? {
                        store.remove(&held.hash)?;
                        removed += 1;
                    }
                }
            }
            Ok(removed)
        });
        let removed = collected.await?.map_err(fault)?;
        if removed > 0 {
            tracing::info!(removed, "removed blobs that nothing names");
        }
        Ok(())
    }
}

/// Why a fetch ended.
enum FetchError {
    /// Another peer may have it.
    Peer(String),
    /// This node's disk failed.
    Own(io::Error),
}
