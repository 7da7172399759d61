//! Token usage: what each passport's calls have cost, by estimate.
//!
//! A gateway counts the calls that it serves and adds them here every few seconds, so that the counts outlive it. Invariants:
//! * Counts only rise. A gateway's addition counts once, since it repeats one whose outcome it was not told under the same request id.
//! * Only the system adds: a caller can't change what it is said to have used.
//! * One addition is of one tenant. Callers without a passport are counted under [`ANONYMOUS`] of no tenant.
//! * What is said of a passport beyond its budget is judged here, by all gateways' counts; they act on it (see [`budget`]).
//! * Who called is there: an addition moves the presence of its passports (see [`crate::coord`]), in no entry of its own.

mod budget;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub use self::budget::{Beyond, Budget, BudgetView, Budgets, DeleteBudget, ListBudgets, Over, PutBudget, Standing};
use crate::coord;
use crate::event;
use crate::identity::{check_name, check_name_start};
use crate::key::Key;
use crate::limit::USAGE_ROWS_MAX;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, Stamp, Tier};
use crate::tx::{Read, StorageError, Tx};

/// Who calls without a passport.
pub const ANONYMOUS: &str = "__anon__";

/// [`ANONYMOUS`] as the caller of a query.
pub fn anonymous() -> Principal {
    Principal { tenant: CLUSTER.into(), passport: ANONYMOUS.into(), tier: Tier::Unverified, scopes: Default::default() }
}

/// What calls have cost, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub calls: u64,
    /// Of their arguments.
    pub tokens_in: u64,
    /// Of their results.
    pub tokens_out: u64,
    /// The sum of the `token_budget` arguments.
    pub declared_budget_in: u64,
}

impl Used {
    pub fn tokens(&self) -> u64 {
        self.tokens_in.saturating_add(self.tokens_out)
    }

    /// Adds, and stays at the top rather than begin again.
    pub fn add(&mut self, more: Used) {
        self.calls = self.calls.saturating_add(more.calls);
        self.tokens_in = self.tokens_in.saturating_add(more.tokens_in);
        self.tokens_out = self.tokens_out.saturating_add(more.tokens_out);
        self.declared_budget_in = self.declared_budget_in.saturating_add(more.declared_budget_in);
    }
}

/// The counts of one passport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Account {
    tenant: String,
    passport: String,
    used: Used,
}

impl Record for Account {
    const KIND: Kind = Kind::TokenUsage;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

fn account(view: &impl Read, tenant: &str, passport: &str) -> Result<Account, StorageError> {
    let found: Option<Account> = view.get(tenant, &Key::new().text(passport))?;
    Ok(found.unwrap_or_else(|| Account { tenant: tenant.into(), passport: passport.into(), used: Used::default() }))
}

/// Adds what a gateway has counted since the last time, for passports of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddUsage {
    /// Empty for callers without a passport.
    pub tenant: String,
    /// By passport; at most [`USAGE_ROWS_MAX`].
    pub used: Vec<(String, Used)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageAdded {
    pub passports: u64,
    /// Those of them that are beyond their budgets now.
    #[serde(default)]
    pub over: Vec<(String, Over)>,
}

impl AddUsage {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<UsageAdded> {
        if at.caller.tenant != CLUSTER {
            return Ok(Err(Refusal::Denied { problem: "usage is counted by gateways only".into() }));
        }
        let (rows, limit) = (self.used.len() as u64, USAGE_ROWS_MAX as u64);
        if rows > limit {
            return Ok(Err(Refusal::TooLong { field: "used".into(), size: rows, limit, unit: "entries".into() }));
        }
        let named = self.used.iter().find_map(|(passport, _)| check_name("passport", passport));
        if let Some(refusal) = check_name_start("tenant", &self.tenant).or(named) {
            return Ok(Err(refusal));
        }
        let mut over = Vec::new();
        for (passport, used) in self.used {
            let mut account = account(tx, &self.tenant, &passport)?;
            let before = budget::standing(tx, &account)?;
            account.used.add(used);
            tx.put(&account);
            if self.tenant != CLUSTER {
                coord::seen(tx, at, &self.tenant, &passport);
            }
            let Some(now) = budget::standing(tx, &account)?.filter(Standing::is_over) else { continue };
            if !before.is_some_and(|before| before.is_over()) {
                let about = json!({ "tokens": now.tokens, "used": now.used, "beyond": now.beyond });
                event::emit(tx, &at.within(&self.tenant), "usage.over_budget", &passport, about)?;
            }
            over.push((passport, Over { tokens: now.tokens, used: now.used, beyond: now.beyond }));
        }
        Ok(Ok(UsageAdded { passports: rows, over }))
    }
}

/// What the caller has used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetUsage {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    pub passport: String,
    pub used: Used,
    /// Of the budget that it has; `limit` alone is what it was before budgets could do more than report.
    pub limit: Option<u64>,
    #[serde(default)]
    pub standing: Option<Standing>,
}

impl GetUsage {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Usage> {
        let account = account(view, &at.caller.tenant, &at.caller.passport)?;
        let standing = budget::standing(view, &account)?;
        let Account { passport, used, .. } = account;
        Ok(Ok(Usage { passport, used, limit: standing.map(|standing| standing.tokens), standing }))
    }
}
