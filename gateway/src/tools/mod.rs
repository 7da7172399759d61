//! The tools, one module per kind of record. Doc comments here are what agents read: write them for a reader who sees
//! nothing else.

use crate::registry::Catalog;

pub mod acknowledge;
pub mod approvals;
pub mod artefacts;
pub mod attest;
pub mod autonomy;
pub mod bootstrap;
pub mod constraints;
pub mod crc;
pub mod custody;
pub mod decisions;
pub mod engrams;
pub mod envelope;
pub mod exports;
pub mod facts;
pub mod features;
pub mod forget;
pub mod freshness;
pub mod github;
pub mod graph;
pub mod handoffs;
pub mod hardening;
pub mod identity;
pub mod measures;
pub mod memory;
pub mod observations;
pub mod orchestrators;
pub mod passports;
pub mod plan;
pub mod punchcards;
pub mod receipts;
pub mod repos;
pub mod reuse;
pub mod search;
pub mod sessions;
pub mod sync;
pub mod update;
pub mod usage;
pub mod work;

/// How descriptions in the whole catalog end: a model that reads one tool learns where to begin.
const HINT: &str = "Begin a session with `cuecrux_session`.";

/// The whole `crux` catalog, in the contract's order.
pub fn crux() -> Catalog {
    Catalog::default()
        .with::<plan::CuecruxSession>()
        .hinting(HINT)
        .with::<autonomy::AutonomyContract>()
        .with::<reuse::ReuseCheck>()
        .with::<engrams::EngramResolve>()
        .with::<search::Query>()
        .with::<search::QueryScan>()
        .with::<search::QueryExpand>()
        .with::<facts::StoreFact>()
        .with::<facts::QueryFacts>()
        .with::<facts::DeleteFact>()
        .with::<facts::ReinstateFacts>()
        .with::<facts::ListEntities>()
        .with::<bootstrap::GetBootstrap>()
        .with::<facts::FactHistory>()
        .with::<acknowledge::MemoryAcknowledgeUse>()
        .with::<attest::OutputAttest>()
        .with::<forget::MemoryForget>()
        .with::<forget::MemoryForgetDryRun>()
        .with::<forget::MemoryForgetUndo>()
        .with::<memory::MemoryView>()
        .with::<memory::MemoryEdit>()
        .with::<memory::MemoryPin>()
        .with::<memory::MemoryHistory>()
        .with::<freshness::MemoryFreshness>()
        .with::<freshness::MemorySweepCandidates>()
        .with::<freshness::MemorySetHorizon>()
        .with::<freshness::MemoryReverify>()
        .with::<memory::MemoryContradictions>()
        .with::<memory::MemoryConsolidate>()
        .with::<artefacts::ArtefactPut>()
        .with::<artefacts::ArtefactGet>()
        .with::<artefacts::ArtefactList>()
        .with::<sessions::GetSession>()
        .with::<sessions::SaveSession>()
        .with::<sessions::SessionCheckpoint>()
        .with::<sessions::ListSessions>()
        .with::<sessions::DeleteSession>()
        .with::<sessions::ArchiveSession>()
        .with::<sessions::UnarchiveSession>()
        .with::<hardening::RouteAccessMatrix>()
        .with::<hardening::ExecplanGate>()
        .with::<hardening::AuthPostureAudit>()
        .with::<hardening::EgressPolicyCheck>()
        .with::<search::GetGaps>()
        .with::<observations::ListObservations>()
        .with::<observations::GetObservation>()
        .with::<observations::VerifyObservation>()
        .with::<receipts::ReceiptVerify>()
        .with::<identity::GetAgentIdentity>()
        .with::<identity::ResolvePrincipal>()
        .with::<handoffs::CreateHandoff>()
        .with::<handoffs::AcceptHandoff>()
        .with::<decisions::RecordDecision>()
        .with::<constraints::DeclareConstraint>()
        .with::<constraints::GetConstraints>()
        .with::<constraints::CheckConstraints>()
        .with::<constraints::AuditConfig>()
        .with::<constraints::CheckConfigAudit>()
        .with::<constraints::EnrichAction>()
        .with::<exports::AuditExportBundle>()
        .with::<passports::IssuePassport>()
        .with::<passports::RequestPassportMint>()
        .with::<passports::GetPassport>()
        .with::<passports::RevokePassport>()
        .with::<passports::PassportSplit>()
        .with::<passports::PassportMerge>()
        .with::<passports::PassportLinkDevice>()
        .with::<sync::SyncPull>()
        .with::<sync::SyncPush>()
        .with::<sync::SyncStatus>()
        .with::<update::UpdateStatus>()
        .with::<custody::ContextCustodyAudit>()
        .with::<work::ListProjects>()
        .with::<work::GetProjectContext>()
        .with::<work::ListWork>()
        .with::<work::CreateWork>()
        .with::<work::UpdateWorkState>()
        .with::<work::CommentOnWork>()
        .with::<work::StatusFeed>()
        .with::<work::CoordStatus>()
        .with::<work::CoordAnnounce>()
        .with::<github::GithubSearch>()
        .with::<github::GithubRecentCommits>()
        .with::<github::GithubOpenPrs>()
        .with::<github::GithubOpenIssues>()
        .with::<github::GithubCommentsSince>()
        .with::<repos::GetWorkspaceStoryline>()
        .with::<repos::RegisterRepo>()
        .with::<repos::ListRepos>()
        .with::<graph::EntityUpsert>()
        .with::<graph::EntityGet>()
        .with::<graph::EntityList>()
        .with::<graph::EntityDelete>()
        .with::<graph::EntityHistory>()
        .with::<graph::EdgeUpsert>()
        .with::<graph::EdgeGet>()
        .with::<graph::EdgeList>()
        .with::<graph::EdgeDelete>()
        .with::<features::FeatureFileSearch>()
        .with::<features::FeatureCoverageReport>()
        .with::<features::FeatureTriggerAudit>()
        .with::<features::FeatureSuggestNext>()
        .with::<graph::KindList>()
        .with::<graph::KindGet>()
        .with::<graph::GraphTraverse>()
        .with::<measures::ToolTraceRecent>()
        .with::<measures::Learn>()
        .with::<measures::TokenSavings>()
        .with::<measures::ActivityRecent>()
        .with::<usage::SessionTokenUsage>()
        .with::<approvals::ApprovalRequest>()
        .with::<approvals::ApprovalDecide>()
        .with::<orchestrators::CreateOrchestrator>()
        .with::<orchestrators::AttachToOrchestrator>()
        .with::<orchestrators::DetachFromOrchestrator>()
        .with::<orchestrators::ListOrchestrators>()
        .with::<orchestrators::UpdateOrchestrator>()
        .with::<punchcards::PunchIn>()
        .with::<punchcards::PunchOut>()
        .with::<punchcards::ListPunchcards>()
        .with::<punchcards::ForceRelease>()
        .with::<punchcards::CheckPunchcard>()
}

/// The groups, as `?groups=` names them.
pub mod group {
    pub const SEARCH: &str = "search";
    pub const FACTS: &str = "facts";
    pub const MEMORY: &str = "memory";
    pub const ARTEFACTS: &str = "artefacts";
    pub const DECISIONS: &str = "decisions";
    pub const CONSTRAINTS: &str = "constraints";
    pub const SESSIONS: &str = "sessions";
    pub const RECEIPTS: &str = "receipts";
    pub const IDENTITY: &str = "identity";
    pub const APPROVALS: &str = "approvals";
    pub const PUNCHCARDS: &str = "punchcards";
    pub const WORK: &str = "work";
    pub const GRAPH: &str = "graph";
    pub const OBSERVATIONS: &str = "observations";
    pub const AUDIT: &str = "audit";
    pub const FEATURES: &str = "features";
    pub const ORCHESTRATORS: &str = "orchestrators";
    pub const GITHUB: &str = "github";
    pub const REPOSITORIES: &str = "repositories";
    pub const SYNC: &str = "sync";
    pub const MEASURES: &str = "measures";
    pub const TOOLS: &str = "tools";
}
