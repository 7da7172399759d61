//! A cluster of real processes, each of which can be killed, stopped and started by itself.
//!
//! Nodes and gateways are children of this process and hold a pipe from it, so none outlives it. Their addresses lie below the
//! range that the kernel gives to outgoing connections, so that a node that was killed finds its own again. On Linux each node is
//! started with `quorate-chaos-preload` in front of its C library, so that its disk and its wall clock can be made to fail.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::net::TcpListener as StdListener;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use quorate_chaos_faults::{Control, Counter, DATA, FAULTS, Switch, power_loss};
use rand::RngExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use super::namespaces::Namespaces;
use super::proxy::{Fabric, Party};

/// Everything has to serve by then, or the start has failed.
const START_WITHIN: Duration = Duration::from_secs(90);
/// A verb of the executable ends by then.
const VERB_WITHIN: Duration = Duration::from_secs(60);
/// A process that was asked to stop and has not is killed after this.
const STOP_WITHIN: Duration = Duration::from_secs(15);

// The first key pair of RFC 8032, 7.1: receipts of this cluster prove nothing to anybody else.
const RECEIPT_KEY: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
pub const RECEIPT_KEY_PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

/// One process, with what it takes to start it again.
struct Process {
    name: String,
    party: Party,
    /// The node whose namespace it runs in.
    namespace: Option<u64>,
    arguments: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    /// It stops when this closes.
    _lifeline: Option<ChildStdin>,
}

/// A node and its addresses.
struct Node {
    process: Process,
    grpc: String,
    /// The relay before it, which is what the others know.
    relay: String,
    http: String,
    data: PathBuf,
    faults: PathBuf,
    control: Control,
    /// Its disk fails: it may end by itself.
    may_end: bool,
}

/// A gateway and its address.
struct Gateway {
    process: Process,
    listen: String,
}

/// How the operator's verbs of the executable reach nodes.
#[derive(Clone, Debug)]
pub struct Verbs {
    pub executable: PathBuf,
    /// Addresses of the nodes themselves.
    pub nodes: Vec<String>,
    /// None: as the environment has it.
    pub secret: Option<String>,
}

impl Verbs {
    /// Runs a verb; its JSON.
    pub async fn run(&self, verb: &[String]) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.executable);
        command.args(verb).args(["--json", "--nodes", &self.nodes.join(",")]);
        command.envs(self.secret.iter().map(|secret| ("QUORATE_CLUSTER_SECRET", secret)));
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(VERB_WITHIN, command.output()).await.context("it does not end")??;
        if !output.status.success() {
            let text = if output.stderr.trim_ascii().is_empty() { &output.stdout } else { &output.stderr };
            bail!("quorate {}: {}", verb.join(" "), String::from_utf8_lossy(text).trim());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
    }
}

/// The processes, and the links between them.
pub struct Cluster {
    home: PathBuf,
    executable: PathBuf,
    pub fabric: Arc<Fabric>,
    namespaces: Option<Arc<Namespaces>>,
    cluster_id: String,
    secret: String,
    nodes: BTreeMap<u64, Node>,
    gateways: Vec<Gateway>,
    /// Where clients reach the gateways.
    pub doors: Vec<String>,
    node_id_next: u64,
}

