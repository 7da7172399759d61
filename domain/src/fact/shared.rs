//! What of a tenant's memory another cluster may have, and the order in which a reader follows it.
//!
//! A reader gets pairs as they stand now, not what happened to them, so it may get one twice and needs no order among them. It walks
//! all pairs first, by name, and from the revision where its walk began it follows the events; when those are gone, it walks anew.
//! A pair without an active version is told too, so that a copy goes when its original does. Invariants:
//! * A private fact is in no page, and neither is an entity whose beginning [`withheld`] names.
//! * What was copied from a third cluster is told as not there: two mirrors can't feed each other what both have lost.
//! * A page is bounded in rows and bytes, and never splits a revision.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::rank::State;
use super::{Confidence, EVERYONE, Fact, Head, HorizonClass, active, by_id, head, stored};
use crate::event::{self, Event, Watched};
use crate::limit::{SHARED_BYTES_PER_PAGE, SHARED_ROWS_PER_PAGE};
use crate::record::{Kind, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table};
use crate::{codec, identity};

/// Where a version came from that was not made in this cluster. Stored with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Origin {
    /// A copy of another cluster's version of this id.
    Pulled { remote: String, fact_id: String },
    /// Sent by another cluster, where it has this id.
    Promoted { fact_id: String },
}

/// Beginnings that stay in the cluster, besides all that begin with two underscores: what services keep, and what is about a
/// person's money, health and life.
const WITHHELD: [&str; 5] = ["decisions::", "github::", "finance:", "health:", "personal:"];

/// The beginning for which an entity never leaves the cluster, if it has one. Case and blanks in front don't matter.
pub fn withheld(entity: &str) -> Option<&'static str> {
    let entity = entity.trim_start();
    let begins = |prefix: &str| entity.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    ["__"].into_iter().chain(WITHHELD).find(|prefix| begins(prefix))
}

/// A pair as it stands now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedFact {
    pub entity: String,
    pub key: String,
    /// Its active version; none when it has no more.
    pub now: Option<SharedVersion>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedVersion {
    pub fact_id: String,
    pub value: String,
    /// In millionths.
    pub confidence: Confidence,
    pub horizon_class: HorizonClass,
    pub actor: String,
    /// From when its age counts.
    pub as_of: UnixMs,
}

impl SharedVersion {
    fn of(fact: Fact) -> Self {
        let as_of = fact.anchor();
        let Fact { fact_id, value, confidence, horizon_class, actor, .. } = fact;
        Self { fact_id, value, confidence, horizon_class, actor, as_of }
    }
}

/// The next page for a reader that is at `cursor`; none at its beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedFacts {
    pub cursor: Option<String>,
    /// Whose memory the reader thinks it is.
    pub tenant_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedPage {
    pub tenant_id: String,
    pub facts: Vec<SharedFact>,
    /// Where the reader is after this page.
    pub cursor: String,
    /// False when that is the end for now.
    pub more: bool,
}

impl SharedFacts {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SharedPage> {
        let tenant = &at.caller.tenant;
        if let Some(refusal) = self.tenant_id.as_deref().and_then(|claim| identity::check_named_tenant(&at.caller, claim)) {
            return Ok(Err(refusal));
        }
        let Pairs { pairs, cursor, more } = match read_on(view, at, self.cursor.as_deref())? {
            Ok(pairs) => pairs,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let facts = pairs.into_iter().filter_map(Pair::told).collect();
        Ok(Ok(SharedPage { tenant_id: tenant.clone(), facts, cursor, more }))
    }
}

/// How named pairs stand now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedPairs {
    /// Entity and key of each.
    pub pairs: Vec<(String, String)>,
    pub tenant_id: Option<String>,
}

