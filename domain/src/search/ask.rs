//! One search: the index's candidates, judged against the state, joined with what the graph says, and put into a page.
//!
//! Two voices name results in an order of theirs: the words, by the index, and the graph, in which what is joined to a good result
//! gains by it. They are fused by rank: a place counts `1 / (60 + place)`, three parts for the words and one for the graph, and the
//! best possible is a score of one. So no voice's own numbers have to be compared, and no float decides an order.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::expand::content;
use super::source::{Document, Node, check_own_tenant, cut, visible};
use super::words::{Piece, folded_name, hold, pieces};
use crate::cursor::Cursors;
use crate::fact::{self, Room, json_text_bytes};
use crate::graph;
use crate::limit::{LIST_MAX, SEARCH_DEPTH_MAX, SEARCH_EDGES, SEARCH_FACTS, SEARCH_QUERY_BYTES_MAX, SEARCH_SEEDS, SEARCH_SPARE};
use crate::machine::Clock;
use crate::pointer::{self, Pointer};
use crate::refusal::{Applied, Refusal};
use crate::search::gap;
use crate::stamp::{Principal, ReadStamp, Revision};
use crate::tx::{Read, StorageError};

/// Finds by words, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    pub tenant_id: String,
    pub query: String,
    /// Rows of this reply at most.
    pub limit: u64,
    pub token_budget: Option<u64>,
    /// Leaves out results with a lower score, in millionths.
    pub score_min: Option<u32>,
    /// Whether rows show where their words stand.
    pub with_snippets: bool,
    pub cursor: Option<String>,
    /// What the serving node's index names. A caller's is replaced.
    #[serde(default)]
    pub hits: Hits,
    /// With a pointer for each row.
    #[serde(default)]
    pub with_pointers: bool,
    /// With the entity and the key of each fact.
    #[serde(default)]
    pub with_pairs: bool,
}

/// What an index answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hits {
    /// Keys of records, best first.
    pub keys: Vec<Vec<u8>>,
    pub segments: u64,
    /// Every change up to this revision is in it.
    pub indexed_through: Revision,
}

/// What an index is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub pieces: Vec<Piece>,
    /// All of it, for what has exactly this name.
    pub name: String,
    pub hits_max: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub results: Vec<FoundRow>,
    pub coverage: Coverage,
    pub segments_searched: u64,
    pub indexed_through: Revision,
    /// Whether that is all that this state holds.
    pub is_up_to_date: bool,
    pub next_cursor: Option<String>,
    /// Why the rows end although there are more: `limit`, `reply_bytes`, `token_budget` or `depth`.
    pub truncated: Option<String>,
    /// The uncovered words as they should be noted; nothing when they were lately, or when enough was found.
    pub gap: Option<String>,
    /// Beside each row, if they were asked for.
    #[serde(default)]
    pub pointers: Vec<Pointer>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoundRow {
    pub doc_id: String,
    /// `fact`, `work`, `entity` or `document`.
    pub kind: String,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub snippet: Option<String>,
    /// In millionths.
    pub score: u32,
    pub segment_index: u64,
    /// Tokens (4 bytes of JSON) of its content.
    pub token_count: u64,
    /// Entity, as it is filed, and key of a fact, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pair: Option<(String, String)>,
}

/// How much of what was asked for the results of this reply hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// The part of the words that stand in a result, in millionths.
    pub score: u32,
    /// The others, as they were typed.
    pub gaps: Vec<String>,
    pub below_floor: bool,
}

const ONE: u32 = 1_000_000;
/// Less than half of the words found is little.
const COVERAGE_FLOOR: u32 = ONE / 2;
const SNIPPET_BYTES: usize = 160;
const SNIPPET_BEFORE_BYTES: usize = 40;
/// What surrounds a row's values beyond its names, and a score as people read it.
const ROW_SPARE_BYTES: usize = 16;

/// Words that carry no subject of their own. They are looked for like others, and not missed.
const FILLERS: [&str; 40] = [
    "a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "did", "do", "does", "for", "from", "has", "have", "how", "i", "in",
    "is", "it", "its", "of", "on", "or", "should", "that", "the", "their", "this", "to", "was", "we", "what", "when", "where", "which",
    "who", "with",
];

