//! Handing a card over, and renewing many at once.

use serde::{Deserialize, Serialize};

use super::ask::Ask;
use super::held::{Held, Hold};
use super::queue::{self, Fate};
use super::{Ending, Punchcard, Status, by_holder, deadlock, end, grant, holder, indexed, not_this_card, release, renew, text};
use crate::identity::{Passport, check_name, is_revoked};
use crate::key::Key;
use crate::limit::{CARDS_PER_CALL_MAX, LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN};
use crate::record::ReadRecords;
use crate::refusal::{Applied, Refusal};
use crate::resource::Resource;
use crate::stamp::{Revision, Stamp};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// Hands a card to another passport, past those who wait for it: the old card ends and a new one with a new token begins in one
/// entry, so that nobody comes in between and what the giver still sends under the old token is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferPunchcard {
    pub resource: String,
    pub holder_passport: String,
    pub tenant_id: Option<String>,
    pub to_passport: String,
    pub release_commit_sha: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transferred {
    pub released: Punchcard,
    /// The receiver's, for as long as the giver's was taken for.
    pub card: Punchcard,
}

impl TransferPunchcard {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Transferred> {
        let giver = match holder(tx, at, self.holder_passport, self.tenant_id.as_deref())? {
            Ok(giver) => giver,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let resource = match Resource::parse(&self.resource) {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let bad_sha = self.release_commit_sha.as_deref().and_then(|sha| check_name("release_commit_sha", sha));
        if let Some(refusal) = match bad_sha {
            Some(refusal) => Some(refusal),
            // Told below, of a card that he holds.
            None if self.to_passport == giver => None,
            None => refuse_receiver(tx, &at.caller.tenant, &self.to_passport)?,
        } {
            return Ok(Err(refusal));
        }
        let Some(hold) = own(tx, at, &resource, &giver)? else {
            return release::not_held(tx, at, &resource, &giver).map(Err);
        };
        if self.to_passport == giver {
            return Ok(Err(Refusal::invalid("to_passport", "holds the card already")));
        }
        if at.under.is_some_and(|token| token != hold.token) {
            return Ok(Err(not_this_card(at, &resource)));
        }
        hand(tx, at, hold, &resource, &self.to_passport, self.release_commit_sha, 0)
    }
}

/// A card that the holder had before this entry.
fn own(view: &impl Read, at: &Stamp, resource: &Resource, holder: &str) -> Result<Option<Hold>, StorageError> {
    let held = Held::now(view, &at.caller.tenant, at.lease_now).on(resource)?;
    Ok(held.into_iter().find(|hold| hold.holder == holder && hold.token != at.revision))
}

fn refuse_receiver(view: &impl Read, tenant: &str, to: &str) -> Result<Option<Refusal>, StorageError> {
    if let Some(refusal) = check_name("to_passport", to) {
        return Ok(Some(refusal));
    }
    let known: Option<Passport> = view.get(tenant, &Key::new().text(to))?;
    if known.is_none() {
        return Ok(Some(Refusal::not_found("passport", to)));
    }
    Ok(is_revoked(view, tenant, to)?.then(|| Refusal::invalid("to_passport", "is revoked; name another")))
}

/// `n` tells apart the cards of one entry.
fn hand(tx: &mut impl Tx, at: &Stamp, hold: Hold, resource: &Resource, to: &str, sha: Option<String>, n: u64) -> Applied<Transferred> {
    let tenant = &at.caller.tenant;
    let card = Punchcard { release_commit_sha: sha, ..indexed(tx, tenant, &hold.id)? };
    let ask = Ask::again(&card, resource.clone(), to);
    let released = end(tx, at, card, Ending::Transferred, &mut 0)?;
    let waited = queue::own(tx, tenant, resource, to)?;
    let card = grant(tx, at, &ask, n, waited.as_ref().map(|ticket| ticket.id.as_str()))?;
    if let Some(ticket) = waited {
        queue::close(tx, at, ticket.claimed(), Fate::Granted { card: card.id.clone() })?;
    }
    match deadlock::circle(tx, tenant, to, at.lease_now)? {
        Some(circle) => Ok(Err(Refusal::Deadlock { resource: resource.to_string(), circle })),
        None => Ok(Ok(Transferred { released, card })),
    }
}

/// Hands all cards of a giver that are still his to another: those of a package that is accepted. Tells what came over, and
/// which resources did not.
pub(crate) fn hand_all(
    tx: &mut impl Tx,
    at: &Stamp,
    giver: &str,
    to: &str,
    resources: &[String],
) -> Applied<(Vec<Punchcard>, Vec<String>)> {
    let (mut cards, mut lost) = (Vec::new(), Vec::new());
    for (n, name) in (0..).zip(resources) {
        let resource = Resource::parse(name).map_err(queue::stored)?;
        match own(tx, at, &resource, giver)? {
            // An entry's own card has the number 0, and those from the queue that of a revision.
            Some(hold) if giver != to => match hand(tx, at, hold, &resource, to, None, u64::MAX - n)? {
                Ok(transferred) => cards.push(transferred.card),
                Err(refusal) => return Ok(Err(refusal)),
            },
            _ => lost.push(name.clone()),
        }
    }
    Ok(Ok((cards, lost)))
}

/// The normal spellings of what is to go with a package; each has to be held by the caller.
pub(crate) fn check_all(view: &impl Read, at: &Stamp, field: &str, resources: &[String]) -> Applied<Vec<String>> {
    if resources.len() > CARDS_PER_CALL_MAX {
        return Ok(Err(too_many(field, resources.len())));
    }
    let mut names: Vec<String> = Vec::new();
    for spelling in resources {
        let resource = match Resource::parse(spelling) {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if own(view, at, &resource, &at.caller.passport)?.is_none() {
            return release::not_held(view, at, &resource, &at.caller.passport).map(Err);
        }
        if !names.contains(&resource.to_string()) {
            names.push(resource.to_string());
        }
    }
    Ok(Ok(names))
}

fn too_many(field: &str, size: usize) -> Refusal {
    Refusal::TooLong { field: field.into(), size: size as u64, limit: CARDS_PER_CALL_MAX as u64, unit: "entries".into() }
}

/// Renews many cards of a holder in one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RenewPunchcards {
    pub holder_passport: String,
    pub tenant_id: Option<String>,
    /// None: all that the holder has.
    pub resources: Vec<String>,
    /// For each as long as before when absent.
    pub ttl_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Renewed {
    pub cards: Vec<Punchcard>,
    /// What was named and is not the holder's, or no longer. The others are renewed all the same.
    pub not_held: Vec<String>,
}

impl RenewPunchcards {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Renewed> {
        let holder = match holder(tx, at, self.holder_passport, self.tenant_id.as_deref())? {
            Ok(holder) => holder,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(ttl_ms) = self.ttl_ms.filter(|ttl_ms| !(LEASE_TTL_MS_MIN..=LEASE_TTL_MS_MAX).contains(ttl_ms)) {
            let problem = format!("must be {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX}, not {ttl_ms}");
            return Ok(Err(Refusal::invalid("ttl_ms", problem)));
        }
        if self.resources.len() > CARDS_PER_CALL_MAX {
            return Ok(Err(too_many("resources", self.resources.len())));
        }
        let (mut ids, mut not_held): (Vec<String>, _) = (Vec::new(), Vec::new());
        for spelling in &self.resources {
            let resource = match Resource::parse(spelling) {
                Ok(resource) => resource,
                Err(refusal) => return Ok(Err(refusal)),
            };
            match own(tx, at, &resource, &holder)? {
                Some(hold) if ids.contains(&hold.id) => {}
                Some(hold) => ids.push(hold.id),
                None => not_held.push(resource.to_string()),
            }
        }
        if self.resources.is_empty() {
            ids = match all_of(tx, at, &holder)? {
                Ok(ids) => ids,
                Err(refusal) => return Ok(Err(refusal)),
            };
        }
        let mut cards = Vec::new();
        for id in ids {
            cards.push(renew(tx, at, &id, |card| card.ttl_ms = self.ttl_ms.unwrap_or(card.ttl_ms))?);
        }
        Ok(Ok(Renewed { cards, not_held }))
    }
}

fn all_of(view: &impl Read, at: &Stamp, holder: &str) -> Applied<Vec<String>> {
    let tenant = &at.caller.tenant;
    let order = by_holder(tenant, holder, Status::Held);
    let mut ids = Vec::new();
    let rows = view.scan_bytes(Table::Index, order.as_bytes(), &order.after_prefix(), Direction::Ascending, CARDS_PER_CALL_MAX + 1)?;
    if rows.len() > CARDS_PER_CALL_MAX {
        let problem = format!("must name which cards: `{holder}` has more than {CARDS_PER_CALL_MAX}");
        return Ok(Err(Refusal::invalid("resources", problem)));
    }
    for (_, id) in rows {
        let card = indexed(view, tenant, &text(&id)?)?;
        if card.is_live(at.lease_now) && card.fencing_token != Revision(at.revision.0) {
            ids.push(card.id);
        }
    }
    Ok(Ok(ids))
}
