//! Everything that is asked of a history, and the answers: one [`Property`] each, with how much it was asked of.
//!
//! A property that was asked of nothing is not kept, it is *untried*: whoever reads a verdict has to see that.

use std::time::Duration;

use serde::Serialize;

use crate::history::{Event, Operation, Outcome};
use crate::invariant::{self, Violation};
use crate::linear::Linearizability;
use crate::model::{self, Kind};
use crate::order;

/// One thing that is promised, and how the history stands to it.
#[derive(Clone, Debug, Serialize)]
pub struct Property {
    pub name: String,
    /// The promise in a sentence.
    pub promise: &'static str,
    /// Operations that it was asked of.
    pub asked_of: usize,
    /// Objects whose history was too hard to decide.
    pub undecided: usize,
    pub findings: Vec<Finding>,
}

/// One breach.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub object: String,
    pub text: String,
    /// The smallest part of the history that shows it.
    pub smallest: Vec<Event>,
}

/// Events of one object beside which a breach is shown, when nothing smaller was found.
const EVENTS_SHOWN_MAX: usize = 60;

impl Property {
    pub fn new(name: impl Into<String>, promise: &'static str) -> Self {
        Self { name: name.into(), promise, asked_of: 0, undecided: 0, findings: Vec::new() }
    }

    pub fn is_kept(&self) -> bool {
        self.findings.is_empty()
    }

    fn find(&mut self, object: &str, violations: Vec<Violation>, events: &[Event]) {
        for (place, Violation(text)) in violations.into_iter().enumerate() {
            let from = events.len().saturating_sub(EVENTS_SHOWN_MAX);
            // Once for each object.
            let smallest = if place == 0 { events[from..].to_vec() } else { Vec::new() };
            self.findings.push(Finding { object: object.into(), text, smallest });
        }
    }
}

