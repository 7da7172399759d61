//! Which function answers which request, as the usual frameworks declare it: axum and actix, Flask and FastAPI, Express and its
//! kin, Go's own mux, gin, echo and chi, Spring. A prefix that another file adds (`nest`, `include_router`, `use`) is not known.

use tree_sitter::Node;

use crate::language::Language;
use crate::limit::NAME_BYTES_MAX;
use crate::parse::{Declared, Source};
use crate::scope::Form;

/// How far lists of arguments and decorators are looked through.
const LOOKED_AT: u32 = 16;

fn method(word: &str) -> Option<&'static str> {
    const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    METHODS.into_iter().find(|method| method.eq_ignore_ascii_case(word)).or_else(|| {
        let is_any = ["any", "all"].iter().any(|any| any.eq_ignore_ascii_case(word));
        is_any.then_some("ANY")
    })
}

fn arguments(list: Node<'_>) -> impl DoubleEndedIterator<Item = Node<'_>> {
    let count = u32::try_from(list.named_child_count()).unwrap_or(u32::MAX).min(LOOKED_AT);
    (0..count).filter_map(move |n| list.named_child(n)).filter(|node| !node.kind().ends_with("comment"))
}

fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.len() <= NAME_BYTES_MAX
}

/// Routes that a call declares, each with the literal that answers it, if it is one.
pub(crate) fn of_call(
    language: Language,
    source: Source<'_>,
    call: Node<'_>,
    name: &str,
    of: Option<&str>,
) -> Vec<(Declared, Option<usize>)> {
    // Most calls declare nothing.
    let may_declare = match language {
        Language::Rust => name == "route",
        Language::Go => matches!(name, "HandleFunc" | "Handle") || of.is_some() && method(name).is_some(),
        Language::TypeScript | Language::Tsx | Language::JavaScript => method(name).is_some() && of.is_some_and(is_router),
        Language::Python | Language::Java => false,
    };
    let list = if may_declare { call.child_by_field_name("arguments") } else { None };
    let Some(list) = list else { return Vec::new() };
    let mut given = arguments(list);
    let (Some(first), Some(last)) = (given.next(), given.next_back()) else { return Vec::new() };
    let Some(text) = source.string(first) else { return Vec::new() };
    match language {
        Language::Rust if is_path(text) => axum(source, text, last),
        Language::Go => {
            let (verb, path) = text.split_once(' ').map_or(("", text), |(verb, path)| (verb, path.trim_start()));
            let Some(method) =
                method(if matches!(name, "HandleFunc" | "Handle") { verb } else { name }).or(verb.is_empty().then_some("ANY"))
            else {
                return Vec::new();
            };
            if is_path(path) { answered(source, method, path, last).into_iter().collect() } else { Vec::new() }
        }
        _ if is_path(text) => method(name).and_then(|method| answered(source, method, text, last)).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Whether a name is one that routers have: `get` of other things fetches.
fn is_router(of: &str) -> bool {
    let of = of.to_ascii_lowercase();
    ["app", "router", "routes", "server", "api", "fastify"].iter().any(|name| of.ends_with(name))
}

/// A route by what answers it: a name, or a literal that takes the route's own.
fn answered(source: Source<'_>, method: &str, path: &str, answer: Node<'_>) -> Option<(Declared, Option<usize>)> {
    let is_literal = matches!(answer.kind(), "closure_expression" | "func_literal" | "arrow_function" | "function_expression");
    let (handler, of, form): (Box<str>, Option<Box<str>>, Form) = match is_literal {
        true => (format!("{method} {path}").into(), None, Form::Bare),
        false => source.callee(answer).map(|(name, of, form)| (name.into(), of.map(Into::into), form))?,
    };
    let declared = Declared { method: method.into(), path: path.into(), handler, of, form };
    Some((declared, is_literal.then(|| answer.id())))
}

/// `get(list).post(create)`, in the order in which it is written.
fn axum(source: Source<'_>, path: &str, answer: Node<'_>) -> Vec<(Declared, Option<usize>)> {
    let (mut routes, mut next) = (Vec::new(), Some(answer));
    for _ in 0..LOOKED_AT {
        let Some(call) = next.take().filter(|node| node.kind() == "call_expression") else { break };
        let Some(callee) = call.child_by_field_name("function") else { break };
        let handler = call.child_by_field_name("arguments").and_then(|list| arguments(list).next());
        let verb = source.callee(callee).and_then(|(name, ..)| method(name));
        if let (Some(verb), Some(handler)) = (verb, handler) {
            routes.extend(answered(source, verb, path, handler));
        }
        next = callee.child_by_field_name("value");
    }
    routes.reverse();
    routes
}

/// `#[get("/path")]`.
pub(crate) fn rust_attribute(text: &str) -> Option<(String, String)> {
    let (name, rest) = text.trim_start_matches("#[").split_once('(')?;
    let method = method(name.rsplit("::").next()?.trim())?;
    let path = rest.split('"').nth(1)?;
    is_path(path).then(|| (method.into(), path.into()))
}

/// `@app.get("/path")`, `@app.route("/path", methods=["GET"])`.
pub(crate) fn python(source: Source<'_>, definition: Node<'_>) -> Vec<(String, String)> {
    let mut routes = Vec::new();
    for decorator in arguments(definition).filter(|node| node.kind() == "decorator") {
        let Some(call) = decorator.named_child(0).filter(|node| node.kind() == "call") else { continue };
        let (Some(callee), Some(list)) = (call.child_by_field_name("function"), call.child_by_field_name("arguments")) else { continue };
        let Some((name, Some(_), _)) = source.callee(callee) else { continue };
        let Some(path) = arguments(list).next().and_then(|first| source.string(first)).filter(|path| is_path(path)) else { continue };
        if let Some(method) = method(name) {
            routes.push((method.into(), path.into()));
        } else if matches!(name, "route" | "api_route") {
            let named = arguments(list).filter(|node| node.kind() == "keyword_argument");
            let is_methods = |node: &Node<'_>| node.child_by_field_name("name").and_then(|name| source.name(name)) == Some("methods");
            let methods = named.filter(is_methods).find_map(|node| node.child_by_field_name("value"));
            let words = methods.into_iter().flat_map(arguments).filter_map(|word| source.string(word).and_then(method));
            let words: Vec<&str> = words.collect();
            // Without a list it is for reading.
            let words = if words.is_empty() { vec!["GET"] } else { words };
            routes.extend(words.into_iter().map(|word| (word.to_string(), path.to_string())));
        }
    }
    routes
}

/// The annotations of a class or method: their names, and their arguments.
fn annotations<'t>(source: Source<'_>, node: Node<'t>) -> Vec<(String, Option<Node<'t>>)> {
    let Some(modifiers) = node.named_child(0).filter(|node| node.kind() == "modifiers") else { return Vec::new() };
    let of = |annotation: Node<'t>| {
        let name = annotation.child_by_field_name("name").and_then(|name| source.name(name))?;
        Some((name.to_string(), annotation.child_by_field_name("arguments")))
    };
    arguments(modifiers).filter(|node| node.kind().ends_with("annotation")).filter_map(of).collect()
}

