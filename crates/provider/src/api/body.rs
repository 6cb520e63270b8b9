//! Response bodies: JSON as the endpoints document it, and redacted excerpts of error bodies.

use bytes::{Bytes, BytesMut};
use regex::Regex;
use reqwest::{
    Response,
    header::{CONTENT_TYPE, HeaderMap},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, sync::LazyLock};

use base::secret::{HIDDEN, Secret};
use model::{QUOTE_LIMIT, is_printable};

use super::error::Cause;

/// Bytes of an error body that are read.
pub(super) const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Length of an excerpt.
const MAX_EXCERPT_CHARS: usize = QUOTE_LIMIT;
/// Shorter secrets are not redacted: they would match everywhere.
const MIN_SECRET_LEN: usize = 4;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Tokens, mail addresses, and texts as long as a GUID, a key or a signature.
static SECRET_PATTERNS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let kinds = [
        r"eyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*){0,2}",
        r"(?i:bearer)\s+[A-Za-z0-9._~+/=-]{8,}",
        r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+",
        r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
        r"[0-9A-Fa-f]{32,}",
        r"[A-Za-z0-9_+/-]{40,}={0,2}",
    ];
    Regex::new(&kinds.join("|")).ok()
});

/// The start of an error body; what has arrived, if the connection breaks.
pub(super) async fn read_start(mut response: Response) -> Bytes {
    let mut body = BytesMut::new();
    while body.len() < MAX_ERROR_BYTES
        && let Ok(Some(chunk)) = response.chunk().await
    {
        body.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR_BYTES - body.len())]);
    }
    body.freeze()
}

/// Rejects a body that declares another type than JSON, such as a proxy's page. An empty body passes.
pub(super) fn check_type(headers: &HeaderMap, body: &[u8]) -> Result<(), Cause> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    let json = essence == "application/json" || essence == "text/json" || essence.ends_with("+json");
    if json || is_empty(body) { Ok(()) } else { Err(Cause::NotJson) }
}

/// Whether a body is empty or blank.
pub(super) fn is_empty(body: &[u8]) -> bool {
    without_bom(body).trim_ascii().is_empty()
}

/// The rows of a list. An empty body and `null` have none.
pub(super) fn rows<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<Vec<T>, Cause> {
    if is_empty(body) { Ok(Vec::new()) } else { Ok(parse::<Option<_>>(body)?.unwrap_or_default()) }
}

/// The only object of a body, byte for byte.
pub(super) fn object(body: &Bytes) -> Result<Bytes, Cause> {
    let whole: &RawValue = parse(body)?;
    let text = whole.get().trim();
    if !text.starts_with('{') {
        return Err(Cause::Malformed { what: "it is not a JSON object".into() });
    }
    Ok(body.slice_ref(text.as_bytes()))
}

/// A body of this shape.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Cause> {
    serde_json::from_slice(without_bom(body)).map_err(|error| malformed(&error))
}

/// A member that may be `null`, which counts as missing.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    member: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(member)?.unwrap_or_default())
}

/// Some systems send a byte order mark before UTF-8.
pub(super) fn without_bom(body: &[u8]) -> &[u8] {
    body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body)
}

/// A redacted excerpt of an error body, on one line.
pub(super) fn excerpt(body: &[u8], secrets: &[&Secret]) -> Option<Box<str>> {
    let body = without_bom(body);
    let start = &body[..body.len().min(MAX_ERROR_BYTES)];
    let words = match serde_json::from_slice::<Value>(start) {
        Ok(value) => sentence(&value)?.to_owned(),
        // Truncated JSON may hold an escaped secret, which the redaction would miss.
        Err(_)
            if start.trim_ascii_start().first().is_some_and(|first| matches!(first, b'{' | b'[' | b'"')) =>
        {
            return None;
        }
        Err(_) => without_tags(&String::from_utf8_lossy(whole_words(body, start))),
    };
    cleaned_excerpt(&words, secrets)
}

