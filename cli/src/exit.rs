//! How a verb ends: stable exit codes, so that scripts need not read text.

use std::process::ExitCode;

/// Why a verb did not do its work.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

/// Refused by a rule, or failed for a reason that trying again won't change.
pub const FAILED: u8 = 1;
/// The command line was wrong; clap uses the same number.
pub const USAGE: u8 = 2;
/// Nobody answered, or there is no leader now.
pub const UNAVAILABLE: u8 = 3;
/// A node's engine stopped (sysexits' EX_SOFTWARE): look at its log before starting it again.
pub const ENGINE_STOPPED: u8 = 70;
/// A node's data directory or configuration was refused (sysexits' EX_CONFIG): starting it again can't help.
pub const CONFIG: u8 = 78;

impl Failure {
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
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
    if json {
        println!("{}", serde_json::json!({"ok": false, "error": failure.message, "exit_code": failure.code}));
    }
    ExitCode::from(failure.code)
}
