//! The front door: terminates MCP and HTTP, says who is calling, checks arguments, and forwards to the nodes over gRPC.
//!
//! A gateway keeps nothing that another one needs: run as many as you like, and kill any of them. HTTP and MCP are known here
//! and nowhere else. This crate must not know the log, storage or openraft, and holds no rule: whatever decides something
//! about facts, cards or approvals stands in `quorate-domain`, so that every path meets the same one.
//!
//! Reading order: [`config`], [`server`] and [`connection`] (what runs), [`registry`] and [`schema`] (what a tool is), [`tools`] (the tools),
//! [`mcp`], [`http`], [`rest`], [`cards`], [`approvals`], [`projects`], [`kinds`], [`budgets`] and [`proofs`] (how they are called), [`call`] (what goes wrong,
//! and what the caller reads), [`cluster`] (how a call reaches the leader), [`events`], [`sse`] and `notices` (what a change sets off),
//! [`auth`] and [`session`] (who is calling), [`keys`] (who signs), [`hook`] (the edit guard), `console` (the pages for people),
//! [`scans`], [`plans`], [`github`] and [`sync`] (connectors to what lies outside), [`routes`] and [`egress`] (what is let in and out), [`surface`] and
//! [`profile`] (what is listed), [`update`], [`docs`], [`metrics`].

pub mod approvals;
pub mod auth;
pub mod budgets;
mod c2pa;
pub mod call;
pub mod cards;
pub mod cluster;
pub mod config;
mod conformance;
pub mod connection;
mod console;
pub mod docs;
pub mod edge;
pub mod egress;
pub mod events;
mod git;
pub mod github;
pub mod hook;
pub mod http;
pub mod ingest;
mod json;
pub mod keys;
pub mod kinds;
mod lease;
pub mod limit;
pub mod mcp;
pub mod metrics;
mod notices;
pub mod outbox;
pub mod plans;
pub mod profile;
pub mod projects;
pub mod proofs;
pub mod rates;
pub mod registry;
pub mod rest;
pub mod routes;
pub mod scans;
pub mod schema;
pub mod server;
pub mod session;
mod sign_in;
pub mod sse;
pub mod surface;
pub mod sync;
pub mod tools;
pub mod traces;
pub mod update;
pub mod usage;
mod wait;

pub use config::{Config, ConfigError};
pub use docs::docs;
pub use notices::signature;
pub use server::{Gateway, ServeError, serve};
