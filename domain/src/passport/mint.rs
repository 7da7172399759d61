//! Requests for another passport: a person decides, and nothing is minted by the request itself.
//!
//! A request is an approval of high risk, so that it is listed, decided, proven and expires like any other; a yes is what an
//! operator makes a token on. Invariant: a passport has at most one undecided request.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::approval::{Approval, ApprovalStatus, GetApproval, RequestApproval, RiskTier};
use crate::flag;
use crate::identity::check_text;
use crate::key::Key;
use crate::limit::{APPROVAL_TTL_MS_MAX, MINT_REASON_BYTES_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords};
use crate::refusal::{Applied, Refusal};
use crate::stamp::Stamp;
use crate::tx::{StorageError, Tx};

/// What a passport is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    Personal,
    Work,
    Public,
}

impl Category {
    pub fn word(self) -> &'static str {
        match self {
            Category::Personal => "personal",
            Category::Work => "work",
            Category::Public => "public",
        }
    }
}

/// The last request of a passport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Asked {
    tenant: String,
    requester: String,
    /// The approval that decides it.
    request_id: String,
}

impl Record for Asked {
    const KIND: Kind = Kind::MintRequest;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.requester)
    }
}

/// Asks an operator for a passport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestMint {
    /// The caller's own when absent, which is `work` for every passport of this version.
    pub category: Option<Category>,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MintRequested {
    pub request_id: String,
    pub requester: String,
    pub category: Category,
}

impl RequestMint {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<MintRequested> {
        if let Some(refusal) = flag::refuse_off(tx, flag::MINT_REQUESTS, "request_passport_mint")? {
            return Ok(Err(refusal));
        }
        let (tenant, requester) = (&at.caller.tenant, &at.caller.passport);
        if let Some(refusal) = self.reason.as_deref().and_then(check_reason) {
            return Ok(Err(refusal));
        }
        if let Some(existing_request_id) = undecided(tx, at)? {
            return Ok(Err(Refusal::AlreadyPending { what: "a request to mint a passport".into(), existing_request_id }));
        }
        let category = self.category.unwrap_or(Category::Work);
        let ask = RequestApproval {
            action_summary: format!("mint a passport of the category {} for `{requester}`", category.word()),
            risk_tier: RiskTier::High,
            scope: "passports".into(),
            tenant_id: None,
            payload: Some(json!({ "requester_id": requester, "requested_category": category, "reason": self.reason })),
            ttl_ms: Some(APPROVAL_TTL_MS_MAX),
        };
        let request_id = match ask.open(tx, at, None)? {
            Ok(Approval { request_id, .. }) => request_id,
            Err(refusal) => return Ok(Err(refusal)),
        };
        tx.put(&Asked { tenant: tenant.clone(), requester: requester.clone(), request_id: request_id.clone() });
        Ok(Ok(MintRequested { request_id, requester: requester.clone(), category }))
    }
}

fn check_reason(reason: &str) -> Option<Refusal> {
    if reason.len() > MINT_REASON_BYTES_MAX {
        let (size, limit) = (reason.len() as u64, MINT_REASON_BYTES_MAX as u64);
        return Some(Refusal::TooLong { field: "reason".into(), size, limit, unit: "bytes".into() });
    }
    check_text("reason", reason)
}

/// The caller's request that nobody has decided yet.
fn undecided(tx: &mut impl Tx, at: &Stamp) -> Result<Option<String>, StorageError> {
    let asked: Option<Asked> = tx.get(&at.caller.tenant, &Key::new().text(&at.caller.passport))?;
    let Some(Asked { request_id, .. }) = asked else { return Ok(None) };
    let now = at.reading();
    match (GetApproval { request_id: request_id.clone() }).run(tx, &now)? {
        Ok(approval) => Ok((approval.status == ApprovalStatus::Pending).then_some(request_id)),
        Err(_) => Ok(None),
    }
}
