//! Arguments as HTTP brings them, checked against the schema of the type that they become: parts of an address, pairs of a query, or the
//! JSON of a body.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use quorate_domain::refusal::shown;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::call::CallError;
use crate::registry::{check_number, explain, with_article};
use crate::schema;

const FIX: &str = "Correct it; `GET /v1/openapi.json` and `GET /v1/docs` show what this address takes.";

/// What a type looks like as JSON.
pub struct Form {
    schema: Value,
    validator: jsonschema::Validator,
}

/// The form of a type, made once.
pub fn form<T: JsonSchema + 'static>() -> Arc<Form> {
    static FORMS: LazyLock<Mutex<HashMap<TypeId, Arc<Form>>>> = LazyLock::new(Mutex::default);
    let mut forms = FORMS.lock().unwrap_or_else(PoisonError::into_inner);
    let made = forms.entry(TypeId::of::<T>()).or_insert_with(|| {
        let schema = schema::flat::<T>();
        // A schema that does not compile is a mistake in a declaration, found by the first test that asks for it.
        let validator = jsonschema::validator_for(&schema).expect("a declared schema compiles");
        Arc::new(Form { schema, validator })
    });
    made.clone()
}

/// A body as its type.
pub fn read_as<T: DeserializeOwned + JsonSchema + 'static>(mut value: Value) -> Result<T, CallError> {
    let form = form::<T>();
    form.check(&mut value).map_err(bad)?;
    serde_json::from_value(value).map_err(|error| bad(shown(&error.to_string())))
}

pub fn bad(problem: impl Into<String>) -> CallError {
    CallError::arguments(problem, FIX)
}

impl Form {
    fn check(&self, value: &mut Value) -> Result<(), String> {
        let Value::Object(fields) = value else { return Err("this is no JSON object".into()) };
        for (name, value) in fields.iter_mut() {
            match self.schema["properties"].get(name) {
                Some(schema) => check_number(name, schema, value)?,
                None => return Err(format!("unknown field `{}`", shown(name))),
            }
        }
        let mut required = self.schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if let Some(missing) = required.find(|name| !fields.contains_key(*name)) {
            return Err(format!("missing field `{missing}`"));
        }
        match self.validator.iter_errors(value).next() {
            Some(error) => Err(explain(&error)),
            None => Ok(()),
        }
    }

    pub fn of_query(&self, query: &str, beside: &[&str]) -> Result<Map<String, Value>, CallError> {
        of_query(&self.schema, query, beside)
    }
}

/// The pairs of a query as a schema has them; `beside` are properties that come from elsewhere.
pub fn of_query(schema: &Value, query: &str, beside: &[&str]) -> Result<Map<String, Value>, CallError> {
    let mut read: Map<String, Value> = Map::new();
    for (name, text) in form_urlencoded::parse(query.as_bytes()) {
        let property = schema["properties"].get(name.as_ref()).filter(|_| !beside.contains(&name.as_ref()));
        let Some(property) = property else {
            let known = schema["properties"].as_object().into_iter().flat_map(|properties| properties.keys());
            let known: Vec<String> = known.filter(|name| !beside.contains(&name.as_str())).map(|name| format!("`{name}`")).collect();
            let fix = match known.is_empty() {
                true => "This address takes no parameters.".to_string(),
                false => format!("The parameters are {}.", known.join(", ")),
            };
            return Err(CallError::arguments(format!("the parameter `{}` is unknown", shown(&name)), fix));
        };
        if property["type"] == "array" {
            let value = of_text(&name, &property["items"], &text)?;
            if let Value::Array(list) = read.entry(name).or_insert_with(|| json!([])) {
                list.push(value);
            }
        } else if read.contains_key(name.as_ref()) {
            return Err(bad(format!("the parameter `{}` stands more than once", shown(&name))));
        } else {
            let value = of_text(&name, property, &text)?;
            read.insert(name.into_owned(), value);
        }
    }
    Ok(read)
}

/// A text as the JSON that a schema wants.
pub fn of_text(name: &str, schema: &Value, text: &str) -> Result<Value, CallError> {
    let value = match schema["type"].as_str() {
        Some("integer") => text.parse::<u64>().ok().map(Value::from),
        Some("number") => text.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map(Value::Number),
        Some("boolean") => text.parse::<bool>().ok().map(Value::from),
        _ => Some(text.into()),
    };
    let kind = || schema["type"].as_str().unwrap_or_default();
    value.ok_or_else(|| bad(format!("`{}` must be {}, not `{}`", shown(name), with_article(kind()), shown(text))))
}

/// For calls whose arguments all stand in the body.
pub fn none_beside(query: Option<&str>) -> Result<(), CallError> {
    match query {
        None | Some("") => Ok(()),
        Some(_) => Err(CallError::arguments("this address takes no parameters in its query", "Send the arguments as JSON in the body.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_what_the_schema_says_or_is_refused() {
        let schema = json!({ "properties": {
            "n": { "type": "integer" }, "x": { "type": "number" }, "yes": { "type": "boolean" },
            "names": { "type": "array", "items": { "type": "string" } }, "text": { "type": "string" }, "elsewhere": { "type": "string" },
        } });
        let read = |query: &str| of_query(&schema, query, &["elsewhere"]).map(Value::from);
        let whole = read("n=7&x=0.5&yes=true&names=a,b&names=c&text=7+%C3%A9").unwrap();
        assert_eq!(whole, json!({ "n": 7, "x": 0.5, "yes": true, "names": ["a,b", "c"], "text": "7 é" }));
        for query in ["n=", "n=-1", "n=1.5", "x=NaN", "yes=1", "text=a&text=b", "other=1", "elsewhere=1"] {
            assert!(matches!(read(query), Err(CallError::Arguments { .. })), "{query}");
        }
        assert!(read("n=x").unwrap_err().text().starts_with("`n` must be an integer, not `x`"));
        assert!(read("yes=1").unwrap_err().text().starts_with("`yes` must be a boolean, not `1`"));
    }
}
