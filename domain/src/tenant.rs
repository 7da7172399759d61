//! A tenant as rows: how it leaves a cluster, and ([`import`]) how it comes into another one.
//!
//! The tenant stands first in every key, so a tenant is a few ranges of the tables, and what little of it stands under the
//! cluster's own name: deadlines, which are in one order over all tenants. Each kind of row says in [`WAYS`] what becomes of it.
//! Invariants:
//! * A row of a kind that is not in the list is a fault, never left out in silence.
//! * Rows come in an order in which a deadline follows the record that it ends.

mod import;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use self::import::{Arrivals, refuse_arriving};
pub use self::import::{
    BeginImport, GetTenantImport, ImportBegun, ImportRows, ImportState, Origin, RowsImported, TenantAsFound, TenantImport, revision_within,
};
use crate::codec::{self, DecodeError};
use crate::key::Key;
use crate::record::{CLUSTER, Kind, Record, kind_prefix};
use crate::stamp::LeaseTime;
use crate::tx::{Direction, Read, StorageError, Table};
use crate::{approval, artefact, coord, fact, handoff, measure, notice, punchcard, session, session_plan};

/// Rows that are read at once.
const PAGE: usize = 256;

/// What becomes of the rows of a kind.
#[derive(Clone, Copy)]
enum Way {
    /// They go as they are.
    AsIs,
    /// Records that name points on the lease clock, which is another one elsewhere.
    Timed(Move),
    /// When records end, in the cluster's own order.
    Deadline,
    /// In the cluster's own order too, and without a time.
    Waiting,
    /// They stay, and why.
    Stays(&'static str),
    /// Of the cluster, and of no tenant.
    Cluster,
}

/// Reads a record, moves its times and writes it again.
type Move = fn(&[u8], &dyn Fn(LeaseTime) -> LeaseTime) -> Result<Vec<u8>, DecodeError>;

/// A record with points on the lease clock.
pub(crate) trait Timed: Record {
    /// Replaces each of them.
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime);
}

fn moved<R: Timed>(bytes: &[u8], to: &dyn Fn(LeaseTime) -> LeaseTime) -> Result<Vec<u8>, DecodeError> {
    let mut record: R = codec::decode(bytes)?;
    record.move_times(to);
    Ok(codec::encode(&record))
}

const LEASES: &str = "a lease is of the cluster that granted it: each one that is held goes along as one that has ended";
const QUEUES: &str = "whoever waits for a lease waits in the cluster that was asked";
const TOKENS: &str = "a bearer token opens the cluster that made it; make new ones";
const CLIENTS: &str = "sessions of MCP clients are with the gateways that opened them";
const ANSWERS: &str = "answers by idempotency key stay; a request of before the export is refused as too old, and never run twice";
const EVENTS: &str = "events are numbered by the log they are of; watchers list anew";

/// What stays, and why.
const STAYING: [(&str, &str); 6] = [
    ("leases that are held", LEASES),
    ("queues for leases", QUEUES),
    ("bearer tokens", TOKENS),
    ("sessions of MCP clients", CLIENTS),
    ("remembered answers", ANSWERS),
    ("change events", EVENTS),
];