impl Cluster {
    /// Starts nodes and gateways on a folder of their own and forms the cluster.
    pub async fn start(
        executable: &Path,
        home: &Path,
        nodes: u64,
        gateways: usize,
        namespaces: Option<Arc<Namespaces>>,
    ) -> anyhow::Result<Self> {
        let mut cluster = Self {
            home: home.to_path_buf(),
            executable: executable.to_path_buf(),
            fabric: Arc::default(),
            namespaces,
            cluster_id: format!("chaos-{:08x}", rand::random::<u32>()),
            secret: secret(),
            nodes: BTreeMap::new(),
            gateways: Vec::new(),
            doors: Vec::new(),
            node_id_next: 1,
        };
        let mut voters = Vec::new();
        for _ in 0..nodes {
            let id = cluster.add_node().await?;
            let node = &cluster.nodes[&id];
            voters.extend(["--voter".to_string(), format!("{id}={},{}", node.relay, node.http)]);
        }
        let deadline = Instant::now() + START_WITHIN;
        loop {
            match cluster.verb(&["init".into()].into_iter().chain(voters.clone()).collect::<Vec<String>>()).await {
                Ok(_) => break,
                Err(error) if Instant::now() > deadline => return Err(error.context(cluster.log_tail())),
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
        for place in 0..gateways {
            cluster.add_gateway(place).await?;
        }
        Ok(cluster)
    }

    pub fn node_ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub fn gateway_count(&self) -> usize {
        self.gateways.len()
    }

    /// Where each node tells its health.
    pub fn health_addresses(&self) -> Vec<(u64, String)> {
        self.nodes.iter().map(|(id, node)| (*id, node.http.clone())).collect()
    }

    /// Starts a new node under an id that was never used; it takes part once it has joined.
    pub async fn add_node(&mut self) -> anyhow::Result<u64> {
        let id = self.node_id_next;
        self.node_id_next += 1;
        let (grpc, http, relay) = match &self.namespaces {
            // There links are cut below, and the nodes reach each other without anything in between.
            Some(namespaces) => {
                let address = namespaces.add(id)?;
                let grpc = format!("{address}:7401");
                (grpc.clone(), format!("{address}:7402"), grpc)
            }
            None => {
                let grpc = free_address()?;
                let listener = tokio::net::TcpListener::bind(free_address()?).await?;
                let relay = listener.local_addr()?.to_string();
                self.fabric.serve(listener, Party::Node(id), grpc.clone());
                (grpc, free_address()?, relay)
            }
        };
        let config = self.home.join(format!("node-{id}.toml"));
        let data = self.home.join(format!("node-{id}"));
        let lines = [
            format!("node_id = {id}"),
            format!("cluster_id = \"{}\"", self.cluster_id),
            format!("data = {:?}", data.display().to_string()),
            format!("grpc = \"{grpc}\""),
            format!("http = \"{http}\""),
            format!("cluster_secret = \"{}\"", self.secret),
            format!("receipt_key = \"{RECEIPT_KEY}\""),
        ];
        write_private(&config, &lines.join("\n"))?;
        let arguments = words(&["node", "--stop-on-stdin-close", "--config", &config.display().to_string()]);
        let faults = self.home.join(format!("node-{id}.faults"));
        let control = Control::open(&faults)?;
        let environment = match preloaded(&self.executable) {
            Some(library) => vec![("LD_PRELOAD", library), (FAULTS, faults.clone()), (DATA, data.clone())],
            None => Vec::new(),
        };
        let namespace = self.namespaces.as_ref().map(|_| id);
        let process = Process { name: format!("node-{id}"), party: Party::Node(id), namespace, arguments, environment, running: None };
        self.nodes.insert(id, Node { process, grpc, relay, http, data, faults, control, may_end: false });
        self.start_node_with(id, &["--new"])?;
        Ok(id)
    }

    async fn add_gateway(&mut self, place: usize) -> anyhow::Result<()> {
        let listen = free_address()?;
        let listener = tokio::net::TcpListener::bind(free_address()?).await?;
        self.doors.push(format!("http://{}", listener.local_addr()?));
        self.fabric.serve(listener, Party::Gateway(place), listen.clone());
        let config = self.gateway_config(place).display().to_string();
        let arguments = words(&["gateway", "--stop-on-stdin-close", "--config", &config]);
        let process = Process {
            name: format!("gateway-{place}"),
            party: Party::Gateway(place),
            namespace: None,
            arguments,
            environment: Vec::new(),
            running: None,
        };
        self.gateways.push(Gateway { process, listen });
        self.start_gateway(place)
    }

    fn gateway_config(&self, place: usize) -> PathBuf {
        self.home.join(format!("gateway-{place}.toml"))
    }

    // -------- life and death

    /// Starts a node that does not run.
    pub fn start_node(&mut self, id: u64) -> anyhow::Result<()> {
        self.start_node_with(id, &[])
    }

    fn start_node_with(&mut self, id: u64, more: &[&str]) -> anyhow::Result<()> {
        let node = self.nodes.get_mut(&id).context("no such node")?;
        node.process.start(&self.executable, &self.home, &self.fabric, more)
    }

    /// Starts a gateway that does not run; it begins with the nodes that there are now.
    pub fn start_gateway(&mut self, place: usize) -> anyhow::Result<()> {
        let relays: Vec<String> = self.nodes.values().map(|node| format!("\"{}\"", node.relay)).collect();
        let lines = [
            format!("listen = \"{}\"", self.gateways[place].listen),
            format!("nodes = [{}]", relays.join(", ")),
            format!("cluster_secret = \"{}\"", self.secret),
            format!("session_key = \"{}\"", "5c".repeat(32)),
            format!("receipt_keys = [\"{RECEIPT_KEY_PUBLIC}\"]"),
        ];
        write_private(&self.gateway_config(place), &lines.join("\n"))?;
        self.gateways[place].process.start(&self.executable, &self.home, &self.fabric, &[])
    }

    /// Sends a signal to a node that runs. False when it does not.
    pub fn signal_node(&self, id: u64, signal: Signal) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.process.signal(signal))
    }

