//! The results of a scan, and how they come in.
//!
//! Files are dealt to parts by a number made of their path, so that a change of one file changes one part. A part is stored under
//! the hash of what it holds: who scans asks which parts are missing, stores those, and finishes with the list of all. Two who
//! scan one repository at once can only make each other store a part again.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{ScanPlace, repo};
use crate::codec;
use crate::event;
use crate::identity::{check_name, check_name_start};
use crate::key::Key;
use crate::limit::{
    SCAN_FILE_PARTS_MAX, SCAN_PART_BYTES_MAX, SCAN_PART_ROWS_MAX, SCAN_PARTS_PER_CALL_MAX, SCAN_PARTS_STORED_MAX, SCAN_ROUTE_PARTS_MAX,
};
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal};
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Read, StorageError, Table, Tx};

/// How many bits the number of a file has: a client in JavaScript reads it whole.
const FILE_ID_BITS: u32 = 53;

/// The number of a file, made of its path.
pub fn file_id(path: &str) -> u64 {
    let hash = blake3::derive_key("quorate 2026 scanned file", path.as_bytes());
    let first: [u8; 8] = std::array::from_fn(|n| hash[n]);
    u64::from_be_bytes(first) >> (u64::BITS - FILE_ID_BITS)
}

/// The part, of so many, that holds a file.
pub fn part_of(file_id: u64, parts: usize) -> usize {
    // Below `parts`, since an id is below 2^53.
    usize::try_from((u128::from(file_id) * parts as u128) >> FILE_ID_BITS).unwrap_or(0)
}

/// One file of source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRow {
    pub path: String,
    pub package: String,
    pub module: String,
    /// The first line of its documentation.
    pub doc: Option<String>,
    pub language: String,
    pub lines: u64,
    /// How many functions it defines.
    pub functions: u64,
    pub is_test: bool,
    /// Why it is told in part, or not at all.
    pub problem: Option<String>,
    /// Calls into other files, the most frequent first.
    pub edges: Vec<EdgeRow>,
    /// How many more there are.
    pub edges_left_out: u64,
}

/// Calls of one function into another file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeRow {
    /// The calling function; empty outside of all.
    pub from: String,
    /// [`file_id`] of the called file.
    pub to: u64,
    pub to_is_test: bool,
    /// The called function.
    pub symbol: String,
    pub count: u64,
}

/// What answers a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRow {
    pub method: String,
    pub path: String,
    pub handler: String,
    /// The path of the file that has the handler; `None` with why it is not known in `problem`.
    pub file: Option<String>,
    pub declared_in: String,
    pub problem: Option<String>,
}

/// What one part holds: files, or routes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartContent {
    #[serde(default)]
    pub files: Vec<FileRow>,
    #[serde(default)]
    pub routes: Vec<RouteRow>,
}

impl PartContent {
    pub fn bytes(&self) -> usize {
        codec::encode(self).len()
    }

    /// What it is stored under.
    pub fn hash(&self) -> String {
        hash_of(&codec::encode(self))
    }

    fn check(&self) -> Option<Refusal> {
        let too_long = |field: &str, size: usize, limit: usize, unit: &str| {
            let (size, limit) = (size as u64, limit as u64);
            Some(Refusal::TooLong { field: field.into(), size, limit, unit: unit.into() })
        };
        let rows = self.files.len() + self.routes.len();
        if rows > SCAN_PART_ROWS_MAX {
            return too_long("parts", rows, SCAN_PART_ROWS_MAX, "rows");
        }
        let bytes = self.bytes();
        if bytes > SCAN_PART_BYTES_MAX {
            return too_long("parts", bytes, SCAN_PART_BYTES_MAX, "bytes");
        }
        let of_file = |file: &FileRow| {
            let texts = [Some(&file.package), Some(&file.module), file.doc.as_ref(), Some(&file.language), file.problem.as_ref()];
            check_name("path", &file.path)
                .or_else(|| texts.into_iter().flatten().find_map(|text| check_name_start("files", text)))
                .or_else(|| file.edges.iter().flat_map(|edge| [&edge.from, &edge.symbol]).find_map(|text| check_name_start("edges", text)))
        };
        let of_route = |route: &RouteRow| {
            let texts = [Some(&route.handler), Some(&route.declared_in), route.file.as_ref(), route.problem.as_ref()];
            check_name("method", &route.method)
                .or_else(|| check_name("path", &route.path))
                .or_else(|| texts.into_iter().flatten().find_map(|text| check_name_start("routes", text)))
        };
        self.files.iter().find_map(of_file).or_else(|| self.routes.iter().find_map(of_route))
    }
}

fn hash_of(encoded: &[u8]) -> String {
    hex::encode(&blake3::derive_key("quorate 2026 scan part", encoded)[..16])
}

