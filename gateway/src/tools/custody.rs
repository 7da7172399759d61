//! The custody audit: how far a team holds its own context, scored from what is switched on here.

use quorate_domain::flag::{self, Definition, GetFlags};
use quorate_domain::receipt::GetLogHead;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::group;
use crate::call::{CallContext, CallError};
use crate::cluster::Cluster;
use crate::registry::{Effect, Reply, Tool};
use crate::sync::remote_for;

/// See how far your team holds its own context: what it can see, check, export, revoke and prove, and how hard it would be to leave.
///
/// Each verdict is of what runs now: a capability that is switched off scores `partial`, and every verdict names what stands
/// behind it. Nothing is changed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextCustodyAudit {
    /// Accepted and without effect: the scorecard has one size.
    #[expect(dead_code, reason = "the documented argument; it never had an effect")]
    token_budget: Option<u64>,
}

/// The scorecard; while the flag is off, `enabled` false and a `note` alone.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Scorecard {
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_version: Option<String>,
    /// SEE, DO, REMEMBER, CHECK.
    #[serde(skip_serializing_if = "Option::is_none")]
    four_questions: Option<Vec<Verdict>>,
    /// EXPORT, INSPECT, REVOKE, ROUTE, KEEP-LOCAL, PROVE.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_test: Option<Vec<Verdict>>,
    /// From 1, trivial to leave, to 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_in_risk: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_in_label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trust_posture: Option<Posture>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thesis: Option<String>,
    note: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Verdict {
    axis: String,
    question: String,
    /// `strong`, `partial` or `none`.
    verdict: String,
    /// The capability behind it, and how it stands.
    evidence: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Posture {
    recommendations: Vec<String>,
    standing_gap: String,
}

fn verdict(axis: &str, question: &str, strong: bool, evidence: impl Into<String>) -> Verdict {
    let verdict = if strong { "strong" } else { "partial" };
    Verdict { axis: axis.into(), question: question.into(), verdict: verdict.into(), evidence: evidence.into() }
}

/// What the score depends on.
struct Runs {
    receipt_verify: bool,
    audit_export: bool,
    /// Whether this gateway has a folder for exports.
    export_folder: bool,
    revocation: bool,
    receipts: u64,
    /// Whether facts of the caller's team are exchanged with another cluster.
    sync_remote: bool,
}

fn score(runs: &Runs) -> Scorecard {
    let switch = |flag: Definition, on: bool| format!("`{}` is {}", flag.name, if on { "on" } else { "off" });
    let exports = runs.audit_export && runs.export_folder;
    let export_evidence = match runs.audit_export && !runs.export_folder {
        true => "audit_export_bundle: this gateway has no `audit_export_dir`".to_string(),
        false => format!("audit_export_bundle: {}", switch(flag::AUDIT_EXPORT, runs.audit_export)),
    };
    let four_questions = vec![
        verdict("SEE", "Can you see what your agents know?", true, "query_facts, memory_view and fact_history show every version"),
        verdict(
            "DO",
            "Do you know what they did?",
            true,
            "decisions, approvals and leases leave receipts; list_observations shows the steps that were told",
        ),
        verdict("REMEMBER", "Does it outlast a process and a machine?", true, "every write is on a quorum of disks before it is answered"),
        verdict(
            "CHECK",
            "Can you check a record yourself?",
            runs.receipt_verify,
            format!("receipt_verify: {}", switch(flag::RECEIPT_VERIFY, runs.receipt_verify)),
        ),
    ];
    let kept_local = match runs.sync_remote {
        true => "a sync remote is set: shared facts leave by a confirmed sync_push alone, and private or sensitive ones never",
        false => "no sync remote: nothing leaves the cluster unless it is exported",
    };
    let exit_test = vec![
        verdict("EXPORT", "Can you take it with you?", exports, export_evidence),
        verdict("INSPECT", "Can you read it without the product?", true, "exports are JSON lines in a tar; receipts are CBOR"),
        verdict(
            "REVOKE",
            "Can you end an agent's access at once?",
            runs.revocation,
            format!("a revoked passport decides nothing from the next entry on: {}", switch(flag::PASSPORT_REVOCATION, runs.revocation)),
        ),
        verdict(
            "ROUTE",
            "Can you choose where requests go?",
            false,
            "no router: nothing here sends requests to a model or another service",
        ),
        verdict("KEEP-LOCAL", "Does it stay with you?", true, kept_local),
        verdict(
            "PROVE",
            "Can you prove to others what happened?",
            true,
            format!("the log holds {} receipts under signed heads; `quorate verify` needs no server", runs.receipts),
        ),
    ];
    let lock_in_risk: u64 = if exports { 1 } else { 3 };
    let advice = [
        (!runs.receipt_verify, format!("Switch `{}` on, so that anybody can check a receipt.", flag::RECEIPT_VERIFY.name)),
        (!runs.audit_export, format!("Switch `{}` on, so that you can leave with your facts.", flag::AUDIT_EXPORT.name)),
        (!runs.revocation, format!("Switch `{}` on, so that whoever is revoked is nobody at once.", flag::PASSPORT_REVOCATION.name)),
        (!runs.export_folder, "Give the gateway an `audit_export_dir`, so that exports have a place.".to_string()),
    ];
    Scorecard {
        enabled: None,
        daemon_version: Some(env!("CARGO_PKG_VERSION").into()),
        four_questions: Some(four_questions),
        exit_test: Some(exit_test),
        lock_in_risk: Some(lock_in_risk),
        lock_in_label: Some(if lock_in_risk <= 2 { "trivial to leave" } else { "moderate" }.into()),
        trust_posture: Some(Posture {
            recommendations: advice.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text).collect(),
            standing_gap: "The key that signs receipts lies on every node: whoever takes over a node can sign.".into(),
        }),
        thesis: Some("Context is yours when you can see it, check it, take it away and prove it without asking.".into()),
        note: "Verdicts are of what runs now; what is switched off is never strong.".into(),
    }
}

