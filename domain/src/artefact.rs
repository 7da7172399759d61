//! Artefacts: outputs that an agent parks and reads again, by the hash of their bytes.
//!
//! The bytes lie in the blob store of the nodes, outside of the log; here is who parked what, and until when. Invariants:
//! * An artefact is one passport's own: the same bytes parked by two are two artefacts of one id, each with its own metadata and end.
//! * A blob is named as long as one artefact of any tenant is made of it. What names it is in the same writes as the artefact.
//! * A command that names a blob is proposed only after a quorum of the nodes has it on disk: that is the nodes' part.
//!
//! Decisions:
//! * Parking the same bytes again renews: metadata and end are the new ones.
//! * Another passport's artefact is refused as such, and not as one that does not exist, so that the attempt can be seen.
//! * An artefact that has run out is gone from that instant on the lease clock, whether a sweep has met it or not.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cursor::Cursors;
use crate::deadline::{self, Lapsed};
use crate::event;
use crate::fact::envelope_bytes;
use crate::flag;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{ARTEFACT_BYTES_MAX, ARTEFACT_TTL_S_MAX, ARTEFACTS_MAX, REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES, SCAN_ROWS_MAX};
use crate::query::rows;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, Principal, ReadStamp, Revision, Stamp, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// What stands before the hash in an id.
const PREFIX: &str = "art_";
/// Beginnings of MIME labels that lists leave out: what the service parks for itself.
const RESERVED_MIME: &str = "application/x-cuecrux-internal";

/// Bytes of a blob's hash.
pub type BlobHash = [u8; 32];

/// The hash in an artefact's id.
pub fn blob_of(artefact_id: &str) -> Option<BlobHash> {
    let digits = artefact_id.strip_prefix(PREFIX)?;
    let bytes: BlobHash = hex::decode(digits).ok()?.try_into().ok()?;
    // One spelling: upper case would be a second id of the same.
    (hex::encode(bytes) == digits).then_some(bytes)
}

pub fn artefact_id(hash: &BlobHash) -> String {
    format!("{PREFIX}{}", hex::encode(hash))
}

/// One parked output, as stored and shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Artefact {
    pub tenant: String,
    pub passport: String,
    pub artefact_id: String,
    pub mime_type: String,
    pub tool_origin: Option<String>,
    pub size_bytes: u64,
    pub created_at: UnixMs,
    pub expires_at: Option<UnixMs>,
    pub revision: Revision,
    /// Its end on the lease clock.
    pub deadline: Option<LeaseTime>,
}

impl Record for Artefact {
    const KIND: Kind = Kind::Artefact;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        id(&self.passport, &self.artefact_id)
    }
}

impl Timed for Artefact {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.deadline = self.deadline.map(to);
    }
}

fn id(passport: &str, artefact_id: &str) -> Key {
    Key::new().text(passport).text(artefact_id)
}

impl Artefact {
    fn is_over(&self, now: LeaseTime) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Its place among its passport's, newest first.
    fn order(&self) -> Key {
        kind_prefix(&self.tenant, Kind::ArtefactOrder).text(&self.passport).number_descending(self.revision.0)
    }

    fn by_blob(&self) -> Key {
        holders(&self.tenant, &self.artefact_id).text(&self.passport)
    }

    /// What a deadline is filed under: passports are in it, so no two of a tenant are the same.
    fn deadline_id(&self) -> String {
        format!("{}/{}", self.artefact_id, self.passport)
    }
}

/// Who of a tenant has parked these bytes.
fn holders(tenant: &str, artefact_id: &str) -> Key {
    kind_prefix(tenant, Kind::ArtefactByBlob).text(artefact_id)
}

/// Which tenants name a blob, in one order over the cluster.
fn named(hash: &str) -> Key {
    kind_prefix(CLUSTER, Kind::BlobNamed).text(hash)
}

/// How many a passport has parked.
#[derive(Serialize, Deserialize)]
struct Count {
    tenant: String,
    passport: String,
    count: u64,
}

impl Record for Count {
    const KIND: Kind = Kind::ArtefactCount;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.passport)
    }
}

