//! What kind of file something is, and its text.

/// Markdown, whose headings are known.
pub const MARKDOWN: &str = "text/markdown";
const PLAIN: &str = "text/plain";
const CODE: &str = "text/x-source";

const MARKDOWN_ENDINGS: [&str; 4] = ["md", "markdown", "mdx", "mdown"];
const PLAIN_ENDINGS: [&str; 12] = ["txt", "text", "rst", "adoc", "asciidoc", "org", "tex", "log", "csv", "tsv", "srt", "eml"];
const CODE_ENDINGS: [&str; 72] = [
    "rs", "py", "js", "mjs", "cjs", "jsx", "ts", "tsx", "go", "c", "h", "cc", "cpp", "cxx", "hpp", "hh", "java", "kt", "kts", "scala",
    "cs", "fs", "swift", "m", "mm", "rb", "php", "pl", "pm", "lua", "r", "jl", "ex", "exs", "erl", "hs", "ml", "mli", "clj", "lisp", "el",
    "zig", "nim", "d", "dart", "sh", "bash", "zsh", "fish", "ps1", "sql", "proto", "graphql", "html", "htm", "css", "scss", "xml", "svg",
    "json", "jsonl", "yaml", "yml", "toml", "ini", "cfg", "conf", "env", "tf", "nix", "gradle", "cmake",
];
/// Files without an ending that are text.
const CODE_NAMES: [&str; 10] =
    ["Makefile", "Dockerfile", "LICENSE", "README", "NOTICE", "CHANGELOG", "Justfile", "Rakefile", "Gemfile", "Procfile"];

fn of_name(name: &str) -> Option<&'static str> {
    let file = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let ending = file.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    let ending = ending.as_deref();
    let is_in = |endings: &[&str]| ending.is_some_and(|ending| endings.contains(&ending));
    match () {
        () if is_in(&MARKDOWN_ENDINGS) => Some(MARKDOWN),
        () if is_in(&PLAIN_ENDINGS) => Some(PLAIN),
        () if is_in(&CODE_ENDINGS) || CODE_NAMES.contains(&file) => Some(CODE),
        () => None,
    }
}

/// Whether a file of this name is worth reading when a folder is ingested.
pub fn is_readable_name(name: &str) -> bool {
    of_name(name).is_some()
}

/// The kind of a file: what was told, where that says something, else what its name says.
pub fn media_type(name: &str, told: Option<&str>) -> String {
    let told = told.and_then(|told| told.split(';').next()).map(|told| told.trim().to_ascii_lowercase());
    match told.as_deref() {
        Some(MARKDOWN) => MARKDOWN.into(),
        _ => of_name(name).unwrap_or(PLAIN).into(),
    }
}

/// The text of a file, or why it has none that can be read.
pub fn of_file(bytes: &[u8]) -> Result<String, String> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let text =
        std::str::from_utf8(bytes).map_err(|error| format!("the file is no UTF-8 text: byte {} fits no sign", error.valid_up_to()))?;
    match text.find('\0') {
        Some(at) => Err(format!("the file is no text: byte {at} is a NUL")),
        None if text.trim().is_empty() => Err("the file is empty".into()),
        None => Ok(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_kind_unless_the_sender_does() {
        assert_eq!(media_type("docs/a.md", None), MARKDOWN);
        assert_eq!(media_type("a.rs", Some("application/octet-stream")), CODE);
        assert_eq!(media_type("notes", Some("text/markdown; charset=utf-8")), MARKDOWN);
        assert!(is_readable_name("x/Makefile") && !is_readable_name("a.png") && !is_readable_name(".gitignore"));
    }

    #[test]
    fn what_is_no_text_is_told_so() {
        assert_eq!(of_file(b"\xEF\xBB\xBFa").as_deref(), Ok("a"));
        for bytes in [&b"\xff\xfe"[..], b"a\0b", b" \n"] {
            assert!(of_file(bytes).is_err(), "{bytes:?}");
        }
    }
}
