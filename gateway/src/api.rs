//! Every address of the HTTP API, declared once, with what serves it and what its callers are told.
//!
//! Tools are all at `POST /v1/tools/crux/{tool}`; [`faces`] are other addresses of theirs, as people expect them. What is here besides is
//! no tool: proofs, events, and what programs and operators need.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};

use crate::openapi::Operation;
use crate::registry::{Catalog, Tool};
use crate::rest::{NoParameters, Page};
use crate::routes::{Access, Routes};
use crate::server::App;
use crate::tools::approvals::{self as approval_tools, ApprovalDecide};
use crate::tools::github as github_tools;
use crate::tools::group;
use crate::tools::measures;
use crate::tools::observations::{self, Batch};
use crate::tools::punchcards::{Cards, CheckPunchcard, ListPunchcards, PunchIn, PunchOut};
use crate::tools::receipts;
use crate::tools::work::CreateWork;
use crate::{
    admin, approvals, budgets, cards, edge, events, faces, github, hook, http, ingest, kinds, projects, proofs, reference, scans, sign_in,
    sync,
};

type Served = Operation<Arc<App>>;

/// Adds all of them.
pub fn routes(tools: &Catalog, routes: Routes<Arc<App>>) -> Routes<Arc<App>> {
    use Access::{AnyScope, Open, ScopeOfTool};
    // Each tool of it is told by itself.
    let routes = routes.route("/v1/tools/crux/{tool}", ScopeOfTool, post(call_tool));
    let routes = decisions(faces::routes(tools, routes));
    let routes = cards_and_work(routes);
    let routes = log_and_receipts(routes);
    let routes = documents_and_scans(routes);
    let routes = for_operators(routes);
    routes
        .api(
            "/v1/events",
            AnyScope(&[events::SCOPE]),
            [Served::get("follow_events", "Follow changes", follow_events)
                .under("events")
                .about(
                    "Every change of the tenant as server-sent events: `change` with `{revision, kind, id, about}`; `progress` with \
                     `{revision}`, up to where there is nothing more to tell; `compacted` with `{through}`, `refused` and `stopping` are \
                     the last one of a stream. Go on from the id of the last event. A reader that leaves events waiting for 30 seconds \
                     is cut off.",
                )
                .parameter("since", position(), false, "A revision, or the id of an event; now when absent.")
                .parameter("kinds", text(), false, "Kinds such as `work.moved`, or beginnings such as `fact.`, with commas between.")
                .with(json!({ "name": "Last-Event-ID", "in": "header", "schema": position(), "description": "Goes before `since`." }))
                .answers_with(200, "The stream", "text/event-stream", text())],
        )
        .api(
            "/v1/sessions/{session_id}/observations",
            AnyScope(&[observations::TELLING]),
            [Served::post("append_observation", "Tell what happened in a session", observe)
                .under(group::OBSERVATIONS)
                .path("session_id")
                .body::<observations::Told>()
                .answers_with(201, "Their ids", JSON, object())],
        )
        .api(
            "/v1/sessions/{session_id}/observations/batch",
            AnyScope(&[observations::TELLING]),
            [Served::post("append_observations", "Tell several things at once, all or none", observe_batch)
                .under(group::OBSERVATIONS)
                .path("session_id")
                .body::<Batch>()
                .answers_with(201, "Their ids", JSON, object())],
        )
        .api(
            "/v1/activity",
            AnyScope(&[measures::WRITING]),
            [Served::post("append_activity", "Write a turn into a session's activity", write_activity)
                .under(group::MEASURES)
                .body::<measures::Turn>()
                .answers_with(201, "Its id and place", JSON, object())],
        )
        .api(
            "/v1/activity/turn/{turn_id}",
            AnyScope(&[measures::READING]),
            [Served::get("get_activity_turn", "Read a turn with its whole text", read_activity)
                .under(group::MEASURES)
                .path("turn_id")
                .answers_with(200, "The turn", JSON, object())],
        )
        .api(
            "/v1/guard",
            AnyScope(&[hook::guard::CHECK]),
            [Served::ask("guard_edit", "Ask before an edit, and lease what it changes", guard)
                .under(group::PUNCHCARDS)
                .body_of(JSON, object())
                .answers_with(200, "The verdict", JSON, object())],
        )
        .api(
            "/v1/hook/claude-code",
            AnyScope(&[hook::guard::CHECK]),
            [Served::ask("hook_claude_code", "The same as an HTTP hook of Claude Code", hook_claude_code)
                .under(group::PUNCHCARDS)
                .body_of(JSON, object())
                .answers_with(200, "The verdict", JSON, object())],
        )
        // Whoever asks has no token yet: the signature is the credential.
        .api(
            "/v1/auth/challenge",
            Open,
            [Served::ask("get_challenge", "Something for a passport's own key to sign", auth_challenge)
                .under(group::IDENTITY)
                .open()
                .body::<sign_in::Asked>()
                .answers_with(200, "The challenge", JSON, object())],
        )
        .api(
            "/v1/auth/token",
            Open,
            [Served::ask("sign_in", "A token for a signed challenge", auth_token)
                .under(group::IDENTITY)
                .open()
                .body::<sign_in::Answered>()
                .answers_with(200, "A token that lives for 15 minutes", JSON, object())],
        )
        // Signed, and answers nothing.
        .route("/v1/integrations/github/webhook", Open, post(github_webhook))
        .api(
            "/v1/openapi.json",
            Open,
            [Served::get("show_openapi", "This document", openapi).under("reference").open().answers_with(
                200,
                "OpenAPI 3.1",
                JSON,
                object(),
            )],
        )
        .api(
            "/v1/docs",
            Open,
            [Served::get("show_docs", "This document as pages", reference::index_page).under("reference").open().answers_with(
                200,
                "A page",
                HTML,
                text(),
            )],
        )
        .api(
            "/v1/docs/{operation}",
            Open,
            [Served::get("show_docs_of", "The page of one operation", reference::operation_page)
                .under("reference")
                .open()
                .path("operation")
                .answers_with(200, "A page", HTML, text())],
        )
}

