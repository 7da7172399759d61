//! The frame of every page.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use maud::{DOCTYPE, Markup, html};

use super::assets::{ICON, SCRIPT, STYLE};
use super::parts;
use super::visit::Visit;
use crate::call::CallError;
use crate::edge;
use crate::events;
use crate::limit::CONSOLE_OLD;
use crate::tools::{approvals, facts, punchcards, receipts, work};

/// What stands inside of the frame.
#[derive(Default)]
pub struct Page {
    pub title: String,
    /// The kinds of events, or their beginnings, after which it is out of date.
    pub kinds: &'static [&'static str],
    /// How often it is looked at anew, where no event tells of a change.
    pub refresh_ms: Option<u64>,
    pub body: Markup,
}

/// A page that the frame leads to.
struct Place {
    path: &'static str,
    name: &'static str,
    is_for: fn(&Visit) -> bool,
}

const PLACES: [Place; 9] = [
    Place { path: "/console", name: "Needs me", is_for: |visit| approvals::may_list(&visit.caller).is_ok() },
    Place { path: "/console/sessions", name: "Sessions", is_for: Visit::may::<work::CoordStatus> },
    Place { path: "/console/leases", name: "Leases", is_for: Visit::may::<punchcards::ListPunchcards> },
    Place { path: "/console/work", name: "Work", is_for: Visit::may::<work::ListWork> },
    Place { path: "/console/facts", name: "Facts", is_for: Visit::may::<facts::QueryFacts> },
    Place { path: "/console/receipts", name: "Receipts", is_for: Visit::may::<receipts::ReceiptVerify> },
    Place { path: "/console/passports", name: "Passports", is_for: |visit| visit.caller.may("admin") },
    Place { path: "/console/cluster", name: "Cluster", is_for: |visit| visit.caller.may("admin") },
    Place { path: "/console/search", name: "Search", is_for: |_| true },
];

/// A page with the frame around it.
pub fn whole(visit: &Visit, page: Page) -> Markup {
    let here = visit.uri.path();
    let is_here =
        |path: &str| if path == "/console" { here == path || here.starts_with("/console/approvals") } else { here.starts_with(path) };
    let caller = &visit.caller;
    let is_live = !page.kinds.is_empty() && caller.may(events::SCOPE);
    let head = html! {
        title { (page.title) " · Quorate" }
        script src=(SCRIPT.path) defer {}
    };
    let body = html! {
        a.skip href="#main" { "Skip to the content" }
        header.top {
            a.brand href="/console" { img src=(ICON.path) alt="" width="24" height="24"; "Quorate" }
            @if is_live || page.refresh_ms.is_some() { span.live #live role="status" hidden { "Connecting" } }
            form.find role="search" action="/console/search" {
                label.unseen for="find" { "Search everything" }
                input #find name="q" type="search" placeholder="Search everything" maxlength="512";
            }
            form.who method="post" action="/console/sign-out" {
                span { b { (caller.passport) } span.quiet { " · tier " (caller.tier.word()) " · " (caller.tenant) } }
                button type="submit" { "Sign out" }
            }
        }
        nav.places aria-label="Pages" {
            ul {
                @for place in PLACES.iter().filter(|place| (place.is_for)(visit)) {
                    li { a href=(place.path) aria-current=[is_here(place.path).then_some("page")] { (place.name) } }
                }
            }
        }
        main #main tabindex="-1" {
            @if let Some(said) = visit.text("said").and_then(said) { p.notice.good role="status" { (said) } }
            div #old data-live {
                @if visit.age() > CONSOLE_OLD {
                    p.notice.warn role="status" {
                        "No leader answers now. This is what a node knew " (parts::span(visit.age().as_millis() as u64)) " ago; "
                        "what you decide waits for a leader."
                    }
                }
            }
            h1 { (page.title) }
            (page.body)
            @if !page.kinds.is_empty() { noscript { p.quiet { "Load the page again to see what has changed." } } }
        }
    };
    let live = is_live.then(|| page.kinds.join(","));
    html! {
        (DOCTYPE)
        html lang="en" {
            head { (common_head()) (head) }
            body data-kinds=[live] data-since=[visit.revision()] data-refresh-ms=[page.refresh_ms] { (body) }
        }
    }
}

/// A page for somebody who is not signed in.
pub fn bare(title: &str, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head { (common_head()) title { (title) " · Quorate" } }
            body.bare { main #main { img src=(ICON.path) alt="" width="48" height="48"; (body) } }
        }
    }
}

fn common_head() -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        meta name="robots" content="noindex";
        link rel="icon" type="image/svg+xml" href=(ICON.path);
        link rel="stylesheet" href=(STYLE.path);
    }
}

/// What an act that went well says. Words from a list of ours, so that no address puts words on a page.
fn said(word: &str) -> Option<&'static str> {
    match word {
        "approved" => Some("Approved. The receipt is below, and who asked was told."),
        "rejected" => Some("Rejected. The receipt is below, and who asked was told."),
        "released" => Some("The lease was taken from its holder. Whoever waited for it may have it now."),
        "revoked" => Some("The token was revoked. Every gateway refuses it within a second."),
        _ => None,
    }
}

// ------------------------------------------------------------------ what went wrong

pub fn trouble(error: &CallError) -> Page {
    let title = match error.status() {
        400 | 413 | 422 => "That can't be read",
        401 | 403 => "You may not do this",
        404 => "There is no such thing",
        409 | 410 | 412 => "It has changed meanwhile",
        429 | 501 => "Not now",
        500 => "A fault",
        _ => "The cluster can't answer now",
    };
    let body = html! {
        div.notice.bad role="alert" {
            // What was refused begins in lower case, as part of a sentence.
            p { (sentence(&error.text())) }
        }
        p { a.button href="/console" { "Back to the console" } }
    };
    Page { title: title.into(), body, ..Page::default() }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The same for somebody of whom it is not known who it is.
pub fn trouble_bare(error: &CallError) -> Response<Body> {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let page = trouble(error);
    let mut response = html(status, bare(&page.title, html! { h1 { (page.title) } (page.body) }));
    edge::retry_after(&mut response, error.retry_after_ms());
    response
}

pub fn refused(status: StatusCode, problem: &str) -> Response<Body> {
    let body = html! {
        h1 { "That was refused" }
        p.notice.bad role="alert" { (problem) }
        p { a.button href="/console" { "Back to the console" } }
    };
    html(status, bare("Refused", body))
}

// ------------------------------------------------------------------ answers

pub fn html(status: StatusCode, page: Markup) -> Response<Body> {
    edge::with_type(status, "text/html; charset=utf-8", page.into_string())
}

/// To another page of ours, asked for with GET.
pub fn redirect(to: &str) -> Response<Body> {
    let mut response = edge::with_type(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", String::new());
    // What is not ASCII was encoded where the address was made.
    let to = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/console"));
    response.headers_mut().insert(header::LOCATION, to);
    response
}
