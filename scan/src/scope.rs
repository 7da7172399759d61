//! What a name can mean where it stands: how far a function can be called from, what a file brings in by name, and which names
//! every value of a language answers to.

use serde::{Deserialize, Serialize};
use tree_sitter::Node;

use crate::language::Language;
use crate::limit::NAME_BYTES_MAX;
use crate::parse::Source;

/// Who can name a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// Its own file.
    File,
    /// Its module and those below it: Rust without a word.
    Module,
    /// The files of its folder: Go in lower case, Java without a word.
    Folder,
    /// Its package.
    Package,
    Everyone,
}

/// How a call is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Form {
    /// `rows()`
    Bare,
    /// `store::rows()`: after a module or a type.
    Path,
    /// `store.rows()`: after a value, or a module where those are written the same.
    Dotted,
}

/// A name that a file brings in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// What the file calls it; `*` for all that lies at the path.
    pub local: Box<str>,
    /// Where it comes from, with `/` between the parts and its own name at the end; `default` where it has none there.
    pub path: Box<str>,
}

impl Import {
    fn new(local: &str, path: &str) -> Option<Self> {
        let fits = !local.is_empty() && local.len() <= NAME_BYTES_MAX && path.len() <= NAME_BYTES_MAX;
        fits.then(|| Self { local: local.into(), path: path.into() })
    }
}

/// What an `import` or a `use` brings in.
pub(crate) fn imports(language: Language, source: Source<'_>, node: Node<'_>) -> Vec<Import> {
    match language {
        Language::Rust => node.child_by_field_name("argument").and_then(|argument| source.text(argument)).map(rust).unwrap_or_default(),
        Language::Python => python(source, node),
        Language::Go => go(source, node).into_iter().collect(),
        Language::Java => source.text(node).and_then(java).into_iter().collect(),
        Language::JavaScript | Language::TypeScript | Language::Tsx => javascript(source, node),
    }
}

/// `a::b::{c, d::{e as f, *}, self}`.
fn rust(text: &str) -> Vec<Import> {
    let (mut found, mut prefixes, mut path) = (Vec::new(), Vec::new(), String::new());
    let mut end = |path: &mut String, prefix: &str| {
        let given = std::mem::replace(path, prefix.to_string());
        let (whole, alias) = given.split_once(" as ").map_or((given.as_str(), None), |(whole, alias)| (whole, Some(alias.trim())));
        let whole = whole.replace("::", "/");
        let whole = whole.trim().trim_end_matches("/self");
        let (before, last) = whole.rsplit_once('/').unwrap_or(("", whole));
        found.extend(match last {
            "*" => Import::new("*", before),
            last => Import::new(alias.unwrap_or(last), whole),
        });
    };
    let mut was_space = false;
    for c in text.chars() {
        let prefix = prefixes.last().map_or("", String::as_str);
        match c {
            '{' => prefixes.push(path.clone()),
            ',' => end(&mut path, prefix),
            '}' => {
                end(&mut path, "");
                prefixes.pop();
            }
            c if c.is_whitespace() => {}
            c => {
                // Only the blanks around `as` mean anything.
                if was_space && (path.ends_with(char::is_alphanumeric) || path.ends_with('_') || path.ends_with(" as")) {
                    path.push(' ');
                }
                path.push(c);
            }
        }
        was_space = c.is_whitespace();
    }
    end(&mut path, "");
    found
}

