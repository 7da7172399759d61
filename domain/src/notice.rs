//! Notices: what happened to approvals, for addresses outside of the cluster.
//!
//! An operator names addresses (webhooks). Each act on an approval makes one notice for each address that wants to hear of it, in
//! the entry of the act. Gateways deliver them: one takes a notice, sends it, and says what came of it.
//! Invariants:
//! * An act makes exactly one notice for an address, and its id never changes, however often it is sent.
//! * One gateway at a time works on a notice: taking it keeps the others out for [`NOTICE_ATTEMPT_MS`] on the lease clock.
//! * What is said of an attempt counts only if no later one was begun.
//! * A notice is delivered, or given up after [`NOTICE_ATTEMPTS_MAX`] attempts, and both are told as events.
//!
//! What that promises: an address that answers 2xx gets each notice at least once, and twice only if a gateway died, or lost
//! the cluster, between the answer and saying so. So receivers drop by id what they have seen.
//!
//! The secret that signs is not stored here: gateways derive it (see their `keys`).

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::approval::{Approval, RiskTier, refuse_all_but_operators};
use crate::codec;
use crate::cursor::Cursors;
use crate::deadline::{self, Lapsed};
use crate::event;
use crate::identity::check_name;
use crate::key::Key;
use crate::limit::{
    NAME_BYTES_MAX, NOTICE_ATTEMPT_MS, NOTICE_ATTEMPTS_MAX, NOTICE_BACKOFF_MS, NOTICE_BACKOFF_MS_MAX, NOTICE_KEPT_MS, NOTICES_DUE_SHOWN,
    NOTICES_WAITING_MAX, REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES, WEBHOOK_URL_BYTES_MAX, WEBHOOKS_MAX,
};
use crate::record::{CLUSTER, Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal, shown};
use crate::stamp::{LeaseTime, Principal, ReadStamp, Revision, Stamp, UnixMs};
use crate::tenant::Timed;
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::work;

/// How a notice is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The notice itself, as JSON.
    Generic,
    /// A message as Slack's incoming webhooks take it.
    Slack,
}

/// What notices can tell of.
pub const KINDS: [&str; 6] =
    ["approval.requested", "approval.approved_once", "approval.escalated", "approval.approved", "approval.rejected", "approval.expired"];

/// An address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Webhook {
    pub id: String,
    pub tenant: String,
    pub url: String,
    pub format: Format,
    /// Approvals of at least this risk.
    pub risk_tier_min: RiskTier,
    /// Of [`KINDS`]; none: all.
    pub kinds: Vec<String>,
    pub created_by: String,
    pub created_at: UnixMs,
    /// The revision of its creation. The secret belongs to it, so that one made anew has another.
    pub revision: Revision,
}

impl Record for Webhook {
    const KIND: Kind = Kind::Webhook;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.id)
    }
}

fn webhook(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Webhook>, StorageError> {
    view.get(tenant, &Key::new().text(id))
}

fn webhooks(view: &impl Read, tenant: &str) -> Result<Vec<Webhook>, StorageError> {
    Ok(view.page::<Webhook>(tenant, &Key::new(), None, WEBHOOKS_MAX)?.items)
}

impl Webhook {
    fn wants(&self, kind: &str, risk: RiskTier) -> bool {
        risk >= self.risk_tier_min && (self.kinds.is_empty() || self.kinds.iter().any(|wanted| wanted == kind))
    }
}

/// Makes or changes an address. An operator's act. A change keeps the secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutWebhook {
    pub id: String,
    pub url: String,
    pub format: Format,
    pub risk_tier_min: RiskTier,
    pub kinds: Vec<String>,
}

impl PutWebhook {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Webhook> {
        if let Some(refusal) = refuse_all_but_operators(&at.caller, "naming an address for notices").or_else(|| self.refuse()) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let known = webhook(tx, tenant, &self.id)?;
        if known.is_none() && webhooks(tx, tenant)?.len() >= WEBHOOKS_MAX {
            let problem = format!("can't be one more: a tenant has at most {WEBHOOKS_MAX} addresses, delete one first");
            return Ok(Err(Refusal::invalid("id", problem)));
        }
        let Self { id, url, format, risk_tier_min, kinds } = self;
        let new = Webhook {
            id,
            tenant: tenant.clone(),
            url,
            format,
            risk_tier_min,
            kinds,
            created_by: at.caller.passport.clone(),
            created_at: at.wall,
            revision: at.revision,
        };
        let webhook = match known {
            Some(Webhook { created_by, created_at, revision, .. }) => Webhook { created_by, created_at, revision, ..new },
            None => new,
        };
        tx.put(&webhook);
        event::emit(tx, at, "webhook.set", &webhook.id, json!({ "by": at.caller.passport }))?;
        Ok(Ok(webhook))
    }

