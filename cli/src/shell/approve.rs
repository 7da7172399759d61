//! `quorate approve`: what waits for a person's decision, what became of it, and the decision itself.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::page::{Column, cut, left, whole};
use super::{Ask, Page, Under, Watching, Writing};
use crate::door::{Answer, Gateway};
use crate::exit::Failure;

#[derive(Subcommand)]
pub enum Approve {
    /// List approvals that wait, or all
    List(Watching<List>),
    /// Show one approval and what became of it
    Show(Watching<Show>),
    /// Decide one
    Decide(Writing<Decide>),
}

impl Approve {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Approve::List(verb) => verb.run().await,
            Approve::Show(verb) => verb.run().await,
            Approve::Decide(verb) => verb.run().await,
        }
    }
}

const CHANGES: &[&str] = &["approval."];
/// Ids stay whole on the narrowest terminal, since they are what a decision needs.
const DECIDED: [Column; 5] = [
    whole("REQUEST", "request_id"),
    whole("STATUS", "status"),
    whole("RISK", "risk_tier"),
    cut("BY", "requested_by"),
    cut("ACTION", "action_summary"),
];
pub const WAITING: [Column; 5] = [
    whole("REQUEST", "request_id"),
    whole("RISK", "risk_tier"),
    left("LEFT", "expires_at"),
    cut("BY", "requested_by"),
    cut("ACTION", "action_summary"),
];

#[derive(Args)]
pub struct List {
    /// Decided and expired ones as well
    #[arg(long)]
    all: bool,
    /// Approvals of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for List {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        let status = if self.all { "all" } else { "pending" };
        gateway.get(&["v1", "approvals"], &json!({ "status": status, "limit": self.limit, "cursor": self.cursor })).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.table(if self.all { &DECIDED } else { &WAITING }, &facts["approvals"], "nothing waits");
        page.more(facts);
    }
}

#[derive(Args)]
pub struct Show {
    /// Id of the request
    request_id: String,
}

impl Ask for Show {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.get(&["v1", "approvals", &self.request_id], &json!({})).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Decide {
    /// Id of the request
    request_id: String,
    /// What you decide
    #[arg(value_parser = ["approve", "reject"])]
    decision: String,
    /// Why, for who asked; kept in the receipt
    #[arg(long, visible_alias = "notes", value_name = "WHY")]
    reviewer_notes: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Decide {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write("approval_decide", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}
