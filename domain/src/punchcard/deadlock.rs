//! Deadlocks: waits that wait for each other, so that only time would end them.
//!
//! Who waits, waits for whoever holds something that overlaps, and for whoever waits for something that overlaps and came
//! first. Such a circle can only close when somebody begins to wait, or when a card is handed to somebody who waits already. So
//! it is looked for there, and whoever closes it is refused and told the circle. The shortest one is told.
//!
//! The search is bounded ([`DEADLOCK_STEPS_MAX`]). Beyond that a wait is let in, and its own time, or that of a lease, ends it.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::held::Held;
use super::queue::{self, Ticket, stored};
use super::{delay, indexed, text};
use crate::limit::{DEADLOCK_STEPS_MAX, LEASE_WAITERS_MAX};
use crate::resource::Resource;
use crate::stamp::LeaseTime;
use crate::tx::{Direction, Read, StorageError, Table};

/// One who waits, and for whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    pub waiter: String,
    pub wants: String,
    /// Who is in the way, and with what.
    pub holder: String,
    pub held: String,
    /// The one in the way waits too, and came first.
    pub queued: bool,
}

/// All that is in the way of a ticket: live cards of others, what such cards keep closed, and earlier tickets of others.
pub(super) fn blockers(view: &impl Read, ticket: &Ticket, now: LeaseTime, limit: usize) -> Result<Vec<Wait>, StorageError> {
    let Ticket { tenant, holder: waiter, .. } = ticket;
    let resource = Resource::parse(&ticket.resource).map_err(stored)?;
    let held = Held::now(view, tenant, now);
    let wait = |holder: String, held: String, queued| Wait { waiter: waiter.clone(), wants: ticket.resource.clone(), holder, held, queued };
    let mut found = Vec::new();
    for hold in held.others(&resource, waiter, limit)? {
        found.push(wait(hold.holder, indexed(view, tenant, &hold.id)?.resource, false));
    }
    if found.is_empty()
        && let Some(hold) = delay::other(view, tenant, &resource, waiter, now)?
    {
        found.push(wait(hold.holder, indexed(view, tenant, &hold.id)?.resource, false));
    }
    // Who takes nothing new passes by those that came first.
    if !held.covers(&resource, waiter)? {
        for place in queue::before(view, ticket, now)? {
            if found.len() >= limit {
                break;
            }
            found.push(wait(place.holder, queue::indexed(view, tenant, &place.id)?.resource, true));
        }
    }
    Ok(found)
}

/// The circle of waits that leads from a passport back to itself, if there is one.
pub(super) fn circle(view: &impl Read, tenant: &str, passport: &str, now: LeaseTime) -> Result<Option<Vec<Wait>>, StorageError> {
    // By whom each one was reached, with the wait that leads to it.
    let mut reached: BTreeMap<String, Wait> = BTreeMap::new();
    let mut next = VecDeque::from([passport.to_string()]);
    let mut steps = 0;
    while let Some(waiter) = next.pop_front() {
        let mine = queue::by_holder(tenant, &waiter);
        for (_, id) in view.scan_bytes(Table::Index, mine.as_bytes(), &mine.after_prefix(), Direction::Ascending, LEASE_WAITERS_MAX)? {
            let ticket = queue::indexed(view, tenant, &text(&id)?)?;
            if ticket.deadline <= now {
                continue;
            }
            for wait in blockers(view, &ticket, now, DEADLOCK_STEPS_MAX - steps)? {
                steps += 1;
                if wait.holder == passport {
                    return Ok(Some(way_back(&reached, passport, wait)));
                }
                if steps >= DEADLOCK_STEPS_MAX {
                    return Ok(None);
                }
                if !reached.contains_key(&wait.holder) {
                    next.push_back(wait.holder.clone());
                    reached.insert(wait.holder.clone(), wait);
                }
            }
        }
    }
    Ok(None)
}

fn way_back(reached: &BTreeMap<String, Wait>, passport: &str, last: Wait) -> Vec<Wait> {
    let mut circle = vec![last];
    while let Some(wait) = circle.last().filter(|wait| wait.waiter != passport).and_then(|wait| reached.get(&wait.waiter)) {
        circle.push(wait.clone());
    }
    circle.reverse();
    circle
}
