//! Order-preserving keys: `tenant / kind / id ...`.
//!
//! The tenant stands first in every key, so one range is one tenant's. A text part is escaped and terminated, so that no part
//! can reach into the next and `a` sorts before `a\0b` and `ab`.

/// Builds a key part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(Vec<u8>);

impl Key {
    pub fn new() -> Self {
        Self::default()
    }

    /// A text part: 0x00 becomes 0x00 0xFF, and 0x00 0x01 ends it.
    pub fn text(mut self, part: &str) -> Self {
        for &byte in part.as_bytes() {
            self.0.push(byte);
            if byte == 0 {
                self.0.push(0xFF);
            }
        }
        self.0.extend([0, 1]);
        self
    }

    /// A text part without its end: a prefix of the texts that begin so.
    pub fn text_prefix(mut self, part: &str) -> Self {
        self = self.text(part);
        self.0.truncate(self.0.len() - 2);
        self
    }

    /// A number, in ascending order.
    pub fn number(mut self, part: u64) -> Self {
        self.0.extend(part.to_be_bytes());
        self
    }

    /// A number, in descending order.
    pub fn number_descending(self, part: u64) -> Self {
        self.number(u64::MAX - part)
    }

    pub fn byte(mut self, part: u8) -> Self {
        self.0.push(part);
        self
    }

    pub fn raw(mut self, part: &[u8]) -> Self {
        self.0.extend(part);
        self
    }

    /// The text part that `key` begins with.
    pub fn leading_text(key: &[u8]) -> Option<String> {
        let (mut text, mut bytes) = (Vec::new(), key.iter());
        loop {
            match (bytes.next()?, bytes.as_slice().first()) {
                (0, Some(1)) => return String::from_utf8(text).ok(),
                (0, Some(0xFF)) => {
                    bytes.next();
                    text.push(0);
                }
                (0, _) => return None,
                (byte, _) => text.push(*byte),
            }
        }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The first key after all that begin with this one.
    pub fn after_prefix(&self) -> Vec<u8> {
        let mut end = self.0.clone();
        while let Some(last) = end.pop() {
            if last < 0xFF {
                end.push(last + 1);
                return end;
            }
        }
        // Only a key of nothing but 0xFF gets here, and every key begins with a tenant's text.
        vec![0xFF; self.0.len() + 1]
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn the_text_that_a_key_begins_with_is_read_back_whatever_it_holds() {
        for text in ["", "acme", "a\0b", "\0", "ü\0\0", "a\u{1}"] {
            assert_eq!(Key::leading_text(Key::new().text(text).number(7).as_bytes()).as_deref(), Some(text));
        }
        for broken in [&b""[..], b"acme", b"acme\0", b"acme\0\x02", b"\xFF\0\x01"] {
            assert_eq!(Key::leading_text(broken), None);
        }
    }
}
