//! Dependencies: what has to be finished before an item is ready.
//!
//! Invariants:
//! * `open_dependencies` of an item is the number of those it depends on that are not finished; both change in one entry.
//! * No item depends on itself, over however many others.
//!
//! Finished is what is complete or deployed, and what is in the archive: what was given up holds nobody back. What is ready is
//! planned, and waits for nothing. What waits can't begin: it is neither created in progress nor moved there, by a claim, a plain
//! move or an approval. Any other move is free, and who knows better takes the dependency away, in the same call if need be.

use std::collections::{BTreeSet, VecDeque};

use serde_json::json;

use super::{State, Work, indexed, missing, work};
use crate::event;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{WORK_DEPENDENCIES_MAX, WORK_DEPENDENCY_STEPS_MAX, WORK_DEPENDENTS_MAX};
use crate::record::{Kind, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::Stamp;
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// So many open dependencies a refusal names.
const UNREADY_TOLD: usize = 5;

/// The items that depend on one. No assignee's name holds a control character, so these rows lie apart from the orders.
fn dependents(tenant: &str, work_id: &str) -> Key {
    kind_prefix(tenant, Kind::WorkOrder).text(&format!("\u{2}{work_id}"))
}

impl Work {
    /// Whether what depends on it can begin.
    pub fn is_finished(&self) -> bool {
        match self.state {
            State::Complete | State::Deployed | State::Archive => true,
            State::Planned | State::InProgress | State::Blocked => false,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.state == State::Planned && self.open_dependencies == 0
    }
}

/// An item as it would be if it depended on these, in place of what it depended on before. Nothing is written.
pub(super) fn with(view: &impl Read, item: Work, wanted: Vec<String>) -> Applied<Work> {
    let wanted: Vec<String> = wanted.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    if wanted.len() > WORK_DEPENDENCIES_MAX {
        let (size, limit) = (wanted.len() as u64, WORK_DEPENDENCIES_MAX as u64);
        return Ok(Err(Refusal::TooLong { field: "depends_on".into(), size, limit, unit: "entries".into() }));
    }
    let (tenant, mut open) = (item.tenant.clone(), 0);
    for id in &wanted {
        if let Some(refusal) = check_name("depends_on", id) {
            return Ok(Err(refusal));
        }
        let Some(other) = work(view, &tenant, id)? else { return Ok(Err(missing("depends_on", id))) };
        open += u64::from(!other.is_finished());
        if !item.depends_on.contains(id) {
            let rows = dependents(&tenant, id);
            let full = view.scan_bytes(Table::Index, rows.as_bytes(), &rows.after_prefix(), Direction::Ascending, WORK_DEPENDENTS_MAX)?;
            if full.len() >= WORK_DEPENDENTS_MAX {
                let problem =
                    format!("has `{id}`, on which {WORK_DEPENDENTS_MAX} items depend already; let this one depend on one of those");
                return Ok(Err(Refusal::invalid("depends_on", problem)));
            }
        }
    }
    if let Some(refusal) = refuse_circle(view, &item, &wanted)? {
        return Ok(Err(refusal));
    }
    Ok(Ok(Work { depends_on: wanted, open_dependencies: open, ..item }))
}

/// Lets the rows of those that it depends on follow an item.
pub(super) fn follow(tx: &mut impl Tx, before: &Work, item: &Work) {
    if before.depends_on == item.depends_on {
        return;
    }
    for id in &before.depends_on {
        tx.delete_index(dependents(&item.tenant, id).text(&item.id));
    }
    for id in &item.depends_on {
        tx.put_index(dependents(&item.tenant, id).text(&item.id), item.id.as_bytes());
    }
}

/// Why an item can't be moved to a state yet, or nothing.
pub(super) fn refuse_begin(view: &impl Read, item: &Work, to: State) -> Result<Option<Refusal>, StorageError> {
    if to != State::InProgress || item.state == to || item.open_dependencies == 0 {
        return Ok(None);
    }
    Ok(Some(Refusal::Unready { work: item.id.clone(), open: open(view, item)?, count: item.open_dependencies }))
}

/// Why an item that is not there yet can't be created as begun, or nothing.
pub(super) fn refuse_begun(view: &impl Read, item: &Work) -> Result<Option<Refusal>, StorageError> {
    if item.state != State::InProgress || item.open_dependencies == 0 {
        return Ok(None);
    }
    let open: Vec<String> = open(view, item)?.iter().map(|id| format!("`{id}`")).collect();
    let problem =
        format!("can't be `in_progress` before what it depends on is finished, such as {}; create it as planned", open.join(", "));
    Ok(Some(Refusal::invalid("state", problem)))
}

/// The open ones among what an item depends on, or the first of many.
fn open(view: &impl Read, item: &Work) -> Result<Vec<String>, StorageError> {
    let mut open = Vec::new();
    for id in &item.depends_on {
        if open.len() < UNREADY_TOLD && !indexed(view, &item.tenant, id.as_bytes())?.is_finished() {
            open.push(id.clone());
        }
    }
    Ok(open)
}

fn refuse_circle(view: &impl Read, item: &Work, wanted: &[String]) -> Result<Option<Refusal>, StorageError> {
    let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from(wanted.to_vec()));
    while let Some(id) = next.pop_front() {
        if id == item.id {
            let problem = format!("would make `{}` wait for itself", item.id);
            return Ok(Some(Refusal::invalid("depends_on", problem)));
        }
        if !seen.insert(id.clone()) {
            continue;
        }
        if seen.len() > WORK_DEPENDENCY_STEPS_MAX {
            let problem = format!("leads to more than {WORK_DEPENDENCY_STEPS_MAX} items; depend on fewer");
            return Ok(Some(Refusal::invalid("depends_on", problem)));
        }
        next.extend(indexed(view, &item.tenant, id.as_bytes())?.depends_on);
    }
    Ok(None)
}

/// Tells those that depend on an item that it was finished, or is not any more.
pub(super) fn moved(tx: &mut impl Tx, at: &Stamp, item: &Work, was_finished: bool) -> Result<(), StorageError> {
    if item.is_finished() == was_finished {
        return Ok(());
    }
    let rows = dependents(&item.tenant, &item.id);
    for (_, id) in tx.scan_bytes(Table::Index, rows.as_bytes(), &rows.after_prefix(), Direction::Ascending, WORK_DEPENDENTS_MAX)? {
        let mut other = indexed(tx, &item.tenant, &id)?;
        other.open_dependencies = match item.is_finished() {
            true => other.open_dependencies.saturating_sub(1),
            false => other.open_dependencies + 1,
        };
        tx.put(&other);
        if item.is_finished() && other.is_ready() {
            event::emit(
                tx,
                at,
                "work.ready",
                &other.id,
                json!({ "project_id": other.project_id, "title": other.title, "assignee": other.assignee }),
            )?;
        }
    }
    Ok(())
}
