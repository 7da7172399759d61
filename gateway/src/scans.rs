//! Results of scans on their way into the cluster: dealt to parts, and sent where they are missing.
//!
//! `quorate scan` reads a repository where it lies and sends its parts here over HTTP. A gateway that was given folders
//! (`scan_roots`) does both at once for what lies below them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use quorate_domain::limit::{SCAN_FILE_PARTS_MAX, SCAN_PART_BYTES_MAX, SCAN_PART_ROWS_MAX, SCAN_PARTS_PER_CALL_MAX};
use quorate_domain::repo::ScanPlace;
use quorate_domain::repo::scan::{
    EdgeRow, FileRow, FinishScan, MissingParts, PartContent, PutScanParts, RouteRow, Totals, file_id, part_of,
};
use quorate_domain::{CommandKind, Refusal};
use quorate_scan::resolve::Unresolved;
use quorate_scan::{Cache, Options, Progress, Scan, ScanError, Storyline};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use crate::arguments::read_as;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::edge;
use crate::http::{Received, arguments, receive, refusal};
use crate::mcp::idempotency_key;
use crate::server::App;

/// What parts should hold, so that a change of a file sends little.
const PART_BYTES_WANTED: usize = 16 * 1024;
/// What one call sends at the most. As JSON it stays within a request.
pub const SENT_BYTES_MAX: usize = 256 * 1024;
/// How often a scan is finished anew that loses its parts to another one.
pub const FINISHES_MAX: usize = 5;
/// The scope of who scans.
pub const SCOPE: &str = "crux-mcp.register_repo";

/// A scan, dealt to parts.
pub struct Dealt {
    pub files: Vec<PartContent>,
    pub routes: Vec<PartContent>,
    pub totals: Totals,
}

/// A scan that the cluster does not take.
#[derive(Debug, thiserror::Error)]
pub enum TooLarge {
    #[error("`{0}` and `{1}` have the same number; rename one of them")]
    SameNumber(String, String),
    #[error(
        "the results are larger than the cluster keeps of one repository; scan its folders one by one, each as a repository of its own"
    )]
    Parts,
}