fn java_argument<'t>(source: Source<'_>, list: Option<Node<'t>>, keys: &[&str]) -> Option<Node<'t>> {
    let mut given = arguments(list?);
    given.find_map(|node| match node.kind() {
        "element_value_pair" => {
            let key = node.child_by_field_name("key").and_then(|key| source.name(key))?;
            keys.contains(&key).then(|| node.child_by_field_name("value")).flatten()
        }
        _ => keys.contains(&"value").then_some(node),
    })
}

/// The path that a class puts before those of its methods.
pub(crate) fn java_prefix(source: Source<'_>, class: Node<'_>) -> Option<String> {
    let (_, list) = annotations(source, class).into_iter().find(|(name, _)| name == "RequestMapping")?;
    let path = java_argument(source, list, &["value", "path"]).and_then(|path| source.string(path))?;
    Some(path.trim_end_matches('/').to_string())
}

/// `@GetMapping("/path")`, `@RequestMapping(value = "/path", method = RequestMethod.GET)`.
pub(crate) fn java(source: Source<'_>, definition: Node<'_>) -> Vec<(String, String)> {
    let mut routes = Vec::new();
    for (name, list) in annotations(source, definition) {
        let Some(word) = name.strip_suffix("Mapping") else { continue };
        let method = match word {
            "Request" => {
                let word = java_argument(source, list, &["method"]).and_then(|node| source.name(node));
                word.map_or(Some("ANY"), |word| method(word.rsplit('.').next().unwrap_or(word)))
            }
            word => method(word),
        };
        let Some(method) = method else { continue };
        let path = java_argument(source, list, &["value", "path"]).and_then(|path| source.string(path)).unwrap_or_default();
        if path.is_empty() || is_path(path) {
            routes.push((method.into(), path.into()));
        }
    }
    routes
}
