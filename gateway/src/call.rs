//! One call: who makes it, how long it may take, and what its caller reads when it fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_domain::refusal::shown;
use quorate_domain::{Principal, Refusal};
use serde_json::{Value, json};

use crate::mcp::client::{Client, Needed};
use crate::rates::{Lane, Whose};
use crate::server::Services;
use crate::traces::{Arm, Tags};

/// What a tool knows besides its arguments.
#[derive(Clone)]
pub struct CallContext {
    /// `None` for a caller without a token.
    pub caller: Option<Arc<Principal>>,
    /// The caller's name for its intent: a repetition with the same one has no second effect.
    pub idempotency_key: Option<String>,
    /// The card that the call is made under.
    pub fencing_token: Option<u64>,
    /// What the client says that the call belongs to, beside its arguments.
    pub tags: Tags,
    /// Which arm of the hold-out experiment it is in.
    pub arm: Arm,
    pub deadline: Instant,
    pub services: Arc<Services>,
    /// Whom the tool can tell something, or ask, while it runs.
    pub client: Arc<Client>,
}

impl CallContext {
    /// For what is done for a caller without a client to talk to.
    pub fn new(caller: Option<Arc<Principal>>, deadline: Instant, services: Arc<Services>) -> Self {
        Self {
            caller,
            idempotency_key: None,
            fencing_token: None,
            tags: Tags::default(),
            arm: Arm::default(),
            deadline,
            services,
            client: Arc::new(Client::silent()),
        }
    }

    pub fn principal(&self) -> Result<&Principal, CallError> {
        self.caller.as_deref().ok_or(CallError::Unauthenticated)
    }

    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// Did the call leave something behind?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    No,
    Unknown,
}

impl Wrote {
    pub fn word(self) -> &'static str {
        match self {
            Wrote::No => "no",
            Wrote::Unknown => "unknown",
        }
    }
}

/// Why a call has no result. One variant for each different next step of the caller.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// A rule said no.
    #[error("{0}")]
    Refused(Refusal),
    /// The arguments don't fit the tool's schema. `fix` is a sentence.
    #[error("{problem}")]
    Arguments { problem: String, fix: String },
    #[error("this needs a bearer token, and the request has none")]
    Unauthenticated,
    #[error("this needs the scope `{scope}`, which your token does not have")]
    MissingScope { scope: String },
    /// The caller's passport has used up its tokens.
    #[error("your passport has used {used} tokens of a budget of {tokens}, and an operator wants it to stop there")]
    OverBudget { tokens: u64, used: u64 },
    /// More calls than an operator lets this tenant, or this passport, make.
    #[error("your {} makes more than {per_second} {} a second", whose.word(), match lane { Lane::Ordinary => "calls", Lane::Leases => "calls about leases" })]
    TooMany { whose: Whose, lane: Lane, per_second: u32, retry_after_ms: u64 },
    /// Queued for a card until the time was over.
    #[error("`{}` is still held{} after a wait of {waited_ms} ms", shown(resource), holder.as_ref().map(|holder| format!(" by `{}`", shown(holder))).unwrap_or_default())]
    StillHeld { resource: String, holder: Option<String>, waited_ms: u64 },
    /// No leader took the command, so it has no effect.
    #[error("the cluster can't take writes now ({detail})")]
    NoLeader { detail: String, retry_after_ms: u64 },
    /// The command was handed over, and its outcome was not told.
    #[error("the cluster did not tell the outcome in time ({detail})")]
    Unknown { detail: String, retry_after_ms: u64 },
    /// No node could serve the read.
    #[error("the cluster can't answer reads now ({detail})")]
    Unreadable { detail: String, retry_after_ms: u64 },
    /// Whether a resource is free can't be told. Never taken for free.
    #[error("whether `{resource}` is free is unknown: the cluster can't tell now ({detail})")]
    CheckUnknown { resource: String, detail: String },
    #[error("this gateway serves as many calls as it can")]
    Overloaded,
    /// The call asks its client for something, and goes on when it comes again with the answers.
    #[error("this needs {} from you first", list_of(.0.questions.keys()))]
    InputRequired(Box<Needed>),
    /// The client would have to be asked, and has not declared that it can be.
    #[error("this needs a client that declares the capability `{capability}`")]
    MissingCapability { capability: String },
    /// The client was asked and did not answer.
    #[error("the client did not answer what the call asked it ({detail})")]
    Unanswered { detail: String },
    /// An operator has not set up what the call is about. `fix` is a sentence.
    #[error("{problem}")]
    NotSetUp { problem: String, fix: String },
    /// Another cluster, which the call is about, does not answer, or can't do it now.
    #[error("{detail}")]
    RemoteDown { detail: String, wrote: Wrote },
    /// Another cluster will not do it, however often it is asked.
    #[error("{detail}")]
    RemoteRefused { detail: String, wrote: Wrote },
    /// A node and this gateway don't understand or don't trust each other: a wrong secret, a half-done upgrade, or a bug.
    #[error("the cluster and this gateway do not understand each other ({detail})")]
    Fault { detail: String },
}

