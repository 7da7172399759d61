//! The tools, one module per kind of record. Doc comments here are what agents read: write them for a reader who sees
//! nothing else.

use crate::registry::Catalog;

pub mod approvals;
pub mod facts;
pub mod identity;
pub mod punchcards;
pub mod receipts;
pub mod sessions;

/// The whole `crux` catalog, in the contract's order.
pub fn crux() -> Catalog {
    Catalog::default()
        .with::<facts::StoreFact>()
        .with::<facts::QueryFacts>()
        .with::<facts::DeleteFact>()
        .with::<facts::ListEntities>()
        .with::<facts::FactHistory>()
        .with::<sessions::GetSession>()
        .with::<sessions::SaveSession>()
        .with::<sessions::SessionCheckpoint>()
        .with::<sessions::ListSessions>()
        .with::<sessions::DeleteSession>()
        .with::<sessions::ArchiveSession>()
        .with::<sessions::UnarchiveSession>()
        .with::<receipts::ReceiptVerify>()
        .with::<identity::GetAgentIdentity>()
        .with::<identity::ResolvePrincipal>()
        .with::<approvals::ApprovalRequest>()
        .with::<approvals::ApprovalDecide>()
        .with::<punchcards::PunchIn>()
        .with::<punchcards::PunchOut>()
        .with::<punchcards::ListPunchcards>()
        .with::<punchcards::ForceRelease>()
        .with::<punchcards::CheckPunchcard>()
}

/// The groups, as `?groups=` names them.
pub mod group {
    pub const FACTS: &str = "facts";
    pub const SESSIONS: &str = "sessions";
    pub const RECEIPTS: &str = "receipts";
    pub const IDENTITY: &str = "identity";
    pub const APPROVALS: &str = "approvals";
    pub const PUNCHCARDS: &str = "punchcards";
    pub const TOOLS: &str = "tools";
}
