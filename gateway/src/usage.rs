//! What callers use in tokens, and that they are there: counted here as calls are served, and handed to the cluster every few seconds.
//!
//! A gateway that dies loses what it counted since the last time, a few seconds of calls. What the cluster may or may not have
//! taken is repeated under the same request id, so that it counts once.
//!
//! The cluster's answer says which passports are beyond their budgets, and that holds here until their next counts are handed
//! over: so a stop takes hold, and ends, within seconds and not at once.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quorate_domain::limit::USAGE_ROWS_MAX;
use quorate_domain::usage::{AddUsage, Beyond, Over, UsageAdded, Used, anonymous};
use quorate_domain::{Principal, Tier};
use serde_json::Value;

use crate::call::CallError;
use crate::cluster::Cluster;
use crate::outbox::Outbox;

/// How often counts are handed over.
pub const EVERY: Duration = Duration::from_secs(5);
/// How long the cluster may take for that, and for the last time, when a gateway ends.
pub const WITHIN: Duration = Duration::from_secs(5);
pub const LAST_WITHIN: Duration = Duration::from_secs(1);

/// Bytes of JSON taken for one token.
const TOKEN_BYTES: usize = 4;

/// The estimate's name, as callers read it.
pub const ESTIMATOR: &str = "json_bytes_div_4";

/// The estimated tokens of a text, rounded up.
pub fn tokens(text: &str) -> u64 {
    text.len().div_ceil(TOKEN_BYTES) as u64
}

/// What one call used, but for its result.
pub fn of_arguments(arguments: &Value) -> Used {
    let declared_budget_in = arguments["token_budget"].as_u64().unwrap_or(0);
    Used { calls: 1, tokens_in: tokens(&arguments.to_string()), tokens_out: 0, declared_budget_in }
}

/// What was counted and not handed over yet.
#[derive(Default)]
pub struct Meter {
    /// By tenant and passport: as many as have called.
    waiting: Mutex<BTreeMap<String, BTreeMap<String, Used>>>,
    /// By the same: those that are beyond their budgets, as far as the cluster has said.
    over: Mutex<BTreeMap<String, BTreeMap<String, Over>>>,
    outbox: Outbox<AddUsage>,
}

impl Meter {
    pub fn count(&self, caller: Option<&Principal>, used: Used) {
        let nobody = anonymous();
        let caller = caller.unwrap_or(&nobody);
        let mut waiting = self.waiting.lock().expect("no panic under the lock");
        match waiting.get_mut(&caller.tenant).and_then(|tenant| tenant.get_mut(&caller.passport)) {
            Some(before) => before.add(used),
            None => {
                waiting.entry(caller.tenant.clone()).or_default().insert(caller.passport.clone(), used);
            }
        }
    }

    /// Notes that a caller is there, whatever it asks for and however it is answered.
    pub fn saw(&self, caller: &Principal) {
        self.count(Some(caller), Used::default());
    }

    /// The budget that a caller is beyond. Operators are warned and never stopped: they have to set it right.
    pub fn over(&self, caller: &Principal) -> Option<Over> {
        let over = *self.over.lock().expect("no panic under the lock").get(&caller.tenant)?.get(&caller.passport)?;
        match (over.beyond, caller.tier) {
            (Beyond::Stop, Tier::Operator) => Some(Over { beyond: Beyond::Warn, ..over }),
            _ => Some(over),
        }
    }

    fn judged(&self, counted: &AddUsage, answer: UsageAdded) {
        let mut over = self.over.lock().expect("no panic under the lock");
        let of_tenant = over.entry(counted.tenant.clone()).or_default();
        of_tenant.retain(|passport, _| !counted.used.iter().any(|(counted, _)| counted == passport));
        of_tenant.extend(answer.over);
        if of_tenant.is_empty() {
            over.remove(&counted.tenant);
        }
    }

    /// Hands over all that waits, and all that is unsure.
    pub async fn hand_over_all(&self, cluster: &Cluster, within: Duration) {
        let deadline = Instant::now() + within;
        let mut tenants: Vec<String> = self.waiting.lock().expect("no panic under the lock").keys().cloned().collect();
        tenants.extend(self.outbox.tenants().await);
        for tenant in tenants {
            if let Err(error) = self.hand_over(cluster, &tenant, deadline).await {
                tracing::debug!(%error, "usage is handed over later");
                return;
            }
        }
    }

