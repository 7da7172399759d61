//! Who is at work now, on what, and which leases they hold; and what whoever looks has saved.

use axum::body::Body;
use axum::http::Response;
use maud::{Markup, html};
use quorate_domain::coord::{CoordStatus, Session};
use quorate_domain::session::ListSessions;

use super::page::Page;
use super::parts::{ago, badge, left, link, more, nothing, segment};
use super::visit::Visit;
use crate::call::CallError;
use crate::tools::{sessions, work};

const ROWS: u64 = 100;

/// `GET /console/sessions`.
pub async fn show(visit: Visit) -> Response<Body> {
    let made = page(&visit).await;
    visit.show(made)
}

async fn page(visit: &Visit) -> Result<Page, CallError> {
    let found = visit.ask::<work::CoordStatus, _>(CoordStatus { project_id: None, limit: ROWS, cursor: visit.owned("cursor") }).await?;
    let saved = match visit.may::<sessions::ListSessions>() {
        true => {
            let cursor = visit.owned("saved");
            let query = ListSessions { include_archived: true, limit: ROWS, cursor, with_titles: true, session_prefix: None };
            Some(visit.ask::<sessions::ListSessions, _>(query).await?)
        }
        false => None,
    };
    let body = html! {
        p.quiet {
            "Sessions that have announced what they do, and whose passport was seen in the last " (found.presence_ttl_s)
            " seconds or holds a lease."
        }
        div #sessions data-live {
            @for session in &found.sessions { (card(session)) }
            @if found.sessions.is_empty() { (nothing("No session is live.")) }
            @if !found.work.is_empty() {
                section aria-labelledby="going" {
                    h2 #going { "Work in progress" }
                    ul.rows {
                        @for item in &found.work {
                            li {
                                a href={ "/console/work/" (segment(&item.id)) }
                                { (item.title) }
                                span.quiet { (item.assignee) ", " (ago(item.updated_at)) }
                            }
                        }
                    }
                }
            }
            (more(visit, found.next_cursor.as_deref()))
            @if let Some(saved) = saved.filter(|saved| !saved.sessions.is_empty()) {
                section aria-labelledby="saved" {
                    h2 #saved { "What you have saved" }
                    ul.rows {
                        @for (name, row) in saved.sessions.iter().zip(&saved.titles) {
                            li {
                                b { (row.title) }
                                @if row.untitled { (badge("calm", "untitled")) }
                                @if row.archived { (badge("calm", "archived")) }
                                span.quiet { code { (name) } ", " (ago(row.updated_at)) }
                            }
                        }
                    }
                    @if let Some(cursor) = &saved.next_cursor { p { a href=(visit.with("saved", cursor)) { "More of them" } } }
                }
            }
        }
    };
    Ok(Page { title: "Sessions".into(), kinds: &["session.", "punchcard.", "work."], body, ..Page::default() })
}

fn card(session: &Session) -> Markup {
    let intent = &session.intent;
    html! {
        article.card {
            header { h2 { (intent.passport) } span.quiet { (intent.project_id) ", seen " (ago(session.last_seen_at)) } }
            @if let Some(note) = &intent.note { p.text { (note) } }
            dl.facts {
                div { dt { "Session" } dd { code { (intent.session) } } }
                @if let Some(plan) = &intent.execplan_slug {
                    div { dt { "Plan" } dd { (plan) @if let Some(milestone) = &intent.milestone { ", " (milestone) } } }
                }
                @if let Some(target) = &intent.deploy_target { div { dt { "Deploys" } dd { (target) } } }
                @if !intent.paths.is_empty() { div { dt { "Paths" } dd { @for path in &intent.paths { code { (path) } " " } } } }
                div { dt { "Live for" } dd { (left(session.active_until)) } }
                @if !session.leases.is_empty() {
                    div {
                        dt { "Leases" }
                        dd {
                            @for lease in &session.leases { code { (lease.resource) } " " (left(lease.expires_at)) " " }
                            a href=(link("/console/leases", &[("holder", &intent.passport)])) {
                                @if session.more_leases { "and more" } @else { "on the map" }
                            }
                        }
                    }
                }
            }
        }
    }
}
