//! `quorate search`: all that the team knows, by words.

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::page::{Column, cut, whole};
use super::{Ask, Page};
use crate::door::{Answer, Gateway};
use crate::exit::Failure;

#[derive(Args, Serialize)]
pub struct Find {
    /// What you look for, in your own words
    #[arg(required = true)]
    #[serde(serialize_with = "super::joined")]
    query: Vec<String>,
    /// Your tenant
    #[arg(long, default_value = "local")]
    tenant_id: String,
    /// Results of this page
    #[arg(long)]
    limit: Option<u64>,
    /// Tokens (4 bytes of JSON each) that the answer may have
    #[arg(long)]
    token_budget: Option<u64>,
    /// Leave out results with a lower score; 1 is the best there can be
    #[arg(long, value_name = "NUMBER")]
    min_score: Option<f64>,
    /// `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

impl Ask for Find {
    async fn ask(&self, gateway: &Gateway) -> Result<Answer, Failure> {
        gateway.call("query", self).await
    }

    fn show(&self, facts: &Value, page: &mut Page) {
        const RESULTS: [Column; 4] = [whole("KIND", "kind"), whole("SCORE", "score"), cut("TITLE", "title"), cut("EXTRACT", "snippet")];
        page.table(&RESULTS, &facts["results"], "nothing holds these words");
        let gaps: Vec<&str> = facts["coverage"]["gaps"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !gaps.is_empty() {
            page.line(&format!("found nowhere: {}", super::page::safe(&gaps.join(", "))));
        }
        page.more(facts);
    }
}
