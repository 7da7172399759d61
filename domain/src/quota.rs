//! Quotas: how much of one tenant the cluster stores.
//!
//! An operator sets them, for the tenants that are to have one; the others cost nothing. What a tenant uses is counted as rows are
//! written, on the way of every entry, sweeps and imports included. Invariants:
//! * While a tenant is at its quota, a command of its callers that makes the state grow is refused with [`Refusal::OverQuota`]. What
//!   frees room, keeps a lease alive, ends one, or is an operator's act goes on, as when disks are short of room (see [`crate::space`]).
//! * A command is judged by what is used before it, so the last one may end a little above.
//! * Counted are records and receipts, with their keys, and the content of artefacts. Not counted are what is bounded by itself (events,
//!   answers) and what is derived (orders, the search index).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::artefact::Artefact;
use crate::codec;
use crate::command::Command;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{QUOTA_COUNTED_PER_ENTRY, QUOTAS_MAX};
use crate::machine::Clock;
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::space;
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Direction, Read, Row, StorageError, Table, Tx};

/// The tables whose rows are counted, in the order in which they are gone through first.
const COUNTED: [Table; 2] = [Table::Records, Table::Receipts];

/// What a tenant may use; none: as much as there is room for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quota {
    pub records_max: Option<u64>,
    pub bytes_max: Option<u64>,
    pub set_at: UnixMs,
}

/// All quotas. Every entry reads them, so they are few.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quotas {
    tenants: BTreeMap<String, Quota>,
    /// Those of them of which not all is counted that was there before.
    #[serde(default)]
    counting: BTreeSet<String>,
}

impl Record for Quotas {
    const KIND: Kind = Kind::Quotas;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

impl Quotas {
    pub fn read(view: &(impl Read + ?Sized)) -> Result<Self, StorageError> {
        Ok(view.get(CLUSTER, &Key::new())?.unwrap_or_default())
    }
}

/// What a tenant with a quota uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredUsage {
    pub tenant: String,
    pub records: u64,
    pub bytes: u64,
    /// Up to where the rows that were there before the quota are counted: a table of [`COUNTED`] and a key in it, in hex. None:
    /// all are.
    counted: Option<(usize, String)>,
}

impl Record for StoredUsage {
    const KIND: Kind = Kind::StoredUsage;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        Key::new().text(&self.tenant)
    }
}

impl StoredUsage {
    fn read(view: &(impl Read + ?Sized), tenant: &str) -> Result<Option<Self>, StorageError> {
        view.get(CLUSTER, &Key::new().text(tenant))
    }

    pub fn is_whole(&self) -> bool {
        self.counted.is_none()
    }

    /// Whether a row stands where rows are counted by now.
    fn has_come_to(&self, table: usize, key: &[u8]) -> Result<bool, StorageError> {
        let Some((at, from)) = &self.counted else { return Ok(true) };
        let from = hex::decode(from).map_err(|error| StorageError::new("where a tenant is counted from", error))?;
        Ok((table, key) < (*at, from.as_slice()))
    }

    fn add(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.records += 1;
        self.bytes += bytes_of(table, key, value);
    }

    fn take(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes_of(table, key, value));
    }
}

/// What a row takes, with the blob that it is made of.
fn bytes_of(table: Table, key: &[u8], value: &[u8]) -> u64 {
    let kind = Key::leading_text(key).and_then(|tenant| key.get(Key::new().text(&tenant).as_bytes().len()).copied());
    let is_artefact = table == Table::Records && kind == Some(Kind::Artefact as u8);
    // One that can't be read is found by who needs it.
    let content = is_artefact.then(|| codec::decode::<Artefact>(value).ok()).flatten().map_or(0, |artefact| artefact.size_bytes);
    (key.len() + value.len()) as u64 + content
}

// ------------------------------------------------------------------ counting

/// Passes everything through, and counts what is written of the tenants that have a quota.
pub(crate) struct Counting<'a, T: Tx> {
    tx: &'a mut T,
    quotas: Arc<Quotas>,
    /// Of the tenants that this entry has written to.
    usages: BTreeMap<String, StoredUsage>,
    fault: Option<StorageError>,
}

impl<'a, T: Tx> Counting<'a, T> {
    /// `has_terms`: there may be quotas.
    pub fn new(tx: &'a mut T, has_terms: bool) -> Result<Self, StorageError> {
        let quotas = Arc::new(if has_terms { Quotas::read(tx)? } else { Quotas::default() });
        Ok(Self { tx, quotas, usages: BTreeMap::new(), fault: None })
    }

