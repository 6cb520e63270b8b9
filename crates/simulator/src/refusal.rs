//! Why the gateway, or the API behind it, does not do what a request asks for.

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

use crate::{
    answer::{api_error, gateway_error, unknown_path},
    knobs::Tells,
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

    /// A path or method the gateway does not know.
    pub(super) fn unknown_path() -> Response {
        unknown_path()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut answer = match self.by {
            By::Gateway => gateway_error(self.status, &self.message),
            By::Api => api_error(self.status, &self.message),
        };
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }
}

/// 429, as the gateway words it.
pub(super) fn throttled(seconds: u64, tells: Tells) -> Refusal {
    const WHAT: &str = "Rate limit is exceeded.";
    let told = match tells {
        Tells::Both | Tells::Message => {
            Refusal::gateway(429, format!("{WHAT} Try again in {seconds} seconds."))
        }
        Tells::RetryAfter | Tells::Nothing => Refusal::gateway(429, WHAT),
    };
    with_header(told, seconds, tells)
}

/// 403, as the gateway words it.
pub(super) fn used_up(seconds: u64, tells: Tells) -> Refusal {
    const WHAT: &str = "Out of call volume quota.";
    let told = match tells {
        Tells::Both | Tells::Message => {
            Refusal::gateway(403, format!("{WHAT} Quota will be replenished in {}.", time_span(seconds)))
        }
        Tells::RetryAfter | Tells::Nothing => Refusal::gateway(403, WHAT),
    };
    with_header(told, seconds, tells)
}

fn with_header(mut refusal: Refusal, seconds: u64, tells: Tells) -> Refusal {
    if matches!(tells, Tells::Both | Tells::RetryAfter) {
        refusal.retry_after = Some(seconds);
    }
    refusal
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
