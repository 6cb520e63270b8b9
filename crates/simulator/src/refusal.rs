//! Why the gateway, or the API behind it, does not do what a request asks for.

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

use serde_json::json;

use crate::{
    answer::{api_error, empty_answer, gateway_error, html_answer, json_answer, text_answer},
    knobs::{MissingBody, RecordKnobs, Tells},
};

/// An answer that is no data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    by: By,
    status: u16,
    message: Cow<'static, str>,
    /// Seconds in `Retry-After`.
    retry_after: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Gateway,
    Api,
    /// The API, about a record or a webhook that is not there.
    Missing(MissingBody),
}

impl Refusal {
    /// The gateway's own body.
    pub(super) fn gateway(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self { by: By::Gateway, status, message: message.into(), retry_after: None }
    }

    /// The body of the API behind it.
    pub(super) fn api(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self { by: By::Api, status, message: message.into(), retry_after: None }
    }

    /// The answer for a record or a webhook that is not there.
    pub(super) fn missing(knobs: &RecordKnobs, message: impl Into<Cow<'static, str>>) -> Self {
        let (by, status) = (By::Missing(knobs.missing_body), knobs.missing_status.get());
        Self { by, status, message: message.into(), retry_after: None }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, message) = (self.status, &*self.message);
        let mut answer = match self.by {
            By::Gateway => gateway_error(status, message),
            By::Api | By::Missing(MissingBody::Api) => api_error(status, message),
            By::Missing(MissingBody::Json) => {
                json_answer(status, &json!({ "error": { "code": "RecordNotFound", "detail": message } }))
            }
            By::Missing(MissingBody::Gateway) => gateway_error(status, "Resource not found"),
            By::Missing(MissingBody::Empty) => empty_answer(status),
            By::Missing(MissingBody::Text) => text_answer(status, "Not here."),
            By::Missing(MissingBody::Html) => html_answer(status),
        };
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }
}

/// 429, as the gateway words it.
pub(super) fn throttled(seconds: u64, tells: Tells) -> Refusal {
    let again = format!("Try again in {seconds} seconds.");
    come_back(429, "Rate limit is exceeded.", &again, seconds, tells)
}

/// 403, as the gateway words it.
pub(super) fn used_up(seconds: u64, tells: Tells) -> Refusal {
    let again = format!("Quota will be replenished in {}.", time_span(seconds));
    come_back(403, "Out of call volume quota.", &again, seconds, tells)
}

fn come_back(status: u16, what: &'static str, again: &str, seconds: u64, tells: Tells) -> Refusal {
    let message: Cow<'static, str> = match tells {
        Tells::Both | Tells::Message => format!("{what} {again}").into(),
        Tells::RetryAfter | Tells::Nothing => what.into(),
    };
    let retry_after = matches!(tells, Tells::Both | Tells::RetryAfter).then_some(seconds);
    Refusal { retry_after, ..Refusal::gateway(status, message) }
}

/// `HH:MM:SS`, with the days before it where there are any, as .NET writes a time span.
fn time_span(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    let days = if days > 0 { format!("{days}.") } else { String::new() };
    format!("{days}{hours:02}:{minutes:02}:{seconds:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_span_has_days_only_where_there_are_some() {
        assert_eq!(time_span(0), "00:00:00");
        assert_eq!(time_span(86_399), "23:59:59");
        assert_eq!(time_span(90_061), "1.01:01:01");
    }
}