    /// As they are at the begin of the entry.
    pub fn quotas(&self) -> Arc<Quotas> {
        Arc::clone(&self.quotas)
    }

    /// Writes down what was counted, and goes on with the rows that were there before.
    pub fn finish(self) -> Result<(), StorageError> {
        let Self { tx, quotas, mut usages, fault } = self;
        if let Some(fault) = fault {
            return Err(fault);
        }
        if let Some(tenant) = quotas.counting.first() {
            let known = usages.remove(tenant).map_or_else(|| StoredUsage::read(tx, tenant), |usage| Ok(Some(usage)))?;
            if let Some(mut usage) = known {
                count_some(tx, &mut usage)?;
                if usage.counted.is_none() {
                    let mut quotas = Quotas::read(tx)?;
                    quotas.counting.remove(tenant);
                    tx.put(&quotas);
                }
                usages.insert(tenant.clone(), usage);
            }
        }
        for usage in usages.values() {
            // A command of this entry may have taken the quota away, and the usage with it.
            if StoredUsage::read(tx, &usage.tenant)?.is_some() {
                tx.put(usage);
            }
        }
        Ok(())
    }

    fn count(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), StorageError> {
        let Some(place) = COUNTED.iter().position(|counted| *counted == table) else { return Ok(()) };
        let Some(tenant) = Key::leading_text(key).filter(|tenant| self.quotas.tenants.contains_key(tenant)) else { return Ok(()) };
        let mut usage = match self.usages.remove(&tenant) {
            Some(usage) => usage,
            None => match StoredUsage::read(self.tx, &tenant)? {
                Some(usage) => usage,
                None => return Ok(()),
            },
        };
        if usage.has_come_to(place, key)? {
            if let Some(before) = self.tx.get_bytes(table, key)? {
                usage.take(table, key, &before);
            }
            if let Some(value) = value {
                usage.add(table, key, value);
            }
        }
        self.usages.insert(tenant, usage);
        Ok(())
    }

    fn note(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        if self.quotas.tenants.is_empty() {
            return;
        }
        if let Err(fault) = self.count(table, key, value) {
            self.fault.get_or_insert(fault);
        }
    }
}

/// Counts rows that were there before, as many as one entry may.
fn count_some(tx: &impl Read, usage: &mut StoredUsage) -> Result<(), StorageError> {
    let Some((at, from)) = usage.counted.take() else { return Ok(()) };
    let Some(table) = COUNTED.get(at).copied() else { return Ok(()) };
    let own = Key::new().text(&usage.tenant);
    let from = hex::decode(from).map_err(|error| StorageError::new("where a tenant is counted from", error))?;
    let from = if from.is_empty() { own.as_bytes().to_vec() } else { from };
    let rows = tx.scan_bytes(table, &from, &own.after_prefix(), Direction::Ascending, QUOTA_COUNTED_PER_ENTRY)?;
    for (key, value) in &rows {
        usage.add(table, key, value);
    }
    usage.counted = match rows.last() {
        Some((last, _)) if rows.len() == QUOTA_COUNTED_PER_ENTRY => Some((at, hex::encode([last.as_slice(), &[0]].concat()))),
        _ => Some((at + 1, String::new())).filter(|(next, _)| *next < COUNTED.len()),
    };
    Ok(())
}

impl<T: Tx> Read for Counting<'_, T> {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.tx.get_bytes(table, key)
    }

    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError> {
        self.tx.scan_bytes(table, from, to, direction, limit)
    }
}

impl<T: Tx> Tx for Counting<'_, T> {
    fn put_bytes(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.note(table, &key, Some(&value));
        self.tx.put_bytes(table, key, value);
    }

    fn delete_bytes(&mut self, table: Table, key: Vec<u8>) {
        self.note(table, &key, None);
        self.tx.delete_bytes(table, key);
    }
}

// ------------------------------------------------------------------ refusing

/// The refusal of whatever makes a tenant grow that is at its quota.
pub(crate) fn refuse_growth(view: &impl Read, at: &Stamp) -> Result<Option<Refusal>, StorageError> {
    let tenant = &at.caller.tenant;
    let Some(quota) = at.quotas.tenants.get(tenant) else { return Ok(None) };
    let Some(usage) = StoredUsage::read(view, tenant)? else { return Ok(None) };
    let over = |what: &str, used: u64, limit: Option<u64>| {
        let limit = limit.filter(|limit| used >= *limit)?;
        Some(Refusal::OverQuota { tenant: tenant.clone(), what: what.into(), used, limit })
    };
    Ok(over("records", usage.records, quota.records_max).or_else(|| over("bytes", usage.bytes, quota.bytes_max)))
}

