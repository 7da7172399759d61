//! Search over all: facts by words, the newest work and the leases that hold the text, and whatever is named exactly so.

use axum::body::Body;
use axum::http::Response;
use maud::{Markup, html};
use quorate_domain::Refusal;
use quorate_domain::approval::GetApproval;
use quorate_domain::fact::QueryFacts;
use quorate_domain::identity::GetPassport;
use quorate_domain::punchcard::{ListPunchcards, Status};
use quorate_domain::receipt::GetReceipt;
use quorate_domain::work::{GetWork, ListWork};

use super::page::Page;
use super::parts::{badge, link, nothing, segment};
use super::visit::Visit;
use crate::call::CallError;
use crate::tools::{approvals, facts, punchcards, receipts, work};

/// Rows of each kind that are shown.
const ROWS: usize = 20;
/// Leases, and pages of work, that are looked at; the page says how many that were.
const LEASES: u64 = 500;
const WORK_PAGES: usize = 4;

/// One thing that was found.
struct Hit {
    kind: &'static str,
    to: String,
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
        if visit.may::<facts::QueryFacts>() {
            known(visit, text, &mut hits).await?;
        }
        let text = text.to_lowercase();
        if visit.may::<work::ListWork>() {
            looked += &format!("the newest {} work items", on_the_board(visit, &text, &mut hits).await?);
        }
        if visit.may::<punchcards::ListPunchcards>() {
            let and = if looked.is_empty() { "" } else { " and " };
            looked += &format!("{and}the newest {} leases", leased(visit, &text, &mut hits).await?);
        }
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
                p.quiet { "Facts were searched by their words; of the rest, " (looked) ", and whatever is named exactly so." }
            }
        }
    };
    Ok(Page { title: "Search".into(), body, ..Page::default() })
}

fn rows(hits: &[Hit]) -> Markup {
    html! {
        ul.rows { @for hit in hits { li { (badge("calm", hit.kind)) a href=(hit.to) { (hit.name) } span.quiet.text { (hit.more) } } } }
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
        let to = format!("/console/approvals/{}", segment(text));
        hits.push(Hit { kind: "approval", to, name: found.action_summary, more: found.status.word().into() });
    }
    let work = there(visit.ask::<work::ListWork, _>(GetWork { work_id: text.into(), limit: 1, cursor: None }).await)?;
    if let Some(item) = work.and_then(|found| found.work) {
        hits.push(Hit { kind: "work", to: format!("/console/work/{}", segment(text)), name: item.title, more: item.state.word().into() });
    }
    if let Some(found) = there(visit.ask::<receipts::ReceiptVerify, _>(GetReceipt { receipt_id: text.into(), tenant_id: None }).await)? {
        let to = format!("/console/receipts/{}", segment(text));
        hits.push(Hit { kind: "receipt", to, name: found.receipt_id, more: found.signer_passport.unwrap_or_default() });
    }
    if visit.caller.may("admin")
        && let Some(found) = there(visit.read(GetPassport { passport: text.into() }).await)?
    {
        let to = format!("/console/passports/{}", segment(text));
        hits.push(Hit { kind: "passport", to, name: found.name, more: found.tier.word().into() });
    }
    Ok(())
}

async fn known(visit: &Visit, text: &str, hits: &mut Vec<Hit>) -> Result<(), CallError> {
    let query = QueryFacts {
        query: Some(text.into()),
        entity: None,
        entity_prefix: None,
        key: None,
        top_k: ROWS as u64,
        token_budget: None,
        include_superseded: false,
        as_of: None,
        min_effective_confidence: None,
        cursor: None,
        hits: Default::default(),
    };
    for row in visit.ask::<facts::QueryFacts, _>(query).await?.rows {
        let to = link("/console/facts/history", &[("entity", &row.entity), ("key", &row.key)]);
        hits.push(Hit { kind: "fact", to, name: format!("{} · {}", row.entity, row.key), more: row.value.chars().take(120).collect() });
    }
    Ok(())
}

/// How many items were looked at.
async fn on_the_board(visit: &Visit, text: &str, hits: &mut Vec<Hit>) -> Result<usize, CallError> {
    let (mut looked, mut cursor, mut found) = (0, None, 0);
    for _ in 0..WORK_PAGES {
        let query = ListWork {
            project_id: None,
            state: None,
            pending_approval: false,
            tenant_id: None,
            assignee_passport: None,
            ready: false,
            limit: 200,
            cursor,
        };
        let page = visit.ask::<work::ListWork, _>(query).await?;
        looked += page.work.len();
        for item in page.work {
            let texts = [&item.title, &item.assignee].into_iter().chain(&item.body);
            if found < ROWS && texts.into_iter().any(|held| held.to_lowercase().contains(text)) {
                found += 1;
                hits.push(Hit {
                    kind: "work",
                    to: format!("/console/work/{}", segment(&item.id)),
                    name: item.title,
                    more: item.state.word().into(),
                });
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(looked)
}

/// How many leases were looked at.
async fn leased(visit: &Visit, text: &str, hits: &mut Vec<Hit>) -> Result<usize, CallError> {
    let (resource, holder_passport, tenant_id, cursor) = (None, None, None, None);
    let query = ListPunchcards { resource, holder_passport, tenant_id, status: Some(Status::Held), limit: LEASES, cursor };
    let page = visit.ask::<punchcards::ListPunchcards, _>(query).await?;
    let looked = page.punchcards.len();
    let is_meant = |held: &str| held.to_lowercase().contains(text);
    let meant = page.punchcards.into_iter().filter(|card| is_meant(&card.resource) || is_meant(&card.holder)).take(ROWS);
    hits.extend(meant.map(|card| Hit {
        kind: "lease",
        to: link("/console/leases", &[("holder", &card.holder)]),
        name: card.resource,
        more: format!("held by {}", card.holder),
    }));
    Ok(looked)
}
