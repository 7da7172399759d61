//! What people see of an answer: tables and fields, as text.
//!
//! On a terminal a table is as wide as that: columns that may be cut are, with an `…` where something is missing. In a pipe
//! nothing is cut. Text that somebody else wrote can't move the cursor, colour the screen or turn the order of a line around.

use std::io::IsTerminal;

use quorate_domain::UnixMs;
use quorate_gateway::cluster::now_unix_ms;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A column of a table: its head, the field that it shows, and how.
pub struct Column {
    head: &'static str,
    field: &'static str,
    form: Form,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// Text that is needed whole, such as an id.
    Whole,
    /// Text that can be cut.
    Cut,
    /// An instant, in RFC 3339 or in ms of the Unix epoch.
    At,
    /// How long it is until an instant.
    Left,
    /// A length of time in ms.
    Span,
}

pub const fn whole(head: &'static str, field: &'static str) -> Column {
    Column { head, field, form: Form::Whole }
}

pub const fn cut(head: &'static str, field: &'static str) -> Column {
    Column { head, field, form: Form::Cut }
}

pub const fn at(head: &'static str, field: &'static str) -> Column {
    Column { head, field, form: Form::At }
}

pub const fn left(head: &'static str, field: &'static str) -> Column {
    Column { head, field, form: Form::Left }
}

pub const fn span(head: &'static str, field: &'static str) -> Column {
    Column { head, field, form: Form::Span }
}

/// What a field that is not there is shown as.
const NOTHING: &str = "-";
const GAP: &str = "  ";
const CUT: &str = "…";
/// A column is not cut below it.
const CUT_COLUMNS_MIN: usize = 12;
/// A terminal that does not tell its width has this one.
const COLUMNS_DEFAULT: usize = 80;
const ROWS_DEFAULT: usize = 24;

/// Columns and rows of the terminal on standard output; nothing when that is none.
pub fn terminal() -> Option<(usize, usize)> {
    let out = std::io::stdout();
    let size = || terminal_size::terminal_size_of(&out).map(|(width, height)| (width.0.into(), height.0.into()));
    out.is_terminal().then(|| size().filter(|size| *size > (0, 0)).unwrap_or((COLUMNS_DEFAULT, ROWS_DEFAULT)))
}

/// Text that grows from above to below.
pub struct Page {
    text: String,
    /// Columns of the terminal; nothing where it does not matter.
    width: Option<usize>,
    now: UnixMs,
}

impl Page {
    /// As wide as the terminal on standard output, if there is one.
    pub fn of_terminal() -> Self {
        Self { text: String::new(), width: terminal().map(|(columns, _)| columns), now: now_unix_ms() }
    }

    pub fn text(self) -> String {
        self.text
    }

    /// Text of our own, as it stands.
    pub fn line(&mut self, text: &str) {
        self.text += text;
        self.text.push('\n');
    }

