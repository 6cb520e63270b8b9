//! Requests to the identity service: public documents, and tokens, which are sent at most once.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use oauth2::{AsyncHttpClient, HttpRequest, HttpResponse};
use parking_lot::Mutex;
use reqwest::{
    StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue},
};
use tokio::time::{Instant, timeout_at};
use url::{Origin, Url};

use base::{circuit::Circuit, metrics::ApiOutcome, retry::Retry};

use super::{Error, Gate, MAX_CIRCUIT_WAIT, count, report_to_circuit};
use crate::{
    Transport,
    auth::http::{self, ProviderClock, ReadError, build, builder, read_bounded, retry_after},
};

/// Size limit of a token response, enough for three tokens of maximum size.
const MAX_TOKEN_RESPONSE_BYTES: usize = 256 * 1024;
/// Above any caller's limit, which ends the request first.
const MAX_EXCHANGE: Duration = Duration::from_secs(600);
/// Upper bound of a named wait: without tokens all work stops, and the next login may be minutes away.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(300);
/// After this time without an acknowledgement the kernel drops the request. Otherwise it might deliver a token minutes after its
/// sender gave up.
const TCP_ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The HTTP clients for documents and tokens.
#[derive(Debug)]
pub(super) struct HttpClients {
    documents: reqwest::Client,
    tokens: reqwest::Client,
    pub(super) clock: ProviderClock,
    /// Origin of the service, whose health the circuit tracks.
    origin: Origin,
    pub(super) circuit: Arc<Circuit>,
}

impl HttpClients {
    pub(super) fn new(
        transport: &Transport,
        origin: Origin,
        clock: ProviderClock,
        circuit: Arc<Circuit>,
    ) -> Result<Self, http::ClientSetupError> {
        let tokens = builder(transport)?
            // The server may close a pooled connection at any time, and then the client would send again.
            .pool_max_idle_per_host(0)
            .http1_only()
            .retry(reqwest::retry::never())
            // The caller has its own limit.
            .read_timeout(MAX_EXCHANGE)
            .timeout(MAX_EXCHANGE);
        #[cfg(target_os = "linux")]
        let tokens = tokens.tcp_user_timeout(TCP_ACK_TIMEOUT);
        let (documents, tokens) = (build(builder(transport)?)?, build(tokens)?);
        Ok(Self { documents, tokens, clock, origin, circuit })
    }

    /// Fetches a public document.
    pub(super) async fn get(&self, address: &Url, limit: usize) -> Result<Bytes, Error> {
        // Keys may be on another host, which says nothing about this one.
        let is_ours = address.origin() == self.origin;
        let pass =
            if is_ours { Some(self.circuit.pass(Instant::now() + MAX_CIRCUIT_WAIT).await?) } else { None };
        let started = Instant::now();
        let fetched = self.try_get(address, limit).await;
        if let Some(pass) = pass {
            report_to_circuit(pass, fetched.as_ref().err());
        }
        count(fetched.as_ref().err().map_or(ApiOutcome::Ok, outcome), started.elapsed());
        fetched
    }

    async fn try_get(&self, address: &Url, limit: usize) -> Result<Bytes, Error> {
        let request = self.documents.get(address.clone()).header(ACCEPT, "application/json");
        let response = request.send().await.map_err(unreached)?;
        self.clock.observe(response.headers());
        if response.status() != StatusCode::OK {
            return Err(self.unavailable(&response));
        }
        read_bounded(response, limit).await.map_err(unread)
    }

    fn unavailable(&self, response: &reqwest::Response) -> Error {
        let again = retry_after(response.headers(), &self.clock).map(|again| again.min(MAX_RETRY_WAIT));
        Error::Unavailable { status: response.status().as_u16(), again }
    }
}

/// A request without a usable response.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct ExchangeFailure {
    pub(super) error: Error,
    /// Whether the provider may have acted on the request.
    pub(super) may_have_acted: bool,
}

/// One request to the token endpoint, sent at most once.
pub(super) struct TokenRequest<'a> {
    clients: &'a HttpClients,
    gate: Gate,
    started: Instant,
    end: Instant,
    guard: Arc<SendGuard>,
    /// Status of the response; 0 before it.
    status: AtomicU16,
}

impl<'a> TokenRequest<'a> {
    pub(super) fn new(clients: &'a HttpClients, gate: Gate, end: Instant) -> Self {
        Self {
            clients,
            gate,
            started: Instant::now(),
            end,
            guard: Arc::new(SendGuard(Mutex::new(SendState::Waiting))),
            status: AtomicU16::new(0),
        }
    }

    /// Status of the response, if there is one.
    pub(super) fn status(&self) -> Option<u16> {
        Some(self.status.load(Ordering::Relaxed)).filter(|status| *status > 0)
    }

    /// A failure with the status of the response.
    pub(super) fn unanswered(&self, may_have_acted: bool) -> ExchangeFailure {
        let status = self.status().unwrap_or_default();
        ExchangeFailure { error: Error::Unavailable { status, again: None }, may_have_acted }
    }

