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
use quorate_proto::cluster::Member;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::deployment::{DATA_DEFAULT, Deployment, NodeEntry, Nodes, TokenEntry, try_lock};
use crate::exit::{self, Failure};
use crate::status::{connect, survey};
use crate::{token, transfer};

/// Run three nodes and a gateway on this machine, supervised, with ready tokens.
#[derive(Args)]
pub struct Dev {
    #[command(flatten)]
    pub target: DevTarget,
    /// Port of the gateway for a new deployment; the default when it is free, else any free one
    #[arg(long, default_value_t = 7400)]
    port: u16,
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
                let deployment = plan(self.port)?;
                deployment.save(&data)?;
                deployment
            }
        };

        let executable = std::env::current_exe().context("cannot find this executable")?;
        let mut crew = Crew { data: data.clone(), executable, nodes: BTreeMap::new(), gateway: None, leaving: Vec::new(), seen: None };
        crew.follow(&deployment)?;
        let started = async {
            bring_up(&deployment, &flags).await?;
            Deployment::update(&data, |deployment| {
                for node in &mut deployment.nodes {
                    node.created |= has_files(&node_folder(&data, node.id));
                }
            })?;
            crew.start_gateway();
            wait_for_gateway(&deployment.gateway).await
        };
        let outcome = tokio::select! {
            outcome = started => outcome,
            _ = terminate.recv() => Err(Failure::failed("stopped before everything served")),
            _ = interrupt.recv() => Err(Failure::failed("stopped before everything served")),
        };
        if outcome.is_ok() {
            self.announce(&deployment, &crew).await;
            let mut look = tokio::time::interval(LOOK_EVERY);
            loop {
                tokio::select! {
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
        let (base, data) = (format!("http://{}", deployment.gateway), &crew.data);
        let pid = |child: Option<&Supervised>| child.and_then(|child| *child.pid.borrow());
        let pid_of = |id: u64| pid(crew.nodes.get(&id));
        let tokens: serde_json::Map<String, serde_json::Value> =
            deployment.tokens.iter().map(|entry| (entry.name.clone(), entry.token.clone().into())).collect();
        let nodes: Vec<serde_json::Value> = deployment
            .nodes
            .iter()
            .map(|node| json!({"id": node.id, "pid": pid_of(node.id), "grpc": node.grpc, "http": format!("http://{}", node.http)}))
            .collect();
        if self.target.json {
            let all = json!({
                "mcp": format!("{base}/mcp"), "http": base, "console": null, "tokens": tokens, "nodes": nodes,
                "gateway": {"pid": pid(crew.gateway.as_ref())}, "data": data.display().to_string(),
            });
            println!("{all}");
            return;
        }
        let token = |name: &str| deployment.tokens.iter().find(|entry| entry.name == name).map_or("", |entry| entry.token.as_str());
        println!("Quorate runs: three nodes and a gateway, data in {}\n", data.display());
        println!("  MCP      {base}/mcp        (everyday tools)\n           {base}/mcp/crux   (all tools)");
        println!("  HTTP     {base}/v1/tools/crux/NAME, described in {base}/v1/openapi.json");
        for entry in &deployment.tokens {
            println!("  token    {:<13} {}", entry.name, entry.token);
        }
        for node in &deployment.nodes {
            println!("  node {}   pid {:<8} grpc {}", node.id, pid_of(node.id).unwrap_or_default(), node.grpc);
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
            set.push((flag.name.to_string(), flag.parse(&word).map_err(Failure::config)?));
        }
    }
    Ok(set)
}

/// A new deployment: addresses that are free now, fresh secrets and tokens.
fn plan(gateway_port: u16) -> Result<Deployment, Failure> {
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
    let identity = |name: &str, tenant: &str, passport: &str, tier: &str, scope: &str| TokenEntry {
        name: name.into(),
        token: format!("qt_{}", secret()),
        tenant: tenant.into(),
        passport: passport.into(),
        tier: tier.into(),
        scopes: vec![scope.into()],
    };
    Ok(Deployment {
        cluster_id: uuid::Uuid::new_v4().to_string(),
        cluster_secret: secret(),
        session_key: secret(),
        receipt_key: secret(),
        gateway: gateway.local_addr().context("the gateway's address")?.to_string(),
        nodes,
        retired: Vec::new(),
        tokens: vec![
            identity("agent-a", "default", "agent-a", "verified", "crux-mcp.*"),
            identity("agent-b", "default", "agent-b", "verified", "crux-mcp.*"),
            identity("operator", "default", "operator", "operator", "*"),
            identity("other-tenant", "other", "agent-c", "verified", "crux-mcp.*"),
        ],
    })
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

fn node_folder(data: &Path, id: u64) -> PathBuf {
    data.join(format!("node-{id}"))
}

fn has_files(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

fn node_config(data: &Path, deployment: &Deployment, node: &NodeEntry) -> quorate_node::Config {
    quorate_node::Config {
        node_id: node.id,
        cluster_id: deployment.cluster_id.clone(),
        data: node_folder(data, node.id),
        grpc: node.grpc.clone(),
        http: node.http.clone(),
        cluster_secret: Some(deployment.cluster_secret.clone()),
        receipt_key: deployment.receipt_key.clone(),
        ..Default::default()
    }
}

/// Waits for the nodes, forms the cluster if it is new, and puts tokens and flags in.
async fn bring_up(deployment: &Deployment, flags: &[(String, String)]) -> Result<(), Failure> {
    let nodes = Nodes {
        addresses: deployment.nodes.iter().map(|node| node.grpc.clone()).collect(),
        cluster_secret: Some(deployment.cluster_secret.clone()),
    };
    let deadline = Instant::now() + START_WITHIN;
    loop {
        let found = survey(&nodes).await;
        if found.leader.is_some() {
            break;
        }
        let fresh = found.nodes.iter().filter(|node| node.role == "uninitialized").count() as u64;
        // Only a deployment that never ran is formed: nodes that lost their disks must not begin anew behind the others.
        if fresh == NODES && deployment.nodes.iter().all(|node| !node.created) {
            let members = deployment
                .nodes
                .iter()
                .map(|node| Member { id: node.id, grpc: node.grpc.clone(), http: node.http.clone(), voter: true, ..Member::default() })
                .collect();
            let mut client = connect(&deployment.nodes[0].grpc, nodes.cluster_secret.as_deref()).await?;
            transfer::init(&mut client, members).await?;
        }
        if Instant::now() > deadline {
            let states: Vec<String> = found.nodes.iter().map(|node| format!("node {} is {}", node.id, node.role)).collect();
            return Err(Failure::unavailable(format!("no leader within {} s ({})", START_WITHIN.as_secs(), states.join(", "))));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    token::put_all(&nodes, &deployment.tokens).await?;
    token::set_flags(&nodes, flags).await
}

fn gateway_config(deployment: &Deployment) -> Result<quorate_gateway::Config, Failure> {
    Ok(quorate_gateway::Config {
        listen: deployment.gateway.clone(),
        nodes: deployment.nodes.iter().map(|node| node.grpc.clone()).collect(),
        cluster_secret: Some(deployment.cluster_secret.clone()),
        session_key: deployment.session_key.clone(),
        receipt_keys: vec![quorate_node::public_key(&deployment.receipt_key).map_err(Failure::config)?],
        ..Default::default()
    })
}

async fn wait_for_gateway(address: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + START_WITHIN;
    loop {
        match reqwest::get(format!("http://{address}/readyz")).await {
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
        write_secret(&self.data.join("gateway.toml"), &gateway_config(deployment)?)
    }

    fn start_gateway(&mut self) {
        let arguments =
            vec!["gateway".to_string(), LIFELINE.into(), "--config".into(), self.data.join("gateway.toml").display().to_string()];
        self.gateway = Some(Supervised::start("gateway".into(), self.executable.clone(), arguments));
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
