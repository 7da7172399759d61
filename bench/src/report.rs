//! What comes out: one table for people, one JSON object for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::fsync::FsyncSeen;
use crate::load::{Sample, Work};
use crate::machine::Machine;

/// One cell of one system over all its turns.
pub struct Row {
    pub system: String,
    pub work: Work,
    pub clients: usize,
    pub samples: Vec<Sample>,
}

impl Row {
    /// The share `q` of operations took at most so many µs, over all turns; `None` when nothing was answered.
    fn quantile_us(&self, q: f64) -> Option<u32> {
        let mut all: Vec<u32> = self.samples.iter().flat_map(|sample| &sample.latencies_us).copied().collect();
        all.sort_unstable();
        let rank = (q * all.len() as f64).ceil() as usize;
        all.get(rank.saturating_sub(1)).copied()
    }

    fn ops(&self) -> usize {
        self.samples.iter().map(|sample| sample.latencies_us.len()).sum()
    }

    fn seconds(&self) -> f64 {
        self.samples.iter().map(|sample| sample.seconds).sum()
    }

    fn ops_per_second(&self) -> f64 {
        self.ops() as f64 / self.seconds()
    }

    fn errors(&self) -> u64 {
        self.samples.iter().map(|sample| sample.errors).sum()
    }

    fn log_fsyncs(&self) -> u64 {
        self.samples.iter().map(|sample| sample.log_fsyncs).sum()
    }

    fn ops_per_fsync(&self) -> Option<f64> {
        (self.log_fsyncs() > 0).then(|| self.ops() as f64 / self.log_fsyncs() as f64)
    }

    /// The row as the table shows it.
    pub fn line(&self) -> String {
        let ms = |q| self.quantile_us(q).map_or("-".into(), |us| format!("{:.2}", f64::from(us) / 1e3));
        let (work, fsyncs) = (format!("{:?}", self.work).to_lowercase(), self.log_fsyncs() as f64 / self.seconds());
        let batch = self.ops_per_fsync().map_or("-".into(), |batch| format!("{batch:.1}"));
        format!(
            "{work:<6} {:>7}  {:<8} {:>10.0} {:>9} {:>9} {:>9} {:>9.0} {batch:>10} {:>7}",
            self.clients,
            self.system,
            self.ops_per_second(),
            ms(0.5),
            ms(0.99),
            ms(0.999),
            fsyncs,
            self.errors(),
        )
    }

    fn to_json(&self) -> Value {
        let us = |q| self.quantile_us(q);
        let turns: Vec<f64> = self.samples.iter().map(|sample| sample.latencies_us.len() as f64 / sample.seconds).collect();
        json!({
            "system": self.system, "work": self.work, "clients": self.clients,
            "ops_per_second": self.ops_per_second(), "ops_per_second_of_each_turn": turns, "ops": self.ops(),
            "p50_us": us(0.5), "p99_us": us(0.99), "p99_9_us": us(0.999), "max_us": us(1.0),
            "log_fsyncs": self.log_fsyncs(), "ops_per_log_fsync": self.ops_per_fsync(), "errors": self.errors(),
        })
    }
}

/// Everything that a run found.
pub struct Report {
    machine: Machine,
    value_bytes: u64,
    pub versions: BTreeMap<String, String>,
    pub fsyncs: Vec<FsyncSeen>,
    rows: Vec<Row>,
}

impl Report {
    pub fn new(machine: Machine, value_bytes: u64) -> Self {
        Self { machine, value_bytes, versions: BTreeMap::new(), fsyncs: Vec::new(), rows: Vec::new() }
    }

    /// Adds a cell of one turn to those of the turns before.
    pub fn add(&mut self, row: Row) {
        let same = self.rows.iter_mut().find(|known| (&known.system, known.work, known.clients) == (&row.system, row.work, row.clients));
        match same {
            Some(known) => known.samples.extend(row.samples),
            None => self.rows.push(row),
        }
    }

