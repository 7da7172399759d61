//! How rules reach state: ordered tables of bytes.
//!
//! Three things implement [`Read`]: RocksDB (in `storage`), an [`crate::overlay::Overlay`] over any of them, and the in-memory
//! store of the tests, which is an overlay over nothing. Only overlays implement [`Tx`]: a command's writes are kept aside
//! until it has succeeded, so a refusal leaves none.

/// The column families, by access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Records by tenant, kind and id.
    Records,
    /// Derived orders of records: by deadline, by holder, by rank.
    Index,
    /// Change events by tenant and revision.
    Events,
    /// Receipt bodies and chain links, append-only.
    Receipts,
    /// Answers by request id, and the order in which they expire.
    Dedup,
    /// One of a kind: lease clock, flags, tokens.
    Meta,
}

impl Table {
    /// All tables, in the order of their stored names.
    pub const ALL: [Table; 6] = [Table::Records, Table::Index, Table::Events, Table::Receipts, Table::Dedup, Table::Meta];

    /// The table of a stored name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }

    /// The stored name. It is on disk and never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Records => "records",
            Table::Index => "index",
            Table::Events => "events",
            Table::Receipts => "receipts",
            Table::Dedup => "dedup",
            Table::Meta => "meta",
        }
    }
}

/// Storage failed or holds what it must not hold; the node stops rather than guess.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct StorageError {
    context: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StorageError {
    pub fn new(context: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { context: context.into(), source: Some(source.into()) }
    }

    /// A record that breaks an invariant of the rules: going on would let replicas drift apart.
    pub fn corrupt(context: impl Into<String>) -> Self {
        Self { context: context.into(), source: None }
    }
}

/// A row of a table: key and value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Ascending,
    Descending,
}

/// Consistent reads of one state.
pub trait Read {
    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// At most `limit` rows with `from <= key < to`, in the given direction.
    fn scan_bytes(&self, table: Table, from: &[u8], to: &[u8], direction: Direction, limit: usize) -> Result<Vec<Row>, StorageError>;
}

/// Reads and writes of one command. Writes are seen by the reads after them.
pub trait Tx: Read {
    fn put_bytes(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>);
    fn delete_bytes(&mut self, table: Table, key: Vec<u8>);
}
