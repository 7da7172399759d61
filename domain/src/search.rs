//! Search: what is found by words, and what a node's index of them is made of.
//!
//! The index itself is no part of the state: each node builds one of its own, out of what stands here, and can throw it away.
//! [`source`] says which records are found and by what; [`feed`] which of them changed at which revision, noted in the same writes
//! as the change, whatever made it; [`words`] how a text is cut. A search comes in two steps: the node's index names candidates,
//! and [`ask`] judges them against the state, so that what was superseded, deleted or is another's never shows, however old an
//! index is. [`gap`] keeps what nothing was found for.

pub mod ask;
pub mod expand;
pub mod feed;
pub mod gap;
pub mod source;
#[cfg(test)]
mod tests;
pub mod words;

pub use ask::{Asked, Coverage, Found, FoundRow, Hits, Search};
pub use expand::{ExpandResults, Expanded, ExpandedRow, MissingResult};
pub use feed::{Changes, changes_after};
pub use gap::{Gap, GapRecorded, Gaps, ListGaps, RecordGap};
pub use source::{Document, Walked, document, walk};
