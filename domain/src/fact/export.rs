//! What an audit export is made of: the team's fact versions of a window, and a receipt of what was exported.
//!
//! An export takes three steps, since facts can be more than one read or one entry may touch. [`StartExport`] fixes the window
//! and the name; [`ExportFacts`] reads the versions in pages; [`RecordExport`] puts the digests of the finished files into the
//! log, as a receipt of that name, which is what the bundle's manifest is signed for. Deleted versions and private facts are
//! never exported; what is reserved for the service is for operators who ask for it.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::place::{EVERYONE, off_panel};
use super::rank::State;
use super::{Confidence, Fact};
use crate::cursor::Cursors;
use crate::flag::{self, refuse_off};
use crate::identity::{check_name, check_name_start};
use crate::limit::EXPORT_ROWS_PER_PAGE;
use crate::receipt::{self, GetReceipt};
use crate::record::{Kind, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{Principal, ReadStamp, Stamp, Tier, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::{codec, event};

/// Which facts an export holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExportScope {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity_prefix: Option<String>,
    pub include_private: bool,
    /// What is reserved for the service, such as decisions. In effect for operators alone.
    pub include_reserved: bool,
    pub caller: String,
}

/// Fixes what an export is about, so that a repetition of the call is about the same. It leaves nothing but its remembered answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartExport {
    pub since: Option<UnixMs>,
    /// Now, when none is given.
    pub until: Option<UnixMs>,
    pub entity_prefix: Option<String>,
    pub include_reserved: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportStarted {
    pub bundle_id: String,
    pub since: Option<UnixMs>,
    pub until: UnixMs,
    pub scope: ExportScope,
}

fn refused(caller: &Principal, view: &impl Read, entity_prefix: Option<&str>) -> Result<Option<Refusal>, StorageError> {
    if let Some(refusal) = refuse_off(view, flag::AUDIT_EXPORT, "exporting")? {
        return Ok(Some(refusal));
    }
    if caller.tier < Tier::Verified {
        return Ok(Some(Refusal::Denied { problem: "an export needs a verified passport".into() }));
    }
    Ok(entity_prefix.and_then(|prefix| check_name_start("scope.entity_prefix", prefix)))
}

impl StartExport {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ExportStarted> {
        if let Some(refusal) = refused(&at.caller, tx, self.entity_prefix.as_deref())? {
            return Ok(Err(refusal));
        }
        // What is yet to come can't be in it, so a window never reaches past now.
        let until = self.until.unwrap_or(at.wall).min(at.wall);
        if self.since.is_some_and(|since| since > until) {
            return Ok(Err(Refusal::invalid("since_ts", "lies behind `until_ts`, or in the future")));
        }
        let include_reserved = self.include_reserved && at.caller.tier == Tier::Operator;
        let caller = at.caller.passport.clone();
        let scope = ExportScope { entity_prefix: self.entity_prefix, include_private: false, include_reserved, caller };
        let bundle_id = at.new_id("bundle", 0).replacen('_', "-", 1);
        Ok(Ok(ExportStarted { bundle_id, since: self.since, until, scope }))
    }
}

/// One page of the fact versions of a window, in no particular order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportFacts {
    pub since: Option<UnixMs>,
    pub until: UnixMs,
    pub scope: ExportScope,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportedFacts {
    pub facts: Vec<ExportedFact>,
    pub next_cursor: Option<String>,
}

/// A version as an export shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportedFact {
    pub fact_id: String,
    pub entity: String,
    pub key: String,
    pub value: String,
    pub source_receipt: Option<String>,
    pub confidence: Confidence,
    pub stored_at: UnixMs,
    pub version: u64,
    pub supersedes: Option<String>,
}

