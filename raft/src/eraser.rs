//! Erases what was forgotten from this node's files.
//!
//! The rules remove a forgotten value from the state, and say in [`ErasureDue`] which entry did so. Its bytes are then still in the
//! log, in files of the state that hold rows as they were before, and perhaps in a snapshot. This task, on every node by itself,
//! purges the log through that entry and rewrites it, rewrites the tenant's part of the state, removes snapshots that are older, and
//! writes down that it did. What it wrote down outlives a restart, so a node that was away does it when it is back.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_domain::fact::{ErasureDue, erasures_due};
use quorate_domain::key::Key;
use quorate_domain::tx::Table;
use quorate_domain::{Revision, StorageError};
use quorate_storage::durable;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::blocking::blocking;
use crate::log::fault;
use crate::machine::Applied;
use crate::transfer::Incoming;
use crate::types::Raft;

const FILE: &str = "erased.json";
/// How often it looks whether something is due.
const LOOK: Duration = Duration::from_millis(500);
/// After an attempt that failed.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the log and the snapshots are waited for in one attempt.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Tables in which a tenant's forgotten values stood.
const TABLES: [Table; 2] = [Table::Records, Table::Dedup];

/// What this node has erased: all that was purged up to an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erased {
    /// The entry that removed the last forgotten value.
    pub through: u64,
    /// The log has no entry up to here in any of its files.
    pub log_purged_through: u64,
    /// Whose parts of the state were rewritten.
    pub tenants: u64,
    pub at_unix_ms: u64,
}

pub struct Eraser {
    raft: Raft,
    applied: Arc<Applied>,
    incoming: Arc<Incoming>,
    path: PathBuf,
    done: watch::Sender<Option<Erased>>,
}

impl Eraser {
    pub fn open(
        raft: Raft,
        applied: Arc<Applied>,
        incoming: Arc<Incoming>,
        data_dir: &Path,
    ) -> io::Result<(Self, watch::Receiver<Option<Erased>>)> {
        let path = data_dir.join(FILE);
        let found = durable::read_if_there(&path).map_err(fault)?;
        let found = found.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        let found = found.map_err(|error| io::Error::other(format!("{} is damaged: {error}", path.display())))?;
        let (done, watched) = watch::channel(found);
        Ok((Self { raft, applied, incoming, path, done }, watched))
    }

    /// Runs until the node stops.
    pub async fn run(self) {
        let mut seen = 0;
        loop {
            sleep(LOOK).await;
            // The rows change with entries alone.
            let index = self.applied.index();
            if index == seen {
                continue;
            }
            match self.look().await {
                Ok(()) => seen = index,
                Err(error) => {
                    tracing::warn!(%error, "what was forgotten is not erased here yet; it is tried again");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    async fn look(&self) -> io::Result<()> {
        let after = Revision(self.done.borrow().as_ref().map_or(0, |done| done.through));
        let state = Arc::clone(&self.applied.state);
        let due = blocking(move || erasures_due(&*state, after)).await?.map_err(fault)?;
        match due.iter().map(|due| due.revision.0).max() {
            Some(through) => self.erase(through, due).await,
            None => Ok(()),
        }
    }

    async fn erase(&self, through: u64, due: Vec<ErasureDue>) -> io::Result<()> {
        tracing::info!(through, "erasing what was forgotten");
        self.purge_log(through).await?;
        self.remove_snapshots(through).await?;
        let (log, state) = (Arc::clone(&self.applied.log), Arc::clone(&self.applied.state));
        let tenants: BTreeSet<&str> = due.iter().map(|due| due.tenant.as_str()).collect();
        let ranges: Vec<_> = tenants.iter().flat_map(|name| TABLES.map(|table| rows_of(table, name))).collect();
        blocking(move || {
            log.erase_purged()?;
            state.erase(&ranges)
        })
        .await?
        .map_err(fault)?;
        let purged = self.applied.log.first_index().map_err(fault)?.map_or(through, |first| first.saturating_sub(1));
        let at_unix_ms = self.applied.wall_now().0;
        let erased = Erased { through, log_purged_through: purged.max(through), tenants: tenants.len() as u64, at_unix_ms };
        let (path, bytes) = (self.path.clone(), serde_json::to_vec_pretty(&erased)?);
        blocking(move || durable::replace_file(&path, &bytes)).await?.map_err(fault)?;
        self.done.send_replace(Some(erased));
        Ok(())
    }

    /// Entries may go once their effect is on disk.
    async fn purge_log(&self, through: u64) -> io::Result<()> {
        let stopped = |_| io::Error::other("the node stops");
        self.raft.trigger().snapshot().await.map_err(stopped)?;
        self.wait("the state is flushed", || Ok(self.applied.flushed_index() >= through)).await?;
        self.wait("no snapshot of before is on its way", || Ok(self.applied.floor() >= through)).await?;
        self.raft.trigger().purge_log(through).await.map_err(stopped)?;
        self.wait("the log is purged", || {
            let log = &self.applied.log;
            Ok(match (log.first_index()?, log.read_purged()?) {
                (Some(first), _) => first > through,
                (None, purged) => purged.is_some(),
            })
        })
        .await
    }

    async fn remove_snapshots(&self, through: u64) -> io::Result<()> {
        let incoming = Arc::clone(&self.incoming);
        blocking(move || incoming.remove_older(through)).await?.map_err(fault)?;
        let until = tokio::time::Instant::now() + WAIT_MAX;
        loop {
            // One that is being sent or read goes when that ends.
            self.applied.drop_unused_snapshot(Duration::ZERO).await;
            let snapshots = self.applied.snapshots().clone();
            let left = blocking(move || snapshots.prune(0).and_then(|()| snapshots.list())).await?.map_err(fault)?;
            if left.is_empty() {
                return Ok(());
            }
            if tokio::time::Instant::now() > until {
                return Err(io::Error::other("a snapshot is still being read"));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn wait(&self, what: &str, mut is_so: impl FnMut() -> Result<bool, StorageError>) -> io::Result<()> {
        let until = tokio::time::Instant::now() + WAIT_MAX;
        while !is_so().map_err(fault)? {
            if tokio::time::Instant::now() > until {
                return Err(io::Error::other(format!("waited in vain until {what}")));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// All rows of one tenant in a table.
fn rows_of(table: Table, tenant: &str) -> (Table, Vec<u8>, Vec<u8>) {
    let rows = Key::new().text(tenant);
    (table, rows.as_bytes().to_vec(), rows.after_prefix())
}