/// Every kind there is, and what becomes of it.
#[rustfmt::skip]
const WAYS: &[(Kind, Way)] = &[
    (Kind::Fact, Way::AsIs), (Kind::FactHead, Way::AsIs), (Kind::FactById, Way::AsIs), (Kind::FactByRank, Way::AsIs),
    (Kind::EntityByName, Way::AsIs), (Kind::MemoryPin, Way::AsIs), (Kind::TurnUse, Way::AsIs),
    (Kind::Forgetting, Way::Timed(moved::<fact::Forgetting>)), (Kind::ForgottenFact, Way::AsIs),
    (Kind::ForgettingByDeadline, Way::Deadline), (Kind::ErasureDue, Way::Cluster),
    (Kind::SyncRemote, Way::AsIs), (Kind::SyncPair, Way::AsIs), (Kind::SyncConflict, Way::AsIs),

    (Kind::Punchcard, Way::Timed(moved::<punchcard::Punchcard>)), (Kind::PunchcardByResource, Way::AsIs),
    (Kind::PunchcardByHolder, Way::AsIs), (Kind::PunchcardByStatus, Way::AsIs), (Kind::PunchcardByDeadline, Way::Deadline),
    (Kind::PunchcardByPath, Way::Stays(LEASES)), (Kind::SettlingByPath, Way::Stays(LEASES)), (Kind::SettlingCount, Way::Stays(LEASES)),
    (Kind::SettlingByDeadline, Way::Stays(LEASES)), (Kind::LeavingHolder, Way::Stays(LEASES)),
    (Kind::Waiter, Way::Stays(QUEUES)), (Kind::Queue, Way::Stays(QUEUES)), (Kind::WaiterByDeadline, Way::Stays(QUEUES)),
    (Kind::WaiterByHolder, Way::Stays(QUEUES)), (Kind::WaiterByPath, Way::Stays(QUEUES)), (Kind::HandOver, Way::Stays(QUEUES)),

    (Kind::Approval, Way::Timed(moved::<approval::Approval>)), (Kind::ApprovalPolicy, Way::AsIs), (Kind::ApprovalCount, Way::AsIs),
    (Kind::ApprovalPending, Way::AsIs), (Kind::ApprovalByRevision, Way::AsIs), (Kind::ApprovalByDeadline, Way::Deadline),
    (Kind::ApprovalByEscalation, Way::Deadline),
    (Kind::Webhook, Way::AsIs), (Kind::Notice, Way::Timed(moved::<notice::Notice>)), (Kind::NoticeCount, Way::AsIs),
    (Kind::NoticeOrder, Way::AsIs), (Kind::NoticeDue, Way::Deadline), (Kind::NoticeForgotten, Way::Deadline),

    (Kind::Session, Way::Timed(moved::<session::Session>)), (Kind::SessionState, Way::AsIs), (Kind::SessionByDeadline, Way::Deadline),
    (Kind::SessionPlan, Way::Timed(moved::<session_plan::SessionPlan>)),
    (Kind::Handoff, Way::Timed(moved::<handoff::Handoff>)), (Kind::HandoffByDeadline, Way::Deadline),
    (Kind::Intent, Way::Timed(moved::<coord::Intent>)), (Kind::IntentByDeadline, Way::Deadline),
    (Kind::Presence, Way::Timed(moved::<coord::Presence>)),
    (Kind::ClientSession, Way::Stays(CLIENTS)), (Kind::ClientSessionCount, Way::Stays(CLIENTS)),
    (Kind::ClientSessionByDeadline, Way::Stays(CLIENTS)),

    (Kind::Passport, Way::AsIs), (Kind::Certificate, Way::AsIs), (Kind::Standing, Way::AsIs), (Kind::MintRequest, Way::AsIs),
    (Kind::Revocation, Way::AsIs), (Kind::Device, Way::AsIs), (Kind::MergedInto, Way::AsIs), (Kind::IdentityLink, Way::AsIs),
    (Kind::SignInKey, Way::AsIs), (Kind::SignInToken, Way::Stays(TOKENS)), (Kind::TokenByPassport, Way::Stays(TOKENS)),
    (Kind::Token, Way::Cluster),
    (Kind::TokenUsage, Way::AsIs), (Kind::TokenBudget, Way::AsIs),

    (Kind::Work, Way::AsIs), (Kind::WorkComment, Way::AsIs), (Kind::WorkOrder, Way::AsIs), (Kind::FeedEvent, Way::AsIs),
    (Kind::FeedOrder, Way::AsIs), (Kind::Project, Way::AsIs), (Kind::Constraint, Way::AsIs),
    (Kind::Orchestrator, Way::AsIs), (Kind::OrchestratorOrder, Way::AsIs),

    (Kind::GraphEntity, Way::AsIs), (Kind::GraphEntityVersion, Way::AsIs), (Kind::GraphEdge, Way::AsIs),
    (Kind::GraphEdgeVersion, Way::AsIs), (Kind::GraphKind, Way::AsIs), (Kind::GraphEdgeByTarget, Way::AsIs),
    (Kind::GraphEdgeByKind, Way::AsIs), (Kind::FeatureTotals, Way::AsIs), (Kind::FeatureSystem, Way::AsIs), (Kind::FeatureGap, Way::AsIs),
    (Kind::Repo, Way::AsIs), (Kind::RepoScan, Way::AsIs), (Kind::ScanPart, Way::AsIs), (Kind::ScanPartStored, Way::AsIs),
    (Kind::LatestScan, Way::AsIs),
    (Kind::CorpusItem, Way::AsIs), (Kind::CorpusSource, Way::AsIs), (Kind::CorpusOrder, Way::AsIs), (Kind::CorpusWord, Way::AsIs),

    (Kind::ReceiptBody, Way::AsIs), (Kind::ReceiptLink, Way::AsIs), (Kind::ReceiptHead, Way::AsIs), (Kind::ReceiptNode, Way::AsIs),
    (Kind::ReceiptTree, Way::AsIs), (Kind::ReceiptById, Way::AsIs), (Kind::ReceiptTreeFill, Way::Cluster),
    (Kind::ReceiptKey, Way::Cluster), (Kind::ReceiptSigningKey, Way::Cluster), (Kind::Cosigner, Way::Cluster),
    (Kind::Observation, Way::AsIs), (Kind::ObservationLink, Way::AsIs), (Kind::ObservationHead, Way::AsIs),
    (Kind::ObservationById, Way::AsIs), (Kind::ObservationByProvider, Way::AsIs),

    (Kind::Document, Way::AsIs), (Kind::DocumentName, Way::AsIs), (Kind::Passage, Way::AsIs), (Kind::DocumentLeaving, Way::Waiting),
    (Kind::SearchGap, Way::AsIs), (Kind::SearchGapOrder, Way::AsIs), (Kind::SearchGapsKept, Way::AsIs),
    (Kind::SearchFeed, Way::Cluster), (Kind::SearchFeedKept, Way::Cluster),
    (Kind::Artefact, Way::Timed(moved::<artefact::Artefact>)), (Kind::ArtefactByBlob, Way::AsIs), (Kind::ArtefactOrder, Way::AsIs),
    (Kind::ArtefactCount, Way::AsIs), (Kind::ArtefactByDeadline, Way::Deadline), (Kind::BlobNamed, Way::Cluster),
    (Kind::TraceBatch, Way::Timed(moved::<measure::TraceBatch>)), (Kind::TracesKept, Way::AsIs), (Kind::HoldOut, Way::AsIs),
    (Kind::Activity, Way::Timed(moved::<measure::Activity>)), (Kind::MeasureByDeadline, Way::Deadline),

    (Kind::Answer, Way::Stays(ANSWERS)), (Kind::AnswerOrder, Way::Stays(ANSWERS)), (Kind::AnswerFloor, Way::Stays(ANSWERS)),
    (Kind::EventsKept, Way::Stays(EVENTS)),
    (Kind::Clock, Way::Cluster), (Kind::Swept, Way::Cluster), (Kind::SpaceAlarm, Way::Cluster), (Kind::FeatureLevel, Way::Cluster),
    (Kind::Lineage, Way::Cluster), (Kind::Flag, Way::Cluster), (Kind::TenantArrivals, Way::Cluster), (Kind::TenantImport, Way::Cluster),
    (Kind::Quotas, Way::Cluster), (Kind::StoredUsage, Way::Cluster),
];

