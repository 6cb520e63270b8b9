//! Hides the provider's words in answers to callers that may not change connectors: traces and messages quote them (`Quote` of the
//! model crate marks each quote), and such a caller sees the status and our verdict on a failed call, but not what the configured
//! host answered.

use std::borrow::Cow;

use axum::{
    body::{Body, to_bytes},
    http::header,
    response::{IntoResponse, Response},
};

use model::without_quotes;

use super::answer::Refusal;

/// Limit on the answers that are searched for quotes; every answer is in memory already.
const ANSWER_LIMIT: usize = 256 * 1024 * 1024;

/// The same answer without quotes.
pub(super) async fn remove(answer: Response) -> Response {
    let (mut parts, body) = answer.into_parts();
    let Ok(bytes) = to_bytes(body, ANSWER_LIMIT).await else {
        return Refusal::new(500, "the answer is too large for a caller that may only read").into_response();
    };
    let Ok(Cow::Owned(kept)) = std::str::from_utf8(&bytes).map(without_quotes) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(kept))
}