    /// kill -9, and it is gone when this returns.
    pub async fn kill_node(&mut self, id: u64) -> bool {
        match self.nodes.get_mut(&id) {
            Some(node) => node.process.kill().await,
            None => false,
        }
    }

    pub async fn kill_gateway(&mut self, place: usize) -> bool {
        self.gateways[place].process.kill().await
    }

    /// kill -9 of all of these at the same moment.
    pub async fn kill_nodes(&mut self, ids: &[u64]) {
        for id in ids {
            self.signal_node(*id, Signal::KILL);
        }
        for id in ids {
            self.kill_node(*id).await;
        }
    }

    /// Stops a node in order.
    pub async fn stop_node(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.process.stop().await;
        }
    }

    /// Stops a node for good.
    pub async fn forget_node(&mut self, id: u64) {
        self.stop_node(id).await;
        self.nodes.remove(&id);
    }

    /// Processes that ended although nobody here ended them, and nothing that was done to them excuses it.
    pub fn ended_by_themselves(&mut self) -> Vec<(String, ExitStatus)> {
        let mut found = Vec::new();
        for node in self.nodes.values_mut() {
            found.extend(node.process.ended().filter(|_| !node.may_end));
        }
        found.extend(self.gateways.iter_mut().filter_map(|gateway| gateway.process.ended()));
        found
    }

    // -------- disks and clocks

    /// Whether disks and clocks can be made to fail here.
    pub fn has_faulty_disks(&self) -> bool {
        preloaded(&self.executable).is_some()
    }

    fn node(&self, id: u64) -> anyhow::Result<&Node> {
        self.nodes.get(&id).context("no such node")
    }

    /// Sets what goes wrong with the disk or clock of a node.
    pub fn set_fault(&self, id: u64, switch: Switch, value: i64) -> anyhow::Result<()> {
        Ok(self.node(id)?.control.set(switch, value)?)
    }

    /// How often that did something.
    pub fn fault_count(&self, id: u64, counter: Counter) -> anyhow::Result<u64> {
        Ok(self.node(id)?.control.count(counter)?)
    }

    pub fn is_running(&self, id: u64) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.process.running.is_some())
    }

    /// Its disk fails from now on, so that it may end by itself; or does not any more.
    pub fn excuse(&mut self, id: u64, may_end: bool) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.may_end = may_end;
        }
    }

    /// What the disk of a dead node forgets when the power goes: bytes of all files but the library's own log, which nobody reads.
    pub fn lose_power(&self, id: u64, keeps: &mut dyn FnMut(u64) -> u64) -> anyhow::Result<u64> {
        let node = self.node(id)?;
        let lost = power_loss(&node.faults, &node.data, &mut |path, unsynced| match path.file_name().is_some_and(|name| name == "LOG") {
            true => unsynced,
            false => keeps(unsynced),
        });
        Ok(lost.with_context(|| format!("the files of node {id}"))?.bytes)
    }

    /// Whatever was done to it, everything runs and reaches everything after this.
    pub fn mend(&mut self) -> anyhow::Result<()> {
        self.fabric.heal_all();
        for id in self.node_ids() {
            self.node(id)?.control.heal()?;
            self.excuse(id, false);
            self.signal_node(id, Signal::CONT);
            self.start_node(id)?;
        }
        (0..self.gateways.len()).try_for_each(|place| self.start_gateway(place))
    }

    /// Stops everything.
    pub async fn stop(&mut self) {
        for node in self.nodes.values() {
            // One that hangs is killed in the end.
            let _ = node.control.heal();
            node.process.signal(Signal::CONT);
        }
        let gateways = self.gateways.iter_mut().map(|gateway| &mut gateway.process);
        for process in gateways.chain(self.nodes.values_mut().map(|node| &mut node.process)) {
            process.stop().await;
        }
    }

    // -------- operator

    /// Runs a verb of the executable against the nodes themselves, past the relays; its JSON.
    pub async fn verb(&self, verb: &[String]) -> anyhow::Result<Value> {
        let nodes = self.nodes.values().map(|node| node.grpc.clone()).collect();
        Verbs { executable: self.executable.clone(), nodes, secret: Some(self.secret.clone()) }.run(verb).await
    }

    /// The address that others know a node by.
    pub fn relay_of(&self, id: u64) -> Option<&str> {
        self.nodes.get(&id).map(|node| node.relay.as_str())
    }

    /// A bearer token for a passport of that name.
    pub async fn token(&self, passport: &str, tier: &str) -> anyhow::Result<String> {
        let verb = words(&["token", "create", "--passport", passport, "--tier", tier, "--scope", "*"]);
        let made = self.verb(&verb).await?;
        Ok(made["token"].as_str().context("no token in the answer")?.to_string())
    }

    /// The ends of all logs, for a report of what went wrong.
    pub fn log_tail(&self) -> String {
        let gateways = self.gateways.iter().map(|gateway| &gateway.process);
        let processes = self.nodes.values().map(|node| &node.process).chain(gateways);
        let tails = processes.map(|process| {
            let log = fs::read_to_string(self.home.join(format!("{}.log", process.name))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(5).collect();
            format!("{}:\n  {}", process.name, lines.into_iter().rev().collect::<Vec<_>>().join("\n  "))
        });
        tails.collect::<Vec<_>>().join("\n")
    }
}

