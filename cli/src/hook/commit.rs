//! Git's hooks, and the same check for a range of commits in a CI: the last lines, for edits that no host told of.
//!
//! Nothing is leased here. What another holds is refused with its name, and git's own exit code for that is 1.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use quorate_gateway::hook::{Decision, Guard, Moment, Names, Verdict};

use super::settings::Settings;
use super::{ask, journal, place};
use crate::exit::Failure;

const WITHIN: Duration = Duration::from_secs(3);
/// Names of one question.
const NAMES_AT_ONCE: usize = 250;
/// A ref that does not exist, as git writes it.
const NOTHING: char = '0';

/// Git's hook before a push: refuse one that changes what another holds.
#[derive(Args)]
pub struct PrePush {
    /// What git adds: the remote's name and URL
    arguments: Vec<String>,
}

fn git(words: &[&str]) -> Result<String, Failure> {
    let done = Command::new("git").args(words).output().map_err(|error| Failure::failed(format!("git can't be run: {error}")))?;
    if !done.status.success() {
        return Err(Failure::failed(format!("git {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr).trim())));
    }
    String::from_utf8(done.stdout).map_err(|_| Failure::failed("git names a file that is not UTF-8, which no resource can be"))
}

fn root() -> Result<PathBuf, Failure> {
    Ok(git(&["rev-parse", "--show-toplevel"])?.trim_end_matches('\n').into())
}

/// Files that differ, both names of a renamed one.
fn changed(words: &[&str]) -> Result<Vec<String>, Failure> {
    let listed = git(&[&["diff", "--name-only", "-z", "--no-renames"], words].concat())?;
    Ok(listed.split('\0').filter(|name| !name.is_empty()).map(String::from).collect())
}

pub fn pre_commit() -> Result<(), Failure> {
    let root = root()?;
    let paths = changed(&["--cached"])?;
    judge(&root, &paths, "commit", None)
}

impl PrePush {
    pub fn run(self) -> Result<(), Failure> {
        let root = root()?;
        let remote = self.arguments.first().map_or("origin", String::as_str);
        let mut paths = Vec::new();
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| Failure::failed(format!("what git sends can't be read: {error}")))?;
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, there] = fields[..] else { continue };
            let is_nothing = |id: &str| id.chars().all(|c| c == NOTHING);
            if is_nothing(local) {
                continue;
            }
            if is_nothing(there) {
                // A new branch: what no branch of the remote has yet.
                let not_there = format!("--remotes={remote}");
                let listed = git(&["log", "--format=", "--name-only", "-z", "--no-renames", local, "--not", &not_there])?;
                paths.extend(listed.split(['\0', '\n']).filter(|name| !name.is_empty()).map(String::from));
            } else {
                paths.extend(changed(&[there, local])?);
            }
        }
        judge(&root, &paths, "push", None)
    }
}

/// `quorate guard ci RANGE`.
pub fn range(range: &str, passport: Option<&str>) -> Result<usize, Failure> {
    let root = root()?;
    if range.starts_with('-') {
        return Err(Failure::usage(format!("`{range}` is no range of commits, such as main...HEAD")));
    }
    let paths = changed(&[range, "--"])?;
    let settings = Settings::of(&root);
    let verdict = ask_about(&settings, &place::in_repository(&root, &paths), passport).map_err(Failure::unavailable)?;
    told(verdict, "range")?;
    Ok(paths.len())
}

fn judge(root: &Path, paths: &[String], what: &str, passport: Option<&str>) -> Result<(), Failure> {
    if paths.is_empty() {
        return Ok(());
    }
    let settings = Settings::of(root);
    let names = place::in_repository(root, paths);
    match ask_about(&settings, &names, passport) {
        Ok(verdict) => {
            journal::send_later(&settings);
            told(verdict, what)
        }
        Err(why) => {
            let closed = settings.closed_paths.iter().find(|closed| paths.iter().any(|path| Path::new(path).starts_with(closed)));
            if settings.closed || closed.is_some() {
                return Err(Failure::failed(format!("{why}. The {what} is refused: the policy is closed here")));
            }
            let host = quorate_gateway::hook::Host::ClaudeCode;
            let noted = match journal::note(&settings, host, None, &names, &format!("{what}: {why}")) {
                Ok(path) => format!("noted in {}", path.display()),
                Err(error) => format!("and could not even be noted: {error}"),
            };
            eprintln!("quorate: {why}. The {what} goes on unguarded (policy open), {noted}.");
            Ok(())
        }
    }
}

fn told(verdict: Verdict, what: &str) -> Result<(), Failure> {
    match verdict.decision {
        Decision::Deny => Err(Failure::failed(format!("the {what} changes what another holds. {}", verdict.text))),
        Decision::Warn => {
            eprintln!("quorate: {}", verdict.text);
            Ok(())
        }
        Decision::Allow => Ok(()),
    }
}

/// One verdict about all names: the worst, with the words of all that have some.
fn ask_about(settings: &Settings, names: &Names, passport: Option<&str>) -> Result<Verdict, String> {
    let deadline = Instant::now() + WITHIN;
    let mut whole = Verdict::allow();
    for some in names.check.chunks(NAMES_AT_ONCE) {
        let guard = Guard {
            moment: Moment::BeforeEdit,
            host: "git".into(),
            session: String::new(),
            take: Vec::new(),
            check: some.to_vec(),
            passport: passport.map(String::from),
            within_ms: 0,
            config: Vec::new(),
        };
        let verdict = ask::guard(settings, guard, deadline)?;
        let rank = |decision: Decision| match decision {
            Decision::Allow => 0,
            Decision::Warn => 1,
            Decision::Deny => 2,
        };
        if rank(verdict.decision) > rank(whole.decision) {
            whole.decision = verdict.decision;
        }
        if !verdict.text.is_empty() {
            whole.text = format!("{} {}", whole.text, verdict.text).trim().to_string();
        }
    }
    Ok(whole)
}
