//! What agents did and what it cost: traces, loops, the hold-out experiment, and the activity of a session.

use std::time::Instant;

use quorate_domain::fact::Confidence;
use quorate_domain::flag;
use quorate_domain::limit::{ACTIVITY_TOKENS_DEFAULT, TRACE_TOKENS_DEFAULT};
use quorate_domain::measure::{self, ActivityKind, ArmSums, GetActivityTurn, GetSavings, Samples};
use quorate_domain::refusal::shown;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::{Cluster, Served};
use crate::registry::{Effect, Reply, Tool};
use crate::schema::Nullable;
use crate::usage::WITHIN;

/// Hands over what this gateway still holds of the caller's tenant, so that its own calls are in what it reads.
async fn hand_over(ctx: &CallContext, cluster: &Cluster) -> Result<(), CallError> {
    let deadline = ctx.deadline.min(Instant::now() + WITHIN);
    let handed = ctx.services.tracer.hand_over(cluster, &ctx.principal()?.tenant, deadline).await;
    handed.map_err(|error| CallError::Unreadable { detail: error.to_string(), retry_after_ms: 1_000 })
}

fn off(flag: flag::Definition) -> String {
    format!("switched off by the flag `{}`", flag.name)
}

// ------------------------------------------------------------------ tool_trace_recent

fn fifty() -> u64 {
    50
}

fn trace_tokens() -> u64 {
    TRACE_TOKENS_DEFAULT
}

