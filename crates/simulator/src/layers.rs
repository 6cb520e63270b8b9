//! What every request and every answer passes, whichever part of the provider it is for.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use tokio::time::timeout;

use super::{Core, answer};

/// The longest the body of a request may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest body that is read; handlers have smaller limits.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Dates an answer by the provider's clock; the server would date it by the machine's.
pub(super) async fn set_date(State(core): State<Arc<Core>>, mut answer: Response) -> Response {
    if let Ok(date) = HeaderValue::try_from(core.clock.now().http_date()) {
        answer.headers_mut().insert(header::DATE, date);
    }
    answer
}

/// Reads the whole body before the handler runs; the gateway does so itself, and refuses in its own words.
pub(super) async fn read_body(request: Request, next: Next) -> Response {
    read_body_within(BODY_TIMEOUT, request, next).await
}

async fn read_body_within(limit: Duration, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match timeout(limit, to_bytes(body, MAX_BODY_BYTES)).await {
        Err(_) => answer::api_error(408, "the body took too long to arrive"),
        Ok(Err(_)) => answer::api_error(413, "the body is too large or did not arrive whole"),
        Ok(Ok(body)) => next.run(Request::from_parts(parts, Body::from(body))).await,
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Bytes, middleware::from_fn, routing::post};
    use futures::{StreamExt as _, stream};
    use tower_service::Service as _;

    use super::*;

    /// Short enough to be waited for.
    const SHORT: Duration = Duration::from_millis(50);

    async fn send(body: Body) -> (u16, String) {
        let limit = async |request: Request, next: Next| read_body_within(SHORT, request, next).await;
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