impl Search {
    fn cursors(&self, caller: &Principal) -> Cursors {
        Cursors::of("search", caller, &(&self.query, self.score_min, self.with_snippets))
    }

    /// All that can be refused without reading, and how many results went before.
    fn check(&self, caller: &Principal) -> Result<usize, Refusal> {
        if let Some(refusal) = check_own_tenant(caller, &self.tenant_id) {
            return Err(refusal);
        }
        fact::at_most("query", self.query.len(), SEARCH_QUERY_BYTES_MAX, "bytes")?;
        if self.limit == 0 || self.limit > LIST_MAX as u64 {
            return Err(Refusal::invalid("limit", format!("must be 1 to {LIST_MAX}, not {}", self.limit)));
        }
        if self.token_budget == Some(0) {
            return Err(Refusal::invalid("token_budget", "must be at least 1"));
        }
        let Some(position) = self.cursors(caller).open_from(self.cursor.as_deref())? else { return Ok(0) };
        let before = position.as_slice().try_into().map(u64::from_be_bytes).ok().and_then(|before| usize::try_from(before).ok());
        before.filter(|before| *before < SEARCH_DEPTH_MAX).ok_or_else(|| Refusal::invalid("cursor", "is damaged"))
    }

    /// What the index is to be asked before the search runs.
    pub fn asked(&self, caller: &Principal) -> Result<Asked, Refusal> {
        let hits_max = self.hits_max(self.check(caller)?);
        Ok(Asked { pieces: pieces(&self.query), name: folded_name(&self.query), hits_max })
    }

    /// Those before this page, those on it, and some in place of any that the state no longer holds.
    fn hits_max(&self, before: usize) -> usize {
        let page = usize::try_from(self.limit).unwrap_or(LIST_MAX);
        (before + page + SEARCH_SPARE).min(SEARCH_DEPTH_MAX + SEARCH_SPARE)
    }

    pub fn run(self, view: &impl Read, at: &ReadStamp) -> Applied<Found> {
        let before = match self.check(&at.caller) {
            Ok(before) => before,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut wanted = Wanted::of(&self.query);
        let ranked = rank(view, at, &self.hits.keys)?;
        let mut room = Room::of(self.token_budget, None);
        room.reserve(wanted.bytes());
        if self.with_pointers {
            room.reserve(pointer::FRAME_BYTES);
        }
        let (mut results, mut pointers) = (Vec::new(), Vec::new());
        let floor = self.score_min.unwrap_or(0);
        let mut ranked = ranked.into_iter().take_while(|(score, _)| *score >= floor).skip(before);
        let stopped = loop {
            let Some((score, document)) = ranked.next() else {
                // The index may know more than it was asked for, where most of what it named is not shown.
                break (self.hits.keys.len() >= self.hits_max(before) && floor == 0).then_some("depth");
            };
            if results.len() as u64 == self.limit {
                break Some("limit");
            }
            if before + results.len() >= SEARCH_DEPTH_MAX {
                break Some("depth");
            }
            let found = wanted.look_at(&document);
            let mut row = row(score, &document, self.with_snippets.then_some(found.first));
            if let (true, "fact", [key, entity]) = (self.with_pairs, document.kind, &document.names[..]) {
                row.pair = Some((entity.clone(), key.clone()));
            }
            let pointer = if self.with_pointers { Some(Pointer::of(&document.id, &content(view, at, &document)?)) } else { None };
            match room.take(row.json_bytes() + pointer.as_ref().map_or(0, Pointer::json_bytes), results.is_empty()) {
                Ok(true) => {}
                Ok(false) => break Some(room.reason()),
                Err(refusal) => return Ok(Err(refusal)),
            }
            wanted.cover(&found);
            results.push(row);
            pointers.extend(pointer);
        };
        let next = before + results.len();
        let goes_on = stopped.is_some_and(|why| why != "depth");
        let next_cursor = goes_on.then(|| self.cursors(&at.caller).seal(&(next as u64).to_be_bytes()));
        let coverage = wanted.coverage();
        // A page further down holds less of what was asked for, and that is no gap.
        let is_gap = coverage.below_floor && before == 0 && stopped.is_none_or(|why| why == "limit");
        let gap = if is_gap { gap::to_note(view, at, &coverage.gaps)? } else { None };
        Ok(Ok(Found {
            results,
            coverage,
            segments_searched: self.hits.segments,
            indexed_through: self.hits.indexed_through,
            is_up_to_date: self.hits.indexed_through >= Clock::read(view)?.revision,
            next_cursor,
            truncated: stopped.map(Into::into),
            gap,
            pointers,
        }))
    }
}

impl FoundRow {
    fn json_bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |json| json.len()) + ROW_SPARE_BYTES
    }
}

