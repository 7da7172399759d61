//! The storyline of a repository: for each route, the files that its handler reaches, and for programs the whole graph.
//!
//! A story begins at the handler's file with the calls that the handler makes, or all of the file's when it makes none itself, and
//! goes on with the calls of each file it reaches, the most frequent first, five files deep. A file is told in whole once; where it
//! comes again it is marked as a cycle, and what a limit leaves out is counted.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::scan::{self, EdgeRow, FileRow, Part, RouteRow, Scan, file_id, part_id, part_of};
use crate::cursor::Cursors;
use crate::identity::check_name;
use crate::limit::{
    REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES, STORY_BYTES_MAX, STORY_DEPTH_MAX, STORY_FILE_BYTES_MAX, STORY_NODES_MAX, STORY_SYMBOLS_MAX,
};
use crate::record::ReadRecords;
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, UnixMs};
use crate::tx::{Read, StorageError};

/// Parts of one scan, each read once.
struct Parts<'a, V> {
    view: &'a V,
    scan: &'a Scan,
    read: BTreeMap<usize, BTreeMap<u64, FileRow>>,
}

impl<'a, V: Read> Parts<'a, V> {
    fn new(view: &'a V, scan: &'a Scan) -> Self {
        Self { view, scan, read: BTreeMap::new() }
    }

    fn part(&mut self, n: usize) -> Result<&BTreeMap<u64, FileRow>, StorageError> {
        if !self.read.contains_key(&n) {
            let files = match self.scan.file_parts.get(n) {
                Some(hash) => part(self.view, self.scan, hash)?.files,
                None => Vec::new(),
            };
            self.read.insert(n, files.into_iter().map(|file| (file_id(&file.path), file)).collect());
        }
        Ok(&self.read[&n])
    }

    /// A file by its number; a scan may name one that it does not hold.
    fn file(&mut self, id: u64) -> Result<Option<FileRow>, StorageError> {
        let n = part_of(id, self.scan.file_parts.len());
        Ok(self.part(n)?.get(&id).cloned())
    }
}

fn part(view: &impl Read, of: &Scan, hash: &str) -> Result<scan::PartContent, StorageError> {
    let found: Option<Part> = view.get(&of.tenant, &part_id(&of.repo_id, hash))?;
    found.map(|part| part.content).ok_or_else(|| StorageError::corrupt(format!("a scan names a part that is not there: {hash}")))
}

fn routes(view: &impl Read, of: &Scan) -> Result<Vec<RouteRow>, StorageError> {
    let mut routes = Vec::new();
    for hash in &of.route_parts {
        routes.extend(part(view, of, hash)?.routes);
    }
    Ok(routes)
}

/// Where a story begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Start {
    Route(RouteRow),
    /// A file by its path, with all its calls.
    File(String),
}

/// One file on the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub depth: u64,
    pub file: u64,
    pub path: String,
    /// What is called in it, the most frequent first.
    pub symbols: Vec<String>,
    pub symbols_left_out: u64,
    /// How often it is called from the file above.
    pub count: u64,
    pub doc: Option<String>,
    pub mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    Plain,
    /// It was told before.
    Cycle,
    /// Calls of it are left out.
    More,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Story {
    pub start: Start,
    /// In the order in which they are told, the first one at depth 0; empty when the handler's file is not known.
    pub nodes: Vec<Node>,
    /// Calls that a limit left out.
    pub cut: u64,
}

impl Story {
    fn bytes(&self) -> usize {
        REPLY_WRAPPER_BYTES + self.nodes.iter().map(Node::bytes).sum::<usize>()
    }
}

impl Node {
    /// What its line takes, at the most.
    fn bytes(&self) -> usize {
        let texts: usize = self.symbols.iter().map(|symbol| symbol.len() + 2).sum();
        // Lines between the branches are of three bytes each, twelve of them a level.
        self.path.len() + texts + self.doc.as_ref().map_or(0, String::len) + 64 + 12 * usize::try_from(self.depth).unwrap_or(0)
    }
}

/// Tells a story.
struct Teller<'a, 'b, V> {
    parts: &'b mut Parts<'a, V>,
    include_tests: bool,
    told: BTreeSet<u64>,
    story: Story,
    bytes: usize,
}

/// Calls into one file.
struct Called {
    to: u64,
    symbols: Vec<(String, u64)>,
    count: u64,
}

