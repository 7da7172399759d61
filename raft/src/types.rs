//! What openraft calls by which type of ours.
//!
//! Leaders are identified by their term alone (standard Raft): at most one leader per term, a log id is `term.index`, and
//! the log index is the revision that fencing tokens are made of. None of these types is written to disk or to the wire as it
//! is; [`crate::form`] holds the stored forms.

use std::fmt;

use bytes::Bytes;
use openraft::impls::{BoxedErrorSource, InlineBatch, ProgressResponder, TokioRuntime, leader_id_std};
use openraft::vote::RaftLeaderId;
use openraft::{OptionalSend, RaftTypeConfig};
use quorate_domain::machine::Decided;
use serde::{Deserialize, Serialize};

/// The one type configuration of this crate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig {}

impl RaftTypeConfig for TypeConfig {
    type D = Proposal;
    /// `None` for ticks, blanks and memberships.
    type R = Option<Decided>;
    type NodeId = u64;
    type Node = Address;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = Payload;
    type Entry = Entry;
    type AsyncRuntime = TokioRuntime;
    type Responder<T>
        = ProgressResponder<Self, T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = BoxedErrorSource;
}

pub type LeaderId = leader_id_std::LeaderId<u64, u64>;
/// The term of a leader that a quorum has elected.
pub type CommittedLeaderId = <LeaderId as RaftLeaderId>::Committed;
pub type LogId = openraft::LogId<CommittedLeaderId>;
pub type Vote = openraft::Vote<LeaderId>;
pub type Payload = openraft::EntryPayload<Proposal, u64, Address>;
pub type Entry = openraft::Entry<CommittedLeaderId, Payload>;
pub type Membership = openraft::Membership<u64, Address>;
pub type StoredMembership = openraft::StoredMembership<CommittedLeaderId, u64, Address>;
pub type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, u64, Address>;
pub type Raft = openraft::Raft<TypeConfig, crate::machine::Machine>;
pub type Metrics = openraft::RaftMetrics<TypeConfig>;
pub type MetricsReceiver = openraft::type_config::alias::WatchReceiverOf<TypeConfig, Metrics>;

/// The CBOR of a [`quorate_domain::machine::Entry`], encoded once by the proposer and shared from there on: by the log, by the
/// streams to the followers and by apply.
#[derive(Clone, PartialEq, Eq)]
pub struct Proposal(pub Bytes);

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Where a member is reached. Stands in the membership entries of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// `host:port` of the node's gRPC services.
    pub grpc: String,
    /// `host:port` of its health and metrics pages.
    pub http: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.grpc)
    }
}

pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}
