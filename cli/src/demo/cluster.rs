//! The cluster of a day: `quorate dev` with its three nodes and a gateway, and a second gateway beside it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::script::{PEOPLE, Script};
use crate::deployment::{Deployment, TokenEntry};
use crate::dev::secret;
use crate::exit::Failure;
use crate::status::survey;
use crate::{http, token};

/// Everything serves by then, or the day does not begin.
const START_WITHIN: Duration = Duration::from_secs(120);
/// A process that was told to stop and has not is killed after this.
const STOP_WITHIN: Duration = Duration::from_secs(20);

pub struct Cluster {
    data: PathBuf,
    /// Whether the folder is ours to remove.
    is_ours: bool,
    deployment: Deployment,
    dev: Child,
    gateway_pid: u32,
    second: Child,
    /// Both gateways.
    pub doors: Vec<String>,
    /// By passport.
    pub tokens: Vec<(String, String)>,
}

impl Cluster {
    pub async fn start(keep: Option<PathBuf>, script: &Script) -> Result<Self, Failure> {
        let is_ours = keep.is_none();
        let data = keep.unwrap_or_else(|| std::env::temp_dir().join(format!("quorate-demo-{}", &secret()[..12])));
        std::fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
        let started = Self::start_in(&data, is_ours, script).await;
        if started.is_err() && is_ours {
            let _ = std::fs::remove_dir_all(&data);
        }
        started
    }

    async fn start_in(data: &Path, is_ours: bool, script: &Script) -> Result<Self, Failure> {
        let executable = std::env::current_exe().context("cannot find this executable")?;
        let log = |name: &str| std::fs::File::create(data.join(name)).with_context(|| format!("cannot write {name} in {}", data.display()));
        let mut dev = Command::new(&executable)
            .args(["dev", "--json", "--port", "0", "--data"])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log("dev.log")?)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start `quorate dev`")?;
        let told = dev.stdout.take().context("`quorate dev` has no output")?;
        let line = tokio::time::timeout(START_WITHIN, BufReader::new(told).lines().next_line()).await;
        let line = line.ok().and_then(Result::ok).flatten();
        let info: Value = line
            .and_then(|line| serde_json::from_str(&line).ok())
            .ok_or_else(|| Failure::unavailable(format!("the cluster did not start; {} says why", data.join("dev.log").display())))?;
        let gateway_pid = info["gateway"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).context("the gateway has no pid")?;
        let deployment = Deployment::load(data)?.context("the deployment has no description")?;
        let address = free_address()?;
        // It ends when its standard input closes, as it does when this process ends in any way.
        let second = Command::new(&executable)
            .args(["gateway", "--stop-on-stdin-close", "--listen", &address, "--data"])
            .arg(data)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log("gateway-2.log")?)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a second gateway")?;
        let doors = vec![deployment.url(), format!("http://{address}")];
        let tokens = entries(script);
        let mut cluster = Self { data: data.into(), is_ours, deployment, dev, gateway_pid, second, doors, tokens: Vec::new() };
        let ready = async {
            token::put_all(&cluster.deployment.nodes(&cluster.data)?, &tokens).await?;
            wait_for(&cluster.doors[1]).await
        };
        if let Err(failure) = ready.await {
            cluster.end_processes().await;
            return Err(failure);
        }
        cluster.tokens = tokens.into_iter().map(|entry| (entry.passport, entry.token)).collect();
        Ok(cluster)
    }

    pub fn shown(&self) -> String {
        format!("three nodes, gateways at {} and {}, data in {}", self.doors[0], self.doors[1], self.data.display())
    }

    pub fn token(&self, passport: &str) -> &str {
        self.tokens.iter().find(|(name, _)| name == passport).map_or("", |(_, token)| token)
    }

    /// Kills the node that leads, as a power cut would; what it was.
    pub async fn kill_leader(&self) -> Result<String, Failure> {
        let nodes = self.deployment.nodes(&self.data)?;
        let deadline = Instant::now() + START_WITHIN;
        loop {
            let found = survey(&nodes).await;
            let leader = found.nodes.iter().find(|node| Some(node.id) == found.leader);
            if let Some((id, pid)) = leader.and_then(|node| Some((node.id, node.pid?))) {
                kill(pid)?;
                return Ok(format!("node {id}, the leader"));
            }
            if Instant::now() > deadline {
                return Err(Failure::unavailable("there is no leader to kill"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Kills the first gateway. It has one life: `dev` starts another in its place.
    pub fn kill_gateway(&self) -> Result<String, Failure> {
        kill(self.gateway_pid)?;
        Ok("gateway 1".into())
    }

    /// Ends everything that was started, and removes the folder if it is ours.
    pub async fn stop(mut self) {
        self.end_processes().await;
        if self.is_ours {
            let _ = std::fs::remove_dir_all(&self.data);
        }
    }

    async fn end_processes(&mut self) {
        // A gateway's last counts need the nodes.
        end(&mut self.second).await;
        end(&mut self.dev).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Only where the day was broken off: `dev` takes its children with it, so it has to be asked and not killed.
        if let Some(pid) = self.dev.id().and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::TERM);
            let deadline = Instant::now() + STOP_WITHIN;
            while matches!(self.dev.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            if self.is_ours {
                let _ = std::fs::remove_dir_all(&self.data);
            }
        }
    }
}

fn kill(pid: u32) -> Result<(), Failure> {
    let pid = Pid::from_raw(pid as i32).context("no pid")?;
    kill_process(pid, Signal::KILL).context("cannot kill a process of the demo")?;
    Ok(())
}

async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(STOP_WITHIN, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

fn free_address() -> Result<String, Failure> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("there is no free port")?;
    Ok(listener.local_addr().context("there is no free port")?.to_string())
}

async fn wait_for(door: &str) -> Result<(), Failure> {
    let client = http::client(door, None)?;
    let deadline = Instant::now() + START_WITHIN;
    loop {
        match client.get(format!("{door}/readyz")).send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            _ if Instant::now() > deadline => return Err(Failure::unavailable("the second gateway does not become ready")),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A token for each agent and person.
fn entries(script: &Script) -> Vec<TokenEntry> {
    let agents = script.agents.iter().map(|name| (name.as_str(), "verified"));
    let entry = |(name, tier): (&str, &str)| TokenEntry {
        name: name.into(),
        token: format!("qt_{}", secret()),
        tenant: "default".into(),
        passport: name.into(),
        tier: tier.into(),
        scopes: vec!["crux-mcp.*".into()],
    };
    agents.chain(PEOPLE).map(entry).collect()
}