/// A stored part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    tenant: String,
    repo_id: String,
    hash: String,
    pub content: PartContent,
}

impl Record for Part {
    const KIND: Kind = Kind::ScanPart;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        part_id(&self.repo_id, &self.hash)
    }
}

pub(super) fn part_id(repo_id: &str, hash: &str) -> Key {
    Key::new().text(repo_id).text(hash)
}

/// The parts of a repository that are stored, without what they hold.
fn stored(tenant: &str, repo_id: &str) -> Key {
    kind_prefix(tenant, Kind::ScanPartStored).text(repo_id)
}

/// The scan of a repository that readers see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scan {
    pub tenant: String,
    pub repo_id: String,
    pub scan_id: String,
    /// The hash of each part: the one of a file is [`part_of`] its number.
    pub file_parts: Vec<String>,
    /// The routes, in order.
    pub route_parts: Vec<String>,
    pub totals: Totals,
    pub at: UnixMs,
    pub by: String,
}

/// What a scan found in all, as its scanner counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    pub files: u64,
    pub lines: u64,
    pub routes: u64,
    /// Files that are told in part, or not at all.
    pub problems: u64,
}

impl Record for Scan {
    const KIND: Kind = Kind::RepoScan;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.repo_id)
    }
}

/// Which repository of a tenant was scanned last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct LatestScan {
    tenant: String,
    repo_id: String,
}

impl Record for LatestScan {
    const KIND: Kind = Kind::LatestScan;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new()
    }
}

/// The scan of a repository, or without a name the latest of the tenant.
pub(super) fn scan(view: &impl Read, tenant: &str, repo_id: Option<&str>) -> Applied<Scan> {
    let latest: Option<LatestScan> = match repo_id {
        Some(_) => None,
        None => view.get(tenant, &Key::new())?,
    };
    let none =
        |which: &str| Refusal::invalid("repo_id", format!("{which} has no finished scan yet; run `quorate scan PATH` where the code is"));
    let Some(name) = repo_id.map(ToString::to_string).or(latest.map(|latest| latest.repo_id)) else {
        return Ok(Err(none("names nothing, and the tenant")));
    };
    if let Err(refusal) = repo(view, tenant, &name)? {
        return Ok(Err(refusal));
    }
    let found: Option<Scan> = view.get(tenant, &Key::new().text(&name))?;
    Ok(found.ok_or_else(|| none("names a repository that")))
}

fn check_hashes(hashes: &[String]) -> Option<Refusal> {
    let is_hash = |hash: &String| hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let limit = (SCAN_FILE_PARTS_MAX + SCAN_ROUTE_PARTS_MAX) as u64;
    if hashes.len() as u64 > limit {
        return Some(Refusal::TooLong { field: "parts".into(), size: hashes.len() as u64, limit, unit: "parts".into() });
    }
    hashes.iter().find(|hash| !is_hash(hash)).map(|_| Refusal::invalid("parts", "holds what is no hash of a part: 32 hex digits"))
}

/// Which of these parts are not stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MissingParts {
    pub repo_id: String,
    pub parts: Vec<String>,
    /// A scan of another place is refused here already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ScanPlace>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartsMissing {
    pub missing: Vec<String>,
}

