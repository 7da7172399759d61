//! What stands on the board: items by state and assignee, one item with its comments, and requests that wait for approval.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::approval::{self, Approval, ApprovalStatus};
use crate::codec;
use crate::cursor::Cursors;
use crate::identity::{check_name, check_tenant};
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX, REPLY_WRAPPER_BYTES, WORK_JSON_BYTES_MAX};
use crate::record::{Kind, ReadRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::ReadStamp;
use crate::tx::{Read, StorageError, Table};
use crate::work::{Comment, DEFAULT_PROJECT, ROW_NAMES_BYTES, State, Work, check_project, indexed, json_bytes, order, order_in, work};

/// A page of rows, and the position after the order's prefix where the next one begins.
pub(crate) struct Rows<T> {
    pub items: Vec<T>,
    pub next: Option<Vec<u8>>,
}

/// Reads rows of an order until there are `limit` of them or they fill `budget` bytes; the first one always fits. `read` tells
/// what a row's value stands for and how many bytes that takes, or that it is not to be shown.
pub(crate) fn page<T>(
    view: &impl Read,
    table: Table,
    order: &crate::key::Key,
    from: Option<&[u8]>,
    limit: usize,
    budget: usize,
    read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, StorageError>,
) -> Result<Rows<T>, StorageError> {
    let position = |key: Vec<u8>| key[order.as_bytes().len()..].to_vec();
    let from = from.map(|from| order.clone().raw(from).into_bytes());
    let (rows, next) = view.page_bytes(table, order, from.as_deref(), limit)?;
    let (mut items, mut left) = (Vec::new(), budget);
    for (key, value) in rows {
        if let Some((item, bytes)) = read(&value)? {
            if bytes > left && !items.is_empty() {
                return Ok(Rows { items, next: Some(position(key)) });
            }
            left = left.saturating_sub(bytes);
            items.push(item);
        }
    }
    Ok(Rows { items, next: next.map(position) })
}

/// Items of the caller's tenant, newest first; or the requests that wait for approval, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListWork {
    pub project_id: Option<String>,
    pub state: Option<State>,
    /// In place of items.
    pub pending_approval: bool,
    pub tenant_id: Option<String>,
    pub assignee_passport: Option<String>,
    /// Planned, and waiting for no other item.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    pub limit: u64,
    /// What the rows of a page may take of a reply; that of an ordinary one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_bytes: Option<u64>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkList {
    pub work: Vec<Work>,
    pub approvals: Vec<Approval>,
    pub next_cursor: Option<String>,
}

/// What rows may take of an ordinary reply, and of the largest one.
pub const ROWS_BYTES_DEFAULT: usize = REPLY_BYTES_DEFAULT - 2 * REPLY_WRAPPER_BYTES;
pub const ROWS_BYTES_MAX: usize = REPLY_BYTES_MAX - 2 * REPLY_WRAPPER_BYTES;

/// What a request takes of a reply: its summary, scope and payload, and the names around them.
fn request_bytes(approval: &Approval) -> usize {
    let payload = approval.payload.as_ref().map_or(0, |payload| payload.to_string().len());
    let texts = [&approval.request_id, &approval.action_summary, &approval.tenant, &approval.requested_by];
    texts.map(|text| json_bytes(text)).iter().sum::<usize>() + payload + ROW_NAMES_BYTES
}

fn fit(approval: &mut Approval) {
    if request_bytes(approval) > WORK_JSON_BYTES_MAX {
        // A summary of control characters takes six times its bytes, and leaves no place for the largest payload.
        approval.payload = Some(json!({ "omitted": "it does not fit beside this summary" }));
    }
}

fn only_planned() -> Refusal {
    Refusal::invalid("ready", "goes with the state `planned` only; leave `state` out")
}

