//! What the team knows, knew at an earlier instant, and why a question finds it.

use axum::body::Body;
use axum::http::Response;
use maud::{Markup, html};
use quorate_domain::UnixMs;
use quorate_domain::fact::{Confidence, FactHistory, FactRow, FoundBy, QueryFacts};
use quorate_domain::refusal::shown;

use super::page::Page;
use super::parts::{ago, badge, exact, link, more, nothing, receipt_link, span};
use super::visit::Visit;
use crate::call::CallError;
use crate::cluster::now_unix_ms;
use crate::tools::facts;

const ROWS: u64 = 50;
/// A reply of a list holds so many tokens at the most.
const TOKENS: u64 = 8_000;

const MINUTE: u64 = 60 * 1_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// The steps of the slider: now, and further and further back.
const BACK: [u64; 14] =
    [0, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY];

/// `GET /console/facts?q=&entity=&back=&at=`.
pub async fn find(visit: Visit) -> Response<Body> {
    let made = find_page(&visit).await;
    visit.show(made)
}

/// The instant that is asked for; none is now.
fn instant(visit: &Visit) -> Result<Option<UnixMs>, CallError> {
    if let Some(at) = visit.text("at") {
        // What a field for date and time sends has neither seconds nor offset, and is taken for UTC, as the page says.
        let whole = if at.len() == 16 { format!("{at}:00Z") } else { at.into() };
        return UnixMs::from_rfc3339(&whole).map(Some).ok_or_else(|| {
            CallError::arguments(format!("`at` is no instant: `{}`", shown(at)), "Write it as 2026-11-30T12:00, in UTC, or leave it empty.")
        });
    }
    let step = visit.text("back").and_then(|step| step.parse::<usize>().ok()).and_then(|step| BACK.get(step)).copied().unwrap_or(0);
    Ok((step > 0).then(|| UnixMs(now_unix_ms().0.saturating_sub(step))))
}

