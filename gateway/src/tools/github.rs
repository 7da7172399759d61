//! The corpus of repositories that a connector reads: commits, pull requests, issues and comments.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quorate_domain::corpus::{self, CorpusItems, ItemKind, ListCorpus, ListSources, SearchCorpus, Source};
use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::{Refusal, Revision, UnixMs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::rest;
use crate::server::App;

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
    /// Only where something may be missing: no repository is read for your team, the one asked for is not, or one can't be read now.
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

fn found(items: CorpusItems, repo: Option<&str>, revision: Revision) -> Reply<Found> {
    let note = note(&items, repo);
    let fact = |item: corpus::Item| Fact { entity: item.entity(), value: item.value };
    let facts: Vec<Fact> = items.items.into_iter().map(fact).collect();
    Reply::at(revision, Found { count: facts.len() as u64, facts, next_cursor: items.next_cursor, note })
}

/// Why an answer may hold less than there is.
fn note(items: &CorpusItems, repo: Option<&str>) -> Option<String> {
    const SETTINGS: &str = "An operator names repositories in a gateway's settings `github_repositories` or `git_repositories`, with your \
                            team as `github_tenant`";
    if !items.has_sources {
        return Some(format!("No repository has been read for your team. {SETTINGS}."));
    }
    if let Some(repo) = repo.filter(|_| items.is_unread) {
        return Some(format!(
            "`{repo}` is not among the repositories that are read for your team; `GET /v1/corpus/sources` lists those. {SETTINGS}."
        ));
    }
    let behind = |source: &Source| match (&source.problem, source.read_at) {
        (Some(problem), Some(at)) => {
            format!("`{}` can't be read now, and was read to its end at {} ({problem})", source.repo, at.to_rfc3339())
        }
        (Some(problem), None) => format!("`{}` can't be read now, and never was to its end ({problem})", source.repo),
        (None, _) => format!("`{}` is being read for the first time", source.repo),
    };
    let told: Vec<String> = items.behind.iter().map(behind).collect();
    (!told.is_empty()).then(|| format!("Something may be missing: {}.", told.join("; ")))
}

async fn list(ctx: &CallContext, cluster: &Cluster, query: ListCorpus) -> Result<Reply<Found>, CallError> {
    let repo = query.repo.clone();
    let (items, served) = cluster.read(ctx, query).await?;
    Ok(found(items, repo.as_deref(), served.revision))
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
        let asked = cluster.read(ctx, SearchCorpus { query, repo: repo.clone(), limit: top_k, cursor }).await;
        let (items, served) = asked.map_err(|error| match error {
            // It has another name here.
            CallError::Refused(Refusal::Invalid { field, problem }) if field == "limit" => {
                CallError::Refused(Refusal::Invalid { field: "top_k".into(), problem })
            }
            error => error,
        })?;
        Ok(found(items, repo.as_deref(), served.revision))
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

// ------------------------------------------------------------------ HTTP

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourcesWanted {
    limit: Option<u64>,
    cursor: Option<String>,
}

#[derive(Serialize)]
struct SourceTold {
    repo: String,
    /// When it was last read to its end and something was found; absent before the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_at_unix_ms: Option<u64>,
    /// Why it can't be read now.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// `GET /v1/corpus/sources?limit=&cursor=`: which repositories are read for the tenant, how far, and what is in the way.
pub async fn sources(app: &Arc<App>, request: Request<Body>) -> Response<Body> {
    let cluster = &app.cluster;
    rest::read(app, request, &SEEING_SOURCES, |ctx, SourcesWanted { limit, cursor }: SourcesWanted| async move {
        let (found, served) = cluster.read(&ctx, ListSources { limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor }).await?;
        let told =
            |source: Source| SourceTold { repo: source.repo, read_at_unix_ms: source.read_at.map(|at| at.0), problem: source.problem };
        let sources: Vec<SourceTold> = found.sources.into_iter().map(told).collect();
        let mut facts = json!({ "sources": sources });
        if let Some(cursor) = found.next_cursor {
            facts["next_cursor"] = cursor.into();
        }
        Ok(Reply::at(served.revision, facts))
    })
    .await
}

/// Who reads of a repository may see which there are.
pub const SEEING_SOURCES: [&str; 2] = [GithubSearch::SCOPE, GithubRecentCommits::SCOPE];
