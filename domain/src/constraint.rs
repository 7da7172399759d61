//! Constraints: what must not be done, in people's words, and whether an action runs into it.
//!
//! A check advises: it blocks nothing by itself, and who asked decides. Invariants:
//! * A tenant has a bounded number of constraints, so that a check looks at all of them.
//! * One assertion of one type stands once; declaring it again only moves its severity.
//!
//! Decisions:
//! * Words match whole and in any letter case. Small words (`the`, `never`, `must`) count for nothing: they stand in every
//!   second assertion and would let it match whatever is done.
//! * A `shell_pattern` is a regular expression. Whether it is one is judged before it is declared and again when it is used, and
//!   not in the log: two versions of the matcher may disagree, and replicas may not. One that can't be read matches every
//!   command, so that a check errs on the safe side.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::action::{Proposal, propose};
use crate::cursor::Cursors;
use crate::event;
use crate::fact::at_most;
use crate::identity::{check_name, check_tenant, check_text};
use crate::key::Key;
use crate::limit::{
    ASSERTION_BYTES_MAX, CONSTRAINTS_MAX, PATTERN_BYTES_MAX, REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES, STATE_BYTES_MAX, STATE_DEPTH_MAX,
};
use crate::query::rows;
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::session::is_deeper;
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstraintType {
    Boundary,
    Relationship,
    Policy,
    ContextFlag,
    /// A regular expression over the commands of shells.
    ShellPattern,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Severity {
    // The numbers stand in keys and are never reused.
    Critical = 0,
    High = 1,
    Medium = 2,
    Low = 3,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    pub tenant: String,
    pub constraint_id: String,
    pub constraint_type: ConstraintType,
    pub assertion: String,
    pub severity: Severity,
    pub created_at: UnixMs,
    pub declared_by: String,
    pub revision: Revision,
}

impl Record for Constraint {
    const KIND: Kind = Kind::Constraint;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    /// The worst first, and of one severity the oldest.
    fn id(&self) -> Key {
        Key::new().byte(self.severity as u8).number(self.revision.0)
    }
}

impl Constraint {
    /// BLAKE3 of the compact JSON of type, assertion and severity, in hex.
    pub fn hash(&self) -> String {
        let said = json!({ "constraint_type": self.constraint_type, "assertion": self.assertion, "severity": self.severity });
        blake3::hash(said.to_string().as_bytes()).to_hex().to_string()
    }
}

fn all(view: &impl Read, tenant: &str) -> Result<Vec<Constraint>, StorageError> {
    Ok(view.page::<Constraint>(tenant, &Key::new(), None, CONSTRAINTS_MAX)?.items)
}

/// Why a text can't be the pattern of a shell command, if it can't.
pub fn pattern_problem(assertion: &str) -> Option<String> {
    pattern(assertion).err().map(|error| error.to_string())
}

fn pattern(assertion: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(assertion).size_limit(PATTERN_BYTES_MAX).build()
}

// ------------------------------------------------------------------ declare

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeclareConstraint {
    pub constraint_type: ConstraintType,
    pub assertion: String,
    pub severity: Severity,
}

impl DeclareConstraint {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Constraint> {
        if self.assertion.trim().is_empty() {
            return Ok(Err(Refusal::invalid("assertion", "must not be empty")));
        }
        let too_long = at_most("assertion", self.assertion.len(), ASSERTION_BYTES_MAX, "bytes").err();
        if let Some(refusal) = too_long.or_else(|| check_text("assertion", &self.assertion)) {
            return Ok(Err(refusal));
        }
        let known = all(tx, &at.caller.tenant)?;
        let twin = known.iter().find(|known| known.constraint_type == self.constraint_type && known.assertion == self.assertion);
        let constraint = match twin {
            Some(twin) if twin.severity == self.severity => return Ok(Ok(twin.clone())),
            Some(twin) => {
                tx.delete(twin);
                Constraint { severity: self.severity, revision: at.revision, ..twin.clone() }
            }
            None if known.len() >= CONSTRAINTS_MAX => {
                let limit = CONSTRAINTS_MAX as u64;
                return Ok(Err(Refusal::Full { what: "the list of constraints".into(), limit, retry_after_ms: 60_000 }));
            }
            None => Constraint {
                tenant: at.caller.tenant.clone(),
                constraint_id: at.new_id("c", 0),
                constraint_type: self.constraint_type,
                assertion: self.assertion,
                severity: self.severity,
                created_at: at.wall,
                declared_by: at.caller.passport.clone(),
                revision: at.revision,
            },
        };
        tx.put(&constraint);
        let about = json!({ "severity": constraint.severity, "actor": at.caller.passport });
        event::emit(tx, at, "constraint.declared", &constraint.constraint_id, about)?;
        Ok(Ok(constraint))
    }
}

// ------------------------------------------------------------------ list

/// Constraints of the caller's tenant, the worst first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListConstraints {
    pub constraint_type: Option<ConstraintType>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraints {
    pub constraints: Vec<Constraint>,
    pub next_cursor: Option<String>,
}

impl ListConstraints {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Constraints> {
        let cursors = Cursors::of("constraints", &at.caller, &self.constraint_type);
        let (limit, from) = match rows(self.limit).and_then(|limit| Ok((limit, cursors.open_from(self.cursor.as_deref())?))) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let from = from.unwrap_or_default();
        let mut page = Constraints { constraints: Vec::new(), next_cursor: None };
        let mut left = REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES;
        let wanted = |known: &Constraint| self.constraint_type.is_none_or(|wanted| known.constraint_type == wanted);
        for constraint in all(view, &at.caller.tenant)?.into_iter().filter(wanted) {
            let place = constraint.id().into_bytes();
            if place < from {
                continue;
            }
            let bytes = json!(constraint).to_string().len();
            if page.constraints.len() == limit || (bytes > left && !page.constraints.is_empty()) {
                page.next_cursor = Some(cursors.seal(&place));
                break;
            }
            left = left.saturating_sub(bytes);
            page.constraints.push(constraint);
        }
        Ok(Ok(page))
    }
}

// ------------------------------------------------------------------ check

/// An action, as it is described.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub description: Option<String>,
    pub tool_name: Option<String>,
    /// A JSON object.
    pub parameters: Option<Value>,
    /// A claim: must be the caller's tenant.
    pub tenant_id: Option<String>,
}

