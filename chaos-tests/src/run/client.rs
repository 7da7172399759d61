//! A client of the gateways as an agent's should be: it sends a call again under the same key, through another gateway, until it
//! has an answer, and it knows what it does not know.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::history::Told;

/// Somebody with a token.
#[derive(Clone, Debug)]
pub struct Caller {
    pub passport: String,
    pub token: String,
}

/// How a call is made.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// One attempt.
    pub attempt: Duration,
    /// All of them. The one under way at its end is still waited for.
    pub all: Duration,
}

impl Patience {
    pub const USUAL: Self = Self { attempt: Duration::from_secs(4), all: Duration::from_secs(30) };
    /// Sends once, does not wait, and never asks what came of it.
    pub const NONE: Self = Self { attempt: Duration::from_millis(150), all: Duration::ZERO };
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Done(Value),
    /// A rule said no; its code, and what it tells.
    Refused {
        code: String,
        data: Value,
    },
    /// It certainly has had no effect.
    NotDone,
    Unknown,
}

/// One gateway, as it has served so far.
struct Door {
    name: String,
    base: String,
    http: reqwest::Client,
    failed: AtomicU64,
}

/// All gateways.
pub struct Doors {
    doors: Vec<Door>,
    next: AtomicUsize,
    /// Answers that came only after an attempt without one, through another gateway, under the same key.
    pub resent: AtomicU64,
}

/// An answer that no client should ever get.
pub type Surprise = String;

impl Doors {
    pub fn new(bases: &[String]) -> anyhow::Result<Self> {
        let doors = bases.iter().enumerate().map(|(place, base)| {
            let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
            let base = base.trim_end_matches('/').to_string();
            Ok(Door { name: format!("gateway-{place}"), base, http, failed: AtomicU64::new(0) })
        });
        let doors = doors.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { doors, next: AtomicUsize::new(0), resent: AtomicU64::new(0) })
    }

    pub fn count(&self) -> usize {
        self.doors.len()
    }

    /// Where the gateway of a place is, counted around.
    pub fn base(&self, place: usize) -> &str {
        &self.doors[place % self.doors.len()].base
    }

    /// What speaks to it.
    pub fn http(&self, place: usize) -> &reqwest::Client {
        &self.doors[place % self.doors.len()].http
    }

    /// Attempts at a gateway that brought no answer.
    pub fn failures(&self, place: usize) -> u64 {
        self.doors.get(place).map_or(0, |door| door.failed.load(Relaxed))
    }

    /// Calls a tool. With a key it is sent again after any attempt without an answer; without one only where that does no harm.
    pub async fn call(
        &self,
        rng: &mut StdRng,
        caller: &Caller,
        (tool, arguments): (&str, &Value),
        key: Option<&str>,
        patience: Patience,
    ) -> (Reply, Told, Option<Surprise>) {
        let deadline = Instant::now() + patience.all;
        let mut place = self.next.fetch_add(1, Relaxed) % self.doors.len();
        let mut told = Told::default();
        // Whether an attempt may have had its effect.
        let mut may_be_done = false;
        loop {
            let door = &self.doors[place];
            told.via.push(door.name.clone());
            match door.attempt(caller, tool, arguments, key, patience.attempt).await {
                Attempt::Answer(reply, revision) => {
                    told.revision = revision;
                    if may_be_done && told.via.iter().any(|name| *name != door.name) {
                        self.resent.fetch_add(1, Relaxed);
                    }
                    return (reply, told, None);
                }
                Attempt::Surprise(text) => return (Reply::Unknown, told, Some(format!("{tool} through {}: {text}", door.name))),
                Attempt::Later => {}
                Attempt::Lost => {
                    door.failed.fetch_add(1, Relaxed);
                    may_be_done = true;
                }
            }
            if Instant::now() >= deadline {
                return (if may_be_done { Reply::Unknown } else { Reply::NotDone }, told, None);
            }
            place = (place + 1) % self.doors.len();
            sleep(Duration::from_millis(rng.random_range(30..200))).await;
        }
    }
}

enum Attempt {
    Answer(Reply, Option<u64>),
    /// Surely without effect, and worth another try.
    Later,
    /// No answer, or one that says that the outcome is not known.
    Lost,
    Surprise(String),
}

impl Door {
    async fn attempt(&self, caller: &Caller, tool: &str, arguments: &Value, key: Option<&str>, within: Duration) -> Attempt {
        let mut request = self.http.post(format!("{}/v1/tools/crux/{tool}", self.base)).bearer_auth(&caller.token).json(arguments);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        // A wait in the queue for a card is part of the call.
        let queued = Duration::from_millis(arguments["wait_ms"].as_u64().unwrap_or(0));
        let Ok(response) = request.timeout(within + queued).send().await else { return Attempt::Lost };
        let status = response.status();
        let revision = response.headers().get("quorate-revision").and_then(|value| value.to_str().ok()?.parse().ok());
        let Ok(bytes) = response.bytes().await else { return Attempt::Lost };
        let Ok(body) = serde_json::from_slice::<Value>(&bytes) else {
            return Attempt::Surprise(format!("{status} with {}", String::from_utf8_lossy(&bytes[..bytes.len().min(300)])));
        };
        if status.is_success() {
            return Attempt::Answer(Reply::Done(body), revision);
        }
        let code = match &body["code"] {
            Value::String(code) => code.clone(),
            other => other.to_string(),
        };
        match code.as_str() {
            "UNAVAILABLE" | "OVERLOADED" | "UNKNOWN" | "FULL" => Attempt::Later,
            "OUTCOME_UNKNOWN" => Attempt::Lost,
            "HELD" | "STALE_TOKEN" | "NOT_FOUND" | "ALREADY_DECIDED" | "-32004" => {
                Attempt::Answer(Reply::Refused { code, data: body["data"].clone() }, revision)
            }
            _ => Attempt::Surprise(format!("{status} {}", body.to_string().chars().take(600).collect::<String>())),
        }
    }
}
