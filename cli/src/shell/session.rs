//! `quorate session`: the working states that you saved, and who is at work now.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::page::{Column, at, cut, left, whole};
use super::{Ask, Page, Watching};
use crate::door::{Answer, Gateway};
use crate::exit::Failure;

#[derive(Subcommand)]
pub enum Session {
    /// List the names of the sessions that you saved
    List(Watching<List>),
    /// Show what you saved under a name
    Show(Watching<Show>),
    /// Show who of the team is at work, on what
    Live(Watching<Live>),
}

impl Session {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Session::List(verb) => verb.run().await,
            Session::Show(verb) => verb.run().await,
            Session::Live(verb) => verb.run().await,
        }
    }
}

#[derive(Args, Serialize)]
pub struct List {
    /// Archived ones as well
    #[arg(long)]
    include_archived: bool,
    /// Names of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for List {
    const KINDS: &'static [&'static str] = &["session."];

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("list_sessions", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.list(&facts["sessions"], "you have saved no session");
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Show {
    /// The name that it was saved under
    session_id: String,
}

impl Ask for Show {
    const KINDS: &'static [&'static str] = &["session."];

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("get_session", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        let mut about = facts.clone();
        let state = about["state"].take();
        page.fields(&about);
        page.line("");
        page.fields(&state);
    }
}

#[derive(Args, Serialize)]
pub struct Live {
    /// Sessions of this project
    #[arg(long)]
    project_id: Option<String>,
    /// Who waits for a lease, as well
    #[arg(long)]
    waiting: bool,
    /// Rows of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for Live {
    const KINDS: &'static [&'static str] = &["session.", "punchcard.", "work."];

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("coord_status", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const SESSIONS: [Column; 6] = [
            cut("WHO", "passport_id"),
            whole("PROJECT", "project_id"),
            at("SEEN", "last_seen_at_unix_ms"),
            left("LIVE FOR", "active_until_unix_ms"),
            cut("HOLDS", "holds"),
            cut("DOES", "does"),
        ];
        const WORK: [Column; 3] = [whole("ITEM", "id"), cut("DOES IT", "assignee_passport"), cut("TITLE", "title")];
        const WAITING: [Column; 3] = [cut("WAITS", "holder_passport"), cut("RESOURCE", "resource"), cut("FOR", "waits_for")];
        let mut sessions = facts["active_sessions"].clone();
        for session in sessions.as_array_mut().into_iter().flatten() {
            let resources = |leases: &Value| leases.as_array().into_iter().flatten().map(|lease| lease["resource"].clone()).collect();
            session["holds"] = Value::Array(resources(&session["leases"]));
            let intent = &session["intent"];
            let told = ["note", "execplan_slug", "milestone", "deploy_target"].map(|name| intent[name].as_str());
            session["does"] = told.into_iter().flatten().collect::<Vec<_>>().join("; ").into();
        }
        page.table(&SESSIONS, &sessions, if self.cursor.is_some() { "no more sessions are live" } else { "no session is live" });
        if facts["work_in_flight"].as_array().is_some_and(|work| !work.is_empty()) {
            page.line("");
            page.table(&WORK, &facts["work_in_flight"], "");
        }
        if self.waiting {
            page.line("");
            page.table(&WAITING, &facts["waiting"], "nobody waits");
        }
        facts["note"].as_str().into_iter().for_each(|note| page.line(note));
        page.more(facts);
    }
}
