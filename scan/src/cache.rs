//! What the last scan of a tree found, by the content of each file, so that only what has changed is parsed.
//!
//! It lies in a file of the user's own. One that is damaged, too large or of another version is as good as none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::limit::CACHE_BYTES_MAX;
use crate::parse::FileFacts;

/// Rises with every change of what is kept of a file or how it is found.
const VERSION: u32 = 2;

#[derive(Debug, Default)]
pub struct Cache {
    files: BTreeMap<String, FileFacts>,
}

#[derive(Serialize, Deserialize)]
struct Stored<T> {
    version: u32,
    files: T,
}

impl Cache {
    pub(crate) fn of(files: Vec<FileFacts>) -> Self {
        Self { files: files.into_iter().map(|file| (file.path.clone(), file)).collect() }
    }

    pub(crate) fn get(&self, path: &str, hash: &[u8; 32]) -> Option<&FileFacts> {
        self.files.get(path).filter(|known| known.hash.as_ref() == Some(hash))
    }

    /// What lies at `path`; empty when nothing does that can be used.
    pub fn load(path: &Path) -> Self {
        Self::read(path).unwrap_or_default()
    }

    fn read(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let mut bytes = Vec::new();
        file.take(CACHE_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 > CACHE_BYTES_MAX {
            return None;
        }
        let stored: Stored<Vec<FileFacts>> = minicbor_serde::from_slice(&bytes).ok()?;
        (stored.version == VERSION).then(|| Self::of(stored.files))
    }

    /// Replaces what lies at `path` in one step. Nobody but its owner can read it.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let files: Vec<&FileFacts> = self.files.values().collect();
        let bytes = minicbor_serde::to_vec(&Stored { version: VERSION, files }).map_err(io::Error::other)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&bytes)?;
        file.persist(path)?;
        Ok(())
    }
}
