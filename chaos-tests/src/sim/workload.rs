//! The clients: gateways' own client of the cluster, storing and reading facts and taking punchcards, each on a host of its own.
//!
//! They note everything twice: as a history for the invariants that any run has to keep (`crate::invariant`), and as what was
//! [`Seen`], with revisions, for the stronger checks of `super::check`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use quorate_domain::fact::{Confidence, FactHistory, StoreFact};
use quorate_domain::punchcard::{PunchIn, PunchOut, PunchedIn};
use quorate_domain::{CommandKind, Principal, RequestId, Revision, Tier};
use quorate_gateway::call::CallError;
use quorate_gateway::cluster::{Cluster, Consistency, new_request};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::journal::Journal;
use super::operator::Desk;
use super::plant::Plant;
use super::process;
use crate::history::{Operation, Outcome, Recorder};

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
pub const RESOURCES: [&str; 2] = ["service://billing", "service://search"];
/// How long one call may take.
pub const CALL_MAX: Duration = Duration::from_secs(4);
/// Within so long after the last fault is healed every client has to be served.
pub const LIVENESS_MAX: Duration = Duration::from_secs(10);

/// One answered call, and where the log put it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub sent: Duration,
    pub answered: Duration,
    pub revision: u64,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Write,
    /// Of a card that its holder had already: nobody is told of it.
    Renewal,
    /// A write whose request had been sent before under the same id, so that its revision may be older than this sending.
    Repeated,
    Read,
    Grant {
        resource: String,
        token: u64,
    },
    Release {
        resource: String,
        token: u64,
    },
    /// A write under a card.
    Fenced {
        resource: String,
        token: u64,
    },
}

/// What all clients share.
#[derive(Clone)]
pub struct Shared {
    pub recorder: Arc<Recorder>,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    pub journal: Journal,
    /// Until when faults happen.
    pub chaos_until: Duration,
    pub counts: Arc<Mutex<Counts>>,
    /// Requests for approval, oldest first.
    pub approvals: Arc<Mutex<Vec<String>>>,
    pub plant: Option<Plant>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub answered: u64,
    pub written: u64,
    pub unknown: u64,
    pub retried: u64,
    pub repeated: u64,
    pub fenced: u64,
    pub fenced_off: u64,
    pub forced: u64,
    pub queued: u64,
    pub own_reads: u64,
    /// In the log of receipts at that revision.
    pub receipts: u64,
    pub receipts_at: u64,
    pub receipts_verified: u64,
}

pub struct Client {
    pub name: String,
    pub cluster: Cluster,
    pub random: StdRng,
    pub shared: Shared,
    pub desk: Desk,
    /// It stays when the others have gone, and looks at everything.
    pub is_last: bool,
    /// Requests that may be sent once more.
    pub sent: Vec<Request>,
    /// What it stored last, and the revision of that.
    pub own: Option<(Request, Revision)>,
}

#[derive(Clone)]
pub struct Request {
    id: String,
    name: &'static str,
    value: String,
}

