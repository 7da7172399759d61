//! `quorate guard`: the edit guard in a repository's git hooks, and in a CI.
//!
//! A hook that is there already is kept beside ours and run first; its no is final. Git says where hooks are, so
//! `core.hooksPath` and linked worktrees are honoured.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::exit::Failure;
use crate::{hook, output};

#[derive(Subcommand)]
pub enum Guard {
    /// Put the guard into this repository's pre-commit and pre-push hooks; hooks that are there go on running
    Install(Install),
    /// Take it out again, and put back what was there
    Uninstall(Install),
    /// Refuse a range of commits that changes what another holds
    Ci(Ci),
}

#[derive(Args)]
pub struct Install {
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Ci {
    /// Commits, as git names a range: main...HEAD is what the branch adds
    range: String,
    /// Passport of the author; what it holds is its own. The caller's when absent
    #[arg(long)]
    passport: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const HOOKS: [&str; 2] = ["pre-commit", "pre-push"];
/// By this line a hook is known to be ours.
const MARK: &str = "# Written by `quorate guard install`; `quorate guard uninstall` takes it out.";
/// Ending of a hook that was there before.
const BEFORE: &str = "before-quorate";

impl Guard {
    pub fn json(&self) -> bool {
        match self {
            Guard::Install(verb) | Guard::Uninstall(verb) => verb.json,
            Guard::Ci(verb) => verb.json,
        }
    }

    pub fn run(self) -> Result<(), Failure> {
        match self {
            Guard::Install(verb) => verb.run(install),
            Guard::Uninstall(verb) => verb.run(uninstall),
            Guard::Ci(verb) => verb.run(),
        }
    }
}

impl Ci {
    fn run(self) -> Result<(), Failure> {
        let files = hook::range(&self.range, self.passport.as_deref())?;
        let json = json!({"ok": true, "range": self.range, "files": files});
        output::print(self.json, &json, &format!("{files} changed files, none held by another"));
        Ok(())
    }
}

impl Install {
    fn run(self, change: fn(&Path, &str, bool) -> anyhow::Result<String>) -> Result<(), Failure> {
        let folder = folder()?;
        let mut done = Vec::new();
        for name in HOOKS {
            done.push((name, change(&folder, name, self.dry_run)?));
        }
        let told: serde_json::Map<String, serde_json::Value> =
            done.iter().map(|(name, what)| (name.to_string(), what.clone().into())).collect();
        let text: String = done.iter().map(|(name, what)| format!("{name}: {what}\n")).collect();
        let json = json!({"ok": true, "folder": folder.display().to_string(), "dry_run": self.dry_run, "hooks": told});
        output::print(self.json, &json, &format!("{text}in {}", folder.display()));
        Ok(())
    }
}

/// Where this repository's hooks are.
fn folder() -> Result<PathBuf, Failure> {
    let asked = Command::new("git").args(["rev-parse", "--git-path", "hooks"]).output().context("git can't be run")?;
    if !asked.status.success() {
        return Err(Failure::usage(format!("this is no git repository: {}", String::from_utf8_lossy(&asked.stderr).trim())));
    }
    let path = String::from_utf8(asked.stdout).context("the folder of the hooks is not UTF-8")?;
    Ok(std::path::absolute(path.trim_end_matches('\n')).context("the folder of the hooks")?)
}

/// The text of a hook. It names no folder, so it can be shared; without the executable it lets everything pass and says so.
fn script(name: &str) -> String {
    format!(
        r#"#!/bin/sh
{MARK}
before="$(dirname "$0")/{name}.{BEFORE}"
input=$(mktemp) || exit 1
trap 'rm -f "$input"' EXIT
[ -t 0 ] || cat >"$input"
if [ -x "$before" ]; then
    "$before" "$@" <"$input" || exit $?
fi
if ! command -v quorate >/dev/null 2>&1; then
    echo "quorate is not in PATH: this {name} goes on unguarded" >&2
    exit 0
fi
quorate hook {name} "$@" <"$input"
"#
    )
}

fn is_ours(path: &Path) -> anyhow::Result<Option<bool>> {
    match std::fs::read(path) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).contains(MARK))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn install(folder: &Path, name: &str, dry_run: bool) -> anyhow::Result<String> {
    let (path, before) = (folder.join(name), folder.join(format!("{name}.{BEFORE}")));
    let found = is_ours(&path)?;
    if found == Some(true) && std::fs::read_to_string(&path)? == script(name) {
        return Ok("installed already".into());
    }
    let chains = found == Some(false);
    anyhow::ensure!(!chains || !before.exists(), "{} is in the way; move it, and run this again", before.display());
    if dry_run {
        return Ok(if chains { "would be installed, and run the hook that is there first".into() } else { "would be installed".into() });
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Ours is whole before the other one moves, so that at no time there is none.
    let draft = folder.join(format!("{name}.quorate-new"));
    std::fs::write(&draft, script(name)).with_context(|| format!("cannot write {}", draft.display()))?;
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755))?;
    if chains {
        std::fs::hard_link(&path, &before)
            .or_else(|_| std::fs::copy(&path, &before).map(drop))
            .context("cannot keep the hook that is there")?;
    }
    std::fs::rename(&draft, &path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(if chains { "installed; the hook that was there runs first".into() } else { "installed".into() })
}

fn uninstall(folder: &Path, name: &str, dry_run: bool) -> anyhow::Result<String> {
    let (path, before) = (folder.join(name), folder.join(format!("{name}.{BEFORE}")));
    if is_ours(&path)? != Some(true) {
        return Ok("not installed".into());
    }
    let had_one = before.exists();
    if dry_run {
        return Ok("would be taken out".into());
    }
    match had_one {
        true => std::fs::rename(&before, &path)?,
        false => std::fs::remove_file(&path)?,
    }
    Ok(if had_one { "taken out; the hook from before is back".into() } else { "taken out".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_twice_is_installing_once_and_uninstalling_puts_back_what_was_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("pre-commit"), "#!/bin/sh\nexit 3\n");
        std::fs::write(&path, old).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        for wanted in ["installed; the hook that was there runs first", "installed already"] {
            assert_eq!(install(folder.path(), "pre-commit", false).expect("done"), wanted);
        }
        // The hook from before says no first, with its own code.
        let done = Command::new(&path).stdin(std::process::Stdio::null()).output().expect("it runs");
        assert_eq!(done.status.code(), Some(3));
        assert_eq!(uninstall(folder.path(), "pre-commit", false).expect("done"), "taken out; the hook from before is back");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), old);
        assert_eq!(uninstall(folder.path(), "pre-commit", false).expect("done"), "not installed");
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), old);
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        install(folder.path(), "pre-push", true).expect("said");
        assert_eq!(std::fs::read_dir(folder.path()).expect("read").count(), 0);
    }
}
