//! The process: listens, routes, and ends without cutting a call off.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::{any, get, patch, post, put};
use quorate_domain::flag::{Definition, Flags, GetFlags};
use quorate_domain::refusal::shown;
use quorate_domain::session_plan::GetIntent;
use quorate_domain::usage::{Beyond, Over};
use quorate_domain::{Principal, identity};
use quorate_link::{Expiry, FileError, Front, Link, Mutual, Reloading, Role, exposition};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, broadcast, watch};

use crate::auth::Tokens;
use crate::c2pa::X509Signer;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, ConnectError, Consistency};
use crate::config::{Config, ConfigError, Settings};
use crate::edge::{self, Doors};
use crate::github::Connector;
use crate::keys::{PassportKeys, ReceiptKeys};
use crate::limit::{FLAGS_ASKED_FOR, INGESTING_MAX, LIST_CHANGES_WAITING, STANDING_STALE_MS_MAX, STREAMS_MAX};
use crate::mcp::live::Live;
use crate::mcp::prompts;
use crate::mcp::resources::{self, Library};
use crate::mcp::{ListChange, Listing};
use crate::notices::WebhookKeys;
use crate::plans::Plans;
use crate::profile::{self, EVERYDAY, Index};
use crate::rates::{Lane, Rates};
use crate::registry::{Answer, Catalog, Entry, Tool};
use crate::routes::{Access, Route, Routes};
use crate::scans::{self, Scans};
use crate::session::Sessions;
use crate::sign_in::{self, Challenges};
use crate::surface;
use crate::sync::client::Remote;
use crate::tools::approvals::ApprovalDecide;
use crate::tools::hardening::Posture;
use crate::tools::observations::Batch;
use crate::tools::punchcards::{CheckPunchcard, ListPunchcards, PunchIn, PunchOut};
use crate::tools::work::CreateWork;
use crate::traces::{Arm, Tracer};
use crate::update::Updates;
use crate::usage::{self, Meter};
use crate::{
    approvals, budgets, cards, conformance, connection, console, events, github, hook, http, ingest, kinds, mcp, metrics, notices,
    projects, proofs, sync, tools,
};

/// What tools may use besides the cluster.
pub struct Services {
    pub sessions: Sessions,
    pub passport_keys: PassportKeys,
    pub challenges: Challenges,
    pub webhook_keys: WebhookKeys,
    /// Public keys of receipts by id.
    pub receipt_keys: ReceiptKeys,
    /// The tools that `find_tools` and `call_tool` reach.
    pub tools: Catalog,
    pub index: Index,
    /// Where audit exports are saved.
    pub audit_export_dir: Option<PathBuf>,
    /// What signs manifests for readers of C2PA.
    pub x509_signer: Option<X509Signer>,
    /// Says which list has changed. Those of the product change with the program alone.
    pub list_changes: broadcast::Sender<ListChange>,
    pub meter: Meter,
    pub rates: Rates,
    pub scans: Scans,
    pub tracer: Tracer,
    /// The addresses that it serves, with their gates.
    pub routes: Vec<Route>,
    pub posture: Posture,
    pub updates: Updates,
    pub plans: Plans,
    /// Another cluster that a tenant exchanges facts with.
    pub sync: Option<Remote>,
}

