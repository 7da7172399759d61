//! The corpus: commits, pull requests, issues and comments of repositories that a connector reads for a tenant.
//!
//! The cluster does not read anything itself. One gateway at a time does, under a punchcard, and what it finds comes here with
//! the place where it has come to. Invariants:
//! * What a source told and how far it has been read are one entry, so nothing between two readers is lost or told twice.
//! * Only a connector writes here, and only under a live card: one that lost its card can't put anything back.
//! * An item is one row whatever tells of it. What is older than what is known changes nothing.
//! * Lists go newest first, and no list looks at items of another kind or repository to find its own.
//!
//! Decisions: an item's value is what its reader made of it and is not looked into; which words it is found by, whether it is open
//! and what labels it has are told beside it.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cursor::Cursors;
use crate::event;
use crate::identity::{check_name, check_name_start, check_text};
use crate::key::Key;
use crate::limit::{
    CORPUS_BEHIND_SHOWN, CORPUS_ITEMS_PER_CALL_MAX, CORPUS_LABELS_MAX, CORPUS_SOURCES_MAX, CORPUS_VALUE_BYTES_MAX, CORPUS_WORD_BYTES_MAX,
    CORPUS_WORDS_MAX, REPLY_BYTES_DEFAULT, REPLY_WRAPPER_BYTES, SCAN_ROWS_MAX,
};
use crate::query;
use crate::record::{Kind, ReadRecords, Record, WriteRecords, kind_prefix};
use crate::refusal::{Applied, Refusal, shown};
use crate::stamp::{ReadStamp, Stamp, UnixMs};
use crate::tx::{Direction, Read, StorageError, Table, Tx};
use crate::{codec, work};

/// The scope of a connector. Gateways give it to themselves, and `*` does not include it.
pub const CONNECTOR: &str = "connector";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum ItemKind {
    // The numbers stand in keys and are never reused.
    Commit = 1,
    PullRequest = 2,
    Issue = 3,
    Comment = 4,
}

impl ItemKind {
    /// The word of its entity.
    pub fn word(self) -> &'static str {
        match self {
            ItemKind::Commit => "commit",
            ItemKind::PullRequest => "pr",
            ItemKind::Issue => "issue",
            ItemKind::Comment => "comment",
        }
    }
}

impl Told {
    /// What it takes of a call.
    pub fn bytes(&self) -> usize {
        256 + self.value.len() + self.text.len() + self.labels.iter().chain(&self.parents).map(String::len).sum::<usize>()
    }
}

/// What a connector tells of one item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    pub kind: ItemKind,
    /// Its name in its repository: a hash or a number.
    pub id: String,
    /// Its place among others.
    pub at: UnixMs,
    /// When it was last changed: what is older than what is known is not taken.
    pub updated_at: UnixMs,
    /// Of pull requests and issues.
    pub is_open: bool,
    pub labels: Vec<String>,
    /// Of commits.
    pub parents: Vec<String>,
    /// A JSON text that is shown as it is.
    pub value: String,
    /// What it is found by.
    pub text: String,
}

/// One item, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    pub tenant: String,
    /// `owner/name`.
    pub repo: String,
    pub kind: ItemKind,
    pub id: String,
    pub at: UnixMs,
    pub updated_at: UnixMs,
    pub is_open: bool,
    pub labels: Vec<String>,
    pub value: String,
    pub words: BTreeSet<String>,
}

impl Record for Item {
    const KIND: Kind = Kind::CorpusItem;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        item_id(&self.repo, self.kind, &self.id)
    }
}

fn item_id(repo: &str, kind: ItemKind, id: &str) -> Key {
    Key::new().text(repo).byte(kind as u8).text(id)
}

impl Item {
    /// As facts name it.
    pub fn entity(&self) -> String {
        format!("github::{}::{}/{}", self.repo, self.kind.word(), self.id)
    }

