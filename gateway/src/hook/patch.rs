//! The files that the text of a patch changes: the headers of `apply_patch`, and those of unified diffs.

use super::Touch;

const WRITTEN: [&str; 3] = ["*** Add File: ", "*** Update File: ", "*** Move to: "];
const DELETED: &str = "*** Delete File: ";

/// Every file that the headers name.
pub fn touched(text: &str) -> Vec<Touch> {
    let mut found = Vec::new();
    let mut old: Option<&str> = None;
    for line in text.lines() {
        let line = line.trim_end();
        if let Some(path) = WRITTEN.iter().find_map(|header| line.trim_start().strip_prefix(header)) {
            found.push(Touch::write(path.trim()));
        } else if let Some(path) = line.trim_start().strip_prefix(DELETED) {
            found.push(Touch::replace(path.trim()));
        } else if let Some(path) = line.strip_prefix("rename from ").or_else(|| line.strip_prefix("rename to ")) {
            found.push(Touch::replace(path));
        } else if let Some(path) = line.strip_prefix("--- ") {
            old = Some(path);
        } else if let (Some(from), Some(to)) = (old.take(), line.strip_prefix("+++ ")) {
            // Only the pair is a header: a removed line may begin with `--- ` as well.
            found.extend([from, to].into_iter().filter_map(diffed).map(Touch::write));
        }
    }
    found
}

/// The name in a header of a unified diff, without the time after it and the `a/` or `b/` before it.
fn diffed(header: &str) -> Option<&str> {
    let name = header.split('\t').next().unwrap_or(header).trim();
    let name = name.strip_prefix("a/").or_else(|| name.strip_prefix("b/")).unwrap_or(name);
    (name != "/dev/null" && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        touched(text).into_iter().map(|touch| touch.path).collect()
    }

    #[test]
    fn all_headers_of_a_patch_count_and_its_lines_do_not() {
        let patch = "*** Begin Patch\n*** Add File: a b.rs\n+*** Update File: not-this\n*** Update File: src/ü.rs\n*** Move to: c.rs\n@@\n-x\n+y\n*** Delete File: d\n*** End Patch";
        assert_eq!(paths(patch), ["a b.rs", "src/ü.rs", "c.rs", "d"]);
    }

    #[test]
    fn a_unified_diff_names_its_files_on_both_sides() {
        let diff = "diff --git a/x b/y\nrename from x\nrename to y\n--- a/x\t2026-01-01\n+++ b/y\n@@ -1 +1 @@\n--- removed\n+added\n--- /dev/null\n+++ b/new\n";
        assert_eq!(paths(diff), ["x", "y", "x", "y", "new"]);
    }
}
