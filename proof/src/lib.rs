//! Proofs that leave the cluster: how they are signed, the files they are saved in, and the verifier that needs no server.
//!
//! Nodes sign what they serve with [`Signer`], gateways put it into the forms of [`file`], and `quorate verify` hands a file's
//! bytes to [`verify`]. Nothing here does I/O. What a file says is true when [`verify`] accepts it under a key that its reader
//! trusts: a file carries its key so that it can be read alone, and whether that key is the cluster's is told by comparing.
//!
//! Reading order: [`note`] (signed notes and heads of logs), [`file`] (the forms and their checks), [`heads`] (heads that nodes have
//! cosigned, and several files of one log), [`ring`] (which keys a trusted one leads to), [`bundle`] (audit exports), [`c2pa`] (what other readers take of an attested output), [`sign`] and
//! [`cosign`] (what nodes do), [`seal`] (backups), [`erasure`] (what a node states of itself).

pub mod bundle;
pub mod c2pa;
mod cosign;
mod erasure;
pub mod file;
pub mod heads;
pub mod note;
pub mod ring;
mod seal;
mod sign;

pub use cosign::Cosigner;
pub use erasure::ErasureClaim;
pub use file::{Fault, Report, verify};
pub use heads::verify_together;
pub use seal::Seal;
pub use sign::{Signer, public_key};
