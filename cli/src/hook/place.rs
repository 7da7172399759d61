//! Which file a path means, and what it is called in the cluster.
//!
//! Links are followed as the system does, component by component, so that `..` after a link leads where it leads the editor.
//! The repository of a file is the innermost folder above it that holds `.git`: a folder in a main worktree, a file in a linked
//! worktree or in a submodule. A linked worktree names files like the main one. A file in a submodule has the name there, and
//! that in the repository around it is checked as well.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use quorate_domain::resource::{Resource, Scheme};
use quorate_gateway::hook::{Names, Touch, names};

use super::Placed;
use super::settings::Settings;

/// Links in a path, before it is taken for a loop.
const LINKS_MAX: usize = 40;
/// Files that a pattern may stand for; more are taken as all of their folder.
const MATCHES_MAX: usize = 64;

/// A file that is touched, or a folder with all in it.
#[derive(Debug, PartialEq)]
pub struct File {
    /// Without links, except for the last component where that itself is touched.
    pub path: PathBuf,
    pub is_tree: bool,
    /// Roots of the repositories that it is in, the innermost first; several when there are submodules.
    roots: Vec<PathBuf>,
    /// Only looked at: too many to be leased one by one.
    check_only: bool,
}

impl File {
    pub fn root(&self) -> Option<&Path> {
        self.roots.first().map(PathBuf::as_path)
    }

    fn at(path: PathBuf, is_tree: bool) -> Self {
        let roots = roots(if is_tree { &path } else { path.parent().unwrap_or(&path) });
        Self { path, is_tree, roots, check_only: false }
    }
}

/// The files behind what is touched.
pub fn files(touched: &[Touch], cwd: &Path) -> Vec<File> {
    let mut files = Vec::new();
    for touch in touched {
        let path = cwd.join(&touch.path);
        if touch.is_pattern {
            files.extend(matching(&path, touch));
        } else {
            files.extend(file(&path, touch));
        }
    }
    // What is in `.git` is this clone's own, and means nothing to others.
    files.retain(|file| !file.roots.iter().any(|root| file.path.starts_with(root.join(".git"))));
    files
}

fn file(path: &Path, touch: &Touch) -> Vec<File> {
    let real = real(path, touch.through_link);
    match (real.is_dir() && !real.is_symlink(), touch.into.as_slice()) {
        (false, _) => vec![File::at(real, false)],
        // A folder can't be written as a file, so nothing will happen to it.
        (true, []) if touch.through_link => Vec::new(),
        (true, []) => vec![File::at(real, true)],
        (true, names) => names
            .iter()
            .map(|name| {
                let inner = self::real(&real.join(name), touch.through_link);
                let is_tree = inner.is_dir() && !inner.is_symlink();
                File::at(inner, is_tree)
            })
            .collect(),
    }
}

fn matching(pattern: &Path, touch: &Touch) -> Vec<File> {
    let plain = Touch { is_pattern: false, ..touch.clone() };
    let text = pattern.to_string_lossy();
    let Ok(found) = glob::glob(&text) else { return Vec::new() };
    let found: Vec<PathBuf> = found.filter_map(Result::ok).take(MATCHES_MAX + 1).collect();
    if found.len() <= MATCHES_MAX {
        return found.iter().flat_map(|path| file(path, &plain)).collect();
    }
    let is_wild = |component: &Component| component.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    let folder: PathBuf = pattern.components().take_while(|component| !is_wild(component)).collect();
    vec![File { check_only: true, ..File::at(real(&folder, true), true) }]
}

/// The path without links, `.` and `..`. What does not exist stays as it is spelt.
fn real(path: &Path, through_link: bool) -> PathBuf {
    let mut done = PathBuf::from("/");
    // Reversed, so that the next component is at the end.
    let mut rest: Vec<OsString> = components(path).rev().collect();
    let mut links = 0;
    while let Some(component) = rest.pop() {
        if component == ".." {
            done.pop();
            continue;
        }
        let next = done.join(&component);
        let is_last = rest.is_empty();
        match std::fs::read_link(&next) {
            Ok(target) if (!is_last || through_link) && links < LINKS_MAX => {
                links += 1;
                if target.is_absolute() {
                    done = PathBuf::from("/");
                }
                rest.extend(components(&target).rev());
            }
            _ => done = next,
        }
    }
    done
}