/// The same, for a command as a whole.
pub(crate) fn refuse(view: &impl Read, at: &Stamp, command: &Command) -> Result<Option<Refusal>, StorageError> {
    if space::goes_on(command) { Ok(None) } else { refuse_growth(view, at) }
}

// ------------------------------------------------------------------ setting

/// Sets what a tenant may store, or takes its quota away. An operator's act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetQuota {
    pub tenant: String,
    pub records_max: Option<u64>,
    pub bytes_max: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuotaSet {
    /// False when it was so already.
    pub changed: bool,
}

impl SetQuota {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<QuotaSet> {
        if let Some(refusal) = refuse_all_but_the_system(&at.caller.tenant).or_else(|| check_name("tenant", &self.tenant)) {
            return Ok(Err(refusal));
        }
        let mut quotas = Quotas::read(tx)?;
        let known = quotas.tenants.get(&self.tenant);
        let wanted = (self.records_max, self.bytes_max);
        if known.map_or((None, None), |known| (known.records_max, known.bytes_max)) == wanted {
            return Ok(Ok(QuotaSet { changed: false }));
        }
        if wanted == (None, None) {
            quotas.tenants.remove(&self.tenant);
            quotas.counting.remove(&self.tenant);
            if let Some(usage) = StoredUsage::read(tx, &self.tenant)? {
                tx.delete(&usage);
            }
        } else {
            if known.is_none() {
                if quotas.tenants.len() >= QUOTAS_MAX {
                    let what = "the list of quotas".into();
                    return Ok(Err(Refusal::Full { what, limit: QUOTAS_MAX as u64, retry_after_ms: 0 }));
                }
                quotas.counting.insert(self.tenant.clone());
                tx.put(&StoredUsage { tenant: self.tenant.clone(), counted: Some((0, String::new())), ..StoredUsage::default() });
            }
            let quota = Quota { records_max: self.records_max, bytes_max: self.bytes_max, set_at: at.wall };
            quotas.tenants.insert(self.tenant, quota);
            Clock::set_terms(tx)?;
        }
        tx.put(&quotas);
        Ok(Ok(QuotaSet { changed: true }))
    }
}

fn refuse_all_but_the_system(tenant: &str) -> Option<Refusal> {
    (tenant != CLUSTER).then(|| Refusal::Denied { problem: "quotas are set by operators of the cluster".into() })
}

/// Every quota with what is used of it. For operators of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListQuotas {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuotaView {
    pub tenant: String,
    pub records_max: Option<u64>,
    pub bytes_max: Option<u64>,
    pub set_at: UnixMs,
    pub records: u64,
    pub bytes: u64,
    /// False while rows that were there before the quota are still being counted.
    pub is_counted: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuotasListed {
    pub quotas: Vec<QuotaView>,
}

impl ListQuotas {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<QuotasListed> {
        if let Some(refusal) = refuse_all_but_the_system(&at.caller.tenant) {
            return Ok(Err(refusal));
        }
        Ok(Ok(QuotasListed { quotas: quotas(view)? }))
    }
}

