//! Legacy session ids: self-contained and signed, so that any gateway accepts them and none remembers them.
//!
//! What can't stand in the id (that the client ended the session, what it watches) is in the cluster, and believed for a short
//! while once it is read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quorate_domain::client::{ChangeClientSession, ClientSessionChange, ClientSessionKept, GetClientSession};
use quorate_domain::{Principal, Revision};
use serde::{Deserialize, Serialize};

use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Consistency, now_unix_ms};
use crate::limit::{SESSION_ID_MS_MAX, SESSION_KNOWN_FOR, TOKENS_KEPT};

/// Makes and checks session ids.
pub struct Sessions {
    key: [u8; 32],
    known: Mutex<HashMap<Owned, Known>>,
}

/// Tenant, passport and name of a session.
type Owned = (String, String, String);

#[derive(Clone)]
struct Known {
    kept: Arc<ClientSessionKept>,
    until: Instant,
}

/// What a session id says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionId {
    /// The negotiated protocol revision.
    #[serde(rename = "r")]
    pub protocol: String,
    /// Whose it is; `None` for a caller without a token.
    #[serde(rename = "t")]
    pub tenant: Option<String>,
    #[serde(rename = "p")]
    pub passport: Option<String>,
    #[serde(rename = "i")]
    pub issued_at_unix_ms: u64,
    /// Tells apart the sessions of one caller.
    #[serde(rename = "n")]
    nonce: u64,
    /// What the client can be asked for: `elicitation`, `sampling`, `roots`.
    #[serde(rename = "c", default)]
    pub capabilities: Vec<String>,
}

impl SessionId {
    /// Its name among those of its caller.
    pub fn name(&self) -> String {
        format!("{:016x}", self.nonce)
    }

    fn ms_left(&self) -> u64 {
        (self.issued_at_unix_ms + SESSION_ID_MS_MAX).saturating_sub(now_unix_ms().0).max(1)
    }

    pub fn is_of(&self, caller: Option<&Principal>) -> bool {
        self.tenant.as_deref() == caller.map(|caller| caller.tenant.as_str())
            && self.passport.as_deref() == caller.map(|caller| caller.passport.as_str())
    }
}

impl Sessions {
    /// The key is derived, so that the cluster's secret can serve other purposes too.
    pub fn new(session_key: &[u8; 32]) -> Self {
        Self { key: blake3::derive_key("quorate 2026 mcp session id", session_key), known: Mutex::default() }
    }

