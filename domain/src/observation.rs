//! Observations: what happened in a session, step by step, as whoever watched it told it. Evidence: only ever added.
//!
//! A session's observations form a chain. Each is kept as the bytes that are hashed: compact JSON with the fields in the order
//! of [`Body`], absent ones left out, and the payload's keys in the order in which they came. Invariants:
//! * The body is made in apply, kept as the bytes it was made of, and never serialised again. Its hash is their BLAKE3.
//! * `seq` counts from 0 without a gap, and `prev_hash` is the hash of the one before, so none can be changed, taken out or
//!   put in without a fault at its neighbour.
//! * `ts` never falls along a chain, since it is the entry's wall clock: an instant is found by halving.
//!
//! Decisions: a session's name is the tenant's here, so that several agents can tell of one session and anybody in the tenant
//! can check it; `principal` says who told, and is the caller. The signature, over the hash, is added outside of apply by any
//! node with the key.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cursor::Cursors;
use crate::event;
use crate::flag::{self, refuse_off};
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{OBSERVATIONS_PER_CALL_MAX, REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES, STATE_BYTES_MAX, STATE_DEPTH_MAX};
use crate::query::rows;
use crate::receipt::Hash;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::session::is_deeper;
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// What is hashed of an observation, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Body {
    pub observation_id: String,
    pub session_id: String,
    /// RFC 3339: when the log took it.
    pub ts: String,
    /// When it happened, as its sender says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ts: Option<String>,
    pub provider: String,
    pub principal: String,
    pub kind: String,
    pub payload: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Hash of the one before, in hex; absent for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev_hash: Option<String>,
}

impl Body {
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data with text keys is always JSON")
    }
}

/// BLAKE3 of a body.
pub fn body_hash(body: &[u8]) -> Hash {
    *blake3::hash(body).as_bytes()
}

/// An observation's place in its chain. Its body stands beside it under the same number.
#[derive(Serialize, Deserialize)]
struct Link {
    tenant: String,
    session_id: String,
    seq: u64,
    observation_id: String,
    provider: String,
    body_hash: Hash,
    ts: UnixMs,
}

impl Record for Link {
    const KIND: Kind = Kind::ObservationLink;
    const TABLE: Table = Table::Receipts;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.session_id).number(self.seq)
    }
}

/// The end of a session's chain.
#[derive(Serialize, Deserialize)]
struct Head {
    tenant: String,
    session_id: String,
    next_seq: u64,
    body_hash: Hash,
}

impl Record for Head {
    const KIND: Kind = Kind::ObservationHead;
    const TABLE: Table = Table::Receipts;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.session_id)
    }
}

fn body_key(tenant: &str, session_id: &str, seq: u64) -> Vec<u8> {
    kind_prefix(tenant, Kind::Observation).text(session_id).number(seq).into_bytes()
}

fn by_id(tenant: &str, session_id: &str, observation_id: &str) -> Key {
    kind_prefix(tenant, Kind::ObservationById).text(session_id).text(observation_id)
}

fn by_provider(tenant: &str, session_id: &str, provider: &str) -> Key {
    kind_prefix(tenant, Kind::ObservationByProvider).text(session_id).text(provider)
}

// ------------------------------------------------------------------ append

/// One observation as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewObservation {
    /// Which client it was seen in, such as `claude-code`.
    pub provider: String,
    /// What happened, such as `tool_use`.
    pub kind: String,
    pub payload: serde_json::Value,
    pub client_ts: Option<String>,
}

/// Adds observations to a session's chain, in their order, all or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppendObservations {
    pub session_id: String,
    pub observations: Vec<NewObservation>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservationsAppended {
    pub session_id: String,
    pub observation_ids: Vec<String>,
    /// The number of the first of them; the others follow.
    pub first_seq: u64,
}

