//! What is found: active facts, work, entities of the graph, and passages of ingested documents.

use serde_json::Value;

use crate::document::{Passage, passage_key, shown_name};
use crate::fact::{self, EVERYONE, Found, Searchable};
use crate::graph::Entity;
use crate::identity::check_tenant;
use crate::key::Key;
use crate::record::{Kind, kind_prefix};
use crate::refusal::Refusal;
use crate::stamp::{Principal, ReadStamp};
use crate::tx::{Direction, Read, StorageError, Table};
use crate::work::Work;
use crate::{codec, graph};

/// One thing that can be found.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The key of its record.
    pub key: Vec<u8>,
    pub tenant: String,
    /// The passport that alone sees it, or nobody in particular.
    pub owner: String,
    /// The id under which results name it: the same for as long as it says the same.
    pub id: String,
    /// `fact`, `work`, `entity` or `document`.
    pub kind: &'static str,
    /// What it is called, the best name first.
    pub names: Vec<String>,
    pub text: String,
    /// Its place among the passages of its document.
    pub segment: u64,
    /// Whether searches show it; lists of its own kind do in any case.
    pub is_shown: bool,
    /// The entity of the graph that it is, or the name of the one that it speaks of.
    pub(crate) node: Node,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Entity { kind: String, id: String },
    About(String),
    Passage { document_id: String },
    None,
}

const SEARCHABLE: [Kind; 4] = [Kind::Fact, Kind::Work, Kind::GraphEntity, Kind::Passage];

/// The tenant and the kind of a record, by its key.
fn parts(key: &[u8]) -> Option<(String, u8)> {
    let tenant = Key::leading_text(key)?;
    let kind = *key.get(Key::new().text(&tenant).as_bytes().len())?;
    Some((tenant, kind))
}

/// Whether this is the key of a record that can be found.
pub(super) fn is_searchable(key: &[u8]) -> bool {
    kind_of(key).is_some_and(|byte| SEARCHABLE.iter().any(|kind| *kind as u8 == byte))
}

pub(crate) fn is_of_kind(key: &[u8], kind: Kind) -> bool {
    kind_of(key) == Some(kind as u8)
}

fn kind_of(key: &[u8]) -> Option<u8> {
    // The kind stands behind the end of the first text, which is the first zero with a one behind it.
    let end = key.windows(2).position(|pair| pair == [0, 1])?;
    key.get(end + 2).copied()
}

/// What stands under a record's key, if it is there and can be found.
pub fn document(view: &(impl Read + ?Sized), key: &[u8]) -> Result<Option<Document>, StorageError> {
    match view.get_bytes(Table::Records, key)? {
        Some(bytes) => decode(key, &bytes),
        None => Ok(None),
    }
}

fn decode(key: &[u8], bytes: &[u8]) -> Result<Option<Document>, StorageError> {
    let Some((tenant, kind)) = parts(key) else { return Ok(None) };
    let Some(kind) = SEARCHABLE.into_iter().find(|searchable| *searchable as u8 == kind) else { return Ok(None) };
    let key = key.to_vec();
    Ok(match kind {
        Kind::Fact => read::<Searchable>(bytes)?.into_document(key),
        Kind::Work => {
            let work: Work = read(bytes)?;
            Some(Document {
                key,
                tenant,
                owner: EVERYONE.into(),
                id: work.id,
                kind: "work",
                names: vec![work.title],
                text: work.body.unwrap_or_default(),
                segment: 0,
                is_shown: true,
                node: Node::None,
            })
        }
        Kind::GraphEntity => {
            let entity: Entity = read(bytes)?;
            (!entity.deleted).then(|| of_entity(key, entity))
        }
        _ => {
            let passage: Passage = read(bytes)?;
            Some(Document {
                key,
                tenant,
                owner: EVERYONE.into(),
                id: passage.result_id(),
                kind: "document",
                names: [passage.name, passage.heading].into_iter().filter(|name| !name.is_empty()).collect(),
                text: passage.text,
                segment: passage.n,
                is_shown: true,
                node: Node::Passage { document_id: passage.document_id },
            })
        }
    })
}

fn read<R: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<R, StorageError> {
    codec::decode(bytes).map_err(|error| StorageError::new("a record that can be found", error))
}

fn of_entity(key: Vec<u8>, entity: Entity) -> Document {
    let mut texts = Vec::new();
    gather(&entity.payload, &mut texts);
    Document {
        key,
        owner: EVERYONE.into(),
        id: graph::result_id(&entity.kind, &entity.id),
        kind: "entity",
        names: vec![entity.id.clone(), entity.kind.clone()],
        text: texts.join("\n"),
        segment: 0,
        is_shown: true,
        node: Node::Entity { kind: entity.kind, id: entity.id },
        tenant: entity.tenant,
    }
}

/// The texts and numbers of a payload, with the names of its fields; it is never deep.
fn gather(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Number(number) => texts.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| gather(item, texts)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            texts.push(name.clone());
            gather(value, texts);
        }),
        Value::Null | Value::Bool(_) => {}
    }
}

impl Document {
    pub fn is_visible_to(&self, caller: &Principal) -> bool {
        self.tenant == caller.tenant && (self.owner == EVERYONE || self.owner == caller.passport)
    }

