//! What a hook is told besides its input: environment first, then `.quorate.toml` in the root of the repository.
//!
//! The file is there because some hosts trust a hook by its command line, so that options can't stand in it. It holds no token,
//! and since anybody can put one into a repository, it may name gateways on this machine only: else it could have the token sent
//! anywhere.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Name of the file in a repository.
pub const FILE: &str = ".quorate.toml";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    guard: FileGuard,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGuard {
    #[serde(default)]
    gateways: Vec<String>,
    policy: Option<String>,
    #[serde(default)]
    closed: Vec<String>,
}

pub struct Settings {
    /// Base URLs of gateways, tried in order.
    pub gateways: Vec<String>,
    pub token: Option<String>,
    /// The authority of the gateways' certificates; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Deny what can't be asked about.
    pub closed: bool,
    /// Paths in the repository for which the policy is closed whatever it is for the others.
    pub closed_paths: Vec<PathBuf>,
    pub journal: Option<PathBuf>,
    /// What is wrong with the settings; nobody can be asked then.
    pub problem: Option<String>,
}

impl Settings {
    /// The settings for a folder in a repository, or for any other folder.
    pub fn of(folder: &Path) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let mut problem = None;
        let file = match folder.ancestors().map(|folder| folder.join(FILE)).find(|path| path.is_file()) {
            None => FileGuard::default(),
            Some(path) => match read(&path) {
                Ok(file) => file.guard,
                Err(error) => {
                    problem = Some(format!("{} is wrong: {error}", path.display()));
                    FileGuard::default()
                }
            },
        };
        let urls = match variable("QUORATE_URL") {
            Some(urls) => urls.split(',').map(String::from).collect(),
            None => file.gateways,
        };
        if variable("QUORATE_URL").is_none()
            && let Some(far) = urls.iter().find(|url| !is_on_this_machine(url))
        {
            problem = Some(format!("{FILE} names the gateway `{far}`, which is not on this machine; set QUORATE_URL if you trust it"));
        }
        let policy = variable("QUORATE_HOOK_POLICY").or(file.policy);
        if let Some(word) = policy.as_deref().filter(|word| !matches!(*word, "open" | "closed")) {
            problem = Some(format!("the policy is `open` or `closed`, not `{word}`"));
        }
        Self {
            gateways: urls.iter().map(|url| base(url)).filter(|url| !url.is_empty()).collect(),
            token: variable("QUORATE_TOKEN").or_else(token_in_file),
            ca: variable("QUORATE_CA").map(PathBuf::from),
            // A wrong word is no permission.
            closed: policy.is_some_and(|word| word != "open"),
            closed_paths: file.closed.iter().map(PathBuf::from).collect(),
            journal: variable("QUORATE_HOOK_JOURNAL")
                .map(PathBuf::from)
                .or_else(|| Some(super::xdg("XDG_STATE_HOME", ".local/state")?.join("hook-journal.jsonl"))),
            problem,
        }
    }
}

fn is_on_this_machine(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url.trim()) else { return false };
    matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// The token of who has no environment for it, such as a program that a desktop starts.
pub fn token_in_file() -> Option<String> {
    let path = super::xdg("XDG_CONFIG_HOME", ".config")?.join("token");
    Some(std::fs::read_to_string(path).ok()?.trim().to_string()).filter(|token| !token.is_empty())
}

fn read(path: &Path) -> Result<File, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    toml::from_str(&text).map_err(|error| error.message().to_string())
}

/// A gateway's base URL; the URL of its MCP endpoint, which clients are configured with, is as good.
pub fn base(url: &str) -> String {
    let url = url.trim().trim_end_matches('/');
    match url.split_once("/mcp") {
        Some((base, rest)) if rest.is_empty() || rest.starts_with(['/', '?']) => base.into(),
        _ => url.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_the_mcp_endpoint_names_the_gateway_too() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/mcp", "http://h:1/mcp/crux", " http://h:1/mcp?groups=facts"] {
            assert_eq!(base(url), "http://h:1");
        }
    }

    #[test]
    fn a_file_in_a_repository_can_t_have_the_token_sent_elsewhere() {
        for near in ["http://127.0.0.1:7400/mcp", "http://localhost:1", "http://[::1]:7400"] {
            assert!(is_on_this_machine(near), "{near}");
        }
        for far in ["http://10.0.0.1/mcp", "https://evil.example", "http://127.0.0.1@evil.example/", "http://localhost.evil.example", "x"] {
            assert!(!is_on_this_machine(far), "{far}");
        }
    }

    #[test]
    fn a_file_with_a_mistake_is_told_and_closes_nothing_by_accident() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(FILE), "[guard]\nclosd = [\"migrations\"]\n").expect("written");
        let settings = Settings::of(&folder.path().join("below"));
        assert!(settings.problem.is_some_and(|problem| problem.contains("closd")));
        std::fs::write(folder.path().join(FILE), "[guard]\nclosed = [\"migrations\"]\n").expect("written");
        assert_eq!(Settings::of(folder.path()).closed_paths, [PathBuf::from("migrations")]);
    }
}
