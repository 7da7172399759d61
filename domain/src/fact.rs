//! Facts: versioned statements about an entity, at most one active version of each (tenant, owner, entity, key).
//!
//! Storing makes the next version of its pair and retires the active one, and any others it names in `supersedes`. Nothing is
//! overwritten: a version is active until another retires it (*superseded*) or somebody deletes it (*deleted*), and its value
//! stays in the history. Invariants:
//! * Versions of a pair are numbered 1, 2, 3 ..., and a number is never used again, deleted or not.
//! * At most one version of a pair is active: the one that its head names.
//! * A write that retires one which is already superseded or deleted is refused before it writes. A retirement by name can be taken
//!   back ([`reinstate`]), and is then as if it had not been.
//! * A version is valid from the instant it was stored up to, and without, the instant it was retired or deleted. So the
//!   validities of a pair are disjoint, and of two versions stored in one millisecond the older was never valid.
//!
//! Decisions:
//! * Deleting the active version leaves the pair without one: its predecessor stays superseded. Deleting what is deleted changes
//!   nothing and answers `deleted: false`. A superseded version can be deleted too; it then shows in the history alone.
//! * A private fact belongs to its author's passport. Stored under `notes`, its entity is shown as `__agent::<passport>::notes`;
//!   the author reaches it by either name, others by none, and to them its id looks like one that never existed. A private
//!   pair and the tenant's pair of the same name have separate versions. A private fact retires private facts only: others
//!   would see a fact go and not what replaced it.
//! * Forgetting goes further than deleting ([`forget`]): the value leaves the version at once, and the cluster after a window in
//!   which it can be brought back. The version itself stays, without it, so that its number is never used again.
//! * The empty text is a value. A value is bounded in bytes and also as JSON, so that one version always fits a reply.
//! * Events name the fact, never its value; those of private facts say nothing but that.

mod adopt;
mod consolidate;
mod consulted;
mod entities;
mod export;
mod forget;
mod freshness;
mod history;
mod horizon;
mod narrow;
mod page;
mod panel;
mod place;
mod rank;
mod recall;
mod reinstate;
mod relevant;
mod searchable;
mod shared;
pub mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub(crate) use self::adopt::{Adopted, Conflict, OnConflict, adopt};
pub use self::consolidate::{ConsolidateFacts, Contradiction, Contradictions, FactsConsolidated, FindContradictions};
pub use self::consulted::ConsultedFact;
pub(crate) use self::consulted::{Consulted, consulted, envelope_bytes};
pub use self::entities::{Entities, ListEntities};
pub use self::export::{
    ExportFacts, ExportRecorded, ExportScope, ExportStarted, ExportedFact, ExportedFacts, GetExport, RecordExport, SignedExport,
    StartExport,
};
pub use self::forget::{
    EndRecovery, ErasureDue, ErasureState, FactsForgotten, FactsRecovered, FindForgettable, ForgetFacts, ForgetScope, Forgettable,
    ForgettableFacts, GetErasure, RecoverFacts, RecoveryEnded, ScopeKind, erasures_due,
};
pub(crate) use self::forget::{Forgetting, sweep as sweep_forgotten};
pub use self::freshness::{
    FactFreshness, FactReverified, FreshnessRow, HorizonSet, ReverifyFact, SetHorizon, ShowFreshness, SweepCandidate, SweepCandidates,
    SweepCandidatesFound,
};
pub use self::history::{FactHistory, FactVersion, FactVersions};
pub use self::horizon::{HorizonClass, MEDIUM_STALE_DAYS, STABLE_STALE_DAYS, VOLATILE_STALE_HOURS};
pub use self::panel::{EditFact, FactEdited, FactPinned, MemoryFacts, MemoryHistory, MemoryRow, PinFact, ViewMemory};
pub(crate) use self::place::is_reserved;
pub use self::recall::{FactHits, FactRow, FactRows, FactsAsked, FoundBy, HOLDING_MAX, NAMED_MAX, QueryFacts};

pub use self::reinstate::{FactsReinstated, ReinstateFacts, ReinstatedFact};

pub(crate) use self::page::Room;
pub(crate) use self::place::EVERYONE;
use self::place::{Place, daemon_owned, filed_name, only_the_service};
use self::rank::State;
pub(crate) use self::recall::json_text_bytes;
pub(crate) use self::relevant::{PackedFact, Relevant, relevant, stands};
pub(crate) use self::searchable::{Found, Searchable, best_about, find};
use self::shared::Origin;
pub use self::shared::{SharedFact, SharedFacts, SharedPage, SharedPairs, SharedVersion, withheld};
use crate::event;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{FACT_VALUE_BYTES_MAX, FACT_VALUE_JSON_BYTES_MAX, SUPERSEDES_MAX, TEXT_BYTES_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, Revision, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};

