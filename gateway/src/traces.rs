//! What this gateway sees of calls: typed traces and the samples of the hold-out experiment, gathered as calls are served and
//! handed to the cluster every few seconds, like the counts in [`crate::usage`].
//!
//! Of arguments a trace keeps names of entities, keys and resources. Its signature has small words and numbers as they are and
//! every other text as a keyed hash: equal where the texts are equal, and good for nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use quorate_domain::flag::{self, Definition, GetFlags};
use quorate_domain::limit::{NAME_BYTES_MAX, TRACE_SIGNATURE_BYTES_MAX, TRACED_PASSPORTS_MAX, TRACES_PER_ADDITION_MAX};
use quorate_domain::measure::{AddMeasures, Effect, PassportTraces, Samples, Trace};
use quorate_domain::{Principal, identity};
use serde_json::{Map, Value};

use crate::call::{CallContext, CallError, Outcome};
use crate::cluster::{Cluster, Consistency};
use crate::limit::{FLAGS_ASKED_FOR, STANDING_STALE_MS_MAX, TRACES_WAITING_MAX};
use crate::outbox::Outbox;
use crate::registry::Entry;
use crate::tools::group;

/// What a client says that its call belongs to, beside the arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags {
    pub turn_id: Option<String>,
    pub session_id: Option<String>,
}

/// Which arm of the hold-out experiment a call is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arm {
    /// In none: the experiment is off, or of other tools.
    #[default]
    None,
    /// Answered without its token budget.
    Control,
    Treatment,
}

/// The recalls that the experiment is about.
const HELD_OUT: [&str; 2] = ["query", "query_facts"];

/// Arguments that tell pages of one list apart.
const PAGING: [&str; 12] =
    ["offset", "cursor", "page", "page_token", "after", "before", "start", "from", "next", "continuation", "skip", "since"];
/// Arguments that say nothing of what is asked for.
const ASIDE: [&str; 2] = ["idempotency_key", "fencing_token"];
/// Arguments whose texts stand in effects, and so may stand in signatures.
const NAMES: [&str; 4] = ["entity", "entity_prefix", "key", "resource"];
/// A longer text is hashed even so.
const SHOWN_BYTES_MAX: usize = 64;

/// What waits of one tenant.
#[derive(Default)]
struct Waiting {
    by_passport: BTreeMap<String, PassportTraces>,
    samples: Option<Samples>,
}

/// Gathers traces and samples.
pub struct Tracer {
    waiting: Mutex<BTreeMap<String, Waiting>>,
    /// How many traces wait in all.
    count: AtomicU64,
    outbox: Outbox<AddMeasures>,
    /// Flags as they were last read.
    is_on: AtomicBool,
    control_millionths: AtomicU64,
    key: [u8; 32],
    /// Draws arms, each recall's by its number; no caller knows it, and each gateway has its own at each start.
    arms: [u8; 32],
    recalls: AtomicU64,
}

/// A call that has begun.
pub struct Begun {
    caller: Arc<Principal>,
    trace: Trace,
    at: Instant,
    pub arm: Arm,
}

impl Tracer {
    pub fn new(session_key: &[u8; 32]) -> Self {
        Self {
            waiting: Mutex::default(),
            count: AtomicU64::new(0),
            outbox: Outbox::default(),
            // As the flags come, until they are read.
            is_on: AtomicBool::new(flag::TOOL_TRACES.default == "on" || flag::ACTIVITY_LOG.default == "on"),
            control_millionths: AtomicU64::new(0),
            key: blake3::derive_key("quorate 2026 signatures of traces", session_key),
            arms: blake3::derive_key("quorate 2026 arms of the hold-out", &[&session_key[..], &now_us().to_be_bytes()[..]].concat()),
            recalls: AtomicU64::new(0),
        }
    }

