//! What is in one file: its functions, what each of them calls, and the routes that it declares.
//!
//! A syntax tree is walked step by step and never by recursion, so that no nesting is too deep, and the clock is looked at on the
//! way. A file with mistakes in it is told as far as it is understood.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tree_sitter::{Node, ParseOptions, Parser, Tree};

use crate::language::Language;
use crate::limit::{CALLS_MAX, DOC_CHARS_MAX, FUNCTIONS_MAX, IMPORT_BYTES_MAX, IMPORTS_MAX, NAME_BYTES_MAX, PARSE_WITHIN, ROUTES_MAX};
use crate::routes;
use crate::scope::{self, Form, Import, Reach};

/// Why a file is told in part, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// It can't be opened, or is no file any more.
    Unreadable,
    TooLarge,
    /// Parsing took too long.
    TooSlow,
    /// More functions, calls, imports or routes than are kept.
    TooMany,
}

impl Problem {
    pub fn word(self) -> &'static str {
        match self {
            Problem::Unreadable => "unreadable",
            Problem::TooLarge => "too_large",
            Problem::TooSlow => "too_slow",
            Problem::TooMany => "too_many",
        }
    }
}

/// What is kept of one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileFacts {
    pub path: String,
    pub language: Language,
    /// BLAKE3 of its content; `None` when it was not read.
    pub hash: Option<[u8; 32]>,
    pub lines: u32,
    /// The first line of its documentation.
    pub doc: Option<String>,
    pub is_test: bool,
    pub functions: Vec<Function>,
    pub calls: Vec<Call>,
    pub imports: Vec<Import>,
    pub routes: Vec<Declared>,
    pub problem: Option<Problem>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    pub name: Box<str>,
    /// Of a test in a file that holds other things too.
    pub is_test: bool,
    /// The type or class that it belongs to.
    pub owner: Option<Box<str>>,
    /// Whether it is called on a value.
    pub is_method: bool,
    pub reach: Reach,
}

/// Calls of one name out of one function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Call {
    /// Which of the file's functions calls; `None` outside of all.
    pub from: Option<u32>,
    pub name: Box<str>,
    /// What stands before the name: a module, a type or an object; `None` too when that is no plain name.
    pub of: Option<Box<str>>,
    pub form: Form,
    pub count: u32,
}

/// A route, as a file declares it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Declared {
    /// In upper case; `ANY` for all.
    pub method: String,
    pub path: String,
    /// The name of the function that answers.
    pub handler: Box<str>,
    pub of: Option<Box<str>>,
    pub form: Form,
}

impl FileFacts {
    pub(crate) fn unread(path: &str, language: Language, problem: Problem) -> Self {
        Self {
            path: path.into(),
            language,
            hash: None,
            lines: 0,
            doc: None,
            is_test: language.is_test_path(path),
            functions: Vec::new(),
            calls: Vec::new(),
            imports: Vec::new(),
            routes: Vec::new(),
            problem: Some(problem),
        }
    }
}

/// What a node means to the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    None,
    Function,
    /// A function without a name, which may be given one by what it is assigned to.
    Literal,
    Call,
    /// What gives a literal its name.
    Binding,
    /// `#[...]` before an item.
    Attribute,
    /// Python's definition with decorators.
    Decorated,
    /// What functions belong to: a type, a class, a trait.
    Owner,
    Module,
    Import,
    /// JavaScript's `export`.
    Export,
    Comment,
}

