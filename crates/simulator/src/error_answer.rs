//! Errors of the gateway and of the API behind it.

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

use serde_json::json;

use crate::{
    answer::{api_error, empty_answer, gateway_error, html_answer, json_answer, text_answer},
    knobs::{MissingBody, RecordKnobs, RetryHint},
};

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    by: BodyFormat,
    status: u16,
    message: Cow<'static, str>,
    /// Seconds in `Retry-After`.
    retry_after: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyFormat {
    Gateway,
    Api,
    /// The API's error for an unknown record or webhook; its body is a knob.
    Missing(MissingBody),
}

impl ApiError {
    /// With the gateway's body.
    pub(super) fn gateway(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self { by: BodyFormat::Gateway, status, message: message.into(), retry_after: None }
    }

    /// With the API's body.
    pub(super) fn api(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self { by: BodyFormat::Api, status, message: message.into(), retry_after: None }
    }

    /// For a record or a webhook that does not exist.
    pub(super) fn missing(knobs: &RecordKnobs, message: impl Into<Cow<'static, str>>) -> Self {
        let (by, status) = (BodyFormat::Missing(knobs.missing_body), knobs.missing_status.get());
        Self { by, status, message: message.into(), retry_after: None }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, message) = (self.status, &*self.message);
        let mut answer = match self.by {
            BodyFormat::Gateway => gateway_error(status, message),
            BodyFormat::Api | BodyFormat::Missing(MissingBody::Api) => api_error(status, message),
            BodyFormat::Missing(MissingBody::Json) => {
                json_answer(status, &json!({ "error": { "code": "RecordNotFound", "detail": message } }))
            }
            BodyFormat::Missing(MissingBody::Gateway) => gateway_error(status, "Resource not found"),
            BodyFormat::Missing(MissingBody::Empty) => empty_answer(status),
            BodyFormat::Missing(MissingBody::Text) => text_answer(status, "Not here."),
            BodyFormat::Missing(MissingBody::Html) => html_answer(status),
        };
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }
}

/// 429, in the gateway's words.
pub(super) fn throttled(seconds: u64, tells: RetryHint) -> ApiError {
    let again = format!("Try again in {seconds} seconds.");
    with_retry_hint(429, "Rate limit is exceeded.", &again, seconds, tells)
}

/// 403, in the gateway's words.
pub(super) fn used_up(seconds: u64, tells: RetryHint) -> ApiError {
    let again = format!("Quota will be replenished in {}.", time_span(seconds));
    with_retry_hint(403, "Out of call volume quota.", &again, seconds, tells)
}

fn with_retry_hint(status: u16, what: &'static str, again: &str, seconds: u64, tells: RetryHint) -> ApiError {
    let message: Cow<'static, str> = match tells {
        RetryHint::Both | RetryHint::Message => format!("{what} {again}").into(),
        RetryHint::RetryAfter | RetryHint::Nothing => what.into(),
    };
    let retry_after = matches!(tells, RetryHint::Both | RetryHint::RetryAfter).then_some(seconds);
    ApiError { retry_after, ..ApiError::gateway(status, message) }
}

/// `HH:MM:SS`, preceded by days where there are any, as .NET formats a time span.
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