    /// Reads the flags that decide what is gathered. When the cluster can't tell, they stay as they were.
    pub async fn read_flags(&self, cluster: &Cluster) {
        let age = Consistency::Stale { max_age_ms: STANDING_STALE_MS_MAX };
        let asked = cluster.read_as(&identity::system(), GetFlags {}, age, Instant::now() + FLAGS_ASKED_FOR).await;
        let Ok((known, _)) = asked else { return };
        let value = |flag: Definition| known.flags.iter().find(|set| set.name == flag.name).map_or(flag.default, |set| set.value.as_str());
        self.is_on.store(value(flag::TOOL_TRACES) == "on" || value(flag::ACTIVITY_LOG) == "on", Relaxed);
        self.control_millionths.store(flag::parse_share(value(flag::OUTPUT_HOLDOUT)).unwrap_or(0), Relaxed);
    }

    /// Notes a call before its arguments are gone. Nothing is kept of callers without a token.
    pub fn begin(&self, entry: &Entry, inner: Option<&Entry>, arguments: &Value, ctx: &CallContext) -> Option<Begun> {
        let control = self.control_millionths.load(Relaxed);
        let caller = ctx.caller.clone()?;
        // What `call_tool` runs is what was called.
        let (entry, arguments) = match inner {
            Some(inner) => (inner, &arguments["arguments"]),
            None => (entry, arguments),
        };
        let is_held_out = control > 0 && HELD_OUT.contains(&entry.name);
        if !self.is_on.load(Relaxed) && !is_held_out {
            return None;
        }
        let empty = Map::new();
        let arguments = arguments.as_object().unwrap_or(&empty);
        let signature = signature(&self.key, entry.name, arguments);
        let arm = match is_held_out {
            true => arm(&self.arms, self.recalls.fetch_add(1, Relaxed), control),
            false => Arm::None,
        };
        // Who looks at a turn or a session adds nothing to it.
        let is_about = entry.group != group::MEASURES;
        let tag = |name: &str, beside: &Option<String>| {
            // A tag that is no name is none: it must not keep the others from being handed over.
            text(arguments, name)
                .map(String::from)
                .or_else(|| beside.clone())
                .filter(|tag| is_about && !tag.trim().is_empty() && is_name(tag))
        };
        let trace = Trace {
            tool: entry.name.into(),
            turn_id: tag("turn_id", &ctx.tags.turn_id),
            session_id: tag("session_id", &ctx.tags.session_id),
            effects: effects(entry.name, arguments),
            reads: !entry.is_mutating(),
            signature,
            ..Trace::default()
        };
        Some(Begun { caller, trace, at: Instant::now(), arm })
    }

    /// Keeps what became of a call.
    pub fn end<T>(&self, begun: Begun, result: &Result<T, CallError>, tokens_in: u64, tokens_out: u64) {
        let Begun { caller, mut trace, at, arm } = begun;
        trace.ts_us = now_us();
        trace.duration_ms = at.elapsed().as_millis() as u64;
        (trace.tokens_in, trace.tokens_out) = (tokens_in, tokens_out);
        let error = result.as_ref().err();
        trace.outcome = error.map_or(Outcome::Ok, CallError::outcome).word().into();
        trace.code = error.map(|error| match error.code() {
            Value::String(word) => word,
            number => number.to_string(),
        });
        let mut waiting = self.waiting.lock().expect("no panic under the lock");
        let tenant = waiting.entry(caller.tenant.clone()).or_default();
        if arm != Arm::None && error.is_none() {
            let fraction_millionths = self.control_millionths.load(Relaxed);
            let samples = tenant.samples.get_or_insert(Samples { fraction_millionths, ..Samples::default() });
            if samples.fraction_millionths != fraction_millionths {
                *samples = Samples { fraction_millionths, ..Samples::default() };
            }
            match arm {
                Arm::Control => samples.control.count(tokens_out),
                Arm::Treatment | Arm::None => samples.treatment.count(tokens_out),
            }
        }
        if self.is_on.load(Relaxed) {
            let of = tenant.by_passport.entry(caller.passport.clone()).or_default();
            match self.count.load(Relaxed) < TRACES_WAITING_MAX {
                true => {
                    of.traces.push(trace);
                    self.count.fetch_add(1, Relaxed);
                }
                false => of.not_kept += 1,
            }
        }
    }

