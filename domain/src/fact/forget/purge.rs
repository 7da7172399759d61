//! The end of the recovery window: what was kept aside goes, and the answers that may repeat it.
//!
//! This is as far as rules reach. Every node still has the bytes in its files: in the log, in rows that were overwritten, in old
//! files of the state. [`ErasureDue`] tells them up to which entry they have to rewrite those.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Forgetting, ForgottenFact, Stage, forgetting, taken};
use crate::deadline::{self, Lapsed};
use crate::event;
use crate::key::Key;
use crate::limit::SWEEP_PER_ENTRY;
use crate::machine::drop_answers;
use crate::receipt;
use crate::record::{CLUSTER, Kind, Page, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, Stamp, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};

/// What every node has to rewrite of one tenant: the log up to this entry, and the rows of the tenant as they were before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErasureDue {
    pub tenant: String,
    /// The entry that removed the last forgotten value.
    pub revision: Revision,
    pub purged_at: UnixMs,
}

impl Record for ErasureDue {
    const KIND: Kind = Kind::ErasureDue;
    const TABLE: Table = Table::Meta;
    fn tenant(&self) -> &str {
        CLUSTER
    }
    fn id(&self) -> Key {
        // By revision: a node looks behind what it has done.
        Key::new().number(self.revision.0).text(&self.tenant)
    }
}

/// Rows read at a time.
const ROWS_PER_PAGE: usize = 256;

/// What has come due after a revision, in order: for the node that rewrites its files. A tenant can be in it more than once.
pub fn erasures_due(view: &impl Read, after: Revision) -> Result<Vec<ErasureDue>, StorageError> {
    let start = kind_prefix(CLUSTER, ErasureDue::KIND).number(after.0.saturating_add(1)).into_bytes();
    let (mut due, mut from) = (Vec::new(), Some(start));
    loop {
        let page: Page<ErasureDue> = view.page(CLUSTER, &Key::new(), from.as_deref(), ROWS_PER_PAGE)?;
        due.extend(page.items);
        match page.next {
            Some(next) => from = Some(next),
            None => return Ok(due),
        }
    }
}

fn newest(view: &impl Read) -> Result<Option<ErasureDue>, StorageError> {
    let all = kind_prefix(CLUSTER, ErasureDue::KIND);
    let row = view.scan_bytes(ErasureDue::TABLE, all.as_bytes(), &all.after_prefix(), Direction::Descending, 1)?.pop();
    let decode = |(_, bytes): (Vec<u8>, Vec<u8>)| crate::codec::decode(&bytes).map_err(|error| StorageError::new("erasure", error));
    row.map(decode).transpose()
}

/// The body of a purge's receipt.
#[derive(Serialize)]
struct Body<'a> {
    schema: &'a str,
    receipt_id: &'a str,
    tenant_id: &'a str,
    source_forget_receipt_id: &'a str,
    facts_purged: u64,
    purged_at: String,
    revision: Revision,
}

/// Purges what has run out, as much as one entry may.
pub fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    let mut left = SWEEP_PER_ENTRY;
    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::ForgettingByDeadline, at.lease_now)? {
        let Some(mut forgetting) = forgetting(tx, &tenant, &id)? else {
            return Err(StorageError::corrupt("a deadline points to a forgetting that is not there"));
        };
        left = purge_some(tx, &forgetting, left)?;
        deadline::delete(tx, Kind::ForgettingByDeadline, forgetting.deadline, &tenant, &id);
        if left == 0 {
            // The rest is the next entries', which look behind the clock as it is now.
            forgetting.state = Stage::Purging;
            forgetting.deadline = at.lease_now.plus_ms(1);
            deadline::put(tx, Kind::ForgettingByDeadline, forgetting.deadline, &tenant, &id);
            tx.put(&forgetting);
            // Others that have run out too stay where they are.
            continue;
        }
        forgetting.state = Stage::Purged;
        tx.put(&forgetting);
        finish(tx, &at.within(&tenant), &forgetting)?;
    }
    Ok(())
}

/// Removes values, then answers; what is left of `limit`, 0 when there may be more.
fn purge_some(tx: &mut impl Tx, forgetting: &Forgetting, limit: usize) -> Result<usize, StorageError> {
    if limit == 0 {
        return Ok(0);
    }
    let rows: Vec<ForgottenFact> = taken(tx, forgetting, limit)?;
    for row in &rows {
        tx.delete(row);
    }
    let left = limit - rows.len();
    if left == 0 {
        return Ok(0);
    }
    Ok(left - drop_answers(tx, &forgetting.tenant, forgetting.revision, left)?)
}

