//! Every way the rules say no: what happened, and what the caller can do next.
//!
//! A refusal is an ordinary answer, the same on every replica. Text for people is the `Display`, a lowercase fragment without
//! a full stop; what to do next is [`Refusal::next_step`]; what a program acts on is [`Refusal::code`] and
//! [`Refusal::retryable`].

use serde::{Deserialize, Serialize};

use crate::flag;
use crate::limit::SHOWN_BYTES_MAX;
use crate::punchcard::Wait;
use crate::tx::StorageError;

/// Outer error: this node's storage failed, and the node stops.
/// Inner error: every replica reached the same refusal, and the caller gets it as the answer.
pub type Applied<T> = Result<Result<T, Refusal>, StorageError>;

/// Why a command or query was refused. One variant for each different next step of the caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// An argument breaks a rule that a schema can't say.
    #[error("`{field}` {problem}")]
    Invalid { field: String, problem: String },
    /// Over a limit; both numbers are told.
    #[error("`{field}` is {size} {unit} long, and the limit is {limit} {unit}")]
    TooLong { field: String, size: u64, limit: u64, unit: String },
    /// It does not exist in the caller's tenant, or the caller can't see it; the two are not told apart.
    #[error("there is no {what} `{id}`", id = shown(id))]
    NotFound { what: String, id: String },
    /// The resource, or one that overlaps it, is leased to another, or another has been waiting for it for longer.
    #[error("`{resource}` is {word} by `{holder}` for another {left} ({on} `{held}`)",
        resource = shown(resource), held = shown(held), holder = shown(holder), left = span(*left_ms), word = if *waiting { "waited for" } else if *settling { "kept closed after it was lost" } else { "held" }, on = if *waiting { "queued for" } else { "lease on" })]
    Held {
        resource: String,
        held: String,
        holder: String,
        left_ms: u64,
        expires_at_unix_ms: u64,
        /// `holder` holds nothing yet, but came first.
        #[serde(default)]
        waiting: bool,
        /// `holder` has lost it, and its delay is not over.
        #[serde(default)]
        settling: bool,
    },
    /// To wait for it would close a circle of waits, which nobody in it could leave.
    #[error("waiting for `{resource}` would never end: {told}", resource = shown(resource), told = circle_of(circle))]
    Deadlock {
        resource: String,
        /// Each waits for the next one, and the last for the first.
        circle: Vec<Wait>,
    },
    /// The token or card is not, or no longer, the caller's.
    #[error("{problem}")]
    StaleToken { problem: String },
    /// The caller is known and may not do this.
    #[error("{problem}")]
    Denied { problem: String },
    /// The caller's passport or token was revoked.
    #[error("passport `{passport}` is revoked", passport = shown(passport))]
    Revoked { passport: String },
    /// Decided before; the first decision stands.
    #[error("approval `{approval}` was already {decision}")]
    AlreadyDecided { approval: String, decision: String },
    /// Nobody decided in time.
    #[error("approval `{approval}` expired undecided")]
    Expired { approval: String },
    /// A compare-and-set found another value.
    #[error("{what} `{id}` has changed: expected {expected}, found {found}", id = shown(id))]
    Changed { what: String, id: String, expected: String, found: String },
    /// The request id was used before, with another body.
    #[error("request id `{id}` was used before with other arguments")]
    RequestConflict { id: String },
    /// The request id is older than what is remembered, so it can't be known whether it ran.
    #[error("request id `{id}` is older than answers are kept")]
    RequestTooOld { id: String },
    /// A bounded queue or table of the tenant is full.
    #[error("{what} is full: the limit is {limit}")]
    Full { what: String, limit: u64, retry_after_ms: u64 },
    /// A fact that must not be retired, and why.
    #[error("fact `{id}` is protected: {reason}", id = shown(id))]
    Protected { id: String, reason: String },
    /// It is there, and another passport's.
    #[error("{what} `{id}` belongs to another passport", id = shown(id))]
    Foreign { what: String, id: String },
    /// A feature is switched off by its flag.
    #[error("{what} is switched off by the flag `{flag}`")]
    FeatureOff { what: String, flag: String },
    /// The caller has one already, and nobody has decided it yet.
    #[error("{what} of yours is undecided: `{existing_request_id}`")]
    AlreadyPending { what: String, existing_request_id: String },
    /// It could be used once, or up to an instant, and that is over.
    #[error("{what} `{id}` {found}", id = shown(id))]
    Spent { what: String, id: String, found: String },
    /// A quorum of the nodes has hardly any room on its disks, and this would take more of it.
    #[error("the cluster is short of disk space (node {})", nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    OutOfSpace { nodes: Vec<u64> },
    /// While versions are mixed, what not every member can apply is not proposed.
    #[error("{what} needs feature level {needs}, and the cluster is at {level}")]
    TooNew { what: String, needs: u64, level: u64 },
    /// It is not to begin before others: those of them that are open, or the first of many.
    #[error("work `{work}` waits for {n} that {word} not finished: {open}", work = shown(work), word = if *count == 1 { "is" } else { "are" }, n = if *count == 1 { "one item".into() } else { format!("{count} items") }, open = listed(open, *count))]
    Unready { work: String, open: Vec<String>, count: u64 },
    /// The tenant stores as much as an operator lets it, and this would be more.
    #[error("the tenant `{tenant}` stores {used} {what}, and its quota is {limit}", tenant = shown(tenant))]
    OverQuota { tenant: String, what: String, used: u64, limit: u64 },
    /// A tenant never comes in over one that is there.
    #[error("the tenant `{tenant}` is here already", tenant = shown(tenant))]
    TenantThere { tenant: String },
    /// It comes in from another cluster, and is not whole yet.
    #[error("the tenant `{tenant}` is being imported", tenant = shown(tenant))]
    TenantArriving { tenant: String },
    /// A compare-and-set of an item of work found another state: who else has it is told with it, since most often it was claimed.
    #[error("work `{id}` has changed: expected {expected}, found {found}, assigned to `{assignee_passport}`",
        id = shown(id), assignee_passport = shown(assignee_passport))]
    WorkMoved { id: String, expected: String, found: String, assignee_passport: String },
}

