//! The one list of reads.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::limit::LIST_MAX;
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::Read;
use crate::{approval, codec, fact, flag, identity, punchcard, receipt, session};

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
    GetFlags(flag::GetFlags) -> flag::Flags,
}

/// How many rows a list may answer: what was asked for, within the limit.
pub(crate) fn rows(limit: u64) -> Result<usize, Refusal> {
    match usize::try_from(limit) {
        Ok(rows @ 1..=LIST_MAX) => Ok(rows),
        _ => Err(Refusal::invalid("limit", format!("must be 1 to {LIST_MAX}, not {limit}"))),
    }
}
