//! What an operator sets. Every field can stand in the file, in the environment (`QUORATE_GATEWAY_` and its name) or among the
//! flags.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ed25519_dalek::VerifyingKey;
use quorate_domain::identity::{check_name, key_fingerprint};
use quorate_link::Files;
use serde::{Deserialize, Serialize};

use crate::c2pa::X509Signer;
use crate::github::settings::GitHub;
use crate::limit::RATE_MAX;
use crate::notices::Slack;
use crate::plans;
use crate::rates::Rate;
use crate::sync::client::Remote;
use crate::update::Source;

/// Configuration of one gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to serve MCP and HTTP; `127.0.0.1:7400` by default, port 0 takes a free one. Off loopback only with
    /// `listen_certificate`: tokens would cross the network in the clear.
    pub listen: String,
    /// PEM file of the certificate that clients are shown; with the next one it turns HTTPS on. Looked at every two seconds,
    /// like that: new connections use what is there by then.
    pub listen_certificate: Option<PathBuf>,
    /// PEM file of the key to it.
    pub listen_key: Option<PathBuf>,
    /// gRPC addresses of nodes, such as `127.0.0.1:7401`. One at least; the others are learnt from it. Too few: a gateway that
    /// starts while those are down finds nobody.
    pub nodes: Vec<String>,
    /// PEM file of the authority that the nodes have their certificates from; with the next two it turns TLS to the nodes on.
    /// Looked at every two seconds, like those.
    pub tls_ca: Option<PathBuf>,
    /// PEM file of this gateway's certificate, for the name `gateway.CLUSTER.quorate.internal`, as `quorate cert gateway`
    /// makes it. It may serve as `listen_certificate` too.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file of the key to it. Readable by others: they can speak for every caller.
    pub tls_key: Option<PathBuf>,
    /// Secret that nodes and gateways show to each other. Wrong: every call fails, and `/readyz?verbose` says
    /// `cluster_secret`.
    pub cluster_secret: Option<String>,
    /// Signs the ids of MCP sessions, and is what the keys of passports are derived from: 32 bytes in hex, the same on every
    /// gateway of a cluster, to be kept like a password. Different: a client that reaches another gateway has to initialize
    /// anew, and some clients don't; and hand-offs that were signed at the one do not verify at the other.
    pub session_key: String,
    /// Public keys of the cluster's receipts: Ed25519, 32 bytes in hex each. Those that followed one of them, and those before it,
    /// are learnt from the cluster's ring once the signatures of both keys show it. None: receipts are shown and never called
    /// verified.
    pub receipt_keys: Vec<String>,
    /// `Host` names accepted besides loopback, without port; none by default. One that clients use is missing: they get 403.
    pub allowed_hosts: Vec<String>,
    /// Values of `Origin` accepted besides loopback, such as `https://console.example`; none by default. Requests without
    /// `Origin`, as all command-line clients send them, are accepted.
    pub allowed_origins: Vec<String>,
    /// Folder for audit exports, made when it is missing; none by default, and then `audit_export_bundle` is refused. Whoever reads
    /// it reads the team's facts, so files are their owner's alone.
    pub audit_export_dir: Option<PathBuf>,
    /// Where the key lies that signs manifests for readers of C2PA once the flag `CORECRUXD_FEATURE_C2PA_X509_SIGNER` is on: `local`, in
    /// the next settings; none by default, and then there are none to sign. Set alike on all gateways.
    pub c2pa_signer_backend: Option<String>,
    /// What replies call that key.
    pub c2pa_signer_key_id: Option<String>,
    /// The key: PKCS#8 in base64, Ed25519 or ECDSA on P-256. To be kept like a password: whoever has it can sign as you.
    pub c2pa_signer_signing_key_b64: Option<String>,
    /// PEM file of its certificate and those above it, except the root. It needs what C2PA asks of a certificate; of an authority that
    /// readers do not trust, they call its manifests valid and not trusted.
    pub c2pa_signer_certificates: Option<PathBuf>,
    /// Folders whose repositories `register_repo` scans here, at once; none by default, and then `quorate scan` does it where the
    /// code is. Callers learn the names of files and functions below them.
    pub scan_roots: Vec<PathBuf>,
    /// Repositories on GitHub, `owner/name` each, whose commits, pull requests, issues and comments are read into the corpus; none
    /// by default. Set alike on several gateways, one of them reads.
    pub github_repositories: Vec<String>,
    /// The tenant whose corpus they are read into. Everybody in it can read them, private ones too.
    pub github_tenant: Option<String>,
    /// Base URL of the REST API; `https://api.github.com` by default. Nothing else is asked.
    pub github_url: String,
    /// File with the token to read with. None: public repositories, sixty requests an hour.
    pub github_token_file: Option<PathBuf>,
    /// File with the secret of webhooks to `/v1/integrations/github/webhook`. None: they are refused, and what is new is found when
    /// it is looked for.
    pub github_webhook_secret_file: Option<PathBuf>,
    /// How often what is new is looked for, in ms; 60,000 by default, 1,000 to 86,400,000. What has not changed costs no part of
    /// the rate limit.
    pub github_poll_ms: u64,
    /// How far back the first reading goes, in days; 90 by default, 1 to 3,650.
    pub github_history_days: u64,
    /// Repositories on this machine as sources of commits, `owner/name=/path/to/repository.git` each; none by default. All gateways
    /// that are set up to read need them. They are read with `git`.
    pub git_repositories: Vec<String>,
    /// Folder of ExecPlan files, `*.md`, that `list_work` shows beside the work of one tenant; none by default, and then it says so.
    /// `CRUX_EXECPLANS_ROOT` names it too. They are only read. Whoever is in the tenant sees their titles and states.
    pub execplans_root: Option<PathBuf>,
    /// The tenant that they are shown to; `default` by default.
    pub execplans_tenant: String,
    /// An incoming webhook of Slack that is told of what happens to one tenant's approvals, as the address `slack-setting` of
    /// `/v1/webhooks`; none by default. `CORECRUXD_APPROVALS_SLACK_WEBHOOK_URL` sets it too. Set on several gateways, all have to have
    /// the same. Taken away, the address stays until it is deleted.
    pub approvals_slack_webhook_url: Option<String>,
    /// The tenant whose approvals it is told of; `default` by default.
    pub approvals_slack_tenant: String,
    /// Base URL of another Quorate's gateway, such as `https://quorate.example:7400`, that `sync_pull` and `sync_push` exchange facts
    /// with; none by default. Plain HTTP to this machine only. The next two belong to it; set all alike on all gateways.
    pub sync_remote_url: Option<String>,
    /// File with the token that the other cluster made for this one. Its tenant there is whose facts are read and added to.
    pub sync_token_file: Option<PathBuf>,
    /// The tenant here whose facts are exchanged. To others nothing is set up.
    pub sync_tenant: Option<String>,
    /// PEM file of the authority that the other gateway has its certificate from; the system's authorities by default. With it,
    /// no other is believed.
    pub sync_ca: Option<PathBuf>,
    /// How often one of the gateways pulls by itself, in ms; 0, the default, leaves it to callers of `sync_pull`, else 1,000 to
    /// 86,400,000. Pushes always take a call.
    pub sync_poll_ms: u64,
    /// A clone of this program's source on the gateway's machine, which `update_status` compares the running program with; none
    /// by default. It is only read, with `git`, and never brought up to date from here.
    pub update_checkout: Option<PathBuf>,
    /// What of that clone it is compared with; `origin/main` by default.
    pub update_ref: String,
    /// How long one call may take, retries included, in ms; 25,000 by default, 1,000 to 300,000. Shorter than an election (a
    /// second or two): calls fail while a leader is replaced. Longer than the clients' own timeout: they give up first.
    pub call_deadline_ms: u64,
    /// Calls served at once; 4,096 by default, at least 1. More get 503. Too many: memory; too few: agents that queue for
    /// cards (each holds one) keep the others out.
    pub calls_max: usize,
    /// Calls of all of one tenant that this gateway serves in a second, over time; 0, the default, sets no limit, else up to 1,000,000.
    /// More get 429 with the time to wait. Calls about leases (`punch_in`, `check_punchcard`, `punch_out` and their addresses) are
    /// counted apart, by the same number: other calls never keep a holder from renewing. Each gateway counts for itself.
    pub tenant_calls_per_second: u32,
    /// How many of them may come at once; 0, the default, is those of two seconds.
    pub tenant_calls_burst: u32,
    /// The same for each passport of a tenant by itself.
    pub passport_calls_per_second: u32,
    /// How many of those may come at once; 0, the default, is those of two seconds.
    pub passport_calls_burst: u32,
    /// Connections open at once; 4,096 by default, at least 2. More are closed as they come. Half of them may be without a
    /// request yet, and the oldest of those gives way. Lowered to what the system lets the process open.
    pub connections_max: usize,
    /// How long a connection may take to its first request, TLS handshake included, and how long the head of each later one may
    /// take, in ms; 10,000 by default, 100 to 600,000. Shorter: clients on slow lines are cut off.
    pub header_timeout_ms: u64,
    /// How long a request's body may take, in ms; 30,000 by default, 100 to 600,000.
    pub body_timeout_ms: u64,
    /// How long a connection may be silent while no call runs on it, in ms; 120,000 by default, 100 to 86,400,000. Shorter than
    /// clients keep unused connections: they now and then send into one that is being closed, and have to send again.
    pub idle_timeout_ms: u64,
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
            listen_certificate: None,
            listen_key: None,
            nodes: Vec::new(),
            tls_ca: None,
            tls_certificate: None,
            tls_key: None,
            cluster_secret: None,
            session_key: String::new(),
            receipt_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            audit_export_dir: None,
            c2pa_signer_backend: None,
            c2pa_signer_key_id: None,
            c2pa_signer_signing_key_b64: None,
            c2pa_signer_certificates: None,
            scan_roots: Vec::new(),
            github_repositories: Vec::new(),
            github_tenant: None,
            github_url: "https://api.github.com".into(),
            github_token_file: None,
            github_webhook_secret_file: None,
            github_poll_ms: 60_000,
            github_history_days: 90,
            git_repositories: Vec::new(),
            execplans_root: None,
            execplans_tenant: "default".into(),
            approvals_slack_webhook_url: None,
            approvals_slack_tenant: "default".into(),
            sync_remote_url: None,
            sync_token_file: None,
            sync_tenant: None,
            sync_ca: None,
            sync_poll_ms: 0,
            update_checkout: None,
            update_ref: "origin/main".into(),
            call_deadline_ms: 25_000,
            calls_max: 4_096,
            tenant_calls_per_second: 0,
            tenant_calls_burst: 0,
            passport_calls_per_second: 0,
            passport_calls_burst: 0,
            connections_max: 4_096,
            header_timeout_ms: 10_000,
            body_timeout_ms: 30_000,
            idle_timeout_ms: 120_000,
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
    /// Certificate and key of the front door.
    pub front: Option<(PathBuf, PathBuf)>,
    /// Certificates towards the nodes.
    pub tls: Option<Files>,
    pub nodes: Vec<String>,
    pub cluster_secret: Option<String>,
    pub session_key: [u8; 32],
    /// Keys by id.
    pub receipt_keys: Vec<(String, VerifyingKey)>,
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    pub audit_export_dir: Option<PathBuf>,
    pub x509_signer: Option<X509Signer>,
    /// As they are without links.
    pub scan_roots: Vec<PathBuf>,
    pub github: Option<GitHub>,
    pub sync: Option<Remote>,
    pub update_source: Option<Source>,
    pub execplans: Option<plans::Source>,
    pub slack: Option<Slack>,
    pub call_deadline: Duration,
    pub calls_max: usize,
    pub tenant_rate: Option<Rate>,
    pub passport_rate: Option<Rate>,
    pub patience: Patience,
    pub drain: Duration,
    pub conformance: bool,
}

