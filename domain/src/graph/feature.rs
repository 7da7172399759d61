//! The features lens: what the team's capabilities tell of coverage and of gaps.
//!
//! Nothing here walks all capabilities to count them. Invariants:
//! * Totals, the counts of each system and the rows of gaps follow every change of a capability in its own entry, and are what
//!   a count over the live capabilities would give.
//! * A system that no live capability is of has no counts.
//! * The search for files reads capabilities one after another, at most [`FEATURE_SCAN_BYTES_MAX`] of them, and says how to go on.
//!
//! A capability is tested when it has a test of any sort, and audited when its audit says `audited`. Its gaps:
//! * no test at all: critical if it is shipped, high otherwise;
//! * else no unit test: medium;
//! * else shipped without an integration test: high;
//! * an audit of `gap`, or none: critical if it is shipped, high otherwise;
//! * no definition of done: high.
//!
//! Decisions: a promise that is fully tested is never the weakest one. An audit replaces what the one before said.

mod reuse;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::reuse::{FindReuse, ReuseCandidate, ReuseFound, terms};
use super::entity::{self, Entity, ROWS_BYTES};
use super::kind::CAPABILITY;
use crate::codec;
use crate::cursor::Cursors;
use crate::identity::{check_name, check_name_start, check_text};
use crate::key::Key;
use crate::limit::{FEATURE_SCAN_BYTES_MAX, LIST_MAX, REPLY_WRAPPER_BYTES, STATE_BYTES_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp};
use crate::tx::{Read, StorageError, Table, Tx};
use crate::work;

/// How much a gap matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Severity {
    // The numbers stand in keys, in the order in which gaps are told.
    Critical = 1,
    High = 2,
    Medium = 3,
    Low = 4,
}

impl Severity {
    pub const ALL: [Severity; 4] = [Severity::Critical, Severity::High, Severity::Medium, Severity::Low];

    pub fn word(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::High => "high",
            Severity::Medium => "medium",
            Severity::Low => "low",
        }
    }
}

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum GapType {
    // The numbers stand in keys.
    NoTests = 1,
    NoUnitTests = 2,
    NoIntegrationTests = 3,
    AuditGap = 4,
    NoDod = 5,
}

impl GapType {
    pub fn word(self) -> &'static str {
        match self {
            GapType::NoTests => "no_tests",
            GapType::NoUnitTests => "no_unit_tests",
            GapType::NoIntegrationTests => "no_integration_tests",
            GapType::AuditGap => "audit_gap",
            GapType::NoDod => "no_dod",
        }
    }
}

/// The words of maturity, in their order.
pub const MATURITIES: [&str; 6] = ["planned", "documented", "building", "built", "shipped", "deferred"];

// ------------------------------------------------------------------ what counts of a capability

/// What the lens sees of one capability. Its payload was held to the schema by the gateway; here, what does not fit counts as
/// absent.
#[derive(Clone, Debug, PartialEq)]
struct Sight {
    system: String,
    maturity: Option<&'static str>,
    tested: bool,
    audited: bool,
    promises: BTreeSet<u8>,
    gaps: Vec<(Severity, GapType)>,
}

impl Sight {
    fn of(payload: &Value) -> Self {
        let has = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
        let word = payload["maturity"].as_str();
        let maturity = MATURITIES.into_iter().find(|known| Some(*known) == word);
        let shipped = maturity == Some("shipped");
        let [unit, integration, e2e] = ["unit", "integration", "e2e"].map(|sort| has(&payload["tests"][sort]));
        let tested = unit || integration || e2e;
        let audit = payload["audit"]["status"].as_str().unwrap_or("gap");
        let worse = if shipped { Severity::Critical } else { Severity::High };
        let mut gaps = Vec::new();
        if !tested {
            gaps.push((worse, GapType::NoTests));
        } else if !unit {
            gaps.push((Severity::Medium, GapType::NoUnitTests));
        } else if !integration && shipped {
            gaps.push((Severity::High, GapType::NoIntegrationTests));
        }
        if audit == "gap" {
            gaps.push((worse, GapType::AuditGap));
        }
        if !has(&payload["dod"]) {
            gaps.push((Severity::High, GapType::NoDod));
        }
        let promises = payload["promise_alignment"].as_array().into_iter().flatten();
        let promises = promises.filter_map(|promise| promise.as_u64().and_then(|promise| u8::try_from(promise).ok()));
        Self {
            system: payload["system"].as_str().unwrap_or_default().into(),
            maturity,
            tested,
            audited: audit == "audited",
            promises: promises.filter(|promise| (1..=10).contains(promise)).collect(),
            gaps,
        }
    }
}

