//! Resources: addresses as a person expects them under `/v1`, each another face of a tool.
//!
//! A face names its tool and where an argument stands; what the arguments are, what they have to be and what is answered is the tool's
//! declaration. What `GET` and `DELETE` take besides the address stands in the query, what the others take in the body. The token
//! says who is asking: `tenant_id` is not an argument here, and what a tool has to be told of its caller may be left out.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use serde_json::{Map, Value, json};

use crate::arguments::{self, bad};
use crate::call::{CallContext, CallError};
use crate::http::{self, Received, receive, refusal, tags, told};
use crate::mcp::idempotency_key;
use crate::openapi::{Operation, query_parameters};
use crate::registry::{Catalog, Entry};
use crate::routes::{Access, Routes};
use crate::server::App;

/// Another address of a tool. Parts of the path are named like the arguments that they are.
pub struct Face {
    method: Method,
    path: &'static str,
    tool: &'static str,
    /// Its name in the OpenAPI document.
    id: &'static str,
    summary: &'static str,
    /// What its answer names its version: the `ETag` of a read.
    version: Option<&'static str>,
    /// The argument that holds a write back unless the version is this one: `If-Match`.
    if_version: Option<&'static str>,
}

const fn face(method: Method, path: &'static str, tool: &'static str, id: &'static str, summary: &'static str) -> Face {
    Face { method, path, tool, id, summary, version: None, if_version: None }
}

const fn get(path: &'static str, tool: &'static str, id: &'static str, summary: &'static str) -> Face {
    face(Method::GET, path, tool, id, summary)
}

const fn post(path: &'static str, tool: &'static str, id: &'static str, summary: &'static str) -> Face {
    face(Method::POST, path, tool, id, summary)
}

const fn put(path: &'static str, tool: &'static str, id: &'static str, summary: &'static str) -> Face {
    face(Method::PUT, path, tool, id, summary)
}

const fn patch(path: &'static str, tool: &'static str, id: &'static str, summary: &'static str) -> Face {
    face(Method::PATCH, path, tool, id, summary)
}

const fn delete(path: &'static str, tool: &'static str, id: &'static str, summary: &'static str) -> Face {
    face(Method::DELETE, path, tool, id, summary)
}

const EDGE: &str = "/v1/edges/{from_kind}/{from_id}/{edge_kind}/{to_kind}/{to_id}";