fn python(source: Source<'_>, node: Node<'_>) -> Vec<Import> {
    let dotted = |node: Node<'_>| source.text(node).map(|text| text.replace(' ', ""));
    // Each dot at the beginning is a folder up, the first one the file's own.
    let base = node.child_by_field_name("module_name").and_then(dotted).map(|module| {
        let dots = module.len() - module.trim_start_matches('.').len();
        let up = match dots {
            0 => String::new(),
            dots => format!("./{}", "../".repeat(dots - 1)),
        };
        format!("{up}{}", module.trim_start_matches('.').replace('.', "/"))
    });
    let mut found = Vec::new();
    let mut cursor = node.walk();
    for name in node.children_by_field_name("name", &mut cursor) {
        let (name, alias) = match name.kind() {
            "aliased_import" => {
                (name.child_by_field_name("name").and_then(dotted), name.child_by_field_name("alias").and_then(|alias| source.name(alias)))
            }
            _ => (dotted(name), None),
        };
        let Some(name) = name.map(|name| name.replace('.', "/")) else { continue };
        let local = alias.unwrap_or_else(|| name.rsplit('/').next().unwrap_or(&name));
        let path = base.as_ref().map_or_else(|| name.clone(), |base| format!("{}/{name}", base.trim_end_matches('/')));
        found.extend(Import::new(local, &path));
    }
    let is_glob = children(node).any(|child| child.kind() == "wildcard_import");
    found.extend(base.filter(|_| is_glob).and_then(|base| Import::new("*", base.trim_end_matches('/'))));
    found
}

fn go(source: Source<'_>, node: Node<'_>) -> Option<Import> {
    let path = node.child_by_field_name("path").and_then(|path| source.string(path))?;
    let local = match node.child_by_field_name("name") {
        Some(name) if name.kind() == "dot" => "*",
        Some(name) => source.name(name)?,
        None => path.rsplit('/').next()?,
    };
    Import::new(local, path)
}

/// `import static org.acme.Util.max;`
fn java(text: &str) -> Option<Import> {
    let text = text.strip_prefix("import")?.trim().trim_end_matches(';').trim();
    let text = text.strip_prefix("static ").unwrap_or(text).replace('.', "/");
    let (before, last) = text.rsplit_once('/')?;
    match last {
        "*" => Import::new("*", before),
        last => Import::new(last, &text),
    }
}