impl AppendObservations {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ObservationsAppended> {
        if let Some(refusal) = refuse_off(tx, flag::OBSERVE, "observing")? {
            return Ok(Err(refusal));
        }
        if let Err(refusal) = self.check() {
            return Ok(Err(refusal));
        }
        let (tenant, session_id) = (at.caller.tenant.clone(), self.session_id);
        let head: Option<Head> = tx.get(&tenant, &Key::new().text(&session_id))?;
        let first_seq = head.as_ref().map_or(0, |head| head.next_seq);
        let (mut before, mut observation_ids) = (head.map(|head| head.body_hash), Vec::new());
        for (n, told) in (0..).zip(self.observations) {
            let (observation_id, seq) = (at.new_id("obs", n), first_seq + n);
            let body = Body {
                observation_id: observation_id.clone(),
                session_id: session_id.clone(),
                ts: at.wall.to_rfc3339(),
                client_ts: told.client_ts,
                provider: told.provider,
                principal: at.caller.passport.clone(),
                kind: told.kind,
                payload: told.payload,
                seq: Some(seq),
                prev_hash: before.map(hex::encode),
            };
            let bytes = body.bytes();
            let link = Link {
                tenant: tenant.clone(),
                session_id: session_id.clone(),
                seq,
                observation_id: observation_id.clone(),
                provider: body.provider,
                body_hash: body_hash(&bytes),
                ts: at.wall,
            };
            tx.put_bytes(Table::Receipts, body_key(&tenant, &session_id, seq), bytes);
            tx.put_index(by_id(&tenant, &session_id, &observation_id), &seq.to_be_bytes());
            tx.put_index(by_provider(&tenant, &session_id, &link.provider).number(seq), &[]);
            tx.put(&link);
            before = Some(link.body_hash);
            observation_ids.push(observation_id);
        }
        let body_hash = before.expect("the check lets no empty list through");
        tx.put(&Head { tenant, session_id: session_id.clone(), next_seq: first_seq + observation_ids.len() as u64, body_hash });
        let about = json!({ "count": observation_ids.len(), "first_seq": first_seq, "actor": at.caller.passport });
        event::emit(tx, at, "observations.appended", &session_id, about)?;
        Ok(Ok(ObservationsAppended { session_id, observation_ids, first_seq }))
    }

    fn check(&self) -> Result<(), Refusal> {
        check_name("session_id", &self.session_id).map_or(Ok(()), Err)?;
        if !(1..=OBSERVATIONS_PER_CALL_MAX).contains(&self.observations.len()) {
            let problem = format!("must have 1 to {OBSERVATIONS_PER_CALL_MAX} elements, not {}", self.observations.len());
            return Err(Refusal::invalid("observations", problem));
        }
        self.observations.iter().try_for_each(NewObservation::check)
    }
}

impl NewObservation {
    fn check(&self) -> Result<(), Refusal> {
        for (field, name) in [("provider", &self.provider), ("kind", &self.kind)] {
            check_name(field, name).map_or(Ok(()), Err)?;
        }
        if self.client_ts.as_ref().is_some_and(|ts| ts.len() > 64 || UnixMs::from_rfc3339(ts).is_none()) {
            return Err(Refusal::invalid("client_ts", "is no RFC 3339 instant such as `2026-11-30T12:00:00Z`"));
        }
        if is_deeper(&self.payload, STATE_DEPTH_MAX) {
            return Err(Refusal::invalid("payload", format!("is nested deeper than {STATE_DEPTH_MAX} levels")));
        }
        let text = self.payload.to_string();
        if text.len() > STATE_BYTES_MAX {
            let (size, limit) = (text.len() as u64, STATE_BYTES_MAX as u64);
            return Err(Refusal::TooLong { field: "payload".into(), size, limit, unit: "bytes of JSON".into() });
        }
        if holds_nul(&self.payload) {
            return Err(Refusal::invalid("payload", "must not hold a NUL"));
        }
        Ok(())
    }
}

fn holds_nul(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.contains('\0'),
        serde_json::Value::Array(values) => values.iter().any(holds_nul),
        serde_json::Value::Object(fields) => fields.iter().any(|(name, value)| name.contains('\0') || holds_nul(value)),
        _ => false,
    }
}

// ------------------------------------------------------------------ read

/// One observation as it is kept, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservationView {
    pub observation_id: String,
    pub session_id: String,
    pub seq: u64,
    /// The body as it was hashed: JSON, in UTF-8.
    pub body: String,
    /// Its hash as it was stored, in hex.
    pub body_hash: String,
    /// What is wrong with the stored bytes or the chain around them; empty when all is well.
    pub faults: Vec<String>,
    /// Key id and signature over the 32 bytes of the hash, in hex, filled in by the serving node.
    pub signature: Option<(String, String)>,
}

impl Link {
    fn seen(self, view: &impl Read) -> Result<ObservationView, StorageError> {
        let body = view.get_bytes(Table::Receipts, &body_key(&self.tenant, &self.session_id, self.seq))?;
        let mut faults = Vec::new();
        match &body {
            None => faults.push("the body is missing".to_string()),
            Some(body) if body_hash(body) != self.body_hash => faults.push("the body does not have its hash".into()),
            Some(_) => {}
        }
        Ok(ObservationView {
            observation_id: self.observation_id,
            session_id: self.session_id,
            seq: self.seq,
            body: String::from_utf8_lossy(&body.unwrap_or_default()).into_owned(),
            body_hash: hex::encode(self.body_hash),
            faults,
            signature: None,
        })
    }
}

