//! Tables for people: even columns, no blanks at the ends of lines.

use std::io::{self, Write};

use serde_json::Value;

use model::Moment;

/// A head and its rows, or that there are none.
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

/// A column of a table of JSON objects: its head, and what an object has there.
pub(super) type Column = (&'static str, fn(&Value) -> String);

/// One line an object, or that there are none.
pub(super) fn objects<const N: usize>(
    all: &[Value],
    table: [Column; N],
    out: &mut dyn Write,
) -> io::Result<()> {
    let rows = all.iter().map(|one| table.map(|(_, cell)| cell(one)));
    columns(table.map(|(head, _)| head), rows.collect(), out)
}

/// A member as people read it, or a dash.
pub(super) fn text(value: &Value) -> String {
    text_or(value, "-")
}

/// A member as people read it, or this text if there is none.
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

/// The members of an array; none where it is not there.
pub(super) fn each(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

/// What there is to say of one line of a table, below it.
pub(super) fn note(what: &str, told: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n{what}\n  {}", indented(told, "  "))
}

/// Text of others, whose further lines are indented.
pub(super) fn indented(text: &str, by: &str) -> String {
    harmless(text.trim_end()).replace('\n', &format!("\n{by}"))
}

/// Text of others, safe to show on a terminal: what would move its cursor or ring its bell is written out.
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
    fn what_is_not_there_is_a_dash_and_what_is_said_below_a_table_is_indented() {
        let row = json!({ "name": "a\u{7}", "count": 3, "is": true });

        assert_eq!((text(&row["name"]), text(&row["no"])), ("a\\u{7}".to_owned(), "-".to_owned()));
        assert_eq!([text(&row["count"]), text(&row["is"]), text(&json!(false))], ["3", "yes", "no"]);
        assert_eq!(text_or(&row["no"], "all"), "all");
        assert_eq!((each(&json!([1])).len(), each(&row).len()), (1, 0));
        assert_eq!(written(|out| note("a", "one\ntwo\n", out)), "\na\n  one\n  two\n");
    }

    #[test]
    fn where_there_is_nothing_to_list_there_is_no_head() {
        assert_eq!(written(|out| columns(["A"], Vec::new(), out)), "none\n");
    }

    #[test]
    fn control_characters_are_written_out_and_letters_are_not() {
        assert_eq!(harmless("\u{1b}[2Jñandú\r\n\ttab\u{9b}"), "\\u{1b}[2Jñandú\\r\n\ttab\\u{9b}");
    }
}