/// A redacted excerpt of a text, on one line.
pub(super) fn cleaned_excerpt(words: &str, secrets: &[&Secret]) -> Option<Box<str>> {
    // Redact before cutting: half a secret would not be found.
    let hidden = hide(words, secrets);
    let words = hidden.split(|character: char| character.is_whitespace() || !is_printable(character));
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let line: String = words.join(" ").chars().take(MAX_EXCERPT_CHARS).collect();
    (!line.is_empty()).then(|| line.into())
}

/// The start of a body without its last, cut word: half a secret would not be found.
fn whole_words<'a>(body: &[u8], start: &'a [u8]) -> &'a [u8] {
    if body.len() <= start.len() && start.len() < MAX_ERROR_BYTES {
        return start;
    }
    let end = start.iter().rposition(|byte| byte.is_ascii_whitespace() || *byte == b'<');
    &start[..end.unwrap_or_default()]
}

fn hide<'a>(words: &'a str, secrets: &[&Secret]) -> Cow<'a, str> {
    let mut hidden = Cow::Borrowed(words);
    for secret in secrets {
        // The response may repeat the token without its scheme.
        for part in [secret.reveal(), secret.reveal().trim_start_matches("Bearer ")] {
            if part.len() >= MIN_SECRET_LEN && hidden.contains(part) {
                hidden = Cow::Owned(hidden.replace(part, HIDDEN));
            }
        }
    }
    match &*SECRET_PATTERNS {
        Some(private) => Cow::Owned(private.replace_all(&hidden, HIDDEN).into_owned()),
        // The pattern is a constant; if it did not compile, show nothing.
        None => Cow::Borrowed(HIDDEN),
    }
}

/// The message of an error: the first `message` anywhere, else the first string.
fn sentence(value: &Value) -> Option<&str> {
    fn find<'a>(
        value: &'a Value,
        wanted: &dyn Fn(Option<&str>) -> bool,
        name: Option<&str>,
    ) -> Option<&'a str> {
        match value {
            Value::String(text) if wanted(name) && !text.trim().is_empty() => Some(text),
            Value::Object(members) => {
                // Strings of this level before deeper ones.
                let (texts, others): (Vec<_>, Vec<_>) =
                    members.iter().partition(|(_, value)| value.is_string());
                texts.into_iter().chain(others).find_map(|(name, value)| find(value, wanted, Some(name)))
            }
            Value::Array(elements) => elements.iter().find_map(|element| find(element, wanted, name)),
            _ => None,
        }
    }
    let named = |name: Option<&str>| name.is_some_and(|name| name.eq_ignore_ascii_case("message"));
    find(value, &named, None).or_else(|| find(value, &|_| true, None))
}

/// The text of an HTML page.
fn without_tags(page: &str) -> String {
    let mut parts = page.split('<');
    let before = parts.next().into_iter();
    let behind_tags = parts.filter_map(|part| Some(part.split_once('>')?.1));
    before.chain(behind_tags).collect::<Vec<_>>().join(" ")
}

