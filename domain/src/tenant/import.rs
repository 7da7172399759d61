//! A tenant comes in from another cluster: row by row through the log, under its own name, and never over one that is there.
//!
//! Invariants:
//! * While it arrives nobody acts in it, and nothing in it ends.
//! * Batches are numbered. One that was taken is taken again without an effect, and none can be left out.
//! * Its revisions go on far above all it ever had, as those of a restored cluster do (see [`crate::lineage`]): what is made here
//!   has no id that was used there, and no fencing token of there is one of here. The log's own index stays what it is, so within
//!   the tenant a revision is that index and a shift ([`Arrivals`]), which each entry adds to its stamp.
//! * Its times on the lease clock keep their distance from the moment of the export.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{TenantRow, Way, way};
use crate::key::Key;
use crate::limit::{IMPORT_ROWS_MAX, IMPORTED_TENANTS_MAX};
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{LeaseTime, ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::{artefact, codec, deadline, event, identity, level, lineage, machine, punchcard};

/// Tenants that came from elsewhere, as every entry has to know them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arrivals {
    tenants: BTreeMap<String, Arrival>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Arrival {
    /// What the tenant's revisions are ahead of the log.
    shift: u64,
    /// Its rows are not all here.
    is_open: bool,
}

impl Record for Arrivals {
    const KIND: Kind = Kind::TenantArrivals;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

impl Arrivals {
    pub fn read(view: &(impl Read + ?Sized)) -> Result<Self, StorageError> {
        Ok(view.get(CLUSTER, &Key::new())?.unwrap_or_default())
    }

    /// The revision of a log's entry, within a tenant.
    pub fn within(&self, tenant: &str, entry: Revision) -> Revision {
        Revision(entry.0.saturating_add(self.tenants.get(tenant).map_or(0, |arrival| arrival.shift)))
    }

    pub fn refuse(&self, tenant: &str) -> Option<Refusal> {
        let is_open = self.tenants.get(tenant).is_some_and(|arrival| arrival.is_open);
        is_open.then(|| Refusal::TenantArriving { tenant: tenant.into() })
    }
}

/// The refusal of what acts in a tenant that is not all here.
pub(crate) fn refuse_arriving(view: &(impl Read + ?Sized), tenant: &str) -> Result<Option<Refusal>, StorageError> {
    Ok(Arrivals::read(view)?.refuse(tenant))
}

/// The revision of a log's entry, within a tenant.
pub fn revision_within(view: &(impl Read + ?Sized), tenant: &str, entry: Revision) -> Result<Revision, StorageError> {
    Ok(Arrivals::read(view)?.within(tenant, entry))
}

/// Where a tenant comes from: what the manifest of its export says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    pub cluster_id: String,
    pub lineage: u64,
    /// The tenant's own, which no later revision of it may meet.
    pub revision: Revision,
    pub lease_now: LeaseTime,
    pub exported_at: UnixMs,
    pub feature_level: u64,
    /// Batches that make it whole.
    pub batches: u64,
    /// Of the receipt key that signed the manifest, in hex.
    pub public_key: String,
}

/// How a tenant came, or comes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantImport {
    pub tenant: String,
    /// Which export it is: the hash of its manifest.
    pub import_id: String,
    pub origin: Origin,
    pub begun_at: UnixMs,
    /// The lease clock here that its times count from.
    pub lease_base: LeaseTime,
    /// Its first revision here comes after this one.
    pub above: Revision,
    pub next_batch: u64,
    pub rows: u64,
    pub ended_at: Option<UnixMs>,
}

impl Record for TenantImport {
    const KIND: Kind = Kind::TenantImport;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new().text(&self.tenant)
    }
}

impl TenantImport {
    fn read(view: &impl Read, tenant: &str) -> Result<Option<Self>, StorageError> {
        view.get(CLUSTER, &Key::new().text(tenant))
    }

    /// A point on the lease clock of there, on the one of here.
    fn time(&self, there: LeaseTime) -> LeaseTime {
        let base = self.lease_base.0;
        match there.0.checked_sub(self.origin.lease_now.0) {
            Some(ahead) => LeaseTime(base.saturating_add(ahead)),
            None => LeaseTime(base.saturating_sub(self.origin.lease_now.0 - there.0)),
        }
    }

