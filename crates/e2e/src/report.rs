//! Reading the JSON that Holdfast prints. Fields are found by name at any depth, so that a test
//! says what it wants to know and not where it stands.

use serde_json::Value;

/// Parses JSON that a command printed; fails the test with the text when it is none.
pub fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("not JSON ({error}):\n{text}"))
}

/// The first field of that name, at any depth.
pub fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => {
            fields.get(name).or_else(|| fields.values().find_map(|field| find(field, name)))
        }
        Value::Array(rows) => rows.iter().find_map(|row| find(row, name)),
        _ => None,
    }
}

/// A number by name; fails the test when it is missing.
pub fn number(value: &Value, name: &str) -> u64 {
    find(value, name).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number `{name}` in {value:#}"))
}

/// A truth value by name; fails the test when it is missing.
pub fn flag(value: &Value, name: &str) -> bool {
    find(value, name).and_then(Value::as_bool).unwrap_or_else(|| panic!("no flag `{name}` in {value:#}"))
}
