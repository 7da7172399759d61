//! Pointers: results told by their first words and a hash of what they say, for who chooses what to read, or wants to know
//! whether it changed.

use serde::{Deserialize, Serialize};

use crate::fact::json_text_bytes;
use crate::line::line;

/// Characters of an epitome.
const EPITOME_CHARS: usize = 80;

/// One result, without its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pointer {
    pub id: String,
    /// How the content begins, as one line.
    pub epitome: String,
    /// `blake3:` and the hash of the content in hex.
    pub content_hash: String,
    /// Tokens (4 bytes of JSON) of the content.
    pub tokens: u64,
}

impl Pointer {
    pub(crate) fn of(id: &str, content: &str) -> Self {
        Self {
            id: id.into(),
            epitome: line(content, EPITOME_CHARS),
            content_hash: format!("blake3:{}", blake3::hash(content.as_bytes()).to_hex()),
            tokens: json_text_bytes(content).div_ceil(4) as u64,
        }
    }

    /// The most bytes that it can have as compact JSON in the answers of the gateway, which name it once more where its content
    /// stands in the same answer.
    pub(crate) fn json_bytes(&self) -> usize {
        const NAMES: &str = r#"{"id":,"score":0.123456,"epitome":,"reason":"Demoted","content_hash":""},,"#;
        NAMES.len() + 2 * json_text_bytes(&self.id) + json_text_bytes(&self.epitome) + self.content_hash.len()
    }
}

/// The most bytes that stand around the pointers of one answer, and of a pointer that has nothing but an id.
pub(crate) const FRAME_BYTES: usize = 320;
pub(crate) const BARE_BYTES: usize = 32;
