//! A tool is declared once; its schema, route, scope check, docs and dispatch all come from that declaration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use quorate_domain::Revision;
use quorate_domain::flag::Definition;
use quorate_domain::limit::REQUEST_ID_BYTES_MAX;
use quorate_domain::refusal::shown;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::call::{CallContext, CallError, Outcome};
use crate::cluster::Cluster;
use crate::metrics::Calls;
use crate::schema;

/// What a call does to stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Read,
    Write,
    /// Takes something away that can't be brought back by a plain call.
    Destructive,
}

/// One tool. Its arguments are its fields: the doc comments of type and fields are what callers read.
pub trait Tool: DeserializeOwned + JsonSchema + Send + 'static {
    const NAME: &'static str;
    const TITLE: &'static str;
    /// What a token has to hold. Empty: any caller with a token.
    const SCOPE: &'static str;
    const EFFECT: Effect;
    /// The group it is listed under, for `?groups=`.
    const GROUP: &'static str;
    /// Whether repeating a call with the same arguments changes nothing more.
    const IDEMPOTENT: bool;
    /// Whether a caller without a token gets an answer too.
    const ANONYMOUS: bool = false;
    /// Required arguments whose absence the tool itself judges, since something else goes first.
    const JUDGED_LATE: &'static [&'static str] = &[];
    /// Lists that may also come as one text with commas between.
    const LISTS_AS_TEXT: &'static [&'static str] = &[];

    /// The switch with which it is listed; `None` for nearly all, which are always.
    const LISTED_WITH: Option<Definition> = None;
    /// The switch without which it does nothing. The rules refuse by it; here it is told.
    const SWITCH: Option<Definition> = None;
    /// Whether it can be called beyond a token budget that stops: it ends work in order, or tells why it has to end.
    const BEYOND_BUDGET: bool = false;
    /// Arguments of which a 0 is taken for none, below what their schema tells.
    const ZERO_IS_NONE: &'static [&'static str] = &[];

    type Output: Serialize + JsonSchema + Send;

    /// The schema of another form that its answer has too where a program asks for it, for who reads the whole list.
    fn output_contract() -> Option<Value> {
        None
    }

    /// The smallest useful arguments.
    fn example() -> Value;

    fn call(self, ctx: &CallContext, cluster: &Cluster) -> impl Future<Output = Result<Reply<Self::Output>, CallError>> + Send;
}

/// A result and the revision that it was made or read at.
pub struct Reply<T> {
    pub facts: T,
    pub revision: Option<Revision>,
    /// For a reader, in place of the facts as JSON.
    pub text: Option<String>,
}

impl<T> Reply<T> {
    pub fn at(revision: Revision, facts: T) -> Self {
        Self { facts, revision: Some(revision), text: None }
    }

    /// For what was not read from the cluster.
    pub fn local(facts: T) -> Self {
        Self { facts, revision: None, text: None }
    }

    pub fn with_text(self, text: Option<String>) -> Self {
        Self { text, ..self }
    }
}

/// A result on its way out: the facts as compact JSON.
#[derive(Clone, Debug)]
pub struct Answer {
    pub facts: String,
    pub revision: Option<Revision>,
    /// What a reader is shown in place of the facts.
    pub text: Option<String>,
    /// Content blocks in JSON, of a tool that answers with such in place of facts.
    pub content: Option<String>,
    /// What the caller should know besides the result.
    pub warning: Option<String>,
}

type Run = Box<dyn Fn(Value, CallContext, Cluster) -> BoxFuture<'static, Result<Answer, CallError>> + Send + Sync>;

/// A declared tool, ready to be listed and called.
pub struct Entry {
    pub name: &'static str,
    pub title: &'static str,
    pub description: String,
    pub scope: &'static str,
    pub effect: Effect,
    pub idempotent: bool,
    pub group: &'static str,
    pub input: Value,
    pub output: Value,
    pub example: Value,
    pub calls: Calls,
    /// The switch with which it is listed.
    pub listed_with: Option<Definition>,
    /// The switch without which it does nothing.
    pub switch: Option<Definition>,
    pub beyond_budget: bool,
    /// As `tools/list` shows it, in JSON. Its description ends with the catalog's hint, if that has one.
    pub listed: String,
    /// The same without what the fields of the answer mean, which who reads an answer sees for itself, and without what is for
    /// programs alone: for lists that stand before a model all the time.
    pub listed_short: String,
    /// Arguments that have to stand in a header too, and its name.
    pub mirrored: Vec<(String, String)>,
    anonymous: bool,
    judged_late: &'static [&'static str],
    lists_as_text: &'static [&'static str],
    zero_is_none: &'static [&'static str],
    validator: jsonschema::Validator,
    run: Run,
}