impl<'a, 'b, V: Read> Teller<'a, 'b, V> {
    fn tell(parts: &'b mut Parts<'a, V>, start: Start, include_tests: bool) -> Result<Story, StorageError> {
        let (path, entry) = match &start {
            Start::Route(route) => (route.file.clone(), route.handler.clone()),
            Start::File(path) => (Some(path.clone()), String::new()),
        };
        let story = Story { start, nodes: Vec::new(), cut: 0 };
        let mut teller = Self { parts, include_tests, told: BTreeSet::new(), story, bytes: 0 };
        if let Some(path) = path {
            let symbols = if entry.is_empty() { Vec::new() } else { vec![(entry.clone(), 1)] };
            teller.visit(0, Called { to: file_id(&path), symbols, count: 1 }, Some(&entry))?;
        }
        Ok(teller.story)
    }

    /// Goes [`STORY_DEPTH_MAX`] deep at the most.
    fn visit(&mut self, depth: u64, called: Called, entry: Option<&str>) -> Result<(), StorageError> {
        let Some(file) = self.parts.file(called.to)? else { return Ok(()) };
        if file.is_test && !self.include_tests && depth > 0 {
            return Ok(());
        }
        let Called { to, mut symbols, count } = called;
        symbols.sort_by(|(a, times_a), (b, times_b)| (times_b, a).cmp(&(times_a, b)));
        let symbols_left_out = symbols.len().saturating_sub(STORY_SYMBOLS_MAX) as u64;
        let symbols = symbols.into_iter().take(STORY_SYMBOLS_MAX).map(|(symbol, _)| symbol).collect();
        let is_new = self.told.insert(to);
        let mark = if is_new { Mark::Plain } else { Mark::Cycle };
        let node = Node { depth, file: to, path: file.path, symbols, symbols_left_out, count, doc: file.doc, mark };
        self.bytes += node.bytes();
        self.story.nodes.push(node);
        if !is_new {
            return Ok(());
        }
        let place = self.story.nodes.len() - 1;
        let calls = self.calls(&file.edges, entry);
        let total = calls.len();
        for (n, called) in calls.into_iter().enumerate() {
            let is_over = depth + 1 >= STORY_DEPTH_MAX || self.story.nodes.len() >= STORY_NODES_MAX || self.bytes >= STORY_BYTES_MAX;
            if is_over {
                self.story.cut += (total - n) as u64;
                self.story.nodes[place].mark = Mark::More;
                break;
            }
            self.visit(depth + 1, called, None)?;
        }
        Ok(())
    }

    /// The files that are called, the most frequent first. At the start, those of the entry alone if it calls any.
    fn calls(&self, edges: &[EdgeRow], entry: Option<&str>) -> Vec<Called> {
        let of_entry = |edge: &&EdgeRow| entry.is_some_and(|entry| edge.from == entry);
        let only_entry = edges.iter().any(|edge| of_entry(&edge));
        let mut by_file: BTreeMap<u64, BTreeMap<&str, u64>> = BTreeMap::new();
        for edge in edges.iter().filter(|edge| (!only_entry || of_entry(edge)) && (self.include_tests || !edge.to_is_test)) {
            let times = by_file.entry(edge.to).or_default().entry(&edge.symbol).or_default();
            *times = times.saturating_add(edge.count);
        }
        let called = |(to, symbols): (u64, BTreeMap<&str, u64>)| {
            let count = symbols.values().fold(0_u64, |sum, times| sum.saturating_add(*times));
            Called { to, symbols: symbols.into_iter().map(|(symbol, times)| (symbol.to_string(), times)).collect(), count }
        };
        let mut calls: Vec<Called> = by_file.into_iter().map(called).collect();
        calls.sort_by(|a, b| (b.count, &a.symbols, a.to).cmp(&(a.count, &b.symbols, b.to)));
        calls
    }
}