impl Services {
    fn new(settings: &Settings) -> Self {
        let tools = tools::crux();
        let sessions = Sessions::new(&settings.session_key);
        let passport_keys = PassportKeys::new(&settings.session_key);
        let challenges = Challenges::new(&settings.session_key);
        let webhook_keys = WebhookKeys::new(&settings.session_key);
        let (receipt_keys, audit_export_dir) = (ReceiptKeys::new(settings.receipt_keys.clone()), settings.audit_export_dir.clone());
        let (list_changes, _) = broadcast::channel(LIST_CHANGES_WAITING);
        let (index, meter, tracer) = (Index::of(&tools), Meter::default(), Tracer::new(&settings.session_key));
        let scans = Scans::new(settings.scan_roots.clone());
        let routes = [open_routes().table, guarded_routes().table, console::routes().table].concat();
        let (posture, updates) = (posture(settings), Updates::new(settings.update_source.clone()));
        let plans = Plans::new(settings.execplans.clone());
        Self {
            sessions,
            passport_keys,
            challenges,
            webhook_keys,
            receipt_keys,
            index,
            tools,
            audit_export_dir,
            x509_signer: settings.x509_signer.clone(),
            list_changes,
            meter,
            rates: Rates::new(settings.tenant_rate, settings.passport_rate),
            tracer,
            routes,
            posture,
            updates,
            plans,
            sync: settings.sync.clone(),
            scans,
        }
    }
}

fn posture(settings: &Settings) -> Posture {
    let is_here = |address: &String| {
        let address = address.split("://").last().unwrap_or_default();
        address.starts_with("localhost:") || address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
    };
    Posture {
        listens_on_loopback: settings.listen.ip().is_loopback(),
        front_tls: settings.front.is_some(),
        nodes_on_loopback: settings.nodes.iter().all(is_here),
        node_tls: settings.tls.is_some(),
        cluster_secret: settings.cluster_secret.is_some(),
        receipt_keys: settings.receipt_keys.len(),
        allowed_hosts: settings.allowed_hosts.len(),
        allowed_origins: settings.allowed_origins.len(),
        export_folder: settings.audit_export_dir.is_some(),
        conformance: settings.conformance,
    }
}

/// Everything that requests share.
pub struct App {
    pub settings: Settings,
    pub cluster: Cluster,
    pub tokens: Arc<Tokens>,
    pub services: Arc<Services>,
    /// Every tool that can be called.
    pub tools: Catalog,
    /// What can be read and watched by URI.
    pub library: Arc<Library>,
    /// The calls of MCP that run here.
    pub live: Arc<Live>,
    everyday: Arc<Listing>,
    crux: Arc<Listing>,
    /// Only with the setting of that name.
    conformance: Option<Arc<Listing>>,
    doors: Doors,
    /// What reads GitHub, if that is set up.
    pub github: Option<Arc<Connector>>,
    link: Link,
    front: Option<Arc<Reloading<Front>>>,
    connections: Arc<metrics::Connections>,
    openapi: String,
    /// Files whose text is being read.
    pub ingesting: Semaphore,
    calls: Semaphore,
    streams: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
}

impl App {
    fn new(settings: Settings) -> Result<Arc<Self>, ServeError> {
        let link = match settings.tls.clone() {
            Some(files) => Link::mutual(Mutual::open(files, Role::Gateway, None)?),
            None => Link::plain(),
        };
        let front = settings.front.clone().map(|(certificate, key)| Front::open(certificate, key)).transpose()?;
        let cluster = Cluster::connect(&settings.nodes, settings.cluster_secret.as_deref(), &link)?;
        let services = Arc::new(Services::new(&settings));
        let stopping = watch::Sender::new(false);
        let github = github::start(settings.github.clone(), &cluster, stopping.subscribe());
        sync::background::start(&services, &cluster, stopping.subscribe());
        let tools = services.tools.clone().and_all(&profile::about_tools());
        let library = Arc::new(resources::library(&tools));
        let prompts = Arc::new(prompts::prompts());
        let listing = |listed: Catalog, is_short: bool| {
            let (callable, library, prompts, is_shaped) = (tools.clone(), library.clone(), prompts.clone(), !is_short);
            Arc::new(Listing { tools: listed, is_short, is_shaped, callable, library, prompts, anonymous: None, lists_change: false })
        };
        let mut app = Self {
            everyday: listing(tools.only(&EVERYDAY), true),
            crux: listing(services.tools.clone(), false),
            conformance: settings.conformance.then(|| Arc::new(conformance::listing())),
            doors: Doors::new(&settings),
            link,
            front,
            connections: Arc::default(),
            ingesting: Semaphore::new(INGESTING_MAX),
            calls: Semaphore::new(settings.calls_max),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            stopping,
            github,
            live: Arc::default(),
            library,
            tokens: Arc::default(),
            openapi: String::new(),
            cluster,
            services,
            tools,
            settings,
        };
        app.openapi = http::openapi(&app).to_string();
        Ok(Arc::new(app))
    }