fn row(score: u32, document: &Document, first: Option<Option<usize>>) -> FoundRow {
    FoundRow {
        doc_id: document.id.clone(),
        kind: document.kind.into(),
        title: document.title(),
        snippet: first.map(|first| snippet(&document.text, first.unwrap_or(0))),
        score,
        segment_index: document.segment,
        token_count: tokens(&document.text),
        pair: None,
    }
}

/// What a text takes of a reply.
pub(super) fn tokens(text: &str) -> u64 {
    json_text_bytes(text).div_ceil(4) as u64
}

/// A part of a text around a place in it.
fn snippet(text: &str, at: usize) -> String {
    let from = (0..=at.saturating_sub(SNIPPET_BEFORE_BYTES)).rev().find(|&from| text.is_char_boundary(from)).unwrap_or(0);
    let part = cut(&text[from..], SNIPPET_BYTES);
    if from > 0 { format!("…{part}") } else { part }
}

// ------------------------------------------------------------------ the order

/// The documents that the voices name, with their fused scores, best first.
fn rank(view: &impl Read, at: &ReadStamp, keys: &[Vec<u8>]) -> Result<Vec<(u32, Document)>, StorageError> {
    let mut documents: BTreeMap<Vec<u8>, Document> = BTreeMap::new();
    let mut words = Vec::new();
    for key in keys {
        if let Some(document) = shown(view, at, key)? {
            words.push(key.clone());
            documents.insert(key.clone(), document);
        }
    }
    let joined = graph_voice(view, at, words.iter().take(SEARCH_SEEDS).map(|key| &documents[key]))?;
    for key in &joined {
        if !documents.contains_key(key)
            && let Some(document) = shown(view, at, key)?
        {
            documents.insert(key.clone(), document);
        }
    }
    let voices = [(3, words), (1, joined)];
    let weights: u64 = voices.iter().filter(|(_, keys)| !keys.is_empty()).map(|(weight, _)| weight).sum();
    let mut scores: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for (weight, keys) in voices {
        for (place, key) in keys.into_iter().enumerate() {
            // The first place counts the whole weight.
            let part = u64::from(ONE) * weight * 60 / (weights * (60 + place as u64));
            *scores.entry(key).or_default() += u32::try_from(part).unwrap_or(ONE);
        }
    }
    let mut ranked: Vec<(u32, Document)> = scores.into_iter().filter_map(|(key, score)| Some((score, documents.remove(&key)?))).collect();
    ranked.sort_by(|(one, a), (other, b)| other.cmp(one).then_with(|| a.key.cmp(&b.key)));
    Ok(ranked)
}

/// The document under a key, if searches show it to the caller.
fn shown(view: &impl Read, at: &ReadStamp, key: &[u8]) -> Result<Option<Document>, StorageError> {
    Ok(visible(view, at, key)?.filter(|document| document.is_shown))
}

