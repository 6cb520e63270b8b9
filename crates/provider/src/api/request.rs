//! Sends requests: waits for permission, sends, and judges the response. Nothing else in the product sends to the APIs.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use reqwest::{
    Method,
    header::{ACCEPT, AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, DATE, HeaderMap, HeaderValue},
};
use tokio::time::{Instant, timeout_at};
use url::Url;

use base::{
    circuit::{RequestPermit, StaysOpen},
    metrics::{self, ApiArea, ApiOutcome, ApiWait},
    random,
    secret::Secret,
};
use model::Traceparent;

use super::{
    ApiOptions, Budget, CallOptions, ReadTimes, body,
    budget::{BudgetTimeout, Permit},
    call::{ApiCall, ApiResponse, Authority},
    error::{Acted, Cause, Error, Limit},
    quirks::Quirks,
    verdict,
};
use crate::{
    Transport,
    auth::{
        Access, Tokens,
        http::{self, ClientSetupError, ProviderClock, ReadError},
    },
};

const KEY_HEADER: &str = "ocp-apim-subscription-key";
const CONTEXT_HEADER: &str = "context";
const TRACE_HEADER: &str = "traceparent";
/// Only for invoicing.
const VERSION_HEADER: &str = "api-version";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Shorter waits for a token are not counted as waits.
const MIN_TOKEN_WAIT: Duration = Duration::from_millis(1);
/// HTTP/2 keep-alive of connections in use: ping interval, and time for the answer.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer the HTTP client's limit is than ours, so that ours expires first and its name is known.
const CLIENT_TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// State shared by all clients of one provider.
#[derive(Debug)]
pub(super) struct ClientCore {
    http: reqwest::Client,
    /// Client through `invoicing.egress.proxy`, else the same as `http`.
    egress: reqwest::Client,
    /// Base URL without a trailing slash.
    base: String,
    key: Secret,
    key_header: HeaderValue,
    /// `invoicing.api.version`.
    version_header: Option<HeaderValue>,
    transport: Transport,
    budget: Budget,
    /// Clock of the provider.
    pub(super) clock: ProviderClock,
    /// What was learned about the provider.
    pub(super) quirks: Quirks,
}

/// One API with the tokens of one grant.
#[derive(Debug, Clone)]
pub(super) struct AreaClient {
    pub(super) core: Arc<ClientCore>,
    pub(super) area: ApiArea,
    pub(super) tokens: Arc<dyn Tokens>,
}

/// URL and headers that all attempts of a call share.
struct CallTarget {
    url: String,
    headers: HeaderMap,
}

/// Permission to send one request now.
struct Admission<'a> {
    pass: Option<RequestPermit<'a>>,
    permit: Permit,
    access: Option<Access>,
}

/// A request in flight, which reports to the circuit when it ends.
struct CircuitGuard<'a> {
    pass: Option<RequestPermit<'a>>,
    since: Instant,
    patience: Duration,
}