/// Show your own last calls, newest first: which tool, on what, how it ended and what it cost.
///
/// Only your passport's calls are shown, of the last hour by default; no arguments but names of entities, keys and resources.
/// Tag calls with `io.quorate/turn-id` in `_meta`, or the header `Quorate-Turn`, to find those of one turn.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolTraceRecent {
    /// Calls that were tagged with this turn.
    turn_id: Option<String>,
    /// Traces of this page, 1 to 1,000.
    #[serde(default = "fifty")]
    top_k: u64,
    /// Tokens (4 bytes of JSON each) that the reply may have.
    #[serde(default = "trace_tokens")]
    #[schemars(range(min = 0))]
    token_budget: u64,
    /// `next_cursor` of the reply before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Traces {
    traces: Vec<Trace>,
    /// How many there are on this page.
    count: u64,
    /// Calls of yours that are missing, since there was no room to keep them.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_kept: Option<u64>,
    /// Why there are more: `top_k`, `token_budget` or `reply_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
    /// Pass it as `cursor` for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// True when traces are switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    feature_disabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Trace {
    tool: String,
    /// When the call ended, in microseconds of the Unix epoch, by the clock of the gateway that served it.
    ts_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// What the call was expected to do, by its tool and arguments; without what is reserved.
    predicted_effects: Vec<PredictedEffect>,
    outcome: TraceOutcome,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PredictedEffect {
    /// `fact_read`, `fact_write`, `forget`, `receipt_emit` or `tool_dispatch`.
    kind: String,
    entity: String,
    key: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct TraceOutcome {
    /// `ok`, `refused`, `unavailable` or `fault`.
    status: String,
    /// The code of a call that did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    duration_ms: u64,
    tokens_in: u64,
    tokens_out: u64,
}

impl From<measure::Trace> for Trace {
    fn from(trace: measure::Trace) -> Self {
        let measure::Trace { tool, ts_us, turn_id, session_id, effects, outcome, code, duration_ms, tokens_in, tokens_out, .. } = trace;
        let effect = |measure::Effect { kind, entity, key }| PredictedEffect { kind, entity, key };
        Self {
            tool,
            ts_us,
            turn_id,
            session_id,
            predicted_effects: effects.into_iter().map(effect).collect(),
            outcome: TraceOutcome { status: outcome, code, duration_ms, tokens_in, tokens_out },
        }
    }
}

impl Tool for ToolTraceRecent {
    const NAME: &'static str = "tool_trace_recent";
    const TITLE: &'static str = "Show your last calls";
    const SCOPE: &'static str = "crux-mcp.tool_trace_recent";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEASURES;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::TOOL_TRACES);
    type Output = Traces;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Traces>, CallError> {
        let Self { turn_id, top_k, token_budget, cursor } = self;
        hand_over(ctx, cluster).await?;
        let (found, served) = cluster.read(ctx, measure::RecentTraces { turn_id, top_k, token_budget, cursor }).await?;
        let facts = Traces {
            count: found.traces.len() as u64,
            traces: found.traces.into_iter().map(Into::into).collect(),
            not_kept: Some(found.not_kept).filter(|calls| *calls > 0),
            truncated: found.truncated,
            next_cursor: found.next_cursor,
            feature_disabled: (!found.enabled).then_some(true),
            note: (!found.enabled).then(|| off(flag::TOOL_TRACES)),
        };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ learn

fn three() -> u64 {
    3
}

fn thousand() -> u64 {
    1_000
}

/// Find loops in your own last calls: what you asked for again and again, and a rule that would have saved it.
///
/// Pages of one list count as one. Proposals are ordered by wasted tokens: those of all results but the first. Nothing is
/// written; a proposal is for you, or for a person, to act on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Learn {
    /// How often the same call counts as a loop.
    #[serde(default = "three")]
    #[schemars(range(min = 2))]
    min_repeats: u64,
    /// How many of your newest calls are looked at, 1 to 5,000; so many are kept.
    #[serde(default = "thousand")]
    scan: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Learnt {
    proposals: Vec<Proposal>,
    count: u64,
    /// Further loops that wasted less than those shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    /// Calls that were looked at.
    scanned: u64,
    /// Always true: nothing is written.
    propose_only: bool,
    /// True when traces are switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    feature_disabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Proposal {
    /// The tool and its arguments, texts as hashes.
    signature: String,
    occurrences: u64,
    wasted_tokens: u64,
    draft_guardrail: String,
}

impl Tool for Learn {
    const NAME: &'static str = "learn";
    const TITLE: &'static str = "Find loops in your calls";
    const SCOPE: &'static str = "crux-mcp.learn";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEASURES;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::TOOL_TRACES);
    type Output = Learnt;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Learnt>, CallError> {
        let Self { min_repeats, scan } = self;
        hand_over(ctx, cluster).await?;
        let (found, served) = cluster.read(ctx, measure::Learn { min_repeats, scan }).await?;
        let proposal = |measure::Proposal { signature, occurrences, wasted_tokens, draft_guardrail }| Proposal {
            signature,
            occurrences,
            wasted_tokens,
            draft_guardrail,
        };
        let facts = Learnt {
            count: found.proposals.len() as u64,
            proposals: found.proposals.into_iter().map(proposal).collect(),
            left_out: Some(found.left_out).filter(|loops| *loops > 0),
            scanned: found.scanned,
            propose_only: true,
            feature_disabled: (!found.enabled).then_some(true),
            note: (!found.enabled).then(|| off(flag::TOOL_TRACES)),
        };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ token_savings

/// Tell what token budgets save, measured: recalls of a sampled control arm are answered without them, and both arms compared.
///
/// The saving is an estimate with its 95 % confidence interval, of your whole team's `query` and `query_facts`. The experiment is
/// off until an operator sets `CRUX_OUTPUT_HOLDOUT`; while it runs, replies of the control arm are larger than they were asked to
/// be, and say so with `unshaped`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenSavings {}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct SavingsFound {
    holdout_enabled: bool,
    /// The share of the control arm.
    #[serde(skip_serializing_if = "Option::is_none")]
    holdout_fraction: Option<f64>,
    /// Answers of the control arm.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_control: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_treatment: Option<u64>,
    /// By how much smaller answers are with their budgets, in percent; null while there are too few samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    reduction_pct: Option<Nullable<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ci95_low_pct: Option<Nullable<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ci95_high_pct: Option<Nullable<f64>>,
    /// Of all its answers together.
    #[serde(skip_serializing_if = "Option::is_none")]
    control_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    treatment_tokens: Option<u64>,
    /// How to switch it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Why there is no estimate yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Answers of each arm below which no interval is told: the normal approximation does not hold yet.
const SAMPLES_MIN: u64 = 30;
/// Of the normal distribution, for 95 %.
const Z: f64 = 1.96;

/// A saving in percent, and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    pct: f64,
    low: f64,
    high: f64,
}

impl Estimate {
    /// One minus the ratio of the arms' means, with an interval by the delta method. `None` with too few samples.
    fn of(control: ArmSums, treatment: ArmSums) -> Option<Self> {
        if control.n < SAMPLES_MIN || treatment.n < SAMPLES_MIN || control.tokens == 0 {
            return None;
        }
        let (control_mean, control_error) = mean_and_error(control);
        let (treatment_mean, treatment_error) = mean_and_error(treatment);
        let ratio = treatment_mean / control_mean;
        let spread = Z * (treatment_error + ratio * ratio * control_error).sqrt() / control_mean;
        let pct = |ratio: f64| (1_000.0 * (1.0 - ratio)).round() / 10.0;
        Some(Self { pct: pct(ratio), low: pct(ratio + spread), high: pct(ratio - spread) })
    }
}

/// The mean of an arm, and the variance of that mean.
fn mean_and_error(ArmSums { n, tokens, squares }: ArmSums) -> (f64, f64) {
    let (n, tokens, squares) = (n as f64, tokens as f64, squares as f64);
    let mean = tokens / n;
    (mean, ((squares - tokens * mean) / (n - 1.0)).max(0.0) / n)
}

fn savings(samples: Samples) -> SavingsFound {
    let Samples { fraction_millionths, control, treatment } = samples;
    if fraction_millionths == 0 {
        let hint = format!("set {}=0.05 to sample a live control arm", flag::OUTPUT_HOLDOUT.name);
        return SavingsFound { holdout_enabled: false, hint: Some(hint), ..SavingsFound::default() };
    }
    let found = Estimate::of(control, treatment);
    let told = |pct: fn(Estimate) -> f64| Some(Nullable(found.map(pct)));
    let note = || format!("too few samples: an estimate needs {SAMPLES_MIN} answers of each arm");
    SavingsFound {
        holdout_enabled: true,
        holdout_fraction: Some(fraction_millionths as f64 / 1e6),
        n_control: Some(control.n),
        n_treatment: Some(treatment.n),
        reduction_pct: told(|found| found.pct),
        ci95_low_pct: told(|found| found.low),
        ci95_high_pct: told(|found| found.high),
        control_tokens: Some(control.tokens),
        treatment_tokens: Some(treatment.tokens),
        hint: None,
        note: found.is_none().then(note),
    }
}

impl Tool for TokenSavings {
    const NAME: &'static str = "token_savings";
    const TITLE: &'static str = "Measure what token budgets save";
    const SCOPE: &'static str = "crux-mcp.token_savings";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEASURES;
    const IDEMPOTENT: bool = true;
    type Output = SavingsFound;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<SavingsFound>, CallError> {
        hand_over(ctx, cluster).await?;
        let (found, served) = cluster.read(ctx, GetSavings {}).await?;
        Ok(Reply::at(served.revision, savings(found.samples)))
    }
}

// ------------------------------------------------------------------ activity_recent

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Question,
    Answer,
    Reasoning,
    Command,
    Fact,
    Execplan,
    Handoff,
    Error,
}

impl From<Kind> for ActivityKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Question => ActivityKind::Question,
            Kind::Answer => ActivityKind::Answer,
            Kind::Reasoning => ActivityKind::Reasoning,
            Kind::Command => ActivityKind::Command,
            Kind::Fact => ActivityKind::Fact,
            Kind::Execplan => ActivityKind::Execplan,
            Kind::Handoff => ActivityKind::Handoff,
            Kind::Error => ActivityKind::Error,
        }
    }
}