pub static FACES: &[Face] = &[
    // Facts
    get("/v1/facts", "query_facts", "find_facts", "Find facts"),
    post("/v1/facts", "store_fact", "create_fact", "Store a fact, or its next version"),
    get("/v1/facts/entities", "list_entities", "list_fact_entities", "What facts are about"),
    get("/v1/facts/history", "fact_history", "show_fact_history", "The versions of a fact"),
    patch("/v1/facts/{fact_id}", "memory_edit", "edit_fact", "Correct a fact"),
    delete("/v1/facts/{fact_id}", "delete_fact", "remove_fact", "Delete a fact"),
    put("/v1/facts/{fact_id}/pin", "memory_pin", "pin_fact", "Pin a fact, or no more"),
    put("/v1/facts/{fact_id}/horizon", "memory_set_horizon", "set_fact_horizon", "Say how long a fact stays fresh"),
    post("/v1/facts/{fact_id}/verification", "memory_reverify", "reverify_fact", "Say that a fact still holds"),
    // Sessions
    get("/v1/sessions", "list_sessions", "find_sessions", "List your sessions"),
    Face {
        method: Method::GET,
        path: "/v1/sessions/{session_id}",
        tool: "get_session",
        id: "show_session",
        summary: "Read a session",
        version: Some("revision"),
        if_version: None,
    },
    Face {
        method: Method::PUT,
        path: "/v1/sessions/{session_id}",
        tool: "save_session",
        id: "put_session",
        summary: "Save a session",
        version: None,
        if_version: Some("expected_revision"),
    },
    delete("/v1/sessions/{session_id}", "delete_session", "remove_session", "Delete a session"),
    put("/v1/sessions/{session_id}/archive", "archive_session", "put_session_archive", "Archive a session"),
    delete("/v1/sessions/{session_id}/archive", "unarchive_session", "delete_session_archive", "Bring a session back from the archive"),
    get("/v1/sessions/{session_id}/observations", "list_observations", "find_observations", "What was observed in a session"),
    get(
        "/v1/sessions/{session_id}/observations/{observation_id}",
        "get_observation",
        "show_observation",
        "Read an observation with its receipt",
    ),
    get("/v1/sessions/{session_id}/activity", "activity_recent", "find_activity", "The journal of a session"),
    // Punchcards
    post("/v1/punchcards", "punch_in", "take_punchcard", "Take a lease, or renew it"),
    post("/v1/punchcards/release", "punch_out", "release_punchcard", "Give a lease back"),
    get("/v1/punchcards/check", "check_punchcard", "show_punchcard", "Whether somebody else holds something"),
    post("/v1/punchcards/{punchcard_id}/force-release", "force_release", "end_punchcard", "End somebody's lease"),
    // Approvals
    post("/v1/approvals", "approval_request", "request_approval", "Ask people for an approval"),
    post("/v1/approvals/{request_id}/decision", "approval_decide", "decide_approval", "Approve or reject"),
    // Receipts
    get("/v1/receipts/{receipt_id}/verification", "receipt_verify", "verify_receipt", "Verify a receipt"),
    // Work
    get("/v1/work", "list_work", "find_work", "List work"),
    post("/v1/work", "create_work", "add_work", "Create work"),
    get("/v1/work/events", "status_feed", "show_status_feed", "What happened to work"),
    get("/v1/work/{work_id}", "list_work", "show_work", "Read work with its comments"),
    get("/v1/work/{work_id}/events", "status_feed", "show_work_events", "What happened to a work item"),
    patch("/v1/work/{work_id}", "update_work_state", "move_work", "Move work on, or hand it over"),
    post("/v1/work/{work_id}/comments", "comment_on_work", "add_work_comment", "Comment on work"),
    get("/v1/projects", "list_projects", "find_projects", "List projects"),
    get("/v1/projects/{project_id}", "get_project_context", "show_project", "Read a project with its members"),
    get("/v1/coordination", "coord_status", "show_coordination", "Who is at what"),
    post("/v1/coordination", "coord_announce", "announce_intent", "Say what a session is at"),
    // The graph
    get("/v1/entities", "entity_list", "find_entities", "List entities"),
    get("/v1/entities/{kind}/{id}", "entity_get", "show_entity", "Read an entity"),
    put("/v1/entities/{kind}/{id}", "entity_upsert", "put_entity", "Write an entity"),
    delete("/v1/entities/{kind}/{id}", "entity_delete", "remove_entity", "Delete an entity"),
    get("/v1/entities/{kind}/{id}/history", "entity_history", "show_entity_history", "The versions of an entity"),
    get("/v1/entities/{kind}/{id}/reached", "graph_traverse", "show_reached", "What is reached from an entity"),
    get("/v1/edges", "edge_list", "find_edges", "List edges"),
    get(EDGE, "edge_get", "show_edge", "Read an edge"),
    put(EDGE, "edge_upsert", "put_edge", "Write an edge"),
    delete(EDGE, "edge_delete", "remove_edge", "Delete an edge"),
    get("/v1/kinds", "kind_list", "find_kinds", "List kinds of entities"),
    get("/v1/kinds/{kind}", "kind_get", "show_kind", "Read a kind of entities"),
    // Search
    get("/v1/search", "query", "search", "Search everything that you may see"),
    get("/v1/search/titles", "query_scan", "scan", "Search for titles alone"),
    get("/v1/search/results", "query_expand", "expand_results", "The whole text of results"),
    get("/v1/search/gaps", "get_gaps", "show_gaps", "What was searched for and not found"),
    // Artefacts, hand-offs, decisions, constraints
    get("/v1/artefacts", "artefact_list", "find_artefacts", "List artefacts"),
    post("/v1/artefacts", "artefact_put", "add_artefact", "Store an artefact"),
    get("/v1/artefacts/{artefact_id}", "artefact_get", "show_artefact", "Read an artefact, in parts"),
    post("/v1/handoffs", "create_handoff", "pack_handoff", "Pack a session for another agent"),
    post("/v1/handoffs/accept", "accept_handoff", "unpack_handoff", "Take a hand-off over"),
    post("/v1/decisions", "record_decision", "add_decision", "Record a decision"),
    get("/v1/constraints", "get_constraints", "find_constraints", "List constraints"),
    post("/v1/constraints", "declare_constraint", "add_constraint", "Declare a constraint"),
    // Repositories and orchestrators
    get("/v1/repos", "list_repos", "find_repos", "List repositories"),
    post("/v1/repos", "register_repo", "add_repo", "Register a repository"),
    get("/v1/orchestrators", "list_orchestrators", "find_orchestrators", "List orchestrators"),
    post("/v1/orchestrators", "create_orchestrator", "add_orchestrator", "Create an orchestrator"),
    patch("/v1/orchestrators/{orchestrator_id}", "update_orchestrator", "change_orchestrator", "Change an orchestrator"),
    post("/v1/orchestrators/{orchestrator_id}/members", "attach_to_orchestrator", "add_orchestrator_member", "Attach a member"),
    delete(
        "/v1/orchestrators/{orchestrator_id}/members/{member_ref}",
        "detach_from_orchestrator",
        "remove_orchestrator_member",
        "Detach a member",
    ),
    // Who is asking, and for operators
    get("/v1/me", "get_agent_identity", "show_me", "Who the token stands for"),
    get("/v1/me/contract", "autonomy_contract", "show_my_contract", "What the token may do"),
    get("/v1/admin/routes", "route_access_matrix", "show_routes", "Which token each address asks for"),
];