async fn find_page(visit: &Visit) -> Result<Page, CallError> {
    let as_of = instant(visit)?;
    let query = QueryFacts {
        query: visit.owned("q"),
        entity: None,
        entity_prefix: visit.owned("entity"),
        key: None,
        top_k: ROWS,
        token_budget: Some(TOKENS),
        include_superseded: false,
        as_of,
        min_effective_confidence: None,
        cursor: visit.owned("cursor"),
        hits: Default::default(),
        with_pointers: false,
        with_envelope: false,
    };
    let found = visit.ask::<facts::QueryFacts, _>(query).await?;
    let step = visit.text("back").unwrap_or("0");
    let names: Vec<String> = BACK.iter().map(|ms| if *ms == 0 { "now".into() } else { format!("{} ago", span(*ms)) }).collect();
    let body = html! {
        form.filter.facts-filter method="get" {
            div { label for="q" { "Words" } input #q name="q" type="search" value=[visit.text("q")] maxlength="4096"; }
            div { label for="entity" { "Entity begins with" } input #entity name="entity" value=[visit.text("entity")] maxlength="512"; }
            div.wide {
                label for="back" {
                    "As of " output #back-name for="back" { (names.get(step.parse::<usize>().unwrap_or(0)).map_or("now", String::as_str)) }
                }
                input #back name="back" type="range" min="0" max=(BACK.len() - 1) step="1" value=(step)
                    data-names=(names.join("|")) aria-describedby="back-name";
            }
            div { label for="at" { "or exactly, in UTC" } input #at name="at" type="datetime-local" value=[visit.text("at")]; }
            button.primary type="submit" { "Find" }
        }
        div #facts data-live {
            p.quiet {
                @match as_of {
                    Some(at) => { "What was valid at " (exact(at)) ", with the confidence that it has today." }
                    None => "What is valid now, the surest first."
                }
            }
            @if found.rows.is_empty() { (nothing("No fact matches.")) }
            @for row in &found.rows { (card(visit, row)) }
            @if let Some(why) = &found.truncated { p.quiet { "There are more (" (why.replace('_', " ")) ")." } }
            (more(visit, found.next_cursor.as_deref()))
        }
    };
    // What was valid then does not change.
    let kinds: &[&str] = if as_of.is_none() { &["fact.", "facts.", "decision."] } else { &[] };
    Ok(Page { title: "Facts".into(), kinds, body, ..Page::default() })
}

fn card(visit: &Visit, row: &FactRow) -> Markup {
    let query = visit.text("q").unwrap_or_default();
    html! {
        article.card.fact {
            header {
                h2 {
                    a href=(link("/console/facts/history", &[("entity", &row.entity), ("key", &row.key)])) { (row.entity) " · " (row.key) }
                }
                (badge(if row.freshness == "fresh" { "good" } else { "warn" }, &row.freshness))
            }
            p.text.value { (row.value) }
            p.quiet { "version " (row.version) " by " (row.actor) ", " (ago(row.stored_at)) ", confidence " (percent(row.confidence)) }
            details id={ "why-" (row.fact_id) } {
                summary { "Why it is here" }
                ul {
                    @for FoundBy { word, itself, within } in row.found_by(query) {
                        @if !itself.is_empty() { li { "It holds " b { (word) } " in its " (itself.join(" and its ")) "." } }
                        @if !within.is_empty() { li { "A longer word of its " (within.join(" and its ")) " holds " b { (word) } "." } }
                    }
                    @if query.is_empty() { li { "No words were asked for, so every fact matches." } }
                    @if let Some(start) = visit.text("entity") { li { "Its entity begins with " b { (start) } "." } }
                    li {
                        "It stands where its effective confidence puts it: " (percent(row.effective_confidence))
                        @if row.effective_confidence == row.confidence { ", which is the confidence it was stored with." }
                        @else {
                            ", half of the " (percent(row.confidence)) " it was stored with, because it is " (span(row.age_ms))
                            " old and past its horizon (" (row.horizon_class.word().replace('_', " ")) ")."
                        }
                    }
                }
            }
        }
    }
}

fn percent(confidence: Confidence) -> String {
    format!("{} %", (confidence.to_unit() * 1_000.0).round() / 10.0)
}

/// `GET /console/facts/history?entity=&key=`: every version of one pair.
pub async fn history(visit: Visit) -> Response<Body> {
    let made = history_page(&visit).await;
    visit.show(made)
}

async fn history_page(visit: &Visit) -> Result<Page, CallError> {
    let (entity, key) = (visit.owned("entity").unwrap_or_default(), visit.owned("key").unwrap_or_default());
    let query = FactHistory { entity: entity.clone(), key: key.clone(), limit: ROWS, cursor: visit.owned("cursor") };
    let found = visit.ask::<facts::FactHistory, _>(query).await?;
    let body = html! {
        dl.facts { div { dt { "Entity" } dd { code { (entity) } } } div { dt { "Key" } dd { code { (key) } } } }
        div #versions data-live {
            ol.versions {
                @for version in found.versions.iter().rev() {
                    li.card {
                        header {
                            h2 { "Version " (version.version) }
                            @if version.forgotten_by.is_some() { (badge("calm", "forgotten")) }
                            @else if version.deleted { (badge("bad", "deleted")) }
                            @else if version.superseded_by.is_some() { (badge("calm", "superseded")) }
                            @else { (badge("good", "active")) }
                        }
                        @match &version.forgotten_by {
                            Some(receipt) => p.quiet { "Its value was forgotten; receipt " (receipt_link(visit, receipt)) }
                            None => p.text.value { (version.value) }
                        }
                        p.quiet {
                            "by " (version.actor) ", " (ago(version.stored_at)) ", confidence " (percent(version.confidence))
                            ", revision " (version.revision)
                        }
                        @if let Some(receipt) = &version.source_receipt {
                            p.quiet { "from receipt " (receipt_link(visit, receipt)) }
                        }
                    }
                }
            }
            (more(visit, found.next_cursor.as_deref()))
        }
        p { a href="/console/facts" { "All facts" } }
    };
    Ok(Page { title: "Versions of a fact".into(), kinds: &["fact.", "facts."], body, ..Page::default() })
}
