//! Receipts, the newest first, and each verified as it is shown.

use std::time::Instant;

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use maud::html;
use quorate_domain::receipt::{GetReceipt, ListReceipts};

use super::page::Page;
use super::parts::{ago, badge, json, more, nothing, receipt_link};
use super::visit::Visit;
use crate::call::CallError;
use crate::tools::receipts::{ReceiptVerify, verify};

const ROWS: u64 = 50;

/// `GET /console/receipts`.
pub async fn list(visit: Visit) -> Response<Body> {
    let made = list_page(&visit).await;
    visit.show(made)
}

async fn list_page(visit: &Visit) -> Result<Page, CallError> {
    let found = visit.ask::<ReceiptVerify, _>(ListReceipts { limit: ROWS, cursor: visit.owned("cursor") }).await?;
    let body = html! {
        div #receipts data-live {
            p.quiet { (found.size) " in all. Each continues the one before it, so none can be changed or taken out unseen." }
            @if found.receipts.is_empty() { (nothing("None yet.")) } @else {
                div.scroll tabindex="0" role="region" aria-label="Receipts" {
                    table {
                        thead { tr { @for name in ["No.", "Proves", "Signed for", "When", "Receipt"] { th scope="col" { (name) } } } }
                        tbody {
                            @for row in &found.receipts {
                                tr {
                                    td { (row.seq) }
                                    td { (row.kind.as_deref().unwrap_or("").replace('_', " ")) }
                                    td { (row.signer_passport.as_deref().unwrap_or("")) }
                                    td { (ago(row.made_at)) }
                                    td { (receipt_link(visit, &row.receipt_id)) }
                                }
                            }
                        }
                    }
                }
            }
            (more(visit, found.next_cursor.as_deref()))
        }
    };
    // Whatever is decided, granted or ended has a receipt.
    let kinds = &["approval.", "punchcard.", "decision.", "passport.", "facts."];
    Ok(Page { title: "Receipts".into(), kinds, body, ..Page::default() })
}

/// `GET /console/receipts/{id}`: with what was checked just now.
pub async fn one(visit: Visit, Path(id): Path<String>) -> Response<Body> {
    let made = one_page(&visit, id).await;
    visit.show(made)
}

async fn one_page(visit: &Visit, receipt_id: String) -> Result<Page, CallError> {
    let found = visit.ask::<ReceiptVerify, _>(GetReceipt { receipt_id, tenant_id: None }).await?;
    let key_id = found.signature.as_ref().map(|(key_id, _)| key_id.as_str());
    let (app, deadline) = (&visit.app, Instant::now() + visit.app.settings.call_deadline);
    let keys = app.services.receipt_keys.with(key_id, &app.cluster, &visit.caller, None, deadline).await?;
    let checked = verify(found, &keys);
    let body = html! {
        article.card {
            header {
                @if checked.verified { (badge("good", "verified")) } @else { (badge("bad", "not verified")) } code { (checked.receipt_id) }
            }
            @if checked.verified {
                p {
                    "Checked just now: the body has its hash, the link continues the receipt before and is continued by the one after, "
                    "and the signature is valid under a key that this gateway knows."
                }
            } @else {
                p.notice.bad role="alert" { "Do not rely on it." }
                ul { @for error in &checked.errors { li { (error) } } }
            }
            @if let Some(report) = &checked.report {
                dl.facts {
                    div { dt { "Signed for" } dd { (checked.signer_passport.0.as_deref().unwrap_or("nobody")) } }
                    div { dt { "Made" } dd { (report.made_at) } }
                    div { dt { "Number" } dd { (report.seq) " of the log, at revision " (report.revision) } }
                    div { dt { "Hash of the body" } dd { code.hash { (report.body_hash) } } }
                    div { dt { "Link before" } dd { code.hash { (report.previous_link_hash) } } }
                    div { dt { "Link" } dd { code.hash { (report.link_hash) } } }
                    @if let Some(key_id) = &report.key_id { div { dt { "Key" } dd { code { (key_id) } } } }
                    @if let Some(signature) = &report.signature { div { dt { "Signature" } dd { code.hash { (signature) } } } }
                }
                @if let Some(content) = &report.body.0 { h2 { "What it says" } (json(content)) }
            }
        }
        p { a href="/console/receipts" { "All receipts" } }
    };
    Ok(Page { title: "Receipt".into(), body, ..Page::default() })
}