impl Action {
    fn refuse(&self, at: &ReadStamp) -> Option<Refusal> {
        if let Some(refusal) = check_tenant(&at.caller, self.tenant_id.as_deref()) {
            return Some(refusal);
        }
        let description = self.description.as_deref().and_then(|text| check_text("action_description", text));
        let refusal = description.or_else(|| self.tool_name.as_deref().and_then(|name| check_name("tool_name", name)));
        if refusal.is_some() {
            return refusal;
        }
        let parameters = self.parameters.as_ref()?;
        if is_deeper(parameters, STATE_DEPTH_MAX) {
            let problem = format!("must not nest objects and arrays more than {STATE_DEPTH_MAX} levels deep");
            return Some(Refusal::invalid("tool_parameters", problem));
        }
        at_most("tool_parameters", parameters.to_string().len(), STATE_BYTES_MAX, "bytes").err()
    }

    /// The command that a shell would run.
    fn command(&self) -> Option<&str> {
        let is_shell = self.tool_name.as_deref().is_some_and(|tool| matches!(tool, "Bash" | "bash" | "Shell" | "shell"));
        self.parameters.as_ref().filter(|_| is_shell)?.get("command")?.as_str()
    }

    fn proposal(&self) -> Option<Proposal> {
        let none = json!({});
        let parameters = self.parameters.as_ref().unwrap_or(&none);
        self.tool_name.as_deref().map(|tool| propose(tool, self.description.as_deref(), parameters))
    }

    /// All that is said of it: for a tool, with what was made of the call.
    fn words(&self) -> BTreeSet<String> {
        let mut text = self.description.clone().unwrap_or_default();
        if let Some(proposal) = self.proposal() {
            text = format!("{text} {} {}", proposal.narrative, proposal.said);
        }
        words(&text)
    }

    fn is_empty(&self) -> bool {
        self.description.as_deref().is_none_or(|text| text.trim().is_empty()) && self.tool_name.is_none()
    }
}

