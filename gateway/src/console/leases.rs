//! The lease map: who holds what, as a tree of paths, how long yet, and who waits for it.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use maud::{Markup, html};
use quorate_domain::Revision;
use quorate_domain::punchcard::{self, Blocked, ListBlocked, Mode, Punchcard, Status};
use quorate_domain::resource::{Resource, Scheme};
use serde_json::json;

use super::page::Page;
use super::parts::{ago, badge, form_key, left, link, more, nothing, segment, span};
use super::visit::{Act, Visit};
use crate::call::CallError;
use crate::tools::punchcards;

/// Cards on one page, and those who wait for any card.
const ROWS: u64 = 200;

/// `GET /console/leases`.
pub async fn show(visit: Visit) -> Response<Body> {
    let made = map_page(&visit).await;
    visit.show(made)
}

async fn map_page(visit: &Visit) -> Result<Page, CallError> {
    let query = punchcard::ListPunchcards {
        resource: None,
        holder_passport: visit.owned("holder"),
        tenant_id: None,
        status: Some(Status::Held),
        limit: ROWS,
        cursor: visit.owned("cursor"),
    };
    let held = visit.ask::<punchcards::ListPunchcards, _>(query).await?;
    let waiting = ListBlocked { resource: None, holder_passport: None, limit: ROWS, cursor: None };
    let waiting = visit.ask::<punchcards::ListPunchcards, _>(waiting).await?;
    let forest = Forest::of(&held.punchcards, &waiting.waiters);
    let body = html! {
        form.filter method="get" {
            label for="holder" { "Holder" }
            input #holder name="holder" value=[visit.text("holder")] maxlength="512" placeholder="anyone";
            button type="submit" { "Show" }
            @if visit.text("holder").is_some() { a href="/console/leases" { "Everyone" } }
        }
        div #leases data-live {
            p.quiet {
                (counted(held.punchcards.len(), "lease")) ", " (counted(waiting.waiters.len(), "waiter"))
                @if held.next_cursor.is_some() { ", and more leases than are shown here" }
            }
            @if held.punchcards.is_empty() && waiting.waiters.is_empty() { (nothing("Nobody holds anything.")) }
            @for (name, tree) in &forest.trees {
                @if !tree.is_empty() {
                    section aria-label=(name) { h2 { (name) } ul.tree { (branches(visit, tree, "")) } }
                }
            }
            @if waiting.next_cursor.is_some() { p.notice.warn { "More calls wait than are shown here." } }
            (more(visit, held.next_cursor.as_deref()))
        }
    };
    Ok(Page { title: "Leases".into(), kinds: &["punchcard."], body, ..Page::default() })
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

// ------------------------------------------------------------------ the tree

/// A place: what is held there, who waits for it, and the places in it.
#[derive(Default)]
struct Tree<'a> {
    /// Cards on this very place, and whether on all that is in it too.
    cards: Vec<(&'a Punchcard, bool)>,
    waiters: Vec<&'a Blocked>,
    inside: BTreeMap<String, Tree<'a>>,
}

impl<'a> Tree<'a> {
    fn is_empty(&self) -> bool {
        self.cards.is_empty() && self.waiters.is_empty() && self.inside.is_empty()
    }

    fn at(&mut self, segments: &[String]) -> &mut Tree<'a> {
        segments.iter().fold(self, |tree, segment| tree.inside.entry(segment.clone()).or_default())
    }
}

struct Forest<'a> {
    trees: [(&'static str, Tree<'a>); 3],
}

impl<'a> Forest<'a> {
    fn of(cards: &'a [Punchcard], waiters: &'a [Blocked]) -> Self {
        let mut forest =
            Self { trees: [("Files and folders", Tree::default()), ("Services", Tree::default()), ("Deployments", Tree::default())] };
        for card in cards {
            if let Some((tree, is_whole)) = forest.place(&card.resource) {
                tree.cards.push((card, is_whole));
            }
        }
        for waiter in waiters {
            if let Some((tree, _)) = forest.place(&waiter.resource) {
                tree.waiters.push(waiter);
                tree.waiters.sort_by_key(|waiter| waiter.since);
            }
        }
        forest
    }

    /// Stored resources are in their normal form, so each has a place.
    fn place(&mut self, resource: &str) -> Option<(&mut Tree<'a>, bool)> {
        let resource = Resource::parse(resource).ok()?;
        let number = match resource.scheme() {
            Scheme::File | Scheme::Tree => 0,
            Scheme::Service => 1,
            Scheme::Deploy => 2,
        };
        Some((self.trees[number].1.at(resource.segments()), resource.scheme() == Scheme::Tree))
    }
}

fn branches(visit: &Visit, tree: &Tree<'_>, path: &str) -> Markup {
    html! {
        @if path.is_empty() && !(tree.cards.is_empty() && tree.waiters.is_empty()) {
            li { span.name { "the whole repository" } (holders(visit, tree)) }
        }
        @for (name, below) in &tree.inside {
            @let (name, below) = chain(name, below);
            @let path = format!("{path}{name}/");
            li {
                span.name { (name) @if !below.inside.is_empty() || below.cards.iter().any(|(_, is_whole)| *is_whole) { "/" } }
                (holders(visit, below))
                @if !below.inside.is_empty() { ul { (branches(visit, below, &path)) } }
            }
        }
    }
}

