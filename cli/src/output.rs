//! What a verb prints: one JSON object, or text for people.

/// Prints `json` as one line when asked for, else `text`.
pub fn print(as_json: bool, json: &serde_json::Value, text: &str) {
    if as_json {
        println!("{json}");
    } else {
        println!("{}", text.trim_end());
    }
}