impl SharedPairs {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SharedPage> {
        let tenant = &at.caller.tenant;
        if let Some(refusal) = self.tenant_id.as_deref().and_then(|claim| identity::check_named_tenant(&at.caller, claim)) {
            return Ok(Err(refusal));
        }
        let (size, limit) = (self.pairs.len() as u64, SHARED_ROWS_PER_PAGE as u64);
        if size > limit {
            return Ok(Err(Refusal::TooLong { field: "pairs".into(), size, limit, unit: "pairs".into() }));
        }
        let mut facts = Vec::new();
        for (entity, key) in self.pairs {
            let now = active(view, &head(view, tenant, EVERYONE, &entity, &key)?)?;
            facts.extend(Pair { entity, key, now }.told());
        }
        Ok(Ok(SharedPage { tenant_id: tenant.clone(), facts, cursor: String::new(), more: false }))
    }
}

/// A pair of the tenant and its active version, whether or not they may leave.
pub(super) struct Pair {
    pub entity: String,
    pub key: String,
    pub now: Option<Fact>,
}

impl Pair {
    fn told(self) -> Option<SharedFact> {
        let Self { entity, key, now } = self;
        if withheld(&entity).is_some() {
            return None;
        }
        let now = now.filter(|fact| !matches!(fact.origin, Some(Origin::Pulled { .. }))).map(SharedVersion::of);
        Some(SharedFact { entity, key, now })
    }
}

pub(super) struct Pairs {
    pub pairs: Vec<Pair>,
    pub cursor: String,
    pub more: bool,
}

/// Where a reader is.
enum Position {
    /// In its walk over all pairs, behind the one whose key ends so; what came after `since` is followed later.
    Walk { since: Revision, after: Vec<u8> },
    /// It has everything up to this revision.
    Follow { through: Revision },
}

impl Position {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let (word, revision) = (parts.next()?, Revision(parts.next()?.parse().ok()?));
        let position = match word {
            "walk" => Position::Walk { since: revision, after: hex::decode(parts.next()?).ok()? },
            "after" => Position::Follow { through: revision },
            _ => return None,
        };
        parts.next().is_none().then_some(position)
    }

    fn text(&self) -> String {
        match self {
            Position::Walk { since, after } => format!("walk.{since}.{}", hex::encode(after)),
            Position::Follow { through } => format!("after.{through}"),
        }
    }
}

/// The pairs behind a cursor.
pub(super) fn read_on(view: &impl Read, at: &ReadStamp, cursor: Option<&str>) -> Applied<Pairs> {
    let position = match cursor.map(Position::parse) {
        None => None,
        Some(Some(position)) => Some(position),
        Some(None) => return Ok(Err(Refusal::invalid("cursor", "is not one of this list; use it as it was given, or none"))),
    };
    let (since, after) = match position {
        None => (at.revision, Vec::new()),
        Some(Position::Walk { since, after }) => (since, after),
        Some(Position::Follow { through }) => match event::watch(view, &at.caller.tenant, through, SHARED_ROWS_PER_PAGE)? {
            Watched::Events(events) => return Ok(Ok(follow(view, at, through, events)?)),
            Watched::Compacted { .. } => (at.revision, Vec::new()),
        },
    };
    Ok(Ok(walk(view, at, since, after)?))
}

fn walk(view: &impl Read, at: &ReadStamp, since: Revision, after: Vec<u8>) -> Result<Pairs, StorageError> {
    let region = kind_prefix(&at.caller.tenant, Kind::FactHead).text(EVERYONE);
    // A key that a reader made up stays behind the prefix, and so in the tenant.
    let from = match after.is_empty() {
        true => region.as_bytes().to_vec(),
        false => region.clone().raw(&after).byte(0).into_bytes(),
    };
    let rows = view.scan_bytes(Table::Records, &from, &region.after_prefix(), Direction::Ascending, SHARED_ROWS_PER_PAGE)?;
    let is_full = rows.len() == SHARED_ROWS_PER_PAGE;
    let (mut pairs, mut bytes, mut passed, mut is_cut) = (Vec::new(), 0, after, false);
    for (row, content) in rows {
        let head: Head = codec::decode(&content).map_err(|error| StorageError::new("a pair to share", error))?;
        let now = active(view, &head)?;
        bytes += now.as_ref().map_or(0, |fact| fact.value.len());
        if bytes > SHARED_BYTES_PER_PAGE && !pairs.is_empty() {
            is_cut = true;
            break;
        }
        passed = row[region.as_bytes().len()..].to_vec();
        pairs.push(Pair { entity: head.entity, key: head.key, now });
    }
    let position = match is_full || is_cut {
        true => Position::Walk { since, after: passed },
        false => Position::Follow { through: since },
    };
    // At the end of a walk, what has happened meanwhile is still to come.
    let more = is_full || is_cut || since < at.revision;
    Ok(Pairs { pairs, cursor: position.text(), more })
}

