//! Tables for people: even columns, no blanks at the ends of lines.

use std::io::{self, Write};

/// A head and its rows, or that there are none.
pub(super) fn columns<const N: usize>(
    head: [String; N],
    rows: Vec<[String; N]>,
    out: &mut impl Write,
) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "none");
    }
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
    use super::*;

    #[test]
    fn where_there_is_nothing_to_list_there_is_no_head() {
        let mut out = Vec::new();

        columns(["A".to_owned()], Vec::new(), &mut out).unwrap();

        assert_eq!(out, b"none\n");
    }

    #[test]
    fn control_characters_are_written_out_and_letters_are_not() {
        assert_eq!(harmless("\u{1b}[2Jñandú\r\n\ttab\u{9b}"), "\\u{1b}[2Jñandú\\r\n\ttab\\u{9b}");
    }
}
