//! What goes wrong with an answer after the right work was done.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{HeaderValue, header, response::Parts},
    response::Response,
};
use http_body::Frame;

use super::hang_up;
use crate::simulator::{knobs::Effect, random::Random};

/// The largest answer that is looked at whole; none is nearly as large.
const LARGEST: usize = 256 << 20;

/// The answer as the effect leaves it.
pub(super) async fn spoil(effect: &Effect, answer: Response, random: &mut Random) -> Response {
    match effect {
        Effect::Truncate => truncate(answer).await,
        Effect::InvalidJson => invalidate(answer).await,
        Effect::WrongContentType => {
            let (mut parts, body) = answer.into_parts();
            parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
            Response::from_parts(parts, body)
        }
        Effect::Delay(latency) => {
            tokio::time::sleep(latency.sample(random)).await;
            answer
        }
        Effect::LoseAnswer => hang_up(),
        Effect::Throttle { .. }
        | Effect::Quota { .. }
        | Effect::Status(_)
        | Effect::UnknownPath
        | Effect::Drop => answer,
    }
}

/// Announces the whole length, sends half and ends the connection. Without a body there is no middle: it just ends.
async fn truncate(answer: Response) -> Response {
    match whole(answer).await {
        Some((mut parts, body)) if !body.is_empty() => {
            parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
            Response::from_parts(parts, Body::new(Cut { half: Some(half(&body)), flushed: false }))
        }
        _ => hang_up(),
    }
}

/// Half the JSON under a length that fits, and the status the answer had.
async fn invalidate(answer: Response) -> Response {
    let Some((mut parts, body)) = whole(answer).await else {
        return hang_up();
    };
    let half = half(&body);
    // Nothing at all could be taken for an empty list.
    let half = if half.is_empty() { Bytes::from_static(b"{") } else { half };
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(half.len()));
    Response::from_parts(parts, Body::from(half))
}

async fn whole(answer: Response) -> Option<(Parts, Bytes)> {
    let (parts, body) = answer.into_parts();
    Some((parts, to_bytes(body, LARGEST).await.ok()?))
}

fn half(body: &Bytes) -> Bytes {
    body.slice(..body.len() / 2)
}

/// A body that fails in its middle.
struct Cut {
    half: Option<Bytes>,
    flushed: bool,
}

impl http_body::Body for Cut {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(half) = self.half.take() {
            return Poll::Ready(Some(Ok(Frame::data(half))));
        }
        if !self.flushed {
            // The connection writes out what it has when a body makes it wait, and drops it when a body fails.
            self.flushed = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(io::Error::other("cut off on purpose"))))
    }
}
