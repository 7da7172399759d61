//! The one list of writes. Adding a command here is the only way to change what the log can say.
//!
//! Variants and fields evolve by addition only: an entry written today is applied by every later version.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::refusal::Applied;
use crate::stamp::Stamp;
use crate::tx::Tx;
use crate::{
    acknowledgement, approval, artefact, attestation, client, codec, config_audit, constraint, coord, corpus, decision, document, execplan,
    fact, flag, graph, handoff, identity, key_ring, level, measure, notice, observation, orchestrator, passport, punchcard, quota, repo,
    search, session, session_plan, space, tenant, usage, work,
};

/// A struct that stands in [`Command`] and knows what it answers.
pub trait CommandKind: Into<Command> {
    type Output: Serialize + DeserializeOwned;
}

macro_rules! commands {
    (@level) => { level::FIRST };
    (@level $level:literal) => { $level };
    // `Variant(type) -> output`; `Variant@2(type) -> output` for a kind that begins with level 2.
    ($($variant:ident $(@$level:literal)? ($type:path) -> $output:path),+ $(,)?) => {
        /// A write, as it stands in the log.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Command { $($variant($type)),+ }

        $(impl From<$type> for Command {
            fn from(command: $type) -> Self { Command::$variant(command) }
        }
        impl CommandKind for $type { type Output = $output; })+

        impl Command {
            /// Runs the command; its answer is the CBOR of its [`CommandKind::Output`].
            pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Vec<u8>> {
                match self {
                    $(Command::$variant(command) => {
                        let reply: Applied<$output> = command.apply(tx, at);
                        Ok(reply?.map(|reply| codec::encode(&reply)))
                    })+
                }
            }

            /// The variant's name, for logs and metrics.
            pub fn name(&self) -> &'static str {
                match self { $(Command::$variant(_) => stringify!($variant)),+ }
            }

            /// The feature level from which on this kind exists. It never changes.
            pub fn level(&self) -> u64 {
                match self { $(Command::$variant(_) => commands!(@level $($level)?)),+ }
            }
        }
    };
}

