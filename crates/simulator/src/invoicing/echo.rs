//! The echo: before a hook is effective, its receiver must answer a GET with the GUID in it.
//!
//! The answer must be 2xx with exactly that text, without cookies, within the time limit. By the document the receiver is
//! asked after the POST has been answered, that is, once the answer's body has been handed to the connection.

use std::time::Duration;

use axum::http::header;
use tokio::time::timeout;
use url::Url;

use crate::deliveries;

/// Why an echo failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum EchoFailure {
    #[error("no answer within {0:?}")]
    TimeLimit(Duration),
    /// No answer, or an incomplete one.
    #[error("no answer: {0}")]
    Connection(String),
    #[error("the answer has status {0}")]
    Status(u16),
    #[error("the answer has cookies")]
    Cookies,
    #[error("the answer's body is not the text asked for")]
    Body,
}

/// Requests the echo from a receiver.
pub(super) async fn ask(
    client: &reqwest::Client,
    receiver: &Url,
    echo: &str,
    limit: Duration,
) -> Result<(), EchoFailure> {
    let mut url = receiver.clone();
    url.set_query(Some(&format!("echo={echo}")));
    timeout(limit, exchange(client, url, echo)).await.unwrap_or(Err(EchoFailure::TimeLimit(limit)))
}

async fn exchange(client: &reqwest::Client, url: Url, echo: &str) -> Result<(), EchoFailure> {
    let broken = |error: reqwest::Error| EchoFailure::Connection(deliveries::cause(&error));
    let mut answer = client.get(url).send().await.map_err(broken)?;
    if !answer.status().is_success() {
        return Err(EchoFailure::Status(answer.status().as_u16()));
    }
    if answer.headers().contains_key(header::SET_COOKIE) {
        return Err(EchoFailure::Cookies);
    }
    let mut rest = echo.as_bytes();
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        rest = rest.strip_prefix(&*chunk).ok_or(EchoFailure::Body)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(EchoFailure::Body) }
}
