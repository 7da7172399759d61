//! What is read, from where, and how often.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_domain::corpus::check_repo;
use quorate_domain::identity::check_name;
use quorate_domain::limit::CORPUS_SOURCES_MAX;
use reqwest::Url;

use crate::config::{Config, ConfigError};
use crate::egress::{self, Allowed};

/// The settings of a connector.
#[derive(Clone)]
pub struct GitHub {
    pub tenant: String,
    /// `owner/name` each.
    pub repositories: Vec<String>,
    /// Repositories on this machine, by the name that they have in the corpus.
    pub git: BTreeMap<String, PathBuf>,
    /// Ends in `/`.
    pub url: Url,
    pub token: Option<Secret>,
    pub webhook_secret: Option<Secret>,
    pub poll: Duration,
    pub history: Duration,
}

/// What is never shown.
#[derive(Clone)]
pub struct Secret(pub String);

pub(crate) fn wrong<T>(field: &'static str, problem: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError { field, problem: problem.into() })
}

/// The secret in a file, without the line's end.
pub(crate) fn secret(field: &'static str, file: Option<&Path>) -> Result<Option<Secret>, ConfigError> {
    let Some(file) = file else { return Ok(None) };
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text.trim().to_string(),
        Err(error) => return wrong(field, format!("names a file that can't be read, {}: {error}", file.display())),
    };
    let is_one = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_one {
        Ok(Some(Secret(text)))
    } else {
        wrong(field, format!("names a file without a secret of visible ASCII: {}", file.display()))
    }
}

impl GitHub {
    /// What a configuration asks for; `None` when nothing is to be read.
    pub fn of(config: &Config) -> Result<Option<Self>, ConfigError> {
        let mut git = BTreeMap::new();
        for source in &config.git_repositories {
            let Some((name, path)) = source.split_once('=') else {
                return wrong("git_repositories", format!("holds `{source}`; write `owner/name=/path/to/repository.git`"));
            };
            let path = PathBuf::from(path);
            if !path.is_absolute() || !path.is_dir() {
                return wrong("git_repositories", format!("names what is no folder, or no whole path: {}", path.display()));
            }
            git.insert(name.to_string(), path);
        }
        let repositories = config.github_repositories.clone();
        if repositories.is_empty() && git.is_empty() {
            return Ok(None);
        }
        if repositories.len() + git.len() > CORPUS_SOURCES_MAX {
            return wrong("github_repositories", format!("and `git_repositories` name more than {CORPUS_SOURCES_MAX} together"));
        }
        for (field, names) in
            [("github_repositories", repositories.iter().collect::<Vec<_>>()), ("git_repositories", git.keys().collect::<Vec<_>>())]
        {
            if let Some(refusal) = names.iter().find_map(|name| check_repo(field, name)) {
                return wrong(field, refusal.to_string());
            }
        }
        if let Some(both) = repositories.iter().find(|name| git.contains_key(*name)) {
            return wrong("git_repositories", format!("names `{both}`, and so does `github_repositories`"));
        }
        let Some(tenant) = config.github_tenant.clone().filter(|tenant| check_name("tenant", tenant).is_none()) else {
            return wrong("github_tenant", "has to name the tenant whose corpus the repositories are read into");
        };
        let url = base(&config.github_url)?;
        let token = secret("github_token_file", config.github_token_file.as_deref())?;
        if !(1_000..=86_400_000).contains(&config.github_poll_ms) {
            return wrong("github_poll_ms", format!("is 1,000 to 86,400,000, not {}", config.github_poll_ms));
        }
        if !(1..=3_650).contains(&config.github_history_days) {
            return wrong("github_history_days", format!("is 1 to 3,650, not {}", config.github_history_days));
        }
        Ok(Some(Self {
            tenant,
            repositories,
            git,
            url,
            token,
            webhook_secret: secret("github_webhook_secret_file", config.github_webhook_secret_file.as_deref())?,
            poll: Duration::from_millis(config.github_poll_ms),
            history: Duration::from_secs(config.github_history_days * 24 * 60 * 60),
        }))
    }
}

fn base(text: &str) -> Result<Url, ConfigError> {
    let url = match Url::parse(&format!("{}/", text.trim_end_matches('/'))) {
        Ok(url) if url.host().is_some() && url.query().is_none() && url.username().is_empty() && url.password().is_none() => url,
        _ => return wrong("github_url", "is no base URL such as https://api.github.com, without user and query"),
    };
    match egress::judge(url.as_str(), Allowed { loopback_http: true, plain_http: false }) {
        Ok(verdict) if verdict.allowed => Ok(url),
        Ok(verdict) => wrong("github_url", format!("is not called: {}", verdict.reasons.join("; "))),
        Err(problem) => wrong("github_url", problem),
    }
}