/// How sure a fact is, in millionths, so that no float decides an order: 0 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confidence(pub u32);

impl Confidence {
    pub const FULL: Confidence = Confidence(1_000_000);

    /// From 0 to 1, rounded to a millionth; `None` outside of it.
    pub fn from_unit(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then(|| Self((value * 1e6).round() as u32))
    }

    pub fn to_unit(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

/// Longer than any id, so that refusals which name ids stay short.
const FACT_ID_BYTES_MAX: usize = 64;

/// One version, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Fact {
    tenant: String,
    /// The passport that alone sees it, or [`EVERYONE`].
    owner: String,
    entity: String,
    key: String,
    version: u64,
    fact_id: String,
    value: String,
    confidence: Confidence,
    horizon_class: HorizonClass,
    source_receipt: Option<String>,
    actor: String,
    stored_at: UnixMs,
    /// When somebody last confirmed it; its age counts from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reverified_at: Option<UnixMs>,
    revision: Revision,
    /// The version that was active when this one was stored.
    supersedes: Option<String>,
    superseded_by: Option<String>,
    /// When it stopped being active.
    valid_to: Option<UnixMs>,
    deleted_at: Option<UnixMs>,
    /// The forgetting that took its value away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forgotten_by: Option<String>,
    /// Where it came from; none for one that was made in this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<Origin>,
}

impl Record for Fact {
    const KIND: Kind = Kind::Fact;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        pair_id(&self.owner, &self.entity, &self.key).number(self.version)
    }
}

impl Fact {
    fn state(&self) -> State {
        match (&self.forgotten_by, self.deleted_at, self.valid_to) {
            (Some(_), ..) => State::Forgotten,
            (None, Some(_), _) => State::Deleted,
            (None, None, Some(_)) => State::Superseded,
            (None, None, None) => State::Active,
        }
    }

    /// The instant from which its age counts.
    fn anchor(&self) -> UnixMs {
        self.reverified_at.unwrap_or(self.stored_at)
    }

    fn valid_at(&self, instant: UnixMs) -> bool {
        self.stored_at <= instant && self.valid_to.is_none_or(|end| instant < end)
    }

    fn is_visible_to(&self, caller: &Principal) -> bool {
        self.owner == EVERYONE || self.owner == caller.passport
    }

    fn filed_name(&self) -> String {
        filed_name(&self.owner, &self.entity)
    }

    /// What watchers may know of what `actor` did to it.
    fn about(&self, actor: &str) -> serde_json::Value {
        match self.owner.as_str() {
            EVERYONE => json!({ "entity": self.entity, "key": self.key, "version": self.version, "actor": actor }),
            _ => json!({ "private": true }),
        }
    }
}

fn pair_id(owner: &str, entity: &str, key: &str) -> Key {
    Key::new().text(owner).text(entity).text(key)
}

/// Where the versions of a pair stand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    tenant: String,
    owner: String,
    entity: String,
    key: String,
    /// The highest version that was ever given out.
    last_version: u64,
    active: Option<u64>,
}

impl Record for Head {
    const KIND: Kind = Kind::FactHead;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        pair_id(&self.owner, &self.entity, &self.key)
    }
}

/// Stores one version and retires the one before it, and any others named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreFact {
    pub entity: String,
    pub key: String,
    pub value: String,
    pub source_receipt: Option<String>,
    pub confidence: Confidence,
    pub private: bool,
    /// Wins over `freshness_horizon`. Neither given: the default of the entity's prefix.
    pub horizon_class: Option<HorizonClass>,
    pub freshness_horizon: Option<String>,
    pub supersedes: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactStored {
    pub fact_id: String,
    /// The filed name: `__agent::<passport>::<entity>` for a private fact.
    pub entity: String,
    pub key: String,
    pub version: u64,
    /// What this write retired: the version before, then those that it named.
    pub superseded_fact_ids: Vec<String>,
}

impl StoreFact {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactStored> {
        let (place, horizon_class) = match self.check(&at.caller) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Place { owner, entity } = place;
        let head = head(tx, &at.caller.tenant, &owner, &entity, &self.key)?;
        let predecessor = active(tx, &head)?;
        let named = match retirable(tx, at, &self.supersedes, &head.owner, predecessor.as_ref())? {
            Ok(named) => named,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Self { value, confidence, source_receipt, .. } = self;
        let draft = Draft { value, confidence, horizon_class, source_receipt };
        let (fact, superseded_fact_ids) = next_version(tx, at, head, predecessor, named, draft)?;
        Ok(Ok(FactStored { entity: fact.filed_name(), fact_id: fact.fact_id, key: fact.key, version: fact.version, superseded_fact_ids }))
    }