impl MissingParts {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<PartsMissing> {
        let tenant = &at.caller.tenant;
        if let Some(refusal) = check_hashes(&self.parts) {
            return Ok(Err(refusal));
        }
        let refusal = match repo(view, tenant, &self.repo_id)? {
            Ok(repo) => self.place.as_ref().and_then(|place| place.refuse(&repo)),
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        let mut missing = Vec::new();
        for hash in self.parts {
            let key = stored(tenant, &self.repo_id).text(&hash);
            if view.get_bytes(Table::Index, key.as_bytes())?.is_none() {
                missing.push(hash);
            }
        }
        Ok(Ok(PartsMissing { missing }))
    }
}

/// Stores parts; those that are there stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutScanParts {
    pub repo_id: String,
    pub parts: Vec<PartContent>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScanPartsPut {
    /// The hash of each, in the order given.
    pub parts: Vec<String>,
}

impl PutScanParts {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ScanPartsPut> {
        let (given, limit) = (self.parts.len() as u64, SCAN_PARTS_PER_CALL_MAX as u64);
        if given > limit {
            return Ok(Err(Refusal::TooLong { field: "parts".into(), size: given, limit, unit: "parts".into() }));
        }
        if let Some(refusal) = self.parts.iter().find_map(PartContent::check) {
            return Ok(Err(refusal));
        }
        let mut repo = match repo(tx, &at.caller.tenant, &self.repo_id)? {
            Ok(repo) => repo,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if repo.parts_stored + given > SCAN_PARTS_STORED_MAX as u64 {
            // What scans that were never finished have left.
            let shown: Option<Scan> = tx.get(&repo.tenant, &Key::new().text(&repo.repo_id))?;
            repo.parts_stored = forget_others(tx, &repo.tenant, &repo.repo_id, shown.as_ref())?;
        }
        let mut put = Vec::new();
        for content in self.parts {
            let hash = content.hash();
            let key = stored(&repo.tenant, &repo.repo_id).text(&hash);
            if tx.get_bytes(Table::Index, key.as_bytes())?.is_none() {
                tx.put_index(key, &[]);
                tx.put(&Part { tenant: repo.tenant.clone(), repo_id: repo.repo_id.clone(), hash: hash.clone(), content });
                repo.parts_stored += 1;
            }
            put.push(hash);
        }
        tx.put(&repo);
        Ok(Ok(ScanPartsPut { parts: put }))
    }
}

/// Deletes all parts but those of a scan; answers how many are left.
fn forget_others(tx: &mut impl Tx, tenant: &str, repo_id: &str, kept: Option<&Scan>) -> Result<u64, StorageError> {
    let kept: std::collections::BTreeSet<&String> = kept.iter().flat_map(|scan| scan.file_parts.iter().chain(&scan.route_parts)).collect();
    let all = stored(tenant, repo_id);
    let (rows, _) = tx.page_bytes(Table::Index, &all, None, SCAN_PARTS_STORED_MAX + SCAN_PARTS_PER_CALL_MAX)?;
    let mut left = 0;
    for (key, _) in rows {
        let hash = Key::leading_text(&key[all.as_bytes().len()..]).ok_or_else(|| StorageError::corrupt("a part without a hash"))?;
        if kept.contains(&hash) {
            left += 1;
            continue;
        }
        let part = kind_prefix(tenant, Kind::ScanPart).raw(part_id(repo_id, &hash).as_bytes());
        tx.delete_bytes(Table::Records, part.into_bytes());
        tx.delete_bytes(Table::Index, key);
    }
    Ok(left)
}

/// Makes a list of stored parts the scan that readers see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishScan {
    pub repo_id: String,
    pub file_parts: Vec<String>,
    pub route_parts: Vec<String>,
    pub totals: Totals,
    /// Where it was made, if that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ScanPlace>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScanFinished {
    pub scan_id: String,
}

impl FinishScan {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<ScanFinished> {
        let mut repo = match repo(tx, &at.caller.tenant, &self.repo_id)? {
            Ok(repo) => repo,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(refusal) = self.place.as_ref().and_then(|place| place.refuse(&repo)) {
            return Ok(Err(refusal));
        }
        for (field, parts, limit) in
            [("file_parts", &self.file_parts, SCAN_FILE_PARTS_MAX), ("route_parts", &self.route_parts, SCAN_ROUTE_PARTS_MAX)]
        {
            let (size, limit) = (parts.len() as u64, limit as u64);
            if size > limit {
                return Ok(Err(Refusal::TooLong { field: field.into(), size, limit, unit: "parts".into() }));
            }
            if let Some(refusal) = check_hashes(parts) {
                return Ok(Err(refusal));
            }
        }
        for hash in self.file_parts.iter().chain(&self.route_parts) {
            let key = stored(&repo.tenant, &repo.repo_id).text(hash);
            if tx.get_bytes(Table::Index, key.as_bytes())?.is_none() {
                return Ok(Err(Refusal::not_found("part", hash)));
            }
        }
        let scan = Scan {
            tenant: repo.tenant.clone(),
            repo_id: repo.repo_id.clone(),
            scan_id: at.new_id("scan", 0),
            file_parts: self.file_parts,
            route_parts: self.route_parts,
            totals: self.totals,
            at: at.wall,
            by: at.caller.passport.clone(),
        };
        repo.parts_stored = forget_others(tx, &repo.tenant, &repo.repo_id, Some(&scan))?;
        if let Some(ScanPlace { root_path, clone_url, .. }) = self.place {
            repo.root_path = Some(root_path);
            repo.clone_url = clone_url.or(repo.clone_url);
        }
        repo.last_scan_id = Some(scan.scan_id.clone());
        tx.put(&repo);
        tx.put(&scan);
        tx.put(&LatestScan { tenant: repo.tenant.clone(), repo_id: repo.repo_id.clone() });
        let Totals { files, routes, .. } = scan.totals;
        let about = json!({ "scan_id": scan.scan_id, "files": files, "routes": routes, "actor": scan.by });
        event::emit(tx, at, "repo.scanned", &repo.repo_id, about)?;
        Ok(Ok(ScanFinished { scan_id: scan.scan_id }))
    }
}