fn count(tx: &mut impl Tx, artefact: &Artefact, change: i64) -> Result<u64, StorageError> {
    let known: Option<Count> = tx.get(&artefact.tenant, &Key::new().text(&artefact.passport))?;
    let before = known.map_or(0, |known| known.count);
    let count = before.checked_add_signed(change).ok_or_else(|| StorageError::corrupt("a passport has fewer artefacts than none"))?;
    tx.put(&Count { tenant: artefact.tenant.clone(), passport: artefact.passport.clone(), count });
    Ok(count)
}

fn put(tx: &mut impl Tx, artefact: &Artefact) {
    tx.put(artefact);
    tx.put_index(artefact.order(), artefact.artefact_id.as_bytes());
    tx.put_index(artefact.by_blob(), &[]);
    tx.put_index(named(&artefact.artefact_id).text(&artefact.tenant), artefact.artefact_id.as_bytes());
    if let Some(deadline) = artefact.deadline {
        deadline::put(tx, Kind::ArtefactByDeadline, deadline, &artefact.tenant, &artefact.deadline_id());
    }
}

fn take_out(tx: &mut impl Tx, artefact: &Artefact) -> Result<(), StorageError> {
    tx.delete(artefact);
    tx.delete_index(artefact.order());
    tx.delete_index(artefact.by_blob());
    if let Some(deadline) = artefact.deadline {
        deadline::delete(tx, Kind::ArtefactByDeadline, deadline, &artefact.tenant, &artefact.deadline_id());
    }
    let all = holders(&artefact.tenant, &artefact.artefact_id);
    if tx.scan_bytes(Table::Index, all.as_bytes(), &all.after_prefix(), Direction::Ascending, 1)?.is_empty() {
        tx.delete_index(named(&artefact.artefact_id).text(&artefact.tenant));
    }
    Ok(())
}

/// The blob that a row of a tenant names, by its key.
pub(crate) fn blob_of_row(tenant: &str, table: Table, key: &[u8]) -> Option<BlobHash> {
    let rest = key.strip_prefix(kind_prefix(tenant, Kind::ArtefactByBlob).as_bytes()).filter(|_| table == Table::Index)?;
    blob_of(&Key::leading_text(rest)?)
}

/// Enters the blob that a row names, where all blobs of all tenants stand.
pub(crate) fn name_blob(tx: &mut impl Tx, tenant: &str, table: Table, key: &[u8]) {
    if let Some(hash) = blob_of_row(tenant, table, key) {
        let id = artefact_id(&hash);
        tx.put_index(named(&id).text(tenant), id.as_bytes());
    }
}

/// Whether any record of any tenant is made of this blob.
pub fn is_named(view: &impl Read, hash: &BlobHash) -> Result<bool, StorageError> {
    let all = named(&artefact_id(hash));
    Ok(!view.scan_bytes(Table::Index, all.as_bytes(), &all.after_prefix(), Direction::Ascending, 1)?.is_empty())
}

/// Blobs that records are made of, from `from` on, and where the next page begins. One of two tenants is in it twice.
pub fn blobs_named(view: &impl Read, from: Option<&[u8]>, limit: usize) -> Result<(Vec<BlobHash>, Option<Vec<u8>>), StorageError> {
    let (rows, next) = view.page_bytes(Table::Index, &kind_prefix(CLUSTER, Kind::BlobNamed), from, limit)?;
    let hash = |(_, id): &(Vec<u8>, Vec<u8>)| std::str::from_utf8(id).ok().and_then(blob_of);
    let hashes = rows.iter().map(|row| hash(row).ok_or_else(|| StorageError::corrupt("a blob's name is no hash")));
    Ok((hashes.collect::<Result<_, _>>()?, next))
}

// ------------------------------------------------------------------ artefact_put

/// Parks bytes that the nodes hold already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutArtefact {
    pub artefact_id: String,
    pub size_bytes: u64,
    pub mime_type: String,
    pub tool_origin: Option<String>,
    /// 0: it never expires.
    pub ttl_seconds: u64,
}