impl AreaClient {
    /// A call with a token of this grant.
    pub(super) fn call(&self, method: Method, path: impl Into<Cow<'static, str>>) -> ApiCall<'_> {
        ApiCall::new(self.area, method, path, Authority::Tokens(&*self.tokens))
    }
}

impl ClientCore {
    pub(super) fn new(options: &ApiOptions, budget: Budget, clock: ProviderClock) -> Result<Self, Cause> {
        let hosts = &options.transport.hosts;
        hosts.check(&options.base_url).map_err(ClientSetupError::wrap("cannot use provider.base.url"))?;
        let client = || -> Result<reqwest::ClientBuilder, Cause> {
            let builder = http::builder(&options.transport)?;
            // A load balancer may keep a connection open whose other end is gone.
            Ok(builder.http2_keep_alive_interval(PING_INTERVAL).http2_keep_alive_timeout(PING_TIMEOUT))
        };
        let http = http::build(client()?)?;
        let egress = match &options.egress_proxy {
            None => http.clone(),
            Some(proxy) => {
                let what = "cannot use invoicing.egress.proxy";
                // The address may hold a password, which the error would show.
                let unusable = || ClientSetupError::wrap(what)("it is not the address of a proxy");
                let address = Url::parse(proxy.reveal()).map_err(|_| unusable())?;
                hosts.check(&address).map_err(ClientSetupError::wrap(what))?;
                let proxy = reqwest::Proxy::all(address).map_err(|_| unusable())?;
                http::build(client()?.proxy(proxy))?
            }
        };
        let mut key_header = HeaderValue::from_str(options.subscription_key.reveal())
            .map_err(ClientSetupError::wrap("cannot send provider.subscription.key in a header"))?;
        key_header.set_sensitive(true);
        let version_header = options.api_version.as_deref().map(HeaderValue::from_str).transpose();
        let version_header = version_header
            .map_err(ClientSetupError::wrap("cannot send invoicing.api.version in a header"))?;
        Ok(Self {
            http,
            egress,
            base: options.base_url.as_str().trim_end_matches('/').to_owned(),
            key: options.subscription_key.clone(),
            key_header,
            version_header,
            transport: options.transport.clone(),
            budget,
            clock,
            quirks: Quirks::default(),
        })
    }

    /// Makes a call until `parse` accepts a response or the call fails.
    pub(super) async fn call<T>(
        &self,
        call: &ApiCall<'_>,
        options: &CallOptions,
        parse: impl Fn(&ApiResponse) -> Result<T, Cause>,
    ) -> Result<T, Error> {
        self.observed_call(call, options, &|_| {}, parse).await
    }

