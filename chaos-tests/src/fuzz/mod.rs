//! Fuzz: every listed tool is called with arguments that its schema allows, almost allows, or that nobody should send, and each
//! answer is held to what is promised of answers: no fault, in the shape of the tool's output schema or as a typed refusal, and
//! a refused call changes nothing.
//!
//! [`shape`] makes the arguments, by seed; [`judge`] holds answers to the promises; here is who calls, and the report. It drives a
//! deployment that runs already and needs no knowledge of any tool beyond `tools/list`.

mod judge;
mod shape;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use judge::{Answer, Judge};
use shape::{Known, Shape, Wish};

/// Call all listed tools of a running deployment with made-up arguments, and judge each answer
#[derive(Args)]
pub struct Fuzz {
    /// Addresses of gateways, with commas between
    #[arg(long, value_delimiter = ',', required = true)]
    url: Vec<String>,
    /// Bearer tokens of callers, with commas between; the first one also writes what tells refused calls apart, and the last one makes
    /// the calls that end passports, its own too
    #[arg(long, value_delimiter = ',', required = true)]
    token: Vec<String>,
    /// How many calls
    #[arg(long, default_value_t = 10_000)]
    calls: u64,
    /// What chooses tools and arguments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Calls at the same time
    #[arg(long, default_value_t = 8)]
    parallel: u64,
    /// Refused calls that are held to have changed nothing, one after the other
    #[arg(long, default_value_t = 1_000)]
    refused: u64,
    /// Logs of the deployment, which must not tell of a panic
    #[arg(long, value_delimiter = ',')]
    log: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Faults that are told in full.
const SHOWN_MAX: usize = 25;
/// Refused calls between two looks at what has changed.
const REFUSED_AT_ONCE: u64 = 25;
/// One call, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the callers share.
struct Field {
    http: reqwest::Client,
    doors: Vec<String>,
    tokens: Vec<String>,
    shapes: Vec<Shape>,
    judge: Judge,
    known: Mutex<Known>,
    next: AtomicU64,
    report: Mutex<Report>,
}

#[derive(Default)]
struct Report {
    outcomes: BTreeMap<String, u64>,
    tools: BTreeMap<String, u64>,
    faults: Vec<Value>,
    faults_all: u64,
    /// How many of a kind, so that one fault does not hide the others.
    kinds: BTreeMap<String, u64>,
}

impl Report {
    fn fault(&mut self, tool: &str, problem: &str, arguments: &Value) {
        self.faults_all += 1;
        let kind: String = problem.split(':').next().unwrap_or_default().into();
        let seen = self.kinds.entry(format!("{tool}: {kind}")).or_default();
        *seen += 1;
        if *seen <= 2 && self.faults.len() < SHOWN_MAX {
            let shown: String = arguments.to_string().chars().take(2_000).collect();
            self.faults.push(json!({ "tool": tool, "problem": problem, "arguments": shown }));
        }
    }
}

impl Fuzz {
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let began = Instant::now();
        let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).timeout(PATIENCE).build()?;
        let doors: Vec<String> = self.url.iter().map(|url| url.trim_end_matches('/').to_string()).collect();
        let tools = tools(&http, &doors[0], &self.token[0]).await?;
        if tools.is_empty() {
            bail!("{} lists no tools", doors[0]);
        }
        let known = Known::new(callers(&http, &doors[0], &self.token).await?);
        let shapes: Vec<Shape> = tools.iter().map(Shape::of).collect::<anyhow::Result<_>>()?;
        let judge = Judge::of(&tools)?;
        let field = Arc::new(Field {
            http,
            doors,
            tokens: self.token.clone(),
            shapes,
            judge,
            known: Mutex::new(known),
            next: AtomicU64::new(0),
            report: Mutex::default(),
        });
        let workers = (0..self.parallel.max(1)).map(|_| {
            let field = field.clone();
            tokio::spawn(async move {
                loop {
                    let n = field.next.fetch_add(1, Relaxed);
                    if n >= self.calls {
                        return;
                    }
                    field.call(self.seed, n).await;
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.context("a caller failed")?;
        }
        let checked = field.refused_change_nothing(self.seed, self.refused).await?;
        field.still_serves().await;
        for log in &self.log {
            let text = std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
            for line in text.lines().filter(|line| line.contains("panicked at")) {
                field.report.lock().await.fault("-", &format!("a panic in the log: {line}"), &Value::Null);
            }
        }
        let report = field.report.lock().await;
        self.tell(&report, checked, field.shapes.len(), began.elapsed());
        Ok(ExitCode::from(u8::from(report.faults_all > 0)))
    }

    fn tell(&self, report: &Report, checked: u64, tools: usize, took: Duration) {
        let uncalled = tools - report.tools.len().min(tools);
        if self.json {
            let facts = json!({
                "ok": report.faults_all == 0, "calls": self.calls, "seed": self.seed, "tools": tools, "tools_not_called": uncalled,
                "outcomes": report.outcomes, "refused_and_unchanged": checked, "faults": report.faults_all, "kinds": report.kinds,
                "examples": report.faults, "seconds": took.as_secs_f64(),
            });
            println!("{facts}");
            return;
        }
        println!("{} calls of {tools} tools by seed {} in {:.0} s; {uncalled} tools not called", self.calls, self.seed, took.as_secs_f64());
        for (outcome, count) in &report.outcomes {
            println!("  {count:>8}  {outcome}");
        }
        println!("{checked} refused calls changed nothing");
        for (kind, count) in &report.kinds {
            println!("FAULT x{count} {kind}");
        }
        for fault in &report.faults {
            println!("{}", serde_json::to_string_pretty(fault).unwrap_or_default());
        }
        println!("{} faults", report.faults_all);
    }
}

/// What is listed, with schemas.
async fn tools(http: &reqwest::Client, door: &str, token: &str) -> anyhow::Result<Vec<Value>> {
    let (mut tools, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params });
        let answer: Value = post(http, &format!("{door}/mcp/crux"), token, &message).await?.1;
        let result = &answer["result"];
        tools.extend(result["tools"].as_array().with_context(|| format!("no list of tools: {answer}"))?.iter().cloned());
        cursor = result["nextCursor"].as_str().map(String::from);
        if cursor.is_none() {
            return Ok(tools);
        }
    }
}

/// The passports of the tokens, which a call must not end.
async fn callers(http: &reqwest::Client, door: &str, tokens: &[String]) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for token in tokens {
        let (status, answer, _) = post(http, &format!("{door}/v1/tools/crux/get_agent_identity"), token, &json!({})).await?;
        let name = answer["agent_name"].as_str();
        names.push(name.with_context(|| format!("a token is not known: {status} {answer}"))?.to_string());
    }
    Ok(names)
}

