//! Plans on the board: ExecPlan files of a folder on this gateway's machine, shown beside the work of one tenant and never
//! written.
//!
//! The files are looked at when somebody asks, and one that has not changed is not read again. Where a plan stands follows from
//! its file and from what the team's facts tell of its milestones (`quorate_domain::execplan`). What is left out is told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate_domain::execplan::{GetPlans, PLAN, Plan, PlanTold, PlansTold, check_slug};
use quorate_domain::limit::PLANS_ASKED_MAX;
use quorate_domain::work::State;
use quorate_domain::{Principal, Revision, UnixMs};

use crate::call::CallError;
use crate::cluster::now_unix_ms;

/// The project that plans are shown in.
pub const PROJECT: &str = "execplans";
/// Who made them, as far as the board knows.
pub const AUTHOR: &str = "system:execplan-aggregator";

/// Files of a folder that are shown, and the largest that is read.
const FILES_MAX: usize = 1_000;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A folder, and the tenant that it is shown to.
#[derive(Clone, Debug)]
pub struct Source {
    pub folder: PathBuf,
    pub tenant: String,
}

/// A file that was read.
#[derive(Clone)]
struct Seen {
    changed: SystemTime,
    bytes: u64,
    plan: Arc<Plan>,
}

/// The plans of one gateway.
pub struct Plans {
    source: Option<Source>,
    /// By name, as they were when they were looked at last.
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
}

/// What is in the folder.
struct Folder {
    /// By name.
    plans: BTreeMap<String, Seen>,
    problems: Vec<String>,
}

/// A plan and where it stands.
pub struct Row {
    /// Its name, without [`PLAN`].
    pub slug: String,
    pub plan: Arc<Plan>,
    pub state: State,
    pub changed_at: UnixMs,
}

impl Row {
    /// Its id on the board.
    pub fn id(&self) -> String {
        format!("{PLAN}{}", self.slug)
    }
}

/// Plans by name.
pub struct Rows {
    pub rows: Vec<Row>,
    pub revision: Revision,
    /// What the folder holds and these rows can't show.
    pub problems: Vec<String>,
}

impl Plans {
    pub fn new(source: Option<Source>) -> Self {
        Self { source, seen: Arc::default() }
    }

    /// Whether a caller's team has plans here.
    pub fn are_for(&self, caller: &Principal) -> bool {
        self.source.as_ref().is_some_and(|source| source.tenant == caller.tenant)
    }

    /// All plans of the caller's team from a name on, those in `state` alone if one is given; nobody else has any. `ask` asks the
    /// cluster, as the caller.
    pub async fn rows<Fut>(
        &self,
        caller: &Principal,
        from: &str,
        state: Option<State>,
        ask: impl Fn(GetPlans) -> Fut,
    ) -> Result<Rows, CallError>
    where
        Fut: Future<Output = Result<(PlansTold, Revision), CallError>>,
    {
        let folder = match &self.source {
            Some(source) if source.tenant == caller.tenant => self.look(source.folder.clone()).await?,
            _ => Folder { plans: BTreeMap::new(), problems: Vec::new() },
        };
        let mut plans = folder.plans;
        let plans: Vec<(String, Seen)> = plans.split_off(from).into_iter().collect();
        let now = now_unix_ms();
        let mut found = Rows { rows: Vec::new(), revision: Revision(0), problems: folder.problems };
        // Once for no plans too: the answer has a revision.
        let mut rest = &plans[..];
        loop {
            let (these, later) = rest.split_at(rest.len().min(PLANS_ASKED_MAX));
            let slugs = these.iter().map(|(slug, _)| slug.clone()).collect();
            let (told, revision) = ask(GetPlans { slugs }).await?;
            found.revision = revision;
            found.rows.extend(these.iter().zip(told.plans).map(|((slug, seen), told)| row(slug, seen, &told, now)));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        found.rows.retain(|row| state.is_none_or(|state| row.state == state));
        Ok(found)
    }

    async fn look(&self, folder: PathBuf) -> Result<Folder, CallError> {
        let seen = self.seen.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let before = seen.lock().expect("no panic under the lock").clone();
            let looked = look(&folder, &before);
            *seen.lock().expect("no panic under the lock") = looked.plans.clone();
            looked
        });
        looked.await.map_err(|error| CallError::Fault { detail: error.to_string() })
    }
}

