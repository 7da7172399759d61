//! The network as the kernel has it: a network namespace for each node, and links that are cut by dropping packets.
//!
//! Relays can hold bytes back, but their ends go on acknowledging them. Here nothing acknowledges anything: TCP sends again, backs off,
//! and finds out by itself. It takes root and `ip`, and nothing more: no firewall, no queueing discipline. The run itself moves into a
//! namespace of its own, the hub, which forwards between the nodes and is where gateways and clients are; everything vanishes with
//! it. A node refuses to listen outside of loopback without TLS, so the addresses are loopback's upper half, which is told to be routed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};

/// Set in the process that runs in the hub.
const IN_HUB: &str = "QUORATE_CHAOS_IN_HUB";
/// Node ids that have an address.
const NODE_ID_MAX: u64 = 250;
const HUB: &str = "127.200.0.1";
/// Frees the upper half of loopback's addresses for routes.
const HALVE_LOOPBACK: &str = "ip link set lo up && ip route add local 127.0.0.0/9 dev lo table local src 127.0.0.1 && \
                              ip route del local 127.0.0.0/8 dev lo table local";

/// The namespaces of one run. They are deleted when this is dropped.
pub struct Namespaces {
    nodes: Mutex<BTreeSet<u64>>,
    /// From whom to whom packets are dropped.
    cut: Mutex<BTreeSet<(u64, u64)>>,
}

/// Why there can be none here; `None` if there can.
pub fn unavailable() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces take root".into());
    }
    // Both may be there and not be allowed to.
    shell("unshare -n ip link set lo up").err().map(|error| format!("network namespaces can't be made: {error:#}"))
}

/// Whether this process is in the hub already.
pub fn is_hub() -> bool {
    std::env::var_os(IN_HUB).is_some()
}

/// The same command again, in a namespace of its own.
pub fn in_hub() -> anyhow::Result<tokio::process::Command> {
    let mut command = tokio::process::Command::new("unshare");
    command.arg("-n").arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(IN_HUB, "1").kill_on_drop(true);
    Ok(command)
}

impl Namespaces {
    /// Makes a hub of the namespace that this process is in.
    pub fn new() -> anyhow::Result<Self> {
        shell(&format!("{HALVE_LOOPBACK} && echo 1 > /proc/sys/net/ipv4/ip_forward && ip addr add {HUB}/32 dev lo"))?;
        Ok(Self { nodes: Mutex::default(), cut: Mutex::default() })
    }

    /// Makes the namespace of a node, and its address.
    pub fn add(&self, id: u64) -> anyhow::Result<String> {
        anyhow::ensure!(id <= NODE_ID_MAX, "there are addresses for {NODE_ID_MAX} nodes");
        let (name, address) = (name(id), address(id));
        let of_node = format!(
            "{HALVE_LOOPBACK} && echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet && ip link set eth0 up && \
             ip addr add {address}/32 dev eth0 && ip route add 127.200.0.0/16 dev eth0 src {address}"
        );
        self.lock_nodes().insert(id);
        shell(&format!(
            "ip netns add {name} && ip link add v{id} type veth peer name eth0 netns {name} && \
             echo 1 > /proc/sys/net/ipv4/conf/v{id}/route_localnet && echo 1 > /proc/sys/net/ipv4/conf/v{id}/proxy_arp && \
             ip link set v{id} up && ip route add {address}/32 dev v{id} src {HUB} && ip netns exec {name} sh -c '{of_node}'"
        ))?;
        Ok(address)
    }

    /// Starts what is given to it in the namespace of a node, as the same process.
    pub fn enter(id: u64, executable: &Path) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("ip");
        command.args(["netns", "exec", &name(id)]).arg(executable);
        command
    }

    /// Drops every packet from one node to another, or no longer.
    pub fn set(&self, from: u64, to: u64, is_cut: bool) {
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = if is_cut { cut.insert((from, to)) } else { cut.remove(&(from, to)) };
        if changes {
            let verb = if is_cut { "add" } else { "del" };
            let rule = format!("ip rule {verb} from {} to {} blackhole pref 100", address(from), address(to));
            // A fault that is not made leaves no trace, and that is noticed.
            if let Err(error) = shell(&rule) {
                eprintln!("{error:#}");
            }
        }
    }

    pub fn heal_all(&self) {
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cut.into_iter().for_each(|(from, to)| self.set(from, to, false));
    }

    /// How many segments all nodes together had to send again.
    pub fn sent_again(&self) -> u64 {
        let nodes = self.lock_nodes().clone();
        let of_node = |id: u64| {
            let output = Command::new("ip").args(["netns", "exec", &name(id), "cat", "/proc/self/net/snmp"]).output().ok()?;
            retransmitted(&String::from_utf8_lossy(&output.stdout))
        };
        nodes.into_iter().filter_map(of_node).sum()
    }

    fn lock_nodes(&self) -> std::sync::MutexGuard<'_, BTreeSet<u64>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for id in self.lock_nodes().iter() {
            // One that was not made is not there to be deleted.
            let _ = shell(&format!("ip netns del {}", name(*id)));
        }
    }
}

fn name(id: u64) -> String {
    format!("quorate-chaos-{}-{id}", std::process::id())
}

fn address(id: u64) -> String {
    format!("127.200.{id}.1")
}

fn shell(script: &str) -> anyhow::Result<()> {
    let output = Command::new("sh").args(["-c", script]).output().context("no shell")?;
    if !output.status.success() {
        bail!("{script}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// From the kernel's table, in which a line of names stands over a line of numbers.
fn retransmitted(table: &str) -> Option<u64> {
    let mut of_tcp = table.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, numbers) = (of_tcp.next()?, of_tcp.next()?);
    let place = names.split_whitespace().position(|name| name == "RetransSegs")?;
    numbers.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_again_is_read_by_its_name() {
        let table = "Ip: Forwarding\nIp: 1\nTcp: RtoMin OutSegs RetransSegs InErrs\nTcp: 200 70 7 0\n";
        assert_eq!(retransmitted(table), Some(7));
        assert_eq!(retransmitted("Ip: Forwarding\nIp: 1\n"), None);
    }
}
