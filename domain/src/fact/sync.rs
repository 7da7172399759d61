//! Exchange of shared facts with another cluster: what came from there, what went there, and how far both have come.
//!
//! Nothing is asked or sent here: a gateway does that, page by page, and what a page brought and where to go on are one entry. Each
//! such entry names the place where its page began, and is refused when another gateway has gone on from there meanwhile; so
//! whoever dies, the next one goes on, and nothing is done twice. Invariants:
//! * For each pair, the versions there and here that say the same are remembered as *agreed*. A version there replaces the one here
//!   only when that is the agreed one; anything else here is this cluster's own, and the two are a *conflict* until they agree.
//!   The same holds the other way round: what is sent names the version there that it replaces.
//! * Private facts are neither read nor written, and entities that [`withheld`](super::withheld) names are neither sent nor taken.
//! * What came from another cluster is never sent on.
//! * No value of the other cluster is kept but as a fact, so that forgetting finds them all.
//!
//! Decisions:
//! * A copy that was deleted here stays deleted until its original changes. A fact that was made here stays when it is deleted there.
//! * A fact that was made here and sent is the agreed version from then on, so a change there replaces it, as a version of its pair.
//! * Deletions are not sent: they would take from others what they may have built on.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::place::Place;
use super::shared::{self, Pairs, SharedFact, SharedVersion, withheld};
use super::{Confidence, Draft, EVERYONE, Fact, HorizonClass, Origin, active, change, check_value, delete, head, numbered_version};
use crate::identity::{check_name, check_named_tenant};
use crate::key::Key;
use crate::limit::{COUNTED_ENTITIES_MAX, SHARED_ROWS_PER_PAGE, SYNC_ALLOWED_MAX, SYNC_PUSHES_KEPT};
use crate::passport::{Reputation, has_standing};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, Revision, Stamp, Tier, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// What is known of another cluster that a tenant exchanges facts with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SyncRemote {
    tenant: String,
    /// Its address.
    remote: String,
    /// Whose memory it is there.
    remote_tenant: Option<String>,
    pull: Option<Mark>,
    /// By what may be sent.
    pushes: BTreeMap<String, Mark>,
    pulled_at: Option<UnixMs>,
    pushed_at: Option<UnixMs>,
    /// How often either came to its end.
    pulls: u64,
    pushes_ended: u64,
    facts_pulled: u64,
    facts_pushed: u64,
    conflicts: u64,
}

/// How far one reading has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Mark {
    cursor: String,
    moved: Revision,
}

impl Record for SyncRemote {
    const KIND: Kind = Kind::SyncRemote;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.remote)
    }
}

fn remote_of(view: &impl Read, tenant: &str, remote: &str) -> Result<SyncRemote, StorageError> {
    let known: Option<SyncRemote> = view.get(tenant, &Key::new().text(remote))?;
    Ok(known.unwrap_or(SyncRemote {
        tenant: tenant.into(),
        remote: remote.into(),
        remote_tenant: None,
        pull: None,
        pushes: BTreeMap::new(),
        pulled_at: None,
        pushed_at: None,
        pulls: 0,
        pushes_ended: 0,
        facts_pulled: 0,
        facts_pushed: 0,
        conflicts: 0,
    }))
}

/// Which versions of one pair agree, there and here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SyncPair {
    tenant: String,
    remote: String,
    entity: String,
    key: String,
    /// The two that said the same, when that was last so.
    theirs: Option<String>,
    ours: Option<String>,
    conflict: Option<Conflict>,
}

/// The active versions that said something different, when that was last looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Conflict {
    theirs: String,
    ours: String,
}

impl Record for SyncPair {
    const KIND: Kind = Kind::SyncPair;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.remote).text(&self.entity).text(&self.key)
    }
}

fn pair_of(view: &impl Read, tenant: &str, remote: &str, entity: &str, key: &str) -> Result<Option<SyncPair>, StorageError> {
    view.get(tenant, &Key::new().text(remote).text(entity).text(key))
}

impl SyncPair {
    fn new(tenant: &str, remote: &str, entity: &str, key: &str) -> Self {
        let (tenant, remote, entity, key) = (tenant.into(), remote.into(), entity.into(), key.into());
        Self { tenant, remote, entity, key, theirs: None, ours: None, conflict: None }
    }