impl PutArtefact {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Artefact> {
        if let Some(refusal) = flag::refuse_off(tx, flag::ARTEFACTS, "artefact_put")? {
            return Ok(Err(refusal));
        }
        if let Err(refusal) = self.check() {
            return Ok(Err(refusal));
        }
        let Principal { tenant, passport, .. } = &at.caller;
        let ttl_ms = self.ttl_seconds * 1_000;
        let artefact = Artefact {
            tenant: tenant.clone(),
            passport: passport.clone(),
            artefact_id: self.artefact_id,
            mime_type: self.mime_type,
            tool_origin: self.tool_origin,
            size_bytes: self.size_bytes,
            created_at: at.wall,
            expires_at: (ttl_ms > 0).then(|| UnixMs(at.wall.0.saturating_add(ttl_ms))),
            revision: at.revision,
            deadline: (ttl_ms > 0).then(|| at.lease_now.plus_ms(ttl_ms)),
        };
        match tx.get::<Artefact>(tenant, &artefact.id())? {
            Some(known) => take_out(tx, &known)?,
            None if count(tx, &artefact, 1)? > ARTEFACTS_MAX => {
                return Ok(Err(Refusal::Full { what: "the list of your artefacts".into(), limit: ARTEFACTS_MAX, retry_after_ms: 60_000 }));
            }
            None => {}
        }
        put(tx, &artefact);
        // Of its owner alone: what it is called says nothing to others.
        event::emit(tx, at, "artefact.put", &artefact.artefact_id, json!({ "actor": passport }))?;
        Ok(Ok(artefact))
    }

    fn check(&self) -> Result<(), Refusal> {
        if blob_of(&self.artefact_id).is_none() {
            return Err(Refusal::invalid("artefact_id", "must be `art_` and 64 hex digits"));
        }
        if self.size_bytes == 0 {
            return Err(Refusal::invalid("content_bytes_base64", "must not be empty"));
        }
        if self.size_bytes > ARTEFACT_BYTES_MAX {
            let (size, limit) = (self.size_bytes, ARTEFACT_BYTES_MAX);
            return Err(Refusal::TooLong { field: "content_bytes_base64".into(), size, limit, unit: "bytes".into() });
        }
        if self.ttl_seconds > ARTEFACT_TTL_S_MAX {
            return Err(Refusal::invalid("ttl_seconds", format!("must be at most {ARTEFACT_TTL_S_MAX}, or 0 for ever")));
        }
        let refusal = check_name("mime_type", &self.mime_type)
            .or_else(|| self.tool_origin.as_deref().and_then(|origin| check_name("tool_origin", origin)));
        refusal.map_or(Ok(()), Err)
    }
}

/// Takes out what has run out.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    for Lapsed { tenant, id: filed } in deadline::lapsed(tx, Kind::ArtefactByDeadline, at.lease_now)? {
        let (artefact_id, passport) =
            filed.split_once('/').ok_or_else(|| StorageError::corrupt("an artefact's deadline has no passport"))?;
        let artefact: Option<Artefact> = tx.get(&tenant, &id(passport, artefact_id))?;
        let artefact = artefact.ok_or_else(|| StorageError::corrupt("a deadline points to an artefact that is not there"))?;
        count(tx, &artefact, -1)?;
        take_out(tx, &artefact)?;
    }
    Ok(())
}

// ------------------------------------------------------------------ artefact_get

/// One of the caller's artefacts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetArtefact {
    pub artefact_id: String,
}

impl GetArtefact {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Artefact> {
        if let Some(refusal) = flag::refuse_off(view, flag::ARTEFACTS, "artefact_get")? {
            return Ok(Err(refusal));
        }
        if blob_of(&self.artefact_id).is_none() {
            return Ok(Err(Refusal::invalid("artefact_id", "must be `art_` and 64 hex digits")));
        }
        let Principal { tenant, passport, .. } = &at.caller;
        let own: Option<Artefact> = view.get(tenant, &id(passport, &self.artefact_id))?;
        if let Some(own) = own.filter(|own| !own.is_over(at.lease_now)) {
            return Ok(Ok(own));
        }
        let all = holders(tenant, &self.artefact_id);
        for (key, _) in view.scan_bytes(Table::Index, all.as_bytes(), &all.after_prefix(), Direction::Ascending, HOLDERS_LOOKED_AT)? {
            let holder = Key::leading_text(&key[all.as_bytes().len()..]);
            let Some(holder) = holder.filter(|holder| holder != passport) else { continue };
            let other: Option<Artefact> = view.get(tenant, &id(&holder, &self.artefact_id))?;
            if other.is_some_and(|other| !other.is_over(at.lease_now)) {
                return Ok(Err(Refusal::Foreign { what: "artefact".into(), id: self.artefact_id }));
            }
        }
        Ok(Err(Refusal::not_found("artefact", self.artefact_id)))
    }
}

