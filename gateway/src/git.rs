//! Running `git` on repositories of this machine, to read them.
//!
//! `git` itself reads every repository that it writes, of any format and age, is there wherever repositories are, and is kept safe by
//! those who keep it. A repository's own configuration could name programs to run, so all that a reading command would run is
//! switched off: hooks and file monitors, signature checks, external diffs, pagers, prompts, and fetching of missing objects.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// The most that a run may print.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Of what it says of an error.
const ERROR_BYTES_MAX: u64 = 4 << 10;

/// Where the repository is.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// What `git` keeps, bare or a working tree's `.git`.
    Repository(&'a Path),
    WorkingTree(&'a Path),
}

/// What `git` printed, or what it said of an error that it ended with. The outer error: it could not be run to its end.
pub async fn run(place: Place<'_>, arguments: &[&str], within: Duration) -> Result<Result<String, String>, String> {
    let mut command = Command::new("git");
    command.arg("--no-pager");
    match place {
        Place::Repository(path) => command.arg(format!("--git-dir={}", path.display())),
        Place::WorkingTree(path) => command.arg("-C").arg(path),
    };
    for setting in [
        "safe.directory=*",
        "core.fsmonitor=false",
        "core.hooksPath=/dev/null",
        "core.pager=cat",
        "log.showSignature=false",
        "gpg.program=false",
        "gpg.ssh.program=false",
        "protocol.allow=never",
        "core.sshCommand=false",
    ] {
        command.arg("-c").arg(setting);
    }
    command.args(arguments).env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("LC_ALL", "C"),
        ("TZ", "UTC"),
    ] {
        command.env(name, value);
    }
    let mut child = command.kill_on_drop(true).spawn().map_err(|error| format!("`git` can't be run: {error}"))?;
    let (output, error) = (child.stdout.take().ok_or("`git` has no output")?, child.stderr.take().ok_or("`git` has no output")?);
    let whole = async {
        // Both at once, and errors to their end: it would wait for a reader of either.
        let (printed, said) = tokio::join!(read(output, OUTPUT_BYTES_MAX), read_to_end(error));
        let status = child.wait().await.map_err(|error| format!("`git` did not end: {error}"))?;
        let printed = printed?;
        Ok(if status.success() { Ok(printed) } else { Err(said) })
    };
    tokio::time::timeout(within, whole).await.map_err(|_| format!("`git` took more than {} s", within.as_secs()))?
}

async fn read(output: impl AsyncRead + Unpin, bytes_max: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    output.take(bytes_max + 1).read_to_end(&mut bytes).await.map_err(|error| format!("`git` can't be read: {error}"))?;
    match bytes.len() as u64 > bytes_max {
        true => Err(format!("`git` printed more than {bytes_max} bytes")),
        false => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// The beginning of what it says; the rest is read and dropped.
async fn read_to_end(mut error: impl AsyncRead + Unpin) -> String {
    let mut said = Vec::new();
    // What can't be read is left out: the words are for people.
    let _ = (&mut error).take(ERROR_BYTES_MAX).read_to_end(&mut said).await;
    let _ = tokio::io::copy(&mut error, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&said).trim().to_string()
}
