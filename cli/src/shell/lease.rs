//! `quorate lease`: who holds what. The tools call a lease a punchcard.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::page::{Column, at, cut, left, span, whole};
use super::{Ask, Page, Reading, Under, Watching, Writing};
use crate::door::{Answer, Gateway};
use crate::exit::Failure;

#[derive(Subcommand)]
pub enum Lease {
    /// List who holds what
    List(Watching<List>),
    /// Say whether you may change a resource now
    Show(Watching<Show>),
    /// Take a resource, or hold it longer; --wait-ms queues for it
    Take(Writing<Take>),
    /// Hold leases longer: those that are named, or all of yours
    Renew(Writing<Renew>),
    /// Give a resource back, or to somebody
    #[command(visible_alias = "release")]
    GiveBack(Writing<GiveBack>),
    /// Take a lease from a holder that is gone or stuck: an operator's act
    ForceRelease(Writing<ForceRelease>),
    /// List who waits, and for whom
    Waiters(Watching<Waiters>),
    /// Say whether a fencing token is that of a live lease
    Verify(Reading<Verify>),
}

impl Lease {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Lease::List(verb) => verb.run().await,
            Lease::Show(verb) => verb.run().await,
            Lease::Take(verb) => verb.run().await,
            Lease::Renew(verb) => verb.run().await,
            Lease::GiveBack(verb) => verb.run().await,
            Lease::ForceRelease(verb) => verb.run().await,
            Lease::Waiters(verb) => verb.run().await,
            Lease::Verify(verb) => verb.run().await,
        }
    }
}

const CHANGES: &[&str] = &["punchcard."];
const HELD: &str = "nobody holds it";
/// The argument that says whose lease it is.
const HOLDER: &str = "holder_passport";