    /// As lists of results show it.
    pub(crate) fn title(&self) -> String {
        let title = match self.kind {
            "fact" => self.names.iter().rev().cloned().collect::<Vec<_>>().join(" / "),
            _ => self.names.first().cloned().unwrap_or_default(),
        };
        cut(&title, TITLE_BYTES_MAX)
    }
}

const TITLE_BYTES_MAX: usize = 160;

/// A text of one line, with a mark where it was cut.
pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() <= bytes_max {
        return line;
    }
    let end = (0..=bytes_max).rev().find(|&end| line.is_char_boundary(end)).unwrap_or(0);
    format!("{}…", &line[..end])
}

/// What stands under a record's key, if the caller may see it now.
pub(crate) fn visible(view: &impl Read, at: &ReadStamp, key: &[u8]) -> Result<Option<Document>, StorageError> {
    let Some(mut document) = document(view, key)?.filter(|document| document.is_visible_to(&at.caller)) else { return Ok(None) };
    if let Node::Passage { document_id } = &document.node {
        // It has the names that point to its document now, and is found as long as there is one.
        let Some(name) = shown_name(view, &at.caller.tenant, document_id)? else { return Ok(None) };
        document.names[0] = name;
    }
    Ok(Some(document))
}

/// What callers write who know of no tenants: their own.
const OWN_TENANT: &str = "local";

/// Refuses a search in another tenant.
pub(super) fn check_own_tenant(caller: &Principal, claim: &str) -> Option<Refusal> {
    check_tenant(caller, Some(claim).filter(|claim| *claim != OWN_TENANT))
}

/// Why an id names nothing that can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    InvalidFormat,
    NotFound,
    /// The caller may know of it, and it is superseded or deleted.
    NotActive,
}

impl Missing {
    pub(super) fn word(self) -> &'static str {
        match self {
            Missing::InvalidFormat => "invalid_format",
            Missing::NotFound => "not_found",
            Missing::NotActive => "not_active",
        }
    }
}

/// What a result's id names, if the caller may see it.
pub(super) fn by_result_id(view: &impl Read, at: &ReadStamp, id: &str) -> Result<Result<Document, Missing>, StorageError> {
    let tenant = &at.caller.tenant;
    let key = if id.starts_with("f_") {
        match fact::find(view, &at.caller, id)? {
            Found::Active(key) => Some(key),
            Found::Retired => return Ok(Err(Missing::NotActive)),
            Found::No => None,
        }
    } else if id.starts_with("w_") {
        Some(kind_prefix(tenant, Kind::Work).text(id).into_bytes())
    } else if let Some((kind, id)) = graph::parse_result_id(id) {
        Some(graph::entity_key(tenant, &kind, &id))
    } else if let Some(key) = passage_key(tenant, id) {
        Some(key)
    } else {
        return Ok(Err(Missing::InvalidFormat));
    };
    let document = key.map(|key| visible(view, at, &key)).transpose()?.flatten();
    Ok(document.ok_or(Missing::NotFound))
}

/// A part of a walk over everything that can be found.
pub struct Walked {
    pub documents: Vec<Document>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<Vec<u8>>,
}

/// Walks all tenants, for an index that is built anew: at most `limit` rows of the records at a time.
pub fn walk(view: &(impl Read + ?Sized), from: &[u8], limit: usize) -> Result<Walked, StorageError> {
    let rows = view.scan_bytes(Table::Records, from, &[0xFF; 2], Direction::Ascending, limit)?;
    let mut next = None;
    if rows.len() == limit
        && let Some((last, _)) = rows.last()
    {
        next = Some(next_kind(last).unwrap_or_else(|| [last.as_slice(), &[0]].concat()));
    }
    let documents = rows.iter().filter_map(|(key, bytes)| decode(key, bytes).transpose()).collect::<Result<_, _>>()?;
    Ok(Walked { documents, next })
}

/// Where the next searchable kind of the same tenant begins, or what follows the tenant, from a row that can't be found.
fn next_kind(key: &[u8]) -> Option<Vec<u8>> {
    let (tenant, kind) = parts(key)?;
    let mut numbers: Vec<u8> = SEARCHABLE.iter().map(|kind| *kind as u8).collect();
    numbers.sort_unstable();
    match numbers.iter().find(|number| **number >= kind) {
        Some(number) if *number == kind => None,
        Some(number) => Some(Key::new().text(&tenant).byte(*number).into_bytes()),
        None => Some(Key::new().text(&tenant).after_prefix()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_that_can_be_found_are_told_by_their_keys() {
        for tenant in ["acme", "a\0b", "ü"] {
            let key = |kind: Kind| kind_prefix(tenant, kind).text("x").into_bytes();
            assert!(is_searchable(&key(Kind::Fact)) && is_searchable(&key(Kind::Work)));
            assert!(!is_searchable(&key(Kind::FactHead)) && !is_searchable(&key(Kind::Punchcard)));
            assert_eq!(next_kind(&key(Kind::FactHead)), Some(Key::new().text(tenant).byte(Kind::Work as u8).into_bytes()));
            assert_eq!(next_kind(&key(Kind::Fact)), None);
        }
        assert!(!is_searchable(b"") && !is_searchable(b"a\0\x01"));
    }
}
