//! Repositories of a tenant: which there are, and what the last scan of each found.
//!
//! Code is read where it lies, by a program that is not part of the cluster; its results come here in parts, and the source
//! never does. Invariants:
//! * A repository has one name in its tenant. Registering it again changes what is said of it and keeps its scan.
//! * Readers see one finished scan as a whole: parts are stored under what they hold, and one entry makes a list of them the scan.
//! * A scan of another place does not take a repository's name: only the same remote, the same folder, or a caller who chose the
//!   name does. `root_path` is where the last scan was made that said where.
//! * Parts that no scan names are bounded in number, and gone when the next one is finished.
//!
//! [`scan`] is how results come in, [`storyline`] how they are told.

pub mod scan;
pub mod storyline;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cursor::Cursors;
use crate::event;
use crate::identity::{check_name, check_named_tenant};
use crate::key::Key;
use crate::limit::{REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES, REPO_LANGUAGES_MAX, REPO_SLUG_BYTES_MAX};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};
use crate::{codec, work};

/// One repository.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repo {
    pub tenant: String,
    pub repo_id: String,
    /// Where it lies on some machine: as registered, or as scanned since.
    pub root_path: Option<String>,
    pub clone_url: Option<String>,
    pub languages: Vec<String>,
    pub enabled: bool,
    /// Whether names in it that differ in case alone are different files.
    pub case_sensitive: bool,
    pub added_at: UnixMs,
    pub last_scan_id: Option<String>,
    /// Parts of scans that are stored, whether a scan names them or not.
    pub parts_stored: u64,
}

impl Record for Repo {
    const KIND: Kind = Kind::Repo;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.repo_id)
    }
}

impl Repo {
    /// Whether a folder or a remote is this repository: clones of one remote are, wherever they lie.
    fn is_at(&self, root_path: Option<&str>, clone_url: Option<&str>) -> bool {
        match (clone_url, self.clone_url.as_deref()) {
            (Some(other), Some(own)) => remote(other) == remote(own),
            _ => root_path
                .zip(self.root_path.as_deref())
                .is_some_and(|(other, own)| other.trim_end_matches('/') == own.trim_end_matches('/')),
        }
    }
}

fn repo(view: &impl Read, tenant: &str, repo_id: &str) -> Applied<Repo> {
    if let Some(refusal) = check_name("repo_id", repo_id) {
        return Ok(Err(refusal));
    }
    let found: Option<Repo> = view.get(tenant, &Key::new().text(repo_id))?;
    Ok(found.ok_or_else(|| Refusal::not_found("repository", repo_id)))
}

/// A name made of the last part of a path or URL: `https://example.org/acme/My API.git` is `my-api`.
pub fn slug(place: &str) -> Option<String> {
    let last = place.trim_end_matches('/').rsplit(['/', ':', '\\']).next()?;
    let last = last.strip_suffix(".git").unwrap_or(last).to_lowercase();
    let mut slug = String::new();
    for c in last.chars() {
        match c.is_ascii_alphanumeric() || matches!(c, '.' | '_') {
            true => slug.push(c),
            false if slug.ends_with('-') => {}
            false => slug.push('-'),
        }
    }
    slug.truncate(REPO_SLUG_BYTES_MAX);
    let slug = slug.trim_matches(['-', '.']).to_string();
    (!slug.is_empty()).then_some(slug)
}

// ------------------------------------------------------------------ register_repo

/// Registers a repository, or changes what is said of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegisterRepo {
    /// A claim: must be the caller's tenant, or `local`.
    pub tenant_id: String,
    /// Made of path or URL when absent; then it has to be free.
    pub repo_id: Option<String>,
    pub root_path: Option<String>,
    pub clone_url: Option<String>,
    pub languages: Vec<String>,
    pub case_sensitive: Option<bool>,
}