    fn in_conflict(&self) -> Key {
        kind_prefix(&self.tenant, Kind::SyncConflict).raw(self.id().as_bytes())
    }

    /// Stores what became of a pair.
    fn settle(mut self, tx: &mut impl Tx, remote: &mut SyncRemote, conflict: Option<Conflict>) {
        match (self.conflict.is_some(), conflict.is_some()) {
            (false, true) => {
                remote.conflicts += 1;
                tx.put_index(self.in_conflict(), &[]);
            }
            (true, false) => {
                remote.conflicts -= 1;
                tx.delete_index(self.in_conflict());
            }
            (true, true) | (false, false) => {}
        }
        self.conflict = conflict;
        tx.put(&self);
    }

    fn agree(mut self, tx: &mut impl Tx, remote: &mut SyncRemote, theirs: String, ours: String) {
        (self.theirs, self.ours) = (Some(theirs), Some(ours));
        self.settle(tx, remote, None);
    }
}

/// Which way facts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// Who may take facts in for the whole team, and who may send them out.
fn refuse_standing(view: &impl Read, caller: &Principal, way: Way) -> Result<Option<Refusal>, StorageError> {
    let (tier, reputation, problem) = match way {
        Way::In => (Tier::Verified, Reputation::Basic, "`sync_pull` needs the reputation basic, or a credential of the tier verified"),
        Way::Out => (
            Tier::Elite,
            Reputation::Established,
            "`sync_push` needs the reputation established, which takes 100 receipts, or a credential of the tier elite or operator",
        ),
    };
    Ok((!has_standing(view, caller, tier, reputation)?).then(|| Refusal::Denied { problem: problem.into() }))
}

/// Refuses an entry whose page began elsewhere than where reading now stands.
fn refuse_moved(remote: &str, before: Option<&str>, mark: Option<&Mark>) -> Option<Refusal> {
    let stands = mark.map(|mark| mark.cursor.as_str());
    let word = |cursor: Option<&str>| cursor.unwrap_or("the beginning").to_string();
    (before != stands).then(|| Refusal::Changed {
        what: "the place in".into(),
        id: remote.into(),
        expected: word(before),
        found: word(stands),
    })
}

// ------------------------------------------------------------------ from there to here

/// Takes over what a page of another cluster tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MirrorFacts {
    pub remote: String,
    pub remote_tenant: String,
    pub facts: Vec<SharedFact>,
    /// Where reading stood when the page was asked for.
    pub before: Option<String>,
    /// Where it stands with these facts; as before when absent.
    pub cursor: Option<String>,
    /// This was everything for now.
    pub is_end: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactsMirrored {
    /// Versions stored here.
    pub stored: u64,
    /// Copies whose original is gone.
    pub deleted: u64,
    /// Pairs that differ, and were left as they are here.
    pub in_conflict: u64,
    /// What this cluster does not take from others.
    pub refused: u64,
    /// Pulls that came to their end, this one included.
    pub pulls: u64,
    pub cursor: Option<String>,
}

enum Mirrored {
    Stored,
    Deleted,
    InConflict,
    Refused,
    Unchanged,
}

impl MirrorFacts {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactsMirrored> {
        if let Some(refusal) = refuse_standing(tx, &at.caller, Way::In)? {
            return Ok(Err(refusal));
        }
        if let Some(refusal) = check_name("remote", &self.remote).or_else(|| check_name("remote_tenant", &self.remote_tenant)) {
            return Ok(Err(refusal));
        }
        let mut remote = remote_of(tx, &at.caller.tenant, &self.remote)?;
        if let Some(refusal) = refuse_moved(&self.remote, self.before.as_deref(), remote.pull.as_ref()) {
            return Ok(Err(refusal));
        }
        let mut told = FactsMirrored { stored: 0, deleted: 0, in_conflict: 0, refused: 0, pulls: 0, cursor: None };
        for (n, fact) in (0..).zip(self.facts) {
            match mirror(tx, at, n, &mut remote, &self.remote_tenant, fact)? {
                Mirrored::Stored => told.stored += 1,
                Mirrored::Deleted => told.deleted += 1,
                Mirrored::InConflict => told.in_conflict += 1,
                Mirrored::Refused => told.refused += 1,
                Mirrored::Unchanged => {}
            }
        }
        if let Some(cursor) = self.cursor {
            remote.pull = Some(Mark { cursor, moved: at.revision });
        }
        if self.is_end {
            remote.pulls += 1;
            remote.pulled_at = Some(at.wall);
        }
        remote.facts_pulled += told.stored + told.deleted;
        remote.remote_tenant = Some(self.remote_tenant);
        (told.pulls, told.cursor) = (remote.pulls, remote.pull.as_ref().map(|mark| mark.cursor.clone()));
        tx.put(&remote);
        Ok(Ok(told))
    }
}

