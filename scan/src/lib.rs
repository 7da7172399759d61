//! Reads a tree of source code and tells how its parts call each other: the storyline of its routes.
//!
//! It runs where the code is, at a developer's machine or at a gateway that was given folders to read. What comes out names
//! files, functions and routes and counts calls; the only text of a file in it is the first line of a module's documentation.
//! This crate knows nothing of the cluster, the network or who asks.
//!
//! The tree is taken for hostile: nothing in it is run, nothing outside of it is read, and each file has a limit of size, of time
//! and of what is kept of it. What a limit left out is counted and told.
//!
//! Reading order: [`tree`] (which files), [`language`] and [`parse`] (what is in one), [`routes`] (what answers a request),
//! [`scope`] and [`resolve`] (who calls whom), [`cache`] (what need not be read again).

pub mod cache;
pub mod language;
pub mod limit;
pub mod parse;
pub mod resolve;
mod routes;
pub mod scope;
pub mod tree;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub use cache::Cache;
pub use parse::{FileFacts, Problem};
pub use resolve::{Edge, Route, SourceFile, Storyline};

use crate::tree::{Found, Tree};

/// How far a scan has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub files_done: usize,
    pub files_found: usize,
}

/// What a scan may take.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that read; 0 for one a processor.
    pub threads: usize,
    /// How long the whole may take.
    pub within: Duration,
    /// Whether the first line of a module's documentation is kept.
    pub docs: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 0, within: limit::SCAN_WITHIN, docs: true }
    }
}

/// Why there is no scan.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    #[error("cannot read {path}")]
    Root {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is no folder")]
    NoFolder { path: PathBuf },
    #[error("there are more than {limit} {what} below {path}; scan a folder in it, or name in `.ignore` what does not belong to it")]
    TooLarge { path: PathBuf, what: &'static str, limit: u64 },
    #[error("reading {path} took more than {} s; scan a folder in it", within.as_secs())]
    TooSlow { path: PathBuf, within: Duration },
}

/// What a tree holds, and what there was to do.
#[derive(Debug)]
pub struct Scan {
    pub storyline: Storyline,
    /// For the next scan.
    pub cache: Cache,
    pub counts: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub files: usize,
    pub lines: u64,
    /// Files whose content was known from the scan before.
    pub unchanged: usize,
    /// Files that could not be read or understood in whole; each says why.
    pub problems: usize,
}

/// Scans the tree below a folder. `before` is what the last scan of it left.
pub fn scan(root: &Path, options: Options, before: &Cache, progress: &mut dyn FnMut(Progress)) -> Result<Scan, ScanError> {
    let until = Instant::now() + options.within;
    let too_slow = || ScanError::TooSlow { path: root.into(), within: options.within };
    let tree = Tree::open(root)?;
    let found = tree.files(until)?;
    let files = read_all(&tree, &found, options, before, until, progress).ok_or_else(too_slow)?;
    let mut counts = Counts { files: files.len(), ..Counts::default() };
    for (facts, known) in &files {
        counts.lines += u64::from(facts.lines);
        counts.unchanged += usize::from(*known);
        counts.problems += usize::from(facts.problem.is_some());
    }
    let files: Vec<FileFacts> = files.into_iter().map(|(facts, _)| facts).collect();
    let mut storyline = resolve::resolve(&tree.packages(&found), &files);
    if !options.docs {
        storyline.files.iter_mut().for_each(|file| file.doc = None);
    }
    Ok(Scan { storyline, cache: Cache::of(files), counts })
}

/// The facts of each file, in the order of `found`, and whether they were known; `None` when the time is over.
fn read_all(
    tree: &Tree,
    found: &Found,
    options: Options,
    before: &Cache,
    until: Instant,
    progress: &mut dyn FnMut(Progress),
) -> Option<Vec<(FileFacts, bool)>> {
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let next = AtomicUsize::new(0);
    let (done, results) = mpsc::sync_channel(threads * 4);
    let paths = &found.sources;
    let mut facts: Vec<Option<(FileFacts, bool)>> = paths.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(paths.len().max(1)) {
            let done = done.clone();
            let next = &next;
            scope.spawn(move || {
                let mut parsers = parse::Parsers::default();
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    let Some(path) = paths.get(n) else { return };
                    if Instant::now() >= until {
                        return;
                    }
                    // Nobody listens any more only when the whole has failed.
                    if done.send((n, read_one(tree, path, before, &mut parsers))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        let mut files_done = 0;
        for (n, one) in results {
            facts[n] = Some(one);
            files_done += 1;
            if files_done % 256 == 0 || files_done == paths.len() {
                progress(Progress { files_done, files_found: paths.len() });
            }
        }
    });
    facts.into_iter().collect()
}

fn read_one(tree: &Tree, path: &str, before: &Cache, parsers: &mut parse::Parsers) -> (FileFacts, bool) {
    // Only paths of a known language are among the sources.
    let language = language::Language::of(path).expect("a source has a language");
    let text = match tree.read(path) {
        Ok(text) => text,
        Err(problem) => return (FileFacts::unread(path, language, problem), false),
    };
    let hash = *blake3::hash(&text).as_bytes();
    match before.get(path, &hash) {
        Some(known) => (known.clone(), true),
        None => (parsers.parse(path, language, hash, &text), false),
    }
}
