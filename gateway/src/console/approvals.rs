//! *Needs me*: what waits for a person's yes or no, first; and approvals that were decided.

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use maud::{Markup, html};
use quorate_domain::Revision;
use quorate_domain::approval::{Approval, ApprovalStatus, Approvals, GetApproval, ListApprovals};
use quorate_domain::work::{ListWork, State, Work};
use serde_json::json;

use super::page::Page;
use super::parts::{self, ago, decision, form_key, left, more, nothing, receipt_link, risk, segment};
use super::visit::{Act, Visit};
use crate::call::CallError;
use crate::registry::Tool;
use crate::tools::{approvals, work};

/// Requests on one page. Each may carry a payload of some KiB.
const ROWS: u64 = 25;
const DECIDED_SHOWN: u64 = 5;
/// Bytes of a payload that is shown without being opened.
const PAYLOAD_SEEN: usize = 600;

async fn list(visit: &Visit, pending_only: bool, limit: u64) -> Result<Approvals, CallError> {
    approvals::may_list(&visit.caller)?;
    visit.read(ListApprovals { pending_only, limit, cursor: visit.owned("cursor") }).await
}

/// `GET /console`.
pub async fn needs_me(visit: Visit) -> Response<Body> {
    let made = needs_me_page(&visit).await;
    visit.show(made)
}

async fn needs_me_page(visit: &Visit) -> Result<Page, CallError> {
    let waiting = list(visit, true, ROWS).await?;
    let decided = visit.read(ListApprovals { pending_only: false, limit: DECIDED_SHOWN * 2, cursor: None }).await?;
    let decided = decided.approvals.into_iter().filter(|approval| approval.status != ApprovalStatus::Pending).take(DECIDED_SHOWN as usize);
    let mine = if visit.may::<work::ListWork>() { blocked(visit).await? } else { Vec::new() };
    let (yours, others): (Vec<&Approval>, Vec<&Approval>) =
        waiting.approvals.iter().partition(|approval| refusal(visit, approval).is_none());
    let body = html! {
        section aria-labelledby="waiting" {
            h2 #waiting { "Waiting for your decision" }
            div #approvals data-live {
                @for approval in &yours { (card(visit, approval)) }
                @if yours.is_empty() { (nothing("Nothing waits for you.")) }
                (more(visit, waiting.next_cursor.as_deref()))
            }
        }
        div #others data-live {
            @if !others.is_empty() {
                section aria-labelledby="elsewhere" {
                    h2 #elsewhere { "Waiting for somebody else" }
                    @for approval in &others { (card(visit, approval)) }
                }
            }
        }
        div #blocked data-live {
            @if !mine.is_empty() {
                section aria-labelledby="yours" {
                    h2 #yours { "Your work that is blocked" }
                    ul.rows {
                        @for item in &mine {
                            li {
                                a href={ "/console/work/" (segment(&item.id)) }
                                { (item.title) }
                                @if let Some(blocker) = &item.blocker { span.quiet { (blocker.reason) } }
                            }
                        }
                    }
                }
            }
        }
        section aria-labelledby="decided" {
            h2 #decided { "Decided last" }
            div #latest data-live {
                (rows(decided))
                p { a href="/console/approvals" { "All approvals" } }
            }
        }
    };
    let kinds = &["approval.", "work."];
    let title = if yours.is_empty() {
        "Needs me".into()
    } else {
        format!("Needs me ({}{})", yours.len(), if waiting.next_cursor.is_some() { "+" } else { "" })
    };
    Ok(Page { title, kinds, body, ..Page::default() })
}

async fn blocked(visit: &Visit) -> Result<Vec<Work>, CallError> {
    let query = ListWork {
        project_id: None,
        state: Some(State::Blocked),
        pending_approval: false,
        tenant_id: None,
        assignee_passport: Some(visit.caller.passport.clone()),
        ready: false,
        limit: 10,
        reply_bytes: None,
        cursor: None,
    };
    Ok(visit.ask::<work::ListWork, _>(query).await?.work)
}

/// Why whoever looks can't decide it.
fn refusal(visit: &Visit, approval: &Approval) -> Option<String> {
    if !visit.may::<approvals::ApprovalDecide>() {
        return Some(format!("Deciding needs a token with the scope `{}`.", approvals::ApprovalDecide::SCOPE));
    }
    approval.refuse_reviewer(&visit.caller).map(|refusal| format!("You can't decide this: {refusal}."))
}

fn card(visit: &Visit, approval: &Approval) -> Markup {
    let id = &approval.request_id;
    let refused = refusal(visit, approval);
    html! {
        article.card.approval id=(id) data-risk=(approval.risk_tier.word()) aria-labelledby={ "what-" (id) } {
            header {
                (risk(approval.risk_tier))
                (left(approval.expires_at))
            }
            h3 id={ "what-" (id) } { (approval.action_summary) }
            (facts(approval))
            p.dual {
                "Two passports: " b { (approval.requested_by) } " asked, another one decides."
                @if let Some(refused) = &refused { " " (refused) }
            }
            @if refused.is_none() {
                form.decide method="post" action={ "/console/approvals/" (segment(id)) } {
                    (form_key(visit))
                    label for={ "note-" (id) } { "Note" span.quiet { " (kept in the receipt)" } }
                    textarea id={ "note-" (id) } name="note" rows="2" maxlength="4096" {}
                    div.buttons {
                        button.primary type="submit" name="decision" value="approve" aria-describedby={ "what-" (id) } { "Approve" }
                        button.bad type="submit" name="decision" value="reject" aria-describedby={ "what-" (id) } { "Reject" }
                        a.quiet href={ "/console/approvals/" (segment(id)) } { "Open" span.unseen { " " (approval.action_summary) } }
                    }
                }
            }
        }
    }
}

