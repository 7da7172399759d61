//! Looking at cards: who holds a resource now, and all cards there were.

use serde::{Deserialize, Serialize};

use super::held::{Held, Hold};
use super::queue::{self, Ticket};
use super::{Mode, Punchcard, Status, Wait, by_holder, by_resource, by_status, deadlock, delay, indexed, text};
use crate::cursor::Cursors;
use crate::flag;
use crate::identity::{check_name, check_tenant};
use crate::key::Key;
use crate::limit::{REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES};
use crate::query;
use crate::refusal::Applied;
use crate::resource::Resource;
use crate::stamp::{ReadStamp, Revision, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table};
use crate::work;

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
    /// The card was lost, and its delay keeps the resource closed to others until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_until: Option<UnixMs>,
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
        let held = Held::now(view, tenant, now);
        // Switched off, cards mean nothing to anybody.
        let (hold, settling) = match rule == "off" {
            true => (None, None),
            false => match held.other(&resource, passport)? {
                Some(other) => (Some(other), None),
                None => match delay::other(view, tenant, &resource, passport, now)? {
                    Some(lost) => (Some(lost.clone()), Some(lost.deadline)),
                    None => (held.overlapping(&resource, passport)?, None),
                },
            },
        };
        let card = match &hold {
            Some(hold) => Some(indexed(view, tenant, &hold.id)?),
            None => None,
        };
        Ok(Ok(PunchcardChecked {
            held_by_other: hold.as_ref().is_some_and(|hold| hold.holder != *passport),
            enforce: rule == "enforce",
            resource: resource.to_string(),
            left_ms: hold.map(|hold| now.ms_until(hold.deadline)),
            closed_until: settling.map(|until| UnixMs(at.wall.0.saturating_add(now.ms_until(until)))),
            card,
        }))
    }
}

/// Is this token good for this resource, now? For whoever writes to something outside of the cluster under a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyToken {
    pub resource: String,
    pub fencing_token: Revision,
    /// Who has to hold the card; anybody when absent.
    pub holder_passport: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenVerified {
    pub resource: String,
    /// The live card of that token, if it covers the resource.
    pub card: Option<Punchcard>,
    pub left_ms: Option<u64>,
    /// The live card that covers or overlaps the resource when the token is not good.
    pub current: Option<Punchcard>,
}

impl VerifyToken {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<TokenVerified> {
        let resource = match Resource::parse(&self.resource) {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let holder = self.holder_passport.as_deref();
        if let Some(refusal) = holder.and_then(|holder| check_name("holder_passport", holder)) {
            return Ok(Err(refusal));
        }
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let held = Held::now(view, tenant, now);
        let is_good = |hold: &Hold| hold.token == self.fencing_token && holder.is_none_or(|holder| hold.holder == holder);
        let mut found = TokenVerified { resource: resource.to_string(), card: None, left_ms: None, current: None };
        match held.covering(&resource, is_good)? {
            Some(hold) => {
                found.left_ms = Some(now.ms_until(hold.deadline));
                found.card = Some(indexed(view, tenant, &hold.id)?);
            }
            None => {
                if let Some(hold) = held.any(&resource)? {
                    found.current = Some(indexed(view, tenant, &hold.id)?);
                }
            }
        }
        Ok(Ok(found))
    }
}

/// Who waits for what, and for whom: by waiter and resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListBlocked {
    /// Only what overlaps this.
    pub resource: Option<String>,
    pub holder_passport: Option<String>,
    pub limit: u64,
    pub cursor: Option<String>,
}

/// A place in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Blocked {
    pub ticket: String,
    pub holder: String,
    pub resource: String,
    pub mode: Mode,
    pub reason: Option<String>,
    pub since: Revision,
    pub left_ms: u64,
    /// What is in the way, as much as is told of one; nothing: it is next.
    pub behind: Vec<Wait>,
    pub more_behind: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockedList {
    pub waiters: Vec<Blocked>,
    pub next_cursor: Option<String>,
}