    /// What a list of tools shows: all but those whose switch is off, and of a whole catalog no more than the flag of the surface
    /// and the caller's intent let through. When the cluster can't tell, flags are taken to be as they come. Also whether the
    /// list is this caller's alone.
    pub async fn listed<'a>(&self, listing: &'a Listing, caller: Option<&Principal>) -> (Vec<&'a Arc<Entry>>, bool) {
        let entries = listing.tools.entries();
        if !listing.is_shaped && entries.iter().all(|entry| entry.listed_with.is_none()) {
            return (entries.iter().collect(), false);
        }
        let until = Instant::now() + FLAGS_ASKED_FOR;
        let age = Consistency::Stale { max_age_ms: STANDING_STALE_MS_MAX };
        let asked = self.cluster.read_as(&identity::system(), GetFlags {}, age, until).await;
        let flags = asked.map_or_else(|_| Flags { flags: Vec::new() }, |(flags, _)| flags);
        let is_on = |flag: Definition| surface::value(&flags, flag) == "on";
        let tools: Vec<&Arc<Entry>> = entries.iter().filter(|entry| entry.listed_with.is_none_or(is_on)).collect();
        if !listing.is_shaped || !surface::is_narrow(&flags) {
            return (tools, false);
        }
        let intent = match caller.filter(|_| surface::asks_for_intent(&flags)) {
            None => None,
            // As of now: the caller may just have declared it.
            Some(caller) => match self.cluster.read_as(caller, GetIntent {}, Consistency::Linearizable, until).await {
                Ok((declared, _)) => declared.intent,
                Err(_) => return (tools, true),
            },
        };
        (surface::narrowed(&tools, intent.as_deref()), true)
    }

    /// Runs a tool, if there is room for one more call.
    pub async fn call(&self, entry: &Arc<Entry>, arguments: Value, mut ctx: CallContext) -> Result<Answer, CallError> {
        let inner = (entry.name == profile::CALL_TOOL).then(|| self.tools.find(arguments["name"].as_str()?)).flatten();
        if let Some(caller) = &ctx.caller {
            self.services.rates.take(caller, Lane::of(inner.unwrap_or(entry).scope), Instant::now())?;
        }
        let _permit = self.permit()?;
        let begun = self.services.tracer.begin(entry, inner.map(Arc::as_ref), &arguments, &ctx);
        ctx.arm = begun.as_ref().map_or(Arm::None, |begun| begun.arm);
        let (caller, mut used) = (ctx.caller.clone(), usage::of_arguments(&arguments));
        let over = caller.as_deref().and_then(|caller| self.services.meter.over(caller));
        let mut result = match over {
            Some(Over { tokens, used, beyond: Beyond::Stop }) if !inner.unwrap_or(entry).beyond_budget => {
                Err(CallError::OverBudget { tokens, used })
            }
            _ => entry.call(arguments, ctx, &self.cluster).await,
        };
        if let (Ok(answer), Some(Over { tokens, used, beyond: Beyond::Warn | Beyond::Stop })) = (&mut result, over) {
            answer.warning = Some(format!(
                "Your passport has used {used} tokens of a budget of {tokens}: bring your work to an end, or ask an operator for more."
            ));
        }
        used.tokens_out = result.as_ref().map_or_else(|error| usage::tokens(&error.text()), |answer| usage::tokens(&answer.facts));
        if let Some(begun) = begun {
            self.services.tracer.end(begun, &result, used.tokens_in, used.tokens_out);
        }
        self.services.meter.count(caller.as_deref(), used);
        result
    }

    /// Room for one more call, for as long as it is held.
    pub fn permit(&self) -> Result<SemaphorePermit<'_>, CallError> {
        self.calls.try_acquire().map_err(|_| CallError::Overloaded)
    }

    /// How long the certificates last, and how often changed ones could not be used.
    pub fn certificates(&self) -> (Vec<Expiry>, u64) {
        let (mut expiries, mut failures) = (self.link.expiries(), self.link.reload_failures());
        if let Some(front) = &self.front {
            expiries.extend(front.expiries());
            failures += front.failures();
        }
        (expiries, failures)
    }

    /// Whether clients speak TLS to this gateway itself.
    pub fn is_tls(&self) -> bool {
        self.front.is_some()
    }

    pub fn is_draining(&self) -> bool {
        *self.stopping.borrow()
    }

    /// True once the gateway was asked to stop.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// A place for one more stream.
    pub fn stream_permit(&self) -> Result<OwnedSemaphorePermit, CallError> {
        self.streams.clone().try_acquire_owned().map_err(|_| CallError::Overloaded)
    }
}

