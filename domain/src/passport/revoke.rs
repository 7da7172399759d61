//! Revocation: a passport that stands for nobody any more, from this entry on.
//!
//! Its tokens open nothing, its calls are refused, its cards end and its tickets leave the queue (a bounded number in one
//! entry, the rest in the next ones), no approval that it asked for can be granted, and no hand-off of its making accepted.
//! It can't be undone, and the name can't be used again. What it wrote stays.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{certificate, passport, receipt_id};
use crate::event;
use crate::identity::{Passport, check_name, check_text};
use crate::key::Key;
use crate::punchcard;
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Stamp, Tier};
use crate::tx::{Read, StorageError, Tx};

/// Who revoked a passport, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Revocation {
    tenant: String,
    passport: String,
    by: String,
    reason: Option<String>,
    receipt_id: String,
}

impl Record for Revocation {
    const KIND: Kind = Kind::Revocation;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

/// Revokes a passport: the caller's own, one that it sponsors, or, for an elite or operator tier, any of the tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RevokePassport {
    /// The caller's own when absent.
    pub target: Option<String>,
    pub reason: Option<String>,
}

/// The revocation that stands; of two, the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassportRevoked {
    pub target: String,
    pub revoker: String,
    pub reason: Option<String>,
    pub receipt_id: String,
}

impl RevokePassport {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PassportRevoked> {
        let tenant = &at.caller.tenant;
        let name = self.target.unwrap_or_else(|| at.caller.passport.clone());
        if let Some(refusal) =
            check_name("target_passport", &name).or_else(|| self.reason.as_deref().and_then(|reason| check_text("reason", reason)))
        {
            return Ok(Err(refusal));
        }
        let Some(target) = passport(tx, tenant, &name)? else { return Ok(Err(Refusal::not_found("passport", name))) };
        if !may_revoke(tx, at, &name)? {
            let problem = format!("`{name}` can be revoked by itself, by its sponsor, and by an elite or operator tier");
            return Ok(Err(Refusal::Denied { problem }));
        }
        let known: Option<Revocation> = tx.get(tenant, &Key::new().text(&name))?;
        if let Some(Revocation { by, reason, receipt_id, .. }) = known {
            return Ok(Ok(PassportRevoked { target: name, revoker: by, reason, receipt_id }));
        }
        revoke(tx, at, target, self.reason).map(Ok)
    }
}

fn may_revoke(view: &impl Read, at: &Stamp, name: &str) -> Result<bool, StorageError> {
    let caller = &at.caller;
    if name == caller.passport || caller.tier >= Tier::Elite || caller.may("admin") {
        return Ok(true);
    }
    let sponsor = certificate(view, &caller.tenant, name)?.and_then(|certificate| certificate.sponsor);
    Ok(sponsor.as_ref() == Some(&caller.passport))
}

#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    initiated_by_passport_id: &'a str,
    target_passport_id: &'a str,
    reason: Option<&'a str>,
    initiated_at: &'a str,
}

/// Ends a passport that is in force.
pub(super) fn revoke(tx: &mut impl Tx, at: &Stamp, target: Passport, reason: Option<String>) -> Result<PassportRevoked, StorageError> {
    let (tenant, by) = (at.caller.tenant.clone(), at.caller.passport.clone());
    let name = target.name.clone();
    let receipt_id = receipt_id("revoke", at, &name);
    let body = receipt::body(&Body {
        schema: "cuecrux.receipt.passport_revoke.v1",
        receipt_id: &receipt_id,
        tenant_id: &tenant,
        initiated_by_passport_id: &by,
        target_passport_id: &name,
        reason: reason.as_deref(),
        initiated_at: &at.wall.to_rfc3339(),
    });
    receipt::append(tx, at, &receipt_id, body, Some(&by))?;
    tx.put(&Passport { revoked_at: Some(at.wall), ..target });
    let revocation = Revocation { tenant, passport: name.clone(), by: by.clone(), reason: reason.clone(), receipt_id: receipt_id.clone() };
    tx.put(&revocation);
    event::emit(tx, at, "passport.revoked", &name, json!({ "by": by, "receipt_id": receipt_id }))?;
    // After the passport is marked, so that no freed resource is handed to it.
    punchcard::end_all(tx, at, &name)?;
    Ok(PassportRevoked { target: name, revoker: by, reason, receipt_id })
}