impl Entry {
    /// `hint` is added to the description where the whole of it is listed.
    fn of<T: Tool>(hint: Option<&str>) -> Self {
        let mut input = schema::flat::<T>();
        let description = take_description(&mut input);
        let mutating = T::EFFECT != Effect::Read;
        let properties = input["properties"].as_object_mut().expect("arguments are an object");
        if mutating {
            properties.insert("idempotency_key".into(), idempotency_key_schema());
            properties.insert("fencing_token".into(), fencing_token_schema());
        }
        input["additionalProperties"] = Value::Bool(false);
        let mut output = schema::flat::<T::Output>();
        take_description(&mut output);
        let mut listed = json!({
            "name": T::NAME,
            "title": T::TITLE,
            "description": description,
            "inputSchema": input,
            "outputSchema": output,
            "annotations": {
                "title": T::TITLE,
                "readOnlyHint": T::EFFECT == Effect::Read,
                "destructiveHint": T::EFFECT == Effect::Destructive,
                "idempotentHint": T::IDEMPOTENT,
                "openWorldHint": false,
            },
        });
        let listed_short = short(listed.clone()).to_string();
        if let Some(contract) = T::output_contract() {
            listed["x-crux-output-schema"] = contract;
        }
        if let Some(hint) = hint {
            listed["description"] = format!("{description} {hint}").into();
        }
        Self {
            name: T::NAME,
            title: T::TITLE,
            description,
            listed: listed.to_string(),
            listed_short,
            scope: T::SCOPE,
            effect: T::EFFECT,
            idempotent: T::IDEMPOTENT,
            group: T::GROUP,
            // A schema that does not compile is a mistake in a declaration, found by the first test that builds a catalog.
            validator: jsonschema::validator_for(&input).expect("a declared schema compiles"),
            input,
            output,
            example: T::example(),
            calls: Calls::default(),
            listed_with: T::LISTED_WITH,
            switch: T::SWITCH.or(T::LISTED_WITH),
            beyond_budget: T::BEYOND_BUDGET,
            mirrored: Vec::new(),
            anonymous: T::ANONYMOUS,
            judged_late: T::JUDGED_LATE,
            lists_as_text: T::LISTS_AS_TEXT,
            zero_is_none: T::ZERO_IS_NONE,
            run: Box::new(|arguments, ctx, cluster| {
                Box::pin(async move {
                    let tool: T = serde_json::from_value(arguments).map_err(|error| {
                        CallError::arguments(error.to_string(), format!("`{}` shows its arguments in its schema.", T::NAME))
                    })?;
                    let reply = tool.call(&ctx, &cluster).await?;
                    let facts = serde_json::to_string(&reply.facts).map_err(|error| CallError::Fault { detail: error.to_string() })?;
                    Ok(Answer { facts, revision: reply.revision, text: reply.text, content: None, warning: None })
                })
            }),
        }
    }

    /// A tool whose schema is written out, and which answers with content of its own.
    fn of_plain(plain: Plain) -> Self {
        let Plain { name, description, scope, input, run } = plain;
        let listed = json!({ "name": name, "description": description, "inputSchema": input });
        let properties = input["properties"].as_object().into_iter().flatten();
        let mirrored = properties.filter_map(|(argument, property)| {
            Some((argument.clone(), format!("mcp-param-{}", property["x-mcp-header"].as_str()?.to_ascii_lowercase())))
        });
        Self {
            name,
            title: name,
            description: description.into(),
            listed: listed.to_string(),
            listed_short: listed.to_string(),
            scope,
            effect: Effect::Read,
            idempotent: true,
            group: "plain",
            validator: jsonschema::validator_for(&input).expect("a declared schema compiles"),
            mirrored: mirrored.collect(),
            input,
            output: Value::Null,
            example: json!({}),
            calls: Calls::default(),
            anonymous: false,
            judged_late: &[],
            lists_as_text: &[],
            zero_is_none: &[],
            listed_with: None,
            switch: None,
            beyond_budget: false,
            run: Box::new(move |arguments, ctx, _| {
                Box::pin(async move {
                    let content = run(arguments, ctx).await?;
                    let content = Some(Value::Array(content).to_string());
                    Ok(Answer { facts: String::new(), revision: None, text: None, content, warning: None })
                })
            }),
        }
    }