fn finish(tx: &mut impl Tx, at: &Stamp, forgetting: &Forgetting) -> Result<(), StorageError> {
    let tenant = &forgetting.tenant;
    let receipt_id = format!("r_purge_{}", forgetting.receipt_id.trim_start_matches("r_forget_"));
    let body = receipt::body(&Body {
        schema: "cuecrux.receipt.permanent_purge.v1",
        receipt_id: &receipt_id,
        tenant_id: tenant,
        source_forget_receipt_id: &forgetting.receipt_id,
        facts_purged: forgetting.facts,
        purged_at: at.wall.to_rfc3339(),
        revision: at.revision,
    });
    receipt::append(tx, at, &receipt_id, body, None)?;
    let about = json!({ "facts": forgetting.facts, "forget_receipt_id": forgetting.receipt_id });
    event::emit(tx, at, "facts.purged", &receipt_id, about)?;
    tx.put(&ErasureDue { tenant: tenant.clone(), revision: at.entry, purged_at: at.wall });
    Ok(())
}

// ------------------------------------------------------------------ scrub --purge-forgotten

/// Ends every open window now. An operator's act, over all tenants, as the sweep of deadlines is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndRecovery {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryEnded {
    pub ended: u64,
    /// There may be more; call again.
    pub more: bool,
}

impl EndRecovery {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<RecoveryEnded> {
        if let Err(refusal) = check_operator(&at.caller) {
            return Ok(Err(refusal));
        }
        // Those at the present instant are ended already, and wait for their sweep.
        let open = open(tx, at.lease_now.plus_ms(2))?;
        let more = open.len() == SWEEP_PER_ENTRY;
        let ended = open.len() as u64;
        for (tenant, id) in open {
            let Some(mut forgetting) = forgetting(tx, &tenant, &id)? else {
                return Err(StorageError::corrupt("a deadline points to a forgetting that is not there"));
            };
            deadline::delete(tx, Kind::ForgettingByDeadline, forgetting.deadline, &tenant, &id);
            forgetting.deadline = at.lease_now.plus_ms(1);
            tx.put(&forgetting);
            deadline::put(tx, Kind::ForgettingByDeadline, forgetting.deadline, &tenant, &id);
        }
        Ok(Ok(RecoveryEnded { ended, more }))
    }
}

fn check_operator(caller: &crate::stamp::Principal) -> Result<(), Refusal> {
    match caller.may("admin") {
        true => Ok(()),
        false => Err(Refusal::Denied { problem: "ending recovery windows needs the scope `admin`".into() }),
    }
}

/// Forgettings whose window ends at `from` or later, the first ones.
fn open(view: &impl Read, from: crate::stamp::LeaseTime) -> Result<Vec<(String, String)>, StorageError> {
    let all = kind_prefix(CLUSTER, Kind::ForgettingByDeadline);
    let rows =
        view.scan_bytes(Table::Index, all.clone().number(from.0).as_bytes(), &all.after_prefix(), Direction::Ascending, SWEEP_PER_ENTRY)?;
    let decode = |(_, bytes): (Vec<u8>, Vec<u8>)| {
        crate::codec::decode::<(String, String)>(&bytes).map_err(|error| StorageError::new("deadline", error))
    };
    rows.into_iter().map(decode).collect()
}

/// How far the purging of the cluster is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetErasure {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErasureState {
    /// Forgettings whose window is open, as far as they were counted.
    pub open: u64,
    /// Forgettings whose window is over and whose values are on their way out.
    pub purging: u64,
    /// Both stop counting at 100.
    pub more: bool,
    /// The entry up to which nodes have to rewrite their files; none where nothing was ever purged.
    pub due: Option<Revision>,
}

impl GetErasure {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<ErasureState> {
        if let Err(refusal) = check_operator(&at.caller) {
            return Ok(Err(refusal));
        }
        let now = at.lease_now.plus_ms(2);
        let all = open(view, crate::stamp::LeaseTime(0))?;
        let (later, more) = (open(view, now)?, all.len() == SWEEP_PER_ENTRY);
        let due = newest(view)?.map(|due| due.revision);
        let purging = all.len().saturating_sub(later.len()) as u64;
        Ok(Ok(ErasureState { open: later.len() as u64, purging, more, due }))
    }
}