    fn reply_bytes(&self) -> usize {
        // The value stands in JSON as text.
        64 + self.entity().len() + serde_json::to_string(&self.value).map_or(self.value.len(), |json| json.len())
    }

    /// Its places in the orders, and under its words.
    fn places(&self) -> Vec<Key> {
        let order =
            |repo: Option<&str>| order(&self.tenant, self.kind, repo, self.is_open).number_descending(self.at.0).raw(self.id().as_bytes());
        let of_word = |word: &String| of_word(&self.tenant, word).number_descending(self.at.0).raw(self.id().as_bytes());
        [None, Some(self.repo.as_str())].map(order).into_iter().chain(self.words.iter().map(of_word)).collect()
    }
}

/// Items of a kind, newest first: of one repository or of all, and open or not.
fn order(tenant: &str, kind: ItemKind, repo: Option<&str>, is_open: bool) -> Key {
    kind_prefix(tenant, Kind::CorpusOrder).byte(kind as u8).text(repo.unwrap_or_default()).byte(is_open.into())
}

fn of_word(tenant: &str, word: &str) -> Key {
    kind_prefix(tenant, Kind::CorpusWord).text(word)
}

/// The words of a text, without case; the first [`CORPUS_WORDS_MAX`] of them that differ.
fn words(text: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 1 && word.len() <= CORPUS_WORD_BYTES_MAX) {
        if words.len() == CORPUS_WORDS_MAX {
            break;
        }
        words.insert(word.to_lowercase());
    }
    words
}

/// A repository that is read, and how far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    pub tenant: String,
    pub repo: String,
    /// The connector's own word for how far it has come.
    pub place: String,
    /// How often somebody said that there is something new.
    pub hints: u64,
    /// When it was last read to its end.
    pub read_at: Option<UnixMs>,
    /// Why it can't be read now.
    pub problem: Option<String>,
}

impl Record for Source {
    const KIND: Kind = Kind::CorpusSource;
    fn tenant(&self) -> &str {
        &self.tenant
    }
    fn id(&self) -> Key {
        Key::new().text(&self.repo)
    }
}

fn source(view: &impl Read, tenant: &str, repo: &str) -> Result<Source, StorageError> {
    let found: Option<Source> = view.get(tenant, &Key::new().text(repo))?;
    Ok(found.unwrap_or_else(|| Source {
        tenant: tenant.into(),
        repo: repo.into(),
        place: String::new(),
        hints: 0,
        read_at: None,
        problem: None,
    }))
}

/// Checks a repository's name.
pub fn check_repo(field: &str, repo: &str) -> Option<Refusal> {
    let is_name = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let is_whole = repo.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name) && !matches!(name, "." | ".."));
    let problem = || Refusal::invalid(field, format!("is `owner/name`, not `{}`", shown(repo)));
    check_name(field, repo).or_else(|| (!is_whole).then(problem))
}

fn needs_connector(at: &Stamp) -> Option<Refusal> {
    let is_one = at.caller.scopes.contains(CONNECTOR);
    (!is_one).then(|| Refusal::Denied { problem: "the corpus is written by connectors only".into() })
}

// ------------------------------------------------------------------ what a connector writes

/// What was read of a repository, and how far it is read with that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutCorpus {
    pub repo: String,
    pub items: Vec<Told>,
    /// The place after them; as before when absent.
    pub place: Option<String>,
    /// Everything that there was has been read.
    pub is_at_end: bool,
    /// Why reading stopped; none when all is well.
    pub problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorpusPut {
    /// Items that were not known, and that have changed.
    pub new: u64,
    pub changed: u64,
    /// Parents of the new commits that are not known.
    pub parents_missing: Vec<String>,
}

