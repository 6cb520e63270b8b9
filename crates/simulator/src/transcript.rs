//! Recorded answers of a provider, which the gateway returns: JSON lines, as `tributary probe --save` writes them.
//!
//! ```text
//! {"transcript": 1}
//! {"path": "accounting/api/accounts/{id}", "id": "a", "query": {}, "context": {"clientId": "c"},
//!  "answers": [{"status": 200, "headers": {}, "aheadMs": 0, "json": {}}]}
//! ```
//!
//! - A request gets the answers to the same path, query and context, one after the other; the last one repeats.
//! - Key, token and method are not checked: only the identity provider is simulated.
//! - An answer is dated as far ahead of the simulator's clock as it was ahead of its reader's.

use std::collections::{BTreeMap, HashMap, VecDeque};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Uri, header},
    response::Response,
};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use url::form_urlencoded;

use super::{
    answer::{bytes_answer, gateway_error},
    clock::{SECOND, Ticks},
};

/// The version that can be read.
const VERSION: u64 = 1;
/// Status for a request that is not in the transcript.
const UNKNOWN_STATUS: u16 = 501;

/// Recorded answers by request.
#[derive(Debug)]
pub struct Transcript(Mutex<HashMap<String, VecDeque<RecordedAnswer>>>);

/// A line after the first.
#[derive(Debug, Deserialize)]
struct TranscriptLine {
    path: String,
    id: String,
    query: BTreeMap<String, String>,
    /// `null` if it was not sent, `"none"`, or an object with `clientId`.
    context: Value,
    answers: Vec<RecordedAnswer>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordedAnswer {
    status: u16,
    headers: BTreeMap<String, String>,
    /// How far the provider's clock was ahead.
    ahead_ms: Option<i64>,
    #[serde(default, deserialize_with = "present")]
    json: Option<Value>,
    /// A body that is no JSON.
    text: Option<String>,
}

impl Transcript {
    /// Reads a transcript.
    ///
    /// # Errors
    /// The first line that cannot be used, with its number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = (1..).zip(text.lines());
        let version = lines.next().and_then(|(_, line)| serde_json::from_str::<Value>(line).ok());
        if version.is_none_or(|head| head["transcript"] != VERSION) {
            return Err(format!(
                "line 1 is not {{\"transcript\": {VERSION}}}: it is no transcript, or of another version"
            ));
        }
        let mut found: HashMap<String, VecDeque<RecordedAnswer>> = HashMap::new();
        for (number, line) in lines {
            let line: TranscriptLine =
                serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
            let path = format!("/{}", line.path.replace("{id}", &line.id));
            found.entry(key(&path, &line.query, &line.context)).or_default().extend(line.answers);
        }
        Ok(Self(Mutex::new(found)))
    }

    /// The next recorded answer to a request, with its context as in the transcript.
    pub(super) fn answer(&self, uri: &Uri, context: &Value, now: Ticks) -> Response {
        let query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let mut recorded = self.0.lock();
        let answers = recorded.get_mut(&key(uri.path(), &query, context));
        let next =
            answers.and_then(
                |answers| {
                    if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
                },
            );
        match next {
            Some(next) => next.response(now),
            None => gateway_error(UNKNOWN_STATUS, "This request is not in the transcript."),
        }
    }
}

impl RecordedAnswer {
    fn response(self, now: Ticks) -> Response {
        let body = match (&self.json, self.text) {
            (Some(json), _) => json.to_string(),
            (None, text) => text.unwrap_or_default(),
        };
        let mut answer = bytes_answer(self.status, Vec::new());
        *answer.body_mut() = Body::from(body);
        answer.headers_mut().remove(header::CONTENT_TYPE);
        for (name, value) in &self.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                answer.headers_mut().insert(name, value);
            }
        }
        let ahead = self.ahead_ms.unwrap_or_default().saturating_mul(SECOND / 1_000);
        if let Ok(date) = HeaderValue::try_from(Ticks(now.0.saturating_add(ahead)).http_date()) {
            answer.headers_mut().insert(header::DATE, date);
        }
        answer
    }
}

/// A member that is there, also if it is `null`.
fn present<'de, D: Deserializer<'de>>(member: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(member).map(Some)
}

fn key(path: &str, query: &BTreeMap<String, String>, context: &Value) -> String {
    format!("{path} {query:?} {context}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str = concat!(
        r#"{"transcript":1,"company":null}"#,
        "\n",
        r#"{"path":"a/{id}","id":"x","query":{"n":"1"},"context":{"clientId":"c"},"answers":["#,
        r#"{"status":429,"headers":{"retry-after":"1"},"aheadMs":0},"#,
        r#"{"status":200,"headers":{},"aheadMs":null,"json":{"b":1}}]}"#,
        "\n",
        r#"{"path":"a","id":"","query":{},"context":"none","answers":["#,
        r#"{"status":404,"headers":{"content-type":"text/html"},"aheadMs":0,"text":"(left out)"}]}"#,
    );

    #[test]
    fn answers_follow_in_order_and_the_last_repeats() {
        let transcript = Transcript::parse(TEXT).unwrap();
        let (company, none) = (json!({ "clientId": "c" }), json!("none"));
        let status = |uri: &'static str, context: &Value| {
            transcript.answer(&Uri::from_static(uri), context, Ticks(0)).status().as_u16()
        };

        assert_eq!([0; 3].map(|_| status("/a/x?n=1", &company)), [429, 200, 200]);
        assert_eq!(status("/a", &none), 404);
        for (uri, context) in [("/a", &company), ("/a/x", &company), ("/b", &none)] {
            assert_eq!(status(uri, context), UNKNOWN_STATUS, "{uri}");
        }
    }

    #[test]
    fn null_is_a_body_and_a_missing_member_is_none() {
        let answer = |body: &str| {
            let text = format!(r#"{{"status":200,"headers":{{}},"aheadMs":0{body}}}"#);
            serde_json::from_str::<RecordedAnswer>(&text).unwrap().json
        };

        assert_eq!([answer(r#","json":null"#), answer("")], [Some(Value::Null), None]);
    }

    #[test]
    fn a_line_that_cannot_be_used_is_named() {
        assert!(Transcript::parse("").unwrap_err().contains("line 1"));
        assert!(Transcript::parse(r#"{"transcript":2}"#).unwrap_err().contains("line 1"));
        assert!(Transcript::parse("{\"transcript\":1}\n{}").unwrap_err().contains("line 2"));
    }
}
