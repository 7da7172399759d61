//! How a repository is read: five lists, each from where it was left.
//!
//! Commits and pull requests come newest first. They are read until a page holds nothing new, unless the reading before was cut off:
//! then from where it was to the end, and only then from the front. A commit whose parent is not known keeps its list going, since
//! a merge can bring old commits. Issues and comments come in the order of their last change, each page from the change where the
//! one before ended and not by its number, so that what changes meanwhile shifts nothing out of sight.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use quorate_domain::UnixMs;
use quorate_domain::corpus::{CorpusPut, PutCorpus, Source, Told};
use quorate_domain::limit::CORPUS_ITEMS_PER_CALL_MAX;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{Answer, Client, Page};
use super::{Connector, git, shape};
use crate::call::CallError;
use crate::cluster::{new_request, now_unix_ms};
use crate::lease::{Card, Lease, WITHIN};

/// What one entry of the log carries.
const ENTRY_BYTES_MAX: usize = 400 * 1024;
/// Waits after faults: they double up to the longest.
const BACKOFF_MS_MIN: u64 = 2_000;
const BACKOFF_MS_MAX: u64 = 10 * 60 * 1_000;
/// When a repository that is refused is asked for again.
const REFUSED_MS: u64 = 5 * 60 * 1_000;
/// Pages of one list in one visit; the next visit goes on.
const PAGES_MAX: usize = 200;

/// How far a repository is read, as the cluster keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Place {
    commits: List,
    pulls: List,
    issues: List,
    comments: List,
    review_comments: List,
    /// A limit: nothing is asked before.
    not_before_ms: u64,
    /// Of a local repository: the commit that was its newest.
    head: Option<String>,
}

/// How far one list is read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct List {
    /// Of the first page, when it was last read to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    /// From when on it is read; of lists by change, the last change that was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    /// The page where reading was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// What this gateway knows of its last visit to a repository.
pub struct Visit {
    next_ms: u64,
    hints: Option<u64>,
    faults: u32,
}

impl Visit {
    /// None yet: it is due at once, unless a limit that another gateway met still holds.
    pub fn first(source: &Source) -> Self {
        Self { next_ms: place(source).not_before_ms, hints: None, faults: 0 }
    }

    pub fn is_due(&self, hints: u64, poll: Duration, now_ms: u64) -> bool {
        // A clock that was set back must not keep a repository from being read.
        let is_late = now_ms >= self.next_ms || self.next_ms > now_ms + BACKOFF_MS_MAX.max(2 * 60 * 60 * 1_000) + poll.as_millis() as u64;
        is_late || self.faults == 0 && self.hints.is_some_and(|seen| seen != hints)
    }
}

fn place(source: &Source) -> Place {
    serde_json::from_str(&source.place).unwrap_or_default()
}

/// Why a visit ended before its time.
enum Stop {
    /// The card is lost, or the cluster can't be reached.
    Cluster(CallError),
    Wait {
        until_ms: u64,
        why: String,
    },
    Refused(String),
    Failed(String),
}

impl From<CallError> for Stop {
    fn from(error: CallError) -> Self {
        Stop::Cluster(error)
    }
}

/// Reads what is new. An error: the card is lost.
pub(super) async fn visit(
    connector: &Connector,
    client: &Client,
    card: &mut Card<'_>,
    source: Source,
    visit: &mut Visit,
) -> Result<(), CallError> {
    let mut reader = Reader { connector, client, card, repo: source.repo.clone(), place: place(&source), source: &source };
    visit.hints = Some(source.hints);
    let read = match connector.settings.git.get(&source.repo) {
        Some(path) => reader.git(path).await,
        None => reader.api().await,
    };
    let now_ms = now_unix_ms().0;
    let (next_ms, problem) = match read {
        Ok(()) => {
            visit.faults = 0;
            visit.next_ms = now_ms + u64::try_from(connector.settings.poll.as_millis()).unwrap_or(u64::MAX);
            return Ok(());
        }
        Err(Stop::Cluster(error)) => return Err(error),
        Err(Stop::Wait { until_ms, why }) => {
            reader.place.not_before_ms = until_ms;
            (until_ms, format!("GitHub asks to wait: {why}"))
        }
        Err(Stop::Refused(why)) => (now_ms + REFUSED_MS, why),
        Err(Stop::Failed(why)) => {
            let wait = BACKOFF_MS_MIN.saturating_mul(1 << visit.faults.min(16)).min(BACKOFF_MS_MAX);
            (now_ms + jittered(wait), why)
        }
    };
    visit.faults += 1;
    visit.next_ms = next_ms;
    tracing::warn!(repository = source.repo, problem, "a repository is read later");
    // The same once more would be an entry for nothing.
    if source.problem.as_ref() != Some(&problem) || place(&source) != reader.place {
        reader.put(Vec::new(), false, Some(problem)).await.map(|_| ())?;
    }
    Ok(())
}

