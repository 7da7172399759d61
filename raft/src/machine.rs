//! openraft's state machine over [`StateStore`]: decides a batch of entries, commits once, then answers.
//!
//! Entries are applied where they may block, so that a long batch holds up no other task. Invariants:
//! * One batch is one commit: records, deduplication rows, the last applied log id and the membership, or nothing of it.
//! * An answer is sent after the commit that holds its effect, and after readers were told of it.
//! * An entry that can't be decoded, or a fault of the store, stops the node: going on would let replicas drift apart.
//!
//! There is no snapshot as long as nobody needs one: what is flushed is on disk for good, so "building a snapshot" for
//! openraft is a flush, and files are only made when they are to be sent ([`Outgoing::files`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use quorate_domain::machine::{self, Decided};
use quorate_domain::overlay::Overlay;
use quorate_domain::{Revision, StorageError, codec};
use quorate_storage::{LogStore, Snapshot, Snapshots, StateStore, StateView};
use tokio::sync::{oneshot, watch};

use crate::blocking::blocking;
use crate::clock::Clock;
use crate::form::{self, AppliedForm};
use crate::log::fault;
use crate::meter::Meter;
use crate::types::{CommittedLeaderId, Entry, LogId, SnapshotMeta, StoredMembership, TypeConfig};

/// Entries in one commit. More would only make their answers late.
const BATCH_ENTRIES_MAX: usize = 4_096;
/// What a replay reads of the log at a time.
const REPLAY_BYTES_MAX: usize = 4 << 20;

type OpenraftSnapshot = openraft::Snapshot<CommittedLeaderId, u64, crate::types::Address, SnapshotFiles>;

/// The part of the state machine that the rest of the crate reads.
pub struct Applied {
    pub state: Arc<StateStore>,
    pub log: Arc<LogStore>,
    snapshots: Snapshots,
    clock: Arc<dyn Clock>,
    /// Stands in every snapshot, so that one of another cluster is refused.
    origin: Bytes,
    marker: Mutex<AppliedForm>,
    index: watch::Sender<u64>,
    pub meter: Meter,
    /// Snapshots on their way, by when they began: the log behind them must stay.
    floors: Mutex<BTreeMap<u64, u64>>,
    /// The last snapshot that was made to be sent, for the next attempt to go on with.
    prepared: tokio::sync::Mutex<Option<Prepared>>,
    prepared_index: Mutex<Option<AppliedForm>>,
    /// When the state was last put on disk, or opened from it.
    flushed_at: Mutex<Instant>,
    /// Who waits for the state after one entry.
    pins: Mutex<BTreeMap<u64, Vec<oneshot::Sender<StateView>>>>,
}

struct Prepared {
    snapshot: Arc<Snapshot>,
    used: Instant,
}

impl Applied {
    pub fn open(
        state: Arc<StateStore>,
        log: Arc<LogStore>,
        snapshots: Snapshots,
        clock: Arc<dyn Clock>,
        origin: Bytes,
    ) -> io::Result<Arc<Self>> {
        // What is left there from before the start is nobody's any more.
        snapshots.prune(0).map_err(fault)?;
        let marker = AppliedForm::decode(state.applied().map_err(fault)?.as_deref())?;
        let index = watch::Sender::new(marker.index());
        Ok(Arc::new(Self {
            state,
            log,
            snapshots,
            clock,
            origin,
            marker: Mutex::new(marker),
            index,
            meter: Meter::default(),
            floors: Mutex::default(),
            prepared: tokio::sync::Mutex::new(None),
            prepared_index: Mutex::new(None),
            flushed_at: Mutex::new(Instant::now()),
            pins: Mutex::default(),
        }))
    }

