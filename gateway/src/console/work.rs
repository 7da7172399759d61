//! The work board: items by state, and each with its comments.

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use futures::future::try_join_all;
use maud::{Markup, html};
use quorate_domain::work::{GetWork, ListWork, State, Work};

use super::page::Page;
use super::parts::{ago, badge, link, more, nothing, segment};
use super::visit::Visit;
use crate::call::CallError;
use crate::plans;
use crate::tools::work;

/// Items of one column, and of a list of one state.
const COLUMN: u64 = 12;
const ROWS: u64 = 50;

const STATES: [State; 6] = [State::Blocked, State::InProgress, State::Planned, State::Complete, State::Deployed, State::Archive];

/// `GET /console/work`: all columns, or with `?state=` one of them whole.
pub async fn board(visit: Visit) -> Response<Body> {
    let made = match visit.text("state") {
        None => columns(&visit).await,
        Some(word) => match STATES.into_iter().find(|state| state.word() == word) {
            Some(state) => one_state(&visit, state).await,
            None => Err(CallError::arguments("there is no such state of work", "The board links to those that there are.")),
        },
    };
    visit.show(made)
}

fn ask(visit: &Visit, state: State, limit: u64, cursor: Option<String>) -> ListWork {
    let assignee_passport = visit.owned("assignee");
    ListWork {
        project_id: None,
        state: Some(state),
        pending_approval: false,
        tenant_id: None,
        assignee_passport,
        ready: false,
        limit,
        reply_bytes: None,
        cursor,
    }
}

async fn columns(visit: &Visit) -> Result<Page, CallError> {
    let asked = STATES.into_iter().map(|state| visit.ask::<work::ListWork, _>(ask(visit, state, COLUMN, None)));
    let found = try_join_all(asked).await?;
    let plans = visit.plans().await?;
    let body = html! {
        (filter(visit))
        div.board #board data-live {
            @for (state, list) in STATES.into_iter().zip(&found) {
                section.column aria-label=(name(state)) {
                    h2 { (name(state)) " " span.count { (list.work.len()) @if list.next_cursor.is_some() { "+" } } }
                    @for item in &list.work { (card(item)) }
                    @if list.work.is_empty() { (nothing("None")) }
                    @if list.next_cursor.is_some() { p { a href=(visit.with("state", state.word())) { "All of them" } } }
                }
            }
        }
        @if let Some(plans) = &plans {
            section #plans aria-label="Plans" data-live {
                h2 { "Plans " span.count { (plans.rows.len()) } }
                p.quiet { "From ExecPlan files, which are changed where they lie." }
                @for problem in &plans.problems { p.notice.warn { (problem) } }
                @for row in &plans.rows { (plan(row)) }
                @if plans.rows.is_empty() { (nothing("None")) }
            }
        }
    };
    Ok(Page { title: "Work".into(), kinds: &["work.", "fact."], body, ..Page::default() })
}

async fn one_state(visit: &Visit, state: State) -> Result<Page, CallError> {
    let list = visit.ask::<work::ListWork, _>(ask(visit, state, ROWS, visit.owned("cursor"))).await?;
    let body = html! {
        (filter(visit))
        div #items data-live {
            @for item in &list.work { (card(item)) }
            @if list.work.is_empty() { (nothing("None")) }
            (more(visit, list.next_cursor.as_deref()))
        }
        p { a href="/console/work" { "The whole board" } }
    };
    Ok(Page { title: format!("Work: {}", name(state).to_lowercase()), kinds: &["work."], body, ..Page::default() })
}

fn filter(visit: &Visit) -> Markup {
    html! {
        form.filter method="get" {
            @if let Some(state) = visit.text("state") { input type="hidden" name="state" value=(state); }
            label for="assignee" { "Assignee" }
            input #assignee name="assignee" value=[visit.text("assignee")] maxlength="512" placeholder="anyone";
            button type="submit" { "Show" }
            a href=(link("/console/work", &[("assignee", &visit.caller.passport)])) { "Mine" }
            @if visit.text("assignee").is_some() { a href="/console/work" { "Everyone's" } }
        }
    }
}