const JSON: &str = "application/json";
const HTML: &str = "text/html";

fn object() -> Value {
    json!({ "type": "object" })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn whole() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn position() -> Value {
    json!({ "type": "string", "pattern": "^[0-9]{1,19}([.][0-9]{1,19})?$" })
}

fn decisions(routes: Routes<Arc<App>>) -> Routes<Arc<App>> {
    const LISTING: Access = Access::AnyScope(&approval_tools::LISTING);
    const DECIDING: Access = Access::AnyScope(&[ApprovalDecide::SCOPE]);
    let under = |operation: Served| operation.under(group::APPROVALS);
    routes
        .api(
            "/v1/approvals",
            LISTING,
            [under(Served::get("list_approvals", "List approvals", list_approvals)).query::<approvals::Listed>().answers_with(
                200,
                "Approvals",
                JSON,
                object(),
            )],
        )
        .api(
            "/v1/approvals/{request_id}",
            LISTING,
            [under(Served::get("show_approval", "Show an approval, or wait for its decision", show_approval))
                .path("request_id")
                .query::<approvals::Wait>()
                .answers_with(200, "The approval", JSON, object())],
        )
        .api(
            "/v1/approvals/policy",
            LISTING,
            [
                under(Served::get("show_approval_policy", "Show the policy", approval_policy))
                    .query::<NoParameters>()
                    .answers::<approvals::Policy>("The policy"),
                under(Served::put("set_approval_policy", "Set the whole policy", set_approval_policy))
                    .body::<approvals::Policy>()
                    .answers::<approvals::Policy>("The policy"),
            ],
        )
        .api(
            "/v1/webhooks",
            DECIDING,
            [under(Served::get("list_webhooks", "Where notices go", webhooks)).query::<NoParameters>().answers_with(
                200,
                "Addresses",
                JSON,
                object(),
            )],
        )
        .api(
            "/v1/webhooks/{id}",
            DECIDING,
            [
                under(Served::put("put_webhook", "Name an address for notices", put_webhook))
                    .path("id")
                    .body::<approvals::Address>()
                    .answers_with(200, "The address and its secret", JSON, object()),
                under(Served::delete("delete_webhook", "Delete an address", delete_webhook)).path("id").answers_with(
                    200,
                    "The address that was",
                    JSON,
                    object(),
                ),
            ],
        )
        .api(
            "/v1/notices",
            DECIDING,
            [under(Served::get("list_notices", "What became of notices", list_notices)).query::<Page>().answers_with(
                200,
                "Notices",
                JSON,
                object(),
            )],
        )
}

fn cards_and_work(routes: Routes<Arc<App>>) -> Routes<Arc<App>> {
    const CARDS: Access = Access::AnyScope(&[ListPunchcards::SCOPE]);
    const PROJECTS: Access = Access::AnyScope(&[CreateWork::SCOPE]);
    let under = |operation: Served| operation.under(group::PUNCHCARDS);
    routes
        .api(
            "/v1/punchcards",
            CARDS,
            [under(Served::get("history_of_punchcards", "List punchcards", list_cards))
                .about("Cards of the tenant, newest first. With `resource`, every card that it ever had.")
                .query::<cards::CardsWanted>()
                .answers::<Cards>("Cards")],
        )
        .api(
            "/v1/punchcards/waiters",
            CARDS,
            [under(Served::get("list_waiters", "Who waits for what, and for whom", card_waiters))
                .query::<cards::WaitersWanted>()
                .answers_with(200, "Places in the queue", JSON, object())],
        )
        .api(
            "/v1/punchcards/renew",
            Access::AnyScope(&[PunchIn::SCOPE]),
            [under(Served::post("renew_punchcards", "Renew many cards in one entry", renew_cards)).body::<cards::Renew>().answers_with(
                200,
                "What was renewed, and what is not held",
                JSON,
                object(),
            )],
        )
        .api(
            "/v1/punchcards/transfer",
            Access::AnyScope(&[PunchOut::SCOPE]),
            [under(Served::post("transfer_punchcard", "Hand a card over, under a new token", transfer_card))
                .body::<cards::Transfer>()
                .answers_with(200, "The card that ended and the one that began", JSON, object())],
        )
        .api(
            "/v1/punchcards/verify",
            Access::AnyScope(&[CheckPunchcard::SCOPE]),
            [
                under(Served::get("verify_fencing_token", "Whether a token is good for a resource now", verify_token))
                    .query::<cards::Verify>()
                    .answers::<cards::Verified>("Whether it is"),
                under(Served::ask("ask_fencing_token", "The same with a body", verify_token))
                    .body::<cards::Verify>()
                    .answers::<cards::Verified>("Whether it is"),
            ],
        )
        .api(
            "/v1/projects",
            PROJECTS,
            [Served::post("create_project", "Make a project", create_project).under(group::WORK).body::<projects::Made>().answers_with(
                200,
                "The project",
                JSON,
                object(),
            )],
        )
        .api(
            "/v1/projects/{project_id}",
            PROJECTS,
            [Served::patch("change_project", "Change a project", change_project)
                .under(group::WORK)
                .path("project_id")
                .body::<projects::Change>()
                .answers_with(200, "The project", JSON, object())],
        )
        .api(
            "/v1/passports/{passport}/work-gate",
            Access::AnyScope(&[projects::GATING]),
            [
                Served::get("get_work_gate", "Show whether a passport's moves of work wait for a person", work_gate)
                    .under(group::WORK)
                    .path("passport")
                    .query::<NoParameters>()
                    .answers::<projects::WorkGate>("The gate"),
                Served::put("set_work_gate", "Have a passport's moves of work wait for a person, or not", set_work_gate)
                    .under(group::WORK)
                    .path("passport")
                    .body::<projects::Gate>()
                    .answers::<projects::WorkGate>("The gate"),
            ],
        )
}

fn log_and_receipts(routes: Routes<Arc<App>>) -> Routes<Arc<App>> {
    const RECEIPTS: Access = Access::AnyScope(&[receipts::SCOPE]);
    let proof = |operation: Served, parameters: &[(&str, bool)]| {
        let operation = operation.under(group::RECEIPTS);
        let operation = parameters
            .iter()
            .fold(operation, |operation, (name, required)| operation.parameter(name, whole(), *required, proofs::about(name)));
        operation.answers_with(200, "A file for `quorate verify`", JSON, object())
    };
    routes
        .api(
            "/v1/receipts",
            RECEIPTS,
            [Served::get("list_receipts", "List receipts, newest first", list_receipts)
                .under(group::RECEIPTS)
                .query::<Page>()
                .answers::<proofs::Receipts>("Receipts")],
        )
        .api(
            "/v1/receipts/{receipt_id}",
            RECEIPTS,
            [proof(
                Served::get("get_receipt", "A receipt with its proof", receipt).path("receipt_id"),
                &[("size", false), ("at_least", false)],
            )],
        )
        .api(
            "/v1/log/head",
            RECEIPTS,
            [proof(Served::get("get_log_head", "A signed head of the log", log_head), &[("size", false), ("at_least", false)])],
        )
        .api(
            "/v1/log/keys",
            RECEIPTS,
            [proof(Served::get("list_receipt_keys", "The keys that receipts were ever signed with", log_keys), &[("at_least", false)])],
        )
        .api(
            "/v1/log/cosigned",
            RECEIPTS,
            [proof(
                Served::get("get_cosigned_head", "The newest head, cosigned by nodes", log_cosigned),
                &[("cosigners", false), ("at_least", false)],
            )],
        )
        .api(
            "/v1/log/checkpoint",
            RECEIPTS,
            [Served::get("get_checkpoint", "The newest head as a C2SP checkpoint, cosigned by nodes", log_checkpoint)
                .under(group::RECEIPTS)
                .parameter("cosigners", whole(), false, proofs::about("cosigners"))
                .parameter("at_least", whole(), false, proofs::about("at_least"))
                .answers_with(200, "A signed note", "text/plain", text())],
        )
        .api(
            "/v1/log/proof/inclusion",
            RECEIPTS,
            [proof(
                Served::get("prove_inclusion", "That a receipt stands in the log", log_inclusion),
                &[("seq", true), ("size", false), ("at_least", false)],
            )],
        )
        .api(
            "/v1/log/proof/consistency",
            RECEIPTS,
            [proof(
                Served::get("prove_consistency", "That one head continues another", log_consistency),
                &[("from", true), ("to", false), ("at_least", false)],
            )],
        )
        .api(
            "/v1/output/verify",
            Access::Token,
            [Served::ask("verify_output", "Verify a manifest", verify_output)
                .under(group::RECEIPTS)
                .body_of(JSON, json!({}))
                .answers_with(200, "What it shows, if a key of this cluster signed it", JSON, object())],
        )
}

fn documents_and_scans(routes: Routes<Arc<App>>) -> Routes<Arc<App>> {
    const INGEST: Access = Access::AnyScope(&[ingest::SCOPE]);
    const SCANNING: Access = Access::AnyScope(&[scans::SCOPE]);
    let documents_ = |operation: Served| operation.under("documents");
    let scan = |operation: Served| operation.under(group::REPOSITORIES).path("id").answers_with(200, "Done", JSON, object());
    let pairs = |operation: Served| operation.under(group::SYNC).answers_with(200, "docs/sync.md has the form", JSON, object());
    const TENANT: &str = "Whose memory you think it is; refused when it is another's.";
    routes
        .api(
            "/v1/ingest",
            INGEST,
            [documents_(Served::post("ingest_document", "Ingest a file, so that its text is found", ingest_file))
                .parameter("name", text(), true, "The file's path, or another name for it.")
                .body_of("*/*", json!({ "type": "string", "format": "binary" }))
                .answers_with(200, "Done", JSON, object())],
        )
        .api(
            "/v1/ingest/check",
            INGEST,
            [documents_(Served::ask("check_documents", "Ask which files need not be sent", ingest_check))
                .body::<ingest::Check>()
                .answers_with(200, "Those that are there as they are", JSON, object())],
        )
        .api(
            "/v1/documents",
            INGEST,
            [
                documents_(Served::get("list_documents", "List ingested documents", documents))
                    .parameter("prefix", text(), false, "Their names begin so.")
                    .parameter("limit", json!({ "type": "integer", "minimum": 1, "maximum": 1_000 }), false, "Rows to show.")
                    .parameter("cursor", text(), false, "The `next_cursor` of the page before.")
                    .answers_with(200, "Documents", JSON, object()),
                documents_(Served::delete("remove_document", "Remove an ingested document", remove_document))
                    .parameter("name", text(), true, "Its name.")
                    .answers_with(200, "Whether it was there", JSON, object()),
            ],
        )
        .api(
            "/v1/corpus/sources",
            Access::AnyScope(&github_tools::SEEING_SOURCES),
            [Served::get("list_corpus_sources", "Which repositories are read for the github_ tools, and how far", corpus_sources)
                .under(group::GITHUB)
                .about(
                    "By name: `{repo, read_at_unix_ms?, problem?}`. `read_at_unix_ms` is when it was last read to its end and something \
                     had changed; it is absent before the first time. `problem` is why it can't be read now.",
                )
                .query::<github_tools::SourcesWanted>()
                .answers_with(200, "Sources", JSON, object())],
        )
        .api(
            "/v1/repos/{id}/scan",
            SCANNING,
            [scan(Served::post("finish_scan", "Make stored parts the scan that is shown", finish_scan)).body::<scans::Finish>()],
        )
        .api(
            "/v1/repos/{id}/scan/missing",
            SCANNING,
            [scan(Served::ask("missing_scan_parts", "Ask which parts of a scan are not stored", missing_parts)).body::<scans::Hashes>()],
        )
        .api(
            "/v1/repos/{id}/scan/parts",
            SCANNING,
            [scan(Served::post("put_scan_parts", "Store parts of a scan", put_parts)).body::<scans::Contents>()],
        )
        .api(
            "/v1/sync/manifest",
            Access::Token,
            [pairs(Served::get("sync_manifest", "Whose memory a token reads and adds to", sync_manifest)).parameter(
                "tenant_id",
                text(),
                false,
                TENANT,
            )],
        )
        .api(
            "/v1/sync/facts",
            Access::AnyScope(&[sync::serve::READING, sync::serve::WRITING]),
            [
                pairs(Served::get("read_shared_facts", "The next page of what is shared", sync_facts))
                    .parameter("cursor", text(), false, "Where the page before ended.")
                    .parameter("tenant_id", text(), false, TENANT),
                pairs(Served::post("promote_facts", "Add facts that another cluster made", sync_promote)).body::<sync::serve::Sending>(),
            ],
        )
        .api(
            "/v1/sync/pairs",
            Access::AnyScope(&[sync::serve::READING]),
            [pairs(Served::ask("read_shared_pairs", "How named pairs stand", sync_pairs)).body::<sync::serve::Asking>()],
        )
}

fn for_operators(routes: Routes<Arc<App>>) -> Routes<Arc<App>> {
    const ADMIN: Access = Access::AnyScope(&[admin::SCOPE]);
    let under = |operation: Served| operation.under("admin");
    routes
        .api(
            "/v1/kinds/{kind}",
            ADMIN,
            [Served::put("put_kind", "Register a kind of entities", put_kind)
                .under(group::GRAPH)
                .path("kind")
                .body::<kinds::Given>()
                .answers_with(200, "The kind", JSON, object())],
        )
        .api(
            "/v1/budgets",
            ADMIN,
            [under(Served::get("list_budgets", "List token budgets", list_budgets)).query::<Page>().answers_with(
                200,
                "Budgets by passport",
                JSON,
                object(),
            )],
        )
        .api(
            "/v1/budgets/{passport}",
            ADMIN,
            [
                under(Served::put("put_budget", "Give a passport a token budget", put_budget))
                    .path("passport")
                    .body::<budgets::Given>()
                    .answers_with(200, "The budget", JSON, object()),
                under(Served::delete("delete_budget", "Take a passport's own token budget away", delete_budget))
                    .path("passport")
                    .answers_with(200, "The budget that it had", JSON, object()),
            ],
        )
        .api(
            "/v1/admin/flags",
            ADMIN,
            [under(Served::get("list_flags", "List the cluster's flags", admin::flags)).answers::<admin::Flags>("Flags")],
        )
        .api(
            "/v1/admin/flags/{name}",
            ADMIN,
            [under(Served::put("set_flag", "Set a flag of the cluster", admin::set_flag))
                .path("name")
                .body::<admin::FlagValue>()
                .answers::<admin::Flag>("The flag")],
        )
        .api(
            "/v1/admin/passports",
            ADMIN,
            [under(Served::get("list_passports", "List passports", admin::passports))
                .query::<Page>()
                .answers::<admin::PassportsShown>("Passports by name")],
        )
        .api(
            "/v1/admin/passports/{passport}",
            ADMIN,
            [under(Served::get("show_passport", "Read a passport", admin::passport))
                .path("passport")
                .answers::<admin::PassportShown>("The passport")],
        )
        .api(
            "/v1/admin/passports/{passport}/tokens",
            ADMIN,
            [under(Served::get("list_tokens", "List the tokens of a passport, by their hashes", admin::tokens))
                .path("passport")
                .query::<Page>()
                .answers::<admin::TokensShown>("Tokens")],
        )
        .api(
            "/v1/admin/tokens/{hash}",
            ADMIN,
            [under(Served::delete("revoke_token", "End a token at once", admin::revoke_token))
                .path("hash")
                .answers::<admin::TokenEnded>("The token that was ended")],
        )
        .api(
            "/v1/admin/cluster",
            ADMIN,
            [under(Served::get("show_cluster", "What each node last told", admin::cluster)).answers::<admin::ClusterShown>("The cluster")],
        )
}

// ------------------------------------------------------------------ what serves them

async fn list_receipts(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    proofs::list(&app, request).await
}

async fn call_tool(State(app): State<Arc<App>>, Path(tool): Path<String>, request: Request) -> Response<Body> {
    http::call_tool(&app, &tool, request).await
}

async fn finish_scan(State(app): State<Arc<App>>, Path(repo): Path<String>, request: Request) -> Response<Body> {
    scans::finish(&app, repo, request).await
}

async fn missing_parts(State(app): State<Arc<App>>, Path(repo): Path<String>, request: Request) -> Response<Body> {
    scans::missing(&app, repo, request).await
}

async fn put_parts(State(app): State<Arc<App>>, Path(repo): Path<String>, request: Request) -> Response<Body> {
    scans::put(&app, repo, request).await
}

async fn github_webhook(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    github::webhook::receive(&app, request).await
}

async fn guard(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    hook::web::guard(&app, request).await
}

async fn hook_claude_code(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    hook::web::claude_code(&app, request).await
}

async fn list_approvals(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    approvals::list(&app, request).await
}

async fn show_approval(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response<Body> {
    approvals::show(&app, id, request).await
}

async fn approval_policy(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    approvals::policy(&app, request).await
}

async fn set_approval_policy(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    approvals::set_policy(&app, request).await
}

async fn webhooks(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    approvals::webhooks(&app, request).await
}

async fn put_webhook(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response<Body> {
    approvals::put_webhook(&app, id, request).await
}

async fn delete_webhook(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response<Body> {
    approvals::delete_webhook(&app, id, request).await
}

async fn list_notices(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    approvals::notices(&app, request).await
}

async fn list_budgets(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    budgets::list(&app, request).await
}

async fn put_budget(State(app): State<Arc<App>>, Path(passport): Path<String>, request: Request) -> Response<Body> {
    budgets::put(&app, passport, request).await
}

async fn delete_budget(State(app): State<Arc<App>>, Path(passport): Path<String>, request: Request) -> Response<Body> {
    budgets::delete(&app, passport, request).await
}

async fn put_kind(State(app): State<Arc<App>>, Path(kind): Path<String>, request: Request) -> Response<Body> {
    kinds::put(&app, kind, request).await
}

async fn create_project(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    projects::create(&app, request).await
}

async fn change_project(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response<Body> {
    projects::change(&app, id, request).await
}

async fn work_gate(State(app): State<Arc<App>>, Path(passport): Path<String>, request: Request) -> Response<Body> {
    projects::gate(&app, passport, request).await
}

async fn set_work_gate(State(app): State<Arc<App>>, Path(passport): Path<String>, request: Request) -> Response<Body> {
    projects::set_gate(&app, passport, request).await
}

async fn list_cards(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    cards::list(&app, request).await
}

async fn corpus_sources(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    github_tools::sources(&app, request).await
}

async fn card_waiters(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    cards::waiters(&app, request).await
}

async fn renew_cards(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    cards::renew(&app, request).await
}

async fn transfer_card(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    cards::transfer(&app, request).await
}

async fn verify_token(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    cards::verify(&app, request).await
}

async fn ingest_file(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, request: Request) -> Response<Body> {
    ingest::ingest(&app, &query, request).await
}

async fn ingest_check(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    ingest::check(&app, request).await
}

async fn documents(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    ingest::list(&app, &query, &headers).await
}

async fn remove_document(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    ingest::remove(&app, &query, &headers).await
}

async fn receipt(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Response<Body> {
    proofs::receipt(&app, id, &query, &headers).await
}

async fn log_head(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    proofs::head(&app, &query, &headers).await
}

async fn auth_challenge(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    sign_in::challenge(&app, request).await
}

async fn auth_token(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    sign_in::token(&app, request).await
}

async fn log_cosigned(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    proofs::cosigned(&app, &query, &headers).await
}

async fn log_checkpoint(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    proofs::checkpoint(&app, &query, &headers).await
}

async fn log_keys(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    proofs::keys(&app, &query, &headers).await
}

async fn log_inclusion(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    proofs::inclusion(&app, &query, &headers).await
}

async fn log_consistency(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    proofs::consistency(&app, &query, &headers).await
}

async fn observe(State(app): State<Arc<App>>, Path(session): Path<String>, request: Request) -> Response<Body> {
    http::observe(&app, session, request, |told| vec![told]).await
}

async fn observe_batch(State(app): State<Arc<App>>, Path(session): Path<String>, request: Request) -> Response<Body> {
    http::observe(&app, session, request, |batch: Batch| batch.observations).await
}

async fn write_activity(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    http::write_activity(&app, request).await
}

async fn read_activity(State(app): State<Arc<App>>, Path(turn_id): Path<String>, headers: HeaderMap) -> Response<Body> {
    http::read_activity(&app, turn_id, &headers).await
}

async fn sync_manifest(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    sync::serve::manifest(&app, &query, &headers).await
}

async fn sync_facts(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    sync::serve::facts(&app, &query, &headers).await
}

async fn sync_promote(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    sync::serve::promote(&app, request).await
}

async fn sync_pairs(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    sync::serve::pairs(&app, request).await
}

async fn verify_output(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    http::verify_output(&app, request).await
}

async fn openapi(State(app): State<Arc<App>>) -> Response<Body> {
    edge::json_response(StatusCode::OK, app.openapi.clone())
}

async fn follow_events(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    events::events(&app, &query, &headers).await
}
