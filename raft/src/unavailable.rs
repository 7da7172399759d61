//! Why a call was not decided or not served, when no rule has said anything.
//!
//! The reasons are the stable words of `cluster.proto`. Whether the command may still take effect is told apart each time:
//! a caller repeats an unknown outcome only under the same request id.

use quorate_proto::cluster;

/// A stable word for why this node can't answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NoLeader,
    Overloaded,
    NoQuorum,
    Starting,
    Stopping,
    Timeout,
    TooStale,
    /// What was asked for is of a history that a restore left behind.
    OtherLineage,
    /// The disks have no room for it.
    DiskFull,
    /// The disk does not come to an end with its writes.
    DiskStalled,
    /// The wall clock is not what a majority says.
    ClockOff,
}

impl Reason {
    pub fn word(self) -> &'static str {
        match self {
            Reason::NoLeader => "no_leader",
            Reason::Overloaded => "overloaded",
            Reason::NoQuorum => "no_quorum",
            Reason::Starting => "starting",
            Reason::Stopping => "stopping",
            Reason::Timeout => "timeout",
            Reason::TooStale => "too_stale",
            Reason::OtherLineage => "other_lineage",
            Reason::DiskFull => "disk_full",
            Reason::DiskStalled => "disk_stalled",
            Reason::ClockOff => "clock_off",
        }
    }
}

/// Not answered; the caller may try again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", reason.word())]
pub struct Unavailable {
    pub reason: Reason,
    pub detail: String,
    pub retry_after_ms: u64,
    /// The command may still take effect: repeat it only with the same request id.
    pub maybe_written: bool,
}

impl Unavailable {
    pub fn new(reason: Reason, detail: impl Into<String>, retry_after_ms: u64) -> Self {
        Self { reason, detail: detail.into(), retry_after_ms, maybe_written: false }
    }

    pub fn maybe_written(self) -> Self {
        Self { maybe_written: true, ..self }
    }
}

impl From<Unavailable> for cluster::Unavailable {
    fn from(unavailable: Unavailable) -> Self {
        Self {
            reason: unavailable.reason.word().into(),
            detail: unavailable.detail,
            retry_after_ms: unavailable.retry_after_ms,
            maybe_written: unavailable.maybe_written,
        }
    }
}

/// Why a proposal has no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was proposed; this node knows who decides.
    #[error("node {leader_id} at {leader_grpc} leads")]
    NotLeader { leader_id: u64, leader_grpc: String },
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}
