//! `quorate dev`: the whole product on one machine, as real processes that anybody may kill.
//!
//! Three `quorate node` and one `quorate gateway` run as children of this supervisor, on loopback, with their data in one
//! folder. What runs is what `deployment.json` there says, also when it changes: `quorate replace` and `quorate remove` write
//! into it, and the supervisor starts and stops nodes accordingly. A child that dies is started again at its old address; a node whose folder was emptied is not: it refuses to start
//! (exit code 78), because an empty disk under an old id would forget votes and acknowledged writes. Children hold a pipe
//! from the supervisor as standard input and stop when it closes, so none of them outlives it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use quorate_domain::flag;
use quorate_domain::key_ring::AddReceiptKey;
use quorate_link::Role;
use quorate_proto::cluster::Member;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::deployment::{DATA_DEFAULT, Deployment, NodeEntry, TokenEntry, try_lock};
use crate::exit::{self, Failure};
use crate::status::{connect, survey};
use crate::{admin, cert, http, key, token, transfer};

/// Run three nodes and a gateway on this machine, supervised, with ready tokens.
#[derive(Args)]
pub struct Dev {
    #[command(flatten)]
    pub target: DevTarget,
    /// Port of the gateway for a new deployment; the default when it is free, else any free one
    #[arg(long, default_value_t = 7400)]
    port: u16,
    /// Make certificates for a new deployment, and speak TLS everywhere
    #[arg(long)]
    tls: bool,
    /// Also serve the fixtures of the MCP conformance suite, at /mcp/conformance and without a token
    #[arg(long)]
    conformance: bool,
}

#[derive(Args)]
pub struct DevTarget {
    /// Folder of the deployment; made on the first start, and the same deployment from then on
    #[arg(long, env = "QUORATE_DATA", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// Print one JSON object once everything serves
    #[arg(long)]
    pub json: bool,
}

/// What makes a child end when this supervisor does.
const LIFELINE: &str = "--stop-on-stdin-close";
const NODES: u64 = 3;
/// How often the supervisor looks whether `deployment.json` has changed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Everything has to serve by then, or the start has failed.
const START_WITHIN: Duration = Duration::from_secs(90);
/// A child that was told to stop and has not is killed after this.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Between the death of a child and its next start; longer when it does not live long.
const RESTART_AFTER: Duration = Duration::from_millis(100);
const RESTART_AFTER_MAX: Duration = Duration::from_secs(5);
/// A child that lived so long has started well.
const STEADY_AFTER: Duration = Duration::from_secs(5);

impl Dev {
    pub async fn run(self) -> Result<(), Failure> {
        // Before anything is started, so that no signal finds children and no supervisor.
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let flags = flags_of_environment()?;
        let data = self.target.data.clone();
        std::fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
        let data = data.canonicalize().context("cannot resolve the data folder")?;
        let _lock =
            try_lock(&data, "dev.lock")?.ok_or_else(|| Failure::failed(format!("another `quorate dev` runs on {}", data.display())))?;
        let deployment = match Deployment::load(&data)? {
            Some(deployment) => deployment,
            None => {
                let deployment = plan(self.port, self.tls)?;
                deployment.save(&data)?;
                deployment
            }
        };
        if self.tls && !deployment.tls {
            return Err(Failure::usage(format!("the deployment in {} was made without --tls; use another --data", data.display())));
        }
        make_certificates(&deployment, &data)?;

        let executable = std::env::current_exe().context("cannot find this executable")?;
        let mut crew = Crew { data: data.clone(), executable, nodes: BTreeMap::new(), gateway: None, leaving: Vec::new(), seen: None };
        crew.follow(&deployment)?;
        let started = async {
            bring_up(&deployment, &data, &flags).await?;
            Deployment::update(&data, |deployment| {
                for node in &mut deployment.nodes {
                    node.created |= has_files(&node_folder(&data, node.id));
                }
            })?;
            crew.start_gateway(self.conformance);
            let refused = crew.gateway_refused();
            tokio::select! {
                ready = wait_for_gateway(&deployment, &data) => ready,
                () = refused => Err(gateway_failure(&deployment.gateway)),
            }
        };
        let mut outcome = tokio::select! {
            outcome = started => outcome,
            _ = terminate.recv() => Err(Failure::failed("stopped before everything served")),
            _ = interrupt.recv() => Err(Failure::failed("stopped before everything served")),
        };
        if outcome.is_ok() {
            self.announce(&deployment, &crew).await;
            let mut look = tokio::time::interval(LOOK_EVERY);
            let refused = crew.gateway_refused();
            tokio::pin!(refused);
            loop {
                tokio::select! {
                    () = &mut refused => {
                        outcome = Err(gateway_failure(&deployment.gateway));
                        break;
                    }
                    _ = terminate.recv() => break,
                    _ = interrupt.recv() => break,
                    _ = look.tick() => crew.look(),
                }
            }
        }
        crew.stop().await;
        outcome
    }

