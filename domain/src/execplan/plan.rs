//! Plans on the board: what a plan's file says, and where the plan stands by that and by what was told of its milestones.
//!
//! The files are read where they lie, by a gateway; here is the rule. The first of these that holds decides:
//! 1. the status line says archived, or a line begins with `Superseded by`: archived;
//! 2. the status line says complete, or every milestone that the file declares passed its gate or was skipped: complete;
//! 3. the highest milestone with a gate is blocked: blocked;
//! 4. anything was told of it: in progress;
//! 5. the file was changed in the last [`PLAN_FRESH_MS`]: planned; else archived.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{GATE, GateStatus, PLAN};
use crate::fact::{self, at_most};
use crate::identity::check_name;
use crate::limit::{NAME_BYTES_MAX, PLAN_FRESH_MS, PLAN_GATES_MAX, PLANS_ASKED_MAX};
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::Read;
use crate::work::State;

/// What a plan's file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Its first heading.
    pub title: Option<String>,
    /// The rest of its status line.
    pub status: Option<String>,
    /// The plan that took its place.
    pub superseded_by: Option<String>,
    /// The numbers of `M1`, `M2` and so on, in the section on milestones.
    pub milestones: BTreeSet<u64>,
}

impl Plan {
    pub fn read(text: &str) -> Self {
        let mut plan = Self::default();
        // The depth of the heading of the section on milestones, while in it.
        let mut section = None;
        for line in text.lines() {
            let line = line.trim();
            let depth = line.bytes().take_while(|byte| *byte == b'#').count();
            let heading = Some(line[depth..].trim()).filter(|_| depth > 0 && line[depth..].starts_with(' '));
            if let Some(heading) = heading {
                if plan.title.is_none() && !heading.is_empty() {
                    plan.title = Some(heading.into());
                }
                if heading.to_lowercase().contains("milestones") {
                    section = Some(depth);
                } else if section.is_some_and(|of| depth <= of) {
                    section = None;
                }
            }
            if section.is_some() {
                plan.milestones.extend(line.split(|c: char| !c.is_alphanumeric()).filter_map(milestone));
            }
            let words = line.trim_start_matches(['#', '>', '*', '_', '-', ' ']);
            if plan.status.is_none() {
                plan.status = status(words);
            }
            if plan.superseded_by.is_none() {
                plan.superseded_by = superseded_by(words);
            }
        }
        plan
    }

    /// Where the plan stands; `age_ms` is since the file was changed.
    pub fn stands(&self, told: &PlanTold, age_ms: u64) -> State {
        let status = self.status.as_deref().unwrap_or_default().to_lowercase();
        let gate = |milestone: &u64| told.gates.get(milestone).copied();
        let is_done = |milestone: &u64| gate(milestone).is_some_and(|gate| gate == Gate::Complete);
        if status.contains("archived") || self.superseded_by.is_some() {
            State::Archive
        } else if status.replace("incomplete", "").contains("complete")
            || !self.milestones.is_empty() && self.milestones.iter().all(is_done)
        {
            State::Complete
        } else if told.gates.last_key_value().is_some_and(|(_, gate)| *gate == Gate::Blocked) {
            State::Blocked
        } else if told.has_facts {
            State::InProgress
        } else if age_ms <= PLAN_FRESH_MS {
            State::Planned
        } else {
            State::Archive
        }
    }
}

