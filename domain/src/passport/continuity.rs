//! Continuity of an identity: one passport becomes two, two become one, and a device is linked to one.
//!
//! Each act needs operator standing, has a receipt, and can't be taken back fact by fact. Decisions:
//! * What stands in a passport's private memory is copied in the entry of the split or merge, a bounded number of facts, so that
//!   later writes of the two stay apart. The tenant's facts are everybody's and stay as they are.
//! * A split gives away no receipts: the new passport starts with none, and with the tier, scopes and gate of its source. It
//!   opens nothing before an operator makes a token for it.
//! * In a merge the survivor takes over what the source's receipts have earned. The source is revoked, and its sessions can be
//!   read by the survivor, and written by nobody.
//! * Who owns the survivor alone could take another's private memory, and who owns the source alone could put words into
//!   another's; so the caller has to own one, and the other has to be split from it or to have named it as its sponsor, unless
//!   the caller's credential is elite or operator. What was split off may also go back to where it came from. That the caller
//!   itself names somebody as its sponsor gives it nothing.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::link::{Linked, link, unlink};
use super::revoke::revoke;
use super::standing::{Standing, has_operator_standing};
use super::{Certificate, certificate, check_key, passport, receipt_id};
use crate::event;
use crate::fact::{self, Adopted, OnConflict};
use crate::flag;
use crate::identity::{Passport, check_name, check_text};
use crate::key::Key;
use crate::limit::{DEVICE_CAPABILITIES_MAX, DEVICES_MAX, MERGE_RECEIPT_BYTES_MAX, MERGED_MAX};
use crate::receipt;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, Stamp, Tier, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// The tenant in a passport's name, where names are written so: all before the last `::`, else before the first `:`.
pub(super) fn tenant_prefix(name: &str) -> &str {
    name.rsplit_once("::").or_else(|| name.split_once(':')).map_or("__default__", |(prefix, _)| prefix)
}

fn refuse(tx: &mut impl Tx, at: &Stamp, what: &str, reason: Option<&str>) -> Result<Option<Refusal>, StorageError> {
    if let Some(refusal) = flag::refuse_off(tx, flag::IDENTITY_CONTINUITY, what)? {
        return Ok(Some(refusal));
    }
    if !has_operator_standing(tx, &at.caller)? {
        let problem = format!(
            "`{what}` needs operator standing: the reputation trusted, which takes 500 receipts, or a credential of the tier elite or operator"
        );
        return Ok(Some(Refusal::Denied { problem }));
    }
    Ok(reason.and_then(|reason| check_text("reason", reason)))
}

/// A receipt that was written, for who keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    pub receipt_id: String,
    /// The body, CBOR in hex.
    pub body_hex: String,
    /// BLAKE3 of the body, in hex.
    pub body_hash: String,
}

fn prove(tx: &mut impl Tx, at: &Stamp, receipt_id: String, body: Vec<u8>) -> Result<Proof, StorageError> {
    let body_hex = hex::encode(&body);
    let body_hash = receipt::append(tx, at, &receipt_id, body, Some(&at.caller.passport))?;
    Ok(Proof { receipt_id, body_hex, body_hash })
}

// ------------------------------------------------------------------ split

/// Makes a second passport of the caller's own, with a copy of its private memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitPassport {
    /// A claim: must be the caller.
    pub target: String,
    pub new_name: String,
    pub reason: Option<String>,
    /// The key of the new passport: Ed25519, 32 bytes in hex.
    pub public_key: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassportSplit {
    pub new_passport: String,
    pub proof: Proof,
    pub tenant: String,
    /// Private facts that the new one begins with.
    pub facts: u64,
}

#[derive(Serialize)]
struct SplitBody<'a> {
    schema: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    initiated_by_passport_id: &'a str,
    source_passport_id: &'a str,
    new_passport_id: &'a str,
    reason: Option<&'a str>,
    initiated_at: &'a str,
}