fn components(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Roots of the repositories that hold a folder, the innermost first.
fn roots(folder: &Path) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for folder in folder.ancestors() {
        let git = folder.join(".git");
        if git.is_dir() {
            roots.push(folder.to_path_buf());
            break;
        }
        let Ok(pointer) = std::fs::read_to_string(&git) else { continue };
        let Some(target) = pointer.trim().strip_prefix("gitdir:") else { continue };
        roots.push(folder.to_path_buf());
        // The files of a submodule belong to the repository around it as well.
        if !Path::new(target.trim()).components().any(|component| component.as_os_str() == "modules") {
            break;
        }
    }
    roots
}

/// The names of files, and what the settings say of them.
pub fn named(files: &[File], settings: &Settings) -> Placed {
    let mut placed = Placed::default();
    for file in files {
        let mut add = |path: &Path, take: bool| {
            let name = path.to_str().map(|path| names::name(if file.is_tree { Scheme::Tree } else { Scheme::File }, path));
            match name.filter(|name| Resource::parse(name).is_ok()) {
                Some(name) if take => placed.names.take.push(name),
                Some(name) => placed.names.check.push(name),
                None => placed.unnameable.push(path.to_string_lossy().into_owned()),
            }
        };
        for (index, root) in file.roots.iter().enumerate() {
            let inside = file.path.strip_prefix(root).unwrap_or(&file.path);
            add(inside, index == 0 && !file.check_only);
            if let Some(closed) = settings.closed_paths.iter().find(|closed| inside.starts_with(closed)) {
                placed.closed = Some(closed.display().to_string());
            }
        }
        // A link that points nowhere at the top of all leaves nothing to name.
        if file.path != Path::new("/") {
            add(&file.path, false);
        }
    }
    placed.names = std::mem::take(&mut placed.names).tidy();
    placed
}

