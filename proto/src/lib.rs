//! The wire: what gateways ask of nodes ([`cluster`]) and what nodes say to each other ([`raft`]).
//!
//! Generated from `proto/*.proto`, which are the documentation. This crate knows no rule and no type of the domain; commands
//! and queries pass through it as bytes.

/// Gateway to node: propose, read, watch, status.
pub mod cluster {
    tonic::include_proto!("quorate.cluster.v1");
}

/// Node to node: append, vote, snapshots, read index.
pub mod raft {
    tonic::include_proto!("quorate.raft.v1");
}

/// The largest request a node accepts, in bytes; larger ones are refused before they are read.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
