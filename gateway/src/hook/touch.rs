//! Which files a tool call changes.
//!
//! Tools are told apart by their names, since every host has its own: a name that says it reads is let be, a shell or patch
//! tool's text is read, and any other tool changes the files that it names.

use serde_json::Value;

use super::{patch, shell};

/// A file or folder that a call changes, as the call spells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touch {
    /// Relative to the working directory of the call, unless it begins with `/`.
    pub path: String,
    /// A link at the end of the path is followed: writing goes through it, removing and moving do not.
    pub through_link: bool,
    /// `path` is a shell pattern, with what is meant literally in brackets.
    pub is_pattern: bool,
    /// When the path is a folder, these names in it are changed, and not the folder.
    pub into: Vec<String>,
}

impl Touch {
    pub fn write(path: impl Into<String>) -> Self {
        Self { path: path.into(), through_link: true, is_pattern: false, into: Vec::new() }
    }

    /// Removed, moved away or replaced as a whole.
    pub fn replace(path: impl Into<String>) -> Self {
        Self { through_link: false, ..Self::write(path) }
    }
}

/// Arguments of edit tools that name what is changed.
const PATHS: [&str; 21] = [
    "file_path",
    "filePath",
    "filepath",
    "path",
    "notebook_path",
    "notebookPath",
    "target_file",
    "target_notebook",
    "targetFile",
    "file_name",
    "filename",
    "file",
    "absolute_path",
    "source",
    "destination",
    "source_path",
    "destination_path",
    "old_path",
    "new_path",
    "relative_path",
    "relative_workspace_path",
];
/// The same with several at once: names, or objects that hold them.
const LISTS: [&str; 6] = ["files", "paths", "filePaths", "file_paths", "edits", "replacements"];
/// Arguments that hold a patch.
const PATCHES: [&str; 5] = ["patch", "patchText", "input", "command", "diff"];

enum Kind {
    Reads,
    Shell,
    Patch,
    Edits,
}

/// `mcp__filesystem__move_file` is called `movefile`, like `MoveFile`.
fn own_name(tool: &str) -> String {
    let own = tool.rsplit("__").next().unwrap_or(tool);
    own.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// By the words of a tool's name.
fn kind(tool: &str, input: &Value) -> Kind {
    let plain = own_name(tool);
    let says = |words: &[&str]| words.iter().any(|word| plain.contains(word));
    if says(&["applypatch"]) {
        return Kind::Patch;
    }
    if input.get("command").is_some_and(|command| command == "view") {
        // The text editor tools tell their act in an argument.
        return Kind::Reads;
    }
    if says(&["edit", "write", "create", "replace", "insert", "delete", "remove", "move", "rename", "patch", "save"]) {
        return Kind::Edits;
    }
    if says(&["bash", "shell", "exec", "terminal", "runcommand"]) {
        return Kind::Shell;
    }
    Kind::Reads
}

/// What a call changes, without doubles. `variable` tells the environment of a shell command, as far as it is known.
pub fn touched(tool: &str, input: &Value, cwd: &str, variable: shell::Variables) -> Vec<Touch> {
    let mut touched = match kind(tool, input) {
        Kind::Reads => Vec::new(),
        Kind::Patch => patched(input),
        Kind::Shell => match input.get("command").or_else(|| input.get("cmd")) {
            Some(Value::String(command)) => shell::touched(command, cwd, variable),
            Some(Value::Array(words)) => {
                let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                shell::touched_by_words(&words, cwd, variable)
            }
            _ => Vec::new(),
        },
        Kind::Edits => {
            let says = |word| own_name(tool).contains(word);
            let mut named = named(input, says("move") || says("rename") || says("delete"));
            named.extend(patched(input));
            named
        }
    };
    touched.sort();
    touched.dedup();
    touched
}

fn patched(input: &Value) -> Vec<Touch> {
    let texts = PATCHES.iter().filter_map(|name| input.get(name)).chain(input.is_string().then_some(input));
    let text = |value: &Value| match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(words) => words.iter().filter_map(Value::as_str).map(String::from).collect(),
        _ => Vec::new(),
    };
    texts.flat_map(text).flat_map(|text| patch::touched(&text)).collect()
}

