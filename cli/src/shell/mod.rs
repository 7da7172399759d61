//! What people and their scripts ask and do: `fact`, `lease`, `work`, `inbox`, `session`, `receipt`, `approve`, `search`.
//!
//! A verb is one question to a gateway, mostly one call of the tool whose arguments it has under the same names. [`Ask`] is all
//! that it says of itself; how it is asked, shown ([`page`]), followed ([`watch`]) and repeated is the same for all, and stands here.

pub mod approve;
pub mod fact;
pub mod inbox;
pub mod lease;
pub mod page;
pub mod receipt;
pub mod search;
pub mod session;
mod watch;
pub mod work;

use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::door::{Answer, Door, Gateway};
use crate::exit::{self, Failure};
use crate::output;
use page::Page;

/// A question to a gateway, and how its answer is shown.
pub trait Ask: Args {
    /// Kinds of events, or their beginnings, after which the answer may be another one.
    const KINDS: &'static [&'static str] = &[];
    /// Whether it gets an idempotency key when none is given. A call that queues must not: with a key its place is kept for whoever
    /// comes back with it, and without one the place goes when its caller does.
    const KEYED: bool = true;

    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure>;

    /// For people; programs get the facts as they are.
    fn show(&self, facts: &Value, page: &mut Page);

    /// What the facts say of how the verb ends. They have been shown by then.
    fn judge(&self, _facts: &Value) -> Result<(), Failure> {
        Ok(())
    }
}

// No doc comments on what is flattened into a verb: they would be the verb's help.

// A verb that reads.
#[derive(Args)]
pub struct Reading<A: Args> {
    #[command(flatten)]
    ask: A,
    #[command(flatten)]
    door: Door,
}

// A verb that reads what changes.
#[derive(Args)]
pub struct Watching<A: Args> {
    #[command(flatten)]
    ask: A,
    /// Stay, and show it again whenever it changes; with --json a line each time
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    door: Door,
}

// A verb that writes.
#[derive(Args)]
pub struct Writing<A: Args> {
    #[command(flatten)]
    ask: A,
    /// Your name for this intent: repeat it with the same key and arguments, and it has one effect and the first answer
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    door: Door,
}

// What every tool that writes takes.
#[derive(Args, Serialize)]
pub struct Under {
    /// Make it under this punchcard: refused when the card is no longer yours
    #[arg(long, value_name = "NUMBER")]
    fencing_token: Option<u64>,
}

impl<A: Ask> Reading<A> {
    pub async fn run(self) -> Result<(), Failure> {
        tell(&self.ask, Gateway::open(&self.door), self.door.json).await
    }
}

impl<A: Ask> Watching<A> {
    pub async fn run(self) -> Result<(), Failure> {
        match self.watch {
            true => {
                watch::follow(&self.ask, Gateway::open(&self.door), self.door.json).await.map_err(|failure| failure.in_json(self.door.json))
            }
            false => tell(&self.ask, Gateway::open(&self.door), self.door.json).await,
        }
    }
}

impl<A: Ask> Writing<A> {
    pub async fn run(self) -> Result<(), Failure> {
        let fresh = || A::KEYED.then(|| uuid::Uuid::new_v4().to_string());
        let key = self.idempotency_key.clone().or_else(fresh);
        let gateway = Gateway::open(&self.door).map(|gateway| gateway.under(key.clone()));
        tell(&self.ask, gateway, self.door.json).await.map_err(|failure| repeatable(failure, key.as_deref()))
    }
}

/// Words that were typed one by one, as the text that they are.
fn joined<S: Serializer>(words: &[String], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&words.join(" "))
}

async fn tell<A: Ask>(ask: &A, gateway: Result<Gateway, Failure>, as_json: bool) -> Result<(), Failure> {
    let answered = async { ask.ask(&gateway?).await };
    let Answer { facts, .. } = answered.await.map_err(|failure| failure.in_json(as_json))?;
    output::print(as_json, &facts, &text(ask, &facts));
    // The facts are the one object of JSON, so what follows from them is told by the exit code, and in words on standard error.
    ask.judge(&facts)
}

fn text<A: Ask>(ask: &A, facts: &Value) -> String {
    let mut page = Page::of_terminal();
    ask.show(facts, &mut page);
    page.text()
}