    /// What is wrong with it, whoever names it.
    pub fn refuse(&self) -> Option<Refusal> {
        if let Some(refusal) = check_name("id", &self.id) {
            return Some(refusal);
        }
        if self.url.len() > WEBHOOK_URL_BYTES_MAX {
            let (size, limit) = (self.url.len() as u64, WEBHOOK_URL_BYTES_MAX as u64);
            return Some(Refusal::TooLong { field: "url".into(), size, limit, unit: "bytes".into() });
        }
        let rest = self.url.strip_prefix("https://").or_else(|| self.url.strip_prefix("http://"));
        let has_host =
            rest.is_some_and(|rest| rest.split(['/', '?', '#']).next().is_some_and(|host| !host.is_empty() && !host.contains('@')));
        if !has_host || self.url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Some(Refusal::invalid("url", "must be an `https://` or `http://` address without user name and spaces"));
        }
        let unknown = self.kinds.iter().find(|kind| !KINDS.contains(&kind.as_str()))?;
        Some(Refusal::invalid("kinds", format!("has `{}`; known are {}", shown(unknown), KINDS.join(", "))))
    }
}

/// Deletes an address. What waits for it is given up at its next turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeleteWebhook {
    pub id: String,
}

impl DeleteWebhook {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Webhook> {
        if let Some(refusal) =
            refuse_all_but_operators(&at.caller, "deleting an address for notices").or_else(|| check_name("id", &self.id))
        {
            return Ok(Err(refusal));
        }
        let Some(webhook) = webhook(tx, &at.caller.tenant, &self.id)? else { return Ok(Err(Refusal::not_found("webhook", self.id))) };
        tx.delete(&webhook);
        event::emit(tx, at, "webhook.deleted", &webhook.id, json!({ "by": at.caller.passport }))?;
        Ok(Ok(webhook))
    }
}

/// The addresses of the caller's tenant; there are few.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListWebhooks {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Webhooks {
    pub webhooks: Vec<Webhook>,
}

impl ListWebhooks {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Webhooks> {
        // A Slack address is a secret by itself.
        if let Some(refusal) = refuse_all_but_operators(&at.caller, "looking at addresses for notices") {
            return Ok(Err(refusal));
        }
        Ok(Ok(Webhooks { webhooks: webhooks(view, &at.caller.tenant)? }))
    }
}

// ------------------------------------------------------------------ notices

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeState {
    /// To be sent, or sent again.
    Waiting,
    Delivered,
    GivenUp,
}

/// One notice and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    pub id: String,
    pub tenant: String,
    pub webhook: String,
    /// One of [`KINDS`].
    pub kind: String,
    pub request_id: String,
    /// The approval as it was right after the act.
    pub body: Value,
    pub made_at: UnixMs,
    pub revision: Revision,
    pub state: NoticeState,
    /// Attempts that were begun.
    pub attempts: u64,
    /// When it may be taken next; once settled, when it is forgotten.
    pub due: LeaseTime,
    pub last_error: Option<String>,
    pub settled_at: Option<UnixMs>,
}

impl Record for Notice {
    const KIND: Kind = Kind::Notice;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.id)
    }
}

impl Timed for Notice {
    fn move_times(&mut self, to: &dyn Fn(LeaseTime) -> LeaseTime) {
        self.due = to(self.due);
    }
}

fn notice(view: &impl Read, tenant: &str, id: &str) -> Result<Option<Notice>, StorageError> {
    view.get(tenant, &Key::new().text(id))
}

/// The notices of a tenant, newest first.
fn order(tenant: &str) -> Key {
    kind_prefix(tenant, Kind::NoticeOrder)
}

fn position(notice: &Notice) -> Key {
    Key::new().number_descending(notice.revision.0).text(&notice.id)
}

/// How many notices of a tenant wait.
#[derive(Serialize, Deserialize)]
struct Count {
    tenant: String,
    waiting: u64,
}

