//! What the clients do: facts, leases with fencing, sessions with compare-and-set, approvals. All at once, on few objects, so that
//! they get in each other's way; an object is left for a fresh one after some writes, so that its history stays decidable.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::Stage;
use super::client::{Caller, Patience, Reply};
use crate::history::{Event, Moment, Operation, Outcome};

/// The one property of every fact here.
const KEY: &str = "v";
/// Leases are this short, so that many of them run out in a run.
pub const TTL: Duration = Duration::from_millis(2_000);

/// Objects in use at once, and writes after which one is left for the next.
const FACTS: (u64, u64) = (3, 20);
const LEASES: (u64, u64) = (2, 8);
const SESSIONS: (u64, u64) = (2, 20);

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Everything at once, as fast as it goes.
    Mixed,
    /// The day of a team: they come in, work, have things approved, hand over, and are gone; a day takes two minutes.
    Day,
}

/// What is done in one part of a day: of a hundred things so many of each kind, the rest facts, and the pause after each.
struct Hour {
    tenures: u32,
    approvals: u32,
    sessions: u32,
    pause_ms: std::ops::Range<u64>,
}

impl Workload {
    /// A tenure takes a hundred times as long as the rest.
    fn hour(self, at: Moment) -> Hour {
        let hour = |tenures, approvals, sessions, pause_ms| Hour { tenures, approvals, sessions, pause_ms };
        match (self, at.as_secs() % 120) {
            (Workload::Mixed, _) => hour(8, 6, 26, 2..25),
            // All come in at once and read what was left for them.
            (Workload::Day, 0..15) => hour(0, 0, 70, 20..200),
            (Workload::Day, 15..65) => hour(30, 3, 10, 100..600),
            (Workload::Day, 65..80) => hour(5, 40, 10, 100..800),
            (Workload::Day, 80..95) => hour(10, 2, 70, 50..300),
            // A few that work on.
            (Workload::Day, _) => hour(4, 0, 10, 2_000..8_000),
        }
    }
}

/// Who takes part, and what they share.
pub struct Cast {
    /// One a client, with a passport of its own.
    pub clients: Vec<Caller>,
    /// Who the sessions belong to: only their owner sees them, so all clients act as one.
    pub shared: Caller,
    /// Who decides. None: no approvals.
    pub operators: Vec<Caller>,
    /// Whether each client has a passport of its own; if not, there can be no contention for leases.
    pub has_rivals: bool,
    facts: Vec<AtomicU64>,
    leases: Vec<AtomicU64>,
    sessions: Vec<AtomicU64>,
    pub receipts: Mutex<Vec<String>>,
    requests: AtomicU64,
}

impl Cast {
    pub fn new(clients: Vec<Caller>, shared: Caller, operators: Vec<Caller>) -> Self {
        let counters = |(slots, _): (u64, u64)| (0..slots).map(|_| AtomicU64::new(0)).collect();
        let passports: BTreeSet<&str> = clients.iter().map(|client| client.passport.as_str()).collect();
        Self {
            has_rivals: passports.len() == clients.len() && clients.len() > 1,
            clients,
            shared,
            operators,
            facts: counters(FACTS),
            leases: counters(LEASES),
            sessions: counters(SESSIONS),
            receipts: Mutex::default(),
            requests: AtomicU64::new(0),
        }
    }
}

/// One client at work.
pub struct Client {
    stage: Arc<Stage>,
    place: usize,
    caller: Caller,
    rng: StdRng,
    stop: watch::Receiver<bool>,
    /// The card that was last granted to it: its id and token.
    card: Option<(String, u64)>,
    has_held: bool,
}

impl Client {
    pub fn new(stage: Arc<Stage>, place: usize, seed: u64, stop: watch::Receiver<bool>) -> Self {
        let caller = stage.cast.clients[place].clone();
        Self { stage, place, caller, rng: StdRng::seed_from_u64(seed ^ (place as u64 + 1) << 32), stop, card: None, has_held: false }
    }

