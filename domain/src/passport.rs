//! What a passport proves: its key, its sponsor, and the standing that its receipts earn.
//!
//! The passport itself, with tenant, tier and scopes, stands in [`crate::identity`]; here is what is built on it. Invariants:
//! * A passport's receipts are counted as they are written, by the passport that the receipt names as its signer; nothing that
//!   a client sends can raise the count.
//! * The reputation tier comes from that count alone, and only rises. It is no credential: what a caller may do to others hangs
//!   on its [`crate::Tier`] and scopes.
//! * No private key is here. Gateways derive the keys of passports from the secret that they share, so that any of them can
//!   sign for a passport, after a restart too, and only public keys reach the log.

mod continuity;
mod link;
mod mint;
mod revoke;
pub(crate) mod standing;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub(crate) use self::continuity::merged_into;
pub use self::continuity::{
    ConflictPolicy, DeviceLinked, LinkDevice, MergePassports, PassportSplit, PassportsMerged, Proof, SplitPassport,
};
pub use self::link::{PassportResolved, ResolvePassport};
pub use self::mint::{Category, MintRequested, RequestMint};
pub use self::revoke::{PassportRevoked, RevokePassport};
pub use self::standing::Reputation;
use self::standing::Standing;
pub(crate) use self::standing::has_standing;
use crate::event;
use crate::identity::{Passport, check_name, is_revoked};
use crate::key::Key;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

/// What was issued to a passport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Certificate {
    tenant: String,
    name: String,
    /// `ce:<8 hex digits of the first key>:<name>`; it outlives the key.
    principal_id: String,
    /// Ed25519, 32 bytes in hex.
    public_key: String,
    sponsor: Option<String>,
    issued_at: UnixMs,
    /// The passport that this one was split from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    split_from: Option<String>,
}

impl Record for Certificate {
    const KIND: Kind = Kind::Certificate;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.name)
    }
}

impl Certificate {
    fn new(tenant: &str, name: &str, public_key: String, sponsor: Option<String>, issued_at: UnixMs) -> Self {
        let digest = blake3::hash(public_key.as_bytes()).to_hex();
        let principal_id = format!("ce:{}:{name}", &digest[..8]);
        Self { tenant: tenant.into(), name: name.into(), principal_id, public_key, sponsor, issued_at, split_from: None }
    }
}

fn certificate(view: &impl Read, tenant: &str, name: &str) -> Result<Option<Certificate>, StorageError> {
    view.get(tenant, &Key::new().text(name))
}

fn passport(view: &impl Read, tenant: &str, name: &str) -> Result<Option<Passport>, StorageError> {
    view.get(tenant, &Key::new().text(name))
}

/// The passport that one was split from first of all; itself when it never was. Two of one origin are one person's.
pub(crate) fn origin(view: &impl Read, tenant: &str, name: &str) -> Result<String, StorageError> {
    // Each split makes a name that was not there before, so there is no circle; more in a row than this nobody makes.
    const SPLITS: usize = 64;
    let mut name = name.to_string();
    for _ in 0..SPLITS {
        match certificate(view, tenant, &name)?.and_then(|known| known.split_from) {
            Some(source) => name = source,
            None => break,
        }
    }
    Ok(name)
}

fn check_key(public_key: &str) -> Option<Refusal> {
    let is_key = public_key.len() == 64 && public_key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (!is_key).then(|| Refusal::invalid("public_key", "must be 64 lowercase hex digits"))
}

/// Issues the caller's passport if it has none yet, and raises its stored tier to what its receipts have earned. Repeating it
/// changes nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IssuePassport {
    /// Who answers for it and may revoke it; it stays as it was first given.
    pub sponsor: Option<String>,
    /// Ed25519, 32 bytes in hex. Another one than before replaces it: the gateways' secret was changed.
    pub public_key: String,
}

/// A passport as its holder shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassportIssued {
    pub principal_id: String,
    pub reputation: Reputation,
    pub receipts: u64,
    pub sponsor: Option<String>,
    pub issued_at: UnixMs,
    /// BLAKE3, in hex, of the compact JSON of `principal_id, sponsor_id, reputation_tier, receipt_count, issued_at,
    /// passport_hash, tenant_group`, in which `passport_hash` is empty.
    pub passport_hash: String,
    pub public_key: String,
}