/// Words that say nothing of what is done.
const SMALL_WORDS: [&str; 34] = [
    "all", "always", "and", "any", "are", "before", "but", "can", "cannot", "every", "for", "from", "has", "have", "into", "may", "must",
    "never", "not", "only", "our", "shall", "should", "that", "the", "their", "them", "this", "unless", "when", "with", "without", "you",
    "your",
];

/// The words of a text that count: of three letters at least, in lower case.
fn words(text: &str) -> BTreeSet<String> {
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let lower = parts.filter(|word| word.chars().count() >= 3).map(str::to_lowercase);
    lower.filter(|word| !SMALL_WORDS.contains(&word.as_str())).collect()
}

/// How much of an assertion an action meets, in millionths; nothing when it meets none of it.
fn score(constraint: &Constraint, said: &BTreeSet<String>, command: Option<&str>) -> Option<u32> {
    if constraint.constraint_type == ConstraintType::ShellPattern {
        let command = command?;
        let is_met = pattern(&constraint.assertion).map_or(true, |pattern| pattern.is_match(command));
        return is_met.then_some(1_000_000);
    }
    let asserted = words(&constraint.assertion);
    let met = asserted.intersection(said).count();
    (met > 0).then(|| (met * 1_000_000 / asserted.len()) as u32)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Pass,
    Warn,
    Block,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Match {
    pub constraint_id: String,
    pub assertion: String,
    pub severity: Severity,
    /// How many of its words were met, in millionths.
    pub score: u32,
}

/// Which constraints an action meets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckConstraints {
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConstraintsChecked {
    pub verdict: Verdict,
    /// The worst first; as many as a reply holds.
    pub matched: Vec<Match>,
    /// How many there are.
    pub matched_count: u64,
    /// Nothing was given that could match.
    pub nothing_given: bool,
}

fn matches(view: &impl Read, at: &ReadStamp, action: &Action, only: Option<ConstraintType>) -> Result<Vec<Match>, StorageError> {
    let (said, command) = (action.words(), action.command());
    let known = all(view, &at.caller.tenant)?.into_iter().filter(|known| only.is_none_or(|only| known.constraint_type == only));
    let met = known.filter_map(|known| score(&known, &said, command).map(|score| (known, score)));
    let mut met: Vec<Match> = met
        .map(|(Constraint { constraint_id, assertion, severity, .. }, score)| Match { constraint_id, assertion, severity, score })
        .collect();
    // Stable, so that of equals the older one stays first.
    met.sort_by_key(|met| (met.severity, std::cmp::Reverse(met.score)));
    Ok(met)
}

/// As many as fit.
fn fitting(met: Vec<Match>) -> Vec<Match> {
    let mut left = REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES;
    met.into_iter()
        .take_while(|met| {
            let bytes = json!(met).to_string().len();
            let fits = bytes <= left;
            left = left.saturating_sub(bytes);
            fits
        })
        .collect()
}

impl CheckConstraints {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ConstraintsChecked> {
        if let Some(refusal) = self.action.refuse(at) {
            return Ok(Err(refusal));
        }
        let met = matches(view, at, &self.action, None)?;
        let verdict = match met.first().map(|worst| worst.severity) {
            Some(Severity::Critical) => Verdict::Block,
            Some(Severity::High) => Verdict::Warn,
            Some(Severity::Medium | Severity::Low) | None => Verdict::Pass,
        };
        let matched_count = met.len() as u64;
        Ok(Ok(ConstraintsChecked { verdict, matched: fitting(met), matched_count, nothing_given: self.action.is_empty() }))
    }
}

// ------------------------------------------------------------------ enrich

/// What a call of a tool would do, by the words in it, and which relationships of the tenant it touches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnrichAction {
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionEnriched {
    pub tenant: String,
    pub proposal: Proposal,
    pub relationships: Vec<Match>,
}

impl EnrichAction {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ActionEnriched> {
        if let Some(refusal) = self.action.refuse(at) {
            return Ok(Err(refusal));
        }
        let Some(proposal) = self.action.proposal() else { return Ok(Err(Refusal::invalid("tool_name", "is missing"))) };
        let relationships = fitting(matches(view, at, &self.action, Some(ConstraintType::Relationship))?);
        Ok(Ok(ActionEnriched { tenant: at.caller.tenant.clone(), proposal, relationships }))
    }
}