impl PutCorpus {
    fn check(&self, at: &Stamp) -> Option<Refusal> {
        let too_long = |field: &str, size: usize, limit: usize, unit: &str| Refusal::TooLong {
            field: field.into(),
            size: size as u64,
            limit: limit as u64,
            unit: unit.into(),
        };
        let of_item = |item: &Told| {
            let lists = item.labels.len().max(item.parents.len());
            check_name("id", &item.id)
                .or_else(|| item.labels.iter().chain(&item.parents).find_map(|text| check_name_start("labels", text)))
                .or_else(|| (lists > CORPUS_LABELS_MAX).then(|| too_long("labels", lists, CORPUS_LABELS_MAX, "entries")))
                .or_else(|| {
                    let bytes = item.value.len();
                    (bytes > CORPUS_VALUE_BYTES_MAX).then(|| too_long("value", bytes, CORPUS_VALUE_BYTES_MAX, "bytes"))
                })
        };
        let no_card = || Refusal::StaleToken { problem: "a connector writes under its card, and this names none".into() };
        let many = self.items.len();
        needs_connector(at)
            .or_else(|| at.under.is_none().then(no_card))
            .or_else(|| check_repo("repo", &self.repo))
            .or_else(|| self.place.as_deref().and_then(|place| check_text("place", place)))
            .or_else(|| self.problem.as_deref().and_then(|problem| check_text("problem", problem)))
            .or_else(|| (many > CORPUS_ITEMS_PER_CALL_MAX).then(|| too_long("items", many, CORPUS_ITEMS_PER_CALL_MAX, "items")))
            .or_else(|| self.items.iter().find_map(of_item))
    }

    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<CorpusPut> {
        if let Some(refusal) = self.check(at) {
            return Ok(Err(refusal));
        }
        let tenant = at.caller.tenant.clone();
        let mut put = CorpusPut { new: 0, changed: 0, parents_missing: Vec::new() };
        let mut parents = BTreeSet::new();
        for told in self.items {
            let known: Option<Item> = tx.get(&tenant, &item_id(&self.repo, told.kind, &told.id))?;
            let item = Item {
                tenant: tenant.clone(),
                repo: self.repo.clone(),
                kind: told.kind,
                id: told.id,
                at: told.at,
                updated_at: told.updated_at,
                is_open: told.is_open,
                labels: told.labels,
                value: told.value,
                words: words(&told.text),
            };
            match &known {
                Some(known) if known.updated_at > item.updated_at || *known == item => continue,
                Some(known) => {
                    known.places().into_iter().for_each(|place| tx.delete_index(place));
                    put.changed += 1;
                }
                None => {
                    put.new += 1;
                    parents.extend(told.parents);
                }
            }
            item.places().into_iter().for_each(|place| tx.put_index(place, item.id().as_bytes()));
            tx.put(&item);
        }
        for parent in parents {
            let known: Option<Item> = tx.get(&tenant, &item_id(&self.repo, ItemKind::Commit, &parent))?;
            if known.is_none() {
                put.parents_missing.push(parent);
            }
        }
        let mut source = source(tx, &tenant, &self.repo)?;
        source.place = self.place.unwrap_or(source.place);
        source.problem = self.problem;
        if self.is_at_end {
            source.read_at = Some(at.wall);
        }
        tx.put(&source);
        if put.new + put.changed > 0 {
            event::emit(tx, at, "corpus.changed", &self.repo, json!({ "new": put.new, "changed": put.changed }))?;
        }
        Ok(Ok(put))
    }
}

/// Says that there may be something new. Needs no card: a hint changes nothing but when a source is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HintSource {
    pub repo: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceHinted {
    pub hints: u64,
}

impl HintSource {
    pub fn apply(self, tx: &mut impl Tx, at: &Stamp) -> Applied<SourceHinted> {
        if let Some(refusal) = needs_connector(at).or_else(|| check_repo("repo", &self.repo)) {
            return Ok(Err(refusal));
        }
        let mut source = source(tx, &at.caller.tenant, &self.repo)?;
        source.hints += 1;
        tx.put(&source);
        Ok(Ok(SourceHinted { hints: source.hints }))
    }
}