/// Takes over one pair. `n` tells apart the ids of this entry's facts.
fn mirror(
    tx: &mut impl Tx,
    at: &Stamp,
    n: u64,
    remote: &mut SyncRemote,
    remote_tenant: &str,
    told: SharedFact,
) -> Result<Mirrored, StorageError> {
    let SharedFact { entity, key, now } = told;
    if !is_acceptable(&at.caller, &entity, &key, now.as_ref()) {
        return Ok(Mirrored::Refused);
    }
    let tenant = at.caller.tenant.as_str();
    // Who says it: the one whose version it is, there.
    let passport = |actor: &str| format!("sync:{remote_tenant}/{actor}");
    let known = pair_of(tx, tenant, &remote.remote, &entity, &key)?;
    let head = head(tx, tenant, EVERYONE, &entity, &key)?;
    let ours = active(tx, &head)?;
    let is_agreed = |ours: &Fact, pair: &SyncPair| pair.ours.as_ref() == Some(&ours.fact_id);
    let Some(theirs) = now else {
        let Some(mut pair) = known else { return Ok(Mirrored::Unchanged) };
        let copy = ours.filter(|ours| is_agreed(ours, &pair) && matches!(ours.origin, Some(Origin::Pulled { .. })));
        pair.theirs = None;
        if pair.conflict.is_some() {
            // Pushes passed it by while it was one, so they look at everything again.
            remote.pushes.clear();
        }
        pair.settle(tx, remote, None);
        let Some(copy) = copy else { return Ok(Mirrored::Unchanged) };
        let as_mirror = acting_as(at, passport("*"));
        delete(tx, &as_mirror, copy)?;
        return Ok(Mirrored::Deleted);
    };
    let pair = known.unwrap_or_else(|| SyncPair::new(tenant, &remote.remote, &entity, &key));
    match &ours {
        Some(ours) if ours.value == theirs.value => {
            let is_known = pair.theirs.as_ref() == Some(&theirs.fact_id) && is_agreed(ours, &pair) && pair.conflict.is_none();
            if !is_known {
                pair.agree(tx, remote, theirs.fact_id, ours.fact_id.clone());
            }
            return Ok(Mirrored::Unchanged);
        }
        // Replaced below: it is what was agreed on, and theirs has gone on.
        Some(ours) if is_agreed(ours, &pair) => {}
        // Ours has gone on, or was deleted here, and theirs has not.
        Some(_) | None if pair.theirs.as_ref() == Some(&theirs.fact_id) => return Ok(Mirrored::Unchanged),
        Some(ours) => {
            let conflict = Conflict { theirs: theirs.fact_id, ours: ours.fact_id.clone() };
            pair.settle(tx, remote, Some(conflict));
            return Ok(Mirrored::InConflict);
        }
        None => {}
    }
    let SharedVersion { fact_id, value, confidence, horizon_class, actor, as_of } = theirs;
    let as_mirror = acting_as(at, passport(&actor));
    let draft = Draft { value, confidence, horizon_class, source_receipt: None };
    let (copy, _) = numbered_version(tx, &as_mirror, n, head, ours, Vec::new(), draft)?;
    pair.agree(tx, remote, fact_id.clone(), copy.fact_id.clone());
    let origin = Origin::Pulled { remote: remote.remote.clone(), fact_id };
    change(tx, copy, |copy| {
        copy.origin = Some(origin);
        // It keeps the age of its original, whose clock may be ahead of ours.
        copy.reverified_at = Some(as_of.min(at.wall));
    });
    Ok(Mirrored::Stored)
}

fn acting_as(at: &Stamp, passport: String) -> Stamp {
    Stamp { caller: Principal { passport, ..at.caller.clone() }, ..at.clone() }
}

