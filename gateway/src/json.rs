//! JSON as callers send it: of bounded depth, and each name in an object once.
//!
//! RFC 8259 lets each reader choose what a name means that stands twice. A guard in front of this gateway that reads the first one
//! and a tool that reads the last one would judge different calls, so there is no such object here.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de::DeserializeSeed};
use serde_json::{Map, Number, Value};

use crate::limit::JSON_DEPTH_MAX;

/// The one value that a text is; the error is for its sender to read.
pub fn parse(text: &[u8]) -> Result<Value, String> {
    if is_too_deep(text) {
        return Err(format!("the JSON is nested deeper than {JSON_DEPTH_MAX} levels"));
    }
    let Unique(value) = serde_json::from_slice(text).map_err(|error| format!("this is no JSON: {error}"))?;
    Ok(value)
}

/// Brackets within brackets, counted without parsing: a parser that recurses never meets more than the limit.
fn is_too_deep(json: &[u8]) -> bool {
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    for &byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                if depth > JSON_DEPTH_MAX {
                    return true;
                }
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// A value without an object that has a name twice.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Seed.deserialize(deserializer).map(Unique)
    }
}

struct Seed;

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        // The parser refuses what is out of range before this.
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number that is none"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Seed)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the name {name:?} stands twice in one object")));
            }
            let value = members.next_value_seed(Seed)?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_any_reader_of_json_reads() {
        for text in [
            "null",
            "true",
            "-5",
            "18446744073709551615",
            "1.5e3",
            "1e2",
            r#""a\u00e9\n""#,
            r#"[1, [2, {"a": null}], ""]"#,
            r#"{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}"#,
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
        for text in ["", "{", "1 2", "NaN", "1e999", "{\"a\": }", "'a'"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_that_stands_twice_in_one_object_is_refused_at_any_depth() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"x": [{"a": 1, "b": 2, "\u0061": 3}]}"#] {
            let refused = parse(text.as_bytes()).unwrap_err();
            assert!(refused.contains("\"a\" stands twice"), "{refused}");
        }
    }

    #[test]
    fn what_is_too_deep_is_refused_before_it_is_parsed() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(nested(JSON_DEPTH_MAX).as_bytes()).is_ok());
        assert!(parse(nested(JSON_DEPTH_MAX + 1).as_bytes()).unwrap_err().contains("nested deeper"));
        assert!(parse(("[\"".to_string() + &"[".repeat(1_000) + "\"]").as_bytes()).is_ok(), "brackets in a text");
    }
}