/// A write of which nobody knows whether it happened says under which key it can be repeated.
fn repeatable(mut failure: Failure, key: Option<&str>) -> Failure {
    let is_open = match failure.facts.get("wrote") {
        Some(wrote) => wrote == "unknown",
        None => failure.code == exit::UNAVAILABLE,
    };
    if let Some(key) = key.filter(|_| is_open) {
        let stop = if failure.message.ends_with('.') { "" } else { "." };
        failure.message += &format!("{stop} To repeat it with one effect in all: --idempotency-key {key}");
        failure.facts.insert("idempotency_key".into(), key.into());
    }
    failure
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};
    use serde_json::json;

    use super::*;

    /// Arguments of a verb that its tool does not have under that name.
    fn strange<A: Args>(tool: &str, own: &[&str]) -> Vec<String> {
        let tools = quorate_gateway::tools::crux();
        let tool = tools.find(tool).unwrap_or_else(|| panic!("no tool {tool}"));
        let command = A::augment_args(Command::new("verb"));
        let names = command.get_arguments().map(|argument| argument.get_id().as_str().to_string());
        let is_known = |name: &String| tool.input["properties"].get(name).is_some() || own.contains(&name.as_str());
        names.filter(|name| !is_known(name)).collect()
    }

    #[test]
    fn a_verb_s_arguments_have_the_names_of_its_tool_s() {
        let mut strangers = Vec::new();
        let mut fits = |names: Vec<String>| strangers.extend(names);
        fits(strange::<fact::Get>("query_facts", &[]));
        fits(strange::<fact::List>("query_facts", &[]));
        fits(strange::<fact::Search>("query_facts", &[]));
        fits(strange::<fact::Entities>("list_entities", &[]));
        fits(strange::<fact::Set>("store_fact", &[]));
        fits(strange::<fact::History>("fact_history", &[]));
        fits(strange::<fact::Delete>("delete_fact", &[]));
        // The scope is an object; its two fields are named for what they are.
        fits(strange::<fact::Forget>("memory_forget", &["scope_type", "dry_run"]));
        fits(strange::<fact::ForgetUndo>("memory_forget_undo", &[]));
        fits(strange::<fact::Pin<true>>("memory_pin", &[]));
        fits(strange::<lease::List>("list_punchcards", &["all"]));
        fits(strange::<lease::Show>("check_punchcard", &[]));
        fits(strange::<lease::Take>("punch_in", &[]));
        fits(strange::<lease::GiveBack>("punch_out", &[]));
        fits(strange::<lease::ForceRelease>("force_release", &[]));
        fits(strange::<work::List>("list_work", &[]));
        fits(strange::<work::Show>("list_work", &[]));
        fits(strange::<work::Add>("create_work", &[]));
        fits(strange::<work::Move>("update_work_state", &[]));
        fits(strange::<work::Claim>("update_work_state", &[]));
        fits(strange::<work::Done>("update_work_state", &[]));
        fits(strange::<work::Comment>("comment_on_work", &[]));
        fits(strange::<work::Projects>("list_projects", &[]));
        fits(strange::<session::List>("list_sessions", &[]));
        fits(strange::<session::Show>("get_session", &[]));
        fits(strange::<session::Live>("coord_status", &[]));
        fits(strange::<receipt::Verify>("receipt_verify", &[]));
        fits(strange::<search::Find>("query", &[]));
        fits(strange::<approve::Decide>("approval_decide", &[]));
        assert_eq!(strangers, Vec::<String>::new());
    }

    #[test]
    fn a_write_that_may_have_happened_says_how_to_repeat_it_and_one_that_did_not_does_not() {
        let said = |wrote: &str| Failure::unavailable("x").with_facts([("wrote".to_string(), json!(wrote))]);
        assert!(repeatable(said("unknown"), Some("k1")).message.contains("--idempotency-key k1"));
        assert!(repeatable(Failure::unavailable("no answer"), Some("k1")).facts["idempotency_key"] == "k1");
        assert_eq!(repeatable(said("no"), Some("k1")).message, "x");
        assert_eq!(repeatable(Failure::failed("held"), Some("k1")).message, "held");
    }
}
