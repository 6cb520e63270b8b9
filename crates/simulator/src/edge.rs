//! What every request and every answer passes, whichever part of the provider it is for.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::{Provider, answer};

/// The longest a handler waits for the body of its request, all in all. Longer than the gateway waits, which refuses a late
/// one in its own words.
const BODY_TIME: Duration = Duration::from_secs(60);

/// Dates an answer by the provider's clock; the server would date it by the machine's.
pub(super) async fn dated(State(provider): State<Arc<Provider>>, mut answer: Response) -> Response {
    if let Ok(date) = HeaderValue::try_from(provider.clock.now().http_date()) {
        answer.headers_mut().insert(header::DATE, date);
    }
    answer
}

/// Ends the wait for a body that does not come: 408, whatever the handler makes of it.
pub(super) async fn in_time(request: Request, next: Next) -> Response {
    within(BODY_TIME, request, next).await
}

async fn within(limit: Duration, request: Request, next: Next) -> Response {
    if http_body::Body::is_end_stream(request.body()) {
        return next.run(request).await;
    }
    let late = Arc::new(AtomicBool::new(false));
    let request =
        request.map(|body| Body::new(Timed { body, limit, patience: None, late: Arc::clone(&late) }));
    let answer = next.run(request).await;
    if late.load(Ordering::Relaxed) {
        return answer::api_error(408, "the body took too long to arrive");
    }
    answer
}

/// A body that fails when it has been waited for too long.
struct Timed {
    body: Body,
    limit: Duration,
    /// Begins with the first wait, so that a handler may take its time before it asks.
    patience: Option<Pin<Box<Sleep>>>,
    late: Arc<AtomicBool>,
}

/// Why a body fails.
#[derive(Debug, thiserror::Error)]
#[error("the body took too long to arrive")]
struct Late;

impl http_body::Body for Timed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            return polled;
        }
        let limit = self.limit;
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(limit)));
        if patience.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.late.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err(axum::Error::new(Late))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use axum::{Router, body::to_bytes, middleware::from_fn, routing::post};
    use futures::{StreamExt as _, stream};
    use tower_service::Service as _;

    use super::*;

    /// Short enough to be waited for.
    const SHORT: Duration = Duration::from_millis(50);

    async fn send(body: Body) -> (u16, String) {
        let limit = async |request: Request, next: Next| within(SHORT, request, next).await;
        let length = async |body: Result<Bytes, axum::extract::rejection::BytesRejection>| {
            body.map_or_else(|refused| refused.body_text(), |body| body.len().to_string())
        };
        let mut router = Router::new().route("/", post(length)).layer(from_fn(limit));
        let answer = router.call(Request::post("/").body(body).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let text = to_bytes(answer.into_body(), 1_024).await.unwrap();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_body_that_never_ends_is_refused_and_a_whole_one_is_read() {
        let piece = || Ok::<_, std::io::Error>(Bytes::from_static(b"x"));
        let half = stream::once(async move { piece() }).chain(stream::pending());
        // Moving is not enough: a byte now and then would hold the connection as long.
        let trickle = stream::repeat(()).then(|()| tokio::task::yield_now()).map(move |()| piece());

        let (halved, trickled) =
            (send(Body::from_stream(half)).await, send(Body::from_stream(trickle)).await);

        for (status, text) in [halved, trickled] {
            assert_eq!(status, 408, "{text}");
            assert!(text.contains("too long"), "{text}");
        }
        assert_eq!(send(Body::from("whole")).await, (200, "5".to_owned()));
        assert_eq!(send(Body::empty()).await, (200, "0".to_owned()));
    }
}
