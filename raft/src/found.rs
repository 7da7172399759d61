//! Founding: the folders of a cluster that begins anew, made while nothing runs, from a backup or from a survivor.
//!
//! Every founder gets the same state, a log that is empty and begins behind it, and an identity of the new lineage; so any
//! majority of them can elect and go on. Nobody else can take part: each request between nodes carries the lineage, and a
//! folder of another one is refused. See [`quorate_domain::lineage`] for what changes in the state itself.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use quorate_domain::lineage::{self, Begun};
use quorate_domain::overlay::Writes;
use quorate_domain::{Revision, UnixMs, codec};
use quorate_storage::log::Done;
use quorate_storage::{
    Blobs, Claim, DataDir, Identity, IdentityError, LogOptions, LogStore, Snapshot, Snapshots, StateOptions, StateStore, StorageError,
    durable,
};

use crate::backup::carry_named;
use crate::clock::SystemClock;
use crate::form::{AppliedForm, FormError, LogIdForm, MembershipForm, VoteForm};
use crate::machine::Applied;
use crate::types::Address;

/// Why no cluster was founded.
#[derive(Debug, thiserror::Error)]
pub enum FoundError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the state's place in the log can't be read: {0}")]
    Form(#[from] FormError),
    #[error("the log can't be applied: {0}")]
    Replay(#[from] io::Error),
    #[error("a cluster needs at least one node")]
    Nobody,
}

/// A voter of the cluster that is to be.
#[derive(Clone, Debug)]
pub struct Founder {
    pub node_id: u64,
    pub address: Address,
    /// Its data directory, which is made.
    pub dir: PathBuf,
}

/// What the folders are to be.
pub struct Plan<'a> {
    pub cluster_id: &'a str,
    pub lineage: u64,
    pub founders: &'a [Founder],
    pub now: UnixMs,
}

/// Makes the founders' folders out of a state. One that is interrupted leaves folders to throw away.
pub fn found(plan: &Plan, snapshot: &Snapshot) -> Result<Begun, FoundError> {
    let (first, others) = plan.founders.split_first().ok_or(FoundError::Nobody)?;
    let dir = plan.claim(first)?;
    let (begun, at) = {
        let state = StateStore::open(&dir.state_dir(), StateOptions::default())?;
        state.install(snapshot)?;
        let was = AppliedForm::decode(state.applied()?.as_deref())?;
        let commit = |writes| state.commit(writes, was.encode());
        let begun = lineage::begin(&state, plan.lineage, Revision(was.index()), plan.now, commit)?;
        let at = LogIdForm { term: was.last.map_or(0, |last| last.term) + 1, index: begun.last.0 };
        state.commit(Writes::new(), plan.applied(at).encode())?;
        state.flush()?;
        (begun, at)
    };
    Blobs::open(&dir.blobs_dir())?.import(snapshot)?;
    plan.begin_log(&dir, first, at)?;
    for other in others {
        let of_other = plan.claim(other)?;
        // A copy for each: they may be taken to machines of their own, and damage to one must not be in all.
        durable::copy_dir(&dir.state_dir(), &of_other.state_dir())?;
        Blobs::open(&of_other.blobs_dir())?.import(snapshot)?;
        plan.begin_log(&of_other, other, at)?;
    }
    Ok(begun)
}

impl Plan<'_> {
    fn claim(&self, founder: &Founder) -> Result<DataDir, IdentityError> {
        let (cluster_id, lineage) = (self.cluster_id.to_owned(), self.lineage.to_string());
        DataDir::load_or_create(&founder.dir, &Claim { cluster_id, lineage, node_id: founder.node_id })
    }

    fn applied(&self, at: LogIdForm) -> AppliedForm {
        let ids: BTreeSet<u64> = self.founders.iter().map(|founder| founder.node_id).collect();
        let nodes = self.founders.iter().map(|founder| (founder.node_id, founder.address.clone())).collect();
        let membership = MembershipForm { configs: vec![ids.clone()], nodes };
        AppliedForm { last: Some(at), membership_at: Some(at), membership, members_ever: ids }
    }

    /// Nothing before `at` is in the log, and no leader of a term up to then is followed.
    fn begin_log(&self, dir: &DataDir, founder: &Founder, at: LogIdForm) -> Result<(), StorageError> {
        let log = LogStore::open(&dir.log_dir(), LogOptions::default())?;
        let vote = VoteForm { term: at.term, node: founder.node_id, committed: false };
        durable_call(|done| log.save_vote(codec::encode(&vote).into(), done))?;
        durable_call(|done| log.purge_through(at.index, codec::encode(&at).into(), done))?;
        log.close();
        Ok(())
    }
}

fn durable_call(enqueue: impl FnOnce(Done)) -> Result<(), StorageError> {
    let (sender, receiver) = mpsc::channel();
    enqueue(Box::new(move |result| drop(sender.send(result))));
    receiver.recv().map_err(|error| StorageError::new("the log writer is gone", error))?
}

// ------------------------------------------------------------------ survivors

/// What a stopped node's folder holds.
#[derive(Clone, Debug)]
pub struct Survivor {
    pub identity: Identity,
    /// Term and index of its last log entry: of several survivors, the one with the highest knows most.
    pub last_log: (u64, u64),
}

/// Looks at the folder of a stopped node, by a copy of its log in `scratch`: the folder stays as it is.
pub fn survivor(dir: &Path, scratch: &Path) -> Result<Survivor, FoundError> {
    let held = DataDir::open(dir)?;
    let copy = scratch.join(format!("log-{}", held.identity().node_id));
    durable::copy_dir(&held.log_dir(), &copy)?;
    let log = LogStore::open(&copy, LogOptions::default())?;
    let last = match log.last_index()? {
        Some(last) => match log.read(last..last + 1, usize::MAX)?.pop() {
            Some((index, frame)) => LogIdForm { term: crate::form::decode_entry_term(index, frame)?, index },
            None => return Err(StorageError::corrupt(format!("log entry {last} is missing")).into()),
        },
        None => match log.read_purged()? {
            Some(purged) => crate::form::decode(&purged)?,
            None => LogIdForm { term: 0, index: 0 },
        },
    };
    log.close();
    Ok(Survivor { identity: held.identity().clone(), last_log: (last.term, last.index) })
}

/// The state of a stopped node with all that its log holds, committed or not: of the old members nobody can say any more, and
/// what was acknowledged is among it if this node was told. Works on a copy in `scratch`, so that the folder can still be
/// what it was.
pub fn recover(dir: &Path, scratch: &Path) -> Result<Snapshot, FoundError> {
    let held = DataDir::open(dir)?;
    let (log_dir, state_dir) = (scratch.join("log"), scratch.join("state"));
    durable::copy_dir(&held.log_dir(), &log_dir)?;
    durable::copy_dir(&held.state_dir(), &state_dir)?;
    let state = Arc::new(StateStore::open(&state_dir, StateOptions::default())?);
    let log = LogStore::open(&log_dir, LogOptions::default())?;
    let snapshots = Snapshots::open(&scratch.join("snapshots"))?;
    let applied = Applied::open(Arc::clone(&state), Arc::clone(&log), snapshots.clone(), Arc::new(SystemClock), Bytes::new())?;
    applied.replay()?;
    log.close();
    let blobs = Blobs::open(&held.blobs_dir())?;
    Ok(snapshots.build_beside(&state, "survivor", Bytes::new(), |dir| carry_named(&*state, &blobs, dir, true))?)
}
