//! The files that configure an agent, hashed when its session starts, so that one which nobody has audited is told of.
//!
//! They decide which programs the host runs and what the model is told before anybody asks it anything; whoever can change a
//! repository can change them. The gateway looks their hashes up, as `check_config_audit` does.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use quorate_domain::config_audit::ConfigFile;
use sha2::{Digest, Sha256};

/// Where they stand below a folder.
const IN_A_FOLDER: [&str; 4] = ["CLAUDE.md", ".mcp.json", ".claude/settings.json", ".claude/settings.local.json"];
const IN_THE_HOME: [&str; 2] = [".claude/CLAUDE.md", ".claude/settings.json"];
/// A larger file is no configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The files that are there, with their hashes, and what could not be hashed.
#[derive(Debug, Default)]
pub struct Hashed {
    pub files: Vec<ConfigFile>,
    pub problems: Vec<String>,
}

/// Hashes what configures a session in `cwd`: the files there, in the root of the repository around it, and the user's own. What
/// there is no time for is told.
pub fn hashed(cwd: &Path, home: Option<&Path>, deadline: Instant) -> Hashed {
    let root = cwd.ancestors().find(|folder| folder.join(".git").exists());
    let folders = [Some(cwd), root.filter(|root| *root != cwd)];
    let of_folders = folders.into_iter().flatten().flat_map(|folder| IN_A_FOLDER.map(|name| (folder.join(name), None)));
    let of_home = home.into_iter().flat_map(|home| IN_THE_HOME.map(|name| (home.join(name), Some(format!("~/{name}")))));
    let mut hashed = Hashed::default();
    let mut seen: Vec<PathBuf> = Vec::new();
    for (path, shown) in of_folders.chain(of_home) {
        if !path.is_file() || seen.contains(&path) {
            continue;
        }
        let shown = shown.unwrap_or_else(|| path.strip_prefix(root.unwrap_or(cwd)).unwrap_or(&path).to_string_lossy().into_owned());
        match hash(&path, deadline) {
            Ok(sha256) => hashed.files.push(ConfigFile { path: shown, sha256 }),
            Err(problem) => hashed.problems.push(format!("`{shown}` {problem}")),
        }
        seen.push(path);
    }
    hashed
}

fn hash(path: &Path, deadline: Instant) -> Result<String, String> {
    if Instant::now() >= deadline {
        return Err("was not hashed: there was no time".into());
    }
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("was not hashed: {error}"))?;
    match bytes.len() as u64 {
        size if size > FILE_BYTES_MAX => Err(format!("was not hashed: it is larger than {FILE_BYTES_MAX} bytes")),
        _ => Ok(hex::encode(Sha256::digest(&bytes))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn what_configures_a_session_is_hashed_once_from_its_folder_its_repository_and_its_user() {
        let folder = tempfile::tempdir().unwrap();
        let (home, root) = (folder.path().join("home"), folder.path().join("repo"));
        let cwd = root.join("api");
        write(&home.join(".claude/settings.json"), "{}");
        write(&root.join(".git/HEAD"), "");
        write(&root.join("CLAUDE.md"), "hello");
        write(&root.join(".mcp.json"), &"x".repeat(1 + FILE_BYTES_MAX as usize));
        write(&cwd.join(".claude/settings.json"), "{}");
        write(&cwd.join("other.json"), "{}");
        let soon = Instant::now() + Duration::from_secs(60);
        let found = hashed(&cwd, Some(&home), soon);
        let named: Vec<(&str, &str)> = found.files.iter().map(|file| (file.path.as_str(), &file.sha256[..8])).collect();
        assert_eq!(named, [("api/.claude/settings.json", "44136fa3"), ("CLAUDE.md", "2cf24dba"), ("~/.claude/settings.json", "44136fa3")]);
        assert_eq!(found.problems, ["`.mcp.json` was not hashed: it is larger than 1048576 bytes"]);

        let late = hashed(&root, None, Instant::now());
        assert!(late.files.is_empty() && late.problems[0] == "`CLAUDE.md` was not hashed: there was no time", "{late:?}");
        assert!(hashed(&folder.path().join("nowhere"), None, soon).files.is_empty());
    }
}