    /// The same. `observe` gets every response that was read, also those that end in an error or another attempt.
    pub(super) async fn observed_call<T>(
        &self,
        call: &ApiCall<'_>,
        options: &CallOptions,
        observe: &(dyn Fn(&ApiResponse<'_>) + Sync),
        parse: impl Fn(&ApiResponse) -> Result<T, Cause>,
    ) -> Result<T, Error> {
        let target = self.target(call).map_err(|cause| call.failed(cause, Acted::No))?;
        let mut renewed = false;
        let mut refused: Option<Error> = None;
        loop {
            let Admission { pass, permit, access } =
                self.turn(call, options).await.map_err(|cause| not_admitted(call, refused.take(), cause))?;
            let in_flight = CircuitGuard { pass, since: Instant::now(), patience: self.patience() };
            let outcome = self.attempt(call, options, &target, access.as_ref(), observe, &parse).await;
            let elapsed = in_flight.since.elapsed();
            self.count(call, &outcome, elapsed);
            in_flight.end(&outcome);
            let mut error = match outcome {
                Ok(value) => {
                    permit.accepted();
                    if let Some(access) = &access {
                        self.quirks.answered(call, access);
                    }
                    return Ok(value);
                }
                Err(error) => error,
            };
            if let Cause::Throttled { again } | Cause::Quota { again } = &mut error.cause {
                *again = Some(permit.refused(*again));
                refused = Some(error);
                continue;
            }
            if error.status.is_some() {
                permit.accepted();
            }
            drop(permit);
            let (Authority::Tokens(tokens), Some(access)) = (call.authority, access) else {
                return Err(error);
            };
            if renewed || !self.is_about_token(call, &error, &access, elapsed) {
                if let Cause::Token { remedy } = &mut error.cause {
                    self.quirks.refused(call);
                    *remedy = tokens.remedy().map(Into::into);
                }
                return Err(error);
            }
            let since = Instant::now();
            let another = tokens.instead_of(&access, options.deadline).await;
            waited_for_token(options, since);
            if let Err(source) = another {
                return Err(Error { cause: source.into(), ..error });
            }
            renewed = true;
        }
    }

    /// Waits for circuit, token and budget.
    async fn turn(&self, call: &ApiCall<'_>, options: &CallOptions) -> Result<Admission<'_>, Cause> {
        let circuit = self.budget.circuit();
        loop {
            if Instant::now() >= options.deadline {
                return Err(Cause::Timeout { limit: Limit::Call });
            }
            // The egress proxy says nothing about the host's health, and the host nothing about the proxy's.
            if !call.egress {
                let waited = circuit
                    .ready(options.deadline)
                    .await
                    .map_err(|StaysOpen(left)| Cause::Waited { what: ApiWait::Circuit, left })?;
                if !waited.is_zero() {
                    metrics::api_waited(options.priority.label(), ApiWait::Circuit, waited);
                }
            }
            // Before the budget, so that a call without a token blocks no call that has one.
            let access = self.access(call, options).await?;
            let good = access.as_ref().is_some_and(|access| !self.is_over(access, Duration::ZERO));
            let permit = self
                .budget
                .admit(options.priority, call.company(), options.deadline)
                .await
                .map_err(|BudgetTimeout { what, left }| Cause::Waited { what, left })?;
            // Never wait with a permit in hand: if the token has expired meanwhile, give the permit back.
            if good && access.as_ref().is_some_and(|access| self.is_over(access, Duration::ZERO)) {
                permit.unused();
                continue;
            }
            if call.egress {
                return Ok(Admission { pass: None, permit, access });
            }
            match circuit.enter() {
                Some(pass) => return Ok(Admission { pass: Some(pass), permit, access }),
                None => permit.unused(),
            }
        }
    }

    async fn access(&self, call: &ApiCall<'_>, options: &CallOptions) -> Result<Option<Access>, Cause> {
        match call.authority {
            Authority::Tokens(tokens) => {
                let since = Instant::now();
                let access = tokens.token(options.deadline).await;
                waited_for_token(options, since);
                Ok(Some(access?))
            }
            Authority::Given(header) => {
                Ok(Some(Access { header: header.clone(), serial: 0, expires_ms: None }))
            }
            Authority::Nobody => Ok(None),
        }
    }

    /// Whether the token had expired `ago`, by the provider's clock as known now.
    fn is_over(&self, access: &Access, ago: Duration) -> bool {
        let then_ms = self.clock.now_ms().saturating_sub(http::milliseconds(ago));
        access.expires_ms.is_some_and(|end| end <= then_ms)
    }

    /// Whether another token could help. A token that was valid when the request was sent (`elapsed` ago) was not the reason, and
    /// the provider may have acted.
    fn is_about_token(&self, call: &ApiCall<'_>, error: &Error, access: &Access, elapsed: Duration) -> bool {
        match error.cause {
            Cause::Token { .. } => !self.quirks.is_for_lack_of_a_right(call, access),
            // The provider answers 500 for expired tokens too.
            Cause::Server { .. } => error.status == Some(500) && self.is_over(access, elapsed),
            _ => false,
        }
    }

    /// How long a silent host counts as failing, if the caller gives up before its own time limit.
    fn patience(&self) -> Duration {
        self.transport.connect.min(self.transport.read / 2)
    }

    /// Sends once.
    async fn attempt<T>(
        &self,
        call: &ApiCall<'_>,
        options: &CallOptions,
        target: &CallTarget,
        access: Option<&Access>,
        observe: &(dyn Fn(&ApiResponse<'_>) + Sync),
        parse: &impl Fn(&ApiResponse) -> Result<T, Cause>,
    ) -> Result<T, Error> {
        let request =
            self.request(call, options, target, access).map_err(|cause| call.failed(cause, Acted::No))?;
        let limit = Instant::now() + self.transport.request;
        let end = limit.min(options.deadline);
        let sent = SystemTime::now();
        let late =
            || Cause::Timeout { limit: if limit <= options.deadline { Limit::Request } else { Limit::Call } };
        let response = match timeout_at(end, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let acted = if error.is_connect() { Acted::No } else { Acted::Unknown };
                return Err(call.failed(broken(error.without_url(), Cause::Unreachable), acted));
            }
            Err(_) => return Err(call.failed(late(), Acted::Unknown)),
        };
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        self.clock.observe(&headers);
        let failed = |cause, excerpt| Error {
            status: Some(status),
            excerpt,
            ..call.failed(cause, verdict::acted(status))
        };
        let own = [Some(&self.key), access.map(|access| &access.header)];
        let secrets: Vec<_> = own.into_iter().flatten().chain(call.hide.iter().copied()).collect();
        if !(200..300).contains(&status) {
            // The status is enough if the body does not arrive in time.
            let body = timeout_at(end, body::read_start(response)).await.unwrap_or_default();
            let cause = verdict::refusal(status, &headers, &body, access.is_some(), &self.clock);
            let excerpt = body::excerpt(&body, &secrets);
            let times = read_times(sent, &headers);
            observe(&ApiResponse { status, headers, body, times, secrets });
            return Err(failed(cause, excerpt));
        }
        let body = match timeout_at(end, http::read_bounded(response, self.transport.response_limit)).await {
            Ok(Ok(body)) => body,
            Ok(Err(ReadError::TooLarge { limit })) => return Err(failed(Cause::TooLarge { limit }, None)),
            Ok(Err(ReadError::Broken(error))) => return Err(failed(broken(error, Cause::Truncated), None)),
            Err(_) => return Err(failed(late(), None)),
        };
        let times = read_times(sent, &headers);
        let answer = ApiResponse { status, headers, body, times, secrets };
        observe(&answer);
        parse(&answer).map_err(|cause| {
            let words = matches!(cause, Cause::NotJson).then(|| body::excerpt(&answer.body, &answer.secrets));
            failed(cause, words.flatten())
        })
    }

    fn target(&self, call: &ApiCall<'_>) -> Result<CallTarget, Cause> {
        let mut headers = HeaderMap::new();
        headers.insert(KEY_HEADER, self.key_header.clone());
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ACCEPT, JSON);
        if call.method == Method::GET {
            // A cached response would be older than its request.
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
        if let Some(context) = call.context.header()? {
            headers.insert(CONTEXT_HEADER, context);
        }
        if let Some(version) = self.version_header.as_ref().filter(|_| call.area == ApiArea::Invoicing) {
            headers.insert(VERSION_HEADER, version.clone());
        }
        Ok(CallTarget { url: format!("{}/{}", self.base, call.address()?), headers })
    }

    fn request(
        &self,
        call: &ApiCall<'_>,
        options: &CallOptions,
        target: &CallTarget,
        access: Option<&Access>,
    ) -> Result<reqwest::RequestBuilder, Cause> {
        let client = if call.egress { &self.egress } else { &self.http };
        let mut request = client
            .request(call.method.clone(), &target.url)
            .timeout(self.transport.request + CLIENT_TIMEOUT_MARGIN)
            .headers(target.headers.clone())
            .header(TRACE_HEADER, trace(options.trace).to_string());
        if let Some(access) = access {
            let mut header = HeaderValue::from_str(access.header.reveal()).map_err(|_| Cause::Unsendable)?;
            header.set_sensitive(true);
            request = request.header(AUTHORIZATION, header);
        }
        match &call.body {
            Some(body) => Ok(request.body(body.to_string())),
            None => Ok(request),
        }
    }

    fn count<T>(&self, call: &ApiCall<'_>, outcome: &Result<T, Error>, elapsed: Duration) {
        let counted = match outcome {
            Ok(_) => Some(ApiOutcome::Ok),
            Err(error) => error.cause.verdict().2,
        };
        if let Some(counted) = counted {
            metrics::api_request_ended(call.area, counted, elapsed);
        }
        let status = outcome.as_ref().err().and_then(|error| error.status);
        tracing::debug!(method = %call.method, path = %call.path, ok = outcome.is_ok(), status, ?elapsed, "request ended");
    }
}

impl CircuitGuard<'_> {
    /// Reports the outcome to the circuit.
    fn end<T>(mut self, outcome: &Result<T, Error>) {
        let Some(pass) = self.pass.take() else { return };
        let Err(error) = outcome else { return pass.succeeded() };
        match (error.status, &error.cause) {
            (Some(502..=504), _)
            | (_, Cause::Unreachable(_) | Cause::Truncated(_))
            | (_, Cause::Timeout { limit: Limit::Connect | Limit::Read | Limit::Request }) => pass.failed(),
            (Some(status), _) if status < 500 => pass.succeeded(),
            // It may be about one record.
            (Some(_), _) => pass.inconclusive(),
            // The call's deadline: whether that says something about the host depends on the time waited, see `drop`.
            (None, Cause::Timeout { .. }) => self.pass = Some(pass),
            (None, _) => {}
        }
    }
}

impl Drop for CircuitGuard<'_> {
    /// Giving up early says nothing about the host; giving up after a long wait does.
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take()
            && self.since.elapsed() >= self.patience
        {
            pass.failed();
        }
    }
}

/// The error of a call that got no permission. If an earlier attempt was rate limited, that is the better reason, with the wait
/// that is left now.
fn not_admitted(call: &ApiCall<'_>, refused: Option<Error>, cause: Cause) -> Error {
    let left = match cause {
        Cause::Waited { left, .. } => left,
        Cause::Timeout { .. } => None,
        cause => return call.failed(cause, Acted::No),
    };
    let Some(mut error) = refused else { return call.failed(cause, Acted::No) };
    if let Cause::Throttled { again } | Cause::Quota { again } = &mut error.cause {
        *again = left;
    }
    error
}

/// A timeout of the HTTP client, or another transport error.
fn broken(error: reqwest::Error, otherwise: fn(reqwest::Error) -> Cause) -> Cause {
    match (error.is_timeout(), error.is_connect()) {
        (true, true) => Cause::Timeout { limit: Limit::Connect },
        (true, false) => Cause::Timeout { limit: Limit::Read },
        (false, _) => otherwise(error),
    }
}

fn waited_for_token(options: &CallOptions, since: Instant) {
    let waited = since.elapsed();
    if waited > MIN_TOKEN_WAIT {
        metrics::api_waited(options.priority.label(), ApiWait::Token, waited);
    }
}

/// The next step of the given trace, or the start of a new one.
fn trace(given: Option<Traceparent>) -> Traceparent {
    // Without random numbers the request is still sent, with the trace of its parent.
    let Ok(random) = random::bytes::<24>() else {
        return given.unwrap_or_else(|| Traceparent::derived("no random numbers"));
    };
    let (mut id, mut parent) = ([0; 16], [0; 8]);
    id.copy_from_slice(&random[..16]);
    parent.copy_from_slice(&random[16..]);
    // All zeros are reserved.
    id[0] |= 1;
    parent[0] |= 1;
    let next = match given {
        Some(given) => given.child(parent),
        None => Traceparent::new(id, parent, 0),
    };
    next.unwrap_or_else(|_| Traceparent::derived("no trace"))
}

/// The times of a response that has just been read.
fn read_times(sent: SystemTime, headers: &HeaderMap) -> ReadTimes {
    ReadTimes { sent, answered: SystemTime::now(), date: date(headers), age: age(headers) }
}

/// How long the response was in a cache, if it was.
fn age(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(AGE)?.to_str().ok()?.trim().parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

fn date(headers: &HeaderMap) -> Option<SystemTime> {
    let text = headers.get(DATE)?.to_str().ok()?;
    let milliseconds = u64::try_from(http::parse_date(text)?).ok()?;
    Some(UNIX_EPOCH + Duration::from_millis(milliseconds))
}