fn way(byte: u8) -> Option<(Kind, Way)> {
    WAYS.iter().find(|(kind, _)| *kind as u8 == byte).copied()
}

/// A row on its way from one cluster to another. Key and value are the stored bytes, in hex where a form has no bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantRow {
    /// The stored name of the table.
    pub table: String,
    pub key: Bytes,
    pub value: Bytes,
}

impl TenantRow {
    /// The hash, in hex, of the blob that this row names.
    pub fn blob(&self, tenant: &str) -> Option<artefact::BlobHash> {
        artefact::blob_of_row(tenant, Table::named(&self.table)?, &self.key.0)
    }
}

/// Bytes that are stored as bytes: a list of numbers would take twice the room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => hex::encode(&self.0).serialize(serializer),
            false => serializer.serialize_bytes(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bytes, E> {
                hex::decode(text).map(Bytes).map_err(E::custom)
            }
        }
        match deserializer.is_human_readable() {
            true => deserializer.deserialize_str(Visitor),
            false => deserializer.deserialize_bytes(Visitor),
        }
    }
}

/// Rows that stay behind, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    pub what: String,
    pub rows: u64,
    pub why: String,
}

/// What went along and what stayed, by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub carried: BTreeMap<String, u64>,
    /// By the reason.
    stayed: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub fn rows(&self) -> u64 {
        self.carried.values().sum()
    }

    /// Every reason, those that met no row too.
    pub fn left_out(&self) -> Vec<LeftOut> {
        let left_out = |(what, why): (&str, &'static str)| LeftOut {
            what: what.into(),
            rows: self.stayed.get(why).copied().unwrap_or(0),
            why: why.into(),
        };
        STAYING.into_iter().map(left_out).collect()
    }

    fn carry(&mut self, kind: Kind) {
        *self.carried.entry(format!("{kind:?}")).or_default() += 1;
    }

    fn stay(&mut self, why: &'static str) {
        *self.stayed.entry(why).or_default() += 1;
    }
}

