//! Does the leader's log reach the disk? Looked at from outside, with `strace`, under load but outside of any measured cell.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::process::Command;

use crate::load::{self, System, Work};

/// What was seen of one leader.
#[derive(Clone, Debug, Serialize)]
pub struct FsyncSeen {
    pub system: String,
    /// Calls by name in the watched time, or why nobody could look.
    pub calls: Result<Vec<(String, u64)>, String>,
    /// What the leader itself counted in the measured part of that time.
    pub counted: u64,
    pub acked: usize,
}

const CLIENTS: usize = 16;
const SECONDS: u64 = 2;
/// The ways to make a write durable: a call of its own, or a flag of the write.
const CALLS: &str = "trace=fsync,fdatasync,sync_file_range,msync,pwritev2,io_uring_enter";

impl FsyncSeen {
    /// Whether both looks agree that syncs happened; `None` if only the leader's own count is there.
    pub fn confirmed(&self) -> Option<bool> {
        let calls = self.calls.as_ref().ok()?;
        Some(self.counted > 0 && calls.iter().any(|(_, count)| *count > 0))
    }

    pub fn line(&self) -> String {
        let Self { system, counted, acked, .. } = self;
        let seen = match &self.calls {
            Ok(calls) if calls.is_empty() => "strace saw none".into(),
            Ok(calls) => calls.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", "),
            Err(reason) => format!("not looked at from outside: {reason}"),
        };
        format!("{system}: {seen}; {counted} log fsyncs by its own count, for {acked} acknowledged writes")
    }
}

/// Watches the leader for a moment while it stores.
pub async fn watch<S: System>(system: &S, value_bytes: u64) -> anyhow::Result<FsyncSeen> {
    let target = system.aim(CLIENTS).await?;
    let pid = system.leader_pid().await?;
    let summary = std::env::temp_dir().join(format!("quorate-bench-strace-{}", std::process::id()));
    let (calls, sample) = tokio::join!(
        strace(pid, &summary),
        load::run::<S>(&target, Work::Store, CLIENTS, value_bytes, Duration::from_millis(500), SECONDS)
    );
    // Absent when strace could not start.
    let _ = std::fs::remove_file(&summary);
    let sample = sample.context("the load under strace failed")?;
    Ok(FsyncSeen { system: S::NAME.into(), calls, counted: sample.log_fsyncs, acked: sample.latencies_us.len() })
}

async fn strace(pid: u32, summary: &Path) -> Result<Vec<(String, u64)>, String> {
    let seconds = (SECONDS + 1).to_string();
    let mut command = Command::new("timeout");
    command.args(["--signal=INT", "--kill-after=5", &seconds, "strace", "-f", "-c", "-e", CALLS, "-o"]).arg(summary);
    let done = command.args(["-p", &pid.to_string()]).kill_on_drop(true).output().await.map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(summary).unwrap_or_default();
    if !text.contains("syscall") && !done.stderr.is_empty() {
        let told = String::from_utf8_lossy(&done.stderr);
        let reason = told.lines().find(|line| line.contains("failed") || line.contains("ermi") || line.contains("No such"));
        if let Some(reason) = reason {
            return Err(reason.trim().into());
        }
    }
    Ok(parse(&text))
}

/// Reads the table of `strace -c`: the fourth column is the number of calls, the last one the name.
fn parse(text: &str) -> Vec<(String, u64)> {
    let rows = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = *fields.last()?;
        let count = fields.get(3)?.parse().ok()?;
        (fields[0].parse::<f64>().is_ok() && name != "total").then(|| (name.to_string(), count))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_summary_of_strace_is_read() {
        let text = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
100.00    0.012000          12      1000         3 fdatasync
------ ----------- ----------- --------- --------- ----------------
100.00    0.012000          12      1000         3 total
";
        assert_eq!(super::parse(text), [("fdatasync".to_string(), 1000)]);
    }
}