/// Comes back when the gateway is asked to stop.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender lives as long as the server; should it be gone, that is a stop too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Why a gateway does not start or serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the certificates can't be used: {0}")]
    Certificates(#[from] FileError),
}

/// A gateway that listens and does not serve yet.
pub struct Gateway {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
}

/// Runs a gateway until `shutdown`, and then until its calls are done or the time to drain is over.
pub async fn serve(config: Config, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServeError> {
    Gateway::bind(config).await?.serve(shutdown).await
}

impl Gateway {
    pub async fn bind(config: Config) -> Result<Self, ServeError> {
        let mut settings = config.check()?;
        let connections_max = connections_possible(settings.patience.connections_max);
        if connections_max < settings.patience.connections_max {
            let wanted = settings.patience.connections_max;
            tracing::warn!(
                connections_max,
                wanted,
                "the system lets this process open fewer files (`ulimit -n`); so many connections it is"
            );
            settings.patience.connections_max = connections_max;
        }
        let asked = settings.listen;
        let listen = |source| ServeError::Listen { address: asked, source };
        let listener = TcpListener::bind(asked).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let app = App::new(settings)?;
        Ok(Self { listener, address, app })
    }

    /// Where it listens: of use when the port was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a base URL.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.app.is_tls() { "https" } else { "http" }, self.address)
    }

    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServeError> {
        let Self { listener, app, .. } = self;
        let drain = app.settings.drain;
        let mut ending = app.stopping();
        let stopped = app.clone();
        let signal = async move {
            shutdown.await;
            stopped.stopping.send_replace(true);
        };
        tokio::spawn(signal);
        let (front, patience, connections) = (app.front.clone(), app.settings.patience, app.connections.clone());
        let counted = app.clone();
        let counting = tokio::spawn(async move {
            loop {
                counted.services.tracer.read_flags(&counted.cluster).await;
                tokio::time::sleep(usage::EVERY).await;
                counted.services.meter.hand_over_all(&counted.cluster, usage::WITHIN).await;
                counted.services.tracer.hand_over_all(&counted.cluster, Instant::now() + usage::WITHIN).await;
            }
        });
        let delivering = tokio::spawn(notices::deliver(app.cluster.clone(), WebhookKeys::new(&app.settings.session_key)));
        let announcing = app.settings.slack.clone().map(|slack| tokio::spawn(notices::name_slack(app.cluster.clone(), slack)));
        let last = app.clone();
        let served = tokio::select! {
            () = connection::serve(listener, router(app), front, patience, connections, ending.clone()) => Ok(()),
            () = async {
                // The sender lives as long as the server.
                let _ = ending.wait_for(|ended| *ended).await;
                tokio::time::sleep(drain).await;
            } => {
                tracing::warn!(?drain, "some calls were not done when the time to drain was over");
                Ok(())
            }
        };
        counting.abort();
        delivering.abort();
        announcing.inspect(|announcing| announcing.abort());
        last.services.meter.hand_over_all(&last.cluster, usage::LAST_WITHIN).await;
        last.services.tracer.hand_over_all(&last.cluster, Instant::now() + usage::LAST_WITHIN).await;
        served
    }
}

