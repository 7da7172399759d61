//! The fixtures that the official MCP conformance suite asks for, at `/mcp/conformance` and only with the setting of that name.
//!
//! The suite sends no token, so the address serves anybody, as a passport of a tenant of its own that has nothing. What is
//! tested is the endpoint: these tools, resources and prompts go the way of the product's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use quorate_domain::{Principal, Tier};
use serde_json::{Value, json};

use crate::call::{CallContext, CallError};
use crate::mcp::client::{Level, Question};
use crate::mcp::prompts::{Argument, Prompt, user};
use crate::mcp::resources::{Fixed, Library, Source, Template};
use crate::mcp::{ListChange, Listing};
use crate::registry::{Catalog, Plain, PlainRun};

/// A red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A WAV file without a sample.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";
/// Between two notices of a call, so that a client sees them apart.
const PAUSE: Duration = Duration::from_millis(50);

pub fn listing() -> Listing {
    let anonymous = Principal {
        tenant: "conformance".into(),
        passport: "conformance".into(),
        tier: Tier::Unverified,
        scopes: ["conformance".to_string()].into(),
    };
    let tools = tools();
    Listing {
        callable: tools.clone(),
        tools,
        is_short: false,
        is_shaped: false,
        library: Arc::new(library()),
        prompts: Arc::new(prompts()),
        anonymous: Some(Arc::new(anonymous)),
        lists_change: true,
    }
}

// ------------------------------------------------------------------ tools

type Run = BoxFuture<'static, Result<Vec<Value>, CallError>>;

