//! Answers: JSON, empty, or an error.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::connect::herder;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A JSON answer with this status.
pub(super) fn json(status: u16, content: &impl Serialize) -> Response {
    match serde_json::to_vec(content) {
        Ok(body) => with_body(code(status), body),
        Err(error) => {
            tracing::error!(%error, "could not write an answer as JSON");
            Refusal::new(500, "the answer could not be written").into_response()
        }
    }
}

/// A handler's answer.
pub(super) type Answer = Result<Response, Refusal>;

/// The herder's result as JSON, with this status if it succeeded.
pub(super) fn result(status: u16, result: Result<impl Serialize, herder::Error>) -> Answer {
    Ok(json(status, &result?))
}

/// The same for a result without content.
pub(super) fn done(status: u16, done: Result<(), herder::Error>) -> Answer {
    done?;
    Ok((code(status), Body::empty()).into_response())
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    status: u16,
    message: String,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error_code: u16,
    message: &'a str,
}

impl Refusal {
    pub(super) fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    pub(super) fn no_path() -> Self {
        Self::new(404, "HTTP 404 Not Found")
    }
}

impl From<herder::Error> for Refusal {
    fn from(error: herder::Error) -> Self {
        let status = error.status();
        if status >= 500 {
            tracing::warn!(status, %error, "could not serve a request");
        }
        Self { status, message: error.to_string() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = ErrorBody { error_code: self.status, message: &self.message };
        // Serializing a number and a text cannot fail.
        with_body(code(self.status), serde_json::to_vec(&body).unwrap_or_default())
    }
}

fn with_body(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], body).into_response()
}

fn code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
