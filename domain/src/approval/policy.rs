//! What a tenant lets pass, and what it asks of a decision: by risk, by who asks, and by what is asked for.
//!
//! The first rule that fits a request decides; where none fits, `approve_low` and `approve_medium` do. High risk always waits for
//! a person, whatever a policy says: a policy can only ask for two. A request keeps what it was opened under: a policy that
//! changes later changes no request.

use serde::{Deserialize, Serialize};

use super::{Approval, RiskTier};
use crate::event;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{APPROVAL_RULES_MAX, APPROVAL_TTL_MS_MAX, APPROVAL_TTL_MS_MIN};
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, Stamp, Tier};
use crate::tx::{Read, StorageError, Tx};

/// Which risks the tenant lets pass without a person. High always waits for one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalPolicy {
    pub tenant: String,
    pub approve_low: bool,
    pub approve_medium: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PolicyRule>,
}

impl Record for ApprovalPolicy {
    const KIND: Kind = Kind::ApprovalPolicy;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

/// For which requests, and what then. What a rule leaves out fits all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyRule {
    pub risk_tier: Option<RiskTier>,
    /// Who asks has at least this tier.
    pub requester_tier_min: Option<Tier>,
    /// The action's summary begins with these words: `work`, `deploy prod` (see [`begins_with_words`]).
    pub action_prefix: Option<String>,
    /// Let it pass without a person. For low and medium risk only.
    pub approve: bool,
    /// Different people who have to say yes: 1 or 2; 1 when absent.
    pub approvals: Option<u64>,
    /// Who says yes has at least this tier, whatever scopes it has.
    pub decider_tier_min: Option<Tier>,
    /// When an undecided request is told as escalated.
    pub escalate_after_ms: Option<u64>,
    /// How long it waits for a decision when the request does not say.
    pub ttl_ms: Option<u64>,
}

impl PolicyRule {
    fn fits(&self, risk: RiskTier, action: &str, by: &Principal) -> bool {
        self.risk_tier.is_none_or(|wanted| wanted == risk)
            && self.requester_tier_min.is_none_or(|least| by.tier >= least)
            && self.action_prefix.as_deref().is_none_or(|start| begins_with_words(action, start))
    }

    fn check(&self, n: usize) -> Option<Refusal> {
        let bad = |field: &str, problem: String| Some(Refusal::invalid(format!("rules.{n}.{field}"), problem));
        if let Some(refusal) = self.action_prefix.as_deref().and_then(|start| check_name(&format!("rules.{n}.action_prefix"), start)) {
            return Some(refusal);
        }
        if self.action_prefix.as_deref().is_some_and(|start| words(start).next().is_none()) {
            return bad("action_prefix", "has no letter or digit, so no action could begin with its words".into());
        }
        if self.approve && !matches!(self.risk_tier, Some(RiskTier::Low | RiskTier::Medium)) {
            return bad("approve", "goes with the `risk_tier` low or medium only: high risk always waits for a person".into());
        }
        let asks = self.approvals.is_some() || self.decider_tier_min.is_some() || self.escalate_after_ms.is_some() || self.ttl_ms.is_some();
        if self.approve && asks {
            return bad("approve", "leaves nobody to ask; leave the rule's other terms out".into());
        }
        if let Some(approvals) = self.approvals.filter(|approvals| !(1..=2).contains(approvals)) {
            return bad("approvals", format!("must be 1 or 2, not {approvals}"));
        }
        for (field, ms) in [("escalate_after_ms", self.escalate_after_ms), ("ttl_ms", self.ttl_ms)] {
            if let Some(ms) = ms.filter(|ms| !(APPROVAL_TTL_MS_MIN..=APPROVAL_TTL_MS_MAX).contains(ms)) {
                return bad(field, format!("must be {APPROVAL_TTL_MS_MIN} to {APPROVAL_TTL_MS_MAX}, not {ms}"));
            }
        }
        if let (Some(after_ms), Some(ttl_ms)) = (self.escalate_after_ms, self.ttl_ms)
            && after_ms >= ttl_ms
        {
            return bad("escalate_after_ms", format!("must be below the rule's `ttl_ms` of {ttl_ms}, or it never comes; it is {after_ms}"));
        }
        None
    }
}

