//! The replica process: configuration, the gRPC services, health and metrics.
//!
//! It puts [`quorate_raft::RaftNode`] behind the wire and decides nothing itself: no rule of the domain, no openraft type and
//! no RocksDB call stands here. Start reading at [`run`].

mod config;
mod health;
mod run;
mod service;

pub use config::Config;
pub use run::{Ended, run};