/// Where the stories begin that an endpoint names: `METHOD /path`, `/path` or the path of a file; all routes without one.
fn starts<V: Read>(parts: &mut Parts<'_, V>, endpoint: Option<&str>) -> Applied<Vec<Start>> {
    let routes = routes(parts.view, parts.scan)?;
    let Some(endpoint) = endpoint else { return Ok(Ok(routes.into_iter().map(Start::Route).collect())) };
    if let Some(refusal) = check_name("endpoint", endpoint) {
        return Ok(Err(refusal));
    }
    let endpoint = endpoint.trim();
    let (method, path) = match endpoint.split_once(char::is_whitespace) {
        Some((method, path)) => (Some(method), path.trim_start()),
        None => (None, endpoint),
    };
    let is_asked = |route: &RouteRow| route.path == path && method.is_none_or(|method| route.method.eq_ignore_ascii_case(method));
    let found: Vec<Start> = routes.into_iter().filter(is_asked).map(Start::Route).collect();
    if found.is_empty() && parts.file(file_id(endpoint))?.is_some() {
        return Ok(Ok(vec![Start::File(endpoint.into())]));
    }
    Ok(if found.is_empty() { Err(Refusal::not_found("route or file", endpoint)) } else { Ok(found) })
}

// ------------------------------------------------------------------ the stories

/// The stories of one endpoint or of all routes, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShowStoryline {
    /// The repository that was scanned last, when absent.
    pub repo_id: Option<String>,
    pub endpoint: Option<String>,
    pub include_tests: bool,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stories {
    pub repo_id: String,
    pub scan_id: String,
    pub scanned_at: UnixMs,
    pub totals: scan::Totals,
    pub stories: Vec<Story>,
    /// Stories after these.
    pub left: u64,
    pub next_cursor: Option<String>,
}