/// File descriptors that are not for clients: links to the nodes, files, the runtime.
const FILES_BESIDES: u64 = 128;

/// How many connections there can be: as many as were asked for, or as the system allows once the process has asked for more.
fn connections_possible(asked: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Refused: what is allowed now is what counts.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let Some(files) = getrlimit(Resource::Nofile).current else { return asked };
    asked.min(usize::try_from(files.saturating_sub(FILES_BESIDES)).unwrap_or(usize::MAX)).max(2)
}

/// What operators' machines look at.
fn open_routes() -> Routes<Arc<App>> {
    Routes::empty().route("/livez", Access::Open, get(|| async { "ok\n" })).route("/readyz", Access::Open, get(readyz)).route(
        "/metrics",
        Access::Open,
        get(metrics_page),
    )
}

/// What is served to hosts and origins that are let in.
fn guarded_routes() -> Routes<Arc<App>> {
    use Access::{AnyScope, Open, ScopeOfTool, Token};
    const RECEIPTS: Access = AnyScope(&[tools::receipts::SCOPE]);
    const TELLING: Access = AnyScope(&[tools::observations::TELLING]);
    const SCANNING: Access = AnyScope(&[scans::SCOPE]);
    const INGEST: Access = AnyScope(&[ingest::SCOPE]);
    const GUARD: Access = AnyScope(&[hook::guard::CHECK]);
    const APPROVALS: Access = AnyScope(&tools::approvals::LISTING);
    const DECIDING: Access = AnyScope(&[ApprovalDecide::SCOPE]);
    const PROJECTS: Access = AnyScope(&[CreateWork::SCOPE]);
    const CARDS: Access = AnyScope(&[ListPunchcards::SCOPE]);
    Routes::empty()
        .route("/mcp", ScopeOfTool, post(everyday).get(everyday_stream).delete(everyday_end).fallback(only_post))
        .route("/mcp/crux", ScopeOfTool, post(crux).get(crux_stream).delete(crux_end).fallback(only_post))
        .route("/mcp/conformance", Open, any(conformance_suite))
        .route("/sse", Token, get(old_stream))
        .route("/sse/message", ScopeOfTool, post(old_message).fallback(only_post))
        .route("/v1/tools/crux/{tool}", ScopeOfTool, post(call_tool).fallback(only_post))
        .route("/v1/ingest", INGEST, post(ingest_file).fallback(only_post))
        .route("/v1/ingest/check", INGEST, post(ingest_check).fallback(only_post))
        .route("/v1/documents", INGEST, get(documents).delete(remove_document))
        .route("/v1/approvals", APPROVALS, get(list_approvals))
        .route("/v1/approvals/{id}", APPROVALS, get(show_approval))
        .route("/v1/approvals/policy", APPROVALS, get(approval_policy).put(set_approval_policy))
        .route("/v1/webhooks", DECIDING, get(webhooks))
        .route("/v1/webhooks/{id}", DECIDING, put(put_webhook).delete(delete_webhook))
        .route("/v1/notices", DECIDING, get(list_notices))
        .route("/v1/budgets", AnyScope(&[budgets::SCOPE]), get(list_budgets))
        .route("/v1/budgets/{passport}", AnyScope(&[budgets::SCOPE]), put(put_budget).delete(delete_budget))
        .route("/v1/kinds/{kind}", AnyScope(&[kinds::SCOPE]), put(put_kind))
        .route("/v1/projects", PROJECTS, post(create_project).fallback(only_post))
        .route("/v1/projects/{id}", PROJECTS, patch(change_project))
        .route("/v1/punchcards", CARDS, get(list_cards))
        .route("/v1/punchcards/waiters", CARDS, get(card_waiters))
        .route("/v1/punchcards/renew", AnyScope(&[PunchIn::SCOPE]), post(renew_cards).fallback(only_post))
        .route("/v1/punchcards/transfer", AnyScope(&[PunchOut::SCOPE]), post(transfer_card).fallback(only_post))
        .route("/v1/punchcards/verify", AnyScope(&[CheckPunchcard::SCOPE]), get(verify_token).post(verify_token))
        .route("/v1/receipts/{id}", RECEIPTS, get(receipt))
        .route("/v1/log/head", RECEIPTS, get(log_head))
        .route("/v1/log/keys", RECEIPTS, get(log_keys))
        .route("/v1/log/cosigned", RECEIPTS, get(log_cosigned))
        .route("/v1/log/checkpoint", RECEIPTS, get(log_checkpoint))
        .route("/v1/log/proof/inclusion", RECEIPTS, get(log_inclusion))
        .route("/v1/log/proof/consistency", RECEIPTS, get(log_consistency))
        .route("/v1/sessions/{id}/observations", TELLING, post(observe))
        .route("/v1/sessions/{id}/observations/batch", TELLING, post(observe_batch))
        .route("/v1/repos/{id}/scan", SCANNING, post(finish_scan).fallback(only_post))
        .route("/v1/repos/{id}/scan/missing", SCANNING, post(missing_parts).fallback(only_post))
        .route("/v1/repos/{id}/scan/parts", SCANNING, post(put_parts).fallback(only_post))
        // Signed, and answers nothing.
        .route("/v1/integrations/github/webhook", Open, post(github_webhook).fallback(only_post))
        .route("/v1/sync/manifest", Token, get(sync_manifest))
        .route("/v1/sync/facts", AnyScope(&[sync::serve::READING, sync::serve::WRITING]), get(sync_facts).post(sync_promote))
        .route("/v1/sync/pairs", AnyScope(&[sync::serve::READING]), post(sync_pairs).fallback(only_post))
        .route("/v1/activity", AnyScope(&[tools::measures::WRITING]), post(write_activity).fallback(only_post))
        .route("/v1/activity/turn/{turn_id}", AnyScope(&[tools::measures::READING]), get(read_activity))
        // Whoever asks has no token yet: the signature is the credential.
        .route("/v1/auth/challenge", Open, post(auth_challenge).fallback(only_post))
        .route("/v1/auth/token", Open, post(auth_token).fallback(only_post))
        .route("/v1/output/verify", Token, post(verify_output).fallback(only_post))
        .route("/v1/events", AnyScope(&[events::SCOPE]), get(follow_events))
        .route("/v1/guard", GUARD, post(guard).fallback(only_post))
        .route("/v1/hook/claude-code", GUARD, post(hook_claude_code).fallback(only_post))
        .route("/v1/openapi.json", Open, get(openapi))
}

