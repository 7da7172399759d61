//! Ingested documents: texts of files, in passages that are found by their words.
//!
//! A document is named by its content: the same bytes, cut in the same way, are one document, whatever files have them. A name, such
//! as a path, points to one. Passages come in bounded batches, one entry each, and count from zero; whoever is interrupted asks how
//! far it got and goes on from there. Invariants:
//! * A name points to complete documents only: the version before is found until the new one is there whole.
//! * A document that no name points to, or is on its way to, is leaving: it is found no more, and a sweep takes its passages away.
//! * Passages `0..passages_stored` are there, and no others.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cursor::Cursors;
use crate::event;
use crate::fact::{Room, at_most, json_text_bytes};
use crate::identity::{check_name, check_name_start};
use crate::key::Key;
use crate::limit::{
    DOCUMENT_BYTES_MAX, DOCUMENT_NAMES_MAX, DOCUMENT_PASSAGES_MAX, DOCUMENTS_CHECKED_MAX, PASSAGE_BYTES_MAX, PASSAGES_PER_ENTRY_BYTES_MAX,
    PASSAGES_PER_ENTRY_MAX, PASSAGES_SWEPT_PER_ENTRY,
};
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// One content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ingested {
    pub tenant: String,
    pub document_id: String,
    /// BLAKE3 of the file, in hex.
    pub content_hash: String,
    pub media_type: String,
    /// Of the file.
    pub bytes: u64,
    /// How many it has, and how many of them are there.
    pub passages: u64,
    pub passages_stored: u64,
    /// Names that point to it.
    pub names: Vec<String>,
    /// The name that it is on its way to.
    pub pending_name: Option<String>,
    pub is_leaving: bool,
    pub actor: String,
    pub begun_at: UnixMs,
    pub completed_at: Option<UnixMs>,
}

impl Record for Ingested {
    const KIND: Kind = Kind::Document;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.document_id)
    }
}

impl Ingested {
    fn is_complete(&self) -> bool {
        self.passages_stored == self.passages && !self.is_leaving
    }

    fn is_held(&self) -> bool {
        !self.names.is_empty() || self.pending_name.is_some()
    }

    fn leaving_row(&self) -> Key {
        kind_prefix(CLUSTER, Kind::DocumentLeaving).text(&self.tenant).text(&self.document_id)
    }
}

/// Where a name points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Name {
    tenant: String,
    name: String,
    current: Option<String>,
    /// What it will point to once that is complete.
    pending: Option<String>,
}

impl Record for Name {
    const KIND: Kind = Kind::DocumentName;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.name)
    }
}

/// One part of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    pub tenant: String,
    pub document_id: String,
    pub n: u64,
    /// The name under which the document came first.
    pub name: String,
    /// Headings above it, joined by ` > `.
    pub heading: String,
    pub text: String,
}

impl Record for Passage {
    const KIND: Kind = Kind::Passage;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        passage_id(&self.document_id, self.n)
    }
}

fn passage_id(document_id: &str, n: u64) -> Key {
    Key::new().text(document_id).number(n)
}

const DOCUMENT: &str = "doc_";

impl Passage {
    /// Its id among results of a search.
    pub(crate) fn result_id(&self) -> String {
        format!("{}#{}", self.document_id, self.n)
    }
}

/// The record key of the passage that a result's id names, if it has that form.
pub(crate) fn passage_key(tenant: &str, result_id: &str) -> Option<Vec<u8>> {
    let (document_id, n) = result_id.strip_prefix(DOCUMENT).and(result_id.split_once('#'))?;
    let n: u64 = n.parse().ok()?;
    Some(kind_prefix(tenant, Kind::Passage).raw(passage_id(document_id, n).as_bytes()).into_bytes())
}

/// A name of the document that can be found, or nothing if it can't.
pub(crate) fn shown_name(view: &impl Read, tenant: &str, document_id: &str) -> Result<Option<String>, StorageError> {
    let document = stored(view, tenant, document_id)?;
    Ok(document.filter(Ingested::is_complete).and_then(|document| document.names.into_iter().next()))
}

fn stored(view: &impl Read, tenant: &str, document_id: &str) -> Result<Option<Ingested>, StorageError> {
    view.get(tenant, &Key::new().text(document_id))
}

fn name_of(view: &impl Read, tenant: &str, name: &str) -> Result<Name, StorageError> {
    let found: Option<Name> = view.get(tenant, &Key::new().text(name))?;
    Ok(found.unwrap_or_else(|| Name { tenant: tenant.into(), name: name.into(), current: None, pending: None }))
}

