//! Links of an identity: what else stands for a passport, which is one that was merged into it, or a device that it vouches for.
//!
//! A link is named by the receipt of the act that made it, so that whoever is told of a link can have it proved. Invariants:
//! * A retired passport has one link, to the survivor of its merge; where that was retired in turn, to the last of them.
//! * A device that several passports have linked stands for none of them: nobody is guessed.

use serde::{Deserialize, Serialize};

use super::passport;
use crate::identity::{Passport, check_name};
use crate::key::Key;
use crate::record::{Kind, ReadRecords, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::{Read, StorageError, Table, Tx};

/// What is linked. On disk: part of index keys.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Linked {
    Passport = 1,
    Device = 2,
}

fn links(tenant: &str, linked: Linked, alias: &str) -> Key {
    kind_prefix(tenant, Kind::IdentityLink).byte(linked as u8).text(alias)
}

pub(super) fn link(tx: &mut impl Tx, tenant: &str, linked: Linked, alias: &str, passport: &str, receipt_id: &str) {
    tx.put_index(links(tenant, linked, alias).text(passport), receipt_id.as_bytes());
}

pub(super) fn unlink(tx: &mut impl Tx, tenant: &str, linked: Linked, alias: &str, passport: &str) {
    tx.delete_index(links(tenant, linked, alias).text(passport));
}

/// Passports that may have linked one device, and more than ever do.
const LINKS_MAX: usize = 64;

/// The passports that something stands for, each with the receipt of its link.
fn linked_to(view: &impl Read, tenant: &str, linked: Linked, alias: &str) -> Result<Vec<(String, String)>, StorageError> {
    let all = links(tenant, linked, alias);
    let (rows, _) = view.page_bytes(Table::Index, &all, None, LINKS_MAX)?;
    let row = |(key, receipt_id): (Vec<u8>, Vec<u8>)| {
        let name = key.get(all.as_bytes().len()..).and_then(Key::leading_text);
        let name = name.ok_or_else(|| StorageError::corrupt("a link of an identity names no passport"))?;
        Ok((name, String::from_utf8(receipt_id).map_err(|error| StorageError::new("link of an identity", error))?))
    };
    rows.into_iter().map(row).collect()
}

/// Whom a name stands for in the caller's tenant: a passport's own, that of one which was merged into another, or the
/// fingerprint of a linked device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResolvePassport {
    pub passport: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassportResolved {
    pub passport: Passport,
    /// The link that led to it, by the receipt of the act; nothing when the name is its own.
    pub link_id: Option<String>,
}

impl ResolvePassport {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PassportResolved> {
        let tenant = &at.caller.tenant;
        if let Some(refusal) = check_name("passport_id", &self.passport) {
            return Ok(Err(refusal));
        }
        let named: Vec<(String, Option<String>)> = match passport(view, tenant, &self.passport)? {
            Some(own) => vec![(own.name, None)],
            None => {
                let of_device = linked_to(view, tenant, Linked::Device, &self.passport)?;
                of_device.into_iter().map(|(owner, receipt_id)| (owner, Some(receipt_id))).collect()
            }
        };
        let mut found: Vec<(String, Option<String>)> = Vec::new();
        for (name, link_id) in named {
            let survivor = linked_to(view, tenant, Linked::Passport, &name)?.pop();
            let one = survivor.map_or((name, link_id), |(survivor, receipt_id)| (survivor, Some(receipt_id)));
            if found.iter().all(|(name, _)| *name != one.0) {
                found.push(one);
            }
        }
        let (name, link_id) = match (found.pop(), found.is_empty()) {
            (None, _) => return Ok(Err(Refusal::not_found("passport", self.passport))),
            (Some(_), false) => {
                let problem = "is a device that several passports have linked; ask for one of them by its name";
                return Ok(Err(Refusal::invalid("passport_id", problem)));
            }
            (Some(one), true) => one,
        };
        let found = passport(view, tenant, &name)?;
        let passport = found.ok_or_else(|| StorageError::corrupt("a link leads to a passport that is not there"))?;
        Ok(Ok(PassportResolved { passport, link_id }))
    }
}
