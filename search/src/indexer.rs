//! How an index follows the state.
//!
//! A step reads what changed since the last one, looks at each changed record as it stands now, and commits. Where that is not
//! known any more, or the index holds nothing it can go on from, all that can be found is walked instead.

use std::fs;
use std::path::{Path, PathBuf};

use quorate_domain::machine::Clock;
use quorate_domain::search::{Changes, changes_after, document, walk};
use quorate_domain::{Read, Revision};

use crate::index::{Error, Index, Opened, Writer};

/// Rows of the feed, or of the records, that are read at a time.
const CHANGES_AT_ONCE: usize = 1_024;
const ROWS_AT_ONCE: usize = 1_024;

/// Writes an index.
pub struct Indexer {
    index: Index,
    writer: Writer,
    through: Option<Revision>,
}

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Every change up to this revision is in the index now.
    pub through: Revision,
    /// Records that were looked at.
    pub looked_at: u64,
    pub is_rebuilt: bool,
}

impl Indexer {
    /// Opens the index in `dir`; one that can't be used is thrown away.
    pub fn open(dir: &Path, origin: &str) -> Result<Self, Error> {
        let opened = Index::open(dir, origin).or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "the search index is built anew");
            wipe(dir)?;
            Index::open(dir, origin)
        });
        let Opened { index, writer, through } = opened?;
        Ok(Self { index, writer, through })
    }

    /// An empty index in `dir`, whatever is there.
    pub fn anew(dir: &Path, origin: &str) -> Result<Self, Error> {
        fs::create_dir_all(dir)?;
        wipe(dir)?;
        Self::open(dir, origin)
    }

    pub fn index(&self) -> Index {
        self.index.clone()
    }

    /// Up to where it goes; nothing while it has to be built.
    pub fn through(&self) -> Option<Revision> {
        self.through
    }

    /// Brings the index up to the state of this view, unless it is told to stop before: then all is well, and the next step goes on.
    pub fn follow(&mut self, view: &impl Read, stop: &dyn Fn() -> bool) -> Result<Step, Error> {
        let target = Clock::read(view)?.revision;
        let mut step = Step::default();
        let mut at = match self.through {
            // A state that is behind the index is another one.
            Some(through) if through <= target => through,
            _ => return self.build(view, target, stop),
        };
        while at < target && !stop() {
            match changes_after(view, at, target, CHANGES_AT_ONCE)? {
                Changes::Gone => return self.build(view, target, stop),
                Changes::Keys { keys, through } => {
                    for key in &keys {
                        match document(view, key)? {
                            Some(document) => self.writer.replace(&document)?,
                            None => self.writer.remove(key),
                        }
                    }
                    step.looked_at += keys.len() as u64;
                    at = through;
                }
            }
        }
        // A commit costs; without a change the revision alone moves, and after a crash the few steps are taken again.
        if step.looked_at > 0 {
            self.writer.commit(Some(at))?;
        }
        self.through = Some(at);
        step.through = at;
        Ok(step)
    }

    fn build(&mut self, view: &impl Read, target: Revision, stop: &dyn Fn() -> bool) -> Result<Step, Error> {
        self.through = None;
        self.writer.clear()?;
        let mut looked_at = 0;
        let mut from = Some(Vec::new());
        while let Some(start) = from {
            if stop() {
                return Ok(Step { looked_at, ..Step::default() });
            }
            let walked = walk(view, &start, ROWS_AT_ONCE)?;
            for document in &walked.documents {
                self.writer.add(document)?;
            }
            looked_at += walked.documents.len() as u64;
            from = walked.next;
        }
        self.writer.commit(Some(target))?;
        self.through = Some(target);
        Ok(Step { through: target, looked_at, is_rebuilt: true })
    }
}

/// Throws an index away.
fn wipe(dir: &Path) -> Result<(), Error> {
    let files: Vec<PathBuf> = fs::read_dir(dir)?.map(|file| file.map(|file| file.path())).collect::<Result<_, _>>()?;
    for file in files {
        fs::remove_file(file)?;
    }
    Ok(())
}
