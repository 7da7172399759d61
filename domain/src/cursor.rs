//! Cursors: where a page of a list ended, as text that goes back to the same list only.
//!
//! A cursor is a position and a check over the position, the list with its filters, and the caller. What a cursor can reach is
//! decided by the query that takes it, from its caller and filters alone, so the check is no secret: it tells a cursor that was
//! damaged, or belongs to another list, from one that fits.

use serde::Serialize;

use crate::codec;
use crate::query;
use crate::refusal::Refusal;
use crate::stamp::Principal;

const CHECK_BYTES: usize = 8;

/// The cursors of one list, as one caller sees it through one set of filters.
pub(crate) struct Cursors(blake3::Hasher);

impl Cursors {
    pub(crate) fn of(list: &str, caller: &Principal, filters: &impl Serialize) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("quorate 2026 cursor");
        hasher.update(&codec::encode(&(list, &caller.tenant, &caller.passport)));
        hasher.update(&codec::encode(filters));
        Self(hasher)
    }

    pub(crate) fn seal(&self, position: &[u8]) -> String {
        hex::encode([&self.check(position), position].concat())
    }

    /// The position in a cursor of this list.
    pub(crate) fn open(&self, cursor: &str) -> Result<Vec<u8>, Refusal> {
        let foreign =
            || Refusal::invalid("cursor", "is not one of this list with these filters; use `next_cursor` as it was given, or none");
        let bytes = hex::decode(cursor).map_err(|_| foreign())?;
        let (check, position) = bytes.split_at_checked(CHECK_BYTES).ok_or_else(foreign)?;
        if check != self.check(position) {
            return Err(foreign());
        }
        Ok(position.to_vec())
    }

    /// The same where the first page has no cursor.
    pub(crate) fn open_from(&self, cursor: Option<&str>) -> Result<Option<Vec<u8>>, Refusal> {
        cursor.map(|cursor| self.open(cursor)).transpose()
    }

    /// How many rows a page may have, and where it begins.
    pub(crate) fn page(&self, limit: u64, cursor: Option<&str>) -> Result<(usize, Option<Vec<u8>>), Refusal> {
        Ok((query::rows(limit)?, self.open_from(cursor)?))
    }

    fn check(&self, position: &[u8]) -> [u8; CHECK_BYTES] {
        let hash = self.0.clone().update(position).finalize();
        std::array::from_fn(|i| hash.as_bytes()[i])
    }
}