    fn state(&self) -> ImportState {
        ImportState { next_batch: self.next_batch, rows: self.rows, done: self.ended_at.is_some() }
    }
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportState {
    /// The batch that is wanted next; those before it are here.
    pub next_batch: u64,
    pub rows: u64,
    pub done: bool,
}

/// Whether anything of a tenant is here.
fn is_there(view: &impl Read, tenant: &str) -> Result<bool, StorageError> {
    let own = Key::new().text(tenant);
    for table in Table::ALL {
        if !view.scan_bytes(table, own.as_bytes(), &own.after_prefix(), Direction::Ascending, 1)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn refuse_all_but_the_system(tenant: &str) -> Option<Refusal> {
    (tenant != CLUSTER).then(|| Refusal::Denied { problem: "tenants are imported by operators of the cluster".into() })
}

// ------------------------------------------------------------------ the begin

/// Begins to take a tenant in, or says how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BeginImport {
    pub tenant: String,
    pub import_id: String,
    pub origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportBegun {
    pub state: ImportState,
    /// False when it was begun before.
    pub changed: bool,
}

impl BeginImport {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ImportBegun> {
        if let Some(refusal) = refuse_all_but_the_system(&at.caller.tenant).or_else(|| identity::check_name("tenant", &self.tenant)) {
            return Ok(Err(refusal));
        }
        match TenantImport::read(tx, &self.tenant)? {
            Some(known) if known.import_id == self.import_id => return Ok(Ok(ImportBegun { state: known.state(), changed: false })),
            Some(_) => return Ok(Err(Refusal::TenantThere { tenant: self.tenant })),
            None if is_there(tx, &self.tenant)? => return Ok(Err(Refusal::TenantThere { tenant: self.tenant })),
            None => {}
        }
        let level = level::level(tx)?;
        if self.origin.feature_level > level {
            return Ok(Err(Refusal::TooNew { what: "this export".into(), needs: self.origin.feature_level, level }));
        }
        let mut arrivals = Arrivals::read(tx)?;
        if arrivals.tenants.len() >= IMPORTED_TENANTS_MAX {
            let what = "the list of imported tenants".into();
            return Ok(Err(Refusal::Full { what, limit: IMPORTED_TENANTS_MAX as u64, retry_after_ms: 0 }));
        }
        let above = lineage::first_revision(self.origin.revision, at.wall);
        let shift = above.0.saturating_sub(at.entry.0);
        arrivals.tenants.insert(self.tenant.clone(), Arrival { shift, is_open: true });
        tx.put(&arrivals);
        machine::Clock::set_terms(tx)?;
        event::begin(tx, &self.tenant, at.entry);
        // As far as both clocks agree: one that is behind must not have every new request taken for an old one.
        machine::forget_before(tx, &self.tenant, self.origin.exported_at.min(at.wall));
        let import = TenantImport {
            tenant: self.tenant,
            import_id: self.import_id,
            origin: self.origin,
            begun_at: at.wall,
            lease_base: at.lease_now,
            above,
            next_batch: 0,
            rows: 0,
            ended_at: None,
        };
        tx.put(&import);
        Ok(Ok(ImportBegun { state: import.state(), changed: true }))
    }
}

// ------------------------------------------------------------------ the rows

/// The next rows of a tenant; the last batch opens it. Proposed once a quorum holds the blob that the last of them may name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportRows {
    pub tenant: String,
    pub import_id: String,
    pub batch: u64,
    pub rows: Vec<TenantRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowsImported {
    pub state: ImportState,
    /// False when this batch was here already.
    pub changed: bool,
}

impl ImportRows {
    /// The blob that its last row names. No other row may.
    pub fn blob(&self) -> Option<artefact::BlobHash> {
        self.rows.last()?.blob(&self.tenant)
    }

    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<RowsImported> {
        if let Some(refusal) = refuse_all_but_the_system(&at.caller.tenant) {
            return Ok(Err(refusal));
        }
        let Some(mut import) = TenantImport::read(tx, &self.tenant)?.filter(|known| known.import_id == self.import_id) else {
            return Ok(Err(Refusal::not_found("import", self.import_id)));
        };
        if import.ended_at.is_some() || self.batch < import.next_batch {
            return Ok(Ok(RowsImported { state: import.state(), changed: false }));
        }
        if self.batch > import.next_batch {
            let (expected, found) = (import.next_batch.to_string(), self.batch.to_string());
            return Ok(Err(Refusal::Changed { what: "import".into(), id: self.import_id, expected, found }));
        }
        if self.rows.len() > IMPORT_ROWS_MAX {
            let (size, limit) = (self.rows.len() as u64, IMPORT_ROWS_MAX as u64);
            return Ok(Err(Refusal::TooLong { field: "rows".into(), size, limit, unit: "entries".into() }));
        }
        let blobs = self.rows.iter().rev().skip(1).any(|row| row.blob(&self.tenant).is_some());
        if blobs {
            return Ok(Err(Refusal::invalid("rows", "name a blob before their last")));
        }
        let count = self.rows.len() as u64;
        for row in self.rows {
            if let Err(problem) = place(tx, at, &import, row)? {
                return Ok(Err(Refusal::invalid("rows", problem)));
            }
        }
        import.rows += count;
        import.next_batch += 1;
        if import.next_batch == import.origin.batches {
            import.ended_at = Some(at.wall);
            let mut arrivals = Arrivals::read(tx)?;
            if let Some(arrival) = arrivals.tenants.get_mut(&import.tenant) {
                arrival.is_open = false;
            }
            tx.put(&arrivals);
        }
        tx.put(&import);
        Ok(Ok(RowsImported { state: import.state(), changed: true }))
    }
}

/// Puts one row where it belongs; what is wrong with it, if it belongs nowhere.
fn place(tx: &mut impl Tx, at: &Stamp, import: &TenantImport, row: TenantRow) -> Result<Result<(), String>, StorageError> {
    let tenant = &import.tenant;
    let Some(table) = Table::named(&row.table) else { return Ok(Err(format!("name a table `{}`, which is none", row.table))) };
    let (key, value) = (row.key.0, row.value.0);
    let wrong = |what: &str| Ok(Err(format!("hold one of {} that {what}", table.name())));
    if let Some(rest) = key.strip_prefix(Key::new().text(tenant).as_bytes()) {
        let value = match rest.first().and_then(|byte| way(*byte)) {
            Some((_, Way::Timed(moved))) if table == Table::Records => match moved(&value, &|there| import.time(there)) {
                Ok(value) => value,
                Err(error) => return wrong(&format!("can't be read: {error}")),
            },
            Some((_, Way::AsIs | Way::Timed(_))) => value,
            _ => return wrong("no import carries"),
        };
        artefact::name_blob(tx, tenant, table, &key);
        tx.put_bytes(table, key, value);
        return Ok(Ok(()));
    }
    let Some(rest) = key.strip_prefix(Key::new().text(CLUSTER).as_bytes()).filter(|_| table == Table::Index) else {
        return wrong("is of another tenant");
    };
    match rest.split_first().and_then(|(byte, rest)| Some((way(*byte)?, rest))) {
        Some(((_, Way::Waiting), rest)) if rest.starts_with(Key::new().text(tenant).as_bytes()) => tx.put_bytes(table, key, value),
        Some(((kind, Way::Deadline), rest)) => {
            let (Some((time, _)), Ok((of, id))) = (rest.split_first_chunk(), codec::decode::<(String, String)>(&value)) else {
                return wrong("is no deadline");
            };
            if of != *tenant {
                return wrong("is of another tenant");
            }
            if kind == Kind::PunchcardByDeadline {
                return punchcard::arrive(tx, &at.within(tenant), &id);
            }
            deadline::put_late(tx, kind, import.time(LeaseTime(u64::from_be_bytes(*time))), tenant, &id)?;
        }
        _ => return wrong("no import carries"),
    }
    Ok(Ok(()))
}

// ------------------------------------------------------------------ the question

/// Whether a tenant is here, and how it came. For operators of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetTenantImport {
    pub tenant: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantAsFound {
    pub is_there: bool,
    pub import: Option<TenantImport>,
}

impl GetTenantImport {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<TenantAsFound> {
        if let Some(refusal) = refuse_all_but_the_system(&at.caller.tenant) {
            return Ok(Err(refusal));
        }
        Ok(Ok(TenantAsFound { is_there: is_there(view, &self.tenant)?, import: TenantImport::read(view, &self.tenant)? }))
    }
}
