//! The HTTP API as its callers see it. An operation is declared once, with what serves it: both the router and the OpenAPI document
//! come from that declaration.

use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::middleware;
use axum::routing::{MethodFilter, MethodRouter, on};
use quorate_domain::limit::REQUEST_ID_BYTES_MAX;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::conventions;
use crate::registry::{Catalog, Entry};
use crate::routes::Route;
use crate::schema;

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";

/// One method of one address.
pub struct Operation<S> {
    method: Method,
    document: Value,
    served: MethodRouter<S>,
    /// Whether it takes `If-Match`; else that header is refused where something is written.
    is_versioned: bool,
}

impl<S: Clone + Send + Sync + 'static> Operation<S> {
    fn new<H: Handler<T, S>, T: 'static>(method: Method, id: &str, summary: &str, served: H) -> Self {
        let filter = MethodFilter::try_from(method.clone()).expect("a method of HTTP");
        let document = json!({ "operationId": id, "summary": summary, "parameters": [], "responses": {} });
        let told = Self { method, document, served: on(filter, served), is_versioned: false };
        told.failing(&[400, 401, 403, 404, 408, 409, 410, 413, 429, 500, 501, 502, 503, 507])
    }

    pub fn get<H: Handler<T, S>, T: 'static>(id: &str, summary: &str, served: H) -> Self {
        Self::new(Method::GET, id, summary, served)
    }

    /// A call that changes nothing, with its arguments in its body.
    pub fn ask<H: Handler<T, S>, T: 'static>(id: &str, summary: &str, served: H) -> Self {
        Self::new(Method::POST, id, summary, served)
    }

    pub fn post<H: Handler<T, S>, T: 'static>(id: &str, summary: &str, served: H) -> Self {
        Self::new(Method::POST, id, summary, served).writing()
    }

    pub fn put<H: Handler<T, S>, T: 'static>(id: &str, summary: &str, served: H) -> Self {
        Self::new(Method::PUT, id, summary, served).writing()
    }

    pub fn patch<H: Handler<T, S>, T: 'static>(id: &str, summary: &str, served: H) -> Self {
        Self::new(Method::PATCH, id, summary, served).writing()
    }

    pub fn delete<H: Handler<T, S>, T: 'static>(id: &str, summary: &str, served: H) -> Self {
        Self::new(Method::DELETE, id, summary, served).writing()
    }

    fn writing(self) -> Self {
        self.failing(&[412, 422, 504]).with(idempotency_key())
    }

    /// The part of the reference that it stands in.
    pub fn under(mut self, group: &str) -> Self {
        self.document["tags"] = json!([group]);
        self
    }

    pub fn about(mut self, description: &str) -> Self {
        self.document["description"] = description.into();
        self
    }

    /// For callers without a token too.
    pub fn open(mut self) -> Self {
        self.document["security"] = json!([]);
        self.document["responses"].as_object_mut().expect("an object").remove("401");
        self
    }

    /// Without a token it answers, and tells less.
    pub fn open_in_part(mut self) -> Self {
        self.document["security"] = json!([{}, { "bearer": [] }]);
        self
    }

    /// `If-Match` holds a write back unless it has this version.
    pub fn versioned(mut self) -> Self {
        self.is_versioned = true;
        self.with(json!({
            "name": "If-Match",
            "in": "header",
            "schema": { "type": "string", "pattern": "^\"[0-9]{1,19}\"$" },
            "description": "The `ETag` that you read: refused with 412 when it is another one by now.",
        }))
    }

    pub fn with(mut self, parameter: Value) -> Self {
        self.document["parameters"].as_array_mut().expect("a list").push(parameter);
        self
    }

    /// A part of the address.
    pub fn path(self, name: &str) -> Self {
        self.with(path_parameter(name, json!({ "type": "string" })))
    }

    /// The same as a schema has it.
    pub fn path_as(self, name: &str, schema: &Value) -> Self {
        self.with(path_parameter(name, schema.clone()))
    }

    /// The fields of a type, in the query.
    pub fn query<T: JsonSchema>(self) -> Self {
        query_parameters(&schema::flat::<T>(), &[]).into_iter().fold(self, Self::with)
    }

    /// One parameter of the query, where nothing declares them all.
    pub fn parameter(self, name: &str, schema: Value, required: bool, about: &str) -> Self {
        self.with(json!({ "name": name, "in": "query", "required": required, "schema": schema, "description": about }))
    }

    /// The body is this type as JSON.
    pub fn body<T: JsonSchema>(self) -> Self {
        let schema = schema::flat::<T>();
        self.body_of(JSON, schema)
    }

    pub fn body_of(mut self, kind: &str, schema: Value) -> Self {
        let required = schema["required"].as_array().is_some_and(|required| !required.is_empty()) || kind != JSON;
        self.document["requestBody"] = json!({ "required": required, "content": { kind: { "schema": schema } } });
        self
    }

    pub fn example(mut self, example: &Value) -> Self {
        self.document["requestBody"]["content"][JSON]["example"] = example.clone();
        self
    }

    /// 200 with this type as JSON.
    pub fn answers<T: JsonSchema>(self, description: &str) -> Self {
        self.answers_with(200, description, JSON, schema::flat::<T>())
    }

    pub fn answers_with(mut self, status: u16, description: &str, kind: &str, schema: Value) -> Self {
        let mut answer = json!({ "description": description, "content": { kind: { "schema": schema } } });
        if kind == JSON {
            answer["headers"] = json!({
                "Quorate-Revision": { "$ref": "#/components/headers/Quorate-Revision" },
                "Quorate-Warning": { "$ref": "#/components/headers/Quorate-Warning" },
            });
            if self.method == Method::GET {
                answer["headers"]["ETag"] = json!({ "$ref": "#/components/headers/ETag" });
                answer["headers"]["Link"] = json!({ "$ref": "#/components/headers/Link" });
                self.document["responses"]["304"] = json!({ "$ref": "#/components/responses/304" });
                self = self.with(json!({
                    "name": "If-None-Match",
                    "in": "header",
                    "schema": { "type": "string" },
                    "description": "An `ETag` that you have: 304 when the answer is still that one.",
                }));
            }
        }
        self.document["responses"][status.to_string()] = answer;
        self
    }

    fn failing(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            self.document["responses"][status.to_string()] = json!({ "$ref": format!("#/components/responses/{status}") });
        }
        self
    }

    /// What serves it, and how it is told.
    pub fn split(mut self) -> (MethodRouter<S>, String, Value) {
        let is_read = self.document["responses"].get("412").is_none();
        let served =
            if is_read || self.is_versioned { self.served } else { self.served.route_layer(middleware::from_fn(conventions::no_if_match)) };
        let document = self.document.as_object_mut().expect("an object");
        document.retain(|name, value| name != "parameters" || value != &json!([]));
        (served, self.method.as_str().to_lowercase(), self.document)
    }
}

