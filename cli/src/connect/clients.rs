//! What each client wants, in which file.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::file;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Client {
    ClaudeCode,
    Codex,
    Cursor,
    #[value(name = "vscode")]
    VsCode,
    Gemini,
    #[value(name = "opencode")]
    OpenCode,
    Goose,
    ClaudeDesktop,
}

/// The home folder's files differ by system in one case only.
#[derive(Clone, Copy, PartialEq)]
pub enum Home {
    Home,
    /// Where applications keep their configuration.
    Config,
}

enum Content {
    /// Merged into an object.
    Json(Value),
    /// A table and what it holds.
    Toml(&'static [&'static str], String),
    /// A file that is ours alone.
    Whole(String),
    /// Shown, to be put in by hand.
    ByHand(String),
}

/// One file.
pub struct Part {
    pub path: PathBuf,
    /// It is below the home folder, not in the project.
    pub home: Option<Home>,
    content: Content,
}

impl Part {
    /// As people write its path.
    pub fn shown(&self) -> String {
        match self.home {
            None => self.path.display().to_string(),
            Some(Home::Home) => format!("~/{}", self.path.display()),
            Some(Home::Config) if cfg!(target_os = "macos") => format!("~/Library/Application Support/{}", self.path.display()),
            Some(Home::Config) => format!("~/.config/{}", self.path.display()),
        }
    }

    pub fn in_home(&self) -> Option<PathBuf> {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
        Some(PathBuf::from(home).join(self.shown().strip_prefix("~/")?))
    }

    #[cfg(test)]
    pub fn language(&self) -> &str {
        self.path.extension().and_then(|ending| ending.to_str()).unwrap_or_default()
    }

    /// The file, if nothing else is in it.
    pub fn fresh(&self) -> String {
        match &self.content {
            Content::Json(wanted) => format!("{wanted:#}\n"),
            Content::Toml(path, wanted) => format!("[{}]\n{wanted}", path.join(".")),
            Content::Whole(text) | Content::ByHand(text) => text.clone(),
        }
    }

    /// The file with this in it, or why it can't be put in.
    pub fn merged(&self, before: Option<&str>) -> Result<String, String> {
        match &self.content {
            Content::Json(wanted) => file::json(before, wanted),
            Content::Toml(path, wanted) => file::toml(before, path, wanted),
            Content::Whole(text) => Ok(text.clone()),
            Content::ByHand(text) => match before {
                None => Ok(text.clone()),
                Some(before) if before.contains(text.as_str()) => Ok(before.into()),
                Some(_) => Err("it holds settings, and this program does not edit YAML".into()),
            },
        }
    }
}

fn in_project(path: &str, content: Content) -> Part {
    Part { path: path.into(), home: None, content }
}

fn in_home(home: Home, path: &str, content: Content) -> Part {
    Part { path: path.into(), home: Some(home), content }
}

/// Hooks in the form of Claude Code, which several hosts took over: event, matcher, our event.
fn hooks(host: &str, extra: &Value, events: &[(&str, &str, &str)]) -> Value {
    let mut all = json!({});
    for (event, matcher, ours) in events {
        let mut hook = json!({ "type": "command", "command": format!("quorate hook {ours} --host {host}") });
        if let (Some(hook), Some(extra), true) = (hook.as_object_mut(), extra.as_object(), *ours == "pre-tool-use") {
            hook.extend(extra.clone());
        }
        let mut entry = json!({ "hooks": [hook] });
        if !matcher.is_empty() {
            entry = json!({ "matcher": matcher, "hooks": entry["hooks"] });
        }
        all[*event] = json!([entry]);
    }
    json!({ "hooks": all })
}

const OPENCODE_PLUGIN: &str = r#"// Asks the edit guard before every tool call; its no is the call's error. Written by `quorate connect opencode`.
import { spawnSync } from "node:child_process";

function hook(event, payload) {
  const done = spawnSync("quorate", ["hook", event, "--host", "opencode"], { input: JSON.stringify(payload), encoding: "utf8" });
  if (done.status === 2) throw new Error(done.stderr.trim());
}

export const Quorate = async ({ directory }) => ({
  "tool.execute.before": async (input, output) =>
    hook("pre-tool-use", { sessionID: input.sessionID, directory, tool: input.tool, args: output.args }),
  "tool.execute.after": async (input) =>
    hook("post-tool-use", { sessionID: input.sessionID, directory, tool: input.tool, args: input.args ?? {} }),
});
"#;

impl Client {
    pub fn word(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }

