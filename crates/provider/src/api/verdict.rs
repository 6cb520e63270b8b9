//! The verdict on an unsuccessful response, by status, headers and body.
//!
//! The gateway and the APIs have different error bodies: `{"statusCode", "message"}` and `{"ok": false, "httpCode", …}`. Which
//! of them answered decides what a 401, 403 or 404 means.

use std::{sync::LazyLock, time::Duration};

use regex::{Captures, Regex};
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use serde_json::Value;

use super::{
    body,
    error::{Acted, AnsweredBy, Cause, Limit},
};
use crate::auth::http::{ProviderClock, retry_after};

/// Upper bound of a wait that a message names.
const MAX_WAIT: Duration = Duration::from_secs(3_600);
/// Lower bound of a named wait; zero would be a busy loop.
const MIN_WAIT: Duration = Duration::from_millis(100);

/// The cause of a response outside 2xx. `with_token`: whether the request had a token.
pub(super) fn refusal(
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
    with_token: bool,
    clock: &ProviderClock,
) -> Cause {
    let error = ApiErrorBody::read(body);
    let header = || retry_after(headers, clock).map(|wait| wait.max(MIN_WAIT));
    let named = || wait_in(&error.message).map(|wait| wait.clamp(MIN_WAIT, MAX_WAIT));
    let again = || header().or_else(named);
    match status {
        300..=399 => Cause::Redirect,
        401 if error.contains("subscription key") || asks_for_key(headers) => Cause::Key,
        401 if with_token => Cause::Token { remedy: None },
        401 => Cause::Credentials,
        403 if header().is_some() || error.contains("call volume quota") => Cause::Quota { again: again() },
        403 => Cause::Forbidden { by: error.by },
        404 => Cause::NotFound { by: error.by },
        408 => Cause::Timeout { limit: Limit::Provider },
        410 => Cause::Gone { by: error.by },
        429 => Cause::Throttled { again: again() },
        500.. => Cause::Server { again: header() },
        _ => Cause::Refused,
    }
}

/// Whether the provider may have acted. A rejected request was not executed.
pub(super) const fn acted(status: u16) -> Acted {
    match status {
        200..=299 => Acted::Yes,
        408 | 500.. => Acted::Unknown,
        _ => Acted::No,
    }
}

/// The parts of an error body that decide.
struct ApiErrorBody {
    by: AnsweredBy,
    message: String,
}

impl AnsweredBy {
    /// By the members of an error body.
    pub(super) fn read(body: &[u8]) -> Self {
        ApiErrorBody::read(body).by
    }
}

impl ApiErrorBody {
    fn read(body: &[u8]) -> Self {
        let Ok(Value::Object(members)) = serde_json::from_slice(body::without_bom(body)) else {
            return Self { by: AnsweredBy::Unknown, message: String::new() };
        };
        let by = if members.contains_key("statusCode") {
            AnsweredBy::Gateway
        } else if members.contains_key("httpCode") || members.contains_key("ok") {
            AnsweredBy::Api
        } else {
            AnsweredBy::Unknown
        };
        let message = members.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { by, message }
    }

    fn contains(&self, words: &str) -> bool {
        self.message.to_ascii_lowercase().contains(words)
    }
}

/// The gateway names the missing header in its challenge.
fn asks_for_key(headers: &HeaderMap) -> bool {
    headers.get_all(WWW_AUTHENTICATE).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("ocp-apim-subscription-key"))
    })
}

/// Waits in messages: `17 seconds`, and a time span of .NET such as `in 1.02:03:04`. A time without such a word before it may be a
/// time of day.
static WAITS: LazyLock<Option<[Regex; 2]>> = LazyLock::new(|| {
    let count = r"([0-9]+)[.();]*[\s,]+[.();]*(?:(minut[eo])|s\b|sec\b|second|segundo)";
    let span = r"(?:in|en|for|after)[.();]*[\s,]+[.();]*(?:([0-9]{1,9})\.)?([0-9]{1,9}):([0-5]?[0-9]):([0-5]?[0-9])(?:\.[^\s,]*)?[.();]*(?:[\s,]|$)";
    let word = |pattern| Regex::new(&format!(r"(?i)(?:^|[\s,])[.();]*{pattern}")).ok();
    Some([word(count)?, word(span)?])
});