/// The number of a milestone such as `M12`.
fn milestone(word: &str) -> Option<u64> {
    let digits = word.strip_prefix('M')?;
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// What stands behind `Status:`, whatever marks emphasise it.
fn status(words: &str) -> Option<String> {
    let rest = words.get(..6).filter(|word| word.eq_ignore_ascii_case("status")).map(|_| &words[6..])?;
    let rest = rest.trim_start_matches(['*', '_', ' ']).strip_prefix(':')?;
    Some(rest.trim_matches(['*', '_', ' ', '`']).to_string()).filter(|status| !status.is_empty())
}

fn superseded_by(words: &str) -> Option<String> {
    let word = words.strip_prefix("Superseded by")?.split_whitespace().next()?;
    // Of a link, what is shown.
    let slug = word.split(']').next().unwrap_or(word).trim_matches(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
    Some(slug.strip_suffix(".md").unwrap_or(slug).to_string()).filter(|slug| !slug.is_empty())
}

/// What was told of a milestone last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    Complete,
    Blocked,
    Open,
}

impl Gate {
    /// What a gate's fact says: as [`super::PassGate`] writes it, or another by hand.
    fn of(value: &str) -> Self {
        let value: serde_json::Value = serde_json::from_str(value).unwrap_or_default();
        let status = value["status"].as_str().unwrap_or_default();
        match status {
            "complete" => Gate::Complete,
            _ if value["complete"].as_bool() == Some(true) => Gate::Complete,
            _ if [GateStatus::Passed, GateStatus::Skipped].iter().any(|done| done.word() == status) => Gate::Complete,
            _ if status == GateStatus::Blocked.word() => Gate::Blocked,
            _ => Gate::Open,
        }
    }
}

/// What the team's facts say of plans, by their names without [`PLAN`]; in the order in which they were asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetPlans {
    /// At most [`PLANS_ASKED_MAX`].
    pub slugs: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlansTold {
    pub plans: Vec<PlanTold>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanTold {
    pub has_facts: bool,
    /// By the milestone's number; of at most [`PLAN_GATES_MAX`].
    pub gates: BTreeMap<u64, Gate>,
}

impl GetPlans {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PlansTold> {
        let checked = at_most("slugs", self.slugs.len(), PLANS_ASKED_MAX, "names");
        if let Err(refusal) = checked.and_then(|()| self.slugs.iter().try_for_each(|slug| check_slug(slug))) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let mut plans = Vec::new();
        for slug in &self.slugs {
            let entity = format!("{PLAN}{slug}");
            let values = fact::evidence_under(view, tenant, &entity, GATE, PLAN_GATES_MAX)?;
            let gates = values.into_iter().filter_map(|(key, value)| Some((milestone(key.strip_prefix(GATE)?)?, Gate::of(&value))));
            plans.push(PlanTold { has_facts: fact::is_told_of(view, tenant, &entity)?, gates: gates.collect() });
        }
        Ok(Ok(PlansTold { plans }))
    }
}

/// Checks a plan's name.
pub fn check_slug(slug: &str) -> Result<(), Refusal> {
    check_name("slug", slug).map_or(Ok(()), Err)?;
    at_most("slug", slug.len(), NAME_BYTES_MAX - PLAN.len(), "bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execplan::PassGate;
    use crate::fact::{Confidence, StoreFact};
    use crate::transcript::{World, person};

    const TEXT: &str =
        "# Faster search\n\nStatus: underway\n\n## Milestones\n\n- **M1** index\n- M2: ranking\n\n## Notes\n\nM9 is a road.\n";

    fn told(gates: &[(u64, Gate)]) -> PlanTold {
        PlanTold { has_facts: !gates.is_empty(), gates: gates.iter().copied().collect() }
    }

    #[test]
    fn a_file_tells_title_status_and_the_milestones_of_their_section() {
        let plan = Plan::read(TEXT);
        assert_eq!((plan.title.as_deref(), plan.status.as_deref(), plan.superseded_by), (Some("Faster search"), Some("underway"), None));
        assert_eq!(plan.milestones, [1, 2].into());
        for (line, status) in [
            ("**Status:** Complete", Some("Complete")),
            ("- status : done so far", Some("done so far")),
            ("> _Status_: `archived`", Some("archived")),
            ("## Status", None),
            ("Status quo: kept", None),
            ("Stat\u{fc}s: x", None),
        ] {
            assert_eq!(Plan::read(line).status.as_deref(), status, "{line}");
        }
        let pointer = |line: &str| Plan::read(line).superseded_by;
        assert_eq!(pointer("**Superseded by [`search-2`](search-2.md)**").as_deref(), Some("search-2"));
        assert_eq!(pointer("> Superseded by `search-2.md`.").as_deref(), Some("search-2"));
        assert_eq!(pointer("It was superseded by search-2"), None);
        assert_eq!(Plan::read(""), Plan::default());
    }

    #[test]
    fn the_first_rule_that_holds_decides_where_a_plan_stands() {
        let (day, year) = (86_400_000, 365 * 86_400_000);
        let (open, done, blocked) = (Gate::Open, Gate::Complete, Gate::Blocked);
        let stands = |text: &str, gates: &[(u64, Gate)], age_ms| Plan::read(text).stands(&told(gates), age_ms);
        for (text, gates, age_ms, state) in [
            ("Status: archived, was complete", &[(1, done)][..], day, State::Archive),
            ("Superseded by search-2\nStatus: complete", &[], day, State::Archive),
            ("Status: Complete", &[(1, blocked)], day, State::Complete),
            ("Status: incomplete", &[], day, State::Planned),
            (TEXT, &[(1, done), (2, done)], day, State::Complete),
            (TEXT, &[(1, done), (2, blocked)], day, State::Blocked),
            (TEXT, &[(1, blocked), (2, open)], day, State::InProgress),
            (TEXT, &[(1, done)], year, State::InProgress),
            (TEXT, &[], day, State::Planned),
            (TEXT, &[], year, State::Archive),
            // Without milestones none is undone, and that is not enough.
            ("# A thought", &[], day, State::Planned),
        ] {
            assert_eq!(stands(text, gates, age_ms), state, "{text} {gates:?}");
        }
    }

    #[test]
    fn gates_are_those_that_stand_now_and_another_tenants_are_not_seen() {
        let mut world = World::new();
        let gate = |slug: &str, milestone: &str, status| PassGate {
            slug: slug.into(),
            milestone: milestone.into(),
            status,
            commit_sha: "93b41a7".into(),
            tests_passing: None,
            artifacts: Vec::new(),
            notes: None,
            token_budget: 500,
        };
        for (milestone, status) in
            [("M1", GateStatus::Failed), ("M1", GateStatus::Passed), ("M10", GateStatus::Blocked), ("end", GateStatus::Passed)]
        {
            world.call("1s", person("mara"), None, gate("search", milestone, status)).unwrap();
        }
        let by_hand = StoreFact {
            entity: "execplan:other".into(),
            key: "gate:M3".into(),
            value: r#"{"status":"complete"}"#.into(),
            source_receipt: None,
            confidence: Confidence::FULL,
            private: false,
            horizon_class: None,
            freshness_horizon: None,
            supersedes: Default::default(),
        };
        world.call("2s", person("mara"), None, by_hand).unwrap();
        let ask = GetPlans { slugs: vec!["search".into(), "none".into(), "other".into()] };
        let found = world.ask("3s", person("jon"), ask.clone()).unwrap();
        assert_eq!(found.plans, [told(&[(1, Gate::Complete), (10, Gate::Blocked)]), PlanTold::default(), told(&[(3, Gate::Complete)])]);
        let stranger = crate::Principal { tenant: "other".into(), ..person("jon") };
        assert_eq!(world.ask("3s", stranger, ask).unwrap().plans, vec![PlanTold::default(); 3]);
        let many = GetPlans { slugs: vec!["a".into(); PLANS_ASKED_MAX + 1] };
        assert!(world.ask("3s", person("jon"), many).is_err());
    }
}
