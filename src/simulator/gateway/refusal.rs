//! Why the gateway, or the API behind it, does not do what a request asks for.

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

use crate::simulator::answer::{api_error, gateway_error, unknown_path};

/// An answer that is no data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    by: By,
    status: u16,
    message: Cow<'static, str>,
    /// Seconds in `Retry-After`.
    pub(super) retry_after: Option<u64>,
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
