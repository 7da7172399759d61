//! `quorate receipt`: what proves a decision.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::{Ask, Page, Reading};
use crate::door::{Answer, Door, Gateway};
use crate::exit::Failure;

#[derive(Subcommand)]
pub enum Receipt {
    /// Show what a receipt says
    Show(Reading<Show>),
    /// Have the cluster check a receipt: its bytes, its place in the chain, its signature
    Verify(Reading<Verify>),
    /// Show the signed head of the log of receipts
    LogHead(Reading<LogHead>),
    /// Save a receipt with its proof, as `quorate verify` reads it
    Get(Get),
}

impl Receipt {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Receipt::Show(verb) => verb.run().await,
            Receipt::Verify(verb) => verb.run().await,
            Receipt::LogHead(verb) => verb.run().await,
            Receipt::Get(verb) => verb.run().await,
        }
    }
}

#[derive(Args, Serialize)]
pub struct Show {
    /// Id of the receipt, as an approval, a decision or a lease names it
    receipt_id: String,
}

impl Ask for Show {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("receipt_verify", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        let report = &facts["report"];
        let mut about = serde_json::json!({
            "receipt_id": facts["receipt_id"], "verified": facts["verified"], "signer_passport": facts["signer_passport"],
        });
        for name in ["seq", "revision", "made_at", "key_id"] {
            about[name] = report[name].clone();
        }
        page.fields(&about);
        page.line("");
        page.fields(&report["body"]);
    }

    fn judge(&self, facts: &Value) -> Result<(), Failure> {
        verdict(facts)
    }
}

#[derive(Args, Serialize)]
pub struct Verify {
    /// Id of the receipt, as an approval, a decision or a lease names it
    receipt_id: String,
}

impl Ask for Verify {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("receipt_verify", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.line(if facts["verified"] == true { "verified" } else { "NOT verified" });
        page.list(&facts["errors"], "");
        page.fields(&facts["report"]);
    }

    fn judge(&self, facts: &Value) -> Result<(), Failure> {
        verdict(facts)
    }
}

fn verdict(facts: &Value) -> Result<(), Failure> {
    match facts["verified"] == true {
        true => Ok(()),
        false => {
            let errors: Vec<&str> = facts["errors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            Err(Failure::failed(format!("the receipt is not verified: {}", errors.join("; "))))
        }
    }
}

#[derive(Args, Serialize)]
pub struct LogHead {
    /// The head of so many receipts, instead of the newest
    #[arg(long)]
    size: Option<u64>,
}

impl Ask for LogHead {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.get(&["v1", "log", "head"], self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        page.fields(facts);
    }
}

#[derive(Args)]
pub struct Get {
    /// Id of the receipt, as an approval, a decision or a lease names it
    receipt_id: String,
    /// Prove it under the head of so many receipts, instead of the newest
    #[arg(long)]
    size: Option<u64>,
    /// Where to save it; standard output by default
    #[arg(long, short)]
    out: Option<PathBuf>,
    #[command(flatten)]
    door: Door,
}

impl Get {
    async fn run(self) -> Result<(), Failure> {
        self.save().await.map_err(|failure| failure.in_json(self.door.json))
    }

    async fn save(&self) -> Result<(), Failure> {
        let gateway = Gateway::open(&self.door)?;
        let size: Vec<(&str, u64)> = self.size.map(|size| ("size", size)).into_iter().collect();
        let request = gateway.at(reqwest::Method::GET, &["v1", "receipts", &self.receipt_id])?.query(&size);
        let text = gateway.text(request).await?;
        match &self.out {
            None => print!("{text}"),
            Some(path) => {
                std::fs::write(path, &text).map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?
            }
        }
        Ok(())
    }
}
