//! The process: listens, routes, and ends without cutting a call off.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use ed25519_dalek::VerifyingKey;
use quorate_domain::refusal::shown;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::auth::Tokens;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, ConnectError};
use crate::config::{Config, ConfigError, Settings};
use crate::edge::{self, Doors};
use crate::mcp::Listing;
use crate::profile::{self, EVERYDAY, Index};
use crate::registry::{Answer, Catalog, Entry};
use crate::session::Sessions;
use crate::usage::{self, Meter};
use crate::{http, mcp, metrics, tools};

/// What tools may use besides the cluster.
pub struct Services {
    pub sessions: Sessions,
    /// Public keys of receipts by id.
    pub receipt_keys: Vec<(String, VerifyingKey)>,
    /// The tools that `find_tools` and `call_tool` reach.
    pub tools: Catalog,
    pub index: Index,
    pub meter: Meter,
}

impl Services {
    fn new(settings: &Settings) -> Self {
        let tools = tools::crux();
        let sessions = Sessions::new(&settings.session_key);
        Self { sessions, receipt_keys: settings.receipt_keys.clone(), index: Index::of(&tools), tools, meter: Meter::default() }
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
    everyday: Catalog,
    doors: Doors,
    openapi: String,
    calls: Semaphore,
    draining: AtomicBool,
}

impl App {
    fn new(settings: Settings) -> Result<Arc<Self>, ConnectError> {
        let cluster = Cluster::connect(&settings.nodes, settings.cluster_secret.as_deref())?;
        let services = Arc::new(Services::new(&settings));
        let tools = services.tools.clone().and_all(&profile::about_tools());
        let mut app = Self {
            everyday: tools.only(&EVERYDAY),
            doors: Doors::new(&settings),
            calls: Semaphore::new(settings.calls_max),
            draining: AtomicBool::new(false),
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

    /// Runs a tool, if there is room for one more call.
    pub async fn call(&self, entry: &Arc<Entry>, arguments: Value, ctx: CallContext) -> Result<Answer, CallError> {
        let Ok(_permit) = self.calls.try_acquire() else { return Err(CallError::Overloaded) };
        let (caller, mut used) = (ctx.caller.clone(), usage::of_arguments(&arguments));
        let result = entry.call(arguments, ctx, &self.cluster).await;
        used.tokens_out = result.as_ref().map_or_else(|error| usage::tokens(&error.text()), |answer| usage::tokens(&answer.facts));
        self.services.meter.count(caller.as_deref(), used);
        result
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
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
    #[error("serving failed")]
    Serve(#[source] std::io::Error),
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
        let settings = config.check()?;
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

    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServeError> {
        let Self { listener, app, .. } = self;
        let drain = app.settings.drain;
        let (ended, mut ending) = tokio::sync::watch::channel(false);
        let draining = app.clone();
        let signal = async move {
            shutdown.await;
            draining.draining.store(true, Ordering::Relaxed);
            // Nobody listens any more when the server has failed meanwhile.
            let _ = ended.send(true);
        };
        // Without it, small answers wait 40 ms for the client's delayed acknowledgement.
        let listener = listener.tap_io(|tcp| {
            if let Err(error) = tcp.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY could not be set");
            }
        });
        let counted = app.clone();
        let counting = tokio::spawn(async move {
            loop {
                tokio::time::sleep(usage::EVERY).await;
                counted.services.meter.hand_over_all(&counted.cluster, usage::WITHIN).await;
            }
        });
        let last = app.clone();
        let server = axum::serve(listener, router(app)).with_graceful_shutdown(signal);
        let served = tokio::select! {
            result = async { server.await } => result.map_err(ServeError::Serve),
            () = async {
                // A dropped sender means that the server is ending by itself.
                let _ = ending.wait_for(|ended| *ended).await;
                tokio::time::sleep(drain).await;
            } => {
                tracing::warn!(?drain, "some calls were not done when the time to drain was over");
                Ok(())
            }
        };
        counting.abort();
        last.services.meter.hand_over_all(&last.cluster, usage::LAST_WITHIN).await;
        served
    }
}

fn router(app: Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/mcp", post(everyday).fallback(only_post))
        .route("/mcp/crux", post(crux).fallback(only_post))
        .route("/v1/tools/crux/{tool}", post(call_tool).fallback(only_post))
        .route("/v1/approvals", get(approvals))
        .route("/v1/openapi.json", get(openapi))
        .layer(middleware::from_fn_with_state(app.clone(), check_doors));
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_page))
        .merge(guarded)
        .fallback(nowhere)
        .with_state(app)
}

async fn check_doors(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
    let authority = request.uri().authority().map(|authority| authority.to_string());
    match app.doors.refuse(request.headers(), authority.as_deref()) {
        None => next.run(request).await,
        Some(reason) => edge::problem(StatusCode::FORBIDDEN, "Forbidden", json!({ "code": "FORBIDDEN", "message": reason })),
    }
}

async fn everyday(State(app): State<Arc<App>>, RawQuery(query): RawQuery, request: Request) -> Response<Body> {
    listed(&app, &app.everyday, query.as_deref(), request).await
}

async fn crux(State(app): State<Arc<App>>, RawQuery(query): RawQuery, request: Request) -> Response<Body> {
    listed(&app, &app.services.tools, query.as_deref(), request).await
}

/// `?groups=facts,punchcards` narrows the list.
async fn listed(app: &Arc<App>, catalog: &Catalog, query: Option<&str>, request: Request) -> Response<Body> {
    let Some(groups) = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("groups="))) else {
        return mcp::post(app, &Listing { tools: catalog.clone() }, request).await;
    };
    let groups: Vec<&str> = groups.split([',', '+']).flat_map(|group| group.split("%2C")).filter(|group| !group.is_empty()).collect();
    let known = |group: &&str| catalog.entries().iter().any(|entry| entry.group == *group);
    if let Some(unknown) = groups.iter().find(|group| !known(group)) {
        let mut names: Vec<&str> = catalog.entries().iter().map(|entry| entry.group).collect();
        names.dedup();
        let message = format!("there is no group `{}`; known are {}", shown(unknown), names.join(", "));
        return edge::problem(StatusCode::BAD_REQUEST, "Bad Request", json!({ "code": -32602, "message": message }));
    }
    let names: Vec<&str> = catalog.entries().iter().filter(|entry| groups.contains(&entry.group)).map(|entry| entry.name).collect();
    mcp::post(app, &Listing { tools: catalog.only(&names) }, request).await
}

