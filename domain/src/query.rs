//! The one list of reads.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::limit::LIST_MAX;
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::Read;
use crate::{
    approval, artefact, client, codec, config_audit, constraint, coord, corpus, document, execplan, fact, flag, graph, identity, key_ring,
    measure, notice, observation, orchestrator, passport, punchcard, quota, receipt, repo, search, session, session_plan, tenant, usage,
    work,
};

/// A struct that stands in [`Query`] and knows what it answers.
pub trait QueryKind: Into<Query> {
    type Output: Serialize + DeserializeOwned;
}

macro_rules! queries {
    ($($variant:ident($type:path) -> $output:path),+ $(,)?) => {
        /// A read of the state machine.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Query { $($variant($type)),+ }

        $(impl From<$type> for Query {
            fn from(query: $type) -> Self { Query::$variant(query) }
        }
        impl QueryKind for $type { type Output = $output; })+

        impl Query {
            /// Runs the query; its answer is the CBOR of its [`QueryKind::Output`].
            pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Vec<u8>> {
                // A gateway may believe a token for a moment longer than its passport is in force.
                if let Some(refusal) = identity::check_caller(view, &at.caller)? {
                    return Ok(Err(refusal));
                }
                match self {
                    $(Query::$variant(query) => {
                        let answer: Applied<$output> = query.run(view, at);
                        Ok(answer?.map(|answer| codec::encode(&answer)))
                    })+
                }
            }

            /// The variant's name, for logs and metrics.
            pub fn name(&self) -> &'static str {
                match self { $(Query::$variant(_) => stringify!($variant)),+ }
            }
        }
    };
}