/// All rows of a tenant in a state that does not change, page by page.
pub struct TenantRows<'a, R: Read + ?Sized> {
    view: &'a R,
    tenant: &'a str,
    ranges: std::vec::IntoIter<Range>,
    current: Option<Range>,
    tally: Tally,
}

/// A part of a table, from where it is still to be read.
struct Range {
    table: Table,
    from: Vec<u8>,
    to: Vec<u8>,
    /// Rows of other tenants stand between.
    is_shared: bool,
}

impl<'a, R: Read + ?Sized> TenantRows<'a, R> {
    pub fn of(view: &'a R, tenant: &'a str) -> Self {
        let range = |table: Table, prefix: &Key, is_shared: bool| Range {
            table,
            from: prefix.as_bytes().to_vec(),
            to: prefix.after_prefix(),
            is_shared,
        };
        let own = Key::new().text(tenant);
        // Records and what points to them, and the deadlines after all of them.
        let mut ranges: Vec<Range> = Table::ALL.into_iter().map(|table| range(table, &own, false)).collect();
        for (kind, way) in WAYS {
            match way {
                Way::Waiting => ranges.push(range(Table::Index, &kind_prefix(CLUSTER, *kind).text(tenant), false)),
                Way::Deadline => ranges.push(range(Table::Index, &kind_prefix(CLUSTER, *kind), true)),
                _ => {}
            }
        }
        Self { view, tenant, ranges: ranges.into_iter(), current: None, tally: Tally::default() }
    }

    /// The next rows, none of them twice; nothing at the end.
    pub fn page(&mut self) -> Result<Option<Vec<TenantRow>>, StorageError> {
        loop {
            if self.current.is_none() {
                self.current = self.ranges.next();
            }
            let Some(range) = &mut self.current else { return Ok(None) };
            let rows = self.view.scan_bytes(range.table, &range.from, &range.to, Direction::Ascending, PAGE)?;
            let (table, is_shared) = (range.table, range.is_shared);
            match rows.last() {
                Some((last, _)) if rows.len() == PAGE => range.from = [last.as_slice(), &[0]].concat(),
                _ => self.current = None,
            }
            let mut page = Vec::new();
            for (key, value) in rows {
                if is_shared && !is_deadline_of(self.tenant, &value)? {
                    continue;
                }
                if self.goes(table, &key)? {
                    page.push(TenantRow { table: table.name().into(), key: Bytes(key), value: Bytes(value) });
                }
            }
            if !page.is_empty() {
                return Ok(Some(page));
            }
        }
    }

    /// What was read so far.
    pub fn tally(self) -> Tally {
        self.tally
    }

    fn goes(&mut self, table: Table, key: &[u8]) -> Result<bool, StorageError> {
        if table == Table::Events {
            self.tally.stay(EVENTS);
            return Ok(false);
        }
        let own = Key::new().text(self.tenant);
        let rest = key.strip_prefix(own.as_bytes()).or_else(|| key.strip_prefix(Key::new().text(CLUSTER).as_bytes()));
        match rest.and_then(|rest| way(*rest.first()?)) {
            Some((kind, Way::AsIs | Way::Timed(_) | Way::Deadline | Way::Waiting)) => {
                self.tally.carry(kind);
                Ok(true)
            }
            Some((_, Way::Stays(why))) => {
                self.tally.stay(why);
                Ok(false)
            }
            Some((_, Way::Cluster)) | None => {
                Err(StorageError::corrupt(format!("`{}` has a row in {} whose kind no tenant has", self.tenant, table.name())))
            }
        }
    }
}

/// Whether a deadline, by what it points to, is of this tenant.
fn is_deadline_of(tenant: &str, points_to: &[u8]) -> Result<bool, StorageError> {
    let (of, _): (String, String) = codec::decode(points_to).map_err(|error| StorageError::new("deadline", error))?;
    Ok(of == tenant)
}

#[cfg(test)]
mod tests;
