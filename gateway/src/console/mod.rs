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

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{get, post};

use crate::server::App;

/// All addresses of the console.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console", get(approvals::needs_me))
        .route("/console/approvals", get(approvals::all))
        .route("/console/approvals/{id}", get(approvals::one).post(approvals::decide))
        .route("/console/sessions", get(sessions::show))
        .route("/console/leases", get(leases::show))
        .route("/console/leases/{id}/release", get(leases::ask_release).post(leases::release))
        .route("/console/work", get(work::board))
        .route("/console/work/{id}", get(work::one))
        .route("/console/facts", get(facts::find))
        .route("/console/facts/history", get(facts::history))
        .route("/console/receipts", get(receipts::list))
        .route("/console/receipts/{id}", get(receipts::one))
        .route("/console/passports", get(passports::list))
        .route("/console/passports/{name}", get(passports::one))
        .route("/console/passports/{name}/tokens", post(passports::revoke_token))
        .route("/console/cluster", get(cluster::show))
        .route("/console/search", get(search::show))
        .route("/console/stream", get(visit::stream))
        .route("/console/sign-in", get(door::ask).post(door::sign_in))
        .route("/console/sign-out", post(door::sign_out))
        .route("/console/assets/{file}", get(assets::serve))
        .layer(middleware::from_fn(door::harden))
}
