//! The echo: a receiver proves that it wants notifications by answering with the GUID it is asked for.
//!
//! It has to answer 2xx with exactly that text, without cookies, within the time limit. By the document it is asked once
//! the POST has been answered, which [`after`] tells: when the answer's body has been handed to the connection.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::Response,
};
use http_body::{Frame, SizeHint};
use tokio::{sync::oneshot, time::timeout};
use url::Url;

/// Why the echo did not come back.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Too late.
    #[error("no answer within {0:?}")]
    TimeLimit(Duration),
    /// No answer at all, or one that broke off.
    #[error("no answer: {0}")]
    Connection(String),
    /// Not 2xx.
    #[error("the answer has status {0}")]
    Status(u16),
    /// The answer sets cookies.
    #[error("the answer has cookies")]
    Cookies,
    /// Another body.
    #[error("the answer's body is not the text asked for")]
    Body,
}

/// Asks a receiver for its echo.
///
/// # Errors
/// It did not come back.
pub(super) async fn ask(
    client: &reqwest::Client,
    receiver: &Url,
    echo: &str,
    limit: Duration,
) -> Result<(), Failure> {
    let mut url = receiver.clone();
    url.set_query(Some(&format!("echo={echo}")));
    timeout(limit, exchange(client, url, echo)).await.unwrap_or(Err(Failure::TimeLimit(limit)))
}

/// The same answer, and a signal that comes (as an error: nothing is ever sent) once it is out of our hands.
pub(super) fn after(answer: Response) -> (Response, oneshot::Receiver<()>) {
    let (held, answered) = oneshot::channel();
    (answer.map(|body| Body::new(Held { body, _held: held })), answered)
}

async fn exchange(client: &reqwest::Client, url: Url, echo: &str) -> Result<(), Failure> {
    let broken = |error: reqwest::Error| Failure::Connection(error.without_url().to_string());
    let mut answer = client.get(url).send().await.map_err(broken)?;
    if !answer.status().is_success() {
        return Err(Failure::Status(answer.status().as_u16()));
    }
    if answer.headers().contains_key(header::SET_COOKIE) {
        return Err(Failure::Cookies);
    }
    let mut rest = echo.as_bytes();
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        rest = rest.strip_prefix(&*chunk).ok_or(Failure::Body)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(Failure::Body) }
}

/// A body whose end or drop is noticed.
struct Held {
    body: Body,
    _held: oneshot::Sender<()>,
}

impl http_body::Body for Held {
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