impl ListBlocked {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<BlockedList> {
        let (tenant, now) = (&at.caller.tenant, at.lease_now);
        let holder = self.holder_passport.as_deref();
        if let Some(refusal) = holder.and_then(|holder| check_name("holder_passport", holder)) {
            return Ok(Err(refusal));
        }
        let resource = match self.resource.as_deref().map(Resource::parse).transpose() {
            Ok(resource) => resource,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let cursors = Cursors::of("blocked", &at.caller, &(&self.resource, &self.holder_passport));
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let order = holder.map_or_else(|| queue::by_any_holder(tenant), |holder| queue::by_holder(tenant, holder));
        let read = |id: &[u8]| {
            let ticket = queue::indexed(view, tenant, &text(id)?)?;
            let overlaps = match &resource {
                Some(wanted) => Resource::parse(&ticket.resource).map_err(queue::stored)?.overlaps(wanted),
                None => true,
            };
            if !overlaps || ticket.deadline <= now {
                return Ok(None);
            }
            let mut behind = deadlock::blockers(view, &ticket, now, WAITS_SHOWN + 1)?;
            let more_behind = behind.len() > WAITS_SHOWN;
            behind.truncate(WAITS_SHOWN);
            let left_ms = ticket.left_ms(now);
            let Ticket { id, holder, resource, mode, reason, since, .. } = ticket;
            let waiter = Blocked { ticket: id, holder, resource, mode, reason, since, left_ms, behind, more_behind };
            let bytes = serde_json::to_string(&waiter).map_or(0, |json| json.len()) + ROW_NAMES_BYTES;
            Ok(Some((waiter, bytes)))
        };
        let found = work::page(view, Table::Index, &order, from.as_deref(), limit, REPLY_BYTES_MAX - 2 * REPLY_WRAPPER_BYTES, read)?;
        Ok(Ok(BlockedList { waiters: found.items, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}

/// Of each that waits, who is in the way.
const WAITS_SHOWN: usize = 4;
const ROW_NAMES_BYTES: usize = 160;

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
                let holds = Held::now(view, tenant, now).on(resource)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::punchcard::PunchIn;
    use crate::transcript::{World, person};

    fn punch_in(world: &mut World, time: &str, who: &str, resource: &str, wait_ms: u64) {
        let command = PunchIn {
            resource: resource.into(),
            holder_passport: who.into(),
            tenant_id: None,
            mode: None,
            reason: Some("a fix".into()),
            ttl_ms: Some(600_000),
            expires_at: None,
            wait_ms: Some(wait_ms),
            ..PunchIn::default()
        };
        world.call(time, person(who), None, command).unwrap();
    }

    fn list_of(limit: u64, cursor: Option<String>) -> ListBlocked {
        ListBlocked { resource: None, holder_passport: None, limit, cursor }
    }

    #[test]
    fn those_who_wait_are_listed_page_by_page_until_their_wait_is_over() {
        let mut world = World::new();
        punch_in(&mut world, "0s", "mara", "file://a", 0);
        punch_in(&mut world, "0s", "mara", "file://b", 0);
        punch_in(&mut world, "1s", "jon", "file://b", 60_000);
        punch_in(&mut world, "2s", "ada", "file://a", 10_000);
        let mut list = |time: &str, cursor: Option<String>| {
            let found = world.ask(time, person("olga"), list_of(1, cursor)).unwrap();
            let told: Vec<String> =
                found.waiters.iter().map(|waiter| format!("{} {} {}", waiter.holder, waiter.resource, waiter.left_ms)).collect();
            (told, found.next_cursor)
        };
        let (first, cursor) = list("3s", None);
        assert_eq!(first, ["ada file://a 9000"]);
        let (second, end) = list("3s", cursor);
        assert_eq!((second, end), (vec!["jon file://b 58000".to_string()], None));
        assert_eq!(list("30s", None).0, Vec::<String>::new(), "ada's wait is over");
        let strangers = world.ask("30s", crate::Principal { tenant: "other".into(), ..person("olga") }, list_of(9, None));
        assert_eq!(strangers.unwrap().waiters, []);
    }
}
