//! The whole content of results.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ask::tokens;
use super::source::{Document, Node, by_result_id, check_own_tenant};
use crate::fact::{self, Room, json_text_bytes};
use crate::graph;
use crate::limit::{EXPAND_IDS_BYTES_MAX, EXPAND_IDS_MAX};
use crate::pointer::{self, Pointer};
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::{Read, StorageError};

/// Shows what results of a search say, as it stands now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpandResults {
    pub tenant_id: String,
    pub result_ids: Vec<String>,
    pub token_budget: Option<u64>,
    /// With a pointer for each row.
    #[serde(default)]
    pub with_pointers: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expanded {
    /// In the order of the ids.
    pub results: Vec<ExpandedRow>,
    pub missing: Vec<MissingResult>,
    /// Ids for the next call: their content had no room here.
    pub not_shown: Vec<String>,
    /// `reply_bytes` or `token_budget` when there are such.
    pub truncated: Option<String>,
    /// Beside each row, if they were asked for.
    #[serde(default)]
    pub pointers: Vec<Pointer>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpandedRow {
    pub doc_id: String,
    pub kind: String,
    pub title: String,
    pub content: String,
    pub token_count: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MissingResult {
    pub doc_id: String,
    /// `invalid_format`, `not_found` or `not_active`.
    pub reason: String,
}

impl ExpandResults {
    fn check(&self, at: &ReadStamp) -> Result<(), Refusal> {
        if let Some(refusal) = check_own_tenant(&at.caller, &self.tenant_id) {
            return Err(refusal);
        }
        if self.token_budget == Some(0) {
            return Err(Refusal::invalid("token_budget", "must be at least 1"));
        }
        fact::at_most("result_ids", self.result_ids.len(), EXPAND_IDS_MAX, "ids")?;
        fact::at_most("result_ids", self.result_ids.iter().map(String::len).sum(), EXPAND_IDS_BYTES_MAX, "bytes")
    }

    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Expanded> {
        if let Err(refusal) = self.check(at) {
            return Ok(Err(refusal));
        }
        let mut seen = BTreeSet::new();
        let ids: Vec<String> = self.result_ids.into_iter().filter(|id| seen.insert(id.clone())).collect();
        let mut room = Room::of(self.token_budget, None);
        // Each id may have to be named apart from its content.
        room.reserve(ids.iter().map(|id| json_text_bytes(id) + MISSING_BYTES).sum());
        if self.with_pointers {
            // And once more as a pointer without its content.
            room.reserve(pointer::FRAME_BYTES + ids.iter().map(|id| json_text_bytes(id) + pointer::BARE_BYTES).sum::<usize>());
        }
        let mut expanded =
            Expanded { results: Vec::new(), missing: Vec::new(), not_shown: Vec::new(), truncated: None, pointers: Vec::new() };
        for id in ids {
            if expanded.truncated.is_some() {
                expanded.not_shown.push(id);
                continue;
            }
            let document = match by_result_id(view, at, &id)? {
                Ok(document) => document,
                Err(missing) => {
                    expanded.missing.push(MissingResult { doc_id: id, reason: missing.word().into() });
                    continue;
                }
            };
            let row = row(view, at, document)?;
            let pointer = self.with_pointers.then(|| Pointer::of(&row.doc_id, &row.content));
            match room.take(row.json_bytes() + pointer.as_ref().map_or(0, Pointer::json_bytes), expanded.results.is_empty()) {
                Ok(true) => {
                    expanded.results.push(row);
                    expanded.pointers.extend(pointer);
                }
                Ok(false) => {
                    expanded.truncated = Some(room.reason().into());
                    expanded.not_shown.push(id);
                }
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Ok(expanded))
    }
}

/// The names around an id that has no content here.
const MISSING_BYTES: usize = 44;

impl ExpandedRow {
    fn json_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |json| json.len())
    }
}

/// The whole of what a result says.
pub(super) fn content(view: &impl Read, at: &ReadStamp, document: &Document) -> Result<String, StorageError> {
    Ok(match &document.node {
        Node::Entity { kind, id } => {
            let entity = graph::current(view, &at.caller.tenant, kind, id)?;
            entity.map_or_else(String::new, |entity| entity.payload.to_string())
        }
        _ => document.text.clone(),
    })
}

fn row(view: &impl Read, at: &ReadStamp, document: Document) -> Result<ExpandedRow, StorageError> {
    let title = document.title();
    let content = content(view, at, &document)?;
    Ok(ExpandedRow { doc_id: document.id, kind: document.kind.into(), title, token_count: tokens(&content), content })
}