fn router(app: Arc<App>) -> Router {
    let fence = cards::Fencing::service(app.clone());
    let guarded = guarded_routes().router.merge(console::router()).route_service("/quorate.fence.v1.Fence/{method}", fence);
    let guarded = guarded.layer(middleware::from_fn_with_state(app.clone(), check_doors));
    open_routes().router.merge(guarded).fallback(nowhere).with_state(app)
}

async fn check_doors(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
    let authority = request.uri().authority().map(|authority| authority.to_string());
    match app.doors.refuse(request.headers(), authority.as_deref()) {
        None => next.run(request).await,
        Some(reason) => edge::problem(StatusCode::FORBIDDEN, "Forbidden", json!({ "code": "FORBIDDEN", "message": reason })),
    }
}

async fn everyday(State(app): State<Arc<App>>, RawQuery(query): RawQuery, request: Request) -> Response<Body> {
    narrowed(&app, &app.everyday, query.as_deref(), request).await
}

async fn crux(State(app): State<Arc<App>>, RawQuery(query): RawQuery, request: Request) -> Response<Body> {
    narrowed(&app, &app.crux, query.as_deref(), request).await
}

async fn everyday_stream(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    mcp::get(&app, &app.everyday, &headers).await
}

async fn crux_stream(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    mcp::get(&app, &app.crux, &headers).await
}

