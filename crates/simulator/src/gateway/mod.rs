//! The gateway in front of every API.
//!
//! ```text
//! request ──▶ journal ──▶ latency ──▶ fault rules ──▶ path known? ──▶ key, limits, token, scopes, headers ──▶ body
//!                                         │                                                                  │
//! answer ◀── spoiled? ◀───────────────────┴────────────────────────────────────────────── handler of an API ◀┘
//! ```
//!
//! - Every request gets an answer, or a connection that ends because a knob says so.
//! - Each request is added to the journal before anything is decided. Its status is filled in with the answer and stays empty
//!   if the connection ended first.
//! - Limits and tokens are judged by the provider's clock.
//! - Limits and fault rules apply the knobs of the moment when they count a request, however long latency delayed it.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request as HttpRequest, State},
    http::{HeaderMap, Method},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};

use server::HangUp;

use self::{faults::FaultCounters, limits::RateLimits};
use super::{
    answer::unknown_path,
    call::SentContext,
    catalog::GatewayArea,
    clock::Ticks,
    core::Core,
    effect::{first_page, replacement, spoil},
    error_answer::ApiError,
    identity::IdentityProvider,
    invoicing::InvoicingService,
    journal::Journal,
    knobs::{Effect, Knobs},
    random::{Random, mix},
};

mod checks;
mod compress;
mod faults;
mod limits;

/// Size limit of request bodies.
const MAX_BODY_BYTES: usize = 1 << 20;
/// How much of a larger body is read before it is refused.
const MAX_DISCARDED_BYTES: usize = 16 << 20;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer texts are cut in the journal.
const MAX_JOURNALED_BYTES: usize = 2 << 10;
/// The random stream of the gateway.
const PURPOSE: u64 = 0x6761_7465_7761_7900;

/// Limits, faults and the journal of requests.
#[derive(Debug)]
pub struct Gateway {
    core: Arc<Core>,
    identity: Arc<IdentityProvider>,
    invoicing: Arc<InvoicingService>,
    requests: Journal<Request>,
    limits: RateLimits,
    faults: FaultCounters,
}

/// A request in the journal.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// When it arrived.
    pub at: Ticks,
    /// Method.
    pub method: String,
    /// Path and query, their first 2 KiB.
    pub target: String,
    /// Company in `context`, its first 2 KiB.
    pub company: Option<String>,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: String,
    /// `traceparent`, its first 2 KiB.
    pub traceparent: Option<String>,
    /// `Accept-Encoding`, its first 2 KiB.
    pub encoding: Option<String>,
    /// `Api-Version`, its first 2 KiB.
    pub api_version: Option<String>,
    /// Status of the answer; `None` if the connection ended instead.
    pub status: Option<u16>,
    /// Name of the fault that applied.
    pub fault: Option<&'static str>,
}

impl Gateway {
    pub(super) fn new(
        core: &Arc<Core>,
        identity: &Arc<IdentityProvider>,
        invoicing: &Arc<InvoicingService>,
    ) -> Self {
        let settings = &core.settings;
        Self {
            core: Arc::clone(core),
            identity: Arc::clone(identity),
            invoicing: Arc::clone(invoicing),
            requests: Journal::new(settings.journal_limit),
            limits: RateLimits::new(settings.subscription_keys.len()),
            faults: FaultCounters::new(settings.knobs.faults.len()),
        }
    }

    /// Requests from number `from` on that the journal still has: `(number, request)`.
    pub fn requests(&self, from: u64, limit: usize) -> Vec<(u64, Request)> {
        self.requests.from(from, limit)
    }

    /// Requests so far.
    pub fn request_count(&self) -> u64 {
        self.requests.count()
    }

    /// Restarts counts whose limit or list of rules has changed; those of the rules also if `restart`. Nothing counts meanwhile.
    pub(super) fn turned(&self, before: &Knobs, now: &Knobs, restart: bool) {
        if restart || before.faults != now.faults {
            self.faults.restart(now.faults.len());
        }
        self.limits.turned(&before.gateway, &now.gateway);
    }
}

/// Puts the gateway in front of the APIs' routes. Unknown paths and methods get the gateway's 404.
///
/// The routers must have no fallbacks.
pub(super) fn guard(gateway: &Arc<Gateway>, apis: Router) -> Router {
    let apis = apis.route_layer(middleware::from_fn_with_state(Arc::clone(gateway), known));
    let gateway = Arc::clone(gateway);
    let unknown = move |request: HttpRequest| {
        let gateway = Arc::clone(&gateway);
        async move { pass(&gateway, request, None).await }
    };
    // Added after the layer, which would otherwise take a wrong method for a known path.
    apis.method_not_allowed_fallback(unknown.clone()).fallback(unknown)
}