/// Whether a text begins with the words of another, in any letters, large or small. Words are runs of letters and digits, and
/// whatever else stands between them only separates, in both: `deploy prod` begins `Deploy prod: v2` and `"deploy-prod"`, and not
/// `deploy production`. So no rule is passed by a sign where it has a space.
fn begins_with_words(text: &str, start: &str) -> bool {
    let mut text = words(text);
    let mut start = words(start).peekable();
    // What has no words says nothing of any text.
    start.peek().is_some() && start.all(|word| text.next().is_some_and(|own| own == word))
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

impl ApprovalPolicy {
    /// The rule for a request; one of no terms where the policy names none.
    pub(super) fn rule(&self, risk: RiskTier, action: &str, by: &Principal) -> PolicyRule {
        let named = self.rules.iter().find(|rule| rule.fits(risk, action, by)).cloned();
        named.unwrap_or_else(|| PolicyRule {
            approve: match risk {
                RiskTier::Low => self.approve_low,
                RiskTier::Medium => self.approve_medium,
                RiskTier::High => false,
            },
            ..PolicyRule::default()
        })
    }
}

/// The tenant's policy; without one, everything waits.
pub(super) fn policy(view: &impl Read, tenant: &str) -> Result<ApprovalPolicy, StorageError> {
    let policy: Option<ApprovalPolicy> = view.get(tenant, &Key::new())?;
    let none = ApprovalPolicy { tenant: tenant.into(), approve_low: false, approve_medium: false, rules: Vec::new() };
    Ok(policy.unwrap_or(none))
}

/// Sets the policy of the caller's tenant, as a whole. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetApprovalPolicy {
    pub approve_low: bool,
    pub approve_medium: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PolicyRule>,
}

impl SetApprovalPolicy {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ApprovalPolicy> {
        if let Some(refusal) = refuse_all_but_operators(&at.caller, "setting the policy") {
            return Ok(Err(refusal));
        }
        let Self { approve_low, approve_medium, rules } = self;
        if rules.len() > APPROVAL_RULES_MAX {
            let (size, limit) = (rules.len() as u64, APPROVAL_RULES_MAX as u64);
            return Ok(Err(Refusal::TooLong { field: "rules".into(), size, limit, unit: "entries".into() }));
        }
        if let Some(refusal) = rules.iter().enumerate().find_map(|(n, rule)| rule.check(n)) {
            return Ok(Err(refusal));
        }
        let policy = ApprovalPolicy { tenant: at.caller.tenant.clone(), approve_low, approve_medium, rules };
        tx.put(&policy);
        event::emit(tx, at, "approval.policy_set", &at.caller.tenant, serde_json::json!({ "by": at.caller.passport }))?;
        Ok(Ok(policy))
    }
}

pub(crate) fn refuse_all_but_operators(caller: &Principal, what: &str) -> Option<Refusal> {
    let is_operator = caller.may("admin") || caller.tier >= Tier::Operator;
    (!is_operator).then(|| Refusal::Denied { problem: format!("{what} needs the scope `admin` or the tier operator") })
}

/// The policy of the caller's tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetApprovalPolicy {}

impl GetApprovalPolicy {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ApprovalPolicy> {
        policy(view, &at.caller.tenant).map(Ok)
    }
}

/// Whether this caller's tier is enough for what a request's rule asks of a decider.
pub(super) fn refuse_tier(approval: &Approval, caller: &Principal) -> Option<Refusal> {
    let least = approval.decider_tier_min.filter(|least| caller.tier < *least)?;
    let problem =
        format!("the policy wants a decider of the tier {} or above, and `{}` is {}", least.word(), caller.passport, caller.tier.word());
    Some(Refusal::Denied { problem })
}

#[cfg(test)]
mod tests {
    use super::{PolicyRule, begins_with_words};

    #[test]
    fn a_prefix_of_actions_meets_whole_words_in_any_letters_with_any_space() {
        for action in ["deploy prod", "Deploy  PROD", "  deploy\tprod eu", "deploy prod: v2", "deploy prod-eu"] {
            assert!(begins_with_words(action, "deploy prod"), "{action}");
            assert!(begins_with_words(action, " DEPLOY  prod "), "{action}");
        }
        for action in ["deploy", "deploy production", "redeploy prod", "deployprod", "deploy staging, then deploy prod", ""] {
            assert!(!begins_with_words(action, "deploy prod"), "{action}");
        }
        assert!(begins_with_words("deploy-prod", "deploy") && begins_with_words("deploy_prod", "deploy"));
        assert!(!begins_with_words("deployment-notes", "deploy") && !begins_with_words("deploy2", "deploy"));
        assert!(begins_with_words("work:w_1:move:complete", "work:") && begins_with_words("work:w_1:move:complete", "work"));
        assert!(begins_with_words("Überweisung an acme", "überweisung"));
    }

    #[test]
    fn no_sign_between_or_around_words_passes_a_prefix_by() {
        for action in
            ["deploy-prod", "deploy, prod", "deploy_prod", "\"deploy prod\"", "deploy/prod", "(Deploy) -> PROD!", "deploy\u{a0}prod"]
        {
            for start in ["deploy prod", "deploy-prod", "deploy: prod", "[deploy_prod]"] {
                assert!(begins_with_words(action, start), "{action} by {start}");
            }
        }
    }

    #[test]
    fn a_prefix_without_a_word_meets_nothing_and_is_refused() {
        for start in ["-", ": :", "\"\""] {
            assert!(!begins_with_words("- deploy prod", start) && !begins_with_words(start, start), "{start}");
            let rule = PolicyRule { action_prefix: Some(start.into()), ..PolicyRule::default() };
            let told = rule.check(0).map(|refusal| refusal.to_string());
            assert!(told.as_ref().is_some_and(|told| told.contains("no letter or digit")), "{told:?}");
        }
    }
}
