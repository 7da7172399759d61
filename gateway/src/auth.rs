//! From bearer token to principal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quorate_domain::Principal;
use quorate_domain::identity::{self, ResolveToken};

use crate::call::CallError;
use crate::cluster::Cluster;
use crate::limit::{TOKEN_BYTES_MAX, TOKEN_KNOWN_FOR, TOKEN_UNKNOWN_FOR, TOKENS_KEPT};

/// Resolves tokens, and believes an answer for a short while.
#[derive(Default)]
pub struct Tokens {
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Clone)]
struct Known {
    principal: Option<Arc<Principal>>,
    /// Asked again in the background from here on, so that callers in steady use never wait for it.
    renew_from: Instant,
    until: Instant,
}

/// What a request says of its sender.
#[derive(Clone, Debug, PartialEq)]
pub enum Credential {
    None,
    Bearer(String),
    /// An `Authorization` header that is no bearer token.
    Malformed,
}

impl Credential {
    pub fn of(headers: &axum::http::HeaderMap) -> Self {
        let mut values = headers.get_all(axum::http::header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return if headers.contains_key(axum::http::header::AUTHORIZATION) { Credential::Malformed } else { Credential::None };
        };
        let Some((scheme, token)) = value.to_str().ok().and_then(|text| text.trim().split_once(' ')) else { return Credential::Malformed };
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Credential::Malformed;
        }
        Credential::Bearer(token.into())
    }
}

impl Tokens {
    /// Whom a token stands for; `None` for one that is unknown, expired or revoked.
    pub async fn resolve(self: &Arc<Self>, cluster: &Cluster, token: &str, deadline: Instant) -> Result<Option<Arc<Principal>>, CallError> {
        self.resolve_hash(cluster, &identity::token_hash(token), deadline).await
    }

    /// The same for who remembers a token by its hash.
    pub async fn resolve_hash(
        self: &Arc<Self>,
        cluster: &Cluster,
        hash: &str,
        deadline: Instant,
    ) -> Result<Option<Arc<Principal>>, CallError> {
        let (known, renew) = self.recall(hash);
        if renew {
            let (tokens, cluster, hash) = (self.clone(), cluster.clone(), hash.to_string());
            // When this fails the answer runs out, and the next caller asks and is told.
            tokio::spawn(async move { tokens.ask(&cluster, hash, deadline).await });
        }
        match known {
            Some(principal) => Ok(principal),
            None => self.ask(cluster, hash.into(), deadline).await,
        }
    }

    /// What is still believed of a token, and whether this caller is the one to renew it.
    fn recall(&self, hash: &str) -> (Option<Option<Arc<Principal>>>, bool) {
        let now = Instant::now();
        let mut known = self.known.lock().expect("no panic under the lock");
        let Some(entry) = known.get_mut(hash).filter(|entry| entry.until > now) else { return (None, false) };
        let renew = entry.principal.is_some() && entry.renew_from <= now;
        if renew {
            entry.renew_from = entry.until;
        }
        (Some(entry.principal.clone()), renew)
    }

    async fn ask(&self, cluster: &Cluster, hash: String, deadline: Instant) -> Result<Option<Arc<Principal>>, CallError> {
        // Counted from before the question: what was true at its start may have changed since.
        let asked = Instant::now();
        let (resolved, _) = cluster.read_standing(&identity::system(), ResolveToken { hash: hash.clone() }, deadline).await?;
        let principal = resolved.principal.map(Arc::new);
        let believed_for = if principal.is_some() { TOKEN_KNOWN_FOR } else { TOKEN_UNKNOWN_FOR };
        let (renew_from, until) = (asked + believed_for / 2, asked + believed_for);
        self.remember(hash, Known { principal: principal.clone(), renew_from, until });
        Ok(principal)
    }

    fn remember(&self, hash: String, entry: Known) {
        let mut known = self.known.lock().expect("no panic under the lock");
        if known.len() >= TOKENS_KEPT {
            let now = Instant::now();
            known.retain(|_, entry| entry.until > now);
            // Still full of live ones: a flood of made-up tokens. Forgetting all costs each true caller one lookup.
            if known.len() >= TOKENS_KEPT {
                known.clear();
            }
        }
        known.insert(hash, entry);
    }
}
