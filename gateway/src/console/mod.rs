//! The console: what waits for a person and what the team is at, as pages in a browser, at `/console`.
//!
//! Pages are made here, whole, for every request; the one script of it only brings fresh parts of the same page when the event
//! stream tells of a change, and counts deadlines down. So all of it works without the script too.
//!
//! * Whoever looks is somebody: a passport, signed in with its token ([`door`]). What it sees and does goes through the same
//!   queries, commands and scopes as its tool calls ([`visit`]); there is no rule here.
//! * Reads go to followers and may be a moment old ([`visit`]); after one's own act, and after a change that the stream told of,
//!   they are at least as new as that.
//! * Whatever somebody typed is text. [`maud`] escapes it, and `PreEscaped` is used in one place, for the product's own icon.
//! * Nothing comes from elsewhere, and nothing runs that is not a file of ours ([`door::harden`]).
//!
//! Reading order: [`door`], [`visit`], [`page`] and [`parts`] (what all pages share), then one module per page.

mod approvals;
mod assets;
mod cluster;
mod door;
mod facts;
mod leases;
mod page;
mod parts;
mod passports;
mod receipts;
mod search;
mod sessions;
mod visit;
mod work;

pub use door::harden;
pub use page::bare;

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{get, post};

use crate::events;
use crate::registry::Tool;
use crate::routes::{Access, Routes};
use crate::server::App;
use crate::tools;

/// All addresses of the console, with who may see them.
pub fn routes() -> Routes<Arc<App>> {
    use Access::{Open, SignIn};
    use tools::punchcards::{ForceRelease, ListPunchcards};
    const APPROVALS: Access = SignIn(&tools::approvals::LISTING);
    const WORK: Access = SignIn(&[tools::work::ListWork::SCOPE]);
    const RECEIPTS: Access = SignIn(&[tools::receipts::SCOPE]);
    const ADMIN: Access = SignIn(&["admin"]);
    Routes::empty()
        .route("/console", APPROVALS, get(approvals::needs_me))
        .route("/console/approvals", APPROVALS, get(approvals::all))
        .route("/console/approvals/{id}", APPROVALS, get(approvals::one).post(approvals::decide))
        .route("/console/sessions", SignIn(&[tools::work::CoordStatus::SCOPE]), get(sessions::show))
        .route("/console/leases", SignIn(&[ListPunchcards::SCOPE]), get(leases::show))
        .route("/console/leases/{id}/release", SignIn(&[ForceRelease::SCOPE]), get(leases::ask_release).post(leases::release))
        .route("/console/work", WORK, get(work::board))
        .route("/console/work/{id}", WORK, get(work::one))
        .route("/console/facts", SignIn(&[tools::facts::QueryFacts::SCOPE]), get(facts::find))
        .route("/console/facts/history", SignIn(&[tools::facts::FactHistory::SCOPE]), get(facts::history))
        .route("/console/receipts", RECEIPTS, get(receipts::list))
        .route("/console/receipts/{id}", RECEIPTS, get(receipts::one))
        .route("/console/passports", ADMIN, get(passports::list))
        .route("/console/passports/{name}", ADMIN, get(passports::one))
        .route("/console/passports/{name}/tokens", ADMIN, post(passports::revoke_token))
        .route("/console/cluster", ADMIN, get(cluster::show))
        .route("/console/search", SignIn(&[]), get(search::show))
        .route("/console/stream", SignIn(&[events::SCOPE]), get(visit::stream))
        .route("/console/sign-in", Open, get(door::ask).post(door::sign_in))
        .route("/console/sign-out", Open, post(door::sign_out))
        .route("/console/assets/{file}", Open, get(assets::serve))
}

/// The same with what browsers are told not to do.
pub fn router() -> Router<Arc<App>> {
    routes().router.layer(middleware::from_fn(door::hardened))
}