    /// The rows under their heads; `none` when there are none.
    pub fn table(&mut self, columns: &[Column], rows: &Value, none: &str) {
        let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() {
            return self.line(none);
        }
        let cell = |row: &Value, column: &Column| self.cell(&row[column.field], column.form);
        let mut lines = vec![columns.iter().map(|column| column.head.to_string()).collect::<Vec<_>>()];
        lines.extend(rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()));
        let widths = self.widths(columns, &lines);
        for line in lines {
            let cells = line.iter().zip(&widths).map(|(text, &width)| padded(text, width));
            let line = cells.collect::<Vec<_>>().join(GAP);
            self.line(line.trim_end());
        }
    }

    /// As wide as the widest cell; the widest of those that can be cut give way until the terminal has room.
    fn widths(&self, columns: &[Column], lines: &[Vec<String>]) -> Vec<usize> {
        let widest = |n: usize| lines.iter().map(|line| line[n].width()).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..columns.len()).map(widest).collect();
        let Some(room) = self.width else { return widths };
        let mut over = (widths.iter().sum::<usize>() + GAP.len() * columns.len().saturating_sub(1)).saturating_sub(room);
        while over > 0 {
            let can_give = (0..columns.len()).filter(|&n| columns[n].form == Form::Cut && widths[n] > CUT_COLUMNS_MIN);
            let Some(n) = can_give.max_by_key(|&n| widths[n]) else { break };
            widths[n] -= 1;
            over -= 1;
        }
        widths
    }

    /// Names, each on a line of its own; `none` when there are none.
    pub fn list(&mut self, names: &Value, none: &str) {
        let names = names.as_array().map(Vec::as_slice).unwrap_or_default();
        if names.is_empty() {
            self.line(none);
        }
        for name in names {
            self.line(&self.cell(name, Form::Whole));
        }
    }

    /// The fields of an object, each on a line of its own; those that are not set are left out.
    pub fn fields(&mut self, facts: &Value) {
        let set: Vec<(&String, &Value)> = facts.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()).collect();
        let width = set.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        for (name, value) in set {
            let form = if name.ends_with("_unix_ms") { Form::At } else { Form::Whole };
            let text = match value {
                Value::String(text) if !text.is_empty() => text.lines().map(safe).collect(),
                value => vec![self.cell(value, form)],
            };
            for (n, line) in text.iter().enumerate() {
                let name = if n == 0 { safe(name) } else { String::new() };
                self.line(format!("{}{GAP}{line}", padded(&name, width)).trim_end());
            }
        }
    }

    /// That there is more, and how to see it.
    pub fn more(&mut self, facts: &Value) {
        let why = facts["truncated"].as_str().map(|why| format!(" ({why})")).unwrap_or_default();
        match facts["next_cursor"].as_str() {
            Some(cursor) => self.line(&format!("more{why}: --cursor {}", safe(cursor))),
            None if !why.is_empty() => self.line(&format!("there is more{why}")),
            None => {}
        }
    }

    fn cell(&self, value: &Value, form: Form) -> String {
        match (form, value) {
            (_, Value::Null) => NOTHING.into(),
            // What was there from the start.
            (Form::At, Value::Number(ms)) if ms.as_u64() == Some(0) => NOTHING.into(),
            (Form::At, Value::Number(ms)) => ms.as_u64().map_or_else(|| NOTHING.into(), |ms| instant(&UnixMs(ms).to_rfc3339())),
            (Form::At, Value::String(text)) => instant(text),
            (Form::Left, value) => match ms_of(value) {
                Some(ms) if ms > self.now.0 => duration(ms - self.now.0),
                Some(_) => "over".into(),
                None => NOTHING.into(),
            },
            (Form::Span, Value::Number(ms)) => ms.as_u64().map_or_else(|| NOTHING.into(), duration),
            (_, Value::Bool(true)) => "yes".into(),
            (_, Value::Bool(false)) => "no".into(),
            (_, Value::String(text)) if text.is_empty() => NOTHING.into(),
            (_, Value::String(text)) => safe(text),
            (_, Value::Array(list)) if list.iter().all(Value::is_string) => {
                let parts: Vec<String> = list.iter().filter_map(Value::as_str).map(safe).collect();
                if parts.is_empty() { NOTHING.into() } else { parts.join(", ") }
            }
            (_, value) => safe(&value.to_string()),
        }
    }
}

fn ms_of(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| UnixMs::from_rfc3339(value.as_str()?).map(|at| at.0))
}

/// An instant as people read it: in UTC, to the second.
fn instant(rfc3339: &str) -> String {
    match rfc3339.split_once('T') {
        Some((day, time)) if time.ends_with('Z') && time.is_char_boundary(8) => safe(&format!("{day} {}Z", &time[..8])),
        _ => safe(rfc3339),
    }
}