impl RegisterRepo {
    fn check(&self, at: &Stamp) -> Option<Refusal> {
        let languages = self.languages.len() as u64;
        check_named_tenant(&at.caller, &self.tenant_id)
            .or_else(|| self.repo_id.as_deref().and_then(check_id))
            .or_else(|| self.root_path.as_deref().and_then(check_root))
            .or_else(|| self.clone_url.as_deref().and_then(check_clone_url))
            .or_else(|| {
                let is_nowhere = self.root_path.is_none() && self.clone_url.is_none();
                is_nowhere.then(|| Refusal::invalid("root_path", "is missing, and so is `clone_url`: give one of them"))
            })
            .or_else(|| self.languages.iter().find_map(|language| check_name("languages", language)))
            .or_else(|| {
                let limit = REPO_LANGUAGES_MAX as u64;
                let too_many = || Refusal::TooLong { field: "languages".into(), size: languages, limit, unit: "entries".into() };
                (languages > limit).then(too_many)
            })
    }

    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<Repo> {
        if let Some(refusal) = self.check(at) {
            return Ok(Err(refusal));
        }
        let place = self.root_path.as_deref().or(self.clone_url.as_deref()).unwrap_or_default();
        let Some(repo_id) = self.repo_id.clone().or_else(|| slug(place)) else {
            return Ok(Err(Refusal::invalid("repo_id", "is missing, and no name can be made of the path or URL")));
        };
        let known: Option<Repo> = tx.get(&at.caller.tenant, &Key::new().text(&repo_id))?;
        // A name that nobody gave tells little: two places of one name are one repository only if they share remote or path.
        let is_another = |known: &Repo| !known.is_at(self.root_path.as_deref(), self.clone_url.as_deref());
        if self.repo_id.is_none() && known.as_ref().is_some_and(is_another) {
            let problem = format!(
                "`{repo_id}`, made of the path or URL, is the name of another repository: give one of your own, or this one if it is meant"
            );
            return Ok(Err(Refusal::invalid("repo_id", problem)));
        }
        let repo = match known {
            Some(known) => Repo {
                root_path: self.root_path.or(known.root_path),
                clone_url: self.clone_url.or(known.clone_url),
                languages: if self.languages.is_empty() { known.languages } else { self.languages },
                case_sensitive: self.case_sensitive.unwrap_or(known.case_sensitive),
                ..known
            },
            None => Repo {
                tenant: at.caller.tenant.clone(),
                repo_id,
                root_path: self.root_path,
                clone_url: self.clone_url,
                languages: self.languages,
                enabled: true,
                case_sensitive: self.case_sensitive.unwrap_or(true),
                added_at: at.wall,
                last_scan_id: None,
                parts_stored: 0,
            },
        };
        tx.put(&repo);
        event::emit(tx, at, "repo.registered", &repo.repo_id, json!({ "actor": at.caller.passport }))?;
        Ok(Ok(repo))
    }
}

/// Where a scan was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScanPlace {
    pub root_path: String,
    /// Git's remote of the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_url: Option<String>,
    /// Somebody chose the repository's name, so it was not made of the folder's: then this is the repository that is meant.
    #[serde(default)]
    pub is_named: bool,
}

impl ScanPlace {
    /// Why a scan of this place is none of the repository.
    pub(crate) fn refuse(&self, known: &Repo) -> Option<Refusal> {
        if let Some(refusal) = check_root(&self.root_path).or_else(|| self.clone_url.as_deref().and_then(check_clone_url)) {
            return Some(refusal);
        }
        let is_same = known.is_at(Some(&self.root_path), self.clone_url.as_deref());
        if self.is_named || is_same {
            return None;
        }
        let told = |root: Option<&str>, url: Option<&str>| {
            let places: Vec<String> = root.into_iter().chain(url).map(|place| format!("`{}`", crate::refusal::shown(place))).collect();
            places.join(" of ")
        };
        let problem = format!(
            "`{}` is the repository at {}, and this is a scan of {}: choose another name with `quorate scan --repo NAME`, or this one if \
             it is meant",
            known.repo_id,
            told(known.root_path.as_deref(), known.clone_url.as_deref()),
            told(Some(&self.root_path), self.clone_url.as_deref()),
        );
        Some(Refusal::invalid("repo_id", problem))
    }
}

