//! `quorate fact`: what the team knows.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::page::{Column, at, cut, whole};
use super::{Ask, Page, Under, Watching, Writing};
use crate::door::{Answer, Gateway};
use crate::exit::{FAILED, Failure};

#[derive(Subcommand)]
pub enum Fact {
    /// Show what is known about an entity, or one fact of it
    Get(Watching<Get>),
    /// List facts, best first
    List(Watching<List>),
    /// List the entities that something is known about
    Entities(Watching<Entities>),
    /// Find facts by words
    Search(Watching<Search>),
    /// Store a fact, as a new version of the one before
    Set(Writing<Set>),
    /// Show every version of a fact, oldest first
    History(Watching<History>),
    /// Take back one version of a fact
    Delete(Writing<Delete>),
    /// Forget the facts of a scope; see first which with --dry-run
    Forget(Writing<Forget>),
    /// Bring back what a `forget` took, while its recovery window is open
    ForgetUndo(Writing<ForgetUndo>),
    /// Pin a fact for yourself: it outlives decay and `forget`
    Pin(Writing<Pin<true>>),
    /// Take your pin away
    Unpin(Writing<Pin<false>>),
}

impl Fact {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Fact::Get(verb) => verb.run().await,
            Fact::List(verb) => verb.run().await,
            Fact::Entities(verb) => verb.run().await,
            Fact::Search(verb) => verb.run().await,
            Fact::Set(verb) => verb.run().await,
            Fact::History(verb) => verb.run().await,
            Fact::Delete(verb) => verb.run().await,
            Fact::Forget(verb) => verb.run().await,
            Fact::ForgetUndo(verb) => verb.run().await,
            Fact::Pin(verb) => verb.run().await,
            Fact::Unpin(verb) => verb.run().await,
        }
    }
}

const CHANGES: &[&str] = &["fact.", "facts."];
const NONE: &str = "no such fact is known";
const ROWS: [Column; 7] = [
    cut("ENTITY", "entity"),
    cut("KEY", "key"),
    whole("VERSION", "version"),
    whole("SURE", "effective_confidence"),
    whole("FRESH", "freshness"),
    cut("BY", "actor"),
    cut("VALUE", "value"),
];