fn javascript(source: Source<'_>, node: Node<'_>) -> Vec<Import> {
    // `const { rows } = require('./store')`, or an `import`.
    let from = match node.kind() {
        "variable_declarator" => required(source, node),
        _ => node.child_by_field_name("source").and_then(|path| source.string(path)),
    };
    let Some(from) = from else { return Vec::new() };
    let from = ends_stripped(from);
    let (mut found, mut left) = (Vec::new(), vec![node]);
    // An import nests three deep.
    while let Some(node) = left.pop() {
        for child in children(node) {
            let field = |name| child.child_by_field_name(name).and_then(|node: Node<'_>| source.name(node));
            found.extend(match child.kind() {
                "identifier" => source.name(child).and_then(|local| Import::new(local, &format!("{from}/default"))),
                "namespace_import" => child.named_child(0).and_then(|name| Import::new(source.name(name)?, from)),
                "import_specifier" => field("name").and_then(|name| Import::new(field("alias").unwrap_or(name), &format!("{from}/{name}"))),
                "shorthand_property_identifier_pattern" => source.name(child).and_then(|name| Import::new(name, &format!("{from}/{name}"))),
                "pair_pattern" => field("key").zip(field("value")).and_then(|(name, local)| Import::new(local, &format!("{from}/{name}"))),
                "import_clause" | "named_imports" | "object_pattern" => {
                    left.push(child);
                    None
                }
                _ => None,
            });
        }
    }
    found
}

fn children(node: Node<'_>) -> impl Iterator<Item = Node<'_>> {
    (0..u32::try_from(node.named_child_count()).unwrap_or(u32::MAX)).filter_map(move |n| node.named_child(n))
}

/// What a variable requires.
pub(crate) fn required<'a>(source: Source<'a>, variable: Node<'_>) -> Option<&'a str> {
    let call = variable.child_by_field_name("value").filter(|value| value.kind() == "call_expression")?;
    let callee = call.child_by_field_name("function").and_then(|callee| source.name(callee))?;
    let path = call.child_by_field_name("arguments")?.named_child(0)?;
    (callee == "require").then(|| source.string(path))?
}

fn ends_stripped(path: &str) -> &str {
    const ENDS: [&str; 8] = [".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx"];
    ENDS.iter().find_map(|end| path.strip_suffix(end)).unwrap_or(path)
}

/// The names that a file of JavaScript hands out other than by `export` before a declaration.
pub(crate) fn exported<'a>(source: Source<'a>, node: Node<'_>) -> Vec<&'a str> {
    let of_value = |value: Node<'_>| match value.kind() {
        "identifier" => source.name(value).into_iter().collect(),
        "object" => {
            let named = children(value).filter_map(|child| match child.kind() {
                "shorthand_property_identifier" => source.name(child),
                "pair" => {
                    child.child_by_field_name("value").filter(|value| value.kind() == "identifier").and_then(|value| source.name(value))
                }
                _ => None,
            });
            named.collect()
        }
        _ => Vec::new(),
    };
    match node.kind() {
        // `export { rows, list as all }`, `export default rows`
        "export_statement" => {
            let clause = children(node).find(|child| child.kind() == "export_clause");
            let specifiers = clause.into_iter().flat_map(children);
            let mut names: Vec<&str> =
                specifiers.filter_map(|one| one.child_by_field_name("name")).filter_map(|name| source.name(name)).collect();
            names.extend(node.child_by_field_name("value").map(of_value).unwrap_or_default());
            names
        }
        // `module.exports = { rows }`, `exports.rows = rows`
        _ => node.child_by_field_name("right").map(of_value).unwrap_or_default(),
    }
}

/// Whether values of the language have a method of this name, or everyone a function, whatever a project calls its own.
pub(crate) fn is_builtin(language: Language, name: &str) -> bool {
    let names: &[&str] = match language {
        Language::Rust => RUST,
        Language::Python => PYTHON,
        Language::JavaScript | Language::TypeScript | Language::Tsx => JAVASCRIPT,
        Language::Go => GO,
        Language::Java => JAVA,
    };
    names.binary_search(&name).is_ok()
}

// Each in order, since they are searched by halves.

const RUST: &[&str] = &[
    "abs",
    "all",
    "and",
    "and_then",
    "any",
    "append",
    "as_bytes",
    "as_deref",
    "as_mut",
    "as_path",
    "as_ref",
    "as_slice",
    "as_str",
    "await",
    "binary_search",
    "borrow",
    "borrow_mut",
    "by_ref",
    "bytes",
    "capacity",
    "chain",
    "chars",
    "checked_add",
    "checked_div",
    "checked_sub",
    "chunks",
    "clear",
    "clone",
    "cloned",
    "cmp",
    "collect",
    "concat",
    "contains",
    "contains_key",
    "copied",
    "count",
    "cycle",
    "dedup",
    "default",
    "deref",
    "display",
    "drain",
    "drop",
    "elapsed",
    "ends_with",
    "entry",
    "enumerate",
    "eq",
    "err",
    "exists",
    "expect",
    "extend",
    "fetch_add",
    "fill",
    "filter",
    "filter_map",
    "find",
    "find_map",
    "finish",
    "first",
    "flat_map",
    "flatten",
    "flush",
    "fmt",
    "fold",
    "for_each",
    "from",
    "fuse",
    "get",
    "get_mut",
    "get_or_insert_with",
    "hash",
    "insert",
    "inspect",
    "into",
    "into_inner",
    "into_iter",
    "is_dir",
    "is_empty",
    "is_err",
    "is_file",
    "is_none",
    "is_none_or",
    "is_ok",
    "is_some",
    "is_some_and",
    "iter",
    "iter_mut",
    "join",
    "keys",
    "last",
    "len",
    "lines",
    "load",
    "lock",
    "lt",
    "map",
    "map_err",
    "map_or",
    "map_or_else",
    "max",
    "max_by",
    "max_by_key",
    "metadata",
    "min",
    "min_by",
    "min_by_key",
    "next",
    "next_back",
    "nth",
    "ok",
    "ok_or",
    "ok_or_else",
    "or",
    "or_default",
    "or_else",
    "or_insert",
    "or_insert_with",
    "parent",
    "parse",
    "partial_cmp",
    "partition",
    "peek",
    "peekable",
    "poll",
    "pop",
    "pop_back",
    "pop_front",
    "position",
    "pow",
    "product",
    "push",
    "push_back",
    "push_front",
    "push_str",
    "range",
    "read",
    "read_to_end",
    "read_to_string",
    "recv",
    "reduce",
    "remove",
    "repeat",
    "replace",
    "reserve",
    "resize",
    "retain",
    "rev",
    "rsplit",
    "saturating_add",
    "saturating_sub",
    "scan",
    "seek",
    "send",
    "set",
    "skip",
    "skip_while",
    "sort",
    "sort_by",
    "sort_by_key",
    "sort_unstable",
    "spawn",
    "split",
    "split_at",
    "split_once",
    "splitn",
    "starts_with",
    "step_by",
    "store",
    "strip_prefix",
    "strip_suffix",
    "sum",
    "swap",
    "take",
    "take_while",
    "then",
    "then_some",
    "to_lowercase",
    "to_owned",
    "to_path_buf",
    "to_str",
    "to_string",
    "to_uppercase",
    "to_vec",
    "trim",
    "trim_end",
    "trim_start",
    "truncate",
    "try_from",
    "try_into",
    "unwrap",
    "unwrap_or",
    "unwrap_or_default",
    "unwrap_or_else",
    "unzip",
    "upgrade",
    "values",
    "values_mut",
    "wait",
    "windows",
    "with_capacity",
    "wrapping_add",
    "write",
    "write_all",
    "write_str",
    "zip",
];

const PYTHON: &[&str] = &[
    "add",
    "all",
    "any",
    "append",
    "appendleft",
    "bool",
    "bytes",
    "capitalize",
    "casefold",
    "center",
    "clear",
    "close",
    "copy",
    "count",
    "decode",
    "dict",
    "difference",
    "discard",
    "encode",
    "endswith",
    "enumerate",
    "extend",
    "filter",
    "find",
    "findall",
    "flush",
    "format",
    "frozenset",
    "fullmatch",
    "get",
    "getattr",
    "group",
    "groups",
    "hasattr",
    "index",
    "input",
    "insert",
    "int",
    "intersection",
    "isalnum",
    "isalpha",
    "isdigit",
    "isinstance",
    "islower",
    "issubset",
    "issuperset",
    "isupper",
    "items",
    "iter",
    "join",
    "keys",
    "len",
    "list",
    "ljust",
    "lower",
    "lstrip",
    "map",
    "match",
    "max",
    "min",
    "next",
    "open",
    "partition",
    "pop",
    "popitem",
    "popleft",
    "print",
    "put",
    "range",
    "read",
    "readline",
    "readlines",
    "remove",
    "replace",
    "repr",
    "reverse",
    "reversed",
    "rfind",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "search",
    "seek",
    "send",
    "set",
    "setattr",
    "setdefault",
    "sort",
    "sorted",
    "split",
    "splitlines",
    "startswith",
    "str",
    "strip",
    "sub",
    "sum",
    "super",
    "swapcase",
    "title",
    "translate",
    "tuple",
    "type",
    "union",
    "update",
    "upper",
    "values",
    "write",
    "writelines",
    "zfill",
    "zip",
];

const JAVASCRIPT: &[&str] = &[
    "add",
    "addEventListener",
    "apply",
    "assign",
    "at",
    "bind",
    "call",
    "catch",
    "charAt",
    "charCodeAt",
    "clear",
    "concat",
    "delete",
    "emit",
    "end",
    "endsWith",
    "entries",
    "every",
    "exec",
    "fetch",
    "fill",
    "filter",
    "finally",
    "find",
    "findIndex",
    "flat",
    "flatMap",
    "forEach",
    "format",
    "from",
    "get",
    "has",
    "hasOwnProperty",
    "includes",
    "indexOf",
    "join",
    "json",
    "keys",
    "lastIndexOf",
    "length",
    "log",
    "map",
    "match",
    "matchAll",
    "next",
    "of",
    "off",
    "on",
    "once",
    "padEnd",
    "padStart",
    "parse",
    "pipe",
    "pop",
    "push",
    "read",
    "reduce",
    "reduceRight",
    "removeEventListener",
    "repeat",
    "replace",
    "replaceAll",
    "resolve",
    "reverse",
    "send",
    "set",
    "shift",
    "slice",
    "some",
    "sort",
    "splice",
    "split",
    "startsWith",
    "stringify",
    "substring",
    "test",
    "text",
    "then",
    "toFixed",
    "toISOString",
    "toLowerCase",
    "toString",
    "toUpperCase",
    "trim",
    "trimEnd",
    "trimStart",
    "unshift",
    "values",
    "write",
];

const GO: &[&str] = &[
    "Add",
    "Bytes",
    "Cancel",
    "Close",
    "Context",
    "Done",
    "Err",
    "Error",
    "Errorf",
    "Fatal",
    "Fatalf",
    "Flush",
    "Format",
    "Get",
    "Header",
    "Index",
    "Int",
    "Interface",
    "Kind",
    "Len",
    "Less",
    "Load",
    "Lock",
    "Log",
    "Logf",
    "Name",
    "Next",
    "Print",
    "Printf",
    "Println",
    "Query",
    "RLock",
    "RUnlock",
    "Read",
    "Reset",
    "Run",
    "Scan",
    "Seek",
    "Set",
    "Start",
    "Stop",
    "Store",
    "String",
    "Sub",
    "Swap",
    "Unix",
    "Unlock",
    "Unwrap",
    "Value",
    "Wait",
    "Write",
    "WriteString",
];

const JAVA: &[&str] = &[
    "accept",
    "add",
    "addAll",
    "append",
    "apply",
    "build",
    "charAt",
    "clear",
    "clone",
    "close",
    "collect",
    "compareTo",
    "contains",
    "containsKey",
    "containsValue",
    "count",
    "delete",
    "distinct",
    "endsWith",
    "entrySet",
    "equals",
    "equalsIgnoreCase",
    "execute",
    "filter",
    "findAny",
    "findFirst",
    "flatMap",
    "flush",
    "forEach",
    "format",
    "get",
    "getClass",
    "getKey",
    "getMessage",
    "getName",
    "getOrDefault",
    "getValue",
    "hasNext",
    "hashCode",
    "ifPresent",
    "indexOf",
    "insert",
    "isEmpty",
    "isPresent",
    "iterator",
    "join",
    "keySet",
    "lastIndexOf",
    "length",
    "limit",
    "map",
    "matches",
    "max",
    "min",
    "name",
    "next",
    "of",
    "offer",
    "orElse",
    "orElseGet",
    "orElseThrow",
    "ordinal",
    "parse",
    "peek",
    "poll",
    "pop",
    "print",
    "printf",
    "println",
    "push",
    "put",
    "putAll",
    "putIfAbsent",
    "read",
    "reduce",
    "remove",
    "removeIf",
    "replace",
    "replaceAll",
    "reverse",
    "run",
    "set",
    "size",
    "skip",
    "sort",
    "sorted",
    "split",
    "start",
    "startsWith",
    "stream",
    "submit",
    "substring",
    "sum",
    "test",
    "toArray",
    "toList",
    "toLowerCase",
    "toString",
    "toUpperCase",
    "trim",
    "valueOf",
    "values",
    "write",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_names_are_in_order() {
        for names in [RUST, PYTHON, JAVASCRIPT, GO, JAVA] {
            assert_eq!(names.windows(2).find(|pair| pair[0] >= pair[1]), None);
        }
        for language in Language::ALL {
            assert!(!is_builtin(language, "rows_of_projects"));
        }
        assert!(is_builtin(Language::Rust, "collect") && is_builtin(Language::Tsx, "map") && !is_builtin(Language::Go, "collect"));
    }

    #[test]
    fn a_use_is_told_name_by_name() {
        let told = |text: &str| rust(text).into_iter().map(|one| format!("{}={}", one.local, one.path)).collect::<Vec<_>>().join(" ");
        assert_eq!(told("crate::store"), "store=crate/store");
        assert_eq!(told("a::b::{c, d::{e as f, *}, self}"), "c=a/b/c f=a/b/d/e *=a/b/d b=a/b");
        assert_eq!(told("{\n    std::fs,\n    super::*,\n}"), "fs=std/fs *=super");
        assert_eq!(told("a as b"), "b=a");
        assert_eq!(told("}}{,"), "");
    }
}
