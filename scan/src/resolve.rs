//! Who calls whom, across files: names are looked up where their language would find them, as far as names alone can tell.
//!
//! A name alone goes to its own file, else to what the file imports. One after a module or a type goes to that. A method of a
//! value goes to the one that has its name in the package, else in the whole tree, unless its name is one that values of the language
//! have anyway (`map`, `get`): what a value is, only types would tell. Nothing goes where it can't be named from: a function that is
//! private elsewhere. Where there are several, or none, it goes nowhere: a wrong line in a story costs its reader more than a
//! missing one.

use std::collections::{BTreeMap, HashMap};

use crate::language::Language;
use crate::limit::{EDGES_MAX, GLOBS_MAX};
use crate::parse::{FileFacts, Function, Problem};
use crate::scope::{Form, Import, Reach, is_builtin};
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

/// Where a file stands among the others.
struct Place<'a> {
    language: Language,
    package: String,
    module: String,
    folder: &'a str,
    /// What leads to it, from the root: folders, and its own name unless that stands for the folder.
    parts: Vec<&'a str>,
    is_test: bool,
}

/// A function that a name may mean.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    file: usize,
    function: &'a Function,
}

/// A name, as it is used in a file.
struct Used<'a> {
    name: &'a str,
    of: Option<&'a str>,
    form: Form,
}

struct Names<'a> {
    functions: HashMap<&'a str, Vec<Candidate<'a>>>,
    places: &'a [Place<'a>],
}

/// What a file brings in, by what it calls it.
struct Scope<'a> {
    file: usize,
    imports: HashMap<&'a str, &'a str>,
    globs: Vec<&'a str>,
}

impl<'a> Scope<'a> {
    fn of(file: usize, facts: &'a FileFacts) -> Self {
        let (globs, named): (Vec<&Import>, Vec<&Import>) = facts.imports.iter().partition(|import| &*import.local == "*");
        let imports = named.into_iter().map(|import| (&*import.local, &*import.path)).collect();
        Self { file, imports, globs: globs.into_iter().map(|import| &*import.path).take(GLOBS_MAX).collect() }
    }
}

/// Candidates that are left.
type Found<'a> = Vec<Candidate<'a>>;

impl<'a> Names<'a> {
    /// Where a name goes that is used in a file.
    fn find(&self, used: &Used<'_>, scope: &Scope<'_>) -> Result<usize, Unresolved> {
        let language = self.places[scope.file].language;
        let is_self = matches!(used.of, Some("self" | "Self" | "this" | "super" | "cls"));
        match (used.form, used.of) {
            (Form::Bare, _) => self.bare(used.name, scope),
            (Form::Path, Some(of)) if of != "Self" => self.qualified(of, used.name, scope).unwrap_or(Err(Unresolved::NotFound)),
            (Form::Path, None) => Err(Unresolved::NotFound),
            (_, Some(_)) if is_self => self.own(used.name, scope, |_| true).unwrap_or_else(|| self.method(used.name, scope)),
            (_, Some(of)) => {
                // What begins with a capital is a type, where it is known: what is none of the project's has no function of it.
                let is_type = language != Language::Go && of.starts_with(char::is_uppercase);
                match self.qualified(of, used.name, scope) {
                    Some(found) => found,
                    None if is_type => Err(Unresolved::NotFound),
                    None => self.method(used.name, scope),
                }
            }
            (_, None) => self.method(used.name, scope),
        }
    }

