//! How a verb ends: stable exit codes, so that scripts need not read text.

use std::process::ExitCode;

/// Why a verb did not do its work.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
    /// What a program needs besides: `code`, `retryable`, `wrote` and `data` of a gateway's error.
    pub facts: serde_json::Map<String, serde_json::Value>,
    /// It was asked for as JSON.
    pub as_json: bool,
}

/// Refused by a rule, or failed for a reason that trying again won't change.
pub const FAILED: u8 = 1;
/// The command line was wrong; clap uses the same number.
pub const USAGE: u8 = 2;
/// Nobody answered, or there is no leader now.
pub const UNAVAILABLE: u8 = 3;
/// A node's engine or a gateway stopped (sysexits' EX_SOFTWARE): look at its log before starting it again.
pub const ENGINE_STOPPED: u8 = 70;
/// A data directory, an address or the configuration was refused (sysexits' EX_CONFIG): starting it again can't help.
pub const CONFIG: u8 = 78;

impl Failure {
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), facts: serde_json::Map::new(), as_json: false }
    }

    pub fn with_facts(mut self, facts: impl IntoIterator<Item = (String, serde_json::Value)>) -> Self {
        self.facts.extend(facts);
        self
    }

    /// To be told as JSON too, if `as_json`.
    pub fn in_json(self, as_json: bool) -> Self {
        Self { as_json, ..self }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(FAILED, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(UNAVAILABLE, message)
    }

    pub fn config(message: impl Into<String>) -> Self {
        Self::new(CONFIG, message)
    }
}

impl Failure {
    fn json(&self) -> serde_json::Value {
        let mut json = serde_json::json!({"ok": false, "error": self.message, "exit_code": self.code});
        if let Some(json) = json.as_object_mut() {
            json.extend(self.facts.clone());
        }
        json
    }
}

/// A command line that clap refuses, said like any other failure: with `--json` also as JSON.
pub fn usage(error: &clap::Error, arguments: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    // Help and the version are no failures, and clap knows where they go.
    let said = error.print();
    if error.use_stderr() && arguments.into_iter().any(|argument| argument == "--json") {
        let text = error.to_string();
        let message = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
        println!("{}", Failure::usage(message).json());
    }
    match said {
        // Whoever reads has seen enough of the help.
        Err(gone) if gone.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::from(FAILED),
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE)),
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::failed(format!("{error:#}"))
    }
}

/// Says why on standard error, and with `--json` also as one object on standard output.
pub fn report(failure: Failure, json: bool) -> ExitCode {
    if failure.message.is_empty() {
        // The verb has said all there is to say.
        return ExitCode::from(failure.code);
    }
    eprintln!("quorate: {}", failure.message);
    if json || failure.as_json {
        println!("{}", failure.json());
    }
    ExitCode::from(failure.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_failure_holds_what_a_program_acts_on() {
        let facts = [("code".to_string(), "HELD".into()), ("retryable".to_string(), true.into())];
        let json = Failure::failed("held").with_facts(facts).json();
        assert_eq!(json, serde_json::json!({"ok": false, "error": "held", "exit_code": 1, "code": "HELD", "retryable": true}));
    }
}
