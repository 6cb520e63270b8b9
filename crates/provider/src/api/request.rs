//! One request, from the wait for its turn to the verdict on its answer. Nothing else in the product sends to the APIs.

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
    Ask, Budget, Cut, Options, body,
    budget::{Permit, TooLate},
    call::{Answer, Authority, Call},
    error::{Acted, Cause, Error, Limit},
    learnt::Learnt,
    verdict,
};
use crate::{
    Transport,
    auth::{
        Access, Tokens,
        http::{self, ProviderClock, ReadError},
    },
};

const KEY_HEADER: &str = "ocp-apim-subscription-key";
const CONTEXT_HEADER: &str = "context";
const TRACE_HEADER: &str = "traceparent";
/// Invoicing has it, and it alone.
const VERSION_HEADER: &str = "api-version";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// A token that came at once was not waited for.
const NO_WAIT: Duration = Duration::from_millis(1);
/// How often a connection that is in use is asked whether it lives, and how long it has to say so.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_ANSWERED: Duration = Duration::from_secs(5);
/// By how much the client's own limit is longer than ours, so that ours tells which it was.
const MARGIN: Duration = Duration::from_secs(1);

/// What all clients of one provider share.
#[derive(Debug)]
pub(super) struct Core {
    http: reqwest::Client,
    /// Through `invoicing.egress.proxy`, where there is one.
    egress: reqwest::Client,
    /// Without a slash at its end.
    base: String,
    key: Secret,
    key_header: HeaderValue,
    /// `invoicing.api.version`.
    version_header: Option<HeaderValue>,
    transport: Transport,
    budget: Budget,
    /// What time it is over there.
    pub(super) clock: ProviderClock,
    /// What has been found out by trying.
    pub(super) learnt: Learnt,
}

/// One area of the APIs, asked with the tokens of one grant.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) core: Arc<Core>,
    pub(super) area: ApiArea,
    pub(super) tokens: Arc<dyn Tokens>,
}

/// Where a call goes, and its headers apart from those that each request has of its own.
struct Target {
    url: String,
    headers: HeaderMap,
}

/// A request's turn: it may be sent now.
struct Turn<'a> {
    pass: Option<RequestPermit<'a>>,
    permit: Permit,
    access: Option<Access>,
}

/// A request that was sent, and what its end says about the host.
struct OnItsWay<'a> {
    pass: Option<RequestPermit<'a>>,
    since: Instant,
    patience: Duration,
}

