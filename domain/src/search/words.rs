//! How a text becomes the words that it is found by.
//!
//! A text is cut at white space into chunks, and a chunk into *pieces*: runs of a script that is written without spaces, and what
//! stands between them. A piece is found as a whole (`POL-358`, `error:timeout`, `a/b.rs`, `C++`), glued (`pol358`), and by its
//! parts (`pol` and `358`, `read` and `index` of `readIndex`). Chinese, Japanese, Korean and the like become pairs of signs. The
//! same rules cut what is stored and what is asked, so nothing that somebody types means anything to an engine.

use std::collections::BTreeSet;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// A longer word is known by its beginning and a hash, so that a key of any length is found by exactly itself.
const WORD_BYTES_MAX: usize = 64;
/// A run that changes its case or between letters and digits more often is a number of some kind, and its parts say nothing.
const PARTS_MAX: usize = 8;

/// What is looked for, or found, as one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// As it was typed.
    pub shown: String,
    /// Where it begins, in bytes.
    pub at: usize,
    /// Any of these is the piece itself.
    pub whole: Vec<String>,
    /// All of these together make it up.
    pub parts: Vec<String>,
    /// Further words by which it is found.
    pub also: Vec<String>,
}

impl Piece {
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.whole.iter().chain(&self.parts).chain(&self.also).map(String::as_str)
    }
}

/// The pieces of a text, in its order.
pub fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut start = None;
    // A space more, so that the last chunk ends like the others.
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        let parts = c.is_whitespace() || c.is_control();
        match (start, parts) {
            (None, false) => start = Some(at),
            (Some(from), true) => {
                cut_chunk(&text[from..at], from, &mut pieces);
                start = None;
            }
            _ => {}
        }
    }
    pieces
}

/// The words of a text, to look pieces up in.
pub fn words(text: &str) -> BTreeSet<String> {
    pieces(text).iter().flat_map(Piece::words).map(String::from).collect()
}

/// Whether words hold a piece: itself, or all of its parts.
pub fn hold(words: &BTreeSet<String>, piece: &Piece) -> bool {
    piece.whole.iter().any(|word| words.contains(word)) || !piece.parts.is_empty() && piece.parts.iter().all(|word| words.contains(word))
}

/// One name as a whole, for whoever asks for exactly it.
pub fn folded_name(name: &str) -> String {
    bounded(fold(name.trim()))
}

/// The runs of three signs of a text, and those of one and two that are not ASCII, whose scripts have short words: what is part of a
/// text has its runs in those of the text.
pub fn grams(text: &str) -> BTreeSet<String> {
    let signs: Vec<char> = text.to_lowercase().chars().collect();
    let mut grams: BTreeSet<String> = signs.windows(3).map(|run| run.iter().collect()).collect();
    for length in [1, 2] {
        let runs = signs.windows(length).filter(|run| run.iter().all(|sign| !sign.is_ascii()));
        grams.extend(runs.map(|run| run.iter().collect::<String>()));
    }
    grams
}