    #[cfg(test)]
    pub fn title(self) -> &'static str {
        match self {
            Client::ClaudeCode => "Claude Code",
            Client::Codex => "Codex",
            Client::Cursor => "Cursor",
            Client::VsCode => "VS Code",
            Client::Gemini => "Gemini CLI",
            Client::OpenCode => "OpenCode",
            Client::Goose => "Goose",
            Client::ClaudeDesktop => "Claude Desktop",
        }
    }

    #[cfg(test)]
    pub fn about(self) -> &'static str {
        match self {
            Client::ClaudeCode => {
                "An edit of a file that another holds is denied before it happens, and with `onFailure` also when the hook itself fails."
            }
            Client::Codex => {
                "Codex runs a hook only after you have reviewed it, and asks anew when its command line changes; so options belong in `.quorate.toml`. An edit goes through when the hook can't run: guard commits as well, with `quorate guard install`."
            }
            Client::Cursor => "`failClosed` denies an edit also when the hook itself fails.",
            Client::VsCode => {
                "VS Code asks once for the token and keeps it. An edit goes through when the hook can't run: guard commits as well, with `quorate guard install`."
            }
            Client::Gemini => "An edit goes through when the hook can't run: guard commits as well, with `quorate guard install`.",
            Client::OpenCode => {
                "OpenCode has no hooks but plugins; this one throws the guard's reason. An edit goes through when the hook can't run: guard commits as well, with `quorate guard install`."
            }
            Client::Goose => {
                "Goose keeps its settings as YAML, which this program prints and never edits. `on_failure` denies an edit also when the hook itself fails."
            }
            Client::ClaudeDesktop => {
                "Claude Desktop reaches other machines by OAuth only, so a bridge runs beside it: `quorate mcp`. It has no hooks."
            }
        }
    }

    /// What a person has to do besides.
    pub fn next(self) -> &'static str {
        match self {
            Client::ClaudeDesktop => {
                "Put the token alone into `~/.config/quorate/token`, readable by you only, and start Claude Desktop anew."
            }
            Client::VsCode => "Set QUORATE_URL and QUORATE_TOKEN in the environment for the guard, and start VS Code anew.",
            Client::Codex => "Set QUORATE_URL and QUORATE_TOKEN in the environment, start Codex anew, and accept the hooks in `/hooks`.",
            _ => "Set QUORATE_URL and QUORATE_TOKEN in the environment, and start the client anew.",
        }
    }

    /// The server's entry, as this client has it: one gateway by HTTP, or the bridge that tries several in turn, which is for
    /// no client to do.
    fn server(self, urls: &[String]) -> Value {
        let bearer = |variable: &str| json!({ "Authorization": format!("Bearer {variable}") });
        if let ([url], true) = (urls, self != Client::ClaudeDesktop) {
            return match self {
                Client::ClaudeCode => json!({ "type": "http", "url": url, "headers": bearer("${QUORATE_TOKEN}") }),
                Client::VsCode => json!({ "type": "http", "url": url, "headers": bearer("${input:quorate_token}") }),
                Client::Gemini => json!({ "httpUrl": url, "headers": bearer("$QUORATE_TOKEN"), "timeout": 60_000 }),
                Client::OpenCode => json!({
                    "type": "remote", "url": url, "oauth": false, "headers": bearer("{env:QUORATE_TOKEN}"), "enabled": true,
                }),
                _ => json!({ "url": url, "headers": bearer("${env:QUORATE_TOKEN}") }),
            };
        }
        let arguments = ["mcp", "--url", &urls.join(",")];
        match self {
            Client::ClaudeCode => json!({ "type": "stdio", "command": "quorate", "args": arguments }),
            Client::VsCode => {
                let token = json!({ "QUORATE_TOKEN": "${input:quorate_token}" });
                json!({ "type": "stdio", "command": "quorate", "args": arguments, "env": token })
            }
            // It hands on no variable by itself whose name is like that of a secret.
            Client::Gemini => {
                json!({ "command": "quorate", "args": arguments, "env": { "QUORATE_TOKEN": "$QUORATE_TOKEN" }, "timeout": 60_000 })
            }
            Client::OpenCode => {
                let command = [&["quorate"], &arguments[..]].concat();
                json!({ "type": "local", "command": command, "enabled": true })
            }
            Client::Cursor => json!({ "command": "quorate", "args": arguments, "env": { "QUORATE_TOKEN": "${env:QUORATE_TOKEN}" } }),
            _ => json!({ "command": "quorate", "args": arguments }),
        }
    }

    /// What goes into which file.
    pub fn parts(self, urls: &[String], guard: bool) -> Vec<Part> {
        let server = self.server(urls);
        let bridged = urls.len() > 1;
        let all = urls.join(",");
        let (mcp, hooked) = match self {
            Client::ClaudeCode => (
                in_project(".mcp.json", Content::Json(json!({ "mcpServers": { "quorate": server } }))),
                in_project(
                    ".claude/settings.json",
                    Content::Json(hooks(
                        "claude-code",
                        &json!({ "timeout": 3, "onFailure": "block" }),
                        &[
                            ("SessionStart", "", "session-start"),
                            ("PreToolUse", "Edit|Write|MultiEdit|NotebookEdit|Bash", "pre-tool-use"),
                            ("PostToolUse", "Edit|Write|MultiEdit|NotebookEdit|Bash", "post-tool-use"),
                            ("SessionEnd", "", "session-end"),
                        ],
                    )),
                ),
            ),
            Client::Codex => (
                in_home(
                    Home::Home,
                    ".codex/config.toml",
                    Content::Toml(
                        &["mcp_servers", "quorate"],
                        match bridged {
                            // It hands on no variables but those.
                            true => format!(
                                "command = \"quorate\"\nargs = [\"mcp\", \"--url\", \"{all}\"]\nenv_vars = [\"QUORATE_TOKEN\", \"QUORATE_CA\"]\ntool_timeout_sec = 120\n"
                            ),
                            false => format!("url = \"{all}\"\nbearer_token_env_var = \"QUORATE_TOKEN\"\ntool_timeout_sec = 120\n"),
                        },
                    ),
                ),
                in_home(
                    Home::Home,
                    ".codex/hooks.json",
                    Content::Json(hooks(
                        "codex",
                        &Value::Null,
                        &[
                            ("SessionStart", "", "session-start"),
                            ("PreToolUse", "apply_patch|Bash", "pre-tool-use"),
                            ("PostToolUse", "apply_patch|Bash", "post-tool-use"),
                            ("SessionEnd", "", "session-end"),
                        ],
                    )),
                ),
            ),
            Client::Cursor => (
                in_project(".cursor/mcp.json", Content::Json(json!({ "mcpServers": { "quorate": server } }))),
                in_project(".cursor/hooks.json", {
                    let run = |ours: &str| json!([{ "command": format!("quorate hook {ours} --host cursor") }]);
                    let deny = json!([{ "command": "quorate hook pre-tool-use --host cursor", "failClosed": true }]);
                    Content::Json(json!({ "version": 1, "hooks": {
                        "preToolUse": deny, "beforeShellExecution": deny, "afterFileEdit": run("post-tool-use"),
                        "sessionStart": run("session-start"), "sessionEnd": run("session-end"),
                    } }))
                }),
            ),
            Client::VsCode => (
                in_project(
                    ".vscode/mcp.json",
                    Content::Json(json!({
                        "inputs": [{ "type": "promptString", "id": "quorate_token", "description": "Quorate token", "password": true }],
                        "servers": { "quorate": server },
                    })),
                ),
                in_project(".github/hooks/quorate.json", {
                    let run = |ours: &str| json!([{ "type": "command", "command": format!("quorate hook {ours} --host vscode") }]);
                    Content::Json(json!({ "hooks": {
                        "SessionStart": run("session-start"), "PreToolUse": run("pre-tool-use"), "PostToolUse": run("post-tool-use"),
                    } }))
                }),
            ),
            Client::Gemini => {
                let servers = json!({ "quorate": server });
                let mcp = in_project(".gemini/settings.json", Content::Json(json!({ "mcpServers": servers })));
                let matcher = "write_file|replace|run_shell_command";
                let mut both = hooks(
                    "gemini",
                    &json!({ "timeout": 3_000 }),
                    &[
                        ("SessionStart", "", "session-start"),
                        ("BeforeTool", matcher, "pre-tool-use"),
                        ("AfterTool", matcher, "post-tool-use"),
                        ("SessionEnd", "", "session-end"),
                    ],
                );
                both["mcpServers"] = servers;
                // One file holds both.
                return vec![if guard { in_project(".gemini/settings.json", Content::Json(both)) } else { mcp }];
            }
            Client::OpenCode => (
                in_project("opencode.json", Content::Json(json!({ "mcp": { "quorate": server } }))),
                in_project(".opencode/plugin/quorate.js", Content::Whole(OPENCODE_PLUGIN.into())),
            ),
            Client::Goose => (
                in_home(
                    Home::Home,
                    ".config/goose/config.yaml",
                    Content::ByHand(match bridged {
                        true => format!(
                            "extensions:\n  quorate:\n    type: stdio\n    name: quorate\n    enabled: true\n    cmd: quorate\n    args: [\"mcp\", \"--url\", \"{all}\"]\n    env_keys: [QUORATE_TOKEN]\n    timeout: 300\n"
                        ),
                        false => format!(
                            "extensions:\n  quorate:\n    type: streamable_http\n    name: quorate\n    enabled: true\n    uri: \"{all}\"\n    headers:\n      Authorization: \"Bearer YOUR_TOKEN\"\n    timeout: 300\n"
                        ),
                    }),
                ),
                in_project(
                    ".agents/plugins/quorate/hooks/hooks.json",
                    Content::Json(hooks(
                        "goose",
                        &json!({ "on_failure": "block" }),
                        &[("PreToolUse", ".*", "pre-tool-use"), ("PostToolUse", ".*", "post-tool-use"), ("SessionEnd", "", "session-end")],
                    )),
                ),
            ),
            Client::ClaudeDesktop => {
                let bridge = json!({ "mcpServers": { "quorate": server } });
                return vec![in_home(Home::Config, "Claude/claude_desktop_config.json", Content::Json(bridge))];
            }
        };
        if guard { vec![mcp, hooked] } else { vec![mcp] }
    }
}
