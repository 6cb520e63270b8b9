//! Whether a reader's schema can read records of a writer's schema, and which field prevents it.
//!
//! A registry may say "incompatible" without naming a field. This walks both schemas by Avro's resolution rules
//! ([specification](https://avro.apache.org/docs/1.12.0/specification/#schema-resolution)) and names the first field that
//! breaks one. The verdict on two types comes from `apache_avro`; only a *full* match counts, since a partial one (a union
//! that lost a branch, an enum that lost a symbol) reads some records and fails on others.

use apache_avro::{
    Schema,
    schema::{RecordField, RecordSchema},
    schema_compatibility::{Compatibility, SchemaCompatibility},
};

/// Maximum depth of the walk; beyond it the field found so far is named. Our schemas nest three deep.
const MAX_DEPTH: usize = 32;

/// The field of the reader that breaks a rule, and the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Incompatibility {
    /// Dotted path from the top record, or the record's name for the whole record.
    pub(crate) field: String,
    /// The rule in words, with what each side has.
    pub(crate) rule: String,
}

/// The first rule that keeps `reader` from reading every record of `writer`; `None` means fully compatible.
#[must_use]
pub(crate) fn incompatibility(writer: &Schema, reader: &Schema) -> Option<Incompatibility> {
    if is_full(writer, reader) {
        return None;
    }
    let top = reader.name().map_or_else(|| kind(reader), ToString::to_string);
    Some(deepest(writer, reader, &mut Vec::new()).unwrap_or_else(|rule| Incompatibility { field: top, rule }))
}

fn is_full(writer: &Schema, reader: &Schema) -> bool {
    matches!(SchemaCompatibility::can_read(writer, reader), Ok(Compatibility::Full))
}

/// Descends while both sides have the same structure. `Err` is the rule broken at this level, without a field.
fn deepest(writer: &Schema, reader: &Schema, path: &mut Vec<String>) -> Result<Incompatibility, String> {
    let below = match (writer, reader) {
        _ if path.len() >= MAX_DEPTH => None,
        (Schema::Record(writer), Schema::Record(reader)) if writer.name.name() == reader.name.name() => {
            in_record(writer, reader, path)
        }
        (Schema::Array(writer), Schema::Array(reader)) => {
            Some(deepest(&writer.items, &reader.items, path).unwrap_or_else(|rule| at(path, rule)))
        }
        (Schema::Map(writer), Schema::Map(reader)) => {
            Some(deepest(&writer.types, &reader.types, path).unwrap_or_else(|rule| at(path, rule)))
        }
        (Schema::Union(writer), Schema::Union(reader)) => writer
            .variants()
            .iter()
            .find(|branch| !reader.variants().iter().any(|other| is_full(branch, other)))
            .and_then(|branch| {
                let twin = reader.variants().iter().find(|other| kind(other) == kind(branch))?;
                deepest(branch, twin, path).ok()
            }),
        _ => None,
    };
    below.ok_or_else(|| {
        let (writer, reader) = (shape(writer), shape(reader));
        format!("a reader with type {reader} cannot read every value written as {writer}")
    })
}

fn in_record(
    writer: &RecordSchema,
    reader: &RecordSchema,
    path: &mut Vec<String>,
) -> Option<Incompatibility> {
    for field in &reader.fields {
        path.push(field.name.clone());
        let found = match written_as(writer, field) {
            None if field.default.is_none() => {
                Some(at(path, "a field that older records do not have needs a default value".to_owned()))
            }
            Some(written) if !is_full(&written.schema, &field.schema) => {
                Some(deepest(&written.schema, &field.schema, path).unwrap_or_else(|rule| at(path, rule)))
            }
            _ => None,
        };
        path.pop();
        if found.is_some() {
            return found;
        }
    }
    None
}

/// A reader finds a field by its own name first, then by its aliases; the writer's aliases do not count.
fn written_as<'w>(writer: &'w RecordSchema, field: &RecordField) -> Option<&'w RecordField> {
    std::iter::once(&field.name)
        .chain(&field.aliases)
        .find_map(|name| writer.fields.iter().find(|written| written.name == *name))
}

