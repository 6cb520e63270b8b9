//! The bodies of answers that are not data: the gateway's own, and the API's.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// JSON with a status.
#[must_use]
pub fn json_answer(status: u16, body: &Value) -> Response {
    bytes_answer(status, body.to_string().into_bytes())
}

/// JSON already written.
#[must_use]
pub fn bytes_answer(status: u16, body: Vec<u8>) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    (status, [(header::CONTENT_TYPE, json)], body).into_response()
}

/// An error of the gateway: `statusCode` and `message`.
#[must_use]
pub fn gateway_error(status: u16, message: &str) -> Response {
    json_answer(status, &json!({ "statusCode": status, "message": message }))
}

/// An error of an API behind it: begins with `ok` and `httpCode`.
#[must_use]
pub fn api_error(status: u16, message: &str) -> Response {
    // Written by hand because the order of the first members is known and serde_json would sort them.
    let text = format!(r#"{{"ok":false,"httpCode":{status},"message":{}}}"#, Value::from(message));
    bytes_answer(status, text.into_bytes())
}

/// The gateway's answer for a path or method it does not know.
#[must_use]
pub fn unknown_path() -> Response {
    gateway_error(404, "Resource not found")
}