/// What the graph joins to the best results: neighbours of entities, and facts about them; what more of them lead to comes first.
fn graph_voice<'a>(view: &impl Read, at: &ReadStamp, seeds: impl Iterator<Item = &'a Document>) -> Result<Vec<Vec<u8>>, StorageError> {
    let tenant = &at.caller.tenant;
    let mut votes: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (place, seed) in seeds.enumerate() {
        let node = match &seed.node {
            Node::Entity { kind, id } => Some((kind.clone(), id.clone())),
            // `svc:api` may stand for an entity of the graph.
            Node::About(name) => name.split_once(':').map(|(kind, id)| (kind.into(), id.into())),
            Node::Passage { .. } | Node::None => None,
        };
        let Some((kind, id)) = node.filter(|node| seen.insert(node.clone())) else { continue };
        if graph::current(view, tenant, &kind, &id)?.is_none_or(|entity| entity.deleted) {
            continue;
        }
        let vote = 1_000_000 / (60 + place as u64);
        *votes.entry(graph::entity_key(tenant, &kind, &id)).or_default() += vote;
        for key in fact::best_about(view, at, &format!("{kind}:{id}"), SEARCH_FACTS)? {
            *votes.entry(key).or_default() += vote;
        }
        for (kind, id) in graph::neighbours(view, tenant, &kind, &id, SEARCH_EDGES)? {
            *votes.entry(graph::entity_key(tenant, &kind, &id)).or_default() += vote / 2;
            // A step further away.
            for key in fact::best_about(view, at, &format!("{kind}:{id}"), SEARCH_FACTS)? {
                *votes.entry(key).or_default() += vote / 3;
            }
        }
    }
    let mut joined: Vec<(u64, Vec<u8>)> = votes.into_iter().map(|(key, votes)| (votes, key)).collect();
    joined.sort_by(|(one, a), (other, b)| other.cmp(one).then_with(|| a.cmp(b)));
    Ok(joined.into_iter().map(|(_, key)| key).collect())
}

// ------------------------------------------------------------------ coverage

/// The pieces of a query, and which of them were found.
struct Wanted {
    pieces: Vec<Piece>,
    covered: Vec<bool>,
}

/// Which pieces a document holds, and where the first of them stands in its text.
struct Held {
    pieces: Vec<usize>,
    first: Option<usize>,
}

impl Wanted {
    fn of(query: &str) -> Self {
        let mut seen = BTreeSet::new();
        let mut all = pieces(query);
        all.retain(|piece| seen.insert(piece.words().map(str::to_string).collect::<Vec<_>>()));
        let is_filler = |piece: &Piece| piece.words().all(|word| FILLERS.contains(&word));
        if !all.iter().all(is_filler) {
            all.retain(|piece| !is_filler(piece));
        }
        Self { covered: vec![false; all.len()], pieces: all }
    }

    /// What naming all of them takes of a reply.
    fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| json_text_bytes(&piece.shown) + 1).sum()
    }

    fn look_at(&self, document: &Document) -> Held {
        let asked: BTreeSet<&str> = self.pieces.iter().flat_map(Piece::words).collect();
        let mut held: BTreeSet<String> = BTreeSet::new();
        let mut first = None;
        for (in_text, text) in document.names.iter().map(|name| (false, name)).chain([(true, &document.text)]) {
            for piece in pieces(text) {
                for word in piece.words().filter(|word| asked.contains(word)) {
                    if in_text && first.is_none() && word.chars().count() > 1 {
                        first = Some(piece.at);
                    }
                    held.insert(word.into());
                }
            }
        }
        Held { pieces: (0..self.pieces.len()).filter(|&i| hold(&held, &self.pieces[i])).collect(), first }
    }

    fn cover(&mut self, held: &Held) {
        held.pieces.iter().for_each(|&i| self.covered[i] = true);
    }

    fn coverage(self) -> Coverage {
        let (all, found) = (self.pieces.len() as u64, self.covered.iter().filter(|covered| **covered).count() as u64);
        // Who asks for nothing misses nothing.
        let score = (u64::from(ONE) * found).checked_div(all).map_or(ONE, |score| u32::try_from(score).unwrap_or(ONE));
        let gaps = self.pieces.into_iter().zip(self.covered).filter(|(_, covered)| !covered).map(|(piece, _)| piece.shown).collect();
        Coverage { score, gaps, below_floor: score < COVERAGE_FLOOR }
    }
}