    /// Whether a caller without a token gets an answer too.
    pub fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    /// The arguments as they are taken, which is a little more than what a model is told.
    pub fn taken(&self) -> Value {
        let mut input = self.input.clone();
        for name in self.zero_is_none {
            input["properties"][name]["minimum"] = 0.into();
        }
        for name in self.lists_as_text {
            input["properties"][name]["type"] = json!(["array", "string"]);
        }
        input
    }

    pub fn is_mutating(&self) -> bool {
        self.effect != Effect::Read
    }

    /// Checks caller and arguments, and runs the tool.
    pub async fn call(&self, arguments: Value, ctx: CallContext, cluster: &Cluster) -> Result<Answer, CallError> {
        let start = Instant::now();
        let result = self.checked_call(arguments, ctx, cluster).await;
        let outcome = result.as_ref().map_or_else(CallError::outcome, |_| Outcome::Ok);
        self.calls.count(outcome, start.elapsed());
        if let Err(error @ CallError::Fault { .. }) = &result {
            tracing::error!(tool = self.name, %error, "call failed");
        }
        result
    }

    /// Whether the caller may call it at all.
    pub fn admits(&self, ctx: &CallContext) -> Result<(), CallError> {
        match &ctx.caller {
            None if !self.anonymous => Err(CallError::Unauthenticated),
            Some(caller) if !self.scope.is_empty() && !caller.may(self.scope) => Err(CallError::MissingScope { scope: self.scope.into() }),
            _ => Ok(()),
        }
    }

    async fn checked_call(&self, mut arguments: Value, mut ctx: CallContext, cluster: &Cluster) -> Result<Answer, CallError> {
        self.admits(&ctx)?;
        if let Value::Object(arguments) = &mut arguments {
            arguments.retain(|name, value| !self.zero_is_none.contains(&name.as_str()) || value.as_f64() != Some(0.0));
        }
        self.check(&mut arguments)?;
        if let (true, Value::Object(arguments)) = (self.is_mutating(), &mut arguments) {
            self.take_common(arguments, &mut ctx)?;
        }
        (self.run)(arguments, ctx, cluster.clone()).await
    }

    /// Moves what every writing tool takes from the arguments into the context.
    fn take_common(&self, arguments: &mut Map<String, Value>, ctx: &mut CallContext) -> Result<(), CallError> {
        if let Some(Value::String(key)) = arguments.remove("idempotency_key") {
            if ctx.idempotency_key.as_ref().is_some_and(|other| *other != key) {
                let problem = "the `idempotency_key` among the arguments and the one beside them (`_meta` or header) differ";
                return Err(CallError::arguments(problem, "Send it once."));
            }
            ctx.idempotency_key = Some(key);
        }
        if let Some(token) = arguments.remove("fencing_token") {
            ctx.fencing_token = token.as_u64();
        }
        if let Some(key) = &ctx.idempotency_key
            && (key.is_empty() || key.len() > REQUEST_ID_BYTES_MAX)
        {
            let problem = format!("`idempotency_key` is {} bytes long, and must have 1 to {REQUEST_ID_BYTES_MAX}", key.len());
            return Err(CallError::arguments(problem, "Use a short unique name for each intent, such as a UUID."));
        }
        Ok(())
    }

    fn check(&self, whole: &mut Value) -> Result<(), CallError> {
        let Value::Object(arguments) = whole else {
            return Err(CallError::arguments("the arguments are no JSON object", format!("Send an object such as {}.", self.example)));
        };
        let properties = self.input["properties"].as_object().expect("arguments are an object");
        let known = || match properties.is_empty() {
            true => format!("`{}` takes no arguments.", self.name),
            false => format!("`{}` takes {}.", self.name, list(properties.keys())),
        };
        let unknown: Vec<&String> = arguments.keys().filter(|name| !properties.contains_key(*name)).collect();
        if !unknown.is_empty() {
            let problem = format!("`{}` does not know {}", self.name, unknown_names(&unknown));
            return Err(CallError::arguments(problem, known()));
        }
        let required = self.input["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let missing: Vec<&str> = required
            .iter()
            .filter_map(Value::as_str)
            .filter(|name| !arguments.contains_key(*name) && !self.judged_late.contains(name))
            .collect();
        if !missing.is_empty() {
            let problem = format!("`{}` needs {}", self.name, list(missing.iter()));
            return Err(CallError::arguments(problem, known()));
        }
        for name in self.lists_as_text {
            if let Some(value) = arguments.get_mut(*name)
                && let Value::String(text) = value
            {
                *value = text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Value::from).collect();
            }
        }
        let mut numbers = arguments.iter_mut().filter_map(|(name, value)| check_number(name, &properties[name], value).err());
        let problem = numbers.next().or_else(|| {
            self.validator
                .iter_errors(whole)
                .find(|error| !matches!(error.kind(), ValidationErrorKind::Required { .. }))
                .map(|error| explain(&error))
        });
        match problem {
            None => Ok(()),
            Some(problem) => Err(CallError::arguments(problem, format!("Correct it and call `{}` again.", self.name))),
        }
    }
}