impl ListWork {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<WorkList> {
        let assignee = self.assignee_passport.as_deref();
        let tenant = &at.caller.tenant;
        let mut refusal = check_tenant(&at.caller, self.tenant_id.as_deref())
            .or_else(|| assignee.and_then(|assignee| check_name("assignee_passport", assignee)))
            .or_else(|| {
                (self.ready && (self.pending_approval || self.state.is_some_and(|state| state != State::Planned))).then(only_planned)
            });
        if let (None, Some(project)) = (&refusal, &self.project_id) {
            refusal = check_project(view, tenant, project)?;
        }
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        let project = self.project_id.as_deref();
        let cursors = Cursors::of("work", &at.caller, &(self.state, self.pending_approval, assignee, project, self.ready));
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let from = from.as_deref();
        let budget = match self.reply_bytes.map(usize::try_from) {
            None => ROWS_BYTES_DEFAULT,
            Some(asked) => asked.unwrap_or(ROWS_BYTES_MAX).min(ROWS_BYTES_MAX),
        };
        let mut list = WorkList { work: Vec::new(), approvals: Vec::new(), next_cursor: None };
        let next = match (self.pending_approval, assignee) {
            // A request is nobody's to do.
            (true, Some(_)) => None,
            (true, None) => {
                let read = |id: &[u8]| {
                    let mut approval = approval::indexed(view, tenant, id)?.seen_at(at.lease_now);
                    fit(&mut approval);
                    let bytes = request_bytes(&approval);
                    // One whose time is over does not wait any more, swept or not.
                    Ok((approval.status == ApprovalStatus::Pending).then_some((approval, bytes)))
                };
                let found = page(view, Table::Index, &approval::undecided(tenant), from, limit, budget, read)?;
                list.approvals = found.items;
                found.next
            }
            (false, _) => {
                let read = |id: &[u8]| {
                    let work = indexed(view, tenant, id)?;
                    let bytes = work.reply_bytes();
                    // A page can be short, or even empty, where filters meet; the cursor leads on.
                    let is_wanted = project.is_none_or(|project| work.project_id == project)
                        && assignee.is_none_or(|assignee| work.assignee == assignee)
                        && (!self.ready || work.is_ready());
                    Ok(is_wanted.then_some((work, bytes)))
                };
                let state = if self.ready { Some(State::Planned) } else { self.state };
                let order = match (assignee, project) {
                    (None, Some(project)) if project != DEFAULT_PROJECT => order_in(tenant, project, state),
                    _ => order(tenant, assignee, state),
                };
                let found = page(view, Table::Index, &order, from, limit, budget, read)?;
                list.work = found.items;
                found.next
            }
        };
        list.next_cursor = next.map(|next| cursors.seal(&next));
        Ok(Ok(list))
    }
}

/// One item with its comments, oldest first; or a request for approval, decided or not, which has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetWork {
    pub work_id: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkView {
    /// Not told again on later pages, so that a long comment finds its place.
    pub work: Option<Work>,
    pub comments: Vec<Comment>,
    /// In place of an item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    pub next_cursor: Option<String>,
}

impl GetWork {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<WorkView> {
        if let Some(refusal) = check_name("work_id", &self.work_id) {
            return Ok(Err(refusal));
        }
        let tenant = &at.caller.tenant;
        let Some(work) = work(view, tenant, &self.work_id)? else {
            let Some(approval) = approval::approval(view, tenant, &self.work_id)? else {
                return Ok(Err(Refusal::not_found("work", self.work_id)));
            };
            let mut approval = approval.seen_at(at.lease_now);
            fit(&mut approval);
            return Ok(Ok(WorkView { work: None, comments: Vec::new(), approval: Some(approval), next_cursor: None }));
        };
        let cursors = Cursors::of("comments", &at.caller, &self.work_id);
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let work = from.is_none().then_some(work);
        let taken = work.as_ref().map_or(0, Work::reply_bytes) + 2 * REPLY_WRAPPER_BYTES;
        let of_work = kind_prefix(tenant, Kind::WorkComment).text(&self.work_id);
        let comments = |limit, budget| {
            page(view, Table::Records, &of_work, from.as_deref(), limit, budget, |bytes| {
                let comment: Comment = codec::decode(bytes).map_err(|error| StorageError::new("comment", error))?;
                let bytes = comment.reply_bytes();
                Ok(Some((comment, bytes)))
            })
        };
        let mut found = comments(limit, REPLY_BYTES_DEFAULT.saturating_sub(taken))?;
        let first = found.items.first().map_or(0, Comment::reply_bytes);
        if taken + first > REPLY_BYTES_MAX {
            // The item leaves no place even for the first comment, so they begin on the next page.
            found = Rows { items: Vec::new(), next: Some(Vec::new()) };
        }
        Ok(Ok(WorkView { work, comments: found.items, approval: None, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}
