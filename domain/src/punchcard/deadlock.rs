//! Deadlocks: waits that wait for each other, so that only time would end them.
//!
//! Who waits, waits for whoever holds something that overlaps, and for whoever waits for something that overlaps and came
//! first. Such a circle can only close when somebody begins to wait, or when a card is handed to somebody who waits already. So
//! it is looked for there, and whoever closes it is refused and told the circle. The shortest one is told.
//!
//! The search is bounded ([`DEADLOCK_STEPS_MAX`]). Beyond that a wait is let in, and its own time, or that of a lease, ends it.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

use serde::{Deserialize, Serialize};

use super::held::Held;
use super::queue::{self, Ticket, stored};
use super::{Status, by_holder, delay, indexed, text};
use crate::key::Key;
use crate::limit::{DEADLOCK_STEPS_MAX, LEASE_WAITERS_MAX};
use crate::resource::Resource;
use crate::stamp::{LeaseTime, Revision};
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

/// How one passport was reached on the way: who waits for it, with which ticket, and what is in the way.
struct Step {
    waiter: String,
    ticket: String,
    by: By,
}

enum By {
    Card(String),
    Ticket(String),
}

/// The circle of waits that leads from a passport back to itself, if there is one.
pub(super) fn circle(view: &impl Read, tenant: &str, passport: &str, now: LeaseTime) -> Result<Option<Vec<Wait>>, StorageError> {
    if !can_be_waited_for(view, tenant, passport)? {
        return Ok(None);
    }
    let mut reached: BTreeMap<String, Step> = BTreeMap::new();
    // Of each resource, up to where in its queue everybody was reached: who came before is the same for all behind. Not from the
    // passport's own places: what it holds itself is in the way of those before it, and was left out there.
    let mut queues: BTreeMap<String, Revision> = BTreeMap::new();
    let mut next = VecDeque::from([passport.to_string()]);
    let mut steps = 0;
    while let Some(waiter) = next.pop_front() {
        let mine = queue::by_holder(tenant, &waiter);
        for (_, id) in view.scan_bytes(Table::Index, mine.as_bytes(), &mine.after_prefix(), Direction::Ascending, LEASE_WAITERS_MAX)? {
            let ticket = queue::indexed(view, tenant, &text(&id)?)?;
            if ticket.deadline <= now || queues.get(&ticket.resource).is_some_and(|reached| *reached >= ticket.since) {
                continue;
            }
            let resource = Resource::parse(&ticket.resource).map_err(stored)?;
            let held = Held::now(view, tenant, now);
            let others = held.others(&resource, &waiter, DEADLOCK_STEPS_MAX)?;
            let mut in_the_way: Vec<(String, By)> = others.into_iter().map(|hold| (hold.holder, By::Card(hold.id))).collect();
            // Who takes nothing new passes by those that came first.
            if !held.covers(&resource, &waiter)? {
                let before = queue::before(view, &ticket, now)?;
                in_the_way.extend(before.into_iter().map(|place| (place.holder, By::Ticket(place.id))));
                if waiter != passport {
                    queues.insert(ticket.resource.clone(), ticket.since);
                }
            }
            for (holder, by) in in_the_way {
                steps += 1;
                let step = Step { waiter: waiter.clone(), ticket: ticket.id.clone(), by };
                if holder == passport {
                    return way_back(view, tenant, passport, &reached, step).map(Some);
                }
                if steps >= DEADLOCK_STEPS_MAX {
                    return Ok(None);
                }
                if let Entry::Vacant(first) = reached.entry(holder) {
                    next.push_back(first.key().clone());
                    first.insert(step);
                }
            }
        }
    }
    Ok(None)
}

/// Whether anybody can wait for a passport: it has a card, or another place in a queue. Most that begin to wait have neither.
fn can_be_waited_for(view: &impl Read, tenant: &str, passport: &str) -> Result<bool, StorageError> {
    let some = |order: Key, many| view.scan_bytes(Table::Index, order.as_bytes(), &order.after_prefix(), Direction::Ascending, many);
    Ok(!some(by_holder(tenant, passport, Status::Held), 1)?.is_empty() || some(queue::by_holder(tenant, passport), 2)?.len() > 1)
}

fn way_back(
    view: &impl Read,
    tenant: &str,
    passport: &str,
    reached: &BTreeMap<String, Step>,
    last: Step,
) -> Result<Vec<Wait>, StorageError> {
    let told = |holder: &str, step: &Step| {
        let (held, queued) = match &step.by {
            By::Card(id) => (indexed(view, tenant, id)?.resource, false),
            By::Ticket(id) => (queue::indexed(view, tenant, id)?.resource, true),
        };
        let wants = queue::indexed(view, tenant, &step.ticket)?.resource;
        Ok::<_, StorageError>(Wait { waiter: step.waiter.clone(), wants, holder: holder.into(), held, queued })
    };
    let mut circle = vec![told(passport, &last)?];
    let mut waiter = last.waiter;
    while waiter != passport {
        let Some(step) = reached.get(&waiter) else { break };
        circle.push(told(&waiter, step)?);
        waiter = step.waiter.clone();
    }
    circle.reverse();
    Ok(circle)
}
