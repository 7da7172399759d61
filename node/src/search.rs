//! The search index of this node: a task that keeps it up with the state, and searches that wait for it.
//!
//! A search has to find what its caller wrote before. So it is asked of a state that is as fresh as the read wants it, and waits, for
//! a bounded time, until the index has caught up with that state. An index that is merely behind then answers all the same, and the
//! reply says up to where it goes; one that is being built answers nothing, and the caller asks another node.
//!
//! Words of what was forgotten stand in files of the index until those are merged. So when log and state have erased something, the
//! index is thrown away and built anew, and only then has this node erased it ([`SearchIndex::has_erased`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_domain::fact::{FactHits, FactsAsked};
use quorate_domain::search::{Asked, Hits};
use quorate_domain::{Principal, Revision, chain};
use quorate_proto::cluster as wire;
use quorate_raft::{RaftNode, blocking};
use quorate_search::{Error, Index, Indexer, Size, Step};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

/// How long a search waits for the index to catch up.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// An index that nobody waits for takes changes in so often: many in one commit cost little more than one.
const UNASKED: Duration = Duration::from_millis(250);
/// After a failure, so that a full disk is not asked all the time.
const REST: Duration = Duration::from_secs(5);

/// The index of a running node. Clones share it.
#[derive(Clone)]
pub struct SearchIndex {
    shared: Arc<Shared>,
}

struct Shared {
    current: watch::Sender<Current>,
    /// Up to where somebody waits for.
    wanted: AtomicU64,
    asked: Notify,
    stop: AtomicBool,
    /// A search failed on the files: they are thrown away.
    damaged: AtomicBool,
    rebuilds: AtomicU64,
    indexed: AtomicU64,
    /// The index was built anew after everything up to this entry was erased from the state.
    erased: watch::Sender<u64>,
    task: std::sync::OnceLock<AbortHandle>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

#[derive(Clone, Default)]
struct Current {
    index: Option<Index>,
    /// Every change up to this revision is in it; nothing while it is built.
    through: Option<Revision>,
    problem: Option<String>,
}

impl SearchIndex {
    /// Begins to follow the state. Files are in `dir`; `origin` names the cluster and its lineage.
    pub fn start(raft: RaftNode, dir: PathBuf, origin: String) -> Self {
        let shared = Arc::new(Shared {
            current: watch::Sender::new(Current::default()),
            wanted: AtomicU64::new(0),
            asked: Notify::new(),
            stop: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
            rebuilds: AtomicU64::new(0),
            indexed: AtomicU64::new(0),
            erased: watch::Sender::new(0),
            task: std::sync::OnceLock::new(),
        });
        let task = tokio::spawn(keep(Arc::downgrade(&shared), raft, dir, origin));
        // Set once, here.
        let _ = shared.task.set(task.abort_handle());
        Self { shared }
    }

    /// Ends a step that is under way, so that the process does not wait for it.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.asked.notify_one();
    }

    /// Candidates for a search over a state of `revision`.
    pub async fn search(&self, caller: Principal, asked: Asked, revision: Revision, deadline: Instant) -> Result<Hits, wire::Unavailable> {
        let (index, through) = self.caught_up(revision, deadline).await?;
        let found = blocking(move || index.search(&caller, &asked, through)).await;
        match found {
            Ok(Ok(hits)) => Ok(hits),
            Ok(Err(error)) => Err(self.lost(&chain(&error))),
            Err(panic) => Err(self.lost(&panic.to_string())),
        }
    }

    /// Facts for the words of a recall, by what the index knows now: the rules find the rest in the state.
    pub async fn facts(&self, caller: Principal, asked: FactsAsked) -> FactHits {
        let current = self.shared.current.borrow().clone();
        let (Some(index), Some(indexed_through)) = (current.index, current.through) else { return FactHits::default() };
        // Without an index a recall is slower, and what has the name comes where its confidence puts it.
        match blocking(move || index.facts(&caller, &asked, indexed_through)).await {
            Ok(Ok(hits)) => hits,
            Ok(Err(error)) => {
                self.lost(&chain(&error));
                FactHits::default()
            }
            Err(panic) => {
                self.lost(&panic.to_string());
                FactHits::default()
            }
        }
    }

