//! Search over all: what the index finds by words, the newest leases that have them in their names, and whatever is named exactly so.

use axum::body::Body;
use axum::http::Response;
use maud::{Markup, html};
use quorate_domain::Refusal;
use quorate_domain::approval::GetApproval;
use quorate_domain::identity::GetPassport;
use quorate_domain::punchcard::{ListPunchcards, Punchcard, Status};
use quorate_domain::receipt::GetReceipt;
use quorate_domain::search::Search;
use quorate_domain::search::words::{hold, pieces, words};
use quorate_domain::work::GetWork;

use super::page::Page;
use super::parts::{badge, link, nothing, segment};
use super::visit::Visit;
use crate::call::CallError;
use crate::tools::{approvals, punchcards, receipts, search, work};

/// Rows of each kind that are shown.
const ROWS: usize = 20;
/// Leases that are looked at; the page says how many that were.
const LEASES: u64 = 500;
/// Of a search's answer.
const TOKENS: u64 = 8_000;

/// One thing that was found.
struct Hit {
    kind: &'static str,
    /// Its page, if it has one.
    to: Option<String>,
    name: String,
    more: String,
}

/// `GET /console/search?q=`.
pub async fn show(visit: Visit) -> Response<Body> {
    let made = page(&visit).await;
    visit.show(made)
}

async fn page(visit: &Visit) -> Result<Page, CallError> {
    let asked = visit.owned("q");
    let (mut hits, mut looked) = (Vec::new(), String::new());
    if let Some(text) = &asked {
        named(visit, text, &mut hits).await?;
        if visit.may::<search::Query>() {
            looked += match known(visit, text, &mut hits).await? {
                true => "Facts, work, entities and documents were searched by their words. ",
                false => "The search index can't answer now, so facts, work, entities and documents were not searched. ",
            };
        }
        if visit.may::<punchcards::ListPunchcards>() {
            looked += &format!("Of leases, the newest {} were looked at. ", leased(visit, text, &mut hits).await?);
        }
        looked += "Whatever is named exactly so is found in any case.";
    }
    let body = html! {
        form.filter method="get" role="search" aria-label="On this page" {
            label for="q" { "Words, an id, a path or a name" }
            input #q name="q" type="search" value=[asked.as_deref()] maxlength="512" autofocus;
            button.primary type="submit" { "Search" }
        }
        @if asked.is_some() {
            @if hits.is_empty() { (nothing("Nothing was found.")) } @else { (rows(&hits)) }
            @if !looked.is_empty() {
                p.quiet { (looked) }
            }
        }
    };
    Ok(Page { title: "Search".into(), body, ..Page::default() })
}

fn rows(hits: &[Hit]) -> Markup {
    html! {
        ul.rows { @for hit in hits { li {
            (badge("calm", hit.kind))
            @if let Some(to) = &hit.to { a href=(to) { (hit.name) } } @else { span { (hit.name) } }
            span.quiet.text { (hit.more) }
        } } }
    }
}

/// An answer that is there, or none: what nothing is called is no trouble here.
fn there<T>(found: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(CallError::Refused(Refusal::NotFound { .. } | Refusal::Invalid { .. } | Refusal::Denied { .. } | Refusal::TooLong { .. })) => {
            Ok(None)
        }
        Err(CallError::MissingScope { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is called exactly so.
async fn named(visit: &Visit, text: &str, hits: &mut Vec<Hit>) -> Result<(), CallError> {
    if approvals::may_list(&visit.caller).is_ok()
        && let Some(found) = there(visit.read(GetApproval { request_id: text.into() }).await)?
    {
        let to = Some(format!("/console/approvals/{}", segment(text)));
        hits.push(Hit { kind: "approval", to, name: found.action_summary, more: found.status.word().into() });
    }
    let work = there(visit.ask::<work::ListWork, _>(GetWork { work_id: text.into(), limit: 1, cursor: None }).await)?;
    if let Some(item) = work.and_then(|found| found.work) {
        hits.push(Hit {
            kind: "work",
            to: Some(format!("/console/work/{}", segment(text))),
            name: item.title,
            more: item.state.word().into(),
        });
    }
    if let Some(found) = there(visit.ask::<receipts::ReceiptVerify, _>(GetReceipt { receipt_id: text.into(), tenant_id: None }).await)? {
        let to = Some(format!("/console/receipts/{}", segment(text)));
        hits.push(Hit { kind: "receipt", to, name: found.receipt_id, more: found.signer_passport.unwrap_or_default() });
    }
    if visit.caller.may("admin")
        && let Some(found) = there(visit.read(GetPassport { passport: text.into() }).await)?
    {
        let to = Some(format!("/console/passports/{}", segment(text)));
        hits.push(Hit { kind: "passport", to, name: found.name, more: found.tier.word().into() });
    }
    Ok(())
}

/// What the search index names: facts, work, entities and documents. False when it can't tell now.
async fn known(visit: &Visit, text: &str, hits: &mut Vec<Hit>) -> Result<bool, CallError> {
    let query = Search {
        tenant_id: "local".into(),
        query: text.into(),
        limit: ROWS as u64,
        token_budget: Some(TOKENS),
        score_min: None,
        with_snippets: true,
        cursor: None,
        hits: Default::default(),
        with_pointers: false,
        with_pairs: true,
    };
    let found = match visit.ask::<search::Query, _>(query).await {
        Ok(found) => found,
        Err(CallError::Unreadable { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    for row in found.results {
        let (kind, to) = match (&*row.kind, &row.pair) {
            ("fact", Some((entity, key))) => ("fact", Some(link("/console/facts/history", &[("entity", entity), ("key", key)]))),
            ("work", _) => ("work", Some(format!("/console/work/{}", segment(&row.doc_id)))),
            ("entity", _) => ("entity", None),
            _ => ("document", None),
        };
        // What was named exactly so stands there already.
        if to.is_none() || hits.iter().all(|hit| hit.to != to) {
            hits.push(Hit { kind, to, name: row.title, more: row.snippet.unwrap_or_default() });
        }
    }
    Ok(true)
}

/// How many leases were looked at.
async fn leased(visit: &Visit, text: &str, hits: &mut Vec<Hit>) -> Result<usize, CallError> {
    let (resource, holder_passport, tenant_id, cursor) = (None, None, None, None);
    let query = ListPunchcards { resource, holder_passport, tenant_id, status: Some(Status::Held), limit: LEASES, cursor };
    let page = visit.ask::<punchcards::ListPunchcards, _>(query).await?;
    let looked = page.punchcards.len();
    let wanted = pieces(text);
    let is_meant = |card: &Punchcard| {
        let held = words(&format!("{} {}", card.resource, card.holder));
        !wanted.is_empty() && wanted.iter().all(|piece| hold(&held, piece))
    };
    let meant = page.punchcards.into_iter().filter(is_meant).take(ROWS);
    hits.extend(meant.map(|card| Hit {
        kind: "lease",
        to: Some(link("/console/leases", &[("holder", &card.holder)])),
        name: card.resource,
        more: format!("held by {}", card.holder),
    }));
    Ok(looked)
}