async fn known(State(gateway): State<Arc<Gateway>>, request: HttpRequest, next: Next) -> Response {
    // axum answers HEAD on GET routes, but these APIs have no HEAD.
    let next = (request.method() != Method::HEAD).then_some(next);
    pass(&gateway, request, next).await
}

/// Handles a request; `next` is set if its path is known.
async fn pass(gateway: &Gateway, mut request: HttpRequest, next: Option<Next>) -> Response {
    let Some(area) = checks::area(request.uri().path()) else {
        // Outside the APIs nothing is counted, delayed or spoiled.
        return unknown_path();
    };
    let seed = gateway.core.seed();
    let context = SentContext::read(request.headers());
    let company = if let SentContext::Company(company) = &context { Some(company.clone()) } else { None };
    let compressed = compress::is_wanted(request.headers());
    let number = gateway.requests.push(Request {
        at: gateway.core.clock.now(),
        method: request.method().to_string(),
        target: request.uri().path_and_query().map_or_else(String::new, |target| journaled(target.as_str())),
        company: company.as_deref().map(journaled),
        protocol: format!("{:?}", request.version()),
        traceparent: header(request.headers(), "traceparent"),
        encoding: header(request.headers(), "accept-encoding"),
        api_version: header(request.headers(), "api-version"),
        status: None,
        fault: None,
    });
    let mut random = Random::new(seed ^ mix(number), PURPOSE);

    let latency = gateway.core.knobs().gateway.latency.sample(&mut random);
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let seen = faults::FaultSubject {
        method: request.method(),
        path: request.uri().path(),
        query: request.uri().query().unwrap_or(""),
        company: company.as_deref(),
    };
    let fault = gateway.core.count(|knobs| gateway.faults.draw(&knobs.faults, seed, seen).cloned());
    if let Some(fault) = &fault {
        gateway.requests.update(number, |entry| entry.fault = Some(fault.into()));
    }
    if matches!(fault, Some(Effect::FirstPage))
        && let Some(uri) = first_page(request.uri())
    {
        *request.uri_mut() = uri;
    }
    let answer = match fault.as_ref().and_then(replacement) {
        Some(answer) => answer,
        None => answer(gateway, area, context, request, next).await,
    };
    let compressed = compressed && gateway.core.knobs().gateway.gzip;
    // Truncation applies to the compressed bytes, every other effect to the uncompressed ones.
    let cut = matches!(fault, Some(Effect::Truncate));
    let answer = if compressed && cut { compress::compress(answer).await } else { answer };
    let answer = match fault {
        Some(fault) => spoil(&fault, answer, &mut random).await,
        None => answer,
    };
    let answer = if compressed && !cut { compress::compress(answer).await } else { answer };
    if answer.extensions().get::<HangUp>().is_none() {
        gateway.requests.update(number, |entry| entry.status = Some(answer.status().as_u16()));
    }
    answer
}

/// The right answer, before any fault.
async fn answer(
    gateway: &Gateway,
    area: GatewayArea,
    context: SentContext,
    request: HttpRequest,
    next: Option<Next>,
) -> Response {
    if let Some(transcript) = &gateway.core.settings.transcript {
        return transcript.answer(request.uri(), &context.json(), gateway.core.clock.now());
    }
    let Some(next) = next else { return unknown_path() };
    let (mut parts, body) = request.into_parts();
    if checks::is_hidden(&gateway.core.knobs().gateway, &parts.method, parts.uri.path()) {
        return unknown_path();
    }
    // Read first, so that a refusal does not reach a client that is still sending.
    let body = read(body).await;
    let call = match checks::admit(gateway, area, &parts, context) {
        Ok(call) => call,
        Err(refusal) => return refusal.into_response(),
    };
    let body = match body {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
    };
    parts.extensions.insert(call);
    next.run(HttpRequest::from_parts(parts, Body::from(body))).await
}

/// Reads the body within its limits. A body that is too large is drained for a while, because a client that is still sending
/// when the connection ends may never see the answer.
async fn read(body: Body) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_DISCARDED_BYTES)).await {
        Err(_) => Err(ApiError::api(408, "the body took too long to arrive")),
        // Only a client whose body is too large sees this.
        Ok(Err(_)) => Err(ApiError::api(413, "the body is larger than 1 MiB, or did not arrive whole")),
        Ok(Ok(body)) if body.len() > MAX_BODY_BYTES => {
            Err(ApiError::api(413, "the body is larger than 1 MiB"))
        }
        Ok(Ok(body)) => Ok(body),
    }
}

/// A header in the journal.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| journaled(&String::from_utf8_lossy(value.as_bytes())))
}

/// Cuts a text for the journal.
fn journaled(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_JOURNALED_BYTES)].to_owned()
}