/// Arguments, and parts of answers that come only where they are asked for or sampled, that no model has a use for.
const FOR_PROGRAMS: [&str; 4] = ["contract", "crc_v1", "envelope", "unshaped"];

fn short(mut listed: Value) -> Value {
    bare(&mut listed["outputSchema"]);
    for schema in ["inputSchema", "outputSchema"] {
        let required = listed[schema]["required"].as_array().cloned().unwrap_or_default();
        if let Some(properties) = listed[schema]["properties"].as_object_mut() {
            properties.retain(|name, _| !FOR_PROGRAMS.contains(&name.as_str()) || required.iter().any(|required| required == name));
        }
    }
    listed
}

/// Takes the descriptions out of a schema.
pub fn bare(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // A property of that name is an object.
            fields.retain(|name, value| name != "description" || !value.is_string());
            fields.values_mut().for_each(bare);
        }
        Value::Array(items) => items.iter_mut().for_each(bare),
        _ => {}
    }
}

fn take_description(schema: &mut Value) -> String {
    match schema.as_object_mut().and_then(|object| object.remove("description")) {
        Some(Value::String(text)) => text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n"),
        _ => String::new(),
    }
}

fn idempotency_key_schema() -> Value {
    json!({
        "type": "string",
        "description": "Your name for this intent, such as a UUID: repeat a call with the same key and arguments, and it has one effect and the first answer.",
        "minLength": 1,
        "maxLength": REQUEST_ID_BYTES_MAX,
    })
}

fn fencing_token_schema() -> Value {
    json!({
        "type": "integer",
        "description": "The `fencing_token` of the punchcard that you make this call under; it is refused when that card is no longer yours.",
        "minimum": 0,
    })
}

/// How many unknown arguments a refusal names; it counts the others.
const NAMED: usize = 3;

/// The unknown arguments, the first ones by name.
fn unknown_names(unknown: &[&String]) -> String {
    let names = match unknown.get(NAMED..) {
        Some(rest @ [_, ..]) => {
            let first: Vec<String> = unknown[..NAMED].iter().map(|name| format!("`{}`", shown(name))).collect();
            format!("{} and {} more", first.join(", "), rest.len())
        }
        _ => list(unknown.iter().map(|name| shown(name))),
    };
    format!("the argument{} {names}", if unknown.len() == 1 { "" } else { "s" })
}

/// `a`, `b` and `c`.
fn list(names: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// Checks an argument that has to be a number, and says its whole range; others are left to the validator. A whole number
/// becomes an integer however it is written, `1e3` or `1000.0`, as JSON Schema has it.
pub fn check_number(name: &str, schema: &Value, value: &mut Value) -> Result<(), String> {
    let (kind, number) = match schema["type"].as_str() {
        Some("integer") => {
            if let Some(whole) = value.as_f64().filter(|_| value.is_f64()).and_then(whole) {
                *value = whole.into();
            }
            // No bound of ours is so large that it would be rounded.
            ("an integer", value.as_u64().map(|number| number as f64))
        }
        Some("number") => ("a number", value.as_f64()),
        _ => return Ok(()),
    };
    let (least, most) = (&schema["minimum"], &schema["maximum"]);
    let is_within = |number| least.as_f64().is_none_or(|least| least <= number) && most.as_f64().is_none_or(|most| number <= most);
    if number.is_some_and(is_within) {
        return Ok(());
    }
    // Every integer of ours has 64 bits and no sign.
    let least = if least.is_null() { "0".into() } else { least.to_string() };
    let most = if most.is_null() { u64::MAX.to_string() } else { most.to_string() };
    let found = if value.is_number() { value.to_string() } else { word_of(value).into() };
    Err(format!("`{name}` must be {kind} from {least} to {most}, not {found}"))
}

/// The same number as an integer, if it is one.
fn whole(number: f64) -> Option<u64> {
    // 2^64 is the first that does not fit.
    let fits = number.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&number);
    fits.then_some(number as u64)
}

