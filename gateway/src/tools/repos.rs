//! Repositories, and the storylines of their scans.

use quorate_domain::limit::LIST_DEFAULT;
use quorate_domain::repo;
use quorate_domain::repo::storyline::{ListStoryline, Mark, Node, ShowStoryline, Start, Stories, Story};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::scans::Scanned;

// ------------------------------------------------------------------ get_workspace_storyline

/// Show which files each endpoint of a scanned repository reaches, as call trees or as a graph.
///
/// Reads the last finished scan; `quorate scan PATH` makes one where the code is. A tree begins at the handler's file and goes five
/// files deep, the most frequent calls first. `(Nx)` counts calls, `[cycle]` was told above, `[+more]` is cut off. Calls are matched
/// by name, so an ambiguous one is left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetWorkspaceStoryline {
    /// `METHOD /path` such as `POST /v1/projects`, a path for all its methods, or the path of a file; absent: every route.
    endpoint: Option<String>,
    /// `tree` draws call trees as text; `json` answers files, edges and routes.
    #[serde(default)]
    format: Format,
    /// Calls into files of tests too; false when absent.
    #[serde(default)]
    include_tests: bool,
    /// Which repository, as `list_repos` names it; absent: the one that was scanned last.
    repo_id: Option<String>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    #[default]
    Tree,
    Json,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct WorkspaceStoryline {
    repo_id: String,
    scan_id: String,
    scanned_at_unix_ms: u64,
    /// Of the whole scan.
    totals: Totals,
    /// Format `tree`: the trees of this page, drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<String>,
    /// Format `tree`: endpoints that follow on later pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints_left: Option<u64>,
    /// Format `json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<SourceFile>>,
    /// Format `json`: calls between files, each `[from_id, to_id, count, to_symbol]`; an edge comes with the file that calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    edges: Option<Vec<Vec<Value>>>,
    /// Format `json`: all come before the first file.
    #[serde(skip_serializing_if = "Option::is_none")]
    routes: Option<Vec<Route>>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Totals {
    files: u64,
    lines: u64,
    routes: u64,
    /// Files that could not be read or understood in whole.
    problems: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SourceFile {
    /// Its id in edges and chains.
    i: u64,
    /// Path from the repository's root.
    p: String,
    /// Crate or package.
    c: String,
    /// Module within it.
    m: String,
    /// First line of its documentation; empty when it has none.
    d: String,
    /// Functions that it defines.
    f: u64,
    /// Whether it is of tests.
    t: bool,
    /// Calls into other files that are left out here, for there are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    edges_left_out: u64,
    /// Why it was not read in whole: `unreadable`, `too_large`, `too_slow` or `too_many`.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Route {
    /// Method; `ANY` for all.
    m: String,
    /// Path.
    p: String,
    /// The function that answers.
    h: String,
    /// The path of its file; empty when it is not known.
    f: String,
    /// The files that it reaches, in the order of its tree.
    chain: Vec<u64>,
    /// Why its file is not known: `not_found` or `ambiguous`.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl From<repo::scan::Totals> for Totals {
    fn from(totals: repo::scan::Totals) -> Self {
        let repo::scan::Totals { files, lines, routes, problems } = totals;
        Self { files, lines, routes, problems }
    }
}

impl Tool for GetWorkspaceStoryline {
    const NAME: &'static str = "get_workspace_storyline";
    const TITLE: &'static str = "Show what endpoints call";
    const SCOPE: &'static str = "crux-mcp.get_workspace_storyline";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::REPOSITORIES;
    const IDEMPOTENT: bool = true;
    type Output = WorkspaceStoryline;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<WorkspaceStoryline>, CallError> {
        let Self { endpoint, format, include_tests, repo_id, cursor } = self;
        match format {
            Format::Tree => {
                let (stories, served) = cluster.read(ctx, ShowStoryline { repo_id, endpoint, include_tests, cursor }).await?;
                let tree = draw(&stories);
                let text = match &stories.next_cursor {
                    Some(cursor) => format!("{tree}\n{} more endpoints: pass cursor {cursor}\n", stories.left),
                    None => tree.clone(),
                };
                let facts = WorkspaceStoryline {
                    repo_id: stories.repo_id,
                    scan_id: stories.scan_id,
                    scanned_at_unix_ms: stories.scanned_at.0,
                    totals: stories.totals.into(),
                    tree: Some(tree),
                    endpoints_left: Some(stories.left),
                    files: None,
                    edges: None,
                    routes: None,
                    next_cursor: stories.next_cursor,
                };
                Ok(Reply::at(served.revision, facts).with_text(Some(text)))
            }
            Format::Json => {
                let (graph, served) = cluster.read(ctx, ListStoryline { repo_id, endpoint, include_tests, cursor }).await?;
                let (mut files, mut edges) = (Vec::new(), Vec::new());
                for (id, file) in graph.files {
                    edges.extend(file.edges.into_iter().map(|edge| vec![id.into(), edge.to.into(), edge.count.into(), edge.symbol.into()]));
                    files.push(SourceFile {
                        i: id,
                        p: file.path,
                        c: file.package,
                        m: file.module,
                        d: file.doc.unwrap_or_default(),
                        f: file.functions,
                        t: file.is_test,
                        edges_left_out: file.edges_left_out,
                        problem: file.problem,
                    });
                }
                let route = |(route, chain): (repo::scan::RouteRow, Vec<u64>)| Route {
                    m: route.method,
                    p: route.path,
                    h: route.handler,
                    f: route.file.unwrap_or_default(),
                    chain,
                    problem: route.problem,
                };
                let facts = WorkspaceStoryline {
                    repo_id: graph.repo_id,
                    scan_id: graph.scan_id,
                    scanned_at_unix_ms: graph.scanned_at.0,
                    totals: graph.totals.into(),
                    tree: None,
                    endpoints_left: None,
                    files: Some(files),
                    edges: Some(edges),
                    routes: Some(graph.routes.into_iter().map(route).collect()),
                    next_cursor: graph.next_cursor,
                };
                Ok(Reply::at(served.revision, facts))
            }
        }
    }
}

/// The trees as text, for a reader.
fn draw(stories: &Stories) -> String {
    let mut text = String::new();
    for story in &stories.stories {
        text += &draw_one(story);
        text.push('\n');
    }
    if stories.stories.is_empty() {
        text += "no route was found in this scan; name a file as `endpoint` to see what it calls\n";
    }
    text
}

fn draw_one(story: &Story) -> String {
    let mut text = match &story.start {
        Start::Route(route) => format!("{} {}  {}\n", route.method, route.path, route.handler),
        Start::File(path) => format!("{path}\n"),
    };
    if let (Start::Route(route), true) = (&story.start, story.nodes.is_empty()) {
        let why = route.problem.as_deref().unwrap_or("not_found");
        return text + &format!("(the file of its handler is not known: {why}; declared in {})\n", route.declared_in);
    }
    // Whether a branch goes on below each level.
    let mut goes_on: Vec<bool> = Vec::new();
    for (n, node) in story.nodes.iter().enumerate() {
        let depth = usize::try_from(node.depth).unwrap_or(usize::MAX);
        goes_on.truncate(depth.saturating_sub(1));
        if depth > 0 {
            let followed = story.nodes[n + 1..].iter().take_while(|next| next.depth >= node.depth).any(|next| next.depth == node.depth);
            for above in &goes_on {
                text += if *above { "│   " } else { "    " };
            }
            text += if followed { "├── " } else { "└── " };
            goes_on.push(followed);
        }
        text += &line(node);
        text.push('\n');
    }
    let files: std::collections::BTreeSet<u64> = story.nodes.iter().map(|node| node.file).collect();
    let deepest = story.nodes.iter().map(|node| node.depth).max().unwrap_or(0);
    text += &format!("{} files, {deepest} deep, {} branches cut off\n", files.len(), story.cut);
    text
}

/// `file::symbols (Nx) - doc`.
fn line(node: &Node) -> String {
    let mut text = node.path.clone();
    if !node.symbols.is_empty() {
        text += &format!("::{}", node.symbols.join(", "));
    }
    if node.symbols_left_out > 0 {
        text += &format!(", +{}", node.symbols_left_out);
    }
    match node.count {
        0 | 1 => {}
        count @ 2..=9 => text += &format!(" ({count}x)"),
        count @ 10..=49 => text += &format!(" (many: {count})"),
        count => text += &format!(" (hot: {count})"),
    }
    match node.mark {
        // What it does was told where it came first.
        Mark::Cycle => text += " [cycle]",
        Mark::Plain | Mark::More => {
            if let Some(doc) = &node.doc {
                text += &format!(" - {doc}");
            }
            if node.mark == Mark::More {
                text += " [+more]";
            }
        }
    }
    text
}

// ------------------------------------------------------------------ register_repo

/// Register a repository of your team, by path or clone URL; registering it again changes what is said of it.
///
/// A `root_path` below a folder that the gateway is set up to read is scanned at once. Otherwise run `quorate scan PATH` where the
/// code is. A `clone_url` is noted and not cloned.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterRepo {
    /// Your tenant, or `local` for the same; another one is refused.
    tenant_id: String,
    /// Its name in your team; made of the path or URL when absent.
    repo_id: Option<String>,
    /// Absolute path of a checkout.
    root_path: Option<String>,
    /// Where it is cloned from, without a password.
    clone_url: Option<String>,
    /// Languages in it, such as `rust`.
    #[serde(default)]
    languages: Vec<String>,
    /// Whether names in it that differ in case alone are different files; true when absent.
    case_sensitive: Option<bool>,
}

/// A repository as callers see it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Repo {
    repo_id: String,
    tenant_id: String,
    /// As registered, or where `quorate scan` was run last.
    #[serde(skip_serializing_if = "Option::is_none")]
    root_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clone_url: Option<String>,
    languages: Vec<String>,
    enabled: bool,
    case_sensitive: bool,
    added_at_unix_ms: u64,
    /// The scan that `get_workspace_storyline` shows; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_scan_id: Option<String>,
}