    /// The functions of a name that the file may call. What a program calls is no test, if it can be something else.
    fn visible(&self, name: &str, scope: &Scope<'_>) -> Found<'a> {
        let all = self.functions.get(name).map(Vec::as_slice).unwrap_or_default();
        let seen = |wants_tests: bool| {
            let of_kind = all.iter().filter(move |one| wants_tests || !self.places[one.file].is_test);
            of_kind.filter(|one| self.is_visible(one, scope.file)).copied().collect::<Found<'a>>()
        };
        match seen(self.places[scope.file].is_test) {
            none if none.is_empty() => seen(true),
            some => some,
        }
    }

    fn is_visible(&self, candidate: &Candidate<'_>, from: usize) -> bool {
        let (place, user) = (&self.places[candidate.file], &self.places[from]);
        // Programs of two languages don't call each other by name.
        let is_one_language = place.language == user.language || is_javascript(place.language) && is_javascript(user.language);
        is_one_language
            && match candidate.function.reach {
                _ if candidate.file == from => true,
                Reach::File => false,
                Reach::Module => place.package == user.package && user.parts.starts_with(&place.parts),
                Reach::Folder => place.folder == user.folder,
                Reach::Package => place.package == user.package,
                Reach::Everyone => true,
            }
    }

    fn bare(&self, name: &str, scope: &Scope<'_>) -> Result<usize, Unresolved> {
        let language = self.places[scope.file].language;
        // Java's classes are their methods' scope, and a constructor is named as its class.
        let is_bare = |one: &Candidate<'_>| language == Language::Java || one.function.owner.is_none() && !one.function.is_method;
        if let Some(own) = self.own(name, scope, is_bare) {
            return own;
        }
        if let Some(path) = scope.imports.get(name) {
            let (module, last) = path.rsplit_once('/').unwrap_or(("", path));
            let last = if last == "default" { name } else { last };
            let found: Found<'a> = self.visible(last, scope).into_iter().filter(is_bare).collect();
            // Java imports a class, whose constructor this is, or a method of one.
            let of_class = (language == Language::Java && last.starts_with(char::is_uppercase)).then(|| self.within(&found, path, scope));
            return of_class.filter(Result::is_ok).unwrap_or_else(|| self.within(&found, module, scope));
        }
        let found: Found<'a> = self.visible(name, scope).into_iter().filter(is_bare).collect();
        let of_globs: Found<'a> = scope
            .globs
            .iter()
            .filter_map(|path| self.within(&found, path, scope).ok())
            .filter_map(|file| found.iter().find(|one| one.file == file))
            .copied()
            .collect();
        if !of_globs.is_empty() {
            return only(of_globs.iter());
        }
        let in_folder = |one: &&Candidate<'_>| self.places[one.file].folder == self.places[scope.file].folder;
        match language {
            Language::Go => only(found.iter().filter(in_folder)),
            // An inherited method, or a class of the same folder.
            Language::Java if !is_builtin(language, name) => self.nearest(&found, scope),
            // A page's scripts share one scope.
            _ if is_javascript(language) && scope.imports.is_empty() && !is_builtin(language, name) => {
                let of_page: Found<'a> = found.into_iter().filter(|one| one.function.reach == Reach::Everyone).collect();
                self.nearest(&of_page, scope)
            }
            _ => Err(Unresolved::NotFound),
        }
    }

    /// The file's own function, if it has one of the name.
    fn own(&self, name: &str, scope: &Scope<'_>, fits: impl Fn(&Candidate<'_>) -> bool) -> Option<Result<usize, Unresolved>> {
        self.functions.get(name)?.iter().any(|one| one.file == scope.file && fits(one)).then_some(Ok(scope.file))
    }

    /// What stands after a module or a type; `None` when `of` names neither.
    fn qualified(&self, of: &str, name: &str, scope: &Scope<'_>) -> Option<Result<usize, Unresolved>> {
        let found = self.visible(name, scope);
        let user = &self.places[scope.file];
        let is_free = |one: &&Candidate<'_>| one.function.owner.is_none();
        if user.language == Language::Rust && matches!(of, "crate" | "self" | "super") {
            return Some(only(found.iter().filter(is_free).filter(|one| self.places[one.file].package == user.package)));
        }
        let path = scope.imports.get(of).copied();
        let (before, last) = path.map_or(("", of), |path| path.rsplit_once('/').unwrap_or(("", path)));
        let owned: Found<'a> = found.iter().filter(|one| one.function.owner.as_deref() == Some(last)).copied().collect();
        if !owned.is_empty() {
            // Java's file is its class.
            let of_path = path.map(|path| self.within(&owned, path, scope).or_else(|_| self.within(&owned, before, scope)));
            return Some(of_path.unwrap_or_else(|| self.nearest(&owned, scope)));
        }
        let Some(path) = path else {
            // Rust knows its neighbours without a `use`; elsewhere, what was not brought in is a value.
            if user.language != Language::Rust {
                return None;
            }
            let free: Found<'a> = found.iter().filter(is_free).copied().collect();
            return Some(self.within(&free, of, scope));
        };
        let free: Found<'a> = found.iter().filter(|one| is_free(one)).copied().collect();
        // What was brought in may be a value of its module, too.
        let of_value = || if user.language == Language::Rust { Err(Unresolved::NotFound) } else { self.within(&found, before, scope) };
        Some(self.within(&free, path, scope).or_else(|why| of_value().map_err(|_| why)))
    }

