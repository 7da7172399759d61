//! What is stored, and how a search asks for it.
//!
//! A document has the words of its text, those of its names, its names as a whole, the mark of its space, and the key of its record,
//! which is all that is kept of it as such. A key has one document at most.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use quorate_domain::fact::{FactHits, FactsAsked, HOLDING_MAX, NAMED_MAX};
use quorate_domain::search::words::{folded_name, grams, pieces};
use quorate_domain::search::{Asked, Document, Hits};
use quorate_domain::{Principal, Revision};
use tantivy::collector::{Count, DocSetCollector, TopDocs};
use tantivy::indexer::{IndexWriterOptions, LogMergePolicy};
use tantivy::query::{BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{BytesOptions, Field, IndexRecordOption, STORED, Schema, TextFieldIndexing, TextOptions, Value};
use tantivy::tokenizer::{PreTokenizedString, Token};
use tantivy::{DocAddress, IndexReader, IndexSettings, IndexWriter, ReloadPolicy, Searcher, TantivyDocument, Term};

use crate::lazy::Lazy;
use crate::space::space;
use crate::statistics::Statistics;

/// Written into every commit. Another number, of an older or newer version, is built anew.
const FORMAT: &str = "1";
/// What documents may take in memory before they are written as a segment.
const BUFFER_BYTES: usize = 32 << 20;
/// Segments are merged until they have so many documents: a merge holds their terms in memory.
const SEGMENT_DOCS_MAX: usize = 500_000;

/// What a whole name, a whole word, a part and a sign count. A word in a name counts more than one in a text.
const EXACT: f32 = 12.0;
const WHOLE: f32 = 2.0;
const PART: f32 = 1.0;
const ALSO: f32 = 0.5;
const IN_NAME: f32 = 1.5;

/// The index can't be used. It is built anew; nothing but its own files is lost.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the search index failed")]
    Index(#[from] tantivy::TantivyError),
    #[error("the files of the search index can't be used")]
    Files(#[from] io::Error),
    #[error("the state can't be read for the search index")]
    State(#[from] quorate_domain::StorageError),
    #[error("the search index is damaged: {0}")]
    Damaged(String),
}

#[derive(Clone, Copy)]
struct Fields {
    key: Field,
    space: Field,
    exact: Field,
    names: Field,
    text: Field,
    /// Of facts: runs of signs, for who looks for a part of a word.
    grams: Field,
}

impl Fields {
    fn schema() -> (Schema, Self) {
        let mut schema = Schema::builder();
        let terms = |record: IndexRecordOption, norms: bool| {
            let indexing = TextFieldIndexing::default().set_tokenizer("raw").set_index_option(record).set_fieldnorms(norms);
            TextOptions::default().set_indexing_options(indexing)
        };
        let fields = Self {
            key: schema.add_bytes_field("key", BytesOptions::from(STORED).set_indexed()),
            space: schema.add_text_field("space", terms(IndexRecordOption::Basic, false)),
            exact: schema.add_text_field("exact", terms(IndexRecordOption::Basic, false)),
            names: schema.add_text_field("names", terms(IndexRecordOption::WithFreqs, true)),
            text: schema.add_text_field("text", terms(IndexRecordOption::WithFreqs, true)),
            grams: schema.add_text_field("grams", terms(IndexRecordOption::Basic, false)),
        };
        (schema.build(), fields)
    }
}

/// An index that can be searched. Clones share it.
#[derive(Clone)]
pub struct Index {
    reader: IndexReader,
    fields: Fields,
    dir: PathBuf,
}

/// The one that writes it.
pub struct Writer {
    writer: IndexWriter,
    reader: IndexReader,
    fields: Fields,
    origin: String,
}

/// What an index takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub documents: u64,
    pub segments: u64,
    pub disk_bytes: u64,
}

pub struct Opened {
    pub index: Index,
    pub writer: Writer,
    /// Every change up to this revision is in it; nothing when it has to be built.
    pub through: Option<Revision>,
}

impl Index {
    /// Opens the index in `dir`, or an empty one. `origin` tells clusters and their lineages apart.
    pub fn open(dir: &Path, origin: &str) -> Result<Opened, Error> {
        fs::create_dir_all(dir)?;
        let (schema, fields) = Fields::schema();
        let lazy = Lazy::open(dir).map_err(|error| Error::Damaged(error.to_string()))?;
        let index = tantivy::Index::builder().schema(schema).settings(IndexSettings::default()).open_or_create(lazy)?;
        let damaged = index.validate_checksum()?;
        if let Some(file) = damaged.iter().next() {
            return Err(Error::Damaged(format!("{} has another checksum", file.display())));
        }
        let through = index.load_metas()?.payload.and_then(|payload| parse(&payload, origin));
        let options =
            IndexWriterOptions::builder().num_worker_threads(1).num_merge_threads(1).memory_budget_per_thread(BUFFER_BYTES).build();
        let writer: IndexWriter = index.writer_with_options(options)?;
        let mut policy = LogMergePolicy::default();
        policy.set_max_docs_before_merge(SEGMENT_DOCS_MAX);
        writer.set_merge_policy(Box::new(policy));
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
        let writer = Writer { writer, reader: reader.clone(), fields, origin: origin.into() };
        Ok(Opened { index: Self { reader, fields, dir: dir.to_owned() }, writer, through })
    }

    /// Candidates for a search of this caller, best first.
    pub fn search(&self, caller: &Principal, asked: &Asked, indexed_through: Revision) -> Result<Hits, Error> {
        let searcher = self.reader.searcher();
        let spaces = spaces(caller);
        let segments = searcher.segment_readers().len() as u64;
        let clauses: Vec<_> = spaces.iter().flat_map(|space| self.clauses(space, asked)).collect();
        if clauses.is_empty() || asked.hits_max == 0 {
            return Ok(Hits { keys: Vec::new(), segments, indexed_through });
        }
        let statistics =
            Statistics { searcher: &searcher, spaces: &spaces, space_field: self.fields.space, names_field: self.fields.names };
        let best = TopDocs::with_limit(asked.hits_max).order_by_score();
        let found = searcher.search_with_statistics_provider(&BooleanQuery::new(clauses), &best, &statistics)?;
        let keys = found.into_iter().map(|(_, address)| self.key(&searcher, address)).collect::<Result<_, Error>>()?;
        Ok(Hits { keys, segments, indexed_through })
    }

    fn clauses(&self, space: &str, asked: &Asked) -> Vec<(Occur, Box<dyn Query>)> {
        let Fields { exact, names, text, .. } = self.fields;
        let clause = |field: Field, word: &str, weight: f32| -> (Occur, Box<dyn Query>) {
            let term = Term::from_field_text(field, &format!("{space}{word}"));
            let record = if field == exact { IndexRecordOption::Basic } else { IndexRecordOption::WithFreqs };
            (Occur::Should, Box::new(BoostQuery::new(Box::new(TermQuery::new(term, record)), weight)))
        };
        let mut clauses = Vec::new();
        for piece in &asked.pieces {
            for (words, weight) in [(&piece.whole, WHOLE), (&piece.parts, PART), (&piece.also, ALSO)] {
                // Single signs are in every text of their script; they are asked for where there is nothing else.
                if weight == ALSO && !piece.parts.is_empty() {
                    continue;
                }
                for word in words {
                    clauses.push(clause(text, word, weight));
                    clauses.push(clause(names, word, weight * IN_NAME));
                }
            }
        }
        if !asked.name.is_empty() {
            // More than all of its words together.
            let weight = EXACT * (1 + asked.pieces.len()) as f32;
            clauses.push(clause(exact, &whole_name("", false, &asked.name), weight));
            clauses.push(clause(exact, &whole_name("", true, &asked.name), weight / 2.0));
        }
        clauses
    }

    /// Facts that this caller sees for the words of a recall: those named so, and all that can hold one of them, if they are few.
    pub fn facts(&self, caller: &Principal, asked: &FactsAsked, indexed_through: Revision) -> Result<FactHits, Error> {
        let searcher = self.reader.searcher();
        let spaces = spaces(caller);
        let term = |field: Field, text: String| -> Box<dyn Query> {
            Box::new(TermQuery::new(Term::from_field_text(field, &text), IndexRecordOption::Basic))
        };
        let mut named = Vec::new();
        for space in &spaces {
            let query = term(self.fields.exact, whole_name(space, false, &asked.name));
            let found = searcher.search(&*query, &TopDocs::with_limit(NAMED_MAX).order_by_score())?;
            named.extend(found.into_iter().map(|(_, address)| address));
        }
        let is_told = !asked.grams.is_empty() && asked.grams.iter().all(|grams| !grams.is_empty());
        let mut holding = None;
        if is_told {
            let words = spaces.iter().flat_map(|space| asked.grams.iter().map(move |grams| (space, grams)));
            let all_of = |(space, grams): (&String, &Vec<String>)| -> (Occur, Box<dyn Query>) {
                let runs = grams.iter().map(|gram| (Occur::Must, term(self.fields.grams, format!("{space}{gram}"))));
                (Occur::Should, Box::new(BooleanQuery::new(runs.collect())))
            };
            let query = BooleanQuery::new(words.map(all_of).collect());
            if searcher.search(&query, &Count)? <= HOLDING_MAX {
                holding = Some(searcher.search(&query, &DocSetCollector)?.into_iter().collect::<Vec<DocAddress>>());
            }
        }
        Ok(FactHits {
            named: self.keys(&searcher, named)?,
            holding: holding.map(|found| self.keys(&searcher, found)).transpose()?,
            indexed_through,
        })
    }

    fn keys(&self, searcher: &Searcher, mut addresses: Vec<DocAddress>) -> Result<Vec<Vec<u8>>, Error> {
        // Neighbours are unpacked together.
        addresses.sort_unstable();
        addresses.into_iter().map(|address| self.key(searcher, address)).collect()
    }

    fn key(&self, searcher: &Searcher, address: DocAddress) -> Result<Vec<u8>, Error> {
        let document: TantivyDocument = searcher.doc(address)?;
        let key = document.get_first(self.fields.key).and_then(|value| value.as_bytes().map(<[u8]>::to_vec));
        key.ok_or_else(|| Error::Damaged("a document has no key".into()))
    }

    pub fn size(&self) -> Size {
        let searcher = self.reader.searcher();
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let disk_bytes = files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum();
        Size { documents: searcher.num_docs(), segments: searcher.segment_readers().len() as u64, disk_bytes }
    }
}

/// Where a caller's words are looked for: what all of the tenant see, and what is the caller's alone.
fn spaces(caller: &Principal) -> Vec<String> {
    vec![space(&caller.tenant, ""), space(&caller.tenant, &caller.passport)]
}

fn parse(payload: &str, origin: &str) -> Option<Revision> {
    let mut parts = payload.splitn(3, ' ');
    let (format, through, of) = (parts.next()?, parts.next()?, parts.next()?);
    (format == FORMAT && of == origin).then(|| through.parse().ok().map(Revision))?
}

impl Writer {
    /// Puts a document in the place of what its key had.
    pub fn replace(&mut self, document: &Document) -> Result<(), Error> {
        self.remove(&document.key);
        self.add(document)
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.writer.delete_term(Term::from_field_bytes(self.fields.key, key));
    }

    /// Adds a document whose key has none.
    pub fn add(&mut self, document: &Document) -> Result<(), Error> {
        let Fields { key, space: space_field, exact, names, text, grams: gram_field } = self.fields;
        let space = space(&document.tenant, &document.owner);
        let mut fields = TantivyDocument::new();
        fields.add_bytes(key, &document.key);
        fields.add_text(space_field, &space);
        for (n, name) in document.names.iter().enumerate() {
            fields.add_text(exact, whole_name(&space, n > 0, &folded_name(name)));
        }
        fields.add_pre_tokenized_text(names, tokens(&space, document.names.iter().map(String::as_str)));
        fields.add_pre_tokenized_text(text, tokens(&space, [document.text.as_str()].into_iter()));
        if document.kind == "fact" {
            let runs = document.names.iter().chain([&document.text]).flat_map(|text| grams(text)).collect::<BTreeSet<_>>();
            let tokens = runs.iter().map(|run| token(&space, run)).collect();
            fields.add_pre_tokenized_text(gram_field, PreTokenizedString { text: String::new(), tokens });
        }
        self.writer.add_document(fields)?;
        Ok(())
    }

    /// Forgets everything, so that it can be built anew.
    pub fn clear(&mut self) -> Result<(), Error> {
        self.writer.delete_all_documents()?;
        self.commit(None)
    }

    /// Shows what was written to searches. With a revision, every change up to it is in.
    pub fn commit(&mut self, through: Option<Revision>) -> Result<(), Error> {
        let mut prepared = self.writer.prepare_commit()?;
        prepared.set_payload(&through.map_or_else(String::new, |through| format!("{FORMAT} {through} {}", self.origin)));
        prepared.commit()?;
        Ok(self.reader.reload()?)
    }
}

/// A whole name; those of the second rank are apart, since what is called so is not what merely belongs to it.
fn whole_name(space: &str, is_second: bool, folded: &str) -> String {
    if is_second { format!("{space}\u{1}{folded}") } else { format!("{space}{folded}") }
}

/// The words of some texts, each behind the mark of its space.
fn tokens<'a>(space: &str, texts: impl Iterator<Item = &'a str>) -> PreTokenizedString {
    let mut tokens = Vec::new();
    for text in texts {
        for piece in pieces(text) {
            for word in piece.words() {
                tokens.push(token(space, word));
            }
        }
    }
    PreTokenizedString { text: String::new(), tokens }
}

fn token(space: &str, word: &str) -> Token {
    // Nothing asks for places or offsets.
    Token { offset_from: 0, offset_to: 0, position: 0, text: format!("{space}{word}"), position_length: 1 }
}
