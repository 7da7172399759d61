//! `quorate approve`: what waits for a person's decision, what became of it, and the decision itself.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::output;
use crate::tool::{self, Door};

#[derive(Subcommand)]
pub enum Approve {
    /// List approvals that wait, or all
    List(List),
    /// Show one approval and what became of it
    Show(Show),
    /// Decide one
    Decide(Decide),
}

#[derive(Args)]
pub struct List {
    /// Decided and expired ones as well
    #[arg(long)]
    all: bool,
    /// Approvals of this page
    #[arg(long, default_value_t = 50)]
    limit: u64,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    door: Door,
}

#[derive(Args)]
pub struct Show {
    /// Id of the request
    request_id: String,
    #[command(flatten)]
    door: Door,
}

#[derive(Args)]
pub struct Decide {
    /// Id of the request
    request_id: String,
    /// What you decide
    decision: Decision,
    /// Why, for who asked
    #[arg(long)]
    notes: Option<String>,
    #[command(flatten)]
    door: Door,
}

#[derive(Clone, Copy, ValueEnum)]
enum Decision {
    Approve,
    Reject,
}

/// Pages that `show` looks through; each has a thousand.
const PAGES_MAX: usize = 20;

impl Approve {
    pub fn json(&self) -> bool {
        match self {
            Approve::List(verb) => verb.door.json,
            Approve::Show(verb) => verb.door.json,
            Approve::Decide(verb) => verb.door.json,
        }
    }

    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Approve::List(verb) => verb.run().await,
            Approve::Show(verb) => verb.run().await,
            Approve::Decide(verb) => verb.run().await,
        }
    }
}

async fn page(door: &Door, all: bool, limit: u64, cursor: Option<String>) -> Result<Value, Failure> {
    let mut query = vec![("status", if all { "all" } else { "pending" }.to_string()), ("limit", limit.to_string())];
    query.extend(cursor.map(|cursor| ("cursor", cursor)));
    tool::fetch(door, "/v1/approvals", &query).await
}

fn text<'a>(approval: &'a Value, name: &str) -> &'a str {
    approval[name].as_str().unwrap_or("-")
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let found = page(&self.door, self.all, self.limit, self.cursor).await?;
        let approvals = found["approvals"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut table = format!("{:<40} {:<10} {:<8} {:<16} {}\n", "REQUEST", "STATUS", "RISK", "BY", "ACTION");
        for approval in approvals {
            let [id, status, risk, by, action] =
                ["request_id", "status", "risk_tier", "requested_by", "action_summary"].map(|name| text(approval, name));
            table += &format!("{id:<40} {status:<10} {risk:<8} {by:<16} {}\n", action.lines().next().unwrap_or_default());
        }
        if let Some(cursor) = found["next_cursor"].as_str() {
            table += &format!("more: --cursor {cursor}\n");
        }
        output::print(self.door.json, &found, if approvals.is_empty() { "nothing waits" } else { &table });
        Ok(())
    }
}

impl Show {
    async fn run(self) -> Result<(), Failure> {
        let mut cursor = None;
        for _ in 0..PAGES_MAX {
            let found = page(&self.door, true, 1_000, cursor).await?;
            let approvals = found["approvals"].as_array().map(Vec::as_slice).unwrap_or_default();
            if let Some(approval) = approvals.iter().find(|approval| approval["request_id"] == self.request_id.as_str()) {
                output::print(self.door.json, approval, &fields(approval));
                return Ok(());
            }
            cursor = found["next_cursor"].as_str().map(String::from);
            if cursor.is_none() {
                return Err(Failure::failed(format!("there is no approval `{}` that you can see", self.request_id)));
            }
        }
        Err(Failure::failed(format!("`{}` is not among the newest {} approvals", self.request_id, PAGES_MAX * 1_000)))
    }
}

/// One line a field, without those that are not set.
fn fields(approval: &Value) -> String {
    let fields = approval.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| format!("{name:<16} {}\n", value.as_str().map_or_else(|| value.to_string(), str::to_string))).collect()
}

impl Decide {
    async fn run(self) -> Result<(), Failure> {
        let decision = match self.decision {
            Decision::Approve => "approve",
            Decision::Reject => "reject",
        };
        let mut arguments = Map::from_iter([("request_id".into(), json!(self.request_id)), ("decision".into(), json!(decision))]);
        arguments.extend(self.notes.map(|notes| ("reviewer_notes".to_string(), json!(notes))));
        let decided = tool::call(&self.door, "crux", "approval_decide", &arguments).await?;
        output::print(self.door.json, &decided, &fields(&decided));
        Ok(())
    }
}
