//! Who calls whom, across files: names are looked up where their language would find them, as far as names alone can tell.
//!
//! A call goes to the module that it names, else to its own file, else to the one file of its package that has a function of that
//! name, else to the one of the whole tree. Where there are several, or none, it goes nowhere: a wrong line in a story costs its
//! reader more than a missing one.

use std::collections::{BTreeMap, HashMap};

use crate::language::Language;
use crate::limit::EDGES_MAX;
use crate::parse::{FileFacts, Problem};
use crate::tree::Packages;

/// The whole tree, ready to be told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Storyline {
    /// In the order of their paths.
    pub files: Vec<SourceFile>,
    /// In the order of path and method.
    pub routes: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SourceFile {
    pub path: String,
    pub language: Language,
    pub package: String,
    pub module: String,
    pub doc: Option<String>,
    pub lines: u32,
    /// How many functions it defines.
    pub functions: u32,
    pub is_test: bool,
    pub problem: Option<Problem>,
    /// Calls into other files, the most frequent first.
    pub edges: Vec<Edge>,
    /// How many more there are.
    pub edges_left_out: u32,
}

/// Calls of one function out of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The calling function; empty outside of all.
    pub from: String,
    /// The place of the called file among the files.
    pub to: usize,
    pub symbol: String,
    pub count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub method: String,
    pub path: String,
    pub handler: String,
    /// The place of the file that has the handler.
    pub file: Result<usize, Unresolved>,
    /// The place of the file that declares it.
    pub declared_in: usize,
}

/// Why a handler's file is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    NotFound,
    Ambiguous,
}

/// A function that a name may mean.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    file: usize,
    package: &'a str,
    module: &'a str,
    is_test: bool,
}

struct Names<'a>(HashMap<&'a str, Vec<Candidate<'a>>>);

impl<'a> Names<'a> {
    /// Where a name goes that is used in a file.
    fn find(&self, name: &str, of: Option<&str>, used_in: Candidate<'_>) -> Result<usize, Unresolved> {
        let all = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        // What a program calls is no test, if it can be something else.
        let is_wanted = |candidate: &&Candidate| used_in.is_test || !candidate.is_test || all.iter().all(|other| other.is_test);
        let wanted: Vec<&Candidate> = all.iter().filter(is_wanted).collect();
        let only = |among: &dyn Fn(&Candidate) -> bool| {
            let mut found = wanted.iter().filter(|candidate| among(candidate));
            found.next().filter(|_| found.next().is_none()).map(|candidate| candidate.file)
        };
        if wanted.is_empty() {
            return Err(Unresolved::NotFound);
        }
        let by_module = of.and_then(|of| {
            let is_named = |candidate: &Candidate| last_part(candidate.module) == of;
            only(&|candidate| is_named(candidate) && candidate.package == used_in.package).or_else(|| only(&is_named))
        });
        by_module
            .or_else(|| only(&|candidate| candidate.file == used_in.file))
            .or_else(|| only(&|candidate| candidate.package == used_in.package))
            .or_else(|| only(&|_| true))
            .ok_or(Unresolved::Ambiguous)
    }
}

/// What others call a module by.
fn last_part(module: &str) -> &str {
    module.rsplit([':', '.', '/']).next().unwrap_or(module)
}

/// Looks up every call and every handler.
pub fn resolve(packages: &Packages, facts: &[FileFacts]) -> Storyline {
    let places: Vec<(String, String)> = facts
        .iter()
        .map(|file| {
            let (package, folder) = packages.of(&file.path);
            let inner = file.path.strip_prefix(folder).unwrap_or(&file.path).trim_start_matches('/');
            (package.to_string(), module_of(file.language, inner))
        })
        .collect();
    let candidate = |n: usize| Candidate { file: n, package: &places[n].0, module: &places[n].1, is_test: facts[n].is_test };
    let mut names = Names(HashMap::new());
    for (n, file) in facts.iter().enumerate() {
        for function in file.functions.iter().filter(|function| !function.is_test) {
            let of_name = names.0.entry(&function.name).or_default();
            // A name that a file has twice is still that file's.
            if of_name.last().is_none_or(|last| last.file != n) {
                of_name.push(candidate(n));
            }
        }
    }
    let mut storyline = Storyline::default();
    for (n, file) in facts.iter().enumerate() {
        let (edges, edges_left_out) = edges(&names, file, candidate(n));
        let (package, module) = places[n].clone();
        let functions = u32::try_from(file.functions.len()).unwrap_or(u32::MAX);
        let FileFacts { path, language, doc, lines, is_test, problem, .. } = file;
        storyline.files.push(SourceFile {
            path: path.clone(),
            language: *language,
            package,
            module,
            doc: doc.clone(),
            lines: *lines,
            functions,
            is_test: *is_test,
            problem: *problem,
            edges,
            edges_left_out,
        });
        // A route of a test is none of the program's.
        for route in file.routes.iter().filter(|_| !file.is_test) {
            storyline.routes.push(Route {
                method: route.method.clone(),
                path: route.path.clone(),
                handler: route.handler.to_string(),
                file: names.find(&route.handler, route.of.as_deref(), candidate(n)),
                declared_in: n,
            });
        }
    }
    storyline.routes.sort_by(|a, b| (&a.path, &a.method, a.declared_in).cmp(&(&b.path, &b.method, b.declared_in)));
    storyline.routes.dedup_by(|a, b| (&a.path, &a.method, &a.handler, &a.file) == (&b.path, &b.method, &b.handler, &b.file));
    storyline
}

/// Go's packages are folders, and are called by the folder's name.
fn module_of(language: Language, path_in_package: &str) -> String {
    match (language, path_in_package.rsplit_once('/')) {
        (Language::Go, Some((folder, _))) => folder.into(),
        _ => language.module(path_in_package),
    }
}

fn edges(names: &Names<'_>, file: &FileFacts, used_in: Candidate<'_>) -> (Vec<Edge>, u32) {
    let mut counts: BTreeMap<(&str, usize, &str), u32> = BTreeMap::new();
    for call in &file.calls {
        let Ok(to) = names.find(&call.name, call.of.as_deref(), used_in) else { continue };
        if to != used_in.file {
            let from = call.from.map_or("", |from| &file.functions[from as usize].name);
            let count = counts.entry((from, to, &call.name)).or_default();
            *count = count.saturating_add(call.count);
        }
    }
    let edge = |((from, to, symbol), count): ((&str, usize, &str), u32)| Edge { from: from.into(), to, symbol: symbol.into(), count };
    let mut edges: Vec<Edge> = counts.into_iter().map(edge).collect();
    edges.sort_by(|a, b| (b.count, &a.from, a.to, &a.symbol).cmp(&(a.count, &b.from, b.to, &b.symbol)));
    let left_out = u32::try_from(edges.len().saturating_sub(EDGES_MAX)).unwrap_or(u32::MAX);
    edges.truncate(EDGES_MAX);
    (edges, left_out)
}
