//! Quotes of the provider in our texts: short, printable, and marked so that REST can hide them from read-only users.

use std::{borrow::Cow, fmt};

const OPEN: char = '⟪';
const CLOSE: char = '⟫';
/// Replaces a hidden quote.
const HIDDEN_QUOTE: &str = "[hidden]";

/// Most characters of a quote.
pub const QUOTE_LIMIT: usize = 200;

/// The provider's words in errors, logs and traces: on one line, at most [`QUOTE_LIMIT`] characters, between marks that the
/// words themselves cannot contain.
#[derive(Debug, Clone, Copy)]
pub struct Quote<'a>(pub &'a str);

impl fmt::Display for Quote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clean = |letter: char| match letter {
            // Each of these would end the quote early when REST removes it from JSON.
            '"' | '\\' | OPEN | CLOSE => '\'',
            letter if is_printable(letter) => letter,
            _ => ' ',
        };
        let words: String = self.0.chars().take(QUOTE_LIMIT).map(clean).collect();
        write!(f, "{OPEN}{words}{CLOSE}")
    }
}

/// Whether a character is visible text: no control character, and none that hides or reverses text.
#[must_use]
pub fn is_printable(letter: char) -> bool {
    !(letter.is_control()
        || matches!(letter, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(letter, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'))
}

/// A text, or JSON with texts in it, with every [`Quote`] hidden. A quote that was cut off ends with its text.
#[must_use]
pub fn without_quotes(text: &str) -> Cow<'_, str> {
    if !text.contains(OPEN) {
        return Cow::Borrowed(text);
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, quote)) = rest.split_once(OPEN) {
        kept.push_str(before);
        kept.extend([OPEN, CLOSE]);
        kept.insert_str(kept.len() - CLOSE.len_utf8(), HIDDEN_QUOTE);
        let end = quote.find([CLOSE, '"', '\n']).unwrap_or(quote.len());
        rest = &quote[end..];
        rest = rest.strip_prefix(CLOSE).unwrap_or(rest);
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quote_is_short_printable_and_closed() {
        for (words, shown) in [
            ("Duplicate code", "⟪Duplicate code⟫"),
            ("a\u{1b}[2Jb\nc\u{202e}d\u{200b}e", "⟪a [2Jb c d e⟫"),
            ("out⟫ \"of\" \\ it⟪", "⟪out' 'of' ' it'⟫"),
        ] {
            assert_eq!(Quote(words).to_string(), shown);
        }
        assert_eq!(Quote(&"ñ".repeat(900)).to_string().chars().count(), QUOTE_LIMIT + 2);
    }

    #[test]
    fn quotes_are_hidden_in_texts_and_json() {
        let quote = Quote("a \"secret\" of the \\ host").to_string();
        for (text, kept) in [
            ("no words".to_owned(), "no words"),
            (format!("answered 422 ({quote}): refused"), "answered 422 (⟪[hidden]⟫): refused"),
            (format!("{quote} and {quote}"), "⟪[hidden]⟫ and ⟪[hidden]⟫"),
            (format!("{}\nNext: x", &quote[..9]), "⟪[hidden]⟫\nNext: x"),
            (format!(r#"{{"a":"{}","b":"c"}}"#, &quote[..9]), r#"{"a":"⟪[hidden]⟫","b":"c"}"#),
            (format!(r#"{{"a":"x {quote}","b":7}}"#), r#"{"a":"x ⟪[hidden]⟫","b":7}"#),
        ] {
            assert_eq!(without_quotes(&text), kept);
        }
    }
}
