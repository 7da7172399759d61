//! Loops: what a passport asked for again and again, what that cost, and a rule that would have saved it.
//!
//! Calls with the same signature asked the same. Only reads and refused calls count: a write that is repeated did something
//! each time. Nothing is written, and nothing acts on a proposal but who reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::trace::{Trace, newest};
use crate::flag;
use crate::limit::{LEARN_PROPOSALS_MAX, TRACES_PER_PASSPORT_MAX};
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::Read;

/// Looks for loops in the caller's newest traces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learn {
    pub min_repeats: u64,
    /// How many traces are looked at.
    pub scan: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// By wasted tokens, then by occurrences, then by signature.
    pub proposals: Vec<Proposal>,
    /// Loops that are left out: there are more than one reply holds.
    pub left_out: u64,
    pub scanned: u64,
    /// False when traces are switched off.
    pub enabled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    pub signature: String,
    pub occurrences: u64,
    /// Tokens of all results but the first.
    pub wasted_tokens: u64,
    pub draft_guardrail: String,
}

/// What is seen of one signature.
struct Loop {
    tool: String,
    occurrences: u64,
    refused: u64,
    tokens_out: u64,
    /// Of the oldest call: what had to be paid once.
    first: u64,
}

/// Calls about traces are no work.
const ABOUT_TRACES: [&str; 2] = ["learn", "tool_trace_recent"];
const BATCHES_PER_SCAN: usize = 64;

impl Learn {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Learnt> {
        if self.min_repeats < 2 {
            return Ok(Err(Refusal::invalid("min_repeats", format!("must be 2 or more, not {}", self.min_repeats))));
        }
        if !(1..=TRACES_PER_PASSPORT_MAX).contains(&self.scan) {
            return Ok(Err(Refusal::invalid("scan", format!("must be 1 to {TRACES_PER_PASSPORT_MAX}, not {}", self.scan))));
        }
        if !flag::is_on(view, flag::TOOL_TRACES)? {
            return Ok(Ok(Learnt { proposals: Vec::new(), left_out: 0, scanned: 0, enabled: false }));
        }
        let (mut loops, mut scanned, mut before) = (BTreeMap::new(), 0, None);
        'all: loop {
            let batches = newest(view, &at.caller, at.lease_now, before, BATCHES_PER_SCAN)?;
            let Some(last) = batches.last() else { break };
            before = Some(last.number());
            for trace in batches.into_iter().flat_map(|batch| batch.traces.into_iter().rev()) {
                if scanned == self.scan {
                    break 'all;
                }
                scanned += 1;
                count(&mut loops, trace);
            }
        }
        let mut proposals: Vec<Proposal> = loops
            .into_iter()
            .filter(|(_, seen)| seen.occurrences >= self.min_repeats)
            .map(|(signature, seen)| propose(signature, seen))
            .collect();
        proposals.sort_by(|a, b| {
            b.wasted_tokens.cmp(&a.wasted_tokens).then(b.occurrences.cmp(&a.occurrences)).then(a.signature.cmp(&b.signature))
        });
        let left_out = proposals.len().saturating_sub(LEARN_PROPOSALS_MAX) as u64;
        proposals.truncate(LEARN_PROPOSALS_MAX);
        Ok(Ok(Learnt { proposals, left_out, scanned, enabled: true }))
    }
}

/// Counts a trace that comes before all that were counted.
fn count(loops: &mut BTreeMap<String, Loop>, trace: Trace) {
    let is_refused = trace.outcome == "refused";
    if (!trace.reads && !is_refused) || ABOUT_TRACES.contains(&trace.tool.as_str()) {
        return;
    }
    let Trace { signature, tool, tokens_out, .. } = trace;
    let seen = loops.entry(signature).or_insert_with(|| Loop { tool, occurrences: 0, refused: 0, tokens_out: 0, first: 0 });
    seen.occurrences += 1;
    seen.refused += u64::from(is_refused);
    seen.tokens_out = seen.tokens_out.saturating_add(tokens_out);
    seen.first = tokens_out;
}

fn propose(signature: String, seen: Loop) -> Proposal {
    let Loop { tool, occurrences, refused, tokens_out, first } = seen;
    let wasted_tokens = tokens_out - first;
    let draft_guardrail = match refused {
        _ if refused * 2 > occurrences => format!(
            "Stop calling `{tool}` again with the same arguments after a refusal ({refused} of {occurrences} calls): do what the refusal \
             says, or ask a person."
        ),
        _ => format!(
            "Before calling `{tool}` again with the same arguments ({occurrences} calls, {wasted_tokens} tokens beyond the first), use the \
             answer at hand; ask again only after a change that you were told of, or go on from `next_cursor`."
        ),
    };
    Proposal { signature, occurrences, wasted_tokens, draft_guardrail }
}
