//! What a run came to: every promise, every fault that was to be tried, and the figures.
//!
//! Three words: *violation* if a promise was broken, whatever else; *inconclusive* if none was and something was not tried or not
//! decided; *pass* otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use super::nemesis::{Fault, Nemesis};
use super::watch::Sight;
use crate::history::{Event, Moment, Operation, Outcome};
use crate::order;
use crate::verdict::{self, Property};

/// Everything that was recorded.
#[derive(Default)]
pub struct Run {
    pub seed: u64,
    pub command: String,
    pub nemeses: Vec<Nemesis>,
    pub events: Vec<Event>,
    pub faults: Vec<Fault>,
    pub sights: Vec<Sight>,
    pub has_rivals: bool,
    pub has_operators: bool,
    /// On somebody else's cluster.
    pub is_guest: bool,
}

impl Run {
    /// Moment, term and node of every change of leader; node 0 when there was none.
    pub fn leaders(&self) -> Vec<(Moment, u64, u64)> {
        let mut found: Vec<(Moment, u64, u64)> = Vec::new();
        for sight in &self.sights {
            let (term, node) = sight.leader.unwrap_or_else(|| (found.last().map_or(0, |last| last.1), 0));
            if found.last().is_none_or(|last| (last.1, last.2) != (term, node)) {
                found.push((sight.at, term, node));
            }
        }
        found
    }

    /// When the last answer came.
    pub fn end(&self) -> Moment {
        self.events.iter().map(|event| event.answered).max().unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Pass,
    Violation,
    Inconclusive,
}

impl Verdict {
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Pass => 0,
            Verdict::Violation => 1,
            Verdict::Inconclusive => 2,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Violation => "violation",
            Verdict::Inconclusive => "inconclusive",
        }
    }
}

/// Something that had to be tried.
#[derive(Clone, Debug, Serialize)]
pub struct Coverage {
    pub name: String,
    /// What it takes to call it tried.
    pub needs: String,
    pub made: usize,
    pub bit: usize,
    /// The first time it bit.
    pub evidence: Option<String>,
}

/// How long answers took; acquisitions, which may queue, are left out.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub verdict: Verdict,
    pub seed: u64,
    pub command: String,
    pub seconds: f64,
    pub operations: usize,
    pub acknowledged_writes: usize,
    pub unknown: usize,
    pub latency: Latency,
    /// The longest time without an acknowledged write.
    pub gap_max_ms: f64,
    /// What was being done to the cluster then.
    pub gap_during: Vec<String>,
    /// How late the latest lease was still seen held, standstills not counted.
    pub lateness_max_ms: f64,
    pub leaders: usize,
    pub properties: Vec<Property>,
    pub coverage: Vec<Coverage>,
}

impl Summary {
    /// Judges a run; `live` is what was found while it ran.
    pub fn of(run: &Run, live: Vec<Property>) -> Self {
        let mut properties = verdict::judge(&run.events);
        properties.extend(live);
        let coverage = coverage(run);
        let is_decided = |property: &Property| property.undecided == 0 && (property.asked_of > 0 || is_out_of_reach(run, property));
        let verdict = if !properties.iter().all(Property::is_kept) {
            Verdict::Violation
        } else if properties.iter().all(is_decided) && coverage.iter().all(|point| point.bit > 0) {
            Verdict::Pass
        } else {
            Verdict::Inconclusive
        };
        let writes = |event: &&Event| event.revision.is_some() && !event.operation.is_read();
        let mut acknowledged: Vec<Moment> = run.events.iter().filter(writes).map(|event| event.answered).collect();
        acknowledged.sort();
        let gap =
            acknowledged.windows(2).max_by_key(|pair| pair[1] - pair[0]).map_or((Moment::ZERO, Moment::ZERO), |pair| (pair[0], pair[1]));
        Self {
            verdict,
            seed: run.seed,
            command: run.command.clone(),
            seconds: run.end().as_secs_f64(),
            operations: run.events.len(),
            acknowledged_writes: acknowledged.len(),
            unknown: run.events.iter().filter(|event| event.outcome == Outcome::Unknown).count(),
            latency: latency(run.events.iter()),
            gap_max_ms: (gap.1 - gap.0).as_secs_f64() * 1_000.0,
            gap_during: during(run, gap),
            lateness_max_ms: order::lateness(&run.events).worst.as_secs_f64() * 1_000.0,
            leaders: run.leaders().iter().filter(|(_, _, node)| *node > 0).count(),
            properties,
            coverage,
        }
    }

