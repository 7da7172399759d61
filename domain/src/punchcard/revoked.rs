//! What a revoked holder leaves behind: its tickets leave the queue and its cards end, a bounded number in one entry.
//!
//! While there is more, a row of the index remembers the holder, and the sweeps of the next entries go on.

use serde::{Deserialize, Serialize};

use super::{Ending, Status, by_holder, end, indexed, queue, text};
use crate::codec;
use crate::key::Key;
use crate::limit::{HAND_OVERS_PER_ENTRY, REVOKED_PER_ENTRY};
use crate::record::{CLUSTER, Kind, WriteRecords, kind_prefix};
use crate::stamp::{Revision, Stamp};
use crate::tx::{Direction, StorageError, Table, Tx};

/// A holder whose cards and tickets are being ended.
#[derive(Serialize, Deserialize)]
struct Leaving {
    tenant: String,
    holder: String,
    by: String,
    /// Only what was granted up to then ends: with enforcement off, the holder may take cards anew.
    through: Revision,
}

impl Leaving {
    fn key(&self) -> Key {
        kind_prefix(CLUSTER, Kind::LeavingHolder).text(&self.tenant).text(&self.holder)
    }
}

/// Ends all that a passport holds and waits for.
pub(crate) fn end_all(tx: &mut impl Tx, at: &Stamp, holder: &str) -> Result<(), StorageError> {
    let leaving = Leaving { tenant: at.caller.tenant.clone(), holder: holder.into(), by: at.caller.passport.clone(), through: at.revision };
    go_on(tx, at, &leaving, &mut { HAND_OVERS_PER_ENTRY })
}

/// Goes on with one holder whose end an earlier entry began.
pub(super) fn sweep(tx: &mut impl Tx, at: &Stamp, budget: &mut usize) -> Result<(), StorageError> {
    let all = kind_prefix(CLUSTER, Kind::LeavingHolder);
    for (_, bytes) in tx.scan_bytes(Table::Index, all.as_bytes(), &all.after_prefix(), Direction::Ascending, 1)? {
        let leaving: Leaving = codec::decode(&bytes).map_err(|error| StorageError::new("leaving holder", error))?;
        go_on(tx, &at.within(&leaving.tenant), &leaving, budget)?;
    }
    Ok(())
}

fn go_on(tx: &mut impl Tx, at: &Stamp, leaving: &Leaving, budget: &mut usize) -> Result<(), StorageError> {
    let Leaving { tenant, holder, by, through } = leaving;
    let waits = queue::by_holder(tenant, holder);
    let tickets = tx.scan_bytes(Table::Index, waits.as_bytes(), &waits.after_prefix(), Direction::Ascending, REVOKED_PER_ENTRY + 1)?;
    let held = by_holder(tenant, holder, Status::Held);
    let from = held.clone().number_descending(through.0);
    let cards = tx.scan_bytes(Table::Index, from.as_bytes(), &held.after_prefix(), Direction::Ascending, REVOKED_PER_ENTRY + 1)?;
    let mut is_more = tickets.len() > REVOKED_PER_ENTRY || cards.len() > REVOKED_PER_ENTRY;
    // Tickets first: a resource that a card frees must not go to the same holder.
    for (_, id) in tickets.into_iter().take(REVOKED_PER_ENTRY) {
        let ticket = queue::indexed(tx, tenant, &text(&id)?)?;
        queue::leave(tx, at, ticket, budget)?;
    }
    for (_, id) in cards.into_iter().take(REVOKED_PER_ENTRY) {
        let card = indexed(tx, tenant, &text(&id)?)?;
        if card.fencing_token == at.revision {
            // Granted by the sweep of this very entry; ended here, the next holder would get the same token.
            is_more = true;
        } else if card.is_live(at.lease_now) {
            let reason = Some("its holder was revoked".to_string());
            end(tx, at, card, Ending::Forced { by: by.clone(), reason }, budget)?;
        } else {
            end(tx, at, card, Ending::Expired, budget)?;
        }
    }
    match is_more {
        true => tx.put_index(leaving.key(), &codec::encode(leaving)),
        false => tx.delete_index(leaving.key()),
    }
    Ok(())
}