impl Record for Count {
    const KIND: Kind = Kind::NoticeCount;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

fn waiting(view: &impl Read, tenant: &str) -> Result<u64, StorageError> {
    let count: Option<Count> = view.get(tenant, &Key::new())?;
    Ok(count.map_or(0, |count| count.waiting))
}

/// Makes the notices of an act on an approval.
pub(crate) fn make(tx: &mut impl Tx, at: &Stamp, kind: &str, approval: &Approval) -> Result<(), StorageError> {
    let tenant = &at.caller.tenant;
    for webhook in webhooks(tx, tenant)?.into_iter().filter(|webhook| webhook.wants(kind, approval.risk_tier)) {
        let waiting = waiting(tx, tenant)?;
        if waiting >= NOTICES_WAITING_MAX {
            let about = json!({ "webhook": webhook.id, "kind": kind, "request_id": approval.request_id });
            event::emit(tx, at, "notice.not_made", &webhook.id, about)?;
            continue;
        }
        // One entry can expire many requests, and an act can be told to many addresses.
        let id = at.new_id(&format!("nt_{}_{kind}_{}", webhook.id, approval.request_id), 0);
        let id = format!("nt_{}", &id[id.len() - 32..]);
        let notice = Notice {
            body: body(&id, at, kind, approval),
            id,
            tenant: tenant.clone(),
            webhook: webhook.id,
            kind: kind.into(),
            request_id: approval.request_id.clone(),
            made_at: at.wall,
            revision: at.revision,
            state: NoticeState::Waiting,
            attempts: 0,
            due: at.lease_now,
            last_error: None,
            settled_at: None,
        };
        tx.put(&Count { tenant: tenant.clone(), waiting: waiting + 1 });
        tx.put_index(order(tenant).raw(position(&notice).as_bytes()), notice.id.as_bytes());
        deadline::put(tx, Kind::NoticeDue, notice.due, tenant, &notice.id);
        tx.put(&notice);
    }
    Ok(())
}

/// What is sent in the generic format. Its payload stays in the cluster: it can hold what only deciders should see.
fn body(id: &str, at: &Stamp, kind: &str, approval: &Approval) -> Value {
    json!({
        "id": id,
        "kind": kind,
        "at": at.wall.to_rfc3339(),
        "tenant_id": approval.tenant,
        "revision": at.revision,
        "approval": {
            "request_id": approval.request_id,
            "status": approval.status,
            "risk_tier": approval.risk_tier,
            "scope": approval.scope,
            "action_summary": approval.action_summary,
            "requested_by": approval.requested_by,
            "requested_at": approval.requested_at.to_rfc3339(),
            "expires_at": approval.expires_at.to_rfc3339(),
            "approvals_needed": approval.approvals_needed,
            "approved_by": approval.votes.iter().map(|vote| vote.passport.as_str()).collect::<Vec<_>>(),
            "reviewer": approval.reviewer,
            "reviewer_notes": approval.reviewer_notes,
        },
    })
}

/// Takes a notice that is due, to send it. For gateways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TakeNotice {
    pub tenant: String,
    pub id: String,
}

/// Nothing when another was quicker, or there is nobody to send it to any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoticeTaken {
    pub taken: Option<(Notice, Webhook)>,
}

impl TakeNotice {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<NoticeTaken> {
        if let Some(refusal) = refuse_all_but_the_system(&at.caller) {
            return Ok(Err(refusal));
        }
        let nothing = Ok(Ok(NoticeTaken { taken: None }));
        let Some(mut notice) = notice(tx, &self.tenant, &self.id)? else { return nothing };
        if notice.state != NoticeState::Waiting || notice.due > at.lease_now {
            return nothing;
        }
        let Some(webhook) = webhook(tx, &self.tenant, &notice.webhook)? else {
            settle(tx, at, notice, NoticeState::GivenUp, Some("the address was deleted".into()))?;
            return nothing;
        };
        if notice.attempts >= NOTICE_ATTEMPTS_MAX {
            // The last attempt's gateway died with it.
            let error = notice.last_error.take().or(Some("nothing was heard of the last attempt".into()));
            settle(tx, at, notice, NoticeState::GivenUp, error)?;
            return nothing;
        }
        notice.attempts += 1;
        wait_until(tx, &mut notice, at.lease_now.plus_ms(NOTICE_ATTEMPT_MS));
        Ok(Ok(NoticeTaken { taken: Some((notice, webhook)) }))
    }
}

fn refuse_all_but_the_system(caller: &Principal) -> Option<Refusal> {
    (caller.tenant != CLUSTER).then(|| Refusal::Denied { problem: "notices are delivered by gateways".into() })
}

fn wait_until(tx: &mut impl Tx, notice: &mut Notice, due: LeaseTime) {
    deadline::delete(tx, Kind::NoticeDue, notice.due, &notice.tenant, &notice.id);
    notice.due = due;
    deadline::put(tx, Kind::NoticeDue, notice.due, &notice.tenant, &notice.id);
    tx.put(notice);
}

fn settle(tx: &mut impl Tx, at: &Stamp, mut notice: Notice, state: NoticeState, error: Option<String>) -> Result<Notice, StorageError> {
    let waiting = waiting(tx, &notice.tenant)?.saturating_sub(1);
    tx.put(&Count { tenant: notice.tenant.clone(), waiting });
    notice.state = state;
    notice.last_error = error;
    notice.settled_at = Some(at.wall);
    deadline::delete(tx, Kind::NoticeDue, notice.due, &notice.tenant, &notice.id);
    notice.due = at.lease_now.plus_ms(NOTICE_KEPT_MS);
    deadline::put(tx, Kind::NoticeForgotten, notice.due, &notice.tenant, &notice.id);
    tx.put(&notice);
    let kind = if state == NoticeState::Delivered { "notice.delivered" } else { "notice.given_up" };
    let about = json!({
        "webhook": notice.webhook,
        "kind": notice.kind,
        "request_id": notice.request_id,
        "attempts": notice.attempts,
        "error": notice.last_error,
    });
    event::emit(tx, &at.within(&notice.tenant), kind, &notice.id, about)?;
    Ok(notice)
}

