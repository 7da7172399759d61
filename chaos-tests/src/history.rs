//! Recording: who asked what when, and what came back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A moment on the recording process's monotonic clock, since the recording began.
pub type Moment = Duration;

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Stores a new version under a name. `request` is the id that a retry repeats.
    Store { name: String, value: String, request: String },
    /// Reads all versions under a name, oldest first.
    Read { name: String },
    /// Takes or renews the lease on a resource.
    Acquire { resource: String, ttl: Duration },
    /// Gives it back.
    Release { resource: String, token: u64 },
}

/// What it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stored {
        version: u64,
    },
    Versions(Vec<String>),
    Granted {
        token: u64,
    },
    Released,
    /// Refused by a rule: certain to have had no effect.
    Refused,
    /// No answer: it may have had its effect, or not.
    Unknown,
}

/// One operation with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub client: String,
    pub operation: Operation,
    pub outcome: Outcome,
    pub sent: Moment,
    /// When the answer came. Of an unknown operation: when its client gave up, after which it may still take effect.
    pub answered: Moment,
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

    fn add(&self, client: String, operation: Operation, outcome: Outcome, sent: Moment) {
        let event = Event { client, operation, outcome, sent, answered: self.began.elapsed() };
        // A client that panicked has not touched the events of the others.
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pending<'_> {
    /// Notes the answer. To be called after its last byte came in.
    pub fn answer(mut self, outcome: Outcome) {
        if let Some(operation) = self.operation.take() {
            self.recorder.add(std::mem::take(&mut self.client), operation, outcome, self.sent);
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.recorder.add(std::mem::take(&mut self.client), operation, Outcome::Unknown, self.sent);
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
