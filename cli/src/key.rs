//! `quorate key`: the ring of public keys that receipts and heads were ever signed with.

use clap::{Args, Subcommand};
use quorate_domain::key_ring::{AddReceiptKey, ListReceiptKeys};
use serde_json::json;

use crate::deployment::Target;
use crate::exit::Failure;
use crate::{admin, output};

#[derive(Subcommand)]
pub enum Key {
    /// List the public keys of receipts, old ones included
    List(List),
    /// Add a public key to the ring; nothing takes one out
    Add(Add),
}

/// List the public keys of receipts, old ones included.
#[derive(Args)]
pub struct List {
    #[command(flatten)]
    target: Target,
}

/// Add a public key to the ring; nothing takes one out.
#[derive(Args)]
pub struct Add {
    /// Ed25519, 64 hex digits
    public_key: String,
    #[command(flatten)]
    target: Target,
}

impl Key {
    pub fn json(&self) -> bool {
        match self {
            Key::List(list) => list.target.json,
            Key::Add(add) => add.target.json,
        }
    }

    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Key::List(List { target }) => {
                let ring = admin::read(&target.nodes()?, ListReceiptKeys {}).await?;
                let line = |key: &quorate_domain::key_ring::ReceiptKey| {
                    format!("{} {} since {}", key.key_id, key.public_key, key.added_at.to_rfc3339())
                };
                let text: Vec<String> = ring.keys.iter().map(line).collect();
                output::print(target.json, &json!({ "keys": ring.keys }), &text.join("\n"));
            }
            Key::Add(Add { public_key, target }) => {
                let key = admin::propose(&target.nodes()?, AddReceiptKey { public_key }).await?;
                output::print(target.json, &json!(key), &format!("key {} is in the ring", key.key_id));
            }
        }
        Ok(())
    }
}