fn tools() -> Catalog {
    let none = || json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let one = |name: &str| json!({ "type": "object", "properties": { name: { "type": "string" } }, "required": [name], "additionalProperties": false });
    let plain: Vec<(&'static str, &'static str, Value, PlainRun)> = vec![
        ("test_simple_text", "Answers with a text", none(), |_, _| done(vec![text("This is a simple text response for testing.")])),
        ("test_image_content", "Answers with an image", none(), |_, _| done(vec![image()])),
        ("test_audio_content", "Answers with a sound", none(), |_, _| {
            done(vec![json!({ "type": "audio", "data": WAV, "mimeType": "audio/wav" })])
        }),
        ("test_embedded_resource", "Answers with a resource", none(), |_, _| {
            done(vec![embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")])
        }),
        ("test_multiple_content_types", "Answers with a text, an image and a resource", none(), |_, _| {
            let data = r#"{"test":"data","value":123}"#;
            let resource = embedded("test://mixed-content-resource", "application/json", data);
            done(vec![text("Multiple content types test:"), image(), resource])
        }),
        ("test_error_handling", "Fails", none(), |_, _| {
            Box::pin(async { Err(CallError::Fault { detail: "This tool intentionally returns an error for testing".into() }) })
        }),
        ("test_tool_with_progress", "Tells how far it is", none(), |_, ctx| Box::pin(progress(ctx))),
        ("test_tool_with_logging", "Logs", none(), |_, ctx| Box::pin(logging(ctx))),
        ("test_logging_tool", "Logs", none(), |_, ctx| Box::pin(logging(ctx))),
        ("test_reconnection", "Hangs up before it answers", none(), |_, ctx| Box::pin(hanging_up(ctx))),
        ("test_sampling", "Asks the client's model", one("prompt"), |arguments, ctx| Box::pin(sampling(arguments, ctx))),
        ("test_elicitation", "Asks the person", one("message"), |arguments, ctx| Box::pin(elicitation(arguments, ctx))),
        ("test_elicitation_sep1034_defaults", "Asks the person, with defaults", none(), |_, ctx| {
            Box::pin(form(ctx, "Please review your data", defaults_schema()))
        }),
        ("test_elicitation_sep1330_enums", "Asks the person to choose", none(), |_, ctx| {
            Box::pin(form(ctx, "Please choose", enums_schema()))
        }),
        ("test_missing_capability", "Needs a client with sampling", none(), |_, ctx| Box::pin(sample_once(ctx, "question", "Hello", 10))),
        ("test_streaming_elicitation", "Asks the person while it streams", none(), |_, ctx| Box::pin(streaming(ctx))),
        ("test_trigger_tool_change", "Says that the list of tools has changed", none(), |_, ctx| changed(&ctx, ListChange::Tools)),
        ("test_trigger_prompt_change", "Says that the list of prompts has changed", none(), |_, ctx| changed(&ctx, ListChange::Prompts)),
        ("test_input_required_result_elicitation", "Asks the person for a name", none(), |_, ctx| Box::pin(hello(ctx))),
        ("test_input_required_result_sampling", "Asks the client's model for a capital", none(), |_, ctx| {
            Box::pin(sample_once(ctx, "capital_question", "What is the capital of France?", 100))
        }),
        ("test_input_required_result_list_roots", "Asks the client for its roots", none(), |_, ctx| Box::pin(roots(ctx))),
        ("test_input_required_result_request_state", "Asks and keeps a state", none(), |_, ctx| Box::pin(confirmed(ctx))),
        ("test_input_required_result_tampered_state", "Asks and keeps a state", none(), |_, ctx| Box::pin(confirmed(ctx))),
        ("test_input_required_result_multiple_inputs", "Asks for three things at once", none(), |_, ctx| Box::pin(three(ctx))),
        ("test_input_required_result_multi_round", "Asks twice", none(), |_, ctx| Box::pin(twice(ctx))),
        ("test_input_required_result_capabilities", "Asks what the client can be asked", none(), |_, ctx| Box::pin(possible(ctx))),
        ("json_schema_2020_12_tool", "Tool with JSON Schema 2020-12 features", schema_2020_12(), |_, _| done(vec![text("accepted")])),
        ("test_custom_header", "Has an argument that is mirrored in a header", mirrored(), |arguments, _| {
            done(vec![text(&arguments["region"].to_string())])
        }),
    ];
    plain.into_iter().fold(Catalog::default(), |catalog, (name, description, input, run)| {
        catalog.with_plain(Plain { name, description, scope: "conformance", input, run })
    })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn image() -> Value {
    json!({ "type": "image", "data": PNG, "mimeType": "image/png" })
}

fn embedded(uri: &str, mime: &str, text: &str) -> Value {
    json!({ "type": "resource", "resource": { "uri": uri, "mimeType": mime, "text": text } })
}

fn done(content: Vec<Value>) -> Run {
    Box::pin(async move { Ok(content) })
}

fn changed(ctx: &CallContext, change: ListChange) -> Run {
    // Without a stream open there is nobody to tell.
    let _ = ctx.services.list_changes.send(change);
    done(vec![text("told")])
}

async fn progress(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    for done in [0, 50, 100] {
        ctx.client.progress(done, Some(100), None).await;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(vec![text("Done in three steps")])
}

async fn logging(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    for line in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
        ctx.client.log(Level::Info, line).await;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(vec![text("Logged three lines")])
}

async fn hanging_up(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    ctx.client.hang_up().await;
    tokio::time::sleep(PAUSE).await;
    Ok(vec![text("Answered after the connection was closed")])
}

// ------------------------------------------------------------------ questions

fn elicit(message: &str, schema: Value) -> Question {
    Question { method: "elicitation/create", params: json!({ "message": message, "requestedSchema": schema }) }
}

fn sample(prompt: &str, tokens: u64) -> Question {
    let messages = json!([{ "role": "user", "content": text(prompt) }]);
    Question { method: "sampling/createMessage", params: json!({ "messages": messages, "maxTokens": tokens }) }
}

fn list_roots() -> Question {
    Question { method: "roots/list", params: json!({}) }
}

fn one_text(field: &str) -> Value {
    json!({ "type": "object", "properties": { field: { "type": "string" } }, "required": [field] })
}

/// The answer to one question.
async fn ask(ctx: &CallContext, name: &str, question: Question, state: Option<Value>) -> Result<Value, CallError> {
    let mut answers = ctx.client.ask(BTreeMap::from([(name.to_string(), question)]), state).await?;
    Ok(answers.remove(name).unwrap_or_default())
}

async fn sampling(arguments: Value, ctx: CallContext) -> Result<Vec<Value>, CallError> {
    let answer = ask(&ctx, "sample", sample(arguments["prompt"].as_str().unwrap_or_default(), 100), None).await?;
    Ok(vec![text(&format!("LLM response: {}", answer["content"]["text"].as_str().unwrap_or_default()))])
}

async fn elicitation(arguments: Value, ctx: CallContext) -> Result<Vec<Value>, CallError> {
    let schema = json!({
        "type": "object",
        "properties": {
            "username": { "type": "string", "description": "User's response" },
            "email": { "type": "string", "description": "User's email address" },
        },
        "required": ["username", "email"],
    });
    let answer = ask(&ctx, "form", elicit(arguments["message"].as_str().unwrap_or_default(), schema), None).await?;
    Ok(vec![text(&format!("User response: action: {}, content: {}", answer["action"].as_str().unwrap_or_default(), answer["content"]))])
}

async fn form(ctx: CallContext, message: &'static str, schema: Value) -> Result<Vec<Value>, CallError> {
    let answer = ask(&ctx, "form", elicit(message, schema), None).await?;
    Ok(vec![text(&format!(
        "Elicitation completed: action={}, content={}",
        answer["action"].as_str().unwrap_or_default(),
        answer["content"]
    ))])
}

async fn sample_once(ctx: CallContext, name: &'static str, prompt: &'static str, tokens: u64) -> Result<Vec<Value>, CallError> {
    let answer = ask(&ctx, name, sample(prompt, tokens), None).await?;
    Ok(vec![text(&format!("The model says: {}", answer["content"]["text"].as_str().unwrap_or_default()))])
}

async fn streaming(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    ctx.client.progress(0, Some(1), None).await;
    hello(ctx).await
}

async fn hello(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    let answer = ask(&ctx, "user_name", elicit("What is your name?", one_text("name")), None).await?;
    Ok(vec![text(&format!("Hello, {}!", answer["content"]["name"].as_str().unwrap_or("stranger")))])
}

async fn roots(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    let answer = ask(&ctx, "client_roots", list_roots(), None).await?;
    Ok(vec![text(&format!("Roots: {}", answer["roots"]))])
}

async fn confirmed(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] });
    ask(&ctx, "confirm", elicit("Please confirm", schema), Some(json!("asked"))).await?;
    match ctx.client.state() {
        Some(_) => Ok(vec![text("state-ok")]),
        None => Err(CallError::arguments("the answers came without the `requestState`", "Send it along, unchanged.")),
    }
}

async fn three(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    let questions = [
        ("user_name", elicit("What is your name?", one_text("name"))),
        ("greeting", sample("Generate a greeting", 50)),
        ("client_roots", list_roots()),
    ];
    let questions = questions.map(|(name, question)| (name.to_string(), question)).into();
    let answers = ctx.client.ask(questions, Some(json!("asked"))).await?;
    let answers: Vec<String> = answers.into_iter().map(|(name, answer)| format!("{name}: {answer}")).collect();
    Ok(vec![text(&answers.join("\n"))])
}

async fn twice(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    let name = match ctx.client.state() {
        Some(state) if state["name"].is_string() => state["name"].clone(),
        _ => {
            let question = elicit("Step 1: What is your name?", one_text("name"));
            ask(&ctx, "step1", question, Some(json!({ "step": 1 }))).await?["content"]["name"].clone()
        }
    };
    let question = elicit("Step 2: What is your favorite color?", one_text("color"));
    let answer = ask(&ctx, "step2", question, Some(json!({ "step": 2, "name": name }))).await?;
    Ok(vec![text(&format!("{name} likes {}", answer["content"]["color"]))])
}

async fn possible(ctx: CallContext) -> Result<Vec<Value>, CallError> {
    let all = [
        ("elicitation", elicit("What is your name?", one_text("name"))),
        ("sampling", sample("Generate a greeting", 50)),
        ("roots", list_roots()),
    ];
    let possible = all.into_iter().filter(|(capability, _)| ctx.client.has_declared(capability));
    ctx.client.ask(possible.map(|(capability, question)| (capability.to_string(), question)).collect(), None).await?;
    Ok(vec![text("Answered")])
}

// ------------------------------------------------------------------ schemas

fn defaults_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "default": "John Doe" },
            "age": { "type": "integer", "default": 30 },
            "score": { "type": "number", "default": 95.5 },
            "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
            "verified": { "type": "boolean", "default": true },
        },
        "required": [],
    })
}