commands! {
    StoreFact(fact::StoreFact) -> fact::FactStored,
    DeleteFact(fact::DeleteFact) -> fact::FactDeleted,
    ReinstateFacts(fact::ReinstateFacts) -> fact::FactsReinstated,
    EditFact(fact::EditFact) -> fact::FactEdited,
    PinFact(fact::PinFact) -> fact::FactPinned,
    SetHorizon(fact::SetHorizon) -> fact::HorizonSet,
    ReverifyFact(fact::ReverifyFact) -> fact::FactReverified,
    ConsolidateFacts(fact::ConsolidateFacts) -> fact::FactsConsolidated,
    ForgetFacts(fact::ForgetFacts) -> fact::FactsForgotten,
    RecoverFacts(fact::RecoverFacts) -> fact::FactsRecovered,
    EndRecovery(fact::EndRecovery) -> fact::RecoveryEnded,
    PutArtefact(artefact::PutArtefact) -> artefact::Artefact,
    RecordDecision(decision::RecordDecision) -> decision::DecisionRecorded,
    PunchIn(punchcard::PunchIn) -> punchcard::PunchedIn,
    PunchOut(punchcard::PunchOut) -> punchcard::Punchcard,
    LeaveQueue(punchcard::LeaveQueue) -> punchcard::PunchedIn,
    ForceRelease(punchcard::ForceRelease) -> punchcard::Punchcard,
    RequestApproval(approval::RequestApproval) -> approval::Approval,
    DecideApproval(approval::DecideApproval) -> approval::Approval,
    SetApprovalPolicy(approval::SetApprovalPolicy) -> approval::ApprovalPolicy,
    SaveSession(session::SaveSession) -> session::SessionSaved,
    ArchiveSession(session::ArchiveSession) -> session::SessionSaved,
    UnarchiveSession(session::UnarchiveSession) -> session::SessionSaved,
    DeleteSession(session::DeleteSession) -> session::SessionDeleted,
    PutToken(identity::PutToken) -> identity::TokenPut,
    RevokeToken(identity::RevokeToken) -> identity::TokenRevoked,
    SetFlag(flag::SetFlag) -> flag::FlagSet,
    CreateWork(work::CreateWork) -> work::Work,
    MoveWork(work::MoveWork) -> work::Moved,
    CommentOnWork(work::CommentOnWork) -> work::Comment,
    SetWorkGate(identity::SetWorkGate) -> identity::Passport,
    Announce(coord::Announce) -> coord::Announced,
    UpsertEntity(graph::UpsertEntity) -> graph::Entity,
    DeleteEntity(graph::DeleteEntity) -> graph::Entity,
    UpsertEdge(graph::UpsertEdge) -> graph::Edge,
    DeleteEdge(graph::DeleteEdge) -> graph::Edge,
    AppendObservations(observation::AppendObservations) -> observation::ObservationsAppended,
    StartExport(fact::StartExport) -> fact::ExportStarted,
    RecordExport(fact::RecordExport) -> fact::ExportRecorded,
    AttestOutput(attestation::AttestOutput) -> attestation::OutputAttested,
    AddReceiptKey(key_ring::AddReceiptKey) -> key_ring::ReceiptKey,
    IssuePassport(passport::IssuePassport) -> passport::PassportIssued,
    RequestMint(passport::RequestMint) -> passport::MintRequested,
    RevokePassport(passport::RevokePassport) -> passport::PassportRevoked,
    SplitPassport(passport::SplitPassport) -> passport::PassportSplit,
    MergePassports(passport::MergePassports) -> passport::PassportsMerged,
    LinkDevice(passport::LinkDevice) -> passport::DeviceLinked,
    CreateHandoff(handoff::CreateHandoff) -> handoff::HandoffCreated,
    AcceptHandoff(handoff::AcceptHandoff) -> handoff::HandoffAccepted,
    DeclareConstraint(constraint::DeclareConstraint) -> constraint::Constraint,
    AuditConfig(config_audit::AuditConfig) -> config_audit::ConfigAudited,
    ChangeClientSession(client::ChangeClientSession) -> client::ClientSessionKept,
    AuditFeature(graph::feature::AuditFeature) -> graph::Entity,
    CreateOrchestrator(orchestrator::CreateOrchestrator) -> orchestrator::OrchestratorView,
    UpdateOrchestrator(orchestrator::UpdateOrchestrator) -> orchestrator::OrchestratorView,
    AttachMember(orchestrator::AttachMember) -> orchestrator::OrchestratorView,
    DetachMember(orchestrator::DetachMember) -> orchestrator::OrchestratorView,
    AddUsage(usage::AddUsage) -> usage::UsageAdded,
    PutKind(graph::PutKind) -> graph::kind::Registration,
    PutBudget(usage::PutBudget) -> usage::BudgetView,
    DeleteBudget(usage::DeleteBudget) -> usage::BudgetView,
    RegisterRepo(repo::RegisterRepo) -> repo::Repo,
    PutScanParts(repo::scan::PutScanParts) -> repo::scan::ScanPartsPut,
    FinishScan(repo::scan::FinishScan) -> repo::scan::ScanFinished,
    PutCorpus(corpus::PutCorpus) -> corpus::CorpusPut,
    HintSource(corpus::HintSource) -> corpus::SourceHinted,
    AttendTicket(punchcard::AttendTicket) -> punchcard::PunchedIn,
    TransferPunchcard(punchcard::TransferPunchcard) -> punchcard::Transferred,
    RenewPunchcards(punchcard::RenewPunchcards) -> punchcard::Renewed,
    PutWebhook(notice::PutWebhook) -> notice::Webhook,
    DeleteWebhook(notice::DeleteWebhook) -> notice::Webhook,
    TakeNotice(notice::TakeNotice) -> notice::NoticeTaken,
    SettleNotice(notice::SettleNotice) -> notice::NoticeSettled,
    PutProject(work::PutProject) -> work::Project,
    SetSpaceAlarm(space::SetSpaceAlarm) -> space::SpaceAlarmSet,
    AddMeasures(measure::AddMeasures) -> measure::MeasuresAdded,
    AppendActivity(measure::AppendActivity) -> measure::ActivityAppended,
    OpenPlan(session_plan::OpenPlan) -> session_plan::PlanOpened,
    AcknowledgeUse(acknowledgement::AcknowledgeUse) -> acknowledgement::UseAcknowledged,
    PassGate(execplan::PassGate) -> execplan::GatePassed,
    RecordGap(search::RecordGap) -> search::GapRecorded,
    BeginDocument(document::BeginDocument) -> document::DocumentBegun,
    AddPassages(document::AddPassages) -> document::PassagesAdded,
    RemoveDocument(document::RemoveDocument) -> document::DocumentRemoved,
    RaiseFeatureLevel(level::RaiseFeatureLevel) -> level::FeatureLevelRaised,
    MirrorFacts(fact::sync::MirrorFacts) -> fact::sync::FactsMirrored,
    PromoteFacts(fact::sync::PromoteFacts) -> fact::sync::FactsPromoted,
    RecordPush(fact::sync::RecordPush) -> fact::sync::PushRecorded,
    RotateReceiptKey(key_ring::RotateReceiptKey) -> key_ring::ReceiptKeyRotated,
    AddCosigner(key_ring::AddCosigner) -> key_ring::CosignerAdded,
    SetSignInKey(identity::SetSignInKey) -> identity::SignInKeySet,
    OpenToken(identity::OpenToken) -> identity::TokenOpened,
    SetQuota(quota::SetQuota) -> quota::QuotaSet,
    BeginImport(tenant::BeginImport) -> tenant::ImportBegun,
    ImportRows(tenant::ImportRows) -> tenant::RowsImported,
}

impl Command {
    /// The blob that this command names: it may only be proposed once a quorum of the nodes has it on disk.
    pub fn blob(&self) -> Option<artefact::BlobHash> {
        match self {
            Command::PutArtefact(put) => artefact::blob_of(&put.artefact_id),
            Command::ImportRows(import) => import.blob(),
            _ => None,
        }
    }
}
