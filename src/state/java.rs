//! JSON byte for byte as Kafka Connect's converter writes it. Needed where bytes are compared: in the keys of source offsets.
//!
//! The converter puts the members into a `java.util.HashMap`, so they are in that map's order, not in the writer's. Escapes and
//! numbers are Jackson's. (Members whose hashes collide are ordered by name; in Java their order depends on which was inserted
//! first.)

use std::fmt::Write;

use serde_json::{Map, Number, Value};

/// An object as one line.
pub(super) fn object(map: &Map<String, Value>) -> String {
    let members = hashed(map).into_iter().map(|(key, member)| format!("{}:{}", string(key), value(member)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => written(number),
        Value::String(value) => string(value),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(self::value).collect::<Vec<_>>().join(","))
        }
        Value::Object(map) => object(map),
    }
}

/// Members by bucket, in a table of 16 that doubles when it is three quarters full.
fn hashed(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut buckets: u32 = 16;
    while map.len() > buckets as usize / 4 * 3 {
        buckets *= 2;
    }
    let mut members: Vec<_> = map.iter().collect();
    members.sort_by_key(|(key, _)| bucket(key, buckets));
    members
}

/// `String.hashCode`, spread as `HashMap` does it.
fn bucket(key: &str, buckets: u32) -> u32 {
    let hash = key.encode_utf16().fold(0_u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()));
    (hash ^ hash >> 16) & (buckets - 1)
}

/// Text in quotes.
pub(super) fn string(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            control if control < ' ' => {
                // Writing to a String cannot fail.
                write!(text, "\\u{:04X}", u32::from(control)).ok();
            }
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

/// Integers as they are, other numbers as `Double.toString` writes them.
fn written(number: &Number) -> String {
    let Some(value) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    if value == 0.0 || (1e-3..1e7).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let text = format!("{value:E}");
    match text.split_once('E') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0E{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_match_those_of_a_real_connect() {
        // As seen in the offset topic of Kafka Connect 4.3.1 after the REST API was given the members in other orders.
        let written = [
            r#"{"a":1.0,"b":true,"filename":"/srv/ü \"q\" \u0001\u001F/\\","z":1,"n":null}"#,
            r#"{"a":1.0E10,"d":1.0E-7,"e":-123456.75,"f":1.0E7,"g":0.001,"h":100,"i":"12","j":3,"k":4,"l":5,"m":6,"o":7,"p":8,"filename":"/y"}"#,
            r#"{"a":2,"filename":"/x"}"#,
        ];

        for text in written {
            let map: Map<String, Value> = serde_json::from_str(text).unwrap();
            assert_eq!(object(&map), text);
        }
    }

    #[test]
    fn written_json_reads_back_as_the_same_value() {
        let value = json!({
            "text": "a\"b\\c\n\r\t\u{8}\u{c}\u{0}\u{1f}\u{7f}é😀/",
            "numbers": [0.0, -0.5, 1e-300, 1.234_567e20, 9_007_199_254_740_993_i64, i64::MIN, u64::MAX],
            "nested": { "b": [true, null, {}], "a": [] },
        });

        let text = object(value.as_object().unwrap());

        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
