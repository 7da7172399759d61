//! What is promised of an answer.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::Value;

/// A whole reply, wrapper included: the facts stand in it twice over MCP.
const REPLY_BYTES_MAX: usize = 96 * 1024;

/// One answer, however it came.
#[derive(Debug)]
pub struct Answer {
    status: u16,
    bytes: usize,
    told: Told,
}

#[derive(Debug)]
enum Told {
    Facts(Value),
    /// What a refusal tells: `{code, message, retryable, wrote}`.
    Refusal(Value),
    /// A refusal of the protocol itself: `{code, message}`.
    Protocol(Value),
    /// Neither; what is wrong with it.
    Broken(String),
}

impl Answer {
    pub fn of_http(status: u16, body: Value, bytes: usize) -> Self {
        let told = match status {
            200..300 => Told::Facts(body),
            _ if body["code"].is_null() => Told::Broken(format!("a refusal without a code: {}", short(&body))),
            _ => Told::Refusal(body),
        };
        Self { status, bytes, told }
    }

    pub fn of_mcp(status: u16, body: Value, bytes: usize) -> Self {
        let result = &body["result"];
        let told = if body["error"].is_object() {
            Told::Protocol(body["error"].clone())
        } else if result["isError"] == true {
            let text = result["content"][0]["text"].as_str().unwrap_or_default();
            match &result["_meta"]["io.quorate/error"] {
                facts if facts["message"] == text && !text.is_empty() => Told::Refusal(facts.clone()),
                facts => Told::Broken(format!("the text of a refusal is not its message: {}", short(facts))),
            }
        } else {
            let facts = &result["structuredContent"];
            let text = result["content"][0]["text"].as_str().unwrap_or_default();
            match serde_json::from_str::<Value>(text) {
                Ok(same) if same == *facts => Told::Facts(facts.clone()),
                _ => Told::Broken(format!("text and structured content differ: {}", short(&body))),
            }
        };
        Self { status, bytes, told }
    }

    pub fn facts(&self) -> Option<&Value> {
        match &self.told {
            Told::Facts(facts) => Some(facts),
            _ => None,
        }
    }

    /// A word for the report.
    pub fn outcome(&self) -> String {
        match &self.told {
            Told::Facts(_) => "ok".into(),
            Told::Refusal(facts) | Told::Protocol(facts) => format!("refused {}", facts["code"]),
            Told::Broken(_) => format!("broken {}", self.status),
        }
    }
}

/// The output schemas of all tools.
pub struct Judge {
    schemas: BTreeMap<String, jsonschema::Validator>,
}

impl Judge {
    pub fn of(tools: &[Value]) -> anyhow::Result<Self> {
        let mut schemas = BTreeMap::new();
        for tool in tools {
            let name = tool["name"].as_str().context("a tool has no name")?;
            let schema = jsonschema::validator_for(&tool["outputSchema"]);
            schemas.insert(name.to_string(), schema.map_err(|error| anyhow::anyhow!("the output schema of {name}: {error}"))?);
        }
        Ok(Self { schemas })
    }

    /// Every promise that an answer breaks: a kind, a colon, and what was seen.
    pub fn problems(&self, tool: &str, answer: &Answer) -> Vec<String> {
        let mut problems = Vec::new();
        // A feature that is switched off is told with 501, and is no fault.
        if answer.status >= 500 && answer.status != 501 {
            problems.push(format!("a fault, status {}: {:?}", answer.status, answer.told));
        }
        if answer.bytes > REPLY_BYTES_MAX {
            problems.push(format!("too large: {} bytes", answer.bytes));
        }
        match &answer.told {
            Told::Facts(facts) => match self.schemas.get(tool) {
                Some(schema) => problems.extend(
                    schema
                        .iter_errors(facts)
                        .take(1)
                        .map(|error| format!("breaks its output schema: `{}` {}", error.instance_path(), error.masked())),
                ),
                None => problems.push("has no output schema: it is not listed".into()),
            },
            Told::Refusal(facts) => {
                let is_typed = facts["message"].is_string() && facts["retryable"].is_boolean() && facts["wrote"].is_string();
                if !is_typed {
                    problems.push(format!("a refusal without its fields: {}", short(facts)));
                } else if facts["wrote"] != "no" {
                    problems.push(format!("an unknown outcome: {}", short(facts)));
                }
                if facts["code"] == "INTERNAL_ERROR" {
                    problems.push(format!("an internal error: {}", short(facts)));
                }
            }
            Told::Protocol(facts) if facts["code"] == -32603 => problems.push(format!("an internal error: {}", short(facts))),
            Told::Protocol(_) => {}
            Told::Broken(problem) => problems.push(format!("broken: {problem}")),
        }
        problems
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(answer: Answer) -> Vec<String> {
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
        let judge = Judge::of(&[json!({ "name": "t", "outputSchema": schema })]).unwrap();
        let kinds = judge.problems("t", &answer);
        kinds.iter().map(|problem| problem.split(':').next().unwrap_or_default().to_string()).collect()
    }

    #[test]
    fn an_answer_in_its_shape_and_a_typed_refusal_pass() {
        assert_eq!(judged(Answer::of_http(200, json!({ "n": 1 }), 9)), [""; 0]);
        let refusal = json!({ "code": -32602, "message": "no", "retryable": false, "wrote": "no" });
        assert_eq!(judged(Answer::of_http(400, refusal.clone(), 9)), [""; 0]);
        let result = json!({ "result": { "content": [{ "type": "text", "text": "no" }], "isError": true, "_meta": { "io.quorate/error": refusal } } });
        assert_eq!(judged(Answer::of_mcp(200, result, 9)), [""; 0]);
        let result = json!({ "result": { "content": [{ "type": "text", "text": "{\"n\":1}" }], "structuredContent": { "n": 1 } } });
        assert_eq!(judged(Answer::of_mcp(200, result, 9)), [""; 0]);
    }

    #[test]
    fn every_broken_promise_is_found() {
        assert_eq!(judged(Answer::of_http(200, json!({ "n": "1" }), 9)), ["breaks its output schema"]);
        assert_eq!(judged(Answer::of_http(200, json!({ "n": 1 }), 1 << 20)), ["too large"]);
        let fault = json!({ "code": "INTERNAL_ERROR", "message": "m", "retryable": false, "wrote": "unknown" });
        assert_eq!(judged(Answer::of_http(500, fault, 9)), ["a fault, status 500", "an unknown outcome", "an internal error"]);
        assert_eq!(judged(Answer::of_http(400, Value::String("<html>".into()), 9)), ["broken"]);
        assert_eq!(judged(Answer::of_http(400, json!({ "code": 1 }), 9)), ["a refusal without its fields"]);
        assert_eq!(judged(Answer::of_mcp(200, json!({ "error": { "code": -32603, "message": "m" } }), 9)), ["an internal error"]);
        let result = json!({ "result": { "content": [{ "type": "text", "text": "{\"n\":2}" }], "structuredContent": { "n": 1 } } });
        assert_eq!(judged(Answer::of_mcp(200, result, 9)), ["broken"]);
    }
}
