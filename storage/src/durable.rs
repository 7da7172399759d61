//! Files that are there whole or not at all, also after a loss of power.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quorate_domain::StorageError;

/// Replaces `path` by a file that holds `bytes`: written beside it, synced, renamed over it, and the rename synced.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    let beside = beside(path);
    let mut file = File::create(&beside).map_err(at("create", &beside))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(at("write", &beside))?;
    fs::rename(&beside, path).map_err(at("replace", path))?;
    sync_parent(path)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Makes the names in `dir` durable: a created, renamed or removed file is only in the page cache until then.
pub fn sync_dir(dir: &Path) -> Result<(), StorageError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(at("sync", dir))
}

fn sync_parent(path: &Path) -> Result<(), StorageError> {
    match path.parent() {
        // A bare name lies in the working directory.
        Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new(".")),
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

/// Creates `dir` and its missing parents, each durable in its own parent.
pub fn create_dir(dir: &Path) -> Result<(), StorageError> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_dir(parent)?;
    }
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(at("create", dir)(error)),
        _ => sync_parent(dir),
    }
}

/// Copies a folder with all that is in it, each file synced. Never by a link: damage to one copy must not be in the other.
pub fn copy_dir(from: &Path, to: &Path) -> Result<(), StorageError> {
    create_dir(to)?;
    for name in names(from)? {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            copy_dir(&from, &to)?;
        } else {
            fs::copy(&from, &to).map_err(at("copy", &from))?;
            File::open(&to).and_then(|file| file.sync_all()).map_err(at("sync", &to))?;
        }
    }
    sync_dir(to)
}

/// The content of `path`, or `None` when there is no such file.
pub fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at("read", path)(error)),
    }
}

/// The names in `dir`, sorted.
pub fn names(dir: &Path) -> Result<Vec<String>, StorageError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(at("list", dir))? {
        let name = entry.map_err(at("list", dir))?.file_name();
        names.push(
            name.into_string()
                .map_err(|name| StorageError::corrupt(format!("{} holds a name that is not text: {name:?}", dir.display())))?,
        );
    }
    names.sort();
    Ok(names)
}

/// Says what was being done to which path when the operating system refused.
pub fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError + use<> {
    let context = format!("cannot {action} {}", path.display());
    move |error| StorageError::new(context, error)
}
