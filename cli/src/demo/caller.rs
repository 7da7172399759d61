//! One agent or person at the gateways: a call is sent again, through the other gateway and under the same key, until it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde_json::Value;

use crate::exit::Failure;

/// One attempt. Longer than a call may wait in a queue.
const ATTEMPT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);

/// What the whole team shares.
pub struct Lines {
    http: reqwest::Client,
    doors: Vec<String>,
    pub calls: AtomicU64,
    pub resent: AtomicU64,
}

impl Lines {
    pub fn new(doors: Vec<String>) -> Result<Self, Failure> {
        let built = crate::http::builder(false, None)?.no_proxy().tcp_nodelay(true).timeout(ATTEMPT);
        Ok(Self { http: crate::http::built(built)?, doors, calls: AtomicU64::new(0), resent: AtomicU64::new(0) })
    }
}

/// A rule said no: its code, and its words.
#[derive(Clone, Debug)]
pub struct No {
    pub code: String,
    pub message: String,
}

pub struct Caller {
    pub passport: String,
    token: String,
    lines: Arc<Lines>,
    /// The gateway that it tries first.
    door: AtomicUsize,
}

impl Caller {
    pub fn new(passport: &str, token: &str, lines: Arc<Lines>, door: usize) -> Self {
        Self { passport: passport.into(), token: token.into(), lines, door: AtomicUsize::new(door) }
    }

    /// Calls a tool until there is an answer. Whoever runs the day bounds how long that may take.
    pub async fn call(&self, tool: &str, arguments: &Value, key: Option<&str>) -> Result<Value, No> {
        loop {
            let door = &self.lines.doors[self.door.load(Relaxed) % self.lines.doors.len()];
            let mut request = self.lines.http.post(format!("{door}/v1/tools/crux/{tool}")).bearer_auth(&self.token).json(arguments);
            if let Some(key) = key {
                request = request.header("Idempotency-Key", key);
            }
            self.lines.calls.fetch_add(1, Relaxed);
            if let Some(answer) = answered(request).await {
                return answer;
            }
            self.lines.resent.fetch_add(1, Relaxed);
            self.door.fetch_add(1, Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The same of an address that is read.
    pub async fn get(&self, path: &str) -> Result<Value, No> {
        loop {
            let door = &self.lines.doors[self.door.load(Relaxed) % self.lines.doors.len()];
            self.lines.calls.fetch_add(1, Relaxed);
            if let Some(answer) = answered(self.lines.http.get(format!("{door}{path}")).bearer_auth(&self.token)).await {
                return answer;
            }
            self.lines.resent.fetch_add(1, Relaxed);
            self.door.fetch_add(1, Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The answer of one attempt; `None` where another one has to be made.
async fn answered(request: reqwest::RequestBuilder) -> Option<Result<Value, No>> {
    let response = request.send().await.ok()?;
    let status = response.status();
    let body: Value = response.json().await.ok()?;
    if status.is_success() {
        return Some(Ok(body));
    }
    // The cluster has no leader now, or did not tell the outcome.
    if status.is_server_error() {
        return None;
    }
    let code = body["code"].as_str().map_or_else(|| body["code"].to_string(), String::from);
    Some(Err(No { code, message: body["message"].as_str().unwrap_or_default().into() }))
}