fn list_of<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(|name| format!("`{}`", shown(name))).collect::<Vec<_>>().join(", ")
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> Self {
        CallError::Refused(refusal)
    }
}

impl CallError {
    pub fn arguments(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        CallError::Arguments { problem: problem.into(), fix: fix.into() }
    }

    /// What the caller reads: what happened, whether anything was written, and what to do next.
    pub fn text(&self) -> String {
        match self {
            CallError::Refused(refusal) => format!("{refusal}. Nothing was written. {}", refusal.next_step()),
            CallError::Arguments { fix, .. } => format!("{self}. Nothing was written. {fix}"),
            CallError::Unauthenticated => {
                format!("{self}. Nothing was written. Send `Authorization: Bearer <token>`; an operator hands out tokens.")
            }
            CallError::MissingScope { scope } => format!("{self}. Nothing was written. Ask an operator for a token with `{scope}`."),
            CallError::OverBudget { .. } => {
                format!(
                    "{self}. Nothing was written. End in order with `save_session`, `create_handoff`, `update_work_state`, `comment_on_work` \
                     and `punch_out`, which still work; an operator can give you more."
                )
            }
            CallError::TooMany { lane: Lane::Ordinary, retry_after_ms, .. } => format!(
                "{self}. Nothing was written. Call again in {retry_after_ms} ms; `punch_in`, `check_punchcard` and `punch_out` are counted apart."
            ),
            CallError::TooMany { retry_after_ms, .. } => format!("{self}. Nothing was written. Call again in {retry_after_ms} ms."),
            CallError::StillHeld { .. } => {
                format!("{self}. You got no card and left the queue. Call `punch_in` with a longer `wait_ms`, or work on something else.")
            }
            CallError::NoLeader { retry_after_ms, .. } => format!("{self}. Nothing was written. Call again in {retry_after_ms} ms."),
            CallError::Unknown { .. } => {
                format!(
                    "{self}. It may have been written: repeat the call with the same `idempotency_key`, or look before you repeat it without one."
                )
            }
            CallError::Unreadable { retry_after_ms, .. } => format!("{self}. Nothing was written. Call again in {retry_after_ms} ms."),
            CallError::CheckUnknown { .. } => format!("{self}. Do not take it for free: call again in a second, or leave the file alone."),
            CallError::Overloaded => format!("{self}. Nothing was written. Call again in a second."),
            CallError::InputRequired(_) => format!("{self}. Nothing was written. Call again with the answers, over MCP."),
            CallError::MissingCapability { capability } => {
                format!("{self}. Nothing was written. Use a client that has `{capability}`.")
            }
            CallError::Unanswered { .. } => format!("{self}. Nothing was written. Call again to be asked again."),
            CallError::NotSetUp { fix, .. } => format!("{self}. Nothing was written. {fix}"),
            CallError::RemoteDown { wrote: Wrote::No, .. } => {
                format!("{self}. Nothing was written. Call again later; `sync_status` tells when it answers.")
            }
            CallError::RemoteDown { wrote: Wrote::Unknown, .. } => {
                format!("{self}. It may have been written there: call again, which writes nothing twice.")
            }
            CallError::RemoteRefused { wrote: Wrote::No, .. } => format!("{self}. Nothing was written. Tell an operator, here or there."),
            CallError::RemoteRefused { wrote: Wrote::Unknown, .. } => {
                format!("{self}. Whether anything was written there is unknown. Tell an operator, here or there.")
            }
            CallError::Fault { .. } => format!("{self}. Whether anything was written is unknown. Tell an operator."),
        }
    }