    /// Hands over all that waits, and all that is unsure.
    pub async fn hand_over_all(&self, cluster: &Cluster, deadline: Instant) {
        let mut tenants: Vec<String> = self.waiting.lock().expect("no panic under the lock").keys().cloned().collect();
        tenants.extend(self.outbox.tenants().await);
        for tenant in tenants {
            if let Err(error) = self.hand_over(cluster, &tenant, deadline).await {
                tracing::debug!(%error, "traces are handed over later");
                return;
            }
        }
    }

    /// Hands over what waits of one tenant.
    pub async fn hand_over(&self, cluster: &Cluster, tenant: &str, deadline: Instant) -> Result<(), CallError> {
        self.outbox.hand_over(cluster, tenant, deadline, || self.take(tenant), |_, _| {}).await
    }

    /// Takes as much as one command holds.
    fn take(&self, tenant: &str) -> Option<AddMeasures> {
        let mut waiting = self.waiting.lock().expect("no panic under the lock");
        let of_tenant = waiting.get_mut(tenant)?;
        let mut taken = AddMeasures { tenant: tenant.into(), traces: Vec::new(), samples: of_tenant.samples.take() };
        let mut room = TRACES_PER_ADDITION_MAX;
        while room > 0
            && taken.traces.len() < TRACED_PASSPORTS_MAX
            && let Some(mut first) = of_tenant.by_passport.first_entry()
        {
            let of = first.get_mut();
            let rest = of.traces.split_off(room.min(of.traces.len()));
            room -= of.traces.len();
            let part = PassportTraces {
                passport: first.key().clone(),
                traces: std::mem::replace(&mut first.get_mut().traces, rest),
                not_kept: std::mem::take(&mut first.get_mut().not_kept),
            };
            if first.get().traces.is_empty() {
                first.remove();
            }
            taken.traces.push(part);
        }
        if of_tenant.by_passport.is_empty() && of_tenant.samples.is_none() {
            waiting.remove(tenant);
        }
        self.count.fetch_sub((TRACES_PER_ADDITION_MAX - room) as u64, Relaxed);
        Some(taken).filter(|taken| !taken.traces.is_empty() || taken.samples.is_some())
    }
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control)
}

fn text<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}

/// What a call is expected to do: the kind by the tool, on what by the arguments.
fn effects(tool: &str, arguments: &Map<String, Value>) -> Vec<Effect> {
    let kind = match tool {
        "store_fact" | "entity_upsert" | "edge_upsert" | "save_session" | "archive_session" | "unarchive_session" => "fact_write",
        "memory_forget" | "memory_forget_dry_run" => "forget",
        "memory_acknowledge_use" | "create_handoff" | "accept_handoff" | "record_decision" => "receipt_emit",
        "query" | "query_scan" | "query_expand" | "query_facts" | "fact_history" => "fact_read",
        tool if tool.starts_with("delete_") || tool.ends_with("_delete") => "forget",
        _ => "tool_dispatch",
    };
    let named =
        |names: &[&str]| names.iter().find_map(|name| text(arguments, name)).filter(|name| is_name(name)).unwrap_or_default().to_string();
    let entity = named(&["entity", "resource", "id", "fact_id", "session_id", "work_id"]);
    match entity.is_empty() {
        true => Vec::new(),
        false => vec![Effect { kind: kind.into(), entity, key: named(&["key", "kind"]) }],
    }
}