/// How many capabilities serve a promise, and how many of them are tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    pub total: u64,
    pub tested: u64,
}

/// Counts over all live capabilities of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub tenant: String,
    pub total: u64,
    pub tested: u64,
    pub audited: u64,
    /// By its word; one that none has can be absent.
    pub maturity: BTreeMap<String, u64>,
    /// Gaps by the word of their severity; one that none has can be absent.
    pub gaps: BTreeMap<String, u64>,
    /// By the number of the promise; one that none serves can be absent.
    pub promises: BTreeMap<u8, Tested>,
}

impl Record for Totals {
    const KIND: Kind = Kind::FeatureTotals;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

/// Counts over the live capabilities of one system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct System {
    pub tenant: String,
    pub system: String,
    pub total: u64,
    pub tested: u64,
    pub audited: u64,
    pub shipped: u64,
}

impl Record for System {
    const KIND: Kind = Kind::FeatureSystem;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.system)
    }
}

/// A row in the order of gaps: by severity, capability and type.
#[derive(Serialize, Deserialize)]
struct GapRow {
    severity: Severity,
    gap_type: GapType,
    capability_id: String,
}

fn gaps(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::FeatureGap)
}

fn totals(view: &impl Read, tenant: &str) -> Result<Totals, StorageError> {
    let found: Option<Totals> = view.get(tenant, &Key::new())?;
    Ok(found.unwrap_or_else(|| Totals { tenant: tenant.into(), ..Totals::default() }))
}

/// Refuses what can't be counted: a system's name stands in keys and in cursors.
pub(super) fn check(kind: &str, payload: &Value) -> Result<(), Refusal> {
    let system = payload["system"].as_str().filter(|_| kind == CAPABILITY);
    system.and_then(|system| check_name_start("payload.system", system)).map_or(Ok(()), Err)
}

/// Keeps the counts true when an entity changes from one version to the next.
pub(super) fn follow(tx: &mut impl Tx, before: Option<&Entity>, next: &Entity) -> Result<(), StorageError> {
    if next.kind != CAPABILITY {
        return Ok(());
    }
    let sight = |entity: &Entity| (!entity.deleted).then(|| Sight::of(&entity.payload));
    let (before, after) = (before.and_then(sight), sight(next));
    if before == after {
        return Ok(());
    }
    if let Some(before) = &before {
        count(tx, next, before, -1)?;
    }
    if let Some(after) = &after {
        count(tx, next, after, 1)?;
    }
    Ok(())
}

/// Adds one capability to the counts, or takes it away.
fn count(tx: &mut impl Tx, entity: &Entity, sight: &Sight, by: i64) -> Result<(), StorageError> {
    let tenant = &entity.tenant;
    let step = |count: &mut u64, counts: bool| match (counts, count.checked_add_signed(by)) {
        (false, _) => Ok(()),
        (true, Some(next)) => {
            *count = next;
            Ok(())
        }
        (true, None) => Err(StorageError::corrupt("a count of capabilities would fall below none")),
    };
    let mut all = totals(tx, tenant)?;
    step(&mut all.total, true)?;
    step(&mut all.tested, sight.tested)?;
    step(&mut all.audited, sight.audited)?;
    if let Some(maturity) = sight.maturity {
        step(all.maturity.entry(maturity.into()).or_default(), true)?;
    }
    for promise in &sight.promises {
        let promise = all.promises.entry(*promise).or_default();
        step(&mut promise.total, true)?;
        step(&mut promise.tested, sight.tested)?;
    }
    for (severity, gap_type) in sight.gaps.iter().copied() {
        step(all.gaps.entry(severity.word().into()).or_default(), true)?;
        let place = gaps(tenant).byte(severity as u8).text(&entity.id).byte(gap_type as u8);
        match by {
            ..0 => tx.delete_index(place),
            _ => tx.put_index(place, &codec::encode(&GapRow { severity, gap_type, capability_id: entity.id.clone() })),
        }
    }
    tx.put(&all);

    let known: Option<System> = tx.get(tenant, &Key::new().text(&sight.system))?;
    let mut system = known.unwrap_or_else(|| System { tenant: tenant.clone(), system: sight.system.clone(), ..System::default() });
    step(&mut system.total, true)?;
    step(&mut system.tested, sight.tested)?;
    step(&mut system.audited, sight.audited)?;
    step(&mut system.shipped, sight.maturity == Some("shipped"))?;
    match system.total {
        0 => tx.delete(&system),
        _ => tx.put(&system),
    }
    Ok(())
}