impl Client {
    /// Works until the faults are over, then asks to be served within [`LIVENESS_MAX`], then reads everything once more.
    pub async fn run(mut self) {
        let mut number = 0;
        while process::elapsed() < self.shared.chaos_until {
            number += 1;
            match self.random.random_range(0..100) {
                0..5 => self.burst(number).await,
                5..27 => self.store(number).await,
                27..30 => self.read_own().await,
                30..38 => self.repeat().await,
                38..46 => self.session(number).await,
                46..54 => self.approval(number).await,
                54..60 => self.look().await,
                60..80 => {
                    let name = *NAMES.choose(&mut self.random).expect("there are names");
                    self.read(name, CALL_MAX).await;
                }
                _ => self.hold(number).await,
            }
            let pause_ms = self.random.random_range(1..60);
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        self.be_served().await;
        for name in NAMES {
            if !self.read(name, LIVENESS_MAX).await {
                self.shared.journal.violation(format!("{} could not read `{name}` after everything was healed", self.name));
            }
        }
        if self.is_last {
            // What the others sent has been decided by then.
            tokio::time::sleep(CALL_MAX + Duration::from_secs(1)).await;
            self.check_receipts().await;
            self.take_turns().await;
        }
        self.count(|counts, retries| counts.retried += retries);
    }

    async fn be_served(&mut self) {
        let since = process::elapsed();
        let value = format!("{}-last", self.name);
        let request = Request { id: format!("r-{value}"), name: NAMES[0], value };
        while process::elapsed() < since + LIVENESS_MAX {
            if self.send(&request, None, What::Repeated, CALL_MAX).await.is_some() {
                return;
            }
        }
        self.shared.journal.violation(format!("{} was not served within {LIVENESS_MAX:?} after everything was healed", self.name));
    }

    async fn store(&mut self, number: u64) {
        let value = format!("{}-{number}", self.name);
        let name = *NAMES.choose(&mut self.random).expect("there are names");
        let request = Request { id: format!("r-{value}"), name, value };
        let first = self.send(&request, None, What::Write, CALL_MAX).await;
        self.own = first.map(|revision| (request.clone(), revision)).or(self.own.take());
        if first.is_none() && self.random.random_bool(0.5) {
            self.send(&request, None, What::Repeated, CALL_MAX).await;
        }
        self.sent.push(request);
    }

    /// Many at once, and some of them twice.
    async fn burst(&mut self, number: u64) {
        let requests: Vec<Request> = (0..self.random.random_range(4..16))
            .map(|part| {
                let value = format!("{}-{number}-{part}", self.name);
                Request { id: format!("r-{value}"), name: NAMES.choose(&mut self.random).expect("there are names"), value }
            })
            .collect();
        let all = requests.iter().chain(requests.iter().step_by(3));
        join_all(all.map(|request| self.send(request, None, What::Repeated, CALL_MAX))).await;
        self.sent.extend(requests);
    }

    /// A late duplicate of something sent earlier.
    async fn repeat(&mut self) {
        let Some(mut request) = self.sent.choose(&mut self.random).cloned() else { return };
        if self.shared.plant == Some(Plant::DedupeOff) {
            request.id = format!("{}-again-{}", request.id, process::elapsed().as_millis());
        }
        if self.send(&request, None, What::Repeated, CALL_MAX).await.is_some() {
            self.count(|counts, _| counts.repeated += 1);
        }
    }

    /// Sends one request to store a fact; `Some` when the log has decided for it.
    async fn send(&self, request: &Request, token: Option<u64>, what: What, within: Duration) -> Option<Revision> {
        let Request { id, name, value } = request.clone();
        let command = StoreFact {
            entity: "svc:simulated".into(),
            key: name.into(),
            value: value.clone(),
            source_receipt: None,
            confidence: Confidence::FULL,
            private: false,
            horizon_class: None,
            freshness_horizon: None,
            supersedes: BTreeSet::new(),
        };
        let operation = Operation::Store { name: name.into(), value: value.clone(), request: id.clone() };
        let recorder = Arc::clone(&self.shared.recorder);
        let pending = recorder.send(&self.name, operation);
        let sent = process::elapsed();
        let token = token.filter(|_| self.shared.plant != Some(Plant::TokenNotChecked));
        let answer = self.propose(command, token, id, within).await;
        self.tell(&format!("store {name} {value}"), &answer, |stored| format!("version {}", stored.version));
        match answer {
            Ok((stored, revision)) => {
                pending.answer(Outcome::Stored { version: stored.version });
                self.see(sent, revision, what);
                Some(revision)
            }
            Err(error) => {
                self.fail(pending, &error);
                None
            }
        }
    }

    async fn read(&mut self, name: &'static str, within: Duration) -> bool {
        let recorder = Arc::clone(&self.shared.recorder);
        let pending = recorder.send(&self.name, Operation::Read { name: name.into() });
        let sent = process::elapsed();
        let deadline = Instant::now() + within;
        let consistency = match self.shared.plant {
            Some(Plant::StaleRead) => Consistency::Stale { max_age_ms: 60_000 },
            _ => Consistency::Linearizable,
        };
        match self.versions(name, consistency, deadline).await {
            Ok((values, revision)) => {
                self.say(format!("read {name}: {} versions", values.len()));
                pending.answer(Outcome::Versions(values));
                if let Some(revision) = revision {
                    self.see(sent, revision, What::Read);
                }
                true
            }
            Err(error) => {
                self.say(format!("read {name}: {error}"));
                false
            }
        }
    }

    /// Writes under a token that is over.
    pub async fn write_under(&mut self, resource: &str, token: u64, number: u64) {
        let value = format!("{}-{number}-late-{token}", self.name);
        let request = Request { id: format!("r-{value}"), name: NAMES[0], value };
        self.send(&request, Some(token), What::Fenced { resource: resource.into(), token }, CALL_MAX).await;
    }

    /// Every version under a name, page by page, and the revision that the first page was read at.
    async fn versions(
        &self,
        name: &str,
        consistency: Consistency,
        deadline: Instant,
    ) -> Result<(Vec<String>, Option<Revision>), CallError> {
        let (mut values, mut cursor, mut revision) = (Vec::new(), None, None);
        loop {
            let query = FactHistory { entity: "svc:simulated".into(), key: name.into(), limit: 1_000, cursor };
            match self.cluster.read_as(&self.principal(), query, consistency, deadline).await {
                Ok((page, served)) => {
                    values.extend(page.versions.into_iter().map(|version| version.value));
                    revision.get_or_insert(served.revision);
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok((values, revision));
                    }
                }
                // Nothing was ever stored under it.
                Err(CallError::Refused(_)) => return Ok((values, revision)),
                Err(error) => return Err(error),
            }
        }
    }

