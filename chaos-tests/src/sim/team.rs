//! What clients do besides facts and cards: sessions that are saved over the revision that was read, approvals that several decide
//! at once, looks at who holds a card; and what is asked of them at the end.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use quorate_domain::approval::{ApprovalStatus, DecideApproval, Decision, GetApproval, RequestApproval, RiskTier};
use quorate_domain::punchcard::{CheckPunchcard, ForceRelease, PunchIn, PunchedIn};
use quorate_domain::receipt::{GetLogHead, GetReceipt};
use quorate_domain::session::{GetSession, SaveSession};
use quorate_domain::{CommandKind, Principal, QueryKind, Refusal, RequestId, Revision, Tier};
use quorate_gateway::call::CallError;
use quorate_gateway::cluster::{Consistency, new_request};
use rand::RngExt;
use rand::seq::IndexedRandom;
use serde_json::json;

use super::plant::Plant;
use super::process;
use super::workload::{CALL_MAX, Client, LIVENESS_MAX, RESOURCES, What};
use crate::history::{Operation, Outcome};

/// Few, so that clients get in each other's way.
const SESSIONS: [&str; 2] = ["draft", "plan"];
/// Among so many of the last approvals one is chosen to be decided.
const APPROVALS_OPEN: usize = 3;
/// How long the card of [`Client::take_turns`] lasts.
const TURN: Duration = Duration::from_secs(10);
/// How much later than its time it may end: the tick that moves the lease clock, an election, and the try that finds it free.
const LATE_MAX: Duration = Duration::from_secs(4);

impl Client {
    /// Reads a session and saves it over what was read.
    pub async fn session(&mut self, number: u64) {
        let session = *SESSIONS.choose(&mut self.random).expect("there are sessions");
        let expected = match self.load(session, CALL_MAX).await {
            Some(revision) if self.random.random_bool(0.9) => Some(revision),
            _ => None,
        };
        let pause_ms = self.random.random_range(1..80);
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        let value = format!("{}-{number}", self.name);
        let operation = Operation::Save { session: session.into(), value: value.clone(), expected };
        let recorder = Arc::clone(&self.shared.recorder);
        let pending = recorder.send(&self.name, operation);
        let sent = process::elapsed();
        let command = SaveSession {
            session_id: session.into(),
            state: json!({ "value": value }),
            ttl_ms: None,
            expected_revision: expected.map(Revision),
        };
        let answer = self.propose_by(&shared(), command, format!("save-{value}")).await;
        self.tell(&format!("save {session} over {expected:?}"), &answer, |saved| format!("revision {}", saved.revision));
        match answer {
            Ok((saved, revision)) => {
                pending.answer(Outcome::Saved { revision: saved.revision.0 });
                self.see(sent, revision, What::Write);
            }
            Err(CallError::Refused(Refusal::Changed { .. })) => pending.answer(Outcome::Changed),
            Err(error) => self.fail(pending, &error),
        }
    }

    /// The revision of a session; 0 when there is none.
    async fn load(&self, session: &str, within: Duration) -> Option<u64> {
        let recorder = Arc::clone(&self.shared.recorder);
        let pending = recorder.send(&self.name, Operation::Load { session: session.into() });
        let sent = process::elapsed();
        let answer = self.read_by(&shared(), GetSession { session_id: session.into() }, within).await;
        let (outcome, revision) = match answer {
            Ok((view, served)) => {
                self.see(sent, served, What::Read);
                let value = view.state["value"].as_str().unwrap_or_default().to_owned();
                (Outcome::Session(Some((view.revision.0, value))), Some(view.revision.0))
            }
            Err(CallError::Refused(Refusal::NotFound { .. })) => (Outcome::Session(None), Some(0)),
            Err(error) => {
                self.fail(pending, &error);
                return None;
            }
        };
        self.say(format!("load {session}: {outcome:?}"));
        pending.answer(outcome);
        revision
    }