    /// The index of the last applied entry, as it moves.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.index.subscribe()
    }

    pub fn index(&self) -> u64 {
        *self.index.borrow()
    }

    pub fn flushed_index(&self) -> u64 {
        self.flushed().map_or(0, |flushed| flushed.index())
    }

    pub fn flushed_ago(&self) -> std::time::Duration {
        lock(&self.flushed_at).elapsed()
    }

    /// Up to where the log may be purged as far as snapshots on their way are concerned.
    pub fn floor(&self) -> u64 {
        let prepared = lock(&self.prepared_index).as_ref().map(AppliedForm::index);
        lock(&self.floors).values().copied().chain(prepared).min().unwrap_or(u64::MAX)
    }

    pub fn wall_now(&self) -> quorate_domain::UnixMs {
        self.clock.wall()
    }

    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    pub fn origin(&self) -> &Bytes {
        &self.origin
    }

    /// Ids that were members at any time.
    pub fn members_ever(&self) -> BTreeSet<u64> {
        lock(&self.marker).members_ever.clone()
    }

    fn flushed(&self) -> io::Result<AppliedForm> {
        Ok(AppliedForm::decode(self.state.flushed_applied().as_deref())?)
    }

    /// Applies the rest of the log, committed or not: for a state and a log that no cluster will decide about any more.
    pub fn replay(&self) -> io::Result<()> {
        loop {
            let rows = self.log.read(self.index() + 1..u64::MAX, REPLAY_BYTES_MAX).map_err(fault)?;
            if rows.is_empty() {
                return Ok(());
            }
            let entries = rows.into_iter().map(|(index, frame)| Ok((form::decode_entry(index, frame)?, None)));
            self.apply(entries.collect::<io::Result<Vec<Item>>>()?)?;
        }
    }

    /// The state right after the entry of this index, once it is applied; nothing, when it was applied before.
    pub fn pin_at(&self, index: u64) -> oneshot::Receiver<StateView> {
        let (sender, receiver) = oneshot::channel();
        let mut pins = lock(&self.pins);
        // Under the lock: `publish` moves the index first and looks for pins then.
        if self.index() < index {
            pins.entry(index).or_default().push(sender);
        }
        receiver
    }

    fn apply(&self, mut batch: Vec<Item>) -> io::Result<()> {
        while let (Some((first, _)), Some((last, _))) = (batch.first(), batch.last()) {
            let (first, last) = (first.index(), last.index());
            // A state that is waited for has to be committed on its own.
            let pinned = lock(&self.pins).range(first..last).next().map(|(index, _)| *index);
            let rest = pinned.map_or_else(Vec::new, |index| batch.split_off((index - first) as usize + 1));
            self.apply_together(batch)?;
            batch = rest;
        }
        Ok(())
    }

    fn apply_together(&self, batch: Vec<Item>) -> io::Result<()> {
        let (start, entries) = (Instant::now(), batch.len());
        let mut marker = lock(&self.marker).clone();
        let mut overlay = Overlay::new(&*self.state);
        let mut answers = Vec::with_capacity(batch.len());
        for (entry, responder) in batch {
            let id = entry.log_id();
            answers.push((responder, decide(&mut overlay, &mut marker, id, entry.payload)?));
            marker.last = Some(id.into());
        }
        self.state.commit(overlay.into_writes(), marker.encode()).map_err(fault)?;
        self.publish(marker);
        self.meter.apply_us.add(start.elapsed().as_micros() as u64);
        self.meter.apply_entries.add(entries as u64);
        for (responder, answer) in answers {
            if let Some(responder) = responder {
                responder.send(answer);
            }
        }
        Ok(())
    }

    fn publish(&self, marker: AppliedForm) {
        let index = marker.index();
        *lock(&self.marker) = marker;
        self.index.send_replace(index);
        let mut pins = lock(&self.pins);
        if pins.is_empty() {
            return;
        }
        // Those that a snapshot jumped over are dropped, which tells who waits.
        let later = pins.split_off(&(index + 1));
        for pin in std::mem::replace(&mut *pins, later).remove(&index).into_iter().flatten() {
            // Who waited may have gone.
            let _ = pin.send(self.state.view());
        }
    }

    /// For a blocking thread.
    fn install(&self, snapshot: &Snapshot) -> io::Result<()> {
        self.state.install(snapshot).map_err(fault)?;
        self.publish(AppliedForm::decode(Some(&snapshot.manifest().applied))?);
        Ok(())
    }

    fn snapshot_for_openraft(self: &Arc<Self>) -> io::Result<Option<OpenraftSnapshot>> {
        // One that was made to be sent goes first: an interrupted transfer goes on with the files it has.
        let prepared = lock(&self.prepared_index).clone();
        let form = match prepared {
            Some(prepared) => prepared,
            None => self.flushed()?,
        };
        if form.last.is_none() {
            return Ok(None);
        }
        let (meta, index) = (form.snapshot_meta()?, form.index());
        let mut floors = lock(&self.floors);
        let key = floors.last_key_value().map_or(0, |(last, _)| last + 1);
        floors.insert(key, index);
        let outgoing = Outgoing { applied: Arc::clone(self), key, index };
        Ok(Some(OpenraftSnapshot { meta, snapshot: SnapshotFiles::ToSend(outgoing) }))
    }

    /// Gives the space of a snapshot back that nobody has asked for in a while.
    pub async fn drop_unused_snapshot(&self, unused: std::time::Duration) {
        // Held while one is being made or installed: then it is in use.
        let Ok(mut prepared) = self.prepared.try_lock() else { return };
        let idle = lock(&self.floors).is_empty() && prepared.as_ref().is_some_and(|prepared| prepared.used.elapsed() >= unused);
        if !idle {
            return;
        }
        if let Err(error) = self.forget(&mut prepared).await {
            tracing::warn!(%error, "cannot remove a snapshot that was sent");
        }
    }

    async fn forget(&self, prepared: &mut Option<Prepared>) -> io::Result<()> {
        *prepared = None;
        *lock(&self.prepared_index) = None;
        let snapshots = self.snapshots.clone();
        blocking(move || snapshots.prune(0)).await?.map_err(fault)
    }
}