    /// Works until it is told to stop.
    pub async fn run(mut self, workload: Workload) {
        while !*self.stop.borrow() {
            let hour = workload.hour(self.stage.recorder.now());
            match self.rng.random_range(0..100) {
                part if part < hour.tenures => {
                    if self.stage.cast.has_rivals {
                        self.tenure().await;
                    }
                }
                part if part < hour.tenures + hour.approvals => {
                    if !self.stage.cast.operators.is_empty() {
                        self.approval().await;
                    }
                }
                part if part < hour.tenures + hour.approvals + hour.sessions => self.session().await,
                _ => self.fact().await,
            }
            self.pause(hour.pause_ms).await;
        }
    }

    async fn pause(&mut self, ms: std::ops::Range<u64>) {
        sleep(Duration::from_millis(self.rng.random_range(ms))).await;
    }

    /// One operation from its sending to its record.
    async fn operation(
        &mut self,
        (name, caller): (&str, &Caller),
        operation: Operation,
        call: (&str, Value),
        read: impl FnOnce(Reply) -> Outcome,
    ) -> Outcome {
        let stage = Arc::clone(&self.stage);
        // Some never learn what came of their write.
        let gives_up = !operation.is_read() && self.rng.random_bool(0.08);
        let patience = if gives_up { Patience::NONE } else { Patience::USUAL };
        let key = (!operation.is_read()).then(|| match &operation {
            Operation::Store { request, .. } => request.clone(),
            _ => self.request(),
        });
        let pending = stage.recorder.send(name, operation);
        let (reply, told, surprise) = stage.doors.call(&mut self.rng, caller, (call.0, &call.1), key.as_deref(), patience).await;
        if let Some(surprise) = surprise {
            stage.tell(surprise);
        }
        let outcome = match reply {
            Reply::Unknown => Outcome::Unknown,
            Reply::NotDone => Outcome::Refused,
            reply => read(reply),
        };
        pending.answer_with(outcome.clone(), told);
        outcome
    }

    /// A request id and value that nobody else has.
    fn request(&self) -> String {
        let number = self.stage.cast.requests.fetch_add(1, Relaxed);
        format!("{}-{}-{number}", self.stage.prefix, self.place)
    }

    /// The object in use in one of the slots; the counter tells when the next one's turn is.
    fn object(&mut self, kind: &str, counters: &[AtomicU64], writes: u64) -> (String, usize) {
        let slot = self.rng.random_range(0..counters.len());
        (object_name(&self.stage.prefix, kind, slot, counters[slot].load(Relaxed) / writes), slot)
    }

    // -------- facts

    async fn fact(&mut self) {
        let stage = Arc::clone(&self.stage);
        let caller = self.caller.clone();
        let (name, slot) = self.object("f", &stage.cast.facts, FACTS.1);
        match self.rng.random_range(0..10) {
            0..5 => {
                stage.cast.facts[slot].fetch_add(1, Relaxed);
                let request = self.request();
                let operation = Operation::Store { name: name.clone(), value: request.clone(), request: request.clone() };
                let call = ("store_fact", json!({"entity": name, "key": KEY, "value": request}));
                self.operation((&caller.passport, &caller), operation, call, stored).await;
            }
            5..7 => self.latest(name).await,
            _ => self.read(name).await,
        }
    }

    async fn latest(&mut self, name: String) {
        let caller = self.caller.clone();
        let call = ("query_facts", json!({"entity": name, "key": KEY, "top_k": 1}));
        let read = |reply| match reply {
            Reply::Done(facts) => {
                let row = &facts["rows"][0];
                Outcome::Version(row["version"].as_u64().map(|version| (version, text(&row["value"]))))
            }
            _ => Outcome::Refused,
        };
        self.operation((&caller.passport, &caller), Operation::Latest { name }, call, read).await;
    }