/// The runs that a text has to have in order to hold this word; none for one that is too short to tell.
pub fn grams_within(word: &str) -> Vec<String> {
    let signs: Vec<char> = word.to_lowercase().chars().collect();
    match signs.len() {
        1 | 2 if signs.iter().all(|sign| !sign.is_ascii()) => vec![signs.iter().collect()],
        _ => signs.windows(3).map(|run| run.iter().collect()).collect(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Letters and digits of scripts that put spaces between words.
    Word,
    /// Signs of scripts that do not.
    Sign,
    Other,
}

fn class(c: char) -> Class {
    match c as u32 {
        // Thai, Lao, Myanmar, Khmer.
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF => Class::Sign,
        // Han and its radicals, kana, Bopomofo, Hangul, half-width forms; without their punctuation.
        0x2E80..=0x2FDF | 0x3005..=0x3007 | 0x3021..=0x3029 | 0x3041..=0x3096 | 0x3099..=0x309F | 0x30A1..=0x30FA | 0x30FC..=0x31FF => {
            Class::Sign
        }
        0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x20000..=0x3FFFF => Class::Sign,
        0x1100..=0x11FF | 0xA960..=0xA97F | 0xAC00..=0xD7FF | 0xFF66..=0xFFDC => Class::Sign,
        _ if c.is_alphanumeric() || is_combining_mark(c) => Class::Word,
        _ => Class::Other,
    }
}

/// Cuts what stands between white space.
fn cut_chunk(chunk: &str, at: usize, pieces: &mut Vec<Piece>) {
    let mut from = 0;
    let mut in_signs = None;
    for (here, c) in chunk.char_indices() {
        // A mark between signs belongs to what follows it, and ends the run.
        let signs = class(c) == Class::Sign;
        if in_signs.is_some_and(|before| before != signs) {
            cut_run(&chunk[from..here], at + from, !signs, false, pieces);
            from = here;
        }
        in_signs = Some(signs);
    }
    if let Some(signs) = in_signs {
        cut_run(&chunk[from..], at + from, signs, from == 0, pieces);
    }
}

fn cut_run(run: &str, at: usize, signs: bool, is_alone: bool, pieces: &mut Vec<Piece>) {
    let piece = if signs { piece_of_signs(run, at) } else { piece_of_words(run, at, is_alone) };
    pieces.extend(piece.filter(|piece| piece.words().next().is_some()));
}

fn piece_of_signs(run: &str, at: usize) -> Option<Piece> {
    let signs: Vec<char> = run.nfkc().collect();
    let singles: Vec<String> = signs.iter().map(|sign| sign.to_string()).collect();
    let pairs: Vec<String> = signs.windows(2).map(|pair| pair.iter().collect()).collect();
    let shown = run.to_string();
    Some(match pairs.is_empty() {
        true => Piece { shown, at, whole: singles, ..Piece::default() },
        false => Piece { shown, at, parts: pairs, also: singles, ..Piece::default() },
    })
}

/// What people put around a word that is none of its signs.
fn is_around(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | '“' | '”' | '„' | '‘' | '’' | '«' | '»' | ',' | '.' | ';' | ':' | '!' | '?' | '(' | ')' | '…')
        || matches!(c, '。' | '、' | '，' | '！' | '？' | '：' | '；' | '「' | '」' | '『' | '』' | '（' | '）' | '《' | '》')
}

fn piece_of_words(chunk: &str, at: usize, is_alone: bool) -> Option<Piece> {
    let shown = match chunk.trim_matches(is_around) {
        // Such signs are looked for where there is nothing else, and otherwise only end what is.
        "" if is_alone => chunk,
        "" => return None,
        shown => shown,
    };
    let at = at + chunk.find(shown).unwrap_or_default();
    let normal: String = shown.nfkc().collect();
    let runs: Vec<&str> = normal.split(|c| class(c) == Class::Other).filter(|run| !run.is_empty()).collect();
    let mut piece = Piece { shown: shown.into(), at, ..Piece::default() };
    let exact = fold(&normal);
    for run in &runs {
        let (word, parts) = (fold(run), parts_of(run));
        match (runs.len() > 1, parts.len() > 1) {
            (false, _) if word != exact => piece.also.push(word),
            (false, _) => {}
            (true, false) => piece.parts.push(word),
            (true, true) => piece.also.push(word),
        }
        if parts.len() > 1 {
            piece.parts.extend(parts.into_iter().map(|part| fold(&part)));
        }
    }
    if runs.len() > 1 {
        piece.whole.push(fold(&runs.concat()));
    }
    piece.whole.push(exact);
    for word in piece.whole.iter_mut().chain(&mut piece.parts).chain(&mut piece.also) {
        *word = bounded(std::mem::take(word));
    }
    Some(piece)
}

/// The parts of `readIndex`, `HTTPServer` or `pol358`; only itself when it has none.
fn parts_of(run: &str) -> Vec<String> {
    let chars: Vec<char> = run.chars().collect();
    let mut parts: Vec<String> = Vec::new();
    for (i, &c) in chars.iter().enumerate() {
        let begins = i == 0 || {
            let (before, after) = (chars[i - 1], chars.get(i + 1));
            let digits = before.is_numeric() != c.is_numeric();
            let hump = c.is_uppercase() && (before.is_lowercase() || before.is_uppercase() && after.is_some_and(|c| c.is_lowercase()));
            digits || hump
        };
        match parts.last_mut() {
            Some(part) if !begins => part.push(c),
            _ => parts.push(c.into()),
        }
        if parts.len() > PARTS_MAX {
            return vec![run.into()];
        }
    }
    parts
}

/// In lower case, compatible forms alike, and without the accents of Latin, Greek and Cyrillic letters.
fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let folded: String = text.nfkc().flat_map(char::to_lowercase).nfd().filter(|c| !matches!(*c as u32, 0x0300..=0x036F)).collect();
    folded.nfc().collect()
}

