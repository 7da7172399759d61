//! `quorate inbox`: what waits for you. Approvals that are yours to decide, held-back moves of work among them; those that
//! somebody else has to decide; and your own work that is blocked.

use clap::{Args, Subcommand};
use quorate_domain::Tier;
use quorate_domain::identity;
use serde_json::{Value, json};

use super::approve::{Decide, Show, WAITING};
use super::page::{Column, cut, whole};
use super::{Ask, Page, Watching, Writing};
use crate::door::{Answer, Gateway};
use crate::exit::Failure;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Inbox {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    list: Watching<List>,
}

#[derive(Subcommand)]
enum Verb {
    /// Show one request with all that its decider should see
    Show(Watching<Show>),
    /// Decide a request
    Decide(Writing<Decide>),
}

impl Inbox {
    pub async fn run(self) -> Result<(), Failure> {
        match self.verb {
            None => self.list.run().await,
            Some(Verb::Show(verb)) => verb.run().await,
            Some(Verb::Decide(verb)) => verb.run().await,
        }
    }
}

#[derive(Args)]
pub struct List {
    /// Requests of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for List {
    const KINDS: &'static [&'static str] = &["approval.", "work."];

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        let me = gateway.call("resolve_principal", &json!({})).await?.facts["principal"].take();
        let asked = json!({ "status": "pending", "limit": self.limit, "cursor": self.cursor });
        let Answer { facts: mut waiting, revision } = gateway.get(&["v1", "approvals"], &asked).await?;
        let mine = json!({ "state": "blocked", "assignee_passport": me["passport_id"] });
        let blocked = gateway.call("list_work", &mine).await?.facts["work"].take();
        let Value::Array(approvals) = waiting["approvals"].take() else {
            return Err(Failure::failed(format!("the gateway's answer is not understood: {waiting:.300}")));
        };
        let (yours, others): (Vec<Value>, Vec<Value>) = approvals.into_iter().partition(|approval| may_decide(&me, approval));
        let mut facts = json!({ "yours": yours, "others": others, "blocked": blocked });
        if let cursor @ Value::String(_) = waiting["next_cursor"].take() {
            facts["next_cursor"] = cursor;
        }
        Ok(Answer { facts, revision })
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const BLOCKED: [Column; 3] = [whole("ITEM", "id"), cut("TITLE", "title"), cut("WHY", "blocker_reason")];
        let has = |name: &str| facts[name].as_array().is_some_and(|rows| !rows.is_empty());
        page.table(&WAITING, &facts["yours"], "nothing waits for your decision");
        if has("yours") {
            page.line(
                "decide with `quorate inbox decide REQUEST approve`, or reject, and --notes; see more with `quorate inbox show REQUEST`",
            );
        }
        if has("others") {
            page.line("\nwaiting for somebody else");
            page.table(&WAITING, &facts["others"], "");
        }
        if has("blocked") {
            page.line("\nyour work that is blocked");
            page.table(&BLOCKED, &facts["blocked"], "");
        }
        page.more(facts);
    }
}

/// Whether a request is whoever `me` is to decide, as far as can be told here; the cluster judges when it is decided.
fn may_decide(me: &Value, approval: &Value) -> bool {
    let tier = |word: &Value| word.as_str().and_then(Tier::parse);
    let passport = &me["passport_id"];
    let has_voted = |votes: &Value| votes.as_array().is_some_and(|votes| votes.iter().any(|vote| vote["passport"] == *passport));
    let scopes = me["capabilities"].as_array().into_iter().flatten().filter_map(Value::as_str).map(String::from).collect();
    let caller = quorate_domain::Principal { tier: tier(&me["tier"]).unwrap_or(Tier::Unverified), scopes, ..identity::system() };
    let least = if approval["risk_tier"] == "high" { Tier::Operator } else { Tier::Elite };
    let is_trusted = caller.tier >= least || caller.may("approvals:decide");
    is_trusted
        && approval["requested_by"] != *passport
        && !has_voted(&approval["approved_so_far"])
        && tier(&approval["decider_tier_min"]).is_none_or(|least| caller.tier >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_you_is_what_you_may_decide() {
        let me = |tier: &str, scopes: &[&str]| json!({ "passport_id": "olga", "tier": tier, "capabilities": scopes });
        let asked = |by: &str, votes: &[&str], least: Option<&str>| {
            let votes: Vec<Value> = votes.iter().map(|passport| json!({ "passport": passport })).collect();
            json!({ "requested_by": by, "risk_tier": "medium", "approved_so_far": votes, "decider_tier_min": least })
        };
        let operator = me("operator", &[]);
        assert!(may_decide(&operator, &asked("jon", &[], None)));
        assert!(!may_decide(&operator, &asked("olga", &[], None)), "nobody decides his own request");
        assert!(!may_decide(&operator, &asked("jon", &["olga"], None)), "the second vote is another person's");
        assert!(may_decide(&operator, &asked("jon", &["mara"], Some("operator"))));
        assert!(!may_decide(&me("elite", &[]), &asked("jon", &[], Some("operator"))));
        assert!(may_decide(&me("elite", &[]), &asked("jon", &[], None)));
        let high = json!({ "requested_by": "jon", "risk_tier": "high" });
        assert!(!may_decide(&me("elite", &[]), &high), "high risk is an operator's");
        assert!(may_decide(&operator, &high) && may_decide(&me("verified", &["approvals:decide"]), &high));
        assert!(!may_decide(&me("verified", &["crux-mcp.*"]), &asked("jon", &[], None)));
        assert!(may_decide(&me("verified", &["approvals:decide"]), &asked("jon", &[], None)));
    }
}