/// Deals a scan to parts that do not change with others.
pub fn deal(scan: &Scan) -> Result<Dealt, TooLarge> {
    let Storyline { files, routes } = &scan.storyline;
    let ids: Vec<u64> = files.iter().map(|file| file_id(&file.path)).collect();
    let mut by_id: Vec<usize> = (0..files.len()).collect();
    by_id.sort_unstable_by_key(|n| ids[*n]);
    if let Some(pair) = by_id.windows(2).find(|pair| ids[pair[0]] == ids[pair[1]]) {
        return Err(TooLarge::SameNumber(files[pair[0]].path.clone(), files[pair[1]].path.clone()));
    }
    let row = |n: usize| {
        let file = &files[n];
        let edge = |edge: &quorate_scan::Edge| EdgeRow {
            from: edge.from.clone(),
            to: ids[edge.to],
            to_is_test: files[edge.to].is_test,
            symbol: edge.symbol.clone(),
            count: edge.count.into(),
        };
        FileRow {
            path: file.path.clone(),
            package: file.package.clone(),
            module: file.module.clone(),
            doc: file.doc.clone(),
            language: file.language.word().into(),
            lines: file.lines.into(),
            functions: file.functions.into(),
            is_test: file.is_test,
            problem: file.problem.map(|problem| problem.word().into()),
            edges: file.edges.iter().map(edge).collect(),
            edges_left_out: file.edges_left_out.into(),
        }
    };
    let rows: Vec<FileRow> = by_id.iter().map(|n| row(*n)).collect();
    let bytes: usize = rows.iter().map(|row| 120 + row.path.len() + row.module.len() + row.edges.len() * 60).sum();
    let mut parts = (bytes / PART_BYTES_WANTED).next_power_of_two().clamp(1, SCAN_FILE_PARTS_MAX);
    let mut dealt = vec![PartContent::default(); parts];
    for file in rows {
        dealt[part_of(file_id(&file.path), parts)].files.push(file);
    }
    // Names of the greatest length can make a part too large all the same.
    let too_large =
        |parts: &[PartContent]| parts.iter().any(|part| part.files.len() > SCAN_PART_ROWS_MAX || part.bytes() > SCAN_PART_BYTES_MAX);
    while too_large(&dealt) {
        if parts == SCAN_FILE_PARTS_MAX {
            return Err(TooLarge::Parts);
        }
        parts *= 2;
        let mut again = vec![PartContent::default(); parts];
        for file in dealt.into_iter().flat_map(|part| part.files) {
            again[part_of(file_id(&file.path), parts)].files.push(file);
        }
        dealt = again;
    }
    let of_route = |route: &quorate_scan::Route| RouteRow {
        method: route.method.clone(),
        path: route.path.clone(),
        handler: route.handler.clone(),
        file: route.file.ok().map(|n| files[n].path.clone()),
        declared_in: files[route.declared_in].path.clone(),
        problem: route.file.err().map(|why| match why {
            Unresolved::NotFound => "not_found".into(),
            Unresolved::Ambiguous => "ambiguous".into(),
        }),
    };
    let rows: Vec<RouteRow> = routes.iter().map(of_route).collect();
    let routes_of_part = 256;
    if rows.len().div_ceil(routes_of_part) > quorate_domain::limit::SCAN_ROUTE_PARTS_MAX {
        return Err(TooLarge::Parts);
    }
    let routes = rows.chunks(routes_of_part).map(|rows| PartContent { files: Vec::new(), routes: rows.to_vec() }).collect();
    let totals = Totals {
        files: files.len() as u64,
        lines: scan.counts.lines,
        routes: scan.storyline.routes.len() as u64,
        problems: scan.counts.problems as u64,
    };
    Ok(Dealt { files: dealt, routes, totals })
}

impl Dealt {
    /// The hashes of all parts: of files, and of routes.
    pub fn hashes(&self) -> (Vec<String>, Vec<String>) {
        let hashes = |parts: &[PartContent]| parts.iter().map(PartContent::hash).collect();
        (hashes(&self.files), hashes(&self.routes))
    }

    /// The parts of these hashes, in groups that one call takes.
    pub fn groups(&self, (of_files, of_routes): &(Vec<String>, Vec<String>), missing: &[String]) -> Vec<Vec<PartContent>> {
        let missing: std::collections::BTreeSet<&String> = missing.iter().collect();
        let all = of_files.iter().zip(&self.files).chain(of_routes.iter().zip(&self.routes));
        let mut groups: Vec<Vec<PartContent>> = Vec::new();
        let mut bytes = usize::MAX;
        for (_, part) in all.filter(|(hash, _)| missing.contains(hash)) {
            let size = part.bytes();
            let has_room = groups.last().is_some_and(|group| group.len() < SCAN_PARTS_PER_CALL_MAX);
            match groups.last_mut().filter(|_| has_room && bytes.saturating_add(size) <= SENT_BYTES_MAX) {
                Some(group) => group.push(part.clone()),
                None => {
                    bytes = 0;
                    groups.push(vec![part.clone()]);
                }
            }
            bytes = bytes.saturating_add(size);
        }
        groups
    }
}

// ------------------------------------------------------------------ scans of this gateway's own

/// The folders that this gateway may scan, and the one scan that it does at a time.
pub struct Scans {
    roots: Vec<PathBuf>,
    one: Semaphore,
}

/// What became of a scan that a call asked for.
pub enum Scanned {
    Done {
        scan_id: String,
    },
    /// Not scanned, and why: a sentence for the caller.
    Not(String),
}