/// Decides one entry over the writes of those before it.
fn decide(
    overlay: &mut Overlay<'_, StateStore>,
    marker: &mut AppliedForm,
    id: LogId,
    payload: crate::types::Payload,
) -> io::Result<Option<Decided>> {
    match payload {
        EntryPayload::Blank => Ok(None),
        EntryPayload::Membership(membership) => {
            marker.membership = (&membership).into();
            marker.membership_at = Some(id.into());
            marker.members_ever.extend(membership.nodes().map(|(id, _)| *id));
            Ok(None)
        }
        EntryPayload::Normal(proposal) => {
            let entry: machine::Entry = codec::decode(&proposal.0)
                .map_err(|error| fault(StorageError::new(format!("entry {id} is of no kind this version knows"), error)))?;
            machine::apply(overlay, Revision(id.index()), id.committed_leader_id().term, entry).map_err(fault)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each holder makes one assignment or insertion, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Item = (Entry, Option<ApplyResponder<TypeConfig>>);

/// openraft's handle of the state machine.
pub struct Machine {
    applied: Arc<Applied>,
    /// Dropped with the task that holds the machine.
    _alive: oneshot::Sender<()>,
}

impl Machine {
    /// The receiver learns when openraft drops the machine: should its task panic, openraft's core would go on without it.
    pub fn new(applied: Arc<Applied>) -> (Self, oneshot::Receiver<()>) {
        let (alive, dropped) = oneshot::channel();
        (Self { applied, _alive: alive }, dropped)
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotFiles;
    type SnapshotBuilder = Flush;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let marker = lock(&self.applied.marker).clone();
        Ok((marker.last.map(LogId::from), marker.stored_membership()?))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut batches = entries.ready_chunks(BATCH_ENTRIES_MAX);
        while let Some(batch) = batches.next().await {
            let batch = batch.into_iter().collect::<Result<Vec<Item>, io::Error>>()?;
            let applied = Arc::clone(&self.applied);
            blocking(move || applied.apply(batch)).await.map_err(|_| io::Error::other("a rule of the state machine panicked"))??;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Flush {
        Flush(Arc::clone(&self.applied))
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFiles) -> Result<(), io::Error> {
        let SnapshotFiles::Received(snapshot) = snapshot else {
            // Offered back at a start; what is flushed is installed already.
            return Ok(());
        };
        tracing::info!(id = %snapshot.manifest().id, last = ?meta.last_log_id, "installing a snapshot");
        let applied = Arc::clone(&self.applied);
        blocking(move || applied.install(&snapshot)).await??;
        self.applied.forget(&mut *self.applied.prepared.lock().await).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<OpenraftSnapshot>, io::Error> {
        self.applied.snapshot_for_openraft()
    }
}

/// Makes what is applied durable. That is all openraft needs of a snapshot in order to purge the log.
pub struct Flush(Arc<Applied>);

impl RaftSnapshotBuilder<TypeConfig> for Flush {
    type SnapshotData = SnapshotFiles;

    async fn build_snapshot(&mut self) -> Result<OpenraftSnapshot, io::Error> {
        let state = Arc::clone(&self.0.state);
        blocking(move || state.flush()).await?.map_err(fault)?;
        *lock(&self.0.flushed_at) = Instant::now();
        Ok(OpenraftSnapshot { meta: self.0.flushed()?.snapshot_meta()?, snapshot: SnapshotFiles::Flushed })
    }
}

/// What stands behind a snapshot's metadata.
pub enum SnapshotFiles {
    /// The state as it lies on this disk.
    Flushed,
    ToSend(Outgoing),
    Received(Snapshot),
}

/// A snapshot to be sent. While it lives, the log behind it is not purged.
pub struct Outgoing {
    applied: Arc<Applied>,
    key: u64,
    index: u64,
}

impl Outgoing {
    /// The files: those of the last attempt if they still serve, else new ones. They may be further than was asked for, which is
    /// as good: all they hold is committed.
    pub async fn files(&self) -> io::Result<Arc<Snapshot>> {
        let mut prepared = self.applied.prepared.lock().await;
        if let Some(prepared) = &*prepared
            && AppliedForm::decode(Some(&prepared.snapshot.manifest().applied))?.index() >= self.index
        {
            return Ok(Arc::clone(&prepared.snapshot));
        }
        let applied = Arc::clone(&self.applied);
        let id = format!("{}-{}", self.index, self.applied.clock.wall().0);
        let build = move || applied.snapshots.build(&applied.state, &id, applied.origin.clone());
        let snapshot = Arc::new(blocking(build).await?.map_err(fault)?);
        *lock(&self.applied.prepared_index) = Some(AppliedForm::decode(Some(&snapshot.manifest().applied))?);
        *prepared = Some(Prepared { snapshot: Arc::clone(&snapshot), used: Instant::now() });
        Ok(snapshot)
    }
}

impl Outgoing {
    /// The receiver has answered: the files are kept for it a while longer, and the log behind them. A receiver that is gone must
    /// not hold the log.
    pub async fn keep(&self) {
        if let Some(prepared) = &mut *self.applied.prepared.lock().await {
            prepared.used = Instant::now();
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        lock(&self.applied.floors).remove(&self.key);
    }
}

/// What a received snapshot says of itself, for openraft.
pub fn received(snapshot: Snapshot) -> Result<OpenraftSnapshot, form::FormError> {
    let meta = AppliedForm::decode(Some(&snapshot.manifest().applied))?.snapshot_meta()?;
    Ok(OpenraftSnapshot { meta, snapshot: SnapshotFiles::Received(snapshot) })
}
