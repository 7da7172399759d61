//! Taking back a retirement: a fact that another one's `supersedes`, or a consolidation, retired is active again, as it was.
//!
//! A version that a newer one of its own pair replaced does not come back: two versions would be valid at one instant. Whoever
//! wants that value stores it anew. Invariant: what comes back is the last version of its pair, and the pair has no active one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::rank::State;
use super::{FACT_ID_BYTES_MAX, Fact, at_most, change, daemon_owned, entities, head, only_the_service, some, visible};
use crate::event;
use crate::limit::SUPERSEDES_MAX;
use crate::record::WriteRecords;
use crate::refusal::{Applied, Refusal};
use crate::stamp::Stamp;
use crate::tx::{Read, StorageError, Tx};

/// Brings retired facts back, all or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReinstateFacts {
    pub fact_ids: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactsReinstated {
    /// In the order of their ids.
    pub facts: Vec<ReinstatedFact>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReinstatedFact {
    pub fact_id: String,
    /// The fact that had retired it, which stays as it is.
    pub was_superseded_by: Option<String>,
}

impl ReinstateFacts {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactsReinstated> {
        if self.fact_ids.is_empty() {
            return Ok(Err(Refusal::invalid("fact_ids", "must name at least one fact")));
        }
        if let Err(refusal) = at_most("fact_ids", self.fact_ids.len(), SUPERSEDES_MAX, "ids") {
            return Ok(Err(refusal));
        }
        let (mut retired, mut problems) = (Vec::new(), Vec::new());
        for id in &self.fact_ids {
            if let Err(refusal) = at_most("fact_ids", id.len(), FACT_ID_BYTES_MAX, "bytes") {
                return Ok(Err(refusal));
            }
            match visible(tx, &at.caller, id)? {
                None => problems.push(format!("`{id}` (there is no such fact)")),
                Some(fact) => match problem(tx, &fact)? {
                    Some(problem) => problems.push(format!("`{id}` ({problem})")),
                    None => retired.push(fact),
                },
            }
        }
        if !problems.is_empty() {
            return Ok(Err(Refusal::invalid("fact_ids", format!("names facts that can't come back: {}", some(&problems)))));
        }
        let mut facts = Vec::new();
        for fact in retired {
            facts.push(bring_back(tx, at, fact)?);
        }
        Ok(Ok(FactsReinstated { facts }))
    }
}

/// Why a fact can't come back.
fn problem(view: &impl Read, fact: &Fact) -> Result<Option<String>, StorageError> {
    Ok(match (fact.state(), daemon_owned(&fact.entity)) {
        (State::Active, _) => Some("it is active".into()),
        (State::Deleted, _) => Some("it is deleted".into()),
        (State::Forgotten, _) => Some("it is forgotten".into()),
        (State::Superseded, Some(prefix)) => Some(only_the_service(prefix)),
        (State::Superseded, None) => {
            let last = head(view, &fact.tenant, &fact.owner, &fact.entity, &fact.key)?.last_version;
            (last > fact.version).then(|| format!("its entity and key have version {last} since; store the value anew"))
        }
    })
}

fn bring_back(tx: &mut impl Tx, at: &Stamp, fact: Fact) -> Result<ReinstatedFact, StorageError> {
    let mut head = head(tx, &fact.tenant, &fact.owner, &fact.entity, &fact.key)?;
    if head.active.is_some() {
        return Err(StorageError::corrupt("the last version of a pair is superseded, and another one is active"));
    }
    head.active = Some(fact.version);
    tx.put(&head);
    entities::count(tx, &fact, 1)?;
    let (fact_id, was_superseded_by) = (fact.fact_id.clone(), fact.superseded_by.clone());
    let mut about = fact.about(&at.caller.passport);
    if about.get("private").is_none() {
        about["was_superseded_by"] = json!(was_superseded_by);
    }
    change(tx, fact, |fact| {
        fact.superseded_by = None;
        fact.valid_to = None;
    });
    event::emit(tx, at, "fact.reinstated", &fact_id, about)?;
    Ok(ReinstatedFact { fact_id, was_superseded_by })
}