impl Scans {
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots, one: Semaphore::new(1) }
    }

    /// Scans what lies at a path, if it is below one of the roots, and stores what it finds.
    pub async fn scan(&self, ctx: &CallContext, cluster: &Cluster, repo_id: &str, path: &str) -> Result<Scanned, CallError> {
        let elsewhere = || Scanned::Not("This gateway does not read that folder; run `quorate scan PATH` where the code is.".into());
        let Ok(root) = Path::new(path).canonicalize() else { return Ok(elsewhere()) };
        if !self.roots.iter().any(|allowed| root.starts_with(allowed)) {
            return Ok(elsewhere());
        }
        let Ok(_one) = self.one.try_acquire() else {
            return Ok(Scanned::Not("Another scan runs at this gateway; register it again in a minute.".into()));
        };
        let within = ctx.time_left().saturating_sub(Duration::from_secs(3));
        let (told, mut tells) = mpsc::channel(1);
        let options = Options { within, ..Options::default() };
        let scan = tokio::task::spawn_blocking(move || {
            // A client that is slow to take it misses some.
            let mut progress = |progress: Progress| {
                let _ = told.try_send(progress);
            };
            quorate_scan::scan(&root, options, &Cache::default(), &mut progress)
        });
        while let Some(Progress { files_done, files_found }) = tells.recv().await {
            ctx.client.progress(files_done as u64, Some(files_found as u64), Some("files read")).await;
        }
        let scan = scan.await.map_err(|error| CallError::Fault { detail: format!("the scan ended: {error}") })?;
        let dealt = match scan.as_ref().map(deal) {
            Ok(Ok(dealt)) => dealt,
            Ok(Err(error)) => return Ok(Scanned::Not(format!("It was not scanned: {error}."))),
            Err(error @ ScanError::TooSlow { .. }) => {
                return Ok(Scanned::Not(format!("It was not scanned: {error}, or run `quorate scan` where it may take longer.")));
            }
            Err(error) => return Ok(Scanned::Not(format!("It was not scanned: {error}."))),
        };
        store(ctx, cluster, repo_id, &dealt).await.map(|scan_id| Scanned::Done { scan_id })
    }
}

/// Stores what is missing of a scan, and finishes it.
async fn store(ctx: &CallContext, cluster: &Cluster, repo_id: &str, dealt: &Dealt) -> Result<String, CallError> {
    let hashes = dealt.hashes();
    let mut last = None;
    for _ in 0..FINISHES_MAX {
        let all = [hashes.0.clone(), hashes.1.clone()].concat();
        let (found, _) = cluster.read(ctx, MissingParts { repo_id: repo_id.into(), parts: all, place: None }).await?;
        for parts in dealt.groups(&hashes, &found.missing) {
            cluster.propose_step(ctx, PutScanParts { repo_id: repo_id.into(), parts }).await?;
        }
        let (file_parts, route_parts) = hashes.clone();
        let finish = FinishScan { repo_id: repo_id.into(), file_parts, route_parts, totals: dealt.totals, place: None };
        match cluster.propose_step(ctx, finish).await {
            Ok((finished, _)) => return Ok(finished.scan_id),
            // Another scan was finished meanwhile and took parts with it.
            Err(CallError::Refused(refusal @ Refusal::NotFound { .. })) => last = Some(refusal),
            Err(error) => return Err(error),
        }
    }
    Err(last.map_or(CallError::Overloaded, CallError::Refused))
}

// ------------------------------------------------------------------ HTTP

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hashes {
    parts: Vec<String>,
    #[serde(default)]
    place: Option<Place>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    #[schemars(schema_with = "contents")]
    parts: Vec<PartContent>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finish {
    file_parts: Vec<String>,
    route_parts: Vec<String>,
    #[schemars(schema_with = "totals")]
    totals: Totals,
    #[serde(default)]
    place: Option<Place>,
}

/// Where the scan was made; a place that is not the repository's is refused, unless `is_named`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Absolute path of the checkout.
    root_path: String,
    /// Its remote of git, without a password: clones of one remote are one repository.
    clone_url: Option<String>,
    /// The repository's name was chosen, and not made of the folder's.
    #[serde(default)]
    is_named: bool,
}

