//! Texts as one line, for titles and extracts.

/// The words of a text with single spaces between, at most so many characters; the last is a mark where there was more.
pub(crate) fn line(text: &str, chars: usize) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut line = String::new();
    let mut left = chars;
    for word in words {
        for letter in (!line.is_empty()).then_some(' ').into_iter().chain(word.chars()) {
            if left == 0 {
                line.pop();
                line.push('…');
                return line;
            }
            line.push(letter);
            left -= 1;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_breaks_and_a_mark_where_it_was_cut() {
        assert_eq!(line(" a\n\tb\0c ", 10), "a b c");
        assert_eq!(line("abcde", 5), "abcde");
        assert_eq!(line("abcdef", 5), "abcd…");
        assert_eq!(line("äöü äöü", 4), "äöü…");
        assert_eq!(line(&"x".repeat(1 << 20), 3), "xx…");
        assert_eq!(line(" \n", 5), "");
    }
}