impl ExportFacts {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ExportedFacts> {
        let entity_prefix = self.scope.entity_prefix.as_deref().unwrap_or_default();
        if let Some(refusal) = refused(&at.caller, view, self.scope.entity_prefix.as_deref())? {
            return Ok(Err(refusal));
        }
        let include_reserved = self.scope.include_reserved && at.caller.tier == Tier::Operator;
        let prefix = kind_prefix(&at.caller.tenant, Kind::Fact).text(EVERYONE).text_prefix(entity_prefix);
        let cursors = Cursors::of("export", &at.caller, &(self.since, self.until, entity_prefix));
        let from = match cursors.open_from(self.cursor.as_deref()) {
            Ok(from) => from.unwrap_or_else(|| prefix.as_bytes().to_vec()),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut rows = view.scan_bytes(Table::Records, &from, &prefix.after_prefix(), Direction::Ascending, EXPORT_ROWS_PER_PAGE + 1)?;
        let next_cursor = (rows.len() > EXPORT_ROWS_PER_PAGE).then(|| cursors.seal(&rows.split_off(EXPORT_ROWS_PER_PAGE)[0].0));
        let mut facts = Vec::new();
        for (_, bytes) in rows {
            let fact: Fact = codec::decode(&bytes).map_err(|error| StorageError::new("a fact to export", error))?;
            let is_reserved = off_panel(EVERYONE, &fact.entity).is_some();
            let in_window = self.since.is_none_or(|since| since <= fact.stored_at) && fact.stored_at < self.until;
            if in_window && !matches!(fact.state(), State::Deleted | State::Forgotten) && (include_reserved || !is_reserved) {
                facts.push(ExportedFact {
                    fact_id: fact.fact_id,
                    entity: fact.entity,
                    key: fact.key,
                    value: fact.value,
                    source_receipt: fact.source_receipt,
                    confidence: fact.confidence,
                    stored_at: fact.stored_at,
                    version: fact.version,
                    supersedes: fact.supersedes,
                });
            }
        }
        Ok(Ok(ExportedFacts { facts, next_cursor }))
    }
}

/// Puts a finished export into the log. Of one bundle this happens once; a repetition has to be about the same files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordExport {
    pub started: ExportStarted,
    pub fact_count: u64,
    pub receipt_count: u64,
    pub events_jsonl_sha256: String,
    /// Of the list of the entries' own digests.
    pub entries_sha256: String,
    pub receipts_cbor_sha256: String,
}

/// The body of the receipt, and what the manifest says. Field order is part of the bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportRecorded {
    pub schema: String,
    pub kind: String,
    pub receipt_id: String,
    pub tenant_id: String,
    pub since: Option<String>,
    pub until: String,
    pub generated_at: String,
    pub scope: ExportScope,
    pub fact_count: u64,
    pub receipt_count: u64,
    pub events_jsonl_sha256: String,
    pub entries_sha256: String,
    pub receipts_cbor_sha256: String,
}

impl RecordExport {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ExportRecorded> {
        let Self { started, fact_count, receipt_count, events_jsonl_sha256, entries_sha256, receipts_cbor_sha256 } = self;
        if let Some(refusal) = refused(&at.caller, tx, started.scope.entity_prefix.as_deref())? {
            return Ok(Err(refusal));
        }
        let hashes = [&events_jsonl_sha256, &entries_sha256, &receipts_cbor_sha256];
        if hashes.iter().any(|hash| hash.len() != 64 || hex::decode(hash).is_err()) || !started.bundle_id.starts_with("bundle-") {
            return Ok(Err(Refusal::invalid("export", "has no digests, or no bundle's name")));
        }
        if let Some(refusal) = check_name("bundle_id", &started.bundle_id) {
            return Ok(Err(refusal));
        }
        let recorded = ExportRecorded {
            schema: "cuecrux.receipt.body.v1".into(),
            kind: "audit_export".into(),
            receipt_id: started.bundle_id,
            tenant_id: at.caller.tenant.clone(),
            since: started.since.map(UnixMs::to_rfc3339),
            until: started.until.to_rfc3339(),
            generated_at: at.wall.to_rfc3339(),
            scope: ExportScope { caller: at.caller.passport.clone(), ..started.scope },
            fact_count,
            receipt_count,
            events_jsonl_sha256,
            entries_sha256,
            receipts_cbor_sha256,
        };
        if receipt::is_there(tx, &at.caller.tenant, &recorded.receipt_id)? {
            let stamp = at.reading();
            let first = match (GetExport { bundle_id: recorded.receipt_id.clone() }).run(tx, &stamp)? {
                Ok(first) => first.export,
                Err(refusal) => return Ok(Err(refusal)),
            };
            return Ok(match (ExportRecorded { generated_at: first.generated_at.clone(), ..recorded } == first) {
                true => Ok(first),
                false => Err(Refusal::Changed {
                    what: "export".into(),
                    id: first.receipt_id,
                    expected: "the facts that it was made of".into(),
                    found: "that some were deleted since".into(),
                }),
            });
        }
        let body = receipt::body(&recorded);
        receipt::append(tx, at, &recorded.receipt_id, body, Some(&at.caller.passport))?;
        event::emit(tx, at, "audit.exported", &recorded.receipt_id, json!({ "facts": fact_count, "actor": at.caller.passport }))?;
        Ok(Ok(recorded))
    }
}

/// What the log says of an export. The serving node signs it as the bundle's manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetExport {
    pub bundle_id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignedExport {
    pub export: ExportRecorded,
    /// The bundle's manifest, filled in by the serving node.
    pub manifest: Option<String>,
}