fn at(path: &[String], rule: String) -> Incompatibility {
    Incompatibility { field: path.join("."), rule }
}

fn kind(schema: &Schema) -> String {
    format!("{:?}", apache_avro::schema::SchemaKind::from(schema)).to_lowercase()
}

/// A short form of a type for messages: its name, or the branches of a union.
fn shape(schema: &Schema) -> String {
    match (schema, schema.name()) {
        (Schema::Union(union), _) => {
            format!("[{}]", union.variants().iter().map(shape).collect::<Vec<_>>().join(", "))
        }
        (_, Some(name)) => format!("{} {name}", kind(schema)),
        _ => kind(schema),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fields: &str) -> Schema {
        Schema::parse_str(&format!(r#"{{"type":"record","name":"Top","fields":[{fields}]}}"#)).unwrap()
    }

    #[test]
    fn changes_that_keep_older_records_readable_are_compatible() {
        let old = r#"{"name":"a","type":"string"},{"name":"gone","type":"int"}"#;
        for new in [
            r#"{"name":"a","type":"string"}"#,
            r#"{"name":"a","type":["null","string"]}"#,
            r#"{"name":"a","type":"string"},{"name":"b","type":["null","string"],"default":null}"#,
            r#"{"name":"renamed","aliases":["a"],"type":"string"}"#,
            r#"{"name":"gone","type":"long"}"#,
        ] {
            assert_eq!(incompatibility(&record(old), &record(new)), None, "{new}");
        }
    }

    #[test]
    fn incompatible_field_is_named_with_path_and_rule() {
        let inner = |fields: &str| format!(r#"{{"type":"record","name":"Inner","fields":[{fields}]}}"#);
        let (was, now) = (inner(r#"{"name":"x","type":"string"}"#), inner(r#"{"name":"x","type":"int"}"#));
        for (old, new, field, rule) in [
            (r#"{"name":"a","type":"string"}"#.into(), r#"{"name":"a","type":"int"}"#.into(), "a", "int"),
            (
                r#"{"name":"a","type":["null","string"]}"#.into(),
                r#"{"name":"a","type":"string"}"#.into(),
                "a",
                "[null, string]",
            ),
            (
                r#"{"name":"a","type":"int"}"#.into(),
                r#"{"name":"a","type":"int"},{"name":"b","type":"int"}"#.into(),
                "b",
                "default",
            ),
            (
                format!(r#"{{"name":"a","type":["null",{was}]}}"#),
                format!(r#"{{"name":"a","type":["null",{now}]}}"#),
                "a.x",
                "string",
            ),
            (
                format!(r#"{{"name":"a","type":{{"type":"array","items":{was}}}}}"#),
                format!(r#"{{"name":"a","type":{{"type":"array","items":{now}}}}}"#),
                "a.x",
                "string",
            ),
            (
                format!(r#"{{"name":"a","type":{{"type":"map","values":{was}}}}}"#),
                format!(r#"{{"name":"a","type":{{"type":"map","values":{now}}}}}"#),
                "a.x",
                "string",
            ),
            (
                r#"{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}}"#.into(),
                r#"{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}}"#.into(),
                "e",
                "enum E",
            ),
        ] as [(String, String, &str, &str); 7]
        {
            let breach = incompatibility(&record(&old), &record(&new)).unwrap();

            assert_eq!(breach.field, field, "{breach:?}");
            assert!(breach.rule.contains(rule), "{breach:?}");
        }
    }

    #[test]
    fn record_with_another_name_is_incompatible_as_a_whole() {
        let other = Schema::parse_str(r#"{"type":"record","name":"Other","fields":[]}"#).unwrap();

        let breach = incompatibility(&other, &record("")).unwrap();

        assert_eq!(breach.field, "Top");
        assert!(breach.rule.contains("Other"), "{breach:?}");
    }
}
