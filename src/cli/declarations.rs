//! Connector files compared with their connectors, for `tributary connectors list` and `status`.

use std::io::{self, Write};

use serde_json::{Map, Value};

use super::table::{each, note, text};

/// Member of a listed connector that describes its file.
pub(super) const DECLARATION: &str = "declaration";

/// Adds each declaration to its connector. A connector that does not exist (deleted, or refused from the start) gets an entry with
/// only the declaration.
pub(super) fn join(found: &mut Value, declarations: &Value) {
    let Value::Object(found) = found else { return };
    for declaration in each(declarations) {
        let Some(name) = declaration["name"].as_str() else { continue };
        let entry = found.entry(name).or_insert_with(|| Value::Object(Map::new()));
        let mut declaration = declaration.clone();
        if let Value::Object(members) = &mut declaration {
            members.remove("name");
        }
        match &mut entry[DECLARATION] {
            // Two files with one name: keep the first, whose message names both.
            Value::Object(_) => {}
            vacant => *vacant = declaration,
        }
    }
}

/// Prints the messages of declarations that have one.
pub(super) fn explain(found: &Value, out: &mut dyn Write) -> io::Result<()> {
    for (name, one) in found.as_object().into_iter().flatten() {
        let declaration = &one[DECLARATION];
        if let Some(message) = declaration["message"].as_str() {
            let (file, state) = (text(&declaration["file"]), text(&declaration["state"]));
            note(&format!("{name} ({file}: {state})"), message, out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::tests::written;

    #[test]
    fn a_declaration_joins_its_connector_or_is_an_entry() {
        let mut found = json!({ "a": { "status": {} }, "b": { "status": {} } });
        let declarations = json!([
            { "name": "a", "file": "a.json", "state": "in sync" },
            { "name": "c", "file": "c.json", "state": "deleted" },
        ]);

        join(&mut found, &declarations);

        let expected = json!({
            "a": { "status": {}, "declaration": { "file": "a.json", "state": "in sync" } },
            "b": { "status": {} },
            "c": { "declaration": { "file": "c.json", "state": "deleted" } },
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn only_declarations_with_a_message_are_explained() {
        let mut found = json!({ "a": {}, "b": {} });
        let refused = json!({ "name": "b", "file": "b.json", "state": "refused", "message": "one\ntwo\n" });
        join(&mut found, &json!([{ "name": "a", "file": "a.json", "state": "edited" }, refused]));

        assert_eq!(written(|out| explain(&found, out)), "\nb (b.json: refused)\n  one\n  two\n");
    }
}
