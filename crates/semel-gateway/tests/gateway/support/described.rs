//! Answers, held against the description of the operators' interfaces.

use serde_json::{Map, Value};

use super::Answer;

/// The answer is one that the description knows.
pub(crate) fn described(document: &Value, method: &str, path: &str, answer: &Answer) {
    let asked: Vec<&str> = path.split(['?', '#']).next().unwrap().split('/').collect();
    let is_it = |path: &str| {
        let parts: Vec<&str> = path.split('/').collect();
        let mut pairs = parts.iter().zip(&asked);
        let is_same = pairs.all(|(part, asked)| part.starts_with('{') || part == asked);
        is_same && parts.len() == asked.len()
    };
    let paths = document["paths"].as_object().unwrap();
    let all = paths.iter().filter(|(path, _)| is_it(path));
    // That with the fewest parts that can be anything.
    let Some((_, found)) = all.min_by_key(|(path, _)| path.matches('{').count()) else {
        return;
    };
    let operation = &found[method.to_lowercase()];
    if operation.is_null() {
        return;
    }
    let status = answer.status.as_str();
    let kind = answer.header("content-type").unwrap();
    let schema = &operation["responses"][status]["content"][kind]["schema"];
    assert!(
        !schema.is_null(),
        "{method} {path}: {status} {kind} is not described"
    );
    if kind != "application/jsonl" {
        let body = serde_json::from_slice(&answer.body).unwrap();
        let wrong = mismatch(document, schema, &body);
        assert_eq!(wrong, None, "{method} {path}: {status} {body}");
    }
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => &document["components"]["schemas"][name.rsplit('/').next().unwrap()],
        None => schema,
    }
}

/// The members that a schema of an object knows, and those that it requires.
fn members(document: &Value, schema: &Value) -> (Map<String, Value>, Vec<String>) {
    let schema = resolved(document, schema);
    let mut known = schema["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let required = schema["required"].as_array().into_iter().flatten();
    let mut required: Vec<String> = required
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let (more, wanted) = members(document, part);
        known.extend(more);
        required.extend(wanted);
    }
    (known, required)
}

/// What of a value is not as its schema says: as far as the schemas here go.
fn mismatch(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let schema = resolved(document, schema);
    for any in ["oneOf", "anyOf"] {
        if let Some(schemas) = schema[any].as_array() {
            let mut wrong = schemas
                .iter()
                .map(|schema| mismatch(document, schema, value));
            return match wrong.any(|wrong| wrong.is_none()) {
                true => None,
                false => Some(format!("{value} is none of {schemas:?}")),
            };
        }
    }
    if let Some(known) = schema["enum"].as_array()
        && !known.contains(value)
    {
        return Some(format!("{value} is none of {known:?}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let expected = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ if schema["allOf"].is_array() => vec!["object"],
        _ => return None,
    };
    if !expected.contains(&kind) {
        return Some(format!("{value} is no {expected:?}"));
    }
    match value {
        Value::Array(values) => {
            let mut wrong = values
                .iter()
                .map(|value| mismatch(document, &schema["items"], value));
            wrong.find_map(|wrong| wrong)
        }
        Value::Object(values) => {
            let (known, required) = members(document, schema);
            if let Some(missing) = required.iter().find(|name| !values.contains_key(*name)) {
                return Some(format!("{missing} is missing in {value}"));
            }
            let others = &schema["additionalProperties"];
            values
                .iter()
                .find_map(|(name, value)| match known.get(name) {
                    Some(schema) => mismatch(document, schema, value),
                    None if others.is_object() => mismatch(document, others, value),
                    None => Some(format!("{name} is not described")),
                })
        }
        _ => None,
    }
}