// ------------------------------------------------------------------ feature_coverage_report

/// The counts over all capabilities, and over those of each system, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureCoverage {
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    pub totals: Totals,
    /// Those of this page.
    pub systems: Vec<System>,
    pub next_cursor: Option<String>,
}

/// What the totals take of a reply.
const TOTALS_BYTES: usize = 1024;

impl FeatureCoverage {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Coverage> {
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("systems of capabilities", &at.caller, &());
        let from = match cursors.open_from(self.cursor.as_deref()) {
            Ok(from) => from,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let read = |row: &[u8]| {
            let system: System = codec::decode(row).map_err(|error| StorageError::new("system of capabilities", error))?;
            let bytes = serde_json::to_string(&system).map_or(0, |json| json.len());
            Ok(Some((system, bytes)))
        };
        let systems = kind_prefix(tenant, Kind::FeatureSystem);
        let found = work::page(view, Table::Records, &systems, from.as_deref(), LIST_MAX, ROWS_BYTES - TOTALS_BYTES, read)?;
        let next_cursor = found.next.map(|next| cursors.seal(&next));
        Ok(Ok(Coverage { totals: totals(view, tenant)?, systems: found.items, next_cursor }))
    }
}

// ------------------------------------------------------------------ feature_suggest_next

/// The gaps that matter most, and the promise that is tested least.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuggestFeature {
    pub limit: u64,
    pub cursor: Option<String>,
}

/// Something that a capability lacks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    pub capability_id: String,
    pub name: String,
    pub gap_type: GapType,
    pub severity: Severity,
    /// Of a gap in audits: the notes of the last one.
    pub detail: Option<String>,
}

/// A promise, and how many of the capabilities that serve it are tested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    pub number: u8,
    pub capabilities: Tested,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suggestions {
    /// The most severe first, then by capability.
    pub gaps: Vec<Gap>,
    /// On the first page; `None` when every promise that is served is fully tested.
    pub weakest: Option<Promise>,
    pub next_cursor: Option<String>,
}