/// Tool and arguments, in the order of their names and without pages.
fn signature(key: &[u8; 32], tool: &str, arguments: &Map<String, Value>) -> String {
    let mut parts: Vec<String> = arguments
        .iter()
        .filter(|(name, _)| !PAGING.contains(&name.as_str()) && !ASIDE.contains(&name.as_str()))
        .map(|(name, value)| match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => format!("{name}={value}"),
            Value::String(text) if NAMES.contains(&name.as_str()) && text.len() <= SHOWN_BYTES_MAX && is_name(text) => {
                format!("{name}={text}")
            }
            _ => format!("{name}=#{}", short_hash(key, &value.to_string())),
        })
        .collect();
    parts.sort_unstable();
    let whole = format!("{tool}({})", parts.join(","));
    match whole.len() <= TRACE_SIGNATURE_BYTES_MAX && is_name(&whole) {
        true => whole,
        false => format!("{tool}(#{})", short_hash(key, &whole)),
    }
}

fn short_hash(key: &[u8; 32], text: &str) -> String {
    blake3::keyed_hash(key, text.as_bytes()).to_hex()[..12].to_string()
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// The arm of a gateway's n-th recall. Nothing that stands in a call has a say in it, and nobody outside knows it before the answer: or
/// whoever words a question another way could choose how it is answered, and each arm would measure other work.
fn arm(key: &[u8; 32], n: u64, control_millionths: u64) -> Arm {
    let hash = blake3::keyed_hash(key, &n.to_be_bytes());
    let hash = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    // A share of the 64-bit numbers, in millionths.
    match (u128::from(hash) * 1_000_000) >> 64 < u128::from(control_millionths) {
        true => Arm::Control,
        false => Arm::Treatment,
    }
}

#[cfg(test)]
mod tests {
    use quorate_domain::Tier;
    use serde_json::json;

    use super::*;

    fn caller(passport: &str) -> Arc<Principal> {
        Arc::new(Principal { tenant: "acme".into(), passport: passport.into(), tier: Tier::Verified, scopes: Default::default() })
    }

    fn signed(tool: &str, arguments: Value) -> String {
        signature(&[7; 32], tool, arguments.as_object().unwrap())
    }

    fn begun(passport: &str, arm: Arm) -> Begun {
        Begun { caller: caller(passport), trace: Trace { tool: "t".into(), ..Trace::default() }, at: Instant::now(), arm }
    }

    #[test]
    fn a_signature_is_the_same_for_all_pages_and_shows_no_text_but_names() {
        let page = |cursor: &str| {
            signed("query_facts", json!({ "query": "the password is 1234", "top_k": 5, "cursor": cursor, "entity": "svc:api" }))
        };
        assert_eq!(page("a"), page("b"));
        let told = page("a");
        assert!(told.starts_with("query_facts(entity=svc:api,query=#") && told.ends_with(",top_k=5)") && !told.contains("1234"), "{told}");
        assert_ne!(signed("query_facts", json!({ "query": "a" })), signed("query_facts", json!({ "query": "b" })));
        assert_eq!(signed("t", json!({ "b": 1, "a": 2 })), signed("t", json!({ "a": 2, "b": 1 })));
        assert_ne!(short_hash(&[1; 32], "a"), short_hash(&[2; 32], "a"));
        let many: Map<String, Value> = (0..100).map(|n| (format!("argument-{n}"), json!(n))).collect();
        assert!(signed("t", Value::Object(many)).len() < 40);
        assert!(!signed("t", json!({ "a\0b": 1 })).contains('\0'));
    }

    #[test]
    fn arms_are_told_by_a_hash_and_share_calls_as_the_fraction_says() {
        let count = |key: u8, millionths: u64| (0..20_000).filter(|n| arm(&[key; 32], *n, millionths) == Arm::Control).count();
        assert_eq!((count(7, 0), count(7, 1_000_000)), (0, 20_000));
        // 5 % of 20,000, within five standard deviations of 31; who has another key can't tell which.
        for key in [7, 8] {
            assert!((845..=1_155).contains(&count(key, 50_000)), "{}", count(key, 50_000));
        }
        let arms = |key: u8| (0..64).map(|n| arm(&[key; 32], n, 500_000)).collect::<Vec<Arm>>();
        assert_eq!(arms(7), arms(7));
        assert_ne!(arms(7), arms(8));
    }

    #[test]
    fn effects_name_what_a_call_is_about() {
        let told = |tool: &str, arguments: Value| effects(tool, arguments.as_object().unwrap());
        let effect = |kind: &str, entity: &str, key: &str| vec![Effect { kind: kind.into(), entity: entity.into(), key: key.into() }];
        assert_eq!(
            told("store_fact", json!({ "entity": "svc:api", "key": "owner", "value": "x" })),
            effect("fact_write", "svc:api", "owner")
        );
        assert_eq!(told("delete_fact", json!({ "fact_id": "f_1" })), effect("forget", "f_1", ""));
        assert_eq!(told("punch_in", json!({ "resource": "file://a" })), effect("tool_dispatch", "file://a", ""));
        assert_eq!(told("list_entities", json!({})), []);
        assert_eq!(told("store_fact", json!({ "entity": "a\0b", "key": 7 })), []);
    }

    #[test]
    fn what_waits_leaves_in_commands_of_a_bounded_size_and_each_call_once() {
        let tracer = Tracer::new(&[7; 32]);
        tracer.control_millionths.store(500_000, Relaxed);
        let ok: Result<(), CallError> = Ok(());
        for n in 0..TRACED_PASSPORTS_MAX + 10 {
            tracer.end(begun(&format!("p{n}"), Arm::None), &ok, 1, 2);
        }
        for _ in 0..2 * TRACES_PER_ADDITION_MAX {
            tracer.end(begun("busy", Arm::Treatment), &ok, 1, 3);
        }
        tracer.end(begun("busy", Arm::Control), &Err::<(), _>(CallError::Overloaded), 1, 9);
        let taken: Vec<AddMeasures> = std::iter::from_fn(|| tracer.take("acme")).collect();
        let sizes: Vec<usize> = taken.iter().map(|one| one.traces.iter().map(|of| of.traces.len()).sum()).collect();
        assert!(sizes.iter().all(|size| *size <= TRACES_PER_ADDITION_MAX), "{sizes:?}");
        assert!(taken.iter().all(|one| one.traces.len() <= TRACED_PASSPORTS_MAX));
        assert_eq!(sizes.iter().sum::<usize>(), TRACED_PASSPORTS_MAX + 10 + 2 * TRACES_PER_ADDITION_MAX + 1);
        assert_eq!(taken[0].samples.unwrap().treatment.n, 2 * TRACES_PER_ADDITION_MAX as u64);
        // One that failed says nothing of the size of answers.
        assert_eq!(taken[0].samples.unwrap().control.n, 0);
        assert!(taken[1..].iter().all(|one| one.samples.is_none()));
        let last = taken.last().unwrap().traces.iter().flat_map(|of| &of.traces).find(|trace| trace.code.is_some());
        assert_eq!(
            last.map(|trace| (trace.outcome.as_str(), trace.code.as_deref())),
            None.or(last.map(|_| ("unavailable", Some("OVERLOADED"))))
        );
        assert_eq!(tracer.count.load(Relaxed), 0);
    }

    #[test]
    fn calls_beyond_the_room_are_counted() {
        let tracer = Tracer::new(&[7; 32]);
        let ok: Result<(), CallError> = Ok(());
        for _ in 0..TRACES_WAITING_MAX + 3 {
            tracer.end(begun("mara", Arm::None), &ok, 1, 2);
        }
        let taken: Vec<AddMeasures> = std::iter::from_fn(|| tracer.take("acme")).collect();
        assert_eq!(taken.iter().flat_map(|one| &one.traces).map(|of| of.not_kept).sum::<u64>(), 3);
        assert_eq!(taken.iter().flat_map(|one| &one.traces).map(|of| of.traces.len() as u64).sum::<u64>(), TRACES_WAITING_MAX);
    }
}