queries! {
    QueryFacts(fact::QueryFacts) -> fact::FactRows,
    FactHistory(fact::FactHistory) -> fact::FactVersions,
    ListEntities(fact::ListEntities) -> fact::Entities,
    ViewMemory(fact::ViewMemory) -> fact::MemoryFacts,
    MemoryHistory(fact::MemoryHistory) -> fact::FactVersions,
    ShowFreshness(fact::ShowFreshness) -> fact::FactFreshness,
    SweepCandidates(fact::SweepCandidates) -> fact::SweepCandidatesFound,
    FindContradictions(fact::FindContradictions) -> fact::Contradictions,
    FindForgettable(fact::FindForgettable) -> fact::ForgettableFacts,
    GetErasure(fact::GetErasure) -> fact::ErasureState,
    GetArtefact(artefact::GetArtefact) -> artefact::Artefact,
    ListArtefacts(artefact::ListArtefacts) -> artefact::Artefacts,
    CheckPunchcard(punchcard::CheckPunchcard) -> punchcard::PunchcardChecked,
    ListPunchcards(punchcard::ListPunchcards) -> punchcard::Punchcards,
    GetTicket(punchcard::GetTicket) -> punchcard::PunchedIn,
    GetApproval(approval::GetApproval) -> approval::Approval,
    ListApprovals(approval::ListApprovals) -> approval::Approvals,
    GetReceipt(receipt::GetReceipt) -> receipt::ReceiptView,
    GetSession(session::GetSession) -> session::SessionView,
    ListSessions(session::ListSessions) -> session::Sessions,
    ResolveToken(identity::ResolveToken) -> identity::TokenResolved,
    GetPassport(identity::GetPassport) -> identity::Passport,
    ResolvePassport(passport::ResolvePassport) -> passport::PassportResolved,
    GetFlags(flag::GetFlags) -> flag::Flags,
    ListProjects(work::ListProjects) -> work::Projects,
    GetProject(work::GetProject) -> work::ProjectContext,
    ListWork(work::ListWork) -> work::WorkList,
    GetWork(work::GetWork) -> work::WorkView,
    StatusFeed(work::StatusFeed) -> work::Feed,
    CoordStatus(coord::CoordStatus) -> coord::Coordination,
    RepeatAnnounce(coord::RepeatAnnounce) -> Option<coord::Announced>,
    GetEntity(graph::GetEntity) -> Option<graph::Entity>,
    ListEntitiesOfKind(graph::ListEntitiesOfKind) -> graph::Entities,
    EntityHistory(graph::EntityHistory) -> graph::EntityVersions,
    GetEdge(graph::GetEdge) -> Option<graph::Edge>,
    ListEdges(graph::ListEdges) -> graph::Edges,
    ProveReceipt(receipt::ProveReceipt) -> receipt::ProvenReceipt,
    GetLogHead(receipt::GetLogHead) -> receipt::LogHead,
    ProveInclusion(receipt::ProveInclusion) -> receipt::Inclusion,
    ProveConsistency(receipt::ProveConsistency) -> receipt::Consistency,
    GetObservation(observation::GetObservation) -> observation::ObservationView,
    ListObservations(observation::ListObservations) -> observation::Observations,
    ExportFacts(fact::ExportFacts) -> fact::ExportedFacts,
    GetExport(fact::GetExport) -> fact::SignedExport,
    ListReceiptKeys(key_ring::ListReceiptKeys) -> key_ring::ReceiptKeys,
    ListConstraints(constraint::ListConstraints) -> constraint::Constraints,
    CheckConstraints(constraint::CheckConstraints) -> constraint::ConstraintsChecked,
    EnrichAction(constraint::EnrichAction) -> constraint::ActionEnriched,
    CheckConfigAudit(config_audit::CheckConfigAudit) -> config_audit::ConfigAuditChecked,
    GetClientSession(client::GetClientSession) -> client::ClientSessionKept,
    FeatureCoverage(graph::feature::FeatureCoverage) -> graph::feature::Coverage,
    SuggestFeature(graph::feature::SuggestFeature) -> graph::feature::Suggestions,
    FindFeatureFiles(graph::feature::FindFeatureFiles) -> graph::feature::FeatureFilesFound,
    ListOrchestrators(orchestrator::ListOrchestrators) -> orchestrator::Orchestrators,
    GetUsage(usage::GetUsage) -> usage::Usage,
    ListRepos(repo::ListRepos) -> repo::Repos,
    MissingParts(repo::scan::MissingParts) -> repo::scan::PartsMissing,
    ShowStoryline(repo::storyline::ShowStoryline) -> repo::storyline::Stories,
    ListStoryline(repo::storyline::ListStoryline) -> repo::storyline::StorylineGraph,
    GetSources(corpus::GetSources) -> corpus::Sources,
    ListCorpus(corpus::ListCorpus) -> corpus::CorpusItems,
    SearchCorpus(corpus::SearchCorpus) -> corpus::CorpusItems,
    VerifyToken(punchcard::VerifyToken) -> punchcard::TokenVerified,
    ListBlocked(punchcard::ListBlocked) -> punchcard::BlockedList,
    GetApprovalPolicy(approval::GetApprovalPolicy) -> approval::ApprovalPolicy,
    ListWebhooks(notice::ListWebhooks) -> notice::Webhooks,
    ListNotices(notice::ListNotices) -> notice::Notices,
    DueNotices(notice::DueNotices) -> notice::NoticesDue,
    RecentTraces(measure::RecentTraces) -> measure::Traces,
    Learn(measure::Learn) -> measure::Learnt,
    GetSavings(measure::GetSavings) -> measure::Savings,
    RecentActivity(measure::RecentActivity) -> measure::RecentActivities,
    GetActivityTurn(measure::GetActivityTurn) -> measure::ActivityTurn,
    ListReceipts(receipt::ListReceipts) -> receipt::Receipts,
    ListPassports(identity::ListPassports) -> identity::Passports,
    ListTokens(identity::ListTokens) -> identity::Tokens,
    GetIntent(session_plan::GetIntent) -> session_plan::DeclaredIntent,
    FindReuse(graph::feature::FindReuse) -> graph::feature::ReuseFound,
    Search(search::Search) -> search::Found,
    ExpandResults(search::ExpandResults) -> search::Expanded,
    ListGaps(search::ListGaps) -> search::Gaps,
    CheckDocuments(document::CheckDocuments) -> document::DocumentsChecked,
    ListDocuments(document::ListDocuments) -> document::Documents,
    WalkGraph(graph::WalkGraph) -> graph::Walk,
    GetKind(graph::GetKind) -> Option<graph::kind::KindView>,
    ListKinds(graph::ListKinds) -> graph::kind::KindList,
    GetPlans(execplan::GetPlans) -> execplan::PlansTold,
    ListBudgets(usage::ListBudgets) -> usage::Budgets,
    SharedFacts(fact::SharedFacts) -> fact::SharedPage,
    SharedPairs(fact::SharedPairs) -> fact::SharedPage,
    PlanPush(fact::sync::PlanPush) -> fact::sync::PushPlan,
    GetSync(fact::sync::GetSync) -> fact::sync::SyncState,
    ListSyncConflicts(fact::sync::ListSyncConflicts) -> fact::sync::SyncConflicts,
    GetSignInKey(identity::GetSignInKey) -> Option<identity::SignInKey>,
    ListQuotas(quota::ListQuotas) -> quota::QuotasListed,
    GetTenantImport(tenant::GetTenantImport) -> tenant::TenantAsFound,
    ListSources(corpus::ListSources) -> corpus::SourcesListed,
}

