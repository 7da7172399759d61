//! Gates of plans: how a milestone ended, as a fact beside the plan's other facts.
//!
//! The entity is `execplan:<slug>` and the key `gate:<milestone>`, so that the same gate always lands on the same pair; an
//! earlier outcome stays in its history. Who tells it, and when, comes from the entry and not from the caller.
//!
//! Decision: beside the status stands whether the milestone is complete, which `passed` and `skipped` are, so that whoever
//! reads a plan from its gates needs no table of words.

mod plan;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::fact::{Confidence, Draft, EVERYONE, HorizonClass, at_most, check_value, store_evidence};
use crate::identity::{check_name, check_text};
use crate::limit::{GATE_ARTIFACTS_MAX, NAME_BYTES_MAX};
use crate::refusal::{Applied, Refusal};
use crate::stamp::Stamp;
use crate::tx::Tx;

pub use self::plan::{Gate, GetPlans, Plan, PlanTold, PlansTold, check_slug};

/// Before a plan's name.
pub const PLAN: &str = "execplan:";
const GATE: &str = "gate:";

/// How a milestone ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateStatus {
    Passed,
    Failed,
    Blocked,
    Skipped,
}

impl GateStatus {
    pub fn word(self) -> &'static str {
        match self {
            GateStatus::Passed => "passed",
            GateStatus::Failed => "failed",
            GateStatus::Blocked => "blocked",
            GateStatus::Skipped => "skipped",
        }
    }

    pub fn is_complete(self) -> bool {
        matches!(self, GateStatus::Passed | GateStatus::Skipped)
    }
}

/// Tells how a milestone of a plan ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassGate {
    /// Without [`PLAN`].
    pub slug: String,
    /// With or without [`GATE`].
    pub milestone: String,
    pub status: GateStatus,
    pub commit_sha: String,
    pub tests_passing: Option<bool>,
    pub artifacts: Vec<String>,
    pub notes: Option<String>,
    pub token_budget: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatePassed {
    pub fact_id: String,
    pub entity: String,
    pub key: String,
}

/// The fact's value.
#[derive(Serialize)]
struct Value<'a> {
    status: &'a str,
    complete: bool,
    date: &'a str,
    commit_sha: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tests_passing: Option<bool>,
    artifacts: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<&'a str>,
    actor: &'a str,
    token_budget: u64,
}

impl PassGate {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<GatePassed> {
        if let Err(refusal) = self.check() {
            return Ok(Err(refusal));
        }
        let value = Value {
            status: self.status.word(),
            complete: self.status.is_complete(),
            date: &at.wall.to_rfc3339(),
            commit_sha: &self.commit_sha,
            tests_passing: self.tests_passing,
            artifacts: &self.artifacts,
            notes: self.notes.as_deref(),
            actor: &at.caller.passport,
            token_budget: self.token_budget,
        };
        let value = serde_json::to_string(&value).expect("plain data with text keys is always JSON");
        if let Err(refusal) = check_value("artifacts", &value) {
            return Ok(Err(refusal));
        }
        let (entity, key) = (format!("{PLAN}{}", self.slug), format!("{GATE}{}", self.milestone_name()));
        let draft = Draft { value, confidence: Confidence::FULL, horizon_class: HorizonClass::Stable, source_receipt: None };
        let fact_id = store_evidence(tx, at, EVERYONE, &entity, &key, draft)?;
        Ok(Ok(GatePassed { fact_id, entity, key }))
    }

    fn milestone_name(&self) -> &str {
        self.milestone.strip_prefix(GATE).unwrap_or(&self.milestone)
    }

    fn check(&self) -> Result<(), Refusal> {
        for (field, name, prefix) in [("slug", self.slug.as_str(), PLAN), ("milestone", self.milestone_name(), GATE)] {
            check_name(field, name).map_or(Ok(()), Err)?;
            at_most(field, name.len(), NAME_BYTES_MAX - prefix.len(), "bytes")?;
        }
        if self.slug.starts_with(PLAN) {
            return Err(Refusal::invalid("slug", format!("is the plan's name without `{PLAN}`")));
        }
        check_name("commit_sha", &self.commit_sha).map_or(Ok(()), Err)?;
        at_most("artifacts", self.artifacts.len(), GATE_ARTIFACTS_MAX, "entries")?;
        let texts = self.artifacts.iter().map(|artifact| ("artifacts", artifact)).chain(self.notes.iter().map(|notes| ("notes", notes)));
        for (field, text) in texts {
            check_text(field, text).map_or(Ok(()), Err)?;
        }
        if self.token_budget == 0 {
            return Err(Refusal::invalid("token_budget", "must be at least 1"));
        }
        Ok(())
    }
}