    /// The documented code: a number of JSON-RPC where there is one, else a stable word.
    pub fn code(&self) -> Value {
        let code = match self {
            CallError::Refused(refusal) => refusal.code(),
            CallError::Arguments { .. } => "-32602",
            CallError::Unauthenticated => "UNAUTHENTICATED",
            CallError::MissingScope { .. } => "-32030",
            CallError::OverBudget { .. } => "OVER_BUDGET",
            CallError::TooMany { .. } => "RATE_LIMITED",
            CallError::StillHeld { .. } => "HELD",
            CallError::NoLeader { .. } | CallError::Unreadable { .. } => "UNAVAILABLE",
            CallError::Unknown { .. } => "OUTCOME_UNKNOWN",
            CallError::CheckUnknown { .. } => "UNKNOWN",
            CallError::Overloaded => "OVERLOADED",
            CallError::InputRequired(_) => "INPUT_REQUIRED",
            CallError::MissingCapability { .. } => "-32021",
            CallError::Unanswered { .. } => "UNANSWERED",
            CallError::NotSetUp { .. } => "NOT_CONFIGURED",
            CallError::RemoteDown { .. } => "REMOTE_UNAVAILABLE",
            CallError::RemoteRefused { .. } => "REMOTE_REFUSED",
            CallError::Fault { .. } => "INTERNAL_ERROR",
        };
        code.parse::<i64>().map_or_else(|_| code.into(), Value::from)
    }

    /// Whether the same call can succeed later.
    pub fn retryable(&self) -> bool {
        match self {
            CallError::Refused(refusal) => refusal.retryable(),
            CallError::StillHeld { .. }
            | CallError::NoLeader { .. }
            | CallError::Unknown { .. }
            | CallError::Unreadable { .. }
            | CallError::CheckUnknown { .. }
            | CallError::InputRequired(_)
            | CallError::Unanswered { .. }
            | CallError::RemoteDown { .. }
            | CallError::TooMany { .. }
            | CallError::Overloaded => true,
            CallError::Arguments { .. }
            | CallError::Unauthenticated
            | CallError::MissingScope { .. }
            | CallError::OverBudget { .. }
            | CallError::MissingCapability { .. }
            | CallError::NotSetUp { .. }
            | CallError::RemoteRefused { .. }
            | CallError::Fault { .. } => false,
        }
    }

    pub fn wrote(&self) -> Wrote {
        match self {
            CallError::Refused(_)
            | CallError::Arguments { .. }
            | CallError::Unauthenticated
            | CallError::MissingScope { .. }
            | CallError::OverBudget { .. }
            | CallError::TooMany { .. }
            | CallError::StillHeld { .. }
            | CallError::NoLeader { .. }
            | CallError::Unreadable { .. }
            | CallError::CheckUnknown { .. }
            | CallError::InputRequired(_)
            | CallError::MissingCapability { .. }
            | CallError::Unanswered { .. }
            | CallError::NotSetUp { .. }
            | CallError::Overloaded => Wrote::No,
            CallError::RemoteDown { wrote, .. } | CallError::RemoteRefused { wrote, .. } => *wrote,
            CallError::Unknown { .. } | CallError::Fault { .. } => Wrote::Unknown,
        }
    }

    /// The HTTP status of the same error.
    pub fn status(&self) -> u16 {
        match self {
            CallError::Refused(refusal) => match refusal {
                Refusal::Invalid { .. } => 400,
                Refusal::TooLong { .. } => 413,
                Refusal::NotFound { .. } => 404,
                Refusal::Deadlock { .. } => 409,
                Refusal::Held { .. } | Refusal::StaleToken { .. } | Refusal::AlreadyDecided { .. } | Refusal::RequestTooOld { .. } => 409,
                Refusal::AlreadyPending { .. } | Refusal::Unready { .. } => 409,
                Refusal::Denied { .. } | Refusal::Revoked { .. } | Refusal::Protected { .. } | Refusal::Foreign { .. } => 403,
                Refusal::Expired { .. } | Refusal::Spent { .. } => 410,
                Refusal::Changed { .. } | Refusal::WorkMoved { .. } => 412,
                Refusal::RequestConflict { .. } => 422,
                Refusal::Full { .. } => 429,
                Refusal::TenantThere { .. } => 409,
                Refusal::TenantArriving { .. } => 503,
                Refusal::OutOfSpace { .. } | Refusal::OverQuota { .. } => 507,
                Refusal::FeatureOff { .. } | Refusal::TooNew { .. } => 501,
            },
            CallError::Arguments { .. } => 400,
            CallError::Unauthenticated => 401,
            CallError::MissingScope { .. } => 403,
            CallError::OverBudget { .. } | CallError::TooMany { .. } => 429,
            CallError::StillHeld { .. } => 409,
            CallError::NoLeader { .. } | CallError::Unreadable { .. } | CallError::CheckUnknown { .. } | CallError::Overloaded => 503,
            CallError::InputRequired(_) | CallError::MissingCapability { .. } => 400,
            CallError::Unanswered { .. } => 409,
            CallError::Unknown { .. } => 504,
            CallError::NotSetUp { .. } => 501,
            CallError::RemoteDown { .. } | CallError::RemoteRefused { .. } => 502,
            CallError::Fault { .. } => 500,
        }
    }