    /// All that can be refused without reading.
    fn check(&self, caller: &Principal) -> Result<(Place, HorizonClass), Refusal> {
        let place = Place::to_write(&self.entity, self.private, caller)?;
        if let Some(refusal) =
            check_name("key", &self.key).or_else(|| self.source_receipt.as_deref().and_then(|id| check_name("source_receipt", id)))
        {
            return Err(refusal);
        }
        check_value("value", &self.value)?;
        at_most("supersedes", self.supersedes.len(), SUPERSEDES_MAX, "ids")?;
        for id in &self.supersedes {
            at_most("supersedes", id.len(), FACT_ID_BYTES_MAX, "bytes")?;
        }
        if self.confidence > Confidence::FULL {
            return Err(Refusal::invalid("confidence", "must be from 0 to 1"));
        }
        let horizon_class = match (self.horizon_class, &self.freshness_horizon) {
            (Some(class), _) => class,
            (None, Some(text)) => {
                at_most("freshness_horizon", text.len(), TEXT_BYTES_MAX, "bytes")?;
                HorizonClass::parse(text)?
            }
            (None, None) => HorizonClass::default_of(&place.entity),
        };
        Ok((place, horizon_class))
    }
}

pub(crate) fn at_most(field: &str, size: usize, limit: usize, unit: &str) -> Result<(), Refusal> {
    match size <= limit {
        true => Ok(()),
        false => Err(Refusal::TooLong { field: field.into(), size: size as u64, limit: limit as u64, unit: unit.into() }),
    }
}

/// Marks one version as deleted; its history and receipt stay readable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeleteFact {
    pub fact_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactDeleted {
    /// Whether this call deleted it: false when it was deleted before.
    pub deleted: bool,
    pub fact_id: String,
}

impl DeleteFact {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactDeleted> {
        if let Err(refusal) = at_most("fact_id", self.fact_id.len(), FACT_ID_BYTES_MAX, "bytes") {
            return Ok(Err(refusal));
        }
        let Some(fact) = visible(tx, &at.caller, &self.fact_id)? else {
            return Ok(Err(Refusal::not_found("fact", self.fact_id)));
        };
        if let Some(prefix) = daemon_owned(&fact.entity) {
            return Ok(Err(Refusal::Denied { problem: only_the_service(prefix) }));
        }
        if matches!(fact.state(), State::Deleted | State::Forgotten) {
            return Ok(Ok(FactDeleted { deleted: false, fact_id: self.fact_id }));
        }
        delete(tx, at, fact)?;
        Ok(Ok(FactDeleted { deleted: true, fact_id: self.fact_id }))
    }
}

/// Marks a version as deleted that is not.
fn delete(tx: &mut impl Tx, at: &Stamp, fact: Fact) -> Result<(), StorageError> {
    if fact.state() == State::Active {
        leave_pair(tx, &fact)?;
    }
    let (about, fact_id) = (fact.about(&at.caller.passport), fact.fact_id.clone());
    change(tx, fact, |fact| {
        fact.deleted_at = Some(at.wall);
        fact.valid_to = fact.valid_to.or(Some(at.wall));
    });
    event::emit(tx, at, "fact.deleted", &fact_id, about)
}

// ------------------------------------------------------------------ reading and writing versions

/// What a new version says; the rest of it comes from its pair and its entry.
pub(crate) struct Draft {
    pub value: String,
    pub confidence: Confidence,
    pub horizon_class: HorizonClass,
    pub source_receipt: Option<String>,
}

/// Makes the next version of a pair, and retires the one before and those named; answers it and what it retired.
fn next_version(
    tx: &mut impl Tx,
    at: &Stamp,
    head: Head,
    predecessor: Option<Fact>,
    named: Vec<Fact>,
    draft: Draft,
) -> Result<(Fact, Vec<String>), StorageError> {
    numbered_version(tx, at, 0, head, predecessor, named, draft)
}

/// The same for an entry that makes several: `n` tells apart their ids.
fn numbered_version(
    tx: &mut impl Tx,
    at: &Stamp,
    n: u64,
    mut head: Head,
    predecessor: Option<Fact>,
    named: Vec<Fact>,
    draft: Draft,
) -> Result<(Fact, Vec<String>), StorageError> {
    let fact = Fact {
        tenant: head.tenant.clone(),
        owner: head.owner.clone(),
        entity: head.entity.clone(),
        key: head.key.clone(),
        version: head.last_version + 1,
        fact_id: at.new_id("f", n),
        value: draft.value,
        confidence: draft.confidence,
        horizon_class: draft.horizon_class,
        source_receipt: draft.source_receipt,
        actor: at.caller.passport.clone(),
        stored_at: at.wall,
        reverified_at: None,
        revision: at.revision,
        supersedes: predecessor.as_ref().map(|fact| fact.fact_id.clone()),
        superseded_by: None,
        valid_to: None,
        deleted_at: None,
        forgotten_by: None,
        origin: None,
    };
    for old in &named {
        leave_pair(tx, old)?;
    }
    if predecessor.is_none() {
        entities::count(tx, &fact, 1)?;
    }
    let retired: Vec<Fact> = predecessor.into_iter().chain(named).collect();
    for old in &retired {
        change(tx, old.clone(), |old| {
            old.superseded_by = Some(fact.fact_id.clone());
            old.valid_to = Some(at.wall);
        });
    }
    head.last_version = fact.version;
    head.active = Some(fact.version);
    tx.put(&head);
    tx.put_index(by_id(&fact.tenant, &fact.fact_id), fact.id().as_bytes());
    write(tx, &fact);

    let mut about = fact.about(&fact.actor);
    if fact.owner == EVERYONE {
        let seen: Vec<&str> = retired.iter().filter(|old| old.owner == EVERYONE).map(|old| old.fact_id.as_str()).collect();
        about["superseded_fact_ids"] = json!(seen);
    }
    event::emit(tx, at, "fact.stored", &fact.fact_id, about)?;
    Ok((fact, retired.into_iter().map(|old| old.fact_id).collect()))
}

/// Stores a fact that only the service writes, as evidence of what it did; answers its id.
pub(crate) fn store_evidence(
    tx: &mut impl Tx,
    at: &Stamp,
    owner: &str,
    entity: &str,
    key: &str,
    draft: Draft,
) -> Result<String, StorageError> {
    let head = head(tx, &at.caller.tenant, owner, entity, key)?;
    let predecessor = active(tx, &head)?;
    Ok(next_version(tx, at, head, predecessor, Vec::new(), draft)?.0.fact_id)
}

/// What such a fact says now.
pub(crate) fn evidence(view: &impl Read, tenant: &str, owner: &str, entity: &str, key: &str) -> Result<Option<String>, StorageError> {
    let head = head(view, tenant, owner, entity, key)?;
    Ok(active(view, &head)?.map(|fact| fact.value))
}

/// What the team's facts of an entity say now, under keys that begin with `key_prefix`: of at most `limit` such keys.
pub(crate) fn evidence_under(
    view: &impl Read,
    tenant: &str,
    entity: &str,
    key_prefix: &str,
    limit: usize,
) -> Result<Vec<(String, String)>, StorageError> {
    let pairs = Key::new().text(EVERYONE).text(entity).text_prefix(key_prefix);
    let mut values = Vec::new();
    for head in view.page::<Head>(tenant, &pairs, None, limit)?.items {
        if let Some(fact) = active(view, &head)? {
            values.push((head.key, fact.value));
        }
    }
    Ok(values)
}

/// Whether the team has any fact of an entity.
pub(crate) fn is_told_of(view: &impl Read, tenant: &str, entity: &str) -> Result<bool, StorageError> {
    let counted: Option<entities::Entity> = view.get(tenant, &Key::new().text(EVERYONE).text(entity))?;
    Ok(counted.is_some())
}

/// Where the versions of a pair stand, also of one that has none yet.
fn head(view: &impl Read, tenant: &str, owner: &str, entity: &str, key: &str) -> Result<Head, StorageError> {
    let head: Option<Head> = view.get(tenant, &pair_id(owner, entity, key))?;
    let (tenant, owner, entity, key) = (tenant.into(), owner.into(), entity.into(), key.into());
    Ok(head.unwrap_or(Head { tenant, owner, entity, key, last_version: 0, active: None }))
}

/// Checks a value: that one version of it always fits a reply.
pub(crate) fn check_value(field: &str, value: &str) -> Result<(), Refusal> {
    at_most(field, value.len(), FACT_VALUE_BYTES_MAX, "bytes")?;
    at_most(field, recall::json_text_bytes(value), FACT_VALUE_JSON_BYTES_MAX, "bytes of JSON")
}

/// Why a version can't be acted on as the active one of its pair.
fn not_active(fact: &Fact) -> Option<Refusal> {
    let found = match (fact.state(), &fact.superseded_by) {
        (State::Active, _) => return None,
        (State::Deleted, _) => "deleted".into(),
        (State::Forgotten, _) => "forgotten".into(),
        (State::Superseded, Some(by)) => format!("superseded by `{by}`"),
        (State::Superseded, None) => "superseded".into(),
    };
    Some(Refusal::Changed { what: "fact".into(), id: fact.fact_id.clone(), expected: "the active version".into(), found })
}

fn by_id(tenant: &str, fact_id: &str) -> Key {
    kind_prefix(tenant, Kind::FactById).text(fact_id)
}

/// The fact of this id, if the caller may know of it.
fn visible(view: &impl Read, caller: &Principal, fact_id: &str) -> Result<Option<Fact>, StorageError> {
    let Some(id) = view.get_bytes(Table::Index, by_id(&caller.tenant, fact_id).as_bytes())? else { return Ok(None) };
    Ok(Some(stored(view, &caller.tenant, &id)?).filter(|fact| fact.is_visible_to(caller)))
}

/// The fact that an index row points to.
fn stored(view: &impl Read, tenant: &str, id: &[u8]) -> Result<Fact, StorageError> {
    view.get(tenant, &Key::new().raw(id))?.ok_or_else(|| StorageError::corrupt("an index row points to a fact that is not there"))
}

fn active(view: &impl Read, head: &Head) -> Result<Option<Fact>, StorageError> {
    let id = head.active.map(|version| head.id().number(version));
    id.map(|id| stored(view, &head.tenant, id.as_bytes())).transpose()
}

/// The facts of these ids, all of which a new fact of `owner` may retire; its predecessor is left out.
fn retirable(view: &impl Read, at: &Stamp, ids: &BTreeSet<String>, owner: &str, predecessor: Option<&Fact>) -> Applied<Vec<Fact>> {
    let mut facts = Vec::new();
    let mut problems = Vec::new();
    for id in ids {
        let Some(fact) = visible(view, &at.caller, id)? else {
            problems.push(format!("`{id}` (there is no such fact)"));
            continue;
        };
        if predecessor.is_some_and(|predecessor| predecessor.fact_id == fact.fact_id) {
            continue;
        }
        match (fact.state(), &fact.superseded_by, daemon_owned(&fact.entity)) {
            (State::Deleted, ..) => problems.push(format!("`{id}` (it is deleted)")),
            (State::Forgotten, ..) => problems.push(format!("`{id}` (it is forgotten)")),
            (State::Superseded, by, _) => {
                problems.push(format!("`{id}` (it is already superseded by `{}`)", by.as_deref().unwrap_or("another")))
            }
            (State::Active, _, Some(prefix)) => problems.push(format!("`{id}` ({})", only_the_service(prefix))),
            (State::Active, ..) if owner != EVERYONE && fact.owner == EVERYONE => {
                problems.push(format!("`{id}` (others see it, and a private fact can't replace it for them)"));
            }
            (State::Active, ..) => facts.push(fact),
        }
    }
    Ok(match problems.is_empty() {
        true => Ok(facts),
        false => Err(Refusal::invalid("supersedes", format!("names facts that can't be retired: {}", some(&problems)))),
    })
}

/// The first few of a list, and how many there are besides.
fn some(problems: &[String]) -> String {
    const SOME: usize = 3;
    match problems.get(SOME..) {
        Some(rest @ [_, ..]) => format!("{} and {} more", problems[..SOME].join(", "), rest.len()),
        _ => problems.join(", "),
    }
}

/// Takes an active fact out of its pair, which then has no active version.
fn leave_pair(tx: &mut impl Tx, fact: &Fact) -> Result<(), StorageError> {
    let head: Option<Head> = tx.get(&fact.tenant, &pair_id(&fact.owner, &fact.entity, &fact.key))?;
    match head {
        Some(mut head) if head.active == Some(fact.version) => {
            head.active = None;
            tx.put(&head);
            entities::count(tx, fact, -1)
        }
        _ => Err(StorageError::corrupt("an active fact is not the active version of its pair")),
    }
}

fn write(tx: &mut impl Tx, fact: &Fact) {
    tx.put(fact);
    for key in rank::keys(fact) {
        tx.put_index(key, fact.id().as_bytes());
    }
}

/// Changes a stored fact and its places in the indexes.
fn change(tx: &mut impl Tx, mut fact: Fact, with: impl FnOnce(&mut Fact)) {
    for key in rank::keys(&fact) {
        tx.delete_index(key);
    }
    with(&mut fact);
    write(tx, &fact);
}
