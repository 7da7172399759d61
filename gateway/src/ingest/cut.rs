//! How a text becomes passages.
//!
//! A passage ends where its reader would stop: before a heading, after a paragraph, after a line. Only what has none of these for
//! longer than a passage is cut within. Passages together hold the whole text but for white space between them, and the same text is
//! always cut alike: a document is named by its content and the number of its passages.

use quorate_domain::document::PassageText;
use quorate_domain::limit::{NAME_BYTES_MAX, PASSAGE_BYTES_MAX};

/// What a passage grows to before it is worth being found alone.
const PASSAGE_BYTES_GOOD: usize = PASSAGE_BYTES_MAX * 3 / 4;

/// Cuts a text; in Markdown, headings stand above the passages below them.
pub fn passages(text: &str, is_markdown: bool) -> Vec<PassageText> {
    let mut cutter = Cutter { passages: Vec::new(), headings: Vec::new(), draft: String::new() };
    let mut in_fence = false;
    for block in blocks(text) {
        // Fences stand at the start of a block or within one; an odd number of them opens or closes one.
        let was_in_fence = in_fence;
        if is_markdown {
            in_fence ^= block.lines().filter(|line| is_fence(line)).count() % 2 == 1;
        }
        match is_markdown && !was_in_fence {
            true => cutter.markdown_block(block),
            false => cutter.add(block),
        }
    }
    cutter.end();
    cutter.passages
}

fn is_fence(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("```") || line.starts_with("~~~")
}

/// Runs of lines without an empty one, each with the empty lines behind it.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (mut end, mut seen_text, mut seen_gap) = (0, false, false);
        for line in rest.split_inclusive('\n') {
            let is_empty = line.trim().is_empty();
            if seen_text && seen_gap && !is_empty {
                break;
            }
            seen_text |= !is_empty;
            seen_gap |= seen_text && is_empty;
            end += line.len();
        }
        let block = &rest[..end];
        rest = &rest[end..];
        Some(block)
    })
}

struct Cutter {
    passages: Vec<PassageText>,
    /// Level and text of the headings above.
    headings: Vec<(usize, String)>,
    draft: String,
}

impl Cutter {
    /// A block of Markdown, which a heading may begin or stand in.
    fn markdown_block(&mut self, block: &str) {
        let mut from = 0;
        let mut at = 0;
        let mut in_fence = false;
        for line in block.split_inclusive('\n') {
            in_fence ^= is_fence(line);
            if let Some((level, title)) = heading(line).filter(|_| !in_fence) {
                self.add(&block[from..at]);
                self.end();
                self.headings.retain(|(above, _)| *above < level);
                self.headings.push((level, title.into()));
                // It stands in the passage too, as it does in the text.
                from = at;
            }
            at += line.len();
        }
        self.add(&block[from..]);
    }

    fn add(&mut self, text: &str) {
        if text.trim().is_empty() && self.draft.is_empty() {
            return;
        }
        if self.draft.len() + text.len() > PASSAGE_BYTES_MAX || self.draft.len() >= PASSAGE_BYTES_GOOD {
            self.end();
        }
        let mut rest = text;
        while self.draft.len() + rest.len() > PASSAGE_BYTES_MAX {
            let end = cut_point(rest);
            self.draft += &rest[..end];
            self.end();
            rest = &rest[end..];
        }
        self.draft += rest;
    }

    fn end(&mut self) {
        let draft = std::mem::take(&mut self.draft);
        let text = draft.trim_end();
        // Of the first line, the white space before it is part of a code's form.
        let text = text.trim_start_matches(['\n', '\r']);
        if text.trim().is_empty() {
            return;
        }
        self.passages.push(PassageText { heading: self.heading(), text: text.into() });
    }

    fn heading(&self) -> String {
        let whole: String = self.headings.iter().map(|(_, title)| title.as_str()).collect::<Vec<_>>().join(" > ");
        let line: String = whole.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        line[..boundary(&line, NAME_BYTES_MAX)].to_string()
    }
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let title = line[level..].trim();
    ((1..=6).contains(&level) && line[level..].starts_with([' ', '\t']) && !title.is_empty()).then_some((level, title))
}

/// Where a text that is too long for a passage is cut: after its last line that fits, else its last word, else within it.
fn cut_point(text: &str) -> usize {
    let end = boundary(text, PASSAGE_BYTES_MAX);
    let part = &text[..end];
    let line = part.rfind('\n').map(|at| at + 1);
    let word = || part.rfind(char::is_whitespace).map(|at| at + part[at..].chars().next().map_or(1, char::len_utf8));
    line.or_else(word).filter(|at| *at > 0).unwrap_or(end)
}

fn boundary(text: &str, bytes_max: usize) -> usize {
    (0..=text.len().min(bytes_max)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squeezed(text: &str) -> String {
        text.chars().filter(|c| !c.is_whitespace()).collect()
    }

    fn check(text: &str, is_markdown: bool) -> Vec<PassageText> {
        let cut = passages(text, is_markdown);
        for passage in &cut {
            assert!(passage.text.len() <= PASSAGE_BYTES_MAX && !passage.text.trim().is_empty() && passage.heading.len() <= NAME_BYTES_MAX);
        }
        let joined: String = cut.iter().map(|passage| passage.text.as_str()).collect();
        assert_eq!(squeezed(&joined), squeezed(text), "nothing is lost");
        cut
    }

    #[test]
    fn headings_begin_passages_and_stand_above_them() {
        let text = "intro\n\n# One\nfirst\n\n## Two\nsecond\n\nmore\n# Three\n```\n# no heading\n```\nlast\n";
        let told: Vec<(String, String)> = check(text, true).into_iter().map(|passage| (passage.heading, passage.text)).collect();
        let expected = [
            ("", "intro"),
            ("One", "# One\nfirst"),
            ("One > Two", "## Two\nsecond\n\nmore"),
            ("Three", "# Three\n```\n# no heading\n```\nlast"),
        ];
        assert_eq!(told, expected.map(|(heading, text)| (heading.to_string(), text.to_string())));
        assert_eq!(check("# One\n\n# Two\n", false).len(), 1, "other files have no headings");
    }

    #[test]
    fn long_texts_are_cut_between_paragraphs_then_lines_then_words_and_lose_nothing() {
        let paragraph = "word ".repeat(100);
        assert!(check(&format!("{paragraph}\n\n").repeat(20), false).iter().all(|passage| passage.text.ends_with("word")));
        assert!(check(&"a line of code();\n".repeat(1_000), false).iter().all(|passage| passage.text.ends_with(";")));
        check(&"word ".repeat(5_000), false);
        check(&"x".repeat(10_000), true);
        check(&"漢字".repeat(5_000), true);
        check(&"\n".repeat(5_000), false);
        check(&format!("# {}\n\ntext", "h".repeat(2_000)), true);
        assert!(check("", true).is_empty());
    }
}