    /// Counts the end of the request, with its failure if there is one.
    pub(super) fn ended(&self, failure: Option<&Error>) {
        let outcome = failure.map_or_else(|| self.status().map_or(ApiOutcome::Malformed, by_status), outcome);
        count(outcome, self.started.elapsed());
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, ExchangeFailure> {
        let (head, body) = request.into_parts();
        let body = reqwest::Body::wrap(GatedBody {
            content: Some(Bytes::from(body)),
            gate: Arc::clone(&self.gate),
            guard: Arc::clone(&self.guard),
        });
        let request = self.clients.tokens.request(head.method, head.uri.to_string()).headers(head.headers);
        let exchange = async {
            let response = request.body(body).send().await.map_err(unreached)?;
            self.clients.clock.observe(response.headers());
            let status = response.status();
            self.status.store(status.as_u16(), Ordering::Relaxed);
            let refusal = self.clients.unavailable(&response);
            let answer = head_of(&response);
            Ok((status, refusal, answer, read_bounded(response, MAX_TOKEN_RESPONSE_BYTES).await))
        };
        let (status, refusal, mut answer, body) = match timeout_at(self.end, exchange).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => return Err(self.broken(error)),
            Err(_) => return Err(self.broken(Error::Silent)),
        };
        // For these statuses the body does not matter.
        match status.as_u16() {
            429 => return Err(ExchangeFailure { error: refusal, may_have_acted: false }),
            // A 503 with a wait comes from the service itself. Without one it may come from a proxy whose service was cut off in
            // the middle of its work.
            503 => {
                let may_have_acted = refusal.retry() == Retry::Later;
                return Err(ExchangeFailure { error: refusal, may_have_acted });
            }
            300..=399 => {
                let error = Error::Malformed { what: "it redirects to another address" };
                return Err(ExchangeFailure { error, may_have_acted: false });
            }
            200 | 400..=499 => {}
            _ => return Err(ExchangeFailure { error: refusal, may_have_acted: true }),
        }
        let body = body.map_err(|error| ExchangeFailure { error: unread(error), may_have_acted: true })?;
        // The content type says little, and rejecting a token for it would lose the token. `oauth2` requires this type, and no
        // byte order mark.
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *answer.body_mut() = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&body).to_vec();
        Ok(answer)
    }

    /// No response: the guard knows whether the request can have been sent.
    fn broken(&self, error: Error) -> ExchangeFailure {
        match self.guard.decide(|| SendState::Closed) {
            SendState::Waiting | SendState::Closed => ExchangeFailure { error, may_have_acted: false },
            SendState::Refused => ExchangeFailure { error: Error::Late, may_have_acted: false },
            SendState::Sent => ExchangeFailure { error, may_have_acted: true },
        }
    }
}

impl Drop for TokenRequest<'_> {
    fn drop(&mut self) {
        // The caller no longer waits for the response, so the request must not be sent.
        self.guard.decide(|| SendState::Closed);
    }
}

impl<'c> AsyncHttpClient<'c> for TokenRequest<'_> {
    type Error = ExchangeFailure;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, ExchangeFailure>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}

/// State of a request body. The first decision wins: the connection runs in its own task, which may reach the body after the
/// caller has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    Waiting,
    Closed,
    Refused,
    Sent,
}

#[derive(Debug)]
struct SendGuard(Mutex<SendState>);

impl SendGuard {
    /// Sets the state, unless it is decided; returns the state.
    fn decide(&self, wish: impl FnOnce() -> SendState) -> SendState {
        let mut state = self.0.lock();
        if *state == SendState::Waiting {
            *state = wish();
        }
        *state
    }
}

/// A request body that calls its gate before it is sent.
struct GatedBody {
    content: Option<Bytes>,
    gate: Gate,
    guard: Arc<SendGuard>,
}

impl http_body::Body for GatedBody {
    type Data = Bytes;
    type Error = GateClosed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GateClosed>>> {
        let Some(content) = self.content.take() else { return Poll::Ready(None) };
        let state = self.guard.decide(|| if (self.gate)() { SendState::Sent } else { SendState::Refused });
        Poll::Ready(Some(if state == SendState::Sent { Ok(Frame::data(content)) } else { Err(GateClosed) }))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.content.as_ref().map_or(0, |content| content.len() as u64))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the request must not be sent any more")]
struct GateClosed;

fn unreached(error: reqwest::Error) -> Error {
    if error.is_timeout() { Error::Silent } else { Error::Unreachable(error.without_url()) }
}

fn unread(error: ReadError) -> Error {
    match error {
        ReadError::TooLarge { .. } => Error::Malformed { what: TOO_LONG },
        ReadError::Broken(error) => unreached(error),
    }
}

const TOO_LONG: &str = "it is too long";

fn outcome(error: &Error) -> ApiOutcome {
    match error {
        Error::Unreachable(_) | Error::Resting { .. } | Error::Setup { .. } => ApiOutcome::Unreachable,
        Error::Silent | Error::Late => ApiOutcome::Timeout,
        Error::Unavailable { status, .. } => by_status(*status),
        Error::Malformed { what } if *what == TOO_LONG => ApiOutcome::Oversized,
        Error::Malformed { .. } => ApiOutcome::Malformed,
        Error::Refused { .. } => ApiOutcome::Refused,
    }
}

fn by_status(status: u16) -> ApiOutcome {
    match status {
        200 => ApiOutcome::Ok,
        401 => ApiOutcome::Unauthorized,
        403 => ApiOutcome::Forbidden,
        404 | 410 => ApiOutcome::NotFound,
        429 => ApiOutcome::Throttled,
        500.. => ApiOutcome::Server,
        _ => ApiOutcome::Refused,
    }
}

/// Status and headers of a response, as `oauth2` needs them.
fn head_of(response: &reqwest::Response) -> HttpResponse {
    let mut head = HttpResponse::new(Vec::new());
    *head.status_mut() = response.status();
    *head.headers_mut() = response.headers().clone();
    head
}