/// Where, who, when, and what happens then.
fn facts(approval: &Approval) -> Markup {
    html! {
        dl.facts {
            div { dt { "Where" } dd { code { (approval.scope) } } }
            div { dt { "Asked by" } dd { (approval.requested_by) ", " (ago(approval.requested_at)) } }
            @if let Some(queued) = &approval.work {
                div {
                    dt { "Effect" }
                    dd {
                        "Moves " a href={ "/console/work/" (segment(&queued.work_id)) } { "a work item" }
                        " from " b { (queued.from.word().replace('_', " ")) } " to " b { (queued.to.word().replace('_', " ")) }
                        " in the same entry as the decision."
                    }
                }
            } @else {
                div { dt { "Effect" } dd { "Whoever asked may go on; nothing else is changed by the decision itself." } }
            }
        }
        @if let Some(payload) = &approval.payload {
            // One that fits a screen is seen at once.
            details id={ "payload-" (approval.request_id) } open[payload.to_string().len() < PAYLOAD_SEEN] {
                summary { "Payload" }
                (parts::json(payload))
            }
        }
    }
}

fn rows(approvals: impl Iterator<Item = Approval>) -> Markup {
    let mut approvals = approvals.peekable();
    html! {
        @if approvals.peek().is_none() { (nothing("None yet.")) } @else {
            ul.rows {
                @for approval in approvals {
                    li {
                        (decision(approval.status))
                        a href={ "/console/approvals/" (segment(&approval.request_id)) } { (approval.action_summary) }
                        span.quiet {
                            "asked by " (approval.requested_by)
                            @if let Some(reviewer) = &approval.reviewer { ", decided by " (reviewer) }
                            @if let Some(at) = approval.decided_at { ", " (ago(at)) }
                        }
                    }
                }
            }
        }
    }
}

/// `GET /console/approvals`: all of them, newest first.
pub async fn all(visit: Visit) -> Response<Body> {
    let made = list(&visit, false, ROWS).await.map(|found| {
        let body = html! {
            div #all data-live { (rows(found.approvals.into_iter())) (more(&visit, found.next_cursor.as_deref())) }
        };
        Page { title: "Approvals".into(), kinds: &["approval."], body, ..Page::default() }
    });
    visit.show(made)
}

/// `GET /console/approvals/{id}`.
pub async fn one(visit: Visit, Path(id): Path<String>) -> Response<Body> {
    let made = one_page(&visit, id).await;
    visit.show(made)
}

async fn one_page(visit: &Visit, request_id: String) -> Result<Page, CallError> {
    approvals::may_list(&visit.caller)?;
    let approval = visit.read(GetApproval { request_id }).await?;
    let body = html! {
        div #approval data-live {
            @if approval.status == ApprovalStatus::Pending { (card(visit, &approval)) } @else {
                article.card {
                    header { (decision(approval.status)) (risk(approval.risk_tier)) }
                    h2 { (approval.action_summary) }
                    (facts(&approval))
                    dl.facts {
                        @if let Some(reviewer) = &approval.reviewer { div { dt { "Decided by" } dd { (reviewer) } } }
                        @if let Some(at) = approval.decided_at { div { dt { "When" } dd { (ago(at)) } } }
                        @if let Some(notes) = &approval.reviewer_notes { div { dt { "Note" } dd.text { (notes) } } }
                        @if let Some(receipt) = &approval.receipt_id { div { dt { "Receipt" } dd { (receipt_link(visit, receipt)) } } }
                    }
                }
            }
        }
    };
    Ok(Page { title: "Approval".into(), kinds: &["approval."], body, ..Page::default() })
}

/// `POST /console/approvals/{id}`: `decision` and `note`, by the tool that agents have.
pub async fn decide(Path(id): Path<String>, act: Act) -> Response<Body> {
    let Act { visit, form } = act;
    let choice = form.text("decision");
    let said = match choice {
        "approve" => "approved",
        "reject" => "rejected",
        _ => return visit.show(Err(CallError::arguments("the form names no decision", "Press Approve or Reject."))),
    };
    let mut arguments = json!({ "request_id": id, "decision": choice });
    if let Some(note) = form.note("note") {
        arguments["reviewer_notes"] = note.into();
    }
    let done = visit.call::<approvals::ApprovalDecide>(arguments, form.once(choice)).await;
    let done = done.map(|answer| answer.revision.unwrap_or(Revision(0)));
    visit.done(done, &format!("/console/approvals/{}", segment(&id)), said)
}
