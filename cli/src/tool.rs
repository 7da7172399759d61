//! `quorate tool`: any tool from the shell, through the gateway's HTTP API.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::deployment::{DATA_DEFAULT, Deployment};
use crate::exit::Failure;
use crate::http;

#[derive(Subcommand)]
pub enum Tool {
    /// Call a tool and print its answer as JSON
    Call(Call),
    /// List the tools with their arguments
    List(List),
}

/// Which gateway, and as whom.
#[derive(Args)]
pub struct Door {
    /// Base URL of a gateway; without it, the gateway of the deployment in --data
    #[arg(long, env = "QUORATE_URL")]
    url: Option<String>,
    /// Bearer token
    #[arg(long, env = "QUORATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// One of the ready identities of a `quorate dev` deployment, instead of a token
    #[arg(long = "as", value_name = "NAME", conflicts_with = "token")]
    identity: Option<String>,
    /// Folder of a deployment made by `quorate dev`
    #[arg(long, env = "QUORATE_DATA", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// PEM file of the authority of the gateway's certificate; without it, those that the system trusts
    #[arg(long, env = "QUORATE_CA")]
    ca: Option<PathBuf>,
    /// Print nothing but JSON, errors as well
    #[arg(long)]
    pub json: bool,
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
    #[arg(long, default_value = "crux")]
    catalog: String,
    #[command(flatten)]
    door: Door,
}