impl SplitPassport {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PassportSplit> {
        if let Some(refusal) = refuse(tx, at, "passport_split", self.reason.as_deref())?.or_else(|| self.check(at)) {
            return Ok(Err(refusal));
        }
        let (tenant, source) = (at.caller.tenant.clone(), at.caller.passport.clone());
        let Some(known) = passport(tx, &tenant, &source)? else { return Ok(Err(Refusal::not_found("passport", source))) };
        if passport(tx, &tenant, &self.new_name)?.is_some() {
            return Ok(Err(Refusal::invalid("new_passport_name", "is the name of a passport that exists, in force or not")));
        }
        let name = self.new_name;
        let receipt_id = receipt_id("split", at, &format!("{source}|{name}"));
        tx.put(&Passport { name: name.clone(), ..known });
        let certificate = Certificate::new(&tenant, &name, self.public_key, Some(source.clone()), at.wall);
        tx.put(&Certificate { split_from: Some(source.clone()), ..certificate });
        let facts = match fact::adopt(tx, at, &source, &name, OnConflict::Refuse, &receipt_id)? {
            Ok(Adopted { facts, .. }) => facts,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let body = receipt::body(&SplitBody {
            schema: "cuecrux.receipt.passport_split.v1",
            receipt_id: &receipt_id,
            tenant_id: &tenant,
            initiated_by_passport_id: &source,
            source_passport_id: &source,
            new_passport_id: &name,
            reason: self.reason.as_deref(),
            initiated_at: &at.wall.to_rfc3339(),
        });
        let proof = prove(tx, at, receipt_id, body)?;
        event::emit(tx, at, "passport.split", &name, json!({ "source": source, "receipt_id": proof.receipt_id }))?;
        Ok(Ok(PassportSplit { new_passport: name, proof, tenant, facts }))
    }

    fn check(&self, at: &Stamp) -> Option<Refusal> {
        let denied = |problem: String| Some(Refusal::Denied { problem });
        if self.target != at.caller.passport {
            return denied(format!("`target_passport` is not the caller, who is `{}`: a passport splits itself", at.caller.passport));
        }
        if let Some(refusal) = check_name("new_passport_name", &self.new_name).or_else(|| check_key(&self.public_key)) {
            return Some(refusal);
        }
        let (own, new) = (tenant_prefix(&self.target), tenant_prefix(&self.new_name));
        (own != new)
            .then(|| Refusal::Denied { problem: format!("`new_passport_name` has the tenant prefix `{new}`, and yours is `{own}`") })
    }
}

// ------------------------------------------------------------------ merge

/// What happens where both passports keep another value under one entity and key. Never assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictPolicy {
    PreferSource,
    PreferTarget,
    ErrorOnConflict,
}

impl ConflictPolicy {
    pub fn word(self) -> &'static str {
        match self {
            ConflictPolicy::PreferSource => "prefer_source",
            ConflictPolicy::PreferTarget => "prefer_target",
            ConflictPolicy::ErrorOnConflict => "error_on_conflict",
        }
    }
}

/// Retires one passport into another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergePassports {
    pub source: String,
    pub target: String,
    pub policy: ConflictPolicy,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassportsMerged {
    pub merged: String,
    pub retired: String,
    pub proof: Proof,
    pub conflicts_resolved: u64,
    pub tenant: String,
    /// Private facts that the survivor took over.
    pub facts: u64,
}

#[derive(Serialize)]
struct MergeBody<'a> {
    schema: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    initiated_by_passport_id: &'a str,
    source_passport_id: &'a str,
    target_passport_id: &'a str,
    reason: Option<&'a str>,
    initiated_at: &'a str,
    conflict_policy: &'a str,
    conflicts: &'a [fact::Conflict],
}

