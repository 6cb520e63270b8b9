//! Errors of the gateway and of the API behind it.

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
    body: MissingBody,
    status: u16,
    message: String,
    /// Seconds in `Retry-After`.
    retry_after: Option<u64>,
}

impl ApiError {
    /// With the gateway's body.
    pub(super) fn gateway(status: u16, message: impl Into<String>) -> Self {
        Self { body: MissingBody::Gateway, status, message: message.into(), retry_after: None }
    }

    /// With the API's body.
    pub(super) fn api(status: u16, message: impl Into<String>) -> Self {
        Self { body: MissingBody::Api, ..Self::gateway(status, message) }
    }

    /// For a record or a webhook that does not exist; the body is a knob.
    pub(super) fn missing(knobs: &RecordKnobs, message: &str) -> Self {
        let body = knobs.missing_body;
        let message = if body == MissingBody::Gateway { "Resource not found" } else { message };
        Self { body, ..Self::gateway(knobs.missing_status.get(), message) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, message) = (self.status, &*self.message);
        let mut answer = match self.body {
            MissingBody::Gateway => gateway_error(status, message),
            MissingBody::Api => api_error(status, message),
            MissingBody::Json => {
                json_answer(status, &json!({ "error": { "code": "RecordNotFound", "detail": message } }))
            }
            MissingBody::Empty => empty_answer(status),
            MissingBody::Text => text_answer(status, "Not here."),
            MissingBody::Html => html_answer(status),
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

fn with_retry_hint(status: u16, what: &str, again: &str, seconds: u64, tells: RetryHint) -> ApiError {
    let message = match tells {
        RetryHint::Both | RetryHint::Message => format!("{what} {again}"),
        RetryHint::RetryAfter | RetryHint::Nothing => what.to_owned(),
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