/// List the tools with their arguments.
#[derive(Args)]
pub struct List {
    /// Catalog to list
    #[arg(long, default_value = "crux")]
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

impl Door {
    /// Client, base URL and token.
    fn open(&self) -> Result<(reqwest::Client, String, Option<String>), Failure> {
        let deployment = match (&self.url, &self.identity) {
            (Some(_), None) => None,
            _ => Deployment::load(&self.data)?,
        };
        let url = match (&self.url, &deployment) {
            (Some(url), _) => crate::hook::base(url),
            (None, Some(deployment)) => deployment.url(),
            (None, None) => {
                return Err(Failure::usage(format!(
                    "no deployment in {}: start `quorate dev`, or give --url and --token",
                    self.data.display()
                )));
            }
        };
        let own_ca =
            deployment.as_ref().filter(|found| found.tls && self.url.is_none()).map(|_| Deployment::files(&self.data, "gateway").ca);
        let client = http::client(&url, self.ca.as_deref().or(own_ca.as_deref()))?;
        let token = match &self.identity {
            None => self.token.clone(),
            Some(name) => {
                let tokens = deployment.map(|deployment| deployment.tokens).unwrap_or_default();
                let Some(entry) = tokens.iter().find(|entry| entry.name == *name) else {
                    let known: Vec<&str> = tokens.iter().map(|entry| entry.name.as_str()).collect();
                    return Err(Failure::usage(format!("no identity `{name}`; this deployment has {}", known.join(", "))));
                };
                Some(entry.token.clone())
            }
        };
        Ok((client, url, token))
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

/// A gateway, as one caller, for verbs that ask it many times.
pub struct Gateway {
    client: reqwest::Client,
    base: String,
    token: Option<String>,
}

impl Gateway {
    pub fn open(door: &Door) -> Result<Self, Failure> {
        let (client, base, token) = door.open()?;
        Ok(Self { client, base, token })
    }

    pub fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    /// The answer, or the failure that it tells.
    pub async fn ask(&self, request: reqwest::RequestBuilder) -> Result<Value, Failure> {
        good(send(request, self.token.clone()).await?)
    }
}

impl Door {
    /// What the gateway has at a path, as it sends it. `query` begins with `?`, or is empty.
    pub async fn fetch(&self, path: &[&str], query: &str) -> Result<String, Failure> {
        let (client, base, token) = self.open()?;
        let mut url = reqwest::Url::parse(&base).map_err(|error| Failure::usage(format!("--url {base}: {error}")))?;
        url.path_segments_mut().map_err(|()| Failure::usage(format!("--url {base} is no HTTP address")))?.pop_if_empty().extend(path);
        let request = client.get(format!("{url}{query}"));
        let (status, text) = text_of(request, token).await?;
        match (200..300).contains(&status) {
            true => Ok(text),
            false => Err(refused(status, &json_of(status, &text)?)),
        }
    }
}

/// The failure that a problem document tells.
fn refused(status: u16, answer: &Value) -> Failure {
    let text = answer["detail"].as_str().or(answer["title"].as_str()).map_or_else(|| answer.to_string(), str::to_string);
    let exit = if status == 503 || status == 504 { crate::exit::UNAVAILABLE } else { crate::exit::FAILED };
    let facts = ["code", "retryable", "wrote", "data"].into_iter().filter_map(|name| Some((name.to_string(), answer.get(name)?.clone())));
    Failure::new(exit, text).with_facts(facts)
}

fn json_of(status: u16, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|_| Failure::failed(format!("HTTP {status} with no JSON: {text:.200}")))
}

async fn send(request: reqwest::RequestBuilder, token: Option<String>) -> Result<(u16, Value), Failure> {
    let (status, text) = text_of(request, token).await?;
    Ok((status, json_of(status, &text)?))
}

async fn text_of(request: reqwest::RequestBuilder, token: Option<String>) -> Result<(u16, String), Failure> {
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let response = request.send().await.map_err(|error| Failure::unavailable(format!("no gateway answers: {error}")))?;
    let status = response.status().as_u16();
    let text = response.text().await.map_err(|error| Failure::unavailable(format!("the answer broke off: {error}")))?;
    Ok((status, text))
}

/// Calls a tool.
pub async fn call(door: &Door, catalog: &str, tool: &str, arguments: &Map<String, Value>) -> Result<Value, Failure> {
    let (client, url, token) = door.open()?;
    let request = client.post(format!("{url}/v1/tools/{catalog}/{tool}")).json(arguments);
    good(send(request, token).await?)
}

/// The JSON behind a path of the gateway.
pub async fn fetch(door: &Door, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
    let (client, url, token) = door.open()?;
    good(send(client.get(format!("{url}{path}")).query(query), token).await?)
}

/// Sends JSON to a path of the gateway, and answers with the JSON that comes back.
pub async fn post(door: &Door, path: &[&str], body: &Value) -> Result<Value, Failure> {
    let (client, base, token) = door.open()?;
    let mut url = reqwest::Url::parse(&base).map_err(|error| Failure::usage(format!("--url {base}: {error}")))?;
    url.path_segments_mut().map_err(|()| Failure::usage(format!("--url {base} is no HTTP address")))?.pop_if_empty().extend(path);
    good(send(client.post(url).json(body), token).await?)
}

/// The answer, or the failure that it tells.
fn good((status, answer): (u16, Value)) -> Result<Value, Failure> {
    if (200..300).contains(&status) { Ok(answer) } else { Err(refused(status, &answer)) }
}

impl Call {
    async fn run(self) -> Result<(), Failure> {
        let arguments = arguments(&self.tool, self.args.as_deref(), &self.arguments)?;
        let answer = call(&self.door, &self.catalog, &self.tool, &arguments).await?;
        println!("{}", if self.door.json { answer.to_string() } else { format!("{answer:#}") });
        Ok(())
    }
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let (client, url, token) = self.door.open()?;
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
        let request =
            client.post(format!("{url}/mcp/{}", self.catalog)).header("Accept", "application/json, text/event-stream").json(&message);
        let (status, answer) = send(request, token).await?;
        let Some(tools) = answer["result"]["tools"].as_array() else {
            return Err(Failure::failed(format!("HTTP {status}: {answer:.300}")));
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
    fn an_error_s_code_and_retryable_reach_the_caller() {
        let answer = json!({"type": "about:blank", "status": 409, "detail": "held", "code": "HELD", "retryable": true, "wrote": "no"});
        let failure = good((409, answer)).expect_err("refused");
        assert_eq!((failure.code, failure.message.as_str()), (crate::exit::FAILED, "held"));
        assert_eq!(Value::Object(failure.facts), json!({"code": "HELD", "retryable": true, "wrote": "no"}));
    }

    #[test]
    fn a_pair_without_a_value_is_wrong_usage() {
        assert_eq!(arguments("store_fact", None, &["lonely".into()]).expect_err("no =").code, crate::exit::USAGE);
    }
}
