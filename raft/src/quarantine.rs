//! A node that can't trust what is on its own disk serves none of it.
//!
//! It writes down why, stops, and when it is started again does one of two things:
//! * Its *state* was damaged, or differed from that of a majority: the state is thrown away and fetched anew from another member.
//!   Log and vote stay as they are, and what is fetched is committed, so to the others it is the node it was.
//! * Its *log* was damaged: it stays out. Votes and acknowledged entries stand in the log, and a node that has forgotten some of
//!   them must not take part under its old id, however whole it looks afterwards. `quorate replace` gives its place away.
//!
//! A node that votes alone has nobody to fetch from, and goes on with what it can read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::entry::RaftEntry;
use quorate_domain::{StorageError, codec};
use quorate_storage::{Engine, LogStore, Manifest, Snapshot, Snapshots, StateOptions, StateStore, durable};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::blocking::blocking;
use crate::eraser;
use crate::form::{self, AppliedForm, FormError, LogIdForm};
use crate::network::{Lane, Links};
use crate::peers::Seldom;
use crate::transfer::{Origin, SendError};
use crate::types::{Address, MetricsReceiver};

/// Why, in the data folder.
const MARKER: &str = "quarantine";
/// The other members, for a node that can't read its state any more.
const MEMBERS: &str = "members";
/// The state that was thrown away, until there is another one.
const ASIDE: &str = "state.damaged";
/// Between two rounds of asking the others, and two tries to write who they are.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What a node can't trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Damaged {
    State,
    Log,
}

/// Why a node is in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub damaged: Damaged,
    pub text: String,
}

/// What a folder says of it.
pub fn read(data_dir: &Path) -> Result<Option<Reason>, StorageError> {
    let bytes = durable::read_if_there(&data_dir.join(MARKER))?;
    let decode = |bytes: Vec<u8>| codec::decode(&bytes).map_err(|error| StorageError::new("the file `quarantine` can't be read", error));
    bytes.map(decode).transpose()
}

pub fn write(data_dir: &Path, reason: &Reason) -> Result<(), StorageError> {
    durable::replace_file(&data_dir.join(MARKER), &codec::encode(reason))
}

/// Whether an error says that what is on the disk is not what was written.
pub fn is_damage(text: &str) -> bool {
    ["Corruption", "checksum", "is damaged at byte"].iter().any(|word| text.contains(word))
}

/// The door of a running node into quarantine.
pub struct Quarantine {
    data_dir: PathBuf,
    stop: watch::Sender<Option<String>>,
    entered: AtomicBool,
}

impl Quarantine {
    pub fn new(data_dir: PathBuf, stop: watch::Sender<Option<String>>) -> Arc<Self> {
        Arc::new(Self { data_dir, stop, entered: AtomicBool::new(false) })
    }

    /// Serves nothing from now on, and stops the node.
    pub fn enter(&self, reason: Reason) {
        if self.entered.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(damaged = ?reason.damaged, reason = reason.text, "this node goes into quarantine: it serves nothing that it can't trust");
        if let Err(error) = write(&self.data_dir, &reason) {
            tracing::error!(%error, "the reason of a quarantine could not be written down");
        }
        self.stop.send_replace(Some(format!("in quarantine: {}", reason.text)));
    }

    pub fn is_entered(&self) -> bool {
        self.entered.load(Ordering::Acquire)
    }

    /// The node ended for a reason of its own.
    pub fn stopped(&self, why: String) {
        self.stop.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(why);
            is_first
        });
    }
}