type Rule = (&'static str, &'static str, &'static [Kind], fn(&[Event]) -> Vec<Violation>);

/// The rules that look at one object at a time.
const RULES: &[Rule] = &[
    ("no lost writes", "What was acknowledged is there in every later read.", &[Kind::Chain], invariant::no_lost_writes),
    ("exactly once", "A request has one effect and one answer, however often it was sent.", &[Kind::Chain], invariant::exactly_once),
    ("no reads from thin air", "A read shows only what somebody wrote.", &[Kind::Chain], invariant::no_thin_air_reads),
    ("read your writes", "A client's later reads show what was acknowledged to it.", &[Kind::Chain], order::read_your_writes),
    ("chains only grow", "Of two reads one is the beginning of the other.", &[Kind::Chain], order::chains_only_grow),
    ("mutual exclusion", "A lease has at most one holder.", &[Kind::Lease], |events| invariant::mutual_exclusion(events, Duration::ZERO)),
    ("monotonic fencing tokens", "Each grant has a higher token than the one before.", &[Kind::Lease], invariant::monotonic_fencing_tokens),
    (
        "fenced writes in token order",
        "No two holders' tokens both pass: a write under a lost lease is refused.",
        &[Kind::Lease, Kind::Chain],
        order::fenced_writes_in_token_order,
    ),
    ("no early expiry", "A lease is in force until its time is over or its holder gives it back.", &[Kind::Lease], order::no_early_expiry),
    ("decided once", "An approval has one decision, and everybody is told the same.", &[Kind::Decision], order::decided_once),
];

/// Asks everything of a history.
pub fn judge(history: &[Event]) -> Vec<Property> {
    let objects = model::objects(history);
    let mut found = Vec::new();
    for kind in Kind::ALL {
        let mut property = Property::new(
            format!("linearizable: {}", kind.word()),
            "Some order of the operations that keeps to real time explains every answer.",
        );
        for ((_, object), events) in objects.iter().filter(|((of, _), _)| *of == kind) {
            property.asked_of += events.len();
            match model::check(kind, events) {
                (Linearizability::Linearizable, _) => {}
                (Linearizability::Undecided, _) => property.undecided += 1,
                (Linearizability::Violated { placed, stuck }, smallest) => {
                    let stuck: Vec<String> = stuck.iter().filter_map(|place| smallest.get(*place)).map(told).collect();
                    let text = format!(
                        "{placed} of {} operations can be put in order; then none of these fits: {}",
                        smallest.len(),
                        stuck.join("; ")
                    );
                    property.findings.push(Finding { object: object.to_string(), text, smallest });
                }
            }
        }
        found.push(property);
    }
    for (name, promise, kinds, rule) in RULES {
        let mut property = Property::new(*name, promise);
        for ((_, object), events) in objects.iter().filter(|((of, _), _)| kinds.contains(of)) {
            property.asked_of += events.len();
            property.find(object, rule(events), events);
        }
        found.push(property);
    }
    let mut property =
        Property::new("revisions follow real time", "A later write has a higher revision, and a later read at least as high a one.");
    property.asked_of = history.iter().filter(|event| event.revision.is_some()).count();
    property.find("all objects", order::revisions_follow_real_time(history), &[]);
    found.push(property);
    let lateness = order::lateness(history);
    let mut property =
        Property::new("bounded lateness", "A lease that is over is free soon, not counting the time in which the cluster decided nothing.");
    property.asked_of = lateness.asked_of;
    property.find("all leases", lateness.violations, &[]);
    found.push(property);
    found
}

/// An event in one line: who, what, what came of it. What it is about stands elsewhere.
pub fn told(event: &Event) -> String {
    format!("{} {}: {}", event.client, asked(&event.operation), answered(&event.outcome))
}

/// What was asked, for people.
pub fn asked(operation: &Operation) -> String {
    match operation {
        Operation::Store { value, .. } => format!("store {value}"),
        Operation::Read { .. } => "read all versions".into(),
        Operation::Latest { .. } => "read the last version".into(),
        Operation::Acquire { ttl, .. } => format!("acquire for {ttl:?}"),
        Operation::Release { token, .. } => format!("release token {token}"),
        Operation::Force { token, .. } => format!("take token {token} from its holder"),
        Operation::StoreUnder { token, value, .. } => format!("store {value} under token {token}"),
        Operation::Check { .. } => "look who holds it".into(),
        Operation::Save { value, expected: Some(expected), .. } => format!("save {value} over revision {expected}"),
        Operation::Save { value, expected: None, .. } => format!("save {value}"),
        Operation::Load { .. } => "load".into(),
        Operation::Decide { approve, .. } => if *approve { "approve" } else { "reject" }.into(),
    }
}

/// What came of it, for people.
pub fn answered(outcome: &Outcome) -> String {
    let decision = |approve: &bool| if *approve { "approved" } else { "rejected" };
    match outcome {
        Outcome::Stored { version } => format!("version {version}"),
        Outcome::Versions(versions) => format!("[{}]", versions.join(", ")),
        Outcome::Granted { token } => format!("granted, token {token}"),
        Outcome::Released => "released".into(),
        Outcome::Refused => "no effect".into(),
        Outcome::Unknown => "no answer".into(),
        Outcome::Version(Some((version, value))) => format!("version {version} is {value}"),
        Outcome::Version(None) | Outcome::Session(None) => "nothing there".into(),
        Outcome::Holder(Some(holder)) => format!("held by {holder}"),
        Outcome::Holder(None) => "free".into(),
        Outcome::Stale => "refused, the token is stale".into(),
        Outcome::Saved { revision } => format!("saved as revision {revision}"),
        Outcome::Session(Some((revision, value))) => format!("revision {revision} is {value}"),
        Outcome::Changed => "refused, it has changed".into(),
        Outcome::Decided { approve } => decision(approve).into(),
        Outcome::AlreadyDecided { approve } => format!("was {} before", decision(approve)),
    }
}
