//! The replica process: configuration, the gRPC services, receipt signatures, health and metrics.
//!
//! It puts [`quorate_raft::RaftNode`] behind the wire and decides nothing itself: no rule of the domain, no openraft type and
//! no RocksDB call stands here. Start reading at [`run`].

mod config;
mod health;
mod run;
mod service;
mod sign;

pub use config::Config;
pub use run::{Ended, run, services};
pub use sign::{Signer, public_key};
