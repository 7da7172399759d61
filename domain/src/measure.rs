//! Measures: what agents did and what it cost, as gateways saw it.
//!
//! Gateways gather what they see of calls and hand it over every few seconds, many calls in one entry: so a read leaves no
//! entry of its own. [`trace`] keeps the calls of each passport for an hour, [`learn`] looks for loops in them, [`savings`]
//! adds up the two arms of the hold-out experiment, and [`activity`] is the journal of a session, which clients write into too.
//! Invariants:
//! * Only the system hands over: no caller can change what it is said to have done.
//! * What is kept is bounded, per passport, per tenant and per session, and ends by the lease clock. What does not fit is counted.

pub mod activity;
pub mod learn;
pub mod savings;
pub mod trace;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::fact::is_reserved;
use crate::identity::{check_name, check_name_start};
use crate::limit::{TRACED_PASSPORTS_MAX, TRACES_PER_ADDITION_MAX};
use crate::record::{CLUSTER, Kind};
use crate::refusal::{Applied, Refusal};
use crate::stamp::Stamp;
use crate::tx::{StorageError, Tx};
use crate::{deadline, flag};

pub(crate) use self::activity::Activity;
pub use self::activity::{
    ActivityAppended, ActivityKind, ActivityRow, ActivityTurn, AppendActivity, GetActivityTurn, RecentActivities, RecentActivity,
};
pub use self::learn::{Learn, Learnt, Proposal};
pub use self::savings::{ArmSums, GetSavings, Samples, Savings};
pub(crate) use self::trace::Batch as TraceBatch;
pub use self::trace::{Effect, RecentTraces, Trace, Traces};

/// The calls of one passport since the last time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassportTraces {
    pub passport: String,
    /// In the order in which they ended.
    pub traces: Vec<Trace>,
    /// Calls that the gateway had no room for.
    pub not_kept: u64,
}

/// Adds what a gateway has seen since the last time of the calls of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddMeasures {
    pub tenant: String,
    /// At most [`TRACED_PASSPORTS_MAX`], with at most [`TRACES_PER_ADDITION_MAX`] calls in all.
    pub traces: Vec<PassportTraces>,
    pub samples: Option<Samples>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuresAdded {
    pub traces: u64,
}

impl AddMeasures {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<MeasuresAdded> {
        if at.caller.tenant != CLUSTER {
            return Ok(Err(Refusal::Denied { problem: "calls are measured by gateways only".into() }));
        }
        let too_many = |field: &str, size: usize, limit: usize| {
            (size > limit).then(|| Refusal::TooLong { field: field.into(), size: size as u64, limit: limit as u64, unit: "entries".into() })
        };
        let calls = self.traces.iter().map(|of| of.traces.len()).sum::<usize>();
        let named =
            self.traces.iter().find_map(|of| check_name("passport", &of.passport).or_else(|| of.traces.iter().find_map(Trace::check)));
        let refused = check_name("tenant", &self.tenant)
            .or_else(|| too_many("traces", self.traces.len(), TRACED_PASSPORTS_MAX))
            .or_else(|| too_many("traces", calls, TRACES_PER_ADDITION_MAX))
            .or(named);
        if let Some(refusal) = refused {
            return Ok(Err(refusal));
        }
        let (traced, journal) = (flag::is_on(tx, flag::TOOL_TRACES)?, flag::is_on(tx, flag::ACTIVITY_LOG)?);
        for mut of in self.traces {
            for trace in &mut of.traces {
                trace.effects.retain(|effect| !is_reserved(&effect.entity));
            }
            if journal {
                for trace in &of.traces {
                    activity::append_call(tx, at, &self.tenant, &of.passport, trace)?;
                }
            }
            if traced {
                trace::append(tx, at, &self.tenant, of)?;
            }
        }
        if let Some(samples) = self.samples {
            savings::add(tx, &self.tenant, samples)?;
        }
        Ok(Ok(MeasuresAdded { traces: calls as u64 }))
    }
}

/// What a deadline of this family ends.
#[derive(Serialize, Deserialize)]
enum Ending {
    Traces { passport: String, batch: u64 },
    Activity { session: String, seq: u64 },
}

impl Ending {
    /// Its name among deadlines.
    fn id(&self) -> String {
        serde_json::to_string(self).expect("plain data is always JSON")
    }
}

/// Frees what has run out.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    for lapsed in deadline::lapsed(tx, Kind::MeasureByDeadline, at.lease_now)? {
        let ending = serde_json::from_str(&lapsed.id).map_err(|error| StorageError::new("deadline of a measure", error))?;
        match ending {
            Ending::Traces { passport, batch } => trace::remove(tx, &lapsed.tenant, &passport, batch)?,
            Ending::Activity { session, seq } => activity::remove(tx, &lapsed.tenant, &session, seq)?,
        }
    }
    Ok(())
}

/// Checks a name that a call may carry, such as its session or its turn.
fn check_tag(field: &str, tag: Option<&String>) -> Option<Refusal> {
    tag.and_then(|tag| check_name_start(field, tag))
}
