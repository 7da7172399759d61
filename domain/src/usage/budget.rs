//! Budgets: how many tokens a passport may use, and what happens beyond.
//!
//! An operator gives a passport a budget of its own, which counts from then on; whoever has none is measured by the flags, over
//! all that it ever used. Invariants:
//! * A budget that is set anew counts from nothing again.
//! * Callers without a passport share one count, so they are reported and never stopped.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Account, account};
use crate::cursor::Cursors;
use crate::event;
use crate::flag;
use crate::identity::{Passport, check_name, needs_admin};
use crate::key::Key;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Tx};

/// What happens to the calls of a passport beyond its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beyond {
    /// Nothing.
    Report,
    /// Every answer says so.
    Warn,
    /// They are refused, but for those with which it can end in order.
    Stop,
}

impl Beyond {
    const ALL: [Beyond; 3] = [Beyond::Report, Beyond::Warn, Beyond::Stop];

    pub fn word(self) -> &'static str {
        match self {
            Beyond::Report => "report",
            Beyond::Warn => "warn",
            Beyond::Stop => "stop",
        }
    }
}

/// The budget of one passport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub tenant: String,
    pub passport: String,
    pub tokens: u64,
    pub beyond: Beyond,
    /// What the passport had used before.
    pub used_before: u64,
    pub set_by: String,
    pub set_at: UnixMs,
}

impl Record for Budget {
    const KIND: Kind = Kind::TokenBudget;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

fn budget(view: &impl Read, tenant: &str, passport: &str) -> Result<Option<Budget>, StorageError> {
    view.get(tenant, &Key::new().text(passport))
}

/// How a passport stands to its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub tokens: u64,
    /// Of these.
    pub used: u64,
    pub beyond: Beyond,
    /// From when on they count; absent: from the first call.
    pub since: Option<UnixMs>,
}

impl Standing {
    pub fn is_over(&self) -> bool {
        self.used > self.tokens
    }
}

/// A passport that is beyond its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Over {
    pub tokens: u64,
    pub used: u64,
    pub beyond: Beyond,
}

/// `None` without a budget.
pub(super) fn standing(view: &impl Read, account: &Account) -> Result<Option<Standing>, StorageError> {
    let used = account.used.tokens();
    if let Some(Budget { tokens, beyond, used_before, set_at, .. }) = budget(view, &account.tenant, &account.passport)? {
        return Ok(Some(Standing { tokens, used: used.saturating_sub(used_before), beyond, since: Some(set_at) }));
    }
    let tokens = flag::number(view, flag::SESSION_TOKEN_BUDGET)?;
    if tokens == 0 {
        return Ok(None);
    }
    let word = flag::value(view, flag::BEYOND_TOKEN_BUDGET)?;
    let beyond = Beyond::ALL.into_iter().find(|beyond| beyond.word() == word && account.tenant != CLUSTER);
    Ok(Some(Standing { tokens, used, beyond: beyond.unwrap_or(Beyond::Report), since: None }))
}

/// Gives a passport of the caller's tenant a budget, which counts from here. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutBudget {
    pub passport: String,
    pub tokens: u64,
    pub beyond: Beyond,
}

/// A budget, and what was used of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetView {
    pub budget: Budget,
    pub used: u64,
}

fn view_of(view: &impl Read, budget: Budget) -> Result<BudgetView, StorageError> {
    let used = account(view, &budget.tenant, &budget.passport)?.used.tokens().saturating_sub(budget.used_before);
    Ok(BudgetView { budget, used })
}

impl PutBudget {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<BudgetView> {
        let tenant = &at.caller.tenant;
        if let Some(refusal) = needs_admin(at).or_else(|| check_name("passport", &self.passport)) {
            return Ok(Err(refusal));
        }
        let passport: Option<Passport> = tx.get(tenant, &Key::new().text(&self.passport))?;
        if passport.is_none() {
            return Ok(Err(Refusal::not_found("passport", self.passport)));
        }
        let used_before = account(tx, tenant, &self.passport)?.used.tokens();
        let budget = Budget {
            tenant: tenant.clone(),
            passport: self.passport,
            tokens: self.tokens,
            beyond: self.beyond,
            used_before,
            set_by: at.caller.passport.clone(),
            set_at: at.wall,
        };
        tx.put(&budget);
        let about = json!({ "tokens": budget.tokens, "beyond": budget.beyond, "by": budget.set_by });
        event::emit(tx, at, "usage.budget_set", &budget.passport, about)?;
        Ok(Ok(view_of(tx, budget)?))
    }
}

/// Takes a passport's own budget away. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeleteBudget {
    pub passport: String,
}

impl DeleteBudget {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<BudgetView> {
        if let Some(refusal) = needs_admin(at).or_else(|| check_name("passport", &self.passport)) {
            return Ok(Err(refusal));
        }
        let Some(budget) = budget(tx, &at.caller.tenant, &self.passport)? else {
            return Ok(Err(Refusal::not_found("budget", self.passport)));
        };
        tx.delete(&budget);
        event::emit(tx, at, "usage.budget_deleted", &budget.passport, json!({ "by": at.caller.passport }))?;
        Ok(Ok(view_of(tx, budget)?))
    }
}

/// The budgets of the caller's tenant, by passport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListBudgets {
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budgets {
    pub budgets: Vec<BudgetView>,
    pub next_cursor: Option<String>,
}

impl ListBudgets {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Budgets> {
        if !at.caller.may("admin") {
            return Ok(Err(Refusal::Denied { problem: "looking at budgets needs the scope `admin`".into() }));
        }
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("budgets", &at.caller, &());
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let order = kind_prefix(tenant, Kind::TokenBudget);
        let from = from.map(|from| order.clone().raw(&from).into_bytes());
        let found = view.page::<Budget>(tenant, &Key::new(), from.as_deref(), limit)?;
        let budgets = found.items.into_iter().map(|budget| view_of(view, budget)).collect::<Result<_, _>>()?;
        Ok(Ok(Budgets { budgets, next_cursor: found.next.map(|next| cursors.seal(&next[order.as_bytes().len()..])) }))
    }
}