impl GetExport {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SignedExport> {
        let receipt = match (GetReceipt { receipt_id: self.bundle_id.clone(), tenant_id: None }).run(view, at)? {
            Ok(receipt) => receipt,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let recorded: Option<ExportRecorded> = receipt.faults.is_empty().then(|| receipt::read_body(&receipt.body)).flatten();
        match recorded.filter(|recorded| recorded.kind == "audit_export") {
            Some(export) => Ok(Ok(SignedExport { export, manifest: None })),
            None => Ok(Err(Refusal::not_found("export", self.bundle_id))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fact::{DeleteFact, StoreFact};
    use crate::transcript::{World, person};

    fn store(world: &mut World, time: &str, entity: &str, private: bool) -> String {
        let command = StoreFact {
            entity: entity.into(),
            key: "k".into(),
            value: "v".into(),
            source_receipt: None,
            confidence: Confidence::FULL,
            private,
            horizon_class: None,
            freshness_horizon: None,
            supersedes: BTreeSet::new(),
        };
        world.call(time, person("mara"), None, command).unwrap().fact_id
    }

    fn start(world: &mut World, who: &str, entity_prefix: Option<&str>) -> ExportStarted {
        let command = StartExport { since: None, until: None, entity_prefix: entity_prefix.map(Into::into), include_reserved: true };
        world.call("1h", person(who), None, command).unwrap()
    }

    fn read(world: &mut World, who: &str, started: &ExportStarted) -> BTreeSet<String> {
        let ExportStarted { since, until, scope, .. } = started.clone();
        let (mut cursor, mut found) = (None, BTreeSet::new());
        loop {
            let query = ExportFacts { since, until, scope: scope.clone(), cursor: cursor.take() };
            let page = world.ask("1h", person(who), query).unwrap();
            assert!(page.facts.len() <= EXPORT_ROWS_PER_PAGE);
            found.extend(page.facts.into_iter().map(|fact| fact.fact_id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return found;
            }
        }
    }

    fn record(world: &mut World, started: ExportStarted, events: &str) -> Result<ExportRecorded, Refusal> {
        let (events_jsonl_sha256, other) = (events.repeat(32), "00".repeat(32));
        let (entries_sha256, receipts_cbor_sha256) = (other.clone(), other);
        let command = RecordExport { started, fact_count: 1, receipt_count: 0, events_jsonl_sha256, entries_sha256, receipts_cbor_sha256 };
        world.call("2h", person("mara"), None, command)
    }

    #[test]
    fn pages_hold_every_version_of_the_team_once_and_neither_what_is_private_nor_what_was_deleted() {
        let mut world = World::new();
        let mut wanted: BTreeSet<String> = (0..8).map(|n| store(&mut world, &format!("{n}s"), &format!("e{}", n % 3), false)).collect();
        store(&mut world, "9s", "mine", true);
        let gone = store(&mut world, "10s", "e1", false);
        world.call("11s", person("mara"), None, DeleteFact { fact_id: gone }).unwrap();
        let started = start(&mut world, "mara", None);
        assert_eq!(read(&mut world, "mara", &started), wanted);
        store(&mut world, "3601s", "e1", false);
        assert_eq!(read(&mut world, "mara", &started), wanted, "what comes later is behind the window");
        assert_eq!(read(&mut world, "eve", &started), BTreeSet::new(), "another tenant has other facts");
        let narrow = start(&mut world, "mara", Some("e1"));
        wanted.retain(|id| read(&mut world, "mara", &narrow).contains(id));
        assert_eq!(wanted.len(), 3, "the third of them that is of e1");
    }

    #[test]
    fn only_an_operator_gets_what_is_reserved_and_the_scope_says_so() {
        let mut world = World::new();
        assert!(!start(&mut world, "mara", None).scope.include_reserved);
        assert!(start(&mut world, "olga", None).scope.include_reserved);
        let refused = StartExport { since: Some(UnixMs(u64::MAX / 2)), until: None, entity_prefix: None, include_reserved: false };
        let told = world.call("1h", person("mara"), None, refused).unwrap_err().to_string();
        assert_eq!(told, "`since_ts` lies behind `until_ts`, or in the future");
    }

    #[test]
    fn an_export_is_recorded_once_and_its_repetition_is_about_the_same_files() {
        let mut world = World::new();
        let started = start(&mut world, "mara", None);
        let first = record(&mut world, started.clone(), "aa").unwrap();
        assert_eq!(record(&mut world, started.clone(), "aa"), Ok(first.clone()));
        let other = record(&mut world, started.clone(), "bb").unwrap_err();
        assert!(matches!(other, Refusal::Changed { .. }), "{other}");
        let seen = world.ask("3h", person("jon"), GetExport { bundle_id: started.bundle_id.clone() }).unwrap();
        assert_eq!((seen.export, seen.manifest), (first, None));
        let foreign = world.ask("3h", person("eve"), GetExport { bundle_id: started.bundle_id.clone() }).unwrap_err();
        assert_eq!(foreign, Refusal::not_found("receipt", started.bundle_id));
    }
}