/// How many connections there may be, and how long each may keep the gateway waiting.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub connections_max: usize,
    pub header: Duration,
    pub body: Duration,
    pub idle: Duration,
}

impl Config {
    pub fn check(self) -> Result<Settings, ConfigError> {
        let wrong = |field, problem: String| Err(ConfigError { field, problem });
        let github = GitHub::of(&self)?;
        let sync = Remote::of(&self)?;
        let x509_signer = X509Signer::of(&self)?;
        let Ok(listen) = self.listen.parse::<SocketAddr>() else {
            return wrong("listen", format!("is no address such as 127.0.0.1:7400: `{}`", self.listen));
        };
        let front = match (self.listen_certificate, self.listen_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return wrong("listen_certificate", "and `listen_key` belong together: set both, or neither".into()),
        };
        if !listen.ip().is_loopback() && front.is_none() {
            let why = "tokens would cross the network in the clear: set `listen_certificate` and `listen_key` (`quorate cert gateway` makes \
                       both), or listen on 127.0.0.1 behind a TLS proxy";
            return wrong("listen", format!("is an address that other machines reach, {listen}, and there is no TLS; {why}"));
        }
        let halfway = |problem: &'static str| ConfigError { field: "tls_ca", problem: problem.into() };
        let tls = Files::of_settings(self.tls_ca.as_deref(), self.tls_certificate.as_deref(), self.tls_key.as_deref());
        let tls = tls.map_err(halfway)?;
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
        // Callers are told the path, and don't know where this process runs.
        let audit_export_dir = match self.audit_export_dir.map(std::path::absolute).transpose() {
            Ok(folder) => folder,
            Err(error) => return wrong("audit_export_dir", format!("names no folder: {error}")),
        };
        let mut scan_roots = Vec::new();
        for root in &self.scan_roots {
            match root.canonicalize() {
                Ok(root) if root.is_dir() => scan_roots.push(root),
                Ok(_) => return wrong("scan_roots", format!("names what is no folder: {}", root.display())),
                Err(error) => return wrong("scan_roots", format!("names a folder that can't be read, {}: {error}", root.display())),
            }
        }
        for (field, tenant) in [("execplans_tenant", &self.execplans_tenant), ("approvals_slack_tenant", &self.approvals_slack_tenant)] {
            if let Some(refusal) = check_name("tenant", tenant) {
                return wrong(field, format!("names no tenant: {refusal}"));
            }
        }
        let execplans = match self.execplans_root.as_ref().map(|root| root.canonicalize()).transpose() {
            Ok(Some(folder)) if !folder.is_dir() => {
                return wrong("execplans_root", format!("names what is no folder: {}", folder.display()));
            }
            Ok(folder) => folder.map(|folder| plans::Source { folder, tenant: self.execplans_tenant }),
            Err(error) => return wrong("execplans_root", format!("names a folder that can't be read: {error}")),
        };
        let slack = self.approvals_slack_webhook_url.map(|url| Slack { url, tenant: self.approvals_slack_tenant });
        if let Some(problem) = slack.as_ref().and_then(Slack::problem) {
            return wrong("approvals_slack_webhook_url", problem);
        }
        if self.update_ref.is_empty() || self.update_ref.chars().any(|letter| letter.is_control() || letter.is_whitespace()) {
            return wrong("update_ref", format!("is no reference such as origin/main: `{}`", self.update_ref));
        }
        let update_source = self.update_checkout.map(|checkout| Source { checkout, reference: self.update_ref.clone() });
        if !(1_000..=300_000).contains(&self.call_deadline_ms) {
            return wrong("call_deadline_ms", format!("is 1,000 to 300,000, not {}", self.call_deadline_ms));
        }
        if self.calls_max == 0 || self.calls_max > tokio::sync::Semaphore::MAX_PERMITS {
            return wrong("calls_max", format!("is 1 or more, not {}", self.calls_max));
        }
        let tenant_rate = rate(["tenant_calls_per_second", "tenant_calls_burst"], self.tenant_calls_per_second, self.tenant_calls_burst)?;
        let passport_rate =
            rate(["passport_calls_per_second", "passport_calls_burst"], self.passport_calls_per_second, self.passport_calls_burst)?;
        if self.connections_max < 2 || self.connections_max > tokio::sync::Semaphore::MAX_PERMITS {
            return wrong("connections_max", format!("is 2 or more, not {}", self.connections_max));
        }
        let mut timeouts = [Duration::ZERO; 3];
        for (timeout, (field, ms, max)) in timeouts.iter_mut().zip([
            ("header_timeout_ms", self.header_timeout_ms, 600_000),
            ("body_timeout_ms", self.body_timeout_ms, 600_000),
            ("idle_timeout_ms", self.idle_timeout_ms, 86_400_000),
        ]) {
            if !(100..=max).contains(&ms) {
                return wrong(field, format!("is 100 to {max}, not {ms}"));
            }
            *timeout = Duration::from_millis(ms);
        }
        let [header, body, idle] = timeouts;
        Ok(Settings {
            listen,
            front,
            tls,
            patience: Patience { connections_max: self.connections_max, header, body, idle },
            nodes: self.nodes,
            cluster_secret: self.cluster_secret,
            session_key,
            receipt_keys,
            allowed_hosts: self.allowed_hosts,
            allowed_origins: self.allowed_origins,
            audit_export_dir,
            x509_signer,
            scan_roots,
            github,
            sync,
            update_source,
            execplans,
            slack,
            call_deadline: Duration::from_millis(self.call_deadline_ms),
            calls_max: self.calls_max,
            tenant_rate,
            passport_rate,
            drain: Duration::from_millis(self.drain_ms),
            conformance: self.conformance,
        })
    }
}

/// A rate out of its two settings; none where it is not limited.
fn rate(fields: [&'static str; 2], per_second: u32, burst: u32) -> Result<Option<Rate>, ConfigError> {
    for (field, number) in fields.into_iter().zip([per_second, burst]) {
        if number > RATE_MAX {
            return Err(ConfigError { field, problem: format!("is 0 to {RATE_MAX}, not {number}") });
        }
    }
    match (per_second, burst) {
        (0, 0) => Ok(None),
        (0, _) => Err(ConfigError { field: fields[1], problem: format!("limits nothing without `{}`", fields[0]) }),
        (per_second, 0) => Ok(Some(Rate { per_second, burst: per_second * 2 })),
        (per_second, burst) => Ok(Some(Rate { per_second, burst })),
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
