//! How often a value fell into which range, since the start of the process; in Prometheus' text form when asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds for durations in µs: from a fast fsync to a disk that hangs.
pub const DURATIONS_US: &[u64] = &[100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];
/// Upper bounds for counts of things that go together.
pub const COUNTS: &[u64] = &[1, 4, 16, 64, 256, 1_024, 4_096];

/// Counts values; takes no lock.
pub struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for what is above all of them.
    buckets: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl Histogram {
    /// `bounds` rise.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    pub fn add(&self, value: u64) {
        self.buckets[self.bounds.partition_point(|bound| *bound < value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// `per_unit` of the counted values make one unit of the metric: 1,000,000 where µs were counted and seconds are shown.
    pub fn exposition(&self, name: &str, help: &str, per_unit: f64) -> String {
        let mut text = format!("# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut below = 0;
        for (bound, bucket) in self.bounds.iter().zip(&self.buckets) {
            below += bucket.load(Relaxed);
            text += &format!("{name}_bucket{{le=\"{}\"}} {below}\n", *bound as f64 / per_unit);
        }
        let count = below + self.buckets[self.bounds.len()].load(Relaxed);
        let sum = self.sum.load(Relaxed) as f64 / per_unit;
        text + &format!("{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_counts_in_every_bucket_that_holds_it() {
        let histogram = Histogram::new(&[1_000, 5_000]);
        for value in [0, 1_000, 1_001, 5_001] {
            histogram.add(value);
        }
        assert_eq!(
            histogram.exposition("h_seconds", "Help.", 1e6),
            "# HELP h_seconds Help.\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"0.001\"} 2\nh_seconds_bucket{le=\"0.005\"} 3\n\
             h_seconds_bucket{le=\"+Inf\"} 4\nh_seconds_sum 0.007002\nh_seconds_count 4\n"
        );
    }
}