/// A schema error as a fragment that names the argument, the rule and what was found, and never repeats a whole value.
pub fn explain(error: &ValidationError<'_>) -> String {
    explain_in("", error)
}

/// The same of a value that is one of the arguments itself.
pub fn explain_in(argument: &str, error: &ValidationError<'_>) -> String {
    let path = format!("{argument}{}", error.instance_path());
    let argument = match path.trim_start_matches('/').replace('/', ".") {
        top if top.is_empty() => "the arguments".to_string(),
        nested => format!("`{}`", shown(&nested)),
    };
    let found = error.instance();
    match error.kind() {
        ValidationErrorKind::Type { kind } => {
            let wanted = match kind {
                jsonschema::error::TypeKind::Single(kind) => kind.to_string(),
                jsonschema::error::TypeKind::Multiple(_) => "another type".into(),
            };
            format!("{argument} must be {}, not {}", with_article(&wanted), word_of(found))
        }
        ValidationErrorKind::Enum { options } => {
            let options =
                options.as_array().into_iter().flatten().map(|option| option.as_str().map_or_else(|| option.to_string(), str::to_string));
            format!("{argument} must be one of {}", list(options))
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            format!("{argument} does not know {}", unknown_names(&unexpected.iter().collect::<Vec<_>>()))
        }
        ValidationErrorKind::MaxLength { limit } => {
            let length = found.as_str().map_or(0, |text| text.chars().count());
            format!("{argument} is {length} characters long, and the limit is {limit}")
        }
        ValidationErrorKind::MinLength { limit } => format!("{argument} must have at least {limit} characters"),
        ValidationErrorKind::MaxItems { limit } => {
            format!("{argument} has {} elements, and the limit is {limit}", found.as_array().map_or(0, Vec::len))
        }
        ValidationErrorKind::MinItems { limit } => format!("{argument} must have at least {limit} elements"),
        _ => format!("{argument}: {}", error.masked_with("it")),
    }
}

pub fn with_article(kind: &str) -> String {
    match kind {
        "array" | "integer" | "object" => format!("an {kind}"),
        _ => format!("a {kind}"),
    }
}

fn word_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// What a plain tool does: arguments in, content blocks out.
pub type PlainRun = fn(Value, CallContext) -> BoxFuture<'static, Result<Vec<Value>, CallError>>;

/// A tool without types of its own, for schemas that no type of ours would have.
pub struct Plain {
    pub name: &'static str,
    pub description: &'static str,
    pub scope: &'static str,
    pub input: Value,
    pub run: PlainRun,
}

/// A set of tools in a fixed order.
#[derive(Clone, Default)]
pub struct Catalog {
    entries: Vec<Arc<Entry>>,
    by_name: BTreeMap<&'static str, usize>,
    hint: Option<&'static str>,
}

impl Catalog {
    /// Adds a tool at the end.
    pub fn with<T: Tool>(self) -> Self {
        let entry = Entry::of::<T>(self.hint);
        self.and(Arc::new(entry))
    }

    /// Ends the descriptions of all tools that are added from here on with this sentence.
    pub fn hinting(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// Adds a plain tool at the end.
    pub fn with_plain(self, plain: Plain) -> Self {
        self.and(Arc::new(Entry::of_plain(plain)))
    }

    fn and(mut self, entry: Arc<Entry>) -> Self {
        let twin = self.by_name.insert(entry.name, self.entries.len());
        assert!(twin.is_none(), "two tools are called {}", entry.name);
        self.entries.push(entry);
        self
    }

    /// The named tools of this catalog, in the given order, as the same entries.
    pub fn only(&self, names: &[&str]) -> Self {
        names.iter().fold(Self::default(), |picked, name| {
            let entry = self.find(name).unwrap_or_else(|| panic!("there is no tool {name}"));
            picked.and(entry.clone())
        })
    }

    /// This catalog and then another one.
    pub fn and_all(self, other: &Self) -> Self {
        other.entries.iter().cloned().fold(self, Self::and)
    }

    pub fn find(&self, name: &str) -> Option<&Arc<Entry>> {
        self.by_name.get(name).map(|&index| &self.entries[index])
    }

    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Every scope that a tool asks for, for who makes tokens.
    pub fn scopes(&self) -> Vec<&'static str> {
        self.entries.iter().map(|entry| entry.scope).filter(|scope| !scope.is_empty()).collect()
    }
}
