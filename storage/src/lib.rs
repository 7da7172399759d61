//! What a node keeps on its disk, and in which order it gets there.
//!
//! This crate knows bytes, indexes and files. It must not know openraft, the network, or any rule of the domain: entries,
//! votes, applied markers and snapshot metadata pass through it unread. From the domain it takes only the names of the tables
//! and the traits through which rules read them.
//!
//! Reading order:
//! * [`identity`]: whose data directory this is, and the lock that keeps a second process out.
//! * [`log`]: the Raft log. One writer thread, one fsync per group, votes and entries in one order; `wal` is the check that
//!   a damaged log is found before RocksDB opens it, and [`probe`] measures the disk before the node starts; [`space`] is how much it may still write.
//! * [`state`]: the state machine. No WAL, one batch per commit, always on disk at the boundary of a batch.
//! * [`snapshot`]: the state as a directory of files that can be sent, resumed, checked and installed.
//! * [`engine`]: what log and state need of the database under them, and `rocks`, which is RocksDB.
//! * [`histogram`]: what is counted along the way.
//! * [`blobs`]: bytes by their hash, beside the log.
//! * [`archive`]: many files in one that leaves the cluster.
//! * [`durable`]: files that are there whole or not at all.

pub mod archive;
pub mod blobs;
pub mod durable;
pub mod engine;
pub mod histogram;
pub mod identity;
pub mod log;
pub mod probe;
mod rocks;
pub mod snapshot;
pub mod space;
pub mod state;
mod wal;

pub use blobs::Blobs;
pub use engine::Engine;
pub use identity::{Claim, DataDir, Identity, IdentityError};
pub use log::{LogMeter, LogOptions, LogStats, LogStore};
pub use probe::{FsyncProbe, probe_fsync};
pub use quorate_domain::StorageError;
pub use rocks::Rocks;
pub use snapshot::{FileEntry, Manifest, Receiver, Snapshot, Snapshots, TransferError};
pub use space::Room;
pub use state::{PartDigest, StateDigest, StateOptions, StateStore, StateView};