/// A length of time as people say it: its two largest units.
pub fn duration(ms: u64) -> String {
    let s = ms.div_ceil(1_000);
    match s {
        0..60 => format!("{s}s"),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// Text that somebody wrote, on one line and without what acts on a terminal. What is left out leaves a mark.
pub fn safe(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' => '↵',
        '\t' => ' ',
        // Marks that turn the order of what follows around.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Text in so many columns of a terminal at the most: cut with a mark.
pub fn cut_to(text: &str, width: usize) -> String {
    if text.width() <= width { text.into() } else { padded(text, width) }
}

/// Text in exactly so many columns of a terminal: filled up, or cut with a mark.
fn padded(text: &str, width: usize) -> String {
    let has = text.width();
    if has <= width {
        return format!("{text}{}", " ".repeat(width - has));
    }
    let room = width.saturating_sub(CUT.width());
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= room
    };
    let kept: String = text.chars().take_while(fits).collect();
    let filled = width.saturating_sub(kept.width() + CUT.width());
    format!("{kept}{CUT}{}", " ".repeat(filled))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;

    const COLUMNS: [Column; 3] = [whole("ID", "id"), cut("TITLE", "title"), cut("BODY", "body")];

    fn check(width: Option<usize>, rows: Value, wanted: Expect) {
        let mut page = Page { text: String::new(), width, now: UnixMs(1_000) };
        page.table(&COLUMNS, &rows, "there is nothing");
        let text = page.text();
        if let Some(width) = width {
            assert!(text.lines().all(|line| line.width() <= width), "{text}");
        }
        wanted.assert_eq(&text);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_wide_letters_count_twice() {
        check(
            None,
            json!([{"id": "w_1", "title": "日本語", "body": "a"}, {"id": "w_22", "title": "plain", "body": "b"}]),
            expect![[r#"
                ID    TITLE   BODY
                w_1   日本語  a
                w_22  plain   b
            "#]],
        );
    }

    #[test]
    fn on_a_terminal_what_can_be_cut_is_cut_with_a_mark_and_ids_stay_whole() {
        check(
            Some(40),
            json!([{"id": "w_12345678", "title": "a title that goes on and on", "body": "日本語日本語日本語日本語"}]),
            expect![[r#"
                ID          TITLE          BODY
                w_12345678  a title that…  日本語日本語…
            "#]],
        );
    }

    #[test]
    fn in_a_pipe_nothing_is_cut() {
        let long = "x".repeat(500);
        let mut page = Page { text: String::new(), width: None, now: UnixMs(0) };
        page.table(&COLUMNS, &json!([{"id": "w_1", "title": long, "body": "b"}]), "");
        assert!(page.text().contains(&long));
    }

    #[test]
    fn what_somebody_wrote_neither_moves_the_cursor_nor_breaks_the_line() {
        check(
            None,
            json!([{"id": "w_1", "title": "\u{1b}[2Jgone\u{202e}", "body": "one\ntwo\tthree\r"}]),
            expect![[r#"
                ID   TITLE      BODY
                w_1  �[2Jgone�  one↵two three�
            "#]],
        );
    }

    #[test]
    fn what_is_not_there_has_a_mark_and_no_rows_have_words() {
        check(
            None,
            json!([{"id": 7, "title": null, "body": ["a", "b"]}, {"id": true, "title": "", "body": {"a": 1}}]),
            expect![[r#"
                ID   TITLE  BODY
                7    -      a, b
                yes  -      {"a":1}
            "#]],
        );
        check(None, json!([]), expect!["there is nothing\n"]);
    }

    #[test]
    fn instants_are_in_utc_and_what_is_left_is_counted_from_now() {
        let page = Page { text: String::new(), width: None, now: UnixMs(1_000) };
        assert_eq!(page.cell(&json!(86_400_000), Form::At), "1970-01-02 00:00:00Z");
        assert_eq!(page.cell(&json!("2026-11-30T12:00:00.250Z"), Form::At), "2026-11-30 12:00:00Z");
        assert_eq!((page.cell(&json!("soon"), Form::At).as_str(), page.cell(&json!(0), Form::At).as_str()), ("soon", "-"));
        let left = [1_000, 1_001, 61_500, 3_661_000, 90_001_000].map(|at: u64| page.cell(&json!(at), Form::Left));
        assert_eq!(left, ["over", "1s", "1m01s", "1h01m", "1d01h"]);
        assert_eq!(page.cell(&json!("1970-01-01T00:00:11Z"), Form::Left), "10s");
    }

    #[test]
    fn fields_stand_under_each_other_and_long_text_keeps_its_lines() {
        let mut page = Page { text: String::new(), width: Some(20), now: UnixMs(0) };
        page.fields(&json!({"id": "w_1", "body": "one\n\ntwo", "gone": null, "updated_at_unix_ms": 1, "state": {"a": [1]}}));
        expect![[r#"
            id                  w_1
            body                one

                                two
            updated_at_unix_ms  1970-01-01 00:00:00Z
            state               {"a":[1]}
        "#]]
        .assert_eq(&page.text());
    }

    #[test]
    fn a_page_that_ends_early_says_how_to_go_on() {
        let mut page = Page { text: String::new(), width: None, now: UnixMs(0) };
        page.more(&json!({"next_cursor": "abc", "truncated": "top_k"}));
        page.more(&json!({"truncated": "depth"}));
        page.more(&json!({}));
        assert_eq!(page.text(), "more (top_k): --cursor abc\nthere is more (depth)\n");
    }
}
