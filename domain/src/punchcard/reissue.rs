//! New tokens for the cards that are held when a lineage begins (see [`crate::lineage`]).

use super::*;
use crate::codec;

/// Rows of one read.
const PAGE: usize = 1_000;

/// Every held card of every tenant, by tenant and id, in the order of their tokens. Reads them all: for a state that nobody
/// serves yet.
pub(crate) fn all_held(view: &impl Read) -> Result<Vec<(String, String)>, StorageError> {
    let all = kind_prefix(crate::record::CLUSTER, Kind::PunchcardByDeadline);
    let (mut from, to) = (all.as_bytes().to_vec(), all.after_prefix());
    let mut held = Vec::new();
    loop {
        let rows = view.scan_bytes(Table::Index, &from, &to, Direction::Ascending, PAGE)?;
        for (_, bytes) in &rows {
            let (tenant, id): (String, String) = codec::decode(bytes).map_err(|error| StorageError::new("deadline", error))?;
            held.push((indexed(view, &tenant, &id)?.fencing_token, tenant, id));
        }
        match rows.into_iter().nth(PAGE - 1) {
            Some((last, _)) => from = [last.as_slice(), &[0]].concat(),
            None => break,
        }
    }
    held.sort();
    Ok(held.into_iter().map(|(_, tenant, id)| (tenant, id)).collect())
}

/// Gives a held card of the stamp's tenant the stamp's revision as its token. Its deadline stays.
pub(crate) fn reissue(tx: &mut impl Tx, at: &Stamp, id: &str) -> Result<(), StorageError> {
    let mut card = indexed(tx, &at.caller.tenant, id)?;
    let resource = Resource::parse(&card.resource).map_err(stored)?;
    let of_resource = by_resource(&card.tenant, &card.resource);
    withdraw(tx, &mut card, &resource)?;
    unlist(tx, &card);
    tx.delete_index(of_resource.clone().raw(position(&card).as_bytes()));
    card.fencing_token = at.revision;
    enter(tx, &mut card, &resource)?;
    list(tx, &card);
    tx.put_index(of_resource.raw(position(&card).as_bytes()), card.id.as_bytes());
    tx.put(&card);
    let receipt_id = format!("rcx-punchcard:reissue:{}:{}", card.id, card.fencing_token);
    prove(tx, at, &card, "reissue", &receipt_id, None, None)?;
    tell(tx, at, &card, "punchcard.renewed", None)
}
