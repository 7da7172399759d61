//! Which files of a tree are read, and how one is opened.
//!
//! Links are never followed: a link to a file or folder is passed over, and a path whose folder became a link meanwhile is refused
//! by the system when it is opened. Pipes and devices are not waited for. What `.gitignore` and `.ignore` leave out, hidden files
//! included, is not part of the tree.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ignore::WalkBuilder;
use rustix::fs::{Mode, OFlags};

use crate::ScanError;
use crate::language::Language;
use crate::limit::{DEPTH_MAX, ENTRIES_MAX, FILE_BYTES_MAX, FILES_MAX, PATH_BYTES_MAX};
use crate::parse::Problem;

/// Files whose folder is a package, or a module of its own.
const MANIFESTS: [&str; 9] =
    ["Cargo.toml", "package.json", "go.mod", "pyproject.toml", "setup.py", "setup.cfg", "pom.xml", "build.gradle", "build.gradle.kts"];

/// A folder that is scanned.
pub struct Tree {
    root: PathBuf,
    folder: OwnedFd,
}

/// What lies in it, by path from the root with `/` between, in order.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    pub sources: Vec<String>,
    /// The folders with a manifest; the root is empty.
    packages: Vec<String>,
}

/// The package of each source file.
pub struct Packages {
    root_name: String,
    /// By file: the folder of its package.
    of: BTreeMap<String, String>,
}

impl Packages {
    /// Name and folder of a file's package.
    pub fn of(&self, path: &str) -> (&str, &str) {
        match self.of.get(path).map_or("", String::as_str) {
            "" => (&self.root_name, ""),
            folder => (folder, folder),
        }
    }
}

impl Tree {
    pub fn open(root: &Path) -> Result<Self, ScanError> {
        let wrong = |source| ScanError::Root { path: root.into(), source };
        // The root itself may be reached over links: it is the caller's word.
        let root = root.canonicalize().map_err(wrong)?;
        if !root.is_dir() {
            return Err(ScanError::NoFolder { path: root });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&root, flags, Mode::empty()).map_err(|error| wrong(error.into()))?;
        Ok(Self { root, folder })
    }

    pub fn files(&self, until: Instant) -> Result<Found, ScanError> {
        let too_large = |what, limit: usize| ScanError::TooLarge { path: self.root.clone(), what, limit: limit as u64 };
        let mut found = Found::default();
        let walk = WalkBuilder::new(&self.root).follow_links(false).require_git(false).max_depth(Some(DEPTH_MAX)).build();
        for (n, entry) in walk.enumerate() {
            if n >= ENTRIES_MAX {
                return Err(too_large("files and folders", ENTRIES_MAX));
            }
            if n % 1_024 == 0 && Instant::now() >= until {
                return Err(ScanError::TooSlow { path: self.root.clone(), within: crate::limit::SCAN_WITHIN });
            }
            // A folder that may not be read, or a broken ignore file: the rest is scanned.
            let Ok(entry) = entry else { continue };
            if !entry.file_type().is_some_and(|kind| kind.is_file()) {
                continue;
            }
            let Some(path) = entry.path().strip_prefix(&self.root).ok().and_then(Path::to_str) else { continue };
            if path.len() > PATH_BYTES_MAX || path.chars().any(char::is_control) {
                continue;
            }
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            if MANIFESTS.contains(&name) {
                found.packages.push(folder.into());
            }
            if Language::of(path).is_some() {
                if found.sources.len() >= FILES_MAX {
                    return Err(too_large("files of source", FILES_MAX));
                }
                found.sources.push(path.into());
            }
        }
        found.sources.sort_unstable();
        found.packages.sort_unstable();
        Ok(found)
    }

    /// The nearest folder with a manifest above each file.
    pub fn packages(&self, found: &Found) -> Packages {
        let root_name = self.root.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy().into_owned());
        let nearest = |path: &String| {
            let above = path.match_indices('/').rev().map(|(at, _)| &path[..at]);
            let folder = above.into_iter().find(|folder| found.packages.binary_search_by(|known| known.as_str().cmp(folder)).is_ok());
            (path.clone(), folder.unwrap_or_default().to_string())
        };
        Packages { root_name, of: found.sources.iter().map(nearest).collect() }
    }

    /// The bytes of a file, or why they are not read.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Problem> {
        let file = File::from(self.open_below(path).map_err(|_| Problem::Unreadable)?);
        let about = file.metadata().map_err(|_| Problem::Unreadable)?;
        if !about.is_file() {
            return Err(Problem::Unreadable);
        }
        if about.len() > FILE_BYTES_MAX {
            return Err(Problem::TooLarge);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(about.len()).unwrap_or(0) + 1);
        // It may grow while it is read.
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|_| Problem::Unreadable)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Problem::TooLarge);
        }
        Ok(bytes)
    }

    /// Opens a file folder by folder, each only if it is no link.
    fn open_below(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let (folders, name) = path.rsplit_once('/').map_or((None, path), |(folders, name)| (Some(folders), name));
        let mut inner: Option<OwnedFd> = None;
        for folder in folders.into_iter().flat_map(|folders| folders.split('/')) {
            let within = inner.as_ref().unwrap_or(&self.folder);
            inner = Some(rustix::fs::openat(within, folder, flags | OFlags::DIRECTORY, Mode::empty())?);
        }
        rustix::fs::openat(inner.as_ref().unwrap_or(&self.folder), name, flags, Mode::empty())
    }
}