pub(super) fn default_tenant() -> String {
    "default".into()
}

fn activity_tokens() -> u64 {
    ACTIVITY_TOKENS_DEFAULT
}

/// Show what happened in a session, newest first: questions, answers, reasoning, and your calls that named it.
///
/// Turns come from `POST /v1/activity`; a call leaves a row when its arguments name the session, or `io.quorate/session-id` in
/// `_meta` or the header `Quorate-Session` does. Rows of calls, and private turns, are shown to their own passport alone.
/// `GET /v1/activity/turn/{turn_id}` has the whole text of a turn.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActivityRecent {
    /// Whose journal, by the name under which turns and calls told of it.
    session_id: String,
    /// Your tenant; `default` stands for it.
    #[serde(default = "default_tenant")]
    tenant_id: String,
    /// Rows whose `seq` is greater.
    since: Option<String>,
    /// Rows of these kinds; absent: of all. One text with commas between is taken too.
    kinds: Option<Vec<Kind>>,
    /// Tokens (4 bytes of JSON each) that the reply may have; 0 is 500.
    #[serde(default = "activity_tokens")]
    #[schemars(range(min = 0))]
    token_budget: u64,
    /// `next_cursor` of the reply before, for older rows.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ActivityFound {
    session_id: String,
    tenant_id: String,
    /// False when the log is switched off.
    feature_enabled: bool,
    /// The budget that was applied.
    token_budget: u64,
    /// Rows of this reply.
    returned: u64,
    /// Whether there are older rows that did not fit.
    truncated: bool,
    rows: Vec<Row>,
    /// Pass it as `cursor` for older rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Row {
    turn_id: String,
    /// Pass it as `since` for what came after.
    seq: String,
    ts: String,
    /// `question`, `answer`, `reasoning`, `command`, `fact`, `execplan`, `handoff` or `error`.
    kind: String,
    /// Who wrote it.
    passport: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f64>,
    fact_refs: Vec<String>,
    receipt_ids: Vec<String>,
    /// The beginning of its text, without names that are reserved.
    preview: String,
}

