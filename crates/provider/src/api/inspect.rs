//! Reads that return every answer as it arrives, with a context and parameters of the caller's choice: for `tributary probe`, which
//! finds out what the provider's document leaves open. They wait for token and budget as every other call.

use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::{Method, header::HeaderMap};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    AnsweredBy, CallOptions, Cause, Error, ReadTimes,
    address::{self, ContextHeader},
    body,
    call::{ApiCall, ApiResponse},
    request::AreaClient,
};

/// One API with one grant, read without any expectation.
#[derive(Debug, Clone)]
pub struct Inspector(pub(super) AreaClient);

/// A GET of any path.
#[derive(Debug, Clone, Copy)]
pub struct Inspection<'a> {
    /// Path below the base URL, with `{id}` for the id.
    pub path: &'a str,
    /// The id, not encoded.
    pub id: &'a str,
    /// Names and values, not encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// The context.
    pub context: ContextHeader<'a>,
}

/// An answer as it arrived. Of a refusal, at most the first 64 KiB.
#[derive(Debug, Clone)]
pub struct RawAnswer {
    /// Status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// Body, after decompression.
    pub body: Bytes,
    /// When it was read.
    pub times: ReadTimes,
}

impl Inspector {
    /// Sends the request. Returns every answer in order, and how the call ended: earlier answers named a wait or rejected the token.
    ///
    /// # Errors
    /// See [`Error`]. Any status of 200 to 299 is a success, whatever the body.
    pub async fn get(
        &self,
        wanted: &Inspection<'_>,
        options: &CallOptions,
    ) -> (Vec<RawAnswer>, Result<(), Error>) {
        let query = address::query(wanted.query.iter().copied());
        let call = self.0.call(Method::GET, wanted.path.to_owned());
        let call = ApiCall { id: wanted.id.into(), query, context: wanted.context, ..call };
        let answers = Mutex::new(Vec::new());
        let observe = |answer: &ApiResponse<'_>| answers.lock().push(RawAnswer::from(answer));
        let ended = self.0.core.observed_call(&call, options, &observe, |_| Ok(())).await;
        (answers.into_inner(), ended)
    }
}

impl RawAnswer {
    /// Status and content type as the typed reads demand them, and the rows of a list.
    ///
    /// # Errors
    /// The answer is no list.
    pub fn rows<T: DeserializeOwned>(&self) -> Result<Vec<T>, Cause> {
        if self.status != 200 {
            return Err(Cause::Malformed { what: format!("its status is {}", self.status) });
        }
        body::check_type(&self.headers, &self.body)?;
        body::rows(&self.body)
    }

    /// The JSON of the body, without a byte order mark; `None` if it is none.
    pub fn json(&self) -> Option<Value> {
        body::parse(&self.body).ok()
    }

    /// Whether the body is empty or blank.
    pub fn is_empty(&self) -> bool {
        body::is_empty(&self.body)
    }

    /// Who sent the error that the body is.
    pub fn answered_by(&self) -> AnsweredBy {
        AnsweredBy::read(&self.body)
    }

    /// The value of a header; `None` if it is missing or not ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl From<&ApiResponse<'_>> for RawAnswer {
    fn from(answer: &ApiResponse<'_>) -> Self {
        let ApiResponse { status, headers, body, times, .. } = answer;
        Self { status: *status, headers: headers.clone(), body: body.clone(), times: *times }
    }
}
