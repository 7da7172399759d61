//! How old the running program is beside its source: asked of a clone of the source on this machine, if there is one.
//!
//! Nothing is fetched: what is compared with is what the clone has, and when it was last brought up to date is told. Git is run
//! when somebody asks, with a deadline, and its answer is kept for an hour.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, UNIX_EPOCH};

use quorate_domain::UnixMs;
use quorate_domain::refusal::shown;

use crate::cluster::now_unix_ms;
use crate::git::{self, Place};

/// The commit that this program was built from, where the build was told.
pub const BINARY_COMMIT: Option<&str> = option_env!("QUORATE_COMMIT");

/// How long an answer is kept, how long one run of git may take, and after how long without a fetch a comparison is stale.
const KEPT: Duration = Duration::from_secs(60 * 60);
const GIT_WITHIN: Duration = Duration::from_secs(5);
const STALE_AFTER_MS: u64 = 24 * 60 * 60 * 1_000;

/// Where to look.
#[derive(Clone, Debug)]
pub struct Source {
    pub checkout: PathBuf,
    /// What to compare with, such as `origin/main`.
    pub reference: String,
}

/// Commits that one side has and the other has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distance {
    pub ahead: u64,
    pub behind: u64,
}

/// What the clone says.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub checked_at: UnixMs,
    pub latest: String,
    /// Of the running program; `None` when the build was not told its commit, or the clone does not know it.
    pub binary: Option<Distance>,
    pub checkout_commit: String,
    pub checkout: Distance,
    /// The clone was not brought up to date for a day.
    pub stale: bool,
    /// What could not be compared.
    pub problem: Option<String>,
}

/// Compares, and remembers.
pub struct Updates {
    pub source: Option<Source>,
    known: Mutex<Option<(Instant, Comparison)>>,
}

impl Updates {
    pub fn new(source: Option<Source>) -> Self {
        Self { source, known: Mutex::new(None) }
    }

    /// How the program stands; `None` without a clone to ask.
    pub async fn compare(&self) -> Option<Result<Comparison, String>> {
        let source = self.source.as_ref()?;
        let known = self.known.lock().expect("no panic under the lock").clone();
        if let Some((_, comparison)) = known.filter(|(at, _)| at.elapsed() < KEPT) {
            return Some(Ok(comparison));
        }
        let compared = compare(source, BINARY_COMMIT).await;
        if let Ok(comparison) = &compared {
            *self.known.lock().expect("no panic under the lock") = Some((Instant::now(), comparison.clone()));
        }
        Some(compared)
    }
}

async fn compare(source: &Source, binary: Option<&str>) -> Result<Comparison, String> {
    let Source { checkout, reference } = source;
    let latest = git(checkout, &["rev-parse", "--verify", "--end-of-options", &format!("{reference}^{{commit}}")]).await?;
    let checkout_commit = git(checkout, &["rev-parse", "--verify", "HEAD^{commit}"]).await?;
    let checkout_distance = distance(checkout, &checkout_commit, &latest).await?;
    let (binary, problem) = match binary {
        None => (None, None),
        Some(commit) => match distance(checkout, commit, &latest).await {
            Ok(distance) => (Some(distance), None),
            Err(problem) => (None, Some(format!("the running commit `{}` can't be compared: {problem}", shown(commit)))),
        },
    };
    let fetched = match git(checkout, &["rev-parse", "--git-path", "FETCH_HEAD"]).await {
        Ok(path) => tokio::fs::metadata(checkout.join(path)).await.and_then(|file| file.modified()).ok(),
        Err(_) => None,
    };
    let fetched_ms = fetched.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |age| age.as_millis() as u64);
    let checked_at = now_unix_ms();
    let stale = checked_at.0.saturating_sub(fetched_ms) > STALE_AFTER_MS;
    Ok(Comparison { checked_at, latest, binary, checkout_commit, checkout: checkout_distance, stale, problem })
}

async fn distance(checkout: &Path, from: &str, to: &str) -> Result<Distance, String> {
    let told = git(checkout, &["rev-list", "--left-right", "--count", "--end-of-options", &format!("{from}...{to}")]).await?;
    let numbers: Vec<u64> = told.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [ahead, behind] => Ok(Distance { ahead, behind }),
        _ => Err(format!("git told `{}`", shown(&told))),
    }
}

/// One run of git, and what it printed.
async fn git(checkout: &Path, arguments: &[&str]) -> Result<String, String> {
    let run = git::run(Place::WorkingTree(checkout), arguments, GIT_WITHIN).await?;
    run.map(|printed| printed.trim().to_string()).map_err(|said| format!("git {}: {}", arguments[0], shown(&said)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clone with two commits behind it, and the first one of them.
    async fn repository(folder: &Path) -> (Source, String) {
        let run = async |arguments: &[&str]| git(folder, arguments).await.unwrap();
        run(&["init", "--quiet", "--initial-branch", "main"]).await;
        let commit = async |name: &str| {
            let by = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
            run(&[&by[..], &["commit", "--quiet", "--allow-empty", "-m", name]].concat()).await;
            run(&["rev-parse", "HEAD"]).await
        };
        let first = commit("first").await;
        commit("second").await;
        commit("third").await;
        run(&["branch", "release"]).await;
        run(&["checkout", "--quiet", "-B", "work", &first]).await;
        commit("own").await;
        (Source { checkout: folder.into(), reference: "release".into() }, first)
    }

    #[tokio::test]
    async fn the_running_commit_and_the_clone_are_compared_with_the_tracked_reference() {
        let folder = tempfile::tempdir().unwrap();
        let (source, first) = repository(folder.path()).await;
        let compared = compare(&source, Some(&first)).await.unwrap();
        assert_eq!(compared.binary, Some(Distance { ahead: 0, behind: 2 }));
        assert_eq!(compared.checkout, Distance { ahead: 1, behind: 2 });
        assert!(compared.stale, "it was never fetched");
        std::fs::write(folder.path().join(".git/FETCH_HEAD"), "").unwrap();
        let compared = compare(&source, Some(&"0".repeat(40))).await.unwrap();
        assert!(compared.binary.is_none() && compared.problem.unwrap().contains("can't be compared"));
        assert!(!compared.stale);
    }

    #[tokio::test]
    async fn a_reference_that_is_not_there_is_a_problem_and_no_comparison() {
        let folder = tempfile::tempdir().unwrap();
        let (source, _) = repository(folder.path()).await;
        let told = compare(&Source { reference: "origin/none".into(), ..source }, None).await.unwrap_err();
        assert!(told.starts_with("git rev-parse"), "{told}");
    }
}