/// The wait that a message names.
fn wait_in(message: &str) -> Option<Duration> {
    let [count, span] = WAITS.as_ref()?;
    let number = |found: &Captures<'_>, group: usize| -> Option<u64> {
        found.get(group).map_or(Some(0), |digits| digits.as_str().parse().ok())
    };
    if let Some(found) = count.captures(message) {
        let unit = if found.get(2).is_some() { 60 } else { 1 };
        return Some(Duration::from_secs(number(&found, 1)?.saturating_mul(unit)));
    }
    let found = span.captures(message)?;
    let hours = number(&found, 1)? * 24 + number(&found, 2)?;
    Some(Duration::from_secs((hours * 60 + number(&found, 3)?) * 60 + number(&found, 4)?))
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue, RETRY_AFTER};

    use base::retry::Retry;

    use super::*;
    use crate::api::Reach;

    const KEY: &str = r#"{"statusCode":401,"message":"Access denied due to invalid subscription key. Make sure to provide a valid key."}"#;
    const BEARER: &str = r#"{"statusCode":401,"message":"Access token is missing or invalid."}"#;
    const API: &str = r#"{"ok":false,"httpCode":0,"message":"no"}"#;
    const GATEWAY: &str = r#"{"statusCode":0,"message":"no"}"#;
    const RATE: &str = r#"{"statusCode":429,"message":"Rate limit is exceeded. Try again in 17 seconds."}"#;
    const QUOTA: &str =
        r#"{"statusCode":403,"message":"Out of call volume quota. Quota will be replenished in 00:02:03."}"#;
    const HTML: &str = "<html><body>Bad gateway: try again in 5 seconds</body></html>";

    fn judged(status: u16, header: Option<(HeaderName, &str)>, body: &str, with_token: bool) -> Cause {
        let clock = ProviderClock::new(Duration::from_secs(300));
        let headers =
            header.into_iter().map(|(name, value)| (name, HeaderValue::from_str(value).unwrap())).collect();
        refusal(status, &headers, body.as_bytes(), with_token, &clock)
    }

    #[test]
    fn every_answer_has_its_cause_verdict_and_reach() {
        use Reach::{Company, Everything, Grant, Record};
        let after = |seconds| Retry::After(Duration::from_secs(seconds));
        let retry_after = |text| Some((RETRY_AFTER, text));
        let challenge = Some((
            WWW_AUTHENTICATE,
            r#"AzureApiManagementKey realm="x",name="Ocp-Apim-Subscription-Key",type="header""#,
        ));
        let rows = [
            (302, None, "", "Redirect", Retry::Never, Everything),
            (304, None, "", "Redirect", Retry::Never, Everything),
            (400, None, API, "Refused", Retry::Never, Record),
            (409, None, API, "Refused", Retry::Never, Record),
            (415, None, API, "Refused", Retry::Never, Record),
            (422, None, API, "Refused", Retry::Never, Record),
            (418, None, "", "Refused", Retry::Never, Record),
            (401, None, KEY, "Key", Retry::Never, Everything),
            (401, challenge.clone(), "", "Key", Retry::Never, Everything),
            (401, None, BEARER, "Token { remedy: None }", Retry::Never, Grant),
            (401, None, API, "Token { remedy: None }", Retry::Never, Grant),
            (401, None, "", "Token { remedy: None }", Retry::Never, Grant),
            (401, None, HTML, "Token { remedy: None }", Retry::Never, Grant),
            (403, None, QUOTA, "Quota { again: Some(123s) }", after(123), Everything),
            (403, retry_after("60"), QUOTA, "Quota { again: Some(60s) }", after(60), Everything),
            (403, retry_after("60"), "", "Quota { again: Some(60s) }", after(60), Everything),
            (403, retry_after("90000"), QUOTA, "Quota { again: Some(3600s) }", after(3_600), Everything),
            (
                403,
                None,
                r#"{"message":"Out of call volume quota."}"#,
                "Quota { again: None }",
                Retry::Later,
                Everything,
            ),
            (403, None, API, "Forbidden { by: Api }", Retry::Never, Company),
            (403, None, GATEWAY, "Forbidden { by: Gateway }", Retry::Never, Everything),
            (403, None, HTML, "Forbidden { by: Unknown }", Retry::Never, Company),
            (404, None, GATEWAY, "NotFound { by: Gateway }", Retry::Never, Record),
            (404, None, API, "NotFound { by: Api }", Retry::Never, Record),
            (404, None, HTML, "NotFound { by: Unknown }", Retry::Never, Record),
            (404, None, "", "NotFound { by: Unknown }", Retry::Never, Record),
            (410, None, API, "Gone { by: Api }", Retry::Never, Record),
            (410, None, GATEWAY, "Gone { by: Gateway }", Retry::Never, Record),
            (410, None, HTML, "Gone { by: Unknown }", Retry::Never, Record),
            (410, None, "", "Gone { by: Unknown }", Retry::Never, Record),
            (408, None, "", "Timeout { limit: Provider }", Retry::Later, Everything),
            (429, None, RATE, "Throttled { again: Some(17s) }", after(17), Everything),
            (429, retry_after("3"), RATE, "Throttled { again: Some(3s) }", after(3), Everything),
            (
                429,
                retry_after("0"),
                "",
                "Throttled { again: Some(100ms) }",
                { Retry::After(Duration::from_millis(100)) },
                Everything,
            ),
            (429, retry_after("soon"), RATE, "Throttled { again: Some(17s) }", after(17), Everything),
            (429, None, GATEWAY, "Throttled { again: None }", Retry::Later, Everything),
            (429, None, HTML, "Throttled { again: None }", Retry::Later, Everything),
            (500, None, API, "Server { again: None }", Retry::Later, Everything),
            (501, None, "", "Server { again: None }", Retry::Later, Everything),
            (502, None, HTML, "Server { again: None }", Retry::Later, Everything),
            (503, retry_after("9"), GATEWAY, "Server { again: Some(9s) }", after(9), Everything),
            (504, None, GATEWAY, "Server { again: None }", Retry::Later, Everything),
            (505, None, "", "Server { again: None }", Retry::Later, Everything),
        ];

        for (status, header, body, cause, verdict, reach) in rows {
            let found = judged(status, header, body, true);

            assert_eq!(format!("{found:?}"), cause, "{status} {body}");
            let (retry, scope, _) = found.verdict();
            assert_eq!((retry, scope), (verdict, reach), "{status} {body}");
        }
        assert!(matches!(judged(401, None, API, false), Cause::Credentials));
        assert!(matches!(judged(401, None, KEY, false), Cause::Key));
    }

    #[test]
    fn a_wait_is_found_in_any_wording_of_a_message() {
        for (message, seconds) in [
            ("Rate limit is exceeded. Try again in 17 seconds.", Some(17)),
            ("try again in 1 second", Some(1)),
            ("(retry in 5 seconds)", Some(5)),
            ("Inténtelo en 30 segundos.", Some(30)),
            ("wait 2 minutes, please", Some(120)),
            ("Quota will be replenished in 00:02:03.", Some(123)),
            ("Quota will be replenished in 1.00:00:01.", Some(86_401)),
            ("in 00:00:02.5000000", Some(2)),
            ("Rate limit exceeded at 12:34:56. Try again in 5 seconds.", Some(5)),
            ("Rate limit exceeded at 12:34:56.", None),
            ("Rate limit exceeded at 12:34:56, try again in 00:01:00.", Some(60)),
            ("at 12:34", None),
            ("at 12:99:00", None),
            ("for -5 seconds", None),
            ("99999999999999999999999 seconds", None),
            ("seconds", None),
            ("17", None),
            ("", None),
        ] {
            assert_eq!(wait_in(message), seconds.map(Duration::from_secs), "{message}");
        }
    }
}
