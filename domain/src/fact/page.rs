//! Pages of recall-like lists: rows of a walk until the reply is full, and where the next page begins.
//!
//! A page ends early for one of four reasons, and then says which and how to go on: it has `top_k` rows, its bytes are used
//! up, the token budget is, or so many rows were examined that the rest waits for the next call. The instant of the first page
//! stands in the cursor, so that ages and the order stand still while a caller pages.

use super::Fact;
use super::rank::{Order, Step, Walk};
use super::stored;
use crate::cursor::Cursors;
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES, SCAN_ROWS_MAX};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, UnixMs};
use crate::tx::{Read, StorageError};

/// The bytes that rows may take.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    bytes: usize,
    /// What surrounds the rows beside [`REPLY_WRAPPER_BYTES`].
    reserved: usize,
    /// Why rows end when the bytes are used up.
    reason: &'static str,
    /// The tokens that the caller allowed, all of which count: then not even the first row may go over them.
    budget: Option<u64>,
}

impl Room {
    /// For a reply whose rows are surrounded by no more than [`REPLY_WRAPPER_BYTES`], and `default_tokens` when none are given.
    pub(crate) fn of(token_budget: Option<u64>, default_tokens: Option<u64>) -> Self {
        let bytes_of = |tokens: u64| usize::try_from(tokens.saturating_mul(4)).unwrap_or(usize::MAX);
        match (token_budget, default_tokens) {
            (Some(tokens), _) if bytes_of(tokens) <= REPLY_BYTES_MAX => Self {
                bytes: bytes_of(tokens).saturating_sub(REPLY_WRAPPER_BYTES),
                reserved: 0,
                reason: "token_budget",
                budget: Some(tokens),
            },
            (Some(_), _) => Self { bytes: REPLY_BYTES_MAX - REPLY_WRAPPER_BYTES, reserved: 0, reason: "reply_bytes", budget: None },
            (None, Some(tokens)) => {
                Self { bytes: bytes_of(tokens).saturating_sub(REPLY_WRAPPER_BYTES), reserved: 0, reason: "token_budget", budget: None }
            }
            (None, None) => Self { bytes: REPLY_BYTES_DEFAULT - REPLY_WRAPPER_BYTES, reserved: 0, reason: "reply_bytes", budget: None },
        }
    }

    /// Takes place for one row: `Ok(false)` when it has to wait for the next page. The first row of a page comes in any case,
    /// unless it is over a budget that the caller set.
    pub(crate) fn take(&mut self, row_bytes: usize, is_first: bool) -> Result<bool, Refusal> {
        // And what parts it from the next.
        let row_bytes = row_bytes + 1;
        if row_bytes <= self.bytes {
            self.bytes -= row_bytes;
            return Ok(true);
        }
        match (is_first, self.budget) {
            (true, Some(budget)) => {
                let needed = (row_bytes + REPLY_WRAPPER_BYTES + self.reserved).div_ceil(4);
                Err(Refusal::invalid("token_budget", format!("of {budget} has no room for the next row, which needs {needed}")))
            }
            (true, None) => {
                self.bytes = 0;
                Ok(true)
            }
            (false, _) => Ok(false),
        }
    }

    /// Leaves so many bytes more to what surrounds the rows.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.reserved += bytes;
    }

    pub(crate) fn reason(&self) -> &'static str {
        self.reason
    }
}

/// What every list of this kind takes.
pub(super) struct Asked<'a> {
    pub top_k: u64,
    pub token_budget: Option<u64>,
    pub default_tokens: Option<u64>,
    pub cursor: Option<&'a str>,
}

/// Where a page begins, and how large it may grow.
pub(super) struct Start {
    pub room: Room,
    /// The instant of the first page.
    pub now: UnixMs,
    pub after: Option<Order>,
    top_k: u64,
}

impl Asked<'_> {
    pub(super) fn check(&self, cursors: &Cursors, at: &ReadStamp) -> Result<Start, Refusal> {
        if self.top_k == 0 {
            return Err(Refusal::invalid("top_k", "must be at least 1"));
        }
        if self.token_budget == Some(0) {
            return Err(Refusal::invalid("token_budget", "must be at least 1"));
        }
        let room = Room::of(self.token_budget, self.default_tokens);
        let start = |now, after| Start { room, now, after, top_k: self.top_k };
        let Some(cursor) = self.cursor else { return Ok(start(at.wall, None)) };
        let position = cursors.open(cursor)?;
        let parts = position.split_last_chunk().and_then(|(order, now)| Some((Order::from_bytes(order)?, u64::from_be_bytes(*now))));
        let (after, now) = parts.ok_or_else(|| Refusal::invalid("cursor", "is damaged"))?;
        Ok(start(UnixMs(now), Some(after)))
    }
}

/// One page.
pub(super) struct Page<R> {
    pub rows: Vec<R>,
    pub next_cursor: Option<String>,
    pub truncated: Option<String>,
}

/// Fills a page with what `row` makes of the walk's facts: a row and its bytes, or nothing for one that does not match.
pub(super) fn fill<V: Read, R>(
    view: &V,
    at: &ReadStamp,
    cursors: &Cursors,
    start: Start,
    walk: &mut Walk<'_, V>,
    mut row: impl FnMut(Order, Fact) -> Result<Option<(R, usize)>, StorageError>,
) -> Applied<Page<R>> {
    let Start { mut room, now, after, top_k } = start;
    let mut page = Page { rows: Vec::new(), next_cursor: None, truncated: None };
    let (mut examined, mut passed) = (0, after);
    let stopped = loop {
        let Some(Step { order, id }) = walk.next()? else { break None };
        if examined == SCAN_ROWS_MAX {
            break Some("scan_limit");
        }
        examined += 1;
        let fact = id.map(|id| stored(view, &at.caller.tenant, &id)).transpose()?;
        let found = match fact {
            Some(fact) => row(order, fact)?,
            None => None,
        };
        if let Some((row, bytes)) = found {
            if page.rows.len() as u64 >= top_k {
                break Some("top_k");
            }
            match room.take(bytes, page.rows.is_empty()) {
                Ok(true) => page.rows.push(row),
                Ok(false) => break Some(room.reason()),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        passed = Some(order);
    };
    if let (Some(reason), Some(passed)) = (stopped, passed) {
        page.truncated = Some(reason.into());
        page.next_cursor = Some(cursors.seal(&[passed.to_bytes(), now.0.to_be_bytes().to_vec()].concat()));
    }
    Ok(Ok(page))
}
