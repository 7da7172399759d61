//! Server-sent events, read out of chunks that end anywhere.

/// One event: its name and its id, if it has them, and its data.
#[derive(Debug, PartialEq)]
pub struct Event {
    pub name: Option<String>,
    pub id: Option<String>,
    pub data: String,
}

#[derive(Default)]
pub struct Events {
    buffer: Vec<u8>,
}

impl Events {
    /// The events that are whole with this chunk. Comments are left out.
    pub fn take(&mut self, chunk: &[u8]) -> Vec<Event> {
        self.buffer.extend(chunk.iter().filter(|byte| **byte != b'\r'));
        let mut found = Vec::new();
        while let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&event);
            let field = |name: &'static str| {
                let values = text.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(':'));
                values.map(|value| value.strip_prefix(' ').unwrap_or(value))
            };
            let data: Vec<&str> = field("data").collect();
            if !data.is_empty() {
                let (name, id) = (field("event").next_back().map(String::from), field("id").next_back().map(String::from));
                found.push(Event { name, id, data: data.join("\n") });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_in_chunks_that_end_anywhere() {
        let text = "event: message\r\nid: 7.0\r\ndata: {\"a\":\"\u{fc}\"}\r\n\r\n: keep-alive\n\ndata: 1\ndata: 2\n\n".as_bytes();
        for size in 1..text.len() {
            let mut events = Events::default();
            let found: Vec<Event> = text.chunks(size).flat_map(|chunk| events.take(chunk)).collect();
            let first = Event { name: Some("message".into()), id: Some("7.0".into()), data: "{\"a\":\"\u{fc}\"}".into() };
            assert_eq!(found, [first, Event { name: None, id: None, data: "1\n2".into() }], "{size}");
        }
    }
}
