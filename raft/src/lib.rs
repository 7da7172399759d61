//! Replicas that agree: Raft over the stores of `quorate-storage`, and the rules of `quorate-domain` applied to what it decided.
//!
//! This is the only crate that names openraft. It must not know what a command means, who may give it, or how a gateway
//! speaks: calls come in authenticated and typed, and answers go out as the domain made them.
//!
//! The path of a write: [`proposer`] stamps and submits, openraft orders, [`log`] makes durable here while [`network`] and
//! [`server`] do so elsewhere, [`machine`] decides and answers. The path of a read: [`read`].
//!
//! Reading order:
//! * [`types`] and [`form`]: what openraft calls by which type, and how it is written.
//! * [`log`], [`machine`] and [`keeper`]: what is on disk, and what may go from it; [`eraser`]: what must go.
//! * [`peers`], [`network`], [`server`] and [`transfer`]: between nodes.
//! * [`clock`], [`proposer`] and [`read`]: from calls to entries, and from states to answers.
//! * [`membership`]: who takes part; [`meter`]: what is counted.
//! * [`backup`] and [`found`]: the state as files that leave the cluster, and a cluster that begins from them.
//! * [`config`] and [`node`]: all of it, started and stopped. [`blocking`] is how anything waits for a disk.

pub mod backup;
pub mod blocking;
pub mod clock;
pub mod config;
mod eraser;
mod form;
pub mod found;
mod keeper;
mod log;
mod machine;
pub mod membership;
mod meter;
mod network;
pub mod node;
pub mod peers;
pub mod proposer;
pub mod read;
pub mod server;
mod transfer;
mod types;
pub mod unavailable;

pub use blocking::blocking;
pub use clock::Clock;
pub use config::Config;
pub use eraser::Erased;
pub use membership::{Change, MembershipError, Outcome};
pub use node::{InitError, RaftNode, StartError, TransferLeaderError};
pub use read::{Consistency, ReadAt, ReadError};
pub use server::RaftService;
pub use types::Address;
pub use unavailable::{ProposeError, Reason, Unavailable};