/// How many rows a list may answer: what was asked for, within the limit.
pub(crate) fn rows(limit: u64) -> Result<usize, Refusal> {
    match usize::try_from(limit) {
        Ok(rows @ 1..=LIST_MAX) => Ok(rows),
        _ => Err(Refusal::invalid("limit", format!("must be 1 to {LIST_MAX}, not {limit}"))),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::approval::{DecideApproval, Decision};
    use crate::fact::{FactHistory, ListEntities, QueryFacts};
    use crate::identity::{GetPassport, RevokeToken};
    use crate::limit::NAME_BYTES_MAX;
    use crate::punchcard::{CheckPunchcard, ForceRelease, GetTicket, LeaveQueue, ListPunchcards};
    use crate::receipt::GetReceipt;
    use crate::transcript::{World, person};

    /// Asks in every way for something of this name, and tells each answer that is a refusal.
    fn told(name: &str) -> String {
        let mut world = World::new();
        let mut told = String::new();
        let mut ask = |query: Query| {
            let what = query.name();
            let at =
                ReadStamp { revision: Default::default(), lease_now: Default::default(), wall: Default::default(), caller: person("olga") };
            match query.run(&world.state, &at).unwrap() {
                Ok(_) => {}
                Err(refusal) => told += &format!("{what}: {refusal}\n"),
            }
        };
        let (some, name) = (Some(name.to_string()), name.to_string());
        let facts = QueryFacts {
            query: None,
            entity: None,
            entity_prefix: None,
            key: None,
            top_k: 1,
            token_budget: None,
            include_superseded: false,
            as_of: None,
            min_effective_confidence: None,
            cursor: None,
            hits: Default::default(),
            with_pointers: false,
            with_envelope: false,
        };
        ask(QueryFacts { entity: some.clone(), ..facts.clone() }.into());
        ask(QueryFacts { entity: Some(format!("__agent::olga::{name}")), ..facts.clone() }.into());
        ask(QueryFacts { entity_prefix: some.clone(), ..facts.clone() }.into());
        ask(QueryFacts { key: some.clone(), ..facts }.into());
        ask(FactHistory { entity: name.clone(), key: "k".into(), limit: 1, cursor: None }.into());
        ask(FactHistory { entity: "e".into(), key: name.clone(), limit: 1, cursor: None }.into());
        ask(ListEntities { entity_prefix: some.clone(), limit: 1, cursor: None }.into());
        ask(CheckPunchcard { resource: "file://a".into(), mode: None, passport: some.clone() }.into());
        let cards = ListPunchcards { resource: None, holder_passport: None, tenant_id: None, status: None, limit: 1, cursor: None };
        ask(ListPunchcards { holder_passport: some.clone(), ..cards.clone() }.into());
        ask(ListPunchcards { tenant_id: some.clone(), ..cards }.into());
        ask(GetTicket { ticket: name.clone() }.into());
        ask(approval::GetApproval { request_id: name.clone() }.into());
        ask(GetReceipt { receipt_id: name.clone(), tenant_id: None }.into());
        ask(GetReceipt { receipt_id: "r".into(), tenant_id: some }.into());
        ask(session::GetSession { session_id: name.clone() }.into());
        ask(GetPassport { passport: name.clone() }.into());
        let mut call =
            |what: &str, refusal: Option<Refusal>| told += &refusal.map(|refusal| format!("{what}: {refusal}\n")).unwrap_or_default();
        call("LeaveQueue", world.call("0s", person("olga"), None, LeaveQueue { ticket: name.clone() }).err());
        let decide = DecideApproval {
            request_id: name.clone(),
            decision: Decision::Reject,
            reviewer_notes: None,
            reviewer_tier: None,
            reviewer_tenant_id: None,
        };
        call("DecideApproval", world.call("0s", person("olga"), None, decide).err());
        let release = ForceRelease { punchcard_id: name.clone(), confirm: true, reason: None, by_passport: None };
        call("ForceRelease", world.call("0s", person("olga"), None, release).err());
        call("RevokeToken", world.call("0s", person("olga"), None, RevokeToken { hash: name }).err());
        told
    }

    #[test]
    fn who_asks_for_a_name_that_nothing_can_have_is_refused() {
        expect![[r#"
            QueryFacts: `entity` is 513 bytes long, and the limit is 512 bytes
            QueryFacts: `entity` is 513 bytes long, and the limit is 512 bytes
            QueryFacts: `entity_prefix` is 513 bytes long, and the limit is 512 bytes
            QueryFacts: `key` is 513 bytes long, and the limit is 512 bytes
            FactHistory: `entity` is 513 bytes long, and the limit is 512 bytes
            FactHistory: `key` is 513 bytes long, and the limit is 512 bytes
            ListEntities: `entity_prefix` is 513 bytes long, and the limit is 512 bytes
            CheckPunchcard: `passport` is 513 bytes long, and the limit is 512 bytes
            ListPunchcards: `holder_passport` is 513 bytes long, and the limit is 512 bytes
            ListPunchcards: `tenant_id` is 513 bytes long, and the limit is 512 bytes
            GetTicket: `ticket` is 513 bytes long, and the limit is 512 bytes
            GetApproval: `request_id` is 513 bytes long, and the limit is 512 bytes
            GetReceipt: `receipt_id` is 513 bytes long, and the limit is 512 bytes
            GetReceipt: `tenant_id` is 513 bytes long, and the limit is 512 bytes
            GetSession: `session_id` is 513 bytes long, and the limit is 512 bytes
            GetPassport: `passport_id` is 513 bytes long, and the limit is 512 bytes
            LeaveQueue: `ticket` is 513 bytes long, and the limit is 512 bytes
            DecideApproval: `request_id` is 513 bytes long, and the limit is 512 bytes
            ForceRelease: `punchcard_id` is 513 bytes long, and the limit is 512 bytes
            RevokeToken: `hash` must be 64 hex digits, the BLAKE3 of the token
        "#]]
        .assert_eq(&told(&"x".repeat(NAME_BYTES_MAX + 1)));
        expect![[r#"
            QueryFacts: `entity` must not hold control characters
            QueryFacts: `entity` must not hold control characters
            QueryFacts: `entity_prefix` must not hold control characters
            QueryFacts: `key` must not hold control characters
            FactHistory: `entity` must not hold control characters
            FactHistory: `key` must not hold control characters
            ListEntities: `entity_prefix` must not hold control characters
            CheckPunchcard: `passport` must not hold control characters
            ListPunchcards: `holder_passport` must not hold control characters
            ListPunchcards: `tenant_id` must not hold control characters
            GetTicket: `ticket` must not hold control characters
            GetApproval: `request_id` must not hold control characters
            GetReceipt: `receipt_id` must not hold control characters
            GetReceipt: `tenant_id` must not hold control characters
            GetSession: `session_id` must not hold control characters
            GetPassport: `passport_id` must not hold control characters
            LeaveQueue: `ticket` must not hold control characters
            DecideApproval: `request_id` must not hold control characters
            ForceRelease: `punchcard_id` must not hold control characters
            RevokeToken: `hash` must be 64 hex digits, the BLAKE3 of the token
        "#]]
        .assert_eq(&told("a\0b"));
        // Of no letter at all, a beginning of names is any name's.
        expect![[r#"
            QueryFacts: `entity` must not be empty; leave it out to match all
            QueryFacts: `entity` must not be empty
            QueryFacts: `key` must not be empty; leave it out to match all
            FactHistory: `entity` must not be empty
            FactHistory: `key` must not be empty
            CheckPunchcard: `passport` must not be empty
            ListPunchcards: `holder_passport` must not be empty
            ListPunchcards: `tenant_id` must not be empty
            GetTicket: `ticket` must not be empty
            GetApproval: `request_id` must not be empty
            GetReceipt: `receipt_id` must not be empty
            GetReceipt: `tenant_id` must not be empty
            GetSession: `session_id` must not be empty
            GetPassport: `passport_id` must not be empty
            LeaveQueue: `ticket` must not be empty
            DecideApproval: `request_id` must not be empty
            ForceRelease: `punchcard_id` must not be empty
            RevokeToken: `hash` must be 64 hex digits, the BLAKE3 of the token
        "#]]
        .assert_eq(&told(" "));
    }
}