    /// A method of a value of which nothing is known: the one of its name, unless values of the language have one, too.
    fn method(&self, name: &str, scope: &Scope<'_>) -> Result<usize, Unresolved> {
        if is_builtin(self.places[scope.file].language, name) {
            return Err(Unresolved::NotFound);
        }
        let found: Found<'a> = self.visible(name, scope).into_iter().filter(|one| one.function.is_method).collect();
        self.nearest(&found, scope)
    }

    /// Those of the modules that a path leads to, else of those below it, which it may hand on.
    fn within(&self, found: &[Candidate<'a>], path: &str, scope: &Scope<'_>) -> Result<usize, Unresolved> {
        let user = &self.places[scope.file];
        let at = leads(path, user);
        let there: Found<'a> = found.iter().filter(|one| at.is_at(&self.places[one.file])).copied().collect();
        if !there.is_empty() {
            return self.nearest(&there, scope);
        }
        let below: Found<'a> = found.iter().filter(|one| at.is_above(&self.places[one.file])).copied().collect();
        self.nearest(&below, scope)
    }

    /// The one of the file itself, of its package, or of all.
    fn nearest(&self, found: &[Candidate<'a>], scope: &Scope<'_>) -> Result<usize, Unresolved> {
        let package = &self.places[scope.file].package;
        let of_file = only(found.iter().filter(|one| one.file == scope.file));
        let of_package = || only(found.iter().filter(|one| self.places[one.file].package == *package));
        of_file.or_else(|_| of_package()).or_else(|_| only(found.iter()))
    }
}

/// Where a path leads.
struct At<'a> {
    parts: Vec<&'a str>,
    /// Whether that is the way from the root, and not the end of one.
    is_whole: bool,
    /// The package that it stays in.
    package: Option<&'a str>,
}

impl At<'_> {
    fn is_at(&self, place: &Place<'_>) -> bool {
        let in_package = self.package.is_none_or(|package| package == place.package);
        let ends = match (self.is_whole, place.language) {
            (true, _) => place.parts == self.parts,
            // Go names a folder by the name of its module, which only `go.mod` tells, and the way to it from there.
            (false, Language::Go) => {
                place.module.split('/').rev().eq(self.parts.iter().copied().rev().take(place.module.split('/').count()))
            }
            (false, _) => {
                place.parts.len() >= self.parts.len() && is_same(&place.parts[place.parts.len() - self.parts.len()..], &self.parts)
            }
        };
        in_package && ends && (!self.parts.is_empty() || self.is_whole || self.package.is_some())
    }

    fn is_above(&self, place: &Place<'_>) -> bool {
        let in_package = self.package.is_none_or(|package| package == place.package);
        let leads = match (self.is_whole, self.parts.len()) {
            (true, _) => place.parts.starts_with(&self.parts),
            (false, 0) => self.package.is_some(),
            (false, length) => place.parts.windows(length).any(|parts| is_same(parts, &self.parts)),
        };
        in_package && leads
    }
}

