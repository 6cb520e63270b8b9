//! The gateway in front of every API: what each request passes before it reaches one.
//!
//! ```text
//! request ──▶ journal ──▶ latency ──▶ fault rules ──▶ path known? ──▶ key, limits, token, scopes, headers ──▶ body
//!                                         │                                                                  │
//! answer ◀── spoiled? ◀───────────────────┴────────────────────────────────────────────── handler of an API ◀┘
//! ```
//!
//! - Whatever a request brings, it gets an answer or a connection that ends because a knob says so.
//! - Each request is in the journal once, from before anything is decided; its status is filled in with the answer and
//!   stays open if the connection ended instead, on purpose or because the client left.
//! - RateLimits and tokens are judged by the provider's clock.
//! - RateLimits and fault rules count under the knobs that stand at that moment, however long a request was held up before.

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
    call::Context,
    catalog::Area,
    clock::Ticks,
    core::Core,
    effect::{first_page, instead, spoil},
    error_answer::ApiError,
    identity::Identity,
    invoicing::Invoicing,
    journal::Journal,
    knobs::{Effect, Knobs},
    random::{Random, mix},
};

mod checks;
mod compress;
mod context;
mod faults;
mod limits;

/// The largest body a request may have.
const MAX_BODY_BYTES: usize = 1 << 20;
/// How much of a larger one is read before it is refused.
const MAX_DISCARDED_BYTES: usize = 16 << 20;
/// The longest a request's body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest text of a request in the journal, bytes.
const MAX_JOURNALED_BYTES: usize = 2 << 10;
/// Keeps what is drawn here apart from everything else drawn under the seed.
const PURPOSE: u64 = 0x6761_7465_7761_7900;

/// RateLimits, faults and the journal of requests.
#[derive(Debug)]
pub struct Gateway {
    core: Arc<Core>,
    identity: Arc<Identity>,
    invoicing: Arc<Invoicing>,
    requests: Journal<Request>,
    limits: RateLimits,
    faults: FaultCounters,
}

/// A request as the journal keeps it.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// When it came.
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
    /// Status of the answer; `None` if the connection was ended instead.
    pub status: Option<u16>,
    /// Name of the fault that hit it.
    pub fault: Option<&'static str>,
}

impl Gateway {
    pub(super) fn new(core: &Arc<Core>, identity: &Arc<Identity>, invoicing: &Arc<Invoicing>) -> Self {
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

    /// Requests since the start, in order, within the journal's limit: `(number, request)` from a number on.
    pub fn requests(&self, from: u64, limit: usize) -> Vec<(u64, Request)> {
        self.requests.from(from, limit)
    }

    /// How many there ever were.
    pub fn request_count(&self) -> u64 {
        self.requests.count()
    }

    /// The knobs have been turned: what was counted under a limit or a list of rules that is no more begins again, and the
    /// rules also if told so. Called while nobody counts.
    pub(super) fn turned(&self, before: &Knobs, now: &Knobs, arm: bool) {
        if arm || before.faults != now.faults {
            self.faults.arm(now.faults.len());
        }
        self.limits.turned(&before.gateway, &now.gateway);
    }
}

/// Puts the gateway in front of the APIs' routes; what none of them knows gets the gateway's 404.
///
/// The routers given must have no fallback of their own, nor one for methods: here is where both are answered.
pub(super) fn guard(gateway: &Arc<Gateway>, apis: Router) -> Router {
    let apis = apis.route_layer(middleware::from_fn_with_state(Arc::clone(gateway), known));
    let gateway = Arc::clone(gateway);
    let unknown = move |request: HttpRequest| {
        let gateway = Arc::clone(&gateway);
        async move { pass(&gateway, request, None).await }
    };
    // After the layer, which would otherwise let a wrong method pass for a known path.
    apis.method_not_allowed_fallback(unknown.clone()).fallback(unknown)
}

async fn known(State(gateway): State<Arc<Gateway>>, request: HttpRequest, next: Next) -> Response {
    // A route for GET answers HEAD too, which is no operation of these APIs.
    let next = (request.method() != Method::HEAD).then_some(next);
    pass(&gateway, request, next).await
}

/// One request through the gateway, to `next` if its path is known.
async fn pass(gateway: &Gateway, mut request: HttpRequest, next: Option<Next>) -> Response {
    let Some(area) = checks::area(request.uri().path()) else {
        // None of the APIs: nothing here counts, delays or spoils it.
        return unknown_path();
    };
    let seed = gateway.core.seed();
    let context = context::read(request.headers());
    let company = if let Context::Company(company) = &context { Some(company.clone()) } else { None };
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
    let seen = faults::RequestFacts {
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
    let answer = match fault.as_ref().and_then(instead) {
        Some(answer) => answer,
        None => answer(gateway, area, context, request, next).await,
    };
    let compressed = compressed && gateway.core.knobs().gateway.gzip;
    // What is cut off in the middle is cut on the wire; everything else is spoiled before it is compressed.
    let (before, after) = match &fault {
        Some(Effect::Truncate) => (compressed, false),
        _ => (false, compressed),
    };
    let answer = if before { compress::compress(answer).await } else { answer };
    let answer = match fault {
        Some(fault) => spoil(&fault, answer, &mut random).await,
        None => answer,
    };
    let answer = if after { compress::compress(answer).await } else { answer };
    if answer.extensions().get::<HangUp>().is_none() {
        gateway.requests.update(number, |entry| entry.status = Some(answer.status().as_u16()));
    }
    answer
}

/// The right answer.
async fn answer(
    gateway: &Gateway,
    area: Area,
    context: Context,
    request: HttpRequest,
    next: Option<Next>,
) -> Response {
    let Some(next) = next else { return unknown_path() };
    let (mut parts, body) = request.into_parts();
    if checks::is_hidden(&gateway.core.knobs().gateway, &parts.method, parts.uri.path()) {
        return unknown_path();
    }
    // Read before it is needed, so that a refusal does not meet a client in the middle of sending.
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

/// The whole body, within its limits. One that is too large is read on for a while, because a client that is still sending
/// when the connection ends may never see the answer.
async fn read(body: Body) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_DISCARDED_BYTES)).await {
        Err(_) => Err(ApiError::api(408, "the body took too long to arrive")),
        // Of the two, only a client whose body is too large sees the answer.
        Ok(Err(_)) => Err(ApiError::api(413, "the body is larger than 1 MiB, or did not arrive whole")),
        Ok(Ok(body)) if body.len() > MAX_BODY_BYTES => {
            Err(ApiError::api(413, "the body is larger than 1 MiB"))
        }
        Ok(Ok(body)) => Ok(body),
    }
}

/// What the journal keeps of a header.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| journaled(&String::from_utf8_lossy(value.as_bytes())))
}

/// What the journal keeps of a text that a client may make as long as a head.
fn journaled(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_JOURNALED_BYTES)].to_owned()
}
