//! Connector files beside the connectors they declare: what `tributary connectors list | status` shows of both.

use std::io::{self, Write};

use serde_json::{Map, Value};

use super::table::{each, note, text};

/// Where a connector of the list has what is known of its file.
pub(super) const DECLARATION: &str = "declaration";

/// Puts each declaration to the connector it is about. One that is not there (deleted, or refused before it ever was) gets
/// an entry with its declaration alone.
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
            // Two files with one name: the first is shown, and its message names both.
            Value::Object(_) => {}
            vacant => *vacant = declaration,
        }
    }
}

/// Why files differ, where there is more to say.
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
    fn a_declaration_stands_with_its_connector_and_one_without_stands_alone() {
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
    fn only_what_has_a_message_is_explained() {
        let mut found = json!({ "a": {}, "b": {} });
        let refused = json!({ "name": "b", "file": "b.json", "state": "refused", "message": "one\ntwo\n" });
        join(&mut found, &json!([{ "name": "a", "file": "a.json", "state": "edited" }, refused]));

        let told = written(|out| explain(&found, out));

        assert_eq!(told, "\nb (b.json: refused)\n  one\n  two\n");
    }
}