/// What two addresses of one remote share: host and path, whatever the scheme and the user.
fn remote(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (host, path) = rest.split_once(['/', ':']).unwrap_or((rest, ""));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host).to_lowercase();
    let path = path.trim_matches('/');
    format!("{host}/{}", path.strip_suffix(".git").unwrap_or(path))
}

fn check_root(path: &str) -> Option<Refusal> {
    let is_absolute = path.starts_with('/') || path.as_bytes().get(1) == Some(&b':');
    let wrong = || Refusal::invalid("root_path", format!("is not absolute: `{}`", crate::refusal::shown(path)));
    check_name("root_path", path).or_else(|| (!is_absolute).then(wrong))
}

/// Whether a remote of git is an address that others clone from, and holds no password.
pub fn is_clone_url(url: &str) -> bool {
    check_clone_url(url).is_none()
}

/// A repository's name stands in addresses and beside paths.
fn check_id(id: &str) -> Option<Refusal> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.trim() == part;
    let is_id = !id.contains('\\') && id.split('/').all(is_part);
    let wrong = || Refusal::invalid("repo_id", format!("must be a name such as `api` or `acme/api`, not `{}`", crate::refusal::shown(id)));
    check_name("repo_id", id).or_else(|| (!is_id).then(wrong))
}

/// Where git clones from over a network: `https://host/path`, `ssh://host/path`, or `user@host:path`.
fn check_clone_url(url: &str) -> Option<Refusal> {
    let (authority, path) = match url.split_once("://") {
        Some(("https" | "http" | "ssh" | "git", rest)) => rest.split_once('/').unwrap_or((rest, "")),
        Some(_) => ("", ""),
        None => url.split_once(':').unwrap_or(("", "")),
    };
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let is_host = host.contains(|c: char| c.is_ascii_alphanumeric()) && !host.contains(['/', '\\', '@', '?', '#']);
    // Without a scheme, a drive or a word before a colon is no host.
    let is_named = url.contains("://") || user.is_some() || host.contains('.');
    let is_url = is_host && is_named && !path.trim_matches('/').is_empty() && !url.contains(char::is_whitespace);
    let wrong = || {
        let shown = crate::refusal::shown(url);
        let problem = format!(
            "must be an address that git clones from, such as `https://host/path` or `git@host:path`, not `{shown}`; a folder is a `root_path`"
        );
        Refusal::invalid("clone_url", problem)
    };
    // Everybody in the tenant reads it.
    let has_password = user.is_some_and(|user| user.contains(':'));
    let password = || Refusal::invalid("clone_url", "holds a password; leave it out, since the whole team can read it");
    check_name("clone_url", url).or_else(|| has_password.then(password)).or_else(|| (!is_url).then(wrong))
}

// ------------------------------------------------------------------ list_repos

/// The repositories of the caller's tenant, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListRepos {
    /// A claim: must be the caller's tenant, or `local`.
    pub tenant_id: String,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repos {
    pub repos: Vec<Repo>,
    pub next_cursor: Option<String>,
}

impl ListRepos {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Repos> {
        if let Some(refusal) = check_named_tenant(&at.caller, &self.tenant_id) {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("repositories", &at.caller, &());
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let read = |bytes: &[u8]| {
            let repo: Repo = codec::decode(bytes).map_err(|error| StorageError::new("repository", error))?;
            let bytes = serde_json::to_string(&repo).map_or(0, |json| json.len());
            Ok(Some((repo, bytes)))
        };
        let all = kind_prefix(&at.caller.tenant, Kind::Repo);
        let budget = REPLY_BYTES_DEFAULT - 2 * REPLY_WRAPPER_BYTES;
        let found = work::page(view, Table::Records, &all, from.as_deref(), limit, budget, read)?;
        Ok(Ok(Repos { repos: found.items, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}