impl Caller {
    /// A call with a token of the grant.
    pub(super) fn call(&self, method: Method, path: impl Into<Cow<'static, str>>) -> Call<'_> {
        Call::new(self.area, method, path, Authority::Tokens(&*self.tokens))
    }
}

impl Core {
    pub(super) fn new(options: &Options, budget: Budget, clock: ProviderClock) -> Result<Self, Cause> {
        let setup = |error: http::Setup| Cause::Setup { what: error.what, source: error.source };
        let hosts = &options.transport.hosts;
        hosts.check(&options.base_url).map_err(Cause::setup("use provider.base.url"))?;
        let client = || -> Result<reqwest::ClientBuilder, Cause> {
            let builder = http::builder(&options.transport).map_err(setup)?;
            // A balancer may answer for a connection whose other end is gone.
            Ok(builder.http2_keep_alive_interval(PING_EVERY).http2_keep_alive_timeout(PING_ANSWERED))
        };
        let http = http::build(client()?).map_err(setup)?;
        let egress = match &options.egress_proxy {
            None => http.clone(),
            Some(proxy) => {
                let what = "use invoicing.egress.proxy";
                // The address may hold a password, which the error would show.
                let unusable = || Cause::setup(what)("it is no address of a proxy");
                let address = Url::parse(proxy.reveal()).map_err(|_| unusable())?;
                hosts.check(&address).map_err(Cause::setup(what))?;
                let proxy = reqwest::Proxy::all(address).map_err(|_| unusable())?;
                http::build(client()?.proxy(proxy)).map_err(setup)?
            }
        };
        let mut key_header = HeaderValue::from_str(options.subscription_key.reveal())
            .map_err(Cause::setup("send provider.subscription.key in a header"))?;
        key_header.set_sensitive(true);
        let version_header = options.api_version.as_deref().map(HeaderValue::from_str).transpose();
        let version_header =
            version_header.map_err(Cause::setup("send invoicing.api.version in a header"))?;
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
            learnt: Learnt::default(),
        })
    }

    /// Makes a call, until it has an answer that `parse` takes, or a reason why not.
    pub(super) async fn call<T>(
        &self,
        call: &Call<'_>,
        ask: &Ask,
        parse: impl Fn(&Answer) -> Result<T, Cause>,
    ) -> Result<T, Error> {
        let target = self.target(call).map_err(|cause| call.failed(cause, Acted::No))?;
        let mut renewed = false;
        let mut refused: Option<Error> = None;
        loop {
            let Turn { pass, permit, access } =
                self.turn(call, ask).await.map_err(|cause| in_vain(call, refused.take(), cause))?;
            let on_its_way = OnItsWay { pass, since: Instant::now(), patience: self.patience() };
            let outcome = self.attempt(call, ask, &target, access.as_ref(), &parse).await;
            let elapsed = on_its_way.since.elapsed();
            self.count(call, &outcome, elapsed);
            on_its_way.end(&outcome);
            let mut error = match outcome {
                Ok(value) => {
                    permit.accepted();
                    if let Some(access) = &access {
                        self.learnt.answered(call, access);
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
                    self.learnt.refused(call);
                    *remedy = tokens.remedy().map(Into::into);
                }
                return Err(error);
            }
            let since = Instant::now();
            let another = tokens.instead_of(&access, ask.end).await;
            waited_for_token(ask, since);
            if let Err(source) = another {
                return Err(Error { cause: source.into(), ..error });
            }
            renewed = true;
        }
    }

    /// Waits for everything that a request waits for.
    async fn turn(&self, call: &Call<'_>, ask: &Ask) -> Result<Turn<'_>, Cause> {
        let circuit = self.budget.circuit();
        loop {
            if Instant::now() >= ask.end {
                return Err(Cause::Timeout { limit: Limit::Call });
            }
            // What goes through a proxy of its own says nothing about the host, nor the host about it.
            if !call.egress {
                let waited = circuit
                    .ready(ask.end)
                    .await
                    .map_err(|StaysOpen(left)| Cause::Waited { what: ApiWait::Circuit, left })?;
                if !waited.is_zero() {
                    metrics::api_waited(ask.priority.label(), ApiWait::Circuit, waited);
                }
            }
            // Waited for before the turn, so that who has none takes no place from those who have one.
            let access = self.access(call, ask).await?;
            let good = access.as_ref().is_some_and(|access| !self.is_over(access, Duration::ZERO));
            let permit = self
                .budget
                .admit(ask.priority, call.company(), ask.end)
                .await
                .map_err(|TooLate { what, left }| Cause::Waited { what, left })?;
            // Nobody waits with a turn in hand: if the token has ended meanwhile, the turn is another's.
            if good && access.as_ref().is_some_and(|access| self.is_over(access, Duration::ZERO)) {
                permit.unused();
                continue;
            }
            if call.egress {
                return Ok(Turn { pass: None, permit, access });
            }
            match circuit.enter() {
                Some(pass) => return Ok(Turn { pass: Some(pass), permit, access }),
                None => permit.unused(),
            }
        }
    }

    async fn access(&self, call: &Call<'_>, ask: &Ask) -> Result<Option<Access>, Cause> {
        match call.authority {
            Authority::Tokens(tokens) => {
                let since = Instant::now();
                let access = tokens.token(ask.end).await;
                waited_for_token(ask, since);
                Ok(Some(access?))
            }
            Authority::Given(header) => {
                Ok(Some(Access { header: header.clone(), serial: 0, expires_ms: None }))
            }
            Authority::Nobody => Ok(None),
        }
    }

    /// Whether a token had ended so long ago, by the provider's clock as it is known now.
    fn is_over(&self, access: &Access, ago: Duration) -> bool {
        let then_ms = self.clock.now_ms().saturating_sub(http::milliseconds(ago));
        access.expires_ms.is_some_and(|end| end <= then_ms)
    }

    /// Whether another token could help. `elapsed` is how long ago the request was sent: a token that was good then was not
    /// the reason, and what was asked for may have been done.
    fn is_about_token(&self, call: &Call<'_>, error: &Error, access: &Access, elapsed: Duration) -> bool {
        match error.cause {
            Cause::Token { .. } => !self.learnt.is_for_lack_of_a_right(call, access),
            // The provider says so of tokens that have ended, too.
            Cause::Server { .. } => error.status == Some(500) && self.is_over(access, elapsed),
            _ => false,
        }
    }

    /// How long a host may be silent before whoever gives up on it says something about the host.
    fn patience(&self) -> Duration {
        self.transport.connect.min(self.transport.read / 2)
    }

    /// Sends once.
    async fn attempt<T>(
        &self,
        call: &Call<'_>,
        ask: &Ask,
        target: &Target,
        access: Option<&Access>,
        parse: &impl Fn(&Answer) -> Result<T, Cause>,
    ) -> Result<T, Error> {
        let request =
            self.request(call, ask, target, access).map_err(|cause| call.failed(cause, Acted::No))?;
        let limit = Instant::now() + self.transport.request;
        let end = limit.min(ask.end);
        let sent = SystemTime::now();
        let late = || Cause::Timeout { limit: if limit <= ask.end { Limit::Request } else { Limit::Call } };
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
            // The status says enough where the words do not come in time.
            let body = timeout_at(end, body::read_start(response)).await.unwrap_or_default();
            let cause = verdict::refusal(status, &headers, &body, access.is_some(), &self.clock);
            return Err(failed(cause, body::excerpt(&body, &secrets)));
        }
        let body = match timeout_at(end, http::read_bounded(response, self.transport.response_limit)).await {
            Ok(Ok(body)) => body,
            Ok(Err(ReadError::TooLarge { limit })) => return Err(failed(Cause::TooLarge { limit }, None)),
            Ok(Err(ReadError::Broken(error))) => return Err(failed(broken(error, Cause::Cut), None)),
            Err(_) => return Err(failed(late(), None)),
        };
        let cut = Cut { sent, answered: SystemTime::now(), date: date(&headers), age: age(&headers) };
        let answer = Answer { status, headers, body, cut, secrets };
        parse(&answer).map_err(|cause| {
            let words = matches!(cause, Cause::NotJson).then(|| body::excerpt(&answer.body, &answer.secrets));
            failed(cause, words.flatten())
        })
    }

    fn target(&self, call: &Call<'_>) -> Result<Target, Cause> {
        let mut headers = HeaderMap::new();
        headers.insert(KEY_HEADER, self.key_header.clone());
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ACCEPT, JSON);
        if call.method == Method::GET {
            // What lies in a cache was true at another time than now.
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
        if let Some(context) = call.context.header()? {
            headers.insert(CONTEXT_HEADER, context);
        }
        if let Some(version) = self.version_header.as_ref().filter(|_| call.area == ApiArea::Invoicing) {
            headers.insert(VERSION_HEADER, version.clone());
        }
        Ok(Target { url: format!("{}/{}", self.base, call.address()?), headers })
    }

    fn request(
        &self,
        call: &Call<'_>,
        ask: &Ask,
        target: &Target,
        access: Option<&Access>,
    ) -> Result<reqwest::RequestBuilder, Cause> {
        let client = if call.egress { &self.egress } else { &self.http };
        let mut request = client
            .request(call.method.clone(), &target.url)
            .timeout(self.transport.request + MARGIN)
            .headers(target.headers.clone())
            .header(TRACE_HEADER, trace(ask.trace).to_string());
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

    fn count<T>(&self, call: &Call<'_>, outcome: &Result<T, Error>, elapsed: Duration) {
        let counted = match outcome {
            Ok(_) => Some(ApiOutcome::Ok),
            Err(error) => error.cause.outcome(),
        };
        if let Some(counted) = counted {
            metrics::api_request_ended(call.area, counted, elapsed);
        }
        let status = outcome.as_ref().err().and_then(|error| error.status);
        tracing::debug!(method = %call.method, path = %call.path, ok = outcome.is_ok(), status, ?elapsed, "request ended");
    }
}

impl OnItsWay<'_> {
    /// Tells the circuit what an outcome says about the host.
    fn end<T>(mut self, outcome: &Result<T, Error>) {
        let Some(pass) = self.pass.take() else { return };
        let Err(error) = outcome else { return pass.succeeded() };
        match (error.status, &error.cause) {
            (Some(502..=504), _)
            | (_, Cause::Unreachable(_) | Cause::Cut(_))
            | (_, Cause::Timeout { limit: Limit::Connect | Limit::Read | Limit::Request }) => pass.failed(),
            (Some(status), _) if status < 500 => pass.succeeded(),
            // It may be about one record.
            (Some(_), _) => pass.inconclusive(),
            // The caller's time was up: what that says is a question of how long it was.
            (None, Cause::Timeout { .. }) => self.pass = Some(pass),
            (None, _) => {}
        }
    }
}