impl Process {
    fn start(&mut self, executable: &Path, home: &Path, fabric: &Fabric, more: &[&str]) -> anyhow::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let log = OpenOptions::new().create(true).append(true).open(home.join(format!("{}.log", self.name)))?;
        let mut command = match self.namespace {
            Some(id) => Namespaces::enter(id, executable),
            None => Command::new(executable),
        };
        let mut child = command
            .args(&self.arguments)
            .args(more)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", executable.display()))?;
        if let Some(pid) = child.id() {
            fabric.register(pid, self.party);
        }
        let lifeline = child.stdin.take();
        self.running = Some(Running { child, _lifeline: lifeline });
        Ok(())
    }

    fn signal(&self, signal: Signal) -> bool {
        let pid = self.running.as_ref().and_then(|running| running.child.id()).and_then(|pid| Pid::from_raw(pid as i32));
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    async fn kill(&mut self) -> bool {
        match self.running.take() {
            Some(mut running) => running.child.kill().await.is_ok(),
            None => false,
        }
    }

    async fn stop(&mut self) {
        self.signal(Signal::TERM);
        if let Some(mut running) = self.running.take()
            && timeout(STOP_WITHIN, running.child.wait()).await.is_err()
        {
            // It is waited for either way.
            let _ = running.child.kill().await;
        }
    }

    fn ended(&mut self) -> Option<(String, ExitStatus)> {
        let status = self.running.as_mut()?.child.try_wait().ok()??;
        self.running = None;
        Some((self.name.clone(), status))
    }
}

/// The library that lets disks and clocks fail: it lies beside the executable. Linux alone has it.
fn preloaded(executable: &Path) -> Option<PathBuf> {
    let beside = |folder: &Path| folder.join("libquorate_chaos_preload.so");
    let own = std::env::current_exe().ok();
    let folders = [executable.parent(), own.as_deref().and_then(Path::parent)];
    let found = folders.into_iter().flatten().map(beside).find(|path| path.is_file())?;
    cfg!(target_os = "linux").then_some(found)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

fn secret() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// A loopback address that is free now and that no outgoing connection will take.
fn free_address() -> anyhow::Result<String> {
    for _ in 0..1_000 {
        let address = format!("127.0.0.1:{}", rand::rng().random_range(10_000..32_000_u16));
        if StdListener::bind(&address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port between 10000 and 32000")
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
