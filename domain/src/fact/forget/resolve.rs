//! The one resolver: which facts a scope means.
//!
//! In this order: not forgotten before, not reserved, visible to the caller, within the scope, not pinned by the caller. Facts are
//! walked in the order of their keys, a bounded number of them; what was found is then put oldest first and cut to the budget.

use super::super::panel::is_pinned;
use super::super::place::{AGENT, EVERYONE, kept_from_forgetting, own_prefix};
use super::super::rank::State;
use super::super::{Fact, at_most};
use super::{ForgetScope, ScopeKind};
use crate::identity::{check_name, check_name_start};
use crate::key::Key;
use crate::limit::{FORGET_FACTS_MAX, FORGET_SCAN_BYTES_MAX, FORGET_SCAN_ROWS_MAX, NAME_BYTES_MAX};
use crate::record::{ReadRecords, Record, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, UnixMs};
use crate::tx::Read;

/// How much is asked for, and from where on.
pub(super) struct Asked {
    token_budget: Option<u64>,
    from: Option<Vec<u8>>,
}

impl Asked {
    pub(super) fn new(token_budget: Option<u64>, from: Option<Vec<u8>>) -> Result<Self, Refusal> {
        match token_budget {
            Some(0) => Err(Refusal::invalid("token_budget", "must be at least 1; leave it out to touch all in scope")),
            token_budget => Ok(Self { token_budget, from }),
        }
    }
}

/// What one call is about.
pub(super) struct Found {
    /// Oldest first.
    pub facts: Vec<Fact>,
    pub truncated: Option<String>,
    pub next: Option<Vec<u8>>,
}

/// Rows read from storage at once: each can be as large as a value may be.
const CHUNK: usize = 16;

/// What a fact counts for against a budget.
pub(super) fn tokens(fact: &Fact) -> u64 {
    ((fact.entity.len() + fact.key.len() + fact.value.len()) as u64).div_ceil(4)
}

