//! The caller's client during one call: what it declared, and how a tool talks to it.
//!
//! A tool may tell how far it is, log, or ask the client for something. The eras differ in how that travels, and a tool does
//! not see it: with sessions, a question goes out on the call's stream and the tool waits for the answer; without them, the
//! call ends with what is asked for, and the client calls again with the answers. So a tool asks before it has any effect.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::live::Live;
use crate::call::CallError;
use crate::limit::{ANSWER_WITHIN, SAID_WAITING};

/// How bad something is, in the words of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl Level {
    const ALL: [(Level, &'static str); 8] = [
        (Level::Debug, "debug"),
        (Level::Info, "info"),
        (Level::Notice, "notice"),
        (Level::Warning, "warning"),
        (Level::Error, "error"),
        (Level::Critical, "critical"),
        (Level::Alert, "alert"),
        (Level::Emergency, "emergency"),
    ];

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == word).map(|(level, _)| level)
    }

    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// What a tool says while it runs.
#[derive(Debug)]
pub enum Said {
    /// A message as JSON.
    Message(String),
    /// End the connection now; the client comes back for the rest.
    HangUp,
}

/// A question to the client, or to the person who sits there.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub method: &'static str,
    pub params: Value,
}

impl Question {
    /// The capability that a client has to declare for it.
    fn capability(&self) -> &'static str {
        match self.method {
            "elicitation/create" => "elicitation",
            "sampling/createMessage" => "sampling",
            _ => "roots",
        }
    }

    /// Whether something has the shape of an answer to it. What a person typed is not judged here.
    fn accepts(&self, answer: &Value) -> bool {
        match self.capability() {
            "elicitation" => matches!(answer["action"].as_str(), Some("accept" | "decline" | "cancel")),
            "sampling" => answer["role"].is_string() && !answer["content"].is_null(),
            _ => answer["roots"].is_array(),
        }
    }
}

/// What a call needs before it can go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Needed {
    pub questions: BTreeMap<String, Question>,
    /// Comes back with the answers, unchanged.
    pub state: Option<Value>,
}

/// The questions and answers of the two eras.
pub enum Answers {
    /// Nobody can be asked: over plain HTTP, or in a batch.
    Nobody,
    /// Asked on the stream; the answer comes as a request of its own, to this gateway.
    Live { live: Arc<Live>, owner: String },
    /// Given with the call.
    Given { answers: Map<String, Value>, state: Option<Value> },
}

/// See the module.
pub struct Client {
    /// The client's capabilities.
    pub declared: Map<String, Value>,
    pub progress_token: Option<Value>,
    /// The least severe message that it wants; `None` is none at all.
    pub level: Option<Level>,
    pub answers: Answers,
    to: Option<mpsc::Sender<Said>>,
}

impl Client {
    /// A client that is told nothing and can't be asked.
    pub fn silent() -> Self {
        Self { declared: Map::new(), progress_token: None, level: None, answers: Answers::Nobody, to: None }
    }

    /// What is said from now on comes out of the receiver.
    pub fn listen(&mut self) -> mpsc::Receiver<Said> {
        let (to, from) = mpsc::channel(SAID_WAITING);
        self.to = Some(to);
        from
    }

    async fn say(&self, said: Said) {
        // Without a stream, or once it is over, there is nobody to tell; the call itself goes on.
        if let Some(to) = &self.to {
            let _ = to.send(said).await;
        }
    }

    async fn notify(&self, method: &str, params: Value) {
        self.say(Said::Message(json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string())).await;
    }

    /// How far the call is, if the client asked to be told.
    pub async fn progress(&self, done: u64, total: Option<u64>, message: Option<&str>) {
        let Some(token) = &self.progress_token else { return };
        let mut params = json!({ "progressToken": token, "progress": done });
        if let Some(total) = total {
            params["total"] = total.into();
        }
        if let Some(message) = message {
            params["message"] = message.into();
        }
        self.notify("notifications/progress", params).await;
    }

    /// A message for the client's log, if it wants those of this level.
    pub async fn log(&self, level: Level, text: &str) {
        if self.level.is_some_and(|wanted| wanted <= level) {
            self.notify("notifications/message", json!({ "level": level.word(), "logger": "quorate", "data": text })).await;
        }
    }

    /// Ends the connection of the call, which goes on; the client comes back for its answer.
    pub async fn hang_up(&self) {
        self.say(Said::HangUp).await;
    }

    /// What the tool gave along with its last questions.
    pub fn state(&self) -> Option<&Value> {
        match &self.answers {
            Answers::Given { state, .. } => state.as_ref(),
            Answers::Nobody | Answers::Live { .. } => None,
        }
    }

    pub fn has_declared(&self, capability: &str) -> bool {
        self.declared.contains_key(capability)
    }

    /// The answers to all of the questions. An error is what ends the call, and has to be handed on.
    pub async fn ask(&self, questions: BTreeMap<String, Question>, state: Option<Value>) -> Result<BTreeMap<String, Value>, CallError> {
        for question in questions.values() {
            if !self.has_declared(question.capability()) {
                return Err(CallError::MissingCapability { capability: question.capability().into() });
            }
        }
        match (&self.answers, &self.to) {
            (Answers::Given { answers, .. }, _) => {
                let answered: BTreeMap<String, Value> = questions
                    .iter()
                    .filter_map(|(name, question)| {
                        let answer = answers.get(name).filter(|answer| question.accepts(answer))?;
                        Some((name.clone(), answer.clone()))
                    })
                    .collect();
                match answered.len() == questions.len() {
                    true => Ok(answered),
                    false => Err(CallError::InputRequired(Box::new(Needed { questions, state }))),
                }
            }
            (Answers::Live { live, owner }, Some(_)) => {
                let mut answered = BTreeMap::new();
                for (name, question) in questions {
                    let (id, answer) = live.ask(owner);
                    let request = json!({ "jsonrpc": "2.0", "id": id.name(), "method": question.method, "params": question.params });
                    self.say(Said::Message(request.to_string())).await;
                    let answer = timeout(ANSWER_WITHIN, answer).await;
                    // The other end goes with the gateway alone.
                    let Ok(Ok(answer)) = answer else {
                        return Err(CallError::Unanswered { detail: format!("nothing came within {} s", ANSWER_WITHIN.as_secs()) });
                    };
                    match answer {
                        Ok(answer) if question.accepts(&answer) => answered.insert(name, answer),
                        Ok(_) => return Err(CallError::Unanswered { detail: format!("that is no answer to `{}`", question.method) }),
                        Err(problem) => return Err(CallError::Unanswered { detail: problem }),
                    };
                }
                Ok(answered)
            }
            _ => Err(CallError::Unanswered { detail: "there is no stream to ask on".into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_they_are_written_and_ordered_by_severity() {
        for (level, word) in Level::ALL {
            assert_eq!((Level::parse(word), level.word()), (Some(level), word));
        }
        assert!(Level::Debug < Level::Info && Level::Alert < Level::Emergency);
        assert_eq!(Level::parse("INFO"), None);
    }
}