    /// All versions, page by page: versions are never taken away, so the last page's moment is that of the whole.
    async fn read(&mut self, name: String) {
        let stage = Arc::clone(&self.stage);
        let caller = self.caller.clone();
        let pending = stage.recorder.send(&caller.passport, Operation::Read { name: name.clone() });
        let mut versions = Vec::new();
        let mut arguments = json!({"entity": name, "key": KEY});
        loop {
            let call = ("fact_history", &arguments);
            let (reply, told, surprise) = stage.doors.call(&mut self.rng, &caller, call, None, Patience::USUAL).await;
            if let Some(surprise) = surprise {
                stage.tell(surprise);
            }
            match reply {
                Reply::Done(page) => {
                    versions.extend(page["versions"].as_array().into_iter().flatten().map(|row| text(&row["value"])));
                    match page["next_cursor"].as_str() {
                        Some(cursor) => arguments["cursor"] = cursor.into(),
                        None => return pending.answer_with(Outcome::Versions(versions), told),
                    }
                }
                Reply::Refused { code, .. } if code == "NOT_FOUND" => return pending.answer_with(Outcome::Versions(Vec::new()), told),
                _ => return pending.answer(Outcome::Refused),
            }
        }
    }

    // -------- leases

    /// Takes a lease, works under it, and gives it back, or forgets to, or works on when it is lost.
    async fn tenure(&mut self) {
        let stage = Arc::clone(&self.stage);
        let (resource, slot) = self.object("l", &stage.cast.leases, LEASES.1);
        let resource = format!("file://{resource}.rs");
        stage.cast.leases[slot].fetch_add(1, Relaxed);
        let wait_ms = if self.rng.random_bool(0.5) { 1_500 } else { 0 };
        let Outcome::Granted { token } = self.acquire(&resource, wait_ms).await else {
            return self.check(&resource).await;
        };
        let is_long = self.rng.random_bool(0.2);
        for _ in 0..if is_long { 8 } else { self.rng.random_range(1..4) } {
            self.write_under(&resource, token).await;
            self.pause(if is_long { 300..700 } else { 20..200 }).await;
            if is_long || self.rng.random_bool(0.3) {
                self.acquire(&resource, 0).await;
            }
            if self.rng.random_bool(0.3) {
                self.check(&resource).await;
            }
            if *self.stop.borrow() {
                break;
            }
        }
        // The first of some surely, so that a short run has tried it.
        let is_first = self.place.is_multiple_of(3) && !std::mem::replace(&mut self.has_held, true);
        if (is_first || self.rng.random_bool(0.1)) && !stage.cast.operators.is_empty() {
            self.lose_to_an_operator(&resource).await;
            return;
        }
        match self.rng.random_range(0..10) {
            0..5 => self.release(&resource, token).await,
            5..7 => {}
            _ => {
                // As after a long pause: it believes that it still holds the lease.
                let late = TTL + Duration::from_millis(self.rng.random_range(100..1_500));
                sleep(late).await;
                self.write_under(&resource, token).await;
                self.release(&resource, token).await;
            }
        }
    }

    async fn acquire(&mut self, resource: &str, wait_ms: u64) -> Outcome {
        let caller = self.caller.clone();
        let mut arguments = json!({"resource": resource, "holder_passport": caller.passport, "ttl_ms": TTL.as_millis() as u64});
        if wait_ms > 0 {
            arguments["wait_ms"] = wait_ms.into();
        }
        let mut granted = None;
        let read = |reply| match reply {
            Reply::Done(card) => {
                granted = card["id"].as_str().map(str::to_string).zip(card["fencing_token"].as_u64());
                card["fencing_token"].as_u64().map_or(Outcome::Unknown, |token| Outcome::Granted { token })
            }
            // Who waits holds nothing, and after a wait of one's own the answer is of some moment within it.
            Reply::Refused { data, .. } if data["waiting"] == false && wait_ms == 0 => Outcome::Holder(Some(text(&data["holder"]))),
            _ => Outcome::Refused,
        };
        let operation = Operation::Acquire { resource: resource.into(), ttl: TTL };
        let outcome = self.operation((&caller.passport, &caller), operation, ("punch_in", arguments), read).await;
        self.card = granted.or(self.card.take());
        outcome
    }

