//! Counters of the front door, in Prometheus' text form.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::call::Outcome;
use crate::rates::{Lane, Rates, Whose};
use crate::registry::Catalog;

/// Upper bounds of the latency buckets, in microseconds.
const BUCKETS_US: [u64; 13] = [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000, 30_000_000];

/// The calls of one tool.
#[derive(Default)]
pub struct Calls {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    buckets: [AtomicU64; BUCKETS_US.len()],
    sum_us: AtomicU64,
}

impl Calls {
    pub fn count(&self, outcome: Outcome, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
        if let Some(bucket) = BUCKETS_US.iter().position(|&bound| took <= bound) {
            self.buckets[bucket].fetch_add(1, Relaxed);
        }
        self.sum_us.fetch_add(took, Relaxed);
    }
}

/// What happens between gateway and nodes.
#[derive(Default)]
pub struct Retries {
    /// Attempts of a write after the first.
    pub propose: AtomicU64,
    /// Attempts of a read after the first.
    pub read: AtomicU64,
    /// Times another leader was seen.
    pub leader_changes: AtomicU64,
}

/// What becomes of clients' connections.
#[derive(Default)]
pub struct Connections {
    pub open: AtomicUsize,
    /// Closed as they came, because there were too many.
    pub refused: AtomicU64,
    /// Closed because nobody spoke on them in time, or to make room for one that did.
    pub closed: AtomicU64,
}

/// The page of `/metrics`.
pub fn page(catalog: &Catalog, retries: &Retries, connections: &Connections, rates: &Rates) -> String {
    let mut page = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        // Writing into a String does not fail.
        let _ = page.write_fmt(text);
        page.push('\n');
    };
    line(format_args!("# HELP quorate_gateway_calls_total Tool calls by outcome."));
    line(format_args!("# TYPE quorate_gateway_calls_total counter"));
    for entry in catalog.entries() {
        for outcome in Outcome::ALL {
            let count = entry.calls.outcomes[outcome as usize].load(Relaxed);
            line(format_args!("quorate_gateway_calls_total{{tool=\"{}\",outcome=\"{}\"}} {count}", entry.name, outcome.word()));
        }
    }
    line(format_args!("# HELP quorate_gateway_call_seconds Time of tool calls, retries included."));
    line(format_args!("# TYPE quorate_gateway_call_seconds histogram"));
    for entry in catalog.entries() {
        let mut below = 0;
        for (bound, bucket) in BUCKETS_US.iter().zip(&entry.calls.buckets) {
            below += bucket.load(Relaxed);
            let bound = *bound as f64 / 1e6;
            line(format_args!("quorate_gateway_call_seconds_bucket{{tool=\"{}\",le=\"{bound}\"}} {below}", entry.name));
        }
        let count: u64 = entry.calls.outcomes.iter().map(|count| count.load(Relaxed)).sum();
        line(format_args!("quorate_gateway_call_seconds_bucket{{tool=\"{}\",le=\"+Inf\"}} {count}", entry.name));
        line(format_args!("quorate_gateway_call_seconds_sum{{tool=\"{}\"}} {}", entry.name, entry.calls.sum_us.load(Relaxed) as f64 / 1e6));
        line(format_args!("quorate_gateway_call_seconds_count{{tool=\"{}\"}} {count}", entry.name));
    }
    for (name, help, counter) in [
        ("propose_retries", "Attempts of a write after the first.", &retries.propose),
        ("read_retries", "Attempts of a read after the first.", &retries.read),
        ("leader_changes", "Times another leader was seen.", &retries.leader_changes),
        ("connections_refused", "Connections closed as they came, because there were too many.", &connections.refused),
        ("connections_timed_out", "Connections closed because nobody spoke on them in time.", &connections.closed),
    ] {
        line(format_args!("# HELP quorate_gateway_{name}_total {help}"));
        line(format_args!("# TYPE quorate_gateway_{name}_total counter"));
        line(format_args!("quorate_gateway_{name}_total {}", counter.load(Relaxed)));
    }
    line(format_args!("# HELP quorate_gateway_calls_rate_limited_total Calls refused because their tenant or passport made too many."));
    line(format_args!("# TYPE quorate_gateway_calls_rate_limited_total counter"));
    for (lane, whose) in Lane::ALL.into_iter().flat_map(|lane| Whose::ALL.map(|whose| (lane, whose))) {
        let (count, lane, whose) = (rates.refused(lane, whose), lane.word(), whose.word());
        line(format_args!("quorate_gateway_calls_rate_limited_total{{lane=\"{lane}\",whose=\"{whose}\"}} {count}"));
    }
    line(format_args!("# HELP quorate_gateway_connections Open connections of clients."));
    line(format_args!("# TYPE quorate_gateway_connections gauge"));
    line(format_args!("quorate_gateway_connections {}", connections.open.load(Relaxed)));
    page
}