/// Says what came of an attempt. For gateways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettleNotice {
    pub tenant: String,
    pub id: String,
    /// Which attempt: its number as it was taken.
    pub attempt: u64,
    /// Why it failed; nothing when it was delivered.
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoticeSettled {
    pub state: NoticeState,
}

impl SettleNotice {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<NoticeSettled> {
        if let Some(refusal) = refuse_all_but_the_system(&at.caller) {
            return Ok(Err(refusal));
        }
        let Some(mut notice) = notice(tx, &self.tenant, &self.id)? else { return Ok(Err(Refusal::not_found("notice", self.id))) };
        let is_late = notice.state != NoticeState::Waiting || notice.attempts != self.attempt;
        // That a late attempt arrived settles it all the same; that it failed says nothing of the ones after it.
        if is_late && (self.error.is_some() || notice.state != NoticeState::Waiting) {
            return Ok(Ok(NoticeSettled { state: notice.state }));
        }
        let error = self.error.map(|error| shown(&error));
        let notice = match error {
            None => settle(tx, at, notice, NoticeState::Delivered, None)?,
            Some(_) if notice.attempts >= NOTICE_ATTEMPTS_MAX => settle(tx, at, notice, NoticeState::GivenUp, error)?,
            Some(_) => {
                notice.last_error = error;
                let doubled = NOTICE_BACKOFF_MS.saturating_mul(1 << (notice.attempts - 1).min(32));
                wait_until(tx, &mut notice, at.lease_now.plus_ms(doubled.min(NOTICE_BACKOFF_MS_MAX)));
                notice
            }
        };
        Ok(Ok(NoticeSettled { state: notice.state }))
    }
}

/// Notices of all tenants that can be taken now, the first ones due. For gateways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DueNotices {}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoticesDue {
    /// Tenant and id.
    pub due: Vec<(String, String)>,
}

impl DueNotices {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<NoticesDue> {
        if let Some(refusal) = refuse_all_but_the_system(&at.caller) {
            return Ok(Err(refusal));
        }
        let all = kind_prefix(CLUSTER, Kind::NoticeDue);
        let to = all.clone().number(at.lease_now.0.saturating_add(1));
        let rows = view.scan_bytes(Table::Index, all.as_bytes(), to.as_bytes(), Direction::Ascending, NOTICES_DUE_SHOWN)?;
        let decode = |(_, bytes): &(Vec<u8>, Vec<u8>)| codec::decode(bytes).map_err(|error| StorageError::new("due notice", error));
        Ok(Ok(NoticesDue { due: rows.iter().map(decode).collect::<Result<_, _>>()? }))
    }
}

/// Notices of the caller's tenant, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListNotices {
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notices {
    pub notices: Vec<Notice>,
    pub next_cursor: Option<String>,
}

impl ListNotices {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Notices> {
        if let Some(refusal) = refuse_all_but_operators(&at.caller, "looking at notices") {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let cursors = Cursors::of("notices", &at.caller, &());
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let read = |id: &[u8]| {
            let id = String::from_utf8_lossy(id);
            let notice = notice(view, tenant, &id)?.ok_or_else(|| StorageError::corrupt("a row of notices points nowhere"))?;
            let bytes = serde_json::to_string(&notice).map_or(0, |json| json.len()) + NAME_BYTES_MAX / 4;
            Ok(Some((notice, bytes)))
        };
        let budget = REPLY_BYTES_MAX - 2 * REPLY_WRAPPER_BYTES;
        let found = work::page(view, Table::Index, &order(tenant), from.as_deref(), limit, budget, read)?;
        Ok(Ok(Notices { notices: found.items, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}

/// Forgets what was settled long ago, a bounded number. What waits stays until a gateway has tried.
pub(crate) fn sweep(tx: &mut impl Tx, at: &Stamp) -> Result<(), StorageError> {
    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::NoticeForgotten, at.lease_now)? {
        let Some(notice) = notice(tx, &tenant, &id)? else { continue };
        deadline::delete(tx, Kind::NoticeForgotten, notice.due, &tenant, &id);
        tx.delete_index(order(&tenant).raw(position(&notice).as_bytes()));
        tx.delete(&notice);
    }
    Ok(())
}