    /// An operator ends the lease, as that of somebody who is gone; its holder writes on and is refused.
    async fn lose_to_an_operator(&mut self, resource: &str) {
        let Some((card, token)) = self.card.clone() else { return };
        let operators = &self.stage.cast.operators;
        let operator = operators[self.rng.random_range(0..operators.len())].clone();
        let arguments = json!({"punchcard_id": card, "confirm": true, "reason": "chaos"});
        let read = |reply| match reply {
            Reply::Done(_) => Outcome::Released,
            // It was over before.
            Reply::Refused { code, .. } if code == "-32004" => Outcome::Stale,
            _ => Outcome::Refused,
        };
        let operation = Operation::Force { resource: resource.into(), token };
        self.operation((&operator.passport, &operator), operation, ("force_release", arguments), read).await;
        self.write_under(resource, token).await;
    }

    async fn check(&mut self, resource: &str) {
        let caller = self.caller.clone();
        let read = |reply| match reply {
            Reply::Done(seen) => Outcome::Holder(seen["holder_passport"].as_str().map(str::to_string)),
            _ => Outcome::Refused,
        };
        let operation = Operation::Check { resource: resource.into() };
        self.operation((&caller.passport, &caller), operation, ("check_punchcard", json!({"resource": resource})), read).await;
    }

    async fn write_under(&mut self, resource: &str, token: u64) {
        let caller = self.caller.clone();
        let (name, value) = (written_under(resource), self.request());
        let arguments = json!({"entity": name, "key": KEY, "value": value, "fencing_token": token});
        let operation = Operation::StoreUnder { resource: resource.into(), token, name, value };
        self.operation((&caller.passport, &caller), operation, ("store_fact", arguments), stored).await;
    }

    async fn release(&mut self, resource: &str, token: u64) {
        let caller = self.caller.clone();
        let arguments = json!({"resource": resource, "holder_passport": caller.passport, "fencing_token": token});
        let read = |reply| match reply {
            Reply::Done(_) => Outcome::Released,
            _ => Outcome::Stale,
        };
        let operation = Operation::Release { resource: resource.into(), token };
        self.operation((&caller.passport, &caller), operation, ("punch_out", arguments), read).await;
    }

    // -------- sessions

    async fn session(&mut self) {
        let stage = Arc::clone(&self.stage);
        let (session, slot) = self.object("s", &stage.cast.sessions, SESSIONS.1);
        let seen = self.load(&session).await;
        let expected = match seen {
            Outcome::Session(Some((revision, _))) => Some(revision),
            Outcome::Session(None) => Some(0),
            _ => None,
        };
        self.pause(1..30).await;
        let expected = expected.filter(|_| self.rng.random_bool(0.85));
        stage.cast.sessions[slot].fetch_add(1, Relaxed);
        let value = self.request();
        let mut arguments = json!({"session_id": session, "state": {"value": value}});
        if let Some(expected) = expected {
            arguments["expected_revision"] = expected.into();
        }
        let read = |reply| match reply {
            Reply::Done(saved) => saved["revision"].as_u64().map_or(Outcome::Unknown, |revision| Outcome::Saved { revision }),
            Reply::Refused { code, .. } if code == "-32004" => Outcome::Changed,
            _ => Outcome::Refused,
        };
        let (name, shared) = (self.caller.passport.clone(), stage.cast.shared.clone());
        self.operation((&name, &shared), Operation::Save { session, value, expected }, ("save_session", arguments), read).await;
    }

    async fn load(&mut self, session: &str) -> Outcome {
        let read = |reply| match reply {
            Reply::Done(seen) => Outcome::Session(seen["revision"].as_u64().map(|revision| (revision, text(&seen["state"]["value"])))),
            Reply::Refused { code, .. } if code == "NOT_FOUND" => Outcome::Session(None),
            _ => Outcome::Refused,
        };
        let (name, shared) = (self.caller.passport.clone(), self.stage.cast.shared.clone());
        let operation = Operation::Load { session: session.into() };
        self.operation((&name, &shared), operation, ("get_session", json!({"session_id": session})), read).await
    }

    // -------- approvals

