//! What each host puts on a hook's input, and the answer that it understands.
//!
//! Every host takes exit code 2 with the reason on standard error for a no, except for Cursor, whose model sees a reason only
//! as JSON. A yes is silent wherever silence is allowed: saying "allow" would skip the host's own question to its user. What a
//! person or the model should hear all the same goes out as JSON beside the yes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::guard::{Decision, Verdict};
use super::shell::Variables;
use super::touch::{self, Touch};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    ClaudeCode,
    Codex,
    Gemini,
    Cursor,
    OpenCode,
    Goose,
    VsCode,
}

/// When a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    SessionStart,
    BeforeEdit,
    AfterEdit,
    SessionEnd,
}

/// One run of a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The host's own id of the conversation; empty if it sends none.
    pub session: String,
    /// Where relative paths begin; empty if the host does not say.
    pub cwd: String,
    pub tool: String,
    pub touched: Vec<Touch>,
}

/// What a hook says: its exit code and its two outputs.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub exit_code: u8,
    pub stdout: String,
    pub stderr: String,
}

impl Host {
    pub const ALL: [Host; 7] = [Host::ClaudeCode, Host::Codex, Host::Gemini, Host::Cursor, Host::OpenCode, Host::Goose, Host::VsCode];

    pub fn word(self) -> &'static str {
        match self {
            Host::ClaudeCode => "claude-code",
            Host::Codex => "codex",
            Host::Gemini => "gemini",
            Host::Cursor => "cursor",
            Host::OpenCode => "opencode",
            Host::Goose => "goose",
            Host::VsCode => "vscode",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|host| host.word() == word)
    }

    /// The host that writes like this, for a hook that was not told. Those that can't be told apart answer alike.
    pub fn of(input: &Value) -> Self {
        let has = |name: &str| input.get(name).is_some();
        let event = input["hook_event_name"].as_str().unwrap_or_default();
        match () {
            () if has("conversation_id") => Host::Cursor,
            () if matches!(event, "BeforeTool" | "AfterTool") || has("mcp_context") => Host::Gemini,
            () if has("turn_id") => Host::Codex,
            () if has("hookEventName") || has("sessionId") => Host::VsCode,
            () if has("working_dir") => Host::Goose,
            () if has("sessionID") => Host::OpenCode,
            () => Host::ClaudeCode,
        }
    }

    /// The hook's moment by the host's own name for it; nothing for events that are none of ours.
    pub fn moment(input: &Value) -> Option<Moment> {
        let name = ["hook_event_name", "hookEventName", "event"].iter().find_map(|name| input.get(name)?.as_str())?;
        match name {
            "PreToolUse" | "preToolUse" | "BeforeTool" | "beforeShellExecution" | "beforeMCPExecution" => Some(Moment::BeforeEdit),
            "PostToolUse" | "postToolUse" | "AfterTool" | "afterFileEdit" | "afterShellExecution" => Some(Moment::AfterEdit),
            "SessionStart" | "sessionStart" => Some(Moment::SessionStart),
            "SessionEnd" | "sessionEnd" => Some(Moment::SessionEnd),
            _ => None,
        }
    }

    /// Says the verdict in the host's form.
    pub fn answer(self, moment: Moment, verdict: &Verdict) -> Answer {
        let text = verdict.text.trim();
        if verdict.decision == Decision::Deny && moment == Moment::BeforeEdit {
            return match self {
                Host::Cursor => Answer {
                    exit_code: 0,
                    stdout: json!({ "permission": "deny", "user_message": text, "agent_message": text }).to_string(),
                    stderr: String::new(),
                },
                _ => Answer { exit_code: 2, stdout: String::new(), stderr: format!("{text}\n") },
            };
        }
        let stdout = match self {
            Host::ClaudeCode | Host::Codex | Host::VsCode if text.is_empty() => String::new(),
            Host::ClaudeCode | Host::Codex | Host::VsCode => claude_context(moment, text).to_string(),
            // Their output has to be JSON whatever there is to say.
            Host::Gemini | Host::Cursor | Host::Goose if text.is_empty() => "{}".into(),
            Host::Gemini => json!({ "systemMessage": text, "hookSpecificOutput": { "additionalContext": text } }).to_string(),
            Host::Cursor => json!({ "user_message": text, "agent_message": text }).to_string(),
            Host::Goose => json!({ "message": text }).to_string(),
            // Our own plugin there passes on what stands on standard error.
            Host::OpenCode => String::new(),
        };
        let stderr = if text.is_empty() { String::new() } else { format!("{text}\n") };
        Answer { exit_code: 0, stdout, stderr }
    }
}

