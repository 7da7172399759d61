//! Resources: what a punchcard is taken on, in one spelling, and which of them overlap.
//!
//! `file://src/a.rs` and `tree://src` name paths in a repository; `service://billing` and `deploy://prod` name one thing each.
//! Invariants:
//! * Every spelling of one name has the same normal form, so that two spellings are never two leases. The normal form of a
//!   normal form is itself.
//! * Percent escapes are decoded once and before anything else is looked at, so nothing can hide in them.
//! * A name never leaves its root.

use std::fmt;

use unicode_normalization::UnicodeNormalization;

use crate::limit::{NAME_BYTES_MAX, RESOURCE_SEGMENTS_MAX, TEXT_BYTES_MAX};
use crate::refusal::{Refusal, shown};

/// What kind of thing a resource is. The numbers stand in keys and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Scheme {
    File = 0,
    /// A directory and all that is in it.
    Tree = 1,
    Service = 2,
    Deploy = 3,
}

impl Scheme {
    const ALL: [Scheme; 4] = [Scheme::File, Scheme::Tree, Scheme::Service, Scheme::Deploy];

    pub fn word(self) -> &'static str {
        match self {
            Scheme::File => "file",
            Scheme::Tree => "tree",
            Scheme::Service => "service",
            Scheme::Deploy => "deploy",
        }
    }

    /// Files and trees share one space of paths.
    pub fn is_path(self) -> bool {
        matches!(self, Scheme::File | Scheme::Tree)
    }
}

/// A resource in its normal form. `Display` is the normal spelling, which parses to the same resource again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    scheme: Scheme,
    /// Not empty, except for `tree://.`, the whole repository.
    segments: Vec<String>,
}

impl Resource {
    /// Reads any spelling of a resource. The refusal names the argument `resource`.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(too_long(text.len(), TEXT_BYTES_MAX));
        }
        let known = |word: &str| Scheme::ALL.into_iter().find(|scheme| word.eq_ignore_ascii_case(scheme.word()));
        let Some((scheme, name)) = text.split_once("://").and_then(|(word, name)| Some((known(word)?, name))) else {
            return Err(invalid("must begin with `file://`, `tree://`, `service://` or `deploy://`"));
        };
        let no_escape = || invalid("has a `%` that is not followed by two hex digits of UTF-8; write `%25` for a plain one");
        let name = decode_percent(name).ok_or_else(no_escape)?;
        if name.chars().any(char::is_control) {
            return Err(invalid("must not hold NUL or other control characters"));
        }
        let name: String = name.nfc().collect();
        let name = if scheme.is_path() { name.replace('\\', "/") } else { name };
        let resource = Self { scheme, segments: segments(&name)? };
        // Not `tree://`: that is rather a name left empty by mistake than a wish to lease the whole repository.
        let is_blank = |segment: &String| segment.trim().is_empty();
        if name.trim_matches('/').is_empty() || !resource.segments.is_empty() && resource.segments.iter().all(is_blank) {
            return Err(invalid("names nothing after its scheme; the whole repository is `tree://.`"));
        }
        if resource.segments.is_empty() && scheme != Scheme::Tree {
            return Err(invalid("names its root; only a `tree://` can be that"));
        }
        // Taken as the file of that name, it would keep nobody out of the directory.
        if scheme == Scheme::File && matches!(name.rsplit('/').next(), None | Some("" | "." | "..")) {
            let directory = Self { scheme: Scheme::Tree, segments: resource.segments };
            return Err(invalid(format!("names a directory; write `{}` to lease all that is in it", shown(&directory.to_string()))));
        }
        if resource.segments.len() > RESOURCE_SEGMENTS_MAX {
            return Err(invalid(format!("has {} segments, and the limit is {RESOURCE_SEGMENTS_MAX}", resource.segments.len())));
        }
        let size = resource.to_string().len();
        if size > NAME_BYTES_MAX {
            return Err(too_long(size, NAME_BYTES_MAX));
        }
        Ok(resource)
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub fn segments(&self) -> &[String] {
        &self.segments
    }

    /// Whether all of `other` lies within this one.
    pub fn covers(&self, other: &Resource) -> bool {
        self == other || self.scheme == Scheme::Tree && other.scheme.is_path() && other.segments.starts_with(&self.segments)
    }

    /// Whether a lease on this one excludes a lease on `other`.
    pub fn overlaps(&self, other: &Resource) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.segments.join("/").replace('%', "%25");
        write!(f, "{}://{}", self.scheme.word(), if path.is_empty() { "." } else { &path })
    }
}

