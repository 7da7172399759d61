//! What a verb prints: one JSON object, or text for people.

use std::io::{ErrorKind, Write};

/// Prints `json` as one line when asked for, else `text`.
pub fn print(as_json: bool, json: &serde_json::Value, text: &str) {
    if as_json {
        line(&json.to_string())
    } else {
        line(text.trim_end())
    };
}

/// Prints a line. False: whoever reads has seen enough, and went away.
pub fn line(text: &str) -> bool {
    self::text(&format!("{text}\n"))
}

/// Prints a text as it is. False: whoever reads has seen enough, and went away.
///
/// An answer that can't be written for another reason must not look like a shorter one, so that ends the process.
pub fn text(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
        Err(error) => {
            eprintln!("quorate: cannot write the answer: {error}");
            std::process::exit(crate::exit::FAILED.into());
        }
    }
}