fn row(slug: &str, seen: &Seen, told: &PlanTold, now: UnixMs) -> Row {
    let since = seen.changed.duration_since(UNIX_EPOCH).unwrap_or_default();
    let changed_at = UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let state = seen.plan.stands(told, now.0.saturating_sub(changed_at.0));
    Row { slug: slug.into(), plan: seen.plan.clone(), state, changed_at }
}

/// Reads what has changed in a folder. What can't be shown is told in words, without the folder's path.
fn look(folder: &Path, before: &BTreeMap<String, Seen>) -> Folder {
    let mut found = Folder { plans: BTreeMap::new(), problems: Vec::new() };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            found.problems.push(format!("the folder of ExecPlan files can't be read ({})", error.kind()));
            return found;
        }
    };
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| name.ends_with(".md") && !name.starts_with(['_', '.']));
    names.sort();
    if names.len() > FILES_MAX {
        found.problems.push(format!("{} ExecPlan files beyond the first {FILES_MAX} are left out", names.len() - FILES_MAX));
        names.truncate(FILES_MAX);
    }
    for name in names {
        let slug = name.trim_end_matches(".md");
        match read(&folder.join(&name), slug, before.get(slug)) {
            Ok(Some(seen)) => {
                found.plans.insert(slug.into(), seen);
            }
            Ok(None) => {}
            Err(problem) => found.problems.push(format!("`{}` {problem}", quorate_domain::refusal::shown(&name))),
        }
    }
    found
}

/// `None` for what is no file. A link could lead anywhere, so it is left out too, and told.
fn read(path: &Path, slug: &str, before: Option<&Seen>) -> Result<Option<Seen>, String> {
    let told = |error: std::io::Error| format!("can't be read ({})", error.kind());
    let about = std::fs::symlink_metadata(path).map_err(told)?;
    if about.is_symlink() {
        return Err("is a link, and links are not followed".into());
    }
    if !about.is_file() {
        return Ok(None);
    }
    check_slug(slug).map_err(|_| "has a name that no plan can have".to_string())?;
    let (changed, bytes) = (about.modified().map_err(told)?, about.len());
    if let Some(seen) = before.filter(|seen| (seen.changed, seen.bytes) == (changed, bytes)) {
        return Ok(Some(seen.clone()));
    }
    if bytes > FILE_BYTES_MAX {
        return Err(format!("is larger than {FILE_BYTES_MAX} bytes"));
    }
    let text = std::fs::read(path).map_err(told)?;
    Ok(Some(Seen { changed, bytes, plan: Arc::new(Plan::read(&String::from_utf8_lossy(&text))) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_shows_its_own_plans_and_says_what_it_leaves_out() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &[u8]| std::fs::write(folder.path().join(name), text).unwrap();
        put("search.md", b"# Search\nStatus: complete\n");
        put("_draft.md", b"# Draft\n");
        put("notes.txt", b"# Notes\n");
        put("large.md", &vec![b'a'; FILE_BYTES_MAX as usize + 1]);
        put("odd.md", b"# \xff\n");
        std::fs::create_dir(folder.path().join("folder.md")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link.md")).unwrap();
        let found = look(folder.path(), &BTreeMap::new());
        assert_eq!(found.plans.keys().collect::<Vec<_>>(), ["odd", "search"]);
        assert_eq!(found.problems, ["`large.md` is larger than 1048576 bytes", "`link.md` is a link, and links are not followed"]);

        // What has not changed is not read again, and what has is.
        put("search.md", b"# Search again\n");
        let again = look(folder.path(), &found.plans);
        assert!(Arc::ptr_eq(&again.plans["odd"].plan, &found.plans["odd"].plan));
        assert_eq!(again.plans["search"].plan.title.as_deref(), Some("Search again"));
        let gone = look(&folder.path().join("none"), &BTreeMap::new());
        assert_eq!(gone.problems, ["the folder of ExecPlan files can't be read (entity not found)"]);
    }

    #[test]
    fn files_beyond_the_limit_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..FILES_MAX + 3 {
            std::fs::write(folder.path().join(format!("p{n:05}.md")), "").unwrap();
        }
        let found = look(folder.path(), &BTreeMap::new());
        assert_eq!(
            (found.plans.len(), &found.problems[..]),
            (FILES_MAX, &["3 ExecPlan files beyond the first 1000 are left out".to_string()][..])
        );
    }
}