/// What tools have to be told of their callers. A face takes the caller for it, if it is not told.
const OF_CALLER: [&str; 5] = ["holder_passport", "created_by_passport", "by_passport", "author_passport", "tenant_id"];
/// What stands beside the arguments.
const TENANT: &str = "tenant_id";
const KEY: &str = "idempotency_key";

/// The addresses of all faces.
pub fn routes(catalog: &Catalog, routes: Routes<Arc<App>>) -> Routes<Arc<App>> {
    FACES.iter().fold(routes, |routes, face| {
        let entry = catalog.find(face.tool).unwrap_or_else(|| panic!("{} is a face of no tool", face.path));
        let access = if entry.is_anonymous() { Access::Open } else { Access::ScopeOfTool };
        routes.operation(face.path, access, face.operation(entry))
    })
}

impl Face {
    fn operation(&'static self, entry: &Entry) -> Operation<Arc<App>> {
        let served = move |State(app): State<Arc<App>>, Path(path): Path<Vec<(String, String)>>, request: Request<Body>| async move {
            self.serve(&app, path, request).await
        };
        let operation = match (&self.method, entry.is_mutating()) {
            (&Method::GET, _) => Operation::get(self.id, self.summary, served),
            (&Method::POST, false) => Operation::ask(self.id, self.summary, served),
            (&Method::PUT, _) => Operation::put(self.id, self.summary, served),
            (&Method::PATCH, _) => Operation::patch(self.id, self.summary, served),
            (&Method::DELETE, _) => Operation::delete(self.id, self.summary, served),
            (_, _) => Operation::post(self.id, self.summary, served),
        };
        let operation = operation.under(entry.group).about(&format!("{}\n\nThe tool `{}`.", entry.description, entry.name));
        let schema = self.schema(entry.taken());
        let operation = self.in_path().fold(operation, |operation, name| operation.path_as(name, &entry.input["properties"][name]));
        let in_path: Vec<&str> = self.in_path().collect();
        let operation = match self.takes_body() {
            false => query_parameters(&schema, &in_path).into_iter().fold(operation, Operation::with),
            true => operation.body_of("application/json", without(schema, &in_path)),
        };
        let operation = if entry.is_anonymous() { operation.open_in_part() } else { operation };
        let operation = if self.if_version.is_some() { operation.versioned() } else { operation };
        operation.answers_with(200, "The facts", "application/json", entry.output.clone())
    }

    fn takes_body(&self) -> bool {
        ![Method::GET, Method::DELETE].contains(&self.method)
    }

