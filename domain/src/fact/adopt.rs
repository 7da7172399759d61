//! Private facts of one passport, copied to another when passports split or merge.

use serde::Serialize;

use super::place::daemon_owned;
use super::{Draft, Fact, Head, active, change, head, numbered_version};
use crate::key::Key;
use crate::limit::ADOPTED_FACTS_MAX;
use crate::record::ReadRecords;
use crate::refusal::{Applied, Refusal};
use crate::stamp::Stamp;
use crate::tx::Tx;

/// What happens where the receiving passport keeps another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnConflict {
    TakeTheirs,
    KeepOurs,
    Refuse,
}

/// One pair under which both kept another value, and what became of it. Stands in receipts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Conflict {
    pub entity: String,
    pub key: String,
    /// `prefer_source` or `prefer_target`.
    pub resolution: &'static str,
    pub chosen_fact_id: String,
}

pub(crate) struct Adopted {
    /// How many were copied.
    pub facts: u64,
    pub conflicts: Vec<Conflict>,
}

/// Copies the active private facts of `from` to `to`. A copy names the receipt and keeps the age of what it was made of. What
/// the service files as evidence stays where it is.
pub(crate) fn adopt(tx: &mut impl Tx, at: &Stamp, from: &str, to: &str, on_conflict: OnConflict, receipt_id: &str) -> Applied<Adopted> {
    let tenant = &at.caller.tenant;
    let pairs = tx.page::<Head>(tenant, &Key::new().text(from), None, ADOPTED_FACTS_MAX)?;
    if pairs.next.is_some() {
        let problem = format!("has more than {ADOPTED_FACTS_MAX} private facts, which is the most that go over in one step");
        return Ok(Err(Refusal::invalid(from, problem)));
    }
    let mut adopted = Adopted { facts: 0, conflicts: Vec::new() };
    // The number 0 is that of a fact which a command stores for itself.
    for (n, theirs) in (1..).zip(pairs.items) {
        let Some(fact) = active(tx, &theirs)?.filter(|fact| daemon_owned(&fact.entity).is_none()) else { continue };
        let pair = head(tx, tenant, to, &fact.entity, &fact.key)?;
        let ours = active(tx, &pair)?;
        let differs = match &ours {
            Some(ours) if ours.value == fact.value => continue,
            ours => ours.clone(),
        };
        match (&differs, on_conflict) {
            (Some(ours), OnConflict::Refuse) => {
                let (expected, found) = ("the value of the source".into(), "another value".into());
                return Ok(Err(Refusal::Changed { what: "fact".into(), id: ours.fact_id.clone(), expected, found }));
            }
            (Some(ours), OnConflict::KeepOurs) => {
                adopted.conflicts.push(conflict(ours, "prefer_target", &ours.fact_id));
                continue;
            }
            (Some(_), OnConflict::TakeTheirs) | (None, _) => {}
        }
        let draft = Draft {
            value: fact.value.clone(),
            confidence: fact.confidence,
            horizon_class: fact.horizon_class,
            source_receipt: Some(receipt_id.into()),
        };
        let (copy, _) = numbered_version(tx, at, n, pair, ours, Vec::new(), draft)?;
        if differs.is_some() {
            adopted.conflicts.push(conflict(&copy, "prefer_source", &copy.fact_id));
        }
        change(tx, copy, |copy| copy.reverified_at = Some(fact.anchor()));
        adopted.facts += 1;
    }
    Ok(Ok(adopted))
}

fn conflict(fact: &Fact, resolution: &'static str, chosen_fact_id: &str) -> Conflict {
    Conflict { entity: fact.entity.clone(), key: fact.key.clone(), resolution, chosen_fact_id: chosen_fact_id.into() }
}