impl From<Place> for ScanPlace {
    fn from(Place { root_path, clone_url, is_named }: Place) -> Self {
        Self { root_path, clone_url, is_named }
    }
}

fn contents(_: &mut SchemaGenerator) -> Schema {
    let rows = json!({ "type": "array", "items": { "type": "object" } });
    let part = json!({ "type": "object", "properties": { "files": rows, "routes": rows }, "additionalProperties": false });
    json_schema!({ "type": "array", "items": part })
}

fn totals(_: &mut SchemaGenerator) -> Schema {
    let whole = json!({ "type": "integer", "minimum": 0 });
    json_schema!({
        "type": "object",
        "properties": { "files": whole, "lines": whole, "routes": whole, "problems": whole },
        "required": ["files", "lines", "routes", "problems"],
        "additionalProperties": false,
    })
}

/// A request of somebody who may scan, and what is in it.
async fn taken<T: DeserializeOwned + JsonSchema + 'static>(
    app: &Arc<App>,
    request: Request<Body>,
) -> Result<(CallContext, T), Response<Body>> {
    let Received { headers, body, caller, deadline } = receive(app, request).await?;
    match &caller {
        None => return Err(refusal(&CallError::Unauthenticated)),
        Some(caller) if !caller.may(SCOPE) => return Err(refusal(&CallError::MissingScope { scope: SCOPE.into() })),
        Some(_) => {}
    }
    let read = arguments(&headers, &body).and_then(read_as);
    let ctx = CallContext { idempotency_key: idempotency_key(&headers), ..CallContext::new(caller, deadline, app.services.clone()) };
    read.map(|value| (ctx, value)).map_err(|error| refusal(&error))
}

fn answer(facts: Result<Value, CallError>) -> Response<Body> {
    facts.map_or_else(|error| refusal(&error), |facts| edge::json_response(StatusCode::OK, facts.to_string()))
}

async fn proposed<C: CommandKind>(app: &App, ctx: &CallContext, command: C, facts: impl FnOnce(C::Output) -> Value) -> Response<Body> {
    let permit = app.permit();
    match permit {
        Err(error) => refusal(&error),
        Ok(_permit) => answer(app.cluster.propose(ctx, command).await.map(|(made, _)| facts(made))),
    }
}

/// `POST /v1/repos/{id}/scan/missing`: hashes of parts in, those that are not stored out.
pub async fn missing(app: &Arc<App>, repo_id: String, request: Request<Body>) -> Response<Body> {
    match taken::<Hashes>(app, request).await {
        Err(refused) => refused,
        Ok((ctx, Hashes { parts, place })) => {
            let query = MissingParts { repo_id, parts, place: place.map(Into::into) };
            answer(app.cluster.read(&ctx, query).await.map(|(found, _)| json!({ "missing": found.missing })))
        }
    }
}

/// `POST /v1/repos/{id}/scan/parts`: parts in, their hashes out.
pub async fn put(app: &Arc<App>, repo_id: String, request: Request<Body>) -> Response<Body> {
    match taken::<Contents>(app, request).await {
        Err(refused) => refused,
        Ok((ctx, Contents { parts })) => proposed(app, &ctx, PutScanParts { repo_id, parts }, |put| json!({ "parts": put.parts })).await,
    }
}

/// `POST /v1/repos/{id}/scan`: makes stored parts the scan that is shown.
pub async fn finish(app: &Arc<App>, repo_id: String, request: Request<Body>) -> Response<Body> {
    match taken::<Finish>(app, request).await {
        Err(refused) => refused,
        Ok((ctx, Finish { file_parts, route_parts, totals, place })) => {
            let command = FinishScan { repo_id, file_parts, route_parts, totals, place: place.map(Into::into) };
            proposed(app, &ctx, command, |finished| json!({ "scan_id": finished.scan_id })).await
        }
    }
}