/// The event's name in Claude Code, whose form Codex and VS Code took over.
fn claude_name(moment: Moment) -> &'static str {
    match moment {
        Moment::SessionStart => "SessionStart",
        Moment::BeforeEdit => "PreToolUse",
        Moment::AfterEdit => "PostToolUse",
        Moment::SessionEnd => "SessionEnd",
    }
}

fn claude_context(moment: Moment, text: &str) -> Value {
    json!({ "systemMessage": text, "hookSpecificOutput": { "hookEventName": claude_name(moment), "additionalContext": text } })
}

/// The answer to a hook that Claude Code calls over HTTP, where there are no exit codes.
pub fn claude_http(moment: Moment, verdict: &Verdict) -> Value {
    match verdict.decision {
        Decision::Deny if moment == Moment::BeforeEdit => json!({ "hookSpecificOutput": {
            "hookEventName": claude_name(moment),
            "permissionDecision": "deny",
            "permissionDecisionReason": verdict.text,
        } }),
        _ if verdict.text.is_empty() => json!({}),
        _ => claude_context(moment, &verdict.text),
    }
}

impl Event {
    /// Reads what a host sent. Fields of all hosts are looked for, since some copy one another's.
    pub fn read(input: &Value, variable: Variables) -> Self {
        let text = |names: &[&str]| names.iter().find_map(|name| input.get(name)?.as_str()).unwrap_or_default().to_string();
        let cwd = match text(&["cwd", "working_dir", "workingDirectory", "directory"]) {
            none if none.is_empty() => input["workspace_roots"][0].as_str().unwrap_or_default().to_string(),
            cwd => cwd,
        };
        let mut tool = text(&["tool_name", "toolName", "tool"]);
        let arguments = ["tool_input", "toolInput", "toolArgs", "args", "arguments"].iter().find_map(|name| input.get(name));
        let parsed;
        let arguments = match arguments {
            // Some send the arguments as JSON within JSON.
            Some(Value::String(text)) if text.trim_start().starts_with('{') => {
                parsed = serde_json::from_str(text).unwrap_or(Value::Null);
                &parsed
            }
            Some(arguments) => arguments,
            // Cursor's own events have their fields on top.
            None => input,
        };
        if tool.is_empty() {
            tool = if arguments.get("command").is_some() { "shell".into() } else { "edit".into() };
        }
        let touched = touch::touched(&tool, arguments, &cwd, variable);
        Self { session: text(&["session_id", "sessionId", "sessionID", "conversation_id"]), cwd, tool, touched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &Value) -> (Host, Option<Moment>, String, String, Vec<String>) {
        let event = Event::read(input, &|_| None);
        (Host::of(input), Host::moment(input), event.session, event.cwd, event.touched.into_iter().map(|touch| touch.path).collect())
    }

    #[test]
    fn what_each_host_sends_is_read_alike() {
        let wanted = |host, path: &str| (host, Some(Moment::BeforeEdit), "s1".to_string(), "/r".to_string(), vec![path.to_string()]);
        for (input, host, path) in [
            (
                json!({"session_id": "s1", "transcript_path": "/t", "cwd": "/r", "permission_mode": "default", "hook_event_name": "PreToolUse",
                    "tool_name": "Edit", "tool_input": {"file_path": "/r/a", "old_string": "", "new_string": ""}, "tool_use_id": "t"}),
                Host::ClaudeCode,
                "/r/a",
            ),
            (
                json!({"session_id": "s1", "turn_id": "1", "model": "m", "cwd": "/r", "hook_event_name": "PreToolUse", "tool_name": "apply_patch",
                    "tool_input": {"command": "*** Begin Patch\n*** Update File: a\n*** End Patch"}}),
                Host::Codex,
                "a",
            ),
            (
                json!({"session_id": "s1", "turn_id": "1", "cwd": "/r", "hook_event_name": "PreToolUse", "tool_name": "Bash",
                    "tool_input": {"command": "apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: a\n*** End Patch\nEOF"}}),
                Host::Codex,
                "a",
            ),
            (
                json!({"session_id": "s1", "cwd": "/r", "hook_event_name": "BeforeTool", "timestamp": "x", "tool_name": "write_file",
                    "tool_input": {"file_path": "a", "content": "x"}}),
                Host::Gemini,
                "a",
            ),
            (
                json!({"conversation_id": "s1", "generation_id": "g", "workspace_roots": ["/r"], "hook_event_name": "preToolUse", "tool_name": "Write",
                    "tool_input": {"path": "a"}}),
                Host::Cursor,
                "a",
            ),
            (
                json!({"conversation_id": "s1", "workspace_roots": ["/r"], "hook_event_name": "beforeShellExecution", "command": "rm a"}),
                Host::Cursor,
                "a",
            ),
            (
                json!({"sessionID": "s1", "event": "PreToolUse", "directory": "/r", "tool": "edit", "args": {"filePath": "a"}}),
                Host::OpenCode,
                "a",
            ),
            (
                json!({"sessionId": "s1", "hookEventName": "PreToolUse", "cwd": "/r", "tool_name": "create_file", "tool_input": {"files": ["a"]}}),
                Host::VsCode,
                "a",
            ),
            (
                json!({"event": "PreToolUse", "session_id": "s1", "working_dir": "/r", "tool_name": "developer__text_editor",
                    "tool_input": {"command": "write", "path": "a"}}),
                Host::Goose,
                "a",
            ),
        ] {
            assert_eq!(read(&input), wanted(host, path), "{input}");
        }
    }

    #[test]
    fn a_no_is_said_in_each_host_s_form_and_a_yes_is_silent() {
        let deny = Verdict { decision: Decision::Deny, text: "held".into(), leases: Vec::new() };
        let allow = Verdict { decision: Decision::Allow, text: String::new(), leases: Vec::new() };
        for host in Host::ALL {
            let no = host.answer(Moment::BeforeEdit, &deny);
            match host {
                Host::Cursor => assert_eq!(serde_json::from_str::<Value>(&no.stdout).unwrap()["permission"], "deny"),
                _ => assert_eq!((no.exit_code, no.stderr.as_str()), (2, "held\n")),
            }
            let yes = host.answer(Moment::BeforeEdit, &allow);
            assert_eq!((yes.exit_code, yes.stderr.as_str()), (0, ""));
            assert!(matches!(yes.stdout.as_str(), "" | "{}"), "{}", yes.stdout);
            // After an edit there is nothing to deny any more.
            assert_eq!(host.answer(Moment::AfterEdit, &deny).exit_code, 0);
        }
    }

    #[test]
    fn a_warning_lets_the_host_ask_its_user_as_ever() {
        let warn = Verdict { decision: Decision::Warn, text: "agent-a holds it".into(), leases: Vec::new() };
        let answer = Host::ClaudeCode.answer(Moment::BeforeEdit, &warn);
        let said: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert_eq!(said["hookSpecificOutput"]["additionalContext"], "agent-a holds it");
        assert!(said["hookSpecificOutput"].get("permissionDecision").is_none());
        assert_eq!(claude_http(Moment::BeforeEdit, &warn)["hookSpecificOutput"], said["hookSpecificOutput"]);
    }
}
