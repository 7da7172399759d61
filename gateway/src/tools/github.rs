//! The corpus of repositories that a connector reads: commits, pull requests, issues and comments.

use quorate_domain::corpus::{self, CorpusItems, ItemKind, ListCorpus, SearchCorpus};
use quorate_domain::{Refusal, Revision, UnixMs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};

/// Items when no number is given.
fn items() -> u64 {
    20
}

fn comments() -> u64 {
    50
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Found {
    /// How many there are on this page.
    count: u64,
    /// Newest first.
    facts: Vec<Fact>,
    /// Pass it as `cursor` for the rest; a page that looked at much may hold few and others still follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Only when no repository has been read for your team: which setting says what is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Fact {
    /// `github::owner/repo::commit/<sha>`, `.../pr/<number>`, `.../issue/<number>` or `.../comment/<id>`.
    entity: String,
    /// A JSON text. A body that was too long is cut, and its whole length stands beside it, as `body_bytes`.
    value: String,
}

fn found(items: CorpusItems, revision: Revision) -> Reply<Found> {
    let note = || {
        "No repository has been read for your team. An operator names some in a gateway's settings `github_repositories` or \
         `git_repositories`, with your team as `github_tenant`."
            .to_string()
    };
    let fact = |item: corpus::Item| Fact { entity: item.entity(), value: item.value };
    let facts: Vec<Fact> = items.items.into_iter().map(fact).collect();
    let note = (!items.has_sources).then(note);
    Reply::at(revision, Found { count: facts.len() as u64, facts, next_cursor: items.next_cursor, note })
}

async fn list(ctx: &CallContext, cluster: &Cluster, query: ListCorpus) -> Result<Reply<Found>, CallError> {
    let (items, served) = cluster.read(ctx, query).await?;
    Ok(found(items, served.revision))
}

// ------------------------------------------------------------------ github_search

/// Search the commits, pull requests, issues and comments of the repositories that are read for your team, newest first.
///
/// Finds what has every word of the query, in any order and case. It reads what a connector has stored and asks nobody else.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GithubSearch {
    /// Words of two letters or more.
    query: String,
    /// `owner/repo`; absent: all that are read.
    repo: Option<String>,
    /// Items of this page, 1 to 1,000. Fewer come when they fill a reply.
    #[serde(default = "items")]
    top_k: u64,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

impl Tool for GithubSearch {
    const NAME: &'static str = "github_search";
    const TITLE: &'static str = "Search GitHub's corpus";
    const SCOPE: &'static str = "crux-mcp.github_search";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GITHUB;
    const IDEMPOTENT: bool = true;
    type Output = Found;

    fn example() -> Value {
        json!({ "query": "receipt" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Found>, CallError> {
        let Self { query, repo, top_k, cursor } = self;
        let asked = cluster.read(ctx, SearchCorpus { query, repo, limit: top_k, cursor }).await;
        let (items, served) = asked.map_err(|error| match error {
            // It has another name here.
            CallError::Refused(Refusal::Invalid { field, problem }) if field == "limit" => {
                CallError::Refused(Refusal::Invalid { field: "top_k".into(), problem })
            }
            error => error,
        })?;
        Ok(found(items, served.revision))
    }
}

// ------------------------------------------------------------------ github_recent_commits

/// List the newest commits of a repository that is read for your team.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GithubRecentCommits {
    /// `owner/repo`.
    repo: String,
    /// Items of this page, 1 to 1,000. Fewer come when they fill a reply.
    #[serde(default = "items")]
    limit: u64,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

impl Tool for GithubRecentCommits {
    const NAME: &'static str = "github_recent_commits";
    const TITLE: &'static str = "List recent commits";
    const SCOPE: &'static str = "crux-mcp.github_recent_commits";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GITHUB;
    const IDEMPOTENT: bool = true;
    type Output = Found;

    fn example() -> Value {
        json!({ "repo": "acme/api" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Found>, CallError> {
        let Self { repo, limit, cursor } = self;
        list(ctx, cluster, ListCorpus { kind: ItemKind::Commit, repo: Some(repo), is_open: true, label: None, since: None, limit, cursor })
            .await
    }
}

// ------------------------------------------------------------------ github_open_prs

/// List the open pull requests of a repository that is read for your team, the one opened last first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GithubOpenPrs {
    /// `owner/repo`.
    repo: String,
    /// Items of this page, 1 to 1,000. Fewer come when they fill a reply.
    #[serde(default = "items")]
    limit: u64,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

impl Tool for GithubOpenPrs {
    const NAME: &'static str = "github_open_prs";
    const TITLE: &'static str = "List open pull requests";
    const SCOPE: &'static str = "crux-mcp.github_open_prs";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GITHUB;
    const IDEMPOTENT: bool = true;
    type Output = Found;

    fn example() -> Value {
        json!({ "repo": "acme/api" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Found>, CallError> {
        let Self { repo, limit, cursor } = self;
        let kind = ItemKind::PullRequest;
        list(ctx, cluster, ListCorpus { kind, repo: Some(repo), is_open: true, label: None, since: None, limit, cursor }).await
    }
}

// ------------------------------------------------------------------ github_open_issues

/// List the open issues of a repository that is read for your team, the one opened last first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GithubOpenIssues {
    /// `owner/repo`.
    repo: String,
    /// Only issues with this label, as it is written.
    label: Option<String>,
    /// Items of this page, 1 to 1,000. Fewer come when they fill a reply.
    #[serde(default = "items")]
    limit: u64,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

impl Tool for GithubOpenIssues {
    const NAME: &'static str = "github_open_issues";
    const TITLE: &'static str = "List open issues";
    const SCOPE: &'static str = "crux-mcp.github_open_issues";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GITHUB;
    const IDEMPOTENT: bool = true;
    type Output = Found;

    fn example() -> Value {
        json!({ "repo": "acme/api" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Found>, CallError> {
        let Self { repo, label, limit, cursor } = self;
        list(ctx, cluster, ListCorpus { kind: ItemKind::Issue, repo: Some(repo), is_open: true, label, since: None, limit, cursor }).await
    }
}

// ------------------------------------------------------------------ github_comments_since

/// List the newest comments of all repositories that are read for your team, on issues, pull requests and lines of code.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GithubCommentsSince {
    /// Comments posted at or after this, in RFC 3339 such as `2026-01-31T00:00:00Z`; absent: however old.
    since: Option<String>,
    /// Items of this page, 1 to 1,000. Fewer come when they fill a reply.
    #[serde(default = "comments")]
    limit: u64,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

impl Tool for GithubCommentsSince {
    const NAME: &'static str = "github_comments_since";
    const TITLE: &'static str = "List recent comments";
    const SCOPE: &'static str = "crux-mcp.github_comments_since";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::GITHUB;
    const IDEMPOTENT: bool = true;
    type Output = Found;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Found>, CallError> {
        let Self { since, limit, cursor } = self;
        let since = match since {
            None => None,
            Some(text) => Some(UnixMs::from_rfc3339(&text).ok_or_else(|| {
                CallError::arguments("`since` is no RFC 3339 time", "Write it with an offset, such as `2026-01-31T00:00:00Z`.")
            })?),
        };
        list(ctx, cluster, ListCorpus { kind: ItemKind::Comment, repo: None, is_open: true, label: None, since, limit, cursor }).await
    }
}
