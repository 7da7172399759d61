//! The numbers behind an order of words: how many documents there are, and how many hold a word.
//!
//! They are counted in the spaces that the caller may see, never over the whole index: another tenant's words change nothing, and
//! tell nothing. How long a text is on average is fixed, for the same reason. Documents that were deleted count until their segment
//! is merged, so two nodes may rank close results differently; what is deleted never shows.

use tantivy::query::Bm25StatisticsProvider;
use tantivy::schema::Field;
use tantivy::{Searcher, Term};

use crate::space::MARK_CHARS;

/// Words of a usual text, and of a usual name.
pub const TEXT_WORDS: u64 = 48;
pub const NAME_WORDS: u64 = 8;

pub struct Statistics<'a> {
    pub searcher: &'a Searcher,
    pub spaces: &'a [String],
    /// The field in which each document has the mark of its space.
    pub space_field: Field,
    pub names_field: Field,
}

impl Bm25StatisticsProvider for Statistics<'_> {
    fn total_num_tokens(&self, field: Field) -> tantivy::Result<u64> {
        let words = if field == self.names_field { NAME_WORDS } else { TEXT_WORDS };
        Ok(self.total_num_docs()?.saturating_mul(words))
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        let counts = self.spaces.iter().map(|space| self.searcher.doc_freq(&Term::from_field_text(self.space_field, space)));
        counts.sum()
    }

    fn doc_freq(&self, term: &Term) -> tantivy::Result<u64> {
        let value = term.value();
        let Some(word) = value.as_str().and_then(|text| text.get(MARK_CHARS..)) else { return Ok(0) };
        // The word wherever the caller sees it, so that a score means the same in each of the spaces.
        let of = |space: &String| self.searcher.doc_freq(&Term::from_field_text(term.field(), &format!("{space}{word}")));
        self.spaces.iter().map(of).sum()
    }
}