    async fn announce(&self, deployment: &Deployment, crew: &Crew) {
        let (base, data) = (deployment.url(), &crew.data);
        let pid = |child: Option<&Supervised>| child.and_then(|child| *child.pid.borrow());
        let pid_of = |id: u64| pid(crew.nodes.get(&id));
        let tokens: serde_json::Map<String, serde_json::Value> =
            deployment.tokens.iter().map(|entry| (entry.name.clone(), entry.token.clone().into())).collect();
        let nodes: Vec<serde_json::Value> = deployment
            .nodes
            .iter()
            .map(|node| json!({"id": node.id, "pid": pid_of(node.id), "grpc": node.grpc, "http": deployment.http_of(node)}))
            .collect();
        if self.target.json {
            let all = json!({
                "mcp": format!("{base}/mcp"), "http": base, "console": format!("{base}/console"), "tokens": tokens, "nodes": nodes,
                "gateway": {"pid": pid(crew.gateway.as_ref())}, "data": data.display().to_string(),
                "ca": deployment.tls.then(|| Deployment::files(data, "gateway").ca.display().to_string()),
            });
            println!("{all}");
            return;
        }
        let token = |name: &str| deployment.tokens.iter().find(|entry| entry.name == name).map_or("", |entry| entry.token.as_str());
        println!("Quorate runs: three nodes and a gateway, data in {}\n", data.display());
        println!("  MCP      {base}/mcp        (everyday tools)\n           {base}/mcp/crux   (all tools)");
        println!("  HTTP     {base}/v1/tools/crux/NAME, described in {base}/v1/openapi.json");
        println!("  console  {base}/console    (in a browser; sign in with the token of operator below)");
        for entry in &deployment.tokens {
            println!("  token    {:<13} {}", entry.name, entry.token);
        }
        for node in &deployment.nodes {
            println!("  node {}   pid {:<8} grpc {}", node.id, pid_of(node.id).unwrap_or_default(), node.grpc);
        }
        if deployment.tls {
            let ca = Deployment::files(data, "gateway").ca;
            println!(
                "\n  Clients have to trust {0}: NODE_EXTRA_CA_CERTS={0} for Claude Code, SSL_CERT_FILE={0} for most others",
                ca.display()
            );
        }
        println!("\nPaste one of these:");
        println!(
            "  Claude Code  claude mcp add --transport http quorate {base}/mcp --header \"Authorization: Bearer {}\"",
            token("agent-a")
        );
        println!("  Codex        export QUORATE_TOKEN={}   and in ~/.codex/config.toml:", token("agent-b"));
        println!(
            "               [mcp_servers.quorate]\n               url = \"{base}/mcp\"\n               bearer_token_env_var = \"QUORATE_TOKEN\""
        );
        println!("\nThen kill any node with -9: it comes back, and no client sees an error. Ctrl-C ends everything.");
    }
}

/// The replicated flags that the environment sets; one parser for all, and an unknown word stops the start.
fn flags_of_environment() -> Result<Vec<(String, String)>, Failure> {
    let mut set = Vec::new();
    for flag in flag::ALL {
        if let Ok(word) = std::env::var(flag.name) {
            let value = match (flag.parse(&word), flag.nearest(&word)) {
                (Ok(value), _) => value,
                (Err(problem), Some(nearest)) => {
                    eprintln!("quorate dev: {problem}; taken for {nearest}");
                    nearest
                }
                (Err(problem), None) => return Err(Failure::config(problem)),
            };
            set.push((flag.name.to_string(), value));
        }
    }
    Ok(set)
}