impl SuggestFeature {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Suggestions> {
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("gaps of capabilities", &at.caller, &());
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let read = |row: &[u8]| {
            let GapRow { severity, gap_type, capability_id } =
                codec::decode(row).map_err(|error| StorageError::new("gap of a capability", error))?;
            let capability = entity::current(view, tenant, CAPABILITY, &capability_id)?
                .ok_or_else(|| StorageError::corrupt(format!("a row points to no capability `{capability_id}`")))?;
            let notes = capability.payload["audit"]["notes"].as_str().filter(|notes| !notes.is_empty());
            let detail = notes.filter(|_| gap_type == GapType::AuditGap).map(str::to_string);
            let name = capability.payload["name"].as_str().unwrap_or(&capability_id).to_string();
            let gap = Gap { capability_id, name, gap_type, severity, detail };
            // What it says beside its fields repeats the name.
            let bytes = serde_json::to_string(&gap).map_or(0, |json| json.len()) + REPLY_WRAPPER_BYTES;
            Ok(Some((gap, bytes)))
        };
        let found = work::page(view, Table::Index, &gaps(tenant), from.as_deref(), limit, ROWS_BYTES, read)?;
        let weakest = match from {
            Some(_) => None,
            None => weakest(&totals(view, tenant)?),
        };
        Ok(Ok(Suggestions { gaps: found.items, weakest, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}

/// The promise of which the smallest part is tested; of several the first.
fn weakest(totals: &Totals) -> Option<Promise> {
    let open = totals.promises.iter().filter(|(_, promise)| promise.tested < promise.total);
    let (number, capabilities) = open.min_by_key(|(_, promise)| promise.tested * 100 / promise.total)?;
    Some(Promise { number: *number, capabilities: *capabilities })
}

// ------------------------------------------------------------------ feature_file_search

/// The capabilities with a file whose path holds a text, by id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FindFeatureFiles {
    pub path: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureFiles {
    pub id: String,
    pub name: String,
    pub system: String,
    /// Those whose path holds the text.
    pub files: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureFilesFound {
    pub capabilities: Vec<FeatureFiles>,
    /// Also there when a page ended because it had read as much as one read may.
    pub next_cursor: Option<String>,
}

impl FindFeatureFiles {
    fn takes(&self, entity: Entity) -> Option<FeatureFiles> {
        let Entity { id, payload, deleted: false, .. } = entity else { return None };
        let files = payload["files"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let files: Vec<String> = files.filter(|file| file.contains(&self.path)).map(str::to_string).collect();
        let text = |field: &str| payload[field].as_str().unwrap_or_default().to_string();
        (!files.is_empty()).then(|| FeatureFiles { id, name: text("name"), system: text("system"), files })
    }

    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<FeatureFilesFound> {
        if let Some(refusal) = check_name("path", &self.path) {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("files of capabilities", &at.caller, &self.path);
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let order = kind_prefix(&at.caller.tenant, Kind::GraphEntity).text(CAPABILITY);
        let mut from = from.map(|from| order.clone().raw(&from).into_bytes());
        let (mut capabilities, mut left, mut examined) = (Vec::new(), ROWS_BYTES, 0);
        let next = 'pages: loop {
            let (rows, next) = view.page_bytes(Table::Records, &order, from.as_deref(), CHUNK)?;
            for (key, value) in rows {
                if capabilities.len() == limit || examined >= FEATURE_SCAN_BYTES_MAX {
                    break 'pages Some(key);
                }
                examined += value.len();
                let entity: Entity = codec::decode(&value).map_err(|error| StorageError::new("entity", error))?;
                if let Some(found) = self.takes(entity) {
                    let bytes = serde_json::to_string(&found).map_or(0, |json| json.len());
                    if bytes > left && !capabilities.is_empty() {
                        break 'pages Some(key);
                    }
                    left = left.saturating_sub(bytes);
                    capabilities.push(found);
                }
            }
            match next {
                Some(next) => from = Some(next),
                None => break None,
            }
        };
        let next_cursor = next.map(|next| cursors.seal(&next[order.as_bytes().len()..]));
        Ok(Ok(FeatureFilesFound { capabilities, next_cursor }))
    }
}

/// Capabilities read at once while the search looks for its files.
const CHUNK: usize = 32;

// ------------------------------------------------------------------ feature_trigger_audit

/// How an audit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditStatus {
    Audited,
    Gap,
    Waived,
    Blocked,
}

/// Notes an audit in a capability, in place of the one before; what else its `audit` holds stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditFeature {
    pub id: String,
    pub status: AuditStatus,
    /// The caller when absent. The version's actor is the caller in any case.
    pub auditor: Option<String>,
    pub notes: Option<String>,
}

impl AuditFeature {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Entity> {
        let Self { id, status, auditor, notes } = self;
        let refusal = check_name("id", &id)
            .or_else(|| auditor.as_deref().and_then(|auditor| check_name("auditor", auditor)))
            .or_else(|| notes.as_deref().and_then(|notes| check_text("notes", notes)));
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        let found = entity::current(tx, &at.caller.tenant, CAPABILITY, &id)?;
        let Some(before) = found.filter(|entity| !entity.deleted) else {
            return Ok(Err(Refusal::not_found(CAPABILITY, id)));
        };
        let mut payload = before.payload.clone();
        let mut audit = match payload["audit"].take() {
            Value::Object(audit) => audit,
            _ => Default::default(),
        };
        audit.insert("status".into(), json!(status));
        audit.insert("last_audited".into(), json!(at.wall.to_rfc3339()));
        audit.insert("auditor".into(), json!(auditor.as_ref().unwrap_or(&at.caller.passport)));
        match notes {
            Some(notes) => audit.insert("notes".into(), json!(notes)),
            None => audit.remove("notes"),
        };
        payload["audit"] = Value::Object(audit);
        if payload.to_string().len() > STATE_BYTES_MAX {
            let problem = format!("would make the capability larger than its {STATE_BYTES_MAX} bytes");
            return Ok(Err(Refusal::invalid("notes", problem)));
        }
        let next =
            Entity { payload, updated_at: at.wall, version: before.version + 1, actor: at.caller.passport.clone(), ..before.clone() };
        entity::follow(tx, at, Some(before), &next, "capability.audited")?;
        Ok(Ok(next))
    }
}