    /// The same for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for property in &self.properties {
            let word = match (property.is_kept(), property.undecided, property.asked_of) {
                (false, ..) => "BROKEN",
                (true, 1.., _) => "undecided",
                (true, 0, 0) => "untried",
                (true, 0, _) => "ok",
            };
            let _ = writeln!(text, "{word:<10} {:<32} {:>7} operations", property.name, property.asked_of);
            for finding in property.findings.iter().take(3) {
                let _ = writeln!(text, "           {} {}", finding.object, finding.text);
                for event in &finding.smallest {
                    let (from, to) = (event.sent.as_secs_f64(), event.answered.as_secs_f64());
                    let _ = writeln!(text, "             {from:>10.4} {to:>10.4}  {}", verdict::told(event));
                }
            }
            if property.findings.len() > 3 {
                let _ = writeln!(text, "           and {} more", property.findings.len() - 3);
            }
        }
        for point in &self.coverage {
            let word = if point.bit > 0 { "tried" } else { "UNTRIED" };
            let evidence = point.evidence.clone().unwrap_or_else(|| format!("needs: {}", point.needs));
            let _ = writeln!(text, "{word:<10} {:<32} bit {} of {}: {evidence}", point.name, point.bit, point.made);
        }
        let Latency { p50_ms, p99_ms, max_ms } = self.latency;
        let _ = writeln!(
            text,
            "{} operations in {:.0} s, {} unknown; latency p50 {p50_ms:.0} ms, p99 {p99_ms:.0} ms, max {max_ms:.0} ms; longest gap in acknowledged writes {:.0} ms{}",
            self.operations,
            self.seconds,
            self.unknown,
            self.gap_max_ms,
            if self.gap_during.is_empty() { String::new() } else { format!(", during {}", self.gap_during.join(" and ")) }
        );
        let _ = writeln!(text, "{} (seed {}): {}", self.verdict.word(), self.seed, self.command);
        text
    }
}

/// The faults under way between two moments.
fn during(run: &Run, (from, until): (Moment, Moment)) -> Vec<String> {
    let overlaps = |fault: &&Fault| u128::from(fault.from_us) < until.as_micros() && u128::from(fault.until_us) > from.as_micros();
    run.faults.iter().filter(overlaps).map(|fault| format!("{} ({})", fault.nemesis, fault.detail)).collect()
}

/// What this cast could not try from the start, and says so beside it.
fn is_out_of_reach(run: &Run, property: &Property) -> bool {
    let of_leases = ["linearizable: lease", "mutual exclusion", "monotonic fencing tokens", "no early expiry", "bounded lateness"];
    let of_decisions = ["linearizable: approval", "decided once", "receipts verify"];
    let of_owners = ["one receipt each", "replicas are equal", "membership is kept"];
    let name = property.name.as_str();
    (!run.has_rivals && of_leases.contains(&name))
        || (!run.has_operators && of_decisions.contains(&name))
        || (run.is_guest && of_owners.contains(&name))
        // Leases and decisions alone have receipts.
        || (!run.has_rivals && !run.has_operators && name == "the log of receipts only grows")
}