fn invalid(problem: impl Into<String>) -> Refusal {
    Refusal::invalid("resource", problem)
}

fn too_long(size: usize, limit: usize) -> Refusal {
    Refusal::TooLong { field: "resource".into(), size: size as u64, limit: limit as u64, unit: "bytes".into() }
}

/// Decodes every escape once; `None` if one is cut or the result is no UTF-8.
fn decode_percent(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        decoded.push((high * 16 + low) as u8);
    }
    String::from_utf8(decoded).ok()
}

fn segments(name: &str) -> Result<Vec<String>, Refusal> {
    let mut segments = Vec::new();
    for segment in name.split('/') {
        match segment {
            "" | "." => {}
            ".." if segments.pop().is_none() => return Err(invalid("leaves its root with `..`")),
            ".." => {}
            _ => segments.push(segment.to_string()),
        }
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn check(spellings: &str, expected: Expect) {
        let told = spellings.lines().map(|line| {
            let spelling = line.trim().replace("NUL", "\0").replace("TAB", "\t");
            match Resource::parse(&spelling) {
                Ok(resource) => format!("{resource}\n"),
                Err(refusal) => format!("refused: {refusal}\n"),
            }
        });
        expected.assert_eq(&told.collect::<String>());
    }

    #[test]
    fn every_spelling_of_a_path_is_one_name() {
        check(
            r"file://src/auth.rs
              FILE://src/auth.rs
              file://./src/auth.rs
              file:///src/auth.rs
              file://src//auth.rs
              file://src/x/../auth.rs
              file://src\auth.rs
              file://src%5cauth.rs
              file://src%2Fauth.rs
              file://src/%61uth.rs
              file://src/./auth.rs
              tree://web/
              tree://.
              tree://web/..
              service://billing/
              service://team\billing
              deploy://prod//eu",
            expect![[r#"
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                file://src/auth.rs
                tree://web
                tree://.
                tree://.
                service://billing
                service://team\billing
                deploy://prod/eu
            "#]],
        );
    }

    #[test]
    fn a_file_that_is_spelled_as_a_directory_is_refused_and_told_how_to_lease_that() {
        check(
            r"file://src/
              file://src/auth.rs/
              file://src/.
              file://src/x/..
              file://src\
              file://src%2f
              tree://src/",
            expect![[r#"
                refused: `resource` names a directory; write `tree://src` to lease all that is in it
                refused: `resource` names a directory; write `tree://src/auth.rs` to lease all that is in it
                refused: `resource` names a directory; write `tree://src` to lease all that is in it
                refused: `resource` names a directory; write `tree://src` to lease all that is in it
                refused: `resource` names a directory; write `tree://src` to lease all that is in it
                refused: `resource` names a directory; write `tree://src` to lease all that is in it
                tree://src
            "#]],
        );
    }

    #[test]
    fn composed_and_decomposed_letters_are_one_name() {
        let spellings = ["file://caf\u{e9}.rs", "file://cafe\u{301}.rs", "file://caf%C3%A9.rs", "file://cafe%cc%81.rs"];
        for spelling in spellings {
            assert_eq!(Resource::parse(spelling).unwrap().to_string(), "file://caf\u{e9}.rs");
        }
    }

    #[test]
    fn a_double_escape_is_decoded_once_and_stays_a_plain_name() {
        check(
            "file://%252e%252e/x
             file://100%25",
            expect![[r#"
                file://%252e%252e/x
                file://100%25
            "#]],
        );
    }

    #[test]
    fn what_leaves_its_root_or_names_nothing_is_refused() {
        check(
            r"file://../x
              file://a/../../x
              file://..%2fx
              file://%2e%2e/x
              file://..\x
              service://../x
              file://
              file:///
              file://.
              file://a/..
              tree://
              tree:///
              file://%20/.
              service://.
              file://aNULb
              file://a%00b
              file://aTABb
              file://a%
              file://a%zz
              file://a%+1
              file://a%ff
              http://a
              src/a.rs",
            expect![[r#"
                refused: `resource` leaves its root with `..`
                refused: `resource` leaves its root with `..`
                refused: `resource` leaves its root with `..`
                refused: `resource` leaves its root with `..`
                refused: `resource` leaves its root with `..`
                refused: `resource` leaves its root with `..`
                refused: `resource` names nothing after its scheme; the whole repository is `tree://.`
                refused: `resource` names nothing after its scheme; the whole repository is `tree://.`
                refused: `resource` names its root; only a `tree://` can be that
                refused: `resource` names its root; only a `tree://` can be that
                refused: `resource` names nothing after its scheme; the whole repository is `tree://.`
                refused: `resource` names nothing after its scheme; the whole repository is `tree://.`
                refused: `resource` names nothing after its scheme; the whole repository is `tree://.`
                refused: `resource` names its root; only a `tree://` can be that
                refused: `resource` must not hold NUL or other control characters
                refused: `resource` must not hold NUL or other control characters
                refused: `resource` must not hold NUL or other control characters
                refused: `resource` has a `%` that is not followed by two hex digits of UTF-8; write `%25` for a plain one
                refused: `resource` has a `%` that is not followed by two hex digits of UTF-8; write `%25` for a plain one
                refused: `resource` has a `%` that is not followed by two hex digits of UTF-8; write `%25` for a plain one
                refused: `resource` has a `%` that is not followed by two hex digits of UTF-8; write `%25` for a plain one
                refused: `resource` must begin with `file://`, `tree://`, `service://` or `deploy://`
                refused: `resource` must begin with `file://`, `tree://`, `service://` or `deploy://`
            "#]],
        );
    }

    #[test]
    fn a_long_or_deep_name_is_refused_with_both_numbers() {
        check(
            &format!("file://{}\nfile://{}\nfile://{}x", "a".repeat(600), "a".repeat(5000), "a/".repeat(64)),
            expect![[r#"
                refused: `resource` is 607 bytes long, and the limit is 512 bytes
                refused: `resource` is 5007 bytes long, and the limit is 4096 bytes
                refused: `resource` has 65 segments, and the limit is 64
            "#]],
        );
    }

    #[test]
    fn a_tree_overlaps_what_is_in_it_and_nothing_that_only_begins_alike() {
        let overlap = |a: &str, b: &str| Resource::parse(a).unwrap().overlaps(&Resource::parse(b).unwrap());
        for (a, b) in [
            ("tree://src/auth", "file://src/auth/jwt.rs"),
            ("tree://src/auth", "tree://src"),
            ("tree://src/auth", "file://src/auth"),
            ("tree://.", "file://a"),
            ("service://a", "service://a"),
        ] {
            assert!(overlap(a, b) && overlap(b, a), "{a} {b}");
        }
        for (a, b) in [
            ("tree://src/auth", "tree://src/authz"),
            ("tree://src/auth", "file://src/auth.rs"),
            ("file://src", "file://src/a"),
            ("service://a", "service://a/b"),
            ("service://a", "deploy://a"),
            ("tree://.", "service://a"),
        ] {
            assert!(!overlap(a, b) && !overlap(b, a), "{a} {b}");
        }
    }

    /// Names made of the pieces that normalisation looks at.
    fn spelling() -> impl Strategy<Value = String> {
        let scheme = prop::sample::select(vec!["file://", "tree://", "service://", "deploy://", "Tree://"]);
        let piece = prop::sample::select(vec![
            "a", "b", "/", "/", "\\", ".", "..", "/../", "%2e", "%2f", "%5c", "%25", "%252e", "%61", "e\u{301}", "\u{e9}", "\u{338}", " ",
            "%",
        ]);
        (scheme, prop::collection::vec(piece, 0..10)).prop_map(|(scheme, pieces)| format!("{scheme}{}", pieces.concat()))
    }

    proptest! {
        // What a run finds becomes a line in a test above, not a file of seeds.
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_normal_form_of_a_normal_form_is_itself(text in spelling()) {
            if let Ok(resource) = Resource::parse(&text) {
                prop_assert_eq!(Resource::parse(&resource.to_string()), Ok(resource));
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = Resource::parse(&format!("tree://{text}"));
        }

        #[test]
        fn paths_overlap_when_a_tree_is_a_prefix_by_segments(
            a in "(file|tree)://[ab](/[ab]){0,3}", b in "(file|tree)://[ab](/[ab]){0,3}",
        ) {
            let (x, y) = (Resource::parse(&a).unwrap(), Resource::parse(&b).unwrap());
            let prefix = |x: &str, y: &str| match (x.strip_prefix("tree://"), y.split_once("://")) {
                (Some(x), Some((_, y))) => format!("{y}/").starts_with(&format!("{x}/")),
                _ => x == y,
            };
            prop_assert_eq!(x.overlaps(&y), prefix(&a, &b) || prefix(&b, &a));
            prop_assert_eq!(x.overlaps(&y), y.overlaps(&x));
        }
    }
}
