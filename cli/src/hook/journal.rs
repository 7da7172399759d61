//! What went on unguarded while no cluster could be asked: one line of JSON each, sent as a fact once one can.
//!
//! A line leaves the file only after the cluster has it; sent twice, it is one fact, since its id is the idempotency key.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quorate_gateway::hook::{Event, Host, Names};
use serde_json::{Value, json};

use super::ask;
use super::settings::Settings;
use crate::exit::Failure;

/// Facts of edits that nobody guarded. People's memory panel leaves `__ops::` alone.
const ENTITY: &str = "__ops::edit-guard";
/// Names of one line; the others are counted.
const NAMES_MAX: usize = 50;
/// Lines that one run sends.
const LINES_MAX: usize = 200;
const SEND_WITHIN: Duration = Duration::from_secs(5);

fn lock(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path.with_extension("lock"))
}

/// Adds a line.
pub fn note(settings: &Settings, host: Host, event: Option<&Event>, names: &Names, why: &str) -> Result<PathBuf, String> {
    let path = settings.journal.clone().ok_or("there is no home folder for the journal; set QUORATE_HOOK_JOURNAL")?;
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let all: Vec<&String> = names.take.iter().chain(&names.check).collect();
    let mut line = json!({
        "id": uuid::Uuid::new_v4(),
        "at_unix_ms": u64::try_from(at).unwrap_or(u64::MAX),
        "host": host.word(),
        "session": event.map(|event| event.session.as_str()),
        "tool": event.map(|event| event.tool.as_str()),
        "cwd": event.map(|event| event.cwd.as_str()),
        "resources": all.iter().take(NAMES_MAX).collect::<Vec<_>>(),
        "why": why,
    });
    if all.len() > NAMES_MAX {
        line["resources_left_out"] = (all.len() - NAMES_MAX).into();
    }
    let written = (|| {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let lock = lock(&path)?;
        lock.lock()?;
        let mut file = OpenOptions::new().append(true).create(true).open(&path)?;
        file.write_all(format!("{line}\n").as_bytes())
    })();
    written.map(|()| path.clone()).map_err(|error: std::io::Error| format!("{}: {error}", path.display()))
}

/// Has the lines sent by a process of its own, so that nobody waits for it; if there are any.
pub fn send_later(settings: &Settings) {
    let has_lines = settings.journal.as_ref().and_then(|path| std::fs::metadata(path).ok()).is_some_and(|file| file.len() > 0);
    if !has_lines {
        return;
    }
    let Ok(executable) = std::env::current_exe() else { return };
    // If it can't be started, the next hook tries again.
    let _ =
        Command::new(executable).args(["hook", "send-journal"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
}

/// Sends what was noted, and takes it off the file.
pub fn send(settings: &Settings) -> Result<(), Failure> {
    let Some(path) = &settings.journal else { return Ok(()) };
    if !path.exists() {
        return Ok(());
    }
    let failed = |error: std::io::Error| Failure::failed(format!("{}: {error}", path.display()));
    let sending = File::create(path.with_extension("sending")).map_err(failed)?;
    match sending.try_lock() {
        Ok(()) => {}
        // Another process is at it.
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let deadline = Instant::now() + SEND_WITHIN;
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let mut sent = Vec::new();
    let mut stopped = None;
    for line in text.lines().take(LINES_MAX) {
        // A line that is damaged stays, for people to look at.
        let Some(id) = serde_json::from_str::<Value>(line).ok().and_then(|line| Some(line["id"].as_str()?.to_string())) else { continue };
        let fact = json!({ "entity": ENTITY, "key": format!("unguarded/{id}"), "value": line, "idempotency_key": format!("journal-{id}") });
        match ask::post(settings, "/v1/tools/crux/store_fact", deadline, |_| fact.clone()) {
            Ok(_) => sent.push(line),
            Err(why) => {
                stopped = Some(why);
                break;
            }
        }
    }
    take_off(path, &sent).map_err(failed)?;
    match stopped {
        Some(why) => Err(Failure::unavailable(format!("{} lines are sent, others wait: {why}", sent.len()))),
        None => Ok(()),
    }
}

/// Replaces the file by one without these lines, with what was added meanwhile.
fn take_off(path: &Path, sent: &[&str]) -> std::io::Result<()> {
    if sent.is_empty() {
        return Ok(());
    }
    let lock = lock(path)?;
    lock.lock()?;
    let text = std::fs::read_to_string(path)?;
    let left: String = text.lines().filter(|line| !sent.contains(line)).map(|line| format!("{line}\n")).collect();
    let draft = path.with_extension("new");
    std::fs::write(&draft, left)?;
    std::fs::rename(draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_off_alone_and_what_came_meanwhile_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("below/journal");
        let settings = Settings { journal: Some(path.clone()), ..Settings::of(folder.path()) };
        let names = Names { take: (0..60).map(|n| format!("file://f{n}")).collect(), check: Vec::new() };
        note(&settings, Host::Codex, None, &names, "down").expect("noted");
        let first = std::fs::read_to_string(&path).expect("there").trim_end().to_string();
        assert!(first.contains("file://f49") && first.contains("\"resources_left_out\":10"), "{first}");
        note(&settings, Host::Codex, None, &Names::default(), "still down").expect("noted");
        take_off(&path, &[&first]).expect("taken off");
        let left = std::fs::read_to_string(&path).expect("there");
        assert!(left.contains("still down") && !left.contains(&first), "{left}");
    }
}
