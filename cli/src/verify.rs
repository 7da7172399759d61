//! `quorate verify`: checks a saved proof with no server.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use ed25519_dalek::VerifyingKey;
use quorate_proof::{Fault, Report};
use serde_json::json;

use crate::exit::{self, Failure};
use crate::output;

/// Check a saved receipt, head, proof or audit bundle, with no server.
///
/// Exit codes: 0 valid, 1 invalid, 2 not readable. Without --key the file is checked against the key that it carries itself:
/// compare the key that is told with the one that the cluster is known by.
#[derive(Args)]
pub struct Verify {
    /// What `receipt get`, the HTTP API or an export made; `-` reads standard input
    file: PathBuf,
    /// The cluster's public key, 64 hex digits: a file that is signed with any other is invalid
    #[arg(long, env = "QUORATE_RECEIPT_PUBLIC_KEY", value_parser = public_key)]
    key: Option<VerifyingKey>,
    /// The content that an attested output speaks of, to be compared with it
    #[arg(long)]
    content: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn public_key(text: &str) -> Result<VerifyingKey, String> {
    let bytes = hex::decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    let bytes = bytes.ok_or("a public key has 64 hex digits")?;
    VerifyingKey::from_bytes(&bytes).map_err(|_| "these bytes are no Ed25519 public key".into())
}

/// More than any export holds.
const FILE_BYTES_MAX: u64 = 1 << 30;

fn contents(file: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes),
        false => std::fs::File::open(file).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)),
    };
    match read {
        Ok(size) if size as u64 > FILE_BYTES_MAX => Err(format!("it has more than {FILE_BYTES_MAX} bytes")),
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

impl Verify {
    fn check(&self) -> Result<Report, Fault> {
        let bytes = contents(&self.file).map_err(Fault::Unreadable)?;
        let report = quorate_proof::verify(&bytes, self.key.as_ref())?;
        if let Some(content) = &self.content {
            let content = contents(content).map_err(|problem| Fault::Unreadable(format!("{}: {problem}", content.display())))?;
            report.check_content(&content)?;
        }
        Ok(report)
    }

    pub fn run(self) -> Result<(), Failure> {
        let found = self.check();
        let pinned = self.key.is_some();
        match found {
            Ok(report) => {
                let trust = match pinned {
                    true => "the key that you named",
                    false => "which the file brought itself: compare it with the cluster's",
                };
                let text =
                    format!("valid: {}\nlog {}\nkey {} ({}), {trust}", report.shows, report.origin, report.key_id, report.public_key);
                output::print(self.json, &json!({ "valid": true, "key_pinned": pinned, "report": report }), &text);
                Ok(())
            }
            Err(fault) => {
                let (code, at) = match &fault {
                    Fault::Unreadable(_) => (exit::USAGE, None),
                    Fault::Invalid { at, .. } => (exit::FAILED, Some(at)),
                };
                let message = format!("{}: {fault}", self.file.display());
                if self.json {
                    println!("{}", json!({ "valid": false, "readable": at.is_some(), "at": at, "error": message, "exit_code": code }));
                } else {
                    eprintln!("quorate: {message}");
                }
                Err(Failure::new(code, ""))
            }
        }
    }
}