fn put_name(tx: &mut impl Tx, name: &Name) {
    match (&name.current, &name.pending) {
        (None, None) => tx.delete(name),
        _ => tx.put(name),
    }
}

fn document_id(content_hash: &str, passages: u64) -> String {
    // With another cut the same bytes are other passages.
    let hash = blake3::hash(format!("{content_hash}/{passages}").as_bytes());
    format!("{DOCUMENT}{}", &hash.to_hex()[..32])
}

fn check_content_hash(hash: &str) -> Result<(), Refusal> {
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match is_hash {
        true => Ok(()),
        false => Err(Refusal::invalid("content_hash", "must be 64 lowercase hex digits, the BLAKE3 of the file")),
    }
}

// ------------------------------------------------------------------ writes

/// Tells what is coming, and asks how much of it is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BeginDocument {
    pub name: String,
    pub content_hash: String,
    pub media_type: String,
    pub bytes: u64,
    pub passages: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentBegun {
    pub document_id: String,
    /// The first passage that is missing.
    pub next_passage: u64,
    pub is_complete: bool,
    /// Whether the name pointed to this content before.
    pub is_unchanged: bool,
}

impl BeginDocument {
    fn check(&self) -> Result<(), Refusal> {
        check_name("name", &self.name).map_or(Ok(()), Err)?;
        check_name("media_type", &self.media_type).map_or(Ok(()), Err)?;
        check_content_hash(&self.content_hash)?;
        at_most("content", usize::try_from(self.bytes).unwrap_or(usize::MAX), DOCUMENT_BYTES_MAX, "bytes")?;
        at_most("content", usize::try_from(self.passages).unwrap_or(usize::MAX), DOCUMENT_PASSAGES_MAX, "passages")?;
        match self.passages {
            0 => Err(Refusal::invalid("content", "has no text")),
            _ => Ok(()),
        }
    }

    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<DocumentBegun> {
        if let Err(refusal) = self.check() {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let document_id = document_id(&self.content_hash, self.passages);
        let mut name = name_of(tx, tenant, &self.name)?;
        let found = stored(tx, tenant, &document_id)?;
        let mut document = found.unwrap_or_else(|| Ingested {
            tenant: tenant.clone(),
            document_id: document_id.clone(),
            content_hash: self.content_hash,
            media_type: self.media_type,
            bytes: self.bytes,
            passages: self.passages,
            passages_stored: 0,
            names: Vec::new(),
            pending_name: None,
            is_leaving: false,
            actor: at.caller.passport.clone(),
            begun_at: at.wall,
            completed_at: None,
        });
        let is_unchanged = name.current.as_ref() == Some(&document_id);
        if !is_unchanged && document.names.len() >= DOCUMENT_NAMES_MAX {
            return Ok(Err(Refusal::Full {
                what: "the list of names of this content".into(),
                limit: DOCUMENT_NAMES_MAX as u64,
                retry_after_ms: 0,
            }));
        }
        // Somebody's other name for it that was never finished gives way.
        if let Some(other) = document.pending_name.take().filter(|other| *other != self.name) {
            let mut other = name_of(tx, tenant, &other)?;
            other.pending = None;
            put_name(tx, &other);
        }
        if document.is_leaving {
            document.is_leaving = false;
            tx.delete_index(document.leaving_row());
        }
        let abandoned = name.pending.take().filter(|pending| *pending != document_id);
        if !is_unchanged {
            name.pending = Some(document_id.clone());
            document.pending_name = Some(self.name);
        }
        put_name(tx, &name);
        tx.put(&document);
        if let Some(abandoned) = abandoned {
            let_go(tx, tenant, &abandoned, |document| document.pending_name = None)?;
        }
        let next_passage = document.passages_stored;
        let is_complete = document.is_complete();
        if is_complete && !is_unchanged {
            complete(tx, at, document)?;
        }
        Ok(Ok(DocumentBegun { document_id, next_passage, is_complete, is_unchanged }))
    }
}

/// Takes something from a document, which leaves when nothing holds it any more.
fn let_go(tx: &mut impl Tx, tenant: &str, document_id: &str, with: impl FnOnce(&mut Ingested)) -> Result<(), StorageError> {
    let Some(mut document) = stored(tx, tenant, document_id)? else { return Ok(()) };
    with(&mut document);
    if !document.is_held() && !document.is_leaving {
        document.is_leaving = true;
        tx.put_index(document.leaving_row(), &crate::codec::encode(&(tenant, document_id)));
    }
    tx.put(&document);
    Ok(())
}

/// Turns the name that waits for it to a document that is all there.
fn complete(tx: &mut impl Tx, at: &Stamp, mut document: Ingested) -> Result<(), StorageError> {
    let Some(name) = document.pending_name.take() else { return Ok(()) };
    let tenant = document.tenant.clone();
    let mut points = name_of(tx, &tenant, &name)?;
    let before = points.current.replace(document.document_id.clone());
    points.pending = None;
    tx.put(&points);
    document.names.push(name.clone());
    document.completed_at = Some(document.completed_at.unwrap_or(at.wall));
    tx.put(&document);
    if let Some(before) = before {
        let_go(tx, &tenant, &before, |old| old.names.retain(|other| *other != name))?;
    }
    let about = json!({ "name": name, "passages": document.passages, "actor": at.caller.passport });
    event::emit(tx, at, "document.ingested", &document.document_id, about)
}

/// Some passages, in their order. With the last one the document can be found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddPassages {
    pub document_id: String,
    /// The number of the first one.
    pub from: u64,
    pub passages: Vec<PassageText>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassageText {
    pub heading: String,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassagesAdded {
    pub next_passage: u64,
    pub is_complete: bool,
}

impl AddPassages {
    fn check(&self) -> Result<(), Refusal> {
        at_most("passages", self.passages.len(), PASSAGES_PER_ENTRY_MAX, "passages")?;
        let bytes = self.passages.iter().map(|passage| passage.text.len() + passage.heading.len()).sum();
        at_most("passages", bytes, PASSAGES_PER_ENTRY_BYTES_MAX, "bytes")?;
        for passage in &self.passages {
            at_most("text", passage.text.len(), PASSAGE_BYTES_MAX, "bytes")?;
            check_name_start("heading", &passage.heading).map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<PassagesAdded> {
        if let Err(refusal) = self.check() {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let found = stored(tx, tenant, &self.document_id)?.filter(|document| document.pending_name.is_some());
        let (Some(mut document), true) = (found, self.document_id.starts_with(DOCUMENT)) else {
            return Ok(Err(Refusal::not_found("document on its way", self.document_id)));
        };
        let (stored, coming) = (document.passages_stored, self.passages.len() as u64);
        if self.from != stored {
            let (expected, found) = (format!("passage {}", self.from), format!("passage {stored} to be the next"));
            return Ok(Err(Refusal::Changed { what: "document".into(), id: self.document_id, expected, found }));
        }
        if stored + coming > document.passages {
            return Ok(Err(Refusal::invalid("passages", format!("go beyond the {} that were told", document.passages))));
        }
        let name = document.pending_name.clone().unwrap_or_default();
        for (n, PassageText { heading, text }) in (stored..).zip(self.passages) {
            tx.put(&Passage { tenant: tenant.clone(), document_id: self.document_id.clone(), n, name: name.clone(), heading, text });
        }
        document.passages_stored += coming;
        let (next_passage, is_complete) = (document.passages_stored, document.is_complete());
        tx.put(&document);
        if is_complete {
            complete(tx, at, document)?;
        }
        Ok(Ok(PassagesAdded { next_passage, is_complete }))
    }
}

/// Takes a name away, and with the last one the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoveDocument {
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentRemoved {
    /// False when there was no such name.
    pub removed: bool,
}

impl RemoveDocument {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<DocumentRemoved> {
        if let Some(refusal) = check_name("name", &self.name) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let name = name_of(tx, tenant, &self.name)?;
        if name.current.is_none() && name.pending.is_none() {
            return Ok(Ok(DocumentRemoved { removed: false }));
        }
        tx.delete(&name);
        if let Some(pending) = &name.pending {
            let_go(tx, tenant, pending, |document| document.pending_name = None)?;
        }
        if let Some(current) = &name.current {
            let_go(tx, tenant, current, |document| document.names.retain(|other| *other != self.name))?;
            event::emit(tx, at, "document.removed", current, json!({ "name": self.name, "actor": at.caller.passport }))?;
        }
        Ok(Ok(DocumentRemoved { removed: true }))
    }
}

/// Takes passages of leaving documents away, the last first, a bounded number.
pub(crate) fn sweep(tx: &mut impl Tx) -> Result<(), StorageError> {
    let leaving = kind_prefix(CLUSTER, Kind::DocumentLeaving);
    let rows = tx.scan_bytes(Table::Index, leaving.as_bytes(), &leaving.after_prefix(), Direction::Ascending, 1)?;
    let Some((_, row)) = rows.first() else { return Ok(()) };
    let (tenant, document_id): (String, String) =
        crate::codec::decode(row).map_err(|error| StorageError::new("a leaving document", error))?;
    let document = stored(tx, &tenant, &document_id)?;
    let mut document = document.ok_or_else(|| StorageError::corrupt("a row points to a document that is not there"))?;
    let left = document.passages_stored.saturating_sub(PASSAGES_SWEPT_PER_ENTRY);
    for n in left..document.passages_stored {
        let passage: Option<Passage> = tx.get(&tenant, &passage_id(&document_id, n))?;
        tx.delete(&passage.ok_or_else(|| StorageError::corrupt("a passage of a leaving document is not there"))?);
    }
    document.passages_stored = left;
    match left {
        0 => {
            tx.delete_index(document.leaving_row());
            tx.delete(&document);
        }
        _ => tx.put(&document),
    }
    Ok(())
}

// ------------------------------------------------------------------ reads

/// Which of these names point to these contents already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckDocuments {
    /// Names, and BLAKE3 of their files in hex.
    pub documents: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentsChecked {
    /// In the order of the question.
    pub unchanged: Vec<bool>,
}

impl CheckDocuments {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<DocumentsChecked> {
        if let Err(refusal) = at_most("documents", self.documents.len(), DOCUMENTS_CHECKED_MAX, "documents") {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let mut unchanged = Vec::new();
        for (name, content_hash) in self.documents {
            if let Err(refusal) = check_name("name", &name).map_or(Ok(()), Err).and_then(|()| check_content_hash(&content_hash)) {
                return Ok(Err(refusal));
            }
            let current = name_of(view, tenant, &name)?.current;
            let document = current.map(|id| stored(view, tenant, &id)).transpose()?.flatten();
            unchanged.push(document.is_some_and(|document| document.content_hash == content_hash));
        }
        Ok(Ok(DocumentsChecked { unchanged }))
    }
}

/// Names and what they point to, sorted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListDocuments {
    pub name_prefix: Option<String>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DocumentRow {
    pub name: String,
    pub document_id: String,
    pub content_hash: String,
    pub media_type: String,
    pub bytes: u64,
    pub passages: u64,
    pub passages_stored: u64,
    /// False while it is on its way; then it can't be found yet.
    pub is_complete: bool,
    pub actor: String,
    pub ingested_at: UnixMs,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Documents {
    pub documents: Vec<DocumentRow>,
    pub next_cursor: Option<String>,
}

/// What a row takes of a reply beside its texts.
const ROW_BYTES: usize = 360;

impl ListDocuments {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Documents> {
        let prefix = self.name_prefix.unwrap_or_default();
        if let Some(refusal) = check_name_start("name_prefix", &prefix) {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("documents", &at.caller, &prefix);
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let tenant = &at.caller.tenant;
        let start = kind_prefix(tenant, Kind::DocumentName).text_prefix(&prefix);
        let (rows, mut next) = view.page_bytes(Table::Records, &start, from.as_deref(), limit)?;
        let (mut documents, mut room) = (Vec::new(), Room::of(None, None));
        for (key, bytes) in rows {
            let name: Name = crate::codec::decode(&bytes).map_err(|error| StorageError::new("name of a document", error))?;
            let Some(id) = name.current.as_ref().or(name.pending.as_ref()) else { continue };
            let document = stored(view, tenant, id)?.ok_or_else(|| StorageError::corrupt("a name points to no document"))?;
            let bytes = json_text_bytes(&name.name) + json_text_bytes(&document.actor) + json_text_bytes(&document.media_type) + ROW_BYTES;
            if room.take(bytes, documents.is_empty()) != Ok(true) {
                next = Some(key);
                break;
            }
            documents.push(DocumentRow {
                is_complete: name.current.is_some(),
                name: name.name,
                document_id: document.document_id,
                content_hash: document.content_hash,
                media_type: document.media_type,
                bytes: document.bytes,
                passages: document.passages,
                passages_stored: document.passages_stored,
                actor: document.actor,
                ingested_at: document.completed_at.unwrap_or(document.begun_at),
            });
        }
        Ok(Ok(Documents { documents, next_cursor: next.map(|next| cursors.seal(&next)) }))
    }
}
