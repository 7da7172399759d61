//! Which other Quorate facts are exchanged with.

use std::time::Duration;

use quorate_domain::identity::check_name;
use reqwest::{Certificate, Url};

use super::client::Remote;
use crate::config::{Config, ConfigError};
use crate::egress::{self, Allowed};
use crate::github::settings::{secret, wrong};

impl Remote {
    /// What a configuration asks for; `None` when nothing is exchanged.
    pub fn of(config: &Config) -> Result<Option<Self>, ConfigError> {
        let Some(url) = &config.sync_remote_url else {
            let others = [
                ("sync_token_file", config.sync_token_file.is_some()),
                ("sync_tenant", config.sync_tenant.is_some()),
                ("sync_ca", config.sync_ca.is_some()),
                ("sync_poll_ms", config.sync_poll_ms != 0),
            ];
            return match others.into_iter().find(|(_, is_set)| *is_set) {
                Some((field, _)) => wrong(field, "says something of an exchange, and `sync_remote_url` names no other cluster"),
                None => Ok(None),
            };
        };
        let url = base(url)?;
        let Some(tenant) = config.sync_tenant.clone().filter(|tenant| check_name("tenant", tenant).is_none()) else {
            return wrong("sync_tenant", "has to name the tenant whose facts are exchanged");
        };
        let Some(token) = secret("sync_token_file", config.sync_token_file.as_deref())? else {
            return wrong("sync_token_file", "has to name the file with the token that the other cluster made for this one");
        };
        let poll = match config.sync_poll_ms {
            0 => None,
            ms @ 1_000..=86_400_000 => Some(Duration::from_millis(ms)),
            ms => return wrong("sync_poll_ms", format!("is 0, or 1,000 to 86,400,000, not {ms}")),
        };
        let mut authorities = None;
        if let Some(file) = &config.sync_ca {
            let pem = match std::fs::read(file) {
                Ok(pem) => pem,
                Err(error) => return wrong("sync_ca", format!("names a file that can't be read, {}: {error}", file.display())),
            };
            match Certificate::from_pem_bundle(&pem) {
                Ok(found) if !found.is_empty() => authorities = Some(found),
                _ => return wrong("sync_ca", format!("names a file without a certificate in PEM: {}", file.display())),
            }
        }
        match Self::new(url, tenant, token, authorities) {
            Ok(mut remote) => {
                remote.poll = poll;
                Ok(Some(remote))
            }
            Err(error) => wrong("sync_remote_url", format!("can't be called: {error}")),
        }
    }
}

fn base(text: &str) -> Result<Url, ConfigError> {
    let url = match Url::parse(&format!("{}/", text.trim_end_matches('/'))) {
        Ok(url) if url.host().is_some() && url.query().is_none() && url.fragment().is_none() && url.username().is_empty() => url,
        _ => return wrong("sync_remote_url", "is no base URL such as https://quorate.example:7400, without user and query"),
    };
    if url.password().is_some() || url.as_str().len() > quorate_domain::limit::NAME_BYTES_MAX {
        return wrong("sync_remote_url", "holds a password, or is longer than a name may be");
    }
    match egress::judge(url.as_str(), Allowed { loopback_http: true, plain_http: false }) {
        Ok(verdict) if verdict.allowed => Ok(url),
        Ok(verdict) => wrong("sync_remote_url", format!("is not called: {}", verdict.reasons.join("; "))),
        Err(problem) => wrong("sync_remote_url", problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(change: impl FnOnce(&mut Config, &std::path::Path)) -> Result<Option<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "qt_secret\n").unwrap();
        let mut config = Config {
            sync_remote_url: Some("https://quorate.example:7400/".into()),
            sync_token_file: Some(token),
            sync_tenant: Some("acme".into()),
            ..Config::default()
        };
        change(&mut config, folder.path());
        Remote::of(&config).map(|remote| remote.map(|remote| remote.name)).map_err(|error| error.to_string())
    }

    #[test]
    fn an_exchange_takes_an_address_a_token_and_a_tenant_or_is_off() {
        assert_eq!(told(|_, _| ()), Ok(Some("https://quorate.example:7400".into())));
        assert_eq!(told(|config, _| *config = Config::default()), Ok(None));
        assert_eq!(told(|config, _| config.sync_remote_url = Some("http://127.0.0.1:7".into())), Ok(Some("http://127.0.0.1:7".into())));
        let problems = [
            told(|config, _| config.sync_remote_url = None),
            told(|config, _| config.sync_tenant = None),
            told(|config, _| config.sync_token_file = None),
            told(|config, _| config.sync_token_file = Some("/nowhere/token".into())),
            told(|config, _| config.sync_remote_url = Some("http://quorate.example".into())),
            told(|config, _| config.sync_remote_url = Some("https://mara:secret@quorate.example".into())),
            told(|config, _| config.sync_remote_url = Some("ftp://quorate.example".into())),
            told(|config, _| config.sync_poll_ms = 999),
            told(|config, folder| config.sync_ca = Some(folder.join("token"))),
        ];
        for problem in problems {
            let problem = problem.expect_err("refused");
            assert!(problem.starts_with("`sync_") && !problem.contains("secret"), "{problem}");
        }
    }
}
