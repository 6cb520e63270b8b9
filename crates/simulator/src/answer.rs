//! The bodies of answers that are not data, the gateway's own and the API's; and what waits until an answer has gone.

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

/// JSON with a status. The fields of a struct keep their order, which a `Value` would sort.
pub fn json_answer(status: u16, body: &impl Serialize) -> Response {
    // Text, numbers and lists always become JSON.
    bytes_answer(status, serde_json::to_vec(body).unwrap_or_default())
}

/// JSON already written; left out where the status allows no body.
pub fn bytes_answer(status: u16, body: Vec<u8>) -> Response {
    of_type("application/json; charset=utf-8", status, body)
}

/// A page for people where JSON was asked for, as a proxy on the way would send it; left out where the status allows no body.
pub fn html_answer(status: u16) -> Response {
    let title = status_code(status).canonical_reason().unwrap_or("Error");
    let page = format!(
        "<!DOCTYPE html><html><head><title>{status} {title}</title></head><body><h1>{title}</h1>\
        <p>The page you asked for is not here just now.</p></body></html>"
    );
    of_type("text/html; charset=utf-8", status, page)
}

/// Plain text.
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

/// A body of so many bytes, at least two: an empty list padded with spaces where the status says that all went well, else a
/// page.
pub fn oversized_answer(status: u16, bytes: usize) -> Response {
    if status >= 400 {
        let mut answer = html_answer(status);
        *answer.body_mut() = Body::from(vec![b'x'; bytes]);
        return answer;
    }
    bytes_answer(status, format!("[{}]", " ".repeat(bytes.saturating_sub(2))).into_bytes())
}

/// A status alone.
pub fn empty_answer(status: u16) -> Response {
    let body = if may_have_body(status) { Body::empty() } else { Body::new(NoBody) };
    (status_code(status), body).into_response()
}

/// Whether an answer of this status may have a body, or tell its length.
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

/// An error of an API behind it: begins with `ok` and `httpCode`.
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

/// The gateway's answer for a path or method it does not know.
pub fn unknown_path() -> Response {
    gateway_error(404, "Resource not found")
}

/// An answer that is never sent.
pub(crate) fn hang_up() -> Response {
    Extension(HangUp).into_response()
}

/// The same answer; the guard is dropped once its body has been handed to the connection, or will never be.
pub fn then(answer: Response, guard: impl Send + Unpin + 'static) -> Response {
    answer.map(|body| Body::new(GuardedBody { body, _guard: guard }))
}

/// Callers give a number they have written down, or a knob's, which is one.
fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// No body, and no length of it either: told a length of 0, the server would send it where no length may be.
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

/// A body that keeps something until it is dropped.
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