    /// Asks for an approval, or decides one of the last, twice at the same moment.
    pub async fn approval(&mut self, number: u64) {
        if self.random.random_bool(0.5) {
            let command = RequestApproval {
                action_summary: format!("{}-{number}", self.name),
                risk_tier: RiskTier::Low,
                scope: "local".into(),
                tenant_id: None,
                payload: None,
                ttl_ms: None,
            };
            let answer = self.propose_by(&self.principal(), command, format!("ask-{}-{number}", self.name)).await;
            self.tell("ask", &answer, |approval| approval.request_id.clone());
            if let Ok((approval, _)) = answer {
                self.shared.approvals.lock().unwrap_or_else(PoisonError::into_inner).push(approval.request_id);
            }
        }
        let approvals = self.shared.approvals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let last = &approvals[approvals.len().saturating_sub(APPROVALS_OPEN)..];
        let Some(approval) = last.choose(&mut self.random) else { return };
        let choices: [bool; 2] = [self.random.random_bool(0.5), self.random.random_bool(0.5)];
        let (one, other) = (self.decide(approval, choices[0], number, 1), self.decide(approval, choices[1], number, 2));
        join_all([Box::pin(one) as futures::future::LocalBoxFuture<'_, ()>, Box::pin(other)]).await;
    }

    async fn decide(&self, approval: &str, approve: bool, number: u64, operator: u64) {
        let recorder = Arc::clone(&self.shared.recorder);
        let who = format!("{}-operator-{operator}", self.name);
        let pending = recorder.send(&who, Operation::Decide { approval: approval.into(), approve });
        let sent = process::elapsed();
        let command = DecideApproval {
            request_id: approval.into(),
            decision: if approve { Decision::Approve } else { Decision::Reject },
            reviewer_notes: None,
            reviewer_tier: None,
            reviewer_tenant_id: None,
        };
        let principal = Principal { passport: who.clone(), tier: Tier::Operator, ..self.principal() };
        let answer = self.propose_by(&principal, command, format!("decide-{who}-{number}")).await;
        self.tell(&format!("decide {approval} {approve}"), &answer, |decided| decided.status.word().into());
        match answer {
            Ok((decided, revision)) => {
                pending.answer(Outcome::Decided { approve: decided.status == ApprovalStatus::Approved });
                self.see(sent, revision, What::Write);
            }
            Err(CallError::Refused(Refusal::AlreadyDecided { decision, .. })) => {
                pending.answer(Outcome::AlreadyDecided { approve: decision == ApprovalStatus::Approved.word() });
            }
            Err(error) => self.fail(pending, &error),
        }
    }

    /// An operator takes a card from this client, which writes on and must not get through.
    pub async fn lose_to_an_operator(&mut self, resource: &str, token: u64, card: String, number: u64) {
        let recorder = Arc::clone(&self.shared.recorder);
        let who = format!("{}-operator-1", self.name);
        let pending = recorder.send(&who, Operation::Force { resource: resource.into(), token });
        let sent = process::elapsed();
        let command = ForceRelease { punchcard_id: card, confirm: true, reason: Some("gone".into()), by_passport: None };
        let principal = Principal { passport: who.clone(), tier: Tier::Operator, ..self.principal() };
        let answer = self.propose_by(&principal, command, format!("force-{}-{number}", self.name)).await;
        self.tell(&format!("take {resource} {token}"), &answer, |card| card.holder.clone());
        match answer {
            Ok((_, revision)) => {
                pending.answer(Outcome::Released);
                self.see(sent, revision, What::Release { resource: resource.into(), token });
                self.count(|counts, _| counts.forced += 1);
                self.write_under(resource, token, number).await;
            }
            Err(error) => self.fail(pending, &error),
        }
    }

    /// Looks who holds a card.
    pub async fn look(&mut self) {
        let resource = RESOURCES.choose(&mut self.random).expect("there are resources").to_string();
        let recorder = Arc::clone(&self.shared.recorder);
        let pending = recorder.send(&self.name, Operation::Check { resource: resource.clone() });
        let sent = process::elapsed();
        let query = CheckPunchcard { resource: resource.clone(), mode: None, passport: None };
        match self.read_by(&self.principal(), query, CALL_MAX).await {
            Ok((checked, revision)) => {
                let holder = checked.card.map(|card| card.holder);
                self.say(format!("look at {resource}: {holder:?}"));
                pending.answer(Outcome::Holder(holder));
                self.see(sent, revision, What::Read);
            }
            Err(error) => {
                self.say(format!("look at {resource}: {error}"));
                self.fail(pending, &error);
            }
        }
    }

    // -------- the end

    /// When nobody works any more: each decision has a receipt that is whole. How many receipts there are is noted, for the comparison
    /// with what watchers were told.
    pub async fn check_receipts(&self) {
        let approvals = self.shared.approvals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut receipts = BTreeSet::new();
        for approval in approvals {
            match self.read_by(&self.principal(), GetApproval { request_id: approval.clone() }, LIVENESS_MAX).await {
                Ok((approval, _)) => receipts.extend(approval.receipt_id),
                Err(error) => return self.violation(format!("the approval {approval} can't be read: {error}")),
            }
        }
        for receipt in &receipts {
            match self.read_by(&self.principal(), GetReceipt { receipt_id: receipt.clone(), tenant_id: None }, LIVENESS_MAX).await {
                Ok((view, _)) if view.faults.is_empty() => {}
                Ok((view, _)) => self.violation(format!("the receipt {receipt} is not whole: {}", view.faults.join(", "))),
                Err(error) => self.violation(format!("the receipt {receipt} can't be read: {error}")),
            }
        }
        match self.read_by(&self.principal(), GetLogHead { size: None }, LIVENESS_MAX).await {
            Ok((head, at)) => self.count(|counts, _| {
                (counts.receipts, counts.receipts_at) = (head.size, at.0);
                counts.receipts_verified = receipts.len() as u64;
            }),
            Err(error) => self.violation(format!("the log of receipts can't be read: {error}")),
        }
    }

    /// A card that its holder lets go ends in time, and not before it, for whoever waits for it, though leadership moves meanwhile.
    pub async fn take_turns(&self) {
        let resource = "service://turns";
        let ask = |holder: &str| PunchIn {
            resource: resource.into(),
            holder_passport: holder.into(),
            tenant_id: None,
            mode: None,
            reason: None,
            ttl_ms: Some(TURN.as_millis() as u64),
            expires_at: None,
            wait_ms: None,
            lock_delay_ms: None,
            attended: false,
        };
        let sent = process::elapsed();
        let granted = self.propose_by(&self.principal(), ask(&self.name), format!("turn-{}", self.name)).await;
        let answered = process::elapsed();
        self.tell("take a turn", &granted, |punched| format!("{punched:?}"));
        if !matches!(granted, Ok((PunchedIn::Granted { .. }, _))) {
            return self.violation(format!("a free card was not granted after everything was healed: {granted:?}"));
        }
        tokio::time::sleep(TURN * 3 / 4).await;
        self.desk.transfer_to_another();
        let next = Principal { passport: "next".into(), ..self.principal() };
        for number in 0.. {
            let answer = self.propose_by(&next, ask("next"), format!("next-{number}")).await;
            let now = process::elapsed();
            if let Ok((PunchedIn::Granted { .. }, _)) = answer {
                self.say(format!("the next turn came after {:?}", now - sent));
                if now < sent + TURN {
                    self.violation(format!("a card for {TURN:?} went to another after {:?}", now - sent));
                }
                return;
            }
            if now > answered + TURN + LATE_MAX {
                return self.violation(format!("a card for {TURN:?} is not free after {:?}: {answer:?}", now - answered));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn violation(&self, what: String) {
        self.shared.journal.violation(what);
    }

    async fn propose_by<C: CommandKind>(&self, principal: &Principal, command: C, id: String) -> Result<(C::Output, Revision), CallError> {
        let request = RequestId { id, keyed: true, ..new_request() };
        self.cluster.propose_as(principal, command, None, request, Instant::now() + CALL_MAX).await
    }

    async fn read_by<Q: QueryKind>(&self, principal: &Principal, query: Q, within: Duration) -> Result<(Q::Output, Revision), CallError> {
        let consistency = match self.shared.plant {
            Some(Plant::StaleRead) => Consistency::Stale { max_age_ms: 60_000 },
            _ => Consistency::Linearizable,
        };
        let (output, served) = self.cluster.read_as(principal, query, consistency, Instant::now() + within).await?;
        Ok((output, served.revision))
    }
}

/// Whose sessions they are: one passport that all clients use.
fn shared() -> Principal {
    Principal { tenant: "team".into(), passport: "shared".into(), tier: Tier::Verified, scopes: BTreeSet::new() }
}