/// The names of paths in a repository, for git.
pub fn in_repository(root: &Path, paths: &[String]) -> Names {
    let mut found = Names::default();
    for path in paths {
        found.check.push(names::name(Scheme::File, path));
        if let Some(whole) = root.join(path).to_str() {
            found.check.push(names::name(Scheme::File, whole));
        }
    }
    found.tidy()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn git(folder: &Path, words: &[&str]) {
        let done = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always", "-C"])
            .arg(folder)
            .args(words)
            .output()
            .expect("git runs");
        assert!(done.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// A folder with a repository `repo`, in which `src/a.rs`, `src/b c.rs` and `ü.rs` are committed.
    fn repository() -> (tempfile::TempDir, PathBuf) {
        let home = tempfile::tempdir().expect("a folder");
        let base = home.path().canonicalize().expect("there");
        let repo = base.join("repo");
        std::fs::create_dir_all(repo.join("src")).expect("made");
        for file in ["src/a.rs", "src/b c.rs", "ü.rs"] {
            std::fs::write(repo.join(file), "x").expect("written");
        }
        git(&base, &["init", "-q", "repo"]);
        git(&repo, &["add", "."]);
        git(&repo, &["commit", "-q", "-m", "first"]);
        (home, base)
    }

    fn settings(closed: &[&str]) -> Settings {
        let closed_paths = closed.iter().map(PathBuf::from).collect();
        Settings { gateways: Vec::new(), token: None, ca: None, closed: false, closed_paths, journal: None, problem: None }
    }

    fn taken(touch: Touch, cwd: &Path) -> Vec<String> {
        named(&files(&[touch], cwd), &settings(&[])).names.take
    }

    #[test]
    fn every_way_to_a_file_leads_to_its_one_name() {
        let (_home, base) = repository();
        let repo = base.join("repo");
        git(&repo, &["worktree", "add", "-q", "../linked"]);
        std::os::unix::fs::symlink(repo.join("src"), base.join("to-src")).expect("linked");
        std::os::unix::fs::symlink("src/a.rs", repo.join("to-a")).expect("linked");
        std::os::unix::fs::symlink(repo.join("src/new.rs"), base.join("dangling")).expect("linked");
        let whole = |path: &str| repo.join(path).display().to_string();
        for (path, cwd, wanted) in [
            ("src/a.rs".to_string(), repo.clone(), "file://src/a.rs"),
            ("a.rs".into(), repo.join("src"), "file://src/a.rs"),
            ("../src/./a.rs".into(), repo.join("src"), "file://src/a.rs"),
            (whole("src/../src/a.rs"), "/".into(), "file://src/a.rs"),
            (whole("src/b c.rs"), "/".into(), "file://src/b c.rs"),
            ("ü.rs".into(), repo.clone(), "file://ü.rs"),
            ("src/100%.rs".into(), repo.clone(), "file://src/100%25.rs"),
            ("gone/deep/x.rs".into(), repo.clone(), "file://gone/deep/x.rs"),
            ("src/a.rs".into(), base.join("linked"), "file://src/a.rs"),
            ("../../repo/src/a.rs".into(), base.join("linked/src"), "file://src/a.rs"),
            // Through a link of a folder, `..` leads out of the folder it points to.
            ("to-src/../ü.rs".into(), base.clone(), "file://ü.rs"),
            ("to-src/a.rs".into(), base.clone(), "file://src/a.rs"),
            ("to-a".into(), repo.clone(), "file://src/a.rs"),
            ("dangling".into(), base.clone(), "file://src/new.rs"),
        ] {
            assert_eq!(taken(Touch::write(path.clone()), &cwd), [wanted], "{path} in {}", cwd.display());
        }
        // Removing a link removes the link.
        assert_eq!(taken(Touch::replace("to-a"), &repo), ["file://to-a"]);
        assert_eq!(taken(Touch::replace("src"), &repo), ["tree://src"]);
        assert_eq!(taken(Touch::replace("."), &repo), ["tree://."]);
        assert_eq!(
            taken(Touch { into: vec!["a.rs".into(), "new".into()], ..Touch::write("src") }, &repo),
            ["file://src/a.rs", "file://src/new"]
        );
        let pattern = Touch { is_pattern: true, ..Touch::replace("src/*.rs") };
        assert_eq!(taken(pattern, &repo), ["file://src/a.rs", "file://src/b c.rs"]);
    }

    #[test]
    fn a_submodule_s_file_is_also_known_by_its_name_outside() {
        let (_home, base) = repository();
        git(&base, &["init", "-q", "outer"]);
        let outer = base.join("outer");
        git(&outer, &["submodule", "add", "-q", base.join("repo").to_str().expect("plain"), "vendor/lib"]);
        let names = named(&files(&[Touch::write("vendor/lib/src/a.rs")], &outer), &settings(&[])).names;
        assert_eq!(names.take, ["file://src/a.rs"]);
        assert!(names.check.contains(&"file://vendor/lib/src/a.rs".to_string()), "{names:?}");
    }

    #[test]
    fn a_file_outside_of_any_repository_is_checked_by_its_whole_path_and_not_leased() {
        let home = tempfile::tempdir().expect("a folder");
        let base = home.path().canonicalize().expect("there");
        let names = named(&files(&[Touch::write("x.txt")], &base), &settings(&[])).names;
        assert_eq!((names.take, names.check), (vec![], vec![names::name(Scheme::File, base.join("x.txt").to_str().expect("plain"))]));
    }

    #[test]
    fn git_s_own_files_are_let_be_and_a_name_that_can_t_be_is_told() {
        let (_home, base) = repository();
        let repo = base.join("repo");
        assert!(files(&[Touch::replace(".git/index.lock")], &repo).is_empty());
        let placed = named(&files(&[Touch::write("x".repeat(600))], &repo), &settings(&[]));
        assert_eq!((placed.names.take.len(), placed.unnameable.is_empty()), (0, false));
        let placed = named(&files(&[Touch::write("src/a.rs")], &repo), &settings(&["src"]));
        assert_eq!(placed.closed.as_deref(), Some("src"));
    }
}