fn path_parameter(name: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": at_least_one(schema) })
}

/// A part of an address has at least one letter.
fn at_least_one(mut schema: Value) -> Value {
    if schema["type"] == "string" && schema["minLength"].as_u64().unwrap_or(0) == 0 && schema.get("enum").is_none() {
        schema["minLength"] = 1.into();
    }
    schema
}

fn idempotency_key() -> Value {
    json!({
        "name": "Idempotency-Key",
        "in": "header",
        "schema": { "type": "string", "pattern": format!("^[!-~]{{1,{REQUEST_ID_BYTES_MAX}}}$") },
        "description": "Your name for this intent, such as a UUID: a call that comes again with the same key and arguments has one effect and the first answer.",
    })
}

/// The properties of a schema as parameters of a query. A list is a name that comes several times.
pub fn query_parameters(schema: &Value, beside: &[&str]) -> Vec<Value> {
    let required = |name: &str| schema["required"].as_array().is_some_and(|required| required.iter().any(|one| one == name));
    let properties = schema["properties"].as_object().into_iter().flatten();
    let told = properties.filter(|(name, _)| !beside.contains(&name.as_str())).map(|(name, property)| {
        let mut property = property.clone();
        let about = property.as_object_mut().and_then(|property| property.remove("description"));
        let mut parameter = json!({ "name": name, "in": "query", "required": required(name), "schema": property });
        if let Some(about) = about {
            parameter["description"] = about;
        }
        if parameter["schema"]["type"] == "array" {
            parameter["style"] = "form".into();
            parameter["explode"] = true.into();
        }
        parameter
    });
    told.collect()
}

/// An address of a tool that stands in for others in the router: one for each tool is told.
pub fn of_tool(entry: &Entry) -> Value {
    let served = || async {};
    let operation = if entry.is_mutating() { Operation::<()>::post } else { Operation::<()>::ask };
    let operation = operation(entry.name, entry.title, served).under(entry.group).about(&entry.description);
    let operation = operation.body_of(JSON, entry.taken()).example(&entry.example);
    let operation = operation.answers_with(200, "The facts", JSON, entry.output.clone());
    let operation = if entry.is_anonymous() { operation.open_in_part() } else { operation };
    operation.split().2
}