impl From<measure::ActivityRow> for Row {
    fn from(row: measure::ActivityRow) -> Self {
        let measure::ActivityRow { turn_id, seq, at, kind, passport, intent, tool, confidence, fact_refs, receipt_ids, preview } = row;
        Self {
            turn_id,
            seq: seq.to_string(),
            ts: at.to_rfc3339(),
            kind: kind.word().into(),
            passport,
            intent,
            tool,
            confidence: confidence.map(Confidence::to_unit),
            fact_refs,
            receipt_ids,
            preview,
        }
    }
}

impl Tool for ActivityRecent {
    const NAME: &'static str = "activity_recent";
    const TITLE: &'static str = "Show a session's activity";
    const SCOPE: &'static str = "crux-mcp.activity_recent";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::MEASURES;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<flag::Definition> = Some(flag::ACTIVITY_LOG);
    const LISTS_AS_TEXT: &'static [&'static str] = &["kinds"];
    type Output = ActivityFound;

    fn example() -> Value {
        json!({ "session_id": "build-42" })
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<ActivityFound>, CallError> {
        let Self { session_id, tenant_id, since, kinds, token_budget, cursor } = self;
        let since = since.map_or(Ok(0), |since| {
            let problem = format!("`since` is no `seq`: `{}`", shown(&since));
            since.parse().map_err(|_| CallError::arguments(problem, "Send the `seq` of a row, such as \"12\"."))
        })?;
        hand_over(ctx, cluster).await?;
        let query = measure::RecentActivity {
            session_id: session_id.clone(),
            tenant_id: (tenant_id != default_tenant()).then_some(tenant_id),
            since,
            kinds: kinds.unwrap_or_default().into_iter().map(Into::into).collect(),
            token_budget,
            cursor,
        };
        let (found, served) = cluster.read(ctx, query).await?;
        let facts = ActivityFound {
            session_id,
            tenant_id: ctx.principal()?.tenant.clone(),
            feature_enabled: found.enabled,
            token_budget: found.token_budget,
            returned: found.rows.len() as u64,
            truncated: found.truncated,
            rows: found.rows.into_iter().map(Into::into).collect(),
            next_cursor: found.next_cursor,
            note: (!found.enabled).then(|| off(flag::ACTIVITY_LOG)),
        };
        Ok(Reply::at(served.revision, facts))
    }
}

// ------------------------------------------------------------------ turns over HTTP

/// A turn as `POST /v1/activity` takes it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    session_id: String,
    kind: Kind,
    /// At most 16 KiB; kept as sent.
    text: String,
    /// True keeps it to you; else your team reads it.
    #[serde(default)]
    private: bool,
    intent: Option<String>,
    tool: Option<String>,
    #[schemars(range(min = 0, max = 1))]
    confidence: Option<f64>,
    #[serde(default)]
    fact_refs: Vec<String>,
    #[serde(default)]
    receipt_ids: Vec<String>,
}

/// What a token has to hold to write turns, and to read them.
pub const WRITING: &str = "crux-mcp.observe";
pub const READING: &str = ActivityRecent::SCOPE;

pub fn may_write(ctx: &CallContext) -> Result<(), CallError> {
    match ctx.principal()?.may(WRITING) {
        true => Ok(()),
        false => Err(CallError::MissingScope { scope: WRITING.into() }),
    }
}

