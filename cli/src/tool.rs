//! `quorate tool`: any tool from the shell, through the gateway's HTTP API.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::door::{CATALOG, Door, Gateway};
use crate::exit::Failure;

#[derive(Subcommand)]
pub enum Tool {
    /// Call a tool and print its answer as JSON
    Call(Call),
    /// List the tools with their arguments
    List(List),
}

/// Call a tool and print its answer as JSON.
#[derive(Args)]
pub struct Call {
    /// Name of the tool, such as store_fact
    tool: String,
    /// Arguments as NAME=VALUE, typed by the tool's schema: text is taken as it stands, numbers, lists and objects as JSON
    #[arg(value_name = "NAME=VALUE")]
    arguments: Vec<String>,
    /// All arguments as one JSON object; NAME=VALUE pairs are added to it
    #[arg(long)]
    args: Option<String>,
    /// Catalog of the tool
    #[arg(long, default_value = CATALOG)]
    catalog: String,
    #[command(flatten)]
    door: Door,
}

/// List the tools with their arguments.
#[derive(Args)]
pub struct List {
    /// Catalog to list
    #[arg(long, default_value = CATALOG)]
    catalog: String,
    #[command(flatten)]
    door: Door,
}

impl Tool {
    pub fn json(&self) -> bool {
        match self {
            Tool::Call(call) => call.door.json,
            Tool::List(list) => list.door.json,
        }
    }

    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Tool::Call(call) => call.run().await,
            Tool::List(list) => list.run().await,
        }
    }
}

/// Arguments from the command line. What the tool's schema calls a string is text as it stands, so that `value=8080` and
/// `value=true` are; for anything else, and for tools that this version does not know, a value that is JSON is JSON, and any
/// other is text, which the gateway then judges.
fn arguments(tool: &str, object: Option<&str>, pairs: &[String]) -> Result<Map<String, Value>, Failure> {
    let known = quorate_gateway::tools::crux().and_all(&quorate_gateway::profile::about_tools());
    let properties = known.find(tool).map(|entry| &entry.input["properties"]);
    let is_text = |name: &str| properties.is_some_and(|properties| properties[name]["type"] == "string");
    let mut arguments = match object {
        None => Map::new(),
        Some(text) => serde_json::from_str(text).map_err(|error| Failure::usage(format!("--args is no JSON object: {error}")))?,
    };
    for pair in pairs {
        let (name, value) = pair.split_once('=').ok_or_else(|| Failure::usage(format!("`{pair}` is not of the form NAME=VALUE")))?;
        let text = || Value::String(value.into());
        let value = if is_text(name) { text() } else { serde_json::from_str(value).unwrap_or_else(|_| text()) };
        arguments.insert(name.into(), value);
    }
    Ok(arguments)
}

impl Call {
    async fn run(self) -> Result<(), Failure> {
        let arguments = arguments(&self.tool, self.args.as_deref(), &self.arguments)?;
        let gateway = Gateway::open(&self.door)?;
        let path = ["v1", "tools", &self.catalog, &self.tool];
        let answer = gateway.ask(gateway.at(Method::POST, &path)?.json(&arguments)).await?;
        println!("{}", if self.door.json { answer.to_string() } else { format!("{answer:#}") });
        Ok(())
    }
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let gateway = Gateway::open(&self.door)?;
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
        let request = gateway.at(Method::POST, &["mcp", &self.catalog])?.header("Accept", "application/json, text/event-stream");
        let answer = gateway.ask(request.json(&message)).await?;
        let Some(tools) = answer["result"]["tools"].as_array() else {
            return Err(Failure::failed(format!("the gateway listed no tools: {answer:.300}")));
        };
        if self.door.json {
            println!("{}", json!({"tools": tools}));
            return Ok(());
        }
        for tool in tools {
            let required: Vec<&str> = tool["inputSchema"]["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let names = tool["inputSchema"]["properties"].as_object().into_iter().flat_map(Map::keys);
            let shown: Vec<String> =
                names.map(|name| if required.contains(&name.as_str()) { name.clone() } else { format!("[{name}]") }).collect();
            println!("{} {}", tool["name"].as_str().unwrap_or("?"), shown.join(" "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_type_that_the_tool_s_schema_gives_it() {
        let pairs =
            ["entity=8080", "key=true", "value={\"a\": 1}", "confidence=0.5", "supersedes=[\"f1\"]", "private=false"].map(String::from);
        let found = arguments("store_fact", Some(r#"{"horizon_class": "stable"}"#), &pairs).expect("well-formed");
        let wanted = json!({"horizon_class": "stable", "entity": "8080", "key": "true", "value": "{\"a\": 1}", "confidence": 0.5,
            "supersedes": ["f1"], "private": false});
        assert_eq!(Value::Object(found), wanted);
    }

    #[test]
    fn of_a_tool_that_is_not_known_here_a_value_that_is_json_is_json() {
        let pairs = ["n=3", "text=hello world", "with=a=b"].map(String::from);
        let found = arguments("later_tool", None, &pairs).expect("well-formed");
        assert_eq!(Value::Object(found), json!({"n": 3, "text": "hello world", "with": "a=b"}));
    }

    #[test]
    fn a_pair_without_a_value_is_wrong_usage() {
        assert_eq!(arguments("store_fact", None, &["lonely".into()]).expect_err("no =").code, crate::exit::USAGE);
    }
}
