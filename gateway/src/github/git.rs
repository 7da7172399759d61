//! A repository on this machine as a source of commits, read by running `git`.

use std::path::Path;
use std::time::Duration;

use quorate_domain::corpus::Told;

use super::shape::Commit;
use crate::git::{self, Place};

const WITHIN: Duration = Duration::from_secs(60);
/// Commits of one reading; the next one goes on.
const COMMITS_MAX: usize = 5_000;
/// Hash, parents, author, time and message, each ended by a NUL.
const FORMAT: &str = "--format=format:%H%x00%P%x00%an%x00%cI%x00%B%x00";
const FIELDS: usize = 5;

pub struct Found {
    /// Oldest first.
    pub commits: Vec<Told>,
    pub head: String,
}

/// The commits since `known`, or of the time that is kept; `None` when there are none.
pub async fn read(path: &Path, known: Option<&str>, history: Duration) -> Result<Option<Found>, String> {
    let head = run(path, &["rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}"]).await;
    // A repository without a commit has no head.
    let Some(head) = head?.map(|head| head.trim().to_string()).filter(|head| is_hash(head)) else { return Ok(None) };
    if known == Some(head.as_str()) {
        return Ok(None);
    }
    let (since, many) = (format!("--since={} seconds ago", history.as_secs()), format!("--max-count={}", COMMITS_MAX + 1));
    let mut arguments = vec![
        "log",
        "--no-show-signature",
        "--no-ext-diff",
        "--no-textconv",
        "--no-notes",
        "--no-mailmap",
        "-z",
        FORMAT,
        &since,
        &many,
        &head,
    ];
    // Where it was before, if that is still there after a rewritten history.
    let before = known.filter(|known| is_hash(known)).map(|known| format!("^{known}"));
    let is_there = match known {
        Some(known) => run(path, &["cat-file", "-e", "--end-of-options", &format!("{known}^{{commit}}")]).await?.is_some(),
        None => false,
    };
    arguments.extend(before.as_deref().filter(|_| is_there));
    arguments.push("--");
    let Some(output) = run(path, &arguments).await? else { return Err("`git log` failed on it".into()) };
    let mut commits = commits(&output);
    if commits.len() > COMMITS_MAX {
        return Err(format!("more than {COMMITS_MAX} commits are new; lower `github_history_days`"));
    }
    commits.reverse();
    Ok(Some(Found { commits, head }))
}

fn is_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn commits(output: &str) -> Vec<Told> {
    // With `-z` a NUL stands between commits too, which ends the empty text after a message's own.
    let fields: Vec<&str> = output.split('\0').collect();
    let whole = fields.chunks(FIELDS + 1).filter_map(|fields| <&[&str; FIELDS]>::try_from(fields.get(..FIELDS)?).ok());
    let commit = |[sha, parents, author_name, committed_at, message]: &[&str; FIELDS]| {
        let parents = parents.split(' ').filter(|parent| !parent.is_empty()).collect();
        Commit { sha, message: message.trim_end(), author_name, author_login: None, committed_at, parents, html_url: "" }.told()
    };
    whole.filter_map(commit).collect()
}

/// What `git` prints; `None` when it ends with an error.
async fn run(path: &Path, arguments: &[&str]) -> Result<Option<String>, String> {
    Ok(git::run(Place::Repository(path), arguments, WITHIN).await?.ok())
}

#[cfg(test)]
mod tests {
    use tokio::process::Command;

    use super::*;

    async fn git(path: &Path, arguments: &[&str]) {
        let done = Command::new("git")
            .args(["-C", path.to_str().unwrap(), "-c", "user.name=Mara", "-c", "user.email=mara@example.org"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output();
        let done = done.await.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    fn values(found: &Found) -> Vec<String> {
        let message =
            |told: &Told| serde_json::from_str::<serde_json::Value>(&told.value).unwrap()["message"].as_str().unwrap().to_string();
        found.commits.iter().map(message).collect()
    }

    #[tokio::test]
    async fn commits_are_read_oldest_first_and_then_only_the_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let (work, bare) = (folder.path().join("work"), folder.path().join("bare.git"));
        std::fs::create_dir(&work).unwrap();
        git(&work, &["init", "-q", "-b", "main"]).await;
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        assert!(read(&work.join(".git"), None, year).await.unwrap().is_none(), "no commit yet");
        for message in ["one", "two\n\nwith a body", "three"] {
            git(&work, &["commit", "-q", "--allow-empty", "-m", message]).await;
        }
        git(folder.path(), &["clone", "-q", "--bare", work.to_str().unwrap(), bare.to_str().unwrap()]).await;
        let found = read(&bare, None, year).await.unwrap().unwrap();
        assert_eq!(values(&found), ["one", "two\n\nwith a body", "three"]);
        assert_eq!(found.commits[1].parents, [found.commits[0].id.clone()]);
        assert_eq!(found.commits[2].id, found.head);
        assert!(read(&bare, Some(&found.head), year).await.unwrap().is_none());

        git(&work, &["commit", "-q", "--allow-empty", "-m", "four"]).await;
        git(&work, &["push", "-q", bare.to_str().unwrap(), "main"]).await;
        let more = read(&bare, Some(&found.head), year).await.unwrap().unwrap();
        assert_eq!(values(&more), ["four"]);
        let rewritten = read(&bare, Some(&"0".repeat(40)), year).await.unwrap().unwrap();
        assert_eq!(rewritten.commits.len(), 4);
        assert!(read(folder.path(), None, year).await.unwrap().is_none(), "no repository has no head");
    }

    #[tokio::test]
    async fn programs_that_a_repository_names_are_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let (path, ran) = (folder.path(), folder.path().join("ran"));
        git(path, &["init", "-q", "-b", "main"]).await;
        git(path, &["commit", "-q", "--allow-empty", "-m", "one"]).await;
        let evil = folder.path().join("evil");
        std::fs::write(&evil, format!("#!/bin/sh\ntouch {}\n", ran.display())).unwrap();
        std::fs::set_permissions(&evil, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["core.fsmonitor", "core.pager", "gpg.program", "diff.external", "core.sshCommand", "core.alternateRefsCommand"] {
            git(path, &["config", name, evil.to_str().unwrap()]).await;
        }
        git(path, &["config", "log.showSignature", "true"]).await;
        let found = read(&path.join(".git"), None, Duration::from_secs(1_000_000)).await.unwrap().unwrap();
        assert_eq!(found.commits.len(), 1);
        assert!(!ran.exists());
    }
}
