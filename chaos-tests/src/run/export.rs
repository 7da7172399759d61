//! A history as JSON lines, and back. `docs/chaos.md` describes the form.

use std::io::BufRead;

use anyhow::Context;
use serde_json::{Value, json};

use super::outcome::Run;
use crate::history::Event;

const FORMAT: u64 = 1;

/// One line a fact: the run, then its operations by the moment they were sent, then faults and leaders.
pub fn lines(run: &Run) -> String {
    let mut text = String::new();
    let mut add = |kind: &str, mut line: Value| {
        line["kind"] = kind.into();
        text += &line.to_string();
        text.push('\n');
    };
    add("run", json!({"format": FORMAT, "seed": run.seed, "command": run.command, "nemeses": run.nemeses}));
    for event in &run.events {
        add("operation", serde_json::to_value(event).expect("an event has nothing that JSON can't say"));
    }
    for fault in &run.faults {
        add("fault", serde_json::to_value(fault).expect("a fault has nothing that JSON can't say"));
    }
    for (at, term, node) in run.leaders() {
        add("leader", json!({"at_us": at.as_micros() as u64, "term": term, "node": node}));
    }
    text
}

/// The operations of an exported history.
pub fn read(from: impl BufRead) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    for (number, line) in from.lines().enumerate() {
        let wrong = || format!("line {} is no line of a history", number + 1);
        let line: Value = serde_json::from_str(&line?).with_context(wrong)?;
        match line["kind"].as_str() {
            Some("run") => anyhow::ensure!(line["format"] == FORMAT, "the history has format {}, and this reads {FORMAT}", line["format"]),
            Some("operation") => events.push(serde_json::from_value(line).with_context(wrong)?),
            _ => {}
        }
    }
    events.sort_by_key(|event: &Event| event.sent);
    Ok(events)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::history::{Operation, Outcome};

    #[test]
    fn operations_that_overlapped_by_less_than_a_microsecond_still_do_in_the_file() {
        let event = |sent: u64, answered: u64| {
            let (sent, answered) = (Duration::from_nanos(sent), Duration::from_nanos(answered));
            let operation = Operation::Read { name: "n".into() };
            Event { client: "c".into(), operation, outcome: Outcome::Refused, sent, answered, revision: None, via: Vec::new() }
        };
        let run = Run { events: vec![event(1_000, 5_400), event(5_300, 9_000)], ..Run::default() };
        let read = read(lines(&run).as_bytes()).expect("read");
        assert!(read[0].answered > read[1].sent);
    }

    #[test]
    fn a_history_that_was_written_is_read_as_it_was() {
        let event = |sent: u64, operation, outcome| {
            let (sent, answered) = (Duration::from_micros(sent), Duration::from_micros(sent + 7));
            Event { client: "mara".into(), operation, outcome, sent, answered, revision: Some(3), via: vec!["gateway-1".into()] }
        };
        let ttl = Duration::from_secs(2);
        let events = vec![
            event(1, Operation::Acquire { resource: "file://a".into(), ttl }, Outcome::Granted { token: 3 }),
            event(2, Operation::Check { resource: "file://a".into() }, Outcome::Holder(None)),
            event(3, Operation::Load { session: "s".into() }, Outcome::Session(Some((3, "v".into())))),
            event(4, Operation::Decide { approval: "a".into(), approve: true }, Outcome::Unknown),
        ];
        let run = Run { events: events.clone(), ..Run::default() };
        let text = lines(&run);
        assert_eq!(read(text.as_bytes()).expect("read"), events);
        let line = text.lines().nth(1).expect("an operation");
        assert_eq!(
            line,
            r#"{"client":"mara","operation":{"acquire":{"resource":"file://a","ttl_us":2000000}},"outcome":{"granted":{"token":3}},"sent_us":1,"answered_us":8,"revision":3,"via":["gateway-1"],"kind":"operation"}"#
        );
    }
}
