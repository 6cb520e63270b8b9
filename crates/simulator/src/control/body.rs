//! Reading and answering control calls.

use axum::{
    body::{Body, Bytes},
    extract::{self, FromRequestParts},
    http::{HeaderValue, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{InvalidSetting, answer::json_answer};

/// Bytes of one piece of a long list.
const PIECE: usize = 64 * 1024;

/// An answer, or why there is none.
pub(super) type ControlResult = Result<Response, ControlError>;

/// A call that was not understood, or names what is not there.
#[derive(Debug)]
pub(super) struct ControlError {
    status: u16,
    message: String,
}

impl ControlError {
    pub(super) fn bad(message: &str) -> Self {
        Self { status: 400, message: message.to_owned() }
    }

    pub(super) fn missing(message: &str) -> Self {
        Self { status: 404, message: message.to_owned() }
    }
}

impl From<serde_json::Error> for ControlError {
    fn from(error: serde_json::Error) -> Self {
        Self::bad(&error.to_string())
    }
}

impl From<Vec<InvalidSetting>> for ControlError {
    fn from(unfit: Vec<InvalidSetting>) -> Self {
        Self::bad(&unfit.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        json_answer(self.status, &json!({ "message": self.message }))
    }
}

/// What stands in the path; axum's own would refuse with bare text.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ControlError> {
        let read = extract::Path::from_request_parts(parts, state).await;
        read.map(|extract::Path(value)| Self(value))
            .map_err(|refusal| ControlError::bad(&refusal.body_text()))
    }
}

/// What stands in the query; axum's own would refuse with bare text.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ControlError> {
        let read = extract::Query::from_request_parts(parts, state).await;
        read.map(|extract::Query(value)| Self(value))
            .map_err(|refusal| ControlError::bad(&refusal.body_text()))
    }
}

pub(super) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ControlError> {
    Ok(serde_json::from_slice(body)?)
}

/// The same where a body may be left out.
pub(super) fn parse_or_default<T: DeserializeOwned + Default>(body: &Bytes) -> Result<T, ControlError> {
    if body.is_empty() { Ok(T::default()) } else { parse(body) }
}

pub(super) fn done(body: &Value) -> Response {
    json_answer(200, body)
}

/// One JSON object a line, written piece by piece while it is read, so that a million of them never stand in memory.
pub(super) fn lines<T: Serialize>(items: impl Iterator<Item = T> + Send + 'static) -> Response {
    let mut items = items.fuse();
    let pieces = std::iter::from_fn(move || {
        let mut piece = Vec::with_capacity(PIECE + PIECE / 8);
        for item in items.by_ref() {
            if let Err(error) = serde_json::to_writer(&mut piece, &item) {
                return Some(Err(error));
            }
            piece.push(b'\n');
            if piece.len() >= PIECE {
                break;
            }
        }
        (!piece.is_empty()).then(|| Ok(Bytes::from(piece)))
    });
    let kind = HeaderValue::from_static("application/x-ndjson");
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(futures::stream::iter(pieces))).into_response()
}
