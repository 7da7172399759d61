use expect_test::{Expect, expect};

use super::*;
use crate::event::{self, Watched};
use crate::flag::SetFlag;
use crate::identity::{PutToken, system, token_hash};
use crate::passport::SplitPassport;
use crate::receipt::GetReceipt;
use crate::stamp::Principal;
use crate::transcript::{Line, World, person};

/// Each line is one entry of the log; reads have no number. Requests are told as `a1`, `a2` ... in their order.
fn check(lines: &str, expected: Expect) {
    let (mut world, mut known, mut told, mut revision) = (World::new(), Vec::new(), String::new(), 0);
    for line in lines.lines().map(str::trim) {
        let line = Line::parse(line);
        let is_read = matches!(line.verb, "get" | "list" | "events");
        revision += u64::from(!is_read);
        let number = if is_read { "-".to_string() } else { revision.to_string() };
        let answer = play(&mut world, &mut known, &line).unwrap_or_else(|refusal| format!("refused: {refusal}"));
        let answer = known.iter().enumerate().fold(answer, |answer, (n, id)| answer.replace(id, &format!("a{}", n + 1)));
        told += &format!("{number} {answer}\n");
    }
    expected.assert_eq(&told);
}

fn play(world: &mut World, known: &mut Vec<String>, line: &Line) -> Result<String, Refusal> {
    let (time, caller) = (line.time, person(line.who));
    let id = |word: &str| {
        let n = word.strip_prefix('a').and_then(|n| n.parse::<usize>().ok());
        n.and_then(|n| known.get(n - 1).cloned()).unwrap_or(word.into())
    };
    let row = |approval: &Approval| {
        let by = approval.reviewer.as_ref().map(|reviewer| format!(" by {reviewer}")).unwrap_or_default();
        format!("{} {}{by}", approval.request_id, approval.status.word())
    };
    match line.verb {
        "tick" => {
            world.tick(time);
            Ok("ticked".into())
        }
        "flag" => {
            let command = SetFlag { name: flag::APPROVAL_QUEUE.name.into(), value: line.word(0).into() };
            world.call(time, caller, None, command).map(|flag| format!("flag: {}", flag.value))
        }
        "policy" => {
            let has = |word: &str| line.words.contains(&word);
            let rules = line.option("rules").map_or_else(Vec::new, |json| serde_json::from_str(&json).unwrap());
            let command = SetApprovalPolicy { approve_low: has("low"), approve_medium: has("medium"), rules };
            world.call(time, caller, None, command).map(|policy| format!("low {}, medium {}", policy.approve_low, policy.approve_medium))
        }
        "ask" => {
            let risk_tier = match line.word(0) {
                "low" => RiskTier::Low,
                "medium" => RiskTier::Medium,
                _ => RiskTier::High,
            };
            let command = RequestApproval {
                action_summary: line.option("action").unwrap_or("drop the table".into()),
                risk_tier,
                scope: line.option("scope").unwrap_or("acme".into()),
                tenant_id: line.option("tenant"),
                payload: line.option("payload").map(|json| serde_json::from_str(&json).unwrap()),
                ttl_ms: line.ms("ttl"),
            };
            let approval = world.call(time, caller, None, command)?;
            known.push(approval.request_id.clone());
            Ok(row(&approval))
        }
        "meet" => {
            let Principal { tenant, passport, tier, scopes } = caller;
            let put = PutToken { hash: token_hash(line.who), tenant, passport, tier, scopes, expires_at: None };
            world.call(time, system(), None, put).map(|put| format!("{} has a passport", put.passport))
        }
        "continuity" => {
            let command = SetFlag { name: flag::IDENTITY_CONTINUITY.name.into(), value: "on".into() };
            world.call(time, caller, None, command).map(|flag| format!("flag: {}", flag.value))
        }
        "split" => {
            let (target, new_name, public_key) = (line.who.into(), line.word(0).into(), "ab".repeat(32));
            let split = SplitPassport { target, new_name, reason: None, public_key };
            world.call(time, caller, None, split).map(|split| format!("{} is there", split.new_passport))
        }
        "events" => {
            let watched = event::watch(&world.state, &caller.tenant, Revision(0), 100).expect("no fault");
            let Watched::Events(events) = watched else { panic!("a short transcript loses no event") };
            let told = events.iter().filter(|event| event.kind.starts_with("approval."));
            Ok(told.map(|event| format!("{} {}", event.revision, event.kind)).collect::<Vec<_>>().join(", "))
        }
        "approve" | "reject" => {
            let command = DecideApproval {
                request_id: id(line.word(0)),
                decision: if line.verb == "approve" { Decision::Approve } else { Decision::Reject },
                reviewer_notes: line.option("notes"),
                reviewer_tier: line.option("tier"),
                reviewer_tenant_id: line.option("tenant"),
            };
            world.call(time, caller, None, command).map(|approval| row(&approval))
        }
        "get" => world.ask(time, caller, GetApproval { request_id: id(line.word(0)) }).map(|approval| row(&approval)),
        "list" => {
            let pending_only = line.word(0) == "pending";
            let (mut cursor, mut pages) = (None, Vec::new());
            loop {
                let page =
                    world.ask(time, caller.clone(), ListApprovals { pending_only, limit: line.ms("limit").unwrap_or(50), cursor })?;
                pages.push(page.approvals.iter().map(row).collect::<Vec<_>>().join(", "));
                cursor = page.next_cursor;
                if cursor.is_none() {
                    return Ok(format!("[{}]", pages.join(" | ")));
                }
            }
        }
        verb => panic!("no verb `{verb}`"),
    }
}

