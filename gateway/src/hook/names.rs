//! What files are called in the cluster: by their path in the repository that holds them, and by their whole path.
//!
//! The name in the repository is the one that agents on several machines share, so it is the one that is leased. The whole path
//! is checked as well, for who took a lease on that. A file outside of any repository has only a whole path, and that is not
//! leased: `/tmp/out` on another machine is another file.

use quorate_domain::resource::Scheme;

use super::Touch;

/// The names of what an event touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Checked, and leased.
    pub take: Vec<String>,
    /// Checked only.
    pub check: Vec<String>,
}

impl Names {
    pub fn is_empty(&self) -> bool {
        self.take.is_empty() && self.check.is_empty()
    }

    /// Each name once, and none both ways.
    pub fn tidy(mut self) -> Self {
        for list in [&mut self.take, &mut self.check] {
            list.sort();
            list.dedup();
        }
        self.check.retain(|name| self.take.binary_search(name).is_err());
        self
    }
}

/// The name of a path. An empty one is the root.
pub fn name(scheme: Scheme, path: &str) -> String {
    let path = path.trim_matches('/').replace('%', "%25");
    format!("{}://{}", scheme.word(), if path.is_empty() { "." } else { &path })
}

/// The names of what is touched, for who can't see the files: `root` is taken for the repository, links and patterns stay as
/// they are spelt, and what may be a folder is checked as one.
pub fn spelt(touched: &[Touch], cwd: &str, root: &str) -> Names {
    let mut names = Names::default();
    let root = normal(root);
    for touch in touched {
        let whole = normal(&if touch.path.starts_with('/') { touch.path.clone() } else { format!("{cwd}/{}", touch.path) });
        if touch.is_pattern {
            // All that the folder before the first wildcard holds.
            let folder = whole.split('/').take_while(|part| !part.contains(['*', '?', '['])).collect::<Vec<_>>().join("/");
            names.add(Scheme::Tree, &folder, &root, false);
            continue;
        }
        let paths = std::iter::once(whole.clone()).chain(touch.into.iter().map(|name| format!("{whole}/{name}")));
        for path in paths {
            names.add(Scheme::File, &path, &root, true);
            if !touch.through_link && touch.into.is_empty() {
                names.add(Scheme::Tree, &path, &root, false);
            }
        }
    }
    names.tidy()
}

impl Names {
    fn add(&mut self, scheme: Scheme, whole: &str, root: &str, take: bool) {
        let inside = whole.strip_prefix(root).filter(|rest| !root.is_empty() && (rest.is_empty() || rest.starts_with('/')));
        if let Some(inside) = inside.filter(|inside| !inside.is_empty() || scheme == Scheme::Tree) {
            if take { &mut self.take } else { &mut self.check }.push(name(scheme, inside));
        }
        self.check.push(name(scheme, whole));
    }
}

/// Without `.`, `..` and doubled slashes, as text.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/")).trim_end_matches('/').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_in_the_repository_and_its_whole_path() {
        let names = spelt(&[Touch::write("../src/100% ü.rs"), Touch::write("/elsewhere/x")], "/r/sub", "/r/");
        assert_eq!(names.take, ["file://src/100%25 ü.rs"]);
        assert_eq!(names.check, ["file://elsewhere/x", "file://r/src/100%25 ü.rs"]);
    }

    #[test]
    fn what_may_be_a_folder_is_checked_with_all_in_it() {
        let names = spelt(&[Touch::replace("src")], "/r", "/r");
        assert_eq!(
            (names.take, names.check),
            (vec!["file://src".to_string()], ["file://r/src", "tree://r/src", "tree://src"].map(String::from).to_vec())
        );
        let pattern = Touch { is_pattern: true, ..Touch::replace("src/*.rs") };
        assert_eq!(spelt(&[pattern], "/r", "/r").check, ["tree://r/src", "tree://src"]);
        let copy = Touch { into: vec!["a".into()], ..Touch::write("dir") };
        assert_eq!(spelt(&[copy], "/r", "/r").take, ["file://dir", "file://dir/a"]);
    }
}