    pub fn issue(&self, protocol: &str, caller: Option<&Principal>, capabilities: Vec<String>, now_unix_ms: u64) -> String {
        let id = SessionId {
            protocol: protocol.into(),
            tenant: caller.map(|caller| caller.tenant.clone()),
            passport: caller.map(|caller| caller.passport.clone()),
            issued_at_unix_ms: now_unix_ms,
            nonce: rand::random(),
            capabilities,
        };
        let body = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&id).expect("plain data"));
        format!("q1.{body}.{}", URL_SAFE_NO_PAD.encode(self.tag(&body)))
    }

    /// `None` for whatever was not made under this cluster's key, or is too old.
    pub fn read(&self, text: &str, now_unix_ms: u64) -> Option<SessionId> {
        let (body, tag) = text.strip_prefix("q1.")?.split_once('.')?;
        if !is_same(&self.tag(body), &URL_SAFE_NO_PAD.decode(tag).ok()?) {
            return None;
        }
        let id: SessionId = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
        (now_unix_ms.saturating_sub(id.issued_at_unix_ms) <= SESSION_ID_MS_MAX).then_some(id)
    }

    /// What is remembered of a session of the caller's. A cluster that can't tell ends none: the token still says who it is.
    pub async fn kept(&self, cluster: &Cluster, caller: &Principal, session: &SessionId, deadline: Instant) -> Arc<ClientSessionKept> {
        let owned = (caller.tenant.clone(), caller.passport.clone(), session.name());
        let now = Instant::now();
        if let Some(known) = self.known.lock().expect("no panic under the lock").get(&owned).filter(|known| known.until > now) {
            return known.kept.clone();
        }
        match self.kept_at(cluster, caller, session, None, deadline).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::debug!(%error, "whether a session was ended can't be told now");
                Arc::default()
            }
        }
    }

    /// The same, no older than a revision, or as of now.
    pub async fn kept_at(
        &self,
        cluster: &Cluster,
        caller: &Principal,
        session: &SessionId,
        at_least: Option<Revision>,
        deadline: Instant,
    ) -> Result<Arc<ClientSessionKept>, CallError> {
        // Counted from before the question: what was true at its start may have changed since.
        let asked = Instant::now();
        let query = GetClientSession { id: session.name() };
        let (kept, _) = match at_least {
            Some(revision) => cluster.read_as(caller, query, Consistency::AtLeast(revision), deadline).await?,
            None => cluster.read_standing(caller, query, deadline).await?,
        };
        let kept = Arc::new(kept);
        if at_least.is_none() {
            self.remember(caller, session, kept.clone(), asked);
        }
        Ok(kept)
    }

    pub async fn change(
        &self,
        cluster: &Cluster,
        ctx: &CallContext,
        session: &SessionId,
        change: ClientSessionChange,
    ) -> Result<(), CallError> {
        let command = ChangeClientSession { id: session.name(), change, ttl_ms: session.ms_left() };
        let (kept, _) = cluster.propose_step(ctx, command).await?;
        self.remember(ctx.principal()?, session, Arc::new(kept), Instant::now());
        Ok(())
    }

    fn remember(&self, caller: &Principal, session: &SessionId, kept: Arc<ClientSessionKept>, asked: Instant) {
        let mut known = self.known.lock().expect("no panic under the lock");
        if known.len() >= TOKENS_KEPT {
            known.retain(|_, entry| entry.until > asked);
            // Still full of live ones: forgetting all costs each caller one lookup.
            if known.len() >= TOKENS_KEPT {
                known.clear();
            }
        }
        known.insert((caller.tenant.clone(), caller.passport.clone(), session.name()), Known { kept, until: asked + SESSION_KNOWN_FOR });
    }

    /// A text of ours that a client brings back unchanged: signed, for one caller and one purpose, and for a while.
    pub fn seal(&self, purpose: &str, content: &serde_json::Value, end_unix_ms: u64) -> String {
        let body = URL_SAFE_NO_PAD.encode(serde_json::json!([end_unix_ms, content]).to_string());
        let tag = self.seal_tag(purpose, &body);
        format!("{body}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// What was sealed for the same purpose, if the text is whole and its time is not over.
    pub fn unseal(&self, purpose: &str, text: &str, now_unix_ms: u64) -> Option<serde_json::Value> {
        let (body, tag) = text.split_once('.')?;
        if !is_same(&self.seal_tag(purpose, body), &URL_SAFE_NO_PAD.decode(tag).ok()?) {
            return None;
        }
        let (end_unix_ms, content): (u64, serde_json::Value) = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
        (now_unix_ms <= end_unix_ms).then_some(content)
    }

    fn seal_tag(&self, purpose: &str, body: &str) -> [u8; 16] {
        // Neither part can be taken for the other: a body has no line break.
        self.tag(&format!("seal\n{body}\n{purpose}"))
    }

    /// BLAKE3 keyed, which is a MAC; 128 bits of it.
    fn tag(&self, body: &str) -> [u8; 16] {
        let hash = blake3::keyed_hash(&self.key, body.as_bytes());
        hash.as_bytes()[..16].try_into().expect("32 bytes hold 16")
    }
}

/// Every byte is looked at, so that the time taken does not tell how much of a guess was right.
fn is_same(ours: &[u8; 16], theirs: &[u8]) -> bool {
    theirs.len() == ours.len() && ours.iter().zip(theirs).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_sealed_comes_back_whole_in_time_and_for_its_purpose_only() {
        let sessions = Sessions::new(&[7; 32]);
        let sealed = sessions.seal("mara", &json!({ "round": 1 }), 1_000);
        assert_eq!(sessions.unseal("mara", &sealed, 1_000), Some(json!({ "round": 1 })));
        assert_eq!(sessions.unseal("mara", &sealed, 1_001), None, "too late");
        assert_eq!(sessions.unseal("jon", &sealed, 1_000), None, "another caller");
        assert_eq!(Sessions::new(&[8; 32]).unseal("mara", &sealed, 1_000), None, "another cluster");
        for forged in ["".to_string(), format!("{sealed}-TAMPERED"), format!("x{sealed}"), sealed.replace('.', "")] {
            assert_eq!(sessions.unseal("mara", &forged, 1_000), None, "{forged}");
        }
        assert_eq!(sessions.read(&format!("q1.{sealed}"), 1_000), None, "is no session id");
    }
}