impl ShowStoryline {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Stories> {
        let Self { repo_id, endpoint, include_tests, cursor } = self;
        let scan = match scan::scan(view, &at.caller.tenant, repo_id.as_deref())? {
            Ok(scan) => scan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let cursors = Cursors::of("storyline", &at.caller, &(&scan.scan_id, &endpoint, include_tests));
        let from = match place(&cursors, cursor.as_deref()) {
            Ok((from, _)) => from,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut parts = Parts::new(view, &scan);
        let starts = match starts(&mut parts, endpoint.as_deref())? {
            Ok(starts) => starts,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (all, mut stories, mut bytes) = (starts.len(), Vec::new(), 2 * REPLY_WRAPPER_BYTES);
        for start in starts.into_iter().skip(from) {
            let story = Teller::tell(&mut parts, start, include_tests)?;
            bytes += story.bytes();
            if bytes > REPLY_BYTES_DEFAULT && !stories.is_empty() {
                break;
            }
            stories.push(story);
        }
        let reached = from + stories.len();
        let left = all.saturating_sub(reached) as u64;
        let next_cursor = (left > 0).then(|| seal(&cursors, reached, 0));
        let Scan { repo_id, scan_id, at: scanned_at, totals, .. } = scan;
        Ok(Ok(Stories { repo_id, scan_id, scanned_at, totals, stories, left, next_cursor }))
    }
}

/// Two numbers: where a list goes on.
fn seal(cursors: &Cursors, outer: usize, inner: usize) -> String {
    cursors.seal(&[(outer as u64).to_be_bytes(), (inner as u64).to_be_bytes()].concat())
}

fn place(cursors: &Cursors, cursor: Option<&str>) -> Result<(usize, usize), Refusal> {
    let Some(position) = cursors.open_from(cursor)? else { return Ok((0, 0)) };
    let foreign = || Refusal::invalid("cursor", "is not one of this list; use `next_cursor` as it was given, or none");
    let position: [u8; 16] = position.try_into().map_err(|_| foreign())?;
    let number = |n: usize| usize::try_from(u64::from_be_bytes(std::array::from_fn(|i| position[8 * n + i]))).map_err(|_| foreign());
    Ok((number(0)?, number(1)?))
}

// ------------------------------------------------------------------ the graph

/// Files, the calls between them, and routes: all of them, or what one endpoint reaches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListStoryline {
    pub repo_id: Option<String>,
    pub endpoint: Option<String>,
    pub include_tests: bool,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorylineGraph {
    pub repo_id: String,
    pub scan_id: String,
    pub scanned_at: UnixMs,
    pub totals: scan::Totals,
    /// With their calls.
    pub files: Vec<(u64, FileRow)>,
    /// Each with the files that its story reaches, in its order.
    pub routes: Vec<(RouteRow, Vec<u64>)>,
    pub next_cursor: Option<String>,
}

impl ListStoryline {
    /// Routes come first, then files, part by part.
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<StorylineGraph> {
        let Self { repo_id, endpoint, include_tests, cursor } = self;
        let scan = match scan::scan(view, &at.caller.tenant, repo_id.as_deref())? {
            Ok(scan) => scan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let cursors = Cursors::of("storyline graph", &at.caller, &(&scan.scan_id, &endpoint, include_tests));
        let (outer, inner) = match place(&cursors, cursor.as_deref()) {
            Ok(place) => place,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut parts = Parts::new(view, &scan);
        let starts = match starts(&mut parts, endpoint.as_deref())? {
            Ok(starts) => starts,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut graph = StorylineGraph {
            repo_id: scan.repo_id.clone(),
            scan_id: scan.scan_id.clone(),
            scanned_at: scan.at,
            totals: scan.totals,
            files: Vec::new(),
            routes: Vec::new(),
            next_cursor: None,
        };
        let mut left = (REPLY_BYTES_DEFAULT - 2 * REPLY_WRAPPER_BYTES) as i64;
        let mut fits = |bytes: usize, is_first: bool| {
            left -= i64::try_from(bytes).unwrap_or(i64::MAX);
            left >= 0 || is_first
        };
        // What one endpoint reaches, file by file; else none, and all files of the parts.
        let mut reached: Vec<u64> = Vec::new();
        // The outer number is 0 while routes are told.
        for (n, start) in starts.into_iter().enumerate() {
            let is_told = outer == 0 && n >= inner;
            if !is_told && endpoint.is_none() {
                continue;
            }
            let story = Teller::tell(&mut parts, start, include_tests)?;
            let mut chain: Vec<u64> = Vec::new();
            for node in story.nodes.iter().filter(|node| node.mark != Mark::Cycle) {
                chain.push(node.file);
                if endpoint.is_some() && !reached.contains(&node.file) {
                    reached.push(node.file);
                }
            }
            let Start::Route(route) = story.start else { continue };
            if !is_told || graph.next_cursor.is_some() {
                continue;
            }
            let bytes = route_bytes(&route) + chain.len() * 17;
            if !fits(bytes, graph.routes.is_empty()) {
                graph.next_cursor = Some(seal(&cursors, 0, n));
                if endpoint.is_none() {
                    break;
                }
                continue;
            }
            graph.routes.push((route, chain));
        }
        if graph.next_cursor.is_some() {
            return Ok(Ok(graph));
        }
        let groups = if endpoint.is_some() { 1 } else { scan.file_parts.len() };
        let (first, mut from) = if outer == 0 { (0, 0) } else { (outer - 1, inner) };
        for group in first..groups {
            let rows: Vec<(u64, FileRow)> = match endpoint {
                Some(_) => {
                    let mut rows = Vec::new();
                    for id in &reached {
                        rows.extend(parts.file(*id)?.map(|file| (*id, file)));
                    }
                    rows
                }
                None => parts.part(group)?.iter().map(|(id, file)| (*id, file.clone())).collect(),
            };
            for (n, (id, mut file)) in rows.into_iter().enumerate().skip(from) {
                if file.is_test && !include_tests {
                    continue;
                }
                file.edges.retain(|edge| (include_tests || !edge.to_is_test) && (endpoint.is_none() || reached.contains(&edge.to)));
                while file_bytes(&file) > STORY_FILE_BYTES_MAX && file.edges.pop().is_some() {
                    file.edges_left_out += 1;
                }
                if !fits(file_bytes(&file), graph.files.is_empty() && graph.routes.is_empty()) {
                    graph.next_cursor = Some(seal(&cursors, group + 1, n));
                    return Ok(Ok(graph));
                }
                graph.files.push((id, file));
            }
            from = 0;
            parts.read.remove(&group);
        }
        Ok(Ok(graph))
    }
}

/// What a row takes as JSON, at the most.
fn file_bytes(file: &FileRow) -> usize {
    let texts = [Some(&file.path), Some(&file.package), Some(&file.module), file.doc.as_ref(), file.problem.as_ref()];
    let edges: usize = file.edges.iter().map(|edge| json_bytes(&edge.symbol) + 60).sum();
    160 + texts.into_iter().flatten().map(|text| json_bytes(text)).sum::<usize>() + edges
}

fn route_bytes(route: &RouteRow) -> usize {
    let texts = [Some(&route.method), Some(&route.path), Some(&route.handler), route.file.as_ref(), route.problem.as_ref()];
    120 + texts.into_iter().flatten().map(|text| json_bytes(text)).sum::<usize>()
}

fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(text.len(), |json| json.len())
}