fn enums_schema() -> Value {
    let titled = |noun: &str| {
        let option = |n: usize, word: &str| json!({ "const": format!("value{n}"), "title": format!("{word} {noun}") });
        json!([option(1, "First"), option(2, "Second"), option(3, "Third")])
    };
    json!({
        "type": "object",
        "properties": {
            "untitledSingle": { "type": "string", "enum": ["option1", "option2", "option3"] },
            "titledSingle": { "type": "string", "oneOf": titled("Option") },
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": { "type": "array", "items": { "type": "string", "enum": ["option1", "option2", "option3"] } },
            "titledMulti": { "type": "array", "items": { "anyOf": titled("Choice") } },
        },
        "required": [],
    })
}

fn schema_2020_12() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
            },
        },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    })
}

fn mirrored() -> Value {
    json!({
        "type": "object",
        "properties": { "region": { "type": "string", "x-mcp-header": "Region" } },
        "additionalProperties": false,
    })
}

// ------------------------------------------------------------------ resources and prompts

fn library() -> Library {
    let binary = json!({ "uri": "test://static-binary", "mimeType": "image/png", "blob": PNG });
    let listed = json!({ "uri": "test://static-binary", "name": "static-binary", "description": "A red pixel", "mimeType": "image/png" });
    let text = |uri, name, content: &str| Fixed::text(uri, name, "A text", "text/plain", content);
    Library {
        fixed: vec![
            text("test://static-text", "static-text", "This is the content of the static text resource."),
            Fixed { uri: "test://static-binary", listed, contents: binary },
            text("test://watched-resource", "watched-resource", "This resource can be watched."),
        ],
        templates: vec![Template {
            prefix: "test://template/",
            suffix: "/data",
            variable: "id",
            name: "template",
            description: "Data of an id",
            mime: "application/json",
            source: Source::Made(|id| Some(json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") }).to_string())),
            changed_by: None,
            completed_by: None,
        }],
    }
}

fn prompts() -> Vec<Prompt> {
    let argument = |name, description| Argument { name, description, required: true, completed_by: None };
    vec![
        Prompt {
            name: "test_simple_prompt",
            title: "Simple",
            description: "A prompt without arguments",
            arguments: Vec::new(),
            render: |_, _, _| Box::pin(async { Ok(vec![user("This is a simple prompt for testing.")]) }),
        },
        Prompt {
            name: "test_prompt_with_arguments",
            title: "With arguments",
            description: "A prompt with two arguments",
            arguments: vec![argument("arg1", "The first"), argument("arg2", "The second")],
            render: |_, _, given| {
                Box::pin(
                    async move { Ok(vec![user(format!("Prompt with arguments: arg1='{}', arg2='{}'", given["arg1"], given["arg2"]))]) },
                )
            },
        },
        Prompt {
            name: "test_prompt_with_embedded_resource",
            title: "With a resource",
            description: "A prompt that brings a resource along",
            arguments: vec![argument("resourceUri", "The resource's URI")],
            render: |_, _, given| {
                Box::pin(async move {
                    let content = embedded(&given["resourceUri"], "text/plain", "Embedded resource content for testing.");
                    let resource = json!({ "role": "user", "content": content });
                    Ok(vec![resource, user("Please process the embedded resource above.")])
                })
            },
        },
        Prompt {
            name: "test_prompt_with_image",
            title: "With an image",
            description: "A prompt that brings an image along",
            arguments: Vec::new(),
            render: |_, _, _| {
                Box::pin(async { Ok(vec![json!({ "role": "user", "content": image() }), user("Please analyze the image above.")]) })
            },
        },
        Prompt {
            name: "test_input_required_result_prompt",
            title: "With a question",
            description: "A prompt that asks the person first",
            arguments: Vec::new(),
            render: |_, ctx, _| {
                Box::pin(async move {
                    let question = elicit("What context should the prompt use?", one_text("context"));
                    let answer = ask(ctx, "user_context", question, None).await?;
                    Ok(vec![user(format!("Use this context: {}", answer["content"]["context"]))])
                })
            },
        },
    ]
}