/// The position of a parse error. The parser's own message may quote the body.
fn malformed(error: &serde_json::Error) -> Cause {
    let (line, column) = (error.line(), error.column());
    let what = match error.classify() {
        serde_json::error::Category::Eof => "the JSON ends too early",
        serde_json::error::Category::Data => "a member has another type",
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => "it is not JSON",
    };
    Cause::Malformed { what: format!("{what}, at line {line} column {column}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_bodies_null_and_empty_arrays_have_no_rows() {
        for body in ["", "  \n", "null", "[]", "\u{feff}[]", "\u{feff}"] {
            assert!(rows::<&RawValue>(body.as_bytes()).unwrap().is_empty(), "{body:?}");
        }
        let two = rows::<&RawValue>(br#"[{"a":1}, 7]"#).unwrap();
        assert_eq!(two.iter().map(|row| row.get()).collect::<Vec<_>>(), [r#"{"a":1}"#, "7"]);
    }

    #[test]
    fn a_parse_error_names_the_position_and_never_the_body() {
        for (body, what) in [
            (r#"[{"a":"hunter2"},"#, "the JSON ends too early"),
            (r#"{"a":"hunter2"}"#, "another type"),
            ("hunter2", "it is not JSON"),
            ("<html>hunter2</html>", "it is not JSON"),
        ] {
            let error = rows::<&RawValue>(body.as_bytes()).unwrap_err().to_string();

            assert!(error.contains(what) && error.contains("at line 1 column"), "{body}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_object_keeps_its_bytes_and_other_json_is_rejected() {
        let body = Bytes::from_static(b"\xEF\xBB\xBF { \"a\" : 1.50 }\n");

        assert_eq!(object(&body).unwrap(), "{ \"a\" : 1.50 }");
        for other in ["[]", "null", "", "7", "{"] {
            assert!(object(&Bytes::from(other)).is_err(), "{other}");
        }
    }

    #[test]
    fn an_html_page_is_rejected_and_an_empty_body_is_not() {
        let headers = |kind: &str| [(CONTENT_TYPE, kind.parse().unwrap())].into_iter().collect::<HeaderMap>();

        for kind in
            ["application/json", "application/json; charset=utf-8", "text/json", "application/hal+json"]
        {
            assert!(check_type(&headers(kind), b"[]").is_ok(), "{kind}");
        }
        assert!(matches!(check_type(&headers("text/html"), b"[]"), Err(Cause::NotJson)));
        assert!(check_type(&headers("text/html"), b" ").is_ok());
        assert!(check_type(&HeaderMap::new(), b"[]").is_ok());
    }

    #[test]
    fn an_excerpt_is_the_message_at_any_depth() {
        for (body, expected) in [
            (r#"{"ok":false,"httpCode":422,"message":"Duplicate code"}"#, Some("Duplicate code")),
            (r#"{"responseState":0,"errors":[{"code":"X","message":"url is wrong"}]}"#, Some("url is wrong")),
            (r#"{"errors":["no room"],"responseState":0}"#, Some("no room")),
            (r#"{"ok":false,"reason":{"text":"deep"}}"#, Some("deep")),
            (r#""a bare text""#, Some("a bare text")),
            ("<html><head><title>Bad\tgateway</title></head>\n</html>", Some("Bad gateway")),
            ("plain\u{0}words", Some("plain words")),
            (r#"{"message":"it ends too ear"#, None),
            (r#" ["half"#, None),
            ("{}", None),
            ("[1,2]", None),
            ("", None),
        ] {
            assert_eq!(excerpt(body.as_bytes(), &[]).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn an_excerpt_reads_only_the_start_and_no_cut_word() {
        let secret = Secret::new("a-secret-of-ours");
        let long = "<br>".repeat(MAX_ERROR_BYTES / 4 - 2) + "a-secret-of-ours and more";
        assert_eq!(excerpt(long.as_bytes(), &[&secret]), None);

        let late = " ".repeat(MAX_ERROR_BYTES) + "late words";
        assert_eq!(excerpt(late.as_bytes(), &[]), None);
        let words = "a b ".repeat(MAX_ERROR_BYTES);
        assert_eq!(excerpt(words.as_bytes(), &[]).unwrap().chars().count(), MAX_EXCERPT_CHARS);
    }

    #[test]
    fn a_cut_excerpt_shows_no_part_of_a_secret() {
        let secrets = [&Secret::new("Bearer abc.def"), &Secret::new("pässword")];
        let long = "x y ".repeat(48) + "tok: abc.def pässword";

        let cleaned_excerpt = excerpt(long.as_bytes(), &secrets).unwrap();

        assert_eq!(cleaned_excerpt.chars().count(), MAX_EXCERPT_CHARS);
        assert!(cleaned_excerpt.ends_with("tok: [hi"), "{cleaned_excerpt}");
        for private in [
            "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
            "eyJhbGciOiJSUzI1NiJ9",
            "bearer 0123456789abcdef",
            "ana@example.com",
            "0f8fad5b-d9cb-469f-a165-70867728950e",
            "0f8fad5bd9cb469fa16570867728950e",
            "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0",
            "abc.def",
            "pässword",
        ] {
            let body = format!(r#"{{"message":"it has {private}, sadly"}}"#);
            assert_eq!(
                excerpt(body.as_bytes(), &secrets).unwrap().as_ref(),
                "it has [hidden], sadly",
                "{private}"
            );
        }
    }
}