/// The whole document.
pub fn document(routes: &[Route], tools: &Catalog) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        for (method, operation) in &route.operations {
            paths.entry(route.path).or_insert_with(|| json!({}))[method] = operation.clone();
        }
    }
    for entry in tools.entries() {
        paths.insert(format!("/v1/tools/crux/{}", entry.name), json!({ "post": of_tool(entry) }));
    }
    let whole = json!({ "type": "integer", "minimum": 0 });
    let text = json!({ "type": "string" });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Quorate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Memory and coordination for teams of agents. Tokens are bearer tokens; a token decides tenant and passport.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Problem": problem() },
            "responses": responses(),
            "headers": {
                "Quorate-Revision": { "description": "Where the log stood.", "schema": whole },
                "Quorate-Warning": { "description": "What you should know besides the answer.", "schema": text },
                "ETag": { "description": "Names this answer; of a versioned resource, its version.", "schema": text },
                "Link": { "description": "The address of the next page, as `rel=\"next\"`, when there is one.", "schema": text },
                "Retry-After": { "description": "Seconds after which to call again.", "schema": whole },
                "WWW-Authenticate": { "description": "What to send.", "schema": text },
            },
        },
    })
}

/// RFC 9457, with the facts of the error.
fn problem() -> Value {
    json!({
        "type": "object",
        "properties": {
            "type": { "type": "string", "description": "`about:blank`: `status` and `code` say what it is." },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string", "description": "The same as `message`." },
            "code": { "description": "A number of JSON-RPC, or a stable word." },
            "message": { "type": "string", "description": "What happened, whether anything was written, and what to do next." },
            "retryable": { "type": "boolean", "description": "Whether the same call can succeed later." },
            "wrote": { "type": "string", "enum": ["no", "unknown"] },
            "data": { "type": "object", "description": "What a program needs besides the code." },
        },
        "required": ["type", "title", "status", "detail", "code", "message"],
    })
}

/// What each status of a failure says, with the codes that come with it.
const FAILURES: [(u16, &str); 17] = [
    (400, "Arguments are missing, unknown or out of bounds: `-32602`."),
    (401, "No token, or one that is unknown, expired or revoked: `UNAUTHENTICATED`."),
    (403, "The token lacks a scope (`-32030`), or a rule says no: `-32003`, `REVOKED`, `CAPABILITY_DENIED`, `FORBIDDEN`."),
    (404, "Nothing of yours has this id: `NOT_FOUND`."),
    (408, "The body did not arrive in time: `-32602`."),
    (409, "Somebody else was first: `HELD`, `DEADLOCK`, `STALE_TOKEN`, `ALREADY_DECIDED`, `ALREADY_PENDING`, `REQUEST_TOO_OLD`."),
    (410, "It was there and is over: `EXPIRED`, `SPENT`, `COMPACTED`."),
    (412, "It has changed since you read it: `-32004`."),
    (413, "It is too large: `-32602`."),
    (422, "The `Idempotency-Key` came before with other arguments: `IDEMPOTENCY_CONFLICT`."),
    (429, "A limit is reached: `FULL`, `OVER_BUDGET`."),
    (500, "Node and gateway do not understand each other: `INTERNAL_ERROR`."),
    (501, "Switched off, not set up or too new: `-32030`, `-32601`, `CAPABILITY_DENIED`, `NOT_CONFIGURED`, `FEATURE_LEVEL`."),
    (502, "Another cluster does not do it: `REMOTE_UNAVAILABLE`, `REMOTE_REFUSED`."),
    (503, "Nobody can answer now; nothing was written: `UNAVAILABLE`, `UNKNOWN`, `OVERLOADED`."),
    (504, "Whether it was written is not known: `OUTCOME_UNKNOWN`. Repeat it with the same key."),
    (507, "The cluster is short of disk space: `OUT_OF_SPACE`."),
];

fn responses() -> Map<String, Value> {
    let told = FAILURES.into_iter().map(|(status, description)| {
        let mut response = json!({
            "description": description,
            "content": { PROBLEM: { "schema": { "$ref": "#/components/schemas/Problem" } } },
        });
        if status == StatusCode::UNAUTHORIZED.as_u16() {
            response["headers"] = json!({ "WWW-Authenticate": { "$ref": "#/components/headers/WWW-Authenticate" } });
        }
        if matches!(status, 409 | 429 | 503 | 504) {
            response["headers"] = json!({ "Retry-After": { "$ref": "#/components/headers/Retry-After" } });
        }
        (status.to_string(), response)
    });
    let unchanged = json!({ "description": "You have it.", "headers": { "ETag": { "$ref": "#/components/headers/ETag" } } });
    told.chain([("304".to_string(), unchanged)]).collect()
}