/// A text that a caller chose, as it may stand in a message: not too long, and without control characters.
pub fn shown(text: &str) -> String {
    let end = (0..=text.len().min(SHOWN_BYTES_MAX)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let mut shown: String = text[..end].chars().filter(|c| !c.is_control()).collect();
    if end < text.len() {
        shown.push('…');
    }
    shown
}

/// Some ids of so many.
fn listed(ids: &[String], count: u64) -> String {
    let mut told: Vec<String> = ids.iter().map(|id| format!("`{}`", shown(id))).collect();
    if let Some(more) = count.checked_sub(ids.len() as u64).filter(|more| *more > 0) {
        told.push(format!("and {more} more"));
    }
    told.join(", ")
}

/// A circle of waits as a sentence's end; the middle of a long one is left to the data.
fn circle_of(circle: &[Wait]) -> String {
    const TOLD: usize = 4;
    let told = |wait: &Wait| {
        let how = if wait.queued { "waited for before" } else { "held" };
        format!("`{}` wants `{}`, {how} by `{}` (`{}`)", shown(&wait.waiter), shown(&wait.wants), shown(&wait.holder), shown(&wait.held))
    };
    let mut parts: Vec<String> = circle.iter().take(TOLD).map(told).collect();
    if let Some(more) = circle.len().checked_sub(TOLD).filter(|more| *more > 0) {
        parts.push(format!("and {more} more wait in the circle"));
    }
    parts.join(", ")
}

/// A length of time as people say it: `850 ms`, `42 s`, `12 min 5 s`, `3 h 20 min`.
fn span(ms: u64) -> String {
    // Rounded up: nobody should come back a moment too early.
    match (ms, ms.div_ceil(1_000)) {
        (..1_000, _) => format!("{ms} ms"),
        (_, s @ ..120) => format!("{s} s"),
        (_, s @ ..7_200) => format!("{} min {} s", s / 60, s % 60),
        (_, s) => format!("{} h {} min", s / 3_600, s % 3_600 / 60),
    }
}

impl Refusal {
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }

    pub fn not_found(what: impl Into<String>, id: impl Into<String>) -> Self {
        Self::NotFound { what: what.into(), id: id.into() }
    }

    /// The documented code: JSON-RPC's where the contracts name one, else a stable word.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::Invalid { .. } | Refusal::TooLong { .. } => "-32602",
            Refusal::NotFound { .. } => "NOT_FOUND",
            Refusal::Held { .. } => "HELD",
            Refusal::Deadlock { .. } => "DEADLOCK",
            Refusal::StaleToken { .. } => "STALE_TOKEN",
            Refusal::Denied { .. } => "-32003",
            Refusal::Revoked { .. } => "REVOKED",
            Refusal::AlreadyDecided { .. } => "ALREADY_DECIDED",
            Refusal::Expired { .. } => "EXPIRED",
            Refusal::Changed { .. } | Refusal::WorkMoved { .. } => "-32004",
            Refusal::RequestConflict { .. } => "IDEMPOTENCY_CONFLICT",
            Refusal::RequestTooOld { .. } => "REQUEST_TOO_OLD",
            Refusal::Full { .. } => "FULL",
            Refusal::Protected { .. } | Refusal::Foreign { .. } => "CAPABILITY_DENIED",
            Refusal::FeatureOff { flag, .. } if flag::DENYING.iter().any(|denying| denying.name == flag) => "CAPABILITY_DENIED",
            Refusal::FeatureOff { flag, .. } if flag::ABSENT.iter().any(|absent| absent.name == flag) => "-32601",
            Refusal::FeatureOff { .. } => "-32030",
            Refusal::AlreadyPending { .. } => "ALREADY_PENDING",
            Refusal::Spent { .. } => "SPENT",
            Refusal::OutOfSpace { .. } => "OUT_OF_SPACE",
            Refusal::TooNew { .. } => "FEATURE_LEVEL",
            Refusal::Unready { .. } => "UNREADY",
            Refusal::OverQuota { .. } => "OVER_QUOTA",
            Refusal::TenantThere { .. } => "TENANT_THERE",
            Refusal::TenantArriving { .. } => "TENANT_ARRIVING",
        }
    }

    /// Whether the same call can succeed later.
    pub fn retryable(&self) -> bool {
        match self {
            Refusal::Held { .. } | Refusal::Deadlock { .. } | Refusal::Full { .. } | Refusal::OutOfSpace { .. } => true,
            // Once the others are finished.
            Refusal::Unready { .. } => true,
            Refusal::OverQuota { .. } | Refusal::TenantArriving { .. } => true,
            Refusal::Invalid { .. }
            | Refusal::TooLong { .. }
            | Refusal::NotFound { .. }
            | Refusal::StaleToken { .. }
            | Refusal::Denied { .. }
            | Refusal::Revoked { .. }
            | Refusal::AlreadyDecided { .. }
            | Refusal::Expired { .. }
            | Refusal::Changed { .. }
            | Refusal::WorkMoved { .. }
            | Refusal::RequestConflict { .. }
            | Refusal::RequestTooOld { .. }
            | Refusal::Protected { .. }
            | Refusal::Foreign { .. }
            | Refusal::FeatureOff { .. }
            | Refusal::AlreadyPending { .. }
            | Refusal::TooNew { .. }
            | Refusal::TenantThere { .. }
            | Refusal::Spent { .. } => false,
        }
    }

    /// What the caller can do, as a sentence.
    pub fn next_step(&self) -> String {
        match self {
            Refusal::Invalid { field, .. } => format!("Correct `{field}` and call again."),
            Refusal::TooLong { field, limit, unit, .. } => {
                format!("Shorten `{field}` to {limit} {unit}, or split it over several calls.")
            }
            Refusal::NotFound { .. } => "Check the id; a list call shows what exists.".into(),
            Refusal::Held { waiting: true, .. } => "Call `punch_in` with `wait_ms` to queue behind, or work on something else.".into(),
            Refusal::Held { settling: true, .. } => "Call `punch_in` with `wait_ms` to queue, or call again when that is over.".into(),
            Refusal::Deadlock { circle, .. } => match circle.first().zip(circle.last()) {
                // Who closes the circle is its first, and what of his the last one waits for is his to give back.
                Some((first, last)) if !last.queued => format!(
                    "Give `{}` back with `punch_out` and take both again in one order, or ask `{}` to punch out; nothing else ends it but time.",
                    shown(&last.held),
                    shown(&first.holder)
                ),
                _ => "Call again without `wait_ms`, or work on something else until the others are through.".into(),
            },
            Refusal::Held { holder, .. } => {
                format!("Call `punch_in` with `wait_ms` to queue, work on something else, or ask `{}` to punch out.", shown(holder))
            }
            Refusal::StaleToken { .. } => {
                "Stop the work done under that card, then call `punch_in` for a new card and use its `fencing_token`.".into()
            }
            Refusal::Denied { .. } => "Ask an operator for the scope or for the act itself.".into(),
            Refusal::Revoked { .. } => "Ask an operator for a new token.".into(),
            Refusal::AlreadyDecided { .. } => "The first decision stands; make a new request if it must be decided anew.".into(),
            Refusal::Expired { .. } => "Make a new request with `approval_request`.".into(),
            Refusal::Changed { .. } => "Read it again, merge, and repeat the call with the value you read.".into(),
            Refusal::WorkMoved { assignee_passport, .. } => format!(
                "Take another item (`list_work` with `ready` shows what can begin), or ask `{}`; to move this one all the same, call again \
                 with the state that was found as `expected_state`.",
                shown(assignee_passport)
            ),
            Refusal::RequestConflict { .. } => "Use a new `idempotency_key` for a new intent.".into(),
            Refusal::RequestTooOld { .. } => "Look whether the effect is there, then call again with a new `idempotency_key`.".into(),
            Refusal::Full { retry_after_ms, .. } => format!("Call again in {retry_after_ms} ms."),
            Refusal::Protected { .. } => "Leave it out, or store a new version with `store_fact` if you mean to replace it.".into(),
            Refusal::Foreign { .. } => "Ask its owner to hand it to you.".into(),
            Refusal::FeatureOff { flag, .. } => format!("An operator can switch it on with `{flag}`."),
            Refusal::AlreadyPending { .. } => "Wait for its decision, or ask an operator for it.".into(),
            Refusal::Spent { .. } => "Ask for a new one.".into(),
            Refusal::TooNew { .. } => {
                "An operator ends the upgrade with `quorate upgrade finalise` once all nodes run the new version.".into()
            }
            Refusal::Unready { .. } => {
                "Finish those first, or put them into the archive; `list_work` with `ready` shows what can begin. If it need not wait, \
                 move it with a `depends_on` that leaves them out."
                    .into()
            }
            Refusal::OverQuota { .. } => {
                "Reads, deletes, renewals and releases go on; for anything else forget what is not needed any more and \
                                          wait until it is purged, or ask an operator for a higher quota."
                    .into()
            }
            Refusal::TenantThere { .. } => {
                "Import it into a cluster that never had a tenant of this name; make its tokens after the import.".into()
            }
            Refusal::TenantArriving { .. } => "Call again when the operator's `quorate import` has ended.".into(),
            Refusal::OutOfSpace { .. } => {
                "Reads, deletes, renewals and releases go on; for anything else wait until an operator has made room, and \
                                           call again with a new `idempotency_key` if you gave one."
                    .into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Refusal, shown, span};
    use crate::limit::SHOWN_BYTES_MAX;

    #[test]
    fn a_span_is_told_as_people_say_it() {
        let told: Vec<String> = [0, 999, 1_000, 41_001, 119_000, 120_000, 725_000, 7_200_000, 86_400_000].map(span).into();
        assert_eq!(told, ["0 ms", "999 ms", "1 s", "42 s", "119 s", "2 min 0 s", "12 min 5 s", "2 h 0 min", "24 h 0 min"]);
    }

    #[test]
    fn a_message_repeats_little_of_a_long_text_and_nothing_that_steers_a_screen() {
        assert_eq!(shown("src/lib.rs"), "src/lib.rs");
        assert_eq!(shown("a\0b\u{1b}[2J"), "ab[2J");
        assert_eq!(shown(&"x".repeat(SHOWN_BYTES_MAX)), "x".repeat(SHOWN_BYTES_MAX));
        // Cut between letters, never within one.
        assert_eq!(shown(&format!("x{}", "é".repeat(SHOWN_BYTES_MAX))), format!("x{}…", "é".repeat(SHOWN_BYTES_MAX / 2 - 1)));
        let refusal = Refusal::not_found("session", "x".repeat(512));
        assert_eq!(refusal.to_string(), format!("there is no session `{}…`", "x".repeat(SHOWN_BYTES_MAX)));
    }
}