impl Tool for ContextCustodyAudit {
    const NAME: &'static str = "context_custody_audit";
    const TITLE: &'static str = "Audit who holds the context";
    const SCOPE: &'static str = "crux-mcp.context_custody_audit";
    const EFFECT: Effect = Effect::Read;
    const GROUP: &'static str = group::AUDIT;
    const IDEMPOTENT: bool = true;
    const SWITCH: Option<Definition> = Some(flag::CUSTODY_AUDIT);
    type Output = Scorecard;

    fn example() -> Value {
        json!({})
    }

    async fn call(self, ctx: &CallContext, cluster: &Cluster) -> Result<Reply<Scorecard>, CallError> {
        let (flags, served) = cluster.read(ctx, GetFlags {}).await?;
        let is_on = |flag: Definition| flags.flags.iter().any(|set| set.name == flag.name && set.value == "on");
        if !is_on(flag::CUSTODY_AUDIT) {
            let note = format!("switched off by the flag `{}`", flag::CUSTODY_AUDIT.name);
            return Ok(Reply::at(served.revision, Scorecard { enabled: Some(false), note, ..Scorecard::default() }));
        }
        let (head, served) = cluster.read(ctx, GetLogHead { size: None }).await?;
        let runs = Runs {
            receipt_verify: is_on(flag::RECEIPT_VERIFY),
            audit_export: is_on(flag::AUDIT_EXPORT),
            export_folder: ctx.services.audit_export_dir.is_some(),
            revocation: is_on(flag::PASSPORT_REVOCATION),
            receipts: head.size,
            sync_remote: remote_for(ctx)?.is_some(),
        };
        Ok(Reply::at(served.revision, score(&runs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(card: &Scorecard) -> impl Iterator<Item = &Verdict> {
        card.four_questions.iter().chain(&card.exit_test).flatten()
    }

    fn verdicts(runs: &Runs) -> String {
        let card = score(runs);
        let told: Vec<String> = all(&card).map(|found| format!("{} {}", found.axis, found.verdict)).collect();
        let advice = card.trust_posture.as_ref().unwrap().recommendations.len();
        format!("{}; risk {} ({}), {advice} recommendations", told.join(", "), card.lock_in_risk.unwrap(), card.lock_in_label.unwrap())
    }

    #[test]
    fn a_capability_that_is_switched_off_scores_partial_and_never_strong() {
        let all = Runs { receipt_verify: true, audit_export: true, export_folder: true, revocation: true, receipts: 7, sync_remote: false };
        assert_eq!(
            verdicts(&all),
            "SEE strong, DO strong, REMEMBER strong, CHECK strong, EXPORT strong, INSPECT strong, REVOKE strong, ROUTE partial, \
             KEEP-LOCAL strong, PROVE strong; risk 1 (trivial to leave), 0 recommendations"
        );
        let off = Runs { receipt_verify: false, audit_export: false, ..all };
        let told = verdicts(&off);
        assert!(
            told.contains("CHECK partial") && told.contains("EXPORT partial") && told.ends_with("risk 3 (moderate), 2 recommendations"),
            "{told}"
        );
        let no_place =
            Runs { receipt_verify: true, audit_export: true, export_folder: false, revocation: true, receipts: 7, sync_remote: false };
        assert!(verdicts(&no_place).contains("EXPORT partial"));
        let lax = Runs { revocation: false, ..all };
        assert!(verdicts(&lax).contains("REVOKE partial"), "{}", verdicts(&lax));
    }

    #[test]
    fn every_verdict_names_the_capability_behind_it() {
        let card = score(&Runs {
            receipt_verify: false,
            audit_export: false,
            export_folder: false,
            revocation: false,
            receipts: 0,
            sync_remote: true,
        });
        assert!(all(&card).all(|found| !found.evidence.is_empty() && !found.question.is_empty()));
        assert!((1..=5).contains(&card.lock_in_risk.unwrap()));
    }
}
