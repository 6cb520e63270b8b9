//! Bodies of answers other than data, and guards that live until an answer has been sent.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    Extension,
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use http_body::{Frame, SizeHint};
use serde::Serialize;

use server::HangUp;

/// A JSON answer. A struct keeps the order of its fields, which a `Value` would sort.
pub fn json_answer(status: u16, body: &impl Serialize) -> Response {
    // Text, numbers and lists always serialize.
    bytes_answer(status, serde_json::to_vec(body).unwrap_or_default())
}

/// An answer with serialized JSON; without a body where the status allows none.
pub fn bytes_answer(status: u16, body: Vec<u8>) -> Response {
    of_type("application/json; charset=utf-8", status, body)
}

/// An HTML error page, as a proxy might send; without a body where the status allows none.
pub fn html_answer(status: u16) -> Response {
    let title = status_code(status).canonical_reason().unwrap_or("Error");
    let page = format!(
        "<!DOCTYPE html><html><head><title>{status} {title}</title></head><body><h1>{title}</h1>\
        <p>The page you asked for is not here just now.</p></body></html>"
    );
    of_type("text/html; charset=utf-8", status, page)
}

/// A plain text answer.
pub fn text_answer(status: u16, text: &'static str) -> Response {
    of_type("text/plain; charset=utf-8", status, text)
}

fn of_type(kind: &'static str, status: u16, body: impl Into<Body>) -> Response {
    if !may_have_body(status) {
        return empty_answer(status);
    }
    let kind = HeaderValue::from_static(kind);
    (status_code(status), [(header::CONTENT_TYPE, kind)], body.into()).into_response()
}

/// A body of `bytes` bytes, at least two: an empty list padded with spaces, or HTML for an error status.
pub fn oversized_answer(status: u16, bytes: usize) -> Response {
    if status >= 400 {
        let mut answer = html_answer(status);
        *answer.body_mut() = Body::from(vec![b'x'; bytes]);
        return answer;
    }
    bytes_answer(status, format!("[{}]", " ".repeat(bytes.saturating_sub(2))).into_bytes())
}

/// A status without a body.
pub fn empty_answer(status: u16) -> Response {
    let body = if may_have_body(status) { Body::empty() } else { Body::new(NoBody) };
    (status_code(status), body).into_response()
}

/// Whether an answer with this status may have a body or a `Content-Length`.
pub const fn may_have_body(status: u16) -> bool {
    !matches!(status, 204 | 304)
}

/// An error of the gateway: `statusCode` and `message`.
pub fn gateway_error(status: u16, message: &str) -> Response {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Error<'a> {
        status_code: u16,
        message: &'a str,
    }
    json_answer(status, &Error { status_code: status, message })
}

/// An error of an API; it begins with `ok` and `httpCode`.
pub fn api_error(status: u16, message: &str) -> Response {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Error<'a> {
        ok: bool,
        http_code: u16,
        message: &'a str,
    }
    json_answer(status, &Error { ok: false, http_code: status, message })
}

/// The gateway's answer to an unknown path or method.
pub fn unknown_path() -> Response {
    gateway_error(404, "Resource not found")
}

/// Ends the connection instead of answering.
pub(crate) fn hang_up() -> Response {
    Extension(HangUp).into_response()
}

/// Drops the guard once the body has been handed to the connection or will never be.
pub fn then(answer: Response, guard: impl Send + Unpin + 'static) -> Response {
    answer.map(|body| Body::new(GuardedBody { body, _guard: guard }))
}

/// Callers pass constants or knobs, which are valid.
fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A body without a length: with a length of 0 the server would send `Content-Length` where it is not allowed.
struct NoBody;

impl http_body::Body for NoBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

/// A body that holds a guard until it is dropped.
struct GuardedBody<G> {
    body: Body,
    _guard: G,
}

impl<G: Unpin> http_body::Body for GuardedBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_guard_is_dropped_with_the_body() {
        let guard = Arc::new(());
        let mut body = then(bytes_answer(200, b"body".to_vec()), Arc::clone(&guard)).into_body();

        let length = http_body::Body::size_hint(&body).exact();
        let read =
            std::future::poll_fn(|context| http_body::Body::poll_frame(Pin::new(&mut body), context)).await;
        let before = Arc::strong_count(&guard);
        drop(body);

        assert_eq!(read.unwrap().unwrap().into_data().unwrap(), "body");
        assert_eq!((length, before, Arc::strong_count(&guard)), (Some(4), 2, 1));
    }
}
