//! `quorate work`: the team's board.

use clap::{Args, Subcommand};
use quorate_domain::work::DEFAULT_PROJECT;
use serde::Serialize;
use serde_json::{Value, json};

use super::page::{Column, at, cut, whole};
use super::{Ask, Page, Reading, Under, Watching, Writing};
use crate::door::{Answer, Gateway};
use crate::exit::Failure;

#[derive(Subcommand)]
pub enum Work {
    /// List items, newest first
    List(Watching<List>),
    /// Show one item with its comments
    Show(Watching<Show>),
    /// Put an item on the board
    Add(Writing<Add>),
    /// Move an item to another state
    Move(Writing<Move>),
    /// Take a planned item on, if nobody has done so
    Claim(Writing<Claim>),
    /// Say something of an item
    Comment(Writing<Comment>),
    /// Say that an item is complete
    Done(Writing<Done>),
    /// Have a passport's moves wait for a person, or not: an operator's act
    Gate(Writing<Gate>),
    /// List the projects that items belong to
    Projects(Reading<Projects>),
}

impl Work {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Work::List(verb) => verb.run().await,
            Work::Show(verb) => verb.run().await,
            Work::Add(verb) => verb.run().await,
            Work::Move(verb) => verb.run().await,
            Work::Claim(verb) => verb.run().await,
            Work::Comment(verb) => verb.run().await,
            Work::Done(verb) => verb.run().await,
            Work::Gate(verb) => verb.run().await,
            Work::Projects(verb) => verb.run().await,
        }
    }
}

const STATES: [&str; 6] = ["planned", "in_progress", "blocked", "archive", "complete", "deployed"];
/// Requests for approval are listed as a state of work.
const LISTED: [&str; 7] = ["planned", "in_progress", "blocked", "archive", "complete", "deployed", "pending_approval"];
const CHANGES: &[&str] = &["work.", "approval."];
/// The argument that says who moves an item.
const MOVER: &str = "by_passport";

#[derive(Args, Serialize)]
pub struct List {
    /// Items in this state
    #[arg(long, value_parser = LISTED)]
    state: Option<String>,
    /// Items of this project
    #[arg(long)]
    project_id: Option<String>,
    /// Items of this passport
    #[arg(long, value_name = "PASSPORT")]
    assignee_passport: Option<String>,
    /// Only what is planned and waits for nothing
    #[arg(long)]
    ready: bool,
    /// Rows of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for List {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("list_work", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const ITEMS: [Column; 4] =
            [whole("ITEM", "id"), whole("STATE", "state"), cut("DOES IT", "assignee_passport"), cut("TITLE", "title")];
        page.table(&ITEMS, &facts["work"], "there is no such work");
        facts["note"].as_str().into_iter().for_each(|note| page.line(note));
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Show {
    /// Id of the item
    work_id: String,
    /// Comments of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for Show {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("list_work", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const COMMENTS: [Column; 3] = [at("AT", "posted_at_unix_ms"), cut("BY", "author_passport"), cut("COMMENT", "body")];
        page.fields(&facts["work"][0]);
        page.line("");
        page.table(&COMMENTS, &facts["comments"], "nobody has said anything of it");
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Add {
    /// What it is, in a line
    title: String,
    /// The project that it belongs to
    #[arg(long, default_value = DEFAULT_PROJECT)]
    project_id: String,
    /// What is to be done
    #[arg(long)]
    body: Option<String>,
    /// Where it stands: planned unless it is given
    #[arg(long, value_parser = STATES)]
    state: Option<String>,
    /// Who does it: you unless it is given
    #[arg(long, value_name = "PASSPORT")]
    assignee_passport: Option<String>,
    /// A pull request that belongs to it
    #[arg(long, value_name = "LINK")]
    linked_pr: Option<String>,
    /// An issue that belongs to it
    #[arg(long, value_name = "LINK")]
    linked_issue: Option<String>,
    /// Why it is blocked, with --state blocked
    #[arg(long, value_name = "REASON")]
    blocker_reason: Option<String>,
    /// An item that has to be finished first; may be repeated
    #[arg(long, value_name = "WORK_ID")]
    depends_on: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Add {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write_as("created_by_passport", "create_work", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Move {
    /// Id of the item
    work_id: String,
    /// Where it goes
    #[arg(value_parser = STATES)]
    state: String,
    /// Why it can't go on, with blocked
    #[arg(long, value_name = "REASON", required_if_eq("state", "blocked"))]
    blocker_reason: Option<String>,
    /// What would let it go on, with blocked
    #[arg(long, value_parser = ["needs_info", "needs_approval"])]
    blocker_kind: Option<String>,
    /// Only if it still is in this state
    #[arg(long, value_parser = STATES)]
    expected_state: Option<String>,
    /// Who does it from now on
    #[arg(long, value_name = "PASSPORT")]
    assignee_passport: Option<String>,
    /// An item that has to be finished first, in place of those before; may be repeated
    #[arg(long, value_name = "WORK_ID")]
    depends_on: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Move {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write_as(MOVER, "update_work_state", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        moved(facts, page);
    }
}

/// The item where it is now, or what its move waits for.
fn moved(facts: &Value, page: &mut Page) {
    if facts["applied"] == false {
        page.line("not moved yet: it happens once somebody approves it (`quorate inbox`)");
        page.fields(&facts["queued"]);
    } else {
        page.fields(&facts["work"]);
    }
}

#[derive(Args, Serialize)]
pub struct Claim {
    /// Id of the item
    work_id: String,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Claim {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        let me = gateway.passport().await?;
        let asked = json!({ "work_id": self.work_id, "state": "in_progress", "expected_state": "planned", "assignee_passport": me,
            "by_passport": me, "fencing_token": self.under.fencing_token });
        gateway.write("update_work_state", &asked).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        moved(facts, page);
    }
}

#[derive(Args, Serialize)]
pub struct Done {
    /// Id of the item
    work_id: String,
    /// Only if it still is in this state
    #[arg(long, value_parser = STATES)]
    expected_state: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Done {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        let asked = json!({ "work_id": self.work_id, "state": "complete", "expected_state": self.expected_state,
            "fencing_token": self.under.fencing_token });
        gateway.write_as(MOVER, "update_work_state", &asked).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        moved(facts, page);
    }
}

#[derive(Args, Serialize)]
pub struct Comment {
    /// Id of the item
    work_id: String,
    /// What you have to say
    body: String,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Comment {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write_as("author_passport", "comment_on_work", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args)]
pub struct Gate {
    /// Whose moves
    passport: String,
    /// Whether they wait
    #[arg(value_parser = ["on", "off"])]
    gate: String,
}

impl Ask for Gate {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        let asked = json!({ "agent_work_gate": self.gate == "on" });
        gateway.put(&["v1", "passports", &self.passport, "work-gate"], &asked).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        let waits = if facts["agent_work_gate"] == true { "wait for a person (`quorate inbox`)" } else { "are made at once" };
        page.line(&format!("moves of work by {} {waits}", self.passport));
    }
}

#[derive(Args, Serialize)]
pub struct Projects {
    /// Rows of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for Projects {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("list_projects", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const PROJECTS: [Column; 4] =
            [whole("PROJECT", "id"), at("SINCE", "created_at_unix_ms"), cut("DOES ITS WORK", "default_passport_id"), cut("NAME", "name")];
        page.table(&PROJECTS, &facts["projects"], "there is no project");
        page.more(facts);
    }
}