    fn lost(&self, why: &str) -> wire::Unavailable {
        tracing::error!(why, "the search index failed, and is built anew");
        self.shared.damaged.store(true, Ordering::Relaxed);
        self.shared.asked.notify_one();
        building("the search index of this node failed, and is being built anew")
    }

    async fn caught_up(&self, revision: Revision, deadline: Instant) -> Result<(Index, Revision), wire::Unavailable> {
        self.shared.wanted.fetch_max(revision.0, Ordering::Relaxed);
        self.shared.asked.notify_one();
        let mut current = self.shared.current.subscribe();
        let until = deadline.min(Instant::now() + WAIT_MAX);
        let reached = current.wait_for(|current| current.through.is_some_and(|through| through >= revision));
        // Whether it was reached or not, what is there now counts.
        let _ = tokio::time::timeout_at(until.into(), reached).await;
        let current = self.shared.current.borrow().clone();
        match (current.index, current.through, current.problem) {
            (Some(index), Some(through), _) => Ok((index, through)),
            (_, _, Some(problem)) => Err(building(&format!("the search index of this node can't be built: {problem}"))),
            _ => Err(building("the search index of this node is being built")),
        }
    }

    /// Whether the index holds nothing any more of what was erased up to an entry; waits for it until the deadline.
    pub async fn has_erased(&self, through: u64, deadline: Instant) -> bool {
        let mut erased = self.shared.erased.subscribe();
        let reached = erased.wait_for(|erased| *erased >= through);
        tokio::time::timeout_at(deadline.into(), reached).await.is_ok()
    }

    pub fn exposition(&self) -> String {
        let current = self.shared.current.borrow().clone();
        let Size { documents, segments, disk_bytes } = current.index.as_ref().map(Index::size).unwrap_or_default();
        let mut text = String::new();
        let mut add = |name: &str, kind: &str, help: &str, value: u64| {
            text += &format!("# HELP quorate_search_{name} {help}\n# TYPE quorate_search_{name} {kind}\nquorate_search_{name} {value}\n");
        };
        add(
            "indexed_through",
            "gauge",
            "Revision up to which the search index goes; 0 while it is built.",
            current.through.map_or(0, |at| at.0),
        );
        add("documents", "gauge", "Documents in the search index.", documents);
        add("segments", "gauge", "Segments of the search index.", segments);
        add("disk_bytes", "gauge", "What the search index takes on disk.", disk_bytes);
        add("records_total", "counter", "Records that the search index looked at.", self.shared.indexed.load(Ordering::Relaxed));
        add("rebuilds_total", "counter", "Times that the search index was built anew.", self.shared.rebuilds.load(Ordering::Relaxed));
        text
    }
}

fn building(detail: &str) -> wire::Unavailable {
    wire::Unavailable { reason: "starting".into(), detail: detail.into(), retry_after_ms: 1_000, maybe_written: false }
}

/// Names what was erased before the index was built; beside its own files, and gone with them.
const ERASED_FILE: &str = "erased";

/// Why an index is not followed any longer.
enum End {
    Stopped,
    Failed(String),
    /// Something was erased from the state, and its words may stand in files of the index.
    Outdated,
}