fn role(language: Language, kind: &str) -> Role {
    match (language, kind) {
        (Language::Rust, "function_item") => Role::Function,
        (Language::Rust, "closure_expression") => Role::Literal,
        (Language::Rust, "call_expression") => Role::Call,
        (Language::Rust, "attribute_item" | "inner_attribute_item") => Role::Attribute,
        (Language::Rust, "mod_item") => Role::Module,
        (Language::Rust, "impl_item" | "trait_item") => Role::Owner,
        (Language::Rust, "use_declaration") => Role::Import,
        (Language::Rust, "line_comment" | "block_comment") => Role::Comment,
        (Language::Python, "function_definition") => Role::Function,
        (Language::Python, "call") => Role::Call,
        (Language::Python, "decorated_definition") => Role::Decorated,
        (Language::Python, "class_definition") => Role::Owner,
        (Language::Python, "import_statement" | "import_from_statement") => Role::Import,
        (Language::Go, "function_declaration" | "method_declaration") => Role::Function,
        (Language::Go, "func_literal") => Role::Literal,
        (Language::Go, "call_expression") => Role::Call,
        (Language::Go, "import_spec") => Role::Import,
        (Language::Java, "method_declaration" | "constructor_declaration") => Role::Function,
        (Language::Java, "method_invocation" | "object_creation_expression") => Role::Call,
        (Language::Java, "class_declaration" | "interface_declaration" | "enum_declaration" | "record_declaration") => Role::Owner,
        (Language::Java, "import_declaration") => Role::Import,
        (Language::JavaScript | Language::TypeScript | Language::Tsx, kind) => match kind {
            "function_declaration" | "generator_function_declaration" | "method_definition" => Role::Function,
            "arrow_function" | "function_expression" | "generator_function" => Role::Literal,
            "call_expression" | "new_expression" => Role::Call,
            "class_declaration" | "abstract_class_declaration" | "class" => Role::Owner,
            "import_statement" => Role::Import,
            "export_statement" => Role::Export,
            "variable_declarator" | "pair" | "field_definition" | "public_field_definition" | "assignment_expression" => Role::Binding,
            _ => Role::None,
        },
        _ => Role::None,
    }
}

/// One thread's parsers, made when they are first needed.
#[derive(Default)]
pub(crate) struct Parsers(BTreeMap<Language, (Parser, Vec<Role>)>);

impl Parsers {
    pub fn parse(&mut self, path: &str, language: Language, hash: [u8; 32], text: &[u8]) -> FileFacts {
        let until = Instant::now() + PARSE_WITHIN;
        let (parser, roles) = self.0.entry(language).or_insert_with(|| {
            let grammar = language.grammar();
            let mut parser = Parser::new();
            parser.set_language(&grammar).expect("the grammars are of the library's version, which a test holds them to");
            let kinds = u16::try_from(grammar.node_kind_count()).unwrap_or(u16::MAX);
            let roles = (0..kinds).map(|id| match grammar.node_kind_is_named(id) {
                true => role(language, grammar.node_kind_for_id(id).unwrap_or_default()),
                false => Role::None,
            });
            (parser, roles.collect())
        });
        let mut facts = FileFacts {
            hash: Some(hash),
            lines: u32::try_from(text.split_inclusive(|byte| *byte == b'\n').count()).unwrap_or(u32::MAX),
            problem: None,
            ..FileFacts::unread(path, language, Problem::TooSlow)
        };
        match tree_of(parser, text, until) {
            Some(tree) => {
                let mut walk = Walk::new(language, text, roles, &mut facts);
                let ended = walk.run(&tree, until);
                walk.end();
                if ended.is_break() {
                    facts.problem = Some(Problem::TooSlow);
                }
            }
            None => {
                parser.reset();
                facts.problem = Some(Problem::TooSlow);
            }
        }
        facts
    }
}

fn tree_of(parser: &mut Parser, text: &[u8], until: Instant) -> Option<Tree> {
    let mut in_time = |_: &tree_sitter::ParseState| match Instant::now() < until {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    };
    let options = ParseOptions::new().progress_callback(&mut in_time);
    parser.parse_with_options(&mut |at, _| text.get(at..).unwrap_or_default(), None, Some(options))
}

/// Text of nodes.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a>(pub &'a [u8]);

