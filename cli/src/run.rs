//! `quorate node` and `quorate gateway`: the two long-running processes.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use quorate_gateway::ServeError;
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::config;
use crate::exit::{self, Failure};

/// Run one node: a replica of the log and the state machine.
///
/// Fields come from the file, then from the environment (QUORATE_NODE_ and the field's name), then from flags.
#[derive(Args)]
pub struct Node {
    /// TOML file; `docs/configuration.md` names every field with its unit, default and range
    #[arg(long)]
    config: Option<PathBuf>,
    /// Make the data folder if it does not exist; without this an empty folder is taken for a lost disk
    #[arg(long)]
    new: bool,
    #[command(flatten)]
    flags: NodeFlags,
}

/// Certificates towards the other processes of the cluster.
#[derive(Args, Serialize)]
struct TlsFlags {
    /// PEM file of the cluster's authority; with the next two it turns TLS on
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_ca: Option<PathBuf>,
    /// PEM file of this process's certificate, made by `quorate cert`
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_certificate: Option<PathBuf>,
    /// PEM file of the key to it
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_key: Option<PathBuf>,
}

#[derive(Args, Serialize)]
struct NodeFlags {
    /// Id of the node, 1 or more, never used twice
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<u64>,
    /// Id of the cluster
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    /// Folder of the replica
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<PathBuf>,
    /// Address for gateways and other nodes
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    grpc: Option<String>,
    /// Address for health and metrics
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    tls: TlsFlags,
    /// Stop in order when standard input closes
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stop_on_stdin_close: bool,
}

/// Run one gateway: MCP and HTTP in front of the nodes.
///
/// Fields come from the file, then from the environment (QUORATE_GATEWAY_ and the field's name), then from flags. Any number
/// may run side by side; they share nothing but the cluster.
#[derive(Args)]
pub struct Gateway {
    /// TOML file; `docs/configuration.md` names every field with its unit, default and range
    #[arg(long)]
    config: Option<PathBuf>,
    /// Folder of a `quorate dev` deployment to stand in front of, instead of a file
    #[arg(long, conflicts_with = "config")]
    data: Option<PathBuf>,
    #[command(flatten)]
    flags: GatewayFlags,
}

#[derive(Args, Serialize)]
struct GatewayFlags {
    /// Address to serve MCP and HTTP on, such as 127.0.0.1:7400
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<String>,
    /// PEM file of the certificate that clients are shown: HTTPS
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    listen_certificate: Option<PathBuf>,
    /// PEM file of the key to it
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    listen_key: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    tls: TlsFlags,
    /// gRPC addresses of the nodes
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<String>,
    /// Stop in order when standard input closes
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stop_on_stdin_close: bool,
    /// Also serve the fixtures of the MCP conformance suite, at /mcp/conformance and without a token
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    conformance: bool,
}

/// Logs go to standard error; `QUORATE_LOG` filters them, such as `info,quorate_raft=debug`. Audit lines are JSON, for programs,
/// and no filter hides them.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("QUORATE_LOG")
        .unwrap_or_else(|_| EnvFilter::new("warn,openraft=error,quorate=info,quorate_node=info,quorate_gateway=info,quorate_link=info"));
    let is_audit = Targets::new().with_target(quorate_node::AUDIT_TARGET, LevelFilter::INFO);
    let not_audit = Targets::new().with_default(LevelFilter::TRACE).with_target(quorate_node::AUDIT_TARGET, LevelFilter::OFF);
    // One filter of both: in two layers the second would have every span of every library made, a fifth of a read's time.
    let ordinary = fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_filter(filter.and(not_audit));
    let audit = fmt::layer().json().flatten_event(true).with_writer(std::io::stderr).with_filter(is_audit);
    tracing_subscriber::registry().with(ordinary).with(audit).init();
}

/// Done when the process is asked to stop: by SIGTERM or SIGINT, or, for a supervisor's child, by a closed standard input.
async fn asked_to_stop(on_stdin_close: bool) {
    let stdin_closed = async {
        if !on_stdin_close {
            return std::future::pending().await;
        }
        let mut sink = [0; 64];
        while matches!(tokio::io::stdin().read(&mut sink).await, Ok(read) if read > 0) {}
    };
    // Without a handler the default action of the signals ends the process, which is a stop as well.
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return stdin_closed.await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = stdin_closed => {}
    }
}

/// Says where it serves, for whoever started it on port 0.
fn say(line: &str) {
    use std::io::Write;
    // Nobody has to listen.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The one before may still be letting go of its address; whoever has it after that keeps it.
async fn listen(config: quorate_gateway::Config) -> Result<quorate_gateway::Gateway, ServeError> {
    let start = Instant::now();
    loop {
        match quorate_gateway::Gateway::bind(config.clone()).await {
            Err(ServeError::Listen { source, .. }) if source.kind() == ErrorKind::AddrInUse && start.elapsed() < ADDRESS_WITHIN => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            bound => return bound,
        }
    }
}

/// How long an address may be in use by a gateway that is about to end.
const ADDRESS_WITHIN: Duration = Duration::from_secs(5);

impl Node {
    pub async fn run(self) -> Result<(), Failure> {
        log_to_stderr();
        let config: quorate_node::Config = config::read(self.config.as_deref(), "QUORATE_NODE_", &[], &self.flags)?;
        let stop = asked_to_stop(config.stop_on_stdin_close);
        let id = config.node_id;
        let serves = |grpc: &str, http: &str| say(&format!("node {id} at {grpc}, health and metrics at {http}"));
        match quorate_node::run(config, self.new, serves, stop).await {
            quorate_node::Ended::Stopped => Ok(()),
            quorate_node::Ended::Refused(why) => Err(Failure::config(why)),
            quorate_node::Ended::EngineStopped(why) => Err(Failure::new(exit::ENGINE_STOPPED, why)),
        }
    }
}

impl Gateway {
    pub async fn run(self) -> Result<(), Failure> {
        log_to_stderr();
        let file = self.data.map(|data| data.join("gateway.toml")).or(self.config);
        let config: quorate_gateway::Config = config::read(file.as_deref(), "QUORATE_GATEWAY_", &config::GATEWAY_NAMES, &self.flags)?;
        let stop = asked_to_stop(config.stop_on_stdin_close);
        let serve = async {
            let gateway = listen(config).await?;
            say(&format!("gateway at {}", gateway.url()));
            gateway.serve(stop).await
        };
        serve.await.map_err(|error| match error {
            // Whoever has it will not let go of it because we try again.
            ServeError::Listen { address, source } if source.kind() == ErrorKind::AddrInUse => {
                Failure::config(format!("cannot listen on {address}: address in use"))
            }
            ServeError::Listen { address, source } => Failure::config(format!("cannot listen on {address}: {source}")),
            _ => Failure::config(error.to_string()),
        })
    }
}