/// Every quota with what is used of it.
pub fn quotas(view: &(impl Read + ?Sized)) -> Result<Vec<QuotaView>, StorageError> {
    let shown = |(tenant, quota): (String, Quota)| {
        let usage = StoredUsage::read(view, &tenant)?.unwrap_or_default();
        let Quota { records_max, bytes_max, set_at } = quota;
        Ok(QuotaView { tenant, records_max, bytes_max, set_at, records: usage.records, bytes: usage.bytes, is_counted: usage.is_whole() })
    };
    Quotas::read(view)?.tenants.into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::{Confidence, DeleteFact, StoreFact};
    use crate::identity;
    use crate::punchcard::{PunchIn, PunchOut, PunchedIn};
    use crate::transcript::{World, person};

    fn fact(key: &str) -> StoreFact {
        StoreFact {
            entity: "svc:api".into(),
            key: key.into(),
            value: "v".repeat(100),
            source_receipt: None,
            confidence: Confidence::FULL,
            private: false,
            horizon_class: None,
            freshness_horizon: None,
            supersedes: Default::default(),
        }
    }

    fn punch_in(resource: &str) -> PunchIn {
        PunchIn { resource: resource.into(), holder_passport: "mara".into(), ttl_ms: Some(60_000), ..PunchIn::default() }
    }

    fn set(world: &mut World, time: &str, records_max: Option<u64>, bytes_max: Option<u64>) -> bool {
        let set = SetQuota { tenant: "acme".into(), records_max, bytes_max };
        world.call(time, identity::system(), None, set).expect("the cluster's own").changed
    }

    fn used(world: &mut World, time: &str) -> QuotaView {
        let listed = world.ask(time, identity::system(), ListQuotas {}).expect("listed");
        listed.quotas.into_iter().next().expect("it has one")
    }

    /// What is there, by looking at all of it.
    fn found(world: &World) -> (u64, u64) {
        let own = Key::new().text("acme");
        let rows = COUNTED.into_iter().flat_map(|table| {
            let rows =
                world.state.scan_bytes(table, own.as_bytes(), &own.after_prefix(), Direction::Ascending, usize::MAX).expect("no fault");
            rows.into_iter().map(move |(key, value)| bytes_of(table, &key, &value))
        });
        rows.fold((0, 0), |(records, bytes), row| (records + 1, bytes + row))
    }

    #[test]
    fn at_its_quota_a_tenant_grows_no_more_and_deletes_renewals_and_releases_go_on() {
        let (mut world, mara) = (World::new(), || person("mara"));
        let kept = world.call("0s", mara(), None, fact("a")).expect("stored");
        world.call("1s", mara(), None, punch_in("file://a")).expect("granted");
        assert!(set(&mut world, "2s", None, Some(500)));
        assert!(!set(&mut world, "3s", None, Some(500)), "it is so already");
        world.tick("4s");

        let refused = world.call("5s", mara(), None, fact("b")).expect_err("refused");
        let Refusal::OverQuota { tenant, what, used: told, limit } = refused.clone() else { panic!("{refused:?}") };
        assert_eq!((tenant.as_str(), what.as_str(), limit, told), ("acme", "bytes", 500, used(&mut world, "5s").bytes));
        assert!(refused.to_string().contains(&told.to_string()) && refused.retryable());
        assert_eq!(world.call("6s", mara(), None, punch_in("file://b")).expect_err("a new grant grows"), refused);
        let renewed = world.call("7s", mara(), None, punch_in("file://a")).expect("renewed");
        assert!(matches!(renewed, PunchedIn::Granted { renewed: true, .. }));
        let out = PunchOut { resource: "file://a".into(), holder_passport: "mara".into(), tenant_id: None, release_commit_sha: None };
        world.call("8s", mara(), None, out).expect("released");
        world.call("9s", mara(), None, DeleteFact { fact_id: kept.fact_id }).expect("deleted");
        world.call("10s", person("eve"), None, fact("b")).expect("another tenant has its own");

        assert!(set(&mut world, "11s", Some(1_000), None));
        world.call("12s", mara(), None, fact("b")).expect("stored again");
    }

    #[test]
    fn what_is_used_is_what_is_there_however_it_came_and_went() {
        let mut world = World::new();
        for n in 0..60 {
            world.call("0s", person("mara"), None, fact(&format!("before{n}"))).expect("stored");
        }
        set(&mut world, "1s", Some(1_000_000), None);
        let mut n = 0;
        while !used(&mut world, "2s").is_counted {
            // Written while it is counted, before and behind the place.
            world.call("2s", person("mara"), None, fact(&format!("before{n}"))).expect("stored");
            world.call("2s", person("mara"), None, fact(&format!("while{n}"))).expect("stored");
            n += 1;
            assert!(n < 100, "it ends");
        }
        assert!(n > 1, "it takes several entries");
        world.call("3s", person("mara"), None, punch_in("file://a")).expect("granted");
        world.tick("100s");
        let used = used(&mut world, "100s");
        assert_eq!((used.records, used.bytes), found(&world));
    }

    #[test]
    fn a_quota_that_is_taken_away_leaves_nothing() {
        let mut world = World::new();
        world.call("0s", person("mara"), None, fact("a")).expect("stored");
        set(&mut world, "1s", Some(1), None);
        world.tick("2s");
        world.call("3s", person("mara"), None, fact("b")).expect_err("refused");
        assert!(set(&mut world, "4s", None, None));
        assert_eq!(StoredUsage::read(&world.state, "acme").expect("no fault"), None);
        world.call("5s", person("mara"), None, fact("b")).expect("stored");
        let denied = world.call("6s", person("olga"), None, SetQuota { tenant: "acme".into(), records_max: None, bytes_max: None });
        assert!(matches!(denied, Err(Refusal::Denied { .. })));
    }
}