    /// Errors, a cell without an answer, or writes acknowledged without an fsync: such figures are not worth comparing.
    pub fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.errors() > 0 || row.ops() == 0 || row.work != Work::Read && row.log_fsyncs() == 0)
            || self.fsyncs.iter().any(|seen| seen.confirmed() == Some(false))
    }

    /// Pairs of cells that both systems ran, Quorate's first.
    fn pairs(&self) -> impl Iterator<Item = (&Row, &Row)> {
        let of = |name: &'static str| self.rows.iter().filter(move |row| row.system == name);
        of("quorate").flat_map(move |ours| {
            of("etcd").filter(|other| (other.work, other.clients) == (ours.work, ours.clients)).map(move |other| (ours, other))
        })
    }

    pub fn to_json(&self) -> Value {
        let ratios = self.pairs().map(|(ours, other)| {
            json!({"work": ours.work, "clients": ours.clients, "throughput": throughput(ours, other), "p99": p99(ours, other)})
        });
        let ratios: Vec<Value> = ratios.collect();
        json!({
            "machine": self.machine, "value_bytes": self.value_bytes, "versions": self.versions,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "quorate_to_etcd": ratios, "fsync_seen": self.fsyncs, "valid": !self.failed(),
        })
    }
}

fn throughput(ours: &Row, other: &Row) -> Option<f64> {
    (other.ops() > 0).then(|| ours.ops_per_second() / other.ops_per_second())
}

fn p99(ours: &Row, other: &Row) -> Option<f64> {
    Some(f64::from(ours.quantile_us(0.99)?) / f64::from(other.quantile_us(0.99)?))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cores, fdatasync_p50_us, fdatasync_p99_us } = self.machine;
        let versions: Vec<String> = self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        writeln!(
            f,
            "{}; {} bytes a value, fsync on, three processes on loopback, client on the same machine",
            versions.join(", "),
            self.value_bytes
        )?;
        writeln!(f, "{cores} cores; an fdatasync takes {fdatasync_p50_us} µs at the median and {fdatasync_p99_us} µs at p99\n")?;
        writeln!(
            f,
            "{:<6} {:>7}  {:<8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>10} {:>7}",
            "work", "clients", "system", "ops/s", "p50 ms", "p99 ms", "p99.9 ms", "fsyncs/s", "ops/fsync", "errors"
        )?;
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|row| (row.work, row.clients));
        for row in rows {
            writeln!(f, "{}", row.line())?;
        }
        let number = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}x"));
        let mut pairs = self.pairs().peekable();
        if pairs.peek().is_some() {
            writeln!(f, "\nQuorate to etcd: throughput (higher is better), p99 (lower is better)")?;
        }
        for (ours, other) in pairs {
            let work = format!("{:?}", ours.work).to_lowercase();
            writeln!(f, "{work:<6} {:>7}  {:>8} {:>8}", ours.clients, number(throughput(ours, other)), number(p99(ours, other)))?;
        }
        writeln!(f, "\nfsyncs/s are the leader's log; seen from outside while it stored:")?;
        for seen in &self.fsyncs {
            writeln!(f, "{}", seen.line())?;
        }
        let errors = self.rows.iter().filter_map(|row| Some((row, row.samples.iter().find_map(|sample| sample.first_error.as_ref())?)));
        for (row, error) in errors {
            writeln!(f, "{} {:?} with {} clients: {error}", row.system, row.work, row.clients)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, latencies_us: Vec<u32>, log_fsyncs: u64) -> Row {
        let sample = Sample { seconds: 2.0, latencies_us, errors: 0, first_error: None, log_fsyncs };
        Row { system: system.into(), work: Work::Store, clients: 1, samples: vec![sample] }
    }

    #[test]
    fn turns_are_added_up_and_compared() {
        let machine = Machine { cores: 2, fdatasync_p50_us: 1, fdatasync_p99_us: 2 };
        let mut report = Report::new(machine, 256);
        report.add(row("quorate", (1..=100).collect(), 10));
        report.add(row("quorate", (101..=200).collect(), 10));
        report.add(row("etcd", (1..=50).collect(), 50));
        let ours = &report.rows[0];
        assert_eq!((ours.quantile_us(0.5), ours.quantile_us(0.99), ours.ops_per_fsync()), (Some(100), Some(198), Some(10.0)));
        let (ours, other) = report.pairs().next().unwrap();
        assert_eq!(throughput(ours, other), Some(2.0));
        assert!(!report.failed());
    }

    #[test]
    fn writes_without_an_fsync_are_not_valid() {
        let machine = Machine { cores: 2, fdatasync_p50_us: 1, fdatasync_p99_us: 2 };
        let mut report = Report::new(machine, 256);
        report.add(row("quorate", vec![1], 0));
        assert!(report.failed());
    }
}