#[derive(Args, Serialize)]
pub struct Get {
    /// What it is about, such as svc:api
    entity: String,
    /// Which property of it, such as owner; without it, all of them
    key: Option<String>,
    /// As it was at this instant, such as 2026-11-30T12:00:00Z
    #[arg(long, value_name = "INSTANT")]
    as_of: Option<String>,
    /// Retired facts as well
    #[arg(long)]
    include_superseded: bool,
    /// How many in all
    #[arg(long)]
    top_k: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for Get {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("query_facts", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        match (&self.key, facts["rows"].as_array().map(Vec::as_slice)) {
            // One fact is read, not looked through.
            (Some(_), Some([fact])) => page.fields(fact),
            _ => page.table(&ROWS, &facts["rows"], NONE),
        }
        page.more(facts);
    }

    fn judge(&self, facts: &Value) -> Result<(), Failure> {
        let has_none = facts["rows"].as_array().is_none_or(Vec::is_empty);
        if self.key.is_some() && has_none { Err(Failure::new(FAILED, "")) } else { Ok(()) }
    }
}

#[derive(Args, Serialize)]
pub struct List {
    /// Entities that begin so, such as svc:
    entity_prefix: Option<String>,
    /// Which property, such as owner
    #[arg(long)]
    key: Option<String>,
    /// As it was at this instant, such as 2026-11-30T12:00:00Z
    #[arg(long, value_name = "INSTANT")]
    as_of: Option<String>,
    /// Retired facts as well
    #[arg(long)]
    include_superseded: bool,
    /// Leave out facts that are less sure, from 0 to 1
    #[arg(long, value_name = "NUMBER")]
    min_effective_confidence: Option<f64>,
    /// How many in all: 10 unless it is given
    #[arg(long)]
    top_k: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for List {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("query_facts", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.table(&ROWS, &facts["rows"], NONE);
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Search {
    /// Words that are looked for in values, keys and entities
    #[arg(required = true)]
    #[serde(serialize_with = "super::joined")]
    query: Vec<String>,
    /// Entities that begin so, such as svc:
    #[arg(long)]
    entity_prefix: Option<String>,
    /// How many in all: 10 unless it is given
    #[arg(long)]
    top_k: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for Search {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("query_facts", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.table(&ROWS, &facts["rows"], NONE);
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Entities {
    /// Those that begin so, such as svc:
    entity_prefix: Option<String>,
    /// Rows of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for Entities {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("list_entities", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.list(&facts["entities"], "nothing is known");
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Set {
    /// What it is about, such as svc:api
    entity: String,
    /// Which property of it, such as owner
    key: String,
    /// The statement itself, at most 16 KiB
    value: String,
    /// How sure you are, from 0 to 1
    #[arg(long, value_name = "NUMBER")]
    confidence: Option<f64>,
    /// Keep it to yourself
    #[arg(long)]
    private: bool,
    /// How fast it goes stale
    #[arg(long, value_parser = ["volatile", "medium", "stable", "none"])]
    horizon_class: Option<String>,
    /// Id of a fact that it replaces besides; may be repeated
    #[arg(long, value_name = "FACT_ID")]
    supersedes: Vec<String>,
    /// Id of the receipt that it was learnt from
    #[arg(long, value_name = "RECEIPT_ID")]
    source_receipt: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Set {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write("store_fact", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct History {
    /// What it is about, such as svc:api
    entity: String,
    /// Which property of it, such as owner
    key: String,
    /// Versions of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for History {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("fact_history", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const VERSIONS: [Column; 5] =
            [whole("VERSION", "version"), at("STORED", "stored_at"), cut("BY", "actor"), whole("STATE", "state"), cut("VALUE", "value")];
        let mut versions = facts["versions"].clone();
        for version in versions.as_array_mut().into_iter().flatten() {
            let is = |name: &str| version[name].is_string() || version[name] == true;
            let state = match (is("forgotten_by"), is("deleted"), is("superseded_by")) {
                (true, _, _) => "forgotten",
                (_, true, _) => "deleted",
                (_, _, true) => "superseded",
                _ => "active",
            };
            version["state"] = state.into();
        }
        page.table(&VERSIONS, &versions, NONE);
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Delete {
    /// Id of the version
    fact_id: String,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Delete {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write("delete_fact", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Forget {
    /// What the scope goes by
    #[arg(value_parser = ["entity_prefix", "key_glob", "passport_id", "before_timestamp", "tenant_id"])]
    #[serde(skip)]
    scope_type: String,
    /// Its value: how entities begin, keys with `*` for any text, your passport, an instant, or your tenant
    #[serde(skip)]
    scope: String,
    /// Why; it stands in the receipt, so leave out what is to be forgotten
    #[arg(long, required_unless_present = "dry_run")]
    #[serde(skip)]
    reason: Option<String>,
    /// Only list what would be forgotten
    #[arg(long)]
    #[serde(skip)]
    dry_run: bool,
    /// Tokens (4 bytes each) of facts that may be touched, oldest first
    #[arg(long)]
    token_budget: Option<u64>,
    /// `next_cursor` of the call before, for a scope that is larger than one call
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    under: Under,
}

impl Ask for Forget {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        let scope = json!({ "type": self.scope_type, "value": self.scope });
        let Self { reason, token_budget, cursor, under, .. } = self;
        match self.dry_run {
            true => {
                let asked = json!({ "scope": scope, "token_budget": token_budget, "cursor": cursor });
                gateway.call("memory_forget_dry_run", &asked).await
            }
            false => {
                let asked = json!({ "scope": scope, "reason": reason, "token_budget": token_budget, "cursor": cursor,
                    "fencing_token": under.fencing_token });
                gateway.write("memory_forget", &asked).await
            }
        }
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const AFFECTED: [Column; 3] = [cut("ENTITY", "entity"), cut("KEY", "key"), at("STORED", "stored_at")];
        if self.dry_run {
            page.table(&AFFECTED, &facts["facts_that_would_be_affected"], "nothing would be forgotten");
            page.line(&format!("{} versions would be forgotten; nothing was", facts["count"]));
        } else {
            page.fields(facts);
        }
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct ForgetUndo {
    /// `forget_receipt_id` of that `forget`
    forget_receipt_id: String,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for ForgetUndo {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write("memory_forget_undo", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Pin<const PINNED: bool> {
    /// Id of a version of the fact
    fact_id: String,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl<const PINNED: bool> Ask for Pin<PINNED> {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        let asked = json!({ "fact_id": self.fact_id, "pinned": PINNED, "fencing_token": self.under.fencing_token });
        gateway.write("memory_pin", &asked).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}
