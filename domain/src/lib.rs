//! The rules: what a record is, which commands change it, what each answers, and when it is refused.
//!
//! Everything here is pure and deterministic. Every replica applies the same log and must end with the same bytes, so this
//! crate knows no I/O, no clock, no randomness, no float arithmetic and no hash-map order; `clippy.toml` bans the usual
//! ways in. What an entry says of itself is its [`Stamp`]; the rest is read through [`Read`] and written through [`Tx`].
//!
//! Reading order: [`machine`] (the path of one entry), [`tx`] and [`record`] (how state is reached), then one module per kind
//! of record: [`fact`], [`decision`], [`punchcard`], [`approval`], [`notice`], [`artefact`], [`receipt`], [`observation`], [`session`],
//! [`identity`], [`passport`], [`handoff`], [`constraint`], [`graph`], [`work`], [`orchestrator`], [`usage`], [`measure`], [`client`],
//! [`session_plan`], [`acknowledgement`], [`document`], [`repo`], [`corpus`]. [`command`] and [`query`] are the two lists that everything
//! else in the product goes through; [`refusal`] is every way to say no; [`lineage`] is what a restore does to a state, [`space`] what
//! goes on when disks are full, [`quota`] how much a
//! tenant may store, [`tenant`] how a tenant gets from one cluster into another.

pub mod acknowledgement;
pub(crate) mod action;
pub mod approval;
pub mod artefact;
pub mod attestation;
pub mod client;
pub mod command;
pub mod config_audit;
pub mod constraint;
pub mod coord;
pub mod corpus;
pub(crate) mod cursor;
mod deadline;
pub mod decision;
pub mod document;
pub mod event;
pub mod execplan;
pub mod fact;
pub mod flag;
pub mod graph;
pub mod handoff;
pub mod identity;
pub mod key;
pub mod key_ring;
pub mod level;
pub mod limit;
mod line;
pub mod lineage;
pub mod machine;
pub mod measure;
pub mod merkle;
pub mod notice;
pub mod observation;
pub mod orchestrator;
pub mod overlay;
pub mod passport;
pub mod pointer;
pub mod punchcard;
pub mod query;
pub mod quota;
pub mod receipt;
pub mod record;
pub mod refusal;
pub mod repo;
pub mod resource;
pub mod search;
pub mod session;
pub mod session_plan;
pub mod space;
pub mod stamp;
pub mod tenant;
#[cfg(test)]
mod transcript;
pub mod tx;
pub mod usage;
pub mod work;

pub use command::{Command, CommandKind};
pub use query::{Query, QueryKind};
pub use refusal::{Applied, Refusal};
pub use stamp::{LeaseTime, Principal, ReadStamp, RequestId, Revision, Scope, Stamp, Tier, UnixMs};
pub use tx::{Read, StorageError, Table, Tx};

/// CBOR with named fields, the form of every command, record and answer: fields can be added, and an old reader skips them.
pub mod codec {
    use serde::{Serialize, de::DeserializeOwned};

    /// Encodes a value whose type has no failing serializer.
    pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
        let mut serializer = minicbor_serde::Serializer::new(Vec::new());
        // Otherwise a JSON null would be written as an empty array, and come back as one.
        serializer.serialize_unit_as_null(true);
        // The writer is a Vec and the types derive Serialize over plain data, so there is nothing that can fail.
        value.serialize(&mut serializer).expect("plain data always encodes");
        serializer.into_encoder().into_writer()
    }

    /// Decodes a value, naming what was expected when the bytes are of another kind.
    pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
        minicbor_serde::from_slice(bytes).map_err(|error| DecodeError(format!("{}: {error}", std::any::type_name::<T>())))
    }

    /// Bytes that are not the CBOR of the type they were read as.
    #[derive(Debug, thiserror::Error)]
    #[error("cannot decode {0}")]
    pub struct DecodeError(String);
}
