//! Java properties: `key=value` lines with `#` comments, continued lines and `\uXXXX`.
//!
//! Files are read as UTF-8, where Java's own default is Latin-1: that is what editors write today, and plain ASCII is
//! the same in both. A byte that is not UTF-8 is an error that names its line, never a silently different letter.

use std::{collections::BTreeMap, fs::File, io, io::Read as _, path::Path};

use java_properties::{LineContent, PropertiesIter};

use crate::retry::Retry;

/// Why a text is not in properties syntax.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The line cannot be read.
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

impl Error {
    /// A file does not mend itself.
    #[must_use]
    pub fn retry(&self) -> Retry {
        Retry::Never
    }
}

/// The pairs of a properties text, and the keys that were set more than once. As in Java the last one counts.
pub(crate) fn parse(text: &str) -> Result<(BTreeMap<String, String>, Vec<String>), Error> {
    let text = without_comments(&text.replace("\r\n", "\n").replace('\r', "\n"));
    let mut pairs = BTreeMap::new();
    let mut repeated = Vec::new();
    for line in PropertiesIter::new_with_encoding(text.as_bytes(), encoding_rs::UTF_8) {
        // The text is in memory and UTF-8, so an escape is all that can be wrong with a line.
        let line = line.map_err(|error| Error::Escape { line: error.line_number().unwrap_or(1) })?;
        if let LineContent::KVPair(key, value) = line.consume_content()
            && pairs.insert(key.clone(), value).is_some()
        {
            repeated.push(key);
        }
    }
    Ok((pairs, repeated))
}

/// The text of a file's bytes.
pub(crate) fn decode(bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        Error::NotUtf8 { line: good.iter().filter(|&&byte| byte == b'\n').count() + 1 }
    })
}

/// The bytes of a file, or `None` when it has more than `limit`.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

/// Blanks comment lines: the parser looks for escapes in them too and would refuse `# C:\users`, which Java takes.
fn without_comments(text: &str) -> String {
    let mut continued = false;
    let lines = text.split('\n').map(|line| {
        let comment = !continued && line.trim_start().starts_with(['#', '!']);
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        continued = !comment && backslashes % 2 == 1;
        if comment { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap().0.into_iter().collect()
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
        let (pairs, repeated) = parse("a=1\nb=2\na=3").unwrap();

        assert_eq!(pairs["a"], "3");
        assert_eq!(repeated, ["a"]);
    }

    #[test]
    fn a_malformed_escape_names_its_line() {
        let error = parse("a=1\n# comment\nb=\\u00g1").unwrap_err();

        assert!(matches!(error, Error::Escape { line: 3 }), "{error}");
    }

    #[test]
    fn a_latin1_byte_names_its_line() {
        let error = decode(b"a=1\nb=caf\xe9\n".to_vec()).unwrap_err();

        assert!(matches!(error, Error::NotUtf8 { line: 2 }), "{error}");
    }
}
