//! Tables with aligned columns and no trailing blanks.

use std::io::{self, Write};

use serde_json::Value;

use model::Moment;

/// Prints a head and its rows, or `none`.
pub(super) fn columns<const N: usize>(
    head: [&str; N],
    rows: Vec<[String; N]>,
    out: &mut dyn Write,
) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "none");
    }
    let head = head.map(str::to_owned);
    let width = |column: usize| {
        let cells = rows.iter().chain([&head]).map(|row| row[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    for row in [&head].into_iter().chain(&rows) {
        let line: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", line.join("  ").trim_end())?;
    }
    Ok(())
}

/// A column of a table of JSON objects: its head and its cell of an object.
pub(super) type Column = (&'static str, fn(&Value) -> String);

/// Prints one line per object, or `none`.
pub(super) fn objects<const N: usize>(
    all: &[Value],
    table: [Column; N],
    out: &mut dyn Write,
) -> io::Result<()> {
    let rows = all.iter().map(|one| table.map(|(_, cell)| cell(one)));
    columns(table.map(|(head, _)| head), rows.collect(), out)
}

/// A JSON member as text, or a dash.
pub(super) fn text(value: &Value) -> String {
    text_or(value, "-")
}

/// A JSON member as text, or `none`.
pub(super) fn text_or(value: &Value, none: &str) -> String {
    match value {
        Value::String(text) => harmless(text),
        Value::Number(number) => number.to_string(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Null | Value::Array(_) | Value::Object(_) => none.to_owned(),
    }
}

/// A time in milliseconds since 1970.
pub(super) fn moment(ms: i64) -> String {
    Moment::from_micros(ms.saturating_mul(1_000)).to_string()
}

/// The elements of an array; empty for other values.
pub(super) fn each(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

/// Prints a note about one line of a table.
pub(super) fn note(what: &str, text: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n{what}\n  {}", indented(text, "  "))
}

/// Text from outside, safe for a terminal, with further lines indented.
pub(super) fn indented(text: &str, by: &str) -> String {
    harmless(text.trim_end()).replace('\n', &format!("\n{by}"))
}

/// Text from outside, safe for a terminal: control characters are escaped.
pub(super) fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && !matches!(letter, '\n' | '\t') {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::tests::written;

    #[test]
    fn a_missing_member_is_a_dash_and_a_note_is_indented() {
        let row = json!({ "name": "a\u{7}", "count": 3, "is": true });

        assert_eq!((text(&row["name"]), text(&row["no"])), ("a\\u{7}".to_owned(), "-".to_owned()));
        assert_eq!([text(&row["count"]), text(&row["is"]), text(&json!(false))], ["3", "yes", "no"]);
        assert_eq!(text_or(&row["no"], "all"), "all");
        assert_eq!((each(&json!([1])).len(), each(&row).len()), (1, 0));
        assert_eq!(written(|out| note("a", "one\ntwo\n", out)), "\na\n  one\n  two\n");
    }

    #[test]
    fn an_empty_table_is_none() {
        assert_eq!(written(|out| columns(["A"], Vec::new(), out)), "none\n");
    }

    #[test]
    fn only_control_characters_are_escaped() {
        assert_eq!(harmless("\u{1b}[2Jñandú\r\n\ttab\u{9b}"), "\\u{1b}[2Jñandú\\r\n\ttab\\u{9b}");
    }
}
