//! Paths, queries and the `context` header of requests. Their values are opaque texts, which are encoded.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::HeaderValue;
use serde_json::json;

use super::error::Cause;

/// The `context` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextHeader<'a> {
    /// Not sent.
    Absent,
    /// The value `none`.
    None,
    /// A company, by its correlation id.
    Company(&'a str),
}

impl<'a> ContextHeader<'a> {
    /// Contexts to try for reading a company by its id, in this order. The API document names the first for reads after an event;
    /// other material names `none` for records that belong to no company.
    pub(super) const fn of_company(company: &'a str) -> [Self; 3] {
        [Self::Company(company), Self::None, Self::Absent]
    }
}

impl ContextHeader<'_> {
    /// The header value.
    pub(super) fn header(self) -> Result<Option<HeaderValue>, Cause> {
        let text = match self {
            Self::Absent => return Ok(None),
            Self::None => "none".to_owned(),
            Self::Company(id) => ascii(&json!({ "clientId": id }).to_string()),
        };
        HeaderValue::from_str(&text).map(Some).map_err(|_| Cause::Unaddressable)
    }
}

/// An id as one path segment.
pub(super) fn segment(id: &str) -> Result<String, Cause> {
    // URL parsers resolve these as path steps, in every spelling.
    if matches!(id, "" | "." | "..") { Err(Cause::Unaddressable) } else { Ok(encoded(id)) }
}

/// A query with its question mark; empty without parameters.
pub(super) fn query<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut query = String::new();
    for (name, value) in parameters {
        query.push(if query.is_empty() { '?' } else { '&' });
        // `%20`, because servers disagree on whether `+` is a space.
        query.push_str(&format!("{}={}", encoded(name), encoded(value)));
    }
    query
}

fn encoded(text: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, ENCODED).to_string()
}

/// JSON in ASCII, for a header. Other characters occur only inside strings, where JSON can escape them.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() && character != '\x7f' {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(text, "\\u{unit:04x}").unwrap_or_default();
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_ascii_json_of_the_company() {
        for id in ["a", "x:7:CM:0f-1", "quo\"te\\", "compañía", "😀\u{7f}\n", "{}", "none"] {
            let header = ContextHeader::Company(id).header().unwrap().unwrap();

            let text = header.to_str().unwrap();
            let read: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(read, json!({ "clientId": id }), "{text}");
        }
        assert_eq!(ContextHeader::Absent.header().unwrap(), None);
        assert_eq!(ContextHeader::None.header().unwrap().unwrap(), "none");
    }

    #[test]
    fn an_id_is_one_segment_whatever_it_holds() {
        let base = url::Url::parse("https://example.com/api/").unwrap();
        for id in ["a", "x:7:CM:0f", "a/b", "a?b#c", "%2e", "..a", "a b+c", "ñ", "\0", "\\", ";"] {
            let url = base.join(&format!("things/{}/end", segment(id).unwrap())).unwrap();

            let segments: Vec<_> = url.path_segments().unwrap().collect();
            assert_eq!(segments.len(), 4, "{url}");
            assert_eq!((url.query(), url.fragment()), (None, None), "{url}");
            let back = segments[2].replace('+', "%2B");
            let back = url::form_urlencoded::parse(back.as_bytes()).next().map(|(name, _)| name.into_owned());
            assert_eq!(back.unwrap_or_default(), id, "{url}");
        }
        for id in ["", ".", ".."] {
            assert!(matches!(segment(id), Err(Cause::Unaddressable)), "{id:?}");
        }
    }

    #[test]
    fn a_query_encodes_its_values() {
        assert_eq!(query([]), "");
        assert_eq!(
            query([("pageNumber", "1"), ("filter", "lastUpdate gt 2024-01-01 & x='a+b'")]),
            "?pageNumber=1&filter=lastUpdate%20gt%202024-01-01%20%26%20x%3D%27a%2Bb%27"
        );
    }
}