impl MergePassports {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PassportsMerged> {
        if let Some(refusal) = refuse(tx, at, "passport_merge", self.reason.as_deref())? {
            return Ok(Err(refusal));
        }
        let tenant = at.caller.tenant.clone();
        let (source, target) = match self.check(tx, at)? {
            Ok(passports) => passports,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let receipt_id = receipt_id("merge", at, &format!("{}|{}", source.name, target.name));
        let on_conflict = match self.policy {
            ConflictPolicy::PreferSource => OnConflict::TakeTheirs,
            ConflictPolicy::PreferTarget => OnConflict::KeepOurs,
            ConflictPolicy::ErrorOnConflict => OnConflict::Refuse,
        };
        let Adopted { facts, conflicts } = match fact::adopt(tx, at, &source.name, &target.name, on_conflict, &receipt_id)? {
            Ok(adopted) => adopted,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = merge_names(tx, &tenant, &source.name, &target.name, &receipt_id)? {
            return Ok(Err(refusal));
        }
        let mut standing = Standing::of(tx, &tenant, &target.name)?;
        standing.receipts += Standing::of(tx, &tenant, &source.name)?.receipts;
        tx.put(&standing);
        let body = receipt::body(&MergeBody {
            schema: "cuecrux.receipt.passport_merge.v1",
            receipt_id: &receipt_id,
            tenant_id: &tenant,
            initiated_by_passport_id: &at.caller.passport,
            source_passport_id: &source.name,
            target_passport_id: &target.name,
            reason: self.reason.as_deref(),
            initiated_at: &at.wall.to_rfc3339(),
            conflict_policy: self.policy.word(),
            conflicts: &conflicts,
        });
        if body.len() > MERGE_RECEIPT_BYTES_MAX {
            let problem = format!("would resolve {} conflicts, more than a receipt holds; settle some of them first", conflicts.len());
            return Ok(Err(Refusal::invalid("conflict_policy", problem)));
        }
        let proof = prove(tx, at, receipt_id, body)?;
        let retired = source.name.clone();
        let about = json!({ "source": retired, "receipt_id": proof.receipt_id });
        event::emit(tx, at, "passport.merged", &target.name, about)?;
        revoke(tx, at, source, Some(format!("merged into `{}`", target.name)))?;
        Ok(Ok(PassportsMerged { merged: target.name, retired, proof, conflicts_resolved: conflicts.len() as u64, tenant, facts }))
    }

    /// Source and target, both in force, if the caller may merge them.
    fn check(&self, view: &impl Read, at: &Stamp) -> Applied<(Passport, Passport)> {
        let caller = &at.caller;
        if let Some(refusal) = check_name("source_passport", &self.source).or_else(|| check_name("target_passport", &self.target)) {
            return Ok(Err(refusal));
        }
        if self.source == self.target {
            return Ok(Err(Refusal::invalid("source_passport", "is `target_passport` too")));
        }
        let other = match (&self.source, &self.target) {
            (source, target) if *source == caller.passport => target,
            (source, target) if *target == caller.passport => source,
            _ => {
                let problem = format!("the caller, `{}`, owns neither passport", caller.passport);
                return Ok(Err(Refusal::Denied { problem }));
            }
        };
        let mut found = Vec::new();
        for (field, name) in [("source_passport", &self.source), ("target_passport", &self.target)] {
            let Some(known) = passport(view, &caller.tenant, name)? else { return Ok(Err(Refusal::not_found("passport", name))) };
            if known.revoked_at.is_some() {
                return Ok(Err(Refusal::invalid(field, "is revoked")));
            }
            found.push(known);
        }
        let is_trusted = caller.tier >= Tier::Elite || caller.may("admin");
        if !is_trusted && !self.is_kin(view, at, other)? {
            let problem = format!("`{other}` is neither split from `{}` nor sponsored by it", caller.passport);
            return Ok(Err(Refusal::Denied { problem }));
        }
        let [source, target] = <[Passport; 2]>::try_from(found).expect("one was found for each of two names");
        Ok(Ok((source, target)))
    }

    /// Whether the other passport comes from the caller's, or the caller's goes back to where it was split from.
    fn is_kin(&self, view: &impl Read, at: &Stamp, other: &str) -> Result<bool, StorageError> {
        let Principal { tenant, passport: own, .. } = &at.caller;
        let comes_from_own = |known: Certificate| known.sponsor.as_ref() == Some(own) || known.split_from.as_ref() == Some(own);
        if certificate(view, tenant, other)?.is_some_and(comes_from_own) {
            return Ok(true);
        }
        Ok(self.source == *own && certificate(view, tenant, own)?.is_some_and(|known| known.split_from.as_deref() == Some(other)))
    }
}

fn merged_key(tenant: &str, target: &str) -> Key {
    kind_prefix(tenant, Kind::MergedInto).text(target)
}

/// The passports that were merged into this one, whose sessions it may read.
pub(crate) fn merged_into(view: &impl Read, tenant: &str, target: &str) -> Result<Vec<String>, StorageError> {
    let rows = merged_key(tenant, target);
    let rows = view.scan_bytes(Table::Index, rows.as_bytes(), &rows.after_prefix(), Direction::Ascending, MERGED_MAX)?;
    rows.into_iter().map(|(_, name)| String::from_utf8(name).map_err(|error| StorageError::new("merged passport", error))).collect()
}

/// Has the source, and those that were merged into that one before, stand for the survivor, which may read their sessions.
pub(super) fn merge_names(
    tx: &mut impl Tx,
    tenant: &str,
    source: &str,
    target: &str,
    receipt_id: &str,
) -> Result<Option<Refusal>, StorageError> {
    let mut names = merged_into(tx, tenant, source)?;
    names.push(source.into());
    if merged_into(tx, tenant, target)?.len() + names.len() > MERGED_MAX {
        return Ok(Some(Refusal::invalid("target_passport", format!("has {MERGED_MAX} passports merged into it at the most"))));
    }
    for name in names {
        unlink(tx, tenant, Linked::Passport, &name, source);
        link(tx, tenant, Linked::Passport, &name, target, receipt_id);
        tx.put_index(merged_key(tenant, target).text(&name), name.as_bytes());
    }
    Ok(None)
}

// ------------------------------------------------------------------ link a device

/// A device that a passport vouches for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Device {
    tenant: String,
    passport: String,
    fingerprint: String,
    capabilities: Vec<String>,
    linked_at: UnixMs,
    receipt_id: String,
}

impl Record for Device {
    const KIND: Kind = Kind::Device;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport).text(&self.fingerprint)
    }
}