fn named(input: &Value, moves: bool) -> Vec<Touch> {
    let touch = |path: &str| if moves { Touch::replace(strip(path)) } else { Touch::write(strip(path)) };
    let mut found: Vec<Touch> =
        PATHS.iter().filter_map(|name| input.get(name)).filter_map(Value::as_str).filter(|path| !path.is_empty()).map(touch).collect();
    for list in LISTS.iter().filter_map(|name| input.get(name)).filter_map(Value::as_array) {
        for entry in list {
            match entry {
                Value::String(path) => found.push(touch(path)),
                entry => found.extend(PATHS.iter().filter_map(|name| entry.get(name)).filter_map(Value::as_str).map(touch)),
            }
        }
    }
    if let Some(changes) = input.get("changes").and_then(Value::as_object) {
        found.extend(changes.keys().map(|path| touch(path)));
    }
    found
}

/// Some editors name files as URIs.
fn strip(path: &str) -> &str {
    path.strip_prefix("file://").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(tool: &str, input: Value) -> Vec<String> {
        touched(tool, &input, "/repo", &|_| None).into_iter().map(|touch| touch.path).collect()
    }

    #[test]
    fn every_host_s_edit_tool_names_its_files() {
        for (tool, input, wanted) in [
            ("Edit", json!({"file_path": "/r/a.rs", "old_string": "x", "new_string": "y"}), vec!["/r/a.rs"]),
            ("MultiEdit", json!({"file_path": "/r/a b.rs", "edits": [{"old_string": "x", "new_string": "y"}]}), vec!["/r/a b.rs"]),
            ("NotebookEdit", json!({"notebook_path": "n.ipynb", "new_source": ""}), vec!["n.ipynb"]),
            ("write_file", json!({"file_path": "ü.rs", "content": ""}), vec!["ü.rs"]),
            ("replace", json!({"file_path": "a"}), vec!["a"]),
            ("edit", json!({"filePath": "a"}), vec!["a"]),
            ("multi_replace_string_in_file", json!({"replacements": [{"filePath": "a"}, {"filePath": "b"}]}), vec!["a", "b"]),
            ("create_file", json!({"files": ["a", "b"]}), vec!["a", "b"]),
            ("developer__text_editor", json!({"command": "write", "path": "a"}), vec!["a"]),
            ("developer__text_editor", json!({"command": "view", "path": "a"}), vec![]),
            ("mcp__filesystem__move_file", json!({"source": "a", "destination": "b"}), vec!["a", "b"]),
            ("apply_patch", json!({"command": "*** Begin Patch\n*** Update File: a\n*** Move to: b\n*** End Patch"}), vec!["a", "b"]),
            ("apply_patch", json!({"command": ["apply_patch", "*** Begin Patch\n*** Delete File: a\n*** End Patch"]}), vec!["a"]),
            ("apply_patch", json!({"input": "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch"}), vec!["a"]),
            ("shell", json!({"command": ["bash", "-lc", "echo x > a"]}), vec!["a"]),
            ("run_shell_command", json!({"command": "rm a"}), vec!["a"]),
            ("create_file", json!({"filePath": "file:///r/a"}), vec!["/r/a"]),
            ("Read", json!({"file_path": "a"}), vec![]),
            ("Grep", json!({"path": "a"}), vec![]),
            ("TodoWrite", json!({"todos": []}), vec![]),
            ("mcp__filesystem__read_text_file", json!({"path": "a"}), vec![]),
        ] {
            assert_eq!(paths(tool, input.clone()), wanted, "{tool} {input}");
        }
    }
}