/// Opens the index and follows the state, for ever.
async fn keep(shared: std::sync::Weak<Shared>, raft: RaftNode, dir: PathBuf, origin: String) {
    let mut anew = false;
    loop {
        // Of before the files go, so that what is built has none of it.
        let erased = raft.erasures().borrow().as_ref().map_or(0, |erased| erased.through);
        let (at, of) = (dir.clone(), origin.clone());
        let opened = blocking(move || {
            let built_after = match anew {
                true => Some(erased),
                // Missing or unreadable: nobody knows what such an index holds.
                false => std::fs::read_to_string(at.join(ERASED_FILE)).ok().and_then(|text| text.trim().parse().ok()),
            };
            let indexer = if anew { Indexer::anew(&at, &of) } else { Indexer::open(&at, &of) };
            indexer.map(|indexer| (indexer, built_after.unwrap_or(0)))
        });
        let end = match opened.await {
            Ok(Ok((indexer, built_after))) => follow(&shared, &raft, indexer, &dir, built_after).await,
            Ok(Err(error)) => End::Failed(chain(&error)),
            Err(panic) => End::Failed(panic.to_string()),
        };
        anew = true;
        let problem = match end {
            End::Stopped => return,
            End::Failed(why) => {
                tracing::error!(why, "the search index can't go on, and is built anew");
                Some(why)
            }
            End::Outdated => {
                tracing::info!("the search index is built anew, without what was forgotten");
                None
            }
        };
        let is_failure = problem.is_some();
        match shared.upgrade() {
            Some(shared) => shared.current.send_replace(Current { problem, ..Current::default() }),
            None => return,
        };
        if is_failure {
            tokio::time::sleep(REST).await;
        }
    }
}

/// Follows the state until the index is of no more use, or the node stops. The index was built after everything up to `built_after`
/// was erased.
async fn follow(shared: &std::sync::Weak<Shared>, raft: &RaftNode, mut indexer: Indexer, dir: &Path, built_after: u64) -> End {
    let (mut applied, mut erasures) = (raft.applied(), raft.erasures());
    let mut is_noted = false;
    loop {
        let Some(this) = shared.upgrade() else { return End::Stopped };
        if this.stop.load(Ordering::Relaxed) {
            return End::Stopped;
        }
        if this.damaged.swap(false, Ordering::Relaxed) {
            return End::Failed("a search failed on it".into());
        }
        if erasures.borrow_and_update().as_ref().is_some_and(|erased| erased.through > built_after) {
            return End::Outdated;
        }
        applied.borrow_and_update();
        let (state, stopper) = (Arc::clone(raft.state()), Arc::clone(&this));
        let following = blocking(move || {
            let step = indexer.follow(&state.view(), &|| stopper.stop.load(Ordering::Relaxed));
            (indexer, step)
        });
        let step: Result<Step, Error>;
        (indexer, step) = match following.await {
            Ok(done) => done,
            Err(panic) => return End::Failed(panic.to_string()),
        };
        match step {
            Ok(step) => {
                this.indexed.fetch_add(step.looked_at, Ordering::Relaxed);
                this.rebuilds.fetch_add(u64::from(step.is_rebuilt), Ordering::Relaxed);
                if step.is_rebuilt {
                    tracing::info!(documents = step.looked_at, through = step.through.0, "the search index was built");
                }
            }
            Err(error) => return End::Failed(chain(&error)),
        }
        let through = indexer.through();
        if through.is_some() && !is_noted {
            is_noted = true;
            if let Err(error) = tokio::fs::write(dir.join(ERASED_FILE), built_after.to_string()).await {
                // After a restart it is built once more than need be.
                tracing::warn!(%error, "cannot note what the search index was built after");
            }
            this.erased.send_replace(built_after);
        }
        this.current.send_replace(Current { index: Some(indexer.index()), through, problem: None });
        let is_wanted = || through.is_none_or(|through| this.wanted.load(Ordering::Relaxed) > through.0);
        if is_wanted() {
            // A search waits for what this node has applied already.
            continue;
        }
        tokio::select! {
            () = this.asked.notified() => {}
            _ = erasures.changed() => {}
            changed = applied.changed() => {
                if changed.is_err() {
                    return End::Stopped;
                }
                let _ = tokio::time::timeout(UNASKED, this.asked.notified()).await;
            }
        }
    }
}