pub(super) fn resolve(view: &impl Read, caller: &Principal, scope: &ForgetScope, asked: Asked) -> Applied<Found> {
    let plan = match Plan::of(scope, caller) {
        Ok(plan) => plan,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut found = Found { facts: Vec::new(), truncated: None, next: None };
    let (mut rows, mut bytes) = (0, 0);
    'ranges: for range in plan.ranges {
        let start = kind_prefix(&caller.tenant, Fact::KIND).raw(range.as_bytes());
        let mut from = match &asked.from {
            // A cursor stands within one range; those before it are done.
            Some(from) if from.as_slice() >= start.after_prefix().as_slice() => continue,
            Some(from) if from.starts_with(start.as_bytes()) => Some(from.clone()),
            _ => None,
        };
        loop {
            let page = view.page::<Fact>(&caller.tenant, &range, from.as_deref(), CHUNK)?;
            for fact in page.items {
                let stop = if found.facts.len() == FORGET_FACTS_MAX {
                    Some("facts")
                } else if rows == FORGET_SCAN_ROWS_MAX || bytes > FORGET_SCAN_BYTES_MAX {
                    Some("scan_limit")
                } else {
                    None
                };
                if let Some(reason) = stop {
                    found.truncated = Some(reason.into());
                    found.next = Some(kind_prefix(&caller.tenant, Fact::KIND).raw(fact.id().as_bytes()).into_bytes());
                    break 'ranges;
                }
                rows += 1;
                bytes += fact.value.len();
                let is_meant = fact.state() != State::Forgotten
                    && kept_from_forgetting(&fact.entity).is_none()
                    && fact.is_visible_to(caller)
                    && plan.filter.lets_through(&fact);
                if is_meant && !is_pinned(view, caller, &fact)? {
                    found.facts.push(fact);
                }
            }
            match page.next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
    }
    found.facts.sort_by(|a, b| (a.stored_at, a.revision, &a.fact_id).cmp(&(b.stored_at, b.revision, &b.fact_id)));
    if let Some(budget) = asked.token_budget {
        let mut used = 0u64;
        // The oldest comes in any case.
        let fits = found.facts.iter().enumerate().take_while(|(n, fact)| {
            used = used.saturating_add(tokens(fact));
            *n == 0 || used <= budget
        });
        let fitting = fits.count();
        if fitting < found.facts.len() {
            found.facts.truncate(fitting);
            // Those that were cut are before any cursor, so the next call begins anew.
            (found.truncated, found.next) = (Some("token_budget".into()), None);
        }
    }
    Ok(Ok(found))
}

/// Where the facts of a scope lie, and which of those there are meant.
struct Plan {
    ranges: Vec<Key>,
    filter: Filter,
}

enum Filter {
    All,
    Key(String),
    Before(UnixMs),
}

impl Plan {
    fn of(scope: &ForgetScope, caller: &Principal) -> Result<Self, Refusal> {
        let value = scope.value.as_str();
        at_most("scope.value", value.len(), 2 * NAME_BYTES_MAX, "bytes")?;
        if value.trim().is_empty() {
            return Err(Refusal::invalid("scope.value", "must not be empty: what it means would be everything"));
        }
        let everyones = |prefix: &str| Key::new().text(EVERYONE).text_prefix(prefix);
        let whole = Key::new().text(EVERYONE);
        let plan = |ranges: Vec<Key>, filter| Ok(Self { ranges, filter });
        match scope.kind {
            ScopeKind::EntityPrefix => {
                let own = own_prefix(caller);
                let named = value.strip_prefix(&own);
                if let Some(refusal) = check_name_start("scope.value", named.unwrap_or(value)) {
                    return Err(refusal);
                }
                match named {
                    Some(rest) => plan(vec![Key::new().text(&caller.passport).text_prefix(rest)], Filter::All),
                    None if value.starts_with(AGENT) => Err(not_yours()),
                    None => plan(vec![everyones(value)], Filter::All),
                }
            }
            ScopeKind::KeyGlob => plan(vec![whole], Filter::Key(value.into())),
            ScopeKind::PassportId if value == caller.passport => plan(vec![Key::new().text(&caller.passport)], Filter::All),
            ScopeKind::PassportId => Err(check_name("scope.value", value).unwrap_or_else(not_yours)),
            ScopeKind::BeforeTimestamp => match UnixMs::from_rfc3339(value) {
                Some(instant) => plan(vec![whole], Filter::Before(instant)),
                None => Err(Refusal::invalid("scope.value", "must be an instant with an offset, such as 2026-11-30T12:00:00Z")),
            },
            ScopeKind::TenantId => {
                if let Some(refusal) = check_name("scope.value", value) {
                    return Err(refusal);
                }
                // In the order of their keys, as a cursor goes.
                let beginnings = [format!("business::{value}::"), format!("personal::{value}::"), format!("tenant:{value}::")];
                plan(beginnings.iter().map(|beginning| everyones(beginning)).collect(), Filter::All)
            }
        }
    }
}

fn not_yours() -> Refusal {
    Refusal::Denied { problem: "private facts are forgotten by the passport that they belong to".into() }
}

impl Filter {
    fn lets_through(&self, fact: &Fact) -> bool {
        match self {
            Filter::All => true,
            Filter::Key(glob) => matches(glob, &fact.key),
            Filter::Before(instant) => fact.stored_at < *instant,
        }
    }
}

/// Whether the whole text fits a pattern in which `*` stands for any text.
fn matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    // `split` yields at least one part.
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stands_for_any_text_and_everything_else_for_itself() {
        for (glob, text) in
            [("a", "a"), ("*", ""), ("*", "abc"), ("a*", "abc"), ("*c", "abc"), ("a*c", "abc"), ("a*b*c", "aXbYc"), ("**", "a")]
        {
            assert!(matches(glob, text), "{glob} {text}");
        }
        for (glob, text) in [("a", "ab"), ("a*", "ba"), ("a*a", "a"), ("a*b*c", "acb"), ("?", "a"), ("ab*ba", "aba")] {
            assert!(!matches(glob, text), "{glob} {text}");
        }
    }
}