/// Whether a pair may be written as the tenant's, and is within our limits.
fn is_acceptable(caller: &Principal, entity: &str, key: &str, now: Option<&SharedVersion>) -> bool {
    let place = Place::to_write(entity, false, caller);
    let is_open = withheld(entity).is_none() && place.is_ok_and(|place| place.owner == EVERYONE) && check_name("key", key).is_none();
    let fits = now.is_none_or(|now| {
        let names = [&now.fact_id, &now.actor].into_iter().all(|name| check_name("fact", name).is_none());
        names && check_value("value", &now.value).is_ok() && now.confidence <= Confidence::FULL
    });
    is_open && fits
}

// ------------------------------------------------------------------ what others send here

/// Takes facts of another cluster into the tenant's memory, each only in place of the version that its sender knew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromoteFacts {
    pub facts: Vec<Promoted>,
    /// Whose memory the sender thinks it is.
    pub tenant_id: Option<String>,
}

/// A fact on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Promoted {
    pub entity: String,
    pub key: String,
    pub value: String,
    /// In millionths.
    pub confidence: Confidence,
    pub horizon_class: HorizonClass,
    /// Its id where it was made.
    pub fact_id: String,
    /// From when its age counts.
    pub as_of: UnixMs,
    /// The receiver's version that it replaces.
    pub replaces: Option<String>,
}

/// What became of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Promotion {
    /// It is a new version there.
    Stored {
        fact_id: String,
    },
    /// The active version says the same already.
    Unchanged {
        fact_id: String,
    },
    /// Another version is active there than its sender knew.
    InConflict {
        fact_id: String,
    },
    Refused {
        problem: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactsPromoted {
    pub tenant_id: String,
    /// In the order in which they were sent.
    pub outcomes: Vec<Promotion>,
}

impl PromoteFacts {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<FactsPromoted> {
        if let Some(refusal) = self.tenant_id.as_deref().and_then(|claim| check_named_tenant(&at.caller, claim)) {
            return Ok(Err(refusal));
        }
        let (size, limit) = (self.facts.len() as u64, SHARED_ROWS_PER_PAGE as u64);
        if size > limit {
            return Ok(Err(Refusal::TooLong { field: "facts".into(), size, limit, unit: "facts".into() }));
        }
        let mut outcomes = Vec::new();
        for (n, fact) in (0..).zip(self.facts) {
            outcomes.push(promote(tx, at, n, fact)?);
        }
        Ok(Ok(FactsPromoted { tenant_id: at.caller.tenant.clone(), outcomes }))
    }
}

fn promote(tx: &mut impl Tx, at: &Stamp, n: u64, fact: Promoted) -> Result<Promotion, StorageError> {
    let Promoted { entity, key, value, confidence, horizon_class, fact_id, as_of, replaces } = fact;
    let refused = |problem: String| Ok(Promotion::Refused { problem });
    if let Some(prefix) = withheld(&entity) {
        return refused(format!("entities under `{prefix}` are not taken from other clusters"));
    }
    match Place::to_write(&entity, false, &at.caller) {
        Err(refusal) => return refused(refusal.to_string()),
        Ok(place) if place.owner != EVERYONE => return refused("it would be private".into()),
        Ok(_) => {}
    }
    let is_too_sure = (confidence > Confidence::FULL).then(|| Refusal::invalid("confidence", "must be from 0 to 1,000,000 millionths"));
    let unfit = check_name("key", &key).or_else(|| check_name("fact_id", &fact_id)).or(check_value("value", &value).err()).or(is_too_sure);
    if let Some(refusal) = unfit {
        return refused(refusal.to_string());
    }
    let head = head(tx, &at.caller.tenant, EVERYONE, &entity, &key)?;
    let ours = active(tx, &head)?;
    match &ours {
        Some(ours) if ours.value == value => return Ok(Promotion::Unchanged { fact_id: ours.fact_id.clone() }),
        Some(ours) if replaces.as_ref() != Some(&ours.fact_id) => return Ok(Promotion::InConflict { fact_id: ours.fact_id.clone() }),
        Some(_) | None => {}
    }
    let draft = Draft { value, confidence, horizon_class, source_receipt: None };
    let (stored, _) = numbered_version(tx, at, n, head, ours, Vec::new(), draft)?;
    let id = stored.fact_id.clone();
    change(tx, stored, |stored| {
        stored.origin = Some(Origin::Promoted { fact_id });
        stored.reverified_at = Some(as_of.min(at.wall));
    });
    Ok(Promotion::Stored { fact_id: id })
}

// ------------------------------------------------------------------ from here to there

/// Reads what would be sent next, and why other facts would not. Changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanPush {
    pub remote: String,
    /// What may be sent; everything when empty.
    pub allowlist: Vec<String>,
    /// Whether what differs there is replaced.
    pub overwrite: bool,
    /// Of a plan in several pages; the place where the last push came to when absent.
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushPlan {
    pub facts: Vec<Promoted>,
    pub skipped_private: u64,
    pub skipped_synced: u64,
    pub skipped_not_allowlisted: u64,
    pub in_conflict: u64,
    /// The name of what may be sent, as its place is kept under.
    pub list: String,
    /// Where this page begins; none at the beginning.
    pub before: Option<String>,
    pub cursor: String,
    pub more: bool,
}

/// What may be sent.
struct Allowed {
    everything: bool,
    collections: Vec<&'static str>,
    entities: Vec<String>,
}

/// Each fact is of one of these.
const COLLECTIONS: [&str; 3] = ["facts", "plans", "constraints"];

fn collection_of(entity: &str) -> &'static str {
    match entity {
        _ if ["plan:", "execplan:"].iter().any(|prefix| entity.starts_with(prefix)) => "plans",
        _ if entity.starts_with("constraint:") => "constraints",
        _ => "facts",
    }
}