async fn only_post() -> Response<Body> {
    let message = "this address takes POST only";
    let mut response =
        edge::problem(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", json!({ "code": "METHOD_NOT_ALLOWED", "message": message }));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

async fn nowhere() -> Response<Body> {
    let message = "there is nothing here; MCP is at /mcp and /mcp/crux, HTTP in /v1/openapi.json";
    edge::problem(StatusCode::NOT_FOUND, "Not Found", json!({ "code": "NOT_FOUND", "message": message }))
}

async fn call_tool(State(app): State<Arc<App>>, Path(tool): Path<String>, request: Request) -> Response<Body> {
    http::call_tool(&app, &tool, request).await
}

async fn approvals(State(app): State<Arc<App>>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap) -> Response<Body> {
    http::approvals(&app, &query, &headers).await
}

async fn openapi(State(app): State<Arc<App>>) -> Response<Body> {
    edge::json_response(StatusCode::OK, app.openapi.clone())
}

async fn readyz(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Response<Body> {
    let verbose = query.is_some_and(|query| query.split('&').any(|pair| pair == "verbose" || pair.starts_with("verbose=")));
    http::readyz(&app, verbose)
}

async fn metrics_page(State(app): State<Arc<App>>) -> Response<Body> {
    edge::with_type(StatusCode::OK, "text/plain; version=0.0.4", metrics::page(&app.tools, app.cluster.retries()))
}