    /// **Read your writes.** Any node, asked for a state that is not older than an own write, has it.
    async fn read_own(&mut self) {
        let Some((Request { name, value, .. }, written)) = self.own.clone() else { return };
        let deadline = Instant::now() + CALL_MAX;
        match self.versions(name, Consistency::AtLeast(written), deadline).await {
            Ok((values, served)) => {
                self.say(format!("read own {value}: {} versions", values.len()));
                if served.is_none_or(|served| served < written) || !values.contains(&value) {
                    let who = &self.name;
                    self.shared.journal.violation(format!("{who} wrote {value} at {written} and does not read it at {served:?}"));
                }
                self.count(|counts, _| counts.own_reads += 1);
            }
            Err(error) => self.say(format!("read own {value}: {error}")),
        }
    }

    /// Takes a card, writes under it for a while, longer than it lasts now and then, and gives it back, or not.
    async fn hold(&mut self, number: u64) {
        let resource = RESOURCES.choose(&mut self.random).expect("there are resources").to_string();
        let ttl = Duration::from_millis(self.random.random_range(1_000..2_500));
        // Whoever finds it held tries again and again: a lease that ends early is found only by those who want it.
        let (mut token, mut tries) = (None, 0);
        while token.is_none() && tries < 8 {
            if tries > 0 {
                let pause_ms = self.random.random_range(30..300);
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            // Some queue for it, and hear of their turn at their next try.
            let wait = Duration::from_millis(self.random.random_range(0..3) * 700);
            token = self.acquire(&resource, ttl, wait, format!("in-{}-{number}-{tries}", self.name)).await;
            tries += 1;
        }
        let Some((token, card)) = token else { return };
        if self.random.random_bool(0.1) {
            return self.lose_to_an_operator(&resource, token, card, number).await;
        }
        for step in 0..self.random.random_range(1..4) {
            let pause_ms = self.random.random_range(1..1_500);
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            let value = format!("{}-{number}-under-{token}-{step}", self.name);
            let name = *NAMES.choose(&mut self.random).expect("there are names");
            let request = Request { id: format!("r-{value}"), name, value };
            let under = What::Fenced { resource: resource.clone(), token };
            match self.send(&request, Some(token), under, CALL_MAX).await {
                Some(_) => self.count(|counts, _| counts.fenced += 1),
                None => {
                    self.count(|counts, _| counts.fenced_off += 1);
                    break;
                }
            }
        }
        if self.random.random_bool(0.7) {
            self.release(&resource, token, number).await;
        }
    }

    /// Token and id of the card.
    async fn acquire(&self, resource: &str, ttl: Duration, wait: Duration, id: String) -> Option<(u64, String)> {
        let command = PunchIn {
            resource: resource.into(),
            holder_passport: self.name.clone(),
            tenant_id: None,
            mode: None,
            reason: None,
            ttl_ms: Some(ttl.as_millis() as u64),
            expires_at: None,
            wait_ms: (wait > Duration::ZERO).then_some(wait.as_millis() as u64),
            ..PunchIn::default()
        };
        let recorder = Arc::clone(&self.shared.recorder);
        let pending = recorder.send(&self.name, Operation::Acquire { resource: resource.into(), ttl });
        let sent = process::elapsed();
        let answer = self.propose(command, None, id, CALL_MAX).await;
        self.tell(&format!("punch in {resource} {} ms", ttl.as_millis()), &answer, |punched| match punched {
            PunchedIn::Granted { card, renewed, .. } => format!("token {}{}", card.fencing_token, if *renewed { ", renewed" } else { "" }),
            other => format!("{other:?}"),
        });
        match answer {
            Ok((PunchedIn::Granted { card, renewed, .. }, revision)) => {
                let token = card.fencing_token.0;
                pending.answer(Outcome::Granted { token });
                let what = if renewed { What::Renewal } else { What::Grant { resource: resource.into(), token } };
                self.see(sent, revision, what);
                Some((token, card.id))
            }
            Ok(_) => {
                // Its turn may come when nobody looks, and pass.
                drop(pending);
                self.count(|counts, _| counts.queued += 1);
                None
            }
            Err(error) => {
                self.fail(pending, &error);
                None
            }
        }
    }

    async fn release(&self, resource: &str, token: u64, number: u64) {
        let command = PunchOut { resource: resource.into(), holder_passport: self.name.clone(), tenant_id: None, release_commit_sha: None };
        let recorder = Arc::clone(&self.shared.recorder);
        let pending = recorder.send(&self.name, Operation::Release { resource: resource.into(), token });
        let sent = process::elapsed();
        let answer = self.propose(command, Some(token), format!("out-{}-{number}", self.name), CALL_MAX).await;
        self.tell(&format!("punch out {resource} {token}"), &answer, |_| "done".into());
        match answer {
            Ok((_, revision)) => {
                pending.answer(Outcome::Released);
                self.see(sent, revision, What::Release { resource: resource.into(), token });
            }
            Err(error) => self.fail(pending, &error),
        }
    }

    async fn propose<C: CommandKind>(
        &self,
        command: C,
        token: Option<u64>,
        id: String,
        within: Duration,
    ) -> Result<(C::Output, Revision), CallError> {
        let request = RequestId { id, keyed: true, ..new_request() };
        self.cluster.propose_as(&self.principal(), command, token, request, Instant::now() + within).await
    }

    pub fn principal(&self) -> Principal {
        Principal { tenant: "team".into(), passport: self.name.clone(), tier: Tier::Verified, scopes: BTreeSet::new() }
    }

    pub fn fail(&self, pending: crate::history::Pending<'_>, error: &CallError) {
        match error {
            // Both say that nothing was written, and the history holds them to it.
            CallError::Refused(_) | CallError::NoLeader { .. } => pending.answer(Outcome::Refused),
            _ => {
                drop(pending);
                self.count(|counts, _| counts.unknown += 1);
            }
        }
    }

    pub fn see(&self, sent: Duration, revision: Revision, what: What) {
        let writes = u64::from(what != What::Read);
        let seen = Seen { sent, answered: process::elapsed(), revision: revision.0, what };
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        self.count(|counts, _| {
            counts.answered += 1;
            counts.written += writes;
        });
    }

    pub fn count(&self, change: impl FnOnce(&mut Counts, u64)) {
        let retries = self.cluster.retries().propose.load(Relaxed);
        change(&mut self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner), retries);
    }

    pub fn tell<T>(&self, asked: &str, answer: &Result<(T, Revision), CallError>, told: impl FnOnce(&T) -> String) {
        self.say(match answer {
            Ok((output, revision)) => format!("{asked}: {} at {revision}", told(output)),
            Err(error) => format!("{asked}: {error}"),
        });
    }

    pub fn say(&self, what: impl AsRef<str>) {
        self.shared.journal.say(&self.name, what);
    }
}