async fn post(http: &reqwest::Client, url: &str, token: &str, body: &Value) -> anyhow::Result<(u16, Value, usize)> {
    let request = http.post(url).bearer_auth(token).header("Accept", "application/json, text/event-stream").json(body);
    let answer = request.send().await?;
    let (status, bytes) = (answer.status().as_u16(), answer.bytes().await?);
    let text = String::from_utf8_lossy(&bytes);
    // An answer of MCP may come as a stream of one event.
    let text = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().map_or(text.to_string(), String::from);
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text)), bytes.len()))
}

impl Field {
    /// Makes call `n`, by MCP or by HTTP, and judges it.
    async fn call(&self, seed: u64, n: u64) {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n);
        // Each tool comes round; what is chosen by chance is the rest.
        let shape = &self.shapes[((n + seed) % self.shapes.len() as u64) as usize];
        let wish = match rng.random_range(0..10_u32) {
            0..4 => Wish::Valid,
            4..7 => Wish::Nearly,
            _ => Wish::Hostile,
        };
        let arguments = shape.arguments(&mut rng, wish, &*self.known.lock().await);
        let (token, last) = (&self.tokens[rng.random_range(0..self.tokens.len())], &self.tokens[self.tokens.len() - 1]);
        let token = if shape.may_end_a_passport() { last } else { token };
        let door = &self.doors[rng.random_range(0..self.doors.len())];
        let answer = match rng.random_range(0..4_u32) {
            0 => self.by_mcp(door, token, &shape.name, &arguments).await,
            _ => self.by_http(door, token, &shape.name, &arguments).await,
        };
        let mut report = self.report.lock().await;
        *report.tools.entry(shape.name.clone()).or_default() += 1;
        match answer {
            Err(error) => report.fault(&shape.name, &format!("no answer: {error:#}"), &arguments),
            Ok(answer) => {
                *report.outcomes.entry(answer.outcome()).or_default() += 1;
                for problem in self.judge.problems(&shape.name, &answer) {
                    report.fault(&shape.name, &problem, &arguments);
                }
                drop(report);
                if let Some(facts) = answer.facts() {
                    self.known.lock().await.learn(facts);
                }
            }
        }
    }

    async fn by_http(&self, door: &str, token: &str, tool: &str, arguments: &Value) -> anyhow::Result<Answer> {
        let (status, body, bytes) = post(&self.http, &format!("{door}/v1/tools/crux/{tool}"), token, arguments).await?;
        Ok(Answer::of_http(status, body, bytes))
    }

    async fn by_mcp(&self, door: &str, token: &str, tool: &str, arguments: &Value) -> anyhow::Result<Answer> {
        let params = json!({ "name": tool, "arguments": arguments });
        let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
        let (status, body, bytes) = post(&self.http, &format!("{door}/mcp/crux"), token, &message).await?;
        Ok(Answer::of_mcp(status, body, bytes))
    }

    /// Makes calls that have to be refused, one after the other, and looks whether any of them has changed what can be watched.
    async fn refused_change_nothing(&self, seed: u64, wanted: u64) -> anyhow::Result<u64> {
        let mut rng = StdRng::seed_from_u64(!seed);
        let (mut checked, mut at) = (0, self.mark(&mut rng).await?);
        while checked < wanted {
            let mut made = Vec::new();
            for _ in 0..REFUSED_AT_ONCE.min(wanted - checked) {
                let shape = &self.shapes[rng.random_range(0..self.shapes.len())];
                let arguments = shape.arguments(&mut rng, Wish::Refused, &*self.known.lock().await);
                // Never the operator's: a token that may do everything is the one that does harm.
                let answer = self.by_http(&self.doors[0], &self.tokens[0], &shape.name, &arguments).await?;
                if answer.facts().is_some() {
                    self.report.lock().await.fault(&shape.name, "not refused: arguments that break the schema", &arguments);
                }
                for problem in self.judge.problems(&shape.name, &answer) {
                    self.report.lock().await.fault(&shape.name, &problem, &arguments);
                }
                made.push(shape.name.clone());
                checked += 1;
            }
            let next = self.mark(&mut rng).await?;
            let between = self.events(at.0, &next.1).await?;
            // What ends when its time is over ends during refused calls as well.
            let is_by_time = |event: &str| [".expired\"", ".lapsed\"", ".wait_ended\""].iter().any(|word| event.contains(word));
            let is_marked = |event: &str| event.contains(&at.1) || event.contains(&next.1);
            let strange: Vec<&String> = between.iter().filter(|event| !is_marked(event) && !is_by_time(event)).collect();
            if !strange.is_empty() {
                self.report.lock().await.fault(&made.join(" "), &format!("changed: a refused call told of {strange:?}"), &Value::Null);
            }
            at = next;
        }
        Ok(checked)
    }

    /// Writes something of its own: its revision, and its id.
    async fn mark(&self, rng: &mut StdRng) -> anyhow::Result<(u64, String)> {
        let arguments = json!({ "entity": format!("fuzz:mark:{:016x}", rng.random::<u64>()), "key": "k", "value": "v" });
        let answer = self.http.post(format!("{}/v1/tools/crux/store_fact", self.doors[0])).bearer_auth(&self.tokens[0]).json(&arguments);
        let answer = answer.send().await?.error_for_status()?;
        let revision = answer.headers().get("quorate-revision").and_then(|at| at.to_str().ok()?.parse().ok());
        let facts: Value = answer.json().await?;
        Ok((revision.context("a write has no revision")?, facts["fact_id"].as_str().context("a fact has no id")?.into()))
    }

    /// The changes after a revision, up to the one that names `until`.
    async fn events(&self, since: u64, until: &str) -> anyhow::Result<Vec<String>> {
        let request = self.http.get(format!("{}/v1/events?since={since}", self.doors[0])).bearer_auth(&self.tokens[0]);
        let mut stream = request.send().await?.error_for_status()?;
        let (mut text, mut found) = (String::new(), Vec::new());
        let read = async {
            while let Some(part) = stream.chunk().await? {
                text.push_str(&String::from_utf8_lossy(&part));
                while let Some(end) = text.find("\n\n") {
                    let event: String = text.drain(..end + 2).collect();
                    let is_change = event.lines().any(|line| line.trim_end() == "event: change");
                    let is_last = is_change && event.contains(until);
                    if is_change {
                        found.push(event);
                    }
                    if is_last {
                        return Ok(());
                    }
                }
            }
            bail!("the stream of changes ended")
        };
        tokio::time::timeout(PATIENCE, read).await.context("the change that was made last does not come")??;
        Ok(found)
    }

    /// Every gateway is ready, and every caller is served.
    async fn still_serves(&self) {
        for door in &self.doors {
            let ready = self.http.get(format!("{door}/readyz")).send().await.and_then(reqwest::Response::error_for_status);
            if let Err(error) = ready {
                self.report.lock().await.fault("-", &format!("not ready: {error:#}"), &Value::Null);
            }
            // But for the last one, which may have ended itself.
            for token in &self.tokens[..self.tokens.len().saturating_sub(1).max(1)] {
                match self.by_http(door, token, "list_entities", &json!({})).await {
                    Ok(answer) if answer.facts().is_some() => {}
                    Ok(answer) => self.report.lock().await.fault("list_entities", &format!("does not serve: {answer:?}"), &json!({})),
                    Err(error) => self.report.lock().await.fault("list_entities", &format!("does not serve: {error:#}"), &json!({})),
                }
            }
        }
    }
}
