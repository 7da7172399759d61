//! Looking at cards: who holds a resource now, and all cards there were.

use serde::{Deserialize, Serialize};

use super::held::Held;
use super::{Mode, Punchcard, Status, by_holder, by_resource, by_status, indexed, text};
use crate::cursor::Cursors;
use crate::flag;
use crate::identity::{check_name, check_tenant};
use crate::key::Key;
use crate::query;
use crate::refusal::Applied;
use crate::resource::Resource;
use crate::stamp::ReadStamp;
use crate::tx::{Direction, Read, StorageError, Table};

/// May the caller (or `passport`) change this resource?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckPunchcard {
    pub resource: String,
    pub mode: Option<Mode>,
    pub passport: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PunchcardChecked {
    pub held_by_other: bool,
    pub enforce: bool,
    pub resource: String,
    /// The overlapping card of another, or else the passport's own.
    pub card: Option<Punchcard>,
    pub left_ms: Option<u64>,
}

impl CheckPunchcard {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PunchcardChecked> {
        let resource = match Resource::parse(&self.resource) {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = self.passport.as_deref().and_then(|passport| check_name("passport", passport)) {
            return Ok(Err(refusal));
        }
        let rule = flag::value(view, flag::PUNCHCARD)?;
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let passport = self.passport.as_ref().unwrap_or(&at.caller.passport);
        let held = Held { view, tenant, now };
        // Switched off, cards mean nothing to anybody.
        let hold = match rule == "off" {
            true => None,
            false => match held.other(&resource, passport)? {
                Some(other) => Some(other),
                None => held.overlapping(&resource, passport)?,
            },
        };
        let card = match &hold {
            Some(hold) => Some(indexed(view, tenant, &hold.id)?),
            None => None,
        };
        Ok(Ok(PunchcardChecked {
            held_by_other: hold.is_some_and(|hold| hold.holder != *passport),
            enforce: rule == "enforce",
            resource: resource.to_string(),
            left_ms: card.as_ref().map(|card| now.ms_until(card.deadline)),
            card,
        }))
    }
}

/// Cards of the caller's tenant, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListPunchcards {
    pub resource: Option<String>,
    pub holder_passport: Option<String>,
    pub tenant_id: Option<String>,
    pub status: Option<Status>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Punchcards {
    pub punchcards: Vec<Punchcard>,
    pub next_cursor: Option<String>,
}

impl ListPunchcards {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Punchcards> {
        let holder = self.holder_passport.as_deref();
        if let Some(refusal) =
            check_tenant(&at.caller, self.tenant_id.as_deref()).or_else(|| holder.and_then(|holder| check_name("holder_passport", holder)))
        {
            return Ok(Err(refusal));
        }
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let limit = match query::rows(self.limit) {
            Ok(limit) => limit,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let cursors = Cursors::of("punchcards", &at.caller, &(&self.resource, &self.holder_passport, self.status));
        let from = match self.cursor.as_deref().map(|cursor| cursors.open(cursor)).transpose() {
            Ok(from) => from.unwrap_or_default(),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let resource = match self.resource.as_deref().map(Resource::parse).transpose() {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let statuses = Status::ALL.into_iter().filter(|status| self.status.is_none_or(|wanted| wanted == *status));
        let orders: Vec<Key> = match (&resource, &self.holder_passport) {
            (Some(resource), _) => vec![by_resource(tenant, &resource.to_string())],
            (None, Some(holder)) => statuses.map(|status| by_holder(tenant, holder, status)).collect(),
            (None, None) => statuses.map(|status| by_status(tenant, status)).collect(),
        };
        let (ids, next) = match &resource {
            // The live cards of a resource are few and at hand, however long its history is.
            Some(resource) if self.status == Some(Status::Held) => {
                let holds = Held { view, tenant, now }.on(resource)?;
                (holds.into_iter().rev().map(|hold| hold.id).collect(), None)
            }
            _ => merge(view, &orders, &from, limit)?,
        };
        let mut punchcards = Vec::new();
        for id in ids {
            let card = indexed(view, tenant, &id)?.seen_at(now);
            let is_wanted = self.status.is_none_or(|status| card.status == status)
                && self.holder_passport.as_ref().is_none_or(|holder| card.holder == *holder);
            // A page can be short, or even empty, where filters meet; the cursor leads on.
            if is_wanted {
                punchcards.push(card);
            }
        }
        Ok(Ok(Punchcards { punchcards, next_cursor: next.map(|next| cursors.seal(&next)) }))
    }
}

/// The next ids of several orders, and where the page after begins.
fn merge(view: &impl Read, orders: &[Key], from: &[u8], limit: usize) -> Result<(Vec<String>, Option<Vec<u8>>), StorageError> {
    let mut rows = Vec::new();
    for order in orders {
        let first = order.clone().raw(from);
        for (key, id) in view.scan_bytes(Table::Index, first.as_bytes(), &order.after_prefix(), Direction::Ascending, limit + 1)? {
            rows.push((key[order.as_bytes().len()..].to_vec(), text(&id)?));
        }
    }
    rows.sort();
    let next = rows.get(limit).map(|(position, _)| position.clone());
    rows.truncate(limit);
    Ok((rows.into_iter().map(|(_, id)| id).collect(), next))
}
