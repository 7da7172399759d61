//! openraft's log over [`LogStore`].
//!
//! Nothing but forms is added here: the store makes entries readable at once and durable in groups, and calls back in order.
//! The one rule of this module is about purging: an entry may only go once the state it led to is on disk, because the state
//! has no log of its own.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage};
use openraft::{LogState, OptionalSend};
use quorate_domain::{StorageError, chain, codec};
use quorate_storage::{LogStore, StateStore};
use tokio::sync::oneshot;

use crate::blocking::blocking;
use crate::form::{self, AppliedForm, LogIdForm, VoteForm};
use crate::types::{Entry, LogId, TypeConfig, Vote};

/// How much apply reads at a time, so that a long replay does not fill the memory.
const APPLY_READ_BYTES_MAX: usize = 4 << 20;

/// The log of this node. Clones share it.
#[derive(Clone)]
pub struct Log {
    store: Arc<LogStore>,
    state: Arc<StateStore>,
    append_bytes_max: usize,
}

impl Log {
    pub fn new(store: Arc<LogStore>, state: Arc<StateStore>, append_bytes_max: usize) -> Self {
        Self { store, state, append_bytes_max }
    }

    fn read(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let rows = self.store.read(from..to, bytes_max).map_err(fault)?;
        rows.into_iter().map(|(index, frame)| Ok(form::decode_entry(index, frame)?)).collect()
    }

    fn id_at(&self, index: u64) -> io::Result<LogId> {
        let entry = self.read(index, index + 1, usize::MAX)?;
        let entry = entry.first().ok_or_else(|| fault(StorageError::corrupt(format!("log entry {index} is missing"))))?;
        Ok(entry.log_id())
    }

    async fn durable(&self, enqueue: impl FnOnce(quorate_storage::log::Done)) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        enqueue(Box::new(move |result| drop(sender.send(result))));
        let result = receiver.await.map_err(|_| io::Error::other("the log writer is gone"))?;
        result.map_err(fault)
    }
}

/// The whole chain of causes, since openraft keeps only text.
pub(crate) fn fault(error: StorageError) -> io::Error {
    io::Error::other(chain(&error))
}

fn bounds(range: impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let (from, to) = bounds(range);
        self.read(from, to, usize::MAX)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        let Some(vote) = self.store.read_vote().map_err(fault)? else { return Ok(None) };
        Ok(Some(form::decode::<VoteForm>(&vote)?.into()))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, self.append_bytes_max)
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(range);
        let log = self.clone();
        let chunks = futures::stream::unfold(Some(from), move |next| {
            let chunk = next.filter(|from| *from < to).map(|from| match log.read(from, to, APPLY_READ_BYTES_MAX) {
                Ok(chunk) if chunk.is_empty() => Err(fault(StorageError::corrupt(format!("log entry {from} is committed and missing")))),
                chunk => chunk,
            });
            std::future::ready(chunk.map(|chunk| {
                let next = chunk.as_ref().ok().and_then(|entries| entries.last()).map(|last| last.index() + 1);
                (chunk, next)
            }))
        });
        futures::StreamExt::flat_map(chunks, |chunk| {
            let entries: Vec<Result<Entry, io::Error>> = match chunk {
                Ok(entries) => entries.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            futures::stream::iter(entries)
        })
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let purged = self.store.read_purged().map_err(fault)?;
        let last_purged_log_id = purged.map(|purged| form::decode::<LogIdForm>(&purged)).transpose()?.map(LogId::from);
        let last_log_id = match self.store.last_index().map_err(fault)? {
            Some(index) => Some(self.id_at(index)?),
            None => last_purged_log_id,
        };
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let vote = Bytes::from(codec::encode(&VoteForm::from(*vote)));
        self.durable(|done| self.store.save_vote(vote, done)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        let Some(committed) = committed else { return Ok(()) };
        self.store.save_committed(codec::encode(&LogIdForm::from(committed)).into()).map_err(fault)
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let Some(committed) = self.store.read_committed().map_err(fault)? else { return Ok(None) };
        Ok(Some(form::decode::<LogIdForm>(&committed)?.into()))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let frames = entries.into_iter().map(|entry| (entry.index(), form::encode_entry(&entry))).collect();
        self.store.append(frames, Box::new(move |result| callback.io_completed(result.map_err(fault))));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        self.durable(|done| self.store.truncate_after(last.map(|last| last.index()), done)).await
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let flushed = |marker: Option<Bytes>| Ok::<u64, io::Error>(AppliedForm::decode(marker.as_deref())?.index());
        if flushed(self.state.flushed_applied())? < upto.index() {
            let state = Arc::clone(&self.state);
            let marker = blocking(move || state.flush()).await?.map_err(fault)?;
            let flushed = flushed(marker)?;
            if flushed < upto.index() {
                // Going on would lose entries that the state after a crash still needs.
                return Err(io::Error::other(format!(
                    "the log was to be purged through {} but the state is only flushed through {flushed}",
                    upto.index()
                )));
            }
        }
        let id = codec::encode(&LogIdForm::from(upto)).into();
        self.durable(|done| self.store.purge_through(upto.index(), id, done)).await
    }
}
