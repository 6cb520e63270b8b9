//! One attempt: the POST, its time limit, and what its answer is worth.

use std::{error::Error, time::Duration};

use axum::http::{HeaderValue, Method, StatusCode, header};
use bytes::Bytes;
use reqwest::{Client, Request, Response};
use tokio::time::{Instant, timeout_at};

use super::{DeliveryOrder, Purpose};
use crate::knobs::Accepts;

/// The longest answer read to its end. A connection with more to come is closed instead of used again.
const MAX_DRAINED_BYTES: usize = 64 * 1024;
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// What came of it.
#[derive(Debug)]
pub(super) struct AttemptOutcome {
    /// Until the head of the answer, or until it was given up.
    pub(super) took: Duration,
    /// Status and whether cookies came with it; or why there is none.
    pub(super) answer: Result<(StatusCode, bool), String>,
}

impl AttemptOutcome {
    /// Whether the receiver has it, and otherwise what was wrong beside the status.
    pub(super) fn verdict(&self, purpose: Purpose, accepts: Accepts) -> Result<(), Option<String>> {
        let (status, cookies) = match &self.answer {
            Ok(answer) => *answer,
            Err(error) => return Err(Some(error.clone())),
        };
        let accepted = match (purpose, accepts) {
            (Purpose::Acknowledge, _) | (_, Accepts::Only200) => status == StatusCode::OK,
            (Purpose::Event, Accepts::Any2xx) => status.is_success(),
        };
        match (accepted, cookies) {
            (true, false) => Ok(()),
            (_, true) => Err(Some("cookies in the answer".to_owned())),
            (false, false) => Err(None),
        }
    }
}

/// Sends one body and waits for the head of the answer, at most so long from before the connection is made.
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
    let answer = match answer {
        Err(_) => Err("time limit".to_owned()),
        Ok(Err(error)) => Err(cause(&error)),
        Ok(Ok(response)) => {
            let worth = (response.status(), response.headers().contains_key(header::SET_COOKIE));
            // What the body says is of no interest; reading it leaves the connection fit for the next delivery.
            timeout_at(deadline, drain(response)).await.ok();
            Ok(worth)
        }
    };
    AttemptOutcome { took, answer }
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

/// Why there was no answer, or none that came whole: the innermost cause, because the outer ones only repeat the address.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    let stage = if error.is_connect() { "connection" } else { "exchange" };
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    format!("{stage}: {cause}")
}