    /// Hands over what waits of one tenant.
    pub async fn hand_over(&self, cluster: &Cluster, tenant: &str, deadline: Instant) -> Result<(), CallError> {
        self.outbox.hand_over(cluster, tenant, deadline, || self.take(tenant), |counted, answer| self.judged(counted, answer)).await
    }

    /// Takes as many counts as one addition holds.
    fn take(&self, tenant: &str) -> Option<AddUsage> {
        let mut waiting = self.waiting.lock().expect("no panic under the lock");
        let of_tenant = waiting.get_mut(tenant)?;
        let rest = of_tenant.keys().nth(USAGE_ROWS_MAX).cloned().map(|first| of_tenant.split_off(&first));
        let used = std::mem::take(of_tenant).into_iter().collect();
        match rest {
            Some(rest) => *of_tenant = rest,
            None => {
                waiting.remove(tenant);
            }
        }
        Some(AddUsage { tenant: tenant.into(), used })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_four_bytes_of_json_or_what_is_left() {
        assert_eq!([tokens(""), tokens("a"), tokens("abcd"), tokens("abcde")], [0, 1, 1, 2]);
        let used = of_arguments(&json!({ "token_budget": 30, "q": "x" }));
        assert_eq!(used, Used { calls: 1, tokens_in: 7, tokens_out: 0, declared_budget_in: 30 });
        assert_eq!(of_arguments(&json!({ "token_budget": "many" })).declared_budget_in, 0);
    }

    #[test]
    fn who_is_beyond_a_budget_is_so_until_the_next_counts_say_otherwise_and_operators_are_not_stopped() {
        let meter = Meter::default();
        let caller = |tier| Principal { tenant: "acme".into(), passport: "p".into(), tier, scopes: Default::default() };
        let counted = |who: &str| AddUsage { tenant: "acme".into(), used: vec![(who.into(), Used::default())] };
        let over = Over { tokens: 1, used: 2, beyond: Beyond::Stop };
        meter.judged(&counted("p"), UsageAdded { passports: 1, over: vec![("p".into(), over)] });
        assert_eq!(meter.over(&caller(Tier::Elite)), Some(over));
        assert_eq!(meter.over(&caller(Tier::Operator)), Some(Over { beyond: Beyond::Warn, ..over }));
        assert_eq!(meter.over(&Principal { tenant: "other".into(), ..caller(Tier::Elite) }), None);
        meter.judged(&counted("another"), UsageAdded { passports: 1, over: Vec::new() });
        assert_eq!(meter.over(&caller(Tier::Elite)), Some(over));
        meter.judged(&counted("p"), UsageAdded { passports: 1, over: Vec::new() });
        assert_eq!(meter.over(&caller(Tier::Elite)), None);
    }

    #[test]
    fn counts_of_many_passports_leave_in_additions_of_a_bounded_size_and_each_once() {
        let meter = Meter::default();
        let caller = |tenant: &str, n: usize| Principal {
            tenant: tenant.into(),
            passport: format!("p{n}"),
            tier: Tier::Verified,
            scopes: Default::default(),
        };
        let one = Used { calls: 1, ..Used::default() };
        for n in (0..2 * USAGE_ROWS_MAX + 50).chain(0..10) {
            meter.count(Some(&caller("acme", n)), one);
        }
        meter.count(Some(&caller("other", 0)), one);
        let taken: Vec<AddUsage> = std::iter::from_fn(|| meter.take("acme")).collect();
        assert_eq!(taken.iter().map(|addition| addition.used.len()).collect::<Vec<_>>(), [USAGE_ROWS_MAX, USAGE_ROWS_MAX, 50]);
        let calls: u64 = taken.iter().flat_map(|addition| &addition.used).map(|(_, used)| used.calls).sum();
        assert_eq!(calls, 2 * USAGE_ROWS_MAX as u64 + 60);
        assert_eq!(meter.take("other").unwrap().used, [("p0".to_string(), one)]);
        assert_eq!(meter.take("other"), None);
    }
}
