//! Tables for people: even columns, no blanks at the ends of lines.

use std::io::{self, Write};

use serde_json::Value;

/// A head and its rows, or that there are none.
pub(super) fn columns<const N: usize>(
    head: [&str; N],
    rows: Vec<[String; N]>,
    out: &mut impl Write,
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

/// The text of a member, or a dash.
pub(super) fn text(value: &Value) -> String {
    text_or(value, "-")
}

/// The text of a member, or what stands for none.
pub(super) fn text_or(value: &Value, none: &str) -> String {
    value.as_str().map_or_else(|| none.to_owned(), harmless)
}

/// The number of a member, or a dash.
pub(super) fn number(value: &Value) -> String {
    value.as_i64().map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// Whether a member is so, or a dash.
pub(super) fn yes(value: &Value) -> String {
    match value.as_bool() {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
    .to_owned()
}

/// The members of an array; none where it is not there.
pub(super) fn each(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

/// What there is to say of one line of a table, below it.
pub(super) fn note(what: &str, told: &str, out: &mut impl Write) -> io::Result<()> {
    let told = harmless(told.trim_end()).replace('\n', "\n  ");
    writeln!(out, "\n{what}\n  {told}")
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

    #[test]
    fn what_is_not_there_is_a_dash_and_what_is_said_below_a_table_is_indented() {
        let row = json!({ "name": "a\u{7}", "count": 3, "is": true });
        let mut out = Vec::new();
        note("a", "one\ntwo\n", &mut out).unwrap();

        assert_eq!((text(&row["name"]), text(&row["no"])), ("a\\u{7}".to_owned(), "-".to_owned()));
        assert_eq!((number(&row["count"]), number(&row["no"])), ("3".to_owned(), "-".to_owned()));
        assert_eq!([yes(&row["is"]), yes(&row["no"]), text_or(&row["no"], "all")], ["yes", "-", "all"]);
        assert_eq!((each(&json!([1])).len(), each(&row).len()), (1, 0));
        assert_eq!(out, b"\na\n  one\n  two\n");
    }

    #[test]
    fn where_there_is_nothing_to_list_there_is_no_head() {
        let mut out = Vec::new();

        columns(["A"], Vec::new(), &mut out).unwrap();

        assert_eq!(out, b"none\n");
    }

    #[test]
    fn control_characters_are_written_out_and_letters_are_not() {
        assert_eq!(harmless("\u{1b}[2Jñandú\r\n\ttab\u{9b}"), "\\u{1b}[2Jñandú\\r\n\ttab\\u{9b}");
    }
}
