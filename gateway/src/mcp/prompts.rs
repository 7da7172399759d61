//! Prompts: texts that a person picks from a menu of its client, to begin a session, to hand one over, or to review work.
//!
//! A prompt may bring along what it is about, read with the caller's rights.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use quorate_domain::Refusal;
use quorate_domain::refusal::shown;
use serde_json::{Map, Value, json};

use super::resources::Completion;
use crate::call::{CallContext, CallError};
use crate::server::App;

/// Arguments by name; all that are required are there.
pub type Given = BTreeMap<String, String>;
/// Arguments in, messages out.
type Render = for<'a> fn(&'a App, &'a CallContext, Given) -> BoxFuture<'a, Result<Vec<Value>, CallError>>;

pub struct Argument {
    pub name: &'static str,
    pub description: &'static str,
    pub required: bool,
    pub completed_by: Option<Completion>,
}

pub struct Prompt {
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub arguments: Vec<Argument>,
    pub render: Render,
}

impl Prompt {
    pub fn listed(&self) -> Value {
        let argument =
            |argument: &Argument| json!({ "name": argument.name, "description": argument.description, "required": argument.required });
        json!({
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "arguments": self.arguments.iter().map(argument).collect::<Vec<_>>(),
        })
    }

    /// Checks the arguments of a request and renders.
    pub async fn render(&self, app: &App, ctx: &CallContext, arguments: Option<&Value>) -> Result<Vec<Value>, CallError> {
        let none = Map::new();
        let arguments = match arguments {
            None | Some(Value::Null) => &none,
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err(self.wrong("`arguments` is no object".into())),
        };
        let mut given = Given::new();
        for (name, value) in arguments {
            if !self.arguments.iter().any(|argument| argument.name == name) {
                return Err(self.wrong(format!("`{}` does not know the argument `{}`", self.name, shown(name))));
            }
            let Value::String(value) = value else { return Err(self.wrong(format!("`{}` is no string", shown(name)))) };
            given.insert(name.clone(), value.clone());
        }
        if let Some(missing) = self.arguments.iter().find(|argument| argument.required && !given.contains_key(argument.name)) {
            return Err(self.wrong(format!("`{}` needs `{}`", self.name, missing.name)));
        }
        (self.render)(app, ctx, given).await
    }

    fn wrong(&self, problem: String) -> CallError {
        let names: Vec<String> = self.arguments.iter().map(|argument| format!("`{}`", argument.name)).collect();
        let fix = if names.is_empty() { "It takes none.".into() } else { format!("It takes {}.", names.join(", ")) };
        CallError::arguments(problem, fix)
    }
}

/// The prompt of a name.
pub fn find<'a>(prompts: &'a [Prompt], name: &str) -> Result<&'a Prompt, CallError> {
    prompts.iter().find(|prompt| prompt.name == name).ok_or_else(|| CallError::Refused(Refusal::not_found("prompt", name)))
}

pub fn user(text: impl Into<String>) -> Value {
    json!({ "role": "user", "content": { "type": "text", "text": text.into() } })
}

/// The prompts of the product.
pub fn prompts() -> Vec<Prompt> {
    vec![
        Prompt {
            name: "start_session",
            title: "Start a session",
            description: "Look at what the team knows and who is at work, before anything is changed.",
            arguments: vec![
                Argument { name: "task", description: "What the session is for.", required: true, completed_by: None },
                Argument {
                    name: "entity",
                    description: "What it is mostly about, such as `svc:api`.",
                    required: false,
                    completed_by: Some(Completion::Entities),
                },
            ],
            render: |app, ctx, given| Box::pin(start_session(app, ctx, given)),
        },
        Prompt {
            name: "hand_off",
            title: "Hand off",
            description: "Leave everything so that another agent or person can go on.",
            arguments: vec![
                Argument { name: "session_id", description: "The session to hand off.", required: true, completed_by: None },
                Argument { name: "to", description: "Who goes on, if that is known.", required: false, completed_by: None },
            ],
            render: |_, _, given| Box::pin(async move { Ok(hand_off(&given)) }),
        },
        Prompt {
            name: "review",
            title: "Review an item of work",
            description: "Read an item of work with its comments, check what was done, and say so on the board.",
            arguments: vec![Argument {
                name: "work_id",
                description: "The item, as `list_work` names it.",
                required: true,
                completed_by: Some(Completion::WorkIds),
            }],
            render: |app, ctx, given| Box::pin(review(app, ctx, given)),
        },
    ]
}

/// A resource of the caller's inside of a message.
async fn embedded(app: &App, ctx: &CallContext, uri: &str) -> Result<Value, CallError> {
    let resource = app.library.read(app, ctx, uri).await?;
    Ok(json!({ "role": "user", "content": { "type": "resource", "resource": resource } }))
}

/// A name as the part of a URI.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

async fn start_session(app: &App, ctx: &CallContext, given: Given) -> Result<Vec<Value>, CallError> {
    let task = &given["task"];
    let mut messages = vec![user(format!(
        "You begin a session of work: {task}\n\nBefore you change anything:\n1. Ask `query_facts` for what the team knows about it, and \
         `list_work` for items that are under way.\n2. See with `list_punchcards` who holds what; `punch_in` on each file before you edit it, \
         and `punch_out` when you are done with it.\n3. Save where you stand with `save_session`, now and after every larger step.\n4. Store \
         with `store_fact` what others would otherwise have to find out again; ask with `approval_request` before anything risky.\n\nThen say in \
         three sentences what is known, what is taken, and what you do first."
    ))];
    if let Some(entity) = given.get("entity") {
        messages.push(embedded(app, ctx, &format!("quorate://facts/{}", encoded(entity))).await?);
    }
    Ok(messages)
}

fn hand_off(given: &Given) -> Vec<Value> {
    let session = &given["session_id"];
    let to = given.get("to").map(|to| format!(" to {to}")).unwrap_or_default();
    vec![user(format!(
        "Hand the session `{session}` off{to}:\n1. `save_session` with `session_id` `{session}`, and in its state: what was asked for, what is \
         done, what is not, the next step, and what was tried and did not work.\n2. `store_fact` for everything you learnt that is true beyond \
         this session.\n3. `comment_on_work` on each item that you touched, and `update_work_state` where its state has changed.\n4. `punch_out` \
         of every card you hold; `list_punchcards` shows them.\n\nThen write a summary of at most ten lines that names the session, the items \
         and what is still open. Leave out nothing that would surprise whoever goes on."
    ))]
}

async fn review(app: &App, ctx: &CallContext, given: Given) -> Result<Vec<Value>, CallError> {
    let work_id = &given["work_id"];
    let item = embedded(app, ctx, &format!("quorate://work/{}", encoded(work_id))).await?;
    let task = user(format!(
        "Review the item of work `{work_id}` above. Read what it asks for and what its comments claim, look at the change itself, and check \
         each claim that you can check. Then `comment_on_work` with what holds, what does not and what you could not tell, most important \
         first. Move it with `update_work_state` only if that is yours to do."
    ));
    Ok(vec![item, task])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_encoded_as_the_part_of_a_uri() {
        assert_eq!(encoded("svc:api/v1 é"), "svc%3Aapi%2Fv1%20%C3%A9");
    }
}