/// Links a device to the caller's passport, by the hash of its attestation, which itself is never kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkDevice {
    /// BLAKE3 of the attestation: 64 lowercase hex digits.
    pub fingerprint: String,
    /// What the device gets: `facts:read`, or what the caller may do.
    pub capabilities: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLinked {
    pub proof: Proof,
    pub passport: String,
    pub fingerprint: String,
    pub capabilities: Vec<String>,
    pub tenant: String,
}

#[derive(Serialize)]
struct LinkBody<'a> {
    schema: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    initiated_by_passport_id: &'a str,
    passport_id: &'a str,
    device_fingerprint: &'a str,
    capabilities_subset: &'a [String],
    initiated_at: &'a str,
}

impl LinkDevice {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<DeviceLinked> {
        if let Some(refusal) = refuse(tx, at, "passport_link_device", None)?.or_else(|| self.check(at)) {
            return Ok(Err(refusal));
        }
        let (tenant, passport) = (at.caller.tenant.clone(), at.caller.passport.clone());
        let linked = tx.page::<Device>(&tenant, &Key::new().text(&passport), None, DEVICES_MAX)?.items;
        if linked.len() == DEVICES_MAX && !linked.iter().any(|device| device.fingerprint == self.fingerprint) {
            return Ok(Err(Refusal::invalid(
                "device_fingerprint",
                format!("is one too many: a passport has {DEVICES_MAX} devices at the most"),
            )));
        }
        let Self { fingerprint, capabilities } = self;
        let receipt_id = receipt_id("link_device", at, &fingerprint);
        let body = receipt::body(&LinkBody {
            schema: "cuecrux.receipt.passport_link_device.v1",
            receipt_id: &receipt_id,
            tenant_id: &tenant,
            initiated_by_passport_id: &passport,
            passport_id: &passport,
            device_fingerprint: &fingerprint,
            capabilities_subset: &capabilities,
            initiated_at: &at.wall.to_rfc3339(),
        });
        let proof = prove(tx, at, receipt_id, body)?;
        let device = Device {
            tenant: tenant.clone(),
            passport: passport.clone(),
            fingerprint: fingerprint.clone(),
            capabilities: capabilities.clone(),
            linked_at: at.wall,
            receipt_id: proof.receipt_id.clone(),
        };
        tx.put(&device);
        link(tx, &tenant, Linked::Device, &fingerprint, &passport, &device.receipt_id);
        let about = json!({ "device_fingerprint": fingerprint, "receipt_id": proof.receipt_id });
        event::emit(tx, at, "passport.device_linked", &passport, about)?;
        Ok(Ok(DeviceLinked { proof, passport, fingerprint, capabilities, tenant }))
    }

    fn check(&self, at: &Stamp) -> Option<Refusal> {
        let is_hash = self.fingerprint.len() == 64 && self.fingerprint.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hash {
            return Some(Refusal::invalid("device_fingerprint", "must be 64 lowercase hex digits, the BLAKE3 of the device's attestation"));
        }
        let count = self.capabilities.len();
        if !(1..=DEVICE_CAPABILITIES_MAX).contains(&count) {
            return Some(Refusal::invalid("capabilities_subset", format!("must name 1 to {DEVICE_CAPABILITIES_MAX}, not {count}")));
        }
        self.capabilities.iter().find_map(|capability| {
            check_name("capabilities_subset", capability).or_else(|| {
                let may = capability == "facts:read" || at.caller.may(capability);
                (!may).then(|| Refusal::Denied { problem: format!("a device can't get `{capability}`, which the caller does not have") })
            })
        })
    }
}
