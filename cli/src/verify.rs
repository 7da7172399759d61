//! `quorate verify`: checks a saved proof with no server.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use ed25519_dalek::VerifyingKey;
use quorate_proof::ring::Ring;
use quorate_proof::{Fault, Report};
use serde_json::json;

use crate::exit::{self, Failure};
use crate::output;

/// Check a saved receipt, head, proof or audit bundle, with no server.
///
/// Several files are also compared with each other: the heads in them have to be of one history, linked by proofs of consistency among
/// the files. Exit codes: 0 valid, 1 invalid, 2 not readable. Without --key and --ring a file is checked against the key that it
/// carries itself: compare the key that is told with the one that the cluster is known by.
#[derive(Args)]
pub struct Verify {
    /// What `receipt get`, the HTTP API or an export made; `-` reads standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// A public key of the cluster, 64 hex digits: a file that is signed with any other, and that --ring does not lead to, is invalid
    #[arg(long, env = "QUORATE_RECEIPT_PUBLIC_KEY", value_parser = public_key)]
    key: Option<VerifyingKey>,
    /// The ring of keys as saved from /v1/log/keys or `quorate key list --json`: with --key, earlier and later keys that it leads to
    /// are trusted too; without, all in it. Cosignatures have to be by nodes of the ring
    #[arg(long, value_name = "FILE")]
    ring: Option<PathBuf>,
    /// So many nodes have to have cosigned every head file
    #[arg(long, value_name = "N")]
    cosigners: Option<usize>,
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
    /// What each file shows, or the first fault with its file.
    fn check(&self) -> Result<Vec<Report>, (usize, Fault)> {
        let mut files = Vec::new();
        for (n, path) in self.files.iter().enumerate() {
            files.push(contents(path).map_err(|problem| (n, Fault::Unreadable(problem)))?);
        }
        let ring = self.ring.as_deref().map(|path| {
            let read = contents(path).and_then(|bytes| Ring::read(&bytes));
            read.map_err(|problem| (0, Fault::Unreadable(format!("{}: {problem}", path.display()))))
        });
        let ring = ring.transpose()?;
        let pinned = self.key.as_ref().filter(|_| ring.is_none());
        let reports = quorate_proof::verify_together(&files, pinned)?;
        for (n, report) in reports.iter().enumerate() {
            if let Some(ring) = &ring {
                self.check_ring(ring, report).map_err(|fault| (n, fault))?;
            }
            let (has, wants) = (report.cosigned_by.len(), self.cosigners.unwrap_or(0));
            if has < wants {
                return Err((
                    n,
                    Fault::Invalid { at: "cosigners".into(), problem: format!("{has} nodes have cosigned it, and not {wants}") },
                ));
            }
        }
        if let Some(path) = &self.content {
            let content = contents(path).map_err(|problem| (0, Fault::Unreadable(format!("{}: {problem}", path.display()))))?;
            reports[0].check_content(&content).map_err(|fault| (0, fault))?;
        }
        Ok(reports)
    }

    fn check_ring(&self, ring: &Ring, report: &Report) -> Result<(), Fault> {
        let pinned: Vec<VerifyingKey> = self.key.into_iter().collect();
        let is_trusted = ring.receipt_keys(&pinned).iter().any(|key| hex::encode(key.as_bytes()) == report.public_key);
        if !is_trusted {
            let problem = format!("it is the key `{}`, which the ring does not lead to from what you trust", report.key_id);
            return Err(Fault::Invalid { at: "public_key".into(), problem });
        }
        let known = ring.cosigner_keys();
        match report.cosigned_by.iter().position(|by| !known.contains(&by.verifier_key)) {
            None => Ok(()),
            Some(n) => Err(Fault::Invalid { at: format!("cosigners[{n}]"), problem: "its key is no node's of the ring".into() }),
        }
    }

    pub fn run(self) -> Result<(), Failure> {
        let trust = match (self.key.is_some(), self.ring.is_some()) {
            (true, false) => "the key that you named",
            (_, true) => "which your ring of keys leads to",
            (false, false) => "which the file brought itself: compare it with the cluster's",
        };
        match self.check() {
            Ok(reports) => {
                let told = |report: &Report| {
                    let key = format!("key {} ({}), {trust}", report.key_id, report.public_key);
                    let cosigned = report.cosigned_by.iter().map(|by| format!("\ncosigned by {} at {}", by.name, by.at_unix_s));
                    format!("valid: {}\nlog {}\n{key}{}", report.shows, report.origin, cosigned.collect::<String>())
                };
                let text: Vec<String> = reports.iter().map(told).collect();
                let mut json = json!({ "valid": true, "key_pinned": self.key.is_some() || self.ring.is_some(), "report": reports[0] });
                if reports.len() > 1 {
                    json["reports"] = json!(reports);
                }
                output::print(self.json, &json, &text.join("\n"));
                Ok(())
            }
            Err((n, fault)) => {
                let (code, at) = match &fault {
                    Fault::Unreadable(_) => (exit::USAGE, None),
                    Fault::Invalid { at, .. } => (exit::FAILED, Some(at)),
                };
                let file = self.files[n].display().to_string();
                let message = format!("{file}: {fault}");
                if self.json {
                    let readable = at.is_some();
                    println!(
                        "{}",
                        json!({ "valid": false, "readable": readable, "file": file, "at": at, "error": message, "exit_code": code })
                    );
                } else {
                    eprintln!("quorate: {message}");
                }
                Err(Failure::new(code, ""))
            }
        }
    }
}
