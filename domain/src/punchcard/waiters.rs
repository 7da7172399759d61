//! Who waits for cards, as people see it.

use serde::{Deserialize, Serialize};

use super::Mode;
use super::queue::{by_any_holder, indexed};
use crate::cursor::Cursors;
use crate::query;
use crate::record::ReadRecords;
use crate::refusal::Applied;
use crate::stamp::{ReadStamp, Revision};
use crate::tx::{Read, Table};

/// Calls of the caller's tenant that wait for a card, by who waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListWaiters {
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiter {
    pub ticket: String,
    pub resource: String,
    pub holder: String,
    pub mode: Mode,
    pub reason: Option<String>,
    /// The place in the queue: lower ones are served first.
    pub since: Revision,
    /// How long it waits yet.
    pub left_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiters {
    pub waiters: Vec<Waiter>,
    pub next_cursor: Option<String>,
}

impl ListWaiters {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Waiters> {
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("waiters", &at.caller, &());
        let (limit, from) = match query::rows(self.limit).and_then(|limit| Ok((limit, cursors.open_from(self.cursor.as_deref())?))) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let order = by_any_holder(tenant);
        let from = from.map(|position| order.clone().raw(&position).into_bytes());
        let (rows, next) = view.page_bytes(Table::Index, &order, from.as_deref(), limit)?;
        let mut waiters = Vec::new();
        for (_, id) in rows {
            let ticket = indexed(view, tenant, &String::from_utf8_lossy(&id))?;
            // One whose wait is over waits no more, swept or not.
            if ticket.deadline > at.lease_now {
                waiters.push(Waiter {
                    ticket: ticket.id,
                    resource: ticket.resource,
                    holder: ticket.holder,
                    mode: ticket.mode,
                    reason: ticket.reason,
                    since: ticket.since,
                    left_ms: at.lease_now.ms_until(ticket.deadline),
                });
            }
        }
        let next_cursor = next.map(|next| cursors.seal(&next[order.as_bytes().len()..]));
        Ok(Ok(Waiters { waiters, next_cursor }))
    }
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
        };
        world.call(time, person(who), None, command).unwrap();
    }

    #[test]
    fn those_who_wait_are_listed_page_by_page_until_their_wait_is_over() {
        let mut world = World::new();
        punch_in(&mut world, "0s", "mara", "file://a", 0);
        punch_in(&mut world, "0s", "mara", "file://b", 0);
        punch_in(&mut world, "1s", "jon", "file://b", 60_000);
        punch_in(&mut world, "2s", "ada", "file://a", 10_000);
        let mut list = |time: &str, cursor: Option<String>| {
            let found = world.ask(time, person("olga"), ListWaiters { limit: 1, cursor }).unwrap();
            let told: Vec<String> =
                found.waiters.iter().map(|waiter| format!("{} {} {}", waiter.holder, waiter.resource, waiter.left_ms)).collect();
            (told, found.next_cursor)
        };
        let (first, cursor) = list("3s", None);
        assert_eq!(first, ["ada file://a 9000"]);
        let (second, end) = list("3s", cursor);
        assert_eq!((second, end), (vec!["jon file://b 58000".to_string()], None));
        assert_eq!(list("30s", None).0, Vec::<String>::new(), "ada's wait is over");
        let strangers =
            world.ask("30s", crate::Principal { tenant: "other".into(), ..person("olga") }, ListWaiters { limit: 9, cursor: None });
        assert_eq!(strangers.unwrap().waiters, []);
    }
}