impl IssuePassport {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PassportIssued> {
        let (tenant, name) = (&at.caller.tenant, &at.caller.passport);
        if let Some(refusal) = check_key(&self.public_key) {
            return Ok(Err(refusal));
        }
        if passport(tx, tenant, name)?.is_none() {
            return Ok(Err(Refusal::not_found("passport", name)));
        }
        let known = certificate(tx, tenant, name)?;
        let certificate = match known.clone() {
            Some(known) => {
                if let (Some(found), Some(expected)) = (&known.sponsor, &self.sponsor)
                    && found != expected
                {
                    let (what, id) = ("sponsor of passport".into(), name.clone());
                    return Ok(Err(Refusal::Changed { what, id, expected: expected.clone(), found: found.clone() }));
                }
                let sponsor = known.sponsor.clone().or(self.sponsor);
                Certificate { public_key: self.public_key, sponsor, ..known }
            }
            None => Certificate::new(tenant, name, self.public_key, self.sponsor, at.wall),
        };
        // One that was named before may be revoked by now, and stays what it is.
        let had_sponsor = known.as_ref().is_some_and(|known| known.sponsor.is_some());
        if let Some(sponsor) = certificate.sponsor.as_ref().filter(|_| !had_sponsor)
            && let Some(refusal) = refuse_sponsor(tx, at, sponsor)?
        {
            return Ok(Err(refusal));
        }
        if known.as_ref() != Some(&certificate) {
            tx.put(&certificate);
            event::emit(tx, at, "passport.issued", name, json!({ "principal_id": certificate.principal_id }))?;
        }
        let mut standing = Standing::of(tx, tenant, name)?;
        if standing.rise() {
            tx.put(&standing);
            event::emit(tx, at, "passport.tier_raised", name, json!({ "reputation_tier": standing.reputation }))?;
        }
        Ok(Ok(show(certificate, &standing)))
    }
}

fn refuse_sponsor(view: &impl Read, at: &Stamp, sponsor: &str) -> Result<Option<Refusal>, StorageError> {
    if let Some(refusal) = check_name("sponsor_id", sponsor) {
        return Ok(Some(refusal));
    }
    if sponsor == at.caller.passport {
        return Ok(Some(Refusal::invalid("sponsor_id", "is the caller, and nobody answers for himself")));
    }
    if passport(view, &at.caller.tenant, sponsor)?.is_none() {
        return Ok(Some(Refusal::not_found("passport", sponsor)));
    }
    let is_revoked = is_revoked(view, &at.caller.tenant, sponsor)?;
    Ok(is_revoked.then(|| Refusal::invalid("sponsor_id", "is revoked; name another, or none")))
}

fn show(certificate: Certificate, standing: &Standing) -> PassportIssued {
    let Certificate { tenant, principal_id, public_key, sponsor, issued_at, .. } = certificate;
    let (reputation, receipts) = (standing.reputation, standing.receipts);
    let hashed = json!({
        "principal_id": principal_id,
        "sponsor_id": sponsor,
        "reputation_tier": reputation,
        "receipt_count": receipts,
        "issued_at": issued_at.to_rfc3339(),
        "passport_hash": "",
        "tenant_group": tenant,
    });
    let passport_hash = blake3::hash(hashed.to_string().as_bytes()).to_hex().to_string();
    PassportIssued { principal_id, reputation, receipts, sponsor, issued_at, passport_hash, public_key }
}

/// The id of a receipt of the identity: its family, and 16 hex digits of the BLAKE3 of what makes it one of a kind.
fn receipt_id(family: &str, at: &Stamp, subject: &str) -> String {
    let parts = format!("{}|{}|{subject}|{}", at.caller.passport, at.caller.tenant, at.revision);
    format!("r_passport_{family}_{}", &blake3::hash(parts.as_bytes()).to_hex()[..16])
}
