//! Java properties: `key=value` lines with `#` comments, continued lines and `\uXXXX`.
//!
//! Files are read as UTF-8, which editors write today, although Java's default is Latin-1; plain ASCII is the same in both. A byte
//! that is not UTF-8 is an error with its line number, never a silently different letter.

use std::{collections::BTreeMap, io, io::Read};

use java_properties::{LineContent, PropertiesIter};

/// Why a line is not in properties syntax.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The line has a malformed escape.
    #[error(
        "line {line} has a malformed \\u escape; write \\uXXXX with four hexadecimal digits, or \\\\ for a backslash"
    )]
    Escape {
        /// Line, from 1.
        line: usize,
    },
    /// The bytes are not UTF-8.
    #[error("line {line} is not UTF-8; save the file as UTF-8, or write \\uXXXX for letters beyond ASCII")]
    NotUtf8 {
        /// Line, from 1.
        line: usize,
    },
}

/// A properties file, read as far as it can be.
#[derive(Debug, Default)]
pub(crate) struct PropertiesFile {
    /// As in Java, the last of several values of a key counts.
    pub(crate) pairs: BTreeMap<String, String>,
    /// Keys that were set more than once.
    pub(crate) repeated: Vec<String>,
    /// Lines that were left out, at most [`ERROR_LIMIT`] of them.
    pub(crate) errors: Vec<Error>,
}

/// Bad lines that are reported; the rest of the file is then left out.
const ERROR_LIMIT: usize = 20;

/// Reads every line that can be read, so that one run reports all bad ones.
pub(crate) fn parse(bytes: &[u8]) -> PropertiesFile {
    let mut errors = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let text = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line));
        if text.is_err() && errors.len() < ERROR_LIMIT {
            errors.push(Error::NotUtf8 { line: index + 1 });
        }
        lines.push(text.unwrap_or_default());
    }
    blank_comments(&mut lines);
    loop {
        match pairs(&lines.join("\n")) {
            Ok((pairs, repeated)) => return PropertiesFile { pairs, repeated, errors },
            Err(line) => {
                errors.push(Error::Escape { line });
                match lines.get_mut(line - 1) {
                    Some(bad) if errors.len() < ERROR_LIMIT => *bad = "",
                    _ => return PropertiesFile { errors, ..PropertiesFile::default() },
                }
            }
        }
    }
}

/// The pairs and the repeated keys; `Err` is the number of the first line with a malformed escape.
fn pairs(text: &str) -> Result<(BTreeMap<String, String>, Vec<String>), usize> {
    let mut pairs = BTreeMap::new();
    let mut repeated = Vec::new();
    for line in PropertiesIter::new_with_encoding(text.as_bytes(), encoding_rs::UTF_8) {
        // The text is in memory and UTF-8, so only an escape can be wrong.
        let line = line.map_err(|error| error.line_number().unwrap_or(1).max(1))?;
        if let LineContent::KVPair(key, value) = line.consume_content()
            && pairs.insert(key.clone(), value).is_some()
        {
            repeated.push(key);
        }
    }
    Ok((pairs, repeated))
}

/// All bytes of a source, or `None` when it has more than `limit`.
pub(crate) fn read_bounded(source: impl Read, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    source.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

/// Blanks comment lines: the parser also reads escapes in comments and would refuse `# C:\users`, which Java accepts.
fn blank_comments(lines: &mut [&str]) {
    let mut continued = false;
    for line in lines {
        let comment = !continued && line.trim_start().starts_with(['#', '!']);
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        continued = !comment && backslashes % 2 == 1;
        if comment {
            *line = "";
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let parsed = parse(text.as_bytes());
        assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
        parsed.pairs.into_iter().collect()
    }

    #[test]
    fn the_syntax_is_that_of_java() {
        let table = [
            ("a=1", "a", "1"),
            ("a = 1", "a", "1"),
            ("a: 1", "a", "1"),
            ("a 1", "a", "1"),
            ("  a=x=y", "a", "x=y"),
            ("a=one \\\n   two", "a", "one two"),
            ("a=\\u00e9", "a", "é"),
            ("a=é€😀", "a", "é€😀"),
            ("a=C\\:\\\\x", "a", "C:\\x"),
            ("# C:\\users and \\u12\na=1\\\n#not a comment", "a", "1#not a comment"),
            ("#a\r\n!b\r\na=1\r\n", "a", "1"),
            ("a", "a", ""),
        ];

        for (text, key, value) in table {
            assert_eq!(pairs(text), [(key.to_owned(), value.to_owned())], "{text:?}");
        }
    }

    #[test]
    fn the_last_of_two_values_counts_and_the_key_is_reported() {
        let parsed = parse(b"a=1\nb=2\na=3");

        assert_eq!(parsed.pairs["a"], "3");
        assert_eq!(parsed.repeated, ["a"]);
    }

    #[test]
    fn every_bad_line_is_named_and_the_others_are_read() {
        let parsed = parse(b"a=1\n# \\u12\nb=\\u00g1\nc=caf\xe9\nd=\\u1\ne=5");

        let errors: Vec<_> = parsed.errors.iter().map(|error| error.to_string()[..6].to_owned()).collect();
        assert_eq!(errors, ["line 4", "line 3", "line 5"]);
        assert_eq!(parsed.pairs.keys().collect::<Vec<_>>(), ["a", "e"]);
    }

    #[test]
    fn report_about_bad_lines_is_bounded() {
        let parsed = parse("a=\\u1\n".repeat(1000).as_bytes());

        assert_eq!(parsed.errors.len(), ERROR_LIMIT);
    }
}
