//! The load: a closed loop. Each client sends its next call when the last one is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What one call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// `StoreFact` of a new fact, against a put of a new key
    Store,
    /// A linearizable read of one of [`READ_RECORDS`] records
    Read,
    /// `PunchIn` and `PunchOut`, against lease grant, create-if-absent under the lease, and revoke. One operation is the whole
    Lease,
}

/// Records that the reads choose from.
pub const READ_RECORDS: u64 = 1_000;
/// No call waits longer; one that does is an error.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Connections that the clients share, the same for every system.
pub const CONNECTIONS_MAX: usize = 8;

/// A running cluster.
pub trait System: Sync {
    const NAME: &'static str;
    type Target: Target;
    async fn version(&self) -> anyhow::Result<String>;
    /// The leader as it is now, over enough connections for so many clients.
    async fn aim(&self, clients: usize) -> anyhow::Result<Self::Target>;
    /// The process id of the leader.
    async fn leader_pid(&self) -> anyhow::Result<u32>;
}

/// The leader, and how to call it.
pub trait Target: Clone + Send + Sync + 'static {
    /// Does one operation. `client` is the loop's number and `n` was never given before; `value` is what it writes.
    fn call(&self, work: Work, client: usize, n: u64, value: String) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Writes record number `n` for the reads.
    fn prepare_record(&self, n: u64, value: String) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Log fsyncs of the leader since it started, as it counts them itself.
    fn log_fsyncs(&self) -> impl Future<Output = anyhow::Result<u64>> + Send;
}

/// What one cell gave in one turn.
#[derive(Clone, Debug)]
pub struct Sample {
    pub seconds: f64,
    /// Of every operation that ended inside the measured time, in µs, sorted.
    pub latencies_us: Vec<u32>,
    pub errors: u64,
    pub first_error: Option<String>,
    pub log_fsyncs: u64,
}

static SEQUENCE: AtomicU64 = AtomicU64::new(1);

/// Writes what the work needs to find.
pub async fn prepare<S: System>(system: &S, work: Work, value_bytes: u64) -> anyhow::Result<()> {
    if work != Work::Read {
        return Ok(());
    }
    let target = system.aim(16).await?;
    let next = Arc::new(AtomicU64::new(0));
    let mut writers: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for _ in 0..16 {
        let (target, next) = (target.clone(), next.clone());
        writers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= READ_RECORDS {
                    return Ok(());
                }
                target.prepare_record(n, value(n, value_bytes)).await?;
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done?.with_context(|| format!("cannot write the records that {} shall read", S::NAME))?;
    }
    Ok(())
}

/// Runs one cell.
pub async fn run<S: System>(
    target: &S::Target,
    work: Work,
    clients: usize,
    value_bytes: u64,
    warm_up: Duration,
    seconds: u64,
) -> anyhow::Result<Sample> {
    let from = Instant::now() + warm_up;
    let until = from + Duration::from_secs(seconds);
    let mut loops = JoinSet::new();
    for client in 0..clients {
        loops.spawn(closed_loop(target.clone(), work, client, value_bytes, from, until));
    }
    tokio::time::sleep_until(from).await;
    let fsyncs_before = target.log_fsyncs().await?;
    tokio::time::sleep_until(until).await;
    let log_fsyncs = target.log_fsyncs().await?.saturating_sub(fsyncs_before);
    let seconds = seconds as f64;
    let mut sample = Sample { seconds, latencies_us: Vec::new(), errors: 0, first_error: None, log_fsyncs };
    while let Some(done) = loops.join_next().await {
        let (latencies, errors, first_error) = done?;
        sample.latencies_us.extend(latencies);
        sample.errors += errors;
        sample.first_error = sample.first_error.or(first_error);
    }
    sample.latencies_us.sort_unstable();
    Ok(sample)
}

async fn closed_loop(
    target: impl Target,
    work: Work,
    client: usize,
    value_bytes: u64,
    from: Instant,
    until: Instant,
) -> (Vec<u32>, u64, Option<String>) {
    let (mut latencies, mut errors, mut first_error) = (Vec::new(), 0, None);
    loop {
        let start = Instant::now();
        if start >= until {
            return (latencies, errors, first_error);
        }
        let n = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let done = tokio::time::timeout(CALL_DEADLINE, target.call(work, client, n, value(n, value_bytes))).await;
        let end = Instant::now();
        match done.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {} s", CALL_DEADLINE.as_secs()))) {
            Ok(()) if (from..until).contains(&end) => {
                latencies.push(u32::try_from((end - start).as_micros()).unwrap_or(u32::MAX));
            }
            Ok(()) => {}
            Err(error) => {
                errors += 1;
                first_error.get_or_insert_with(|| format!("{error:#}"));
                // A cluster without a leader refuses at once; asking it in a hot loop would measure nothing else.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Text that does not compress, another one for each `n`.
fn value(n: u64, bytes: u64) -> String {
    let mut state = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[(state >> 58) as usize])
    };
    (0..bytes).map(|_| letter()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_differ_and_have_their_size() {
        assert_eq!(super::value(1, 256).len(), 256);
        assert_ne!(super::value(1, 256), super::value(2, 256));
    }
}