    /// When to call again, where that is known.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            CallError::Refused(Refusal::Held { left_ms, .. }) => Some(*left_ms),
            CallError::Refused(Refusal::Full { retry_after_ms, .. }) => Some(*retry_after_ms),
            CallError::TooMany { retry_after_ms, .. }
            | CallError::NoLeader { retry_after_ms, .. }
            | CallError::Unknown { retry_after_ms, .. }
            | CallError::Unreadable { retry_after_ms, .. } => Some(*retry_after_ms),
            CallError::CheckUnknown { .. } | CallError::Overloaded => Some(1_000),
            CallError::Refused(_)
            | CallError::Arguments { .. }
            | CallError::Unauthenticated
            | CallError::MissingScope { .. }
            | CallError::OverBudget { .. }
            | CallError::StillHeld { .. }
            | CallError::InputRequired(_)
            | CallError::MissingCapability { .. }
            | CallError::Unanswered { .. }
            | CallError::NotSetUp { .. }
            | CallError::RemoteDown { .. }
            | CallError::RemoteRefused { .. }
            | CallError::Fault { .. } => None,
        }
    }

    /// What a program needs besides the code: the fields of the refusal.
    pub fn data(&self) -> Option<Value> {
        match self {
            CallError::Refused(refusal) => match serde_json::to_value(refusal) {
                // An enum's variant is an object of one entry, and that entry holds the fields.
                Ok(Value::Object(variant)) => variant.into_iter().next().map(|(_, fields)| fields),
                _ => None,
            },
            CallError::MissingScope { scope } => Some(json!({ "scope": scope })),
            CallError::OverBudget { tokens, used } => Some(json!({ "tokens": tokens, "used": used })),
            CallError::TooMany { whose, lane, per_second, retry_after_ms } => Some(json!({
                "whose": whose.word(), "lane": lane.word(), "per_second": per_second, "retry_after_ms": retry_after_ms,
            })),
            CallError::StillHeld { resource, holder, waited_ms } => {
                Some(json!({ "resource": resource, "holder": holder, "waited_ms": waited_ms }))
            }
            CallError::NoLeader { retry_after_ms, .. }
            | CallError::Unknown { retry_after_ms, .. }
            | CallError::Unreadable { retry_after_ms, .. } => Some(json!({ "retry_after_ms": retry_after_ms })),
            CallError::CheckUnknown { resource, .. } => Some(json!({ "resource": resource })),
            CallError::MissingCapability { capability } => Some(json!({ "requiredCapabilities": { capability: {} } })),
            CallError::Arguments { .. }
            | CallError::Unauthenticated
            | CallError::Overloaded
            | CallError::InputRequired(_)
            | CallError::Unanswered { .. }
            | CallError::NotSetUp { .. }
            | CallError::RemoteDown { .. }
            | CallError::RemoteRefused { .. }
            | CallError::Fault { .. } => None,
        }
    }

    /// `{code, message, retryable, wrote, data?}`: the same at MCP and at HTTP.
    pub fn facts(&self) -> Value {
        let mut facts = json!({
            "code": self.code(),
            "message": self.text(),
            "retryable": self.retryable(),
            "wrote": self.wrote().word(),
        });
        if let Some(data) = self.data() {
            facts["data"] = data;
        }
        facts
    }

    /// A word for metrics.
    pub fn outcome(&self) -> Outcome {
        match self {
            CallError::Refused(_)
            | CallError::Arguments { .. }
            | CallError::Unauthenticated
            | CallError::MissingScope { .. }
            | CallError::OverBudget { .. }
            | CallError::TooMany { .. }
            | CallError::InputRequired(_)
            | CallError::MissingCapability { .. }
            | CallError::Unanswered { .. }
            | CallError::NotSetUp { .. }
            | CallError::RemoteRefused { .. }
            | CallError::StillHeld { .. } => Outcome::Refused,
            CallError::NoLeader { .. }
            | CallError::Unknown { .. }
            | CallError::Unreadable { .. }
            | CallError::CheckUnknown { .. }
            | CallError::RemoteDown { .. }
            | CallError::Overloaded => Outcome::Unavailable,
            CallError::Fault { .. } => Outcome::Fault,
        }
    }
}

/// How a call ended, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Refused,
    Unavailable,
    Fault,
}

impl Outcome {
    pub const ALL: [Outcome; 4] = [Outcome::Ok, Outcome::Refused, Outcome::Unavailable, Outcome::Fault];

    pub fn word(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Refused => "refused",
            Outcome::Unavailable => "unavailable",
            Outcome::Fault => "fault",
        }
    }
}