/// A new deployment: addresses that are free now, fresh secrets and tokens.
pub fn plan(gateway_port: u16, tls: bool) -> Result<Deployment, Failure> {
    // All are held at once, so that no port is given out twice.
    let gateway = TcpListener::bind(("127.0.0.1", gateway_port)).or_else(|_| TcpListener::bind("127.0.0.1:0")).context("no free port")?;
    let mut held = Vec::new();
    let mut nodes = Vec::new();
    let mut take = || -> anyhow::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
        let address = listener.local_addr()?.to_string();
        held.push(listener);
        Ok(address)
    };
    for id in 1..=NODES {
        nodes.push(NodeEntry { id, grpc: take()?, http: take()?, created: false, replaces: None });
    }
    let identity = |name: &str, tenant: &str, passport: &str, tier: &str, scopes: &[&str]| TokenEntry {
        name: name.into(),
        token: format!("qt_{}", secret()),
        tenant: tenant.into(),
        passport: passport.into(),
        tier: tier.into(),
        scopes: scopes.iter().map(|scope| String::from(*scope)).collect(),
    };
    Ok(Deployment {
        cluster_id: uuid::Uuid::new_v4().to_string(),
        lineage: 0,
        cluster_secret: secret(),
        session_key: secret(),
        receipt_key: secret(),
        gateway: gateway.local_addr().context("the gateway's address")?.to_string(),
        nodes,
        retired: Vec::new(),
        tokens: vec![
            identity("agent-a", "default", "agent-a", "verified", &token::AGENT_SCOPES),
            identity("agent-b", "default", "agent-b", "verified", &token::AGENT_SCOPES),
            identity("operator", "default", "operator", "operator", &["*"]),
            identity("other-tenant", "other", "agent-c", "verified", &token::AGENT_SCOPES),
        ],
        tls,
    })
}

/// The certificates of a deployment with TLS; those that are there stay, and those that end soon are made anew.
fn make_certificates(deployment: &Deployment, data: &Path) -> Result<(), Failure> {
    if !deployment.tls {
        return Ok(());
    }
    let (dir, here) = (Deployment::certificates(data), ["localhost", "127.0.0.1", "::1"].map(String::from));
    cert::make_ca(&dir, &deployment.cluster_id, cert::CA_DAYS, false)?;
    for (name, role) in [("node", Role::Node), ("gateway", Role::Gateway), ("operator", Role::Operator)] {
        let hosts: &[String] = if role == Role::Operator { &[] } else { &here };
        cert::issue(&dir, name, role, hosts, cert::DAYS, false)?;
        cert::renew(&dir, &cert::Authority::open(&dir)?, name, 30, cert::DAYS, false)?;
    }
    Ok(())
}

/// 32 random bytes in hex.
pub fn secret() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}

/// Readable by its owner alone, and replaced in one step: a child may be reading it.
fn write_secret(path: &Path, value: &impl serde::Serialize) -> Result<(), Failure> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let text = toml::to_string(value).context("cannot write a configuration")?;
    let draft = path.with_extension("toml.new");
    let written = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        std::fs::rename(&draft, path)
    });
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// Where `quorate key rotate` puts further receipt keys for the nodes.
pub fn receipt_keys_file(data: &Path) -> PathBuf {
    data.join("receipt-keys")
}

pub fn node_folder(data: &Path, id: u64) -> PathBuf {
    data.join(format!("node-{id}"))
}

