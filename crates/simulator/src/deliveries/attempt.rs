//! One delivery attempt.

use std::{error::Error, time::Duration};

use axum::http::{HeaderValue, Method, StatusCode, header};
use bytes::Bytes;
use reqwest::{Client, Request, Response};
use tokio::time::{Instant, timeout_at};

use super::{DeliveryOrder, Purpose};
use crate::knobs::Accepts;

/// Longer answers are not read to the end; their connection is closed instead of reused.
const MAX_DRAINED_BYTES: usize = 64 * 1024;
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// The result of an attempt.
#[derive(Debug)]
pub(super) struct AttemptOutcome {
    /// Time until the head of the answer or the failure.
    pub(super) took: Duration,
    /// Status of the answer.
    pub(super) status: Option<StatusCode>,
    /// Why it failed, whatever the status is.
    pub(super) error: Option<String>,
}

impl AttemptOutcome {
    /// Whether the receiver accepted.
    pub(super) fn accepted(&self, purpose: Purpose, accepts: Accepts) -> bool {
        let fits = |status: StatusCode| match (purpose, accepts) {
            (Purpose::Acknowledge, _) | (_, Accepts::Only200) => status == StatusCode::OK,
            (Purpose::Event, Accepts::Any2xx) => status.is_success(),
        };
        self.error.is_none() && self.status.is_some_and(fits)
    }
}

/// Posts a body and waits for the head of the answer; `limit` includes the connection setup.
pub(super) async fn post(
    client: Client,
    order: &DeliveryOrder,
    body: Bytes,
    signature: Option<HeaderValue>,
    limit: Duration,
) -> AttemptOutcome {
    let mut request = Request::new(Method::POST, order.url.clone());
    request.headers_mut().insert(header::CONTENT_TYPE, JSON);
    if let (Some(name), Some(value)) = (&order.signature_header, signature) {
        request.headers_mut().insert(name, value);
    }
    *request.body_mut() = Some(body.into());
    let begun = Instant::now();
    let deadline = begun + limit;
    let answer = timeout_at(deadline, client.execute(request)).await;
    let took = begun.elapsed();
    let (status, error) = match answer {
        Err(_) => (None, Some("time limit".to_owned())),
        Ok(Err(error)) => (None, Some(cause(&error))),
        Ok(Ok(response)) => {
            let (status, cookies) = (response.status(), response.headers().contains_key(header::SET_COOKIE));
            // Reading the body keeps the connection reusable.
            timeout_at(deadline, drain(response)).await.ok();
            (Some(status), cookies.then(|| "cookies in the answer".to_owned()))
        }
    };
    AttemptOutcome { took, status, error }
}

async fn drain(mut response: Response) {
    let mut read = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        read += chunk.len();
        if read > MAX_DRAINED_BYTES {
            return;
        }
    }
}

/// The innermost cause of a failed exchange; the outer ones only repeat the address.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    let stage = if error.is_connect() { "connection" } else { "exchange" };
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    format!("{stage}: {cause}")
}
