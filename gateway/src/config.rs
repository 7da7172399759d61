//! What an operator sets. Every field can stand in the file, in the environment (`QUORATE_GATEWAY_` and its name) or among the
//! flags.

use std::net::SocketAddr;
use std::time::Duration;

use ed25519_dalek::VerifyingKey;
use quorate_domain::identity::key_fingerprint;
use serde::{Deserialize, Serialize};

/// Configuration of one gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to serve MCP and HTTP; `127.0.0.1:7400` by default, port 0 takes a free one. Loopback only: there is no TLS in
    /// this version, and tokens would cross the network in the clear.
    pub listen: String,
    /// gRPC addresses of nodes, such as `127.0.0.1:7401`. One at least; the others are learnt from it. Too few: a gateway that
    /// starts while those are down finds nobody.
    pub nodes: Vec<String>,
    /// Secret that nodes and gateways show to each other. Wrong: every call fails, and `/readyz?verbose` says
    /// `cluster_secret`.
    pub cluster_secret: Option<String>,
    /// Signs the ids of MCP sessions: 32 bytes in hex, the same on every gateway of a cluster. Different: a client that reaches
    /// another gateway has to initialize anew, and some clients don't.
    pub session_key: String,
    /// Public keys of the cluster's receipts, old ones included: Ed25519, 32 bytes in hex each. None: receipts are shown and
    /// never called verified.
    pub receipt_keys: Vec<String>,
    /// `Host` names accepted besides loopback, without port; none by default. One that clients use is missing: they get 403.
    pub allowed_hosts: Vec<String>,
    /// Values of `Origin` accepted besides loopback, such as `https://console.example`; none by default. Requests without
    /// `Origin`, as all command-line clients send them, are accepted.
    pub allowed_origins: Vec<String>,
    /// How long one call may take, retries included, in ms; 25,000 by default, 1,000 to 300,000. Shorter than an election (a
    /// second or two): calls fail while a leader is replaced. Longer than the clients' own timeout: they give up first.
    pub call_deadline_ms: u64,
    /// Calls served at once; 4,096 by default, at least 1. More get 503. Too many: memory; too few: agents that queue for
    /// cards (each holds one) keep the others out.
    pub calls_max: usize,
    /// How long running calls may go on after the signal to stop, in ms; 10,000 by default.
    pub drain_ms: u64,
    /// Stop in order when standard input closes: for a supervisor whose children must not outlive it.
    pub stop_on_stdin_close: bool,
    /// Serve the fixtures of the MCP conformance suite at `/mcp/conformance`, to anybody and without a token; false by default.
    /// They read and write nothing of a team's, and have no place in production.
    pub conformance: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7400".into(),
            nodes: Vec::new(),
            cluster_secret: None,
            session_key: String::new(),
            receipt_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            call_deadline_ms: 25_000,
            calls_max: 4_096,
            drain_ms: 10_000,
            stop_on_stdin_close: false,
            conformance: false,
        }
    }
}

/// A setting that can't be used.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("`{field}` {problem}")]
pub struct ConfigError {
    pub field: &'static str,
    pub problem: String,
}

/// A configuration that was checked.
#[derive(Clone)]
pub struct Settings {
    pub listen: SocketAddr,
    pub nodes: Vec<String>,
    pub cluster_secret: Option<String>,
    pub session_key: [u8; 32],
    /// Keys by id.
    pub receipt_keys: Vec<(String, VerifyingKey)>,
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    pub call_deadline: Duration,
    pub calls_max: usize,
    pub drain: Duration,
    pub conformance: bool,
}

impl Config {
    pub fn check(self) -> Result<Settings, ConfigError> {
        let wrong = |field, problem: String| Err(ConfigError { field, problem });
        let Ok(listen) = self.listen.parse::<SocketAddr>() else {
            return wrong("listen", format!("is no address such as 127.0.0.1:7400: `{}`", self.listen));
        };
        if !listen.ip().is_loopback() {
            let why = "this version has no TLS and tokens would cross the network in the clear; use 127.0.0.1 behind a TLS proxy";
            return wrong("listen", format!("is no loopback address: {listen}; {why}"));
        }
        if self.nodes.is_empty() {
            return wrong("nodes", "names no node; give the gRPC address of one at least".into());
        }
        let session_key = key("session_key", &self.session_key)?;
        let mut receipt_keys = Vec::new();
        for text in &self.receipt_keys {
            let bytes = key("receipt_keys", text)?;
            match VerifyingKey::from_bytes(&bytes) {
                Ok(public) => receipt_keys.push((key_fingerprint(&bytes), public)),
                Err(_) => return wrong("receipt_keys", format!("holds no Ed25519 public key: {text}")),
            }
        }
        if !(1_000..=300_000).contains(&self.call_deadline_ms) {
            return wrong("call_deadline_ms", format!("is 1,000 to 300,000, not {}", self.call_deadline_ms));
        }
        if self.calls_max == 0 || self.calls_max > tokio::sync::Semaphore::MAX_PERMITS {
            return wrong("calls_max", format!("is 1 or more, not {}", self.calls_max));
        }
        Ok(Settings {
            listen,
            nodes: self.nodes,
            cluster_secret: self.cluster_secret,
            session_key,
            receipt_keys,
            allowed_hosts: self.allowed_hosts,
            allowed_origins: self.allowed_origins,
            call_deadline: Duration::from_millis(self.call_deadline_ms),
            calls_max: self.calls_max,
            drain: Duration::from_millis(self.drain_ms),
            conformance: self.conformance,
        })
    }
}

/// The text of a key is not repeated: it may be a secret.
fn key(field: &'static str, text: &str) -> Result<[u8; 32], ConfigError> {
    let bytes = hex::decode(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| ConfigError {
        field,
        problem: format!("has to be 32 bytes in hex, 64 digits; {} characters were given", text.trim().len()),
    })
}
