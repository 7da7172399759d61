//! JSON Schema in the form that every client reads: flat, one scalar `type`, no references, no unions, no null.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The flat schema of a type.
pub fn flat<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    flatten(&mut schema);
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
        if object.get("type").and_then(Value::as_str) == Some("object") {
            object.entry("properties").or_insert_with(|| json!({}));
        }
    }
    schema
}

/// A value that is always there and may be null. The schema says nothing of its type, since a union of types is more than
/// some clients take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nullable<T>(pub Option<T>);

const NULLABLE: &str = "x-nullable";

impl<T> JsonSchema for Nullable<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Nullable".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "x-nullable": true })
    }
}

fn flatten(schema: &mut Value) {
    if schema == &Value::Bool(true) {
        *schema = json!({});
    }
    let Some(object) = schema.as_object_mut() else { return };
    for union in ["anyOf", "oneOf"] {
        if let Some(Value::Array(variants)) = object.remove(union) {
            unite(object, variants);
        }
    }
    if let Some(Value::Array(types)) = object.get("type")
        && let Some(only) = types.iter().find(|kind| *kind != "null").cloned()
    {
        object.insert("type".into(), only);
    }
    if let Some(Value::Array(words)) = object.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    if object.get("default").is_some_and(Value::is_null) {
        object.remove("default");
    }
    object.remove("format");
    object.remove("$schema");
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = object.get_mut(nested)
            && nested != &Value::Bool(false)
        {
            flatten(nested);
        }
    }
    if object.get("additionalProperties") == Some(&json!({})) {
        object.remove("additionalProperties");
    }
    let mut nullable = Vec::new();
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            flatten(property);
            let marked = property.as_object_mut().and_then(|property| property.remove(NULLABLE)).is_some();
            if marked {
                nullable.push(name.clone());
            }
        }
    }
    if let Some(Value::Array(required)) = object.get_mut("required") {
        required.retain(|name| !nullable.iter().any(|nullable| name == nullable));
        if required.is_empty() {
            object.remove("required");
        }
    }
}

/// An optional type, or an enum whose words carry descriptions: both have one plain form.
fn unite(object: &mut Map<String, Value>, variants: Vec<Value>) {
    let mut words = Vec::new();
    for mut variant in variants {
        if variant.get("type").and_then(Value::as_str) == Some("null") {
            continue;
        }
        if let Some(word) = variant.get("const") {
            words.push(word.clone());
            continue;
        }
        flatten(&mut variant);
        if let Value::Object(variant) = variant {
            for (key, value) in variant {
                match (key.as_str(), value) {
                    ("enum", Value::Array(more)) => words.extend(more),
                    (_, value) => {
                        object.entry(key).or_insert(value);
                    }
                }
            }
        }
    }
    if !words.is_empty() {
        object.entry("type").or_insert_with(|| "string".into());
        object.insert("enum".into(), Value::Array(words));
    }
}

/// What keeps a schema from being flat, for the test that holds all tools to it.
pub fn flaws(schema: &Value, at: &str, found: &mut Vec<String>) {
    let Some(object) = schema.as_object() else {
        found.push(format!("{at}: is no object"));
        return;
    };
    for banned in ["$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "not", "if", "nullable", "const", "format", NULLABLE] {
        if object.contains_key(banned) {
            found.push(format!("{at}: has `{banned}`"));
        }
    }
    if object.get("type").is_some_and(|kind| !kind.is_string()) {
        found.push(format!("{at}: has more than one type"));
    }
    if object.get("type").and_then(Value::as_str) == Some("array") && !object.contains_key("items") {
        found.push(format!("{at}: an array without items"));
    }
    if let Some(Value::Object(properties)) = object.get("properties") {
        for (name, property) in properties {
            flaws(property, &format!("{at}.{name}"), found);
        }
    }
    if let Some(items) = object.get("items") {
        flaws(items, &format!("{at}[]"), found);
    }
}
