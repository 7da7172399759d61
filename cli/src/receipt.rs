//! `quorate receipt`: saves what proves a decision, for `quorate verify`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::exit::Failure;
use crate::tool::Door;

#[derive(Subcommand)]
pub enum Receipt {
    /// Save a receipt with its proof
    Get(Get),
}

/// Save a receipt with its proof, as `quorate verify` reads it.
#[derive(Args)]
pub struct Get {
    /// Id of the receipt, as an approval, a decision or a punchcard names it
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

impl Receipt {
    pub fn json(&self) -> bool {
        let Receipt::Get(get) = self;
        get.door.json
    }

    pub async fn run(self) -> Result<(), Failure> {
        let Receipt::Get(get) = self;
        let size = get.size.map(|size| format!("?size={size}")).unwrap_or_default();
        let text = get.door.fetch(&["v1", "receipts", &get.receipt_id], &size).await?;
        match &get.out {
            None => print!("{text}"),
            Some(path) => {
                std::fs::write(path, &text).map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?
            }
        }
        Ok(())
    }
}