fn follow(view: &impl Read, at: &ReadStamp, through: Revision, events: Vec<Event>) -> Result<Pairs, StorageError> {
    let is_full = events.len() >= SHARED_ROWS_PER_PAGE;
    let (mut pairs, mut told, mut bytes) = (Vec::new(), BTreeSet::new(), 0);
    let (mut passed, mut is_cut) = (through, false);
    for of_revision in events.chunk_by(|one, other| one.revision == other.revision) {
        if bytes > SHARED_BYTES_PER_PAGE {
            is_cut = true;
            break;
        }
        for id in of_revision.iter().flat_map(changed_ids) {
            let Some(fact) = shared(view, &at.caller.tenant, &id)? else { continue };
            if !told.insert((fact.entity.clone(), fact.key.clone())) {
                continue;
            }
            let now = match fact.state() {
                State::Active => Some(fact.clone()),
                _ => active(view, &head(view, &at.caller.tenant, EVERYONE, &fact.entity, &fact.key)?)?,
            };
            bytes += now.as_ref().map_or(0, |fact| fact.value.len());
            pairs.push(Pair { entity: fact.entity, key: fact.key, now });
        }
        passed = of_revision[0].revision;
    }
    let more = is_full || is_cut;
    // Nothing else happened up to now, so the reader need not come to this again.
    let through = if more { passed } else { at.revision.max(passed) };
    Ok(Pairs { pairs, cursor: Position::Follow { through }.text(), more })
}

/// The facts whose pairs an event is about.
fn changed_ids(event: &Event) -> Vec<String> {
    if !matches!(event.kind.as_str(), "fact.stored" | "fact.deleted" | "fact.recovered") {
        return Vec::new();
    }
    let superseded = event.about["superseded_fact_ids"].as_array().into_iter().flatten();
    let superseded = superseded.filter_map(|id| id.as_str().map(ToString::to_string));
    [event.id.clone()].into_iter().chain(superseded).collect()
}

/// The tenant's fact of this id; a private one is as none.
fn shared(view: &impl Read, tenant: &str, fact_id: &str) -> Result<Option<Fact>, StorageError> {
    let Some(id) = view.get_bytes(Table::Index, by_id(tenant, fact_id).as_bytes())? else { return Ok(None) };
    Ok(Some(stored(view, tenant, &id)?).filter(|fact| fact.owner == EVERYONE))
}

/// How many facts the tenant shares among its agents, and whether there are more than were counted.
pub(super) fn count(view: &impl Read, tenant: &str, owner: &str, entities_max: usize) -> Result<(u64, bool), StorageError> {
    let region = kind_prefix(tenant, Kind::EntityByName).text(owner);
    let rows = view.scan_bytes(Table::Index, region.as_bytes(), &region.after_prefix(), Direction::Ascending, entities_max + 1)?;
    let mut facts = 0;
    for (_, content) in rows.iter().take(entities_max) {
        let row: super::entities::Entity = codec::decode(content).map_err(|error| StorageError::new("entity", error))?;
        facts += row.active();
    }
    Ok((facts, rows.len() > entities_max))
}
