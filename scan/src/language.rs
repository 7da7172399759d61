//! The languages that are read, by the ends of names.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Language {
    Rust,
    Python,
    TypeScript,
    /// TypeScript with elements in it.
    Tsx,
    JavaScript,
    Go,
    Java,
}

impl Language {
    pub const ALL: [Language; 7] =
        [Language::Rust, Language::Python, Language::TypeScript, Language::Tsx, Language::JavaScript, Language::Go, Language::Java];

    /// The language of a file, by its name.
    pub fn of(path: &str) -> Option<Self> {
        let (_, end) = path.rsplit('/').next()?.rsplit_once('.')?;
        Some(match end {
            "rs" => Language::Rust,
            "py" | "pyi" => Language::Python,
            "ts" | "mts" | "cts" => Language::TypeScript,
            "tsx" => Language::Tsx,
            "js" | "mjs" | "cjs" | "jsx" => Language::JavaScript,
            "go" => Language::Go,
            "java" => Language::Java,
            _ => return None,
        })
    }

    /// Its name, as it is told.
    pub fn word(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::Python => "python",
            Language::TypeScript | Language::Tsx => "typescript",
            Language::JavaScript => "javascript",
            Language::Go => "go",
            Language::Java => "java",
        }
    }

    pub(crate) fn grammar(self) -> tree_sitter::Language {
        match self {
            Language::Rust => tree_sitter_rust::LANGUAGE.into(),
            Language::Python => tree_sitter_python::LANGUAGE.into(),
            Language::TypeScript => tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
            Language::Tsx => tree_sitter_typescript::LANGUAGE_TSX.into(),
            Language::JavaScript => tree_sitter_javascript::LANGUAGE.into(),
            Language::Go => tree_sitter_go::LANGUAGE.into(),
            Language::Java => tree_sitter_java::LANGUAGE.into(),
        }
    }

    /// Whether a file is one of tests, by its path.
    pub fn is_test_path(self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let in_tests = path.split('/').rev().skip(1).any(|folder| matches!(folder, "tests" | "test" | "__tests__" | "testdata"));
        in_tests
            || match self {
                Language::Rust => stem == "tests" || stem.ends_with("_tests") || stem.ends_with("_test"),
                Language::Python => stem.starts_with("test_") || stem.ends_with("_test") || stem == "conftest",
                Language::TypeScript | Language::Tsx | Language::JavaScript => stem.ends_with(".test") || stem.ends_with(".spec"),
                Language::Go => stem.ends_with("_test"),
                Language::Java => stem.ends_with("Test") || stem.ends_with("Tests"),
            }
    }

    /// The module that a file is, within its package: what others call it.
    pub fn module(self, path_in_package: &str) -> String {
        let stem = path_in_package.rsplit_once('.').map_or(path_in_package, |(stem, _)| stem);
        let (skipped, ends, between): (&[&str], &[&str], &str) = match self {
            Language::Rust => (&["src/"], &["mod", "lib", "main"], "::"),
            Language::Python => (&["src/"], &["__init__"], "."),
            Language::TypeScript | Language::Tsx | Language::JavaScript => (&["src/"], &["index"], "/"),
            Language::Go => (&[], &[], "/"),
            Language::Java => (&["src/main/java/", "src/test/java/", "src/"], &[], "."),
        };
        let inner = skipped.iter().find_map(|start| stem.strip_prefix(start)).unwrap_or(stem);
        let mut parts: Vec<&str> = inner.split('/').collect();
        if parts.len() > 1 && parts.last().is_some_and(|last| ends.contains(last)) {
            parts.pop();
        }
        parts.join(between)
    }
}

#[cfg(test)]
mod tests {
    use super::Language;

    #[test]
    fn a_language_is_known_by_the_end_of_a_name_and_a_test_by_its_path() {
        assert_eq!(Language::of("a/b.rs"), Some(Language::Rust));
        assert_eq!(Language::of("a.rs/b"), None);
        assert_eq!(Language::of("web/App.tsx"), Some(Language::Tsx));
        for (path, is_test) in [
            ("src/lib.rs", false),
            ("src/work/tests.rs", true),
            ("tests/a.rs", true),
            ("contest/a.rs", false),
            ("app/test_a.py", true),
            ("a.spec.ts", true),
            ("a_test.go", true),
            ("src/test/java/A.java", true),
            ("src/main/java/Attest.java", false),
        ] {
            assert_eq!(Language::of(path).unwrap().is_test_path(path), is_test, "{path}");
        }
    }

    #[test]
    fn a_module_is_named_as_its_language_does() {
        assert_eq!(Language::Rust.module("src/mcp/client.rs"), "mcp::client");
        assert_eq!(Language::Rust.module("src/hook/mod.rs"), "hook");
        assert_eq!(Language::Rust.module("src/lib.rs"), "lib");
        assert_eq!(Language::Python.module("app/__init__.py"), "app");
        assert_eq!(Language::Java.module("src/main/java/org/acme/Api.java"), "org.acme.Api");
    }
}
