//! What is answered: a status, and no more than that. What an answer does not say, nobody learns from it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::{body::Body, response::Response};
use http::{HeaderValue, StatusCode, Version, header};

use base::metrics::RefusalReason;
use server::CloseAfter;

/// Most that is added to `Retry-After`, in seconds.
const SPREAD: u64 = 2;

/// The delivery is durable, or was nothing but a question.
pub(super) fn taken() -> Response {
    empty(StatusCode::OK)
}

/// Not now.
pub(super) fn later(after: Duration) -> Response {
    let spread = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_micros());
    let after = after.as_secs() + u64::from(spread) % (SPREAD + 1);
    let mut response = empty(StatusCode::SERVICE_UNAVAILABLE);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after));
    response
}

/// The text that was asked to be echoed, and that nobody shall take for anything but text.
pub(super) fn echo(guid: &str) -> Response {
    let mut response = Response::new(Body::from(guid.to_owned()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Not at all. The connection ends with the answer where `ends` says so, and where a rest of the body was left unread: nothing
/// after it could be told from that rest.
pub(super) fn refused(
    refusal: RefusalReason,
    version: Version,
    rest: bool,
    ends: bool,
    retry_after: Duration,
) -> Response {
    let mut response = match refusal {
        RefusalReason::Route => empty(StatusCode::NOT_FOUND),
        RefusalReason::Starting
        | RefusalReason::Faulty
        | RefusalReason::Stopped
        | RefusalReason::Shed
        | RefusalReason::Throttled => later(retry_after),
        RefusalReason::Unknown
        | RefusalReason::Source
        | RefusalReason::Unsigned
        | RefusalReason::Signature => empty(StatusCode::UNAUTHORIZED),
        RefusalReason::Echo | RefusalReason::Broken => empty(StatusCode::BAD_REQUEST),
        RefusalReason::Oversized | RefusalReason::OversizedVerified => empty(StatusCode::PAYLOAD_TOO_LARGE),
        RefusalReason::Slow => empty(StatusCode::REQUEST_TIMEOUT),
    };
    if ends {
        response.extensions_mut().insert(CloseAfter);
    }
    // HTTP/2 has no such header; there a rest ends its stream.
    if (rest || ends) && version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}