fn name(state: State) -> &'static str {
    match state {
        State::Planned => "Planned",
        State::InProgress => "In progress",
        State::Blocked => "Blocked",
        State::Archive => "Archived",
        State::Complete => "Complete",
        State::Deployed => "Deployed",
    }
}

fn tone(state: State) -> &'static str {
    match state {
        State::Planned | State::Archive => "calm",
        State::InProgress => "info",
        State::Blocked => "bad",
        State::Complete | State::Deployed => "good",
    }
}

fn card(item: &Work) -> Markup {
    html! {
        article.item id=(item.id) {
            h3 { a href={ "/console/work/" (segment(&item.id)) } { (item.title) } }
            @if let Some(blocker) = &item.blocker { p.text { (blocker.reason) } }
            p.quiet {
                @if item.assignee.is_empty() { "nobody" } @else { (item.assignee) }
                ", " (ago(item.updated_at))
                @if item.comments > 0 { ", " (item.comments) @if item.comments == 1 { " comment" } @else { " comments" } }
            }
        }
    }
}

fn plan(row: &plans::Row) -> Markup {
    html! {
        article.item id=(row.id()) {
            h3 { (badge(tone(row.state), name(row.state))) " " (row.plan.title.as_deref().unwrap_or(&row.slug)) }
            @if let Some(status) = &row.plan.status { p.text { (status) } }
            p.quiet {
                (row.slug)
                @if let Some(by) = &row.plan.superseded_by { ", superseded by " (by) }
                ", changed " (ago(row.changed_at))
            }
        }
    }
}

/// `GET /console/work/{id}`.
pub async fn one(visit: Visit, Path(id): Path<String>) -> Response<Body> {
    let made = one_page(&visit, id).await;
    visit.show(made)
}

async fn one_page(visit: &Visit, work_id: String) -> Result<Page, CallError> {
    // Later pages do not tell the item again.
    let first = visit.ask::<work::ListWork, _>(GetWork { work_id: work_id.clone(), limit: ROWS, cursor: None }).await?;
    let (item, comments) = match visit.owned("cursor") {
        None => (first.work.clone(), first),
        Some(cursor) => (first.work, visit.ask::<work::ListWork, _>(GetWork { work_id, limit: ROWS, cursor: Some(cursor) }).await?),
    };
    let Some(item) = item else { return Err(CallError::Fault { detail: "a work item without itself".into() }) };
    let body = html! {
        div #item data-live {
            article.card {
                header { (badge(tone(item.state), name(item.state))) code { (item.id) } }
                h2 { (item.title) }
                @if let Some(text) = &item.body { p.text { (text) } }
                dl.facts {
                    div { dt { "Assignee" } dd { @if item.assignee.is_empty() { "nobody" } @else { (item.assignee) } } }
                    div { dt { "Made by" } dd { (item.created_by) ", " (ago(item.created_at)) } }
                    div { dt { "Changed" } dd { (ago(item.updated_at)) } }
                    @if let Some(blocker) = &item.blocker {
                        div { dt { "Blocked" } dd.text { (blocker.kind.word().replace('_', " ")) ": " (blocker.reason) } }
                    }
                    // What others typed is shown and leads nowhere: it may be any address.
                    @if let Some(pr) = &item.linked_pr { div { dt { "Pull request" } dd.text { (pr) } } }
                    @if let Some(issue) = &item.linked_issue { div { dt { "Issue" } dd.text { (issue) } } }
                    @if let Some(waiting) = &item.waiting {
                        div { dt { "Last move that waited" } dd { a href={ "/console/approvals/" (segment(waiting)) } { "its approval" } } }
                    }
                }
            }
            section aria-labelledby="comments" {
                h2 #comments { "Comments" }
                @for comment in &comments.comments {
                    article.comment { p.quiet { b { (comment.author) } ", " (ago(comment.posted_at)) } p.text { (comment.body) } }
                }
                @if comments.comments.is_empty() { (nothing("None yet.")) }
                (more(visit, comments.next_cursor.as_deref()))
            }
        }
    };
    Ok(Page { title: "Work item".into(), kinds: &["work."], body, ..Page::default() })
}