impl<'a> Source<'a> {
    /// The text of a node, if it is not too long to be looked at.
    pub fn text(self, node: Node<'_>) -> Option<&'a str> {
        std::str::from_utf8(self.0.get(node.byte_range())?).ok().filter(|text| text.len() <= IMPORT_BYTES_MAX)
    }

    /// The text of a node, if it can be a name.
    pub fn name(self, node: Node<'_>) -> Option<&'a str> {
        let text = std::str::from_utf8(self.0.get(node.byte_range())?).ok()?;
        let fits = !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control);
        fits.then_some(text)
    }

    /// The text between the quotes of a plain string.
    pub fn string(self, node: Node<'_>) -> Option<&'a str> {
        matches!(node.kind(), "string_literal" | "string" | "interpreted_string_literal" | "raw_string_literal" | "template_string")
            .then(|| self.name(node))?
            .map(|text| text.trim_matches(['"', '\'', '`']))
    }

    /// The name that a call's callee ends with, what stands before it, and how.
    pub fn callee(self, node: Node<'_>) -> Option<(&'a str, Option<&'a str>, Form)> {
        let mut node = node;
        // Each turn goes further in; few forms stand around a name.
        for _ in 0..8 {
            let field = |name| node.child_by_field_name(name);
            let (name, of, form) = match node.kind() {
                "identifier" | "type_identifier" | "field_identifier" => return Some((self.name(node)?, None, Form::Bare)),
                "scoped_identifier" => (field("name")?, field("path"), Form::Path),
                // What stands before is a value, and of those only `self` says what it is.
                "field_expression" => (field("field")?, field("value").filter(|value| value.kind() == "self"), Form::Dotted),
                "attribute" => (field("attribute")?, field("object"), Form::Dotted),
                "member_expression" => (field("property")?, field("object"), Form::Dotted),
                "selector_expression" => (field("field")?, field("operand"), Form::Dotted),
                "generic_function" => {
                    node = field("function")?;
                    continue;
                }
                "index_expression" => {
                    node = field("operand")?;
                    continue;
                }
                "generic_type" | "parenthesized_expression" | "non_null_expression" | "await_expression" => {
                    node = node.named_child(0)?;
                    continue;
                }
                _ => return None,
            };
            return Some((self.name(name)?, of.and_then(|of| self.last_part(of)), form));
        }
        None
    }

    /// The last part of what stands before a name.
    fn last_part(self, node: Node<'_>) -> Option<&'a str> {
        let last = match node.kind() {
            "scoped_identifier" => node.child_by_field_name("name")?,
            "member_expression" => node.child_by_field_name("property")?,
            "attribute" => node.child_by_field_name("attribute")?,
            "generic_type" => return self.last_part(node.child_by_field_name("type")?),
            "scoped_type_identifier" => node.child_by_field_name("name")?,
            "identifier" | "type_identifier" | "self" | "crate" | "super" | "this" => node,
            _ => return None,
        };
        self.name(last)
    }
}

struct Walk<'a> {
    language: Language,
    source: Source<'a>,
    roles: &'a [Role],
    facts: &'a mut FileFacts,
    depth: usize,
    /// The functions that the walk is in, with their depth.
    within: Vec<(usize, u32)>,
    /// Depths of modules that are compiled for tests alone.
    tests: Vec<usize>,
    /// Attributes that wait for their item, and their depth.
    attributes: (usize, Vec<&'a str>),
    /// Names that literals were given, by node.
    named: BTreeMap<usize, Box<str>>,
    /// Routes of decorators that wait for their function's name, by node.
    decorated: BTreeMap<usize, Vec<(String, String)>>,
    /// Paths of the classes that the walk is in, with their depth.
    prefixes: Vec<(usize, String)>,
    /// What functions belong to where the walk is.
    owners: Vec<Owner<'a>>,
    /// Where an `export` began that the walk is in.
    export: Option<usize>,
    /// Names that are handed out apart from where they are declared.
    exported: BTreeSet<&'a str>,
    /// Whether a file of JavaScript imports or exports; without, its functions are the page's.
    is_module: bool,
    /// How often each stands there.
    calls: BTreeMap<Called<'a>, u32>,
}

/// The function that calls, the name that it calls, what stands before the name, and how.
type Called<'a> = (Option<u32>, &'a str, Option<&'a str>, Form);

struct Owner<'a> {
    depth: usize,
    name: Option<&'a str>,
    /// Whether its functions are as open as what they are declared by: a trait or an interface.
    is_open: bool,
}

impl<'a> Walk<'a> {
    fn new(language: Language, text: &'a [u8], roles: &'a [Role], facts: &'a mut FileFacts) -> Self {
        Self {
            language,
            source: Source(text),
            roles,
            facts,
            depth: 0,
            within: Vec::new(),
            tests: Vec::new(),
            attributes: (0, Vec::new()),
            named: BTreeMap::new(),
            decorated: BTreeMap::new(),
            prefixes: Vec::new(),
            owners: Vec::new(),
            export: None,
            exported: BTreeSet::new(),
            is_module: false,
            calls: BTreeMap::new(),
        }
    }

    fn run(&mut self, tree: &Tree, until: Instant) -> ControlFlow<()> {
        self.facts.doc = doc(self.language, self.source, tree.root_node());
        let mut cursor = tree.walk();
        for n in 0_u64.. {
            if n % 8_192 == 0 && Instant::now() >= until {
                return ControlFlow::Break(());
            }
            self.enter(cursor.node());
            if cursor.goto_first_child() {
                self.depth += 1;
                continue;
            }
            loop {
                self.leave();
                if cursor.goto_next_sibling() {
                    break;
                }
                if !cursor.goto_parent() {
                    return ControlFlow::Continue(());
                }
                self.depth -= 1;
            }
        }
        ControlFlow::Continue(())
    }

    fn enter(&mut self, node: Node<'_>) {
        let role = self.roles.get(usize::from(node.kind_id())).copied().unwrap_or(Role::None);
        match role {
            Role::None => {}
            Role::Comment => return,
            Role::Attribute => {
                if self.attributes.0 != self.depth {
                    self.attributes = (self.depth, Vec::new());
                }
                // A long attribute says nothing that is looked for.
                self.attributes.1.extend(self.source.name(node));
                if node.kind() == "inner_attribute_item"
                    && self.depth == 1
                    && self.attributes.1.last().is_some_and(|text| is_test_only(text))
                {
                    self.facts.is_test = true;
                }
                return;
            }
            Role::Module => {
                if self.take_attributes().iter().any(|text| is_test_only(text)) {
                    self.tests.push(self.depth);
                }
            }
            Role::Function => self.enter_function(node),
            Role::Literal => {
                if let Some(name) = self.named.remove(&node.id()) {
                    self.push_function(node, name, false);
                }
            }
            Role::Binding => self.bind(node),
            Role::Decorated => {
                let routes = routes::python(self.source, node);
                if let (false, Some(definition)) = (routes.is_empty(), node.child_by_field_name("definition")) {
                    self.decorated.insert(definition.id(), routes);
                }
            }
            Role::Owner => self.enter_owner(node),
            Role::Import => self.import(node),
            Role::Export => {
                self.is_module = true;
                self.export.get_or_insert(self.depth);
                self.exported.extend(scope::exported(self.source, node));
            }
            Role::Call => self.call(node),
        }
        if self.attributes.0 == self.depth && !matches!(role, Role::Function | Role::Module) && node.is_named() {
            self.attributes.1.clear();
        }
    }

    /// Called once for each node, when all below it was seen.
    fn leave(&mut self) {
        if self.within.last().is_some_and(|(depth, _)| *depth == self.depth) {
            self.within.pop();
        }
        if self.tests.last() == Some(&self.depth) {
            self.tests.pop();
        }
        if self.prefixes.last().is_some_and(|(depth, _)| *depth == self.depth) {
            self.prefixes.pop();
        }
        if self.owners.last().is_some_and(|owner| owner.depth == self.depth) {
            self.owners.pop();
        }
        if self.export == Some(self.depth) {
            self.export = None;
        }
    }

    fn enter_owner(&mut self, node: Node<'_>) {
        let of = |name| node.child_by_field_name(name);
        if self.language == Language::Java
            && let Some(prefix) = routes::java_prefix(self.source, node)
        {
            self.prefixes.push((self.depth, prefix));
        }
        let name = of("type").and_then(|of| self.source.last_part(of)).or_else(|| of("name").and_then(|name| self.source.name(name)));
        let is_open = of("trait").is_some() || matches!(node.kind(), "trait_item" | "interface_declaration");
        self.owners.push(Owner { depth: self.depth, name, is_open });
    }

    fn import(&mut self, node: Node<'_>) {
        self.is_module = true;
        for import in scope::imports(self.language, self.source, node) {
            match self.facts.imports.len() < IMPORTS_MAX {
                true => self.facts.imports.push(import),
                false => self.facts.problem = Some(Problem::TooMany),
            }
        }
    }

    fn take_attributes(&mut self) -> Vec<&'a str> {
        match self.attributes.0 == self.depth {
            true => std::mem::take(&mut self.attributes.1),
            false => Vec::new(),
        }
    }

    fn enter_function(&mut self, node: Node<'_>) {
        let attributes = self.take_attributes();
        let Some(name) = node.child_by_field_name("name").and_then(|name| self.source.name(name)) else { return };
        let mut declared = match self.language {
            Language::Rust => attributes.iter().filter_map(|text| routes::rust_attribute(text)).collect(),
            Language::Python => self.decorated.remove(&node.id()).unwrap_or_default(),
            Language::Java => routes::java(self.source, node),
            _ => Vec::new(),
        };
        let prefix: String = self.prefixes.iter().map(|(_, prefix)| prefix.as_str()).collect();
        for (method, path) in declared.drain(..) {
            let path = match format!("{prefix}{path}") {
                whole if whole.is_empty() => "/".into(),
                whole => whole,
            };
            self.declare(Declared { method, path, handler: name.into(), of: None, form: Form::Bare });
        }
        let is_test = attributes.iter().any(|text| text.trim_end_matches(']').ends_with("test") || is_test_only(text));
        self.push_function(node, name.into(), is_test);
    }

    fn push_function(&mut self, node: Node<'_>, name: Box<str>, is_test: bool) {
        let is_test = is_test || !self.tests.is_empty();
        if self.facts.functions.len() >= FUNCTIONS_MAX {
            self.facts.problem = Some(Problem::TooMany);
            return;
        }
        let is_inner = self.within.last().is_some_and(|(depth, _)| self.owners.last().is_none_or(|owner| owner.depth < *depth));
        let owner = self.owners.last().filter(|_| !is_inner);
        let is_method = self.is_method(node, owner.is_some());
        let reach = if is_inner && !is_method { Reach::File } else { self.reach(node, &name, owner, is_method) };
        let owner = match (self.language, owner) {
            (Language::Go, _) => self.go_receiver(node),
            (_, owner) => owner.and_then(|owner| owner.name),
        };
        // Bounded by the limit above.
        self.within.push((self.depth, u32::try_from(self.facts.functions.len()).unwrap_or(u32::MAX)));
        self.facts.functions.push(Function { name, is_test, owner: owner.map(Into::into), is_method, reach });
    }

    fn is_method(&self, node: Node<'_>, has_owner: bool) -> bool {
        match self.language {
            Language::Rust => {
                let first = node.child_by_field_name("parameters").and_then(|list| list.named_child(0));
                has_owner && first.is_some_and(|first| first.kind() == "self_parameter")
            }
            Language::Python | Language::Java => has_owner,
            Language::Go => node.kind() == "method_declaration",
            Language::JavaScript | Language::TypeScript | Language::Tsx => {
                let of = node.parent().map_or("", |parent| parent.kind());
                node.kind() == "method_definition"
                    || matches!(of, "pair" | "field_definition" | "public_field_definition" | "assignment_expression")
            }
        }
    }

    /// What a method of Go is declared on.
    fn go_receiver(&self, node: Node<'_>) -> Option<&'a str> {
        let receiver = self.source.text(node.child_by_field_name("receiver")?)?;
        let of = receiver.trim_matches(['(', ')']).rsplit([' ', '*']).next()?;
        of.split('[').next().filter(|of| !of.is_empty())
    }

    /// How far a function that stands in no other one can be called from.
    fn reach(&self, node: Node<'_>, name: &str, owner: Option<&Owner<'_>>, is_method: bool) -> Reach {
        let is_open = owner.is_some_and(|owner| owner.is_open);
        let said = |kind| node.named_child(0).filter(|child| child.kind() == kind).and_then(|child| self.source.text(child));
        match self.language {
            Language::Rust => match said("visibility_modifier") {
                _ if is_open => Reach::Everyone,
                Some("pub") => Reach::Everyone,
                Some(_) => Reach::Package,
                None => Reach::Module,
            },
            // A function has to be imported by its name to be called, which says more than the habit of its name.
            Language::Python => match is_method && name.starts_with('_') && !name.ends_with("__") {
                true => Reach::File,
                false => Reach::Everyone,
            },
            Language::Go => match name.starts_with(char::is_uppercase) {
                true => Reach::Everyone,
                false => Reach::Folder,
            },
            Language::Java => {
                let words = said("modifiers").unwrap_or_default();
                let is_said = |word| words.split_whitespace().any(|said| said == word);
                match (is_said("private"), is_said("public") || is_said("protected") || is_open) {
                    (true, _) => Reach::File,
                    (_, true) => Reach::Everyone,
                    _ => Reach::Folder,
                }
            }
            Language::JavaScript | Language::TypeScript | Language::Tsx => match is_method {
                true if name.starts_with('#') || said("accessibility_modifier").is_some_and(|word| word != "public") => Reach::File,
                true => Reach::Everyone,
                false if self.export.is_some() => Reach::Everyone,
                // What the whole file says comes at its end.
                false => Reach::File,
            },
        }
    }

    fn bind(&mut self, node: Node<'_>) {
        let field = |names: &[&str]| names.iter().find_map(|name| node.child_by_field_name(name));
        if node.kind() == "variable_declarator" && scope::required(self.source, node).is_some() {
            return self.import(node);
        }
        if let Some(left) = node.child_by_field_name("left").and_then(|left| self.source.name(left))
            && (left == "module.exports" || left.starts_with("exports.") || left.starts_with("module.exports."))
        {
            self.is_module = true;
            self.exported.extend(scope::exported(self.source, node));
        }
        let (Some(target), Some(value)) = (field(&["name", "key", "property", "left"]), field(&["value", "right"])) else { return };
        if !matches!(value.kind(), "arrow_function" | "function_expression" | "generator_function") {
            return;
        }
        let target = match target.kind() {
            "member_expression" => target.child_by_field_name("property"),
            _ => Some(target),
        };
        if let Some(name) = target.and_then(|target| self.source.name(target)) {
            self.named.insert(value.id(), name.trim_matches(['"', '\'']).into());
        }
    }

    fn call(&mut self, node: Node<'_>) {
        let found = match self.language {
            Language::Java => {
                let name = node.child_by_field_name("name").or_else(|| node.child_by_field_name("type"));
                let object = node.child_by_field_name("object");
                let form = if object.is_some() { Form::Dotted } else { Form::Bare };
                let of = object.filter(|object| matches!(object.kind(), "identifier" | "this" | "super"));
                name.and_then(|name| self.source.callee(name)).map(|(name, ..)| (name, of.and_then(|of| self.source.name(of)), form))
            }
            _ => {
                let callee = node.child_by_field_name("function").or_else(|| node.child_by_field_name("constructor"));
                callee.and_then(|callee| self.source.callee(callee))
            }
        };
        let Some((name, of, form)) = found else { return };
        for (declared, literal) in routes::of_call(self.language, self.source, node, name, of) {
            if let Some(literal) = literal {
                self.named.insert(literal, declared.handler.clone());
            }
            self.declare(declared);
        }
        let from = self.within.last().map(|(_, function)| *function);
        if from.is_some_and(|from| self.facts.functions[from as usize].is_test) {
            return;
        }
        let known = self.calls.len();
        match self.calls.get_mut(&(from, name, of, form)) {
            Some(count) => *count = count.saturating_add(1),
            None if known >= CALLS_MAX => self.facts.problem = Some(Problem::TooMany),
            None => {
                self.calls.insert((from, name, of, form), 1);
            }
        }
    }

    fn declare(&mut self, declared: Declared) {
        if !self.tests.is_empty() {
            return;
        }
        match self.facts.routes.len() < ROUTES_MAX {
            true => self.facts.routes.push(declared),
            false => self.facts.problem = Some(Problem::TooMany),
        }
    }

    /// Hands over the calls, in order.
    fn end(self) {
        let call = |((from, name, of, form), count): (Called, u32)| Call { from, name: name.into(), of: of.map(Into::into), form, count };
        self.facts.calls = self.calls.into_iter().map(call).collect();
        if matches!(self.language, Language::JavaScript | Language::TypeScript | Language::Tsx) {
            for function in self.facts.functions.iter_mut().filter(|function| !function.is_method) {
                if !self.is_module || self.exported.contains(&*function.name) {
                    function.reach = Reach::Everyone;
                }
            }
        }
    }
}

fn is_test_only(attribute: &str) -> bool {
    attribute.contains("cfg(test)")
}

/// The first line of what a file says of itself.
fn doc(language: Language, source: Source<'_>, root: Node<'_>) -> Option<String> {
    let first = root.named_child(0)?;
    let text = |node: Node<'_>| String::from_utf8_lossy(source.0.get(node.byte_range()).unwrap_or_default()).into_owned();
    let text = match language {
        Language::Rust => text(first).strip_prefix("//!").map(str::to_string),
        Language::Python => (first.kind() == "expression_statement")
            .then(|| first.named_child(0))
            .flatten()
            .filter(|node| node.kind() == "string")
            .map(|node| text(node).trim_matches(['"', '\'', 'r', 'u']).trim().to_string()),
        Language::TypeScript | Language::Tsx | Language::JavaScript | Language::Java => text(first).strip_prefix("/**").map(str::to_string),
        Language::Go => text(first).strip_prefix("// Package ").map(|rest| format!("Package {rest}")),
    }?;
    let line = text.lines().map(|line| line.trim().trim_start_matches('*').trim_end_matches("*/").trim()).find(|line| !line.is_empty())?;
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    match line.char_indices().nth(DOC_CHARS_MAX) {
        Some((end, _)) => Some(format!("{}…", line[..end].trim_end())),
        None => Some(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str, text: &str) -> FileFacts {
        Parsers::default().parse(path, Language::of(path).unwrap(), [0; 32], text.as_bytes())
    }

    fn told(path: &str, text: &str) -> String {
        let facts = parse(path, text);
        assert_eq!(facts.problem, None);
        let name = |from: Option<u32>| from.map_or("-", |from| &facts.functions[from as usize].name);
        let mut told = format!("{} lines, {:?}\n", facts.lines, facts.doc.as_deref().unwrap_or(""));
        for function in &facts.functions {
            told += &format!("fn {}{}\n", function.name, if function.is_test { " (test)" } else { "" });
        }
        for Call { from, name: callee, of, count, .. } in &facts.calls {
            told += &format!("{} calls {}{callee} x{count}\n", name(*from), of.as_ref().map(|of| format!("{of}.")).unwrap_or_default());
        }
        for Declared { method, path, handler, of, .. } in &facts.routes {
            told += &format!("{method} {path} by {}{handler}\n", of.as_ref().map(|of| format!("{of}.")).unwrap_or_default());
        }
        told
    }

    #[test]
    fn every_grammar_is_of_the_librarys_version() {
        for language in Language::ALL {
            Parser::new().set_language(&language.grammar()).unwrap();
        }
    }

    #[test]
    fn rust_is_told_with_its_routes_and_without_what_its_tests_call() {
        let text = r#"//! What serves.
//! More.
use axum::Router;

fn router() -> Router {
    Router::new().route("/v1/projects", get(list).post(projects::create)).route("/x", any(|| async { helper() }))
}

/// Lists.
async fn list() -> Page { store::rows(1).into_page::<Page>(); store::rows(2) }

#[get("/health")]
async fn health() {}

#[cfg(test)]
mod tests {
    #[test]
    fn a() { list() }
}
"#;
        expect_test::expect![[r#"
            19 lines, "What serves."
            fn router
            fn ANY /x
            fn list
            fn health
            fn a (test)
            router calls any x1
            router calls get x1
            router calls Router.new x1
            router calls post x1
            router calls route x2
            ANY /x calls helper x1
            list calls into_page x1
            list calls store.rows x2
            ANY /x by ANY /x
            GET /v1/projects by list
            POST /v1/projects by projects.create
            GET /health by health
        "#]]
        .assert_eq(&told("src/server.rs", text));
    }

    #[test]
    fn python_is_told_with_the_routes_of_its_decorators() {
        let text = "\"\"\"An app.\n\nMore.\n\"\"\"\n@app.route('/a', methods=['GET', 'POST'])\ndef a():\n    return db.rows()\n\n@router.get(\"/b\")\nasync def b(x):\n    return helper(a())\n";
        expect_test::expect![[r#"
            11 lines, "An app."
            fn a
            fn b
            - calls router.get x1
            - calls app.route x1
            a calls db.rows x1
            b calls a x1
            b calls helper x1
            GET /a by a
            POST /a by a
            GET /b by b
        "#]]
        .assert_eq(&told("app/main.py", text));
    }

    #[test]
    fn typescript_and_javascript_are_told_with_inline_handlers() {
        let text = "/** The server. */\nimport x from 'x';\nconst list = async (req: Req): Promise<void> => { await db.find(); };\napp.get('/a', auth, list);\nrouter.post('/b', (req, res) => { save(req); });\nclass A { run() { this.go(); } }\naxios.get('/c', list);\n";
        let expected = expect_test::expect![[r#"
            7 lines, "The server."
            fn list
            fn POST /b
            fn run
            - calls app.get x1
            - calls axios.get x1
            - calls router.post x1
            list calls db.find x1
            POST /b calls save x1
            run calls this.go x1
            GET /a by list
            POST /b by POST /b
        "#]];
        expected.assert_eq(&told("src/server.ts", text));
        expected.assert_eq(&told("src/server.js", &text.replace(": Req", "").replace(": Promise<void>", "")));
    }

    #[test]
    fn go_is_told_with_the_routes_of_muxes_and_routers() {
        let text = "// Package api serves.\npackage api\n\nfunc Register(mux *http.ServeMux, r *gin.Engine) {\n\tmux.HandleFunc(\"GET /a\", s.list)\n\tr.POST(\"/b\", create)\n\tr.Get(\"/c\", func(w W) { render(w) })\n}\n\nfunc (s *Server) list() { store.Rows(); create() }\n";
        expect_test::expect![[r#"
            10 lines, "Package api serves."
            fn Register
            fn GET /c
            fn list
            Register calls r.Get x1
            Register calls mux.HandleFunc x1
            Register calls r.POST x1
            GET /c calls render x1
            list calls store.Rows x1
            list calls create x1
            GET /a by s.list
            POST /b by create
            GET /c by GET /c
        "#]]
        .assert_eq(&told("api/api.go", text));
    }

    #[test]
    fn java_is_told_with_the_routes_of_its_annotations() {
        let text = "/** Projects. */\npackage org.acme;\n\n@RestController\n@RequestMapping(\"/v1\")\nclass Projects {\n  @GetMapping(\"/projects\")\n  List<P> list() { return store.rows(new Query()); }\n  @RequestMapping(value = \"/x\", method = RequestMethod.PUT)\n  void put() { list(); }\n}\n";
        expect_test::expect![[r#"
            11 lines, "Projects."
            fn list
            fn put
            list calls Query x1
            list calls store.rows x1
            put calls list x1
            GET /v1/projects by list
            PUT /v1/x by put
        "#]]
        .assert_eq(&told("src/main/java/org/acme/Projects.java", text));
    }

    #[test]
    fn text_that_no_compiler_takes_is_told_as_far_as_it_goes() {
        let deep = "(".repeat(20_000);
        for path in ["a.rs", "a.py", "a.ts", "a.tsx", "a.js", "a.go", "a.java"] {
            let (ones, nested) = (parse(path, &deep), parse(path, &format!("fn a() {{ {}", "b(".repeat(10_000))));
            assert!(ones.functions.is_empty() && nested.calls.len() < 10, "{path}");
            let bytes: Vec<u8> = (0..20_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            Parsers::default().parse(path, Language::of(path).unwrap(), [0; 32], &bytes);
        }
    }

    #[test]
    fn what_is_kept_of_one_file_is_bounded_and_that_is_told() {
        let many: String = (0..FUNCTIONS_MAX + 1).map(|n| format!("fn f{n}() {{}}\n")).collect();
        let facts = parse("a.rs", &many);
        assert_eq!((facts.functions.len(), facts.problem), (FUNCTIONS_MAX, Some(Problem::TooMany)));
        let calls: String = (0..CALLS_MAX + 1).map(|n| format!("f{n}();")).collect();
        let facts = parse("a.rs", &format!("fn a() {{ {calls} }}"));
        assert_eq!((facts.calls.len(), facts.problem), (CALLS_MAX, Some(Problem::TooMany)));
    }
}
