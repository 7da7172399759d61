//! This machine: its disk, its processes, and the promise to end what was started.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// What the figures depend on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    /// Of 4 KiB written over the room of a file in the data folder, while nothing of the bench runs.
    pub fdatasync_p50_us: u32,
    pub fdatasync_p99_us: u32,
}

const PROBES: usize = 200;
const PROBE_BYTES: usize = 4096;
/// `f_type` of file systems that keep their files in memory, where an fsync costs nothing: tmpfs and ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

impl Machine {
    /// Measures the disk under a folder. Refuses a folder in memory: figures from there would be worth nothing.
    pub fn probe(data: &Path) -> anyhow::Result<Self> {
        if IN_MEMORY.contains(&rustix::fs::statfs(data)?.f_type) {
            bail!("{} lies in memory, where fsync costs nothing; give a folder on a disk with --data", data.display());
        }
        let path = data.join("fdatasync-probe");
        let file = File::create(&path)?;
        // As a log does it: the room is there before it is written to, so that a sync has no metadata to write.
        file.write_all_at(&vec![0; PROBES * PROBE_BYTES], 0)?;
        file.sync_all()?;
        let mut took = Vec::with_capacity(PROBES);
        for i in 0..PROBES {
            let start = Instant::now();
            file.write_all_at(&[7; PROBE_BYTES], (i * PROBE_BYTES) as u64)?;
            file.sync_data()?;
            took.push(u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
        std::fs::remove_file(&path)?;
        took.sort_unstable();
        let cores = std::thread::available_parallelism()?.get();
        Ok(Self { cores, fdatasync_p50_us: took[PROBES / 2], fdatasync_p99_us: took[PROBES * 99 / 100] })
    }
}

/// Ports on loopback that nobody listens on now.
pub fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    // All are bound before the first is given back, so that they differ.
    let listeners: Vec<TcpListener> = (0..N).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

/// Ends when somebody asks the bench to stop.
pub async fn interrupted() {
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

/// A process that the bench started. Dropped, it and everything it started is ended.
pub struct Started(Child);

/// How long a process may take to end by itself.
const GRACE: Duration = Duration::from_secs(20);

impl Started {
    /// Runs a command with its error output, and its output unless that is wanted, in `log`.
    pub fn spawn(command: &mut Command, log: &Path, wants_output: bool) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        let output = if wants_output { Stdio::piped() } else { file.try_clone()?.into() };
        // A group of its own: its members are known even after their parent has died.
        let child = command.process_group(0).stdin(Stdio::null()).stdout(output).stderr(file).spawn();
        Ok(Self(child.with_context(|| format!("cannot start {}", command.get_program().display()))?))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn take_output(&mut self) -> Option<std::process::ChildStdout> {
        self.0.stdout.take()
    }

    /// An error if the process is not running any more.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.0.try_wait()? {
            Some(status) => bail!("it ended with {status}"),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let family = family(self.id());
        if self.0.try_wait()?.is_none() {
            signal(self.id(), Signal::TERM);
        }
        let deadline = Instant::now() + GRACE;
        while self.0.try_wait()?.is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let left = processes();
        // A pid can be given out again; with the moment of its birth it can't be mistaken.
        for (pid, known) in &family {
            if left.get(pid).is_some_and(|found| found.birth == known.birth) {
                eprintln!("process {pid} did not end by itself");
                signal(*pid, Signal::KILL);
            }
        }
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("process {} may still run: {error:#}", self.id());
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // The process may have ended meanwhile, which is what is wanted.
        let _ = kill_process(pid, signal);
    }
}

/// A process as the kernel shows it.
#[derive(Clone, Copy)]
struct Process {
    parent: u32,
    group: u32,
    /// In ticks since boot.
    birth: u64,
}

fn processes() -> BTreeMap<u32, Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything; after it come the state and numbers.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let (parent, group) = (fields.get(1)?.parse().ok()?, fields.get(2)?.parse().ok()?);
        let alive = !matches!(fields[0], "Z" | "X");
        alive.then_some((pid, Process { parent, group, birth: fields.get(19)?.parse().ok()? }))
    })
    .collect()
}

/// A process, its group, and all that descend from them.
fn family(root: u32) -> BTreeMap<u32, Process> {
    let all = processes();
    let mut kin: BTreeMap<u32, Process> =
        all.iter().filter(|(pid, process)| **pid == root || process.group == root).map(|(pid, found)| (*pid, *found)).collect();
    loop {
        let more: Vec<_> = all.iter().filter(|(pid, process)| kin.contains_key(&process.parent) && !kin.contains_key(pid)).collect();
        if more.is_empty() {
            return kin;
        }
        kin.extend(more.into_iter().map(|(pid, found)| (*pid, *found)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_started_is_ended_with_its_children() {
        let log = std::env::temp_dir().join(format!("quorate-bench-test-{}", std::process::id()));
        let mut started = Started::spawn(Command::new("sh").args(["-c", "sleep 600 & wait"]), &log, false).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while family(started.id()).len() < 2 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let kin = family(started.id());
        assert_eq!(kin.len(), 2, "the shell and its sleep");
        started.check().unwrap();
        drop(started);
        let deadline = Instant::now() + Duration::from_secs(10);
        let alive = || {
            let all = processes();
            kin.iter().filter(|(pid, known)| all.get(pid).is_some_and(|found| found.birth == known.birth)).count()
        };
        while alive() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(alive(), 0);
        std::fs::remove_file(log).unwrap();
    }
}