async fn everyday_end(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    mcp::delete(&app, &app.everyday, &headers).await
}

async fn crux_end(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    mcp::delete(&app, &app.crux, &headers).await
}

async fn old_stream(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    mcp::old_sse::open(&app, &app.everyday, &headers).await
}

async fn old_message(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, request: Request) -> Response<Body> {
    let session = query.iter().find(|(name, _)| name == "session").map(|(_, value)| value.as_str()).unwrap_or_default();
    mcp::old_sse::message(&app, &app.everyday, session, request).await
}

async fn conformance_suite(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let Some(listing) = &app.conformance else { return nowhere().await };
    match *request.method() {
        Method::POST => mcp::post(&app, listing, request).await,
        Method::GET => mcp::get(&app, listing, request.headers()).await,
        Method::DELETE => mcp::delete(&app, listing, request.headers()).await,
        _ => only_post().await,
    }
}

async fn follow_events(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    events::events(&app, &query, &headers).await
}

/// `?groups=facts,punchcards` narrows the list.
async fn narrowed(app: &Arc<App>, whole: &Arc<Listing>, query: Option<&str>, request: Request) -> Response<Body> {
    let Some(groups) = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("groups="))) else {
        return mcp::post(app, whole, request).await;
    };
    let catalog = &whole.tools;
    let groups: Vec<&str> = groups.split([',', '+']).flat_map(|group| group.split("%2C")).filter(|group| !group.is_empty()).collect();
    let known = |group: &&str| catalog.entries().iter().any(|entry| entry.group == *group);
    if let Some(unknown) = groups.iter().find(|group| !known(group)) {
        let mut names: Vec<&str> = catalog.entries().iter().map(|entry| entry.group).collect();
        names.dedup();
        let message = format!("there is no group `{}`; known are {}", shown(unknown), names.join(", "));
        return edge::problem(StatusCode::BAD_REQUEST, "Bad Request", json!({ "code": -32602, "message": message }));
    }
    let names: Vec<&str> = catalog.entries().iter().filter(|entry| groups.contains(&entry.group)).map(|entry| entry.name).collect();
    mcp::post(app, &Arc::new(whole.only(catalog.only(&names))), request).await
}

async fn only_post() -> Response<Body> {
    let message = "this address takes POST only";
    let mut response =
        edge::problem(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", json!({ "code": "METHOD_NOT_ALLOWED", "message": message }));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

async fn nowhere() -> Response<Body> {
    let message = "there is nothing here; MCP is at /mcp and /mcp/crux, HTTP in /v1/openapi.json, the console at /console";
    edge::problem(StatusCode::NOT_FOUND, "Not Found", json!({ "code": "NOT_FOUND", "message": message }))
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
    projects::put(&app, None, request).await
}

async fn change_project(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response<Body> {
    projects::put(&app, Some(id), request).await
}

async fn list_cards(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    cards::list(&app, request).await
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

async fn readyz(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Response<Body> {
    let verbose = query.is_some_and(|query| query.split('&').any(|pair| pair == "verbose" || pair.starts_with("verbose=")));
    http::readyz(&app, verbose)
}

async fn metrics_page(State(app): State<Arc<App>>) -> Response<Body> {
    let mut page = metrics::page(&app.tools, app.cluster.retries(), &app.connections, &app.services.rates);
    let (expiries, failures) = app.certificates();
    page += &exposition(&expiries, failures);
    edge::with_type(StatusCode::OK, "text/plain; version=0.0.4", page)
}
