//! The shape of an answer: its members, their types, and which additions are allowed.
//!
//! Kafka Connect must have exactly these members. Our worker may add some where no known client fails: see [`Others`].

use serde_json::{Map, Value};

/// An object's members.
pub(crate) struct ObjectShape {
    /// Its name in the contract, for messages.
    pub(crate) name: &'static str,
    pub(crate) required: &'static [(&'static str, Kind)],
    pub(crate) optional: &'static [(&'static str, Kind)],
    pub(crate) others: Others,
}

/// The type of a member.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Text,
    TextOrNull,
    Number,
    NumberOrNull,
    Flag,
    /// One of these texts; clients with closed enumerations fail on any other.
    OneOf(&'static [&'static str]),
    Texts,
    /// An object whose values are all texts.
    TextMap,
    /// An object of any members.
    Map,
    MapOrNull,
    Of(&'static ObjectShape),
    ListOf(&'static ObjectShape),
}

/// Members beyond those of Kafka Connect that our worker may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    None,
    /// Texts only: a client decodes the object as a map of texts.
    Texts,
    Any,
}

/// The worker that answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Kafka Connect: its members and no others, and 500 where 400 would be right.
    Upstream,
    /// A compatible worker.
    Compatible,
}

/// All faults of `value` in one text.
pub(crate) fn compare(shape: &ObjectShape, value: &Value, strictness: Strictness) -> Result<(), String> {
    let mut faults = Vec::new();
    look(shape, value, strictness, shape.name, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

fn look(shape: &ObjectShape, value: &Value, strictness: Strictness, path: &str, faults: &mut Vec<String>) {
    let Some(members) = value.as_object() else {
        faults.push(format!("expected {path} to be an object, got {}", brief(value)));
        return;
    };
    for (key, kind) in shape.required {
        match members.get(*key) {
            Some(member) => look_at_member(*kind, member, strictness, &format!("{path}.{key}"), faults),
            None => faults.push(format!("expected {path} to have {key:?}, got {}", keys(members))),
        }
    }
    for (key, member) in members {
        if shape.required.iter().any(|(known, _)| known == key) {
            continue;
        }
        let path = format!("{path}.{key}");
        if let Some((_, kind)) = shape.optional.iter().find(|(known, _)| known == key) {
            look_at_member(*kind, member, strictness, &path, faults);
        } else if strictness == Strictness::Upstream || shape.others == Others::None {
            faults.push(format!("expected no {path}"));
        } else if shape.others == Others::Texts && !member.is_string() {
            faults
                .push(format!("expected {path}, which is an addition, to be a text, got {}", brief(member)));
        }
    }
}

fn look_at_member(kind: Kind, value: &Value, strictness: Strictness, path: &str, faults: &mut Vec<String>) {
    let expected = match kind {
        Kind::Text if !value.is_string() => "a text".to_owned(),
        Kind::TextOrNull if !value.is_string() && !value.is_null() => "a text or null".to_owned(),
        Kind::Number if !value.is_number() => "a number".to_owned(),
        Kind::NumberOrNull if !value.is_number() && !value.is_null() => "a number or null".to_owned(),
        Kind::Flag if !value.is_boolean() => "true or false".to_owned(),
        Kind::OneOf(known) if !value.as_str().is_some_and(|text| known.contains(&text)) => {
            format!("one of {}", known.join(", "))
        }
        Kind::Texts if !value.as_array().is_some_and(|list| list.iter().all(Value::is_string)) => {
            "a list of texts".to_owned()
        }
        Kind::TextMap if !value.as_object().is_some_and(|map| map.values().all(Value::is_string)) => {
            "an object of texts".to_owned()
        }
        Kind::Map if !value.is_object() => "an object".to_owned(),
        Kind::MapOrNull if !value.is_object() && !value.is_null() => "an object or null".to_owned(),
        Kind::ListOf(_) if !value.is_array() => "a list".to_owned(),
        Kind::Of(shape) => return look(shape, value, strictness, path, faults),
        Kind::ListOf(shape) => {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                look(shape, item, strictness, &format!("{path}[{index}]"), faults);
            }
            return;
        }
        _ => return,
    };
    faults.push(format!("expected {path} to be {expected}, got {}", brief(value)));
}

/// Whether an object has exactly these members.
pub(crate) fn exactly(value: &Value, expected: &[&str]) -> Result<(), String> {
    let Some(members) = value.as_object() else {
        return Err(format!("expected an object with {}, got {}", expected.join(", "), brief(value)));
    };
    let same = members.len() == expected.len() && expected.iter().all(|key| members.contains_key(*key));
    if same {
        Ok(())
    } else {
        Err(format!("expected exactly {}, got {}", expected.join(", "), keys(members)))
    }
}

fn keys(members: &Map<String, Value>) -> String {
    if members.is_empty() {
        return "no members".to_owned();
    }
    members.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The beginning of a value, for messages.
pub(crate) fn brief(value: &Value) -> String {
    shorten(&value.to_string())
}

/// The beginning of a text, for messages.
pub(crate) fn shorten(text: &str) -> String {
    const LONGEST: usize = 400;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
