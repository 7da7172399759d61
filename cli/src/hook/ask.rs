//! The one request of a hook, to the first gateway that answers in time.

use std::time::{Duration, Instant};

use quorate_gateway::hook::{Guard, Verdict};
use quorate_link::bottom;
use serde_json::Value;

use super::settings::Settings;
use crate::http;

/// What the way to the gateway and back may take of the time that is left.
const ON_THE_WAY: Duration = Duration::from_millis(10);

/// The verdict of a gateway, or why there is none.
pub fn guard(settings: &Settings, guard: Guard, deadline: Instant) -> Result<Verdict, String> {
    let answer = post(settings, "/v1/guard", deadline, |left| {
        let within_ms = u64::try_from(left.saturating_sub(ON_THE_WAY).as_millis()).unwrap_or(u64::MAX);
        serde_json::to_value(Guard { within_ms, ..guard.clone() }).expect("a question is plain data")
    })?;
    serde_json::from_value(answer).map_err(|error| format!("the gateway's answer is not understood: {error}"))
}

/// Posts JSON to each gateway in turn until one answers; each gets its share of the time that is left. One thread and no pool: a
/// hook makes one request in its life.
pub fn post(settings: &Settings, path: &str, deadline: Instant, body: impl Fn(Duration) -> Value) -> Result<Value, String> {
    if let Some(problem) = &settings.problem {
        return Err(problem.clone());
    }
    let Some(token) = &settings.token else { return Err("QUORATE_TOKEN is not set".into()) };
    if settings.gateways.is_empty() {
        return Err("no gateway is named: set QUORATE_URL, or `gateways` in .quorate.toml".into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let https = settings.gateways.iter().any(|url| http::is_https(url));
        let builder = http::builder(https, settings.ca.as_deref()).map_err(|failure| failure.message)?;
        let client = http::built(builder.no_proxy()).map_err(|failure| failure.message)?;
        let mut why = String::new();
        for (index, gateway) in settings.gateways.iter().enumerate() {
            let others = u32::try_from(settings.gateways.len() - index).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(Instant::now()) / others;
            let sent = client.post(format!("{gateway}{path}")).bearer_auth(token).json(&body(share));
            let answered = async {
                let answer = sent.send().await.map_err(|error| bottom(&error))?;
                let status = answer.status();
                let facts: Value = answer.json().await.map_err(|error| bottom(&error))?;
                Ok::<_, String>((status, facts))
            };
            match tokio::time::timeout(share, answered).await {
                Ok(Ok((status, facts))) if status.is_success() => return Ok(facts),
                Ok(Ok((_, facts))) => {
                    let text = facts["detail"].as_str().or(facts["title"].as_str()).unwrap_or("it gave no reason");
                    why = format!("the gateway at {gateway} can't tell: {}", text.trim_end_matches('.'));
                }
                Ok(Err(error)) => why = format!("no gateway answers at {gateway} ({error})"),
                Err(_) => why = format!("no gateway answers at {gateway} within {} ms", share.as_millis()),
            }
        }
        Err(why)
    })
}