/// Half to all of it, so that many don't come back at once.
fn jittered(ms: u64) -> u64 {
    ms / 2 + rand::random_range(0..=ms / 2)
}

struct Reader<'a, 'b> {
    connector: &'a Connector,
    client: &'a Client,
    card: &'a mut Card<'b>,
    repo: String,
    place: Place,
    source: &'a Source,
}

/// Which list of a place.
type Which = fn(&mut Place) -> &mut List;

impl Reader<'_, '_> {
    async fn api(&mut self) -> Result<(), Stop> {
        let repo = self.repo.clone();
        let started = now_unix_ms().0.saturating_sub(u64::try_from(self.connector.settings.history.as_millis()).unwrap_or(u64::MAX));
        let started = UnixMs(started - started % 1_000).to_rfc3339().replace(".000Z", "Z");
        let before = self.place.clone();
        for list in [
            &mut self.place.commits,
            &mut self.place.pulls,
            &mut self.place.issues,
            &mut self.place.comments,
            &mut self.place.review_comments,
        ] {
            list.since.get_or_insert_with(|| started.clone());
        }
        self.place.not_before_ms = 0;
        let since = |list: &List| list.since.clone().unwrap_or_default();
        let commits = format!("repos/{repo}/commits?per_page=100&since={}", since(&self.place.commits));
        self.newest_first(|place| &mut place.commits, &commits, shape::commit, None).await?;
        let oldest = self.place.pulls.since.as_deref().and_then(UnixMs::from_rfc3339);
        let pulls = format!("repos/{repo}/pulls?state=all&sort=updated&direction=desc&per_page=100");
        self.newest_first(|place| &mut place.pulls, &pulls, shape::pull_request, oldest).await?;
        let by_change = "sort=updated&direction=asc&per_page=100";
        self.by_change(|place| &mut place.issues, &format!("repos/{repo}/issues?state=all&{by_change}"), shape::issue).await?;
        self.by_change(|place| &mut place.comments, &format!("repos/{repo}/issues/comments?{by_change}"), shape::comment).await?;
        let reviews = format!("repos/{repo}/pulls/comments?{by_change}");
        self.by_change(|place| &mut place.review_comments, &reviews, shape::review_comment).await?;
        // An entry for each look that found nothing would fill the log.
        if self.place != before || self.source.read_at.is_none() || self.source.problem.is_some() {
            self.put(Vec::new(), true, None).await?;
        }
        Ok(())
    }

    /// A page, or why there is none; `None` when nothing has changed.
    async fn page(&mut self, path: &str, etag: Option<&str>) -> Result<Option<Page>, Stop> {
        self.card.keep().await?;
        match self.client.get(path, etag).await {
            Answer::Page(page) => Ok(Some(page)),
            Answer::NotModified => Ok(None),
            Answer::Wait { until_unix_ms, why } => Err(Stop::Wait { until_ms: until_unix_ms, why }),
            Answer::Refused { why } => Err(Stop::Refused(why)),
            Answer::Failed { why } => Err(Stop::Failed(why)),
        }
    }

    /// Reads a list that comes newest first. `oldest`: where it ends, if the list itself goes on.
    async fn newest_first(
        &mut self,
        which: Which,
        first: &str,
        told: fn(&Value) -> Option<Told>,
        oldest: Option<UnixMs>,
    ) -> Result<(), Stop> {
        if let Some(next) = which(&mut self.place).next.clone() {
            // It was cut off there: first to the end, whatever is known.
            self.pages(which, next, None, told, oldest, false).await?;
        }
        let etag = which(&mut self.place).etag.clone();
        self.pages(which, first.into(), etag, told, oldest, true).await
    }

