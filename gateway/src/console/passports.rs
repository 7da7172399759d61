//! Passports and their tokens. A token is shown by its hash: its text is nowhere.

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use maud::{Markup, html};
use quorate_domain::UnixMs;
use quorate_domain::identity::{GetPassport, ListPassports, ListTokens, Passport, RevokeToken, TokenRow};

use super::page::Page;
use super::parts::{ago, badge, form_key, left, more, nothing, segment};
use super::visit::{Act, Visit};
use crate::call::CallError;
use crate::cluster::now_unix_ms;

const ROWS: u64 = 100;
/// Digits of a hash that tell tokens apart.
const SHORT: usize = 12;

/// `GET /console/passports`.
pub async fn list(visit: Visit) -> Response<Body> {
    let made = list_page(&visit).await;
    visit.show(made)
}

async fn list_page(visit: &Visit) -> Result<Page, CallError> {
    let found = visit.read(ListPassports { limit: ROWS, cursor: visit.owned("cursor") }).await?;
    let body = html! {
        div #passports data-live {
            @if found.passports.is_empty() { (nothing("None yet.")) } @else {
                div.scroll tabindex="0" role="region" aria-label="Passports" {
                    table {
                        thead {
                            tr {
                                th scope="col" { "Passport" }
                                th scope="col" { "Tier" }
                                th scope="col" { "Standing" }
                                th scope="col" { "Scopes" }
                            }
                        }
                        tbody {
                            @for passport in &found.passports {
                                tr {
                                    td { a href={ "/console/passports/" (segment(&passport.name)) } { (passport.name) } }
                                    td { (passport.tier.word()) }
                                    td { (standing(passport)) }
                                    td { @for scope in &passport.scopes { code { (scope) } " " } }
                                }
                            }
                        }
                    }
                }
            }
            (more(visit, found.next_cursor.as_deref()))
        }
        p.quiet { "Passports are made with `quorate token create`, which shows the token once." }
    };
    Ok(Page { title: "Passports".into(), kinds: &["passport."], body, ..Page::default() })
}

fn standing(passport: &Passport) -> Markup {
    html! {
        @if let Some(at) = passport.revoked_at { (badge("bad", "revoked")) " " (ago(at)) } @else { (badge("good", "in force")) }
        @if passport.agent_work_gate { " " (badge("warn", "moves wait for a person")) }
    }
}

/// `GET /console/passports/{name}`.
pub async fn one(visit: Visit, Path(name): Path<String>) -> Response<Body> {
    let made = one_page(&visit, name).await;
    visit.show(made)
}

async fn one_page(visit: &Visit, name: String) -> Result<Page, CallError> {
    let tokens = visit.read(ListTokens { passport: name.clone(), limit: ROWS, cursor: visit.owned("cursor") }).await?;
    let passport = visit.read(GetPassport { passport: name }).await?;
    let body = html! {
        article.card {
            header { h2 { (passport.name) } (standing(&passport)) }
            dl.facts {
                div { dt { "Tier" } dd { (passport.tier.word()) } }
                div {
                    dt { "Scopes" } dd { @for scope in &passport.scopes { code { (scope) } " " } @if passport.scopes.is_empty() { "none" } }
                }
            }
        }
        section aria-labelledby="tokens" {
            h2 #tokens { "Tokens" }
            div #list data-live {
                @if tokens.tokens.is_empty() { (nothing("None.")) }
                @for token in &tokens.tokens { (row(visit, &passport, token)) }
                (more(visit, tokens.next_cursor.as_deref()))
            }
        }
        p { a href="/console/passports" { "All passports" } }
    };
    Ok(Page { title: "Passport".into(), kinds: &["passport."], body, ..Page::default() })
}

fn row(visit: &Visit, passport: &Passport, token: &TokenRow) -> Markup {
    let short = token.hash.get(..SHORT).unwrap_or(&token.hash);
    let is_over = |end: UnixMs| end <= now_unix_ms();
    let is_valid = passport.revoked_at.is_none() && token.revoked_at.is_none() && !token.expires_at.is_some_and(is_over);
    let is_this = token.hash == visit.pass.token_hash;
    html! {
        article.item id={ "token-" (short) } {
            p {
                code { (short) "…" } " "
                @if let Some(at) = token.revoked_at { (badge("bad", "revoked")) " " (ago(at)) }
                @else if token.expires_at.is_some_and(is_over) { (badge("calm", "expired")) }
                @else if !is_valid { (badge("calm", "of a revoked passport")) }
                @else { (badge("good", "valid")) }
                @if is_this { " " (badge("info", "you are signed in with it")) }
                span.quiet { " made " (ago(token.created_at)) @if let Some(end) = token.expires_at { ", " (left(end)) } }
            }
            @if is_valid {
                details id={ "revoke-" (short) } {
                    summary { "Revoke" span.unseen { " the token " (short) } }
                    form.decide method="post" action={ "/console/passports/" (segment(&passport.name)) "/tokens" } {
                        (form_key(visit))
                        input type="hidden" name="hash" value=(token.hash);
                        p {
                            "Whoever uses it is refused within a second, for good. " @if is_this { "It is yours: you are signed out. " }
                            "The passport and its other tokens stay."
                        }
                        button.bad type="submit" { "Revoke this token" }
                    }
                }
            }
        }
    }
}

/// `POST /console/passports/{name}/tokens`: ends the token of `hash`.
pub async fn revoke_token(Path(name): Path<String>, act: Act) -> Response<Body> {
    let Act { visit, form } = act;
    let done = visit.propose(RevokeToken { hash: form.text("hash").into() }, form.once("revoke")).await;
    visit.done(done.map(|(_, revision)| revision), &format!("/console/passports/{}", segment(&name)), "revoked")
}