fn bounded(word: String) -> String {
    if word.len() <= WORD_BYTES_MAX {
        return word;
    }
    let end = (0..=WORD_BYTES_MAX / 2).rev().find(|&end| word.is_char_boundary(end)).unwrap_or(0);
    format!("{}#{}", &word[..end], &blake3::hash(word.as_bytes()).to_hex()[..24])
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(text: &str, expected: Expect) {
        let told: Vec<String> = pieces(text)
            .iter()
            .map(|piece| {
                let Piece { shown, whole, parts, also, .. } = piece;
                format!("{shown}: {} / {} / {}\n", whole.join(" "), parts.join(" "), also.join(" "))
            })
            .collect();
        expected.assert_eq(&told.concat());
        for piece in pieces(text) {
            assert!(text[piece.at..].starts_with(&piece.shown), "{piece:?}");
        }
    }

    #[test]
    fn names_and_codes_are_whole_glued_and_in_parts() {
        check(
            "POL-358, error:timeout don't a/b.rs C++ 100% snake_case [x] readIndexRound HTTPServer (v2)",
            expect![[r#"
                POL-358: pol358 pol-358 / pol 358 / 
                error:timeout: errortimeout error:timeout / error timeout / 
                don't: dont don't / don t / 
                a/b.rs: abrs a/b.rs / a b rs / 
                C++: c++ /  / c
                100%: 100% /  / 100
                snake_case: snakecase snake_case / snake case / 
                [x]: [x] /  / x
                readIndexRound: readindexround / read index round / 
                HTTPServer: httpserver / http server / 
                v2: v2 / v 2 / 
            "#]],
        );
    }

    #[test]
    fn scripts_without_spaces_become_pairs_and_ids_glued_to_them_stay_whole() {
        check(
            "请在周五检查POL358号策略。 リーダー選挙 승인은 網",
            expect![[r#"
                请在周五检查:  / 请在 在周 周五 五检 检查 / 请 在 周 五 检 查
                POL358: pol358 / pol 358 / 
                号策略:  / 号策 策略 / 号 策 略
                リーダー選挙:  / リー ーダ ダー ー選 選挙 / リ ー ダ ー 選 挙
                승인은:  / 승인 인은 / 승 인 은
                網: 網 /  / 
            "#]],
        );
    }

    #[test]
    fn case_accents_and_width_do_not_tell_words_apart() {
        for (one, other) in [("Müller", "MULLER"), ("ＡＢＣ１２", "abc12"), ("Ελλάδα", "ελλαδα"), ("naïve", "NAIVE"), ("ﾘｰﾀﾞｰ", "リーダー")]
        {
            let words = |text| {
                pieces(text)
                    .iter()
                    .flat_map(|piece| piece.whole.iter().chain(&piece.parts).cloned().collect::<Vec<_>>())
                    .collect::<Vec<_>>()
            };
            assert_eq!(words(one), words(other), "{one} {other}");
        }
    }

    #[test]
    fn a_text_has_all_runs_of_what_is_part_of_it() {
        let text = "Deploy POL-358 请检查 Straße İx";
        let of_text = grams(text);
        for part in ["loy", "pol-358", "L-3", "检查", "检", "ssE", "ße", "deploy pol", "i\u{307}x"] {
            let (of_part, is_part) = (grams_within(part), text.to_lowercase().contains(&part.to_lowercase()));
            let may_be = of_part.iter().all(|gram| of_text.contains(gram));
            assert!(may_be || !is_part, "{part}");
        }
        assert!(
            grams_within("a").is_empty()
                && grams_within("a检").is_empty()
                && !grams_within("数据").iter().all(|gram| of_text.contains(gram))
        );
    }

    #[test]
    fn signs_alone_are_words_and_nothing_is_too_long() {
        check(
            "* ^ \" 😀 {",
            expect![[r#"
            *: * /  / 
            ^: ^ /  / 
            ": " /  / 
            😀: 😀 /  / 
            {: { /  / 
        "#]],
        );
        assert!(pieces(&"x".repeat(10_000)).iter().flat_map(Piece::words).all(|word| word.len() <= WORD_BYTES_MAX));
        assert_ne!(pieces(&"x".repeat(100)), pieces(&"x".repeat(101)));
        let digits = "a1b2c3d4e5f6a7b8".repeat(2);
        assert!(pieces(&digits)[0].parts.is_empty(), "a hash has no parts");
        assert!(pieces(" \n\t\u{202e}\u{0}").len() <= 1);
    }
}