impl Allowed {
    fn parse(list: &[String]) -> Result<Self, Refusal> {
        let (size, limit) = (list.len() as u64, SYNC_ALLOWED_MAX as u64);
        if size > limit {
            return Err(Refusal::TooLong { field: "allowlist".into(), size, limit, unit: "entries".into() });
        }
        let mut allowed = Self { everything: list.is_empty(), collections: Vec::new(), entities: Vec::new() };
        for entry in list {
            if let Some(refusal) = check_name("allowlist", entry) {
                return Err(refusal);
            }
            let named = entry.strip_prefix("collection:").unwrap_or(entry);
            match (COLLECTIONS.into_iter().find(|known| *known == named), entry.strip_prefix("entity:")) {
                _ if entry == "*" => allowed.everything = true,
                (Some(collection), _) => allowed.collections.push(collection),
                (None, Some(entity)) if !entity.trim().is_empty() => allowed.entities.push(entity.into()),
                (None, _) => {
                    let known = "holds what is none of `*`, `facts`, `plans`, `constraints`, `collection:<one of these>`, `entity:<name>`";
                    return Err(Refusal::invalid("allowlist", known));
                }
            }
        }
        Ok(allowed)
    }

    fn holds(&self, entity: &str) -> bool {
        // An entity and those that are filed under it.
        let is_under = |named: &String| entity.strip_prefix(named.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        self.everything || self.collections.contains(&collection_of(entity)) || self.entities.iter().any(is_under)
    }
}

/// One name for lists that say the same.
fn list_name(list: &[String]) -> String {
    let mut entries: Vec<&str> = list.iter().map(String::as_str).collect();
    entries.sort_unstable();
    entries.dedup();
    match entries.is_empty() || entries.contains(&"*") {
        true => "*".into(),
        false => blake3::hash(entries.join("\n").as_bytes()).to_hex()[..32].to_string(),
    }
}

impl PlanPush {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PushPlan> {
        if let Some(refusal) = refuse_standing(view, &at.caller, Way::Out)? {
            return Ok(Err(refusal));
        }
        let allowed = match Allowed::parse(&self.allowlist) {
            Ok(allowed) => allowed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let tenant = at.caller.tenant.as_str();
        let (list, remote) = (list_name(&self.allowlist), remote_of(view, tenant, &self.remote)?);
        let is_first = self.cursor.is_none();
        let before = self.cursor.or_else(|| remote.pushes.get(&list).map(|mark| mark.cursor.clone()));
        let Pairs { pairs, cursor, more } = match shared::read_on(view, at, before.as_deref())? {
            Ok(pairs) => pairs,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut plan = PushPlan {
            facts: Vec::new(),
            skipped_private: 0,
            skipped_synced: 0,
            skipped_not_allowlisted: 0,
            in_conflict: 0,
            list,
            before,
            cursor,
            more,
        };
        if is_first {
            // They are in no list of the tenant's, and their owner alone may know how many there are.
            plan.skipped_private = shared::count(view, tenant, &at.caller.passport, COUNTED_ENTITIES_MAX)?.0;
        }
        for pair in pairs {
            let Some(fact) = pair.now else { continue };
            let known = pair_of(view, tenant, &self.remote, &pair.entity, &pair.key)?;
            let is_agreed = known.as_ref().is_some_and(|known| known.ours.as_ref() == Some(&fact.fact_id));
            match known {
                _ if withheld(&fact.entity).is_some() => plan.skipped_private += 1,
                _ if fact.origin.is_some() || is_agreed => plan.skipped_synced += 1,
                _ if !allowed.holds(&fact.entity) => plan.skipped_not_allowlisted += 1,
                // With `overwrite` it comes below.
                Some(SyncPair { conflict: Some(_), .. }) => plan.in_conflict += u64::from(!self.overwrite),
                known => plan.facts.push(on_its_way(fact, known.and_then(|known| known.theirs))),
            }
        }
        if self.overwrite && is_first {
            let room = SHARED_ROWS_PER_PAGE.saturating_sub(plan.facts.len());
            for pair in conflicts(view, tenant, &self.remote, None, room)?.pairs {
                let Some(fact) = active(view, &head(view, tenant, EVERYONE, &pair.entity, &pair.key)?)? else { continue };
                if allowed.holds(&fact.entity) && fact.origin.is_none() {
                    plan.facts.push(on_its_way(fact, pair.conflict.map(|conflict| conflict.theirs)));
                }
            }
        }
        Ok(Ok(plan))
    }
}

fn on_its_way(fact: Fact, replaces: Option<String>) -> Promoted {
    let as_of = fact.anchor();
    let Fact { entity, key, value, confidence, horizon_class, fact_id, .. } = fact;
    Promoted { entity, key, value, confidence, horizon_class, fact_id, as_of, replaces }
}

/// Notes what another cluster did with a page that it was sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordPush {
    pub remote: String,
    pub remote_tenant: String,
    pub list: String,
    pub before: Option<String>,
    pub cursor: String,
    pub sent: Vec<Sent>,
    /// This was everything for now.
    pub is_end: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    pub entity: String,
    pub key: String,
    /// Our version of it.
    pub fact_id: String,
    pub became: Promotion,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PushRecorded {
    /// Pushes that came to their end, this one included.
    pub pushes: u64,
    /// Lists of what may be sent whose place is kept.
    pub push_cursors: u64,
}

impl RecordPush {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PushRecorded> {
        if let Some(refusal) = refuse_standing(tx, &at.caller, Way::Out)? {
            return Ok(Err(refusal));
        }
        let names = [("remote", &self.remote), ("remote_tenant", &self.remote_tenant), ("list", &self.list)];
        if let Some(refusal) = names.into_iter().find_map(|(field, name)| check_name(field, name)) {
            return Ok(Err(refusal));
        }
        let tenant = at.caller.tenant.clone();
        let mut remote = remote_of(tx, &tenant, &self.remote)?;
        if let Some(refusal) = refuse_moved(&self.remote, self.before.as_deref(), remote.pushes.get(&self.list)) {
            return Ok(Err(refusal));
        }
        for Sent { entity, key, fact_id, became } in self.sent {
            let known = pair_of(tx, &tenant, &self.remote, &entity, &key)?;
            let pair = known.unwrap_or_else(|| SyncPair::new(&tenant, &self.remote, &entity, &key));
            match became {
                Promotion::Stored { fact_id: theirs } => {
                    remote.facts_pushed += 1;
                    pair.agree(tx, &mut remote, theirs, fact_id);
                }
                Promotion::Unchanged { fact_id: theirs } => pair.agree(tx, &mut remote, theirs, fact_id),
                Promotion::InConflict { fact_id: theirs } => pair.settle(tx, &mut remote, Some(Conflict { theirs, ours: fact_id })),
                Promotion::Refused { .. } => {}
            }
        }
        remote.pushes.insert(self.list, Mark { cursor: self.cursor, moved: at.revision });
        if remote.pushes.len() > SYNC_PUSHES_KEPT {
            // Whoever comes back to it reads from the beginning, and sends nothing twice.
            let oldest = remote.pushes.iter().min_by_key(|(_, mark)| mark.moved).map(|(list, _)| list.clone());
            oldest.and_then(|oldest| remote.pushes.remove(&oldest));
        }
        if self.is_end {
            remote.pushes_ended += 1;
            remote.pushed_at = Some(at.wall);
        }
        remote.remote_tenant = Some(self.remote_tenant);
        tx.put(&remote);
        Ok(Ok(PushRecorded { pushes: remote.pushes_ended, push_cursors: remote.pushes.len() as u64 }))
    }
}

// ------------------------------------------------------------------ how it stands

/// How the exchange with another cluster stands; without one, what there is here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetSync {
    pub remote: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SyncState {
    pub remote_tenant: Option<String>,
    pub pull_cursor: Option<String>,
    pub push_cursors: u64,
    pub pulled_at: Option<UnixMs>,
    pub pushed_at: Option<UnixMs>,
    pub pulls: u64,
    pub pushes: u64,
    pub facts_pulled: u64,
    pub facts_pushed: u64,
    pub conflicts: u64,
    pub local_facts: u64,
    /// There are more than were counted.
    pub counted_in_part: bool,
}

impl GetSync {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SyncState> {
        let tenant = at.caller.tenant.as_str();
        let (local_facts, counted_in_part) = shared::count(view, tenant, EVERYONE, COUNTED_ENTITIES_MAX)?;
        let Some(remote) = self.remote else { return Ok(Ok(SyncState { local_facts, counted_in_part, ..SyncState::default() })) };
        let remote = remote_of(view, tenant, &remote)?;
        Ok(Ok(SyncState {
            remote_tenant: remote.remote_tenant,
            pull_cursor: remote.pull.map(|mark| mark.cursor),
            push_cursors: remote.pushes.len() as u64,
            pulled_at: remote.pulled_at,
            pushed_at: remote.pushed_at,
            pulls: remote.pulls,
            pushes: remote.pushes_ended,
            facts_pulled: remote.facts_pulled,
            facts_pushed: remote.facts_pushed,
            conflicts: remote.conflicts,
            local_facts,
            counted_in_part,
        }))
    }
}

/// Pairs that differ there and here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListSyncConflicts {
    pub remote: String,
    /// The last pair of the page before.
    pub after: Option<(String, String)>,
    pub limit: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncConflicts {
    pub conflicts: Vec<SyncConflict>,
    pub more: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncConflict {
    pub entity: String,
    pub key: String,
    pub theirs: String,
    /// Our active version, if there still is one.
    pub ours: Option<String>,
    /// Ours is another one than when the two were compared.
    pub has_changed: bool,
}

impl ListSyncConflicts {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SyncConflicts> {
        let limit = match crate::query::rows(self.limit) {
            Ok(limit) => limit,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let tenant = at.caller.tenant.as_str();
        let ConflictPairs { pairs, more } = conflicts(view, tenant, &self.remote, self.after.as_ref(), limit)?;
        let mut listed = Vec::new();
        for SyncPair { entity, key, conflict, .. } in pairs {
            let Some(conflict) = conflict else { return Err(StorageError::corrupt("a pair stands among the conflicts and is in none")) };
            let ours = active(view, &head(view, tenant, EVERYONE, &entity, &key)?)?.map(|fact| fact.fact_id);
            let has_changed = ours.as_ref() != Some(&conflict.ours);
            listed.push(SyncConflict { entity, key, theirs: conflict.theirs, ours, has_changed });
        }
        Ok(Ok(SyncConflicts { conflicts: listed, more }))
    }
}

struct ConflictPairs {
    pairs: Vec<SyncPair>,
    more: bool,
}

fn conflicts(
    view: &impl Read,
    tenant: &str,
    remote: &str,
    after: Option<&(String, String)>,
    limit: usize,
) -> Result<ConflictPairs, StorageError> {
    let region = kind_prefix(tenant, Kind::SyncConflict).text(remote);
    let from = match after {
        None => region.as_bytes().to_vec(),
        Some((entity, key)) => region.clone().text(entity).text(key).byte(0).into_bytes(),
    };
    let mut rows = view.scan_bytes(Table::Index, &from, &region.after_prefix(), Direction::Ascending, limit + 1)?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let of_row = |(row, _): (Vec<u8>, Vec<u8>)| -> Result<SyncPair, StorageError> {
        let id = Key::new().text(remote).raw(&row[region.as_bytes().len()..]);
        view.get(tenant, &id)?.ok_or_else(|| StorageError::corrupt("a conflict of a pair that is not there"))
    };
    Ok(ConflictPairs { pairs: rows.into_iter().map(of_row).collect::<Result<_, _>>()?, more })
}