    /// Asks for an approval, and several operators decide it at the same moment.
    async fn approval(&mut self) {
        let stage = Arc::clone(&self.stage);
        let key = self.request();
        let arguments = json!({"action_summary": key, "risk_tier": "high", "scope": "local", "token_budget": 1, "ttl_ms": 600_000});
        let call = ("approval_request", &arguments);
        let (reply, _, surprise) = stage.doors.call(&mut self.rng, &self.caller, call, Some(&key), Patience::USUAL).await;
        if let Some(surprise) = surprise {
            stage.tell(surprise);
        }
        let Reply::Done(asked) = reply else { return };
        let Some(approval) = asked["request_id"].as_str() else { return };
        let deciders = stage.cast.operators.iter().map(|operator| {
            let mut decider = Client {
                stage: Arc::clone(&stage),
                place: self.place,
                caller: operator.clone(),
                rng: StdRng::seed_from_u64(self.rng.random()),
                stop: self.stop.clone(),
                card: None,
                has_held: false,
            };
            let approval = approval.to_string();
            async move { decider.decide(approval).await }
        });
        join_all(deciders).await;
    }

    async fn decide(&mut self, approval: String) {
        let caller = self.caller.clone();
        let approve = self.rng.random_bool(0.5);
        let arguments = json!({"request_id": approval, "decision": if approve { "approve" } else { "reject" }});
        let mut receipt = None;
        let read = |reply| match reply {
            Reply::Done(done) => {
                receipt = done["receipt_id"].as_str().map(str::to_string);
                Outcome::Decided { approve: done["status"] == "approved" }
            }
            Reply::Refused { code, data } if code == "ALREADY_DECIDED" => {
                Outcome::AlreadyDecided { approve: data["decision"] == "approved" }
            }
            _ => Outcome::Refused,
        };
        let operation = Operation::Decide { approval, approve };
        self.operation((&caller.passport, &caller), operation, ("approval_decide", arguments), read).await;
        self.stage.cast.receipts.lock().unwrap_or_else(PoisonError::into_inner).extend(receipt);
    }

    // -------- the end

    /// Reads every object once more, when the faults are over.
    pub async fn read_everything(mut self, history: &[Event]) {
        let mut chains = BTreeSet::new();
        let mut sessions = BTreeSet::new();
        for event in history {
            match &event.operation {
                Operation::Store { name, .. } | Operation::StoreUnder { name, .. } => chains.insert(name.clone()),
                Operation::Save { session, .. } => sessions.insert(session.clone()),
                _ => false,
            };
        }
        for name in chains {
            self.read(name).await;
        }
        for session in sessions {
            self.load(&session).await;
        }
    }

    /// Has the cluster check receipts of decisions; how many, and which it does not call verified.
    pub async fn verify_receipts(mut self, most: usize) -> (usize, Vec<String>) {
        let receipts = self.stage.cast.receipts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let step = receipts.len().div_ceil(most).max(1);
        let mut wrong = Vec::new();
        let asked: Vec<&String> = receipts.iter().step_by(step).collect();
        for receipt in &asked {
            let arguments = json!({"receipt_id": receipt});
            let call = ("receipt_verify", &arguments);
            let stage = Arc::clone(&self.stage);
            match stage.doors.call(&mut self.rng, &self.caller, call, None, Patience::USUAL).await {
                (Reply::Done(told), ..) if told["verified"] == true => {}
                (other, ..) => wrong.push(format!("{receipt}: {other:?}")),
            }
        }
        (asked.len(), wrong)
    }
}

fn stored(reply: Reply) -> Outcome {
    match reply {
        Reply::Done(fact) => fact["version"].as_u64().map_or(Outcome::Unknown, |version| Outcome::Stored { version }),
        Reply::Refused { code, .. } if code == "STALE_TOKEN" => Outcome::Stale,
        _ => Outcome::Refused,
    }
}

/// The name that is written to under the lease on a resource.
fn written_under(resource: &str) -> String {
    format!("{}:under", resource.trim_start_matches("file://").trim_end_matches(".rs"))
}

fn object_name(prefix: &str, kind: &str, slot: usize, generation: u64) -> String {
    format!("{prefix}-{kind}{slot}-{generation}")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}
