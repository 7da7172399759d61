//! Puts settings into a file that may hold others.

use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item, Table};

/// How a server is reached; what is there of another way has to go.
const WAYS: [&str; 5] = ["url", "bearer_token_env_var", "command", "args", "env_vars"];
/// By this, a hook's command is known to be ours.
const OURS: &str = "quorate hook ";

/// Puts `wanted` into a JSON file: objects are merged, in lists of hooks our entries are replaced, anything else is set.
pub fn json(before: Option<&str>, wanted: &Value) -> Result<String, String> {
    let mut whole: Value = match before.filter(|text| !text.trim().is_empty()) {
        None => Value::Object(Map::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| format!("it is no plain JSON ({error})"))?,
    };
    if before.is_some() && contains(&whole, wanted) {
        // Not even its spacing changes.
        return Ok(before.unwrap_or_default().into());
    }
    merge(&mut whole, wanted, "")?;
    Ok(format!("{whole:#}\n"))
}

fn contains(whole: &Value, wanted: &Value) -> bool {
    match (whole, wanted) {
        (Value::Object(whole), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| whole.get(name).is_some_and(|whole| contains(whole, wanted)))
        }
        (Value::Array(whole), Value::Array(wanted)) => {
            let ours: Vec<&Value> = whole.iter().filter(|entry| is_ours(entry)).collect();
            wanted.iter().all(|entry| whole.contains(entry)) && ours.iter().all(|entry| wanted.contains(entry))
        }
        (whole, wanted) => whole == wanted,
    }
}

fn is_ours(entry: &Value) -> bool {
    match entry {
        Value::String(text) => text.starts_with(OURS),
        Value::Array(entries) => entries.iter().any(is_ours),
        Value::Object(fields) => fields.values().any(is_ours) || fields.get("id").is_some_and(|id| id == "quorate_token"),
        _ => false,
    }
}

fn merge(whole: &mut Value, wanted: &Value, at: &str) -> Result<(), String> {
    match (whole, wanted) {
        (Value::Object(whole), Value::Object(wanted)) => {
            for (name, wanted) in wanted {
                match whole.get_mut(name) {
                    // An entry of ours is set as a whole, so that nothing of an older one stays.
                    Some(there) if name == "quorate" => *there = wanted.clone(),
                    Some(there) => merge(there, wanted, &format!("{at}/{name}"))?,
                    None => {
                        whole.insert(name.clone(), wanted.clone());
                    }
                }
            }
        }
        (Value::Array(whole), Value::Array(wanted)) => {
            whole.retain(|entry| !is_ours(entry));
            whole.extend(wanted.iter().cloned());
        }
        (whole, wanted) if whole.is_object() == wanted.is_object() && whole.is_array() == wanted.is_array() => *whole = wanted.clone(),
        _ => return Err(format!("`{at}` in it has another form than expected")),
    }
    Ok(())
}

/// Puts a table of settings into a TOML file; comments and the order of all else stay.
pub fn toml(before: Option<&str>, path: &[&str], wanted: &str) -> Result<String, String> {
    let mut whole: DocumentMut =
        before.unwrap_or_default().parse().map_err(|error: toml_edit::TomlError| format!("it is no TOML ({})", error.message()))?;
    let wanted: DocumentMut = wanted.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let (last, folders) = path.split_last().ok_or("no table is named")?;
    let mut table = whole.as_table_mut();
    for name in folders {
        let next = table.entry(name).or_insert_with(|| {
            let mut folder = Table::new();
            // It holds tables only, so it needs no line of its own.
            folder.set_implicit(true);
            Item::Table(folder)
        });
        table = next.as_table_mut().ok_or_else(|| format!("`{name}` in it is no table"))?;
    }
    let ours = table.entry(last).or_insert_with(|| Item::Table(Table::new()));
    let ours = ours.as_table_mut().ok_or_else(|| format!("`{last}` in it is no table"))?;
    for name in WAYS.iter().filter(|name| !wanted.contains_key(name)) {
        ours.remove(name);
    }
    for (name, value) in wanted.as_table() {
        let is_there = ours.get(name).is_some_and(|there| there.to_string().trim() == value.to_string().trim());
        if !is_there {
            ours.insert(name, value.clone());
        }
    }
    Ok(whole.to_string())
}