fn link(view: &impl Read, tenant: &str, session_id: &str, seq: u64) -> Result<Option<Link>, StorageError> {
    view.get(tenant, &Key::new().text(session_id).number(seq))
}

/// One observation, checked against its neighbours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetObservation {
    pub session_id: String,
    pub observation_id: String,
}

impl GetObservation {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ObservationView> {
        if let Some(refusal) = refuse_off(view, flag::OBSERVE, "observing")? {
            return Ok(Err(refusal));
        }
        let names = [("session_id", &self.session_id), ("observation_id", &self.observation_id)];
        if let Some(refusal) = names.into_iter().find_map(|(field, name)| check_name(field, name)) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let row = view.get_bytes(Table::Index, by_id(tenant, &self.session_id, &self.observation_id).as_bytes())?;
        let Some(row) = row else { return Ok(Err(Refusal::not_found("observation", self.observation_id))) };
        let seq = u64::from_be_bytes(row.try_into().map_err(|_| StorageError::corrupt("an observation's id row is no number"))?);
        let found = link(view, tenant, &self.session_id, seq)?;
        let found = found.ok_or_else(|| StorageError::corrupt(format!("observation `{}` has no link", self.observation_id)))?;
        let own_hash = hex::encode(found.body_hash);
        let mut seen = found.seen(view)?;
        let told: Option<Body> = serde_json::from_str(&seen.body).ok();
        let before = match seq.checked_sub(1) {
            None => Some(None),
            Some(before) => link(view, tenant, &self.session_id, before)?.map(|before| Some(hex::encode(before.body_hash))),
        };
        match (told, before) {
            (_, None) => seen.faults.push(format!("observation {} before it is missing", seq - 1)),
            (Some(told), Some(before)) if told.prev_hash != before => {
                seen.faults.push("it does not continue the observation before it".into());
            }
            _ => {}
        }
        let head: Option<Head> = view.get(tenant, &Key::new().text(&self.session_id))?;
        let head = head.ok_or_else(|| StorageError::corrupt(format!("session `{}` has no end of its chain", self.session_id)))?;
        let after = match seq + 1 < head.next_seq {
            true => match view.get_bytes(Table::Receipts, &body_key(tenant, &self.session_id, seq + 1))? {
                Some(after) => serde_json::from_slice(&after).ok().and_then(|after: Body| after.prev_hash),
                None => None,
            },
            false => Some(hex::encode(head.body_hash)),
        };
        if after.as_ref() != Some(&own_hash) {
            seen.faults.push("what comes after does not continue it".into());
        }
        Ok(Ok(seen))
    }
}

/// A session's observations in their order, from an instant on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListObservations {
    pub session_id: String,
    pub since: Option<UnixMs>,
    pub provider: Option<String>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observations {
    pub observations: Vec<ObservationView>,
    /// Why they end although there may be more: `limit` or `reply_bytes`.
    pub truncated: Option<String>,
    pub next_cursor: Option<String>,
}

/// What a reply adds to an observation's body: its receipt.
const RECEIPT_JSON_BYTES: usize = 384;

