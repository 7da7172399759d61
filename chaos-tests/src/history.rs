//! Recording: who asked what when, and what came back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A moment on the recording process's monotonic clock, since the recording began.
pub type Moment = Duration;

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Stores a new version under a name. `request` is the id that a retry repeats.
    Store { name: String, value: String, request: String },
    /// Reads all versions under a name, oldest first.
    Read { name: String },
    /// Takes or renews the lease on a resource.
    Acquire {
        resource: String,
        #[serde(rename = "ttl_us", with = "micros")]
        ttl: Duration,
    },
    /// Gives it back.
    Release { resource: String, token: u64 },
    /// Takes it from its holder, who had it under this token: an operator's act.
    Force { resource: String, token: u64 },
    /// Reads the current version under a name.
    Latest { name: String },
    /// Stores a new version under a name, on condition that the writer still holds the lease with this token.
    StoreUnder { resource: String, token: u64, name: String, value: String },
    /// Reads who holds a resource.
    Check { resource: String },
    /// Writes a session; with `expected` only over that revision, 0 being that of a session that does not exist.
    Save { session: String, value: String, expected: Option<u64> },
    /// Reads it.
    Load { session: String },
    /// Decides an approval.
    Decide { approval: String, approve: bool },
}

/// What it got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Stored {
        version: u64,
    },
    Versions(Vec<String>),
    Granted {
        token: u64,
    },
    Released,
    /// Certain to have had no effect, and nothing is told of the state that it met.
    Refused,
    /// No answer: it may have had its effect, or not.
    Unknown,
    /// The current version and its value; none when there is no version yet.
    Version(Option<(u64, String)>),
    /// Who holds a resource; none when it is free. To an acquisition: who has it instead.
    Holder(Option<String>),
    /// The token is not, or no longer, that of a lease in force.
    Stale,
    Saved {
        revision: u64,
    },
    /// A session's revision and value; none when it does not exist.
    Session(Option<(u64, String)>),
    /// The session has not the expected revision.
    Changed,
    /// This decision was the first.
    Decided {
        approve: bool,
    },
    /// Another one was before, and it was this.
    AlreadyDecided {
        approve: bool,
    },
}

/// One operation with its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub client: String,
    pub operation: Operation,
    pub outcome: Outcome,
    #[serde(rename = "sent_us", with = "micros")]
    pub sent: Moment,
    /// When the answer came. Of an unknown operation: when its client gave up, after which it may still take effect.
    #[serde(rename = "answered_us", serialize_with = "micros::serialize_up", deserialize_with = "micros::deserialize")]
    pub answered: Moment,
    /// Revision of the write, or of the state that was read, where the answer tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The doors it was sent through, one for each attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
}

/// What an answer tells besides its outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub revision: Option<u64>,
    pub via: Vec<String>,
}

impl Operation {
    /// What it is about: a name, resource, session or approval. Operations on different objects do not touch each other, but for
    /// a store under a lease, which is also about the name it writes.
    pub fn object(&self) -> &str {
        match self {
            Operation::Store { name, .. } | Operation::Read { name } | Operation::Latest { name } => name,
            Operation::Acquire { resource, .. }
            | Operation::Release { resource, .. }
            | Operation::Force { resource, .. }
            | Operation::StoreUnder { resource, .. }
            | Operation::Check { resource } => resource,
            Operation::Save { session, .. } | Operation::Load { session } => session,
            Operation::Decide { approval, .. } => approval,
        }
    }

    /// The name and value that a store is for.
    pub fn written(&self) -> Option<(&str, &str)> {
        match self {
            Operation::Store { name, value, .. } | Operation::StoreUnder { name, value, .. } => Some((name, value)),
            _ => None,
        }
    }

    pub fn is_read(&self) -> bool {
        matches!(self, Operation::Read { .. } | Operation::Latest { .. } | Operation::Check { .. } | Operation::Load { .. })
    }
}

/// Times in files are whole microseconds. Answers are rounded up, so that no operation in a file ends before another one that it
/// overlapped.
mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    pub fn serialize_up<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_micros)
    }
}

/// Collects events of many clients.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    events: Mutex<Vec<Event>>,
    open: AtomicU64,
}

/// An operation that was sent and has no answer yet. Dropped without one, it is unknown.
#[derive(Debug)]
pub struct Pending<'a> {
    recorder: &'a Recorder,
    client: String,
    operation: Option<Operation>,
    sent: Moment,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { began: Instant::now(), events: Mutex::default(), open: AtomicU64::new(0) }
    }
}

impl Recorder {
    /// Notes that an operation is about to be sent. To be called before the first byte goes out.
    pub fn send(&self, client: &str, operation: Operation) -> Pending<'_> {
        self.open.fetch_add(1, Ordering::SeqCst);
        Pending { recorder: self, client: client.into(), operation: Some(operation), sent: self.began.elapsed() }
    }

    /// All events so far, by the moment they were sent. Panics if an operation is still open: its place would be missing.
    pub fn history(&self) -> Vec<Event> {
        assert_eq!(self.open.load(Ordering::SeqCst), 0, "operations are still waiting for their answers");
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        events.sort_by_key(|event| event.sent);
        events
    }

    /// How many events so far are such.
    pub fn count(&self, is_such: impl Fn(&Event) -> bool) -> usize {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|event| is_such(event)).count()
    }

    /// The moment that it is now.
    pub fn now(&self) -> Moment {
        self.began.elapsed()
    }

    fn add(&self, client: String, operation: Operation, outcome: Outcome, sent: Moment, told: Told) {
        let Told { revision, via } = told;
        let event = Event { client, operation, outcome, sent, answered: self.began.elapsed(), revision, via };
        // A client that panicked has not touched the events of the others.
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pending<'_> {
    /// Notes the answer. To be called after its last byte came in.
    pub fn answer(self, outcome: Outcome) {
        self.answer_with(outcome, Told::default());
    }

    /// The same, with what the answer tells besides.
    pub fn answer_with(mut self, outcome: Outcome, told: Told) {
        if let Some(operation) = self.operation.take() {
            self.recorder.add(std::mem::take(&mut self.client), operation, outcome, self.sent, told);
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.recorder.add(std::mem::take(&mut self.client), operation, Outcome::Unknown, self.sent, Told::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_without_an_answer_is_unknown() {
        let recorder = Recorder::default();
        recorder.send("mara", Operation::Read { name: "a".into() }).answer(Outcome::Versions(Vec::new()));
        drop(recorder.send("jon", Operation::Read { name: "a".into() }));
        let history = recorder.history();
        let outcomes: Vec<&Outcome> = history.iter().map(|event| &event.outcome).collect();
        assert_eq!(outcomes, [&Outcome::Versions(Vec::new()), &Outcome::Unknown]);
        assert!(history[0].answered >= history[0].sent && history[1].sent >= history[0].answered);
    }

    #[test]
    #[should_panic(expected = "still waiting")]
    fn a_history_with_open_operations_is_not_given_out() {
        let recorder = Recorder::default();
        let _pending = recorder.send("mara", Operation::Read { name: "a".into() });
        recorder.history();
    }
}