#[derive(Args, Serialize)]
pub struct List {
    /// Leases of this resource, such as file://src/lib.rs
    resource: Option<String>,
    /// Leases of this passport
    #[arg(long, value_name = "PASSPORT")]
    holder_passport: Option<String>,
    /// Leases in this state: those that are held, unless it or --all is given
    #[arg(long, value_parser = ["held", "released", "expired", "force_released"], conflicts_with = "all")]
    status: Option<String>,
    /// Those that were, too
    #[arg(long)]
    #[serde(skip)]
    all: bool,
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
        let Self { resource, holder_passport, status, all, limit, cursor } = self;
        let status = status.as_deref().or((!all).then_some("held"));
        let asked = json!({ "resource": resource, "holder_passport": holder_passport, "status": status, "limit": limit, "cursor": cursor });
        gateway.call("list_punchcards", &asked).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const HELD_NOW: [Column; 5] = [
            cut("RESOURCE", "resource"),
            cut("HOLDER", "holder_passport"),
            left("LEFT", "expires_at_unix_ms"),
            whole("TOKEN", "fencing_token"),
            cut("REASON", "reason"),
        ];
        const EVER: [Column; 6] = [
            cut("RESOURCE", "resource"),
            cut("HOLDER", "holder_passport"),
            whole("STATUS", "status"),
            at("TAKEN", "acquired_at_unix_ms"),
            whole("TOKEN", "fencing_token"),
            cut("REASON", "reason"),
        ];
        let cards = facts["punchcards"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_now = !self.all && self.status.as_deref().is_none_or(|status| status == "held");
        match (is_now, &self.resource, cards) {
            // One lease is read, not looked through.
            (true, Some(_), [card]) => page.fields(card),
            (true, _, _) => page.table(&HELD_NOW, &facts["punchcards"], "nobody holds anything"),
            (false, _, _) => page.table(&EVER, &facts["punchcards"], "there are none"),
        }
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Show {
    /// What you mean to change: file://, tree://, service:// or deploy://
    resource: String,
    /// The passport that asks: yours unless it is given
    #[arg(long)]
    passport: Option<String>,
    /// Take a quicker answer that may be so old, in milliseconds
    #[arg(long, value_name = "MS")]
    max_staleness_ms: Option<u64>,
}

impl Ask for Show {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("check_punchcard", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        let advice = match (facts["held_by_other"].as_bool(), facts["enforce"].as_bool()) {
            (Some(true), Some(true)) => "leave it alone: another holds it",
            (Some(true), _) => "another holds it, which does not forbid the change",
            _ if facts["holder_passport"].is_null() => HELD,
            _ => "it is yours",
        };
        page.line(advice);
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Take {
    /// What to hold: file://src/lib.rs, tree://docs, service://billing or deploy://prod
    resource: String,
    /// Your own passport, which is found out unless it is given
    #[arg(long, value_name = "PASSPORT")]
    holder_passport: Option<String>,
    /// What you mean to do
    #[arg(long, value_parser = ["modify", "deploy"])]
    mode: Option<String>,
    /// What you are doing, for those who wait
    #[arg(long)]
    reason: Option<String>,
    /// How long it lasts unless you renew it, in milliseconds: half an hour unless it is given
    #[arg(long, value_name = "MS")]
    ttl_ms: Option<u64>,
    /// How long to queue when another holds it, in milliseconds, ten minutes at the most
    #[arg(long, value_name = "MS")]
    wait_ms: Option<u64>,
    /// How long it stays closed to others after you lose it, in milliseconds
    #[arg(long, value_name = "MS")]
    lock_delay_ms: Option<u64>,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for Take {
    /// Whoever interrupts it gives its place in the queue up; and taking again what is held is a renewal.
    const KEYED: bool = false;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write_as(HOLDER, "punch_in", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Renew {
    /// What you hold; without any, all that you hold
    resources: Vec<String>,
    /// How long they last from now, in milliseconds: as long as before unless it is given
    #[arg(long, value_name = "MS")]
    ttl_ms: Option<u64>,
    /// Your own passport, which is known unless it is given
    #[arg(long, value_name = "PASSPORT")]
    holder_passport: Option<String>,
}

impl Ask for Renew {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.post(&["v1", "punchcards", "renew"], self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const RENEWED: [Column; 4] =
            [cut("RESOURCE", "resource"), left("LEFT", "expires_at_unix_ms"), whole("TOKEN", "fencing_token"), whole("LEASE", "id")];
        page.table(&RENEWED, &facts["renewed"], "nothing was renewed");
    }

    fn judge(&self, facts: &Value) -> Result<(), Failure> {
        let lost: Vec<&str> = facts["not_held"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match lost.is_empty() {
            true => Ok(()),
            false => Err(Failure::failed(format!("you do not hold {}; take it again with `quorate lease take`", lost.join(", ")))),
        }
    }
}

#[derive(Args, Serialize)]
pub struct GiveBack {
    /// What you hold
    resource: String,
    /// Your own passport, which is found out unless it is given
    #[arg(long, value_name = "PASSPORT")]
    holder_passport: Option<String>,
    /// The commit that holds your change
    #[arg(long, value_name = "SHA")]
    release_commit_sha: Option<String>,
    /// The passport that gets it, past those who wait
    #[arg(long, value_name = "PASSPORT")]
    transfer_to: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for GiveBack {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write_as(HOLDER, "punch_out", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct ForceRelease {
    /// Id of the lease, as `quorate lease list RESOURCE` shows it
    punchcard_id: String,
    /// Why; kept in the receipt
    #[arg(long)]
    reason: String,
    /// That you mean it: what its holder still sends under the lease is refused from then on
    #[arg(long, required = true)]
    confirm: bool,
    #[command(flatten)]
    #[serde(flatten)]
    under: Under,
}

impl Ask for ForceRelease {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.write("force_release", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Waiters {
    /// Who waits for this resource
    resource: Option<String>,
    /// What this passport waits for
    #[arg(long, value_name = "PASSPORT")]
    holder_passport: Option<String>,
    /// Rows of this page
    #[arg(long)]
    limit: Option<u64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for Waiters {
    const KINDS: &'static [&'static str] = CHANGES;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.get(&["v1", "punchcards", "waiters"], self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const WAITING: [Column; 5] = [
            cut("RESOURCE", "resource"),
            cut("WAITS", "holder_passport"),
            span("UP TO", "left_ms"),
            cut("FOR", "for"),
            cut("REASON", "reason"),
        ];
        let mut rows = facts["waiters"].clone();
        for row in rows.as_array_mut().into_iter().flatten() {
            let behind = row["waits_for"].as_array().map(Vec::as_slice).unwrap_or_default();
            let named: Vec<&str> = behind.iter().filter_map(|wait| wait["passport"].as_str()).collect();
            let more = if row["more"] == true { " and more" } else { "" };
            row["for"] = match named.is_empty() {
                true => "nobody: it is next".into(),
                false => format!("{}{more}", named.join(", ")).into(),
            };
        }
        page.table(&WAITING, &rows, "nobody waits");
        page.more(facts);
    }
}

#[derive(Args, Serialize)]
pub struct Verify {
    /// What the token is for
    resource: String,
    /// The token that somebody showed
    fencing_token: u64,
    /// The passport that it has to be of
    #[arg(long, value_name = "PASSPORT")]
    holder_passport: Option<String>,
}

impl Ask for Verify {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.get(&["v1", "punchcards", "verify"], self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }

    fn judge(&self, facts: &Value) -> Result<(), Failure> {
        match facts["valid"] == true {
            true => Ok(()),
            false => Err(Failure::failed("the token is not that of a live lease; refuse what came with it")),
        }
    }
}