impl ListObservations {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Observations> {
        if let Some(refusal) = refuse_off(view, flag::OBSERVE, "observing")? {
            return Ok(Err(refusal));
        }
        let provider = self.provider.as_deref();
        let refused = check_name("session_id", &self.session_id).or_else(|| provider.and_then(|name| check_name("provider", name)));
        if let Some(refusal) = refused {
            return Ok(Err(refusal));
        }
        let limit = match rows(self.limit) {
            Ok(limit) => limit,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("observations", &at.caller, &(&self.session_id, self.since, provider));
        let passed = match cursors.open_from(self.cursor.as_deref()) {
            Ok(passed) => passed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let from = match passed {
            Some(passed) => match passed.try_into().map(u64::from_be_bytes) {
                Ok(seq) => seq,
                Err(_) => return Ok(Err(Refusal::invalid("cursor", "is damaged"))),
            },
            None => first_since(view, tenant, &self.session_id, self.since)?,
        };
        let mut page = Observations { observations: Vec::new(), truncated: None, next_cursor: None };
        // The first comes in any case: a payload is bounded so that one observation always fits the largest reply.
        let mut room = REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES;
        for seq in numbers(view, tenant, &self.session_id, provider, from, limit + 1)? {
            let end = |page: &mut Observations, why: &str| {
                page.truncated = Some(why.into());
                page.next_cursor = Some(cursors.seal(&seq.to_be_bytes()));
            };
            if page.observations.len() == limit {
                end(&mut page, "limit");
                break;
            }
            let found = link(view, tenant, &self.session_id, seq)?;
            let found = found.ok_or_else(|| StorageError::corrupt(format!("observation {seq} of `{}` has no link", self.session_id)))?;
            let seen = found.seen(view)?;
            let bytes = seen.body.len() + RECEIPT_JSON_BYTES;
            if bytes > room && !page.observations.is_empty() {
                end(&mut page, "reply_bytes");
                break;
            }
            room = room.saturating_sub(bytes);
            page.observations.push(seen);
        }
        Ok(Ok(page))
    }
}

/// The number of the first observation that is not older than an instant.
fn first_since(view: &impl Read, tenant: &str, session_id: &str, since: Option<UnixMs>) -> Result<u64, StorageError> {
    let Some(since) = since else { return Ok(0) };
    let head: Option<Head> = view.get(tenant, &Key::new().text(session_id))?;
    let (mut low, mut high) = (0, head.map_or(0, |head| head.next_seq));
    while low < high {
        let middle = low + (high - low) / 2;
        let found = link(view, tenant, session_id, middle)?;
        let found = found.ok_or_else(|| StorageError::corrupt(format!("observation {middle} of `{session_id}` has no link")))?;
        match found.ts < since {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Ok(low)
}

/// The numbers of at most `count` observations from one on, of one provider or of all.
fn numbers(
    view: &impl Read,
    tenant: &str,
    session_id: &str,
    provider: Option<&str>,
    from: u64,
    count: usize,
) -> Result<Vec<u64>, StorageError> {
    let (table, prefix) = match provider {
        Some(provider) => (Table::Index, by_provider(tenant, session_id, provider)),
        None => (Table::Receipts, kind_prefix(tenant, Kind::ObservationLink).text(session_id)),
    };
    let start = prefix.clone().number(from).into_bytes();
    let rows = view.scan_bytes(table, &start, &prefix.after_prefix(), Direction::Ascending, count)?;
    let number = |key: &[u8]| key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    rows.iter().map(|(key, _)| number(key).ok_or_else(|| StorageError::corrupt("an observation's key ends in no number"))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transcript::{WALL, World, person};

    fn told(provider: &str, payload: serde_json::Value) -> NewObservation {
        NewObservation { provider: provider.into(), kind: "tool_use".into(), payload, client_ts: None }
    }

    fn append(world: &mut World, time: &str, who: &str, observations: Vec<NewObservation>) -> ObservationsAppended {
        world.call(time, person(who), None, AppendObservations { session_id: "s".into(), observations }).unwrap()
    }

    fn list(world: &mut World, who: &str, since: Option<UnixMs>, provider: Option<&str>, limit: u64) -> Vec<u64> {
        let (mut cursor, mut seqs) = (None, Vec::new());
        loop {
            let query =
                ListObservations { session_id: "s".into(), since, provider: provider.map(Into::into), limit, cursor: cursor.take() };
            let page = world.ask("1h", person(who), query).unwrap();
            seqs.extend(page.observations.iter().map(|seen| seen.seq));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return seqs;
            }
        }
    }

    #[test]
    fn the_hash_is_the_published_one() {
        let body = Body {
            observation_id: "obs-1".into(),
            session_id: "sess-a".into(),
            ts: "2026-05-13T10:00:00Z".into(),
            client_ts: None,
            provider: "claude-code".into(),
            principal: "fpr-x".into(),
            kind: "tool_use".into(),
            payload: json!({"tool": "Read"}),
            seq: Some(0),
            prev_hash: None,
        };
        assert_eq!(hex::encode(body_hash(&body.bytes())), "13c40869de39a4a8702082024ef6bf01ab3af149edd4966302f69716bbe4f287");
    }

    #[test]
    fn a_payload_keeps_the_order_of_its_keys_and_each_observation_names_the_hash_before() {
        let mut world = World::new();
        let done = append(&mut world, "1s", "mara", vec![told("codex-cli", json!({"z": 1.5, "a": null})), told("openai", json!([]))]);
        let seen = |world: &mut World, n: usize| {
            let query = GetObservation { session_id: "s".into(), observation_id: done.observation_ids[n].clone() };
            world.ask("2s", person("jon"), query).unwrap()
        };
        let (first, second) = (seen(&mut world, 0), seen(&mut world, 1));
        assert!(first.body.contains(r#""principal":"mara","kind":"tool_use","payload":{"z":1.5,"a":null},"seq":0}"#), "{}", first.body);
        assert!(second.body.ends_with(&format!(r#""seq":1,"prev_hash":"{}"}}"#, first.body_hash)), "{}", second.body);
        assert_eq!((first.faults, second.faults), (vec![], vec![]));
    }

    #[test]
    fn what_is_changed_is_a_fault_of_its_own_or_of_its_neighbours() {
        let mut world = World::new();
        let ids = append(&mut world, "1s", "mara", (0..3).map(|n| told("openai", json!(n))).collect()).observation_ids;
        let mut other = Body { payload: json!("forged"), ..serde_json::from_str(&body(&world, 1)).unwrap() };
        other.kind = "x".into();
        world.state.put_bytes(Table::Receipts, body_key("acme", "s", 1), other.bytes());
        let faults = |world: &mut World| -> Vec<Vec<String>> {
            let ask = |id: &String| GetObservation { session_id: "s".into(), observation_id: id.clone() };
            ids.iter().map(|id| world.ask("2s", person("mara"), ask(id)).unwrap().faults).collect()
        };
        assert_eq!(faults(&mut world), [vec![], vec!["the body does not have its hash".to_string()], vec![]]);
        let link = Link { body_hash: body_hash(&other.bytes()), ..link(&world.state, "acme", "s", 1).unwrap().unwrap() };
        world.state.put(&link);
        let (after, before) = ("what comes after does not continue it", "it does not continue the observation before it");
        assert_eq!(faults(&mut world), [vec![], vec![after.to_string()], vec![before.to_string()]]);
    }

    fn body(world: &World, seq: u64) -> String {
        String::from_utf8(world.state.get_bytes(Table::Receipts, &body_key("acme", "s", seq)).unwrap().unwrap()).unwrap()
    }

    #[test]
    fn an_observation_of_another_tenant_looks_like_one_that_never_was() {
        let mut world = World::new();
        let id = append(&mut world, "1s", "mara", vec![told("openai", json!(1))]).observation_ids.remove(0);
        let get = |id: &str| GetObservation { session_id: "s".into(), observation_id: id.into() };
        assert_eq!(world.ask("2s", person("eve"), get(&id)).unwrap_err(), Refusal::not_found("observation", id));
        assert_eq!(world.ask("2s", person("mara"), get("obs_no")).unwrap_err(), Refusal::not_found("observation", "obs_no"));
        assert_eq!(list(&mut world, "eve", None, None, 9), [0; 0]);
    }

    #[test]
    fn what_can_not_be_kept_is_refused_with_the_field_named() {
        let mut world = World::new();
        let mut refused = |observations| {
            let command = AppendObservations { session_id: "s".into(), observations };
            world.call("1s", person("mara"), None, command).unwrap_err().to_string()
        };
        assert_eq!(refused(vec![]), "`observations` must have 1 to 100 elements, not 0");
        assert_eq!(refused(vec![told("", json!(1))]), "`provider` must not be empty");
        assert_eq!(refused(vec![told("p", json!({"a": ["\0"]}))]), "`payload` must not hold a NUL");
        assert!(refused(vec![told("p", json!("x".repeat(STATE_BYTES_MAX)))]).contains("`payload` is 16386 bytes of JSON long"));
        let late = NewObservation { client_ts: Some("noon".into()), ..told("p", json!(1)) };
        assert_eq!(refused(vec![late]), "`client_ts` is no RFC 3339 instant such as `2026-11-30T12:00:00Z`");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pages_of_any_size_from_any_instant_hold_what_a_walk_would_find(
            steps in prop::collection::vec((0..3_u64, any::<bool>()), 1..24), since in 0..30_u64, limit in 1..9_u64, only in any::<bool>(),
        ) {
            let (mut world, mut now, mut wanted) = (World::new(), 0, Vec::new());
            for (seq, (wait, codex)) in (0..).zip(steps) {
                now += wait;
                let provider = if codex { "codex-cli" } else { "openai" };
                append(&mut world, &format!("{now}s"), "mara", vec![told(provider, json!({"n": seq}))]);
                if now >= since && (!only || codex) {
                    wanted.push(seq);
                }
            }
            let found = list(&mut world, "jon", Some(UnixMs(WALL + since * 1_000)), only.then_some("codex-cli"), limit);
            prop_assert_eq!(found, wanted);
        }
    }
}