/// How far repositories are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetSources {
    pub repos: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sources {
    /// In the order asked for.
    pub sources: Vec<Source>,
}

impl GetSources {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Sources> {
        let (size, limit) = (self.repos.len() as u64, CORPUS_SOURCES_MAX as u64);
        if size > limit {
            return Ok(Err(Refusal::TooLong { field: "repos".into(), size, limit, unit: "repositories".into() }));
        }
        if let Some(refusal) = self.repos.iter().find_map(|repo| check_repo("repos", repo)) {
            return Ok(Err(refusal));
        }
        let sources = self.repos.iter().map(|repo| source(view, &at.caller.tenant, repo)).collect::<Result<_, _>>()?;
        Ok(Ok(Sources { sources }))
    }
}

/// The repositories that are or were read for the caller's tenant, by name: how far, and what is in the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListSources {
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourcesListed {
    pub sources: Vec<Source>,
    pub next_cursor: Option<String>,
}

impl ListSources {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<SourcesListed> {
        let cursors = Cursors::of("sources", &at.caller, &());
        let (limit, from) = match cursors.page(self.limit, self.cursor.as_deref()) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let read = |bytes: &[u8]| {
            let source: Source = codec::decode(bytes).map_err(|error| StorageError::new("source", error))?;
            // Its place is the connector's own business, and no part of what is told.
            let bytes = 200 + source.repo.len() + source.problem.as_ref().map_or(0, |problem| 2 * problem.len());
            Ok(Some((source, bytes)))
        };
        let all = kind_prefix(&at.caller.tenant, Kind::CorpusSource);
        let budget = REPLY_BYTES_DEFAULT - 2 * REPLY_WRAPPER_BYTES;
        let found = work::page(view, Table::Records, &all, from.as_deref(), limit, budget, read)?;
        Ok(Ok(SourcesListed { sources: found.items, next_cursor: found.next.map(|next| cursors.seal(&next)) }))
    }
}

// ------------------------------------------------------------------ what is asked of it

/// Items of one kind, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListCorpus {
    pub kind: ItemKind,
    /// All repositories when absent.
    pub repo: Option<String>,
    pub is_open: bool,
    /// Those with this label.
    pub label: Option<String>,
    /// Those not before this.
    pub since: Option<UnixMs>,
    pub limit: u64,
    pub cursor: Option<String>,
}

/// Items with all words of a text, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchCorpus {
    pub query: String,
    pub repo: Option<String>,
    pub limit: u64,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorpusItems {
    pub items: Vec<Item>,
    pub next_cursor: Option<String>,
    /// Whether anything is read for this tenant at all.
    pub has_sources: bool,
    /// The one repository that was asked for is not read.
    pub is_unread: bool,
    /// On a first page, sources of it that can't be read now or were never read to their end: some, so much may be missing.
    pub behind: Vec<Source>,
}

/// What is to be known of the sources of a list: see [`CorpusItems`].
fn empty(view: &impl Read, tenant: &str, repo: Option<&str>, is_first: bool) -> Result<CorpusItems, StorageError> {
    let sources: Vec<Source> = match repo {
        Some(repo) => view.get(tenant, &Key::new().text(repo))?.into_iter().collect(),
        None if is_first => view.page(tenant, &Key::new(), None, CORPUS_SOURCES_MAX)?.items,
        None => Vec::new(),
    };
    let is_unread = repo.is_some() && sources.is_empty();
    let has_sources = !sources.is_empty() || !view.page::<Source>(tenant, &Key::new(), None, 1)?.items.is_empty();
    let is_behind = |source: &Source| is_first && (source.problem.is_some() || source.read_at.is_none());
    let behind = sources.into_iter().filter(is_behind).take(CORPUS_BEHIND_SHOWN).collect();
    Ok(CorpusItems { items: Vec::new(), next_cursor: None, has_sources, is_unread, behind })
}