    async fn pages(
        &mut self,
        which: Which,
        first: String,
        etag: Option<String>,
        told: fn(&Value) -> Option<Told>,
        oldest: Option<UnixMs>,
        stops_at_known: bool,
    ) -> Result<(), Stop> {
        let (mut path, mut new_etag) = (first, None);
        let mut parents: BTreeSet<String> = BTreeSet::new();
        for n in 0..PAGES_MAX {
            let Some(Page { items, next, etag }) = self.page(&path, etag.as_deref().filter(|_| n == 0)).await? else { return Ok(()) };
            if n == 0 {
                new_etag = etag;
            }
            let items: Vec<Told> = items.iter().filter_map(told).collect();
            let is_old = oldest.is_some_and(|oldest| items.last().is_some_and(|item| item.updated_at < oldest));
            let seen: Vec<String> = items.iter().map(|item| item.id.clone()).collect();
            // Only when all is read does the first page's mark count, and the next visit begin at the front.
            let is_listed = next.is_none() || is_old;
            which(&mut self.place).next = next.clone().filter(|_| !is_listed);
            if is_listed && stops_at_known {
                which(&mut self.place).etag = new_etag.clone();
            }
            let put = self.put(items, false, None).await?;
            for id in &seen {
                parents.remove(id);
            }
            parents.extend(put.parents_missing.into_iter().filter(|parent| !seen.contains(parent)));
            let is_known = stops_at_known && put.new + put.changed == 0 && parents.is_empty();
            match next.filter(|_| !is_listed && !is_known) {
                Some(next) => path = next,
                None => {
                    let list = which(&mut self.place);
                    list.next = None;
                    if stops_at_known {
                        list.etag = new_etag;
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads a list that comes in the order of its items' last change.
    async fn by_change(&mut self, which: Which, base: &str, told: fn(&Value) -> Option<Told>) -> Result<(), Stop> {
        for _ in 0..PAGES_MAX {
            let List { etag, since, next } = which(&mut self.place).clone();
            let since = since.unwrap_or_default();
            let path = next.clone().unwrap_or_else(|| format!("{base}&since={since}"));
            let etag = etag.filter(|_| next.is_none());
            let Some(page) = self.page(&path, etag.as_deref()).await? else { return Ok(()) };
            let newest = page.items.iter().filter_map(shape::updated_at).max_by_key(|(_, at)| *at).map(|(told, _)| told.to_string());
            let moved = newest.filter(|newest| *newest != since);
            let list = which(&mut self.place);
            // A page that is of one moment to its end: only its number leads on.
            list.next = page.next.clone().filter(|_| moved.is_none());
            list.etag = page.etag.filter(|_| moved.is_none() && page.next.is_none() && next.is_none());
            list.since = moved.clone().or(Some(since));
            let is_last = page.next.is_none();
            self.put(page.items.iter().filter_map(told).collect(), false, None).await?;
            if is_last {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads a repository on this machine.
    async fn git(&mut self, path: &std::path::Path) -> Result<(), Stop> {
        self.card.keep().await?;
        let found = git::read(path, self.place.head.as_deref(), self.connector.settings.history).await.map_err(Stop::Refused)?;
        let Some(found) = found else {
            if self.source.read_at.is_none() || self.source.problem.is_some() {
                self.put(Vec::new(), true, None).await?;
            }
            return Ok(());
        };
        // Oldest first, and the new head last: who goes on after a cut-off reads from the old head again.
        for commits in found.commits.chunks(CORPUS_ITEMS_PER_CALL_MAX) {
            self.card.keep().await?;
            self.put(commits.to_vec(), false, None).await?;
        }
        self.place.head = Some(found.head);
        self.put(Vec::new(), true, None).await?;
        Ok(())
    }

    /// Puts items and the place after them into the corpus, in as few entries as they fit; the place comes with the last.
    async fn put(&mut self, items: Vec<Told>, is_at_end: bool, problem: Option<String>) -> Result<CorpusPut, CallError> {
        let mut groups: Vec<Vec<Told>> = vec![Vec::new()];
        let mut bytes = 0;
        for item in items {
            bytes += item.bytes();
            if bytes > ENTRY_BYTES_MAX || groups.last().is_some_and(|group| group.len() == CORPUS_ITEMS_PER_CALL_MAX) {
                groups.push(Vec::new());
                bytes = item.bytes();
            }
            groups.last_mut().expect("there is one").push(item);
        }
        let place = serde_json::to_string(&self.place).map_err(|error| CallError::Fault { detail: error.to_string() })?;
        let mut all = CorpusPut { new: 0, changed: 0, parents_missing: Vec::new() };
        let count = groups.len();
        for (n, items) in groups.into_iter().enumerate() {
            let is_last = n + 1 == count;
            let command = PutCorpus {
                repo: self.repo.clone(),
                items,
                place: is_last.then(|| place.clone()),
                is_at_end: is_at_end && is_last,
                problem: problem.clone(),
            };
            let Lease { cluster, me, .. } = &self.connector.lease;
            let (put, _) = cluster.propose_as(me, command, Some(self.card.token), new_request(), Instant::now() + WITHIN).await?;
            all.new += put.new;
            all.changed += put.changed;
            all.parents_missing.extend(put.parents_missing);
        }
        Ok(all)
    }
}