#[test]
fn only_a_reviewer_of_the_tenant_decides_and_claims_make_nobody_one() {
    check(
        "0s mara ask high
         0s mara approve a1
         0s jon  approve a1
         0s jon  approve a1 tier=operator
         0s jon  approve a1 tier=elite tenant=acme
         0s eve  approve a1 tier=operator
         0s eve  approve ar_none tier=operator
         0s eve  approve a1 tier=elite tenant=acme
         0s evan approve a1 tier=operator
         0s evan approve ar_none
         0s eve  get a1
         0s elsa approve a1 tier=operator
         0s elsa approve a1 tenant=other
         0s jon  get a1
         0s otto approve a1 tier=operator tenant=acme notes=seen
         0s dana reject a1
         0s jon  get a1",
        expect![[r#"
            1 a1 pending
            2 refused: deciding what is of high risk needs the tier operator, or the scope `approvals:decide`, and `mara` is verified
            3 refused: deciding what is of high risk needs the tier operator, or the scope `approvals:decide`, and `jon` is verified
            4 refused: `reviewer_tier` is not that of the caller, `jon`, who is verified
            5 refused: `reviewer_tier` is not that of the caller, `jon`, who is verified
            6 refused: there is no approval `a1`
            7 refused: there is no approval `ar_none`
            8 refused: there is no approval `a1`
            9 refused: there is no approval `a1`
            10 refused: there is no approval `ar_none`
            - refused: there is no approval `a1`
            11 refused: `reviewer_tier` is not that of the caller, `elsa`, who is elite
            12 refused: `reviewer_tenant_id` is not the tenant of the caller, `elsa`
            - a1 pending
            13 a1 approved by otto
            14 refused: approval `a1` was already approved
            - a1 approved by otto
        "#]],
    );
}

#[test]
fn high_risk_is_an_operators_to_decide_and_other_risk_an_elite_reviewers_too() {
    check(
        "0s mara ask low
         0s mara ask medium
         0s mara ask high
         1s elsa approve a1
         1s elsa reject a2
         1s elsa approve a3
         1s elsa reject a3
         1s jon  approve a1
         1s dana approve a3",
        expect![[r#"
            1 a1 pending
            2 a2 pending
            3 a3 pending
            4 a1 approved by elsa
            5 a2 rejected by elsa
            6 refused: deciding what is of high risk needs the tier operator, or the scope `approvals:decide`, and `elsa` is elite
            7 refused: deciding what is of high risk needs the tier operator, or the scope `approvals:decide`, and `elsa` is elite
            8 refused: deciding needs the tier elite or operator, or the scope `approvals:decide`, and `jon` is verified
            9 a3 approved by dana
        "#]],
    );
}

#[test]
fn nobody_decides_his_own_request_whatever_his_tier() {
    check(
        "0s otto ask low
         0s otto approve a1
         0s otto reject a1
         0s dana reject a1",
        expect![[r#"
            1 a1 pending
            2 refused: `otto` asked for this approval, and nobody decides his own request
            3 refused: `otto` asked for this approval, and nobody decides his own request
            4 a1 rejected by dana
        "#]],
    );
}

#[test]
fn a_request_that_nobody_decides_expires_and_is_told_apart_from_a_rejection() {
    check(
        "0s mara ask high ttl=10s
         0s mara ask high ttl=20s
         9s jon  list pending
         10s jon get a1
         10s jon list pending
         10s otto approve a1
         11s - tick
         11s otto approve a1
         11s jon list",
        expect![[r#"
            1 a1 pending
            2 a2 pending
            - [a1 pending, a2 pending]
            - a1 expired
            - [a2 pending]
            3 refused: approval `a1` expired undecided
            4 ticked
            5 refused: approval `a1` expired undecided
            - [a2 pending, a1 expired]
        "#]],
    );
}

#[test]
fn a_policy_lets_low_and_medium_pass_and_high_never() {
    check(
        "0s mara policy low
         0s olga policy low
         0s mara ask low
         0s mara ask medium
         0s mara ask high
         0s olga policy low medium
         0s mara ask medium
         0s mara ask high
         0s eve  ask low
         0s otto approve a1
         0s jon  list pending limit=1
         0s jon  list limit=2",
        expect![[r#"
            1 refused: setting the policy needs the scope `admin` or the tier operator
            2 low true, medium false
            3 a1 approved by policy:low
            4 a2 pending
            5 a3 pending
            6 low true, medium true
            7 a4 approved by policy:medium
            8 a5 pending
            9 a6 pending
            10 refused: approval `a1` was already approved
            - [a2 pending | a3 pending | a5 pending]
            - [a5 pending, a4 approved by policy:medium | a3 pending, a2 pending | a1 approved by policy:low]
        "#]],
    );
}

#[test]
fn a_request_is_checked_before_it_is_stored() {
    check(
        "0s mara ask high tenant=other
         0s mara ask high tenant=acme ttl=999
         0s mara ask high scope=
         0s mara ask high action=
         0s mara ask high payload=[1]
         0s mara ask high payload={\"n\":1.5}
         0s olga flag off
         0s mara ask high
         0s otto approve a1
         0s mara list limit=1001",
        expect![[r#"
            1 refused: there is no tenant `other`
            2 refused: `ttl_ms` must be 1000 to 2592000000, not 999
            3 refused: `scope` must not be empty
            4 refused: `action_summary` must not be empty
            5 refused: `payload` must be a JSON object
            6 a1 pending
            7 flag: off
            8 refused: approval_request is switched off by the flag `CORECRUXD_FEATURE_APPROVAL_QUEUE`
            9 refused: approval_decide is switched off by the flag `CORECRUXD_FEATURE_APPROVAL_QUEUE`
            - refused: `limit` must be 1 to 1000, not 1001
        "#]],
    );
    let (text, value, deep) = ("x".repeat(4_097), "x".repeat(16_377), "[".repeat(64) + &"]".repeat(64));
    check(
        &format!(
            "0s mara ask high action={text}
             0s mara ask high payload={{\"a\":\"{value}\"}}
             0s mara ask high payload={{\"a\":{deep}}}"
        ),
        expect![[r#"
            1 refused: `action_summary` is 4097 bytes long, and the limit is 4096 bytes
            2 refused: `payload` is 16385 bytes long, and the limit is 16384 bytes
            3 refused: `payload` must not nest objects and arrays more than 64 levels deep
        "#]],
    );
}

#[test]
fn the_receipt_of_a_decision_has_the_documented_body() {
    let (mut world, mut known) = (World::new(), Vec::new());
    for line in ["0s mara ask high", "1s otto approve a1 notes=seen"] {
        play(&mut world, &mut known, &Line::parse(line)).unwrap();
    }
    let approval = world.ask("1s", person("jon"), GetApproval { request_id: known[0].clone() }).unwrap();
    let receipt_id = approval.receipt_id.unwrap();
    assert_eq!(receipt_id, format!("ad_{}", known[0]));
    let receipt = world.ask("1s", person("jon"), GetReceipt { receipt_id, tenant_id: None }).unwrap();
    assert_eq!((receipt.faults, receipt.signer_passport), (vec![], Some("otto".into())));
    assert_eq!(approval.receipt_body_hash.as_ref(), Some(&receipt.body_hash));
    let body: ciborium::Value = ciborium::from_reader(receipt.body.as_slice()).unwrap();
    let fields = body.into_map().unwrap();
    let told: String = fields.iter().map(|(name, value)| format!("{}: {}\n", name.as_text().unwrap(), value.as_text().unwrap())).collect();
    expect![[r#"
        schema: cuecrux.receipt.body.v1
        kind: approval_decision
        receipt_id: ad_ar_1
        tenant_id: acme
        request_id: ar_1
        reviewer_passport: otto
        decision: approve
        risk_tier: high
        action_summary: drop the table
        decided_at: 2030-03-17T17:46:41.000Z
        reviewer_notes: seen
    "#]]
    .assert_eq(&told.replace(&known[0], "ar_1"));
}

#[test]
fn dual_control_needs_two_different_people_and_a_no_of_one() {
    check(
        "0s olga policy rules=[{\"risk_tier\":\"high\",\"approvals\":2}]
         0s mara ask high
         1s otto approve a1 notes=fine
         1s jon  get a1
         1s jon  list pending
         2s otto approve a1
         2s mara approve a1
         3s olga approve a1
         3s dana reject a1
         4s mara ask high
         4s olga approve a2
         5s olga reject a2
         6s mara ask high ttl=10s
         7s dana approve a3
         16s - tick
         16s otto approve a3
         16s jon events",
        expect![[r#"
            1 low false, medium false
            2 a1 pending
            3 a1 pending
            - a1 pending
            - [a1 pending]
            4 refused: `otto` has approved this, and it needs two different people
            5 refused: deciding what is of high risk needs the tier operator, or the scope `approvals:decide`, and `mara` is verified
            6 a1 approved by olga
            7 refused: approval `a1` was already approved
            8 a2 pending
            9 a2 pending
            10 a2 rejected by olga
            11 a3 pending
            12 a3 pending
            13 ticked
            14 refused: approval `a3` expired undecided
            - 1 approval.policy_set, 2 approval.requested, 3 approval.approved_once, 6 approval.approved, 8 approval.requested, 9 approval.approved_once, 10 approval.rejected, 11 approval.requested, 12 approval.approved_once, 13 approval.expired
        "#]],
    );
}

#[test]
fn passports_that_were_split_from_one_another_are_one_person() {
    check(
        "0s olga meet
         0s olga continuity
         0s olga split otto
         0s olga policy rules=[{\"approvals\":2}]
         0s mara ask high
         1s olga approve a1
         1s otto approve a1
         1s otto ask low
         1s olga approve a2
         2s dana approve a1",
        expect![[r#"
            1 olga has a passport
            2 flag: on
            3 otto is there
            4 low false, medium false
            5 a1 pending
            6 a1 pending
            7 refused: `olga` has approved this, and it needs two different people
            8 a2 pending
            9 refused: `olga` and `otto`, who asked, were split from one passport, and nobody decides his own request
            10 a1 approved by dana
        "#]],
    );
}

#[test]
fn the_first_rule_that_fits_decides_by_risk_tier_and_action() {
    check(
        "0s olga policy rules=[{\"risk_tier\":\"high\",\"approve\":true}]
         0s olga policy rules=[{\"risk_tier\":\"low\",\"approve\":true,\"approvals\":2}]
         0s olga policy rules=[{\"approvals\":3}]
         0s olga policy rules=[{\"escalate_after_ms\":5}]
         0s olga policy rules=[{\"escalate_after_ms\":5000,\"ttl_ms\":5000}]
         0s olga policy low rules=[{\"action_prefix\":\"deploy\",\"decider_tier_min\":\"operator\",\"ttl_ms\":5000},{\"risk_tier\":\"medium\",\"requester_tier_min\":\"elite\",\"approve\":true}]
         1s mara ask low action=deploy-prod
         1s mara ask low action=tidy
         1s mara ask medium
         1s elsa ask medium
         2s elsa approve a1
         2s dana approve a1
         2s otto approve a1
         2s mara ask high action=deploy-eu
         7s jon  get a5",
        expect![[r#"
            1 refused: `rules.0.approve` goes with the `risk_tier` low or medium only: high risk always waits for a person
            2 refused: `rules.0.approve` leaves nobody to ask; leave the rule's other terms out
            3 refused: `rules.0.approvals` must be 1 or 2, not 3
            4 refused: `rules.0.escalate_after_ms` must be 1000 to 2592000000, not 5
            5 refused: `rules.0.escalate_after_ms` must be below the rule's `ttl_ms` of 5000, or it never comes; it is 5000
            6 low true, medium false
            7 a1 pending
            8 a2 approved by policy:low
            9 a3 pending
            10 a4 approved by policy:medium
            11 refused: the policy wants a decider of the tier operator or above, and `elsa` is elite
            12 refused: the policy wants a decider of the tier operator or above, and `dana` is verified
            13 a1 approved by otto
            14 a5 pending
            - a5 expired
        "#]],
    );
}

#[test]
fn what_waits_for_too_long_is_told_once_as_escalated() {
    check(
        "0s olga policy rules=[{\"risk_tier\":\"high\",\"escalate_after_ms\":5000}]
         0s mara ask high ttl=20s
         0s mara ask high ttl=4s
         0s mara ask high ttl=20s
         1s otto approve a3
         5s - tick
         6s - tick
         20s - tick
         20s jon events",
        expect![[r#"
            1 low false, medium false
            2 a1 pending
            3 a2 pending
            4 a3 pending
            5 a3 approved by otto
            6 ticked
            7 ticked
            8 ticked
            - 1 approval.policy_set, 2 approval.requested, 3 approval.requested, 4 approval.requested, 5 approval.approved, 6 approval.expired, 6 approval.escalated, 8 approval.expired
        "#]],
    );
}
