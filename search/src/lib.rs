//! The full-text index of one node.
//!
//! It holds the words of everything that can be found (`quorate_domain::search`), follows the state from revision to revision, and
//! names candidates for a search. It is derived and nobody's truth: it can be deleted at any time, and builds itself anew when it
//! is missing, too far behind, of another cluster or damaged. What it names is judged against the state by the domain.
//!
//! Tenants share one index and no word: each term begins with a mark of the tenant, and of the passport where a thing is private
//! ([`space`]). So a search can't reach what stands elsewhere, and the numbers that decide an order ([`statistics`]) are counted
//! in the caller's spaces alone.
//!
//! Reading order: [`index`] (what is stored, and a search), [`indexer`] (how it follows the state), [`lazy`] (its files). This crate
//! knows tantivy and the domain, and neither openraft nor RocksDB.

mod index;
mod indexer;
mod lazy;
mod space;
mod statistics;

pub use index::{Error, Index, Size};
pub use indexer::{Indexer, Step};