impl Drop for OnItsWay<'_> {
    /// Somebody who gives up early says nothing about the host. One who has waited for long does.
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take()
            && self.since.elapsed() >= self.patience
        {
            pass.failed();
        }
    }
}

/// A call that did not get a turn. If it had one before and was refused for the rate, that says more than that it waited; but
/// how long the wait is, is another now.
fn in_vain(call: &Call<'_>, refused: Option<Error>, cause: Cause) -> Error {
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

/// A time limit of the client, or something that broke.
fn broken(error: reqwest::Error, otherwise: fn(reqwest::Error) -> Cause) -> Cause {
    match (error.is_timeout(), error.is_connect()) {
        (true, true) => Cause::Timeout { limit: Limit::Connect },
        (true, false) => Cause::Timeout { limit: Limit::Read },
        (false, _) => otherwise(error),
    }
}

fn waited_for_token(ask: &Ask, since: Instant) {
    let waited = since.elapsed();
    if waited > NO_WAIT {
        metrics::api_waited(ask.priority.label(), ApiWait::Token, waited);
    }
}

/// The next step of a trace, or the first of its own.
fn trace(given: Option<Traceparent>) -> Traceparent {
    // Without random numbers the trace is none of its own, which is no reason not to ask.
    let Ok(random) = random::bytes::<24>() else {
        return given.unwrap_or_else(|| Traceparent::derived("no random numbers"));
    };
    let (mut id, mut parent) = ([0; 16], [0; 8]);
    id.copy_from_slice(&random[..16]);
    parent.copy_from_slice(&random[16..]);
    // Zero is reserved.
    id[0] |= 1;
    parent[0] |= 1;
    let next = match given {
        Some(given) => given.child(parent),
        None => Traceparent::new(id, parent, 0),
    };
    next.unwrap_or_else(|_| Traceparent::derived("no trace"))
}

/// How long an answer lay in somebody's cache, if it did.
fn age(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(AGE)?.to_str().ok()?.trim().parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

fn date(headers: &HeaderMap) -> Option<SystemTime> {
    let text = headers.get(DATE)?.to_str().ok()?;
    let milliseconds = u64::try_from(http::parse_date(text)?).ok()?;
    Some(UNIX_EPOCH + Duration::from_millis(milliseconds))
}