fn has_files(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

fn node_config(data: &Path, deployment: &Deployment, node: &NodeEntry) -> quorate_node::Config {
    let (tls_ca, tls_certificate, tls_key) = certificates(data, deployment, "node");
    quorate_node::Config {
        tls_ca,
        tls_certificate,
        tls_key,
        node_id: node.id,
        cluster_id: deployment.cluster_id.clone(),
        lineage: deployment.lineage,
        data: node_folder(data, node.id),
        grpc: node.grpc.clone(),
        http: node.http.clone(),
        cluster_secret: Some(deployment.cluster_secret.clone()),
        receipt_key: deployment.receipt_key.clone(),
        receipt_keys_file: Some(receipt_keys_file(data)),
        ..Default::default()
    }
}

/// Files of a process's certificates: authority, certificate, key.
fn certificates(data: &Path, deployment: &Deployment, name: &str) -> (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>) {
    match deployment.tls.then(|| Deployment::files(data, name)) {
        Some(files) => (Some(files.ca), Some(files.certificate), Some(files.key)),
        None => (None, None, None),
    }
}

/// Waits for the nodes, forms the cluster if it is new, and puts tokens and flags in.
async fn bring_up(deployment: &Deployment, data: &Path, flags: &[(String, String)]) -> Result<(), Failure> {
    let nodes = deployment.nodes(data)?;
    let deadline = Instant::now() + START_WITHIN;
    let mut is_formed = false;
    loop {
        let found = survey(&nodes).await;
        if found.leader.is_some() {
            break;
        }
        let fresh = found.nodes.iter().filter(|node| node.role == "uninitialized").count() as u64;
        // Only a deployment that never ran is formed: nodes that lost their disks must not begin anew behind the others.
        if !is_formed && fresh == NODES && deployment.nodes.iter().all(|node| !node.created) {
            let members = deployment
                .nodes
                .iter()
                .map(|node| Member { id: node.id, grpc: node.grpc.clone(), http: node.http.clone(), voter: true, ..Member::default() })
                .collect();
            let mut client = connect(&deployment.nodes[0].grpc, &nodes).await?;
            transfer::init(&mut client, members).await?;
            // They may take a moment to say so.
            is_formed = true;
        }
        if Instant::now() > deadline {
            let states: Vec<String> = found.nodes.iter().map(|node| format!("node {} is {}", node.id, node.role)).collect();
            return Err(Failure::unavailable(format!("no leader within {} s ({})", START_WITHIN.as_secs(), states.join(", "))));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    token::put_all(&nodes, &deployment.tokens).await?;
    let public_key = quorate_proof::public_key(&deployment.receipt_key).map_err(Failure::config)?;
    admin::propose(&nodes, AddReceiptKey { public_key }).await?;
    key::enroll(&nodes, false).await?;
    token::set_flags(&nodes, flags).await
}

fn gateway_config(data: &Path, deployment: &Deployment) -> Result<quorate_gateway::Config, Failure> {
    let (tls_ca, tls_certificate, tls_key) = certificates(data, deployment, "gateway");
    Ok(quorate_gateway::Config {
        listen_certificate: tls_certificate.clone(),
        listen_key: tls_key.clone(),
        tls_ca,
        tls_certificate,
        tls_key,
        listen: deployment.gateway.clone(),
        nodes: deployment.nodes.iter().map(|node| node.grpc.clone()).collect(),
        cluster_secret: Some(deployment.cluster_secret.clone()),
        session_key: deployment.session_key.clone(),
        audit_export_dir: Some(std::env::var_os("CORECRUXD_AUDIT_EXPORT_DIR").map_or_else(|| data.join("exports"), PathBuf::from)),
        receipt_keys: vec![quorate_proof::public_key(&deployment.receipt_key).map_err(Failure::config)?],
        c2pa_signer_backend: std::env::var("CORECRUXD_C2PA_SIGNER_BACKEND").ok(),
        c2pa_signer_key_id: std::env::var("CORECRUXD_C2PA_SIGNER_KEY_ID").ok(),
        c2pa_signer_signing_key_b64: std::env::var("CORECRUXD_C2PA_SIGNER_SIGNING_KEY_B64").ok(),
        c2pa_signer_certificates: std::env::var_os("CORECRUXD_C2PA_SIGNER_CERTIFICATES").map(PathBuf::from),
        ..Default::default()
    })
}

/// Why the gateway can't run, as far as it shows from here; its own words are in the log.
fn gateway_failure(address: &str) -> Failure {
    match TcpListener::bind(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Failure::config(format!(
            "the gateway's address {address} is taken (address in use): end the program that listens there, then run this again"
        )),
        Err(error) => Failure::config(format!("the gateway can't listen on {address}: {error}")),
        Ok(_) => Failure::config("the gateway was refused its start; the line above says why"),
    }
}

async fn wait_for_gateway(deployment: &Deployment, data: &Path) -> Result<(), Failure> {
    let deadline = Instant::now() + START_WITHIN;
    let url = deployment.url();
    let client = http::client(&url, deployment.tls.then(|| Deployment::files(data, "gateway").ca).as_deref())?;
    loop {
        match client.get(format!("{url}/readyz")).send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            _ if Instant::now() > deadline => return Err(Failure::unavailable("the gateway does not become ready")),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

// ------------------------------------------------------------------ children

/// All children, as `deployment.json` wants them.
struct Crew {
    data: PathBuf,
    executable: PathBuf,
    nodes: BTreeMap<u64, Supervised>,
    gateway: Option<Supervised>,
    /// Children that were told to stop and may not have ended yet.
    leaving: Vec<tokio::task::JoinHandle<()>>,
    /// Inode and time of the file that was last followed: it is replaced whole, so a change shows in both.
    seen: Option<(u64, i64, i64)>,
}

impl Crew {
    /// Follows the file, if it has changed. What can't be followed is told, and tried again at the next change.
    fn look(&mut self) {
        let path = Deployment::path(&self.data);
        let Ok(now) = std::fs::metadata(&path).map(|file| (file.ino(), file.mtime(), file.mtime_nsec())) else { return };
        if self.seen == Some(now) {
            return;
        }
        self.seen = Some(now);
        let followed = match Deployment::load(&self.data) {
            Ok(Some(deployment)) => self.follow(&deployment),
            Ok(None) => return,
            Err(error) => Err(error.into()),
        };
        if let Err(failure) = followed {
            eprintln!("quorate dev: {}", failure.message);
        }
    }

    /// Starts the nodes that are new there, stops those that are gone, and writes where the next start of the gateway finds them.
    fn follow(&mut self, deployment: &Deployment) -> Result<(), Failure> {
        let gone: Vec<u64> = self.nodes.keys().copied().filter(|id| !deployment.nodes.iter().any(|node| node.id == *id)).collect();
        for child in gone.iter().filter_map(|id| self.nodes.remove(id)) {
            self.leaving.push(child.stop());
        }
        self.leaving.retain(|task| !task.is_finished());
        for node in deployment.nodes.iter().filter(|node| !self.nodes.contains_key(&node.id)).collect::<Vec<_>>() {
            let config = self.data.join(format!("node-{}.toml", node.id));
            write_secret(&config, &node_config(&self.data, deployment, node))?;
            let mut arguments = vec!["node".to_string(), LIFELINE.into(), "--config".into(), config.display().to_string()];
            if !node.created {
                arguments.push("--new".into());
            }
            self.nodes.insert(node.id, Supervised::start(format!("node {}", node.id), self.executable.clone(), arguments));
        }
        write_secret(&self.data.join("gateway.toml"), &gateway_config(&self.data, deployment)?)
    }

    fn start_gateway(&mut self, conformance: bool) {
        let mut arguments =
            vec!["gateway".to_string(), LIFELINE.into(), "--config".into(), self.data.join("gateway.toml").display().to_string()];
        if conformance {
            arguments.push("--conformance".into());
        }
        self.gateway = Some(Supervised::start("gateway".into(), self.executable.clone(), arguments));
    }

    /// Done when the gateway was refused its start, and will not be started again.
    fn gateway_refused(&self) -> impl Future<Output = ()> + use<> {
        let pid = self.gateway.as_ref().map(|gateway| gateway.pid.clone());
        async move {
            match pid {
                // The sender lives as long as the one who starts it again.
                Some(mut pid) => while pid.changed().await.is_ok() {},
                None => std::future::pending().await,
            }
        }
    }

    /// Stops the gateway, whose last calls and counts need the nodes, and then all of those at once.
    async fn stop(self) {
        if let Some(gateway) = self.gateway {
            let _ = gateway.stop().await;
        }
        let mut leaving = self.leaving;
        leaving.extend(self.nodes.into_values().map(Supervised::stop));
        for task in leaving {
            let _ = task.await;
        }
    }
}

/// A child that is started again whenever it dies, until told to stop.
struct Supervised {
    pid: watch::Receiver<Option<u32>>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Supervised {
    fn start(name: String, executable: PathBuf, arguments: Vec<String>) -> Self {
        let (pid_sender, pid) = watch::channel(None);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(supervise(name, executable, arguments, stopped, Arc::new(pid_sender)));
        Self { pid, stop, task }
    }

    /// Tells it to stop; the task ends when it has.
    fn stop(self) -> tokio::task::JoinHandle<()> {
        // It has no receiver any more when the child was refused its start.
        let _ = self.stop.send(true);
        self.task
    }
}

async fn supervise(
    name: String,
    executable: PathBuf,
    mut arguments: Vec<String>,
    mut stopped: watch::Receiver<bool>,
    pid: Arc<watch::Sender<Option<u32>>>,
) {
    let mut pause = RESTART_AFTER;
    while !*stopped.borrow() {
        let born = Instant::now();
        let spawned = Command::new(&executable)
            .args(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn();
        match spawned {
            Err(error) => eprintln!("quorate dev: cannot start {name}: {error}"),
            Ok(mut child) => {
                let _ = pid.send(child.id());
                // Taken out, since waiting would close it, and the child stops when it closes.
                let _lifeline = child.stdin.take();
                // A node is new once: from its second start on, an empty folder is a lost disk.
                arguments.retain(|argument| argument != "--new");
                let code = tokio::select! {
                    ended = child.wait() => ended.ok().and_then(|status| status.code()),
                    () = told(&mut stopped) => return end(child).await,
                };
                let _ = pid.send(None);
                if code == Some(i32::from(exit::CONFIG)) {
                    eprintln!("quorate dev: {name} was refused its start and is not started again; see the line above");
                    return;
                }
            }
        }
        pause = if born.elapsed() > STEADY_AFTER { RESTART_AFTER } else { (pause * 2).min(RESTART_AFTER_MAX) };
        tokio::select! {
            _ = tokio::time::sleep(pause) => {}
            () = told(&mut stopped) => return,
        }
    }
}

/// Done when the supervisor is to stop, or is gone.
async fn told(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Asks the child to stop, and kills it if it does not.
async fn end(mut child: Child) {
    if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        // It may have ended on its own meanwhile, which is what is wanted.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(STOP_WITHIN, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