    fn in_path(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// The arguments as this face takes them.
    fn schema(&self, input: Value) -> Value {
        let mut schema = without(input, &[TENANT, KEY]);
        if let Some(required) = schema["required"].as_array_mut() {
            required.retain(|name| !OF_CALLER.iter().any(|own| name == own));
        }
        match self.if_version {
            Some(argument) => without(schema, &[argument]),
            None => schema,
        }
    }

    async fn serve(&self, app: &Arc<App>, path: Vec<(String, String)>, request: Request<Body>) -> Response<Body> {
        let uri = request.uri().clone();
        let Received { headers, body, caller, deadline } = match receive(app, request).await {
            Ok(received) => received,
            Err(refused) => return refused,
        };
        let entry = app.tools.find(self.tool).expect("each face has a tool").clone();
        let ctx = CallContext {
            idempotency_key: idempotency_key(&headers),
            tags: tags(&headers),
            ..CallContext::new(caller, deadline, app.services.clone())
        };
        let read = entry.admits(&ctx).and_then(|()| self.arguments(&entry, &ctx, path, uri.query().unwrap_or_default(), &headers, &body));
        let answer = match read {
            Ok(arguments) => app.call(&entry, arguments, ctx).await,
            Err(error) => Err(error),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return refusal(&error),
        };
        let tag = self.version.and_then(|name| serde_json::from_str::<Value>(&answer.facts).ok()?[name].as_u64());
        let mut response = told(answer);
        if let Some(tag) = tag.and_then(|version| HeaderValue::try_from(format!("\"{version}\"")).ok()) {
            response.headers_mut().insert(header::ETAG, tag);
        }
        response
    }

    fn arguments(
        &self,
        entry: &Entry,
        ctx: &CallContext,
        path: Vec<(String, String)>,
        query: &str,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Value, CallError> {
        let schema = self.schema(entry.input.clone());
        let in_path: Vec<&str> = self.in_path().collect();
        let mut arguments = match self.takes_body() {
            false if !body.is_empty() => return Err(bad(format!("{} takes no body", self.method))),
            false => arguments::of_query(&schema, query, &in_path)?,
            true => {
                arguments::none_beside(Some(query))?;
                self.of_body(&schema, &in_path, http::arguments(headers, body)?)?
            }
        };
        for (name, text) in path {
            let value = arguments::of_text(&name, &schema["properties"][&name], &text)?;
            arguments.insert(name, value);
        }
        let required = |name: &str| entry.input["required"].as_array().is_some_and(|required| required.iter().any(|one| one == name));
        if let Some(caller) = ctx.caller.as_deref() {
            for name in OF_CALLER.into_iter().filter(|name| required(name)) {
                let own = if name == TENANT { &caller.tenant } else { &caller.passport };
                arguments.entry(name).or_insert_with(|| own.as_str().into());
            }
        }
        if let (Some(argument), Some(tag)) = (self.if_version, headers.get(header::IF_MATCH)) {
            let version = tag.to_str().ok().and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"')?.parse::<u64>().ok());
            let version = version.ok_or_else(|| bad("`If-Match` is no `ETag` of this address, which is a number in quotes"))?;
            arguments.insert(argument.into(), json!(version));
        }
        Ok(arguments.into())
    }

    fn of_body(&self, schema: &Value, in_path: &[&str], body: Value) -> Result<Map<String, Value>, CallError> {
        let Value::Object(fields) = body else { return Err(bad("the body is no JSON object")) };
        let known = |name: &str| schema["properties"].get(name).is_some() && !in_path.contains(&name);
        match fields.keys().find(|name| !known(name)) {
            None => Ok(fields),
            Some(name) => {
                let problem = format!("the body has `{}`, which this address does not take", quorate_domain::refusal::shown(name));
                Err(bad(problem))
            }
        }
    }
}

/// A schema without some of its properties.
fn without(mut schema: Value, names: &[&str]) -> Value {
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| !names.contains(&name.as_str()));
    }
    if let Some(required) = schema["required"].as_array_mut() {
        required.retain(|name| !names.iter().any(|left_out| name == left_out));
    }
    schema
}
