//! Receipts of a tenant, the newest first: what there is to verify.

use serde::{Deserialize, Serialize};

use super::{Link, body_key, head, read_body};
use crate::codec;
use crate::cursor::Cursors;
use crate::record::{Kind, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Revision, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table};

/// Receipts of the caller's tenant, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListReceipts {
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiptRow {
    pub receipt_id: String,
    /// What the body says that it proves, where it says so.
    pub kind: Option<String>,
    pub seq: u64,
    pub made_at: UnixMs,
    pub revision: Revision,
    pub signer_passport: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipts {
    pub receipts: Vec<ReceiptRow>,
    /// How many the tenant has in all.
    pub size: u64,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Kinded {
    kind: String,
}

impl ListReceipts {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Receipts> {
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("receipts", &at.caller, &());
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let size = head(view, tenant)?.next_seq;
        // The first number that is not shown any more.
        let before = match from.map(<[u8; 8]>::try_from).transpose() {
            Ok(position) => position.map_or(size, u64::from_be_bytes).min(size),
            Err(_) => return Ok(Err(Refusal::invalid("cursor", "is not one of this list"))),
        };
        let links = kind_prefix(tenant, Kind::ReceiptLink);
        let to = links.clone().number(before);
        let rows = view.scan_bytes(Table::Receipts, links.as_bytes(), to.as_bytes(), Direction::Descending, limit)?;
        let mut receipts = Vec::new();
        for (_, bytes) in rows {
            let link: Link = codec::decode(&bytes).map_err(|error| StorageError::new("link of a receipt", error))?;
            let body = view.get_bytes(Table::Receipts, &body_key(tenant, link.seq))?;
            let kind = body.and_then(|body| read_body::<Kinded>(&body)).map(|body| body.kind);
            let Link { receipt_id, seq, made_at, revision, signer_passport, .. } = link;
            receipts.push(ReceiptRow { receipt_id, kind, seq, made_at, revision, signer_passport });
        }
        let last = receipts.last().map(|row| row.seq).filter(|seq| *seq > 0);
        let next_cursor = last.map(|seq| cursors.seal(&seq.to_be_bytes()));
        Ok(Ok(Receipts { receipts, size, next_cursor }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::{LeaseTime, Stamp};
    use crate::transcript::{World, person};

    #[test]
    fn receipts_are_listed_newest_first_and_each_once() {
        let mut world = World::new();
        for n in 1..=5 {
            let at = Stamp::plain(Revision(n), LeaseTime(0), UnixMs(n), person("mara"));
            let body = super::super::body(&serde_json::json!({ "kind": "decision", "n": n }));
            super::super::append(&mut world.state, &at, &format!("r{n}"), body, Some("mara")).unwrap();
        }
        let (mut told, mut cursor) = (Vec::new(), None);
        loop {
            let page = world.ask("0s", person("jon"), ListReceipts { limit: 2, cursor }).unwrap();
            assert_eq!(page.size, 5);
            told.extend(page.receipts.into_iter().map(|row| format!("{} {}", row.receipt_id, row.kind.unwrap_or_default())));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(told, ["r5 decision", "r4 decision", "r3 decision", "r2 decision", "r1 decision"]);
        assert_eq!(world.ask("0s", person("jon"), ListReceipts { limit: 9, cursor: None }).unwrap().next_cursor, None);
    }
}
