//! What happened, line by line: the same lines for the same seed.

use std::sync::{Arc, Mutex, PoisonError};

use super::process;

/// Clones write into the same journal.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<Inner>>);

struct Inner {
    hasher: blake3::Hasher,
    lines: u64,
    /// Also to standard output.
    prints: bool,
    violations: Vec<String>,
}

impl Journal {
    pub fn new(prints: bool) -> Self {
        Self(Arc::new(Mutex::new(Inner { hasher: blake3::Hasher::new(), lines: 0, prints, violations: Vec::new() })))
    }

    pub fn say(&self, who: &str, what: impl AsRef<str>) {
        let at = process::elapsed();
        let line = format!("{:>4}.{:03} {who:<8} {}", at.as_secs(), at.subsec_millis(), what.as_ref());
        let mut inner = self.lock();
        inner.hasher.update(line.as_bytes()).update(b"\n");
        inner.lines += 1;
        if inner.prints {
            println!("{line}");
        }
    }

    /// Something that must not be.
    pub fn violation(&self, what: impl AsRef<str>) {
        self.say("VIOLATION", what.as_ref());
        self.lock().violations.push(what.as_ref().to_owned());
    }

    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Lines so far, and a hash over all of them.
    pub fn sum(&self) -> (u64, String) {
        let inner = self.lock();
        (inner.lines, inner.hasher.finalize().to_hex()[..16].to_owned())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