/// Of those who parked the same bytes, before one that is asked for counts as unknown.
const HOLDERS_LOOKED_AT: usize = 16;

// ------------------------------------------------------------------ artefact_list

/// The caller's artefacts, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListArtefacts {
    pub limit: u64,
    /// Looked for in the MIME label and the origin.
    pub scope: Option<String>,
    pub token_budget: Option<u64>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Artefacts {
    pub artefacts: Vec<Artefact>,
    pub truncated: Option<String>,
    pub next_cursor: Option<String>,
}

/// The most bytes of JSON that a row has beside its texts, with its id in the audit envelope.
const ROW_BYTES: usize = 296;

impl ListArtefacts {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Artefacts> {
        if let Some(refusal) = flag::refuse_off(view, flag::ARTEFACTS, "artefact_list")? {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("artefacts", &at.caller, &self.scope);
        let (limit, from) = match self.check(&cursors) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Principal { tenant, passport, .. } = &at.caller;
        let order = kind_prefix(tenant, Kind::ArtefactOrder).text(passport);
        let budget = self.token_budget.and_then(|tokens| usize::try_from(tokens.saturating_mul(4)).ok());
        let mut left = budget.unwrap_or(usize::MAX).min(REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES - envelope_bytes(&at.caller));
        let (mut found, mut examined, mut from) = (Artefacts { artefacts: Vec::new(), truncated: None, next_cursor: None }, 0, from);
        loop {
            let (rows, next) = view.page_bytes(Table::Index, &order, from.as_deref(), PAGE)?;
            for (key, artefact_id) in rows {
                let artefact_id = String::from_utf8(artefact_id).map_err(|error| StorageError::new("an artefact's order", error))?;
                let artefact: Option<Artefact> = view.get(tenant, &id(passport, &artefact_id))?;
                let artefact = artefact.ok_or_else(|| StorageError::corrupt("an artefact's order points nowhere"))?;
                let is_meant = !artefact.is_over(at.lease_now) && self.lets_through(&artefact);
                let bytes = ROW_BYTES + 2 * (artefact.mime_type.len() + artefact.tool_origin.as_ref().map_or(0, String::len));
                let stopped = match is_meant {
                    _ if examined == SCAN_ROWS_MAX => Some("scan_limit"),
                    true if found.artefacts.len() == limit => Some("top_k"),
                    true if bytes > left && (budget.is_some() || !found.artefacts.is_empty()) => {
                        Some(if budget.is_some() { "token_budget" } else { "reply_bytes" })
                    }
                    _ => None,
                };
                if let Some(reason) = stopped {
                    if found.artefacts.is_empty() && reason == "token_budget" {
                        let needed = (bytes + REPLY_WRAPPER_BYTES).div_ceil(4);
                        let problem = format!("has no room for the next artefact, which needs {needed}");
                        return Ok(Err(Refusal::invalid("token_budget", problem)));
                    }
                    found.truncated = Some(reason.into());
                    found.next_cursor = Some(cursors.seal(&key));
                    return Ok(Ok(found));
                }
                examined += 1;
                if is_meant {
                    left = left.saturating_sub(bytes);
                    found.artefacts.push(artefact);
                }
            }
            match next {
                Some(next) => from = Some(next),
                None => return Ok(Ok(found)),
            }
        }
    }

    fn check(&self, cursors: &Cursors) -> Result<(usize, Option<Vec<u8>>), Refusal> {
        if self.token_budget == Some(0) {
            return Err(Refusal::invalid("token_budget", "must be at least 1"));
        }
        if let Some(refusal) = self.scope.as_deref().and_then(|scope| check_name("scope", scope)) {
            return Err(refusal);
        }
        let limit = rows(self.limit).map_err(|_| Refusal::invalid("top_k", "must be 1 to 1000"))?;
        Ok((limit, cursors.open_from(self.cursor.as_deref())?))
    }

    fn lets_through(&self, artefact: &Artefact) -> bool {
        let is_shown = !artefact.mime_type.starts_with(RESERVED_MIME);
        let texts = [Some(&artefact.mime_type), artefact.tool_origin.as_ref()];
        is_shown && self.scope.as_ref().is_none_or(|scope| texts.into_iter().flatten().any(|text| text.contains(scope)))
    }
}

const PAGE: usize = 64;

#[cfg(test)]
mod tests;