fn coverage(run: &Run) -> Vec<Coverage> {
    let mut found = Vec::new();
    for nemesis in &run.nemeses {
        let made: Vec<&Fault> = run.faults.iter().filter(|fault| fault.nemesis == *nemesis).collect();
        found.push(Coverage {
            name: nemesis.word().into(),
            needs: nemesis.bites_when().into(),
            made: made.len(),
            bit: made.iter().filter(|fault| fault.evidence.is_some()).count(),
            evidence: made.iter().find_map(|fault| fault.evidence.as_ref().map(|told| format!("{}: {told}", fault.detail))),
        });
    }
    let count = |is_such: fn(&Event) -> bool| run.events.iter().filter(|event| is_such(event)).count();
    let mut point = |name: &str, needs: &str, made: usize, bit: usize| {
        let evidence = (bit > 0).then(|| format!("{bit} times"));
        found.push(Coverage { name: name.into(), needs: needs.into(), made, bit, evidence });
    };
    let saves = count(|event| matches!(event.operation, Operation::Save { expected: Some(_), .. }));
    point("saves that met a change", "two clients saved over one revision", saves, count(|event| event.outcome == Outcome::Changed));
    if run.has_rivals {
        let mut holders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for event in &run.events {
            if let (Operation::Acquire { resource, .. }, Outcome::Granted { .. }) = (&event.operation, &event.outcome) {
                holders.entry(resource).or_default().insert(&event.client);
            }
        }
        let handed = holders.values().filter(|clients| clients.len() > 1).count();
        point("leases that changed hands", "two clients held one resource, one after the other", holders.len(), handed);
        let fenced = count(|event| matches!(event.operation, Operation::StoreUnder { .. }));
        let stale = count(|event| matches!(event.operation, Operation::StoreUnder { .. }) && event.outcome == Outcome::Stale);
        point("writes under a lost lease", "a write with the token of a lost lease was refused", fenced, stale);
    }
    if run.has_rivals && run.has_operators {
        let forced = count(|event| matches!(event.operation, Operation::Force { .. }));
        let ended = count(|event| matches!(event.operation, Operation::Force { .. }) && event.outcome == Outcome::Released);
        point("leases that an operator took", "an operator ended a lease that was held", forced, ended);
    }
    if run.has_operators {
        let decisions = count(|event| matches!(event.operation, Operation::Decide { .. }));
        let lost = count(|event| matches!(event.outcome, Outcome::AlreadyDecided { .. }));
        point("decisions that came second", "two operators decided one approval", decisions, lost);
    }
    found
}

/// Latency of the operations that had an answer, but for acquisitions: those may wait in a queue on purpose.
pub fn latency<'a>(events: impl Iterator<Item = &'a Event>) -> Latency {
    let is_timed = |event: &&Event| event.outcome != Outcome::Unknown && !matches!(event.operation, Operation::Acquire { .. });
    let mut times: Vec<f64> = events.filter(is_timed).map(|event| (event.answered - event.sent).as_secs_f64() * 1_000.0).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1))).copied().unwrap_or(0.0);
    Latency { p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn store(version: u64, value: &str) -> Event {
        let at = Duration::from_millis(version * 10);
        let operation = Operation::Store { name: "n".into(), value: value.into(), request: value.into() };
        Event {
            client: "c".into(),
            operation,
            outcome: Outcome::Stored { version },
            sent: at,
            answered: at,
            revision: None,
            via: Vec::new(),
        }
    }

    fn judged(run: &Run) -> Verdict {
        Summary::of(run, Vec::new()).verdict
    }

    #[test]
    fn a_run_that_tried_nothing_is_inconclusive_and_never_a_pass() {
        assert_eq!(judged(&Run::default()), Verdict::Inconclusive);
        let run = Run { nemeses: vec![Nemesis::KillLeader], events: vec![store(1, "a")], ..Run::default() };
        assert_eq!(judged(&run), Verdict::Inconclusive);
    }

    #[test]
    fn a_broken_promise_is_a_violation_whatever_was_not_tried() {
        let run = Run { nemeses: vec![Nemesis::KillLeader], events: vec![store(1, "a"), store(3, "b")], ..Run::default() };
        assert_eq!(judged(&run), Verdict::Violation);
    }

    #[test]
    fn a_fault_that_did_not_bite_does_not_count() {
        let fault = |evidence: Option<&str>| Fault {
            nemesis: Nemesis::Transfer,
            detail: "node 1 to node 2".into(),
            from_us: 0,
            until_us: 1,
            evidence: evidence.map(str::to_string),
        };
        let of = |faults| coverage(&Run { nemeses: vec![Nemesis::Transfer], faults, ..Run::default() })[0].clone();
        assert_eq!((of(vec![fault(None)]).made, of(vec![fault(None)]).bit), (1, 0));
        assert_eq!((of(vec![fault(None), fault(Some("seen"))]).made, of(vec![fault(None), fault(Some("seen"))]).bit), (2, 1));
    }
}