/// Where a path leads that is written in a file.
fn leads<'p>(path: &'p str, user: &'p Place<'p>) -> At<'p> {
    let given = path.split('/').filter(|part| !part.is_empty());
    if path.starts_with('.') {
        let mut parts: Vec<&str> = user.folder.split('/').filter(|part| !part.is_empty()).collect();
        for part in given {
            match part {
                "." => {}
                ".." => {
                    parts.pop();
                }
                part => parts.push(part),
            }
        }
        return At { parts: own_parts(parts), is_whole: true, package: None };
    }
    let is_own = user.language == Language::Rust && given.clone().next().is_some_and(|first| matches!(first, "crate" | "self" | "super"));
    let is_special =
        |part: &&str| matches!(*part, "crate" | "self" | "super") && user.language == Language::Rust || matches!(*part, "@" | "~");
    let parts = given.filter(|part| !is_special(part)).filter(|part| *part != "src").collect();
    At { parts, is_whole: false, package: is_own.then_some(&user.package) }
}

/// Whether parts of a way are those that were written. A package is named after its folder, often with the project's name before it.
fn is_same(parts: &[&str], written: &[&str]) -> bool {
    parts.iter().zip(written).enumerate().all(|(n, (part, written))| {
        part == written || n == 0 && written.strip_suffix(&part.replace('-', "_")).is_some_and(|before| before.ends_with(['_', '-']))
    })
}

/// The file that all of them are in.
fn only<'c, 'a: 'c>(mut found: impl Iterator<Item = &'c Candidate<'a>>) -> Result<usize, Unresolved> {
    let first = found.next().ok_or(Unresolved::NotFound)?;
    // A name that a file has twice is still that file's.
    found.all(|other| other.file == first.file).then_some(first.file).ok_or(Unresolved::Ambiguous)
}

fn is_javascript(language: Language) -> bool {
    matches!(language, Language::JavaScript | Language::TypeScript | Language::Tsx)
}

/// Without what stands for the folder itself.
fn own_parts(mut parts: Vec<&str>) -> Vec<&str> {
    if parts.last().is_some_and(|last| matches!(*last, "lib" | "main" | "mod" | "index" | "__init__")) {
        parts.pop();
    }
    parts.retain(|part| *part != "src");
    parts
}

/// Looks up every call and every handler.
pub fn resolve(packages: &Packages, facts: &[FileFacts]) -> Storyline {
    let places: Vec<Place<'_>> = facts
        .iter()
        .map(|file| {
            let (package, root) = packages.of(&file.path);
            let inner = file.path.strip_prefix(root).unwrap_or(&file.path).trim_start_matches('/');
            let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
            let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
            let folders = folder.split('/').filter(|part| !part.is_empty());
            // Go's packages are folders.
            let parts = folders.chain((file.language != Language::Go).then_some(stem)).collect();
            Place {
                language: file.language,
                package: package.to_string(),
                module: module_of(file.language, inner),
                folder,
                parts: own_parts(parts),
                is_test: file.is_test,
            }
        })
        .collect();
    let mut names = Names { functions: HashMap::new(), places: &places };
    for (file, facts) in facts.iter().enumerate() {
        for function in facts.functions.iter().filter(|function| !function.is_test) {
            names.functions.entry(&function.name).or_default().push(Candidate { file, function });
        }
    }
    let mut storyline = Storyline::default();
    for (n, file) in facts.iter().enumerate() {
        let scope = Scope::of(n, file);
        let (edges, edges_left_out) = edges(&names, file, &scope);
        let Place { package, module, .. } = &places[n];
        let functions = u32::try_from(file.functions.len()).unwrap_or(u32::MAX);
        let FileFacts { path, language, doc, lines, is_test, problem, .. } = file;
        storyline.files.push(SourceFile {
            path: path.clone(),
            language: *language,
            package: package.clone(),
            module: module.clone(),
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
                file: names.find(&Used { name: &route.handler, of: route.of.as_deref(), form: route.form }, &scope),
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

fn edges(names: &Names<'_>, file: &FileFacts, scope: &Scope<'_>) -> (Vec<Edge>, u32) {
    let mut counts: BTreeMap<(&str, usize, &str), u32> = BTreeMap::new();
    for call in &file.calls {
        let used = Used { name: &call.name, of: call.of.as_deref(), form: call.form };
        let Ok(to) = names.find(&used, scope) else { continue };
        if to != scope.file {
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
