//! The replica process: configuration, the gRPC services, health and metrics.
//!
//! It puts [`quorate_raft::RaftNode`] behind the wire and decides nothing itself: no rule of the domain, no openraft type and
//! no RocksDB call stands here. Start reading at [`run`]. [`search`] keeps the node's search index; [`backup`] is the
//! state as a file, and what checks and unpacks it without any node; [`export`] the same of one tenant.

mod audit;
pub mod backup;
mod config;
pub mod export;
mod guard;
mod health;
mod keys;
mod operator;
mod run;
mod search;
mod service;

pub use audit::TARGET as AUDIT_TARGET;
pub use config::Config;
pub use keys::NodeKeys;
pub use quorate_raft::{Address, found};
pub use run::{Ended, run, services};
