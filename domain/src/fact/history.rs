//! The history of a pair: every version, oldest first.
//!
//! A plain name means the tenant's versions; where the tenant has none, the caller's private ones. Where both have some, the
//! private ones are read by their filed name. Reserved entities are readable, apart from other agents' private ones.

use serde::{Deserialize, Serialize};

use super::place::{Place, check_entity};
use super::recall::json_text_bytes;
use super::{Confidence, Fact, Head, State, pair_id};
use crate::cursor::Cursors;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES};
use crate::query::rows;
use crate::record::{ReadRecords, Record, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, Revision, UnixMs};
use crate::tx::{Read, StorageError};

/// Every version of one pair, oldest first, deleted ones included and marked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactHistory {
    pub entity: String,
    pub key: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactVersion {
    pub fact_id: String,
    pub value: String,
    pub version: u64,
    pub supersedes: Option<String>,
    pub superseded_by: Option<String>,
    pub confidence: Confidence,
    pub stored_at: UnixMs,
    pub deleted: bool,
    pub actor: String,
    pub revision: Revision,
    pub source_receipt: Option<String>,
    /// The receipt of the forgetting that took its value away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten_by: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FactVersions {
    pub versions: Vec<FactVersion>,
    pub next_cursor: Option<String>,
}

impl FactVersion {
    /// The most bytes that the version can have as compact JSON with the names of this struct.
    pub fn json_bytes(&self) -> usize {
        const NAMES: &str = r#"{"fact_id":,"value":,"version":,"supersedes":null,"superseded_by":null,"confidence":,"stored_at":"","deleted":false,"actor":,"revision":,"source_receipt":null,"forgotten_by":null}"#;
        const VERSION_CONFIDENCE_INSTANT_REVISION: usize = 20 + 8 + 24 + 20;
        let links = [&self.supersedes, &self.superseded_by, &self.source_receipt, &self.forgotten_by].into_iter().flatten();
        let texts: usize = [&self.fact_id, &self.value, &self.actor].into_iter().chain(links).map(|text| json_text_bytes(text)).sum();
        NAMES.len() + VERSION_CONFIDENCE_INSTANT_REVISION + texts
    }
}

/// Versions read from storage at once: each can be as large as a value may be.
const CHUNK: usize = 16;

impl FactHistory {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<FactVersions> {
        let cursors = Cursors::of("versions", &at.caller, &(&self.entity, &self.key));
        let (limit, after) = match self.check(&cursors, &at.caller) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let tenant = &at.caller.tenant;
        let mut pair = None;
        for place in Place::to_read(&self.entity, &at.caller) {
            let id = pair_id(&place.owner, &place.entity, &self.key);
            // A page goes on with the versions that the page before it showed.
            let is_it = match &after {
                Some((owner, _)) => *owner == place.owner,
                None => view.get::<Head>(tenant, &id)?.is_some(),
            };
            if is_it {
                pair = Some((place.owner, id));
                break;
            }
        }
        let Some((owner, id)) = pair else { return Ok(Ok(FactVersions { versions: Vec::new(), next_cursor: None })) };
        let (versions, next) = versions(view, tenant, &id, after.map(|(_, version)| version), limit)?;
        let position = next.map(|version| [&version.to_be_bytes()[..], owner.as_bytes()].concat());
        Ok(Ok(FactVersions { versions, next_cursor: position.map(|position| cursors.seal(&position)) }))
    }

    /// The rows of this page, and whose versions it goes on with from which on.
    fn check(&self, cursors: &Cursors, caller: &Principal) -> Result<(usize, Option<(String, u64)>), Refusal> {
        if let Some(refusal) = check_entity(&self.entity, caller).or_else(|| check_name("key", &self.key)) {
            return Err(refusal);
        }
        let limit = rows(self.limit)?;
        let Some(cursor) = &self.cursor else { return Ok((limit, None)) };
        let position = cursors.open(cursor)?;
        let parts = position
            .split_first_chunk()
            .and_then(|(version, owner)| Some((str::from_utf8(owner).ok()?.into(), u64::from_be_bytes(*version))));
        let after = parts.ok_or_else(|| Refusal::invalid("cursor", "is damaged"))?;
        Ok((limit, Some(after)))
    }
}

/// Versions of one pair from `from` on, and the first for which the reply has no room.
pub(super) fn versions(
    view: &impl Read,
    tenant: &str,
    pair: &Key,
    from: Option<u64>,
    limit: usize,
) -> Result<(Vec<FactVersion>, Option<u64>), StorageError> {
    let mut versions = Vec::new();
    let mut left = REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES;
    let mut from = from.map(|version| kind_prefix(tenant, Fact::KIND).raw(pair.as_bytes()).number(version).into_bytes());
    loop {
        let page = view.page::<Fact>(tenant, pair, from.as_deref(), CHUNK)?;
        for fact in page.items {
            let number = fact.version;
            let version = shown(fact);
            let bytes = version.json_bytes() + 1;
            if versions.len() == limit || bytes > left && !versions.is_empty() {
                return Ok((versions, Some(number)));
            }
            left = left.saturating_sub(bytes);
            versions.push(version);
        }
        from = match page.next {
            Some(next) => Some(next),
            None => return Ok((versions, None)),
        };
    }
}

fn shown(fact: Fact) -> FactVersion {
    FactVersion {
        deleted: matches!(fact.state(), State::Deleted | State::Forgotten),
        fact_id: fact.fact_id,
        value: fact.value,
        version: fact.version,
        supersedes: fact.supersedes,
        superseded_by: fact.superseded_by,
        confidence: fact.confidence,
        stored_at: fact.stored_at,
        actor: fact.actor,
        revision: fact.revision,
        source_receipt: fact.source_receipt,
        forgotten_by: fact.forgotten_by,
    }
}
