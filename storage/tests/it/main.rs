//! The storage as a node uses it, also across crashes.

mod log;
mod snapshot;
mod state;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What is in `from` at this moment, as a killed process would leave it.
fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The directory given to a process that is there to be killed; `None` in the test itself.
fn victims_dir() -> Option<std::path::PathBuf> {
    std::env::var_os("QUORATE_VICTIM_DIR").map(Into::into)
}

/// Runs the test `name` of this binary once more, as a victim that works in `dir` and reports numbers line by line; kills it
/// when `enough` says so, and returns the last number reported before that.
fn kill_when(name: &str, dir: &Path, enough: impl Fn(u64) -> bool) -> u64 {
    let this = std::env::current_exe().unwrap();
    let mut victim: Child =
        Command::new(this).args([name, "--exact", "--nocapture"]).env("QUORATE_VICTIM_DIR", dir).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut reports = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("done ")?.parse().ok());
    let last = reports.find(|&number| enough(number)).expect("the victim reports until it is killed");
    victim.kill().unwrap();
    victim.wait().unwrap();
    // What it reported between the decision and its death counts too.
    reports.last().unwrap_or(last)
}

/// Files below a directory that hold the bytes of a text.
fn files_with(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if fs::read(&path).unwrap().windows(text.len()).any(|window| window == text.as_bytes()) {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found
}
