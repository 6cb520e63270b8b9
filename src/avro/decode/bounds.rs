//! Whether data of a foreign schema can be read within bounds, judged by the schema alone.
//!
//! apache-avro limits neither the depth of nesting nor the number of items that take no bytes: a few bytes of data could exhaust
//! the stack or the memory. None of our own schemas, past or present, comes near these bounds.

use apache_avro::{
    Schema,
    schema::{NamesRef, NamespaceRef, ResolvedSchema},
};

/// Maximum nesting of types; ours nest three deep.
const MAX_DEPTH: usize = 32;
/// Maximum number of types, with references counted at each use; ours have some forty.
const MAX_TYPES: usize = 10_000;

/// `Err` is the rule that the schema breaks.
pub(super) fn check(schema: &Schema) -> Result<(), String> {
    let resolved =
        ResolvedSchema::new(schema).map_err(|error| format!("its schema must be whole: {error}"))?;
    let mut walk = SchemaWalk { names: resolved.get_names(), types: 0 };
    walk.is_empty(schema, None, 0).map(drop)
}

struct SchemaWalk<'a> {
    names: &'a NamesRef<'a>,
    types: usize,
}

impl SchemaWalk<'_> {
    /// Whether a value may take no bytes at all.
    fn is_empty(
        &mut self,
        schema: &Schema,
        namespace: NamespaceRef<'_>,
        depth: usize,
    ) -> Result<bool, String> {
        self.types += 1;
        if depth > MAX_DEPTH || self.types > MAX_TYPES {
            return Err(format!(
                "its schema must not refer to itself, nest deeper than {MAX_DEPTH} or hold more than {MAX_TYPES} types"
            ));
        }
        let below = depth + 1;
        match schema {
            Schema::Null => Ok(true),
            Schema::Fixed(fixed) => Ok(fixed.size == 0),
            Schema::Record(record) => {
                let name = record.name.fully_qualified_name(namespace);
                record.fields.iter().try_fold(true, |empty, field| {
                    Ok(self.is_empty(&field.schema, name.namespace(), below)? && empty)
                })
            }
            Schema::Array(array) => match self.is_empty(&array.items, namespace, below)? {
                true => Err("its schema must not have an array whose items take no bytes".to_owned()),
                false => Ok(false),
            },
            Schema::Map(map) => self.is_empty(&map.types, namespace, below).map(|_| false),
            Schema::Union(union) => {
                union
                    .variants()
                    .iter()
                    .try_for_each(|branch| self.is_empty(branch, namespace, below).map(drop))?;
                Ok(false)
            }
            Schema::Ref { name } => {
                let name = name.fully_qualified_name(namespace);
                let referred = self.names.get(&*name).copied();
                let referred = referred.ok_or_else(|| format!("its schema must define {name}"))?;
                self.is_empty(referred, name.namespace(), below)
            }
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(schema: &str) -> Option<String> {
        check(&Schema::parse_str(schema).unwrap()).err()
    }

    #[test]
    fn a_type_that_is_used_twice_is_not_recursive() {
        let twice = r#"{"type":"record","name":"a.Top","fields":[
            {"name":"x","type":{"type":"record","name":"In","fields":[{"name":"s","type":"string"}]}},
            {"name":"y","type":["null","In"]},{"name":"z","type":{"type":"array","items":"a.In"}}]}"#;

        assert_eq!(broken(twice), None);
    }

    #[test]
    fn schemas_that_would_exhaust_stack_or_memory_are_refused() {
        let doubled = (1..20).fold(r#"{"type":"record","name":"N0","fields":[]}"#.to_owned(), |inner, n| {
            format!(
                r#"{{"type":"record","name":"N{n}","fields":[
                    {{"name":"a","type":{inner}}},{{"name":"b","type":"N{}"}}]}}"#,
                n - 1
            )
        });
        for (schema, rule) in [
            (r#"{"type":"record","name":"R","fields":[{"name":"r","type":"R"}]}"#, "refer to itself"),
            (
                r#"{"type":"record","name":"R","fields":[{"name":"r","type":["null","R"]}]}"#,
                "refer to itself",
            ),
            (r#"{"type":"array","items":"null"}"#, "take no bytes"),
            (r#"{"type":"array","items":{"type":"record","name":"E","fields":[]}}"#, "take no bytes"),
            (&doubled, "more than 10000 types"),
        ] {
            let text = broken(schema).unwrap();

            assert!(text.contains(rule), "{text}");
        }
    }
}
