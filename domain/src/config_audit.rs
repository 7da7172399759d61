//! Audits of configuration files: somebody looked at a file of this hash and lets it pass.
//!
//! An audit is a fact of the service's own, under the hash; another audit of the same hash is its next version. Invariant: there
//! is at most one record of a hash, the last one.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::fact::{Confidence, Draft, EVERYONE, HorizonClass, at_most, evidence, store_evidence};
use crate::identity::{check_name, check_text};
use crate::limit::AUDITED_ITEMS_MAX;
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp};
use crate::tx::{Read, StorageError, Tx};

const ENTITY: &str = "__ops::config-audit";

fn key(sha256: &str) -> String {
    format!("sha256:{sha256}")
}

fn check_sha256(field: &str, sha256: &str) -> Option<Refusal> {
    let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (!is_hash).then(|| Refusal::invalid(field, "must be 64 lowercase hex digits"))
}

/// The fact's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    pub path: String,
    pub auditor: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When, in RFC 3339.
    pub ts: String,
}

/// The audit of a hash. What clients may have written there before it was reserved is none.
fn audit(view: &impl Read, tenant: &str, sha256: &str) -> Result<Option<Audit>, StorageError> {
    let value = evidence(view, tenant, EVERYONE, ENTITY, &key(sha256))?;
    Ok(value.and_then(|value| serde_json::from_str(&value).ok()))
}

/// Notes that a file of this hash was audited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditConfig {
    /// Where it was; the hash alone identifies it.
    pub path: String,
    pub sha256: String,
    /// Who audited it, as the caller says; the caller itself stands as the fact's actor.
    pub auditor: String,
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigAudited {
    pub sha256: String,
    pub audit: Audit,
    /// Whether it is the first audit of the hash.
    pub created: bool,
}

impl AuditConfig {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ConfigAudited> {
        let bad = check_name("path", &self.path)
            .or_else(|| check_sha256("sha256", &self.sha256))
            .or_else(|| check_name("auditor", &self.auditor))
            .or_else(|| self.note.as_deref().and_then(|note| check_text("note", note)));
        if let Some(refusal) = bad {
            return Ok(Err(refusal));
        }
        let created = audit(tx, &at.caller.tenant, &self.sha256)?.is_none();
        let audit = Audit { path: self.path, auditor: self.auditor, note: self.note, ts: at.wall.to_rfc3339() };
        let value = serde_json::to_string(&audit).expect("plain data with text keys is always JSON");
        let draft = Draft { value, confidence: Confidence::FULL, horizon_class: HorizonClass::None, source_receipt: None };
        store_evidence(tx, at, EVERYONE, ENTITY, &key(&self.sha256), draft)?;
        Ok(Ok(ConfigAudited { sha256: self.sha256, audit, created }))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigFile {
    pub path: String,
    pub sha256: String,
}

/// Which files nobody has audited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckConfigAudit {
    pub files: Vec<ConfigFile>,
}

/// Each file that was asked for stands in one of the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigAuditChecked {
    pub unaudited: Vec<ConfigFile>,
    pub audited: Vec<(ConfigFile, Audit)>,
}

impl CheckConfigAudit {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ConfigAuditChecked> {
        if let Err(refusal) = at_most("paths", self.files.len(), AUDITED_ITEMS_MAX, "files") {
            return Ok(Err(refusal));
        }
        let mut checked = ConfigAuditChecked { unaudited: Vec::new(), audited: Vec::new() };
        for file in self.files {
            if let Some(refusal) = check_name("paths.path", &file.path).or_else(|| check_sha256("paths.sha256", &file.sha256)) {
                return Ok(Err(refusal));
            }
            match audit(view, &at.caller.tenant, &file.sha256)? {
                Some(audit) => checked.audited.push((file, audit)),
                None => checked.unaudited.push(file),
            }
        }
        Ok(Ok(checked))
    }
}