impl From<repo::Repo> for Repo {
    fn from(repo: repo::Repo) -> Self {
        Self {
            repo_id: repo.repo_id,
            tenant_id: repo.tenant,
            root_path: repo.root_path,
            clone_url: repo.clone_url,
            languages: repo.languages,
            enabled: repo.enabled,
            case_sensitive: repo.case_sensitive,
            added_at_unix_ms: repo.added_at.0,
            last_scan_id: repo.last_scan_id,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Registered {
    #[serde(flatten)]
    repo: Repo,
    /// With a `root_path` that was not scanned now: why, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_scanned: Option<String>,
}

impl Tool for RegisterRepo {
    const NAME: &'static str = "register_repo";
    const TITLE: &'static str = "Register a repository";
    const SCOPE: &'static str = crate::scans::SCOPE;
    const EFFECT: Effect = Effect::Write;
    const GROUP: &'static str = group::REPOSITORIES;
    const IDEMPOTENT: bool = true;
    type Output = Registered;

    fn example() -> Value {
        json!({ "tenant_id": "local", "clone_url": "https://example.org/acme/api.git" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Registered>, CallError> {
        let Self { tenant_id, repo_id, root_path, clone_url, languages, case_sensitive } = self;
        let command = repo::RegisterRepo { tenant_id, repo_id, root_path: root_path.clone(), clone_url, languages, case_sensitive };
        let (made, revision) = cluster.propose(ctx, command).await?;
        let mut repo = Repo::from(made);
        let mut not_scanned = None;
        if let Some(path) = root_path {
            match ctx.services.scans.scan(ctx, cluster, &repo.repo_id, &path).await? {
                Scanned::Done { scan_id } => repo.last_scan_id = Some(scan_id),
                Scanned::Not(why) => not_scanned = Some(why),
            }
        }
        Ok(Reply::at(revision, Registered { repo, not_scanned }))
    }
}

// ------------------------------------------------------------------ list_repos

/// List your team's repositories, by name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRepos {
    /// Your tenant, or `local` for the same; another one is refused.
    tenant_id: String,
    /// Rows of this page: 50 when absent, at most 1,000. Fewer come when they fill a reply.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Repos {
    repos: Vec<Repo>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Tool for ListRepos {
    const NAME: &'static str = "list_repos";
    const TITLE: &'static str = "List repositories";
    const SCOPE: &'static str = "crux-mcp.list_repos";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::REPOSITORIES;
    const IDEMPOTENT: bool = true;
    type Output = Repos;

    fn example() -> Value {
        json!({ "tenant_id": "local" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Repos>, CallError> {
        let Self { tenant_id, limit, cursor } = self;
        let query = repo::ListRepos { tenant_id, limit: limit.unwrap_or(LIST_DEFAULT as u64), cursor };
        let (found, served) = cluster.read(ctx, query).await?;
        let facts = Repos { repos: found.repos.into_iter().map(Into::into).collect(), next_cursor: found.next_cursor };
        Ok(Reply::at(served.revision, facts))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use quorate_domain::repo::scan::RouteRow;

    use super::*;

    fn node(depth: u64, path: &str, symbols: &[&str], count: u64, mark: Mark) -> Node {
        let symbols: Vec<String> = symbols.iter().map(|symbol| symbol.to_string()).collect();
        let file = path.bytes().map(u64::from).sum();
        Node { depth, file, path: path.into(), symbols, symbols_left_out: count / 50, count, doc: Some(format!("About {path}.")), mark }
    }

    #[test]
    fn a_tree_is_drawn_with_weights_cycles_and_what_is_cut_off() {
        let route = RouteRow {
            method: "GET".into(),
            path: "/a".into(),
            handler: "list".into(),
            file: Some("http.rs".into()),
            declared_in: "lib.rs".into(),
            problem: None,
        };
        let nodes = vec![
            node(0, "http.rs", &["list"], 1, Mark::Plain),
            node(1, "auth.rs", &["check"], 9, Mark::Plain),
            node(2, "http.rs", &["fail"], 2, Mark::Cycle),
            node(2, "store.rs", &["rows", "count"], 10, Mark::Plain),
            node(1, "page.rs", &["draw"], 50, Mark::More),
        ];
        let unknown = RouteRow { file: None, problem: Some("ambiguous".into()), ..route.clone() };
        let stories = [Story { start: Start::Route(route), nodes, cut: 3 }, Story { start: Start::Route(unknown), nodes: vec![], cut: 0 }];
        let told: String = stories.iter().map(|story| draw_one(story) + "\n").collect();
        expect![[r#"
            GET /a  list
            http.rs::list - About http.rs.
            ├── auth.rs::check (9x) - About auth.rs.
            │   ├── http.rs::fail (2x) [cycle]
            │   └── store.rs::rows, count (many: 10) - About store.rs.
            └── page.rs::draw, +1 (hot: 50) - About page.rs. [+more]
            4 files, 2 deep, 3 branches cut off

            GET /a  list
            (the file of its handler is not known: ambiguous; declared in lib.rs)

        "#]]
        .assert_eq(&told);
    }
}