impl ListCorpus {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<CorpusItems> {
        let repo = self.repo.as_deref();
        if let Some(refusal) = repo.and_then(|repo| check_repo("repo", repo)).or_else(|| check_name_start("label", self.label.as_deref()?))
        {
            return Ok(Err(refusal));
        }
        let cursors = Cursors::of("corpus", &at.caller, &(self.kind, repo, self.is_open, &self.label, self.since));
        let mut order = order(&at.caller.tenant, self.kind, repo, self.is_open);
        let end = match self.since {
            Some(since) => order.clone().number_descending(since.0).after_prefix(),
            None => order.after_prefix(),
        };
        let is_asked = |item: &Item| self.label.as_ref().is_none_or(|label| item.labels.contains(label));
        items(view, at, &cursors, &mut order, end, (repo, self.limit, self.cursor.as_deref()), is_asked)
    }
}

impl SearchCorpus {
    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<CorpusItems> {
        let repo = self.repo.as_deref();
        if let Some(refusal) = repo.and_then(|repo| check_repo("repo", repo)).or_else(|| check_name("query", &self.query)) {
            return Ok(Err(refusal));
        }
        let words = words(&self.query);
        // A long word is a rare one.
        let Some(rarest) = words.iter().max_by_key(|word| (word.chars().count(), *word)) else {
            return Ok(Err(Refusal::invalid("query", "holds no word of two letters or more")));
        };
        let cursors = Cursors::of("corpus search", &at.caller, &(&self.query, repo));
        let mut order = of_word(&at.caller.tenant, rarest);
        let end = order.after_prefix();
        let is_asked = |item: &Item| repo.is_none_or(|repo| item.repo == repo) && words.is_subset(&item.words);
        items(view, at, &cursors, &mut order, end, (repo, self.limit, self.cursor.as_deref()), is_asked)
    }
}

/// Rows that are read at once.
const ROWS_AT_ONCE: usize = if cfg!(test) { 7 } else { 256 };

/// Items of an order that are asked for, until there are enough, they fill a reply, or as many rows were looked at as one call may.
fn items(
    view: &impl Read,
    at: &ReadStamp,
    cursors: &Cursors,
    order: &mut Key,
    end: Vec<u8>,
    (repo, limit, cursor): (Option<&str>, u64, Option<&str>),
    is_asked: impl Fn(&Item) -> bool,
) -> Applied<CorpusItems> {
    let tenant = &at.caller.tenant;
    let (limit, from) = match query::rows(limit).and_then(|limit| Ok((limit, cursors.open_from(cursor)?))) {
        Ok(checked) => checked,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut found = empty(view, tenant, repo, cursor.is_none())?;
    let mut from = order.clone().raw(&from.unwrap_or_default()).into_bytes();
    let (mut looked_at, mut left) = (0, REPLY_BYTES_DEFAULT - 2 * REPLY_WRAPPER_BYTES);
    loop {
        let rows = view.scan_bytes(Table::Index, &from, &end, Direction::Ascending, ROWS_AT_ONCE)?;
        let is_last = rows.len() < ROWS_AT_ONCE;
        for (key, id) in rows {
            let is_full = found.items.len() == limit || looked_at == SCAN_ROWS_MAX;
            let item: Option<Item> = if is_full { None } else { view.get(tenant, &Key::new().raw(&id))? };
            let bytes = item.as_ref().map_or(0, Item::reply_bytes);
            if is_full || item.as_ref().is_some_and(|item| is_asked(item) && bytes > left && !found.items.is_empty()) {
                found.next_cursor = Some(cursors.seal(&key[order.as_bytes().len()..]));
                return Ok(Ok(found));
            }
            let item = item.ok_or_else(|| StorageError::corrupt("a row of the corpus points nowhere"))?;
            if is_asked(&item) {
                left = left.saturating_sub(bytes);
                found.items.push(item);
            }
            looked_at += 1;
            from = [key, vec![0]].concat();
        }
        if is_last {
            return Ok(Ok(found));
        }
    }
}