/// Writes a turn into a session's journal; that the caller may is checked before.
pub async fn write_turn(ctx: &CallContext, cluster: &Cluster, turn: Turn) -> Result<Reply<Value>, CallError> {
    let Turn { session_id, kind, text, private, intent, tool, confidence, fact_refs, receipt_ids } = turn;
    let confidence = confidence.map(|share| super::facts::confidence("confidence", share)).transpose()?;
    let command =
        measure::AppendActivity { session_id, kind: kind.into(), text, private, intent, tool, confidence, fact_refs, receipt_ids };
    let (done, revision) = cluster.propose(ctx, command).await?;
    Ok(Reply::at(revision, json!({ "turn_id": done.turn_id, "seq": done.seq.to_string() })))
}

/// One turn with its whole text.
pub async fn read_turn(ctx: &CallContext, cluster: &Cluster, turn_id: String) -> Result<(Value, Served), CallError> {
    if !ctx.principal()?.may(READING) {
        return Err(CallError::MissingScope { scope: READING.into() });
    }
    let (found, served) = cluster.read(ctx, GetActivityTurn { turn_id }).await?;
    let mut facts = serde_json::to_value(Row::from(found.row)).map_err(|error| CallError::Fault { detail: error.to_string() })?;
    facts["session_id"] = found.session_id.into();
    facts["text"] = found.text.into();
    Ok((facts, served))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn sums(tokens: impl IntoIterator<Item = u64>) -> ArmSums {
        let mut sums = ArmSums::default();
        tokens.into_iter().for_each(|tokens| sums.count(tokens));
        sums
    }

    #[test]
    fn an_estimate_comes_with_its_interval_and_not_before_there_are_samples() {
        // Means 100 and 50, sample variances 2,500/29 and 625/29 times 30/... worked out by hand below.
        let control = sums((0..30).map(|n| if n % 2 == 0 { 90 } else { 110 }));
        let treatment = sums((0..30).map(|n| if n % 2 == 0 { 40 } else { 60 }));
        // The variance of each mean is 100 * 30/29 / 30 = 3.448; the ratio's deviation sqrt(3.448 * 1.25) / 100 = 0.02076.
        let found = Estimate::of(control, treatment).unwrap();
        assert_eq!(found, Estimate { pct: 50.0, low: 45.9, high: 54.1 });
        assert_eq!(Estimate::of(sums([100; 29]), treatment), None);
        assert_eq!(Estimate::of(control, sums([100; 29])), None);
        assert_eq!(Estimate::of(sums([0; 40]), treatment), None);
        // Worse with budgets than without is a negative saving, and nothing is cut at zero.
        assert_eq!(Estimate::of(sums([50; 30]), sums([100; 30])).unwrap().pct, -100.0);
    }

    #[test]
    fn the_interval_holds_the_true_saving_in_about_95_of_100_experiments() {
        let mut random = StdRng::seed_from_u64(7);
        let mut held = 0;
        for _ in 0..1_000 {
            // Skewed, as sizes of answers are: means 1,000 and 400 of exponential distributions.
            let mut arm = |n: usize, mean: f64| {
                sums((0..n).map(|_| (-mean * random.random_range(f64::EPSILON..1.0_f64).ln()) as u64).collect::<Vec<_>>())
            };
            let (control, treatment) = (arm(200, 1_000.0), arm(1_500, 400.0));
            let found = Estimate::of(control, treatment).unwrap();
            held += usize::from((found.low..=found.high).contains(&60.0));
        }
        assert!((920..=975).contains(&held), "{held} of 1,000");
    }

    #[test]
    fn what_is_off_tells_how_to_switch_it_on_and_too_few_samples_are_named() {
        let told = |samples| serde_json::to_value(savings(samples)).unwrap();
        assert_eq!(
            told(Samples::default()),
            json!({ "holdout_enabled": false, "hint": "set CRUX_OUTPUT_HOLDOUT=0.05 to sample a live control arm" })
        );
        let few = told(Samples { fraction_millionths: 50_000, control: sums([9]), treatment: sums([4, 5]) });
        assert_eq!(
            few,
            json!({
                "holdout_enabled": true, "holdout_fraction": 0.05, "n_control": 1, "n_treatment": 2, "reduction_pct": null,
                "ci95_low_pct": null, "ci95_high_pct": null, "control_tokens": 9, "treatment_tokens": 9,
                "note": "too few samples: an estimate needs 30 answers of each arm",
            })
        );
    }
}