/// Places with nothing but one other place in them are one line.
fn chain<'a, 'b>(name: &str, mut tree: &'b Tree<'a>) -> (String, &'b Tree<'a>) {
    let mut name = name.to_string();
    while tree.cards.is_empty() && tree.waiters.is_empty() && tree.inside.len() == 1 {
        let Some((next, below)) = tree.inside.iter().next() else { break };
        name = format!("{name}/{next}");
        tree = below;
    }
    (name, tree)
}

fn holders(visit: &Visit, tree: &Tree<'_>) -> Markup {
    html! {
        @for (card, is_whole) in &tree.cards {
            div.lease id=(card.id) {
                (badge(if card.mode == Mode::Deploy { "warn" } else { "info" }, if card.mode == Mode::Deploy { "deploy" } else { "held" }))
                b { (card.holder) }
                (left(card.expires_at))
                @if *is_whole { span.quiet { "and all that is in it" } }
                @if let Some(reason) = &card.reason { span.quiet.text { (reason) } }
                span.quiet { "token " (card.fencing_token) }
                @if may_release(visit) {
                    a.danger href=(link(&format!("/console/leases/{}/release", segment(&card.id)), &[("resource", &card.resource)])) {
                        "Take away" span.unseen { " " (card.resource) " from " (card.holder) }
                    }
                }
            }
        }
        @if !tree.waiters.is_empty() {
            ol.waiters aria-label="Waiting, first come first served" {
                @for waiter in &tree.waiters {
                    li id=(waiter.ticket) {
                        b { (waiter.holder) }
                        " waits " (span(waiter.left_ms)) " more" @if let Some(reason) = &waiter.reason { span.quiet { (reason) } }
                    }
                }
            }
        }
    }
}

// ------------------------------------------------------------------ taking away

fn may_release(visit: &Visit) -> bool {
    visit.may::<punchcards::ForceRelease>() && punchcard::ForceRelease::is_for(&visit.caller)
}

/// The card of an id, among those that are held on the resource that the address names.
async fn held(visit: &Visit, id: &str) -> Result<Option<Punchcard>, CallError> {
    let query = punchcard::ListPunchcards {
        resource: visit.owned("resource"),
        holder_passport: None,
        tenant_id: None,
        status: Some(Status::Held),
        limit: ROWS,
        cursor: None,
    };
    let page = visit.ask::<punchcards::ForceRelease, _>(query).await?;
    Ok(page.punchcards.into_iter().find(|card| card.id == id))
}

/// `GET /console/leases/{id}/release`: who loses what, and the reason that has to be given.
pub async fn ask_release(visit: Visit, Path(id): Path<String>) -> Response<Body> {
    let made = held(&visit, &id).await.map(|card| release_page(&visit, &id, card.as_ref()));
    visit.show(made)
}

fn release_page(visit: &Visit, id: &str, card: Option<&Punchcard>) -> Page {
    let body = html! {
        @if let Some(card) = card {
            article.card {
                dl.facts {
                    div { dt { "What" } dd { code { (card.resource) } } }
                    div { dt { "Holder" } dd { b { (card.holder) } } }
                    div { dt { "Held since" } dd { (ago(card.acquired_at)) ", " (left(card.expires_at)) } }
                    @if let Some(reason) = &card.reason { div { dt { "What for" } dd.text { (reason) } } }
                }
                p {
                    "The holder's writes under token " (card.fencing_token) " are refused from then on. "
                    "Whoever waits longest gets the lease."
                }
                form.decide method="post" action={ "/console/leases/" (segment(id)) "/release" } {
                    (form_key(visit))
                    label for="reason" { "Reason" span.quiet { " (kept in the receipt)" } }
                    textarea #reason name="reason" rows="2" maxlength="4096" required {}
                    div.buttons { button.bad type="submit" { "Take it away" } a.quiet href="/console/leases" { "Leave it" } }
                }
            }
        } @else {
            p.notice { "This lease is not held any more." }
            p { a.button href="/console/leases" { "Back to the leases" } }
        }
    };
    Page { title: "Take a lease away".into(), body, ..Page::default() }
}

/// `POST /console/leases/{id}/release`: by the tool that agents have.
pub async fn release(Path(id): Path<String>, act: Act) -> Response<Body> {
    let Act { visit, form } = act;
    let Some(reason) = form.note("reason") else {
        return visit.show(Err(CallError::arguments("no reason is given", "Say why, for whoever loses the lease.")));
    };
    let arguments = json!({ "punchcard_id": id, "confirm": true, "reason": reason });
    let done = visit.call::<punchcards::ForceRelease>(arguments, form.once("release")).await;
    visit.done(done.map(|answer| answer.revision.unwrap_or(Revision(0))), "/console/leases", "released")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(holder: &str, resource: &str, since: u64) -> Blocked {
        let (ticket, holder, resource) = (holder.to_string(), holder.to_string(), resource.to_string());
        let (since, behind) = (Revision(since), Vec::new());
        Blocked { ticket, holder, resource, mode: Mode::Modify, reason: None, since, left_ms: 1_000, behind, more_behind: false }
    }

    #[test]
    fn every_resource_has_its_place_and_lone_folders_share_a_line() {
        let waiters = [waiter("b", "file://src/net/a.rs", 2), waiter("a", "tree://src/net", 1), waiter("c", "service://billing", 3)];
        let forest = Forest::of(&[], &waiters);
        let [(_, files), (_, services), (_, deploys)] = &forest.trees;
        let (name, net) = chain("src", &files.inside["src"]);
        assert_eq!((name.as_str(), net.waiters.len(), net.inside.len()), ("src/net", 1, 1));
        assert_eq!(services.inside["billing"].waiters[0].holder, "c");
        assert!(deploys.is_empty());
    }
}