/// Keeps the addresses of the other members beside the databases, as they change, for as long as the node runs.
pub async fn keep_members(mut metrics: MetricsReceiver, data_dir: PathBuf) {
    let mut kept = BTreeMap::new();
    loop {
        let members: BTreeMap<u64, Address> =
            metrics.borrow_watched().membership_config.membership().nodes().map(|(id, address)| (*id, address.clone())).collect();
        if members != kept {
            let (path, bytes) = (data_dir.join(MEMBERS), codec::encode(&members));
            match blocking(move || durable::replace_file(&path, &bytes)).await {
                Ok(Ok(())) => kept = members,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the addresses of the members could not be written down");
                    sleep(ASK_AGAIN).await;
                    continue;
                }
                // The runtime is ending.
                Err(_) => return,
            }
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

fn members(data_dir: &Path) -> Result<BTreeMap<u64, Address>, StorageError> {
    let bytes = durable::read_if_there(&data_dir.join(MEMBERS))?;
    let decode = |bytes: Vec<u8>| codec::decode(&bytes).map_err(|error| StorageError::new("the file `members` can't be read", error));
    Ok(bytes.map(decode).transpose()?.unwrap_or_default())
}

/// What a rebuild needs of the node that is being started.
pub struct Rebuild {
    pub node_id: u64,
    pub data_dir: PathBuf,
    pub state_dir: PathBuf,
    pub engine: Arc<dyn Engine>,
    pub options: StateOptions,
    pub links: Arc<Links>,
    pub snapshots: Snapshots,
    pub origin: Origin,
    /// The log begins behind this: a state that is older does not meet it.
    pub purged: u64,
}

impl Rebuild {
    /// Fetches the state of another member and puts it in the place of this node's. Asks until one has it.
    pub async fn run(self) -> Result<(), StorageError> {
        let mut members = members(&self.data_dir)?;
        members.remove(&self.node_id);
        if members.is_empty() {
            return Err(StorageError::corrupt("the state is damaged, and no other member is known that has it: restore a backup"));
        }
        tracing::warn!(others = ?members.keys(), "fetching the state from another member");
        loop {
            for (id, address) in &members {
                match self.fetch(*id, address).await {
                    Ok(snapshot) => {
                        return blocking(move || self.replace(&snapshot)).await.map_err(|error| StorageError::new("the rebuild", error))?;
                    }
                    Err(error) => {
                        static WARNED: Seldom = Seldom::new();
                        if WARNED.again() {
                            tracing::warn!(from = id, problem = error.0, "the state could not be fetched yet");
                        }
                    }
                }
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    async fn fetch(&self, id: u64, address: &Address) -> Result<Snapshot, SendError> {
        let stall = self.links.snapshot_stall;
        let problem = |error: &dyn std::fmt::Display| SendError(format!("node {id}: {error}"));
        let mut client = self.links.client(id, address, Lane::Snapshot).map_err(|error| problem(&error))?;
        let asked = timeout(stall, client.fetch_state(self.links.request(id, Bytes::new()))).await;
        let mut parts = asked.map_err(|_| problem(&"no answer"))??.into_inner();
        let mut receiver = None;
        while let Some(part) = timeout(stall, parts.message()).await.map_err(|_| problem(&"it sends no more"))?? {
            let Some(receiver) = &receiver else {
                // The first part is the manifest.
                receiver = Some(Arc::new(self.snapshots.start_or_resume(self.checked(&part.data).map_err(|error| problem(&error))?)?));
                continue;
            };
            let receiver = Arc::clone(receiver);
            blocking(move || receiver.write_chunk(&part.file, part.offset, &part.data)).await.map_err(|error| problem(&error))??;
        }
        let receiver = receiver.ok_or_else(|| problem(&"an empty answer"))?;
        Ok(blocking(move || receiver.finish()).await.map_err(|error| problem(&error))??)
    }

    /// A manifest of this cluster whose state the log of this node goes on from.
    fn checked(&self, manifest: &[u8]) -> Result<Manifest, String> {
        let manifest = Manifest::from_bytes(manifest).map_err(|error| error.to_string())?;
        let origin: Origin = codec::decode(&manifest.meta).map_err(|error| error.to_string())?;
        if origin != self.origin {
            return Err(format!("its state is of {origin:?}"));
        }
        let applied = AppliedForm::decode(Some(&manifest.applied)).map_err(|error| error.to_string())?.index();
        if applied < self.purged {
            return Err(format!("its state ends at {applied}, and the log here begins behind {}", self.purged));
        }
        Ok(manifest)
    }

    /// A crash at any step leaves the marker, and the next start does it again.
    fn replace(&self, snapshot: &Snapshot) -> Result<(), StorageError> {
        let aside = self.data_dir.join(ASIDE);
        if self.state_dir.exists() {
            match aside.exists() {
                true => remove(&self.state_dir)?,
                false => fs::rename(&self.state_dir, &aside).map_err(durable::at("set aside", &self.state_dir))?,
            }
            durable::sync_dir(&self.data_dir)?;
        }
        let state = StateStore::open_on(Arc::clone(&self.engine), &self.state_dir, self.options)?;
        state.install(snapshot)?;
        // What was erased here may be in the files that were fetched: it is erased again.
        let erased = self.data_dir.join(eraser::FILE);
        if erased.exists() {
            fs::remove_file(&erased).map_err(durable::at("remove", &erased))?;
            durable::sync_dir(&self.data_dir)?;
        }
        Ok(())
    }
}

/// All is as it has to be again.
pub fn leave(data_dir: &Path) -> Result<(), StorageError> {
    let (marker, aside) = (data_dir.join(MARKER), data_dir.join(ASIDE));
    fs::remove_file(&marker).map_err(durable::at("remove", &marker))?;
    durable::sync_dir(data_dir)?;
    if aside.exists() {
        remove(&aside)?;
    }
    tracing::warn!("the state was rebuilt from another member's");
    Ok(())
}

/// Raft's rule for a state that comes from elsewhere: a log that holds another entry where that state ends goes as a whole. What stands
/// behind such an entry was never committed.
pub fn meet(log: &LogStore, state: &StateStore) -> Result<(), StorageError> {
    let garbled = |error: FormError| StorageError::new("the log and the fetched state", error);
    let Some(end) = AppliedForm::decode(state.applied()?.as_deref()).map_err(garbled)?.last else { return Ok(()) };
    let Some((index, frame)) = log.read(end.index..end.index + 1, usize::MAX)?.into_iter().next() else { return Ok(()) };
    let own = LogIdForm::from(form::decode_entry(index, frame).map_err(garbled)?.log_id());
    if own == end {
        return Ok(());
    }
    tracing::warn!(?own, committed = ?end, "the log goes on from another history than the state: what it holds was not committed");
    log.truncate_after(None, Box::new(|_| {}));
    log.purge_through(end.index, codec::encode(&end).into(), Box::new(|_| {}));
    // Fails if either of them did.
    log.flush()
}

fn remove(dir: &Path) -> Result<(), StorageError> {
    fs::remove_dir_all(dir).map_err(durable::at("remove", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarantine_is_remembered_and_entered_once() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let (stop, stopped) = watch::channel(None);
        let quarantine = Quarantine::new(dir.path().into(), stop);
        let reason = |text: &str| Reason { damaged: Damaged::State, text: text.into() };
        quarantine.enter(reason("first"));
        quarantine.enter(reason("second"));
        quarantine.stopped("third".into());
        assert_eq!(read(dir.path()).unwrap(), Some(reason("first")));
        assert_eq!(stopped.borrow().as_deref(), Some("in quarantine: first"));
    }

    #[test]
    fn damage_is_told_from_other_faults() {
        assert!(is_damage("cannot read from facts: Corruption: block checksum mismatch"));
        assert!(is_damage("the log file 000004.log is damaged at byte 7"));
        assert!(!is_damage("IO error: No space left on device"));
        assert!(!is_damage("IO error: While lock file: LOCK: Resource temporarily unavailable"));
    }
}
