//! Change events: what happened at which revision, for watchers.
//!
//! A command adds its events to the same writes as its effect, so nobody sees the one without the other. Keys are
//! `tenant / revision / n`.

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::key::Key;
use crate::limit::EVENTS_KEPT_MAX;
use crate::lineage::Lineage;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::stamp::{Revision, Stamp};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The log index of its entry.
    pub revision: Revision,
    /// Stable words such as `fact.stored` or `punchcard.granted`.
    pub kind: String,
    /// The id of the record that changed.
    pub id: String,
    /// What a watcher needs in order not to read again; never a secret of one agent.
    pub about: serde_json::Value,
}

/// How many of the oldest events go at once.
const COMPACTED_TOGETHER: usize = 16;

/// Every kind there is, in order. One that is added here is told of in docs/events.md too, which a test of the gateway sees to.
#[rustfmt::skip]
pub const KINDS: [&str; 78] = [
    "approval.approved", "approval.approved_once", "approval.escalated", "approval.expired", "approval.policy_set",
    "approval.rejected", "approval.requested", "artefact.put", "audit.exported", "capability.audited", "constraint.declared",
    "corpus.changed", "decision.recorded", "document.ingested", "document.removed", "edge.deleted", "edge.stored", "entity.deleted",
    "entity.stored", "fact.deleted", "fact.horizon_set", "fact.recovered", "fact.reinstated", "fact.reverified", "fact.stored",
    "facts.consolidated", "facts.forgotten", "facts.purged", "facts.recovered", "gap.noted", "handoff.accepted", "handoff.created",
    "kind.registered", "memory.use_acknowledged", "notice.delivered", "notice.given_up", "notice.not_made", "observations.appended",
    "orchestrator.attached", "orchestrator.changed", "orchestrator.created", "orchestrator.detached", "output.attested",
    "passport.device_linked", "passport.issued", "passport.merged", "passport.revoked", "passport.split", "passport.tier_raised",
    "project.changed", "project.created", "punchcard.expired", "punchcard.force_released", "punchcard.granted", "punchcard.queued",
    "punchcard.released", "punchcard.renewed", "punchcard.wait_ended", "repo.registered", "repo.scanned", "session.announced",
    "session.archived", "session.cleared", "session.deleted", "session.expired", "session.lapsed", "session.planned", "session.saved",
    "session.unarchived", "usage.budget_deleted", "usage.budget_set", "usage.over_budget", "webhook.deleted", "webhook.set",
    "work.commented", "work.created", "work.moved", "work.ready",
];

/// Adds an event of the running command.
pub fn emit(tx: &mut impl Tx, at: &Stamp, kind: &str, id: &str, about: serde_json::Value) -> Result<(), StorageError> {
    debug_assert!(KINDS.contains(&kind), "`{kind}` is not in the list of kinds");
    let event = Event { revision: at.entry, kind: kind.into(), id: id.into(), about };
    let mut kept = kept(tx, &at.caller.tenant)?;
    let n = if kept.last == at.entry { kept.of_last } else { 0 };
    (kept.last, kept.of_last) = (at.entry, n + 1);
    tx.put_bytes(Table::Events, prefix(&at.caller.tenant).number(at.entry.0).number(n).into_bytes(), codec::encode(&event));

    kept.count += 1;
    // The oldest go when enough new ones have come: together, since looking for them costs as much as all else of a small write.
    // Watchers behind them are told.
    if kept.count >= EVENTS_KEPT_MAX + COMPACTED_TOGETHER as u64 {
        let tenant = prefix(&at.caller.tenant);
        // Looked for where the last one went: a store has to step over what was deleted before it.
        let from = tenant.clone().number(kept.compacted_through.0);
        for (key, bytes) in
            tx.scan_bytes(Table::Events, from.as_bytes(), &tenant.after_prefix(), Direction::Ascending, COMPACTED_TOGETHER)?
        {
            let oldest: Event = codec::decode(&bytes).map_err(|error| StorageError::new("event", error))?;
            kept.compacted_through = oldest.revision;
            kept.count -= 1;
            tx.delete_bytes(Table::Events, key);
        }
    }
    tx.put(&kept);
    Ok(())
}

/// What a watcher gets next.
#[derive(Clone, Debug, PartialEq)]
pub enum Watched {
    /// In order, with higher revisions than asked for; empty when there are none yet.
    Events(Vec<Event>),
    /// Events up to this revision are gone: the watcher lists anew and goes on from there.
    Compacted { through: Revision },
}

/// How far a tenant's events are gone, and how many are there.
#[derive(Serialize, Deserialize)]
struct Kept {
    tenant: String,
    compacted_through: Revision,
    count: u64,
    /// The last revision that has events, and how many it has.
    #[serde(default)]
    last: Revision,
    #[serde(default)]
    of_last: u64,
}

impl Record for Kept {
    const KIND: Kind = Kind::EventsKept;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

fn kept(view: &(impl Read + ?Sized), tenant: &str) -> Result<Kept, StorageError> {
    let kept: Option<Kept> = view.get(tenant, &Key::new())?;
    Ok(kept.unwrap_or(Kept { tenant: tenant.into(), compacted_through: Revision(0), count: 0, last: Revision(0), of_last: 0 }))
}

/// A tenant that comes from elsewhere begins without events: who watched it there lists anew.
pub(crate) fn begin(tx: &mut impl Tx, tenant: &str, through: Revision) {
    tx.put(&Kept { tenant: tenant.into(), compacted_through: through, count: 0, last: Revision(0), of_last: 0 });
}

/// What comes after `since` in a tenant's events.
pub fn watch(view: &(impl Read + ?Sized), tenant: &str, since: Revision, limit: usize) -> Result<Watched, StorageError> {
    let kept = kept(view, tenant)?;
    if since < kept.compacted_through {
        return Ok(Watched::Compacted { through: kept.compacted_through });
    }
    if let Some(cut) = Lineage::read(view)?.lost(since) {
        return Ok(Watched::Compacted { through: cut.from });
    }
    Ok(Watched::Events(after(view, tenant, since, limit)?))
}

/// Events of a tenant with a higher revision than `since`, in order, at most about `limit` and never half a revision.
fn after(view: &(impl Read + ?Sized), tenant: &str, since: Revision, limit: usize) -> Result<Vec<Event>, StorageError> {
    let tenant = prefix(tenant);
    let from = tenant.clone().number(since.0.saturating_add(1));
    let decode = |(_, bytes): &(Vec<u8>, Vec<u8>)| codec::decode::<Event>(bytes).map_err(|error| StorageError::new("event", error));
    let rows = view.scan_bytes(Table::Events, from.as_bytes(), &tenant.after_prefix(), Direction::Ascending, limit)?;
    let mut events = rows.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
    if rows.len() == limit
        && let Some(last) = events.last().map(|event| event.revision)
    {
        let of_last = tenant.number(last.0);
        let whole = view.scan_bytes(Table::Events, of_last.as_bytes(), &of_last.after_prefix(), Direction::Ascending, usize::MAX)?;
        events.retain(|event| event.revision != last);
        events.extend(whole.iter().map(decode).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(events)
}

fn prefix(tenant: &str) -> Key {
    Key::new().text(tenant)
}

/// As if so many events had come since that those up to a revision are gone.
#[cfg(test)]
pub(crate) fn lose(tx: &mut impl Tx, tenant: &str, through: Revision) -> Result<(), StorageError> {
    let kept = kept(tx, tenant)?;
    tx.put(&Kept { compacted_through: through, ..kept });
    Ok(())
}
