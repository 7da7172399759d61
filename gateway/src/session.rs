//! Legacy session ids: self-contained and signed, so that any gateway accepts them and none remembers them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quorate_domain::Principal;
use serde::{Deserialize, Serialize};

use crate::limit::SESSION_ID_MS_MAX;

/// Makes and checks session ids.
pub struct Sessions {
    key: [u8; 32],
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
}

impl SessionId {
    pub fn is_of(&self, caller: Option<&Principal>) -> bool {
        self.tenant.as_deref() == caller.map(|caller| caller.tenant.as_str())
            && self.passport.as_deref() == caller.map(|caller| caller.passport.as_str())
    }
}

impl Sessions {
    /// The key is derived, so that the cluster's secret can serve other purposes too.
    pub fn new(session_key: &[u8; 32]) -> Self {
        Self { key: blake3::derive_key("quorate 2026 mcp session id", session_key) }
    }

    pub fn issue(&self, protocol: &str, caller: Option<&Principal>, now_unix_ms: u64) -> String {
        let id = SessionId {
            protocol: protocol.into(),
            tenant: caller.map(|caller| caller.tenant.clone()),
            passport: caller.map(|caller| caller.passport.clone()),
            issued_at_unix_ms: now_unix_ms,
            nonce: rand::random(),
        };
        let body = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&id).expect("plain data"));
        format!("q1.{body}.{}", URL_SAFE_NO_PAD.encode(self.tag(&body)))
    }

    /// `None` for whatever was not made under this cluster's key, or is too old.
    pub fn read(&self, text: &str, now_unix_ms: u64) -> Option<SessionId> {
        let (body, tag) = text.strip_prefix("q1.")?.split_once('.')?;
        let tag: [u8; 16] = URL_SAFE_NO_PAD.decode(tag).ok()?.try_into().ok()?;
        // Every byte is looked at, so that the time taken does not tell how much of a guess was right.
        let differs = self.tag(body).iter().zip(tag).fold(0, |all, (a, b)| all | (a ^ b));
        if differs != 0 {
            return None;
        }
        let id: SessionId = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
        (now_unix_ms.saturating_sub(id.issued_at_unix_ms) <= SESSION_ID_MS_MAX).then_some(id)
    }

    /// BLAKE3 keyed, which is a MAC; 128 bits of it.
    fn tag(&self, body: &str) -> [u8; 16] {
        let hash = blake3::keyed_hash(&self.key, body.as_bytes());
        hash.as_bytes()[..16].try_into().expect("32 bytes hold 16")
    }
}
